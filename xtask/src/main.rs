//! Chores of the project, run as `cargo xtask <chore>`.
//!
//! How: a file per chore; each runs other programs and judges what they say.
//! Invariant: a chore that fails exits with 1 and says why on its last lines.
//! Not for: anything that a user of Layby needs; that is a command of `layby`.
#![forbid(unsafe_code)]

mod bench;
mod fuzz;
mod gate;
mod guest;
mod nightly;
mod process;
mod setup;
mod stores;
mod suites;
mod tidy;
mod tools;

use clap::{Parser, Subcommand};
use process::Failure;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Chores of the project.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Chores {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check the rules of the project that a machine can check
    Tidy {
        /// Leave out the build of the pure rooms without a standard library
        #[arg(long)]
        no_build: bool,
    },
    /// Install the packages and the object store that the tests use, as far as they are missing
    SetupTests,
    /// Install what the tests need, then run every check that a change must pass
    Test,
    /// Run the tests with foreign clients, with images of a given size
    Clients {
        /// Size of the images
        #[arg(long, default_value = "1GiB")]
        size: String,
    },
    /// Destroy a node's disks at random moments; the object store gives its ext4 back, clean
    Destroy {
        /// How often
        #[arg(long, default_value_t = 10)]
        rounds: u32,
        /// Same seed, same files
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Live a volume's whole life, and race for one, on object stores that others wrote
    Stores {
        /// These alone: versitygw, moto, s3rver, azurite, fake-gcs-server, rclone
        names: Vec<String>,
        /// How often each race is run
        #[arg(long, default_value_t = 20)]
        rounds: u32,
        /// Those that take long to build, too
        #[arg(long)]
        nightly: bool,
    },
    /// Kill a node again and again, and hold it to what it promised
    Crash {
        /// How often
        #[arg(long, default_value_t = 50)]
        runs: u32,
        /// Simulated power cuts only, which drop all that is not yet durable
        #[arg(long)]
        power_loss: bool,
        /// Same seed, same writes
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Run a node for a long time: load, clients that break off, kills and stops, ceilings
    Soak {
        /// How long
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// Same seed, same writes
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Start a guest kernel under QEMU whose disk is a volume, and restart the node beneath it
    Guest {
        /// How often
        #[arg(long, default_value_t = 10)]
        restarts: u32,
        /// Same seed, same order of kills and stops
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Live whole lives of a simulated node: load, faults, power cuts, recovery, an oracle
    ///
    /// Example: cargo xtask simulate --seconds 60; a failing seed is shrunk and explained, and
    /// replayed by --seed N. With --planted our own faults are planted in turn, in a build of its
    /// own, and must be found.
    Simulate {
        /// Plant our own faults
        #[arg(long)]
        planted: bool,
        /// --seeds N, --seconds S, --seed X, --first F, --timeline, --threads T, --failures N
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Lives, fuzzers, power cuts and a soak on seeds that nobody has tried
    Nightly {
        /// How long in all, without builds
        #[arg(long, default_value_t = 120)]
        #[arg(value_parser = clap::value_parser!(u64).range(nightly::MINUTES_MIN..))]
        minutes: u64,
        /// Same night, same seeds [default: the days since 1970]
        #[arg(long)]
        night: Option<u64>,
    },
    /// Look for inputs that break something: by coverage with --target, else mutated traces
    Fuzz {
        /// A target of `fuzz/`, or `all`; needs nightly Rust and cargo-fuzz
        #[arg(long)]
        target: Option<String>,
        /// How long, per target
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Keep in `fuzz/corpus` the fewest inputs that reach all that was reached
        #[arg(long, requires = "target")]
        keep: bool,
        /// The first seed of mutated traces
        #[arg(long, default_value_t = 0, conflicts_with = "target")]
        seed: u64,
    },
    /// Measure one claim beside its peers and print its entry
    Bench(bench::Arguments),
    /// Write the manual pages into docs/man
    Man,
}

fn main() -> ExitCode {
    let root = root();
    match run(&root, Chores::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            process::say(&format!("error: {failure}"));
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path, chore: Chore) -> Result<(), Failure> {
    match chore {
        Chore::Tidy { no_build } => tidy::run(root, !no_build),
        Chore::SetupTests => setup::run(root),
        Chore::Test => gate::run(root),
        Chore::Clients { size } => suites::clients(root, &size),
        Chore::Crash { runs, power_loss, seed } => suites::crash(root, runs, power_loss, seed),
        Chore::Destroy { rounds, seed } => suites::destroy(root, rounds, seed),
        Chore::Guest { restarts, seed } => guest::run(root, restarts, seed),
        Chore::Fuzz { target: Some(target), seconds, keep, .. } => {
            fuzz::run(root, &target, seconds, keep)
        }
        Chore::Fuzz { target: None, seconds, seed, .. } => suites::mutated(root, seconds, seed),
        Chore::Stores { names, rounds, nightly } => stores::run(root, &names, rounds, nightly),
        Chore::Soak { minutes, seed } => suites::soak(root, minutes, seed),
        Chore::Nightly { minutes, night } => nightly::run(root, minutes, night),
        Chore::Simulate { planted, options } => suites::simulate(root, planted, &options),
        Chore::Bench(arguments) => bench::run(root, &arguments),
        Chore::Man => suites::manual(root),
    }
}

/// The repository: the folder above xtask's own.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Goal: the command line has no contradictions. Method: clap's own check.
    #[test]
    fn the_command_line_is_sound() {
        Chores::command().debug_assert();
    }
}
