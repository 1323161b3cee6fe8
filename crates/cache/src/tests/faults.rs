//! Errors of reads: which requests fail with one, and what is said of the blocks.

use super::host::*;
use crate::background::CAPS_PAUSE;
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
/// single blocks of it join, of the bad one and its neighbour, and of blocks behind it; a write
/// of the bad one queues; seeds.
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

const SSD: LevelIndex = LevelIndex(2);

/// A volume whose block 5, of content 7, is in the SSD level alone, or in the backing store, too.
fn in_a_level(levels: u8, is_clean: bool, seed: u64) -> Host {
    let mut spec = spec([4, 4, 16]);
    spec.classes[1].levels = levels;
    let mut host = Host::new(spec, &[volume(1, 1, 64)], seed);
    write(&mut host, 5, 1, 7);
    if is_clean {
        host.drain(1, None);
        host.settle();
    }
    host.unreadable.insert(key(5));
    host.unreadable_for = ErrorKind::Retry;
    host
}

/// Goal: a level that fails otherwise than for bad bytes makes no dirty block unreadable: a read or
/// a write of a part fails, nothing is reported, and once the level works all is as it was. Method:
/// a dirty block whose reads end with `Retry` for a while, with and without memory above.
#[test]
fn a_passing_fault_makes_no_dirty_block_unreadable() {
    for levels in [0b100, 0b101] {
        let mut host = in_a_level(levels, false, 1);
        assert_eq!(host.run(ONE, read(5, 1), 0).result, Err(ErrorKind::Retry));
        let part = call(Operation::Write, 5 * BLOCK, CELL);
        assert_eq!(host.run(ONE, part, 8).result, Err(ErrorKind::Retry));
        assert_eq!(host.events, []);
        host.unreadable.clear();
        assert_eq!(host.run(ONE, part, 8).result, Ok(()));
        assert_eq!(host.run(ONE, read(5, 1), 0).cells, [8, 7, 7, 7, 7, 7, 7, 7]);
        host.drain(1, None);
        host.settle();
        assert_eq!((host.drained.pop(), host.at_home(key(5))), (Some((1, Ok(()))), 8));
    }
}

/// Goal: where such a level cannot return a clean block, the backing store serves the read, or what
/// a part is merged into; the block stays in its level, once, and nothing is reported. Method: a
/// clean block whose reads end with `Retry`, for classes with and without memory, and one that
/// keeps what it reads.
#[test]
fn a_passing_fault_drops_no_clean_block() {
    for (levels, keeps) in [(0b100, false), (0b101, false), (0b101, true), (0b110, false)] {
        let mut host = in_a_level(0b100, true, 1);
        let mut spec = host.cache.spec().clone();
        (spec.classes[1].levels, spec.classes[1].keep_reads) = (levels, keeps);
        host.cache.reconfigure(spec).expect("the classes are sound");
        let answer = host.run(ONE, read(5, 1), 0);
        host.settle();
        assert_eq!((answer.result, answer.cells), (Ok(()), Vec::from([7; CELLS])));
        assert_eq!((host.cache.held_by(ONE, SSD), &host.events[..]), ((1, 0, 0), &[][..]));
        assert_eq!(host.cache.held_by(ONE, LevelIndex(1)), (0, 0, 0), "it is in one level");
        assert_eq!(host.cache.held_by(ONE, LevelIndex(0)).0, u32::from(levels & 1));
        let part = call(Operation::Write, 5 * BLOCK, CELL);
        assert_eq!((host.run(ONE, part, 8).result, &host.events[..]), (Ok(()), &[][..]));
        host.unreadable.clear();
        assert_eq!(host.run(ONE, read(5, 1), 0).cells, [8, 7, 7, 7, 7, 7, 7, 7]);
    }
}

/// Goal: where the backing store fails as well, read and write end with its error. Method: a clean
/// block that neither can return.
#[test]
fn what_nothing_can_return_is_an_error() {
    for kind in [ErrorKind::Retry, ErrorKind::Corrupt] {
        let mut host = in_a_level(0b101, true, 1);
        host.bad_below.insert(key(5), kind);
        assert_eq!(host.run(ONE, read(5, 1), 0).result, Err(kind));
        let part = call(Operation::Write, 5 * BLOCK, CELL);
        assert_eq!(host.run(ONE, part, 8).result, Err(kind));
        assert_eq!((host.cache.held_by(ONE, SSD), &host.events[..]), ((1, 0, 0), &[][..]));
    }
}

