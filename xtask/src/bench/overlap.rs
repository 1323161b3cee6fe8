//! What streams carried while the client beside them was measured.
//!
//! How: fio logs the end of every request of the streams by the time of day. Counted are the bytes
//! of those that ended while the measured client and the streams both ran; alone, streams are
//! counted in the same part of their own run.
//! Invariant: neither the client's start and ramp nor the streams' time behind its end count, with
//! load and alone. Cost: some 40 bytes of log per request, written when the streams have ended.
//! Not for: runs whose requests are so many that their log weighs on the measurement.

use crate::process::{self, Failure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A part of a run, in milliseconds; the end is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
}

impl Span {
    /// When a client measured, from what fio printed at its end: the ramp is not in its runtime.
    pub(crate) fn measured(document: &Value) -> Result<Span, Failure> {
        let runtime = document["jobs"][0]["job_runtime"].as_u64().filter(|ms| *ms > 0);
        let span = document["timestamp_ms"]
            .as_u64()
            .zip(runtime)
            .and_then(|(until_ms, ms)| Some(Span { from_ms: until_ms.checked_sub(ms)?, until_ms }));
        span.ok_or_else(|| Failure::new("fio printed no times of the critical volume"))
    }
}

/// The requests of one run of the streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    ended: Vec<Ended>,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    at_ms: u64,
    bytes: u64,
}

impl Log {
    /// Tells fio to log in the file `prefix` the requests of the job that is described next.
    pub(crate) fn ask(fio: &mut Command, prefix: &Path) {
        fio.arg(format!("--write_bw_log={}", prefix.display())).arg("--log_unix_epoch=1");
    }

    /// Reads the logs of jobs, and removes them. `document` is what fio printed.
    pub(crate) fn take(prefixes: &[impl AsRef<Path>], document: &Value) -> Result<Log, Failure> {
        let mut log = Log::default();
        for (job, prefix) in (1..).zip(prefixes) {
            let path = format!("{}_bw.{job}.log", prefix.as_ref().display());
            let path = Path::new(&path);
            log.add(&process::read(path)?)?;
            std::fs::remove_file(path)
                .map_err(|cause| Failure::io("cannot remove", path, &cause))?;
        }
        log.check(document)?;
        Ok(log)
    }

    fn add(&mut self, text: &str) -> Result<(), Failure> {
        for line in text.lines() {
            // Milliseconds, KiB/s, direction, bytes; what follows differs by fio's version.
            let mut words = line.split(',').map(|word| word.trim().parse::<u64>());
            let ended = match (words.next(), words.nth(2)) {
                (Some(Ok(at_ms)), Some(Ok(bytes))) => Ended { at_ms, bytes },
                _ => return Err(Failure::new(format!("fio logged no request: `{line}`"))),
            };
            self.ended.push(ended);
        }
        Ok(())
    }

    /// Refuses a log that lacks requests: it would count as streams that stood still.
    fn check(&self, document: &Value) -> Result<(), Failure> {
        let jobs = document["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let bytes = |job: &Value, way: &str| job[way]["io_bytes"].as_u64().unwrap_or(0);
        let all: u64 = jobs.iter().map(|job| bytes(job, "read") + bytes(job, "write")).sum();
        let logged: u64 = self.ended.iter().map(|one| one.bytes).sum();
        if all == 0 || logged < all / 100 * 99 {
            let what = format!("fio logged {logged} of the streams' {all} bytes");
            return Err(Failure::new(what));
        }
        Ok(())
    }

    /// The first end of a request and the time behind the last one.
    fn span(&self) -> Option<Span> {
        let from_ms = self.ended.iter().map(|one| one.at_ms).min()?;
        let last_ms = self.ended.iter().map(|one| one.at_ms).max()?;
        Some(Span { from_ms, until_ms: last_ms + 1 })
    }

    fn megabytes_per_second(&self, span: Span) -> f64 {
        let is_in = |one: &&Ended| (span.from_ms..span.until_ms).contains(&one.at_ms);
        let bytes: u64 = self.ended.iter().filter(is_in).map(|one| one.bytes).sum();
        bytes as f64 / 1e3 / (span.until_ms - span.from_ms) as f64
    }
}

/// What streams carried in MB/s, alone and beside a client, in the same part of both runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Carried {
    pub(crate) alone: f64,
    pub(crate) loaded: f64,
    /// What was counted, from the streams' first end of a request.
    pub(crate) counted: Span,
}

