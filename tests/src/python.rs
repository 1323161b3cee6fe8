//! Tools of others in Python, and promtool: where setup-tests has put them.
//!
//! How: a folder of the user's cache holds a virtual environment with what
//! `tests/data/python.requirements` pins, beside a copy of that file, and promtool.
//! Invariant: another version than the pinned one is not used. Not for: libnbd's module, which
//! belongs to the distribution's Python; see `tool`.

use crate::tool::{Outcome, missing, run};
use std::path::PathBuf;

const REQUIREMENTS: &str = include_str!("../data/python.requirements");

fn cache() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    cache.unwrap_or_default().join("layby")
}

/// A program of the pinned Python tools; none, after a `skipped:` line, where they are missing.
#[must_use]
pub fn python_tool(name: &str) -> Option<String> {
    let folder = cache().join("python-tools");
    let installed = std::fs::read_to_string(folder.join("requirements")).unwrap_or_default();
    if installed != REQUIREMENTS {
        missing("Python tools missing (`cargo xtask setup-tests` installs them)");
        return None;
    }
    Some(folder.join("bin").join(name).to_string_lossy().into_owned())
}

/// Runs a script by the pinned Python; none where that is missing.
#[must_use]
pub fn python_script(script: &str, arguments: &[&str]) -> Option<Outcome> {
    let python = python_tool("python")?;
    let words: Vec<&str> = ["-c", script].into_iter().chain(arguments.iter().copied()).collect();
    Some(run(&python, &words))
}

/// Prometheus' promtool; none, after a `skipped:` line, where it is missing.
#[must_use]
pub fn promtool() -> Option<String> {
    let kept = cache().join("promtool/promtool");
    if kept.exists() {
        return Some(kept.to_string_lossy().into_owned());
    }
    let is_installed = std::process::Command::new("promtool").arg("--version").output().is_ok();
    if !is_installed {
        missing("promtool missing (`cargo xtask setup-tests` fetches it)");
        return None;
    }
    Some("promtool".to_owned())
}
