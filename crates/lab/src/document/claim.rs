//! A claim: a printed figure, how far a found one may be from it, and the effect that it names.
//!
//! How: a claim is about one number. What is expected has a tolerance on both sides, and an effect:
//! the distance to the figure of a world in which the claim is false. A figure without such a
//! distance cannot fail, and is a [`Measurement`].
//! Invariant: every claim's tolerance is finite on both sides and smaller than its effect; the
//! only constructor asserts it, so no claim without it exists.
//! Cost: none. Not for: directions without a printed size; they are measurements.

use std::fmt;

/// A figure's unit, as it follows the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A ratio of two figures.
    Times,
    /// Percent of a base, with its sign.
    Percent,
    /// Percentage points, with their sign.
    Points,
    /// Parts of a whole.
    Share,
    /// Megabytes per second.
    MegabytesPerSecond,
    /// Things counted.
    Count,
    /// Times the device's capacity.
    DriveWrites,
}

impl Unit {
    /// The figure with its unit; a dash where it is no number.
    fn figure(self, value: f64) -> String {
        if !value.is_finite() {
            return "–".to_owned();
        }
        let size = value.abs();
        let digits = match self {
            Unit::Share => 3,
            Unit::Count => 0,
            Unit::Times if size < 2.0 => 3,
            _ if size >= 100.0 => 0,
            _ if size >= 10.0 => 1,
            Unit::Percent | Unit::Points => 1,
            _ => 2,
        };
        match self {
            Unit::Times => format!("{value:.digits$}x"),
            Unit::Percent => format!("{value:+.digits$} %"),
            Unit::Points => format!("{value:+.digits$} points"),
            Unit::MegabytesPerSecond => format!("{value:.digits$} MB/s"),
            Unit::Share | Unit::Count => format!("{value:.digits$}"),
            Unit::DriveWrites => format!("{value:.digits$} drive writes"),
        }
    }

    /// How a program reads it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Unit::Times => "times",
            Unit::Percent => "percent",
            Unit::Points => "points",
            Unit::Share => "share",
            Unit::MegabytesPerSecond => "megabytes_per_second",
            Unit::Count => "count",
            Unit::DriveWrites => "drive_writes",
        }
    }
}

/// What a claim says before anything has run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    figure: f64,
    /// Least and greatest figure that count as the same.
    low: f64,
    high: f64,
    /// Distance to the figure at which the claim is false.
    effect: f64,
    unit: Unit,
}

impl Expected {
    /// How far a figure may be off, as a part of the effect, unless a claim says otherwise.
    pub const TOLERANCE_USUAL: f64 = 0.1;

    /// A figure that an effect has, where it would be `without` if there were none. A tenth of
    /// the effect is tolerated on either side.
    #[must_use]
    pub fn effect(figure: f64, without: f64, unit: Unit) -> Self {
        let effect = (figure - without).abs();
        Expected { figure, low: figure, high: figure, effect, unit }
            .within(effect * Self::TOLERANCE_USUAL)
    }

    /// A figure of two things that are alike: `tolerance` on either side, where things that are
    /// not alike differ by `effect`.
    #[must_use]
    pub fn alike(figure: f64, tolerance: f64, effect: f64, unit: Unit) -> Self {
        Expected { figure, low: figure, high: figure, effect, unit }.within(tolerance)
    }

    /// The same figure with another tolerance on both sides.
    #[must_use]
    pub fn within(self, tolerance: f64) -> Self {
        let (low, high) = (self.figure - tolerance, self.figure + tolerance);
        Expected { low, high, ..self }
    }

    /// Whether the tolerance has two sides and is smaller than the effect.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let sides = [self.figure - self.low, self.high - self.figure];
        sides.iter().all(|side| side.is_finite() && *side > 0.0 && *side < self.effect)
            && self.effect.is_finite()
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [figure, low, high] = [self.figure, self.low, self.high].map(|f| self.unit.figure(f));
        write!(out, "{figure} ({low} to {high})")
    }
}

/// Something that the paper, or this project, says, and a run can show to be false.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    what: String,
    expected: Expected,
    found: f64,
    /// Least and greatest over the seeds, where there are several; what was found is the median.
    spread: Option<(f64, f64)>,
    note: String,
}

