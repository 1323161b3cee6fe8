//! Write-protected devices as backing stores, through the binary.
//!
//! How: a loop device whose protection is set and lifted. Where that needs rights, the test says so
//! and skips.

use layby_tests::{
    Connection, LoopDevice, Node, Options, Request, available, layby, mount_unavailable, must,
    small_levels,
};
use std::fs;
use tempfile::TempDir;

const LENGTH: usize = 4 << 20;

/// Writes over the whole of a volume, and has it written back.
fn fill(node: &Node, name: &str) {
    let mut connection = Connection::open(&node.socket(), name).expect("the node serves");
    let write = Request::Write { offset: 0, data: vec![7; LENGTH], fua: true };
    connection.call(&write).expect("the connection stays").expect("its device takes it");
    node.layby(&["volume", "drain", name]);
}

/// A node with a volume `v` on the device, of these keys, and another one in a file.
fn beside_device(device: &LoopDevice, keys: &str) -> Options {
    let levels = small_levels().config.expect("it has one");
    let volume = format!("[volume.v]\npath = \"{}\"\n{keys}", device.path());
    let other = "[volume.other]\nsize = \"1MiB\"\n";
    let arguments = vec!["--volume-root".to_owned(), "/dev".to_owned()];
    Options { arguments, ..Options::config(format!("{levels}\n{volume}\n{other}")) }
}

/// Goal: a write-protected device is no backing store of a volume that may be written to: a start,
/// a command and a change are refused with cause and hint, and one that turns protected costs its
/// volume alone. A read-only volume is served from it. Method: one loop device, with and without
/// protection.
#[test]
fn a_write_protected_device_is_served_read_only() {
    if mount_unavailable() || !available(&["losetup", "blockdev"]) {
        return;
    }
    let work = TempDir::new().expect("a temporary folder");
    let disk = work.path().join("disk");
    fs::write(&disk, vec![1; LENGTH]).expect("the test's own folder");
    let device = LoopDevice::new(&disk);
    let protect = |way: &str| drop(must("blockdev", &[way, device.path()]));
    let table = |keys: &str| beside_device(&device, keys);
    let dir = work.path().join("node");
    let words = ["write-protected", device.path(), "read_only = true"];
    protect("--setro");
    Node::try_start(&dir, &table("")).expect_err("first start").assert_explains(&words);
    let node = Node::start(&dir, &table("read_only = true\n"));
    let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
    let read = Request::Read { offset: 0, length: 4096 };
    assert_eq!(connection.call(&read).expect("it stays"), Ok(vec![1; 4096]));
    drop(connection);
    let place = dir.to_string_lossy();
    let opened = layby(&["volume", "set", "v", "--read-only", "false", "--dir", &place]);
    opened.assert_explains(&["write-protected", device.path()]);
    node.layby(&["volume", "delete", "v", "--data", "keep"]);
    let command = ["volume", "create", "w", "--path", device.path(), "--dir", &place];
    layby(&command).assert_explains(&words);
    protect("--setrw");
    node.layby(&command[..5]);
    fill(&node, "w");
    node.stop();
    protect("--setro");
    let node = Node::start(&dir, &small_levels());
    assert!(node.serves("other") && !node.serves("w"), "{}", node.stderr());
    assert!(node.stderr().contains("write-protected"), "{}", node.stderr());
    node.stop();
    let left = fs::read(device.path()).expect("readable");
    assert!(left == [7; LENGTH], "nothing was written since");
}

/// Goal: a loop device over a volume's own file, and another one over the same bytes, are no
/// backing stores of further volumes, in a configuration and by a command; one over other bytes is.
/// Method: loop devices over a volume's file and over another file.
#[test]
fn a_loop_device_over_a_volumes_file_is_refused() {
    if mount_unavailable() || !available(&["losetup"]) {
        return;
    }
    let work = TempDir::new().expect("a temporary folder");
    let [file, other] = ["file", "other"].map(|name| {
        let path = work.path().join(name);
        fs::write(&path, vec![1; LENGTH]).expect("the test's own folder");
        path
    });
    let [over, again, apart] = [&file, &file, &other].map(|path| LoopDevice::new(path));
    let levels = small_levels().config.expect("it has one");
    let arguments = [work.path().to_str().expect("text"), "/dev"]
        .iter()
        .flat_map(|root| ["--volume-root".to_owned(), (*root).to_owned()])
        .collect::<Vec<_>>();
    let options = |volumes: &[(&str, &str)]| {
        let table = |(name, path): &(&str, &str)| format!("[volume.{name}]\npath = \"{path}\"\n");
        let tables: Vec<String> = volumes.iter().map(table).collect();
        let arguments = arguments.clone();
        Options { arguments, ..Options::config(format!("{levels}\n{}", tables.concat())) }
    };
    let dir = work.path().join("node");
    let path = file.to_str().expect("text");
    for (first, second) in [(path, over.path()), (over.path(), path), (over.path(), again.path())] {
        let refused = Node::try_start(&dir, &options(&[("a", first), ("b", second)]));
        refused.expect_err("they have the same bytes").assert_explains(&[
            "volume `a`",
            "volume `b`",
            first,
            second,
        ]);
    }
    let node = Node::start(&dir, &options(&[("a", path), ("b", apart.path())]));
    let place = dir.to_string_lossy();
    let command = ["volume", "create", "c", "--path", over.path(), "--dir", &place];
    layby(&command).assert_explains(&["volume `a`", over.path(), path]);
    node.stop();
}

/// Goal: a write-protected backing store to which zeroes wait to be written costs its volume
/// alone, also where the volume is read-only: the start names it and serves the others; without
/// the protection it is served again, with zeroes there. Method: a node that is killed behind a
/// zeroing, and a loop device whose protection is set and lifted.
#[test]
fn a_protected_store_that_owes_zeroes_ends_no_start() {
    if mount_unavailable() || !available(&["losetup", "blockdev"]) {
        return;
    }
    let work = TempDir::new().expect("a temporary folder");
    let disk = work.path().join("disk");
    fs::write(&disk, vec![1; LENGTH]).expect("the test's own folder");
    let device = LoopDevice::new(&disk);
    let options = |keys: &str| beside_device(&device, keys);
    let dir = work.path().join("node");
    let left_owing = || {
        let node = Node::start(&dir, &options(""));
        let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
        let zero = Request::Zero { offset: 0, length: 64 << 10 };
        connection.call(&zero).expect("the connection stays").expect("the device can");
        node.kill9();
        must("blockdev", &["--setro", device.path()]);
        let node = Node::start(&dir, &options("read_only = true\n"));
        if !node.serves("v") {
            return Some(node);
        }
        // The zeroes were there before the node was killed.
        node.stop();
        must("blockdev", &["--setrw", device.path()]);
        None
    };
    let node = (0..50).find_map(|_| left_owing()).expect("one of them is killed in time");
    assert!(node.serves("other") && !node.serves("v"), "{}", node.stderr());
    for word in ["write-protected", "zeroes wait", device.path()] {
        assert!(node.stderr().contains(word), "`{word}`: {}", node.stderr());
    }
    node.stop();
    must("blockdev", &["--setrw", device.path()]);
    let node = Node::start(&dir, &options("read_only = true\n"));
    let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
    let read = Request::Read { offset: 0, length: 64 << 10 };
    assert_eq!(connection.call(&read).expect("it stays"), Ok(vec![0; 64 << 10]));
    node.stop();
}
