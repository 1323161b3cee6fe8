//! The NVM store's structures: geometry, slot headers, and the mark of what is surely durable.
//!
//! How: a header is four words of eight bytes. The first holds flags and checksum and is stored
//! last, in one store of eight bytes, so that it commits the others; changing a flag changes that
//! word only. A header is zeroed, durably, before its slot is used again, so that a header cut
//! short by power loss has a zero word, and one with a bad checksum and none was damaged. A copy of
//! each header lies in another sector: written before the header, cleared after it.
//! Invariant: a header of another instance or place never decodes.
//! Cost: twice 32 bytes per block. Not for: log structures.

use super::layout::{GEOMETRY_FIELDS, SEQ_MAX, crc32c, get_u32, get_u64, put_u32, put_u64};
use layby_types::{BlockKey, BlockSize, Seq};

/// First eight bytes of an NVM region's superblock: `LAYBYNVM`.
pub const NVM_MAGIC: u64 = u64::from_le_bytes(*b"LAYBYNVM");
/// Bytes of a slot header.
pub const HEADER_BYTES: u64 = 32;
/// Where the two copies of the mark lie within block 1.
pub const MARK_AT: [u64; 2] = [0, 512];
/// Bytes of a copy of the mark.
pub const MARK_BYTES: usize = 16;
/// Physical slots beyond the logical ones: this fraction, at least `SPARES_MIN`.
pub const SPARE_FRACTION: u64 = 32;
/// The fewest spare slots.
pub const SPARES_MIN: u64 = 8;

/// How a region is divided; blocks from the region's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmGeometry {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Slots that bytes can lie in.
    pub physical: u32,
    /// Slots that the cache sees.
    pub slot_count: u32,
    /// First block of the headers.
    pub headers_first: u32,
    /// First block of the data.
    pub data_first: u32,
}

impl NvmGeometry {
    /// Divides `length` bytes, or `None` when they are too few or too many.
    #[must_use]
    pub fn plan(length: u64, block_size: BlockSize) -> Option<Self> {
        let block = u64::from(block_size.bytes());
        let blocks = u64::from(u32::try_from(length / block).ok().filter(|count| *count > 2)?);
        let mut physical = (blocks - 2) * block / (block + 2 * HEADER_BYTES);
        while 2 + 2 * (physical * HEADER_BYTES).div_ceil(block) + physical > blocks {
            physical -= 1;
        }
        let spares = (physical / SPARE_FRACTION).max(SPARES_MIN);
        let slot_count = physical.checked_sub(spares).filter(|count| *count > 0)?;
        let headers = (physical * HEADER_BYTES).div_ceil(block);
        Some(NvmGeometry {
            block_bytes: block_size.bytes(),
            physical: physical as u32,
            slot_count: slot_count as u32,
            headers_first: 2,
            data_first: (2 + 2 * headers) as u32,
        })
    }

    /// Bytes of the smallest region with this block size.
    #[must_use]
    pub fn length_min(block_size: BlockSize) -> u64 {
        (2 + 2 + SPARES_MIN + 1) * u64::from(block_size.bytes())
    }

    /// Where the header of physical slot `index` begins, from the region's first byte.
    #[must_use]
    pub fn header_at(&self, index: u32) -> u64 {
        u64::from(self.headers_first) * u64::from(self.block_bytes)
            + u64::from(index) * HEADER_BYTES
    }

    /// Where the copy of that header begins: behind all headers, in a block of its own.
    #[must_use]
    pub fn copy_at(&self, index: u32) -> u64 {
        let block = u64::from(self.block_bytes);
        let headers = (u64::from(self.physical) * HEADER_BYTES).next_multiple_of(block);
        self.header_at(index) + headers
    }

    /// Where the data of physical slot `index` begins, from the region's first byte.
    #[must_use]
    pub fn data_at(&self, index: u32) -> u64 {
        (u64::from(self.data_first) + u64::from(index)) * u64::from(self.block_bytes)
    }

    /// As the superblock keeps it.
    #[must_use]
    pub fn to_fields(self) -> [u32; GEOMETRY_FIELDS] {
        [self.physical, self.headers_first, self.data_first, 0, 0, 0]
    }

    /// From a superblock, or `None` when the numbers contradict each other.
    #[must_use]
    pub fn from_fields(
        fields: [u32; GEOMETRY_FIELDS],
        block_bytes: u32,
        slot_count: u32,
        length: u64,
    ) -> Option<Self> {
        BlockSize::new(block_bytes)?;
        let [physical, headers_first, data_first, ..] = fields;
        let block = u64::from(block_bytes);
        let headers = (u64::from(physical) * HEADER_BYTES).div_ceil(block);
        let sound = slot_count > 0
            && slot_count < physical
            && headers_first >= 2
            && u64::from(data_first) >= u64::from(headers_first) + 2 * headers
            && (u64::from(data_first) + u64::from(physical)) * block <= length;
        let geometry = NvmGeometry { block_bytes, physical, slot_count, headers_first, data_first };
        sound.then_some(geometry)
    }
}

