//! The demo's answer: both phases side by side, as tables or JSON.
//!
//! How: latencies are the clients' own; hits and writes are the node's counters.
//! Invariant: a cell with an arrow reads `one class for all → with classes`.

use super::load::Measured;
use super::phase::{HOME_DELAY, Outcome};
use crate::output::{Failure, Output, table};
use hdrhistogram::Histogram;
use layby_daemon::api::{StatusAnswer, VolumeAnswer};
use layby_trace::ServiceSpec;
use serde::Serialize;
use std::collections::BTreeMap;

/// Latencies of one kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Latency {
    requests: u64,
    latency_us_mean: f64,
    latency_us_p50: f64,
    latency_us_p99: f64,
    latency_us_p999: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Latency {
        let quantile = |q| histogram.value_at_quantile(q) as f64 / 1e3;
        Latency {
            requests: histogram.len(),
            latency_us_mean: histogram.mean() / 1e3,
            latency_us_p50: quantile(0.5),
            latency_us_p99: quantile(0.99),
            latency_us_p999: quantile(0.999),
        }
    }
}

/// Blocks that reads found, by level and below.
type Hits = BTreeMap<String, u64>;

/// One phase in numbers.
#[derive(Debug, Serialize)]
struct PhaseAnswer {
    /// By `S1 read`, `S1 write` and so on, then by class.
    latency: BTreeMap<String, Latency>,
    /// By service, then level; `backing` is what no level had.
    hits: BTreeMap<String, Hits>,
    /// Blocks written into each level.
    writes: BTreeMap<String, u64>,
    /// Bytes written to each level's device.
    device_bytes_written: BTreeMap<String, u64>,
    /// Bytes written back to the volumes' homes.
    backing_bytes_written: u64,
}

impl PhaseAnswer {
    fn of(outcome: &Outcome) -> PhaseAnswer {
        let mut latency = BTreeMap::new();
        for (spec, measured) in &outcome.services {
            let Measured { read_ns, write_ns } = measured;
            for (word, histogram) in [("read", read_ns), ("write", write_ns)] {
                if !histogram.is_empty() {
                    latency.insert(format!("{} {word}", spec.name), Latency::of(histogram));
                }
            }
        }
        for class in ["critical", "normal"] {
            let members = outcome.services.iter().filter(|(spec, _)| spec.class == class);
            let mut sum = Measured::new();
            members.for_each(|(_, measured)| sum.add(measured));
            let mut both = sum.read_ns;
            both.add(&sum.write_ns).expect("all histograms have the same bounds");
            if !both.is_empty() {
                latency.insert(format!("all {class}"), Latency::of(&both));
            }
        }
        let status = &outcome.status;
        let services = outcome.services.iter();
        let hits = services.map(|(spec, _)| (spec.name.to_owned(), hits_of(spec, status)));
        let levels = status.levels.iter();
        PhaseAnswer {
            latency,
            hits: hits.collect(),
            writes: levels.clone().map(|level| (level.name.to_string(), level.writes)).collect(),
            device_bytes_written: levels
                .map(|level| (level.name.to_string(), level.device_bytes_written))
                .collect(),
            backing_bytes_written: status.backing.bytes_written,
        }
    }
}

/// The volumes of a service are called `vehicleN-SERVICE-I`.
fn is_of(volume: &VolumeAnswer, spec: &ServiceSpec) -> bool {
    volume.name.as_str().split('-').nth(1) == Some(spec.name)
}

fn hits_of(spec: &ServiceSpec, status: &StatusAnswer) -> Hits {
    let mut hits = Hits::new();
    for volume in status.volumes.iter().filter(|volume| is_of(volume, spec)) {
        for (level, blocks) in &volume.traffic.hits {
            *hits.entry(level.clone()).or_default() += blocks;
        }
        *hits.entry("backing".to_owned()).or_default() += volume.traffic.misses;
    }
    hits
}

/// The demo in numbers.
#[derive(Debug, Serialize)]
struct DemoAnswer {
    one_class: PhaseAnswer,
    with_classes: PhaseAnswer,
    /// Mean latency of the critical services with one class, divided by that with classes.
    critical_speedup_mean: f64,
    /// The same for the 99th percentile.
    critical_speedup_p99: f64,
    /// The same two of class normal: below one where it is slower with classes.
    normal_speedup_mean: f64,
    normal_speedup_p99: f64,
}

