//! Cleaning under the least favourable writes: a full level, one block per batch.

use super::log_checkpoint::closing;
use super::log_clean::{STEP, STEP_COPY, is_stranded};
use super::log_layout::Record;
use super::log_tokens::Purpose;
use super::tests_both::for_each_seed;
use super::tests_log::TAG;
use super::{
    AppendEntry, LogConfig, LogStore, Region, SegmentPlan, SeqSource, SlotInfo, SlotView,
    StoreEvent, StoreIdentity, Stream, Ticket,
};
use crate::io::{Io, IoDone, SimIo};
use layby_cache::Cleaned;
use layby_types::{
    BlockIndex, BlockKey, BlockSize, ErrorKind, Nanos, Rng, Seq, ShardIndex, Slot, VolumeId,
};
use std::sync::atomic::{AtomicU32, Ordering};

/// Turns in which any write ends: a checkpoint and a few segments cleaned take hundreds.
const TURNS_MAX: u32 = 20_000;

/// Blocks of logs of ten to thirteen segments, so that a few damaged ones leave no room: of the
/// shortest segments, and of longer ones that copies fill less densely than one write does.
const DAMAGED_BLOCKS: [u64; 5] = [109, 140, 167, 190, 212];

/// Slots below the number hold a block of the same number.
pub(super) struct Filled(pub(super) u32);

impl SlotView for Filled {
    fn slot(&self, slot: Slot) -> Option<SlotInfo> {
        (slot.0 < self.0).then(|| SlotInfo { key: key(slot), dirty: true })
    }
}

pub(super) fn key(slot: Slot) -> BlockKey {
    BlockKey::new(VolumeId(1), BlockIndex(slot.0.into()))
}

/// A full log whose slots are overwritten, each write alone in its batch.
pub(super) struct Churn {
    pub(super) io: SimIo,
    pub(super) log: LogStore,
    filled: Filled,
    data: Vec<u8>,
}

impl Churn {
    fn new(seed: u64, length: u64, block_size: BlockSize) -> Churn {
        Churn::with(seed, length, block_size, SegmentPlan::default())
    }

    pub(super) fn with(
        seed: u64,
        length: u64,
        block_size: BlockSize,
        segments: SegmentPlan,
    ) -> Churn {
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("ssd", length);
        let identity = StoreIdentity { node: [9; 16], shard: ShardIndex(0), shard_count: 1 };
        let region = Region { disk, base: 0, length, block_size };
        let config = LogConfig { segments, ..LogConfig::new(region, identity, TAG) };
        LogStore::format(&mut io, &config, 1).expect("the region is large enough");
        let opened = LogStore::open(&mut io, config, SeqSource::new(Seq(1)));
        let (log, _) = opened.expect("it was just formatted");
        Churn { io, log, filled: Filled(0), data: vec![7; block_size.len()] }
    }

    /// A small log with all its slots written, and up to as many blocks overwritten at random.
    fn full(seed: u64, rng: &mut Rng) -> Churn {
        let mut churn = Churn::new(seed, 2 << 20, BlockSize::MIN);
        let slots = churn.log.slot_count();
        (0..slots).for_each(|slot| assert_eq!(churn.write(Slot(slot), Stream::Write), Ok(())));
        for _ in 0..rng.below(u64::from(slots)) {
            let slot = Slot(rng.below(slots.into()) as u32);
            assert_eq!(churn.write(slot, Stream::Write), Ok(()));
        }
        churn
    }

    /// Writes one block and waits for its end.
    pub(super) fn write(&mut self, slot: Slot, stream: Stream) -> Result<(), ErrorKind> {
        let entry = AppendEntry { slot, key: key(slot), dirty: true };
        self.log.append(&mut self.io, Ticket(1), stream, &[entry], &self.data, true);
        self.filled.0 = self.filled.0.max(slot.0 + 1);
        let ended = (0..TURNS_MAX).find_map(|_| self.turn());
        let free = self.log.segments_free();
        ended.unwrap_or_else(|| panic!("a write never ends: {free} segments are free"))
    }

