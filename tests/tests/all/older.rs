//! A catalog that was put back from an older copy, beside levels that went on.
//!
//! How: the copy is made by hand while the node runs, and the node is killed.

use layby_tests::{Connection, Node, Request, layby, small_levels};
use std::fs;
use tempfile::TempDir;

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
