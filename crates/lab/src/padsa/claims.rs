//! What the paper and this project claim, and whether it holds here.
//!
//! How: each claim compares figures of two architectures, at the workload where it holds least.
//! Invariant: a claim that does not hold is listed like one that does. Cost: none.
//! Not for: why; the sections say that.

use super::cost::{BUDGETS_PERCENT, Costs, Means};
use super::figures::change;
use super::paper::{
    CRITICAL_PERCENT, ENDURANCE_RATIO, EXPONENTS, HITS_POINTS, NORMAL_TOLERANCE_PERCENT, WORKLOADS,
};
use super::{Results, place};
use crate::Claim;
use layby_sim::fleet::Architecture;
use layby_sim::fleet::Architecture::{Etica, Layby, Padsa, Shared};

const CRITICAL: usize = 0;
const NORMAL: usize = 1;
const ALL: usize = 2;

/// Every claim.
pub(super) fn all(results: &Results, costs: &Costs) -> Vec<Claim> {
    let mut claims = Vec::new();
    for baseline in [Shared, Etica] {
        critical(&mut claims, results, baseline);
        normal(&mut claims, results, baseline);
        everyone(&mut claims, results, baseline);
        hits(&mut claims, results, baseline);
        endurance(&mut claims, results, baseline);
    }
    equal_cost(&mut claims, costs);
    beyond(&mut claims, results);
    claims
}

fn critical(claims: &mut Vec<Claim>, results: &Results, baseline: Architecture) {
    for (index, (workload, expected)) in WORKLOADS.iter().zip(CRITICAL_PERCENT).enumerate() {
        let row = &results[index];
        let found = change(row[place(baseline)].read[CRITICAL], row[place(Padsa)].read[CRITICAL]);
        claims.push(Claim {
            what: format!(
                "Fig. 7, {workload:?}: critical mean read latency, PADSA against {}",
                baseline.name()
            ),
            expected: format!("{expected:.0} % or less"),
            found: format!("{found:+.1} %"),
            holds: found <= expected,
        });
    }
}

fn normal(claims: &mut Vec<Claim>, results: &Results, baseline: Architecture) {
    let changes = results
        .iter()
        .take(3)
        .map(|row| change(row[place(baseline)].read[NORMAL], row[place(Padsa)].read[NORMAL]));
    let worst = changes.fold(0.0, |a: f64, b| if b.abs() > a.abs() { b } else { a });
    claims.push(Claim {
        what: format!(
            "Fig. 7, A to C: normal mean read latency, PADSA against {}",
            baseline.name()
        ),
        expected: format!("within {NORMAL_TOLERANCE_PERCENT:.0} %"),
        found: format!("{worst:+.2} % at most"),
        holds: worst.abs() <= NORMAL_TOLERANCE_PERCENT,
    });
}

fn everyone(claims: &mut Vec<Claim>, results: &Results, baseline: Architecture) {
    let changes = results
        .iter()
        .map(|row| change(row[place(baseline)].read[ALL], row[place(Padsa)].read[ALL]));
    let worst = changes.fold(f64::MIN, f64::max);
    claims.push(Claim {
        what: format!(
            "Fig. 7, A to D: all services' mean read latency, PADSA against {}",
            baseline.name()
        ),
        expected: "better in all four".into(),
        found: format!("{worst:+.2} % at worst"),
        holds: worst < 0.0,
    });
}

fn hits(claims: &mut Vec<Claim>, results: &Results, baseline: Architecture) {
    let points = results.iter().map(|row| {
        (row[place(Padsa)].hits[CRITICAL] - row[place(baseline)].hits[CRITICAL]) * 100.0
    });
    let mean = points.sum::<f64>() / results.len() as f64;
    claims.push(Claim {
        what: format!("Fig. 8: critical hit ratio, PADSA against {}", baseline.name()),
        expected: format!("{HITS_POINTS:+.0} points on average"),
        found: format!("{mean:+.1} points"),
        holds: mean >= HITS_POINTS,
    });
}

fn endurance(claims: &mut Vec<Claim>, results: &Results, baseline: Architecture) {
    let best = |level: usize| {
        let ratios = results
            .iter()
            .map(|row| row[place(baseline)].worn[level] / row[place(Padsa)].worn[level]);
        ratios.fold(0.0, f64::max)
    };
    for (level, name) in [(0, "NVM"), (1, "SSD")] {
        claims.push(Claim {
            what: format!("Fig. 10: endurance of {name}, PADSA against {}", baseline.name()),
            expected: format!("up to {ENDURANCE_RATIO} or more"),
            found: format!("{:.2}", best(level)),
            holds: best(level) >= ENDURANCE_RATIO,
        });
    }
}

/// Fig. 3 is about mixed workloads, so reads and writes count.
fn equal_cost(claims: &mut Vec<Claim>, costs: &Costs) {
    let gain = |row: &Means| change(row[0][1].min(row[1][1]), row[2][1]);
    let wins = |rows: &[Means]| rows.iter().filter(|row| gain(row) < 0.0).count();
    let most = costs.iter().map(|rows| wins(rows)).max().unwrap_or_default();
    let mut budgets = costs.iter().zip(BUDGETS_PERCENT);
    let (rows, budget) = budgets.find(|(rows, _)| wins(*rows) == most).expect("one has most");
    claims.push(Claim {
        what: "Fig. 3: three levels beat two at equal cost, mean latency".into(),
        expected: "for all four exponents".into(),
        found: format!("for {most} of {} at the budget of {budget} %", EXPONENTS.len()),
        holds: most == EXPONENTS.len(),
    });
    let (least, most) = (gain(&rows[0]), gain(&rows[EXPONENTS.len() - 1]));
    claims.push(Claim {
        what: "Fig. 3: the gain grows with locality".into(),
        expected: "more at 1.2 than at 1.01".into(),
        found: format!("{least:+.1} % at 1.01, {most:+.1} % at 1.2"),
        holds: most < least,
    });
}

/// What this project adds: critical services as with PADSA, the others as if they had all levels.
fn beyond(claims: &mut Vec<Claim>, results: &Results) {
    let worst = |from: Architecture, figure: &dyn Fn(&super::Figures) -> f64| {
        let changes =
            results.iter().map(|row| change(figure(&row[place(from)]), figure(&row[place(Layby)])));
        changes.fold(f64::MIN, f64::max)
    };
    let sc = worst(Padsa, &|figures| figures.both[CRITICAL]);
    claims.push(Claim {
        what: "Layby: critical services against PADSA, reads and writes, A to D".into(),
        expected: "no worse".into(),
        found: format!("{sc:+.2} % at worst"),
        holds: sc <= 0.0,
    });
    for baseline in [Shared, Etica] {
        let normal = worst(baseline, &|figures| figures.both[NORMAL]);
        claims.push(Claim {
            what: format!(
                "Layby: normal services against {}, reads and writes, A to D",
                baseline.name()
            ),
            expected: "no more than 1 % worse".into(),
            found: format!("{normal:+.2} % at worst"),
            holds: normal <= 1.0,
        });
    }
    for (level, name) in [(0, "NVM"), (1, "SSD")] {
        let ratios =
            results.iter().map(|row| row[place(Padsa)].worn[level] / row[place(Layby)].worn[level]);
        let least = ratios.fold(f64::MAX, f64::min);
        claims.push(Claim {
            what: format!("Layby: endurance of {name} against PADSA"),
            expected: "no less".into(),
            found: format!("{least:.2} at least"),
            holds: least >= 1.0,
        });
    }
}
