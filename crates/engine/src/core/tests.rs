//! Whole lives of a core over simulated disks: load, faults of power, recovery, against a model.
//!
//! How: the same kind of history as the cache's own tests, through real stores and formats.

mod absent;
mod cancels;
mod devices;
mod discards;
mod far;
mod faults;
mod history;
mod lengths;
mod lost;
mod moves;
mod observing;
mod older;
mod ranks;
mod remote;
mod scarce;
mod stops;
mod stuck;
mod tails;
mod unkept;
mod wide;

use super::*;
use crate::check::{StoreKind, check_store};
use crate::io::{CrashMode, DiskId, SimIo};
use crate::store::{Reached, Region, StoreError, StoreIdentity};
use layby_cache::wear::{DAY, Endurance};
use layby_cache::{
    AdmissionKind, CacheSpec, ClassSpec, EvictionKind, LEVELS_MAX, LevelKind, LevelSpec, OnDirty,
    ReadAheadLimits, RemoveError, Share, VolumeSpec, Watermarks, WritebackLimits,
};
use layby_types::{BlockSize, CallFlags, ClassId, ShardIndex};
use std::collections::HashMap;

const BLOCKS: u64 = 48;
const BLOCK: u64 = 4096;
const CELL: u64 = 512;
const CELLS: usize = (BLOCKS * BLOCK / CELL) as usize;
/// Turns that anything may take before it counts as hung.
const TURNS_MAX: u32 = 100_000;

const IDENTITY: StoreIdentity =
    StoreIdentity { node: [7; 16], shard: ShardIndex(0), shard_count: 1 };

/// What differs between the machines of different seeds.
#[derive(Clone)]
pub(crate) struct Shape {
    spec: CacheSpec,
    nvm_bytes: u64,
    ssd_bytes: u64,
    /// The NVM is persistent memory rather than a file's pages.
    persistent: bool,
    wear: WearPlan,
    /// The volume whose home cannot be opened.
    absent: Option<u32>,
    /// The volume whose home is write-protected.
    protected: Option<u32>,
    /// The volume that is written through.
    through: Option<u32>,
    /// Bytes of each volume.
    length: u64,
}

