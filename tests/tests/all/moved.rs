//! A node whose directory is moved away while it runs: the next one at the path is another node.
//!
//! How: a node's directory gets another name, and a node starts at the old path; commands go to the
//! first one, whose files the second one's are held against. Clients write on both.
//! Invariant: what is at the path is the second node's, and stays as it is.
//! Not for: directories that are missing at a start.

use crate::lost::{assert_holds, fill};
use layby_tests::{HttpRequest, Node, layby, small_levels};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Names and contents of all files in a folder that a node may change while nobody uses it, and
/// only names of sockets and locks.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).expect("it is there").map(|entry| entry.expect("readable"));
    let of = |entry: fs::DirEntry| {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let bytes = if is_file { fs::read(entry.path()).expect("readable") } else { Vec::new() };
        (entry.file_name().to_string_lossy().into_owned(), bytes)
    };
    let mut found: Vec<_> = entries.map(of).collect();
    found.extend(fs::read_dir(dir.join("volumes")).expect("it is there").map(|entry| {
        let name = entry.expect("readable").file_name();
        (format!("volumes/{}", name.to_string_lossy()), Vec::new())
    }));
    found.sort();
    found
}

/// Goal: a running node whose directory was moved changes nothing of the node that is at its path
/// by then (its next change overwrote that one's catalog, and a deletion removed that one's file),
/// says so, and serves its own volumes, also their first changes. Method: two nodes at one path,
/// one after the other; changes of each kind, I/O and a stop on the first; both start again.
#[test]
fn a_moved_node_leaves_the_next_one_alone() {
    let base = TempDir::new().expect("a temporary folder");
    let (dir, away) = (base.path().join("node"), base.path().join("away"));
    let first = Node::start(&dir, &small_levels());
    for name in ["v", "idle", "left"] {
        first.volume_create(name, "1MiB", "normal");
    }
    fill(&first, "v", 1);
    let address = first.http();
    fs::rename(&dir, &away).expect("the test's own folder");
    fs::rename(base.path().join("node.log"), base.path().join("away.log")).expect("its own");
    let next = Node::start(&dir, &small_levels());
    for name in ["v", "left"] {
        next.volume_create(name, "1MiB", "normal");
    }
    fill(&next, "v", 2);
    let before = files(&dir);
    let at = away.display().to_string();
    for words in [
        &["volume", "create", "extra", "--size", "1MiB"][..],
        &["volume", "set", "v", "--read-only", "true"],
        &["volume", "delete", "v", "--data", "delete"],
        &["volume", "delete", "left", "--data", "delete"],
    ] {
        let outcome = layby(&[words, &["--dir", &at]].concat());
        assert!(!outcome.success, "{words:?}: {outcome:?}");
        for part in ["is not this node's directory any more", "put the directory back"] {
            assert!(outcome.stderr.contains(part), "{words:?}: {outcome:?}");
        }
        assert!(files(&dir) == before, "{words:?} changed the next node's files");
    }
    let status = layby(&["status", "--dir", &at]);
    assert!(status.stdout.contains("is not this node's directory any more"), "{status:?}");
    let ready = HttpRequest::new("GET", "/readyz").send(&address);
    assert!(ready.status == 503 && ready.body.contains("put the directory back"), "{ready:?}");
    let moved = first.moved_to(&away);
    let told = fs::read_to_string(base.path().join("away.log")).expect("its log");
    assert_eq!(told.matches("no change of the node is possible").count(), 1, "{told}");
    let audit = fs::read_to_string(away.join("audit.log")).expect("its own");
    assert!(audit.contains("data=delete"), "attempts are written down: {audit}");
    assert_holds(&moved, "v", Some(1));
    fill(&moved, "v", 3);
    fill(&moved, "idle", 4);
    assert!(files(&dir) == before, "a first change was written down with the next node");
    moved.stop();
    assert!(files(&dir) == before, "the stop changed the next node's files");
    assert_holds(&next, "v", Some(2));
    next.kill9();
    let next = Node::start(&dir, &small_levels());
    assert_holds(&next, "v", Some(2));
    next.stop();
    let first = Node::start(&away, &small_levels());
    assert_holds(&first, "v", Some(3));
    assert_holds(&first, "idle", Some(4));
}
