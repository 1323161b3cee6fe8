//! What is a durable write worth, and what do reads beside it feel, on a default node?
//!
//! How: random writes of 4 KiB over 64 MiB. A write of class critical is durable once it is
//! acknowledged; the peer that makes the same promise is nbdkit's file with a sync per write (its
//! filter `fua`, forced). Class normal with a flush after each write is a further row. Then the
//! critical volume is read at random, alone and beside its own durable writes of as many in
//! flight, over the same blocks, through a connection of their own. Before reads alone, writes
//! alone and both, the node writes back what it holds, and all blocks are read once.
//! Invariant: contenders of a load run one after the other in the same round, with the same seed,
//! while the other server stands still. Cost: rounds × eleven measurements.
//! Not for: flushes of many writes, which `write-durable` measures.

use super::bars::{self, Bar, Wanted};
use super::beside::{self, Arm, Stream, Streams};
use super::defaults::{self, Defaults};
use super::entries::Plan;
use super::fio::{self, EXPORT_BYTES, Load, Sample};
use super::pauses::{self, Pauses};
use super::report::{Measured, Report, Spread};
use super::{Arguments, servers};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Rates over the peer's at the depths of [`cases`], and the p99 of reads beside writes over alone.
const RATIOS_MIN: [f64; 2] = [0.95, 2.0];
const READS_RATIO_MAX: f64 = 1.5;
/// Reads in flight, and writes beside them.
const READ_DEPTHS: [u32; 2] = [1, 4];

const CRITICAL: &str = "layby, critical";
const NORMAL: &str = "layby, normal";
const PEER: &str = "nbdkit file, synced";

/// A contender under a load; `export` is one of its arm's.
struct Case {
    server: &'static str,
    arm: usize,
    export: usize,
    load: Load,
}

/// The contenders by depth: ours first, then the peer.
fn cases() -> [Vec<Case>; 2] {
    let writes = |name, depth| Load::of_blocks(name, "randwrite", depth);
    let same = |name, depth| {
        let ours = Case { server: CRITICAL, arm: 0, export: 0, load: writes(name, depth) };
        vec![ours, Case { server: PEER, arm: 1, export: 0, load: writes(name, depth) }]
    };
    let mut first = same("QD1", 1);
    let load = Load { writes_per_flush: 1, ..writes("QD1, flush each", 1) };
    first.push(Case { server: NORMAL, arm: 0, export: 1, load });
    [first, same("QD32", 32)]
}

/// Reads of one depth in one round.
struct Reads {
    depth: u32,
    /// Microseconds, alone and beside writes.
    p99: [f64; 2],
    /// Durable writes per second beside them, over alone.
    writes_ratio: f64,
    /// The machine's longest pause, in microseconds.
    paused: [f64; 2],
}

impl Reads {
    fn ratio(&self) -> f64 {
        self.p99[1] / self.p99[0]
    }
}

/// Measures the writes and the reads of every round.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let (arms, defaults) = arms(plan)?;
    let (mut raw, mut samples) = (vec![json!({ "printed": &defaults.printed })], Vec::new());
    let (mut reads, mut paused) = (Vec::new(), Vec::new());
    for round in 0..arguments.runs {
        paused.push(pauses::measure());
        for cases in &cases() {
            for index in beside::turns(cases.len(), round) {
                let (document, sample) = write(plan, &arms, &cases[index], arguments, round)?;
                raw.push(json!({
                    "server": sample.server, "load": sample.load, "round": round, "fio": document,
                }));
                samples.push(sample);
            }
        }
        arms[0].set_running(true)?;
        for depth in READ_DEPTHS {
            let (document, seen) = read(plan, &arms[0], depth, arguments, round)?;
            raw.push(json!({
                "reads_in_flight": depth, "round": round, "fio": document,
                "longest_pause_us": seen.paused,
            }));
            reads.push(seen);
        }
        arms[0].set_running(false)?;
    }
    Ok(Measured::new(raw, |_| Ok(report(&samples, &reads, &paused, &defaults))))
}

fn arms(plan: &Plan<'_>) -> Result<(Vec<Arm>, Defaults), Failure> {
    let volumes = [("critical", EXPORT_BYTES, "critical"), ("normal", EXPORT_BYTES, "normal")];
    let (layby, defaults) = defaults::arm(plan, &volumes)?;
    let file = plan.work.join("nbdkit.raw");
    servers::empty_file(&file, EXPORT_BYTES)?;
    let peer = servers::nbdkit_durable(plan.work, PEER, &file)?;
    let peer = Arm {
        name: PEER,
        uris: vec![peer.uri.clone()],
        servers: vec![peer],
        node: None,
        nvm: None,
    };
    let arms = vec![layby, peer];
    for arm in &arms {
        arm.fill(plan.root, std::iter::repeat(EXPORT_BYTES))?;
    }
    Ok((arms, defaults))
}

