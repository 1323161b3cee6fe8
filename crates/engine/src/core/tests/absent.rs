//! A home that cannot be opened at a start: nothing of its volume is lost meanwhile.

use super::faults::{quiet, write_block};
use super::*;
use crate::store::{RecoveredEntry, nvm_slots_for};
use layby_cache::discards::{DiscardDelay, DiscardLimits, DiscardMode};
use layby_types::{BlockIndex, BlockKey, Seq, Slot};
use std::collections::BTreeSet;

const VOLUMES: [u32; 2] = [1, 2];
const MODES: [CrashMode; 3] = [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll];

/// What each block of each volume holds.
type Model = HashMap<(u32, u64), u8>;

/// One durable write, trim or zeroing of a volume.
fn change(world: &mut World, model: &mut Model, rng: &mut Rng, volume: u32) {
    let first = rng.below(BLOCKS);
    let count = (1 + rng.below(4)).min(BLOCKS - first);
    let operation = [Operation::Write, Operation::Write, Operation::Trim, Operation::WriteZeroes]
        [rng.below(4) as usize];
    let value = if operation == Operation::Write { 1 + rng.below(250) as u8 } else { 0 };
    let mut call = call(operation, first * BLOCK, count * BLOCK);
    call.flags.fua = true;
    world.run(volume, call, value).expect("the levels have room");
    model.extend((first..first + count).map(|block| ((volume, block), value)));
}

/// Discards wait, so that the end of a life finds homes that have not heard of them.
pub(super) fn delay_discards(world: &mut World) {
    let delay = DiscardDelay::Fixed(Nanos::from_secs(3600));
    let limits = DiscardLimits { mode: DiscardMode::Delayed, delay, ..DiscardLimits::DEFAULT };
    VOLUMES.iter().for_each(|volume| world.core.set_discard(VolumeId(*volume), limits));
}

fn assert_holds(world: &mut World, model: &Model, volume: u32) {
    for block in 0..BLOCKS {
        let data = world.read(volume, block * BLOCK, BLOCK).expect("it is served");
        let value = model.get(&(volume, block)).copied().unwrap_or(0);
        let is = data.iter().all(|byte| *byte == value);
        assert!(is, "{volume} {block}: {} for {value}; SEED={}", data[0], world.seed);
    }
}

/// Ends a life, cleanly or not, and begins the next one.
fn next_life(world: &mut World, rng: &mut Rng, absent: Option<u32>) {
    if rng.chance(1, 2) {
        world.core.shut_down(&mut world.io).expect("all devices that are there work");
    }
    world.shape.absent = absent;
    world.crash(MODES[rng.below(3) as usize]);
    delay_discards(world);
}

/// Goal: while a volume's home is not there, for several lives, nothing of it is served, sent home
/// or forgotten, and other volumes lose nothing; when it is back, every block is as was promised,
/// zeroings that no home had heard of included. Method: random durable changes with discards that
/// wait, power cuts and clean stops, checkpoints and drains between, beside a model.
#[test]
fn a_home_that_is_away_costs_nothing() {
    let owed = std::cell::Cell::new(0);
    each_seed(200, |seed| {
        let mut rng = Rng::new(seed);
        let mut world = World::new(seed, quiet());
        let mut model = Model::new();
        delay_discards(&mut world);
        for _ in 0..rng.below(60) {
            let volume = VOLUMES[rng.below(2) as usize];
            change(&mut world, &mut model, &mut rng, volume);
            if rng.chance(1, 20) {
                world.drain().expect("all homes are there");
            }
        }
        let (away, there) = if rng.chance(1, 2) { (1, 2) } else { (2, 1) };
        for _ in 0..1 + rng.below(3) {
            next_life(&mut world, &mut rng, Some(away));
            owed.set(owed.get() + u32::from(world.core.owes_absent()));
            let home = world.io.peek(world.homes[away as usize - 1]);
            for _ in 0..rng.below(30) {
                change(&mut world, &mut model, &mut rng, there);
            }
            if rng.chance(1, 2) {
                assert!(world.core.end_with_checkpoint(&mut world.io), "SEED={seed}");
            }
            let is_dirty = !world.core.cache.is_clean(VolumeId(away));
            assert_eq!(world.drain().is_err(), is_dirty, "SEED={seed}");
            assert!(!world.core.settle(&mut world.io, VolumeId(away)), "SEED={seed}");
            let refused = world.read(away, 0, BLOCK).expect_err("it is not served");
            assert_eq!(refused, ErrorKind::Closed, "SEED={seed}");
            assert_holds(&mut world, &model, there);
            let now = world.io.peek(world.homes[away as usize - 1]);
            assert!(now == home, "its home was written; SEED={seed}");
        }
        next_life(&mut world, &mut rng, None);
        VOLUMES.iter().for_each(|volume| assert_holds(&mut world, &model, *volume));
        world.drain().expect("all homes are there");
        assert!(!world.core.owes_absent());
        next_life(&mut world, &mut rng, None);
        VOLUMES.iter().for_each(|volume| assert_holds(&mut world, &model, *volume));
    });
    assert!(owed.get() > 20, "{} lives owed a zeroing", owed.get());
}

