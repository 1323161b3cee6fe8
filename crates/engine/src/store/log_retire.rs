//! Segments that fail: tested, and never used again when they fail the test.
//!
//! How: a failed write, a block that does not match its checksum, and a segment that cleaning or a
//! start cannot read mark their segment. A marked one that holds nothing any more is not opened but
//! tested: written with zeros, its header last, and read back. It passes and is free, or it fails;
//! then it is tried once more after a batch elsewhere has gone well, and retired when it fails
//! again and one has gone well since, so that a device that fails as a whole retires nothing. Where
//! suspects are all that could give room, none can go well: then they are tested in turn, and what
//! waits for room hears of each failure. Checkpoints remember what is retired.
//! Invariant: a segment that is tested or retired holds nothing that anybody could ask for.
//! Cost: a segment written and read per test. Not for: blocks in a failing segment; the cache drops
//! clean ones when it meets them, and dirty ones go home or stay.

use super::StoreEvent;
use super::log::{LogStore, SegmentState};
use super::log_layout::{NOWHERE, RETIRED_MAX};
use super::log_tokens::Purpose;
use crate::io::{Io, IoDone, IoOperation};
use layby_cache::schedule::Rank;
use layby_types::{ErrorKind, Nanos};
use std::collections::VecDeque;

/// Tests that a segment fails until it is retired.
const TESTS_MAX: u8 = 2;
/// The parts of a test, in order, as its tokens say: all but the header is written, then that, and
/// all is read.
const BODY: u64 = 0;
const HEADER: u64 = 1;
const READ: u64 = 2;
/// How long tests rest after a failed one.
const REST: Nanos = Nanos::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Retiring {
    /// Segments out of use until they are tested; the first is next.
    suspects: VecDeque<u32>,
    /// Never used again, in ascending order.
    retired: Vec<u32>,
    /// A free segment may be marked.
    pub(super) has_marked: bool,
    /// All that are have a discard in flight, whose end comes first.
    is_met: bool,
    is_testing: bool,
    /// Times that the first suspect has failed its test, and batches ended well by the last one.
    failures: u8,
    failed_at: u64,
    has_failed: bool,
    /// A sync has failed during the test: the device may have dropped its zeros.
    is_doubtful: bool,
    resting_until: Option<Nanos>,
    /// Batches ended well.
    pub(super) batches_well: u64,
}

impl Retiring {
    /// What the newest checkpoint remembers.
    pub(super) fn new(retired: &[u32], segments: u32) -> Retiring {
        let mut retired: Vec<u32> =
            retired.iter().copied().filter(|index| *index < segments).collect();
        retired.sort_unstable();
        retired.dedup();
        Retiring { retired, ..Retiring::default() }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.is_testing
    }

    /// A free segment may be marked that was not.
    pub(super) fn on_marked(&mut self) {
        (self.has_marked, self.is_met) = (true, false);
    }

    /// A discard has ended: a marked segment may have been waiting for that.
    pub(super) fn on_discard_ended(&mut self) {
        self.is_met = false;
    }

    /// A sync has failed: the test that goes on shows nothing.
    pub(super) fn on_sync_failed(&mut self) {
        self.is_doubtful = self.is_testing;
    }

    pub(super) fn is_retired(&self, index: u32) -> bool {
        self.retired.binary_search(&index).is_ok()
    }

    /// What a checkpoint keeps.
    pub(super) fn remembered(&self) -> Vec<u32> {
        self.retired.iter().copied().take(RETIRED_MAX).collect()
    }
}

impl LogStore {
    /// Segments that are never used again.
    #[must_use]
    pub fn segments_retired(&self) -> usize {
        self.retiring.retired.len()
    }

    /// Segments with a block that cannot be moved: they are free again once it is let go.
    #[must_use]
    pub fn segments_damaged(&self) -> u32 {
        self.segments_damaged
    }

    /// Segments that are out of use until a test shows what they are worth.
    #[must_use]
    pub fn segments_suspect(&self) -> usize {
        self.retiring.suspects.len()
    }

    /// Segments, retired ones included.
    #[must_use]
    pub fn segment_count(&self) -> u32 {
        self.geometry.segment_count
    }

