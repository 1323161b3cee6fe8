//! Block devices of this host's kernel (ublk), the part without a kernel: requests to calls and
//! back, and what the kernel is told of a disk.
//!
//! How: the kernel puts a descriptor per request into shared memory and hands over its tag; a
//! [`DiskQueue`] judges it, makes a [`layby_types::Call`] of it, and answers by the tag. How tags
//! and bytes come and go is behind [`Wire`].
//! Written from the public header `linux/ublk_cmd.h` (ABI of Linux 6.5 and later).
//! Invariant: a tag is in the node's hands at most once, and each is answered once.
//! Cost: one copy per byte beside the kernel's own. Not for: zoned devices, the kernel's zero-copy
//! modes, unprivileged devices.

mod disk;
mod queue;

#[cfg(test)]
mod tests;

pub use disk::{BUFFER_BYTES, DISCARD_SECTORS_MAX, HostDisk, PARAMETER_BYTES, QUEUE_DEPTH};
pub use queue::{DESCRIPTOR_BYTES, DiskQueue, Wire};

/// Bytes of a sector, the unit in which the kernel addresses a disk.
pub const SECTOR_BYTES: u64 = 512;
