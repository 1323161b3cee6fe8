//! Flash that is spared, and levels that shrink.

use super::host::*;
use crate::wear::{DAY, Endurance, Wear, WearLimits};
use layby_types::*;

const SSD: LevelIndex = LevelIndex(2);
const BLOCK: u64 = 4096;

/// A host whose SSD level may be written a mebibyte a day, all of which and more is used up.
fn worn_host(slots: [u32; 3]) -> Host {
    let mut spec = spec(slots);
    spec.levels.iter_mut().for_each(|level| level.watermarks.dirty_red = 100);
    let mut host = Host::new(spec, &[volume(1, 0, 64), volume(2, 1, 512)], 1);
    let endurance = Endurance { bytes: 1000 << 20, life: Nanos(1000 * DAY.0) };
    let mut wear = Wear::new(Some(endurance), WearLimits::DEFAULT, host.now);
    wear.charge(3 << 20, host.now);
    host.cache.set_wear(SSD, wear);
    host
}

fn held(host: &Host, volume: u32) -> (u32, u32) {
    let (used, _, dirty) = host.cache.held_by(VolumeId(volume), SSD);
    (used, dirty)
}

fn value_of(host: &mut Host, volume: u32, block: u64) -> u32 {
    host.run(VolumeId(volume), call(Operation::Read, block * BLOCK, BLOCK), 0).cells[0]
}

/// Goal: over its budget a level takes no copies and no long writes of a low class; short writes
/// and the best class's are taken, everything reads back, and with a new budget all is as before.
/// Method: a load of each kind, counted; days of rest.
#[test]
fn a_worn_level_is_spared() {
    let mut host = worn_host([4, 8, 256]);
    value_of(&mut host, 2, 100);
    host.run(VolumeId(2), call(Operation::Write, 0, 32 * BLOCK), 7);
    host.settle();
    assert_eq!(held(&host, 2), (0, 0), "a copy and a long write pass by");
    host.run(VolumeId(2), call(Operation::Write, 40 * BLOCK, BLOCK), 8);
    host.settle();
    assert_eq!(held(&host, 2), (1, 1), "a short write is kept");
    let refused = host.cache.wear(SSD).expect("it is counted").1;
    assert!(refused.copies >= 1 && refused.dirty == 32, "{refused:?}");
    for block in 0..16 {
        host.run(VolumeId(1), call(Operation::Write, block * BLOCK, BLOCK), 100 + block as u32);
    }
    host.settle();
    assert!(held(&host, 1).0 > 0, "the best class moves down into it");
    for block in [0, 31, 40] {
        assert_eq!(value_of(&mut host, 2, block), if block == 40 { 8 } else { 7 });
    }
    for block in 0..16 {
        assert_eq!(value_of(&mut host, 1, block), 100 + block as u32);
    }
    host.now = host.now + Nanos(10 * DAY.0);
    value_of(&mut host, 2, 200);
    host.run(VolumeId(2), call(Operation::Write, 64 * BLOCK, 32 * BLOCK), 9);
    host.settle();
    assert!(held(&host, 2).0 >= 34, "{:?}", held(&host, 2));
}

/// Goal: a long write that passes by is followed by what was written before it, never overtaken,
/// and a version that the level holds is replaced there. Method: short and long writes over each
/// other.
#[test]
fn passing_by_keeps_the_order() {
    let mut host = worn_host([4, 8, 256]);
    for round in 1..40u32 {
        let block = u64::from(round % 5);
        host.run(VolumeId(2), call(Operation::Write, (block + 7) * BLOCK, BLOCK), 1000 + round);
        host.run(VolumeId(2), call(Operation::Write, 0, 32 * BLOCK), round);
        for block in [0, 7, 8, 11, 31] {
            assert_eq!(value_of(&mut host, 2, block), round, "block {block}, round {round}");
        }
        if round % 7 == 0 {
            host.crash();
            let wear = worn_host([4, 8, 256]).cache.wear(SSD).map(|(wear, _)| wear.clone());
            host.cache.set_wear(SSD, wear.expect("it is counted"));
        }
    }
}

