//! `layby trace generate`: traces drawn by a seed.

use super::{TargetArguments, check_absent, progress_bar, target_format, unwritten};
use crate::output::{Failure, Output};
use clap::{Args, ValueEnum};
use layby_daemon::config::{Percent, Size, Time};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::types::VolumeId;
use layby_trace::{Generator, GeneratorSpec, Reader, Shape, TraceError, Unit, Writer, create};

/// Generate a trace: Zipf, sequential, hot and cold, mixed
#[derive(Debug, Args)]
#[command(after_help = "\
Shapes:
  zipf        block of rank k with a probability proportional to 1 / k^EXPONENT; 0 is uniform
  sequential  one block after the other, again and again
  hot-cold    --hot-accesses of the requests go to --hot-blocks of the blocks, evenly
  mixed       --sequential-share of the requests follow one another, the others are zipf

Examples:
  layby trace generate zipf.parquet --requests 20000000 --footprint 4GiB --exponent 1.0
  layby trace generate hot.csv.zst --shape hot-cold --hot-accesses 90% --hot-blocks 10%
  layby trace generate z.oracleGeneral --requests 1000000 --read-percent 100%

The same seed gives the same trace.")]
pub(super) struct GenerateArguments {
    #[command(flatten)]
    target: TargetArguments,
    /// Which block comes next
    #[arg(long, value_name = "NAME", default_value = "zipf")]
    shape: ShapeArgument,
    /// Requests
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000_000)]
    requests: u64,
    /// Bytes within which the requests lie
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    footprint: Size,
    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    length: Size,
    /// Reads among the requests; the others write
    #[arg(long, value_name = "PERCENT", default_value = "70%")]
    read_percent: Percent,
    /// Time from one request to the next
    #[arg(long, value_name = "TIME", default_value = "100us")]
    interval: Time,
    /// zipf, mixed: how strongly few blocks are favoured, 0 to 10
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0)]
    exponent: f64,
    /// hot-cold: requests that go to hot blocks
    #[arg(long, value_name = "SHARE", default_value = "90%", value_parser = super::rate)]
    hot_accesses: f64,
    /// hot-cold: blocks that are hot
    #[arg(long, value_name = "SHARE", default_value = "10%", value_parser = super::rate)]
    hot_blocks: f64,
    /// mixed: requests of the sequential stream
    #[arg(long, value_name = "SHARE", default_value = "50%", value_parser = super::rate)]
    sequential_share: f64,
    /// Number of the volume
    #[arg(long, value_name = "N", default_value_t = 0)]
    volume: u32,
    /// Same seed, same trace
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// [`Shape`] without its numbers, as a flag's value.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShapeArgument {
    Zipf,
    Sequential,
    HotCold,
    Mixed,
}

fn spec(arguments: &GenerateArguments) -> GeneratorSpec {
    let exponent = arguments.exponent;
    let shape = match arguments.shape {
        ShapeArgument::Zipf => Shape::Zipf { exponent },
        ShapeArgument::Sequential => Shape::Sequential,
        ShapeArgument::HotCold => Shape::HotCold {
            accesses_percent: arguments.hot_accesses * 100.0,
            blocks_percent: arguments.hot_blocks * 100.0,
        },
        ShapeArgument::Mixed => {
            Shape::Mixed { sequential_percent: arguments.sequential_share * 100.0, exponent }
        }
    };
    GeneratorSpec {
        shape,
        requests: arguments.requests,
        footprint_bytes: arguments.footprint.0,
        length: arguments.length.0,
        read_percent: arguments.read_percent.0,
        interval: arguments.interval.0,
        volume: VolumeId(arguments.volume),
        seed: arguments.seed,
    }
}

pub(super) fn run(arguments: &GenerateArguments, output: &mut Output) -> Result<(), Failure> {
    let target = &arguments.target;
    let format = target_format(target)?;
    let mut generator = Generator::new(spec(arguments)).map_err(|cause| refused(&cause))?;
    check_absent(target)?;
    let failed = |cause| unwritten(target, &cause);
    let mut writer = Box::new(create(&target.out, format, Unit::Bytes).map_err(failed)?);
    let bar = progress_bar(arguments.requests, output);
    let mut batch = Vec::new();
    while generator.fill(&mut batch).map_err(failed)? > 0 {
        writer.write(&batch).map_err(failed)?;
        bar.inc(batch.len() as u64);
    }
    let written = writer.finish().map_err(failed)?;
    bar.finish_and_clear();
    output.line(&format!(
        "`{}`: {} requests in {format}, seed {}",
        target.out.display(),
        written.records,
        arguments.seed
    ))
}

fn refused(cause: &TraceError) -> Report {
    Report::new(ReportKind::Invalid, "cannot generate such a trace")
        .cause(cause.to_string())
        .state("nothing was written")
        .hint("add --help to see what each flag takes")
}
