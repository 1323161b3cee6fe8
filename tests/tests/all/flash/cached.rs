//! The level with its cache in front: what a client's block costs the flash, and what it hits.
//!
//! How: the engine's own core, one SSD level and one volume in a file, over the simulated disks of
//! [`super::recorder`]; requests of one block come at a depth of 32, all of them end. The same run
//! is made with `cold_percent` at 15, its default, and at 0.
//! Invariant: what is asked for is the same in both. Cost: a minute per load at 256 MiB.

use super::recorder::{BLOCK, METADATA, Recorder, device};
use layby_cache::cleaning::Limits;
use layby_cache::{
    AdmissionKind, CacheSpec, ClassSpec, EvictionKind, LEVELS_MAX, LevelKind, LevelSpec,
    ReadAheadLimits, Share, VolumeSpec, Watermarks, WritebackLimits,
};
use layby_device::flash::Flash;
use layby_engine::core::{Asker, Core, HomePlan, LevelPlan, WearPlan};
use layby_engine::io::{Io, SimIo};
use layby_engine::store::{LogGeometry, Region, SegmentPlan, StoreIdentity, slots_for};
use layby_trace::{Scatter, Zipf};
use layby_types::{
    BlockSize, Call, CallFlags, ClassId, LevelIndex, Operation, Rng, ShardIndex, VolumeId,
};

const VOLUME: VolumeId = VolumeId(1);
const LEVEL: LevelIndex = LevelIndex(0);
/// Pages programmed per block stored, beside the run that drops nothing, at most.
const SPARED: f64 = 0.95;
/// Points of hits that this may cost.
const HITS_LOST: f64 = 0.5;

/// What clients ask for, in parts of the level's slots.
#[derive(Clone, Copy, Debug)]
struct Load {
    name: &'static str,
    /// Blocks that are asked for (%).
    footprint: u64,
    /// Of the requests, those that read (%).
    reads: u64,
    choice: Choice,
}

/// Which block is next.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Even,
    /// Nine in ten requests to a tenth of the blocks.
    Hot,
    /// The same, and a fifth of all requests read blocks that were never asked for.
    Fresh,
    /// Zipf 0.99.
    Skewed,
}

const LOADS: [Load; 6] = [
    Load { name: "even-fit", footprint: 90, reads: 50, choice: Choice::Even },
    Load { name: "even-over", footprint: 150, reads: 50, choice: Choice::Even },
    Load { name: "hot-fit", footprint: 90, reads: 50, choice: Choice::Hot },
    Load { name: "hot-over", footprint: 200, reads: 50, choice: Choice::Hot },
    Load { name: "promo", footprint: 90, reads: 50, choice: Choice::Fresh },
    Load { name: "zipf", footprint: 400, reads: 70, choice: Choice::Skewed },
];

/// What a run counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: u64,
    reads: u64,
    hits: u64,
    /// Blocks written by clients or promoted.
    stored: u64,
    dropped: u64,
    destaged: u64,
    /// Blocks written to the volume's home.
    home: u64,
    /// Pages that the log wrote, and that the devices programmed.
    log: u64,
    programmed: [u64; 2],
}

impl Counts {
    fn since(&self, before: &Counts) -> Counts {
        Counts {
            requests: self.requests - before.requests,
            reads: self.reads - before.reads,
            hits: self.hits - before.hits,
            stored: self.stored - before.stored,
            dropped: self.dropped - before.dropped,
            destaged: self.destaged - before.destaged,
            home: self.home - before.home,
            log: self.log - before.log,
            programmed: [0, 1].map(|at| self.programmed[at] - before.programmed[at]),
        }
    }
}

struct Bench {
    recorder: Recorder,
    core: Core,
    rng: Rng,
    zipf: Zipf,
    scatter: Scatter,
    blocks: u64,
    fresh: u64,
    depth: u32,
    in_flight: u32,
    requests: u64,
    reads: u64,
}

