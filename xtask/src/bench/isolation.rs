//! Does a critical volume's latency hold while bulk streams saturate the node?
//!
//! How: one volume is read and written in 4 KiB at 500 requests a second, at random times that do
//! not wait for answers, Zipf 1.2, 70 % reads; six others write or read 256 KiB in order as fast as
//! they can. Each round measures every server alone, with the streams alone, and with both, each
//! once the node has written back what it holds, and the kernel what peers wrote. Layby runs twice:
//! with classes, and with all seven volumes in one class. Its NVM level is modelled by
//! a file in memory, so that it is a device of its own beside the streams' disk.
//! A bar is met where it is met in four rounds of five; every round of Layby's is in the report. A
//! probe sleeps beside each load; a round in which it overslept for longer than the p99 that was
//! measured is marked, and counts all the same.
//! Invariant: whatever is compared ran in the same round on the same server, and no other server
//! runs meanwhile, since some have work of their own for a while after their clients' (ZeroFS).
//! Cost: rounds × servers × three loads. With `--realtime` every server (at nice -20) and the
//! critical client (in a real-time class) come before other programs, so that what is
//! measured is the server and not who else has the processor; the streams' clients never do.
//! Not for: absolute figures; fio counts a request from when it is issued, and issues the next one
//! when the last is answered where answers take longer than the pause between two.

use super::bars;
use super::beside::{self, Arm, Latency, Paced, Round, Stream, Streams};
use super::defaults;
use super::entries::Plan;
use super::overlap::Carried;
use super::pauses::Pauses;
use super::report::{Measured, ROUNDS_MET, Report, Spread};
use super::servers::{self, MemoryFolder};
use super::{Arguments, pauses};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Volumes that stream, and bytes of each.
const BULK: usize = 6;
const BULK_BYTES: u64 = 256 << 20;
const CRITICAL_BYTES: u64 = 64 << 20;
/// Requests of the critical client in flight at most.
const DEPTH: u32 = 16;
/// What the node keeps: all of the critical volume, half of what the streams write.
const CONFIG: &str = "[node]\nshards = 1\n[control]\nhttp = \"off\"\n\
    [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"256MiB\"\n\
    [[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"256MiB\"\npath = \"NVM\"\n\
    [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"1GiB\"\n";
/// The goals: p99.9 and p99 with load over alone at most, streams kept at least.
const GOALS: [f64; 3] = [1.5, 1.3, 0.85];

/// What one arm showed in one round.
struct Outcome {
    alone: Latency,
    loaded: Latency,
    bulk: Carried,
    /// The machine's longest pause while the critical volume was measured, alone and with load, in
    /// microseconds.
    paused: [f64; 2],
}

impl Outcome {
    /// With load over alone: p99.9, p99, the streams; in the order of [`GOALS`].
    fn figures(&self) -> [f64; 3] {
        [
            self.loaded.p999 / self.alone.p999,
            self.loaded.p99 / self.alone.p99,
            self.bulk.loaded / self.bulk.alone,
        ]
    }

    fn meets(&self) -> [bool; 3] {
        let [p999, p99, kept] = self.figures();
        let at_most = |figure: f64, bar: f64| bars::is_figure(figure) && figure <= bar;
        let is_kept = bars::is_figure(kept) && kept >= GOALS[2];
        [at_most(p999, GOALS[0]), at_most(p99, GOALS[1]), is_kept]
    }

    /// Whether the machine paused for longer than what was measured.
    fn is_marked(&self) -> bool {
        beside::is_marked(self.paused, [self.alone.p99, self.loaded.p99])
    }
}

