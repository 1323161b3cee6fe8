//! `layby trace generate`: traces drawn by a seed.

use super::{TargetArguments, check_absent, create_target, progress_bar, target_format, unwritten};
use crate::output::{Failure, Output};
use clap::{Args, ValueEnum};
use layby_daemon::config::{Percent, Size, Time};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::types::VolumeId;
use layby_trace::{Generator, GeneratorSpec, Reader, Shape, Unit, Writer};

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
    #[arg(long, value_name = "PERCENT", default_value = "70%", value_parser = percent)]
    read_percent: Percent,
    /// Time from one request to the next
    #[arg(long, value_name = "TIME", default_value = "100us")]
    interval: Time,
    /// zipf, mixed: how strongly few blocks are favoured, 0 to 10 [default: 1.0]
    #[arg(long, value_name = "NUMBER")]
    exponent: Option<f64>,
    /// hot-cold: requests that go to hot blocks [default: 90%]
    #[arg(long, value_name = "SHARE", value_parser = super::rate)]
    hot_accesses: Option<f64>,
    /// hot-cold: blocks that are hot [default: 10%]
    #[arg(long, value_name = "SHARE", value_parser = super::rate)]
    hot_blocks: Option<f64>,
    /// mixed: requests of the sequential stream [default: 50%]
    #[arg(long, value_name = "SHARE", value_parser = super::rate)]
    sequential_share: Option<f64>,
    /// Number of the volume
    #[arg(long, value_name = "N", default_value_t = 0)]
    volume: u32,
    /// Same seed, same trace
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// [`Shape`] without its numbers, as a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShapeArgument {
    Zipf,
    Sequential,
    HotCold,
    Mixed,
}

/// The flag's name says percent, so a bare number is one, too.
fn percent(text: &str) -> Result<Percent, String> {
    match text.ends_with('%') {
        true => text.parse(),
        false => format!("{text}%").parse().map_err(|_| {
            format!("`{text}` is not a percentage; write `0%` to `100%`, such as `25%`")
        }),
    }
}

/// A flag of other shapes than the wanted one that was given all the same.
fn misplaced(arguments: &GenerateArguments) -> Option<&'static str> {
    use ShapeArgument::{HotCold, Mixed, Zipf};
    let flags: [(_, Option<f64>, &[ShapeArgument]); 4] = [
        ("--exponent", arguments.exponent, &[Zipf, Mixed]),
        ("--hot-accesses", arguments.hot_accesses, &[HotCold]),
        ("--hot-blocks", arguments.hot_blocks, &[HotCold]),
        ("--sequential-share", arguments.sequential_share, &[Mixed]),
    ];
    let mut misplaced = flags
        .into_iter()
        .filter(|(_, given, shapes)| given.is_some() && !shapes.contains(&arguments.shape));
    misplaced.next().map(|(flag, ..)| flag)
}

fn spec(arguments: &GenerateArguments) -> GeneratorSpec {
    let exponent = arguments.exponent.unwrap_or(1.0);
    let percent = |given: Option<f64>, default: f64| given.map_or(default, |share| share * 100.0);
    let shape = match arguments.shape {
        ShapeArgument::Zipf => Shape::Zipf { exponent },
        ShapeArgument::Sequential => Shape::Sequential,
        ShapeArgument::HotCold => Shape::HotCold {
            accesses_percent: percent(arguments.hot_accesses, 90.0),
            blocks_percent: percent(arguments.hot_blocks, 10.0),
        },
        ShapeArgument::Mixed => {
            let sequential_percent = percent(arguments.sequential_share, 50.0);
            Shape::Mixed { sequential_percent, exponent }
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
    if let Some(flag) = misplaced(arguments) {
        let shape = arguments.shape.to_possible_value().expect("every shape has a name");
        let cause = format!("{flag} is not for the shape {}", shape.get_name());
        return Err(refused(&cause).into());
    }
    let mut generator =
        Generator::new(spec(arguments)).map_err(|cause| refused(&cause.to_string()))?;
    check_absent(target)?;
    let failed = |cause| unwritten(target, &cause);
    let mut writer = Box::new(create_target(target, format, Unit::Bytes)?);
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

fn refused(cause: &str) -> Report {
    Report::new(ReportKind::Invalid, "cannot generate such a trace")
        .cause(cause)
        .state("nothing was written")
        .hint("add --help to see what each flag takes")
}