fn spec(slots: u32) -> CacheSpec {
    CacheSpec {
        block_size: BlockSize::MIN,
        levels: vec![LevelSpec {
            kind: LevelKind::Ssd,
            slots,
            eviction: EvictionKind::Lru,
            watermarks: Watermarks::DEFAULT,
        }],
        classes: vec![ClassSpec {
            name: "normal".into(),
            rank: 0,
            levels: 1,
            durable_writes: false,
            borrow: true,
            keep_reads: true,
            latency_objective: None,
            admission: AdmissionKind::All,
            shares: [Share::OPEN; LEVELS_MAX],
        }],
        writeback: WritebackLimits::DEFAULT,
        read_ahead: ReadAheadLimits { window_bytes_max: 0, ..ReadAheadLimits::DEFAULT },
    }
}

impl Bench {
    fn new(load: Load, blocks: u32, segments: SegmentPlan, seed: u64) -> Bench {
        let (length, block_size) = (u64::from(blocks) * BLOCK as u64, BlockSize::MIN);
        let slots = u64::from(slots_for(length, block_size, &segments));
        let footprint = slots * load.footprint / 100;
        // Fresh blocks lie behind those that are asked for again.
        let home_blocks =
            footprint + if matches!(load.choice, Choice::Fresh) { 8 * slots } else { 0 };
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("ssd", length);
        let home = io.add_disk("home", home_blocks * BLOCK as u64);
        let region = Region { disk, base: 0, length, block_size };
        let geometry = LogGeometry::plan(length, block_size, &segments).expect("many segments");
        let devices = [METADATA + 1, 1].map(|streams| device(blocks, segment_of(blocks), streams));
        let streams = vec![METADATA; geometry.segment_count as usize];
        let mut recorder = Recorder {
            io,
            disk,
            instance: 0,
            geometry,
            base: 0,
            streams,
            devices,
            bytes_elsewhere: 0,
        };
        let plans = [LevelPlan::Ssd {
            region,
            format: true,
            is_strict: false,
            known: None,
            segments,
            wear: WearPlan::default(),
        }];
        let volume = VolumeSpec {
            id: VOLUME,
            class: ClassId(0),
            length: home_blocks * BLOCK as u64,
            shares: [Share::OPEN; LEVELS_MAX],
            write_through: false,
        };
        let homes = vec![HomePlan::on_disk(volume, home, "home".into())];
        let identity = StoreIdentity { node: [5; 16], shard: ShardIndex(0), shard_count: 1 };
        let started = Core::start(&mut recorder, spec(1 << 20), &plans, identity, homes, seed);
        let (mut core, _) = started.expect("a fresh level starts");
        // What is kept is counted from where the backing store is known to be durable.
        while !core.is_settled() {
            core.turn(&mut recorder);
        }
        Bench {
            recorder,
            core,
            rng: Rng::new(seed ^ 0xf1a5),
            zipf: Zipf::new(footprint, 0.99),
            scatter: Scatter::new(footprint),
            blocks: footprint,
            fresh: footprint,
            depth: 32,
            in_flight: 0,
            requests: 0,
            reads: 0,
        }
    }

    fn ask(&mut self, operation: Operation, block: u64) {
        self.requests += 1;
        self.reads += u64::from(operation == Operation::Read);
        let payload = [block as u8; BLOCK];
        let bytes = if operation == Operation::Write { &payload[..] } else { &[] };
        let offset = block * BLOCK as u64;
        let flags = CallFlags::default();
        let call = Call { cookie: 0, operation, offset, length: BLOCK as u64, flags };
        let asker = Asker(self.requests);
        self.core.submit(&mut self.recorder, asker, VOLUME, call, bytes, None);
        self.in_flight += 1;
        self.end_all_but(self.depth - 1);
    }

    /// Lets requests end until so many are left.
    fn end_all_but(&mut self, left: u32) {
        while self.in_flight > left {
            self.core.turn(&mut self.recorder);
            while let Some(finished) = self.core.take_finished() {
                finished.result.expect("no device fails here");
                self.in_flight -= 1;
            }
        }
    }

