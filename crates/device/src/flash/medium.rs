//! The medium: blocks, the map of pages, and the only ways to change them.
//!
//! How: `forward` says where a logical page lies, `reverse` which logical page a place was written
//! with, and a bitmap whether that is still so. A place is `block << shift | index`, so that its
//! block costs no division.
//! Invariant: for every mapped page, `reverse[forward[page]] == page` and its bit is set; a block's
//! `valid` counts its bits. Cost: one access to far memory per page programmed, for `forward`.

use super::blocks::{Block, NONE, Ranking, State};
use super::configuration::{Cleaning, Configuration, CopyPlacement};
use super::statistics::Statistics;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// Why pages are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Cleaning,
    Leveling,
    Rescue,
}

/// What the medium did, for those who reckon time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Performed {
    Program { to: u32 },
    Copy { from: u32, to: u32 },
    Erase { block: u32 },
}

/// A block that is being filled, and the index of its next page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) block: u32,
    pub(super) index: u32,
}

const CLOSED: Open = Open { block: NONE, index: 0 };

#[derive(Clone, Debug)]
pub(super) struct Medium {
    pub(super) pages_per_block: u32,
    pub(super) shift: u32,
    words: usize,
    streams: u16,
    copies: CopyPlacement,
    pub(super) forward: Vec<u32>,
    pub(super) reverse: Vec<u32>,
    pub(super) valid: Vec<u64>,
    pub(super) blocks: Vec<Block>,
    pub(super) ranking: Ranking,
    pub(super) free: VecDeque<u32>,
    pub(super) open: Vec<Open>,
    pub(super) mapped_pages: u32,
    /// Blocks, the reserve left out.
    pub(super) blocks_counted: u32,
    pub(super) bad_blocks: u32,
    pub(super) statistics: Statistics,
    /// How often each block may be erased; one entry where all are alike, none for no limit.
    pub(super) endurance: Vec<u32>,
    /// What was done since it was last taken; `None` where nobody reckons time.
    pub(super) performed: Option<Vec<Performed>>,
    /// Blocks whose state or erase count changed since a leveler last looked.
    pub(super) touched: Option<Vec<u32>>,
}

impl Medium {
    pub(super) fn new(configuration: &Configuration) -> Self {
        let geometry = configuration.geometry;
        let words = geometry.pages_per_block.div_ceil(64) as usize;
        let blocks = geometry.blocks as usize;
        let slots = match configuration.copies {
            CopyPlacement::Shared => configuration.streams,
            CopyPlacement::PerStream => configuration.streams * 2,
            CopyPlacement::Together => configuration.streams + 1,
        };
        let by_age = configuration.cleaning == Cleaning::Lru;
        Medium {
            pages_per_block: geometry.pages_per_block,
            shift: geometry.pages_per_block.next_power_of_two().trailing_zeros(),
            words,
            streams: configuration.streams,
            copies: configuration.copies,
            forward: vec![NONE; geometry.logical_pages as usize],
            reverse: vec![NONE; blocks * geometry.pages_per_block as usize],
            valid: vec![0; blocks * words],
            blocks: vec![Block::ERASED; blocks],
            ranking: Ranking::new(geometry.pages_per_block, by_age),
            free: (0..geometry.blocks).collect(),
            open: vec![CLOSED; slots.into()],
            mapped_pages: 0,
            blocks_counted: geometry.blocks - geometry.reserve_blocks,
            bad_blocks: 0,
            statistics: Statistics::default(),
            endurance: Vec::new(),
            performed: None,
            touched: None,
        }
    }

