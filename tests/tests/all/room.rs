//! Where a page of a level cannot be had, the node says so.
//!
//! How: the file of a level is cut while a node runs on it.
//! Invariant: the node ends by itself. Cost: a second. Not for: what a level holds after a crash.

use layby_tests::{Connection, Lost, Node, Request, small_levels};
use std::fs::File;
use std::path::Path;
use tempfile::TempDir;

const VOLUME: &str = "brake";
const PIECE: usize = 64 << 10;
const PIECES: u64 = 64;

fn content(piece: u64, version: u8) -> Vec<u8> {
    vec![(piece as u8).wrapping_mul(31) ^ version; PIECE]
}

/// Writes every piece durably.
fn write(node: &Node, version: u8) -> Result<(), Lost> {
    let mut connection = Connection::open(&node.socket(), VOLUME)?;
    for piece in 0..PIECES {
        let (offset, data) = (piece * PIECE as u64, content(piece, version));
        let written = connection.call(&Request::Write { offset, data, fua: true })?;
        assert_eq!(written, Ok(Vec::new()), "piece {piece}");
    }
    Ok(())
}

/// One line that names the level's file, and the exit code that stands for it.
#[track_caller]
fn assert_says_why(code: Option<i32>, stderr: &str, level: &Path) {
    let name = level.to_string_lossy();
    let is_it = |line: &&str| line.starts_with("error: level file") && line.contains(&*name);
    assert_eq!((code, stderr.lines().filter(is_it).count()), (Some(9), 1), "{stderr}");
    let line = stderr.lines().find(is_it).expect("it was counted");
    for word in ["file system below it is full", "device failed", "flushed", "make room"] {
        assert!(line.contains(word), "`{word}`: {line}");
    }
}

/// Goal: a page of a level that cannot be had ends the node with a line and an exit code of its
/// own. Method: another program cuts the file of the NVM level; a write; then a start.
#[test]
fn a_cut_level_ends_the_node_with_a_word() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(&dir, &small_levels());
    node.volume_create(VOLUME, "4MiB", "critical");
    write(&node, 1).expect("it serves");
    let level = dir.join("levels/nvm");
    let file = File::options().write(true).open(&level).expect("the test's own folder");
    file.set_len(0).expect("the test's own folder");
    write(&node, 2).expect_err("it cannot serve");
    let ended = node.ended();
    assert_says_why(ended.code, &ended.stderr, &level);
    let refusal = Node::try_start(&dir, &small_levels()).expect_err("its level is cut");
    refusal.assert_explains(&["levels/nvm", "put the whole file back"]);
}
