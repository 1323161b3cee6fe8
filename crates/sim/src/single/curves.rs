//! Miss-ratio curves over batches: exact, or sampled by a seed.
//!
//! How: the curves are those of the policy room, which the node runs live; here only their choice,
//! and the end of a trace that has more blocks than they can tell apart.
//! Cost: see `layby_policy::curve`.

use super::references::{BATCH_REFERENCES_MAX, Batch, StreamError};
use layby_policy::curve::{
    BoundedCurve, Curve, ExactCurve, SampleRate, SampledCurve, Served, StackDistances,
};

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
    blocks_max: u32,
}

enum Measured {
    Exact(ExactCurve),
    Sampled(SampledCurve),
    Bounded(Box<BoundedCurve>),
}

impl CurveRun {
    /// Blocks that can be measured: those of one more batch can be told apart.
    pub const BLOCKS_MAX: u32 = StackDistances::BLOCKS_MAX - BATCH_REFERENCES_MAX as u32;

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
        CurveRun { measured, blocks_max: Self::BLOCKS_MAX }
    }

    /// The same with another bound on the blocks.
    #[cfg(test)]
    pub(super) fn within(self, blocks_max: u32) -> Self {
        CurveRun { blocks_max, ..self }
    }

    /// The next references.
    ///
    /// # Errors
    /// [`StreamError::Blocks`] when there are more blocks than can be measured; then it takes no
    /// more.
    pub fn on_batch(&mut self, batch: &Batch) -> Result<(), StreamError> {
        let references = || batch.keys().iter().zip(batch.accesses());
        match &mut self.measured {
            Measured::Exact(curve) => references().for_each(|(k, a)| curve.on_request(*k, *a)),
            Measured::Sampled(curve) => references().for_each(|(k, a)| curve.on_request(*k, *a)),
            Measured::Bounded(curve) => references().for_each(|(k, a)| curve.on_request(*k, *a)),
        }
        let most = self.blocks_max;
        if self.blocks() > most { Err(StreamError::Blocks { most }) } else { Ok(()) }
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
