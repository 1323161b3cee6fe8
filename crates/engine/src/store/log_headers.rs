//! Headers of old segments that a start could not read: they are written anew.
//!
//! How: the checkpoint that follows a start replaces the one which showed that such a segment is
//! old, so it begins after each of these headers was written, or tried a few times. A write that
//! ends beside a failed sync is tried again: the device may have dropped it. Where the header's
//! generation is not known it is the seq of the checkpoint that showed it, and the header says so:
//! to a start without that checkpoint the segment is dark again.
//! Invariant: a header is written while its segment is closed and no victim of cleaning, and none
//! of its batches lies behind the checkpoint that the start found.
//! Cost: a block per such segment. A device that refuses it leaves the segment as it was; it is
//! overwritten once it is free. Not for: segments that are dark.

use super::log::{LogStore, SegmentState};
use super::log_layout::SegmentHeader;
use super::log_tokens::Purpose;
use super::log_void::TRIES_MAX;
use crate::io::{Io, IoDone, IoOperation, OperationKind};
use std::collections::VecDeque;

/// Headers to be written before the first checkpoint.
#[derive(Debug, Default)]
pub(super) struct Headers {
    wanted: VecDeque<SegmentHeader>,
    is_writing: bool,
    /// A sync has failed meanwhile: the device may have dropped the header.
    is_doubtful: bool,
    /// Times that the first one was written in vain.
    tries: u8,
}

impl Headers {
    /// Those of segments that a start has judged old.
    pub(super) fn new(wanted: Vec<SegmentHeader>) -> Headers {
        Headers { wanted: wanted.into(), ..Headers::default() }
    }

    /// Whether none is being written.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_writing
    }

    /// A sync has failed: no later one says whether what is being written is durable.
    pub(super) fn on_sync_failed(&mut self) {
        self.is_doubtful = self.is_writing;
    }

    /// Whether some are to be written yet.
    pub(super) fn are_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }
}

/// Writes the next one.
pub(super) fn write(log: &mut LogStore, io: &mut dyn Io) {
    let header = *log.checkpoint.headers.wanted.front().expect("the caller looked");
    (log.checkpoint.headers.is_writing, log.checkpoint.headers.is_doubtful) = (true, false);
    let state = log.segments[header.index as usize].state;
    // Its live blocks stay where they are, in a damaged one, too.
    let is_closed =
        matches!(state, SegmentState::Closed | SegmentState::Damaged | SegmentState::Waiting(_));
    assert!(is_closed, "none becomes free before a checkpoint");
    let mut buffer = log.zeroed(io, 1);
    header.encode(&mut buffer);
    log.counters.bytes_written += buffer.len() as u64;
    let offset = log.offset_of(log.geometry.segment_first(header.index));
    let (disk, token) = (log.config.region.disk, log.token(Purpose::Header, 0));
    io.submit(token, IoOperation::Write { disk, offset, buffer, durable: true });
}

/// Takes the end of such a write.
pub(super) fn on_io(log: &mut LogStore, io: &mut dyn Io, done: IoDone) {
    if let Some(buffer) = done.buffer {
        io.recycle(buffer);
    }
    let headers = &mut log.checkpoint.headers;
    headers.is_writing = false;
    headers.tries += 1;
    let header = *headers.wanted.front().expect("an end belongs to a header");
    let is_written = done.result.is_ok() && !headers.is_doubtful;
    if is_written || headers.tries >= TRIES_MAX {
        headers.wanted.pop_front();
        headers.tries = 0;
    }
    let at = log.geometry.segment_first(header.index);
    log.note_end(OperationKind::Write, (at, 1), done.result);
}
