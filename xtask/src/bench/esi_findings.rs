//! The edge gateway's second and third findings on real nodes: devices, and sizes of the cache.
//!
//! How: the tests `esi_devices` and `esi_cache` made larger through the environment, the object
//! store and emulated disks in memory, what is on a real disk below `--work`; medians over rounds,
//! ratios within each round.
//! Invariant: a figure counts only if its test passed, which compares every file.
//! Cost: about a minute per round and entry. Not for: tiny files and bursts; see `esi`.

use super::entries::Plan;
use super::printed;
use super::report::{Measured, Report, Spread};
use super::{Arguments, MEMORY_FILES};
use crate::process::Failure;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// Files of 10 MB per user of five; the paper's Large has a thousand.
const FILES_PER_USER: &str = "4";
/// The least of the paper's several disks over the most of its one: 225 over 75 MB/s.
const PAPER_SEVERAL_OVER_ONE: f64 = 3.0;
/// Half of the level of `esi_devices`, so that all of it is held there.
const ARCHIVE_HELD_MIB: &str = "64";
/// More than the smallest level of `esi_cache` holds, less than the next one does.
const ARCHIVE_BETWEEN_MIB: &str = "128";
/// In MB, as the paper's third finding prints them.
const CACHES_MB: [u64; 4] = [99, 197, 985, 3200];
/// Larger over smaller, of which the paper says: lower, and the same.
const CACHES_COMPARED: [(u64, u64); 2] = [(197, 99), (3200, 985)];

/// The rounds of a test whose nodes have so many MiB of other data.
fn figures(
    plan: &Plan<'_>,
    arguments: &Arguments,
    (test, archive_mib): (&str, &str),
) -> Result<Vec<Value>, Failure> {
    let disk = plan.work.to_string_lossy().into_owned();
    let mut scale = vec![
        ("LAYBY_ESI_LARGE", FILES_PER_USER),
        ("LAYBY_ESI_ALL", "1"),
        ("LAYBY_ESI_ARCHIVE_MIB", archive_mib),
        ("LAYBY_ESI_DISK", &disk),
    ];
    if Path::new(MEMORY_FILES).is_dir() {
        scale.push(("TMPDIR", MEMORY_FILES));
    }
    printed::figures(plan, arguments, test, (&["--test-threads=1"], &scale))
}

fn number(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or(f64::NAN)
}

/// What clients wrote per second until it was synced, in MB.
fn written(of: &Value) -> f64 {
    number(of, "bytes") / 1e6 / number(of, "write_seconds")
}

/// What was read per second meanwhile, in MB.
fn read(of: &Value) -> f64 {
    number(of, "bytes_read") / 1e6 / number(of, "write_seconds")
}

fn drained(of: &Value) -> f64 {
    number(of, "drain_seconds")
}

/// Processor time of the node per GB that was written or read, in seconds.
fn processor(of: &Value) -> f64 {
    number(of, "processor_seconds") * 1e9 / (number(of, "bytes") + number(of, "bytes_read"))
}

/// Of each round the ratio of a figure, above over below.
pub(super) fn ratio(above: &[&Value], below: &[&Value], figure: fn(&Value) -> f64) -> Spread {
    let pairs = above.iter().filter_map(|above| {
        let same = below.iter().find(|below| below["round"] == above["round"])?;
        Some(figure(above) / figure(same))
    });
    Spread::of(pairs)
}

/// Data, metadata and log on one device and on three.
pub(crate) fn devices(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let raw = figures(plan, arguments, ("esi_devices", ARCHIVE_HELD_MIB))?;
    Ok(Measured::new(raw, |raw| Ok(devices_report(raw))))
}

fn devices_report(raw: &[Value]) -> Report {
    let mut table = String::from(
        "| devices | load | on | written (MB/s) | read meanwhile (MB/s) | in the store (s) | MB \
         that metadata, data, log take | several over one, written | read | 3 times |\n\
         | --- | --- | --- | ---: | ---: | ---: | --- | ---: | ---: | --- |\n",
    );
    let mut is_met = true;
    for backing in ["emulated", "one disk"] {
        for is_read in [false, true] {
            is_met &= devices_rows(raw, backing, is_read, &mut table);
        }
    }
    let _ = write!(
        table,
        "\nTable I's Large, 5 users of {FILES_PER_USER} files of 10 MB (the paper has 1,000). The \
         paper prints 50 to 75 MB/s on one disk and 225 to 270 on several, so \
         {PAPER_SEVERAL_OVER_ONE} times at least is the bar. Emulated: in memory, one request at a \
         time, 2 ms each. One disk: loop devices over files of this machine's disk.\n"
    );
    let answer = if is_met { "Yes." } else { "Not three times." };
    let heading = format!("Is a gateway on several devices faster than on one? {answer}");
    Report { heading, table }
}

