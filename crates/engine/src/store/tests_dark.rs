//! Segments of a log whose header and descriptors cannot be read.
//!
//! How: random appends, with checkpoints whose answers are late, so that they name what was written
//! meanwhile, too; then power loss. Of each segment in turn pages cannot be read at a start.
//! Invariant: what a start calls decided is the newest version or an error. Cost: some seconds.

use super::layout::SEQ_MAX;
use super::log::SegmentState;
use super::log_geometry::LogGeometry;
use super::log_layout::{BatchHeader, NOWHERE, SegmentHeader, Trailer};
use super::log_void::TRIES_MAX;
use super::tests_both::for_each_seed;
use super::tests_log::{content, key, open};
use super::{AppendEntry, LogStore, SlotInfo, SlotView, StoreEvent, Stream, Ticket};
use crate::check::{StoreKind, check_store};
use crate::io::{Buffer, CrashMode, DiskId, Image, Io, OperationKind, SimIo};
use layby_types::{ErrorKind, Nanos, Rng, Seq, Slot};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::BTreeMap;

const SEEDS: u64 = 60;
const SLOTS: u64 = 40;
const BLOCK: u64 = 4096;
const TURNS_MAX: u32 = 10_000;

/// Each slot holds the block of its number, dirty.
struct Numbered;

impl SlotView for Numbered {
    fn slot(&self, slot: Slot) -> Option<SlotInfo> {
        Some(SlotInfo { key: key(slot.0.into()), dirty: true })
    }
}

/// A log, and what was written to it.
struct Bench {
    io: SimIo,
    disk: DiskId,
    log: LogStore,
    rng: Rng,
    newest: BTreeMap<u32, u8>,
    version: u8,
    /// What checkpoints have asked and was not answered yet.
    asked: Vec<u64>,
    /// Turns that an answer takes, on average.
    delay: u64,
    /// Structures that the last start has named.
    damaged: usize,
}

