//! Are sequential reads and writes of a default node as fast as the best peer's?
//!
//! How: requests of 256 KiB in order, over a volume that memory nearly holds (64 MiB) and over
//! `vol0`, the volume of 1 GiB that a default node makes, which is more than its levels hold. A
//! write is acknowledged when it is accepted, by the node's class normal as by nbdkit's file and
//! by qemu-nbd with `cache=writeback`; a flush at the end makes all durable, and its time counts.
//! Invariant: contenders of a load run one after the other in the same round, while the others
//! stand still. Cost: rounds × eight loads × three servers, and 3 GiB of disk.
//! Not for: writes that are durable one by one; see `durable`.

use super::bars::{self, Bar, Wanted};
use super::beside::{self, Arm};
use super::defaults::{self, Defaults};
use super::entries::Plan;
use super::fio::{self, EXPORT_BYTES, Load};
use super::report::{Measured, Report, Spread};
use super::{Arguments, servers};
use crate::process::{self, Failure};
use serde_json::json;
use std::fmt::Write as _;

/// What is wanted of the best peer's rate.
const RATIO_MIN: f64 = 0.9;
/// The volumes, in the order of each arm's exports.
const VOLUMES: [(&str, u64); 2] = [("small", EXPORT_BYTES), ("vol0", 1 << 30)];

/// The loads, over each volume of [`VOLUMES`].
fn loads() -> Vec<(usize, Load)> {
    let load = |name, rw, depth, bytes| Load {
        block: "256k",
        bytes,
        is_flushed: rw == "write",
        ..Load::of_blocks(name, rw, depth)
    };
    let [(_, small), (_, large)] = VOLUMES;
    vec![
        (0, load("64 MiB, read, QD8", "read", 8, small)),
        (0, load("64 MiB, read, QD1", "read", 1, small)),
        (0, load("64 MiB, write, QD8", "write", 8, small)),
        (0, load("64 MiB, write, QD1", "write", 1, small)),
        (1, load("1 GiB, read, QD8", "read", 8, large)),
        (1, load("1 GiB, read, QD1", "read", 1, large)),
        (1, load("1 GiB, write, QD8", "write", 8, large)),
        (1, load("1 GiB, write, QD1", "write", 1, large)),
    ]
}

/// One measurement.
struct Sample {
    server: &'static str,
    load: &'static str,
    round: u32,
    megabytes_per_second: f64,
}

/// Measures every load of every server in every round.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let (arms, defaults) = arms(plan)?;
    let (mut raw, mut samples) = (vec![json!({ "printed": &defaults.printed })], Vec::new());
    for round in 0..arguments.runs {
        let seed = arguments.seed + u64::from(round);
        for (volume, load) in &loads() {
            for index in beside::turns(arms.len(), round) {
                let arm = &arms[index];
                arm.set_running(true)?;
                let uri = &arm.uris[*volume];
                let document = fio::measure(plan.root, uri, load, arguments.seconds, seed)?;
                arm.set_running(false)?;
                let missing = || Failure::new(format!("fio printed no figures for {}", arm.name));
                let figures = fio::figures(&document).ok_or_else(missing)?;
                let megabytes_per_second = figures.bytes_per_second / 1e6;
                process::say(&format!(
                    "round {} of {}: {} {}: {megabytes_per_second:.0} MB/s",
                    round + 1,
                    arguments.runs,
                    arm.name,
                    load.name
                ));
                raw.push(json!({
                    "server": arm.name, "load": load.name, "round": round, "fio": document,
                }));
                let (server, load) = (arm.name, load.name);
                samples.push(Sample { server, load, round, megabytes_per_second });
            }
        }
    }
    let names: Vec<&'static str> = arms.iter().map(|arm| arm.name).collect();
    Ok(Measured::new(raw, |_| Ok(report(&names, &samples, &defaults))))
}

