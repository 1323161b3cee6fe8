//! Clean copies in lent slots of the NVM level, and reads that know which block they want.
//!
//! How: a lent copy that finds no slot at once is given up, unless it may wait; the cache is not
//! told, and finds the slot empty when it reads the block. A copy that waits ends with its slot.
//! Invariant: what is placed in a slot is of the block that the cache has there, and a read of a
//! block never gives another one's bytes.
//! Cost: a comparison per read; a pass over the stores that wait, of which there are few, per slot
//! that is freed. Not for: copies that only this level has; they wait for room.

use super::nvm::{EMPTY, NvmStore};
use super::nvm_layout::HeaderState;
use super::{CorruptInfo, Ticket};
use crate::io::Io;
use layby_types::{BlockKey, Slot};

/// A store call that waits for room.
#[derive(Debug)]
pub(super) struct Delayed {
    pub(super) ticket: Ticket,
    pub(super) entries: Vec<(Slot, BlockKey, bool)>,
    pub(super) data: Vec<u8>,
    pub(super) placed: usize,
    pub(super) durable: bool,
    pub(super) borrowed: bool,
}

/// What a store is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copies {
    /// Blocks that recovery returns.
    Own,
    /// Clean copies in lent slots.
    Lent {
        /// Those that find no slot at once are placed later, rather than never.
        may_wait: bool,
    },
}

impl NvmStore {
    /// Stores clean copies that recovery will not return; no duty is owed when they are freed.
    /// Where there is no room at once their slots stay empty, unless the copies may wait for it.
    pub fn store_borrowed(
        &mut self,
        io: &mut dyn Io,
        ticket: Ticket,
        entries: &[(Slot, BlockKey)],
        data: &[u8],
        may_wait: bool,
    ) {
        let entries: Vec<_> = entries.iter().map(|(slot, key)| (*slot, *key, false)).collect();
        self.store_as(io, ticket, &entries, data, false, Copies::Lent { may_wait });
    }

    /// The slot is another block's from now on: a lent copy that waits to be placed there never is.
    pub fn give_up(&mut self, slot: Slot) {
        let block = self.geometry.block_bytes as usize;
        for store in self.delayed.iter_mut().filter(|store| store.borrowed) {
            let waits = |(at, entry): (usize, &(Slot, BlockKey, bool))| {
                (at >= store.placed && entry.0 == slot).then_some(at)
            };
            if let Some(at) = store.entries.iter().enumerate().find_map(waits) {
                store.entries.remove(at);
                store.data.drain(at * block..(at + 1) * block);
                // What is left of the store ends when it is looked at next.
                self.stirred = true;
            }
        }
    }

    /// Hands a block's bytes on, as [`NvmStore::read_with`] does; `None` where the slot is empty or
    /// holds another block.
    pub fn read_block_with(
        &self,
        slot: Slot,
        key: BlockKey,
        hand: impl FnOnce(&[u8]),
    ) -> Option<Result<(), CorruptInfo>> {
        let physical = self.slots[slot.0 as usize];
        let header = (physical != EMPTY).then(|| self.header(physical))?;
        let is_other = matches!(header, HeaderState::Sound(header) if header.key != key);
        (!is_other).then(|| self.hand_on(slot, header, hand))
    }
}
