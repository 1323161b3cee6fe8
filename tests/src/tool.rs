//! Foreign programs: whether they are here, and what they said.
//!
//! How: every program runs under `timeout`, so that a hang is a failure with a name.
//! Invariant: a missing program is a visible `skipped:` line, even where output is captured, and
//! fails the test where `CI` says that all were to be installed.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Longest that any one program may run.
const TIMEOUT_SECONDS: &str = "300";

/// What a program printed and how it ended.
#[derive(Debug)]
pub struct Outcome {
    /// Whether it reported success.
    pub success: bool,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Outcome {
    /// Asserts that it failed and explained itself, as [`crate::Refusal::assert_explains`] does.
    ///
    /// # Panics
    /// When it reported success, or a line is missing.
    #[track_caller]
    pub fn assert_explains(&self, words: &[&str]) {
        let code = Some(i32::from(!self.success));
        crate::Refusal { code, stderr: self.stderr.clone() }.assert_explains(words);
    }
}

/// Whether all of `programs` are installed; says which one is missing.
#[must_use]
pub fn available(programs: &[&str]) -> bool {
    let folders = std::env::var("PATH").unwrap_or_default();
    let folders: Vec<&str> = folders.split(':').chain(["/usr/sbin", "/sbin"]).collect();
    let found =
        |program: &str| folders.iter().any(|folder| Path::new(folder).join(program).exists());
    let absent = programs.iter().find(|program| !found(program));
    if let Some(program) = absent {
        missing(&format!("{program} missing (`cargo xtask setup-tests` installs it)"));
    }
    absent.is_none()
}

/// Whether fio is installed and knows NBD; some distributions build it without.
#[must_use]
pub fn fio_available() -> bool {
    if !available(&["fio"]) {
        return false;
    }
    let knows = run("fio", &["--enghelp=nbd"]).stdout.contains("uri");
    if !knows {
        missing("this fio was built without its nbd engine");
    }
    knows
}

/// Says that the current test does not run for want of a program.
///
/// # Panics
/// In CI, which installs them all.
#[track_caller]
pub fn missing(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{reason}");
    skip(reason);
}

/// Says that the current test does not run, and why: the machine itself cannot.
pub fn skip(reason: &str) {
    say(&format!("skipped: {reason}"));
}

/// Says what the current test saw.
pub fn say(what: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_string();
    // Not `eprintln`, which the test runner would hide; a closed stderr is nobody's failure.
    let _ = writeln!(std::io::stderr().lock(), "{test}: {what}");
}

/// Runs a program to its end.
///
/// # Panics
/// When it cannot be started.
pub fn run<I: AsRef<str>>(program: &str, arguments: &[I]) -> Outcome {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", TIMEOUT_SECONDS, program]);
    command.args(arguments.iter().map(AsRef::as_ref)).stdin(Stdio::null());
    // Debian keeps mkfs, losetup and others where ordinary users do not look.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    let output = command.output().unwrap_or_else(|cause| panic!("cannot start {program}: {cause}"));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    // Else a test that expects a failure would take this for it.
    let is_missing = output.status.code() == Some(127) && stderr.starts_with("timeout: ");
    assert!(!is_missing, "{program} missing (`cargo xtask setup-tests` installs it)");
    Outcome {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr,
    }
}

/// Runs a program that must succeed, and returns what it printed.
///
/// # Panics
/// When it fails, with all that it said.
#[track_caller]
pub fn must<I: AsRef<str>>(program: &str, arguments: &[I]) -> String {
    let outcome = run(program, arguments);
    let words: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    assert!(
        outcome.success,
        "`{program} {}` failed\nstdout: {}\nstderr: {}",
        words.join(" "),
        outcome.stdout,
        // On one line: a summary of a run that shows lines alone then has the cause, too.
        outcome.stderr.trim_end().replace('\n', "; ")
    );
    outcome.stdout
}

/// Runs a Python script with libnbd's module `nbd`; the script finds `arguments` in `sys.argv`.
/// Returns false, after a `skipped:` line, where the module is missing.
///
/// # Panics
/// When the script fails.
#[track_caller]
#[must_use]
pub fn python(script: &str, arguments: &[&str]) -> bool {
    // The distribution's own interpreter: another one first in PATH would not know the module.
    const PYTHON: &str = "/usr/bin/python3";
    if !Path::new(PYTHON).exists() || !run(PYTHON, &["-c", "import nbd"]).success {
        missing("python3-libnbd missing (`cargo xtask setup-tests` installs it)");
        return false;
    }
    let words: Vec<&str> = ["-c", script].into_iter().chain(arguments.iter().copied()).collect();
    let outcome = run(PYTHON, &words);
    assert!(outcome.success, "script failed\n{}\n{}", outcome.stdout, outcome.stderr);
    true
}
