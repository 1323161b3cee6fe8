//! Levels on a FUSE file system: what was acknowledged as durable was asked to be.
//!
//! How: nbdfuse shows a disk of nbdkit as a file, on which the level lies; nbdkit logs each request
//! before it serves it.
//! Cost: a second. Where FUSE needs rights, the test says so and skips.

use layby_tests::{
    Attached, Connection, Node, Options, Request, Served, available, mount_unavailable,
};
use std::fs;
use tempfile::TempDir;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 50;

/// Goal: a durable write on a FUSE file system is answered after the file system was asked for a
/// sync, although the kernel ends asynchronous direct writes without one. Method: FUA writes, one
/// at a time; the requests that the disk below has had when each is answered.
#[test]
fn durable_writes_are_synced() {
    if mount_unavailable() || !available(&["nbdkit", "nbdfuse", "losetup"]) {
        return;
    }
    let work = TempDir::new().expect("a temporary folder");
    let (log, dir) = (work.path().join("requests"), work.path().join("node"));
    let logfile = format!("logfile={}", log.display());
    let server = Served::start(work.path(), &["--filter=log", "memory", "64M", &logfile]);
    let attached = Attached::new(work.path(), &server.uri());
    let config = format!(
        "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"32MiB\"\npath = \"{}\"\n\
         [class.critical]\nlevels = [\"ssd\"]\ndurable_writes = true\n",
        attached.file().display()
    );
    let node = Node::start(&dir, &Options::config(&*config));
    node.volume_create("v", "4MiB", "critical");
    let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
    let (mut synced, mut seen) = (0, 0);
    for block in 0..BLOCKS {
        let data = vec![block as u8 + 1; BLOCK as usize];
        let write = Request::Write { offset: block * BLOCK, data, fua: true };
        connection.call(&write).expect("the node serves").expect("a sound disk");
        // What the level writes by itself in between has no part in it.
        let requests = fs::read_to_string(&log).expect("nbdkit logs");
        let since = &requests[seen..];
        let written = since.find(" Write id=").expect("the write is one of them");
        synced += usize::from(since[written..].contains(" Flush id="));
        seen = requests.len();
    }
    assert_eq!(synced as u64, BLOCKS, "writes that were answered after a sync");
}