/// A segment as its header on the disk says.
struct Found {
    index: u32,
    header: SegmentHeader,
    /// Where its descriptors lie, in blocks.
    descriptors: Vec<u64>,
    /// The block behind its first batch.
    first_end: u32,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let (io, disk, log) = super::tests_log::fresh(seed);
        let (rng, newest, asked) = (Rng::new(seed), BTreeMap::new(), Vec::new());
        Bench { io, disk, log, rng, newest, version: 0, asked, delay: 1 + seed % 30, damaged: 0 }
    }

    fn turn(&mut self) -> Vec<StoreEvent> {
        let (mut done, mut events) = (Vec::new(), Vec::new());
        self.io.wait(Nanos(self.io.now().0 + 1_000_000), &mut done);
        done.into_iter().for_each(|done| self.log.on_io(&mut self.io, done));
        let now = self.io.now();
        self.log.on_tick(&mut self.io, now, &Numbered);
        self.log.take_events(&mut events);
        for event in &events {
            if let StoreEvent::NeedPeerSync { id, .. } = event {
                self.asked.push(*id);
            }
        }
        if self.rng.chance(1, self.delay) {
            self.asked.drain(..).for_each(|id| self.log.peer_synced(id));
        }
        events
    }

    /// Turns until one of them has such an event.
    fn wait(&mut self, is_it: impl Fn(&StoreEvent) -> bool) {
        let has_come = (0..TURNS_MAX).any(|_| self.turn().iter().any(&is_it));
        assert!(has_come, "it never came");
    }

    /// Appends a version of some blocks by one call, and waits for it.
    fn put(&mut self, first: u32, count: u32) {
        self.version = self.version % 250 + 1;
        let entry =
            |slot: u32| AppendEntry { slot: Slot(slot), key: key(slot.into()), dirty: true };
        let entries: Vec<_> = (first..first + count).map(entry).collect();
        let data = content(self.version).repeat(entries.len());
        self.log.append(&mut self.io, Ticket(1), Stream::Write, &entries, &data, true);
        self.wait(|event| matches!(event, StoreEvent::Stored { result: Ok(()), .. }));
        self.newest.extend((first..first + count).map(|slot| (slot, self.version)));
    }

    fn checkpoint(&mut self) {
        self.log.checkpoint_now(false);
        self.wait(|event| matches!(event, StoreEvent::CheckpointDone { .. }));
    }

    /// A clean stop.
    fn stop(&mut self) {
        self.log.checkpoint_now(true);
        self.wait(|event| matches!(event, StoreEvent::CheckpointDone { clean: true, .. }));
    }

    /// Most calls write a few blocks again, so that others become old ones; `checkpoints` of a
    /// hundred begin a checkpoint, too.
    fn run(&mut self, steps: u64, checkpoints: u64) {
        for _ in 0..steps {
            let (count, most) =
                (1 + self.rng.below(3), if self.rng.chance(1, 3) { SLOTS } else { 6 });
            let first = self.rng.below(most - count);
            self.put(first as u32, count as u32);
            if self.rng.chance(checkpoints, 100) {
                self.log.checkpoint_now(false);
            }
        }
    }

    fn cut(&mut self) -> Image {
        self.io.crash(CrashMode::KeepAll);
        self.asked.clear();
        self.io.image(self.disk)
    }

    /// All can be read again.
    fn put_back(&mut self, image: &mut Image) {
        self.io.replace_disk(self.disk);
        let next = core::mem::replace(image, self.io.image(self.disk));
        self.io.put_image(self.disk, next);
        *image = self.io.image(self.disk);
    }

    fn geometry(&self) -> LogGeometry {
        self.log.geometry
    }

    /// The newest complete checkpoint.
    fn trailer(&self) -> Trailer {
        let bytes = self.io.peek(self.disk);
        let pages = bytes.chunks_exact(BLOCK as usize);
        let found = pages.filter_map(|page| Trailer::decode(page, self.log.instance));
        found.max_by_key(|trailer| trailer.seq).expect("there was a checkpoint")
    }

    fn segments(&self) -> Vec<Found> {
        let bytes = self.io.peek(self.disk);
        let page = |block: u64| &bytes[(block * BLOCK) as usize..][..BLOCK as usize];
        let mut found = Vec::new();
        for index in 0..self.geometry().segment_count {
            let first = u64::from(self.geometry().segment_first(index));
            let Some(header) = SegmentHeader::decode(page(first), self.log.instance, index) else {
                continue;
            };
            let decode = |at: u64| {
                BatchHeader::decode(page(at), self.log.instance, header.generation)
                    .filter(|batch| u64::from(batch.location) == at)
            };
            let blocks = first..first + u64::from(self.geometry().segment_blocks);
            let descriptors: Vec<_> = blocks.filter(|at| decode(*at).is_some()).collect();
            let Some(batch) = decode(first + 1) else { continue };
            let first_end = batch.location + 1 + u32::from(batch.blocks);
            found.push(Found { index, header, descriptors, first_end });
        }
        found
    }

    fn lose(&mut self, blocks: &[u64]) {
        blocks.iter().for_each(|at| self.io.fail_reads(self.disk, at * BLOCK, BLOCK));
    }

    /// Whether a live block lies in a segment, behind a block of it.
    fn is_live_behind(&self, index: u32, block: u32) -> bool {
        let places = self.log.slots.iter().map(|place| place.location);
        let mut here = places.filter(|at| self.geometry().segment_of(*at) == Some(index));
        here.any(|at| at >= block)
    }

    /// The end of a read, while nothing else goes on.
    fn read_end(&mut self) -> Result<Buffer, ErrorKind> {
        for _ in 0..TURNS_MAX {
            let (mut done, mut events) = (Vec::new(), Vec::new());
            self.io.wait(Nanos::NEVER, &mut done);
            done.into_iter().for_each(|done| self.log.on_io(&mut self.io, done));
            self.log.take_events(&mut events);
            for event in events {
                if let StoreEvent::Read { result, .. } = event {
                    return result.map_err(|failure| failure.kind);
                }
            }
        }
        panic!("a read ends");
    }

    /// A start; up to which seq nothing is decided. All else is as it was written, or an error.
    fn start(&mut self) -> Option<Seq> {
        let (log, recovered) = open(&mut self.io, self.disk);
        (self.log, self.damaged) = (log, recovered.damaged.len());
        let decided = recovered.entries.iter().filter(|it| Some(it.seq) > recovered.undecided);
        let decided: Vec<_> = decided.map(|entry| (entry.slot, entry.key)).collect();
        for (slot, of) in &decided {
            self.log.read(&mut self.io, Ticket(2), &[*slot]);
            let bytes = self.read_end().map(|bytes| bytes[0]);
            let newest = self.newest[&(of.block().0 as u32)];
            assert!(bytes.is_err() || bytes == Ok(newest), "{of:?}: {bytes:?}, not {newest}");
        }
        let all = recovered.undecided.is_some() || decided.len() == self.newest.len();
        assert!(all, "{} of {} blocks", decided.len(), self.newest.len());
        recovered.undecided
    }
}