/// The mean latency of a class with one class for all, divided by that with classes; and the same
/// for the 99th percentile. One where the class sent nothing.
fn speedups(before: &PhaseAnswer, after: &PhaseAnswer, class: &str) -> [f64; 2] {
    let row = format!("all {class}");
    let both = before.latency.get(&row).zip(after.latency.get(&row));
    let ratio = |of: fn(&Latency) -> f64| {
        both.map_or(1.0, |(before, after)| of(before) / of(after).max(f64::MIN_POSITIVE))
    };
    [ratio(|l| l.latency_us_mean), ratio(|l| l.latency_us_p99)]
}

/// The demo's last lines: what classes bring to the one side, and what the other pays.
fn verdict(class: &str, [mean, p99]: [f64; 2]) -> String {
    format!("class {class}: mean latency {}, p99 {}", change(mean), change(p99))
}

/// Prints both phases.
pub(super) fn print(
    json: bool,
    one: &Outcome,
    classes: &Outcome,
    output: &mut Output,
) -> Result<(), Failure> {
    let (before, after) = (PhaseAnswer::of(one), PhaseAnswer::of(classes));
    let [critical, normal] = ["critical", "normal"].map(|class| speedups(&before, &after, class));
    if json {
        return output.json(&DemoAnswer {
            one_class: before,
            with_classes: after,
            critical_speedup_mean: critical[0],
            critical_speedup_p99: critical[1],
            normal_speedup_mean: normal[0],
            normal_speedup_p99: normal[1],
        });
    }
    output.line(
        "one class for all → with classes; latencies in µs, seen by the clients, after warm-up",
    )?;
    output.line(&latency_table(one, &before, &after))?;
    let nvm = if one.is_nvm_memory {
        "a file in memory, in NVM's place"
    } else {
        "a file on disk, far slower than NVM"
    };
    output.line(&format!(
        "levels 1, 4 and 16 MiB: DRAM; {nvm}; a file on this disk. Volumes: the same disk, each \
         answer held back by {} ms as from a slower one",
        HOME_DELAY.as_millis()
    ))?;
    output.line("where reads were found, in % of blocks")?;
    output.line(&hits_table(one, &before, &after))?;
    output.line("what was written")?;
    output.line(&writes_table(one, &before, &after))?;
    output.line(&verdict("critical", critical))?;
    output.line(&verdict("normal", normal))
}

fn change(speedup: f64) -> String {
    if speedup >= 1.0 {
        format!("{speedup:.1} times shorter")
    } else {
        format!("{:.1} times longer", 1.0 / speedup.max(f64::MIN_POSITIVE))
    }
}

fn latency_table(outcome: &Outcome, before: &PhaseAnswer, after: &PhaseAnswer) -> String {
    let mut table = table(["requests of", "class", "count", "mean", "p50", "p99", "p99.9"], 2);
    let class_of = |row: &str| {
        let spec = outcome.services.iter().find(|(spec, _)| row.starts_with(spec.name));
        spec.map_or("", |(spec, _)| spec.class)
    };
    for (row, old) in &before.latency {
        let Some(new) = after.latency.get(row) else { continue };
        let cell = |of: fn(&Latency) -> f64| format!("{} → {}", short(of(old)), short(of(new)));
        table.add_row([
            row.clone(),
            class_of(row).to_owned(),
            format!("{} → {}", old.requests, new.requests),
            cell(|l| l.latency_us_mean),
            cell(|l| l.latency_us_p50),
            cell(|l| l.latency_us_p99),
            cell(|l| l.latency_us_p999),
        ]);
    }
    table.to_string()
}

fn short(micros: f64) -> String {
    if micros < 100.0 { format!("{micros:.1}") } else { format!("{micros:.0}") }
}

