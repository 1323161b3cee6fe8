//! How a flash level wears, as the control API answers it.
//!
//! How: the shards' parts are added up; days left follow from the rates, and from what the device
//! says of itself, where it does: the sooner end counts. Of hints, the first shard says which way
//! they go, since all have one device.
//! Cost: a few additions per shard and request.

use crate::health::DeviceHealth;
use layby_engine::control::{LevelStats, WearStats};
use layby_engine::core::days_left;
use layby_engine::io::{HintState, WriteHints};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a level's flash wears. Bytes by cause are since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WearAnswer {
    /// Bytes of blocks that clients wrote or that came from a level above.
    pub bytes_written: u64,
    /// Bytes of clean copies of what was read.
    pub bytes_promoted: u64,
    /// Bytes of blocks that the log's cleaner copied.
    pub bytes_cleaned: u64,
    /// Bytes of the log's headers, descriptors and forgets.
    pub bytes_descriptors: u64,
    /// Bytes of the log's checkpoints.
    pub bytes_checkpoints: u64,
    /// All of these over the first two, which is what was asked for; none before anything was.
    pub write_amplification: Option<f64>,
    /// All bytes ever written to the level, in earlier lives of the node, too.
    pub bytes_lifetime: u64,
    /// Bytes that it can be written in its life; none where nobody said.
    pub endurance_bytes: Option<u64>,
    /// Bytes that a day may take of them.
    pub daily_budget_bytes: Option<u64>,
    /// Bytes that may be written now; negative when more was than the budget allows.
    pub budget_left_bytes: Option<i64>,
    /// Bytes per day, averaged over the last hour; none before a minute has passed.
    pub daily_bytes_hour: Option<f64>,
    /// The same over the last day; none before half an hour has passed.
    pub daily_bytes_day: Option<f64>,
    /// The same over the last week; none before three hours have passed.
    pub daily_bytes_week: Option<f64>,
    /// Days until the endurance is used up at the rate of the longest span that is known: that of
    /// the configuration or, where it ends sooner, that of the device.
    pub days_left: Option<f64>,
    /// The same by what the device says of itself alone.
    #[serde(default)]
    pub days_left_by_device: Option<f64>,
    /// Blocks read that were not kept in the level, to spare it.
    pub copies_refused: u64,
    /// Dirty blocks that went home instead.
    pub dirty_passed_by: u64,
}

impl WearAnswer {
    /// Of the shards' parts of a level; `None` where they are no flash.
    #[must_use]
    pub fn of(shards: &[&LevelStats], device: Option<&DeviceHealth>) -> Option<WearAnswer> {
        let parts: Vec<&WearStats> = shards.iter().filter_map(|l| l.wear.as_ref()).collect();
        if parts.is_empty() {
            return None;
        }
        let sum = |of: fn(&WearStats) -> u64| parts.iter().map(|part| of(part)).sum::<u64>();
        let known = |of: fn(&WearStats) -> Option<u64>| {
            parts.iter().map(|part| of(part)).sum::<Option<u64>>()
        };
        let rate = |index: usize| parts.iter().map(|p| p.daily_rates[index]).sum::<Option<f64>>();
        let asked = sum(|p| p.bytes_written + p.bytes_promoted);
        let added = sum(|p| p.bytes_cleaned + p.bytes_descriptors + p.bytes_checkpoints);
        let endurance = known(|p| p.endurance_bytes);
        let bytes_lifetime = sum(|p| p.bytes_lifetime);
        let longest = rate(2).or(rate(1)).or(rate(0));
        let left = endurance.map(|bytes| bytes.saturating_sub(bytes_lifetime));
        let days =
            |left: Option<u64>| left.zip(longest).and_then(|(left, rate)| days_left(left, rate));
        let (by_configuration, by_device) =
            (days(left), days(device.and_then(DeviceHealth::bytes_left)));
        let sooner = by_configuration.into_iter().chain(by_device).reduce(f64::min);
        Some(WearAnswer {
            bytes_written: sum(|p| p.bytes_written),
            bytes_promoted: sum(|p| p.bytes_promoted),
            bytes_cleaned: sum(|p| p.bytes_cleaned),
            bytes_descriptors: sum(|p| p.bytes_descriptors),
            bytes_checkpoints: sum(|p| p.bytes_checkpoints),
            write_amplification: (asked > 0).then(|| (asked + added) as f64 / asked as f64),
            bytes_lifetime,
            endurance_bytes: endurance,
            daily_budget_bytes: known(|p| p.daily_budget_bytes),
            budget_left_bytes: parts.iter().map(|part| part.budget_left_bytes).sum(),
            daily_bytes_hour: rate(0),
            daily_bytes_day: rate(1),
            daily_bytes_week: rate(2),
            days_left: sooner,
            days_left_by_device: by_device,
            copies_refused: sum(|p| p.copies_refused),
            dirty_passed_by: sum(|p| p.dirty_passed_by),
        })
    }
}

/// How a level's device hears of the lives of what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum HintWay {
    /// Not at all.
    #[default]
    None,
    /// By the kernel's write-life hints.
    Lives,
    /// By write streams.
    Streams,
}

/// What a level's device has heard of how long what is written is likely to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HintAnswer {
    /// In which way it hears.
    pub way: HintWay,
    /// Write streams in use.
    pub streams: u8,
    /// Writes with a hint or a stream, since the node started.
    pub writes: u64,
    /// System calls that set another hint.
    pub changes: u64,
    /// The kernel or the device has refused what it seemed to offer.
    pub is_refused: bool,
}

impl HintAnswer {
    /// Of the shards' parts of a level; `None` where they have no log.
    #[must_use]
    pub fn of(shards: &[&LevelStats]) -> Option<HintAnswer> {
        let parts: Vec<HintState> = shards.iter().filter_map(|level| level.hints).collect();
        let (way, streams) = match parts.first()?.way {
            WriteHints::None => (HintWay::None, 0),
            WriteHints::Lives => (HintWay::Lives, 0),
            WriteHints::Streams(count) => (HintWay::Streams, count),
        };
        Some(HintAnswer {
            way,
            streams,
            writes: parts.iter().map(|part| part.writes).sum(),
            changes: parts.iter().map(|part| part.changes).sum(),
            is_refused: parts.iter().any(|part| part.refusal.is_some()),
        })
    }
}

/// What the device under a level says of itself; what it does not say is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthAnswer {
    /// The disk, such as `/dev/nvme0n1`.
    pub device: String,
    /// Who was asked: `smartctl` or `nvme`.
    pub tool: String,
    /// How much of its endurance is used, by its maker's reckoning (%); may exceed 100.
    pub percentage_used: Option<u32>,
    /// Spare blocks left, of those that it had (%).
    pub spare_percent: Option<u32>,
    /// Bytes that hosts have written to it in its life.
    pub bytes_written: Option<u64>,
    /// Its temperature in °C.
    pub celsius: Option<i64>,
    /// It warns of a failure to come, or has failed its own test.
    pub is_failing: bool,
}

impl From<&DeviceHealth> for HealthAnswer {
    fn from(health: &DeviceHealth) -> Self {
        let DeviceHealth { percentage_used, spare_percent, bytes_written, .. } = *health;
        HealthAnswer {
            device: health.device.clone(),
            tool: health.tool.to_owned(),
            percentage_used,
            spare_percent,
            bytes_written,
            celsius: health.celsius,
            is_failing: health.is_failing,
        }
    }
}
