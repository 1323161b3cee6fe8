//! Miss-ratio curves over batches: exact, or sampled by a seed.
//!
//! How: the curves are those of the policy room, which the node runs live; here only their choice.
//! Cost: see `layby_policy::curve`.

use super::references::Batch;
use layby_policy::curve::{BoundedCurve, Curve, ExactCurve, SampleRate, SampledCurve, Served};

/// How a curve is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CurveKind {
    /// Every block.
    Exact,
    /// A fixed part of the blocks, chosen by a seed.
    Sampled {
        /// Which part.
        rate: SampleRate,
        /// Same seed, same blocks.
        seed: u64,
    },
    /// As many blocks as a bound allows, chosen by a seed.
    Bounded {
        /// Blocks at once.
        blocks_max: u32,
        /// Same seed, same blocks.
        seed: u64,
    },
}

/// See the file's header.
pub struct CurveRun {
    measured: Measured,
}

enum Measured {
    Exact(ExactCurve),
    Sampled(SampledCurve),
    Bounded(Box<BoundedCurve>),
}

impl CurveRun {
    /// No reference yet.
    #[must_use]
    pub fn new(kind: CurveKind) -> Self {
        let measured = match kind {
            CurveKind::Exact => Measured::Exact(ExactCurve::new(Served::All)),
            CurveKind::Sampled { rate, seed } => {
                Measured::Sampled(SampledCurve::new(rate, Served::All).with_seed(seed))
            }
            CurveKind::Bounded { blocks_max, seed } => {
                let curve = BoundedCurve::new(blocks_max, u64::MAX, Served::All);
                Measured::Bounded(Box::new(curve.with_seed(seed)))
            }
        };
        CurveRun { measured }
    }

    /// The next references.
    pub fn on_batch(&mut self, batch: &Batch) {
        let references = || batch.keys().iter().zip(batch.accesses());
        match &mut self.measured {
            Measured::Exact(curve) => references().for_each(|(k, a)| curve.on_request(*k, *a)),
            Measured::Sampled(curve) => references().for_each(|(k, a)| curve.on_request(*k, *a)),
            Measured::Bounded(curve) => references().for_each(|(k, a)| curve.on_request(*k, *a)),
        }
    }

    /// The curve so far.
    #[must_use]
    pub fn curve(&self) -> Curve {
        match &self.measured {
            Measured::Exact(curve) => curve.curve(),
            Measured::Sampled(curve) => curve.curve(),
            Measured::Bounded(curve) => curve.curve(),
        }
    }

    /// Blocks measured.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        match &self.measured {
            Measured::Exact(curve) => curve.blocks(),
            Measured::Sampled(curve) => curve.blocks_sampled(),
            Measured::Bounded(curve) => curve.blocks_sampled(),
        }
    }

    /// The part of the blocks that is measured now.
    #[must_use]
    pub fn rate(&self) -> SampleRate {
        match &self.measured {
            Measured::Exact(_) => SampleRate::MAX,
            Measured::Sampled(curve) => curve.rate(),
            Measured::Bounded(curve) => curve.rate(),
        }
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match &self.measured {
            Measured::Exact(curve) => curve.memory_bytes(),
            Measured::Sampled(curve) => curve.memory_bytes(),
            Measured::Bounded(curve) => curve.memory_bytes(),
        }
    }
}
