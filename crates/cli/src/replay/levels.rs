//! `layby replay --levels`: a trace through DRAM, NVM and SSD as a node runs them.
//!
//! How: the sim room drives the node's state machine; here are words, and the answer as tables for
//! people or JSON for scripts.
//! Invariant: the same words give the same answer but for its times.

use super::size::CacheSize;
use super::{ReplayArguments, footprint, nothing_to_replay, now, pass};
use crate::devices::{Devices, MAIN};
use crate::output::{Failure, Output, table};
use crate::trace::{note_open_end, source};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::types::{BlockSize, Nanos};
use layby_sim::device::Model;
use layby_sim::levels::{
    self, BlocksMoved, DestagePace, PADSA_LEVELS, PadsaDevices, PadsaError, PadsaReplay,
    PadsaSetup, ServiceReport, VolumeReport,
};
use layby_sim::single::References;
use layby_trace::{Reader, Unit};
use serde::Serialize;

/// The names of the levels, fastest first.
const LEVELS: [&str; PADSA_LEVELS] = ["DRAM", "NVM", "SSD"];

/// The names of their devices, unless others are chosen.
const DEVICES: [&str; PADSA_LEVELS] = ["dram", "nvm", "ssd"];

/// Three sizes, fastest level first, and the devices that were chosen with `SIZE@NAME`.
#[derive(Clone, Debug)]
pub(super) struct LevelSizes {
    sizes: [CacheSize; PADSA_LEVELS],
    devices: [Option<String>; PADSA_LEVELS],
}

impl std::str::FromStr for LevelSizes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (mut sizes, mut devices) = (Vec::new(), Vec::new());
        for level in text.split(',') {
            let (size, device) = match level.split_once('@') {
                Some((size, device)) => (size, Some(device.trim().to_owned())),
                None => (level, None),
            };
            sizes.push(size.parse()?);
            devices.push(device);
        }
        let sizes = <[CacheSize; PADSA_LEVELS]>::try_from(sizes);
        let devices = <[Option<String>; PADSA_LEVELS]>::try_from(devices);
        sizes
            .ok()
            .zip(devices.ok())
            .map(|(sizes, devices)| LevelSizes { sizes, devices })
            .ok_or_else(|| {
                format!("`{text}` is not one size each for DRAM, NVM and SSD, such as 1%,4%,16%")
            })
    }
}

impl LevelSizes {
    /// Slots of each level; `footprint` is known where one of the sizes needs it.
    fn slots(
        &self,
        unit: Unit,
        block_size: BlockSize,
        footprint: Option<u32>,
    ) -> Result<[u32; PADSA_LEVELS], Report> {
        let mut slots = [0; PADSA_LEVELS];
        for (slots, size) in slots.iter_mut().zip(&self.sizes) {
            *slots = size.level_slots(unit, block_size, footprint)?;
        }
        Ok(slots)
    }

    /// The devices of levels and home.
    fn devices(&self, arguments: &ReplayArguments) -> Result<PadsaDevices, Report> {
        let known = Devices::load(&arguments.devices)?;
        let chosen = self.devices.iter().zip(DEVICES);
        let mut names: Vec<&str> =
            chosen.map(|(chosen, usual)| chosen.as_deref().unwrap_or(usual)).collect();
        names.push(arguments.home.as_deref().unwrap_or(MAIN));
        let mut models = Vec::with_capacity(names.len());
        for name in &names {
            models.push(known.find(name)?);
        }
        known.check_used(&names)?;
        let home = models.pop().expect("the home came last");
        let levels = models.try_into().expect("a device was found for each level");
        Ok(PadsaDevices { levels, home })
    }
}

