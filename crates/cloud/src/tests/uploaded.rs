//! What was uploaded lately is read from the journal while its ring holds it.

use super::lives::{BLOCK, BLOCKS, JOURNAL, NODE, open, plan};
use super::waits::{Bench, WITHIN};
use crate::volume::{Limits, Link, Plan, Volume, WaitPlan};
use layby_types::{ErrorKind, Nanos, Rng};
use std::cell::Cell;

impl Bench {
    /// Writes a run of blocks and has all of it uploaded.
    fn upload(&mut self, first: u64, blocks: u64, value: u8) {
        let written = self.write(first, blocks, value);
        self.volume.set_draining(true);
        self.until(|bench| bench.ended.contains_key(&written) && bench.volume.is_drained());
        self.volume.set_draining(false);
    }
}

/// Goal: no read of what was written lately waits for the store, uploaded or not, overwritten in
/// part or zeroed. Method: writes, uploads, a store that cannot be reached, reads of everything.
#[test]
fn uploaded_blocks_are_read_without_the_store() {
    for seed in 0..20 {
        let mut bench = Bench::new(seed);
        bench.upload(16, 16, 2);
        bench.upload(20, 4, 3);
        bench.write(22, 1, 4);
        bench.world.faults.is_cut = true;
        let before = bench.requests();
        for (block, value) in [(16, 2), (19, 2), (20, 3), (21, 3), (22, 4), (23, 3), (24, 2)] {
            bench.reads(block, value);
        }
        assert_eq!(bench.requests(), before, "nothing was asked; seed {seed}");
        let cold = bench.read(0);
        assert_eq!(bench.wait(cold).1, Err(ErrorKind::Retry), "the store is out of reach");
    }
}

/// Goal: what the ring has reused is as it was last written, wherever it is read from. Method:
/// blocks uploaded, then as much written elsewhere as the ring holds, six times over, in rings and
/// read caches that are large and small.
#[test]
fn reused_places_hold_nothing_old() {
    for seed in 0..20 {
        let (ring, cache) = (JOURNAL >> (seed % 3), BLOCK * (4 << (seed % 4)));
        let mut bench = Bench::sized(seed, BLOCKS, (ring, cache));
        bench.upload(0, 8, 7);
        bench.reads(3, 7);
        for round in 0..100 {
            bench.upload(32, 16, round);
            bench.reads(3, 7);
            bench.reads(40, round);
        }
    }
}

/// Goal: once the ring has wrapped, what was written long ago is still read without the store, as
/// long as the read cache holds all of it, and while a full journal takes no writes, too; what is
/// copied for that is no more than was written. Method: blocks written once, then ten times the
/// ring elsewhere, a store that cannot be reached, reads of everything before and after writes that
/// fill the journal.
#[test]
fn what_was_written_long_ago_stays_near() {
    for seed in 0..5 {
        let mut bench = Bench::sized(seed, BLOCKS, (JOURNAL, BLOCKS * BLOCK));
        (0..8).for_each(|run| bench.upload(run * 4, 4, 7));
        for round in 0..640 {
            bench.upload(48 + round % 4 * 4, 4, (round / 4) as u8);
        }
        bench.world.faults.is_cut = true;
        let before = bench.requests();
        (0..32).for_each(|block| bench.reads(block, 7));
        (48..64).for_each(|block| bench.reads(block, 159));
        assert_eq!(bench.requests(), before, "nothing was asked; seed {seed}");
        bench.fill();
        (0..8).for_each(|block| bench.reads(block, 7));
        let status = bench.volume.status();
        let (cached, written) = (status.counters.bytes_cached, 672 * 4 * BLOCK);
        assert!(cached >= 32 * BLOCK && cached <= written, "{cached} bytes; seed {seed}");
        assert!(status.cached_bytes >= 32 * BLOCK);
    }
}