    /// Slots that the segments in use have room for; 0 when there are fewer than the fewest. One
    /// that holds a block which cannot be moved gives no room until that block is superseded.
    #[must_use]
    pub fn slots_usable(&self) -> u32 {
        let retired = self.retiring.retired.len() as u32;
        match self.geometry.segment_count - retired {
            _ if retired + self.segments_damaged == 0 => self.geometry.slot_count,
            left if left < self.geometry.segments_min() => 0,
            left => {
                let sound = left.saturating_sub(self.segments_damaged);
                self.geometry.slots_in(sound).min(self.geometry.slot_count)
            }
        }
    }

    /// Segments in which something has failed are free, and are being overwritten or about to be.
    /// Not while one waits for what shows that the device has not failed as a whole.
    #[must_use]
    pub(crate) fn is_clearing(&self) -> bool {
        let retiring = &self.retiring;
        let is_resting = retiring.has_failed || retiring.resting_until.is_some();
        retiring.is_testing || !is_resting && wants_step(self)
    }

    /// More is live than the segments in use have room for, so that cleaning cannot go on until
    /// the cache has let blocks go.
    pub(super) fn is_shrunk(&self) -> bool {
        let live = || self.segments.iter().map(|segment| u64::from(segment.live)).sum::<u64>();
        let has_shrunk = self.slots_usable() < self.geometry.slot_count;
        has_shrunk && live() > u64::from(self.slots_usable())
    }

    /// Something of the segment of `location` failed.
    pub(super) fn mark_failing(&mut self, location: u32) {
        let index = self.geometry.segment_of(location).filter(|_| location != NOWHERE);
        if let Some(index) = index {
            self.segments[index as usize].is_marked = true;
            self.retiring.on_marked();
        }
    }
}

/// Nothing is written behind a clean checkpoint, nor while nobody knows whether the device works.
fn may_test(log: &LogStore) -> bool {
    log.failing.is_none() && !log.sync.lost && !super::log_checkpoint::closing(log)
}

/// A batch has gone well since the first suspect failed.
fn is_told_apart(log: &LogStore) -> bool {
    log.retiring.failures == 0 || log.retiring.batches_well > log.retiring.failed_at
}

/// No batch can open a segment: suspects have to give one back before anything can go well.
fn is_short(log: &LogStore) -> bool {
    log.free_segments.len() <= log.free_kept()
}

fn is_decidable(log: &LogStore) -> bool {
    !log.retiring.suspects.is_empty() && (is_told_apart(log) || is_short(log))
}

pub(super) fn wants_step(log: &LogStore) -> bool {
    let retiring = &log.retiring;
    retiring.has_failed
        || !retiring.is_testing
            && retiring.resting_until.is_none()
            && may_test(log)
            && (retiring.has_marked && !retiring.is_met && can_take(log) || is_decidable(log))
}

/// When tests go on after a failed one.
pub(super) fn retry_at(log: &LogStore) -> Nanos {
    let may = may_test(log) && is_decidable(log);
    log.retiring.resting_until.filter(|_| may).unwrap_or(Nanos::NEVER)
}

/// Tests leave enough segments to go on with, beside those that a discard is at.
fn can_take(log: &LogStore) -> bool {
    log.free_segments.len() > log.segments_flying() + log.free_kept() + 1
}

/// A segment may come back into use by a test, now or after a pause. Marked ones that are free and
/// too few to be tested are no such ones: only more free segments would have them tested.
pub(super) fn may_give_room(log: &LogStore) -> bool {
    let retiring = &log.retiring;
    let is_marked = retiring.has_marked && can_take(log);
    is_marked || !retiring.suspects.is_empty() || retiring.is_testing
}

/// One bounded step.
pub(super) fn step(log: &mut LogStore, io: &mut dyn Io, now: Nanos) {
    if core::mem::take(&mut log.retiring.has_failed) {
        log.retiring.resting_until = Some(now + REST);
    }
    if log.retiring.resting_until.is_some_and(|until| now >= until) {
        log.retiring.resting_until = None;
    }
    if !may_test(log) || log.retiring.is_testing || log.retiring.resting_until.is_some() {
        return;
    }
    if log.retiring.has_marked && can_take(log) {
        take_marked(log);
    }
    if !is_decidable(log) {
        return;
    }
    if !is_told_apart(log) {
        log.retiring.suspects.rotate_left(1);
        log.retiring.failures = 0;
    }
    if log.retiring.failures >= TESTS_MAX {
        retire(log);
    } else {
        test(log, io);
    }
}

