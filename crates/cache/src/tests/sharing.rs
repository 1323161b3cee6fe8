//! Shares, caps, guarantees and borrowing.

use super::host::*;
use crate::*;
use layby_types::*;

/// Zipf-like critical load and a normal stream, the same for every call with the same seed.
fn mixed_load(host: &mut Host, seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..3000 {
        let (id, blocks) = if rng.chance(1, 2) { (1, 24) } else { (2, 200) };
        let block = (rng.unit() * rng.unit() * f64::from(blocks)) as u64;
        let operation = if rng.chance(7, 10) { Operation::Read } else { Operation::Write };
        host.run(VolumeId(id), call(operation, block * 4096, 4096), 1);
        host.settle();
    }
}

/// Goal: with borrowing on, critical hits equal those with it off, level by level, and the borrower
/// gains. Method: the same seeded load twice.
#[test]
fn borrowing_costs_the_critical_class_nothing() {
    for seed in 0..20 {
        let hits = |borrow| {
            let mut spec = spec([8, 12, 40]);
            spec.classes[1].borrow = borrow;
            // The sweep for dirty blocks goes by slot number, which borrowing does change.
            spec.levels.iter_mut().for_each(|level| level.watermarks.dirty_red = 100);
            let volumes = [volume(1, 0, 24), volume(2, 1, 200)];
            let mut host = Host::new(spec, &volumes, 1);
            host.in_order = true;
            mixed_load(&mut host, seed);
            let of = |id| host.cache.volume_counters(VolumeId(id)).map(|c| c.hits);
            (of(1), of(2), host.cache.volume_counters(VolumeId(2)).map(|c| c.misses))
        };
        let (off, on) = (hits(false), hits(true));
        assert_eq!(off.0, on.0, "critical hits changed; SEED={seed}");
        assert_eq!(off.2, on.2, "normal misses changed; SEED={seed}");
        assert!(on.1.is_some_and(|h| h[0] + h[1] > 0), "nothing was lent; SEED={seed}");
        assert_eq!(off.1.map(|h| h[0] + h[1]), Some(0), "a normal service may not use D or N");
    }
}

/// Goal: idle room is lent and taken back at once. Method: a normal volume fills an idle D; then a
/// critical one needs all of it.
#[test]
fn lent_room_is_taken_back_at_once() {
    let mut spec = spec([8, 8, 64]);
    spec.classes[1].borrow = true;
    let mut host = Host::new(spec, &[volume(1, 0, 64), volume(2, 1, 64)], 1);
    for block in (0..16u64).chain(0..16) {
        host.run(VolumeId(2), call(Operation::Read, block * 4096, 4096), 0);
        host.settle();
    }
    assert_eq!(host.cache.held_by(VolumeId(2), LevelIndex(0)), (0, 8, 0));
    assert_eq!(host.cache.held_by(VolumeId(2), LevelIndex(1)), (0, 8, 0));
    for block in 0..8u64 {
        host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
    }
    assert_eq!(host.cache.held_by(VolumeId(1), LevelIndex(0)), (8, 0, 0));
    assert_eq!(host.cache.held_by(VolumeId(2), LevelIndex(0)), (0, 0, 0));
}

/// Goal: no normal request changes D or N with borrowing off. Method: a normal load, levels empty.
#[test]
fn normal_requests_leave_upper_levels_alone() {
    let mut host = Host::new(spec([8, 8, 16]), &[volume(2, 1, 200)], 1);
    mixed_load_normal(&mut host);
    assert_eq!(host.level_writes[..2], [0, 0]);
}

fn mixed_load_normal(host: &mut Host) {
    let mut rng = Rng::new(3);
    for _ in 0..500 {
        let operation = if rng.chance(1, 2) { Operation::Read } else { Operation::Write };
        host.run(VolumeId(2), call(operation, rng.below(200) * 4096, 4096), 1);
    }
    host.settle();
}

/// Goal: a guarantee protects a volume from a flood, a cap bounds one. Method: a guaranteed volume
/// warms eight blocks, a capped one floods the level, the first must still hit.
#[test]
fn guarantees_and_caps_hold_under_a_flood() {
    let mut spec = spec([1, 1, 32]);
    spec.classes[1].shares[2].guaranteed = 8;
    spec.classes[0].levels = 0b100;
    let mut kept = volume(1, 1, 64);
    kept.shares[2].guaranteed = 8;
    let mut flood = volume(2, 0, 4096);
    flood.shares[2].cap = 20;
    let mut host = Host::new(spec, &[kept, flood], 1);
    for block in 0..8u64 {
        host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
    }
    for block in 0..500u64 {
        let operation = if block % 2 == 0 { Operation::Write } else { Operation::Read };
        host.run(VolumeId(2), call(operation, block * 4096, 4096), 1);
    }
    host.settle();
    assert_eq!(host.cache.held_by(VolumeId(1), LevelIndex(2)).0, 8);
    assert!(host.cache.held_by(VolumeId(2), LevelIndex(2)).0 <= 20);
    for block in 0..8u64 {
        host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
    }
    let counters = host.cache.volume_counters(VolumeId(1)).expect("the volume exists");
    assert_eq!((counters.hits[2], counters.misses), (8, 8));
}

