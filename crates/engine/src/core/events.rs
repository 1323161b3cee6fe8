//! What stores and homes have to say, turned into ends of the cache's operations.
//!
//! How: tickets and tokens are the operations' numbers; the core's own calls carry a bit above.
//! A tombstone is done for once its home has synced the zeros, void if its home fails; a checkpoint
//! of the log asks the other level and the homes to be safe first.
//! A discard that waits outlasts a checkpoint by a record that its home owes the zeros. That is
//! sound: the record is durable before the trailer, so that it or the tombstone is always found; it
//! kills nothing, and need not, since copies are dropped in the turn in which the range begins to
//! wait, before the checkpoint looks at a slot, and the checkpoint makes that durable; and whatever
//! is newer above is dirty after a start that zeroes.
//! No write goes to the range at home before both are done for, by one record with their number.
//! Invariant: a checkpoint is answered only when everything it asked for is durable.

mod peer_sync;

pub(super) use peer_sync::PeerSync;

use super::{Answer, Core, HOME_EXTENTS, HOME_SYNC, Level, Notice, STATUS_BYTES_MAX, TICKET_OWN};
use crate::io::{Buffer, Io};
use crate::store::{RecoveredTombstone, StoreEvent, Ticket};
use layby_cache::{Action, CleaningStep, LEVELS_MAX, Moment, OpId, Redo, schedule::Rank};
use layby_types::planted::{Plant, is_planted};
use layby_types::{
    BackingDone, BackingOperation, BlockIndex, BlockKey, ErrorKind, Extent, LevelIndex, RequestId,
    Seq, Slot, VolumeId,
};
use std::collections::{HashMap, HashSet};
use std::iter::once;
use std::ops::Range;

/// Own ticket: a store into lent room, whose end nobody waits for.
pub(super) const OWN_BORROWED: u64 = 1;
/// Own ticket: the NVM level's sync for a checkpoint.
const OWN_PEER: u64 = 2;
/// Own ticket: the NVM level's sync for a stop.
pub(super) const OWN_STOP: u64 = 3;
/// Parts of a tombstone that discards have left between them at most.
const LEFT_MAX: usize = 64;
/// Bits of an own ticket that say whose it is; above them stands which one.
const OWN_BITS: u32 = 8;

/// A tombstone that recovery would still redo.
struct LiveTombstone {
    volume: VolumeId,
    first: u64,
    end: u64,
    seq: Seq,
    keep_allocated: bool,
    /// The forgets that have to be durable for it to be done for; none before its home's sync.
    done_at: Option<u64>,
    /// Its home has not heard of all of it yet.
    delayed: bool,
    /// The mark of when its home was to zero it. Discards sent since zero it, too.
    asked: u64,
    /// The blocks that none of these has zeroed yet.
    left: Vec<Range<u64>>,
}

impl LiveTombstone {
    /// These blocks read as zeros below, or were written since.
    fn on_zeroed(&mut self, blocks: &Range<u64>) {
        let beside = |part: &Range<u64>| {
            let parts =
                [part.start..part.end.min(blocks.start), part.start.max(blocks.end)..part.end];
            parts.into_iter().filter(|part| part.start < part.end)
        };
        let left: Vec<Range<u64>> = self.left.iter().flat_map(beside).collect();
        // What is not noted is waited for longer, no more.
        if left.len() <= LEFT_MAX {
            self.left = left;
        }
    }
}

/// Whether an action writes a part of these blocks to the volume's home.
fn touches(write: &Action, id: VolumeId, blocks: &Range<u64>) -> bool {
    let Action::WriteBacking { volume, first, count, .. } = write else { return false };
    *volume == id && first.0 < blocks.end && blocks.start < first.0 + u64::from(*count)
}

/// Tombstones on their way: logged, zeroed below, synced below, done.
#[derive(Default)]
pub(super) struct Tombstones {
    /// In the log's hands: by operation.
    logging: HashMap<OpId, Seq>,
    /// Logged; their home is zeroing.
    zeroing: HashMap<OpId, Seq>,
    /// Their home could not zero them, and syncs what it did: by operation, with the reason.
    failing: HashMap<OpId, (Seq, ErrorKind)>,
    /// Zeroed; their home is to be synced.
    undone: HashMap<VolumeId, Vec<Seq>>,
    /// Covered by the sync in flight.
    syncing: HashMap<VolumeId, Vec<Seq>>,
    /// Those that the checkpoint under way drops and does not say to be owed.
    to_sync: HashSet<Seq>,
    live: Vec<LiveTombstone>,
    /// How many of these wait for their forgets to be durable.
    ending: usize,
    /// How many zeroings homes were asked for because of one.
    mark: u64,
    /// Writes to homes that a redo would undo: they wait until it cannot happen any more.
    held: Vec<Action>,
}

