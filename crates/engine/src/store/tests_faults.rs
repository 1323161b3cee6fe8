//! Damage and failing devices: reported with disk and offset, never served, never spread.

use super::tests_log::{LENGTH, Nothing, config, content, fresh, key, open, settle};
use super::{
    AppendEntry, CorruptInfo, Freed, LogStore, NvmConfig, NvmStore, Region, SeqSource, SlotInfo,
    SlotView, StoreError, StoreEvent, StoreIdentity, Stream, SyncScope, Ticket,
};
use crate::check::{StoreKind, check_store};
use crate::io::{CrashMode, DiskId, Io, OperationKind, SimIo};
use layby_types::{BlockSize, ErrorKind, Nanos, Seq, ShardIndex, Slot};
use rustix::io::Errno;

const BLOCK: u64 = 4096;

fn strict(disk: DiskId) -> super::LogConfig {
    super::LogConfig { is_strict: true, ..config(disk) }
}

/// Appends block `index` with every byte `byte` and waits for the end.
pub(super) fn put(
    io: &mut SimIo,
    log: &mut LogStore,
    index: u32,
    byte: u8,
    durable: bool,
) -> StoreEvent {
    let entry = AppendEntry { slot: Slot(index), key: key(index.into()), dirty: true };
    let ticket = Ticket(1000 + u64::from(byte));
    log.append(io, ticket, Stream::Write, &[entry], &content(byte), durable);
    let is_end = |event: &StoreEvent| matches!(event, StoreEvent::Stored { .. });
    settle(io, log).into_iter().rfind(is_end).expect("an append ends with an event")
}

pub(super) fn stored(event: &StoreEvent) -> Result<(), ErrorKind> {
    let StoreEvent::Stored { result, .. } = event else { panic!("{event:?}") };
    *result
}

/// Where a block full of `byte` lies.
pub(super) fn find(io: &SimIo, disk: DiskId, byte: u8) -> u64 {
    let bytes = io.peek(disk);
    let wanted = content(byte);
    let index = bytes.chunks(BLOCK as usize).position(|block| block == wanted);
    index.expect("the block is on the disk") as u64 * BLOCK
}

fn problems(io: &SimIo, disk: DiskId, kind: StoreKind) -> Vec<u64> {
    let report = check_store(&io.peek(disk)[..], "ssd", 0, LENGTH, kind, true);
    report.problems.iter().map(|problem| problem.offset).collect()
}

/// Goal: a rotten block is named and not served, and others are. Method: two durable batches, rot
/// in the first, then a read, a check, and a recovery.
#[test]
fn rotten_data_is_named() {
    let (mut io, disk, mut log) = fresh(3);
    stored(&put(&mut io, &mut log, 0, 7, true)).expect("the disk is sound");
    stored(&put(&mut io, &mut log, 1, 8, true)).expect("the disk is sound");
    let at = find(&io, disk, 7);
    assert!(problems(&io, disk, StoreKind::Log).is_empty());
    io.corrupt(disk, at, BLOCK);
    log.read(&mut io, Ticket(1), &[Slot(0), Slot(1)]);
    let events = settle(&mut io, &mut log);
    let [StoreEvent::Corrupt(info), StoreEvent::Read { result: Err(failure), .. }] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((info.disk.as_str(), info.offset, info.slot), ("ssd", at, Some(Slot(0))));
    assert_eq!((failure.kind, &failure.slots[..]), (ErrorKind::Corrupt, &[Slot(0)][..]));
    assert_eq!(problems(&io, disk, StoreKind::Log), [at]);
    io.crash(CrashMode::DropAll);
    let (_, recovered) = open(&mut io, disk);
    let lost: Vec<_> = recovered.lost.iter().map(|info| (info.offset, info.key)).collect();
    assert_eq!(lost, [(at, Some(key(0)))]);
    assert_eq!(recovered.entries.len(), 2, "the lost block stays, and fails when read");
}

