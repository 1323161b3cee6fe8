//! Checkpoints: fuzzy copies of the slot table that bound recovery and let segments be reused.
//!
//! How: at the start the counter (C0) and the open segments' fill are noted, and the shard is asked
//! to bring the NVM stores placed so far to their end. Then the slots are looked at, a bounded
//! number per step, and written some chunks at a time, with pages of parity behind them. Then the
//! own disk is synced and the shard asked to make NVM frees and backing stores durable. The trailer
//! is written last, durably, twice by one write, so that a lost page of 4 KiB leaves the other.
//! A full one names all slots and goes into the older of two areas. Behind it go increments, which
//! name the slots that changed since the one before looked at them, empty ones included. The first
//! of an opening, a clean one, and one for which the area has no room or that would be longer than
//! the full one, is full. So is the one after an increment that the device refused.
//! Invariant: what an entry shows, and what an increment leaves out, is what the slot held at some
//! moment after C0, when the peer level had come to its end; all batches that ended after C0 lie at
//! or behind the noted fill, so recovery reads them and they prevail. A block that has no entry
//! although it had a record older than C0 is durably dead or durably elsewhere.
//! A trailer whose write was refused may be on the disk: it is overwritten before its chunks are.
//! Where the device refuses that, too, an increment's chunks stay until a full one is complete.
//! Blocks whose newest version is not known come behind the slots, as they are then: one that was
//! written since the start of the checkpoint has a record behind it.
//! Cost: 24 bytes per occupied slot, sequential, and 2 to 3 % for parity; two syncs. Not for: the
//! peer level, whose headers are its own table.

use super::log::{LogStore, SegmentState, StreamState, SyncFor};
use super::log_geometry::SEGMENT_BYTES_DEFAULT;
use super::log_headers::Headers;
use super::log_layout::{
    CHUNK_ENTRIES, CheckpointEntry, NOWHERE, OpenSegment, TRAILER_BLOCKS, Trailer, encode_chunk,
};
use super::log_parity::{Sums, pages_of};
use super::log_tokens::Purpose;
use super::{PeerScope, SlotInfo, SlotView, StoreEvent};
use crate::io::{Buffer, Io, IoDone, IoOperation, OperationKind, WriteLife};
use layby_cache::schedule::Rank;
use layby_types::planted::{Plant, is_planted};
use layby_types::{ErrorKind, Nanos, Seq, Slot};
use std::collections::VecDeque;

/// Slots looked at per write: whole chunks, so that it leaves no part of one empty for nothing.
const SLOTS_PER_WRITE: u32 = 4 * SLOTS_PER_STEP;
/// Slots looked at per step where somebody better may ask: each is a look at memory far away.
const SLOTS_PER_STEP: u32 = CHUNK_ENTRIES as u32;
/// How long checkpoints pause after a device error, and after as many in a row as double that so
/// many times: each writes its chunks anew, to a device that wears.
const REST: Nanos = Nanos::from_millis(100);
pub(super) const DOUBLINGS_MAX: u32 = 4;
/// How long what a checkpoint writes lives beside what the streams write, see
/// [`super::Stream::life`].
const LIFE: WriteLife = WriteLife::Short;

#[derive(Debug)]
pub(super) struct Checkpoint {
    /// The newest complete one; seq 0 before the first.
    pub(super) complete: Seq,
    /// Area of the newest complete one.
    pub(super) area: usize,
    /// What is in that area, once a full one of this opening is there.
    chain: Option<Chain>,
    /// The device has refused an increment: another place may do.
    is_full_next: bool,
    /// Bytes appended since the newest complete one started.
    pub(super) appended: u64,
    pub(super) wanted: bool,
    pub(super) wanted_clean: bool,
    pub(super) asked_total: u64,
    pub(super) run: Option<Run>,
    failed: bool,
    pub(super) failures_in_row: u32,
    /// Where the trailer of the last run was to lie, if its write was refused: it may have been
    /// done all the same, and a start would take it, with whatever chunks lie behind it then.
    doubtful: Option<u32>,
    /// The same of an increment, where the device would not overwrite it either: until a full one
    /// is complete in the other area, nothing is written behind it.
    passed_by: Option<u32>,
    /// That trailer is being overwritten.
    is_voiding: bool,
    /// A sync has failed meanwhile: the device may have dropped the zeros.
    is_void_doubtful: bool,
    resting_until: Option<Nanos>,
    /// First block and blocks of the write in flight.
    writing: (u32, u32),
    /// Of segments whose age the newest one shows, and the next one will not.
    pub(super) headers: Headers,
}

