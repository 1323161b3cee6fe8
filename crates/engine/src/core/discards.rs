//! Discards on their way to a home: at once, later, or never.
//!
//! How: a range that the log holds a durable tombstone for may wait in its volume's [`Discards`];
//! the cache hears at once that it was zeroed. Until the home has heard of it, reads of it are
//! answered with zeros, its tombstone stays live, so that a crash repeats it, and writes of it to
//! the home cancel it (see `cancels`), or are held, which sends it at once. A checkpoint writes
//! down that the home owes it. When it was sent, the home is synced and the tombstone is done for,
//! as after any zeroing: once nothing of its range waits, or discards that were sent after it was
//! logged have covered all of it, so that clients which trim a range again and again keep none
//! alive. Where there are more tombstones than a checkpoint may carry, trims wait for their home
//! until there are fewer. A zeroing that goes at once waits for its home; where a checkpoint comes
//! meanwhile it becomes a discard in flight, so that a slow or silent home holds up no other
//! volume. Invariant: nothing is written to a home where a discard waits unwithheld or is in
//! flight, be its tombstone live or not; that is done for only when its range was zeroed below
//! since. So no discard reaches a newer
//! write, and what was acknowledged reads as zeros across power cuts.
//! Cost: a look-up per read of a home, and a pass over the live tombstones per discard sent.
//! Not for: volumes whose writes pass no log; their discards go at once.

use super::{Answer, Asker, Core, HOME_DISCARD};
use crate::control::DiscardStats;
use crate::io::{Buffer, Io};
use layby_cache::discards::{DiscardCause, DiscardLimits, DiscardMode, Discards};
use layby_cache::schedule::Rank;
use layby_cache::{OnDirty, OpId, RemoveError};
use layby_types::{BackingOperation, BlockIndex, Call, ErrorKind, Nanos, Operation, Seq, VolumeId};
use std::collections::HashMap;
use std::ops::Range;

/// Live tombstones of a shard beyond which no trim is answered before its home has zeroed its
/// range, where its checkpoints may carry that many.
const TOMBSTONES_MAX: usize = 8192;
/// How often a volume's removal that keeps the data asks its home for zeros: twice for each way.
const KEEP_TRIES_MAX: u32 = 4;
/// How long a home rests that has refused a discard.
const PAUSE: Nanos = Nanos::from_secs(1);

/// What one home has not heard of.
pub(super) struct HomeDiscards {
    pub(super) table: Discards,
    flights: HashMap<u64, Flight>,
    /// How often in a row the home has refused. Every second time zeros are written instead.
    failures: u32,
    refused_total: u64,
    not_before: Nanos,
    /// How often it had when a removal that keeps the data began.
    kept_from: Option<u32>,
}

/// A discard in flight.
struct Flight {
    bytes: Range<u64>,
    /// How often the home had refused when it was sent.
    failures: u32,
    /// Which tombstones it zeroes.
    mark: u64,
}

impl HomeDiscards {
    pub(super) fn new(limits: DiscardLimits) -> Self {
        let (table, flights) = (Discards::new(limits), HashMap::new());
        let (failures, refused_total, not_before, kept_from) = (0, 0, Nanos::ZERO, None);
        HomeDiscards { table, flights, failures, refused_total, not_before, kept_from }
    }

    fn next_deadline(&self) -> Nanos {
        self.table.next_deadline().max(self.not_before)
    }

    pub(super) fn stats(&self) -> DiscardStats {
        DiscardStats {
            counters: *self.table.counters(),
            pending: self.table.pending(),
            delay: self.table.delay(),
            refused: self.refused_total,
        }
    }

    /// Whether the home has refused the last discard.
    pub(super) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// What of `bytes` reads as zeros whatever the home says.
    fn zeros(&self, bytes: &Range<u64>) -> Vec<Range<u64>> {
        let cut = |run: &Range<u64>| run.start.max(bytes.start)..run.end.min(bytes.end);
        let others = self.table.in_flight().iter().chain(self.table.withheld());
        let others = others.map(cut).filter(|run| run.start < run.end);
        self.table.pending_in(bytes.clone()).chain(others).collect()
    }
}

