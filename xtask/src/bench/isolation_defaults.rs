//! Does a critical volume's latency hold beside bulk clients on a node without configuration?
//!
//! How: a critical volume has 500 requests of 4 KiB a second, 70 % reads, Zipf 1.2, four in flight
//! at most; its writes are durable once acknowledged. Four clients of class normal saturate
//! volumes of their own in 128 KiB at depth 8: two write in order, two read and write at random.
//! Reads and writes are judged apart. Beside the node runs nbdkit's file, with a sync per write of
//! the critical volume, which is the same promise; nothing is wanted of it.
//! Invariant: nothing has a real-time priority or a configuration; no other server runs while one
//! is measured. Cost: rounds × two servers × three loads, and 4 GiB of disk.
//! Not for: what classes gain over one class; see `isolation` and `priority`.

use super::bars::{self, Bar, Wanted};
use super::beside::{self, Arm, Beside, Latency, Paced, Round, Stream, Streams};
use super::defaults::{self, Defaults};
use super::entries::Plan;
use super::pauses::{self, Pauses};
use super::report::{Measured, Report, Spread};
use super::{Arguments, servers};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;

const CRITICAL_BYTES: u64 = 64 << 20;
const BULK_BYTES: u64 = 512 << 20;
/// The bulk clients' volumes, and what each does.
const BULK: [(&str, &str); 4] =
    [("bulk0", "write"), ("bulk1", "write"), ("bulk2", "randrw"), ("bulk3", "randrw")];
/// Requests of the critical client in flight at most.
const DEPTH: u32 = 4;
/// With load over alone: p99 of reads, p99 of writes; what bulk keeps.
const WANTED: [Wanted; 3] = [Wanted::AtMost(1.5), Wanted::AtMost(2.0), Wanted::AtLeast(0.85)];
const FIGURES: [&str; 3] =
    ["p99 of reads over alone", "p99 of durable writes over alone", "bulk kept"];
const PEER: &str = "nbdkit file";

/// What one server showed in one round; latencies are alone and with load.
struct Outcome {
    reads: [Latency; 2],
    writes: [Latency; 2],
    /// Of bulk, in MB/s, alone and with the critical client.
    bulk: [f64; 2],
    /// The machine's longest pause, alone and with load, in microseconds.
    paused: [f64; 2],
}

impl Outcome {
    fn of(seen: &Beside) -> Result<Outcome, Failure> {
        let both = |way: &str| {
            Ok::<_, Failure>([Latency::of(&seen.alone, way)?, Latency::of(&seen.loaded, way)?])
        };
        let bulk = [seen.carried.alone, seen.carried.loaded];
        Ok(Outcome { reads: both("read")?, writes: both("write")?, bulk, paused: seen.paused })
    }

    /// In the order of [`FIGURES`].
    fn figures(&self) -> [f64; 3] {
        let ratio = |both: &[Latency; 2]| both[1].p99 / both[0].p99;
        [ratio(&self.reads), ratio(&self.writes), self.bulk[1] / self.bulk[0]]
    }

    /// By the smaller p99, which is the first that a pause outlasts.
    fn is_marked(&self) -> bool {
        let p99 = [0, 1].map(|at| self.reads[at].p99.min(self.writes[at].p99));
        beside::is_marked(self.paused, p99)
    }
}

/// Runs both servers in every round.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let (arms, defaults) = arms(plan)?;
    let mut raw = vec![json!({ "printed": &defaults.printed })];
    let mut outcomes: Vec<Vec<Outcome>> = arms.iter().map(|_| Vec::new()).collect();
    let mut paused = Vec::new();
    for round in 0..arguments.runs {
        let seen = pauses::measure();
        raw.push(json!({ "round": round, "pauses": seen.share, "longest_us": seen.longest_us }));
        paused.push(seen);
        for index in beside::turns(arms.len(), round) {
            let arm = &arms[index];
            arm.set_running(true)?;
            let (document, outcome) = one(plan, arm, arguments, round)?;
            arm.set_running(false)?;
            let [reads, writes, kept] = outcome.figures();
            process::say(&format!(
                "round {} of {}: {}: p99 of reads {reads:.2} times alone, of durable writes \
                 {writes:.2}; bulk keeps {kept:.2}",
                round + 1,
                arguments.runs,
                arm.name
            ));
            raw.push(json!({
                "server": arm.name, "round": round, "fio": document,
                "longest_pause_us": outcome.paused, "is_marked": outcome.is_marked(),
            }));
            outcomes[index].push(outcome);
        }
    }
    Ok(Measured::new(raw, |_| Ok(report(&outcomes, &paused, &defaults))))
}

