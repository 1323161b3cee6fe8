//! Volumes that shrink and grow, and nodes that take them: what the store has behind an end.

use super::lives::{BLOCK, BLOCKS, Life};
use super::waits::{Bench, WITHIN};
use crate::action::{Condition, Request, Tag};
use crate::restore::Restored;
use crate::segment::VolumeUuid;
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use layby_types::ErrorKind;

impl Life {
    /// Has the volume another size, in blocks, as a node does: what a shrink cuts off is durable
    /// zeros first.
    fn resize(&mut self, blocks: u64) {
        if blocks < self.end {
            let before = self.end;
            self.end = blocks;
            self.zero(blocks..before);
            self.sync_all();
        }
        self.end = blocks;
        self.volume.set_size(blocks * BLOCK);
    }

    /// Blocks of the volume by the store's superblock.
    fn blocks_told(&self) -> u64 {
        let (bytes, _) = self.world.store.get(SUPERBLOCK_KEY, None).expect("it was put");
        Superblock::decode(&bytes).expect("it is whole").size_bytes / BLOCK
    }

    /// Another node takes the volume, of the size that the store says, and has it grow to all of
    /// its blocks: it is a prefix of its history, and what was behind the end is zeros.
    fn take_over_and_grow(&mut self, node: u8) {
        let told = self.blocks_told();
        self.end = told;
        self.lose_disks(VolumeUuid([node; 16]));
        self.grow_again(told);
        if told < BLOCKS {
            self.note_zeroed(told..BLOCKS);
        }
    }

    fn grow_again(&mut self, told: u64) {
        let shrunk = self.read_all();
        self.end = BLOCKS;
        self.volume.set_size(BLOCKS * BLOCK);
        self.live_on();
        let state = self.read_all();
        let is_same = shrunk[..told as usize] == state[..told as usize];
        assert!(is_same, "a growth changes nothing before the end: {}", self.line);
        let zeros = vec![0; BLOCK as usize];
        let is_zero = state[told as usize..].iter().all(|block| *block == zeros);
        assert!(is_zero, "what was behind block {told} is back: {}", self.line);
    }

    fn settle_size(&mut self) {
        self.settle();
        self.live_on();
    }

    fn live_on(&mut self) {
        (0..200).for_each(|_| self.tick());
    }
}

/// Goal: a node that takes a volume after a shrink and has it grow again finds zeros behind the old
/// end, at whatever moment it takes it; what it takes is a prefix of the history. Method: random
/// lives, with faults of the store, that shrink, at times grow again before either is in the store,
/// or start again; another node takes the volume, and a third one what that one made of it.
#[test]
fn a_taken_volume_has_zeros_behind_an_end_that_it_had() {
    for seed in 7000..7120 {
        let mut life = Life::new(seed);
        life.load(400);
        life.settle();
        let errors = life.world.rng.below(30);
        life.world.faults.errors = errors;
        life.volume.set_draining(false);
        let end = 1 + life.world.rng.below(BLOCKS - 1);
        life.resize(end);
        let steps = life.world.rng.below(120);
        life.load(steps);
        match life.world.rng.below(4) {
            0 => life.crash(),
            1 => life.resize(BLOCKS),
            _ => {}
        }
        let steps = life.world.rng.below(60);
        life.load(steps);
        life.take_over_and_grow(8);
        life.settle_size();
        life.take_over_and_grow(9);
        life.settle();
    }
}

/// Goal: a size is in the store soon: a growth at once, and a shrink when its zeros are, also where
/// the node was killed meanwhile; then the store has nothing behind the end. Method: each with the
/// store's superblock after it.
#[test]
fn sizes_reach_the_store() {
    for seed in 7200..7220 {
        let mut life = Life::new(seed);
        life.load(300);
        life.settle();
        life.volume.set_draining(false);
        let end = BLOCKS / 2;
        life.world.faults.is_cut = true;
        life.resize(end);
        life.live_on();
        life.world.faults.is_cut = false;
        assert_eq!(life.blocks_told(), BLOCKS, "{}", life.line);
        if seed % 2 == 0 {
            life.crash();
        }
        life.settle_size();
        assert_eq!(life.blocks_told(), end, "{}", life.line);
        assert!(life.volume.map().mapped(end..BLOCKS).next().is_none(), "{}", life.line);
        life.volume.set_draining(false);
        life.resize(BLOCKS);
        life.live_on();
        assert_eq!(life.blocks_told(), BLOCKS, "{}", life.line);
    }
}

