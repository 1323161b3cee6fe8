//! Devices that rot, fail or fill up under a core: no wrong bytes, and nothing lost that was kept.

use super::*;
use crate::io::OperationKind;
use layby_types::BlockIndex;
use rustix::io::Errno;

/// No time for destaging by itself, and no copies elsewhere that would answer first.
pub(super) fn quiet() -> Shape {
    let mut shape = Shape::roomy();
    shape.spec.writeback.idle_timeout = Nanos::NEVER;
    shape.spec.read_ahead.window_bytes_max = 0;
    shape.spec.classes.iter_mut().for_each(|class| class.borrow = false);
    shape
}

pub(super) fn write_block(
    world: &mut World,
    volume: u32,
    block: u64,
    value: u8,
) -> Result<(), ErrorKind> {
    world.run(volume, call(Operation::Write, block * BLOCK, BLOCK), value).map(drop)
}

pub(super) fn is_all(data: &[u8], value: u8) -> bool {
    data.iter().all(|byte| *byte == value)
}

/// Where a disk holds a block of this value.
pub(super) fn find_block(world: &World, disk: DiskId, value: u8) -> u64 {
    let bytes = world.io.peek(disk);
    let at = bytes.chunks(BLOCK as usize).rposition(|block| is_all(block, value));
    at.expect("the block is on the disk") as u64 * BLOCK
}

pub(super) fn was_corrupt_noticed(world: &mut World) -> bool {
    world.core.take_notices().iter().any(|notice| matches!(notice, Notice::Corrupt(_)))
}

/// A volume of the normal class with five blocks, all in the log; block 2 is of value 77.
pub(super) fn five_blocks(seed: u64, drained: bool) -> (World, u64) {
    let mut world = World::new(seed, quiet());
    for block in 0..5 {
        let value = if block == 2 { 77 } else { 10 + block as u8 };
        write_block(&mut world, 2, block, value).expect("a write");
    }
    world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
    // Only a later record vouches for a flushed one; without it, rot looks like a torn write.
    let mut later = call(Operation::Write, 7 * BLOCK, BLOCK);
    later.flags.fua = true;
    world.run(2, later, 1).expect("a durable write");
    if drained {
        world.drain().expect("a drain");
    }
    let at = find_block(&world, world.ssd, 77);
    (world, at)
}

/// Goal: a clean block that rots in the log is fetched again. Method: bits flipped, or the sector
/// unreadable; two reads, then a partial write into another such block.
#[test]
fn a_rotten_clean_block_heals() {
    each_seed(20, |seed| {
        for unreadable in [false, true] {
            for merges in [false, true] {
                let (mut world, at) = five_blocks(seed, true);
                match unreadable {
                    true => world.io.fail_reads(world.ssd, at, 512),
                    false => world.io.corrupt(world.ssd, at, BLOCK),
                }
                if merges {
                    let write = call(Operation::Write, 2 * BLOCK, CELL);
                    world.run(2, write, 77).expect("a merge heals first");
                }
                for _ in 0..2 {
                    let data = world.read(2, 0, 5 * BLOCK).expect("it is fetched again");
                    assert!(is_all(&data[2 * BLOCK as usize..][..BLOCK as usize], 77));
                    assert!(is_all(&data[..BLOCK as usize], 10));
                }
                assert!(unreadable || was_corrupt_noticed(&mut world), "SEED={seed}");
            }
        }
    });
}

/// Goal: a dirty block that rots in the log is an error to whoever reads it, never wrong bytes;
/// its neighbours stay readable and a whole write mends it. Method: bits flipped, or the sector
/// unreadable; reads, a drain, a crash, a rewrite.
#[test]
fn a_rotten_dirty_block_is_an_error() {
    each_seed(20, |seed| {
        for (unreadable, crashes) in [(false, false), (false, true), (true, false)] {
            let (mut world, at) = five_blocks(seed, false);
            match unreadable {
                true => world.io.fail_reads(world.ssd, at, 512),
                false => world.io.corrupt(world.ssd, at, BLOCK),
            }
            if crashes {
                world.io.crash(CrashMode::KeepAll);
                world.restart();
            }
            world.read(2, 0, 5 * BLOCK).map(drop).expect_err("bad bytes are nobody's");
            world.read(2, 2 * BLOCK, BLOCK).map(drop).expect_err("bad bytes are nobody's");
            let data = world.read(2, 3 * BLOCK, 2 * BLOCK).expect("the neighbours are sound");
            assert!(is_all(&data[..BLOCK as usize], 13), "SEED={seed}");
            world.drain().expect_err("one block cannot go home");
            world.read(2, 2 * BLOCK, BLOCK).map(drop).expect_err("the home's version is older");
            write_block(&mut world, 2, 2, 78).expect("a whole write mends it");
            world.drain().expect("all is sound again");
            let data = world.read(2, 2 * BLOCK, BLOCK).expect("it was mended");
            assert!(is_all(&data, 78), "SEED={seed}");
        }
    });
}

