//! Discards that wait: zeros at once and for good, one discard for many, none over a newer write.

use super::faults::{is_all, quiet, write_block};
use super::*;
use crate::io::OperationKind;
use layby_cache::discards::{DiscardCause, DiscardDelay, DiscardLimits, DiscardMode};
use rustix::io::Errno;
use std::cell::Cell;

pub(super) const HOME: usize = 1;
pub(super) const VOLUME: u32 = 2;

/// Eight blocks of value 40 at home and nowhere else dirty; discards wait for an hour, which the
/// simulated time jumps over at some seeds.
pub(super) fn waiting(seed: u64) -> World {
    let mut world = World::new(seed, quiet());
    (0..8).for_each(|block| write_block(&mut world, VOLUME, block, 40).expect("a write"));
    world.drain().expect("the home takes it");
    set(&mut world, DiscardMode::Delayed);
    world
}

pub(super) fn set(world: &mut World, mode: DiscardMode) {
    let delay = DiscardDelay::Fixed(Nanos::from_secs(3600));
    let limits = DiscardLimits { mode, delay, ..DiscardLimits::DEFAULT };
    world.core.set_discard(VolumeId(VOLUME), limits);
}

pub(super) fn trim(world: &mut World, first: u64, count: u64) {
    world.run(VOLUME, call(Operation::Trim, first * BLOCK, count * BLOCK), 0).expect("a trim");
}

pub(super) fn home_block(world: &World, block: u64) -> u8 {
    world.io.peek(world.homes[HOME])[(block * BLOCK) as usize]
}

pub(super) fn stats(world: &World) -> crate::control::DiscardStats {
    world.core.snapshot().volumes[HOME].discards
}

pub(super) fn turn_until(world: &mut World, is_done: impl Fn(&World) -> bool) {
    for _ in 0..TURNS_MAX {
        if is_done(world) {
            return;
        }
        world.core.turn(&mut world.io);
    }
    panic!("it never happens; replay with SEED={}", world.seed);
}

/// Goal: what was discarded reads as zeros at once and after a power cut, while the home still has
/// the old bytes. Method: trims that wait, reads of parts, a crash of each kind.
#[test]
fn what_waits_reads_as_zeros_for_good() {
    let waited = Cell::new(0);
    each_seed(20, |seed| {
        for mode in [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll] {
            let mut world = waiting(seed);
            trim(&mut world, 1, 3);
            trim(&mut world, 5, 1);
            waited.set(waited.get() + u32::from(home_block(&world, 2) == 40));
            for when in ["at once", "after a crash"] {
                let data = world.read(VOLUME, 0, 8 * BLOCK).expect("a read");
                for (block, bytes) in data.chunks_exact(BLOCK as usize).enumerate() {
                    let expected = if [1, 2, 3, 5].contains(&block) { 0 } else { 40 };
                    assert!(is_all(bytes, expected), "block {block} {when}; SEED={seed}");
                }
                world.crash(mode);
            }
        }
    });
    assert!(waited.get() > 5, "the home had heard of it in most lives");
}

/// Goal: neighbours reach the home as one discard, and their tombstones are done for. Method: four
/// trims, then the mode changes; after a restart nothing is repeated over a later write.
#[test]
fn neighbours_reach_the_home_as_one() {
    let merged = Cell::new(0);
    each_seed(40, |seed| {
        let mut world = waiting(seed);
        [2, 0, 3, 1].into_iter().for_each(|block| trim(&mut world, block, 1));
        let have_waited = stats(&world).counters.sent.ranges == 0;
        set(&mut world, DiscardMode::Immediate);
        turn_until(&mut world, |world| (0..4).all(|block| home_block(world, block) == 0));
        let counters = stats(&world).counters;
        assert_eq!((counters.received.ranges, counters.sent.bytes), (4, 4 * BLOCK));
        if have_waited {
            merged.set(merged.get() + 1);
            assert_eq!((counters.merged.ranges, counters.sent.ranges), (3, 1), "SEED={seed}");
        }
        assert_eq!(home_block(&world, 4), 40);
        write_block(&mut world, VOLUME, 1, 41).expect("a write");
        world.drain().expect("the home takes it");
        world.crash(CrashMode::DropAll);
        assert!(is_all(&world.read(VOLUME, BLOCK, BLOCK).expect("a read"), 41), "SEED={seed}");
    });
    assert!(merged.get() > 2, "the time jumped in most lives");
}