/// Goal: a merge that cannot read its block blames no copy in lent room, which it did not read.
/// Method: a clean block in the SSD level with a copy in lent NVM; the former cannot be read.
#[test]
fn a_merge_blames_no_lent_copy() {
    let mut host = in_a_level(0b100, true, 1);
    let mut spec = host.cache.spec().clone();
    spec.classes[1].borrow = true;
    host.cache.reconfigure(spec).expect("the classes are sound");
    host.cache.limit_level(LevelIndex(0), 0);
    host.unreadable.clear();
    assert_eq!(host.run(ONE, read(5, 1), 0).result, Ok(()));
    host.settle();
    assert_eq!(host.cache.held_by(ONE, LevelIndex(1)), (0, 1, 0), "NVM is lent");
    host.unreadable.insert(key(5));
    host.unreadable_for = ErrorKind::Corrupt;
    let part = call(Operation::Write, 5 * BLOCK, CELL);
    assert_eq!(host.run(ONE, part, 8).result, Ok(()));
    assert_eq!(host.events, [Event::CorruptCleanDropped { key: key(5), level: SSD }]);
    host.unreadable.clear();
    assert_eq!(host.run(ONE, read(5, 1), 0).cells, [8, 7, 7, 7, 7, 7, 7, 7]);
}

/// Goal: unreadable dirty blocks keep no timer going off and no sweep going, and what is readable
/// beside them is destaged as ever. Method: a level with an unreadable block, calm; then one more
/// dirty block, destaged at its time; the unreadable one is written anew and goes home.
#[test]
fn unreadable_blocks_keep_no_sweep_going() {
    let mut host = in_a_level(0b100, false, 1);
    host.unreadable_for = ErrorKind::Corrupt;
    assert_eq!(host.run(ONE, read(5, 1), 0).result, Err(ErrorKind::Corrupt));
    host.wait(10);
    assert_eq!(host.cache.next_deadline(host.now), Nanos::NEVER);
    let sweeps = host.cache.effort.sweeps;
    host.wait(10);
    assert_eq!(host.cache.effort.sweeps, sweeps);
    write(&mut host, 9, 1, 4);
    let calm = host.cache.spec().writeback.idle_timeout;
    assert_eq!(host.cache.next_deadline(host.now), host.now + calm);
    host.wait(10);
    assert_eq!((host.at_home(key(9)), host.cache.next_deadline(host.now)), (4, Nanos::NEVER));
    host.unreadable.clear();
    write(&mut host, 5, 1, 6);
    host.wait(10);
    assert_eq!((host.at_home(key(5)), host.cache.held_by(ONE, SSD)), (6, (2, 0, 0)));
}

/// Goal: once nothing of a volume is dirty, nothing is shown or told of its failed destages, and
/// while something is, it is. Method: two dirty blocks whose backing store fails; they are trimmed
/// one after the other.
#[test]
fn a_volume_without_dirty_blocks_has_no_destage_fault() {
    for levels in [0b100, 0b110] {
        let mut spec = spec([4, 4, 16]);
        spec.classes[1].levels = levels;
        let mut host = Host::new(spec, &[volume(1, 1, 64), volume(2, 1, 64)], 1);
        host.backing_fault = Some(ErrorKind::Full);
        write(&mut host, 5, 2, 7);
        host.wait(10);
        let fault = DestageFault { level: None, kind: ErrorKind::Full };
        let failed = Event::DestageFailed { volume: ONE, fault };
        for block in [5, 6] {
            assert_eq!(
                (host.cache.destage_fault(ONE), &host.events[..]),
                (Some(fault), &[failed][..])
            );
            let trim = call(Operation::Trim, block * BLOCK, BLOCK);
            assert_eq!(host.run(ONE, trim, 0).result, Ok(()));
        }
        assert_eq!(host.cache.destage_fault(ONE), None);
        assert_eq!(host.events, [failed, Event::DestageRecovered { volume: ONE }]);
        write(&mut host, 5, 1, 7);
        host.wait(10);
        assert_eq!((host.cache.destage_fault(ONE), host.events.len()), (Some(fault), 3));
    }
}

