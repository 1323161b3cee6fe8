//! Longer runs of the tests through the binary, and what else runs the binary.
//!
//! How: the same tests as in `cargo test`, made larger through the environment: `LAYBY_IMAGE_SIZE`,
//! `LAYBY_CRASH_RUNS`, `LAYBY_SEED`. Cost: as asked for; a crash run takes about two seconds.

use crate::process::{self, Failure};
use std::path::Path;
use std::process::Command;

/// Simulated disks come and go by the megabyte: without these the allocator of glibc asks the
/// kernel for each, which was half of a run's processor time (7.5 s of 300 runs, now 4.6 s).
pub(crate) const SIMULATION_ALLOCATOR: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "268435456"), ("MALLOC_TRIM_THRESHOLD_", "2147483648")];

/// The tests with foreign clients on images of `size`.
pub(crate) fn clients(root: &Path, size: &str) -> Result<(), Failure> {
    process::run(tests(root, "clients::").arg("--nocapture").env("LAYBY_IMAGE_SIZE", size))
}

/// The crash tests, `runs` times each; with `power_loss` only those that cut the power.
pub(crate) fn crash(root: &Path, runs: u32, power_loss: bool, seed: u64) -> Result<(), Failure> {
    let mut tests = tests(root, if power_loss { "power_loss" } else { "crash::" });
    tests.arg("--nocapture");
    tests.env("LAYBY_CRASH_RUNS", runs.to_string()).env("LAYBY_SEED", seed.to_string());
    process::run(&mut tests)
}

/// Nodes whose disks are destroyed: what their store gives back.
pub(crate) fn destroy(root: &Path, rounds: u32, seed: u64) -> Result<(), Failure> {
    let mut tests = tests(root, "destroy::");
    tests.arg("--nocapture").env("LAYBY_DESTROY_ROUNDS", rounds.to_string());
    process::run(tests.env("LAYBY_SEED", seed.to_string()))
}

/// Mutated traces, for `seconds`, on any toolchain; it says how many inputs there were.
pub(crate) fn mutated(root: &Path, seconds: u32, seed: u64) -> Result<(), Failure> {
    let mut command = process::cargo(root);
    command.args(["test", "--locked", "--package", "layby-trace", "--test", "all"]);
    command.args(["mutated::mutated", "--", "--nocapture"]);
    command.env("LAYBY_FUZZ_SECONDS", seconds.to_string()).env("LAYBY_SEED", seed.to_string());
    process::run(&mut command)
}

/// The soak of the crash tests, for `minutes`.
pub(crate) fn soak(root: &Path, minutes: u64, seed: u64) -> Result<(), Failure> {
    let mut tests = tests(root, "crash::a_soak");
    tests.arg("--nocapture").env("LAYBY_SOAK_SECONDS", (minutes * 60).to_string());
    process::run(tests.env("LAYBY_SEED", seed.to_string()))
}

/// Simulated lives; with `planted` in a build that can plant faults, which lies apart.
pub(crate) fn simulate(root: &Path, planted: bool, options: &[String]) -> Result<(), Failure> {
    let mut proof = process::cargo(root);
    proof.args(["run", "--quiet", "--release", "--locked", "--package", "layby-proof"]);
    if planted {
        proof.args(["--features", "planted", "--target-dir"]);
        proof.arg(process::target(root).join("planted"));
    }
    proof.envs(SIMULATION_ALLOCATOR);
    proof.arg("--").args(options);
    if planted {
        proof.arg("--planted");
    }
    process::run(&mut proof)
}

/// The manual pages, as the program itself describes its commands.
pub(crate) fn manual(root: &Path) -> Result<(), Failure> {
    let mut layby = process::cargo(root);
    layby.args(["run", "--quiet", "--locked", "--package", "layby-cli", "--"]);
    process::run(layby.args(["manual", "--out", "docs/man"]))
}

/// The tests through the binary whose path begins with `path`; more words are the runner's.
pub(crate) fn tests(root: &Path, path: &str) -> Command {
    let mut command = process::cargo(root);
    command.args(["test", "--locked", "--package", "layby-tests", "--test", "all", "--", path]);
    command
}
