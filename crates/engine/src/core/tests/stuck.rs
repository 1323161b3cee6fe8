//! Devices that owe an end for longer than they may.

use super::discards::checkpoint;
use super::faults::{is_all, quiet, write_block};
use super::*;
use crate::core::stuck::TIMED_OUT_MAX;
use crate::io::OperationKind;
use layby_cache::discards::DiscardLimits;
use rustix::io::Errno;

impl World {
    /// As [`World::run`], with a look for what is stuck whenever one is due.
    fn run_watched(&mut self, volume: u32, call: Call, value: u8) -> Result<Answer, ErrorKind> {
        let bytes = if call.operation == Operation::Write { call.length as usize } else { 0 };
        self.submit(volume, call, &vec![value; bytes]);
        for _ in 0..TURNS_MAX {
            if let Some(finished) = self.core.take_finished() {
                return finished.result;
            }
            self.turn_watched();
        }
        panic!("{call:?} never ends; replay with SEED={}", self.seed);
    }

    fn submit(&mut self, volume: u32, call: Call, payload: &[u8]) {
        let asker = Asker(u64::MAX);
        self.core.submit(&mut self.io, asker, VolumeId(volume), call, payload, None);
    }

    fn turn_watched(&mut self) {
        let look = self.core.next_look(&self.io);
        self.core.turn_by(&mut self.io, look);
        self.core.look_for_stuck(&mut self.io);
    }

    fn read_watched(&mut self, volume: u32, block: u64) -> Result<Vec<u8>, ErrorKind> {
        match self.run_watched(volume, call(Operation::Read, block * BLOCK, BLOCK), 0)? {
            Answer::Data(data) => Ok(data.to_vec()),
            other => panic!("a read gives data, not {other:?}"),
        }
    }

    fn write_watched(&mut self, volume: u32, block: u64, value: u8) -> Result<(), ErrorKind> {
        let write = call(Operation::Write, block * BLOCK, BLOCK);
        self.run_watched(volume, write, value).map(drop)
    }

    /// Seconds that something takes, and its result.
    fn timed<T>(&mut self, run: impl FnOnce(&mut World) -> T) -> (f64, T) {
        let begun = self.io.now();
        let result = run(self);
        (self.io.now().since(begun).as_secs_f64(), result)
    }

    /// Turns until nothing is stuck any more.
    fn recover_from_stuck(&mut self) {
        for _ in 0..TURNS_MAX {
            if self.core.snapshot().stuck.is_empty() {
                return;
            }
            self.turn_watched();
        }
        panic!("what answers again stays stuck; replay with SEED={}", self.seed);
    }

    /// Turns until nothing is stuck, and nothing that was timed out is under way.
    fn end_late(&mut self) {
        self.recover_from_stuck();
        for _ in 0..TURNS_MAX {
            if self.core.inflight(VolumeId(2)) == 0 {
                return;
            }
            self.turn_watched();
        }
        panic!("what was timed out never ends; replay with SEED={}", self.seed);
    }

    fn stuck_notices(&mut self) -> (usize, usize) {
        let notices = self.core.take_notices();
        let is_stuck = |notice: &&Notice| matches!(notice, Notice::Stuck { .. });
        let is_back = |notice: &&Notice| matches!(notice, Notice::Answers { .. });
        (notices.iter().filter(is_stuck).count(), notices.iter().filter(is_back).count())
    }
}

