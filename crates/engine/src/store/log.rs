//! The SSD level's store: an append-only log of checksummed batches in reusable segments.
//!
//! How: each [`Stream`] has one open segment and at most one batch write in flight; what arrives
//! meanwhile forms the next batch. A slot's location and checksum stay in memory; a batch's end
//! moves them. Segments without live blocks are reused after a checkpoint; when few are left, the
//! one that gains most for its cost and age is emptied, and the owner says what is copied.
//! Invariant: `segments[i].live` is the number of slots whose location lies in segment i; a slot
//! keeps its former location until the new batch has ended well.
//! Rules: (R1) at recovery the newest seq of a block wins. (R2) a segment is reused only after a
//! checkpoint that started after it became empty is complete, and a checkpoint completes only with
//! everything durable that made its missing blocks dead (own disk, peer level, backing stores).
//! Relocated copies keep the seq of the original, so a copy never outranks what superseded it.
//! Cost: 8 bytes of memory per slot; one descriptor block per batch; 1/8 of the room spare, and two
//! blocks of a segment at least.
//! Not for: byte-addressable levels (see `nvm`).

use super::log_changes::Changes;
use super::log_checkpoint::Checkpoint;
use super::log_clean::Cleaning;
use super::log_config::LogConfig;
use super::log_counters::LogCounters;
use super::log_discard::Freed;
use super::log_geometry::LogGeometry;
use super::log_layout::{
    BATCH_ENTRIES_MAX, BatchName, CHUNK_ENTRIES, NOTE_BYTES, NOWHERE, Record, TRAILER_BLOCKS,
};
use super::log_read::Reads;
use super::log_retire::Retiring;
use super::log_streams::ShortLived;
use super::log_tokens::Purpose;
use super::table::Map;
use super::{
    CorruptInfo, STREAMS, SeqSource, SlotInfo, SlotView, StoreError, StoreEvent, Stream, Ticket,
};
use crate::io::{Buffer, DiskId, Io, IoDone};
use layby_cache::Cleaned;
use layby_cache::cleaning::{Limits, Segments};
use layby_cache::schedule::Rank;
use layby_types::planted::{Plant, is_planted};
use layby_types::{BlockIndex, BlockKey, ErrorKind, Nanos, Seq, Slot, VolumeId};
use std::collections::{BTreeMap, VecDeque};

/// The part of a segment, one of this many, that zeroings owed across a checkpoint may take.
const OWED_SEGMENT_PART: usize = 8;
/// Batches written since the last sync at which the log syncs by itself.
pub(super) const UNSYNCED_MAX: usize = 4096;

/// One block to append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendEntry {
    /// The slot it takes; if the slot holds another block, `free` it first.
    pub slot: Slot,
    /// The block.
    pub key: BlockKey,
    /// The backing store does not have these bytes durably.
    pub dirty: bool,
}

/// Where a slot's block lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) location: u32,
    pub(super) crc: u32,
}

impl Place {
    pub(super) const NONE: Place = Place { location: NOWHERE, crc: 0 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentState {
    /// May be opened.
    Free,
    /// A stream appends to it.
    Open,
    /// Full, with live blocks.
    Closed,
    /// Closed, and holds a block that cannot be moved since it cannot be read.
    Damaged,
    /// Without live blocks since the given seq; free after a checkpoint that starts later.
    Waiting(Seq),
    /// Such a checkpoint is complete; free when the last read of it has ended.
    Passed,
    /// Empty, and not to be opened until it has passed a test.
    Suspect,
    /// Failed for good; never used again.
    Retired,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) generation: Seq,
    /// The stream that fills it, or did.
    pub(super) stream: Stream,
    pub(super) live: u32,
    /// Reads in flight.
    pub(super) pins: u32,
    /// Times that cleaning could not read it.
    pub(super) failures: u8,
    /// Something of it has failed; it is tested once it is empty.
    pub(super) is_marked: bool,
    pub(super) state: SegmentState,
}

/// A record that waits for its batch.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) record: Record,
    pub(super) ticket: Option<Ticket>,
    pub(super) durable: bool,
    /// Relocation: where the block is copied from.
    pub(super) origin: Option<Origin>,
}

/// A place of a block, for as long as its segment is not used anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) location: u32,
    /// The segment's.
    pub(super) generation: Seq,
}

