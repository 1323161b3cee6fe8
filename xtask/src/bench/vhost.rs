//! Does a guest see as much of a disk of Layby as of one of QEMU's storage daemon?
//!
//! How: one guest has both disks, each with one queue; fio runs in it, on one disk at a time, with
//! the guest's own page cache left out. Both servers have what they serve in memory: Layby in its
//! DRAM level, the storage daemon in a file of a memory file system. Processor time is the
//! server's own, from before fio starts in the guest to after it has ended.
//! Invariant: both disks do the same work with the same seed; ratios are within a round.
//! Cost: a machine's start, then rounds × jobs × two measurements.
//! Not for: absolute figures. Without hardware virtualization the guest's own instructions are most
//! of what is measured, and hide a part of any difference.

use super::entries::Plan;
use super::machine::Machine;
use super::report::{Measured, Report, Spread};
use super::servers::{self, Server};
use super::{Arguments, fio, meter, serving};
use crate::guest;
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// What fio does in the guest, beside what all jobs have.
const JOBS: [(&str, &str); 4] = [
    ("read, QD1", "--rw=randread --iodepth=1"),
    ("read, QD32", "--rw=randread --iodepth=32"),
    ("write, QD32", "--rw=randwrite --iodepth=32"),
    ("mixed 70/30, QD32", "--rw=randrw --rwmixread=70 --iodepth=32"),
];
/// Of all jobs.
const COMMON: &str = "--name=measure --thread --ioengine=io_uring --direct=1 --bs=4k --time_based \
    --norandommap --lat_percentiles=1 --percentile_list=50:99";
/// Everything is written and read once before anything is measured.
const WARMING: [&str; 2] = ["--rw=write --end_fsync=1", "--rw=read"];
/// Slots of the disks on the machine's bus.
const SLOTS: [u32; 2] = [4, 5];

/// One measurement.
struct Sample {
    job: usize,
    server: usize,
    round: u32,
    figures: fio::Figures,
    cpu_us_per_io: f64,
}

/// Both servers, Layby first, and the guest.
struct Field {
    machine: Machine,
    servers: [Server; 2],
    /// Ends last.
    node: Server,
}

impl Field {
    /// Seconds of processor time that a server has taken.
    fn cpu(&self, server: usize) -> f64 {
        let process = self.servers[server].process().or_else(|| self.node.process());
        process.and_then(meter::cpu_seconds).unwrap_or(f64::NAN)
    }

    /// Has the guest run fio on a disk; its document, and the server's processor time.
    fn run(&mut self, server: usize, words: &str, seconds: u32) -> Result<(Value, f64), Failure> {
        self.machine.tell(&format!("{:02x} {words}", SLOTS[server]))?;
        self.machine.hear("begin", Duration::ZERO)?;
        let before = self.cpu(server);
        let end = self.machine.hear("end", Duration::from_secs(seconds.into()))?;
        let cpu = self.cpu(server) - before;
        let result = self.machine.hear("result", Duration::ZERO)?;
        if !end.starts_with("0") {
            return Err(Failure::new(format!("fio failed in the guest: {end}\n{result}")));
        }
        Ok((document(&result)?, cpu))
    }
}

/// Measures every job on both disks in every round.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let mut field = field(plan)?;
    let (mut raw, mut samples) = (Vec::new(), Vec::new());
    for round in 0..arguments.runs {
        for (job, (name, words)) in JOBS.iter().enumerate() {
            for turn in 0..field.servers.len() {
                let server = (turn + round as usize) % field.servers.len();
                let seconds = arguments.seconds;
                let words = format!(
                    "{COMMON} {words} --runtime={seconds} --size={} --randseed={}",
                    fio::EXPORT_BYTES,
                    arguments.seed + u64::from(round)
                );
                let (document, cpu) = field.run(server, &words, seconds)?;
                let sample = sample(&document, (job, server, round), cpu)?;
                let shown = field.servers[server].name;
                process::say(&format!(
                    "round {} of {}: {shown}, {name}: {:.0} IOPS, p50 {:.0} us",
                    round + 1,
                    arguments.runs,
                    sample.figures.iops,
                    sample.figures.latency_us_p50,
                ));
                raw.push(json!({
                    "server": shown, "job": name, "round": round,
                    "cpu_us_per_io": sample.cpu_us_per_io, "fio": document,
                }));
                samples.push(sample);
            }
        }
    }
    field.machine.tell("off")?;
    Ok(Measured::new(raw, |_| Ok(report(&samples))))
}

fn field(plan: &Plan<'_>) -> Result<Field, Failure> {
    let (work, bytes) = (plan.work, fio::EXPORT_BYTES);
    let node = servers::node(plan.binary, work, serving::HOT_CONFIG)?;
    let mut layby = servers::volume(plan.binary, work, "layby", &bytes.to_string(), "hot")?;
    layby.uri = work.join("node/vhost/layby.sock").display().to_string();
    let file = work.join("daemon.raw");
    servers::empty_file(&file, bytes)?;
    let daemon = servers::storage_daemon_vhost(work, "storage-daemon", &file)?;
    let disks = [(SLOTS[0], layby.uri.as_str()), (SLOTS[1], daemon.uri.as_str())];
    let machine = Machine::start(plan.root, work, ("loads", &["fio"]), &disks)?;
    process::say(&machine.hear("kernel", Duration::ZERO)?);
    machine.hear("ready", Duration::ZERO)?;
    let mut field = Field { machine, servers: [layby, daemon], node };
    for server in 0..SLOTS.len() {
        for rw in WARMING {
            let words = "--name=fill --thread --ioengine=io_uring --direct=1 --bs=256k --iodepth=8";
            field.run(server, &format!("{words} {rw} --size={bytes}"), 0)?;
        }
    }
    Ok(field)
}

