//! The node's counters as Prometheus reads them.
//!
//! How: a scrape asks every shard for its counters once, adds them up by volume and level, and
//! writes them, and what [`totals`](crate::totals) has of each class, in the OpenMetrics text
//! format. Names are `layby_…_total` for what only grows, with `_bytes` and `_seconds` in base
//! units.
//! Invariant: a name keeps its meaning and labels; a counter never falls while the node runs, but
//! for those of a volume that was deleted and made anew.
//! Cost: one pass over each latency histogram per scrape; nothing on the data path.

mod cloud;
mod discards;
mod schedule;
mod sizing;
pub mod text;
mod wear;

use crate::config::Name;
use crate::control::{NodeFacts, View};
use crate::health::Healths;
use crate::sizing::SizingState;
use crate::totals::{Buckets, LATENCY_BUCKETS_US, OperationTotals, Totals};
use layby_cache::LevelKind;
use layby_engine::control::{LevelStats, Snapshot, VolumeStats};
use layby_types::VolumeId;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Writes all metrics of a node.
#[must_use]
pub(crate) fn render(
    facts: &NodeFacts,
    view: Arc<View>,
    snapshots: Arc<Vec<Snapshot>>,
    classes: BTreeMap<Name, Totals>,
    (sizing, healths): (Arc<SizingState>, Arc<Healths>),
) -> String {
    let node = NodeSummary::of(facts, &view);
    let scrape = Scrape { node, view, snapshots, classes, sizing, healths };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .expect("writing into a String does not fail");
    text
}

/// What of the facts a scrape shows.
#[derive(Debug)]
struct NodeSummary {
    node: String,
    /// Clients that were not let in, by cause.
    refused: Vec<(&'static str, u64)>,
    io: String,
    recovery_seconds: f64,
    blocks_lost: u64,
    /// Levels that were lost at the start.
    lost: Vec<Name>,
    clouds: Vec<cloud::CloudVolume>,
    uplink: Option<layby_cloud::uplink::Seen>,
}

impl NodeSummary {
    fn of(facts: &NodeFacts, view: &View) -> Self {
        let volumes = view.catalog.volumes.iter();
        let clouds: Vec<_> = volumes
            .filter_map(|(name, record)| {
                let answer = crate::api::cloud_answer(&facts.homes, record)?;
                Some((name.to_string(), record.class.to_string(), answer))
            })
            .collect();
        let uplink = facts.homes.uplink().filter(|_| !clouds.is_empty());
        let slowest = facts.reports.iter().map(|report| report.recovery_ms).max().unwrap_or(0);
        NodeSummary {
            node: view.catalog.node.to_string(),
            io: facts.reports.first().map(|report| report.io.clone()).unwrap_or_default(),
            recovery_seconds: slowest as f64 / 1e3,
            blocks_lost: facts.reports.iter().map(|report| report.blocks_lost).sum(),
            lost: facts.lost.iter().map(|lost| lost.name.clone()).collect(),
            clouds,
            uplink: uplink.map(|uplink| uplink.seen()),
            refused: facts
                .refusals
                .totals()
                .iter()
                .map(|(cause, count)| (*cause, *count))
                .collect(),
        }
    }
}

#[derive(Debug)]
struct Scrape {
    node: NodeSummary,
    view: Arc<View>,
    snapshots: Arc<Vec<Snapshot>>,
    classes: BTreeMap<Name, Totals>,
    sizing: Arc<SizingState>,
    healths: Arc<Healths>,
}

type Labels = Vec<(&'static str, String)>;

/// A value with its labels.
struct Sample {
    labels: Labels,
    value: Value,
}

enum Value {
    Count(u64),
    CountSeconds(f64),
    Gauge(f64),
    Histogram(Buckets),
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_node(&mut encoder)?;
        self.encode_durability(&mut encoder)?;
        self.encode_owners(&mut encoder, "volume")?;
        self.encode_owners(&mut encoder, "class")?;
        self.encode_volumes(&mut encoder)?;
        self.encode_levels(&mut encoder)?;
        self.encode_wear(&mut encoder)?;
        self.encode_level_discards(&mut encoder)?;
        self.encode_backing(&mut encoder)?;
        self.encode_sizing(&mut encoder)?;
        self.encode_schedule(&mut encoder)?;
        self.encode_cloud(&mut encoder)?;
        self.encode_shards(&mut encoder)
    }
}

/// One metric: name without suffix, what it means, its unit.
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    unit: Option<Unit>,
}

