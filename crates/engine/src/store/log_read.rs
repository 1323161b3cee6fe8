//! Reading blocks of the log: adjacent ones in one operation, each verified.
//!
//! How: a call's slots are cut into runs of consecutive locations; each run is one read whose
//! segments stay pinned. A call of one run hands its buffer on without a copy.
//! Invariant: bytes that do not match the checksum kept in memory never leave this file.
//! Cost: one table entry per call; one copy where a call needs several runs.

use super::log::{LogStore, Place};
use super::log_layout::NOWHERE;
use super::log_tokens::Purpose;
use super::table::Map;
use super::{CorruptInfo, ReadFailure, StoreEvent, Ticket};
use crate::io::{Buffer, Io, IoDone, IoError, IoOperation, OperationKind};
use layby_types::planted::{Plant, is_planted};
use layby_types::{ErrorKind, Slot};
use rustix::io::Errno;
use std::ops::RangeInclusive;

/// Blocks of one read call at most; a run's index takes 12 bits of the token.
pub(super) const READ_BLOCKS_MAX: usize = 1 << RUN_BITS;
const RUN_BITS: u32 = 12;

#[derive(Debug, Default)]
pub(super) struct Reads {
    next: u64,
    open: Map<u64, ReadCall>,
}

impl Reads {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[derive(Debug)]
struct ReadCall {
    ticket: Ticket,
    slots: Vec<(Slot, Place)>,
    /// First position in `slots` of each run.
    runs: Vec<usize>,
    left: usize,
    whole: Option<Buffer>,
    bad: Vec<Slot>,
    kind: ErrorKind,
}

impl ReadCall {
    fn run(&self, index: usize) -> core::ops::Range<usize> {
        self.runs[index]..self.runs.get(index + 1).copied().unwrap_or(self.slots.len())
    }
}

/// See [`LogStore::read`].
pub(super) fn start(log: &mut LogStore, io: &mut dyn Io, ticket: Ticket, slots: &[Slot]) {
    assert!(!slots.is_empty() && slots.len() <= READ_BLOCKS_MAX, "a read has a bounded length");
    let places: Vec<_> = slots.iter().map(|slot| (*slot, log.slots[slot.0 as usize])).collect();
    let empty = places.iter().filter(|(_, place)| place.location == NOWHERE);
    let empty: Vec<Slot> = empty.map(|(slot, _)| *slot).collect();
    if !empty.is_empty() {
        let failure = ReadFailure { kind: ErrorKind::Invalid, slots: empty };
        log.events.push(StoreEvent::Read { ticket, result: Err(failure) });
        return;
    }
    let follows = |index: &usize| {
        *index == 0 || places[*index].1.location != places[*index - 1].1.location + 1
    };
    let runs: Vec<usize> = (0..places.len()).filter(follows).collect();
    let call = ReadCall {
        ticket,
        left: runs.len(),
        runs,
        slots: places,
        whole: None,
        bad: Vec::new(),
        kind: ErrorKind::Corrupt,
    };
    let id = log.reads.next;
    log.reads.next = (id + 1) & ((1 << 40) - 1);
    for index in 0..call.runs.len() {
        submit(log, io, id, &call, index);
    }
    assert!(log.reads.open.insert(id, call).is_none(), "2^40 reads are never open at once");
}

fn submit(log: &mut LogStore, io: &mut dyn Io, id: u64, call: &ReadCall, index: usize) {
    let run = call.run(index);
    segments_of(log, call, index).for_each(|index| log.segments[index as usize].pins += 1);
    let length = run.len() * log.geometry.block_bytes as usize;
    let offset = log.offset_of(call.slots[run.start].1.location);
    let (disk, buffer) = (log.config.region.disk, io.buffer(length));
    let token = log.token(Purpose::Read, id << RUN_BITS | index as u64);
    io.submit(token, IoOperation::Read { disk, offset, buffer });
}

/// The segments of a run.
fn segments_of(log: &LogStore, call: &ReadCall, index: usize) -> RangeInclusive<u32> {
    let run = call.run(index);
    let segment = |position: usize| {
        let location = call.slots[position].1.location;
        log.geometry.segment_of(location).expect("a location lies in a segment")
    };
    segment(run.start)..=segment(run.end - 1)
}

/// Takes the end of one run.
pub(super) fn on_io(log: &mut LogStore, io: &mut dyn Io, payload: u64, done: IoDone) {
    let (id, index) = (payload >> RUN_BITS, (payload & (READ_BLOCKS_MAX as u64 - 1)) as usize);
    let mut call = log.reads.open.remove(&id).expect("an end belongs to an open read");
    let buffer = done.buffer.expect("a read returns its buffer");
    let run = call.run(index);
    let place = (call.slots[run.start].1.location, run.len() as u32);
    log.note_end(OperationKind::Read, place, done.result);
    match done.result {
        Ok(_) => verify(log, &mut call, index, &buffer),
        Err(error) => {
            if !is_of_sectors(error) {
                call.kind = ErrorKind::Retry;
            }
            call.bad.extend(call.slots[run].iter().map(|(slot, _)| *slot));
        }
    }
    let now = io.now();
    segments_of(log, &call, index).for_each(|index| log.unpin(index, now));
    collect(log, io, &mut call, index, buffer);
    call.left -= 1;
    if call.left > 0 {
        log.reads.open.insert(id, call);
        return;
    }
    let whole = call.whole.take().expect("every run was collected");
    let result = if call.bad.is_empty() {
        Ok(whole)
    } else {
        io.recycle(whole);
        Err(ReadFailure { kind: call.kind, slots: call.bad })
    };
    log.events.push(StoreEvent::Read { ticket: call.ticket, result });
}

/// Whether the device cannot read these sectors, rather than not be read at all.
fn is_of_sectors(error: IoError) -> bool {
    let of_sectors =
        [Errno::IO, Errno::NODATA, Errno::ILSEQ, Errno::BADMSG, Errno::REMOTEIO, Errno::UCLEAN];
    of_sectors.map(Errno::raw_os_error).contains(&error.errno)
}

fn verify(log: &mut LogStore, call: &mut ReadCall, index: usize, buffer: &[u8]) {
    let block = log.geometry.block_bytes as usize;
    for (position, bytes) in call.run(index).zip(buffer.chunks_exact(block)) {
        let (slot, place) = call.slots[position];
        let computed = super::layout::crc32c(bytes);
        if computed == place.crc || is_planted(Plant::ChecksumIgnored) {
            continue;
        }
        call.bad.push(slot);
        log.mark_failing(place.location);
        log.report_corrupt(CorruptInfo {
            disk: log.disk_name.clone(),
            offset: log.offset_of(place.location),
            length: block as u64,
            what: "data block",
            slot: Some(slot),
            key: None,
            stored: place.crc,
            computed,
        });
    }
}

/// Puts a run's bytes where they belong in the call's buffer.
fn collect(log: &LogStore, io: &mut dyn Io, call: &mut ReadCall, index: usize, buffer: Buffer) {
    if call.runs.len() == 1 {
        call.whole = Some(buffer);
        return;
    }
    let block = log.geometry.block_bytes as usize;
    let run = call.run(index);
    let length = call.slots.len() * block;
    let whole = call.whole.get_or_insert_with(|| io.buffer(length));
    whole[run.start * block..run.end * block].copy_from_slice(&buffer);
    io.recycle(buffer);
}