/// A zeroing on its way to its home.
#[derive(Clone, Copy)]
struct Zeroing {
    op: OpId,
    /// The home's table has counted it.
    is_counted: bool,
    /// Which tombstones it zeroes.
    mark: u64,
}

/// What concerns all homes.
pub(super) struct Delays {
    /// When the first discard is due.
    at: Nanos,
    number_next: u32,
    /// Zeroings that operations wait for, by token.
    zeroings: HashMap<u64, Zeroing>,
    /// What was said of volumes, be they served already or not; the others' discards go at once.
    limits: HashMap<VolumeId, DiscardLimits>,
    /// Parts of reads under way that their home may not know as zeros yet, in bytes of the buffer.
    reads: HashMap<OpId, Vec<Range<usize>>>,
}

impl Default for Delays {
    fn default() -> Self {
        Delays {
            at: Nanos::NEVER,
            number_next: 0,
            zeroings: HashMap::new(),
            limits: HashMap::new(),
            reads: HashMap::new(),
        }
    }
}

impl Delays {
    fn token(&mut self) -> u64 {
        let number = u64::from(self.number_next);
        self.number_next = self.number_next.wrapping_add(1);
        HOME_DISCARD | number
    }

    /// The operation whose zeroing has ended, where it was one.
    pub(super) fn end_zeroing(&mut self, token: u64) -> Option<OpId> {
        self.zeroings.remove(&token).map(|zeroing| zeroing.op)
    }

    pub(super) fn at(&self) -> Nanos {
        self.at
    }

    pub(super) fn limits(&self, id: VolumeId) -> DiscardLimits {
        let immediate = DiscardLimits { mode: DiscardMode::Immediate, ..DiscardLimits::DEFAULT };
        self.limits.get(&id).copied().unwrap_or(immediate)
    }
}

impl super::Home {
    /// Whether a zeroing on its way here may become a discard in flight. A home that refuses
    /// discards refuses this one, too, but for a silent one. Behind the end to come nothing is
    /// asked of the home any more, and a table without room could not take it back.
    fn may_adopt(&self, bytes: &Range<u64>, is_silent: bool) -> bool {
        let (table, most) = (&self.discards.table, self.discards.table.limits().ranges_max);
        (self.discards.failures == 0 || is_silent)
            && self.ending.is_none_or(|end| bytes.end <= end)
            && !table.is_full()
            && table.in_flight().len() < most as usize
    }
}

impl Core {
    /// Says how a volume's discards reach its home. What waits goes at once unless the mode is
    /// delayed. Panics where a limit is out of bounds.
    pub fn set_discard(&mut self, id: VolumeId, limits: DiscardLimits) {
        self.delays.limits.insert(id, limits);
        if let Some(home) = self.homes.get_mut(&id) {
            home.discards.table.set_limits(limits);
            self.note_discards(id);
        }
    }

    /// Says how the discards of all volumes, also of those to come, reach their homes: those
    /// not named go at once.
    pub fn set_discards(&mut self, limits: &[(VolumeId, DiscardLimits)]) {
        self.delays.limits = limits.iter().copied().collect();
        let ids: Vec<VolumeId> = self.homes.keys().copied().collect();
        for id in ids {
            self.set_discard(id, self.delays.limits(id));
        }
    }

    /// How much room is free where homes lie, in thousandths, for delays that follow it. What is
    /// not served here is passed over.
    pub fn set_free(&mut self, free: &[(VolumeId, u16)]) {
        for (id, permille) in free {
            if let Some(home) = self.homes.get_mut(id) {
                home.discards.table.set_free(*permille);
                self.note_discards(*id);
            }
        }
    }

    /// How a call ends before anybody looks at it: with an error where its home is somebody else's,
    /// whatever levels hold, or at once where its volume ignores trims.
    pub(super) fn ends_at_once(
        &mut self,
        (asker, id): (Asker, VolumeId),
        call: &mut Call,
    ) -> Option<Result<Answer, ErrorKind>> {
        let is_closed = |home: &super::Home| home.backing.is_closed();
        if !self.remotes.is_empty() && self.homes.get(&id).is_some_and(is_closed) {
            return Some(Err(ErrorKind::Closed));
        }
        // What a shrink gives up is cut off: to keep room for it might fill the disk meanwhile.
        (!asker.is_own() && self.drops_discard(id, call)).then_some(Ok(Answer::Nothing))
    }

