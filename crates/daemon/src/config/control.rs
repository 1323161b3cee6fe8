//! `[control]` and the folders that volumes may lie in when a command names them.
//!
//! How: values of the file, flags over them. The HTTP address of the API stays on loopback; the
//! one of the metrics, which only answers reads, may be any.
//! Invariant: what exists names no address that takes changes from another machine.
//! Cost: read once per start. Not for: who may change what; see `api::guard`.

use super::checks::{Place, Problem};
use super::{Address, Overrides, roots};
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Folders that a command may name at most.
const ROOTS_MAX: usize = 64;

/// How operators reach the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlConfig {
    /// The unix socket.
    pub socket: PathBuf,
    /// A loopback address; port 0 picks a free one; `None` is off.
    pub http: Option<Address>,
    /// Another address, which serves metrics and the state of health alone.
    pub metrics: Option<Address>,
    /// The file with the tokens that let changes in through `http`; without it none are.
    pub token_file: Option<PathBuf>,
}

/// The table as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ControlTable {
    socket: Option<PathBuf>,
    http: Option<String>,
    metrics: Option<Address>,
    token_file: Option<PathBuf>,
}

impl ControlTable {
    pub(super) fn config(self, dir: &Path, over: &Overrides) -> Result<ControlConfig, Problem> {
        let http = match over.http.as_deref().or(self.http.as_deref()) {
            None => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()),
            Some("off") => None,
            Some(text) => Some(loopback_address(text)?),
        };
        Ok(ControlConfig {
            socket: dir.join(self.socket.unwrap_or("control.sock".into())),
            http,
            metrics: over.metrics.clone().or(self.metrics),
            token_file: self.token_file.map(|path| dir.join(path)),
        })
    }
}

/// Where a name leads is known, and checked, when it is bound.
fn loopback_address(text: &str) -> Result<Address, Problem> {
    let refused = |cause: String| {
        let hint = "write a loopback address such as `127.0.0.1:0`, or `off`; `metrics` takes any \
                    address, and serves reads alone";
        Problem::new(Place::Control, "http", cause, hint)
    };
    match text.parse().map_err(refused)? {
        Address::Numbers(address) if !address.ip().is_loopback() => {
            Err(refused(format!("{} can be reached from other machines", address.ip())))
        }
        address => Ok(address),
    }
}

/// The folders of the file and the flags, in which commands may place volumes, and a note on each
/// that cannot be used now; the node's own comes by itself.
pub(super) fn volume_roots(
    dir: &Path,
    written: Vec<PathBuf>,
    over: &Overrides,
) -> Result<(Vec<PathBuf>, Vec<String>), Problem> {
    let written = written.into_iter().map(|root| dir.join(root));
    let written: Vec<_> = written.chain(over.volume_roots.iter().cloned()).collect();
    let refused =
        |cause: String, hint: &str| Err(Problem::new(Place::Node, "volume_roots", cause, hint));
    if written.len() > ROOTS_MAX {
        let cause = format!("{} folders are more than {ROOTS_MAX}", written.len());
        return refused(cause, "name a folder above them");
    }
    let mut notes = Vec::new();
    for root in written.iter().filter(|_| !over.reads_only) {
        match roots::check_folder(root) {
            Ok(note) => notes.extend(note),
            Err(cause) => return refused(cause, "name a folder that other users cannot write"),
        }
    }
    Ok((written, notes))
}