impl Claim {
    /// A claim and the figure found. Panics when the tolerance is not two-sided or not smaller than
    /// the effect: no figure could then show it to be false.
    #[must_use]
    pub fn new(what: impl Into<String>, expected: Expected, found: f64) -> Self {
        let what = what.into();
        assert!(expected.is_sound(), "a claim that cannot fail: {what}: {expected:?}");
        Claim { what, expected, found, spread: None, note: String::new() }
    }

    /// The same with what else a reader must know.
    #[must_use]
    pub fn noted(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// What is claimed.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The figure it names, with the tolerance.
    #[must_use]
    pub fn expected(&self) -> String {
        self.expected.to_string()
    }

    /// The same as numbers: the figure, the least and the greatest that count as the same, and the
    /// effect.
    #[must_use]
    pub fn expected_figures(&self) -> [f64; 4] {
        [self.expected.figure, self.expected.low, self.expected.high, self.expected.effect]
    }

    /// The figure's unit.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.expected.unit
    }

    /// The figure found here, with its spread and note.
    #[must_use]
    pub fn found(&self) -> String {
        let unit = self.expected.unit;
        let mut found = unit.figure(self.found);
        if let Some((least, greatest)) = self.spread {
            found += &format!(" [{} to {}]", unit.figure(least), unit.figure(greatest));
        }
        if !self.note.is_empty() {
            found += &format!(", {}", self.note);
        }
        found
    }

    /// The figure found here as a number; not finite where nothing was measured.
    #[must_use]
    pub fn found_figure(&self) -> f64 {
        self.found
    }

    /// Least and greatest over the seeds, where there are several.
    #[must_use]
    pub fn spread(&self) -> Option<(f64, f64)> {
        self.spread
    }

    /// Whether it holds here.
    #[must_use]
    pub fn holds(&self) -> bool {
        (self.expected.low..=self.expected.high).contains(&self.found)
    }

    /// Takes the median, the least and the greatest of the same claim of single seeds. A seed whose
    /// figure is no number counts as one above all others: where half have none, none was found.
    pub(crate) fn set_seeds(&mut self, seeds: &[&Claim]) {
        debug_assert!(seeds.iter().all(|seed| seed.what == self.what), "the same claim");
        if seeds.len() > 1 {
            let found = seeds.iter().map(|seed| seed.found);
            self.found = super::median(found.clone());
            self.spread = super::extent(found);
        }
    }
}

/// Something that was measured and is not claimed: no figure of it is printed, or none that a run
/// could miss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    /// What was measured.
    pub what: String,
    /// What the source says of it, in its words; empty where it says nothing.
    pub said: String,
    /// What was found: with several seeds, the median of each number, and each seed's text from
    /// where they differ in words.
    pub found: String,
    /// Where the numbers lie over the seeds; empty where there is one, or where every seed found
    /// the same.
    spread: String,
    /// Whether it counts over the seeds itself.
    is_of_all_seeds: bool,
}

impl Measurement {
    /// A measurement.
    #[must_use]
    pub fn new(what: impl Into<String>, said: impl Into<String>, found: impl Into<String>) -> Self {
        let (what, said, found) = (what.into(), said.into(), found.into());
        Measurement { what, said, found, spread: String::new(), is_of_all_seeds: false }
    }

    /// The same where what was found counts over all seeds, so that it has no spread.
    #[must_use]
    pub fn of_all_seeds(self) -> Self {
        Measurement { is_of_all_seeds: true, ..self }
    }

    /// Least and greatest over the seeds of each number in what was found, as `2..5`, up to where
    /// their words differ; empty where there is one, or where all found the same.
    #[must_use]
    pub fn spread(&self) -> &str {
        &self.spread
    }

    #[cfg(test)]
    pub(super) fn counts_seeds(&self) -> bool {
        self.is_of_all_seeds
    }

    /// What was found, with its spread in brackets.
    #[must_use]
    pub fn found_with_spread(&self) -> String {
        match self.spread.as_str() {
            "" => self.found.clone(),
            spread => format!("{} [{spread}]", self.found),
        }
    }

    /// Takes the median and the range of what the same measurement of single seeds found.
    pub(crate) fn set_seeds(&mut self, seeds: &[&Measurement]) {
        debug_assert!(seeds.iter().all(|seed| seed.what == self.what), "the same measurement");
        if self.is_of_all_seeds || seeds.len() < 2 {
            return;
        }
        let found: Vec<&str> = seeds.iter().map(|seed| seed.found.as_str()).collect();
        let super::range::Both { median, range } = super::range::of(&found);
        self.spread = if median.starts_with(&range) { String::new() } else { range };
        self.found = median;
    }
}
