//! What a cut link does to a volume on an object store: nothing to cached reads, and it drains.
//!
//! How: the tests' store behind the tests' link of `--link-bits-per-second`, a volume whose hot
//! part memory holds. Reads at a fixed rate of that part, writes at another of the rest, by fio:
//! with the link up, with it cut, and again after it is back and all is drained. Then a backlog is
//! written with the link cut; from its return until the volume is drained, the bytes that passed
//! are compared with what the link could carry. At the end `layby restore`, on the store alone,
//! gives what the node serves, byte for byte.
//! Invariant: phases with and without the link take turns in each round, so that drift falls on
//! both. Cost: three loads and a drain per round.
//! Not for: peers; see `cloud`.

use super::Arguments;
use super::cloud::{Store, store_program};
use super::cloud_peers::{self, Place, Target, VOLUME};
use super::entries::Plan;
use super::report::{Measured, Report, Spread};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

/// What is read, which memory holds.
const HOT_BYTES: u64 = 64 << 20;
/// What is written meanwhile lies behind it.
const COLD_BYTES: u64 = 128 << 20;
/// The backlog whose drain is timed.
const BACKLOG_BYTES: u64 = 128 << 20;
/// Reads and writes in a second.
const READS: u32 = 2000;
const WRITES: u32 = 500;
/// The link when nothing is said: 100 Mbit/s.
const LINK_BITS: u64 = 100_000_000;
/// The goals: p99 in a cut over p99 before it, and the drain's share of the link.
const GOALS: [f64; 2] = [1.1, 0.95];

/// What one round showed.
struct Sample {
    /// p99 of cached reads in microseconds: link up, cut, up again.
    p99: [f64; 3],
    /// Writes that were acknowledged while the link was cut, in a second.
    writes_cut: f64,
    /// Bytes that passed while the backlog drained, over what the link carries in that time.
    share: f64,
    drain_seconds: f64,
}

pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let program = store_program(plan.root)?;
    let bits = match arguments.link_bits_per_second {
        0 => LINK_BITS,
        bits => bits,
    };
    let layby = cloud_peers::layby_alone(plan);
    let folder = plan.work.join("cut");
    let mut store = Store::start(plan.root, &program, &folder)?;
    let endpoint = store.endpoint.clone();
    let place = Place { folder: &folder, endpoint: &endpoint };
    let running = layby.start(&place, true)?;
    let Target::Nbd(uri) = &running.target else {
        return Err(Failure::new("the node serves NBD"));
    };
    fill(plan.root, uri)?;
    store.settled()?;
    store.shape(arguments.link_delay_ms, bits)?;
    let (mut raw, mut samples) = (Vec::new(), Vec::new());
    for round in 0..arguments.runs {
        let seed = arguments.seed + u64::from(round);
        let load = |what: &str| load(plan.root, uri, arguments.seconds, seed, what);
        let before = load("before")?;
        store.tell("cut hang")?;
        let cut = load("cut")?;
        store.tell("restore")?;
        drain(plan, &folder)?;
        let after = load("after")?;
        drain(plan, &folder)?;
        let (share, drain_seconds) = backlog(plan, &mut store, (&folder, uri), (bits, seed))?;
        let p99 = [&before, &cut, &after].map(p99_of_reads);
        let writes_cut = cut["jobs"][1]["write"]["iops"].as_f64().unwrap_or(0.0);
        let sample = Sample { p99, writes_cut, share, drain_seconds };
        process::say(&format!(
            "round {}: p99 of cached reads {:.0} us, {:.0} us in the cut, {:.0} us after; drained \
             {} MiB in {drain_seconds:.1} s, {:.1} % of the link",
            round + 1,
            p99[0],
            p99[1],
            p99[2],
            BACKLOG_BYTES >> 20,
            share * 100.0
        ));
        raw.push(json!({ "round": round, "before": before, "cut": cut, "after": after,
            "share": share, "drain_seconds": drain_seconds }));
        samples.push(sample);
    }
    store.shape(0, 0)?;
    verify(plan, &folder, uri, &endpoint)?;
    Ok(Measured::new(raw, |_| Ok(report(&samples, bits))))
}

fn fio(root: &Path, uri: &str) -> std::process::Command {
    let mut fio = process::command("fio", root);
    fio.args(["--ioengine=nbd", "--lat_percentiles=1", "--percentile_list=50:99:99.9"]);
    fio.arg("--output-format=json").arg(format!("--uri={uri}"));
    fio
}

fn fill(root: &Path, uri: &str) -> Result<(), Failure> {
    let mut fill = fio(root, uri);
    fill.args(["--name=fill", "--rw=write", "--bs=256k", "--iodepth=8", "--end_fsync=1"]);
    fill.arg(format!("--size={}", HOT_BYTES + COLD_BYTES));
    process::output(&mut fill)?;
    let mut warm = fio(root, uri);
    warm.args(["--name=warm", "--rw=read", "--bs=64k"]).arg(format!("--size={HOT_BYTES}"));
    process::output(&mut warm).map(drop)
}

