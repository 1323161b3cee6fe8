//! Segments that fail for good: found, tested, retired, remembered; a device that fails as a whole
//! costs none.

use super::tests_log::{LENGTH, config, content, fresh, key, open};
use super::{
    AppendEntry, LogStore, SeqSource, SlotInfo, SlotView, StoreError, StoreEvent, Stream, Ticket,
};
use crate::io::{CrashMode, DiskId, Io, OperationKind, SimIo};
use layby_types::{Nanos, Seq, Slot};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks of the longest write.
const BLOCKS_MAX: u32 = 40;

/// What the tests have stored, by slot.
#[derive(Default)]
struct Held(BTreeMap<u32, u8>);

impl SlotView for Held {
    fn slot(&self, slot: Slot) -> Option<SlotInfo> {
        self.0.get(&slot.0).map(|_| SlotInfo { key: key(slot.0.into()), dirty: true })
    }
}

struct Bench {
    io: SimIo,
    disk: DiskId,
    log: LogStore,
    held: Held,
    ticket: u64,
    retired: Vec<u32>,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let (io, disk, log) = fresh(seed);
        Bench { io, disk, log, held: Held::default(), ticket: 0, retired: Vec::new() }
    }

    /// Bytes of segments, and where the first begins.
    fn segments(&self) -> (u64, u64) {
        let geometry = &self.log.geometry;
        let size = u64::from(geometry.segment_blocks * geometry.block_bytes);
        (size, u64::from(geometry.segments_first * geometry.block_bytes))
    }

    fn break_segment(&mut self, index: u32) {
        let (size, first) = self.segments();
        self.io.break_range(self.disk, first + u64::from(index) * size + size / 2, 4096);
    }

    /// Lets time pass until nothing is under way; how appends ended.
    fn settle(&mut self, turns: u32) -> Vec<bool> {
        let mut ends = Vec::new();
        for _ in 0..turns {
            let (mut done, mut events) = (Vec::new(), Vec::new());
            self.io.wait(Nanos(self.io.now().0 + 20_000_000), &mut done);
            done.into_iter().for_each(|done| self.log.on_io(&mut self.io, done));
            let now = self.io.now();
            self.log.on_tick(&mut self.io, now, &self.held);
            self.log.take_events(&mut events);
            for event in events {
                match event {
                    StoreEvent::NeedPeerSync { id, .. } => self.log.peer_synced(id),
                    StoreEvent::Stored { result, .. } => ends.push(result.is_ok()),
                    StoreEvent::SegmentRetired { slots, .. } => self.retired.push(slots),
                    StoreEvent::Read { result, .. } => ends.push(result.is_ok()),
                    StoreEvent::Synced { result, .. } => ends.push(result.is_ok()),
                    _ => {}
                }
            }
        }
        ends
    }

    /// Stores a block, and says whether that went well.
    fn put(&mut self, slot: u32, byte: u8) -> bool {
        self.put_within(slot..slot + 1, byte, 100_000).expect("a write ends")
    }

    /// Stores blocks by one call, which has so many turns, and says whether that went well.
    fn put_within(&mut self, slots: Range<u32>, byte: u8, turns: u32) -> Option<bool> {
        self.ticket += 1;
        let entry = |slot| AppendEntry { slot: Slot(slot), key: key(slot.into()), dirty: true };
        let entries: Vec<_> = slots.clone().map(entry).collect();
        let data = content(byte).repeat(entries.len());
        let (io, ticket) = (&mut self.io, Ticket(self.ticket));
        self.log.append(io, ticket, Stream::Write, &entries, &data, true);
        let is_ok = (0..turns).find_map(|_| self.settle(1).first().copied())?;
        if is_ok {
            self.held.0.extend(slots.map(|slot| (slot, byte)));
        }
        Some(is_ok)
    }

    /// Syncs, within so many turns, and says whether that went well.
    fn flush(&mut self, turns: u32) -> Option<bool> {
        self.ticket += 1;
        self.log.sync(&mut self.io, Ticket(self.ticket));
        (0..turns).find_map(|_| self.settle(1).first().copied())
    }

    /// Has the device refuse what the next batch of a stream writes first, for good.
    fn break_next_batch(&mut self, stream: Stream) {
        let (index, fill) = self.log.streams[stream as usize].open.expect("it has begun");
        let first = self.log.geometry.segment_first(index) + fill;
        self.io.break_range(self.disk, self.log.offset_of(first), 4096);
    }

    fn check(&mut self) {
        for (slot, byte) in self.held.0.clone() {
            self.ticket += 1;
            self.log.read(&mut self.io, Ticket(self.ticket), &[Slot(slot)]);
            let mut events = Vec::new();
            // A checkpoint may go on beside.
            while !events.iter().any(|event| matches!(event, StoreEvent::Read { .. })) {
                let mut done = Vec::new();
                self.io.wait(Nanos(self.io.now().0 + 1_000_000), &mut done);
                done.into_iter().for_each(|done| self.log.on_io(&mut self.io, done));
                self.log.take_events(&mut events);
            }
            let read = events.iter().find_map(|event| match event {
                StoreEvent::Read { result: Ok(buffer), .. } => {
                    Some(buffer[..] == content(byte)[..])
                }
                _ => None,
            });
            assert_eq!(read, Some(true), "slot {slot}");
        }
    }

    fn restart(&mut self) {
        self.io.crash(CrashMode::DropAll);
        let (log, recovered) = open(&mut self.io, self.disk);
        self.log = log;
        assert_eq!(recovered.entries.len(), self.held.0.len());
    }

    /// Overwrites a few blocks again and again; how many writes failed.
    fn churn(&mut self, rounds: u32) -> u32 {
        let puts = (0..rounds).map(|round| self.put(round % 7, round as u8));
        puts.collect::<Vec<_>>().iter().map(|is_ok| u32::from(!is_ok)).sum()
    }
}

