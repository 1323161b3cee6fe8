//! `layby mrc`: miss-ratio curves of a trace, exact or sampled.
//!
//! How: one pass; every curve sees every batch. Curves are those of an LRU cache, by stack
//! distances; sampled ones are those that a node measures live.
//! Invariant: the same words give the same curves. Not for: other policies; see `replay`.

mod answer;
mod spread;

use crate::output::{Failure, Output};
use crate::replay::{named_twice, nothing_to_count, now, twice, unmeasured};
use crate::trace::{
    BlockArguments, SourceArguments, note_open_end, rate_of_blocks, source, unread,
};
use answer::MrcAnswer;
use clap::{Args, ValueEnum};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::types::VolumeId;
use layby_sim::policy::curve::{BoundedCurve, Counted, SampleRate};
use layby_sim::single::{CurveKind, CurveRun, References, StreamError};
use layby_trace::{Reader, Record};
use std::collections::BTreeMap;
use std::time::Duration;

/// Volumes with a curve of their own at most.
const VOLUMES_MAX: usize = 4096;

/// Show how many requests an LRU cache of any size would miss
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby mrc web.parquet
  layby mrc web.parquet --sampled 1% --points 50 --csv
  layby mrc web.parquet --sampled 1% --seed 1,2,3 --compare
  layby mrc web.parquet --blocks-max 1638 --per-volume

Without --sampled and --blocks-max the curve is exact: what `layby replay -p lru` counts, at every
size at once; it takes some 60 bytes of memory per distinct block. Sampled curves (SHARDS) follow a
share of the blocks; with --blocks-max at most so many, in 64 KiB, as a node does while it runs.
--compare measures the exact curve too, and says how far the sampled ones are from it in miss ratio:
the mean absolute error over 100 sizes at even distances up to the greatest reuse distance, the size
from which the exact curve is flat, and the worst of these and of all sizes shown. A sample of 1%
cannot tell sizes below some 100 blocks apart: one followed block stands for so many. A sample that
follows no block is refused, one of few blocks is marked.
With several seeds the table has the standard deviation of the miss ratio over them, an estimate of
how far a single sample is off where the exact curve is too dear. What all samples have in common,
as that they cannot tell small sizes apart, is not in it.
A volume without requests that count has no miss ratio: a dash, or null in JSON. With --csv what the
table says beside, as errors and warnings, goes to standard error.
Trims and flushes are passed over.

Exit codes: 0 done; 2 a word is wrong, the trace holds no reads and writes, or the sample follows
none of them; 3 the trace is wrong; 6 it is not there.")]
pub(crate) struct MrcArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    block: BlockArguments,
    /// Follow this share of the blocks, such as 1%
    #[arg(long, value_name = "RATE", value_parser = sampled, group = "sample")]
    sampled: Option<SampleRate>,
    /// Follow at most this many blocks: 64 to 1638
    #[arg(long, value_name = "N", value_parser = blocks_max(), group = "sample")]
    blocks_max: Option<u32>,
    /// Same seed, same blocks; a curve for each (can be repeated)
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// Sizes to show, each so many times the one before
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(2..=10_000))]
    points: u32,
    /// Which requests count: reads, writes or both
    #[arg(long, value_name = "WHICH", default_value = "both")]
    counted: CountedArgument,
    /// Show a curve for each volume
    #[arg(long)]
    per_volume: bool,
    /// Measure the exact curve too, and say how far the others are from it
    #[arg(long, requires = "sample")]
    compare: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
    /// Answer in CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// [`Counted`] as a flag's value.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CountedArgument {
    Reads,
    Writes,
    Both,
}

impl CountedArgument {
    /// The kinds of requests, as they are missed.
    fn kinds(self) -> &'static str {
        match self {
            CountedArgument::Reads => "reads",
            CountedArgument::Writes => "writes",
            CountedArgument::Both => "reads and no writes",
        }
    }
}

impl From<CountedArgument> for Counted {
    fn from(counted: CountedArgument) -> Self {
        match counted {
            CountedArgument::Reads => Counted::Reads,
            CountedArgument::Writes => Counted::Writes,
            CountedArgument::Both => Counted::Both,
        }
    }
}

fn sampled(text: &str) -> Result<SampleRate, String> {
    rate_of_blocks(text).map(SampleRate::new)
}

fn blocks_max() -> impl clap::builder::TypedValueParser<Value = u32> {
    let (least, most) = (BoundedCurve::SAMPLE_BLOCKS_MIN, BoundedCurve::SAMPLE_BLOCKS_MAX);
    clap::value_parser!(u32).range(i64::from(least)..=i64::from(most))
}

/// A curve on its way through the trace.
struct Measured {
    kind: CurveKind,
    volume: Option<VolumeId>,
    run: CurveRun,
    time: Duration,
}

impl MrcArguments {
    /// The curves that are asked for; the exact one comes first where there is one.
    fn kinds(&self) -> Vec<CurveKind> {
        let seeds = self.seed.iter().copied();
        let sampled: Vec<CurveKind> = match (self.sampled, self.blocks_max) {
            (Some(rate), _) => seeds.map(|seed| CurveKind::Sampled { rate, seed }).collect(),
            (None, Some(blocks_max)) => {
                seeds.map(|seed| CurveKind::Bounded { blocks_max, seed }).collect()
            }
            (None, None) => Vec::new(),
        };
        let exact = (self.compare || sampled.is_empty()).then_some(CurveKind::Exact);
        exact.into_iter().chain(sampled).collect()
    }
}

