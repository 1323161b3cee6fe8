//! What the control API answers: the node's state and counters under documented names.
//!
//! How: a [`Reading`] joins one view with the counters of all shards taken just after it; each
//! answer is built from it. Numbers carry their unit in their name.
//! Invariant: an answer is whole: what a volume's counters do not know yet is zero, never absent.
//! Cost: one pass over the shards' counters per request; taking them is shared with others.

use super::discards::{DiscardAnswer, level_discards};
use super::schedule::{self, DeviceAnswer, FailedLevelAnswer, LatencyAnswer};
use super::schedule::{RankAnswer, StuckAnswer};
use super::sizing::SizingAnswer;
use super::wear::{HealthAnswer, HintAnswer, WearAnswer};
use crate::catalog::VolumeRecord;
use crate::cloud::is_store;
use crate::config::{
    AllowRule, Amount, Bandwidth, ClassConfig, Kind, LimitsConfig, Name, Percent, Policy, Size,
    Time, VolumeConfig,
};
use crate::config::{CloneSource, DiscardChoice, DiscardWait};
use crate::control::{Control, Pace, View};
use crate::error::Report;
use crate::homes::IN_MEMORY;
use crate::metrics::durability;
use hdrhistogram::Histogram;
use layby_cache::Watermarks;
use layby_engine::control::{LevelStats, OperationStats, Snapshot, StartReport, VolumeStats};
use layby_engine::io::SECTOR_CIPHER;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Requests of one kind: how many, how large, how slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperationAnswer {
    /// Completed, failed ones included.
    pub requests: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Mean latency in microseconds.
    pub latency_us_mean: f64,
    /// Median latency in microseconds.
    pub latency_us_p50: f64,
    /// 99th percentile in microseconds.
    pub latency_us_p99: f64,
    /// 99.9th percentile in microseconds.
    pub latency_us_p999: f64,
}

impl OperationAnswer {
    fn of<'a>(stats: impl Iterator<Item = &'a OperationStats>) -> Self {
        let mut answer = OperationAnswer::default();
        let mut latency: Option<Histogram<u64>> = None;
        for part in stats {
            answer.requests += part.requests;
            answer.bytes += part.bytes;
            answer.errors += part.errors;
            match &mut latency {
                Some(sum) => sum.add(&part.latency_ns).expect("shards use the same bounds"),
                None => latency = Some(part.latency_ns.clone()),
            }
        }
        if let Some(latency) = latency.filter(|latency| !latency.is_empty()) {
            let quantile = |q| latency.value_at_quantile(q) as f64 / 1e3;
            answer.latency_us_mean = latency.mean() / 1e3;
            answer.latency_us_p50 = quantile(0.5);
            answer.latency_us_p99 = quantile(0.99);
            answer.latency_us_p999 = quantile(0.999);
        }
        answer
    }
}

