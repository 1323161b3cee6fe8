//! `cargo xtask simulate`: lives seeds, or shows one of them.
//!
//! How: a campaign with progress and a table; a seed that fails is shrunk and its timeline printed,
//! with the line that replays it.
//! Invariant: exit 1 where a life failed, or where a planted fault was not found.
//! Cost: both cores for as long as asked. Not for: users of Layby.

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use layby_proof::campaign::{self, Length, Outcome};
use layby_proof::plan::Life;
use layby_proof::shrink::shrink;
use layby_proof::timeline::Timeline;
use layby_proof::world::{Failure, live};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// Live whole lives of a simulated node: load, faults, power cuts, recovery, each from one seed
#[derive(Parser)]
#[command(name = "cargo xtask simulate")]
struct Arguments {
    /// Live so many seeds
    #[arg(long, default_value_t = 2000, conflicts_with_all = ["seconds", "seed"])]
    seeds: u64,
    /// Live as many seeds as fit into this time
    #[arg(long, conflicts_with = "seed")]
    seconds: Option<u64>,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Live this one only, and print its timeline if it fails
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: print the timeline even if all is well, and shrink nothing
    #[arg(long, requires = "seed")]
    timeline: bool,
    /// Stop after so many lives have failed
    #[arg(long, default_value_t = 3)]
    failures: usize,
    /// Plant each of our own faults in turn, or those named, and say after how many lives it is
    /// found; exit 1 if one is not found within --seeds lives
    #[cfg(feature = "planted")]
    #[arg(long, num_args = 0.., value_name = "FAULT", conflicts_with_all = ["seconds", "seed"])]
    planted: Option<Vec<String>>,
    /// Threads [default: as many as cores]
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    campaign::hush_panics();
    #[cfg(feature = "planted")]
    if let Some(names) = &arguments.planted {
        return planted::show(&arguments, names);
    }
    match arguments.seed {
        Some(seed) => show(seed, arguments.timeline),
        None => many(&arguments),
    }
}

/// Prints a text for people.
fn say(text: &str) {
    // Nobody is left to hear of it if this fails.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Lives one seed; prints how it went, and the shrunk life's timeline if it failed.
fn show(seed: u64, wants_timeline: bool) -> ExitCode {
    let life = Life::draw(seed);
    let mut timeline = Timeline::new(wants_timeline);
    let result = live(&life, &mut timeline);
    say(&format!("seed {seed}: disks are {:?}, {} acts", life.character, life.acts.len()));
    if wants_timeline {
        say(&timeline.to_string());
    }
    match result {
        Ok(tally) => {
            say(&format!(
                "all is well: {} requests, {} errors, {} power cuts",
                tally.requests, tally.errors, tally.cuts
            ));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            say(&format!("act {}: {}", failure.act, failure.what));
            if !wants_timeline {
                explain(seed, failure);
            }
            ExitCode::FAILURE
        }
    }
}

/// Shrinks a failing life and prints what is left of it.
fn explain(seed: u64, failure: Failure) {
    let (life, failure) = shrink(&Life::draw(seed), failure);
    let mut timeline = Timeline::new(true);
    let _ = live(&life, &mut timeline);
    say(&format!("shrunk to {} acts: {}\n{timeline}", life.acts.len(), failure.what));
    say(&format!("replay with: cargo xtask simulate --seed {seed}"));
}

fn many(arguments: &Arguments) -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or(cores);
    let length = match arguments.seconds {
        Some(seconds) => Length::Time(Duration::from_secs(seconds)),
        None => Length::Seeds(arguments.seeds),
    };
    let bar = match length {
        Length::Seeds(count) => ProgressBar::new(count),
        Length::Time(_) => ProgressBar::new_spinner(),
    };
    bar.set_style(
        ProgressStyle::with_template("{spinner} {pos} lives, {per_sec}, {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let outcome = campaign::run(arguments.first, length, threads, arguments.failures, &|lives| {
        bar.set_position(lives);
    });
    bar.finish_and_clear();
    say(&report(&outcome, arguments.first, threads));
    for (seed, failure) in &outcome.failures {
        say(&format!("seed {seed} fails at act {}: {}", failure.act, failure.what));
    }
    let Some((seed, failure)) = outcome.failures.first() else { return ExitCode::SUCCESS };
    explain(*seed, failure.clone());
    ExitCode::FAILURE
}

fn report(outcome: &Outcome, first: u64, threads: usize) -> String {
    let tally = &outcome.tally;
    let minutes = outcome.elapsed.as_secs_f64() / 60.0;
    let mut text = format!(
        "{} lives from seed {first} in {:.1} s on {threads} threads: {:.0} per minute\n",
        outcome.lives,
        outcome.elapsed.as_secs_f64(),
        outcome.lives as f64 / minutes
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} requests ({} errors where disks gave reason), {} clients broken off, {} power cuts \
         ({} in recovery), {} stops that were not clean, {} starts refused with reason, \
         {} failed once, \
         {} nodes destroyed, {} looks at what stores alone have, {} clean volumes checked without \
         levels, {} written back without NVM, {} write intents refused, {} lengths changed, \
         {} volumes removed, \
         {} older copies of levels refused, {} older copies of nodes refused",
        tally.requests,
        tally.errors,
        tally.broken,
        tally.cuts,
        tally.cuts_in_recovery,
        tally.stops_unclean,
        tally.refused,
        tally.starts_failed,
        tally.destroyed,
        tally.restored,
        tally.clean_checked,
        tally.written_back,
        tally.intents_refused,
        tally.lengths,
        tally.removed,
        tally.older,
        tally.older_nodes
    );
    let _ = writeln!(
        text,
        "{} steps of devices; power cut in {} of {} distinct windows between two steps; {} kinds \
         of fault:",
        tally.steps,
        tally.windows_cut.len(),
        tally.windows.len(),
        tally.faults.len()
    );
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["fault", "times"]);
    for (kind, count) in &tally.faults {
        table.add_row([(*kind).to_owned(), count.to_string()]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let _ = writeln!(text, "{table}");
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["fault", "at", "times"]);
    for ((kind, area), count) in &tally.areas {
        table.add_row([(*kind).to_owned(), area.to_string(), count.to_string()]);
    }
    if let Some(column) = table.column_mut(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let _ = write!(text, "{table}");
    text
}

/// Our own faults, each planted in turn.
#[cfg(feature = "planted")]
mod planted {
    use super::{Arguments, ExitCode, Length, Table, campaign, presets, say};
    use layby_types::planted::{Plant, plant};

    /// Prints a table of the faults and the lives that found them.
    pub(super) fn show(arguments: &Arguments, names: &[String]) -> ExitCode {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header(["planted fault", "found by seed", "after lives", "what the life says"]);
        let mut is_every_found = true;
        for fault in Plant::ALL {
            let name = format!("{fault:?}");
            if !names.is_empty() && !names.contains(&name) {
                continue;
            }
            plant(Some(fault));
            let length = Length::Seeds(arguments.seeds);
            // One thread: the first seed to fail is then the same every time.
            let outcome = campaign::run(arguments.first, length, 1, 1, &|_| {});
            plant(None);
            match outcome.failures.first() {
                Some((seed, failure)) => {
                    let what: String = failure.what.chars().take(60).collect();
                    table.add_row([name, seed.to_string(), outcome.lives.to_string(), what]);
                }
                None => {
                    is_every_found = false;
                    let lives = outcome.lives.to_string();
                    table.add_row([name, "none".to_owned(), lives, "not found".to_owned()]);
                }
            }
        }
        say(&table.to_string());
        if is_every_found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
