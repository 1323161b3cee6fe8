//! What lies behind a volume's end, and what is in flight there.

use super::faults::{quiet, write_block};
use super::*;

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

/// Goal: a removal that keeps the data refuses dirty blocks, and leaves a backing store that a power
/// cut takes nothing from. Method: a removal before and after a drain; a volume that writes past the
/// levels, removed without a flush; then the power is cut.
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
