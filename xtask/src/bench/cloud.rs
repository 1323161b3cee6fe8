//! Volumes whose home is an object store, beside s3backer and ZeroFS, each on a store of its own.
//!
//! How: a store and a link for each contender (`layby-test-store`, of the tests), so that requests
//! and bytes are counted where they pass; the same fio jobs on each, directly and past the page
//! cache. In each round a contender starts with an empty bucket: fill, random writes until all is
//! uploaded, random reads of a part that its cache holds; then it starts again without its cache
//! for random reads that miss. What is not installed is left out, with a line that says how to get
//! it.
//! Invariant: contenders have the same volume, cache, link and seed; uploads are over when no
//! request has come for [`QUIET`]. Cost: a minute or two per contender and round, more over a
//! narrow link.
//! Not for: what a cut link does; that is a test.

use super::Arguments;
use super::cloud_peers::{self, Contender, Place, Target};
use super::entries::Plan;
use super::fio;
use super::report::{Report, Spread};
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
    /// Requests and bytes that went up while random writes were made and uploaded, per GiB of them.
    requests_per_gib: f64,
    bytes_per_byte: f64,
    /// The same requests per GiB that went up, heads and all.
    requests_per_gib_up: f64,
}

/// Measures every contender that is here.
pub(crate) fn measure(
    plan: &Plan<'_>,
    arguments: &Arguments,
) -> Result<(Vec<Value>, Report), Failure> {
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
    Ok((raw, report(&contenders, &samples)))
}

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
    drive(
        &running.target,
        &["--rw=write", "--bs=256k", "--iodepth=4", "--end_fsync=1"],
        FILLED_BYTES,
    )?;
    let before = store.settled()?;
    let timed = |rw: &'static str| [rw, "--bs=4k", "--iodepth=16", "--time_based", "--norandommap"];
    let with = |rw: &'static str| {
        let mut words = timed(rw).to_vec();
        words.push(&seconds);
        words
    };
    let mut writes = with("--rw=randwrite");
    writes.push("--end_fsync=1");
    let written = drive(&running.target, &writes, FILLED_BYTES)?;
    let after = store.settled()?;
    drive(&running.target, &["--rw=read", "--bs=64k", "--iodepth=4"], HOT_BYTES)?;
    let hit = drive(&running.target, &with("--rw=randread"), HOT_BYTES)?;
    drop(running);
    contender.forget(&place)?;
    let running = contender.start(&place, false)?;
    let missed = drive(&running.target, &with("--rw=randread"), FILLED_BYTES)?;
    drop(running);
    let figures = |document: &Value, what: &str| {
        let none = || Failure::new(format!("fio printed no figures for {what}"));
        fio::figures(document).ok_or_else(none)
    };
    let write = figures(&written, "writes")?;
    let (hits, misses) = (figures(&hit, "hits")?, figures(&missed, "misses")?);
    let written_bytes = write.ios * 4096.0;
    let sum = |key: &str| after[key].as_f64().unwrap_or(0.0) - before[key].as_f64().unwrap_or(0.0);
    let sample = Sample {
        contender: contender.name,
        write_iops: write.iops,
        hit_iops: hits.iops,
        hit_us_p50: hits.latency_us_p50,
        miss_iops: misses.iops,
        miss_us_p50: misses.latency_us_p50,
        requests_per_gib: sum("requests") * GIB / written_bytes,
        bytes_per_byte: sum("bytes_up") / written_bytes,
        requests_per_gib_up: sum("requests") * GIB / sum("bytes_up").max(1.0),
    };
    let document = json!({
        "write": written, "hit": hit, "miss": missed, "before": before, "after": after,
    });
    Ok((document, sample))
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
    let mut table = String::from(
        "| contender | writes/s | hits/s | hit p50 (us) | misses/s | miss p50 (us) | requests per \
         GiB written | requests per GiB up | bytes up per byte written |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for contender in contenders {
        let own = samples.iter().filter(|sample| sample.contender == contender.name);
        let of = |figure: fn(&Sample) -> f64| Spread::of(own.clone().map(figure));
        let whole = |figure: fn(&Sample) -> f64| of(figure).whole();
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            contender.name,
            whole(|s| s.write_iops),
            whole(|s| s.hit_iops),
            whole(|s| s.hit_us_p50),
            whole(|s| s.miss_iops),
            whole(|s| s.miss_us_p50),
            whole(|s| s.requests_per_gib),
            whole(|s| s.requests_per_gib_up),
            of(|s| s.bytes_per_byte).fraction()
        );
    }
    Report { heading: "How do volumes on an object store serve, and what goes up?".into(), table }
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
            requests_per_gib: 6.0,
            bytes_per_byte: 7.0,
            requests_per_gib_up: 8.0,
        };
        let table = report(&contenders, &[sample]).table;
        let cells: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(cells, [10, 10, 10]);
        assert!(table.ends_with("| 6 ± 0 | 8 ± 0 | 7.00 ± 0.00 |\n"), "{table}");
    }
}
