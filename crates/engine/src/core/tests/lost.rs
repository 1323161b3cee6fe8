//! Structures damaged beyond their parity: a block is at its newest version or an error, for good.

use super::*;
use crate::store::layout::get_u64;
use layby_types::{BlockIndex, BlockKey};

const VOLUMES: [u32; 2] = [1, 2];

/// What each block of each volume holds: all bytes of one value, or nobody knows.
struct Model {
    blocks: Vec<Option<u8>>,
    next: u8,
}

impl Model {
    fn new() -> Model {
        Model { blocks: vec![Some(0); VOLUMES.len() * BLOCKS as usize], next: 0 }
    }

    fn of(&mut self, volume: u32, block: u64) -> &mut Option<u8> {
        &mut self.blocks[(u64::from(volume - 1) * BLOCKS + block) as usize]
    }

    fn lost(&self) -> usize {
        self.blocks.iter().filter(|block| block.is_none()).count()
    }

    /// One durable change, or a look.
    fn step(&mut self, world: &mut World, rng: &mut Rng) {
        let volume = VOLUMES[rng.below(2) as usize];
        let block = rng.below(BLOCKS);
        let count = (1 + rng.below(4)).min(BLOCKS - block);
        let blocks = block..block + count;
        let durable = |operation, offset, length| {
            let mut call = call(operation, offset, length);
            call.flags.fua = true;
            call
        };
        let whole = |operation| durable(operation, block * BLOCK, count * BLOCK);
        match rng.below(10) {
            0..=3 => {
                self.next = self.next % 250 + 1;
                world.run(volume, whole(Operation::Write), self.next).expect("a whole write");
                let value = self.next;
                blocks.for_each(|block| *self.of(volume, block) = Some(value));
            }
            4 => {
                let operation =
                    if rng.chance(1, 2) { Operation::Trim } else { Operation::WriteZeroes };
                world.run(volume, whole(operation), 0).expect("a zeroing");
                blocks.for_each(|block| *self.of(volume, block) = Some(0));
            }
            5 => {
                // The same bytes, so that a block stays of one value.
                let value = self.of(volume, block).unwrap_or(9);
                let write = durable(Operation::Write, block * BLOCK + CELL, CELL);
                let result = world.run(volume, write, value);
                assert_eq!(result.is_ok(), self.of(volume, block).is_some(), "{volume} {block}");
            }
            6 if rng.chance(1, 4) => {
                let result = world.drain();
                assert_eq!(result.is_ok(), self.lost() == 0, "SEED={}: {result:?}", world.seed);
            }
            _ => self.look(world, volume, block),
        }
    }

    fn look(&mut self, world: &mut World, volume: u32, block: u64) {
        let (found, seed) = (world.read(volume, block * BLOCK, BLOCK), world.seed);
        match *self.of(volume, block) {
            Some(value) => {
                let data = found.unwrap_or_else(|kind| {
                    panic!("volume {volume} block {block}: {kind}; replay with SEED={seed}")
                });
                let is = data.iter().all(|byte| *byte == value);
                assert!(is, "volume {volume} block {block}: {} for {value}; SEED={seed}", data[0]);
            }
            None => assert_eq!(found.err(), Some(ErrorKind::Corrupt), "SEED={seed}"),
        }
    }

    fn look_at_all(&mut self, world: &mut World) {
        for volume in VOLUMES {
            (0..BLOCKS).for_each(|block| self.look(world, volume, block));
        }
    }

    /// Takes what cannot be read after damage for lost; the rest must be as it was.
    fn lose(&mut self, world: &mut World) {
        for volume in VOLUMES {
            for block in 0..BLOCKS {
                if world.read(volume, block * BLOCK, BLOCK).is_err() {
                    *self.of(volume, block) = None;
                }
            }
        }
        self.look_at_all(world);
        let told: u64 = world.core.snapshot().volumes.iter().map(|volume| volume.lost).sum();
        assert_eq!(told, self.lost() as u64, "SEED={}", world.seed);
    }
}

