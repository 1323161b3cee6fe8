//! Segment objects: what a volume's history between two points comes to, in one immutable object.
//!
//! How: a header, an index of chunks, then the chunks' bytes. A chunk is up to [`CHUNK_BYTES`] of
//! neighbouring blocks, encoded for itself, with its own checksum, so that a read fetches what it
//! needs. The index alone says which blocks the segment replaces, zeroes or moves.
//! Invariant: decode(encode(x)) == x; no bytes make a decoder panic; a chunk that was damaged or
//! belongs elsewhere is never taken for right.
//! Cost: one pass over the data. Not for: deciding what goes in; see `volume`.

use crate::codec::{BLOCKS_MAX, NUMBER_END, Put, Reader};
use crate::codec::{crc32c, is_block_bytes, seal, unseal};
use std::ops::Range;

/// First eight bytes of a segment object.
pub(crate) const SEGMENT_MAGIC: &[u8; 8] = b"LAYBYCSG";
/// Version of the layout.
pub(crate) const SEGMENT_VERSION: u16 = 1;
/// Version of a segment with chunks that are compressed by LZ4.
pub(crate) const SEGMENT_VERSION_LZ4: u16 = 2;
/// Bytes before the index.
pub(crate) const HEADER_BYTES: usize = 80;
/// Bytes of an index entry.
pub(crate) const ENTRY_BYTES: usize = 40;
/// Bytes of a chunk at most, before encoding.
pub const CHUNK_BYTES: usize = 64 << 10;

/// The most that a segment has: twice the largest `object` that may be configured.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 128 << 20;
/// A range that shows all of a segment, and whether there is more of it: a longer object is
/// damaged, and not asked for again and again.
pub(crate) const WHOLE: Range<u64> = 0..SEGMENT_BYTES_MAX + 1;
/// Blocks of data that a segment has at most: a chunk of the smallest ones for each entry.
pub(crate) const SEGMENT_BLOCKS_MAX: u64 =
    SEGMENT_BYTES_MAX / ENTRY_BYTES as u64 * (CHUNK_BYTES as u64 / 512);

/// A volume as objects name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeUuid(pub [u8; 16]);

impl std::fmt::Display for VolumeUuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for VolumeUuid {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let digits: Vec<u32> = text.chars().map_while(|digit| digit.to_digit(16)).collect();
        let bytes: Vec<u8> =
            digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1 % pair.len()]) as u8).collect();
        let bytes: [u8; 16] = bytes.try_into().map_err(drop)?;
        (digits.len() == text.len()).then_some(VolumeUuid(bytes)).ok_or(())
    }
}

/// A segment's name: numbers count through the volume's life, epochs say who wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// Place in the volume's history, from 1.
    pub number: u64,
    /// The session that wrote it.
    pub epoch: u32,
}

impl SegmentName {
    /// Its key below the volume's prefix.
    #[must_use]
    pub fn key(&self) -> String {
        format!("segments/{:016x}-{:08x}", self.number, self.epoch)
    }

    /// The name that a key says.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let (number, epoch) = key.rsplit('/').next()?.split_once('-')?;
        let number = u64::from_str_radix(number, 16).ok()?;
        let epoch = u32::from_str_radix(epoch, 16).ok()?;
        let name = SegmentName { number, epoch };
        key.ends_with(&name.key()).then_some(name)
    }
}

/// How a chunk's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// As they are.
    Raw,
    /// Compressed by Zstandard.
    Zstd,
    /// Compressed as an LZ4 block.
    Lz4,
}

impl Encoding {
    /// As formats write it.
    pub(crate) fn number(self) -> u8 {
        match self {
            Encoding::Raw => 0,
            Encoding::Zstd => 1,
            Encoding::Lz4 => 2,
        }
    }

    pub(crate) fn from_number(number: u16) -> Option<Self> {
        match number {
            0 => Some(Encoding::Raw),
            1 => Some(Encoding::Zstd),
            2 => Some(Encoding::Lz4),
            _ => None,
        }
    }
}

/// What an entry does to its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// They are this chunk now.
    Data,
    /// They are zeros now.
    Zero,
    /// Those that were in segment `.0` are here now: cleaning copied them.
    Moved(u64),
}

