//! Cleaning: making room by copying the live blocks out of a segment that has few of them.
//!
//! How: one victim at a time is read whole; its descriptors say which slots its blocks were for. A
//! step looks at a bounded part of it, and the owner is asked for each block still live: cold ones
//! are dropped, or left where they are until they are destaged; the others are appended to a
//! stream of copies with the seq of the original, so that a copy never outranks a record that
//! superseded the original. An emptied segment waits for a checkpoint.
//! Invariant: a slot moves to the copy only if it still points to the original when the copy is
//! written, and the segment was not used anew since. A block that does not match its checksum is
//! reported and stays where it is. Cleaning never waits for a destage: where free segments are few,
//! all that is live is copied.
//! Cost: one segment read and its live blocks written per segment gained.

use super::layout::rebuild;
use super::log::{LogStore, Origin, Place, Queued, Segment, SegmentState};
use super::log_geometry::SPARE_BLOCKS_MIN;
use super::log_layout::{BATCH_MAGIC, BatchHeader, Record};
use super::log_tokens::Purpose;
use super::table::Set;
use super::{CorruptInfo, SlotView, StoreEvent, Stream};
use crate::io::{Buffer, Io, IoDone, IoOperation, OperationKind};
use layby_cache::Cleaned;
use layby_cache::cleaning::{SegmentView, Segments, score};
use layby_cache::schedule::Rank;
use layby_types::planted::{Plant, is_planted};
use layby_types::{ErrorKind, Nanos, Seq, Slot};

/// How long cleaning rests after a device error.
const REST: Nanos = Nanos::from_millis(100);

/// What a step spends: on each record that it looks at, and on each block that it sums and copies.
pub(super) const STEP: u32 = 128;
const STEP_LOOK: u32 = 1;
pub(super) const STEP_COPY: u32 = 8;

/// How often a victim is read before its segment counts as damaged: an error may pass.
const READ_TRIES: u8 = 3;

/// Victims at most that wait for destages.
const LEFT_MAX: usize = 4;
/// Live blocks that the owner is asked about at once.
const ASKED_MAX: usize = layby_cache::CLEANING_SLOTS_MAX;

#[derive(Debug, Default)]
pub(super) struct Cleaning {
    state: State,
    /// The owner answers [`StoreEvent::Cleaning`].
    pub(super) is_owned: bool,
    /// Victims that are not looked at again before their destages have ended.
    left: Vec<Left>,
    failed: bool,
    resting_until: Option<Nanos>,
}

/// A victim of which some blocks stay until they are destaged.
#[derive(Debug)]
struct Left {
    victim: u32,
    slots: Set<u32>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Reading(u32),
    Copying(Copying),
}

/// A victim that was read.
#[derive(Debug)]
struct Copying {
    /// Copies that are queued or in flight.
    left: usize,
    /// What of it was not looked at yet.
    rest: Option<Rest>,
    /// What the owner is asked about.
    asked: Option<Box<Asked>>,
}

/// Live blocks of a victim, and what is not looked at.
#[derive(Debug)]
struct Asked {
    rest: Rest,
    live: Vec<Live>,
    is_whole: bool,
}

/// A live block of a victim.
#[derive(Clone, Copy, Debug)]
struct Live {
    /// With the slot and the state that it has now.
    record: Record,
    slot: Slot,
    /// Where it lies, and where within the victim.
    origin: Origin,
    within: u32,
}

/// A victim's bytes, and how far the steps have come.
#[derive(Debug)]
struct Rest {
    victim: u32,
    generation: Seq,
    bytes: Buffer,
    /// The descriptor's block, its next record, and that record's data.
    at: u32,
    record: usize,
    data: u32,
    /// Slots that were live, but for blocks that are bad, and where they lie.
    settled: Vec<(Slot, u32)>,
    /// Of these, those that stay until they are destaged.
    left: Set<u32>,
    is_bad: bool,
}

impl Cleaning {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Victims that wait for destages.
    #[cfg(test)]
    pub(super) fn left_victims(&self) -> Vec<u32> {
        self.left.iter().map(|left| left.victim).collect()
    }
}

/// Free and soon free segments below which cleaning works.
fn low_mark(log: &LogStore) -> usize {
    // Of 80 segments one: increments are short, so that few need to wait for each.
    (6 + log.segments.len() / 80).max(4 + log.geometry.streams as usize)
}

