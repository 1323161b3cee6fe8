//! Parity: one trace through the engine on memory devices and through the simulator gives the same
//! decision log, byte for byte.
//!
//! How: `hosts` puts both behind the same calls; a load is a list of steps that both are given.
//! Invariant: whatever a step draws by chance is drawn once, before either host sees it.
//! Cost: a second or two. Not for: what queueing does to decisions; there the hosts' times differ.

mod hosts;

use self::hosts::{Engine, Host, LevelBytes, Lines, Simulator};
use layby_cache::{
    AdmissionKind, CacheSpec, ClassSpec, EvictionKind, LEVELS_MAX, LevelKind, LevelSpec,
    ReadAheadLimits, Share, VolumeSpec, Watermarks, WritebackLimits,
};
use layby_trace::{ReadOptions, Reader as _, Record, open};
use layby_types::{BlockSize, Call, CallFlags, ClassId, Nanos, Operation, Rng, VolumeId};
use std::collections::BTreeMap;
use std::path::Path;

const BLOCK: u64 = 4096;
/// The recorded trace: two volumes of 16 MiB under a mixed load, by `layby record`.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/recorded.parquet");
const VOLUME_BYTES: u64 = 16 << 20;
/// When the load begins: the engine's clock has moved while it made its stores.
const START: Nanos = Nanos::from_secs(1);
/// Steps between two changes of shares or classes.
const CHANGE_STEPS: usize = 500;
/// Lines shown around the first difference.
const CONTEXT: usize = 12;

/// One thing that both hosts are made to do.
enum Step {
    Call(Nanos, VolumeId, Call),
    Reconfigure(CacheSpec),
    SetVolume(VolumeSpec),
    RenewVolume(VolumeSpec),
}

/// A node: levels, classes, volumes.
struct Node {
    spec: CacheSpec,
    bytes: LevelBytes,
    volumes: Vec<VolumeSpec>,
    seed: u64,
}

fn spec() -> CacheSpec {
    let (eviction, watermarks) = (EvictionKind::Lru, Watermarks::DEFAULT);
    let level = |kind| LevelSpec { kind, slots: 1 << 20, eviction, watermarks };
    let class = |name: &str, rank, levels, durable_writes| ClassSpec {
        name: name.into(),
        rank,
        levels,
        durable_writes,
        borrow: true,
        keep_reads: rank == 0,
        latency_objective: None,
        admission: AdmissionKind::All,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    CacheSpec {
        block_size: BlockSize::MIN,
        levels: [LevelKind::Memory, LevelKind::Nvm, LevelKind::Ssd].map(level).into(),
        classes: vec![class("critical", 0, 0b111, true), class("normal", 1, 0b100, false)],
        writeback: WritebackLimits {
            idle_timeout: Nanos::from_millis(5),
            ..WritebackLimits::DEFAULT
        },
        read_ahead: ReadAheadLimits::DEFAULT,
    }
}

fn volume(id: u32, class: u8) -> VolumeSpec {
    let (id, class) = (VolumeId(id), ClassId(class));
    VolumeSpec {
        id,
        class,
        length: VOLUME_BYTES,
        shares: [Share::OPEN; LEVELS_MAX],
        write_through: false,
    }
}

impl Node {
    /// Levels of a few hundred blocks: the trace's footprint is several times as large.
    fn small(seed: u64) -> Node {
        let mut spec = spec();
        spec.levels[0].slots = 128;
        let bytes = [128 * BLOCK, 300 * BLOCK, 2048 * BLOCK];
        Node { spec, bytes, volumes: vec![volume(1, 0), volume(2, 1)], seed }
    }

    /// Levels, limits and classes by chance.
    fn drawn(rng: &mut Rng, seed: u64) -> Node {
        let mut node = Node::small(seed);
        let memory = 4 + rng.below(60);
        node.spec.levels[0].slots = memory as u32;
        node.bytes =
            [memory, 24 + rng.below(200), 2048 + rng.below(900)].map(|slots| slots * BLOCK);
        node.spec.writeback.idle_timeout = Nanos::from_micros(20 << rng.below(12));
        node.spec.writeback.merge_bytes = [4096, 16384, 1 << 20][rng.below(3) as usize];
        node.spec.writeback.inflight_max = 1 + rng.below(4) as u16;
        for level in &mut node.spec.levels[1..] {
            let (dirty_red, used_red) = (20 + rng.below(80) as u8, 60 + rng.below(41) as u8);
            let (dirty_green, used_green) = (dirty_red / 2, used_red - 10);
            level.watermarks = Watermarks { dirty_red, dirty_green, used_red, used_green };
        }
        if rng.chance(1, 3) {
            node.spec.read_ahead.window_bytes_max = 0;
        }
        node.spec.classes.iter_mut().for_each(|class| class.borrow = rng.chance(1, 2));
        if rng.chance(1, 4) {
            node.spec.classes[1].levels = 0b001;
        }
        // By the seed and not by chance, so that the loads stay what they were.
        if seed % 2 == 1 {
            node.spec.classes[seed as usize / 2 % 2].admission = AdmissionKind::SecondMiss;
        }
        node
    }

    /// The logs of both hosts over `steps`.
    fn logs(&self, steps: impl Fn(&CacheSpec) -> Vec<Step>) -> [String; 2] {
        let mut engine = Engine::new(self.spec.clone(), self.bytes, &self.volumes, self.seed);
        let spec = engine.spec();
        let mut simulator = Simulator::new(spec.clone(), &self.volumes, self.seed);
        let steps = steps(&spec);
        let (first, second) = (engine.log(), simulator.log());
        play(&mut engine, &steps);
        play(&mut simulator, &steps);
        [first, second].map(|lines: Lines| lines.take())
    }
}

fn play(host: &mut dyn Host, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Call(at, volume, call) => {
                host.advance_to(*at);
                host.submit(*volume, call);
            }
            Step::Reconfigure(spec) => host.reconfigure(spec.clone()),
            Step::SetVolume(spec) => host.set_volume(spec),
            Step::RenewVolume(spec) => host.renew_volume(spec),
        }
    }
}

