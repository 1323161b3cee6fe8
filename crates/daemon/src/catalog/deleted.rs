//! Volumes in object stores that were deleted, as the catalog keeps them.
//!
//! How: what such a volume was, and what it is in its store.
//! Invariant: what is known of it stays known.
//! Cost: some hundred bytes of the catalog each. Not for: when their objects go; see `control`.

use super::VolumeRecord;
use crate::config::Name;
use serde::{Deserialize, Serialize};

/// A volume that was deleted and whose objects are still in their store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeletedRecord {
    /// Its name; another volume may have it by now.
    pub name: Name,
    /// What it is in its store, in hexadecimal, so that no other volume at its place is taken for
    /// it; none where the node never knew.
    pub volume: Option<String>,
    /// When it was deleted, in seconds since 1970, by this node's clock; for people.
    pub at_unix: u64,
    /// Seconds of this node's life that its objects stay.
    pub grace_seconds: u64,
    /// How many of them have passed.
    pub waited_seconds: u64,
    /// What it was.
    pub record: VolumeRecord,
}

impl DeletedRecord {
    /// A volume that is deleted now; `volume` is what it is in its store.
    #[must_use]
    pub fn new(
        name: Name,
        volume: Option<String>,
        grace_seconds: u64,
        record: VolumeRecord,
    ) -> DeletedRecord {
        let at_unix = u64::try_from(chrono::Utc::now().timestamp()).unwrap_or(0);
        DeletedRecord { name, volume, at_unix, grace_seconds, waited_seconds: 0, record }
    }
}