/// Goal: of a long write that a shorter one has cut, all that is not newer stays near. Method: four
/// blocks of which each one is written anew, before their upload, or while the store cannot be
/// reached and the head comes round; then reads of all four.
#[test]
fn the_rest_of_a_cut_write_stays_near() {
    for (newer, is_outage) in (0..4).flat_map(|block| [(block, false), (block, true)]) {
        let mut bench = Bench::new(newer);
        let elsewhere = |bench: &mut Bench, rounds: u64| {
            (0..rounds).for_each(|round| bench.upload(48 + round % 4 * 4, 4, 9));
        };
        let first = bench.write(0, 4, 7);
        if !is_outage {
            bench.write(newer, 1, 8);
        }
        bench.until(|bench| bench.ended.contains_key(&first));
        elsewhere(&mut bench, if is_outage { 47 } else { 120 });
        bench.world.faults.is_cut = true;
        if is_outage {
            bench.write(newer, 1, 8);
            for round in 0..24 {
                let written = bench.write(48 + round % 4 * 4, 4, 9);
                bench.until(|bench| bench.ended.contains_key(&written));
            }
        }
        (0..4).for_each(|block| bench.reads(block, if block == newer { 8 } else { 7 }));
    }
}

/// Goal: what is written now stays near, also where the read cache is full of what was written once
/// and never read. Method: a cache of sixteen blocks, 400 written in a row, then four, and others
/// over and over; reads of the four beside a cut store.
#[test]
fn what_is_new_displaces_what_nobody_read() {
    let mut bench = Bench::sized(4, 416, (JOURNAL, 16 * BLOCK));
    (0..100).for_each(|run| bench.upload(16 + run * 4, 4, 9));
    bench.upload(0, 4, 7);
    (0..120).for_each(|round| bench.upload(16 + round % 2 * 4, 4, 9));
    bench.world.faults.is_cut = true;
    (0..4).for_each(|block| bench.reads(block, 7));
}

/// Goal: the head passes over nothing that is to be copied first, however long writes are beside
/// the ring, and however many of them wait at once. Method: a ring of a megabyte that writes of 4
/// to 48 blocks wrap, single and eight at a time, cold blocks among them; reads beside a cut store.
#[test]
fn long_writes_wait_for_copies() {
    for (seed, blocks) in (0..4).flat_map(|seed| [4, 16, 32, 48].map(|blocks| (seed, blocks))) {
        let mut bench = Bench::sized(seed, 480, (JOURNAL, 480 * BLOCK));
        bench.upload(0, blocks, 7);
        for round in 0..2400 / blocks {
            let first = 48 + round % 8 * blocks;
            match seed % 2 {
                0 => bench.upload(first, blocks, 9),
                _ => drop(bench.write(first, blocks, 9)),
            }
        }
        bench.upload(470, 1, 1);
        bench.world.faults.is_cut = true;
        (0..blocks).for_each(|block| bench.reads(block, 7));
    }
}

/// Goal: a read cache whose device refuses writes says so until it takes blocks again, and serves
/// nothing that was not written. Method: writes that all fail, then none, while the ring wraps.
#[test]
fn a_read_cache_that_rests_says_so() {
    let mut bench = Bench::sized(6, BLOCKS, (JOURNAL, BLOCKS * BLOCK));
    let wrap = |bench: &mut Bench| (0..120).for_each(|n| bench.upload(32 + n % 4 * 4, 4, 9));
    bench.world.cache_faults = 100;
    bench.upload(0, 4, 7);
    wrap(&mut bench);
    let status = bench.volume.status();
    assert_eq!((status.read_cache_fault.as_deref(), status.cached_bytes), (Some("no room"), 0));
    (0..4).for_each(|block| bench.reads(block, 7));
    bench.world.cache_faults = 0;
    let later = bench.now.saturating_add(Nanos::from_millis(1500));
    bench.until(|bench| bench.now >= later);
    bench.upload(0, 4, 8);
    wrap(&mut bench);
    let status = bench.volume.status();
    assert!(status.read_cache_fault.is_none() && status.cached_bytes > 0);
}

/// Goal: where the read cache is full, what is read displaces what is not; the cache takes no more
/// than was written. Method: a cache of 64 blocks, eight that are read in each round beside 400
/// that are written in turn; then reads beside a cut store.
#[test]
fn what_is_read_stays_where_not_all_can() {
    let mut bench = Bench::sized(3, 416, (JOURNAL, 64 * BLOCK));
    for round in 0..400 {
        let (first, value) = if round == 100 { (0, 7) } else { (16 + round % 100 * 4, 9) };
        bench.upload(first, if round == 100 { 8 } else { 4 }, value);
        if round > 100 {
            (0..8).for_each(|block| bench.reads(block, 7));
        }
    }
    bench.world.faults.is_cut = true;
    (0..8).for_each(|block| bench.reads(block, 7));
    let status = bench.volume.status();
    let (held, taken) = (status.cached_bytes / BLOCK, status.counters.bytes_cached / BLOCK);
    assert!((57..=64).contains(&held), "{held} blocks");
    assert!((800..=1604).contains(&taken), "{taken} of 1604 blocks written");
}

