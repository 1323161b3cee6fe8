//! What happens exactly so often, and to exactly whom.

use super::host::*;
use crate::{Action, Checked, ClassSpec, CopyVerified, Event, Moment, OnDirty, RemoveError};
use layby_types::*;
use std::vec::Vec;

fn write(host: &mut Host, id: u32, block: u64) {
    let answer = host.run(VolumeId(id), call(Operation::Write, block * 4096, 4096), 7);
    assert_eq!(answer.result, Ok(()));
}

/// Goal: a volume is idle while nothing of it runs, whatever others do. Method: two volumes, one
/// with a read in flight.
#[test]
fn idle_is_a_volume_of_which_nothing_runs() {
    let mut host = Host::new(spec([8, 8, 64]), &[volume(1, 1, 64), volume(2, 1, 64)], 1);
    assert!(host.cache.is_idle(VolumeId(1)) && host.cache.is_idle(VolumeId(9)));
    host.submit(VolumeId(1), call(Operation::Read, 0, 4096), 0);
    assert!(!host.cache.is_idle(VolumeId(1)));
    assert!(host.cache.is_idle(VolumeId(2)));
    host.settle();
    assert!(host.cache.is_idle(VolumeId(1)));
}

/// Goal: a flush syncs what was stored since the last one, and nothing else. Method: a flush of a
/// volume without writes, one after a write, one more; syncs are what a flush waits for.
#[test]
fn a_flush_of_nothing_new_ends_at_once() {
    let mut host = Host::new(spec([8, 8, 64]), &[volume(1, 1, 64), volume(2, 1, 64)], 1);
    let flush = call(Operation::Flush, 0, 0);
    let ends_at_once = |host: &mut Host| {
        let request = host.submit(VolumeId(1), flush, 0);
        let is_done = host.completed.iter().any(|answer| answer.request == request);
        host.settle();
        is_done
    };
    write(&mut host, 2, 0);
    assert!(ends_at_once(&mut host), "another volume's writes are not its own");
    write(&mut host, 1, 0);
    assert!(!ends_at_once(&mut host));
    assert!(ends_at_once(&mut host), "all of it is durable already");
}

/// Goal: as many destages run at once as may. Method: dirty blocks that cannot merge, calm.
#[test]
fn destages_run_side_by_side() {
    let mut spec = spec([8, 8, 64]);
    spec.writeback.inflight_max = 3;
    spec.writeback.idle_timeout = Nanos::from_millis(1);
    let mut host = Host::new(spec, &[volume(1, 1, 64)], 1);
    (0..8).for_each(|block| write(&mut host, 1, block * 4));
    host.settle();
    host.tick(Nanos::from_millis(2));
    assert_eq!(host.cache.ops.iter().count(), 3);
}

/// Goal: a backing store that is silent keeps the places of its own device only: writes of a volume
/// on another one, within its guarantee, go on. Method: a level full of both volumes' dirty blocks,
/// one backing store of which no write ends, writes to the other volume; seeds.
#[test]
fn a_silent_device_keeps_its_own_places() {
    for seed in 0..40 {
        let mut guaranteed = volume(2, 1, 200);
        guaranteed.shares[2].guaranteed = 24;
        let mut host = Host::new(spec([8, 8, 64]), &[volume(1, 1, 200), guaranteed], seed);
        host.cache.set_device(VolumeId(2), Some(7));
        let mut rng = Rng::new(seed);
        (0..24).for_each(|block| write(&mut host, 2, block));
        host.silent.insert(VolumeId(1));
        for _ in 0..300 {
            host.submit(VolumeId(1), call(Operation::Write, rng.below(200) * 4096, 4096), 1);
            host.step();
            host.tick(Nanos::from_millis(1));
        }
        (0..400).for_each(|_| write(&mut host, 2, rng.below(200)));
    }
}

/// Goal: after a write past the levels that no flush has covered, reads keep no copy of what lies
/// near it, keep all others, and all again once a flush has ended. Method: a write in a class
/// without a persistent level; another class, and reads near and far.
#[test]
fn a_volatile_write_keeps_copies_of_its_part_alone_out() {
    let mut spec = spec([8, 8, 64]);
    spec.classes.push(ClassSpec { levels: 0b001, ..spec.classes[1].clone() });
    let mut host = Host::new(spec, &[volume(1, 2, 256)], 1);
    write(&mut host, 1, 200);
    host.cache.set_volume(&volume(1, 1, 256)).expect("there is the class");
    let kept = |host: &mut Host, block: u64| {
        let held = |host: &Host| host.cache.held_by(VolumeId(1), LevelIndex(2)).0;
        let before = held(host);
        host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
        host.settle();
        held(host) - before
    };
    assert_eq!([0, 200, 199].map(|block| kept(&mut host, block)), [1, 0, 0]);
    assert_eq!(host.run(VolumeId(1), call(Operation::Flush, 0, 0), 0).result, Ok(()));
    assert_eq!([200, 199].map(|block| kept(&mut host, block)), [1, 1]);
}