/// Counters of a volume, or of all volumes of a class, since the node started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TrafficAnswer {
    /// Reads.
    pub read: OperationAnswer,
    /// Writes.
    pub write: OperationAnswer,
    /// Flush, trim, write-zeroes, cache and block-status requests.
    pub other: OperationAnswer,
    /// Blocks read that were found, by level.
    pub hits: BTreeMap<String, u64>,
    /// Blocks read that no level had.
    pub misses: u64,
    /// Bytes held now, by level.
    pub cached_bytes: BTreeMap<String, u64>,
    /// Bytes held now that are not yet written back, by level.
    pub dirty_bytes: BTreeMap<String, u64>,
    /// Clients connected now.
    pub connections: u64,
    /// Requests in flight now.
    pub queue_depth: u64,
    /// Requests that a limit of the volume or its class made wait.
    pub throttled: u64,
    /// Seconds that they waited in sum, which no latency above holds.
    pub throttled_seconds: f64,
    /// Requests that a limit makes wait now.
    pub throttled_now: u64,
    /// What became of discards on their way to the homes.
    pub discards: DiscardAnswer,
    /// Bytes whose newest version is not known, since a level was damaged: errors until they are
    /// written whole, trimmed or zeroed.
    pub lost_bytes: u64,
    /// Requests that ended with an error, since a device or backing store did not answer within
    /// `io_timeout`.
    #[serde(default)]
    pub timed_out: u64,
    /// Why dirty blocks could not be written back the last time, if they could not: they stay
    /// dirty, and are tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_back_fault: Option<String>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeAnswer {
    /// Its name.
    pub name: Name,
    /// Its number, never used again.
    pub id: u32,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// Its class.
    pub class: Name,
    /// Its backing file or device.
    pub path: String,
    /// Clients cannot write.
    pub read_only: bool,
    /// Who may use it; empty is everybody.
    pub allow: Vec<AllowRule>,
    /// What no other volume can take, by level.
    pub share: BTreeMap<Name, Amount>,
    /// What it never exceeds, by level.
    pub cap: BTreeMap<Name, Amount>,
    /// How fast it may go.
    pub limits: LimitsConfig,
    /// Whether and when its discards reach its home.
    pub discard: DiscardChoice,
    /// How long delayed discards wait.
    pub discard_delay: DiscardWait,
    /// Bytes per second that its home is asked to discard at most; left out where it has no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard_bandwidth: Option<Bandwidth>,
    /// The shard that serves it; of several, the first.
    pub shard: u8,
    /// How many shards serve it.
    #[serde(default = "VolumeConfig::shards_default")]
    pub shards: u8,
    /// Its socket for a virtual machine (vhost-user-blk), where it has one.
    pub vhost_socket: Option<String>,
    /// A virtual machine is connected there.
    pub guest_connected: bool,
    /// It is to be a block device of this host's kernel, too.
    pub ublk: bool,
    /// That device, where it is there.
    pub ublk_device: Option<String>,
    /// How safe it is in its object store, where that is its home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud: Option<super::cloud::CloudAnswer>,
    /// How its objects are encoded, where its home is an object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<super::cloud::EncodingAnswer>,
    /// The snapshot that it began as, where it is a clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_of: Option<CloneSource>,
    /// Why nobody is served it now, where that is so; the node goes on trying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_served: Option<String>,
    /// The configuration has a table of it. Left out where it has none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_configured: bool,
    /// Its file lies in a memory file system: its blocks are lost when the machine stops. Left out
    /// where it does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_in_memory: bool,
    /// What to know of where it lies, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Its counters.
    pub traffic: TrafficAnswer,
}

/// A class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassAnswer {
    /// Its name.
    pub name: Name,
    /// Every node has it.
    pub built_in: bool,
    /// What it is given.
    pub settings: ClassConfig,
    /// The level where its writes land; `backing` when none of its levels keeps dirty blocks.
    pub write_level: String,
    /// When its writes are acknowledged: `durable`, or `accepted` and durable after FLUSH or FUA.
    pub acknowledged: String,
    /// What its requests take, beside its objective.
    #[serde(default)]
    pub latency: LatencyAnswer,
    /// Volumes of the class.
    pub volumes: Vec<Name>,
    /// Their counters together.
    pub traffic: TrafficAnswer,
}

/// When a level is destaged and freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WatermarksAnswer {
    /// Destaging starts at this share of dirty slots.
    pub dirty_red: Percent,
    /// Destaging ends at this share of dirty slots.
    pub dirty_green: Percent,
    /// Freeing of clean slots starts at this share of used slots.
    pub used_red: Percent,
    /// Freeing of clean slots ends at this share of used slots.
    pub used_green: Percent,
}

impl From<Watermarks> for WatermarksAnswer {
    fn from(marks: Watermarks) -> Self {
        WatermarksAnswer {
            dirty_red: Percent(marks.dirty_red),
            dirty_green: Percent(marks.dirty_green),
            used_red: Percent(marks.used_red),
            used_green: Percent(marks.used_green),
        }
    }
}