    fn step(&mut self, load: Load) {
        let is_read = self.rng.below(100) < load.reads;
        let is_fresh = matches!(load.choice, Choice::Fresh) && self.rng.chance(1, 5);
        if is_fresh {
            self.fresh += 1;
            return self.ask(Operation::Read, self.fresh - 1);
        }
        let blocks = self.blocks;
        let drawn = match load.choice {
            Choice::Even => self.rng.below(blocks),
            Choice::Skewed => self.scatter.place(self.zipf.sample(&mut self.rng)),
            Choice::Hot | Choice::Fresh if self.rng.chance(9, 10) => {
                self.rng.below(blocks / 10) * 7919 % blocks
            }
            Choice::Hot | Choice::Fresh => self.rng.below(blocks) * 7919 % blocks,
        };
        self.ask(if is_read { Operation::Read } else { Operation::Write }, drawn);
    }

    fn counts(&mut self) -> Counts {
        let now = self.recorder.now();
        let counters = self.core.cache().level_view(LEVEL, now).counters;
        let devices = self.recorder.devices.each_ref().map(Flash::statistics);
        Counts {
            requests: self.requests,
            reads: self.reads,
            hits: counters.hits,
            stored: counters.writes,
            dropped: counters.cleaning_dropped,
            destaged: counters.cleaning_destaged,
            home: self.recorder.bytes_elsewhere / BLOCK as u64,
            log: devices[0].host_pages,
            programmed: devices.map(|it| it.programmed_pages()),
        }
    }
}

/// Blocks of a segment, and of an erase block.
fn segment_of(blocks: u32) -> u32 {
    blocks / 256
}

/// Prefills a level, asks until it has settled, then counts.
fn run(load: Load, blocks: u32, cleaning: Limits, passes: u64, seed: u64) -> Counts {
    let bytes = u64::from(segment_of(blocks)) * BLOCK as u64;
    let segments = SegmentPlan { bytes, cleaning, ..SegmentPlan::default() };
    let mut bench = Bench::new(load, blocks, segments, seed);
    let slots = u64::from(bench.recorder.geometry.slot_count);
    (0..bench.blocks.min(slots)).for_each(|block| bench.ask(Operation::Write, block));
    (0..passes * slots).for_each(|_| bench.step(load));
    let before = bench.counts();
    (0..passes * slots).for_each(|_| bench.step(load));
    bench.end_all_but(0);
    bench.counts().since(&before)
}

/// Goal: dropping what is cold spares the flash a twentieth at least where the footprint does not
/// fit, for half a point of hits at most, and drops nothing where it does. Method: each load with
/// the default limits and with none; `LAYBY_FLASH_BLOCKS` sets the level's size, and then figures
/// are told and only the last is claimed: `cargo xtask bench flash-waf`.
#[test]
#[expect(clippy::print_stdout, reason = "the bench entry reads the figures")]
fn dropping_what_is_cold_spares_the_flash() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let told: Option<u64> = number("LAYBY_FLASH_BLOCKS");
    let blocks = told.unwrap_or(1 << 14) as u32;
    let seed = number("LAYBY_SEED").unwrap_or(1);
    let passes = if told.is_some() { 6 } else { 2 };
    let off = Limits { cold_percent: 0, ..Limits::DEFAULT };
    for load in LOADS {
        let [with, without] =
            [Limits::DEFAULT, off].map(|limits| run(load, blocks, limits, passes, seed));
        let total = |it: &Counts, at: usize| it.programmed[at] as f64 / it.stored as f64;
        let hits = |it: &Counts| it.hits as f64 * 100.0 / it.reads as f64;
        let home = |it: &Counts| it.home as f64 / it.requests as f64;
        let line = serde_json::json!({
            "load": load.name, "seed": seed,
            "total": total(&with, 0), "total_off": total(&without, 0),
            "no_streams": total(&with, 1), "no_streams_off": total(&without, 1),
            "log": with.log as f64 / with.stored as f64,
            "hits": hits(&with), "hits_off": hits(&without),
            "home": home(&with), "home_off": home(&without),
            "dropped": with.dropped, "destaged": with.destaged, "stored": with.stored,
        });
        let fits = load.footprint <= 100 && !matches!(load.choice, Choice::Fresh);
        assert!(!fits || with.dropped + with.destaged == 0, "{}: {with:?}", load.name);
        if load.footprint > 100 && told.is_none() {
            assert!(total(&with, 0) < SPARED * total(&without, 0), "{}: {with:?}", load.name);
            assert!(hits(&with) > hits(&without) - HITS_LOST, "{}: {with:?}", load.name);
        }
        println!("behind the cache {line}");
    }
}