/// Goal: an old segment that lost its header and first descriptor leaves nothing undecided, and one
/// that may hold something newer than the checkpoint leaves all so. Method: random histories; each
/// segment in turn loses its first two pages, or its header and all descriptors.
#[test]
fn only_what_may_be_newer_is_undecided() {
    let (old, dark) = (Cell::new(0), Cell::new(0));
    let counts = std::panic::AssertUnwindSafe((&old, &dark));
    for_each_seed(SEEDS, |seed| {
        let (old, dark) = *counts;
        let mut bench = Bench::new(seed);
        bench.run(40 + 3 * seed, 6);
        bench.checkpoint();
        bench.run(seed % 12, 20);
        let mut image = bench.cut();
        let (trailer, segments) = (bench.trailer(), bench.segments());
        let is_open = |index: u32| trailer.open.iter().any(|open| open.index == index);
        for found in &segments {
            bench.put_back(&mut image);
            assert_eq!(bench.start(), None, "all can be read");
            let is_live = bench.is_live_behind(found.index, found.first_end);
            let is_old = found.header.generation <= trailer.seq && !is_open(found.index);
            let header = u64::from(bench.geometry().segment_first(found.index));
            bench.lose(&[header, header + 1]);
            let undecided = bench.start();
            if is_old && is_live {
                assert_eq!(undecided, None, "segment {} was closed", found.index);
                old.set(old.get() + 1);
            }
            bench.lose(&found.descriptors);
            let undecided = bench.start();
            if !is_old {
                assert_eq!(undecided, Some(SEQ_MAX), "segment {} may be newer", found.index);
                dark.set(dark.get() + 1);
            }
        }
    });
    let is_alone = std::env::var("SEED").is_ok();
    assert!(is_alone || old.get() > SEEDS && dark.get() > SEEDS, "{old:?} old, {dark:?} dark");
}

/// A log of which one segment is old, and holds blocks that no one has written since: its index.
fn with_old_segment(seed: u64) -> (Bench, u32) {
    let mut bench = Bench::new(seed);
    bench.delay = 1;
    for slot in 20..23 {
        bench.put(slot, 1);
    }
    (0..10).for_each(|_| bench.put(1, 1));
    bench.checkpoint();
    let at = bench.log.slots[22].location;
    let index = bench.geometry().segment_of(at).expect("it was stored");
    assert!(bench.trailer().open.iter().all(|open| open.index != index), "it is full");
    (bench, index)
}

