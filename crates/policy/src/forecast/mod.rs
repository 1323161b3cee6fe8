//! What bandwidth a link will have next, from what it had: naive, EWMA, median, Holt-Winters, AR,
//! and a chooser that uses whichever has erred least of late.
//!
//! How: time is cut into intervals of equal length. A [`Forecast`] is told of each what the link
//! carried in it, or that nothing was measured, and answers what it expects of a later one. The
//! [`Chooser`] asks all the others all the time, scores each against what came, and answers with
//! the one whose discounted mean absolute error is the lowest, for near and far ahead apart.
//! Invariant: an answer is finite, never negative and never above [`Bandwidth::MAX`], whatever was
//! measured; it uses nothing but what was measured before; the same samples give the same answers
//! on every machine, since only sums, products and quotients are taken. State is bounded.
//! Cost: some hundred multiplications per interval for the chooser and all that it asks.
//! Not for: figures by time of day of a link that was never watched for a day; see
//! [`TrendParameters::season`].
//!
//! Sources: Wolski, Spring and Hayes, "The Network Weather Service", FGCS 15(5), 1999 (many cheap
//! forecasts, the one of least error is used; medians over sliding windows); Hyndman and
//! Athanasopoulos, "Forecasting: principles and practice" (naive, exponential smoothing, additive
//! Holt-Winters, damped trend); Gardner and McKenzie, Management Science 31(10), 1985 (damping);
//! Haykin, "Adaptive filter theory" (recursive least squares with forgetting); Hyndman and Koehler,
//! Int. J. Forecasting 22(4), 2006 (errors relative to naive's).

mod average;
mod chooser;
mod errors;
mod kind;
mod last;
mod median;
mod regression;
#[cfg(test)]
mod tests;
mod trend;

pub use average::{Average, AverageParameters};
pub use chooser::{Chooser, ChooserParameters, HORIZONS, Outlook};
pub use errors::{ErrorWindow, ForecastError};
pub use kind::ForecastKind;
pub use last::Last;
pub use median::{Median, MedianParameters};
pub use regression::{Regression, RegressionParameters};
pub use trend::{Season, Trend, TrendParameters};

use layby_types::Nanos;

/// Bytes per second: finite, from nothing to [`Bandwidth::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Bandwidth(f64);

impl Bandwidth {
    /// Nothing passes.
    pub const ZERO: Bandwidth = Bandwidth(0.0);
    /// A petabyte per second, more than any link carries.
    pub const MAX: Bandwidth = Bandwidth(1e15);

    /// So many bytes per second; what is out of range or no number becomes the nearest that is.
    #[must_use]
    pub const fn new(bytes_per_second: f64) -> Bandwidth {
        // Not clamp(), which hands a NaN through.
        if bytes_per_second > 0.0 {
            let above = bytes_per_second > Self::MAX.0;
            return if above { Self::MAX } else { Bandwidth(bytes_per_second) };
        }
        Self::ZERO
    }

    /// What `bytes` in `span` amount to; nothing where the span is.
    #[must_use]
    pub fn of(bytes: u64, span: Nanos) -> Bandwidth {
        if span == Nanos::ZERO {
            return Bandwidth::ZERO;
        }
        Bandwidth::new(bytes as f64 / span.as_secs_f64())
    }

    /// Bytes per second.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Whole bytes per second, rounded down.
    #[must_use]
    pub const fn whole(self) -> u64 {
        self.0 as u64
    }

    /// So many times as much.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Bandwidth {
        Bandwidth::new(self.0 * factor)
    }
}

/// How many intervals ahead: 1 is the one that begins now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ahead(u16);

impl Ahead {
    /// The interval that begins now.
    pub const NEXT: Ahead = Ahead(1);
    /// The nearest.
    pub const MIN: u16 = 1;
    /// The farthest; who asks beyond it gets this one.
    pub const MAX: u16 = 64;

    /// So many intervals, brought into range.
    #[must_use]
    pub fn new(intervals: u64) -> Ahead {
        let most = u64::from(Self::MAX);
        Ahead(intervals.clamp(u64::from(Self::MIN), most) as u16)
    }

    /// So many intervals.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Forecasts a link's bandwidth.
pub trait Forecast: Send {
    /// An interval ended in which the link carried `sample`; `None` where nothing was measured,
    /// since nothing was sent. A zero is a measurement: it was tried, and nothing passed.
    fn observe(&mut self, sample: Option<Bandwidth>);

    /// What is expected of the interval so far ahead; `None` until something was measured.
    fn forecast(&self, ahead: Ahead) -> Option<Bandwidth>;

    /// What is expected on average of as many intervals, from the next one on. Those beyond
    /// [`Ahead::MAX`] are taken to be like that one.
    fn mean(&self, intervals: u64) -> Option<Bandwidth> {
        let intervals = intervals.max(1);
        let near = intervals.min(u64::from(Ahead::MAX));
        let mut sum = 0.0;
        for ahead in 1..=near {
            sum += self.forecast(Ahead::new(ahead))?.get();
        }
        let last = self.forecast(Ahead::new(near))?.get();
        let beyond = (intervals - near) as f64 * last;
        Some(Bandwidth::new((sum + beyond) / intervals as f64))
    }

    /// Bytes of state, which never grow.
    fn memory_bytes(&self) -> usize;
}

/// The greatest sample, fading slowly: what an extrapolation is held to.
#[derive(Clone, Copy, Debug, Default)]
struct Greatest(f64);

impl Greatest {
    /// The part by which it fades in an interval.
    const FADE: f64 = 0.001;
    /// Times itself that an answer may reach.
    const OVERSHOOT: f64 = 1.5;

    fn observe(&mut self, sample: f64) {
        self.0 = (self.0 * (1.0 - Self::FADE)).max(sample);
    }
    fn hold(self, answer: f64) -> f64 {
        answer.max(0.0).min(self.0 * Self::OVERSHOOT)
    }
}

/// `base` to the power of a small whole number, by multiplication alone.
fn power(base: f64, exponent: u32) -> f64 {
    (0..exponent).fold(1.0, |product, _| product * base)
}
