//! What the paper claims about delayed discard, and whether it holds here.
//!
//! How: each claim is a figure of the paper's text and the same of these runs. Numbers of discards
//! count as met within a factor of three: what a volume's layout makes of them is not published.
//! Invariant: a claim that does not hold is listed like one that does. Cost: none.
//! Not for: why; the sections say that.

use super::host::Seen;
use super::paper::{BATCH_COPIES, SINGLE_COPIES, TABLES};
use super::{BATCH, DELAYED, DISABLED, ENABLED, IN_ORDER, LATE, ONWARD, Results, SINGLE};
use crate::Claim;

/// As much as "of the same order".
const SAME_ORDER: f64 = 3.0;
/// "Far above", and "at least two orders of magnitude".
const FAR: f64 = 100.0;

/// Every claim.
pub(super) fn all(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    copies(&mut claims, results);
    ordering(&mut claims, results);
    counts(&mut claims, results);
    times(&mut claims, results);
    claims
}

fn say(claims: &mut Vec<Claim>, what: String, expected: String, found: String, holds: bool) {
    claims.push(Claim { what, expected, found, holds });
}

/// How many times more pages one copies for each that the host wrote.
pub(super) fn times_more(of: &Seen, than: &Seen) -> f64 {
    of.copies_per_page() / than.copies_per_page().max(f64::MIN_POSITIVE)
}

fn copies(claims: &mut Vec<Claim>, results: &Results) {
    let [batch, single] = &results.scenarios[ONWARD];
    let found = times_more(&batch[DISABLED], &batch[ENABLED]);
    say(
        claims,
        "Fig. 1a, batch-erase: pages copied, Disabled to Enabled".into(),
        format!("up to {BATCH_COPIES}x; far above"),
        format!("{found:.0}x"),
        found >= FAR,
    );
    let found = times_more(&batch[DELAYED], &batch[ENABLED]);
    say(
        claims,
        "Fig. 3a, batch-erase: pages copied, Delay-D to Enabled".into(),
        "about the same".into(),
        format!("{found:.2}x"),
        (0.5..=2.0).contains(&found),
    );
    let found = times_more(&single[DISABLED], &single[DELAYED]);
    say(
        claims,
        "Fig. 3a, single-erase: pages copied, Disabled to Delay-D".into(),
        format!("{}x; two orders of magnitude", SINGLE_COPIES[0]),
        format!("{found:.0}x"),
        found >= FAR,
    );
}

fn ordering(claims: &mut Vec<Claim>, results: &Results) {
    let delayed = &results.rules[IN_ORDER][DELAYED];
    for (rule, how) in [(IN_ORDER, "both in order"), (LATE, "Enabled's late")] {
        let found = times_more(&results.rules[rule][ENABLED], delayed);
        say(
            claims,
            format!("Fig. 3a, single-erase: pages copied, Enabled to Delay-D, {how}"),
            format!("{}x", SINGLE_COPIES[1]),
            if found < 10.0 { format!("{found:.2}x") } else { format!("{found:.0}x") },
            found >= FAR,
        );
    }
}

fn counts(claims: &mut Vec<Claim>, results: &Results) {
    let rows = results.scenarios[ONWARD].iter().zip(&TABLES[0]);
    for ((row, paper), name) in rows.zip(["batch-erase", "single-erase"]) {
        for (what, expected, found) in [
            ("sent, Enabled", paper.enabled, row[ENABLED].sent),
            ("sent, Delay-D", paper.delayed, row[DELAYED].sent),
            ("merged, Delay-D", paper.merged, row[DELAYED].merged),
        ] {
            let ratio = found / f64::from(expected);
            say(
                claims,
                format!("Table 2, {name}: discards {what}"),
                format!("{expected}"),
                format!("{found:.0}"),
                (1.0 / SAME_ORDER..=SAME_ORDER).contains(&ratio),
            );
        }
        let expected = f64::from(paper.enabled) / f64::from(paper.delayed);
        let found = row[ENABLED].sent / row[DELAYED].sent.max(1.0);
        say(
            claims,
            format!("Table 2, {name}: fewer discards sent by Delay-D than by Enabled"),
            format!("{expected:.1}x fewer or more"),
            format!("{found:.1}x fewer"),
            found >= expected,
        );
    }
}

fn times(claims: &mut Vec<Claim>, results: &Results) {
    for (at, name) in [(BATCH, "batch-erase"), (SINGLE, "single-erase")] {
        let row = &results.scenarios[ONWARD][at];
        let change = (row[DELAYED].seconds / row[ENABLED].seconds - 1.0) * 100.0;
        say(
            claims,
            format!("Fig. 3b, {name}: time, Delay-D against Enabled"),
            "about the same".into(),
            format!("{change:+.1} %"),
            change.abs() <= 5.0,
        );
    }
}
