//! Every way to be served beside every peer: hits, writes, mixed, sequential, misses, offered load.
//!
//! How: a job is words for fio and a set of contenders; all contenders of a set run side by side
//! and idle while another is measured. Processor time is the server's own, from before fio starts
//! to after it has ended, over all that fio did. The whole document is written anew: a table per
//! job, bars of throughput, lines of latency against offered load.
//! Invariant: contenders of a job do the same work with the same seed; ratios are within a round.
//! Cost: rounds x about 70 measurements. Not for: isolation, which has an entry of its own.

use super::entries::Plan;
use super::plot::{Bars, Lines};
use super::report::{Measured, Report, Spread};
use super::servers::{self, Server};
use super::{Arguments, fio, meter};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// DRAM and the log hold the whole export; a write is acknowledged as a page cache would.
pub(super) const HOT_CONFIG: &str = "\
[control]\nhttp = \"off\"\n\
[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"256MiB\"\n\
[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"1GiB\"\n\
[class.hot]\nlevels = [\"dram\", \"ssd\"]\n\
[class.cold]\nlevels = [\"dram\"]\ncap = { dram = \"1MiB\" }\n";
/// Exports whose reads are to miss: far more than the cap of their class.
const COLD_BYTES: u64 = 512 << 20;
/// Requests per second that are offered, one measurement each.
const OFFERED: [u32; 6] = [2_000, 10_000, 20_000, 40_000, 80_000, 120_000];

/// Which exports a job runs against.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Set {
    Hot,
    Cold,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Requests,
    Bytes,
}

struct Job {
    name: String,
    set: Set,
    unit: Unit,
    words: Vec<String>,
    /// Offered requests per second, where that is what is varied.
    offered: Option<u32>,
}

fn job(name: &str, set: Set, unit: Unit, words: &str) -> Job {
    let words = words.split_whitespace().map(str::to_owned).collect();
    Job { name: name.to_owned(), set, unit, words, offered: None }
}

fn jobs() -> Vec<Job> {
    use {Set::*, Unit::*};
    let mut jobs = vec![
        job("read hit, QD1", Hot, Requests, "--rw=randread --bs=4k --iodepth=1"),
        job("read hit, QD32", Hot, Requests, "--rw=randread --bs=4k --iodepth=32"),
        job("write, QD1", Hot, Requests, "--rw=randwrite --bs=4k --iodepth=1"),
        job("write, QD32", Hot, Requests, "--rw=randwrite --bs=4k --iodepth=32"),
        job(
            "mixed 70/30, Zipf 1.2, QD16",
            Hot,
            Requests,
            "--rw=randrw --rwmixread=70 --random_distribution=zipf:1.2 --bs=4k --iodepth=16",
        ),
        job("sequential read 256 KiB, QD8", Hot, Bytes, "--rw=read --bs=256k --iodepth=8"),
        job("sequential write 256 KiB, QD8", Hot, Bytes, "--rw=write --bs=256k --iodepth=8"),
        job("read miss, QD1", Cold, Requests, "--rw=randread --bs=4k --iodepth=1"),
        job("read miss, QD32", Cold, Requests, "--rw=randread --bs=4k --iodepth=32"),
    ];
    jobs.extend(OFFERED.map(|rate| {
        let words = format!("--rw=randread --bs=4k --iodepth=64 --rate_iops={rate}");
        let name = format!("read hit, {rate} offered");
        Job { offered: Some(rate), ..job(&name, Hot, Requests, &words) }
    }));
    jobs
}

/// One measurement.
struct Sample {
    job: usize,
    server: &'static str,
    round: u32,
    /// Requests or bytes per second, as the job counts.
    throughput: f64,
    latency_us_p50: f64,
    latency_us_p99: f64,
    cpu_us_per_io: f64,
}

/// All that runs; Layby's node ends last.
struct Field {
    hot: Vec<Server>,
    cold: Vec<Server>,
    node: Server,
}

impl Field {
    fn of(&self, set: Set) -> &[Server] {
        match set {
            Set::Hot => &self.hot,
            Set::Cold => &self.cold,
        }
    }

    /// The process that serves: a volume's is its node's.
    fn process(&self, server: &Server) -> Option<u32> {
        server.process().or_else(|| self.node.process())
    }
}

