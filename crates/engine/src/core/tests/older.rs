//! Older copies of levels, with what says how far they had come torn or damaged.

use super::*;
use crate::control::StartReport;
use crate::io::{Image, IoOperation, run_alone};
use crate::store::layout::{get_u32, get_u64};
use layby_types::Seq;

/// Where the two copies of the NVM level's mark lie.
const MARKS: [u64; 2] = [BLOCK, BLOCK + 512];

fn fill(world: &mut World, value: u8) {
    let mut write = call(Operation::Write, 0, 8 * BLOCK);
    write.flags.fua = true;
    for volume in [1, 2] {
        world.run(volume, write, value).expect("sound disks");
    }
}

fn cut(world: &mut World) {
    world.io.crash(CrashMode::KeepAll);
}

/// Starts and notes how far the levels have come.
fn restart(world: &mut World) -> Known {
    let mut known = Known::default();
    for (level, reached) in world.restart().reached {
        known[level] = Some(reached);
    }
    known
}

fn start_with(world: &mut World, known: &Known) -> Result<StartReport, CoreError> {
    let disks = (world.nvm, world.ssd, &world.homes[..]);
    let (core, report) = try_start(&mut world.io, &world.shape, disks, false, world.seed, known)?;
    world.core = core;
    Ok(report)
}

/// A node with version 2 of its blocks, copies of its levels with version 1, and how far they came.
fn aged(seed: u64) -> (World, [Image; 2], Known) {
    let persistent = seed.is_multiple_of(2);
    let mut world = World::new(seed, Shape { persistent, ..Shape::roomy() });
    fill(&mut world, 1);
    cut(&mut world);
    let copies = [world.io.image(world.nvm), world.io.image(world.ssd)];
    let known = restart(&mut world);
    fill(&mut world, 2);
    cut(&mut world);
    (world, copies, known)
}

/// Goal: an older copy of the NVM level is refused, also where power loss tore either of its marks
/// (a simulated run found that it was not, 8910032127), and the level itself starts with either
/// mark torn. Method: each mark damaged, in the copy and in the level.
#[test]
fn a_torn_mark_hides_no_age() {
    for seed in 0..40 {
        for mark in MARKS {
            let (mut world, [copy, _], known) = aged(seed);
            let right = world.io.image(world.nvm);
            world.io.put_image(world.nvm, copy);
            world.io.corrupt(world.nvm, mark, 16);
            assert_older(&mut world, &known);
            world.io.put_image(world.nvm, right);
            world.io.corrupt(world.nvm, mark, 16);
            start_with(&mut world, &known).expect("one mark is sound");
            assert_eq!(world.read(1, 0, BLOCK), Ok(vec![2; BLOCK as usize]), "SEED={seed}");
        }
    }
}

/// Goal: an older copy of the NVM level is refused though headers in it have higher numbers than
/// what is known, of stores that were torn (a simulated run found that it was not, 8951002196).
/// Method: a copy with the headers of the level, whose data it lacks.
#[test]
fn a_torn_header_hides_no_age() {
    for seed in 0..40 {
        let (mut world, [copy, _], known) = aged(seed);
        let bytes = world.io.peek(world.nvm);
        world.io.put_image(world.nvm, copy);
        let is_data = |block: &[u8]| [1, 2].iter().any(|value| block.iter().all(|b| b == value));
        let first = bytes.chunks(BLOCK as usize).position(is_data).expect("it holds both");
        let headers = &bytes[2 * BLOCK as usize..first * BLOCK as usize];
        let mut buffer = world.io.buffer(headers.len());
        buffer.copy_from_slice(headers);
        let (disk, offset, durable) = (world.nvm, 2 * BLOCK, true);
        run_alone(&mut world.io, IoOperation::Write { disk, offset, buffer, durable })
            .expect("a sound disk");
        assert_older(&mut world, &known);
    }
}

/// Goal: an older copy of a log is refused, also where the trailer of its newest checkpoint is
/// torn, and so is a log that lost the trailer of its newest checkpoint, of which nothing else is
/// newer. Method: a copy from before a start, and a start after which nothing is written; two
/// sectors of both pages of the newest trailer in each.
#[test]
fn a_torn_trailer_hides_no_age() {
    for seed in 0..40 {
        let (mut world, [_, copy], known) = aged(seed);
        let right = world.io.image(world.ssd);
        world.io.put_image(world.ssd, copy);
        rot_newest_trailer(&mut world);
        assert_older(&mut world, &known);
        world.io.put_image(world.ssd, right);
        let known = restart(&mut world);
        cut(&mut world);
        rot_newest_trailer(&mut world);
        assert_older(&mut world, &known);
    }
}

/// Goal: a level that was made another time is not called older, as it may be newer, and is refused
/// however far it came. Method: another instance known, of either level.
#[test]
fn another_instance_is_no_older_copy() {
    for level in [1, 2] {
        let (mut world, _, mut known) = aged(level as u64);
        let mut of = known[level].expect("it told how far it came");
        (of.instance, of.seq) = (!of.instance, Seq(0));
        known[level] = Some(of);
        let refused = start_with(&mut world, &known).err();
        let is_other = |error: &CoreError| {
            let CoreError::Store { level: its, error } = error else { return false };
            *its == level && matches!(error, StoreError::OtherInstance { .. })
        };
        assert!(refused.as_ref().is_some_and(is_other), "{refused:?}");
    }
}

fn rot_newest_trailer(world: &mut World) {
    let bytes = world.io.peek(world.ssd);
    let block = |number: u64| &bytes[(number * BLOCK) as usize..][..BLOCK as usize];
    let areas = [1, 1 + u64::from(get_u32(block(0), 80))];
    let newest = areas.into_iter().max_by_key(|area| get_u64(block(*area), 16));
    let at = newest.expect("there are two") * BLOCK;
    for byte in [16, 528, BLOCK + 16, BLOCK + 528] {
        world.io.corrupt(world.ssd, at + byte, 8);
    }
}

fn assert_older(world: &mut World, known: &Known) {
    let refused = start_with(world, known).err();
    let is_older = |error: &CoreError| {
        matches!(error, CoreError::Store { error: StoreError::Older { .. }, .. })
    };
    assert!(refused.as_ref().is_some_and(is_older), "SEED={}: {refused:?}", world.seed);
    cut(world);
}
