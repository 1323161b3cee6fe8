//! `cargo xtask bench <entry>`: one claim, measured beside its peers in the same run.
//!
//! How: all servers of an entry run side by side and idle while another is measured; rounds go
//! through them in turn, starting one further each time, so that drift of the machine falls on
//! all alike. Reported are medians, half the range, and the ratio to the best peer per round.
//! Invariant: raw results are kept before a figure is printed from them.
//! Cost: runs x servers x loads x about four seconds. Not for: tests; a timing never fails one.

mod bars;
mod beside;
mod cloud;
mod cloud_peers;
mod cut;
mod defaults;
mod discard;
mod durable;
mod entries;
mod esi;
mod esi_findings;
mod fio;
mod flash;
mod isolation;
mod isolation_defaults;
mod limits;
mod live;
mod machine;
mod meter;
mod overlap;
mod pauses;
mod plot;
mod printed;
mod priority;
mod report;
mod sequential;
mod servers;
mod serving;
mod traces;
mod vhost;
mod wide;
mod zerofs;

use crate::process::{self, Failure};
use clap::{Args, ValueEnum};
use fio::Sample;
use serde_json::{Value, json};
use servers::Server;
use std::path::{Path, PathBuf};

/// What is to be measured, and how often.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The claim to measure
    entry: Entry,
    /// Rounds; at least five for a claim
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Same seed, same offsets
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Folder for nodes and their files, made and removed; one in memory keeps a shared disk's
    /// noise out of what is no claim about disks [default: in the target folder; in /dev/shm for
    /// `vhost`]
    #[arg(long)]
    work: Option<PathBuf>,

    /// Servers, and the client of the critical volume, run before all other programs of the
    /// machine, in `isolation`; needs the right to do so
    #[arg(long)]
    realtime: bool,

    /// Seconds after which the working sets swap, in `live`
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(8..=600))]
    swap: u32,
    /// Seconds of a sizing period, in `live`; at most a quarter of `--swap` is of use
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=150))]
    period: u32,

    /// Milliseconds that the link to the object store is late each way, in `cloud` and
    /// `cut`
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    link_delay_ms: u64,
    /// Bits per second of that link, each way; 0 for as wide as the machine makes it, in `cut`
    /// for 100 Mbit/s
    #[arg(long, default_value_t = 0)]
    link_bits_per_second: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Entry {
    /// 4 KiB random reads that hit DRAM, beside nbdkit memory and qemu-nbd
    ReadHit,
    /// 4 KiB random writes with a flush after each, beside nbdkit file
    WriteDurable,
    /// 4 KiB random writes that are durable once acknowledged, of a node without configuration,
    /// beside nbdkit file with a sync per write; reads beside such writes
    Durable,
    /// 256 KiB in order, read and written, of a node without configuration, beside nbdkit file and
    /// qemu-nbd
    Sequential,
    /// What recording costs a load of 4 KiB random reads that hit DRAM
    Record,
    /// An encrypted SSD level beside a clear one: flushed writes, and reads that hit the level
    Encryption,
    /// Every way to be served beside every peer: tables and plots in `bench/serving.md`
    Serving,
    /// Memory that the node spends on knowing where 4 GiB of blocks are
    Metadata,
    /// Replays of generated traces, beside libCacheSim
    Replay,
    /// Miss-ratio curves of generated traces, beside libCacheSim
    Curves,
    /// Hits of every policy beside libCacheSim's
    Hits,
    /// Two volumes whose working sets swap: live shares beside fixed splits and beside none
    Live,
    /// A critical volume beside six saturating streams: classes, one class, and the peers
    Isolation,
    /// A critical volume beside four bulk clients of class normal, on a node without configuration
    IsolationDefaults,
    /// The demo's services with one class for all and with classes: what critical ones gain and
    /// the others pay
    Priority,
    /// Loads that want more than their limits, counted
    Limits,
    /// Discards of a real ext4 that reach the home: off, immediate, delayed; table in
    /// `bench/discard.md`
    Discard,
    /// A guest's disk beside qemu-storage-daemon's, both in memory, in one guest
    Vhost,
    /// What the SSD level's log makes a flash device program, by the model, counted
    FlashWaf,
    /// Volumes on an object store, beside s3backer and ZeroFS; requests and bytes counted
    Cloud,
    /// A volume on an object store while its link is cut, and how it drains afterwards
    Cut,
    /// The edge gateway's workloads on an ext4 in an object store: tiny files, bursts beyond the
    /// cache
    Esi,
    /// The gateway's data, metadata and log on one device and on three
    EsiDevices,
    /// The gateway's level and journal too small, right and too large
    EsiCache,
    /// A volume over two shards beside one on one shard: what the busiest shard spends per request
    Wide,
}

