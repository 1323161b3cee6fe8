//! The naive forecast: what was last will be.
//!
//! How: the newest sample is the answer, however far ahead.
//! Invariant: a gap changes nothing. Cost: nothing.
//! Not for: noisy links, where it errs twice for every outlier; it is what others must beat.

use super::{Ahead, Bandwidth, Forecast};

/// See the file's header.
#[derive(Clone, Debug, Default)]
pub struct Last(Option<Bandwidth>);

impl Forecast for Last {
    fn observe(&mut self, sample: Option<Bandwidth>) {
        self.0 = sample.or(self.0);
    }
    fn forecast(&self, _: Ahead) -> Option<Bandwidth> {
        self.0
    }
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }
}
