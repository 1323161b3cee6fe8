//! Damage of a volume's journal at rest: what a flush promised is there, or is an error.
//!
//! How: a volume whose store is out of reach is filled and flushed, some time passes, the power
//! fails. Then a bit flips, a sector or a page becomes zero, and the node starts. A device that
//! fails a write is here, too.

use super::lives::{BLOCK, BLOCKS, JOURNAL, Life, NODE, open, plan};
use crate::journal::{PAGE_BYTES, VOUCH_BYTES};
use crate::meta::{self, Frame};
use crate::simulated::{SimDeed, SimDisks};
use crate::volume::{OpenError, Volume, Wanted, create, left_over};
use layby_types::{BackingOperation, Nanos};

/// How long after a flush its reach is written down at the latest.
const WINDOW: Nanos = Nanos::from_secs(1);
/// The same, and the steps that it takes.
const HALF: Nanos = Nanos::from_millis(560);

/// A life whose journal alone has what was flushed, an hour or a moment after the flush.
fn flushed(seed: u64, wait: Nanos) -> Life {
    let mut life = Life::new(seed);
    life.settle();
    life.volume.set_draining(false);
    life.world.faults.is_cut = true;
    life.load(30 + seed % 5 * 8);
    life.sync_all();
    let until = life.now.saturating_add(wait);
    while life.now < until {
        life.tick();
    }
    life.stop();
    life
}

/// Every block of the volume after these disks were opened; none where the opening is refused,
/// `None` for a block whose read fails.
fn blocks(life: &mut Life, disks: &SimDisks) -> Option<Vec<Option<Vec<u8>>>> {
    life.world.disks = disks.clone();
    let map_file = disks.map_file.clone();
    let mut read = |at, length| disks.read(at, length);
    let plan = life.plan();
    let opened = Volume::<Vec<u8>>::open(plan, &map_file, life.now, 1, &mut read);
    let opened = match opened {
        Err(OpenError::Journal(_)) => return None,
        opened => opened.expect("the map file is whole"),
    };
    let named = opened.damaged.clone();
    life.volume = opened.volume;
    let read = |block: u64, life: &mut Life| {
        let (token, buffer) = (life.token(), vec![0xee; BLOCK as usize]);
        life.volume.submit(token, BackingOperation::Read { offset: block * BLOCK, buffer });
        let (result, bytes) = life.wait(token);
        let is_named = |(at, length): &(u64, u64)| (*at..at + length).contains(&(block * BLOCK));
        assert_eq!(named.iter().any(is_named), result.is_err(), "block {block} is named");
        result.ok().and(bytes)
    };
    Some((0..BLOCKS).map(|block| read(block, life)).collect())
}

/// What came of damaged journals.
#[derive(Debug, Default)]
struct Tally {
    /// Openings that were refused.
    refused: usize,
    /// Blocks whose read failed.
    failed: usize,
    /// Blocks that passed the check.
    whole: usize,
}

impl Tally {
    /// Counts what [`blocks`] found, each block that was read through `check`.
    fn count(&mut self, found: Option<Vec<Option<Vec<u8>>>>, check: impl Fn(usize, &Vec<u8>)) {
        let Some(found) = found else {
            self.refused += 1;
            return;
        };
        for (block, bytes) in found.iter().enumerate() {
            match bytes {
                Some(bytes) => {
                    check(block, bytes);
                    self.whole += 1;
                }
                None => self.failed += 1,
            }
        }
    }
}

/// Goal: a second after a flush no damage of the journal passes for a torn write: each block that
/// was flushed has its version or is an error, and the opening names it. Method: a flipped bit, a
/// sector and a page of zeros, each in some pages of each life; what is sound is counted, too.
#[test]
fn what_was_flushed_is_there_or_an_error() {
    let mut tally = Tally::default();
    for seed in 0..40 {
        let mut life = flushed(seed, WINDOW);
        let (state, disks) = (life.whole_state(), life.world.disks.clone());
        let zeros = vec![0; BLOCK as usize];
        let used = |page: &u64| disks.read(page * BLOCK, BLOCK).is_ok_and(|bytes| bytes != zeros);
        let pages: Vec<u64> = (1..JOURNAL / BLOCK).filter(used).collect();
        for round in 0..18 {
            // Half of them in the last pages, which no later batch speaks for.
            let last = if round % 2 == 0 { pages.len() } else { pages.len().min(12) };
            let page = pages[pages.len() - 1 - life.world.rng.below(last as u64) as usize];
            let within = life.world.rng.below(BLOCK);
            let mut bad = disks.clone();
            match round % 3 {
                0 => bad.rot(page * BLOCK + within),
                1 => bad.wipe(page * BLOCK + within / 512 * 512, 512),
                _ => bad.wipe(page * BLOCK, BLOCK),
            }
            tally.count(blocks(&mut life, &bad), |block, bytes| {
                assert!(*bytes == state[block], "seed {seed} round {round}: block {block} is old");
            });
        }
    }
    assert!(tally.refused > 0 && tally.failed > 0 && tally.whole > 0, "{tally:?}");
}

