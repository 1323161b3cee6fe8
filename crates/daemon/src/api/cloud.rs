//! How safe a cloud-backed volume is, and how it is encoded, as the control API answers it.
//!
//! How: what the volume's thread said last, at most a quarter of a second ago.
//! Invariant: nothing here waits for the volume. Cost: a copy per request.

use crate::catalog::VolumeRecord;
use crate::config::{CloudConfig, CompressionChoice};
use crate::homes::Homes;
use layby_cloud::{Base, CIPHER, Link, Said, Watch};
use layby_types::{Nanos, VolumeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How safe a cloud-backed volume is. Counters are since the node started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CloudAnswer {
    /// `opening`, `up`, `down`, or `lost` where the volume is not this node's any more.
    pub link: String,
    /// Why it is lost, or what the store said last when something failed.
    pub last_error: Option<String>,
    /// How long ago the store said that; none where it is why the volume is lost.
    pub last_error_seconds: Option<f64>,
    /// Reads answered with an error since what the store has of them is missing or damaged.
    pub damaged: u64,
    /// Why a call was refused last, since the store could not serve it in its class's time.
    pub last_refusal: Option<String>,
    /// Seconds since the store last failed without an answer after it; none while it answers.
    pub down_seconds: Option<f64>,
    /// Everything that was written is in the store.
    pub is_drained: bool,
    /// Bytes of the journal that the store does not have.
    pub dirty_bytes: u64,
    /// Age of the oldest write that the store does not have.
    pub dirty_seconds: f64,
    /// Seconds until the store has all, at the latest, by the forecast of the link; none where
    /// nothing is known of it, or it is silent.
    pub drain_seconds: Option<f64>,
    /// Bytes of the journal: writes wait where so much is not in the store.
    pub journal_bytes: u64,
    /// The last segment that the superblock names.
    pub committed_segment: u64,
    /// Segments in the store.
    pub segments: u64,
    /// Bytes of all segments.
    pub stored_bytes: u64,
    /// Bytes of blocks that hold data.
    pub live_bytes: u64,
    /// Bytes of blocks that the volume needs no more and its snapshots keep.
    pub kept_bytes: u64,
    /// Snapshots; none before the store has said so.
    pub snapshots: Option<u64>,
    /// Bytes of blocks in all segments, without what snapshots keep, over the live ones; none
    /// before there are any.
    pub space_amplification: Option<f64>,
    /// Requests to the store.
    pub requests: u64,
    /// Of these, repetitions after a fault.
    pub requests_repeated: u64,
    /// Of these, second ones for reads that were late.
    pub requests_hedged: u64,
    /// Requests for blocks that reads wait for, counted when they begin, repetitions left out.
    #[serde(default)]
    pub read_requests: u64,
    /// Calls refused since the store could not serve them in their class's time.
    pub refused: u64,
    /// Bytes sent to the store.
    pub bytes_put: u64,
    /// Bytes of blocks that reads brought along beside what they asked for.
    pub bytes_along: u64,
    /// Bytes of blocks that the read cache took from the journal.
    pub bytes_cached: u64,
    /// Bytes that the read cache holds.
    pub cached_bytes: u64,
    /// Why the read cache takes nothing now, if it does not.
    pub read_cache_fault: Option<String>,
    /// Why the journal failed, if it did: the volume takes no writes until the node is started.
    pub journal_fault: Option<String>,
    /// Why changes of the map file wait, if they do: writes go on until the journal is full.
    pub map_fault: Option<String>,
    /// Segments deleted.
    pub segments_deleted: u64,
    /// Bytes of blocks that cleaning moved.
    pub bytes_moved: u64,
    /// Requests by which cleaning read what it moved; they are among all.
    pub cleaning_requests: u64,
    /// Bytes that these asked for.
    pub cleaning_bytes_read: u64,
}

/// How a volume's objects are encoded from now on; what was stored before stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EncodingAnswer {
    /// What encrypts them; none where they are plain.
    pub cipher: Option<String>,
    /// Where its key comes from: `file:PATH`, `env:NAME`, or `command`, whose words are not told.
    pub key: Option<String>,
    /// How chunks are compressed.
    pub compression: CompressionChoice,
    /// The volume says so itself; else the node's configuration does.
    pub is_own_compression: bool,
}

