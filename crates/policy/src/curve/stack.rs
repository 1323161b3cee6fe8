//! Stack distances: how many distinct blocks were used since a block's last use.
//!
//! How: every use takes the next moment; a table knows each block's last moment, and marks tell how
//! many last moments lie after it. When the moments run out, the live ones are renumbered in
//! order. A block that is forgotten leaves a *hole*: the room it had in every cache that held it,
//! which the next block that such a cache takes in fills. So distances stay those of real caches.
//! Invariant: one mark per block in the table and per hole. Cost: a look-up and three walks of a
//! small tree per use; 16 bytes per place of the table (at most five in eight are taken) and half a
//! byte of marks per block.

use super::marks::Marks;
use super::table::{Entry, Table};
use alloc::collections::BinaryHeap;
use layby_types::BlockKey;

/// Moments per block: renumbering then costs little beside the uses between two of them.
const MOMENTS_PER_BLOCK: u32 = 4;
const MOMENTS_MIN: u32 = 4096;
/// See the file's header.
pub struct StackDistances {
    table: Table,
    marks: Marks,
    /// The moments of the holes, the latest first.
    holes: BinaryHeap<u32>,
    next: u32,
    places_max: u32,
}

impl Default for StackDistances {
    fn default() -> Self {
        StackDistances::new()
    }
}

impl StackDistances {
    /// Blocks that can be told apart; beyond, moments would not fit 32 bits.
    pub const BLOCKS_MAX: u32 = 1 << 29;

    /// For up to [`StackDistances::BLOCKS_MAX`] blocks; memory grows with them.
    #[must_use]
    pub fn new() -> Self {
        let (table, marks) = (Table::new(1024), Marks::new(MOMENTS_MIN));
        StackDistances { table, marks, holes: BinaryHeap::new(), next: 0, places_max: u32::MAX }
    }

    /// For `blocks` blocks and holes at once, in memory that never grows.
    pub(crate) fn bounded(blocks: u32) -> Self {
        let table = Table::new(blocks + blocks / 4);
        let marks = Marks::new(blocks * MOMENTS_PER_BLOCK);
        let holes = BinaryHeap::with_capacity(blocks as usize);
        StackDistances { table, marks, holes, next: 0, places_max: 0 }
    }

    /// Distinct blocks that are remembered.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.table.len()
    }

    /// Whether no block is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Blocks and holes.
    pub(crate) fn depth(&self) -> u32 {
        self.len() + self.holes.len() as u32
    }

    /// A use of `key`: distinct blocks used since its last one, `None` when there was none.
    #[inline]
    pub fn on_use(&mut self, key: BlockKey) -> Option<u32> {
        let used = self.on_use_again(key, |_, distance| distance);
        if used.is_none() {
            self.add(key);
        }
        used
    }

    /// A use of `key` that counts only if the block is remembered; `then` may change its chain.
    #[inline]
    pub(crate) fn on_use_again(
        &mut self,
        key: BlockKey,
        then: impl FnOnce(&mut u32, u32) -> u32,
    ) -> Option<u32> {
        if self.next == self.marks.moments() {
            self.renumber();
        }
        let Entry { moment, chain, .. } = self.table.find(key)?;
        let distance = self.marks.count_after(*moment);
        // Caches between hole and block fill the hole; larger ones keep one, where the block was.
        match self.holes.peek_mut() {
            Some(mut hole) if *hole > *moment => {
                self.marks.advance(*hole, self.next);
                *hole = *moment;
            }
            _ => self.marks.advance(*moment, self.next),
        }
        *moment = self.next;
        self.next += 1;
        Some(then(chain, distance))
    }

    /// Remembers `key`, which is new.
    pub(crate) fn add(&mut self, key: BlockKey) {
        assert!(self.len() < Self::BLOCKS_MAX, "moments are counted in 32 bits");
        if self.next == self.marks.moments() {
            self.renumber();
        }
        self.table.add(key, self.next, self.places_max);
        match self.holes.pop() {
            Some(hole) => self.marks.advance(hole, self.next),
            None => self.marks.set(self.next),
        }
        self.next += 1;
    }

    /// `key` leaves every cache, which then has room for another block; whether it was remembered.
    pub fn forget(&mut self, key: BlockKey) -> bool {
        let moment = self.table.remove(key);
        self.holes.extend(moment);
        moment.is_some()
    }

    /// Takes every block that `goes` out of the sample, told its key and how many were used since,
    /// and one hole in `holes_part`.
    pub(crate) fn forget_where(
        &mut self,
        goes: impl Fn(BlockKey, u32) -> bool,
        holes_part: Option<u32>,
    ) {
        self.renumber();
        // Moments are now ranks, and stay so until the marks are renumbered again.
        let last = self.depth().saturating_sub(1);
        let marks = &mut self.marks;
        let mut holes_seen = 0;
        self.holes.retain(|hole| {
            holes_seen += 1;
            let stays = holes_part.is_none_or(|part| holes_seen % part != 0);
            if !stays {
                marks.clear(*hole);
            }
            stays
        });
        self.table.remove_where(
            |entry| goes(entry.key, last - entry.moment),
            |entry| marks.clear(entry.moment),
        );
    }

    /// Gives the live moments the lowest numbers, in order.
    fn renumber(&mut self) {
        let marks = &self.marks;
        for entry in self.table.entries_mut() {
            entry.moment = marks.count_before(entry.moment);
        }
        let mut holes = core::mem::take(&mut self.holes).into_vec();
        for hole in &mut holes {
            *hole = marks.count_before(*hole);
        }
        self.holes = BinaryHeap::from(holes);
        self.next = self.depth();
        let wanted = self.next.saturating_mul(MOMENTS_PER_BLOCK);
        let moments = if self.places_max == 0 { 0 } else { wanted };
        self.marks.restart(self.next, moments);
        assert!(self.next < self.marks.moments(), "renumbering makes room");
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let holes = self.holes.capacity() * size_of::<u32>();
        self.table.memory_bytes() + self.marks.memory_bytes() + holes
    }
}
