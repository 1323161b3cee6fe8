//! The log's structures on the device: segment headers, batch descriptors, checkpoints.
//!
//! How: encoders fill zeroed pages, decoders take any bytes and answer `None` or a checksum pair;
//! `docs/formats.md` has the tables. A page ends with the parity of its sectors, see `layout`.
//! Invariant: decode(encode(x)) == x; a structure of another instance or generation never decodes.
//! Cost: one CRC over 4 KiB per structure. Not for: deciding what the structures mean together.

use super::STREAMS;
use super::layout::{
    CONTENT_BYTES, META_BYTES, META_CRC_AT, crc32c, get_u16, get_u32, get_u64, page_crcs,
    put_parity, put_u16, put_u32, put_u64, seal_page,
};
use layby_types::planted::{Plant, is_planted};
use layby_types::{BlockKey, Seq, Slot};

/// First eight bytes of a log's superblock: `LAYBYLOG`.
pub const LOG_MAGIC: u64 = u64::from_le_bytes(*b"LAYBYLOG");
/// First eight bytes of a segment: `LAYBYSEG`.
pub const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"LAYBYSEG");
/// First eight bytes of a batch descriptor: `LAYBYBAT`.
pub const BATCH_MAGIC: u64 = u64::from_le_bytes(*b"LAYBYBAT");
/// First eight bytes of a checkpoint's trailer: `LAYBYCKT`.
pub const TRAILER_MAGIC: u64 = u64::from_le_bytes(*b"LAYBYCKT");
/// First eight bytes of a checkpoint's chunk: `LAYBYCKC`.
pub const CHUNK_MAGIC: u64 = u64::from_le_bytes(*b"LAYBYCKC");

/// Bytes of a descriptor before its entries.
pub const DESCRIPTOR_HEADER: usize = 160;
/// Where a descriptor's checksum lies, behind the names of batches.
const DESCRIPTOR_CRC_AT: usize = DESCRIPTOR_HEADER - 4;
/// Where a descriptor says where it lies, and in which stream, behind the names of batches.
const LOCATION_AT: usize = 64 + 12 * (1 + STREAMS);
const _: () = assert!(LOCATION_AT + 8 <= DESCRIPTOR_CRC_AT, "a descriptor's header has room");
/// Bytes of a descriptor's entry.
pub const ENTRY_BYTES: usize = 32;
/// Entries of a batch at most: a descriptor has room for its own and for those of the batch before.
pub const BATCH_ENTRIES_MAX: usize = (CONTENT_BYTES - 2 * DESCRIPTOR_HEADER) / (2 * ENTRY_BYTES);
/// Data bytes of a batch at most.
pub const BATCH_DATA_MAX: usize = 1 << 20;
/// Bytes of a checkpoint chunk before its entries.
pub const CHUNK_HEADER: usize = 64;
/// Bytes of a checkpoint entry.
pub const CHECKPOINT_ENTRY: usize = 24;
/// Entries of a chunk of 4 KiB.
pub const CHUNK_ENTRIES: usize = (CONTENT_BYTES - CHUNK_HEADER) / CHECKPOINT_ENTRY;
/// Blocks of a trailer, each with all of it: a drive may lose a whole page of 4 KiB.
pub const TRAILER_BLOCKS: u32 = 2;
/// Open segments that a trailer can name.
pub const TRAILER_OPEN_MAX: usize = STREAMS;
/// Bytes of the owner's note in a trailer.
pub const NOTE_BYTES: usize = 64;
/// Retired segments that a trailer can name; what fails beyond is tried again by the next start.
pub const RETIRED_MAX: usize = 830;
const NOTE_AT: usize = 136;
const RETIRED_AT: usize = NOTE_AT + NOTE_BYTES;
const FLIGHTS_AT: usize = RETIRED_AT + 4;
const RETIRED_LIST_AT: usize = FLIGHTS_AT + STREAMS * 8;
const ORDINAL_AT: usize = 52;
const BASE_AT: usize = META_CRC_AT - 16;
const PREVIOUS_AT: usize = META_CRC_AT - 8;
const _: () = assert!(RETIRED_LIST_AT + 4 * RETIRED_MAX <= BASE_AT, "a trailer is one page");
/// Where a segment's header says that it was written anew.
const ANEW_AT: usize = 32;
/// Where no block is.
pub const NOWHERE: u32 = u32::MAX;

