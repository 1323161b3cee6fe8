//! Trims and zeroings: whole blocks as a range, the edges as parts of blocks.
//!
//! How: a range waits until nothing is in flight on it, then goes chunk by chunk: the log records a
//! durable tombstone, the backing store zeroes, copies are dropped. Recovery redoes the zeroing for
//! a tombstone, so the backing store need not be synced; where there is no log, it is.
//! Invariant: a copy is dropped only after the chunk reads as zeros below it, and a record never
//! outlives, as clean, the version that the backing store had.
//! Cost: one look-up per block and level that the volume uses, in chunks so that nobody waits long.
//! A waiting range is checked where an operation on its blocks has ended and no older range on them
//! is left: against the operations in flight, or block by block where that is less.

use crate::action::{Action, OpId, Redo};
use crate::cache::{Cache, RangeLock};
use crate::hash::FixedMap;
use crate::op::{Discard, DiscardPhase, Piece, Task, Want};
use crate::read::Pieces;
use crate::spec::LevelKind;
use core::ops::Range;
use layby_policy::Moment;
use layby_types::{BlockIndex, BlockKey, Call, ErrorKind, LevelIndex, Operation, RequestId};

/// Blocks of one chunk at most.
const CHUNK_BLOCKS_MAX: u64 = 16_384;
/// The same where the volume writes through and the log may have to forget each of them.
const THROUGH_BLOCKS_MAX: u64 = 1024;

impl Cache {
    pub(crate) fn zero(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        request: RequestId,
        call: &Call,
    ) {
        let durable = call.flags.fua || self.volumes.class(volume).durable_writes;
        self.begin(request, 1);
        let size = self.spec.block_size;
        let first = size.blocks_in(call.offset);
        let end = size.block_of(call.offset + call.length).0;
        for (block, part) in edges(&Pieces::new(size, call.offset, call.length), size.bytes()) {
            self.add_part(request);
            let piece = Piece { request, block, part, want: Want::Zero { durable } };
            self.write_piece(moment, volume, piece);
        }
        if first < end {
            self.add_part(request);
            let keep_allocated = call.flags.no_hole && call.operation == Operation::WriteZeroes;
            self.start_discard(volume, request, (first, end), (keep_allocated, durable));
        }
        self.end_part(request, Ok(()));
    }

    fn start_discard(
        &mut self,
        volume: u16,
        request: RequestId,
        (first, end): (u64, u64),
        (keep_allocated, durable): (bool, bool),
    ) {
        let phase = DiscardPhase::Waiting;
        let (cursor, chunk, is_logged) = (first, 0, false);
        let discard = Discard { request, keep_allocated, durable, phase, cursor, chunk, is_logged };
        let count = u32::try_from(end - first).expect("a request is shorter than 2^32 blocks");
        let op = self.start(volume, BlockIndex(first), count, Task::Discard(discard), false);
        let id = self.volumes.get(volume).id;
        self.ranges.push(RangeLock { volume, id, first, end, op, executing: false });
        self.retry_discard(self.ranges.len() - 1);
    }

    /// Starts the discards that nothing holds up any more, of those that wait for one of these
    /// blocks: nothing has changed for the others.
    pub(crate) fn retry_discards(&mut self, volume: u16, blocks: Range<u64>) {
        for index in 0..self.ranges.len() {
            let range = &self.ranges[index];
            let is_waiting = range.volume == volume && !range.executing;
            let touches = range.first < blocks.end && blocks.start < range.end;
            if is_waiting && touches {
                self.retry_discard(index);
            }
        }
    }

    fn retry_discard(&mut self, index: usize) {
        if !self.is_held_up(index) {
            self.ranges[index].executing = true;
            self.start_chunk(self.ranges[index].op);
        }
    }

    fn is_held_up(&self, index: usize) -> bool {
        let range = self.ranges[index];
        let older =
            |r: &RangeLock| r.volume == range.volume && r.first < range.end && range.first < r.end;
        if self.ranges[..index].iter().any(older) {
            return true;
        }
        #[cfg(test)]
        self.effort.range_checks.set(self.effort.range_checks.get() + 1);
        range.has_any_of(&self.busy) || range.has_any_of(&self.destaging)
    }

