//! Which blocks that reads missed deserve room at all; writes are kept without a question.
//!
//! How: [`SecondMiss`] admits a block at its second miss within a window, so what is touched once,
//! as in a scan, never displaces anything. Misses are remembered in two generations of a Bloom
//! filter, each for one miss per slot of the level; the older is cleared when the younger is full.
//! Invariant: a block that missed within the last `slots` misses is always remembered. Cost: four
//! bits looked at per miss; 4 bytes per slot in all. A newcomer is admitted by error once in some
//! hundreds of misses. Off by default: reuse that needs its first copy loses one hit per block.
//! Source: B. Maggs, R. Sitaraman, "Algorithmic nuggets in content delivery", 2015 (cache on second
//! hit); the ageing in generations is that of TinyLFU's doorkeeper (Einziger et al., 2017).

use crate::curve::Access;
use crate::hash::mix;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use layby_types::BlockKey;

/// Bits per remembered miss.
const BITS_PER_MISS: u64 = 16;
/// Bits set per remembered miss.
const PROBES: u64 = 4;

/// Decides whether a block that a read missed is brought into a level.
pub trait Admission: Send {
    /// `key` was missed by a read: whether it shall be admitted.
    fn on_miss(&mut self, key: BlockKey) -> bool;
    /// An access did not find `key`: whether it is kept. What is written always is, and is no miss.
    #[inline]
    fn keeps(&mut self, key: BlockKey, access: Access) -> bool {
        access == Access::Write || self.on_miss(key)
    }
    /// Bytes of memory held.
    fn memory_bytes(&self) -> usize;
}

/// A filter that a level may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmissionKind {
    /// Every block is admitted.
    #[default]
    All,
    /// A block is admitted when it misses again.
    SecondMiss,
}

impl AdmissionKind {
    /// All filters, for help texts and tests.
    pub const ALL: [AdmissionKind; 2] = [AdmissionKind::All, AdmissionKind::SecondMiss];

    /// The name in configuration, flags and charts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            AdmissionKind::All => "all",
            AdmissionKind::SecondMiss => "second-miss",
        }
    }

    /// The filter of that name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// A fresh filter for a level of `slots` slots.
    #[must_use]
    pub fn build(self, slots: u32) -> Box<dyn Admission> {
        match self {
            AdmissionKind::All => Box::new(AdmitAll),
            AdmissionKind::SecondMiss => Box::new(SecondMiss::new(slots)),
        }
    }
}

/// No filter.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmitAll;

impl Admission for AdmitAll {
    #[inline]
    fn on_miss(&mut self, _: BlockKey) -> bool {
        true
    }
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// See the file's header.
pub struct SecondMiss {
    /// The younger generation, then the older.
    generations: [Vec<u64>; 2],
    remembered: u32,
    remembered_max: u32,
}

impl SecondMiss {
    /// A filter for a level of `slots` slots.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        let words = (u64::from(slots) * BITS_PER_MISS).div_ceil(64).max(1) as usize;
        let generations = [vec![0; words], vec![0; words]];
        SecondMiss { generations, remembered: 0, remembered_max: slots.max(1) }
    }