    /// The open block that copies out of `block` go to.
    pub(super) fn copy_slot(&self, block: u32) -> u16 {
        let slot = self.blocks[block as usize].slot;
        match self.copies {
            CopyPlacement::Shared => slot,
            CopyPlacement::PerStream if slot < self.streams => self.streams + slot,
            CopyPlacement::PerStream => slot,
            CopyPlacement::Together => self.streams,
        }
    }
    pub(super) fn is_open(&self, slot: u16) -> bool {
        self.open[usize::from(slot)].block != NONE
    }
    /// Pages that can still be written through `slot`, free blocks included.
    fn room(&self, slot: u16) -> u64 {
        let open = self.open[usize::from(slot)];
        let rest = if open.block == NONE { 0 } else { self.pages_per_block - open.index };
        u64::from(rest) + self.free.len() as u64 * u64::from(self.pages_per_block)
    }
    /// Whether all valid pages of `block` can be copied away.
    pub(super) fn can_evacuate(&self, block: u32) -> bool {
        self.room(self.copy_slot(block)) >= u64::from(self.blocks[block as usize].valid)
    }
    #[inline]
    fn set_state(&mut self, block: u32, state: State) {
        self.blocks[block as usize].state = state;
        if let Some(touched) = &mut self.touched {
            touched.push(block);
        }
    }
    #[inline]
    fn did(&mut self, what: Performed) {
        if let Some(performed) = &mut self.performed {
            performed.push(what);
        }
    }
    fn index_of(&self, place: u32) -> (u32, u32) {
        (place >> self.shift, place & ((1 << self.shift) - 1))
    }
    pub(super) fn place(&self, block: u32, index: u32) -> u32 {
        block << self.shift | index
    }
    fn reverse_at(&self, block: u32, index: u32) -> usize {
        block as usize * self.pages_per_block as usize + index as usize
    }
    fn word_at(&self, block: u32, index: u32) -> usize {
        block as usize * self.words + (index / 64) as usize
    }

    /// Opens the free block that was erased first.
    pub(super) fn open_block(&mut self, slot: u16) {
        let block = self.free.pop_front().expect("the caller saw a free block");
        self.blocks[block as usize].slot = slot;
        self.set_state(block, State::Open);
        self.open[usize::from(slot)] = Open { block, index: 0 };
    }
    /// Writes `page` to the next place of `slot`, opening a block if it must; the old place, if
    /// any, is no longer valid already or is about to be erased.
    #[inline]
    pub(super) fn append(&mut self, slot: u16, page: u32) -> u32 {
        if self.open[usize::from(slot)].block == NONE {
            self.open_block(slot);
        }
        let Open { block, index } = self.open[usize::from(slot)];
        self.put(block, index, page);
        self.open[usize::from(slot)].index = index + 1;
        if index + 1 == self.pages_per_block {
            self.open[usize::from(slot)] = CLOSED;
            self.close(block);
        }
        self.place(block, index)
    }
    /// Writes `page` to a place.
    #[inline]
    fn put(&mut self, block: u32, index: u32, page: u32) {
        let (reverse, word) = (self.reverse_at(block, index), self.word_at(block, index));
        self.reverse[reverse] = page;
        self.valid[word] |= 1 << (index % 64);
        self.blocks[block as usize].valid += 1;
        self.forward[page as usize] = self.place(block, index);
    }
    /// Makes a block a candidate for cleaning.
    pub(super) fn close(&mut self, block: u32) {
        self.blocks[block as usize].changed = self.statistics.host_pages;
        self.set_state(block, State::Closed);
        self.ranking.add(&mut self.blocks, block);
    }
    /// Forgets what an open slot's block could still take.
    pub(super) fn close_slot(&mut self, slot: u16) {
        let open = core::mem::replace(&mut self.open[usize::from(slot)], CLOSED);
        if open.block != NONE {
            self.close(open.block);
        }
    }

    /// Writes a page of the host.
    #[inline]
    pub(super) fn write(&mut self, slot: u16, page: u32) {
        let old = self.forward[page as usize];
        self.statistics.host_pages += 1;
        if old == NONE {
            self.mapped_pages += 1;
        } else {
            self.invalidate(old);
        }
        let to = self.append(slot, page);
        self.did(Performed::Program { to });
    }
    /// Unmaps a page; whether it was mapped.
    pub(super) fn unmap(&mut self, page: u32) -> bool {
        let old = core::mem::replace(&mut self.forward[page as usize], NONE);
        if old == NONE {
            return false;
        }
        self.mapped_pages -= 1;
        self.invalidate(old);
        true
    }
    #[inline]
    fn invalidate(&mut self, place: u32) {
        let (block, index) = self.index_of(place);
        let word = self.word_at(block, index);
        self.valid[word] &= !(1 << (index % 64));
        let state = self.blocks[block as usize].state;
        if state == State::Closed {
            self.blocks[block as usize].changed = self.statistics.host_pages;
            self.ranking.lower(&mut self.blocks, block);
        } else {
            self.blocks[block as usize].valid -= 1;
        }
    }

