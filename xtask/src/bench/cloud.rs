//! Volumes whose home is an object store, beside s3backer and ZeroFS, each on a store of its own.
//!
//! How: a store and a link for each contender (`layby-test-store`, of the tests), so that requests
//! and bytes are counted where they pass; the same fio jobs on each, directly and past the page
//! cache. In each round a contender starts with an empty bucket: fill, random writes until all is
//! uploaded, random reads of a part that its cache holds; then it starts twice without its cache
//! for random reads that miss: a few, and as many as fit into the measured time, which may fill it.
//! What is not installed is left out, with a line that says how to get it.
//! Invariant: contenders have the same volume, cache, link and seed; uploads are over when no
//! request has come for [`QUIET`]. Cost: a minute or two per contender and round, more over a
//! narrow link.
//! Not for: what a cut link does; that is a test.

use super::Arguments;
use super::cloud_peers::{self, Contender, Place, Target};
use super::entries::Plan;
use super::fio;
use super::report::{Measured, Report, Spread};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

/// The volume of every contender.
pub(super) const VOLUME_BYTES: u64 = 1 << 30;
/// What is filled, written and missed: s3backer makes a request of each 4 KiB.
const FILLED_BYTES: u64 = 128 << 20;
/// What is read again and again.
const HOT_BYTES: u64 = 16 << 20;
/// Reads of an empty cache before much of it can be full.
const FIRST_READS: u32 = 2000;
/// The cache of every contender; it holds what is filled.
pub(super) const CACHE_BYTES: u64 = 256 << 20;
/// Uploads are over when no request has come for so long.
const QUIET: Duration = Duration::from_secs(10);
/// How often that is looked at, at most: uploads that take longer are an error.
const LOOKS_MAX: u32 = 120;
const GIB: f64 = (1 << 30) as f64;

/// What one contender did in one round.
struct Sample {
    contender: &'static str,
    write_iops: f64,
    hit_iops: f64,
    hit_us_p50: f64,
    miss_iops: f64,
    miss_us_p50: f64,
    /// The first [`FIRST_READS`] of a cache that is empty, per second.
    first_iops: f64,
    /// Requests per thousand of these reads, and bytes that came down per byte of them: most of a
    /// cache that starts empty may be full before the time is over.
    miss_requests: f64,
    miss_bytes_down: f64,
    /// Requests and bytes that went up while random writes were made and uploaded, per GiB of them.
    requests_per_gib: f64,
    bytes_per_byte: f64,
    /// The same requests per GiB that went up, heads and all.
    requests_per_gib_up: f64,
}

/// Measures every contender that is here.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let program = store_program(plan.root)?;
    let contenders = cloud_peers::contenders(plan)?;
    if contenders.is_empty() {
        return Err(Failure::new("no contender is installed"));
    }
    let (mut raw, mut samples) = (Vec::new(), Vec::new());
    for round in 0..arguments.runs {
        for turn in 0..contenders.len() {
            let contender = &contenders[(turn + round as usize) % contenders.len()];
            let folder = plan.work.join(format!("{}-{round}", contender.name));
            let seed = arguments.seed + u64::from(round);
            let (document, sample) =
                one(plan.root, &program, &folder, contender, (arguments, seed))?;
            // What it stored is of no use any more, and may be much.
            let _ = std::fs::remove_dir_all(&folder);
            process::say(&format!("round {}: {}", round + 1, line(&sample)));
            raw.push(json!({ "contender": contender.name, "round": round, "raw": document }));
            samples.push(sample);
        }
    }
    Ok(Measured::new(raw, |_| Ok(report(&contenders, &samples))))
}

/// One contender's turn: what fio said of each load, and what had passed the link by then.
fn one(
    root: &Path,
    program: &Path,
    folder: &Path,
    contender: &Contender,
    (arguments, seed): (&Arguments, u64),
) -> Result<(Value, Sample), Failure> {
    let mut store = Store::start(root, program, folder)?;
    store.shape(arguments.link_delay_ms, arguments.link_bits_per_second)?;
    let endpoint = store.endpoint.clone();
    let place = Place { folder, endpoint: &endpoint };
    let running = contender.start(&place, true)?;
    let drive =
        |target: &Target, words: &[&str], bytes: u64| drive(root, target, words, (bytes, seed));
    let seconds = format!("--runtime={}", arguments.seconds);
    let singly = |rw: &'static str| vec![rw, "--bs=4k", "--iodepth=16", "--norandommap", &seconds];
    let timed = |rw: &'static str| [singly(rw), vec!["--time_based"]].concat();
    let fill = ["--rw=write", "--bs=256k", "--iodepth=4", "--end_fsync=1"];
    drive(&running.target, &fill, FILLED_BYTES)?;
    let before = store.settled()?;
    let writes = [timed("--rw=randwrite"), vec!["--end_fsync=1"]].concat();
    let write = drive(&running.target, &writes, FILLED_BYTES)?;
    let after = store.settled()?;
    drive(&running.target, &["--rw=read", "--bs=64k", "--iodepth=4"], HOT_BYTES)?;
    let hit = drive(&running.target, &timed("--rw=randread"), HOT_BYTES)?;
    drop(running);
    let anew = || contender.forget(&place).and_then(|()| contender.start(&place, false));
    let running = anew()?;
    let few = format!("--number_ios={FIRST_READS}");
    let few = [singly("--rw=randread"), vec![&few]].concat();
    let first = drive(&running.target, &few, FILLED_BYTES)?;
    drop(running);
    let running = anew()?;
    let cold = store.counts()?;
    let miss = drive(&running.target, &timed("--rw=randread"), FILLED_BYTES)?;
    let warm = store.counts()?;
    drop(running);
    let document = json!({
        "write": write, "before": before, "after": after, "hit": hit,
        "first": first, "miss": miss, "cold": cold, "warm": warm,
    });
    let sample = sample(contender, &document)?;
    Ok((document, sample))
}

