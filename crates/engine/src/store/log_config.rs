//! What a log is told when it is made or opened.
//!
//! How: plain data; the owner fills it in. Invariant: none; bounds are checked where it is used.
//! Cost: copied once per start.

use super::log_geometry::LogGeometry;
use super::{Region, StoreIdentity};
use layby_cache::cleaning::Limits;
use layby_cache::discards::{DiscardLimits, DiscardMode};
use layby_types::{BlockSize, Nanos};

/// The segments of a log, and how its device hears of those that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPlan {
    /// Bytes of a segment, a multiple of the block size. 0 picks by the region's size where the
    /// log is made, and takes what is there afterwards.
    pub bytes: u64,
    /// Whether and when freed segments are discarded.
    pub discard: DiscardLimits,
    /// Whether the device may hear how long what is written is likely to live.
    pub hints: bool,
    /// Whether short-lived writes and old copies have streams of their own, decided where the log
    /// is made. `None` decides by the number of segments.
    pub has_all_streams: Option<bool>,
    /// What its owner may drop or destage when it is cleaned.
    pub cleaning: Limits,
}

impl SegmentPlan {
    /// The shortest that may be asked for: eight of the largest blocks.
    pub const BYTES_MIN: u64 = 512 << 10;
    /// The longest: cleaning and tests hold a whole segment in memory.
    pub const BYTES_MAX: u64 = 64 << 20;
    /// Where none is asked for and the region has room for 64 of them.
    pub const BYTES_DEFAULT: u64 = super::log_geometry::SEGMENT_BYTES_DEFAULT;
}

impl Default for SegmentPlan {
    fn default() -> Self {
        let discard = DiscardLimits { mode: DiscardMode::Off, ..DiscardLimits::DEFAULT };
        SegmentPlan {
            bytes: 0,
            discard,
            hints: false,
            has_all_streams: None,
            cleaning: Limits::DEFAULT,
        }
    }
}

/// Settings of a log.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Where.
    pub region: Region,
    /// Whose.
    pub identity: StoreIdentity,
    /// Its segments.
    pub segments: SegmentPlan,
    /// Appended bytes that call for a checkpoint; 0 picks 1/16 of the region, at least 64 segments
    /// of 1 MiB or less.
    pub checkpoint_bytes: u64,
    /// How long a forget may wait for company.
    pub forget_idle: Nanos,
    /// Do not open where a structure is damaged beyond help. Else it opens, and says which blocks
    /// are not known for certain.
    pub is_strict: bool,
    /// The top byte of every token, by which the shard routes.
    pub token_tag: u8,
}

impl LogConfig {
    /// The default of `forget_idle`.
    pub const FORGET_IDLE_DEFAULT: Nanos = Nanos::from_millis(5);

    /// Default settings for a region.
    #[must_use]
    pub fn new(region: Region, identity: StoreIdentity, token_tag: u8) -> Self {
        LogConfig {
            region,
            identity,
            segments: SegmentPlan::default(),
            checkpoint_bytes: 0,
            forget_idle: Self::FORGET_IDLE_DEFAULT,
            is_strict: false,
            token_tag,
        }
    }
}

/// Slots that a log in a region of `length` bytes offers; 0 when it is too small.
#[must_use]
pub fn slots_for(length: u64, block_size: BlockSize, segments: &SegmentPlan) -> u32 {
    LogGeometry::plan(length, block_size, segments).map_or(0, |plan| plan.slot_count)
}
