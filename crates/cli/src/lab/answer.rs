//! An experiment's answer for programs: JSON, or CSV with a line per figure.
//!
//! How: the document's own parts under plain names; claims have their numbers beside the text.
//! Invariant: JSON has everything that the terminal shows; CSV has every figure and cell of a
//! table, and leaves out the text of sections. A figure that is no number is null in JSON and empty
//! in CSV. Cost: small.

use crate::output::{Failure, Output};
use layby_lab::{Claim, Document};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Serialize)]
struct ClaimAnswer {
    claim: String,
    unit: &'static str,
    expected: f64,
    expected_min: f64,
    expected_max: f64,
    effect: f64,
    found: Option<f64>,
    found_min: Option<f64>,
    found_max: Option<f64>,
    holds: bool,
}

#[derive(Serialize)]
struct MeasurementAnswer<'a> {
    measured: &'a str,
    source_says: &'a str,
    found: &'a str,
    found_spread: Option<&'a str>,
}

#[derive(Serialize)]
struct SectionAnswer<'a> {
    heading: &'a str,
    text: &'a [String],
    columns: &'a [String],
    rows: &'a [Vec<String>],
}

#[derive(Serialize)]
struct DocumentAnswer<'a> {
    title: &'a str,
    source: &'a str,
    command: &'a str,
    seeds: &'a str,
    version: &'a str,
    commit: &'a str,
    date: &'a str,
    claims: Vec<ClaimAnswer>,
    measurements: Vec<MeasurementAnswer<'a>>,
    sections: Vec<SectionAnswer<'a>>,
}

fn finite(figure: f64) -> Option<f64> {
    figure.is_finite().then_some(figure)
}

impl ClaimAnswer {
    fn of(claim: &Claim) -> Self {
        let [expected, expected_min, expected_max, effect] = claim.expected_figures();
        let spread = claim.spread();
        ClaimAnswer {
            claim: claim.what().to_owned(),
            unit: claim.unit().word(),
            expected,
            expected_min,
            expected_max,
            effect,
            found: finite(claim.found_figure()),
            found_min: spread.and_then(|(least, _)| finite(least)),
            found_max: spread.and_then(|(_, greatest)| finite(greatest)),
            holds: claim.holds(),
        }
    }
}

fn answer(document: &Document) -> DocumentAnswer<'_> {
    let measurements = document.measurements.iter().map(|one| MeasurementAnswer {
        measured: &one.what,
        source_says: &one.said,
        found: &one.found,
        found_spread: Some(one.spread()).filter(|spread| !spread.is_empty()),
    });
    let sections = document.sections.iter().map(|section| {
        let table = section.table.as_ref();
        SectionAnswer {
            heading: &section.heading,
            text: &section.text,
            columns: table.map_or(&[], |table| &table.columns),
            rows: table.map_or(&[], |table| &table.rows),
        }
    });
    DocumentAnswer {
        title: &document.title,
        source: &document.citation,
        command: &document.command,
        seeds: &document.seeds,
        version: &document.origin.version,
        commit: &document.origin.commit,
        date: &document.origin.date,
        claims: document.claims.iter().map(ClaimAnswer::of).collect(),
        measurements: measurements.collect(),
        sections: sections.collect(),
    }
}

pub(super) fn json(document: &Document, output: &mut Output) -> Result<(), Failure> {
    output.json(&answer(document))
}

pub(super) fn csv(document: &Document, output: &mut Output) -> Result<(), Failure> {
    lines(document).iter().try_for_each(|line| output.line(line))
}

