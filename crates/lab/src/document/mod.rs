//! What an experiment found: sections of text, tables, charts, and the claims it looked at.
//!
//! How: plain values; `html` writes them as one file, `chart` draws the bars.
//! Invariant: a table's rows have as many cells as it has columns. Cost: small.

mod chart;
mod html;

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
}

/// Groups of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What the bars measure, with its unit.
    pub axis: String,
    /// What each group is.
    pub groups: Vec<String>,
    /// The bars.
    pub series: Vec<Series>,
}

/// Something that the paper, or this project, says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What is claimed.
    pub what: String,
    /// The figure it names.
    pub expected: String,
    /// The figure found here.
    pub found: String,
    /// Whether it holds here.
    pub holds: bool,
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

/// What an experiment found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// Its title.
    pub title: String,
    /// Which paper, and where in it.
    pub source: String,
    /// The words that run it again.
    pub command: String,
    /// What was looked at first.
    pub claims: Vec<Claim>,
    /// Its parts.
    pub sections: Vec<Section>,
}

#[cfg(test)]
mod tests;