/// Goal: after an outage that marked nearly every free segment no write waits for ever, though it
/// needs more room than is left and the first test of a marked one fails; then all goes well again.
/// Method: writes to a device that is gone, then long ones and a failing read, each with turns to
/// spare.
#[test]
fn an_outage_takes_no_room_for_good() {
    for long in 1..BLOCKS_MAX {
        let mut bench = Bench::new(u64::from(long));
        bench.io.set_gone(bench.disk, true);
        assert!(bench.churn(60) > 0);
        bench.io.set_gone(bench.disk, false);
        bench.io.fail_next(bench.disk, OperationKind::Read, Errno::IO);
        let ends = (0..8).map(|round| bench.put_within(0..long, round, 2_000));
        let ends: Vec<_> = ends.collect();
        assert!(!ends.contains(&None), "{long} blocks at once wait for ever: {ends:?}");
        assert_eq!(ends.last(), Some(&Some(true)), "{long} blocks at once: {ends:?}");
        bench.settle(400);
        bench.check();
    }
}

/// Goal: ranges that fail for good cost a few writes, then nothing; the log is smaller, remembers
/// that over restarts, and all that was stored is there. Method: broken segments under churn, a
/// power cut, churn again.
#[test]
fn broken_segments_are_retired_and_remembered() {
    for seed in 0..20 {
        let mut bench = Bench::new(seed);
        let whole = bench.log.slots_usable();
        let broken = [1, 4, 5];
        broken.iter().for_each(|index| bench.break_segment(*index));
        let (mut failed, mut rounds) = (bench.churn(1 + seed as u32), 0);
        while bench.log.segments_retired() < broken.len() {
            rounds += 1;
            assert!(rounds < 100, "seed {seed}: {} retired", bench.log.segments_retired());
            failed += bench.churn(20);
        }
        assert!((1..=6).contains(&failed), "seed {seed}: {failed} writes failed");
        bench.settle(100);
        assert_eq!(bench.retired.len(), broken.len());
        assert!(bench.log.slots_usable() < whole && bench.log.slots_usable() > 0);
        assert_eq!(bench.churn(200), 0, "seed {seed}: what is retired is not used");
        bench.check();
        let (size, first) = bench.segments();
        // Not even its header can be read any more.
        bench.io.fail_reads(bench.disk, first + 4 * size, size);
        bench.restart();
        assert_eq!(bench.log.segments_retired(), broken.len(), "seed {seed}: they are remembered");
        assert_eq!(bench.churn(200), 0, "seed {seed}: nor in the next life");
        bench.check();
    }
}

