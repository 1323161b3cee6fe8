//! Starts whose checkpoint fails: records that they dropped live on, and so do redone tombstones.

use super::faults::{is_all, quiet};
use super::*;
use crate::store::{LogGeometry, SegmentPlan};

/// The block of the second volume that matters, far from its others.
const LAST: u64 = (BLOCKS - 1) * BLOCK;

/// A node with a small log, which keeps what is read of both volumes.
fn small(seed: u64, is_through: bool) -> World {
    let mut shape = quiet();
    shape.ssd_bytes = 106 * BLOCK;
    shape.spec.classes[1].levels = 0b101;
    shape.through = is_through.then_some(2);
    World::new(seed, shape)
}

fn geometry(world: &World) -> LogGeometry {
    let plan = SegmentPlan::default();
    LogGeometry::plan(world.shape.ssd_bytes, BlockSize::MIN, &plan).expect("large enough")
}

/// Power loss, and a start that can write no checkpoint. Where the second volume is not written
/// through, its class uses no persistent level from now on.
fn start_without_checkpoint(world: &mut World) -> crate::control::StartReport {
    let geometry = geometry(world);
    let [first, end] =
        [geometry.checkpoint_first(0), geometry.segments_first].map(|at| u64::from(at) * BLOCK);
    world.io.break_range(world.ssd, first, end - first);
    if world.shape.through.is_none() {
        world.shape.spec.classes[1].levels = 0b001;
    }
    let report = world.crash(CrashMode::KeepAll);
    assert!(!report.is_checkpointed, "the areas fail");
    report
}

/// Power loss before any checkpoint could be written, and a start on a device that works.
fn start_healed(world: &mut World) {
    world.io.mend(world.ssd);
    world.shape.spec.classes[1].levels = 0b101;
    let report = world.crash(CrashMode::KeepAll);
    assert!(report.is_checkpointed, "the areas work");
}

/// A durable change of one block or more.
fn change(world: &mut World, (operation, volume): (Operation, u32), bytes: (u64, u64), value: u8) {
    let mut call = call(operation, bytes.0, bytes.1);
    call.flags.fua = true;
    world.run(volume, call, value).expect("a durable change");
}

/// Goal: a clean record that a start dropped for want of a slot does not come back over what was
/// written straight to the backing store, where that start's checkpoint failed. Method: one record
/// more than slots; a durable write of the oldest block while no checkpoint can be written; a trim
/// beside it, so that the next start has slots. The volume is written through, or its class has no
/// persistent level meanwhile.
#[test]
fn a_dropped_record_stays_dead_without_a_checkpoint() {
    for is_through in [true, false] {
        let mut world = small(1, is_through);
        let slots = u64::from(geometry(&world).slot_count);
        assert!(is_all(&world.read(2, LAST, BLOCK).expect("a read"), 0));
        (0..100).for_each(|_| world.core.turn(&mut world.io));
        assert_eq!(world.core.cache().held_by(VolumeId(2), LevelIndex(2)).0, 1, "it is kept");
        world.read(1, 0, slots * BLOCK).expect("a read");
        (0..100).for_each(|_| world.core.turn(&mut world.io));
        assert_eq!(world.core.cache().held_by(VolumeId(2), LevelIndex(2)).0, 0, "it is evicted");
        let report = start_without_checkpoint(&mut world);
        assert_eq!(report.blocks_clean, slots, "one record found no slot");
        change(&mut world, (Operation::Write, 2), (LAST, BLOCK), 50);
        change(&mut world, (Operation::Trim, 1), (0, 4 * BLOCK), 0);
        start_healed(&mut world);
        let data = world.read(2, LAST, BLOCK).expect("a read");
        assert!(is_all(&data, 50), "through {is_through}: {}", data[0]);
    }
}

/// Goal: a zeroing that a start repeats, and cannot record as done since its checkpoint fails, is
/// not repeated over what was written straight to the backing store afterwards. Method: a trim
/// whose end is not durable; a durable write while no checkpoint can be written; a start that
/// works.
#[test]
fn a_zeroing_is_not_repeated_over_a_later_write() {
    each_seed(40, |seed| {
        let mut world = small(seed, false);
        change(&mut world, (Operation::Trim, 2), (LAST, BLOCK), 0);
        start_without_checkpoint(&mut world);
        change(&mut world, (Operation::Write, 2), (LAST, BLOCK), 50);
        start_healed(&mut world);
        let data = world.read(2, LAST, BLOCK).expect("a read");
        assert!(is_all(&data, 50), "SEED={seed}: {}", data[0]);
    });
}

/// Goal: a volume of which the log has no records does not depend on an SSD that refuses all
/// writes, though the start's checkpoint failed there. Method: records of another volume, a zeroing
/// among them; power loss and a start where each write to the SSD fails; durable changes of the
/// volume, which is written through, or whose class has no persistent level.
#[test]
fn a_volume_without_records_needs_no_log() {
    for is_through in [true, false] {
        let mut world = small(2, is_through);
        change(&mut world, (Operation::Write, 1), (0, 4 * BLOCK), 40);
        change(&mut world, (Operation::Trim, 1), (0, BLOCK), 0);
        world.io.break_range(world.ssd, 0, world.shape.ssd_bytes);
        if !is_through {
            world.shape.spec.classes[1].levels = 0b001;
        }
        let report = world.crash(CrashMode::KeepAll);
        assert!(!report.is_checkpointed, "the SSD refuses it");
        change(&mut world, (Operation::Write, 2), (LAST, BLOCK), 50);
        change(&mut world, (Operation::Write, 2), (0, 2 * BLOCK), 51);
        change(&mut world, (Operation::Trim, 2), (0, BLOCK), 0);
        world.crash(CrashMode::DropAll);
        for (offset, value) in [(LAST, 50), (0, 0), (BLOCK, 51)] {
            let data = world.read(2, offset, BLOCK).expect("a read");
            assert!(is_all(&data, value), "through {is_through}, {offset}: {}", data[0]);
        }
    }
}
