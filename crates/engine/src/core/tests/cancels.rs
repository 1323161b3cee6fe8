//! Writes that cancel what waits under them: fewer discards, the same zeros and the same bytes.

use super::discards::{
    HOME, VOLUME, checkpoint, home_block, set, stats, trim, turn_until, waiting,
};
use super::faults::write_block;
use super::*;
use crate::io::OperationKind;
use layby_cache::discards::{DiscardCause, DiscardMode};
use rustix::io::Errno;
use std::cell::Cell;

const MODES: [CrashMode; 3] = [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll];

fn blocks(world: &mut World) -> Vec<u8> {
    let data = world.read(VOLUME, 0, 8 * BLOCK).expect("a read");
    data.chunks_exact(BLOCK as usize)
        .map(|block| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a mixture");
            block[0]
        })
        .collect()
}

fn rewrite(world: &mut World, range: std::ops::Range<u64>) {
    for block in range {
        write_block(world, VOLUME, block, 41).expect("a write");
    }
}

/// Whether the hour has not passed yet, over which the simulated time jumps in some lives.
fn has_waited(world: &World) -> bool {
    stats(world).counters.sent_by[DiscardCause::Delay as usize] == 0
}

/// Goal: a write over all that waits has nothing sent, and is as durable as any: at home, across
/// power cuts, also where a checkpoint lies between. Method: trims of four blocks in one and in two
/// pieces, all written again and sent home; a crash of each kind, twice.
#[test]
fn a_rewrite_cancels_what_waits() {
    let waited = Cell::new(0);
    each_seed(60, |seed| {
        for mode in MODES {
            let mut world = waiting(seed);
            trim(&mut world, 2, 4);
            if seed % 3 == 0 {
                checkpoint(&mut world);
            }
            rewrite(&mut world, 2..6);
            world.drain().expect("it does not wait for an hour");
            let counters = stats(&world).counters;
            if has_waited(&world) {
                waited.set(waited.get() + 1);
                assert_eq!(counters.sent.ranges, 0, "SEED={seed}: {counters:?}");
                assert_eq!(counters.cancelled.bytes, 4 * BLOCK, "SEED={seed}: {counters:?}");
                assert_eq!(stats(&world).pending.ranges, 0);
            }
            assert!((2..6).all(|block| home_block(&world, block) == 41), "SEED={seed}");
            let expected = [40, 40, 41, 41, 41, 41, 40, 40];
            for when in ["at once", "after a crash", "after two"] {
                assert_eq!(blocks(&mut world), expected, "{when}; SEED={seed}");
                world.crash(mode);
            }
        }
    });
    assert!(waited.get() > 60, "the home had heard of nothing in most lives: {}", waited.get());
}

/// Goal: a write at the edge of what waits cancels its part, and the rest goes at once, so that the
/// write is not kept waiting. Method: half of a trim is written again.
#[test]
fn a_rewrite_of_a_part_sends_the_rest() {
    let waited = Cell::new(0);
    each_seed(40, |seed| {
        let mut world = waiting(seed);
        trim(&mut world, 0, 4);
        rewrite(&mut world, 0..2);
        world.drain().expect("it does not wait for an hour");
        let counters = stats(&world).counters;
        if has_waited(&world) {
            waited.set(waited.get() + 1);
            assert_eq!((counters.cancelled.bytes, counters.sent.bytes), (2 * BLOCK, 2 * BLOCK));
            assert_eq!(counters.sent_by[DiscardCause::Write as usize], 1);
        }
        let home: Vec<u8> = (0..5).map(|block| home_block(&world, block)).collect();
        assert_eq!(home, [41, 41, 0, 0, 40], "SEED={seed}");
        world.crash(CrashMode::DropAll);
        assert_eq!(blocks(&mut world), [41, 41, 0, 0, 40, 40, 40, 40], "SEED={seed}");
    });
    assert!(waited.get() > 10, "the home had heard of nothing in most lives: {}", waited.get());
}

/// Goal: a power cut at any moment of a write that cancels finds the new bytes, which were flushed
/// before, and zeros beside them. Method: the write home, cut short after every number of turns, a
/// crash of each kind, then what went on where it was left, cut short again.
#[test]
fn a_power_cut_at_any_turn_loses_nothing() {
    let cut_early = Cell::new(0);
    each_seed(16, |seed| {
        for turns in 0..40 {
            let mode = MODES[(seed as usize + turns) % 3];
            let mut world = waiting(seed);
            trim(&mut world, 1, 5);
            if turns % 4 == 3 {
                checkpoint(&mut world);
            }
            rewrite(&mut world, if seed % 2 == 0 { 1..6 } else { 1..4 });
            world.run(VOLUME, call(Operation::Flush, 0, 0), 0).expect("a flush");
            let end = if seed % 2 == 0 { 6 } else { 4 };
            let expected: Vec<u8> = (0..8)
                .map(|block| match block {
                    1..6 if block < end => 41,
                    1..6 => 0,
                    _ => 40,
                })
                .collect();
            for _ in 0..2 {
                world.core.drain(&mut world.io, 5, None);
                for _ in 0..turns {
                    if world.core.take_drained().is_empty() {
                        world.core.turn(&mut world.io);
                    }
                }
                cut_early.set(cut_early.get() + u32::from(!world.core.cancels.is_empty()));
                world.crash(mode);
                assert_eq!(blocks(&mut world), expected, "{turns} turns, {mode:?}; SEED={seed}");
            }
            world.drain().expect("the home takes it");
            world.crash(CrashMode::DropAll);
            assert_eq!(blocks(&mut world), expected, "in the end; SEED={seed}");
        }
    });
    assert!(cut_early.get() > 20, "many cuts met such a write: {}", cut_early.get());
}

