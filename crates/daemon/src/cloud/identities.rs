//! Which volumes are this node's, so that none of them is served under two records.
//!
//! How: each record is noted when its home is prepared, served or not, with the identity that its
//! map file has; what is about to be opened claims its own. A place may be spelt in many ways, and
//! be copied; the identity in its superblock is one. A record is known by its local number, which
//! stays when it gets another number. A file beside the catalog keeps the identity of each record
//! that was opened, so that a journal and a map which were exchanged with another volume's are
//! found without the store.
//! Invariant: no two records have one identity; a record keeps its own. Where the file is missing
//! or damaged, the map files are believed, as in directories of earlier builds.
//! Cost: the first page of a map file and a small file per volume and start.

use crate::catalog::{Catalog, VolumeRecord};
use crate::checked::Checked;
use crate::config::Name;
use crate::replace::replace_within;
use layby_cloud::{VolumeUuid, open_regular, volume_of};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The file within the node's directory, and the same while it is written.
pub(crate) const FILE_NAME: &str = "identities.json";
const STAGED_NAME: &str = "identities.json.new";
const FILE: Checked = Checked {
    format: "layby volume identities",
    version: 1,
    content: "volumes",
    bytes_max: 64 << 20,
};

/// What a damaged file costs.
pub(crate) const COST: &str =
    "journals and maps that were exchanged between volumes would not be noticed";
/// The identity is the first thing in a map file.
const START_BYTES: u64 = 4096;

/// See the file's header.
pub(super) struct Identities {
    dir: PathBuf,
    known: Mutex<BTreeMap<u32, Known>>,
}

struct Known {
    name: String,
    volume: Option<VolumeUuid>,
}

impl Identities {
    /// Those of the node in `dir`.
    pub(super) fn new(dir: PathBuf) -> Self {
        Identities { dir, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u32, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is such a record, whatever becomes of it.
    pub(super) fn note(&self, name: &Name, record: &VolumeRecord, map: &Path) {
        let kept = kept_in(&self.dir).remove(&record.local_number());
        let volume = kept.and_then(|kept| kept.parse().ok()).or_else(|| identity_in(map));
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

    /// A record's volume was opened: it stays this one. May take long.
    pub(super) fn keep(&self, record: &VolumeRecord, volume: VolumeUuid) {
        self.change(|kept| kept.insert(record.local_number(), volume.to_string()));
    }

    /// What the node keeps of a record's volume was removed; false where that could not be written
    /// down. May take long.
    pub(super) fn drop_kept(&self, record: &VolumeRecord) -> bool {
        self.change(|kept| kept.remove(&record.local_number()))
    }

    /// Whether the node has files of a record's volume, as far as was written down.
    pub(super) fn is_kept(&self, record: &VolumeRecord) -> bool {
        is_kept(&self.dir, record)
    }

    /// Changes the file. Where that fails, it says less than it could, or of a volume whose files
    /// are gone: then no map is held against it.
    fn change(&self, change: impl FnOnce(&mut Kept) -> Option<String>) -> bool {
        let _one_at_a_time = self.known();
        let before = kept_in(&self.dir);
        let mut after = before.clone();
        change(&mut after);
        let names = (STAGED_NAME, FILE_NAME);
        if after != before
            && let Err(cause) = replace_within(&self.dir, names, &FILE.bytes(&after))
        {
            let path = self.dir.join(FILE_NAME);
            tracing::warn!(path = %path.display(), %cause, "exchanged files would not be noticed");
            return false;
        }
        true
    }

    /// The record is gone.
    pub(super) fn forget(&self, record: &VolumeRecord) {
        self.known().remove(&record.local_number());
    }
}

/// Identities in hexadecimal, by local number.
type Kept = BTreeMap<u32, String>;

/// Whether the node in `dir` has files of a record's volume, as far as was written down.
pub(super) fn is_kept(dir: &Path, record: &VolumeRecord) -> bool {
    kept_in(dir).contains_key(&record.local_number())
}

fn kept_in(dir: &Path) -> Kept {
    FILE.read_or_warn(&dir.join(FILE_NAME), COST).unwrap_or_default()
}

/// What is wrong with the file of the node in `dir`, if anything.
pub(crate) fn damage(dir: &Path) -> Option<String> {
    FILE.damage::<Kept>(&dir.join(FILE_NAME))
}

/// Why a map file is not the one of a record's volume, as far as the node in `dir` knows. The
/// journal is held against its map where it is opened.
pub(crate) fn exchanged(dir: &Path, record: &VolumeRecord, map: &Path) -> Option<String> {
    Exchanged::find(dir, record, map).map(|exchanged| exchanged.text(None))
}

/// The same, with the name of the volume that the map belongs to where the catalog has it.
pub(crate) fn exchanged_with(
    dir: &Path,
    catalog: &Catalog,
    record: &VolumeRecord,
    map: &Path,
) -> Option<String> {
    let exchanged = Exchanged::find(dir, record, map)?;
    let is_its = |other: &VolumeRecord| Some(other.local_number()) == exchanged.other;
    let served = catalog.volumes.iter();
    let deleted = catalog.deleted.iter().map(|gone| (&gone.name, &gone.record));
    let name = served.chain(deleted).find(|(_, other)| is_its(other)).map(|(name, _)| name);
    Some(exchanged.text(name))
}

/// A map that is not the one of its volume.
struct Exchanged {
    map: PathBuf,
    found: String,
    kept: String,
    /// The local number of the volume that it belongs to, if that is one of this node's.
    other: Option<u32>,
}

impl Exchanged {
    fn find(dir: &Path, record: &VolumeRecord, map: &Path) -> Option<Exchanged> {
        let mut all = kept_in(dir);
        let kept = all.remove(&record.local_number())?;
        let found = identity_in(map)?.to_string();
        let other = all.into_iter().find(|(_, other)| *other == found).map(|(number, _)| number);
        (found != kept).then(|| Exchanged { map: map.to_owned(), found, kept, other })
    }

    fn text(&self, other: Option<&Name>) -> String {
        let Exchanged { map, found, kept, .. } = self;
        let other = other.map_or_else(String::new, |other| format!(" `{other}`"));
        format!(
            "`{}` belongs to another volume{other}, {found}; this one is {kept}: were files \
             exchanged?",
            map.display()
        )
    }
}

fn identity_in(map: &Path) -> Option<VolumeUuid> {
    let mut start = Vec::new();
    open_regular(map).ok()?.take(START_BYTES).read_to_end(&mut start).ok()?;
    volume_of(&start)
}
