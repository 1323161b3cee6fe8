//! Whichever forecast has erred least of late, or a blend of all.
//!
//! How: every interval each forecast of [`ForecastKind::CHOICES`] is scored, at each of
//! [`HORIZONS`], by what it had said that long before; then it is told the sample. A question is
//! answered by the one whose discounted mean absolute error is the lowest at the first horizon that
//! reaches so far. Its own answers are scored like the others'. One of the choices is a blend: the
//! mean of all others, each weighted by one over its squared error, which errs less than any of
//! them where they are about as good and wrong in different ways.
//! Invariant: what was said before a sample came is what is scored; nothing is said anew. A gap is
//! not scored. The naive forecast is used until another is better.
//! Cost: some hundred multiplications per interval; a few KiB.
//! Not for: links that are watched too seldom for means to say something.
//! Source of the weights: Bates and Granger, "The combination of forecasts", 1969.

use super::errors::Errors;
use super::{
    Ahead, Average, AverageParameters, Bandwidth, ErrorWindow, Forecast, ForecastError,
    ForecastKind, Last, Median, MedianParameters, Regression, RegressionParameters, Trend,
    TrendParameters,
};
use alloc::boxed::Box;

/// How far ahead forecasts are scored, in intervals.
pub const HORIZONS: [Ahead; 3] = [Ahead(1), Ahead(5), Ahead(15)];
/// Bytes per second of error below which a forecast is right: a square of it stays a number.
const ERROR_MIN: f64 = 1e-6;
/// Answers that are kept until they are scored.
const KEPT: usize = 16;
const PLAIN: usize = ForecastKind::PLAIN.len();
/// The blend's place among the choices, and the chooser's own behind them.
const BLEND: usize = PLAIN;
const OWN: usize = BLEND + 1;

/// How a chooser chooses, and what it chooses from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChooserParameters {
    /// How long errors are remembered.
    pub window: ErrorWindow,
    /// The weight that the long mean keeps is one less one of so many intervals.
    pub long_intervals: u32,
    /// Of the faster average.
    pub ewma: AverageParameters,
    /// Of the slower average.
    pub ewma_slow: AverageParameters,
    /// Of the median.
    pub median: MedianParameters,
    /// Of Holt-Winters.
    pub trend: TrendParameters,
    /// Of the AR.
    pub regression: RegressionParameters,
}

impl ChooserParameters {
    /// The shortest long mean.
    pub const LONG_INTERVALS_MIN: u32 = 60;
    /// The longest: a week of seconds.
    pub const LONG_INTERVALS_MAX: u32 = 604_800;
    /// Half an hour of seconds.
    pub const LONG_INTERVALS_DEFAULT: u32 = 1800;
    /// The defaults of all.
    pub const DEFAULT: ChooserParameters = ChooserParameters {
        window: ErrorWindow::DEFAULT,
        long_intervals: Self::LONG_INTERVALS_DEFAULT,
        ewma: AverageParameters::DEFAULT,
        ewma_slow: AverageParameters::SLOW,
        median: MedianParameters::DEFAULT,
        trend: TrendParameters::DEFAULT,
        regression: RegressionParameters::DEFAULT,
    };

    fn build(&self, kind: ForecastKind) -> Box<dyn Forecast> {
        match kind {
            ForecastKind::Naive | ForecastKind::Blend | ForecastKind::Chosen => {
                Box::new(Last::default())
            }
            ForecastKind::Ewma => Box::new(Average::new(self.ewma)),
            ForecastKind::EwmaSlow => Box::new(Average::new(self.ewma_slow)),
            ForecastKind::Median => Box::new(Median::new(self.median)),
            ForecastKind::HoltWinters => Box::new(Trend::new(self.trend)),
            ForecastKind::Ar => Box::new(Regression::new(self.regression)),
        }
    }
}

/// What the link looks like now, beside what it usually does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// What is expected on average of the intervals asked for.
    pub near: Bandwidth,
    /// What the link carried on average over a long while.
    pub long: Bandwidth,
    /// The mean absolute error of such answers of late, in bytes per second.
    pub error: f64,
}

/// What one forecast said, and how well that went.
#[derive(Clone, Copy, Debug, Default)]
struct Scored {
    /// By the interval that was spoken of, modulo their number.
    said: [Option<Bandwidth>; KEPT],
    errors: Errors,
}

impl Scored {
    fn meet(&mut self, window: ErrorWindow, interval: usize, sample: Option<Bandwidth>) {
        if let (Some(said), Some(sample)) = (self.said[interval % KEPT].take(), sample) {
            self.errors.score(window, said, sample);
        }
    }
}

/// See the file's header.
pub struct Chooser {
    window: ErrorWindow,
    plain: [Box<dyn Forecast>; PLAIN],
    /// By choice, then by horizon; the last row is the chooser's own.
    scored: [[Scored; HORIZONS.len()]; OWN + 1],
    /// By horizon: which of the choices.
    chosen: [usize; HORIZONS.len()],
    /// Nothing is chosen: it is always the blend.
    is_blend: bool,
    long: Average,
    /// Intervals so far, wrapping at a multiple of what is kept.
    interval: usize,
}

