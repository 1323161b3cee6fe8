//! AR(p): a sample as a sum of the newest ones, each times a coefficient that is learnt online.
//!
//! How: recursive least squares with forgetting, on samples relative to a unit that follows their
//! size. It begins as the naive forecast (first coefficient one, the others nothing). What one
//! sample may teach is bounded, so that an outage teaches no more than any other surprise. In a gap
//! it feeds itself its own forecasts, and what it forecasts far ahead comes in the same way.
//! Invariant: the answer is held between nothing and one and a half times the greatest sample, at
//! every step, so that no choice of coefficients makes it grow. The covariance is bounded: where
//! too little happens to learn from, it begins anew.
//! Cost: the square of the order per interval; the order per interval ahead.
//! Not for: what repeats after more intervals than the order.

use super::{Ahead, Bandwidth, Forecast, Greatest};

/// Samples that are looked back on, at most.
const ORDER_MAX: usize = 8;
/// Coefficients: one per sample, and what is added to them all.
const TERMS_MAX: usize = ORDER_MAX + 1;
/// The covariance at first: nothing is sure yet. Diagonal.
const COVARIANCE_FIRST: f64 = 1.0;
/// The largest sum of its diagonal.
const COVARIANCE_MAX: f64 = 1e4;
/// Surprises, in mean absolute ones, beyond which a sample teaches no more.
const SURPRISE_MAX: f64 = 3.0;
/// Samples before that bound holds.
const SURPRISES_MIN: u32 = 20;
/// How fast the mean absolute surprise is forgotten.
const SURPRISE_WEIGHT: f64 = 0.02;
/// The unit follows when the greatest sample is so many times larger or smaller.
const UNIT_RATIO: f64 = 8.0;

/// How far back an AR looks, and how long it remembers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegressionParameters {
    /// Samples that are looked back on.
    pub order: u16,
    /// The weight that a sample keeps with each later one.
    pub forgetting: f64,
}

impl RegressionParameters {
    /// One sample back; a memory of ten.
    pub const MIN: RegressionParameters = RegressionParameters { order: 1, forgetting: 0.9 };
    /// Eight samples back; nothing is forgotten.
    pub const MAX: RegressionParameters =
        RegressionParameters { order: ORDER_MAX as u16, forgetting: 1.0 };
    /// Three back, as fast fading on top of slow asks for; a memory of five hundred.
    pub const DEFAULT: RegressionParameters = RegressionParameters { order: 3, forgetting: 0.998 };
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Regression {
    order: usize,
    forgetting: f64,
    /// Newest first, in bytes per second.
    lags: [f64; ORDER_MAX],
    /// First what is added, in units; then one per lag.
    coefficients: [f64; TERMS_MAX],
    covariance: [[f64; TERMS_MAX]; TERMS_MAX],
    /// Bytes per second that count as one.
    unit: f64,
    greatest: Greatest,
    /// Mean absolute surprise, in units.
    surprise: f64,
    samples: u32,
    gap: u32,
}

impl Regression {
    /// A naive forecast that will learn; parameters are brought into their bounds.
    #[must_use]
    pub fn new(parameters: RegressionParameters) -> Regression {
        let (min, max) = (RegressionParameters::MIN, RegressionParameters::MAX);
        let mut fresh = Regression {
            order: usize::from(parameters.order.clamp(min.order, max.order)),
            forgetting: parameters.forgetting.max(min.forgetting).min(max.forgetting),
            lags: [0.0; ORDER_MAX],
            coefficients: [0.0; TERMS_MAX],
            covariance: [[0.0; TERMS_MAX]; TERMS_MAX],
            unit: 1.0,
            greatest: Greatest::default(),
            surprise: 0.0,
            samples: 0,
            gap: 0,
        };
        fresh.begin();
        fresh
    }

    /// The naive forecast, and nothing sure.
    fn begin(&mut self) {
        self.coefficients = [0.0; TERMS_MAX];
        self.coefficients[1] = 1.0;
        self.doubt();
    }

    fn doubt(&mut self) {
        for (row, line) in self.covariance.iter_mut().enumerate() {
            *line = [0.0; TERMS_MAX];
            line[row] = COVARIANCE_FIRST;
        }
    }

