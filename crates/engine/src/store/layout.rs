//! Checksums, little-endian fields and the superblock that both stores begin with.
//!
//! How: every structure ends or begins with a CRC-32C over its own bytes with the checksum's field
//! left out; fields are read by offset, never by casting memory.
//! The last sector of a structure of the log is the parity of its other sectors, so that any one
//! sector of it may be lost: [`rebuild`] tries each, and the checksum tells which one it was.
//! Invariant: a decoder given any bytes returns an error rather than panicking.
//! Cost: a superblock is read once per start; a parity is 3.5 KiB of exclusive or.
//! Not for: block data, which carries its own checksum.

use super::{CorruptInfo, Region, StoreError, StoreIdentity};
use layby_types::parity::PAGE_BYTES;
use layby_types::{Seq, ShardIndex};

pub use layby_types::parity::{CONTENT_BYTES, SECTOR_BYTES, put_parity, rebuild};

/// Bytes of every metadata structure, whatever the block size.
pub const META_BYTES: usize = PAGE_BYTES;
/// Where the checksum of a whole-page structure lies.
pub const META_CRC_AT: usize = CONTENT_BYTES - 4;
/// The version of all structures of both stores.
pub const FORMAT_VERSION: u32 = 4;
/// The highest version that a later program is expected to write; a higher number is damage.
pub const FORMAT_VERSION_MAX: u32 = 64;
/// The highest seq that a store takes for one that was given out: at a billion a second a node
/// gets there in 292 years. Beyond it there is damage, whatever the checksum says, since a counter
/// that starts there would run out.
pub const SEQ_MAX: Seq = Seq(1 << 63);
/// Store-specific numbers that a superblock has room for.
pub const GEOMETRY_FIELDS: usize = 6;

/// CRC-32C (Castagnoli) of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The two bytes at `at`.
#[must_use]
pub fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The four bytes at `at`.
#[must_use]
pub fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from(get_u16(bytes, at)) | u32::from(get_u16(bytes, at + 2)) << 16
}

/// The eight bytes at `at`.
#[must_use]
pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from(get_u32(bytes, at)) | u64::from(get_u32(bytes, at + 4)) << 32
}

/// Puts two bytes at `at`.
pub fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Puts four bytes at `at`.
pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Puts eight bytes at `at`.
pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Writes the checksum of a whole-page structure into the last four bytes of its content, and the
/// parity behind it.
pub fn seal_page(page: &mut [u8]) {
    let crc = crc32c(&page[..META_CRC_AT]);
    put_u32(page, META_CRC_AT, crc);
    put_parity(page);
}

/// Stored and computed checksum of a whole-page structure.
#[must_use]
pub fn page_crcs(page: &[u8]) -> (u32, u32) {
    (get_u32(page, META_CRC_AT), crc32c(&page[..META_CRC_AT]))
}

/// Whether another version of the program may have written a structure of this version.
fn is_other_version(version: u32) -> bool {
    version == 1 || is_later_version(version)
}

/// Whether a later version of the program wrote a structure of this version.
#[must_use]
pub fn is_later_version(version: u32) -> bool {
    (FORMAT_VERSION + 1..=FORMAT_VERSION_MAX).contains(&version)
}

/// What a region's first block says: whose it is and how it is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Which kind of store.
    pub magic: u64,
    /// Whose.
    pub identity: StoreIdentity,
    /// Drawn at format time; every structure repeats it, so that older ones are never mistaken.
    pub instance: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// First byte of the region on its disk.
    pub base: u64,
    /// Bytes of the region.
    pub length: u64,
    /// Logical slots.
    pub slot_count: u32,
    /// The store's own division, see its layout module.
    pub geometry: [u32; GEOMETRY_FIELDS],
}

impl Superblock {
    /// Serialises into the first [`META_BYTES`] of `page`, which must be zeroed.
    pub fn encode(&self, page: &mut [u8]) {
        put_u64(page, 0, self.magic);
        put_u32(page, 8, FORMAT_VERSION);
        put_u32(page, 12, self.block_bytes);
        page[16..32].copy_from_slice(&self.identity.node);
        put_u16(page, 32, u16::from(self.identity.shard.0));
        put_u16(page, 34, self.identity.shard_count);
        put_u64(page, 40, self.instance);
        put_u64(page, 48, self.base);
        put_u64(page, 56, self.length);
        put_u32(page, 64, self.slot_count);
        for (index, value) in self.geometry.iter().enumerate() {
            put_u32(page, 68 + 4 * index, *value);
        }
        seal_page(page);
    }

    /// Reads and checks a superblock of the kind `magic`.
    ///
    /// # Errors
    /// What is wrong, with stored and computed values; `disk` and `offset` go into the report.
    pub fn decode(page: &[u8], magic: u64, disk: &str, offset: u64) -> Result<Self, StoreError> {
        assert!(page.len() >= META_BYTES, "a superblock is read whole");
        let is_sound = |page: &[u8]| page_crcs(page).0 == page_crcs(page).1;
        let rebuilt = if is_sound(page) { None } else { rebuild(page, magic, is_sound) };
        let page = rebuilt.as_deref().unwrap_or(page);
        let disk = || disk.to_owned();
        let stored = get_u64(page, 0);
        if stored != magic {
            return Err(StoreError::NotFormatted { disk: disk(), offset, stored, expected: magic });
        }
        let (stored, computed) = page_crcs(page);
        // The checksum lies elsewhere in earlier formats, and may in later ones.
        if stored != computed && !is_other_version(get_u32(page, 8)) {
            return Err(StoreError::Corrupt(CorruptInfo {
                disk: disk(),
                offset,
                length: META_BYTES as u64,
                what: "superblock",
                slot: None,
                key: None,
                stored,
                computed,
            }));
        }
        let stored = get_u32(page, 8);
        if stored != FORMAT_VERSION {
            let expected = FORMAT_VERSION;
            return Err(StoreError::Version { disk: disk(), offset, stored, expected });
        }
        Ok(Self::fields(page))
    }

    fn fields(page: &[u8]) -> Self {
        let mut node = [0; 16];
        node.copy_from_slice(&page[16..32]);
        Superblock {
            magic: get_u64(page, 0),
            identity: StoreIdentity {
                node,
                shard: ShardIndex(page[32]),
                shard_count: get_u16(page, 34),
            },
            instance: get_u64(page, 40),
            block_bytes: get_u32(page, 12),
            base: get_u64(page, 48),
            length: get_u64(page, 56),
            slot_count: get_u32(page, 64),
            geometry: core::array::from_fn(|index| get_u32(page, 68 + 4 * index)),
        }
    }

    /// Compares with what the configuration says.
    ///
    /// # Errors
    /// The first setting that differs.
    pub fn matches(
        &self,
        region: &Region,
        identity: &StoreIdentity,
        disk: &str,
    ) -> Result<(), StoreError> {
        let offset = region.base;
        if self.identity.node != identity.node {
            return Err(StoreError::OtherNode {
                disk: disk.to_owned(),
                offset,
                stored: self.identity.node,
                expected: identity.node,
            });
        }
        let settings = [
            ("shard", u64::from(self.identity.shard.0), u64::from(identity.shard.0)),
            ("shard count", self.identity.shard_count.into(), identity.shard_count.into()),
            ("block size", self.block_bytes.into(), region.block_size.bytes().into()),
            ("first byte", self.base, region.base),
            ("length", self.length, region.length),
        ];
        for (what, stored, expected) in settings {
            if stored != expected {
                let disk = disk.to_owned();
                return Err(StoreError::Mismatch { disk, offset, what, stored, expected });
            }
        }
        Ok(())
    }
}