/// A batch write in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) records: Vec<Queued>,
    /// Of `records`, those at the front that came from the forget queue.
    pub(super) forgets: usize,
    pub(super) name: BatchName,
    pub(super) durable: bool,
    /// First data block; the batch's header lies before it.
    pub(super) data_first: u32,
    pub(super) blocks: u32,
    /// It is durable by a sync of its own, and another one failed while it was under way.
    pub(super) is_doubtful: bool,
    /// Why its write failed, and how often its header has been overwritten in vain.
    pub(super) failed: Option<(ErrorKind, u8)>,
}

#[derive(Debug, Default)]
pub(super) struct StreamState {
    pub(super) queue: VecDeque<Queued>,
    /// Data of the queue's blocks, in order.
    pub(super) data: VecDeque<u8>,
    /// Open segment and its first free block within it.
    pub(super) open: Option<(u32, u32)>,
    pub(super) flight: Option<Flight>,
    pub(super) previous: BatchName,
    pub(super) tail: BatchName,
    /// Records ever queued, and ever ended.
    pub(super) queued_total: u64,
    pub(super) ended_total: u64,
    /// The best rank of what waits in the queue; a batch goes to the device by that.
    pub(super) rank: Rank,
    /// Of `queued_total`, up to the last record of a rank below the best one.
    pub(super) lower_total: u64,
}

#[derive(Debug)]
pub(super) struct TicketState {
    pub(super) left: usize,
    pub(super) failed: Option<ErrorKind>,
}

/// Appends in flight for one slot.
#[derive(Debug, Default)]
pub(super) struct PendingSlot {
    pub(super) count: u32,
    pub(super) applied: u64,
    pub(super) freed_below: u64,
}

/// Who waits for durability.
#[derive(Clone, Copy, Debug)]
pub(super) enum SyncFor {
    Caller(Ticket),
    /// The checkpoint of this seq; it may have failed meanwhile.
    Checkpoint(Seq),
    /// Nobody; it bounds the list of batches not known durable.
    Bound,
}

#[derive(Debug)]
pub(super) struct SyncWaiter {
    pub(super) whom: SyncFor,
    /// By stream of callers.
    pub(super) until: [u64; Stream::CALLERS.len()],
    pub(super) forgets: u64,
}

#[derive(Debug, Default)]
pub(super) struct SyncState {
    pub(super) waiting: Vec<SyncWaiter>,
    pub(super) flight: Option<Vec<SyncFor>>,
    /// Batches that ended and are not known durable; with those a sync in flight will cover.
    pub(super) written: Vec<(Stream, BatchName)>,
    pub(super) syncing: Vec<(Stream, BatchName)>,
    /// A sync failed over written batches: the device may have dropped them, so that no later sync
    /// can vouch for them. All syncs fail until the log is opened again.
    pub(super) lost: bool,
    /// Checkpoint chunks ended and not yet covered by a sync.
    pub(super) chunks_written: bool,
    /// The oldest batch whose write failed before the checkpoint that is written, and the oldest
    /// since: a start may find them until a checkpoint passes them, so none is claimed durable.
    pub(super) failed: [Option<u64>; 2],
}