/// Goal: discards that go at once keep to a bandwidth too: they are answered, read as zeros and
/// survive a power cut before the home hears of them. Method: trims of every other block at
/// the least bandwidth, so that only jumps of the simulated time pay for more.
#[test]
fn discards_at_once_keep_to_a_bandwidth() {
    let waited = Cell::new(0);
    each_seed(40, |seed| {
        let mut world = World::new(seed, quiet());
        (0..8).for_each(|block| write_block(&mut world, VOLUME, block, 40).expect("a write"));
        world.drain().expect("the home takes it");
        let slow = DiscardLimits::BYTES_PER_SECOND_MIN;
        let limits = DiscardLimits {
            mode: DiscardMode::Immediate,
            bytes_per_second_max: slow,
            ..DiscardLimits::DEFAULT
        };
        world.core.set_discard(VolumeId(VOLUME), limits);
        [1, 3, 5, 7].into_iter().for_each(|block| trim(&mut world, block, 1));
        let zeros = |world: &World| [1, 3, 5, 7].map(|block| home_block(world, block) == 0);
        waited.set(waited.get() + u32::from(!zeros(&world)[3]));
        for when in ["at once", "after a crash"] {
            let data = world.read(VOLUME, 0, 8 * BLOCK).expect("a read");
            let found: Vec<u8> = data.chunks_exact(BLOCK as usize).map(|b| b[0]).collect();
            assert_eq!(found, [40, 0, 40, 0, 40, 0, 40, 0], "{when}; SEED={seed}");
            world.crash(CrashMode::DropAll);
        }
        turn_until(&mut world, |world| zeros(world).iter().all(|is_zero| *is_zero));
    });
    assert!(waited.get() > 5, "some waited in most lives: {}", waited.get());
}

/// Goal: one long trim keeps to the bandwidth as many short ones do, delayed or not: it reads as
/// zeros at once, and in no second the home is asked for more than the rate and a piece.
/// Method: a trim of 6 MiB at 1 MiB/s; what the home was asked by the time of each turn.
#[test]
fn a_long_trim_keeps_to_a_bandwidth() {
    const LENGTH: u64 = 6 << 20;
    let rate = DiscardLimits::BYTES_PER_SECOND_MIN;
    for mode in [DiscardMode::Immediate, DiscardMode::Delayed] {
        each_seed(10, |seed| {
            let mut world = World::new(seed, Shape { length: LENGTH, ..quiet() });
            let blocks = [0, LENGTH / BLOCK / 2, LENGTH / BLOCK - 1];
            for block in blocks {
                write_block(&mut world, VOLUME, block, 40).expect("a write");
            }
            world.drain().expect("the home takes it");
            let delay = DiscardDelay::Fixed(Nanos::from_millis(1));
            let (bytes_per_second_max, others) = (rate, DiscardLimits::DEFAULT);
            let limits = DiscardLimits { mode, delay, bytes_per_second_max, ..others };
            world.core.set_discard(VolumeId(VOLUME), limits);
            trim(&mut world, 0, LENGTH / BLOCK);
            for block in blocks {
                let data = world.read(VOLUME, block * BLOCK, BLOCK).expect("a read");
                assert!(is_all(&data, 0), "block {block}; SEED={seed}");
            }
            let asked = std::cell::RefCell::new(vec![(world.io.now(), 0)]);
            turn_until(&mut world, |world| {
                let sent = stats(world).counters.sent.bytes;
                asked.borrow_mut().push((world.io.now(), sent));
                blocks.iter().all(|block| home_block(world, *block) == 0)
            });
            let asked = asked.into_inner();
            for (index, (from, before)) in asked.iter().enumerate() {
                let until = |(at, _): &(Nanos, u64)| at.0 - from.0 < 1_000_000_000;
                let inside = asked[index..].iter().take_while(|entry| until(entry));
                let bytes = inside.last().expect("its own").1 - before;
                assert!(bytes <= rate + (1 << 20), "{mode:?} {from:?}: {bytes}; SEED={seed}");
            }
            assert_eq!(stats(&world).counters.sent.bytes, LENGTH);
        });
    }
}

