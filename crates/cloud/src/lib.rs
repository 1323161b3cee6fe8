//! Object stores as homes of volumes.
//!
//! How: a volume's writes go in order to a journal on a local device and are acknowledged from
//! there; the journal travels to the store in large immutable objects, and a superblock, replaced
//! on a condition, says how far. See `volume`, which is a state machine without I/O, and
//! `docs/formats.md` for the bytes.
//! Invariant: the store holds a prefix of the volume's history, and the journal the rest.
//! Cost: a local write and an upload per write, and a map in memory.
//! Not for: what the node caches; levels do that.
#![forbid(unsafe_code)]

mod action;
mod bases;
mod clone;
mod codec;
mod crypt;
mod ending;
pub mod formats;
mod hedge;
mod host;
mod journal;
mod local;
mod looks;
mod map;
mod meta;
mod removal;
mod restore;
mod runs;
mod salvage;
mod segment;
pub mod simulated;
mod snapshot;
mod store;
mod superblock;
mod turn_times;
mod unstored;
pub mod uplink;
mod volume;
mod watch;
mod written;

#[cfg(test)]
mod tests;

pub use action::{Action, ActionId, Condition, End, Fault, FaultKind, Request, Tag};
pub use clone::{BASES_MAX, CloneError, CloneObjects, ClonePlan, split_key};
pub use crypt::{CIPHER, KEY_BYTES, Key};
pub use ending::Ending;
pub use host::{CloudBacking, HostError, Inspected, Paths, inspect, is_unmade, prepare};
pub use journal::{JOURNAL_BYTES_DEFAULT, JOURNAL_BYTES_MIN, JournalError};
pub use local::{open_regular, read_map};
pub use looks::{LOOK_TIME, NoAnswer, look_at};
pub use map::MapImage;
pub use meta::is_earlier;
pub use removal::{
    CONFLICTS_MAX, Goal, KEYS_MAX, Removal, RemovalError, Step, is_right_below, temporary_of,
};
pub use restore::{Fetch, Pass, READS_MAX, RestoreError, Restored, Sink};
pub use salvage::{Salvage, SalvageKind, SalvageRange, SalvageSink};
pub use segment::{CHUNK_BYTES, Compression, SegmentName, VolumeUuid};
pub use snapshot::{
    CLONES_MAX, CloneMark, SNAPSHOT_NAME_MAX, SNAPSHOTS_MAX, Snapshot, SnapshotChange,
    SnapshotError, SnapshotId, is_snapshot_name,
};
pub use store::Store;
pub use superblock::{Base, Checkpointed, Deleted, EpochStart, SUPERBLOCK_KEY, Superblock};
pub use unstored::Unstored;
pub use volume::{
    ConditionalPuts, Counters, Limits, Link, OpenError, Opened, Opening, Plan,
    READ_CACHE_BYTES_DEFAULT, Status, Volume, WaitPlan, Wanted, create, is_settled, opening_of,
    sessions_of, volume_of,
};
pub use watch::{Order, Said, SnapshotAnswer, Watch};
