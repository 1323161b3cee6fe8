//! What the paper found, whether the first gateway shows it, and whether the second one cures it.
//!
//! Invariant: a claim that does not hold is listed like one that does. Cost: none.

use super::{CACHES, CASES, LINK, MB, Run, WORKLOADS, median};
use crate::Claim;

/// How near the fitted gateway comes to Table II.
const FIT_PERCENT: f64 = 15.0;
/// The lower end of the paper's band for tiny and small files, in MB/s.
const BAND: f64 = 2.0;
/// What is asked of every upload: so much of the link.
const SHARE: f64 = 0.95;
/// How much later deep trees may be in the store than flat ones.
const DEEP: f64 = 1.05;

/// Of a workload: bytes per second that went up when nothing else held them up, over the link's.
pub(super) fn share(runs: &[Run], at: usize, gateway: usize) -> f64 {
    median(runs, |run| run.workloads[at].flat[gateway].drain_rate()) / LINK as f64
}

/// Time that a deep tree takes to the store over a flat one's.
pub(super) fn deep_over_flat(runs: &[Run], at: usize, gateway: usize) -> f64 {
    let rate = |outcome: &layby_sim::gateway::Outcome| {
        outcome.bytes as f64 / outcome.stored.since(outcome.written).as_secs_f64()
    };
    median(runs, |run| {
        let of = &run.workloads[at];
        rate(&of.flat[gateway]) / rate(&of.deep[gateway])
    })
}

/// MB/s that clients write.
pub(super) fn written(runs: &[Run], at: usize, gateway: usize) -> f64 {
    median(runs, |run| run.workloads[at].written[gateway].write_rate()) / MB as f64
}

/// Every claim.
pub(super) fn all(runs: &[Run]) -> Vec<Claim> {
    let all = 0..WORKLOADS.len();
    let worst = |figure: &dyn Fn(usize) -> f64| all.clone().map(figure).fold(0.0, f64::max);
    let least = |figure: &dyn Fn(usize) -> f64| all.clone().map(figure).fold(f64::MAX, f64::min);
    vec![
        fit(runs),
        Claim::of_bundles_tiny(written(runs, 0, 1)),
        same_for_all_caches(runs),
        uploads(least(&|at| share(runs, at, 1))),
        one_by_one(share(runs, 0, 0), share(runs, 4, 0)),
        deep(worst(&|at| deep_over_flat(runs, at, 1)), deep_over_flat(runs, 0, 0)),
        cases(runs, 0),
        cases(runs, 1),
    ]
}

fn fit(runs: &[Run]) -> Claim {
    let off = WORKLOADS.iter().enumerate().filter_map(|(at, of)| {
        let paper = of.paper?;
        Some(((written(runs, at, 0) / paper - 1.0) * 100.0).abs())
    });
    let off = off.fold(0.0, f64::max);
    Claim {
        what: "time per file and bandwidth explain Table II (the object gateway)".into(),
        expected: format!("10.7, 39.2 and 177.9 MB/s within {FIT_PERCENT} %"),
        found: format!("off by {off:.1} % at most"),
        holds: off <= FIT_PERCENT,
    }
}

impl Claim {
    fn of_bundles_tiny(found: f64) -> Claim {
        Claim {
            what: "finding 1: tiny files do not crawl (bundles)".into(),
            expected: format!("{:.0} MB/s, ten times the least of the paper's", 10.0 * BAND),
            found: format!("{found:.1} MB/s"),
            holds: found >= 10.0 * BAND,
        }
    }
}

fn same_for_all_caches(runs: &[Run]) -> Claim {
    let rates = (0..CACHES.len()).map(|at| median(runs, |run| run.caches[at].write_rate()));
    let rates: Vec<f64> = rates.collect();
    let (least, most) =
        rates.iter().fold((f64::MAX, 0.0_f64), |(a, b), rate| (a.min(*rate), b.max(*rate)));
    Claim {
        what: "finding 3: a larger cache is never slower (bundles)".into(),
        expected: "99 to 3200 GB: the same".into(),
        found: format!("{:.1} to {:.1} MB/s", least / MB as f64, most / MB as f64),
        holds: rates.is_sorted(),
    }
}

fn uploads(least: f64) -> Claim {
    Claim {
        what: "finding 4: every workload fills the link (bundles)".into(),
        expected: format!("{SHARE} of the link or more"),
        found: format!("{least:.3} at least"),
        holds: least >= SHARE,
    }
}

fn one_by_one(tiny: f64, huge: f64) -> Claim {
    Claim {
        what: "finding 4: only large objects fill it (the object gateway)".into(),
        expected: "Tiny far below Huge".into(),
        found: format!("{tiny:.3} and {huge:.3} of the link"),
        holds: tiny < 0.5 * huge,
    }
}

fn deep(ours: f64, paper: f64) -> Claim {
    Claim {
        what: "finding 5: deep trees go up as fast as flat ones (bundles)".into(),
        expected: format!("{DEEP} of their time at most; the object gateway is far above"),
        found: format!("{ours:.3} at most; the object gateway's tiny files {paper:.1}"),
        holds: ours <= DEEP && paper > DEEP,
    }
}

/// Whether a gateway's cases end as they should: the first one's as the paper's, ours all well.
fn cases(runs: &[Run], gateway: usize) -> Claim {
    let is_ours = gateway == 1;
    let ends = |at: usize| runs.iter().all(|run| !run.cases[at][gateway].has_failed);
    let good = (0..CASES.len()).filter(|at| ends(*at) == (is_ours || CASES[*at].passes)).count();
    let (what, expected) = match is_ours {
        true => ("finding 6: Table IV's bursts pass (bundles)", "all of them"),
        false => {
            ("finding 6: Table IV's bursts fail as the paper's (the object gateway)", "as they")
        }
    };
    let longest = runs.iter().flat_map(|run| run.cases.iter());
    let longest = longest.map(|case| case[gateway].longest_wait.as_secs_f64()).fold(0.0, f64::max);
    Claim {
        what: what.into(),
        expected: expected.into(),
        found: format!("{good} of {}; a write waited {longest:.1} s at most", CASES.len()),
        holds: good == CASES.len(),
    }
}