/// An entry of a segment's index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Blocks of the volume.
    pub(crate) blocks: Range<u64>,
    /// What becomes of them.
    pub(crate) kind: EntryKind,
    /// How the chunk is stored.
    pub(crate) encoding: Encoding,
    /// First byte of the chunk in the object.
    pub(crate) at: u32,
    /// Bytes of the chunk in the object.
    pub(crate) stored: u32,
    /// CRC-32C of these bytes.
    pub(crate) crc: u32,
}

/// What a segment's first bytes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    /// Whose it is.
    pub(crate) volume: VolumeUuid,
    /// Which it is.
    pub(crate) name: SegmentName,
    /// The volume's block in bytes.
    pub(crate) block_bytes: u32,
    /// The journal's batches before this one are in the cloud with this segment.
    pub(crate) journal_next: u64,
    /// Bytes of the whole object.
    pub(crate) object_bytes: u64,
    /// What it does, in order.
    pub(crate) entries: Vec<Entry>,
}

impl Index {
    /// Bytes of header and index.
    #[must_use]
    pub(crate) fn head_bytes(entries: usize) -> usize {
        HEADER_BYTES + entries * ENTRY_BYTES + 4
    }

    /// Bytes to fetch for an index, from an object's first [`HEADER_BYTES`]; `None` where they are
    /// no segment's, or say more than a segment can have: nothing vouches for them yet.
    #[must_use]
    pub(crate) fn head_length(header: &[u8]) -> Option<usize> {
        let mut reader = Reader(header.get(..HEADER_BYTES)?);
        let magic = reader.bytes(8)?;
        let length = Self::head_bytes(reader.u32()? as usize);
        (magic == SEGMENT_MAGIC && length as u64 <= SEGMENT_BYTES_MAX).then_some(length)
    }

    /// Header and index as bytes.
    #[must_use]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::head_bytes(self.entries.len()));
        bytes.extend_from_slice(SEGMENT_MAGIC);
        bytes.put_u32(u32::try_from(self.entries.len()).expect("a segment is bounded"));
        let has_lz4 = self.entries.iter().any(|entry| entry.encoding == Encoding::Lz4);
        bytes.put_u16(if has_lz4 { SEGMENT_VERSION_LZ4 } else { SEGMENT_VERSION });
        bytes.put_u16(0);
        bytes.extend_from_slice(&self.volume.0);
        bytes.put_u64(self.name.number);
        bytes.put_u32(self.name.epoch);
        bytes.put_u32(self.block_bytes);
        bytes.put_u64(self.journal_next);
        bytes.put_u64(self.object_bytes);
        bytes.resize(HEADER_BYTES, 0);
        for entry in &self.entries {
            encode_entry(&mut bytes, entry);
        }
        seal(&mut bytes);
        bytes
    }

    /// What the first bytes of an object say, or `None` where they are no index.
    #[must_use]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let body = unseal(bytes.get(..Self::head_length(bytes)?)?)?;
        let mut reader = Reader(body);
        reader.bytes(8)?;
        let count = reader.u32()? as usize;
        let version = reader.u16()?;
        reader.u16()?;
        let volume = VolumeUuid(reader.id()?);
        let name = SegmentName { number: reader.u64()?, epoch: reader.u32()? };
        let block_bytes = reader.u32()?;
        let (journal_next, object_bytes) = (reader.u64()?, reader.u64()?);
        let mut reader = Reader(&body[HEADER_BYTES..]);
        let entries: Option<Vec<Entry>> = (0..count).map(|_| decode_entry(&mut reader)).collect();
        let index =
            Index { volume, name, block_bytes, journal_next, object_bytes, entries: entries? };
        let is_known = (SEGMENT_VERSION..=SEGMENT_VERSION_LZ4).contains(&version);
        (is_known && index.is_sane()).then_some(index)
    }

    /// What an object says of itself that is whole: all of its bytes are there, and all of its
    /// checksums hold. A segment that no superblock names is vouched for by nothing else.
    #[must_use]
    pub(crate) fn decode_whole(object: &[u8]) -> Option<Self> {
        let index = Self::decode(object)?;
        let is_sound = |entry: &Entry| {
            let at = entry.at as usize;
            let chunk = object.get(at..at + entry.stored as usize);
            entry.kind == EntryKind::Zero || chunk.is_some_and(|bytes| crc32c(bytes) == entry.crc)
        };
        let is_whole = object.len() as u64 == index.object_bytes;
        (is_whole && index.entries.iter().all(is_sound)).then_some(index)
    }

    fn is_sane(&self) -> bool {
        let block = u64::from(self.block_bytes);
        let inside = |entry: &Entry| {
            let blocks = entry.blocks.end - entry.blocks.start;
            let fits = chunk_fits(entry.at, entry.stored, self.object_bytes);
            entry.kind == EntryKind::Zero || blocks <= CHUNK_BYTES as u64 / block && fits
        };
        let is_numbered = self.name.number < NUMBER_END && self.journal_next < NUMBER_END;
        let is_bounded = self.object_bytes <= SEGMENT_BYTES_MAX;
        is_block_bytes(block) && is_numbered && is_bounded && self.entries.iter().all(inside)
    }
}

