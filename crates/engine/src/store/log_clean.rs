//! Cleaning: making room by copying the live blocks out of a segment that has few of them.
//!
//! How: one victim at a time is read whole; its descriptors say which slots its blocks were for; a
//! block still live is appended to the relocation stream with the seq of the original, so that a
//! copy never outranks a record that superseded the original. An emptied segment waits for a
//! checkpoint, as any other.
//! Invariant: a slot moves to the copy only if it still points to the original when the copy is
//! written. A block that does not match its checksum is reported and stays where it is.
//! Cost: one segment read and its live blocks written per segment gained.

use super::log::{FREE_KEPT, LogStore, Place, Purpose, Queued, SegmentState};
use super::log_layout::{BatchHeader, Record, SPARE_BLOCKS_MIN};
use super::{CorruptInfo, SlotView, Stream};
use crate::io::{Buffer, Io, IoDone, IoOperation};
use layby_cache::schedule::Rank;
use layby_types::{ErrorKind, Nanos, Slot};

/// How long cleaning rests after a device error.
const REST: Nanos = Nanos::from_millis(100);

/// How often a victim is read before its segment counts as damaged: an error may pass.
const READ_TRIES: u8 = 3;

#[derive(Debug, Default)]
pub(super) struct Cleaning {
    state: State,
    failed: bool,
    resting_until: Option<Nanos>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Reading(u32),
    /// Read; the next tick queues its live blocks.
    Loaded(u32, Buffer),
    /// This many copies are queued or in flight.
    Copying(usize),
}

impl Cleaning {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }
}

/// Free and soon free segments below which cleaning works.
fn low_mark(log: &LogStore) -> usize {
    FREE_KEPT + 2 + log.segments.len() / 32
}

/// The closed segment with the fewest live blocks, if emptying it gains room: copies of a fuller
/// one take as much as they free, since they may have to be split over two segments, and cleaning
/// would go round for ever.
fn choose_victim(log: &LogStore) -> Option<u32> {
    let closed = log.segments.iter().enumerate();
    let closed = closed.filter(|(_, segment)| segment.state == SegmentState::Closed);
    let (index, segment) = closed.min_by_key(|(_, segment)| segment.live)?;
    let gains = u64::from(segment.live) + SPARE_BLOCKS_MIN <= log.geometry.dense_blocks();
    gains.then_some(index as u32)
}

fn is_wanted(log: &LogStore) -> bool {
    let waiting = log.streams.iter().any(|stream| !stream.queue.is_empty());
    let short = log.free_segments.len() + log.waiting_segments < low_mark(log);
    short && (waiting || !super::log_checkpoint::closing(log))
}

/// True when free segments are few enough to complete a checkpoint for the waiting ones.
pub(super) fn wants_checkpoint(log: &LogStore) -> bool {
    log.waiting_segments > 0 && log.free_segments.len() < low_mark(log)
}

pub(super) fn wants_step(log: &LogStore) -> bool {
    match log.cleaning.state {
        State::Idle => {
            log.cleaning.failed
                || log.cleaning.resting_until.is_none()
                    && is_wanted(log)
                    && choose_victim(log).is_some()
        }
        State::Loaded(..) => true,
        _ => false,
    }
}

/// When cleaning goes on after a device error.
pub(super) fn retry_at(log: &LogStore) -> Nanos {
    log.cleaning.resting_until.unwrap_or(Nanos::NEVER)
}

/// Nothing that goes on will ever free a segment: damaged ones hold what cleaning needed.
pub(super) fn is_stranded(log: &LogStore) -> bool {
    let relocate = &log.streams[Stream::Relocate as usize];
    let gains_nothing = match log.cleaning.state {
        State::Idle => choose_victim(log).is_none(),
        State::Copying(_) => !relocate.queue.is_empty(),
        _ => false,
    };
    gains_nothing
        && relocate.flight.is_none()
        && log.waiting_segments == 0
        && !log.freed.is_flying()
        && (log.segments.iter().any(|segment| segment.state == SegmentState::Damaged)
            || log.is_shrunk())
}

