//! The structures of a cloud-backed volume, for whoever has bytes and wants to know what they say.
//!
//! How: bytes are decoded by what the node itself decodes them with, and what they say is encoded
//! again. Structures in the store: heads of segments, chunks, checkpoints, which snapshots are,
//! too. Structures of the node: batches of the journal, the map file.
//! Invariant: no bytes make a decoder panic, or take more memory than what they hold comes to; what
//! was encoded decodes to the same; one changed bit of it is refused.
//! Cost: a copy. Not for: what structures mean together; see [`crate::Restored`] and
//! [`crate::Volume::open`].

use crate::journal::{Ring, RingId, decode_header, encode_header};
use crate::map::CloudMap;
use crate::meta::{self, Frame};
use crate::segment::{Encoding, Index, decode_chunk};
use crate::superblock::Superblock;

/// A structure that stands by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The head of a segment: header and index.
    Segment,
    /// A checkpoint, or a snapshot's object.
    Checkpoint,
    /// The superblock.
    Superblock,
    /// The map file; an append that was cut short is void.
    MapFile,
}

/// What the bytes say, encoded again, or `None` where they are refused.
#[must_use]
pub fn encode_again(format: Format, bytes: &[u8]) -> Option<Vec<u8>> {
    match format {
        Format::Segment => Index::decode(bytes).map(|index| index.encode()),
        Format::Checkpoint => CloudMap::decode(bytes).map(|map| map.encode()),
        Format::Superblock => Superblock::decode(bytes).map(|block| block.encode()),
        Format::MapFile => {
            let frames = meta::decode(bytes).ok()?;
            Some(frames.iter().flat_map(Frame::encode).collect())
        }
    }
}

/// The journal that a batch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPlace {
    /// Drawn when the ring was made.
    pub instance: u64,
    /// Bytes of the ring.
    pub capacity: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
}

/// What a page of the journal says of its batch, encoded again, or `None` where it is no batch of
/// this journal.
#[must_use]
pub fn encode_batch_again(place: JournalPlace, page: &[u8]) -> Option<Vec<u8>> {
    let id = RingId { instance: place.instance, life: 0 };
    let mut ring = Ring { id, capacity: place.capacity };
    let header = decode_header(&ring, page, place.block_bytes)?;
    ring.id.life = header.life;
    Some(encode_header(&ring, &header.batch, header.durable_next))
}

/// The blocks of a stored chunk, or `None` where it is not what its checksum and its length in
/// bytes, at most [`crate::CHUNK_BYTES`], say. Encodings are those of `docs/formats.md`.
#[must_use]
pub fn chunk(stored: &[u8], encoding: u16, crc: u32, length: usize) -> Option<Vec<u8>> {
    let encoding = Encoding::from_number(encoding)?;
    decode_chunk(stored, encoding, crc, length)
}
