//! Volumes whose length is no multiple of the block: the last block is a part of one.

use super::faults::{is_all, quiet};
use super::*;

/// Bytes of the last block, which are all that a volume has of it.
const TAIL: u64 = 512;
const LAST: u64 = (BLOCKS - 1) * BLOCK;

/// A node whose volumes end within their last block, in which 77 is in the volume's own level.
fn with_tail(volume: u32) -> (World, DiskId) {
    let mut shape = quiet();
    shape.length = LAST + TAIL;
    let mut world = World::new(1, shape);
    let mut write = call(Operation::Write, LAST, TAIL);
    write.flags.fua = true;
    world.run(volume, write, 77).expect("a durable write");
    // Only a later record vouches for a flushed one; without it, rot looks like a torn write.
    let mut later = call(Operation::Write, 0, BLOCK);
    later.flags.fua = true;
    world.run(volume, later, 1).expect("a durable write");
    let disk = if volume == 1 { world.nvm } else { world.ssd };
    (world, disk)
}

/// Goal: a damaged last block is whole again once all that the volume has of it is written, trimmed
/// or zeroed. Method: a tail whose bytes rotted in either level before a start; each operation, on
/// the tail alone and on all.
#[test]
fn a_damaged_tail_is_written_whole() {
    let operations = [Operation::Write, Operation::WriteZeroes, Operation::Trim];
    for case in 0..2 * 2 * 3 {
        let (volume, is_all_of_it) = (1 + case % 2, case / 2 % 2 == 1);
        let operation = operations[case as usize / 4];
        let name = format!("{operation:?} of volume {volume}, all {is_all_of_it}");
        let (mut world, disk) = with_tail(volume);
        let bytes = world.io.peek(disk);
        let is_tail = |block: &[u8]| is_all(&block[..512], 77) && is_all(&block[512..], 0);
        let at = bytes.chunks(BLOCK as usize).rposition(is_tail).expect("it is there");
        world.io.crash(CrashMode::KeepAll);
        world.io.corrupt(disk, at as u64 * BLOCK, 8);
        world.restart();
        world.read(volume, LAST, TAIL).expect_err("it is damaged");
        let (offset, length) = if is_all_of_it { (0, LAST + TAIL) } else { (LAST, TAIL) };
        world.run(volume, call(operation, offset, length), 78).unwrap_or_else(|kind| {
            panic!("{name}: {kind:?}");
        });
        let data = world.read(volume, LAST, TAIL).expect("it is whole");
        assert!(is_all(&data, if operation == Operation::Write { 78 } else { 0 }), "{name}");
        world.run(volume, call(Operation::Flush, 0, 0), 0).expect("a flush");
        // An outsider still sees the old bytes, in a slot that is not free yet.
        world.io.crash(CrashMode::DropAll);
        world.restart();
        assert_eq!(world.read(volume, LAST, TAIL), Ok(data), "{name}");
        world.drain().expect("nothing is damaged any more");
    }
}

/// Goal: what is written of a last block beyond an unreadable one is not needed. Method: a backing
/// store whose last sector cannot be read; a write of the tail.
#[test]
fn a_tail_needs_nothing_of_what_was_there() {
    let mut shape = quiet();
    shape.length = LAST + TAIL;
    let mut world = World::new(2, shape);
    world.io.fail_reads(world.homes[1], LAST, TAIL);
    world.read(2, LAST, TAIL).expect_err("it is unreadable");
    world.run(2, call(Operation::Write, LAST, TAIL), 5).expect("a write of all of it");
    assert_eq!(world.read(2, LAST, TAIL), Ok(vec![5; TAIL as usize]));
    world.drain().expect("the write puts another sector in its place");
}