/// Whether a chunk's bytes are no more than one has, and lie in an object of so many: they bound
/// the memory of a read, and a checksum vouches for no length that a hostile store wrote.
pub(crate) fn chunk_fits(at: u32, stored: u32, object_bytes: u64) -> bool {
    stored as usize <= CHUNK_BYTES && u64::from(at) + u64::from(stored) <= object_bytes
}

fn encode_entry(bytes: &mut Vec<u8>, entry: &Entry) {
    let (kind, source) = match entry.kind {
        EntryKind::Data => (1, 0),
        EntryKind::Zero => (2, 0),
        EntryKind::Moved(source) => (3, source),
    };
    bytes.put_u64(entry.blocks.start);
    bytes.put_u64(entry.blocks.end - entry.blocks.start);
    bytes.put_u64(source);
    bytes.put_u32(entry.at);
    bytes.put_u32(entry.stored);
    bytes.put_u32(entry.crc);
    bytes.extend_from_slice(&[kind, entry.encoding.number(), 0, 0]);
}

fn decode_entry(reader: &mut Reader<'_>) -> Option<Entry> {
    let (start, count, source) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (at, stored, crc) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let kind = match reader.u8()? {
        1 => EntryKind::Data,
        2 => EntryKind::Zero,
        3 => EntryKind::Moved(source),
        _ => return None,
    };
    let encoding = Encoding::from_number(reader.u8()?.into())?;
    reader.u16()?;
    let end = start.checked_add(count).filter(|end| *end > start && *end <= BLOCKS_MAX)?;
    Some(Entry { blocks: start..end, kind, encoding, at, stored, crc })
}

/// How chunks are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// By Zstandard, at this level.
    Zstd(i32),
    /// By LZ4: less small, and several times faster.
    Lz4,
}

/// A segment under construction.
pub(crate) struct Builder {
    compression: Compression,
    block_bytes: u32,
    entries: Vec<Entry>,
    data: Vec<u8>,
}

impl Builder {
    pub(crate) fn new(block_bytes: u32, compression: Compression) -> Self {
        Builder { compression, block_bytes, entries: Vec::new(), data: Vec::new() }
    }

    /// Adds neighbouring blocks, cut into chunks.
    pub(crate) fn add(&mut self, first: u64, bytes: &[u8], kind: EntryKind) {
        let block = self.block_bytes as usize;
        assert!(bytes.len().is_multiple_of(block), "whole blocks");
        let mut at = first;
        for chunk in bytes.chunks(CHUNK_BYTES.max(block)) {
            let end = at + (chunk.len() / block) as u64;
            let (stored, encoding) = encode_chunk(chunk, self.compression);
            self.entries.push(Entry {
                blocks: at..end,
                kind,
                encoding,
                at: u32::try_from(self.data.len()).expect("a segment is bounded"),
                stored: u32::try_from(stored.len()).expect("a chunk is bounded"),
                crc: crc32c(&stored),
            });
            self.data.extend_from_slice(&stored);
            at = end;
        }
    }