impl EncodingAnswer {
    /// That of a volume whose home is an object store.
    #[must_use]
    pub fn of(record: &VolumeRecord, config: &CloudConfig) -> EncodingAnswer {
        EncodingAnswer {
            cipher: record.key.as_ref().map(|_| CIPHER.to_owned()),
            key: record.key.as_ref().map(ToString::to_string),
            compression: record.compression.unwrap_or(config.compression),
            is_own_compression: record.compression.is_some(),
        }
    }
}

/// What a volume in an object store says of itself; none of others, and before its first turn.
pub(crate) fn cloud_answer(homes: &Homes, record: &VolumeRecord) -> Option<CloudAnswer> {
    let mut answer = CloudAnswer::of(&homes.watch(record)?)?;
    let drain = homes.uplink()?.time_to_drain(VolumeId(record.id));
    answer.drain_seconds = drain.map(Nanos::as_secs_f64);
    Some(answer)
}

/// Where a clone is read besides its own place: for an operator who copies or empties a bucket.
pub(super) fn base_note(bases: &[Base]) -> Option<String> {
    let places: Vec<String> =
        bases.iter().map(|base| format!("`{}@{}`", base.url, base.snapshot)).collect();
    (!places.is_empty()).then(|| {
        let places = places.join(", ");
        format!("it is a clone and needs the objects that it shares with {places}, there")
    })
}

impl CloudAnswer {
    /// Whether the volume takes no writes: another node or an older copy has it, or its journal
    /// failed.
    #[must_use]
    pub fn is_not_served(&self) -> bool {
        self.link == "lost" || self.journal_fault.is_some()
    }

    /// What a volume says of itself; `None` before its first turn.
    #[must_use]
    pub fn of(watch: &Watch) -> Option<CloudAnswer> {
        watch.said().map(Self::from_said)
    }

    fn from_said(said: Said) -> CloudAnswer {
        let Said { status, is_drained, snapshots, .. } = said;
        let (link, why, down_seconds) = match status.link {
            Link::Opening => ("opening", None, None),
            Link::Up => ("up", None, None),
            Link::Down { for_time } => ("down", None, Some(for_time.as_secs_f64())),
            Link::Lost(why) => ("lost", Some(why), None),
        };
        let counters = status.counters;
        let live = status.live_bytes;
        let (fault, fault_age) = status.last_fault.unzip();
        let fault_age = fault_age.filter(|_| why.is_none()).map(Nanos::as_secs_f64);
        CloudAnswer {
            link: link.to_owned(),
            last_error: why.or(fault),
            last_error_seconds: fault_age,
            damaged: counters.damaged,
            last_refusal: status.last_refusal,
            down_seconds,
            is_drained,
            dirty_bytes: status.dirty_bytes,
            dirty_seconds: status.dirty_age.as_secs_f64(),
            drain_seconds: None,
            journal_bytes: status.journal_bytes,
            committed_segment: status.committed,
            segments: status.segments,
            stored_bytes: status.stored_bytes,
            live_bytes: live,
            kept_bytes: status.kept_bytes,
            snapshots: snapshots.map(|snapshots| snapshots.len() as u64),
            space_amplification: (live > 0)
                .then(|| (status.segment_blocks_bytes - status.kept_bytes) as f64 / live as f64),
            requests: counters.requests,
            requests_repeated: counters.repeated,
            requests_hedged: counters.hedged,
            read_requests: counters.reads,
            refused: counters.refused,
            bytes_put: counters.bytes_put,
            bytes_along: counters.bytes_along,
            bytes_cached: counters.bytes_cached,
            cached_bytes: status.cached_bytes,
            read_cache_fault: status.read_cache_fault,
            journal_fault: status.journal_fault,
            map_fault: status.map_fault,
            segments_deleted: counters.segments_deleted,
            bytes_moved: counters.bytes_moved,
            cleaning_requests: counters.clean_reads,
            cleaning_bytes_read: counters.clean_bytes_read,
        }
    }
}
