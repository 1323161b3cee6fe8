//! Little-endian fields and checksums of what this room writes.
//!
//! How: a reader hands out fields and answers `None` at the end; writers push to a vector.
//! Invariant: no input makes a reader panic. Cost: a bounds check per field.
//! Not for: the superblock, which people read; see `superblock`.

use crate::segment::CHUNK_BYTES;
use crc_fast::CrcAlgorithm;

/// Numbers of segments, batches and changes stay below: whatever comes next has a number, too.
pub(crate) const NUMBER_END: u64 = 1 << 60;
/// Blocks of a volume at most, so that each has an offset in bytes.
pub(crate) const BLOCKS_MAX: u64 = 1 << 46;

/// Whether blocks can have so many bytes: a chunk holds at least one.
pub(crate) fn is_block_bytes(bytes: u64) -> bool {
    bytes.is_power_of_two() && (512..=CHUNK_BYTES as u64).contains(&bytes)
}

/// CRC-32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Fields from the front of some bytes.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|bytes| bytes[0])
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn id(&mut self) -> Option<[u8; 16]> {
        self.array()
    }
}

/// Fields to the end of a vector.
pub(crate) trait Put {
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
}

impl Put for Vec<u8> {
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
}

/// Appends the CRC of all that `bytes` holds.
pub(crate) fn seal(bytes: &mut Vec<u8>) {
    let crc = crc32c(bytes);
    bytes.put_u32(crc);
}

/// What lies before a right checksum.
pub(crate) fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    (crc32c(body) == u32::from_le_bytes(*crc)).then_some(body)
}
