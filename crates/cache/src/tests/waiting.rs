//! Stores that wait for room: which is tried when.

use super::host::*;
use crate::*;
use layby_types::*;

/// Writes a block that has no neighbour: each is written back by itself.
fn write(host: &mut Host, id: u32, block: u64) -> RequestId {
    let block = block * 2;
    host.submit(VolumeId(id), call(Operation::Write, block * 4096, 4096), id)
}

/// A host whose volumes each have a backing store on a device of its own: volume 1 of class 1, the
/// others of class `others`, with a backing store that does not answer, as many dirty blocks as
/// they may have, and 40 stores each that wait for room.
fn with_silent_others(others: u8, count: u32, seed: u64) -> Host {
    let mut spec = spec([4, 4, 512]);
    spec.classes[0].levels = 0b100;
    spec.levels[2].watermarks.dirty_red = 100;
    let mut volumes = std::vec![volume(1, 1, 2048)];
    volumes.extend((2..2 + count).map(|id| volume(id, others, 2048)));
    let mut host = Host::new(spec, &volumes, seed);
    for volume in &volumes {
        host.cache.set_device(volume.id, None);
    }
    host.silent.extend(volumes[1..].iter().map(|volume| volume.id));
    for block in 0..480 {
        write(&mut host, 2 + block % count, u64::from(block / count));
        host.settle();
    }
    assert_eq!(host.completed.drain(..).count(), 480, "SEED={seed}");
    for block in 0..40 {
        for id in 2..2 + count {
            write(&mut host, id, 480 + block);
        }
        host.settle();
    }
    assert!(host.completed.is_empty(), "they wait for room; SEED={seed}");
    host
}

/// Ends what can end, and goes on for a tenth of a second; how many ends and ticks that were.
fn settle_soon(host: &mut Host) -> u32 {
    let mut turns = 0;
    for _ in 0..100 {
        while host.step() {
            turns += 1;
        }
        host.tick(Nanos::from_millis(1));
        turns += 1;
    }
    turns
}

/// Goal: stores that wait for a backing store that does not answer hold up no other volume's, of
/// their rank or of a lower one, however many they are. Method: one volume or twelve fill the level
/// as far as they may and wait; another one writes more than its part of the level, and its own
/// backing store answers; beside one no time passes; seeds.
#[test]
fn stores_that_wait_hold_up_no_other_volume() {
    for seed in 0..16 {
        for (others, count) in [(0, 1), (1, 1), (0, 12), (1, 12)] {
            let mut host = with_silent_others(others, count, seed);
            let written: std::vec::Vec<_> =
                (0..64).map(|block| write(&mut host, 1, block)).collect();
            host.settle();
            if count > 1 {
                settle_soon(&mut host);
            }
            let ended = host.completed.iter().filter(|answer| written.contains(&answer.request));
            let ended = ended.filter(|answer| answer.result.is_ok()).count();
            assert_eq!(ended, 64, "beside {count} of class {others}; SEED={seed}");
            let waiting = host.cache.level_view(LevelIndex(2), host.now).waiting;
            assert_eq!(waiting, 40 * count, "beside {count} of class {others}; SEED={seed}");
        }
    }
}

/// Goal: stores of one volume get room in the order in which they came, however often the first of
/// them was tried in vain. Method: they wait while another volume writes; then their backing store
/// answers, and devices end what they do in order.
#[test]
fn stores_of_a_volume_get_room_in_their_order() {
    for seed in 0..16 {
        let mut host = with_silent_others(0, 1, seed);
        host.in_order = true;
        for block in 0..seed * 4 + 4 {
            write(&mut host, 1, block);
            host.settle();
        }
        host.completed.clear();
        host.silent.clear();
        host.settle();
        let ended: std::vec::Vec<_> = host.completed.iter().map(|answer| answer.request).collect();
        assert_eq!(ended.len(), 40, "SEED={seed}");
        assert!(ended.is_sorted(), "{ended:?}; SEED={seed}");
    }
}

/// Goal: a try of what waits costs a bounded number of stores that find no room, however many
/// volumes wait. Method: 40 volumes wait; another one writes; tries are counted per end
/// and tick.
#[test]
fn a_try_costs_few_stores_that_find_no_room() {
    let mut host = with_silent_others(0, 40, 1);
    for block in 0..64 {
        write(&mut host, 1, block);
    }
    let before = host.cache.effort.room_tries;
    let turns = (0..20).map(|_| settle_soon(&mut host)).sum::<u32>();
    let tries = host.cache.effort.room_tries - before;
    assert!(tries <= turns * 40, "{tries} tries in {turns} turns");
    assert_eq!(host.completed.iter().filter(|answer| answer.result.is_ok()).count(), 64);
}

