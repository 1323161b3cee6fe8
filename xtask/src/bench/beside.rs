//! A client that is measured alone, and beside streams on the same server.
//!
//! How: the client runs alone, then the streams alone, then both, each after the same preparation,
//! such as that a node has written back what it holds. What the streams carried is counted only
//! while the client is measured ([`super::overlap`]). A probe sleeps beside each run of the client;
//! a round in which it overslept for longer than the p99 that was measured is marked, and counts
//! all the same.
//! Invariant: no other server runs meanwhile, since some have work of their own for a while after
//! their clients'. Cost: three loads. Not for: clients whose requests are to be logged.

use super::fio;
use super::overlap::{self, Carried, Log, Span};
use super::pauses::Probe;
use super::servers::{MemoryFolder, Server};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Seconds that streams run longer than the client beside them is measured: it starts and ramps
/// behind their start, and they outlast it. None of them counts.
pub(crate) const MARGIN: u32 = 4;

/// One server of a comparison, or several that stand for one, with their exports.
pub(crate) struct Arm {
    pub(crate) name: &'static str,
    pub(crate) uris: Vec<String>,
    /// Volumes before the node.
    pub(crate) servers: Vec<Server>,
    /// The node's directory, where it is one.
    pub(crate) node: Option<PathBuf>,
    #[expect(dead_code, reason = "held for its drop")]
    pub(crate) nvm: Option<MemoryFolder>,
}

impl Arm {
    /// Has all its servers run, or stand still.
    pub(crate) fn set_running(&self, is_running: bool) -> Result<(), Failure> {
        self.servers.iter().try_for_each(|server| server.set_running(is_running))
    }

    /// Writes all its exports, of so many bytes each, and has it stand still. A peer's file is
    /// filled as well: what was never written costs no read.
    pub(crate) fn fill(
        &self,
        root: &Path,
        bytes: impl Iterator<Item = u64>,
    ) -> Result<(), Failure> {
        for (uri, bytes) in self.uris.iter().zip(bytes) {
            fio::fill_uri(root, uri, &bytes.to_string())?;
        }
        self.set_running(false)
    }
}

/// The arms of a round in turn, each round starting one further.
pub(crate) fn turns(count: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| (turn + round as usize) % count)
}

/// The latencies of one direction, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

impl Latency {
    /// Of `read` or `write` in what fio printed of the client.
    pub(crate) fn of(document: &Value, direction: &str) -> Result<Latency, Failure> {
        let micros = |percentile: &str| {
            let ns = document["jobs"][0][direction]["lat_ns"]["percentile"][percentile].as_f64();
            let missing = || Failure::new(format!("fio printed no {direction} latencies"));
            ns.map(|ns| ns / 1e3).ok_or_else(missing)
        };
        Ok(Latency {
            p50: micros("50.000000")?,
            p99: micros("99.000000")?,
            p999: micros("99.900000")?,
        })
    }

    /// The worse of two, by percentile.
    pub(crate) fn worse(self, other: Latency) -> Latency {
        Latency {
            p50: self.p50.max(other.p50),
            p99: self.p99.max(other.p99),
            p999: self.p999.max(other.p999),
        }
    }
}

/// A client of 500 requests a second of 4 KiB, 350 reads and 150 writes, Zipf 1.2, at random times
/// that do not depend on answers as long as fewer than `depth` requests wait for theirs.
pub(crate) struct Paced<'a> {
    pub(crate) uri: &'a str,
    pub(crate) bytes: u64,
    pub(crate) depth: u32,
    pub(crate) seconds: u32,
    pub(crate) seed: u64,
    /// It comes before all other programs, in a real-time class.
    pub(crate) is_first: bool,
}

impl Paced<'_> {
    /// The words for it.
    pub(crate) fn command(&self, root: &Path) -> Command {
        let mut fio = if self.is_first {
            let mut first = process::command("chrt", root);
            first.args(["--rr", "20", "fio"]);
            first
        } else {
            process::command("fio", root)
        };
        fio.args(["--name=critical", "--ioengine=nbd", "--bs=4k", "--rw=randrw", "--norandommap"]);
        fio.args(["--random_distribution=zipf:1.2", "--rate_iops=350,150"]);
        fio.args(["--rate_process=poisson", "--time_based", "--ramp_time=1"]);
        fio.args(["--lat_percentiles=1", "--percentile_list=50:99:99.9", "--output-format=json"]);
        fio.arg(format!("--iodepth={}", self.depth));
        fio.arg(format!("--size={}", self.bytes)).arg(format!("--uri={}", self.uri));
        fio.arg(format!("--runtime={}", self.seconds)).arg(format!("--randseed={}", self.seed));
        fio
    }
}

