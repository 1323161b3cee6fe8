//! `layby replay`: a trace through eviction policies and sizes of cache, all in one pass.
//!
//! How: words and flags here; the work is the sim room's. The trace is decoded once, and each batch
//! goes through every policy and size.
//! Invariant: the same words give the same counts; only times differ. Levels are replayed by
//! themselves: see `levels`.

mod answer;
mod levels;
mod size;

use crate::output::{Failure, Output};
use crate::trace::{BlockArguments, SourceArguments, note_open_end, source, unread};
use answer::{Outcome, ReplayAnswer};
use clap::Args;
use indicatif::ProgressBar;
use layby_daemon::error::{Report, ReportKind};
use layby_sim::levels::SERVICES_MAX;
use layby_sim::policy::AdmissionKind;
use layby_sim::policy::registry::EvictionKind;
use layby_sim::single::{Batch, Footprint, Future, References, Replay, StreamError, build};
use layby_trace::{Reader, Trace};
use levels::LevelSizes;
use size::CacheSize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Levels of one pass at most: policies times sizes.
const LEVELS_MAX: usize = 256;

/// Replay a trace through eviction policies and cache sizes, and report what hits
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby replay web.parquet
  layby replay web.parquet -p lru -p s3fifo -p belady -s 1% -s 5% -s 64GiB
  layby replay web.parquet -p arc -s 1000blocks --admission second-miss --json
  layby replay web.parquet --levels 1%,4%,16% --critical 0,2
  layby replay zipf.oracleGeneral --levels 1%,4%,16% --services 8
  layby replay web.parquet --levels 1%,4%,16%@nvme0 --devices nvme0.toml --home hdd

The policies are those that a node runs; belady knows the whole trace before it begins, which no
node can: nothing hits more. It takes 8 bytes of memory per request, the others only what their
cache takes.
A size in percent is a share of the distinct blocks of the trace, for which the trace is read once
before; so is a size of more than 16777216 blocks, which the footprint then bounds.
A request over several blocks counts once for each. Traces of objects (see `layby trace info`) have
no bytes of a device: each object is one block, whatever its length. Trims and flushes are passed
over. Speeds are those of each policy alone, without reading the trace.
With --levels the trace runs through the node's own state machine: DRAM, NVM and SSD under LRU,
each volume's blocks on their own. Room is taken from the volume whose oldest block was used longest
ago, as one LRU over all would, as docs/replay.md says. A class of services uses all three levels
and one the SSD, lent what is idle above. Each volume is a service, called by its number in the
trace (see `layby trace info`). Nothing is read ahead, as a node does by default for reads in order.
Latencies are the means that PADSA's Table I gives. Dirty blocks go home by watermark and in calm,
as fast as the home takes them by the trace's times; what comes faster fills NVM, then the SSD.
--devices takes descriptions of real devices (see `layby probe`): one called dram, nvm, ssd, hdd or
main takes the place of that one, and any can be chosen by name, as in 16%@nvme0 and with --home.

Exit codes: 0 done; 2 a word, a size or a device is wrong, or the trace holds no reads and writes; 3
the trace is wrong; 6 it, or a file of devices, is not there.")]
pub(crate) struct ReplayArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Policy: lru, fifo, clock, s3fifo, arc, lfu or belady (repeated, or a list: lru,s3fifo)
    #[arg(short, long, value_name = "NAME", default_value = "lru", value_parser = contender,
          value_delimiter = ',')]
    policy: Vec<Contender>,
    /// Size of the cache: 64GiB, 5% of the footprint, or 1000blocks (can be repeated, or a list)
    #[arg(short = 's', long, value_name = "SIZE", default_value = "5%", value_delimiter = ',')]
    cache_size: Vec<CacheSize>,
    #[command(flatten)]
    block: BlockArguments,
    /// Which blocks that reads miss come in: all, or second-miss, which keeps scans out. What is
    /// written always does; belady takes all
    #[arg(long, value_name = "NAME", default_value = "all", value_parser = admission)]
    admission: AdmissionKind,
    /// Sizes of DRAM, NVM and SSD: replay through three levels instead of one; SIZE@NAME is of
    /// another device
    #[arg(long, value_name = "DRAM,NVM,SSD",
          conflicts_with_all = ["policy", "cache_size"])]
    levels: Option<LevelSizes>,
    /// Descriptions of devices, as `layby probe` writes them (can be repeated)
    #[arg(long, value_name = "FILE", requires = "levels")]
    devices: Vec<PathBuf>,
    /// The device that volumes lie on: dram, nvm, ssd, hdd, main, or one of --devices
    /// [default: main]
    #[arg(long, value_name = "NAME", requires = "levels")]
    home: Option<String>,
    /// Volumes that are critical, by the trace's numbers; with --services, services from 0
    /// [default: with --services the first half, else none]
    #[arg(long, value_name = "VOLUMES", value_delimiter = ',', requires = "levels")]
    #[arg(value_parser = volume_number)]
    critical: Option<Vec<u32>>,
    /// Deal the blocks out to so many services, by a hash
    #[arg(long, value_name = "N", requires = "levels", value_parser = services())]
    services: Option<u32>,
    /// Same seed, same counts
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