/// The first block of a segment in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Of the superblock.
    pub instance: u64,
    /// The segment's own index, against misdirected writes.
    pub index: u32,
    /// The stream that filled it.
    pub stream: u32,
    /// The seq at which it was opened; its batches repeat it.
    pub generation: Seq,
    /// Written anew by a start that could not read it: the generation is the seq of the checkpoint
    /// that showed the segment to be older, and its batches have another one.
    pub is_anew: bool,
}

impl SegmentHeader {
    /// Serialises into a zeroed page.
    pub fn encode(&self, page: &mut [u8]) {
        put_u64(page, 0, SEGMENT_MAGIC);
        put_u64(page, 8, self.instance);
        put_u32(page, 16, self.index);
        put_u32(page, 20, self.stream);
        put_u64(page, 24, self.generation.0);
        put_u32(page, ANEW_AT, self.is_anew.into());
        seal_page(page);
    }

    /// Reads a header; `None` for anything but a sound one of this instance and index.
    #[must_use]
    pub fn decode(page: &[u8], instance: u64, index: u32) -> Option<Self> {
        let (stored, computed) = page_crcs(page);
        let header = SegmentHeader {
            instance: get_u64(page, 8),
            index: get_u32(page, 16),
            stream: get_u32(page, 20),
            generation: Seq(get_u64(page, 24)),
            is_anew: get_u32(page, ANEW_AT) != 0,
        };
        let sound = get_u64(page, 0) == SEGMENT_MAGIC
            && stored == computed
            && header.instance == instance
            && header.index == index
            && (header.stream as usize) < STREAMS;
        sound.then_some(header)
    }
}

/// A batch of a stream, by the segment it is in and its seq; seq 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchName {
    /// The segment.
    pub segment: u32,
    /// The batch.
    pub seq: u64,
}

/// What a descriptor says before its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchHeader {
    /// Of the superblock.
    pub instance: u64,
    /// Of the segment.
    pub generation: u64,
    /// The batch's own.
    pub seq: u64,
    /// The seq at which the log was opened; claims of durability hold within one opening only.
    pub epoch: u64,
    /// Every batch of this epoch up to this seq was durable when this one was written.
    pub durable_upto: u64,
    /// The newest checkpoint that was complete.
    pub checkpoint: u64,
    /// The batch before this one in its stream.
    pub previous: BatchName,
    /// The last batch of each stream that was known durable.
    pub tails: [BatchName; STREAMS],
    /// Entries.
    pub entries: u16,
    /// Data blocks that follow.
    pub blocks: u16,
    /// Where the descriptor lies, in blocks from the region's first byte.
    pub location: u32,
    /// The stream of its segment.
    pub stream: u32,
}

/// The part of a descriptor that says what its batch holds.
fn own_part(entries: usize) -> usize {
    DESCRIPTOR_HEADER + entries * ENTRY_BYTES
}

/// What the next descriptor repeats of this one, so that the loss of its page loses nothing.
#[must_use]
pub fn copy_of(page: &[u8]) -> &[u8] {
    &page[..own_part(get_u16(page, 56).into())]
}

/// Puts the copy of the batch before, empty where there is none, behind `entries` of its own.
pub fn put_copy(page: &mut [u8], entries: usize, copy: &[u8]) {
    page[own_part(entries)..CONTENT_BYTES][..copy.len()].copy_from_slice(copy);
}