/// Goal: a lowered cap and a class moved off a level take effect without a restart. Method: fill,
/// change, let background work run; nothing is lost.
#[test]
fn lowered_caps_are_enforced_live() {
    let mut host = Host::new(spec([16, 16, 64]), &[volume(1, 0, 64)], 1);
    for block in 0..16u64 {
        host.run(VolumeId(1), call(Operation::Write, block * 4096, 4096), 5);
        host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 5);
    }
    let mut lowered = volume(1, 0, 64);
    lowered.shares[1].cap = 4;
    host.specs.clear();
    host.cache.set_volume(&lowered).expect("the volume exists");
    for _ in 0..50 {
        host.tick(Nanos::from_millis(2));
        host.settle();
    }
    assert_eq!(host.cache.held_by(VolumeId(1), LevelIndex(1)).0, 4, "no more goes than must");
    host.cache.set_volume(&volume(1, 1, 64)).expect("the volume exists");
    for _ in 0..50 {
        host.tick(Nanos::from_millis(2));
        host.settle();
    }
    assert_eq!(host.cache.held_by(VolumeId(1), LevelIndex(0)).0, 0);
    assert_eq!(host.cache.held_by(VolumeId(1), LevelIndex(1)).0, 0);
    for block in 0..16u64 {
        let answer = host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
        assert!(answer.cells.iter().all(|cell| *cell == 5), "block {block} is lost");
    }
}

/// Goal: a write for which nobody may ever make room goes a level down, and home at the end; it
/// never waits for what cannot come. Method: a cap of nothing, guarantees that fill a level, a cap
/// of nothing that comes while a write waits; then what was written is read.
#[test]
fn a_write_without_any_room_goes_down() {
    let nowhere = |levels: &[usize]| {
        let mut capped = volume(2, 0, 64);
        levels.iter().for_each(|level| capped.shares[*level].cap = 0);
        capped
    };
    let mut full = spec([8, 8, 16]);
    full.classes[0].shares[1].guaranteed = 8;
    full.classes[1].levels = 0b110;
    let mut owner = volume(1, 0, 64);
    owner.shares[1].guaranteed = 8;
    for (spec, first, second, lands) in [
        (spec([8, 8, 16]), volume(1, 0, 64), nowhere(&[1]), 2),
        (spec([8, 8, 16]), volume(1, 0, 64), nowhere(&[1, 2]), 3),
        (full, owner, volume(2, 1, 64), 2),
    ] {
        let mut host = Host::new(spec, &[first, second], 1);
        for block in 0..8u64 {
            host.run(VolumeId(1), call(Operation::Write, block * 4096, 4096), 3);
        }
        host.run(VolumeId(2), call(Operation::Write, 0, 4 * 4096), 7);
        host.settle();
        let held = |level| host.cache.held_by(VolumeId(2), LevelIndex(level)).2;
        assert_eq!(held(1), 0);
        assert_eq!(held(2), if lands == 2 { 4 } else { 0 });
        let answer = host.run(VolumeId(2), call(Operation::Read, 0, 4 * 4096), 0);
        assert!(answer.cells.iter().all(|cell| *cell == 7), "lost where it went to {lands}");
    }
}

/// Goal: what a class keeps outlives its memory level; what it does not keep is read from home
/// again. Method: more blocks than memory holds are read twice, with and without.
#[test]
fn kept_reads_outlive_memory() {
    for keep in [false, true] {
        let mut spec = spec([4, 8, 64]);
        spec.classes[0].keep_reads = keep;
        spec.read_ahead.window_bytes_max = 0;
        let mut host = Host::new(spec, &[volume(1, 0, 64)], 1);
        for block in (0..16u64).chain(0..16) {
            host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
            host.settle();
        }
        let counters = host.cache.volume_counters(VolumeId(1)).expect("the volume exists");
        let expected = if keep { (16, 16) } else { (0, 32) };
        assert_eq!((counters.hits[2], counters.misses), expected, "keep: {keep}");
        assert_eq!(host.cache.held_by(VolumeId(1), LevelIndex(2)).2, 0, "copies are clean");
    }
}