fn bytes() -> impl Iterator<Item = u64> {
    std::iter::once(CRITICAL_BYTES).chain([BULK_BYTES; BULK.len()])
}

/// The node, then the peer; each has the critical volume first.
fn arms(plan: &Plan<'_>) -> Result<(Vec<Arm>, Defaults), Failure> {
    let bulk = BULK.map(|(name, _)| (name, BULK_BYTES, "normal"));
    let volumes: Vec<_> =
        std::iter::once(("critical", CRITICAL_BYTES, "critical")).chain(bulk).collect();
    let (layby, defaults) = defaults::arm(plan, &volumes)?;
    let file = plan.work.join("critical.raw");
    servers::empty_file(&file, CRITICAL_BYTES)?;
    let critical = servers::nbdkit_durable(plan.work, "nbdkit synced", &file)?;
    let folder = plan.work.join("nbdkit-files");
    servers::empty_files(&folder, BULK.iter().map(|(name, _)| ((*name).to_owned(), BULK_BYTES)))?;
    let dir = format!("dir={}", folder.display());
    let bulk = servers::nbdkit(plan.work, PEER, &["file", &dir])?;
    let uris = BULK.iter().map(|(name, _)| bulk.export(name));
    let uris = std::iter::once(critical.uri.clone()).chain(uris).collect();
    let peer = Arm { name: PEER, uris, servers: vec![critical, bulk], node: None, nvm: None };
    let arms = vec![layby, peer];
    for arm in &arms {
        arm.fill(plan.root, bytes())?;
    }
    Ok((arms, defaults))
}

