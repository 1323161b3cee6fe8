//! The stores under the levels, one kind each, behind the few calls that all share.
//!
//! How: a memory level is a slab; the others are [`NvmStore`] and [`LogStore`].
//! Invariant: a level's index in the list is its index in the cache.
//! Cost: one predictable branch per call.

use crate::io::{Buffer, Io, IoDone, OperationKind};
use crate::store::{
    LogStore, NvmStore, Reached, Region, SegmentPlan, SlotInfo, SlotView, StoreEvent,
};
use layby_cache::Cache;
use layby_types::{BlockKey, BlockSize, LevelIndex, Nanos, Slot};

/// A level as a core is given it.
#[derive(Clone, Debug)]
pub enum LevelPlan {
    /// Memory for so many slots.
    Memory {
        /// Slots.
        slots: u32,
    },
    /// NVM slots in a region of a mappable disk.
    Nvm {
        /// Where.
        region: Region,
        /// Make it anew.
        format: bool,
        /// Do not start where a structure is damaged beyond help.
        is_strict: bool,
        /// How far it had come, where that is known.
        known: Option<Reached>,
    },
    /// A log in a region of a disk.
    Ssd {
        /// Where.
        region: Region,
        /// Make it anew.
        format: bool,
        /// As above.
        is_strict: bool,
        /// As above.
        known: Option<Reached>,
        /// Its segments.
        segments: SegmentPlan,
        /// How long it shall last.
        wear: super::wear::WearPlan,
    },
}

/// A level's bytes.
pub enum Level {
    /// Volatile memory.
    Memory(Slab),
    /// Persistent memory.
    Nvm(Box<NvmStore>),
    /// The log.
    Ssd(Box<LogStore>),
}

/// Blocks in memory, by slot.
pub struct Slab {
    bytes: Buffer,
    block: usize,
    pub(super) bytes_written: u64,
}

impl Slab {
    /// None where there is not so much memory.
    pub(super) fn new(slots: u32, block_size: BlockSize) -> Option<Self> {
        let block = block_size.len();
        let bytes = Buffer::try_zeroed((slots as usize * block).max(block))?;
        Some(Slab { bytes, block, bytes_written: 0 })
    }

    pub(super) fn block(&self, slot: Slot) -> &[u8] {
        let at = slot.0 as usize * self.block;
        &self.bytes[at..at + self.block]
    }

    pub(super) fn write(&mut self, slot: Slot, data: &[u8]) {
        let at = slot.0 as usize * self.block;
        self.bytes[at..at + self.block].copy_from_slice(data);
        self.bytes_written += data.len() as u64;
    }
}

/// The cache's table of one level, as its store sees it.
pub(super) struct View<'a> {
    pub(super) cache: &'a Cache,
    pub(super) level: LevelIndex,
}

impl SlotView for View<'_> {
    fn slot(&self, slot: Slot) -> Option<SlotInfo> {
        self.cache.slot(self.level, slot).map(|(key, dirty)| SlotInfo { key, dirty })
    }

    fn lost(&self) -> Vec<(BlockKey, u64)> {
        self.cache.lost().iter().collect()
    }
}

impl Level {
    /// A block of a memory level.
    pub(super) fn memory(&self, slot: Slot) -> &[u8] {
        let Level::Memory(slab) = self else { panic!("only memory is read in place") };
        slab.block(slot)
    }

    pub(super) fn nvm(&mut self) -> &mut NvmStore {
        let Level::Nvm(store) = self else { panic!("the cache said it was NVM") };
        store
    }

    pub(super) fn on_io(&mut self, io: &mut dyn Io, done: IoDone) {
        match self {
            Level::Memory(_) => panic!("memory does no I/O"),
            Level::Nvm(store) => store.on_io(io, done),
            Level::Ssd(store) => store.on_io(io, done),
        }
    }

    /// Does what an end left for later; true when there was something.
    pub(super) fn go_on(&mut self, io: &mut dyn Io) -> bool {
        let Level::Ssd(store) = self else { return false };
        store.go_on(io)
    }

    pub(super) fn take_events(&mut self, events: &mut Vec<StoreEvent>) {
        match self {
            Level::Memory(_) => {}
            Level::Nvm(store) => store.take_events(events),
            Level::Ssd(store) => store.take_events(events),
        }
    }

    /// What of the device had failed works again.
    pub(super) fn forgive(&mut self, operation: OperationKind) {
        match self {
            Level::Memory(_) => {}
            Level::Nvm(store) => store.forgive(operation),
            Level::Ssd(store) => store.forgive(operation),
        }
    }

    pub(super) fn on_tick(
        &mut self,
        io: &mut dyn Io,
        now: Nanos,
        cache: &Cache,
        level: LevelIndex,
        forgets_durable: u64,
    ) {
        match self {
            Level::Memory(_) => {}
            Level::Nvm(store) => store.on_tick(io, now, forgets_durable),
            Level::Ssd(store) if store.next_deadline() <= now => {
                store.on_tick(io, now, &View { cache, level });
            }
            Level::Ssd(_) => {}
        }
    }

    pub(super) fn next_deadline(&self) -> Nanos {
        match self {
            Level::Memory(_) => Nanos::NEVER,
            Level::Nvm(store) => store.next_deadline(),
            Level::Ssd(store) => store.next_deadline(),
        }
    }

    /// True when nothing is queued or in flight.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Level::Memory(_) => true,
            Level::Nvm(store) => store.is_idle(),
            Level::Ssd(store) => store.is_idle(),
        }
    }
}