/// A stream: a job of the fio that runs beside the client.
pub(crate) struct Stream<'a> {
    pub(crate) name: String,
    pub(crate) uri: &'a str,
    pub(crate) rw: &'static str,
}

/// Streams as fast as they can, all of one kind of request.
pub(crate) struct Streams<'a> {
    pub(crate) streams: Vec<Stream<'a>>,
    pub(crate) block: &'static str,
    pub(crate) bytes: u64,
    pub(crate) depth: u32,
    pub(crate) seconds: u32,
    pub(crate) seed: u64,
    /// Where fio logs their requests for a while.
    pub(crate) work: &'a Path,
}

impl Streams<'_> {
    fn command(&self, root: &Path) -> Command {
        let mut fio = process::command("fio", root);
        fio.args(["--ioengine=nbd", "--time_based", "--norandommap", "--output-format=json"]);
        fio.arg(format!("--bs={}", self.block)).arg(format!("--iodepth={}", self.depth));
        fio.arg(format!("--size={}", self.bytes));
        fio.arg(format!("--runtime={}", self.seconds + MARGIN));
        fio.arg(format!("--randseed={}", self.seed));
        for (stream, log) in self.streams.iter().zip(self.logs()) {
            fio.arg(format!("--name={}", stream.name)).arg(format!("--rw={}", stream.rw));
            fio.arg(format!("--uri={}", stream.uri));
            Log::ask(&mut fio, &log);
        }
        fio
    }

    fn logs(&self) -> Vec<PathBuf> {
        let names = self.streams.iter().map(|stream| &stream.name);
        names.map(|name| self.work.join(format!("streams-{name}"))).collect()
    }
}

/// What was measured.
pub(crate) struct Beside {
    /// What fio printed of the client.
    pub(crate) alone: Value,
    pub(crate) loaded: Value,
    /// What the streams carried.
    pub(crate) carried: Carried,
    /// The machine's longest pause while the client was measured, alone and with load, in
    /// microseconds.
    pub(crate) paused: [f64; 2],
    /// All of it, to be kept.
    pub(crate) document: Value,
}

/// Runs a client alone, `streams` alone, and both, each once `prepare` has ended. With `is_first`
/// the probe comes before what is measured.
pub(crate) fn measure(
    root: &Path,
    prepare: impl Fn() -> Result<(), Failure>,
    client: impl Fn() -> Command,
    streams: &Streams<'_>,
    is_first: bool,
) -> Result<Beside, Failure> {
    let logs = streams.logs();
    prepare()?;
    let probe = Probe::start(root, is_first);
    let alone = process::json(&mut client());
    let paused_alone = probe.end();
    let alone = alone?;
    prepare()?;
    let bulk_alone = process::json(&mut streams.command(root))?;
    let log_alone = Log::take(&logs, &bulk_alone)?;
    prepare()?;
    let running = Running::start(&mut streams.command(root))?;
    let probe = Probe::start(root, is_first);
    let loaded = process::json(&mut client());
    let paused = [paused_alone, probe.end()];
    let loaded = loaded?;
    let bulk_loaded = running.document()?;
    let log_loaded = Log::take(&logs, &bulk_loaded)?;
    let carried = overlap::carried(&log_alone, &log_loaded, Span::measured(&loaded)?)?;
    let document = json!({
        "alone": alone["jobs"], "bulk_alone": bulk_alone["jobs"],
        "loaded": loaded["jobs"], "bulk_loaded": bulk_loaded["jobs"],
        // The jobs' own rates are over their whole runs.
        "bulk_while_measured": {
            "from_ms": carried.counted.from_ms, "until_ms": carried.counted.until_ms,
            "alone_mb_per_second": carried.alone, "loaded_mb_per_second": carried.loaded,
        },
    });
    Ok(Beside { alone, loaded, carried, paused, document })
}

