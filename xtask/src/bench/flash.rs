//! What the SSD level costs the flash under it, by the engine's own log over the flash model.
//!
//! How: a test of the workspace does the work and tells its figures in lines of JSON, once per
//! seed. Nothing is timed, so that other load on the machine changes nothing.
//! Invariant: a line that cannot be read is an error. Cost: a minute or two per round.

use super::Arguments;
use super::report::{Measured, NOT_MEASURED, Report, Spread};
use crate::process::{self, Failure};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// Blocks of 4 KiB of the level: 256 MiB.
const BLOCKS: u32 = 1 << 16;
/// What begins a line of figures.
const MARK: &str = "figures ";
/// What begins one of the level behind its cache.
const CACHED_MARK: &str = "behind the cache ";
/// What is promised of the device's write amplification, with streams and without.
const WITH_MAX: f64 = 1.4;
const WITHOUT_MAX: f64 = 2.0;

/// Runs the log over the model, once per round.
pub(crate) fn measure(root: &Path, arguments: &Arguments) -> Result<Measured, Failure> {
    let mut raw = Vec::new();
    for round in 0..arguments.runs {
        let mut test = process::cargo(root);
        test.args(["test", "--release", "--locked", "--quiet", "--package", "layby-tests"]);
        test.args(["--test", "all", "--", "flash::", "--nocapture"]);
        test.env("LAYBY_FLASH_BLOCKS", BLOCKS.to_string());
        test.env("LAYBY_SEED", (arguments.seed + u64::from(round)).to_string());
        let lines = process::output(&mut test)?;
        raw.extend(figures(&lines, MARK)?);
        raw.extend(figures(&lines, CACHED_MARK)?);
        process::say(&format!("round {} of {}", round + 1, arguments.runs));
    }
    Ok(Measured::new(raw, report))
}

fn figures(lines: &str, mark: &str) -> Result<Vec<Value>, Failure> {
    let marked = lines.lines().filter_map(|line| line.split_once(mark)).map(|(_, rest)| rest);
    let values = marked.map(|rest| {
        serde_json::from_str(rest)
            .map_err(|cause| Failure::new(format!("figures are no JSON\ncause: {cause}")))
    });
    values.collect()
}

/// What tells rows apart, in the order of the columns.
const KEYS: [&str; 4] = ["load", "segment_mib", "erase_mib", "discards"];

/// The most that rows of one kind show, with streams and without.
#[derive(Clone, Copy)]
struct Most {
    with: f64,
    without: f64,
    /// Some load misses a bar in more than a fifth of the rounds.
    is_missed: bool,
}

impl Most {
    const NOTHING: Most =
        Most { with: f64::NEG_INFINITY, without: f64::NEG_INFINITY, is_missed: false };

    /// A row; one without a figure leaves none.
    fn add(&mut self, with: Spread, without: Spread) {
        let greater = |most: f64, row: f64| {
            if most.is_nan() || row.is_nan() { f64::NAN } else { most.max(row) }
        };
        self.with = greater(self.with, with.median);
        self.without = greater(self.without, without.median);
        self.is_missed |= !with.stays_within(WITH_MAX) || !without.stays_within(WITHOUT_MAX);
    }

    fn is_measured(&self) -> bool {
        self.with.is_finite() && self.without.is_finite()
    }

    fn shown(&self) -> [String; 2] {
        [self.with, self.without].map(|most| match most.is_finite() {
            true => format!("{most:.2}"),
            false => NOT_MEASURED.to_owned(),
        })
    }

    fn answer(&self) -> &'static str {
        match (self.is_measured(), self.is_missed) {
            (false, _) => "Not measured",
            (true, true) => "No",
            (true, false) => "Yes",
        }
    }
}