impl SyncState {
    /// A batch has ended that no sync covers yet. While syncs hang or fail, what is noted of many
    /// batches is no more than what is asked of them: the first of all, and each stream's last.
    pub(super) fn note_written(&mut self, stream: Stream, name: BatchName) {
        self.written.push((stream, name));
        if self.written.len() >= 2 * UNSYNCED_MAX {
            let mut ends = [None; Stream::ALL.len()];
            for (stream, name) in self.written.drain(..) {
                let (first, last) = ends[stream as usize].get_or_insert((name, name));
                *first = if name.seq < first.seq { name } else { *first };
                *last = if name.seq > last.seq { name } else { *last };
            }
            let ends = Stream::ALL.iter().zip(ends).filter_map(|(stream, ends)| {
                let (first, last) = ends?;
                Some([(*stream, first), (*stream, last)])
            });
            self.written.extend(ends.flatten());
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Forgets {
    pub(super) queue: VecDeque<Record>,
    pub(super) issued: u64,
    pub(super) in_flight: u64,
    pub(super) flush: bool,
    /// They are to be written now, and no segment can be had.
    pub(super) is_stuck: bool,
    /// All else waits for them, so that they take what is left of the last segment.
    pub(super) is_urgent: bool,
    pub(super) deadline: Option<Nanos>,
}

/// The log of one shard. See the module's header.
pub struct LogStore {
    pub(super) config: LogConfig,
    pub(super) geometry: LogGeometry,
    pub(super) instance: u64,
    pub(super) disk_name: String,
    pub(super) seqs: SeqSource,
    pub(super) epoch: Seq,
    pub(super) slots: Vec<Place>,
    pub(super) changes: Changes,
    pub(super) overflow: BTreeMap<u32, SlotInfo>,
    /// By location: the slot of a block whose batch names another, since recovery moved it.
    pub(super) moved: Map<u32, u32>,
    pub(super) segments: Vec<Segment>,
    pub(super) free_segments: VecDeque<u32>,
    /// Segments that wait for a checkpoint, or for reads of them alone.
    pub(super) waiting_segments: usize,
    /// Of these, those that a checkpoint has passed.
    pub(super) passed_segments: usize,
    pub(super) segments_damaged: u32,
    /// Sum of the segments' live blocks.
    pub(super) blocks_live: u32,
    pub(super) short_lived: ShortLived,
    pub(super) streams: [StreamState; STREAMS],
    /// Of the last batch written, in whatever stream, for the next one's descriptor.
    pub(super) copy_of_last: Vec<u8>,
    pub(super) tickets: Map<Ticket, TicketState>,
    pub(super) pending_slots: Map<u32, PendingSlot>,
    /// Slots that a call in progress has filled, in a batch before its last or after one that
    /// failed: the cache does not know yet, though a checkpoint may be all that remembers them.
    pub(super) unsettled: Map<u32, (Ticket, SlotInfo)>,
    pub(super) sync: SyncState,
    pub(super) horizon: super::log_horizon::Horizon,
    pub(super) voids: super::log_void::Voids,
    pub(super) forgets: Forgets,
    pub(super) reads: Reads,
    pub(super) cleaning: Cleaning,
    pub(super) retiring: Retiring,
    pub(super) freed: Freed,
    pub(super) checkpoint: Checkpoint,
    pub(super) events: Vec<StoreEvent>,
    pub(super) failures: super::failures::Failures,
    pub(super) counters: LogCounters,
    /// What an end made possible was not started yet.
    pub(super) owes_pump: bool,
    /// The owner's, for the next checkpoint.
    pub(super) note: [u8; NOTE_BYTES],
    /// The last batch failed, with this.
    pub(super) failing: Option<ErrorKind>,
}

impl LogStore {
    /// Makes an empty log in the region: superblock and void checkpoints, durable when done.
    /// `instance` must differ from that of any log that was here before (draw it).
    ///
    /// # Errors
    /// [`StoreError::TooSmall`], or the device's failure.
    pub fn format(io: &mut dyn Io, config: &LogConfig, instance: u64) -> Result<(), StoreError> {
        super::log_recover::format(io, config, instance)
    }

    /// Opens a log and recovers its contents. No other operation may be in flight on `io`. Raises
    /// `seqs` above every seq found; usable at once, but see [`super::resolve`] for what the
    /// shard does first.
    ///
    /// # Errors
    /// Another node's or damaged structures; nothing is written in that case.
    pub fn open(
        io: &mut dyn Io,
        config: LogConfig,
        seqs: SeqSource,
    ) -> Result<(Self, super::Recovered), StoreError> {
        super::log_recover::open(io, config, seqs)
    }

    /// The disk it lies on.
    #[must_use]
    pub fn disk(&self) -> DiskId {
        self.config.region.disk
    }
    /// Logical slots of this log.
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        self.geometry.slot_count
    }
    /// Bytes of memory held for slots and segments.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Place>()
            + self.segments.capacity() * size_of::<Segment>()
            + self.moved.capacity() * 2 * size_of::<u32>()
            + self.changes.memory_bytes()
    }
    /// Running totals.
    #[must_use]
    pub fn counters(&self) -> LogCounters {
        self.counters
    }
    /// What the next checkpoint keeps for the log's owner; it comes back at the next start with the
    /// bytes that were written since that checkpoint began.
    pub fn set_note(&mut self, note: [u8; NOTE_BYTES]) {
        self.note = note;
    }
    /// Segments that may be opened now.
    #[must_use]
    pub fn segments_free(&self) -> usize {
        self.free_segments.len()
    }
    /// Moves what has happened to the end of `events`.
    pub fn take_events(&mut self, events: &mut Vec<StoreEvent>) {
        events.append(&mut self.events);
    }

    /// Appends blocks; `data` holds them in the order of `entries` and is copied. Ends with
    /// `Stored` when all are written, or with `durable` when all are durable.
    pub fn append(
        &mut self,
        io: &mut dyn Io,
        ticket: Ticket,
        stream: Stream,
        entries: &[AppendEntry],
        data: &[u8],
        durable: bool,
    ) {
        let block = self.geometry.block_bytes as usize;
        assert!(!entries.is_empty() && data.len() == entries.len() * block, "a block per entry");
        assert!(Stream::CALLERS.contains(&stream), "copies are the log's own");
        let stream = self.stream_of_call(io, stream, entries, durable);
        let state = TicketState { left: entries.len(), failed: None };
        assert!(self.tickets.insert(ticket, state).is_none(), "a ticket is in use once");
        for (entry, bytes) in entries.iter().zip(data.chunks_exact(block)) {
            assert!(entry.slot.0 < self.geometry.slot_count, "{:?} is no slot", entry.slot);
            let seq = self.seqs.take();
            let crc = super::layout::crc32c(bytes);
            let AppendEntry { slot, key, dirty } = *entry;
            let record = Record::Block { key, seq, slot, crc, dirty };
            self.pending_slots.entry(slot.0).or_default().count += 1;
            self.enqueue(stream, Queued { record, ticket: Some(ticket), durable, origin: None });
        }
        self.streams[stream as usize].data.extend(data);
        self.note_rank(io, stream);
        self.counters.bytes_appended += data.len() as u64;
        self.pump(io);
    }

    /// Declares every older record of a range dead, in all levels, durably with `durable`; ends
    /// with `Stored`. Free the range's slots at the latest when that is handled, and zero the range
    /// below when the tombstone is durable. At recovery the range is zeroed below again, unless
    /// [`LogStore::tombstone_done`] said it need not.
    #[expect(clippy::too_many_arguments, reason = "a range, two choices and the call's own")]
    pub fn tombstone(
        &mut self,
        io: &mut dyn Io,
        ticket: Ticket,
        volume: VolumeId,
        first: BlockIndex,
        count: u64,
        no_hole: bool,
        durable: bool,
    ) -> Seq {
        let state = TicketState { left: 1, failed: None };
        assert!(self.tickets.insert(ticket, state).is_none(), "a ticket is in use once");
        let seq = self.seqs.take();
        let first = BlockKey::new(volume, first);
        let record = Record::Tombstone { first, count, seq, no_hole };
        let queued = Queued { record, ticket: Some(ticket), durable, origin: None };
        let stream = self.stream_of_call(io, Stream::Write, &[], durable);
        self.enqueue(stream, queued);
        self.note_rank(io, stream);
        self.pump(io);
        seq
    }

    /// The backing store holds the zeros of tombstone `of` durably. Travels like a forget; newer
    /// bytes of the range may be written below once it is durable.
    pub fn tombstone_done(&mut self, of: Seq) {
        let seq = self.seqs.take();
        self.forgets.queue.push_back(Record::TombstoneDone { of, seq });
        self.forgets.issued += 1;
    }

    /// The range of tombstone `of` could not be zeroed: older records of it live on. Travels like a
    /// forget, and until it is durable the range may be zeroed at recovery.
    pub fn tombstone_void(&mut self, of: Seq) {
        let seq = self.seqs.take();
        self.forgets.queue.push_back(Record::TombstoneVoid { of, seq });
        self.forgets.issued += 1;
    }

    /// The range of tombstone `of`, which lies before the checkpoint that has begun, is still to be
    /// zeroed below. Travels like a forget; the checkpoint may end once it is durable, and
    /// [`LogStore::tombstone_done`] ends it, too. Ask [`LogStore::can_owe`] first.
    pub fn owe_zeros(&mut self, volume: VolumeId, first: BlockIndex, count: u64, of: Seq) {
        let record = Record::Owed { first: BlockKey::new(volume, first), count, seq: of };
        self.forgets.queue.push_back(record);
        self.forgets.issued += 1;
    }

    /// Whether so many zeroings may be owed across the checkpoint that has begun: not across a
    /// clean one, nor where no segment is free for their records, nor so many that checkpoints fill
    /// segments by themselves.
    #[must_use]
    pub fn can_owe(&self, count: usize) -> bool {
        !self.is_closing() && !self.free_segments.is_empty() && count <= self.owed_max()
    }

    /// Whether a checkpoint that ends the log cleanly is wanted or under way.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        super::log_checkpoint::closing(self)
    }