/// Seq and location of the descriptor of which a sound one has a copy.
#[must_use]
pub fn copied_place(page: &[u8]) -> Option<(u64, u32)> {
    let copy = &page[own_part(get_u16(page, 56).into())..];
    (get_u64(copy, 0) == BATCH_MAGIC).then(|| (get_u64(copy, 24), get_u32(copy, LOCATION_AT)))
}

/// The descriptor of which a sound one has a copy, without copies of its own; `None` for none.
#[must_use]
pub fn copied(page: &[u8]) -> Option<Vec<u8>> {
    let copy = &page[own_part(get_u16(page, 56).into())..CONTENT_BYTES];
    let entries = usize::from(get_u16(copy, 56));
    if get_u64(copy, 0) != BATCH_MAGIC || entries > BATCH_ENTRIES_MAX {
        return None;
    }
    let mut whole = vec![0; META_BYTES];
    let length = own_part(entries);
    whole[..length].copy_from_slice(copy.get(..length)?);
    let crc = descriptor_crc(&whole);
    put_u32(&mut whole, DESCRIPTOR_CRC_AT, crc);
    Some(whole)
}

/// The generation that a page names that looks like a descriptor; to be decoded with it.
#[must_use]
pub fn generation_of(page: &[u8]) -> Seq {
    Seq(get_u64(page, 16))
}

impl BatchHeader {
    /// What the header of the batch's segment says.
    #[must_use]
    pub fn segment_header(&self, index: u32) -> SegmentHeader {
        let (stream, generation) = (self.stream, Seq(self.generation));
        SegmentHeader { instance: self.instance, index, stream, generation, is_anew: false }
    }

    /// Serialises into a page whose entries, and copy of the batch before, are already there.
    pub fn encode(&self, page: &mut [u8]) {
        put_u64(page, 0, BATCH_MAGIC);
        put_u64(page, 8, self.instance);
        put_u64(page, 16, self.generation);
        put_u64(page, 24, self.seq);
        put_u64(page, 32, self.epoch);
        put_u64(page, 40, self.durable_upto);
        put_u64(page, 48, self.checkpoint);
        put_u16(page, 56, self.entries);
        put_u16(page, 58, self.blocks);
        for (index, name) in [self.previous].iter().chain(&self.tails).enumerate() {
            put_u32(page, 64 + 12 * index, name.segment);
            put_u64(page, 68 + 12 * index, name.seq);
        }
        put_u32(page, LOCATION_AT, self.location);
        put_u32(page, LOCATION_AT + 4, self.stream);
        let crc = descriptor_crc(page);
        put_u32(page, DESCRIPTOR_CRC_AT, crc);
        put_parity(page);
    }

    /// Reads a descriptor of this instance and generation; `None` when it is anything else.
    #[must_use]
    pub fn decode(page: &[u8], instance: u64, generation: Seq) -> Option<Self> {
        let name = |index: usize| BatchName {
            segment: get_u32(page, 64 + 12 * index),
            seq: get_u64(page, 68 + 12 * index),
        };
        if get_u64(page, 0) != BATCH_MAGIC {
            return None;
        }
        let header = BatchHeader {
            instance: get_u64(page, 8),
            generation: get_u64(page, 16),
            seq: get_u64(page, 24),
            epoch: get_u64(page, 32),
            durable_upto: get_u64(page, 40),
            checkpoint: get_u64(page, 48),
            entries: get_u16(page, 56),
            blocks: get_u16(page, 58),
            previous: name(0),
            tails: core::array::from_fn(|stream| name(1 + stream)),
            location: get_u32(page, LOCATION_AT),
            stream: get_u32(page, LOCATION_AT + 4),
        };
        let sound = header.instance == instance
            && header.generation == generation.0
            && usize::from(header.entries) <= BATCH_ENTRIES_MAX
            && header.blocks <= header.entries
            && (header.stream as usize) < STREAMS
            && get_u32(page, DESCRIPTOR_CRC_AT) == descriptor_crc(page);
        sound.then_some(header)
    }
}

