//! Snapshots: what a volume was after one of its segments, under a name.
//!
//! How: a snapshot's object holds the map after that segment; the superblock names the object, and
//! with it the snapshot exists. A segment that is live in such a map stays in the store, and which
//! ones these are follows from two numbers per segment, so that nothing else has to be kept.
//! Invariant: what the superblock names is complete in the store; no object's key comes again.
//! Cost: an object of the map's size per snapshot, and the segments that it keeps.
//! Not for: copies that outlive their store; `layby restore` makes these.

use crate::segment::VolumeUuid;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Snapshots of a volume at most: the superblock, which every commit replaces, names them all.
pub const SNAPSHOTS_MAX: usize = 64;
/// Clones of a snapshot at most.
pub const CLONES_MAX: usize = 32;
/// Changes of a volume's snapshots that wait for their end at most.
pub(crate) const CHANGES_MAX: usize = SNAPSHOTS_MAX;
/// Characters of a snapshot's name at most.
pub const SNAPSHOT_NAME_MAX: usize = 64;

/// A snapshot that is complete in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name: 1 to 64 of A-Z a-z 0-9 . _ -
    pub name: String,
    /// The segment after which the volume was so.
    pub number: u64,
    /// The session that made it.
    pub epoch: u32,
    /// Which one of that session's it is.
    pub serial: u32,
    /// Bytes of the volume then.
    pub size_bytes: u64,
    /// When it was asked for, in seconds since 1970.
    pub created_unix: u64,
    /// Volumes that rest on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<CloneMark>,
}

/// One snapshot of one volume. Its name alone may come again: for another snapshot of the volume,
/// or in another volume at the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotId {
    /// The volume.
    pub volume: VolumeUuid,
    /// The snapshot's name.
    pub name: String,
    /// The key of its object, which no other snapshot of the volume ever has.
    pub key: String,
}

impl SnapshotId {
    /// Whether a snapshot of the volume is this one.
    pub(crate) fn is(&self, snapshot: &Snapshot) -> bool {
        snapshot.name == self.name && snapshot.key() == self.key
    }
}

/// A volume that rests on a snapshot of another one, as that one's superblock knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneMark {
    /// The clone's place in its store, which has one volume.
    pub url: String,
    /// Its name at its node, for people.
    pub name: String,
}

impl Snapshot {
    /// Its key below the volume's prefix, which no other snapshot ever has.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{SNAPSHOTS_PREFIX}{:016x}-{:08x}-{:08x}", self.number, self.epoch, self.serial)
    }

    /// Which one it is, as a snapshot of this volume.
    #[must_use]
    pub fn id_in(&self, volume: VolumeUuid) -> SnapshotId {
        SnapshotId { volume, name: self.name.clone(), key: self.key() }
    }
}

impl Snapshot {
    /// Marks a clone, in the place of an older mark for its place.
    pub(crate) fn mark(&mut self, mark: &CloneMark) {
        self.unmark(&mark.url);
        if self.clones.len() < CLONES_MAX {
            self.clones.push(mark.clone());
        }
    }

    pub(crate) fn unmark(&mut self, url: &str) {
        self.clones.retain(|clone| clone.url != url);
    }

    fn clone_names(&self) -> Vec<String> {
        self.clones.iter().map(|clone| format!("`{}` ({})", clone.name, clone.url)).collect()
    }

    /// Why it cannot be dropped now.
    pub(crate) fn refuse_drop(&self) -> Option<SnapshotError> {
        (!self.clones.is_empty()).then(|| SnapshotError::HasClones(self.clone_names()))
    }
}

/// How the keys of snapshots begin.
pub(crate) const SNAPSHOTS_PREFIX: &str = "snapshots/";

/// The session that wrote a snapshot's object, by its key.
pub(crate) fn epoch_of_key(key: &str) -> Option<u32> {
    let (number, rest) = key.strip_prefix(SNAPSHOTS_PREFIX)?.split_once('-')?;
    let (epoch, serial) = rest.split_once('-')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    let epoch = u32::from_str_radix(epoch, 16).ok()?;
    let serial = u32::from_str_radix(serial, 16).ok()?;
    let named = format!("{SNAPSHOTS_PREFIX}{number:016x}-{epoch:08x}-{serial:08x}");
    (named == key).then_some(epoch)
}

/// Whether a text can name a snapshot.
#[must_use]
pub fn is_snapshot_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    (1..=SNAPSHOT_NAME_MAX).contains(&text.len()) && text.chars().all(is_plain)
}