/// Runs every arm in every round.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    servers::run_first(arguments.realtime);
    let arms = arms(plan)?;
    let mut raw = Vec::new();
    let mut outcomes: Vec<Vec<Outcome>> = arms.iter().map(|_| Vec::new()).collect();
    let mut paused = Vec::new();
    for round in 0..arguments.runs {
        let seen = pauses::measure();
        raw.push(json!({ "round": round, "pauses": seen.share, "longest_us": seen.longest_us }));
        paused.push(seen);
        for index in beside::turns(arms.len(), round) {
            arms[index].set_running(true)?;
            let (document, outcome) = one(plan, &arms[index], arguments, round)?;
            arms[index].set_running(false)?;
            process::say(&format!(
                "round {} of {}: {}: p99 {:.0} us alone, {:.0} us with load; p99.9 {:.0} and \
                 {:.0}; streams {:.0} and {:.0} MB/s",
                round + 1,
                arguments.runs,
                arms[index].name,
                outcome.alone.p99,
                outcome.loaded.p99,
                outcome.alone.p999,
                outcome.loaded.p999,
                outcome.bulk.alone,
                outcome.bulk.loaded
            ));
            raw.push(json!({
                "server": arms[index].name, "round": round, "fio": document,
                "longest_pause_us": outcome.paused, "is_marked": outcome.is_marked(),
            }));
            outcomes[index].push(outcome);
        }
    }
    Ok(Measured::new(raw, |_| Ok(report(&arms, &outcomes, &paused))))
}

fn arms(plan: &Plan<'_>) -> Result<Vec<Arm>, Failure> {
    let mut arms = vec![
        layby(plan, "layby, classes", ["critical", "bulk"])?,
        layby(plan, "layby, one class", ["normal", "normal"])?,
    ];
    let files = |name: &str| {
        let folder = plan.work.join(name);
        let files = bytes().enumerate().map(|(index, bytes)| (volume(index), bytes));
        servers::empty_files(&folder, files).map(|()| folder)
    };
    let folder = files("nbdkit-files")?;
    let dir = format!("dir={}", folder.display());
    let server = servers::nbdkit(plan.work, "nbdkit file", &["file", &dir])?;
    let uris = (0..=BULK).map(|index| server.export(&volume(index)));
    arms.push(Arm {
        name: "nbdkit file",
        uris: uris.collect(),
        servers: vec![server],
        node: None,
        nvm: None,
    });
    let folder = files("qemu-nbd-files")?;
    let mut servers = Vec::new();
    for index in 0..=BULK {
        let work = plan.work.join(format!("qemu-nbd-{index}"));
        servers.push(servers::qemu_nbd(&work, "qemu-nbd", &folder.join(volume(index)))?);
    }
    let uris = servers.iter().map(|server| server.uri.clone()).collect();
    arms.push(Arm { name: "qemu-nbd", uris, servers, node: None, nvm: None });
    if process::exists("qemu-storage-daemon", "--version") {
        let folder = files("qsd-files")?;
        let names: Vec<String> = (0..=BULK).map(volume).collect();
        let name = "qemu-storage-daemon";
        let server = servers::storage_daemon(plan.work, name, &folder, (&names, false))?;
        let uris = names.iter().map(|name| server.export(name)).collect();
        arms.push(Arm { name, uris, servers: vec![server], node: None, nvm: None });
    }
    arms.extend(zerofs(plan)?);
    for arm in &arms {
        arm.fill(plan.root, bytes())?;
    }
    Ok(arms)
}

fn layby(plan: &Plan<'_>, name: &'static str, classes: [&str; 2]) -> Result<Arm, Failure> {
    let folder = name.replace([',', ' '], "-");
    let nvm = MemoryFolder::new(&folder)?;
    let work = plan.work.join(folder);
    let config = CONFIG.replace("NVM", &nvm.join("level").to_string_lossy());
    let node = servers::node(plan.binary, &work, &config)?;
    let mut servers = Vec::new();
    for (index, bytes) in bytes().enumerate() {
        let class = classes[index.min(1)];
        let flags = ["--size", &bytes.to_string(), "--class", class];
        servers.push(servers::volume_with(plan.binary, &work, VOLUMES[index], &flags)?);
    }
    let uris = servers.iter().map(|server| server.uri.clone()).collect();
    servers.push(node);
    Ok(Arm { name, uris, servers, node: Some(work.join("node")), nvm: Some(nvm) })
}