pub(super) fn checkpoint(world: &mut World) {
    let before = checkpoints(world);
    world.core.end_with_checkpoint(&mut world.io);
    assert!(checkpoints(world) > before, "a checkpoint ends well; SEED={}", world.seed);
}

fn checkpoints(world: &World) -> u64 {
    world.core.log().expect("there is a log").1.counters().checkpoints
}

/// Goal: a checkpoint sends nothing of what waits, and a power cut after it still finds the zeros
/// that the home owes. Method: trims, up to three checkpoints, a write beside and one into the
/// range, a crash of each kind; reads after one and after two starts.
#[test]
fn zeros_are_owed_across_checkpoints() {
    let waited = Cell::new(0);
    each_seed(60, |seed| {
        for mode in [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll] {
            let mut world = waiting(seed);
            trim(&mut world, 1, 3);
            trim(&mut world, 5, 1);
            (0..1 + seed % 3).for_each(|_| checkpoint(&mut world));
            write_block(&mut world, VOLUME, 2, 42).expect("a write");
            write_block(&mut world, VOLUME, 6, 43).expect("a write");
            world.run(VOLUME, call(Operation::Flush, 0, 0), 0).expect("a flush");
            if seed % 2 == 0 {
                checkpoint(&mut world);
            }
            let has_waited = stats(&world).counters.sent.ranges == 0;
            waited.set(waited.get() + u32::from(has_waited));
            assert!(!has_waited || home_block(&world, 3) == 40, "the home has not heard of it");
            for when in ["at once", "after a crash", "after two"] {
                let data = world.read(VOLUME, 0, 8 * BLOCK).expect("a read");
                let found: Vec<u8> = data.chunks_exact(BLOCK as usize).map(|b| b[0]).collect();
                assert_eq!(found, [40, 0, 42, 0, 40, 0, 43, 40], "{when}; SEED={seed}");
                world.crash(mode);
            }
        }
    });
    assert!(waited.get() > 20, "the home had not heard of it in most lives: {}", waited.get());
}

/// Goal: what was owed and then sent is done for: no start zeroes newer bytes. Method: trims, a
/// checkpoint, the mode changes; a newer write goes home; a crash finds it there.
#[test]
fn what_was_owed_ends() {
    each_seed(40, |seed| {
        let mut world = waiting(seed);
        trim(&mut world, 0, 4);
        checkpoint(&mut world);
        set(&mut world, DiscardMode::Immediate);
        turn_until(&mut world, |world| (0..4).all(|block| home_block(world, block) == 0));
        write_block(&mut world, VOLUME, 1, 41).expect("a write");
        world.drain().expect("the home takes it");
        if seed % 2 == 0 {
            checkpoint(&mut world);
        }
        world.crash(CrashMode::DropAll);
        let data = world.read(VOLUME, 0, 4 * BLOCK).expect("a read");
        let found: Vec<u8> = data.chunks_exact(BLOCK as usize).map(|b| b[0]).collect();
        assert_eq!(found, [0, 41, 0, 0], "SEED={seed}");
    });
}