    /// Writes blocks in one batch, and does not wait for its end.
    fn append(&mut self, slots: &[u32]) {
        let slots = slots.iter().map(|slot| Slot(*slot));
        let entry = |slot| AppendEntry { slot, key: key(slot), dirty: true };
        let entries: Vec<AppendEntry> = slots.map(entry).collect();
        let data = self.data.repeat(entries.len());
        self.log.append(&mut self.io, Ticket(1), Stream::Write, &entries, &data, false);
    }

    /// Waits for the end of a write, and holds back ends of batches of these streams.
    fn finish_without(&mut self, held: &mut Vec<IoDone>, streams: &[Stream]) {
        let ended = (0..TURNS_MAX).find_map(|_| self.turn_without(held, streams).0);
        ended.expect("a write ends").expect("no fault");
    }

    /// Makes one live block unreadable in each of `count` segments; the slots of the others.
    fn damage(&mut self, count: usize) -> Vec<u32> {
        let geometry = self.log.geometry;
        let mut slots: Vec<u32> = (0..geometry.slot_count).collect();
        let location = |slot: u32| self.log.slots[slot as usize].location;
        let mut sick = slots.clone();
        sick.sort_by_key(|slot| location(*slot));
        sick.dedup_by_key(|slot| geometry.segment_of(location(*slot)));
        sick.truncate(count);
        for slot in &sick {
            let (disk, offset) = (self.log.config.region.disk, self.log.offset_of(location(*slot)));
            self.io.fail_reads(disk, offset, geometry.block_bytes.into());
        }
        slots.retain(|slot| !sick.contains(slot));
        slots
    }

    /// Reads a slot, which must hold what was written.
    fn check(&mut self, slot: Slot) {
        self.log.read(&mut self.io, Ticket(2), &[slot]);
        for _ in 0..TURNS_MAX {
            let mut done = Vec::new();
            self.io.wait(Nanos(self.io.now().0 + 1_000_000), &mut done);
            done.into_iter().for_each(|done| self.log.on_io(&mut self.io, done));
            let mut events = Vec::new();
            self.log.take_events(&mut events);
            for event in events {
                let StoreEvent::Read { result, .. } = event else { continue };
                let bytes = result.unwrap_or_else(|_| panic!("{slot:?} cannot be read"));
                assert!(*bytes == self.data[..], "{slot:?} has other bytes");
                return self.io.recycle(bytes);
            }
        }
        panic!("a read never ends");
    }

    /// Waits until the log has nothing left to do by itself.
    pub(super) fn rest(&mut self) {
        self.rest_and(|_, _| {});
    }

    /// The same, and looks at it after each turn.
    pub(super) fn rest_and(&mut self, mut look: impl FnMut(&SimIo, &LogStore)) {
        let rested = (0..TURNS_MAX).any(|_| {
            self.turn();
            look(&self.io, &self.log);
            self.io.in_flight() == 0 && self.log.next_deadline() == Nanos::NEVER
        });
        assert!(rested, "{} segments cleaned, and no end", self.log.counters().segments_cleaned);
    }

    /// Lets an operation end; how a write has, if one did. An owner that is asked says that all is
    /// being destaged, and never ends that.
    fn turn(&mut self) -> Option<Result<(), ErrorKind>> {
        let (ended, asked) = self.turn_of_owner();
        if !asked.is_empty() {
            self.log.cleaned(&mut self.io, &vec![Cleaned::Destaging; asked.len()]);
        }
        ended
    }

    /// The same, and what the owner is asked about.
    fn turn_of_owner(&mut self) -> (Option<Result<(), ErrorKind>>, Vec<Slot>) {
        self.turn_without(&mut Vec::new(), &[])
    }

