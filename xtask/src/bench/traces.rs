//! The claims about traces: replaying, curves, and equal hits, beside libCacheSim.
//!
//! How: Zipf traces are generated once into the target folder, published ones converted into it for
//! `hits`; libCacheSim lives in a virtual environment there. Contenders take turns, each round
//! starting one further. Ratios are of processor time, from opening the file to its last request,
//! since others use the machine too.
//! Invariant: each contender runs alone, with one thread. Cost: some minutes per round.

use super::Arguments;
use super::entries::Plan;
use super::report::{Measured, Report, Spread};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const PEER: &str = "libcachesim==0.3.5";
const SCRIPT: &str = include_str!("peer.py");
const REQUESTS: u32 = 20_000_000;
/// Levels take a twentieth, a fifth and three quarters of the cache.
const LEVEL_PARTS: [(u32, u32); 3] = [(1, 20), (1, 5), (3, 4)];

/// One way through a trace.
struct Contender {
    name: &'static str,
    /// libCacheSim's name of the policy, or the words for `layby` before the trace.
    how: How,
}

enum How {
    Peer(&'static str),
    Layby(fn(u32) -> Vec<String>),
}

/// What one run came to.
struct Run {
    contender: &'static str,
    trace: &'static str,
    round: u32,
    requests: f64,
    cpu_seconds: f64,
    /// In the policy or curve alone, where the program tells it.
    inner_seconds: Option<f64>,
    bytes_per_block: f64,
}

/// Counts up whenever `layby trace generate` makes other requests of the same words, so that a file
/// of before is not replayed for one of after.
const GENERATOR: u32 = 1;

/// A generated trace: its name, its blocks.
const TRACES: [(&str, u32); 2] = [("1 M blocks", 1_000_000), ("10 M blocks", 10_000_000)];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn one_level(policy: &str, slots: u32) -> Vec<String> {
    words(&["replay", "--json", "-p", policy, "-s", &format!("{slots}blocks")])
}

fn three_levels(slots: u32) -> Vec<String> {
    let sizes = LEVEL_PARTS.map(|(part, whole)| format!("{}blocks", slots / whole * part));
    words(&["replay", "--json", "--services", "8", "--levels", &sizes.join(",")])
}

/// LRU, S3-FIFO and three levels beside the peer's policies, in a tenth of the blocks.
pub(crate) fn replay(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let contenders = [
        Contender { name: "libCacheSim LRU", how: How::Peer("LRU") },
        Contender { name: "libCacheSim S3-FIFO", how: How::Peer("S3FIFO") },
        Contender { name: "layby LRU", how: How::Layby(|slots| one_level("lru", slots)) },
        Contender { name: "layby S3-FIFO", how: How::Layby(|slots| one_level("s3fifo", slots)) },
        Contender { name: "layby, three levels, 8 services", how: How::Layby(three_levels) },
    ];
    let question = "Is replay 5 times as fast as libCacheSim's LRU, and in three levels twice?";
    let wanted = [("layby LRU", 5.0), ("layby S3-FIFO", 4.0), (contenders[4].name, 2.0)];
    measure(plan, arguments, question, &contenders, &wanted)
}

/// Curves, beside the peer's LRU at one size: its package has no profiler.
pub(crate) fn curves(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let contenders = [
        Contender { name: "libCacheSim LRU, one size", how: How::Peer("LRU") },
        Contender { name: "layby exact curve", how: How::Layby(|_| words(&["mrc", "--json"])) },
        Contender {
            name: "layby SHARDS 1 %",
            how: How::Layby(|_| words(&["mrc", "--json", "--sampled", "1%"])),
        },
    ];
    let question = "Does a whole curve cost less than libCacheSim's LRU at one size?";
    let wanted = [("layby exact curve", 1.0), ("layby SHARDS 1 %", 1.0)];
    measure(plan, arguments, question, &contenders, &wanted)
}

fn measure(
    plan: &Plan<'_>,
    arguments: &Arguments,
    question: &str,
    contenders: &[Contender],
    wanted: &[(&str, f64)],
) -> Result<Measured, Failure> {
    let python = peer(plan.root)?;
    let (mut runs, mut raw) = (Vec::new(), Vec::new());
    let traces = TRACES.map(|(name, blocks)| (name, blocks, zipf(plan, blocks, arguments.seed)));
    for round in 0..arguments.runs {
        for (trace, blocks, path) in &traces {
            let path = path.as_ref().map_err(|failure| Failure::new(failure.to_string()))?;
            for turn in 0..contenders.len() {
                let contender = &contenders[(turn + round as usize) % contenders.len()];
                let slots = blocks / 10;
                let answer = once(plan, &python, contender, path, slots)?;
                let run = run_of(&answer, (contender.name, trace, round), slots)?;
                let speed = run.requests / run.cpu_seconds / 1e6;
                process::say(&format!("{trace}: {}: {speed:.2} M requests/s", run.contender));
                raw.push(json!({
                    "contender": run.contender, "trace": trace, "round": round, "answer": answer,
                }));
                runs.push(run);
            }
        }
    }
    Ok(Measured::new(raw, |_| Ok(report(question, contenders, wanted, &runs))))
}

fn once(
    plan: &Plan<'_>,
    python: &Path,
    contender: &Contender,
    trace: &Path,
    slots: u32,
) -> Result<Value, Failure> {
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]);
    match contender.how {
        How::Peer(policy) => {
            command.arg("replay").arg(trace).args([policy, &slots.to_string()]);
        }
        How::Layby(words) => {
            let words = words(slots);
            command.arg("run").arg(plan.binary).arg(&words[0]).arg(trace).args(&words[1..]);
        }
    }
    process::json(&mut command)
}

