//! `layby trace`: look at traces, convert them, cut parts out, generate them.
//!
//! How: words and flags here; the work is the trace room's. Everything streams: a trace is read a
//! batch at a time and may be longer than memory.
//! Invariant: a trace that is written is there whole or not at all; one that was there is replaced
//! only with `--overwrite`. Not for: replaying traces; see `replay` and `mrc`.

mod copy;
mod generate;
mod info;

use crate::output::{Failure, Output, note};
use crate::{input, new_file};
use clap::{Args, Subcommand, ValueEnum};
use generate::GenerateArguments;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use layby_daemon::config::{Size, Time};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::types::BlockSize;
use layby_trace::{
    BlockEvent, Format, NewTrace, ReadOptions, Reader, Trace, TraceError, Unit, create, open,
};
use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;

const FORMATS: &str = "\
Formats that are read: fio-v2, fio-v3, blkparse, oracle-general, vscsi-v1, vscsi-v2, msr, alibaba,
tencent, csv, csv-objects, parquet, lis, blocks, u32be; plain or compressed by zstd, gzip or xz.
Formats that are written: csv, parquet, fio-v2, fio-v3, oracle-general; with .zst also compressed.

A trace that is wrong ends the command with exit code 3 and its line, byte or row; `--lenient`
leaves such requests out and counts them. docs/traces.md says more.";

const EXAMPLES: &str = "\
Examples:
  layby trace info web.csv.gz
  layby trace convert web.csv.gz web.parquet
  layby trace sample web.parquet web-1.parquet --rate 1%
  layby trace cut web.parquet hour.parquet --from 1h --until 2h
  layby trace generate zipf.parquet --shape zipf --requests 1000000 --footprint 4GiB";

/// Look at traces of requests, convert them, cut parts out, generate them
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{FORMATS}"))]
pub(crate) struct TraceArguments {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    /// Show what a trace holds: requests, bytes, footprint, duration, volumes
    #[command(after_help = "\
Examples:
  layby trace info web.csv.gz
  layby trace info disk.bin --format oracle-general --json

The footprint is exact; it takes up to 20 bytes of memory per distinct block.
Exit codes: 0 all is sound, or left out with --lenient; 2 the format cannot be told; 3 the trace is
wrong; 6 it is not there.")]
    Info(InfoArguments),
    /// Write a trace in another format
    #[command(after_help = "\
Examples:
  layby trace convert web.csv.gz web.parquet
  layby trace convert disk.txt replay.log --event c --to fio-v3 --lenient

Names of volumes become numbers. oracle-general keeps reads and writes only, an object per
request.")]
    Convert(CopyArguments),
    /// Keep the requests to a share of the blocks, chosen by a hash (SHARDS)
    #[command(after_help = "\
Example:
  layby trace sample web.parquet web-1.parquet --rate 1%

The same rate and seed choose the same blocks in every trace. Trims and flushes are kept.")]
    Sample {
        #[command(flatten)]
        copy: CopyArguments,
        /// Share of the blocks, such as 1% or 0.01
        #[arg(short, long, value_name = "RATE", value_parser = rate_of_blocks)]
        rate: f64,
        /// Same seed, same blocks
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        block: BlockArguments,
    },
    /// Cut out a part, by time or by number; the part begins at time zero
    #[command(after_help = "\
Examples:
  layby trace cut web.parquet hour.parquet --from 1h --until 2h
  layby trace cut web.parquet head.csv --count 1000")]
    Cut {
        #[command(flatten)]
        copy: CopyArguments,
        /// Leave out requests before this time of the trace
        #[arg(long, value_name = "TIME")]
        from: Option<Time>,
        /// Leave out requests at this time of the trace and later
        #[arg(long, value_name = "TIME")]
        until: Option<Time>,
        /// Pass over this many of the requests within these times
        #[arg(long, value_name = "N", default_value_t = 0)]
        first: u64,
        /// Keep at most this many of those that follow
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
    /// Generate a trace: Zipf, sequential, hot and cold, mixed
    Generate(GenerateArguments),
}

/// Which trace to read, and how.
#[derive(Debug, Args)]
pub(crate) struct SourceArguments {
    /// The trace; `-` is standard input
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// All of it, where it is read twice and was none that can be.
    #[arg(skip)]
    kept: OnceLock<File>,
    #[arg(short, long, value_name = "FORMAT", help = format_help())]
    format: Option<Format>,
    /// Leave out requests that are wrong, and count them
    #[arg(long)]
    lenient: bool,
    /// Which event of blkparse text is a request
    #[arg(long, value_name = "EVENT", default_value = "q", ignore_case = true)]
    event: EventArgument,
}

/// [`BlockEvent`] as a flag's value.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EventArgument {
    /// As it was queued
    Q,
    /// As it was completed
    C,
}

