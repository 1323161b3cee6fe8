//! How many discards of a real ext4 reach a volume's home: off, immediate, delayed?
//!
//! How: the test `discard` made larger through the environment, once per round with another seed;
//! it prints what became of the discards, compares every file, kills the node and checks again.
//! Invariant: a figure counts only if its test passed. Cost: a few minutes per round.
//! Not for: how long anything takes; FUSE and a loop device lie between.

use super::Arguments;
use super::entries::Plan;
use super::printed;
use super::report::{Measured, Report, Spread};
use crate::process::Failure;
use serde_json::Value;
use std::fmt::Write as _;

/// Files of one MiB, MiB of the volume, of which half are filled, and seconds that are counted.
const SCALE: [(&str, &str); 3] = [
    ("LAYBY_DISCARD_FILES", "192"),
    ("LAYBY_DISCARD_MIB", "6144"),
    ("LAYBY_DISCARD_SECONDS", "40"),
];
/// A scenario, and the reduction of delayed against immediate that the paper has.
const SCENARIOS: [(&str, f64); 2] = [("batch-erase", 3.2), ("single-erase", 4.1)];
/// What has delayed ones sent.
const CAUSES: [&str; 5] =
    ["sent_delay", "sent_write", "sent_checkpoint", "sent_full", "sent_change"];
const MODES: [&str; 4] = ["off", "immediate", "delayed 5s", "delayed 6s"];

/// Runs every scenario in every mode in every round.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let raw = printed::figures(plan, arguments, "discard", (&[], &SCALE))?;
    Ok(Measured::new(raw, |raw| Ok(report(raw))))
}

/// Of each round what `figure` says, in a scenario and a mode.
fn figures(raw: &[Value], scenario: &str, mode: &str, figure: impl Fn(&Value) -> f64) -> Vec<f64> {
    let mine = raw.iter().filter(|f| f["scenario"] == scenario && f["mode"] == mode);
    mine.map(figure).collect()
}

fn count(found: &Value, field: &str) -> f64 {
    found["discards"][field].as_f64().unwrap_or(f64::NAN)
}

/// Discards that reach the home, per GiB deleted: the modes have their own speeds.
fn sent_per_gib(found: &Value) -> f64 {
    count(found, "sent") * 1024.0 / found["deleted"].as_f64().unwrap_or(f64::NAN)
}

fn report(raw: &[Value]) -> Report {
    let mut table = String::from(
        "| scenario | mode | MiB deleted per s | received | merged | cancelled | reach the home | \
         MiB sent | per GiB deleted | fewer than immediate | rounds that reach it | \
         sent by delay, write, checkpoint, full, change |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let (mut is_met, mut is_known, mut sent, mut sent_delay) = (true, true, 0.0, 0.0);
    for (scenario, wanted) in SCENARIOS {
        let base = figures(raw, scenario, "immediate", sent_per_gib);
        for mode in MODES {
            let of = |field: &'static str| figures(raw, scenario, mode, |f| count(f, field));
            let whole = |field| Spread::of(of(field).into_iter()).whole();
            let own = figures(raw, scenario, mode, sent_per_gib);
            let ratios: Vec<f64> = base.iter().zip(&own).map(|(base, own)| base / own).collect();
            let reached = ratios.iter().filter(|ratio| **ratio >= wanted).count();
            let ratio = Spread::of(ratios.iter().copied());
            let (mut shown, mut rounds) = ("-".to_owned(), "-".to_owned());
            if mode != "off" {
                shown = ratio.fraction();
            }
            if mode.starts_with("delayed") {
                rounds = format!("{reached} of {}", ratios.len());
                is_met &= ratio.reaches(wanted);
                is_known &= ratio.is_measured();
                sent += of("sent").iter().sum::<f64>();
                sent_delay += of("sent_delay").iter().sum::<f64>();
            }
            let speed = figures(raw, scenario, mode, |found| {
                found["deleted"].as_f64().unwrap_or(f64::NAN)
                    / found["seconds"].as_f64().unwrap_or(f64::NAN)
            });
            let mib = Spread::of(of("sent_bytes").into_iter().map(|bytes| bytes / 1048576.0));
            let _ = writeln!(
                table,
                "| {scenario} | {mode} | {} | {} | {} | {} | {} | {} | {} | {shown} | \
                 {rounds} | {} |",
                Spread::of(speed.into_iter()).whole(),
                whole("received"),
                whole("merged"),
                whole("cancelled"),
                whole("sent"),
                mib.whole(),
                Spread::of(own.into_iter()).fraction(),
                CAUSES.map(whole).join(", ")
            );
        }
    }
    let scale = SCALE.map(|(name, value)| format!("{name}={value}")).join(" ");
    let _ = write!(table, "\nWanted: 3.2 times fewer in batch-erase, 4.1 in single-erase. {scale}");
    // Where rounds end before delays do, what is counted is how long a round is.
    let answer = match (is_known, is_met, 2.0 * sent_delay > sent) {
        (false, ..) => "Not measured.",
        (true, _, false) => {
            "Not shown: fewer than half of the delayed ones waited for their delay's end."
        }
        (true, true, true) => "Yes.",
        (true, false, true) => "Not as many times as wanted.",
    };
    Report { heading: format!("Do fewer discards reach the home when they wait? {answer}"), table }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(scenario: &str, mode: &str, sent: f64) -> Value {
        let mut discards = json!({ "received": 9, "merged": 1, "cancelled": 1, "sent": sent,
            "sent_bytes": 1 << 20 });
        for cause in CAUSES {
            discards[cause] = json!(if cause == "sent_delay" { sent } else { 0.0 });
        }
        json!({ "scenario": scenario, "mode": mode, "deleted": 1024, "seconds": 40,
            "discards": discards })
    }

    /// Goal: a mode, or what it is compared with, that is absent is not taken for one that meets
    /// its bar. Method: rows that meet every bar; then without one mode, without immediate ones,
    /// and with a figure that is missing.
    #[test]
    fn absent_rows_meet_no_bar() {
        let all: Vec<Value> = SCENARIOS
            .iter()
            .flat_map(|(scenario, _)| MODES.map(|mode| (*scenario, mode)))
            .map(|(scenario, mode)| {
                found(scenario, mode, if mode.starts_with("delayed") { 10.0 } else { 100.0 })
            })
            .collect();
        let heading = |raw: &[Value]| report(raw).heading;
        assert!(heading(&all).ends_with("Yes."), "{}", heading(&all));
        for mode in ["immediate", "delayed 5s", "delayed 6s"] {
            let some: Vec<Value> = all.iter().filter(|row| row["mode"] != mode).cloned().collect();
            assert!(heading(&some).ends_with("Not measured."), "{mode}: {}", heading(&some));
            assert!(report(&some).table.contains("not measured"));
        }
        let mut without = all.clone();
        without[2]["discards"]["sent"] = Value::Null;
        assert!(heading(&without).ends_with("Not measured."), "{}", heading(&without));
    }
}
