//! The simulator beside hand-computed cases, and beside itself.

use super::*;
use layby_cache::{
    ClassSpec, EvictionKind, LEVELS_MAX, LevelKind, LevelSpec, ReadAheadLimits, Share, Watermarks,
    WritebackLimits,
};
use layby_types::{BlockSize, ClassId};
use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;

const BLOCK: u64 = 4096;

fn spec(slots: [u32; 3]) -> CacheSpec {
    let kinds = [LevelKind::Memory, LevelKind::Nvm, LevelKind::Ssd];
    let (eviction, watermarks) = (EvictionKind::Lru, Watermarks::DEFAULT);
    let level = |(kind, slots)| LevelSpec { kind, slots, eviction, watermarks };
    let class = |name: &str, rank, levels| ClassSpec {
        name: name.into(),
        rank,
        levels,
        durable_writes: rank == 0,
        borrow: false,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    CacheSpec {
        block_size: BlockSize::MIN,
        levels: kinds.into_iter().zip(slots).map(level).collect(),
        classes: vec![class("critical", 0, 0b111), class("normal", 1, 0b100)],
        writeback: WritebackLimits::DEFAULT,
        read_ahead: ReadAheadLimits { window_bytes_max: 0, ..ReadAheadLimits::DEFAULT },
    }
}

fn machine(slots: [u32; 3], mode: Mode) -> Machine {
    let built_in = |name| Model::built_in(name).expect("Table I has it");
    let devices = ["dram", "nvm", "ssd"].map(built_in).to_vec();
    let setup = Setup { cache: spec(slots), devices, home: Model::main_storage(), mode, seed: 1 };
    let mut machine = Machine::new(setup).expect("a sound specification");
    for (id, class) in [(1, 0), (2, 1)] {
        let volume = VolumeSpec {
            id: VolumeId(id),
            class: ClassId(class),
            length: 1 << 20,
            shares: [Share::OPEN; LEVELS_MAX],
        };
        machine.add_volume(&volume).expect("a sound volume");
    }
    machine
}

/// Goal: in counting mode a read costs the look-ups down to the level that has the block, a write
/// the level that takes it. Method: one block of each class, written, read twice; a miss.
#[test]
fn counting_adds_up_the_papers_costs() {
    let mut machine = machine([8, 8, 8], Mode::Counting);
    for id in [1, 2] {
        let volume = VolumeId(id);
        for (operation, block) in [
            (Operation::Write, 0),
            (Operation::Read, 0),
            (Operation::Read, 0),
            (Operation::Read, 9),
        ] {
            machine.submit(Nanos::ZERO, volume, &call(operation, block * BLOCK, BLOCK));
        }
    }
    let report = machine.report();
    let (critical, normal) = (&report.volumes[&VolumeId(1)], &report.volumes[&VolumeId(2)]);
    // N has it, then D; the miss pays all three levels and the home.
    assert_eq!((critical.hits[0], critical.hits[1], critical.misses), (1, 1, 1));
    let expected = 78.0 + 8.0 + f64::from(8 + 70 + 25_000 + 250_000);
    assert_eq!((critical.read_ns, critical.write_ns), (expected, 500.0));
    assert_eq!((normal.hits[2], normal.misses), (2, 1));
    assert_eq!((normal.read_ns, normal.write_ns), (3.0 * 25_000.0 + 250_000.0, 200_000.0));
}

/// Goal: in queueing mode requests wait for each other on a device's only channel, and not on two.
/// Method: two misses at one time.
#[test]
fn queueing_makes_requests_wait() {
    for (channels, slowest) in [(1, 500_000), (2, 250_000)] {
        let mut machine = machine([8, 8, 8], Mode::Queueing);
        machine.home = Device::new(Model { channels, ..Model::main_storage() });
        for block in [0, 9] {
            machine.submit(Nanos::ZERO, VolumeId(2), &call(Operation::Read, block * BLOCK, BLOCK));
        }
        machine.settle();
        let report = machine.report();
        let volume = &report.volumes[&VolumeId(2)];
        let total = volume.read_ns as u64;
        assert_eq!(total, 250_000 + slowest, "{channels} channels");
    }
}

struct Lines(Rc<RefCell<String>>);

impl DecisionLog for Lines {
    fn on_action(&mut self, action: &Action) {
        writeln!(self.0.borrow_mut(), "{action:?}").expect("a String takes all");
    }
}

/// A random load, and what the cache decided.
fn decisions(seed: u64, mode: Mode) -> (String, Report) {
    let mut machine = machine([6, 12, 24], mode);
    let lines = Rc::new(RefCell::new(String::new()));
    machine.log_decisions(Box::new(Lines(Rc::clone(&lines))));
    let mut rng = Rng::new(seed);
    for step in 0..2000 {
        let volume = VolumeId(1 + rng.below(2) as u32);
        let operation = match rng.below(10) {
            0 => Operation::Trim,
            1 => Operation::Flush,
            2..=5 => Operation::Write,
            _ => Operation::Read,
        };
        let block = rng.below(64);
        let blocks = if operation == Operation::Flush { 0 } else { 1 + rng.below(4) };
        let at = Nanos::from_micros(step * 40);
        machine.submit(at, volume, &call(operation, block * BLOCK, blocks * BLOCK));
    }
    machine.settle();
    let report = machine.report();
    (lines.take(), report)
}

/// Goal: same seed, same decisions, same report; every request ends. Method: random loads, twice,
/// in both modes.
#[test]
fn a_seed_fixes_the_run() {
    for seed in 0..20 {
        for mode in [Mode::Counting, Mode::Queueing] {
            let (first, second) = (decisions(seed, mode), decisions(seed, mode));
            assert_eq!(first, second, "SEED={seed}");
            let ends = first.0.lines().filter(|line| line.starts_with("Complete")).count();
            assert_eq!(ends, 2000, "SEED={seed}");
            assert!(first.1.volumes.values().all(|volume| volume.errors == 0), "SEED={seed}");
        }
    }
}

/// Goal: a volume that leaves takes its dirty blocks home and stays in the report. Method: writes,
/// a removal, the counters.
#[test]
fn a_volume_leaves() {
    let mut machine = machine([8, 8, 8], Mode::Counting);
    machine.submit(Nanos::ZERO, VolumeId(2), &call(Operation::Write, 0, 3 * BLOCK));
    machine.remove_volume(VolumeId(2)).expect("it is idle");
    let report = machine.report();
    assert_eq!(report.volumes[&VolumeId(2)].blocks_written(), 3);
    assert_eq!(report.home_bytes_written, 3 * BLOCK);
}