/// In which blocks a device is counted.
#[derive(Debug, Args)]
pub(crate) struct BlockArguments {
    /// Bytes of a block: a power of two from 4KiB to 64KiB
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = block_size)]
    pub(crate) block_size: BlockSize,
}

#[derive(Debug, Args)]
struct InfoArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    block: BlockArguments,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// From which trace to which.
#[derive(Debug, Args)]
struct CopyArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    target: TargetArguments,
}

/// Which trace to write.
#[derive(Debug, Args)]
pub(crate) struct TargetArguments {
    /// The new trace
    #[arg(value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// Its format [default: by its name: .csv, .parquet, .log (fio-v3), .oracleGeneral]
    #[arg(short, long, value_name = "FORMAT")]
    to: Option<Format>,
    /// Replace a file that is there
    #[arg(long)]
    overwrite: bool,
}

pub(crate) fn run(arguments: &TraceArguments, output: &mut Output) -> Result<(), Failure> {
    match &arguments.command {
        TraceCommand::Info(info) => info::run(info, output),
        TraceCommand::Convert(copy) => copy::convert(copy, output),
        TraceCommand::Sample { copy, rate, seed, block } => {
            copy::sample(copy, (*rate, *seed), block.block_size, output)
        }
        TraceCommand::Cut { copy, from, until, first, count } => {
            copy::cut(copy, copy::window(*from, *until, *first, *count)?, output)
        }
        TraceCommand::Generate(generate) => generate::run(generate, output),
    }
}

impl SourceArguments {
    /// Makes sure that the trace can be read twice.
    ///
    /// # Errors
    /// A report when it can be read once only, and cannot be kept.
    pub(crate) fn keep(&self) -> Result<(), Report> {
        // It is kept once.
        input::keep(&self.trace)?.into_iter().for_each(|kept| drop(self.kept.set(kept)));
        Ok(())
    }

    fn place(&self) -> PathBuf {
        self.kept.get().map_or_else(|| input::place(&self.trace), input::place_of)
    }
}

/// Opens the trace that `source` names, and a bar that shows how far it is read.
pub(crate) fn source(
    source: &SourceArguments,
    output: &Output,
) -> Result<(Trace, ProgressBar), Report> {
    let event = match source.event {
        EventArgument::Q => BlockEvent::Queue,
        EventArgument::C => BlockEvent::Complete,
    };
    let options = ReadOptions { lenient: source.lenient, event };
    let trace =
        open(&source.place(), source.format, options).map_err(|cause| unread(source, &cause))?;
    let bar = progress_bar(trace.file_bytes(), output);
    Ok((trace, bar))
}

/// Says that the last line of a trace may be cut short: nothing else tells that from a whole one.
pub(crate) fn note_open_end(trace: &Trace) {
    if trace.has_open_end() {
        note(
            "note: the last line of the trace has no end: if the file was cut, its last number may \
             be too small",
        );
    }
}

/// A bar where a person looks at standard error, nothing in a pipe.
fn progress_bar(steps: u64, output: &Output) -> ProgressBar {
    let target = if output.is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(steps), target);
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The formats by name, as they are taken.
fn format_help() -> String {
    format!("Its format: {} [default: told by name and contents]", Format::list())
}

/// The report of a trace that cannot be read.
pub(crate) fn unread(source: &SourceArguments, cause: &TraceError) -> Report {
    let error = format!("cannot read the trace `{}`", source.trace.display());
    let hint = match cause {
        TraceError::Bad { .. } => {
            "look at the place; --lenient leaves such requests out and counts them".to_owned()
        }
        TraceError::Unsure { binary_at: Some(_), .. } => format!(
            "name its format with --format: oracle-general is known by a name that contains \
             `.oracleGeneral`, u32be by one that ends in `.u32be`, others by their contents: {}",
            Format::list()
        ),
        TraceError::Unsure { .. } => {
            format!("name its format with --format: {}", Format::list())
        }
        TraceError::Parquet { .. } => "Layby reads Parquet of its own schema only: see \
                                       docs/formats.md"
            .to_owned(),
        TraceError::Read { .. } => "the file is damaged or cut short; copy it again".to_owned(),
        _ => "look at the path and at who may read it".to_owned(),
    };
    failed(error, cause).state("the trace is untouched, and nothing was written").hint(hint)
}