const FLAG_VALID: u32 = 1;
const FLAG_DIRTY: u32 = 2;
const FLAG_BORROWED: u32 = 4;

/// What a physical slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmHeader {
    /// The block.
    pub key: BlockKey,
    /// Its age.
    pub seq: Seq,
    /// Of its data.
    pub crc: u32,
    /// Not yet durable in the backing store.
    pub dirty: bool,
    /// A clean copy that recovery must not return.
    pub borrowed: bool,
}

/// What a header's bytes turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderState {
    /// Nothing.
    Free,
    /// Power loss cut its store or its clearing short; nothing was promised of it any more.
    Torn,
    /// A sound header.
    Sound(NvmHeader),
    /// Bytes that changed at rest: stored and computed checksum.
    Damaged(u32, u32),
}

impl NvmHeader {
    /// The four words, the committing one first.
    #[must_use]
    pub fn encode(&self, instance: u64, index: u32) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        let dirty = if self.dirty { FLAG_DIRTY } else { 0 };
        let borrowed = if self.borrowed { FLAG_BORROWED } else { 0 };
        put_u32(&mut bytes, 0, FLAG_VALID | dirty | borrowed);
        put_u64(&mut bytes, 8, !self.key.0);
        put_u64(&mut bytes, 16, self.seq.0);
        put_u32(&mut bytes, 24, self.crc);
        put_u32(&mut bytes, 28, tag(instance));
        let crc = header_crc(&bytes, instance, index);
        put_u32(&mut bytes, 4, crc);
        bytes
    }

    /// Judges the bytes of header `index`.
    #[must_use]
    pub fn decode(bytes: &[u8], instance: u64, index: u32) -> HeaderState {
        let words: [u64; 4] = core::array::from_fn(|word| get_u64(bytes, 8 * word));
        if words == [0; 4] {
            return HeaderState::Free;
        }
        if words.contains(&0) {
            return HeaderState::Torn;
        }
        let (stored, computed) = (get_u32(bytes, 4), header_crc(bytes, instance, index));
        if stored != computed || words[2] > SEQ_MAX.0 {
            return HeaderState::Damaged(stored, computed);
        }
        let flags = get_u32(bytes, 0);
        HeaderState::Sound(NvmHeader {
            key: BlockKey(!words[1]),
            seq: Seq(words[2]),
            crc: get_u32(bytes, 24),
            dirty: flags & FLAG_DIRTY != 0,
            borrowed: flags & FLAG_BORROWED != 0,
        })
    }
}

/// What a header and its copy say together. A sound copy counts where the header is none: its store
/// had nearly ended or its clearing has only begun, and both may be found after power loss.
#[must_use]
pub fn merge(header: HeaderState, copy: HeaderState) -> HeaderState {
    use HeaderState::{Damaged, Free, Sound};
    match (header, copy) {
        (Sound(_), _) | (Free, Free) | (Damaged(..), Damaged(..)) => header,
        (_, Sound(_)) => copy,
        _ => HeaderState::Torn,
    }
}

/// Never zero, so that a stored word never is.
fn tag(instance: u64) -> u32 {
    instance as u32 | 1
}

fn header_crc(bytes: &[u8], instance: u64, index: u32) -> u32 {
    let mut covered = [0; 40];
    covered[..4].copy_from_slice(&bytes[..4]);
    put_u32(&mut covered, 4, index);
    covered[8..32].copy_from_slice(&bytes[8..32]);
    put_u64(&mut covered, 32, instance);
    crc32c(&covered)
}

/// A copy of the mark: every store up to `seq` is durable.
#[must_use]
pub fn encode_mark(seq: Seq, instance: u64) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    put_u64(&mut bytes, 0, seq.0);
    let crc = mark_crc(&bytes, instance);
    put_u32(&mut bytes, 8, crc);
    bytes
}

/// Reads a copy of the mark; seq 0 when it is unsound.
#[must_use]
pub fn decode_mark(bytes: &[u8], instance: u64) -> Seq {
    let seq = Seq(get_u64(bytes, 0));
    let sound = get_u32(bytes, 8) == mark_crc(bytes, instance) && get_u32(bytes, 12) == 0;
    if sound && seq <= SEQ_MAX { seq } else { Seq(0) }
}

/// Whether power loss may leave this of a copy of the mark that is not sound: one of its words is
/// zero.
#[must_use]
pub fn is_torn_mark(bytes: &[u8]) -> bool {
    get_u64(bytes, 0) == 0 || get_u64(bytes, 8) == 0
}

fn mark_crc(bytes: &[u8], instance: u64) -> u32 {
    let mut covered = [0; 16];
    covered[..8].copy_from_slice(&bytes[..8]);
    put_u64(&mut covered, 8, instance);
    crc32c(&covered)
}