/// Goal: an old segment of which nothing but data can be read leaves nothing undecided where an
/// increment has left its blocks as they were. Method: such a segment, an increment, younger
/// records, power loss; header and descriptors cannot be read.
#[test]
fn what_an_increment_leaves_out_shows_an_old_segment() {
    for_each_seed(4, |seed| {
        let (mut bench, index) = with_old_segment(seed);
        bench.put(1, 1);
        bench.checkpoint();
        assert_eq!(bench.log.counters().checkpoint_increments, 1);
        bench.put(2, 2);
        let segments = bench.segments();
        bench.cut();
        let found = segments.iter().find(|found| found.index == index).expect("it has a header");
        bench.lose(&[u64::from(bench.geometry().segment_first(index))]);
        bench.lose(&found.descriptors);
        assert_eq!(bench.start(), None);
    });
}

/// Goal: where a newer checkpoint may be lost, a segment that an older one names may have been used
/// anew. Method: an old segment, an increment; the increment's trailer cannot be read, nor the
/// segment's header and first descriptor.
#[test]
fn a_lost_checkpoint_leaves_old_segments_dark() {
    for_each_seed(4, |seed| {
        let (mut bench, index) = with_old_segment(seed);
        bench.put(1, 1);
        bench.checkpoint();
        let bytes = bench.io.peek(bench.disk);
        let pages = (0u64..).zip(bytes.chunks_exact(BLOCK as usize));
        let newest = bench.trailer();
        let is_it =
            |page: &[u8]| Trailer::decode(page, bench.log.instance).as_ref() == Some(&newest);
        let trailer: Vec<_> = pages.filter(|(_, it)| is_it(it)).map(|(at, _)| at).collect();
        assert_eq!(trailer.len(), 2, "it is there twice");
        bench.cut();
        let header = u64::from(bench.geometry().segment_first(index));
        bench.lose(&trailer);
        bench.lose(&[header, header + 1]);
        assert_eq!(bench.start(), Some(SEQ_MAX));
    });
}

/// Goal: a dark segment is dark at one start only: what is written behind that one's checkpoint
/// stays decided. Method: the newest segment loses its header and descriptors; a start drops all,
/// makes its checkpoint and rests; power loss. Where the segment can be written no more, it is
/// retired once batches elsewhere have gone well, and never read again.
#[test]
fn a_dark_segment_is_rewritten_behind_the_checkpoint() {
    for (seed, is_broken) in [(0, false), (1, true), (2, false), (3, true)] {
        let (mut bench, _) = with_old_segment(seed);
        (0..7).for_each(|_| bench.put(2, 2));
        bench.cut();
        let newest = bench.segments().into_iter().max_by_key(|found| found.header.generation);
        let newest = newest.expect("segments were opened");
        let first = u64::from(bench.geometry().segment_first(newest.index));
        bench.lose(&[first]);
        bench.lose(&newest.descriptors);
        if is_broken {
            let length = u64::from(bench.geometry().segment_blocks) * BLOCK;
            bench.io.break_range(bench.disk, first * BLOCK, length);
        }
        assert_eq!(bench.start(), Some(SEQ_MAX), "seed {seed}");
        let written = bench.io.peek(bench.disk);
        // As the cache does with what is undecided.
        let held = (0..bench.log.slot_count()).map(Slot);
        let held: Vec<_> =
            held.filter(|it| bench.log.slots[it.0 as usize].location != NOWHERE).collect();
        held.into_iter().for_each(|slot| bench.log.free(slot));
        let page = (first * BLOCK) as usize..((first + 1) * BLOCK) as usize;
        (0..20).for_each(|_| drop(bench.turn()));
        let now = bench.io.peek(bench.disk);
        assert_eq!(now[page.clone()], written[page], "before the checkpoint it is the proof");
        bench.newest.clear();
        bench.checkpoint();
        if is_broken {
            (0..30).for_each(|_| bench.put(3, 3));
        }
        (0..1000).for_each(|_| drop(bench.turn()));
        assert_eq!(bench.log.segments_retired(), usize::from(is_broken), "seed {seed}");
        bench.cut();
        assert_eq!(bench.start(), None, "seed {seed}");
    }
}