/// Goal: a write that the home refuses cancels nothing: its part waits on, the bytes stay dirty
/// above, and both reach the home in the end. Method: one failure; then the home works.
#[test]
fn a_refused_write_cancels_nothing() {
    let waited = Cell::new(0);
    each_seed(20, |seed| {
        let mut world = waiting(seed);
        trim(&mut world, 0, 4);
        rewrite(&mut world, 0..3);
        world.io.fail_next(world.homes[HOME], OperationKind::Write, Errno::IO);
        let refused = world.drain();
        if !has_waited(&world) {
            return;
        }
        waited.set(waited.get() + 1);
        assert!(refused.is_err(), "the home refuses; SEED={seed}");
        assert_eq!(stats(&world).counters.cancelled.bytes, 0, "SEED={seed}");
        assert_eq!(blocks(&mut world), [41, 41, 41, 0, 40, 40, 40, 40], "SEED={seed}");
        let cleared = |world: &World| world.core.cancels.is_empty();
        assert!(cleared(&world));
        set(&mut world, DiscardMode::Immediate);
        turn_until(&mut world, |world| stats(world).pending.ranges == 0);
        world.crash(MODES[seed as usize % 3]);
        assert_eq!(blocks(&mut world), [41, 41, 41, 0, 40, 40, 40, 40], "SEED={seed}");
        world.drain().expect("the home works again");
        let home: Vec<u8> = (0..5).map(|block| home_block(&world, block)).collect();
        assert_eq!(home, [41, 41, 41, 0, 40], "SEED={seed}");
    });
    assert!(waited.get() > 5, "the home had heard of nothing in most lives: {}", waited.get());
}

/// Goal: where the home refuses the rest, a write that waits for it fails and is tried again; a
/// home whose sync fails ends it for good. Neither loses anything. Method: one failure of each.
#[test]
fn a_refused_rest_ends_the_write() {
    for kind in [OperationKind::Zero, OperationKind::Sync] {
        each_seed(20, |seed| {
            let mut world = waiting(seed);
            trim(&mut world, 0, 4);
            rewrite(&mut world, 0..2);
            world.run(VOLUME, call(Operation::Flush, 0, 0), 0).expect("a flush");
            world.io.fail_next(world.homes[HOME], kind, Errno::IO);
            let refused = world.drain();
            if !has_waited(&world) {
                return;
            }
            assert!(refused.is_err(), "{kind:?}; SEED={seed}");
            assert!(world.core.cancels.is_empty());
            let expected = [41, 41, 0, 0, 40, 40, 40, 40];
            assert_eq!(blocks(&mut world), expected, "{kind:?}; SEED={seed}");
            world.crash(MODES[seed as usize % 3]);
            assert_eq!(blocks(&mut world), expected, "{kind:?}, a crash; SEED={seed}");
            world.drain().expect("the home works again");
            world.crash(CrashMode::DropAll);
            assert_eq!(blocks(&mut world), expected, "{kind:?}, in the end; SEED={seed}");
        });
    }
}

/// Drains in steps of time that are far shorter than a discard's delay; `None` when it has not
/// ended after ten seconds.
fn drain_soon(world: &mut World) -> Option<Result<(), ErrorKind>> {
    let until = world.io.now() + Nanos::from_secs(10);
    world.core.drain(&mut world.io, 5, None);
    while world.io.now() < until {
        let latest = world.io.now() + Nanos::from_millis(20);
        world.core.turn_by(&mut world.io, latest);
        if let Some((_, result)) = world.core.take_drained().pop() {
            return Some(result);
        }
    }
    None
}

/// Goal: a write whose tombstone's rest the home refuses ends soon in either order of the two ends,
/// and so does one that is held back for another part of the tombstone; neither waits for the
/// discard's delay of an hour. (Simulated run 992055230.) Method: trims of four blocks, writes over
/// a part, one refusal, drains in short steps.
#[test]
fn a_refused_rest_does_not_wait_for_the_delay() {
    each_seed(200, |seed| {
        let mut world = waiting(seed);
        trim(&mut world, 0, 4);
        rewrite(&mut world, 0..2);
        world.run(VOLUME, call(Operation::Flush, 0, 0), 0).expect("a flush");
        if !has_waited(&world) {
            return;
        }
        world.io.fail_next(world.homes[HOME], OperationKind::Zero, Errno::IO);
        let refused = drain_soon(&mut world);
        assert!(matches!(refused, Some(Err(_))), "SEED={seed}: {refused:?}");
        assert_eq!(drain_soon(&mut world), Some(Ok(())), "SEED={seed}");
        assert_eq!(blocks(&mut world), [41, 41, 0, 0, 40, 40, 40, 40], "SEED={seed}");
        world.crash(MODES[seed as usize % 3]);
        assert_eq!(blocks(&mut world), [41, 41, 0, 0, 40, 40, 40, 40], "a crash, SEED={seed}");
    });
}