/// Goal: a home that cannot be read is an error, and a write mends it. Method: an unreadable
/// sector of the home below an empty cache.
#[test]
fn an_unreadable_home_is_an_error() {
    each_seed(20, |seed| {
        let mut world = World::new(seed, quiet());
        world.io.fail_reads(world.homes[1], 2 * BLOCK + 512, 512);
        world.read(2, 2 * BLOCK, BLOCK).map(drop).expect_err("the sector is bad");
        world
            .run(2, call(Operation::Write, 2 * BLOCK, 512), 5)
            .map(drop)
            .expect_err("it cannot merge");
        assert!(is_all(&world.read(2, 3 * BLOCK, BLOCK).expect("a sound neighbour"), 0));
        write_block(&mut world, 2, 2, 9).expect("a whole write needs no read");
        world.drain().expect("the home takes it");
        assert!(is_all(&world.read(2, 2 * BLOCK, BLOCK).expect("a mended sector"), 9));
    });
}

/// Goal: with a full home writes end well or with `Full`, what was acknowledged stays readable and
/// survives a crash, and all goes on once there is room. Method: more blocks than the log holds.
#[test]
fn a_full_home_loses_nothing() {
    each_seed(20, |seed| {
        let mut shape = quiet();
        shape.ssd_bytes = 106 * BLOCK;
        let mut world = World::new(seed, shape);
        world.io.set_full(world.homes[1], true);
        let mut kept = Vec::new();
        let mut refused = 0;
        for block in 0..BLOCKS {
            match write_block(&mut world, 2, block, block as u8 + 1) {
                Ok(()) => kept.push(block),
                Err(kind) => {
                    assert_eq!(kind, ErrorKind::Full, "replay with SEED={seed}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0 && !kept.is_empty(), "{refused} refused; replay with SEED={seed}");
        world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush needs no home");
        let check = |world: &mut World| {
            for block in &kept {
                let data = world.read(2, block * BLOCK, BLOCK).expect("an acknowledged block");
                assert!(is_all(&data, *block as u8 + 1), "block {block}; replay with SEED={seed}");
            }
        };
        check(&mut world);
        world.crash(CrashMode::DropAll);
        check(&mut world);
        world.io.set_full(world.homes[1], false);
        while world.drain().is_err() {
            assert!(world.io.now() < Nanos::from_secs(1000), "replay with SEED={seed}");
        }
        check(&mut world);
        for block in 0..BLOCKS {
            write_block(&mut world, 2, block, 99).expect("there is room again");
        }
    });
}

/// Goal: a trim that fails below leaves its range as it was, or all zeros after a crash, and never
/// brings back what was there before the acknowledged writes. Method: an old version at home, a new
/// one flushed in the log, a zeroing that fails; reads, flushes and crashes at every point.
#[test]
fn a_failed_zeroing_changes_nothing() {
    each_seed(40, |seed| {
        let mut world = World::new(seed, quiet());
        (0..4).for_each(|block| write_block(&mut world, 2, block, 40).expect("a write"));
        world.drain().expect("the home takes it");
        (0..4).for_each(|block| write_block(&mut world, 2, block, 41).expect("a write"));
        world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
        world.io.fail_next(world.homes[1], OperationKind::Zero, Errno::IO);
        world.run(2, call(Operation::Trim, 0, 3 * BLOCK), 0).map(drop).expect_err("no zeroing");
        let settles = seed.is_multiple_of(2);
        if settles {
            assert!(is_all(&world.read(2, 0, 4 * BLOCK).expect("still there"), 41));
            write_block(&mut world, 2, 1, 42).expect("a write into the range");
            write_block(&mut world, 2, 9, 1).expect("a write elsewhere");
            world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
        }
        if seed.is_multiple_of(4) {
            world.drain().expect("the home is well again");
        }
        world.crash(CrashMode::DropAll);
        let data = world.read(2, 0, 4 * BLOCK).expect("nothing is lost");
        let block = |index: usize| &data[index * BLOCK as usize..][..BLOCK as usize];
        assert!(is_all(block(3), 41), "outside; replay with SEED={seed}");
        let first = if settles { 41 } else { block(0)[0] };
        assert!(first == 41 || first == 0, "{first}; replay with SEED={seed}");
        assert!(is_all(block(0), first) && is_all(block(2), first), "replay with SEED={seed}");
        assert!(is_all(block(1), if settles { 42 } else { first }), "replay with SEED={seed}");
        world.drain().expect("the home is well again");
        assert_eq!(world.read(2, 0, 4 * BLOCK).expect("nothing is lost"), data, "SEED={seed}");
    });
}

/// Goal: what a home shows after a zeroing that failed halfway stays; records of blocks that had
/// left the log do not come back over it. Method: other blocks take their room first; where a
/// checkpoint begins meanwhile, the trim is answered before its home has failed it.
#[test]
fn a_failed_zeroing_revives_no_dropped_record() {
    let failed = std::cell::Cell::new(0);
    each_seed(40, |seed| {
        let mut shape = quiet();
        shape.ssd_bytes = 116 * BLOCK;
        let mut world = World::new(seed, shape);
        for block in 0..BLOCKS {
            write_block(&mut world, 2, block, 40).expect("a write");
            world.drain().expect("the home takes it");
        }
        let is_stored = |block| world.core.cache.is_stored(VolumeId(2), BlockIndex(block));
        let gone = (0..BLOCKS).rev().find(|block| !is_stored(*block));
        let at = gone.expect("there is not room for all") * BLOCK;
        world.io.fail_next(world.homes[1], OperationKind::Zero, Errno::IO);
        let result = world.run(2, call(Operation::Trim, at, BLOCK), 0);
        failed.set(failed.get() + u32::from(result.is_err()));
        let seen = world.read(2, at, BLOCK).expect("the home can be read");
        assert!(result.is_err() || is_all(&seen, 0), "replay with SEED={seed}");
        world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
        world.crash(CrashMode::KeepAll);
        let found = world.read(2, at, BLOCK).expect("the home can be read");
        let mut cells = seen.chunks(512).zip(found.chunks(512));
        let is_kept = |(seen, found): (&[u8], &[u8])| seen == found || is_all(found, 0);
        assert!(cells.all(is_kept), "replay with SEED={seed}");
    });
    assert!(failed.get() > 10, "no checkpoint began in most lives: {}", failed.get());
}

/// Goal: a clean block that the NVM level holds over a home that failed to zero it goes home again,
/// whatever is forgotten of the zeroing. Method: a drained block, a zeroing that fails halfway; a
/// checkpoint and a power cut, or two power cuts, the second one after recovery; then a drain.
#[test]
fn a_failed_zeroing_makes_clean_blocks_dirty() {
    each_seed(40, |seed| {
        let mut world = World::new(seed, quiet());
        write_block(&mut world, 1, 2, 77).expect("a durable write");
        world.drain().expect("the home takes it");
        world.io.fail_next(world.homes[0], OperationKind::Zero, Errno::IO);
        let zero = call(Operation::WriteZeroes, 2 * BLOCK, BLOCK);
        world.run(1, zero, 0).map(drop).expect_err("the home fails it");
        match seed % 2 {
            0 => assert!(world.core.end_with_checkpoint(&mut world.io)),
            _ => drop(world.crash(CrashMode::KeepAll)),
        }
        world.crash(CrashMode::KeepAll);
        let read = world.read(1, 2 * BLOCK, BLOCK).expect("a read");
        world.drain().expect("the home is well again");
        let home = world.io.peek(world.homes[0])[2 * BLOCK as usize..][..BLOCK as usize].to_vec();
        assert!(read == home, "a clean block and its home differ; replay with SEED={seed}");
    });
}

/// Goal: what a home shows after a failed zeroing stays, also over a power cut: a copy of it that
/// rose meanwhile must not say otherwise. Method: a block that only the home holds; its zeroing
/// fails halfway; it is read into the log, a checkpoint makes that durable; the power is cut.
#[test]
fn a_failed_zeroing_is_decided() {
    each_seed(40, |seed| {
        let mut shape = quiet();
        shape.spec.classes[1].levels = 0b001;
        let mut world = World::new(seed, shape);
        write_block(&mut world, 2, 2, 77).expect("a write through");
        world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
        world.shape.spec.classes[1].levels = 0b101;
        world.shape.spec.classes[1].keep_reads = true;
        world.crash(CrashMode::KeepAll);
        world.io.fail_next(world.homes[1], OperationKind::Zero, Errno::IO);
        let zero = call(Operation::WriteZeroes, 2 * BLOCK, BLOCK);
        world.run(2, zero, 0).map(drop).expect_err("the home fails it");
        world.read(2, 2 * BLOCK, BLOCK).expect("a read, which keeps a copy");
        world.core.end_with_checkpoint(&mut world.io);
        world.crash(CrashMode::DropAll);
        let after = world.read(2, 2 * BLOCK, BLOCK).expect("a read");
        world.drain().expect("the home is well again");
        let home = world.io.peek(world.homes[1])[2 * BLOCK as usize..][..BLOCK as usize].to_vec();
        assert!(after == home, "a clean copy and the home differ; replay with SEED={seed}");
    });
}

/// Goal: a write that goes home past the levels, where the log may have older records of its block,
/// leaves the old version or the new one, never zeros; by sector, since it goes to the backing
/// store as it is. Method: a volume whose class loses the SSD level, a write, and a power cut after
/// every number of turns.
#[test]
fn a_write_past_the_levels_is_never_zeroed() {
    let mut seen = [0; 2];
    for turns in 0..40 {
        for mode in [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll] {
            let mut shape = quiet();
            let bare = layby_cache::ClassSpec { levels: 0b001, ..shape.spec.classes[1].clone() };
            shape.spec.classes.push(bare);
            let mut world = World::new(turns, shape);
            write_block(&mut world, 2, 0, 40).expect("a write");
            world.drain().expect("the home takes it");
            let spec = VolumeSpec {
                id: VolumeId(2),
                class: ClassId(2),
                length: BLOCKS * BLOCK,
                shares: [Share::OPEN; LEVELS_MAX],
                write_through: false,
            };
            world.core.cache().set_volume(&spec).expect("a class without persistent levels");
            (0..100).for_each(|_| world.core.turn(&mut world.io));
            assert_eq!(world.core.cache().held_by(VolumeId(2), LevelIndex(2)).0, 0);
            let write = call(Operation::Write, 0, BLOCK);
            let payload = [50; BLOCK as usize];
            world.core.submit(&mut world.io, Asker(1), VolumeId(2), write, &payload, None);
            (0..turns).for_each(|_| world.core.turn(&mut world.io));
            world.crash(mode);
            let data = world.read(2, 0, BLOCK).expect("a read");
            for sector in data.chunks(512) {
                let found = [40, 50].iter().position(|value| is_all(sector, *value));
                seen[found.unwrap_or_else(|| panic!("{} after {turns} turns", sector[0]))] += 1;
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

/// Goal: of a write that fails when a part of it is stored already, a client that has read and
/// flushed sees the same after power loss. Method: a write over two segments of the log, whose
/// device is full from some turn on; a read, a flush, power loss, a read.
#[test]
fn a_write_that_failed_in_part_stays_as_it_was_seen() {
    let parts = std::cell::Cell::new([0, 0]);
    each_seed(60, |seed| {
        for is_new in [true, false] {
            let mut shape = quiet();
            // A first read leaves no copy in the log, which would be a newer record.
            shape.spec.classes[1].admission = AdmissionKind::SecondMiss;
            let mut world = World::new(seed, shape);
            let blocks = BLOCKS - 1;
            if !is_new {
                world.run(2, call(Operation::Write, 0, blocks * BLOCK), 40).expect("a write");
            }
            // So that the first segment has little room left.
            (0..seed % 20).for_each(|_| write_block(&mut world, 2, blocks, 1).expect("a write"));
            let payload = vec![41; (blocks * BLOCK) as usize];
            let write = call(Operation::Write, 0, blocks * BLOCK);
            world.core.submit(&mut world.io, Asker(u64::MAX), VolumeId(2), write, &payload, None);
            (0..seed % 7).for_each(|_| world.core.turn(&mut world.io));
            world.io.set_full(world.ssd, true);
            let finished = (0..TURNS_MAX).find_map(|_| {
                world.core.turn(&mut world.io);
                world.core.take_finished()
            });
            let result = finished.expect("it ends").result;
            world.io.set_full(world.ssd, false);
            let seen = world.read(2, 0, blocks * BLOCK).expect("a read");
            let stored = world.io.peek(world.ssd);
            let is_part = result.is_err() && stored.chunks(BLOCK as usize).any(|b| is_all(b, 41));
            let mut counts = parts.get();
            counts[usize::from(is_new)] += usize::from(is_part);
            parts.set(counts);
            world.run(2, call(Operation::Flush, 0, 0), 0).expect("a flush");
            world.crash(CrashMode::KeepAll);
            let found = world.read(2, 0, blocks * BLOCK).expect("a read");
            let differs =
                |block: &u64| found[(block * BLOCK) as usize] != seen[(block * BLOCK) as usize];
            assert_eq!((0..blocks).find(differs), None, "new {is_new}; replay with SEED={seed}");
        }
    });
    assert!(parts.get().iter().all(|count| *count > 0), "failed in part: {parts:?}");
}

/// Goal: a write that a device has done and answered with an error, and that it then refuses to
/// overwrite, does not come back behind a flush. Method: such a write; a read, a flush that must
/// not end well before the device overwrites the batch or a checkpoint passes it by; power loss.
#[test]
fn a_refused_write_does_not_come_back() {
    each_seed(40, |seed| {
        let mut shape = quiet();
        shape.spec.classes[1].admission = AdmissionKind::SecondMiss;
        let mut world = World::new(seed, shape);
        let old = if seed.is_multiple_of(2) { 40 } else { 0 };
        if old != 0 {
            write_block(&mut world, 2, 0, old).expect("a write");
        }
        // The overwriting is tried four times at once, and once by each flush.
        let refusals = 3 + (seed % 4) as u8;
        world.io.do_and_fail_next(world.ssd, refusals, Errno::IO);
        write_block(&mut world, 2, 0, 41).expect_err("the device says so");
        assert!(is_all(&world.read(2, 0, BLOCK).expect("a read"), old), "SEED={seed}");
        let is_flushed = world.run(2, call(Operation::Flush, 0, 0), 0).is_ok();
        assert!(is_flushed || refusals > 3, "SEED={seed}");
        if !is_flushed {
            let turns =
                (0..TURNS_MAX).find(|_| world.run(2, call(Operation::Flush, 0, 0), 0).is_ok());
            turns.expect("a flush ends well in the end");
        }
        world.crash(CrashMode::KeepAll);
        assert!(is_all(&world.read(2, 0, BLOCK).expect("a read"), old), "SEED={seed}");
    });
}

/// Goal: an SSD level whose writes fail at times, for long, costs those writes and nothing for
/// good: once it works again writes and flushes end well, and checkpoints too. Method: levels of a
/// few blocks, changes of all kinds by both classes while one device write in five or in two fails;
/// then none fails.
#[test]
fn a_flaky_ssd_level_fails_nothing_for_good() {
    each_seed(60, |seed| {
        let mut rng = Rng::new(seed ^ 0xf_1a4e);
        let mut world = World::new(seed, Shape::tiny(&mut rng));
        for round in 0..600 {
            if round % 40 == 0 {
                world.io.set_flaky(world.ssd, [0, 20, 50][rng.below(3) as usize]);
            }
            let (first, count) = (rng.below(BLOCKS - 8), 1 + rng.below(8));
            let operation = match rng.below(12) {
                0 => Operation::Trim,
                1 => Operation::WriteZeroes,
                2 => Operation::Flush,
                _ => Operation::Write,
            };
            let call = match operation {
                Operation::Flush => call(operation, 0, 0),
                _ => call(operation, first * BLOCK, count * BLOCK),
            };
            let _ = world.run(1 + rng.below(2) as u32, call, round as u8);
        }
        world.io.set_flaky(world.ssd, 0);
        let is_well = |world: &mut World| {
            (1..3).all(|volume| {
                write_block(world, volume, 1, 5).is_ok()
                    && world.run(volume, call(Operation::Flush, 0, 0), 0).is_ok()
            })
        };
        // Checkpoints rest for up to 1.6 s after several that failed.
        let first = (0..TURNS_MAX).find(|_| {
            world.core.turn(&mut world.io);
            is_well(&mut world)
        });
        assert!(first.is_some(), "SEED={seed}: writes fail for good");
        world.core.take_notices();
        for turn in 0..3_000 {
            world.core.turn(&mut world.io);
            let notices = world.core.take_notices();
            let is_failed = notices.iter().any(|note| matches!(note, Notice::CheckpointFailed));
            assert!(!is_failed || turn < 300, "SEED={seed}: checkpoints fail for good");
        }
        assert!(is_well(&mut world), "SEED={seed}: writes fail again");
    });
}
