//! Cleaning by hand: what leaves a level with a victim's segment, and what stays.

use super::host::*;
use crate::cleaning::{Limits, Segments};
use crate::*;
use layby_types::*;
use std::vec::Vec;

const SLOTS: u32 = 100;
const SSD: LevelIndex = LevelIndex(2);
/// More free segments than the log must keep.
const PLENTY: Segments = Segments { free: 20, kept: 9 };

/// Levels in which nothing is destaged unless that is asked for.
fn patient() -> CacheSpec {
    let mut spec = spec([8, 8, SLOTS]);
    for level in &mut spec.levels {
        (level.watermarks.dirty_red, level.watermarks.dirty_green) = (100, 100);
    }
    spec
}

fn write(host: &mut Host, id: u32, blocks: std::ops::Range<u64>, value: u32) {
    for block in blocks {
        let answer = host.run(VolumeId(id), call(Operation::Write, block * 4096, 4096), value);
        assert_eq!(answer.result, Ok(()));
    }
    host.settle();
}

fn read(host: &mut Host, id: u32, block: u64) -> u32 {
    let answer = host.run(VolumeId(id), call(Operation::Read, block * 4096, 4096), 0);
    assert_eq!(answer.result, Ok(()));
    host.settle();
    answer.cells[0]
}

fn drain(host: &mut Host) {
    host.drain(1, None);
    host.settle();
    assert_eq!(host.drained.pop(), Some((1, Ok(()))));
}

/// A full level whose blocks are clean, or dirty; block 0 is the coldest.
fn full(is_clean: bool) -> Host {
    let mut host = Host::new(patient(), &[volume(1, 1, 256)], 1);
    write(&mut host, 1, 0..SLOTS.into(), 1);
    if is_clean {
        drain(&mut host);
    }
    host
}

fn slot(host: &Host, id: u32, block: u64) -> Slot {
    let key = BlockKey::new(VolumeId(id), BlockIndex(block));
    let number = host.cache.volumes.number(VolumeId(id)).expect("it was added");
    host.cache.levels[2].find(number, key).expect("it is in the level")
}

fn clean(host: &mut Host, blocks: &[u64]) -> Vec<Cleaned> {
    let slots: Vec<Slot> = blocks.iter().map(|block| slot(host, 1, *block)).collect();
    host.clean(SSD, &slots, PLENTY)
}

fn counters(host: &Host) -> (u64, u64) {
    let counters = host.cache.level_view(SSD, host.now).counters;
    (counters.cleaning_dropped, counters.cleaning_destaged)
}

fn held(host: &Host) -> u32 {
    host.cache.level_view(SSD, host.now).used
}

/// Goal: the coldest clean blocks of a full level leave, warm ones are copied, and what left is
/// read from the backing store. Method: blocks of all ages.
#[test]
fn cold_clean_blocks_leave() {
    let mut host = full(true);
    let answers = clean(&mut host, &[0, 50, 99, 1]);
    use Cleaned::{Copy, Dropped};
    assert_eq!(answers, [Dropped, Copy, Copy, Dropped]);
    assert_eq!((held(&host), counters(&host)), (SLOTS - 2, (2, 0)));
    assert_eq!((read(&mut host, 1, 0), read(&mut host, 1, 1)), (1, 1));
    assert_eq!(host.reads_below.len(), 2);
}

/// Goal: nothing leaves while more than `free_percent` of the level is free, blocks on their way
/// included; zero percent of cold blocks turns it off. Method: clean and dirty levels of which all
/// cold blocks are shown at once; a level with a free tenth; limits of zero.
#[test]
fn what_fits_stays() {
    let coldest: Vec<u64> = (0..15).collect();
    for is_clean in [true, false] {
        let mut host = full(is_clean);
        let left = clean(&mut host, &coldest);
        let left = left.iter().filter(|answer| **answer != Cleaned::Copy).count();
        assert_eq!(left, 4, "three free slots of a hundred are not more than three percent");
        host.settle();
        assert_eq!((held(&host), counters(&host).0), (SLOTS - 4, 4));
        let more = clean(&mut host, &[4, 5, 6]);
        assert_eq!(more, [Cleaned::Copy; 3], "clean: {is_clean}");
    }
    let mut host = Host::new(patient(), &[volume(1, 1, 256)], 1);
    write(&mut host, 1, 0..90, 1);
    drain(&mut host);
    assert_eq!(clean(&mut host, &[0, 1]), [Cleaned::Copy; 2]);
    let mut host = full(true);
    host.cache.set_cleaning(Limits { cold_percent: 0, ..Limits::DEFAULT });
    assert_eq!(clean(&mut host, &[0, 1]), [Cleaned::Copy; 2]);
}