/// The answer for scripts.
#[derive(Debug, Serialize)]
struct LevelsAnswer {
    format: &'static str,
    /// `bytes` or `objects`: what offsets are.
    unit: &'static str,
    block_bytes: u32,
    /// References to blocks.
    requests: u64,
    passed_over: u64,
    /// Records left out by `--lenient`.
    skipped: u64,
    /// Distinct blocks; null unless a size asked for them.
    footprint_blocks: Option<u32>,
    admission: &'static str,
    seed: u64,
    /// As many services as `--services` dealt the blocks out to; null: each volume is one.
    services_dealt: Option<u32>,
    /// Numbers of the critical services.
    critical: Vec<u32>,
    levels: Vec<LevelAnswer>,
    home: DeviceAnswer,
    destaging: DestagingAnswer,
    /// Both classes, then every service.
    services: Vec<ServiceAnswer>,
    /// Null for objects, as `bytes_written` of levels: a block is an object of any size.
    home_bytes_read: Option<u64>,
    home_bytes_written: Option<u64>,
    memory_bytes: usize,
    /// From beginning to end, reading included.
    seconds: f64,
    requests_per_second: f64,
}

#[derive(Debug, Serialize)]
struct LevelAnswer {
    name: &'static str,
    device: DeviceAnswer,
    blocks: u32,
    /// Blocks stored: client writes, promotions, evictions from above.
    block_writes: u64,
    evictions: u64,
    /// Blocks copied home.
    destaged: u64,
    bytes_written: Option<u64>,
}

/// What an access of a block was taken to cost.
#[derive(Debug, Serialize)]
struct DeviceAnswer {
    name: String,
    read_us: f64,
    write_us: f64,
}

impl DeviceAnswer {
    fn new(model: &Model) -> Self {
        let us = |time: Nanos| time.0 as f64 / 1e3;
        let name = model.name.clone();
        DeviceAnswer { name, read_us: us(model.read), write_us: us(model.write) }
    }
}

/// How fast dirty blocks went home.
#[derive(Debug, Serialize)]
struct DestagingAnswer {
    /// Writes in flight at most.
    inflight_max: u16,
    /// Of so many blocks at most.
    run_blocks_max: u32,
    /// Of these the home serves so many at once.
    home_channels: u16,
    idle_timeout_seconds: f64,
    /// From the first request to the last by the replay's clock, waiting for room included.
    elapsed_seconds: f64,
}

impl DestagingAnswer {
    fn new(pace: DestagePace) -> Self {
        DestagingAnswer {
            inflight_max: pace.inflight_max,
            run_blocks_max: pace.run_blocks,
            home_channels: pace.channels,
            idle_timeout_seconds: pace.calm.0 as f64 / 1e9,
            elapsed_seconds: 0.0,
        }
    }

    fn note(&self, home: &DeviceAnswer) -> String {
        let DestagingAnswer { inflight_max, run_blocks_max, home_channels, .. } = self;
        format!(
            "destaging: at most {inflight_max} writes of up to {run_blocks_max} blocks in flight, \
             {home_channels} served at once in {} us; {:.3} s passed",
            home.write_us, self.elapsed_seconds
        )
    }
}

#[derive(Debug, Serialize)]
struct ServiceAnswer {
    name: String,
    class: &'static str,
    reads: u64,
    writes: u64,
    /// Blocks read that each level had, fastest first.
    hits: [u64; PADSA_LEVELS],
    misses: u64,
    /// Null where nothing was read.
    hit_ratio: Option<f64>,
    read_us_mean: Option<f64>,
    /// Null where nothing was written.
    write_us_mean: Option<f64>,
}