/// Goal: where more waits than a checkpoint may remember, all goes at once, with the trim that is
/// one too many. Method: more trims than a batch of the log holds entries, in a level of short
/// segments.
#[test]
fn too_much_to_owe_goes_at_once() {
    each_seed(5, |seed| {
        let mut world = waiting(seed);
        for index in 0..140 {
            write_block(&mut world, VOLUME, index % 8, 44).expect("a write");
            trim(&mut world, index % 8, 1);
        }
        checkpoint(&mut world);
        let counters = stats(&world).counters;
        let sent = counters.sent_by[DiscardCause::Full as usize];
        assert!(sent > 0 || counters.sent_by[DiscardCause::Delay as usize] > 0, "{counters:?}");
        assert!(is_all(&world.read(VOLUME, 0, 8 * BLOCK).expect("a read"), 0), "SEED={seed}");
    });
}

/// Goal: no discard reaches a newer write, and a write to the home does not wait out the delay.
/// Method: a destage into a range that waits, then crashes.
#[test]
fn a_newer_write_hastens_the_discard() {
    each_seed(20, |seed| {
        let mut world = waiting(seed);
        trim(&mut world, 0, 8);
        write_block(&mut world, VOLUME, 4, 41).expect("a write");
        world.drain().expect("it does not wait for an hour");
        assert_eq!(home_block(&world, 4), 41, "SEED={seed}");
        assert_eq!((home_block(&world, 3), home_block(&world, 5)), (0, 0), "SEED={seed}");
        world.crash(CrashMode::DropAll);
        let data = world.read(VOLUME, 0, 8 * BLOCK).expect("a read");
        for (block, bytes) in data.chunks_exact(BLOCK as usize).enumerate() {
            assert!(is_all(bytes, if block == 4 { 41 } else { 0 }), "block {block}, SEED={seed}");
        }
    });
}

/// Goal: a home that refuses a discard loses nothing and is asked again. Method: one failure; reads
/// stay zeros, the range reaches the home in the end.
#[test]
fn a_refused_discard_is_repeated() {
    let mut world = waiting(3);
    trim(&mut world, 0, 2);
    world.io.fail_next(world.homes[HOME], OperationKind::Zero, Errno::IO);
    set(&mut world, DiscardMode::Immediate);
    turn_until(&mut world, |world| stats(world).pending.ranges == 1 && home_block(world, 0) == 40);
    assert!(is_all(&world.read(VOLUME, 0, 2 * BLOCK).expect("a read"), 0));
    turn_until(&mut world, |world| home_block(world, 0) == 0 && home_block(world, 1) == 0);
    assert!(is_all(&world.read(VOLUME, 0, 2 * BLOCK).expect("a read"), 0));
}

/// Goal: a home that is cut while discards wait or are in flight behind its new end is asked for
/// none of them for ever; a checkpoint and a stop succeed, and what is before the end is zeroed.
/// Method: trims across the end and behind it, one that fails after the cut, then each of them.
#[test]
fn a_shorter_home_is_asked_for_nothing_behind_its_end() {
    each_seed(20, |seed| {
        for is_flying in [false, true] {
            let mut world = waiting(seed);
            trim(&mut world, 2, 3);
            trim(&mut world, 6, 2);
            if is_flying {
                world.io.fail_next(world.homes[HOME], OperationKind::Zero, Errno::IO);
                set(&mut world, DiscardMode::Immediate);
                world.core.turn(&mut world.io);
            }
            let id = VolumeId(VOLUME);
            let lengths = (world.core.length_of(id), 4 * BLOCK);
            world.core.resize_home(&mut world.io, id, lengths).expect("files are cut");
            set(&mut world, DiscardMode::Immediate);
            turn_until(&mut world, |world| {
                stats(world).pending.ranges == 0 && home_block(world, 2) == 0
            });
            assert!(stats(&world).refused <= 2 * u64::from(is_flying), "SEED={seed}");
            assert_eq!([1, 3].map(|block| home_block(&world, block)), [40, 0], "SEED={seed}");
            checkpoint(&mut world);
            world.core.shut_down(&mut world.io).expect("nothing is left that would fail");
        }
    });
}