    /// Whether a call ends here, since its volume ignores trims; zeroings then keep their room.
    fn drops_discard(&mut self, id: VolumeId, call: &mut Call) -> bool {
        let is_off = |home: &super::Home| home.discards.table.limits().mode == DiscardMode::Off;
        if !matches!(call.operation, Operation::Trim | Operation::WriteZeroes) {
            return false;
        }
        let Some(home) = self.homes.get_mut(&id).filter(|home| is_off(home)) else { return false };
        if call.operation == Operation::WriteZeroes {
            call.flags.no_hole = true;
            return false;
        }
        if call.length > 0 {
            home.discards.table.reclaim(call.offset..call.offset + call.length, self.now);
        }
        true
    }

    pub(super) fn bytes_of(&self, blocks: &Range<u64>) -> Range<u64> {
        let size = self.cache.spec().block_size;
        size.offset_of(BlockIndex(blocks.start))..size.offset_of(BlockIndex(blocks.end))
    }

    pub(super) fn blocks_of(&self, bytes: &Range<u64>) -> Range<u64> {
        let size = self.cache.spec().block_size;
        size.block_of(bytes.start).0..size.blocks_in(bytes.end)
    }

    /// Makes a home's range zero, now or later.
    pub(super) fn zero_backing(
        &mut self,
        io: &mut dyn Io,
        (op, id): (OpId, VolumeId),
        blocks: Range<u64>,
        keep_allocated: bool,
    ) {
        let bytes = self.bytes_of(&blocks);
        let logged = self.tombstones.logged_as(op);
        self.tombstones.ask(op);
        let may_wait = !keep_allocated && logged.is_some() && !self.is_awaited(op);
        if may_wait && self.delay(id, &bytes) {
            self.tombstones.delay(op);
            return self.done(op, Ok(()));
        }
        let home = self.homes.get_mut(&id).expect("a volume in the cache has a home");
        if !keep_allocated {
            home.discards.table.pass(&bytes);
        }
        self.ask_zeros(io, (op, id), bytes, (keep_allocated, !keep_allocated));
        if logged.is_some() && self.is_awaited(op) {
            // The checkpoint that waits for it began in this turn.
            let adopted = self.adopt_zeroings();
            self.owe_adopted(io, &adopted);
        }
    }

    /// Has a home zero a range, for an operation that waits.
    pub(super) fn ask_zeros(
        &mut self,
        io: &mut dyn Io,
        (op, id): (OpId, VolumeId),
        bytes: Range<u64>,
        (keep_allocated, is_counted): (bool, bool),
    ) {
        let token = self.delays.token();
        let mark = self.tombstones.mark();
        self.delays.zeroings.insert(token, Zeroing { op, is_counted, mark });
        let (offset, length) = (bytes.start, bytes.end - bytes.start);
        let zero = BackingOperation::Zero { offset, length, keep_allocated };
        self.ask_home(io, id, token, zero);
    }

    /// A checkpoint begins: zeroings that were logged and are on their way to their homes become
    /// discards in flight, which it writes down as owed, and those who wait for them are answered.
    pub(super) fn adopt_zeroings(&mut self) -> Vec<(OpId, Seq)> {
        let mut sent: Vec<(u64, Zeroing)> =
            self.delays.zeroings.iter().map(|(token, zeroing)| (*token, *zeroing)).collect();
        sent.sort_unstable_by_key(|(token, _)| *token);
        let mut adopted = Vec::new();
        for (token, Zeroing { op, is_counted, mark }) in sent {
            let Some((id, blocks, seq)) = self.tombstones.zeroed_by(op) else { continue };
            let (bytes, is_silent) = (self.bytes_of(&blocks), self.is_silent(id));
            let home = self.homes.get_mut(&id).filter(|home| home.may_adopt(&bytes, is_silent));
            let Some(home) = home else { continue };
            if !is_counted {
                home.discards.table.pass(&bytes);
            }
            home.discards.table.adopt(bytes.clone());
            let failures = home.discards.failures;
            home.discards.flights.insert(token, Flight { bytes, failures, mark });
            self.delays.zeroings.remove(&token);
            self.tombstones.delay(op);
            self.done(op, Ok(()));
            adopted.push((op, seq));
        }
        adopted
    }