/// Goal: a segment that has lost its header and first descriptor alone is rewritten, too: once its
/// other batches are overwritten, the next start would find nothing that says what it held. Method:
/// as above; the batches behind can be read.
#[test]
fn a_segment_without_its_first_descriptor_is_rewritten() {
    for seed in 0..4 {
        let (mut bench, _) = with_old_segment(seed);
        (0..7).for_each(|_| bench.put(2, 2));
        bench.cut();
        let newest = bench.segments().into_iter().max_by_key(|found| found.header.generation);
        let newest = newest.expect("segments were opened");
        let first = u64::from(bench.geometry().segment_first(newest.index));
        assert!(newest.descriptors.len() > 1, "there are batches behind the first one");
        bench.lose(&[first, newest.descriptors[0]]);
        bench.start();
        let held = (0..bench.log.slot_count()).map(Slot);
        let held: Vec<_> =
            held.filter(|it| bench.log.slots[it.0 as usize].location != NOWHERE).collect();
        held.into_iter().for_each(|slot| bench.log.free(slot));
        bench.newest.clear();
        bench.checkpoint();
        (0..1000).for_each(|_| drop(bench.turn()));
        bench.cut();
        assert_eq!(bench.start(), None, "seed {seed}");
    }
}

/// Goal: a segment that a start has judged old stays decided at the next one, whose checkpoint no
/// longer shows its age. Method: as where an increment shows it; two starts, the first with its
/// full checkpoint, with and without a crash right behind the header's write.
#[test]
fn a_segment_once_judged_old_stays_old() {
    for_each_seed(8, |seed| {
        let (mut bench, index) = with_old_segment(seed);
        bench.put(1, 1);
        bench.checkpoint();
        bench.put(2, 2);
        let segments = bench.segments();
        bench.cut();
        let found = segments.iter().find(|found| found.index == index).expect("it has a header");
        bench.lose(&[u64::from(bench.geometry().segment_first(index))]);
        bench.lose(&found.descriptors);
        assert_eq!(bench.start(), None);
        if seed % 2 == 1 {
            bench.log.checkpoint_now(false);
            (0..seed).for_each(|_| drop(bench.turn()));
        } else {
            bench.checkpoint();
        }
        bench.cut();
        assert_eq!(bench.start(), None, "judged by the first start");
        bench.checkpoint();
        bench.cut();
        assert_eq!(bench.start(), None);
    });
}

/// Goal: a segment without header and descriptors at the start behind a clean stop is named, and
/// leaves nothing undecided at the start behind that one. Method: a clean stop; each segment in
/// turn; a start, its checkpoint, some turns, more of which may have been written; power loss.
#[test]
fn what_a_clean_start_cannot_read_stays_decided() {
    for_each_seed(12, |seed| {
        let mut bench = Bench::new(seed);
        bench.delay = 1;
        bench.run(40 + 3 * seed, 6);
        bench.stop();
        let mut image = bench.cut();
        let (segments, newest) = (bench.segments(), bench.newest.clone());
        for found in &segments {
            bench.put_back(&mut image);
            bench.newest.clone_from(&newest);
            bench.lose(&[u64::from(bench.geometry().segment_first(found.index))]);
            bench.lose(&found.descriptors);
            assert_eq!(bench.start(), None, "nothing follows a clean stop");
            assert_eq!(bench.damaged, 1, "segment {} is named", found.index);
            bench.checkpoint();
            (0..seed % 4).for_each(|_| drop(bench.turn()));
            bench.put(2, 1 + seed as u32 % 2);
            bench.cut();
            assert_eq!(bench.start(), None, "segment {}", found.index);
        }
    });
}

