//! The curve of a fixed part of the blocks: SHARDS at a fixed rate.
//!
//! How: a block belongs to the sample by its hash, so all its uses do or none; distances among the
//! sampled blocks stand for distances `1/rate` times as long. The requests that the sample has too
//! few or too many of are credited to the shortest distance (SHARDS-adj).
//! Invariant: of a block, every request is measured or none. Cost: a hash and a comparison for a
//! request outside the sample; memory grows with the sampled blocks. Not for small footprints: a
//! sample of under a few thousand blocks is noisy.
//! Source: Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015.

use super::Access;
use super::exact::{Served, distance};
use super::histogram::Histogram;
use super::shape::Curve;
use super::stack::StackDistances;
use crate::hash::mix;
use layby_types::BlockKey;

/// The part of the blocks in the sample, in units of 2^-32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SampleRate(u64);

impl SampleRate {
    /// The smallest rate, one block in 2^32.
    pub const MIN: SampleRate = SampleRate(1);
    /// Every block.
    pub const MAX: SampleRate = SampleRate(1 << 32);
    /// One block in a hundred.
    pub const DEFAULT: SampleRate = SampleRate((1 << 32) / 100);

    /// The rate nearest to `part`, a number from 0 to 1.
    #[must_use]
    pub fn new(part: f64) -> Self {
        let units = (part * (1u64 << 32) as f64 + 0.5) as u64;
        SampleRate(units.clamp(Self::MIN.0, Self::MAX.0))
    }

    /// The part of the blocks, from 0 to 1.
    #[must_use]
    pub fn part(self) -> f64 {
        self.0 as f64 / (1u64 << 32) as f64
    }

    /// A rate `numerator / denominator` times as high, within the limits.
    pub(crate) fn times(self, numerator: u64, denominator: u64) -> Self {
        SampleRate((self.0 * numerator / denominator).clamp(Self::MIN.0, Self::MAX.0))
    }

    /// Whether `key` belongs to the sample. A lower rate's sample is part of a higher rate's.
    #[inline]
    #[must_use]
    pub fn takes(self, key: BlockKey) -> bool {
        self.takes_salted(key, 0)
    }

    /// Whether `key` belongs to the sample that a seed's `salt` chooses.
    #[inline]
    pub(crate) fn takes_salted(self, key: BlockKey, salt: u64) -> bool {
        // Not the hash of the tables: sampled blocks would crowd in a part of them.
        let first = (key.0 ^ salt).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let hash = (first ^ (first >> 32)).wrapping_mul(0xa076_1d64_78bd_642f);
        hash >> 32 < self.0
    }
}

/// What a seed does to keys before they are hashed; nothing for zero.
pub(crate) fn salt(seed: u64) -> u64 {
    if seed == 0 { 0 } else { mix(seed) }
}

/// See the file's header.
pub struct SampledCurve {
    rate: SampleRate,
    salt: u64,
    requests: [u64; 2],
    sample: Sample,
}

struct Sample {
    stack: StackDistances,
    histogram: Histogram,
    weight: f64,
    served: Served,
    /// Requests of earlier periods, as much as they still count.
    requests_before: [f64; 2],
}

impl SampledCurve {
    /// No request yet.
    #[must_use]
    pub fn new(rate: SampleRate, served: Served) -> Self {
        let (stack, histogram) = (StackDistances::new(), Histogram::fine());
        let weight = 1.0 / rate.part();
        let sample = Sample { stack, histogram, weight, served, requests_before: [0.0; 2] };
        SampledCurve { rate, salt: 0, requests: [0; 2], sample }
    }

    /// Chooses other blocks for each `seed`; zero chooses as [`SampledCurve::new`] does.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        assert!(self.requests == [0; 2], "blocks are chosen before the first request");
        self.salt = salt(seed);
        self
    }

    /// A request for one block.
    #[inline]
    pub fn on_request(&mut self, key: BlockKey, access: Access) {
        self.requests[access as usize] += 1;
        if self.rate.takes_salted(key, self.salt) {
            self.sample.on_request(key, access);
        }
    }

    fn requests(&self) -> [f64; 2] {
        [0, 1].map(|side: usize| self.requests[side] as f64 + self.sample.requests_before[side])
    }

    /// A period ends: what came before counts `keep` times as much from now on, from 0 to 1.
    pub fn on_period_end(&mut self, keep: f64) {
        assert!((0.0..=1.0).contains(&keep), "the past cannot grow");
        self.sample.histogram.decay(keep);
        self.sample.requests_before = self.requests().map(|requests| requests * keep);
        self.requests = [0; 2];
    }

    /// The part of the blocks in the sample.
    #[must_use]
    pub fn rate(&self) -> SampleRate {
        self.rate
    }

    /// Blocks in the sample.
    #[must_use]
    pub fn blocks_sampled(&self) -> u32 {
        self.sample.stack.len()
    }

    /// The curve so far.
    #[must_use]
    pub fn curve(&self) -> Curve {
        self.sample.histogram.curve(self.requests(), self.sample.weight)
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.sample.stack.memory_bytes() + self.sample.histogram.memory_bytes()
    }
}

impl Sample {
    #[cold]
    fn on_request(&mut self, key: BlockKey, access: Access) {
        let distance = distance(&mut self.stack, self.served, key, access);
        self.histogram.count(access, distance.map(u64::from), self.weight);
    }
}
