//! Where the blocks of the NVM and SSD levels lie: durable, checksummed, recoverable.
//!
//! How: the cache decides which block is in which logical [`Slot`] of a level; a store maps slots
//! to bytes. [`LogStore`] appends to segments of a disk, [`NvmStore`] writes out of place into a
//! mapping. Every record carries a [`Seq`] from one counter per shard ([`SeqSource`]), shared by
//! both, so that the newest record of a block is known across levels.
//! Invariant (R1): of all records of a block in all levels, the one with the highest seq is the
//! truth. (R2): a record is destroyed only when every older record of its block is durably dead, so
//! that an older one can never come back.
//! What the shard owes the stores, so that R2 holds across levels:
//! - One store or append of a block at a time, across all levels; the next after its `Stored`.
//! - NVM store of a block that the log also holds: `log.free(old)` when `Stored` is handled.
//! - Block is written below: only when its record is durable in its level (`sync` first), or an
//!   older record could come back over the newer bytes below.
//! - Block leaves NVM for the log: append it `durable` (or sync the log), then
//!   `nvm.free(slot, Freed::Superseded)`.
//! - Block leaves NVM for the backing store only (clean, durable below): `log.forget(key)`, then
//!   `nvm.free(slot, Freed::Evicted { forgets_issued: log.forgets_issued() })`.
//! - Block leaves the log for the backing store (clean, durable below): `log.free(slot)`.
//! - Bytes go straight to the backing store, past both levels: `log.forget(key)` first, and the
//!   write once that is durable (`forgets_durable` has reached `forgets_issued` as of the call).
//! - Trim or zero: `log.tombstone(..)`; once it is durable, free the slots (NVM: `Superseded`) and
//!   zero the backing store; once that is durable, `log.tombstone_done(seq)`; once that is durable,
//!   newer bytes of the range may go below. A crash before repeats the zeroing.
//! - A tombstone whose zeroing waits longer than the checkpoint that begins: `log.owe_zeros(..)`
//!   when asked for `PeerScope::Stores`, durable before the answer.
//! - `NeedPeerSync`: bring NVM and backing stores to the asked state, then `log.peer_synced(id)`.
//!
//! Events are collected inside a store; drain them with `take_events` after every call, and handle
//! them in order. Not for: choosing what is cached, which is the cache's work.

mod failures;
pub mod layout;
mod log;
mod log_batch;
mod log_chain;
mod log_changes;
mod log_checkpoint;
mod log_clean;
mod log_config;
mod log_counters;
mod log_dark;
mod log_discard;
mod log_geometry;
mod log_headers;
mod log_horizon;
pub mod log_layout;
mod log_mend;
mod log_parity;
mod log_read;
mod log_recover;
mod log_replay;
mod log_retire;
mod log_streams;
mod log_tokens;
mod log_unreadable;
mod log_void;
mod lost;
mod nvm;
pub mod nvm_layout;
mod nvm_lent;
mod nvm_lost;
mod nvm_mark;
mod nvm_pages;
mod nvm_recover;
mod reached;
mod resolve;
mod table;

#[cfg(test)]
mod tests_both;
#[cfg(test)]
mod tests_clean;
#[cfg(test)]
mod tests_damage;
#[cfg(test)]
mod tests_dark;
#[cfg(test)]
mod tests_decode;
#[cfg(test)]
mod tests_discard;
#[cfg(test)]
mod tests_faults;
#[cfg(test)]
mod tests_increments;
#[cfg(test)]
mod tests_lives;
#[cfg(test)]
mod tests_log;
#[cfg(test)]
mod tests_lost_pages;
#[cfg(test)]
mod tests_nvm_mark;
#[cfg(test)]
mod tests_ranks;
#[cfg(test)]
mod tests_retire;
#[cfg(test)]
mod tests_voids;
#[cfg(test)]
mod tests_world;

pub use failures::DeviceFailure;
pub use log::{AppendEntry, LogStore};
pub use log_config::{LogConfig, SegmentPlan, slots_for};
pub use log_counters::LogCounters;
pub use log_geometry::LogGeometry;
pub use lost::{Held, runs_max, undecide};
pub use nvm::{Freed, NvmConfig, NvmCounters, NvmStore, SyncScope, nvm_slots_for};
pub use reached::Reached;
pub use resolve::{Loser, Resolved, resolve};