pub(super) fn run(
    arguments: &ReplayArguments,
    sizes: &LevelSizes,
    output: &mut Output,
) -> Result<(), Failure> {
    let start = now();
    let devices = sizes.devices(arguments)?;
    let block_size = arguments.block.block_size;
    let two_passes = sizes.sizes.iter().any(|size| size.needs_footprint(block_size));
    let footprint = if two_passes { Some(footprint(arguments, output)?) } else { None };
    if footprint == Some(0) {
        return Err(nothing_to_replay(&arguments.source).into());
    }
    let (mut trace, bar) = source(&arguments.source, output)?;
    let slots = sizes.slots(trace.unit(), block_size, footprint)?;
    let (services, seed, admission) = (arguments.services, arguments.seed, arguments.admission);
    let critical = arguments.critical.clone();
    let critical = critical.unwrap_or_else(|| (0..services.unwrap_or(0) / 2).collect());
    let setup = PadsaSetup {
        slots,
        admission,
        devices: devices.clone(),
        block_size,
        services,
        critical: critical.clone(),
        seed,
    };
    let mut replay = PadsaReplay::new(setup).map_err(|cause| refused(arguments, cause))?;
    let mut references = References::new(trace.unit(), block_size).with_times();
    let (mut requests, mut done) = (0, Ok(()));
    pass(arguments, (&mut trace, &bar), &mut references, |batch| {
        requests += batch.len() as u64;
        done = done.and_then(|()| replay.on_batch(batch));
        Ok(())
    })?;
    done.map_err(|cause| refused(arguments, cause))?;
    if requests == 0 {
        return Err(nothing_to_replay(&arguments.source).into());
    }
    if let Some(number) = replay.critical_absent() {
        return Err(absent(arguments, number, &replay).into());
    }
    note_open_end(&trace);
    let elapsed = replay.elapsed();
    replay.end();
    let seconds = start.elapsed().as_secs_f64();
    let block = Block { unit: trace.unit(), bytes: block_size.bytes() };
    let mut answer = LevelsAnswer::new(&mut replay, slots, &devices, block, (requests, seconds));
    (answer.passed_over, answer.skipped) = (references.passed_over(), trace.skipped().total());
    (answer.footprint_blocks, answer.seed) = (footprint, seed);
    (answer.format, answer.admission) = (trace.format().name(), admission.name());
    (answer.services_dealt, answer.critical) = (services, critical);
    answer.destaging.elapsed_seconds = elapsed.0 as f64 / 1e9;
    if arguments.json { output.json(&answer) } else { answer.show(output) }
}

fn refused(arguments: &ReplayArguments, cause: PadsaError) -> Report {
    let trace = arguments.source.trace.display();
    Report::new(ReportKind::Invalid, format!("cannot replay `{trace}` through levels"))
        .cause(cause.to_string())
        .state("the trace is untouched")
        .hint("sample or cut the trace with `layby trace`, or replay one level without --levels")
}

/// Volumes that a report names at most.
const NAMED_MAX: usize = 16;

/// The report of a critical volume that the trace does not have.
fn absent(arguments: &ReplayArguments, number: u32, replay: &PadsaReplay) -> Report {
    let services = replay.services(&replay.report());
    let named = services.iter().take(NAMED_MAX).map(|service| service.number.to_string());
    let more = if services.len() > NAMED_MAX { ", …" } else { "" };
    let named = format!("{}{more}", named.collect::<Vec<_>>().join(", "));
    let trace = arguments.source.trace.display();
    let error = format!("no volume of `{trace}` that is read or written has the number {number}");
    Report::new(ReportKind::Invalid, error)
        .cause(format!("--critical names volume {number}; the trace has {named}"))
        .state("the trace is untouched, and no figure is shown")
        .hint("name volumes by the trace's own numbers, as `layby trace info` lists them")
}

/// What a block of the replay is of the trace.
#[derive(Clone, Copy)]
struct Block {
    unit: Unit,
    bytes: u32,
}

impl Block {
    /// The bytes of `count` blocks, where blocks have so many.
    fn bytes_of(self, count: u64) -> Option<u64> {
        (self.unit == Unit::Bytes).then(|| count * u64::from(self.bytes))
    }
}