    /// Neighbours become one entry, however many discards they were.
    pub(crate) fn add_zero(&mut self, blocks: Range<u64>) {
        if let Some(last) = self.entries.last_mut()
            && last.kind == EntryKind::Zero
            && last.blocks.end == blocks.start
        {
            last.blocks.end = blocks.end;
            return;
        }
        let (kind, encoding) = (EntryKind::Zero, Encoding::Raw);
        self.entries.push(Entry { blocks, kind, encoding, at: 0, stored: 0, crc: 0 });
    }

    /// The object's bytes and its index.
    pub(crate) fn finish(
        mut self,
        volume: VolumeUuid,
        name: SegmentName,
        journal_next: u64,
    ) -> (Vec<u8>, Index) {
        let head = Index::head_bytes(self.entries.len());
        let base = u32::try_from(head).expect("a segment is bounded");
        let moved = self.entries.iter_mut().filter(|entry| entry.kind != EntryKind::Zero);
        moved.for_each(|entry| entry.at += base);
        let object_bytes = (head + self.data.len()) as u64;
        let block_bytes = self.block_bytes;
        let entries = self.entries;
        let index = Index { volume, name, block_bytes, journal_next, object_bytes, entries };
        let mut bytes = index.encode();
        bytes.append(&mut self.data);
        (bytes, index)
    }
}

/// Compressed where that saves at least an eighth.
fn encode_chunk(chunk: &[u8], compression: Compression) -> (std::borrow::Cow<'_, [u8]>, Encoding) {
    let packed = match compression {
        Compression::None => None,
        Compression::Zstd(level) => {
            zstd::bulk::compress(chunk, level).ok().map(|packed| (packed, Encoding::Zstd))
        }
        Compression::Lz4 => Some((lz4_flex::block::compress(chunk), Encoding::Lz4)),
    };
    match packed {
        Some((packed, encoding)) if packed.len() < chunk.len() / 8 * 7 => (packed.into(), encoding),
        _ => (chunk.into(), Encoding::Raw),
    }
}