/// Goal: a write longer than one store waits for room in its level like any other, also where its
/// own next block is evicted to make some. Method: levels that are full of dirty blocks, writes of
/// single blocks and of several stores by turns; reads at the end; seeds.
#[test]
fn a_long_write_evicts_its_own_next_block() {
    const BLOCKS: u64 = 1024;
    for seed in 0..20 {
        let mut host = Host::new(spec([8, 512, 4096]), &[volume(1, 0, BLOCKS)], seed);
        let (mut rng, mut held) = (Rng::new(seed), std::vec![0; BLOCKS as usize]);
        for value in 1..400 {
            let count = if value % 40 == 0 { 500 + rng.below(268) } else { 1 };
            let first = rng.below(BLOCKS + 1 - count);
            let write = call(Operation::Write, first * 4096, count * 4096);
            assert_eq!(host.run(VolumeId(1), write, value).result, Ok(()), "SEED={seed}");
            held[first as usize..(first + count) as usize].fill(value);
        }
        for (block, value) in held.into_iter().enumerate() {
            let read = call(Operation::Read, block as u64 * 4096, 4096);
            let cells = host.run(VolumeId(1), read, 0).cells;
            assert_eq!(cells, [value; CELLS], "SEED={seed}, block {block}");
        }
    }
}

/// Goal: a block whose home failed once is dirty, not sick: it goes home later. Method: one dirty
/// block, a home that fails a write, a pause.
#[test]
fn a_failed_write_below_is_tried_again() {
    let mut host = Host::new(spec([8, 8, 64]), &[volume(1, 1, 64)], 1);
    write(&mut host, 1, 3);
    host.backing_fault = Some(ErrorKind::Retry);
    host.drain(1, None);
    host.settle();
    assert_eq!(host.drained.pop(), Some((1, Err(ErrorKind::Retry))));
    host.backing_fault = None;
    host.tick(Nanos::from_secs(2));
    host.drain(2, None);
    host.settle();
    assert_eq!(host.drained.pop(), Some((2, Ok(()))));
    assert_eq!(host.cache.held_by(VolumeId(1), LevelIndex(2)).2, 0, "nothing is dirty");
}

/// Goal: a write that has failed in part asks for nothing more: each part may wait for long, and
/// the answer is known. Method: a write of 64 blocks into a level of 16 slots that takes nothing.
#[test]
fn a_failed_write_asks_for_nothing_more() {
    let mut host = Host::new(spec([8, 8, 16]), &[volume(1, 1, 64)], 1);
    host.level_fault = Some(ErrorKind::Retry);
    let answer = host.run(VolumeId(1), call(Operation::Write, 0, 64 * 4096), 7);
    assert_eq!(answer.result, Err(ErrorKind::Retry));
    assert_eq!(host.level_writes[2], 1);
    host.level_fault = None;
    assert_eq!(host.run(VolumeId(1), call(Operation::Read, 0, 4096), 0).cells, [0; CELLS]);
    write(&mut host, 1, 63);
}

/// Goal: a level that cannot make its records durable has no corrupt blocks: the destage fails, is
/// told once and tried again, and all goes home once the level works; also where a block cannot be
/// read either. Method: syncs that fail under a drain, seeds of ends in all orders.
#[test]
fn a_level_that_cannot_sync_has_no_corrupt_block() {
    for seed in 0..16 {
        let mut host = Host::new(spec([8, 8, 64]), &[volume(1, 1, 64)], seed);
        (0..8).for_each(|block| write(&mut host, 1, block));
        let first = BlockKey::new(VolumeId(1), BlockIndex(0));
        (host.sync_fault, host.unreadable) = (Some(ErrorKind::Closed), [first].into());
        for ticket in 0..3 {
            host.drain(ticket, None);
            host.settle();
            assert_eq!(host.drained.pop(), Some((ticket, Err(ErrorKind::Closed))), "SEED={seed}");
            host.tick(Nanos::from_secs(2));
        }
        let is_corrupt = |event: &Event| matches!(event, Event::CorruptDirtyKept { .. });
        assert!(!host.events.iter().any(is_corrupt), "SEED={seed}: {:?}", host.events);
        assert_eq!(host.events.len(), 1, "SEED={seed}: {:?}", host.events);
        (host.sync_fault, host.unreadable) = (None, [].into());
        host.tick(Nanos::from_secs(2));
        host.drain(9, None);
        host.settle();
        assert_eq!(host.drained.pop(), Some((9, Ok(()))), "SEED={seed}");
        assert_eq!(host.cache.held_by(VolumeId(1), LevelIndex(2)).2, 0, "nothing is dirty");
    }
}