const fn family<'a>(name: &'a str, help: &'a str) -> Family<'a> {
    Family { name, help, unit: None }
}

const fn family_in<'a>(unit: Unit, name: &'a str, help: &'a str) -> Family<'a> {
    Family { name, help, unit: Some(unit) }
}

impl Family<'_> {
    fn write(self, encoder: &mut DescriptorEncoder<'_>, samples: Vec<Sample>) -> fmt::Result {
        let Some(first) = samples.first() else { return Ok(()) };
        let kind = first.value.metric_type();
        let mut metric =
            encoder.encode_descriptor(self.name, self.help, self.unit.as_ref(), kind)?;
        for sample in samples {
            if sample.labels.is_empty() {
                sample.value.encode_into(&mut metric)?;
            } else {
                sample.value.encode_into(&mut metric.encode_family(&sample.labels)?)?;
            }
        }
        Ok(())
    }
}

impl Value {
    fn metric_type(&self) -> MetricType {
        match self {
            Value::Count(_) | Value::CountSeconds(_) => MetricType::Counter,
            Value::Gauge(_) => MetricType::Gauge,
            Value::Histogram(_) => MetricType::Histogram,
        }
    }
    fn encode_into(&self, metric: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Value::Count(count) => metric.encode_counter::<NoLabelSet, _, u64>(count, None),
            Value::CountSeconds(sum) => metric.encode_counter::<NoLabelSet, _, f64>(sum, None),
            Value::Gauge(value) => metric.encode_gauge(value),
            Value::Histogram(Buckets { counts, sum_ns }) => {
                // The encoder writes the last end as `+Inf`, and no other value.
                let ends = LATENCY_BUCKETS_US.iter().map(|us| *us as f64 / 1e6);
                let ends = ends.chain([f64::INFINITY]).zip(counts.iter().copied());
                let (ends, count): (Vec<_>, _) = (ends.collect(), counts.iter().sum());
                metric.encode_histogram::<NoLabelSet>(*sum_ns as f64 / 1e9, count, &ends, None)
            }
        }
    }
}

fn count(labels: Labels, count: u64) -> Sample {
    Sample { labels, value: Value::Count(count) }
}

fn gauge(labels: Labels, value: f64) -> Sample {
    Sample { labels, value: Value::Gauge(value) }
}

/// The counters of a volume, or of all volumes of a class, under their labels.
struct Owner<'a> {
    labels: Labels,
    stats: Vec<&'a VolumeStats>,
    /// What has been done so far; by volumes that a class had, too.
    totals: Totals,
}

impl Owner<'_> {
    fn sum(&self, of: impl Fn(&VolumeStats) -> u64) -> u64 {
        self.stats.iter().map(|stats| of(stats)).sum()
    }
    fn labelled(&self, label: &'static str, value: &str) -> Labels {
        let mut labels = self.labels.clone();
        labels.push((label, value.to_owned()));
        labels
    }
}

/// One of three kinds of requests.
type OperationOf = fn(&Totals) -> &OperationTotals;
const OPERATIONS: [(&str, OperationOf); 3] =
    [("read", |t| &t.read), ("write", |t| &t.write), ("other", |t| &t.other)];

impl Scrape {
    fn stats(&self) -> impl Iterator<Item = &VolumeStats> {
        self.snapshots.iter().flat_map(|snapshot| &snapshot.volumes)
    }