impl LevelsAnswer {
    fn new(
        replay: &mut PadsaReplay,
        slots: [u32; PADSA_LEVELS],
        devices: &PadsaDevices,
        block: Block,
        (requests, seconds): (u64, f64),
    ) -> Self {
        let report = replay.report();
        let moved = BlocksMoved::of(&report);
        let mut classes = [VolumeReport::default(), VolumeReport::default()];
        let mut services = Vec::new();
        for ServiceReport { number, is_critical, seen } in replay.services(&report) {
            classes[usize::from(!is_critical)].add(&seen);
            let class = if is_critical { "critical" } else { "normal" };
            services.push(ServiceAnswer::new(number.to_string(), class, &seen));
        }
        let whole = ["critical", "normal"].into_iter().zip(&classes);
        let whole = whole.filter(|(_, class)| class.blocks_read() + class.blocks_written() > 0);
        let whole = whole.map(|(class, sum)| ServiceAnswer::new("all".to_owned(), class, sum));
        LevelsAnswer {
            unit: if block.unit == Unit::Bytes { "bytes" } else { "objects" },
            block_bytes: block.bytes,
            requests,
            passed_over: 0,
            skipped: 0,
            footprint_blocks: None,
            format: "",
            admission: "",
            seed: 0,
            services_dealt: None,
            critical: Vec::new(),
            levels: level_answers(&report, slots, devices, |level| {
                block.bytes_of(moved.levels_written[level])
            }),
            home: DeviceAnswer::new(&devices.home),
            destaging: DestagingAnswer::new(replay.pace()),
            services: whole.chain(services).collect(),
            home_bytes_read: block.bytes_of(moved.backing_read),
            home_bytes_written: block.bytes_of(moved.backing_written),
            memory_bytes: replay.memory_bytes(),
            seconds,
            requests_per_second: requests as f64 / seconds.max(1e-9),
        }
    }

    fn show(&self, output: &mut Output) -> Result<(), Failure> {
        let headings = [
            "service",
            "class",
            "reads",
            "writes",
            "DRAM",
            "NVM",
            "SSD",
            "misses",
            "hit ratio",
            "read us",
            "write us",
        ];
        let mut rows = table(headings, 2);
        let figure = |figure: Option<f64>, digits: usize| {
            figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        for service in &self.services {
            let [dram, nvm, ssd] = service.hits.map(|hits| hits.to_string());
            rows.add_row([
                service.name.clone(),
                service.class.to_owned(),
                service.reads.to_string(),
                service.writes.to_string(),
                dram,
                nvm,
                ssd,
                service.misses.to_string(),
                figure(service.hit_ratio, 4),
                figure(service.read_us_mean, 2),
                figure(service.write_us_mean, 2),
            ]);
        }
        output.line(&rows.to_string())?;
        output.line("")?;
        output.line(&self.level_table())?;
        for line in self.notes() {
            output.line(&line)?;
        }
        Ok(())
    }

    fn level_table(&self) -> String {
        let headings = [
            "level",
            "device",
            "read us",
            "write us",
            "blocks",
            "block writes",
            "evictions",
            "destaged",
        ];
        let mut rows = table(headings, 2);
        let device = |device: &DeviceAnswer| {
            let (read, write) = (device.read_us.to_string(), device.write_us.to_string());
            [device.name.clone(), read, write]
        };
        for level in &self.levels {
            let counts = [u64::from(level.blocks), level.block_writes, level.evictions];
            let counts = counts.into_iter().chain([level.destaged]).map(|count| count.to_string());
            let head = [level.name.to_owned()].into_iter().chain(device(&level.device));
            rows.add_row(head.chain(counts));
        }
        rows.add_row(["home".to_owned()].into_iter().chain(device(&self.home)));
        rows.to_string()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("{} requests of one block each", self.requests)];
        if let Some(blocks) = self.footprint_blocks {
            notes.push(format!("footprint {blocks} blocks"));
        }
        if self.passed_over > 0 {
            notes.push(format!("{} trims and flushes were passed over", self.passed_over));
        }
        if self.skipped > 0 {
            notes.push(format!("{} records were wrong and left out", self.skipped));
        }
        notes.push(self.destaging.note(&self.home));
        let (seconds, speed) = (self.seconds, self.requests_per_second / 1e6);
        notes.push(format!("{seconds:.2} s in all, reading included: {speed:.1} M requests/s"));
        notes
    }
}

fn level_answers(
    report: &levels::Report,
    slots: [u32; PADSA_LEVELS],
    devices: &PadsaDevices,
    bytes_written: impl Fn(usize) -> Option<u64>,
) -> Vec<LevelAnswer> {
    let named = LEVELS.into_iter().zip(slots).zip(&report.levels).zip(&devices.levels);
    named
        .enumerate()
        .map(|(place, (((name, blocks), level), model))| LevelAnswer {
            name,
            device: DeviceAnswer::new(model),
            blocks,
            block_writes: level.writes,
            evictions: level.evictions,
            destaged: level.destaged,
            bytes_written: bytes_written(place),
        })
        .collect()
}

