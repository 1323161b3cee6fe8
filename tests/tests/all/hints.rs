//! Hints of how long writes live, as an operator sees them.
//!
//! How: a node with an SSD level in a file, which the kernel takes hints for on every file system.
//! That each write goes under its own hint is for the engine's tests. Cost: two short nodes.

use layby_tests::{Connection, Node, Options, Request};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tempfile::TempDir;

/// The level's hints, as the API shows them.
fn hints(node: &Node) -> serde_json::Value {
    let text = node.layby(&["level", "list", "--json"]);
    let levels: serde_json::Value = serde_json::from_str(&text).expect("an answer in JSON");
    let levels = levels.as_array().expect("a list of levels");
    let ssd = levels.iter().find(|level| level["kind"] == "ssd").expect("an SSD level");
    let others = levels.iter().filter(|level| level["kind"] != "ssd");
    others.for_each(|level| assert!(level["hints"].is_null(), "{level}"));
    ssd["hints"].clone()
}

/// Whether a file can be written past the page cache, where hints have a meaning.
fn takes_direct(path: &Path) -> bool {
    const O_DIRECT: i32 = 0o40000;
    OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path).is_ok()
}

/// Goal: hints are in use where nobody says otherwise, and not with `hints = "off"`; the API says
/// which. Method: writes and a flush under each, of one node.
#[test]
fn a_level_says_how_its_device_hears() {
    let dir = TempDir::new().expect("a temporary directory");
    let levels = layby_tests::small_levels().config.expect("it is a configuration");
    let volume = "[volume.a]\nsize = \"4MiB\"\n";
    let path = dir.path().join("node");
    for (written, way) in
        [("", "lives"), ("hints = \"off\"", "none"), ("hints = \"auto\"", "lives")]
    {
        let kind = "kind = \"ssd\"";
        assert_eq!(levels.matches(kind).count(), 1, "{levels}");
        let levels = levels.replace(kind, &format!("{kind}\n{written}"));
        let node = Node::start(&path, &Options::config(format!("{levels}{volume}")));
        let mut connection = Connection::open(&node.socket(), "a").expect("the node serves");
        for block in 0..64 {
            let data = vec![7; 4096];
            let write = Request::Write { offset: block * 4096, data, fua: false };
            connection.call(&write).expect("the node serves").expect("a write");
        }
        connection.call(&Request::Flush).expect("the node serves").expect("a flush");
        let seen = hints(&node);
        assert_eq!(seen["way"], way, "{seen}");
        assert_eq!(seen["is_refused"], false, "{seen}");
        let (writes, changes) = (seen["writes"].as_u64(), seen["changes"].as_u64());
        if way == "none" {
            assert_eq!((writes, changes), (Some(0), Some(0)), "{seen}");
        } else if takes_direct(&path.join("levels/ssd")) {
            assert!(writes > Some(0) && changes > Some(0) && changes <= writes, "{seen}");
        }
        node.stop();
    }
}
