//! Devices that rot, lose, misplace, fail flushes or vanish, one row of docs/reliability.md each.

use super::faults::{find_block, five_blocks, is_all, quiet, was_corrupt_noticed, write_block};
use super::*;
use crate::io::OperationKind;
use layby_cache::Event;
use layby_types::{BlockIndex, LevelIndex, Slot};
use rustix::io::Errno;

fn flush(world: &mut World, volume: u32) -> Result<(), ErrorKind> {
    world.run(volume, call(Operation::Flush, 0, 0), 0).map(drop)
}

/// Goal: a clean block that rots in the NVM level is fetched again. Method: bits flipped under a
/// block that was drained, while the power is off; two reads.
#[test]
fn a_rotten_clean_nvm_block_heals() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        write_block(&mut world, 1, 2, 77).expect("a write");
        write_block(&mut world, 1, 3, 78).expect("a later one vouches for it");
        world.drain().expect("the home takes it");
        world.io.crash(CrashMode::KeepAll);
        let at = find_block(&world, world.nvm, 77);
        world.io.corrupt(world.nvm, at, BLOCK);
        world.restart();
        for _ in 0..2 {
            let data = world.read(1, 2 * BLOCK, BLOCK).expect("it is fetched again");
            assert!(is_all(&data, 77), "SEED={seed}");
        }
        assert!(was_corrupt_noticed(&mut world), "SEED={seed}");
    });
}

/// Goal: a block of the NVM level that rots between its check for a client and its copy into
/// memory is not copied, and ends nothing: what is read then is right or an error. Method: the copy
/// in memory is made again after a bit was flipped, dirty and clean.
#[test]
fn a_block_that_rots_before_its_copy_is_not_copied() {
    each_seed(20, |seed| {
        for is_drained in [false, true] {
            let mut world = World::new(seed, quiet());
            write_block(&mut world, 1, 2, 77).expect("a write");
            if is_drained {
                world.drain().expect("the home takes it");
            }
            world.read(1, 2 * BLOCK, BLOCK).expect("it is there");
            let holds = |world: &mut World, level: u8| {
                let count = world.core.cache().spec().levels[usize::from(level)].slots;
                let mut slots = (0..count).map(|slot| (LevelIndex(level), Slot(slot)));
                let holds = |(level, slot): &(LevelIndex, Slot)| {
                    let found = world.core.cache().slot(*level, *slot);
                    found.is_some_and(|(key, _)| key.block() == BlockIndex(2))
                };
                slots.find(holds)
            };
            let (Some(memory), Some(nvm)) = (holds(&mut world, 0), holds(&mut world, 1)) else {
                panic!("it is in both levels, SEED={seed}")
            };
            let at = find_block(&world, world.nvm, 77);
            world.core.levels[usize::from(nvm.0.0)].nvm().rot(at);
            world.core.copy_level(nvm, memory);
            assert!(was_corrupt_noticed(&mut world), "SEED={seed}");
            assert_eq!(holds(&mut world, 0), None, "the copy is gone, SEED={seed}");
            match world.read(1, 2 * BLOCK, BLOCK) {
                Ok(data) => assert!(is_drained && is_all(&data, 77), "SEED={seed}"),
                Err(kind) => assert!(!is_drained, "the backing store has it: {kind}, SEED={seed}"),
            }
        }
    });
}

/// Goal: a block that the SSD lost, or put elsewhere, is never served as it was before. Method: the
/// next batch is lost or misdirected onto another segment; then reads, dirty and after a rewrite.
#[test]
fn lost_and_misplaced_writes_are_noticed() {
    each_seed(20, |seed| {
        for is_lost in [true, false] {
            let (mut world, at) = five_blocks(seed, false);
            let far = world.shape.ssd_bytes - 64 * BLOCK;
            match is_lost {
                true => world.io.lose_next_write(world.ssd),
                false => world.io.misdirect_next_write(world.ssd, far),
            }
            write_block(&mut world, 2, 2, 78).expect("the SSD says that it was done");
            let read = world.read(2, 2 * BLOCK, BLOCK);
            assert!(read.is_err(), "what lies there is not 78; SEED={seed}");
            assert!(was_corrupt_noticed(&mut world), "SEED={seed}");
            assert!(find_block(&world, world.ssd, 77) == at, "the old version is still there");
            write_block(&mut world, 2, 2, 79).expect("a whole write mends it");
            assert!(is_all(&world.read(2, 2 * BLOCK, BLOCK).expect("mended"), 79), "SEED={seed}");
        }
    });
}