    /// The same, but for ends of batches of these streams, which are held back.
    fn turn_without(
        &mut self,
        held: &mut Vec<IoDone>,
        streams: &[Stream],
    ) -> (Option<Result<(), ErrorKind>>, Vec<Slot>) {
        let mut done = Vec::new();
        self.io.wait(Nanos(self.io.now().0 + 1_000_000), &mut done);
        let token = |stream: &Stream| self.log.token(Purpose::Batch, *stream as u64);
        let tokens: Vec<_> = streams.iter().map(token).collect();
        for done in done {
            match tokens.contains(&done.token) {
                true => held.push(done),
                false => self.log.on_io(&mut self.io, done),
            }
        }
        let now = self.io.now();
        self.log.on_tick(&mut self.io, now, &self.filled);
        let (mut events, mut ended, mut asked) = (Vec::new(), None, Vec::new());
        self.log.take_events(&mut events);
        for event in events {
            match event {
                StoreEvent::NeedPeerSync { id, .. } => self.log.peer_synced(id),
                StoreEvent::Stored { result, .. } => ended = Some(result),
                StoreEvent::Cleaning { slots } => asked = slots,
                _ => {}
            }
        }
        (ended, asked)
    }
}

/// Goal: cleaning waits for no destage. Method: a full log takes writes at random, with few streams
/// and with all, and each live block of each victim is being destaged, which never ends.
#[test]
fn cleaning_waits_for_no_destage() {
    for_each_seed(8, |seed| {
        let has_all_streams = Some(seed.is_multiple_of(2));
        let segments = SegmentPlan { has_all_streams, ..SegmentPlan::default() };
        let mut churn = Churn::with(seed, 2 << 20, BlockSize::MIN, segments);
        churn.log.ask_owner(true);
        let (mut rng, slots) = (Rng::new(seed), churn.log.slot_count());
        for step in 0..6 * slots {
            let slot = if step < slots { step } else { rng.below(slots.into()) as u32 };
            assert_eq!(churn.write(Slot(slot), Stream::Write), Ok(()), "step {step}");
        }
    });
}

/// Goal: a level that is full of live blocks takes writes for ever, however small its batches and
/// its segments are. Method: fill every slot by single writes, then overwrite at random; the part
/// of each of four shards of the least SSD level, a level whose segments are as short, the least
/// level with the largest blocks, and segments of twice that length.
#[test]
fn a_full_log_takes_single_writes_for_ever() {
    let (small, large) = (BlockSize::MIN, BlockSize::MAX);
    let logs = [(2 << 20, small), (3_698_688, small), (8 << 20, large), (4 << 20, small)];
    for ((length, block_size), batch) in logs.iter().flat_map(|log| [(*log, 0), (*log, 2)]) {
        for_each_seed(2, |seed| {
            let mut rng = Rng::new(seed);
            let mut churn = Churn::new(seed, length, block_size);
            if batch > 0 {
                churn.io.set_batch_bytes(batch * block_size.len());
            }
            let slots = churn.log.slot_count();
            for step in 0..6 * slots {
                let slot = if step < slots { step } else { rng.below(slots.into()) as u32 };
                let stream = if rng.chance(1, 4) { Stream::Promote } else { Stream::Write };
                assert_eq!(churn.write(Slot(slot), stream), Ok(()));
            }
        });
    }
}

