//! The blocks of a medium and their ranking for cleaning.
//!
//! How: a record of 32 bytes per block, and doubly linked lists through these records: one per
//! number of valid pages, each in the order of joining it, so that a page that becomes invalid
//! moves its block in constant time and the emptiest block is found by a bitmap of lists.
//! Invariant: exactly the closed blocks are linked, each in the list of its valid pages.
//! Cost: constant per move; finding the lowest list reads one word per 64 lists.

use alloc::vec;
use alloc::vec::Vec;

/// No block, no page.
pub(super) const NONE: u32 = u32::MAX;

/// What a block is for at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Erased, in the queue of free blocks.
    Free,
    /// Being filled.
    Open,
    /// Full, and a candidate for cleaning.
    Closed,
    /// Between two states within one call: being cleaned, moved or filled.
    Held,
    /// Out of use for good.
    Bad,
}

/// One block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Valid pages.
    pub(super) valid: u32,
    /// Times it was erased.
    pub(super) erases: u32,
    /// Host pages written when it was closed or last lost a page.
    pub(super) changed: u64,
    pub(super) next: u32,
    pub(super) previous: u32,
    /// Which open block it is or was.
    pub(super) slot: u16,
    pub(super) state: State,
}

impl Block {
    pub(super) const ERASED: Block = Block {
        valid: 0,
        erases: 0,
        changed: 0,
        next: NONE,
        previous: NONE,
        slot: 0,
        state: State::Free,
    };
}

/// Closed blocks by how many valid pages they hold, or all in one list by age.
#[derive(Clone, Debug)]
pub(super) struct Ranking {
    lists: Vec<(u32, u32)>,
    occupied: Vec<u64>,
    /// All blocks in one list, in the order of being closed.
    by_age: bool,
}

impl Ranking {
    pub(super) fn new(pages_per_block: u32, by_age: bool) -> Self {
        let lists = if by_age { 1 } else { pages_per_block as usize + 1 };
        Ranking { lists: vec![(NONE, NONE); lists], occupied: vec![0; lists.div_ceil(64)], by_age }
    }
    fn list(&self, valid: u32) -> usize {
        if self.by_age { 0 } else { valid as usize }
    }
    /// Adds a block at the end of its list.
    pub(super) fn add(&mut self, blocks: &mut [Block], block: u32) {
        let at = self.list(blocks[block as usize].valid);
        let (head, tail) = self.lists[at];
        blocks[block as usize].previous = tail;
        blocks[block as usize].next = NONE;
        if tail == NONE {
            self.lists[at] = (block, block);
            self.occupied[at / 64] |= 1 << (at % 64);
        } else {
            blocks[tail as usize].next = block;
            self.lists[at] = (head, block);
        }
    }
    /// Takes a block out of its list.
    pub(super) fn remove(&mut self, blocks: &mut [Block], block: u32) {
        let Block { valid, next, previous, .. } = blocks[block as usize];
        let at = self.list(valid);
        let (mut head, mut tail) = self.lists[at];
        match previous {
            NONE => head = next,
            _ => blocks[previous as usize].next = next,
        }
        match next {
            NONE => tail = previous,
            _ => blocks[next as usize].previous = previous,
        }
        self.lists[at] = (head, tail);
        if head == NONE {
            self.occupied[at / 64] &= !(1 << (at % 64));
        }
    }
    /// A closed block lost a valid page.
    #[inline]
    pub(super) fn lower(&mut self, blocks: &mut [Block], block: u32) {
        if self.by_age {
            blocks[block as usize].valid -= 1;
        } else {
            self.remove(blocks, block);
            blocks[block as usize].valid -= 1;
            self.add(blocks, block);
        }
    }
    /// The first block of list `at`, the one that has been in it for longest.
    pub(super) fn first(&self, at: usize) -> Option<u32> {
        let head = self.lists[at].0;
        (head != NONE).then_some(head)
    }
    /// The lowest list, from `from` on, that holds a block.
    pub(super) fn lowest(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.occupied.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
    /// Lists that hold a block, lowest first.
    pub(super) fn occupied(&self) -> impl Iterator<Item = usize> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let found = self.lowest(from)?;
            from = found + 1;
            Some(found)
        })
    }
    /// Blocks of list `at`, in the order of joining it.
    pub(super) fn members<'a>(
        &'a self,
        blocks: &'a [Block],
        at: usize,
    ) -> impl Iterator<Item = u32> + 'a {
        core::iter::successors(self.first(at), |&block| {
            Some(blocks[block as usize].next).filter(|&next| next != NONE)
        })
    }
    /// Bytes that the lists take.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.lists.as_slice()) + size_of_val(self.occupied.as_slice())
    }
}
