//! `cargo xtask fuzz --target`: the coverage-guided fuzzers of `fuzz/coverage`, for a time.
//!
//! How: `layby-fuzz targets` names targets and how long their inputs are; cargo-fuzz builds each
//! fuzzer on nightly and runs it on the committed corpus and what earlier runs found, which lies
//! beside the build. No sanitizer: the targets are safe Rust with its checks on, and run faster.
//! Invariant: nothing is installed; what is missing is named with the command that gets it. The
//! committed corpus changes with `--keep` only.
//! Cost: the first build instruments every dependency, which takes minutes.
//! Not for: CI, which replays the corpora in `fuzz/tests`.

use crate::process::{self, Failure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Memory of a fuzzer at most, and of one of its allocations: more is a finding.
const MEMORY_MIB_MAX: u32 = 1024;
const ALLOCATION_MIB_MAX: u32 = 256;
/// Seconds of one input at most: more is a finding.
const INPUT_SECONDS_MAX: u32 = 20;
/// Files of a committed corpus at most, and their bytes together.
const CORPUS_FILES_MAX: usize = 100;
const CORPUS_BYTES_MAX: u64 = 40_000;

/// A target, and the bytes of its inputs at most.
struct Target {
    name: String,
    length_max: u32,
}

/// Runs the fuzzer of `wanted`, or one after the other with `all`, for `seconds` each.
pub(crate) fn run(root: &Path, wanted: &str, seconds: u32, keep: bool) -> Result<(), Failure> {
    let targets = targets(root)?;
    let chosen: Vec<&Target> =
        targets.iter().filter(|target| wanted == "all" || target.name == wanted).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        let names = names.join(", ");
        return Err(Failure::new(format!("there is no target `{wanted}`\nhint: {names}, or all")));
    }
    tools(root)?;
    for target in chosen {
        process::say(&format!("== {} for {seconds} s", target.name));
        let found = found(root, target);
        make(&found)?;
        let mut fuzzer = fuzzer(root, target, &[&found, &corpus(root, target)]);
        fuzzer.arg(format!("-max_total_time={seconds}"));
        process::run(fuzzer.args(["-use_value_profile=1", "-print_final_stats=1"]))?;
        if keep {
            keep_fewest(root, target)?;
        }
    }
    Ok(())
}

/// The targets, as the room itself lists them.
fn targets(root: &Path) -> Result<Vec<Target>, Failure> {
    let mut list = process::cargo(root);
    list.args(["run", "--quiet", "--locked", "--package", "layby-fuzz", "--", "targets"]);
    let text = process::output(&mut list)?;
    let target = |line: &str| {
        let (name, length) = line.split_once(' ')?;
        Some(Target { name: name.to_owned(), length_max: length.parse().ok()? })
    };
    Ok(text.lines().filter_map(target).collect())
}

/// Says plainly what is missing.
fn tools(root: &Path) -> Result<(), Failure> {
    let mut nightly = process::command("rustup", root);
    let nightly = process::output(nightly.args(["run", "nightly", "rustc", "--version"]));
    if nightly.is_err() {
        return Err(missing("nightly Rust", "rustup toolchain install nightly --profile minimal"));
    }
    if !process::exists("cargo-fuzz", "--version") {
        return Err(missing("cargo-fuzz", "cargo install cargo-fuzz --locked"));
    }
    Ok(())
}

fn missing(what: &str, command: &str) -> Failure {
    Failure::new(format!(
        "cannot fuzz by coverage\ncause: {what} is not installed\nhint: `{command}`; \
         without it, `cargo xtask fuzz` mutates traces and `cargo test` replays the corpora"
    ))
}

/// What is committed.
fn corpus(root: &Path, target: &Target) -> PathBuf {
    root.join("fuzz/corpus").join(&target.name)
}

/// What this machine's runs have found.
fn found(root: &Path, target: &Target) -> PathBuf {
    beside_build(root, "fuzz-found", target)
}

/// A target's part of a folder beside what cargo builds.
fn beside_build(root: &Path, folder: &str, target: &Target) -> PathBuf {
    process::target(root).join(folder).join(&target.name)
}

/// A target's fuzzer on `folders`; new inputs go into the first.
fn fuzzer(root: &Path, target: &Target, folders: &[&Path]) -> Command {
    // By rustup, since the cargo that runs us is of one toolchain and knows no `+nightly`.
    let mut command = process::command("rustup", root);
    command.args(["run", "nightly", "cargo", "fuzz", "run", "--fuzz-dir", "fuzz/coverage"]);
    command.args(["--sanitizer", "none", &target.name]).args(folders).arg("--");
    command.arg(format!("-max_len={}", target.length_max));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
    command.arg(format!("-malloc_limit_mb={ALLOCATION_MIB_MAX}"));
    command.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
    command
}

/// Puts into the committed corpus, in place of what was kept before, the fewest inputs that reach
/// all that any run has reached: short and long ones, as many as its bounds allow.
fn keep_fewest(root: &Path, target: &Target) -> Result<(), Failure> {
    let (corpus, fewest) = (corpus(root, target), beside_build(root, "fuzz-fewest", target));
    // What an earlier run left there would count as reached.
    let _ = fs::remove_dir_all(&fewest);
    make(&fewest)?;
    let mut merge = fuzzer(root, target, &[&fewest, &corpus, &found(root, target)]);
    process::run(merge.args(["-set_cover_merge=1", "-use_counters=0"]))?;
    let (kept, named): (Vec<_>, Vec<_>) =
        files(&corpus)?.into_iter().partition(|(_, path)| is_hash(path));
    for (_, path) in kept {
        fs::remove_file(&path).map_err(|cause| Failure::io("cannot remove", &path, &cause))?;
    }
    let new = files(&fewest)?;
    let bytes = |files: &[(u64, PathBuf)]| files.iter().map(|(length, _)| length).sum::<u64>();
    let room = CORPUS_FILES_MAX.saturating_sub(named.len()).max(1);
    let room_bytes = CORPUS_BYTES_MAX.saturating_sub(bytes(&named)).max(1);
    let step = new.len().div_ceil(room).max(bytes(&new).div_ceil(room_bytes) as usize).max(1);
    for (_, path) in new.iter().skip(step / 2).step_by(step) {
        let copy = corpus.join(path.file_name().unwrap_or_default());
        fs::copy(path, copy).map_err(|cause| Failure::io("cannot copy", path, &cause))?;
    }
    Ok(())
}

/// Whether libFuzzer gave the file its name; seeds and findings have names of people.
fn is_hash(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The files of a folder with their lengths, the shortest first.
fn files(folder: &Path) -> Result<Vec<(u64, PathBuf)>, Failure> {
    let wrong = |cause| Failure::io("cannot list", folder, &cause);
    let file = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.metadata()?.len(), entry.path()))
    };
    let entries = fs::read_dir(folder).map_err(wrong)?;
    let mut files = entries.map(file).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    files.sort();
    Ok(files)
}

fn make(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|cause| Failure::io("cannot make", folder, &cause))
}