/// Goal: a dirty block stays until the backing store has it durably, and then leaves; asked again
/// meanwhile, the answer is the same. Method: two cold dirty blocks, ended action by action; a
/// power cut after it.
#[test]
fn a_dirty_block_is_never_dropped() {
    let mut host = full(false);
    let cold = [slot(&host, 1, 0), slot(&host, 1, 2)];
    assert_eq!(host.clean(SSD, &cold, PLENTY), [Cleaned::Destaging; 2]);
    assert_eq!(host.clean(SSD, &cold, PLENTY), [Cleaned::Destaging; 2]);
    while held(&host) == SLOTS {
        assert!(cold.iter().all(|slot| host.cache.slot(SSD, *slot).is_some_and(|it| it.1)));
        assert!(host.step(), "they leave in the end");
    }
    assert_eq!(host.cache.backing_counters().writes, 1, "they are merged");
    host.settle();
    assert_eq!((held(&host), counters(&host)), (SLOTS - 2, (2, 2)));
    host.checkpoint();
    host.crash();
    assert_eq!((read(&mut host, 1, 0), read(&mut host, 1, 2)), (1, 1));
}

/// Goal: no victim waits for a backing store where free segments are scarce; clean blocks leave.
/// Method: as many free segments as must be kept, and fewer.
#[test]
fn scarce_segments_wait_for_nothing() {
    for free in [9, 1] {
        let scarce = Segments { free, kept: 9 };
        let mut host = full(false);
        let cold = slot(&host, 1, 0);
        assert_eq!(host.clean(SSD, &[cold], scarce), [Cleaned::Copy]);
        assert_eq!(host.under_way(), 0);
        drain(&mut host);
        assert_eq!(host.clean(SSD, &[cold], scarce), [Cleaned::Dropped]);
    }
}

/// Goal: an overwrite, or a read, while the destage is in flight keeps the block, and the cleaner
/// learns it. Method: each of them at every step of the destage.
#[test]
fn what_is_used_meanwhile_stays() {
    for (steps, is_write) in (0..3).flat_map(|steps| [(steps, false), (steps, true)]) {
        let mut host = full(false);
        host.in_order = true;
        let cold = slot(&host, 1, 0);
        assert_eq!(host.clean(SSD, &[cold], PLENTY), [Cleaned::Destaging]);
        for _ in 0..steps {
            assert!(host.step() && held(&host) == SLOTS);
        }
        if is_write {
            host.submit(VolumeId(1), call(Operation::Write, 0, 4096), 9);
        } else {
            host.submit(VolumeId(1), call(Operation::Read, 0, 4096), 0);
        }
        host.settle();
        let case = std::format!("after {steps} steps, a write: {is_write}");
        assert_eq!((held(&host), host.kept.as_slice()), (SLOTS, &[(SSD, cold)][..]), "{case}");
        let key = BlockKey::new(VolumeId(1), BlockIndex(0));
        assert_eq!(host.cache.slot(SSD, cold), Some((key, is_write)), "{case}");
        assert_eq!(read(&mut host, 1, 0), if is_write { 9 } else { 1 }, "{case}");
        assert_eq!(host.cache.levels[2].drops_pending, 0);
    }
}

/// Goal: what is locked, freed or sick is copied. Method: a block with a read in flight, a slot
/// without a block, a block whose bytes are bad.
#[test]
fn what_is_not_settled_is_copied() {
    let mut host = full(true);
    let cold = slot(&host, 1, 0);
    assert_eq!(clean(&mut host, &[0]), [Cleaned::Dropped]);
    assert_eq!(host.clean(SSD, &[cold, Slot(SLOTS), cold], PLENTY), [Cleaned::Copy; 3]);
    host.submit(VolumeId(1), call(Operation::Cache, 4096, 4096), 0);
    assert_eq!(clean(&mut host, &[1]), [Cleaned::Copy]);
    let mut host = full(false);
    host.unreadable = [BlockKey::new(VolumeId(1), BlockIndex(0))].into();
    assert_eq!(clean(&mut host, &[0]), [Cleaned::Destaging]);
    host.settle();
    assert_eq!(host.kept.len(), 1, "it cannot be destaged");
    assert_eq!(clean(&mut host, &[0]), [Cleaned::Copy]);
}

