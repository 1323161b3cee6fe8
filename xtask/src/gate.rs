//! `cargo xtask test`: every check that a change must pass, in the order of how soon they fail.
//!
//! How: formats, tidy, lints and build in one pass, tests, then cargo-deny where it is installed.
//! The program and all tests are built by one call, since a second one with fewer packages has
//! other features of dependencies and compiles what uses them again; clippy is the compiler of that
//! call ([`linted`]). The program is handed to the tests, so that they never run an old one. Object
//! store and checkers are made ready beside the build.
//! Invariant: the first failure ends the run. Cost: minutes on two cores from nothing; see
//! CONTRIBUTING.md, How long it takes.

use crate::process::{self, Failure};
use crate::{setup, suites, tidy};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

/// Tests run at a time, per processor: those through the binary wait more than they work.
const TEST_THREADS_PER_PROCESSOR: usize = 2;

/// The test target that starts the program, of the package `layby-tests`; the traces' tests have
/// the same name and take a few seconds.
const THROUGH_BINARY: &str = "all";

/// What the driver of clippy is told, in the form in which `cargo clippy` tells it.
const DENY_WARNINGS: &str = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Runs them all.
pub(crate) fn run(root: &Path) -> Result<(), Failure> {
    #[expect(clippy::disallowed_methods, reason = "how long each step took is what this prints")]
    let begun = Instant::now();
    setup::packages(root)?;
    step(begun, "formats");
    process::run(process::cargo(root).args(["fmt", "--all", "--check"]))?;
    step(begun, "tidy");
    tidy::run(root, true)?;
    thread::scope(|scope| {
        // Most of it waits for downloads; its processor time fills what linkers leave.
        let checkers = scope.spawn(|| setup::checkers(root));
        lint_and_build(root, begun)?;
        checkers.join().unwrap_or_else(|_| Err(Failure::new("the object store cannot be built")))
    })?;
    step(begun, "tests");
    tests(root)?;
    step(begun, "advisories");
    deny(root)
}

/// cargo with clippy's driver as the compiler of this workspace's packages, warnings as errors.
///
/// The driver is rustc with lints added, so that one pass both lints and compiles: dependencies are
/// not checked apart from their build, and no file is read and typed twice. The lints are those of
/// `cargo clippy --workspace --all-targets -- -D warnings`, which hands the driver the same words
/// by the same variables. What it compiles differs in one thing: no optimisation before LLVM's.
/// Every call of cargo that builds here has to be one of these: with another compiler, cargo would
/// build the workspace again.
fn linted(root: &Path) -> Command {
    let mut cargo = process::cargo(root);
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    cargo.env("CLIPPY_ARGS", DENY_WARNINGS);
    cargo
}

/// Lints, and builds the program and every test of the workspace.
fn lint_and_build(root: &Path, begun: Instant) -> Result<(), Failure> {
    step(begun, "lints and build");
    let mut build = linted(root);
    process::run(build.args(["build", "--workspace", "--all-targets", "--locked", "--quiet"]))
}

/// All tests, in two lanes at a time: those through the binary wait for disks, sockets and other
/// programs for half of their time, which the others, simulated runs among them, fill.
///
/// Both calls select the same packages, so that cargo builds nothing again between them. There are
/// no tests in documentation, and tidy refuses them.
fn tests(root: &Path) -> Result<(), Failure> {
    let lane = || {
        let mut tests = linted(root);
        tests.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
        tests.env("LAYBY_BIN", process::target(root).join("debug/layby"));
        tests
    };
    let mut through_binary = lane();
    through_binary.args(["--test", THROUGH_BINARY]);
    if let Ok(processors) = thread::available_parallelism() {
        let threads = processors.get() * TEST_THREADS_PER_PROCESSOR;
        through_binary.env("RUST_TEST_THREADS", threads.to_string());
    }
    let mut others = lane();
    others.args(["--lib", "--bins"]).envs(suites::SIMULATION_ALLOCATOR);
    for name in other_tests(root)? {
        others.args(["--test", &name]);
    }
    thread::scope(|scope| {
        // Its lines come whole at its end, so that they do not lie between the other lane's.
        let others = scope.spawn(move || process::run_and_show(&mut others));
        let ran = process::run(&mut through_binary);
        let others = others.join().unwrap_or_else(|_| Err(Failure::new("a lane of tests ended")));
        ran.and(others)
    })
}

/// Names of all test targets but those through the binary.
fn other_tests(root: &Path) -> Result<BTreeSet<String>, Failure> {
    let mut metadata = process::cargo(root);
    let about = process::json(metadata.args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let packages = about["packages"].as_array().into_iter().flatten();
    let targets = packages.filter_map(|package| package["targets"].as_array()).flatten();
    let tests = targets.filter(|target| target["kind"][0] == "test");
    let names = tests.filter_map(|test| test["name"].as_str().map(str::to_string));
    Ok(names.filter(|name| name != THROUGH_BINARY).collect())
}

/// Says what begins, and how long after the run did.
fn step(begun: Instant, name: &str) {
    let seconds = begun.elapsed().as_secs();
    process::say(&format!("== {name} (after {} min {} s)", seconds / 60, seconds % 60));
}

/// cargo-deny takes longer to build than all our tests, so it is used where it already is.
fn deny(root: &Path) -> Result<(), Failure> {
    if !process::exists("cargo-deny", "--version") {
        process::say(
            "cargo deny: skipped: not installed (`cargo install cargo-deny --locked`); \
             licences and the lock file were checked by tidy",
        );
        return Ok(());
    }
    process::run(
        process::cargo(root).args(["deny", "--locked", "check", "licenses", "bans", "sources"]),
    )?;
    // The advisory database lives on the network; without it the check says so and passes.
    let advisories = process::run(process::cargo(root).args(["deny", "check", "advisories"]));
    if let Err(failure) = advisories {
        if reachable(root) {
            return Err(failure);
        }
        process::say("cargo deny advisories: skipped: the advisory database is not reachable");
    }
    Ok(())
}

/// Whether the advisory database answers.
fn reachable(root: &Path) -> bool {
    let mut git = process::command("timeout", root);
    git.args([
        "20",
        "git",
        "ls-remote",
        "--quiet",
        "https://github.com/RustSec/advisory-db",
        "HEAD",
    ]);
    process::output(&mut git).is_ok()
}
