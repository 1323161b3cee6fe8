//! Drives fio and reads its figures.
//!
//! How: one job over one libnbd connection; figures come from the JSON that fio prints.
//! Invariant: a figure that fio did not print is an error, never a zero.

use super::servers::Server;
use crate::process::{self, Failure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Bytes of a measured export.
pub(crate) const EXPORT_BYTES: u64 = 64 << 20;

/// What fio does to an export.
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) rw: &'static str,
    pub(crate) depth: u32,
    /// A flush after so many writes; 0 for none.
    pub(crate) writes_per_flush: u32,
    /// Bytes of a request, as fio reads them.
    pub(crate) block: &'static str,
    /// Bytes of the export that are used.
    pub(crate) bytes: u64,
    /// A flush behind the last write, in the measured time.
    pub(crate) is_flushed: bool,
}

impl Load {
    /// Requests of 4 KiB over a measured export, without a flush.
    pub(crate) const fn of_blocks(name: &'static str, rw: &'static str, depth: u32) -> Load {
        let (block, bytes) = ("4k", EXPORT_BYTES);
        Load { name, rw, depth, writes_per_flush: 0, block, bytes, is_flushed: false }
    }
}

/// The figures of one measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) server: &'static str,
    pub(crate) load: &'static str,
    pub(crate) round: u32,
    pub(crate) iops: f64,
    pub(crate) latency_us_p50: f64,
    pub(crate) latency_us_p99: f64,
}

/// Writes the whole export and reads it once, so that later reads find it where it will stay.
pub(crate) fn fill(root: &Path, server: &Server, size: &str) -> Result<(), Failure> {
    fill_uri(root, &server.uri, size)
}

/// The same for an export by its address.
pub(crate) fn fill_uri(root: &Path, uri: &str, size: &str) -> Result<(), Failure> {
    pass(root, uri, size, "--rw=write")?;
    read_uri(root, uri, size)
}

/// Reads a whole export once, in order.
pub(crate) fn read_uri(root: &Path, uri: &str, size: &str) -> Result<(), Failure> {
    pass(root, uri, size, "--rw=read")
}

fn pass(root: &Path, uri: &str, size: &str, rw: &str) -> Result<(), Failure> {
    let mut fio = process::command("fio", root);
    fio.args(["--name=fill", "--ioengine=nbd", "--bs=256k", "--iodepth=8", rw, "--end_fsync=1"]);
    fio.arg(format!("--uri={uri}")).arg(format!("--size={size}"));
    fio.arg("--output-format=json");
    process::output(&mut fio).map(drop)
}

/// One measurement, as fio prints it.
pub(crate) fn measure(
    root: &Path,
    uri: &str,
    load: &Load,
    seconds: u32,
    seed: u64,
) -> Result<Value, Failure> {
    process::json(&mut command(root, uri, load, seconds, seed))
}

/// The words for one measurement of an export by its address.
pub(crate) fn command(root: &Path, uri: &str, load: &Load, seconds: u32, seed: u64) -> Command {
    let mut fio = process::command("fio", root);
    fio.args(["--name=measure", "--ioengine=nbd", "--time_based", "--ramp_time=1"]);
    fio.args(["--norandommap", "--lat_percentiles=1", "--percentile_list=50:99"]);
    fio.arg("--output-format=json").arg(format!("--bs={}", load.block));
    fio.arg(format!("--uri={uri}")).arg(format!("--rw={}", load.rw));
    fio.arg(format!("--iodepth={}", load.depth)).arg(format!("--size={}", load.bytes));
    fio.arg(format!("--runtime={seconds}")).arg(format!("--randseed={seed}"));
    if load.writes_per_flush > 0 {
        fio.arg(format!("--fsync={}", load.writes_per_flush));
    }
    if load.is_flushed {
        fio.arg("--end_fsync=1");
    }
    fio
}

/// What a document says of reads and writes together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) iops: f64,
    pub(crate) bytes_per_second: f64,
    /// Of a mix, the worse direction's.
    pub(crate) latency_us_p50: f64,
    pub(crate) latency_us_p99: f64,
    /// Requests from the start to the end.
    pub(crate) ios: f64,
}

/// The figures of a document, where it has some.
pub(crate) fn figures(document: &Value) -> Option<Figures> {
    let mut sum = Figures {
        iops: 0.0,
        bytes_per_second: 0.0,
        latency_us_p50: 0.0,
        latency_us_p99: 0.0,
        ios: 0.0,
    };
    for direction in ["read", "write"] {
        let figures = &document["jobs"][0][direction];
        let number = |key: &str| figures[key].as_f64().unwrap_or(0.0);
        let micros = |percentile: &str| {
            figures["lat_ns"]["percentile"][percentile].as_f64().unwrap_or(0.0) / 1e3
        };
        sum.iops += number("iops");
        sum.bytes_per_second += number("bw_bytes");
        sum.latency_us_p50 = sum.latency_us_p50.max(micros("50.000000"));
        sum.latency_us_p99 = sum.latency_us_p99.max(micros("99.000000"));
        sum.ios += number("total_ios");
    }
    (sum.iops > 0.0 && sum.ios > 0.0).then_some(sum)
}

/// The figures in a document of fio. Latencies are of the flushes where there are some (fio counts
/// these from after their submission), else of the I/Os from before theirs.
pub(crate) fn sample(
    document: &Value,
    server: &'static str,
    load: &Load,
    round: u32,
) -> Result<Sample, Failure> {
    let direction = if load.rw.ends_with("read") { "read" } else { "write" };
    let job = &document["jobs"][0];
    let latency =
        if load.writes_per_flush > 0 { &job["sync"]["lat_ns"] } else { &job[direction]["lat_ns"] };
    let micros = |percentile: &str| latency["percentile"][percentile].as_f64().map(|ns| ns / 1e3);
    let iops = job[direction]["iops"].as_f64();
    match (iops, micros("50.000000"), micros("99.000000")) {
        (Some(iops), Some(latency_us_p50), Some(latency_us_p99)) if iops > 0.0 => {
            Ok(Sample { server, load: load.name, round, iops, latency_us_p50, latency_us_p99 })
        }
        _ => Err(Failure::new(format!("fio printed no figures for {server} {}", load.name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal: a mix is one load, an empty document none. Method: by hand.
    #[test]
    fn figures_are_of_both_directions() {
        let side = |iops: f64, p50: f64| {
            let percentile = json!({ "50.000000": p50, "99.000000": 9000.0 });
            json!({ "iops": iops, "bw_bytes": 4096.0 * iops, "total_ios": 3.0 * iops,
                "lat_ns": { "percentile": percentile } })
        };
        let document =
            json!({ "jobs": [{ "read": side(70.0, 1000.0), "write": side(30.0, 2000.0) }] });
        let wanted = Figures {
            iops: 100.0,
            bytes_per_second: 409_600.0,
            latency_us_p50: 2.0,
            latency_us_p99: 9.0,
            ios: 300.0,
        };
        assert_eq!(figures(&document), Some(wanted));
        assert_eq!(figures(&json!({ "jobs": [{ "read": side(0.0, 0.0) }] })), None);
        assert_eq!(figures(&json!({})), None);
    }
}
