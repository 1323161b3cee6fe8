//! What a block device may be told about its bytes beside reads and writes, and what it says of
//! itself.
//!
//! How: the kernel's own calls and its tree of devices; where there is none, or the device knows no
//! such thing, the answer says so, and nothing depends on it.
//! Invariant: advice changes no byte that anybody may still ask for.
//! Cost: one system call, which waits for the device. Not for: files, see `blocking`.

#![expect(unsafe_code, reason = "an ioctl that rustix does not name")]

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `BLKDISCARD`: first byte and bytes.
const DISCARD: Opcode = opcode::none(0x12, 119);

/// Tells a block device that nobody needs what a range holds.
pub(super) fn discard(device: &OwnedFd, offset: u64, length: u64) -> Result<(), Errno> {
    // SAFETY: `BLKDISCARD` reads two numbers of 64 bits through its argument, and nothing else.
    unsafe {
        let range = Setter::<DISCARD, [u64; 2]>::new([offset, length]);
        ioctl(device, range)
    }
}

/// Bytes that the block device at `path` would like to be discarded and written at once, where it
/// says so: the larger of its discard granularity and its best length of an access.
#[must_use]
pub fn reclaim_unit(path: &Path) -> Option<u64> {
    unit_in(&queue_of(path)?)
}

/// The kernel's directory about a device's queue; a partition has that of its disk.
fn queue_of(path: &Path) -> Option<PathBuf> {
    let found = std::fs::metadata(path).ok()?;
    if !found.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()?;
    let queues = [device.join("queue"), device.parent()?.join("queue")];
    queues.into_iter().find(|queue| queue.is_dir())
}

fn unit_in(queue: &Path) -> Option<u64> {
    let number = |name: &str| {
        let text = std::fs::read_to_string(queue.join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let all = [number("discard_granularity"), number("optimal_io_size")];
    all.into_iter().flatten().max().filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the larger of what a device says counts, and nothing where it says nothing. Method:
    /// directories as the kernel writes them; a file is no device.
    #[test]
    fn a_device_says_its_unit() {
        let queue = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(unit_in(queue.path()), None);
        let write = |name: &str, text: &str| {
            std::fs::write(queue.path().join(name), text).expect("writable");
        };
        write("optimal_io_size", "0\n");
        assert_eq!(unit_in(queue.path()), None);
        write("discard_granularity", "4194304\n");
        assert_eq!(unit_in(queue.path()), Some(4 << 20));
        write("optimal_io_size", "8388608\n");
        assert_eq!(unit_in(queue.path()), Some(8 << 20));
        assert_eq!(reclaim_unit(&queue.path().join("optimal_io_size")), None);
    }
}