/// Takes marked segments off the free list, as many as can be spared and no discard is at.
fn take_marked(log: &mut LogStore) {
    let marked: Vec<u32> = log.free_segments.iter().copied().collect();
    (log.retiring.has_marked, log.retiring.is_met) = (false, false);
    for index in marked {
        if !log.segments[index as usize].is_marked {
            continue;
        }
        if log.is_discarding(index) {
            (log.retiring.has_marked, log.retiring.is_met) = (true, true);
            continue;
        }
        if !can_take(log) {
            (log.retiring.has_marked, log.retiring.is_met) = (true, false);
            return;
        }
        log.free_segments.retain(|other| *other != index);
        log.keep_from_discard(index);
        log.segments[index as usize].state = SegmentState::Suspect;
        log.retiring.suspects.push_back(index);
    }
}

fn test(log: &mut LogStore, io: &mut dyn Io) {
    let index = *log.retiring.suspects.front().expect("a suspect is there to be tested");
    let segment = &log.segments[index as usize];
    assert!(segment.live == 0 && segment.pins == 0, "a suspect holds nothing");
    (log.retiring.is_testing, log.retiring.is_doubtful) = (true, false);
    // The header last: where power loss tears it, the block behind says that it is no loss.
    clear(log, io, index, BODY);
}

/// Writes zeros over a segment, by such a part.
fn clear(log: &mut LogStore, io: &mut dyn Io, index: u32, part: u64) {
    let first = log.geometry.segment_first(index);
    let (at, blocks) =
        if part == BODY { (first + 1, log.geometry.segment_blocks - 1) } else { (first, 1) };
    let buffer = log.zeroed(io, blocks as usize);
    log.counters.bytes_written += buffer.len() as u64;
    let (disk, offset) = (log.config.region.disk, log.offset_of(at));
    let token = log.token(Purpose::Test, part);
    submit(io, |io| io.submit(token, IoOperation::Write { disk, offset, buffer, durable: true }));
}

fn submit(io: &mut dyn Io, what: impl FnOnce(&mut dyn Io)) {
    let rank = io.rank();
    io.set_rank(Rank::BACKGROUND);
    what(io);
    io.set_rank(rank);
}

/// Takes the end of a part of a test.
pub(super) fn on_io(log: &mut LogStore, io: &mut dyn Io, payload: u64, done: IoDone) {
    let index = *log.retiring.suspects.front().expect("a test is of the first suspect");
    let is_ok = done.result.is_ok();
    let is_zero = done.buffer.as_ref().is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
    if let Some(buffer) = done.buffer {
        io.recycle(buffer);
    }
    if is_ok && payload == BODY {
        return clear(log, io, index, HEADER);
    }
    if is_ok && payload == HEADER {
        let length = log.geometry.segment_blocks * log.geometry.block_bytes;
        let buffer = io.buffer(length as usize);
        let offset = log.offset_of(log.geometry.segment_first(index));
        let (disk, token) = (log.config.region.disk, log.token(Purpose::Test, READ));
        return submit(io, |io| io.submit(token, IoOperation::Read { disk, offset, buffer }));
    }
    log.retiring.is_testing = false;
    let is_passed = is_ok && is_zero;
    if is_passed && !log.retiring.is_doubtful {
        return pass(log, io, index);
    }
    log.retiring.has_failed = true;
    if !is_passed {
        log.retiring.failures += 1;
        log.retiring.failed_at = log.retiring.batches_well;
    }
    if is_short(log) {
        log.refuse_stranded(ErrorKind::Full);
    }
}

fn pass(log: &mut LogStore, io: &dyn Io, index: u32) {
    super::log_void::on_cleared(log, index);
    log.retiring.suspects.pop_front();
    log.retiring.failures = 0;
    let segment = &mut log.segments[index as usize];
    (segment.state, segment.is_marked) = (SegmentState::Free, false);
    log.free_segments.push_back(index);
    log.tell_free(index, io.now());
}

fn retire(log: &mut LogStore) {
    let index = log.retiring.suspects.pop_front().expect("a suspect is there to be retired");
    log.retiring.failures = 0;
    log.segments[index as usize].state = SegmentState::Retired;
    let retired = &mut log.retiring.retired;
    let place = retired.partition_point(|other| *other < index);
    retired.insert(place, index);
    log.checkpoint.wanted = true;
    let offset = log.offset_of(log.geometry.segment_first(index));
    let slots = log.slots_usable();
    log.events.push(StoreEvent::SegmentRetired { disk: log.disk_name.clone(), offset, slots });
}