/// Goal: a trailer whose write was refused and done all the same costs nothing when the next
/// checkpoint is cut short behind its chunks. Method: a checkpoint with such a trailer, the next
/// one up to its chunks, a power cut; the opening finds every block and decides all.
#[test]
fn a_refused_trailer_is_overwritten_first() {
    let (mut io, disk, mut log) = fresh(11);
    for index in 0..3 {
        stored(&put(&mut io, &mut log, index, 20 + index as u8, true)).expect("a sound disk");
    }
    let chunks = |io: &SimIo| {
        let bytes = io.peek(disk);
        let pages = bytes.chunks(BLOCK as usize);
        pages.filter(|page| page.starts_with(b"LAYBYCKC")).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let mut failures = 0;
    for _ in 0..2 {
        let before = chunks(&io);
        log.checkpoint_now(false);
        // What is written behind the chunks is the trailer.
        let mut turns = 0..1000;
        while chunks(&io) == before && turns.next().is_some() {
            failures += u32::from(checkpoint_turn(&mut io, &mut log));
        }
        io.do_and_fail_next(disk, 0, Errno::IO);
        while failures == 0 && turns.next().is_some() {
            failures += u32::from(checkpoint_turn(&mut io, &mut log));
        }
        assert!(turns.next().is_some(), "a checkpoint goes on");
    }
    io.crash(CrashMode::KeepAll);
    let (_, recovered) = open(&mut io, disk);
    assert_eq!((recovered.entries.len(), recovered.undecided), (3, None));
}

/// Each slot holds the block of its number, dirty.
struct Numbered;

impl SlotView for Numbered {
    fn slot(&self, slot: Slot) -> Option<SlotInfo> {
        Some(SlotInfo { key: key(slot.0.into()), dirty: true })
    }
}

/// A turn of a log without a peer; whether a checkpoint has failed.
pub(super) fn checkpoint_turn(io: &mut SimIo, log: &mut LogStore) -> bool {
    let (mut done, mut events) = (Vec::new(), Vec::new());
    io.wait(Nanos(io.now().0 + 1_000_000), &mut done);
    done.into_iter().for_each(|done| log.on_io(io, done));
    let now = io.now();
    log.on_tick(io, now, &Numbered);
    log.take_events(&mut events);
    let mut has_failed = false;
    for event in events {
        match event {
            StoreEvent::NeedPeerSync { id, .. } => log.peer_synced(id),
            event => has_failed |= matches!(event, StoreEvent::CheckpointFailed),
        }
    }
    has_failed
}

/// Goal: a second after a flush, rot of what it covered is damage though no batch follows; power
/// that fails within a batch stays no damage. Method: two versions of a block, each durable, a
/// second, power loss; then rot of the second version's data, and of two sectors of its descriptor.
#[test]
fn a_flush_that_nothing_follows_is_vouched_for() {
    for is_descriptor in [false, true] {
        let (mut io, disk, mut log) = fresh(12);
        for byte in [1, 2] {
            stored(&put(&mut io, &mut log, 0, byte, true)).expect("the disk is sound");
        }
        let later = Nanos(io.now().0 + 1_000_000_000);
        while io.now() < later {
            io.wait(later, &mut Vec::new());
        }
        log.on_tick(&mut io, later, &Nothing);
        assert_eq!(log.next_deadline(), Nanos::NEVER, "it is written once");
        settle(&mut io, &mut log);
        io.crash(CrashMode::DropAll);
        let (_, recovered) = open(&mut io, disk);
        assert_eq!((recovered.torn, recovered.lost.len(), recovered.undecided), (0, 0, None));
        let at = find(&io, disk, 2);
        match is_descriptor {
            true => {
                io.corrupt(disk, at - BLOCK + 30, 4);
                io.corrupt(disk, at - BLOCK + 600, 4);
            }
            false => io.corrupt(disk, at, 8),
        }
        let (_, recovered) = open(&mut io, disk);
        let is_named = match is_descriptor {
            true => recovered.damaged.iter().any(|info| info.offset == at - BLOCK),
            false => recovered.lost.iter().any(|info| info.key == Some(key(0))),
        };
        assert!(is_named, "descriptor {is_descriptor}: {recovered:?}");
        assert_eq!(recovered.undecided, None, "what vouches has a copy of the descriptor");
        assert!(!problems(&io, disk, StoreKind::Log).is_empty(), "check names it");
    }
}

/// Goal: a flush is vouched for though a batch was in flight, begun before it had ended, when that
/// was to be written down. Method: the batch of another stream is held up for longer than a second
/// across a sync and nothing follows; rot of what the sync covered, power loss.
#[test]
fn a_batch_in_flight_vouches_for_nothing_later() {
    let (mut io, disk, mut log) = fresh(13);
    stored(&put(&mut io, &mut log, 0, 1, true)).expect("the disk is sound");
    let entry = |index: u32| AppendEntry { slot: Slot(index), key: key(index.into()), dirty: true };
    let wait = |io: &mut SimIo, log: &mut LogStore, nanos: u64| {
        let later = Nanos(io.now().0 + nanos);
        while io.now() < later {
            let mut done = Vec::new();
            io.wait(later, &mut done);
            done.into_iter().for_each(|done| log.on_io(io, done));
            let now = io.now();
            log.on_tick(io, now, &Nothing);
        }
    };
    log.append(&mut io, Ticket(1), Stream::Write, &[entry(0)], &content(2), false);
    settle(&mut io, &mut log);
    log.sync(&mut io, Ticket(2));
    log.append(&mut io, Ticket(3), Stream::Promote, &[entry(1)], &content(3), false);
    let mut held = None;
    let mut turns = 0..1000;
    while held.is_none() && turns.next().is_some() {
        let mut done = Vec::new();
        io.wait(Nanos(io.now().0 + 1_000_000), &mut done);
        for done in done {
            // A sync has no buffer.
            match done.buffer {
                Some(_) if held.is_none() => held = Some(done),
                _ => log.on_io(&mut io, done),
            }
        }
    }
    wait(&mut io, &mut log, 1_000_000_000);
    log.on_io(&mut io, held.expect("the batch was launched"));
    wait(&mut io, &mut log, 2_000_000_000);
    io.crash(CrashMode::KeepAll);
    io.corrupt(disk, find(&io, disk, 2), 8);
    let (_, recovered) = open(&mut io, disk);
    assert!(recovered.lost.iter().any(|info| info.key == Some(key(0))), "{recovered:?}");
}

/// Goal: a batch that failed while a checkpoint was written is not claimed durable once it is
/// complete, though one that failed before it is passed. Method: a failed write, a checkpoint that
/// has begun, another failed write.
#[test]
fn a_checkpoint_forgives_what_failed_before_it() {
    let (mut io, disk, mut log) = fresh(14);
    let fail = |io: &mut SimIo, log: &mut LogStore, byte: u8| {
        io.fail_next(disk, OperationKind::Write, Errno::IO);
        let entry = AppendEntry { slot: Slot(0), key: key(0), dirty: true };
        log.append(io, Ticket(9), Stream::Write, &[entry], &content(byte), true);
    };
    fail(&mut io, &mut log, 1);
    let is_failed = |log: &LogStore| log.sync.failed.iter().flatten().count();
    (0..100).for_each(|_| _ = checkpoint_turn(&mut io, &mut log));
    assert_eq!(is_failed(&log), 1);
    log.checkpoint_now(false);
    let now = io.now();
    log.on_tick(&mut io, now, &Numbered);
    fail(&mut io, &mut log, 2);
    (0..100).for_each(|_| _ = checkpoint_turn(&mut io, &mut log));
    assert_eq!((log.counters().checkpoints, is_failed(&log)), (1, 1));
    log.checkpoint_now(false);
    (0..100).for_each(|_| _ = checkpoint_turn(&mut io, &mut log));
    assert_eq!((log.counters().checkpoints, is_failed(&log)), (2, 0));
}

/// Goal: dirty blocks that no slot of the level is left for take those of clean ones, oldest first,
/// since a backing store may not be there that could take them. Method: a dirty block whose slot
/// was taken for another one, in a level that is full of clean ones; power loss.
#[test]
fn clean_blocks_make_room_for_dirty_ones() {
    let (mut io, disk, mut log) = fresh(15);
    let count = log.slot_count();
    let mut append = |io: &mut SimIo, slots: std::ops::Range<u32>, block: u64, dirty: bool| {
        let key = |slot: u32| key(block + u64::from(slot));
        let entry = |slot: u32| AppendEntry { slot: Slot(slot), key: key(slot), dirty };
        let entries: Vec<_> = slots.map(entry).collect();
        let data = content(7).repeat(entries.len());
        log.append(io, Ticket(1), Stream::Write, &entries, &data, true);
        settle(io, &mut log);
    };
    append(&mut io, 0..1, 1000, true);
    for first in (0..count).step_by(32) {
        append(&mut io, first..count.min(first + 32), 0, false);
    }
    io.crash(CrashMode::DropAll);
    let (_, recovered) = open(&mut io, disk);
    assert!(recovered.entries.iter().all(|entry| entry.slot.0 < count));
    let of = |block: u64| recovered.entries.iter().find(|entry| entry.key == key(block));
    assert!(of(1000).is_some_and(|entry| entry.dirty) && of(0).is_none());
    assert_eq!(recovered.entries.len(), count as usize);
}

/// Goal: a durable batch whose descriptor rots is made up for by the next one's copy; where that
/// rots, too, it is missed. Method: four durable batches, rot in two sectors of the second one's
/// descriptor, more than its parity makes up for, then in the third one's: a strict opening is then
/// refused by the name of the second, another says up to which seq nothing is known for certain.
#[test]
fn rotten_descriptors_leave_older_records_undecided() {
    let (mut io, disk, mut log) = fresh(4);
    for index in 0..4 {
        stored(&put(&mut io, &mut log, index, 20 + index as u8, true)).expect("a sound disk");
    }
    let at = [21, 22].map(|byte| find(&io, disk, byte) - BLOCK);
    let rot = |io: &mut SimIo, at: u64| [128, 1024].map(|within| io.corrupt(disk, at + within, 32));
    rot(&mut io, at[0]);
    assert!(!problems(&io, disk, StoreKind::Log).is_empty());
    io.crash(CrashMode::DropAll);
    let (_, recovered) = open(&mut io, disk);
    let named: Vec<_> = recovered.damaged.iter().map(|info| (info.offset, info.what)).collect();
    assert_eq!(named, [(at[0], "batch descriptor")]);
    assert_eq!((recovered.entries.len(), recovered.undecided), (4, None));
    rot(&mut io, at[1]);
    let refused = LogStore::open(&mut io, strict(disk), SeqSource::new(Seq(1))).err();
    let Some(StoreError::Corrupt(info)) = refused else { panic!("{refused:?}") };
    assert_eq!((info.disk.as_str(), info.offset, info.what), ("ssd", at[0], "batch descriptor"));
    let (_, recovered) = open(&mut io, disk);
    assert_eq!((recovered.damaged.len(), recovered.entries.len()), (2, 3));
    let upto = recovered.undecided.expect("the second batch is not known");
    let is_decided: Vec<_> = recovered.entries.iter().map(|entry| entry.seq > upto).collect();
    assert_eq!(is_decided, [false, true, true], "the last two batches are younger");
}

/// Where the header and the descriptors of the newest segment lie, in blocks.
fn newest_segment(io: &SimIo, disk: DiskId) -> Vec<u64> {
    let bytes = io.peek(disk);
    let number = |page: &[u8], at: usize| {
        u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
    };
    let pages = || (0u64..).zip(bytes.chunks(BLOCK as usize));
    let headers = pages().filter(|(_, page)| page.starts_with(b"LAYBYSEG"));
    let newest = headers.max_by_key(|(_, page)| number(page, 24));
    let Some((header, page)) = newest else { return Vec::new() };
    let is_its = |it: &[u8]| it.starts_with(b"LAYBYBAT") && number(it, 16) == number(page, 24);
    let descriptors = pages().filter(|(_, page)| is_its(page)).map(|(at, _)| at);
    std::iter::once(header).chain(descriptors).collect()
}

/// Goal: what a segment holds that could not be read at a start outranks nothing that was written
/// since, though it can be read again; until then it may be newer than anything. Method: the newest
/// segment loses its header and all descriptors; a start with its checkpoint, a new version of a
/// block that lies there, power loss, and all can be read.
#[test]
fn a_dark_segment_outranks_nothing_later() {
    let (mut io, disk, mut log) = fresh(12);
    let rest = |io: &mut SimIo, log: &mut LogStore| {
        let mut turns = 0..1000;
        while !log.is_idle() && turns.next().is_some() {
            assert!(!checkpoint_turn(io, log), "a sound disk");
        }
        assert!(log.is_idle());
    };
    let checkpoint = |io: &mut SimIo, log: &mut LogStore| {
        log.checkpoint_now(false);
        rest(io, log);
    };
    let put = |io: &mut SimIo, log: &mut LogStore, index: u32, byte: u8| {
        let entry = AppendEntry { slot: Slot(index), key: key(index.into()), dirty: true };
        log.append(io, Ticket(1), Stream::Write, &[entry], &content(byte), true);
        rest(io, log);
    };
    let mut puts = 0..1000;
    // Segments become free that lie before the last one, so that the start uses these first.
    for _ in puts.by_ref().take(50) {
        put(&mut io, &mut log, 1, 7);
    }
    checkpoint(&mut io, &mut log);
    let before = newest_segment(&io, disk)[0];
    let is_filled = |of: &[u64]| of[0] != before && of.len() > 5;
    while !is_filled(&newest_segment(&io, disk)) && puts.next().is_some() {
        put(&mut io, &mut log, 11, 8);
    }
    io.crash(CrashMode::KeepAll);
    let dark = newest_segment(&io, disk);
    dark.iter().for_each(|block| io.fail_reads(disk, block * BLOCK, BLOCK));
    let (mut log, unsure) = open(&mut io, disk);
    checkpoint(&mut io, &mut log);
    put(&mut io, &mut log, 11, 99);
    io.crash(CrashMode::KeepAll);
    let image = io.image(disk);
    io.replace_disk(disk);
    io.put_image(disk, image);
    let (mut log, recovered) = open(&mut io, disk);
    let found = recovered.entries.iter().find(|entry| entry.key == key(11)).expect("it was stored");
    log.read(&mut io, Ticket(2), &[found.slot]);
    let events = settle(&mut io, &mut log);
    let [StoreEvent::Read { result: Ok(buffer), .. }] = &events[..] else { panic!("{events:?}") };
    assert!(buffer[..] == content(99)[..], "an older version came back: {}", buffer[0]);
    let upto = Some(super::layout::SEQ_MAX);
    assert_eq!(unsure.undecided, upto, "a record in NVM may be older, however young");
}

/// Goal: damage in a checkpoint is found. Method: a clean shutdown, then rot in its only chunk: in
/// one sector, which the parity makes up for, then in a second one, which leaves all that has no
/// record undecided.
#[test]
fn rotten_checkpoint_leaves_its_blocks_undecided() {
    struct Full;
    impl super::SlotView for Full {
        fn slot(&self, slot: Slot) -> Option<super::SlotInfo> {
            Some(super::SlotInfo { key: key(slot.0.into()), dirty: true })
        }
    }
    let (mut io, disk, mut log) = fresh(5);
    stored(&put(&mut io, &mut log, 0, 30, true)).expect("a sound disk");
    log.checkpoint_now(true);
    let mut complete = false;
    while !complete {
        let (mut done, mut events) = (Vec::new(), Vec::new());
        let soon = Nanos(io.now().0 + 1_000_000);
        io.wait(soon, &mut done);
        done.into_iter().for_each(|done| log.on_io(&mut io, done));
        log.on_tick(&mut io, soon, &Full);
        log.take_events(&mut events);
        for event in events {
            match event {
                StoreEvent::NeedPeerSync { id, .. } => log.peer_synced(id),
                StoreEvent::CheckpointDone { clean, .. } => complete = clean,
                other => panic!("{other:?}"),
            }
        }
    }
    let (_, recovered) = open(&mut io, disk);
    assert!(recovered.clean_shutdown && recovered.entries.len() == 1);
    let bytes = io.peek(disk);
    let chunk = bytes.chunks(BLOCK as usize).position(|block| block.starts_with(b"LAYBYCKC"));
    let at = chunk.expect("a chunk was written") as u64 * BLOCK;
    io.corrupt(disk, at + 70, 10);
    assert_eq!(problems(&io, disk, StoreKind::Log)[0], at);
    let (_, recovered) = open(&mut io, disk);
    assert_eq!((recovered.damaged[0].offset, recovered.entries.len()), (at, 1));
    io.corrupt(disk, at + 600, 10);
    assert_eq!(problems(&io, disk, StoreKind::Log), [at], "its parity page makes up for it");
    let (_, recovered) = open(&mut io, disk);
    assert_eq!((recovered.damaged[0].offset, recovered.entries.len()), (at, 1));
    assert!(recovered.undecided.is_none());
    io.corrupt(disk, at + BLOCK + 70, 10);
    let refused = LogStore::open(&mut io, strict(disk), SeqSource::new(Seq(1))).err();
    let Some(StoreError::Corrupt(info)) = refused else { panic!("{refused:?}") };
    assert_eq!((info.offset, info.what), (at, "checkpoint chunk"));
    let (_, recovered) = open(&mut io, disk);
    assert_eq!((recovered.damaged[0].offset, recovered.entries.len()), (at, 0));
    assert!(recovered.undecided.is_some());
}

/// Goal: another node's, resized, unformatted and damaged regions are refused by name, untouched.
/// Method: one open each.
#[test]
fn foreign_regions_are_refused() {
    let (mut io, disk, _) = fresh(6);
    let refuse = |io: &mut SimIo, change: fn(&mut super::LogConfig)| {
        let mut wrong = config(disk);
        change(&mut wrong);
        LogStore::open(io, wrong, SeqSource::new(Seq(1))).err().expect("it must be refused")
    };
    let error = refuse(&mut io, |config| config.identity.node = [8; 16]);
    assert!(matches!(error, StoreError::OtherNode { .. }), "{error}");
    let error = refuse(&mut io, |config| config.identity.shard_count = 2);
    assert!(matches!(error, StoreError::Mismatch { what: "shard count", .. }), "{error}");
    let error = refuse(&mut io, |config| config.region.length /= 2);
    assert!(matches!(error, StoreError::Mismatch { what: "length", .. }), "{error}");
    io.corrupt(disk, 16, 32);
    let (_, found) = open(&mut io, disk);
    assert!(found.entries.is_empty(), "one sector's loss is made up for");
    io.corrupt(disk, 600, 32);
    let error = refuse(&mut io, |_| {});
    assert!(matches!(error, StoreError::Corrupt(CorruptInfo { what: "superblock", .. })));
    let empty = io.add_disk("empty", LENGTH);
    let opened = LogStore::open(&mut io, config(empty), SeqSource::new(Seq(1)));
    assert!(matches!(opened.err(), Some(StoreError::NotFormatted { .. })));
    let tiny = io.add_disk("tiny", 64 << 10);
    let formatted = LogStore::format(&mut io, &config(tiny), 1);
    assert!(matches!(formatted.err(), Some(StoreError::TooSmall { .. })));
}

/// Goal: a failed write fails its call only; the slot keeps its bytes. Method: an injected error
/// and a full device between two good appends, then a recovery.
#[test]
fn failed_writes_change_nothing() {
    let (mut io, disk, mut log) = fresh(7);
    stored(&put(&mut io, &mut log, 0, 40, true)).expect("a sound disk");
    io.fail_next(disk, OperationKind::Write, Errno::IO);
    assert_eq!(stored(&put(&mut io, &mut log, 0, 41, true)), Err(ErrorKind::Retry));
    io.set_full(disk, true);
    assert_eq!(stored(&put(&mut io, &mut log, 0, 42, true)), Err(ErrorKind::Full));
    io.set_full(disk, false);
    log.read(&mut io, Ticket(2), &[Slot(0)]);
    let events = settle(&mut io, &mut log);
    let [StoreEvent::Read { result: Ok(buffer), .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(buffer[..], content(40)[..]);
    stored(&put(&mut io, &mut log, 1, 43, true)).expect("a sound disk");
    assert!(problems(&io, disk, StoreKind::Log).is_empty());
    io.crash(CrashMode::DropAll);
    let (_, recovered) = open(&mut io, disk);
    assert_eq!(recovered.entries.len(), 2);
    assert!(recovered.lost.is_empty() && recovered.damaged.is_empty());
}

/// Goal: what a failed write left on the device is never taken for what it was to write. Method:
/// a failed append over an older one, under many seeds, so that some leave all of it; then a crash.
#[test]
fn a_failed_write_stays_failed() {
    for seed in 0..64 {
        let (mut io, disk, mut log) = fresh(seed);
        stored(&put(&mut io, &mut log, 0, 40, true)).expect("a sound disk");
        io.fail_next(disk, OperationKind::Write, Errno::IO);
        assert_eq!(stored(&put(&mut io, &mut log, 0, 41, true)), Err(ErrorKind::Retry));
        io.crash(CrashMode::KeepAll);
        let (mut log, _) = open(&mut io, disk);
        log.read(&mut io, Ticket(2), &[Slot(0)]);
        let events = settle(&mut io, &mut log);
        let [StoreEvent::Read { result: Ok(buffer), .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(buffer[..], content(40)[..], "seed {seed}");
    }
}

/// Goal: after a failed sync the log never again claims durability. Method: one volatile append,
/// two syncs, of which the first fails on the device.
#[test]
fn failed_sync_is_final() {
    let (mut io, disk, mut log) = fresh(8);
    stored(&put(&mut io, &mut log, 0, 50, true)).expect("a sound disk");
    stored(&put(&mut io, &mut log, 1, 51, false)).expect("a sound disk");
    io.fail_next(disk, OperationKind::Sync, Errno::IO);
    for ticket in [Ticket(1), Ticket(2)] {
        log.sync(&mut io, ticket);
        let events = settle(&mut io, &mut log);
        let [told @ .., StoreEvent::Synced { result: Err(_), .. }] = &events[..] else {
            panic!("{events:?}")
        };
        let is_told = matches!(told, [StoreEvent::DeviceFailed(_)]);
        assert!(is_told || told.is_empty() && ticket == Ticket(2), "{events:?}");
    }
}

/// Goal: a durable write that was under way while another one's sync failed is not acknowledged:
/// the device may have dropped what it wrote. Method: one durable append per stream at once, the
/// first one's own sync fails; then each alone.
#[test]
fn a_durable_write_beside_a_failed_sync_fails() {
    for seed in 0..16 {
        let (mut io, disk, mut log) = fresh(seed);
        let mut streams = [Stream::Write, Stream::Promote].into_iter().zip(0..);
        let mut append = |io: &mut SimIo, log: &mut LogStore| {
            let (stream, index) = streams.next().expect("there are two");
            let entry = AppendEntry { slot: Slot(index), key: key(index.into()), dirty: true };
            log.append(io, Ticket(index.into()), stream, &[entry], &content(9), true);
        };
        io.fail_next_own_sync(disk, Errno::IO);
        append(&mut io, &mut log);
        append(&mut io, &mut log);
        let stored = settle(&mut io, &mut log).into_iter().filter_map(|event| match event {
            StoreEvent::Stored { result, .. } => Some(result),
            _ => None,
        });
        let stored: Vec<_> = stored.collect();
        assert_eq!(stored, [Err(ErrorKind::Retry); 2], "seed {seed}");
        assert_eq!(self::stored(&put(&mut io, &mut log, 3, 52, true)), Ok(()));
    }
}

/// Goal: once a sync has failed, checkpoints fail without writing: none could be made durable.
/// Method: a volatile append whose sync fails, then checkpoints that are asked for.
#[test]
fn no_checkpoint_is_written_after_a_failed_sync() {
    let (mut io, disk, mut log) = fresh(8);
    stored(&put(&mut io, &mut log, 0, 50, true)).expect("a sound disk");
    stored(&put(&mut io, &mut log, 1, 51, false)).expect("a sound disk");
    io.fail_next(disk, OperationKind::Sync, Errno::IO);
    log.sync(&mut io, Ticket(1));
    settle(&mut io, &mut log);
    assert!(log.sync.lost, "a batch was not durable");
    let before = log.counters().bytes_checkpoint;
    for _ in 0..3 {
        log.checkpoint_now(false);
        assert!((0..10_000).any(|_| checkpoint_turn(&mut io, &mut log)), "it ends");
    }
    assert_eq!(log.counters().bytes_checkpoint, before);
}

/// Goal: a checkpoint during which a sync of its disk fails is none, wherever that comes: the
/// device may have dropped its chunks, or its trailer. Method: a sync that fails after so many
/// turns of a checkpoint, of one more each time until it comes behind its end.
#[test]
fn no_checkpoint_outlives_a_failed_sync() {
    for turns in 0.. {
        let (mut io, _, mut log) = fresh(8);
        stored(&put(&mut io, &mut log, 0, 50, true)).expect("a sound disk");
        log.checkpoint_now(false);
        for _ in 0..turns {
            checkpoint_turn(&mut io, &mut log);
        }
        super::log_checkpoint::on_sync_failed(&mut log);
        if turns > 0 && !super::log_checkpoint::is_running(&log) {
            return assert!(turns > 3, "{turns} turns");
        }
        let failed = (0..1000).any(|_| checkpoint_turn(&mut io, &mut log));
        assert_eq!(failed, turns > 0, "{turns} turns");
    }
}

/// Goal: what is noted of unsynced batches is bounded, and still says the first and each stream's
/// last. Method: batches of two streams, in turns and out of their order.
#[test]
fn notes_of_unsynced_batches_are_bounded() {
    let mut sync = super::log::SyncState::default();
    for pair in 0..50_000_u64 {
        for (stream, seq) in [(Stream::Write, 2 * pair + 7), (Stream::Promote, 2 * pair + 6)] {
            sync.note_written(stream, super::log_layout::BatchName { segment: 0, seq });
        }
        assert!(sync.written.len() < 2 * super::log::UNSYNCED_MAX);
    }
    let seqs = |wanted| {
        let of = sync.written.iter().filter(move |(stream, _)| *stream == wanted);
        of.map(|(_, name)| name.seq)
    };
    assert_eq!(seqs(Stream::Promote).min(), Some(6));
    assert_eq!(
        [Stream::Write, Stream::Promote].map(|it| seqs(it).max()),
        [Some(100_005), Some(100_004)]
    );
}

/// Goal: an unreadable sector fails its read alone, as bytes that cannot be had, with its place; a
/// device that cannot be read at all says nothing of its blocks. Method: one of each injected.
#[test]
fn unreadable_sector_fails_one_read() {
    let (mut io, disk, mut log) = fresh(9);
    stored(&put(&mut io, &mut log, 0, 60, true)).expect("a sound disk");
    stored(&put(&mut io, &mut log, 1, 61, true)).expect("a sound disk");
    io.fail_reads(disk, find(&io, disk, 60), 512);
    for (slot, sound) in [(Slot(0), false), (Slot(1), true)] {
        log.read(&mut io, Ticket(3), &[slot]);
        let events = settle(&mut io, &mut log);
        let [told, StoreEvent::Read { result, .. }] = &events[..] else { panic!("{events:?}") };
        let kind = result.as_ref().map(drop).map_err(|failure| failure.kind);
        assert_eq!(kind, if sound { Ok(()) } else { Err(ErrorKind::Corrupt) });
        let at = find(&io, disk, 60);
        let is_told = match told {
            StoreEvent::DeviceFailed(failure) => !sound && failure.offset == at,
            told => sound && matches!(told, StoreEvent::DeviceWorks(OperationKind::Read)),
        };
        assert!(is_told, "{events:?}");
    }
    io.fail_next(disk, OperationKind::Read, Errno::NODEV);
    log.read(&mut io, Ticket(4), &[Slot(1)]);
    let events = settle(&mut io, &mut log);
    let Some(StoreEvent::Read { result: Err(failure), .. }) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(failure.kind, ErrorKind::Retry);
    log.on_tick(&mut io, Nanos::ZERO, &Nothing);
}

pub(super) fn nvm_config(disk: DiskId) -> NvmConfig {
    let identity = StoreIdentity { node: [9; 16], shard: ShardIndex(0), shard_count: 1 };
    let region = Region { disk, base: 0, length: LENGTH, block_size: BlockSize::MIN };
    NvmConfig { region, identity, is_strict: true, token_tag: 2 }
}

/// Goal: what the NVM level writes is counted whole: data, headers with their copies, the words by
/// which these change, and marks. Method: persistent memory, where all is written at once: a block,
/// a newer version of it, its destage, a sync, its eviction, each beside the bytes of its parts.
#[test]
fn nvm_headers_are_counted() {
    let mut io = SimIo::new(11);
    let disk = io.add_persistent_memory("nvm", LENGTH);
    NvmStore::format(&mut io, &nvm_config(disk), 77).expect("large enough");
    let opened = NvmStore::open(&mut io, nvm_config(disk), SeqSource::new(Seq(1)));
    let (mut nvm, _) = opened.expect("just formatted");
    let mut seen = nvm.counters().bytes_written;
    let mut grown = |nvm: &NvmStore| {
        let now = nvm.counters().bytes_written;
        now - std::mem::replace(&mut seen, now)
    };
    let (headers, words, mark) = (2 * 32, 2 * 8, 16);
    let entry = (Slot(0), key(0), true);
    nvm.store(&mut io, Ticket(1), &[entry], &content(1), true);
    assert_eq!(grown(&nvm), BLOCK + headers);
    nvm.store(&mut io, Ticket(2), &[entry], &content(2), true);
    assert_eq!(grown(&nvm), BLOCK + headers + headers, "the older version's are cleared");
    nvm.set_clean(Slot(0));
    assert_eq!(grown(&nvm), words);
    nvm.sync(&mut io, Ticket(3), SyncScope::Stores);
    assert_eq!(grown(&nvm), mark);
    nvm.free(Slot(0), Freed::Superseded);
    nvm.on_tick(&mut io, Nanos::ZERO, u64::MAX);
    assert_eq!(grown(&nvm), headers);
}

/// Goal: rot in NVM data and headers is named and not served; a header comes back from its copy,
/// and without one nothing is certain, since what it held may be newer than what lies below.
/// Method: one of each, on slots whose stores are durable.
#[test]
fn rotten_nvm_is_named() {
    let mut io = SimIo::new(10);
    let disk = io.add_disk("nvm", LENGTH);
    NvmStore::format(&mut io, &nvm_config(disk), 77).expect("large enough");
    let opened = NvmStore::open(&mut io, nvm_config(disk), SeqSource::new(Seq(1)));
    let (mut nvm, _) = opened.expect("just formatted");
    for (index, byte) in [(0, 70), (1, 71)] {
        let entry = (Slot(index), key(index.into()), true);
        nvm.store(&mut io, Ticket(index.into()), &[entry], &content(byte), true);
    }
    for ticket in [Ticket(8), Ticket(9)] {
        nvm.sync(&mut io, ticket, SyncScope::Stores);
        while !nvm.is_idle() {
            let mut done = Vec::new();
            io.wait(Nanos::NEVER, &mut done);
            done.into_iter().for_each(|done| nvm.on_io(&mut io, done));
        }
    }
    let data = find(&io, disk, 70);
    drop(nvm);
    io.corrupt(disk, data, BLOCK);
    let opened = NvmStore::open(&mut io, nvm_config(disk), SeqSource::new(Seq(1)));
    let (nvm, recovered) = opened.expect("rotten data does not stop the start");
    let [rotten, sound] = [0, 1].map(|index| {
        let entry = recovered.entries.iter().find(|entry| entry.key == key(index));
        nvm.read(entry.expect("both were durable").slot)
    });
    let info = rotten.expect_err("it is rotten");
    assert_eq!((info.disk.as_str(), info.offset, info.key), ("nvm", data, Some(key(0))));
    assert!(sound.is_ok_and(|bytes| bytes == content(71)));
    assert_eq!(problems(&io, disk, StoreKind::Nvm), [data]);
    let header = 2 * BLOCK + 32;
    drop(nvm);
    io.corrupt(disk, header + 24, 4);
    assert_eq!(problems(&io, disk, StoreKind::Nvm), [data, header]);
    let opened = NvmStore::open(&mut io, nvm_config(disk), SeqSource::new(Seq(1)));
    let (nvm, recovered) = opened.expect("a header has a copy");
    assert_eq!(recovered.damaged.iter().map(|info| info.offset).collect::<Vec<_>>(), [header]);
    assert_eq!(recovered.entries.len(), 2);
    drop(nvm);
    let copy = header + BLOCK * (LENGTH / BLOCK * 32).div_ceil(BLOCK);
    io.corrupt(disk, header + 24, 4);
    io.corrupt(disk, copy + 24, 4);
    let lenient = NvmConfig { is_strict: false, ..nvm_config(disk) };
    let opened = NvmStore::open(&mut io, lenient, SeqSource::new(Seq(1)));
    let (nvm, recovered) = opened.expect("it starts, and says that nothing is certain");
    assert_eq!((recovered.entries.len(), recovered.undecided), (1, Some(super::layout::SEQ_MAX)));
    drop(nvm);
    let opened = NvmStore::open(&mut io, nvm_config(disk), SeqSource::new(Seq(1)));
    let Some(StoreError::Corrupt(info)) = opened.err() else { panic!("an older block may return") };
    assert_eq!((info.offset, info.what), (header, "NVM slot header"));
}

/// Goal: a store of several blocks that is refused while it waits for room says which of them it
/// has placed, once these are durable, since a start would find them. Method: as many slots are
/// retiring as forgets can free; a store that finds room for a part is refused, on a mapping that
/// is synced and on persistent memory.
#[test]
fn a_refused_store_says_what_is_placed() {
    for is_persistent in [false, true] {
        let mut io = SimIo::new(11);
        let disk = match is_persistent {
            true => io.add_persistent_memory("nvm", LENGTH),
            false => io.add_disk("nvm", LENGTH),
        };
        NvmStore::format(&mut io, &nvm_config(disk), 77).expect("large enough");
        let opened = NvmStore::open(&mut io, nvm_config(disk), SeqSource::new(Seq(1)));
        let (mut nvm, _) = opened.expect("just formatted");
        let run = |io: &mut SimIo, nvm: &mut NvmStore| {
            let mut events = Vec::new();
            while !nvm.is_idle() {
                let mut done = Vec::new();
                io.wait(Nanos::NEVER, &mut done);
                done.into_iter().for_each(|done| nvm.on_io(io, done));
                nvm.take_events(&mut events);
            }
            nvm.take_events(&mut events);
            events
        };
        let entries = |slots: std::ops::Range<u32>, first: u64| -> Vec<_> {
            slots.map(|slot| (Slot(slot), key(first + u64::from(slot)), true)).collect()
        };
        let count = nvm.slot_count();
        for slot in 0..count {
            nvm.store(&mut io, Ticket(0), &entries(slot..slot + 1, 0), &content(1), true);
            run(&mut io, &mut nvm);
        }
        (0..count).for_each(|slot| nvm.free(Slot(slot), Freed::Evicted { forgets_issued: 1 }));
        let data: Vec<u8> = (0..count).flat_map(|_| content(2)).collect();
        nvm.store(&mut io, Ticket(7), &entries(0..count, 1 << 20), &data, true);
        nvm.refuse_delayed(ErrorKind::Retry);
        nvm.on_tick(&mut io, Nanos::ZERO, 0);
        let events = run(&mut io, &mut nvm);
        let ended: Vec<&StoreEvent> =
            events.iter().filter(|event| !matches!(event, StoreEvent::NeedForgets)).collect();
        let [StoreEvent::Written { ticket, slots }, last] = ended[..] else { panic!("{events:?}") };
        assert_eq!((*ticket, stored(last)), (Ticket(7), Err(ErrorKind::Retry)));
        drop(nvm);
        io.crash(CrashMode::DropAll);
        let opened = NvmStore::open(&mut io, nvm_config(disk), SeqSource::new(Seq(1)));
        let (nvm, found) = opened.expect("it starts");
        let mut newer: Vec<Slot> = Vec::new();
        for entry in &found.entries {
            if nvm.read(entry.slot).expect("sound") == content(2) {
                newer.push(Slot((entry.key.block().0 - (1 << 20)) as u32));
            }
        }
        newer.sort_unstable();
        assert_eq!(&newer, slots, "what a start finds is what was told");
        assert!(!newer.is_empty() && newer.len() < count as usize);
    }
}