/// Measures every job in every round; writes `bench/serving.md` and its plots.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let (field, jobs) = (field(plan)?, jobs());
    let (mut raw, mut samples) = (Vec::new(), Vec::new());
    for round in 0..arguments.runs {
        for (index, job) in jobs.iter().enumerate() {
            let servers = field.of(job.set);
            for turn in 0..servers.len() {
                let server = &servers[(turn + round as usize) % servers.len()];
                let (document, sample) = one(plan, &field, (server, job, index), arguments, round)?;
                process::say(&format!(
                    "round {} of {}: {}, {}: {}",
                    round + 1,
                    arguments.runs,
                    server.name,
                    job.name,
                    shown(job.unit, sample.throughput)
                ));
                raw.push(json!({
                    "server": server.name, "job": job.name, "round": round,
                    "cpu_us_per_io": sample.cpu_us_per_io, "fio": document,
                }));
                samples.push(sample);
            }
        }
    }
    Ok(Measured::new(raw, |_| document(plan, &jobs, &samples)))
}

fn field(plan: &Plan<'_>) -> Result<Field, Failure> {
    let (work, bytes) = (plan.work, fio::EXPORT_BYTES);
    let node = servers::node(plan.binary, work, HOT_CONFIG)?;
    let layby = servers::volume(plan.binary, work, "layby", &bytes.to_string(), "hot")?;
    let missing =
        servers::volume(plan.binary, work, "layby-miss", &COLD_BYTES.to_string(), "cold")?;
    let file = |name: &str, bytes| {
        let path = work.join(name);
        servers::empty_file(&path, bytes).map(|()| path)
    };
    let on_disk = file("nbdkit.raw", bytes)?.to_string_lossy().into_owned();
    let hot = vec![
        layby,
        servers::nbdkit(work, "nbdkit memory", &["memory", &format!("size={bytes}")])?,
        servers::nbdkit(work, "nbdkit file", &["file", &on_disk])?,
        servers::qemu_nbd(work, "qemu-nbd", &file("qemu.raw", bytes)?)?,
        daemon(work, "storage-daemon", ("daemon.raw", bytes), false)?,
    ];
    let cold =
        vec![missing, daemon(work, "storage-daemon direct", ("cold.raw", COLD_BYTES), true)?];
    for server in &hot {
        fio::fill(plan.root, server, &bytes.to_string())?;
    }
    for server in &cold {
        fio::fill(plan.root, server, &COLD_BYTES.to_string())?;
    }
    Ok(Field { hot, cold, node })
}

/// The storage daemon with one export.
fn daemon(
    work: &Path,
    name: &'static str,
    (file, bytes): (&str, u64),
    direct: bool,
) -> Result<Server, Failure> {
    servers::empty_file(&work.join(file), bytes)?;
    let mut server = servers::storage_daemon(work, name, work, (&[file.to_owned()], direct))?;
    server.uri = server.export(file);
    Ok(server)
}

fn one(
    plan: &Plan<'_>,
    field: &Field,
    (server, job, index): (&Server, &Job, usize),
    arguments: &Arguments,
    round: u32,
) -> Result<(Value, Sample), Failure> {
    let size = if job.set == Set::Hot { fio::EXPORT_BYTES } else { COLD_BYTES };
    let mut fio = process::command("fio", plan.root);
    fio.args(["--name=measure", "--ioengine=nbd", "--time_based", "--norandommap"]);
    fio.args(["--lat_percentiles=1", "--percentile_list=50:99", "--output-format=json"]);
    fio.arg(format!("--uri={}", server.uri)).arg(format!("--size={size}"));
    fio.arg(format!("--runtime={}", arguments.seconds));
    fio.arg(format!("--randseed={}", arguments.seed + u64::from(round))).args(&job.words);
    let pid = field.process(server);
    let before = pid.and_then(meter::cpu_seconds);
    let document = process::json(&mut fio)?;
    let after = pid.and_then(meter::cpu_seconds);
    let cpu = before.zip(after).map_or(f64::NAN, |(before, after)| after - before);
    let Some(figures) = fio::figures(&document) else {
        let what = format!("fio printed no figures for {}, {}", server.name, job.name);
        return Err(Failure::new(what));
    };
    let sample = Sample {
        job: index,
        server: server.name,
        round,
        throughput: match job.unit {
            Unit::Requests => figures.iops,
            Unit::Bytes => figures.bytes_per_second,
        },
        latency_us_p50: figures.latency_us_p50,
        latency_us_p99: figures.latency_us_p99,
        cpu_us_per_io: cpu * 1e6 / figures.ios,
    };
    Ok((document, sample))
}