fn run_of(
    answer: &Value,
    (contender, trace, round): (&'static str, &'static str, u32),
    slots: u32,
) -> Result<Run, Failure> {
    let number = |value: &Value| value.as_f64();
    let missing = || Failure::new(format!("{contender} did not say how it went: {answer}"));
    let part = answer["results"].get(0).or_else(|| answer["curves"].get(0)).unwrap_or(answer);
    let requests = number(&answer["requests"]).or_else(|| number(&part["requests"]));
    let requests = requests.ok_or_else(missing)?;
    let cpu_seconds = number(&answer["cpu_seconds"]).ok_or_else(missing)?;
    let bytes = number(&part["memory_bytes"]).ok_or_else(missing)?;
    let inner_seconds = answer.get("format").and_then(|_| number(&part["seconds"]));
    let bytes_per_block = bytes / f64::from(slots);
    Ok(Run { contender, trace, round, requests, cpu_seconds, inner_seconds, bytes_per_block })
}

fn report(
    question: &str,
    contenders: &[Contender],
    wanted: &[(&str, f64)],
    runs: &[Run],
) -> Report {
    let mut table = String::from(
        "| contender | trace | M requests/s | over libCacheSim LRU | alone, by the clock (M/s) | \
         memory per slot of the cache (B) |\n| --- | --- | ---: | ---: | ---: | ---: |\n",
    );
    let mut is_met = true;
    for (trace, _) in TRACES {
        for contender in contenders {
            let own =
                || runs.iter().filter(|run| run.trace == trace && run.contender == contender.name);
            let base = |round| {
                let base = |run: &&Run| {
                    run.trace == trace && run.round == round && run.contender == contenders[0].name
                };
                runs.iter().find(base).map_or(f64::NAN, |run| run.cpu_seconds)
            };
            let speed = Spread::of(own().map(|run| run.requests / run.cpu_seconds / 1e6));
            let ratio = Spread::of(own().map(|run| base(run.round) / run.cpu_seconds));
            let inner = |run: &Run| Some(run.requests / run.inner_seconds? / 1e6);
            let inner: Vec<f64> = own().filter_map(inner).collect();
            let alone = match inner.is_empty() {
                true => "-".to_owned(),
                false => Spread::of(inner.into_iter()).fraction(),
            };
            let memory = Spread::of(own().map(|run| run.bytes_per_block)).whole();
            let floor = wanted.iter().find(|(name, _)| *name == contender.name);
            is_met &= floor.is_none_or(|(_, floor)| ratio.reaches(*floor));
            let (name, speed, ratio) = (contender.name, speed.fraction(), ratio.fraction());
            // Writing to a string cannot fail.
            let _ =
                writeln!(table, "| {name} | {trace} | {speed} | {ratio} | {alone} | {memory} |");
        }
    }
    let verdict = if is_met { "Yes." } else { "Not always." };
    let _ = write!(
        table,
        "\n{REQUESTS} requests, Zipf 1.0, oracleGeneral; cache: a tenth of the blocks, in levels \
         1/20, 1/5 and 3/4 of that. Ratios of processor time, per round, reading included. Alone: \
         without reading. Memory: own accounting; libCacheSim: growth of its anonymous memory."
    );
    Report { heading: format!("{question} {verdict}"), table }
}

