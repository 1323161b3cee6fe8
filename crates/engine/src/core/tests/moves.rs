//! Volumes whose class gains or loses persistent levels while the node runs.

use super::faults::{is_all, quiet, write_block};
use super::*;
use crate::io::OperationKind;
use rustix::io::Errno;

const BARE: ClassId = ClassId(1);
const FULL: ClassId = ClassId(2);

/// A node whose volume 2 is of a class without persistent levels, beside one that keeps what is
/// read in the log; block 0 holds 40, in the backing store alone.
fn bare(seed: u64) -> World {
    let mut shape = quiet();
    let full = &shape.spec.classes[1];
    let full = layby_cache::ClassSpec { levels: 0b101, keep_reads: true, ..full.clone() };
    shape.spec.classes.push(full);
    shape.spec.classes[1].levels = 0b001;
    let mut world = World::new(seed, shape);
    write_block(&mut world, 2, 0, 40).expect("a write through");
    world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
    world
}

fn set_class(world: &mut World, class: ClassId) {
    set_volume(world, class, [Share::OPEN; LEVELS_MAX]);
}

fn set_volume(world: &mut World, class: ClassId, shares: [Share; LEVELS_MAX]) {
    let (id, length) = (VolumeId(2), BLOCKS * BLOCK);
    let spec = VolumeSpec { id, class, length, shares, write_through: false };
    world.core.cache().set_volume(&spec).expect("a class that there is");
    (0..100).for_each(|_| world.core.turn(&mut world.io));
}

/// The log keeps a copy of block 0, as a client reads it.
fn keep_a_copy(world: &mut World) {
    let data = world.read(2, 0, BLOCK).expect("a read");
    assert!(is_all(&data, 40));
    (0..100).for_each(|_| world.core.turn(&mut world.io));
    assert_eq!(world.core.cache().held_by(VolumeId(2), LevelIndex(2)).0, 1, "it is kept");
}

/// Goal: what is zeroed and flushed after a volume's class gained the SSD level does not come back
/// out of a copy there. Method: a copy by reading, a trim or a zeroing and a flush, power loss.
#[test]
fn a_gained_level_brings_nothing_back() {
    for operation in [Operation::Trim, Operation::WriteZeroes] {
        for by_class in [true, false] {
            let mut world = bare(1);
            if by_class {
                let mut spec = world.shape.spec.clone();
                spec.classes[1] = spec.classes[2].clone();
                world.core.cache().reconfigure(spec).expect("a sound specification");
            } else {
                set_class(&mut world, FULL);
            }
            keep_a_copy(&mut world);
            world.run(2, call(operation, 0, BLOCK), 0).expect("the device takes it");
            world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
            world.shape.spec.classes[1] = world.shape.spec.classes[2].clone();
            world.crash(CrashMode::KeepAll);
            let data = world.read(2, 0, BLOCK).expect("a read");
            assert!(is_all(&data, 0), "{operation:?}, by class {by_class}: {}", data[0]);
        }
    }
}

/// Goal: no copy in a level that a volume's class gained is newer than what its backing store has
/// durably: a power cut would leave the copy alone, and its eviction would show what was before.
/// Method: block 0 changed without a flush before the SSD level is gained, in each way; a read that
/// may keep it and a durable write that makes the log's records durable; power loss; reads before
/// and after a flush and the eviction of all copies.
#[test]
fn a_gained_level_keeps_only_what_is_durable_below() {
    for operation in [Operation::Write, Operation::Trim, Operation::WriteZeroes] {
        for is_flushed in [false, true] {
            let name = format!("{operation:?}, flushed {is_flushed}");
            let mut world = bare(3);
            world.run(2, call(operation, 0, BLOCK), 50).expect("a change of the backing store");
            set_class(&mut world, FULL);
            if is_flushed {
                world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
            }
            let new = if operation == Operation::Write { 50 } else { 0 };
            assert!(is_all(&world.read(2, 0, BLOCK).expect("a read"), new), "{name}");
            (0..100).for_each(|_| world.core.turn(&mut world.io));
            let kept = world.core.cache().held_by(VolumeId(2), LevelIndex(2)).0;
            assert!(kept == 1 || !is_flushed, "{name}: what is durable is kept");
            let mut write = call(Operation::Write, 7 * BLOCK, BLOCK);
            write.flags.fua = true;
            world.run(2, write, 60).expect("a durable write");
            world.shape.spec.classes[1] = world.shape.spec.classes[2].clone();
            world.crash(CrashMode::DropAll);
            let first = world.read(2, 0, BLOCK).expect("a read");
            assert!(is_all(&first, new) || !is_flushed, "{name}: {}", first[0]);
            world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
            world.drain().expect("a drain");
            set_volume(&mut world, FULL, [Share { cap: 0, ..Share::OPEN }; LEVELS_MAX]);
            let held =
                [0, 2].map(|level| world.core.cache().held_by(VolumeId(2), LevelIndex(level)).0);
            assert_eq!(held, [0, 0], "{name}: all copies are evicted");
            let second = world.read(2, 0, BLOCK).expect("a read");
            assert_eq!(first[0], second[0], "{name}: a read after a flush shows older bytes");
        }
    }
}

