//! Blocks whose newest version a start could not decide: errors until they are whole again.
//!
//! How: a set of ranges. A call that needs the bytes of such a block is refused; a write of the
//! whole block, a trim or a zeroing takes the block out, once what it did is recorded.
//! Invariant: no level holds a copy of a block of the set, so that nothing older is ever served,
//! read ahead, kept or destaged in its place; the ranges of one volume do not touch.
//! Cost: nothing while the set is empty; else a look-up per call, and up to two ranges per change.
//! Not for: single blocks whose bytes are bad; they keep their slot.

use crate::action::{Action, OpId, Redo};
use crate::cache::Cache;
use crate::op::StorePhase;
use alloc::collections::BTreeMap;
use core::ops::Range;
use layby_types::{BlockIndex, BlockKey, Call, ErrorKind, LevelIndex, Operation, VolumeId};

/// Ranges of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostBlocks {
    /// By first key: the key behind the last.
    runs: BTreeMap<u64, u64>,
}

impl LostBlocks {
    /// Whether no block is lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Adds `count` blocks from `first` on.
    pub fn insert(&mut self, first: BlockKey, count: u64) {
        let (mut start, mut end) = (first.0, first.0.saturating_add(count));
        if start == end {
            return;
        }
        if let Some((before, stop)) = self.runs.range(..start).next_back()
            && *stop >= start
        {
            (start, end) = (*before, end.max(*stop));
        }
        while let Some((next, stop)) = self.runs.range(start..=end).next() {
            let (next, stop) = (*next, *stop);
            self.runs.remove(&next);
            end = end.max(stop);
        }
        self.runs.insert(start, end);
    }

    /// Takes `count` blocks from `first` on out.
    pub fn remove(&mut self, first: BlockKey, count: u64) {
        let (start, end) = (first.0, first.0.saturating_add(count));
        while let Some((from, stop)) = self.overlapping(start, end) {
            self.runs.remove(&from);
            if from < start {
                self.runs.insert(from, start);
            }
            if end < stop {
                self.runs.insert(end, stop);
            }
        }
    }

    /// Whether one of `count` blocks from `first` on is lost.
    #[must_use]
    pub fn overlaps(&self, first: BlockKey, count: u64) -> bool {
        self.overlapping(first.0, first.0.saturating_add(count)).is_some()
    }

    /// Whether to take these blocks out would leave a range in two.
    #[must_use]
    pub fn is_split_by(&self, first: BlockKey, count: u64) -> bool {
        let (start, end) = (first.0, first.0.saturating_add(count));
        let found = self.overlapping(start, end);
        start < end && found.is_some_and(|(from, stop)| from < start && end < stop)
    }

    /// A range that has blocks in common with `start..end`.
    fn overlapping(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (from, stop) = self.runs.range(..end).next_back()?;
        (start < end && *stop > start).then_some((*from, *stop))
    }

    /// First block and number of blocks of each range, in order.
    pub fn iter(&self) -> impl Iterator<Item = (BlockKey, u64)> {
        self.runs.iter().map(|(start, end)| (BlockKey(*start), end - start))
    }

    /// The ranges of one volume.
    pub fn of_volume(&self, volume: VolumeId) -> impl Iterator<Item = (BlockIndex, u64)> {
        let keys = keys_of(volume);
        let runs = self.runs.range(keys).map(|(start, end)| (BlockKey(*start), end - start));
        runs.map(|(first, count)| (first.block(), count))
    }
}

fn keys_of(volume: VolumeId) -> Range<u64> {
    let first = BlockKey::new(volume, BlockIndex(0)).0;
    first..first.saturating_add(crate::volumes::BLOCKS_MAX)
}

impl Cache {
    /// Blocks whose newest version is not known.
    #[must_use]
    pub fn lost(&self) -> &LostBlocks {
        &self.lost
    }

    /// Has these blocks be errors until they are whole again; at most `runs_max` ranges may come
    /// of them. Call once, before anything is served; no level may hold one of them.
    pub fn set_lost(&mut self, lost: LostBlocks, runs_max: usize) {
        for (first, _) in lost.iter() {
            if let Some(number) = self.volumes.number(first.volume()) {
                self.volumes.get_mut(number).logged = true;
            }
        }
        (self.lost, self.lost_runs_max) = (lost, runs_max);
    }

    /// Has one more block be an error until it is whole again, during a start; false where there
    /// are as many ranges as there may be.
    pub fn lose(&mut self, key: BlockKey) -> bool {
        if let Some(number) = self.volumes.number(key.volume()) {
            self.volumes.get_mut(number).logged = true;
            self.lost.insert(key, 1);
        }
        self.lost.len() <= self.lost_runs_max
    }