/// Goal: under second-miss a scan is stored nowhere, and what is missed twice is where it would
/// have gone; writes and hints are stored at once; the filter takes 4 bytes per slot. Method: a
/// class that keeps reads below memory, by blocks and by runs, with read-ahead on.
#[test]
fn what_is_read_once_stays_out() {
    for run in [1, 8] {
        let mut spec = spec([16, 16, 64]);
        spec.read_ahead = ReadAheadLimits::DEFAULT;
        spec.classes[0].keep_reads = true;
        let bytes = |spec: &CacheSpec| {
            let cache = Cache::new(spec.clone()).expect("it is sound");
            cache.level_view(LevelIndex(2), Nanos::ZERO).memory_bytes
        };
        let open = bytes(&spec);
        spec.classes[0].admission = AdmissionKind::SecondMiss;
        assert_eq!(bytes(&spec) - open, 64 * 4);
        let (mut host, one) = (Host::new(spec, &[volume(1, 0, 256)], 1), VolumeId(1));
        let used = |host: &Host| [0, 1, 2].map(|at| host.cache.held_by(one, LevelIndex(at)).0);
        let scan = |host: &mut Host, blocks: core::ops::Range<u64>| {
            for first in blocks.step_by(run) {
                host.run(one, call(Operation::Read, first * 4096, run as u64 * 4096), 0);
                host.settle();
            }
        };
        scan(&mut host, 0..48);
        assert_eq!(used(&host), [0, 0, 0], "in runs of {run}");
        scan(&mut host, 0..8);
        assert_eq!(used(&host), [8, 0, 8], "in runs of {run}");
        host.run(one, call(Operation::Cache, 100 * 4096, 4 * 4096), 0);
        host.settle();
        host.run(one, call(Operation::Write, 200 * 4096, 2 * 4096), 7);
        host.settle();
        assert_eq!(used(&host), [12, 2, 12], "in runs of {run}");
    }
}

/// Goal: of a fetch only what may be kept is, with its own bytes; the filter is there as soon as
/// the class wants it. Method: blocks at home, of which a run's middle was missed before; then a
/// hit.
#[test]
fn a_part_of_a_fetch_is_kept() {
    for levels in [0b111, 0b100] {
        let mut spec = spec([16, 16, 64]);
        spec.classes[0].levels = 0;
        let (mut host, one) = (Host::new(spec.clone(), &[volume(1, 0, 64)], 1), VolumeId(1));
        for block in 0..8 {
            host.run(one, call(Operation::Write, block * 4096, 4096), block as u32 + 1);
        }
        host.settle();
        spec.classes[0].levels = levels;
        spec.classes[0].admission = AdmissionKind::SecondMiss;
        host.cache.reconfigure(spec).expect("it is sound");
        let read = |host: &mut Host, first: u64, count: u64| {
            let answer = host.run(one, call(Operation::Read, first * 4096, count * 4096), 0);
            host.settle();
            answer.cells
        };
        read(&mut host, 3, 2);
        read(&mut host, 0, 8);
        let top = levels.trailing_zeros() as u8;
        let held = [0, 1, 2].map(|level| host.cache.held_by(one, LevelIndex(level)).0);
        assert_eq!((held[usize::from(top)], held.iter().sum::<u32>()), (2, 2));
        let cells = read(&mut host, 3, 2);
        let hits = host.cache.volume_counters(one).expect("it exists").hits;
        assert_eq!(hits[usize::from(top)], 2);
        assert!(
            cells.chunks(CELLS).zip([4, 5]).all(|(block, value)| block.iter().all(|c| *c == value))
        );
    }
}

/// Writes a block that can never be read again, and has the cache notice.
pub(super) fn make_sick(host: &mut Host, volume: u32, block: u64) {
    host.run(VolumeId(volume), call(Operation::Write, block * 4096, 4096), 1);
    host.unreadable.insert(BlockKey::new(VolumeId(volume), BlockIndex(block)));
    let read = host.run(VolumeId(volume), call(Operation::Read, block * 4096, 4096), 0);
    assert_eq!(read.result, Err(ErrorKind::Corrupt));
    host.settle();
}

/// Goal: a store does not wait for ever for a volume that has only sick blocks while another has
/// clean ones behind sick ones. Method: both volumes' coldest blocks are sick.
#[test]
fn clean_blocks_behind_sick_ones_yield() {
    let mut host = Host::new(spec([2, 2, 8]), &[volume(1, 1, 64), volume(2, 1, 64)], 1);
    make_sick(&mut host, 2, 0);
    make_sick(&mut host, 1, 0);
    for block in 1..7u64 {
        host.run(VolumeId(1), call(Operation::Write, block * 4096, 4096), 1);
        host.settle();
    }
    host.drain(1, None);
    host.settle();
    assert_eq!(host.cache.held_by(VolumeId(1), LevelIndex(2)), (7, 0, 1));
    let written = host.run(VolumeId(2), call(Operation::Write, 5 * 4096, 4096), 2);
    assert_eq!(written.result, Ok(()));
}