/// CRC of a descriptor's page with the checksum's own field skipped.
fn descriptor_crc(page: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&page[..DESCRIPTOR_CRC_AT]);
    digest.update(&page[DESCRIPTOR_CRC_AT + 4..CONTENT_BYTES]);
    digest.finalize() as u32
}

/// One record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A block; its data is the batch's next data block.
    Block {
        /// The block.
        key: BlockKey,
        /// Its age; a relocated copy keeps the age of the original.
        seq: Seq,
        /// The slot it was appended for.
        slot: Slot,
        /// Of its data.
        crc: u32,
        /// Not yet durable in the backing store.
        dirty: bool,
    },
    /// All older records of a range are dead, in every level.
    Tombstone {
        /// First block, with the volume.
        first: BlockKey,
        /// Blocks.
        count: u64,
        /// Its age.
        seq: Seq,
        /// Keep the range allocated below.
        no_hole: bool,
    },
    /// All older records of a block in this log are dead.
    Forget {
        /// The block.
        key: BlockKey,
        /// Its age.
        seq: Seq,
    },
    /// The backing store holds a tombstone's zeros durably.
    TombstoneDone {
        /// The tombstone.
        of: Seq,
        /// Its own age.
        seq: Seq,
    },
    /// A tombstone is as if it had never been: the range could not be zeroed below.
    TombstoneVoid {
        /// The tombstone.
        of: Seq,
        /// Its own age.
        seq: Seq,
    },
    /// The backing store may still have to be told of a tombstone's zeros, and the checkpoint that
    /// has begun drops the tombstone. Kills nothing: what the tombstone killed is dead by then.
    Owed {
        /// First block, with the volume.
        first: BlockKey,
        /// Blocks.
        count: u64,
        /// The tombstone's age, by which it is done for, too.
        seq: Seq,
    },
}

const KIND_CLEAN: u32 = 1;
const KIND_DIRTY: u32 = 2;
const KIND_TOMBSTONE: u32 = 3;
const KIND_TOMBSTONE_NO_HOLE: u32 = 4;
const KIND_FORGET: u32 = 5;
const KIND_DONE: u32 = 6;
const KIND_VOID: u32 = 7;
const KIND_OWED: u32 = 8;

impl Record {
    /// The record's age.
    #[must_use]
    pub fn seq(&self) -> Seq {
        match *self {
            Record::Block { seq, .. }
            | Record::Tombstone { seq, .. }
            | Record::Forget { seq, .. }
            | Record::TombstoneDone { seq, .. }
            | Record::TombstoneVoid { seq, .. }
            | Record::Owed { seq, .. } => seq,
        }
    }

    /// Serialises as entry `index` of a descriptor's page.
    pub fn encode(&self, page: &mut [u8], index: usize) {
        let at = DESCRIPTOR_HEADER + index * ENTRY_BYTES;
        let (first, kind) = match *self {
            Record::Block { key, slot, crc, dirty, .. } => {
                put_u32(page, at + 16, slot.0);
                put_u32(page, at + 20, crc);
                (key.0, if dirty { KIND_DIRTY } else { KIND_CLEAN })
            }
            Record::Tombstone { first, count, no_hole, .. } => {
                put_u64(page, at + 16, count);
                (first.0, if no_hole { KIND_TOMBSTONE_NO_HOLE } else { KIND_TOMBSTONE })
            }
            Record::Forget { key, .. } => (key.0, KIND_FORGET),
            Record::TombstoneDone { of, .. } => (of.0, KIND_DONE),
            Record::TombstoneVoid { of, .. } => (of.0, KIND_VOID),
            Record::Owed { first, count, .. } => {
                put_u64(page, at + 16, count);
                (first.0, KIND_OWED)
            }
        };
        put_u64(page, at, first);
        put_u64(page, at + 8, self.seq().0);
        put_u32(page, at + 24, kind);
    }