impl Tombstones {
    pub(super) fn forget_volume(&mut self, id: VolumeId) {
        self.undone.remove(&id);
        self.syncing.remove(&id);
        self.live.retain(|tombstone| tombstone.volume != id);
    }

    /// One that a start found and cannot redo, since its home is not there.
    pub(super) fn keep(&mut self, found: &RecoveredTombstone) {
        let (volume, first, seq) = (found.volume, found.first.0, found.seq);
        let (end, keep_allocated) = (first + found.count, found.no_hole);
        // No discard of this life is sent for it.
        let (done_at, delayed, asked, left) = (None, true, u64::MAX, once(first..end).collect());
        let live = LiveTombstone {
            volume,
            first,
            end,
            seq,
            keep_allocated,
            done_at,
            delayed,
            asked,
            left,
        };
        self.live.push(live);
    }

    /// Those of the volume that were zeroed and not synced.
    fn unsynced_of(&self, id: VolumeId) -> impl Iterator<Item = &Seq> {
        self.undone.get(&id).into_iter().chain(self.syncing.get(&id)).flatten()
    }

    /// Those that a checkpoint which begins now drops, and does not say to be owed.
    fn dropped(&self, owes_what_waits: bool) -> HashSet<Seq> {
        if owes_what_waits {
            let failing = self.failing.values().map(|(seq, _)| seq);
            return self.zeroing.values().chain(failing).copied().collect();
        }
        self.live.iter().filter(|t| t.done_at.is_none()).map(|t| t.seq).collect()
    }

    /// Those that were zeroed and not synced.
    fn unsynced(&self) -> HashSet<Seq> {
        self.undone.values().chain(self.syncing.values()).flatten().copied().collect()
    }

    /// Whether something of the volume was zeroed in its backing store and not synced.
    pub(super) fn awaits_sync(&self, id: VolumeId) -> bool {
        self.undone.get(&id).is_some_and(|seqs| !seqs.is_empty())
    }

    /// Whether a start would have to zero something of the volume again.
    pub(super) fn has_undone(&self, id: VolumeId) -> bool {
        self.live.iter().any(|tombstone| tombstone.volume == id && tombstone.done_at.is_none())
    }

    /// Whether a redo after a crash would undo a write of these blocks.
    pub(super) fn covers(&self, id: VolumeId, blocks: &Range<u64>) -> bool {
        let overlaps =
            |t: &LiveTombstone| t.volume == id && t.first < blocks.end && blocks.start < t.end;
        self.live.iter().any(overlaps)
    }

    pub(super) fn hold(&mut self, write: Action) {
        self.held.push(write);
    }

    /// Whether a write of a part of these blocks is held.
    pub(super) fn holds(&self, id: VolumeId, blocks: &Range<u64>) -> bool {
        self.held.iter().any(|write| touches(write, id, blocks))
    }

    /// Those that overlap these blocks, with theirs; `None` where the home of one has heard of all
    /// of it, or hears of it otherwise.
    pub(super) fn waiting_under(
        &self,
        id: VolumeId,
        blocks: &Range<u64>,
    ) -> Option<Vec<(Seq, Range<u64>)>> {
        let overlaps =
            |t: &&LiveTombstone| t.volume == id && t.first < blocks.end && blocks.start < t.end;
        let met = self.live.iter().filter(overlaps);
        met.map(|t| t.delayed.then_some((t.seq, t.first..t.end))).collect()
    }

    /// Whether a start would redo it.
    pub(super) fn is_live(&self, seq: Seq) -> bool {
        self.live.iter().any(|tombstone| tombstone.seq == seq)
    }