/// Goal: a store ends with `Full` where only sick blocks would have to yield, whatever others hold
/// by their guarantees. Method: one volume's guarantee is the level without two slots.
#[test]
fn stores_are_refused_where_only_sick_blocks_would_yield() {
    let mut guaranteed = volume(1, 1, 64);
    guaranteed.shares[2].guaranteed = 6;
    let mut host = Host::new(spec([2, 2, 8]), &[guaranteed, volume(2, 1, 64)], 1);
    make_sick(&mut host, 2, 0);
    make_sick(&mut host, 2, 1);
    for block in 0..6u64 {
        host.run(VolumeId(1), call(Operation::Write, block * 4096, 4096), 1);
        host.settle();
    }
    host.submit(VolumeId(2), call(Operation::Write, 5 * 4096, 4096), 2);
    host.tick(Nanos::from_millis(1));
    assert_eq!(host.completed.pop().map(|answer| answer.result), Some(Err(ErrorKind::Full)));
}

/// Goal: a store that waits since its volume may make no more blocks dirty ends without a timer,
/// however many clean blocks are colder than the dirty ones. Method: two volumes make as much of a
/// level dirty as they may, one of them above clean blocks; then it writes on.
#[test]
fn a_store_at_the_bound_of_dirty_blocks_waits_for_no_timer() {
    for seed in 0..4 {
        let mut spec = spec([4, 4, 4096]);
        spec.levels[2].watermarks.dirty_red = 100;
        let mut host = Host::new(spec, &[volume(1, 1, 8192), volume(2, 1, 8192)], seed);
        let write = |host: &mut Host, id, blocks: core::ops::Range<u64>| {
            for block in blocks.step_by(16) {
                host.submit(VolumeId(id), write_of(block, 16), 7);
                host.settle();
            }
        };
        write(&mut host, 1, 0..240);
        host.drain(1, None);
        host.settle();
        write(&mut host, 1, 1024..1024 + 1920);
        write(&mut host, 2, 0..1920);
        assert!(host.completed.drain(..).all(|answer| answer.result == Ok(())), "SEED={seed}");
        write(&mut host, 1, 4096..4096 + 160);
        assert_eq!(host.completed.len(), 10, "SEED={seed}");
    }
}

/// Goal: a volume whose home is full fails alone: others of any class write on, one block or many
/// at once, new blocks and clean ones. Method: it writes more than the level has, one by one and
/// together, before its home fails and after it; then others write twice what the level has.
#[test]
fn a_full_home_leaves_the_others_room() {
    for seed in 0..60 {
        let volumes = [volume(1, 1, 512), volume(2, 1, 512), volume(3, 0, 512)];
        let mut host = Host::new(spec([4, 4, 128]), &volumes, seed);
        for block in 0..64u64 {
            host.run(VolumeId(2), call(Operation::Write, block * 4096, 4096), 1);
        }
        (host.faulty, host.backing_fault) = (Some(VolumeId(1)), Some(ErrorKind::Full));
        let count = if host.rng.chance(1, 2) { 1 } else { 8 };
        for block in (0..256u64).step_by(count) {
            host.submit(VolumeId(1), write_of(block, count), 9);
            if host.rng.chance(1, 2) {
                host.settle();
            }
        }
        host.wait(8);
        let failed = host.completed.drain(..).filter(|answer| answer.result.is_err()).count();
        assert!(failed > 256 / count / 4, "SEED={seed}: {failed} writes do not fit");
        for round in 0..4u32 {
            for block in (0..64u64).step_by(count) {
                host.submit(VolumeId(2), write_of(block, count), 10 + round);
                host.submit(VolumeId(3), write_of(block, count), 20 + round);
            }
            host.wait(8);
        }
        let answers: std::vec::Vec<_> =
            host.completed.drain(..).map(|answer| answer.result).collect();
        assert_eq!(answers, std::vec![Ok(()); 4 * 2 * 64 / count], "SEED={seed}");
        for (id, value) in [(2, 13), (3, 23)] {
            let read = host.run(VolumeId(id), call(Operation::Read, 0, 64 * 4096), 0);
            assert!(read.cells.iter().all(|cell| *cell == value), "SEED={seed}");
        }
        host.backing_fault = None;
        host.wait(8);
        let written = host.run(VolumeId(1), call(Operation::Write, 0, 4096), 1);
        assert_eq!(written.result, Ok(()), "SEED={seed}");
    }
}