    fn volume(&self, id: VolumeId) -> Option<Owner<'_>> {
        let (name, record) = self.view.volumes().find(|(_, record)| record.id == id.0)?;
        let labels = vec![("volume", name.to_string()), ("class", record.class.to_string())];
        let stats: Vec<_> = self.stats().filter(|stats| stats.volume == id).collect();
        let totals = Totals::of(stats.iter().copied());
        Some(Owner { labels, stats, totals })
    }

    fn owners(&self, kind: &str) -> Vec<Owner<'_>> {
        if kind == "volume" {
            return self.view.volumes().filter_map(|(_, r)| self.volume(VolumeId(r.id))).collect();
        }
        let class = |(name, _): &(crate::config::Name, crate::config::ClassConfig)| {
            let members = self.view.volumes().filter(|(_, record)| record.class == *name);
            let ids: Vec<u32> = members.map(|(_, record)| record.id).collect();
            let stats = self.stats().filter(|stats| ids.contains(&stats.volume.0)).collect();
            let totals = self.classes.get(name).cloned().unwrap_or_default();
            Owner { labels: vec![("class", name.to_string())], stats, totals }
        };
        self.view.classes().map(class).collect()
    }

    fn level_names(&self) -> impl Iterator<Item = (usize, &str)> {
        self.view.layout.levels.iter().map(|level| level.name.as_str()).enumerate()
    }

    fn encode_node(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let about: Labels = vec![
            ("node", self.node.node.clone()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("io", self.node.io.clone()),
        ];
        let mut metric =
            encoder.encode_descriptor("layby_node", "What runs here", None, MetricType::Info)?;
        metric.encode_info(&about)?;
        let uptime = self.snapshots.iter().map(|s| s.uptime_seconds).fold(0.0, f64::max);
        family_in(Unit::Seconds, "layby_uptime", "Time since the shards started")
            .write(encoder, vec![gauge(vec![], uptime)])?;
        family_in(Unit::Seconds, "layby_recovery", "Time that recovery took at the last start")
            .write(encoder, vec![gauge(vec![], self.node.recovery_seconds)])?;
        family("layby_recovery_blocks_lost", "Blocks found corrupt at the last start")
            .write(encoder, vec![gauge(vec![], self.node.blocks_lost as f64)])?;
        let refused = self.node.refused.iter();
        let refused =
            refused.map(|(cause, n)| count(vec![("cause", (*cause).to_owned())], *n)).collect();
        family("layby_clients_refused", "Clients that were not let in").write(encoder, refused)?;
        let lost = self.node.clouds.iter().filter(|volume| volume.2.is_not_served()).count();
        let not_served = (self.view.absent.len() + lost) as f64;
        family("layby_volumes_not_served", "Volumes that the node has and cannot serve now")
            .write(encoder, vec![gauge(vec![], not_served)])?;
        let block = f64::from(self.view.layout.block_size.bytes());
        family_in(Unit::Bytes, "layby_block", "Size of the cache unit")
            .write(encoder, vec![gauge(vec![], block)])
    }

    /// Per class: where its writes land, and when they are acknowledged.
    fn encode_durability(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples = Vec::new();
        for (name, class) in self.view.classes() {
            let (level, acknowledged) = durability(&self.view, name.as_str(), class.durable_writes);
            let labels = vec![
                ("class", name.to_string()),
                ("level", level),
                ("acknowledged", acknowledged.to_owned()),
            ];
            samples.push(gauge(labels, 1.0));
        }
        family("layby_durability_mode", "Where a class's writes land and when they are answered")
            .write(encoder, samples)
    }

    /// Requests and hits, by volume or by class.
    fn encode_owners(&self, encoder: &mut DescriptorEncoder<'_>, kind: &str) -> fmt::Result {
        let owners = self.owners(kind);
        let each = |value: &dyn Fn(&Owner<'_>, OperationOf) -> Value| {
            let mut samples = Vec::new();
            for owner in &owners {
                for (operation, of) in OPERATIONS {
                    let labels = owner.labelled("operation", operation);
                    samples.push(Sample { labels, value: value(owner, of) });
                }
            }
            samples
        };
        let counted = |of: fn(&OperationTotals) -> u64| {
            each(&|owner, operation| Value::Count(of(operation(&owner.totals))))
        };
        let name = |what: &str| format!("layby_{kind}_{what}");
        family(&name("requests"), "Requests completed").write(encoder, counted(|o| o.requests))?;
        family(&name("bytes"), "Bytes asked for").write(encoder, counted(|o| o.bytes))?;
        family(&name("errors"), "Requests that failed").write(encoder, counted(|o| o.errors))?;
        let latency =
            each(&|owner, operation| Value::Histogram(operation(&owner.totals).latency.clone()));
        family_in(Unit::Seconds, &name("latency"), "From request read to answer written")
            .write(encoder, latency)?;
        let by_level = |owner: &Owner<'_>, of: &dyn Fn(usize) -> u64| {
            let levels = self.level_names();
            levels.map(|(i, level)| (owner.labelled("level", level), of(i))).collect::<Vec<_>>()
        };
        let hits = owners.iter().flat_map(|owner| {
            by_level(owner, &|index| owner.totals.hits.get(index).copied().unwrap_or(0))
        });
        family(&name("hits"), "Blocks read that were found in a level")
            .write(encoder, hits.map(|(labels, n)| count(labels, n)).collect())?;
        let misses = owners.iter().map(|o| count(o.labels.clone(), o.totals.misses));
        family(&name("misses"), "Blocks read that no level had")
            .write(encoder, misses.collect())?;
        let block = f64::from(self.view.layout.block_size.bytes());
        let now = |owner: &Owner<'_>, of: fn(&VolumeStats) -> &Vec<u64>| {
            by_level(owner, &|index| owner.sum(|v| of(v).get(index).copied().unwrap_or(0)))
        };
        let held = owners.iter().flat_map(|owner| now(owner, |v| &v.slots));
        family_in(Unit::Bytes, &name("cached"), "Held in a level now")
            .write(encoder, held.map(|(l, n)| gauge(l, n as f64 * block)).collect())?;
        let dirty = owners.iter().flat_map(|owner| now(owner, |v| &v.slots_dirty));
        family_in(Unit::Bytes, &name("dirty"), "Held in a level now and not yet written back")
            .write(encoder, dirty.map(|(l, n)| gauge(l, n as f64 * block)).collect())
    }

    fn encode_volumes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let owners = self.owners("volume");
        let each = |of: fn(&VolumeStats) -> u64| {
            let sample = |owner: &Owner<'_>| gauge(owner.labels.clone(), owner.sum(of) as f64);
            owners.iter().map(sample).collect()
        };
        family("layby_volume_connections", "Clients connected now")
            .write(encoder, each(|v| v.connections))?;
        family("layby_volume_queue_depth", "Requests in flight now")
            .write(encoder, each(|v| v.queue_depth))?;
        family("layby_volume_lost_blocks", "Blocks whose newest version damage left unknown")
            .write(encoder, each(|v| v.lost))?;
        let timed_out = owners.iter().map(|o| count(o.labels.clone(), o.sum(|v| v.timed_out)));
        family("layby_volume_timed_out_requests", "Requests that a stuck device made fail")
            .write(encoder, timed_out.collect())?;
        family("layby_volume_write_back_failing", "1 where dirty blocks cannot be written back")
            .write(encoder, each(|v| u64::from(v.destage_fault.is_some())))?;
        let calls = owners.iter().map(|o| count(o.labels.clone(), o.sum(|v| v.waits.calls)));
        family("layby_volume_throttled_requests", "Requests that a limit made wait")
            .write(encoder, calls.collect())?;
        let waited = owners.iter().map(|owner| Sample {
            labels: owner.labels.clone(),
            value: Value::CountSeconds(owner.sum(|v| v.waits.waited_ns) as f64 / 1e9),
        });
        family_in(Unit::Seconds, "layby_volume_throttled", "Time that a limit made requests wait")
            .write(encoder, waited.collect())?;
        family("layby_volume_throttled_queue_depth", "Requests that a limit makes wait now")
            .write(encoder, each(|v| v.waits.waiting))?;
        for (name, help, value) in discards::COUNTERS {
            let sample = |owner: &Owner<'_>| count(owner.labels.clone(), owner.sum(value));
            family(name, help).write(encoder, owners.iter().map(sample).collect())?;
        }
        let causes = owners.iter().flat_map(|owner| {
            discards::CAUSES.map(|(name, cause)| {
                let sum = owner.sum(|v| v.discards.counters.sent_by[cause as usize]);
                count(owner.labelled("cause", name), sum)
            })
        });
        family("layby_volume_discards_sent_by_cause", "Ranges that the home was told of, by cause")
            .write(encoder, causes.collect())?;
        for (name, help, value) in discards::GAUGES {
            family(name, help).write(encoder, each(value))?;
        }
        let sizes = self.view.volumes().filter_map(|(_, record)| {
            let owner = self.volume(VolumeId(record.id))?;
            Some(gauge(owner.labels, record.length as f64))
        });
        family_in(Unit::Bytes, "layby_volume_size", "Length of the volume")
            .write(encoder, sizes.collect())
    }

    fn level_samples(&self, value: impl Fn(&[&LevelStats]) -> Value) -> Vec<Sample> {
        let sample = |(index, level): (usize, &str)| {
            let shards: Vec<_> =
                self.snapshots.iter().filter_map(|s| s.levels.get(index)).collect();
            Sample { labels: vec![("level", level.to_owned())], value: value(&shards) }
        };
        self.level_names().map(sample).collect()
    }

    fn encode_levels(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let block = f64::from(self.view.layout.block_size.bytes());
        let sum = |shards: &[&LevelStats], of: fn(&LevelStats) -> u64| {
            shards.iter().map(|shard| of(shard)).sum::<u64>()
        };
        let bytes = |of: fn(&LevelStats) -> u64| {
            self.level_samples(|shards| Value::Gauge(sum(shards, of) as f64 * block))
        };
        let counted =
            |of: fn(&LevelStats) -> u64| self.level_samples(|shards| Value::Count(sum(shards, of)));
        let levels = self.view.layout.levels.iter().map(|level| {
            let is_lost = self.node.lost.contains(&level.name);
            gauge(vec![("level", level.name.to_string())], f64::from(u8::from(is_lost)))
        });
        family("layby_level_lost", "Whether the level was lost when the node started")
            .write(encoder, levels.collect())?;
        family_in(Unit::Bytes, "layby_level_size", "Room for blocks")
            .write(encoder, bytes(|l| l.slots))?;
        family_in(Unit::Bytes, "layby_level_used", "Blocks held now")
            .write(encoder, bytes(|l| l.slots_used))?;
        family_in(Unit::Bytes, "layby_level_dirty", "Blocks held now and not yet written back")
            .write(encoder, bytes(|l| l.slots_dirty))?;
        let oldest = self.level_samples(|shards| {
            Value::Gauge(shards.iter().map(|shard| shard.dirty_age_seconds).fold(0.0, f64::max))
        });
        family_in(Unit::Seconds, "layby_level_dirty_age", "Since the oldest dirty block became so")
            .write(encoder, oldest)?;
        family("layby_level_hits", "Blocks read from the level for clients")
            .write(encoder, counted(|l| l.hits))?;
        family("layby_level_writes", "Blocks written into the level")
            .write(encoder, counted(|l| l.writes))?;
        family("layby_level_evictions", "Blocks evicted")
            .write(encoder, counted(|l| l.evictions))?;
        let destaged = self.level_samples(|s| {
            Value::Count(sum(s, |l| l.destaged) * u64::from(self.view.layout.block_size.bytes()))
        });
        family("layby_level_destaged_bytes", "Bytes written back from the level")
            .write(encoder, destaged)?;
        family(
            "layby_level_device_written_bytes",
            "Bytes written to the device, metadata included",
        )
        .write(encoder, counted(|l| l.device_bytes_written))?;
        family("layby_level_cleaned", "Blocks that the log's cleaner copied")
            .write(encoder, counted(|l| l.cleaned))?;
        family("layby_level_cleaning_dropped", "Cold blocks that cleaning dropped")
            .write(encoder, counted(|l| l.cleaning_dropped))?;
        family("layby_level_cleaning_destaged", "Cold blocks destaged for cleaning")
            .write(encoder, counted(|l| l.cleaning_destaged))?;
        family("layby_level_corrupt", "Records that failed their checksum")
            .write(encoder, counted(|l| l.corrupt))?;
        let metadata = self.level_samples(|s| Value::Gauge(sum(s, |l| l.metadata_bytes) as f64));
        family_in(Unit::Bytes, "layby_level_metadata", "Memory for the level's tables")
            .write(encoder, metadata)?;
        let waiting = self.level_samples(|s| Value::Gauge(sum(s, |l| l.waiting) as f64));
        family("layby_level_waiting", "Operations that wait for room in the level")
            .write(encoder, waiting)
    }

    fn encode_backing(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let block = u64::from(self.view.layout.block_size.bytes());
        let sum = |of: fn(&Snapshot) -> u64| self.snapshots.iter().map(of).sum::<u64>();
        let blocks = |of| vec![count(vec![], sum(of) * block)];
        family("layby_backing_read_bytes", "Bytes read from the volumes' homes")
            .write(encoder, blocks(|s| s.backing_blocks_read))?;
        family("layby_backing_read_ahead_bytes", "Of these, bytes read ahead")
            .write(encoder, blocks(|s| s.backing_blocks_read_ahead))?;
        family("layby_backing_written_bytes", "Bytes written to the volumes' homes")
            .write(encoder, blocks(|s| s.backing_blocks_written))?;
        family("layby_backing_writes", "Write requests that carried them")
            .write(encoder, vec![count(vec![], sum(|s| s.backing_writes))])
    }

    fn encode_shards(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let each = |value: fn(&Snapshot) -> Value| {
            let shards = self.snapshots.iter().enumerate();
            let sample = |(index, snapshot): (usize, &Snapshot)| Sample {
                labels: vec![("shard", index.to_string())],
                value: value(snapshot),
            };
            shards.map(sample).collect()
        };
        family_in(Unit::Seconds, "layby_shard_cpu", "Time the shard's thread has run")
            .write(encoder, each(|s| Value::CountSeconds(s.cpu_ns as f64 / 1e9)))?;
        family("layby_shard_io_inflight", "Device operations in flight now")
            .write(encoder, each(|s| Value::Gauge(s.io_inflight as f64)))?;
        family_in(
            Unit::Bytes,
            "layby_shard_client_memory",
            "What clients hold beyond the free part",
        )
        .write(encoder, each(|s| Value::Gauge(s.client_memory.bytes_held as f64)))?;
        family("layby_shard_client_memory_waits", "Requests that waited for others' memory")
            .write(encoder, each(|s| Value::Count(s.client_memory.waits)))?;
        family("layby_shard_queue_depth", "Client requests in flight now")
            .write(encoder, each(|s| Value::Gauge(s.queue_depth as f64)))
    }
}