use crate::io::{Buffer, DiskId, OperationKind, WriteLife};
use layby_cache::LostBlocks;
use layby_types::{BlockIndex, BlockKey, BlockSize, ErrorKind, Seq, ShardIndex, Slot, VolumeId};
use log_layout::NOTE_BYTES;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// The caller's mark on a call to a store; it comes back in exactly one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The shard's one counter of record ages, shared by its stores.
#[derive(Clone, Debug)]
pub struct SeqSource(Rc<Cell<u64>>);

impl SeqSource {
    /// A counter whose next seq is `next`.
    #[must_use]
    pub fn new(next: Seq) -> Self {
        SeqSource(Rc::new(Cell::new(next.0)))
    }
    /// Takes the next seq.
    #[must_use]
    pub fn take(&self) -> Seq {
        let seq = self.0.get();
        self.0.set(seq.checked_add(1).expect("2^64 records outlive any device"));
        Seq(seq)
    }
    /// The seq that the next [`SeqSource::take`] will give.
    #[must_use]
    pub fn next(&self) -> Seq {
        Seq(self.0.get())
    }
    /// Moves the counter to at least `next`; recovery of each store does so.
    pub fn raise(&self, next: Seq) {
        self.0.set(self.0.get().max(next.0));
    }
}

/// Whose region it is; a store refuses to open another node's, shard's or instance's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// The node.
    pub node: [u8; 16],
    /// The shard within the node.
    pub shard: ShardIndex,
    /// Shards of the node: block placement depends on it.
    pub shard_count: u16,
}

/// A store's bytes on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The disk.
    pub disk: DiskId,
    /// First byte, a multiple of the block size.
    pub base: u64,
    /// Bytes.
    pub length: u64,
    /// Cache unit of the node.
    pub block_size: BlockSize,
}

/// What the cache knows of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// The block in the slot.
    pub key: BlockKey,
    /// The backing store does not have these bytes durably.
    pub dirty: bool,
}

/// The cache's table of one level, as checkpoint and cleaning need it.
pub trait SlotView {
    /// What is in `slot`, or `None` when it is empty.
    fn slot(&self, slot: Slot) -> Option<SlotInfo>;

    /// The ranges of blocks whose newest version is not known, in order of their keys.
    fn lost(&self) -> Vec<(BlockKey, u64)> {
        Vec::new()
    }
}

/// What is written; each stream of a log fills segments of its own, so that what dies at about the
/// same time lies together. A log of few segments has no short-lived writes and no old copies of
/// its own: see [`Stream::of_few`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// New bytes from clients over blocks that were written not long ago.
    WriteShort = 0,
    /// Other new bytes from clients.
    Write = 1,
    /// Clean copies of what the backing store holds.
    Promote = 2,
    /// Live blocks moved out of a segment that is being cleaned; forgets travel here too.
    Relocate = 3,
    /// Such blocks that were written long ago.
    RelocateOld = 4,
}

/// Streams that a log may have.
pub const STREAMS: usize = Stream::ALL.len();

impl Stream {
    /// All streams, by index.
    pub const ALL: [Stream; 5] =
        [Stream::WriteShort, Stream::Write, Stream::Promote, Stream::Relocate, Stream::RelocateOld];
    /// Those that callers append to; the others are the log's own.
    pub const CALLERS: [Stream; 3] = [Stream::WriteShort, Stream::Write, Stream::Promote];
    /// Those of live blocks that cleaning moves.
    pub const COPIES: [Stream; 2] = [Stream::Relocate, Stream::RelocateOld];

    /// How long its blocks are likely to live, beside the others'. Clients overwrite what they
    /// write, and it goes home; copies of what was read stay until nothing reads them; what
    /// cleaning finds alive has outlived all that was written with it. A checkpoint is shorter than
    /// all: the next but one overwrites it, after an eighth of the log at most. Where copies have
    /// two streams, `has_all`, the young ones live about as long as what was fetched.
    #[must_use]
    pub fn life(self, has_all: bool) -> WriteLife {
        match self {
            Stream::WriteShort => WriteLife::Short,
            Stream::Write => WriteLife::Medium,
            Stream::Promote => WriteLife::Long,
            Stream::Relocate if has_all => WriteLife::Long,
            Stream::Relocate | Stream::RelocateOld => WriteLife::Extreme,
        }
    }

    /// Whether it is one of [`Stream::COPIES`].
    #[must_use]
    pub fn is_copies(self) -> bool {
        Stream::COPIES.contains(&self)
    }

