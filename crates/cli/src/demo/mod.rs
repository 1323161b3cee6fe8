//! `layby demo`: what priorities do, in under a minute, with no device.
//!
//! How: a node with small levels runs twice in a directory of its own, first with one class for
//! all, then with classes. Both times the same services of a few vehicles are its clients, through
//! its socket and with the same seeds; what they measured is printed side by side.
//! Invariant: both phases start empty and differ in nothing but the volumes' classes.
//! Cost: two phases of `--seconds`, about a quarter of a gigabyte of temporary files.
//! Not for: absolute figures; the machine, its disk and the clients share two or more cores.

mod load;
mod phase;
mod progress;
mod report;

use crate::commands::{interrupted, runtime};
use crate::output::{Failure, Output};
use clap::{Args, ValueEnum};
use layby_daemon::error::{Report, ReportKind};
use layby_trace::Workload;
use progress::Progress;
use std::time::Duration;

/// Vehicles at least.
const VEHICLES_MIN: u64 = 1;
/// Vehicles at most: each brings up to seven threads.
const VEHICLES_MAX: u64 = 16;
/// Vehicles when nothing is said: as many as the paper's figures have.
const VEHICLES_DEFAULT: u64 = 4;
/// Seconds of a phase at most.
const SECONDS_MAX: u64 = 600;
/// Seconds of a phase when nothing is said.
const SECONDS_DEFAULT: u64 = 20;
/// Steps of the progress bar per second.
const TICKS_PER_SECOND: u64 = 5;

const EXAMPLES: &str = "\
Services of each vehicle (A: S1 S2 S3, B: S1 2xS2 2xS3, C: S1 3xS2 3xS3, D: S1 S2 S3 S4):
  S1  collision avoidance, small, 70 % reads        class critical
  S2  sensing upload, large sequential writes       class normal
  S3  map download, large sequential reads          class normal
  S4  other, like S1 without the hurry              class normal

Examples:
  layby demo
  layby demo --vehicles 2 --workload c --seconds 10 --json";

/// See what priorities do: services of a few vehicles, with one class for all and with classes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArguments {
    /// Seconds of each of the two phases
    #[arg(long, value_name = "N", default_value_t = SECONDS_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
    /// Vehicles, each with its own volumes
    #[arg(long, value_name = "N", default_value_t = VEHICLES_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u64).range(VEHICLES_MIN..=VEHICLES_MAX))]
    vehicles: u64,
    /// Services that each vehicle brings
    #[arg(long, value_name = "NAME", default_value = "d", ignore_case = true)]
    workload: WorkloadArgument,
    /// Same seed, same requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// [`Workload`] as a flag's value.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum WorkloadArgument {
    A,
    B,
    C,
    D,
}

impl From<WorkloadArgument> for Workload {
    fn from(workload: WorkloadArgument) -> Self {
        match workload {
            WorkloadArgument::A => Workload::A,
            WorkloadArgument::B => Workload::B,
            WorkloadArgument::C => Workload::C,
            WorkloadArgument::D => Workload::D,
        }
    }
}

pub(crate) fn run(arguments: &DemoArguments, output: &mut Output) -> Result<(), Failure> {
    let progress = Progress::new(arguments.seconds, output.is_terminal());
    let runtime = runtime(1)?;
    let phases = runtime.block_on(async {
        let stop = interrupted()?;
        tokio::select! {
            phases = both(arguments, &progress) => phases,
            _ = stop => Err(Report::new(ReportKind::Failure, "the demo was interrupted")
                .cause("a signal asked it to end")
                .state("its temporary files are gone; nothing else was touched")
                .hint("run it again; `--seconds 5` makes it shorter")),
        }
    });
    // Clients that an interrupted phase left behind must not keep the process.
    runtime.shutdown_background();
    progress.end();
    let (one, classes) = phases?;
    report::print(arguments.json, &one, &classes, output)
}

async fn both(
    arguments: &DemoArguments,
    progress: &Progress,
) -> Result<(phase::Outcome, phase::Outcome), Report> {
    let plan = phase::Plan {
        duration: Duration::from_secs(arguments.seconds),
        vehicles: arguments.vehicles,
        services: Workload::from(arguments.workload).services(),
        seed: arguments.seed,
        tick: Duration::from_millis(1000 / TICKS_PER_SECOND),
    };
    progress.begin("one class for all");
    let one = phase::run(&plan, phase::Classes::OneForAll, progress).await?;
    progress.begin("with classes");
    let classes = phase::run(&plan, phase::Classes::ByService, progress).await?;
    Ok((one, classes))
}