/// The rows of one load on devices of one kind; whether the bar is met.
fn devices_rows(raw: &[Value], backing: &str, is_read: bool, table: &mut String) -> bool {
    let of = |is_several: bool| -> Vec<&Value> {
        let mine = raw.iter().filter(|of| of["backing"] == backing && of["is_read"] == is_read);
        mine.filter(|of| of["is_several"] == is_several).collect()
    };
    let [one, several] = [of(false), of(true)];
    let ratios = ratio(&several, &one, written);
    let is_met = ratios.reaches(PAPER_SEVERAL_OVER_ONE);
    let reads = if is_read { ratio(&several, &one, read).fraction() } else { "-".into() };
    let bar = if is_met { "met" } else { "not met" };
    let shown = [
        ("one", one, "- | - | -".to_owned()),
        ("several", several, format!("{} | {reads} | {bar}", ratios.fraction())),
    ];
    for (name, rows, end) in shown {
        let load = if is_read { "writes and reads" } else { "writes" };
        let spread = |figure: fn(&Value) -> f64| Spread::of(rows.iter().map(|row| figure(row)));
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "| {backing} | {load} | {name} | {} | {} | {} | {} | {end} |",
            spread(written).whole(),
            if is_read { spread(read).whole() } else { "-".into() },
            spread(drained).fraction(),
            carried(&rows),
        );
    }
    is_met
}

/// MB written to each device, medians over the rounds.
fn carried(rows: &[&Value]) -> String {
    let count = rows[0]["device_written"].as_array().map_or(0, Vec::len);
    let median = |index: usize| {
        let of = rows.iter().map(|row| row["device_written"][index].as_f64().unwrap_or(f64::NAN));
        format!("{:.1}", Spread::of(of).median / 1e6)
    };
    (0..count).map(median).collect::<Vec<_>>().join(", ")
}

/// The cache too small, right and too large.
pub(crate) fn cache(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    let raw = figures(plan, arguments, ("esi_cache", ARCHIVE_BETWEEN_MIB))?;
    Ok(Measured::new(raw, |raw| Ok(cache_report(raw))))
}

fn cache_report(raw: &[Value]) -> Report {
    let mut table = String::from(
        "| varied | level (MB) | journal (MB) | written (MB/s) | read meanwhile (MB/s) | in the \
         store (s) | processor time of the node (s per GB written and read) |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let mut ratios = Vec::new();
    for varied in ["level", "journal"] {
        let field = format!("{varied}_mb");
        let of = |size: u64| -> Vec<&Value> {
            let mine = raw.iter().filter(|of| of["varied"] == varied);
            mine.filter(|of| of[&field] == size).collect()
        };
        for size in CACHES_MB {
            let rows = of(size);
            let spread = |figure: fn(&Value) -> f64| Spread::of(rows.iter().map(|row| figure(row)));
            // Writing to a string cannot fail.
            let _ = writeln!(
                table,
                "| {varied} | {} | {} | {} | {} | {} | {} |",
                rows[0]["level_mb"],
                rows[0]["journal_mb"],
                spread(written).whole(),
                spread(read).whole(),
                spread(drained).fraction(),
                spread(processor).fraction(),
            );
        }
        for (larger, smaller) in CACHES_COMPARED {
            let of = |figure| ratio(&of(larger), &of(smaller), figure).fraction();
            ratios.push(format!(
                "{varied} {larger} over {smaller} MB: written {}, in the store {}, processor \
                 time {}",
                of(written),
                of(drained),
                of(processor)
            ));
        }
    }
    let _ = write!(
        table,
        "\nPer round, {}.\n\nTable I's Large, 5 users of {FILES_PER_USER} files of 10 MB. The \
         paper prints sizes and no throughput for them, so this is measured and meets no bar: \
         there 197 is slower than 99, and 985 as fast as 3200.\n",
        ratios.join("; ")
    );
    Report { heading: "Does a cache that is too large cost a gateway anything?".into(), table }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal: ratios are taken within a round, and a bar is met by rounds. Method: three rounds in
    /// another order on the other side, of which one misses it.
    #[test]
    fn ratios_are_of_the_same_round() {
        let row = |round: u32, seconds: f64| {
            let bytes = 1_000_000;
            json!({ "round": round, "bytes": bytes, "write_seconds": seconds })
        };
        let one = [row(0, 4.0), row(1, 8.0), row(2, 6.0)];
        let several = [row(2, 3.0), row(1, 2.0)];
        let [one, several] = [one.iter().collect::<Vec<_>>(), several.iter().collect()];
        let found = ratio(&several, &one, written);
        assert_eq!((found.median, found.half_range), (3.0, 1.0));
        assert!(!found.reaches(PAPER_SEVERAL_OVER_ONE) && found.reaches(2.0));
    }
}