/// Goal: after a failed flush of the NVM level nothing more is called durable, and what was stays.
/// Method: its sync fails under a durable write; more writes and flushes, then a power cut.
#[test]
fn a_failed_nvm_flush_is_not_forgiven() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        write_block(&mut world, 1, 1, 40).expect("a durable write");
        world.io.fail_next(world.nvm, OperationKind::Sync, Errno::IO);
        write_block(&mut world, 1, 2, 41).expect_err("its sync failed");
        write_block(&mut world, 1, 3, 42).expect_err("no sync is trusted any more");
        flush(&mut world, 1).expect_err("no sync is trusted any more");
        assert!(is_all(&world.read(1, BLOCK, BLOCK).expect("it is held"), 40), "SEED={seed}");
        world.crash(CrashMode::DropAll);
        assert!(is_all(&world.read(1, BLOCK, BLOCK).expect("it was durable"), 40), "SEED={seed}");
        write_block(&mut world, 1, 3, 43).expect("a restart trusts the device again");
    });
}

/// Goal: a failed flush of a level makes no block corrupt: all are read, a drain ends with another
/// error, and a restart writes back what was flushed. Method: the sync of either level fails under
/// a flush; drains that try again, reads, a power cut.
#[test]
fn a_failed_level_flush_makes_no_block_corrupt() {
    each_seed(20, |seed| {
        for volume in [1, 2] {
            let mut world = World::new(seed, quiet());
            for block in 0..5 {
                write_block(&mut world, volume, block, 40 + block as u8).expect("a write");
            }
            flush(&mut world, volume).expect("a flush");
            let disk = if volume == 1 { world.nvm } else { world.ssd };
            world.io.fail_next(disk, OperationKind::Sync, Errno::IO);
            let last = write_block(&mut world, volume, 9, 50);
            assert_eq!(last.is_err(), volume == 1, "a durable write waits; SEED={seed}");
            flush(&mut world, volume).expect_err("no sync is trusted any more");
            for _ in 0..3 {
                let error = world.drain().expect_err("the level is not trusted");
                assert_ne!(error, ErrorKind::Corrupt, "volume {volume}; SEED={seed}");
            }
            let is_corrupt =
                |notice: &Notice| matches!(notice, Notice::Cache(Event::CorruptDirtyKept { .. }));
            let notices = world.core.take_notices();
            assert!(!notices.iter().any(is_corrupt), "{notices:?}; SEED={seed}");
            let failed = notices.iter().filter_map(|notice| match notice {
                Notice::LevelFailed(failed) => Some((failed.level, failed.failure.operation)),
                _ => None,
            });
            assert_eq!(failed.collect::<Vec<_>>(), [(volume as usize, OperationKind::Sync)]);
            let shown = world.core.snapshot().failed;
            assert_eq!((shown.len(), shown[0].level), (1, volume as usize), "SEED={seed}");
            let (kind, why) = world.core.why_undrained(ErrorKind::Closed);
            let disk = if volume == 1 { "nvm" } else { "ssd" };
            let expected = format!("the flush of `{disk}` failed: ");
            assert!(kind == ErrorKind::Retry && why.starts_with(&expected), "{why}; SEED={seed}");
            for cut in [false, true] {
                if cut {
                    world.crash(CrashMode::DropAll);
                }
                for block in 0..5 {
                    let data = world.read(volume, block * BLOCK, BLOCK).expect("it is sound");
                    assert!(is_all(&data, 40 + block as u8), "SEED={seed}");
                }
            }
            world.drain().expect("a restart trusts the device again");
        }
    });
}

/// Goal: a level whose device fails writes or reads is told once, with device and place, whatever
/// the number of requests, and again once it works. Method: twenty writes that fail, and twenty
/// reads of a bad sector; then good ones, before and after the time that they have to last.
#[test]
fn a_failing_level_is_told_once() {
    for (fails_reads, operation) in [(false, OperationKind::Write), (true, OperationKind::Read)] {
        let (mut world, at) = five_blocks(1, false);
        world.core.take_notices();
        for round in 0..20 {
            let result = match fails_reads {
                true => {
                    world.io.fail_reads(world.ssd, at, BLOCK);
                    world.read(2, 2 * BLOCK, BLOCK).map(drop)
                }
                false => {
                    world.io.fail_next(world.ssd, OperationKind::Write, Errno::IO);
                    write_block(&mut world, 2, 20 + round, 9)
                }
            };
            result.expect_err("the device fails");
        }
        write_block(&mut world, 2, 3, 60).expect("the device works");
        world.read(2, 3 * BLOCK, BLOCK).expect("the device works");
        let failed = |world: &World| world.core.snapshot().failed;
        let [shown] = &failed(&world)[..] else { panic!("{:?}", failed(&world)) };
        assert_eq!((shown.level, shown.failure.operation), (2, operation));
        assert_eq!((&*shown.disk, shown.failure.error), ("ssd", Errno::IO.into()));
        assert!(!fails_reads || shown.failure.offset == at, "{shown}");
        assert!(shown.failure.length >= BLOCK, "{shown}");
        world.core.set_now(world.core.now() + Nanos::from_secs(6));
        write_block(&mut world, 2, 3, 60).expect("the device works");
        world.read(2, 3 * BLOCK, BLOCK).expect("the device works");
        assert_eq!(failed(&world), [], "it is over");
        let notices = world.core.take_notices();
        let count = |is: fn(&Notice) -> bool| notices.iter().filter(|notice| is(notice)).count();
        assert_eq!(count(|notice| matches!(notice, Notice::LevelFailed(_))), 1);
        assert_eq!(count(|notice| matches!(notice, Notice::LevelWorks(_))), 1);
    }
}