/// The blocks of a chunk from its stored bytes, or `None` where they are damaged.
pub(crate) fn decode_chunk(
    stored: &[u8],
    encoding: Encoding,
    crc: u32,
    length: usize,
) -> Option<Vec<u8>> {
    if crc32c(stored) != crc {
        return None;
    }
    let bytes = match encoding {
        Encoding::Raw => stored.to_vec(),
        Encoding::Zstd => zstd::bulk::decompress(stored, length).ok()?,
        Encoding::Lz4 => lz4_flex::block::decompress(stored, length).ok()?,
    };
    (bytes.len() == length).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    fn sample(compression: Compression) -> (Vec<u8>, Index, Vec<u8>) {
        let mut builder = Builder::new(4096, compression);
        let mut bytes = vec![7; 20 * 4096];
        Rng::new(1).fill(&mut bytes[..4096]);
        builder.add(100, &bytes, EntryKind::Data);
        builder.add_zero(300..1_000_000);
        builder.add(5, &bytes[..4096], EntryKind::Moved(3));
        let name = SegmentName { number: 9, epoch: 2 };
        let (object, index) = builder.finish(VolumeUuid([1; 16]), name, 77);
        (object, index, bytes)
    }

    /// Goal: a header that nothing vouches for has no more fetched than a segment can have. Method:
    /// counts of entries up to the largest.
    #[test]
    fn a_header_asks_for_no_more_than_a_segment() {
        let (object, index, _) = sample(Compression::None);
        let length = |entries: u32| {
            let mut header = object[..HEADER_BYTES].to_vec();
            header[8..12].copy_from_slice(&entries.to_le_bytes());
            Index::head_length(&header)
        };
        let entries = index.entries.len() as u32;
        assert_eq!(length(entries), Some(Index::head_bytes(entries as usize)));
        assert!(length(3 << 20).is_some(), "120 MiB");
        assert_eq!([4 << 20, u32::MAX].map(length), [None, None]);
    }

    /// Goal: an object says what was put in. Method: encode, decode, chunks, each compression.
    #[test]
    fn segments_round_trip() {
        let versions = [(Compression::None, 1), (Compression::Zstd(1), 1), (Compression::Lz4, 2)];
        for (compression, version) in versions {
            let (object, index, bytes) = sample(compression);
            assert_eq!(object[12..14], [version, 0], "programs without LZ4 must refuse it alone");
            assert_eq!(Index::decode(&object), Some(index.clone()));
            assert_eq!(object.len() as u64, index.object_bytes);
            let chunk = &index.entries[0];
            let stored = &object[chunk.at as usize..(chunk.at + chunk.stored) as usize];
            let blocks = decode_chunk(stored, chunk.encoding, chunk.crc, CHUNK_BYTES);
            assert_eq!(blocks.as_deref(), Some(&bytes[..CHUNK_BYTES]));
        }
    }

    /// Goal: damage never passes and never panics. Method: every bit flip of a head, every cut.
    #[test]
    fn damaged_segments_are_refused() {
        let (object, index, _) = sample(Compression::None);
        let head = Index::head_bytes(index.entries.len());
        for at in 0..head {
            let mut bad = object.clone();
            bad[at] ^= 1 << (at % 8);
            assert_eq!(Index::decode(&bad), None, "byte {at}");
            assert_eq!(Index::decode(&object[..at]), None, "cut at {at}");
        }
    }

    /// Goal: an object counts as whole only where each of its bytes is as it was put, and no more.
    /// Method: every byte of its head changed and many of its chunks, cuts there, a byte more; each
    /// compression.
    #[test]
    fn only_a_whole_object_is_whole() {
        for compression in [Compression::None, Compression::Zstd(1), Compression::Lz4] {
            let (object, index, _) = sample(compression);
            let head = Index::head_bytes(index.entries.len());
            assert_eq!(Index::decode_whole(&object), Some(index));
            for at in (0..head).chain((head..object.len()).step_by(61)) {
                let mut bad = object.clone();
                bad[at] ^= 1 << (at % 8);
                assert_eq!(Index::decode_whole(&bad), None, "byte {at}");
                assert_eq!(Index::decode_whole(&object[..at]), None, "cut at {at}");
            }
            let longer = [&object[..], &[0]].concat();
            assert_eq!(Index::decode_whole(&longer), None);
        }
    }

    /// Goal: numbers that no volume has are refused, whatever the checksum says. Method: one odd
    /// field after the other, sealed.
    #[test]
    fn absurd_segments_are_refused() {
        let (_, index, _) = sample(Compression::None);
        assert_eq!(Index::decode(&index.encode()).as_ref(), Some(&index));
        let long = CHUNK_BYTES as u32 + 1;
        let absurd: [&dyn Fn(&mut Index); 11] = [
            &|index| (index.entries[0].stored, index.object_bytes) = (long, SEGMENT_BYTES_MAX),
            &|index| (index.entries[0].at, index.object_bytes) = (u32::MAX, 1 << 33),
            &|index| index.object_bytes = SEGMENT_BYTES_MAX + 1,
            &|index| index.entries[0].blocks.end = BLOCKS_MAX,
            &|index| index.entries[2].blocks = BLOCKS_MAX..BLOCKS_MAX + 1,
            &|index| index.block_bytes = 1 << 31,
            &|index| index.block_bytes = 0,
            &|index| index.name.number = u64::MAX,
            &|index| index.journal_next = u64::MAX,
            &|index| index.object_bytes = 0,
            &|index| index.entries[0].at = u32::MAX,
        ];
        for (number, make) in absurd.iter().enumerate() {
            let mut index = index.clone();
            make(&mut index);
            assert_eq!(Index::decode(&index.encode()), None, "the one of number {number}");
        }
    }

    /// Goal: keys name segments and nothing else. Method: round trips and strangers.
    #[test]
    fn keys_round_trip() {
        let name = SegmentName { number: 0x1_0000_0001, epoch: 7 };
        assert_eq!(SegmentName::parse(&name.key()), Some(name));
        for bad in ["", "segments/", "segments/1-2", "segments/zz-00000001", "x"] {
            assert_eq!(SegmentName::parse(bad), None, "{bad}");
        }
        let uuid = VolumeUuid([0xab; 16]);
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert_eq!("ab".parse::<VolumeUuid>(), Err(()));
    }
}