/// The closed segment that gains most for what it costs, the older the better, of those that gain
/// room at all: copies of a fuller one take as much as they free, since they may have to be split
/// over two segments, and cleaning would go round for ever.
fn choose_victim(log: &LogStore) -> Option<u32> {
    let (blocks_dense, next) = (log.geometry.dense_blocks() as u32, log.seqs.next().0);
    let gains = |segment: &Segment| segment.live + SPARE_BLOCKS_MIN as u32 <= blocks_dense;
    let closed = log.segments.iter().enumerate();
    let is_left =
        |index: u32| !is_scarce(log) && log.cleaning.left.iter().any(|left| left.victim == index);
    let closed = closed
        .filter(|(_, segment)| segment.state == SegmentState::Closed && gains(segment))
        .filter(|(index, _)| !is_left(*index as u32))
        .map(|(index, segment)| {
            let age = next.saturating_sub(segment.generation.0);
            (index, score(SegmentView { blocks_dense, blocks_live: segment.live, age }))
        });
    closed.max_by_key(|(_, score)| *score).map(|(index, _)| index as u32)
}

fn is_wanted(log: &LogStore) -> bool {
    let waiting = log.streams.iter().any(|stream| !stream.queue.is_empty());
    // What waits for destages empties itself, unless these never end.
    let left = if is_scarce(log) { 0 } else { log.cleaning.left.len() };
    let short = log.free_segments.len() + log.waiting_segments + left < low_mark(log);
    // A segment whose header is to be written anew would be read in vain, and count as damaged.
    let is_held = awaits_headers(log);
    short && !is_held && (waiting || !super::log_checkpoint::closing(log))
}

fn awaits_headers(log: &LogStore) -> bool {
    log.checkpoint.headers.are_wanted() || !log.checkpoint.headers.is_idle()
}

/// Free segments are so few that cleaning must not wait for anything.
fn is_scarce(log: &LogStore) -> bool {
    let is_blind = is_planted(Plant::CleanWaitsForBacking);
    log.free_segments.len() <= scarce_mark(log) && !is_blind
}

fn scarce_mark(log: &LogStore) -> usize {
    log.free_kept() + 1
}

/// True when free segments are few enough to complete a checkpoint for the waiting ones, or for
/// the headers that are written before it and for which cleaning waits. Segments that a checkpoint
/// has passed wait for reads alone.
pub(super) fn wants_checkpoint(log: &LogStore) -> bool {
    if log.free_segments.len() >= low_mark(log) {
        return false;
    }
    debug_assert_eq!(log.passed_segments, passed_segments(log), "the count of segments passed");
    log.waiting_segments > log.passed_segments || log.checkpoint.headers.are_wanted()
}

/// Segments that a checkpoint has passed and that wait for reads, counted one by one: each turn
/// asks for them, and a read that hangs may hold one for long.
fn passed_segments(log: &LogStore) -> usize {
    log.segments.iter().filter(|segment| segment.state == SegmentState::Passed).count()
}

pub(super) fn wants_step(log: &LogStore) -> bool {
    match &log.cleaning.state {
        State::Idle => {
            log.cleaning.failed
                || log.cleaning.resting_until.is_none()
                    && is_wanted(log)
                    && choose_victim(log).is_some()
        }
        State::Copying(Copying { rest, .. }) => rest.is_some(),
        State::Reading(_) => false,
    }
}

/// When cleaning goes on after a device error.
pub(super) fn retry_at(log: &LogStore) -> Nanos {
    log.cleaning.resting_until.unwrap_or(Nanos::NEVER)
}

/// Nothing that goes on will ever free a segment: damaged ones hold what cleaning needed, or a
/// victim's copies find no room. Power cuts that tear the copies of one victim after another, or
/// leave a checkpoint in the middle of one, may come to that; only a call from above frees blocks
/// then, so that what waits must not.
pub(super) fn is_stranded(log: &LogStore) -> bool {
    let copies = || Stream::COPIES.iter().map(|stream| &log.streams[*stream as usize]);
    let gains_nothing = match log.cleaning.state {
        State::Idle => choose_victim(log).is_none(),
        State::Copying(Copying { rest: None, asked: None, .. }) => {
            copies().any(|it| !it.queue.is_empty())
        }
        _ => false,
    };
    gains_nothing
        && copies().all(|it| it.flight.is_none())
        && log.waiting_segments == 0
        && !log.freed.is_flying()
        && (log.segments.iter().any(|segment| segment.state == SegmentState::Damaged)
            || log.is_shrunk()
            || is_at_rest(log))
}

