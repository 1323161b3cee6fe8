//! Whether a place is on a DAX file system, where a mapped file is the persistent memory itself.
//!
//! How: a file system that is mounted with `dax` says so in the options of its mount. Where only
//! some files are DAX (`dax=inode`), the kernel says so of the file.
//! Invariant: nothing is made or opened. Only file systems count whose mappings may be synchronous
//! (`MAP_SYNC`), since without it a durable store needs a sync of the file all the same: virtiofs
//! knows `dax`, too, and has no such mappings.
//! Cost: two small reads. Not for: what a level's mapping is in the end; the engine says that.

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What is mounted, as this process sees it.
const MOUNTS: &str = "/proc/self/mountinfo";
/// File systems with synchronous mappings.
const FILE_SYSTEMS: [&str; 2] = ["ext4", "xfs"];
/// Options of a mount by which each of its files is DAX.
const OPTIONS: [&str; 2] = ["dax", "dax=always"];

/// Whether a file at `path`, which need not exist yet, is DAX.
#[must_use]
pub fn is_dax(path: &Path) -> bool {
    let Ok(whole) = std::path::absolute(path) else { return false };
    let mut ancestors = whole.ancestors();
    let found = ancestors.find_map(|place| Some((place, std::fs::metadata(place).ok()?)));
    let Some((place, metadata)) = found else { return false };
    let mounts = std::fs::read_to_string(MOUNTS).unwrap_or_default();
    is_file_dax(place) || is_mount_dax(&mounts, metadata.dev())
}

fn is_file_dax(path: &Path) -> bool {
    let told = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS);
    told.is_ok_and(|told| told.stx_attributes.contains(StatxAttributes::DAX))
}

/// Whether the file system on `device` is mounted as DAX, by the text of mountinfo (proc(5)). Its
/// own options count, which stand last and are the same for each of its mounts.
fn is_mount_dax(mountinfo: &str, device: u64) -> bool {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let is_dax = |line: &str| {
        // A blank within a path is written as `\040`.
        let (mount, file_system) = line.split_once(" - ")?;
        let is_device = mount.split(' ').nth(2)? == number;
        let mut words = file_system.split(' ');
        let (kind, options) = (words.next()?, words.nth(1)?);
        let has_option = options.split(',').any(|option| OPTIONS.contains(&option));
        Some(is_device && FILE_SYSTEMS.contains(&kind) && has_option)
    };
    mountinfo.lines().any(|line| is_dax(line) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw
28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
40 28 259:7 / /mnt/pm\\0400 rw,noatime shared:20 master:3 - xfs /dev/pmem0 rw,dax=always,noquota
41 28 259:8 / /mnt/old rw - ext4 /dev/pmem1 rw,dax
42 28 259:9 / /mnt/some rw - xfs /dev/pmem2 rw,dax=inode
43 28 259:10 / /mnt/none rw - ext4 /dev/pmem3 rw,dax=never
44 28 0:50 / /mnt/guest rw - virtiofs shared rw,dax=always
45 28 259:11 / /mnt/dax rw,dax - ext4 /dev/dax rw,nodax
46 28 259:7 /sub /mnt/bound rw - xfs /dev/pmem0 rw,attr2,dax=always,noquota
47 28 259:12 / /mnt/cut rw - xfs
48 28 259:13
";

    /// Goal: a file system counts as DAX by its own options alone, and only where its mappings may
    /// be synchronous; lines that are cut short count for nothing. Method: a text as the kernel
    /// writes it.
    #[test]
    fn mounts_say_whether_they_are_dax() {
        let device = rustix::fs::makedev;
        let expected = [
            ((259, 2), false),
            ((259, 7), true),
            ((259, 8), true),
            ((259, 9), false),
            ((259, 10), false),
            ((0, 50), false),
            ((259, 11), false),
            ((259, 12), false),
            ((259, 13), false),
            ((259, 70), false),
            ((2, 59), false),
        ];
        for ((major, minor), is_dax) in expected {
            assert_eq!(is_mount_dax(TEXT, device(major, minor)), is_dax, "{major}:{minor}");
        }
        assert!(!is_mount_dax("", device(259, 7)));
    }

    /// Goal: a place that does not exist yet counts as its nearest folder that does. Method: two
    /// file systems that are never DAX, one by a path of nothing.
    #[test]
    fn places_that_are_no_dax() {
        assert!(!is_dax(Path::new("/proc/self/absent/levels/nvm")));
        assert!(!is_dax(Path::new("/dev/shm/absent/levels/nvm")));
        assert!(!is_dax(Path::new("")));
    }
}
