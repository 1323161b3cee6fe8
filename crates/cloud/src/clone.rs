//! Clones: volumes that share the segments of another one's snapshot and write their own.
//!
//! How: a clone begins as the snapshot's map, as its own first checkpoint, and counts its segments
//! on from there; so a number says whose a segment is. Its map and superblock name its bases, and
//! the base's superblock marks the clone at its snapshot, which then cannot be dropped.
//! Two clones that are made at one place at once put a checkpoint each, and the first superblock
//! decides; the other checkpoint goes when that volume is opened.
//! Invariant: the mark is in the base before the clone is anywhere, and goes after it; a clone
//! neither changes nor deletes anything of a base.
//! Cost: a copy of the snapshot's map. A base's segments stay as long as the clone does.
//! Not for: stores where another node serves the base and no put is conditional.

use crate::map::CloudMap;
use crate::segment::VolumeUuid;
use crate::snapshot::{CLONES_MAX, CloneMark, Snapshot, SnapshotError, SnapshotId};
use crate::superblock::{Base, Checkpointed, EpochStart, FORMAT_SNAPSHOTS, Superblock};

/// Clones of clones at most.
pub const BASES_MAX: usize = 8;
/// The least epoch in keys of clones' first checkpoints; those of sessions stay below.
pub(crate) const CLONE_EPOCHS: u32 = 1 << 31;

/// The key of a base's object among those of a clone.
pub(crate) fn base_key(base: usize, key: &str) -> String {
    format!("@{base}/{key}")
}

/// Whose object a key names: a base's, by its number, or the volume's own; and its key there.
#[must_use]
pub fn split_key(key: &str) -> (Option<usize>, &str) {
    let split = key.strip_prefix('@').and_then(|rest| rest.split_once('/'));
    match split.map(|(base, rest)| (base.parse(), rest)) {
        Some((Ok(base), rest)) => (Some(base), rest),
        _ => (None, key),
    }
}

/// A clone to be made.
#[derive(Clone, Debug)]
pub struct ClonePlan {
    /// The clone.
    pub volume: VolumeUuid,
    /// Its name, for people.
    pub name: String,
    /// Its place.
    pub url: String,
    /// The node that will serve it.
    pub node: VolumeUuid,
    /// Bytes of the clone, not fewer than the snapshot's.
    pub size_bytes: u64,
    /// The base's place.
    pub base_url: String,
}

/// A clone's first objects, to be put in this order.
#[derive(Clone, Debug)]
pub struct CloneObjects {
    /// The key of its first checkpoint.
    pub checkpoint_key: String,
    /// That checkpoint.
    pub checkpoint: Vec<u8>,
    /// Its superblock.
    pub superblock: Vec<u8>,
}

/// Why a volume cannot be cloned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloneError {
    /// The snapshot's object is damaged.
    Damaged,
    /// There are as many clones of clones as there may be.
    TooDeep,
    /// The clone would be smaller than the snapshot, which has so many bytes.
    Smaller(u64),
}

impl std::fmt::Display for CloneError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CloneError::Damaged => f.write_str("the snapshot's object in the store is damaged"),
            CloneError::TooDeep => write!(f, "it is a clone of a clone, {BASES_MAX} times over"),
            CloneError::Smaller(bytes) => write!(f, "the snapshot has {bytes} bytes"),
        }
    }
}

impl std::error::Error for CloneError {}

impl ClonePlan {
    /// The clone's mark in its base.
    #[must_use]
    pub fn mark(&self) -> CloneMark {
        CloneMark { url: self.url.clone(), name: self.name.clone() }
    }

    /// The epoch in the key of its first checkpoint. It is drawn with the clone's number, so
    /// that two clones that are made at one place at once put two checkpoints, and the superblock
    /// that comes first names its own.
    fn checkpoint_epoch(&self) -> u32 {
        let [a, b, c, d, ..] = self.volume.0;
        u32::from_be_bytes([a, b, c, d]) | CLONE_EPOCHS
    }

    /// The clone's first objects, from its base's superblock and its snapshot's object.
    ///
    /// # Errors
    /// [`CloneError`]; nothing is put yet.
    pub fn objects(
        &self,
        base: &Superblock,
        snapshot: &Snapshot,
        map: &[u8],
    ) -> Result<CloneObjects, CloneError> {
        let of_base = base.volume.parse().map_err(|()| CloneError::Damaged)?;
        let mut map = CloudMap::decode_of(of_base, map).ok_or(CloneError::Damaged)?;
        if map.number != snapshot.number || !map.name_bases(&base.bases) {
            return Err(CloneError::Damaged);
        }
        if map.bases().len() >= BASES_MAX {
            return Err(CloneError::TooDeep);
        }
        if self.size_bytes < snapshot.size_bytes {
            return Err(CloneError::Smaller(snapshot.size_bytes));
        }
        map.end_at(snapshot.size_bytes.div_ceil(base.block_bytes.into()));
        let (url, name, through) = (self.base_url.clone(), snapshot.name.clone(), snapshot.number);
        map.rest_on(Base { url, snapshot: name, through }, self.volume);
        let checkpoint = Checkpointed { number: through, epoch: self.checkpoint_epoch() };
        let superblock = Superblock {
            format: FORMAT_SNAPSHOTS,
            volume: self.volume.to_string(),
            name: self.name.clone(),
            size_bytes: self.size_bytes,
            block_bytes: base.block_bytes,
            node: self.node.to_string(),
            epoch: 0,
            session: 0,
            revision: 0,
            committed: through,
            checkpoint: Some(checkpoint),
            epochs: vec![EpochStart { epoch: 0, first: through + 1 }],
            snapshots: Vec::new(),
            bases: map.bases().to_vec(),
            deleted: None,
        };
        let (checkpoint_key, checkpoint) = (checkpoint.key(), map.encode_live());
        Ok(CloneObjects { checkpoint_key, checkpoint, superblock: superblock.encode() })
    }
}

impl Superblock {
    /// A snapshot, where the volume is its own and has that one.
    #[must_use]
    pub fn snapshot(&self, id: &SnapshotId) -> Option<&Snapshot> {
        let is_volume = self.volume == id.volume.to_string();
        self.snapshots.iter().find(|snapshot| is_volume && id.is(snapshot))
    }

    /// The same with a clone marked at a snapshot, for a base that its own node does not change.
    ///
    /// # Errors
    /// [`SnapshotError`] where that snapshot is not there, be there another one of its name, or it
    /// has too many clones.
    pub fn marked(
        &self,
        snapshot: &SnapshotId,
        mark: &CloneMark,
    ) -> Result<Superblock, SnapshotError> {
        self.snapshot(snapshot).ok_or(SnapshotError::Absent)?;
        let mut block = self.clone();
        let mut found = block.snapshots.iter_mut().filter(|other| snapshot.is(other));
        let found = found.next().expect("it was just found");
        found.mark(mark);
        if !found.clones.contains(mark) {
            return Err(SnapshotError::ClonesFull);
        }
        block.revision += 1;
        Ok(block)
    }

    /// The same without the marks of a clone.
    #[must_use]
    pub fn unmarked(&self, url: &str) -> Superblock {
        let mut block = self.clone();
        block.snapshots.iter_mut().for_each(|snapshot| snapshot.unmark(url));
        block.revision += 1;
        block
    }
}

/// Whether a snapshot can take a mark.
pub(crate) fn has_room(snapshot: &Snapshot, mark: &CloneMark) -> bool {
    let others = snapshot.clones.iter().filter(|clone| clone.url != mark.url).count();
    others < CLONES_MAX
}
