//! What a guest is told of its disk: features, configuration space, serial number.
//!
//! How: a disk of 512-byte sectors whose physical block is the node's cache block, so that guests
//! align to it and old boot loaders still read it.
//! Invariant: what is offered is served. Cost: built when asked for.

use layby_types::BlockSize;
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
    VIRTIO_BLK_ID_BYTES,
};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};

use super::SECTOR_BYTES;

/// Queues of one disk at most: what the protocol's messages can name. A queue costs nothing until a
/// guest starts it, and monitors refuse to start where they want more than there are.
pub const QUEUES_MAX: u16 = 256;
/// Entries of one queue at most.
pub const QUEUE_SIZE_MAX: u16 = 1024;
/// Pieces of memory that one request may name, offered to guests: with header and status they fit
/// into a queue of 128.
pub const SEGMENTS_MAX: u32 = 126;
/// Sectors that one discard or zeroing may cover: 1 GiB.
pub const DISCARD_SECTORS_MAX: u32 = 1 << 21;
/// Bytes of the configuration space.
pub const CONFIG_BYTES: usize = 60;
/// Bytes of the serial number.
pub(super) const SERIAL_BYTES: usize = VIRTIO_BLK_ID_BYTES as usize;

/// A volume as a guest sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestDisk {
    /// The volume's name, of which the serial number is made.
    pub name: String,
    /// Bytes of the volume.
    pub length: u64,
    /// The size at which aligned requests are cheapest.
    pub block_size: BlockSize,
    /// Nothing can be changed.
    pub read_only: bool,
}

impl GuestDisk {
    /// Feature bits on offer, without those of vhost-user itself.
    #[must_use]
    pub fn features(&self) -> u64 {
        let always = [
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_MQ,
        ];
        let writable = [VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES];
        let more: &[u32] = if self.read_only { &[VIRTIO_BLK_F_RO] } else { &writable };
        always.iter().chain(more).fold(0, |bits, bit| bits | 1 << bit)
    }

    /// Sectors; a volume's length is a multiple of its block.
    pub(super) fn sectors(&self) -> u64 {
        self.length / SECTOR_BYTES
    }

    /// The configuration space, as `struct virtio_blk_config` lays it out.
    #[must_use]
    pub fn config(&self) -> [u8; CONFIG_BYTES] {
        let block_sectors = (u64::from(self.block_size.bytes()) / SECTOR_BYTES).max(1) as u32;
        let mut config = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.sectors().to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &(SECTOR_BYTES as u32).to_le_bytes());
        put(24, &[block_sectors.trailing_zeros() as u8]);
        put(26, &(block_sectors as u16).to_le_bytes());
        put(28, &block_sectors.to_le_bytes());
        put(32, &[1]);
        put(34, &QUEUES_MAX.to_le_bytes());
        put(36, &DISCARD_SECTORS_MAX.to_le_bytes());
        put(40, &1u32.to_le_bytes());
        put(44, &block_sectors.to_le_bytes());
        put(48, &DISCARD_SECTORS_MAX.to_le_bytes());
        put(52, &1u32.to_le_bytes());
        put(56, &[1]);
        config
    }

    /// The serial number: the volume's name, cut and made distinct by a sum where it is too long.
    #[must_use]
    pub fn serial(&self) -> [u8; SERIAL_BYTES] {
        let mut serial = [0; SERIAL_BYTES];
        let name = self.name.as_bytes();
        if name.len() <= SERIAL_BYTES {
            serial[..name.len()].copy_from_slice(name);
            return serial;
        }
        let sum = format!("-{:08x}", fnv(name));
        let kept = SERIAL_BYTES - sum.len();
        serial[..kept].copy_from_slice(&name[..kept]);
        serial[kept..].copy_from_slice(sum.as_bytes());
        serial
    }
}

/// 32-bit FNV-1a, enough to keep two names apart.
fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
