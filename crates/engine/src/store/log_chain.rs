//! Reading checkpoints at start: the newest full one, then the increments behind it.
//!
//! How: an area begins with a full checkpoint; increments follow one behind the other, each with a
//! trailer of its own, which names the full one and the checkpoint before it. It is there twice,
//! and either page serves. A place where neither is such a trailer ends the chain: power loss has
//! torn the one that was to go there, or an earlier use of the area left something.
//! Power loss may leave one of two pages, too. What was written behind a checkpoint by the same
//! opening waited for both, so only with such a thing, an increment or a batch, a lost page is
//! named as damage, or where it cannot be read. Of one slot the last checkpoint's entry counts, and
//! all entries count as of the last one's start.
//! Invariant: an increment that a batch knows of and that is not there is damage (`log_recover`),
//! as a full checkpoint is.
//! Cost: the blocks of the chain, and a sort of entries that are in order but for the increments.

use super::layout::{get_u64, page_crcs, rebuild};
use super::log_layout::{
    CHUNK_MAGIC, CheckpointEntry, TRAILER_BLOCKS, TRAILER_MAGIC, Trailer, chunk_crcs, decode_chunk,
};
use super::log_parity::{Sums, pages_of};
use super::log_recover::{Scan, decode_or_rebuild};
use super::log_unreadable::has_unreadable;
use super::{CorruptInfo, StoreError, lost};
use crate::io::Io;
use layby_types::Seq;

/// A trailer of which at least one page is there.
struct FoundTrailer {
    trailer: Trailer,
    /// The block of its first page.
    at: u32,
    /// Pages that lack it or a part of it, and whether that part cannot be read.
    lost: Vec<(CorruptInfo, bool)>,
}