impl Checkpoint {
    /// No checkpoint under way; the newest complete one is `complete`, in `area`.
    pub(super) fn new(complete: Seq, area: usize, appended: u64) -> Self {
        Checkpoint {
            complete,
            area,
            chain: None,
            is_full_next: false,
            appended,
            wanted: false,
            wanted_clean: false,
            asked_total: 0,
            run: None,
            failed: false,
            failures_in_row: 0,
            doubtful: None,
            passed_by: None,
            is_voiding: false,
            is_void_doubtful: false,
            resting_until: None,
            writing: (0, 0),
            headers: Headers::default(),
        }
    }
    pub(super) fn is_idle(&self) -> bool {
        let is_quiet = !self.is_voiding && self.headers.is_idle();
        self.run.is_none() && is_quiet && !self.wanted && !self.wanted_clean
    }
}

/// A full checkpoint and the increments behind it.
#[derive(Clone, Copy, Debug)]
struct Chain {
    base: Seq,
    /// Of the last one.
    ordinal: u32,
    /// Blocks of the full one, and of all.
    full: u32,
    end: u32,
    /// Entries of lost blocks in the last one: each has all of them.
    lost: u64,
}

/// A checkpoint being made.
#[derive(Debug)]
pub(super) struct Run {
    trailer: Trailer,
    area: usize,
    /// Where in the area its trailer has its place.
    first: u32,
    lost_total: u64,
    stage: Stage,
    /// Entries of the slots that were looked at since the last write.
    gathered: Vec<CheckpointEntry>,
    /// Entries of lost blocks that are not written yet, taken behind the last slot.
    lost: VecDeque<CheckpointEntry>,
    /// Of the chunks written so far.
    sums: Sums,
    /// A sync has failed meanwhile, so that no later one says whether the chunks are durable.
    is_doubtful: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Asked the shard, under this id.
    Quiescing(u64),
    /// Next slot to look at.
    Serialising(u32),
    /// The slots before this one are in a chunk write in flight.
    Writing(u32),
    /// All chunks are written, and their parity is in flight.
    Guarding,
    /// Waits for the own disk and the shard's answer under this id.
    Settling { own: bool, peer: Option<u64> },
    /// All is safe; the next step writes the trailer.
    Settled,
    /// The trailer is in flight.
    Ending,
}

/// See [`LogStore::checkpoint_now`].
pub(super) fn request(log: &mut LogStore, clean: bool) {
    log.checkpoint.wanted |= !clean;
    log.checkpoint.wanted_clean |= clean;
    log.forgets.flush |= clean && !log.forgets.queue.is_empty();
}

/// A clean checkpoint starts when nothing is left that could be written behind it.
fn is_quiet(log: &LogStore) -> bool {
    log.streams.iter().all(|stream| stream.queue.is_empty() && stream.flight.is_none())
        && log.forgets.queue.is_empty()
        && log.cleaning.is_idle()
}

/// A clean checkpoint is wanted or under way, so that cleaning would spoil it.
pub(super) fn closing(log: &LogStore) -> bool {
    log.checkpoint.wanted_clean || log.checkpoint.run.as_ref().is_some_and(|run| run.trailer.clean)
}

/// A checkpoint is under way.
pub(super) fn is_running(log: &LogStore) -> bool {
    log.checkpoint.run.is_some() || log.checkpoint.is_voiding
}