    fn discard_mut(&mut self, id: OpId) -> &mut Discard {
        match &mut self.ops.get_mut(id.0).task {
            Task::Discard(discard) => discard,
            other => panic!("{id:?} is no discard but {other:?}"),
        }
    }

    fn chunk(&self, id: OpId) -> (u16, u64, u32) {
        let op = self.ops.get(id.0);
        let Task::Discard(discard) = &op.task else { panic!("a discard has chunks") };
        (op.volume, discard.cursor, discard.chunk)
    }

    fn start_chunk(&mut self, op: OpId) {
        let (volume, first, blocks) = self.extent(op);
        let (end, through) = (first.0 + u64::from(blocks), self.writes_through(volume));
        let first = self.discard_mut(op).cursor;
        let mut blocks = first..end.min(first + CHUNK_BLOCKS_MAX);
        if through && self.may_be_logged(volume, &blocks) {
            blocks.end = end.min(first + THROUGH_BLOCKS_MAX);
        }
        let count = (blocks.end - blocks.start) as u32;
        let is_logged = self.volumes.get(volume).logged && !through;
        let discard = self.discard_mut(op);
        (discard.chunk, discard.is_logged) = (count, is_logged);
        if through {
            self.drop_kept(volume, blocks.clone());
        }
        let log = self.log_level().filter(|_| self.may_be_logged(volume, &blocks));
        let Some(level) = log else { return self.zero_chunk(op) };
        let discard = self.discard_mut(op);
        discard.phase = DiscardPhase::Logging;
        // A home that is written through keeps the order itself: nothing is repeated over it.
        let redo = match discard.keep_allocated {
            _ if through => Redo::Nothing,
            true => Redo::ZeroKeepAllocated,
            false => Redo::Zero,
        };
        let (level, first) = (LevelIndex(level as u8), BlockIndex(first));
        let (volume, durable) = (self.volumes.get(volume).id, true);
        self.submit(op, Action::Tombstone { op, level, volume, first, count, redo, durable });
    }

    fn zero_chunk(&mut self, op: OpId) {
        let (volume, first, count) = self.chunk(op);
        let discard = self.discard_mut(op);
        discard.phase = DiscardPhase::Zeroing;
        let keep_allocated = discard.keep_allocated;
        let (volume, first) = (self.volumes.get(volume).id, BlockIndex(first));
        self.submit(op, Action::ZeroBacking { op, volume, first, count, keep_allocated });
    }

    /// The level whose log records discards.
    pub(crate) fn log_level(&self) -> Option<usize> {
        self.levels.iter().rposition(|level| level.kind == LevelKind::Ssd)
    }

    pub(crate) fn on_discarded(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        result: Result<(), ErrorKind>,
    ) {
        if result.is_err() {
            let phase = self.discard_mut(id).phase;
            if matches!(phase, DiscardPhase::Zeroing | DiscardPhase::SyncingBacking) {
                self.distrust_home(moment, id);
            }
            return self.end_discard(moment, id, result);
        }
        match self.discard_mut(id).phase {
            DiscardPhase::Waiting => panic!("nothing is in flight for a waiting discard"),
            DiscardPhase::Logging => self.zero_chunk(id),
            DiscardPhase::Zeroing => self.on_zeroed(moment, id),
            DiscardPhase::SyncingBacking => self.drop_chunk(moment, id),
            DiscardPhase::SyncingLevel => self.next_chunk(moment, id),
        }
    }

    fn on_zeroed(&mut self, moment: &mut Moment<'_>, op: OpId) {
        let (volume, first, count) = self.chunk(op);
        let logged = self.discard_mut(op).is_logged;
        let persistent = logged && self.levels.iter().any(|level| level.kind.is_persistent());
        if persistent && self.log_level().is_some() {
            return self.drop_chunk(moment, op);
        }
        if persistent || self.discard_mut(op).durable {
            self.discard_mut(op).phase = DiscardPhase::SyncingBacking;
            let volume = self.volumes.get(volume).id;
            return self.submit(op, Action::SyncBacking { op, volume });
        }
        self.note_home(volume, &(first..first + u64::from(count)));
        self.drop_chunk(moment, op);
    }