/// One bounded step.
pub(super) fn step(log: &mut LogStore, io: &mut dyn Io, now: Nanos, view: &dyn SlotView) {
    if core::mem::take(&mut log.cleaning.failed) {
        log.cleaning.resting_until = Some(now + REST);
    }
    if log.cleaning.resting_until.is_some_and(|until| now >= until) {
        log.cleaning.resting_until = None;
    }
    match core::mem::take(&mut log.cleaning.state) {
        State::Idle if log.cleaning.resting_until.is_none() && is_wanted(log) => {
            if let Some(victim) = choose_victim(log) {
                load(log, io, victim);
            }
        }
        State::Loaded(victim, buffer) => {
            let copies = queue_copies(log, victim, &buffer, view);
            io.recycle(buffer);
            log.cleaning.state = State::Copying(copies);
            end_if_copied(log);
        }
        state => log.cleaning.state = state,
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
    log.segments[victim as usize].pins -= 1;
    let buffer = done.buffer.expect("a read returns its buffer");
    if done.result.is_ok() {
        log.cleaning.state = State::Loaded(victim, buffer);
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
}

/// Live blocks that cannot be read keep their segment; it is retired once they are superseded.
fn set_damaged(log: &mut LogStore, victim: u32) {
    let segment = &mut log.segments[victim as usize];
    if segment.state == SegmentState::Closed {
        segment.state = SegmentState::Damaged;
    }
}

/// Queues a copy of every live block of the victim; the number of them.
fn queue_copies(log: &mut LogStore, victim: u32, bytes: &[u8], view: &dyn SlotView) -> usize {
    let block = log.geometry.block_bytes as usize;
    let (size, first) = (log.geometry.segment_blocks, log.geometry.segment_first(victim));
    let generation = log.segments[victim as usize].generation;
    let (mut at, mut copies, mut bad) = (1, 0, 0);
    while at < size {
        let page = &bytes[at as usize * block..];
        let Some(header) = BatchHeader::decode(page, log.instance, generation) else {
            at += 1;
            continue;
        };
        let mut data = at + 1;
        for index in 0..usize::from(header.entries) {
            let Some(record @ Record::Block { .. }) = Record::decode(page, index) else { continue };
            if data >= size {
                break;
            }
            let content = &bytes[data as usize * block..(data as usize + 1) * block];
            match copy_if_live(log, record, first + data, content, view) {
                Copied::Queued => copies += 1,
                Copied::Bad => bad += 1,
                Copied::Dead => {}
            }
            data += 1;
        }
        at += 1 + u32::from(header.blocks);
    }
    if bad > 0 || log.segments[victim as usize].live > copies {
        set_damaged(log, victim);
    }
    copies as usize
}

enum Copied {
    Queued,
    Dead,
    Bad,
}

fn copy_if_live(
    log: &mut LogStore,
    record: Record,
    origin: u32,
    content: &[u8],
    view: &dyn SlotView,
) -> Copied {
    let Record::Block { key, seq, slot, crc, .. } = record else { return Copied::Dead };
    let Some(slot) = log.slot_at(slot, origin) else { return Copied::Dead };
    let owner = log.overflow.get(&slot.0).copied().or_else(|| log.owner(slot, view));
    let Some(owner) = owner.filter(|owner| owner.key == key) else { return Copied::Dead };
    let computed = super::layout::crc32c(content);
    let stored = log.slots[slot.0 as usize].crc;
    if computed != stored || stored != crc {
        log.mark_failing(origin);
        log.report_corrupt(CorruptInfo {
            disk: log.disk_name.clone(),
            offset: log.offset_of(origin),
            length: content.len() as u64,
            what: "data block",
            slot: Some(slot),
            key: Some(key),
            stored,
            computed,
        });
        return Copied::Bad;
    }
    let record = Record::Block { key, seq, slot, crc, dirty: owner.dirty };
    log.enqueue(Stream::Relocate, Queued { record, ticket: None, durable: false, origin });
    log.streams[Stream::Relocate as usize].data.extend_from_slice(content);
    log.counters.bytes_relocated += content.len() as u64;
    Copied::Queued
}

/// A copy's batch has ended, at `place` if well.
pub(super) fn relocated(log: &mut LogStore, slot: Slot, origin: u32, place: Option<Place>) {
    match place {
        Some(place) if log.slots[slot.0 as usize].location == origin => log.place(slot, place),
        Some(_) => {}
        None => log.cleaning.failed = true,
    }
    if let State::Copying(left) = &mut log.cleaning.state {
        *left -= 1;
        end_if_copied(log);
    }
}

fn end_if_copied(log: &mut LogStore) {
    if let State::Copying(0) = log.cleaning.state {
        log.cleaning.state = State::Idle;
        log.counters.segments_cleaned += 1;
    }
}