/// All but the trailer is written, and the shard is asked for what has to be durable before.
pub(super) fn awaits_peers(log: &LogStore) -> bool {
    let stage = log.checkpoint.run.as_ref().map(|run| run.stage);
    matches!(stage, Some(Stage::Settling { peer: Some(_), .. }))
}

fn is_due(log: &LogStore) -> bool {
    log.checkpoint.wanted
        || (log.checkpoint.wanted_clean && is_quiet(log))
        || log.checkpoint.appended >= log.checkpoint_limit()
        || super::log_clean::wants_checkpoint(log)
}

pub(super) fn wants_step(log: &LogStore) -> bool {
    match &log.checkpoint.run {
        None => is_due(log) && may_start(log),
        Some(run) => matches!(run.stage, Stage::Serialising(_) | Stage::Settled),
    }
}

fn may_start(log: &LogStore) -> bool {
    let checkpoint = &log.checkpoint;
    checkpoint.resting_until.is_none() && !checkpoint.is_voiding && checkpoint.headers.is_idle()
}

impl LogStore {
    /// Appended bytes that call for a checkpoint.
    fn checkpoint_limit(&self) -> u64 {
        // Long segments must not make starts long.
        let segment = self.segment_bytes().min(SEGMENT_BYTES_DEFAULT);
        match self.config.checkpoint_bytes {
            0 => (self.config.region.length / 16).max(64 * segment),
            bytes => bytes,
        }
    }
}

/// When checkpoints go on after a device error.
pub(super) fn retry_at(log: &LogStore) -> Nanos {
    log.checkpoint.resting_until.unwrap_or(Nanos::NEVER)
}

/// One after another has failed, and the next one is not due yet: no segment becomes free before.
/// Each failure refuses what waits then; requests that follow one another would else wait for a
/// failure each.
pub(super) fn keeps_failing(log: &LogStore) -> bool {
    let checkpoint = &log.checkpoint;
    let is_resting = checkpoint.failed || checkpoint.resting_until.is_some();
    is_resting && checkpoint.failures_in_row > DOUBLINGS_MAX
}

/// One bounded step.
pub(super) fn step(log: &mut LogStore, io: &mut dyn Io, now: Nanos, view: &dyn SlotView) {
    if core::mem::take(&mut log.checkpoint.failed) {
        let doublings = log.checkpoint.failures_in_row.min(DOUBLINGS_MAX);
        log.checkpoint.failures_in_row += 1;
        log.checkpoint.resting_until = Some(now + Nanos(REST.0 << doublings));
    }
    if log.checkpoint.resting_until.is_some_and(|until| now >= until) {
        log.checkpoint.resting_until = None;
    }
    match log.checkpoint.run.as_ref().map(|run| run.stage) {
        // None of it could be made durable, and all would be written again and again.
        None if is_due(log) && may_start(log) && log.sync.lost => {
            take_wishes(log);
            fail(log);
        }
        None if is_due(log) && may_start(log) && log.checkpoint.doubtful.is_some() => void(log, io),
        None if is_due(log) && may_start(log) && log.checkpoint.headers.are_wanted() => {
            super::log_headers::write(log, io);
        }
        None if is_due(log) && may_start(log) => start(log),
        Some(Stage::Serialising(cursor)) => serialise(log, io, cursor, view),
        Some(Stage::Settled) if is_doubtful(log) => fail(log),
        Some(Stage::Settled) => write_trailer(log, io),
        _ => {}
    }
}

fn ask_peer(log: &mut LogStore, scope: PeerScope) -> u64 {
    log.checkpoint.asked_total += 1;
    let id = log.checkpoint.asked_total;
    log.events.push(StoreEvent::NeedPeerSync { id, scope });
    id
}

/// What a checkpoint was wanted for is met by the one that begins; whether it is a clean one.
fn take_wishes(log: &mut LogStore) -> bool {
    let clean = log.checkpoint.wanted_clean && is_quiet(log);
    log.checkpoint.wanted_clean &= !clean;
    log.checkpoint.wanted = false;
    log.checkpoint.appended = 0;
    clean
}

