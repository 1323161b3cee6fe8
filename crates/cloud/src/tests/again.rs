//! Transient unsound answers of the store: reads retry, within bounds.
//!
//! How: a volume whose blocks are scattered over its segments, so that one read takes many
//! requests; a share of the answers is unsound, or an object is missing.

use super::lives::{BLOCK, JOURNAL};
use super::waits::Bench;
use crate::simulated::SimFaults;
use crate::volume::WaitPlan;
use layby_types::{ErrorKind, Nanos};

/// Blocks of the long read, a mebibyte.
const LONG: u64 = 256;
/// The time within which a read of an object that is missing has ended.
const MISSING_WITHIN: Nanos = Nanos::from_secs(2);

/// A volume that was written block by block in random order and uploaded.
fn scattered(seed: u64) -> Bench {
    let mut bench = Bench::sized(seed, LONG, (JOURNAL, 0));
    bench.volume.set_wait(WaitPlan::default());
    let order: Vec<u64> = (0..LONG).map(|index| index * 67 % LONG).collect();
    order.chunks(64).for_each(|blocks| bench.upload_singly(blocks, 3));
    bench
}

/// Reads the volume as a whole some times; answers with how many requests that took.
fn read_all(bench: &mut Bench, seed: u64) -> u64 {
    let before = bench.requests();
    for round in 0..4 {
        let token = bench.read_blocks(0, LONG);
        let (_, result) = bench.wait(token);
        assert_eq!(result, Ok(()), "seed {seed} round {round}");
        let bytes = bench.ended[&token].1.as_deref();
        assert_eq!(bytes, Some(&vec![3; (LONG * BLOCK) as usize][..]));
        let later = bench.now.saturating_add(Nanos::from_millis(1100));
        bench.until(|bench| bench.now >= later);
    }
    bench.requests() - before
}

/// Goal: a long read succeeds although some of its many requests get truncated or changed answers.
/// Method: one answer of twenty is unsound; the requests of the reads are counted, which are so
/// many that several of each read were.
#[test]
fn a_long_read_outlives_unsound_answers() {
    let reads = |seed: u64| {
        let mut bench = scattered(seed);
        bench.world.faults = SimFaults { unsound: 5, ..SimFaults::default() };
        let requests = read_all(&mut bench, seed);
        assert_eq!(bench.volume.status().counters.damaged, 0);
        requests
    };
    let requests: u64 = (0..10).map(reads).sum();
    assert!(requests >= 2000, "{requests} requests");
}

/// Goal: an object that the store does not find for a moment is asked for again. Method: one
/// answer of twenty says that the object is missing.
#[test]
fn a_moment_without_an_object_is_not_seen_by_clients() {
    for seed in 0..10 {
        let mut bench = scattered(seed);
        bench.world.faults = SimFaults { hidden: 5, ..SimFaults::default() };
        read_all(&mut bench, seed);
        assert_eq!(bench.volume.status().counters.damaged, 0);
    }
}

/// Goal: an object that is really missing is an error in bounded time, after several requests; the
/// next read of it asks once, and finds it when it is back. Method: an object taken out, and put
/// back.
#[test]
fn a_missing_object_is_an_error_in_bounded_time() {
    let mut bench = Bench::new(31);
    bench.volume.set_wait(WaitPlan::default());
    let key = bench.upload_singly_to(&[16, 19, 22, 25], 1);
    let object = bench.world.store.objects.remove(&key).expect("it was uploaded");
    let before = bench.requests();
    let first = bench.read(16);
    let (waited, result) = bench.wait(first);
    assert_eq!(result, Err(ErrorKind::Corrupt));
    assert!(waited < MISSING_WITHIN, "{waited:?}");
    let asked = bench.requests() - before;
    assert!((3..=8).contains(&asked), "{asked} requests");
    let second = bench.read(22);
    assert_eq!(bench.wait(second), (Nanos::ZERO, Err(ErrorKind::Corrupt)));
    assert_eq!(bench.requests() - before, asked + 1, "it is known to be missing");
    assert_eq!(bench.volume.status().counters.damaged, 2);
    bench.world.store.objects.insert(key, object);
    bench.reads(19, 1);
}

/// Goal: the fault of a read that failed is named, whatever failed since. Method: a missing object,
/// then a store that fails.
#[test]
fn the_fault_of_a_read_is_named() {
    let mut bench = Bench::new(32);
    let key = bench.upload_singly_to(&[16, 19, 22, 25], 1);
    bench.world.store.objects.remove(&key);
    let read = bench.read(16);
    assert_eq!(bench.wait(read).1, Err(ErrorKind::Corrupt));
    bench.world.faults.is_cut = true;
    let read = bench.read(0);
    assert_eq!(bench.wait(read).1, Err(ErrorKind::Retry), "its time is over");
    let status = bench.volume.status();
    let (last, _) = status.last_fault.expect("the store failed");
    assert!(!last.contains(&key), "{last}");
    let fault = status.read_fault.expect("a read failed");
    assert!(fault.contains(&key), "{fault}");
}

/// Goal: parts of one chunk share its retries: an answer that is truncated, or says that the object
/// is missing, costs the chunk one of them. Method: a chunk of sixteen blocks of which every second
/// one was zeroed since, read as a whole while one answer of five is unsound.
#[test]
fn parts_of_a_chunk_share_its_retries() {
    for seed in 0..40 {
        let mut bench = Bench::new(seed);
        bench.volume.set_wait(WaitPlan::default());
        let written = bench.write(16, 16, 5);
        bench.until(|bench| bench.ended.contains_key(&written));
        bench.upload_singly(&[40], 1);
        let odd: Vec<u64> = (17..32).step_by(2).collect();
        odd.iter().for_each(|block| bench.zero(*block));
        bench.upload_singly(&[41], 1);
        let (unsound, hidden) = if seed < 20 { (20, 0) } else { (0, 20) };
        bench.world.faults = SimFaults { unsound, hidden, ..SimFaults::default() };
        let before = bench.requests();
        let read = bench.read_blocks(16, 16);
        assert_eq!(bench.wait(read).1, Ok(()), "seed {seed}");
        assert!(bench.requests() > before, "the store was asked");
        let bytes = bench.ended[&read].1.as_deref().expect("a read");
        for (block, bytes) in (16..).zip(bytes.chunks(BLOCK as usize)) {
            let expected = if odd.contains(&block) { 0 } else { 5 };
            assert!(bytes.iter().all(|byte| *byte == expected), "seed {seed}, block {block}");
        }
    }
}
