//! A real kernel file system on a volume: ext4 with discard, over loop over nbdfuse.
//!
//! How: files are written, some deleted, free room trimmed, and everything compared after the node
//! was stopped and started. Where FUSE or loop devices are missing the tests say so and skip.

use layby_tests::{
    Attached, Mounted, Node, available, layby, mount_unavailable, must, seed, small_levels,
};
use layby_types::Rng;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const TOOLS: [&str; 8] =
    ["nbdfuse", "losetup", "mkfs.ext4", "fsck.ext4", "fstrim", "mount", "umount", "mkfifo"];
const FILES: u64 = 60;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Writes files in a few folders, deletes a third of them, and returns what must be left.
fn fill(folder: &Path, rng: &mut Rng) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for number in 0..FILES {
        let name = format!("folder-{}/file-{number}", number % 5);
        let mut contents = vec![0; rng.below(FILE_BYTES_MAX) as usize];
        rng.fill(&mut contents);
        let path = folder.join(&name);
        fs::create_dir_all(path.parent().expect("the name has a folder")).expect("can make it");
        fs::write(&path, &contents).expect("can write");
        if number % 3 == 0 {
            fs::remove_file(&path).expect("can delete");
        } else {
            files.insert(name, contents);
        }
    }
    files
}

fn compare(folder: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (name, contents) in files {
        let found = fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(found == *contents, "{name} changed; replay with LAYBY_SEED={}", seed());
    }
}

/// Goal: a file system keeps its files over trims and restarts, on every class. Method: fill,
/// fstrim, unmount, stop, start, `fsck.ext4 -fn`, mount, compare.
#[test]
fn ext4_keeps_its_files_over_a_restart() {
    if mount_unavailable() || !available(&TOOLS) {
        return;
    }
    for class in ["critical", "normal", "bulk"] {
        let work = TempDir::new().expect("a temporary folder");
        let dir = work.path().join("node");
        let node = Node::start(&dir, &small_levels());
        node.volume_create("disk", "192MiB", class);
        let attached = Attached::new(work.path(), &node.uri("disk"));
        must("mkfs.ext4", &["-q", "-F", attached.device()]);
        let mounted = Mounted::new(work.path(), attached);
        let files = fill(mounted.path(), &mut Rng::new(seed()));
        must("sync", &["--file-system", &mounted.path().to_string_lossy()]);
        let trimmed = must("fstrim", &["--verbose", &mounted.path().to_string_lossy()]);
        assert!(trimmed.contains("trimmed"), "{trimmed}");
        compare(mounted.path(), &files);
        drop(mounted.unmount());
        node.stop();
        let outcome = layby(&["check", "--dir", &dir.to_string_lossy()]);
        assert!(outcome.success, "{class}: {}\n{}", outcome.stdout, outcome.stderr);
        let node = Node::start(&dir, &small_levels());
        let attached = Attached::new(work.path(), &node.uri("disk"));
        must("fsck.ext4", &["-f", "-n", attached.device()]);
        let mounted = Mounted::new(work.path(), attached);
        compare(mounted.path(), &files);
        drop(mounted.unmount());
        node.stop();
    }
}