fn start(log: &mut LogStore) {
    let seq = log.seqs.take();
    let open = log.streams.iter().filter_map(|stream| {
        let (index, fill) = stream.open?;
        let in_flight = stream.flight.as_ref().map_or(0, |flight| flight.blocks);
        let generation = log.segments[index as usize].generation;
        Some(OpenSegment { index, fill: fill - in_flight, generation })
    });
    let open = open.collect();
    let id = ask_peer(log, PeerScope::Stores);
    let clean = take_wishes(log);
    let mut trailer = Trailer::new(seq, clean, open);
    (trailer.note, trailer.retired) = (log.note, log.retiring.remembered());
    let in_flight = |stream: &StreamState| stream.flight.as_ref().map_or(0, |it| it.name.seq);
    trailer.flights = log.streams.each_ref().map(in_flight);
    log.changes.begin();
    log.checkpoint.run = Some(Run {
        trailer,
        area: 1 - log.checkpoint.area,
        first: 0,
        lost_total: 0,
        stage: Stage::Quiescing(id),
        gathered: Vec::new(),
        lost: VecDeque::new(),
        sums: Sums::new(),
        is_doubtful: false,
    });
    let [before, since] = &mut log.sync.failed;
    let oldest = [*before, since.take()].into_iter().flatten().min();
    *before = oldest;
}

/// See [`LogStore::peer_synced`].
pub(super) fn on_peer_synced(log: &mut LogStore, answered: u64) {
    let Some(run) = &mut log.checkpoint.run else { return };
    match run.stage {
        Stage::Quiescing(id) if id == answered => {
            run.stage = Stage::Serialising(0);
            go_behind(log);
        }
        Stage::Settling { own, peer: Some(id) } if id == answered => {
            run.stage = if own { Stage::Settled } else { Stage::Settling { own, peer: None } };
        }
        _ => {}
    }
}

/// Makes the run an increment, if it may be one: behind what the area of the newest checkpoint
/// holds, as far as can be told by now.
fn go_behind(log: &mut LogStore) {
    let (area_blocks, changed) = (log.geometry.checkpoint_blocks, log.changes.count());
    let run = log.checkpoint.run.as_mut().expect("a run goes on");
    let is_full = log.checkpoint.is_full_next || log.checkpoint.passed_by.is_some();
    let chain = log.checkpoint.chain.filter(|_| !run.trailer.clean && !is_full);
    let Some(chain) = chain else { return };
    let chunks = (u64::from(changed) + chain.lost).div_ceil(CHUNK_ENTRIES as u64);
    let chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
    let blocks = chunks.saturating_add(TRAILER_BLOCKS + pages_of(chunks, u32::MAX));
    if blocks <= chain.full && blocks <= area_blocks - chain.end {
        (run.area, run.first) = (log.checkpoint.area, chain.end);
        run.trailer.base = chain.base;
        run.trailer.previous = log.checkpoint.complete;
        run.trailer.ordinal = chain.ordinal + 1;
    }
}

/// More has changed meanwhile than there is room for behind the chain: the run begins anew as a
/// full one, in the other area.
fn turn_full(log: &mut LogStore) {
    log.changes.give_back();
    let run = log.checkpoint.run.as_mut().expect("a run is serialising");
    (run.area, run.first) = (1 - log.checkpoint.area, 0);
    run.trailer.base = run.trailer.seq;
    (run.trailer.previous, run.trailer.ordinal) = (Seq(0), 0);
    (run.trailer.chunks, run.trailer.entries, run.lost_total) = (0, 0, 0);
    (run.sums, run.stage) = (Sums::new(), Stage::Serialising(0));
    run.lost.clear();
}

/// See [`LogStore::peer_failed`].
pub(super) fn on_peer_failed(log: &mut LogStore, answered: u64) {
    let waits = |run: &Run| match run.stage {
        Stage::Quiescing(id) | Stage::Settling { peer: Some(id), .. } => id == answered,
        _ => false,
    };
    if log.checkpoint.run.as_ref().is_some_and(waits) {
        fail(log);
    }
}

