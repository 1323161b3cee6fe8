//! A volume's device that is another one at the next start, as names such as `/dev/sdb` change
//! places at a reboot.
//!
//! How: a link to a loop device, which leads to another one after a kill.
//! Invariant: nothing is written to, or read from, a device that is known to be another one. Where
//! loop devices are missing the test says so and skips. Not for: a device that is gone, see
//! `missing.rs`.

use layby_tests::{
    Connection, LoopDevice, Node, Options, Request, available, layby, mount_unavailable,
    small_levels,
};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

const LENGTH: usize = 2 << 20;
const BLOCK: usize = 4096;

fn call(connection: &mut Connection, request: &Request) -> Vec<u8> {
    connection.call(request).expect("it serves").expect("a sound disk")
}

fn lead(link: &Path, device: &LoopDevice) {
    drop(fs::remove_file(link));
    symlink(device.path(), link).expect("a writable folder");
}

#[track_caller]
fn assert_holds(node: &Node, byte: u8) {
    let mut connection = Connection::open(&node.socket(), "v").expect("it is served");
    let read = Request::Read { offset: 0, length: BLOCK as u32 };
    assert!(call(&mut connection, &read) == vec![byte; BLOCK], "not {byte}");
}

/// Goal: dirty blocks of a volume never reach another device than its own: the volume is not served
/// and named, until its device is back or the other one is accepted, for that start, which says so;
/// a start that accepts a device to no effect says that. Method: a link
/// to a loop device, a flushed write, a kill; the link to another device with bytes of its own,
/// over two starts, a check and a stop; the link back; the other device accepted.
#[test]
fn another_device_gets_no_dirty_blocks() {
    if mount_unavailable() || !available(&["losetup"]) {
        return;
    }
    let work = TempDir::new().expect("a temporary folder");
    let images = ["own", "other"].map(|name| work.path().join(name));
    let bytes = [vec![0_u8; LENGTH], vec![0xa5; LENGTH]];
    images.iter().zip(&bytes).for_each(|(path, bytes)| fs::write(path, bytes).expect("room"));
    let [own, other] = images.each_ref().map(|image| LoopDevice::new(image));
    let (link, dir) = (work.path().join("link"), work.path().join("node"));
    let levels = small_levels().config.expect("it has one");
    let config = format!("{levels}\n[volume.v]\npath = \"{}\"\n", link.display());
    let start = |arguments: &[&str]| {
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        Node::start(&dir, &Options { arguments, ..Options::config(config.clone()) })
    };
    lead(&link, &own);
    let node = start(&[]);
    let mut connection = Connection::open(&node.socket(), "v").expect("it is served");
    call(&mut connection, &Request::Write { offset: 0, data: vec![7; BLOCK], fua: false });
    call(&mut connection, &Request::Flush);
    drop(connection);
    node.kill9();
    lead(&link, &other);
    for _ in 0..2 {
        let node = start(&[]);
        assert!(!node.serves("v"), "it is served from another device");
        let said = node.said();
        for word in ["volume `v` is not served", "is another one", "own", "other"] {
            assert!(said.contains(word), "`{word}`:\n{said}");
        }
        node.stop();
        let checked = layby(&["check", "--dir", &dir.to_string_lossy()]);
        assert!(checked.stdout.contains("is another one"), "{checked:?}");
    }
    assert!(fs::read(&images[1]).expect("readable") == bytes[1], "the other device was written to");
    lead(&link, &own);
    let node = start(&[]);
    assert_holds(&node, 7);
    node.kill9();
    lead(&link, &other);
    let words = ["--accept-device", "v", "--accept-device", "w"];
    let node = start(&words);
    assert!(node.said().contains("what is no volume: `w`"), "{}", node.said());
    let taken = "--accept-device took the device for volume `v`: the device at";
    assert!(node.said().contains(taken), "{}", node.said());
    assert_holds(&node, 7);
    node.layby(&["volume", "drain"]);
    node.stop();
    let found = fs::read(&images[1]).expect("readable");
    assert!(found[..BLOCK] == [7; BLOCK] && found[BLOCK..] == bytes[1][BLOCK..]);
    let node = start(&words);
    let nothing = "--accept-device did nothing for volume `v`";
    assert!(node.said().contains(nothing) && !node.said().contains(taken), "{}", node.said());
    node.stop();
    let node = start(&[]);
    assert!(!node.said().contains("--accept-device"), "{}", node.said());
    assert_holds(&node, 7);
    node.stop();
}