/// Whether a segment holds something of a snapshot: the last of its blocks went with the
/// application of `dead_since`, `None` where some still live. `pins` are the numbers of the
/// snapshots, in order.
pub(crate) fn is_pinned(pins: &[u64], segment: u64, dead_since: Option<u64>) -> bool {
    let first = pins.get(pins.partition_point(|pin| *pin < segment));
    first.is_some_and(|pin| dead_since.is_none_or(|dead| *pin < dead))
}

/// A change of a volume's snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotChange {
    /// What is acknowledged now becomes a snapshot.
    Make {
        /// Its name.
        name: String,
        /// The time of day, in seconds since 1970.
        now_unix: u64,
    },
    /// A snapshot goes; what it alone kept goes later.
    Drop {
        /// Its name.
        name: String,
    },
    /// A clone rests on a snapshot from now on.
    Mark {
        /// The snapshot; another one of its name is none.
        snapshot: SnapshotId,
        /// The clone.
        clone: CloneMark,
    },
    /// A clone rests on it no more.
    Unmark {
        /// The snapshot.
        name: String,
        /// The clone's place.
        url: String,
    },
}

/// Why a snapshot was not made or dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// No snapshot can have this name.
    Name,
    /// There is one of this name, or one is being made.
    Exists,
    /// There is none of this name.
    Absent,
    /// There are as many as there may be.
    Full,
    /// As many changes as may be wait for the store already.
    Pending,
    /// It has as many clones as it may have.
    ClonesFull,
    /// These clones rest on it.
    HasClones(Vec<String>),
    /// The volume is not this node's, or its journal failed: why.
    Lost(String),
    /// The node stops, or has.
    Closed,
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Name => {
                write!(f, "a snapshot's name is 1 to {SNAPSHOT_NAME_MAX} of A-Z a-z 0-9 . _ -")
            }
            SnapshotError::Exists => f.write_str("there is a snapshot of that name"),
            SnapshotError::Absent => f.write_str("there is no snapshot of that name"),
            SnapshotError::Full => write!(f, "the volume has {SNAPSHOTS_MAX} snapshots already"),
            SnapshotError::Pending => write!(
                f,
                "{CHANGES_MAX} changes of its snapshots are pending, since its store does not take \
                 them"
            ),
            SnapshotError::ClonesFull => write!(f, "the snapshot has {CLONES_MAX} clones already"),
            SnapshotError::HasClones(clones) => {
                write!(f, "volumes are clones of it: {}", clones.join(", "))
            }
            SnapshotError::Lost(why) => f.write_str(why),
            SnapshotError::Closed => f.write_str("the volume is not served any more"),
        }
    }
}

impl std::error::Error for SnapshotError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a segment stays as long as a snapshot between its birth and its death. Method: each
    /// birth, death and set of two snapshots among a few numbers, beside the definition.
    #[test]
    fn pins_are_between_birth_and_death() {
        for segment in 1..6 {
            for dead in (segment..7).map(Some).chain([None]) {
                for (one, other) in (0..7).flat_map(|one| (one..7).map(move |other| (one, other))) {
                    let holds = |pin: u64| segment <= pin && dead.is_none_or(|dead| pin < dead);
                    let expected = holds(one) || holds(other);
                    let found = is_pinned(&[one, other], segment, dead);
                    assert_eq!(found, expected, "{segment} {dead:?} {one} {other}");
                }
                assert!(!is_pinned(&[], segment, dead));
            }
        }
    }

    /// Goal: names and keys are what they should be. Method: good and bad ones.
    #[test]
    fn names_are_bounded() {
        for good in ["a", "2026-11-22", "A.b_c", &"x".repeat(SNAPSHOT_NAME_MAX)] {
            assert!(is_snapshot_name(good), "{good}");
        }
        for bad in ["", "a/b", "a b", "ä", "@x", &"x".repeat(SNAPSHOT_NAME_MAX + 1)] {
            assert!(!is_snapshot_name(bad), "{bad}");
        }
        let (name, size_bytes, created_unix) = ("a".to_owned(), 1, 2);
        let (number, epoch, serial, clones) = (9, 3, 1, Vec::new());
        let made = Snapshot { name, number, epoch, serial, size_bytes, created_unix, clones };
        assert_eq!(epoch_of_key(&made.key()), Some(3));
        assert_eq!(epoch_of_key("checkpoints/0000000000000009-00000003"), None);
    }
}
