//! Increments of checkpoints: cut at any moment, damaged, refused, left over from an earlier use.

use super::log_checkpoint::DOUBLINGS_MAX;
use super::log_layout::Trailer;
use super::tests_both::for_each_seed;
use super::tests_log::{config, content, key};
use super::{
    AppendEntry, LogConfig, LogStore, PeerScope, Recovered, SeqSource, SlotInfo, SlotView,
    StoreEvent, Stream, Ticket,
};
use crate::check::{ReadAt, StoreKind, check_store};
use crate::io::{CrashMode, DiskId, Io, IoOperation, SimIo, run_alone};
use layby_types::{ErrorKind, Nanos, Rng, Seq, Slot};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;

const LENGTH: u64 = 8 << 20;
const BLOCK: usize = 4096;
/// Slots in use: two chunks of a full checkpoint.
const SLOTS: u32 = 200;

/// What a slot holds: its block has the slot's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    byte: u8,
    dirty: bool,
}

#[derive(Default)]
struct Held(BTreeMap<u32, Version>);

impl SlotView for Held {
    fn slot(&self, slot: Slot) -> Option<SlotInfo> {
        let dirty = self.0.get(&slot.0)?.dirty;
        Some(SlotInfo { key: key(slot.0.into()), dirty })
    }
}

/// What the level above does when a checkpoint asks it for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Answers,
    /// Its frees are not durable.
    Fails,
    /// It had stored the block of slot 7 before, and frees it in the log.
    Supersedes,
    /// So many slots change right behind its answer.
    Changes(u32),
}

/// A log, its cache, and what a start may find.
struct Bench {
    io: SimIo,
    disk: DiskId,
    log: LogStore,
    held: Held,
    /// What the call under way changes: the slot, and what is there if it was done.
    pending: Option<(u32, Option<u8>)>,
    /// What is durable, by slot.
    durable: BTreeMap<u32, u8>,
    /// Whether the last complete checkpoint says of a slot that it is dirty; none where a record
    /// behind it does.
    said: BTreeMap<u32, bool>,
    /// The power fails after so many turns.
    turns: u32,
    peer: Peer,
    /// Of each round's checkpoint, whether it was an increment.
    are_increments: Vec<bool>,
}

fn log_config(disk: DiskId) -> LogConfig {
    let mut config = config(disk);
    config.region.length = LENGTH;
    config
}

