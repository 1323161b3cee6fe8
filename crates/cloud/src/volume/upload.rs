//! Segments: cut from the journal, put into the store side by side, applied in order.
//!
//! How: the oldest batches that no segment has yet become one when they fill it, grow old, or when
//! room or a drain asks for it. What was overwritten within them is left out. The object is put
//! until the store has it; then, in the order of the numbers, its index is recorded in the map file
//! and applied.
//! Invariant: a segment's batches are durable in the journal before they are read for it, and each
//! payload is verified; so the cloud is never ahead of the node, and rot does not travel.
//! Cost: a segment's bytes in memory for each upload under way.

use super::{Flight, LocalPlace, Volume};
use crate::action::{Action, Condition, End, Request};
use crate::codec::crc32c;
use crate::journal::Batch;
use crate::meta::Frame;
use crate::runs::Runs;
use crate::segment::{Builder, EntryKind, Index, SegmentName};
use bytes::Bytes;
use layby_types::Nanos;
use layby_types::planted::{Plant, is_planted};
use std::collections::VecDeque;
use std::ops::{DerefMut, Range};

enum Stage {
    /// The journal's bytes are being read: at most two parts, since a ring may wrap.
    Reading { parts: Vec<(u64, Option<Bytes>)>, keep: Runs<LocalPlace> },
    /// The object is on its way.
    Putting(Box<Index>),
    /// The store has it.
    Stored(Box<Index>),
}

struct Upload {
    number: u64,
    journal_next: u64,
    /// Since when its oldest byte has been dirty.
    since: Nanos,
    stage: Stage,
}

/// Segments on their way.
#[derive(Default)]
pub(super) struct Uploads {
    under_way: VecDeque<Upload>,
    /// Batches before this one are in a segment.
    pub(super) cut_next: u64,
    /// The next segment; only the session that is open knows it.
    pub(super) number_next: u64,
    /// Segments up to this one are in the map file.
    pub(super) recorded: u64,
    /// Indexes that are being recorded, with the journal batch behind each.
    pub(super) marks: VecDeque<(u64, u64)>,
    /// Bytes appended to the map file since it was replaced.
    pub(super) map_file_bytes: u64,
    /// Of the last segments, newer ones for more: bytes of the journal, and of their objects.
    recent: (u64, u64),
}

impl Uploads {
    pub(super) fn count(&self) -> usize {
        self.under_way.len()
    }

    /// A segment of so many bytes of the journal has become an object of so many.
    fn note_size(&mut self, journal: u64, object: u64) {
        let (journals, objects) = self.recent;
        self.recent = (journals - journals / 4 + journal, objects - objects / 4 + object);
    }

    /// Bytes of objects that so much of the journal is expected to become: overwritten blocks are
    /// left out, and the rest may be compressed. As many where nothing is known.
    pub(super) fn expected_bytes(&self, journal: u64) -> u64 {
        let (journals, objects) = self.recent;
        match journals {
            0 => journal,
            _ => {
                let expected = u128::from(journal) * u128::from(objects) / u128::from(journals);
                u64::try_from(expected).unwrap_or(u64::MAX)
            }
        }
    }

    /// The last segment on its way, or recorded.
    pub(super) fn last_number(&self) -> u64 {
        self.under_way.back().map_or(self.recorded, |upload| upload.number)
    }
}

