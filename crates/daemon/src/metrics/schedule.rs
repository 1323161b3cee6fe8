//! Metrics of serving by class: objectives and windows, what waits, what devices are allowed.
//!
//! How: read from the counters of all shards; a class's windows are added up, its p99.9 is the
//! worst shard's. Invariant: a class without an objective has no objective, and no misses.
//! Cost: a few samples per class, shard and device.

use super::{Labels, Sample, Scrape, count, family, family_in, gauge};
use crate::shards::operation_of;
use layby_engine::control::Snapshot;
use layby_engine::core::ClassLatency;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;
use std::fmt;

impl Scrape {
    /// Classes, ranks and devices.
    pub(super) fn encode_schedule(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let objectives = self.classes(|shards| {
            let objective = shards.iter().find_map(|shard| shard.objective)?;
            Some(objective.as_secs_f64())
        });
        let gauges = |of: Vec<(Labels, f64)>| -> Vec<Sample> {
            of.into_iter().map(|(labels, value)| gauge(labels, value)).collect()
        };
        let counts = |of: Vec<(Labels, f64)>| -> Vec<Sample> {
            of.into_iter().map(|(labels, value)| count(labels, value as u64)).collect()
        };
        let sum = |of: fn(&ClassLatency) -> u64| {
            counts(self.classes(|shards| Some(shards.iter().map(|s| of(s)).sum::<u64>() as f64)))
        };
        let worst = |shards: &[&ClassLatency]| {
            shards.iter().map(|s| s.shown.latency_p999.as_secs_f64()).reduce(f64::max)
        };
        family_in(Unit::Seconds, "layby_class_latency_objective", "Objective of 999 in 1000")
            .write(encoder, gauges(objectives))?;
        family_in(Unit::Seconds, "layby_class_latency_window_p999", "p99.9 of the last window")
            .write(encoder, gauges(self.classes(worst)))?;
        family("layby_class_latency_windows", "Windows in which the class asked for something")
            .write(encoder, sum(|s| s.shown.windows))?;
        family("layby_class_latency_windows_missed", "Of these, with the objective missed")
            .write(encoder, sum(|s| s.shown.windows_missed))?;
        family("layby_class_latency_requests_late", "Requests later than the objective")
            .write(encoder, sum(|s| s.shown.requests_late))?;
        self.encode_ranks(encoder)?;
        self.encode_devices(encoder)
    }

    fn classes(&self, value: impl Fn(&[&ClassLatency]) -> Option<f64>) -> Vec<(Labels, f64)> {
        let mut found = Vec::new();
        for (name, _) in self.view.classes() {
            let Some((id, _)) = self.view.class(name.as_str()) else { continue };
            let of = |shard: &'_ Snapshot| shard.classes.get(usize::from(id.0)).copied();
            let shards: Vec<ClassLatency> = self.snapshots.iter().filter_map(of).collect();
            let shards: Vec<&ClassLatency> = shards.iter().collect();
            found.extend(value(&shards).map(|value| (vec![("class", name.to_string())], value)));
        }
        found
    }

    fn encode_ranks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (mut clients, mut bytes) = (Vec::new(), Vec::new());
        for (shard, snapshot) in self.snapshots.iter().enumerate() {
            for stats in &snapshot.ranks {
                let rank = stats.rank.0.to_string();
                let labels = vec![("shard", shard.to_string()), ("rank", rank)];
                clients.push(gauge(labels.clone(), stats.clients_waiting as f64));
                bytes.push(gauge(labels, stats.bytes_inflight as f64));
            }
        }
        family("layby_rank_clients_waiting", "Clients whose requests wait for their turn")
            .write(encoder, clients)?;
        family_in(Unit::Bytes, "layby_rank_inflight", "Bytes of requests in the shard's hands")
            .write(encoder, bytes)
    }

    fn encode_devices(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples: [Vec<Sample>; 6] = Default::default();
        for (shard, snapshot) in self.snapshots.iter().enumerate() {
            for device in &snapshot.devices {
                let labels = vec![("shard", shard.to_string()), ("device", device.name.clone())];
                let waiting = device.waiting.iter().map(|(_, load)| load);
                let waiting = waiting
                    .fold((0, 0), |sum, load| (sum.0 + u64::from(load.ios), sum.1 + load.bytes));
                let figures = [
                    u64::from(device.budget.ios),
                    device.budget.bytes,
                    u64::from(device.outstanding.ios),
                    device.outstanding.bytes,
                    waiting.0,
                    waiting.1,
                ];
                for (family, figure) in samples.iter_mut().zip(figures) {
                    family.push(gauge(labels.clone(), figure as f64));
                }
            }
        }
        let names = [
            ("layby_device_budget_ios", "Operations that lower ranks may have outstanding"),
            ("layby_device_budget_bytes", "Bytes that lower ranks may have outstanding"),
            ("layby_device_outstanding_ios", "Operations of lower ranks outstanding"),
            ("layby_device_outstanding_bytes", "Bytes of lower ranks outstanding"),
            ("layby_device_waiting_ios", "Operations held back"),
            ("layby_device_waiting_bytes", "Bytes held back"),
        ];
        for ((name, help), samples) in names.into_iter().zip(samples) {
            family(name, help).write(encoder, samples)?;
        }
        self.encode_stuck(encoder)?;
        self.encode_failed(encoder)
    }

    /// Levels whose device fails.
    fn encode_failed(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples = Vec::new();
        for (shard, snapshot) in self.snapshots.iter().enumerate() {
            for failed in &snapshot.failed {
                let labels = vec![
                    ("shard", shard.to_string()),
                    ("level", self.view.layout.levels[failed.level].name.to_string()),
                    ("operation", operation_of(failed).to_owned()),
                ];
                samples.push(gauge(labels, 1.0));
            }
        }
        let help = "1 where the level's device has failed such an operation, and done none since";
        family("layby_level_failed", help).write(encoder, samples)
    }

    /// What does not answer.
    fn encode_stuck(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples = Vec::new();
        for (shard, snapshot) in self.snapshots.iter().enumerate() {
            for place in &snapshot.stuck {
                let level = place.level.map(|level| self.view.layout.levels[level].name.as_str());
                let volume = place.volume.and_then(|id| self.view.name_of(id.0));
                let labels = vec![
                    ("shard", shard.to_string()),
                    ("level", level.unwrap_or_default().to_owned()),
                    ("volume", volume.map(ToString::to_string).unwrap_or_default()),
                ];
                samples.push(gauge(labels, place.seconds));
            }
        }
        let help = "Time since the oldest operation of a device that does not answer began";
        family_in(Unit::Seconds, "layby_stuck", help).write(encoder, samples)
    }
}
