//! The harness itself, held against a server that others wrote.
//!
//! How: nbdkit's memory plugin answers the same client and the same scripts that the node must.
//! Invariant: what fails here is a fault of the tests, not of the node.

use layby_tests::{BLOCK_BYTES, Connection, Durability, History, available, must, run, seed};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const BLOCKS: u64 = 256;

/// nbdkit in the background, ended with the value.
struct Peer {
    pid: PathBuf,
}

impl Peer {
    fn start(work: &Path, socket: &Path) -> Peer {
        let pid = work.join("pid");
        let (socket, file) = (socket.to_string_lossy(), pid.to_string_lossy());
        // It goes to the background once it listens.
        must("nbdkit", &["--unix", &socket, "--pidfile", &file, "memory", "1M"]);
        Peer { pid }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(&self.pid).unwrap_or_default();
        run("kill", &["-KILL", pid.trim()]);
    }
}

/// Goal: client and history agree with a sound server, and notice when it goes. Method: 100 batches
/// on nbdkit, verified; then nbdkit is killed under the writer.
#[test]
fn client_and_history_agree_with_nbdkit() {
    if !available(&["nbdkit"]) {
        return;
    }
    let work = TempDir::new().expect("a temporary folder");
    let socket = work.path().join("socket");
    let mut peer = Some(Peer::start(work.path(), &socket));
    let mut connection = Connection::open(&socket, "").expect("nbdkit serves");
    assert_eq!(connection.size(), BLOCKS * BLOCK_BYTES);
    let mut history = History::new(BLOCKS, Durability::OnFlush, seed());
    for _ in 0..100 {
        history.batch(&mut connection).expect("nbdkit serves");
    }
    history.verify(&mut connection);
    let mut batches = 0;
    history.write_until_lost(&mut connection, || {
        batches += 1;
        if batches == 10 {
            peer = None;
        }
    });
    assert!(batches >= 10, "{batches} batches before the end");
}