/// Goal: a failing backing store, or one that does not answer, has its volume's blocks copied,
/// those that wait for a destage too, and another volume's leave as ever. Method: a fault met by a
/// destage of cleaning's; then a backing store that is stuck, with more destages than may be in
/// flight.
#[test]
fn a_failing_backing_store_keeps_its_blocks() {
    let mut host = full(false);
    host.backing_fault = Some(ErrorKind::Retry);
    assert_eq!(clean(&mut host, &[0]), [Cleaned::Destaging]);
    host.settle();
    assert_eq!((held(&host), host.kept.len(), counters(&host)), (SLOTS, 1, (0, 0)));
    assert_eq!(clean(&mut host, &[0]), [Cleaned::Copy]);
    host.backing_fault = None;
    host.wait(10);
    drain(&mut host);
    assert_eq!(clean(&mut host, &[0]), [Cleaned::Dropped]);

    let mut spec = patient();
    spec.writeback.inflight_max = 1;
    let mut host = Host::new(spec, &[volume(1, 1, 256), volume(2, 1, 256)], 1);
    host.in_order = true;
    write(&mut host, 1, 0..2, 1);
    write(&mut host, 2, 0..1, 1);
    (5..102).for_each(|block| assert_eq!(read(&mut host, 1, block), 0));
    let cold = [slot(&host, 1, 1), slot(&host, 2, 0)];
    assert_eq!(host.clean(SSD, &cold, PLENTY), [Cleaned::Destaging; 2]);
    host.set_stuck(VolumeId(2), true);
    assert_eq!(host.kept, [(SSD, cold[1])], "it waited behind the other's, and waits no more");
    host.settle();
    assert_eq!((held(&host), counters(&host)), (SLOTS - 1, (1, 1)));
    assert_eq!(host.clean(SSD, &cold[1..], PLENTY), [Cleaned::Copy]);
}

/// Goal: no volume and no class falls to what is reserved for it, nor a volume to its sized share.
/// Method: a volume whose blocks are the coldest, with 98 of its 100 slots reserved for it, for its
/// class, or sized; dirty and clean.
#[test]
fn what_is_reserved_stays() {
    for (case, is_clean) in (0..3).flat_map(|case| [(case, false), (case, true)]) {
        let mut spec = patient();
        let mut mine = volume(1, 1, 256);
        match case {
            0 => mine.shares[2].guaranteed = 98,
            1 => spec.classes[1].shares[2].guaranteed = 98,
            _ => {}
        }
        let mut host = Host::new(spec, &[mine], 1);
        if case == 2 {
            let sized = core::array::from_fn(|level| if level == 2 { 98 } else { 0 });
            host.cache.set_sized(VolumeId(1), Some(sized)).expect("it was added");
        }
        write(&mut host, 1, 0..SLOTS.into(), 1);
        if is_clean {
            drain(&mut host);
        }
        let answers = clean(&mut host, &[0, 1, 2, 3]);
        let copies = answers.iter().filter(|answer| **answer == Cleaned::Copy).count();
        host.settle();
        assert_eq!((copies, held(&host)), (3, 99), "case {case}, clean: {is_clean}");
        assert_eq!(clean(&mut host, &[1, 2, 3]), [Cleaned::Copy; 3]);
    }
}

/// Goal: a copy in lent room above leaves with its block. Method: a block read into lent room,
/// grown cold below it.
#[test]
fn borrowed_copies_leave_too() {
    let mut spec = patient();
    spec.classes[1].borrow = true;
    let mut host = Host::new(spec, &[volume(1, 1, 256)], 1);
    write(&mut host, 1, 0..SLOTS.into(), 1);
    assert_eq!(read(&mut host, 1, 0), 1);
    assert_eq!(host.cache.level_of(VolumeId(1), BlockIndex(0)), Some(LevelIndex(0)), "it is lent");
    write(&mut host, 1, 1..SLOTS.into(), 2);
    drain(&mut host);
    assert_eq!(clean(&mut host, &[0]), [Cleaned::Dropped]);
    assert_eq!(host.cache.level_of(VolumeId(1), BlockIndex(0)), None);
    assert_eq!(read(&mut host, 1, 0), 1);
}

