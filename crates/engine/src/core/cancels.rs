//! Writes to a home that cancel a discard that waits there, rather than have it sent first.
//!
//! How: a destage over such a range goes home at once. What it covers is withheld from the home's
//! table, so that no discard of it is sent; once it was written, it is cancelled. What else waits
//! of the tombstones that it meets goes at once, as for any write. When nothing of a tombstone's
//! range waits, is withheld or in flight, its home is synced and it is done for, as ever; only then
//! is the write answered.
//! Invariant: until the answer each of its blocks is dirty above, by a durable record that is newer
//! than the tombstones. So a start that zeroes their ranges again finds these blocks dirty and has
//! them go home again: what a start may zero never has its only copy at home. A write that fails
//! leaves its part waiting, and it reads as zeros.
//! Cost: a look at the table per write that meets a tombstone. No sync and no record more than
//! without; of each client's discard at most one piece is sent, though one that had become one with
//! its neighbours is cut out from between them.
//! Not for: writes of blocks that no level holds, which would have nothing to go home again; nor
//! where a part is in flight, a tombstone would be left in two pieces, or the table is full. They
//! wait until all was sent.

use super::Core;
use crate::io::{Buffer, Io};
use layby_cache::OpId;
use layby_cache::discards::DiscardCause;
use layby_types::planted::{Plant, is_planted};
use layby_types::{BackingDone, BlockIndex, ErrorKind, Seq, VolumeId};
use std::ops::Range;

/// A write that cancels.
#[derive(Debug)]
struct Cancel {
    op: OpId,
    volume: VolumeId,
    blocks: Range<u64>,
    /// The tombstones that are to be done for before it is answered.
    seqs: Vec<Seq>,
    is_written: bool,
    /// One of them cannot be done for soon; the write fails with this once it has ended.
    refused: Option<ErrorKind>,
}

/// Writes that cancel, in the order in which they began. At most as many as destages at once.
#[derive(Debug, Default)]
pub(super) struct Cancels(Vec<Cancel>);

impl Cancels {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them is answered only when this tombstone is done for.
    pub(super) fn await_seq(&self, seq: Seq) -> bool {
        self.0.iter().any(|cancel| cancel.seqs.contains(&seq))
    }

    pub(super) fn forget_volume(&mut self, id: VolumeId) {
        self.0.retain(|cancel| cancel.volume != id);
    }
}

impl Core {
    /// Begins to cancel what waits under a write of these blocks; false where the write has to wait
    /// for it instead.
    pub(super) fn begin_cancel(&mut self, op: OpId, id: VolumeId, blocks: &Range<u64>) -> bool {
        let Some(met) = self.cancellable(id, blocks) else { return false };
        let bytes = self.bytes_of(blocks);
        let beside: Vec<Range<u64>> = met.iter().flat_map(|(_, own)| beside(own, blocks)).collect();
        let beside: Vec<Range<u64>> = beside.iter().map(|part| self.bytes_of(part)).collect();
        let home = self.homes.get_mut(&id).expect("it was just looked at");
        home.discards.table.withhold(bytes);
        beside.into_iter().for_each(|part| home.discards.table.hasten(part, DiscardCause::Write));
        let seqs = met.into_iter().map(|(seq, _)| seq).collect();
        let (volume, blocks, is_written, refused) = (id, blocks.clone(), false, None);
        self.cancels.0.push(Cancel { op, volume, blocks, seqs, is_written, refused });
        self.note_discards(id);
        true
    }

    /// The tombstones under these blocks, if a write of them may cancel what waits.
    fn cancellable(&self, id: VolumeId, blocks: &Range<u64>) -> Option<Vec<(Seq, Range<u64>)>> {
        let home = self.homes.get(&id)?;
        let (table, bytes) = (&home.discards.table, self.bytes_of(blocks));
        let is_barred = home.backing.is_lost() || home.discards.has_failed() || table.is_full();
        if is_barred || table.is_in_flight(&bytes) {
            return None;
        }
        let met = self.tombstones.waiting_under(id, blocks)?;
        let pieces = |part: &Range<u64>| table.pending_in(self.bytes_of(part)).count();
        let is_whole = |(_, own): &(Seq, Range<u64>)| {
            beside(own, blocks).iter().map(pieces).sum::<usize>() <= 1
        };
        let is_dirty = |block: u64| self.cache.is_dirty(id, BlockIndex(block));
        (met.iter().all(is_whole) && blocks.clone().all(is_dirty)).then_some(met)
    }

