//! Exponentially weighted moving average.
//!
//! How: each sample pulls the average towards itself by a fixed part of the distance; the first
//! ones by more, so that the average begins as a plain mean. After a gap of some intervals the old
//! value has lost as much weight as if they had been measured.
//! Invariant: the average lies between the least and the greatest sample. Cost: a multiplication
//! per interval, and one per interval of a gap up to [`GAP_MAX`].
//! Not for: trends, behind which it lags.

use super::{Ahead, Bandwidth, Forecast, power};

/// Intervals of a gap that count; after more the old value has next to no weight in any case.
const GAP_MAX: u32 = 64;

/// How fast an average forgets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AverageParameters {
    /// The part of the distance by which a sample pulls.
    pub weight: f64,
}

impl AverageParameters {
    /// The longest memory: some thousand intervals.
    pub const MIN: AverageParameters = AverageParameters { weight: 0.001 };
    /// No memory, which is the naive forecast.
    pub const MAX: AverageParameters = AverageParameters { weight: 1.0 };
    /// A memory of a few intervals.
    pub const DEFAULT: AverageParameters = AverageParameters { weight: 0.4 };
    /// A memory of some ten intervals.
    pub const SLOW: AverageParameters = AverageParameters { weight: 0.08 };
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Average {
    weight: f64,
    value: f64,
    samples: u32,
    gap: u32,
}

impl Average {
    /// An average of nothing yet; the weight is brought into its bounds.
    #[must_use]
    pub fn new(parameters: AverageParameters) -> Average {
        let (least, most) = (AverageParameters::MIN.weight, AverageParameters::MAX.weight);
        Average::unbounded(parameters.weight.max(least).min(most))
    }

    /// An average of a weight that its caller vouches for.
    pub(super) fn unbounded(weight: f64) -> Average {
        Average { weight, value: 0.0, samples: 0, gap: 0 }
    }
}

impl Forecast for Average {
    fn observe(&mut self, sample: Option<Bandwidth>) {
        let Some(sample) = sample else {
            self.gap = (self.gap + 1).min(GAP_MAX);
            return;
        };
        self.samples = self.samples.saturating_add(1);
        let steady = 1.0 - power(1.0 - self.weight, self.gap + 1);
        let weight = steady.max(1.0 / f64::from(self.samples));
        self.value += weight * (sample.get() - self.value);
        self.gap = 0;
    }
    fn forecast(&self, _: Ahead) -> Option<Bandwidth> {
        (self.samples > 0).then(|| Bandwidth::new(self.value))
    }
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }
}