/// Writes and flushes beside each other, each less than half a second after the last one, for a
/// while; then the power fails. Writes that had been flushed [`HALF`] before.
fn flushing(seed: u64) -> (Life, usize) {
    let mut life = Life::new(seed);
    life.settle();
    life.volume.set_draining(false);
    life.world.faults.is_cut = true;
    let end = life.now.saturating_add(Nanos::from_millis(1200 + seed * 37 % 1200));
    let (mut flushed, mut next) = (Vec::new(), life.now);
    while life.now < end {
        if life.now >= next {
            let draw = life.world.rng.below(4);
            if draw < 2 {
                life.write();
            }
            if draw > 0 {
                life.sync();
            }
            if draw == 1 {
                // The next batch may be on its way before the flush has ended.
                (0..life.world.rng.below(4)).for_each(|_| life.tick());
                life.write();
            }
            let pause = 50 + life.world.rng.below(430);
            next = life.now.saturating_add(Nanos::from_millis(pause));
        }
        life.tick();
        flushed.push((life.now, life.synced));
    }
    let since = Nanos(life.now.0 - HALF.0);
    let before = flushed.iter().rfind(|(at, _)| *at <= since);
    let count = before.map_or(0, |(_, synced)| *synced);
    life.stop();
    (life, count)
}

/// Goal: the same beside flushes that follow each other more closely than their reach is written
/// down, with writes between them and without. Method: a bit flips in some pages of each life;
/// blocks are errors, or not older than what was flushed half a second before.
#[test]
fn what_was_flushed_again_and_again_is_there_or_an_error() {
    let mut tally = Tally::default();
    for seed in 200..400 {
        let (mut life, count) = flushing(seed);
        let disks = life.world.disks.clone();
        let zeros = vec![0; BLOCK as usize];
        let used = |page: &u64| disks.read(page * BLOCK, BLOCK).is_ok_and(|bytes| bytes != zeros);
        let pages: Vec<u64> = (1..JOURNAL / BLOCK).filter(used).collect();
        for page in pages.iter().rev().take(12) {
            let mut bad = disks.clone();
            bad.rot(page * BLOCK + life.world.rng.below(BLOCK));
            tally.count(blocks(&mut life, &bad), |block, bytes| {
                let mut counts = count..=life.submitted();
                let is_new = counts.any(|count| life.state(block as u64, count) == *bytes);
                assert!(is_new, "seed {seed} page {page}: block {block} is old");
            });
        }
    }
    assert!(tally.failed > 0 && tally.whole > 0, "{tally:?}");
}

/// Goal: flushes without a write between them do not put off the word on how far the journal is
/// durable. Method: one flushed write, then a flush every 100 ms; what the map file says by then.
#[test]
fn flushes_alone_delay_no_word_on_the_journal() {
    for seed in 300..310 {
        let mut life = flushed(seed, Nanos::ZERO);
        life.open_again();
        life.write();
        life.sync_all();
        let (end, mut next) = (life.now.saturating_add(WINDOW), life.now);
        while life.now < end {
            if life.now >= next {
                life.sync();
                next = life.now.saturating_add(Nanos::from_millis(100));
            }
            life.tick();
        }
        let frames = meta::decode(&life.world.disks.map_file).expect("it is whole");
        let durable = frames.iter().filter_map(|frame| match frame {
            Frame::Durable(next) => Some(*next),
            _ => None,
        });
        let mut read = |at, length| life.world.disks.read(at, length);
        let found = left_over(&life.world.disks.map_file, Wanted::Unnamed, &mut read);
        let end_next = found.expect("it is whole").end_next;
        assert_eq!(durable.max(), Some(end_next), "seed {seed}");
    }
}