/// A policy here, at the peer, and by how much their hit ratios may differ.
const POLICIES: [(&str, &str, f64); 5] = [
    ("lru", "LRU", 0.0),
    ("fifo", "FIFO", 0.0),
    ("clock", "Clock", 0.005),
    ("s3fifo", "S3FIFO", 0.005),
    ("arc", "ARC", 0.005),
];

/// Generated traces: shape and exponent.
const SHAPES: [(&str, &str); 3] = [("zipf", "1.0"), ("zipf", "0.8"), ("mixed", "1.0")];

/// Published traces: name, file, format, and two sizes of the cache in slots: about 1 and 10 % of
/// the blocks, or for OLTP sizes whose miss ratios are published.
const PUBLISHED: [(&str, &str, &str, [u32; 2]); 4] = [
    ("ARC OLTP", "arc/OLTP.lis.zst", "lis", [2_000, 15_000]),
    ("ARC P3", "arc/P3.lis.zst", "lis", [7_625, 76_254]),
    ("CloudPhysics w106", "caffeine/cloud_physics-w106.trace.xz", "u32be", [2_751, 27_517]),
    (
        "CloudPhysics 2 h",
        "cloudphysics/cloudPhysicsIO.oracleGeneral.bin",
        "oracle-general",
        [489, 4_897],
    ),
];

/// A trace that both programs replay.
struct Shared {
    name: String,
    path: PathBuf,
    slots: [u32; 2],
}

/// Hits of every policy at every trace and two sizes beside the peer's.
pub(crate) fn hits(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let python = peer(plan.root)?;
    let mut traces = generated(plan, arguments.seed)?;
    traces.extend(published(plan)?);
    let mut table = String::from(
        "| trace | requests | policy | slots | layby hits | libCacheSim hits | difference of hit \
         ratios |\n| --- | ---: | --- | ---: | ---: | ---: | ---: |\n",
    );
    let (mut raw, mut is_met) = (Vec::new(), true);
    for trace in &traces {
        let pairs = POLICIES.iter().flat_map(|policy| trace.slots.map(|slots| (policy, slots)));
        for ((ours, theirs, bound), slots) in pairs {
            let [own, peer] = both(plan, &python, trace, (ours, theirs), slots)?;
            let count = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
            let (hits, peer_hits) = (count(&own["results"][0]["hits"]), count(&peer["hits"]));
            let requests = count(&own["requests"]);
            let difference = (hits - peer_hits) / requests;
            is_met &= difference.abs() <= *bound;
            let name = &trace.name;
            let line = format!(
                "| {name} | {requests} | {ours} | {slots} | {hits} | {peer_hits} | \
                 {difference:.5} |"
            );
            process::say(&line);
            // Writing to a string cannot fail.
            let _ = writeln!(table, "{line}");
            raw.push(json!({ "trace": name, "slots": slots, "layby": own, "peer": peer }));
        }
    }
    table.push_str("\nOne block per object; LRU and FIFO exact, the others within 0.005.");
    let verdict = if is_met { "Yes." } else { "Not always." };
    let heading = format!("Does a replay hit as often as libCacheSim's? {verdict}");
    Ok(Measured::new(raw, |_| Ok(Report { heading, table })))
}

