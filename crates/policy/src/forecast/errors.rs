//! How far forecasts were off, with an eye on the recent past.
//!
//! How: sums of absolute errors, of errors with their sign and of what came, each discounted by
//! the same factor per scored interval. Mean absolute error is the first sum over the weights.
//! Invariant: an error of a window of `n` weighs half as much after `0.7 n` further ones, about.
//! Cost: four multiplications per score. Not for: tails; these are means.

use super::Bandwidth;

/// How long errors are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorWindow {
    /// Scored intervals whose weights add up to all that is remembered.
    pub intervals: u32,
}

impl ErrorWindow {
    /// The shortest.
    pub const MIN: ErrorWindow = ErrorWindow { intervals: 8 };
    /// The longest.
    pub const MAX: ErrorWindow = ErrorWindow { intervals: 100_000 };
    /// Long enough that chance does not choose, short enough to follow a link that changes.
    pub const DEFAULT: ErrorWindow = ErrorWindow { intervals: 300 };

    fn keep(self) -> f64 {
        let intervals = self.intervals.clamp(Self::MIN.intervals, Self::MAX.intervals);
        1.0 - 1.0 / f64::from(intervals)
    }
}

/// How far off a forecast was of late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForecastError {
    /// Mean absolute error, in bytes per second.
    pub mean_absolute: f64,
    /// The same, as a part of the mean of what came; nothing where nothing came.
    pub normalised: f64,
    /// Mean error with its sign, in bytes per second: above nothing where too much was expected.
    pub bias: f64,
    /// Scored intervals, ever.
    pub scored: u64,
}

/// Discounted sums of one forecast's errors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Errors {
    absolute: f64,
    signed: f64,
    came: f64,
    weight: f64,
    scored: u64,
}

impl Errors {
    pub(super) fn score(&mut self, window: ErrorWindow, expected: Bandwidth, came: Bandwidth) {
        let (keep, miss) = (window.keep(), expected.get() - came.get());
        self.absolute = self.absolute * keep + miss.abs();
        self.signed = self.signed * keep + miss;
        self.came = self.came * keep + came.get();
        self.weight = self.weight * keep + 1.0;
        self.scored = self.scored.saturating_add(1);
    }

    /// None until something was scored.
    pub(super) fn mean_absolute(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.absolute / self.weight)
    }

    pub(super) fn shown(&self) -> ForecastError {
        let weight = self.weight.max(1.0);
        let normalised = if self.came > 0.0 { self.absolute / self.came } else { 0.0 };
        ForecastError {
            mean_absolute: self.absolute / weight,
            normalised,
            bias: self.signed / weight,
            scored: self.scored,
        }
    }
}