    /// The operation's range was logged, and its home is to hear of it later; false where nothing
    /// was logged, so that a crash would forget it.
    pub(super) fn delay(&mut self, op: OpId) -> bool {
        let Some(seq) = self.zeroing.remove(&op) else { return false };
        let live = self.live.iter_mut().rev().find(|tombstone| tombstone.seq == seq);
        live.expect("it is being zeroed").delayed = true;
        true
    }

    /// The home is to zero the operation's range now or later: what is sent from now on counts.
    pub(super) fn ask(&mut self, op: OpId) {
        let Some(seq) = self.zeroing.get(&op) else { return };
        self.mark += 1;
        let mut mine = self.live.iter_mut().rev().filter(|tombstone| tombstone.seq == *seq);
        mine.next().expect("it is being zeroed").asked = self.mark;
    }

    /// What a discard that is sent now is to be compared by.
    pub(super) fn mark(&self) -> u64 {
        self.mark
    }

    /// A discard of these blocks that was sent at `mark` has ended well.
    pub(super) fn on_discarded(&mut self, id: VolumeId, blocks: &Range<u64>, mark: u64) {
        let overlaps =
            |t: &&mut LiveTombstone| t.volume == id && t.first < blocks.end && blocks.start < t.end;
        let met = self.live.iter_mut().filter(|t| t.delayed && t.asked <= mark);
        met.filter(overlaps).for_each(|tombstone| tombstone.on_zeroed(blocks));
    }

    /// A write that cancels these tombstones in these blocks has ended well.
    pub(super) fn on_cancelled(&mut self, seqs: &[Seq], blocks: &Range<u64>) {
        let met = self.live.iter_mut().filter(|t| t.delayed && seqs.contains(&t.seq));
        met.for_each(|tombstone| tombstone.on_zeroed(blocks));
    }

    /// Whether discards and writes sent since have covered all of it.
    fn is_heard(&self, seq: Seq) -> bool {
        self.live.iter().any(|tombstone| tombstone.seq == seq && tombstone.left.is_empty())
    }

    /// What the home is zeroing for the operation, where that was logged.
    pub(super) fn zeroed_by(&self, op: OpId) -> Option<(VolumeId, Range<u64>, Seq)> {
        let seq = *self.zeroing.get(&op)?;
        let mut mine = self.live.iter().rev().filter(|tombstone| tombstone.seq == seq);
        mine.next().map(|tombstone| (tombstone.volume, tombstone.first..tombstone.end, seq))
    }

    /// What was logged of the operation's range.
    pub(super) fn logged_as(&self, op: OpId) -> Option<Seq> {
        self.zeroing.get(&op).copied()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.live.len()
    }

    /// The blocks of those whose home has not heard of all of them and that touch these.
    pub(super) fn delayed_in(
        &self,
        id: VolumeId,
        blocks: Range<u64>,
    ) -> impl Iterator<Item = (Seq, Range<u64>)> {
        let touches = move |t: &&LiveTombstone| {
            t.volume == id && t.delayed && t.first < blocks.end && blocks.start < t.end
        };
        self.live.iter().filter(touches).map(|t| (t.seq, t.first..t.end))
    }

    /// Its home has heard of all of it, and is to be synced.
    fn end_delay(&mut self, id: VolumeId, seq: Seq) {
        let mut mine = self.live.iter_mut().filter(|t| t.seq == seq);
        mine.next().expect("it is live until its home was synced").delayed = false;
        self.undone.entry(id).or_default().push(seq);
    }

    fn set_done_at(&mut self, issued: u64, is_mine: impl Fn(Seq) -> bool) {
        for tombstone in self.live.iter_mut().filter(|t| is_mine(t.seq)) {
            self.ending += usize::from(tombstone.done_at.is_none());
            tombstone.done_at = Some(issued);
        }
    }

    /// Drops those whose forgets are durable.
    fn end_durable(&mut self, durable: u64) {
        if self.ending > 0 {
            self.live.retain(|t| t.done_at.is_none_or(|at| at > durable));
            self.ending = self.live.iter().filter(|t| t.done_at.is_some()).count();
        }
    }
}

