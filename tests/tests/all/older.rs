//! A catalog that was put back from an older copy, beside levels that went on.
//!
//! How: the copy is made by hand while the node runs, or is the one that the node keeps for its
//! room, and the node is killed.
//! Invariant: no dirty block is dropped in silence.

use layby_tests::{Connection, Node, Options, Outcome, Request, layby, small_levels};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A volume that no command made: the catalog before the last is from before the node came up.
fn declared(more: &str) -> Options {
    let levels = small_levels().config.expect("levels");
    Options::config(format!("{levels}{more}[volume.a]\nsize = \"1MiB\"\n"))
}

fn check(dir: &Path) -> Outcome {
    layby(&["check", "--dir", &*dir.to_string_lossy()])
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).expect("the test's own folder");
}

/// Goal: an older catalog is refused by a start and a check. Where the node is told to take it all
/// the same, dirty blocks of a volume that it has never had are named, by a check, which is not
/// sound then, and by the start that drops them; a later check is sound. Method: a catalog from
/// before a volume was made, put back over a killed node; then without what names the last one.
#[test]
fn an_older_catalog_drops_no_block_in_silence() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(&dir, &small_levels());
    let [catalog, old] = ["catalog.json", "older.json"].map(|name| dir.join(name));
    fs::copy(&catalog, &old).expect("the test's own folder");
    node.volume_create("late", "4MiB", "normal");
    let mut connection = Connection::open(&node.socket(), "late").expect("the node serves");
    let write = Request::Write { offset: 0, data: vec![7; 64 << 10], fua: true };
    connection.call(&write).expect("the connection stays").expect("its level has room");
    node.kill9();
    fs::rename(&old, &catalog).expect("the test's own folder");
    let words = ["check", "--dir", &*dir.to_string_lossy()];
    layby(&words).assert_explains(&["an older copy", "catalog.last"]);
    let refused = Node::try_start(&dir, &small_levels()).expect_err("the catalog is older");
    refused.assert_explains(&["an older copy", "catalog.last"]);
    fs::remove_file(dir.join("catalog.last")).expect("the node wrote it");
    let checked = layby(&words);
    checked.assert_explains(&["is not sound"]);
    let named = ["dirty block(s) of a volume, number 1,", "older than the level"];
    for word in named {
        assert!(checked.stdout.contains(word), "`{word}` is not in: {}", checked.stdout);
    }
    let node = Node::start(&dir, &small_levels());
    for word in named {
        assert!(node.stderr().contains(word), "`{word}` is not in: {}", node.stderr());
    }
    node.stop();
    let checked = layby(&words);
    assert!(checked.success, "{}", checked.stdout);
}

/// Goal: the catalog before the last, which lies beside it, is refused by its name, by a start and a
/// check, after a stop and a kill; with the newest one back, all is there. Method: a node that saw
/// no change but its first start, and one whose volume was made larger.
#[test]
fn the_catalog_before_the_last_is_refused() {
    for (is_killed, is_resized) in [(true, false), (false, false), (true, true)] {
        let work = TempDir::new().expect("a temporary folder");
        let dir = work.path().join("node");
        let node = Node::start(&dir, &declared(""));
        let written = if is_resized { 5 << 20 } else { 0 };
        if is_resized {
            node.layby(&["volume", "resize", "a", "--size", "8MiB"]);
        }
        let mut connection = Connection::open(&node.socket(), "a").expect("it is served");
        let write = Request::Write { offset: written, data: vec![7; 64 << 10], fua: true };
        connection.call(&write).expect("it serves").expect("a sound disk");
        drop(connection);
        match is_killed {
            true => node.kill9(),
            false => node.stop(),
        }
        let [catalog, before, newest] =
            ["catalog.json", "catalog.json.new", "newest.json"].map(|name| dir.join(name));
        copy(&catalog, &newest);
        copy(&before, &catalog);
        let words = ["the catalog before the last", "catalog.json.new", "catalog.last"];
        check(&dir).assert_explains(&words);
        let refused = Node::try_start(&dir, &declared("")).expect_err("the catalog is older");
        refused.assert_explains(&words);
        copy(&newest, &catalog);
        let node = Node::start(&dir, &declared(""));
        let mut connection = Connection::open(&node.socket(), "a").expect("it is served");
        let read = Request::Read { offset: written, length: 64 << 10 };
        let found = connection.call(&read).expect("it serves").expect("a sound disk");
        assert!(found == vec![7; 64 << 10], "killed: {is_killed}, resized: {is_resized}");
    }
}
