//! What the cache wants done, and the names by which it speaks of data it never holds.
//!
//! How: the host (engine or simulator) performs actions strictly in the order in which they were
//! given to it, across calls: what a call made during an action adds comes last. Those that say so
//! are *immediate*: their effect is complete before the next action and nobody is told. All others
//! end with one call of [`crate::Cache::on_done`] for their operation.
//! Invariant: each request is completed exactly once, each operation released exactly once.

use layby_types::{BlockIndex, BlockKey, ErrorKind, LevelIndex, RequestId, Slot, VolumeId};
use smallvec::SmallVec;

/// An operation on a run of blocks; the host keeps a buffer of `count` blocks under this name from
/// its first data action until `Release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

/// A list that rarely exceeds a few blocks.
pub type Few<T> = SmallVec<[T; 4]>;

/// Bytes of one block that belong to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte within the block.
    pub block_offset: u32,
    /// First byte within the request's payload or answer.
    pub request_offset: u32,
    /// Bytes.
    pub length: u32,
}

/// Where the bytes of a write come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The payload of a request, whole blocks from byte `offset` on.
    Payload {
        /// Whose payload.
        request: RequestId,
        /// First byte within it.
        offset: u32,
    },
    /// The operation's buffer from block `index` on.
    Buffer {
        /// First block within the buffer.
        index: u32,
    },
}

/// Why a block enters a level; a log keeps these streams apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A client wrote it.
    Write,
    /// It was evicted dirty from the level above.
    Evict,
    /// A read brought it in; it is a clean copy.
    Promote,
    /// A clean copy in room that was only lent; not worth recovering.
    Borrow,
}

/// A read of persistent memory whose checksum the host must verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyVerified {
    /// Whose answer.
    pub request: RequestId,
    /// The block.
    pub key: BlockKey,
    /// Where it lies.
    pub level: LevelIndex,
    /// Where it lies within the level.
    pub slot: Slot,
    /// Which bytes.
    pub part: Part,
}

/// What the host finds where an [`Action::CopyVerified`] tells it to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The block; it was copied.
    Sound,
    /// Something else: the block is damaged.
    Rotten,
    /// Nothing: room was lent for which the store had no spare slot.
    Absent,
}

/// What a tombstone asks of recovery, besides burying every older record of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redo {
    /// Nothing: the backing store holds newer data.
    Nothing,
    /// Zero the range.
    Zero,
    /// Zero the range and keep its room reserved.
    ZeroKeepAllocated,
}

/// Why a volume's blocks could not be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestageFault {
    /// The level that could not return them or make them durable; none where the backing store
    /// failed.
    pub level: Option<LevelIndex>,
    /// The kind of the failure.
    pub kind: ErrorKind,
}

/// Something to log; the state it describes is already in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A clean block failed its checksum, was dropped and will be fetched again from below.
    CorruptCleanDropped {
        /// The block.
        key: BlockKey,
        /// The level it was dropped from.
        level: LevelIndex,
    },
    /// A dirty block failed its checksum, or its device could not read it: reads of it fail until
    /// it is written again.
    CorruptDirtyKept {
        /// The block.
        key: BlockKey,
        /// The level that holds it.
        level: LevelIndex,
    },
    /// Destaging of a volume failed; the blocks stay dirty and are tried again.
    DestageFailed {
        /// The volume.
        volume: VolumeId,
        /// Why.
        fault: DestageFault,
    },
    /// Destaging to a volume works again, or nothing of it is dirty any more.
    DestageRecovered {
        /// The volume.
        volume: VolumeId,
    },
}