/// A sync has failed on the own disk, one of a durable write's own included: the run fails at its
/// own sync, and a trailer that is being overwritten counts as not overwritten.
pub(super) fn on_sync_failed(log: &mut LogStore) {
    log.checkpoint.is_void_doubtful = log.checkpoint.is_voiding;
    if let Some(run) = &mut log.checkpoint.run {
        run.is_doubtful = true;
    }
}

/// A sync of the own disk has failed since the run began.
fn is_doubtful(log: &LogStore) -> bool {
    log.checkpoint.run.as_ref().is_some_and(|run| run.is_doubtful)
}

/// The own disk is synced, or has failed.
pub(super) fn on_synced(log: &mut LogStore, seq: Seq, result: Result<(), ErrorKind>) {
    let Some(run) = log.checkpoint.run.as_mut().filter(|run| run.trailer.seq == seq) else {
        return;
    };
    let Stage::Settling { peer, .. } = run.stage else { return };
    if result.is_err() || run.is_doubtful {
        fail(log);
    } else {
        run.stage =
            if peer.is_none() { Stage::Settled } else { Stage::Settling { own: true, peer } };
    }
}

fn serialise(log: &mut LogStore, io: &mut dyn Io, cursor: u32, view: &dyn SlotView) {
    let slots = log.slots.len() as u32;
    let per_step = if io.is_stepwise() { SLOTS_PER_STEP } else { SLOTS_PER_WRITE };
    let run = log.checkpoint.run.as_ref().expect("a run is serialising");
    let (end, is_due) = match run.trailer.is_full() {
        true => look_at_all(log, cursor, per_step, view),
        false => look_at_changed(log, cursor, per_step, view),
    };
    let run = log.checkpoint.run.as_mut().expect("a run is serialising");
    if !is_due {
        run.stage = Stage::Serialising(end);
        return;
    }
    let mut entries = core::mem::take(&mut run.gathered);
    if cursor < slots && end == slots {
        // A block that was stored since its slot was passed is in neither, and its record behind.
        run.lost = super::lost::encode(&view.lost()).into();
        run.lost_total = run.lost.len() as u64;
    }
    let room = (SLOTS_PER_WRITE as usize).saturating_sub(entries.len());
    entries.extend(run.lost.drain(..room.min(run.lost.len())));
    if entries.is_empty() {
        if end == slots {
            guard(log, io);
        } else {
            run.stage = Stage::Serialising(end);
        }
        return;
    }
    let count = entries.len().div_ceil(CHUNK_ENTRIES) as u32;
    let blocks = run.first + TRAILER_BLOCKS + run.trailer.chunks + count;
    if blocks > log.geometry.checkpoint_blocks {
        assert!(!run.trailer.is_full(), "an area holds every slot");
        return turn_full(log);
    }
    let chunk = run.trailer.chunks;
    let seq = run.trailer.seq;
    run.trailer.chunks += count;
    run.trailer.entries += entries.len() as u64;
    run.stage = Stage::Writing(end);
    write_chunks(log, io, (seq, chunk), &entries);
}

/// Gathers entries of slots from `cursor` on, at most `per_step`; up to where, and whether a write
/// is due there. Steps of all lengths end where a write does.
fn look_at_all(log: &mut LogStore, cursor: u32, per_step: u32, view: &dyn SlotView) -> (u32, bool) {
    let slots = log.slots.len() as u32;
    let write_end = (cursor - cursor % SLOTS_PER_WRITE + SLOTS_PER_WRITE).min(slots);
    let end = cursor.saturating_add(per_step).min(write_end);
    let found: Vec<_> = (cursor..end).filter_map(|slot| look(log, Slot(slot), view)).collect();
    let run = log.checkpoint.run.as_mut().expect("a run is serialising");
    run.gathered.extend(found);
    (end, end == write_end)
}