/// Goal: a volume whose home is full may fill all persistent levels of its class, not the first one
/// alone. Method: it writes, one by one and together, more than the levels have; what was
/// acknowledged is read, and reaches the home once that is well.
#[test]
fn a_full_home_leaves_the_levels_below() {
    const SLOTS: [u32; 3] = [4, 16, 128];
    for seed in 0..60 {
        let mut host = Host::new(spec(SLOTS), &[volume(1, 0, 512)], seed);
        host.backing_fault = Some(ErrorKind::Full);
        let count = if host.rng.chance(1, 2) { 1 } else { 8 };
        let mut written = 0;
        for block in (0..256u64).step_by(count) {
            host.submit(VolumeId(1), write_of(block, count), 9);
            host.wait(1);
            let answers = host.completed.drain(..);
            written += answers.filter(|answer| answer.result.is_ok()).count() * count;
        }
        let room = (SLOTS[1] + SLOTS[2]) as usize;
        assert!(written >= room - 2 * count, "SEED={seed}: {written} blocks of {room}");
        let held = |level| host.cache.held_by(VolumeId(1), LevelIndex(level)).2 as usize;
        assert!(held(1) + held(2) >= written, "SEED={seed}");
        let read = host.run(VolumeId(1), call(Operation::Read, 0, 128 * 4096), 0);
        assert!(read.cells.iter().all(|cell| *cell == 9), "SEED={seed}");
        host.backing_fault = None;
        host.wait(8);
        let written = host.run(VolumeId(1), write_of(256, 8), 9);
        assert_eq!(written.result, Ok(()), "SEED={seed}");
    }
}

/// Goal: writes into NVM go on while there is room in the SSD level, though the backing store does
/// not answer and has been given more of the coldest blocks than a policy offers. Method: half of
/// the NVM level is being written back; writes follow as long as the SSD level has room; all end
/// without the node's time-out, and are read; every eviction policy.
#[test]
fn a_silent_backing_store_leaves_the_ssd_level() {
    for (seed, eviction) in EvictionKind::ALL.into_iter().cycle().take(20).enumerate() {
        let mut spec = spec([4, 512, 1024]);
        spec.writeback.merge_bytes = 64 * 4096;
        spec.levels.iter_mut().for_each(|level| level.eviction = eviction);
        let mut host = Host::new(spec, &[volume(1, 0, 4096)], seed as u64);
        host.silent.insert(VolumeId(1));
        for block in 0..1024 {
            let written = host.run(VolumeId(1), call(Operation::Write, block * 4096, 4096), 9);
            assert_eq!(written.result, Ok(()), "{eviction:?}; SEED={seed}");
        }
        assert!(host.now < Nanos::from_secs(2), "{:?}; {eviction:?}; SEED={seed}", host.now);
        let read = host.run(VolumeId(1), call(Operation::Read, 0, 1024 * 4096), 0);
        assert!(read.cells.iter().all(|cell| *cell == 9), "{eviction:?}; SEED={seed}");
        host.silent.clear();
        host.wait(8);
        assert_eq!(host.at_home(BlockKey::new(VolumeId(1), BlockIndex(1023))), 9, "SEED={seed}");
    }
}

/// Goal: the pause of one volume's search for a block that can move down holds up no other volume.
/// Method: two volumes on a device that does not answer; the first one is at its cap with all its
/// blocks being written back and has a write that waits, the second one writes as long as the SSD
/// level has room; each write ends without a timer's help; every eviction policy.
#[test]
fn a_search_in_vain_holds_up_no_other_volume() {
    for (seed, eviction) in EvictionKind::ALL.into_iter().cycle().take(20).enumerate() {
        let mut spec = spec([4, 512, 1024]);
        spec.writeback.merge_bytes = 64 * 4096;
        spec.levels.iter_mut().for_each(|level| level.eviction = eviction);
        let mut volumes = [volume(1, 0, 4096), volume(2, 0, 4096)];
        (volumes[0].shares[1].cap, volumes[1].shares[1].cap) = (64, 384);
        let mut host = Host::new(spec, &volumes, seed as u64);
        host.silent.extend([VolumeId(1), VolumeId(2)]);
        host.run(VolumeId(1), write_of(0, 64), 9);
        host.wait(8);
        host.submit(VolumeId(1), write_of(64, 1), 9);
        host.settle();
        for block in 0..1024 {
            let written = host.run(VolumeId(2), write_of(block, 1), 9);
            assert_eq!(written.result, Ok(()), "{eviction:?}; SEED={seed}");
        }
        assert!(host.now < Nanos::from_secs(10), "{:?}; {eviction:?}; SEED={seed}", host.now);
        assert!(host.completed.is_empty(), "the first one still waits; SEED={seed}");
        host.silent.clear();
        host.wait(8);
        assert_eq!(host.completed.len(), 1, "SEED={seed}");
        assert_eq!(host.at_home(BlockKey::new(VolumeId(2), BlockIndex(1023))), 9, "SEED={seed}");
    }
}

/// A host whose volumes' backing stores do not answer: each volume is at its cap with all it has
/// being written back, and has a write that waits.
fn with_searches_in_vain(count: u32) -> Host {
    let mut volumes = std::vec::Vec::new();
    for id in 1..=count {
        let mut capped = volume(id, 0, 64);
        capped.shares[1].cap = 1;
        volumes.push(capped);
    }
    let mut host = Host::new(spec([4, 512, 1024]), &volumes, 1);
    for volume in &volumes {
        host.cache.set_device(volume.id, None);
        host.silent.insert(volume.id);
        host.run(volume.id, write_of(0, 1), 9);
    }
    host.wait(8);
    for volume in &volumes {
        host.submit(volume.id, write_of(2, 1), 9);
    }
    host.settle();
    assert!(host.completed.is_empty(), "all wait");
    host
}