impl Core {
    /// Handles what the stores have to say; true when it was anything.
    pub(super) fn take_store_events(&mut self, io: &mut dyn Io) -> bool {
        let (mut events, mut ends) = (Vec::new(), [0; LEVELS_MAX]);
        for (level, end) in self.levels.iter_mut().zip(&mut ends) {
            level.take_events(&mut events);
            *end = events.len();
        }
        let any = !events.is_empty();
        for (index, event) in events.into_iter().enumerate() {
            let level = ends[..self.levels.len()].partition_point(|end| *end <= index);
            self.on_store_event(io, level, event);
        }
        any
    }

    fn on_store_event(&mut self, io: &mut dyn Io, level: usize, event: StoreEvent) {
        match event {
            StoreEvent::DeviceFailed(failure) => self.on_device_failed(io, level, failure),
            StoreEvent::DeviceWorks(operation) => self.on_device_works(level, operation),
            StoreEvent::Cleaning { slots } => self.on_cleaning(io, level, &slots),
            StoreEvent::Written { ticket, slots } => self.on_written(ticket, &slots),
            StoreEvent::Stored { ticket, result } => self.on_stored(io, ticket, result),
            StoreEvent::Synced { ticket, result } => self.on_synced(ticket, result),
            StoreEvent::Read { ticket, result } => {
                let op = OpId(ticket.0 as u32);
                match result {
                    Ok(buffer) => {
                        self.set_buffer(op, buffer);
                        self.done(op, Ok(()));
                    }
                    Err(failure) => self.done(op, Err(failure.kind)),
                }
            }
            StoreEvent::Corrupt(info) => self.notices.push(Notice::Corrupt(info)),
            StoreEvent::NeedPeerSync { id, scope } => self.start_peer_sync(io, id, scope),
            StoreEvent::NeedForgets => {
                if let Some(Level::Ssd(log)) =
                    self.levels.iter_mut().find(|level| matches!(level, Level::Ssd(_)))
                {
                    log.flush_forgets(io);
                }
            }
            StoreEvent::ForgetsFailed { kind } => {
                self.refuse_held(kind);
                if self.peer_sync.as_ref().is_some_and(|peer| peer.owed.is_some()) {
                    self.fail_peer_sync();
                }
                for level in &mut self.levels {
                    if let Level::Nvm(store) = level {
                        store.refuse_delayed(kind);
                    }
                }
            }
            StoreEvent::CheckpointDone { clean, .. } => self.checkpoints.note(clean),
            StoreEvent::CheckpointFailed => self.notices.push(Notice::CheckpointFailed),
            StoreEvent::RoomChanged => self.fit_ssd_level(),
            StoreEvent::SegmentRetired { disk, offset, slots } => {
                self.fit_ssd_level();
                self.notices.push(Notice::SegmentRetired { disk, offset, slots });
            }
        }
    }

    /// The cache says which live blocks of a victim are copied, dropped or destaged.
    fn on_cleaning(&mut self, io: &mut dyn Io, level: usize, slots: &[Slot]) {
        let index = LevelIndex(level as u8);
        let segments = self.ssd(index).segments_for_cleaning();
        let step = CleaningStep { level: index, slots, segments };
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        let (mut answers, mut actions) = (Vec::new(), std::mem::take(&mut self.scratch));
        self.cache.on_cleaning(&mut moment, &step, &mut answers, &mut actions);
        self.take(actions);
        self.ssd(index).cleaned(io, &answers);
    }

    fn on_written(&mut self, ticket: Ticket, slots: &[Slot]) {
        if ticket.0 & TICKET_OWN == 0 {
            let mut moment = Moment { now: self.now, rng: &mut self.rng };
            let mut actions = std::mem::take(&mut self.scratch);
            self.cache.on_written(&mut moment, OpId(ticket.0 as u32), slots, &mut actions);
            self.take(actions);
        }
    }

    fn on_stored(&mut self, io: &mut dyn Io, ticket: Ticket, result: Result<(), ErrorKind>) {
        if ticket.0 & TICKET_OWN != 0 {
            return;
        }
        let op = OpId(ticket.0 as u32);
        let Some(seq) = self.tombstones.logging.remove(&op) else {
            return self.done(op, result);
        };
        if result.is_ok() {
            self.tombstones.zeroing.insert(op, seq);
        } else {
            // The device may hold the record all the same.
            if is_planted(Plant::VoidOmitted) {
                self.tombstones.live.retain(|tombstone| tombstone.seq != seq);
            } else {
                self.void_tombstone(io, seq);
            }
        }
        self.done(op, result);
    }