/// The same of the slots that have changed.
fn look_at_changed(
    log: &mut LogStore,
    cursor: u32,
    per_step: u32,
    view: &dyn SlotView,
) -> (u32, bool) {
    let slots = log.slots.len() as u32;
    let run = log.checkpoint.run.as_mut().expect("a run is serialising");
    let mut gathered = core::mem::take(&mut run.gathered);
    let (mut at, mut left) = (cursor, per_step);
    while at < slots && left > 0 && gathered.len() < SLOTS_PER_WRITE as usize {
        match log.changes.find(at) {
            Ok(slot) => {
                let entry = look(log, slot, view);
                let emptied = (!is_planted(Plant::IncrementOmitsFreed)).then_some(slot);
                gathered.extend(entry.or(emptied.map(CheckpointEntry::emptied)));
                (at, left) = (slot.0 + 1, left - 1);
            }
            Err(end) => (at, left) = (end, 0),
        }
    }
    let is_due = at == slots || gathered.len() == SLOTS_PER_WRITE as usize;
    log.checkpoint.run.as_mut().expect("it was just there").gathered = gathered;
    (at, is_due)
}

/// What a slot holds now. One of which the cache knows nothing, though a block is there, is looked
/// at again by the next checkpoint.
fn look(log: &mut LogStore, slot: Slot, view: &dyn SlotView) -> Option<CheckpointEntry> {
    log.changes.take(slot);
    let entry = entry(log, slot, view);
    if entry.is_none() && log.slots[slot.0 as usize].location != NOWHERE {
        log.changes.note(slot);
    }
    entry
}

fn write_chunks(
    log: &mut LogStore,
    io: &mut dyn Io,
    (seq, chunk): (Seq, u32),
    entries: &[CheckpointEntry],
) {
    let mut buffer = log.zeroed(io, entries.len().div_ceil(CHUNK_ENTRIES));
    let pages = buffer.chunks_exact_mut(log.geometry.block_bytes as usize);
    for ((index, page), part) in (chunk..).zip(pages).zip(entries.chunks(CHUNK_ENTRIES)) {
        encode_chunk(page, log.instance, seq, index, part);
        let run = log.checkpoint.run.as_mut().expect("a run writes its chunks");
        run.sums.add(index, page);
    }
    write_pages(log, io, chunk, buffer);
}

/// Writes pages of the run, the first one being where chunk `chunk` has its place.
fn write_pages(log: &mut LogStore, io: &mut dyn Io, chunk: u32, buffer: Buffer) {
    let location = trailer_place(log) + TRAILER_BLOCKS + chunk;
    let offset = log.offset_of(location);
    log.checkpoint.writing = (location, buffer.len() as u32 / log.geometry.block_bytes);
    log.counters.bytes_checkpoint += buffer.len() as u64;
    let (disk, token) = (log.config.region.disk, log.token(Purpose::Chunk, 0));
    let rank = io.rank();
    io.set_rank(Rank::BACKGROUND);
    io.set_life(Some(LIFE));
    io.submit(token, IoOperation::Write { disk, offset, buffer, durable: false });
    io.set_life(None);
    io.set_rank(rank);
}

/// Where the trailer of the run has its place.
fn trailer_place(log: &LogStore) -> u32 {
    let run = log.checkpoint.run.as_ref().expect("a run writes");
    log.geometry.checkpoint_first(run.area) + run.first
}

fn entry(log: &LogStore, slot: Slot, view: &dyn SlotView) -> Option<CheckpointEntry> {
    let place = log.slots[slot.0 as usize];
    if place.location == NOWHERE {
        return None;
    }
    let overflow = || log.overflow.get(&slot.0).copied();
    let in_level = slot.0 < log.geometry.slot_count;
    let SlotInfo { key, dirty } = if in_level { log.owner(slot, view)? } else { overflow()? };
    let moved = log.moved.contains_key(&place.location);
    let (location, crc) = (place.location, place.crc);
    Some(CheckpointEntry { key, slot, location, crc, dirty, moved, lost: None })
}