/// Nothing of the log's own is under way, or will be, that could change what is free.
fn is_at_rest(log: &LogStore) -> bool {
    let is_flying = log.streams.iter().any(|stream| stream.flight.is_some());
    let is_resting = log.cleaning.failed || log.cleaning.resting_until.is_some();
    let is_changing = is_flying || is_resting || log.sync.flight.is_some();
    let is_checkpointing = super::log_checkpoint::is_running(log);
    !(is_changing || is_checkpointing)
        && log.forgets.queue.is_empty()
        && log.voids.is_idle()
        && !super::log_retire::may_give_room(log)
}

/// One bounded step.
pub(super) fn step(log: &mut LogStore, io: &mut dyn Io, now: Nanos, view: &dyn SlotView) {
    if core::mem::take(&mut log.cleaning.failed) {
        log.cleaning.resting_until = Some(now + REST);
    }
    if log.cleaning.resting_until.is_some_and(|until| now >= until) {
        log.cleaning.resting_until = None;
    }
    if let State::Copying(Copying { rest, .. }) = &mut log.cleaning.state
        && let Some(rest) = rest.take()
    {
        return go_on(log, io, rest, view);
    }
    if log.cleaning.is_idle()
        && log.cleaning.resting_until.is_none()
        && is_wanted(log)
        && let Some(victim) = choose_victim(log)
    {
        load(log, io, victim);
    }
}

/// Looks at some of the rest, and asks the owner about what is live there.
fn go_on(log: &mut LogStore, io: &mut dyn Io, mut rest: Rest, view: &dyn SlotView) {
    let allowed = if io.is_stepwise() { STEP } else { u32::MAX };
    let (live, is_whole) = look(log, &mut rest, view, allowed);
    let is_asking = log.cleaning.is_owned && !live.is_empty();
    if is_asking {
        let slots = live.iter().map(|live| live.slot).collect();
        log.events.push(StoreEvent::Cleaning { slots });
    }
    let State::Copying(copying) = &mut log.cleaning.state else { panic!("a victim's rest") };
    let answers = vec![Cleaned::Copy; live.len()];
    copying.asked = Some(Box::new(Asked { rest, live, is_whole }));
    if !is_asking {
        answered(log, io, &answers);
    }
}

/// See [`LogStore::cleaned`].
pub(super) fn answered(log: &mut LogStore, io: &mut dyn Io, answers: &[Cleaned]) {
    let State::Copying(copying) = &mut log.cleaning.state else { panic!("a victim's blocks") };
    let asked = copying.asked.take().expect("an answer to a question");
    let Asked { mut rest, live, is_whole } = *asked;
    assert_eq!(live.len(), answers.len(), "an answer for each block");
    let may_wait = segments_for_owner(log).free > segments_for_owner(log).kept;
    for (live, answer) in live.iter().zip(answers) {
        // It may have moved since, and is then no block of the victim any more.
        if !is_at(log, live.slot, live.origin) {
            continue;
        }
        let is_bad = match answer {
            Cleaned::Dropped => false,
            Cleaned::Destaging if may_wait => {
                rest.left.insert(live.slot.0);
                false
            }
            Cleaned::Copy | Cleaned::Destaging => !copy(log, &rest.bytes, live),
        };
        rest.is_bad |= is_bad;
        if !is_bad {
            rest.settled.push((live.slot, live.origin.location));
        }
    }
    if is_whole {
        finish(log, io, rest);
    } else if let State::Copying(copying) = &mut log.cleaning.state {
        copying.rest = Some(rest);
    }
}

/// The end of a victim was reached.
fn finish(log: &mut LogStore, io: &mut dyn Io, rest: Rest) {
    // A block that nothing could find or verify keeps its segment.
    let is_there = |(slot, at): &&(Slot, u32)| log.slots[slot.0 as usize].location == *at;
    let unmoved = rest.settled.iter().filter(is_there).count() as u32;
    let segment = &log.segments[rest.victim as usize];
    if segment.generation == rest.generation && (rest.is_bad || segment.live > unmoved) {
        set_damaged(log, rest.victim);
    }
    if !rest.left.is_empty() {
        log.cleaning.left.push(Left { victim: rest.victim, slots: rest.left });
    }
    io.recycle(rest.bytes);
    end_if_copied(log);
}

/// What the owner is to know of free segments: with as many as are kept nothing may wait.
pub(super) fn segments_for_owner(log: &LogStore) -> Segments {
    let is_blind = is_planted(Plant::CleanWaitsForBacking);
    let is_over = log.cleaning.left.len() >= LEFT_MAX && !is_blind;
    let kept = if is_blind { 0 } else { scarce_mark(log) as u32 };
    Segments { free: if is_over { 0 } else { log.free_segments.len() as u32 }, kept }
}