/// Columns: kind, part, row, column, value. A claim has a line per number.
fn lines(document: &Document) -> Vec<String> {
    let mut lines = vec!["kind,part,row,column,value".to_owned()];
    let mut say = |cells: [&str; 5]| lines.push(cells.map(quoted).join(","));
    for (what, value) in document.colophon() {
        say(["origin", what, "", "", value]);
    }
    for claim in document.claims.iter().map(ClaimAnswer::of) {
        let number = |figure: Option<f64>| figure.map_or_else(String::new, |it| it.to_string());
        for (column, value) in [
            ("expected", number(Some(claim.expected))),
            ("expected_min", number(Some(claim.expected_min))),
            ("expected_max", number(Some(claim.expected_max))),
            ("effect", number(Some(claim.effect))),
            ("found", number(claim.found)),
            ("found_min", number(claim.found_min)),
            ("found_max", number(claim.found_max)),
            ("holds", claim.holds.to_string()),
        ] {
            say(["claim", &claim.claim, claim.unit, column, &value]);
        }
    }
    for one in &document.measurements {
        say(["measurement", &one.what, "", "source_says", &one.said]);
        say(["measurement", &one.what, "", "found", &one.found]);
        say(["measurement", &one.what, "", "found_spread", one.spread()]);
    }
    for section in &document.sections {
        let Some(table) = &section.table else { continue };
        let named_by = name_columns(&table.rows, table.columns.len());
        for row in &table.rows {
            let name = row[..named_by.min(row.len())].join(", ");
            for (column, value) in table.columns.iter().zip(row).skip(named_by) {
                say(["table", &section.heading, &name, column, value]);
            }
        }
    }
    lines
}

/// Columns that tell a table's rows apart: the first, and as many behind it as are needed.
fn name_columns(rows: &[Vec<String>], columns: usize) -> usize {
    let are_apart = |count: &usize| {
        let names: BTreeSet<&[String]> =
            rows.iter().map(|row| &row[..(*count).min(row.len())]).collect();
        names.len() == rows.len()
    };
    (1..columns).find(are_apart).unwrap_or(1)
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

/// Today by this machine's clock, in UTC: `2024-02-29`.
#[expect(clippy::disallowed_methods, reason = "a report says when it was made")]
pub(super) fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    day(since.as_secs() / 86_400)
}

/// A day since 1970-01-01 (Howard Hinnant's algorithm, from a year that begins in March).
fn day(days: u64) -> String {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let date = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_lab::{Expected, Measurement, Section, Table, Unit};

    fn document() -> Document {
        let mut table = Table::new(&["load", "WAF, ours"]);
        table.push(vec!["a \"b\"".into(), "1.5".into()]);
        let (heading, text) = ("Fig. 1".into(), vec!["why so".into()]);
        let section = Section { heading, text, table: Some(table), ..Section::default() };
        let expected = Expected::effect(2.0, 1.0, Unit::Times);
        Document {
            title: "t".into(),
            claims: vec![
                Claim::new("more", expected, 2.05),
                Claim::new("none", expected, f64::NAN),
            ],
            measurements: vec![Measurement::new("m", "wider", "3, or 4")],
            sections: vec![section],
            ..Document::default()
        }
    }

    /// Goal: programs get every figure, and JSON the text of sections, too. Method: a document with
    /// commas, quotes and no number.
    #[test]
    fn programs_get_everything() {
        let lines = lines(&document());
        for line in [
            "claim,more,times,found,2.05",
            "claim,more,times,expected_max,2.1",
            "claim,more,times,holds,true",
            "claim,none,times,found,",
            "claim,none,times,holds,false",
            "measurement,m,,found,\"3, or 4\"",
            "measurement,m,,found_spread,",
            "table,Fig. 1,\"a \"\"b\"\"\",\"WAF, ours\",1.5",
        ] {
            assert!(lines.iter().any(|found| found == line), "{line}: {lines:#?}");
        }
        let json = serde_json::to_value(answer(&document())).expect("it is JSON");
        assert_eq!(json["claims"][0]["found"], 2.05);
        assert!(json["claims"][1]["found"].is_null());
        assert_eq!(json["sections"][0]["rows"][0][1], "1.5");
        assert_eq!(json["sections"][0]["text"][0], "why so");
        assert!(lines.iter().all(|line| !line.contains("why so")), "{lines:#?}");
    }

    /// Goal: days are dates. Method: the epoch, leap days, ends of years.
    #[test]
    fn days_are_dates() {
        for (days, date) in [
            (0, "1970-01-01"),
            (364, "1970-12-31"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (19_782, "2024-02-29"),
            (20_453, "2025-12-31"),
        ] {
            assert_eq!(day(days), date);
        }
    }
}