/// Goal: a clean stop says nothing of what was written behind it by a start whose checkpoint
/// failed. Method: a clean stop, a start, two segments filled without a checkpoint; power loss; the
/// second one loses header and descriptors.
#[test]
fn writes_behind_a_clean_checkpoint_may_be_dark() {
    for_each_seed(8, |seed| {
        let (mut bench, _) = with_old_segment(seed);
        bench.stop();
        bench.cut();
        assert_eq!(bench.start(), None);
        let generations = |bench: &Bench| bench.segments().into_iter().map(|it| it.header);
        let before = generations(&bench).map(|it| it.generation).max().expect("there are some");
        while generations(&bench).filter(|it| it.generation > before).count() < 2 {
            bench.put(2, 2);
        }
        bench.cut();
        let newest = bench.segments().into_iter().max_by_key(|found| found.header.generation);
        let newest = newest.expect("segments were opened");
        bench.lose(&[u64::from(bench.geometry().segment_first(newest.index))]);
        bench.lose(&newest.descriptors);
        assert_eq!(bench.start(), Some(SEQ_MAX));
    });
}

/// Goal: an old segment that becomes free loses nothing by a power cut before it is overwritten.
/// Method: the old segment of an increment; a start, which supersedes all in it; its checkpoint
/// frees it; cut right behind that.
#[test]
fn an_old_segment_is_decided_until_it_is_overwritten() {
    for_each_seed(8, |seed| {
        let (mut bench, index) = with_old_segment(seed);
        bench.put(1, 1);
        bench.checkpoint();
        let segments = bench.segments();
        bench.cut();
        let found = segments.iter().find(|found| found.index == index).expect("it has a header");
        bench.lose(&[u64::from(bench.geometry().segment_first(index))]);
        bench.lose(&found.descriptors);
        assert_eq!(bench.start(), None);
        let geometry = bench.geometry();
        let is_there = |bench: &Bench, slot: &u32| {
            let at = bench.log.slots[*slot as usize].location;
            geometry.segment_of(at).filter(|_| at != NOWHERE) == Some(index)
        };
        let held: Vec<_> = (0..SLOTS as u32).filter(|slot| is_there(&bench, slot)).collect();
        for slot in held {
            bench.put(slot, 1);
        }
        bench.checkpoint();
        bench.cut();
        assert_eq!(bench.start(), None);
    });
}

/// A log whose start could not read the first blocks of two old segments, as an increment shows or
/// a clean stop; from then on all can be read. With these segments.
fn with_two_unread(seed: u64, is_clean: bool) -> (Bench, [u32; 2]) {
    let mut bench = Bench::new(seed);
    bench.delay = 1;
    for first in [20, 30] {
        (first..first + 3).for_each(|slot| bench.put(slot, 1));
        (0..9).for_each(|_| bench.put(1, 1));
    }
    bench.put(1, 1);
    bench.checkpoint();
    bench.put(1, 1);
    if is_clean {
        bench.stop();
    } else {
        bench.checkpoint();
        bench.put(2, 2);
    }
    let at = |slot: usize| bench.geometry().segment_of(bench.log.slots[slot].location);
    let old = [22, 32].map(|slot| at(slot).expect("it was stored"));
    assert_ne!(old[0], old[1]);
    let segments = bench.segments();
    let mut image = bench.cut();
    for found in segments.iter().filter(|found| old.contains(&found.index)) {
        bench.lose(&[u64::from(bench.geometry().segment_first(found.index))]);
        bench.lose(&found.descriptors);
    }
    assert_eq!(bench.start(), None, "they are old");
    bench.put_back(&mut image);
    (bench, old)
}