pub(crate) fn run(arguments: &MrcArguments, output: &mut Output) -> Result<(), Failure> {
    if let Some(seed) = twice(&arguments.seed) {
        return Err(named_twice("--seed", &seed.to_string()).into());
    }
    let (mut trace, bar) = source(&arguments.source, output)?;
    let mut references = References::new(trace.unit(), arguments.block.block_size);
    let mut volumes = Volumes::new(arguments);
    let (mut records, start) = (Vec::new(), now());
    while trace.fill(&mut records).map_err(|cause| unread(&arguments.source, &cause))? > 0 {
        let done = volumes.on_records(&records, &mut references);
        done.map_err(|cause| match cause {
            CutError::Stream(cause @ StreamError::Blocks { .. }) => {
                unmeasured(&arguments.source, cause).hint(FEWER_BLOCKS)
            }
            CutError::Stream(cause) => unmeasured(&arguments.source, cause),
            CutError::Curves => too_many_curves(&arguments.source),
        })?;
        bar.set_position(trace.position());
    }
    bar.finish_and_clear();
    note_open_end(&trace);
    let took = start.elapsed();
    let answer = MrcAnswer::new(arguments, &trace, &references, &volumes.measured(), took)
        .ok_or_else(|| {
            let kinds = arguments.counted.kinds();
            nothing_to_count(&arguments.source, "there is no curve of", kinds)
        })?;
    if answer.follows_nothing() {
        return Err(nothing_followed(&arguments.source).into());
    }
    if arguments.json {
        output.json(&answer)
    } else if arguments.csv {
        answer.csv(output)
    } else {
        answer.show(output)
    }
}

/// What to do where a curve cannot tell all blocks apart.
const FEWER_BLOCKS: &str = "follow fewer blocks, as with --sampled 1% or --blocks-max, without \
                            --compare; or cut the trace with `layby trace cut`";

/// The report of a sample without a block.
fn nothing_followed(source: &SourceArguments) -> Report {
    let error = format!("the sample of `{}` follows no block", source.trace.display());
    Report::new(ReportKind::Invalid, error)
        .cause("the trace has so few blocks that none is in the share that the seeds choose")
        .state("the trace is untouched, and no curve is shown")
        .hint("follow a larger share with --sampled, or leave it out for the exact curve")
}

/// The report of a trace with more volumes than there may be curves.
fn too_many_curves(source: &SourceArguments) -> Report {
    let error = format!("cannot show a curve for each volume of `{}`", source.trace.display());
    Report::new(ReportKind::Invalid, error)
        .cause(format!("it has more than {VOLUMES_MAX} volumes, each with curves in memory"))
        .state("the trace is untouched, and no curve is shown")
        .hint(
            "leave --per-volume out for one curve of all, or cut the trace with `layby trace cut`",
        )
}

/// Why records are in no curve.
enum CutError {
    Stream(StreamError),
    /// More volumes than [`VOLUMES_MAX`], each with curves of its own.
    Curves,
}

/// The curves of each volume, or of all together.
struct Volumes {
    kinds: Vec<CurveKind>,
    is_per_volume: bool,
    volumes: BTreeMap<Option<VolumeId>, Vec<Measured>>,
}

impl Volumes {
    fn new(arguments: &MrcArguments) -> Self {
        let (kinds, is_per_volume) = (arguments.kinds(), arguments.per_volume);
        Volumes { kinds, is_per_volume, volumes: BTreeMap::new() }
    }

    fn on_records(
        &mut self,
        records: &[Record],
        references: &mut References,
    ) -> Result<(), CutError> {
        if !self.is_per_volume {
            return self.cut(None, records, references);
        }
        for run in records.chunk_by(|one, other| one.volume == other.volume) {
            self.cut(Some(run[0].volume), run, references)?;
        }
        Ok(())
    }

    fn cut(
        &mut self,
        volume: Option<VolumeId>,
        records: &[Record],
        references: &mut References,
    ) -> Result<(), CutError> {
        if self.volumes.len() == VOLUMES_MAX && !self.volumes.contains_key(&volume) {
            return Err(CutError::Curves);
        }
        let kinds = &self.kinds;
        let fresh = || {
            let curve = |kind: &CurveKind| {
                let (run, time) = (CurveRun::new(*kind), Duration::ZERO);
                Measured { kind: *kind, volume, run, time }
            };
            kinds.iter().map(curve).collect()
        };
        let curves: &mut Vec<Measured> = self.volumes.entry(volume).or_insert_with(fresh);
        let mut measured_all = Ok(());
        let cut = references.cut(records, |batch| {
            for measured in curves.iter_mut() {
                let start = now();
                measured_all = measured_all.and_then(|()| measured.run.on_batch(batch));
                measured.time += start.elapsed();
            }
        });
        measured_all.and(cut).map_err(CutError::Stream)
    }

    fn measured(self) -> Vec<Measured> {
        self.volumes.into_values().flatten().collect()
    }
}