/// Goal: searches for a block that can move down, which find none, cost a bounded number of looks
/// per time, however many volumes have one. Method: 40 volumes search in vain; ticks of a
/// millisecond for a second.
#[test]
fn searches_in_vain_cost_few_looks() {
    let mut host = with_searches_in_vain(40);
    let before = host.cache.effort.below_looks;
    for _ in 0..1000 {
        host.tick(Nanos::from_millis(1));
        host.settle();
    }
    let looks = host.cache.effort.below_looks - before;
    assert!((200..=1000).contains(&looks), "{looks} looks in a second");
}

/// Goal: the timers of writes that wait are kept where all that is dirty is of volumes whose
/// backing stores count as stuck. Method: one volume searches in vain, or more than a try comes to,
/// of which the next try follows within a millisecond until all were tried; the next deadline,
/// whenever it is asked for.
#[test]
fn stuck_backing_stores_delay_no_timer_of_what_waits() {
    for (count, soon_min) in [(1, 0), (12, 33)] {
        let mut host = with_searches_in_vain(count);
        (1..=count).for_each(|id| host.set_stuck(VolumeId(id), true));
        assert!(host.completed.is_empty(), "all wait");
        let mut soon = 0;
        for _ in 0..100 {
            let due = host.cache.next_deadline(host.now).since(host.now);
            assert!(due <= Nanos::from_millis(10), "{due:?} with {count} volumes");
            soon += u32::from(due <= Nanos::from_millis(1));
            host.tick(due);
            host.settle();
        }
        assert!(soon >= soon_min, "{soon} with {count} volumes");
        assert!(host.completed.is_empty(), "all wait");
    }
}

/// Goal: reads that promote have no warm dirty blocks moved down beside a backing store that does
/// not answer. Method: the coldest blocks of the NVM level are being written back, and it is full;
/// what is read has no room there; no eviction policy has the SSD level written.
#[test]
fn promotions_move_no_warm_blocks_down() {
    for (seed, eviction) in EvictionKind::ALL.into_iter().cycle().take(20).enumerate() {
        let mut spec = spec([4, 512, 1024]);
        spec.writeback.merge_bytes = 64 * 4096;
        spec.classes[0].levels = 0b110;
        spec.levels.iter_mut().for_each(|level| level.eviction = eviction);
        spec.levels[1].watermarks.used_red = 100;
        let mut host = Host::new(spec, &[volume(1, 0, 4096)], seed as u64);
        host.silent.insert(VolumeId(1));
        for block in 0..512 {
            host.run(VolumeId(1), write_of(block, 1), 9);
        }
        host.settle();
        let before = host.level_writes[2];
        for block in 1000..1100 {
            let read = host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
            assert_eq!(read.result, Ok(()), "{eviction:?}; SEED={seed}");
            host.settle();
        }
        assert_eq!(host.level_writes[2], before, "{eviction:?}; SEED={seed}");
    }
}

/// Goal: blocks that turn out to be unreadable while they are written back keep no other block
/// from being written back. Method: some blocks are on their way to a backing store that does not
/// answer, and are read in vain; another volume has as many blocks written, or fewer.
#[test]
fn unreadable_blocks_being_written_back_count_once() {
    for (sick, written) in [(1, 1), (3, 1), (3, 3), (3, 4)] {
        let mut host = Host::new(spec([4, 8, 256]), &[volume(1, 1, 64), volume(2, 1, 64)], 1);
        host.silent.insert(VolumeId(1));
        host.run(VolumeId(1), write_of(0, sick), 1);
        host.wait(8);
        for block in 0..sick as u64 {
            host.unreadable.insert(BlockKey::new(VolumeId(1), BlockIndex(block)));
            let read = host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
            assert_eq!(read.result, Err(ErrorKind::Corrupt));
        }
        host.run(VolumeId(2), write_of(0, written), 2);
        host.wait(8);
        for block in 0..written as u64 {
            let key = BlockKey::new(VolumeId(2), BlockIndex(block));
            assert_eq!(host.at_home(key), 2, "{written} beside {sick}");
        }
        // They are written again, and the old versions arrive.
        host.unreadable.clear();
        host.run(VolumeId(1), write_of(0, sick), 3);
        host.silent.clear();
        host.wait(16);
        assert_eq!(host.cache.held_by(VolumeId(1), LevelIndex(2)).2, 0, "none is dirty");
        assert_eq!(host.at_home(BlockKey::new(VolumeId(1), BlockIndex(0))), 3);
        assert_eq!(host.cache.next_deadline(host.now), Nanos::NEVER);
    }
}