/// Where writes of a class land, and whether they are answered when `durable` or when `accepted`.
#[must_use]
pub fn durability(view: &View, class: &str, durable_writes: bool) -> (String, &'static str) {
    let allowed = view.class(class).map(|(_, config)| config.levels.as_slice()).unwrap_or_default();
    let levels = view.layout.levels.iter();
    let landing = levels
        .filter(|level| allowed.contains(&level.name) && view.layout.is_used(level))
        .find(|level| LevelKind::from(level.kind).is_persistent());
    let level = landing.map_or_else(|| "backing".to_owned(), |level| level.name.to_string());
    (level, if durable_writes { "durable" } else { "accepted" })
}

#[cfg(test)]
mod tests {
    use crate::control::Pace;
    use crate::control::tests::MockNode;

    /// Goal: the text is what Prometheus reads, with every family that dashboards rely on. Method:
    /// a mock node's scrape, lines counted by hand.
    #[tokio::test]
    async fn scrape_shows_every_family() {
        let node = MockNode::new("");
        let snapshots = node.control.snapshots(Pace::AtOnce).await.expect("the shards run");
        let text = super::render(
            node.control.facts(),
            node.control.view(),
            snapshots.clone(),
            node.control.class_totals(&snapshots),
            (node.control.sizing(), node.control.healths()),
        );
        let volume = "volume=\"vol0\",class=\"normal\"";
        let bucket = "layby_volume_latency_seconds_bucket";
        let expected = [
            format!("layby_volume_requests_total{{{volume},operation=\"read\"}} 10"),
            format!("layby_volume_bytes_total{{{volume},operation=\"write\"}} 20480"),
            format!("layby_volume_latency_seconds_count{{{volume},operation=\"read\"}} 10"),
            format!("{bucket}{{le=\"0.00005\",{volume},operation=\"read\"}} 10"),
            format!("{bucket}{{le=\"+Inf\",{volume},operation=\"read\"}} 10"),
            format!("layby_volume_hits_total{{{volume},level=\"ssd\"}} 2"),
            format!("layby_volume_misses_total{{{volume}}} 1"),
            format!("layby_volume_size_bytes{{{volume}}} 1073741824.0"),
            format!("layby_volume_throttled_requests_total{{{volume}}} 6"),
            format!("layby_volume_throttled_seconds_total{{{volume}}} 0.25"),
            "layby_class_requests_total{class=\"normal\",operation=\"write\"} 5".into(),
            "layby_class_requests_total{class=\"critical\",operation=\"write\"} 0".into(),
            "layby_level_used_bytes{level=\"nvm\"} 409600.0".into(),
            "layby_level_evictions_total{level=\"dram\"} 0".into(),
            "layby_shard_cpu_seconds_total{shard=\"1\"} 1.5".into(),
            "layby_backing_written_bytes_total 73728".into(),
            "layby_durability_mode{class=\"critical\",level=\"nvm\",acknowledged=\"durable\"} 1.0"
                .into(),
            "# UNIT layby_level_dirty_age_seconds seconds".into(),
            "# EOF".into(),
        ];
        for line in expected {
            assert!(text.lines().any(|found| found == line), "`{line}` is missing in\n{text}");
        }
    }
}