/// A level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LevelAnswer {
    /// Its name.
    pub name: Name,
    /// What it is made of.
    pub kind: Kind,
    /// Which block leaves first.
    pub policy: Policy,
    /// Why it was lost when the node started; none where it was there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// Its file lies in a memory file system: what is durable there is lost when the machine stops.
    #[serde(default)]
    pub is_in_memory: bool,
    /// What it is encrypted by, where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cipher: Option<String>,
    /// Where its key came from at the start, where it is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Bytes of its file or memory, metadata included.
    pub size_bytes: u64,
    /// Bytes of blocks that it has room for.
    pub room_bytes: u64,
    /// Bytes of blocks held now.
    pub used_bytes: u64,
    /// Bytes of blocks held now that are not yet written back.
    pub dirty_bytes: u64,
    /// Blocks held now.
    pub blocks_resident: u64,
    /// Seconds since the oldest dirty block became dirty.
    pub dirty_age_seconds: f64,
    /// Blocks read from it for clients.
    pub hits: u64,
    /// Blocks written into it.
    pub writes: u64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Blocks written back from it.
    pub destaged: u64,
    /// Bytes written to its device, metadata included.
    pub device_bytes_written: u64,
    /// Blocks that the log's cleaner copied.
    pub cleaned: u64,
    /// Cold blocks that the log's cleaner dropped instead of copying them.
    #[serde(default)]
    pub cleaning_dropped: u64,
    /// Cold blocks that were destaged for the log's cleaner, to be dropped.
    #[serde(default)]
    pub cleaning_destaged: u64,
    /// Records that failed their checksum.
    pub corrupt: u64,
    /// Bytes of memory for its tables.
    pub metadata_bytes: u64,
    /// Of those, bytes of the index that no block uses: a hash table is never full.
    pub metadata_slack_bytes: u64,
    /// Operations that wait for room.
    pub waiting: u64,
    /// When it is destaged and freed.
    pub watermarks: WatermarksAnswer,
    /// Segments of its log, where it has one.
    #[serde(default)]
    pub segments: u64,
    /// Of these, never used again since they failed: the level is smaller by them.
    #[serde(default)]
    pub segments_retired: u64,
    /// Of these, out of use until they are tested.
    #[serde(default)]
    pub segments_suspect: u64,
    /// Of these, segments with a block that can be neither read nor moved: they are free again once
    /// that block is written or let go.
    #[serde(default)]
    pub segments_damaged: u64,
    /// Bytes of one of its segments.
    #[serde(default)]
    pub segment_bytes: u64,
    /// What became of its free segments on their way to the device; none where it has no log.
    #[serde(default)]
    pub discards: Option<DiscardAnswer>,
    /// What its device hears of how long writes live; none where it has no log.
    #[serde(default)]
    pub hints: Option<HintAnswer>,
    /// How its flash wears; none where it is not flash.
    #[serde(default)]
    pub wear: Option<WearAnswer>,
    /// What the device under it says of itself; none where it is not flash, or says nothing.
    #[serde(default)]
    pub health: Option<HealthAnswer>,
}

/// How dirty blocks go home and how far reads run ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WritebackAnswer {
    /// Bytes of one destage write at most.
    pub merge_size: Size,
    /// Destaging starts after this long without a write.
    pub idle_timeout: Time,
    /// Destage writes in flight at most, per shard and device of backing stores.
    pub inflight_max: u16,
    /// Bytes read ahead at most; zero is off.
    pub read_ahead_window_max: Size,
    /// Sequential reads before read-ahead starts.
    pub read_ahead_streak_min: u8,
}

/// What the volumes' homes were asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackingAnswer {
    /// Bytes read.
    pub bytes_read: u64,
    /// Of these, bytes read ahead.
    pub bytes_read_ahead: u64,
    /// Writes: destaged runs, and writes that no persistent level took; zeroings are not counted.
    pub writes: u64,
    /// Bytes in them.
    pub bytes_written: u64,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShardAnswer {
    /// How it talks to the kernel.
    pub io: String,
    /// Seconds its thread has run on a CPU.
    pub cpu_seconds: f64,
    /// Client requests in flight now.
    pub queue_depth: u64,
    /// Device operations in flight now.
    pub io_inflight: u64,
    /// What clients ask for now, by rank.
    #[serde(default)]
    pub ranks: Vec<RankAnswer>,
    /// Devices that ranks below the best have used.
    #[serde(default)]
    pub devices: Vec<DeviceAnswer>,
    /// A line per level: what it is and how it becomes durable.
    pub levels: Vec<String>,
    /// Milliseconds from start to ready.
    pub recovery_ms: u64,
    /// Dirty blocks found at the last start.
    pub recovered_dirty: u64,
    /// Clean blocks found at the last start.
    pub recovered_clean: u64,
    /// Blocks found corrupt at the last start; their reads fail until they are written again.
    pub recovered_lost: u64,
    /// Writes cut short by the last crash, never acknowledged as durable.
    pub recovered_torn: u64,
}