fn open(io: &mut SimIo, disk: DiskId) -> (LogStore, Recovered) {
    let opened = LogStore::open(io, log_config(disk), SeqSource::new(Seq(1)));
    opened.expect("a sound log opens")
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let mut io = SimIo::new(seed);
        io.set_stepwise(seed % 2 == 1);
        let disk = io.add_disk("ssd", LENGTH);
        LogStore::format(&mut io, &log_config(disk), 1 + seed).expect("the region is large");
        let (log, _) = open(&mut io, disk);
        let (held, durable, said) = (Held::default(), BTreeMap::new(), BTreeMap::new());
        let (turns, are_increments) = (u32::MAX, Vec::new());
        let (pending, peer) = (None, Peer::Answers);
        Bench { io, disk, log, held, pending, durable, said, turns, peer, are_increments }
    }

    /// Waits for an event; none where the power has failed before.
    fn wait<T>(&mut self, of: impl Fn(&StoreEvent) -> Option<T>) -> Option<T> {
        let mut found = None;
        while found.is_none() {
            self.turns = self.turns.checked_sub(1)?;
            let (mut done, mut events) = (Vec::new(), Vec::new());
            self.io.wait(Nanos(self.io.now().0 + 20_000_000), &mut done);
            done.into_iter().for_each(|done| self.log.on_io(&mut self.io, done));
            let now = self.io.now();
            self.log.on_tick(&mut self.io, now, &self.held);
            self.log.take_events(&mut events);
            for event in events {
                found = found.or(of(&event));
                if let StoreEvent::NeedPeerSync { id, scope } = event {
                    self.answer(id, scope);
                }
            }
        }
        found
    }

    fn answer(&mut self, id: u64, scope: PeerScope) {
        match (self.peer, scope) {
            (Peer::Fails, PeerScope::Frees) => return self.log.peer_failed(id),
            (Peer::Supersedes, PeerScope::Stores) => {
                self.held.0.remove(&7);
                self.durable.remove(&7);
                self.log.free(Slot(7));
            }
            _ => {}
        }
        self.log.peer_synced(id);
        if let (Peer::Changes(slots), PeerScope::Stores) = (self.peer, scope) {
            (0..slots).for_each(|slot| self.log.on_dirty_changed(Slot(slot)));
        }
    }

    fn put(&mut self, slot: u32, byte: u8) -> Option<()> {
        self.pending = Some((slot, Some(byte)));
        let entry = AppendEntry { slot: Slot(slot), key: key(slot.into()), dirty: true };
        let data = content(byte);
        self.log.append(&mut self.io, Ticket(1), Stream::Write, &[entry], &data, true);
        let stored = |event: &StoreEvent| match event {
            StoreEvent::Stored { result, .. } => Some(*result),
            _ => None,
        };
        let result = self.wait(stored)?;
        result.expect("a sound disk");
        self.held.0.insert(slot, Version { byte, dirty: true });
        self.durable.insert(slot, byte);
        self.said.remove(&slot);
        self.pending = None;
        Some(())
    }

    /// The block leaves the level, and a newer version goes past it.
    fn evict(&mut self, slot: u32) -> Option<()> {
        self.pending = Some((slot, None));
        self.held.0.remove(&slot);
        self.log.free(Slot(slot));
        self.log.forget(key(slot.into()));
        self.log.sync(&mut self.io, Ticket(2));
        let synced = |event: &StoreEvent| matches!(event, StoreEvent::Synced { .. }).then_some(());
        self.wait(synced)?;
        self.durable.remove(&slot);
        self.said.remove(&slot);
        self.pending = None;
        Some(())
    }

    fn set_dirty(&mut self, slot: u32, dirty: bool) {
        if let Some(version) = self.held.0.get_mut(&slot) {
            version.dirty = dirty;
            self.said.remove(&slot);
            self.log.on_dirty_changed(Slot(slot));
        }
    }

    /// Makes a checkpoint; whether it was an increment.
    fn checkpoint(&mut self) -> Option<bool> {
        let before = self.log.counters().checkpoint_increments;
        self.log.checkpoint_now(false);
        let done =
            |event: &StoreEvent| matches!(event, StoreEvent::CheckpointDone { .. }).then_some(());
        self.wait(done)?;
        self.said = self.held.0.iter().map(|(slot, version)| (*slot, version.dirty)).collect();
        Some(self.log.counters().checkpoint_increments > before)
    }

    fn fill(&mut self) -> Option<()> {
        (0..SLOTS).try_for_each(|slot| self.put(slot, 1))
    }

    /// Some changes of each kind, then a checkpoint.
    fn round(&mut self, rng: &mut Rng) -> Option<()> {
        for _ in 0..4 {
            let slot = rng.below(SLOTS.into()) as u32;
            match rng.below(4) {
                0 if self.held.0.contains_key(&slot) => self.evict(slot)?,
                1 => self.set_dirty(slot, false),
                2 => self.set_dirty(slot, true),
                _ => self.put(slot, 2 + rng.below(250) as u8)?,
            }
        }
        let is_increment = self.checkpoint()?;
        self.are_increments.push(is_increment);
        Some(())
    }

    /// Cuts the power, opens the log again, and compares it with what is durable.
    fn cut(&mut self, mode: CrashMode) {
        self.io.crash(mode);
        let report =
            check_store(&self.io.peek(self.disk)[..], "ssd", 0, LENGTH, StoreKind::Log, true);
        assert!(report.is_sound(), "{:?}", report.problems);
        let (log, recovered) = open(&mut self.io, self.disk);
        self.log = log;
        assert!(recovered.undecided.is_none() && recovered.damaged.is_empty());
        let mut found = BTreeMap::new();
        for entry in &recovered.entries {
            let slot = entry.key.block().0 as u32;
            assert_eq!(entry.slot.0, slot, "each block has its slot");
            let said = self.said.get(&slot).filter(|_| self.pending.is_none_or(|it| it.0 != slot));
            assert!(said.is_none_or(|dirty| *dirty == entry.dirty), "slot {slot}: {said:?}");
            found.insert(slot, self.read(slot));
        }
        for slot in 0..SLOTS {
            let (found, durable) = (found.get(&slot), self.durable.get(&slot));
            let pending = self.pending.filter(|pending| pending.0 == slot);
            let is_known = found == durable || pending.is_some_and(|it| found == it.1.as_ref());
            assert!(is_known, "slot {slot} has {found:?}, {durable:?} is durable, {pending:?}");
        }
        self.pending = None;
        self.durable = found.clone();
        let version = |entry: &super::RecoveredEntry| {
            (entry.slot.0, Version { byte: found[&entry.slot.0], dirty: entry.dirty })
        };
        self.held.0 = recovered.entries.iter().map(version).collect();
        self.said = self.held.0.iter().map(|(slot, version)| (*slot, version.dirty)).collect();
    }

    fn read(&mut self, slot: u32) -> u8 {
        self.log.read(&mut self.io, Ticket(3), &[Slot(slot)]);
        loop {
            let (mut done, mut events) = (Vec::new(), Vec::new());
            self.io.wait(Nanos::NEVER, &mut done);
            done.into_iter().for_each(|done| self.log.on_io(&mut self.io, done));
            self.log.take_events(&mut events);
            for event in events {
                let StoreEvent::Read { result, .. } = event else { continue };
                return result.expect("sound bytes")[0];
            }
        }
    }

    /// Places and trailers of all checkpoints that have one, in the order of their places.
    fn trailers(&self) -> Vec<(u64, Trailer)> {
        let bytes = self.io.peek(self.disk);
        let pages = (0..).step_by(BLOCK).zip(bytes.chunks_exact(BLOCK));
        let decode = |page: &[u8]| Trailer::decode(page, self.log.instance);
        let mut found: Vec<_> = pages.filter_map(|(at, page)| Some((at, decode(page)?))).collect();
        // Each has a copy behind it.
        found.dedup_by(|next, before| next.1 == before.1);
        found
    }

    /// The place of the newest increment.
    fn increment(&self) -> (u64, Trailer) {
        let newest = self.trailers().into_iter().max_by_key(|(_, trailer)| trailer.seq);
        newest.filter(|(_, trailer)| !trailer.is_full()).expect("the newest is an increment")
    }
}