/// Goal: where so many segments hold blocks that cannot be read that cleaning the others gains
/// nothing, a write ends with an error, and the log rests rather than wear the flash for ever.
/// Method: fill every slot, make a block unreadable in some segments and leave those blocks alone,
/// overwrite the others at random; every write ends, and after the last one all comes to rest.
#[test]
fn damaged_segments_never_make_cleaning_endless() {
    let refused = AtomicU32::new(0);
    let batches = [None, Some(1), Some(2), Some(4), Some(8)];
    let cases = DAMAGED_BLOCKS.iter().flat_map(|blocks| (0..7).map(move |count| (*blocks, count)));
    let cases = cases.flat_map(|case| batches.map(move |batch| (case, batch)));
    let cases: Vec<((u64, usize), Option<usize>)> = cases.collect();
    for_each_seed(8, |seed| {
        for ((blocks, damaged), batch) in cases.clone() {
            let mut rng = Rng::new(seed);
            let length = blocks * u64::from(BlockSize::MIN.bytes());
            let mut churn = Churn::new(seed, length, BlockSize::MIN);
            if let Some(batch) = batch {
                churn.io.set_batch_bytes(batch * BlockSize::MIN.len());
            }
            let slots = churn.log.slot_count();
            (0..slots).for_each(|slot| assert_eq!(churn.write(Slot(slot), Stream::Write), Ok(())));
            let sound = churn.damage(damaged);
            for _ in 0..6 * slots {
                let slot = sound[rng.below(sound.len() as u64) as usize];
                let stream = if rng.chance(1, 4) { Stream::Promote } else { Stream::Write };
                let result = churn.write(Slot(slot), stream);
                let is_expected =
                    matches!(result, Ok(()) | Err(ErrorKind::Full | ErrorKind::Retry));
                assert!(is_expected && (damaged > 0 || result.is_ok()), "{result:?}");
                refused.fetch_add(result.is_err().into(), Ordering::Relaxed);
            }
            churn.rest();
        }
    });
    assert!(refused.into_inner() > 0, "no log was full of damage");
}

/// Goal: a segment with a block that cannot be moved gives no room, so that the cache lets as many
/// blocks go rather than have writes refused; it does again once the block is superseded. Method: a
/// full log with an unreadable block, the others overwritten until cleaning has met it; all written
/// anew; what the log has room for each time.
#[test]
fn a_damaged_segment_gives_room_once_it_is_empty() {
    for_each_seed(8, |seed| {
        let mut rng = Rng::new(seed);
        let mut churn = Churn::new(seed, 2 << 20, BlockSize::MIN);
        let slots = churn.log.slot_count();
        (0..slots).for_each(|slot| assert_eq!(churn.write(Slot(slot), Stream::Write), Ok(())));
        let sound = churn.damage(1);
        let sick = (0..slots).find(|slot| !sound.contains(slot)).expect("one is damaged");
        let is_met = (0..20 * slots).any(|_| {
            let slot = sound[rng.below(sound.len() as u64) as usize];
            let _ = churn.write(Slot(slot), Stream::Write);
            churn.log.slots_usable() < slots
        });
        assert!(is_met, "cleaning never met the block; seed {seed}");
        assert!(churn.log.slots_usable() > 0, "one segment of many; seed {seed}");
        for slot in [sick].into_iter().chain(sound) {
            let is_taken = (0..100).any(|_| churn.write(Slot(slot), Stream::Write).is_ok());
            assert!(is_taken, "slot {slot} is never written, seed {seed}");
        }
        churn.rest();
        assert_eq!(churn.log.slots_usable(), slots, "seed {seed}");
    });
}

/// Goal: where a victim's copies find no room and nothing of the log's own will ever make any, a
/// write ends with an error instead of waiting for ever, and goes on once there is room. Method: a
/// full log from which all free segments, or all but one, are hidden between two writes, as power
/// cuts that tear one victim's copies after another would leave it; overwrites; the segments come
/// back.
#[test]
fn a_log_without_room_for_copies_refuses() {
    let refused = AtomicU32::new(0);
    for_each_seed(100, |seed| {
        let mut rng = Rng::new(seed);
        let mut churn = Churn::full(seed, &mut rng);
        let slots = churn.log.slot_count();
        let kept = churn.log.free_segments.len().min(seed as usize % 2);
        let hidden: Vec<u32> = churn.log.free_segments.drain(kept..).collect();
        for _ in 0..4 * slots {
            let result = churn.write(Slot(rng.below(slots.into()) as u32), Stream::Write);
            assert!(matches!(result, Ok(()) | Err(ErrorKind::Full)), "{result:?}; seed {seed}");
            refused.fetch_add(result.is_err().into(), Ordering::Relaxed);
        }
        churn.log.free_segments.extend(hidden);
        for _ in 0..2 * slots {
            let slot = Slot(rng.below(slots.into()) as u32);
            assert_eq!(churn.write(slot, Stream::Write), Ok(()), "seed {seed}");
        }
        (0..slots).for_each(|slot| churn.check(Slot(slot)));
    });
    assert!(refused.into_inner() > 0, "no log was out of room");
}