/// Goal: a level that shrinks lets go what no longer fits, dirty blocks home first, guarantees
/// notwithstanding; with no room at all writes go home. Nothing is lost. Method: a full level,
/// half, then none.
#[test]
fn a_level_shrinks() {
    let mut spec = spec([4, 8, 64]);
    spec.classes[1].shares[2].guaranteed = 60;
    let mut owner = volume(2, 1, 512);
    owner.shares[2].guaranteed = 60;
    let mut host = Host::new(spec, &[volume(1, 0, 64), owner], 1);
    for block in 0..64 {
        host.run(VolumeId(2), call(Operation::Write, block * BLOCK, BLOCK), 500 + block as u32);
    }
    for (limit, round) in [(32, 1), (0, 2)] {
        host.cache.limit_level(SSD, limit);
        for _ in 0..400 {
            host.tick(Nanos::from_millis(20));
            host.settle();
        }
        assert!(held(&host, 2).0 <= limit, "{:?} of {limit}", held(&host, 2));
        assert_eq!(host.cache.level_view(SSD, host.now).slots, limit);
        for block in 0..64 {
            let value = 500 + block as u32 + 1000 * (round - 1);
            assert_eq!(value_of(&mut host, 2, block), value);
            host.run(VolumeId(2), call(Operation::Write, block * BLOCK, BLOCK), value + 1000);
            assert!(held(&host, 2).0 <= limit);
        }
    }
    host.settle();
    assert_eq!(value_of(&mut host, 2, 5), 2505);
}

/// Goal: a store that waits while its level shrinks goes on once the level fits, though nothing
/// else ends that would wake it, and though it was the store that dropped the last block too many.
/// (Simulated runs 992042077, 7200127742.) Method: a full level of clean blocks, each smaller
/// limit, writes of one block and of several; time passes only from deadline to deadline.
#[test]
fn a_store_that_waits_for_a_shrinking_level_is_woken() {
    for (seed, limit, blocks) in (0..4).flat_map(|seed| (1..60).map(move |n| (seed, n, n % 5 + 1)))
    {
        let mut host = Host::new(spec([4, 8, 64]), &[volume(1, 0, 64), volume(2, 1, 512)], seed);
        host.run(VolumeId(2), call(Operation::Write, 0, 64 * BLOCK), 5);
        host.drain(1, None);
        host.settle();
        host.cache.limit_level(SSD, limit);
        for block in [100, 110, 120] {
            let length = u64::from(blocks) * BLOCK;
            host.submit(VolumeId(2), call(Operation::Write, block * BLOCK, length), 6);
        }
        host.settle();
        host.completed.clear();
        let before = host.cache.level_view(SSD, host.now).waiting;
        assert!(before > 0, "the level holds too much, so that the writes wait");
        loop {
            let deadline = host.cache.next_deadline(host.now);
            if deadline == Nanos::NEVER {
                break;
            }
            host.tick(deadline.since(host.now));
            host.settle();
        }
        assert_eq!(host.completed.len(), 3, "SEED={seed} limit {limit}");
    }
}

/// Goal: the same where it is the volume's share that becomes smaller. Method: a volume that holds
/// a full level of clean blocks, each smaller cap, writes.
#[test]
fn a_store_that_waits_for_a_smaller_share_is_woken() {
    for cap in 1..60 {
        let owners = [volume(1, 0, 64), volume(2, 1, 512)];
        let mut host = Host::new(spec([4, 8, 64]), &owners, 1);
        host.run(VolumeId(2), call(Operation::Write, 0, 64 * BLOCK), 5);
        host.drain(1, None);
        host.settle();
        let [_, mut lowered] = owners;
        lowered.shares[2].cap = cap;
        host.cache.set_volume(&lowered).expect("the volume exists");
        for block in [100, 110, 120] {
            host.submit(VolumeId(2), call(Operation::Write, block * BLOCK, BLOCK), 6);
        }
        host.settle();
        host.completed.clear();
        for _ in 0..1000 {
            let deadline = host.cache.next_deadline(host.now);
            if deadline == Nanos::NEVER {
                break;
            }
            host.tick(deadline.since(host.now));
            host.settle();
        }
        let waiting = host.cache.level_view(SSD, host.now).waiting;
        assert_eq!(waiting, 0, "cap {cap}");
    }
}