/// Goal: a backing store that never answers costs the reads that need it an error after the limit,
/// later ones at once, and nothing else: hits, writes, other volumes go on, dirty blocks are kept
/// and written back once it answers. Method: it is stuck under a read that misses.
#[test]
fn a_stuck_home_fails_what_needs_it_and_no_more() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        write_block(&mut world, 2, 1, 40).expect("a write");
        world.drain().expect("the home takes it");
        let home = world.homes[1];
        world.io.set_stuck(home, true);
        let (seconds, result) = world.timed(|world| world.read_watched(2, 5));
        assert_eq!(result, Err(ErrorKind::Retry), "SEED={seed}");
        assert!((30.0..=35.0).contains(&seconds), "{seconds} s; SEED={seed}");
        assert_eq!(world.stuck_notices(), (1, 0), "SEED={seed}");
        let (seconds, ()) = world.timed(|world| {
            world.read_watched(2, 9).expect_err("it is known to be stuck");
            assert!(is_all(&world.read_watched(2, 1).expect("a hit"), 40), "SEED={seed}");
            world.write_watched(2, 7, 50).expect("the SSD level takes it");
            assert!(is_all(&world.read_watched(2, 7).expect("a hit"), 50), "SEED={seed}");
            assert!(is_all(&world.read_watched(1, 3).expect("another home"), 0), "SEED={seed}");
            world.write_watched(1, 3, 60).expect("another volume");
        });
        assert!(seconds < 10.0, "nothing waits as long: {seconds} s; SEED={seed}");
        assert_eq!(world.drain(), Err(ErrorKind::Retry), "it cannot be written back");
        let snapshot = world.core.snapshot();
        assert_eq!(snapshot.stuck.len(), 1, "SEED={seed}");
        assert_eq!(snapshot.volumes[1].timed_out, 1, "SEED={seed}");

        world.io.set_stuck(home, false);
        world.recover_from_stuck();
        assert_eq!(world.stuck_notices(), (0, 1), "SEED={seed}");
        assert!(is_all(&world.read_watched(2, 5).expect("it answers"), 0), "SEED={seed}");
        world.drain().expect("it answers");
        let bytes = world.io.peek(home);
        assert!(is_all(&bytes[7 * BLOCK as usize..][..BLOCK as usize], 50), "SEED={seed}");
        assert_eq!(world.core.inflight(VolumeId(2)), 0, "what was timed out has ended");
    });
}

/// Goal: a checkpoint of the log does not wait for a backing store that is silent under a trim or a
/// zeroing: these are answered, are zeros for good, and newer writes come to lie over them. Method:
/// each before a home that gets stuck, a checkpoint, another volume; then it answers, a crash of
/// each kind, a newer write and another crash.
#[test]
fn a_checkpoint_waits_for_no_zeroing() {
    let operations = [(Operation::Trim, false), (Operation::WriteZeroes, true)];
    each_seed(64, |seed| {
        for (operation, no_hole) in operations {
            let mode = [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll];
            let mode = mode[seed as usize % 3];
            let mut world = World::new(seed, quiet());
            (0..8).for_each(|block| write_block(&mut world, 2, block, 40).expect("a write"));
            world.drain().expect("the home takes it");
            let home = world.homes[1];
            let mut zeroing = call(operation, 2 * BLOCK, 3 * BLOCK);
            zeroing.flags.no_hole = no_hole;
            world.submit(2, zeroing, &[]);
            (0..seed % 16).for_each(|_| world.turn_watched());
            world.io.set_stuck(home, true);
            (0..50).for_each(|_| world.turn_watched());
            checkpoint(&mut world);
            let answer = world.core.take_finished().expect("it is answered");
            assert!(answer.result.is_ok(), "{operation:?}: {:?}; SEED={seed}", answer.result);
            world.write_watched(1, 3, 60).expect("another volume");
            checkpoint(&mut world);
            // Where the home has zeroed it, only the home can say so.
            let zeros = world.read_watched(2, 4).map_or(true, |data| is_all(&data, 0));
            assert!(zeros, "SEED={seed}");
            world.write_watched(2, 3, 41).expect("the SSD level takes it");
            world.io.set_stuck(home, false);
            world.recover_from_stuck();
            if seed % 2 == 0 {
                world.drain().expect("it answers");
            }
            for when in ["at once", "after a crash", "after two"] {
                let found = [2, 4, 5].map(|block| {
                    let data = world.read(2, block * BLOCK, BLOCK).expect("a read");
                    data[0]
                });
                assert_eq!(found, [0, 0, 40], "{operation:?} {when}; SEED={seed}");
                if seed % 2 == 0 {
                    let data = world.read(2, 3 * BLOCK, BLOCK).expect("a read");
                    assert!(is_all(&data, 41), "{operation:?} {when}; SEED={seed}");
                }
                world.crash(mode);
            }
        }
    });
}

