//! Holt-Winters: level, damped trend and, if asked for, an additive season.
//!
//! How: three averages: of the level, of its change, and of what each part of the season lies
//! above or below. A season of many intervals is cut into a few parts, so that a day of seconds
//! takes some ninety numbers. The trend is damped: far ahead it adds up to a bound.
//! Invariant: the answer is held between nothing and one and a half times the greatest sample.
//! Cost: some ten multiplications per interval, and one per interval ahead.
//! Not for: links that jump, whose jumps it takes for trends.

use super::{Ahead, Bandwidth, Forecast, Greatest};

/// Parts of a season at most.
const PARTS_MAX: usize = 96;

/// A season: how long, in how many parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Season {
    /// Intervals after which it begins again.
    pub intervals: u32,
    /// Equal parts into which it is cut.
    pub parts: u16,
}

impl Season {
    /// The shortest.
    pub const MIN: Season = Season { intervals: 2, parts: 2 };
    /// The longest: a week of seconds.
    pub const MAX: Season = Season { intervals: 604_800, parts: PARTS_MAX as u16 };
    /// A day of seconds, in quarters of an hour.
    pub const DEFAULT: Season = Season { intervals: 86_400, parts: 96 };

    fn in_bounds(self) -> Season {
        let intervals = self.intervals.clamp(Self::MIN.intervals, Self::MAX.intervals);
        let most = u32::from(Self::MAX.parts).min(intervals) as u16;
        Season { intervals, parts: self.parts.clamp(Self::MIN.parts, most) }
    }
}

/// How fast each part is learnt; each weight from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrendParameters {
    /// Of the level.
    pub level: f64,
    /// Of the trend.
    pub trend: f64,
    /// What is left of the trend with each interval ahead.
    pub damping: f64,
    /// Of the season, per sample.
    pub season_weight: f64,
    /// The season, where there is one.
    pub season: Option<Season>,
}

impl TrendParameters {
    /// Nothing is learnt fast.
    pub const MIN: TrendParameters = TrendParameters {
        level: 0.001,
        trend: 0.0,
        damping: 0.0,
        season_weight: 0.0,
        season: None,
    };
    /// Everything is forgotten at once.
    pub const MAX: TrendParameters = TrendParameters {
        level: 1.0,
        trend: 1.0,
        damping: 1.0,
        season_weight: 1.0,
        season: Some(Season::MAX),
    };
    /// A level of a few intervals, a trend of some ten, halved after seven; no season.
    pub const DEFAULT: TrendParameters =
        TrendParameters { level: 0.4, trend: 0.1, damping: 0.9, season_weight: 0.02, season: None };

    fn in_bounds(self) -> TrendParameters {
        let within = |value: f64, least: f64, most: f64| value.max(least).min(most);
        let (min, max) = (Self::MIN, Self::MAX);
        TrendParameters {
            level: within(self.level, min.level, max.level),
            trend: within(self.trend, min.trend, max.trend),
            damping: within(self.damping, min.damping, max.damping),
            season_weight: within(self.season_weight, min.season_weight, max.season_weight),
            season: self.season.map(Season::in_bounds),
        }
    }
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Trend {
    parameters: TrendParameters,
    level: f64,
    trend: f64,
    parts: [f64; PARTS_MAX],
    /// Intervals since the season began.
    phase: u32,
    greatest: Greatest,
    is_begun: bool,
}

impl Trend {
    /// Nothing is known yet; parameters are brought into their bounds.
    #[must_use]
    pub fn new(parameters: TrendParameters) -> Trend {
        let parameters = parameters.in_bounds();
        Trend {
            parameters,
            level: 0.0,
            trend: 0.0,
            parts: [0.0; PARTS_MAX],
            phase: 0,
            greatest: Greatest::default(),
            is_begun: false,
        }
    }

    /// The part of the season in which the interval lies that comes so many after the one that
    /// begins now; none without a season.
    fn part(&self, later: u32) -> Option<usize> {
        let season = self.parameters.season?;
        let phase = (u64::from(self.phase) + u64::from(later)) % u64::from(season.intervals);
        Some((phase * u64::from(season.parts) / u64::from(season.intervals)) as usize)
    }

    fn learn(&mut self, sample: f64) {
        let TrendParameters { level, trend, damping, season_weight, .. } = self.parameters;
        let part = self.part(0);
        let seasonal = part.map_or(0.0, |part| self.parts[part]);
        if !self.is_begun {
            (self.level, self.is_begun) = (sample, true);
        }
        let expected = self.level + damping * self.trend;
        let before = self.level;
        self.level = expected + level * (sample - seasonal - expected);
        self.trend = damping * self.trend * (1.0 - trend) + trend * (self.level - before);
        if let Some(part) = part {
            self.parts[part] += season_weight * (sample - self.level - seasonal);
        }
        self.greatest.observe(sample);
    }
}

impl Forecast for Trend {
    fn observe(&mut self, sample: Option<Bandwidth>) {
        match sample {
            Some(sample) => self.learn(sample.get()),
            None => self.trend *= self.parameters.damping,
        }
        let intervals = self.parameters.season.map_or(1, |season| season.intervals);
        self.phase = (self.phase + 1) % intervals;
    }
    fn forecast(&self, ahead: Ahead) -> Option<Bandwidth> {
        if !self.is_begun {
            return None;
        }
        let (mut sum, mut step) = (self.level, self.trend);
        for _ in 0..ahead.get() {
            step *= self.parameters.damping;
            sum += step;
        }
        let seasonal = self.part(u32::from(ahead.get()) - 1).map_or(0.0, |part| self.parts[part]);
        Some(Bandwidth::new(self.greatest.hold(sum + seasonal)))
    }
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }
}
