//! What was found of the forecasts. Nothing is claimed.
//!
//! How: the chosen forecast's error and its wrong answers on each link, relative to naive's, and on
//! how many links and seeds they are below it.
//! Invariant: no figure is compared with one that this code printed before; the source prints none.
//! Cost: none.

use super::Row;
use super::measure::Measured;
use super::policy::{ForecastKind, HORIZONS};
use crate::Measurement;
use crate::document::figure as shown;

/// Every measurement.
pub(super) fn all(rows: &[Row]) -> Vec<Measurement> {
    let mut all = Vec::new();
    for row in rows {
        let name = &row.name;
        let what = format!("{name}: the chosen forecast's error to naive's, one interval ahead");
        all.push(median(what, row, |one| one.relative(ForecastKind::Chosen, 0)));
        let what = format!("{name}: wrong answers of admission, chosen to naive");
        all.push(median(what, row, wrong));
    }
    all.extend(HORIZONS.iter().enumerate().map(|(at, horizon)| {
        let ahead = horizon.get();
        let what = format!("the chosen forecast's error below naive's, {ahead} intervals ahead");
        count(what, rows, |one| one.relative(ForecastKind::Chosen, at))
    }));
    let what = "the chosen forecast's error below the best choice in hindsight";
    all.push(count(what.into(), rows, hindsight));
    let what = "admission answers wrongly less often with the chosen forecast than with naive";
    all.push(count(what.into(), rows, wrong));
    all
}

/// The chooser's error over that of the best of its choices, one interval ahead.
pub(super) fn hindsight(one: &Measured) -> f64 {
    let errors = ForecastKind::CHOICES.map(|kind| one.relative(kind, 0));
    one.relative(ForecastKind::Chosen, 0) / errors.into_iter().fold(f64::MAX, f64::min)
}

/// Wrong answers with the chosen forecast over those with naive; no number where naive has none.
pub(super) fn wrong(one: &Measured) -> f64 {
    let of = |kind| one.admissions(kind).wrong();
    let naive = of(ForecastKind::Naive);
    if naive > 0.0 { of(ForecastKind::Chosen) / naive } else { f64::NAN }
}

/// A figure of a link.
fn median(what: String, row: &Row, figure: impl Fn(&Measured) -> f64) -> Measurement {
    Measurement::new(what, "", shown(row.median(figure), 3))
}

/// On how many links and seeds `figure` is below one, and where it is the most.
fn count(what: String, rows: &[Row], figure: impl Fn(&Measured) -> f64) -> Measurement {
    let all = rows.iter().flat_map(|row| row.runs.iter().map(move |run| (&row.name, run)));
    let figures = all.map(|(name, run)| (name, figure(run))).filter(|(_, it)| it.is_finite());
    let figures: Vec<(&String, f64)> = figures.collect();
    let below = figures.iter().filter(|(_, found)| *found < 1.0).count();
    let worst = figures.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    let found = match worst {
        Some((name, found)) => format!(
            "on {below} of {} links and seeds; {:+.1} % at worst, on {name}",
            figures.len(),
            (found - 1.0) * 100.0
        ),
        None => "nothing was measured".into(),
    };
    Measurement::new(what, "", found).of_all_seeds()
}
