//! Which stream a block is appended to: what dies at about the same time is to lie together.
//!
//! How: a client's overwrite of a block that was written or fetched not long ago is likely to be
//! overwritten soon again, and a copy of a block that was written long ago to stay. "Not long" is
//! the mean life of the last short-lived segments, "long ago" as many sequence numbers as blocks
//! are live; nothing is kept by block. A call is one stream's whole: most of its blocks decide.
//! Beside lower ranks, durable writes and trims of the best one have the first of these for
//! themselves: a stream has one batch in flight, and theirs are to wait for no other rank's. Until
//! it is rid of others' records they go to the stream of other writes, where that has none.
//! Invariant: a log of few segments has no stream of its own for either, see `Stream::of_few`.
//! Cost: a look at two tables per block of a client's call, none per hit.
//! Source: Wang et al., SepBIT, FAST 2022, section 3; ages and lives in sequence numbers.

use super::Stream;
use super::log::{AppendEntry, LogStore};
use super::log_geometry::SEGMENT_BLOCKS_MANY;
use super::log_layout::NOWHERE;
use crate::io::Io;
use layby_cache::cleaning::{self, CopyStream, Lifespans};
use layby_types::{Nanos, Seq, Slot};

/// How long the best rank keeps a stream for itself after its last durable write.
pub(super) const RESERVED_FOR: Nanos = Nanos::from_secs(10);

/// The stream of short-lived writes.
#[derive(Debug, Default)]
pub(super) struct ShortLived {
    lifespans: Lifespans,
    /// Until when the best rank has the stream for itself.
    reserved_until: Option<Nanos>,
}

/// Whether the current rank is the best one.
fn is_best(io: &dyn Io) -> bool {
    io.batch_bytes(io.rank()).is_none()
}

impl LogStore {
    /// The stream of a call whose blocks are of `stream`.
    pub(super) fn stream_of_call(
        &mut self,
        io: &dyn Io,
        stream: Stream,
        entries: &[AppendEntry],
        durable: bool,
    ) -> Stream {
        if stream != Stream::Write || !self.has_all_streams() {
            return stream.of_few();
        }
        let is_best = is_best(io);
        if self.is_reserved(io, is_best && durable) {
            let [short, other] = [Stream::WriteShort, Stream::Write].map(|it| self.has_lower(it));
            let is_short = is_best && !(durable && short && !other);
            return if is_short { Stream::WriteShort } else { Stream::Write };
        }
        let short = entries.iter().filter(|entry| self.is_short_lived(entry.slot)).count();
        if 2 * short > entries.len() { Stream::WriteShort } else { stream }
    }

    /// Whether the best rank has the stream of short-lived writes for itself, which it has from a
    /// durable write on (`is_asked`) while there are lower ranks.
    fn is_reserved(&mut self, io: &dyn Io, is_asked: bool) -> bool {
        let until = &mut self.short_lived.reserved_until;
        if is_asked {
            *until = Some(io.now() + RESERVED_FOR);
        }
        *until = until.filter(|until| io.is_stepwise() && io.now() < *until);
        until.is_some()
    }

    /// A call of the current rank was queued.
    pub(super) fn note_rank(&mut self, io: &dyn Io, stream: Stream) {
        let state = &mut self.streams[stream as usize];
        state.rank = state.rank.min(io.rank());
        if !is_best(io) {
            state.lower_total = state.queued_total;
        }
    }

    /// Whether records of lower ranks have not ended there.
    fn has_lower(&self, stream: Stream) -> bool {
        let state = &self.streams[stream as usize];
        state.ended_total < state.lower_total
    }

    /// Not only those of a log of few segments.
    pub(super) fn has_all_streams(&self) -> bool {
        self.geometry.streams as usize == Stream::ALL.len()
    }

    /// Whether what is about to be overwritten was appended within the mean life of short-lived
    /// segments, and not by cleaning.
    fn is_short_lived(&self, slot: Slot) -> bool {
        let location = self.slots[slot.0 as usize].location;
        if location == NOWHERE {
            return false;
        }
        let index = self.geometry.segment_of(location).expect("a location lies in a segment");
        let segment = &self.segments[index as usize];
        !segment.stream.is_copies()
            && self.short_lived.lifespans.is_short(self.seqs.next().0 - segment.generation.0)
    }

    /// The stream of a copy whose original has this seq. Where segments are scarce copies keep to
    /// one: a second open one is what could be missing then.
    pub(super) fn stream_of_copy(&self, seq: Seq) -> Stream {
        // In short segments two descriptors for one may take all that a victim gains.
        let is_short = self.geometry.segment_blocks < SEGMENT_BLOCKS_MANY;
        let is_scarce = self.free_segments.len() < self.free_kept() + usize::from(is_short);
        if !self.has_all_streams() || is_scarce {
            return Stream::Relocate;
        }
        let age = self.seqs.next().0.saturating_sub(seq.0);
        match cleaning::stream_of_copy(age, self.blocks_live) {
            CopyStream::Young => Stream::Relocate,
            CopyStream::Old => Stream::RelocateOld,
        }
    }

    /// A segment holds no live block any more.
    pub(super) fn note_life(&mut self, index: u32) {
        let segment = &self.segments[index as usize];
        // What the best rank alone fills says nothing of how long others' blocks live.
        if segment.stream == Stream::WriteShort && self.short_lived.reserved_until.is_none() {
            let life = self.seqs.next().0.saturating_sub(segment.generation.0);
            self.short_lived.lifespans.note(life);
        }
    }
}