/// A record as a client might have asked for it: a trace does not tell durable writes from others,
/// nor zeroings from trims.
fn call(record: &Record, rng: &mut Rng) -> Call {
    let mut flags = CallFlags::default();
    let operation = match record.operation {
        Operation::Trim if rng.chance(1, 2) => Operation::WriteZeroes,
        other => other,
    };
    flags.fua = operation != Operation::Read && rng.chance(1, 8);
    flags.no_hole = operation == Operation::WriteZeroes && rng.chance(1, 2);
    Call { cookie: 0, operation, offset: record.offset, length: record.length, flags }
}

/// The steps of a trace, with changes of shares, classes and volumes in between.
fn steps(node: &Node, spec: &CacheSpec, records: &[Record], rng: &mut Rng) -> Vec<Step> {
    let mut steps = Vec::new();
    for (index, record) in records.iter().enumerate() {
        if index % CHANGE_STEPS == CHANGE_STEPS - 1 {
            steps.push(change(node, spec, rng));
        }
        let at = START.saturating_add(record.at);
        steps.push(Step::Call(at, record.volume, call(record, rng)));
    }
    // Calm at the end, so that the idle timeout sends everything home.
    let end = records.last().map_or(START, |record| START.saturating_add(record.at));
    let flush = Call {
        cookie: 0,
        operation: Operation::Flush,
        offset: 0,
        length: 0,
        flags: CallFlags::default(),
    };
    steps.push(Step::Call(end.saturating_add(Nanos::from_secs(20)), node.volumes[0].id, flush));
    steps
}

fn change(node: &Node, spec: &CacheSpec, rng: &mut Rng) -> Step {
    let volume = &node.volumes[rng.below(node.volumes.len() as u64) as usize];
    let drawn = |rng: &mut Rng| -> [Share; LEVELS_MAX] {
        core::array::from_fn(|level| {
            let slots = spec.levels.get(level).map_or(0, |level| level.slots);
            let cap = slots / 4 + rng.below(u64::from(slots) + 1) as u32;
            Share { guaranteed: (slots / 4).min(cap), cap }
        })
    };
    match rng.below(6) {
        0 => Step::RenewVolume(volume.clone()),
        1 | 2 => Step::SetVolume(VolumeSpec { shares: drawn(rng), ..volume.clone() }),
        _ => {
            let mut spec = spec.clone();
            spec.classes.iter_mut().for_each(|class| class.shares = drawn(rng));
            Step::Reconfigure(spec)
        }
    }
}