/// Damages two sectors of one structure of the log, of both pages of a trailer, or both headers of
/// an NVM slot.
fn damage(world: &mut World, rng: &mut Rng) {
    if rng.chance(1, 8) {
        let geometry =
            crate::store::nvm_layout::NvmGeometry::plan(world.shape.nvm_bytes, BlockSize::MIN);
        let geometry = geometry.expect("it was formatted");
        let slot = rng.below(geometry.physical.into()) as u32;
        for at in [geometry.header_at(slot), geometry.copy_at(slot)] {
            world.io.corrupt(world.nvm, at, 32);
        }
        return;
    }
    let bytes = world.io.peek(world.ssd);
    let wanted: &[u8] =
        [&b"LAYBYBAT"[..], b"LAYBYCKC", b"LAYBYCKT", b"LAYBYSEG"][rng.below(4) as usize];
    let pages = bytes.chunks(BLOCK as usize).enumerate();
    let is_wanted = |page: &[u8]| page.starts_with(wanted) && is_vouched_for(&bytes, page);
    let found: Vec<usize> =
        pages.filter(|(_, page)| is_wanted(page)).map(|(index, _)| index).collect();
    if found.is_empty() {
        return;
    }
    let index = found[rng.below(found.len() as u64) as usize];
    let first = rng.below(7);
    let sectors = [first, (first + 1 + rng.below(6)) % 7];
    let page = |index: usize| &bytes[index * BLOCK as usize..][..BLOCK as usize];
    let twins = (index - 1..index + 2).filter(|twin| page(*twin) == page(index));
    let pages = if wanted == b"LAYBYCKT" { twins.collect() } else { vec![index] };
    for at in pages.into_iter().flat_map(|index| sectors.map(|it| index as u64 * BLOCK + it * 512))
    {
        world.io.corrupt(world.ssd, at, 512);
    }
}

/// Whether others vouch for what would be lost with a structure: what nobody vouches for may have
/// been torn, and is void.
fn is_vouched_for(bytes: &[u8], page: &[u8]) -> bool {
    let batches = || bytes.chunks(BLOCK as usize).filter(|page| page.starts_with(b"LAYBYBAT"));
    let at = match &page[..8] {
        b"LAYBYBAT" => 24,
        b"LAYBYSEG" => 16,
        _ => return true,
    };
    let is_lost = |batch: &[u8]| get_u64(batch, at) == get_u64(page, 24);
    batches().filter(|batch| is_lost(batch)).all(|lost| {
        let seq = get_u64(lost, 24);
        batches().filter(|batch| !is_lost(batch)).any(|batch| {
            let is_same_epoch = get_u64(batch, 32) == get_u64(lost, 32);
            let covers = is_same_epoch && get_u64(batch, 40) >= seq;
            covers || (1..4).any(|index| get_u64(batch, 68 + 12 * index) == seq)
        })
    })
}

/// Cuts the power. What is damaged is not sound to an outsider's eye.
fn cut(world: &mut World, mode: CrashMode) -> crate::control::StartReport {
    world.io.crash(mode);
    world.restart()
}

/// Goal: whatever structure is damaged beyond its parity, each block is at its newest version or an
/// error, and an error stays one, over power cuts and checkpoints, until the block is written
/// whole, trimmed or zeroed; then it is what was written, for good. Method: random durable changes
/// of two small volumes, damage at rest, and more of the same with power cuts, beside a model.
#[test]
fn undecided_blocks_are_errors_until_written() {
    let lost = std::cell::Cell::new(0);
    each_seed(120, |seed| {
        let mut rng = Rng::new(seed);
        let mut shape = Shape::tiny(&mut rng);
        // Nothing vouches for the last batch of the log, so that the last write must make one.
        shape.spec.classes[1].levels = 0b100;
        let mut world = World::new(seed, shape);
        let mut model = Model::new();
        for _ in 0..rng.below(200) {
            model.step(&mut world, &mut rng);
        }
        // It vouches for what was before it.
        model.next = 251;
        let mut last = call(Operation::Write, 0, BLOCK);
        last.flags.fua = true;
        world.run(2, last, 251).expect("a write");
        *model.of(2, 0) = Some(251);
        for round in 0..2 {
            world.io.crash(CrashMode::KeepAll);
            damage(&mut world, &mut rng);
            // The last batch of a stream may be taken for torn.
            let is_sound = |world: &mut World, model: &mut Model| {
                let found = world.read(2, 0, BLOCK);
                found.is_err() || Some(found.expect("it was just seen")[0]) == *model.of(2, 0)
            };
            let report = world.restart();
            if !is_sound(&mut world, &mut model) {
                return;
            }
            model.lose(&mut world);
            let told: u64 = report.undecided.iter().map(|range| range.blocks).sum();
            assert!(model.lost() as u64 >= told, "SEED={seed}, round {round}");
            lost.set(lost.get() + usize::from(told > 0));
            for _ in 0..120 {
                model.step(&mut world, &mut rng);
                if rng.chance(1, 15) {
                    let mode = [CrashMode::DropAll, CrashMode::KeepSome, CrashMode::KeepAll];
                    cut(&mut world, mode[rng.below(3) as usize]);
                }
            }
            cut(&mut world, CrashMode::DropAll);
            model.look_at_all(&mut world);
        }
    });
    assert!(lost.get() > 0 || std::env::var("SEED").is_ok(), "nothing was ever undecided");
}