    /// Whether no further tombstone may outlast its zeroing. Beyond what a checkpoint may carry,
    /// each one would wait for the homes.
    fn has_too_many(&self) -> bool {
        let most = self.log().map_or(0, |(_, log)| log.owed_max()).min(TOMBSTONES_MAX);
        self.tombstones.count() > most
    }

    fn delay(&mut self, id: VolumeId, bytes: &Range<u64>) -> bool {
        let has_too_many = self.has_too_many();
        let home = self.homes.get_mut(&id).expect("a volume in the cache has a home");
        // What a shrink zeroes goes home while its home still ends where it did: behind the new end
        // nothing is asked of it any more.
        if home.ending.is_some_and(|end| bytes.end > end) {
            return false;
        }
        let table = &mut home.discards.table;
        let DiscardLimits { mode, bytes_per_second_max, .. } = *table.limits();
        let is_paced = mode == DiscardMode::Immediate && bytes_per_second_max > 0;
        if !(mode == DiscardMode::Delayed || is_paced) || table.is_full() {
            return false;
        }
        if home.backing.is_lost() || home.discards.failures > 0 {
            return false;
        }
        if has_too_many {
            self.hasten_all_discards(DiscardCause::Full);
            return false;
        }
        assert!(table.reclaim(bytes.clone(), self.now), "there is room in the table");
        self.hasten_awaited(id, bytes);
        self.note_discards(id);
        true
    }

    pub(super) fn note_discards(&mut self, id: VolumeId) {
        if let Some(home) = self.homes.get(&id) {
            self.delays.at = self.delays.at.min(home.discards.next_deadline());
        }
    }

    /// Sends what is due.
    pub(super) fn send_discards(&mut self, io: &mut dyn Io) {
        if self.now < self.delays.at {
            return;
        }
        let is_due = |home: &super::Home| home.discards.next_deadline() <= self.now;
        let due = self.homes.iter().filter(|(_, home)| is_due(home)).map(|(id, _)| *id);
        let mut due: Vec<VolumeId> = due.collect();
        due.sort_unstable();
        for id in due {
            self.send_discards_of(io, id);
        }
        let deadlines = self.homes.values().map(|home| home.discards.next_deadline());
        self.delays.at = deadlines.min().unwrap_or(Nanos::NEVER);
    }

    fn send_discards_of(&mut self, io: &mut dyn Io, id: VolumeId) {
        let (now, mark) = (self.now, self.tombstones.mark());
        while let Some(home) = self.homes.get_mut(&id)
            && let Some(bytes) = home.discards.table.due(now)
        {
            let token = self.delays.token();
            let (offset, length) = (bytes.start, bytes.end - bytes.start);
            let failures = home.discards.failures;
            home.discards.flights.insert(token, Flight { bytes, failures, mark });
            let keep_allocated = failures % 2 == 1;
            io.set_rank(self.rank_of_discard(id, &(offset..offset + length)));
            self.ask_home(io, id, token, BackingOperation::Zero { offset, length, keep_allocated });
            io.set_rank(Rank::FIRST);
        }
    }

    /// The rank of a discard: its volume's where something waits for one of its tombstones.
    fn rank_of_discard(&self, id: VolumeId, bytes: &Range<u64>) -> Rank {
        let blocks = self.blocks_of(bytes);
        let mut met = self.tombstones.delayed_in(id, blocks.clone());
        let is_awaited = self.tombstones.holds(id, &blocks)
            || met.any(|(seq, own)| self.is_delay_awaited(id, seq, &own));
        if is_awaited { self.rank_of(id) } else { Rank::BACKGROUND }
    }

