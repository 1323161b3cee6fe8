//! The node's log: to standard error, for people by default and as JSON for machines.
//!
//! How: `tracing`, filtered by `LAYBY_LOG` (such as `debug` or `layby_daemon=trace`), `info` when
//! it is not set, or cannot be understood, which the log then says.
//! Invariant: standard output stays free for what a command answers; a log that cannot be written
//! (its disk is full, its reader gone or not reading) is silent and holds nothing up.

use crate::error::Report;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use tracing_subscriber::EnvFilter;

/// What the environment calls the filter.
const FILTER_VARIABLE: &str = "LAYBY_LOG";

/// What the environment calls the wish for no colours, see no-color.org.
const PLAIN_VARIABLE: &str = "NO_COLOR";

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A line to read.
    #[default]
    Human,
    /// A JSON object.
    Json,
}

/// A SIGHUP came, and there are no TLS files to be read again.
pub fn note_hangup() {
    tracing::info!("SIGHUP ignored: there are no TLS files; the configuration is read at a start");
}

/// A SIGHUP had the TLS files read again.
pub fn note_reload(read: &Result<(), Report>) {
    match read {
        Ok(()) => tracing::info!("TLS files read again: new clients get what they say now"),
        Err(Report { error, cause, state, hint, .. }) => {
            tracing::error!(cause, state, hint, "{error}");
        }
    }
}

/// A signal came that a node has no use for.
pub fn note_unused(signal: &str) {
    tracing::info!(signal, "signal ignored");
}

/// A node that was asked for is ready.
pub fn note_ready(volumes: usize) {
    tracing::info!(volumes, "ready");
}

/// A signal asks the node to stop.
pub fn note_stop(signal: &str) {
    tracing::info!(signal, "stop asked");
}

/// Bytes that go into a pipe at once or not at all.
const PIECE_BYTES: usize = 4096;

/// Lines of which standard error took nothing, or not all.
static LOST: Mutex<u64> = Mutex::new(0);

/// Standard error, as long as it takes something: a pipe that nothing reads, or a terminal that was
/// stopped, would hold up whatever has a line to say, clients and signals among it.
struct Writer;

impl Write for Writer {
    /// Takes all of a line, also what standard error does not.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        if *lost > 0 {
            let note = format!("{lost} line(s) of the log were lost: nothing read them\n");
            if !is_writable() {
                *lost += 1;
                return Ok(line.len());
            }
            std::io::stderr().write_all(note.as_bytes())?;
            *lost = 0;
        }
        for piece in line.chunks(PIECE_BYTES) {
            if !is_writable() {
                *lost += 1;
                break;
            }
            std::io::stderr().write_all(piece)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether standard error takes a piece now.
fn is_writable() -> bool {
    let stderr = std::io::stderr();
    let mut waiting = [PollFd::new(&stderr, PollFlags::OUT)];
    // What cannot be asked, as a closed one, fails at once when it is written.
    !matches!(rustix::event::poll(&mut waiting, Some(&Timespec::default())), Ok(0))
}

/// A word that would name a target of which there is none, where a level was meant: nothing at all
/// would be logged.
fn no_level(filter: &str) -> Option<String> {
    const LEVELS: [&str; 6] = ["trace", "debug", "info", "warn", "error", "off"];
    let is_known = |word: &str| {
        let is_level = LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
        is_level || word.contains('=') || word.contains('[') || word.starts_with("layby")
    };
    let mut words = filter.split(',').map(str::trim).filter(|word| !word.is_empty());
    let word = words.find(|word| !is_known(word))?;
    Some(format!("`{word}` is neither a level ({}) nor a target", LEVELS.join(", ")))
}

/// Starts the log of this process; a second call changes nothing.
pub fn start(format: LogFormat) {
    let wanted = std::env::var(FILTER_VARIABLE).ok().filter(|text| !text.is_empty());
    let read = wanted.as_deref().map(EnvFilter::try_new).transpose();
    let refused = read.as_ref().err().map(ToString::to_string);
    let refused = refused.or_else(|| wanted.as_deref().and_then(no_level));
    let read = if refused.is_some() { Ok(None) } else { read };
    let filter = read.ok().flatten().unwrap_or_else(|| EnvFilter::new("info"));
    let is_plain = std::env::var_os(PLAIN_VARIABLE).is_some_and(|text| !text.is_empty());
    // Complaints of the log about itself would go to the same place, and panic there.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Writer)
        .log_internal_errors(false);
    // A test may have started one; then the first stays.
    let _ = match format {
        LogFormat::Human => {
            let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
            builder.with_ansi(is_terminal && !is_plain).with_target(false).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Some(cause) = refused {
        tracing::warn!(wanted, cause, "{FILTER_VARIABLE} is not understood: `info` is logged");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a word that is no level is told, since it would silence the log. Method: by hand.
    #[test]
    fn words_that_are_no_level_are_told() {
        for good in ["info", "WARN", "layby_daemon=trace,warn", "layby_engine", "h2=off", ""] {
            assert_eq!(no_level(good), None, "{good}");
        }
        for bad in ["warning", "inf0", "info,verbose", "nonsense=,,:x"] {
            let is_told = no_level(bad).is_some() || EnvFilter::try_new(bad).is_err();
            assert!(is_told, "{bad}");
        }
    }
}
