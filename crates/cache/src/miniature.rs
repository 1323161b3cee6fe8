//! What other eviction policies would have hit: each policy on a small sample of the blocks.
//!
//! How: a block belongs to the sample by its hash, and a cache of the same part of the size serves
//! the sample (Waldspurger et al., "Cache modeling and optimization using miniature simulations",
//! ATC 2017). Every policy of the registry runs beside the others, LRU too, so that what is
//! compared has the same error: what is worth reading is the difference between two of them.
//! Invariant: at most [`SLOTS`] blocks per policy. Cost: a hash and a comparison for a request
//! outside the sample; about 50 KiB per volume, ghosts included. Not for exact figures: of a
//! hundred sampled blocks a few popular ones decide.

use crate::hash::FixedMap;
use alloc::boxed::Box;
use alloc::vec::Vec;
use layby_policy::curve::{Access, SampleRate};
use layby_policy::registry::EvictionKind;
use layby_policy::{Eviction, Group, Moment, Warmth};
use layby_types::{BlockKey, Slot};

/// Blocks of each miniature cache at most.
pub(crate) const SLOTS: u32 = 128;
/// With fewer blocks, a ratio would be chance.
const CAPACITY_MIN: u32 = 16;
/// The rate is kept while the sample's room is at least this part of [`SLOTS`].
const ROOM_PARTS: u32 = 4;
/// The one group that all blocks are in.
const GROUP: Group = Group(0);

/// See the file's header.
pub(crate) struct Miniature {
    rate: SampleRate,
    capacity: u32,
    /// Reads of the sample, as much as they still count.
    reads: f64,
    runs: Vec<Run>,
    /// Requests taken in since the last period.
    pub(crate) sampled: u64,
}

/// One policy's cache.
struct Run {
    kind: EvictionKind,
    ranking: Box<dyn Eviction>,
    slots: FixedMap<BlockKey, Slot>,
    keys: Vec<BlockKey>,
    free: Vec<Slot>,
    hits: f64,
}

impl Miniature {
    /// No size yet: nothing is sampled until [`Miniature::on_period_end`] names one.
    pub(crate) fn new() -> Self {
        let rate = SampleRate::MIN;
        Miniature { rate, capacity: 0, reads: 0.0, runs: Vec::new(), sampled: 0 }
    }

    /// A request for one block.
    #[inline]
    pub(crate) fn on_request(&mut self, moment: &mut Moment<'_>, key: BlockKey, access: Access) {
        let is_read = access == Access::Read;
        if self.capacity > 0 && self.rate.takes(key) {
            self.reads += f64::from(u8::from(is_read));
            self.sampled += 1;
            for run in &mut self.runs {
                run.on_request(moment, key, is_read, self.capacity);
            }
        }
    }

    /// A period ends: what came before counts `keep` times as much; from now on a cache of `size`
    /// blocks is asked about, and at most `rate_max` of the blocks are sampled.
    pub(crate) fn on_period_end(
        &mut self,
        moment: &mut Moment<'_>,
        keep: f64,
        size: u64,
        rate_max: SampleRate,
    ) {
        self.sampled = 0;
        self.reads *= keep;
        self.runs.iter_mut().for_each(|run| run.hits *= keep);
        let scaled = (size as f64 * self.rate.part() + 0.5) as u64;
        let is_fit = (u64::from(SLOTS / ROOM_PARTS)..=u64::from(SLOTS)).contains(&scaled);
        if (is_fit || self.rate == SampleRate::MAX && scaled <= u64::from(SLOTS))
            && self.rate <= rate_max
        {
            self.capacity = scaled as u32;
        } else {
            self.restart(size, rate_max);
        }
        let capacity = self.capacity;
        self.runs.iter_mut().for_each(|run| run.shrink(moment, capacity));
    }

    /// Another part of the blocks: what was learnt of the old part says nothing of the new one.
    fn restart(&mut self, size: u64, rate_max: SampleRate) {
        // Three quarters of the room, so that a size that grows a little keeps the sample.
        let part = f64::from(SLOTS) * 0.75 / size.max(1) as f64;
        self.rate = SampleRate::new(part.min(1.0)).min(rate_max);
        self.capacity = (size as f64 * self.rate.part() + 0.5) as u32;
        self.reads = 0.0;
        self.runs = EvictionKind::ALL.into_iter().map(Run::new).collect();
    }

    /// The part of the reads that each policy hits; nothing where the sample is too small.
    pub(crate) fn hit_ratios(&self) -> Vec<(EvictionKind, f64)> {
        if self.capacity < CAPACITY_MIN || self.reads < f64::from(self.capacity) {
            return Vec::new();
        }
        let ratio = |run: &Run| (run.kind, (run.hits / self.reads).clamp(0.0, 1.0));
        self.runs.iter().map(ratio).collect()
    }
}