    fn on_synced(&mut self, ticket: Ticket, result: Result<(), ErrorKind>) {
        if ticket.0 & TICKET_OWN == 0 {
            return self.done(OpId(ticket.0 as u32), result);
        }
        let own = ticket.0 & !TICKET_OWN;
        if own == OWN_STOP {
            return self.on_stop_synced(result);
        }
        assert_eq!(own & ((1 << OWN_BITS) - 1), OWN_PEER, "a checkpoint's sync, or a stop's");
        let id = own >> OWN_BITS;
        let Some(peer) = self.peer_sync.as_mut().filter(|peer| peer.id == id) else { return };
        peer.nvm_waiting = false;
        if result.is_ok() { self.end_peer_sync() } else { self.fail_peer_sync() }
    }

    pub(super) fn log_tombstone(&mut self, io: &mut dyn Io, action: &Action) {
        let Action::Tombstone { op, level, volume, first, count, redo, durable } = action else {
            panic!("a tombstone is performed as one")
        };
        let keep = *redo == Redo::ZeroKeepAllocated;
        let ticket = Ticket(u64::from(op.0));
        let blocks = u64::from(*count);
        if *redo == Redo::Nothing {
            // A tombstone would zero the home after a crash, until it is known to be done for.
            let keys =
                (first.0..first.0 + blocks).map(|block| BlockKey::new(*volume, BlockIndex(block)));
            // To forget a lost block would say that it is whole below.
            let keys: Vec<BlockKey> =
                keys.filter(|key| !self.cache.lost().overlaps(*key, 1)).collect();
            let log = self.ssd(*level);
            keys.into_iter().for_each(|key| log.forget(key));
            return log.sync(io, ticket);
        }
        let log = self.ssd(*level);
        let seq = log.tombstone(io, ticket, *volume, *first, blocks, keep, *durable);
        self.tombstones.logging.insert(*op, seq);
        let (first, end) = (first.0, first.0 + blocks);
        let live = LiveTombstone {
            volume: *volume,
            first,
            end,
            seq,
            keep_allocated: keep,
            done_at: None,
            delayed: false,
            asked: u64::MAX,
            left: once(first..end).collect(),
        };
        self.tombstones.live.push(live);
    }

    /// Writes that waited for a tombstone to be done for go on.
    pub(super) fn release_held(&mut self) {
        let is_idle = self.tombstones.ending == 0 && self.tombstones.held.is_empty();
        if is_idle && self.cancels.is_empty() {
            return;
        }
        let durable = self.log().map_or(u64::MAX, |(_, log)| log.forgets_durable());
        self.tombstones.end_durable(durable);
        self.release_cancels();
        for write in std::mem::take(&mut self.tombstones.held) {
            let Action::WriteBacking { op, volume, first, count, .. } = &write else {
                panic!("only writes are held")
            };
            if self.homes.get(volume).is_some_and(|home| home.backing.is_lost()) {
                // No sync of this home will ever say that the zeros are there.
                self.done(*op, Err(ErrorKind::Closed));
            } else if self.is_barred(*volume, &(first.0..first.0 + u64::from(*count))) {
                self.tombstones.held.push(write);
            } else {
                self.queue.push_back(write);
            }
        }
    }

    /// What writes to homes are held for cannot be written down now: they fail, and are tried again
    /// by whoever destages.
    fn refuse_held(&mut self, kind: ErrorKind) {
        for write in std::mem::take(&mut self.tombstones.held) {
            let Action::WriteBacking { op, .. } = write else { panic!("only writes are held") };
            self.done(op, Err(kind));
        }
        self.fail_cancels(kind, None);
    }

    // ---- homes ----

    /// Syncs a home on the core's own account, unless that is going on.
    pub(super) fn sync_home(&mut self, io: &mut dyn Io, id: VolumeId) {
        let home = self.homes.get_mut(&id).expect("a volume in the cache has a home");
        // One that could not be opened was not written to.
        if home.backing.is_absent() || std::mem::replace(&mut home.syncing, true) {
            return;
        }
        home.unsynced = false;
        let covered = self.tombstones.undone.remove(&id).unwrap_or_default();
        self.tombstones.syncing.insert(id, covered);
        self.ask_home(io, id, HOME_SYNC, BackingOperation::Sync);
    }

