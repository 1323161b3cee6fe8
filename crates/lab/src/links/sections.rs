//! The document's parts: links, errors near and far, choices, admission.
//!
//! Invariant: every section has a table; a chart shows nothing that no table has. Cost: none.

use super::measure::{Admissions, Measured, SIZE_PERCENT, WITHIN};
use super::policy::{ForecastKind, HORIZONS};
use super::{DAY, Row, USUAL};
use crate::document::figure;
use crate::{Chart, Options, Section, Series, Table};

/// Every part.
pub(super) fn all(options: &Options, rows: &[Row]) -> Vec<Section> {
    let mut sections = vec![parameters(options), links(rows)];
    sections.extend((0..HORIZONS.len()).map(|at| errors(rows, at)));
    sections.extend([choices(rows), admission(rows)]);
    sections
}

fn parameters(options: &Options) -> Section {
    let mut table = Table::new(&["what", "value"]);
    let mut say = |what: &str, value: String| table.push(vec![what.into(), value]);
    say("drawn links (seconds, per sample)", format!("{}, {}", USUAL.0, USUAL.1));
    say("lte-congested (seconds, per sample)", format!("{}, {}", DAY.0, DAY.1));
    say("seeds", format!("{} from {}", options.runs, options.seed));
    say(
        "requests: time to be uploaded in (intervals)",
        format!("{}, as likely each", WITHIN.map(|n| n.to_string()).join(", ")),
    );
    let (least, most) = SIZE_PERCENT;
    say("requests: size (% of the mean link in that time)", format!("{least} to {most}, evenly"));
    Section {
        heading: "Parameters".into(),
        text: vec![
            "Every interval a forecast is asked for the intervals to come, then told what this \
             one carried. The links' parameters are round figures after what public measurements \
             describe, and were set before any forecast was run on them; --link puts a recorded \
             link beside them."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn megabits(bytes_per_second: f64) -> f64 {
    bytes_per_second / 125_000.0
}

fn links(rows: &[Row]) -> Section {
    let mut table = Table::new(&[
        "link",
        "mean (Mbit/s)",
        "variation",
        "correlation, next interval",
        "dead (% of intervals)",
        "naive's error (% of mean)",
        "after",
    ]);
    for row in rows {
        let percent = |one: &Measured| one.errors[0][0] / one.mean * 100.0;
        table.push(vec![
            row.name.clone(),
            format!("{:.1}", megabits(row.median(|one| one.mean))),
            figure(row.median(|one| one.variation), 2),
            figure(row.median(|one| one.correlation), 2),
            format!("{:.1}", row.median(|one| one.dead) * 100.0),
            figure(row.median(percent), 1),
            row.source.clone(),
        ]);
    }
    Section {
        heading: "The links".into(),
        text: vec![
            "Variation is deviation over mean. A link whose neighbours correlate little is one \
             whose last interval says little; one that correlates much and never jumps leaves \
             nothing to gain on naive."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn errors(rows: &[Row], at: usize) -> Section {
    let mut columns = vec!["link".to_owned(), "naive (kB/s)".to_owned()];
    let others = || ForecastKind::ALL.into_iter().filter(|kind| *kind != ForecastKind::Naive);
    columns.extend(others().map(|kind| kind.name().to_owned()));
    columns.push("chosen, least to greatest".into());
    let mut table = Table { columns, rows: Vec::new() };
    for row in rows {
        let naive = row.median(|one| one.errors[0][at]);
        let mut cells = vec![row.name.clone(), format!("{:.0}", naive / 1000.0)];
        cells.extend(others().map(|kind| figure(row.median(|one| one.relative(kind, at)), 3)));
        let ends = row.spread(|one| one.relative(ForecastKind::Chosen, at));
        let ends = ends.map(|(least, greatest)| format!("{least:.3} to {greatest:.3}"));
        cells.push(ends.unwrap_or_else(|| "–".to_owned()));
        table.rows.push(cells);
    }
    // As many as there are colours.
    let shown = others().filter(|kind| *kind != ForecastKind::Median);
    let series = shown.map(|kind| {
        let values = rows.iter().map(|row| row.median(|one| one.relative(kind, at)));
        Series::new(kind.name(), values)
    });
    let chart = Chart {
        across: "link".into(),
        left_out: vec![ForecastKind::Median.name().to_owned()],
        axis: "error, relative to naive's".into(),
        groups: rows.iter().map(|row| row.name.clone()).collect(),
        series: series.collect(),
    };
    let intervals = HORIZONS[at].get();
    let unit = if intervals == 1 { "interval" } else { "intervals" };
    Section {
        heading: format!("Errors {intervals} {unit} ahead"),
        text: vec![
            "Mean absolute errors; all but naive's are relative to naive's. The last column is \
             the chosen forecast's over the seeds."
                .into(),
        ],
        chart: Some(chart),
        table: Some(table),
    }
}

fn choices(rows: &[Row]) -> Section {
    let mut columns = vec!["link".to_owned()];
    columns.extend(ForecastKind::CHOICES.map(|kind| format!("{} (%)", kind.name())));
    columns.push("above the best in hindsight (%)".into());
    let mut table = Table { columns, rows: Vec::new() };
    for row in rows {
        let mut cells = vec![row.name.clone()];
        let share = |place: usize| row.median(|one| one.chosen[place]) * 100.0;
        cells.extend((0..ForecastKind::CHOICES.len()).map(|place| format!("{:.0}", share(place))));
        let above = (row.median(super::found::hindsight) - 1.0) * 100.0;
        cells.push(if above.is_finite() { format!("{above:+.1}") } else { "–".to_owned() });
        table.rows.push(cells);
    }
    Section {
        heading: "What was chosen for the next interval".into(),
        text: vec![
            "Medians over the seeds of the part of intervals, so a line need not add up to a \
             hundred. The last column is the price of not knowing which would be the best."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn admission(rows: &[Row]) -> Section {
    let mut table = Table::new(&[
        "link",
        "forecast",
        "requests",
        "accepted, in time",
        "accepted, late",
        "refused, rightly",
        "refused, would have been in time",
        "wrong (%)",
    ]);
    for row in rows {
        for kind in [ForecastKind::Naive, ForecastKind::Chosen] {
            let count = |figure: fn(&Admissions) -> f64| {
                format!("{:.0}", row.median(|one| figure(&one.admissions(kind))))
            };
            table.push(vec![
                row.name.clone(),
                kind.name().into(),
                count(Admissions::all),
                count(|one| one.met),
                count(|one| one.missed),
                count(|one| one.spared),
                count(|one| one.lost),
                format!("{:.1}", row.median(|one| one.admissions(kind).wrong()) * 100.0),
            ]);
        }
    }
    let series = [ForecastKind::Naive, ForecastKind::Chosen].map(|kind| {
        let wrong = |row: &Row| row.median(|one| one.admissions(kind).wrong()) * 100.0;
        Series::new(kind.name(), rows.iter().map(wrong))
    });
    let chart = Chart {
        axis: "wrong answers (%)".into(),
        groups: rows.iter().map(|row| row.name.clone()).collect(),
        series: series.into(),
        across: "link".into(),
        ..Chart::default()
    };
    Section {
        heading: "Admission".into(),
        text: vec![
            "Each request alone, over an empty backlog, at the forecast's word (no prudence): \
             accepted where the mean forecast over its time carries it. Sizes are drawn around \
             what the link carries on average, so that many lie near the edge; a load of small or \
             hopeless requests would be answered rightly by any forecast."
                .into(),
        ],
        chart: Some(chart),
        table: Some(table),
    }
}
