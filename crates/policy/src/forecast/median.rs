//! The median of the newest samples.
//!
//! How: a ring of samples, sorted anew when asked.
//! Invariant: the answer is a sample, or lies between two. Cost: sorting a handful of numbers.
//! Not for: trends. It is for links that stall for an interval and go on as before: one outlier
//! moves it by nothing.
//! Source: the Network Weather Service's median windows.

use super::{Ahead, Bandwidth, Forecast};

/// Samples at most.
const WINDOW_MAX: usize = 31;

/// How many samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MedianParameters {
    /// Samples that are looked at.
    pub window: u16,
}

impl MedianParameters {
    /// The fewest that have a middle.
    pub const MIN: MedianParameters = MedianParameters { window: 3 };
    /// The most.
    pub const MAX: MedianParameters = MedianParameters { window: WINDOW_MAX as u16 };
    /// Two outliers move it by little.
    pub const DEFAULT: MedianParameters = MedianParameters { window: 5 };
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Median {
    window: usize,
    ring: [f64; WINDOW_MAX],
    samples: usize,
    next: usize,
}

impl Median {
    /// A median of nothing yet; the window is brought into its bounds.
    #[must_use]
    pub fn new(parameters: MedianParameters) -> Median {
        let bounds = (MedianParameters::MIN.window, MedianParameters::MAX.window);
        let window = usize::from(parameters.window.clamp(bounds.0, bounds.1));
        Median { window, ring: [0.0; WINDOW_MAX], samples: 0, next: 0 }
    }
}

impl Forecast for Median {
    fn observe(&mut self, sample: Option<Bandwidth>) {
        let Some(sample) = sample else { return };
        self.ring[self.next] = sample.get();
        self.next = (self.next + 1) % self.window;
        self.samples = (self.samples + 1).min(self.window);
    }
    fn forecast(&self, _: Ahead) -> Option<Bandwidth> {
        let mut sorted = self.ring;
        let sorted = &mut sorted[..self.samples];
        sorted.sort_unstable_by(f64::total_cmp);
        let (low, high) = (sorted.get(self.samples.wrapping_sub(1) / 2)?, sorted[self.samples / 2]);
        Some(Bandwidth::new(low.midpoint(high)))
    }
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }
}
