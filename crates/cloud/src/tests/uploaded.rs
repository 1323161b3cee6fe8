//! What was uploaded lately is read from the journal while its ring holds it.

use super::lives::JOURNAL;
use super::waits::Bench;
use layby_types::ErrorKind;

impl Bench {
    /// Writes a run of blocks and has all of it uploaded.
    fn upload(&mut self, first: u64, blocks: u64, value: u8) {
        let written = self.write(first, blocks, value);
        self.volume.set_draining(true);
        self.until(|bench| bench.ended.contains_key(&written) && bench.volume.is_drained());
        self.volume.set_draining(false);
    }
}

/// Goal: no read of what was written lately waits for the store, uploaded or not, overwritten in
/// part or zeroed. Method: writes, uploads, a store that cannot be reached, reads of everything.
#[test]
fn uploaded_blocks_are_read_without_the_store() {
    for seed in 0..20 {
        let mut bench = Bench::new(seed);
        bench.upload(16, 16, 2);
        bench.upload(20, 4, 3);
        bench.write(22, 1, 4);
        bench.world.faults.is_cut = true;
        let before = bench.requests();
        for (block, value) in [(16, 2), (19, 2), (20, 3), (21, 3), (22, 4), (23, 3), (24, 2)] {
            bench.reads(block, value);
        }
        assert_eq!(bench.requests(), before, "nothing was asked; seed {seed}");
        let cold = bench.read(0);
        assert_eq!(bench.wait(cold).1, Err(ErrorKind::Retry), "the store is out of reach");
    }
}

/// Goal: what the ring has reused is read from the store, and nothing else is served in its place.
/// Method: blocks uploaded, then as much written elsewhere as the ring holds, twice over.
#[test]
fn reused_places_are_read_from_the_store() {
    for seed in 0..20 {
        let mut bench = Bench::new(seed);
        bench.upload(0, 8, 7);
        bench.reads(3, 7);
        for round in 0..40 {
            bench.upload(32, 16, round);
            bench.reads(3, 7);
            bench.reads(40, round);
        }
    }
}

/// Goal: rot in the journal of what the store has costs a request and no data. Method: a bit of
/// each sector of the ring flipped after an upload, then reads.
#[test]
fn rot_of_uploaded_blocks_is_read_from_the_store() {
    for seed in 0..8 {
        let mut bench = Bench::new(seed);
        bench.upload(16, 8, 5);
        (seed..JOURNAL).step_by(512).for_each(|at| bench.world.disks.rot(at));
        let before = bench.requests();
        (16..24).for_each(|block| bench.reads(block, 5));
        assert!(bench.requests() > before, "the store was asked; seed {seed}");
    }
}
