//! Failed batches, whose headers are overwritten: a device may have done a write that it refused,
//! and a start must not take for written what was refused.
//!
//! How: a failed batch ends when its header is overwritten, tried a few times. A header that the
//! device still refuses is remembered, and a checkpoint is asked for: when one is complete that
//! began after the batch had left its segment, a start no longer reads there. Each sync that a
//! caller waits for tries the header once more. If that fails, the sync waits for a checkpoint, and
//! ends with an error if that fails, too. A header is also forgotten when a batch is written in its
//! place.
//! An end beside a failed sync is none: the device may have dropped the zeros.
//! Invariant: no caller's sync ends well while a start could find a batch that was refused.
//! Cost: nothing, unless a write fails; then up to a checkpoint.

use super::Stream;
use super::log::{Flight, LogStore, SegmentState};
use super::log_batch::kind_of;
use super::log_checkpoint;
use super::log_layout::{BatchName, Trailer};
use super::log_tokens::Purpose;
use crate::io::{Io, IoDone, IoOperation, OperationKind, Token};
use layby_types::planted::{Plant, is_planted};
use layby_types::{ErrorKind, Nanos};
use std::collections::VecDeque;

/// Times that a failed batch's header is overwritten at once, until the device does so.
pub(super) const TRIES_MAX: u8 = 4;

/// Such checkpoints that a sync waits for: what is under way passes nothing new, the next does.
const IN_VAIN_MAX: u8 = 2;
/// How long syncs wait for a checkpoint, which may have to wait for a backing store.
const AWAIT_MAX: Nanos = Nanos::from_secs(5);

/// Headers of failed batches that the device would not have overwritten.
#[derive(Debug, Default)]
pub(super) struct Voids {
    refused: VecDeque<Refused>,
    trying: Option<Try>,
    /// Since when syncs wait for a checkpoint.
    awaits_since: Option<Nanos>,
    /// Checkpoints that were complete while syncs waited and have not passed all headers, since
    /// more writes were refused meanwhile.
    passed_in_vain: u8,
}

#[derive(Debug)]
struct Refused {
    name: BatchName,
    location: u32,
}

/// A header is being overwritten for syncs that wait.
#[derive(Debug)]
struct Try {
    location: u32,
    /// The segment was free; nothing takes it meanwhile.
    was_free: bool,
    /// A sync has failed meanwhile: the device may have dropped the zeros.
    is_doubtful: bool,
}

impl Voids {
    pub(super) fn is_idle(&self) -> bool {
        self.trying.is_none()
    }

    /// A sync has failed: no later one says whether what is being overwritten is so durably.
    pub(super) fn on_sync_failed(&mut self) {
        if let Some(attempt) = &mut self.trying {
            attempt.is_doubtful = true;
        }
    }

    /// When syncs that wait for a checkpoint are to end.
    pub(super) fn deadline(&self) -> Nanos {
        self.awaits_since.map_or(Nanos::NEVER, |since| since + AWAIT_MAX)
    }

    /// Whether no caller's sync may end well.
    pub(super) fn holds_syncs(&self) -> bool {
        !self.refused.is_empty() && !is_planted(Plant::VoidOmitted)
    }
}

/// Overwrites the header of a failed batch in flight.
pub(super) fn overwrite(log: &mut LogStore, io: &mut dyn Io, stream: Stream, mut flight: Flight) {
    flight.is_doubtful = false;
    let token = log.token(Purpose::Batch, stream as u64);
    submit(log, io, flight.data_first - 1, token);
    log.streams[stream as usize].flight = Some(flight);
}

fn submit(log: &mut LogStore, io: &mut dyn Io, location: u32, token: Token) {
    let mut buffer = io.buffer(log.geometry.block_bytes as usize);
    buffer.fill(0);
    let (disk, offset) = (log.config.region.disk, log.offset_of(location));
    log.counters.bytes_written += buffer.len() as u64;
    io.submit(token, IoOperation::Write { disk, offset, buffer, durable: true });
}

/// A batch has ended: either it or zeros, where it failed, lie in its header's place, unless the
/// device has refused those as well.
pub(super) fn settle(log: &mut LogStore, flight: &Flight, is_written: bool) {
    let (name, location) = (flight.name, flight.data_first - 1);
    log.voids.refused.retain(|refused| refused.location != location);
    if !is_written {
        log.voids.refused.push_back(Refused { name, location });
        if log.voids.holds_syncs() {
            want_checkpoint(log);
        }
    }
}

/// A checkpoint behind which no start reads the headers any more; a clean one under way is one.
fn want_checkpoint(log: &mut LogStore) {
    log.checkpoint.wanted |= !log_checkpoint::closing(log);
}