/// Goal: the same of a backing store that failed before it fell silent: a sync, after which it is
/// not trusted, or discards. Method: the fault, a trim that is never answered, a checkpoint,
/// another volume; then a crash.
#[test]
fn a_checkpoint_waits_for_no_zeroing_of_a_failing_home() {
    each_seed(24, |seed| {
        let mut world = World::new(seed, quiet());
        (0..8).for_each(|block| write_block(&mut world, 2, block, 40).expect("a write"));
        world.drain().expect("the home takes it");
        let home = world.homes[1];
        if seed % 2 == 0 {
            world.io.fail_next(home, OperationKind::Sync, Errno::IO);
            world.run_watched(2, call(Operation::Trim, 6 * BLOCK, BLOCK), 0).expect("a trim");
            (0..50).for_each(|_| world.turn_watched());
            assert!(world.core.homes[&VolumeId(2)].backing.is_lost(), "SEED={seed}");
        } else {
            world.core.set_discard(VolumeId(2), DiscardLimits::DEFAULT);
            world.run_watched(2, call(Operation::Trim, 6 * BLOCK, BLOCK), 0).expect("a trim");
            (0..2).for_each(|_| world.io.fail_next(home, OperationKind::Zero, Errno::IO));
            world.core.send_all_discards(&mut world.io, VolumeId(2));
            (0..50).for_each(|_| world.turn_watched());
        }
        world.io.set_stuck(home, true);
        world.submit(2, call(Operation::Trim, 2 * BLOCK, 3 * BLOCK), &[]);
        (0..seed).for_each(|_| world.turn_watched());
        let before = world.core.checkpoints.ended;
        world.core.log_mut().expect("a log").checkpoint_now(false);
        (0..1000).for_each(|_| world.turn_watched());
        assert!(world.core.checkpoints.ended > before, "SEED={seed}: the checkpoint never ends");
        world.core.take_finished().expect("the trim was answered, or timed out");
        world.write_watched(1, 3, 60).expect("another volume");
        world.io.set_stuck(home, false);
        world.crash(
            [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll][seed as usize % 3],
        );
        let zeros = [2, 3, 4, 6].map(|block| world.read(2, block * BLOCK, BLOCK).expect("a read"));
        assert!(zeros.iter().all(|data| is_all(data, 0)), "SEED={seed}");
    });
}

/// Goal: a write that was timed out never lands over a newer one, and one that is seen stays.
/// Method: writes of parts of a block that only a stuck home has, and one of the whole; then it
/// answers, a whole write is acknowledged, and the power fails.
#[test]
fn a_late_write_lands_under_newer_ones() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        let home = world.homes[1];
        world.io.set_stuck(home, true);
        let part = call(Operation::Write, 3 * BLOCK + CELL, CELL);
        world.run_watched(2, part, 70).map(drop).expect_err("it needs the rest of the block");
        world.write_watched(2, 3, 71).expect_err("the first may still land");
        world.io.set_stuck(home, false);
        world.end_late();
        world.write_watched(2, 3, 72).expect("it answers");
        for _ in 0..100 {
            world.turn_watched();
        }
        assert!(is_all(&world.read_watched(2, 3).expect("a hit"), 72), "SEED={seed}");
        world.run_watched(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
        world.crash(CrashMode::DropAll);
        assert!(is_all(&world.read(2, 3 * BLOCK, BLOCK).expect("kept"), 72), "SEED={seed}");
    });
}

