//! The room of a file that is overwritten in place.
//!
//! How: a file system that writes each change elsewhere is told not to, while the file is empty.
//! Invariant: no byte of the file changes. Cost: two system calls.
//! Not for: files that have bytes already; the file system does not listen then.

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use std::os::fd::AsFd;

/// Tells the file system to overwrite the file in place from now on; it must be empty. One that
/// does not know how to be told does so anyway, or cannot.
pub fn overwrite_in_place(empty: impl AsFd) {
    if let Ok(flags) = ioctl_getflags(&empty) {
        let _ = ioctl_setflags(&empty, flags | IFlags::NOCOW);
    }
}