/// Goal: what is written past the levels after a volume's class lost the SSD level again does not
/// give way to a copy there. Method: a copy by reading in between, a durable write, power loss.
#[test]
fn a_level_lost_again_brings_nothing_back() {
    let mut world = bare(2);
    set_class(&mut world, FULL);
    keep_a_copy(&mut world);
    set_class(&mut world, BARE);
    let mut write = call(Operation::Write, 0, BLOCK);
    write.flags.fua = true;
    world.run(2, write, 50).expect("a durable write");
    world.shape.spec.classes[1] = world.shape.spec.classes[2].clone();
    world.crash(CrashMode::KeepAll);
    let data = world.read(2, 0, BLOCK).expect("a read");
    assert!(is_all(&data, 50), "{}", data[0]);
}

/// What a killed process wrote past the levels without a flush, and no power loss: the next one
/// finds it in the backing store, which may still lose it.
fn killed(seed: u64) -> World {
    let mut world = bare(seed);
    world.run(2, call(Operation::Write, 0, BLOCK), 50).expect("a write through");
    world
}

/// Goal: what an earlier process left unsynced in a backing store does not count as durable there:
/// no copy in a level outlives it. Method: a kill behind a write past the levels, a start whose
/// class has the SSD level, at once or after some turns; a read that may keep the block and a
/// durable write elsewhere; power loss; reads before and after the eviction of all copies.
#[test]
fn a_start_keeps_only_what_is_durable_below() {
    for turns in [0, 100] {
        let mut world = killed(4);
        world.shape.spec.classes[1] = world.shape.spec.classes[2].clone();
        let (mut world, _) = world.kill();
        (0..turns).for_each(|_| world.core.turn(&mut world.io));
        assert!(is_all(&world.read(2, 0, BLOCK).expect("a read"), 50));
        (0..100).for_each(|_| world.core.turn(&mut world.io));
        let kept = world.core.cache().held_by(VolumeId(2), LevelIndex(2)).0;
        assert!(kept == 1 || turns == 0, "a start syncs, and copies are kept afterwards");
        let mut write = call(Operation::Write, 7 * BLOCK, BLOCK);
        write.flags.fua = true;
        world.run(2, write, 60).expect("a durable write");
        world.crash(CrashMode::DropAll);
        let first = world.read(2, 0, BLOCK).expect("a read");
        world.drain().expect("a drain");
        set_volume(&mut world, FULL, [Share { cap: 0, ..Share::OPEN }; LEVELS_MAX]);
        let second = world.read(2, 0, BLOCK).expect("a read");
        assert_eq!(first[0], second[0], "{turns} turns: the eviction shows older bytes");
    }
}

/// Goal: a flush covers what an earlier process wrote to the backing store. Method: a kill behind
/// a write past the levels, a start, a flush, power loss.
#[test]
fn a_flush_covers_what_a_killed_process_wrote() {
    let (mut world, _) = killed(5).kill();
    world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
    world.crash(CrashMode::DropAll);
    let data = world.read(2, 0, BLOCK).expect("a read");
    assert!(is_all(&data, 50), "{}", data[0]);
}

/// Goal: a backing store whose sync fails or hangs at a start holds up neither the start nor other
/// volumes, and a flush of it does not claim that all is durable. Method: a kill behind a write
/// past the levels; a start where the sync fails, or where the device answers nothing.
#[test]
fn a_start_goes_on_without_a_sync() {
    for is_stuck in [false, true] {
        let mut world = killed(6);
        let home = world.homes[1];
        match is_stuck {
            true => world.io.set_stuck(home, true),
            false => world.io.fail_next(home, OperationKind::Sync, Errno::IO),
        }
        let (mut world, report) = world.kill();
        assert!(report.is_checkpointed);
        write_block(&mut world, 1, 0, 30).expect("another volume goes on");
        world.run(1, call(Operation::Flush, 0, 0), 0).expect("another volume goes on");
        if is_stuck {
            world.io.set_stuck(home, false);
            world.run(2, call(Operation::Flush, 0, 0), 0).expect("the device answers");
            world.crash(CrashMode::DropAll);
            assert!(is_all(&world.read(2, 0, BLOCK).expect("a read"), 50));
            continue;
        }
        world.end_opening_syncs();
        assert!(world.core.end_with_checkpoint(&mut world.io), "checkpoints go on");
        for _ in 0..3 {
            world.run(2, call(Operation::Flush, 0, 0), 0).expect_err("a sync has failed");
        }
    }
}
