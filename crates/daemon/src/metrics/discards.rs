//! Metrics of discards on their way to the homes.
//!
//! How: a table of names and of what they show; the volumes' own family writes them.
//! Invariant: in bytes, received is the sum of what became of them.
//! Cost: twelve samples a volume, and one per cause.

use layby_cache::discards::DiscardCause;
use layby_engine::control::VolumeStats;

/// A name, its help, and the number.
pub(super) type Metric = (&'static str, &'static str, fn(&VolumeStats) -> u64);

/// What only grows.
pub(super) const COUNTERS: [Metric; 10] = [
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