    /// One and the lags in units: what the coefficients are multiplied with.
    fn regressors(&self, lags: &[f64; ORDER_MAX]) -> [f64; TERMS_MAX] {
        let mut terms = [0.0; TERMS_MAX];
        terms[0] = 1.0;
        for (term, lag) in terms[1..=self.order].iter_mut().zip(lags) {
            *term = lag / self.unit;
        }
        terms
    }

    /// What follows `lags`, in bytes per second.
    fn next(&self, lags: &[f64; ORDER_MAX]) -> f64 {
        if (self.samples as usize) < self.order {
            return lags[0];
        }
        let answer = dot(&self.coefficients, &self.regressors(lags)) * self.unit;
        self.greatest.hold(answer)
    }

    fn learn(&mut self, sample: f64) {
        let terms = self.regressors(&self.lags);
        let miss = sample / self.unit - dot(&self.coefficients, &terms);
        let most = SURPRISE_MAX * self.surprise;
        let bounded = self.samples > SURPRISES_MIN;
        let taught = if bounded { miss.max(-most).min(most) } else { miss };
        let newness = (1.0 / f64::from(self.samples)).max(SURPRISE_WEIGHT);
        self.surprise += newness * (miss.abs() - self.surprise);
        self.step(&terms, taught);
        let trace: f64 = (0..=self.order).map(|term| self.covariance[term][term]).sum();
        if trace.is_nan() || trace > COVARIANCE_MAX {
            self.doubt();
        }
        if !self.coefficients.iter().all(|one| one.abs() <= COVARIANCE_MAX) {
            self.begin();
        }
    }

    /// One step of recursive least squares.
    fn step(&mut self, terms: &[f64; TERMS_MAX], miss: f64) {
        let count = self.order + 1;
        let mut pulled = [0.0; TERMS_MAX];
        for (one, line) in pulled.iter_mut().zip(&self.covariance).take(count) {
            *one = dot(line, terms);
        }
        let weight = self.forgetting + dot(&pulled, terms);
        for row in 0..count {
            self.coefficients[row] += pulled[row] / weight * miss;
            for column in row..count {
                let less = pulled[row] * pulled[column] / weight;
                let left = (self.covariance[row][column] - less) / self.forgetting;
                (self.covariance[row][column], self.covariance[column][row]) = (left, left);
            }
        }
    }

    /// Keeps numbers near one, whatever the link's size.
    fn follow(&mut self) {
        let (unit, greatest) = (self.unit, self.greatest.0);
        let is_near = unit / UNIT_RATIO <= greatest && greatest <= unit * UNIT_RATIO;
        if is_near || greatest <= 0.0 {
            return;
        }
        self.unit = greatest;
        self.coefficients[0] *= unit / greatest;
        self.surprise *= unit / greatest;
        self.doubt();
    }

    fn push(&mut self, sample: f64) {
        self.lags.copy_within(..ORDER_MAX - 1, 1);
        self.lags[0] = sample;
    }
}

impl Forecast for Regression {
    fn observe(&mut self, sample: Option<Bandwidth>) {
        let Some(sample) = sample.map(Bandwidth::get) else {
            self.gap = self.gap.saturating_add(1);
            if self.samples > 0 {
                self.push(self.next(&self.lags));
            }
            return;
        };
        self.greatest.observe(sample);
        self.follow();
        // After a long gap all lags are its own forecasts, from which nothing is to be learnt.
        if self.samples as usize >= self.order && (self.gap as usize) < self.order {
            self.learn(sample);
        }
        self.samples = self.samples.saturating_add(1);
        self.gap = 0;
        self.push(sample);
    }
    fn forecast(&self, ahead: Ahead) -> Option<Bandwidth> {
        if self.samples == 0 {
            return None;
        }
        let mut lags = self.lags;
        for _ in 0..ahead.get() {
            let next = self.next(&lags);
            lags.copy_within(..ORDER_MAX - 1, 1);
            lags[0] = next;
        }
        Some(Bandwidth::new(lags[0]))
    }
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

fn dot(one: &[f64; TERMS_MAX], other: &[f64; TERMS_MAX]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}