    /// The stream that does its work in a log of few segments, where five open ones would be too
    /// large a part of the room.
    #[must_use]
    pub fn of_few(self) -> Stream {
        match self {
            Stream::WriteShort => Stream::Write,
            Stream::RelocateOld => Stream::Relocate,
            stream => stream,
        }
    }
}

/// What the shard must have brought to safety before it answers `peer_synced`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerScope {
    /// Every NVM store placed so far is durable (`nvm.sync(.., SyncScope::Stores)`), and the
    /// events of stores that came before have been handled.
    Stores,
    /// Besides, every NVM `free` so far is durable (`SyncScope::Frees`), and the backing stores
    /// hold durably every block marked clean and every range with a completed tombstone.
    Frees,
}

/// Bytes that do not match their checksum, and where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptInfo {
    /// The disk's name.
    pub disk: String,
    /// First bad byte's block or structure on the disk.
    pub offset: u64,
    /// Bytes covered by the checksum.
    pub length: u64,
    /// What lies there.
    pub what: &'static str,
    /// The slot, where it is a block.
    pub slot: Option<Slot>,
    /// The block, where it is known.
    pub key: Option<BlockKey>,
    /// The checksum on the device.
    pub stored: u32,
    /// The checksum of the bytes found.
    pub computed: u32,
}

/// [`CorruptInfo::what`] of a page without any bytes to compare.
pub(crate) const UNREADABLE_PAGE: &str = "a page of the NVM level";

impl fmt::Display for CorruptInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.what == UNREADABLE_PAGE {
            return write!(
                f,
                "{} on `{}` at byte {} cannot be read",
                self.what, self.disk, self.offset
            );
        }
        write!(
            f,
            "{} checksum mismatch on `{}` at byte {}: stored {:08x}, computed {:08x}",
            self.what, self.disk, self.offset, self.stored, self.computed
        )
    }
}

/// Why a read of slots failed, and which slots are to blame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailure {
    /// By remedy: `Corrupt` for bad bytes and bad sectors, `Retry` for another device error.
    pub kind: ErrorKind,
    /// The slots that could not be read; the others of the call were sound.
    pub slots: Vec<Slot>,
}

/// What a store has to say; drained by `take_events`.
#[derive(Debug)]
pub enum StoreEvent {
    /// Of a victim of cleaning these slots hold live blocks; the owner says with
    /// [`LogStore::cleaned`] what becomes of each.
    Cleaning {
        /// The slots, [`layby_cache::CLEANING_SLOTS_MAX`] at most.
        slots: Vec<Slot>,
    },
    /// Part of an append that ends with an error next is stored, in another batch of the log, so
    /// that a start would find it: these slots hold what the call brought.
    Written {
        /// The caller's mark.
        ticket: Ticket,
        /// The slots, which were not freed meanwhile.
        slots: Vec<Slot>,
    },
    /// An append, store or tombstone has ended (durably, when that was asked for).
    Stored {
        /// The caller's mark.
        ticket: Ticket,
        /// On an error the slots keep what they held before, but for those of `Written`.
        result: Result<(), ErrorKind>,
    },
    /// A read has ended.
    Read {
        /// The caller's mark.
        ticket: Ticket,
        /// The blocks in the order of the call, one buffer.
        result: Result<Buffer, ReadFailure>,
    },
    /// A sync has ended.
    Synced {
        /// The caller's mark.
        ticket: Ticket,
        /// An error leaves durability unknown; the node must not claim it.
        result: Result<(), ErrorKind>,
    },
    /// Bytes were found bad.
    Corrupt(CorruptInfo),
    /// The log wants the other level and the backing stores safe; answer with `peer_synced(id)`.
    NeedPeerSync {
        /// To be handed back.
        id: u64,
        /// How much.
        scope: PeerScope,
    },
    /// The NVM store waits for forgets to become durable: call `log.flush_forgets`.
    NeedForgets,
    /// The log cannot write forgets now; they are tried again later. What waits for them in the
    /// NVM store is to end with an error: call `nvm.refuse_delayed`.
    ForgetsFailed {
        /// Why.
        kind: ErrorKind,
    },
    /// The device has failed to do something.
    DeviceFailed(DeviceFailure),
    /// The device has done what it had failed to do before, at this place or another.
    DeviceWorks(OperationKind),
    /// A checkpoint is complete.
    CheckpointDone {
        /// Its seq.
        seq: Seq,
        /// It marks a clean shutdown.
        clean: bool,
    },
    /// A checkpoint could not be written; another attempt follows after more appends.
    CheckpointFailed,
    /// [`LogStore::slots_usable`] is another: a segment holds a block that cannot be moved, or no
    /// such block any more.
    RoomChanged,
    /// A segment failed for good and is never used again.
    SegmentRetired {
        /// The disk's name.
        disk: String,
        /// Its first byte.
        offset: u64,
        /// Slots that the segments in use have room for; 0 when they are too few to go on.
        slots: u32,
    },
}