    /// Whether a checkpoint or a write to the home waits for a tombstone.
    fn is_delay_awaited(&self, id: VolumeId, seq: Seq, own: &Range<u64>) -> bool {
        self.tombstones.holds(id, own) || self.is_seq_awaited(seq) || self.cancels.await_seq(seq)
    }

    /// A home has done a delayed discard, or refused it.
    pub(super) fn on_discarded(
        &mut self,
        io: &mut dyn Io,
        id: VolumeId,
        token: u64,
        result: Result<(), ErrorKind>,
    ) {
        let now = self.now;
        let discards = &mut self.homes.get_mut(&id).expect("a home outlives its calls").discards;
        let flight = discards.flights.remove(&token).expect("a discard ends once");
        let Flight { bytes, failures: before, mark } = flight;
        match result {
            Ok(()) => {
                discards.failures = 0;
                discards.table.finished(&bytes);
            }
            Err(_) => {
                // Those that were sent at once fail together: that is one time, and one way.
                if before == discards.failures {
                    discards.failures = discards.failures.saturating_add(1);
                }
                discards.refused_total += 1;
                discards.not_before = now.saturating_add(PAUSE);
                discards.table.give_back(bytes.clone(), now);
            }
        }
        if result.is_err() {
            // The home may have been cut meanwhile.
            self.drop_discards_behind(io, id, u64::MAX);
        }
        let blocks = self.blocks_of(&bytes);
        match result {
            Ok(()) => {
                self.tombstones.on_discarded(id, &blocks, mark);
                self.end_delays(io, id, blocks);
            }
            Err(kind) => self.fail_delays(id, blocks, kind),
        }
        self.note_discards(id);
    }

    /// Whether a part of these blocks waits or is in flight.
    pub(super) fn is_discard_waiting(&self, id: VolumeId, blocks: Range<u64>) -> bool {
        let bytes = self.bytes_of(&blocks);
        self.homes.get(&id).is_some_and(|home| !home.discards.zeros(&bytes).is_empty())
    }

    /// Whether these blocks may not be written to the home as they are: a start would zero them
    /// again, or a discard that waits or is in flight may reach them. One that was refused may
    /// outlast its tombstone, which a later discard of the same range was enough for.
    pub(super) fn is_barred(&self, id: VolumeId, blocks: &Range<u64>) -> bool {
        self.tombstones.covers(id, blocks) || self.is_discard_waiting(id, blocks.clone())
    }

    /// A write of these blocks to the home is held: what it waits for goes at once.
    pub(super) fn hasten_discards(&mut self, id: VolumeId, blocks: Range<u64>) {
        let ranges = self.tombstones.delayed_in(id, blocks.clone()).map(|(_, own)| own);
        let ranges = ranges.chain([blocks]).map(|own| self.bytes_of(&own));
        let ranges: Vec<Range<u64>> = ranges.collect();
        let Some(home) = self.homes.get_mut(&id) else { return };
        ranges.into_iter().for_each(|range| home.discards.table.hasten(range, DiscardCause::Write));
        self.note_discards(id);
    }

    /// What somebody waits for already, a checkpoint or a write to the home, is not done for before
    /// what came over a part of it since: that goes at once, too.
    fn hasten_awaited(&mut self, id: VolumeId, bytes: &Range<u64>) {
        let met = self.tombstones.delayed_in(id, self.blocks_of(bytes));
        let awaited = met.filter(|(seq, own)| self.is_delay_awaited(id, *seq, own));
        let awaited: Vec<Range<u64>> = awaited.map(|(_, own)| self.bytes_of(&own)).collect();
        let Some(home) = self.homes.get_mut(&id) else { return };
        awaited.into_iter().for_each(|own| home.discards.table.hasten(own, DiscardCause::Write));
    }

    /// All that waits goes at once.
    pub(super) fn hasten_all_discards(&mut self, cause: DiscardCause) {
        for home in self.homes.values_mut() {
            home.discards.table.hasten_all(cause);
            self.delays.at = self.delays.at.min(home.discards.next_deadline());
        }
    }