    /// Reads entry `index`; `None` for an unknown kind.
    #[must_use]
    pub fn decode(page: &[u8], index: usize) -> Option<Self> {
        let at = DESCRIPTOR_HEADER + index * ENTRY_BYTES;
        let (first, seq) = (get_u64(page, at), Seq(get_u64(page, at + 8)));
        let kind = get_u32(page, at + 24);
        Some(match kind {
            KIND_CLEAN | KIND_DIRTY => Record::Block {
                key: BlockKey(first),
                seq,
                slot: Slot(get_u32(page, at + 16)),
                crc: get_u32(page, at + 20),
                dirty: kind == KIND_DIRTY,
            },
            KIND_TOMBSTONE | KIND_TOMBSTONE_NO_HOLE => Record::Tombstone {
                first: BlockKey(first),
                count: get_u64(page, at + 16),
                seq,
                no_hole: kind == KIND_TOMBSTONE_NO_HOLE,
            },
            KIND_FORGET => Record::Forget { key: BlockKey(first), seq },
            KIND_DONE => Record::TombstoneDone { of: Seq(first), seq },
            KIND_VOID => Record::TombstoneVoid { of: Seq(first), seq },
            KIND_OWED => {
                Record::Owed { first: BlockKey(first), count: get_u64(page, at + 16), seq }
            }
            _ => return None,
        })
    }
}

/// One block in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// The block.
    pub key: BlockKey,
    /// Its slot.
    pub slot: Slot,
    /// Where its data lies, in blocks from the region's first byte.
    pub location: u32,
    /// Of its data.
    pub crc: u32,
    /// Not yet durable in the backing store.
    pub dirty: bool,
    /// The batch that holds it names another slot, since recovery moved the block.
    pub moved: bool,
    /// No block, but blocks from `key` on whose newest version is not known; `slot`, `location` and
    /// `crc` say which.
    pub lost: Option<LostEntry>,
}

impl CheckpointEntry {
    /// What an increment says of a slot that holds nothing any more.
    #[must_use]
    pub fn emptied(slot: Slot) -> Self {
        let (key, location, crc) = (BlockKey(0), NOWHERE, 0);
        CheckpointEntry { key, slot, location, crc, dirty: false, moved: false, lost: None }
    }

    /// Whether the slot holds nothing.
    #[must_use]
    pub fn is_emptied(&self) -> bool {
        self.lost.is_none() && self.location == NOWHERE
    }
}

/// How an entry of a checkpoint names lost blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostEntry {
    /// As many as slot (the lower half) and location say, one behind the other.
    Run,
    /// Those of the 96 blocks from the key on whose bit is set, from the slot's lowest bit on.
    Bits,
}

/// Serialises up to [`CHUNK_ENTRIES`] entries as chunk `index` of checkpoint `seq`.
pub fn encode_chunk(
    page: &mut [u8],
    instance: u64,
    seq: Seq,
    index: u32,
    entries: &[CheckpointEntry],
) {
    assert!(entries.len() <= CHUNK_ENTRIES, "a chunk is one page");
    put_u64(page, 0, CHUNK_MAGIC);
    put_u64(page, 8, instance);
    put_u64(page, 16, seq.0);
    put_u32(page, 24, index);
    put_u32(page, 28, entries.len() as u32);
    for (position, entry) in entries.iter().enumerate() {
        let at = CHUNK_HEADER + position * CHECKPOINT_ENTRY;
        put_u64(page, at, entry.key.0);
        put_u32(page, at + 8, entry.slot.0);
        put_u32(page, at + 12, entry.location);
        put_u32(page, at + 16, entry.crc);
        let lost = match entry.lost {
            None => 0,
            Some(LostEntry::Run) => ENTRY_LOST_RUN,
            Some(LostEntry::Bits) => ENTRY_LOST_BITS,
        };
        put_u32(page, at + 20, u32::from(entry.dirty) | u32::from(entry.moved) << 1 | lost);
    }
    put_u32(page, 32, crc32c(&page[CHUNK_HEADER..CONTENT_BYTES]));
    let crc = crc32c(&page[..36]);
    put_u32(page, 36, crc);
    put_parity(page);
}

