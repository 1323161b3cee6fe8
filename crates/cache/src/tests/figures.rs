//! Hand-computed cases from the papers.

use super::host::*;
use crate::*;
use layby_types::*;

/// N misses of block A, writes to N, writes to S over the sequence A B A A B of PADSA's Fig. 4:
/// A is written, B is written, then A, A and B are read.
fn figure_4(shared: bool) -> (u64, u64, u64) {
    let mut spec = spec([1, 1, 8]);
    spec.levels.remove(0);
    spec.levels[0].watermarks.dirty_red = 100;
    spec.classes[0].levels = 0b11;
    spec.classes[1].levels = if shared { 0b11 } else { 0b10 };
    let mut host = Host::new(spec, &[volume(1, 0, 8), volume(2, 1, 8)], 1);
    let (a, b) = (VolumeId(1), VolumeId(2));
    let steps = [
        (a, Operation::Write),
        (b, Operation::Write),
        (a, Operation::Read),
        (a, Operation::Read),
        (b, Operation::Read),
    ];
    for (volume, operation) in steps {
        let answer = host.run(volume, call(operation, 0, 4096), 7);
        assert_eq!(answer.result, Ok(()));
        host.settle();
    }
    let counters = host.cache.volume_counters(a).expect("volume 1 exists");
    (2 - counters.hits[0], host.level_writes[0], host.level_writes[1])
}

/// Goal: Fig. 4 of PADSA: with one N slot the shared policy costs 1 more N miss of the critical
/// block, 3 more N writes and 2 more S writes than the priority policy. Method: both, counted.
#[test]
fn thrashing_of_figure_4() {
    let (shared, priority) = (figure_4(true), figure_4(false));
    assert_eq!(shared.0 - priority.0, 1, "extra N misses");
    assert_eq!(shared.1 - priority.1, 3, "extra N writes");
    assert_eq!(shared.2 - priority.2, 2, "extra S writes");
}

/// Goal: neighbouring misses of one request become one read below (L3 cache paper). Method: a read
/// of four blocks, and one of 300 that exceeds the bound of one fetch.
#[test]
fn neighbouring_misses_merge() {
    let mut host = Host::new(spec([400, 4, 400]), &[volume(1, 0, 512)], 1);
    host.run(VolumeId(1), call(Operation::Read, 8192, 4 * 4096), 0);
    assert_eq!(host.reads_below, [(BlockIndex(2), 4)]);
    host.run(VolumeId(1), call(Operation::Read, 100 * 4096, 300 * 4096), 0);
    let mut later = host.reads_below.split_off(1);
    later.sort_unstable();
    assert_eq!(later, [(BlockIndex(100), 256), (BlockIndex(356), 44)]);
}

/// Goal: with red 70 and green 30 the dirty share rises to 70 %, falls to 30 %, and exceeds red by
/// no more than what is in flight; destaging comes a timeout after the last dirty write.
/// Method: single-block writes into 100 slots, destages run to their end in between.
#[test]
fn watermarks_bound_the_dirty_share() {
    let mut spec = spec([1, 1, 100]);
    spec.levels[2].watermarks.dirty_red = 70;
    spec.levels[2].watermarks.dirty_green = 30;
    spec.writeback.merge_bytes = 4096;
    let mut host = Host::new(spec, &[volume(1, 1, 400)], 1);
    let dirty = |host: &Host| host.cache.level_view(LevelIndex(2), host.now).dirty;
    for block in 0..69u64 {
        host.run(VolumeId(1), call(Operation::Write, block * 2 * 4096, 4096), 1);
    }
    assert_eq!(dirty(&host), 69, "nothing is destaged below red");
    host.run(VolumeId(1), call(Operation::Write, 300 * 4096, 4096), 1);
    host.settle();
    assert_eq!(dirty(&host), 30, "destaging runs from red to green");
    host.tick(Nanos::from_millis(4_900));
    host.settle();
    assert_eq!(dirty(&host), 30, "calm has not lasted the timeout yet");
    host.tick(Nanos::from_millis(200));
    host.settle();
    assert_eq!(dirty(&host), 0, "after the timeout everything goes home");
}

/// Goal: dirty neighbours go home in one write of at most the merge size. Method: 300 neighbours
/// dirty, 1 MiB merge size, drained.
#[test]
fn destages_merge_neighbours() {
    let mut host = Host::new(spec([1, 1, 400]), &[volume(1, 1, 400)], 1);
    host.run(VolumeId(1), call(Operation::Write, 0, 256 * 4096), 1);
    host.run(VolumeId(1), call(Operation::Write, 256 * 4096, 24 * 4096), 1);
    host.drain(1, None);
    host.settle();
    assert_eq!(host.drained, [(1, Ok(()))]);
    let counters = host.cache.level_view(LevelIndex(2), host.now).counters;
    let written = host.cache.backing_counters();
    assert_eq!((counters.destaged, written.blocks_written, written.writes), (280, 280, 2));
}

