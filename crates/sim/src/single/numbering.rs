//! The distinct blocks of a trace, numbered in the order in which they come.
//!
//! Invariant: numbers have no gaps. Cost: one look-up per reference; 12 to 18 bytes per block, not
//! bounded. Not for: replaying; a level needs only the blocks that it holds.

use super::references::{BATCH_REFERENCES_MAX, Batch, StreamError};
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
pub struct Footprint {
    numbering: Numbering,
    blocks_max: u32,
}

impl Default for Footprint {
    fn default() -> Self {
        Footprint { numbering: Numbering::default(), blocks_max: Self::BLOCKS_MAX }
    }
}

impl Footprint {
    /// Blocks that can be counted: those of one more batch can be numbered.
    pub const BLOCKS_MAX: u32 = NONE - BATCH_REFERENCES_MAX as u32;

    /// The same with another bound.
    #[cfg(test)]
    pub(super) fn within(blocks_max: u32) -> Self {
        Footprint { blocks_max, ..Footprint::default() }
    }

    /// Adds the blocks of `batch`.
    ///
    /// # Errors
    /// [`StreamError::Blocks`] when there are more than can be counted; then it takes no more.
    pub fn add(&mut self, batch: &Batch) -> Result<(), StreamError> {
        for key in batch.keys() {
            self.numbering.number(*key);
        }
        let most = self.blocks_max;
        if self.blocks() > most { Err(StreamError::Blocks { most }) } else { Ok(()) }
    }
    /// Distinct blocks so far.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.numbering.len()
    }
}