/// What the reader of the written document must know.
const SERVING_HEADER: &str = "\
# Serving, beside peers\n\n\
Written by `cargo xtask bench serving`; how it measures is in [README.md](README.md).\n";

/// The same for discards.
const DISCARD_HEADER: &str = "\
# Discards of a real file system\n\n\
Written by `cargo xtask bench discard`; how it measures is in [README.md](README.md).\n";

/// Everything measured in a run, in the order it was measured.
struct Results {
    samples: Vec<Sample>,
    raw: Vec<Value>,
}

/// Measures an entry, keeps the raw results and prints the entry.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<(), Failure> {
    // The log alone is run over the model: there is no node in it.
    let needs_node = arguments.entry != Entry::FlashWaf;
    let binary = if needs_node { release_binary(root)? } else { PathBuf::new() };
    let parent = arguments.work.clone().unwrap_or_else(|| folder(root, arguments.entry));
    let work = parent.join(std::process::id().to_string());
    let measured = measure(root, &binary, &work, arguments);
    // Room on the disk matters more than a look at what a failed run left.
    let _ = std::fs::remove_dir_all(&work);
    let report::Measured { raw, report } = measured?;
    let kept = keep(root, &raw)?;
    let entry = report.map_err(|failure| {
        Failure::new(format!("{failure}\nstate: what was measured is in `{kept}`"))
    })?;
    let text = entry.print(&report::Origin::of(root, arguments, &kept));
    process::say(&text);
    if arguments.entry == Entry::Serving {
        process::write(&root.join("bench/serving.md"), &format!("{SERVING_HEADER}{text}\n"))?;
    }
    if arguments.entry == Entry::Discard {
        process::write(&root.join("bench/discard.md"), &format!("{DISCARD_HEADER}{text}\n"))?;
    }
    Ok(())
}

/// Where nodes and their files are where nobody says so: in memory for a claim about memory.
fn folder(root: &Path, entry: Entry) -> PathBuf {
    let memory = Path::new(MEMORY_FILES);
    if entry == Entry::Vhost && memory.is_dir() {
        return memory.join("layby-bench");
    }
    process::target(root).join("bench")
}

fn measure(
    root: &Path,
    binary: &Path,
    work: &Path,
    arguments: &Arguments,
) -> Result<report::Measured, Failure> {
    let plan = entries::Plan { root, binary, work };
    match arguments.entry {
        Entry::Durable => durable::measure(&plan, arguments),
        Entry::Sequential => sequential::measure(&plan, arguments),
        Entry::IsolationDefaults => isolation_defaults::measure(&plan, arguments),
        Entry::Priority => priority::measure(&plan, arguments),
        Entry::Metadata => entries::metadata(&plan),
        Entry::Replay => traces::replay(&plan, arguments),
        Entry::Curves => traces::curves(&plan, arguments),
        Entry::Hits => traces::hits(&plan, arguments),
        Entry::Serving => serving::measure(&plan, arguments),
        Entry::Live => live::measure(&plan, arguments),
        Entry::Isolation => isolation::measure(&plan, arguments),
        Entry::Limits => limits::measure(&plan, arguments),
        Entry::Vhost => vhost::measure(&plan, arguments),
        Entry::FlashWaf => flash::measure(root, arguments),
        Entry::Discard => discard::measure(&plan, arguments),
        Entry::Cloud => cloud::measure(&plan, arguments),
        Entry::Cut => cut::measure(&plan, arguments),
        Entry::Esi => esi::measure(&plan, arguments),
        Entry::EsiDevices => esi_findings::devices(&plan, arguments),
        Entry::EsiCache => esi_findings::cache(&plan, arguments),
        Entry::Wide => wide::measure(&plan, arguments),
        entry => {
            let comparison = match entry {
                Entry::ReadHit => entries::read_hit(&plan)?,
                Entry::Record => entries::record(&plan)?,
                Entry::Encryption => entries::encryption(&plan)?,
                _ => entries::durable(&plan)?,
            };
            let results = rounds(root, &comparison, arguments)?;
            let Results { samples, raw } = results;
            Ok(report::Measured::new(raw, |_| Ok(report::comparison(&comparison, &samples))))
        }
    }
}

