//! Which volume's coldest block leaves a level that volumes share, beside one LRU over all blocks.

use super::host::*;
use crate::*;
use layby_types::*;
use std::collections::{BTreeMap, HashMap};
use std::vec::Vec;

/// Slots of the level that all volumes share.
const SLOTS: u32 = 1024;
/// Reads of a run: two hundred turns of the level.
const READS: u64 = 200_000;

/// One LRU over all blocks: the yardstick.
#[derive(Default)]
struct SharedLru {
    /// By block, the read that used it last.
    used: HashMap<(u32, u64), u64>,
    order: BTreeMap<u64, (u32, u64)>,
    misses: u64,
}

impl SharedLru {
    fn read(&mut self, read: u64, block: (u32, u64)) {
        match self.used.insert(block, read) {
            Some(last) => drop(self.order.remove(&last)),
            None => self.misses += 1,
        }
        self.order.insert(read, block);
        if self.order.len() > SLOTS as usize {
            let (_, coldest) = self.order.pop_first().expect("it is not empty");
            self.used.remove(&coldest);
        }
    }
}

/// A large volume that is read in order, round and round, beside four small ones, of which most
/// reads go to few blocks and some to thousands that hardly come back.
struct Load {
    /// The large volume's number; the small ones have the others of 0 to 4.
    large: u32,
    large_blocks: u64,
    /// Of a thousand reads, those of the large volume.
    large_permille: u64,
    /// Of a thousand reads of small volumes, those that hardly come back.
    wide_permille: u64,
    large_next: u64,
}

impl Load {
    fn next(&mut self, rng: &mut Rng) -> (u32, u64) {
        if rng.chance(self.large_permille, 1000) {
            self.large_next += 1;
            return (self.large, self.large_next % self.large_blocks);
        }
        let small = (self.large + 1 + rng.below(4) as u32) % 5;
        let is_wide = rng.chance(self.wide_permille, 1000);
        (small, rng.below(if is_wide { 4096 } else { 48 }))
    }

    /// Misses of the level and of the yardstick.
    fn misses(mut self, seed: u64) -> (u64, u64) {
        let volumes: Vec<VolumeSpec> = (0..5).map(|id| volume(id, 1, 4096)).collect();
        let mut cache = Cache::new(spec([8, 8, SLOTS])).expect("a sound specification");
        for volume in &volumes {
            cache.add_volume(volume).expect("a sound volume");
        }
        let (mut rng, mut shared) = (Rng::new(seed), SharedLru::default());
        let mut actions = Vec::new();
        for read in 0..READS {
            let (id, block) = self.next(&mut rng);
            let moment = &mut Moment { now: Nanos::ZERO, rng: &mut Rng::new(0) };
            cache
                .read_at_once(moment, VolumeId(id), BlockIndex(block), &mut actions)
                .expect("such a read is simple");
            actions.clear();
            shared.read(read, (id, block));
        }
        let counters = volumes.iter().filter_map(|spec| cache.volume_counters(spec.id));
        (counters.map(|counters| counters.misses).sum(), shared.misses)
    }
}

/// Goal: which volume gives up room follows from how long ago its coldest block was used, though
/// that be many turns of the level: misses are those of one LRU over all blocks, to 2 %. Method:
/// mixed loads, the large volume's reuse distance 5 to 25 turns; it has the lowest number or the
/// highest, since that decides between equal ages.
#[test]
fn a_shared_level_misses_as_one_lru() {
    for (large_blocks, large_permille, wide_permille) in
        [(512, 100, 30), (512, 50, 10), (600, 50, 5), (512, 20, 5)]
    {
        for (large, seed) in [(0, 1), (4, 1), (0, 2), (4, 2)] {
            let load = Load { large, large_blocks, large_permille, wide_permille, large_next: 0 };
            let (misses, shared) = load.misses(seed);
            assert!(
                misses * 100 <= shared * 102,
                "{misses} beside {shared}: {large_blocks} blocks of volume {large}, SEED={seed}"
            );
        }
    }
}