/// Goal: a power cut at any moment of a chain of increments loses nothing that was durable, brings
/// nothing back that was forgotten, and leaves no slot dirty that a complete one calls clean, nor
/// the other way round; `check` agrees. Method: rounds of changes and checkpoints, cut after every
/// number of turns, with writes in flight kept, torn or dropped; then more rounds and a second cut.
#[test]
fn increments_survive_a_cut_at_any_turn() {
    let modes = [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll];
    for_each_seed(4, |seed| {
        let mut bench = Bench::new(seed);
        bench.fill().expect("there is no cut");
        let mut rng = Rng::new(seed);
        (0..7).try_for_each(|_| bench.round(&mut rng)).expect("there is no cut");
        assert_eq!(bench.are_increments.iter().filter(|it| **it).count(), 6, "one is full");
        let mut cuts = 0;
        for turns in 0.. {
            let mut bench = Bench::new(seed);
            bench.fill().expect("there is no cut");
            bench.turns = turns;
            let mut rng = Rng::new(seed);
            let is_over = (0..7).try_for_each(|_| bench.round(&mut rng)).is_some();
            bench.turns = u32::MAX;
            bench.cut(modes[(turns as usize + seed as usize) % 3]);
            let more = turns % 4;
            (0..more).try_for_each(|_| bench.round(&mut rng)).expect("there is no cut");
            bench.cut(modes[turns as usize % 3]);
            cuts += 1;
            if is_over {
                break;
            }
        }
        assert!(cuts > 50, "{cuts} cuts");
    });
}