/// Goal: what a home refuses to take stays in the levels' records, and other volumes go on. Method:
/// a drain whose write fails; a flush of another volume; a power cut that drops what it can.
#[test]
fn a_failed_write_back_loses_nothing() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        write_block(&mut world, 2, 2, 77).expect("a write");
        flush(&mut world, 2).expect("a flush");
        world.io.fail_next(world.homes[1], OperationKind::Write, Errno::IO);
        world.drain().expect_err("the home fails");
        write_block(&mut world, 1, 2, 50).expect("another volume goes on");
        flush(&mut world, 1).expect("another volume goes on");
        world.crash(CrashMode::DropAll);
        assert!(is_all(&world.read(2, 2 * BLOCK, BLOCK).expect("kept"), 77), "SEED={seed}");
        world.drain().expect("the home is well again");
        let home = world.io.peek(world.homes[1]);
        assert!(is_all(&home[2 * BLOCK as usize..][..BLOCK as usize], 77), "SEED={seed}");
    });
}

/// Goal: a home that failed a flush is not trusted before a restart, and other volumes are not
/// concerned. Method: a volume that writes through; its flush fails, and so does the next.
#[test]
fn a_failed_home_flush_is_not_forgiven() {
    each_seed(20, |seed| {
        let mut shape = quiet();
        shape.spec.classes[1].levels = 0b001;
        let mut world = World::new(seed, shape);
        write_block(&mut world, 2, 1, 40).expect("a write");
        world.io.fail_next(world.homes[1], OperationKind::Sync, Errno::IO);
        let first = flush(&mut world, 2);
        let second = flush(&mut world, 2);
        assert!(first.is_err() && second.is_err(), "{first:?}, {second:?}; SEED={seed}");
        write_block(&mut world, 1, 1, 50).expect("another volume goes on");
        flush(&mut world, 1).expect("another volume goes on");
        world.crash(CrashMode::KeepAll);
        write_block(&mut world, 2, 1, 41).expect("a write");
        flush(&mut world, 2).expect("a restart trusts the home again");
    });
}

/// Goal: a durable write whose own sync fails makes a later flush fail, which has to cover what was
/// written before: no other sync would tell. Method: a write, a durable one that fails in its sync,
/// flushes; on the log, and past it on the backing store.
#[test]
fn a_failed_sync_of_a_durable_write_is_not_forgiven() {
    each_seed(20, |seed| {
        for is_past in [false, true] {
            let mut shape = quiet();
            if is_past {
                shape.spec.classes[1].levels = 0b001;
            }
            let mut world = World::new(seed, shape);
            // The first batch of a segment is durable.
            (0..2).for_each(|block| write_block(&mut world, 2, block, 40).expect("a write"));
            let disk = if is_past { world.homes[1] } else { world.ssd };
            world.io.fail_next_own_sync(disk, Errno::IO);
            let mut durable = call(Operation::Write, 2 * BLOCK, BLOCK);
            durable.flags.fua = true;
            world.run(2, durable, 41).expect_err("its sync fails");
            for _ in 0..2 {
                flush(&mut world, 2).expect_err("the write before it may be gone");
            }
            world.crash(CrashMode::DropAll);
            write_block(&mut world, 2, 1, 42).expect("a write");
            flush(&mut world, 2).expect("a restart trusts the device again");
        }
    });
}

/// Goal: whether a volume is clean is asked at each turn for seconds; a backing store that no sync
/// is trusted of any more is not synced for it again. Method: zeros whose sync fails; the question,
/// and what is in flight behind it.
#[test]
fn a_lost_home_is_not_synced_for_an_answer() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        let id = VolumeId(2);
        write_block(&mut world, 2, 2, 77).expect("a write");
        world.drain().expect("the home takes it");
        world.io.fail_next(world.homes[1], OperationKind::Sync, Errno::IO);
        let _ = world.run(2, call(Operation::WriteZeroes, 2 * BLOCK, 4 * BLOCK), 0);
        for _ in 0..500 {
            if world.core.homes[&id].backing.is_lost() {
                break;
            }
            world.core.settle(&mut world.io, id);
            world.core.turn(&mut world.io);
        }
        assert!(world.core.homes[&id].backing.is_lost(), "SEED={seed}");
        assert!(!world.core.settle(&mut world.io, id), "SEED={seed}");
        assert!(!world.core.homes[&id].syncing, "another sync, SEED={seed}");
    });
}

