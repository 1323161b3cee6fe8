//! A log of segments under a cache, to count what its cleaner copies and what the cache still hits.
//!
//! How: a record is a slot's number; victims, streams and what becomes of live blocks follow
//! `policy::cleaning`. Actions end in order, at once but for writes of the backing store where that
//! is slow; a victim waits for those while free segments are not scarce. Descriptors, checkpoints
//! and devices are left out: figures are copies per block stored, not the engine's amplification.

use super::host::{call, spec, volume};
use crate::cleaning::{CopyStream, Limits, SegmentView, Segments, score, stream_of_copy};
use crate::*;
use layby_types::*;
use std::collections::{BTreeSet, VecDeque};
use std::vec::Vec;

const SEGMENTS: usize = 160;
const DENSE: usize = 128;
const SLOTS: u32 = (SEGMENTS * DENSE * 7 / 8) as u32;
/// Open segments: of writes, promotions, young and old copies.
const STREAMS: usize = 4;
/// With so many free segments no victim waits: clients' writes would.
const FREE_KEPT: usize = 4;
const LOW_MARK: usize = FREE_KEPT + 2 + SEGMENTS / 80;
/// Victims at most that wait for destages.
const WAITING_MAX: usize = 4;

#[derive(Clone, Default)]
struct Segment {
    opened: u64,
    is_closed: bool,
    live: u32,
    /// Slot and number of each record.
    records: Vec<(u32, u64)>,
}

struct Log {
    segments: Vec<Segment>,
    free: VecDeque<usize>,
    open: [usize; STREAMS],
    /// By slot, where its newest record lies, and its number.
    places: Vec<Option<(usize, u64)>>,
    live: u32,
    seq: u64,
    stored: u64,
    copied: u64,
}

impl Log {
    fn new() -> Log {
        let mut free: VecDeque<usize> = (0..SEGMENTS).collect();
        let open = core::array::from_fn(|_| free.pop_front().expect("more segments than streams"));
        let (segments, places) =
            (std::vec![Segment::default(); SEGMENTS], std::vec![None; SLOTS as usize]);
        Log { segments, free, open, places, live: 0, seq: 0, stored: 0, copied: 0 }
    }

    fn forget(&mut self, slot: u32) {
        if let Some((segment, _)) = self.places[slot as usize].take() {
            self.segments[segment].live -= 1;
            self.live -= 1;
        }
    }

    fn append(&mut self, stream: usize, slot: u32, seq: u64) {
        self.forget(slot);
        let at = self.open[stream];
        let segment = &mut self.segments[at];
        segment.records.push((slot, seq));
        segment.live += 1;
        self.places[slot as usize] = Some((at, seq));
        self.live += 1;
        if segment.records.len() == DENSE {
            segment.is_closed = true;
            let next = self.free.pop_front().expect("cleaning keeps segments free");
            self.open[stream] = next;
            self.segments[next] = Segment { opened: self.seq, ..Segment::default() };
        }
    }

    fn live_records(&self, segment: usize) -> Vec<(u32, u64)> {
        let is_live =
            |(slot, seq): &&(u32, u64)| self.places[*slot as usize] == Some((segment, *seq));
        self.segments[segment].records.iter().filter(is_live).copied().collect()
    }

    fn copy(&mut self, slot: u32, seq: u64) {
        let stream = match stream_of_copy(self.seq - seq, self.live) {
            CopyStream::Young => 2,
            CopyStream::Old => 3,
        };
        self.append(stream, slot, seq);
        self.copied += 1;
    }

    fn victim(&self) -> Option<usize> {
        let view = |segment: &Segment| SegmentView {
            blocks_dense: DENSE as u32,
            blocks_live: segment.live,
            age: self.seq - segment.opened,
        };
        let closed = (0..SEGMENTS).filter(|at| self.segments[*at].is_closed);
        let scored = closed.filter_map(|at| Some((score(view(&self.segments[at]))?, at)));
        scored.max().map(|(_, at)| at)
    }
}

struct Node {
    cache: Cache,
    log: Log,
    rng: Rng,
    now: Nanos,
    requests: u64,
    /// Writes of the backing store in flight, and during which request each ends.
    late: VecDeque<(u64, OpId)>,
    delay: u64,
    /// Victims with blocks that are being destaged, and the slots of those.
    waiting: Vec<usize>,
    destaging: BTreeSet<u32>,
}

