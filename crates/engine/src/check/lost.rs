//! Blocks that a start could not decide, as the checkpoint names them, and what is open still.
//!
//! How: entries of their own kind give ranges; a block that a record behind the checkpoint or a
//! slot of the NVM level names is known again.
//! Invariant: as in the parent. Cost: an entry per range or per 96 blocks; known blocks are sorted
//! once.

use super::{KEY_BLOCK_BITS, LostRun, StoreReport, u32_at, u64_at};

/// Lost blocks: first keys, and those behind the last.
#[derive(Debug, Default)]
pub(super) struct Lost(Vec<(u64, u64)>);

/// Whether an entry of a chunk names lost blocks.
pub(super) fn is_lost_entry(entry: &[u8]) -> bool {
    u32_at(entry, 20) & 12 != 0
}

impl Lost {
    /// Adds what an entry names.
    pub(super) fn add(&mut self, entry: &[u8]) {
        let (key, low) = (u64_at(entry, 0), u64_at(entry, 8));
        // An entry names blocks of one volume.
        let end = (key | BLOCK_MASK).saturating_add(1);
        if u32_at(entry, 20) & 4 != 0 {
            self.0.push((key, key.saturating_add(low).min(end)));
            return;
        }
        let high = u32_at(entry, 16);
        let is_set = |bit: &u64| match bit {
            0..64 => low >> bit & 1 != 0,
            _ => high >> (bit - 64) & 1 != 0,
        };
        let keys = (0..96).filter(is_set).map(|bit| key.saturating_add(bit));
        self.0.extend(keys.filter(|key| *key < end).map(|key| (key, key + 1)));
    }

    /// These blocks, first and last keys, are known again.
    pub(super) fn remove(&mut self, known: &[(u64, u64)]) {
        if self.0.is_empty() {
            return;
        }
        let known = known.iter().map(|(first, last)| (*first, last.saturating_add(1)));
        self.0 = without(&merged(std::mem::take(&mut self.0)), &merged(known.collect()));
    }

    /// All ranges, in order; those of one volume do not touch.
    pub(super) fn into_runs(self) -> Vec<LostRun> {
        let run = |(key, end): (u64, u64)| {
            let (volume, block) = ((key >> KEY_BLOCK_BITS) as u32, key & BLOCK_MASK);
            LostRun { volume, block, count: end - key }
        };
        merged(self.0).into_iter().map(run).collect()
    }
}

/// Takes what an NVM level has of them out of the blocks that the log beside it calls lost.
pub(super) fn know_from_nvm(stores: &mut [StoreReport]) {
    let take = |store: &mut StoreReport| (store.shard, std::mem::take(&mut store.nvm_keys));
    let held: Vec<(u16, Vec<u64>)> = stores.iter_mut().map(take).collect();
    for store in stores.iter_mut().filter(|store| !store.lost.is_empty()) {
        let beside = held.iter().filter(|(shard, _)| *shard == store.shard);
        let known: Vec<_> = beside.flat_map(|(_, keys)| keys).map(|key| (*key, *key)).collect();
        let range = |run: LostRun| {
            let key = u64::from(run.volume) << KEY_BLOCK_BITS | run.block;
            (key, key.saturating_add(run.count))
        };
        let mut lost = Lost(std::mem::take(&mut store.lost).into_iter().map(range).collect());
        lost.remove(&known);
        store.lost = lost.into_runs();
    }
}

/// Bits of a key that number a block.
const BLOCK_MASK: u64 = (1 << KEY_BLOCK_BITS) - 1;

/// The ranges in order, those of one volume that touch or overlap as one.
fn merged(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.retain(|(first, end)| first < end);
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (first, end) in ranges {
        let is_of_volume = first & BLOCK_MASK != 0;
        let touches = |last: &&mut (u64, u64)| first < last.1 || first == last.1 && is_of_volume;
        match merged.last_mut().filter(touches) {
            Some(last) => last.1 = last.1.max(end),
            None => merged.push((first, end)),
        }
    }
    merged
}

