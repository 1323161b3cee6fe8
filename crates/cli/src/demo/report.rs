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
#[derive(Debug, Default, Serialize)]
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

    /// The reads and writes of a service together; `None` where it sent nothing.
    fn service(&self, spec: &ServiceSpec) -> Option<ServiceLatency> {
        let rows = ["read", "write"].map(|word| self.latency.get(&format!("{} {word}", spec.name)));
        let rows = rows.iter().flatten();
        let requests = rows.clone().map(|row| row.requests).sum::<u64>();
        let sum = rows.map(|row| row.latency_us_mean * row.requests as f64).sum::<f64>();
        (requests > 0).then(|| ServiceLatency { requests, latency_us_mean: sum / requests as f64 })
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

/// What classes do to one service, its reads and writes together.
#[derive(Debug, PartialEq, Serialize)]
struct ServiceChange {
    class: &'static str,
    /// Mean latency with one class, divided by that with classes.
    speedup_mean: f64,
    /// Requests with classes, divided by those with one class. A service that falls behind its
    /// pace sends fewer, so means compare like with like only where this is near one.
    requests_ratio: f64,
}

impl ServiceChange {
    fn of(spec: &ServiceSpec, before: &PhaseAnswer, after: &PhaseAnswer) -> Option<ServiceChange> {
        let (old, new) = (before.service(spec)?, after.service(spec)?);
        Some(ServiceChange {
            class: spec.class,
            speedup_mean: old.latency_us_mean / new.latency_us_mean.max(f64::MIN_POSITIVE),
            requests_ratio: new.requests as f64 / old.requests as f64,
        })
    }
}

/// Mean latency of a service, its reads and writes together.
struct ServiceLatency {
    requests: u64,
    latency_us_mean: f64,
}

/// The demo in numbers.
#[derive(Debug, Serialize)]
struct DemoAnswer {
    one_class: PhaseAnswer,
    with_classes: PhaseAnswer,
    /// By service; one that sent nothing in a phase is not there.
    services: BTreeMap<String, ServiceChange>,
    /// Mean latency of the critical services with one class, divided by that with classes.
    critical_speedup_mean: f64,
    /// The same for the 99th percentile.
    critical_speedup_p99: f64,
    /// The same two of class normal: below one where it is slower with classes.
    normal_speedup_mean: f64,
    normal_speedup_p99: f64,
    /// Requests with classes, divided by those with one class.
    critical_requests_ratio: f64,
    normal_requests_ratio: f64,
    /// The NVM level was a file in memory.
    is_nvm_memory: bool,
}

impl DemoAnswer {
    fn of(
        before: PhaseAnswer,
        after: PhaseAnswer,
        specs: &[&ServiceSpec],
        is_nvm_memory: bool,
    ) -> DemoAnswer {
        let [critical, normal] =
            ["critical", "normal"].map(|class| speedups(&before, &after, class));
        let change = |spec: &&ServiceSpec| {
            Some((spec.name.to_owned(), ServiceChange::of(spec, &before, &after)?))
        };
        let services = specs.iter().filter_map(change).collect();
        let requests = |class| requests_ratio(&before, &after, class);
        DemoAnswer {
            services,
            critical_speedup_mean: critical[0],
            critical_speedup_p99: critical[1],
            normal_speedup_mean: normal[0],
            normal_speedup_p99: normal[1],
            critical_requests_ratio: requests("critical"),
            normal_requests_ratio: requests("normal"),
            is_nvm_memory,
            one_class: before,
            with_classes: after,
        }
    }

    /// The last line: what the critical services gain, and what the others pay for it.
    fn trade(&self) -> String {
        let gain =
            format!("both sides: critical mean latency {}", change(self.critical_speedup_mean));
        let normal = self.services.iter().filter(|(_, service)| service.class == "normal");
        let worst = normal.min_by(|(_, a), (_, b)| a.speedup_mean.total_cmp(&b.speedup_mean));
        let Some((name, worst)) = worst else { return gain };
        format!(
            "{gain}; normal services together {}, with {:.0} % of the requests; the worst of \
             them, {name}, {}",
            percent(self.normal_speedup_mean),
            self.normal_requests_ratio * 100.0,
            percent(worst.speedup_mean)
        )
    }
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

/// Requests of a class with classes, divided by those with one class for all. One where the class
/// sent nothing.
fn requests_ratio(before: &PhaseAnswer, after: &PhaseAnswer, class: &str) -> f64 {
    let row = format!("all {class}");
    let both = before.latency.get(&row).zip(after.latency.get(&row));
    both.map_or(1.0, |(before, after)| after.requests as f64 / before.requests.max(1) as f64)
}

/// Each class at the demo's end: what classes bring to the one side, and what the other pays.
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
    let specs: Vec<&ServiceSpec> = one.services.iter().map(|(spec, _)| *spec).collect();
    let (before, after) = (PhaseAnswer::of(one), PhaseAnswer::of(classes));
    let answer = DemoAnswer::of(before, after, &specs, one.is_nvm_memory);
    if json {
        return output.json(&answer);
    }
    let (before, after) = (&answer.one_class, &answer.with_classes);
    output.line(
        "one class for all → with classes; latencies in µs, seen by the clients, after warm-up",
    )?;
    output.line(&latency_table(one, before, after))?;
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
    output.line(&hits_table(one, before, after))?;
    output.line("what was written")?;
    output.line(&writes_table(one, before, after))?;
    for class in ["critical", "normal"] {
        output.line(&verdict(class, speedups(before, after, class)))?;
    }
    output.line(&answer.trade())
}

fn change(speedup: f64) -> String {
    if speedup >= 1.0 {
        format!("{speedup:.1} times shorter")
    } else {
        format!("{:.1} times longer", 1.0 / speedup.max(f64::MIN_POSITIVE))
    }
}

/// The same where it is to be small.
fn percent(speedup: f64) -> String {
    let change = (1.0 / speedup.max(f64::MIN_POSITIVE) - 1.0) * 100.0;
    format!("{:.0} % {}", change.abs(), if change > 0.0 { "longer" } else { "shorter" })
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
                ..PhaseAnswer::default()
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

    /// Goal: the last line has both sides of the trade, with the service that pays most, by reads
    /// and writes together. Method: phases by hand; S2 writes a tenth longer and S3 reads half as
    /// long again, S4 does both and sends fewer; a phase without class normal has one side.
    #[test]
    fn the_last_line_has_both_sides() {
        let specs: Vec<&ServiceSpec> =
            layby_trace::Workload::D.services().iter().map(|service| service.spec()).collect();
        let phase = |rows: &[(&str, u64, f64)]| {
            let row = |&(name, requests, latency_us_mean): &(&str, u64, f64)| {
                let [latency_us_p50, latency_us_p99, latency_us_p999] = [latency_us_mean; 3];
                let latency = Latency {
                    requests,
                    latency_us_mean,
                    latency_us_p50,
                    latency_us_p99,
                    latency_us_p999,
                };
                (name.to_owned(), latency)
            };
            PhaseAnswer { latency: rows.iter().map(row).collect(), ..PhaseAnswer::default() }
        };
        let critical = |mean| [("S1 read", 70, mean), ("S1 write", 30, mean)];
        let before = [("all critical", 100, 300.0), ("S2 write", 100, 500.0)];
        let before = before.into_iter().chain(critical(300.0));
        let normal = [("S3 read", 100, 400.0), ("S4 read", 60, 100.0), ("S4 write", 40, 600.0)];
        let before: Vec<_> = before.chain(normal).chain([("all normal", 300, 400.0)]).collect();
        let after = [("all critical", 100, 100.0), ("S2 write", 100, 550.0)];
        let after = after.into_iter().chain(critical(100.0));
        let normal = [("S3 read", 100, 600.0), ("S4 read", 40, 150.0), ("S4 write", 40, 450.0)];
        let after: Vec<_> = after.chain(normal).chain([("all normal", 270, 480.0)]).collect();
        let answer = DemoAnswer::of(phase(&before), phase(&after), &specs, true);
        assert_eq!(
            answer.trade(),
            "both sides: critical mean latency 3.0 times shorter; normal services together 20 % \
             longer, with 90 % of the requests; the worst of them, S3, 50 % longer"
        );
        let s4 = &answer.services["S4"];
        assert_eq!((s4.class, s4.speedup_mean, s4.requests_ratio), ("normal", 1.0, 0.8));
        let alone = phase(&[("all critical", 100, 300.0)]);
        let same = phase(&[("all critical", 100, 300.0)]);
        let answer = DemoAnswer::of(alone, same, &specs, true);
        assert_eq!(answer.trade(), "both sides: critical mean latency 1.0 times shorter");
        assert_eq!(percent(1.25), "20 % shorter");
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