/// Goal: a stop does not wait for a victim's copies that find no room: it gives them up, ends with
/// a clean checkpoint, and loses nothing. Method: full logs from which all free segments, or all
/// but one, are hidden, overwritten until copies are left without room; what a stop does.
#[test]
fn a_stop_gives_up_copies_without_room() {
    let stranded = AtomicU32::new(0);
    for_each_seed(100, |seed| {
        let mut rng = Rng::new(seed);
        let mut churn = Churn::full(seed, &mut rng);
        let slots = churn.log.slot_count();
        churn.log.free_segments.truncate(seed as usize % 2);
        let has_copies = |log: &LogStore| {
            let is_queued = |stream: &Stream| !log.streams[*stream as usize].queue.is_empty();
            is_stranded(log) && Stream::COPIES.iter().any(is_queued)
        };
        let is_met = (0..4 * slots).any(|_| {
            let _ = churn.write(Slot(rng.below(slots.into()) as u32), Stream::Write);
            has_copies(&churn.log)
        });
        if !is_met {
            return;
        }
        stranded.fetch_add(1, Ordering::Relaxed);
        churn.log.checkpoint_now(true);
        let has_ended = (0..TURNS_MAX).any(|_| {
            churn.log.give_up_copies();
            churn.turn();
            !closing(&churn.log) && churn.log.is_idle()
        });
        assert!(has_ended, "no clean checkpoint; seed {seed}");
        (0..slots).for_each(|slot| churn.check(Slot(slot)));
    });
    assert!(stranded.into_inner() > 0, "no copies were without room");
}

/// Goal: beside a better rank a victim is copied in steps of bounded length, and every live block
/// of it arrives, whatever is overwritten between the steps. Method: segments of a MiB in a full
/// log, random overwrites; what each tick relocates is counted, at the end every slot is read.
#[test]
fn victims_are_copied_in_steps() {
    for_each_seed(2, |seed| {
        let mut rng = Rng::new(seed);
        let mut churn = Churn::new(seed, 64 << 20, BlockSize::MIN);
        churn.io.set_stepwise(true);
        let slots = churn.log.slot_count();
        let bound = u64::from(STEP / STEP_COPY + 1) * u64::from(BlockSize::MIN.bytes());
        let mut longest = 0;
        for step in 0..2 * slots {
            let slot = if step < slots { step } else { rng.below(slots.into()) as u32 };
            let entry = AppendEntry { slot: Slot(slot), key: key(Slot(slot)), dirty: true };
            let data = churn.data.clone();
            churn.log.append(&mut churn.io, Ticket(1), Stream::Write, &[entry], &data, false);
            churn.filled.0 = churn.filled.0.max(slot + 1);
            let mut has_ended = false;
            for _ in 0..TURNS_MAX {
                let before = churn.log.counters().bytes_relocated;
                has_ended |= churn.turn().is_some();
                longest = longest.max(churn.log.counters().bytes_relocated - before);
                if has_ended {
                    break;
                }
            }
            assert!(has_ended, "a write never ends");
        }
        churn.rest();
        let cleaned = churn.log.counters().segments_cleaned;
        assert!(cleaned > 10, "{cleaned} segments cleaned");
        assert!(0 < longest && longest <= bound, "{longest} bytes in a step, {bound} allowed");
        assert_eq!(churn.log.counters().corrupt_blocks, 0);
        (0..slots).for_each(|slot| churn.check(Slot(slot)));
    });
}