/// Begins the trace at `target`.
pub(crate) fn create_target(
    target: &TargetArguments,
    format: Format,
    unit: Unit,
) -> Result<NewTrace, Report> {
    let created = create(&target.out, format, unit, target.overwrite);
    created.map_err(|cause| unwritten(target, &cause))
}

/// The report of a trace that cannot be written.
pub(crate) fn unwritten(target: &TargetArguments, cause: &TraceError) -> Report {
    let error = format!("cannot write the trace `{}`", target.out.display());
    if let TraceError::Taken { kept, .. } = cause {
        return Report::new(ReportKind::InUse, error)
            .cause("a file of that name came while the trace was written")
            .state(format!(
                "the trace is whole in `{}`, and that file is untouched",
                kept.display()
            ))
            .hint("rename one of them; --overwrite replaces a file that is there");
    }
    let hint = match cause {
        TraceError::Unsupported { .. } => "choose another format with --to",
        _ => "look at the path, at who may write there, and at the room that is left",
    };
    failed(error, cause).state("nothing was written, and what was there is untouched").hint(hint)
}

pub(crate) fn failed(error: String, cause: &TraceError) -> Report {
    let kind = match cause {
        TraceError::Open { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {
            ReportKind::NotFound
        }
        other => ReportKind::from(other.kind()),
    };
    Report::new(kind, error).cause(cause.to_string())
}

/// The format in which `target` is written.
pub(crate) fn target_format(target: &TargetArguments) -> Result<Format, Report> {
    target.to.or_else(|| layby_trace::format_of_name(&target.out)).ok_or_else(|| {
        Report::new(ReportKind::Invalid, "cannot tell in which format to write")
            .cause(format!("`{}` ends with no format's name", target.out.display()))
            .state("nothing was written")
            .hint("name it with --to: csv, parquet, fio-v2, fio-v3 or oracle-general")
    })
}

/// Refuses to replace a file unless that was asked for, and anything else than a file in any case.
pub(crate) fn check_absent(target: &TargetArguments) -> Result<(), Report> {
    new_file::check_place(&target.out, "the trace", "choose another name")?;
    new_file::check_absent(&target.out, "the trace", target.overwrite)
}

/// A share such as `1%` or `0.01`.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let rate = number.trim().parse::<f64>().ok().map(|number| number / scale);
    rate.filter(|rate| (0.0..=1.0).contains(rate))
        .ok_or_else(|| format!("`{text}` is no share from 0% to 100%; write 1% or 0.01"))
}

/// A share of the blocks, of which none is no sample.
pub(crate) fn rate_of_blocks(text: &str) -> Result<f64, String> {
    let refused = || format!("`{text}` of the blocks are none; write a share above 0%, such as 1%");
    let part = rate(text)?;
    (part > 0.0).then_some(part).ok_or_else(refused)
}

fn block_size(text: &str) -> Result<BlockSize, String> {
    let bytes = text.parse::<Size>()?.0;
    let size = u32::try_from(bytes).ok().and_then(BlockSize::new);
    size.ok_or_else(|| {
        format!("`{text}` is no block size; write 4KiB, 8KiB, 16KiB, 32KiB or 64KiB")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the help names every format. Method: look for each.
    #[test]
    fn help_names_every_format() {
        for format in Format::ALL {
            assert!(FORMATS.contains(format.name()), "{format}");
        }
    }

    /// Goal: shares are read in both spellings, nonsense is refused. Method: a few of each.
    #[test]
    fn shares_are_understood() {
        assert_eq!([rate("1%"), rate("0.01"), rate("100%")], [Ok(0.01), Ok(0.01), Ok(1.0)]);
        for bad in ["", "%", "101%", "-1%", "2", "nan", "inf"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert!(rate("0%").is_ok() && rate_of_blocks("0%").is_err());
        assert!(block_size("4KiB").is_ok() && block_size("5KiB").is_err());
    }
}
