//! What became of discards on their way to homes and devices, as the control API answers it.
//!
//! How: the shards' parts are added up. Cost: a few additions per shard and request.

use layby_cache::discards::DiscardCause;
use layby_engine::control::{DiscardStats, LevelStats};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Discards on their way to homes or devices since the node started, in ranges and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiscardAnswer {
    /// Taken in.
    pub received: u64,
    /// Bytes of these.
    pub received_bytes: u64,
    /// Written again before they were sent.
    pub cancelled: u64,
    /// Bytes of these, and of parts.
    pub cancelled_bytes: u64,
    /// Became part of another.
    pub merged: u64,
    /// Bytes that waited already.
    pub merged_bytes: u64,
    /// What homes or devices saw.
    pub sent: u64,
    /// Bytes of these.
    pub sent_bytes: u64,
    /// Of those sent: never waited.
    pub sent_at_once: u64,
    /// Of those sent: the delay had passed.
    pub sent_delay: u64,
    /// Of those sent: a write to the home had to follow.
    pub sent_write: u64,
    /// Of those sent: a checkpoint of the log would have forgotten the zeros.
    pub sent_checkpoint: u64,
    /// Of those sent: too many waited.
    pub sent_full: u64,
    /// Of those sent: the mode changed, or the volume or the node went.
    pub sent_change: u64,
    /// Ignored, since the mode is off or the device knows no discards.
    pub dropped: u64,
    /// Bytes of these.
    pub dropped_bytes: u64,
    /// Wait now.
    pub pending: u64,
    /// Bytes of these.
    pub pending_bytes: u64,
    /// Of those sent: refused. What a home refuses waits again; a level tells of it again when it
    /// starts.
    #[serde(default)]
    pub refused: u64,
    /// How long delayed ones wait now, in milliseconds; an adaptive delay follows reuse and room.
    #[serde(default)]
    pub delay_ms: u64,
}

impl DiscardAnswer {
    pub(super) fn add(mut self, stats: &DiscardStats) -> Self {
        let all = &stats.counters;
        for (ranges, bytes, count) in [
            (&mut self.received, &mut self.received_bytes, all.received),
            (&mut self.cancelled, &mut self.cancelled_bytes, all.cancelled),
            (&mut self.merged, &mut self.merged_bytes, all.merged),
            (&mut self.sent, &mut self.sent_bytes, all.sent),
            (&mut self.dropped, &mut self.dropped_bytes, all.dropped),
            (&mut self.pending, &mut self.pending_bytes, stats.pending),
        ] {
            *ranges += count.ranges;
            *bytes += count.bytes;
        }
        for (sum, cause) in [
            (&mut self.sent_at_once, DiscardCause::AtOnce),
            (&mut self.sent_delay, DiscardCause::Delay),
            (&mut self.sent_write, DiscardCause::Write),
            (&mut self.sent_checkpoint, DiscardCause::Checkpoint),
            (&mut self.sent_full, DiscardCause::Full),
            (&mut self.sent_change, DiscardCause::Change),
        ] {
            *sum += all.sent_by[cause as usize];
        }
        self.refused += stats.refused;
        self.delay_ms = self.delay_ms.max(stats.delay.0 / 1_000_000);
        self
    }
}

/// The shards' parts of a level together; `None` where they have no log.
pub(crate) fn level_discards(shards: &[&LevelStats]) -> Option<DiscardAnswer> {
    let parts: Vec<&DiscardStats> = shards.iter().filter_map(|l| l.discards.as_ref()).collect();
    let sum = || parts.iter().fold(DiscardAnswer::default(), |sum, part| sum.add(part));
    (!parts.is_empty()).then(sum)
}