/// Goal: a lost block of a volume that is written past the levels is known again once its write is
/// answered. Method: its class has no persistent level; a batch of the other volume is damaged, and
/// the next one, which has its copy.
#[test]
fn a_write_past_the_levels_finds_a_block() {
    let mut shape = faults::quiet();
    shape.spec.classes[0].levels = 0b100;
    shape.spec.classes[1].levels = 0b001;
    let (mut world, mut damaged) = (World::new(3, shape), Vec::new());
    for value in 1..5 {
        let mut write = call(Operation::Write, u64::from(value) * BLOCK, BLOCK);
        write.flags.fua = true;
        let owner =
            if world.core.cache().class_of(VolumeId(1)) == Some(ClassId(0)) { 1 } else { 2 };
        world.run(owner, write, value).expect("a write");
        if [2, 3].contains(&value) {
            damaged.push(faults::find_block(&world, world.ssd, value) - BLOCK);
        }
    }
    world.io.crash(CrashMode::KeepAll);
    for at in damaged {
        world.io.corrupt(world.ssd, at + 128, 32);
        world.io.corrupt(world.ssd, at + 1024, 32);
    }
    let report = world.restart();
    let volumes: Vec<VolumeId> = report.undecided.iter().map(|range| range.volume).collect();
    assert_eq!(volumes, VOLUMES.map(VolumeId));
    let is_past = |world: &mut World, volume| {
        world.core.cache().class_of(VolumeId(volume)) == Some(ClassId(1))
    };
    let past = VOLUMES.into_iter().find(|volume| is_past(&mut world, *volume)).expect("one is");
    assert_eq!(world.read(past, 5 * BLOCK, BLOCK).err(), Some(ErrorKind::Corrupt));
    faults::write_block(&mut world, past, 5, 77).expect("a whole write");
    assert!(!world.core.cache().is_stored(VolumeId(past), BlockIndex(5)), "it went home");
    for _ in 0..2 {
        let data = world.read(past, 5 * BLOCK, BLOCK).expect("it was written");
        assert!(faults::is_all(&data, 77));
        assert_eq!(world.read(past, 6 * BLOCK, BLOCK).err(), Some(ErrorKind::Corrupt));
        cut(&mut world, CrashMode::KeepAll);
    }
}

/// Goal: zeroes that damage has made undecided are not taken for owed: a write-protected volume
/// that nothing is to be written to is served. Method: a trim whose zeroes wait; two batches behind
/// it are damaged; a start with the protection.
#[test]
fn zeroes_that_are_undecided_are_not_owed() {
    let mut shape = faults::quiet();
    shape.spec.classes[0].levels = 0b100;
    let (mut world, mut damaged) = (World::new(3, shape), Vec::new());
    absent::delay_discards(&mut world);
    let mut trim = call(Operation::Trim, 0, 4 * BLOCK);
    trim.flags.fua = true;
    world.run(2, trim, 0).expect("a trim");
    for value in 1..5 {
        let mut write = call(Operation::Write, u64::from(value) * BLOCK, BLOCK);
        write.flags.fua = true;
        world.run(1, write, value).expect("a write");
        if [2, 3].contains(&value) {
            damaged.push(faults::find_block(&world, world.ssd, value) - BLOCK);
        }
    }
    world.io.crash(CrashMode::KeepAll);
    for at in damaged {
        world.io.corrupt(world.ssd, at + 128, 32);
        world.io.corrupt(world.ssd, at + 1024, 32);
    }
    world.shape.protected = Some(2);
    let report = world.restart();
    assert!(report.undecided.iter().any(|range| range.volume == VolumeId(2)));
    assert!(report.absent.is_empty(), "{:?}", report.absent);
    assert_eq!(world.read(2, 0, BLOCK).err(), Some(ErrorKind::Corrupt), "it is undecided");
}