/// Goal: a stuck SSD level costs what needs it an error after the limit, and volumes that have
/// their blocks elsewhere go on. Method: it is stuck under a write; reads and writes of a volume on
/// the NVM level; then it answers, and each block is as it was seen.
#[test]
fn a_stuck_level_fails_what_needs_it() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        write_block(&mut world, 1, 2, 30).expect("a write");
        world.io.set_stuck(world.ssd, true);
        let (seconds, result) = world.timed(|world| world.write_watched(2, 1, 40));
        assert_eq!(result, Err(ErrorKind::Retry), "SEED={seed}");
        assert!((30.0..=35.0).contains(&seconds), "{seconds} s; SEED={seed}");
        let (seconds, ()) = world.timed(|world| {
            assert!(is_all(&world.read_watched(1, 2).expect("on the NVM level"), 30));
            assert!(is_all(&world.read_watched(2, 9).expect("at home"), 0));
        });
        assert!(seconds < 10.0, "nothing waits as long: {seconds} s; SEED={seed}");
        assert_eq!(world.core.snapshot().stuck[0].level, Some(2), "SEED={seed}");
        world.io.set_stuck(world.ssd, false);
        world.end_late();
        let seen = world.read_watched(2, 1).expect("it answers");
        assert!(is_all(&seen, 40) || is_all(&seen, 0), "old or new; SEED={seed}");
        world.run_watched(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
        world.crash(CrashMode::DropAll);
        assert_eq!(world.read(2, BLOCK, BLOCK).expect("kept"), seen, "SEED={seed}");
    });
}

/// Goal: while one place is silent, reads go on that join what works on their block elsewhere.
/// Method: two reads at once of a block on the SSD level beside a silent backing store; two of a
/// block below, and a third once its promotion hangs, beside a silent SSD level.
#[test]
fn reads_join_what_is_not_stuck() {
    each_seed(20, |seed| {
        for is_level in [false, true] {
            let mut world = World::new(seed, quiet());
            write_block(&mut world, 2, 1, 40).expect("a write");
            world.drain().expect("the home takes it");
            let (disk, block) = match is_level {
                true => (world.ssd, 9),
                false => (world.homes[1], 1),
            };
            world.io.set_stuck(disk, true);
            match is_level {
                true => world.write_watched(2, 3, 50).expect_err("it times out"),
                false => world.read_watched(2, 5).expect_err("it times out"),
            };
            let read = call(Operation::Read, block * BLOCK, BLOCK);
            (0..2).for_each(|_| world.submit(2, read, &[]));
            let mut ended = 0;
            let (seconds, ()) = world.timed(|world| {
                while ended < 2 {
                    world.turn_watched();
                    while let Some(finished) = world.core.take_finished() {
                        assert!(finished.result.is_ok(), "level: {is_level}; SEED={seed}");
                        ended += 1;
                    }
                }
                let again = world.read_watched(2, block);
                assert!(again.is_ok(), "level: {is_level}, {again:?}; SEED={seed}");
            });
            assert!(seconds < 10.0, "nothing waits as long: {seconds} s; SEED={seed}");
        }
    });
}

/// Goal: reads that would join what a silent place holds up are refused at once. Method: two reads
/// of a block of a backing store that is silent, after one that timed out.
#[test]
fn reads_join_nothing_that_is_stuck() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        world.io.set_stuck(world.homes[1], true);
        world.read_watched(2, 5).expect_err("it times out");
        let (seconds, ()) = world.timed(|world| {
            world.read_watched(2, 5).expect_err("the fetch under way hangs");
            world.read_watched(2, 9).expect_err("the backing store is silent");
        });
        assert!(seconds < 1.0, "they are refused at once: {seconds} s; SEED={seed}");
    });
}