fn shown(unit: Unit, throughput: f64) -> String {
    match unit {
        Unit::Requests => format!("{throughput:.0} IOPS"),
        Unit::Bytes => format!("{:.0} MiB/s", throughput / 1048576.0),
    }
}

// ---- the document ----

fn document(plan: &Plan<'_>, jobs: &[Job], samples: &[Sample]) -> Result<Report, Failure> {
    let mut table = String::new();
    let mut counts = [0, 0, 0];
    for (index, job) in jobs.iter().enumerate().filter(|(_, job)| job.offered.is_none()) {
        let ratio = ratio(samples, index);
        let (place, verdict) = match (ratio.reaches(1.0), ratio.stays_below(1.0)) {
            (true, _) => (0, "Layby wins"),
            (_, true) => (1, "Layby loses"),
            _ => (2, "neither is ahead in four rounds of five"),
        };
        counts[place] += 1;
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "\n**{}**: {verdict}, {} of the best peer's throughput.\n",
            job.name,
            ratio.fraction()
        );
        let _ =
            writeln!(table, "| server | {} | p50 (us) | p99 (us) | CPU per I/O (us) |", unit(job));
        let _ = writeln!(table, "| --- | ---: | ---: | ---: | ---: |");
        for server in servers_of(samples, index) {
            let _ = writeln!(table, "{}", row(samples, job, index, server));
        }
    }
    let _ = writeln!(table, "\n**Latency against offered load**, read hits: p99 in us.\n");
    table.push_str(&offered(jobs, samples));
    let _ = writeln!(
        table,
        "\n![Throughput over the best peer's](plots/serving-throughput.svg)\n\n\
         ![p99 against offered load](plots/serving-offered.svg)"
    );
    draw(plan, jobs, samples)?;
    let heading = format!(
        "How does Layby serve beside its peers? Ahead in {} of {} jobs, behind in {}, by four \
         rounds of five.",
        counts[0],
        counts.iter().sum::<i32>(),
        counts[1]
    );
    Ok(Report { heading, table })
}

fn unit(job: &Job) -> &'static str {
    match job.unit {
        Unit::Requests => "IOPS",
        Unit::Bytes => "MiB/s",
    }
}

fn servers_of(samples: &[Sample], job: usize) -> BTreeSet<&'static str> {
    samples.iter().filter(|sample| sample.job == job).map(|sample| sample.server).collect()
}

fn spread(samples: &[Sample], job: usize, server: &str, figure: impl Fn(&Sample) -> f64) -> Spread {
    let own = samples.iter().filter(|s| s.job == job && s.server == server);
    Spread::of(own.map(figure))
}

fn row(samples: &[Sample], job: &Job, index: usize, server: &'static str) -> String {
    let scale = if job.unit == Unit::Bytes { 1048576.0 } else { 1.0 };
    let figure = |of: fn(&Sample) -> f64| spread(samples, index, server, of);
    format!(
        "| {server} | {} | {} | {} | {:.1} |",
        spread(samples, index, server, |s| s.throughput / scale).whole(),
        figure(|s| s.latency_us_p50).whole(),
        figure(|s| s.latency_us_p99).whole(),
        figure(|s| s.cpu_us_per_io).median
    )
}

/// Layby's throughput over the best peer's of the same round.
fn ratio(samples: &[Sample], job: usize) -> Spread {
    let of = |sample: &&Sample| sample.job == job;
    let ours = samples.iter().filter(of).filter(|s| s.server.starts_with("layby"));
    Spread::of(ours.map(|own| {
        let peers = samples.iter().filter(of).filter(|s| s.round == own.round);
        let peers = peers.filter(|s| !s.server.starts_with("layby"));
        own.throughput / peers.map(|s| s.throughput).fold(f64::MIN_POSITIVE, f64::max)
    }))
}