/// The figures of a turn.
fn sample(contender: &Contender, document: &Value) -> Result<Sample, Failure> {
    let figures = |what: &str| {
        let none = || Failure::new(format!("fio printed no figures for `{what}`"));
        fio::figures(&document[what]).ok_or_else(none)
    };
    let grown = |from: &str, to: &str, key: &str| {
        let count = |when: &str| document[when][key].as_f64().unwrap_or(0.0);
        count(to) - count(from)
    };
    let (write, hit) = (figures("write")?, figures("hit")?);
    let (first, miss) = (figures("first")?, figures("miss")?);
    let written_bytes = write.ios * 4096.0;
    let requests_up = grown("before", "after", "requests");
    let bytes_up = grown("before", "after", "bytes_up");
    Ok(Sample {
        contender: contender.name,
        write_iops: write.iops,
        hit_iops: hit.iops,
        hit_us_p50: hit.latency_us_p50,
        miss_iops: miss.iops,
        miss_us_p50: miss.latency_us_p50,
        first_iops: first.iops,
        miss_requests: grown("cold", "warm", "requests") * 1000.0 / miss.ios,
        miss_bytes_down: grown("cold", "warm", "bytes_down") / (miss.ios * 4096.0),
        requests_per_gib: requests_up * GIB / written_bytes,
        bytes_per_byte: bytes_up / written_bytes,
        requests_per_gib_up: requests_up * GIB / bytes_up.max(1.0),
    })
}

/// Runs fio on a target, past the page cache.
fn drive(
    root: &Path,
    target: &Target,
    words: &[&str],
    (bytes, seed): (u64, u64),
) -> Result<Value, Failure> {
    let mut fio = process::command("fio", root);
    fio.args(["--name=measure", "--lat_percentiles=1", "--percentile_list=50:99"]);
    fio.args(["--output-format=json", "--direct=1"]).args(words);
    fio.arg(format!("--size={bytes}")).arg(format!("--randseed={seed}"));
    match target {
        Target::Nbd(uri) => fio.arg("--ioengine=nbd").arg(format!("--uri={uri}")),
        Target::File(path) => fio.arg("--ioengine=libaio").arg(format!("--filename={path}")),
    };
    process::json(&mut fio)
}

/// Store and link in a process of their own.
pub(super) struct Store {
    child: Child,
    /// Taken to end the process.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(super) endpoint: String,
}