/// Goal: a volume whose home is away can be given up. Method: dirty blocks and a zeroing that is
/// owed; it is removed, and a later life has neither.
#[test]
fn what_is_away_is_given_up() {
    each_seed(20, |seed| {
        let mut rng = Rng::new(seed);
        let mut world = World::new(seed, quiet());
        delay_discards(&mut world);
        for block in 0..8 {
            write_block(&mut world, 2, block, 40).expect("a write");
        }
        let mut trim = call(Operation::Trim, 0, 4 * BLOCK);
        trim.flags.fua = true;
        world.run(2, trim, 0).expect("a trim");
        next_life(&mut world, &mut rng, Some(2));
        let gone = world.core.remove_volume(&mut world.io, VolumeId(2), OnDirty::Discard);
        gone.expect("nothing is in flight");
        assert!(!world.core.owes_absent(), "SEED={seed}");
        assert!(world.core.end_with_checkpoint(&mut world.io), "SEED={seed}");
        world.core.shut_down(&mut world.io).expect("all devices that are there work");
    });
}

/// Goal: a write-protected home ends no start: while zeroes wait to be written to it, its volume is
/// named and not served, and nothing of it is lost; where none do, it is served; the others are
/// served either way. Method: random durable changes with discards that wait, a power cut or a
/// clean stop, a start with the protection and one without, beside a model.
#[test]
fn a_protected_home_that_owes_zeroes_is_away() {
    let counts = [(); 2].map(|()| std::cell::Cell::new(0));
    each_seed(100, |seed| {
        let mut rng = Rng::new(seed);
        let mut world = World::new(seed, quiet());
        let mut model = Model::new();
        delay_discards(&mut world);
        for _ in 0..rng.below(8) {
            let volume = VOLUMES[rng.below(2) as usize];
            change(&mut world, &mut model, &mut rng, volume);
        }
        if rng.chance(1, 2) {
            world.core.shut_down(&mut world.io).expect("all devices work");
        }
        let (away, there) = if rng.chance(1, 2) { (1, 2) } else { (2, 1) };
        world.io.crash(MODES[rng.below(3) as usize]);
        let home = world.io.peek(world.homes[away as usize - 1]);
        world.shape.protected = Some(away);
        let report = world.restart();
        delay_discards(&mut world);
        assert!(world.io.peek(world.homes[away as usize - 1]) == home, "SEED={seed}");
        counts[usize::from(report.absent.is_empty())].update(|count| count + 1);
        match &report.absent[..] {
            [] => assert_holds(&mut world, &model, away),
            [refusal] => {
                assert_eq!((refusal.volume, refusal.kind), (VolumeId(away), ErrorKind::Denied));
                assert!(refusal.cause.contains("write-protected"), "{}", refusal.cause);
                let refused = world.read(away, 0, BLOCK).expect_err("it is not served");
                assert_eq!(refused, ErrorKind::Closed, "SEED={seed}");
                assert!(world.core.owes_absent(), "SEED={seed}");
            }
            more => panic!("{more:?}; SEED={seed}"),
        }
        assert_holds(&mut world, &model, there);
        world.shape.protected = None;
        world.crash(MODES[rng.below(3) as usize]);
        VOLUMES.iter().for_each(|volume| assert_holds(&mut world, &model, *volume));
    });
    let counts = counts.map(|count| count.get());
    assert!(counts.iter().all(|count| *count > 10), "away and served: {counts:?}");
}