/// A volume whose journal alone has more than a scan looks through, flushed at once, and small
/// durable writes right behind that, ten in a second; then the power fails.
fn flushed_long() -> Life {
    let mut life = Life::new(400);
    let capacity = 4 * VOUCH_BYTES;
    life.world.disks = SimDisks::new(capacity, create(&plan(NODE), capacity, 400));
    life.volume = open(&mut life.world, plan(NODE), life.now);
    (0..200).for_each(|_| life.tick());
    life.world.faults.is_cut = true;
    let call = |life: &mut Life, operation| {
        let token = life.token();
        life.volume.submit(token, operation);
        assert_eq!(life.wait(token).0, Ok(()));
    };
    let whole = BLOCKS * BLOCK;
    let count = VOUCH_BYTES / whole + 40;
    for number in 0..count {
        let buffer = vec![number as u8; whole as usize];
        call(&mut life, BackingOperation::Write { offset: 0, buffer, durable: false });
    }
    call(&mut life, BackingOperation::Sync);
    let flushed_at = life.now;
    while life.now.since(flushed_at) < WINDOW {
        let buffer = vec![0xff; BLOCK as usize];
        call(&mut life, BackingOperation::Write { offset: 0, buffer, durable: true });
        let next = life.now.saturating_add(Nanos::from_millis(100));
        while life.now < next {
            life.tick();
        }
    }
    life.stop();
    life
}

/// Goal: a flush of more than a scan looks through is there or refused, too, though a later batch
/// says at once that all was durable. Method: a bit of one of its payloads flips, near and far from
/// that batch; what the journal has for the store is compared with what it had.
#[test]
fn a_long_flush_is_there_or_an_error() {
    let life = flushed_long();
    let waiting = |disks: &SimDisks| {
        let mut read = |at, length| disks.read(at, length);
        let opened = Volume::<Vec<u8>>::open(life.plan(), &disks.map_file, life.now, 1, &mut read);
        match opened {
            Err(OpenError::Journal(_)) => None,
            opened => Some(opened.expect("the map file is whole").volume.status().dirty_bytes),
        }
    };
    let whole = waiting(&life.world.disks).expect("nothing is damaged");
    assert!(whole > VOUCH_BYTES, "more than a scan looks through");
    let mut opened = 0;
    for place in [2 * PAGE_BYTES, 2 << 20, 6 << 20, 12 << 20, VOUCH_BYTES / 2, VOUCH_BYTES] {
        let mut bad = life.world.disks.clone();
        bad.rot(place + 100);
        let Some(found) = waiting(&bad) else { continue };
        opened += 1;
        assert!(found + BLOCKS * BLOCK >= whole, "a bit at {place} took {} bytes", whole - found);
    }
    assert!(opened > 0, "each opening was refused, and nothing was compared");
}

/// Goal: what was never flushed may be torn, and that is no error. Method: writes without a flush,
/// power cuts; each opening succeeds and names nothing.
#[test]
fn a_torn_end_is_no_damage() {
    for seed in 100..140 {
        let mut life = flushed(seed, WINDOW);
        life.open_again();
        life.load(20);
        life.stop();
        let disks = life.world.disks.clone();
        let mut read = |at, length| disks.read(at, length);
        let plan = life.plan();
        let opened = Volume::<Vec<u8>>::open(plan, &disks.map_file, life.now, 1, &mut read);
        assert_eq!(opened.expect("nothing is damaged").damaged, Vec::new(), "seed {seed}");
    }
}

/// Goal: a volume whose journal failed rests: it asks for a turn only when it has something to do.
/// Method: a durable write, then one that the journal fails; seconds go by, and whenever nothing is
/// under way the next turn is asked for later than now.
#[test]
fn a_lost_journal_asks_for_nothing() {
    let mut life = Life::new(70);
    life.load(40);
    life.settle();
    let write = |token: u64, durable| {
        let buffer = vec![token as u8; BLOCK as usize];
        (token, BackingOperation::Write { offset: 0, buffer, durable })
    };
    let (token, call) = write(1 << 50, true);
    life.volume.submit(token, call);
    assert_eq!(life.wait(token).0, Ok(()));
    life.world.file_fault = Some(SimDeed::JournalWritten);
    let (token, call) = write((1 << 50) + 1, false);
    life.volume.submit(token, call);
    assert!(life.wait(token).0.is_err(), "the journal failed");
    assert!(life.volume.status().journal_fault.is_some(), "it says so");
    let from = life.now;
    while life.now.since(from) < Nanos::from_secs(5) {
        life.tick();
        let is_idle = life.world.is_idle();
        life.volume.on_tick(life.now);
        let actions = life.volume.take_actions();
        let rests = life.volume.next_deadline() > life.now;
        assert!(rests || !is_idle || !actions.is_empty(), "after {:?}", life.now.since(from));
        life.world.take(actions);
    }
}