/// Goal: where free segments are few at a start, headers of old segments are written anew before
/// cleaning takes one of these as its victim, whose batches it could not tell; then it goes on.
/// Method: two such segments, which can be read meanwhile; few free ones, with the checkpoint that
/// follows a crash, or without one behind a clean stop; then a crash.
#[test]
fn headers_are_written_before_cleaning_takes_their_segments() {
    for_each_seed(16, |seed| {
        let is_clean = seed % 2 == 1;
        let (mut bench, old) = with_two_unread(seed, is_clean);
        while bench.log.free_segments.len() > bench.log.free_kept() + 1 {
            bench.log.take_free().expect("there are some");
        }
        if !is_clean {
            bench.log.checkpoint_now(false);
        }
        let are_written = |bench: &Bench| {
            let headers = &bench.log.checkpoint.headers;
            headers.is_idle() && !headers.are_wanted()
        };
        let is_damaged = |bench: &Bench| {
            let state = |index: u32| bench.log.segments[index as usize].state;
            old.iter().any(|index| state(*index) == SegmentState::Damaged)
        };
        let has_ended = (0..1000).any(|_| {
            bench.turn();
            assert!(are_written(&bench) || !is_damaged(&bench), "cleaning came first");
            are_written(&bench)
        });
        assert!(has_ended, "the headers are never written");
        (0..1000).for_each(|_| drop(bench.turn()));
        assert!(bench.log.counters().segments_cleaned > 0, "cleaning goes on");
        bench.cut();
        assert_eq!(bench.start(), None);
    });
}

/// Goal: a header that the device has refused, or that was written while a sync failed, is written
/// again, a few times at most. Method: two headers; the write of the first meets a failed sync, or
/// fails once, or always; how many blocks are written, and a crash behind the checkpoint.
#[test]
fn a_header_written_in_vain_is_written_again() {
    for (refusals, is_doubtful) in [(0, false), (0, true), (1, false), (TRIES_MAX, false)] {
        let (mut bench, _) = with_two_unread(1, false);
        let before = bench.log.counters().bytes_written;
        for _ in 0..refusals {
            bench.io.fail_next(bench.disk, OperationKind::Write, Errno::IO);
        }
        bench.log.checkpoint_now(false);
        if is_doubtful {
            while bench.log.checkpoint.headers.is_idle() {
                bench.turn();
            }
            bench.log.note_sync_failed();
        }
        bench.wait(|event| matches!(event, StoreEvent::CheckpointDone { .. }));
        let blocks = (bench.log.counters().bytes_written - before) / BLOCK;
        let again = u64::from(refusals.min(TRIES_MAX - 1)) + u64::from(is_doubtful);
        assert_eq!(blocks, 2 + again, "{refusals} refusals");
        bench.cut();
        assert_eq!(bench.start(), None, "{refusals} refusals");
    }
}

/// Goal: `check` takes no header that was written anew for sound where the checkpoint is gone that
/// showed the segment's age, as a start does. Method: such headers, of segments whose descriptors
/// are noise, with the checkpoint and without it.
#[test]
fn check_names_headers_whose_checkpoint_is_lost() {
    let (mut bench, old) = with_two_unread(1, false);
    bench.log.checkpoint_now(false);
    while bench.log.checkpoint.headers.are_wanted() {
        bench.turn();
    }
    let mut bytes = bench.io.peek(bench.disk);
    let trailer = bench.trailer();
    let page = |at: u64| (at * BLOCK) as usize..((at + 1) * BLOCK) as usize;
    for index in old {
        let first = u64::from(bench.geometry().segment_first(index));
        let batches = first + 1..first + u64::from(bench.geometry().segment_blocks);
        batches.for_each(|at| bytes[page(at)].fill(0x55));
    }
    let names = |bytes: &[u8]| {
        let length = bytes.len() as u64;
        let report = check_store(bytes, "ssd", 0, length, StoreKind::Log, false);
        let is_it = |sentence: &str| sentence.contains("written anew");
        report.problems.iter().filter(|problem| is_it(&problem.sentence)).count()
    };
    assert_eq!(names(&bytes), 0);
    for at in 0..bytes.len() as u64 / BLOCK {
        if Trailer::decode(&bytes[page(at)], bench.log.instance).as_ref() == Some(&trailer) {
            bytes[page(at)].fill(0x55);
        }
    }
    assert_eq!(names(&bytes), 2);
}