/// Layby first, then the peers.
fn arms(plan: &Plan<'_>) -> Result<(Vec<Arm>, Defaults), Failure> {
    let [(small, small_bytes), (large, _)] = VOLUMES;
    let (mut layby, defaults) = defaults::arm(plan, &[(small, small_bytes, "normal")])?;
    let node = layby.servers.last().expect("an arm has its node");
    layby.uris.push(node.export(large));
    let files = |name: &str| {
        let folder = plan.work.join(name);
        let files = VOLUMES.into_iter().map(|(name, bytes)| (name.to_owned(), bytes));
        servers::empty_files(&folder, files).map(|()| folder)
    };
    let dir = format!("dir={}", files("nbdkit-files")?.display());
    let nbdkit = servers::nbdkit(plan.work, "nbdkit file", &["file", &dir])?;
    let uris = VOLUMES.iter().map(|(name, _)| nbdkit.export(name)).collect();
    let nbdkit = Arm { name: "nbdkit file", uris, servers: vec![nbdkit], node: None, nvm: None };
    let folder = files("qemu-nbd-files")?;
    let serve = |(name, _)| {
        servers::qemu_nbd(&plan.work.join(format!("qemu-{name}")), "qemu-nbd", &folder.join(name))
    };
    let qemu = VOLUMES.into_iter().map(serve).collect::<Result<Vec<_>, _>>()?;
    let uris = qemu.iter().map(|server| server.uri.clone()).collect();
    let qemu = Arm { name: "qemu-nbd", uris, servers: qemu, node: None, nvm: None };
    let arms = vec![layby, nbdkit, qemu];
    for arm in &arms {
        arm.fill(plan.root, VOLUMES.into_iter().map(|(_, bytes)| bytes))?;
    }
    Ok((arms, defaults))
}

/// For each load, the first server's rate over the best of the others' in the same round.
fn bars(names: &[&str], samples: &[Sample]) -> Vec<Bar> {
    let bar = |load: &'static str| {
        let of = |sample: &&Sample| sample.load == load;
        let best = |round: u32| {
            let peers = samples.iter().filter(of).filter(|s| s.round == round);
            let rates = peers.filter(|s| s.server != names[0]).map(|s| s.megabytes_per_second);
            rates.reduce(f64::max).unwrap_or(f64::NAN)
        };
        let ours = samples.iter().filter(of).filter(|s| s.server == names[0]);
        let ratios = ours.map(|s| s.megabytes_per_second / best(s.round));
        Bar::new(format!("{load}, over the best peer's"), Wanted::AtLeast(RATIO_MIN), ratios)
    };
    loads().iter().map(|(_, load)| bar(load.name)).collect()
}

fn report(names: &[&str], samples: &[Sample], defaults: &Defaults) -> Report {
    let bars = bars(names, samples);
    let mut table = bars::table(&bars);
    table += &format!(
        "\n| load | {} |\n| --- |{}\n",
        names.iter().map(|name| format!("{name} (MB/s)")).collect::<Vec<_>>().join(" | "),
        " ---: |".repeat(names.len())
    );
    for (_, load) in &loads() {
        let rate = |name: &&str| {
            let own = samples.iter().filter(|s| s.server == *name && s.load == load.name);
            Spread::of(own.map(|s| s.megabytes_per_second)).whole()
        };
        let rates: Vec<String> = names.iter().map(rate).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {} | {} |", load.name, rates.join(" | "));
    }
    let _ = write!(
        table,
        "\n256 KiB per request, in order; behind writes a flush, whose time counts. The volume of \
         1 GiB is the default node's own, and more than its levels hold. {}",
        defaults.sentence()
    );
    let question = "Are sequential reads and writes as fast as the best peer's?";
    Report { heading: bars::heading(question, &bars), table }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a rate is taken over the best peer of its own round, and a round without peers meets
    /// no bar. Method: three servers in two rounds, another peer best in each; then no peers.
    #[test]
    fn rates_are_over_the_best_peer_of_the_round() {
        let names = ["layby", "nbdkit file", "qemu-nbd"];
        let rates = [[90.0, 100.0, 50.0], [300.0, 80.0, 200.0]];
        let of = |round: u32, server: usize| Sample {
            server: names[server],
            load: "64 MiB, write, QD8",
            round,
            megabytes_per_second: rates[round as usize][server],
        };
        let mut samples: Vec<Sample> =
            (0..6).rev().map(|index| of(index / 3, index as usize % 3)).collect();
        let found = bars(&names, &samples);
        assert_eq!((found.len(), found[2].rounds.as_slice()), (8, [1.5, 0.9].as_slice()));
        assert_eq!((found[2].is_met(), found[0].is_met()), (Some(true), Some(false)));
        samples.retain(|sample| sample.server == names[0]);
        assert_eq!(bars(&names, &samples)[2].is_met(), Some(false));
    }

    /// Goal: all writes are flushed in the measured time and stay within their volume. Method:
    /// each load beside its volume.
    #[test]
    fn writes_are_flushed() {
        for (volume, load) in loads() {
            assert_eq!((load.is_flushed, load.bytes), (load.rw == "write", VOLUMES[volume].1));
            assert_eq!(load.block, "256k");
        }
    }
}