impl ShardAnswer {
    fn of(snapshot: &Snapshot, start: &StartReport) -> Self {
        ShardAnswer {
            io: start.io.clone(),
            cpu_seconds: snapshot.cpu_ns as f64 / 1e9,
            queue_depth: snapshot.queue_depth,
            io_inflight: snapshot.io_inflight,
            ranks: schedule::ranks(snapshot),
            devices: schedule::devices(snapshot),
            levels: start.levels.clone(),
            recovery_ms: start.recovery_ms,
            recovered_dirty: start.blocks_dirty,
            recovered_clean: start.blocks_clean,
            recovered_lost: start.blocks_lost,
            recovered_torn: start.torn_batches,
        }
    }
}

/// The whole node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatusAnswer {
    /// The node's identity.
    pub node: String,
    /// The program's version.
    pub version: String,
    /// Its directory.
    pub dir: String,
    /// The process.
    pub pid: u32,
    /// The cache unit in bytes.
    pub block_bytes: u32,
    /// Seconds since the shards started.
    pub uptime_seconds: f64,
    /// Addresses for clients.
    pub uris: Vec<String>,
    /// Fastest first.
    pub levels: Vec<LevelAnswer>,
    /// In the order of their numbers.
    pub classes: Vec<ClassAnswer>,
    /// By name.
    pub volumes: Vec<VolumeAnswer>,
    /// Destaging and read-ahead.
    pub writeback: WritebackAnswer,
    /// Live sizing.
    pub sizing: SizingAnswer,
    /// The way up to object stores; none where no volume needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<super::UplinkAnswer>,
    /// The volumes' homes together.
    pub backing: BackingAnswer,
    /// Threads of the data path.
    pub shards: Vec<ShardAnswer>,
    /// Devices and backing stores that have not answered for longer than `io_timeout`.
    #[serde(default)]
    pub stuck: Vec<StuckAnswer>,
    /// Levels whose device fails.
    #[serde(default)]
    pub failed: Vec<FailedLevelAnswer>,
    /// Why changes of the node are refused: its directory is not at its path any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir_moved: Option<String>,
}

/// One view of the node with the counters that belong to it.
pub struct Reading {
    control: Arc<Control>,
    view: Arc<View>,
    snapshots: Arc<Vec<Snapshot>>,
}

impl Reading {
    /// Takes the counters of every shard, from now on.
    ///
    /// # Errors
    /// A report when a shard has ended.
    pub async fn take(control: &Arc<Control>, pace: Pace) -> Result<Reading, Report> {
        let snapshots = control.snapshots(pace).await?;
        let (control, view) = (Arc::clone(control), control.view());
        Ok(Reading { control, view, snapshots })
    }

