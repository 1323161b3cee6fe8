//! The node's log: to standard error, for people by default and as JSON for machines.
//!
//! How: `tracing`, filtered by `LAYBY_LOG` (such as `debug` or `layby_daemon=trace`), `info` when
//! it is not set, or cannot be understood, which the log then says.
//! Invariant: standard output stays free for what a command answers; a log that cannot be written
//! (its disk is full, its reader gone) is silent and harms nobody.

use crate::error::Report;
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

/// Starts the log of this process; a second call changes nothing.
pub fn start(format: LogFormat) {
    let wanted = std::env::var(FILTER_VARIABLE).ok().filter(|text| !text.is_empty());
    let read = wanted.as_deref().map(EnvFilter::try_new).transpose();
    let refused = read.as_ref().err().map(ToString::to_string);
    let filter = read.ok().flatten().unwrap_or_else(|| EnvFilter::new("info"));
    let is_plain = std::env::var_os(PLAIN_VARIABLE).is_some_and(|text| !text.is_empty());
    // Complaints of the log about itself would go to the same place, and panic there.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
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
