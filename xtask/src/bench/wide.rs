//! Does a volume's I/O spread over shards?
//!
//! How: a node with two shards; a volume on one of them and a volume over both stand in memory, and
//! fio asks each over two connections. What counts is the processor time of the busiest shard per
//! request: that is what bounds a volume where there are processors for clients, too. The ratio of
//! the two volumes' bounds is how far a second shard carries. IOPS stand beside it; on a machine
//! whose processors the clients need as well they say little.
//! Invariant: both volumes are asked for the same in each round, in changing order.
//! Cost: rounds × loads × two volumes × `--seconds`. Not for: peers, which have no shards.

use super::entries::Plan;
use super::report::{Measured, Report, Spread};
use super::servers::{self, Server};
use super::{Arguments, fio, meter};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;

const CONFIG: &str = "[node]\nshards = 2\n[control]\nhttp = \"off\"\n[sizing]\nwatch = false\n\
    [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"512MiB\"\n";
const VOLUME_BYTES: &str = "64MiB";
/// The volumes, and the shards of each.
const VOLUMES: [(&str, &str); 2] = [("narrow", "1"), ("wide", "2")];
/// A second shard should carry at least so much more.
const RATIO_MIN: f64 = 1.5;
/// Threads of a node that are shards bear this name and a number.
const SHARD: &str = "layby-shard-";

struct Load {
    name: &'static str,
    rw: &'static str,
    block: &'static str,
    depth: &'static str,
}

const LOADS: [Load; 3] = [
    Load { name: "reads of 4 KiB, 32 in flight", rw: "randread", block: "4k", depth: "16" },
    Load { name: "writes of 4 KiB, 32 in flight", rw: "randwrite", block: "4k", depth: "16" },
    Load { name: "reads of 256 KiB, 8 in flight", rw: "randread", block: "256k", depth: "4" },
];

/// One volume under one load: requests a second, microseconds of the busiest shard and of all
/// shards per request.
#[derive(Clone, Copy)]
struct Outcome {
    iops: f64,
    busiest_us: f64,
    all_us: f64,
}

/// Measures both volumes under every load in every round.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let node = servers::node(plan.binary, plan.work, CONFIG)?;
    let pid = node.process().ok_or_else(|| Failure::new("the node has no process"))?;
    let mut volumes = Vec::new();
    for (name, shards) in VOLUMES {
        let flags = ["--size", VOLUME_BYTES, "--shards", shards];
        let volume = servers::volume_with(plan.binary, plan.work, name, &flags)?;
        fio::fill(plan.root, &volume, "64m")?;
        volumes.push(volume);
    }
    let mut raw = Vec::new();
    let mut outcomes: Vec<[Vec<Outcome>; 2]> = LOADS.iter().map(|_| [vec![], vec![]]).collect();
    for round in 0..arguments.runs {
        for (load, outcomes) in LOADS.iter().zip(&mut outcomes) {
            for turn in 0..volumes.len() {
                let index = (turn + round as usize) % volumes.len();
                let (document, outcome) = one(plan, pid, &volumes[index], load, arguments, round)?;
                process::say(&format!(
                    "round {} of {}: {}: {}: {:.0} IOPS, busiest shard {:.2} us per request",
                    round + 1,
                    arguments.runs,
                    VOLUMES[index].0,
                    load.name,
                    outcome.iops,
                    outcome.busiest_us
                ));
                raw.push(document);
                outcomes[index].push(outcome);
            }
        }
    }
    Ok(Measured::new(raw, |_| Ok(report(&outcomes))))
}

fn one(
    plan: &Plan<'_>,
    pid: u32,
    volume: &Server,
    load: &Load,
    arguments: &Arguments,
    round: u32,
) -> Result<(Value, Outcome), Failure> {
    let seed = arguments.seed + u64::from(round);
    let mut fio = process::command("fio", plan.root);
    fio.args(["--name=wide", "--ioengine=nbd", "--time_based", "--norandommap", "--numjobs=2"]);
    fio.args(["--group_reporting", "--output-format=json", "--size=64m"]);
    fio.arg(format!("--uri={}", volume.uri)).arg(format!("--rw={}", load.rw));
    fio.arg(format!("--bs={}", load.block)).arg(format!("--iodepth={}", load.depth));
    fio.arg(format!("--runtime={}", arguments.seconds)).arg(format!("--randseed={seed}"));
    let before = meter::threads_cpu_seconds(pid, SHARD);
    let document = process::json(&mut fio)?;
    let after = meter::threads_cpu_seconds(pid, SHARD);
    let missing = || Failure::new("fio printed no figures, or the node has no shards");
    let figures = fio::figures(&document).ok_or_else(missing)?;
    let spent = || after.iter().zip(&before).map(|(after, before)| after - before);
    let busiest = spent().fold(0.0, f64::max);
    if busiest <= 0.0 {
        return Err(missing());
    }
    let per_request = |seconds: f64| seconds * 1e6 / figures.ios;
    let outcome = Outcome {
        iops: figures.iops,
        busiest_us: per_request(busiest),
        all_us: per_request(spent().sum()),
    };
    let raw = json!({
        "volume": volume.name, "load": load.name, "round": round, "fio": document["jobs"],
        "shards_cpu_seconds": spent().collect::<Vec<f64>>(),
    });
    Ok((raw, outcome))
}

fn report(outcomes: &[[Vec<Outcome>; 2]]) -> Report {
    let mut table = String::from(
        "| load | volume | IOPS | busiest shard (us per request) | all shards (us per request) |\n\
         | --- | --- | ---: | ---: | ---: |\n",
    );
    let mut lines = String::new();
    let (mut least, mut is_met) = (f64::INFINITY, true);
    for (load, outcomes) in LOADS.iter().zip(outcomes) {
        for ((name, _), outcomes) in VOLUMES.iter().zip(outcomes) {
            let spread = |of: fn(&Outcome) -> f64| Spread::of(outcomes.iter().map(of));
            let iops = spread(|outcome| outcome.iops).whole();
            let busiest = spread(|outcome| outcome.busiest_us).fraction();
            let all = spread(|outcome| outcome.all_us).fraction();
            // Writing to a string cannot fail.
            let _ = writeln!(table, "| {} | {name} | {iops} | {busiest} | {all} |", load.name);
        }
        let pairs = outcomes[0].iter().zip(&outcomes[1]);
        let ratio = Spread::of(pairs.map(|(narrow, wide)| narrow.busiest_us / wide.busiest_us));
        least = least.min(ratio.median);
        is_met &= ratio.reaches(RATIO_MIN);
        let _ = write!(lines, "{}{}: {}", separator(&lines), load.name, ratio.fraction());
    }
    let _ = write!(
        table,
        "\nBound of a volume over two shards over that of one on one shard, per round: {lines} \
         ({RATIO_MIN} wanted)."
    );
    let answer = if is_met { "Yes" } else { "Not wholly" };
    let heading =
        format!("Does a volume's I/O spread over shards? {answer}: times {least:.2} at least.");
    Report { heading, table }
}

fn separator(before: &str) -> &'static str {
    if before.is_empty() { "" } else { "; " }
}
