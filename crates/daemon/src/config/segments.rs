//! How a level's log uses its flash, as it is written: its segments, discards of free ones, and
//! what the device hears of how long writes live.
//!
//! How: `segment` is fixed for the level's life; the others are read at every start.
//! Invariant: what is handed out lies within the engine's and the policy's bounds, and is said of a
//! level of kind ssd only. Cost: read once per start.

use super::checks::{Place, Problem};
use super::discard::discard_limits;
use super::{Bandwidth, DiscardChoice, DiscardWait, Kind, Size};
use crate::plan::PART_ALIGNMENT;
use layby_cache::cleaning::Limits;
use layby_cache::discards::DiscardLimits;
use layby_engine::store::SegmentPlan;
use serde::Deserialize;

/// How a level's log uses its flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentConfig {
    /// Bytes of a segment; `None` leaves it to the device and the level's size.
    pub bytes: Option<u64>,
    /// Whether and when free segments are discarded; `None`: delayed on a device, off in a file.
    pub discard: Option<DiscardChoice>,
    /// How long delayed ones wait.
    pub discard_delay: DiscardWait,
    /// Bytes per second that are discarded at most; 0 for no limit.
    pub discard_bandwidth: u64,
    /// Whether the device hears how long what is written is likely to live.
    pub hints: HintChoice,
    /// How much of the level cleaning may drop or destage instead of copying it.
    pub cleaning: Limits,
}

/// Whether a level's device hears how long what is written is likely to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HintChoice {
    /// As the kernel and the device take it: by write streams, else by the kernel's hints.
    #[default]
    Auto,
    /// It does not.
    Off,
}

impl SegmentConfig {
    /// In the words of the engine, for one of `shards` parts, on a block device or in a file.
    #[must_use]
    pub fn plan(&self, is_device: bool, shards: u32) -> SegmentPlan {
        let by_place = if is_device { DiscardChoice::Delayed } else { DiscardChoice::Off };
        let limits = discard_limits(self.discard.unwrap_or(by_place), self.discard_delay, None);
        let least = DiscardLimits::BYTES_PER_SECOND_MIN;
        let bytes_per_second_max = match self.discard_bandwidth {
            0 => 0,
            whole => (whole / u64::from(shards)).max(least),
        };
        let discard = DiscardLimits { bytes_per_second_max, ..limits };
        let hints = self.hints == HintChoice::Auto;
        SegmentPlan {
            bytes: self.bytes.unwrap_or(0),
            discard,
            hints,
            has_all_streams: None,
            cleaning: self.cleaning,
        }
    }
}

/// The keys of a level's table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentKeys {
    pub(super) segment: Option<Size>,
    pub(super) discard: Option<DiscardChoice>,
    pub(super) discard_delay: Option<DiscardWait>,
    pub(super) discard_bandwidth: Option<Bandwidth>,
    pub(super) hints: Option<HintChoice>,
    pub(super) cold_percent: Option<u8>,
    pub(super) free_percent: Option<u8>,
}

impl SegmentKeys {
    fn cleaning_limits(&self, index: usize) -> Result<Limits, Problem> {
        let read = |key, written: Option<u8>, default, most| match written {
            Some(percent) if percent > most => {
                let cause = format!("{percent} is more than {most}");
                let hint = format!("write a number of percent from 0 to {most}, or leave it out");
                Err(Problem::new(Place::Level(index), key, cause, hint))
            }
            written => Ok(written.unwrap_or(default)),
        };
        let (plain, most) = (Limits::DEFAULT, Limits::MAX);
        Ok(Limits {
            cold_percent: read(
                "cold_percent",
                self.cold_percent,
                plain.cold_percent,
                most.cold_percent,
            )?,
            free_percent: read(
                "free_percent",
                self.free_percent,
                plain.free_percent,
                most.free_percent,
            )?,
        })
    }

    /// What they say of level number `index`.
    pub(super) fn read(self, index: usize, kind: Kind) -> Result<SegmentConfig, Problem> {
        let place = Place::Level(index);
        let refused = |key, cause: String, hint: &str| {
            Err(Problem::new(Place::Level(index), key, cause, hint.to_owned()))
        };
        let written = [
            ("segment", self.segment.is_some()),
            ("discard", self.discard.is_some()),
            ("discard_delay", self.discard_delay.is_some()),
            ("discard_bandwidth", self.discard_bandwidth.is_some()),
            ("hints", self.hints.is_some()),
            ("cold_percent", self.cold_percent.is_some()),
            ("free_percent", self.free_percent.is_some()),
        ];
        if let Some((key, _)) =
            written.iter().find(|(_, is_written)| *is_written && kind != Kind::Ssd)
        {
            let cause = format!("a level of kind {kind:?} is no log on flash");
            return refused(*key, cause, "leave it out, or give it to the level of kind ssd");
        }
        let (least, most) = (SegmentPlan::BYTES_MIN, SegmentPlan::BYTES_MAX);
        if let Some(Size(bytes)) = self.segment
            && !((least..=most).contains(&bytes) && bytes.is_multiple_of(PART_ALIGNMENT))
        {
            let cause = format!(
                "{} is not a multiple of {} from {} to {}",
                Size(bytes),
                Size(PART_ALIGNMENT),
                Size(least),
                Size(most)
            );
            return refused("segment", cause, "write a size such as 4MiB, or leave it out");
        }
        let delay = self.discard_delay.unwrap_or_default();
        delay.check(&place)?;
        super::discard::check_bandwidth(self.discard_bandwidth, &place)?;
        Ok(SegmentConfig {
            bytes: self.segment.map(|size| size.0),
            discard: self.discard,
            discard_delay: delay,
            discard_bandwidth: self.discard_bandwidth.map_or(0, |size| size.0),
            hints: self.hints.unwrap_or_default(),
            cleaning: self.cleaning_limits(index)?,
        })
    }
}
