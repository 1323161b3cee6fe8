//! The log alone: round trips, torn tails, damage and device errors.

use super::SegmentPlan;
use super::log_geometry::LogGeometry;
use super::{
    AppendEntry, LogConfig, LogStore, Recovered, Region, SeqSource, SlotInfo, SlotView, StoreEvent,
    StoreIdentity, Stream, Ticket,
};
use crate::check::{StoreKind, check_store};
use crate::io::{CrashMode, DiskId, Io, SimIo};
use layby_types::{BlockIndex, BlockKey, BlockSize, Nanos, Seq, ShardIndex, Slot, VolumeId};
use std::cell::RefCell;
use std::collections::BTreeMap;

pub(super) const LENGTH: u64 = 1 << 20;
pub(super) const TAG: u8 = 7;

pub(super) struct Nothing;

impl SlotView for Nothing {
    fn slot(&self, _: Slot) -> Option<SlotInfo> {
        None
    }
}

pub(super) fn config(disk: DiskId) -> LogConfig {
    let block_size = BlockSize::MIN;
    let identity = StoreIdentity { node: [9; 16], shard: ShardIndex(0), shard_count: 1 };
    LogConfig::new(Region { disk, base: 0, length: LENGTH, block_size }, identity, TAG)
}

pub(super) fn fresh(seed: u64) -> (SimIo, DiskId, LogStore) {
    let mut io = SimIo::new(seed);
    let disk = io.add_disk("ssd", LENGTH);
    LogStore::format(&mut io, &config(disk), seed).expect("a region of this size can be formatted");
    let (log, recovered) = open(&mut io, disk);
    assert!(recovered.entries.is_empty());
    (io, disk, log)
}

pub(super) fn open(io: &mut SimIo, disk: DiskId) -> (LogStore, Recovered) {
    let seqs = SeqSource::new(Seq(1));
    LogStore::open(io, config(disk), seqs).expect("a sound log opens")
}

/// Runs until nothing is under way, without a peer that a checkpoint would wait for; events, but
/// for those of checkpoints.
pub(super) fn settle(io: &mut SimIo, log: &mut LogStore) -> Vec<StoreEvent> {
    let (mut events, mut taken) = (Vec::new(), Vec::new());
    while !log.is_idle() {
        let mut done = Vec::new();
        io.wait(Nanos(io.now().0 + 1_000_000), &mut done);
        for done in done {
            log.on_io(io, done);
        }
        let now = io.now();
        log.on_tick(io, now, &Nothing);
        log.take_events(&mut taken);
        for event in taken.drain(..) {
            match event {
                StoreEvent::NeedPeerSync { id, .. } => log.peer_synced(id),
                StoreEvent::CheckpointDone { .. } | StoreEvent::CheckpointFailed => {}
                event => events.push(event),
            }
        }
    }
    log.take_events(&mut events);
    events
}

pub(super) fn key(block: u64) -> BlockKey {
    BlockKey::new(VolumeId(1), BlockIndex(block))
}

pub(super) fn content(byte: u8) -> Vec<u8> {
    vec![byte; BlockSize::MIN.len()]
}