    pub(super) fn on_home_synced(
        &mut self,
        io: &mut dyn Io,
        id: VolumeId,
        result: Result<(), ErrorKind>,
    ) {
        let covered = self.tombstones.syncing.remove(&id).unwrap_or_default();
        let is_first = self.end_opened(id, result);
        let home = self.homes.get_mut(&id).expect("a home outlives its calls");
        home.syncing = false;
        if result.is_err() {
            // The next sync, at the latest the next checkpoint's, tries again. No record stands
            // for what was there when the backing store was opened.
            home.unsynced |= !is_first || !covered.is_empty();
            self.tombstones.undone.entry(id).or_default().extend(covered);
            if self.peer_sync.as_ref().is_some_and(|peer| peer.homes.contains(&id)) {
                self.fail_peer_sync();
            }
            return;
        }
        if let Some(log) = self.log_mut()
            && !covered.is_empty()
        {
            covered.iter().for_each(|seq| log.tombstone_done(*seq));
            let issued = log.forgets_issued();
            log.flush_forgets(io);
            let covered: HashSet<Seq> = covered.into_iter().collect();
            self.tombstones.set_done_at(issued, |seq| covered.contains(&seq));
        }
        if self.tombstones.undone.contains_key(&id) {
            self.sync_home(io, id);
            // What was zeroed after the checkpoint began is not for it to wait for.
            if self.is_sync_awaited(id) {
                return;
            }
        }
        if let Some(peer) = &mut self.peer_sync {
            peer.homes.remove(&id);
            self.end_peer_sync();
        }
    }

    pub(super) fn on_home_done(
        &mut self,
        io: &mut dyn Io,
        id: VolumeId,
        done: BackingDone<Buffer>,
    ) {
        let op = OpId(done.token as u32);
        if let Some(home) = self.homes.get_mut(&id) {
            home.ended += 1;
        }
        if self.is_cancelling(op) {
            return self.on_cancel_written(io, done);
        }
        if let Some(seq) = self.tombstones.zeroing.remove(&op) {
            return self.on_zeroed(io, id, (op, seq), done.result);
        }
        if let Some((seq, kind)) = self.tombstones.failing.remove(&op) {
            return self.on_zeroing_failed(io, id, (op, seq), kind);
        }
        if let Some(home) = self.homes.get_mut(&id) {
            home.unsynced |= done.buffer.is_none();
        }
        let mut buffer = done.buffer;
        self.zero_discarded(op, buffer.as_mut());
        if let Some(buffer) = buffer {
            self.set_buffer(op, buffer);
        }
        self.done(op, done.result);
    }

    /// A logged range was zeroed below, or could not be.
    fn on_zeroed(
        &mut self,
        io: &mut dyn Io,
        id: VolumeId,
        (op, seq): (OpId, Seq),
        result: Result<(), ErrorKind>,
    ) {
        let mut mine = self.tombstones.live.iter_mut().filter(|t| t.volume == id && t.seq == seq);
        if result.is_err()
            && let Some(live) = mine.find(|t| t.keep_allocated)
        {
            // Room cannot be kept where there is none: what counts is that the range reads zero.
            live.keep_allocated = false;
            let blocks = live.first..live.end;
            self.tombstones.zeroing.insert(op, seq);
            io.set_rank(self.rank_of(id));
            // The home's table has not counted it.
            self.ask_zeros(io, (op, id), self.bytes_of(&blocks), (false, false));
            return io.set_rank(Rank::FIRST);
        }
        if let Err(kind) = result {
            // What it did must not come undone once it was seen: copies of it may be durable first.
            self.tombstones.failing.insert(op, (seq, kind));
            return self.ask_home(io, id, u64::from(op.0), BackingOperation::Sync);
        }
        let kept = mine_keeps(&self.tombstones.live, seq);
        self.tombstones.undone.entry(id).or_default().push(seq);
        if let Some(blocks) = kept {
            self.cancel_discards(id, blocks.clone());
            self.end_delays(io, id, blocks);
        }
        self.sync_home(io, id);
        self.end_zeroing(op, Ok(()));
    }

