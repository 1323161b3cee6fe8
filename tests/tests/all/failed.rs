//! Levels whose device refuses writes and flushes; through the binary.
//!
//! How: the level's file is the only one of an ext4 that ends itself as after an error: what was
//! written is read, every write and flush is refused, until it is mounted again.

use layby_tests::{
    Connection, Device, HttpRequest, Node, Options, Request, available, layby, mount_unavailable,
};
use tempfile::TempDir;

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Blocks that are flushed.
const BLOCKS: u64 = 256;

fn ask(connection: &mut Connection, request: &Request) -> Result<Vec<u8>, u32> {
    connection.send(request).expect("the node serves");
    connection.receive().expect("the node serves").1
}

fn write(block: u64, value: u8) -> Request {
    Request::Write { offset: block * BLOCK, data: vec![value; BLOCK as usize], fua: false }
}

fn read_all(connection: &mut Connection) {
    for block in 0..BLOCKS {
        let read = Request::Read { offset: block * BLOCK, length: BLOCK as u32 };
        let data = ask(connection, &read).expect("it was flushed");
        assert!(data.iter().all(|byte| *byte == 40), "block {block}");
    }
}

fn failed(node: &Node) -> serde_json::Value {
    let status: serde_json::Value =
        serde_json::from_str(&node.layby(&["status", "--json"])).expect("a status in JSON");
    status["failed"].clone()
}

/// Goal: a level whose device fails makes no block corrupt: the log, once, the status, the metrics
/// and a drain name the device; what was flushed is read, and written back after a restart. Method:
/// flushed blocks, the level's file system ends, writes, flushes and drains; a kill, a new mount.
#[test]
fn a_device_that_fails_corrupts_nothing() {
    if mount_unavailable() || !available(&["mkfs.ext4", "losetup"]) {
        return;
    }
    let dir = TempDir::new().expect("a temporary directory");
    let device = Device::over_file(dir.path(), "disk", 128 << 20);
    let level = device.path().join("level");
    let options = Options::config(format!(
        "[node]\nshards = 1\n[[level]]\nname = \"flash\"\nkind = \"ssd\"\nsize = \"32MiB\"\n\
         path = \"{}\"\n[volume.norm]\nsize = \"12MiB\"\n",
        level.display()
    ));
    let place = dir.path().join("node");
    let node = Node::start(&place, &options);
    let mut client = Connection::open(&node.socket(), "norm").expect("the node serves");
    for block in 0..BLOCKS {
        ask(&mut client, &write(block, 40)).expect("a write");
    }
    ask(&mut client, &Request::Flush).expect("a flush");
    assert_eq!(failed(&node), serde_json::json!([]));

    device.fail();
    for block in 0..3 {
        let _ = ask(&mut client, &write(BLOCKS + block, 41));
        ask(&mut client, &Request::Flush).expect_err("the device refuses it");
    }
    let words = ["volume", "drain", "norm", "--dir", &*place.to_string_lossy()];
    for _ in 0..3 {
        let drain = layby(&words);
        drain.assert_explains(&[&level.to_string_lossy(), "failed", "restart the node"]);
        assert!(!drain.stderr.contains("corrupt"), "{}", drain.stderr);
    }
    read_all(&mut client);
    let shown = failed(&node);
    assert_eq!(shown[0]["level"], "flash", "{shown}");
    assert_eq!(shown[0]["path"], *level.to_string_lossy(), "{shown}");
    let line = format!("level `flash`: {}", shown[0]["cause"].as_str().expect("a sentence"));
    assert!(node.layby(&["status"]).contains(&line), "{line}");
    let metrics = HttpRequest::new("GET", "/metrics").send_unix(&node.control()).body;
    let is_named =
        |line: &str| line.starts_with("layby_level_failed{") && line.contains("level=\"flash\"");
    assert!(metrics.lines().any(is_named), "{metrics}");
    let log = node.stderr();
    let named = |line: &&str| line.contains(&*level.to_string_lossy()) && line.contains("failed");
    let lines = log.lines().filter(named).count();
    assert_eq!(lines, shown.as_array().expect("a list").len(), "{log}");
    assert!(!log.contains("corrupt"), "{log}");

    drop(client);
    node.kill9();
    device.mount_again();
    let node = Node::start(&place, &options);
    let mut client = Connection::open(&node.socket(), "norm").expect("the node serves");
    read_all(&mut client);
    assert_eq!(failed(&node), serde_json::json!([]));
    node.layby(&["volume", "drain", "norm"]);
    drop(client);
    node.stop();
}