/// A block that was left in a victim has been freed, or it stays: where none is left there, the
/// victim may be chosen again.
pub(super) fn on_left_ended(log: &mut LogStore, slot: Slot) {
    for left in &mut log.cleaning.left {
        left.slots.remove(&slot.0);
    }
    log.cleaning.left.retain(|left| !left.slots.is_empty());
    // The steps of its victim may not have come to an end.
    if let State::Copying(Copying { rest, asked, .. }) = &mut log.cleaning.state {
        let asked = asked.as_mut().map(|asked| &mut asked.rest);
        for rest in rest.iter_mut().chain(asked) {
            rest.left.remove(&slot.0);
        }
    }
}

fn load(log: &mut LogStore, io: &mut dyn Io, victim: u32) {
    let length = log.geometry.segment_blocks * log.geometry.block_bytes;
    let offset = log.offset_of(log.geometry.segment_first(victim));
    let (disk, buffer) = (log.config.region.disk, io.buffer(length as usize));
    log.segments[victim as usize].pins += 1;
    log.cleaning.state = State::Reading(victim);
    let token = log.token(Purpose::Clean, 0);
    let rank = io.rank();
    io.set_rank(Rank::BACKGROUND);
    io.submit(token, IoOperation::Read { disk, offset, buffer });
    io.set_rank(rank);
}

/// Takes the end of the victim's read.
pub(super) fn on_io(log: &mut LogStore, io: &mut dyn Io, done: IoDone) {
    let State::Reading(victim) = core::mem::take(&mut log.cleaning.state) else {
        panic!("an end belongs to a victim being read");
    };
    let place = (log.geometry.segment_first(victim), log.geometry.segment_blocks);
    log.note_end(OperationKind::Read, place, done.result);
    let buffer = done.buffer.expect("a read returns its buffer");
    if done.result.is_ok() {
        let generation = log.segments[victim as usize].generation;
        // Of one that is looked at again.
        log.cleaning.left.retain(|left| left.victim != victim);
        let rest = Rest {
            victim,
            generation,
            bytes: buffer,
            at: 1,
            record: 0,
            data: 0,
            settled: Vec::new(),
            left: Set::default(),
            is_bad: false,
        };
        log.cleaning.state = State::Copying(Copying { left: 0, rest: Some(rest), asked: None });
    } else {
        io.recycle(buffer);
        log.cleaning.failed = true;
        log.mark_failing(log.geometry.segment_first(victim));
        let segment = &mut log.segments[victim as usize];
        segment.failures = segment.failures.saturating_add(1);
        if segment.failures >= READ_TRIES {
            set_damaged(log, victim);
        }
        log.refuse_stranded(ErrorKind::Retry);
    }
    log.unpin(victim, io.now());
}

/// Live blocks that cannot be read keep their segment; it is tested once they are superseded.
fn set_damaged(log: &mut LogStore, victim: u32) {
    let segment = &mut log.segments[victim as usize];
    if segment.state == SegmentState::Closed {
        segment.state = SegmentState::Damaged;
        log.segments_damaged += 1;
        log.events.push(StoreEvent::RoomChanged);
    }
}

/// The rest's live blocks, as far as `left` lasts; true when the end was reached.
fn look(log: &LogStore, rest: &mut Rest, view: &dyn SlotView, mut left: u32) -> (Vec<Live>, bool) {
    let block = log.geometry.block_bytes as usize;
    let (size, first) = (log.geometry.segment_blocks, log.geometry.segment_first(rest.victim));
    let mut live = Vec::new();
    // A segment that was used anew meanwhile holds nothing of what was read.
    while rest.at < size && log.segments[rest.victim as usize].generation == rest.generation {
        let page = &mut rest.bytes[rest.at as usize * block..];
        let Some(header) = repair_and_decode(page, log.instance, rest.generation) else {
            rest.at += 1;
            continue;
        };
        let page = &rest.bytes[rest.at as usize * block..];
        if rest.record == 0 {
            rest.data = rest.at + 1;
        }
        while rest.record < usize::from(header.entries) && rest.data < size {
            if left == 0 || live.len() == ASKED_MAX {
                return (live, false);
            }
            left = left.saturating_sub(STEP_LOOK);
            let record = Record::decode(page, rest.record);
            rest.record += 1;
            let Some(record @ Record::Block { .. }) = record else { continue };
            let within = rest.data;
            rest.data += 1;
            let origin = Origin { location: first + within, generation: rest.generation };
            if let Some(found) = live_of(log, record, (origin, within), view) {
                live.push(found);
                left = left.saturating_sub(STEP_COPY);
            }
        }
        rest.at += 1 + u32::from(header.blocks);
        rest.record = 0;
    }
    (live, true)
}