fn one(
    plan: &Plan<'_>,
    arm: &Arm,
    arguments: &Arguments,
    round: u32,
) -> Result<(Value, Outcome), Failure> {
    let (seed, seconds) = (arguments.seed + u64::from(round), arguments.seconds);
    let (uri, bytes, depth) = (arm.uris[0].as_str(), CRITICAL_BYTES, DEPTH);
    let critical = Paced { uri, bytes, depth, seconds, seed, is_first: false };
    let stream =
        |((name, rw), uri): ((&str, &'static str), _)| Stream { name: name.into(), uri, rw };
    let uris = arm.uris[1..].iter().map(String::as_str);
    let bulk = Streams {
        streams: BULK.into_iter().zip(uris).map(stream).collect(),
        block: "128k",
        bytes: BULK_BYTES,
        depth: 8,
        seconds,
        seed,
        work: plan.work,
    };
    let settle = || defaults::settle(plan, arm.node.as_deref());
    let client = || critical.command(plan.root);
    let seen = beside::measure(plan.root, settle, client, &bulk, false)?;
    let outcome = Outcome::of(&seen)?;
    Ok((seen.document, outcome))
}

/// The node's bars, then the peer's figures.
fn bars(outcomes: &[Vec<Outcome>]) -> Vec<Bar> {
    let figures = |outcomes: &[Outcome], at: usize| -> Vec<f64> {
        outcomes.iter().map(|outcome| outcome.figures()[at]).collect()
    };
    let ours = (0..FIGURES.len())
        .map(|at| Bar::new(FIGURES[at], WANTED[at], figures(&outcomes[0], at).into_iter()));
    let peer = (0..FIGURES.len()).map(|at| {
        let rounds = figures(&outcomes[1], at).into_iter();
        Bar::new(format!("{PEER}: {}", FIGURES[at]), Wanted::Nothing, rounds)
    });
    ours.chain(peer).collect()
}

/// Latencies of one direction, alone and with load.
type Both = fn(&Outcome) -> &[Latency; 2];

fn report(outcomes: &[Vec<Outcome>], paused: &[Pauses], defaults: &Defaults) -> Report {
    let bars = bars(outcomes);
    let mut table = bars::table(&bars);
    table += "\n| server | requests | p50 alone / with bulk (us) | p99 alone / with bulk (us) | \
         p99.9 alone / with bulk (us) | bulk alone (MB/s) |\n\
         | --- | --- | ---: | ---: | ---: | ---: |\n";
    for (name, outcomes) in ["layby", PEER].into_iter().zip(outcomes) {
        let bulk = Spread::of(outcomes.iter().map(|outcome| outcome.bulk[0])).whole();
        let ways: [(&str, Both); 2] =
            [("reads", |outcome| &outcome.reads), ("durable writes", |outcome| &outcome.writes)];
        for (way, of) in ways {
            let cell = |figure: fn(&Latency) -> f64| {
                let spread =
                    |at: usize| Spread::of(outcomes.iter().map(|one| figure(&of(one)[at]))).whole();
                format!("{} / {}", spread(0), spread(1))
            };
            let (p50, p99, p999) = (cell(|l| l.p50), cell(|l| l.p99), cell(|l| l.p999));
            // Writing to a string cannot fail.
            let _ = writeln!(table, "| {name} | {way} | {p50} | {p99} | {p999} | {bulk} |");
        }
    }
    let round = |one: &Outcome| Round {
        figures: one.figures(),
        paused: one.paused,
        is_marked: one.is_marked(),
    };
    let rounds: Vec<Round<3>> = outcomes[0].iter().map(round).collect();
    let _ = write!(
        table,
        "\nThe node's rounds; marked is one in which the machine itself paused for longer than the \
         smaller p99, as a probe beside the load saw it:\n\n{}\n{} {} Bulk is counted only while \
         the critical volume was measured, and alone in the same part of its run.",
        beside::rounds(FIGURES, &rounds),
        defaults.sentence(),
        pauses::sentence(paused)
    );
    let question = "Does a critical volume's latency hold beside bulk clients, with defaults?";
    Report { heading: bars::heading(question, &bars), table }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(reads: f64, writes: f64, bulk: f64, paused: f64) -> Outcome {
        let latency = |p99: f64| Latency { p50: 1.0, p99, p999: 2.0 * p99 };
        Outcome {
            reads: [latency(100.0), latency(reads)],
            writes: [latency(1000.0), latency(writes)],
            bulk: [200.0, bulk],
            paused: [0.0, paused],
        }
    }

    /// Goal: reads, writes and bulk are judged apart, each by four rounds of five, and the peer
    /// has no bars. Method: five rounds; reads miss one, writes two, bulk none.
    #[test]
    fn each_figure_has_its_own_bar() {
        let rounds = [(150.0, 2000.0), (151.0, 2001.0), (90.0, 2001.0), (90.0, 1.0), (90.0, 1.0)];
        let ours = rounds.map(|(reads, writes)| outcome(reads, writes, 170.0, 0.0));
        let peer = vec![outcome(9000.0, 1.0, 1.0, 0.0)];
        let found = bars(&[ours.into(), peer]);
        let met: Vec<Option<bool>> = found.iter().map(Bar::is_met).collect();
        assert_eq!(met, [Some(true), Some(false), Some(true), None, None, None]);
        assert_eq!(found[1].rounds, [2.0, 2.001, 2.001, 0.001, 0.001]);
        assert_eq!(found[3].rounds, [90.0]);
    }

    /// Goal: a pause beyond the smaller p99 marks a round. Method: one between reads' and writes',
    /// one below both.
    #[test]
    fn the_smaller_p99_decides_what_is_marked() {
        assert!(outcome(120.0, 1000.0, 1.0, 121.0).is_marked());
        assert!(!outcome(120.0, 1000.0, 1.0, 120.0).is_marked());
    }
}
