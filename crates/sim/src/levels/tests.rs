//! The simulator beside hand-computed cases, and beside itself.

use super::*;
use layby_cache::{
    AdmissionKind, ClassSpec, EvictionKind, LEVELS_MAX, LevelKind, LevelSpec, ReadAheadLimits,
    Share, Watermarks, WritebackLimits,
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
        keep_reads: false,
        latency_objective: None,
        admission: AdmissionKind::All,
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
            write_through: false,
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
    fn on_action(&mut self, at: Nanos, action: &Action) {
        writeln!(self.0.borrow_mut(), "{} {action}", at.0).expect("a String takes all");
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
            let ends = first.0.lines().filter(|line| line.contains(" complete ")).count();
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

/// Hashes decisions (FNV-1a over their text), so that long runs can be compared by a number.
struct Digest(Rc<RefCell<u64>>);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let mut digest = self.0.borrow_mut();
        for byte in text.bytes() {
            *digest = (*digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

impl DecisionLog for Digest {
    fn on_action(&mut self, _: Nanos, action: &Action) {
        // The digests are older than this field, and a simulator's homes have nothing at hand.
        let text = format!("{action:?}").replace(", at_hand: false", "");
        writeln!(self, "{text}").expect("a digest takes all");
    }
}

/// Eight volumes of four classes with guarantees, caps, lent room and read-ahead.
fn crowded(seed: u64, mode: Mode) -> Machine {
    let mut cache = spec([64, 128, 256]);
    cache.read_ahead = ReadAheadLimits::DEFAULT;
    let mut bulk = cache.classes[1].clone();
    (bulk.rank, bulk.borrow) = (2, true);
    let outside = ClassSpec { rank: 3, levels: 0, borrow: false, ..bulk.clone() };
    cache.classes[0].shares[1] = Share { guaranteed: 32, cap: 100 };
    cache.classes[1].shares[2] = Share { guaranteed: 40, cap: 200 };
    cache.classes.extend([bulk, outside]);
    let built_in = |name| Model::built_in(name).expect("Table I has it");
    let devices = ["dram", "nvm", "ssd"].map(built_in).to_vec();
    let setup = Setup { cache, devices, home: Model::main_storage(), mode, seed };
    let mut machine = Machine::new(setup).expect("a sound specification");
    for id in 0..8 {
        let mut shares = [Share::OPEN; LEVELS_MAX];
        shares[2] = Share { guaranteed: 5, cap: 60 + 20 * id };
        let class = ClassId((id % 4) as u8);
        let volume =
            VolumeSpec { id: VolumeId(id), class, length: 1 << 20, shares, write_through: false };
        machine.add_volume(&volume).expect("a sound volume");
    }
    machine
}

/// The digest of all that the cache decides under a random load.
fn digest(seed: u64, mode: Mode) -> u64 {
    digest_of(crowded(seed, mode), seed)
}

fn digest_of(mut machine: Machine, seed: u64) -> u64 {
    let digest = Rc::new(RefCell::new(0xcbf2_9ce4_8422_2325));
    machine.log_decisions(Box::new(Digest(Rc::clone(&digest))));
    let mut rng = Rng::new(seed);
    for step in 0..6000 {
        let volume = VolumeId(rng.below(8) as u32);
        let operation = match rng.below(40) {
            0 => Operation::Trim,
            1 => Operation::Flush,
            2 => Operation::Cache,
            3..=12 => Operation::Write,
            _ => Operation::Read,
        };
        // Half of the requests go in order, some touch parts of blocks.
        let block = if rng.below(2) == 0 { step / 4 % 200 } else { rng.below(200) };
        let (skip, length) = if rng.below(4) == 0 {
            (512 * rng.below(8), 512 * (1 + rng.below(16)))
        } else {
            (0, BLOCK * (1 + rng.below(6)))
        };
        let length = if operation == Operation::Flush { 0 } else { length };
        let at = Nanos::from_micros(step * 40);
        machine.submit(at, volume, &call(operation, block * BLOCK + skip, length));
    }
    machine.drain(None);
    digest.take()
}

struct Nobody;

impl DecisionLog for Nobody {
    fn on_action(&mut self, _: Nanos, _: &Action) {}
}

/// Where every block is, and whether it is dirty there.
fn places(machine: &mut Machine) -> Vec<(Option<layby_types::LevelIndex>, bool)> {
    let keys = (0..8).flat_map(|volume| (0..256).map(move |block| (volume, block)));
    let keys = keys.map(|(volume, block)| (VolumeId(volume), layby_types::BlockIndex(block)));
    keys.map(|(volume, block)| {
        (machine.cache().level_of(volume, block), machine.cache().is_dirty(volume, block))
    })
    .collect()
}

/// Goal: reads that are counted at once leave the same node behind as those whose actions are
/// performed. Method: a log makes a machine perform them; random loads with and without one, every
/// other one with a filter, and after every few requests all blocks, counters and costs compared.
#[test]
fn reads_at_once_are_the_same_reads() {
    for seed in 0..12 {
        let build = || {
            let mut machine = crowded(seed, Mode::Counting);
            let mut cache = machine.cache().spec().clone();
            cache.read_ahead.window_bytes_max = 0;
            if seed % 2 == 1 {
                let second = |class: &mut ClassSpec| class.admission = AdmissionKind::SecondMiss;
                cache.classes.iter_mut().for_each(second);
            }
            machine.cache().reconfigure(cache).expect("a sound specification");
            machine
        };
        let (mut counted, mut performed) = (build(), build());
        performed.log_decisions(Box::new(Nobody));
        let mut rng = Rng::new(seed);
        for step in 0..4000 {
            let writes = rng.below(100) < 20 * (seed % 3);
            let operation = if writes { Operation::Write } else { Operation::Read };
            let (volume, block) = (VolumeId(rng.below(8) as u32), rng.below(255));
            let call = call(operation, block * BLOCK, (1 + rng.below(2)) * BLOCK);
            for machine in [&mut counted, &mut performed] {
                machine.submit(Nanos::from_micros(step * 40), volume, &call);
            }
            if step % 100 == 0 {
                assert_eq!(counted.report(), performed.report(), "SEED={seed} step {step}");
                assert_eq!(places(&mut counted), places(&mut performed), "SEED={seed} {step}");
            }
        }
    }
}

/// Goal: making the cache or the simulator faster changes no decision. Method: digests of random
/// loads beside those that were written down; who changes a decision on purpose, renews them.
#[test]
fn decisions_are_those_written_down() {
    let counting = [0xcc6ec37fbe45c73f, 0xeee844c8bd2b5c17, 0x0a9feb3cc3a3db28, 0x53d26b3d7e805e1b];
    let queueing = [0x8387866059314a9a, 0xbfcd582594c04bdc, 0xe1484a3fa1e9207a, 0xfeaaec70b498051e];
    for (mode, expected) in [(Mode::Counting, counting), (Mode::Queueing, queueing)] {
        let found: Vec<u64> = (0..4).map(|seed| digest(seed, mode)).collect();
        assert_eq!(found, expected, "{mode:?}: {found:#x?}");
    }
}

/// Goal: a home that takes no time is one of counting, decision by decision. Method: digests of
/// random loads in both modes.
#[test]
fn a_home_without_latency_counts() {
    for seed in 0..8 {
        let mut machine = crowded(seed, Mode::Destaging);
        machine.home = Device::new(Model { write: Nanos::ZERO, ..Model::main_storage() });
        assert_eq!(digest_of(machine, seed), digest(seed, Mode::Counting), "SEED={seed}");
    }
}

/// Goal: background work that is due a little after now comes under steady load too. Method: a
/// lowered cap, then nothing but hits in memory, more often than the pause of background work.
#[test]
fn ticks_come_under_steady_load() {
    let mut machine = machine([8, 8, 8], Mode::Counting);
    let (hot, cold) = (VolumeId(1), VolumeId(2));
    machine.submit(Nanos::ZERO, cold, &call(Operation::Read, 0, 6 * BLOCK));
    for _ in 0..2 {
        machine.submit(Nanos::ZERO, hot, &call(Operation::Read, 0, BLOCK));
    }
    let used = |machine: &mut Machine| machine.cache().held_by(cold, LevelIndex(2)).0;
    assert_eq!(used(&mut machine), 6);
    let mut lowered = spec([8, 8, 8]);
    lowered.classes[1].shares[2].cap = 2;
    machine.cache().reconfigure(lowered).expect("a sound specification");
    for step in 0..20 {
        machine.submit(Nanos::from_micros(100 * step), hot, &call(Operation::Read, 0, BLOCK));
    }
    assert_eq!(used(&mut machine), 2);
}

/// Goal: for random mixes of classes, an operation of the best class never begins at a device
/// behind more bytes of lower ranks and of background work than the budget says, or one operation;
/// and everything ends. Method: three classes whose ranks are drawn, random requests over small
/// levels, windows met and missed at random, the limits drawn.
#[test]
fn nobody_better_waits_behind_more_than_the_budget() {
    use layby_cache::schedule::BudgetLimits;
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let mut cache = spec([8 + rng.below(24) as u32, 16 + rng.below(24) as u32, 64]);
        let outside = ClassSpec { name: "bulk".into(), rank: 2, ..cache.classes[1].clone() };
        cache.classes.push(outside);
        cache.classes.iter_mut().skip(1).for_each(|class| class.rank = rng.below(3) as u8);
        cache.read_ahead.window_bytes_max = (BLOCK * rng.below(16)) as u32;
        cache.read_ahead.streak_min = 2;
        let built_in = |name| Model::built_in(name).expect("Table I has it");
        let devices = ["dram", "nvm", "ssd"].map(built_in).to_vec();
        let (home, mode) = (Model::main_storage(), Mode::Queueing);
        let setup = Setup { cache, devices, home, mode, seed };
        let mut machine = Machine::new(setup).expect("a sound specification");
        let volumes = [VolumeId(1), VolumeId(2), VolumeId(3)];
        for (index, id) in volumes.into_iter().enumerate() {
            let class = ClassId(index as u8);
            let shares = [Share::OPEN; LEVELS_MAX];
            let volume = VolumeSpec { id, class, length: 1 << 20, shares, write_through: false };
            machine.add_volume(&volume).expect("a sound volume");
        }
        let bytes_max = BLOCK * (1 + rng.below(32));
        let budget = BudgetLimits {
            bytes_min: BLOCK,
            bytes_max,
            ios_min: 1,
            ios_max: 1 + rng.below(8) as u32,
        };
        let limits = ScheduleLimits { budget, ..ScheduleLimits::DEFAULT };
        machine.serve_by_rank(&limits, &volumes);
        let mut at = Nanos::ZERO;
        for _ in 0..400 {
            at = at.saturating_add(Nanos(rng.below(40_000)));
            let volume = volumes[rng.below(3) as usize];
            let operation = if rng.chance(1, 2) { Operation::Read } else { Operation::Write };
            let blocks = 1 + rng.below(16);
            let first = rng.below(240);
            machine.submit(at, volume, &call(operation, first * BLOCK, blocks * BLOCK));
            match rng.below(8) {
                0 => machine.on_window(Verdict::Missed),
                1 => machine.on_window(Verdict::Met),
                _ => {}
            }
        }
        machine.settle();
        let Isolation { ios, ahead_max, longest_bytes } = machine.isolation();
        assert!(ios > 0, "seed {seed}: the best class asked for something");
        let bound = bytes_max.max(longest_bytes);
        assert!(ahead_max.bytes <= bound, "seed {seed}: {ahead_max:?} of {bytes_max}");
        assert!(ahead_max.ios <= budget.ios_max, "seed {seed}: {ahead_max:?}");
        let idle = volumes.iter().all(|volume| machine.cache().is_idle(*volume));
        assert!(idle, "seed {seed}: everything ends");
        let devices = machine.devices.iter_mut().chain([&mut machine.home]);
        let waits = devices.filter_map(Device::queue).any(|queue| queue.waiting().ios > 0);
        assert!(!waits, "seed {seed}: nothing is held for ever");
    }
}

/// Goal: one level alone keeps what a node's level keeps: writes at once, what is read as the
/// filter says. Method: the same random references through a level under LRU, and through the
/// node's machine with services that use the SSD alone, under each filter. There is room for every
/// block: a node gives a promotion up where only dirty blocks could leave, filter or none.
#[test]
fn one_level_keeps_what_a_node_keeps() {
    use crate::single::{References, build};
    use layby_trace::{Record, Unit};
    let slots = 500;
    for (seed, admission) in (0..4).flat_map(|seed| AdmissionKind::ALL.map(|kind| (seed, kind))) {
        let mut rng = Rng::new(seed);
        let mut record = |_| {
            let operation = if rng.chance(1, 3) { Operation::Write } else { Operation::Read };
            let span = rng.below(400) + 1;
            let offset = rng.below(span) << 12;
            Record { at: Nanos::ZERO, volume: VolumeId(5), operation, offset, length: 4096 }
        };
        let records: Vec<Record> = (0..20_000).map(&mut record).collect();
        let devices = PadsaDevices::default();
        let (services, critical) = (None, Vec::new());
        let (slots_of, block_size) = ([4, 4, slots], BlockSize::MIN);
        let setup = PadsaSetup {
            slots: slots_of,
            admission,
            devices,
            block_size,
            services,
            critical,
            seed,
        };
        let mut node = PadsaReplay::new(setup).expect("the levels are sound");
        let mut level = build(EvictionKind::Lru, admission, slots, seed);
        let mut references = References::new(Unit::Bytes, BlockSize::MIN);
        let cut = references.cut(&records, |batch| {
            level.on_batch(batch);
            node.on_batch(batch).expect("one volume");
        });
        assert_eq!(cut, Ok(()));
        let (report, counts) = (node.report(), level.counts());
        let services = node.services(&report);
        let what = format!("{}, SEED={seed}", admission.name());
        assert_eq!(services[0].number, 5, "{what}");
        let seen = &services[0].seen;
        // What is lent are copies of what the SSD holds.
        assert_eq!(
            [seen.hits.iter().sum(), seen.blocks_read()],
            [counts.hits[0], counts.requests[0]],
            "{what}"
        );
        assert_eq!(report.levels[2].writes, counts.block_writes(), "{what}");
    }
}