fn services() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(SERVICES_MAX))
}

/// A policy, or the reference that no policy beats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Policy(EvictionKind),
    Belady,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Policy(kind) => kind.name(),
            Contender::Belady => "belady",
        }
    }
}

/// A volume by the number that the trace gives it.
fn volume_number(text: &str) -> Result<u32, String> {
    let wanted = "volumes are named by the trace's numbers, such as 0,2; `layby trace info` \
                  lists them";
    text.parse().map_err(|_| wanted.to_owned())
}

fn contender(text: &str) -> Result<Contender, String> {
    if text.eq_ignore_ascii_case(Contender::Belady.name()) {
        return Ok(Contender::Belady);
    }
    let names = EvictionKind::ALL.map(EvictionKind::name).join(", ");
    EvictionKind::from_name(text)
        .map(Contender::Policy)
        .ok_or_else(|| format!("`{text}` is no policy; there are {names} and belady"))
}

fn admission(text: &str) -> Result<AdmissionKind, String> {
    let names = AdmissionKind::ALL.map(AdmissionKind::name).join(" and ");
    AdmissionKind::from_name(text)
        .ok_or_else(|| format!("`{text}` is no admission filter; there are {names}"))
}

/// A policy at a size, on its way through the trace.
struct Level<'a> {
    contender: Contender,
    size: &'a CacheSize,
    slots: u32,
    /// `None` for Belady's, which runs when the trace has ended.
    replay: Option<Box<dyn Replay>>,
    admission: AdmissionKind,
    time: Duration,
}

#[expect(clippy::disallowed_methods, reason = "speed is measured beside the counts")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn run(arguments: &ReplayArguments, output: &mut Output) -> Result<(), Failure> {
    if let Some(sizes) = &arguments.levels {
        return levels::run(arguments, sizes, output);
    }
    distinct(arguments)?;
    let block_size = arguments.block.block_size;
    let start = now();
    let two_passes = arguments.cache_size.iter().any(|size| size.needs_footprint(block_size));
    let footprint = if two_passes { Some(footprint(arguments, output)?) } else { None };
    let (mut trace, bar) = source(&arguments.source, output)?;
    let mut levels = line_up(arguments, &trace, footprint)?;
    let mut references = References::new(trace.unit(), block_size);
    let wants_future = levels.iter().any(|level| level.replay.is_none());
    let mut future = wants_future.then(Future::default);
    pass(arguments, (&mut trace, &bar), &mut references, |batch| {
        for level in &mut levels {
            level.on_batch(batch);
        }
        future.as_mut().map_or(Ok(()), |future| future.add(batch))
    })?;
    note_open_end(&trace);
    let known = future.map(Future::known);
    let outcomes = levels.into_iter().map(|level| level.outcome(known.as_ref())).collect();
    let answer = ReplayAnswer::new(arguments, &trace, &references, footprint, outcomes)
        .ok_or_else(|| nothing_to_replay(&arguments.source))?
        .took(start.elapsed());
    if arguments.json { output.json(&answer) } else { answer.show(output) }
}

/// Whether no word of a list is there twice, which would cost a pass and show nothing.
fn distinct(arguments: &ReplayArguments) -> Result<(), Report> {
    let policies: Vec<&str> = arguments.policy.iter().map(|policy| policy.name()).collect();
    let sizes: Vec<&str> = arguments.cache_size.iter().map(|size| size.text.as_str()).collect();
    for (flag, words) in [("--policy", policies), ("--cache-size", sizes)] {
        if let Some(word) = twice(&words) {
            return Err(named_twice(flag, word));
        }
    }
    Ok(())
}

/// What of a list is in it twice.
pub(crate) fn twice<T: PartialEq>(list: &[T]) -> Option<&T> {
    list.iter().enumerate().find_map(|(at, one)| list[..at].contains(one).then_some(one))
}

/// The report of a list that names something twice.
pub(crate) fn named_twice(flag: &str, word: &str) -> Report {
    Report::new(ReportKind::Invalid, format!("{flag} names `{word}` twice"))
        .cause("both would show the same figures")
        .state("nothing was read")
        .hint("name it once")
}