/// Goal: increments that an earlier use of an area left are no part of a chain that is as long as
/// theirs was. Method: a full checkpoint and two increments; two starts, each with a full one, so
/// that the area is used anew; a cut.
#[test]
fn leftover_increments_are_not_taken() {
    let mut bench = Bench::new(1);
    bench.fill().expect("there is no cut");
    assert_eq!(bench.checkpoint(), Some(false));
    for byte in [2, 3] {
        bench.put(7, byte).expect("there is no cut");
        assert_eq!(bench.checkpoint(), Some(true));
    }
    let (place, old) = bench.increment();
    for byte in [4, 5] {
        bench.cut(CrashMode::KeepAll);
        bench.put(7, byte).expect("there is no cut");
        assert_eq!(bench.checkpoint(), Some(false), "the first of an opening");
    }
    let left: Vec<_> = bench.trailers().into_iter().filter(|it| it.0 == place).collect();
    assert_eq!(left, [(place, old)], "it is still there");
    bench.cut(CrashMode::KeepAll);
    assert_eq!(bench.durable[&7], 5);
}

/// Goal: an increment's trailer that the device refused and wrote all the same is overwritten
/// before anything else is written, and the next checkpoint is a full one elsewhere. Method: such a
/// refusal; a cut right behind it, behind the next checkpoint, and behind the increments that
/// follow.
#[test]
fn a_refused_increment_is_overwritten_first() {
    for cut_behind in 0..3 {
        let mut bench = Bench::new(2);
        bench.fill().expect("there is no cut");
        assert_eq!(bench.checkpoint(), Some(false));
        bench.put(7, 2).expect("there is no cut");
        bench.evict(8).expect("there is no cut");
        // Behind the full one's trailer of two pages, two chunks and parity lie the trailer, a
        // chunk and parity of the increment.
        let newest = bench.trailers().into_iter().max_by_key(|(_, trailer)| trailer.seq);
        let guard = newest.expect("it is complete").0 as usize + 8 * BLOCK;
        let is_guarded = |bench: &Bench| {
            let bytes = bench.io.peek(bench.disk);
            bytes[guard..guard + BLOCK].iter().any(|byte| *byte != 0)
        };
        bench.log.checkpoint_now(false);
        while !is_guarded(&bench) {
            bench.turns = 1;
            assert_eq!(bench.wait(|_| None::<()>), None);
        }
        bench.turns = u32::MAX;
        bench.io.do_and_fail_next(bench.disk, 0, Errno::IO);
        let failed =
            |event: &StoreEvent| matches!(event, StoreEvent::CheckpointFailed).then_some(());
        bench.wait(failed).expect("the trailer is refused");
        let (place, refused) = bench.increment();
        assert_eq!(refused.ordinal, 1, "it is there all the same");
        if cut_behind > 0 {
            assert_eq!(bench.checkpoint(), Some(false), "elsewhere");
            let is_there = bench.trailers().iter().any(|(at, _)| *at == place);
            assert!(!is_there, "it was overwritten");
        }
        if cut_behind > 1 {
            bench.put(9, 3).expect("there is no cut");
            assert_eq!(bench.checkpoint(), Some(true));
        }
        bench.said.clear();
        bench.cut(CrashMode::KeepAll);
        assert_eq!((bench.durable.get(&7), bench.durable.get(&8)), (Some(&2), None));
    }
}