/// Goal: rot in the journal of what the store has costs a request and no data. Method: a bit of
/// each sector of the ring flipped after an upload, then reads.
#[test]
fn rot_of_uploaded_blocks_is_read_from_the_store() {
    for seed in 0..8 {
        let mut bench = Bench::new(seed);
        bench.upload(16, 8, 5);
        (seed..JOURNAL).step_by(512).for_each(|at| bench.world.disks.rot(at));
        let before = bench.requests();
        (16..24).for_each(|block| bench.reads(block, 5));
        assert!(bench.requests() > before, "the store was asked; seed {seed}");
    }
}

/// Goal: where the journal ends before what the map says was uploaded of it, no older version of a
/// block is read from there. Method: two writes of the same blocks and others, uploaded without a
/// superblock that names them; the journal's device as it was between the two; a store that cannot
/// be reached; reads of the blocks.
#[test]
fn a_journal_that_lacks_writes_holds_nothing_newest() {
    let mut short = [0; 3];
    for seed in 0..200 {
        let mut bench = Bench::new(seed);
        let limits = Limits { commit_interval: Nanos::from_secs(60), ..plan(NODE).limits };
        let slow = Plan { limits, ..plan(NODE) };
        bench.volume = open(&mut bench.world, slow, bench.now);
        bench.until(|bench| bench.volume.status().link == Link::Up);
        let mut rng = Rng::new(seed);
        let mut fill = |bench: &mut Bench, value: u8| {
            let writes: Vec<u64> = (2..8).map(|run| bench.write(run * 8, 8, value)).collect();
            bench.until(|bench| writes.iter().all(|token| bench.ended.contains_key(token)));
            let (steps, last) = (Cell::new(0), rng.below(40));
            bench.until(|_| steps.replace(steps.get() + 1) >= last);
        };
        fill(&mut bench, 2);
        let older = bench.world.disks.clone();
        fill(&mut bench, 3);
        bench.world.disks.put_journal_back(&older);
        bench.world.faults.is_cut = true;
        let disks = &bench.world.disks;
        let mut read = |at, length| disks.read(at, length);
        if Volume::<Vec<u8>>::open(plan(NODE), &disks.map_file, bench.now, 1, &mut read).is_err() {
            continue;
        }
        bench.volume = open(&mut bench.world, plan(NODE), bench.now);
        bench.volume.set_wait(WaitPlan { answer_within: Some(WITHIN), drain: None });
        // What is written on may reach the numbers of what is lacking, also over a start.
        if seed % 3 > 0 {
            let writes: Vec<u64> = (0..40).map(|_| bench.write(66, 1, 4)).collect();
            bench.until(|bench| writes.iter().all(|write| bench.ended.contains_key(write)));
        }
        if seed % 3 > 1 {
            bench.volume = open(&mut bench.world, plan(NODE), bench.now);
            bench.volume.set_wait(WaitPlan { answer_within: Some(WITHIN), drain: None });
        }
        let reads: Vec<u64> = (16..64).map(|block| bench.read(block)).collect();
        bench.until(|bench| reads.iter().all(|read| bench.ended.contains_key(read)));
        bench.world.faults.is_cut = false;
        bench.until(|bench| matches!(bench.volume.status().link, Link::Up | Link::Lost(_)));
        // The store says that the journal lacks what it has.
        if let Link::Lost(_) = bench.volume.status().link {
            short[seed as usize % 3] += 1;
            let older = |read: &u64| bench.ended[read].1.as_deref().is_some_and(|it| it[0] == 2);
            let count =
                reads.iter().filter(|read| bench.ended[read].0.is_ok() && older(read)).count();
            assert_eq!(count, 0, "blocks that were read as before their last write; seed {seed}");
        }
    }
    assert!(short.iter().all(|count| *count > 10), "{short:?} journals lacked what the map has");
}
