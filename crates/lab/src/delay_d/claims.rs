//! What the paper claims about delayed discard, and whether it holds here.
//!
//! How: each claim is a figure of the paper's text and the same of these runs, and holds within a
//! tenth of the effect that the figure names, on either side. Both sides of a ratio run on one
//! device under one rule.
//! Invariant: a claim that does not hold is listed like one that does. Cost: none.
//! Not for: why; the sections say that.

use super::host::Seen;
use super::paper::{BATCH_COPIES, NVME_BATCH_PERCENT, SINGLE_COPIES, TABLES};
use super::{
    AHEAD_FREE_FEMU, AHEAD_FREE_OTHERS, AHEAD_FREE_PERMILLE, BATCH, DELAYED, DISABLED, ENABLED,
    ONWARD, PAPERS, RULES, Results, Row, SINGLE,
};
use crate::{Claim, Expected, Measurement, Unit};

/// How far times may be apart and yet be about the same, in percent.
const SAME_PERCENT: f64 = 5.0;

/// Every claim.
pub(super) fn all(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    copies(&mut claims, results);
    counts(&mut claims, results);
    times(&mut claims, results);
    claims
}

/// How many times more pages one copies for each that the host wrote.
pub(super) fn times_more(of: &Seen, than: &Seen) -> f64 {
    of.copies_per_page() / than.copies_per_page().max(f64::MIN_POSITIVE)
}

fn times_as_many(figure: f64) -> Expected {
    Expected::effect(figure, 1.0, Unit::Times)
}

fn copies(claims: &mut Vec<Claim>, results: &Results) {
    let [batch, single] = &results.scenarios[ONWARD];
    let what = "Fig. 1a, batch-erase: pages copied, Disabled to Enabled";
    let found = times_more(&batch[DISABLED], &batch[ENABLED]);
    claims.push(Claim::new(what, times_as_many(BATCH_COPIES), found));
    let what = "Fig. 3a, batch-erase: pages copied, Delay-D to Enabled, about the same";
    // The least that the paper calls a reduction is 709 times.
    let same = Expected::alike(1.0, 0.1, SINGLE_COPIES[1] - 1.0, Unit::Times);
    claims.push(Claim::new(what, same, times_more(&batch[DELAYED], &batch[ENABLED])));
    let femu = &results.thresholds[AHEAD_FREE_FEMU];
    for (permille, row) in
        [(AHEAD_FREE_PERMILLE, single), (AHEAD_FREE_OTHERS[AHEAD_FREE_FEMU], femu)]
    {
        let what = format!(
            "Fig. 3a, single-erase: pages copied, Disabled to Delay-D, cleaning below {} % free",
            f64::from(permille) / 10.0
        );
        let found = times_more(&row[DISABLED], &row[DELAYED]);
        claims.push(Claim::new(what, times_as_many(SINGLE_COPIES[0]), found));
    }
    let what = format!(
        "Fig. 3a, single-erase: pages copied, Enabled to Delay-D, both {}",
        RULES[PAPERS].name()
    );
    let row = &results.rules[PAPERS];
    let found = times_more(&row[ENABLED], &row[DELAYED]);
    claims.push(Claim::new(what, times_as_many(SINGLE_COPIES[1]), found));
}

/// What the paper prints without a figure or does not say, and what cannot come out otherwise here:
/// discards that were merged are nearly those sent by Enabled less those sent by Delay-D (what was
/// cancelled or still waits is between them), and a host that takes a fixed time for each file
/// takes the same time wherever discards never hold it up.
pub(super) fn measured(results: &Results) -> Vec<Measurement> {
    let ratio = |row: &Row| times_more(&row[ENABLED], &row[DELAYED]);
    let rules = RULES.iter().zip(&results.rules);
    let most = rules.max_by(|one, other| ratio(one.1).total_cmp(&ratio(other.1)));
    let (rule, row) = most.expect("there are rules");
    let mut all = vec![
        Measurement::new(
            "single-erase: pages copied, Enabled to Delay-D, at once",
            "",
            format!("{:.2}x", ratio(&results.scenarios[ONWARD][SINGLE])),
        ),
        Measurement::new(
            "single-erase: the most that Enabled copies to Delay-D's, of all devices here",
            "",
            format!("{:.2}x; “{}”", ratio(row), rule.name()),
        ),
    ];
    let rows = results.scenarios[ONWARD].iter().zip(&TABLES[0]);
    for ((row, paper), name) in rows.zip(["batch-erase", "single-erase"]) {
        all.push(Measurement::new(
            format!("Table 2, {name}: discards merged, Delay-D; nearly follows from those sent"),
            paper.merged.to_string(),
            format!("{:.0}", row[DELAYED].merged),
        ));
        all.push(Measurement::new(
            format!("Fig. 3b, {name}: time, Delay-D against Enabled; the host's pace decides"),
            "about the same",
            format!("{:+.1} %", later(row, DELAYED)),
        ));
    }
    all
}

fn counts(claims: &mut Vec<Claim>, results: &Results) {
    let rows = results.scenarios[ONWARD].iter().zip(&TABLES[0]);
    for ((row, paper), name) in rows.zip(["batch-erase", "single-erase"]) {
        for (what, expected, found) in [
            ("sent, Enabled", paper.enabled, row[ENABLED].sent),
            ("sent, Delay-D", paper.delayed, row[DELAYED].sent),
        ] {
            let expected = Expected::effect(f64::from(expected), 0.0, Unit::Count);
            claims.push(Claim::new(format!("Table 2, {name}: discards {what}"), expected, found));
        }
        let expected = times_as_many(f64::from(paper.enabled) / f64::from(paper.delayed));
        let found = row[ENABLED].sent / row[DELAYED].sent.max(1.0);
        let what = format!("Table 2, {name}: discards sent, Enabled to Delay-D");
        claims.push(Claim::new(what, expected, found));
    }
}

fn times(claims: &mut Vec<Claim>, results: &Results) {
    // What the paper calls faster is a quarter, on the NVMe SSD.
    let same = Expected::alike(0.0, SAME_PERCENT, NVME_BATCH_PERCENT.abs(), Unit::Percent);
    for (at, name) in [(BATCH, "batch-erase"), (SINGLE, "single-erase")] {
        let row = &results.scenarios[ONWARD][at];
        let what = format!("Fig. 3b, {name}: time, Disabled against Enabled, about the same");
        claims.push(Claim::new(what, same, later(row, DISABLED)));
    }
}

/// How much longer one side takes than Enabled, in percent.
fn later(row: &Row, side: usize) -> f64 {
    (row[side].seconds / row[ENABLED].seconds - 1.0) * 100.0
}
