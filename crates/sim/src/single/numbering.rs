//! The distinct blocks of a trace, numbered in the order in which they come.
//!
//! Invariant: numbers have no gaps. Cost: one look-up per reference; 12 to 18 bytes per block, not
//! bounded. Not for: replaying; a level needs only the blocks that it holds.

use super::references::Batch;
use super::table::NONE;
use hashbrown::HashTable;
use layby_policy::mix;
use layby_types::BlockKey;

/// See the file's header.
#[derive(Default)]
pub(crate) struct Numbering {
    keys: Vec<BlockKey>,
    numbers: HashTable<u32>,
}

impl Numbering {
    /// The number of `key`.
    #[inline]
    pub(crate) fn number(&mut self, key: BlockKey) -> u32 {
        let keys = &mut self.keys;
        let next = keys.len() as u32;
        let entry = self.numbers.entry(
            mix(key.0),
            |number| keys[*number as usize] == key,
            |number| mix(keys[*number as usize].0),
        );
        let number = *entry.or_insert(next).get();
        if number == next {
            assert!(next < NONE, "blocks are numbered in 32 bits");
            keys.push(key);
        }
        number
    }

    pub(crate) fn len(&self) -> u32 {
        self.keys.len() as u32
    }
}

/// Counts the distinct blocks of a trace.
#[derive(Default)]
pub struct Footprint {
    numbering: Numbering,
}

impl Footprint {
    /// Adds the blocks of `batch`.
    pub fn add(&mut self, batch: &Batch) {
        for key in batch.keys() {
            self.numbering.number(*key);
        }
    }
    /// Distinct blocks so far.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.numbering.len()
    }
}
