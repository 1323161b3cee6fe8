//! Counters of what was read from and written to the backing stores.
//!
//! How: reads are counted when they are submitted, writes when they have ended well, whether they
//! destage blocks of a level or carry a request's bytes past all levels.
//! Invariant: `writes` are those that carried `blocks_written`; zeroings are in neither.
//! Cost: an addition per operation.

use crate::cache::Cache;

/// What was read from and written to the backing stores since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingCounters {
    /// Blocks fetched.
    pub blocks_read: u64,
    /// Of these, blocks fetched ahead of a request.
    pub blocks_read_ahead: u64,
    /// Blocks written, by destaging and past all levels.
    pub blocks_written: u64,
    /// Writes that carried them.
    pub writes: u64,
}

impl BackingCounters {
    pub(crate) fn count_read(&mut self, blocks: u32, is_ahead: bool) {
        self.blocks_read += u64::from(blocks);
        self.blocks_read_ahead += if is_ahead { u64::from(blocks) } else { 0 };
    }

    pub(crate) fn count_write(&mut self, blocks: u32) {
        self.blocks_written += u64::from(blocks);
        self.writes += 1;
    }
}

impl Cache {
    /// What was read from and written to the backing stores.
    #[must_use]
    pub fn backing_counters(&self) -> BackingCounters {
        self.backing
    }
}
