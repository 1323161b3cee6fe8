//! Free segments on their way to the device: at once, later, or never.
//!
//! How: a segment that a checkpoint has freed joins a table of [`Discards`], in bytes of the
//! region; to open it again takes it out. What is left when the delay has passed goes to the
//! device, merged with its neighbours and in ascending order, in parts that leave enough segments
//! to go on with.
//! A start tells of all that is free once more, since a power cut forgets what waited.
//! Invariant: only free segments are discarded. By rule R2 no start reads one, whichever of the two
//! checkpoints it takes; so it is as safe as writing to it. A segment with a discard in flight is
//! neither opened nor tested.
//! Cost: a look-up per segment opened or freed. Not for: segments in which something has failed;
//! they are tested first.

use super::log::{LogStore, SegmentState};
use super::log_tokens::Purpose;
use crate::control::DiscardStats;
use crate::io::{Io, IoDone, IoOperation};
use layby_cache::discards::{DiscardLimits, Discards};
use layby_cache::schedule::Rank;
use layby_types::Nanos;
use layby_types::planted::{Plant, is_planted};
use rustix::io::Errno;
use std::ops::Range;

/// Bytes of one discard at most: devices serve nobody else meanwhile.
const PART_BYTES_MAX: u64 = 64 << 20;
/// How long discards rest that the device has refused.
const REST: Nanos = Nanos::from_secs(1);
/// Refusals in a row after which it is not asked any more in this life.
const REFUSALS_MAX: u32 = 8;

/// What the device has not heard of.
#[derive(Debug)]
pub(super) struct Freed {
    table: Discards,
    refused_total: u64,
    /// In a row.
    refusals: u32,
    /// The device knows no discards, or has refused too many.
    is_given_up: bool,
    not_before: Nanos,
}

impl Freed {
    pub(super) fn new(limits: DiscardLimits) -> Freed {
        Freed {
            table: Discards::new(limits),
            refused_total: 0,
            refusals: 0,
            is_given_up: false,
            not_before: Nanos::ZERO,
        }
    }

    /// Whether the device is at some segments now.
    pub(super) fn is_flying(&self) -> bool {
        !self.table.in_flight().is_empty()
    }
}

impl LogStore {
    /// What became of freed segments on their way to the device.
    #[must_use]
    pub fn discard_stats(&self) -> DiscardStats {
        let table = &self.freed.table;
        DiscardStats {
            counters: *table.counters(),
            pending: table.pending(),
            delay: table.delay(),
            refused: self.freed.refused_total,
        }
    }

    /// Bytes of a segment.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        u64::from(self.geometry.segment_blocks) * u64::from(self.geometry.block_bytes)
    }

    /// In bytes from the region's first.
    fn bytes_of_segment(&self, index: u32) -> Range<u64> {
        let first = self.geometry.segment_first(index);
        let first = u64::from(first) * u64::from(self.geometry.block_bytes);
        first..first + self.segment_bytes()
    }

    /// Whether a discard is at a segment now.
    pub(super) fn is_discarding(&self, index: u32) -> bool {
        self.freed.table.is_in_flight(&self.bytes_of_segment(index))
    }

    pub(super) fn segments_flying(&self) -> usize {
        let bytes = self.freed.table.in_flight().iter().map(|range| range.end - range.start);
        (bytes.sum::<u64>() / self.segment_bytes()) as usize
    }

    /// A segment has become free.
    pub(super) fn tell_free(&mut self, index: u32, now: Nanos) {
        if self.freed.is_given_up || self.segments[index as usize].is_marked {
            return;
        }
        let range = self.bytes_of_segment(index);
        let free = self.free_segments.len() as u64 * 1000 / u64::from(self.geometry.segment_count);
        self.freed.table.set_free(free as u16);
        self.freed.table.reclaim(range, now);
    }

    /// All that is free, at a start.
    pub(super) fn tell_all_free(&mut self, now: Nanos) {
        for index in self.free_segments.clone() {
            self.tell_free(index, now);
        }
    }

    /// Takes a free segment that no discard is at; nobody will discard it before it is free again.
    pub(super) fn take_free(&mut self) -> Option<u32> {
        let is_at_rest = |index: &u32| !self.is_discarding(*index);
        let at = self.free_segments.iter().position(is_at_rest)?;
        let index = self.free_segments.remove(at)?;
        self.keep_from_discard(index);
        Some(index)
    }

    /// A segment is free no longer; no discard is at it.
    pub(super) fn keep_from_discard(&mut self, index: u32) {
        let range = self.bytes_of_segment(index);
        self.freed.table.written(range);
    }
}