/// Reads chunk `index` of checkpoint `seq`; `None` when it is anything else.
#[must_use]
pub fn decode_chunk(
    page: &[u8],
    instance: u64,
    seq: Seq,
    index: u32,
) -> Option<Vec<CheckpointEntry>> {
    let count = get_u32(page, 28) as usize;
    let sound = get_u64(page, 0) == CHUNK_MAGIC
        && get_u64(page, 8) == instance
        && get_u64(page, 16) == seq.0
        && get_u32(page, 24) == index
        && get_u32(page, 36) == crc32c(&page[..36])
        && get_u32(page, 32) == crc32c(&page[CHUNK_HEADER..CONTENT_BYTES])
        && count <= CHUNK_ENTRIES;
    sound.then(|| (0..count).map(|position| checkpoint_entry(page, position)).collect())
}

/// Stored and computed checksum of a chunk's entries.
#[must_use]
pub fn chunk_crcs(page: &[u8]) -> (u32, u32) {
    (get_u32(page, 32), crc32c(&page[CHUNK_HEADER..CONTENT_BYTES]))
}

const ENTRY_LOST_RUN: u32 = 4;
const ENTRY_LOST_BITS: u32 = 8;

fn checkpoint_entry(page: &[u8], position: usize) -> CheckpointEntry {
    let at = CHUNK_HEADER + position * CHECKPOINT_ENTRY;
    let flags = get_u32(page, at + 20);
    let lost = match flags & (ENTRY_LOST_RUN | ENTRY_LOST_BITS) {
        0 => None,
        ENTRY_LOST_RUN => Some(LostEntry::Run),
        _ => Some(LostEntry::Bits),
    };
    CheckpointEntry {
        key: BlockKey(get_u64(page, at)),
        slot: Slot(get_u32(page, at + 8)),
        location: get_u32(page, at + 12),
        crc: get_u32(page, at + 16),
        dirty: flags & 1 != 0,
        moved: flags & 2 != 0,
        lost,
    }
}

/// The first block of a full checkpoint or an increment, and the second one alike, written last: it
/// makes that one valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// The counter when the checkpoint started (C0): every older record is in it.
    pub seq: Seq,
    /// The counter when it ended; segments opened later are not named by its entries.
    pub end: Seq,
    /// The full checkpoint that this increment goes with; a full one's own seq.
    pub base: Seq,
    /// The checkpoint before this increment in its area; 0 of a full one.
    pub previous: Seq,
    /// Checkpoints before this one in its area; a full one is the first.
    pub ordinal: u32,
    /// Chunks that follow.
    pub chunks: u32,
    /// Entries in them.
    pub entries: u64,
    /// Written at a clean shutdown, with nothing after it.
    pub clean: bool,
    /// Segments open at the start.
    pub open: Vec<OpenSegment>,
    /// By stream: the batch in flight at the start, 0 for none. It is no part of the checkpoint.
    pub flights: [u64; STREAMS],
    /// What the log's owner wants back at the next start; zeros where it said nothing.
    pub note: [u8; NOTE_BYTES],
    /// Segments that are never used again, in ascending order.
    pub retired: Vec<u32>,
}

/// A segment that was open when a checkpoint started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSegment {
    /// The segment.
    pub index: u32,
    /// The block in it from which newer batches may lie.
    pub fill: u32,
    /// Its generation then; the device shows an older one if the first batch never arrived.
    pub generation: Seq,
}

impl Trailer {
    /// A checkpoint started at `seq`, empty so far; the one with seq 0 stands for none at all.
    #[must_use]
    pub fn new(seq: Seq, clean: bool, open: Vec<OpenSegment>) -> Self {
        let (note, retired) = ([0; NOTE_BYTES], Vec::new());
        let (flights, base, previous, ordinal) = ([0; STREAMS], seq, Seq(0), 0);
        Trailer {
            seq,
            end: seq,
            base,
            previous,
            ordinal,
            chunks: 0,
            entries: 0,
            clean,
            open,
            flights,
            note,
            retired,
        }
    }

