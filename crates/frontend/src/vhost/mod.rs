//! virtio-blk over vhost-user, the part without sockets: rings in guest memory to calls and back.
//!
//! How: [`GuestRam`] maps what a virtual machine monitor shares; a [`BlockRing`] walks one split
//! ring in it; [`Inflight`] keeps in memory that outlives this process which requests were taken
//! and not yet answered; [`GuestDisk`] says what the guest is offered.
//! Written from the public texts: virtio 1.2 (split rings, block device) and QEMU's vhost-user.
//! Invariant: whatever the guest writes, and whenever, a request touches only memory that was
//! shared and blocks of its volume; bytes that decide something are read once.
//! Cost: one copy per byte; no allocation per request once a ring is warm.
//! Not for: packed rings, dirty-page logging (live migration) and memory behind an IOMMU.

mod chain;
mod disk;
mod inflight;
mod ram;
mod ring;

#[cfg(test)]
mod tests;

pub use disk::{
    CONFIG_BYTES, DISCARD_SECTORS_MAX, GuestDisk, QUEUE_SIZE_MAX, QUEUES_MAX, SEGMENTS_MAX,
};
pub use inflight::{Inflight, InflightError};
pub use ram::{GuestRam, RamError, RamRegion};
pub use ring::{BlockRing, RingPlan};

/// Bytes of a sector, the unit in which the protocol addresses a disk.
pub const SECTOR_BYTES: u64 = 512;
/// The longest read or write of a guest, 32 MiB; longer ones fail.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;