    /// The node's metrics as text.
    #[must_use]
    pub fn metrics(self) -> String {
        let Reading { control, snapshots, .. } = self;
        // In this order: a class that the view has has its totals, unless it is new.
        let classes = control.class_totals(&snapshots);
        let view = control.view();
        let states = (control.sizing(), control.healths());
        crate::metrics::render(control.facts(), view, snapshots, classes, states)
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.view.layout.block_size.bytes())
    }

    fn traffic(&self, of: impl Fn(u32) -> bool) -> TrafficAnswer {
        let all = self.snapshots.iter().flat_map(|snapshot| &snapshot.volumes);
        let stats: Vec<&VolumeStats> = all.filter(|stats| of(stats.volume.0)).collect();
        let by_level = |of: fn(&VolumeStats) -> &Vec<u64>, scale: u64| {
            let levels = self.view.layout.levels.iter().enumerate();
            let sum = |index: usize| -> u64 {
                stats.iter().map(|stats| of(stats).get(index).copied().unwrap_or(0)).sum()
            };
            levels.map(|(index, level)| (level.name.to_string(), sum(index) * scale)).collect()
        };
        TrafficAnswer {
            read: OperationAnswer::of(stats.iter().map(|stats| &stats.read)),
            write: OperationAnswer::of(stats.iter().map(|stats| &stats.write)),
            other: OperationAnswer::of(stats.iter().map(|stats| &stats.other)),
            hits: by_level(|stats| &stats.hits, 1),
            misses: stats.iter().map(|stats| stats.misses).sum(),
            cached_bytes: by_level(|stats| &stats.slots, self.block_bytes()),
            dirty_bytes: by_level(|stats| &stats.slots_dirty, self.block_bytes()),
            connections: stats.iter().map(|stats| stats.connections).sum(),
            queue_depth: stats.iter().map(|stats| stats.queue_depth).sum(),
            throttled: stats.iter().map(|stats| stats.waits.calls).sum(),
            throttled_seconds: stats.iter().map(|stats| stats.waits.waited_ns).sum::<u64>() as f64
                / 1e9,
            throttled_now: stats.iter().map(|stats| stats.waits.waiting).sum(),
            discards: stats
                .iter()
                .fold(DiscardAnswer::default(), |sum, stats| sum.add(&stats.discards)),
            lost_bytes: stats.iter().map(|stats| stats.lost).sum::<u64>() * self.block_bytes(),
            timed_out: stats.iter().map(|stats| stats.timed_out).sum(),
            write_back_fault: stats
                .iter()
                .find_map(|stats| stats.destage_fault)
                .map(|fault| schedule::fault_text(&self.view, fault)),
        }
    }

    fn volume_of(&self, name: &Name, record: &VolumeRecord) -> VolumeAnswer {
        let shard = self.view.layout.shard_of(layby_types::VolumeId(record.id));
        let door = self.control.door(name);
        VolumeAnswer {
            name: name.clone(),
            id: record.id,
            size_bytes: record.length,
            class: record.class.clone(),
            path: self.control.facts().homes.name(record),
            read_only: record.read_only,
            allow: record.allow.clone(),
            share: record.share.clone(),
            cap: record.cap.clone(),
            limits: record.limits,
            discard: record.discard,
            discard_delay: record.discard_delay,
            discard_bandwidth: record.discard_bandwidth,
            shard: u8::try_from(shard).expect("shards are counted in a byte"),
            shards: record.shards(),
            vhost_socket: door.as_ref().map(|door| door.path.display().to_string()),
            guest_connected: door.is_some_and(|door| door.is_connected),
            ublk: record.ublk,
            ublk_device: self.control.block_device(layby_types::VolumeId(record.id)),
            cloud: self.cloud(record),
            encoding: self.encoding(record),
            clone_of: record.clone_of.clone(),
            not_served: self.view.absence(name).map(|absence| absence.why.cause.clone()),
            is_configured: self.control.facts().config.volumes.contains_key(name),
            is_in_memory: self.control.facts().homes.is_in_memory(record),
            notes: self.notes(record),
            traffic: self.traffic(|id| id == record.id),
        }
    }

    fn cloud(&self, record: &VolumeRecord) -> Option<super::cloud::CloudAnswer> {
        super::cloud_answer(&self.control.facts().homes, record)
    }

    fn encoding(&self, record: &VolumeRecord) -> Option<super::cloud::EncodingAnswer> {
        let facts = self.control.facts();
        let is_remote = facts.homes.writes_through(record);
        is_remote.then(|| super::cloud::EncodingAnswer::of(record, &facts.config.cloud))
    }

    fn notes(&self, record: &VolumeRecord) -> Vec<String> {
        if !is_store(&record.path) {
            let is_in_memory = self.control.facts().homes.is_in_memory(record);
            return is_in_memory.then(|| format!("it {IN_MEMORY}")).into_iter().collect();
        }
        let bases = self.control.facts().homes.watch(record).and_then(|watch| watch.said());
        let bases = bases.map(|said| said.bases).unwrap_or_default();
        let placement = self.control.facts().paths.placement.iter().cloned();
        placement.chain(super::cloud::base_note(&bases)).collect()
    }

    /// All volumes, by name.
    #[must_use]
    pub fn volumes(&self) -> Vec<VolumeAnswer> {
        self.view.known_volumes().map(|(name, record)| self.volume_of(name, record)).collect()
    }

    /// One volume.
    #[must_use]
    pub fn volume(&self, name: &Name) -> Option<VolumeAnswer> {
        let found = self.view.known_volumes().find(|(known, _)| *known == name);
        found.map(|(name, record)| self.volume_of(name, record))
    }

    fn class_of(&self, name: &Name, class: &ClassConfig) -> ClassAnswer {
        let members = self.view.volumes().filter(|(_, record)| record.class == *name);
        let (volumes, ids): (Vec<Name>, Vec<u32>) =
            members.map(|(name, record)| (name.clone(), record.id)).unzip();
        let id = self.view.class(name.as_str());
        let (write_level, acknowledged) =
            durability(&self.view, name.as_str(), class.durable_writes);
        ClassAnswer {
            name: name.clone(),
            built_in: crate::config::BUILT_IN_CLASSES.contains(&name.as_str()),
            settings: class.clone(),
            write_level,
            acknowledged: acknowledged.to_owned(),
            latency: id.map_or_else(LatencyAnswer::default, |(id, _)| {
                LatencyAnswer::of(&self.snapshots, id)
            }),
            volumes,
            traffic: self.traffic(|id| ids.contains(&id)),
        }
    }

    /// All classes, in the order of their numbers.
    #[must_use]
    pub fn classes(&self) -> Vec<ClassAnswer> {
        self.view.classes().map(|(name, class)| self.class_of(name, class)).collect()
    }

    /// One class.
    #[must_use]
    pub fn class(&self, name: &Name) -> Option<ClassAnswer> {
        let found = self.view.classes().find(|(known, _)| known == name);
        found.map(|(name, class)| self.class_of(name, class))
    }

    /// All levels, fastest first.
    #[must_use]
    pub fn levels(&self) -> Vec<LevelAnswer> {
        (0..self.view.layout.levels.len()).map(|index| self.level_at(index)).collect()
    }

    /// One level.
    #[must_use]
    pub fn level(&self, name: &Name) -> Option<LevelAnswer> {
        let index = self.view.layout.levels.iter().position(|level| level.name == *name)?;
        Some(self.level_at(index))
    }

    fn level_at(&self, index: usize) -> LevelAnswer {
        let level = &self.view.layout.levels[index];
        let shards: Vec<&LevelStats> =
            self.snapshots.iter().filter_map(|snapshot| snapshot.levels.get(index)).collect();
        let sum = |of: fn(&LevelStats) -> u64| shards.iter().map(|shard| of(shard)).sum::<u64>();
        let (block, healths) = (self.block_bytes(), self.control.healths());
        let lost = self.control.facts().lost.iter().find(|lost| lost.name == level.name);
        let in_memory = self.control.facts().reports.first().map(|report| &report.in_memory);
        let encryption = self.view.catalog.levels[index].encryption.as_ref();
        LevelAnswer {
            name: level.name.clone(),
            is_in_memory: in_memory.is_some_and(|levels| levels.contains(&index)),
            lost: lost.map(|lost| lost.cause.clone()),
            kind: level.kind,
            policy: level.policy,
            cipher: encryption.map(|_| SECTOR_CIPHER.to_owned()),
            key: encryption.map(|kept| kept.key.to_string()),
            size_bytes: level.size,
            room_bytes: sum(|l| l.slots) * block,
            used_bytes: sum(|l| l.slots_used) * block,
            dirty_bytes: sum(|l| l.slots_dirty) * block,
            blocks_resident: sum(|l| l.slots_used),
            dirty_age_seconds: shards.iter().map(|l| l.dirty_age_seconds).fold(0.0, f64::max),
            hits: sum(|l| l.hits),
            writes: sum(|l| l.writes),
            evictions: sum(|l| l.evictions),
            destaged: sum(|l| l.destaged),
            device_bytes_written: sum(|l| l.device_bytes_written),
            cleaned: sum(|l| l.cleaned),
            cleaning_dropped: sum(|l| l.cleaning_dropped),
            cleaning_destaged: sum(|l| l.cleaning_destaged),
            corrupt: sum(|l| l.corrupt),
            metadata_bytes: sum(|l| l.metadata_bytes),
            metadata_slack_bytes: sum(|l| l.metadata_slack_bytes),
            waiting: sum(|l| l.waiting),
            watermarks: level.watermarks.into(),
            segments: sum(|l| l.segments),
            segments_retired: sum(|l| l.segments_retired),
            segments_suspect: sum(|l| l.segments_suspect),
            segments_damaged: sum(|l| l.segments_damaged),
            segment_bytes: shards.first().map_or(0, |shard| shard.segment_bytes),
            discards: level_discards(&shards),
            hints: HintAnswer::of(&shards),
            wear: WearAnswer::of(&shards, healths.get(&level.name)),
            health: healths.get(&level.name).map(HealthAnswer::from),
        }
    }

    /// Destaging and read-ahead.
    #[must_use]
    pub fn writeback(&self) -> WritebackAnswer {
        let (writeback, ahead) = (&self.view.layout.writeback, &self.view.layout.read_ahead);
        WritebackAnswer {
            merge_size: Size(writeback.merge_bytes.into()),
            idle_timeout: Time(writeback.idle_timeout),
            inflight_max: writeback.inflight_max,
            read_ahead_window_max: Size(ahead.window_bytes_max.into()),
            read_ahead_streak_min: ahead.streak_min,
        }
    }

    fn has_clouds(&self) -> bool {
        let homes = &self.control.facts().homes;
        self.view.catalog.volumes.values().any(|record| homes.writes_through(record))
    }

    /// The way up to object stores.
    #[must_use]
    pub fn uplink(&self) -> super::UplinkAnswer {
        let settings = self.control.uplink_config(&self.view);
        let seen = self.control.facts().homes.uplink().map(|uplink| uplink.seen());
        super::UplinkAnswer::of(settings, &seen.unwrap_or_default())
    }

    /// The whole node.
    #[must_use]
    pub fn status(&self) -> StatusAnswer {
        let facts = self.control.facts();
        let sum = |of: fn(&Snapshot) -> u64| self.snapshots.iter().map(of).sum::<u64>();
        let shards = self.snapshots.iter().zip(&facts.reports);
        let block = self.block_bytes();
        StatusAnswer {
            node: self.view.catalog.node.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            dir: facts.dir.display().to_string(),
            pid: std::process::id(),
            block_bytes: self.view.layout.block_size.bytes(),
            uptime_seconds: self.snapshots.iter().map(|s| s.uptime_seconds).fold(0.0, f64::max),
            uris: facts.uris.clone(),
            levels: self.levels(),
            classes: self.classes(),
            volumes: self.volumes(),
            writeback: self.writeback(),
            sizing: SizingAnswer::of(&self.control),
            uplink: self.has_clouds().then(|| self.uplink()),
            backing: BackingAnswer {
                bytes_read: sum(|s| s.backing_blocks_read) * block,
                bytes_read_ahead: sum(|s| s.backing_blocks_read_ahead) * block,
                writes: sum(|s| s.backing_writes),
                bytes_written: sum(|s| s.backing_blocks_written) * block,
            },
            shards: shards.map(|(snapshot, start)| ShardAnswer::of(snapshot, start)).collect(),
            stuck: schedule::stuck(&self.view, &self.snapshots),
            failed: schedule::failed(&self.view, &self.snapshots),
            dir_moved: crate::held::told(&facts.dir).map(|moved| moved.to_string()),
        }
    }
}