/// Goal: a device that fails for a while as a whole retires nothing, nor does a single error.
/// Method: an outage under churn, then single errors.
#[test]
fn outages_retire_nothing() {
    let mut bench = Bench::new(1);
    bench.churn(20);
    for _ in 0..3 {
        bench.io.set_gone(bench.disk, true);
        assert!(bench.churn(30) > 0);
        bench.settle(50);
        bench.io.set_gone(bench.disk, false);
        bench.churn(10);
        bench.settle(50);
    }
    for round in 0..30 {
        let kind = crate::io::OperationKind::Write;
        bench.io.fail_next(bench.disk, kind, rustix::io::Errno::IO);
        bench.put(round % 7, round as u8);
        bench.settle(20);
    }
    assert_eq!((bench.log.segments_retired(), bench.log.segments_suspect()), (0, 0));
    assert_eq!(bench.churn(100), 0);
    bench.check();
}

/// Goal: a log of too few segments has no slots left, and still reads. Method: broken segments one
/// after the other.
#[test]
fn too_few_segments_take_nothing() {
    let mut bench = Bench::new(2);
    bench.churn(30);
    let count = bench.log.segment_count();
    let mut broken = 0;
    while bench.log.slots_usable() > 0 {
        assert!(broken < count, "the log never gives up");
        bench.break_segment(broken);
        broken += 1;
        bench.churn(4 * count);
        bench.settle(100);
    }
    assert!(count - (bench.log.segments_retired() as u32) < bench.log.geometry.segments_min());
    bench.check();
}

/// Goal: what is not retired and cannot be read still stops the start. Method: an unreadable
/// header.
#[test]
fn unreadable_segments_still_stop_the_start() {
    let mut bench = Bench::new(3);
    bench.churn(30);
    let (size, first) = bench.segments();
    bench.io.fail_reads(bench.disk, first, size);
    bench.io.crash(CrashMode::DropAll);
    let refused = LogStore::open(&mut bench.io, config(bench.disk), SeqSource::new(Seq(1)));
    assert!(matches!(refused.err(), Some(StoreError::Io { .. })));
}

/// Goal: a batch whose header can be overwritten no more makes flushes fail no longer than until a
/// checkpoint has passed it, though nothing is written any more; and where none can be written,
/// each flush ends with an error, in bounded time. Method: a place that is broken for good where
/// the next batch goes, then flushes alone; the same with both areas of checkpoints broken.
#[test]
fn flushes_outlast_a_place_that_takes_no_write() {
    for (seed, has_checkpoints) in (0..8).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut bench = Bench::new(seed);
        assert!(bench.put(0, 1));
        bench.settle(10);
        bench.break_next_batch(Stream::Write);
        if !has_checkpoints {
            let geometry = &bench.log.geometry;
            let first = bench.log.offset_of(geometry.checkpoint_first(0));
            let end = bench.log.offset_of(geometry.segments_first);
            bench.io.break_range(bench.disk, first, end - first);
        }
        assert!(!bench.put(1, 2), "its place is broken");
        for flush in 0..20 {
            let ended = bench.flush(200);
            assert_eq!(ended, Some(has_checkpoints), "seed {seed}, flush {flush}");
        }
        if has_checkpoints {
            bench.restart();
            bench.check();
        }
    }
}