/// Goal: while nothing changes, stores that find no room cost few timers, however many volumes they
/// are of, and none has a busy one; what can be placed after a change is placed soon. Method: 12 to
/// 40 volumes wait beside silent backing stores; the cache's own timers go off for a second; then
/// the backing stores answer.
#[test]
fn a_round_in_vain_is_followed_by_a_pause() {
    for (count, seed) in [(12, 1), (24, 2), (40, 3)] {
        let mut host = with_silent_others(0, count, seed);
        let end = host.now + Nanos::from_secs(1);
        let mut timers = 0;
        while let due = host.cache.next_deadline(host.now)
            && due < end
        {
            host.tick(due.since(host.now).max(Nanos::from_micros(1)));
            host.settle();
            timers += 1;
        }
        // A try comes to seven new volumes, a round of them is followed by 10 ms.
        let tries = 1 + count.div_ceil(7);
        let most = 1000 * tries / (tries + 9);
        assert!(timers <= most, "{timers} timers for {count} volumes; SEED={seed}");
        assert!(host.completed.is_empty(), "they wait on; SEED={seed}");
        host.now = end;
        host.silent.clear();
        settle_soon(&mut host);
        assert_eq!(host.completed.len() as u32, 40 * count, "SEED={seed}");
    }
}

/// Goal: what a change in the middle of a round makes room for is placed soon, though the round had
/// come to it before: no pause follows. Method: 24 or 31 volumes at their caps, each with a store
/// that waits; after so many tries of a round one block of one of them is written back; the time
/// until its store is placed, by the cache's own timers.
#[test]
fn a_change_within_a_round_puts_off_its_pause() {
    for (count, seed) in [(24_u32, 1), (31, 2)] {
        let tries = 1 + count.div_ceil(7);
        for (index, before) in (0..count).step_by(3).flat_map(|it| (1..tries).map(move |n| (it, n)))
        {
            let mut host = at_their_caps(count, seed);
            let mut timers = 0..100;
            while due(&host) < Nanos::from_millis(9) {
                host.tick(due(&host));
                assert!(timers.next().is_some(), "a round in vain has its pause; SEED={seed}");
            }
            (0..before).for_each(|_| host.tick(due(&host)));
            assert!(host.completed.is_empty(), "all wait; SEED={seed}");
            let (start, changed) = (host.now, VolumeId(2 + index));
            host.silent.remove(&changed);
            assert!(host.step(), "a block of it is being written back; SEED={seed}");
            host.silent.insert(changed);
            host.settle();
            while host.completed.is_empty() {
                host.tick(due(&host));
                host.settle();
                let took = host.now.since(start);
                // The rest of this round, and the next one until it comes to the volume.
                let most = Nanos::from_millis(u64::from(tries - before + 1 + index.div_ceil(7)));
                assert!(took <= most, "{took:?} for {changed:?} behind {before}; SEED={seed}");
            }
        }
    }
}

fn due(host: &Host) -> Nanos {
    host.cache.next_deadline(host.now).since(host.now).max(Nanos::from_micros(1))
}

/// A host whose volumes have as many blocks as they may, dirty ones of backing stores that do not
/// answer, and a store each that waits for room.
fn at_their_caps(count: u32, seed: u64) -> Host {
    let mut spec = spec([4, 4, 512]);
    spec.classes[0].levels = 0b100;
    let mut volumes: std::vec::Vec<_> = (2..2 + count).map(|id| volume(id, 0, 2048)).collect();
    for volume in &mut volumes {
        volume.shares[2].cap = 10;
    }
    let mut host = Host::new(spec, &volumes, seed);
    for volume in &volumes {
        host.cache.set_device(volume.id, None);
    }
    host.silent.extend(volumes.iter().map(|volume| volume.id));
    for block in 0..10 {
        for id in 2..2 + count {
            write(&mut host, id, block);
        }
        host.settle();
    }
    assert_eq!(host.completed.drain(..).count() as u32, 10 * count, "SEED={seed}");
    for id in 2..2 + count {
        write(&mut host, id, 10);
    }
    host.settle();
    assert!(host.completed.is_empty(), "they wait for room; SEED={seed}");
    host
}
