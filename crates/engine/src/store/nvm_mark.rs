//! How far the NVM level's mark follows its stores, where no sync brings it on.
//!
//! How: the mark says up to where every store was durable, so that a start knows damage from a torn
//! write. On persistent memory a store is durable at once, and so is the mark when it is written.
//! On a page-cached file the mark is written when a sync has ended, and durable by the next one.
//! Where none comes for [`DELAY`], the mark is written then, or a sync brings it.
//! Invariant: [`DELAY`] after a store became durable a durable mark covers it, while the shard
//! runs.
//! Cost: 16 bytes per [`DELAY`] with stores on persistent memory; on a file, a sync after the last.
//! Not for: the seq that a mark has; it is the newest of the shard's.

use super::nvm::NvmStore;
use super::nvm_layout::{MARK_AT, encode_mark};
use layby_types::{Nanos, Seq};

/// How long a later sync may take to make the mark durable.
const DELAY: Nanos = Nanos::from_millis(500);

/// What of the level's durability is still to be written down, by the seq of its newest store.
#[derive(Debug, Default)]
pub(super) struct MarkDelay {
    placed: Option<Seq>,
    /// What the sync in flight covers, and the mark that it makes durable.
    syncing: Option<Seq>,
    marking: Option<Seq>,
    /// What the mark covers, and the mark that is durable.
    marked: Option<Seq>,
    durable: Option<Seq>,
    at: Option<Nanos>,
}

impl MarkDelay {
    /// A block was stored.
    pub(super) fn on_placed(&mut self, seq: Seq) {
        self.placed = Some(seq);
    }

    /// A mark was written on persistent memory.
    pub(super) fn on_written(&mut self) {
        (self.durable, self.at) = (self.placed, None);
    }

    /// A sync of a file begins.
    pub(super) fn on_sync(&mut self) {
        (self.syncing, self.marking, self.at) = (self.placed, self.marked, None);
    }

    /// It has ended well, and the mark was written.
    pub(super) fn on_synced(&mut self) {
        (self.marked, self.durable) = (self.syncing, self.marking);
    }

    /// Begins to wait, if there is something to write down and no sync is in flight.
    pub(super) fn wait(&mut self, is_at_once: bool, now: Nanos) {
        let covered = if is_at_once { self.placed } else { self.marked };
        if covered > self.durable {
            self.at.get_or_insert(now + DELAY);
        }
    }

    /// When a tick is wanted.
    pub(super) fn deadline(&self) -> Nanos {
        self.at.unwrap_or(Nanos::NEVER)
    }

    /// Whether the mark, or a sync for it, is due.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.at.is_some_and(|at| now >= at)
    }
}

impl NvmStore {
    /// Writes the mark where stores are durable at once.
    pub(super) fn mark_at_once(&mut self) {
        if self.flushes() {
            self.write_mark(Seq(self.seqs.next().0 - 1));
            self.mark_delay.on_written();
        }
    }

    /// Notes that every store up to `seq` is durable; lies on the device by the next sync.
    pub(super) fn write_mark(&mut self, seq: Seq) {
        let copy = MARK_AT[self.mark_copy];
        self.mark_copy = 1 - self.mark_copy;
        let at = self.config.region.base + u64::from(self.geometry.block_bytes) + copy;
        self.write_at(at, &encode_mark(seq, self.instance));
    }
}