    /// Zeroings that may be owed across a checkpoint at most, whatever is free.
    #[must_use]
    pub fn owed_max(&self) -> usize {
        let batches = (self.geometry.segment_blocks as usize / OWED_SEGMENT_PART).max(1);
        batches * BATCH_ENTRIES_MAX
    }

    /// Declares every older record of `key` dead, in both levels, lazily. For a block whose newest
    /// bytes are durable elsewhere; see the duties in the parent module.
    pub fn forget(&mut self, key: BlockKey) {
        let seq = self.seqs.take();
        self.forgets.queue.push_back(Record::Forget { key, seq });
        self.forgets.issued += 1;
    }

    /// Forgets ever issued.
    #[must_use]
    pub fn forgets_issued(&self) -> u64 {
        self.forgets.issued
    }
    /// Of the forgets issued, how many (the oldest) are durable.
    #[must_use]
    pub fn forgets_durable(&self) -> u64 {
        self.forgets.issued - self.forgets.in_flight - self.forgets.queue.len() as u64
    }
    /// Writes waiting forgets now rather than after `forget_idle`.
    pub fn flush_forgets(&mut self, io: &mut dyn Io) {
        self.forgets.flush = !self.forgets.queue.is_empty();
        self.pump(io);
    }

    /// The block leaves the level. Reads in flight on the slot still end well.
    pub fn free(&mut self, slot: Slot) {
        let next = self.seqs.next().0;
        if let Some(pending) = self.pending_slots.get_mut(&slot.0) {
            pending.freed_below = next;
        }
        self.overflow.remove(&slot.0);
        self.unsettled.remove(&slot.0);
        super::log_clean::on_left_ended(self, slot);
        self.changes.note(slot);
        let place = core::mem::replace(&mut self.slots[slot.0 as usize], Place::NONE);
        self.release(place.location);
    }

