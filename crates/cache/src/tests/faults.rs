//! Errors of reads: which requests fail with one, and what is said of the blocks.

use super::host::*;
use crate::op::{Sought, Task};
use crate::*;
use layby_types::*;
use std::ops::Range;
use std::vec::Vec;

const BLOCK: u64 = 4096;
const ONE: VolumeId = VolumeId(1);

fn key(block: u64) -> BlockKey {
    BlockKey::new(ONE, BlockIndex(block))
}

fn read(block: u64, blocks: u64) -> Call {
    call(Operation::Read, block * BLOCK, blocks * BLOCK)
}

fn write(host: &mut Host, block: u64, blocks: u64, value: u32) {
    let write = call(Operation::Write, block * BLOCK, blocks * BLOCK);
    assert_eq!(host.run(ONE, write, value).result, Ok(()));
    host.settle();
}

/// A volume in memory alone, whose 128 blocks of content 7 only the backing store has.
fn all_below(is_ahead: bool, seed: u64) -> Host {
    let mut spec = spec([4096, 4, 256]);
    spec.classes[1].levels = 0b001;
    if is_ahead {
        spec.read_ahead = ReadAheadLimits::DEFAULT;
    }
    let mut host = Host::new(spec, &[volume(1, 1, 128)], seed);
    write(&mut host, 0, 128, 7);
    host
}

impl Host {
    fn answer_of(&mut self, request: RequestId) -> Answer {
        let at = self.completed.iter().position(|answer| answer.request == request);
        self.completed.swap_remove(at.expect("every request ends"))
    }
}

/// Starts reads of a run of blocks, by a request for all of it or ahead of a reader: the run.
fn start_run(host: &mut Host, is_ahead: bool) -> Range<u64> {
    if !is_ahead {
        host.submit(ONE, read(0, 64), 0);
        return 0..64;
    }
    for block in 0..3 {
        host.submit(ONE, read(block, 1), 0);
    }
    let ahead = host.cache.ops.iter().find_map(|(_, op)| match &op.task {
        Task::Fetch(fetch) if fetch.sought == Sought::Ahead => Some((op.first.0, op.count)),
        _ => None,
    });
    let (first, count) = ahead.expect("a reader in order is followed");
    assert!(count >= 4, "a run has sound blocks beside a bad one");
    first..first + u64::from(count)
}

/// Goal: a bad sector of the backing store fails the requests that read it and no other, whichever
/// fetch they joined. Method: a run of a request or of read-ahead with one bad block; reads of
/// single blocks of it join, of the bad one and its neighbour, and of blocks behind; a write queues.
#[test]
fn a_bad_sector_fails_its_own_readers_only() {
    for (is_ahead, seed) in (0..16).flat_map(|seed| [(true, seed), (false, seed)]) {
        let mut host = all_below(is_ahead, seed);
        let run = start_run(&mut host, is_ahead);
        let bad = run.start + host.rng.below(run.end - run.start - 1);
        host.bad_below.insert(key(bad), ErrorKind::Corrupt);
        let joined: Vec<_> = run
            .chain([100, 101])
            .map(|block| (block, host.submit(ONE, read(block, 1), 0)))
            .collect();
        let two = host.submit(ONE, read(bad, 2), 0);
        let written = host.submit(ONE, call(Operation::Write, bad * BLOCK, BLOCK), 9);
        host.settle();
        for (block, request) in joined {
            let answer = host.answer_of(request);
            let expected = if block == bad { Err(ErrorKind::Corrupt) } else { Ok(()) };
            assert_eq!(answer.result, expected, "block {block}, ahead: {is_ahead}, SEED={seed}");
            assert!(block == bad || answer.cells == [7; CELLS]);
        }
        assert_eq!(host.answer_of(two).result, Err(ErrorKind::Corrupt));
        assert_eq!(host.answer_of(written).result, Ok(()));
        assert_eq!(host.run(ONE, read(bad, 1), 0).cells, [9; CELLS]);
        assert_eq!(host.cache.ops.iter().count(), 0, "SEED={seed}");
    }
}

/// Goal: what is read again after a bad sector is bounded, and counts once. Method: a run with one
/// bad block, each of whose blocks two readers joined: one read more per block and the two of the
/// bad one; misses are the blocks that were asked for.
#[test]
fn a_bad_sector_costs_a_read_per_block() {
    let mut host = all_below(false, 0);
    host.bad_below.insert(key(20), ErrorKind::Corrupt);
    let before = host.cache.backing_counters().blocks_read;
    let misses = host.cache.volume_counters(ONE).expect("it exists").misses;
    host.submit(ONE, read(0, 64), 0);
    for block in (0..64).chain(0..64) {
        host.submit(ONE, read(block, 1), 0);
    }
    host.settle();
    assert_eq!(host.cache.backing_counters().blocks_read - before, 128);
    let counted = host.cache.volume_counters(ONE).expect("it exists");
    assert_eq!(counted.misses + counted.hits.iter().sum::<u64>() - misses, 3 * 64);
}

/// Goal: readers of a backing store that does not answer wait for one time-out, not for two.
/// Method: a run that ends with another error than that of bad bytes; nothing is read again.
#[test]
fn what_timed_out_is_not_read_again() {
    let mut host = all_below(false, 0);
    host.bad_below.insert(key(20), ErrorKind::Retry);
    let before = host.cache.backing_counters().blocks_read;
    host.submit(ONE, read(0, 64), 0);
    let joined = host.submit(ONE, read(3, 1), 0);
    host.settle();
    assert_eq!(host.answer_of(joined).result, Err(ErrorKind::Retry));
    assert_eq!(host.cache.backing_counters().blocks_read - before, 64);
}
