//! The two hosts of the cache behind one set of calls, each with a log of decisions.
//!
//! How: both follow the rule of `docs/traces.md`, section Parity. The engine's core runs over
//! simulated disks, whose operations end in a seeded disorder; the simulator counts.
//! Invariant: nothing that a host was asked for is left unfinished when a call returns.

use layby_cache::cleaning::Limits;
use layby_cache::{Action, CacheSpec, DecisionLog, LevelKind, OnDirty, RemoveError, VolumeSpec};
use layby_device::Model;
use layby_engine::core::{Asker, Core, HomePlan, LevelPlan, ReadSink};
use layby_engine::io::{DiskId, Io as _, SimIo};
use layby_engine::store::{Region, SegmentPlan, StoreIdentity};
use layby_sim::levels::{Machine, Mode, Setup};
use layby_types::{Call, Nanos, Operation, ShardIndex, VolumeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;

/// Turns that anything may take before it counts as hung.
const TURNS_MAX: u32 = 100_000;

/// A level's room in bytes, for the engine; the simulator gets the slots that the store made of it.
pub(crate) type LevelBytes = [u64; 3];

/// Decisions, a line each: nanoseconds, then the action.
#[derive(Clone, Default)]
pub(crate) struct Lines(Rc<RefCell<String>>);

impl Lines {
    /// Takes what was logged.
    pub(crate) fn take(&self) -> String {
        self.0.take()
    }
}

impl DecisionLog for Lines {
    fn on_action(&mut self, at: Nanos, action: &Action) {
        writeln!(self.0.borrow_mut(), "{} {action}", at.0).expect("a String takes all");
    }
}

/// What a load does to a host.
pub(crate) trait Host {
    /// Lets time pass up to `at`, with the background work that is due until then.
    fn advance_to(&mut self, at: Nanos);
    /// A call, at the time that was advanced to; it has ended when this returns.
    fn submit(&mut self, volume: VolumeId, call: &Call);
    /// New classes, shares, watermarks and limits.
    fn reconfigure(&mut self, spec: CacheSpec);
    /// A volume's new class and shares.
    fn set_volume(&mut self, spec: &VolumeSpec);
    /// Destages a volume and forgets it; then it comes back empty.
    fn renew_volume(&mut self, spec: &VolumeSpec);
}

/// The engine: real stores and homes on disks in memory.
pub(crate) struct Engine {
    core: Core,
    io: SimIo,
}

/// Takes a read hit's bytes nowhere.
struct Nowhere;

impl ReadSink for Nowhere {
    fn head(&mut self, _: &Call) {}
    fn bytes(&mut self, _: &[u8]) {}
}

impl Engine {
    /// A fresh node; `bytes` is the room of each level.
    pub(crate) fn new(
        spec: CacheSpec,
        bytes: LevelBytes,
        volumes: &[VolumeSpec],
        seed: u64,
    ) -> Engine {
        let mut io = SimIo::new(seed);
        let block_size = spec.block_size;
        let mut plan = |(index, length): (usize, u64)| {
            let kind = spec.levels[index].kind;
            let slots = (length / u64::from(block_size.bytes())) as u32;
            if kind == LevelKind::Memory {
                return LevelPlan::Memory { slots };
            }
            let disk = io.add_disk("level", length);
            let region = Region { disk, base: 0, length, block_size };
            match kind {
                LevelKind::Nvm => {
                    LevelPlan::Nvm { region, format: true, is_strict: false, known: None }
                }
                _ => LevelPlan::Ssd {
                    region,
                    format: true,
                    is_strict: false,
                    known: None,
                    // The simulator's level has no log that is cleaned.
                    segments: SegmentPlan { cleaning: Limits::MIN, ..SegmentPlan::default() },
                    wear: Default::default(),
                },
            }
        };
        let plans: Vec<LevelPlan> = bytes.into_iter().enumerate().map(&mut plan).collect();
        let homes: BTreeMap<VolumeId, DiskId> =
            volumes.iter().map(|v| (v.id, io.add_disk(&home_name(v.id), v.length))).collect();
        let home_plans = volumes.iter().map(|volume| home_plan(volume, homes[&volume.id]));
        let identity = StoreIdentity { node: [7; 16], shard: ShardIndex(0), shard_count: 1 };
        let started = Core::start(&mut io, spec, &plans, identity, home_plans.collect(), seed);
        let (core, _) = started.expect("a sound specification");
        let mut engine = Engine { core, io };
        // The simulator has nothing that is not durable at a start.
        engine.settle();
        engine
    }

    /// The specification with the slots that the stores really have.
    pub(crate) fn spec(&mut self) -> CacheSpec {
        self.core.cache().spec().clone()
    }

    /// Logs from here on.
    pub(crate) fn log(&mut self) -> Lines {
        let lines = Lines::default();
        self.core.log_decisions(Box::new(lines.clone()));
        lines
    }

    /// Everything that the cache waits for ends. Its clock stands meanwhile.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            if self.core.is_settled() {
                return;
            }
            self.turn();
        }
        panic!("an end never comes");
    }

    fn turn(&mut self) {
        self.core.on_tick(&mut self.io);
        let mut done = Vec::new();
        self.io.wait(Nanos::ZERO, &mut done);
        done.into_iter().for_each(|done| self.core.on_io(&mut self.io, done));
        while let Some(finished) = self.core.take_finished() {
            assert!(finished.result.is_ok(), "{finished:?}");
        }
    }

    fn drain(&mut self, volume: VolumeId) {
        self.core.drain(&mut self.io, 0, Some(volume));
        self.settle();
        assert_eq!(self.core.take_drained(), [(0, Ok(()))]);
    }
}

