//! What a block device may be told about its bytes beside reads and writes, and what it says of
//! itself.
//!
//! How: the kernel's own calls and its tree of devices; where there is none, or the device knows no
//! such thing, the answer says so, and nothing depends on it.
//! Invariant: advice changes no byte that anybody may still ask for.
//! Cost: one system call, which waits for the device. Not for: files, see `blocking`.

#![expect(unsafe_code, reason = "an ioctl that rustix does not name")]

use super::life::takes_lives;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};
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

/// `BLKROGET`: whether the kernel refuses writes to the device.
const READ_ONLY_GET: Opcode = opcode::none(0x12, 94);

/// Whether a block device is write-protected; not where it does not say.
pub(super) fn is_protected(device: &OwnedFd) -> bool {
    // SAFETY: `BLKROGET` writes a C integer through its argument, and nothing else.
    let said = unsafe { ioctl(device, Getter::<READ_ONLY_GET, std::ffi::c_int>::new()) };
    said.is_ok_and(|protected| protected != 0)
}

/// Whether there is a write-protected block device at `path`.
#[must_use]
pub fn is_write_protected(path: &Path) -> bool {
    let is_device = |found: std::fs::Metadata| found.file_type().is_block_device();
    std::fs::metadata(path).is_ok_and(is_device)
        && std::fs::File::open(path).is_ok_and(|device| is_protected(&device.into()))
}

/// What a disk says of how it would like to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceHints {
    /// Bytes that it would like to be discarded or written at once, where it says so: the largest
    /// of its discard granularity, its best length of an access, and its streams' unit.
    pub unit_bytes: Option<u64>,
    /// Write streams that it offers (those of NVMe's flexible data placement, as Linux 6.16 and
    /// later know them); 0 for none.
    pub write_streams: u32,
    /// The kernel takes write-life hints for the file or device.
    pub takes_lives: bool,
}

/// What the disk says that a block device is, or that holds a file or directory; `None` where there
/// is none, as under a file system in memory, or the kernel tells nothing.
#[must_use]
pub fn device_hints(path: &Path) -> Option<DeviceHints> {
    let takes_lives = || std::fs::File::open(path).is_ok_and(|file| takes_lives(&file.into()));
    queue_of(path).map(|queue| DeviceHints { takes_lives: takes_lives(), ..hints_in(&queue) })
}

/// The kernel's directory about a device's queue; a partition has that of its disk.
fn queue_of(path: &Path) -> Option<PathBuf> {
    let found = std::fs::metadata(path).ok()?;
    let number = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()?;
    let queues = [device.join("queue"), device.parent()?.join("queue")];
    queues.into_iter().find(|queue| queue.is_dir())
}

fn hints_in(queue: &Path) -> DeviceHints {
    let number = |name: &str| {
        let text = std::fs::read_to_string(queue.join(name)).ok()?;
        text.trim().parse::<u64>().ok().filter(|number| *number > 0)
    };
    let units = ["discard_granularity", "optimal_io_size", "write_stream_granularity"];
    DeviceHints {
        unit_bytes: units.into_iter().filter_map(number).max(),
        write_streams: number("max_write_streams").map_or(0, |count| count as u32),
        takes_lives: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the largest of what a device says counts, and nothing where it says nothing. Method:
    /// directories as the kernel writes them; what the kernel makes up lies on no disk.
    #[test]
    fn a_device_says_how_it_is_written() {
        let queue = tempfile::tempdir().expect("a temporary directory");
        let hints = || {
            let DeviceHints { unit_bytes, write_streams, .. } = hints_in(queue.path());
            (unit_bytes, write_streams)
        };
        assert_eq!(hints(), (None, 0));
        let write = |name: &str, text: &str| {
            std::fs::write(queue.path().join(name), text).expect("writable");
        };
        write("optimal_io_size", "0\n");
        assert_eq!(hints(), (None, 0));
        write("discard_granularity", "4194304\n");
        assert_eq!(hints(), (Some(4 << 20), 0));
        write("optimal_io_size", "8388608\n");
        write("max_write_streams", "16\n");
        assert_eq!(hints(), (Some(8 << 20), 16));
        write("write_stream_granularity", "33554432\n");
        assert_eq!(hints(), (Some(32 << 20), 16));
        assert_eq!(device_hints(Path::new("/proc/self/status")), None);
    }
}
