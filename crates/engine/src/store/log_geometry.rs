//! How a log's region is divided: checkpoint areas, segments, and the slots they have room for.
//!
//! How: planned where a log is made, kept in its superblock, and checked when it is read.
//! Invariant: what a superblock says is taken only where it fits the region.
//! Cost: none; it is computed once per start. Not for: the structures themselves, see `log_layout`.

use super::STREAMS;
use super::layout::GEOMETRY_FIELDS;
use super::log_config::SegmentPlan;
use super::log_layout::{BATCH_DATA_MAX, BATCH_ENTRIES_MAX, CHUNK_ENTRIES, TRAILER_BLOCKS};
use layby_types::BlockSize;

/// Streams of a log of few segments.
const STREAMS_FEW: u32 = 3;
/// Segments from which on a log has all streams: fewer, and five open ones take over 6 % of them.
const SEGMENTS_MANY: u32 = 128;
/// Blocks of a segment from which on a log has all streams: copies of one victim are batches of two
/// streams then, with a descriptor more, for which a shorter segment has too little spare.
pub(super) const SEGMENT_BLOCKS_MANY: u32 = 32;
/// Blocks of the smallest segment.
pub(super) const SEGMENT_BLOCKS_MIN: u32 = 8;
/// Blocks of every segment that stay spare at least, however short it is: the descriptor of a
/// second batch, since cleaning fills a segment with the blocks of one victim and of the next, and
/// a block to gain by it. Without them a full log cleans for ever and gains nothing.
pub(super) const SPARE_BLOCKS_MIN: u64 = 2;
/// Segments of a size that was asked for begin at multiples of it where there are so many: that
/// costs up to one.
const ALIGNED_SEGMENTS_MIN: u32 = 32;
/// Bytes of a segment where the region has room for at least 64 of them.
pub(super) const SEGMENT_BYTES_DEFAULT: u64 = 1 << 20;
/// Blocks of a checkpoint area for increments at least: two of the shortest, so that small logs
/// have them, too.
const INCREMENT_BLOCKS_MIN: u32 = 2 * (TRAILER_BLOCKS + 2);

/// Free segments that only copies and forgets may take: one for each stream of copies, one more to
/// gain by, and the last one, which is for forgets.
fn free_kept(streams: u32) -> u32 {
    // Of three streams one is of copies, of five two.
    streams / 2 + 2
}

/// Segments never counted as room: the open ones, what copies and forgets keep back, and one.
fn segments_reserved(streams: u32) -> u32 {
    streams + free_kept(streams) + 1
}

/// Segments of the smallest log of so many streams.
fn segments_min(streams: u32) -> u32 {
    segments_reserved(streams) + 3
}

/// How a region is divided; all numbers in blocks from the region's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGeometry {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks of a segment, its header included.
    pub segment_blocks: u32,
    /// Segments.
    pub segment_count: u32,
    /// First block of segment 0.
    pub segments_first: u32,
    /// Blocks of each of the two checkpoint areas, which have room for a full checkpoint and three
    /// quarters of one for increments; the first begins at block 1.
    pub checkpoint_blocks: u32,
    /// Logical slots.
    pub slot_count: u32,
    /// Streams: all, or [`STREAMS_FEW`].
    pub streams: u32,
}

impl LogGeometry {
    /// Divides `length` bytes, or `None` when they are too few or too many. Segments of zero
    /// bytes get a size by the region's. Where there are many, segments begin at multiples of
    /// their size, as seen from the region's first byte.
    #[must_use]
    pub fn plan(length: u64, block_size: BlockSize, segments: &SegmentPlan) -> Option<Self> {
        let segment_bytes = segments.bytes;
        let block = u64::from(block_size.bytes());
        let blocks = u32::try_from(length / block).ok().filter(|count| *count < u32::MAX)?;
        let floor = u64::from(SEGMENT_BLOCKS_MIN);
        let segment_blocks = match segment_bytes {
            0 => {
                let wanted = (length / 64).min(SEGMENT_BYTES_DEFAULT.max(16 * block)) / block;
                1 << wanted.max(floor).ilog2()
            }
            bytes => u32::try_from((bytes / block).max(floor)).ok()?,
        };
        let full = TRAILER_BLOCKS + blocks.div_ceil(CHUNK_ENTRIES as u32);
        let checkpoint_blocks = full + (3 * full).div_ceil(4).max(INCREMENT_BLOCKS_MIN);
        let first = 1 + 2 * checkpoint_blocks;
        let aligned_min = if segment_bytes == 0 { 64 } else { ALIGNED_SEGMENTS_MIN };
        let segments_first = if blocks / segment_blocks >= aligned_min {
            first.checked_next_multiple_of(segment_blocks)?
        } else {
            first
        };
        let segment_count = blocks.checked_sub(segments_first)? / segment_blocks;
        let is_long = segment_blocks >= SEGMENT_BLOCKS_MANY;
        let has_all = segments.has_all_streams.unwrap_or(is_long && segment_count >= SEGMENTS_MANY);
        let streams = if has_all { STREAMS as u32 } else { STREAMS_FEW };
        if segment_count < segments_min(streams) {
            return None;
        }
        let mut geometry = LogGeometry {
            block_bytes: block_size.bytes(),
            segment_blocks,
            segment_count,
            segments_first,
            checkpoint_blocks,
            slot_count: 0,
            streams,
        };
        u32::try_from(geometry.slots_of(segment_count)).ok()?;
        geometry.slot_count = geometry.slots_in(segment_count);
        Some(geometry)
    }