/// One thing for the host to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Immediate: bytes of a memory level's slot go to the request's answer.
    Copy {
        /// Whose answer.
        request: RequestId,
        /// The memory level.
        level: LevelIndex,
        /// The slot.
        slot: Slot,
        /// Which bytes.
        part: Part,
    },
    /// Like `Copy`, with the checksum verified; answered by [`crate::Cache::on_copied`].
    CopyVerified(CopyVerified),
    /// Immediate: bytes of block `index` of the operation's buffer go to the request's answer.
    Deliver {
        /// Whose buffer.
        op: OpId,
        /// Which block of it.
        index: u32,
        /// Whose answer.
        request: RequestId,
        /// Which bytes.
        part: Part,
    },
    /// The request is finished; its payload and answer buffer are no longer needed afterwards.
    Complete {
        /// Which request.
        request: RequestId,
        /// How it ended.
        result: Result<(), ErrorKind>,
    },
    /// Fill the operation's buffer from slots of a persistent level, verifying checksums. What the
    /// slots hold now is meant: they may be freed before the read ends. It ends with `Corrupt`
    /// where their bytes do not match or the device cannot read them, and only then.
    ReadLevel {
        /// Whose buffer.
        op: OpId,
        /// The level.
        level: LevelIndex,
        /// One slot per block.
        slots: Few<Slot>,
    },
    /// Fill the operation's buffer from the backing store.
    ReadBacking {
        /// Whose buffer.
        op: OpId,
        /// The volume.
        volume: VolumeId,
        /// First block.
        first: BlockIndex,
        /// Number of blocks.
        count: u32,
        /// Only where the store has them at hand; the operation may fail for that.
        at_hand: bool,
    },
    /// Immediate: the operation's buffer is a block of zeros.
    Blank {
        /// Whose buffer.
        op: OpId,
    },
    /// Immediate: bytes of a request's payload (zeros when `zero`) replace bytes of the only block
    /// of the operation's buffer.
    Merge {
        /// Whose buffer.
        op: OpId,
        /// Whose payload.
        request: RequestId,
        /// Which bytes.
        part: Part,
        /// Zeros instead of payload.
        zero: bool,
    },
    /// Immediate: a clean copy from a slot of persistent memory into a slot of a memory level.
    CopyLevel {
        /// Level and slot read.
        from: (LevelIndex, Slot),
        /// Level and slot written.
        to: (LevelIndex, Slot),
    },
    /// Store blocks into slots. Immediate into a memory level or with `Cause::Borrow`. On failure
    /// each slot keeps what it held before.
    WriteLevel {
        /// Whose buffer, and who is told.
        op: OpId,
        /// The level.
        level: LevelIndex,
        /// Slot and block, in order of the data.
        entries: Few<(Slot, BlockKey)>,
        /// The data.
        source: Source,
        /// The backing store does not have this version yet.
        dirty: bool,
        /// Done means durable.
        durable: bool,
        /// Why.
        cause: Cause,
    },
    /// Write to the backing store, durably when `durable`. Once it has ended, the operation's
    /// buffer holds the data, wherever it came from.
    WriteBacking {
        /// Whose buffer, and who is told.
        op: OpId,
        /// The volume.
        volume: VolumeId,
        /// First block.
        first: BlockIndex,
        /// Number of blocks.
        count: u32,
        /// The data.
        source: Source,
        /// Done means durable.
        durable: bool,
    },
    /// Make a range of the backing store read as zeros.
    ZeroBacking {
        /// Who is told.
        op: OpId,
        /// The volume.
        volume: VolumeId,
        /// First block.
        first: BlockIndex,
        /// Number of blocks.
        count: u32,
        /// Keep the room reserved.
        keep_allocated: bool,
    },
    /// Make completed writes and zeroings of the backing store durable.
    SyncBacking {
        /// Who is told.
        op: OpId,
        /// The volume.
        volume: VolumeId,
    },
    /// Make completed stores into a level durable. It never ends with `Corrupt`.
    SyncLevel {
        /// Who is told.
        op: OpId,
        /// The level.
        level: LevelIndex,
    },
    /// Record in the log that every older record of the range is dead, in every level.
    Tombstone {
        /// Who is told.
        op: OpId,
        /// The level with the log.
        level: LevelIndex,
        /// The volume.
        volume: VolumeId,
        /// First block.
        first: BlockIndex,
        /// Number of blocks.
        count: u32,
        /// What recovery does to the backing store for blocks without a newer record.
        redo: Redo,
        /// Done means durable.
        durable: bool,
    },
    /// Immediate: a slot no longer holds its block. `superseded`: a newer durable record exists.
    Free {
        /// The level.
        level: LevelIndex,
        /// The slot.
        slot: Slot,
        /// Whether a newer durable record of the block exists elsewhere.
        superseded: bool,
    },
    /// Immediate: a block that [`crate::Cache::on_cleaning`] has had destaged stays in its slot: it
    /// was used or overwritten since, it is needed, or it could not be destaged. What lies of it in
    /// a victim is copied.
    CleaningKept {
        /// The level.
        level: LevelIndex,
        /// The slot.
        slot: Slot,
    },
    /// Immediate: the log's older records of a block (tombstones too) are superseded by one that
    /// lies, or lay, outside the log.
    Forget {
        /// The level with the log.
        level: LevelIndex,
        /// The block.
        key: BlockKey,
    },
    /// Immediate: the slot's block is now in the backing store too.
    SetClean {
        /// The level.
        level: LevelIndex,
        /// The slot.
        slot: Slot,
    },
    /// Immediate: the backing store may have lost the version that the slot's clean block is.
    SetDirty {
        /// The level.
        level: LevelIndex,
        /// The slot.
        slot: Slot,
    },
    /// Immediate: the operation's buffer is no longer needed.
    Release {
        /// Which operation.
        op: OpId,
    },
    /// A drain asked for under this number has ended.
    Drained {
        /// The asker's number.
        ticket: u64,
        /// How it ended.
        result: Result<(), ErrorKind>,
    },
    /// Immediate: something to log.
    Report(Event),
}