/// Goal: a flush ends in bounded time where writes go on being refused, each behind the checkpoint
/// that passes the one before, and where a checkpoint waits for a backing store that is silent.
/// Method: segments that take no write, checkpoint areas that do; a flush beside a write in each
/// turn; the same with a peer that never answers.
#[test]
fn flushes_end_beside_writes_that_are_refused() {
    for (seed, has_peer) in (0..4).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut bench = Bench::new(seed);
        assert!(bench.put(0, 1));
        bench.settle(10);
        let first = bench.log.offset_of(bench.log.geometry.segments_first);
        bench.io.break_range(bench.disk, first, LENGTH - first);
        assert!(!bench.put(1, 2), "its place is broken");
        bench.log.sync(&mut bench.io, Ticket(1 << 40));
        let began = bench.io.now();
        let ended = (0..1_000_000).find_map(|turn| {
            let entry = AppendEntry { slot: Slot(2), key: key(2), dirty: true };
            let (io, ticket) = (&mut bench.io, Ticket((1 << 41) + turn));
            bench.log.append(io, ticket, Stream::Write, &[entry], &content(3), true);
            let (mut done, mut events) = (Vec::new(), Vec::new());
            bench.io.wait(Nanos(bench.io.now().0 + 20_000_000), &mut done);
            done.into_iter().for_each(|done| bench.log.on_io(&mut bench.io, done));
            let now = bench.io.now();
            assert!(now.0 < began.0 + 6_000_000_000, "seed {seed}, peer {has_peer}: no end");
            bench.log.on_tick(&mut bench.io, now, &bench.held);
            bench.log.take_events(&mut events);
            events.into_iter().find_map(|event| match event {
                StoreEvent::NeedPeerSync { id, .. } if has_peer => {
                    bench.log.peer_synced(id);
                    None
                }
                StoreEvent::Synced { ticket: Ticket(number), result } if number == 1 << 40 => {
                    Some(result.is_ok())
                }
                _ => None,
            })
        });
        assert!(ended.is_some_and(|is_ok| has_peer || !is_ok), "seed {seed}, peer {has_peer}");
    }
}

/// Goal: reads that hang cost a checkpoint or two and not one after the other, though they hold
/// what would be free; it is free when they end. Method: reads that hold each segment that waits
/// while free ones are few, four seconds, and their ends.
#[test]
fn reads_that_hang_repeat_no_checkpoint() {
    for seed in 0..8 {
        let mut bench = Bench::new(seed);
        let is_due = (0..2_000).any(|round| {
            bench.put(round % 7, round as u8);
            super::log_clean::wants_checkpoint(&bench.log)
        });
        assert!(is_due, "seed {seed}: few segments are free at some time");
        let waits = |state| matches!(state, super::log::SegmentState::Waiting(_));
        let mut held = Vec::new();
        for (index, segment) in (0..).zip(&mut bench.log.segments) {
            if waits(segment.state) {
                segment.pins += 1;
                held.push(index);
            }
        }
        let before = bench.log.counters().checkpoints;
        bench.settle(200);
        let checkpoints = bench.log.counters().checkpoints - before;
        assert!(checkpoints < 4, "seed {seed}: {checkpoints} checkpoints");
        let waiting = bench.log.waiting_segments;
        assert!(!held.is_empty() && bench.log.passed_segments >= held.len(), "seed {seed}");
        let free = bench.log.free_segments.len();
        let now = bench.io.now();
        held.iter().for_each(|index| bench.log.unpin(*index, now));
        assert_eq!(bench.log.free_segments.len(), free + held.len(), "seed {seed}");
        let ended = (bench.log.waiting_segments, bench.log.passed_segments);
        assert_eq!(ended, (waiting - held.len(), 0), "seed {seed}");
        assert_eq!(bench.churn(100), 0);
        bench.check();
    }
}

/// Goal: where marked segments are free, and too few to be tested, a write that finds no room is
/// refused: it would wait for ever. Method: as many free segments as are kept, marked as a start
/// marks those that it could not read; a write.
#[test]
fn marked_segments_that_cannot_be_tested_hold_no_write() {
    let mut bench = Bench::new(4);
    while bench.log.free_segments.len() > bench.log.free_kept() {
        bench.log.take_free().expect("there are some");
    }
    for index in bench.log.free_segments.clone() {
        bench.log.segments[index as usize].is_marked = true;
    }
    bench.log.retiring.has_marked = true;
    assert_eq!(bench.put_within(0..1, 7, 2_000), Some(false));
}
