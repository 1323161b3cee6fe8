//! The curve of as many blocks as a bounded memory holds: SHARDS of a fixed size, for a live node.
//!
//! How: as `sampled`, at a rate that falls by an eighth whenever the sample would exceed its
//! bound, which drops the blocks of the highest hashes. A request counts with the weight of the
//! rate at its time. At the end of a period, blocks deeper than any cache reaches are dropped, and
//! the rate rises again while the sample is less than half full, so that a working set that moves
//! does not wear the rate out; blocks that then join count as first uses once.
//! Invariant: [`BoundedCurve::MEMORY_BYTES_MAX`] is never exceeded. Cost: a hash and a comparison
//! for a request outside the sample. Distances are counted to within 3 %.
//! Source: Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015 (there the
//! highest hash goes alone, from a heap; here an eighth of the sample goes at once, without one).

use super::Access;
use super::exact::{Served, distance};
use super::histogram::Histogram;
use super::sampled::{SampleRate, salt};
use super::shape::Curve;
use super::stack::StackDistances;
use layby_types::BlockKey;

/// See the file's header.
pub struct BoundedCurve {
    rate: SampleRate,
    requests: [u64; 2],
    sample: Sample,
}

struct Sample {
    stack: StackDistances,
    histogram: Histogram,
    salt: u64,
    blocks_max: u32,
    /// No cache of interest is larger, in blocks.
    size_max: u64,
    served: Served,
    requests_before: [f64; 2],
    /// The rate does not rise above this.
    rate_max: SampleRate,
}

impl BoundedCurve {
    /// Bytes that a curve may take, everything included.
    pub const MEMORY_BYTES_MAX: usize = 64 << 10;
    /// The fewest blocks of a sample.
    pub const SAMPLE_BLOCKS_MIN: u32 = 64;
    /// The most blocks of a sample: more would not fit in the memory.
    pub const SAMPLE_BLOCKS_MAX: u32 = 1638;
    /// The blocks of a sample where nobody says otherwise.
    pub const SAMPLE_BLOCKS_DEFAULT: u32 = Self::SAMPLE_BLOCKS_MAX;

    /// No request yet. No cache larger than `size_max` blocks will be asked about.
    #[must_use]
    pub fn new(blocks_max: u32, size_max: u64, served: Served) -> Self {
        let range = Self::SAMPLE_BLOCKS_MIN..=Self::SAMPLE_BLOCKS_MAX;
        assert!(range.contains(&blocks_max), "a sample of {blocks_max} blocks, not in {range:?}");
        let (stack, histogram) = (StackDistances::bounded(blocks_max), Histogram::coarse());
        let (requests_before, salt) = ([0.0; 2], 0);
        let sample = Sample {
            stack,
            histogram,
            salt,
            blocks_max,
            size_max,
            served,
            requests_before,
            rate_max: SampleRate::MAX,
        };
        let curve = BoundedCurve { rate: SampleRate::MAX, requests: [0; 2], sample };
        assert!(curve.memory_bytes() <= Self::MEMORY_BYTES_MAX, "{} bytes", curve.memory_bytes());
        curve
    }

    /// Chooses other blocks for each `seed`; zero chooses as [`BoundedCurve::new`] does.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        assert!(self.requests == [0; 2], "blocks are chosen before the first request");
        self.sample.salt = salt(seed);
        self
    }

    /// A request for one block.
    #[inline]
    pub fn on_request(&mut self, key: BlockKey, access: Access) {
        self.requests[access as usize] += 1;
        if self.rate.takes_salted(key, self.sample.salt) {
            self.rate = self.sample.on_request(self.rate, key, access);
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
        self.rate = self.sample.renew(self.rate);
    }

    /// Keeps the rate at `rate_max` or below from now on, for a host whose time is short.
    pub fn limit_rate(&mut self, rate_max: SampleRate) {
        self.sample.rate_max = rate_max;
        while self.rate > rate_max {
            self.rate = self.sample.drop_eighth(self.rate);
        }
    }

    /// The part of the blocks in the sample now.
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
        self.sample.histogram.curve(self.requests(), 1.0)
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.sample.stack.memory_bytes() + self.sample.histogram.memory_bytes()
    }
}

impl Sample {
    /// Measures a request; the rate after it.
    #[cold]
    fn on_request(&mut self, rate: SampleRate, key: BlockKey, access: Access) -> SampleRate {
        let part = rate.part();
        let distance = distance(&mut self.stack, self.served, key, access);
        let scaled = distance.map(|d| (f64::from(d) / part + 0.5) as u64);
        self.histogram.count(access, scaled, 1.0 / part);
        if self.stack.depth() >= self.blocks_max { self.lower(rate, key) } else { rate }
    }

    /// Drops blocks until there is room for another one; `newest` was added last.
    fn lower(&mut self, rate: SampleRate, newest: BlockKey) -> SampleRate {
        let mut rate = rate;
        while self.stack.depth() >= self.blocks_max && rate > SampleRate::MIN {
            rate = self.drop_eighth(rate);
        }
        if self.stack.depth() >= self.blocks_max {
            // Hashes spread well before that, unless a trace was made so that they do not: a rate
            // that cannot fall any more makes no room. Each use of the block counts as its first.
            self.stack.forget_where(|key, _| key == newest, None);
        }
        assert!(self.stack.depth() < self.blocks_max, "there is room for another block");
        rate
    }

    /// The blocks of the highest hashes leave the sample; the rate without them.
    fn drop_eighth(&mut self, rate: SampleRate) -> SampleRate {
        let (rate, salt) = (rate.times(7, 8), self.salt);
        self.stack.forget_where(|key, _| !rate.takes_salted(key, salt), Some(8));
        rate
    }

    fn renew(&mut self, rate: SampleRate) -> SampleRate {
        let deepest = (self.size_max as f64 * rate.part()) as u32;
        self.stack.forget_where(|_, depth| depth > deepest, None);
        let is_low = self.stack.depth() < self.blocks_max / 2 && rate < self.rate_max;
        if is_low { rate.times(2, 1).min(self.rate_max) } else { rate }
    }
}
