//! Whole lives of a core over simulated disks: load, faults of power, recovery, against a model.
//!
//! How: the same kind of history as the cache's own tests, through real stores and formats.

use super::*;
use crate::io::{CrashMode, DiskId, SimIo};
use crate::store::{Region, StoreIdentity};
use layby_cache::{
    CacheSpec, ClassSpec, LEVELS_MAX, LevelKind, LevelSpec, ReadAheadLimits, Share, VolumeSpec,
    Watermarks, WritebackLimits,
};
use layby_types::{BlockSize, CallFlags, ClassId, ShardIndex};
use std::collections::HashMap;

const BLOCKS: u64 = 96;
const BLOCK: u64 = 4096;
const CELL: u64 = 512;
const CELLS: usize = (BLOCKS * BLOCK / CELL) as usize;

const IDENTITY: StoreIdentity =
    StoreIdentity { node: [7; 16], shard: ShardIndex(0), shard_count: 1 };

fn spec() -> CacheSpec {
    let level = |kind, slots| LevelSpec { kind, slots, watermarks: Watermarks::DEFAULT };
    let class = |name: &str, rank, levels, durable_writes| ClassSpec {
        name: name.into(),
        rank,
        levels,
        durable_writes,
        borrow: true,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    CacheSpec {
        block_size: BlockSize::DEFAULT,
        levels: vec![
            level(LevelKind::Memory, 12),
            level(LevelKind::Nvm, 1 << 20),
            level(LevelKind::Ssd, 1 << 20),
        ],
        classes: vec![class("critical", 0, 0b111, true), class("normal", 1, 0b100, false)],
        writeback: WritebackLimits::DEFAULT,
        read_ahead: ReadAheadLimits::DEFAULT,
    }
}

struct World {
    io: SimIo,
    nvm: DiskId,
    ssd: DiskId,
    homes: Vec<DiskId>,
    core: Core,
    seed: u64,
}

const NVM_BYTES: u64 = 40 * BLOCK;
const SSD_BYTES: u64 = 2 << 20;

fn start(io: &mut SimIo, disks: (DiskId, DiskId, &[DiskId]), format: bool, seed: u64) -> Core {
    let (nvm, ssd, homes) = disks;
    let region = |disk, length| Region { disk, base: 0, length, block_size: BlockSize::DEFAULT };
    let plans = [
        LevelPlan::Memory { slots: 12 },
        LevelPlan::Nvm { region: region(nvm, NVM_BYTES), format },
        LevelPlan::Ssd { region: region(ssd, SSD_BYTES), format },
    ];
    let home = |(index, disk): (usize, &DiskId)| HomePlan {
        spec: VolumeSpec {
            id: VolumeId(index as u32 + 1),
            class: ClassId(index as u8 % 2),
            length: BLOCKS * BLOCK,
            shares: [Share::OPEN; LEVELS_MAX],
        },
        disk: *disk,
        name: format!("home-{index}"),
    };
    let homes = homes.iter().enumerate().map(home).collect();
    let started = Core::start(io, spec(), &plans, IDENTITY, homes, seed);
    started.unwrap_or_else(|error| panic!("SEED={seed}: {error:?}")).0
}

impl World {
    fn new(seed: u64) -> World {
        let mut io = SimIo::new(seed);
        let nvm = io.add_disk("nvm", NVM_BYTES);
        let ssd = io.add_disk("ssd", SSD_BYTES);
        let homes = vec![io.add_disk("one", BLOCKS * BLOCK), io.add_disk("two", BLOCKS * BLOCK)];
        let core = start(&mut io, (nvm, ssd, &homes), true, seed);
        World { io, nvm, ssd, homes, core, seed }
    }

    fn restart(&mut self) {
        self.core = start(&mut self.io, (self.nvm, self.ssd, &self.homes), false, self.seed);
    }

    fn run(&mut self, volume: u32, call: Call, value: u8) -> Result<Answer, ErrorKind> {
        let payload =
            vec![value; if call.operation == Operation::Write { call.length as usize } else { 0 }];
        self.core.submit(&mut self.io, Asker(u64::MAX), VolumeId(volume), call, &payload, None);
        for _ in 0..100_000 {
            let mut others = Vec::new();
            while let Some(finished) = self.core.take_finished() {
                if finished.asker == Asker(u64::MAX) {
                    return finished.result;
                }
                others.push(finished);
            }
            self.core.turn(&mut self.io);
        }
        panic!("SEED={}: {call:?} never ends", self.seed);
    }
}

fn call(operation: Operation, offset: u64, length: u64) -> Call {
    Call { cookie: 0, operation, offset, length, flags: CallFlags::default() }
}

/// Goal: a fresh core serves writes, reads, zeroes and flushes. Method: one of each.
#[test]
fn a_core_serves() {
    let mut world = World::new(1);
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