    /// From now on the owner is asked which live blocks of a victim are copied, by
    /// [`StoreEvent::Cleaning`], and answers each time with [`LogStore::cleaned`]; or it is not.
    pub fn ask_owner(&mut self, is_owned: bool) {
        self.cleaning.is_owned = is_owned;
    }

    /// As they were given.
    #[must_use]
    pub fn cleaning_limits(&self) -> Limits {
        self.config.segments.cleaning
    }

    /// What the owner may have to know to answer [`StoreEvent::Cleaning`].
    #[must_use]
    pub fn segments_for_cleaning(&self) -> Segments {
        super::log_clean::segments_for_owner(self)
    }

    /// The answer to [`StoreEvent::Cleaning`], for each slot in order; before `on_tick` is called
    /// again. A slot that is being destaged ends with [`LogStore::free`] or
    /// [`LogStore::cleaning_kept`].
    pub fn cleaned(&mut self, io: &mut dyn Io, answers: &[Cleaned]) {
        super::log_clean::answered(self, io, answers);
        self.pump(io);
    }

    /// A slot that was being destaged for cleaning stays in use.
    pub fn cleaning_kept(&mut self, slot: Slot) {
        super::log_clean::on_left_ended(self, slot);
    }

    /// The slot's block is dirty now, or clean, without a record that says so: the next checkpoint
    /// does.
    pub fn on_dirty_changed(&mut self, slot: Slot) {
        self.changes.note(slot);
    }

    /// Reads blocks; ends with `Read` and one buffer in the order of `slots`. A slot whose append
    /// has not ended yet gives what it held before.
    pub fn read(&mut self, io: &mut dyn Io, ticket: Ticket, slots: &[Slot]) {
        super::log_read::start(self, io, ticket, slots);
    }

    /// Makes durable every append, tombstone and forget issued before; ends with `Synced`.
    pub fn sync(&mut self, io: &mut dyn Io, ticket: Ticket) {
        self.sync_for(SyncFor::Caller(ticket));
        self.forgets.flush = !self.forgets.queue.is_empty();
        self.pump(io);
    }

