//! How many discards of a real ext4 reach a volume's home: off, immediate, delayed?
//!
//! How: the test `discard` made larger through the environment, once per round with another seed;
//! it prints what became of the discards, compares every file, kills the node and checks again.
//! Invariant: a figure counts only if its test passed. Cost: a few minutes per round.
//! Not for: how long anything takes; FUSE and a loop device lie between.

use super::Arguments;
use super::entries::Plan;
use super::printed;
use super::report::{Report, Spread};
use crate::process::Failure;
use serde_json::Value;
use std::fmt::Write as _;

/// Files of one MiB, rounds of the batch, steps of one file, MiB of the volume.
const SCALE: [(&str, &str); 4] = [
    ("LAYBY_DISCARD_FILES", "96"),
    ("LAYBY_DISCARD_ROUNDS", "12"),
    ("LAYBY_DISCARD_STEPS", "1200"),
    ("LAYBY_DISCARD_MIB", "384"),
];
/// A scenario, and the reduction of delayed against immediate that is wanted at least.
const SCENARIOS: [(&str, f64); 2] = [("batch-erase", 3.2), ("single-erase", 4.1)];
/// What has delayed ones sent.
const CAUSES: [&str; 5] =
    ["sent_delay", "sent_write", "sent_checkpoint", "sent_full", "sent_change"];
const MODES: [&str; 3] = ["off", "immediate", "delayed"];

/// Runs every scenario in every mode in every round.
pub(crate) fn measure(
    plan: &Plan<'_>,
    arguments: &Arguments,
) -> Result<(Vec<Value>, Report), Failure> {
    let raw = printed::figures(plan, arguments, "discard", (&[], &SCALE))?;
    let report = report(&raw);
    Ok((raw, report))
}

fn figures(raw: &[Value], scenario: &str, mode: &str, field: &str) -> Vec<f64> {
    let mine = raw.iter().filter(|f| f["scenario"] == scenario && f["mode"] == mode);
    mine.map(|found| found["discards"][field].as_f64().unwrap_or(f64::NAN)).collect()
}

fn report(raw: &[Value]) -> Report {
    let mut table = String::from(
        "| scenario | mode | received | merged | cancelled | reach the home | MiB sent | \
         fewer than immediate | sent by delay, write, checkpoint, full, change |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let (mut is_met, mut sent, mut sent_delay) = (true, 0.0, 0.0);
    for (scenario, wanted) in SCENARIOS {
        for mode in MODES {
            let of = |field| figures(raw, scenario, mode, field);
            let whole = |field| Spread::of(of(field).into_iter()).whole();
            let pairs = figures(raw, scenario, "immediate", "sent").into_iter().zip(of("sent"));
            let ratio = Spread::of(pairs.map(|(immediate, own)| immediate / own));
            let shown = if mode == "off" { "-".to_owned() } else { ratio.fraction() };
            is_met &= mode != "delayed" || ratio.reaches(wanted);
            if mode == "delayed" {
                sent += of("sent").iter().sum::<f64>();
                sent_delay += of("sent_delay").iter().sum::<f64>();
            }
            let mib = Spread::of(of("sent_bytes").into_iter().map(|bytes| bytes / 1048576.0));
            let causes = CAUSES.map(whole).join(", ");
            let _ = writeln!(
                table,
                "| {scenario} | {mode} | {} | {} | {} | {} | {} | {shown} | {causes} |",
                whole("received"),
                whole("merged"),
                whole("cancelled"),
                whole("sent"),
                mib.whole()
            );
        }
    }
    let scale = SCALE.map(|(name, value)| format!("{name}={value}")).join(" ");
    let _ = write!(table, "\nWanted: 3.2 times fewer in batch-erase, 4.1 in single-erase. {scale}");
    // Where rounds end before delays do, what is counted is how long a round is.
    let answer = match (is_met, 2.0 * sent_delay > sent) {
        (_, false) => {
            "Not shown: fewer than half of the delayed ones waited for their delay's end."
        }
        (true, true) => "Yes.",
        (false, true) => "Not as many times as wanted.",
    };
    Report { heading: format!("Do fewer discards reach the home when they wait? {answer}"), table }
}
