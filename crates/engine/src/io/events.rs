//! What both hosts ask of an event descriptor.
//!
//! How: it must be an eventfd, on which an `RWF_NOWAIT` read never blocks, whatever mode the
//! stranger who also owns it has set.
//! Cost: one system call per look.

use super::IoError;
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};
use std::os::fd::{AsRawFd, OwnedFd};

/// Refuses what is no eventfd: reading a pipe or a file of a stranger's could block the shard.
pub(crate) fn check(file: &OwnedFd) -> Result<(), IoError> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let target = rustix::fs::readlink(link, Vec::new())?;
    let is_event = target.as_bytes().starts_with(b"anon_inode:[eventfd");
    if is_event { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// The same, and refuses a semaphore: a read takes one off its counter, so that one write could
/// keep a shard at it for as good as ever. Kernels before 6.5 do not say which eventfds are
/// semaphores.
pub(super) fn check_awaited(file: &OwnedFd) -> Result<(), IoError> {
    check(file)?;
    let facts = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
    let facts = std::fs::read_to_string(facts).unwrap_or_default();
    let says = |line: &str| line.strip_prefix("eventfd-semaphore:").map(str::trim) == Some("1");
    if facts.lines().any(says) { Err(Errno::INVAL.into()) } else { Ok(()) }
}

/// Sets the counter to zero; that it was zero already is as good.
pub(super) fn empty(file: &OwnedFd) {
    let mut count = [0; 8];
    let mut slices = [IoSliceMut::new(&mut count)];
    // The offset that stands for "none", which is all that an eventfd takes.
    let read = rustix::io::preadv2(file, &mut slices, u64::MAX, ReadWriteFlags::NOWAIT);
    if read == Err(Errno::OPNOTSUPP) {
        // Kernels before 5.8: the descriptor is readable, or its other owner was quicker.
        let _ = rustix::io::read(file, &mut count);
    }
}
