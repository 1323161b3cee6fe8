//! `[cloud]`: how volumes whose home is an object store are kept.
//!
//! How: values of the file over defaults; a value out of its range is a [`Problem`] with its line.
//! Invariant: what exists can be handed to [`layby_cloud`] as it is.
//! Cost: read once per start.

use super::checks::{Place, Problem};
use super::{Name, Size, Time};
use layby_cloud::{Compression, JOURNAL_BYTES_DEFAULT, JOURNAL_BYTES_MIN, Limits};
use layby_types::Nanos;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where journals and maps lie when nothing is said, within the node's directory.
pub(crate) const LOCAL_DIR: &str = "cloud";
/// A write is uploaded after this time at the latest, at least.
pub(super) const DIRTY_AGE_MIN: Nanos = Nanos::from_millis(100);
/// The same, at most.
pub(super) const DIRTY_AGE_MAX: Nanos = Nanos::from_secs(3600);
/// Bytes of a segment object at least.
const OBJECT_BYTES_MIN: u64 = 256 << 10;
/// Bytes of a segment object at most.
const OBJECT_BYTES_MAX: u64 = 64 << 20;

/// A deleted volume can come back for so long when nothing is said: long enough for a weekend and
/// for who notices on Monday, and a small part of what a month in the store costs.
const GRACE_DEFAULT: Nanos = Nanos::from_secs(7 * 86_400);
/// The same, at most.
const GRACE_MAX: Nanos = Nanos::from_secs(365 * 86_400);

/// How chunks travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CompressionChoice {
    /// As they are.
    #[default]
    None,
    /// Compressed by Zstandard.
    Zstd,
    /// Compressed by LZ4.
    Lz4,
}

/// How chunks of a volume travel from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CompressionChange {
    /// As the node's configuration says.
    Node,
    /// As they are, whatever it says.
    None,
    /// Compressed by Zstandard.
    Zstd,
    /// Compressed by LZ4.
    Lz4,
}

impl CompressionChange {
    /// What the volume then says itself.
    #[must_use]
    pub fn own(self) -> Option<CompressionChoice> {
        match self {
            CompressionChange::Node => None,
            CompressionChange::None => Some(CompressionChoice::None),
            CompressionChange::Zstd => Some(CompressionChoice::Zstd),
            CompressionChange::Lz4 => Some(CompressionChoice::Lz4),
        }
    }
}

/// What is asked of a store's puts on a condition (`If-None-Match`, `If-Match`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConditionChoice {
    /// A store that ignores conditions is refused: two nodes could serve a volume there.
    #[default]
    Required,
    /// In such a store the superblock is looked at before and after each replacement.
    Optional,
}

/// The table, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudConfig {
    /// Bytes of each volume's journal.
    pub journal_bytes: u64,
    /// Where journals lie: the data that the cloud does not have.
    pub journal_dir: PathBuf,
    /// Where maps lie: what the cloud has, and where.
    pub map_dir: PathBuf,
    /// How chunks travel.
    pub compression: CompressionChoice,
    /// Bounds.
    pub limits: Limits,
    /// Volumes that are taken from the node that serves them.
    pub takeover: Vec<Name>,
    /// How long a deleted volume can come back before its objects go; none where it is zero.
    pub grace: Nanos,
    /// Whether a store that ignores the conditions of puts is refused.
    pub conditional_puts: ConditionChoice,
}

impl CloudConfig {
    /// For the library that packs chunks, of a volume that says this, or nothing, itself.
    #[must_use]
    pub fn compression(&self, own: Option<CompressionChoice>) -> Compression {
        /// Fast, since a link is slower than a core at any level.
        const LEVEL: i32 = 1;
        match own.unwrap_or(self.compression) {
            CompressionChoice::None => Compression::None,
            CompressionChoice::Zstd => Compression::Zstd(LEVEL),
            CompressionChoice::Lz4 => Compression::Lz4,
        }
    }
}

/// The table as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CloudTable {
    journal: Option<Size>,
    journal_dir: Option<PathBuf>,
    map_dir: Option<PathBuf>,
    compression: CompressionChoice,
    dirty_age: Option<Time>,
    object: Option<Size>,
    read_cache: Option<Size>,
    takeover: Vec<Name>,
    grace: Option<Time>,
    conditional_puts: ConditionChoice,
}

impl CloudTable {
    /// The table over the defaults.
    pub(super) fn config(self, dir: &Path) -> Result<CloudConfig, Problem> {
        let place =
            |chosen: Option<PathBuf>| dir.join(chosen.unwrap_or_else(|| PathBuf::from(LOCAL_DIR)));
        let mut limits = Limits::DEFAULT;
        limits.dirty_age_max = self.dirty_age.map_or(limits.dirty_age_max, |time| time.0);
        let cached = self.read_cache.map_or(limits.read_cache_bytes, |Size(bytes)| bytes);
        limits.read_cache_bytes = cached;
        limits.segment_bytes = self.object.map_or(limits.segment_bytes, |Size(bytes)| bytes);
        let config = CloudConfig {
            journal_bytes: self.journal.map_or(JOURNAL_BYTES_DEFAULT, |Size(bytes)| bytes),
            journal_dir: place(self.journal_dir),
            map_dir: place(self.map_dir),
            compression: self.compression,
            limits,
            takeover: self.takeover,
            grace: self.grace.map_or(GRACE_DEFAULT, |Time(grace)| grace),
            conditional_puts: self.conditional_puts,
        };
        check(&config).map(|()| config)
    }
}

fn check(config: &CloudConfig) -> Result<(), Problem> {
    let refused = |key, cause: String, hint: &str| {
        Err(Problem::new(Place::Cloud, key, cause, hint.to_owned()))
    };
    let (journal, age) = (config.journal_bytes, config.limits.dirty_age_max);
    if journal < JOURNAL_BYTES_MIN {
        let cause = format!("{} is less than {}", Size(journal), Size(JOURNAL_BYTES_MIN));
        return refused("journal", cause, "write a size such as 1GiB");
    }
    if !(DIRTY_AGE_MIN..=DIRTY_AGE_MAX).contains(&age) {
        let cause = format!("{age} is outside {DIRTY_AGE_MIN} to {DIRTY_AGE_MAX}");
        return refused("dirty_age", cause, "write a time such as 5s");
    }
    if config.grace > GRACE_MAX {
        let cause = format!("{} is more than {GRACE_MAX}", config.grace);
        return refused("grace", cause, "write a time such as 7d; 0s is none");
    }
    let object = config.limits.segment_bytes;
    if !(OBJECT_BYTES_MIN..=OBJECT_BYTES_MAX).contains(&object) {
        let (least, most) = (Size(OBJECT_BYTES_MIN), Size(OBJECT_BYTES_MAX));
        let cause = format!("{} is outside {least} to {most}", Size(object));
        return refused("object", cause, "write a size such as 8MiB");
    }
    Ok(())
}
