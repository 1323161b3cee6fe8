//! What the paper and this project claim, and whether it holds here.
//!
//! How: each claim is a printed figure against that of two architectures here, and holds within a
//! tenth of the effect that the figure names, on either side. What the paper says without a size
//! is a measurement.
//! Invariant: a claim that does not hold is listed like one that does. Cost: none.
//! Not for: why; the sections say that.

use super::cost::{BUDGETS_PERCENT, Costs, Means, OBJECTIVES};
use super::figures::{Figures, change};
use super::paper::{
    CRITICAL_PERCENT, ENDURANCE_RATIO, EXPONENTS, HITS_POINTS, NORMAL_PERCENT, UPPER_HITS_POINTS,
    WORKLOADS,
};
use super::{Results, place};
use crate::document::{extent, figure, signed};
use crate::{Claim, Expected, Measurement, Unit};
use layby_sim::fleet::Architecture;
use layby_sim::fleet::Architecture::{Etica, Layby, Padsa, Shared};

const CRITICAL: usize = 0;
const NORMAL: usize = 1;
const ALL: usize = 2;
/// Places of [`Figures::worn`].
const NVM: usize = 0;
const SSD: usize = 1;
/// The workload whose normal services the paper says lose.
const LOSING: usize = 3;

/// Every claim.
pub(super) fn all(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    for baseline in [Shared, Etica] {
        critical(&mut claims, results, baseline);
        normal(&mut claims, results, baseline);
        hits(&mut claims, results, baseline);
        endurance(&mut claims, results, baseline);
    }
    claims
}

/// What is said without a size.
pub(super) fn measured(results: &Results, costs: &Costs) -> Vec<Measurement> {
    let mut all: Vec<Measurement> =
        [Shared, Etica].into_iter().map(|baseline| everyone(results, baseline)).collect();
    all.extend([Shared, Etica].map(|baseline| endurance_of_nvm(results, baseline)));
    all.extend(equal_cost(costs));
    all.extend(beyond(results));
    all
}

fn critical(claims: &mut Vec<Claim>, results: &Results, baseline: Architecture) {
    for (index, (workload, expected)) in WORKLOADS.iter().zip(CRITICAL_PERCENT).enumerate() {
        let row = &results[index];
        let found = change(row[place(baseline)].read[CRITICAL], row[place(Padsa)].read[CRITICAL]);
        let what = format!(
            "Fig. 7, {workload:?}: critical mean read latency, PADSA against {}",
            baseline.name()
        );
        claims.push(Claim::new(what, Expected::effect(expected, 0.0, Unit::Percent), found));
    }
}

/// Workload D alone: under A to C normal services read nothing twice, so that every architecture
/// reads all of it from home, and their latency is a constant of the devices.
fn normal(claims: &mut Vec<Claim>, results: &Results, baseline: Architecture) {
    let (row, workload) = (&results[LOSING], WORKLOADS[LOSING]);
    let found = change(row[place(baseline)].read[NORMAL], row[place(Padsa)].read[NORMAL]);
    let expected = Expected::effect(NORMAL_PERCENT[LOSING], 0.0, Unit::Percent);
    let what = format!(
        "Fig. 7, {workload:?}: normal mean read latency, PADSA against {}",
        baseline.name()
    );
    claims.push(Claim::new(what, expected, found));
}

fn everyone(results: &Results, baseline: Architecture) -> Measurement {
    let changes: Vec<f64> = results
        .iter()
        .map(|row| change(row[place(baseline)].read[ALL], row[place(Padsa)].read[ALL]))
        .collect();
    let better = changes.iter().filter(|change| **change < 0.0).count();
    let cells: Vec<String> = changes.iter().map(|change| signed(*change, 2) + " %").collect();
    Measurement::new(
        format!("Fig. 7: all services' mean read latency, PADSA against {}", baseline.name()),
        "better in all four",
        format!("better in {better}: {}", cells.join(", ")),
    )
}

/// The mean over the workloads of what critical reads gain, in points.
fn gained(results: &Results, baseline: Architecture, figure: impl Fn(&Figures) -> f64) -> f64 {
    let points = results
        .iter()
        .map(|row| (figure(&row[place(Padsa)]) - figure(&row[place(baseline)])) * 100.0);
    points.sum::<f64>() / results.len() as f64
}