    /// The chunk may read as zeros below, or not: its copies count for more from now on. Persistent
    /// ones are to go home again, others go, so that whoever reads twice sees the same.
    fn distrust_home(&mut self, moment: &mut Moment<'_>, op: OpId) {
        let (volume, first, count) = self.chunk(op);
        self.note_home(volume, &(first..first + u64::from(count)));
        for level in 0..self.levels.len() {
            for block in first..first + u64::from(count) {
                let key = self.key(volume, BlockIndex(block));
                let Some(slot) = self.levels[level].find(volume, key) else { continue };
                let is_own = !self.levels[level].is_borrowed(slot);
                if self.levels[level].kind.is_persistent() && is_own {
                    if !self.levels[level].is_dirty(slot) {
                        self.levels[level].settle_ahead(moment, volume, slot);
                        self.set_dirty(moment.now, volume, (level, slot), key);
                        let level = LevelIndex(level as u8);
                        self.actions.push(Action::SetDirty { level, slot });
                    }
                } else {
                    self.drop_copy(volume, level, slot, true);
                }
            }
        }
    }

    /// The chunk reads as zeros below: its copies go.
    fn drop_chunk(&mut self, moment: &mut Moment<'_>, op: OpId) {
        let (volume, first, count) = self.chunk(op);
        if !self.lost.is_empty() {
            // The tombstone in the log says so, and a checkpoint waits for its zeroing.
            self.lost.remove(self.key(volume, BlockIndex(first)), count.into());
        }
        for level in 0..self.levels.len() {
            let holding = self.levels[level].holding(volume);
            if holding.used + holding.borrowed == 0 {
                continue;
            }
            for block in first..first + u64::from(count) {
                let key = self.key(volume, BlockIndex(block));
                if let Some(slot) = self.levels[level].find(volume, key) {
                    self.drop_copy(volume, level, slot, true);
                }
            }
        }
        let Discard { is_logged: logged, durable, .. } = *self.discard_mut(op);
        if self.log_level().is_some() && logged {
            return self.next_chunk(moment, op);
        }
        // Without a log, a record that was freed just now or long ago is dead only once its level
        // is synced.
        let persistent: crate::Few<usize> =
            (0..self.levels.len()).filter(|l| self.levels[*l].kind.is_persistent()).collect();
        if logged && durable && !persistent.is_empty() {
            self.discard_mut(op).phase = DiscardPhase::SyncingLevel;
            for level in persistent {
                self.submit(op, Action::SyncLevel { op, level: LevelIndex(level as u8) });
            }
            return;
        }
        persistent.iter().filter(|_| logged).for_each(|level| self.note_stored(volume, *level));
        self.next_chunk(moment, op);
    }

    fn next_chunk(&mut self, moment: &mut Moment<'_>, op: OpId) {
        let (_, _, done) = self.chunk(op);
        let (_, first, count) = self.extent(op);
        let discard = self.discard_mut(op);
        discard.cursor += u64::from(done);
        if discard.cursor < first.0 + u64::from(count) {
            return self.start_chunk(op);
        }
        self.end_discard(moment, op, Ok(()));
    }

    fn end_discard(&mut self, moment: &mut Moment<'_>, op: OpId, result: Result<(), ErrorKind>) {
        let request: RequestId = self.discard_mut(op).request;
        self.ranges.retain(|range| range.op != op);
        self.finish(moment, op);
        self.end_part(request, result);
    }
}

impl RangeLock {
    /// Whether a block of the range is among the keys; whichever are fewer are looked at.
    fn has_any_of<T>(&self, keys: &FixedMap<BlockKey, T>) -> bool {
        let mut blocks = self.first..self.end;
        if blocks.end - blocks.start <= keys.len() as u64 {
            return blocks.any(|b| keys.contains_key(&BlockKey::new(self.id, BlockIndex(b))));
        }
        keys.keys().any(|key| key.volume() == self.id && blocks.contains(&key.block().0))
    }
}

/// The partial blocks at the ends of a range; the middle is not walked.
fn edges(pieces: &Pieces, block_bytes: u32) -> impl Iterator<Item = (BlockIndex, crate::Part)> {
    pieces.ends().into_iter().flatten().filter(move |(_, part)| part.length < block_bytes)
}