/// Goal: what does not answer stays known though nothing is dirty any more, and a volume that is
/// removed with its dirty blocks is told nothing of. Method: a backing store that is stuck, whose
/// dirty block is trimmed; one that fails, whose volume is removed.
#[test]
fn a_stuck_backing_store_stays_known() {
    let mut host = in_a_level(0b100, false, 1);
    host.set_stuck(ONE, true);
    assert_eq!(host.run(ONE, call(Operation::Trim, 5 * BLOCK, BLOCK), 0).result, Ok(()));
    assert_eq!(host.cache.destage_fault(ONE).map(|fault| fault.kind), Some(ErrorKind::Retry));
    host.set_stuck(ONE, false);
    assert_eq!(host.events.last(), Some(&Event::DestageRecovered { volume: ONE }));
    host.unreadable.clear();
    host.backing_fault = Some(ErrorKind::Full);
    write(&mut host, 5, 2, 7);
    host.wait(10);
    host.specs.clear();
    host.remove(ONE);
    assert!(matches!(host.events.last(), Some(Event::DestageFailed { .. })));
}

/// Goal: it is no failed write-back that a backing store does not answer while nothing is dirty;
/// it is one as soon as something is, and both ends are reported. Method: a backing store that is
/// stuck without and with a write meanwhile, and answers again.
#[test]
fn a_stuck_backing_store_without_dirty_blocks_is_no_failure() {
    let mut spec = spec([4, 4, 16]);
    spec.classes[1].levels = 0b100;
    let mut host = Host::new(spec, &[volume(1, 1, 64)], 1);
    host.set_stuck(ONE, true);
    assert_eq!(host.cache.destage_fault(ONE).map(|fault| fault.kind), Some(ErrorKind::Retry));
    host.set_stuck(ONE, false);
    assert_eq!(host.events, []);
    host.set_stuck(ONE, true);
    write(&mut host, 5, 2, 7);
    let fault = DestageFault { level: None, kind: ErrorKind::Retry };
    let failed = Event::DestageFailed { volume: ONE, fault };
    assert_eq!(host.events, [failed]);
    host.set_stuck(ONE, false);
    assert_eq!(host.events, [failed, Event::DestageRecovered { volume: ONE }]);
}

/// Goal: a cap that cannot be met, since nothing of the volume may leave, is tried for once per
/// pause, whatever else happens; and it is met soon after something may. Method: a volume beyond
/// its lowered cap whose dirty blocks' backing store fails, or which cannot be read; reads of other
/// blocks in memory, and a clock that hardly moves; then the fault ends.
#[test]
fn a_cap_that_cannot_be_met_costs_little() {
    for is_sick in [false, true] {
        let mut host = Host::new(spec([4, 4, 16]), &[volume(1, 1, 64), volume(2, 0, 64)], 1);
        write(&mut host, 0, 8, 7);
        if is_sick {
            host.unreadable.extend((0..8).map(key));
            (0..8).for_each(|block| drop(host.run(ONE, read(block, 1), 0)));
        } else {
            host.backing_fault = Some(ErrorKind::Full);
        }
        let mut capped = host.specs[0].clone();
        capped.shares[2].cap = 4;
        host.cache.set_volume(&capped).expect("the cap is sound");
        host.tick(Nanos::from_millis(1));
        host.settle();
        let (walks, start) = (host.cache.effort.caps_walks, host.now);
        for _ in 0..1000 {
            host.run(VolumeId(2), read(0, 1), 0);
            host.tick(Nanos::from_micros(100));
            host.settle();
        }
        let pauses = host.now.since(start).0 / CAPS_PAUSE.0 + 1;
        let walks = u64::from(host.cache.effort.caps_walks - walks);
        assert!(walks <= pauses, "{walks} walks in {pauses} pauses, sick: {is_sick}");
        assert!(host.cache.next_deadline(host.now) <= host.now + Nanos::from_secs(1));
        host.backing_fault = None;
        host.unreadable.clear();
        if is_sick {
            write(&mut host, 0, 8, 9);
        }
        host.wait(3);
        assert!(host.cache.held_by(ONE, SSD).0 <= 4, "sick: {is_sick}");
    }
}