/// Goal: without its SSD a node serves what lies elsewhere, fails the rest, and loses nothing once
/// it is back. Method: the device goes with one block clean and one dirty on it.
#[test]
fn a_vanished_ssd_loses_nothing() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        write_block(&mut world, 2, 1, 40).expect("a write");
        world.drain().expect("the home takes it");
        write_block(&mut world, 2, 2, 41).expect("a write");
        flush(&mut world, 2).expect("a flush");
        world.io.set_gone(world.ssd, true);
        let clean = world.read(2, BLOCK, BLOCK).expect("its home has it");
        assert!(is_all(&clean, 40), "SEED={seed}");
        world.read(2, 2 * BLOCK, BLOCK).map(drop).expect_err("only the SSD has it");
        write_block(&mut world, 2, 3, 42).expect_err("there is no SSD");
        write_block(&mut world, 1, 3, 43).expect("the NVM level is there");
        world.io.set_gone(world.ssd, false);
        world.crash(CrashMode::DropAll);
        assert!(is_all(&world.read(2, 2 * BLOCK, BLOCK).expect("kept"), 41), "SEED={seed}");
        assert!(is_all(&world.read(1, 3 * BLOCK, BLOCK).expect("kept"), 43), "SEED={seed}");
    });
}

/// Goal: without its home a volume still takes writes and serves what its levels hold; others do
/// not notice. Method: one home goes; reads and writes on both volumes; it comes back.
#[test]
fn a_vanished_home_loses_nothing() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        write_block(&mut world, 2, 1, 40).expect("a write");
        world.io.set_gone(world.homes[1], true);
        write_block(&mut world, 2, 2, 41).expect("the levels have room");
        assert!(is_all(&world.read(2, BLOCK, BLOCK).expect("held"), 40), "SEED={seed}");
        world.read(2, 9 * BLOCK, BLOCK).map(drop).expect_err("only the home has it");
        world.read(1, 9 * BLOCK, BLOCK).expect("another volume has its own home");
        world.io.set_gone(world.homes[1], false);
        world.crash(CrashMode::KeepAll);
        world.drain().expect("the home is back");
        let home = world.io.peek(world.homes[1]);
        assert!(is_all(&home[BLOCK as usize..][..BLOCK as usize], 40), "SEED={seed}");
        assert!(is_all(&home[2 * BLOCK as usize..][..BLOCK as usize], 41), "SEED={seed}");
    });
}

/// Goal: a part of the SSD that fails for good costs a few writes and then room, and nothing that
/// was stored, over a restart, too. Method: a broken range under overwrites, until it is retired; a
/// power cut; every block read.
#[test]
fn a_failing_ssd_shrinks() {
    each_seed(10, |seed| {
        let mut world = World::new(seed, quiet());
        let whole = world.core.snapshot().levels[2].slots;
        world.io.break_range(world.ssd, world.shape.ssd_bytes / 2, 32 * BLOCK);
        let (mut failed, mut round) = (0, 0u64);
        let mut last = [0u8; 24];
        let retired = |world: &World| world.core.snapshot().levels[2].segments_retired;
        while round < 400 || retired(&world) < 4 {
            assert!(
                round < 6_000,
                "{} retired after {failed} errors; SEED={seed}",
                retired(&world)
            );
            let (block, value) = (round % 24, 1 + (round % 250) as u8);
            match write_block(&mut world, 2, block, value) {
                Ok(()) => last[block as usize] = value,
                Err(_) => failed += 1,
            }
            round += 1;
        }
        assert!((1..=12).contains(&failed), "{failed} writes failed; SEED={seed}");
        let stats = world.core.snapshot().levels[2].clone();
        assert!(stats.slots < whole && stats.slots > 0, "{stats:?}; SEED={seed}");
        flush(&mut world, 2).expect("the rest of the SSD works");
        world.io.crash(CrashMode::DropAll);
        world.restart();
        assert_eq!(world.core.snapshot().levels[2].slots, stats.slots, "SEED={seed}");
        for (block, value) in last.iter().enumerate() {
            let data = world.read(2, block as u64 * BLOCK, BLOCK).expect("it was stored");
            assert!(is_all(&data, *value), "block {block}; SEED={seed}");
        }
        for round in 0..300 {
            write_block(&mut world, 2, round % 24, 7).expect("what is retired is not used");
        }
    });
}