/// Goal: a place that the device has ceased to write does not end all checkpoints where the trailer
/// of an increment was to lie: a full one goes elsewhere, and no start takes what may be there.
/// Method: such a place, of either page; a cut right behind the failure, behind the full one, and
/// behind as many increments as bring the area into use again.
#[test]
fn a_broken_place_of_a_trailer_is_passed_by() {
    let cuts = [(0, 0), (1, 0), (2, 1), (2, 12)];
    for (page, (cut_behind, more)) in [0, 1].into_iter().flat_map(|page| cuts.map(|it| (page, it)))
    {
        let mut bench = Bench::new(2);
        bench.fill().expect("there is no cut");
        assert_eq!(bench.checkpoint(), Some(false));
        bench.put(7, 2).expect("there is no cut");
        bench.evict(8).expect("there is no cut");
        // Behind the full one's trailer of two pages, two chunks and parity.
        let newest = bench.trailers().into_iter().max_by_key(|(_, trailer)| trailer.seq);
        let place = newest.expect("it is complete").0 + (5 + page) * BLOCK as u64;
        bench.io.break_range(bench.disk, place, BLOCK as u64);
        bench.log.checkpoint_now(false);
        let failed =
            |event: &StoreEvent| matches!(event, StoreEvent::CheckpointFailed).then_some(());
        bench.wait(failed).expect("the trailer is refused");
        if cut_behind > 0 {
            bench.turns = 10_000;
            assert_eq!(bench.checkpoint(), Some(false), "elsewhere");
        }
        let ended = |event: &StoreEvent| match event {
            StoreEvent::CheckpointDone { .. } => Some(true),
            StoreEvent::CheckpointFailed => Some(false),
            _ => None,
        };
        let mut failures = 0;
        for byte in 0..more {
            bench.put(9, 3 + byte).expect("there is no cut");
            bench.log.checkpoint_now(false);
            let is_done = bench.wait(ended).expect("each ends");
            failures += if is_done { 0 } else { 1 };
        }
        assert!(failures <= more / 4, "{failures} of {more}");
        bench.said.clear();
        bench.turns = u32::MAX;
        bench.cut(CrashMode::KeepAll);
        assert_eq!((bench.durable.get(&7), bench.durable.get(&8)), (Some(&2), None));
    }
}

/// Goal: what a failed increment has looked at is in the next one. Method: a block overwritten and
/// one evicted, an increment for which the level above fails, one for which it does not, a cut.
#[test]
fn a_failed_increment_gives_back_what_it_took() {
    let mut bench = Bench::new(3);
    bench.fill().expect("there is no cut");
    assert_eq!(bench.checkpoint(), Some(false));
    bench.put(7, 2).expect("there is no cut");
    bench.evict(8).expect("there is no cut");
    bench.peer = Peer::Fails;
    bench.log.checkpoint_now(false);
    let failed = |event: &StoreEvent| matches!(event, StoreEvent::CheckpointFailed).then_some(());
    bench.wait(failed).expect("the level above fails");
    bench.peer = Peer::Answers;
    assert_eq!(bench.checkpoint(), Some(true));
    bench.cut(CrashMode::KeepAll);
    assert_eq!((bench.durable.get(&7), bench.durable.get(&8)), (Some(&2), None));
}