    /// Whether an operation is a write that cancels and has not reached its home yet.
    pub(super) fn is_cancelling(&self, op: OpId) -> bool {
        self.cancels.0.iter().any(|cancel| cancel.op == op && !cancel.is_written)
    }

    /// The end of a write that cancels, at its home.
    pub(super) fn on_cancel_written(&mut self, io: &mut dyn Io, done: BackingDone<Buffer>) {
        let op = OpId(done.token as u32);
        if let Some(buffer) = done.buffer {
            self.set_buffer(op, buffer);
        }
        let mut mine = self.cancels.0.iter_mut().filter(|cancel| cancel.op == op);
        let cancel = mine.next().expect("the caller found it");
        cancel.is_written = true;
        let (id, blocks, refused) = (cancel.volume, cancel.blocks.clone(), cancel.refused);
        let seqs = cancel.seqs.clone();
        let bytes = self.bytes_of(&blocks);
        let now = self.now;
        let home = self.homes.get_mut(&id).expect("a home outlives its calls");
        let is_written = done.result.is_ok() && !is_planted(Plant::CancelOmitted);
        home.discards.table.end_withheld(&bytes, is_written, now);
        if !is_written {
            // Others may wait for the same tombstone.
            home.discards.table.hasten(bytes, DiscardCause::Write);
        }
        self.note_discards(id);
        let is_early = done.result.is_ok() && is_planted(Plant::CancelEarly);
        if done.result.is_err() || is_early {
            self.end_cancels(done.result, |cancel| cancel.op == op);
        }
        if done.result.is_ok() {
            if is_written {
                self.tombstones.on_cancelled(&seqs, &blocks);
            }
            self.end_delays(io, id, blocks);
            self.release_cancels();
        }
        if let Some(kind) = refused {
            self.end_cancels(Err(kind), |cancel| cancel.op == op);
        }
    }

    /// Answers writes whose tombstones are done for.
    pub(super) fn release_cancels(&mut self) {
        if self.cancels.is_empty() {
            return;
        }
        let homes = &self.homes;
        let is_lost = |id: &VolumeId| homes.get(id).is_none_or(|home| home.backing.is_lost());
        // No sync of a lost home will ever say that what was to be done for is.
        let lost: Vec<VolumeId> = self.cancels.0.iter().map(|cancel| cancel.volume).collect();
        let lost: Vec<VolumeId> = lost.into_iter().filter(is_lost).collect();
        self.end_cancels(Err(ErrorKind::Closed), |cancel| lost.contains(&cancel.volume));
        let seqs: Vec<Seq> = self.cancels.0.iter().flat_map(|cancel| cancel.seqs.clone()).collect();
        let live: Vec<Seq> = seqs.into_iter().filter(|seq| self.tombstones.is_live(*seq)).collect();
        self.end_cancels(Ok(()), |cancel| !cancel.seqs.iter().any(|seq| live.contains(seq)));
    }

    /// The backing store has refused a discard beside these writes, or the log cannot record that
    /// it is done: they fail, those in flight when they end, and destaging tries them again.
    pub(super) fn fail_cancels(&mut self, kind: ErrorKind, seqs: Option<&[Seq]>) {
        let is_mine = |seq: &Seq| seqs.is_none_or(|refused| refused.contains(seq));
        let has_mine = |cancel: &Cancel| cancel.seqs.iter().any(is_mine);
        self.end_cancels(Err(kind), has_mine);
        for cancel in self.cancels.0.iter_mut().filter(|cancel| has_mine(cancel)) {
            cancel.refused = Some(kind);
        }
    }

    /// Answers those of the writes that have ended at home.
    fn end_cancels(&mut self, result: Result<(), ErrorKind>, is_meant: impl Fn(&Cancel) -> bool) {
        let is_over = |cancel: &mut Cancel| cancel.is_written && is_meant(cancel);
        let over: Vec<Cancel> = self.cancels.0.extract_if(.., is_over).collect();
        over.into_iter().for_each(|cancel| self.done(cancel.op, result));
    }
}

/// The parts of `own` on both sides of `blocks`.
fn beside(own: &Range<u64>, blocks: &Range<u64>) -> Vec<Range<u64>> {
    let parts = [own.start..own.end.min(blocks.start), own.start.max(blocks.end)..own.end];
    parts.into_iter().filter(|part| part.start < part.end).collect()
}