/// Goal: a destage that could not read a block says nothing of a version that was written while it
/// was reading: that one is destaged, and no drain fails for it. Method: a drain and a write of its
/// one block, which end in any order; where the write ends first, the read fails after it; seeds.
#[test]
fn a_failed_read_says_nothing_of_a_newer_version() {
    let mut first = 0;
    for seed in 0..32 {
        let mut host = Host::new(spec([8, 8, 64]), &[volume(1, 1, 64)], seed);
        let (id, key) = (VolumeId(1), BlockKey::new(VolumeId(1), BlockIndex(5)));
        write(&mut host, 1, 5);
        host.run(id, call(Operation::Flush, 0, 0), 0);
        host.unreadable.insert(key);
        host.drain(1, Some(id));
        let newer = host.submit(id, call(Operation::Write, 5 * 4096, 4096), 8);
        assert_eq!(host.under_way(), 2, "SEED={seed}: the destage reads, the write is stored");
        host.step();
        if !host.completed.iter().any(|answer| answer.request == newer) {
            continue;
        }
        first += 1;
        host.step();
        host.unreadable.clear();
        host.settle();
        host.wait(2);
        assert!(host.events.is_empty(), "SEED={seed}: {:?}", host.events);
        host.drain(2, Some(id));
        host.wait(2);
        assert_eq!(host.drained, [(1, Ok(())), (2, Ok(()))], "SEED={seed}");
        assert_eq!(host.at_home(key), 8, "SEED={seed}");
    }
    assert!(first > 4, "{first} writes ended first");
}

/// A host with clean blocks in NVM that are in no level above.
fn clean_in_nvm() -> Host {
    let mut host = Host::new(spec([2, 8, 64]), &[volume(1, 0, 64)], 1);
    (0..4).for_each(|block| write(&mut host, 1, block));
    host.drain(1, None);
    host.settle();
    host
}

/// Goal: a reader of a clean block that has just rotted in NVM is answered by the backing store,
/// not by memory into which an earlier reader's copy has not come yet. Method: two checked copies
/// of one block in one queue, of which the second one fails.
#[test]
fn a_rotten_block_is_not_read_where_its_copy_was_to_go() {
    let mut host = clean_in_nvm();
    let mut rng = Rng::new(1);
    let mut moment = Moment { now: host.now, rng: &mut rng };
    let read = call(Operation::Read, 0, 4096);
    let mut actions = Vec::new();
    for request in [1000, 1001] {
        host.cache.on_request(&mut moment, RequestId(request), VolumeId(1), &read, &mut actions);
    }
    let copies: Vec<CopyVerified> = actions
        .drain(..)
        .filter_map(
            |action| if let Action::CopyVerified(copy) = action { Some(copy) } else { None },
        )
        .collect();
    let [first, second] = &copies[..] else { panic!("two readers of NVM: {copies:?}") };
    host.cache.on_copied(&mut moment, first, Checked::Sound, &mut actions);
    assert!(actions.iter().any(|action| matches!(action, Action::CopyLevel { .. })), "it rises");
    actions.clear();
    host.cache.on_copied(&mut moment, second, Checked::Rotten, &mut actions);
    assert!(!actions.iter().any(|action| matches!(action, Action::Copy { .. })), "{actions:?}");
    let asks = |action: &Action| matches!(action, Action::ReadBacking { .. });
    assert!(actions.iter().any(asks), "{actions:?}");
}

/// Goal: a block that its level lent room to and has nothing of is no damaged one, and its read is
/// counted once. Method: a read that finds nothing in NVM.
#[test]
fn what_was_never_stored_is_not_corrupt() {
    let mut host = clean_in_nvm();
    let counted = |host: &Host| {
        let counters = host.cache.volume_counters(VolumeId(1)).expect("it is there");
        counters.hits.iter().sum::<u64>() + counters.misses
    };
    let before = counted(&host);
    let mut rng = Rng::new(1);
    let mut moment = Moment { now: host.now, rng: &mut rng };
    let (request, read) = (RequestId(1000), call(Operation::Read, 0, 4096));
    let mut actions = Vec::new();
    host.cache.on_request(&mut moment, request, VolumeId(1), &read, &mut actions);
    let [Action::CopyVerified(copy)] = actions[..] else { panic!("it is in NVM: {actions:?}") };
    actions.clear();
    host.cache.on_copied(&mut moment, &copy, Checked::Absent, &mut actions);
    assert!(!actions.iter().any(|action| matches!(action, Action::Report(_))), "{actions:?}");
    let asks = |action: &Action| matches!(action, Action::ReadBacking { .. });
    assert!(actions.iter().any(asks), "{actions:?}");
    assert_eq!(counted(&host), before + 1);
}