    fn slots_of(&self, segments: u32) -> u64 {
        let room = u64::from(segments.saturating_sub(segments_reserved(self.streams)));
        let dense = self.dense_blocks();
        (room * dense * 7 / 8).min(room * (dense - SPARE_BLOCKS_MIN))
    }

    /// Free segments that only copies and forgets may take.
    #[must_use]
    pub fn free_kept(&self) -> usize {
        free_kept(self.streams) as usize
    }

    /// Segments of the smallest log of this kind.
    #[must_use]
    pub fn segments_min(&self) -> u32 {
        segments_min(self.streams)
    }

    /// Slots that `segments` segments have room for, with what they need spare.
    #[must_use]
    pub fn slots_in(&self, segments: u32) -> u32 {
        u32::try_from(self.slots_of(segments)).unwrap_or(u32::MAX)
    }

    /// Data blocks of a segment that is filled with the largest batches.
    #[must_use]
    pub fn dense_blocks(&self) -> u64 {
        let room = u64::from(self.segment_blocks - 1);
        let batch = self.batch_blocks_max() as u64;
        room / (batch + 1) * batch + (room % (batch + 1)).saturating_sub(1)
    }

    /// Data blocks that a batch of copies may hold, however short batches are to be: with a
    /// descriptor for fewer, copies would take all that a segment keeps spare, and cleaning a full
    /// log would gain nothing.
    #[must_use]
    pub fn copies_min(&self) -> usize {
        let dense = self.dense_blocks();
        let spare = (dense - dense * 7 / 8).max(SPARE_BLOCKS_MIN);
        u64::from(self.segment_blocks).div_ceil(spare - 1) as usize
    }

    /// Data blocks of the largest batch.
    #[must_use]
    pub fn batch_blocks_max(&self) -> usize {
        BATCH_ENTRIES_MAX.min(BATCH_DATA_MAX / self.block_bytes as usize)
    }

    /// Bytes of the smallest region with this block size.
    #[must_use]
    pub fn length_min(block_size: BlockSize) -> u64 {
        let block = u64::from(block_size.bytes());
        let mut blocks = u64::from(segments_min(STREAMS_FEW) * SEGMENT_BLOCKS_MIN);
        let segments = SegmentPlan { bytes: block, ..SegmentPlan::default() };
        while Self::plan(blocks * block, block_size, &segments).is_none() {
            blocks += 1;
        }
        blocks * block
    }

    /// First block of segment `index`.
    #[must_use]
    pub fn segment_first(&self, index: u32) -> u32 {
        self.segments_first + index * self.segment_blocks
    }

    /// The segment that holds block `location`, or `None` outside of all.
    #[must_use]
    pub fn segment_of(&self, location: u32) -> Option<u32> {
        let index = location.checked_sub(self.segments_first)? / self.segment_blocks;
        (index < self.segment_count).then_some(index)
    }

    /// First block of checkpoint area 0 or 1.
    #[must_use]
    pub fn checkpoint_first(&self, area: usize) -> u32 {
        assert!(area < 2, "there are two areas");
        1 + area as u32 * self.checkpoint_blocks
    }

    /// As the superblock keeps it.
    #[must_use]
    pub fn to_fields(self) -> [u32; GEOMETRY_FIELDS] {
        let Self { segment_blocks, segment_count, segments_first, .. } = self;
        let Self { checkpoint_blocks, streams, .. } = self;
        [segment_blocks, segment_count, segments_first, checkpoint_blocks, streams, 0]
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
        let [segment_blocks, segment_count, segments_first, checkpoint_blocks, streams, _] = fields;
        let geometry = LogGeometry {
            block_bytes,
            segment_blocks,
            segment_count,
            segments_first,
            checkpoint_blocks,
            slot_count,
            streams,
        };
        let end = u64::from(segments_first) + u64::from(segment_count) * u64::from(segment_blocks);
        let sound = segment_blocks >= SEGMENT_BLOCKS_MIN
            && [STREAMS_FEW, STREAMS as u32].contains(&streams)
            && segment_count >= segments_min(streams)
            && end <= length / u64::from(block_bytes)
            && end < u64::from(u32::MAX)
            && u64::from(segments_first) > 2 * u64::from(checkpoint_blocks)
            && u64::from(checkpoint_blocks)
                >= end / CHUNK_ENTRIES as u64 + u64::from(TRAILER_BLOCKS)
            && u64::from(slot_count) < end;
        sound.then_some(geometry)
    }
}