/// Goal: a store that waits for room gets what cleaning frees, at once. Method: a level with more
/// dirty blocks at its cold end than a policy offers, a write that waits for one of them to be
/// destaged, and a clean block behind them.
#[test]
fn what_waits_for_room_gets_it() {
    let mut spec = patient();
    spec.levels[2].slots = 200;
    let mut host = Host::new(spec, &[volume(1, 1, 256)], 1);
    host.cache.set_cleaning(Limits::MAX);
    write(&mut host, 1, 0..70, 1);
    (70..200).for_each(|block| assert_eq!(read(&mut host, 1, block), 0));
    host.submit(VolumeId(1), call(Operation::Write, 210 * 4096, 4096), 3);
    let waiting = |host: &Host| host.cache.level_view(SSD, host.now).waiting;
    assert_eq!(waiting(&host), 1);
    assert_eq!(clean(&mut host, &[70]), [Cleaned::Dropped]);
    assert_eq!(waiting(&host), 0);
    host.settle();
    assert_eq!(read(&mut host, 1, 210), 3);
}

/// Goal: what cleaning frees is free: the next block takes it, and none is evicted. Method: a full
/// level, a block dropped, a new one written.
#[test]
fn the_next_block_takes_what_is_freed() {
    let mut host = full(true);
    assert_eq!(clean(&mut host, &[0]), [Cleaned::Dropped]);
    write(&mut host, 1, 200..201, 3);
    assert_eq!((held(&host), counters(&host).0), (SLOTS, 1));
    assert_eq!(host.cache.level_view(SSD, host.now).counters.evictions, 0);
}

/// Goal: the same inputs give the same answers, and the host's chance has no part in them. Method:
/// two hosts of different seeds, a load that ends in order, every slot shown several times.
#[test]
fn same_inputs_give_the_same_answers() {
    let run = |seed| {
        let mut host = Host::new(patient(), &[volume(1, 1, 256)], seed);
        host.in_order = true;
        let (mut rng, mut answers) = (Rng::new(5), Vec::new());
        for round in 0..40 {
            for _ in 0..30 {
                let block = rng.below(16) * rng.below(16) + rng.below(16);
                let operation = if rng.chance(1, 2) { Operation::Read } else { Operation::Write };
                host.run(VolumeId(1), call(operation, block * 4096, 4096), round);
            }
            let slots: Vec<Slot> = (0..SLOTS).map(Slot).collect();
            answers.extend(host.clean(SSD, &slots, PLENTY));
            host.settle();
        }
        (answers, counters(&host))
    };
    let (one, other) = (run(4), run(8));
    assert!(one.1.0 > 10 && one.1.1 > 10, "{:?}", one.1);
    assert_eq!(one, other);
}

/// Goal: a volume may be removed while blocks of it wait for a destage of cleaning's. Method: one
/// destage in flight at most, another volume's, then the removal; nothing is left of it.
#[test]
fn a_removed_volume_leaves_nothing_behind() {
    let mut spec = patient();
    spec.writeback.inflight_max = 1;
    let mut host = Host::new(spec, &[volume(1, 1, 256), volume(2, 1, 256)], 1);
    write(&mut host, 1, 0..1, 1);
    write(&mut host, 2, 0..1, 1);
    (5..103).for_each(|block| assert_eq!(read(&mut host, 1, block), 0));
    let cold = [slot(&host, 1, 0), slot(&host, 2, 0)];
    assert_eq!(host.clean(SSD, &cold, PLENTY), [Cleaned::Destaging; 2]);
    host.specs.pop();
    host.remove(VolumeId(2));
    host.settle();
    assert_eq!((host.cache.levels[2].drops_pending, counters(&host).0), (0, 1));
}

/// Goal: what a volume has written past its levels, without a flush, keeps no clean block of it in
/// a level that is cleaned: the backing store has that durably. Method: a write in a class without
/// the level; another class, blocks there that are destaged, or are to be for the cleaner.
#[test]
fn volatile_writes_elsewhere_keep_no_clean_block() {
    let mut spec = patient();
    let bare = ClassSpec { levels: 0b001, ..spec.classes[1].clone() };
    spec.classes.push(bare);
    for is_clean in [true, false] {
        let mut host = Host::new(spec.clone(), &[volume(1, 2, 256)], 1);
        write(&mut host, 1, 200..201, 2);
        host.cache.set_volume(&volume(1, 1, 256)).expect("there is the class");
        write(&mut host, 1, 0..SLOTS.into(), 1);
        if is_clean {
            drain(&mut host);
        }
        let answers = clean(&mut host, &[0]);
        assert_eq!(answers, [if is_clean { Cleaned::Dropped } else { Cleaned::Destaging }]);
        host.settle();
        assert_eq!(counters(&host).0, 1, "clean: {is_clean}");
        assert_eq!(read(&mut host, 1, 0), 1);
    }
}