fn spec() -> CacheSpec {
    let (eviction, watermarks) = (EvictionKind::Lru, Watermarks::DEFAULT);
    let level = |kind, slots| LevelSpec { kind, slots, eviction, watermarks };
    let class = |name: &str, rank, levels, durable_writes| ClassSpec {
        name: name.into(),
        rank,
        levels,
        durable_writes,
        borrow: true,
        keep_reads: true,
        latency_objective: None,
        admission: AdmissionKind::All,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    CacheSpec {
        block_size: BlockSize::MIN,
        levels: vec![
            level(LevelKind::Memory, 8),
            level(LevelKind::Nvm, 1 << 20),
            level(LevelKind::Ssd, 1 << 20),
        ],
        classes: vec![class("critical", 0, 0b111, true), class("normal", 1, 0b100, false)],
        writeback: WritebackLimits::DEFAULT,
        read_ahead: ReadAheadLimits::DEFAULT,
    }
}

impl Shape {
    /// Enough of everything: nothing leaves a level unasked.
    pub(crate) fn roomy() -> Shape {
        let (nvm_bytes, ssd_bytes) = (40 * BLOCK, 2 << 20);
        let (persistent, wear, length) = (false, WearPlan::default(), BLOCKS * BLOCK);
        let (absent, protected, through) = (None, None, None);
        let spec = spec();
        Shape { spec, nvm_bytes, ssd_bytes, persistent, wear, absent, protected, through, length }
    }

    /// Levels of a few blocks, so that they evict, destage, clean and checkpoint all the time.
    fn tiny(rng: &mut Rng) -> Shape {
        let mut spec = spec();
        spec.levels[0].slots = 3 + rng.below(6) as u32;
        spec.writeback.idle_timeout =
            [Nanos::from_micros(300), Nanos::from_millis(5), Nanos::from_secs(5)]
                [rng.below(3) as usize];
        spec.writeback.merge_bytes = [4096, 16384, 1 << 20][rng.below(3) as usize];
        if rng.chance(1, 3) {
            spec.levels[2].watermarks.dirty_red = 30;
            spec.levels[2].watermarks.dirty_green = 10;
        }
        if rng.chance(1, 3) {
            spec.levels[1].watermarks.used_red = 70;
            spec.levels[1].watermarks.used_green = 50;
        }
        if rng.chance(1, 2) {
            spec.read_ahead.window_bytes_max = 0;
        }
        spec.classes.iter_mut().for_each(|class| class.borrow = rng.chance(2, 3));
        if rng.chance(1, 4) {
            spec.classes[1].levels = 0b001; // written through, past both persistent levels
        }
        let nvm_bytes = (13 + rng.below(14)) * BLOCK;
        let ssd_bytes = (106 + rng.below(160)) * BLOCK;
        let endurance = Endurance { bytes: 1 + rng.below(4 << 20), life: DAY };
        let endurance = rng.chance(1, 3).then_some(endurance);
        let wear = WearPlan { endurance, started_unix: 0 };
        let (persistent, length) = (rng.chance(1, 2), BLOCKS * BLOCK);
        let (absent, protected, through) = (None, None, None);
        Shape { spec, nvm_bytes, ssd_bytes, persistent, wear, absent, protected, through, length }
    }
}

pub(crate) struct World {
    pub(crate) io: SimIo,
    shape: Shape,
    nvm: DiskId,
    ssd: DiskId,
    homes: Vec<DiskId>,
    pub(crate) core: Core,
    seed: u64,
}

fn start(
    io: &mut SimIo,
    shape: &Shape,
    disks: (DiskId, DiskId, &[DiskId]),
    format: bool,
    seed: u64,
) -> (Core, crate::control::StartReport) {
    let started = try_start(io, shape, disks, format, seed, &Known::default());
    started.unwrap_or_else(|error| panic!("replay with SEED={seed}: {error:?}"))
}

/// How far levels had come, by their numbers.
type Known = [Option<Reached>; 3];

fn try_start(
    io: &mut SimIo,
    shape: &Shape,
    disks: (DiskId, DiskId, &[DiskId]),
    format: bool,
    seed: u64,
    known: &Known,
) -> Result<(Core, crate::control::StartReport), CoreError> {
    let (nvm, ssd, homes) = disks;
    let waker = io.waker();
    let region = |disk, length| Region { disk, base: 0, length, block_size: BlockSize::MIN };
    let plans = [
        LevelPlan::Memory { slots: shape.spec.levels[0].slots },
        LevelPlan::Nvm {
            region: region(nvm, shape.nvm_bytes),
            format,
            is_strict: false,
            known: known[1],
        },
        LevelPlan::Ssd {
            region: region(ssd, shape.ssd_bytes),
            format,
            is_strict: false,
            known: known[2],
            segments: Default::default(),
            wear: shape.wear,
        },
    ];
    let home = |(index, disk): (usize, &DiskId)| {
        let spec = VolumeSpec {
            id: VolumeId(index as u32 + 1),
            class: ClassId(index as u8 % 2),
            length: shape.length,
            shares: [Share::OPEN; LEVELS_MAX],
            write_through: shape.through == Some(index as u32 + 1),
        };
        let name = format!("home-{index}");
        if shape.absent == Some(spec.id.0) {
            let stand_in = crate::backing::AbsentHome::new(name, waker.clone());
            return HomePlan {
                spec,
                place: HomePlace::Absent { stand_in, plan: None },
                device: None,
                protected: None,
            };
        }
        let is_protected = shape.protected == Some(spec.id.0);
        let stand_in = || crate::backing::AbsentHome::new(name.clone(), waker.clone());
        let protected = is_protected.then(stand_in);
        HomePlan { protected, ..HomePlan::on_disk(spec, *disk, name) }
    };
    let homes = homes.iter().enumerate().map(home).collect();
    Core::start(io, shape.spec.clone(), &plans, IDENTITY, homes, seed)
}

impl World {
    pub(crate) fn new(seed: u64, shape: Shape) -> World {
        let mut io = SimIo::new(seed);
        let nvm = match shape.persistent {
            true => io.add_persistent_memory("nvm", shape.nvm_bytes),
            false => io.add_disk("nvm", shape.nvm_bytes),
        };
        let ssd = io.add_disk("ssd", shape.ssd_bytes);
        let length = shape.length.max(BLOCKS * BLOCK);
        let homes = vec![io.add_disk("one", length), io.add_disk("two", length)];
        let (core, _) = start(&mut io, &shape, (nvm, ssd, &homes), true, seed);
        let mut world = World { io, shape, nvm, ssd, homes, core, seed };
        world.end_opening_syncs();
        world
    }

    /// Waits for the syncs of the backing stores with which a start ends.
    fn end_opening_syncs(&mut self) {
        while self.core.homes.values().any(|home| home.syncing) {
            self.core.turn(&mut self.io);
        }
    }

    fn restart(&mut self) -> crate::control::StartReport {
        let disks = (self.nvm, self.ssd, &self.homes[..]);
        let (core, report) = start(&mut self.io, &self.shape, disks, false, self.seed);
        self.core = core;
        report
    }

    /// Ends the process without a power cut, and starts the next one.
    fn kill(self) -> (World, crate::control::StartReport) {
        let World { mut io, shape, nvm, ssd, homes, core, seed } = self;
        assert_eq!(io.in_flight(), 0, "no end comes to the next process; replay with SEED={seed}");
        drop(core);
        let (core, report) = start(&mut io, &shape, (nvm, ssd, &homes), false, seed);
        (World { io, shape, nvm, ssd, homes, core, seed }, report)
    }

    /// Cuts the power; the stores must be sound to an outsider's eye before they are opened.
    fn crash(&mut self, mode: CrashMode) -> crate::control::StartReport {
        self.io.crash(mode);
        self.check_images();
        self.restart()
    }

    fn check_images(&self) {
        let (nvm, ssd) = (self.io.peek(self.nvm), self.io.peek(self.ssd));
        for (bytes, kind) in [(nvm, StoreKind::Nvm), (ssd, StoreKind::Log)] {
            let report = check_store(&bytes[..], "image", 0, bytes.len() as u64, kind, true);
            assert!(
                report.is_sound(),
                "{kind}: {:?}; replay with SEED={}",
                report.problems,
                self.seed
            );
        }
    }

    /// Asks for one thing and waits for its end, whatever else is going on.
    fn run(&mut self, volume: u32, call: Call, value: u8) -> Result<Answer, ErrorKind> {
        let bytes = if call.operation == Operation::Write { call.length as usize } else { 0 };
        let payload = vec![value; bytes];
        self.core.submit(&mut self.io, Asker(u64::MAX), VolumeId(volume), call, &payload, None);
        for _ in 0..TURNS_MAX {
            if let Some(finished) = self.core.take_finished() {
                assert_eq!(finished.asker, Asker(u64::MAX), "nothing else is in flight");
                return finished.result;
            }
            self.core.turn(&mut self.io);
        }
        panic!("{call:?} never ends; replay with SEED={}", self.seed);
    }

    pub(crate) fn read(
        &mut self,
        volume: u32,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, ErrorKind> {
        match self.run(volume, call(Operation::Read, offset, length), 0)? {
            Answer::Data(data) => Ok(data.to_vec()),
            other => panic!("a read gives data, not {other:?}"),
        }
    }

    /// Sends everything dirty home.
    fn drain(&mut self) -> Result<(), ErrorKind> {
        self.core.drain(&mut self.io, 77, None);
        for _ in 0..TURNS_MAX {
            if let Some((ticket, result)) = self.core.take_drained().pop() {
                assert_eq!(ticket, 77, "one drain at a time");
                return result;
            }
            self.core.turn(&mut self.io);
        }
        panic!("a drain never ends; replay with SEED={}", self.seed);
    }
}

pub(crate) fn call(operation: Operation, offset: u64, length: u64) -> Call {
    Call { cookie: 0, operation, offset, length, flags: CallFlags::default() }
}

fn each_seed(count: u64, test: impl Fn(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("SEED") {
        Some(seed) => test(seed),
        None => {
            let first = number("FIRST").unwrap_or(0);
            (first..first + number("SEEDS").unwrap_or(count)).for_each(test);
        }
    }
}

/// Goal: a fresh core serves writes, reads, zeroes and flushes. Method: one of each.
#[test]
fn a_core_serves() {
    let mut world = World::new(1, Shape::roomy());
    for volume in [1, 2] {
        world.run(volume, call(Operation::Write, 512, 9000), 7).expect("a write");
        world.run(volume, call(Operation::Flush, 0, 0), 0).expect("a flush");
        let Ok(Answer::Data(data)) = world.run(volume, call(Operation::Read, 0, 12288), 0) else {
            panic!("a read gives data")
        };
        let expected = |at: usize| u8::from((512..9512).contains(&at)) * 7;
        assert!((0..12288).all(|at| data[at] == expected(at)), "volume {volume}");
        world.run(volume, call(Operation::WriteZeroes, 0, 8192), 0).expect("a zeroing");
        let Ok(Answer::Data(data)) = world.run(volume, call(Operation::Read, 0, 12288), 0) else {
            panic!("a read gives data")
        };
        assert!(data[..8192].iter().all(|byte| *byte == 0));
        assert!(data[8192..9512].iter().all(|byte| *byte == 7));
    }
}
