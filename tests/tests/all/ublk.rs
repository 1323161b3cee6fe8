//! Volumes as block devices of this host's kernel (ublk).
//!
//! How: where the kernel has the driver, a device is written and read by its file; where it has
//! not, the node says so to whoever asked for one, and to nobody else. The whole life of a device,
//! over restarts of the node, is in `machine.rs`, in a machine of its own.

use layby_tests::{Node, Options, layby, skip, small_levels};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use tempfile::TempDir;

const CONTROL: &str = "/dev/ublk-control";

/// A configuration with a volume that asks for a device, or does not.
fn options(ublk: bool) -> Options {
    let mut options = small_levels();
    let text = options.config.as_mut().expect("small levels are configured");
    *text += &format!("\n[volume.maps]\nsize = \"64MiB\"\nublk = {ublk}\n");
    options
}

/// Goal: a volume is a block device that NBD and the command line agree about, and that goes with
/// its wish. Method: a write by the device, a read of it, the names shown, the device taken away.
#[test]
fn a_volume_is_a_block_device() {
    if File::options().read(true).write(true).open(CONTROL).is_err() {
        return skip("no ublk driver that this user may use (`/dev/ublk-control`)");
    }
    let dir = TempDir::new().expect("a temporary directory");
    let node = Node::start(&dir.path().join("node"), &options(true));
    let link = dir.path().join("node/ublk/maps");
    let device = std::fs::read_link(&link).expect("a link names the device");
    let shown = node.layby(&["volume", "show", "maps"]);
    assert!(shown.contains(&device.display().to_string()), "{shown}");
    let file = File::options().read(true).write(true).open(&device).expect("root opens it");
    file.write_all_at(&[7; 8192], 4096).and_then(|()| file.sync_all()).expect("it is written");
    let mut bytes = [0; 8192];
    file.read_exact_at(&mut bytes, 4096).expect("it is read");
    assert!(bytes == [7; 8192]);
    drop(file);
    node.layby(&["volume", "set", "maps", "--ublk", "false"]);
    assert!(!device.exists() && !link.exists(), "the device goes with the wish");
    node.stop();
}

/// Goal: a host without the driver is told at the start, and by a command, what is missing and what
/// to do; nothing is left behind, and who asked for nothing is told nothing. Method: a start with a
/// device asked for, one without, and a command.
#[test]
fn a_host_without_the_driver_is_told() {
    if Path::new(CONTROL).exists() {
        return skip("this kernel has the ublk driver");
    }
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let refusal = Node::try_start(&home, &options(true)).expect_err("there is no driver");
    assert_eq!(refusal.code, Some(2), "{}", refusal.stderr);
    for word in ["cannot start the node", CONTROL, "state: nothing", "modprobe ublk_drv"] {
        assert!(refusal.stderr.contains(word), "{word}: {}", refusal.stderr);
    }
    let node = Node::start(&home, &options(false));
    let shown = node.layby(&["volume", "show", "maps"]);
    assert!(shown.contains("ublk     off"), "{shown}");
    let directory = home.to_str().expect("a path of letters");
    for words in [
        ["volume", "create", "raw", "--size", "1MiB", "--ublk"].as_slice(),
        &["volume", "set", "maps", "--ublk", "true"],
    ] {
        let outcome = layby(&[words, &["--dir", directory]].concat());
        assert!(!outcome.success && outcome.stderr.contains("modprobe ublk_drv"), "{words:?}");
    }
    assert!(!node.layby(&["volume", "list"]).contains("raw"), "nothing is left of a refusal");
    assert!(node.layby(&["volume", "show", "maps"]).contains("ublk     off"));
    node.stop();
}
