//! The edge gateway's workloads on an ext4 whose volume lives in an object store.
//!
//! How: the test `esi` made larger through the environment: Table I's Tiny in flat and in deep
//! trees over a link of 100 Mbit/s, and Table IV's ten cases at 1:1000; it compares every file with
//! what the store alone gives back, and prints how long it took and what went up.
//! Invariant: a figure counts only if its test passed. Cost: some five minutes per round.
//! Not for: peers on the same store; see `cloud`.

use super::Arguments;
use super::entries::Plan;
use super::esi_findings::ratio;
use super::printed;
use super::report::{Measured, NOT_MEASURED, Report, Spread};
use crate::process::Failure;
use serde_json::Value;
use std::fmt::Write as _;

/// Files per user of Tiny (the paper's has 10,000), all cases of Table IV.
const SCALE: [(&str, &str); 2] = [("LAYBY_ESI_FILES", "1000"), ("LAYBY_ESI_ALL", "1")];
/// What the paper's gateway wrote per second where files were tiny, at the least, in MB/s.
const PAPER_TINY: f64 = 2.0;
/// What part of the link uploads are to fill.
const LINK_SHARE: f64 = 0.95;
const GIB: f64 = (1 << 30) as f64;

pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let raw = printed::figures(plan, arguments, "esi", (&["--test-threads=1"], &SCALE))?;
    Ok(Measured::new(raw, |raw| Ok(report(raw))))
}

fn number(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or(f64::NAN)
}

fn report(raw: &[Value]) -> Report {
    let mut table = String::from(
        "| load | tree | files | MB | journal (MB) | link (Mbit/s) | written (MB/s) | in the store \
         (s) | share of the link while uploading, on the wire | in payload | requests per GiB up \
         | errors |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let mut seen: Vec<(&str, bool)> = Vec::new();
    for found in raw {
        let key = (found["case"].as_str().unwrap_or(""), found["is_deep"] == true);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let own: Vec<&Value> = raw
            .iter()
            .filter(|of| of["case"] == found["case"] && of["is_deep"] == found["is_deep"])
            .collect();
        let of = |figure: fn(&Value) -> f64| Spread::of(own.iter().map(|value| figure(value)));
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "| {} | {} | {} | {:.0} | {:.0} | {:.0} | {} | {} | {} | {} | {} | 0 |",
            key.0,
            if key.1 { "deep" } else { "flat" },
            found["files"],
            number(found, "bytes") / 1e6,
            number(found, "journal") / 1e6,
            number(found, "link_bits") / 1e6,
            of(|v| number(v, "bytes") / 1e6 / number(v, "write_seconds")).whole(),
            of(|v| number(v, "drain_seconds")).fraction(),
            of(|v| number(v, "link_share")).fraction(),
            of(|v| number(v, "payload_share")).fraction(),
            of(|v| number(v, "requests") * GIB / number(v, "bytes_up")).whole(),
        );
    }
    table.push_str(&goals(raw, &seen));
    Report { heading: "How do an edge gateway's workloads fare?".into(), table }
}

/// What was wanted, and which loads fall short of the link.
fn goals(raw: &[Value], seen: &[(&str, bool)]) -> String {
    let of = |(case, is_deep): (&str, bool), field: &str| {
        let own = raw.iter().filter(|of| of["case"] == case && of["is_deep"] == is_deep);
        Spread::of(own.map(|value| number(value, field)))
    };
    let below = |field: &str| {
        let is_below = |load: &&(&str, bool)| !of(**load, field).reaches(LINK_SHARE);
        let name = |(case, is_deep): &(&str, bool)| {
            format!("{case} {}", if *is_deep { "deep" } else { "flat" })
        };
        let names: Vec<String> = seen.iter().filter(is_below).map(name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let deep = match deep_over_flat(raw) {
        ratio if ratio.is_measured() => {
            format!("{:.3} of their time here, per round", ratio.median)
        }
        _ => format!("{NOT_MEASURED} here"),
    };
    format!(
        "\nBelow {LINK_SHARE} of the link in more than a fifth of the rounds: on the wire {}; in \
         payload, which is the files' own bytes, {}.\n\nGoals: Tiny written at {} MB/s at least \
         (10 times the least of the paper's gateway) and uploaded at {LINK_SHARE} of the link; \
         deep trees in the store within 5 % of flat ones ({deep}); all of Table IV's cases without \
         an error.\n",
        below("link_share"),
        below("payload_share"),
        PAPER_TINY * 10.0
    )
}

/// How long Tiny in deep trees takes over how long it takes in flat ones of the same round.
fn deep_over_flat(raw: &[Value]) -> Spread {
    let tiny = |is_deep: bool| -> Vec<&Value> {
        raw.iter().filter(|of| of["case"] == "tiny" && of["is_deep"] == is_deep).collect()
    };
    ratio(&tiny(true), &tiny(false), |of| number(of, "drain_seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal: deep trees are compared with flat ones within rounds, where the machine was the same.
    /// Method: three rounds in which the ratio's median is not that of the medians; then no deep
    /// ones.
    #[test]
    fn deep_trees_are_compared_within_rounds() {
        let round = |round: usize, is_deep: bool, seconds: f64| {
            json!({ "case": "tiny", "is_deep": is_deep, "round": round, "drain_seconds": seconds,
                "bytes": 1, "bytes_up": 1, "write_seconds": 1, "requests": 1, "link_share": 1,
                "payload_share": 1, "files": 1, "journal": 1, "link_bits": 1 })
        };
        let pairs = [(10.0, 11.0), (20.0, 20.0), (30.0, 33.0)];
        let rounds = pairs.iter().enumerate();
        let mut raw: Vec<Value> = rounds
            .flat_map(|(at, (flat, deep))| [round(at, false, *flat), round(at, true, *deep)])
            .collect();
        let table = report(&raw).table;
        assert!(table.contains("(1.100 of their time here"), "{table}");
        raw.retain(|row| row["is_deep"] == false);
        let table = report(&raw).table;
        assert!(table.contains("(not measured here"), "{table}");
    }
}