/// Goal: where checkpoints keep failing, writes that follow one another and find no segment do not
/// wait for a failure each. Method: the level above fails, blocks are overwritten one by one until
/// segments are used up, then until failures have come often in a row; ten more writes, and the
/// time that they take. Once the level above answers, a write goes through.
#[test]
fn writes_do_not_wait_for_a_failed_checkpoint_each() {
    const MORE: usize = 10;
    let mut bench = Bench::new(3);
    bench.fill().expect("there is no cut");
    bench.peer = Peer::Fails;
    let write = |bench: &mut Bench| {
        let entry = AppendEntry { slot: Slot(7), key: key(7), dirty: true };
        bench.log.append(&mut bench.io, Ticket(1), Stream::Write, &[entry], &content(2), true);
        let stored = |event: &StoreEvent| match event {
            StoreEvent::Stored { result, .. } => Some(*result),
            _ => None,
        };
        bench.wait(stored).expect("there is no cut")
    };
    while write(&mut bench).is_ok() {}
    let mut refused = 1;
    while bench.log.checkpoint.failures_in_row <= DOUBLINGS_MAX {
        refused += usize::from(write(&mut bench).is_err());
    }
    assert!(refused > 1, "each failure before has refused one");
    let before = bench.io.now();
    (0..MORE).for_each(|_| assert_eq!(write(&mut bench), Err(ErrorKind::Retry)));
    assert!(bench.io.now() - before < Nanos::from_secs(1), "{:?}", bench.io.now() - before);
    bench.peer = Peer::Answers;
    assert!((0..1000).any(|_| write(&mut bench).is_ok()), "room comes back");
}

/// Goal: a slot that is freed after an increment has begun, since the level above had stored its
/// block before, is emptied by that increment: its old entry would count as younger. Method: such a
/// block, a cut.
#[test]
fn what_is_freed_before_the_peer_answers_is_emptied() {
    let mut bench = Bench::new(3);
    bench.fill().expect("there is no cut");
    assert_eq!(bench.checkpoint(), Some(false));
    bench.peer = Peer::Supersedes;
    assert_eq!(bench.checkpoint(), Some(true));
    bench.cut(CrashMode::KeepAll);
    assert!(!bench.durable.contains_key(&7));
}

/// Goal: an increment for which too much changes meanwhile becomes a full checkpoint in the other
/// area. Method: increments until there is room for one of four blocks and little more; then all
/// slots change behind its beginning; a cut.
#[test]
fn an_increment_that_outgrows_its_area_becomes_full() {
    const MANY: u32 = 650;
    let mut bench = Bench::new(5);
    (0..MANY).try_for_each(|slot| bench.put(slot, 1)).expect("there is no cut");
    assert_eq!(bench.checkpoint(), Some(false));
    for byte in 2..6 {
        bench.put(7, byte).expect("there is no cut");
        assert_eq!(bench.checkpoint(), Some(true));
    }
    let (place, _) = bench.increment();
    let geometry = bench.log.geometry;
    let place = (place / BLOCK as u64) as u32;
    let area = usize::from(place >= geometry.checkpoint_first(1));
    let end = geometry.checkpoint_first(area) + geometry.checkpoint_blocks;
    assert_eq!(end - place, 4 + 6, "room for six blocks is left");
    bench.peer = Peer::Changes(MANY);
    bench.put(7, 8).expect("there is no cut");
    assert_eq!(bench.checkpoint(), Some(false));
    bench.peer = Peer::Answers;
    bench.put(7, 9).expect("there is no cut");
    assert_eq!(bench.checkpoint(), Some(true), "behind the new one");
    bench.cut(CrashMode::KeepAll);
    assert_eq!((bench.durable[&7], bench.durable.len()), (9, MANY as usize));
}

