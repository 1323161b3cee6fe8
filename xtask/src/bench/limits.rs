//! Does a limit give what it says? Loads that want more than their limit, counted.
//!
//! How: one volume on a DRAM level; for each limit fio reads as fast as it is let, and its requests
//! (or bytes) less the burst, over its time, are held against the limit. Limits are changed live
//! between the measurements.
//! Invariant: what is counted is what the client got. Cost: rounds × limits × `--seconds`.
//! Not for: how much a node can do without a limit.

use super::entries::Plan;
use super::report::{Measured, Report, Spread};
use super::servers::{self, Server};
use super::{Arguments, fio};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;

const CONFIG: &str = "[node]\nshards = 1\n[control]\nhttp = \"off\"\n[sizing]\nwatch = false\n\
    [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"128MiB\"\n";
const VOLUME: &str = "limited";
const VOLUME_BYTES: &str = "64MiB";
/// A difference that the claim allows, in percent.
const OFF_PERCENT_MAX: f64 = 3.0;

/// A limit and the load that presses against it.
struct Case {
    name: &'static str,
    flags: [&'static str; 8],
    /// Requests or bytes in a second, and at once.
    rate: (f64, f64),
    block: &'static str,
    depth: &'static str,
    field: &'static str,
}

const fn iops(max: &'static str, burst: &'static str) -> [&'static str; 8] {
    ["--iops-max", max, "--iops-burst", burst, "--bandwidth-max", "0", "--bandwidth-burst", "0"]
}

const fn bandwidth(max: &'static str, burst: &'static str) -> [&'static str; 8] {
    ["--iops-max", "0", "--iops-burst", "0", "--bandwidth-max", max, "--bandwidth-burst", burst]
}

const MIB: f64 = 1048576.0;
const CASES: [Case; 4] = [
    Case {
        name: "500 requests/s, 50 at once",
        flags: iops("500", "50"),
        rate: (500.0, 50.0),
        block: "4k",
        depth: "16",
        field: "total_ios",
    },
    Case {
        name: "5000 requests/s, 500 at once",
        flags: iops("5000", "500"),
        rate: (5000.0, 500.0),
        block: "4k",
        depth: "32",
        field: "total_ios",
    },
    Case {
        name: "20 MiB/s, 1 MiB at once, 4 KiB each",
        flags: bandwidth("20MiB", "1MiB"),
        rate: (20.0 * MIB, MIB),
        block: "4k",
        depth: "32",
        field: "io_bytes",
    },
    Case {
        name: "100 MiB/s, 10 MiB at once, 256 KiB each",
        flags: bandwidth("100MiB", "10MiB"),
        rate: (100.0 * MIB, 10.0 * MIB),
        block: "256k",
        depth: "8",
        field: "io_bytes",
    },
];

/// Measures every limit in every round.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let _node = servers::node(plan.binary, plan.work, CONFIG)?;
    let volume = servers::volume(plan.binary, plan.work, VOLUME, VOLUME_BYTES, "normal")?;
    fio::fill(plan.root, &volume, "64m")?;
    let mut raw = Vec::new();
    let mut offs: Vec<Vec<f64>> = CASES.iter().map(|_| Vec::new()).collect();
    for round in 0..arguments.runs {
        for (case, offs) in CASES.iter().zip(&mut offs) {
            let seed = arguments.seed + u64::from(round);
            let document = one(plan, &volume, case, arguments.seconds, seed)?;
            let off = off_percent(&document, case)?;
            process::say(&format!("round {}: {}: {off:+.2} %", round + 1, case.name));
            raw.push(json!({ "limit": case.name, "round": round, "fio": document["jobs"] }));
            offs.push(off);
        }
    }
    Ok(Measured::new(raw, |_| Ok(report(&offs))))
}

fn one(
    plan: &Plan<'_>,
    volume: &Server,
    case: &Case,
    seconds: u32,
    seed: u64,
) -> Result<Value, Failure> {
    let mut set = process::command(&plan.binary.to_string_lossy(), plan.work);
    set.args(["volume", "set", VOLUME]).args(case.flags);
    process::output(set.arg("--dir").arg(plan.work.join("node")))?;
    let mut fio = process::command("fio", plan.root);
    fio.args(["--name=limit", "--ioengine=nbd", "--rw=randread", "--time_based"]);
    fio.args(["--norandommap", "--output-format=json", "--size=64m"]);
    fio.arg(format!("--uri={}", volume.uri)).arg(format!("--bs={}", case.block));
    fio.arg(format!("--iodepth={}", case.depth)).arg(format!("--runtime={seconds}"));
    process::json(fio.arg(format!("--randseed={seed}")))
}

/// How far the rate is from its limit, in percent; the burst is what was there before.
fn off_percent(document: &Value, case: &Case) -> Result<f64, Failure> {
    let read = &document["jobs"][0]["read"];
    let (count, ms) = (read[case.field].as_f64(), read["runtime"].as_f64());
    match (count, ms) {
        (Some(count), Some(ms)) if ms > 0.0 => {
            let (rate, burst) = case.rate;
            Ok(((count - burst) / (ms / 1e3) / rate - 1.0) * 100.0)
        }
        _ => Err(Failure::new("fio printed no count or no time")),
    }
}

fn report(offs: &[Vec<f64>]) -> Report {
    let mut table = String::from("| limit | off by (%), median | farthest off (%) |\n");
    table.push_str("| --- | ---: | ---: |\n");
    let mut farthest = 0.0f64;
    for (case, offs) in CASES.iter().zip(offs) {
        let median = Spread::of(offs.iter().copied()).median;
        let farther = |worst: f64, off: f64| if off.abs() > worst.abs() { off } else { worst };
        let worst = offs.iter().copied().fold(0.0, farther);
        farthest = farthest.max(worst.abs());
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {} | {median:+.2} | {worst:+.2} |", case.name);
    }
    let answer = if farthest <= OFF_PERCENT_MAX { "Yes." } else { "Not always." };
    Report { heading: format!("Does a limit give its rate within 3 %? {answer}"), table }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a rate is what was read beyond the burst. Method: documents by hand.
    #[test]
    fn rates_are_found() {
        let document = |ios: u64, ms: u64| {
            let read = json!({ "total_ios": ios, "runtime": ms });
            json!({ "jobs": [{ "read": read }] })
        };
        let off = off_percent(&document(5050, 10_000), &CASES[0]).expect("figures");
        assert!(off.abs() < 1e-9, "{off}");
        let off = off_percent(&document(2550, 10_000), &CASES[0]).expect("figures");
        assert!((off + 50.0).abs() < 1e-9, "{off}");
        assert!(off_percent(&json!({}), &CASES[0]).is_err());
    }
}
