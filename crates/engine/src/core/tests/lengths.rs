//! What lies behind a volume's end, and what is in flight there.

use super::faults::{quiet, write_block};
use super::*;
use crate::io::OperationKind;
use rustix::io::Errno;

const HALF: u64 = BLOCKS / 2;

/// A world whose volumes have dirty blocks on both sides of what becomes their end, as an earlier
/// build could leave them; their homes are cut.
fn with_blocks_behind_the_end(seed: u64) -> World {
    let mut world = World::new(seed, quiet());
    for volume in [1, 2] {
        for block in [HALF - 1, HALF, BLOCKS - 1] {
            write_block(&mut world, volume, block, 40).expect("a write");
        }
        world.run(volume, call(Operation::Flush, 0, 0), 0).expect("a flush");
    }
    world.shape.length = HALF * BLOCK;
    for home in world.homes.clone() {
        world.io.resize_disk(home, HALF * BLOCK).expect("it is there");
    }
    world
}

/// Goal: dirty blocks behind a volume's end, which no backing store can take, are dropped by a
/// start: a drain ends well, and a growth shows zeros, even if the power fails before anything else
/// was written. Method: blocks of both volumes behind an end that came while they were dirty.
#[test]
fn a_start_drops_what_lies_behind_the_end() {
    each_seed(20, |seed| {
        let mut world = with_blocks_behind_the_end(seed);
        let report = world.crash(CrashMode::DropAll);
        assert_eq!((report.blocks_dirty, report.blocks_behind_end), (2, 4), "SEED={seed}");
        if seed % 2 == 0 {
            world.drain().expect("nothing is left that no home takes");
        }
        world.shape.length = BLOCKS * BLOCK;
        for home in world.homes.clone() {
            world.io.resize_disk(home, BLOCKS * BLOCK).expect("it is there");
        }
        world.crash(CrashMode::DropAll);
        for volume in [1, 2] {
            let kept = world.read(volume, (HALF - 1) * BLOCK, BLOCK).expect("a read");
            let behind = world.read(volume, HALF * BLOCK, HALF * BLOCK).expect("a read");
            assert!(kept.iter().all(|byte| *byte == 40), "SEED={seed}, volume {volume}");
            assert!(behind.iter().all(|byte| *byte == 0), "SEED={seed}, volume {volume}");
        }
        world.drain().expect("all goes home");
    });
}

/// Goal: dirty blocks of a volume that the node does not have are counted when a start drops them,
/// and an outsider counts them by volume before it. Method: blocks of two volumes, one of which
/// the next start is not told of; one more start.
#[test]
fn dirty_blocks_of_an_unknown_volume_are_counted() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        for (volume, blocks) in [(1, 2), (2, 3)] {
            for block in 0..blocks {
                write_block(&mut world, volume, block, 40).expect("a write");
            }
            world.run(volume, call(Operation::Flush, 0, 0), 0).expect("a flush");
        }
        world.io.crash(CrashMode::DropAll);
        let mut dirty = [0; 2];
        for (disk, kind) in [(world.nvm, StoreKind::Nvm), (world.ssd, StoreKind::Log)] {
            let bytes = world.io.peek(disk);
            let seen = check_store(&bytes[..], "image", 0, bytes.len() as u64, kind, true);
            let of = |volume: u32| seen.dirty.get(&volume).copied().unwrap_or(0);
            dirty = [dirty[0] + of(1), dirty[1] + of(2)];
            let all = seen.dirty.values().sum::<u64>();
            assert_eq!(seen.counts.blocks_dirty, all, "SEED={seed}");
        }
        assert_eq!(dirty, [2, 3], "SEED={seed}");
        world.homes.truncate(1);
        let report = world.restart();
        assert_eq!((report.blocks_dirty, &report.unknown[..]), (2, &[(VolumeId(2), 3)][..]));
        let report = world.crash(CrashMode::DropAll);
        assert!(report.unknown.is_empty(), "SEED={seed}: they are gone");
    });
}

