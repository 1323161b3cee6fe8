//! Map files that could not be changed, that lack a segment, or that are damaged.

use super::lives::{BLOCK, Life};
use super::waits::Bench;
use crate::codec::crc32c;
use crate::meta::{self, Frame};
use crate::simulated::SimDeed;
use crate::volume::{LeftOver, OpenError, Volume, Wanted, left_over};
use layby_types::Nanos;

/// A life whose store has segments by the dozen, and whose journal has what the store lacks.
fn life(seed: u64) -> Life {
    let mut life = Life::new(seed);
    life.load(200);
    life.settle();
    life.volume.set_draining(false);
    life.world.faults.is_cut = true;
    life.load(120);
    life.sync_all();
    life
}

fn left(life: &Life, map_file: &[u8]) -> Result<LeftOver, OpenError> {
    let disks = &life.world.disks;
    left_over(map_file, Wanted::Unnamed, &mut |at, length| disks.read(at, length))
}

/// What salvage finds: of each run of blocks the batch, and the checksum of what is there.
fn found(life: &Life, map_file: &[u8]) -> Vec<(u64, u64, u64, Option<u32>)> {
    let found = left(life, map_file).unwrap_or_else(|error| panic!("{error}: {}", life.line));
    assert_eq!(found.damaged_at, None, "{}", life.line);
    let runs = found.left.iter().map(|left| {
        let crc = left.payload.map(|(at, blocks, _, crc)| {
            let bytes = life.world.disks.read(at, blocks * BLOCK).expect("it is on the device");
            assert_eq!(crc32c(&bytes), crc, "{}", life.line);
            crc
        });
        (left.blocks.start, left.blocks.end, left.seq, crc)
    });
    runs.collect()
}

/// The numbers of a map file's frames of stored segments.
fn stored(frames: &[Frame]) -> Vec<usize> {
    let is_stored = |at: &usize| matches!(frames[*at], Frame::Stored(_));
    (0..frames.len()).filter(is_stored).collect()
}

/// Goal: one change of the map file that fails loses nothing that was flushed, in serving and in
/// salvage neither (a passing error left a gap there, and the volume could not be opened for good).
/// Method: some segments of flushed writes end while any one change fails, in part; a power cut.
#[test]
fn a_failed_change_of_the_map_file_loses_nothing_flushed() {
    let mut failed = 0;
    for seed in 7000..7060 {
        let mut life = life(seed);
        life.world.faults.is_cut = false;
        (0..life.world.rng.below(60)).for_each(|_| life.tick());
        life.world.file_fault = Some(SimDeed::MapWritten);
        (0..300).for_each(|_| life.tick());
        failed += u64::from(life.volume.status().journal_fault.is_some());
        let map_file = life.world.disks.map_file.clone();
        assert!(left(&life, &map_file).is_ok(), "{}", life.line);
        // All that was written was flushed, so that this reads all of it.
        life.crash();
        life.load(100);
        life.settle();
    }
    assert!(failed > 30, "{failed} of 60 changes failed");
}

/// Goal: a map file that an earlier build left with a gap is no end of the volume: it is served as
/// soon as the store has said what is missing, and salvage finds what it would have. Method: each
/// segment but the last left out of a map file.
#[test]
fn a_gap_in_the_map_file_is_learned_from_the_store() {
    for seed in 7100..7104 {
        let whole = life(seed).world.disks.map_file;
        let frames = meta::decode(&whole).expect("it is whole");
        let segments = stored(&frames);
        assert!(segments.len() > 2, "{} segments", segments.len());
        for (round, gap) in segments[..segments.len() - 1].iter().enumerate() {
            let mut life = life(seed);
            life.stop();
            let kept = frames.iter().enumerate().filter(|(at, _)| at != gap);
            life.world.disks.map_file = kept.flat_map(|(_, frame)| frame.encode()).collect();
            assert_eq!(found(&life, &life.world.disks.map_file), found(&life, &whole));
            life.open_again();
            life.world.faults.is_cut = false;
            assert!(life.read_all() == life.whole_state(), "{} round {round}", life.line);
            life.load(50);
            life.crash();
            life.settle();
        }
    }
}

/// Goal: salvage needs of a map file no more than whose journal it is and the last word on how far
/// the store is: damage before that hides nothing of the journal, damage behind it is told. Method:
/// a byte of each frame changed, one at a time.
#[test]
fn salvage_passes_damage_of_the_map_file() {
    let mut life = life(7200);
    life.stop();
    let whole = life.world.disks.map_file.clone();
    let frames = meta::decode(&whole).expect("it is whole");
    let last = frames.iter().rposition(|frame| matches!(frame, Frame::Committed(_)));
    let last = last.expect("the superblock was written");
    let (mut at, mut passed) = (0, 0);
    for (number, frame) in frames.iter().enumerate() {
        let mut bad = whole.clone();
        bad[at + 13] ^= 1;
        let is_last = number + 1 == frames.len();
        let mut read = |at, length| life.world.disks.read(at, length);
        let opened = Volume::<Vec<u8>>::open(life.plan(), &bad, life.now, 1, &mut read);
        assert_eq!(opened.is_err(), !is_last, "frame {number} of {}", frames.len());
        if (1..last).contains(&number) {
            assert_eq!(found(&life, &bad), found(&life, &whole), "frame {number}");
            passed += 1;
        } else if !is_last {
            let error = left(&life, &bad).err();
            let damaged = if number == 0 { 0 } else { at as u64 };
            assert_eq!(error, Some(OpenError::MapDamaged(damaged)), "frame {number}");
        }
        at += frame.encode().len();
    }
    assert!(passed > 3, "{passed} frames");
}

/// How far the journal is durable, as the frames say that 20 flushed writes with a lull after each
/// added to the map file, which has room for none of them until the end where it `is_short`.
fn horizons(seed: u64, is_short: bool) -> Vec<u64> {
    let mut bench = Bench::new(seed);
    bench.world.faults.is_cut = true;
    bench.world.faults.is_map_short = is_short;
    let before = meta::decode(&bench.world.disks.map_file).expect("it is whole").len();
    for value in 1..=20 {
        let written = bench.write(8, 1, value);
        assert_eq!(bench.wait(written).1, Ok(()), "seed {seed}");
        let flushed = bench.sync();
        assert_eq!(bench.wait(flushed).1, Ok(()), "seed {seed}");
        let end = bench.now.saturating_add(Nanos::from_millis(600));
        bench.until(|bench| bench.now >= end);
        assert!(bench.volume.next_deadline() > bench.now, "seed {seed}: nothing is due");
    }
    bench.world.faults.is_map_short = false;
    let end = bench.now.saturating_add(Nanos::from_secs(2));
    bench.until(|bench| bench.now >= end);
    let frames = meta::decode(&bench.world.disks.map_file).expect("it is whole");
    let durable = |frame: &Frame| if let Frame::Durable(next) = frame { Some(*next) } else { None };
    frames[before..].iter().filter_map(durable).collect()
}

/// Goal: a map file without room has one word on how far the journal is durable wait for it,
/// however long it has none, and says at the end what it would have said. Method: 20 lulls, with
/// room and without.
#[test]
fn one_word_on_the_journal_waits_for_room() {
    for seed in 7300..7304 {
        let (all, short) = (horizons(seed, false), horizons(seed, true));
        assert!(all.len() >= 20, "seed {seed}: {all:?}");
        assert!(short.len() <= 2, "seed {seed}: {short:?}");
        assert_eq!(short.last(), all.last(), "seed {seed}");
    }
}
