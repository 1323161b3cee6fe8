//! Runs other programs and reports their failures as sentences.
//!
//! How: thin layers over `std::process::Command`; each failure names the command line.
//! Invariant: a program that was started is waited for. Not for: programs that stay; see `bench`.

use serde_json::Value;
use std::fmt;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Why a chore could not be done.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Failure(what.into())
    }
    pub(crate) fn io(what: &str, path: &Path, cause: &io::Error) -> Self {
        Failure(format!("{what} `{}`\ncause: {cause}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A line for the person who runs the chore.
pub(crate) fn say(line: &str) {
    // A closed pipe is the reader's wish, not a failure of the chore.
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// The whole of a text file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|cause| Failure::io("cannot read", path, &cause))
}

/// Writes a text file, making its folder first.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = folder.and_then(|()| fs::write(path, text));
    written.map_err(|cause| Failure::io("cannot write", path, &cause))
}

/// A command in the folder `root`, with nothing on its standard input.
pub(crate) fn command(program: &str, root: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// The cargo that runs us.
pub(crate) fn cargo(root: &Path) -> Command {
    command(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string()), root)
}

/// Where cargo puts what it builds.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Runs `command` with its output shown.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.status().map_err(|cause| not_started(command, &cause))?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| Failure(format!("`{}` failed\ncause: {status}", shown(command))))
}

/// Runs `command` and shows what it printed once it has ended.
pub(crate) fn run_and_show(command: &mut Command) -> Result<(), Failure> {
    let piped = io::pipe().and_then(|(reader, writer)| Ok((reader, writer.try_clone()?, writer)));
    let (mut reader, out, errors) = piped.map_err(|cause| not_started(command, &cause))?;
    let started = command.stdout(out).stderr(errors).spawn();
    let mut child = started.map_err(|cause| not_started(command, &cause))?;
    // The command keeps its ends of the pipe until it gets others.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut text = Vec::new();
    let read = reader.read_to_end(&mut text);
    let status = read.and_then(|_| child.wait()).map_err(|cause| not_started(command, &cause))?;
    // As in `say`.
    let _ = io::stdout().lock().write_all(&text);
    match status.success() {
        true => Ok(()),
        false => Err(Failure(format!("`{}` failed\ncause: {status}", shown(command)))),
    }
}

/// Runs `command` and returns what it printed; its error output is shown.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let command = command.stderr(Stdio::inherit());
    let output = command.output().map_err(|cause| not_started(command, &cause))?;
    if !output.status.success() {
        return Err(Failure(format!("`{}` failed\ncause: {}", shown(command), output.status)));
    }
    String::from_utf8(output.stdout)
        .map_err(|cause| Failure(format!("`{}` printed no UTF-8\ncause: {cause}", shown(command))))
}

/// Runs `command` and reads what it printed as JSON.
pub(crate) fn json(command: &mut Command) -> Result<Value, Failure> {
    let text = output(command)?;
    // fio prints notes before its document.
    let document = text.find('{').map_or("", |at| &text[at..]);
    serde_json::from_str(document)
        .map_err(|cause| Failure(format!("`{}` printed no JSON\ncause: {cause}", shown(command))))
}

/// Lets time pass, where others give no event to wait for.
pub(crate) fn pause(time: Duration) -> Result<(), Failure> {
    run(Command::new("sleep").arg(time.as_secs_f64().to_string()))
}

/// Whether `program` can be found and started with `argument`.
pub(crate) fn exists(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn not_started(command: &Command, cause: &io::Error) -> Failure {
    Failure(format!("cannot start `{}`\ncause: {cause}", shown(command)))
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
