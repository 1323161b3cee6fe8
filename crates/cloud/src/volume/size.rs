//! The size of a volume, and when its superblock says it.
//!
//! How: what a volume cuts off when it shrinks becomes zeros in the journal. The superblock, which
//! does not wait for the journal, says the smaller size only when the store has these zeros and the
//! map nothing behind the new end. A larger size it says at once, unless the map has something
//! behind the old end (an earlier build said a size before its zeros, or the node that grew the
//! volume could not say so): that is zeroed first, and waited for.
//! Invariant: no superblock is replaced by one with another size such that blocks of before lie
//! between both ends. So a node that takes the volume finds zeros where it grows again.
//! Cost: nothing while the superblock says the size. Not for: what a drain waits for besides, see
//! [`Volume::stored_next`].

use super::{OWN_TOKEN, Volume};
use crate::journal::Batch;
use crate::map::CloudMap;
use layby_types::{BackingOperation, ErrorKind};
use std::ops::{DerefMut, Range};
use std::sync::Arc;

/// What has to be in the store before the superblock says the volume's size.
#[derive(Debug, Default)]
pub(super) struct Resizing {
    /// Zeroings of the volume's own that have not ended.
    zeroings: u32,
    /// Batches of the journal before this one.
    zeroed_next: u64,
    /// A zeroing failed: only a later life, which knows what the journal has, says another size.
    is_failed: bool,
}

impl Resizing {
    /// That of a volume of so many blocks with this journal: what it cut off may be there.
    pub(super) fn opened<'a>(batches: impl Iterator<Item = &'a Batch>, end: u64) -> Self {
        let is_behind = |batch: &&Batch| {
            batch.entries.iter().any(|entry| entry.at.is_some() && entry.blocks.end > end)
        };
        let zeroed_next = batches.filter(is_behind).last().map_or(0, |batch| batch.seq + 1);
        Resizing { zeroed_next, ..Resizing::default() }
    }

    /// A zeroing has ended; batches before `written_next` are in the journal.
    pub(super) fn end(&mut self, result: Result<(), ErrorKind>, written_next: u64) {
        self.zeroings -= 1;
        self.zeroed_next = self.zeroed_next.max(written_next);
        self.is_failed |= result.is_err();
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// A new size; what lay beyond a smaller one is zeros when it grows again.
    pub fn set_size(&mut self, size_bytes: u64) {
        let old = std::mem::replace(&mut self.plan.size_bytes, size_bytes);
        let [from, to] =
            [old.min(size_bytes), old.max(size_bytes)].map(|size| self.first_behind(size));
        if size_bytes < old || !self.is_known || self.holds(from..to) {
            self.resizing.zeroings += 1;
            let (offset, length) = (from * self.block(), (to - from) * self.block());
            let zeroing = BackingOperation::Zero { offset, length, keep_allocated: false };
            self.submit(OWN_TOKEN, zeroing);
        }
        self.step();
    }

    /// Batches of the journal before this one are written: what was acknowledged is in them.
    #[must_use]
    pub fn written_next(&self) -> u64 {
        self.write.written_next
    }

    /// The store has what the journal held before this batch.
    #[must_use]
    pub fn stored_next(&self) -> u64 {
        let oldest = self.journal.batches.iter().find(|batch| !batch.entries.is_empty());
        oldest.map_or(self.journal.seq_next, |batch| batch.seq)
    }

    /// The store has segments with what the journal held before this batch, though its superblock
    /// may not name them yet.
    #[must_use]
    pub fn put_next(&self) -> u64 {
        self.map.journal_next
    }

    /// Whether the store has the volume's size, as far as it may be there by now.
    #[must_use]
    pub fn is_size_stored(&self) -> bool {
        !self.has_size_news()
    }

    /// Whether the superblock should change for the size's sake.
    pub(super) fn has_size_news(&self) -> bool {
        let told = self.session.current().filter(|_| self.session.is_open());
        let committed = self.session.committed();
        let size = |told| self.size_to_tell(told, committed);
        told.is_some_and(|block| size(block.size_bytes) != block.size_bytes)
    }

    /// The size that a superblock is to say that names the segments up to `committed`, where the
    /// store's says this one. What was written behind a growth is not named without its size.
    pub(super) fn size_to_tell(&self, told: u64, committed: u64) -> u64 {
        let size = self.plan.size_bytes;
        if size == told {
            return told;
        }
        let resizing = &self.resizing;
        let named = self.upload.marks.iter().take_while(|(number, _)| *number <= committed);
        let named_next = named.last().map_or(0, |(_, next)| *next).max(self.stored_next());
        let is_zeroed =
            resizing.zeroings == 0 && !resizing.is_failed && named_next >= resizing.zeroed_next;
        match is_zeroed && (size > told || !self.map.has_behind(self.first_behind(size))) {
            true => size,
            false => told,
        }
    }

    /// The map of a volume of so many bytes: without what lies behind its end.
    pub(super) fn map_of(&self, size_bytes: u64) -> Arc<CloudMap> {
        let mut map = self.map.clone();
        let end = self.first_behind(size_bytes);
        if map.has_behind(end) {
            Arc::make_mut(&mut map).end_at(end);
        }
        map
    }

    /// The block behind the last one of a volume of so many bytes.
    fn first_behind(&self, size_bytes: u64) -> u64 {
        size_bytes.div_ceil(self.block())
    }

    /// Whether any of these blocks holds data.
    fn holds(&self, blocks: Range<u64>) -> bool {
        let (first, last) = (blocks.start * self.block(), blocks.end * self.block());
        self.extents(first, last - first).iter().any(|(_, _, is_data)| *is_data)
    }
}