    /// Starts a checkpoint unless one is running; ends with `CheckpointDone` or
    /// `CheckpointFailed`. `clean` marks a clean shutdown: nothing may be appended afterwards.
    pub fn checkpoint_now(&mut self, clean: bool) {
        super::log_checkpoint::request(self, clean);
    }

    /// The answer to `NeedPeerSync`: what was asked for is safe.
    pub fn peer_synced(&mut self, id: u64) {
        super::log_checkpoint::on_peer_synced(self, id);
    }

    /// The other answer to `NeedPeerSync`: what was asked for cannot be made safe now. The
    /// checkpoint fails and is tried again later.
    pub fn peer_failed(&mut self, id: u64) {
        super::log_checkpoint::on_peer_failed(self, id);
    }

    /// Takes the end of an operation whose token carries this log's tag.
    pub fn on_io(&mut self, io: &mut dyn Io, done: IoDone) {
        let (purpose, payload) = self.unpack(done.token);
        if done.is_sync_failed {
            self.note_sync_failed();
            super::log_checkpoint::on_sync_failed(self);
        }
        match purpose {
            Purpose::Batch => {
                self.on_batch(io, payload as usize, done);
                if io.is_stepwise() {
                    // What the end answers comes first; the next batch is a step of its own.
                    self.owes_pump = true;
                    return;
                }
            }
            Purpose::Read => super::log_read::on_io(self, io, payload, done),
            Purpose::Sync => self.on_sync(done.result),
            Purpose::Clean => super::log_clean::on_io(self, io, done),
            Purpose::Chunk => super::log_checkpoint::on_chunk(self, io, done),
            Purpose::Trailer => super::log_checkpoint::on_trailer(self, io, done),
            Purpose::Test => super::log_retire::on_io(self, io, payload, done),
            Purpose::Discard => super::log_discard::on_io(self, io, payload, &done),
            Purpose::Void => super::log_void::on_io(self, io, done),
            Purpose::Header => super::log_headers::on_io(self, io, done),
        }
        self.pump(io);
    }

    /// Does what an end left for later; true when there was something.
    pub fn go_on(&mut self, io: &mut dyn Io) -> bool {
        if self.owes_pump {
            self.pump(io);
            return true;
        }
        false
    }

    /// Whether an end left something for later.
    #[must_use]
    pub fn owes_pump(&self) -> bool {
        self.owes_pump
    }

    /// Background work: cleaning, checkpoints, idle forgets; a bounded step per call. Call it when
    /// [`LogStore::next_deadline`] has passed; events of earlier calls must have been handled.
    pub fn on_tick(&mut self, io: &mut dyn Io, now: Nanos, view: &dyn SlotView) {
        if !self.forgets.queue.is_empty() {
            let deadline = self.forgets.deadline.get_or_insert(now + self.config.forget_idle);
            if now >= *deadline {
                self.forgets.flush = true;
            }
        }
        self.horizon.on_tick(now);
        super::log_void::on_tick(self, now);
        super::log_clean::step(self, io, now, view);
        super::log_retire::step(self, io, now);
        super::log_checkpoint::step(self, io, now, view);
        super::log_discard::step(self, io, now);
        self.pump(io);
    }

    /// When `on_tick` is wanted next: `ZERO` for at once, `NEVER` for not before another event.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        if super::log_clean::wants_step(self)
            || super::log_checkpoint::wants_step(self)
            || super::log_retire::wants_step(self)
            || self.owes_pump
        {
            return Nanos::ZERO;
        }
        let forgets = match (self.forgets.queue.is_empty(), self.forgets.deadline) {
            // Those that find no room wait for an event rather than for time.
            _ if self.forgets.is_stuck => Nanos::NEVER,
            (true, _) => Nanos::NEVER,
            (false, Some(deadline)) => deadline,
            (false, None) => Nanos::ZERO,
        };
        forgets
            .min(super::log_clean::retry_at(self))
            .min(super::log_checkpoint::retry_at(self))
            .min(super::log_retire::retry_at(self))
            .min(super::log_discard::next_deadline(self))
            .min(self.horizon.deadline())
            .min(self.voids.deadline())
    }

    /// True when nothing is queued or in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.streams.iter().all(|stream| stream.queue.is_empty() && stream.flight.is_none())
            && self.sync.flight.is_none()
            && self.sync.waiting.is_empty()
            && self.reads.is_empty()
            && self.checkpoint.is_idle()
            && self.cleaning.is_idle()
            && self.retiring.is_idle()
            && self.voids.is_idle()
            && !self.freed.is_flying()
    }
}

