//! Volumes in object stores that were deleted, as the catalog keeps them.
//!
//! How: what such a volume was, what it is in its store, and the sessions that this node served it
//! in, from the map file, which may go long before the volume's objects do.
//! Invariant: sessions that were known stay known.
//! Cost: some hundred bytes of the catalog each. Not for: when their objects go; see `control`.

use super::VolumeRecord;
use crate::config::Name;
use serde::{Deserialize, Serialize};

/// What the node's files say of a volume in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// What it is in its store, in hexadecimal.
    pub volume: String,
    /// Sessions that this node's directory served it in, newest first.
    pub sessions: Vec<u64>,
}

/// A volume that was deleted and whose objects are still in their store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeletedRecord {
    /// Its name; another volume may have it by now.
    pub name: Name,
    /// What it is in its store, in hexadecimal, so that no other volume at its place is taken for
    /// it; none where the node never knew.
    pub volume: Option<String>,
    /// Sessions that this node's directory served it in, newest first: what another copy of the
    /// directory has served since is not this one's to remove. Left out where none is known, as in
    /// catalogs from before they were written down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<u64>,
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
    /// A volume that is deleted now, where `identity` is known of it.
    #[must_use]
    pub fn new(
        name: Name,
        identity: Option<StoreIdentity>,
        grace_seconds: u64,
        record: VolumeRecord,
    ) -> DeletedRecord {
        let at_unix = u64::try_from(chrono::Utc::now().timestamp()).unwrap_or(0);
        let (volume, sessions, waited_seconds) = (None, Vec::new(), 0);
        let mut deleted = DeletedRecord {
            name,
            volume,
            sessions,
            at_unix,
            grace_seconds,
            waited_seconds,
            record,
        };
        deleted.learn(identity);
        deleted
    }

    /// Adds what else is known of it by now: it may have been served again for a moment.
    pub fn learn(&mut self, identity: Option<StoreIdentity>) {
        let Some(StoreIdentity { volume, sessions: newer }) = identity else { return };
        self.volume.get_or_insert(volume);
        let older = std::mem::replace(&mut self.sessions, newer);
        let is_new = |session: &u64| !self.sessions.contains(session);
        let older: Vec<u64> = older.into_iter().filter(is_new).collect();
        self.sessions.extend(older);
    }
}
