//! What is claimed of the forecasts, and whether it holds here.
//!
//! How: each claim looks at every link and every seed, and tells the one where it holds least.
//! Invariant: a claim that does not hold is listed like one that does. Cost: none.

use super::Row;
use super::measure::Measured;
use super::policy::{ForecastKind, HORIZONS};
use crate::Claim;

/// How near the chooser should be to the best of its choices in hindsight.
const HINDSIGHT: f64 = 1.05;

/// Every claim.
pub(super) fn all(rows: &[Row]) -> Vec<Claim> {
    let ahead = |at: usize| match HORIZONS[at].get() {
        1 => "one interval ahead".to_owned(),
        intervals => format!("{intervals} intervals ahead"),
    };
    let errors = (0..HORIZONS.len()).map(|at| {
        let what = format!("the chosen forecast's error is below naive's, {}", ahead(at));
        below(what, rows, |one| one.relative(ForecastKind::Chosen, at), 1.0)
    });
    let mut claims: Vec<Claim> = errors.collect();
    let what = "the chosen forecast's error is within 5 % of the best choice in hindsight";
    claims.push(below(what.into(), rows, hindsight, HINDSIGHT));
    let what = "admission answers wrongly less often with the chosen forecast than with naive";
    claims.push(below(what.into(), rows, wrong, 1.0));
    claims
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

/// `figure` is below `bound` on every link under every seed.
fn below(what: String, rows: &[Row], figure: impl Fn(&Measured) -> f64, bound: f64) -> Claim {
    let all = rows.iter().flat_map(|row| row.runs.iter().map(move |run| (&row.name, run)));
    let figures: Vec<(&String, f64)> = all.map(|(name, run)| (name, figure(run))).collect();
    let holding = figures.iter().filter(|(_, found)| *found < bound).count();
    let worst = figures.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    Claim {
        what,
        expected: "on every link and seed".into(),
        found: match worst {
            Some((name, found)) => format!(
                "on {holding} of {}; {:+.1} % at worst, on {name}",
                figures.len(),
                (found - 1.0) * 100.0
            ),
            None => "nothing was measured".into(),
        },
        holds: holding == figures.len(),
    }
}