fn hits_table(outcome: &Outcome, before: &PhaseAnswer, after: &PhaseAnswer) -> String {
    let levels = outcome.status.levels.iter().map(|level| level.name.to_string());
    let places: Vec<String> = levels.chain(["backing".to_owned()]).collect();
    let mut table = table([""; 0], 1);
    table.set_header(["service".to_owned()].iter().chain(&places));
    for (service, old) in &before.hits {
        let Some(new) = after.hits.get(service) else { continue };
        if old.values().sum::<u64>() == 0 {
            continue;
        }
        let cells =
            places.iter().map(|place| format!("{} → {}", share(old, place), share(new, place)));
        table.add_row([service.clone()].into_iter().chain(cells));
    }
    table.to_string()
}

fn share(hits: &Hits, place: &str) -> String {
    let sum: u64 = hits.values().sum();
    let part = hits.get(place).copied().unwrap_or(0);
    if sum == 0 { "-".to_owned() } else { format!("{:.1}", part as f64 * 100.0 / sum as f64) }
}

fn writes_table(outcome: &Outcome, before: &PhaseAnswer, after: &PhaseAnswer) -> String {
    let mut table = table(["level", "blocks written", "MiB to its device"], 1);
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    for level in &outcome.status.levels {
        let name = level.name.as_str();
        let of = |map: &BTreeMap<String, u64>| map.get(name).copied().unwrap_or(0);
        table.add_row([
            name.to_owned(),
            format!("{} → {}", of(&before.writes), of(&after.writes)),
            format!(
                "{} → {}",
                mib(of(&before.device_bytes_written)),
                mib(of(&after.device_bytes_written))
            ),
        ]);
    }
    let (old, new) = (before.backing_bytes_written, after.backing_bytes_written);
    table.add_row(["backing".to_owned(), String::new(), format!("{} → {}", mib(old), mib(new))]);
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the last sentence says what happened, either way. Method: a gain and a loss.
    #[test]
    fn gain_and_loss_are_named() {
        assert_eq!(change(5.87), "5.9 times shorter");
        assert_eq!(change(0.5), "2.0 times longer");
    }

    /// Goal: the last lines say what the critical services gain and what the others pay, each by
    /// its own latencies. Method: phases in which one side is faster by four and the other slower
    /// by two; a class that sends nothing.
    #[test]
    fn both_sides_are_named() {
        let phase = |critical: u64, normal: u64| {
            let row = |(class, micros): (&str, u64)| {
                let mut measured = Measured::new();
                measured.read_ns.record(micros * 1000).expect("within bounds");
                (format!("all {class}"), Latency::of(&measured.read_ns))
            };
            PhaseAnswer {
                latency: [("critical", critical), ("normal", normal)]
                    .into_iter()
                    .map(row)
                    .collect(),
                hits: BTreeMap::new(),
                writes: BTreeMap::new(),
                device_bytes_written: BTreeMap::new(),
                backing_bytes_written: 0,
            }
        };
        let (before, after) = (phase(80, 50), phase(20, 100));
        let of = |class| verdict(class, speedups(&before, &after, class));
        let expected = "class critical: mean latency 4.0 times shorter, p99 4.0 times shorter";
        assert_eq!(of("critical"), expected);
        assert_eq!(
            of("normal"),
            "class normal: mean latency 2.0 times longer, p99 2.0 times longer"
        );
        assert_eq!(speedups(&before, &after, "bulk"), [1.0, 1.0]);
    }

    /// Goal: quantiles come out in microseconds. Method: a hundred known latencies.
    #[test]
    fn latencies_are_in_micros() {
        let mut measured = Measured::new();
        for step in 1..=100 {
            measured.read_ns.record(step * 1000).expect("within bounds");
        }
        let latency = Latency::of(&measured.read_ns);
        assert_eq!((latency.requests, latency.latency_us_p50.round()), (100, 50.0));
        assert_eq!(latency.latency_us_p99.round(), 99.0);
    }

    /// Goal: shares add up. Method: three quarters in one place.
    #[test]
    fn shares_are_of_all_places() {
        let hits = Hits::from([("dram".to_owned(), 3), ("backing".to_owned(), 1)]);
        assert_eq!([share(&hits, "dram"), share(&hits, "ssd")], ["75.0", "0.0"]);
    }
}