/// Goal: a copy that ends late takes no place from what was written since, also where its victim
/// was used anew and the slot lies at the same place of it. Method: the end of a victim's copies is
/// held back while all slots are freed, and the victim is used anew.
#[test]
fn a_late_copy_replaces_nothing_newer() {
    // The other stream of copies has what a checkpoint waits for, too.
    const COPIES: [Stream; 1] = [Stream::RelocateOld];
    for_each_seed(4, |seed| {
        let mut rng = Rng::new(seed);
        let has_all_streams = Some(true);
        let segments = SegmentPlan { bytes: 16 * 4096, has_all_streams, ..SegmentPlan::default() };
        let mut churn = Churn::with(seed, 4 << 20, BlockSize::MIN, segments);
        let count = churn.log.slot_count();
        (0..count).for_each(|slot| churn.write(Slot(slot), Stream::Write).expect("no fault"));
        let geometry = churn.log.geometry;
        let victim_of = |place: u32| geometry.segment_of(place).expect("a victim");
        let within = |place: u32| place - geometry.segment_first(victim_of(place));
        let mut held = Vec::new();
        let (mut has_ended, mut turns) = (true, 0);
        let (slot, place) = loop {
            if has_ended {
                churn.append(&[rng.below(count.into()) as u32]);
            }
            has_ended = churn.turn_without(&mut held, &COPIES).0.is_some();
            turns += 1;
            assert!(turns < TURNS_MAX, "no segment is cleaned");
            if held.is_empty() {
                continue;
            }
            let flight = |stream: &Stream| churn.log.streams[*stream as usize].flight.as_ref();
            let copies = COPIES.iter().filter_map(flight).flat_map(|flight| &flight.records);
            let last = copies.filter_map(|copy| match copy.record {
                Record::Block { slot, .. } => Some((slot, copy.origin?.location)),
                _ => None,
            });
            let (slot, place) = last.max_by_key(|(_, place)| *place).expect("it has copies");
            // Behind where the write that opens the segment ends.
            if within(place) > 4 {
                break (slot, place);
            }
            held.drain(..).for_each(|done| churn.log.on_io(&mut churn.io, done));
        };
        let victim = victim_of(place);
        (0..count).for_each(|slot| churn.log.free(Slot(slot)));
        if !has_ended {
            churn.finish_without(&mut held, &COPIES);
        }
        let mut others = (0..count).filter(|it| *it != slot.0).cycle();
        let fill = loop {
            if let Some((open, fill)) = churn.log.streams[Stream::Write as usize].open
                && open == victim
            {
                break fill;
            }
            churn.append(&[others.next().expect("there are others")]);
            churn.finish_without(&mut held, &COPIES);
        };
        churn.data.fill(8);
        let between = within(place) - fill - 1;
        let mut slots: Vec<u32> = others.take(between as usize).collect();
        slots.push(slot.0);
        churn.append(&slots);
        churn.finish_without(&mut held, &COPIES);
        assert_eq!(churn.log.slots[slot.0 as usize].location, place, "seed {seed}");
        for done in held {
            churn.log.on_io(&mut churn.io, done);
        }
        churn.check(slot);
    });
}