fn write(
    plan: &Plan<'_>,
    arms: &[Arm],
    case: &Case,
    arguments: &Arguments,
    round: u32,
) -> Result<(Value, Sample), Failure> {
    let (arm, seed) = (&arms[case.arm], arguments.seed + u64::from(round));
    arm.set_running(true)?;
    let uri = &arm.uris[case.export];
    let document = fio::measure(plan.root, uri, &case.load, arguments.seconds, seed)?;
    arm.set_running(false)?;
    let sample = fio::sample(&document, case.server, &case.load, round)?;
    process::say(&format!(
        "round {} of {}: {} {}: {:.0} IOPS",
        round + 1,
        arguments.runs,
        sample.server,
        sample.load,
        sample.iops
    ));
    Ok((document, sample))
}

fn read(
    plan: &Plan<'_>,
    arm: &Arm,
    depth: u32,
    arguments: &Arguments,
    round: u32,
) -> Result<(Value, Reads), Failure> {
    let (seed, seconds, uri) =
        (arguments.seed + u64::from(round), arguments.seconds, arm.uris[0].as_str());
    let load = Load::of_blocks("reads", "randread", depth);
    let writes = Streams {
        streams: vec![Stream { name: "writes".to_owned(), uri, rw: "randwrite" }],
        block: "4k",
        bytes: EXPORT_BYTES,
        depth,
        seconds,
        // Not the reads' offsets.
        seed: seed + WRITES_SEED,
        work: plan.work,
    };
    // What durable writes left out of memory is read from the SSD level: reads find all blocks
    // where the same pass over all of them has put them, alone and beside writes.
    let prepare = || {
        defaults::settle(plan, arm.node.as_deref())?;
        fio::read_uri(plan.root, uri, &EXPORT_BYTES.to_string())
    };
    let client = || fio::command(plan.root, uri, &load, seconds, seed);
    let seen = beside::measure(plan.root, prepare, client, &writes, false)?;
    let p99 = [p99_of(&seen.alone)?, p99_of(&seen.loaded)?];
    let writes_ratio = seen.carried.loaded / seen.carried.alone;
    let reads = Reads { depth, p99, writes_ratio, paused: seen.paused };
    process::say(&format!(
        "round {} of {}: reads at depth {depth}: p99 {:.0} us alone, {:.0} us beside writes",
        round + 1,
        arguments.runs,
        p99[0],
        p99[1]
    ));
    Ok((seen.document, reads))
}

fn p99_of(document: &Value) -> Result<f64, Failure> {
    let missing = || Failure::new("fio printed no figures of the reads");
    fio::figures(document).map(|figures| figures.latency_us_p99).ok_or_else(missing)
}

/// For each round, the rate of `server` under `load` over the peer's at the same depth.
fn ratios(samples: &[Sample], server: &str, load: &str, peer_load: &str) -> Vec<f64> {
    let of = |server: &str, load: &str, round: u32| {
        let is_it = |s: &&Sample| s.server == server && s.load == load && s.round == round;
        samples.iter().find(is_it).map_or(f64::NAN, |sample| sample.iops)
    };
    let rounds = samples.iter().filter(|s| s.server == server && s.load == load);
    rounds.map(|s| s.iops / of(PEER, peer_load, s.round)).collect()
}

fn bars(samples: &[Sample], reads: &[Reads]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (load, wanted) in ["QD1", "QD32"].into_iter().zip(RATIOS_MIN) {
        let rounds = ratios(samples, CRITICAL, load, load);
        let what = format!("durable writes, {load}, over the peer's");
        bars.push(Bar::new(what, Wanted::AtLeast(wanted), rounds.into_iter()));
    }
    let of = |depth: u32| reads.iter().filter(move |reads| reads.depth == depth);
    for depth in READ_DEPTHS {
        let what = format!("p99 of reads, QD{depth}, beside own writes over alone");
        let wanted = Wanted::AtMost(READS_RATIO_MAX);
        bars.push(Bar::new(what, wanted, of(depth).map(Reads::ratio)));
    }
    let rounds = ratios(samples, NORMAL, "QD1, flush each", "QD1");
    let what = "class normal, a flush after each write, QD1, over the peer's";
    bars.push(Bar::new(what, Wanted::Nothing, rounds.into_iter()));
    for depth in READ_DEPTHS {
        let what = format!("durable writes, QD{depth}, beside reads over alone");
        bars.push(Bar::new(what, Wanted::Nothing, of(depth).map(|reads| reads.writes_ratio)));
    }
    bars
}