fn home_name(volume: VolumeId) -> String {
    format!("home-{}", volume.0)
}

fn home_plan(spec: &VolumeSpec, disk: DiskId) -> HomePlan {
    HomePlan::on_disk(spec.clone(), disk, home_name(spec.id))
}

impl Host for Engine {
    fn advance_to(&mut self, at: Nanos) {
        // Deadlines beyond `at` are noted when time moves on.
        while self.core.next_tick() <= at {
            let due = self.core.next_tick();
            self.core.set_now(due);
            self.core.on_tick(&mut self.io);
            self.settle();
        }
        self.core.set_now(at);
    }

    fn submit(&mut self, volume: VolumeId, call: &Call) {
        let is_write = call.operation == Operation::Write;
        let payload = vec![1; if is_write { call.length as usize } else { 0 }];
        let mut nowhere = Nowhere;
        let sink: Option<&mut dyn ReadSink> =
            (call.operation == Operation::Read).then_some(&mut nowhere as _);
        self.core.submit(&mut self.io, Asker(1), volume, *call, &payload, sink);
        self.settle();
        while let Some(finished) = self.core.take_finished() {
            assert!(finished.result.is_ok(), "{finished:?}");
        }
    }

    fn reconfigure(&mut self, spec: CacheSpec) {
        self.core.cache().reconfigure(spec).expect("a sound specification");
    }

    fn set_volume(&mut self, spec: &VolumeSpec) {
        self.core.cache().set_volume(spec).expect("a volume that is there");
    }

    fn renew_volume(&mut self, spec: &VolumeSpec) {
        self.drain(spec.id);
        for _ in 0..TURNS_MAX {
            match self.core.remove_volume(&mut self.io, spec.id, OnDirty::Refuse) {
                Ok(()) => {
                    let disk = self.io.attach_disk(&home_name(spec.id)).expect("it was there");
                    self.core.add_volume(home_plan(spec, disk)).expect("its number is free");
                    return;
                }
                // A sync of the home's own is still in flight.
                Err(why) => assert_eq!(why, RemoveError::Busy),
            }
            self.turn();
        }
        panic!("{:?} is never idle", spec.id);
    }
}

/// The simulator, counting.
pub(crate) struct Simulator(Machine);

impl Simulator {
    /// A fresh node of the same shape.
    pub(crate) fn new(cache: CacheSpec, volumes: &[VolumeSpec], seed: u64) -> Simulator {
        let model = |name| Model::built_in(name).expect("the table has it");
        let devices = ["dram", "nvm", "ssd"].map(model).to_vec();
        let setup =
            Setup { cache, devices, home: Model::main_storage(), mode: Mode::Counting, seed };
        let mut machine = Machine::new(setup).expect("a sound specification");
        volumes.iter().for_each(|spec| machine.add_volume(spec).expect("a sound volume"));
        // The engine's recovery ends with this, even where there was nothing to recover.
        machine.cache().end_restore();
        Simulator(machine)
    }

    /// Logs from here on.
    pub(crate) fn log(&mut self) -> Lines {
        let lines = Lines::default();
        self.0.log_decisions(Box::new(lines.clone()));
        lines
    }
}

impl Host for Simulator {
    fn advance_to(&mut self, at: Nanos) {
        self.0.advance_to(at);
    }

    fn submit(&mut self, volume: VolumeId, call: &Call) {
        self.0.submit(self.0.now(), volume, call);
    }

    fn reconfigure(&mut self, spec: CacheSpec) {
        self.0.cache().reconfigure(spec).expect("a sound specification");
    }

    fn set_volume(&mut self, spec: &VolumeSpec) {
        self.0.cache().set_volume(spec).expect("a volume that is there");
    }

    fn renew_volume(&mut self, spec: &VolumeSpec) {
        self.0.remove_volume(spec.id).expect("a volume that is there");
        self.0.add_volume(spec).expect("its number is free");
    }
}