/// Tries a header again, for the syncs that wait; false when nothing is under way that may let
/// them end well. A header of a segment in use is about to be replaced by the batch that opens the
/// segment, one of a suspect by the segment's test.
pub(super) fn retry(log: &mut LogStore, io: &mut dyn Io) -> bool {
    if log.voids.trying.is_some() || log.voids.awaits_since.is_some() {
        return true;
    }
    let state = |refused: &Refused| log.segments[refused.name.segment as usize].state;
    let is_left = |state| {
        !matches!(state, SegmentState::Open | SegmentState::Suspect | SegmentState::Retired)
    };
    let next = log.voids.refused.iter().find(|refused| is_left(state(refused)));
    let Some(&Refused { name, location }) = next else {
        let flies = |segment| {
            let mut flights = log.streams.iter().filter_map(|stream| stream.flight.as_ref());
            flights.any(|flight| flight.name.segment == segment)
        };
        let is_replaced = log.voids.refused.iter().any(|refused| flies(refused.name.segment));
        let has_left = |refused: &Refused| state(refused) != SegmentState::Open;
        return is_replaced
            || (log.voids.refused.iter().all(has_left) && await_checkpoint(log, io.now()));
    };
    let position = log.free_segments.iter().position(|index| *index == name.segment);
    position.map(|position| log.free_segments.remove(position));
    log.segments[name.segment as usize].pins += 1;
    log.voids.trying = Some(Try { location, was_free: position.is_some(), is_doubtful: false });
    let token = log.token(Purpose::Void, 0);
    submit(log, io, location, token);
    true
}

/// A segment was overwritten whole.
pub(super) fn on_cleared(log: &mut LogStore, segment: u32) {
    log.voids.refused.retain(|refused| refused.name.segment != segment);
}

/// Takes the end of such a try.
pub(super) fn on_io(log: &mut LogStore, io: &mut dyn Io, done: IoDone) {
    if let Some(buffer) = done.buffer {
        io.recycle(buffer);
    }
    let attempt = log.voids.trying.take().expect("an end belongs to a try");
    let Try { location, was_free, is_doubtful } = attempt;
    log.note_end(OperationKind::Write, (location, 1), done.result);
    let segment = log.geometry.segment_of(location).expect("a batch lies in a segment");
    log.unpin(segment, io.now());
    if was_free {
        log.free_segments.push_back(segment);
        if log.segments[segment as usize].is_marked {
            log.retiring.on_marked();
        }
    }
    match done.result {
        Ok(_) if is_doubtful => log.refuse_syncs(ErrorKind::Retry),
        Ok(_) => log.voids.refused.retain(|refused| refused.location != location),
        Err(_) if await_checkpoint(log, io.now()) => {}
        Err(error) => log.refuse_syncs(kind_of(error)),
    }
}

/// Has callers' syncs wait for a checkpoint; false where one after another has failed, or none can
/// be made durable.
fn await_checkpoint(log: &mut LogStore, now: Nanos) -> bool {
    if log.sync.lost || log_checkpoint::keeps_failing(log) {
        return false;
    }
    want_checkpoint(log);
    log.voids.awaits_since.get_or_insert(now);
    true
}

/// Ends the wait for a checkpoint that does not come.
pub(super) fn on_tick(log: &mut LogStore, now: Nanos) {
    if now >= log.voids.deadline() {
        give_up(log);
    }
}

/// A checkpoint has failed: the syncs that wait for it end with an error.
pub(super) fn on_checkpoint_failed(log: &mut LogStore) {
    give_up(log);
}

/// Syncs that wait for a checkpoint end with an error.
fn give_up(log: &mut LogStore) {
    log.voids.passed_in_vain = 0;
    if log.voids.awaits_since.take().is_some() {
        log.refuse_syncs(ErrorKind::Retry);
    }
}

/// A checkpoint is complete: what had left its segment before is not read by a start any more.
/// Where writes go on being refused meanwhile, syncs wait for a second one and for no more.
pub(super) fn on_checkpoint(log: &mut LogStore, trailer: &Trailer) {
    let is_read = |refused: &Refused| {
        let name = refused.name;
        name.seq > trailer.seq.0 || trailer.open.iter().any(|open| open.index == name.segment)
    };
    log.voids.refused.retain(is_read);
    if log.voids.refused.is_empty() {
        (log.voids.awaits_since, log.voids.passed_in_vain) = (None, 0);
    } else if log.voids.awaits_since.is_some() {
        log.voids.passed_in_vain += 1;
        match log.voids.passed_in_vain < IN_VAIN_MAX {
            true => log.voids.awaits_since = None,
            false => give_up(log),
        }
    }
}
