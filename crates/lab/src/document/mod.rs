//! What an experiment found: sections of text, tables, charts, and the claims it looked at.
//!
//! How: plain values; `html` writes them as one file, `chart` draws the bars. In a document of
//! several seeds, claims, measurements and bars are medians of each seed's own, with their spread.
//! Invariant: a table's rows have as many cells as it has columns. Cost: small.

mod chart;
mod claim;
mod html;
mod range;

use crate::median::median;

pub use claim::{Claim, Expected, Measurement, Unit};

/// The least and the greatest of the figures that are numbers, if any is.
pub(crate) fn extent(figures: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let figures = figures.filter(|figure| figure.is_finite());
    figures.fold(None, |ends: Option<(f64, f64)>, figure| {
        let (least, greatest) = ends.unwrap_or((figure, figure));
        Some((least.min(figure), greatest.max(figure)))
    })
}

/// A figure with so many digits after the point; a dash where it is no number.
pub(crate) fn figure(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "–".to_owned() }
}

/// The same with its sign.
pub(crate) fn signed(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:+.digits$}") } else { "–".to_owned() }
}

/// A table; the first column is text, the others are aligned as numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Headings, with units.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(columns: &[&str]) -> Table {
        Table { columns: columns.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    /// Adds a row. Panics when it has another number of cells.
    pub fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.columns.len(), "a cell per column");
        self.rows.push(row);
    }
}

/// Bars of one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the colour stands for.
    pub name: String,
    /// A value per group.
    pub values: Vec<f64>,
    /// Least and greatest over the seeds per group; empty where there is one seed.
    pub spread: Vec<(f64, f64)>,
}

impl Series {
    /// Bars of one seed, or of medians.
    #[must_use]
    pub fn new(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        let values = values.into_iter().collect();
        Series { name: name.into(), values, spread: Vec::new() }
    }
}

/// Groups of bars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// What the bars measure, with its unit.
    pub axis: String,
    /// What the groups are, with their unit.
    pub across: String,
    /// What each group is.
    pub groups: Vec<String>,
    /// The bars; one that is no number is not drawn.
    pub series: Vec<Series>,
    /// Series of the table that have no bars.
    pub left_out: Vec<String>,
}

/// A part of a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Its heading.
    pub heading: String,
    /// Paragraphs.
    pub text: Vec<String>,
    /// Bars, if any.
    pub chart: Option<Chart>,
    /// Figures, if any.
    pub table: Option<Table>,
}

/// Where a document comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Version of the program.
    pub version: String,
    /// Commit that it was built from.
    pub commit: String,
    /// Day of the run.
    pub date: String,
}

/// What an experiment found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// Its title.
    pub title: String,
    /// Which paper, as one cites it.
    pub citation: String,
    /// What was done, in a few sentences.
    pub source: String,
    /// The words that run it again.
    pub command: String,
    /// Which seeds, and whether there is a spread.
    pub seeds: String,
    /// What made it.
    pub origin: Origin,
    /// What was looked at first.
    pub claims: Vec<Claim>,
    /// What was measured beside and is not claimed.
    pub measurements: Vec<Measurement>,
    /// Its parts.
    pub sections: Vec<Section>,
}

impl Document {
    /// The document with claims, measurements and bars of several seeds: each figure is the median
    /// of what the documents of single seeds found, with the least and the greatest of these. A
    /// figure taken from medians, as the least of several, could lie outside of them. Tables and
    /// texts stay as they are. Documents of one seed change nothing.
    #[must_use]
    pub(crate) fn over_seeds(mut self, seeds: &[Document]) -> Document {
        if seeds.len() < 2 {
            return self;
        }
        for (place, claim) in self.claims.iter_mut().enumerate() {
            let same = seeds.iter().filter_map(|seed| seed.claims.get(place));
            claim.set_seeds(&same.collect::<Vec<_>>());
        }
        for (place, one) in self.measurements.iter_mut().enumerate() {
            let same = seeds.iter().filter_map(|seed| seed.measurements.get(place));
            one.set_seeds(&same.collect::<Vec<_>>());
        }
        for (place, section) in self.sections.iter_mut().enumerate() {
            let Some(chart) = &mut section.chart else { continue };
            let of = seeds.iter().filter_map(|seed| seed.sections.get(place)?.chart.as_ref());
            chart.set_seeds(&of.collect::<Vec<_>>());
        }
        self
    }

    /// What a reader must know of the figures, a word and its value.
    #[must_use]
    pub fn colophon(&self) -> Vec<(&'static str, &str)> {
        let Origin { version, commit, date } = &self.origin;
        let all = [
            ("source", self.citation.as_str()),
            ("run again", &self.command),
            ("seeds", &self.seeds),
            ("version", version),
            ("commit", commit),
            ("date", date),
        ];
        all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }
}

impl Chart {
    fn set_seeds(&mut self, seeds: &[&Chart]) {
        for (place, series) in self.series.iter_mut().enumerate() {
            let of = |group: usize| {
                let figures = seeds
                    .iter()
                    .filter_map(move |chart| chart.series.get(place)?.values.get(group).copied());
                (median(figures.clone()), extent(figures).unwrap_or_default())
            };
            let all = (0..series.values.len()).map(of);
            (series.values, series.spread) = all.unzip();
        }
    }
}

/// How many seeds a document's figures are of.
pub(crate) fn seeds_of(options: &crate::Options) -> String {
    match options.runs {
        1 => format!("{}; one seed, so no spread is known", options.seed),
        runs => format!(
            "{} to {}; figures are medians, brackets and whiskers the least and the greatest",
            options.seed,
            options.seed.wrapping_add(u64::from(runs) - 1)
        ),
    }
}

#[cfg(test)]
pub(crate) mod tests;
