//! Which volumes are this node's, so that none of them is served under two records.
//!
//! How: each record is noted when its home is prepared, served or not, with the identity that its
//! map file has; what is about to be opened claims its own. A place may be spelt in many ways, and
//! be copied; the identity in its superblock is one. A record is known by its local number, which
//! stays when it gets another number.
//! Invariant: no two records have one identity. Cost: the first page of a map file per start.

use crate::catalog::VolumeRecord;
use crate::config::Name;
use layby_cloud::{VolumeUuid, open_regular, volume_of};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The identity is the first thing in a map file.
const START_BYTES: u64 = 4096;

/// See the file's header.
#[derive(Default)]
pub(super) struct Identities(Mutex<BTreeMap<u32, Known>>);

struct Known {
    name: String,
    volume: Option<VolumeUuid>,
}

impl Identities {
    fn known(&self) -> MutexGuard<'_, BTreeMap<u32, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is such a record, whatever becomes of it.
    pub(super) fn note(&self, name: &Name, record: &VolumeRecord, map: &Path) {
        let volume = identity_in(map);
        self.known().insert(record.local_number(), Known { name: name.to_string(), volume });
    }

    /// A record's volume is about to be opened.
    ///
    /// # Errors
    /// The name of the record that has it already.
    pub(super) fn claim(&self, record: &VolumeRecord, volume: VolumeUuid) -> Result<(), String> {
        let mut known = self.known();
        let own = record.local_number();
        let mut others = known.iter().filter(|(number, _)| **number != own);
        if let Some((_, other)) = others.find(|(_, other)| other.volume == Some(volume)) {
            return Err(other.name.clone());
        }
        if let Some(own) = known.get_mut(&own) {
            own.volume = Some(volume);
        }
        Ok(())
    }

    /// The record is gone.
    pub(super) fn forget(&self, record: &VolumeRecord) {
        self.known().remove(&record.local_number());
    }
}

fn identity_in(map: &Path) -> Option<VolumeUuid> {
    let mut start = Vec::new();
    open_regular(map).ok()?.take(START_BYTES).read_to_end(&mut start).ok()?;
    volume_of(&start)
}