fn report(samples: &[Sample], reads: &[Reads], paused: &[Pauses], defaults: &Defaults) -> Report {
    let bars = bars(samples, reads);
    let mut table = bars::table(&bars);
    table +=
        "\n| server | load | IOPS | p50 (us) | p99 (us) |\n| --- | --- | ---: | ---: | ---: |\n";
    for case in cases().iter().flatten() {
        let own = |s: &&Sample| s.server == case.server && s.load == case.load.name;
        let spread =
            |figure: fn(&Sample) -> f64| Spread::of(samples.iter().filter(own).map(figure)).whole();
        let (iops, p50) = (spread(|s| s.iops), spread(|s| s.latency_us_p50));
        let (p99, load) = (spread(|s| s.latency_us_p99), case.load.name);
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {} | {load} | {iops} | {p50} | {p99} |", case.server);
    }
    table += "\n| reads | p99 alone (us) | p99 beside own writes (us) | rounds marked |\n\
         | --- | ---: | ---: | ---: |\n";
    for depth in READ_DEPTHS {
        let own: Vec<&Reads> = reads.iter().filter(|reads| reads.depth == depth).collect();
        let p99 = |at: usize| Spread::of(own.iter().map(|reads| reads.p99[at])).whole();
        let marked = own.iter().filter(|reads| beside::is_marked(reads.paused, reads.p99)).count();
        // As above.
        let _ = writeln!(table, "| QD{depth} | {} | {} | {marked} |", p99(0), p99(1));
    }
    let _ = write!(
        table,
        "\n{} Latencies of the flushed row are the flushes'. Marked is a round in which the \
         machine itself paused for longer than the p99. {}",
        defaults.sentence(),
        pauses::sentence(paused)
    );
    let question = "Is a durable write as fast as a synced one, and are reads beside it?";
    Report { heading: bars::heading(question, &bars), table }
}

/// Added to the seed of the writes beside reads.
const WRITES_SEED: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(server: &'static str, load: &'static str, round: u32, iops: f64) -> Sample {
        Sample { server, load, round, iops, latency_us_p50: 1.0, latency_us_p99: 2.0 }
    }

    /// Goal: each rate is over the peer's of its own round and depth, and a round that lacks the
    /// peer meets no bar. Method: two rounds by hand, of which the second is measured in another
    /// order; then one peer less.
    #[test]
    fn rates_are_over_the_peers_of_the_round() {
        let mut samples = vec![
            sample(CRITICAL, "QD1", 0, 95.0),
            sample(PEER, "QD1", 0, 100.0),
            sample(NORMAL, "QD1, flush each", 0, 50.0),
            sample(CRITICAL, "QD32", 0, 600.0),
            sample(PEER, "QD32", 0, 200.0),
            sample(PEER, "QD1", 1, 400.0),
            sample(NORMAL, "QD1, flush each", 1, 300.0),
            sample(CRITICAL, "QD1", 1, 400.0),
            sample(PEER, "QD32", 1, 500.0),
            sample(CRITICAL, "QD32", 1, 1000.0),
        ];
        let reads = |depth, beside| Reads {
            depth,
            p99: [100.0, beside],
            writes_ratio: 0.5,
            paused: [0.0; 2],
        };
        let reads = [reads(1, 150.0), reads(4, 151.0), reads(1, 90.0), reads(4, 100.0)];
        let found = bars(&samples, &reads);
        let rounds: Vec<&[f64]> = found.iter().map(|bar| bar.rounds.as_slice()).collect();
        assert_eq!(rounds[..2], [[0.95, 1.0], [3.0, 2.0]]);
        assert_eq!(rounds[2..5], [[1.5, 0.9], [1.51, 1.0], [0.5, 0.75]]);
        let met: Vec<Option<bool>> = found.iter().map(Bar::is_met).collect();
        assert_eq!(met[..4], [Some(true), Some(true), Some(true), Some(false)]);
        assert!(met[4..].iter().all(Option::is_none));
        samples.remove(5);
        assert_eq!(bars(&samples, &reads)[0].is_met(), Some(false));
    }
}
