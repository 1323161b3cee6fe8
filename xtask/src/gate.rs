//! `cargo xtask test`: every check that a change must pass, in the order of how soon they fail.
//!
//! How: formats, tidy, lints, tests, then cargo-deny where it is installed. The program and all
//! tests are built by one call, since a second one with fewer packages has other features of
//! dependencies and compiles what uses them again. The program is handed to the tests, so that they
//! never run an old one. Object store and checkers are made ready beside lints and build.
//! Invariant: the first failure ends the run. Cost: minutes on two cores from nothing; see
//! CONTRIBUTING.md, How long it takes.

use crate::process::{self, Failure};
use crate::{setup, tidy};
use std::path::Path;
use std::thread;
use std::time::Instant;

/// Tests run at a time, per processor: those through the binary wait more than they work.
const TEST_THREADS_PER_PROCESSOR: usize = 2;

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
        lint(root, begun)?;
        build(root, begun)?;
        checkers.join().unwrap_or_else(|_| Err(Failure::new("the object store cannot be built")))
    })?;
    step(begun, "tests");
    let mut tests = process::cargo(root);
    tests.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    tests.env("LAYBY_BIN", process::target(root).join("debug/layby"));
    if let Ok(processors) = thread::available_parallelism() {
        let threads = processors.get() * TEST_THREADS_PER_PROCESSOR;
        tests.env("RUST_TEST_THREADS", threads.to_string());
    }
    process::run(&mut tests)?;
    step(begun, "advisories");
    deny(root)
}

fn lint(root: &Path, begun: Instant) -> Result<(), Failure> {
    step(begun, "lints");
    process::run(process::cargo(root).args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))
}

/// The program and every test of the workspace.
fn build(root: &Path, begun: Instant) -> Result<(), Failure> {
    step(begun, "build");
    let mut build = process::cargo(root);
    process::run(build.args([
        "build",
        "--workspace",
        "--bins",
        "--examples",
        "--tests",
        "--locked",
        "--quiet",
    ]))
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