/// Ours and the peer's answer.
fn both(
    plan: &Plan<'_>,
    python: &Path,
    trace: &Shared,
    (ours, theirs): (&str, &'static str),
    slots: u32,
) -> Result<[Value; 2], Failure> {
    let words = one_level(ours, slots);
    let mut command = Command::new(plan.binary);
    let own = process::json(command.arg(&words[0]).arg(&trace.path).args(&words[1..]))?;
    let contender = Contender { name: theirs, how: How::Peer(theirs) };
    Ok([own, once(plan, python, &contender, &trace.path, slots)?])
}

fn generated(plan: &Plan<'_>, seed: u64) -> Result<Vec<Shared>, Failure> {
    let seed = seed.to_string();
    let one = |(shape, exponent): (&str, &str)| {
        let size = ["--requests", "1000000", "--footprint", "400MiB"];
        let shaped = ["--shape", shape, "--exponent", exponent, "--seed", &seed];
        let path = generate(plan, &[&size[..], &shaped].concat())?;
        Ok(Shared { name: format!("{shape} {exponent}"), path, slots: [1000, 10_000] })
    };
    SHAPES.into_iter().map(one).collect()
}

/// Those published traces that are there, in the form that both programs read.
fn published(plan: &Plan<'_>) -> Result<Vec<Shared>, Failure> {
    let named = std::env::var_os("LAYBY_TRACES").map(PathBuf::from);
    let source = named.unwrap_or_else(|| plan.root.join("../shared/traces"));
    let (folder, mut found) = (folder(plan.root)?, Vec::new());
    for (name, file, format, slots) in PUBLISHED {
        let (from, number) = (source.join(file), found.len());
        if !from.exists() {
            process::say(&format!("left out: {name}: `{}` is not there", from.display()));
            continue;
        }
        let path = folder.join(format!("published-{number}-{}.oracleGeneral", slots[0]));
        let mut command = Command::new(plan.binary);
        command.args(["trace", "convert", "--overwrite", "--format", format]).arg(from).arg(&path);
        process::output(&mut command)?;
        found.push(Shared { name: name.to_owned(), path, slots });
    }
    Ok(found)
}

fn folder(root: &Path) -> Result<PathBuf, Failure> {
    let folder = process::target(root).join("bench/traces");
    std::fs::create_dir_all(&folder)
        .map_err(|cause| Failure::io("cannot make", &folder, &cause))?;
    Ok(folder)
}

fn zipf(plan: &Plan<'_>, blocks: u32, seed: u64) -> Result<PathBuf, Failure> {
    let (requests, seed) = (REQUESTS.to_string(), seed.to_string());
    let footprint = (u64::from(blocks) * 4096).to_string();
    let words = ["--requests", &requests, "--footprint", &footprint, "--seed", &seed];
    generate(plan, &words)
}

/// The name of the file of a generated trace: all that it was made of.
fn name_of(words: &[&str]) -> String {
    let of = words.join("").replace("--", "-");
    format!("generated-v{GENERATOR}{of}.oracleGeneral")
}

/// Makes a trace of reads, unless it is there, and says where it is.
fn generate(plan: &Plan<'_>, words: &[&str]) -> Result<PathBuf, Failure> {
    let trace = folder(plan.root)?.join(name_of(words));
    if !trace.exists() {
        let mut command = Command::new(plan.binary);
        command.args(["trace", "generate"]).arg(&trace);
        process::output(command.args(["--read-percent", "100%"]).args(words))?;
    }
    Ok(trace)
}

/// The folder of a package: its name and version, so that another version is not taken for it.
fn folder_of(package: &str) -> String {
    package.replace("==", "-")
}

/// Python with libCacheSim, in a virtual environment below the target folder.
fn peer(root: &Path) -> Result<PathBuf, Failure> {
    let home = process::target(root).join("bench").join(folder_of(PEER));
    let python = home.join("bin/python");
    let has_peer = process::command(&python.to_string_lossy(), root)
        .args(["-c", "import libcachesim"])
        .stderr(std::process::Stdio::null())
        .status();
    if has_peer.is_ok_and(|status| status.success()) {
        return Ok(python);
    }
    let debian = Path::new("/usr/bin/python3");
    let system = if debian.exists() { "/usr/bin/python3" } else { "python3" };
    process::run(process::command(system, root).args(["-m", "venv"]).arg(&home))?;
    let mut install = process::command(&python.to_string_lossy(), root);
    process::run(install.args(["-m", "pip", "install", "--quiet", PEER]))?;
    Ok(python)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a peer is found again in the version that is wanted alone. Method: two versions.
    #[test]
    fn peers_have_folders_by_version() {
        assert_ne!(folder_of("libcachesim==0.3.5"), folder_of("libcachesim==0.3.6"));
        assert!(!folder_of(PEER).contains(['=', '/']), "{}", folder_of(PEER));
    }

    /// Goal: a generated trace is found again under its own name alone: whatever decides its
    /// content is in it. Method: words that differ in one place each.
    #[test]
    fn traces_have_names_of_their_own() {
        let words = ["--requests", "10", "--footprint", "400MiB", "--shape", "zipf"];
        let words = [&words[..], &["--exponent", "1.0", "--seed", "1"]].concat();
        let name = name_of(&words);
        for (place, other) in [(1, "20"), (3, "4MiB"), (5, "mixed"), (7, "0.8"), (9, "2")] {
            let mut changed = words.clone();
            changed[place] = other;
            assert_ne!(name_of(&changed), name, "{other}");
        }
        assert_eq!(name_of(&words), name);
        assert!(name.contains(&format!("v{GENERATOR}")) && !name.contains('/'), "{name}");
    }
}