/// A row per load, lengths and mode of discards, in the order of the first round.
fn report(raw: &[Value]) -> Result<Report, Failure> {
    let (cached, raw): (Vec<&Value>, Vec<&Value>) =
        raw.iter().partition(|value| value.get("total").is_some());
    let row_of = |value: &Value| KEYS.map(|key| value[key].to_string().replace('"', ""));
    let mut rows: Vec<[String; 4]> = Vec::new();
    for value in &raw {
        if !rows.contains(&row_of(value)) {
            rows.push(row_of(value));
        }
    }
    let mut table = String::from(
        "| load | segments (MiB) | device's blocks (MiB) | discards | room | device, streams | \
         device, no streams | log | both, streams |\n\
         | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let [mut told, mut equal, mut larger] = [Most::NOTHING; 3];
    for row in &rows {
        let own = || raw.iter().filter(|value| row_of(value) == *row);
        let number = |value: &Value, key: &str| value[key].as_f64().unwrap_or(f64::NAN);
        let spread = |key: &str| Spread::of(own().map(|value| number(value, key)));
        let (with, without, log) = (spread("with"), spread("without"), spread("log"));
        let most = match (row[1] == row[2], row[3].starts_with("off")) {
            (true, false) => &mut told,
            (true, true) => &mut equal,
            (false, _) => &mut larger,
        };
        most.add(with, without);
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "| {} | {:.0} % | {} | {} | {} | {:.2} |",
            row.join(" | "),
            spread("room").median * 100.0,
            with.fraction(),
            without.fraction(),
            log.fraction(),
            with.median * log.median
        );
    }
    if rows.is_empty() {
        return Err(Failure::new("the test told no figures"));
    }
    let [[with, without], [equal, equal_without], [larger, larger_without]] =
        [told, equal, larger].map(|most| most.shown());
    let heading = format!(
        "Does the SSD level, nine tenths full, spare the flash (at most {WITH_MAX} with streams, \
         {WITHOUT_MAX} without)? {}: {with} with streams and {without} without where segments are \
         as long as the device's blocks and free ones are discarded, {equal} and {equal_without} \
         where none are, {larger} and {larger_without} where segments are shorter.",
        told.answer()
    );
    table.push_str(&cached_table(&cached));
    Ok(Report { heading, table })
}

/// A row per load of the level behind its cache, with cleaning that drops and without.
fn cached_table(cached: &[&Value]) -> String {
    let mut loads: Vec<&str> = Vec::new();
    for load in cached.iter().filter_map(|value| value["load"].as_str()) {
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    let mut table = String::new();
    if !loads.is_empty() {
        table.push_str(
            "\n| behind the cache | programmed per block stored: off | on | no streams: off | on | \
             hits (%): off | on | backing writes per request: off | on |\n\
             | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        );
    }
    for load in loads {
        let own = || cached.iter().filter(|value| value["load"].as_str() == Some(load));
        let spread = |key: &str| {
            Spread::of(own().map(|value| value[key].as_f64().unwrap_or(f64::NAN))).fraction()
        };
        let keys = ["total", "no_streams", "hits", "home"];
        let cells = keys.iter().flat_map(|key| [spread(&format!("{key}_off")), spread(key)]);
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {load} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: figures among other lines become a row per load. Method: two rounds, by hand.
    #[test]
    fn lines_become_rows() {
        let line = |with: f64| {
            format!(
                "running 1 test\nfigures {{\"load\":\"hot\",\"segment_mib\":1.0,\"erase_mib\":1.0,\
                 \"discards\":\"delayed\",\"room\":0.85,\"with\":{with},\"without\":1.5,\
                 \"log\":2.0}}\n"
            )
        };
        let raw = figures(&(line(1.2) + &line(1.4)), MARK).expect("sound lines");
        let report = report(&raw).expect("figures");
        assert!(report.heading.contains("Yes: 1.30 with"), "{}", report.heading);
        assert!(report.table.contains(
            "| hot | 1.0 | 1.0 | delayed | 85 % | 1.30 ± 0.10 | 1.50 ± 0.00 | 2.00 ± 0.00 | 2.60"
        ));
        assert!(figures("figures none", MARK).is_err());
    }

    /// Goal: a kind of row that is absent reads so, and the bar of one that is absent is not met.
    /// Method: rows of one kind alone; the rows that decide without a figure.
    #[test]
    fn absent_rows_are_not_measured() {
        let row = |erase: f64, discards: &str, with: Value| {
            serde_json::json!({ "load": "hot", "segment_mib": 1.0, "erase_mib": erase,
                "discards": discards, "room": 0.85, "with": with, "without": 1.5, "log": 2.0 })
        };
        let heading = |row: Value| report(&[row]).expect("figures").heading;
        let told = heading(row(1.0, "delayed", 1.2.into()));
        assert!(told.contains("Yes: 1.20 with streams and 1.50 without where"), "{told}");
        assert!(told.contains("not measured and not measured where none are"));
        let longer = heading(row(2.0, "delayed", 1.2.into()));
        assert!(longer.contains("Not measured: not measured with"), "{longer}");
        assert!(longer.contains("1.20 and 1.50 where segments"), "{longer}");
        let unknown = heading(row(1.0, "delayed", Value::Null));
        assert!(unknown.contains("Not measured: not measured with"), "{unknown}");
    }
}
