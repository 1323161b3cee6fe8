//! Belady's MIN: evicts the block whose next use is furthest away. No policy of a node can do
//! better, and none can do this, since it knows the whole trace before it begins.
//!
//! How: the references are gathered as numbers of blocks, one walk backwards finds each one's next
//! use, and a heap gives the resident block with the furthest. An entry of the heap is stale once
//! its use has come; stale ones are never the furthest, and are swept out when they outnumber the
//! others. Every miss brings its block in: filters, which see no future, have no part in it.
//! Invariant: an eviction takes a resident block. Cost: logarithmic per reference; 8 bytes per
//! reference and some 17 per block, not bounded.
//! Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.

use super::level::Counts;
use super::numbering::Numbering;
use super::references::{Batch, StreamError};
use layby_policy::curve::Access;
use std::collections::BinaryHeap;

/// The next use of what is not used again.
const NEVER: u32 = u32::MAX;
/// The mark of a write beside a block's number.
const WRITE: u32 = 1 << 31;
/// Stale entries beside those of twice the slots, before the heap is swept.
const STALE_MAX: usize = 1024;

/// Gathers a trace.
#[derive(Default)]
pub struct Future {
    numbering: Numbering,
    references: Vec<u32>,
}

impl Future {
    /// Adds the references of `batch`.
    ///
    /// # Errors
    /// [`StreamError::TooLong`] when there are more than can be numbered.
    pub fn add(&mut self, batch: &Batch) -> Result<(), StreamError> {
        if self.references.len() + batch.len() >= NEVER as usize {
            return Err(StreamError::TooLong);
        }
        for (key, access) in batch.keys().iter().zip(batch.accesses()) {
            let mark = if *access == Access::Write { WRITE } else { 0 };
            self.references.push(self.numbering.number(*key) | mark);
        }
        if self.numbering.len() >= WRITE { Err(StreamError::TooLong) } else { Ok(()) }
    }

    /// The trace has ended: every use's next one is known.
    #[must_use]
    pub fn known(self) -> Known {
        let blocks = self.numbering.len();
        let mut nexts = vec![NEVER; self.references.len()];
        let mut seen = vec![NEVER; blocks as usize];
        for (at, reference) in self.references.iter().enumerate().rev() {
            let block = (reference & !WRITE) as usize;
            nexts[at] = std::mem::replace(&mut seen[block], at as u32);
        }
        Known { references: self.references, nexts, blocks }
    }
}

/// A whole trace, with the next use of every reference's block.
pub struct Known {
    references: Vec<u32>,
    nexts: Vec<u32>,
    blocks: u32,
}

impl Known {
    /// Distinct blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// What a level of `slots` slots does that evicts as well as can be.
    #[must_use]
    pub fn replay(&self, slots: u32) -> Counts {
        assert!(slots > 0, "a level of no slots");
        let mut counts = Counts::default();
        let mut residents = Residents::new(self.blocks, slots);
        for (at, (reference, next)) in self.references.iter().zip(&self.nexts).enumerate() {
            let (block, side) = (reference & !WRITE, usize::from(reference & WRITE != 0));
            counts.requests[side] += 1;
            if residents.holds(block) {
                counts.hits[side] += 1;
            } else {
                counts.evictions += u64::from(residents.make_room());
                counts.insertions += 1;
            }
            residents.keep(block, at as u32, *next);
        }
        counts
    }
}

struct Residents {
    slots: u32,
    len: u32,
    is_resident: Vec<bool>,
    /// Next use above, block below.
    heap: BinaryHeap<u64>,
}

impl Residents {
    fn new(blocks: u32, slots: u32) -> Self {
        let is_resident = vec![false; blocks as usize];
        Residents { slots, len: 0, is_resident, heap: BinaryHeap::new() }
    }

    fn holds(&self, block: u32) -> bool {
        self.is_resident[block as usize]
    }

    /// Evicts a block if there is no room for another; whether it did.
    fn make_room(&mut self) -> bool {
        if self.len < self.slots {
            return false;
        }
        let entry = self.heap.pop().expect("a full level has an entry per block");
        let furthest = std::mem::take(&mut self.is_resident[entry as u32 as usize]);
        assert!(furthest, "the furthest block is here");
        self.len -= 1;
        true
    }

    /// `block` is used at `now` and then at `next`.
    fn keep(&mut self, block: u32, now: u32, next: u32) {
        if !std::mem::replace(&mut self.is_resident[block as usize], true) {
            self.len += 1;
        }
        self.heap.push(u64::from(next) << 32 | u64::from(block));
        if self.heap.len() > 2 * self.slots as usize + STALE_MAX {
            self.heap.retain(|entry| (entry >> 32) as u32 > now);
        }
    }
}