/// Goal: mode off ignores trims and keeps room. Method: a trim changes nothing, a zeroing zeroes.
#[test]
fn mode_off_ignores_trims() {
    let mut world = waiting(4);
    set(&mut world, DiscardMode::Off);
    trim(&mut world, 0, 4);
    assert!(is_all(&world.read(VOLUME, 0, 4 * BLOCK).expect("a read"), 40));
    world.run(VOLUME, call(Operation::WriteZeroes, 0, BLOCK), 0).expect("a zeroing");
    assert!(is_all(&world.read(VOLUME, 0, BLOCK).expect("a read"), 0));
    let counters = stats(&world).counters;
    assert_eq!((counters.dropped.ranges, counters.sent.ranges), (1, 0));
}

/// Goal: what the shard itself zeroes for a shrink keeps no room, also where discards are off: it
/// is cut off next, and room for it might fill the disk meanwhile. Method: a client's zeroing and
/// the shard's; the backing store gets a discard for the latter alone.
#[test]
fn what_a_shrink_zeroes_keeps_no_room() {
    let mut world = waiting(6);
    set(&mut world, DiscardMode::Off);
    world.run(VOLUME, call(Operation::WriteZeroes, 0, 2 * BLOCK), 0).expect("a zeroing");
    let zeroing = call(Operation::WriteZeroes, 4 * BLOCK, 2 * BLOCK);
    let own = Asker(Asker::OWN + 1);
    world.core.submit(&mut world.io, own, VolumeId(VOLUME), zeroing, &[], None);
    let mut ended = None;
    while ended.is_none() {
        world.core.turn(&mut world.io);
        ended = world.core.take_finished();
    }
    assert!(ended.expect("it ended").result.is_ok());
    assert_eq!(stats(&world).counters.sent.bytes, 2 * BLOCK, "the home was told to let go of it");
}

/// Goal: an orderly stop and a removal send what waits. Method: trims, then either.
#[test]
fn a_stop_and_a_removal_send_what_waits() {
    for removes in [false, true] {
        let mut world = waiting(5);
        trim(&mut world, 0, 4);
        if removes {
            let id = VolumeId(VOLUME);
            for _ in 0..TURNS_MAX {
                if world.core.remove_volume(&mut world.io, id, OnDirty::Discard).is_ok() {
                    break;
                }
                world.core.turn(&mut world.io);
            }
        } else {
            world.core.shut_down(&mut world.io).expect("all devices work");
        }
        assert_eq!((home_block(&world, 0), home_block(&world, 3)), (0, 0), "removes: {removes}");
        assert_eq!(home_block(&world, 4), 40);
    }
}

/// Goal: what waits for a discard that is under way does not wait for one that a client asks for
/// meanwhile. Method: a home that does not answer while a destage waits for its discard; a second
/// trim beside the destage's block; then it answers, and all must go home before the hour is over.
#[test]
fn a_newer_trim_keeps_nobody_waiting() {
    each_seed(40, |seed| {
        let mut world = waiting(seed);
        trim(&mut world, 0, 8);
        world.io.set_stuck(world.homes[HOME], true);
        set(&mut world, DiscardMode::Immediate);
        world.core.turn(&mut world.io);
        set(&mut world, DiscardMode::Delayed);
        write_block(&mut world, VOLUME, 4, 41).expect("a write");
        world.core.drain(&mut world.io, 77, None);
        (0..200).for_each(|_| world.core.turn(&mut world.io));
        trim(&mut world, 5, 2);
        let asked = world.io.now();
        world.io.set_stuck(world.homes[HOME], false);
        turn_until(&mut world, |world| home_block(world, 4) == 41);
        let took = world.io.now().since(asked);
        assert!(took < Nanos::from_secs(3600), "it waited for {took:?}; SEED={seed}");
        turn_until(&mut world, |world| home_block(world, 5) == 0);
    });
}

