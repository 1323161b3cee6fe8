//! How far a level has durably come, so that an older copy of it is known by that.
//!
//! How: each start writes a sequence number into the level that no earlier start has seen: the log
//! by the checkpoint that ends recovery, the NVM level by both copies of its mark. The node keeps
//! it elsewhere, with the level's instance, and has the next start compare.
//! Invariant: a level that ends before what is known is refused; a structure that power loss tears
//! hides nothing.
//! Cost: three syncs of the NVM level per start. Not for: copies that no start came after.

use super::log::LogStore;
use super::nvm::NvmStore;
use super::nvm_layout::MARK_AT;
use super::nvm_recover::sync;
use super::{Recovered, StoreError};
use crate::io::Io;
use layby_types::Seq;
use layby_types::planted::{Plant, is_planted};

/// How far a level had durably come at its last start: what a node keeps elsewhere to know an older
/// copy of it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Drawn when the level was formatted.
    pub instance: u64,
    /// One above a sequence number that lies in it durably, and that no earlier start had seen.
    pub seq: Seq,
}

impl Reached {
    /// Refuses a level that ends before this, or was formatted another time.
    ///
    /// # Errors
    /// [`StoreError::Older`], [`StoreError::OtherInstance`].
    pub(crate) fn check(
        self,
        (instance, seq_next): (u64, Seq),
        (disk, offset): (&str, u64),
    ) -> Result<(), StoreError> {
        let is_same = instance == self.instance;
        if is_same && seq_next >= self.seq || is_planted(Plant::OlderLevel) {
            return Ok(());
        }
        let disk = disk.to_owned();
        Err(match is_same {
            true => StoreError::Older { disk, offset, stored: seq_next, expected: self.seq },
            false => {
                let (stored, expected) = (instance, self.instance);
                StoreError::OtherInstance { disk, offset, stored, expected }
            }
        })
    }
}

impl LogStore {
    /// How far the newest complete checkpoint came; the one that ends a start has a sequence number
    /// that no earlier start has seen.
    pub(crate) fn reached(&self) -> Reached {
        Reached { instance: self.instance, seq: Seq(self.checkpoint.complete.0 + 1) }
    }

    /// Refuses a log that ends before `known`: an older copy, or one whose newest checkpoint's
    /// trailer is damaged and of which nothing else is newer. The two cannot be told apart.
    ///
    /// # Errors
    /// [`StoreError::Older`], [`StoreError::OtherInstance`].
    pub(crate) fn check_age(&self, known: Reached, found: &Recovered) -> Result<(), StoreError> {
        let place = (&*self.disk_name, self.config.region.base);
        known.check((self.instance, found.seq_next), place)
    }
}

impl NvmStore {
    /// Writes down, durably, a sequence number that no earlier start has seen, after everything
    /// that opening changed is durable; no operation may be in flight. Both copies of the mark have
    /// it in the end, so that a later one that tears hides nothing.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn reach(&mut self, io: &mut dyn Io) -> Result<Reached, StoreError> {
        // Data up to the mark is trusted: what was torn has to be gone before.
        sync(io, &self.config)?;
        let seq = self.seqs.take();
        for _ in MARK_AT {
            self.write_mark(seq);
            sync(io, &self.config)?;
        }
        Ok(Reached { instance: self.instance, seq: Seq(seq.0 + 1) })
    }

    /// Refuses a level that ends before `known`. Marks alone say where it ends: headers of what was
    /// torn have higher numbers, which a start clears and a later one may give again. One without
    /// any sound mark is let pass: then the marks are damaged, and no data is taken for torn.
    ///
    /// # Errors
    /// [`StoreError::Older`], [`StoreError::OtherInstance`].
    pub(crate) fn check_age(&self, known: Reached) -> Result<(), StoreError> {
        let mark = self.marks().map_or(Seq(0), |[first, second]| first.max(second));
        if mark == Seq(0) && self.instance == known.instance {
            return Ok(());
        }
        let place = (&*self.disk_name, self.config.region.base);
        known.check((self.instance, Seq(mark.0 + 1)), place)
    }
}
