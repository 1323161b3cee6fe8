//! Whichever forecast has erred least of late.
//!
//! How: every interval each forecast of [`ForecastKind::CHOICES`] is scored, at each of
//! [`HORIZONS`], by what it had said that long before; then it is told the sample. A question is
//! answered by the one whose discounted mean absolute error is the lowest at the first horizon that
//! reaches so far. Its own answers are scored like the others'.
//! Invariant: what was said before a sample came is what is scored; nothing is said anew. A gap is
//! not scored. The naive forecast is used until another is better.
//! Cost: some hundred multiplications per interval; a few KiB.
//! Not for: links that are watched too seldom for means to say something.

use super::errors::Errors;
use super::{
    Ahead, Average, AverageParameters, Bandwidth, ErrorWindow, Forecast, ForecastError,
    ForecastKind, Last, Median, MedianParameters, Regression, RegressionParameters, Trend,
    TrendParameters,
};
use alloc::boxed::Box;

/// How far ahead forecasts are scored, in intervals.
pub const HORIZONS: [Ahead; 3] = [Ahead(1), Ahead(5), Ahead(15)];
/// Answers that are kept until they are scored.
const KEPT: usize = 16;
const CHOICES: usize = ForecastKind::CHOICES.len();

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
            ForecastKind::Naive | ForecastKind::Chosen => Box::new(Last::default()),
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
    choices: [Box<dyn Forecast>; CHOICES],
    /// By choice, then by horizon; the last row is the chooser's own.
    scored: [[Scored; HORIZONS.len()]; CHOICES + 1],
    /// By horizon: which of the choices.
    chosen: [usize; HORIZONS.len()],
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
            choices: ForecastKind::CHOICES.map(|kind| parameters.build(kind)),
            scored: [[Scored::default(); HORIZONS.len()]; CHOICES + 1],
            chosen: [0; HORIZONS.len()],
            long: Average::unbounded(1.0 / f64::from(long)),
            interval: 0,
        }
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
        self.scored[CHOICES][horizon(ahead)].errors.shown()
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
        for (at, chosen) in self.chosen.iter_mut().enumerate() {
            let mean = |row: &[Scored; HORIZONS.len()]| row[at].errors.mean_absolute();
            let means = self.scored[..CHOICES].iter().map(mean).enumerate();
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
            for (choice, row) in self.choices.iter().zip(&mut self.scored) {
                row[at].said[place] = choice.forecast(ahead);
            }
            let own = self.scored[self.chosen[at]][at].said[place];
            self.scored[CHOICES][at].said[place] = own;
        }
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
        for choice in &mut self.choices {
            choice.observe(sample);
        }
        self.long.observe(sample);
        self.interval = (self.interval + 1) % KEPT;
        self.say();
    }
    fn forecast(&self, ahead: Ahead) -> Option<Bandwidth> {
        self.choices[self.chosen[horizon(ahead)]].forecast(ahead)
    }
    fn memory_bytes(&self) -> usize {
        let choices: usize = self.choices.iter().map(|choice| choice.memory_bytes()).sum();
        size_of::<Self>() + choices
    }
}
