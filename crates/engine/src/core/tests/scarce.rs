//! A log whose free segments run out, on devices that work: nothing that is asked for may fail.

use super::super::Level;
use super::far::*;
use super::*;
use crate::store::NvmStore;
use layby_cache::discards::{DiscardDelay, DiscardLimits, DiscardMode};
use layby_types::{BlockIndex, BlockKey};

/// Requests in flight at once.
const INFLIGHT_MAX: usize = 16;
/// Steps of one history.
const STEPS: u32 = 1500;
/// How long the NVM level's device is slow at most.
const SLOW_MICROS_MAX: u64 = 4000;

/// A volume that the core does not have.
const OTHER: u32 = 9;

struct Load {
    world: FarWorld,
    rng: Rng,
    flights: HashMap<u64, (u32, Call)>,
    seed: u64,
}

fn blocks_of(call: &Call) -> std::ops::Range<u64> {
    call.offset / BLOCK..(call.offset + call.length).div_ceil(BLOCK)
}

impl Load {
    fn new(seed: u64) -> Load {
        let mut rng = Rng::new(seed ^ 0x5ca_2ce);
        let mut shape = Shape::tiny(&mut rng);
        (shape.persistent, shape.nvm_bytes) = (false, (13 + rng.below(8)) * BLOCK);
        shape.ssd_bytes = (106 + rng.below(48)) * BLOCK;
        for class in &mut shape.spec.classes {
            (class.levels, class.keep_reads) = (0b111, true);
        }
        let mut world = FarWorld::new(seed, shape, 1);
        if rng.chance(1, 2) {
            let delay = DiscardDelay::Fixed(Nanos::from_secs(3600));
            let mode = DiscardMode::Delayed;
            let limits = DiscardLimits { mode, delay, ..DiscardLimits::DEFAULT };
            world.core.set_discard(VolumeId(NEAR), limits);
        }
        Load { world, rng, flights: HashMap::new(), seed }
    }

    fn ask(&mut self) {
        let volume = if self.rng.chance(1, 2) { FAR } else { NEAR };
        let (first, length) = (self.rng.below(CELLS as u64), 1 + self.rng.below(96));
        let length = length.min(CELLS as u64 - first);
        let operation = match self.rng.below(16) {
            0..=4 => Operation::Read,
            5..=11 => Operation::Write,
            12 => Operation::Trim,
            13 => Operation::WriteZeroes,
            _ => Operation::Flush,
        };
        let mut call = call(operation, first * CELL, length * CELL);
        if operation == Operation::Flush {
            (call.offset, call.length) = (0, 0);
        }
        call.flags.fua = operation == Operation::Write && self.rng.chance(1, 6);
        let meets = |(of, other): &(u32, Call)| {
            let (a, b) = (blocks_of(other), blocks_of(&call));
            *of == volume && a.start < b.end && b.start < a.end
        };
        if !self.flights.values().any(meets) {
            let number = self.world.ask(volume, call, 7);
            self.flights.insert(number, (volume, call));
        }
    }

    fn collect(&mut self) {
        self.world.collect();
        for (number, result) in std::mem::take(&mut self.world.finished) {
            let (volume, call) = self.flights.remove(&number).expect("it was asked for");
            let kind = result.err();
            assert_eq!(kind, None, "{call:?} of {volume}; replay with SEED={}", self.seed);
        }
    }

    /// The NVM level's device ends nothing for a while, so that a checkpoint waits for its sync
    /// while forgets use up the log's free segments.
    fn slow_nvm_down(&mut self) {
        let disk = self.world.io.attach_disk("nvm").expect("the machine has it");
        let time = Nanos::from_micros(self.rng.below(SLOW_MICROS_MAX));
        self.world.io.stall(disk, time);
    }

