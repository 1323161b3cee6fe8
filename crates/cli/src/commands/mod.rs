//! What each command does.
//!
//! How: a command that talks to a node goes through one helper that knows where the node listens
//! and runs the client to its end; the rest is turning answers into tables.
//! Invariant: `--json` prints the API's own answer, unchanged.

mod check;
mod class;
mod client;
mod deletion;
mod level;
mod manual;
mod restore;
mod safety;
mod salvage;
mod serve;
mod sizing;
mod snapshot;
mod status;
mod uplink;
mod volume;

pub(crate) use check::check;
pub(crate) use class::class;
pub(crate) use client::client;
pub(crate) use level::{level, writeback};
pub(crate) use manual::manual;
pub(crate) use restore::restore;
pub(crate) use salvage::salvage;
pub(crate) use serve::{interrupted, serve};
pub(crate) use status::status;
pub(crate) use uplink::uplink;
pub(crate) use volume::volume;

use crate::arguments::{LevelAmount, NodeArguments};
use crate::output::{Failure, note};
use layby_daemon::client::ControlClient;
use layby_daemon::config::{Amount, Name};
use layby_daemon::error::{Report, ReportKind};
use std::collections::BTreeMap;
use std::future::Future;

/// Runs `request` against the node to its end.
pub(crate) fn ask<T, F>(
    node: &NodeArguments,
    request: impl FnOnce(ControlClient) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Report>>,
{
    Ok(runtime(1)?.block_on(request(node_client(node)))?)
}

/// The way to the node.
pub(crate) fn node_client(node: &NodeArguments) -> ControlClient {
    let socket = node.control.clone().unwrap_or_else(|| node.dir.join("control.sock"));
    let within = std::time::Duration::from_nanos(node.timeout.0.0);
    ControlClient::new(&socket).within(within).noting(note)
}

/// A tokio runtime with `threads` threads; one thread is the caller's own.
pub(crate) fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, Report> {
    let mut builder = if threads == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        // Where the system grants no thread, the builder panics; so does the first task that may
        // wait, which has a thread of its own.
        layby_daemon::threads::check(threads + 1)?;
        tokio::runtime::Builder::new_multi_thread()
    };
    let built = builder.worker_threads(threads).enable_all().build();
    built.map_err(|cause| {
        Report::from_io("cannot start the program's own threads", &cause)
            .state("nothing was started or changed")
            .hint("raise the limit on processes or open files")
    })
}

/// Parts of levels as the API takes them.
///
/// # Errors
/// A report where a level is named twice.
fn amounts(flag: &str, parts: &[LevelAmount]) -> Result<BTreeMap<Name, Amount>, Report> {
    let mut amounts = BTreeMap::new();
    for (level, amount) in parts {
        if let Some(other) = amounts.insert(level.clone(), *amount) {
            let error = format!("`{flag} {level}=…` is there twice: {other} and {amount}");
            let report = Report::new(ReportKind::Invalid, error).state("nothing was changed");
            return Err(report.hint("name each level once"));
        }
    }
    Ok(amounts)
}

/// `nvm 25 %, ssd 64MiB`, or a dash.
fn amounts_text(amounts: &BTreeMap<Name, Amount>) -> String {
    list_text(amounts.iter().map(|(level, amount)| format!("{level} {amount}")))
}

/// Items with commas, or a dash.
fn list_text(items: impl Iterator<Item = impl ToString>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    if items.is_empty() { "-".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a level that is named twice is refused with both amounts. Method: two lists.
    #[test]
    fn a_level_is_named_once() {
        let part = |level: &str, amount: &str| {
            (level.parse().expect("a name"), amount.parse().expect("an amount"))
        };
        let (once, twice) = ([part("nvm", "25%"), part("ssd", "1GiB")], "64MiB");
        assert_eq!(amounts("--share", &once).map(|amounts| amounts.len()).ok(), Some(2));
        let twice = [part("nvm", "25%"), part("nvm", twice)];
        let refused = amounts("--share", &twice).expect_err("it is there twice");
        assert!(refused.error.contains("`--share nvm=…` is there twice"), "{}", refused.error);
    }
}
