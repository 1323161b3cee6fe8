//! The log alone: round trips, torn tails, damage and device errors.

use super::log_layout::LogGeometry;
use super::{
    AppendEntry, LogConfig, LogStore, Recovered, Region, SeqSource, SlotInfo, SlotView, StoreEvent,
    StoreIdentity, Stream, Ticket,
};
use crate::io::{CrashMode, DiskId, Io, SimIo};
use layby_types::{BlockIndex, BlockKey, BlockSize, Nanos, Seq, ShardIndex, Slot, VolumeId};

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

pub(super) fn settle(io: &mut SimIo, log: &mut LogStore) -> Vec<StoreEvent> {
    let mut events = Vec::new();
    while !log.is_idle() {
        let mut done = Vec::new();
        io.wait(Nanos(io.now().0 + 1_000_000), &mut done);
        for done in done {
            log.on_io(io, done);
        }
        let now = io.now();
        log.on_tick(io, now, &Nothing);
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
        assert!(LogGeometry::plan(least, block, u64::from(bytes)).is_some());
        assert!(LogGeometry::plan(least - u64::from(bytes), block, u64::from(bytes)).is_none());
    }
}
