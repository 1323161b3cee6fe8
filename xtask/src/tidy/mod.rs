//! `cargo xtask tidy`: the rules of style.md that a machine can check.
//!
//! How: gathers findings from every rule, prints them all as `file:line: what, why`, and fails when
//! there is one. Invariant: the rules read, they never change a file.
//! Cost: two runs of cargo metadata and one check build of the pure rooms, seconds when warm.

mod dependencies;
mod exceptions;
mod lexer;
mod rooms;
mod source;

use crate::process::{self, Failure};
use serde_json::Value;
use source::Source;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold Rust of ours.
const SOURCE_FOLDERS: [&str; 5] = ["crates", "xtask", "tests", "fuzz", "python"];
/// A target without a standard library: what reads a clock there does not build.
const BARE_TARGET: &str = "x86_64-unknown-none";

/// One thing that is wrong.
pub(crate) struct Finding {
    /// `file:line`, with the path within the repository.
    pub(crate) place: String,
    pub(crate) what: String,
    pub(crate) why: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {}", self.place, self.what, self.why)
    }
}

/// A size that has a ceiling.
pub(crate) struct Measure {
    pub(crate) rule: &'static str,
    /// `file` or `file:function`.
    pub(crate) subject: String,
    pub(crate) line: usize,
    pub(crate) lines: usize,
    pub(crate) ceiling: usize,
}

/// Runs every rule; with `bare`, builds the pure rooms without a standard library as well.
pub(crate) fn run(root: &Path, bare: bool) -> Result<(), Failure> {
    let metadata = process::json(cargo(root).args(["--no-deps", "--offline"]))?;
    let mut findings = rooms::arrows(&metadata, &root.to_string_lossy());
    findings.extend(sources(root)?);
    let lock = process::read(&root.join("Cargo.lock"))?;
    findings.extend(dependencies::lock_ceiling(&lock, dependencies::LOCK_PACKAGES_MAX));
    let resolved =
        process::json(cargo(root).args(["--locked", "--filter-platform", &host(root)?]))?;
    findings.extend(dependencies::licences(&resolved));
    for finding in &findings {
        process::say(&finding.to_string());
    }
    if bare {
        pure_rooms_build(root, &metadata)?;
    }
    process::say(&format!("tidy: {} findings", findings.len()));
    findings.is_empty().then_some(()).ok_or_else(|| Failure::new("the tree is not tidy"))
}

fn cargo(root: &Path) -> std::process::Command {
    let mut command = process::cargo(root);
    command.args(["metadata", "--format-version", "1"]);
    command
}

/// The target that this toolchain builds for by default.
fn host(root: &Path) -> Result<String, Failure> {
    let version = process::output(process::command("rustc", root).arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_string).ok_or_else(|| Failure::new("`rustc -vV` names no host"))
}

/// The rules on every file, and the ceilings.
fn sources(root: &Path) -> Result<Vec<Finding>, Failure> {
    let (mut findings, mut measures) = (Vec::new(), Vec::new());
    for path in rust_files(root)? {
        let text = process::read(&path)?;
        let within = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        let source = Source::new(&within, &text);
        findings.extend(source.findings());
        measures.extend(source.measures());
        if pure_root(&within) {
            findings.extend(rooms::pure_attributes(&within, &lexer::views(&text).code));
        }
    }
    let list = process::read(&root.join(exceptions::PATH))?;
    findings.extend(exceptions::judge(&list, &measures));
    Ok(findings)
}

/// Whether `path` is the first file of a pure room.
fn pure_root(path: &str) -> bool {
    let room = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/src/lib.rs"));
    room.is_some_and(rooms::is_pure)
}

/// Every Rust file below [`SOURCE_FOLDERS`], build output left out, in order of path.
fn rust_files(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut folders: Vec<PathBuf> = SOURCE_FOLDERS.iter().map(|name| root.join(name)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop().filter(|_| files.len() < FILES_MAX) {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let entry = entry.map_err(|cause| Failure::io("cannot list", &folder, &cause))?;
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() && name != "target" {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// More files than this means that the walk left the repository.
const FILES_MAX: usize = 20_000;

/// Builds the pure rooms where there is no clock to read, when that target is installed.
fn pure_rooms_build(root: &Path, metadata: &Value) -> Result<(), Failure> {
    let sysroot = process::output(process::command("rustc", root).args(["--print", "sysroot"]))?;
    if !Path::new(sysroot.trim()).join("lib/rustlib").join(BARE_TARGET).join("lib").is_dir() {
        process::say(&format!(
            "tidy: pure rooms on {BARE_TARGET}: skipped: target not installed \
             (`rustup target add {BARE_TARGET}`)"
        ));
        return Ok(());
    }
    let mut check = process::cargo(root);
    check.args(["check", "--quiet", "--locked", "--target", BARE_TARGET]);
    for package in rooms::pure_packages(metadata) {
        check.args(["--package", &package]);
    }
    process::run(&mut check)?;
    process::say(&format!("tidy: pure rooms build for {BARE_TARGET}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a finding reads as style.md asks. Method: one, printed.
    #[test]
    fn findings_name_place_what_and_why() {
        let finding =
            Finding { place: "a.rs:3".into(), what: "two things".into(), why: "one is enough" };
        assert_eq!(finding.to_string(), "a.rs:3: two things, one is enough");
    }

    /// Goal: only the first file of a pure room must carry the attributes. Method: three paths.
    #[test]
    fn pure_roots_are_recognised() {
        assert!(pure_root("crates/cache/src/lib.rs"));
        assert!(!pure_root("crates/cache/src/table.rs") && !pure_root("crates/engine/src/lib.rs"));
    }
}