    /// A part of the volume's delayed discards has reached its home, or was made zero otherwise:
    /// tombstones of which nothing waits any more are to be done for, and those that it has heard
    /// of since they were logged, whatever came over their range later.
    pub(super) fn end_delays(&mut self, io: &mut dyn Io, id: VolumeId, blocks: Range<u64>) {
        let ended: Vec<Seq> = self
            .tombstones
            .delayed_in(id, blocks)
            .filter(|(seq, own)| {
                self.tombstones.is_heard(*seq) || !self.is_discard_waiting(id, own.clone())
            })
            .map(|(seq, _)| seq)
            .collect();
        if ended.is_empty() {
            return;
        }
        for seq in ended {
            self.tombstones.end_delay(id, seq);
            if let Some(peer) = &mut self.peer_sync {
                peer.delayed.remove(&seq);
            }
        }
        self.sync_home(io, id);
        self.end_peer_sync();
    }

    /// The backing store has refused a delayed discard: writes that wait for one of its tombstones
    /// fail, also those that wait for another part of the tombstone's range.
    pub(super) fn fail_delays(&mut self, id: VolumeId, blocks: Range<u64>, kind: ErrorKind) {
        let met: Vec<(Seq, Range<u64>)> = self.tombstones.delayed_in(id, blocks.clone()).collect();
        let waits = |write: &Action| {
            touches(write, id, &blocks) || met.iter().any(|(_, own)| touches(write, id, own))
        };
        let held = std::mem::take(&mut self.tombstones.held);
        let (failed, kept): (Vec<_>, Vec<_>) = held.into_iter().partition(waits);
        self.tombstones.held = kept;
        for write in failed {
            let Action::WriteBacking { op, .. } = write else { panic!("only writes are held") };
            self.done(op, Err(kind));
        }
        let refused: Vec<Seq> = met.iter().map(|(seq, _)| *seq).collect();
        self.fail_cancels(kind, Some(&refused));
        if self.peer_sync.as_ref().is_some_and(|peer| !peer.delayed.is_empty()) {
            self.fail_peer_sync();
        }
    }

    /// A range could not be zeroed, and what its home shows of it will stay, if syncs can be had.
    fn on_zeroing_failed(
        &mut self,
        io: &mut dyn Io,
        id: VolumeId,
        (op, seq): (OpId, Seq),
        kind: ErrorKind,
    ) {
        self.forget_unheld(id, seq);
        self.void_tombstone(io, seq);
        self.end_zeroing(op, Err(kind));
    }

    fn end_zeroing(&mut self, op: OpId, result: Result<(), ErrorKind>) {
        self.done(op, result);
        if let Some(peer) = &mut self.peer_sync {
            peer.zeroing.remove(&op);
            self.end_peer_sync();
        }
    }

    /// The home may hold zeros in part, and whoever reads it now sees them: records of blocks that
    /// no level answers for any more must not come back over that, as they would once the tombstone
    /// that kills them is void.
    fn forget_unheld(&mut self, id: VolumeId, seq: Seq) {
        let mut mine = self.tombstones.live.iter().filter(|t| t.volume == id && t.seq == seq);
        let Some(range) = mine.next().map(|live| live.first..live.end) else { return };
        let blocks = range.map(BlockIndex);
        let is_unheld = |block: &BlockIndex| {
            let is_lost = self.cache.lost().overlaps(BlockKey::new(id, *block), 1);
            !is_lost && !self.cache.is_stored(id, *block)
        };
        let unheld: Vec<_> = blocks.filter(is_unheld).collect();
        let log = self.log_mut().expect("the tombstone was logged");
        unheld.into_iter().for_each(|block| log.forget(BlockKey::new(id, block)));
    }

    /// Nothing was dropped for a range that could not be zeroed; recovery must not drop it either.
    fn void_tombstone(&mut self, io: &mut dyn Io, seq: Seq) {
        let log = self.log_mut().expect("the tombstone was logged");
        log.tombstone_void(seq);
        let issued = log.forgets_issued();
        log.flush_forgets(io);
        self.tombstones.set_done_at(issued, |of| of == seq);
    }

    // ---- block status ----