/// Goal: what was timed out and has not ended stays bounded, however long a client goes on asking.
/// Method: far more writes of parts than the bound, a limit's time apart, to a stuck home.
#[test]
fn what_is_timed_out_is_bounded() {
    let mut world = World::new(1, quiet());
    let home = world.homes[1];
    world.io.set_stuck(home, true);
    let mut errors = 0;
    for round in 0..8 {
        for _ in 0..TIMED_OUT_MAX / 4 {
            let part = call(Operation::Write, (3 + round) * BLOCK + CELL, CELL);
            world.submit(2, part, &[7; CELL as usize]);
        }
        for _ in 0..200 {
            world.turn_watched();
            errors += std::iter::from_fn(|| world.core.take_finished()).count();
        }
    }
    assert_eq!(errors, 2 * TIMED_OUT_MAX, "each ends");
    assert_eq!(world.core.inflight(VolumeId(2)), TIMED_OUT_MAX as u64, "no more are kept");
    assert!(is_all(&world.read_watched(1, 3).expect("another volume goes on"), 0));
    world.io.set_stuck(home, false);
    world.end_late();
    world.write_watched(2, 3, 8).expect("it answers");
    assert!(is_all(&world.read_watched(2, 3).expect("a hit"), 8));
}

/// Goal: a write that timed out behind a stuck trim never lands over a newer trim that was
/// acknowledged, although what is in flight together has no order. Method: both time out, the home
/// answers, and trims are tried until one is taken.
#[test]
fn a_late_write_lands_under_a_newer_trim() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        let home = world.homes[1];
        world.io.set_stuck(home, true);
        let trim = call(Operation::Trim, 7 * BLOCK, 2 * BLOCK);
        world.submit(2, trim, &[]);
        world.submit(2, call(Operation::Write, 8 * BLOCK, BLOCK), &[8; BLOCK as usize]);
        let mut ended = Vec::new();
        while ended.len() < 2 {
            world.turn_watched();
            ended.extend(std::iter::from_fn(|| world.core.take_finished()));
        }
        assert!(ended.iter().all(|ended| ended.result.is_err()), "SEED={seed}");
        world.io.set_stuck(home, false);
        let newer = call(Operation::Trim, 4 * BLOCK, 5 * BLOCK);
        let is_taken = (0..TURNS_MAX).any(|_| {
            world.turn_watched();
            world.run_watched(2, newer, 0).is_ok()
        });
        assert!(is_taken, "it answers; SEED={seed}");
        world.end_late();
        assert!(is_all(&world.read_watched(2, 8).expect("it answers"), 0), "SEED={seed}");
    });
}

/// A device of [`World`] that a request waits for, and how.
#[derive(Clone, Copy, Debug)]
enum Wait {
    /// A read of a backing store.
    Backing,
    /// A write to the SSD level.
    Level,
}

const WAITS: [Wait; 2] = [Wait::Backing, Wait::Level];

impl World {
    /// Submits a request that its device has begun after `seconds` of turns.
    fn submit_waiting(&mut self, wait: Wait, seconds: u64) -> DiskId {
        let (disk, operation) = match wait {
            Wait::Backing => (self.homes[1], Operation::Read),
            Wait::Level => (self.ssd, Operation::Write),
        };
        self.io.set_stuck(disk, true);
        let bytes = if operation == Operation::Write { BLOCK as usize } else { 0 };
        self.submit(2, call(operation, 5 * BLOCK, BLOCK), &vec![7; bytes]);
        let until = self.io.now() + Nanos::from_secs(seconds);
        while self.io.now() < until {
            self.turn_watched();
        }
        disk
    }

    /// Turns until the request has ended; how, and after how many seconds.
    fn end_waiting(&mut self) -> (f64, Result<(), ErrorKind>) {
        let (seconds, result) = self.timed(|world| {
            for _ in 0..TURNS_MAX {
                if let Some(finished) = world.core.take_finished() {
                    return finished.result.map(drop);
                }
                world.turn_watched();
            }
            panic!("it never ends; replay with SEED={}", world.seed);
        });
        (seconds, result)
    }
}