/// ZeroFS with its store in files, and as much cache as Layby: DRAM and NVM, SSD.
fn zerofs(plan: &Plan<'_>) -> Result<Option<Arm>, Failure> {
    let volumes: Vec<(&str, u64)> = VOLUMES.into_iter().zip(bytes()).collect();
    let work = plan.work.join("zerofs");
    let Some(server) = servers::zerofs(&work, "isolation", &volumes, [1 << 30, 512 << 20])? else {
        return Ok(None);
    };
    let uris = VOLUMES.iter().map(|name| server.export(name)).collect();
    Ok(Some(Arm { name: "zerofs", uris, servers: vec![server], node: None, nvm: None }))
}

const VOLUMES: [&str; BULK + 1] = ["critical", "b0", "b1", "b2", "b3", "b4", "b5"];

fn volume(index: usize) -> String {
    VOLUMES[index].to_owned()
}

fn bytes() -> impl Iterator<Item = u64> {
    (0..=BULK).map(|index| if index == 0 { CRITICAL_BYTES } else { BULK_BYTES })
}

fn one(
    plan: &Plan<'_>,
    arm: &Arm,
    arguments: &Arguments,
    round: u32,
) -> Result<(Value, Outcome), Failure> {
    let (seed, seconds) = (arguments.seed + u64::from(round), arguments.seconds);
    let critical = Paced {
        uri: &arm.uris[0],
        bytes: CRITICAL_BYTES,
        depth: DEPTH,
        seconds,
        seed,
        is_first: arguments.realtime,
    };
    // Three volumes written in order and three read.
    let stream = |index: usize| Stream {
        name: volume(index),
        uri: &arm.uris[index],
        rw: if index.is_multiple_of(2) { "read" } else { "write" },
    };
    let streams = Streams {
        streams: (1..=BULK).map(stream).collect(),
        block: "256k",
        bytes: BULK_BYTES,
        depth: 8,
        seconds,
        seed,
        work: plan.work,
    };
    let settle = || defaults::settle(plan, arm.node.as_deref());
    let client = || critical.command(plan.root);
    let seen = beside::measure(plan.root, settle, client, &streams, arguments.realtime)?;
    let outcome = Outcome {
        alone: worse(&seen.alone)?,
        loaded: worse(&seen.loaded)?,
        bulk: seen.carried,
        paused: seen.paused,
    };
    Ok((seen.document, outcome))
}

/// The worse of reads and writes, by percentile.
fn worse(document: &Value) -> Result<Latency, Failure> {
    Ok(Latency::of(document, "read")?.worse(Latency::of(document, "write")?))
}

fn report(arms: &[Arm], outcomes: &[Vec<Outcome>], paused: &[Pauses]) -> Report {
    let mut table = String::from(
        "| server | p50 alone / with load (us) | p99 alone / with load (us) | p99.9 alone / with \
         load (us) | p99 ratio | p99.9 ratio | streams alone (MB/s) | streams kept |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (arm, outcomes) in arms.iter().zip(outcomes) {
        let spread = |figure: &dyn Fn(&Outcome) -> f64| Spread::of(outcomes.iter().map(figure));
        let pair = |figure: fn(&Latency) -> f64| {
            let alone = spread(&|outcome| figure(&outcome.alone)).whole();
            format!("{alone} / {}", spread(&|outcome| figure(&outcome.loaded)).whole())
        };
        let [p999, p99, kept] = ratios(outcomes);
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            arm.name,
            pair(|latency| latency.p50),
            pair(|latency| latency.p99),
            pair(|latency| latency.p999),
            p99.fraction(),
            p999.fraction(),
            spread(&|outcome| outcome.bulk.alone).whole(),
            kept.fraction()
        );
    }
    let _ = write!(
        table,
        "\nOf reads and writes the worse counts. Goals: p99.9 ratio at most {}, p99 ratio at most \
         {}, streams kept at least {}. {} Streams are counted only \
         while the critical volume was measured, and alone in the same part of their run.",
        GOALS[0],
        GOALS[1],
        GOALS[2],
        pauses::sentence(paused)
    );
    table += &rounds(&outcomes[0]);
    Report { heading: heading(&outcomes[0]), table }
}