impl Store {
    pub(super) fn start(root: &Path, program: &Path, folder: &Path) -> Result<Self, Failure> {
        let home = folder.join("store");
        std::fs::create_dir_all(&home).map_err(|e| Failure::io("cannot make", &home, &e))?;
        let mut command = process::command(&program.to_string_lossy(), root);
        command.arg(&home).stdin(Stdio::piped()).stdout(Stdio::piped());
        let failed = |cause| Failure::io("cannot start", program, &cause);
        let mut child = command.spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("the store has no pipes"));
        };
        let output = BufReader::new(output);
        let mut store = Store { child, input: Some(input), output, endpoint: String::new() };
        let ready = store.hear()?;
        let found = ready.split_whitespace().find_map(|w| w.strip_prefix("AWS_ENDPOINT_URL="));
        store.endpoint = found.unwrap_or_default().to_owned();
        Ok(store)
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(length) if length > 0 => Ok(line),
            _ => {
                Err(Failure::new("the object store has ended; `cargo xtask setup-tests` builds it"))
            }
        }
    }

    pub(super) fn tell(&mut self, line: &str) -> Result<String, Failure> {
        let deaf = || Failure::new("the object store does not listen");
        let input = self.input.as_mut().ok_or_else(deaf)?;
        writeln!(input, "{line}").and_then(|()| input.flush()).map_err(|_| deaf())?;
        self.hear()
    }

    pub(super) fn shape(&mut self, delay_ms: u64, bits_per_second: u64) -> Result<(), Failure> {
        self.tell(&format!("link {delay_ms} {bits_per_second}")).map(drop)
    }

    pub(super) fn counts(&mut self) -> Result<Value, Failure> {
        let line = self.tell("counts")?;
        let failed = |cause| Failure::new(format!("the store counts no JSON\ncause: {cause}"));
        serde_json::from_str(&line).map_err(failed)
    }

    /// What has passed, when nothing more does.
    pub(super) fn settled(&mut self) -> Result<Value, Failure> {
        let mut last = self.counts()?;
        for _ in 0..LOOKS_MAX {
            process::pause(QUIET)?;
            let now = self.counts()?;
            if now["put"] == last["put"] {
                return Ok(now);
            }
            last = now;
        }
        Err(Failure::new("the uploads do not end"))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // It ends, and its server with it, when nobody tells it anything any more; killed, it would
        // leave the server behind.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Builds store and link.
pub(super) fn store_program(root: &Path) -> Result<std::path::PathBuf, Failure> {
    let mut build = process::cargo(root);
    build.args(["build", "--locked", "--quiet", "--package", "layby-tests", "--bins"]);
    process::run(&mut build)?;
    Ok(process::target(root).join("debug/layby-test-store"))
}

// ---- the report ----

fn line(sample: &Sample) -> String {
    format!(
        "{}: {:.0} writes/s, {:.0} hits/s, {:.0} misses/s, {:.0} requests/GiB",
        sample.contender,
        sample.write_iops,
        sample.hit_iops,
        sample.miss_iops,
        sample.requests_per_gib
    )
}

fn report(contenders: &[Contender], samples: &[Sample]) -> Report {
    let served: [(&str, Column); 6] = [
        ("writes/s", |s| s.whole(|s| s.write_iops)),
        ("hits/s", |s| s.whole(|s| s.hit_iops)),
        ("hit p50 (us)", |s| s.whole(|s| s.hit_us_p50)),
        ("first reads of an empty cache/s", |s| s.whole(|s| s.first_iops)),
        ("reads that fill it/s", |s| s.whole(|s| s.miss_iops)),
        ("p50 of these (us)", |s| s.whole(|s| s.miss_us_p50)),
    ];
    let carried: [(&str, Column); 5] = [
        ("requests per GiB written", |s| s.whole(|s| s.requests_per_gib)),
        ("requests per GiB up", |s| s.whole(|s| s.requests_per_gib_up)),
        ("bytes up per byte written", |s| s.fraction(|s| s.bytes_per_byte)),
        ("requests per 1,000 reads that fill a cache", |s| s.whole(|s| s.miss_requests)),
        ("bytes down per byte of these", |s| s.fraction(|s| s.miss_bytes_down)),
    ];
    let table = |columns: &[(&str, Column)]| table(columns, contenders, samples);
    let table = format!("{}\n{}", table(&served), table(&carried));
    Report { heading: "How do volumes on an object store serve, and what goes up?".into(), table }
}

/// What a column says of a contender.
type Column = fn(&Own<'_>) -> String;

/// The samples of one contender.
struct Own<'a>(Vec<&'a Sample>);

impl Own<'_> {
    fn of(&self, figure: fn(&Sample) -> f64) -> Spread {
        Spread::of(self.0.iter().map(|sample| figure(sample)))
    }

    fn whole(&self, figure: fn(&Sample) -> f64) -> String {
        self.of(figure).whole()
    }

    fn fraction(&self, figure: fn(&Sample) -> f64) -> String {
        self.of(figure).fraction()
    }
}

fn table(columns: &[(&str, Column)], contenders: &[Contender], samples: &[Sample]) -> String {
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    let mut table = format!(
        "| contender | {} |\n| ---{} |\n",
        heads.join(" | "),
        " | ---:".repeat(heads.len())
    );
    for contender in contenders {
        let own = samples.iter().filter(|sample| sample.contender == contender.name);
        let own = Own(own.collect());
        let cells: Vec<String> = columns.iter().map(|(_, column)| column(&own)).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {} | {} |", contender.name, cells.join(" | "));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the table has a cell for each heading. Method: one sample by hand.
    #[test]
    fn rows_fit_the_heading() {
        let contenders = [cloud_peers::s3backer_alone()];
        let sample = Sample {
            contender: contenders[0].name,
            write_iops: 1.0,
            hit_iops: 2.0,
            hit_us_p50: 3.0,
            miss_iops: 4.0,
            miss_us_p50: 5.0,
            first_iops: 11.0,
            miss_requests: 9.0,
            miss_bytes_down: 10.0,
            requests_per_gib: 6.0,
            bytes_per_byte: 7.0,
            requests_per_gib_up: 8.0,
        };
        let table = report(&contenders, &[sample]).table;
        let cells: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(cells, [8, 8, 8, 0, 7, 7, 7]);
        let up = "| 6 ± 0 | 8 ± 0 | 7.00 ± 0.00 | 9 ± 0 | 10.00 ± 0.00 |\n";
        assert!(table.ends_with(up), "{table}");
    }
}