/// A block found at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredEntry {
    /// Where. Slots at and above the level's slot count are overflow: more dirty blocks survived
    /// than the level holds; write them back, then `free` them.
    pub slot: Slot,
    /// The block.
    pub key: BlockKey,
    /// Its age, comparable across the shard's stores.
    pub seq: Seq,
    /// Possibly newer than the backing store.
    pub dirty: bool,
}

/// A trim or zero found at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredTombstone {
    /// The volume.
    pub volume: VolumeId,
    /// First block.
    pub first: BlockIndex,
    /// Blocks.
    pub count: u64,
    /// Every older record of the range is dead, in all levels.
    pub seq: Seq,
    /// Keep the range allocated below.
    pub no_hole: bool,
    /// The backing store already reads as zeros there; otherwise zero it before serving.
    pub done: bool,
    /// The range could not be zeroed: nothing of it is dead, but the backing store may hold its
    /// bytes or zeros, so that what the levels hold is dirty.
    pub void: bool,
    /// Written again for a checkpoint: nothing is dead by it, the backing store may hold its bytes
    /// or zeros, as above.
    pub owed: bool,
}

impl RecoveredTombstone {
    fn new(first: BlockKey, count: u64, seq: Seq) -> Self {
        let (volume, first, no_hole) = (first.volume(), first.block(), false);
        RecoveredTombstone {
            volume,
            first,
            count,
            seq,
            no_hole,
            done: false,
            void: false,
            owed: false,
        }
    }

    /// Whether older records of the range are dead.
    #[must_use]
    pub fn kills(&self) -> bool {
        !self.void && !self.owed
    }

    /// The last key of the range.
    #[must_use]
    pub fn end_key(&self) -> BlockKey {
        let last = self.first.0.saturating_add(self.count.saturating_sub(1));
        BlockKey::new(self.volume, BlockIndex(last.min(BlockIndex::MAX.0)))
    }
}

/// What a store found at start. Feed all levels' to [`resolve`].
#[derive(Debug)]
pub struct Recovered {
    /// The newest record of each block of this level.
    pub entries: Vec<RecoveredEntry>,
    /// Trims and zeroes; those not `done` must be zeroed below again, in seq order.
    pub tombstones: Vec<RecoveredTombstone>,
    /// Blocks among `entries` whose bytes are bad: reads fail until they are overwritten.
    pub lost: Vec<CorruptInfo>,
    /// Blocks that an earlier start could not decide, and that the newest checkpoint names.
    pub lost_runs: LostBlocks,
    /// A structure was damaged beyond help: it may have held the newest record of any block that
    /// has none younger than this. See [`undecide`].
    pub undecided: Option<Seq>,
    /// Damaged structures.
    pub damaged: Vec<CorruptInfo>,
    /// Blocks forgotten, and clean ones that were left without a slot: every record older than the
    /// seq is dead, in both levels.
    pub forgets: Vec<(BlockKey, Seq)>,
    /// Batches or stores that power loss cut short; never promised durable.
    pub torn: u64,
    /// Above every seq seen.
    pub seq_next: Seq,
    /// Bytes read to get here.
    pub bytes_scanned: u64,
    /// The last shutdown was clean.
    pub clean_shutdown: bool,
    /// What the log's owner had the newest checkpoint keep.
    pub note: [u8; NOTE_BYTES],
    /// Bytes written since that checkpoint began, but for what power loss tore.
    pub bytes_since_note: u64,
}

impl Default for Recovered {
    fn default() -> Self {
        Recovered {
            entries: Vec::new(),
            tombstones: Vec::new(),
            lost: Vec::new(),
            lost_runs: LostBlocks::default(),
            undecided: None,
            damaged: Vec::new(),
            forgets: Vec::new(),
            torn: 0,
            seq_next: Seq(1),
            bytes_scanned: 0,
            clean_shutdown: false,
            note: [0; NOTE_BYTES],
            bytes_since_note: 0,
        }
    }
}

