//! What the kernel is told of a disk: `struct ublk_params`.
//!
//! How: sectors of 512 bytes, a physical block of the node's cache block, a volatile write cache
//! with FUA, discard and zeroing where the disk can be written.
//! Invariant: what is offered is served. Cost: built when asked for.

use super::SECTOR_BYTES;
use layby_types::BlockSize;

/// Requests of one device in the node's hands at most; the kernel holds back what is more.
pub const QUEUE_DEPTH: u16 = 128;
/// Bytes of the longest read or write; the kernel cuts longer ones. Times the depth: memory that a
/// device takes at most.
pub const BUFFER_BYTES: u32 = 256 << 10;
/// Sectors that one discard or zeroing may cover: 1 GiB.
pub const DISCARD_SECTORS_MAX: u32 = 1 << 21;
/// Bytes of the parameters: head, basic and discard part, padded to eight.
pub const PARAMETER_BYTES: usize = 64;

const TYPE_BASIC: u32 = 1;
const TYPE_DISCARD: u32 = 1 << 1;
const ATTRIBUTE_READ_ONLY: u32 = 1;
const ATTRIBUTE_VOLATILE_CACHE: u32 = 1 << 2;
const ATTRIBUTE_FUA: u32 = 1 << 3;
/// Sectors are of 2⁹ bytes.
const SECTOR_SHIFT: u8 = 9;
/// The kernel takes no physical block above a page.
const BLOCK_SHIFT_MAX: u8 = 12;

/// A volume as the kernel's device shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDisk {
    /// Bytes of the volume.
    pub length: u64,
    /// The size at which aligned requests are cheapest.
    pub block_size: BlockSize,
    /// Nothing can be changed.
    pub read_only: bool,
}

impl HostDisk {
    /// Sectors; a volume's length is a multiple of its block.
    pub(super) fn sectors(&self) -> u64 {
        self.length / SECTOR_BYTES
    }

    /// The parameters, as `struct ublk_params` lays them out.
    #[must_use]
    pub fn parameters(&self) -> [u8; PARAMETER_BYTES] {
        let block = self.block_size.bytes();
        let block_shift = (block.trailing_zeros() as u8).min(BLOCK_SHIFT_MAX);
        let read_only = if self.read_only { ATTRIBUTE_READ_ONLY } else { 0 };
        let attributes = ATTRIBUTE_VOLATILE_CACHE | ATTRIBUTE_FUA | read_only;
        let types = if self.read_only { TYPE_BASIC } else { TYPE_BASIC | TYPE_DISCARD };
        let mut parameters = [0; PARAMETER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| {
            parameters[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, &(PARAMETER_BYTES as u32).to_ne_bytes());
        put(4, &types.to_ne_bytes());
        put(8, &attributes.to_ne_bytes());
        put(12, &[SECTOR_SHIFT, block_shift, block.trailing_zeros() as u8, block_shift]);
        put(16, &(BUFFER_BYTES / SECTOR_BYTES as u32).to_ne_bytes());
        put(24, &self.sectors().to_ne_bytes());
        if !self.read_only {
            put(44, &block.to_ne_bytes());
            put(48, &DISCARD_SECTORS_MAX.to_ne_bytes());
            put(52, &DISCARD_SECTORS_MAX.to_ne_bytes());
            put(56, &1u16.to_ne_bytes());
        }
        parameters
    }
}
