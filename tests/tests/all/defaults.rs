//! Which levels a node has of which none is written.
//!
//! How: nodes through the binary, without any configuration, on the test's own folder.
//! Invariant: that folder is on no DAX file system. Not for: the rule on one that is; see
//! `daemon::config::levels`.

use layby_tests::{Connection, Node, Options, Request, layby};
use std::path::Path;
use tempfile::TempDir;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// The default levels of a node on persistent memory, and of each node before there was a rule.
const WITH_NVM: &str = "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"64MiB\"\n\n\
    [[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"64MiB\"\npreallocation = \"falloc\"\n\n\
    [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"512MiB\"\npreallocation = \"falloc\"\n";

fn said_once(node: &Node, line: &str) {
    let said = node.said();
    assert_eq!(said.lines().filter(|said| *said == line).count(), 1, "`{line}` in:\n{said}");
}

fn by_default(levels: &str, why: &str, dir: &Path) -> String {
    format!("levels by default: {levels}; {}", why.replace("DIR", &dir.display().to_string()))
}

fn data(block: u64) -> Vec<u8> {
    vec![block as u8 ^ 0x5a; BLOCK]
}

fn write(node: &Node, name: &str) {
    let mut connection = Connection::open(&node.socket(), name).expect("it is served");
    for block in 0..BLOCKS {
        let (offset, data) = (block * BLOCK as u64, data(block));
        let write = Request::Write { offset, data, fua: false };
        connection.call(&write).expect("it serves").expect("a sound disk");
    }
}

#[track_caller]
fn assert_written(node: &Node, name: &str) {
    let mut connection = Connection::open(&node.socket(), name).expect("it is served");
    for block in 0..BLOCKS {
        let read = Request::Read { offset: block * BLOCK as u64, length: BLOCK as u32 };
        let found = connection.call(&read).expect("it serves").expect("a sound disk");
        assert!(found == data(block), "block {block} of `{name}` is another");
    }
}

/// Goal: a new node that is told nothing has no NVM level in a plain file, says so and why, once,
/// and serves what its critical class wrote durably after a kill. Method: a node without any
/// configuration, started three times.
#[test]
fn a_new_node_has_no_nvm_in_a_plain_file() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(&dir, &Options::default());
    let levels = "dram 64MiB, ssd 512MiB";
    let why = "no NVM level: `DIR` is not on a DAX file system";
    said_once(&node, &by_default(levels, why, &dir));
    said_once(&node, "class critical: writes land in ssd, acknowledged when durable");
    assert!(!node.said().contains("level nvm"), "{}", node.said());
    assert!(!dir.join("levels/nvm").exists(), "a level's file was made");
    node.volume_create("brake", "1MiB", "critical");
    write(&node, "brake");
    node.kill9();
    for _ in 0..2 {
        let node = Node::start(&dir, &Options::default());
        let why = "no NVM level: the node in `DIR` was made without one";
        said_once(&node, &by_default(levels, why, &dir));
        assert_written(&node, "brake");
        node.stop();
    }
}

/// Goal: a node that was made with the NVM level that default levels had before keeps it without
/// any configuration, and loses nothing that lay there alone. Method: such a node, killed with
/// dirty blocks in that level, and started twice as one that is told nothing.
#[test]
fn a_node_keeps_the_nvm_level_of_earlier_defaults() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let idle = "[writeback]\nidle_timeout = \"600s\"\n\n";
    let node = Node::start(&dir, &Options::config(format!("{idle}{WITH_NVM}")));
    assert!(!node.said().contains("by default"), "{}", node.said());
    node.volume_create("brake", "1MiB", "critical");
    write(&node, "brake");
    node.kill9();
    for recovered in [BLOCKS, 0] {
        let node = Node::start(&dir, &Options::default());
        let (levels, why) =
            ("dram 64MiB, nvm 64MiB, ssd 512MiB", "the node in `DIR` was made with one");
        said_once(&node, &by_default(levels, &format!("NVM level: {why}"), &dir));
        let is_dirty = format!("recovered {recovered} dirty");
        assert!(node.said().contains(&is_dirty), "{is_dirty}:\n{}", node.said());
        assert_written(&node, "brake");
        node.layby(&["volume", "drain", "brake"]);
        node.stop();
    }
}

/// Goal: a class that names the NVM level where default levels have none is refused with what to do
/// about it, and nothing is made. Method: such a class, then the same beside levels that have one.
#[test]
fn a_class_that_names_no_level_is_told_how_to_have_it() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let class = "[class.critical]\nshare = { nvm = \"25%\" }\n\n";
    let refusal = Node::try_start(&dir, &Options::config(class)).expect_err("there is no level");
    let hint = "levels are: dram, ssd; default levels have no nvm level on this machine: write \
                [[level]] for it";
    refusal.assert_explains(&["there is no level `nvm`", "line 2", hint]);
    assert!(!dir.exists(), "a refused start made something");
    Node::start(&dir, &Options::config(format!("{class}{WITH_NVM}"))).stop();
}

/// Goal: a probe says of a directory which default levels a new node there has, and nothing of a
/// file. Method: a tiny probe of the test's folder, and of a file in it.
#[test]
fn a_probe_says_which_levels_a_node_would_have() {
    let work = TempDir::new().expect("a temporary folder");
    let file = work.path().join("file");
    std::fs::write(&file, vec![7; 4 << 20]).expect("the test's own folder");
    let note = "note: the directory is not on a DAX file system, so a new node there has no NVM \
                level by default";
    for (path, count) in [(work.path(), 1), (&file, 0)] {
        let path = path.to_string_lossy();
        let probed = layby(&["probe", &path, "--size", "4MiB", "--seconds", "0.002"]);
        assert!(probed.success, "{probed:?}");
        let said = probed.stdout.lines().filter(|line| *line == note).count();
        assert_eq!(said, count, "{}", probed.stdout);
    }
}
