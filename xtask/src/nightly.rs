//! `cargo xtask nightly`: what is too long for every change, on seeds that nobody has tried.
//!
//! How: the night's number, by default the days since 1970, is where simulated lives and kills
//! begin, so that each night tries others and any night can be repeated; lives, fuzzers, power
//! cuts and the soak take their share of the time one after the other.
//! Invariant: a part that fails does not keep the others from running, and the chore fails.
//! Not for: changes; see `gate`.

use crate::process::{self, Failure};
use crate::{fuzz, suites};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Lives that one night may use up: more than it can live.
const LIVES_PER_NIGHT: u64 = 100_000_000;
/// Crash tests in a night.
const CRASH_RUNS: u32 = 50;
/// Fuzzers' targets, roughly: the time is shared among them.
const TARGETS: u64 = 10;
/// Below this a night shows nothing.
pub(crate) const MINUTES_MIN: u64 = 8;

/// A part of the night.
type Part<'a> = &'a dyn Fn() -> Result<(), Failure>;

/// Runs every part for its share of `minutes`: half for lives, a quarter each for fuzzers and soak.
pub(crate) fn run(root: &Path, minutes: u64, night: Option<u64>) -> Result<(), Failure> {
    let night = night.unwrap_or_else(today);
    process::say(&format!("night {night}; repeat it with: cargo xtask nightly --night {night}"));
    let first = night.wrapping_mul(LIVES_PER_NIGHT).to_string();
    let lives = ["--first", &first, "--seconds", &(minutes * 30).to_string()].map(String::from);
    let fuzz_seconds = u32::try_from(minutes * 15 / TARGETS).unwrap_or(u32::MAX);
    let parts: [(&str, Part<'_>); 4] = [
        ("lives", &|| suites::simulate(root, false, &lives)),
        ("fuzzers", &|| fuzz::run(root, "all", fuzz_seconds, false)),
        ("power cuts", &|| suites::crash(root, CRASH_RUNS, true, night)),
        ("soak", &|| suites::soak(root, (minutes / 4).max(1), night)),
    ];
    let mut failed = Vec::new();
    for (name, part) in parts {
        process::say(&format!("== {name}"));
        if let Err(failure) = part() {
            process::say(&format!("{name}: {failure}"));
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("night {night} found something: {}", failed.join(", "))))
}

/// Days since 1970.
#[expect(clippy::disallowed_methods, reason = "a fresh night is what is asked for; it is printed")]
fn today() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs() / 86_400
}
