//! Map files that could not be changed.

use super::lives::Life;
use crate::simulated::SimDeed;
use crate::volume::{LeftOver, OpenError, left_over};

/// A life whose store has segments by the dozen, and whose journal has what the store lacks.
fn life(seed: u64) -> Life {
    let mut life = Life::new(seed);
    life.load(200);
    life.settle();
    life.volume.set_draining(false);
    life.world.faults.is_cut = true;
    life.load(120);
    life.sync_all();
    life
}

fn left(life: &Life, map_file: &[u8]) -> Result<LeftOver, OpenError> {
    let disks = &life.world.disks;
    left_over(map_file, &mut |at, length| disks.read(at, length))
}

/// Goal: one change of the map file that fails loses nothing that was flushed, in serving and in
/// salvage neither (a passing error left a gap there, and the volume could not be opened for good).
/// Method: some segments of flushed writes end while any one change fails, in part; a power cut.
#[test]
fn a_failed_change_of_the_map_file_loses_nothing_flushed() {
    let mut failed = 0;
    for seed in 7000..7060 {
        let mut life = life(seed);
        life.world.faults.is_cut = false;
        (0..life.world.rng.below(60)).for_each(|_| life.tick());
        life.world.file_fault = Some(SimDeed::MapWritten);
        (0..300).for_each(|_| life.tick());
        failed += u64::from(life.volume.status().journal_fault.is_some());
        let map_file = life.world.disks.map_file.clone();
        assert!(left(&life, &map_file).is_ok(), "{}", life.line);
        // All that was written was flushed, so that this reads all of it.
        life.crash();
        life.load(100);
        life.settle();
    }
    assert!(failed > 30, "{failed} of 60 changes failed");
}