/// Goal: a change is known to be in flight behind an end until it has ended, whatever it waits for;
/// reads, changes before it and the shard's own are none. Method: one call at a time, asked before
/// and after its end.
#[test]
fn changes_in_flight_behind_an_end_are_known() {
    let mut world = World::new(3, quiet());
    let volume = VolumeId(2);
    let end = HALF * BLOCK;
    for (asker, operation, offset, expected) in [
        (1, Operation::Write, end, true),
        (1, Operation::Write, end - 512, true),
        (1, Operation::WriteZeroes, end, true),
        (1, Operation::Write, end - BLOCK, false),
        (1, Operation::Read, end, false),
        (Asker::OWN + 1, Operation::WriteZeroes, end, false),
    ] {
        let asked = call(operation, offset, BLOCK);
        let payload = vec![7; BLOCK as usize];
        let bytes = if operation == Operation::Write { &payload[..] } else { &[] };
        world.core.submit(&mut world.io, Asker(asker), volume, asked, bytes, None);
        assert_eq!(world.core.has_changes_behind(volume, end), expected, "{asked:?}");
        assert!(!world.core.has_changes_behind(VolumeId(1), end), "of another volume");
        while world.core.take_finished().is_none() {
            world.core.turn(&mut world.io);
        }
        assert!(!world.core.has_changes_behind(volume, end), "{asked:?} has ended");
    }
}

/// How a removal of the second volume that keeps its data ends.
fn removed(world: &mut World) -> Result<(), RemoveError> {
    for _ in 0..TURNS_MAX {
        match world.core.remove_volume(&mut world.io, VolumeId(2), OnDirty::Refuse) {
            Err(RemoveError::Busy) => world.core.turn(&mut world.io),
            ended => return ended,
        }
    }
    panic!("a removal never ends");
}

/// Goal: a removal that keeps the data refuses dirty blocks, and leaves a backing store that a
/// power cut takes nothing from. Method: a removal before and after a drain; a volume that writes
/// past the levels, removed without a flush; then the power is cut.
#[test]
fn a_removal_that_keeps_the_data_keeps_it() {
    for is_passed in [false, true] {
        let mut shape = quiet();
        if is_passed {
            shape.spec.classes[1].levels = 0b001;
        }
        let mut world = World::new(5, shape);
        write_block(&mut world, 2, 3, 40).expect("a write");
        if !is_passed {
            assert_eq!(removed(&mut world), Err(RemoveError::Dirty));
            world.drain().expect("a drain");
        }
        assert_eq!(removed(&mut world), Ok(()));
        world.io.crash(CrashMode::DropAll);
        let home = world.io.peek(world.homes[1]);
        let block = &home[3 * BLOCK as usize..4 * BLOCK as usize];
        assert!(block.iter().all(|byte| *byte == 40), "is_passed: {is_passed}");
    }
}

/// Goal: a removal that keeps the data ends with an error where the backing store did not sync what
/// it was given, and the volume is served on. Method: a volume that writes past the levels, whose
/// next sync fails; a removal that throws the data away still ends well.
#[test]
fn a_removal_that_cannot_sync_is_refused() {
    let mut shape = quiet();
    shape.spec.classes[1].levels = 0b001;
    let mut world = World::new(6, shape);
    write_block(&mut world, 2, 3, 40).expect("a write");
    world.io.fail_next(world.homes[1], OperationKind::Sync, Errno::IO);
    assert_eq!(removed(&mut world), Err(RemoveError::Unsynced));
    assert_eq!(removed(&mut world), Err(RemoveError::Unsynced), "and stays so");
    let read = world.read(2, 3 * BLOCK, BLOCK).expect("it is served on");
    assert!(read.iter().all(|byte| *byte == 40));
    let gone = world.core.remove_volume(&mut world.io, VolumeId(2), OnDirty::Discard);
    assert_eq!(gone, Ok(()));
}