/// Goal: a volume with dirty blocks is not removed unless its data is to go, however recently it
/// was drained; one of which something runs never is. Method: removals during a write, after it,
/// behind a drain that ended before another write, and after a drain.
#[test]
fn dirty_blocks_are_removed_only_where_they_are_to_go() {
    for on_dirty in [OnDirty::Refuse, OnDirty::Discard] {
        let mut host = Host::new(spec([8, 8, 64]), &[volume(1, 1, 64)], 1);
        let remove = |host: &mut Host, on_dirty| {
            host.cache.remove_volume(VolumeId(1), on_dirty, &mut Vec::new())
        };
        host.submit(VolumeId(1), call(Operation::Write, 0, 4096), 7);
        assert_eq!(remove(&mut host, on_dirty), Err(RemoveError::Busy));
        host.settle();
        host.drain(1, Some(VolumeId(1)));
        host.settle();
        assert_eq!(host.drained.pop(), Some((1, Ok(()))));
        write(&mut host, 1, 1);
        assert_eq!(remove(&mut host, OnDirty::Refuse), Err(RemoveError::Dirty));
        if on_dirty == OnDirty::Refuse {
            host.drain(2, Some(VolumeId(1)));
            host.settle();
        }
        assert_eq!(remove(&mut host, on_dirty), Ok(()));
        assert_eq!(remove(&mut host, on_dirty), Err(RemoveError::Unknown));
    }
}

/// Goal: a removal that keeps the data leaves no older version in the log to come back, should a
/// power cut break it off and the volume be served again: the NVM records go as with an eviction.
/// Method: blocks of NVM that went home; the volume's removal with its data and without.
#[test]
fn a_removal_that_keeps_the_data_forgets_older_versions() {
    for on_dirty in [OnDirty::Refuse, OnDirty::Discard] {
        let mut host = Host::new(spec([8, 8, 64]), &[volume(1, 0, 64)], 1);
        (0..3).for_each(|block| write(&mut host, 1, block));
        host.drain(1, Some(VolumeId(1)));
        host.settle();
        let mut actions = Vec::new();
        assert_eq!(host.cache.remove_volume(VolumeId(1), on_dirty, &mut actions), Ok(()));
        let is_kept = on_dirty == OnDirty::Refuse;
        let of_nvm = |action: &&Action| matches!(action, Action::Free { level: LevelIndex(1), .. });
        let freed: Vec<_> = actions.iter().filter(of_nvm).collect();
        let goes_at_once =
            |action: &&Action| matches!(action, Action::Free { superseded: true, .. });
        assert_eq!(freed.len(), 3, "{actions:?}");
        assert_eq!(freed.iter().any(goes_at_once), !is_kept, "{actions:?}");
        let forgets = actions.iter().filter(|it| matches!(it, Action::Forget { .. })).count();
        assert_eq!(forgets, if is_kept { 3 } else { 0 }, "{actions:?}");
    }
}

/// Goal: a level is not swept again at every event for blocks that wait for a full device, while
/// another device has places left; a destage that ends has it swept at once. Method: one volume
/// that fills the places of its device and one with a single block on its way, for good; ticks at
/// one moment and later, and a count of sweeps.
#[test]
fn blocks_of_a_full_device_are_not_swept_in_vain() {
    let mut spec = spec([8, 8, 256]);
    spec.writeback.idle_timeout = Nanos::from_millis(1);
    let mut host = Host::new(spec, &[volume(1, 1, 999), volume(2, 1, 999)], 0);
    host.cache.set_device(VolumeId(2), Some(7));
    (0..100).for_each(|block| write(&mut host, 1, block * 3));
    write(&mut host, 2, 0);
    host.tick(Nanos::from_millis(5));
    assert_eq!(host.cache.ops.iter().count(), 5);
    let swept = host.cache.effort.sweeps;
    (0..100).for_each(|_| host.tick(Nanos::ZERO));
    assert_eq!(host.cache.effort.sweeps, swept, "nothing has changed");
    host.tick(Nanos::from_millis(1));
    assert_eq!(host.cache.effort.sweeps, swept + 1, "something may have");
    while host.cache.effort.sweeps == swept + 1 {
        assert!(host.step(), "an end has the level swept");
    }
}
