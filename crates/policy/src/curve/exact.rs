//! The exact curve, and ETICA's policy-optimised distance.
//!
//! How: stack distances of every block, with a bin per distance. What a level serves decides which
//! uses count ([`Served`]): ETICA sizes each level by the distances that its write policy lets it
//! serve, and not by reuse that it would pass on.
//! Cost: see `stack`; memory grows with the blocks and is not bounded. Not for a running node.
//! Source of the distance: Ahmadian et al., "ETICA", IEEE TPDS 2021; PADSA's baseline.

use super::Access;
use super::histogram::Histogram;
use super::shape::Curve;
use super::stack::StackDistances;
use layby_types::BlockKey;

/// What a level serves and keeps, by its write policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Served {
    /// Reads and writes, and it keeps both: the plain stack distance.
    #[default]
    All,
    /// A read-only level: keeps what is read; a write passes by and makes its copy invalid, so it
    /// ends the block's chain of reuse.
    Reads,
    /// A write-back level that only writes fill: a read is served where the block was written here
    /// and is still here, and misses without being kept.
    ///
    /// Such a level is no stack algorithm: a chain of uses counts by its longest distance, since
    /// reads beyond a break find nothing; that other blocks' broken chains take no room is
    /// neglected, so the distance errs to the long side.
    Writes,
}

/// A use of `key` under `served`: the distance at which the level serves it, if it ever does.
#[inline]
pub(crate) fn distance(
    stack: &mut StackDistances,
    served: Served,
    key: BlockKey,
    access: Access,
) -> Option<u32> {
    match (served, access) {
        (Served::All, _) | (Served::Reads, Access::Read) => stack.on_use(key),
        (Served::Reads, Access::Write) => {
            stack.forget(key);
            None
        }
        (Served::Writes, Access::Read) => stack.on_use_again(key, |chain, distance| {
            *chain = distance.max(*chain);
            *chain
        }),
        (Served::Writes, Access::Write) => {
            let again =
                stack.on_use_again(key, |chain, distance| core::mem::take(chain).max(distance));
            if again.is_none() {
                stack.add(key);
            }
            again
        }
    }
}

/// See the file's header.
pub struct ExactCurve {
    stack: StackDistances,
    histogram: Histogram,
    requests: [f64; 2],
    served: Served,
}

impl Default for ExactCurve {
    fn default() -> Self {
        ExactCurve::new(Served::All)
    }
}

impl ExactCurve {
    /// No request yet.
    #[must_use]
    pub fn new(served: Served) -> Self {
        let (stack, histogram) = (StackDistances::new(), Histogram::fine());
        ExactCurve { stack, histogram, requests: [0.0; 2], served }
    }

    /// A request for one block.
    #[inline]
    pub fn on_request(&mut self, key: BlockKey, access: Access) {
        self.requests[access as usize] += 1.0;
        let distance = distance(&mut self.stack, self.served, key, access);
        self.histogram.count(access, distance.map(u64::from), 1.0);
    }

    /// A period ends: what came before counts `keep` times as much from now on, from 0 to 1.
    pub fn on_period_end(&mut self, keep: f64) {
        assert!((0.0..=1.0).contains(&keep), "the past cannot grow");
        self.histogram.decay(keep);
        self.requests = self.requests.map(|requests| requests * keep);
    }

    /// Distinct blocks seen.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.stack.len()
    }

    /// The curve so far.
    #[must_use]
    pub fn curve(&self) -> Curve {
        self.histogram.curve(self.requests, 1.0)
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.stack.memory_bytes() + self.histogram.memory_bytes()
    }
}