    /// These blocks have become zeros below otherwise.
    pub(super) fn cancel_discards(&mut self, id: VolumeId, blocks: Range<u64>) {
        let (bytes, now) = (self.bytes_of(&blocks), self.now);
        if let Some(home) = self.homes.get_mut(&id) {
            // Not `written`, which may drop others where it splits too much: they are promised.
            home.discards.table.withhold(bytes.clone());
            home.discards.table.end_withheld(&bytes, true, now);
        }
    }

    /// Sends all that waits of a volume that is to go; true while something is left. What its home
    /// refuses is given up with the data; where that is kept, it is tried again some times.
    ///
    /// # Errors
    /// The home goes on refusing.
    pub(super) fn settle_discards(
        &mut self,
        io: &mut dyn Io,
        id: VolumeId,
        on_dirty: OnDirty,
    ) -> Result<bool, RemoveError> {
        let Some(home) = self.homes.get_mut(&id) else { return Ok(false) };
        let (failures, left) = (home.discards.failures, home.discards.table.pending().ranges);
        let began = home.discards.kept_from.get_or_insert(failures);
        *began = failures.min(*began);
        let tries = failures - *began;
        match on_dirty {
            // Not forgotten: the volume may be served again, where its removal fails.
            OnDirty::Discard if failures > 0 => return Ok(!home.discards.flights.is_empty()),
            OnDirty::Refuse if tries >= KEEP_TRIES_MAX && left > 0 => {
                home.discards.kept_from = None;
                return Err(RemoveError::Unzeroed);
            }
            _ => {}
        }
        Ok(self.send_all_discards(io, id))
    }

    /// Sends what waits of a volume; true where something was left or is in flight.
    pub(super) fn send_all_discards(&mut self, io: &mut dyn Io, id: VolumeId) -> bool {
        let Some(home) = self.homes.get_mut(&id) else { return false };
        home.discards.table.hasten_all(DiscardCause::Change);
        let is_left = home.discards.table.pending().ranges > 0;
        let is_flying = !home.discards.flights.is_empty();
        self.note_discards(id);
        self.send_discards(io);
        is_left || is_flying
    }

    /// Whether all of these blocks reads as zeros whatever the home says. Where a part does, that
    /// is kept for the end of the read `op`.
    pub(super) fn is_discarded(&mut self, op: OpId, id: VolumeId, blocks: Range<u64>) -> bool {
        let bytes = self.bytes_of(&blocks);
        let Some(home) = self.homes.get(&id) else { return false };
        let zeros = home.discards.zeros(&bytes);
        assert!(!self.delays.reads.contains_key(&op), "a read ends before its operation reads on");
        if zeros.contains(&bytes) {
            return true;
        }
        if !zeros.is_empty() {
            let at = |offset: u64| (offset - bytes.start) as usize;
            let parts = zeros.iter().map(|run| at(run.start)..at(run.end)).collect();
            self.delays.reads.insert(op, parts);
        }
        false
    }

    /// The end of a read of a home, or of something else: what was discarded reads as zeros.
    pub(super) fn zero_discarded(&mut self, op: OpId, buffer: Option<&mut Buffer>) {
        let parts = self.delays.reads.remove(&op).unwrap_or_default();
        let Some(buffer) = buffer else { return };
        parts.into_iter().for_each(|part| buffer[part].fill(0));
    }

    /// The home's runs with holes where discards wait.
    pub(super) fn without_discarded(
        &self,
        id: VolumeId,
        extents: &[(u64, u64, bool)],
    ) -> Vec<(u64, u64, bool)> {
        let mut runs = Vec::with_capacity(extents.len());
        for (offset, length, data) in extents {
            let bytes = *offset..offset + length;
            let home = self.homes.get(&id).filter(|_| *data);
            let mut zeros = home.map_or_else(Vec::new, |home| home.discards.zeros(&bytes));
            zeros.sort_unstable_by_key(|run| run.start);
            let mut at = bytes.start;
            for run in zeros {
                if at < run.start {
                    runs.push((at, run.start - at, true));
                }
                if at < run.end {
                    runs.push((at.max(run.start), run.end - at.max(run.start), false));
                    at = run.end;
                }
            }
            if at < bytes.end {
                runs.push((at, bytes.end - at, *data));
            }
        }
        runs
    }
}
