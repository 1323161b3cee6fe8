//! The bytes that a file or device stands for, down to what they lie on.
//!
//! How: the kernel's tree of devices says of which file a loop device has the bytes, and of which
//! disk a partition has them, and where. So a path stands for an extent of each storage below it.
//! Invariant: two paths of which extents of one storage overlap share bytes; two partitions of a
//! disk do not. Cost: some small files per device. Not for: device mapper and RAID, which may have
//! the bytes of many devices.

use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Storages below a path that are looked at.
const DEPTH_MAX: usize = 16;
/// The unit of the kernel's tree, whatever a device's own.
const SECTOR_BYTES: u64 = 512;
/// Where the kernel lists block devices by their numbers.
const DEVICES: &str = "/sys/dev/block";

/// A file, or a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    File { device: u64, inode: u64 },
    Device(u64),
}

/// Bytes of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StorageExtent {
    pub(super) storage: Storage,
    bytes: Range<u64>,
}

impl StorageExtent {
    pub(super) fn overlaps(&self, other: &StorageExtent) -> bool {
        let (own, its) = (&self.bytes, &other.bytes);
        self.storage == other.storage && own.start < its.end && its.start < own.end
    }
}

/// What a file or device stands for: itself, and what it lies on.
pub(super) fn extents_of(found: &std::fs::Metadata) -> Vec<StorageExtent> {
    let Some(storage) = storage_of(found) else { return Vec::new() };
    extents_in(Path::new(DEVICES), storage)
}

fn storage_of(found: &std::fs::Metadata) -> Option<Storage> {
    match found.file_type() {
        kind if kind.is_block_device() => Some(Storage::Device(found.rdev())),
        kind if kind.is_file() => Some(Storage::File { device: found.dev(), inode: found.ino() }),
        _ => None,
    }
}

/// The same by the tree at `devices`.
fn extents_in(devices: &Path, storage: Storage) -> Vec<StorageExtent> {
    let mut extents = vec![StorageExtent { storage, bytes: 0..u64::MAX }];
    while let Some(Storage::Device(number)) = extents.last().map(|extent| extent.storage)
        && extents.len() < DEPTH_MAX
        && let Some((storage, part)) = below(devices, number)
    {
        let above = extents.last().expect("the loop's condition has it").bytes.clone();
        let at = |byte: u64| part.start.saturating_add(byte).min(part.end);
        extents.push(StorageExtent { storage, bytes: at(above.start)..at(above.end) });
    }
    extents
}

/// What a device lies on, and which bytes of that it has.
fn below(devices: &Path, number: u64) -> Option<(Storage, Range<u64>)> {
    let device = devices.join(name_of(number)).canonicalize().ok()?;
    let of = |folder: &Path, name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number_in = |name: &str| of(&device, name)?.trim().parse::<u64>().ok();
    if device.join("partition").exists() {
        let start = number_in("start")?.saturating_mul(SECTOR_BYTES);
        let end = start.saturating_add(number_in("size")?.saturating_mul(SECTOR_BYTES));
        let disk = number_of(of(device.parent()?, "dev")?.trim())?;
        return Some((Storage::Device(disk), start..end));
    }
    let file = of(&device, "loop/backing_file")?;
    let file = PathBuf::from(file.strip_suffix('\n').unwrap_or(&file));
    let start = number_in("loop/offset")?;
    let length = number_in("loop/sizelimit").filter(|length| *length > 0);
    let end = length.map_or(u64::MAX, |length| start.saturating_add(length));
    Some((storage_of(&std::fs::metadata(file).ok()?)?, start..end))
}

/// A device's number as the kernel writes it.
fn name_of(number: u64) -> String {
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

fn number_of(name: &str) -> Option<u64> {
    let (major, minor) = name.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Writes a device as the kernel shows it, and answers what it stands for.
    struct Tree(TempDir);

    impl Tree {
        fn device(&self, number: &str, place: &str, files: &[(&str, &str)]) {
            let folder = self.0.path().join("devices").join(place);
            for (name, text) in files.iter().chain(&[("dev", number)]) {
                let path = folder.join(name);
                std::fs::create_dir_all(path.parent().expect("it has one")).expect("writable");
                std::fs::write(path, format!("{text}\n")).expect("writable");
            }
            std::os::unix::fs::symlink(folder, self.0.path().join(number)).expect("writable");
        }

        fn of(&self, number: &str) -> Vec<StorageExtent> {
            let number = number_of(number).expect("a number");
            extents_in(self.0.path(), Storage::Device(number))
        }

        fn share(&self, one: &str, other: &str) -> bool {
            let other = self.of(other);
            self.of(one).iter().any(|extent| other.iter().any(|other| other.overlaps(extent)))
        }
    }

    /// Goal: a loop device shares bytes with its file, with another one over the same bytes and
    /// with partitions of itself, not with one over other bytes; partitions share bytes with their
    /// disk, not with each other. Method: a tree of devices as the kernel writes it, over two files
    /// and a disk.
    #[test]
    fn devices_stand_for_what_they_lie_on() {
        let tree = Tree(TempDir::new().expect("a temporary directory"));
        let file = |name: &str| {
            let path = tree.0.path().join(name);
            std::fs::write(&path, b"bytes").expect("writable");
            path.display().to_string()
        };
        let (first, second) = (file("first file"), file("second"));
        let over = |file: &str, offset: &str, limit: &str| {
            [("loop/backing_file", file), ("loop/offset", offset), ("loop/sizelimit", limit)]
                .map(|(name, text)| (name, text.to_owned()))
        };
        let loops = [
            ("7:0", over(&first, "0", "0")),
            ("7:1", over(&first, "4096", "4096")),
            ("7:2", over(&first, "8192", "0")),
            ("7:3", over(&second, "0", "0")),
            ("7:4", over("/nowhere (deleted)", "0", "0")),
        ];
        for (number, files) in &loops {
            let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
            tree.device(number, &format!("loop{number}"), &files);
        }
        let part = |start| [("partition", "1"), ("start", start), ("size", "8")];
        tree.device("8:0", "sda", &[]);
        tree.device("8:1", "sda/sda1", &part("8"));
        tree.device("8:2", "sda/sda2", &part("16"));
        tree.device("259:1", "loop7:0/loop0p1", &part("8"));
        let extents = tree.of("259:1");
        let own = storage_of(&std::fs::metadata(&first).expect("it was made")).expect("a file");
        assert_eq!(extents.last(), Some(&StorageExtent { storage: own, bytes: 4096..8192 }));
        for (one, other, is_shared) in [
            ("7:0", "7:1", true),
            ("7:1", "7:2", false),
            ("7:0", "7:3", false),
            ("7:0", "259:1", true),
            ("7:1", "259:1", true),
            ("7:2", "259:1", false),
            ("8:0", "8:1", true),
            ("8:1", "8:2", false),
            ("7:4", "7:0", false),
            ("8:0", "7:0", false),
        ] {
            assert_eq!(tree.share(one, other), is_shared, "{one} and {other}");
            assert_eq!(tree.share(other, one), is_shared, "{other} and {one}");
        }
        let itself = StorageExtent { storage: own, bytes: 0..u64::MAX };
        assert!(tree.of("7:2").iter().any(|extent| extent.overlaps(&itself)));
        assert_eq!(tree.of("8:7").len(), 1, "what the kernel does not list lies on nothing");
    }
}