impl Run {
    fn new(kind: EvictionKind) -> Self {
        Run {
            kind,
            ranking: kind.build(SLOTS),
            slots: FixedMap::default(),
            keys: alloc::vec![BlockKey(0); SLOTS as usize],
            free: (0..SLOTS).rev().map(Slot).collect(),
            hits: 0.0,
        }
    }

    fn on_request(&mut self, moment: &mut Moment<'_>, key: BlockKey, is_read: bool, room: u32) {
        if let Some(slot) = self.slots.get(&key) {
            self.ranking.on_hit(moment, GROUP, *slot);
            self.hits += f64::from(u8::from(is_read));
            return;
        }
        self.make_room(moment, Some(key), room);
        let Some(slot) = self.free.pop() else { return };
        self.keys[slot.0 as usize] = key;
        self.slots.insert(key, slot);
        self.ranking.on_insert(moment, GROUP, slot, key, Warmth::Warm);
    }

    /// Evicts until another block fits into `room` blocks.
    fn make_room(&mut self, moment: &mut Moment<'_>, incoming: Option<BlockKey>, room: u32) {
        while self.slots.len() as u32 >= room.max(1) {
            let keys = &self.keys;
            let accept = &mut |slot: Slot| Some(keys[slot.0 as usize]);
            let Some(slot) = self.ranking.evict(moment, GROUP, incoming, accept) else { return };
            self.slots.remove(&self.keys[slot.0 as usize]);
            self.free.push(slot);
        }
    }

    fn shrink(&mut self, moment: &mut Moment<'_>, capacity: u32) {
        if self.slots.len() as u32 > capacity {
            self.make_room(moment, None, capacity + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::{BlockIndex, Nanos, Rng, VolumeId};

    fn key(block: u64) -> BlockKey {
        BlockKey::new(VolumeId(1), BlockIndex(block))
    }

    /// Reads of two kinds: a loop a little longer than the cache, and a few blocks read again and
    /// again; the hit ratios of each policy.
    fn ratios(size: u64, block_of: impl Fn(&mut Rng, u64) -> u64) -> Vec<(EvictionKind, f64)> {
        let (mut rng, mut chance) = (Rng::new(1), Rng::new(2));
        let mut miniature = Miniature::new();
        for step in 0..400_000 {
            let moment = &mut Moment { now: Nanos(step), rng: &mut rng };
            if step % 100_000 == 0 {
                miniature.on_period_end(moment, 0.5, size, SampleRate::MAX);
            }
            miniature.on_request(moment, key(block_of(&mut chance, step)), Access::Read);
        }
        miniature.hit_ratios()
    }

    /// Goal: the ratios tell policies apart as whole caches would. Method: uniform reads, where
    /// every policy hits the part that fits; a loop over more than fits, where LRU and FIFO hit
    /// nothing and ARC, LFU or S3-FIFO may.
    #[test]
    fn policies_are_told_apart() {
        for (kind, ratio) in ratios(4000, |rng, _| rng.below(8000)) {
            assert!((ratio - 0.5).abs() < 0.15, "{}: {ratio}", kind.name());
        }
        let looped = ratios(4000, |_, step| step % 6000);
        let of = |wanted| looped.iter().find(|(kind, _)| *kind == wanted).map(|(_, r)| *r);
        assert!(of(EvictionKind::Lru).is_some_and(|ratio| ratio < 0.1), "{looped:?}");
        assert!(looped.iter().any(|(_, ratio)| *ratio > 0.3), "{looped:?}");
    }

    /// Goal: another size is followed, larger and smaller, and a tiny one says nothing. Method:
    /// uniform reads while the size changes; a hundred sampled blocks err by a tenth or two.
    #[test]
    fn sizes_are_followed() {
        let (mut rng, mut chance) = (Rng::new(3), Rng::new(4));
        let mut miniature = Miniature::new();
        for (size, expected) in [(2000, 0.2), (3000, 0.3), (9000, 0.9), (4000, 0.4)] {
            let moment = &mut Moment { now: Nanos::ZERO, rng: &mut rng };
            miniature.on_period_end(moment, 0.0, size, SampleRate::new(0.25));
            // One period to warm up, one to measure.
            for period in 0..2 {
                if period == 1 {
                    let moment = &mut Moment { now: Nanos::ZERO, rng: &mut rng };
                    miniature.on_period_end(moment, 0.0, size, SampleRate::new(0.25));
                }
                for step in 0..200_000 {
                    let moment = &mut Moment { now: Nanos(step), rng: &mut rng };
                    miniature.on_request(moment, key(chance.below(10_000)), Access::Read);
                }
            }
            for (kind, ratio) in miniature.hit_ratios() {
                assert!((ratio - expected).abs() < 0.2, "{} at {size}: {ratio}", kind.name());
            }
        }
        let moment = &mut Moment { now: Nanos::ZERO, rng: &mut rng };
        miniature.on_period_end(moment, 0.0, 3, SampleRate::MAX);
        assert!(miniature.hit_ratios().is_empty());
    }
}