/// Bytes that a discard may take away from what opens segments, and from a test of a marked one; 0
/// for none now.
fn room_for_part(log: &LogStore) -> u64 {
    let for_test = usize::from(log.retiring.has_marked);
    let kept = log.segments_flying() + log.free_kept() + 1 + for_test;
    let spared = log.free_segments.len().saturating_sub(kept);
    let most = log.freed.table.piece_bytes_max().min(PART_BYTES_MAX);
    let most = (most / log.segment_bytes()).max(1);
    let is_stopping = log.sync.lost || super::log_checkpoint::closing(log);
    let part = if is_stopping { 0 } else { (spared as u64).min(most) };
    part * log.segment_bytes()
}

/// When [`step`] has something to send.
pub(super) fn next_deadline(log: &LogStore) -> Nanos {
    match room_for_part(log) {
        0 => Nanos::NEVER,
        _ => log.freed.table.next_deadline().max(log.freed.not_before),
    }
}

/// Sends what is due.
pub(super) fn step(log: &mut LogStore, io: &mut dyn Io, now: Nanos) {
    while now >= log.freed.not_before
        && let most @ 1.. = room_for_part(log)
        && let Some(range) = log.freed.table.due_part(now, most)
    {
        send(log, io, &range);
    }
}

fn send(log: &LogStore, io: &mut dyn Io, range: &Range<u64>) {
    let block = u64::from(log.geometry.block_bytes);
    for location in
        (range.start / block..range.end / block).step_by(log.geometry.segment_blocks as usize)
    {
        let index = log.geometry.segment_of(location as u32).expect("runs are of segments");
        let state = log.segments[index as usize].state;
        let is_free = state == SegmentState::Free || is_planted(Plant::DiscardEarly);
        assert!(is_free, "a discard of segment {index}, which is {state:?}");
    }
    let (disk, offset) = (log.config.region.disk, log.config.region.base + range.start);
    let length = range.end - range.start;
    let token = log.token(Purpose::Discard, range.start / block);
    let rank = io.rank();
    io.set_rank(Rank::BACKGROUND);
    io.submit(token, IoOperation::Discard { disk, offset, length });
    io.set_rank(rank);
}

/// Takes the end of the discard that begins at block `payload`.
pub(super) fn on_io(log: &mut LogStore, io: &dyn Io, payload: u64, done: &IoDone) {
    let first = payload * u64::from(log.geometry.block_bytes);
    let freed = &mut log.freed;
    let flying = freed.table.in_flight().iter().find(|range| range.start == first);
    let range = flying.cloned().expect("an end belongs to a discard in flight");
    freed.table.finished(&range);
    log.retiring.on_discard_ended();
    let Err(error) = done.result else {
        freed.refusals = 0;
        return;
    };
    // It was advice: the segments are as good as before, and a later life tells of them again.
    freed.refused_total += 1;
    freed.refusals += 1;
    freed.not_before = io.now().saturating_add(REST);
    let is_unknown = [Errno::OPNOTSUPP, Errno::NOTTY, Errno::NOSYS, Errno::INVAL]
        .iter()
        .any(|errno| errno.raw_os_error() == error.errno);
    if is_unknown || freed.refusals >= REFUSALS_MAX {
        freed.is_given_up = true;
        freed.table.forget(0..u64::MAX);
    }
}