    /// The word and the bit of each probe.
    fn probes(&self, key: BlockKey) -> impl Iterator<Item = (usize, u64)> + use<> {
        let bits = self.generations[0].len() as u64 * 64;
        let hash = mix(key.0);
        // Of the other half of the bits, so that the probes of two keys do not meet all at once.
        let step = mix(hash.rotate_left(32)) | 1;
        (0..PROBES).map(move |probe| {
            let wide = u128::from(hash.wrapping_add(step.wrapping_mul(probe))) * u128::from(bits);
            let bit = (wide >> 64) as u64;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    fn knows(&self, generation: usize, key: BlockKey) -> bool {
        let words = &self.generations[generation];
        self.probes(key).all(|(word, bit)| words[word] & bit != 0)
    }

    fn remember(&mut self, key: BlockKey) {
        if self.remembered == self.remembered_max {
            self.generations.swap(0, 1);
            self.generations[0].fill(0);
            self.remembered = 0;
        }
        for (word, bit) in self.probes(key) {
            self.generations[0][word] |= bit;
        }
        self.remembered += 1;
    }
}

impl Admission for SecondMiss {
    fn on_miss(&mut self, key: BlockKey) -> bool {
        let is_recent = self.knows(0, key);
        let is_known = is_recent || self.knows(1, key);
        if !is_recent {
            self.remember(key);
        }
        is_known
    }

    fn memory_bytes(&self) -> usize {
        self.generations.iter().map(|words| words.capacity() * 8).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lru;
    use crate::golden::{Replay, skewed};
    use layby_types::Rng;

    /// Goal: a scan is kept out, a second miss within the window is let in. Method: a scan of ten
    /// times the slots, then one window of blocks twice.
    #[test]
    fn scans_stay_out_and_reuse_comes_in() {
        let mut filter = SecondMiss::new(1000);
        let admitted = (0..10_000).filter(|key| filter.on_miss(BlockKey(*key))).count();
        assert!(admitted < 100, "{admitted} of a scan were admitted");
        let window = 1 << 20..(1 << 20) + 1000u64;
        let first = window.clone().filter(|key| filter.on_miss(BlockKey(*key))).count();
        assert!(first < 20, "{first} of a window were admitted at once");
        assert!(window.into_iter().all(|key| filter.on_miss(BlockKey(key))), "the window is kept");
        assert!(filter.memory_bytes() <= 4000);
    }

    /// Goal: what was never missed is admitted as seldom as the header says. Method: distinct
    /// blocks at random, in order and in strides, through levels of several sizes; the filter's
    /// share of errors by its own arithmetic is 0.3 %.
    #[test]
    fn newcomers_are_seldom_taken_for_known() {
        const BLOCKS: u64 = 100_000;
        let mut rng = Rng::new(5);
        let random: Vec<u64> = (0..BLOCKS).map(|_| rng.next_u64() >> 20).collect();
        let stride = |by: u64| (0..BLOCKS).map(|block| block * by).collect();
        for keys in [random, stride(1), stride(64), stride(1 << 20)] {
            for slots in [50, 1000, 30_000] {
                let mut filter = SecondMiss::new(slots);
                let admitted = keys.iter().filter(|key| filter.on_miss(BlockKey(**key))).count();
                assert!((50..500).contains(&admitted), "{admitted} with {slots} slots");
            }
        }
    }

    /// Goal: what was missed long ago is forgotten. Method: three windows of other misses between.
    #[test]
    fn old_misses_are_forgotten() {
        let mut filter = SecondMiss::new(1000);
        assert!(!filter.on_miss(BlockKey(7)));
        let between = (100..3100).filter(|key| filter.on_miss(BlockKey(*key))).count();
        assert!(between < 60, "{between} of 3,000 single misses were admitted");
        assert!(!filter.on_miss(BlockKey(7)));
        assert!(filter.on_miss(BlockKey(7)));
    }

    /// Goal: with scans LRU hits more behind the filter than without it, and by default nothing is
    /// filtered. Method: skewed references, every other one of a scan.
    #[test]
    fn the_filter_protects_lru_from_scans() {
        let hits = |kind: AdmissionKind| {
            let (mut rng, mut lru) = (Rng::new(3), Replay::new(Lru::new(200), 200));
            let mut filter = kind.build(200);
            let refer = |step: u64| {
                let is_scan = step % 2 == 1;
                let key = if is_scan { 1 << 30 | step } else { skewed(&mut rng, 1000) };
                (lru.holds(key) || filter.on_miss(BlockKey(key))) && lru.refer(key)
            };
            (0..40_000).map(refer).filter(|hit| *hit).count()
        };
        let (all, second) = (hits(AdmissionKind::default()), hits(AdmissionKind::SecondMiss));
        assert!(second > all + all / 10, "{second} with the filter, {all} without");
    }
}