fn offered(jobs: &[Job], samples: &[Sample]) -> String {
    let varied = || jobs.iter().enumerate().filter(|(_, job)| job.offered.is_some());
    let names: Vec<&str> = varied()
        .next()
        .map_or(Vec::new(), |(index, _)| servers_of(samples, index).into_iter().collect());
    let mut table = format!("| offered (IOPS) | {} |\n", names.join(" | "));
    let _ = writeln!(table, "| ---: |{}", " ---: |".repeat(names.len()));
    for (index, job) in varied() {
        let cell = |name: &&str| {
            let kept = spread(samples, index, name, |s| s.throughput).median;
            let p99 = spread(samples, index, name, |s| s.latency_us_p99).whole();
            let is_met = kept >= 0.98 * f64::from(job.offered.unwrap_or(0));
            if is_met { p99 } else { format!("{p99}, served {kept:.0}") }
        };
        let cells: Vec<String> = names.iter().map(cell).collect();
        let _ = writeln!(table, "| {} | {} |", job.offered.unwrap_or(0), cells.join(" | "));
    }
    table
}

/// What the drawings are of.
fn origin(plan: &Plan<'_>, samples: &[Sample]) -> String {
    let said = |program: &str, words: &[&str]| {
        let said = process::output(process::command(program, plan.root).args(words));
        said.unwrap_or_default().trim().to_owned()
    };
    let rounds: BTreeSet<u32> = samples.iter().map(|sample| sample.round).collect();
    format!(
        "Median of {} rounds, from the least to the greatest; commit {}; {}",
        rounds.len(),
        said("git", &["rev-parse", "--short", "HEAD"]),
        said("date", &["--utc", "+%Y-%m-%d"])
    )
}

fn draw(plan: &Plan<'_>, jobs: &[Job], samples: &[Sample]) -> Result<(), Failure> {
    let plain = || jobs.iter().enumerate().filter(|(_, job)| job.offered.is_none());
    let bars = Bars {
        axis: "Layby over the best peer".to_owned(),
        bars: plain().map(|(index, job)| (job.name.clone(), ratio(samples, index))).collect(),
        mark: 1.0,
        origin: origin(plan, samples),
    };
    let mut lines = Lines {
        x_axis: "offered (thousand IOPS)".to_owned(),
        y_axis: "p99 (us)".to_owned(),
        lines: Vec::new(),
        origin: origin(plan, samples),
    };
    let varied: Vec<_> = jobs.iter().enumerate().filter(|(_, job)| job.offered.is_some()).collect();
    for server in
        varied.first().map_or_else(BTreeSet::new, |(index, _)| servers_of(samples, *index))
    {
        let point = |(index, job): &(usize, &Job)| {
            let p99 = spread(samples, *index, server, |s| s.latency_us_p99);
            (f64::from(job.offered.unwrap_or(0)) / 1e3, p99)
        };
        lines.lines.push((server.to_owned(), varied.iter().map(point).collect()));
    }
    let folder = plan.root.join("bench/plots");
    process::write(&folder.join("serving-throughput.svg"), &bars.svg())?;
    process::write(&folder.join("serving-offered.svg"), &lines.svg())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(server: &'static str, round: u32, throughput: f64) -> Sample {
        Sample {
            job: 0,
            server,
            round,
            throughput,
            latency_us_p50: 1.0,
            latency_us_p99: 2.0,
            cpu_us_per_io: 3.0,
        }
    }

    /// Goal: a ratio is to the best peer of the same round. Method: two rounds by hand.
    #[test]
    fn ratios_are_within_rounds() {
        let samples = [
            sample("layby", 0, 10.0),
            sample("a", 0, 5.0),
            sample("b", 0, 20.0),
            sample("layby", 1, 30.0),
            sample("a", 1, 20.0),
            sample("b", 1, 1.0),
        ];
        let found = ratio(&samples, 0);
        assert_eq!((found.median, found.half_range), (1.0, 0.5));
    }

    /// Goal: an offered load that a server cannot serve is not shown as if it had. Method: half.
    #[test]
    fn unserved_load_is_said() {
        let jobs = [Job { offered: Some(100), ..job("x", Set::Hot, Unit::Requests, "") }];
        let text = offered(&jobs, &[sample("layby", 0, 50.0), sample("a", 0, 100.0)]);
        assert!(text.contains("| 100 | 2 ± 0 | 2 ± 0, served 50 |"), "{text}");
    }
}
