//! Operations in flight: what each is doing and who waits for it.
//!
//! How: an operation locks the blocks of its run; whatever else wants one of them queues behind it
//! and is dispatched again, in order, when the operation ends. Destaging does not lock: a write
//! that meets it marks the block as superseded, and it stays dirty.
//! Invariant: at most one locking operation per block; no operation waits while it holds room.

use crate::action::{Few, Part};
use crate::admission::BlockSet;
use crate::waiting::Arrival;
use alloc::collections::VecDeque;
use layby_types::{BlockIndex, ErrorKind, LevelIndex, RequestId, Slot};
use smallvec::SmallVec;

/// A part of a request that concerns one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) request: RequestId,
    pub(crate) block: BlockIndex,
    pub(crate) part: Part,
    pub(crate) want: Want,
}

/// What a piece wants of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Read,
    Write { durable: bool },
    Zero { durable: bool },
}

/// A read that an operation's data will answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader {
    pub(crate) request: RequestId,
    pub(crate) index: u32,
    pub(crate) part: Part,
}

/// The readers of a run; most runs are one block with one reader.
pub(crate) type Readers = SmallVec<[Reader; 1]>;

/// See the file's header.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) volume: u16,
    pub(crate) first: BlockIndex,
    pub(crate) count: u32,
    pub(crate) task: Task,
    /// Actions whose end has not been told yet.
    pub(crate) outstanding: u32,
    pub(crate) error: Option<ErrorKind>,
    pub(crate) queue: VecDeque<Piece>,
}

impl Op {
    /// Whether it, or a piece that waits behind it, changes its volume.
    pub(crate) fn changes(&self) -> bool {
        let is_change = match &self.task {
            Task::Store(_) | Task::Evict(_) | Task::Destage(_) | Task::Discard(_) => true,
            Task::Fetch(_) | Task::Flush(_) => false,
        };
        is_change || self.queue.iter().any(|piece| piece.want != Want::Read)
    }
}

/// What an operation does.
#[derive(Debug)]
pub(crate) enum Task {
    Fetch(Fetch),
    Store(Store),
    Evict(Evict),
    Destage(Destage),
    Discard(Discard),
    Flush(Flush),
}

/// Why blocks are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sought {
    /// Somebody asked for them.
    Asked,
    /// A reader goes on in order and will ask for them.
    Ahead,
    /// Their home has them at hand.
    AtHand,
}

impl Sought {
    /// Whether nobody has asked for them yet.
    pub(crate) fn is_ahead(self) -> bool {
        self != Sought::Asked
    }
}

/// Bring blocks in for readers, then promote them.
#[derive(Debug)]
pub(crate) struct Fetch {
    /// The level read from, or the backing store.
    pub(crate) from: Option<LevelIndex>,
    /// It is read from the backing store though a persistent level has it, which could not be read.
    pub(crate) is_held: bool,
    pub(crate) slots: Few<Slot>,
    pub(crate) readers: Readers,
    pub(crate) sought: Sought,
    /// Its blocks that may be kept, once its bytes have come.
    pub(crate) admitted: BlockSet,
    /// Its blocks that were asked for since it began, where it began without a reader.
    pub(crate) asked: BlockSet,
    pub(crate) promotion: Option<Promotion>,
    /// The data waits for room in this level; whoever wants to write the block cancels that.
    pub(crate) waits_for: Option<usize>,
}

/// The second half of a fetch: its data enters a level.
#[derive(Debug)]
pub(crate) struct Promotion {
    pub(crate) level: LevelIndex,
    /// First block of the fetch's run that is promoted; the rest follow.
    pub(crate) slots: Few<(u32, Slot)>,
    pub(crate) dirty: bool,
}

/// Store a client's blocks.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) request: RequestId,
    pub(crate) durable: bool,
    pub(crate) origin: Origin,
    pub(crate) phase: StorePhase,
    /// The level written, or the backing store.
    pub(crate) level: Option<LevelIndex>,
    /// Once it has waited for room in the level: it keeps its place until it finds some.
    pub(crate) arrival: Option<Arrival>,
    /// Slot per block, and whether it is new to the block.
    pub(crate) slots: Few<(Slot, bool)>,
    /// How many of them count as being stored.
    pub(crate) counted: u32,
}

/// Where a store's data comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Whole blocks of the payload from this byte on.
    Payload { offset: u32 },
    /// A part of one block, merged into what it held.
    Merge { part: Part, zero: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorePhase {
    /// Reading what a merge goes into, from this level or the backing store.
    Reading { from: Option<LevelIndex> },
    /// Waiting for room, or for a destage of a block that is written through.
    Waiting,
    /// In the level's or the backing store's hands.
    Storing,
    /// Making durable that older records of a block to be written through are dead.
    Burying,
    /// Making durable that a lost block is whole in the backing store.
    Finding,
}

/// Move a dirty block one persistent level down.
#[derive(Debug)]
pub(crate) struct Evict {
    pub(crate) from: (LevelIndex, Slot),
    pub(crate) to: (LevelIndex, Slot),
    pub(crate) storing: bool,
}

/// Copy a run of dirty blocks home.
#[derive(Debug)]
pub(crate) struct Destage {
    pub(crate) level: LevelIndex,
    pub(crate) slots: Few<Slot>,
    pub(crate) phase: DestagePhase,
    /// What had been stored in the level when its sync began.
    pub(crate) stored: u64,
    /// The volume's generation when the blocks were about to be read.
    pub(crate) generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DestagePhase {
    /// Being read, and made durable where it lies.
    Reading,
    /// On its way home.
    Writing,
}

/// Make a range read as zeros, chunk by chunk.
#[derive(Debug)]
pub(crate) struct Discard {
    pub(crate) request: RequestId,
    pub(crate) keep_allocated: bool,
    pub(crate) durable: bool,
    pub(crate) phase: DiscardPhase,
    /// First block not yet done.
    pub(crate) cursor: u64,
    /// Blocks of the chunk that begins there.
    pub(crate) chunk: u32,
    /// Levels might have had records of the volume when the chunk began: it may have changed since.
    pub(crate) is_logged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiscardPhase {
    /// Operations on the range are still in flight.
    Waiting,
    /// The log records the chunk.
    Logging,
    /// The backing store zeroes the chunk.
    Zeroing,
    /// The zeroing becomes durable where no log can redo it.
    SyncingBacking,
    /// The dropped records become durable where no log can.
    SyncingLevel,
}

/// Make completed writes durable.
#[derive(Debug)]
pub(crate) struct Flush {
    pub(crate) request: RequestId,
    /// What had been stored in each place when the flush began.
    pub(crate) stored: Few<(usize, u64)>,
}

/// A block on its way home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DestageMark {
    /// The level that it is written back from.
    pub(crate) level: LevelIndex,
    /// A newer version arrived meanwhile: the block stays dirty.
    pub(crate) superseded: bool,
}