impl Uploads {
    /// Segments that were cut and are not in the map, and the batch behind each.
    pub(super) fn numbers_under_way(&self) -> impl Iterator<Item = (u64, u64)> {
        self.under_way.iter().map(|upload| (upload.number, upload.journal_next))
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// Batches that the next segment takes, if it is time for one.
    fn cut(&self) -> Option<Range<usize>> {
        let journal = &self.journal;
        let from = journal.batches.partition_point(|batch| batch.seq < self.upload.cut_next);
        let limit = self.plan.limits.segment_bytes;
        let boundary = self.snapshot_boundary();
        let end = boundary.unwrap_or(u64::MAX).min(self.write.written_next);
        let (mut bytes, mut to) = (0, from);
        while let Some(batch) = journal.batches.get(to)
            && batch.seq < end
            && (bytes == 0 || batch.entries.is_empty() || bytes + batch.bytes <= limit)
        {
            // Padding costs nothing.
            bytes += if batch.entries.is_empty() { 0 } else { batch.bytes };
            to += 1;
        }
        let oldest = journal.batches.range(from..to).find(|batch| !batch.entries.is_empty())?;
        let next = journal.batches.get(to);
        let is_full = next.is_some_and(|batch| batch.seq < self.write.written_next);
        let is_old = self.now >= oldest.since.saturating_add(self.plan.limits.dirty_age_max);
        let is_wanted = self.is_draining || boundary.is_some();
        (is_full || is_old || is_wanted || self.is_pressed()).then_some(from..to)
    }

    /// Whether the journal runs full.
    pub(super) fn is_pressed(&self) -> bool {
        self.journal.used() * 2 > self.journal.ring.capacity || self.write.is_waiting()
    }

    pub(super) fn upload_deadline(&self) -> Nanos {
        let cut_next = self.upload.cut_next;
        let waits = |batch: &&Batch| batch.seq >= cut_next && !batch.entries.is_empty();
        let oldest = self.journal.batches.iter().find(waits).filter(|_| self.session.is_open());
        let age = self.plan.limits.dirty_age_max;
        let at = oldest.map_or(Nanos::NEVER, |batch| batch.since.saturating_add(age));
        if at > self.now { at } else { Nanos::NEVER }
    }

    pub(super) fn cut_next(&mut self) {
        while self.session.is_open()
            && !self.write.is_lost
            && self.upload.under_way.len() < usize::from(self.plan.limits.uploads_max)
            && !self.yields_to_cleaning()
            && let Some(batches) = self.cut()
        {
            let last = &self.journal.batches[batches.end - 1];
            let journal_next = last.seq + 1;
            if journal_next > self.write.durable_next {
                self.write.wanted_next = self.write.wanted_next.max(journal_next);
                self.sync_next();
                return;
            }
            let bytes = self.journal.batches.range(batches.clone()).map(|batch| batch.bytes).sum();
            self.on_segment_cut(bytes);
            self.start_upload(batches, journal_next);
        }
    }

    fn start_upload(&mut self, batches: Range<usize>, journal_next: u64) {
        let number = self.take_number();
        let (mut keep, mut parts) = (Runs::default(), Vec::<(u64, u64)>::new());
        let batches = self.journal.batches.range(batches);
        let mut since = self.now;
        for batch in batches.filter(|batch| !batch.entries.is_empty()) {
            since = since.min(batch.since);
            for entry in &batch.entries {
                let blocks = (entry.blocks.end - entry.blocks.start).min(u64::from(u16::MAX));
                let (seq, at, crc) = (batch.seq, entry.at, entry.crc);
                let place = LocalPlace { seq, at, crc, blocks: blocks as u16, skip: 0 };
                keep.insert(entry.blocks.clone(), place);
            }
            match parts.last_mut() {
                Some((from, length)) if !batch.at.is_multiple_of(self.journal.ring.capacity) => {
                    assert_eq!(*from + *length, batch.at, "batches follow each other");
                    *length += batch.bytes;
                }
                _ => parts.push((batch.at, batch.bytes)),
            }
        }
        for (part, (at, length)) in parts.iter().enumerate() {
            let at = self.journal.ring.device(*at);
            let flight = Flight::CutRead { number, part };
            self.act(Action::JournalRead { at, length: *length }, flight);
        }
        let parts = parts.into_iter().map(|(at, _)| (at, None)).collect();
        let stage = Stage::Reading { parts, keep };
        self.upload.under_way.push_back(Upload { number, journal_next, since, stage });
        self.upload.cut_next = journal_next;
    }

    /// Since when the oldest byte of a segment on its way has been dirty.
    pub(super) fn dirty_since(&self, number: u64) -> Nanos {
        let upload = self.upload.under_way.iter().find(|upload| upload.number == number);
        upload.map_or(self.now, |upload| upload.since)
    }

    fn take_number(&mut self) -> u64 {
        self.upload.number_next += 1;
        self.upload.number_next - 1
    }

    pub(super) fn on_cut_read(&mut self, number: u64, part: usize, end: End) {
        let End::Bytes(bytes, _) = end else { return self.lose_journal(&end) };
        let upload = self.upload.under_way.iter_mut().find(|upload| upload.number == number);
        let Some(Upload { stage: Stage::Reading { parts, .. }, .. }) = upload else { return };
        parts[part].1 = Some(bytes);
        if parts.iter().any(|(_, bytes)| bytes.is_none()) {
            return;
        }
        let read =
            parts.iter().filter_map(|(_, bytes)| bytes.as_ref()).map(Bytes::len).sum::<usize>();
        match self.build(number) {
            Some(builder) => {
                let put = self.put_segment(number, builder);
                self.upload.note_size(read as u64, put);
            }
            None => self.on_rot(),
        }
    }

    /// An acknowledged payload of the journal is damaged: nothing behind it can be uploaded, since
    /// the store would no longer hold a prefix. The volume stays readable where it is whole.
    fn on_rot(&mut self) {
        let cause = "the journal is damaged where acknowledged data was".to_owned();
        let fault = crate::action::Fault { kind: crate::action::FaultKind::Device, cause };
        self.lose_journal(&End::Failed(fault));
    }

    /// The segment's contents, or `None` where a payload is damaged.
    fn build(&self, number: u64) -> Option<Builder> {
        let upload = self.upload.under_way.iter().find(|upload| upload.number == number)?;
        let Stage::Reading { parts, keep } = &upload.stage else { return None };
        let block = self.block() as usize;
        let payload = |place: &LocalPlace, at: u64| {
            let part = parts.iter().rev().find(|(from, _)| *from <= at)?;
            let from = usize::try_from(at - part.0).ok()?;
            let bytes = part.1.as_ref()?.get(from..from + usize::from(place.blocks) * block)?;
            (crc32c(bytes) == place.crc).then_some(bytes)
        };
        let mut builder = Builder::new(self.plan.block_bytes, self.plan.compression);
        let (mut run, mut run_first) = (Vec::new(), 0);
        for (blocks, place) in keep.iter() {
            let run_end = run_first + (run.len() / block) as u64;
            if !run.is_empty() && (place.at.is_none() || blocks.start != run_end) {
                builder.add(run_first, &run, EntryKind::Data);
                run.clear();
            }
            let Some(at) = place.at else {
                if !is_planted(Plant::ZeroesNotUploaded) {
                    builder.add_zero(blocks);
                }
                continue;
            };
            if run.is_empty() {
                run_first = blocks.start;
            }
            let bytes = payload(&place, at)?;
            let from = usize::from(place.skip) * block;
            run.extend_from_slice(&bytes[from..][..(blocks.end - blocks.start) as usize * block]);
        }
        if !run.is_empty() {
            builder.add(run_first, &run, EntryKind::Data);
        }
        Some(builder)
    }

    /// Puts a segment; answers its bytes.
    fn put_segment(&mut self, number: u64, builder: Builder) -> u64 {
        let upload = self.upload.under_way.iter_mut().find(|upload| upload.number == number);
        let upload = upload.expect("it was just built");
        let name = SegmentName { number, epoch: self.session.epoch() };
        let (bytes, index) = builder.finish(self.plan.volume, name, upload.journal_next);
        upload.stage = Stage::Putting(Box::new(index));
        if is_planted(Plant::JournalFreedEarly) {
            self.journal.release(upload.journal_next);
        }
        let length = bytes.len() as u64;
        let (key, bytes, condition) = (name.key(), bytes.into(), Condition::Create);
        self.ask(Request::Put { key, bytes, condition }, Flight::SegmentPut { number });
        length
    }

    /// Uploads what cleaning has gathered.
    pub(super) fn upload_moved(&mut self, builder: Builder) {
        let number = self.take_number();
        let journal_next = self.upload.cut_next;
        let stage = Stage::Reading { parts: Vec::new(), keep: Runs::default() };
        let since = self.now;
        self.upload.under_way.push_back(Upload { number, journal_next, since, stage });
        self.put_segment(number, builder);
    }

    /// The store has a segment.
    pub(super) fn on_segment_put(&mut self, number: u64) {
        for upload in &mut self.upload.under_way {
            if upload.number == number
                && let Stage::Putting(index) = &upload.stage
            {
                upload.stage = Stage::Stored(index.clone());
                self.counters.segments_put += 1;
            }
        }
        self.apply_stored();
    }

    /// Applies what the store has, in order; not while the map is being encoded, which would take
    /// a copy of it.
    pub(super) fn apply_stored(&mut self) {
        let is_stored = |upload: &mut Upload| matches!(upload.stage, Stage::Stored(_));
        while !self.is_encoding()
            && !self.session.is_lost()
            && let Some(upload) = self.upload.under_way.pop_front_if(is_stored)
        {
            let Stage::Stored(index) = upload.stage else { unreachable!("it was asked") };
            self.apply(&index, upload.journal_next);
            self.take_snapshots();
            self.upload.marks.push_back((upload.number, upload.journal_next));
            let frame = Frame::Stored(index).encode();
            self.upload.map_file_bytes += frame.len() as u64;
            let flight = Flight::IndexRecorded { number: upload.number };
            self.act(Action::MapAppend(frame), flight);
        }
    }

    pub(super) fn on_index_recorded(&mut self, number: u64, end: &End) {
        if matches!(end, End::Failed(_)) {
            return self.lose_journal(end);
        }
        self.upload.recorded = self.upload.recorded.max(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is to go up is expected to shrink as it did of late. Method: nothing known, then
    /// segments of an eighth, then such that do not shrink.
    #[test]
    fn what_shrank_is_expected_to_shrink() {
        const MIB: u64 = 1 << 20;
        let mut uploads = Uploads::default();
        assert_eq!(uploads.expected_bytes(16 * MIB), 16 * MIB);
        (0..3).for_each(|_| uploads.note_size(8 * MIB, MIB));
        let shrunk = uploads.expected_bytes(16 * MIB);
        assert!((2 * MIB - MIB / 8..=2 * MIB + MIB / 8).contains(&shrunk), "{shrunk}");
        (0..20).for_each(|_| uploads.note_size(8 * MIB, 8 * MIB));
        let whole = uploads.expected_bytes(16 * MIB);
        assert!((16 * MIB - MIB / 4..=16 * MIB).contains(&whole), "{whole}");
        assert!(uploads.expected_bytes(u64::MAX) > u64::MAX / 2, "no overflow");
    }
}