/// An NVM level full of dirty blocks of volume 2, whose slots are answered. The last one took the
/// slot of a block of volume 1, of which the level still has two records: it moved down while its
/// older version had not retired.
fn full_of_one(seed: u64) -> (World, u64) {
    let mut shape = quiet();
    shape.persistent = false;
    for level in &mut shape.spec.levels {
        (level.watermarks.dirty_red, level.watermarks.used_red) = (100, 100);
    }
    for class in &mut shape.spec.classes {
        (class.levels, class.durable_writes) = (0b110, false);
    }
    let slots = u64::from(nvm_slots_for(shape.nvm_bytes, BlockSize::MIN));
    assert!(slots < BLOCKS, "a volume fills the level");
    let mut world = World::new(seed, shape);
    (0..slots - 1).for_each(|block| write_block(&mut world, 2, block, 20).expect("a write"));
    (10..12).for_each(|value| write_block(&mut world, 1, 0, value).expect("a write"));
    let mut shares = [Share::OPEN; LEVELS_MAX];
    shares[1].cap = 0;
    let (id, class, length) = (VolumeId(1), ClassId(0), BLOCKS * BLOCK);
    let spec = VolumeSpec { id, class, length, shares, write_through: false };
    world.core.cache().set_volume(&spec).expect("a class that there is");
    (0..100).for_each(|_| world.core.turn(&mut world.io));
    assert_eq!(held(&mut world, 1), [0, 1], "it moved down");
    let mut last = call(Operation::Write, (slots - 1) * BLOCK, BLOCK);
    last.flags.fua = true;
    world.run(2, last, 20).expect("there is a slot");
    assert_eq!(held(&mut world, 2), [slots as u32, 0]);
    (world, slots)
}

/// Blocks of a volume in the NVM level and in the log.
fn held(world: &mut World, volume: u32) -> [u32; 2] {
    [1, 2].map(|level| world.core.cache().held_by(VolumeId(volume), LevelIndex(level)).0)
}

/// Goal: a start succeeds without a volume's backing store where the NVM level has more dirty
/// blocks than slots, since one that moved down has left its records; the other volume is served,
/// and nothing is lost. Method: see above; power loss before the level was synced again.
#[test]
fn what_moved_down_leaves_its_slot_to_what_is_absent() {
    each_seed(10, |seed| {
        let (mut world, slots) = full_of_one(seed);
        world.shape.absent = Some(2);
        let report = world.crash(CrashMode::DropAll);
        assert_eq!(report.blocks_dirty, slots + 1, "SEED={seed}: none was sent home");
        assert_eq!(held(&mut world, 2), [slots as u32, 0], "SEED={seed}");
        assert_holds(&mut world, &Model::from([((1, 0), 11)]), 1);
        write_block(&mut world, 1, 1, 30).expect("it is served");
        world.shape.absent = None;
        world.crash(CrashMode::KeepAll);
        let model = (0..slots).map(|block| ((2, block), 20)).collect();
        assert_holds(&mut world, &model, 2);
        assert_holds(&mut world, &Model::from([((1, 0), 11), ((1, 1), 30)]), 1);
    });
}

/// Goal: dirty blocks of a write-protected backing store keep their slots where another volume's
/// blocks can leave theirs: they could be sent nowhere. Method: an NVM level's findings by hand, in
/// the order of their keys, with one block of an absent volume beyond the slots.
#[test]
fn what_is_protected_keeps_its_slot() {
    let mut world = World::new(1, quiet());
    let nvm = nvm_slots_for(world.shape.nvm_bytes, BlockSize::MIN);
    world.shape.absent = Some(2);
    world.crash(CrashMode::KeepAll);
    let entry = |slot: u32, volume: u32| {
        let key = BlockKey::new(VolumeId(volume), BlockIndex(slot.into()));
        RecoveredEntry { slot: Slot(slot), key, seq: Seq(1), dirty: true }
    };
    let mut entries: Vec<_> = (0..nvm - 1).map(|slot| entry(slot, 1)).collect();
    entries.extend([entry(nvm - 1, 3), entry(nvm, 2)]);
    let protected = BTreeSet::from([VolumeId(1)]);
    let exchanged = world.core.exchange_slots(&mut entries, &mut [], nvm, &protected);
    assert_eq!(exchanged, [(Slot(nvm), Slot(nvm - 1))]);
    let slots: Vec<u32> = entries.iter().map(|entry| entry.slot.0).collect();
    let expected: Vec<u32> = (0..nvm - 1).chain([nvm, nvm - 1]).collect();
    assert_eq!(slots, expected, "the block of the third volume has left its slot");
}
