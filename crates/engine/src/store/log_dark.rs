//! Segments whose header and first descriptor cannot be read: what they may hold.
//!
//! How: a descriptor elsewhere in the segment says what the header said. Where none is behind the
//! checkpoint, those that are lost may have been, unless the segment is older: it held a live block
//! when the checkpoint looked at that block's slot, so that it becomes free by a later checkpoint
//! only, and it was not open when the checkpoint began. That the checkpoint names a block is no
//! proof of that: the segment may have been opened while the checkpoint was written. Behind a clean
//! checkpoint there is nothing. An old one's header is written anew, see `log_headers`.
//! Invariant: a segment that may hold a batch behind the checkpoint is dark: all that has no record
//! behind it, in either level, is undecided.
//! Cost: nothing where all headers are sound; else such a segment is read twice.
//! Not for: segments of which a batch is missed, see `log_mend`.

use super::layout::SEQ_MAX;
use super::log_layout::{BatchHeader, CheckpointEntry, Record, SegmentHeader, generation_of};
use super::log_recover::Scan;
use super::table::{Map, Set};
use super::{StoreError, Stream};
use crate::io::Io;
use layby_types::Seq;

/// Segments whose first two blocks are no structures that are searched for a descriptor.
const DARK_MAX: usize = 64;

/// Sequence numbers that are passed over where segments are dark: more than a node gives out in a
/// year at 30,000 a second, and few enough for millions of such starts.
const UNSEEN_SEQS: u64 = 1 << 40;

impl Scan<'_> {
    /// Segments whose header and first descriptor are lost: any descriptor in its place says what
    /// the header said. Where there is none, and what may have been one cannot be read, nothing
    /// says what was in the segment.
    pub(super) fn read_dark(
        &mut self,
        io: &mut dyn Io,
        dark: &[(u32, bool)],
    ) -> Result<(), StoreError> {
        for (index, is_unreadable) in dark {
            // Many are a disk that had something else before the log was made.
            if dark.len() > DARK_MAX && !is_unreadable {
                continue;
            }
            if *is_unreadable {
                // Also where a descriptor is found now: once that is overwritten, nothing would be.
                self.unread.push(*index);
            }
            let found = self.search(io, *index, None)?;
            if let Some(header) = found {
                self.headers[*index as usize] = Some(header.segment_header(*index));
                self.headless.push(*index);
            } else if *is_unreadable {
                self.dark.push(*index);
            }
        }
        Ok(())
    }

    /// Decides which of them may hold something that the checkpoint does not know. `newest` is the
    /// newest checkpoint of which a batch knows; in the segments `missed` batches are missing.
    pub(super) fn judge_dark(
        &mut self,
        io: &mut dyn Io,
        newest: u64,
        missed: &Set<u32>,
    ) -> Result<(), StoreError> {
        let is_newest = newest <= self.trailer.seq.0 && !self.may_lack_checkpoint;
        // Nothing is written behind a clean one, but by a start whose own checkpoint has failed.
        let is_last = self.trailer.clean && self.batches.is_empty();
        let dark = core::mem::take(&mut self.dark);
        for index in dark {
            let info = self.corrupt(self.geometry.segment_first(index), "segment header", (0, 0));
            // It is not opened before the next checkpoint, which may not show what this one does.
            self.scanned.insert(index);
            if is_newest && !missed.contains(&index) && (self.is_old(io, index)? || is_last) {
                self.recovered.damaged.push(info);
                let header = self.headers[index as usize].unwrap_or_else(|| self.anew(index));
                self.old.push(header);
                continue;
            }
            self.dark.push(index);
            // What it holds may be newer than all that was found, in the NVM level, too.
            self.damage(info, SEQ_MAX)?;
        }
        Ok(())
    }

    /// The header of a segment of which nothing but its age is known.
    fn anew(&self, index: u32) -> SegmentHeader {
        let (instance, stream, generation) =
            (self.instance, Stream::Write as u32, self.trailer.seq);
        SegmentHeader { instance, index, stream, generation, is_anew: true }
    }

    /// Whether a segment was closed when the newest checkpoint began, and held something when that
    /// looked at it.
    fn is_old(&mut self, io: &mut dyn Io, index: u32) -> Result<bool, StoreError> {
        let is_open = self.trailer.open.iter().any(|open| open.index == index);
        if is_open || self.headers[index as usize].is_some() {
            return Ok(false);
        }
        let named = self.checkpoint.iter();
        let named: Map<u32, CheckpointEntry> = named
            .filter(|entry| self.geometry.segment_of(entry.location) == Some(index))
            .map(|entry| (entry.location, *entry))
            .collect();
        if named.is_empty() {
            return Ok(false);
        }
        let bytes =
            self.read(io, self.geometry.segment_first(index), self.geometry.segment_blocks)?;
        let found = self.named_batch(index, &named, &bytes);
        io.recycle(bytes);
        if let Some(header) = found {
            self.headers[index as usize] = Some(header.segment_header(index));
            return Ok(true);
        }
        // A checkpoint before the newest one has named it, and the slot has not changed since.
        let last = self.named_last.as_ref();
        let is_kept =
            |entry: &CheckpointEntry| last.is_some_and(|it| it.binary_search(&entry.slot).is_err());
        Ok(named.values().any(is_kept))
    }

    /// A batch from before the checkpoint that is whole up to a block which the checkpoint names.
    /// Had the segment been used anew for that block, a later batch would lie in this one's place,
    /// or its descriptor in that of one of this one's blocks.
    fn named_batch(
        &self,
        index: u32,
        named: &Map<u32, CheckpointEntry>,
        bytes: &[u8],
    ) -> Option<BatchHeader> {
        let (first, block) =
            (self.geometry.segment_first(index), self.geometry.block_bytes as usize);
        (0..self.geometry.segment_blocks).find_map(|within| {
            let page = &bytes[within as usize * block..];
            let header = BatchHeader::decode(page, self.instance, generation_of(page))?;
            let is_here = header.location == first + within && self.lies_in(&header, index);
            if !is_here || Seq(header.generation) > self.trailer.seq {
                return None;
            }
            let found = self.records(page, &header, first + within + 1, &page[block..]);
            let mut whole = found.iter().take_while(|found| found.bad.is_none());
            let is_named = whole.any(|found| match found.record {
                Record::Block { key, crc, .. } => {
                    let entry = named.get(&found.location);
                    entry.is_some_and(|entry| (entry.key, entry.crc) == (key, crc))
                }
                _ => false,
            });
            is_named.then_some(header)
        })
    }

    /// Above what dark segments hold, too: some day it may be read, and must not outrank what is
    /// written from now on.
    pub(super) fn seq_next_unseen(&self, seq_next: Seq) -> Seq {
        let unseen = if self.dark.is_empty() { 0 } else { UNSEEN_SEQS };
        Seq(seq_next.0.saturating_add(unseen).min(SEQ_MAX.0))
    }
}