/// Goal: a store never waits for room below that only clean copies of its own blocks could make:
/// they stay as long as it does. Method: a volume with a small cap writes, and its blocks become
/// clean; then its home is full, and it writes over some of them at once, in all sizes and places.
#[test]
fn a_store_does_not_wait_for_copies_of_its_own_blocks() {
    let mut refused = 0;
    for seed in 0..400 {
        let mut capped = volume(1, 0, 64);
        capped.shares[2].cap = 7;
        let mut host = Host::new(spec([3, 3, 36]), &[capped, volume(2, 1, 64)], seed);
        host.run(VolumeId(2), call(Operation::Read, 0, 29 * 4096), 0);
        for _ in 0..host.rng.below(4) {
            let (first, count) = (host.rng.below(24), 1 + host.rng.below(8));
            host.run(VolumeId(1), write_of(first, count as usize), 5);
        }
        host.wait(8);
        (host.faulty, host.backing_fault) = (Some(VolumeId(1)), Some(ErrorKind::Full));
        for _ in 0..6 {
            let (first, count) = (host.rng.below(24), 1 + host.rng.below(12) as usize);
            let written = host.run(VolumeId(1), write_of(first, count), 9);
            refused += u32::from(written.result.is_err());
        }
    }
    assert!(refused > 400, "{refused} writes were refused");
}

/// Goal: clean blocks behind many dirty ones are found where the dirty ones cannot go home, so that
/// writes above end, and nothing else has to happen for it. Method: another volume has more dirty
/// blocks at its cold end than a policy looks at, and clean ones behind them; all backing stores
/// are full, a burst of writes comes, and then nothing.
#[test]
fn clean_blocks_behind_dirty_ones_make_room() {
    for eviction in EvictionKind::ALL {
        let mut spec = spec([4, 8, 256]);
        spec.levels.iter_mut().for_each(|level| level.eviction = eviction);
        let mut host = Host::new(spec, &[volume(1, 0, 512), volume(2, 1, 512)], 3);
        host.backing_fault = Some(ErrorKind::Full);
        for block in 0..128u64 {
            host.run(VolumeId(2), call(Operation::Write, block * 4096, 4096), 1);
        }
        for block in 256..512u64 {
            host.run(VolumeId(2), call(Operation::Read, block * 4096, 4096), 0);
        }
        host.completed.clear();
        for block in 0..40 {
            host.submit(VolumeId(1), write_of(block, 1), 9);
        }
        host.wait(60);
        let answers: std::vec::Vec<_> =
            host.completed.drain(..).map(|answer| answer.result).collect();
        assert_eq!(answers, std::vec![Ok(()); 40], "{eviction:?}");
    }
}

/// Goal: a drain ends with an error where all that is left cannot be read, however much that is.
/// Method: a hundred dirty blocks, of which every read fails.
#[test]
fn a_drain_of_many_unreadable_blocks_ends() {
    let mut host = Host::new(spec([4, 8, 256]), &[volume(2, 1, 512)], 1);
    (0..100).for_each(|block| make_sick(&mut host, 2, block));
    host.drain(7, Some(VolumeId(2)));
    host.wait(60);
    assert_eq!(host.drained, [(7, Err(ErrorKind::Corrupt))]);
}

/// Goal: stores that wait beside a full backing store cost a bounded number of walks over a level,
/// however many they are and however much else happens. Method: a volume fills the level; then 200
/// writes of another wait at once while blocks in memory are read; no time passes.
#[test]
fn stores_that_wait_cost_few_walks() {
    let mut spec = spec([8, 4, 256]);
    spec.classes[1].levels = 0b101;
    let mut host = Host::new(spec, &[volume(1, 1, 512), volume(2, 1, 512)], 1);
    for block in 0..8u64 {
        host.run(VolumeId(2), call(Operation::Read, block * 4096, 4096), 0);
    }
    (host.faulty, host.backing_fault) = (Some(VolumeId(1)), Some(ErrorKind::Full));
    for block in (0..512u64).step_by(8) {
        host.submit(VolumeId(1), write_of(block, 8), 9);
        host.settle();
    }
    let (walks, now) = (host.cache.effort.hopeless_walks, host.now);
    for block in 0..200u64 {
        host.submit(VolumeId(2), write_of(256 + block, 1), 1);
        host.submit(VolumeId(2), call(Operation::Read, block % 8 * 4096, 4096), 0);
        host.step();
    }
    assert_eq!(host.now, now, "no time passes");
    let walks = host.cache.effort.hopeless_walks - walks;
    assert!(walks <= 16, "{walks} walks over the level");
}

fn write_of(block: u64, count: usize) -> Call {
    call(Operation::Write, block * 4096, count as u64 * 4096)
}

