//! A backing file that is not there costs its own volume its service, and nothing else.
//!
//! How: volumes in files are written and flushed, the node is killed or stopped, and a file is
//! moved away and put back.
//! Invariant: what was flushed of a volume is there again when its file is.
//! Not for: levels that are gone, see `lost.rs`.

use layby_tests::{Connection, HttpRequest, Node, Options, Request, layby, small_levels};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;
/// From one block that is written to the next: over all of 2 MiB.
const STEP: u64 = 32 << 10;

/// A node's folder and options with volume `a` in a folder of its own, and `b`.
struct Away {
    base: TempDir,
    options: Options,
}

impl Away {
    fn new(more: &str) -> Away {
        let base = TempDir::new().expect("a temporary folder");
        fs::create_dir(base.path().join("disk")).expect("the test's own folder");
        let levels = small_levels().config.expect("it has one");
        let path = base.path().join("disk/a.img");
        let tables = format!(
            "[volume.a]\nsize = \"2MiB\"\npath = \"{}\"\n{more}[volume.b]\nsize = \"2MiB\"\n",
            path.display()
        );
        Away { base, options: Options::config(format!("{levels}\n{tables}")) }
    }

    fn dir(&self) -> PathBuf {
        self.base.path().join("node")
    }

    fn start(&self) -> Node {
        Node::start(&self.dir(), &self.options)
    }

    /// Moves the folder of `a` from one name to another, as mounts come and go.
    fn rename(&self, from: &str, to: &str) {
        let [from, to] = [from, to].map(|name| self.base.path().join(name));
        fs::rename(from, to).expect("the test's own folder");
    }
}

fn call(connection: &mut Connection, request: &Request) {
    connection.call(request).expect("it serves").expect("a sound disk");
}

/// Writes all of a volume and flushes it.
fn fill(node: &Node, name: &str, version: u8) {
    let mut connection = Connection::open(&node.socket(), name).expect("it is served");
    for block in 0..BLOCKS {
        let (offset, data) = (block * STEP, vec![version ^ block as u8; BLOCK]);
        call(&mut connection, &Request::Write { offset, data, fua: false });
    }
    call(&mut connection, &Request::Flush);
}

#[track_caller]
fn assert_holds(node: &Node, name: &str, version: u8) {
    let mut connection = Connection::open(&node.socket(), name).expect("it is served");
    for block in 0..BLOCKS {
        let read = Request::Read { offset: block * STEP, length: BLOCK as u32 };
        let data = connection.call(&read).expect("it serves").expect("a sound disk");
        let expected = vec![version ^ block as u8; BLOCK];
        assert!(data == expected, "block {block} of `{name}` is not at version {version}");
    }
}

#[track_caller]
fn assert_waits(node: &Node) {
    assert!(!node.serves("a"), "`a` is served");
    let said = node.said();
    assert!(said.contains("volume `a` is not served") && said.contains("a.img"), "{said}");
    assert!(node.layby(&["volume", "list"]).contains("volume a is not served"));
    assert!(node.layby(&["status"]).contains("volume `a` is not served"));
    assert!(node.stderr().contains("a.img"), "{}", node.stderr());
    let metrics = HttpRequest::new("GET", "/metrics").send(&node.http()).body;
    assert!(metrics.contains("layby_volumes_not_served 1"), "{metrics}");
}