/// Goal: what is damaged in an increment beyond its parity leaves undecided all that has no younger
/// record, and one whose trailer is gone is missed by what was written since; `check` says so, too.
/// Method: rot in a chunk, then in its parity page as well; in another log in both pages of the
/// trailer, with and
/// without a batch behind it.
#[test]
fn a_damaged_increment_decides_nothing() {
    let made = || {
        let mut bench = Bench::new(4);
        bench.fill().expect("there is no cut");
        assert_eq!(bench.checkpoint(), Some(false));
        bench.put(7, 2).expect("there is no cut");
        assert_eq!(bench.checkpoint(), Some(true));
        let (place, trailer) = bench.increment();
        (bench, place, trailer)
    };
    let rot = |bench: &mut Bench, at: u64| {
        [at + 70, at + 600].iter().for_each(|at| bench.io.corrupt(bench.disk, *at, 10));
    };
    let problems = |bench: &Bench| {
        let bytes = bench.io.peek(bench.disk);
        check_store(&bytes[..], "ssd", 0, LENGTH, StoreKind::Log, true).problems
    };
    let (mut bench, place, trailer) = made();
    assert_eq!(trailer.chunks, 1);
    rot(&mut bench, place + 2 * BLOCK as u64);
    let (_, found) = open(&mut bench.io, bench.disk);
    assert_eq!((found.undecided, found.entries.len()), (None, SLOTS as usize), "by parity");
    rot(&mut bench, place + 3 * BLOCK as u64);
    assert!(!problems(&bench).is_empty());
    let (_, found) = open(&mut bench.io, bench.disk);
    assert_eq!(found.undecided, Some(trailer.seq));
    assert!(found.entries.iter().all(|entry| entry.seq <= trailer.seq), "none is decided");
    for has_batch in [false, true] {
        let (mut bench, place, trailer) = made();
        if has_batch {
            bench.put(9, 3).expect("there is no cut");
        }
        (0..2).for_each(|page| rot(&mut bench, place + page * BLOCK as u64));
        let (_, found) = open(&mut bench.io, bench.disk);
        assert_eq!(found.undecided, has_batch.then_some(trailer.seq));
        assert_eq!(problems(&bench).is_empty(), !has_batch);
        assert_eq!(found.entries.len(), SLOTS as usize, "the records are behind the full one");
    }
}

/// What becomes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Noise,
    Unreadable,
    /// It is as it was before the last write of it.
    Stale,
}

/// A device of which a page cannot be read.
struct Hole<'a>(&'a [u8], u64);

impl ReadAt for Hole<'_> {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let is_hit = offset < self.1 + BLOCK as u64 && self.1 < offset + bytes.len() as u64;
        if is_hit { Err(io::ErrorKind::Other.into()) } else { self.0.read_at(offset, bytes) }
    }
}

/// Of a trailer: its place, and what its two pages were before it was written.
type Trailed = (u64, Vec<u8>);

impl Bench {
    /// A full checkpoint in an area that had one before, two increments behind it, and with
    /// `has_batch` a batch that knows of the last one.
    fn chained(has_batch: bool) -> (Bench, [Trailed; 3]) {
        let mut bench = Bench::new(7);
        bench.fill().expect("there is no cut");
        for _ in 0..2 {
            assert_eq!(bench.checkpoint(), Some(false));
            bench.cut(CrashMode::KeepAll);
        }
        let trailed = [2, 3, 4].map(|byte| {
            bench.put(7, byte).expect("there is no cut");
            let before = bench.io.peek(bench.disk);
            assert_eq!(bench.checkpoint(), Some(byte > 2));
            let newest = bench.trailers().into_iter().max_by_key(|(_, trailer)| trailer.seq);
            let (at, _) = newest.expect("it is complete");
            (at, before[at as usize..][..2 * BLOCK].to_vec())
        });
        if has_batch {
            bench.put(9, 5).expect("there is no cut");
        }
        bench.io.crash(CrashMode::KeepAll);
        (bench, trailed)
    }

    /// Loses a page of a trailer; where it lies.
    fn lose(&mut self, (place, before): &Trailed, page: usize, loss: Loss) -> u64 {
        let (disk, offset) = (self.disk, place + (page * BLOCK) as u64);
        let mut buffer = self.io.buffer(BLOCK);
        match loss {
            Loss::Unreadable => {
                self.io.fail_reads(disk, offset, BLOCK as u64);
                return offset;
            }
            Loss::Noise => Rng::new(offset).fill(&mut buffer),
            Loss::Stale => buffer.copy_from_slice(&before[page * BLOCK..][..BLOCK]),
        }
        let write = IoOperation::Write { disk, offset, buffer, durable: true };
        run_alone(&mut self.io, write).expect("a sound disk");
        offset
    }
}