/// Servers, the loads they are put under, and the question that this answers.
struct Comparison {
    question: &'static str,
    servers: Vec<Server>,
    loads: Vec<fio::Load>,
    /// The ratio to the best peer that answers the question with yes.
    ratio_min: f64,
    /// Kept so that they end after their volumes' clients.
    #[expect(dead_code, reason = "held for its drop")]
    nodes: Vec<Server>,
}

fn rounds(root: &Path, comparison: &Comparison, arguments: &Arguments) -> Result<Results, Failure> {
    let mut results = Results { samples: Vec::new(), raw: Vec::new() };
    let count = comparison.servers.len();
    for round in 0..arguments.runs {
        for load in &comparison.loads {
            for turn in 0..count {
                let server = &comparison.servers[(turn + round as usize) % count];
                let seed = arguments.seed + u64::from(round);
                let recorder = server.start_recorder()?;
                let document = fio::measure(root, &server.uri, load, arguments.seconds, seed)?;
                let recorded = recorder.map(servers::Recorder::stop).transpose()?;
                let sample = fio::sample(&document, server.name, load, round)?;
                process::say(&format!(
                    "round {} of {}: {} {}: {:.0} IOPS",
                    round + 1,
                    arguments.runs,
                    server.name,
                    load.name,
                    sample.iops
                ));
                results.raw.push(json!({
                    "server": server.name, "load": load.name, "round": round, "fio": document,
                    "recorded": recorded,
                }));
                results.samples.push(sample);
            }
        }
    }
    Ok(results)
}

/// The program as users run it, or the one that `LAYBY_BIN` names.
fn release_binary(root: &Path) -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os("LAYBY_BIN") {
        return Ok(PathBuf::from(named));
    }
    process::run(process::cargo(root).args([
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "layby-cli",
    ]))?;
    Ok(process::target(root).join("release/layby"))
}

/// Puts the raw results into a fresh folder below `bench/runs`, named after the day; paths in them
/// begin at the repository, wherever that lies here.
fn keep(root: &Path, raw: &[Value]) -> Result<String, Failure> {
    let day = process::output(process::command("date", root).args(["--utc", "+%Y-%m-%d"]))?;
    let name = |number: u32| format!("bench/runs/{}-{number}", day.trim());
    let free = (1..RUNS_PER_DAY_MAX).map(name).find(|name| !root.join(name).exists());
    let folder = free.ok_or_else(|| Failure::new("bench/runs holds too many runs of today"))?;
    let text = serde_json::to_string_pretty(raw)
        .map_err(|cause| Failure::new(format!("results are no JSON\ncause: {cause}")))?;
    let text = text.replace(&format!("{}/", root.display()), "");
    process::write(&root.join(&folder).join("raw.json"), &text)?;
    Ok(folder)
}

const RUNS_PER_DAY_MAX: u32 = 1000;
/// The file system in memory that every Linux has.
const MEMORY_FILES: &str = "/dev/shm";