/// Goal: without the file of one volume a node serves the others and keeps what it has of that one,
/// for several lives; with the file, what was flushed is there. Method: a kill, the folder moved
/// away, a stop and a kill without it, then moved back.
#[test]
fn a_missing_file_costs_its_own_volume() {
    let away = Away::new("");
    let node = away.start();
    fill(&node, "a", 1);
    fill(&node, "b", 2);
    node.kill9();
    away.rename("disk", "gone");
    let node = away.start();
    assert_waits(&node);
    assert_holds(&node, "b", 2);
    fill(&node, "b", 3);
    let set = ["volume", "set", "a", "--class", "bulk", "--dir"];
    let refused = layby(&[&set[..], &[&away.dir().to_string_lossy()]].concat());
    refused.assert_explains(&["volume `a` is not served", "a.img"]);
    node.stop();
    let node = away.start();
    assert_waits(&node);
    assert_holds(&node, "b", 3);
    fill(&node, "b", 4);
    node.kill9();
    away.rename("gone", "disk");
    let node = away.start();
    assert_holds(&node, "a", 1);
    assert_holds(&node, "b", 4);
    node.layby(&["volume", "drain"]);
    node.stop();
}

/// Goal: a volume whose file is away can be given up, by a clear word only, and without its table
/// in the configuration it is none more; a strict start is refused. Method: dirty blocks, each way.
#[test]
fn a_volume_without_its_file_is_given_up() {
    let away = Away::new("");
    let node = away.start();
    fill(&node, "a", 1);
    fill(&node, "b", 2);
    node.stop();
    away.rename("disk", "gone");
    let config = away.options.config.clone().expect("it has one");
    let arguments = vec!["--strict".to_owned()];
    let strict = Options { arguments, ..Options::config(config) };
    let refusal = Node::try_start(&away.dir(), &strict).expect_err("it is strict");
    refusal.assert_explains(&["cannot open the home of volume `a`", "a.img"]);
    let node = away.start();
    assert_waits(&node);
    let delete = ["volume", "delete", "a", "--dir"];
    let kept = layby(&[&delete[..], &[&away.dir().to_string_lossy()]].concat());
    kept.assert_explains(&["newest blocks", "--data delete"]);
    node.layby(&["volume", "delete", "a", "--data", "delete"]);
    assert!(!node.layby(&["volume", "list"]).contains("not served"));
    node.kill9();
    let node = away.start();
    assert!(!node.said().contains("not served"), "{}", node.said());
    assert_holds(&node, "b", 2);
    node.stop();
    assert!(away.base.path().join("gone/a.img").exists(), "nothing but its own path is touched");
}

/// Goal: a volume over several shards waits as a whole, and comes back as a whole. Method: two
/// shards, a kill, the folder moved away and back.
#[test]
fn a_wide_volume_waits_for_its_file() {
    let mut away = Away::new("shards = 2\n");
    away.options.config = away.options.config.map(|text| format!("[node]\nshards = 2\n{text}"));
    let node = away.start();
    fill(&node, "a", 1);
    fill(&node, "b", 2);
    node.kill9();
    away.rename("disk", "gone");
    let node = away.start();
    assert_waits(&node);
    assert_holds(&node, "b", 2);
    node.stop();
    away.rename("gone", "disk");
    let node = away.start();
    assert_holds(&node, "a", 1);
    node.stop();
    away.rename("disk", "gone");
    let node = away.start();
    node.layby(&["volume", "delete", "a", "--data", "delete"]);
    node.stop();
}

/// Goal: a backing file that somebody cuts under a running node reads as an error where it was cut
/// off, never as zeros, and as ever before that. Method: a file of 2 MiB cut to half, reads of
/// blocks that no level has, on both sides.
#[test]
fn a_file_that_is_cut_is_an_error() {
    let away = Away::new("");
    let node = away.start();
    fill(&node, "a", 1);
    let file = fs::OpenOptions::new().write(true).open(away.base.path().join("disk/a.img"));
    file.expect("it is there").set_len(1 << 20).expect("it can be cut");
    let mut connection = Connection::open(&node.socket(), "a").expect("it is served");
    let mut read = |offset: u64| {
        connection.call(&Request::Read { offset, length: BLOCK as u32 }).expect("it serves")
    };
    assert_eq!(read(8 << 10), Ok(vec![0; BLOCK]), "never written");
    assert!(read((1 << 20) + (8 << 10)).is_err(), "cut off");
    assert!(read((2 << 20) - 8192).is_err(), "cut off");
}