fn assert_same(logs: &[String; 2], replay: &str) {
    let [engine, simulator] = logs;
    if engine == simulator {
        return;
    }
    let [ours, theirs]: [Vec<&str>; 2] = [engine, simulator].map(|log| log.lines().collect());
    let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    let show = |lines: &[&str]| {
        let from = at.saturating_sub(CONTEXT);
        lines[from..(at + CONTEXT).min(lines.len())].join("\n")
    };
    let (ours, theirs) = (show(&ours), show(&theirs));
    panic!("line {at} differs; {replay}\n--- engine\n{ours}\n--- simulator\n{theirs}");
}

/// Asserts that a log shows every kind of decision, so that a dull load is no proof.
fn assert_mixed(log: &str) {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for line in log.lines() {
        *counts.entry(line.split(' ').nth(1).expect("a time, then a word")).or_default() += 1;
    }
    for word in [
        "clean",
        "complete",
        "copy",
        "copy-level",
        "copy-verified",
        "deliver",
        "free",
        "merge",
        "read-home",
        "read-level",
        "release",
        "sync-level",
        "tombstone",
        "write-home",
        "write-level",
        "zero-home",
    ] {
        assert!(counts.contains_key(word), "no `{word}` in {counts:?}");
    }
}

fn recorded() -> Vec<Record> {
    let mut trace = open(Path::new(RECORDED), None, ReadOptions::default()).expect("test data");
    let (mut records, mut batch) = (Vec::new(), Vec::new());
    while trace.fill(&mut batch).expect("test data") > 0 {
        records.extend_from_slice(&batch);
    }
    records
}

/// Goal: engine and simulator decide alike on what a node recorded. Method: the recorded trace of a
/// mixed load through both, with changes of shares in between; the logs, byte for byte.
#[test]
fn a_recorded_trace_gives_one_log() {
    let (records, node) = (recorded(), Node::small(1));
    let logs = node.logs(|spec| steps(&node, spec, &records, &mut Rng::new(1)));
    assert_mixed(&logs[0]);
    assert_same(&logs, "the recorded trace");
}

/// A load of bursts and pauses: scattered and sequential reads, writes of parts, trims, flushes.
fn drawn_records(rng: &mut Rng, count: usize) -> Vec<Record> {
    let (mut at, mut cursor) = (0, 0);
    let blocks = 1 + rng.below(VOLUME_BYTES / BLOCK - 64);
    let record = |_| {
        at += if rng.chance(1, 50) { rng.below(20_000_000) } else { rng.below(40_000) };
        let volume = VolumeId(1 + rng.below(2) as u32);
        let (operation, offset, length) = match rng.below(20) {
            0 => (Operation::Flush, 0, 0),
            1 => (Operation::Trim, rng.below(blocks) * BLOCK, (1 + rng.below(64)) * BLOCK),
            2..=8 => (Operation::Write, rng.below(blocks * 8) * 512, (1 + rng.below(32)) * 512),
            9..=13 => {
                cursor = if rng.chance(1, 30) { rng.below(blocks) } else { (cursor + 4) % blocks };
                (Operation::Read, cursor * BLOCK, 4 * BLOCK)
            }
            _ => (Operation::Read, rng.below(blocks * 8) * 512, (1 + rng.below(16)) * 512),
        };
        Record { at: Nanos(at), volume, operation, offset, length }
    };
    (0..count).map(record).collect()
}

/// Goal: parity holds for levels, limits and loads that nobody thought of. Method: random ones,
/// `SEEDS` of them from `FIRST` on.
#[test]
fn random_loads_give_one_log() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, count) = match number("SEED") {
        Some(seed) => (seed, 1),
        None => (number("FIRST").unwrap_or(0), number("SEEDS").unwrap_or(30)),
    };
    for seed in first..first + count {
        let mut rng = Rng::new(seed);
        let node = Node::drawn(&mut rng, seed);
        let records = drawn_records(&mut rng, 1500);
        let logs = node.logs(|spec| steps(&node, spec, &records, &mut rng.clone()));
        assert_same(&logs, &format!("replay with SEED={seed}"));
    }
}