/// Goal: a segment that could not be read at a start costs what is written since nothing: the next
/// start does not find it again. Method: the newest segment loses its header and descriptors, a
/// start, a write, and power loss right behind it.
#[test]
fn a_dark_segment_costs_one_start_only() {
    let mut world = World::new(5, super::faults::quiet());
    for block in 0..4 {
        super::faults::write_block(&mut world, 2, block, 40).expect("a write");
    }
    world.io.crash(CrashMode::KeepAll);
    let bytes = world.io.peek(world.ssd);
    let pages = || (0u64..).zip(bytes.chunks(BLOCK as usize));
    let headers = pages().filter(|(_, page)| page.starts_with(b"LAYBYSEG"));
    let (header, newest) = headers.max_by_key(|(_, page)| get_u64(page, 24)).expect("a segment");
    let is_its =
        |page: &[u8]| page.starts_with(b"LAYBYBAT") && get_u64(page, 16) == get_u64(newest, 24);
    let descriptors = pages().filter(|(_, page)| is_its(page)).map(|(at, _)| at);
    for at in std::iter::once(header).chain(descriptors) {
        world.io.fail_reads(world.ssd, at * BLOCK, BLOCK);
    }
    assert!(!world.restart().undecided.is_empty(), "it may be newer than anything");
    let mut write = call(Operation::Write, 0, BLOCK);
    write.flags.fua = true;
    world.run(2, write, 42).expect("a whole block");
    world.io.crash(CrashMode::KeepAll);
    world.restart();
    assert_eq!(world.read(2, 0, BLOCK).map(|bytes| bytes[0]), Ok(42));
}

/// Goal: a dirty block beyond the level's slots whose bytes rotted is an error, not the older
/// version of its backing store. Method: a log in which all slots have other dirty blocks, of a
/// volume that is gone; rot of the one that has no slot.
#[test]
fn a_rotten_block_without_a_slot_is_an_error() {
    let mut world = World::new(3, super::faults::quiet());
    super::faults::write_block(&mut world, 2, 0, 40).expect("a write");
    world.drain().expect("the backing store takes it");
    world.core.shut_down(&mut world.io).expect("a clean stop");
    let length = world.shape.ssd_bytes;
    let region = Region { disk: world.ssd, base: 0, length, block_size: BlockSize::MIN };
    let config = crate::store::LogConfig::new(region, IDENTITY, 3);
    let seqs = crate::store::SeqSource::new(layby_types::Seq(1 << 30));
    let opened = crate::store::LogStore::open(&mut world.io, config, seqs);
    let (mut log, _) = opened.expect("a sound log");
    let mut append = |io: &mut SimIo, slots: std::ops::Range<u32>, volume: u32, value: u8| {
        let key = |slot: u32| BlockKey::new(VolumeId(volume), BlockIndex(slot.into()));
        let entry = |slot: u32| {
            let (slot, key) = (layby_types::Slot(slot), key(slot));
            crate::store::AppendEntry { slot, key, dirty: true }
        };
        let entries: Vec<_> = slots.map(entry).collect();
        let data = vec![value; entries.len() * BLOCK as usize];
        let (ticket, stream) = (crate::store::Ticket(1), crate::store::Stream::Write);
        log.append(io, ticket, stream, &entries, &data, true);
        let mut turns = 0..10_000;
        while !log.is_idle() && turns.next().is_some() {
            let mut done = Vec::new();
            io.wait(Nanos(io.now().0 + 1_000_000), &mut done);
            done.into_iter().for_each(|done| log.on_io(io, done));
        }
        assert!(log.is_idle(), "it has room");
        log.slot_count()
    };
    let count = append(&mut world.io, 0..1, 2, 41);
    for first in (0..count).step_by(32) {
        append(&mut world.io, first..count.min(first + 32), 9, 9);
    }
    world.io.crash(CrashMode::DropAll);
    let at = super::faults::find_block(&world, world.ssd, 41);
    world.io.corrupt(world.ssd, at, 8);
    world.restart();
    assert_eq!(world.read(2, 0, BLOCK).err(), Some(ErrorKind::Corrupt));
    // Nothing of it comes back over what is written then.
    let mut write = call(Operation::Write, 0, BLOCK);
    write.flags.fua = true;
    world.run(2, write, 42).expect("a whole block");
    assert!(world.core.end_with_checkpoint(&mut world.io));
    for _ in 0..2 {
        world.io.crash(CrashMode::DropAll);
        world.restart();
        assert_eq!(world.read(2, 0, BLOCK), Ok(vec![42; BLOCK as usize]));
    }
}
