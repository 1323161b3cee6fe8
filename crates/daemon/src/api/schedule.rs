//! Serving by class as the control API shows it.
//!
//! How: windows of all shards added up by class, the p99.9 of the worst; ranks and devices by
//! shard.

use crate::control::View;
use crate::shards::{operation_of, remedy_of};
use layby_cache::DestageFault;
use layby_cache::schedule::Rank;
use layby_engine::control::{FailedLevel, Snapshot, StuckPlace};
use layby_types::{ClassId, VolumeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a class has its latency. A window ends with 1000 requests, or after two seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyAnswer {
    /// 99.9th percentile of the last window in microseconds, of the worst shard.
    pub latency_us_p999: f64,
    /// Windows in which the class asked for something.
    pub windows: u64,
    /// Of these, windows in which more than one request in a thousand came after the objective.
    pub windows_missed: u64,
    /// Requests that came after the objective.
    pub requests_late: u64,
}

impl LatencyAnswer {
    pub(super) fn of(snapshots: &[Snapshot], class: ClassId) -> Self {
        let mut answer = LatencyAnswer::default();
        for shown in snapshots.iter().filter_map(|s| s.classes.get(usize::from(class.0))) {
            let shown = shown.shown;
            let micros = shown.latency_p999.as_secs_f64() * 1e6;
            answer.latency_us_p999 = answer.latency_us_p999.max(micros);
            answer.windows += shown.windows;
            answer.windows_missed += shown.windows_missed;
            answer.requests_late += shown.requests_late;
        }
        answer
    }
}

/// What clients of one rank ask of a shard now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RankAnswer {
    /// The rank, as in the classes' settings.
    pub rank: u16,
    /// Clients whose requests wait for their turn.
    pub clients_waiting: u64,
    /// Bytes of requests in the shard's hands.
    pub inflight_bytes: u64,
}

/// A device that ranks below the best have used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceAnswer {
    /// Its path.
    pub path: String,
    /// Operations that lower ranks may have outstanding.
    pub budget_ios: u64,
    /// Bytes that lower ranks may have outstanding.
    pub budget_bytes: u64,
    /// Operations of lower ranks outstanding.
    pub outstanding_ios: u64,
    /// Bytes of lower ranks outstanding.
    pub outstanding_bytes: u64,
    /// Operations held back, background work included.
    pub waiting_ios: u64,
    /// Bytes held back.
    pub waiting_bytes: u64,
    /// Of these operations, destaging, read-ahead, cleaning and promotion.
    pub waiting_background_ios: u64,
}

/// A level's device that has failed to do something, and has not done its like since.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FailedLevelAnswer {
    /// The shard whose part of the level it is.
    pub shard: usize,
    /// The level.
    pub level: String,
    /// The device's or file's path.
    pub path: String,
    /// `flush`, `write` or `read`.
    pub operation: String,
    /// First byte of the first operation that failed; 0 for a flush.
    pub offset: u64,
    /// Bytes of it; 0 for a flush.
    pub length: u64,
    /// The system's error.
    pub error: String,
    /// The operation and its error as a sentence.
    pub cause: String,
    /// What that means for the data, and what to do.
    pub state: String,
    /// Seconds since then.
    pub seconds: f64,
}

/// A device or backing store that does not answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StuckAnswer {
    /// The shard that waits for it.
    pub shard: usize,
    /// The level, where it is a level's device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The volume, where it is a volume's backing store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Seconds since its oldest operation began.
    pub seconds: f64,
}

pub(super) fn ranks(snapshot: &Snapshot) -> Vec<RankAnswer> {
    let ranks = snapshot.ranks.iter().map(|stats| RankAnswer {
        rank: stats.rank.0,
        clients_waiting: stats.clients_waiting,
        inflight_bytes: stats.bytes_inflight,
    });
    ranks.collect()
}

pub(super) fn devices(snapshot: &Snapshot) -> Vec<DeviceAnswer> {
    let answer = |device: &layby_engine::io::DeviceLoad| {
        let mut answer = DeviceAnswer {
            path: device.name.clone(),
            budget_ios: u64::from(device.budget.ios),
            budget_bytes: device.budget.bytes,
            outstanding_ios: u64::from(device.outstanding.ios),
            outstanding_bytes: device.outstanding.bytes,
            ..DeviceAnswer::default()
        };
        for (rank, load) in &device.waiting {
            answer.waiting_ios += u64::from(load.ios);
            answer.waiting_bytes += load.bytes;
            if *rank == Rank::BACKGROUND {
                answer.waiting_background_ios += u64::from(load.ios);
            }
        }
        answer
    };
    snapshot.devices.iter().map(answer).collect()
}

/// Levels whose device fails, by shard.
pub(super) fn failed(view: &View, snapshots: &[Snapshot]) -> Vec<FailedLevelAnswer> {
    let shards = snapshots.iter().enumerate();
    let all =
        shards.flat_map(|(shard, snapshot)| snapshot.failed.iter().map(move |of| (shard, of)));
    let answer = |(shard, failed): (usize, &FailedLevel)| FailedLevelAnswer {
        shard,
        level: view.layout.levels[failed.level].name.to_string(),
        path: failed.disk.clone(),
        operation: operation_of(failed).to_owned(),
        offset: failed.failure.offset,
        length: failed.failure.length,
        error: failed.failure.error.to_string(),
        cause: failed.to_string(),
        state: remedy_of(failed).to_owned(),
        seconds: failed.seconds,
    };
    all.map(answer).collect()
}

/// Why blocks are not written back: the backing store's error, or the level that keeps them.
pub(super) fn fault_text(view: &View, fault: DestageFault) -> String {
    match fault.level {
        None => fault.kind.to_string(),
        Some(level) => {
            let name = &view.layout.levels[usize::from(level.0)].name;
            format!("level `{name}` cannot make them durable")
        }
    }
}

/// What does not answer, by shard.
pub(super) fn stuck(view: &View, snapshots: &[Snapshot]) -> Vec<StuckAnswer> {
    let shards = snapshots.iter().enumerate();
    let places =
        shards.flat_map(|(shard, snapshot)| snapshot.stuck.iter().map(move |place| (shard, place)));
    let level = |index: usize| view.layout.levels[index].name.to_string();
    let volume = |id: VolumeId| view.name_of(id.0).map(ToString::to_string);
    let answer = |(shard, place): (usize, &StuckPlace)| StuckAnswer {
        shard,
        level: place.level.map(level),
        volume: place.volume.and_then(volume),
        seconds: place.seconds,
    };
    places.map(answer).collect()
}