/// A client that runs beside the one that is measured.
struct Running(Option<Child>);

impl Running {
    fn start(command: &mut Command) -> Result<Self, Failure> {
        let child = command.stdout(Stdio::piped()).spawn();
        let child = child.map_err(|cause| Failure::new(format!("cannot start fio: {cause}")))?;
        Ok(Running(Some(child)))
    }

    fn document(mut self) -> Result<Value, Failure> {
        let child = self.0.take().expect("it is waited for once");
        let output = child.wait_with_output();
        let output = output.map_err(|cause| Failure::new(format!("fio was lost: {cause}")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let document = text.find('{').map_or("", |at| &text[at..]);
        serde_json::from_str(document)
            .map_err(|cause| Failure::new(format!("fio printed no JSON\ncause: {cause}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself; then there is nothing left to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether the machine paused, alone or with load, for longer than the p99 that was measured then.
pub(crate) fn is_marked(paused: [f64; 2], p99: [f64; 2]) -> bool {
    paused[0] > p99[0] || paused[1] > p99[1]
}

/// A round for the table of all rounds.
pub(crate) struct Round<const N: usize> {
    pub(crate) figures: [f64; N],
    /// In microseconds, alone and with load.
    pub(crate) paused: [f64; 2],
    pub(crate) is_marked: bool,
}

/// A table of rounds; `names` are those of the figures.
pub(crate) fn rounds<const N: usize>(names: [&str; N], rounds: &[Round<N>]) -> String {
    let mut table = format!(
        "| round | {} | longest pause alone / with load (ms) | marked |\n| ---: |{} ---: | --- |\n",
        names.join(" | "),
        " ---: |".repeat(N)
    );
    for (number, round) in (1..).zip(rounds) {
        let figures = round.figures.map(|figure| format!("{figure:.2}")).join(" | ");
        let mark = if round.is_marked { "marked" } else { "" };
        let [alone, loaded] = round.paused.map(|us| us / 1e3);
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {number} | {figures} | {alone:.2} / {loaded:.2} | {mark} |");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the latencies of a direction are found, the worse of two by percentile, and a
    /// document without figures is refused. Method: documents by hand.
    #[test]
    fn latencies_are_found() {
        let of = |ns: [u64; 3]| {
            let ns = json!({ "50.000000": ns[0], "99.000000": ns[1], "99.900000": ns[2] });
            json!({ "lat_ns": { "percentile": ns } })
        };
        let (read, write) = (of([1000, 9000, 9500]), of([5000, 6000, 7000]));
        let document = json!({ "jobs": [{ "read": read, "write": write }] });
        let [read, write] = ["read", "write"].map(|way| Latency::of(&document, way).expect(way));
        assert_eq!(read, Latency { p50: 1.0, p99: 9.0, p999: 9.5 });
        assert_eq!(write, Latency { p50: 5.0, p99: 6.0, p999: 7.0 });
        assert_eq!(write.worse(read), Latency { p50: 5.0, p99: 9.0, p999: 9.5 });
        assert!(Latency::of(&json!({ "jobs": [{}] }), "read").is_err());
    }

    /// Goal: each round begins one further and leaves none out. Method: three arms.
    #[test]
    fn rounds_begin_one_further() {
        let order = |round| turns(3, round).collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(5)], [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }

    /// Goal: a pause on either side marks a round, each beside its own p99, and the table shows
    /// it. Method: pauses by hand.
    #[test]
    fn pauses_mark_rounds() {
        assert!(is_marked([11.0, 0.0], [10.0, 99.0]) && is_marked([0.0, 100.0], [10.0, 99.0]));
        assert!(!is_marked([10.0, 99.0], [10.0, 99.0]));
        let round = |is_marked| Round { figures: [1.0, 2.5], paused: [100.0, 5000.0], is_marked };
        let table = rounds(["p99", "kept"], &[round(false), round(true)]);
        assert!(table.ends_with(
            "| 1 | 1.00 | 2.50 | 0.10 / 5.00 |  |\n| 2 | 1.00 | 2.50 | 0.10 / 5.00 | marked |\n"
        ));
        let columns = table.lines().map(|line| line.matches('|').count());
        assert!(columns.into_iter().all(|count| count == 6), "{table}");
    }
}