/// Goal: a store does not wait for ever for room that another volume's failing home would have to
/// make. Method: that volume holds the whole level, dirty; then its home is well again.
#[test]
fn stores_are_refused_where_only_a_failing_home_would_help() {
    let mut host = Host::new(spec([2, 2, 8]), &[volume(1, 1, 64), volume(2, 1, 64)], 1);
    for block in 0..8u64 {
        host.run(VolumeId(1), call(Operation::Write, block * 4096, 4096), 1);
    }
    host.backing_fault = Some(ErrorKind::Retry);
    let written = host.run(VolumeId(2), call(Operation::Write, 0, 4096), 2);
    assert_eq!(written.result, Err(ErrorKind::Full));
    (host.backing_fault, host.now) = (None, host.now + Nanos::from_secs(2));
    let written = host.run(VolumeId(2), call(Operation::Write, 0, 4096), 2);
    assert_eq!(written.result, Ok(()));
}

/// Goal: what a home has at hand is read into memory that nobody uses and not below, though the
/// class keeps reads there; nothing makes way for it, and where read-ahead is off or a filter would
/// refuse it, it is not read at all. Method: sixteen blocks at hand of a level that has room for
/// sixteen, for eight, for none; what is held before and after.
#[test]
fn what_is_at_hand_takes_unused_room_only() {
    for (used, is_on, is_filtered) in
        [(0, true, false), (8, true, false), (16, true, false), (0, false, false), (0, true, true)]
    {
        let mut spec = spec([16, 16, 64]);
        spec.classes[0].keep_reads = true;
        if is_on {
            spec.read_ahead = ReadAheadLimits::DEFAULT;
        }
        if is_filtered {
            spec.classes[0].admission = AdmissionKind::SecondMiss;
        }
        let (mut host, one) = (Host::new(spec, &[volume(1, 0, 64)], 1), VolumeId(1));
        host.run(one, call(Operation::Cache, 0, used * 4096), 0);
        host.settle();
        // By chance a home has let go of what it offered; it offers again.
        for _ in 0..20 {
            host.at_hand(one, 20, 16);
            host.settle();
        }
        let kept = if is_on && !is_filtered { 16 - used } else { 0 };
        let held = [0, 2].map(|level| u64::from(host.cache.held_by(one, LevelIndex(level)).0));
        assert_eq!(held, [used + kept, used]);
        assert!(kept > 0 || host.cache.backing_counters().blocks_read_ahead == 0);
        for block in 20..20 + kept {
            host.run(one, call(Operation::Read, block * 4096, 4096), 0);
        }
        let counters = host.cache.volume_counters(one).expect("the volume exists");
        assert_eq!((counters.hits[0], counters.misses), (kept, 0));
    }
}

/// Goal: who joins a fetch of what is at hand gets his block whatever becomes of that, and it is
/// kept as any block that was asked for. Method: reads and hints that join, of homes that have let
/// go of it and of homes that have not.
#[test]
fn who_joins_what_is_at_hand_is_served() {
    for seed in 0..32 {
        let mut spec = spec([16, 16, 64]);
        spec.read_ahead = ReadAheadLimits::DEFAULT;
        let (mut host, one) = (Host::new(spec, &[volume(1, 0, 64)], seed), VolumeId(1));
        host.at_hand(one, 8, 4);
        assert_eq!(host.under_way(), 1);
        for block in [8, 11] {
            host.submit(one, call(Operation::Read, block * 4096, 4096), 0);
        }
        host.submit(one, call(Operation::Cache, 9 * 4096, 4096), 0);
        assert_eq!(host.under_way(), 1, "they join it");
        host.settle();
        assert!(host.completed.iter().all(|answer| answer.result.is_ok()));
        assert_eq!(host.completed.len(), 3);
        for block in [8, 9, 11] {
            assert_eq!(host.cache.level_of(one, BlockIndex(block)), Some(LevelIndex(0)));
        }
    }
}

/// Goal: a volume may have every block that a key can name and not one more, whether it is made or
/// changed so. Method: both lengths in both ways; the last block is written and read.
#[test]
fn a_volume_has_every_block_that_a_key_can_name() {
    let longest = BlockIndex::MAX.0 + 1;
    let mut host = Host::new(spec([16, 16, 64]), &[volume(1, 0, 64)], 1);
    host.specs.clear();
    host.cache.add_volume(&volume(2, 0, longest)).expect("keys reach its last block");
    host.cache.set_volume(&volume(1, 0, longest)).expect("keys reach its last block");
    assert_eq!(host.cache.blocks_of(VolumeId(1)), longest);
    let too_long = [volume(1, 0, longest + 1), volume(3, 0, longest + 1)];
    assert_eq!(host.cache.set_volume(&too_long[0]), Err(ErrorKind::Invalid));
    assert_eq!(host.cache.add_volume(&too_long[1]), Err(ErrorKind::Invalid));
    assert_eq!(host.cache.blocks_of(VolumeId(1)), longest, "it stays as it was");
}