    /// The ranges of a volume beyond `blocks` are no part of it any more.
    pub(crate) fn cut_lost(&mut self, id: VolumeId, blocks: u64) {
        if !self.lost.is_empty() {
            let keys = keys_of(id);
            let first = BlockKey(keys.start + blocks.min(keys.end - keys.start));
            self.lost.remove(first, keys.end - first.0);
        }
    }

    /// Why a call cannot be done: it needs the bytes of a lost block, or leaves more ranges than
    /// there may be.
    pub(crate) fn lost_refusal(&self, volume: u16, call: &Call) -> Option<ErrorKind> {
        if self.lost.is_empty() || call.length == 0 {
            return None;
        }
        let size = self.spec.block_size;
        let end = call.offset + call.length;
        let (first, last) = (size.block_of(call.offset).0, size.block_of(end - 1).0);
        let key = |block: u64| self.key(volume, BlockIndex(block));
        match call.operation {
            Operation::Flush | Operation::BlockStatus => None,
            Operation::Read | Operation::Cache => {
                let is_lost = self.lost.overlaps(key(first), last + 1 - first);
                is_lost.then_some(ErrorKind::Corrupt)
            }
            Operation::Write | Operation::Trim | Operation::WriteZeroes => {
                let state = self.volumes.get(volume);
                let is_to_the_end = end == state.length;
                let stop = if is_to_the_end { state.blocks } else { size.block_of(end).0 };
                let whole = size.blocks_in(call.offset)..stop;
                let is_part_lost =
                    |block: u64| !whole.contains(&block) && self.lost.overlaps(key(block), 1);
                if is_part_lost(first) || is_part_lost(last) {
                    return Some(ErrorKind::Corrupt);
                }
                let count = whole.end.saturating_sub(whole.start);
                let is_full = self.lost.len() >= self.lost_runs_max;
                let splits = is_full && self.lost.is_split_by(key(whole.start), count);
                splits.then_some(ErrorKind::Full)
            }
        }
    }

    /// Whether an operation's blocks, which the backing store holds durably now, are lost still.
    pub(crate) fn is_found(&self, id: OpId) -> bool {
        let (volume, first, count) = self.extent(id);
        !self.lost.is_empty() && self.lost.overlaps(self.key(volume, first), count.into())
    }

    /// Has the log record that all older records of these blocks are dead, as they are whole in
    /// the backing store. Before it does, a start finds them lost.
    pub(crate) fn record_found(&mut self, op: OpId) {
        let (number, first, count) = self.extent(op);
        self.lost.remove(self.key(number, first), count.into());
        let volume = self.volumes.get(number).id;
        self.store_mut(op).phase = StorePhase::Finding;
        let level = self.log_level().expect("a log keeps the ranges");
        let (level, redo, durable) = (LevelIndex(level as u8), Redo::Nothing, true);
        self.submit(op, Action::Tombstone { op, level, volume, first, count, redo, durable });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// Goal: ranges are a set of blocks, and never touch. Method: random changes beside a plain
    /// set, over two volumes.
    #[test]
    fn ranges_match_a_set() {
        let mut rng = Rng::new(1);
        let (mut lost, mut model) = (LostBlocks::default(), BTreeSet::new());
        for _ in 0..20_000 {
            let volume = VolumeId(1 + rng.below(2) as u32);
            let (block, count) = (rng.below(60), rng.below(9));
            let first = BlockKey::new(volume, BlockIndex(block));
            let mut keys = first.0..first.0 + count;
            let is_split = keys.clone().all(|key| model.contains(&key))
                && count > 0
                && model.contains(&(keys.end))
                && model.contains(&(keys.start.wrapping_sub(1)));
            assert_eq!(lost.is_split_by(first, count) && is_split, is_split);
            assert_eq!(lost.overlaps(first, count), keys.any(|key| model.contains(&key)));
            let keys = first.0..first.0 + count;
            if rng.chance(1, 2) {
                lost.insert(first, count);
                model.extend(keys);
            } else {
                lost.remove(first, count);
                model.retain(|key| !keys.contains(key));
            }
            let listed = lost.iter().flat_map(|(first, count)| first.0..first.0 + count);
            assert!(listed.eq(model.iter().copied()));
            let runs: Vec<(BlockKey, u64)> = lost.iter().collect();
            assert!(runs.windows(2).all(|w| w[0].0.0 + w[0].1 < w[1].0.0), "{runs:?}");
            assert_eq!(lost.is_empty(), model.is_empty());
        }
    }
}
