//! Discards of a volume in an object store: records of the next segment.

use super::lives::BLOCK;
use super::waits::Bench;
use crate::segment::{EntryKind, Index};
use layby_types::BackingOperation;
use std::ops::Range;

impl Bench {
    fn discard(&mut self, block: u64) {
        self.token += 1;
        let (offset, length) = (block * BLOCK, BLOCK);
        let zero = BackingOperation::Zero { offset, length, keep_allocated: false };
        self.volume.submit(self.token, zero);
    }

    /// Each data or zero entry of the segments that the store has beyond `before`, and all keys.
    fn entries(&self, before: &[String]) -> (Vec<(Range<u64>, bool)>, Vec<String>) {
        let keys: Vec<String> = self.world.store.objects.keys().cloned().collect();
        let new = keys.iter().filter(|key| !before.contains(key));
        let indexes = new.filter_map(|key| Index::decode(&self.world.store.objects[key].0));
        let entries = indexes.flat_map(|index| index.entries);
        let entries = entries.map(|entry| (entry.blocks, entry.kind == EntryKind::Zero)).collect();
        (entries, keys)
    }

    fn drain(&mut self) {
        self.volume.set_draining(true);
        self.until(|bench| bench.volume.is_drained());
        self.volume.set_draining(false);
    }
}

/// Goal: discards that come one by one are few records of one object, and those whose blocks are
/// written again before it is cut are none. Method: 16 discards of neighbours in turn, two of them
/// written again, all in one segment, which is decoded; then the blocks are read from the store.
#[test]
fn discards_are_merged_and_cancelled_in_their_segment() {
    for seed in 0..10 {
        let mut bench = Bench::new(seed);
        let written = bench.write(16, 16, 2);
        bench.until(|bench| bench.result(written).is_some());
        bench.drain();
        let (_, before) = bench.entries(&[]);
        (16..32).rev().for_each(|block| bench.discard(block));
        bench.write(20, 2, 3);
        bench.drain();
        let (mut entries, _) = bench.entries(&before);
        entries.sort_by_key(|(blocks, _)| blocks.start);
        assert_eq!(entries, [(16..20, true), (20..22, false), (22..32, true)], "seed {seed}");
        bench.volume.forget_all_uploaded();
        for (block, value) in [(16, 0), (19, 0), (20, 3), (21, 3), (22, 0), (31, 0)] {
            bench.reads(block, value);
        }
    }
}
