//! Every forecast by name, in one place.

use super::{
    Average, AverageParameters, Chooser, ChooserParameters, Forecast, Last, Median,
    MedianParameters, Regression, RegressionParameters, Trend, TrendParameters,
};
use alloc::boxed::Box;

/// A forecast that may be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ForecastKind {
    /// What was last.
    Naive,
    /// An average of a few intervals.
    Ewma,
    /// An average of some ten intervals.
    EwmaSlow,
    /// The median of five.
    Median,
    /// Level and damped trend.
    HoltWinters,
    /// AR(3), learnt online.
    Ar,
    /// Whichever of the others has erred least of late.
    #[default]
    Chosen,
}

impl ForecastKind {
    /// All, for help texts, the lab and conformance tests.
    pub const ALL: [ForecastKind; 7] = [
        ForecastKind::Naive,
        ForecastKind::Ewma,
        ForecastKind::EwmaSlow,
        ForecastKind::Median,
        ForecastKind::HoltWinters,
        ForecastKind::Ar,
        ForecastKind::Chosen,
    ];
    /// Those that the chooser chooses from; where two are as good, the first.
    pub const CHOICES: [ForecastKind; 6] = [
        ForecastKind::Naive,
        ForecastKind::Ewma,
        ForecastKind::EwmaSlow,
        ForecastKind::Median,
        ForecastKind::HoltWinters,
        ForecastKind::Ar,
    ];

    /// The name in configuration, metrics and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ForecastKind::Naive => "naive",
            ForecastKind::Ewma => "ewma",
            ForecastKind::EwmaSlow => "ewma-slow",
            ForecastKind::Median => "median",
            ForecastKind::HoltWinters => "holt-winters",
            ForecastKind::Ar => "ar",
            ForecastKind::Chosen => "chosen",
        }
    }

    /// The forecast of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// A fresh one with default parameters.
    #[must_use]
    pub fn build(self) -> Box<dyn Forecast> {
        match self {
            ForecastKind::Naive => Box::new(Last::default()),
            ForecastKind::Ewma => Box::new(Average::new(AverageParameters::DEFAULT)),
            ForecastKind::EwmaSlow => Box::new(Average::new(AverageParameters::SLOW)),
            ForecastKind::Median => Box::new(Median::new(MedianParameters::DEFAULT)),
            ForecastKind::HoltWinters => Box::new(Trend::new(TrendParameters::DEFAULT)),
            ForecastKind::Ar => Box::new(Regression::new(RegressionParameters::DEFAULT)),
            ForecastKind::Chosen => Box::new(Chooser::new(ChooserParameters::DEFAULT)),
        }
    }
}