    /// Takes a closed block out of the candidates.
    pub(super) fn hold(&mut self, block: u32) {
        assert_eq!(self.blocks[block as usize].state, State::Closed, "only closed blocks are held");
        self.ranking.remove(&mut self.blocks, block);
        self.set_state(block, State::Held);
    }
    /// Takes a particular free block.
    pub(super) fn hold_free(&mut self, block: u32) {
        let last = self.free.back() == Some(&block);
        let at = if last { Some(self.free.len() - 1) } else { self.free_position(block) };
        self.free.remove(at.expect("the caller saw it free"));
        self.set_state(block, State::Held);
    }
    fn free_position(&self, block: u32) -> Option<usize> {
        self.free.iter().position(|&free| free == block)
    }
    /// Copies the valid pages of a held block to the open block for copies.
    pub(super) fn evacuate(&mut self, block: u32, cause: Cause) {
        assert_eq!(self.blocks[block as usize].state, State::Held, "a victim is held first");
        let slot = self.copy_slot(block);
        self.count(cause, self.blocks[block as usize].valid.into());
        for word in 0..self.words as u32 {
            let mut bits = self.valid[self.word_at(block, word * 64)];
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let page = self.reverse[self.reverse_at(block, index)];
                let to = self.append(slot, page);
                self.did(Performed::Copy { from: self.place(block, index), to });
            }
        }
        self.clear(block);
    }
    /// Copies the valid pages of one held block to the same places of another, erased one, which
    /// becomes a candidate with holes.
    pub(super) fn transplant(&mut self, from: u32, to: u32) {
        assert_eq!(self.blocks[to as usize].valid, 0, "a block is erased before it is written");
        self.count(Cause::Leveling, self.blocks[from as usize].valid.into());
        self.blocks[to as usize].slot = self.blocks[from as usize].slot;
        for word in 0..self.words as u32 {
            let mut bits = self.valid[self.word_at(from, word * 64)];
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let page = self.reverse[self.reverse_at(from, index)];
                self.put(to, index, page);
                let (from, to) = (self.place(from, index), self.place(to, index));
                self.did(Performed::Copy { from, to });
            }
        }
        self.clear(from);
        self.close(to);
    }
    fn count(&mut self, cause: Cause, pages: u64) {
        match cause {
            Cause::Cleaning => self.statistics.cleaning_pages += pages,
            Cause::Leveling => self.statistics.leveling_pages += pages,
            Cause::Rescue => self.statistics.rescue_pages += pages,
        }
    }
    fn clear(&mut self, block: u32) {
        let first = self.word_at(block, 0);
        self.valid[first..first + self.words].fill(0);
        self.blocks[block as usize].valid = 0;
    }
    /// Erases a held block without valid pages; whether it may be used again.
    pub(super) fn erase(&mut self, block: u32, cause: Cause) -> bool {
        let record = &mut self.blocks[block as usize];
        assert_eq!((record.state, record.valid), (State::Held, 0), "no valid page is erased");
        record.erases += 1;
        match cause {
            Cause::Leveling => self.statistics.leveling_erases += 1,
            Cause::Cleaning | Cause::Rescue => self.statistics.cleaning_erases += 1,
        }
        let erases = self.blocks[block as usize].erases;
        self.did(Performed::Erase { block });
        let limit = self.endurance.get(block as usize).or_else(|| self.endurance.first());
        limit.is_none_or(|&limit| erases < limit)
    }
    /// A held, erased block becomes free, behind those that already are.
    pub(super) fn release(&mut self, block: u32) {
        self.set_state(block, State::Free);
        self.free.push_back(block);
    }
    /// A held block without valid pages goes out of use.
    pub(super) fn retire(&mut self, block: u32) {
        assert_eq!(self.blocks[block as usize].valid, 0, "no valid page goes with a block");
        self.set_state(block, State::Bad);
        self.bad_blocks += 1;
        self.statistics.retired_blocks += 1;
    }
    /// Erases a held block and puts it where it belongs; whether it may be used again.
    pub(super) fn erase_and_release(&mut self, block: u32, cause: Cause) -> bool {
        let usable = self.erase(block, cause);
        if usable {
            self.release(block);
        } else {
            self.retire(block);
        }
        usable
    }
    /// Bytes of memory that the model holds.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.forward.as_slice())
            + size_of_val(self.reverse.as_slice())
            + size_of_val(self.valid.as_slice())
            + size_of_val(self.blocks.as_slice())
            + self.free.capacity() * size_of::<u32>()
            + size_of_val(self.endurance.as_slice())
            + self.ranking.bytes()
    }
}