/// A descriptor, in whose page a sector that it lost is put back: a start takes such a one, and its
/// blocks are live.
fn repair_and_decode(page: &mut [u8], instance: u64, generation: Seq) -> Option<BatchHeader> {
    let decode = |page: &[u8]| BatchHeader::decode(page, instance, generation);
    if let Some(header) = decode(page) {
        return Some(header);
    }
    let rebuilt = rebuild(page, BATCH_MAGIC, |page| decode(page).is_some())?;
    page[..rebuilt.len()].copy_from_slice(&rebuilt);
    decode(page)
}

/// The record with its slot and state of now, if it is the newest of its block.
fn live_of(
    log: &LogStore,
    record: Record,
    (origin, within): (Origin, u32),
    view: &dyn SlotView,
) -> Option<Live> {
    let Record::Block { key, seq, slot, crc, .. } = record else { return None };
    let slot = log.slot_at(slot, origin.location)?;
    let owner = log.overflow.get(&slot.0).copied().or_else(|| log.owner(slot, view));
    let owner = owner.filter(|owner| owner.key == key)?;
    let record = Record::Block { key, seq, slot, crc, dirty: owner.dirty };
    Some(Live { record, slot, origin, within })
}

/// Queues a copy; false for a block that does not match its checksum.
fn copy(log: &mut LogStore, victim: &[u8], live: &Live) -> bool {
    let Live { record, slot, origin, within } = *live;
    let Record::Block { key, seq, crc, .. } = record else { panic!("a block's record") };
    let block = log.geometry.block_bytes as usize;
    let content = &victim[within as usize * block..(within as usize + 1) * block];
    let computed = super::layout::crc32c(content);
    let stored = log.slots[slot.0 as usize].crc;
    if computed != stored || stored != crc {
        log.mark_failing(origin.location);
        log.report_corrupt(CorruptInfo {
            disk: log.disk_name.clone(),
            offset: log.offset_of(origin.location),
            length: content.len() as u64,
            what: "data block",
            slot: Some(slot),
            key: Some(key),
            stored,
            computed,
        });
        return false;
    }
    let stream = log.stream_of_copy(seq);
    log.enqueue(stream, Queued { record, ticket: None, durable: false, origin: Some(origin) });
    log.streams[stream as usize].data.extend(content);
    log.counters.bytes_relocated += content.len() as u64;
    if let State::Copying(copying) = &mut log.cleaning.state {
        copying.left += 1;
    }
    true
}

/// A copy's batch has ended, at `place` if well.
pub(super) fn relocated(log: &mut LogStore, slot: Slot, origin: Origin, place: Option<Place>) {
    match place {
        Some(place) if is_at(log, slot, origin) => log.place(slot, place),
        Some(_) => {}
        None => log.cleaning.failed = true,
    }
    if let State::Copying(copying) = &mut log.cleaning.state {
        copying.left -= 1;
        end_if_copied(log);
    }
}

/// Whether a slot's block lies there still. A victim is not kept while copies of it are under way:
/// once all that it held was superseded, it may be used anew, with the slot at the same place.
fn is_at(log: &LogStore, slot: Slot, origin: Origin) -> bool {
    let Origin { location, generation } = origin;
    let segment = log.geometry.segment_of(location).expect("a block lies in a segment");
    let is_same = log.segments[segment as usize].generation == generation;
    log.slots[slot.0 as usize].location == location && is_same
}

impl LogStore {
    /// Gives up copies that find no room, where nothing of the log's own will make any, so that a
    /// stop need not wait for them: the originals stay where they are.
    pub fn give_up_copies(&mut self) {
        // What it owes to the streams may find room.
        if self.owes_pump || !is_stranded(self) {
            return;
        }
        for stream in Stream::COPIES {
            let state = &mut self.streams[stream as usize];
            let copies = core::mem::take(&mut state.queue);
            state.ended_total += copies.len() as u64;
            state.data.clear();
            for copy in copies {
                let origin = copy.origin.expect("cleaning alone writes to these streams");
                let Record::Block { slot, .. } = copy.record else { panic!("a block's record") };
                relocated(self, slot, origin, None);
            }
        }
    }
}

fn end_if_copied(log: &mut LogStore) {
    if let State::Copying(Copying { left: 0, rest: None, asked: None }) = log.cleaning.state {
        log.cleaning.state = State::Idle;
        log.counters.segments_cleaned += 1;
    }
}