impl LogStore {
    /// The byte on the disk of a block of the region.
    pub(super) fn offset_of(&self, block: u32) -> u64 {
        self.config.region.base + u64::from(block) * u64::from(self.geometry.block_bytes)
    }

    pub(super) fn enqueue(&mut self, stream: Stream, queued: Queued) {
        let state = &mut self.streams[stream as usize];
        state.queue.push_back(queued);
        state.queued_total += 1;
    }

    /// A buffer of `blocks` blocks filled with zeros.
    pub(super) fn zeroed(&self, io: &mut dyn Io, blocks: usize) -> Buffer {
        let mut buffer = io.buffer(blocks * self.geometry.block_bytes as usize);
        buffer.fill(0);
        buffer
    }

    /// See [`LogGeometry::free_kept`].
    pub(super) fn free_kept(&self) -> usize {
        self.geometry.free_kept()
    }

    /// One block less is live in the segment of `location`.
    pub(super) fn release(&mut self, location: u32) {
        if location == NOWHERE {
            return;
        }
        self.moved.remove(&location);
        let index = self.geometry.segment_of(location).expect("a location lies in a segment");
        let segment = &mut self.segments[index as usize];
        segment.live = segment.live.checked_sub(1).expect("live counts every location");
        self.blocks_live -= 1;
        self.retire_if_empty(index);
    }

    /// Puts a closed segment without live blocks among those that wait for a checkpoint.
    pub(super) fn retire_if_empty(&mut self, index: u32) {
        let since = self.seqs.next();
        let segment = &mut self.segments[index as usize];
        let closed = matches!(segment.state, SegmentState::Closed | SegmentState::Damaged);
        if closed && segment.live == 0 {
            if segment.state == SegmentState::Damaged {
                self.segments_damaged -= 1;
                self.events.push(StoreEvent::RoomChanged);
            }
            segment.state = SegmentState::Waiting(since);
            self.waiting_segments += 1;
            if is_planted(Plant::CleanReusedEarly) {
                segment.state = SegmentState::Free;
                self.waiting_segments -= 1;
                self.free_segments.push_back(index);
            } else if is_planted(Plant::DiscardEarly) {
                self.tell_free(index, Nanos::ZERO);
            }
            self.note_life(index);
        }
    }

    /// Moves a slot to where its newest bytes lie.
    pub(super) fn place(&mut self, slot: Slot, place: Place) {
        self.changes.note(slot);
        let old = core::mem::replace(&mut self.slots[slot.0 as usize], place);
        let index = self.geometry.segment_of(place.location).expect("a batch lies in a segment");
        self.segments[index as usize].live += 1;
        self.blocks_live += 1;
        self.release(old.location);
    }

    /// The slot that points to `location`, given the slot that its batch names.
    pub(super) fn slot_at(&self, named: Slot, location: u32) -> Option<Slot> {
        let points = |slot: u32| {
            self.slots.get(slot as usize).is_some_and(|place| place.location == location)
        };
        let moved = || self.moved.get(&location).copied().filter(|slot| points(*slot));
        if points(named.0) { Some(named) } else { moved().map(Slot) }
    }

    /// What is in a slot of the level: as the cache knows, but for calls in progress.
    pub(super) fn owner(&self, slot: Slot, view: &dyn SlotView) -> Option<SlotInfo> {
        let unsettled = self.unsettled.get(&slot.0).map(|(_, info)| *info);
        unsettled.or_else(|| view.slot(slot))
    }

    pub(super) fn report_corrupt(&mut self, info: CorruptInfo) {
        self.counters.corrupt_blocks += 1;
        self.events.push(StoreEvent::Corrupt(info));
    }

    /// Entries that checkpoints have room for besides one for each slot.
    #[must_use]
    pub(crate) fn lost_entries_max(&self) -> usize {
        let room = (self.geometry.checkpoint_blocks - TRAILER_BLOCKS) as usize * CHUNK_ENTRIES;
        room.saturating_sub(self.slots.len())
    }

    /// Entries of a batch at most, by the block size.
    pub(super) fn batch_blocks_max(&self) -> usize {
        self.geometry.batch_blocks_max().min(BATCH_ENTRIES_MAX)
    }
}