    fn turn(&mut self) {
        let waiting = self.world.home.state().asked.len() as u64;
        if waiting > 0 && self.rng.chance(1, 2) {
            let index = self.rng.below(waiting) as usize;
            self.world.home.end(index, Ok(()));
        }
        self.world.core.turn(&mut self.world.io);
        self.collect();
    }

    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            if self.flights.is_empty() {
                return;
            }
            self.turn();
        }
        panic!("{:?} never end; replay with SEED={}", self.flights, self.seed);
    }
}

/// Goal: where forgets wait for a free segment, a checkpoint whose waiting is over is not taken for
/// one that waits for them: nothing is refused, and each request ends well. Method: random load on
/// a volume in an object store and one in a file, on tiny levels whose log runs out of free
/// segments, with an NVM level's device that is slow at times; deferred discards in half the runs.
#[test]
fn nothing_fails_where_segments_run_out() {
    each_seed(60, |seed| {
        let mut load = Load::new(seed);
        for _ in 0..STEPS {
            if load.flights.len() < INFLIGHT_MAX && load.rng.chance(1, 2) {
                load.ask();
            }
            if load.rng.chance(1, 40) {
                load.slow_nvm_down();
            }
            load.turn();
        }
        load.settle();
    });
}

/// Goal: a checkpoint that waits for a store of the NVM level, which waits for forgets, has these
/// written into what is left of the log's last segment: the write ends well. Method: the NVM level
/// is full of clean blocks; forgets use up the log's segments before it is due to look at them; a
/// write finds room for a part of its blocks.
#[test]
fn a_store_that_waits_for_forgets_is_not_refused() {
    let mut shape = Shape::roomy();
    shape.spec.classes[0].levels = 0b011;
    (shape.persistent, shape.nvm_bytes, shape.ssd_bytes) = (true, 32 * BLOCK, 116 * BLOCK);
    let mut world = World::new(1, shape);
    let write = |first: u64, count: u64| call(Operation::Write, first * BLOCK, count * BLOCK);
    world.run(NEAR, write(0, 20), 1).expect("there is room");
    world.drain().expect("the backing store works");
    while world.core.log_mut().expect("a log").segments_free() > 0 {
        world.forget_other();
    }
    let mut asked = 0;
    let mut ask = |world: &mut World, call: Call| {
        asked += 1;
        let payload = vec![2; call.length as usize];
        world.core.submit(&mut world.io, Asker(asked), VolumeId(NEAR), call, &payload, None);
    };
    let mut next = 20;
    while nvm_of(&world).has_room(6) {
        ask(&mut world, write(next, 1));
        next += 1;
    }
    assert!(nvm_of(&world).has_room(1) && next + 6 <= BLOCKS, "a part of the write finds room");
    ask(&mut world, write(next, 6));
    assert!(!nvm_of(&world).is_idle(), "the store waits for slots");
    let (mut ended, mut turns) = (0, 0);
    while ended < asked {
        turns += 1;
        assert!(turns < TURNS_MAX, "the writes never end");
        world.core.turn(&mut world.io);
        while let Some(finished) = world.core.take_finished() {
            assert_eq!(finished.result.map(drop), Ok(()), "of {:?}", finished.asker);
            ended += 1;
        }
    }
}

fn nvm_of(world: &World) -> &NvmStore {
    let nvm = world.core.levels.iter().find_map(|level| match level {
        Level::Nvm(store) => Some(&**store),
        _ => None,
    });
    nvm.expect("the world has such a level")
}

impl World {
    /// A block that no level holds is forgotten, durably, as an eviction would have it; no
    /// checkpoint begins meanwhile.
    fn forget_other(&mut self) {
        let log = self.core.log_mut().expect("a log");
        log.forget(BlockKey::new(VolumeId(OTHER), BlockIndex(0)));
        log.flush_forgets(&mut self.io);
        let mut done = Vec::new();
        self.io.wait(Nanos::NEVER, &mut done);
        done.into_iter().for_each(|done| self.core.on_io(&mut self.io, done));
    }
}
