//! Which files a monitor may share as memory.
//!
//! How: the file system of a file says what an access may wait for. Pages of tmpfs (`memfd_create`,
//! `/dev/shm`) and of hugetlbfs are memory; any other file system may have a shard's thread wait
//! for a disk, a server or a program at each page.
//! Invariant: what is mapped can be replaced as a whole after a fault (`layby_engine::bus_error`).
//! The kernel splits no huge page, so a region has whole ones. An in-flight region has none: they
//! may run out while it is used.
//! Not for: whether a region lies in its file; the mapping says so.

use layby_frontend::vhost::RamRegion;
use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};
use std::fs::File;

/// `TMPFS_MAGIC`.
const TMPFS: u32 = 0x0102_1994;
/// `HUGETLBFS_MAGIC`.
const HUGETLBFS: u32 = 0x9584_58f6;

/// What a file's pages are.
enum Pages {
    /// Memory of the usual pages.
    Small,
    /// Huge pages of so many bytes.
    Huge(u64),
    Other,
}

fn pages_of(file: &File) -> Result<Pages, String> {
    let status = fstatfs(file).map_err(|cause| format!("its memory's file: {cause}"))?;
    Ok(match status.f_type as u32 {
        TMPFS => Pages::Small,
        HUGETLBFS => Pages::Huge(status.f_bsize as u64),
        _ => Pages::Other,
    })
}

/// Refuses a region of the guest's memory that could hold a shard up or end the node.
///
/// # Errors
/// Why it is refused.
pub(super) fn check_ram(region: &RamRegion) -> Result<(), String> {
    let RamRegion { guest, length, offset, .. } = *region;
    let cause = match pages_of(&region.file)? {
        Pages::Small => return Ok(()),
        Pages::Huge(page) if page > 0 && (offset | length).is_multiple_of(page) => return Ok(()),
        Pages::Huge(page) => format!("no whole huge pages of {page} bytes, from {offset} on"),
        Pages::Other => "its file is on a disk or a server; memory of `memfd_create`, `/dev/shm` \
                         or hugetlbfs is served"
            .to_owned(),
    };
    Err(format!("guest memory at {guest:#x}, {length} bytes: {cause}"))
}

/// Refuses an in-flight region that no node has made.
///
/// # Errors
/// Why it is refused.
pub(super) fn check_inflight(file: &File) -> Result<(), String> {
    if !matches!(pages_of(file)?, Pages::Small) {
        return Err("its in-flight region is no memory of `memfd_create`".to_owned());
    }
    // The node has made it, and sealed: a region that is cut would lose what it marks.
    let seals = fcntl_get_seals(file);
    if seals.is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Ok(());
    }
    Err("its in-flight region is not sealed against being cut".to_owned())
}