/// Counts the streams' bytes only while the client was `measured` and the streams ran.
pub(crate) fn carried(alone: &Log, loaded: &Log, measured: Span) -> Result<Carried, Failure> {
    let none = || Failure::new("the streams carried nothing");
    let (alone_ran, ran) = (alone.span().ok_or_else(none)?, loaded.span().ok_or_else(none)?);
    let from_ms = measured.from_ms.max(ran.from_ms) - ran.from_ms;
    let until_ms = measured.until_ms.min(ran.until_ms).saturating_sub(ran.from_ms);
    let until_ms = until_ms.min(alone_ran.until_ms - alone_ran.from_ms);
    if from_ms >= until_ms {
        return Err(Failure::new("the streams did not run while the critical volume was measured"));
    }
    let counted = Span { from_ms, until_ms };
    let after = |start: u64| Span { from_ms: start + from_ms, until_ms: start + until_ms };
    Ok(Carried {
        alone: alone.megabytes_per_second(after(alone_ran.from_ms)),
        loaded: loaded.megabytes_per_second(after(ran.from_ms)),
        counted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A request of 1 MB ends each millisecond of a run of 10 s, half as many while it is loaded.
    fn log(start: u64, loaded: std::ops::Range<u64>) -> Log {
        let bytes = |at: u64| if loaded.contains(&at) { 500_000 } else { 1_000_000 };
        let lines = (0..10_000).map(|at| format!("{}, 9, 1, {}, 0\n", start + at, bytes(at)));
        let mut log = Log::default();
        log.add(&lines.collect::<String>()).expect("lines");
        log
    }

    /// Goal: streams that a client halves count as halved, however long they run beside its
    /// measured time, and a start that is slow on both sides counts on neither. Method: ten
    /// seconds of streams, halved while a client measures for six of them; whole runs would give
    /// 0.65 or more.
    #[test]
    fn only_the_common_time_counts() {
        let (alone, loaded) = (log(1_000, 0..0), log(50_000, 1_300..8_000));
        let measured = Span { from_ms: 52_000, until_ms: 58_000 };
        let found = carried(&alone, &loaded, measured).expect("both ran");
        assert_eq!((found.alone, found.loaded), (1000.0, 500.0));
        assert_eq!(found.counted, Span { from_ms: 2_000, until_ms: 8_000 });
        let slow = log(1_000, 0..2_000);
        assert_eq!(carried(&slow, &loaded, measured).expect("both ran").alone, 1000.0);
        // The client outlasts the streams: what it did behind them does not count.
        let late = Span { from_ms: 57_000, until_ms: 63_000 };
        let found = carried(&alone, &loaded, late).expect("both ran");
        assert_eq!((found.loaded.round(), found.counted.until_ms), (833.0, 10_000));
        let apart = Span { from_ms: 60_000, until_ms: 66_000 };
        assert!(carried(&alone, &loaded, apart).is_err());
        assert!(carried(&Log::default(), &loaded, measured).is_err());
    }

    /// Goal: a client's ramp is not in what it measured, and a log that is not whole or no log is
    /// refused. Method: documents and lines by hand.
    #[test]
    fn times_and_logs_are_read() {
        let document = json!({ "timestamp_ms": 58_000, "jobs": [{ "job_runtime": 6_000 }] });
        let span = Span { from_ms: 52_000, until_ms: 58_000 };
        assert_eq!(Span::measured(&document).expect("times"), span);
        assert!(Span::measured(&json!({ "jobs": [{ "job_runtime": 6_000 }] })).is_err());
        let log = log(0, 0..0);
        let of = |bytes: u64| json!({ "jobs": [{ "write": { "io_bytes": bytes } }] });
        assert!(log.check(&of(10_000_000_000)).is_ok() && log.check(&of(0)).is_err());
        assert!(log.check(&of(11_000_000_000)).is_err());
        assert!(Log::default().add("7, 9, 1\n").is_err());
        assert!(Log::default().add("no log\n").is_err());
    }
}
