//! Volumes whose class gains or loses persistent levels while the node runs.

use super::faults::{is_all, quiet, write_block};
use super::*;

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
    let spec = VolumeSpec {
        id: VolumeId(2),
        class,
        length: BLOCKS * BLOCK,
        shares: [Share::OPEN; LEVELS_MAX],
        write_through: false,
    };
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