impl Chooser {
    /// A chooser that knows nothing yet.
    #[must_use]
    pub fn new(parameters: ChooserParameters) -> Chooser {
        let bounds = (ChooserParameters::LONG_INTERVALS_MIN, ChooserParameters::LONG_INTERVALS_MAX);
        let long = parameters.long_intervals.clamp(bounds.0, bounds.1);
        Chooser {
            window: parameters.window,
            plain: ForecastKind::PLAIN.map(|kind| parameters.build(kind)),
            scored: [[Scored::default(); HORIZONS.len()]; OWN + 1],
            chosen: [0; HORIZONS.len()],
            is_blend: false,
            long: Average::unbounded(1.0 / f64::from(long)),
            interval: 0,
        }
    }

    /// One that does not choose, and answers with the blend.
    #[must_use]
    pub fn blend(parameters: ChooserParameters) -> Chooser {
        Chooser { chosen: [BLEND; HORIZONS.len()], is_blend: true, ..Chooser::new(parameters) }
    }

    /// Which forecast answers so far ahead.
    #[must_use]
    pub fn chosen(&self, ahead: Ahead) -> ForecastKind {
        ForecastKind::CHOICES[self.chosen[horizon(ahead)]]
    }

    /// How far off each was of late, so far ahead: first the choices, then the chooser itself.
    pub fn errors(&self, ahead: Ahead) -> impl Iterator<Item = (ForecastKind, ForecastError)> {
        let at = horizon(ahead);
        let kinds = ForecastKind::CHOICES.into_iter().chain([ForecastKind::Chosen]);
        kinds.zip(&self.scored).map(move |(kind, row)| (kind, row[at].errors.shown()))
    }

    /// How far off the chooser itself was of late, so far ahead.
    #[must_use]
    pub fn error(&self, ahead: Ahead) -> ForecastError {
        self.scored[OWN][horizon(ahead)].errors.shown()
    }

    /// What the link is expected to be for so many intervals, and what it is in the long run;
    /// `None` until something was measured.
    #[must_use]
    pub fn outlook(&self, intervals: u64) -> Option<Outlook> {
        let near = self.mean(intervals)?;
        let long = self.long.forecast(Ahead::NEXT)?;
        let error = self.error(Ahead::new(intervals)).mean_absolute;
        Some(Outlook { near, long, error })
    }

    fn score(&mut self, sample: Option<Bandwidth>) {
        for scored in self.scored.iter_mut().flatten() {
            scored.meet(self.window, self.interval, sample);
        }
        if self.is_blend {
            return;
        }
        for (at, chosen) in self.chosen.iter_mut().enumerate() {
            let mean = |row: &[Scored; HORIZONS.len()]| row[at].errors.mean_absolute();
            let means = self.scored[..OWN].iter().map(mean).enumerate();
            let known = means.filter_map(|(choice, mean)| mean.map(|mean| (choice, mean)));
            // The first of equals, since it is the simplest.
            if let Some((best, _)) =
                known.reduce(|one, other| if other.1 < one.1 { other } else { one })
            {
                *chosen = best;
            }
        }
    }

    /// Writes down what all say now of the intervals at the horizons.
    fn say(&mut self) {
        for (at, ahead) in HORIZONS.into_iter().enumerate() {
            let place = (self.interval + usize::from(ahead.get()) - 1) % KEPT;
            for choice in 0..OWN {
                self.scored[choice][at].said[place] = self.answer(choice, ahead);
            }
            self.scored[OWN][at].said[place] = self.scored[self.chosen[at]][at].said[place];
        }
    }

    /// What a choice says.
    fn answer(&self, choice: usize, ahead: Ahead) -> Option<Bandwidth> {
        match self.plain.get(choice) {
            Some(plain) => plain.forecast(ahead),
            None => self.blended(ahead),
        }
    }

    /// The mean of what all say, by one over their squared errors. Before there are errors, and
    /// where one has none, what the first such says.
    fn blended(&self, ahead: Ahead) -> Option<Bandwidth> {
        let at = horizon(ahead);
        let (mut sum, mut weights) = (0.0, 0.0);
        for (plain, row) in self.plain.iter().zip(&self.scored) {
            let said = plain.forecast(ahead)?;
            let error = row[at].errors.mean_absolute().unwrap_or(0.0);
            if error < ERROR_MIN {
                return Some(said);
            }
            let weight = 1.0 / (error * error);
            sum += weight * said.get();
            weights += weight;
        }
        Some(Bandwidth::new(sum / weights))
    }
}

/// The first horizon that reaches so far, or the last.
fn horizon(ahead: Ahead) -> usize {
    let reaching = HORIZONS.iter().position(|horizon| ahead <= *horizon);
    reaching.unwrap_or(HORIZONS.len() - 1)
}

impl Forecast for Chooser {
    fn observe(&mut self, sample: Option<Bandwidth>) {
        self.score(sample);
        for plain in &mut self.plain {
            plain.observe(sample);
        }
        self.long.observe(sample);
        self.interval = (self.interval + 1) % KEPT;
        self.say();
    }
    fn forecast(&self, ahead: Ahead) -> Option<Bandwidth> {
        self.answer(self.chosen[horizon(ahead)], ahead)
    }
    fn memory_bytes(&self) -> usize {
        let plain: usize = self.plain.iter().map(|plain| plain.memory_bytes()).sum();
        size_of::<Self>() + plain
    }
}