/// Goal: a lost page of a trailer costs nothing, and is named: always where it cannot be read, else
/// where what lies behind shows that power loss cannot have left it. Method: the newest full
/// checkpoint and two increments behind it, with a batch behind and without; of each trailer each
/// page replaced by noise or by what was there before, or unreadable; a strict start, and `check`.
#[test]
fn a_lost_page_of_a_trailer_costs_nothing() {
    let losses = [Loss::Noise, Loss::Unreadable, Loss::Stale];
    for case in 0..3 * 2 * 3 * 2 {
        let (which, page, loss) = (case % 3, case / 3 % 2, losses[case / 6 % 3]);
        let has_batch = case / 18 == 1;
        let name = format!("page {page} of {which}, {loss:?}, a batch: {has_batch}");
        let (mut bench, trailed) = Bench::chained(has_batch);
        let (_, before) = open(&mut bench.io, bench.disk);
        let at = bench.lose(&trailed[which], page, loss);
        let strict = LogConfig { is_strict: true, ..log_config(bench.disk) };
        let opened = LogStore::open(&mut bench.io, strict, SeqSource::new(Seq(1)));
        let (_, found) = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((found.undecided, &found.entries), (None, &before.entries), "{name}");
        let is_named = has_batch || which < 2 || loss == Loss::Unreadable;
        let wanted: Vec<u64> = is_named.then_some(at).into_iter().collect();
        let damaged: Vec<u64> = found.damaged.iter().map(|info| info.offset).collect();
        assert_eq!(damaged, wanted, "{name}");
        let bytes = bench.io.peek(bench.disk);
        let hole = if loss == Loss::Unreadable { at } else { LENGTH };
        let report = check_store(&Hole(&bytes, hole), "ssd", 0, LENGTH, StoreKind::Log, true);
        assert_eq!(report.is_sound(), !is_named, "{name}: {:?}", report.problems);
        assert!(report.problems.iter().all(|problem| problem.offset == at), "{name}");
        assert_eq!(report.counts.blocks_live, before.entries.len() as u64, "{name}");
    }
}

/// Goal: a checkpoint that lost both pages of its trailer, or an increment before it, is missed by
/// what was written since. Method: noise in both, or neither can be read, of the full one and of
/// each increment.
#[test]
fn both_pages_of_a_trailer_are_missed() {
    for case in 0..3 * 2 {
        let (which, loss) = (case % 3, [Loss::Noise, Loss::Unreadable][case / 3]);
        let (mut bench, trailed) = Bench::chained(true);
        let newest = bench.trailers().into_iter().map(|(_, trailer)| trailer.seq).max();
        for page in 0..2 {
            bench.lose(&trailed[which], page, loss);
        }
        let (_, found) = open(&mut bench.io, bench.disk);
        assert_eq!(found.undecided, newest, "of {which}, {loss:?}");
        if loss == Loss::Noise {
            let bytes = bench.io.peek(bench.disk);
            let report = check_store(&bytes[..], "ssd", 0, LENGTH, StoreKind::Log, true);
            assert!(!report.is_sound(), "of {which}");
        }
    }
}

/// Goal: increments take their share of all checkpoints, so that these are a small part of what the
/// log writes. Method: random overwrites of a log that is nearly full; checkpoints of each kind,
/// and their bytes.
#[test]
fn checkpoints_are_a_small_part_of_the_log() {
    let mut bench = Bench::new(6);
    let slots = bench.log.slot_count() * 9 / 10;
    let mut rng = Rng::new(6);
    for step in 0..6 * slots {
        let slot = if step < slots { step } else { rng.below(slots.into()) as u32 };
        bench.put(slot, step as u8).expect("there is no cut");
    }
    let counters = bench.log.counters();
    let full = counters.checkpoints - counters.checkpoint_increments;
    assert!(counters.checkpoint_increments > 3 * full, "{counters:?}");
    bench.cut(CrashMode::KeepSome);
}