impl ServiceAnswer {
    fn new(name: String, class: &'static str, volume: &VolumeReport) -> Self {
        let (reads, writes) = (volume.blocks_read(), volume.blocks_written());
        let mean = |ns: f64, count: u64| (count > 0).then(|| ns / 1e3 / count as f64);
        ServiceAnswer {
            name,
            class,
            reads,
            writes,
            hits: std::array::from_fn(|level| volume.hits[level]),
            misses: volume.misses,
            hit_ratio: (reads > 0).then(|| volume.hit_ratio()),
            read_us_mean: mean(volume.read_ns, reads),
            write_us_mean: mean(volume.write_ns, writes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_daemon::types::{Operation, VolumeId};
    use layby_sim::policy::AdmissionKind;
    use layby_trace::Record;

    /// Blocks of the trace that is written twice over.
    const FOOTPRINT: u32 = 3000;

    /// What moves, and what each level destages, where every block is written twice.
    fn moved(sizes: &str) -> (BlocksMoved, Vec<u64>) {
        let sizes: LevelSizes = sizes.parse().expect("three sizes");
        let block_size = BlockSize::DEFAULT;
        let is_known = sizes.sizes.iter().any(|size| size.needs_footprint(block_size));
        let footprint = is_known.then_some(FOOTPRINT);
        let slots = sizes.slots(Unit::Bytes, block_size, footprint).expect("none is empty");
        let admission = AdmissionKind::All;
        // No critical volume: the SSD holds what is written.
        let (services, critical, seed) = (None, Vec::new(), 1);
        let devices = PadsaDevices::default();
        let setup = PadsaSetup { slots, admission, devices, block_size, services, critical, seed };
        let mut replay = PadsaReplay::new(setup).expect("the levels agree");
        let mut references = References::new(Unit::Bytes, block_size);
        let length = u64::from(block_size.bytes());
        for index in 0..2 * u64::from(FOOTPRINT) {
            let offset = index * 7 % u64::from(FOOTPRINT) * length;
            let (volume, operation) = (VolumeId(0), Operation::Write);
            let record = Record { at: Nanos(index), volume, operation, offset, length };
            let cut = references.cut(&[record], |batch| replay.on_batch(batch).expect("it fits"));
            cut.expect("there is one volume");
        }
        replay.end();
        let report = replay.report();
        let destaged = report.levels.iter().map(|level| level.destaged).collect();
        (BlocksMoved::of(&report), destaged)
    }

    /// Goal: an SSD that holds the whole trace moves the same blocks however the sizes are written,
    /// and below as above the size from which the footprint bounds it. Method: four notations of
    /// the same levels, one of which needs no footprint, with a trace that dirties each block.
    #[test]
    fn notation_does_not_change_what_moves() {
        let [same, percent, larger, blocks] = [
            "30blocks,120blocks,100000blocks",
            "1%,4%,100000blocks",
            "1%,4%,70GiB",
            "30blocks,120blocks,70GiB",
        ]
        .map(moved);
        assert_eq!(same.1.last(), Some(&0), "nothing has to leave such an SSD");
        assert_eq!((&percent, &larger, &blocks), (&same, &same, &same));
    }

    /// Goal: three sizes are read, anything else is refused. Method: one of each mistake.
    #[test]
    fn three_sizes_or_none() {
        assert!("1%,4%,16%".parse::<LevelSizes>().is_ok());
        let chosen: LevelSizes = "1%,4%@a,16%@b".parse().expect("sizes with devices");
        assert_eq!(chosen.devices, [None, Some("a".to_owned()), Some("b".to_owned())]);
        for text in ["", "1%", "1%,2%", "1%,2%,3%,4%", "1%,x,3%", "1%,0%,3%"] {
            assert!(text.parse::<LevelSizes>().is_err(), "{text}");
        }
    }
}