/// Every policy at every size.
fn line_up<'a>(
    arguments: &'a ReplayArguments,
    trace: &Trace,
    footprint: Option<u32>,
) -> Result<Vec<Level<'a>>, Report> {
    let count = arguments.policy.len() * arguments.cache_size.len();
    if count > LEVELS_MAX {
        return Err(Report::new(ReportKind::Invalid, "too many policies and sizes")
            .cause(format!("{count} in one pass, at most {LEVELS_MAX}"))
            .state("nothing was replayed")
            .hint("replay some of them, then the others"));
    }
    if footprint == Some(0) {
        return Err(nothing_to_replay(&arguments.source));
    }
    let mut levels = Vec::with_capacity(count);
    for size in &arguments.cache_size {
        let slots = size.slots(trace.unit(), arguments.block.block_size, footprint)?;
        for contender in arguments.policy.iter().copied() {
            let (replay, admission) = match contender {
                Contender::Belady => (None, AdmissionKind::All),
                Contender::Policy(kind) => {
                    let admission = arguments.admission;
                    (Some(build(kind, admission, slots, arguments.seed)), admission)
                }
            };
            let time = Duration::ZERO;
            levels.push(Level { contender, size, slots, replay, admission, time });
        }
    }
    Ok(levels)
}

impl Level<'_> {
    fn on_batch(&mut self, batch: &Batch) {
        let Some(replay) = &mut self.replay else { return };
        let start = now();
        replay.on_batch(batch);
        self.time += start.elapsed();
    }

    fn outcome(self, known: Option<&layby_sim::single::Known>) -> Outcome {
        let (policy, size) = (self.contender.name(), self.size.text.clone());
        let (slots, admission) = (self.slots, self.admission);
        let (mut time, mut memory_bytes) = (None, None);
        let counts = if let Some(replay) = &self.replay {
            (time, memory_bytes) = (Some(self.time), Some(replay.memory_bytes()));
            replay.counts()
        } else {
            known.expect("the future was gathered for Belady's").replay(slots)
        };
        Outcome { policy, admission, size, slots, counts, memory_bytes, time }
    }
}

/// Distinct blocks of the trace: a pass of its own.
fn footprint(arguments: &ReplayArguments, output: &Output) -> Result<u32, Failure> {
    arguments.source.keep()?;
    let (mut trace, bar) = source(&arguments.source, output)?;
    let mut references = References::new(trace.unit(), arguments.block.block_size);
    let mut footprint = Footprint::default();
    bar.set_message("footprint");
    pass(arguments, (&mut trace, &bar), &mut references, |batch| footprint.add(batch))?;
    Ok(footprint.blocks())
}

/// Hands every reference of the trace to `take`, unless that refuses one.
fn pass(
    arguments: &ReplayArguments,
    (trace, bar): (&mut Trace, &ProgressBar),
    references: &mut References,
    mut take: impl FnMut(&Batch) -> Result<(), StreamError>,
) -> Result<(), Failure> {
    let (mut records, mut taken) = (Vec::new(), Ok(()));
    while trace.fill(&mut records).map_err(|cause| unread(&arguments.source, &cause))? > 0 {
        let cut = references.cut(&records, |batch| taken = taken.and_then(|()| take(batch)));
        taken.and(cut).map_err(|cause| unreplayed(arguments, cause))?;
        bar.set_position(trace.position());
    }
    bar.finish_and_clear();
    Ok(())
}

fn unreplayed(arguments: &ReplayArguments, cause: StreamError) -> Report {
    unmeasured(&arguments.source, cause)
}

/// The report of a trace whose blocks cannot be told apart.
pub(crate) fn unmeasured(source: &SourceArguments, cause: StreamError) -> Report {
    Report::new(ReportKind::Invalid, format!("cannot replay `{}`", source.trace.display()))
        .cause(cause.to_string())
        .state("the trace is untouched, and nothing was replayed")
        .hint("cut the trace, or sample it, with `layby trace cut` or `layby trace sample`")
}

/// The report of a trace without reads and writes.
pub(crate) fn nothing_to_replay(source: &SourceArguments) -> Report {
    nothing_to_count(source, "there is nothing to replay in", "reads and no writes")
}

/// The same; `error` is what it comes to, `kinds` what there is none of.
pub(crate) fn nothing_to_count(source: &SourceArguments, error: &str, kinds: &str) -> Report {
    let error = format!("{error} `{}`", source.trace.display());
    Report::new(ReportKind::Invalid, error)
        .cause(format!("the trace holds no {kinds}"))
        .state("the trace is untouched")
        .hint("look at it with `layby trace info`")
}
