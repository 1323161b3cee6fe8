//! Says from which commit a release was built.
//!
//! How: `LAYBY_COMMIT` where a packager sets it, else what git says of this tree. A development
//! build does not ask: it would be built again at every commit.
//! Invariant: a build never fails for want of git. Cost: a run of git per release build.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=LAYBY_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let commit = match (std::env::var("LAYBY_COMMIT"), std::env::var("PROFILE").as_deref()) {
        (Ok(commit), _) if !commit.is_empty() => commit,
        (_, Ok("release")) => from_git().unwrap_or_else(|| "unknown".to_owned()),
        _ => "unknown (a development build)".to_owned(),
    };
    println!("cargo:rustc-env=LAYBY_COMMIT={commit}");
}

/// The commit, and whether files differ from it.
fn from_git() -> Option<String> {
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo:rerun-if-changed={log}");
    git(&["describe", "--always", "--dirty", "--abbrev=12"])
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