/// Goal: what was appended durably is read back, now and after a crash. Method: one batch of three.
#[test]
fn durable_append_survives() {
    let (mut io, disk, mut log) = fresh(1);
    let entries = [0, 1, 2].map(|index| AppendEntry {
        slot: Slot(index),
        key: key(index.into()),
        dirty: true,
    });
    let data = [content(1), content(2), content(3)].concat();
    log.append(&mut io, Ticket(1), Stream::Write, &entries, &data, true);
    let events = settle(&mut io, &mut log);
    assert!(matches!(events[..], [StoreEvent::Stored { ticket: Ticket(1), result: Ok(()) }]));
    io.crash(CrashMode::DropAll);
    let (mut log, recovered) = open(&mut io, disk);
    assert_eq!(recovered.entries.len(), 3);
    log.read(&mut io, Ticket(2), &[Slot(2), Slot(0), Slot(1)]);
    let events = settle(&mut io, &mut log);
    let [StoreEvent::Read { result: Ok(buffer), .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(buffer[..], [content(3), content(1), content(2)].concat()[..]);
}

/// Goal: the smallest region is as small as said. Method: format at and just below the minimum.
#[test]
fn length_min_is_exact() {
    for bytes in [4 << 10, 64 << 10] {
        let block = BlockSize::new(bytes).expect("a legal size");
        let least = LogGeometry::length_min(block);
        let segments = SegmentPlan { bytes: bytes.into(), ..SegmentPlan::default() };
        assert!(LogGeometry::plan(least, block, &segments).is_some());
        assert!(LogGeometry::plan(least - u64::from(bytes), block, &segments).is_none());
    }
}

/// Which block each slot holds, and the slots that a checkpoint has looked at.
#[derive(Default)]
struct Owners {
    of: BTreeMap<Slot, BlockKey>,
    seen: RefCell<Vec<Slot>>,
}

impl SlotView for Owners {
    fn slot(&self, slot: Slot) -> Option<SlotInfo> {
        self.seen.borrow_mut().push(slot);
        self.of.get(&slot).map(|&key| SlotInfo { key, dirty: true })
    }
}

/// One tick of `log`; whether a checkpoint ended in it.
fn turn(io: &mut SimIo, log: &mut LogStore, view: &Owners) -> bool {
    let mut done = Vec::new();
    io.wait(Nanos(io.now().0 + 1_000_000), &mut done);
    done.into_iter().for_each(|done| log.on_io(io, done));
    let now = io.now();
    log.on_tick(io, now, view);
    let (mut events, mut has_ended) = (Vec::new(), false);
    log.take_events(&mut events);
    for event in events {
        match event {
            StoreEvent::NeedPeerSync { id, .. } => log.peer_synced(id),
            event => has_ended |= matches!(event, StoreEvent::CheckpointDone { .. }),
        }
    }
    has_ended
}

/// Stores block 0 in `slot`, without a tick, so that no checkpoint goes on meanwhile.
fn store(io: &mut SimIo, log: &mut LogStore, slot: Slot, byte: u8) {
    let entry = AppendEntry { slot, key: key(0), dirty: true };
    log.append(io, Ticket(1), Stream::Write, &[entry], &content(byte), false);
    let mut events = Vec::new();
    while events.is_empty() {
        let mut done = Vec::new();
        io.wait(Nanos::NEVER, &mut done);
        assert!(!done.is_empty(), "the store does not end");
        done.into_iter().for_each(|done| log.on_io(io, done));
        log.take_events(&mut events);
    }
    assert!(matches!(events[..], [StoreEvent::Stored { result: Ok(()), .. }]), "{events:?}");
}

/// Goal: a block that changes its slot while a checkpoint is written may be in it twice: a start
/// serves the newer bytes, and `check` calls the store sound. Method: a checkpoint in steps, a
/// block moved from a slot that was looked at to one that was not, a crash behind the trailer.
#[test]
fn a_block_may_move_ahead_of_a_checkpoint() {
    // More slots than one step of a checkpoint looks at.
    let length = 8 * LENGTH;
    let mut io = SimIo::new(3);
    let disk = io.add_disk("ssd", length);
    let mut config = config(disk);
    config.region.length = length;
    LogStore::format(&mut io, &config, 3).expect("a region of this size can be formatted");
    let open = |io: &mut SimIo| LogStore::open(io, config.clone(), SeqSource::new(Seq(1)));
    let (mut log, _) = open(&mut io).expect("a new log opens");
    io.set_stepwise(true);
    let (first, last) = (Slot(0), Slot(log.slot_count() - 1));
    let mut view = Owners::default();
    store(&mut io, &mut log, first, 1);
    view.of.insert(first, key(0));
    log.checkpoint_now(false);
    while !view.seen.borrow().contains(&first) {
        assert!(!turn(&mut io, &mut log, &view), "the checkpoint ended without slot 0");
    }
    assert!(!view.seen.borrow().contains(&last), "one step looked at every slot");
    store(&mut io, &mut log, last, 2);
    log.free(first);
    view.of = BTreeMap::from([(last, key(0))]);
    while !turn(&mut io, &mut log, &view) {}
    assert!(view.seen.borrow().contains(&last), "the checkpoint ended without the last slot");
    drop(log);
    io.crash(CrashMode::DropAll);
    let report = check_store(&io.peek(disk)[..], "ssd", 0, length, StoreKind::Log, true);
    assert!(report.is_sound(), "{report:?}");
    let (mut log, recovered) = open(&mut io).expect("a sound log opens");
    let [entry] = &recovered.entries[..] else { panic!("{} blocks", recovered.entries.len()) };
    assert_eq!(entry.key, key(0));
    log.read(&mut io, Ticket(2), &[entry.slot]);
    let events = settle(&mut io, &mut log);
    let [StoreEvent::Read { result: Ok(buffer), .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(buffer[..], content(2)[..]);
}

/// Goal: `check` still reports a checkpoint that names a block twice without cause. Method: a block
/// in two slots, both stored before the checkpoint.
#[test]
fn a_block_that_is_in_two_slots_is_reported() {
    let (mut io, disk, mut log) = fresh(4);
    let mut view = Owners::default();
    for slot in [Slot(0), Slot(1)] {
        store(&mut io, &mut log, slot, 1);
        view.of.insert(slot, key(0));
    }
    log.checkpoint_now(false);
    while !turn(&mut io, &mut log, &view) {}
    drop(log);
    io.crash(CrashMode::DropAll);
    let report = check_store(&io.peek(disk)[..], "ssd", 0, LENGTH, StoreKind::Log, true);
    let sentences: Vec<&str> = report.problems.iter().map(|problem| &*problem.sentence).collect();
    assert_eq!(sentences, ["block 0 of volume 1 is in the checkpoint twice"]);
}