impl Node {
    fn new(limits: Limits, delay: u64) -> Node {
        let mut spec = spec([1, 1, SLOTS]);
        spec.levels.drain(..2);
        spec.classes.iter_mut().for_each(|class| class.levels = 1);
        let mut cache = Cache::new(spec).expect("it is sound");
        cache.add_volume(&volume(1, 1, 1 << 20)).expect("it is sound");
        cache.set_cleaning(limits);
        let (log, rng, late) = (Log::new(), Rng::new(1), VecDeque::new());
        let (now, requests, waiting, destaging) = (Nanos::ZERO, 0, Vec::new(), BTreeSet::new());
        Node { cache, log, rng, now, requests, late, delay, waiting, destaging }
    }

    fn request(&mut self, operation: Operation, block: u64) {
        self.now = self.now + Nanos::from_micros(100);
        self.requests += 1;
        let (request, mut actions) = (RequestId(self.requests), Vec::new());
        let call = call(operation, block * 4096, 4096);
        let moment = &mut Moment { now: self.now, rng: &mut self.rng };
        self.cache.on_request(moment, request, VolumeId(1), &call, &mut actions);
        self.perform(actions);
        self.end_late(self.requests);
        self.free_empty();
        while self.log.free.len() <= FREE_KEPT
            || self.log.free.len() + self.waiting.len() < LOW_MARK
        {
            self.empty_one();
        }
    }

    fn end_late(&mut self, until: u64) {
        while self.late.front().is_some_and(|(due, _)| *due <= until) {
            let (_, op) = self.late.pop_front().expect("it was seen");
            let mut actions = Vec::new();
            self.end(op, &mut actions);
            self.perform(actions);
        }
    }