    pub(super) fn ask_extents(&mut self, io: &mut dyn Io, request: RequestId) {
        let entry = self.requests.get_mut(&request).expect("it was just inserted");
        let (volume, offset) = (entry.volume, entry.call.offset);
        let length = entry.call.length.min(STATUS_BYTES_MAX);
        let Some(home) = self.homes.get(&volume) else {
            return self.on_extents(io, request, Err(ErrorKind::Closed), &[]);
        };
        entry.looked.ended = home.ended;
        let token = HOME_EXTENTS | request.0 & (HOME_SYNC - 1);
        self.ask_home(io, volume, token, BackingOperation::Extents { offset, length });
    }

    pub(super) fn on_extents(
        &mut self,
        io: &mut dyn Io,
        low: RequestId,
        result: Result<(), ErrorKind>,
        extents: &[(u64, u64, bool)],
    ) {
        // A token holds the low bits of a request's number, which differ among those in flight.
        let matches = |id: &&RequestId| id.0 & (HOME_SYNC - 1) == low.0 & (HOME_SYNC - 1);
        let found = self.requests.keys().find(matches).copied();
        let Some((id, mut entry)) = found.and_then(|id| Some((id, self.requests.remove(&id)?)))
        else {
            return;
        };
        let ended = self.homes.get(&entry.volume).map(|home| home.ended);
        let is_same = ended.is_none_or(|ended| ended == entry.looked.ended);
        if result.is_ok() && !is_same && entry.looked.dirty.is_none() {
            entry.looked.dirty = Some(self.dirty_runs(&entry));
            self.requests.insert(id, entry);
            return self.ask_extents(io, id);
        }
        let extents = self.without_discarded(entry.volume, extents);
        let result = result.map(|()| Answer::Extents(self.overlay(&entry, &extents)));
        self.finish(entry, result);
    }

    /// What the cache holds of a request's blocks that the home lacks, in runs of blocks.
    fn dirty_runs(&self, entry: &super::Request) -> Vec<Range<u64>> {
        let size = self.cache.spec().block_size;
        let length = entry.call.length.min(STATUS_BYTES_MAX);
        let blocks =
            size.block_of(entry.call.offset).0..=size.block_of(entry.call.offset + length).0;
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in blocks.filter(|block| self.cache.is_dirty(entry.volume, BlockIndex(*block))) {
            match runs.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }

    /// A hole of the home is data where the cache holds a newer version, or held one when the home
    /// was asked.
    fn overlay(&self, entry: &super::Request, extents: &[(u64, u64, bool)]) -> Vec<Extent> {
        let size = self.cache.spec().block_size;
        let levels = self.levels.len() as u8;
        let has_lost = self.cache.lost().of_volume(entry.volume).next().is_some();
        let dirty =
            has_lost || (0..levels).any(|l| self.cache.held_by(entry.volume, LevelIndex(l)).2 > 0);
        let before = entry.looked.dirty.as_deref().unwrap_or_default();
        let dirty = dirty || !before.is_empty();
        let was_dirty = |block: u64| {
            let at = before.partition_point(|run| run.end <= block);
            before.get(at).is_some_and(|run| run.contains(&block))
        };
        let end = entry.call.offset + entry.call.length;
        let mut runs = Vec::new();
        for (offset, length, data) in extents {
            let stop = (offset + length).min(end);
            let mut at = (*offset).max(entry.call.offset);
            if *data || !dirty {
                push_run(&mut runs, stop.saturating_sub(at), *data);
                continue;
            }
            while at < stop {
                let block = size.block_of(at);
                let next = stop.min(size.offset_of(BlockIndex(block.0 + 1)));
                // What is lost is not a hole, whatever lies below.
                let key = BlockKey::new(entry.volume, block);
                let is_data = self.cache.is_dirty(entry.volume, block)
                    || was_dirty(block.0)
                    || self.cache.lost().overlaps(key, 1);
                push_run(&mut runs, next - at, is_data);
                at = next;
            }
        }
        runs
    }
}

/// The blocks of a tombstone that keeps its range allocated below.
fn mine_keeps(live: &[LiveTombstone], seq: Seq) -> Option<Range<u64>> {
    live.iter().find(|t| t.seq == seq && t.keep_allocated).map(|t| t.first..t.end)
}

fn push_run(runs: &mut Vec<Extent>, length: u64, data: bool) {
    match runs.last_mut() {
        _ if length == 0 => {}
        Some(last) if last.hole != data => last.length += length,
        _ => runs.push(Extent { length, hole: !data, zero: !data }),
    }
}