/// What is left of ranges without those that are known, both in order and apart.
fn without(ranges: &[(u64, u64)], known: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut left, mut known) = (Vec::new(), known.iter().copied().peekable());
    for (mut first, end) in ranges.iter().copied() {
        while let Some((start, stop)) = known.peek().copied().filter(|(start, _)| *start < end) {
            if first < start {
                left.push((first, start));
            }
            first = first.max(stop);
            // It may reach into the next range.
            if stop > end {
                break;
            }
            known.next();
        }
        if first < end {
            left.push((first, end));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::super::StoreKind;
    use super::*;
    use layby_types::Rng;
    use std::collections::BTreeSet;

    fn entry(key: u64, value: u128, flags: u32) -> Vec<u8> {
        let mut bytes = key.to_le_bytes().to_vec();
        bytes.extend(&value.to_le_bytes()[..12]);
        bytes.extend(flags.to_le_bytes());
        bytes
    }

    /// Goal: what entries name, without what is known again, is each block once, in ranges that
    /// are in order and do not touch. Method: random entries of two volumes, out of order and over
    /// each other, and random known ranges, beside a plain set; 500 seeds.
    #[test]
    fn ranges_match_a_set() {
        for seed in 0..500 {
            let mut rng = Rng::new(seed);
            let (mut lost, mut model) = (Lost::default(), BTreeSet::new());
            for _ in 0..rng.below(12) {
                let key = rng.below(2) << KEY_BLOCK_BITS | rng.below(300);
                if rng.chance(1, 2) {
                    let count = rng.below(40);
                    lost.add(&entry(key, count.into(), 4));
                    model.extend(key..key + count);
                } else {
                    let bits = u128::from(rng.next_u64()) << rng.below(32);
                    lost.add(&entry(key, bits, 8));
                    model.extend((0..96).filter(|bit| bits >> bit & 1 != 0).map(|bit| key + bit));
                }
            }
            let first = |rng: &mut Rng| rng.below(2) << KEY_BLOCK_BITS | rng.below(300);
            let known: Vec<(u64, u64)> = (0..rng.below(20))
                .map(|_| first(&mut rng))
                .map(|first| (first, first + seed % 30))
                .collect();
            lost.remove(&known);
            model.retain(|key| !known.iter().any(|(first, last)| (first..=last).contains(&key)));
            let runs = lost.into_runs();
            let key = |run: &LostRun| u64::from(run.volume) << KEY_BLOCK_BITS | run.block;
            let apart = runs.windows(2).all(|two| key(&two[0]) + two[0].count < key(&two[1]));
            assert!(apart, "seed {seed}: {runs:?}");
            let found: Vec<u64> =
                runs.iter().flat_map(|run| key(run)..key(run) + run.count).collect();
            assert_eq!(found, model.into_iter().collect::<Vec<_>>(), "seed {seed}");
        }
    }

    /// Goal: a block that the NVM level has is not lost, where both are of one shard. Method: a log
    /// of each of two shards with the same lost blocks, and an NVM level of the second.
    #[test]
    fn a_block_in_the_nvm_level_is_known() {
        let report = |kind, shard| StoreReport { shard, ..StoreReport::new("x", 0, kind) };
        let run = |block, count| LostRun { volume: 5, block, count };
        let log = |shard| StoreReport { lost: vec![run(10, 4)], ..report(StoreKind::Log, shard) };
        let nvm_keys = vec![5 << KEY_BLOCK_BITS | 12, 5 << KEY_BLOCK_BITS | 99];
        let nvm = StoreReport { nvm_keys, ..report(StoreKind::Nvm, 1) };
        let mut stores = [nvm, log(0), log(1)];
        know_from_nvm(&mut stores);
        let lost = stores.map(|store| (store.lost, store.nvm_keys.len()));
        let known = vec![run(10, 2), run(13, 1)];
        assert_eq!(lost, [(vec![], 0), (vec![run(10, 4)], 0), (known, 0)]);
    }

    /// Goal: no entry names blocks of two volumes, whatever its count. Method: counts and bits
    /// beyond a volume's last block.
    #[test]
    fn an_entry_is_of_one_volume() {
        let last = 3 << KEY_BLOCK_BITS | BLOCK_MASK;
        for (value, flags) in [(9, 4), (u64::MAX.into(), 4), (0b101, 8)] {
            let mut lost = Lost::default();
            lost.add(&entry(last, value, flags));
            assert_eq!(lost.into_runs(), [LostRun { volume: 3, block: BLOCK_MASK, count: 1 }]);
        }
    }
}