/// Rounds in which each bar was met.
fn met(outcomes: &[Outcome]) -> [usize; 3] {
    let count = |at: usize| outcomes.iter().filter(|outcome| outcome.meets()[at]).count();
    [0, 1, 2].map(count)
}

fn is_met(rounds: usize, of: usize) -> bool {
    of > 0 && rounds as f64 >= ROUNDS_MET * of as f64
}

fn heading(outcomes: &[Outcome]) -> String {
    let (met, of) = (met(outcomes), outcomes.len());
    let are_met = met.map(|rounds| is_met(rounds, of));
    let answer = match are_met.iter().filter(|is_met| **is_met).count() {
        3 => "Yes",
        0 => "No",
        _ => "Not wholly",
    };
    let [p999, p99, kept] = met;
    format!(
        "Does a critical volume's latency hold beside six saturating streams? {answer}: of {of} \
         rounds the bar of p99 is met in {p99}, of p99.9 in {p999}, of the streams in {kept}."
    )
}

/// Every round of an arm.
fn rounds(outcomes: &[Outcome]) -> String {
    let rows: Vec<Round<3>> = outcomes
        .iter()
        .map(|outcome| {
            let [p999, p99, kept] = outcome.figures();
            let is_marked = outcome.is_marked();
            Round { figures: [p99, p999, kept], paused: outcome.paused, is_marked }
        })
        .collect();
    format!(
        "\n\nA bar is met where {:.0} % of the rounds meet it. The rounds of the first server; \
         marked is one in which the machine itself paused for longer than the p99, as a probe \
         beside the load saw it:\n\n{}",
        ROUNDS_MET * 100.0,
        beside::rounds(["p99 ratio", "p99.9 ratio", "streams kept"], &rows)
    )
}

/// With load over alone, per round: p99.9, p99, the streams.
fn ratios(outcomes: &[Outcome]) -> [Spread; 3] {
    [0, 1, 2].map(|at| Spread::of(outcomes.iter().map(|outcome| outcome.figures()[at])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::overlap::Span;

    /// Goal: a bar is met where four rounds of five meet it, whatever the median is, and a round in
    /// which the machine paused longer than the figure is marked and counted. Method: five rounds
    /// of which one, then two, are far off.
    #[test]
    fn rounds_decide() {
        let round = |p99: f64, paused: f64| {
            let latency = |p99: f64| Latency { p50: 1.0, p99, p999: 2.0 * p99 };
            Outcome {
                alone: latency(100.0),
                loaded: latency(p99),
                bulk: Carried {
                    alone: 1000.0,
                    loaded: 900.0,
                    counted: Span { from_ms: 0, until_ms: 1 },
                },
                paused: [0.0, paused],
            }
        };
        let four = [100.0, 110.0, 120.0, 90.0, 530.0].map(|p99| round(p99, 50.0));
        assert_eq!(met(&four), [4, 4, 5]);
        assert!(heading(&four).contains("Yes: of 5 rounds the bar of p99 is met in 4"));
        let three = [100.0, 110.0, 120.0, 400.0, 530.0].map(|p99| round(p99, 410.0));
        assert!(heading(&three).contains("Not wholly: of 5 rounds the bar of p99 is met in 3"));
        let marked = rounds(&three).matches("| marked |").count();
        // The column's heading is one.
        assert_eq!(marked, 1 + 4, "{}", rounds(&three));
        assert!(!is_met(0, 0) && is_met(4, 5) && !is_met(3, 4));
    }
}
