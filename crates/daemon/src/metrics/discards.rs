//! Metrics of discards on their way to the homes, and of levels' free segments to their devices.
//!
//! How: a table of names and of what they show; the volumes' own family writes them. A level's
//! are few families with a label.
//! Invariant: in bytes, received is the sum of what became of them.
//! Cost: thirteen samples a volume, and one per cause; ten a level.

use super::{Scrape, count, family, gauge};
use crate::api::{DiscardAnswer, level_discards};
use layby_cache::discards::DiscardCause;
use layby_engine::control::{LevelStats, VolumeStats};
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

/// A name, its help, and the number.
pub(super) type Metric = (&'static str, &'static str, fn(&VolumeStats) -> u64);

/// What only grows.
pub(super) const COUNTERS: [Metric; 11] = [
    ("layby_volume_discards_received", "Ranges discarded by clients", |v| {
        v.discards.counters.received.ranges
    }),
    ("layby_volume_discards_received_bytes", "Bytes of ranges discarded by clients", |v| {
        v.discards.counters.received.bytes
    }),
    ("layby_volume_discards_cancelled", "Ranges written again before they were sent", |v| {
        v.discards.counters.cancelled.ranges
    }),
    ("layby_volume_discards_cancelled_bytes", "Bytes written again before they were sent", |v| {
        v.discards.counters.cancelled.bytes
    }),
    ("layby_volume_discards_merged", "Ranges that became part of another", |v| {
        v.discards.counters.merged.ranges
    }),
    ("layby_volume_discards_merged_bytes", "Bytes discarded again while they waited", |v| {
        v.discards.counters.merged.bytes
    }),
    ("layby_volume_discards_sent", "Ranges that the home was told of", |v| {
        v.discards.counters.sent.ranges
    }),
    ("layby_volume_discards_sent_bytes", "Bytes that the home was told of", |v| {
        v.discards.counters.sent.bytes
    }),
    ("layby_volume_discards_dropped", "Ranges ignored with mode off", |v| {
        v.discards.counters.dropped.ranges
    }),
    ("layby_volume_discards_dropped_bytes", "Bytes ignored with mode off", |v| {
        v.discards.counters.dropped.bytes
    }),
    ("layby_volume_discards_refused", "Ranges sent that the home refused", |v| v.discards.refused),
];

/// What had ranges sent, as the label `cause` says it.
pub(super) const CAUSES: [(&str, DiscardCause); 6] = [
    ("at_once", DiscardCause::AtOnce),
    ("delay", DiscardCause::Delay),
    ("write", DiscardCause::Write),
    ("checkpoint", DiscardCause::Checkpoint),
    ("full", DiscardCause::Full),
    ("change", DiscardCause::Change),
];

/// What is now.
pub(super) const GAUGES: [Metric; 2] = [
    ("layby_volume_discards_pending", "Ranges that wait", |v| v.discards.pending.ranges),
    ("layby_volume_discards_pending_bytes", "Bytes that wait", |v| v.discards.pending.bytes),
];

impl Scrape {
    /// Free segments on their way to the devices.
    pub(super) fn encode_level_discards(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let answers: Vec<(&str, DiscardAnswer)> = self
            .level_names()
            .filter_map(|(index, name)| {
                let shards: Vec<&LevelStats> =
                    self.snapshots.iter().filter_map(|s| s.levels.get(index)).collect();
                Some((name, level_discards(&shards)?))
            })
            .collect();
        let labels =
            |name: &str, what: &str| vec![("level", name.to_owned()), ("what", what.to_owned())];
        let ranges = answers.iter().flat_map(|(name, all)| {
            let each = [
                ("received", all.received),
                ("cancelled", all.cancelled),
                ("merged", all.merged),
                ("sent", all.sent),
                ("dropped", all.dropped),
                ("refused", all.refused),
            ];
            each.map(|(what, ranges)| count(labels(name, what), ranges))
        });
        family("layby_level_discards", "Ranges of free segments, by what became of them")
            .write(encoder, ranges.collect())?;
        let bytes = answers.iter().flat_map(|(name, all)| {
            let each = [
                ("received", all.received_bytes),
                ("cancelled", all.cancelled_bytes),
                ("sent", all.sent_bytes),
                ("dropped", all.dropped_bytes),
            ];
            each.map(|(what, bytes)| count(labels(name, what), bytes))
        });
        family("layby_level_discards_bytes", "Bytes of free segments, by what became of them")
            .write(encoder, bytes.collect())?;
        let pending = answers.iter().map(|(name, all)| {
            gauge(vec![("level", (*name).to_owned())], all.pending_bytes as f64)
        });
        family("layby_level_discards_pending_bytes", "Bytes of free segments that wait")
            .write(encoder, pending.collect())
    }
}