/// Takes the end of a chunk write.
pub(super) fn on_chunk(log: &mut LogStore, io: &mut dyn Io, done: IoDone) {
    if let Some(buffer) = done.buffer {
        io.recycle(buffer);
    }
    log.note_end(OperationKind::Write, log.checkpoint.writing, done.result);
    let slots = log.slots.len() as u32;
    let run = log.checkpoint.run.as_mut().expect("an end belongs to a run");
    match run.stage {
        _ if done.result.is_err() => fail_on_device(log),
        Stage::Guarding => settle(log),
        Stage::Writing(end) if end == slots && run.lost.is_empty() => guard(log, io),
        Stage::Writing(end) => run.stage = Stage::Serialising(end),
        stage => panic!("one chunk write at a time, not {stage:?}"),
    }
}

/// Writes the parity of all chunks, where there is room for it.
fn guard(log: &mut LogStore, io: &mut dyn Io) {
    let run = log.checkpoint.run.as_ref().expect("a run has written its chunks");
    let chunks = run.trailer.chunks;
    let pages = pages_of(chunks, log.geometry.checkpoint_blocks - run.first);
    if pages == 0 {
        return settle(log);
    }
    let mut buffer = log.zeroed(io, pages as usize);
    let run = log.checkpoint.run.as_mut().expect("it was just there");
    run.stage = Stage::Guarding;
    let block = log.geometry.block_bytes as usize;
    for (page, bytes) in (0..).zip(buffer.chunks_exact_mut(block)) {
        run.sums.put(page, pages, bytes);
    }
    write_pages(log, io, chunks, buffer);
}

fn settle(log: &mut LogStore) {
    let id = ask_peer(log, PeerScope::Frees);
    let run = log.checkpoint.run.as_mut().expect("a run is settling");
    run.stage = Stage::Settling { own: is_planted(Plant::TrailerFirst), peer: Some(id) };
    let seq = run.trailer.seq;
    log.sync.chunks_written = true;
    log.sync_for(SyncFor::Checkpoint(seq));
}

fn write_trailer(log: &mut LogStore, io: &mut dyn Io) {
    let end = log.seqs.take();
    let run = log.checkpoint.run.as_mut().expect("a run is settled");
    run.stage = Stage::Ending;
    run.trailer.end = end;
    let trailer = run.trailer.clone();
    let mut buffer = log.zeroed(io, TRAILER_BLOCKS as usize);
    let pages = buffer.chunks_exact_mut(log.geometry.block_bytes as usize);
    pages.for_each(|page| trailer.encode(page, log.instance));
    log.counters.bytes_checkpoint += buffer.len() as u64;
    log.checkpoint.writing = (trailer_place(log), TRAILER_BLOCKS);
    let offset = log.offset_of(log.checkpoint.writing.0);
    let (disk, token) = (log.config.region.disk, log.token(Purpose::Trailer, 0));
    io.set_life(Some(LIFE));
    io.submit(token, IoOperation::Write { disk, offset, buffer, durable: true });
    io.set_life(None);
}

/// Overwrites the trailer of a run that failed at its end, before another run writes chunks there.
fn void(log: &mut LogStore, io: &mut dyn Io) {
    log.checkpoint.is_voiding = true;
    let buffer = log.zeroed(io, TRAILER_BLOCKS as usize);
    log.counters.bytes_checkpoint += buffer.len() as u64;
    let place = log.checkpoint.doubtful.expect("the caller looked");
    log.checkpoint.writing = (place, TRAILER_BLOCKS);
    let offset = log.offset_of(log.checkpoint.writing.0);
    let (disk, token) = (log.config.region.disk, log.token(Purpose::Trailer, 0));
    io.submit(token, IoOperation::Write { disk, offset, buffer, durable: true });
}

