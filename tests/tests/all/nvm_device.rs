//! An NVM level on a block device: what was acknowledged as durable is on the device.
//!
//! How: a loop device; its file is read past the kernel's pages of the device, so that bytes that
//! are only there do not count.
//! Cost: a second. Where loop devices need rights, the test says so and skips.

use layby_tests::{Connection, LoopDevice, Node, Options, Request, available, mount_unavailable};
use std::fs;
use tempfile::TempDir;

const BLOCK: usize = 4096;
const LENGTH: usize = 32 << 20;
const BLOCKS: u64 = 24;

/// A block that no other content looks like.
fn content(block: u64) -> Vec<u8> {
    let words =
        (0..BLOCK as u64 / 8).map(|at| (block << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Goal: durable writes to an NVM level on a block device are on the device when they are answered,
/// and the node does not say that the level is modelled in memory, although the device's node lies
/// in a memory file system. Method: FUA writes, and others before a flush, of a class that the NVM
/// level serves; the node is killed, and the file below the device searched for each block. Then
/// the node starts again and reads them.
#[test]
fn durable_writes_are_on_the_device() {
    if mount_unavailable() || !available(&["losetup"]) {
        return;
    }
    let work = TempDir::new().expect("a temporary folder");
    let (image, dir) = (work.path().join("image"), work.path().join("node"));
    fs::write(&image, vec![0; LENGTH]).expect("the test's own folder");
    let device = LoopDevice::new(&image);
    let config = format!(
        "[[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"{LENGTH}\"\npath = \"{}\"\n",
        device.path()
    );
    let node = Node::start(&dir, &Options::config(&*config));
    let said = node.said();
    node.volume_create("v", "4MiB", "critical");
    let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
    for block in 0..BLOCKS {
        let (offset, data) = (block * BLOCK as u64, content(block));
        let write = Request::Write { offset, data, fua: block < BLOCKS / 2 };
        connection.call(&write).expect("the node serves").expect("a sound device");
    }
    connection.call(&Request::Flush).expect("the node serves").expect("a sound device");
    node.kill9();
    // The file's own pages hold what the device was given, and nothing else.
    let bytes = fs::read(&image).expect("the test's own file");
    let is_there = |block: &u64| bytes.chunks_exact(BLOCK).any(|found| found == content(*block));
    let lost: Vec<u64> = (0..BLOCKS).filter(|block| !is_there(block)).collect();
    assert!(lost.is_empty(), "blocks that a power loss would take: {lost:?}; it said:\n{said}");
    assert!(!said.contains("modelled in memory"), "{said}");
    assert!(said.contains("durable by file sync, grouped"), "{said}");
    let node = Node::start(&dir, &Options::config(config));
    let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
    for block in 0..BLOCKS {
        let read = Request::Read { offset: block * BLOCK as u64, length: BLOCK as u32 };
        let found = connection.call(&read).expect("the node serves").expect("a sound device");
        assert!(found == content(block), "block {block}");
    }
}
