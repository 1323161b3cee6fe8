//! Chores of the project, run as `cargo xtask <chore>`.
//!
//! How: a file per chore; each runs other programs and judges what they say.
//! Invariant: a chore that fails exits with 1 and says why on its last lines.
//! Not for: anything that a user of Layby needs; that is a command of `layby`.
#![forbid(unsafe_code)]

mod process;
mod tidy;

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