impl Scan<'_> {
    /// Reads the newest full checkpoint that has a sound trailer, and its increments.
    pub(super) fn read_checkpoint(&mut self, io: &mut dyn Io) -> Result<(), StoreError> {
        let mut fulls = Vec::new();
        for area in 0..2 {
            let first = self.geometry.checkpoint_first(area);
            let found = self.read_trailer(io, first, Trailer::is_full)?;
            fulls.extend(found.map(|found| (found, area)));
        }
        let newest = fulls.into_iter().max_by_key(|(found, _)| found.trailer.seq);
        let Some((full, area)) = newest else { return Ok(()) };
        self.area = area;
        let end = self.geometry.checkpoint_first(area) + self.geometry.checkpoint_blocks;
        let (mut entries, mut lost_entries, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = Some(full);
        while let Some(FoundTrailer { trailer, at, lost }) = next.take() {
            let place = (at + TRAILER_BLOCKS, end - at);
            let (found, damage) = self.read_chunks(io, &trailer, place)?;
            missing.extend(damage.map(|info| (info, trailer.is_full())));
            let (found, lost_found): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|it| it.lost.is_none());
            self.named_last =
                (!trailer.is_full()).then(|| found.iter().map(|entry| entry.slot).collect());
            entries.extend(found);
            lost_entries = lost_found;
            let behind = at.saturating_add(blocks_of(&trailer, end - at));
            if behind.saturating_add(TRAILER_BLOCKS) <= end {
                next = self.read_trailer(io, behind, |next| next.follows(&trailer))?;
            }
            for (info, is_unreadable) in lost {
                let is_named = is_unreadable || next.is_some();
                let into =
                    if is_named { &mut self.recovered.damaged } else { &mut self.torn_pages };
                into.push(info);
            }
            self.trailer = trailer;
        }
        // Entries of older checkpoints may be out of date then.
        self.may_lack_checkpoint |= !missing.is_empty();
        for (info, is_full) in missing {
            // What is missing of a full one counts as older than the entries that were found. What
            // is missing of an increment may be newer than any of them.
            let newest = self.trailer.seq.0;
            self.damage(info, Seq(if is_full { newest.saturating_sub(1) } else { newest }))?;
        }
        for entry in lost_entries {
            let kind = entry.lost.expect("only such entries were put aside");
            lost::decode(&entry, kind, &mut self.recovered.lost_runs);
        }
        if let Some(slots) = &mut self.named_last {
            slots.sort_unstable();
        }
        self.checkpoint = merged(entries);
        Ok(())
    }

    /// Names what the last trailer lacks where a batch of the same opening knows that it was
    /// complete. One of a later opening knows of it, too, where power loss left one page of it.
    pub(super) fn name_torn_pages(&mut self) {
        let seq = self.trailer.seq.0;
        let mut headers = self.batches.iter().map(|batch| &batch.header);
        if headers.any(|header| header.checkpoint >= seq && header.epoch <= seq) {
            self.recovered.damaged.append(&mut self.torn_pages);
        }
    }

    /// The trailer of a checkpoint whose first block is `at`, if there is one as wanted. A page
    /// that its last write has not reached may have an older one.
    fn read_trailer(
        &mut self,
        io: &mut dyn Io,
        at: u32,
        is_wanted: impl Fn(&Trailer) -> bool,
    ) -> Result<Option<FoundTrailer>, StoreError> {
        // By one read: where a page cannot be read, the other shows that the device has not failed.
        let bytes = self.read(io, at, TRAILER_BLOCKS)?;
        let pages = || (at..).zip(bytes.chunks_exact(self.geometry.block_bytes as usize));
        let decode = |page: &[u8]| Trailer::decode(page, self.instance);
        let sound = pages().filter_map(|(_, page)| decode_or_rebuild(page, TRAILER_MAGIC, decode));
        let wanted = sound.map(|(trailer, _)| trailer).filter(is_wanted);
        let found = wanted.max_by_key(|trailer| trailer.seq).map(|trailer| {
            let lost = pages().filter(|(_, page)| decode(page).as_ref() != Some(&trailer));
            let info = |(at, page)| self.corrupt(at, "checkpoint trailer", page_crcs(page));
            let lost = lost.map(|(at, page)| (info((at, page)), has_unreadable(page))).collect();
            FoundTrailer { trailer, at, lost }
        });
        // Where none is sound that was to be there: a part of one, or what may have been one.
        let is_part = |page: &[u8]| get_u64(page, 0) == TRAILER_MAGIC || has_unreadable(page);
        let is_none = pages().all(|(_, page)| decode(page).is_none());
        self.may_lack_checkpoint |=
            found.is_none() && is_none && pages().any(|(_, page)| is_part(page));
        io.recycle(bytes);
        Ok(found)
    }

    /// The entries found, and what is missing of them. The chunks begin at block `first`, the
    /// checkpoint, whose trailer lies before them, has at most `room` blocks.
    fn read_chunks(
        &mut self,
        io: &mut dyn Io,
        trailer: &Trailer,
        (first, room): (u32, u32),
    ) -> Result<(Vec<CheckpointEntry>, Option<CorruptInfo>), StoreError> {
        let mut parts: Vec<(u32, Vec<CheckpointEntry>)> = Vec::new();
        let (mut sums, mut missing) = (Sums::new(), Vec::new());
        let block = self.geometry.block_bytes as usize;
        let chunks = trailer.chunks.min(room.saturating_sub(TRAILER_BLOCKS));
        let step = (super::log_layout::BATCH_DATA_MAX / block) as u32;
        for start in (0..chunks).step_by(step as usize) {
            let pages = self.read(io, first + start, step.min(chunks - start))?;
            for (index, page) in (start..).zip(pages.chunks_exact(block)) {
                let decode = |page: &[u8]| decode_chunk(page, self.instance, trailer.seq, index);
                if let Some(part) = decode(page) {
                    sums.add(index, page);
                    parts.push((index, part));
                    continue;
                }
                let crcs = chunk_crcs(page);
                let info = self.corrupt(first + index, "checkpoint chunk", crcs);
                let rebuilt = rebuild(page, CHUNK_MAGIC, |page| decode(page).is_some());
                match rebuilt.as_deref().and_then(|page| Some((page, decode(page)?))) {
                    Some((page, part)) => {
                        sums.add(index, page);
                        parts.push((index, part));
                        self.recovered.damaged.push(info);
                    }
                    None => missing.push((index, info)),
                }
            }
            io.recycle(pages);
        }
        let found = self.rebuild_chunks(io, trailer, (first, room), &sums, &mut missing)?;
        parts.extend(found);
        parts.sort_unstable_by_key(|(index, _)| *index);
        let entries: Vec<_> = parts.into_iter().flat_map(|(_, part)| part).collect();
        let mut missing = missing.into_iter().map(|(_, info)| info).next();
        if entries.len() as u64 != trailer.entries {
            let whole = || self.corrupt(first - TRAILER_BLOCKS, "checkpoint", (0, 0));
            missing = missing.or_else(|| Some(whole()));
        }
        Ok((entries, missing))
    }

    /// Chunks that are missing and that their parity page gives back; the others stay in `missing`.
    fn rebuild_chunks(
        &mut self,
        io: &mut dyn Io,
        trailer: &Trailer,
        (first, room): (u32, u32),
        sums: &Sums,
        missing: &mut Vec<(u32, CorruptInfo)>,
    ) -> Result<Vec<(u32, Vec<CheckpointEntry>)>, StoreError> {
        let pages = pages_of(trailer.chunks, room);
        let mut parts = Vec::new();
        for (index, info) in core::mem::take(missing) {
            if pages == 0 {
                missing.push((index, info));
                continue;
            }
            let page = index % pages;
            let mut sum = self.read(io, first + trailer.chunks + page, 1)?;
            // Where another chunk of the page is missing, too, this is no chunk.
            sums.put(page, pages, &mut sum);
            match decode_chunk(&sum, self.instance, trailer.seq, index) {
                Some(part) => {
                    parts.push((index, part));
                    self.recovered.damaged.push(info);
                }
                None => missing.push((index, info)),
            }
            io.recycle(sum);
        }
        Ok(parts)
    }
}

/// Blocks of a checkpoint that has room for `room`: its trailer, chunks and parity.
fn blocks_of(trailer: &Trailer, room: u32) -> u32 {
    let pages = pages_of(trailer.chunks, room);
    trailer.chunks.saturating_add(TRAILER_BLOCKS + pages)
}

/// Of each slot the last entry, and none of slots that hold nothing any more. In the order of the
/// slots, as one checkpoint has them.
fn merged(mut entries: Vec<CheckpointEntry>) -> Vec<CheckpointEntry> {
    entries.sort_by_key(|entry| entry.slot);
    let mut last = 0;
    for index in 1..entries.len() {
        last += usize::from(entries[index].slot != entries[last].slot);
        entries[last] = entries[index];
    }
    entries.truncate(last + 1);
    entries.retain(|entry| !entry.is_emptied());
    entries
}