/// Goal: a victim waits for no block whose destage has ended while the rest of the victim was still
/// looked at. Method: a full log beside a better rank, so that a victim takes many steps; each part
/// of it is to be destaged, and before the next step every second block of it has left, the others
/// stay; then no victim is left that waits.
#[test]
fn destages_may_end_before_the_victim_does() {
    for_each_seed(2, |seed| {
        let mut rng = Rng::new(seed);
        let mut churn = Churn::new(seed, 64 << 20, BlockSize::MIN);
        churn.io.set_stepwise(true);
        churn.log.ask_owner(true);
        let slots = churn.log.slot_count();
        let mut ended = 0;
        for step in 0..3 * slots / 2 {
            let slot = if step < slots { step } else { rng.below(slots.into()) as u32 };
            let entry = AppendEntry { slot: Slot(slot), key: key(Slot(slot)), dirty: true };
            let data = churn.data.clone();
            churn.log.append(&mut churn.io, Ticket(1), Stream::Write, &[entry], &data, false);
            churn.filled.0 = churn.filled.0.max(slot + 1);
            let has_ended = (0..TURNS_MAX).any(|_| {
                let (result, asked) = churn.turn_of_owner();
                let answers: Vec<Cleaned> = asked.iter().map(|_| Cleaned::Destaging).collect();
                if !asked.is_empty() {
                    churn.log.cleaned(&mut churn.io, &answers);
                }
                for slot in asked {
                    ended += 1;
                    match slot.0 % 2 {
                        0 => churn.log.free(slot),
                        _ => churn.log.cleaning_kept(slot),
                    }
                }
                let left = churn.log.cleaning.left_victims();
                assert!(left.is_empty(), "{left:?} after {ended} ends; seed {seed}");
                result.is_some()
            });
            assert!(has_ended, "a write never ends");
        }
        assert!(ended > 1000, "{ended} ended");
    });
}

/// Goal: beside a better rank a checkpoint looks at a bounded number of slots per step, writes the
/// same chunks as one that does not, and a start finds the same. Method: 1,000 blocks under both;
/// bytes written, steps between the writes, what a log opened anew recovers.
#[test]
fn checkpoints_go_in_steps() {
    let run = |is_stepwise: bool| {
        let mut churn = Churn::new(5, 64 << 20, BlockSize::MIN);
        for slot in 0..1000 {
            churn.write(Slot(slot), Stream::Write).expect("there is room");
        }
        churn.rest();
        churn.io.set_stepwise(is_stepwise);
        let before = churn.log.counters().bytes_checkpoint;
        churn.log.checkpoint_now(false);
        let steps = (0..TURNS_MAX).position(|_| {
            churn.turn();
            churn.io.in_flight() == 0 && churn.log.next_deadline() == Nanos::NEVER
        });
        let written = churn.log.counters().bytes_checkpoint - before;
        let Churn { mut io, log, .. } = churn;
        let config = log.config.clone();
        drop(log);
        let opened = LogStore::open(&mut io, config, SeqSource::new(Seq(1)));
        let (_, recovered) = opened.expect("it was closed in peace");
        (written, recovered.entries.len(), steps.expect("a checkpoint ends"))
    };
    let ((at_once, all, few), (in_steps, all_too, many)) = (run(false), run(true));
    assert_eq!((at_once, all), (in_steps, all_too));
    assert!(all == 1000 && at_once > 0 && many > few, "{all} blocks, {many} steps for {few}");
}

/// Goal: beside a better rank the end of a batch leaves the next one to a step of its own, which a
/// deadline brings if nobody else does. Method: two writes behind each other, by hand.
#[test]
fn an_end_leaves_the_next_batch_to_a_step() {
    for is_stepwise in [true, false] {
        let Churn { mut io, mut log, data, .. } = Churn::new(1, 2 << 20, BlockSize::MIN);
        io.set_stepwise(is_stepwise);
        for number in 0..2 {
            let entry = AppendEntry { slot: Slot(number), key: key(Slot(number)), dirty: true };
            log.append(&mut io, Ticket(number.into()), Stream::Write, &[entry], &data, true);
        }
        assert_eq!(log.counters().batches, 1, "one at a time");
        let mut done = Vec::new();
        io.wait(Nanos::NEVER, &mut done);
        done.drain(..).for_each(|done| log.on_io(&mut io, done));
        assert_eq!(log.counters().batches, if is_stepwise { 1 } else { 2 });
        assert_eq!(log.owes_pump(), is_stepwise);
        assert_eq!(log.next_deadline() == Nanos::ZERO, is_stepwise);
        assert_eq!(log.go_on(&mut io), is_stepwise);
        assert_eq!((log.counters().batches, log.go_on(&mut io)), (2, false));
    }
}
