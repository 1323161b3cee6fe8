//! Miss-ratio curves: what an LRU cache of any size would have missed.
//!
//! How: a *stack distance* is the number of distinct blocks used between two uses of a block; an
//! LRU cache of n blocks hits exactly the distances below n. [`ExactCurve`] measures every block,
//! [`SampledCurve`] a fixed part of the blocks, [`BoundedCurve`] as many as fit in 64 KiB. Each
//! counts reads and writes apart and makes a [`Curve`].
//! Invariant: a curve's hits never fall as the size grows, and never exceed the requests.
//! Cost: see each. Not for other policies than LRU: replay those.
//! Sources: Mattson et al. 1970 (stack distances); Waldspurger et al., "Efficient MRC construction
//! with SHARDS", FAST 2015.

mod bounded;
mod exact;
mod histogram;
mod hull;
mod marks;
mod sampled;
mod shape;
mod stack;
mod table;

#[cfg(test)]
mod tests;

pub use bounded::BoundedCurve;
pub use exact::{ExactCurve, Served};
pub use hull::{Hull, Vertex};
pub use sampled::{SampleRate, SampledCurve};
pub use shape::{Curve, Difference, Point};
pub use stack::StackDistances;

/// What a request does to its block, as a curve counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read = 0,
    /// It is written.
    Write = 1,
}

/// Which requests a figure is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counted {
    /// Reads alone, as in PADSA's objective.
    Reads,
    /// Writes alone.
    Writes,
    /// Reads and writes.
    #[default]
    Both,
}

impl Counted {
    /// The part of a pair (reads, writes) that counts.
    pub(crate) fn of(self, pair: [f64; 2]) -> f64 {
        match self {
            Counted::Reads => pair[0],
            Counted::Writes => pair[1],
            Counted::Both => pair[0] + pair[1],
        }
    }
}