/// What fio printed in the guest, as it came in one line.
fn document(result: &str) -> Result<Value, Failure> {
    // fio prints notes before its document.
    let text = result.find('{').map_or("", |at| &result[at..]);
    serde_json::from_str(text)
        .map_err(|cause| Failure::new(format!("the guest's fio printed no JSON\ncause: {cause}")))
}

fn sample(
    document: &Value,
    (job, server, round): (usize, usize, u32),
    cpu: f64,
) -> Result<Sample, Failure> {
    let name = JOBS[job].0;
    let failed = document["jobs"][0]["error"].as_u64() != Some(0);
    let figures = fio::figures(document).filter(|_| !failed);
    let figures =
        figures.ok_or_else(|| Failure::new(format!("the guest's fio has no figures of {name}")))?;
    Ok(Sample { job, server, round, figures, cpu_us_per_io: cpu * 1e6 / figures.ios })
}

// ---- the entry ----

fn report(samples: &[Sample]) -> Report {
    let mut table =
        String::from("| job | disk | IOPS | p50 (us) | p99 (us) | server's CPU per I/O (us) |\n");
    table.push_str("| --- | --- | ---: | ---: | ---: | ---: |\n");
    let mut ratios = String::from(
        "| job | IOPS over the peer's | p50 over the peer's | CPU per I/O over the peer's |\n\
         | --- | ---: | ---: | ---: |\n",
    );
    let mut missed = Vec::new();
    for (job, (name, _)) in JOBS.iter().enumerate() {
        for (server, shown) in ["layby", "storage-daemon"].into_iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = writeln!(table, "| {name} | {shown} | {} |", row(samples, job, server));
        }
        let iops = ratio(samples, job, |s| s.figures.iops);
        let p50 = ratio(samples, job, |s| s.figures.latency_us_p50);
        let cpu = ratio(samples, job, |s| s.cpu_us_per_io);
        if !iops.reaches(1.0) {
            missed.push(format!("IOPS of {name}"));
        }
        if !p50.stays_within(1.0) {
            missed.push(format!("p50 of {name}"));
        }
        let cells = [iops, p50, cpu].map(Spread::fraction).join(" | ");
        let _ = writeln!(ratios, "| {name} | {cells} |");
    }
    let heading = format!(
        "Does a guest see as many IOPS, and as low a p50, on a disk of Layby as of \
         qemu-storage-daemon? {}",
        match missed.is_empty() {
            true => "Yes, in four rounds of five.".to_owned(),
            false => format!("Not in four rounds of five: {}.", missed.join(", ")),
        }
    );
    let by = guest::accelerator();
    let table = format!(
        "{table}\nLayby over qemu-storage-daemon, per round; the guest ran by {by}:\n\n{ratios}"
    );
    Report { heading, table: table.trim_end().to_owned() }
}

fn row(samples: &[Sample], job: usize, server: usize) -> String {
    let figure = |of: fn(&Sample) -> f64| {
        Spread::of(samples.iter().filter(|s| s.job == job && s.server == server).map(of))
    };
    let whole = [
        figure(|s| s.figures.iops),
        figure(|s| s.figures.latency_us_p50),
        figure(|s| s.figures.latency_us_p99),
    ];
    let whole = whole.map(Spread::whole).join(" | ");
    format!("{whole} | {}", figure(|s| s.cpu_us_per_io).fraction())
}

/// Layby's figure over the peer's of the same round.
fn ratio(samples: &[Sample], job: usize, figure: fn(&Sample) -> f64) -> Spread {
    let of = |server: usize| samples.iter().filter(move |s| s.job == job && s.server == server);
    let peer = |round: u32| of(1).find(|s| s.round == round).map_or(f64::NAN, figure);
    Spread::of(of(0).map(|own| figure(own) / peer(own.round)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(server: usize, round: u32, iops: f64) -> Sample {
        let figures = fio::Figures {
            iops,
            bytes_per_second: 4096.0 * iops,
            latency_us_p50: 1e6 / iops,
            latency_us_p99: 2e6 / iops,
            ios: iops,
        };
        Sample { job: 0, server, round, figures, cpu_us_per_io: 3.0 }
    }

    /// Goal: a ratio is to the peer of the same round. Method: two rounds by hand.
    #[test]
    fn ratios_are_within_rounds() {
        let samples =
            [sample(0, 0, 10.0), sample(1, 0, 5.0), sample(1, 1, 40.0), sample(0, 1, 20.0)];
        let iops = ratio(&samples, 0, |s| s.figures.iops);
        assert_eq!((iops.median, iops.half_range), (1.25, 0.75));
        assert_eq!(ratio(&samples, 0, |s| s.cpu_us_per_io).median, 1.0);
    }

    /// Goal: what the guest's fio says is read as it comes, and an error in it is one.
    /// Method: notes before a document, none at all, a job that failed.
    #[test]
    fn a_guests_documents_are_read() {
        let text = r#"note: x {"jobs": [{"error": 0, "read": {"iops": 8, "total_ios": 4}}]}"#;
        let read = document(text).expect("it is JSON");
        let sample = super::sample(&read, (1, 0, 0), 2e-6).expect("it has figures");
        assert!(sample.figures.iops == 8.0 && sample.cpu_us_per_io == 0.5);
        assert!(document("no figures").is_err());
        let failed = json!({ "jobs": [{ "error": 5, "read": { "iops": 8, "total_ios": 4 } }] });
        assert!(super::sample(&failed, (1, 0, 0), 1.0).is_err());
    }
}