/// Why a region cannot be opened or formatted. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The device failed.
    Io {
        /// The disk's name.
        disk: String,
        /// Where.
        offset: u64,
        /// The system's error number.
        errno: i32,
    },
    /// There is no store of this kind here.
    NotFormatted {
        /// The disk's name.
        disk: String,
        /// Where the superblock should be.
        offset: u64,
        /// The first eight bytes found.
        stored: u64,
        /// The magic of this kind of store.
        expected: u64,
    },
    /// A format that this program does not read.
    Version {
        /// The disk's name.
        disk: String,
        /// Of the superblock.
        offset: u64,
        /// Found.
        stored: u32,
        /// Read by this program.
        expected: u32,
    },
    /// Bytes that do not match their checksum.
    Corrupt(CorruptInfo),
    /// The region belongs to another node.
    OtherNode {
        /// The disk's name.
        disk: String,
        /// Of the superblock.
        offset: u64,
        /// Found.
        stored: [u8; 16],
        /// This node.
        expected: [u8; 16],
    },
    /// The region was made with other settings.
    Mismatch {
        /// The disk's name.
        disk: String,
        /// Of the superblock.
        offset: u64,
        /// Which setting.
        what: &'static str,
        /// Found.
        stored: u64,
        /// Configured.
        expected: u64,
    },
    /// What is there ends before what the node knows to have been there: an older copy, or a device
    /// that dropped what it had called durable.
    Older {
        /// The disk's name.
        disk: String,
        /// The region's first byte.
        offset: u64,
        /// One above the highest sequence number found.
        stored: Seq,
        /// At least what it should be.
        expected: Seq,
    },
    /// What is there was formatted another time than what the node knows.
    OtherInstance {
        /// The disk's name.
        disk: String,
        /// The region's first byte.
        offset: u64,
        /// Drawn when what is there was formatted.
        stored: u64,
        /// Drawn when what the node knows was.
        expected: u64,
    },
    /// The region cannot hold even the smallest store.
    TooSmall {
        /// The disk's name.
        disk: String,
        /// Given.
        length: u64,
        /// Needed at least.
        minimum: u64,
    },
}

impl StoreError {
    /// By remedy.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            StoreError::Io { .. } => ErrorKind::Retry,
            StoreError::Corrupt(_)
            | StoreError::Older { .. }
            | StoreError::OtherInstance { .. } => ErrorKind::Corrupt,
            StoreError::TooSmall { .. } => ErrorKind::Full,
            _ => ErrorKind::Invalid,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Io { disk, offset, errno } => {
                write!(f, "`{disk}` failed at byte {offset}: error number {errno}")
            }
            StoreError::NotFormatted { disk, offset, stored, expected } => write!(
                f,
                "no store on `{disk}` at byte {offset}: \
                 magic {stored:016x}, expected {expected:016x}"
            ),
            StoreError::Version { disk, offset, stored, expected } => {
                let later = if stored > expected { LATER_VERSION } else { "" };
                write!(
                    f,
                    "store on `{disk}` at byte {offset} has format version {stored}{later}, this \
                     program reads {expected}"
                )
            }
            StoreError::Corrupt(info) => info.fmt(f),
            StoreError::OtherNode { disk, offset, stored, expected } => write!(
                f,
                "store on `{disk}` at byte {offset} belongs to node {}, this is node {}",
                Hex(stored),
                Hex(expected)
            ),
            StoreError::Mismatch { disk, offset, what, stored, expected } => write!(
                f,
                "store on `{disk}` at byte {offset} has {what} {stored}, configured {expected}"
            ),
            StoreError::Older { disk, offset, stored, expected } => write!(
                f,
                "store on `{disk}` at byte {offset} is older than the node knows it: it ends \
                 before sequence number {}, and had reached {}",
                stored.0, expected.0
            ),
            StoreError::OtherInstance { disk, offset, stored, expected } => write!(
                f,
                "store on `{disk}` at byte {offset} was made another time than the one that the \
                 node knows: instance {stored:016x}, known {expected:016x}"
            ),
            StoreError::TooSmall { disk, length, minimum } => {
                write!(f, "region of {length} bytes on `{disk}` is below the least of {minimum}")
            }
        }
    }
}

impl std::error::Error for StoreError {}

/// What is said of a structure whose version is higher than this program's.
const LATER_VERSION: &str = ", which a later version of Layby wrote";

/// Bytes as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