/// Goal: a size is in the store also where clients' calls waited for too long meanwhile, and so is
/// each one after it: a node that takes the volume has all that was written behind the old end.
/// Method: a cut link, a full journal, a class that waits for a moment only, a shrink; then a
/// growth.
#[test]
fn a_size_reaches_the_store_past_calls_that_are_given_up() {
    let mut bench = Bench::new(7500);
    let told = |bench: &Bench| {
        let (bytes, _) = bench.world.store.get(SUPERBLOCK_KEY, None).expect("it was put");
        Superblock::decode(&bytes).expect("it is whole").size_bytes / BLOCK
    };
    bench.world.faults.is_cut = true;
    let waiting = bench.fill();
    bench.volume.set_size(BLOCKS / 2 * BLOCK);
    let behind = bench.write(0, 1, 3);
    let start = bench.now;
    bench.until(|bench| bench.now.since(start).0 > 2 * WITHIN.0);
    for call in [waiting, behind] {
        assert_eq!(bench.result(call), Some(Err(ErrorKind::Retry)), "it waited for too long");
    }
    bench.world.faults.is_cut = false;
    bench.volume.set_draining(true);
    for size in [BLOCKS / 2, BLOCKS] {
        bench.volume.set_size(size * BLOCK);
        let start = bench.now;
        bench.until(|bench| bench.now.since(start).0 > WITHIN.0 && bench.volume.is_drained());
        assert_eq!(told(&bench), size);
        assert!(bench.volume.map().mapped(BLOCKS / 2..BLOCKS).next().is_none());
    }
}

/// Goal: no superblock names what was written behind an end that the volume had grown past without
/// saying so, or a node that takes the volume has a later write and lacks that earlier one. Method:
/// a shrink, a growth past the first size and a write there, which reach the store in one segment.
#[test]
fn a_growth_is_told_with_what_it_made_room_for() {
    let mut bench = Bench::new(7600);
    let told = |bench: &Bench| {
        let (bytes, _) = bench.world.store.get(SUPERBLOCK_KEY, None).expect("it was put");
        let block = Superblock::decode(&bytes).expect("it is whole");
        (block.committed, block.size_bytes / BLOCK)
    };
    for size in [BLOCKS / 2, 2 * BLOCKS] {
        bench.volume.set_size(size * BLOCK);
    }
    let written = bench.write(2 * BLOCKS - 1, 1, 3);
    let (before, _) = told(&bench);
    bench.until(|bench| {
        let (committed, blocks) = told(bench);
        assert!(committed == before || blocks == 2 * BLOCKS, "the store says {blocks} blocks");
        bench.result(written).is_some() && bench.volume.is_drained()
    });
    assert_eq!(told(&bench).1, 2 * BLOCKS);
}

/// Goal: a store where an earlier build told a shrink before its zeros gives nothing behind the end
/// back: neither to a node that takes the volume and grows it, nor to one that takes it after that,
/// nor to a restore. Method: a superblock with a smaller size is put over a drained volume's.
#[test]
fn a_shrink_told_too_early_shows_nothing() {
    for seed in 7300..7320 {
        let mut life = Life::new(seed);
        life.load(400);
        life.settle();
        life.stop();
        let (bytes, version) = life.world.store.get(SUPERBLOCK_KEY, None).expect("it was put");
        let mut block = Superblock::decode(&bytes).expect("it is whole");
        block.size_bytes = BLOCKS / 2 * BLOCK;
        let (key, bytes) = (SUPERBLOCK_KEY.to_owned(), block.encode().into());
        let condition = Condition::Replace(Tag(version.to_string()));
        life.world.store.perform(&Request::Put { key, bytes, condition });
        let store = life.world.store.clone();
        let mut fetch = |key: &str, range| store.get(key, range).map(|(bytes, _)| bytes);
        let restored = Restored::open(&mut fetch).expect("it is whole");
        let mut last = 0;
        let mut sink = |offset: u64, bytes: &[u8]| {
            last = last.max(offset + bytes.len() as u64);
            Ok(())
        };
        restored.copy(&mut fetch, &mut sink).expect("the store answers");
        assert!(last <= block.size_bytes, "a restore wrote behind the end: {}", life.line);
        for node in [8, 9] {
            life.end = life.blocks_told();
            life.take_over(VolumeUuid([node; 16]));
            life.grow_again(life.end);
            if seed % 2 == 0 {
                life.settle_size();
                assert_eq!(life.blocks_told(), BLOCKS, "{}", life.line);
            }
            life.stop();
        }
    }
}

/// Goal: a drain that waits for what was newest when it began ends while writes go on. Method: a
/// write between any two steps; the store has a batch that was newest at one moment.
#[test]
fn what_was_written_is_stored_while_writes_go_on() {
    let mut life = Life::new(7400);
    life.load(200);
    life.volume.set_draining(true);
    let newest = life.volume.written_next();
    let mut is_drained = false;
    for _ in 0..4000 {
        life.write();
        life.tick();
        is_drained |= life.volume.is_drained();
        if life.volume.stored_next() >= newest {
            assert!(!is_drained, "there is always something newer");
            return;
        }
    }
    panic!("it never ends: {}", life.line);
}