    fn end(&mut self, op: OpId, actions: &mut Vec<Action>) {
        let moment = &mut Moment { now: self.now, rng: &mut self.rng };
        self.cache.on_done(moment, op, Ok(()), actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        let mut queue: VecDeque<Action> = actions.into();
        while let Some(action) = queue.pop_front() {
            match &action {
                Action::WriteLevel { entries, cause, .. } => {
                    let stream = usize::from(*cause == Cause::Promote);
                    for (slot, _) in entries {
                        self.log.seq += 1;
                        self.log.stored += 1;
                        self.log.append(stream, slot.0, self.log.seq);
                    }
                }
                Action::Free { slot, .. } => {
                    self.destaging.remove(&slot.0);
                    self.log.forget(slot.0);
                }
                Action::CleaningKept { slot, .. } => {
                    self.destaging.remove(&slot.0);
                    if let Some((segment, seq)) = self.log.places[slot.0 as usize]
                        && self.waiting.contains(&segment)
                    {
                        self.log.copy(slot.0, seq);
                    }
                }
                _ => {}
            }
            match action.awaits(self.cache.spec()) {
                Some(op) if self.delay > 0 && matches!(action, Action::WriteBacking { .. }) => {
                    self.late.push_back((self.requests + self.delay, op));
                }
                Some(op) => {
                    let mut more = Vec::new();
                    self.end(op, &mut more);
                    queue.extend(more);
                }
                None => {}
            }
        }
    }

    /// Empties a victim, but for the blocks that it waits for.
    fn empty_one(&mut self) {
        let victim = self.log.victim().expect("a level has fewer slots than its log blocks");
        self.log.segments[victim].is_closed = false;
        let live = self.log.live_records(victim);
        let slots: Vec<Slot> = live.iter().map(|(slot, _)| Slot(*slot)).collect();
        let is_full = self.waiting.len() >= WAITING_MAX;
        let free = if is_full { 0 } else { self.log.free.len() as u32 };
        let segments = Segments { free, kept: FREE_KEPT as u32 };
        let step = CleaningStep { level: LevelIndex(0), slots: &slots, segments };
        let (mut answers, mut actions) = (Vec::new(), Vec::new());
        let moment = &mut Moment { now: self.now, rng: &mut self.rng };
        self.cache.on_cleaning(moment, &step, &mut answers, &mut actions);
        let answered = slots.iter().zip(&answers);
        let destaging = answered.filter(|(_, answer)| **answer == Cleaned::Destaging);
        self.destaging.extend(destaging.map(|(slot, _)| slot.0));
        self.waiting.push(victim);
        self.perform(actions);
        for (slot, seq) in self.log.live_records(victim) {
            if !self.destaging.contains(&slot) || is_full {
                self.log.copy(slot, seq);
            }
        }
        self.free_empty();
    }

    /// What has been emptied is free; where free segments are scarce, nothing waits.
    fn free_empty(&mut self) {
        for victim in core::mem::take(&mut self.waiting) {
            if self.log.free.len() <= FREE_KEPT {
                let live = self.log.live_records(victim);
                live.into_iter().for_each(|(slot, seq)| self.log.copy(slot, seq));
            }
            if self.log.segments[victim].live == 0 {
                self.log.free.push_back(victim);
            } else {
                self.waiting.push(victim);
            }
        }
    }
}

/// Copies per block stored, hits per block read, and blocks dropped and destaged by cleaning.
#[derive(Debug, PartialEq)]
struct Figures {
    copies: f64,
    hits: f64,
    dropped: u64,
    destaged: u64,
}

/// Which block is asked for next.
type Load = dyn Fn(&mut Rng) -> u64;

/// The figures of a load in its steady state: half of its requests are not counted.
fn run(limits: Limits, delay: u64, load: &Load) -> Figures {
    let (mut node, mut rng) = (Node::new(limits, delay), Rng::new(7));
    let mut before = [0; 4];
    let figures = |node: &Node| {
        let counters = node.cache.volume_counters(VolumeId(1)).expect("it was added");
        [node.log.copied, node.log.stored, counters.hits[0], counters.misses]
    };
    for round in 0..2 {
        for _ in 0..SLOTS * 6 {
            let block = load(&mut rng);
            let operation = if rng.chance(1, 2) { Operation::Read } else { Operation::Write };
            node.request(operation, block);
        }
        if round == 0 {
            before = figures(&node);
        }
    }
    let after = figures(&node);
    let [copied, stored, hits, misses] = core::array::from_fn(|i| (after[i] - before[i]) as f64);
    node.end_late(u64::MAX);
    assert_eq!(node.cache.pending_drops_count(), 0, "each has ended");
    let counters = node.cache.level_view(LevelIndex(0), node.now).counters;
    Figures {
        copies: copied / stored,
        hits: hits / (hits + misses),
        dropped: counters.cleaning_dropped,
        destaged: counters.cleaning_destaged,
    }
}

fn even(rng: &mut Rng, footprint: f64) -> u64 {
    rng.below((f64::from(SLOTS) * footprint) as u64)
}

/// Nine in ten requests go to a tenth of the blocks.
fn hot(rng: &mut Rng, footprint: f64) -> u64 {
    let blocks = (f64::from(SLOTS) * footprint) as u64;
    let hot = blocks / 10;
    if rng.chance(9, 10) { rng.below(hot) } else { hot + rng.below(blocks - hot) }
}

fn zipf(rng: &mut Rng) -> u64 {
    let blocks = f64::from(SLOTS) * 4.0;
    (blocks.powf(rng.unit()) - 1.0) as u64
}

const OFF: Limits = Limits { cold_percent: 0, ..Limits::DEFAULT };

/// Goal: a footprint that fits loses nothing to a cleaner that may drop. Method: even and skewed
/// requests to nine tenths of a level's slots, with dropping on and off: every figure is the same.
#[test]
fn what_fits_is_never_dropped() {
    let loads: [&Load; 2] = [&|rng| even(rng, 0.9), &|rng| hot(rng, 0.9)];
    for load in loads {
        let [off, on] = [OFF, Limits::DEFAULT].map(|limits| run(limits, 0, load));
        assert_eq!(off, on);
        assert_eq!((on.dropped, on.destaged), (0, 0));
    }
}

/// Goal: where the footprint is larger than the level a cleaner that drops copies far less, for few
/// hits, though destages take time. Method: loads of three shapes, a backing store that ends a
/// write twenty requests later, with dropping on and off.
#[test]
fn dropping_spares_copies() {
    let loads: [(&Load, f64, f64); 3] = [
        (&|rng| even(rng, 1.5), 0.45, 0.025),
        (&|rng| hot(rng, 2.0), 0.8, 0.001),
        (&zipf, 0.5, 0.01),
    ];
    for (number, (load, copies, hits)) in loads.into_iter().enumerate() {
        let [off, on] = [OFF, Limits::DEFAULT].map(|limits| run(limits, 20, load));
        assert!(on.copies <= off.copies * copies, "{number}: {off:?}, {on:?}");
        assert!(on.hits >= off.hits - hits, "{number}: {off:?}, {on:?}");
        assert!(off.dropped == 0 && on.dropped > 0 && on.destaged > 0);
    }
}
