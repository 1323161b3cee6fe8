//! What is claimed of the forecasts, and whether it holds here.
//!
//! How: this project's own claims, in `docs/lab.md`: what the chosen forecast's error is relative
//! to naive's on each drawn link, where naive would be one. What is at most so much, or of recorded
//! links, is measured.
//! Invariant: a claim that does not hold is listed like one that does. Cost: none.

use super::Row;
use super::measure::Measured;
use super::policy::{ForecastKind, HORIZONS};
use crate::{Claim, Expected, Measurement, Unit};
use layby_trace::LinkShape;

/// The chosen forecast's error one interval ahead, relative to naive's; and its wrong answers.
const CHOSEN: [(LinkShape, f64, f64); 6] = [
    (LinkShape::LteStatic, 0.737, 0.49),
    (LinkShape::LteDriving, 0.846, 0.80),
    (LinkShape::MmWave, 0.967, 0.70),
    (LinkShape::Highway, 0.872, 0.88),
    (LinkShape::Satellite, 0.833, 0.68),
    (LinkShape::Congested, 0.992, 0.75),
];
/// How much of the effect another seed may move.
const TOLERANCE: f64 = 0.5;

fn of(figure: f64) -> Expected {
    Expected::effect(figure, 1.0, Unit::Times).within((1.0 - figure) * TOLERANCE)
}

/// Every claim.
pub(super) fn all(rows: &[Row]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (shape, error, answers) in CHOSEN {
        let Some(row) = rows.iter().find(|row| row.name == shape.name()) else { continue };
        let name = shape.name();
        let what = format!("{name}: the chosen forecast's error to naive's, one interval ahead");
        let found = row.median(|one| one.relative(ForecastKind::Chosen, 0));
        claims.push(Claim::new(what, of(error), found));
        let what = format!("{name}: wrong answers of admission, chosen to naive");
        claims.push(Claim::new(what, of(answers), row.median(wrong)));
    }
    claims
}

/// What has no size of its own.
pub(super) fn measured(rows: &[Row]) -> Vec<Measurement> {
    let errors = HORIZONS.iter().enumerate().map(|(at, horizon)| {
        let ahead = horizon.get();
        let what = format!("the chosen forecast's error below naive's, {ahead} intervals ahead");
        count(what, rows, |one| one.relative(ForecastKind::Chosen, at))
    });
    let mut all: Vec<Measurement> = errors.collect();
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

/// Wrong answers with the chosen forecast over those with naive.
pub(super) fn wrong(one: &Measured) -> f64 {
    let of = |kind| one.admissions(kind).wrong();
    of(ForecastKind::Chosen) / of(ForecastKind::Naive).max(f64::MIN_POSITIVE)
}

/// On how many links and seeds `figure` is below one, and where it is the most.
fn count(what: String, rows: &[Row], figure: impl Fn(&Measured) -> f64) -> Measurement {
    let all = rows.iter().flat_map(|row| row.runs.iter().map(move |run| (&row.name, run)));
    let figures: Vec<(&String, f64)> = all.map(|(name, run)| (name, figure(run))).collect();
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
    Measurement::new(what, "", found)
}
