//! Operations that a host has accepted and not ended, by slot.
//!
//! How: a vector of slots with a list of free ones; the slot travels through the kernel as the
//! operation's mark.
//! Invariant: a slot names one flight from `insert` to `remove`.
//! Cost: constant per call; memory for the most flights there ever were.
//! Not for: ordering; sockets keep their own queues of slots.

use super::{IoDone, IoError, IoOperation, Token, WriteLife};

/// One accepted operation.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) token: Token,
    pub(super) operation: IoOperation,
    /// Bytes moved so far, where an operation takes several system calls.
    pub(super) moved: usize,
    /// How often a simpler way had to be taken because the kernel refused the better one.
    pub(super) retreats: u8,
    /// Bytes of one system call at most.
    pub(super) piece: usize,
    /// How long what it writes is likely to live, where its disk is to hear of it.
    pub(super) life: Option<WriteLife>,
    /// Its entry in the kernel's hands names a write stream.
    pub(super) is_streamed: bool,
    /// All of it is written, and is being made durable; or that is what failed.
    pub(super) is_syncing: bool,
    /// A durable write failed so. It is repeated without its sync: where that ends well, the sync
    /// is what failed.
    pub(super) refused: Option<IoError>,
    /// Its number among [`super::suspects::Suspects`], from then on.
    pub(super) suspect: Option<u64>,
}

impl Flight {
    pub(super) fn new(token: Token, operation: IoOperation) -> Self {
        let (piece, life, is_streamed, is_syncing) = (usize::MAX, None, false, false);
        let (moved, retreats, refused, suspect) = (0, 0, None, None);
        Flight {
            token,
            operation,
            moved,
            retreats,
            piece,
            life,
            is_streamed,
            is_syncing,
            refused,
            suspect,
        }
    }

    /// Bytes of a send that the kernel was not given yet.
    pub(super) fn unsent(&self) -> u64 {
        match &self.operation {
            IoOperation::Send { start, end, .. } => (end - start - self.moved) as u64,
            _ => 0,
        }
    }

    pub(super) fn end(self, result: Result<usize, IoError>) -> IoDone {
        let is_sync_failed = self.is_syncing && result.is_err();
        IoDone { is_sync_failed, ..IoDone::new(self.token, result, self.operation.into_buffer()) }
    }
}

/// All flights of one `Io`.
#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Vec<Option<Flight>>,
    free: Vec<u32>,
}

impl Flights {
    pub(super) fn insert(&mut self, flight: Flight) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(flight);
            return slot;
        }
        // Disks have a bound of their own, sockets and events a few each.
        let slot = u32::try_from(self.slots.len()).expect("memory ends long before");
        self.slots.push(Some(flight));
        slot
    }

    pub(super) fn get(&self, slot: u32) -> &Flight {
        self.slots[slot as usize].as_ref().expect("the kernel ends an operation once")
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Flight {
        self.slots[slot as usize].as_mut().expect("the kernel ends an operation once")
    }

    pub(super) fn remove(&mut self, slot: u32) -> Flight {
        self.free.push(slot);
        self.slots[slot as usize].take().expect("the kernel ends an operation once")
    }

    /// Flights now.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