/// Takes the end of the trailer's write.
pub(super) fn on_trailer(log: &mut LogStore, io: &mut dyn Io, done: IoDone) {
    if let Some(buffer) = done.buffer {
        io.recycle(buffer);
    }
    log.note_end(OperationKind::Write, log.checkpoint.writing, done.result);
    let was_voiding = core::mem::take(&mut log.checkpoint.is_voiding);
    let is_void_doubtful = core::mem::take(&mut log.checkpoint.is_void_doubtful);
    let place = log.checkpoint.writing.0;
    // Its own sync came after another one that failed: the device may have dropped it.
    let is_doubtful = is_doubtful(log) || is_void_doubtful;
    log.checkpoint.doubtful = (done.result.is_err() || is_doubtful).then_some(place);
    let is_full = (0..2).any(|area| log.geometry.checkpoint_first(area) == place);
    if was_voiding && !is_full {
        log.checkpoint.passed_by = log.checkpoint.doubtful.take();
    }
    if done.result.is_err() {
        fail_on_device(log);
        return;
    }
    if is_doubtful {
        return fail(log);
    }
    if was_voiding {
        return;
    }
    let run = log.checkpoint.run.take().expect("an end belongs to a run");
    super::log_void::on_checkpoint(log, &run.trailer);
    note_chain(log, &run);
    let Trailer { seq, clean, .. } = run.trailer;
    log.checkpoint.complete = seq;
    log.checkpoint.area = run.area;
    log.checkpoint.failures_in_row = 0;
    log.counters.checkpoints += 1;
    log.sync.failed[0] = None;
    free_segments(log, io, seq);
    log.events.push(StoreEvent::CheckpointDone { seq, clean });
}

/// Remembers what a complete run has left in its area.
fn note_chain(log: &mut LogStore, run: &Run) {
    let Trailer { base, ordinal, chunks, .. } = run.trailer;
    let room = log.geometry.checkpoint_blocks - run.first;
    let end = run.first + TRAILER_BLOCKS + chunks + pages_of(chunks, room);
    let before = log.checkpoint.chain.filter(|_| !run.trailer.is_full());
    let full = before.map_or(end, |chain| chain.full);
    log.checkpoint.chain = Some(Chain { base, ordinal, full, end, lost: run.lost_total });
    log.checkpoint.is_full_next = false;
    // What is in the other area, no start takes any more.
    log.checkpoint.passed_by = log.checkpoint.passed_by.filter(|_| !run.trailer.is_full());
    log.counters.checkpoint_increments += u64::from(!run.trailer.is_full());
}

/// R2: what became empty before the checkpoint started may be reused.
fn free_segments(log: &mut LogStore, io: &dyn Io, seq: Seq) {
    let now = io.now();
    for index in 0..log.geometry.segment_count {
        let segment = &mut log.segments[index as usize];
        let SegmentState::Waiting(since) = segment.state else { continue };
        if since <= seq {
            segment.state = SegmentState::Passed;
            log.passed_segments += 1;
            log.free_if_passed(index, now);
        }
    }
}

impl LogStore {
    /// A read of the segment has ended.
    pub(super) fn unpin(&mut self, index: u32, now: Nanos) {
        let pins = &mut self.segments[index as usize].pins;
        *pins = pins.checked_sub(1).expect("each pin is released once");
        self.free_if_passed(index, now);
    }

    /// A segment that a checkpoint has passed is free once nothing reads there any more.
    fn free_if_passed(&mut self, index: u32, now: Nanos) {
        let segment = &mut self.segments[index as usize];
        if segment.state != SegmentState::Passed || segment.pins > 0 {
            return;
        }
        segment.state = SegmentState::Free;
        if segment.is_marked {
            self.retiring.on_marked();
        }
        self.free_segments.push_back(index);
        self.waiting_segments -= 1;
        self.passed_segments -= 1;
        self.tell_free(index, now);
    }
}

/// The next one tries another place, if this one was an increment.
fn fail_on_device(log: &mut LogStore) {
    if let Some(run) = &log.checkpoint.run {
        log.checkpoint.is_full_next = !run.trailer.is_full();
    }
    fail(log);
}

fn fail(log: &mut LogStore) {
    log.changes.give_back();
    log.checkpoint.run = None;
    log.checkpoint.failed = true;
    log.refuse_stranded(ErrorKind::Retry);
    super::log_void::on_checkpoint_failed(log);
    log.events.push(StoreEvent::CheckpointFailed);
}
