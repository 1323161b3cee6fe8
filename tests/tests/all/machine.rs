//! A guest kernel and its file system over node restarts.

use layby_tests::machine::{Machine, kernel, make_ram_disk, ublk_kernel};
use layby_tests::{Node, Options, binary, number, say, seed};
use layby_types::Rng;
use tempfile::TempDir;

/// Goal: a guest keeps writing through restarts of the node, with no I/O error and a clean file
/// system. Method: Debian's kernel under QEMU writes and checks files; between rounds the node is
/// killed or stopped and comes back; in the end the guest checks all files, its kernel's log and
/// the file system.
#[test]
fn a_guest_writes_through_restarts() {
    let Some(kernel) = kernel() else { return };
    let restarts = number("LAYBY_GUEST_RESTARTS", 3);
    let dir = TempDir::new().expect("a temporary directory");
    let ram_disk = dir.path().join("ram.gz");
    make_ram_disk(&ram_disk, &kernel, ("init", "writes"), &["mkfs.ext4", "e2fsck"]);
    let home = dir.path().join("node");
    let options = Options::config(
        "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"16MiB\"\n\n\
         [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"128MiB\"\n\n\
         [volume.maps]\nsize = \"512MiB\"\n",
    );
    let mut node = Node::start(&home, &options);
    let mut machine = Machine::start(&kernel, &ram_disk, &home.join("vhost/maps.sock"));
    let mut rng = Rng::new(seed());
    let (mut done, mut next, mut result) = (0, 2, None);
    while let Some(said) = machine.next_line() {
        if said.starts_with("rounds ") {
            result = Some(said);
            continue;
        }
        let Some(round) = said.strip_prefix("round ").and_then(|n| n.parse::<u64>().ok()) else {
            continue;
        };
        if round < next {
            continue;
        }
        if done == restarts {
            machine.type_line("stop");
            next = u64::MAX;
            continue;
        }
        if rng.chance(1, 3) {
            node.stop();
        } else {
            node.kill9();
        }
        node = Node::start(&home, &options);
        done += 1;
        next = round + 1 + rng.below(3);
    }
    let result = result.unwrap_or_else(|| panic!("the machine ended early:\n{}", machine.log()));
    assert!(result.ends_with("wrong 0, io errors 0"), "{result}\n{}", machine.log());
    assert!(machine.log().contains("guest: fsck clean"), "{}", machine.log());
    assert_eq!(done, restarts, "{}", machine.log());
    say(&format!("{done} restarts: {result}, fsck clean"));
    node.stop();
}

/// Goal: a volume is a block device of the kernel that its node runs on: read, written, with a file
/// system that outlives the node, taken away when nobody uses it, and refused with the reason where
/// the kernel has no driver. Method: Debian's kernel under QEMU with the node in its RAM disk; the
/// node is killed and stopped under a mounted file system that is written to.
#[test]
fn a_kernel_uses_a_block_device_over_restarts() {
    let Some(kernel) = ublk_kernel() else { return };
    let dir = TempDir::new().expect("a temporary directory");
    let ram_disk = dir.path().join("ram.gz");
    let node = binary();
    let node = node.to_str().expect("a path of letters");
    let programs = ["mkfs.ext4", "e2fsck", node];
    make_ram_disk(&ram_disk, &kernel, ("init-alone", "ublk"), &programs);
    let mut machine = Machine::start_alone(&kernel, &ram_disk);
    let mut said = Vec::new();
    while let Some(line) = machine.next_line() {
        said.push(line);
    }
    let expected = include_str!("../../data/guest/ublk.expected");
    assert_eq!(said, expected.lines().collect::<Vec<_>>(), "{}", machine.log());
}