/// Goal: a shard that did not run for longer than the limit calls no device dead whose ends have
/// come meanwhile, and ends no request with an error. Method: the time jumps between two turns,
/// or past the end of a wait, while a read of a backing store or a write of a level is in flight,
/// once or several times; the device answers meanwhile.
#[test]
fn a_pause_is_no_silence() {
    each_seed(40, |seed| {
        for wait in WAITS {
            let mut world = World::new(seed, quiet());
            let disk = world.submit_waiting(wait, 1 + seed % 25);
            for pause in [36, 31, 3600].into_iter().take(1 + seed as usize % 3) {
                world.io.pass(Nanos::from_secs(pause));
                world.core.resume(&mut world.io);
                world.core.look_for_stuck(&mut world.io);
                assert!(world.core.snapshot().stuck.is_empty(), "{wait:?}; SEED={seed}");
            }
            world.io.set_stuck(disk, false);
            let (_, result) = world.end_waiting();
            assert_eq!(result, Ok(()), "{wait:?}; SEED={seed}");
            assert_eq!(world.stuck_notices(), (0, 0), "{wait:?}; SEED={seed}");
        }
    });
}

/// Goal: a device that is silent before, in and after a pause is noticed when the shard has run for
/// the limit, no sooner and no later. Method: pauses at times drawn from the seed.
#[test]
fn silence_across_a_pause_is_noticed() {
    each_seed(40, |seed| {
        for wait in WAITS {
            let mut world = World::new(seed, quiet());
            let before = 1 + seed % 25;
            world.submit_waiting(wait, before);
            for pause in [36, 2, 3600].into_iter().take(1 + seed as usize % 3) {
                world.io.pass(Nanos::from_secs(pause));
                world.turn_watched();
            }
            let (seconds, result) = world.end_waiting();
            assert_eq!(result, Err(ErrorKind::Retry), "{wait:?}; SEED={seed}");
            let ran = seconds + before as f64;
            assert!((29.0..=35.0).contains(&ran), "{wait:?}: {ran} s; SEED={seed}");
            assert_eq!(world.stuck_notices(), (1, 0), "{wait:?}; SEED={seed}");
        }
    });
}

/// Goal: what is stuck stays so over a pause, and requests that came later have their own limit of
/// running time. Method: a device is noticed, another request waits, a pause.
#[test]
fn what_is_stuck_stays_so_over_a_pause() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        let disk = world.submit_waiting(Wait::Level, 1);
        assert_eq!(world.end_waiting().1, Err(ErrorKind::Retry), "SEED={seed}");
        world.submit(2, call(Operation::Write, 9 * BLOCK, BLOCK), &[8; BLOCK as usize]);
        (0..10).for_each(|_| world.turn_watched());
        world.io.pass(Nanos::from_secs(600));
        world.turn_watched();
        assert!(world.core.take_finished().is_none(), "it had no time; SEED={seed}");
        assert_eq!(world.core.snapshot().stuck.len(), 1, "SEED={seed}");
        world.io.set_stuck(disk, false);
        world.end_late();
        assert_eq!(world.stuck_notices(), (1, 1), "SEED={seed}");
    });
}

/// Goal: a backing store that lost a sync fails no checkpoint but one that it made zeros for, so
/// that the other volumes go on. Method: the flush of a volume that only its backing store holds
/// fails; checkpoints then, another volume, and a crash that finds what was acknowledged.
#[test]
fn a_lost_home_fails_no_checkpoint() {
    each_seed(20, |seed| {
        let mut shape = quiet();
        shape.spec.classes[1].levels = 0b001;
        let mut world = World::new(seed, shape);
        write_block(&mut world, 2, 1, 40).expect("a write");
        world.io.fail_next(world.homes[1], OperationKind::Sync, Errno::IO);
        let flush = call(Operation::Flush, 0, 0);
        let is_err = world.run(2, flush, 0).is_err();
        let home = &world.core.homes[&VolumeId(2)];
        assert!(is_err && home.backing.is_lost() && home.unsynced, "SEED={seed}");
        (0..3).for_each(|_| checkpoint(&mut world));
        write_block(&mut world, 1, 3, 60).expect("another volume");
        world.run(1, flush, 0).expect("another volume");
        checkpoint(&mut world);
        world.crash(CrashMode::DropAll);
        assert!(is_all(&world.read(1, 3 * BLOCK, BLOCK).expect("kept"), 60), "SEED={seed}");
    });
}