    /// Whether it names every slot, and not only those that changed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.ordinal == 0 && self.base == self.seq
    }

    /// Whether it is the increment right behind `before`, and not one that an earlier use of the
    /// area left there.
    #[must_use]
    pub fn follows(&self, before: &Trailer) -> bool {
        let is_of_chain =
            self.base == before.base && self.previous == before.seq && self.seq > before.seq
                || is_planted(Plant::IncrementOnWrongBase);
        before.ordinal.checked_add(1) == Some(self.ordinal) && is_of_chain
    }

    /// Serialises into a zeroed page.
    pub fn encode(&self, page: &mut [u8], instance: u64) {
        assert!(self.open.len() <= TRAILER_OPEN_MAX, "a stream has one open segment");
        put_u64(page, 0, TRAILER_MAGIC);
        put_u64(page, 8, instance);
        put_u64(page, 16, self.seq.0);
        put_u64(page, 24, self.end.0);
        put_u32(page, 32, self.chunks);
        put_u32(page, 36, u32::from(self.clean));
        put_u64(page, 40, self.entries);
        put_u32(page, 48, self.open.len() as u32);
        put_u32(page, ORDINAL_AT, self.ordinal);
        put_u64(page, BASE_AT, self.base.0);
        put_u64(page, PREVIOUS_AT, self.previous.0);
        for (position, open) in self.open.iter().enumerate() {
            put_u32(page, 56 + 16 * position, open.index);
            put_u32(page, 60 + 16 * position, open.fill);
            put_u64(page, 64 + 16 * position, open.generation.0);
        }
        assert!(self.retired.len() <= RETIRED_MAX, "a trailer is one page");
        page[NOTE_AT..NOTE_AT + NOTE_BYTES].copy_from_slice(&self.note);
        put_u32(page, RETIRED_AT, self.retired.len() as u32);
        for (stream, seq) in self.flights.iter().enumerate() {
            put_u64(page, FLIGHTS_AT + 8 * stream, *seq);
        }
        for (position, index) in self.retired.iter().enumerate() {
            put_u32(page, RETIRED_LIST_AT + 4 * position, *index);
        }
        seal_page(page);
    }

    /// Reads a trailer; `None` for anything but a sound one of this instance.
    #[must_use]
    pub fn decode(page: &[u8], instance: u64) -> Option<Self> {
        let (stored, computed) = page_crcs(page);
        let open = get_u32(page, 48) as usize;
        let retired = get_u32(page, RETIRED_AT) as usize;
        let mut note = [0; NOTE_BYTES];
        note.copy_from_slice(&page[NOTE_AT..NOTE_AT + NOTE_BYTES]);
        let sound = get_u64(page, 0) == TRAILER_MAGIC
            && get_u64(page, 8) == instance
            && stored == computed
            && open <= TRAILER_OPEN_MAX
            && retired <= RETIRED_MAX;
        sound.then(|| Trailer {
            seq: Seq(get_u64(page, 16)),
            end: Seq(get_u64(page, 24)),
            base: Seq(get_u64(page, BASE_AT)),
            previous: Seq(get_u64(page, PREVIOUS_AT)),
            ordinal: get_u32(page, ORDINAL_AT),
            chunks: get_u32(page, 32),
            entries: get_u64(page, 40),
            clean: get_u32(page, 36) != 0,
            open: (0..open)
                .map(|position| OpenSegment {
                    index: get_u32(page, 56 + 16 * position),
                    fill: get_u32(page, 60 + 16 * position),
                    generation: Seq(get_u64(page, 64 + 16 * position)),
                })
                .collect(),
            flights: core::array::from_fn(|stream| get_u64(page, FLIGHTS_AT + 8 * stream)),
            note,
            retired: (0..retired).map(|at| get_u32(page, RETIRED_LIST_AT + 4 * at)).collect(),
        })
    }
}