/// Goal: a client that trims one range again and again, faster than its backing store zeroes it,
/// keeps no tombstone alive for ever, nor a checkpoint waiting. Method: whenever a discard ends
/// another trim of its range waits already; how many tombstones there are, a checkpoint on the way,
/// a crash at the end.
#[test]
fn renewed_trims_end_their_tombstones() {
    const ROUNDS: u32 = 300;
    each_seed(8, |seed| {
        let mut world = waiting(seed);
        let delay = DiscardDelay::Fixed(Nanos::from_millis(1));
        let limits = DiscardLimits { delay, in_flight_max: 1, ..DiscardLimits::DEFAULT };
        world.core.set_discard(VolumeId(VOLUME), limits);
        let home = world.homes[HOME];
        let is_flying = |world: &World| {
            !world.core.homes[&VolumeId(VOLUME)].discards.table.in_flight().is_empty()
        };
        let (mut before, mut most) = (0, 0);
        for round in 0..ROUNDS {
            world.io.set_stuck(home, true);
            trim(&mut world, 0, 8);
            turn_until(&mut world, is_flying);
            trim(&mut world, 0, 8);
            let sent = stats(&world).counters.sent.ranges;
            world.io.set_stuck(home, false);
            turn_until(&mut world, |world| {
                !is_flying(world) || stats(world).counters.sent.ranges > sent
            });
            most = most.max(world.core.tombstones.count());
            if round == ROUNDS / 2 {
                before = checkpoints(&world);
                world.core.log_mut().expect("a log").checkpoint_now(false);
            }
        }
        assert!(most <= 64, "{most} tombstones live at once; SEED={seed}");
        assert!(checkpoints(&world) > before, "the checkpoint never ends; SEED={seed}");
        world.crash(CrashMode::DropAll);
        assert!(is_all(&world.read(VOLUME, 0, 8 * BLOCK).expect("a read"), 0), "SEED={seed}");
    });
}

/// Goal: tombstones are bounded by what a checkpoint may remember while a backing store zeroes
/// nothing: further trims wait for it, and are answered by it. Method: it is stuck under twice as
/// many trims of one block; it answers again, and a checkpoint ends well.
#[test]
fn tombstones_are_bounded() {
    each_seed(5, |seed| {
        let mut world = waiting(seed);
        let (id, home) = (VolumeId(VOLUME), world.homes[HOME]);
        world.io.set_stuck(home, true);
        let bound = world.core.log().expect("there is a log").1.owed_max();
        let mut ended = 0;
        let mut take = |world: &mut World| {
            while let Some(finished) = world.core.take_finished() {
                finished.result.expect("a trim");
                ended += 1;
            }
            ended
        };
        for _ in 0..2 * bound {
            let trim = call(Operation::Trim, 0, BLOCK);
            world.core.submit(&mut world.io, Asker(u64::MAX), id, trim, &[], None);
            (0..20).for_each(|_| world.core.turn(&mut world.io));
            let count = world.core.tombstones.count();
            assert!(count <= bound + 1, "{count} tombstones; SEED={seed}");
        }
        assert!(take(&mut world) >= bound, "as many as may wait are answered; SEED={seed}");
        world.io.set_stuck(home, false);
        let is_over = (0..TURNS_MAX).any(|_| {
            world.core.turn(&mut world.io);
            take(&mut world) == 2 * bound
        });
        assert!(is_over, "all are answered; SEED={seed}");
        checkpoint(&mut world);
        world.crash(CrashMode::DropAll);
        assert!(is_all(&world.read(VOLUME, 0, BLOCK).expect("a read"), 0), "SEED={seed}");
    });
}