/// Reads of the hot part and writes of the rest, at fixed rates.
fn load(root: &Path, uri: &str, seconds: u32, seed: u64, what: &str) -> Result<Value, Failure> {
    let mut fio = fio(root, uri);
    fio.args(["--bs=4k", "--time_based", "--norandommap", "--ramp_time=1"]);
    fio.arg(format!("--runtime={seconds}")).arg(format!("--randseed={seed}"));
    fio.arg(format!("--name=reads-{what}")).args(["--rw=randread", "--iodepth=4"]);
    fio.arg(format!("--rate_iops={READS}")).arg(format!("--size={HOT_BYTES}"));
    fio.arg(format!("--name=writes-{what}")).args(["--rw=randwrite", "--iodepth=4"]);
    fio.arg(format!("--rate_iops={WRITES}")).arg(format!("--offset={HOT_BYTES}"));
    fio.arg(format!("--size={COLD_BYTES}"));
    let document = process::json(&mut fio)?;
    let failed: Vec<&Value> = document["jobs"].as_array().into_iter().flatten().collect();
    if failed.len() != 2 || failed.iter().any(|job| job["error"] != 0) {
        return Err(Failure::new(format!("a client saw an error in the load `{what}`")));
    }
    Ok(document)
}

fn p99_of_reads(document: &Value) -> f64 {
    let percentiles = &document["jobs"][0]["read"]["lat_ns"]["percentile"];
    percentiles["99.000000"].as_f64().unwrap_or(f64::NAN) / 1e3
}

/// Waits until the store has all.
fn drain(plan: &Plan<'_>, folder: &Path) -> Result<(), Failure> {
    let mut drain = process::command(&plan.binary.to_string_lossy(), folder);
    drain.args(["volume", "drain", VOLUME, "--dir"]).arg(folder.join("node"));
    process::run(&mut drain)
}

#[expect(clippy::disallowed_methods, reason = "what is measured is a time")]
/// Writes a backlog with the link cut; how much of the link its drain uses, and how long it takes.
fn backlog(
    plan: &Plan<'_>,
    store: &mut Store,
    (folder, uri): (&Path, &str),
    (bits, seed): (u64, u64),
) -> Result<(f64, f64), Failure> {
    store.tell("cut refuse")?;
    let mut write = fio(plan.root, uri);
    write.args(["--name=backlog", "--rw=randwrite", "--bs=64k", "--iodepth=8", "--end_fsync=1"]);
    write.arg(format!("--size={BACKLOG_BYTES}")).arg(format!("--randseed={seed}"));
    write.arg(format!("--offset={HOT_BYTES}"));
    process::output(&mut write)?;
    store.tell("restore")?;
    // What the first attempt after the cut waits for is no part of the drain.
    let start = store.counts()?;
    let mut first = start.clone();
    while first["bytes_up"] == start["bytes_up"] {
        process::pause(std::time::Duration::from_millis(5))?;
        first = store.counts()?;
    }
    let from = Instant::now();
    drain(plan, folder)?;
    let seconds = from.elapsed().as_secs_f64();
    let end = store.counts()?;
    let passed =
        end["bytes_up"].as_f64().unwrap_or(0.0) - first["bytes_up"].as_f64().unwrap_or(0.0);
    Ok((passed * 8.0 / (bits as f64 * seconds), seconds))
}

/// The store alone gives what the node serves.
fn verify(plan: &Plan<'_>, folder: &Path, uri: &str, endpoint: &str) -> Result<(), Failure> {
    let (restored, served) = (folder.join("restored"), folder.join("served"));
    let mut restore = process::command(&plan.binary.to_string_lossy(), folder);
    restore.arg("restore").arg(cloud_peers::layby_url()).arg(&restored);
    cloud_peers::environment(&mut restore, endpoint);
    process::run(&mut restore)?;
    process::run(process::command("nbdcopy", folder).arg(uri).arg(&served))?;
    process::run(process::command("cmp", folder).arg(&restored).arg(&served))
}

fn report(samples: &[Sample], bits: u64) -> Report {
    let of = |figure: fn(&Sample) -> f64| Spread::of(samples.iter().map(figure));
    let mut table = String::from(
        "| figure | link up | link cut | up again | cut over up | goal |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        table,
        "| p99 of cached reads (us) | {} | {} | {} | {} | at most {} |",
        of(|s| s.p99[0]).whole(),
        of(|s| s.p99[1]).whole(),
        of(|s| s.p99[2]).whole(),
        of(|s| s.p99[1] / s.p99[0]).fraction(),
        GOALS[0]
    );
    let _ = writeln!(
        table,
        "| writes acknowledged in the cut (1/s) | | {} | | | {WRITES} |",
        of(|s| s.writes_cut).whole()
    );
    let _ = write!(
        table,
        "| share of the link while the backlog drains | | | {} | | at least {} |\n\n\
         Link: {} Mbit/s; backlog: {} MiB, drained in {} s. No client saw an error, and the \
         restored volume equals the served one, byte for byte.\n",
        of(|s| s.share).fraction(),
        GOALS[1],
        bits / 1_000_000,
        BACKLOG_BYTES >> 20,
        of(|s| s.drain_seconds).whole()
    );
    Report { heading: "Does a cut link stay unseen, and does the backlog drain?".into(), table }
}