fn hits(claims: &mut Vec<Claim>, results: &Results, baseline: Architecture) {
    let mut say = |figure: &str, expected: f64, found: f64| {
        let what = format!("{figure}, PADSA against {}, mean of A to D", baseline.name());
        claims.push(Claim::new(what, Expected::effect(expected, 0.0, Unit::Points), found));
    };
    let all = gained(results, baseline, |figures| figures.hits[CRITICAL]);
    say("Fig. 8: critical hit ratio", HITS_POINTS, all);
    for (level, name) in [(0, "DRAM"), (1, "NVM")] {
        let found = gained(results, baseline, |figures| figures.found[level]);
        say(&format!("Fig. 9: critical reads found in {name}"), UPPER_HITS_POINTS[level], found);
    }
}

/// The most that PADSA saves of a baseline's writes to a level, over the workloads.
fn lasts(results: &Results, baseline: Architecture, level: usize) -> f64 {
    let ratios =
        results.iter().map(|row| row[place(baseline)].worn[level] / row[place(Padsa)].worn[level]);
    extent(ratios).map_or(f64::NAN, |(_, greatest)| greatest)
}

/// SSD alone: what a baseline writes to NVM over what PADSA writes is the load's own ratio.
fn endurance(claims: &mut Vec<Claim>, results: &Results, baseline: Architecture) {
    let what = format!("Fig. 10: the most endurance of SSD, PADSA against {}", baseline.name());
    let expected = Expected::effect(ENDURANCE_RATIO, 1.0, Unit::Times);
    claims.push(Claim::new(what, expected, lasts(results, baseline, SSD)));
}

fn endurance_of_nvm(results: &Results, baseline: Architecture) -> Measurement {
    let found = figure(lasts(results, baseline, NVM), 1);
    Measurement::new(
        format!("Fig. 10: the most endurance of NVM, PADSA against {}", baseline.name()),
        format!("up to {:.0} %, on NVM and SSD", ENDURANCE_RATIO * 100.0),
        format!("{found} times: all writes over those of critical services, so the load's ratio"),
    )
}

/// What three levels gain over the better of the two others: by reads alone, by both.
pub(super) fn gains(row: &Means) -> [f64; 2] {
    [0, 1].map(|objective| change(row[0][objective].min(row[1][objective]), row[2][objective]))
}

/// Fig. 3: the paper prints no sizes, and does not say which budget and whether writes count.
fn equal_cost(costs: &Costs) -> Vec<Measurement> {
    let mut all: Vec<Measurement> = Vec::new();
    for (rows, budget) in costs.iter().zip(BUDGETS_PERCENT) {
        for (objective, counted) in OBJECTIVES.into_iter().enumerate() {
            let found: Vec<f64> = rows.iter().map(|row| gains(row)[objective]).collect();
            let wins = found.iter().filter(|gain| **gain < 0.0).count();
            let cells: Vec<String> = found.iter().map(|gain| signed(*gain, 1) + " %").collect();
            all.push(Measurement::new(
                format!("Fig. 3: three levels against the better two, {budget} %, {counted}"),
                "better for all four exponents, most at 1.2",
                format!("better for {wins} of {}: {}", EXPONENTS.len(), cells.join(", ")),
            ));
        }
    }
    all
}

/// The least and the greatest; no numbers where there is none.
pub(super) fn range(figures: impl Iterator<Item = f64>) -> (f64, f64) {
    extent(figures).unwrap_or((f64::NAN, f64::NAN))
}

/// What this project's own allocation does.
fn beyond(results: &Results) -> Vec<Measurement> {
    let changes = |from: Architecture, side: usize| {
        let of =
            |row: &[Figures]| change(row[place(from)].both[side], row[place(Layby)].both[side]);
        let (least, greatest) = range(results.iter().map(|row| of(row)));
        format!("{} to {} %", signed(least, 2), signed(greatest, 2))
    };
    let mut all = vec![Measurement::new(
        "Layby: critical services against PADSA, reads and writes, A to D",
        "",
        changes(Padsa, CRITICAL),
    )];
    all.extend([Shared, Etica].map(|from| {
        let what = format!("Layby: normal services against {}, reads and writes", from.name());
        Measurement::new(what, "", changes(from, NORMAL))
    }));
    for (level, name) in [(0, "NVM"), (1, "SSD")] {
        let of = |row: &[Figures]| row[place(Layby)].worn[level] / row[place(Padsa)].worn[level];
        let (least, greatest) = range(results.iter().map(|row| of(row)));
        let what = format!("Layby: blocks written to {name} against PADSA, A to D");
        let digits = if greatest < 1.0 { 3 } else { 1 };
        let found = format!("{} to {} times", figure(least, digits), figure(greatest, digits));
        all.push(Measurement::new(what, "", found));
    }
    all
}