/// Goal: a sequential reader is served by read-ahead: the backing store sees large reads, and later
/// reads hit. Method: 64 reads of 4 KiB in order.
#[test]
fn read_ahead_leads_a_sequential_reader() {
    let mut spec = spec([1024, 4, 4]);
    spec.read_ahead = ReadAheadLimits::DEFAULT;
    let mut host = Host::new(spec, &[volume(1, 0, 512)], 1);
    for block in 0..64u64 {
        host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
        host.settle();
    }
    let counters = host.cache.volume_counters(VolumeId(1)).expect("the volume exists");
    assert!(counters.misses <= 4, "{} misses", counters.misses);
    assert!(host.reads_below.len() < 12, "reads below: {:?}", host.reads_below);
    assert!(host.cache.backing_counters().blocks_read_ahead > 50);
}

/// Goal: where somebody better may come, what is read ahead comes in short pieces, as much of it in
/// all. Method: a sequential reader with and without; no read below is longer than 16 blocks.
#[test]
fn read_ahead_goes_in_pieces_beside_better() {
    let ahead = |is_stepwise: bool| {
        let mut spec = spec([4096, 4, 4]);
        spec.read_ahead = ReadAheadLimits::DEFAULT;
        let mut host = Host::new(spec, &[volume(1, 0, 2048)], 1);
        host.cache.set_stepwise(is_stepwise);
        for block in 0..256u64 {
            host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
        }
        host.settle();
        let longest = host.reads_below.iter().map(|(_, count)| *count).max();
        (longest, host.cache.backing_counters().blocks_read_ahead)
    };
    let ((whole, much), (piece, as_much)) = (ahead(false), ahead(true));
    assert_eq!((whole, piece), (Some(64), Some(16)));
    assert!(as_much >= much, "{as_much} for {much} blocks ahead");
}

/// Goal: where somebody better may come, an end places few of the stores that wait for its room,
/// and all have their turn. Method: 64 writes into a level of 64 dirty blocks; how much each end
/// begins.
#[test]
fn waiting_stores_are_placed_by_and_by_beside_better() {
    let most = |is_stepwise: bool| {
        let mut host = Host::new(spec([1, 1, 64]), &[volume(1, 1, 512)], 1);
        host.cache.set_stepwise(is_stepwise);
        let write = |block: u64| call(Operation::Write, block * 4096, 4096);
        for block in 0..64 {
            assert_eq!(host.run(VolumeId(1), write(block), 1).result, Ok(()));
        }
        for block in 64..128 {
            host.submit(VolumeId(1), write(block), 2);
        }
        let mut most = 0;
        loop {
            let before = host.under_way();
            if !host.step() {
                break;
            }
            most = most.max(host.under_way() + 1 - before);
        }
        assert_eq!(host.completed.iter().filter(|answer| answer.result.is_ok()).count(), 64);
        most
    };
    let (at_once, by_and_by) = (most(false), most(true));
    assert!(at_once > 16, "{at_once} begun by one end");
    // Beside the two an end may begin to make room.
    assert!(by_and_by <= 8, "{by_and_by} begun by one end");
}

/// Goal: a backing store that refuses writes fails the writes that need room, loses nothing, and
/// service resumes when it recovers. Method: fault on, fill the level, fault off.
#[test]
fn full_backing_store_is_an_error_not_a_hang() {
    let mut host = Host::new(spec([1, 1, 8]), &[volume(1, 1, 64)], 1);
    host.backing_fault = Some(ErrorKind::Full);
    let mut failed = 0;
    for block in 0..16u64 {
        let answer = host.run(VolumeId(1), call(Operation::Write, block * 4096, 4096), 9);
        failed += u32::from(answer.result == Err(ErrorKind::Full));
    }
    assert_eq!(failed, 8, "eight blocks fit, the others are refused");
    let fault = DestageFault { level: None, kind: ErrorKind::Full };
    assert_eq!(host.cache.destage_fault(VolumeId(1)), Some(fault));
    host.backing_fault = None;
    host.tick(Nanos::from_secs(10));
    host.settle();
    assert_eq!(host.cache.destage_fault(VolumeId(1)), None);
    assert_eq!(host.run(VolumeId(1), call(Operation::Write, 0, 4096), 9).result, Ok(()));
    for block in 0..8u64 {
        let answer = host.run(VolumeId(1), call(Operation::Read, block * 4096, 4096), 0);
        assert!(answer.cells.iter().all(|cell| *cell == 9));
    }
}

/// Goal: a read that a level fails, so that it is repeated block by block, brings nothing old back
/// over a trim that waited behind it. Method: every order in which actions end, by seed.
#[test]
fn a_read_in_pieces_holds_trims_up() {
    for seed in 0..50 {
        let mut spec = spec([4, 4, 16]);
        spec.classes[1].levels = 0b101;
        let mut host = Host::new(spec, &[volume(1, 1, 64)], seed);
        host.run(VolumeId(1), call(Operation::Write, 0, 3 * 4096), 7);
        host.drain(1, None);
        host.settle();
        host.unreadable = (0..3).map(|b| BlockKey::new(VolumeId(1), BlockIndex(b))).collect();
        host.submit(VolumeId(1), call(Operation::Read, 0, 3 * 4096), 0);
        host.submit(VolumeId(1), call(Operation::Trim, 0, 3 * 4096), 0);
        host.settle();
        let read = host.run(VolumeId(1), call(Operation::Read, 0, 3 * 4096), 0);
        assert!(read.cells.iter().all(|cell| *cell == 0), "SEED={seed}: {:?}", read.cells);
    }
}
