//! Where a volume's blocks lie in its segments, as of one of them.
//!
//! How: segments are applied in the order of their numbers; each entry replaces, zeroes or moves
//! blocks. The map counts what every segment still holds, for cleaning. Node and restore use the
//! same code, so that they cannot disagree.
//! Invariant: a segment's live blocks equal the map's blocks that lie in it; totals are the sums.
//! Cost: about 84 bytes per run of neighbours: 0.1 % where writes are long, 2 % where all are
//! single blocks of 4 KiB.
//! Not for: what the cloud does not hold yet; see `journal`.

use crate::clone::{BASES_MAX, base_key};
use crate::codec::{BLOCKS_MAX, NUMBER_END, Put, Reader, seal, unseal};
use crate::runs::{Piece, Place, Runs};
use crate::segment::{
    CHUNK_BYTES, Encoding, EntryKind, Index, SEGMENT_BLOCKS_MAX, SEGMENT_BYTES_MAX, SegmentName,
    VolumeUuid, chunk_fits,
};
use crate::superblock::Base;
use crate::written::Written;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::ops::Range;
use std::sync::Arc;

const CHECKPOINT_MAGIC: &[u8; 8] = b"LAYBYCP2";
/// The same of a volume that shares others' segments: its body begins with these.
const CHECKPOINT_MAGIC_BASES: &[u8; 8] = b"LAYBYCB2";
/// What checkpoints of builds began with that named no volume in them.
const CHECKPOINT_MAGICS_EARLIER: [&[u8; 8]; 2] = [b"LAYBYCCP", b"LAYBYCCB"];
/// What is said of them.
pub(crate) const EARLIER: &str = "an earlier build of Layby wrote it, in a format that this one \
                                  does not read";
/// Zstandard's level for checkpoints.
const CHECKPOINT_LEVEL: i32 = 1;
const CHECKPOINT_BYTES_MAX: usize = 1 << 40;
/// A map packs to no less than a part of this: each run has a checksum of its own, and numbers that
/// no other run has.
const RATIO_MAX: usize = 256;
/// So much is unpacked from whatever little there is.
const UNPACKED_MIN: usize = 1 << 20;
/// How far back a checkpoint's packed bytes may refer, as a power of two: 16 MiB. What
/// [`CHECKPOINT_LEVEL`] writes refers back 512 KiB at most.
const WINDOW_LOG_MAX: u32 = 24;

/// Whether bytes are a checkpoint of an earlier build, which is not read: not damaged.
pub(crate) fn is_earlier(checkpoint: &[u8]) -> bool {
    unseal(checkpoint)
        .is_some_and(|body| CHECKPOINT_MAGICS_EARLIER.iter().any(|magic| body.starts_with(*magic)))
}

/// A part of a chunk of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPlace {
    /// The segment's number.
    pub(crate) number: u64,
    /// First byte of the chunk in the object.
    pub(crate) at: u32,
    /// Bytes of the chunk in the object.
    pub(crate) stored: u32,
    /// CRC-32C of these.
    pub(crate) crc: u32,
    /// Blocks of the whole chunk.
    pub(crate) blocks: u16,
    /// Blocks of the chunk before this part.
    pub(crate) skip: u16,
    pub(crate) encoding: Encoding,
}

impl Place for ChunkPlace {
    fn skip(self, blocks: u64) -> Self {
        ChunkPlace { skip: self.skip + blocks as u16, ..self }
    }
}

/// What is known of a segment that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentState {
    pub(crate) epoch: u32,
    /// Bytes of the object.
    pub(crate) bytes: u64,
    /// Blocks of data that it was written with.
    pub(crate) blocks: u64,
    /// Of these, what the map still names.
    pub(crate) live: u64,
    /// The segment whose application took the last one, where none is left.
    pub(crate) dead_since: u64,
}

/// Sums over all segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes of all objects.
    pub(crate) bytes: u64,
    /// Blocks of data that they were written with.
    pub(crate) blocks: u64,
    /// Of these, what the map still names.
    pub(crate) live: u64,
}

/// A map as it was at some moment: it is not changed while anybody has it.
#[derive(Clone, Debug)]
pub struct MapImage(pub(crate) Arc<CloudMap>);

impl MapImage {
    /// The map as a checkpoint has it. Takes about 0.3 us per run.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.0.encode()
    }
}

/// See the file's header.
#[derive(Clone, Debug, Default)]
pub(crate) struct CloudMap {
    /// Whose it is: a map that another volume put there must not pass for this one's.
    pub(crate) volume: VolumeUuid,
    runs: Runs<ChunkPlace>,
    segments: BTreeMap<u64, SegmentState>,
    /// What lives, or did, in each segment.
    written: BTreeMap<u64, Written>,
    totals: Totals,
    /// Whose segments it shares, by their last numbers; own ones come behind.
    bases: Vec<Base>,
    /// The last segment applied.
    pub(crate) number: u64,
    /// Journal batches before this one are in it.
    pub(crate) journal_next: u64,
}

impl CloudMap {
    /// The empty map of a volume.
    pub(crate) fn new(volume: VolumeUuid) -> Self {
        CloudMap { volume, ..CloudMap::default() }
    }

    /// A volume's map from bytes, or `None` where they are damaged or another volume's.
    pub(crate) fn decode_of(volume: VolumeUuid, bytes: &[u8]) -> Option<Self> {
        Self::decode(bytes).filter(|map| map.volume == volume)
    }

    pub(crate) fn name(&self, number: u64) -> Option<SegmentName> {
        self.segments.get(&number).map(|state| SegmentName { number, epoch: state.epoch })
    }

    /// Where a segment's object is: its key, below a base's place where it is a base's.
    pub(crate) fn key(&self, number: u64) -> Option<String> {
        let key = self.name(number)?.key();
        match self.bases.iter().position(|base| number <= base.through) {
            Some(base) => Some(base_key(base, &key)),
            None => Some(key),
        }
    }

    pub(crate) fn bases(&self) -> &[Base] {
        &self.bases
    }

    /// Names all bases that the superblock names, and answers whether these are the map's: it may
    /// lack the first ones where it has no segment of them, since a node whose map is empty fetches
    /// no checkpoint that is.
    pub(crate) fn name_bases(&mut self, named: &[Base]) -> bool {
        let shared = |bases: &[Base]| -> Vec<Base> {
            bases.iter().filter(|base| base.through > 0).cloned().collect()
        };
        let is_same = shared(&self.bases) == shared(named);
        if is_same {
            self.bases = named.to_vec();
        }
        is_same
    }

    /// The last segment that is not the volume's own.
    pub(crate) fn base_through(&self) -> u64 {
        self.bases.last().map_or(0, |base| base.through)
    }

    /// Makes it the map of a clone, which has nothing of its own yet.
    pub(crate) fn rest_on(&mut self, base: Base, clone: VolumeUuid) {
        self.volume = clone;
        assert!(base.through == self.number, "a clone begins behind its snapshot");
        self.bases.push(base);
        self.journal_next = 0;
    }

    pub(crate) fn pieces(&self, blocks: Range<u64>) -> Vec<Piece<ChunkPlace>> {
        self.runs.pieces(blocks)
    }

    pub(crate) fn mapped(
        &self,
        blocks: Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, ChunkPlace)> {
        self.runs.mapped(blocks)
    }

    /// Whether it has something from this block on.
    pub(crate) fn has_behind(&self, end: u64) -> bool {
        self.runs.mapped(end..BLOCKS_MAX).next().is_some()
    }

    /// What lies from this block on is not of the volume.
    pub(crate) fn end_at(&mut self, end: u64) {
        let held = self.runs.remove(end..BLOCKS_MAX);
        self.release(held);
    }

    pub(crate) fn run_count(&self) -> usize {
        self.runs.count()
    }

    /// All runs by the segment that they lie in; one pass over the map.
    pub(crate) fn runs_by_segment(&self) -> BTreeMap<u64, Vec<(Range<u64>, ChunkPlace)>> {
        let mut found: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for (blocks, place) in self.runs.iter() {
            found.entry(place.number).or_default().push((blocks, place));
        }
        found.values_mut().for_each(|runs| sort_by_place(runs));
        found
    }

    /// What lives in one segment, in the order of the places.
    pub(crate) fn runs_of(&self, number: u64) -> Vec<(Range<u64>, ChunkPlace)> {
        let written = self.written.get(&number).into_iter().flat_map(Written::iter);
        let mapped = written.flat_map(|blocks| self.runs.mapped(blocks));
        let mut runs: Vec<_> = mapped.filter(|(_, place)| place.number == number).collect();
        sort_by_place(&mut runs);
        runs
    }

    /// What lives in one segment among the `most` blocks that were written before some blocks of
    /// it, and behind: since segments are written in the order of their blocks, these lie beside
    /// each other in the object, too.
    pub(crate) fn near(
        &self,
        number: u64,
        blocks: Range<u64>,
        most: u64,
    ) -> Vec<(Range<u64>, ChunkPlace)> {
        let Some(written) = self.written.get(&number) else { return Vec::new() };
        let mut near = Vec::new();
        for run in written.near(&blocks, most) {
            near.extend(self.runs.mapped(run).filter(|(_, place)| place.number == number));
        }
        near
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = (u64, &SegmentState)> {
        self.segments.iter().map(|(number, state)| (*number, state))
    }

    pub(crate) fn state(&self, number: u64) -> Option<&SegmentState> {
        self.segments.get(&number)
    }

    pub(crate) fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Adds a segment of which nothing is named yet.
    fn add_segment(&mut self, number: u64, state: SegmentState) {
        self.totals.bytes += state.bytes;
        self.totals.blocks += state.blocks;
        self.segments.insert(number, state);
    }

    /// A segment with nothing alive has gone from the store.
    pub(crate) fn remove_segment(&mut self, number: u64) {
        self.written.remove(&number);
        if let Some(state) = self.segments.remove(&number) {
            assert_eq!(state.live, 0, "what lives stays");
            self.totals.bytes -= state.bytes;
            self.totals.blocks -= state.blocks;
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Applies the next segment.
    pub(crate) fn apply(&mut self, index: &Index) {
        let number = index.name.number;
        assert_eq!(number, self.number + 1, "segments are applied in order");
        let data = index.entries.iter().filter(|entry| entry.kind != EntryKind::Zero);
        let blocks = data.map(|entry| entry.blocks.end - entry.blocks.start).sum();
        self.number = number;
        self.journal_next = self.journal_next.max(index.journal_next);
        let (epoch, bytes) = (index.name.epoch, index.object_bytes);
        let state = SegmentState { epoch, bytes, blocks, live: 0, dead_since: number };
        self.add_segment(number, state);
        for entry in &index.entries {
            let chunk = ChunkPlace {
                number,
                at: entry.at,
                stored: entry.stored,
                crc: entry.crc,
                blocks: (entry.blocks.end - entry.blocks.start) as u16,
                skip: 0,
                encoding: entry.encoding,
            };
            match entry.kind {
                EntryKind::Data => self.put(entry.blocks.clone(), chunk),
                EntryKind::Zero => {
                    let held = self.runs.remove(entry.blocks.clone());
                    self.release(held);
                }
                EntryKind::Moved(source) => self.move_here(&entry.blocks, chunk, source),
            }
        }
    }

    fn move_here(&mut self, blocks: &Range<u64>, chunk: ChunkPlace, source: u64) {
        let mapped = self.runs.mapped(blocks.clone());
        let still: Vec<Range<u64>> =
            mapped.filter(|(_, place)| place.number == source).map(|(run, _)| run).collect();
        for run in still {
            let place = chunk.skip(run.start - blocks.start);
            self.put(run, place);
        }
    }

    fn put(&mut self, blocks: Range<u64>, place: ChunkPlace) {
        let count = blocks.end - blocks.start;
        self.written.entry(place.number).or_default().push(blocks.clone());
        let held = self.runs.insert(blocks, place);
        self.release(held);
        self.totals.live += count;
        self.segments.get_mut(&place.number).expect("it was added").live += count;
    }

    fn release(&mut self, held: Vec<(Range<u64>, ChunkPlace)>) {
        for (run, place) in held {
            let state = self.segments.get_mut(&place.number).expect("a run's segment is known");
            self.totals.live -= run.end - run.start;
            state.live -= run.end - run.start;
            if state.live == 0 {
                state.dead_since = self.number;
                self.written.remove(&place.number);
            }
        }
    }

    /// The map as bytes, compressed.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encode_where(|_| true)
    }

    /// The same without the segments that hold nothing.
    pub(crate) fn encode_live(&self) -> Vec<u8> {
        self.encode_where(|state| state.live > 0)
    }

    fn encode_where(&self, is_wanted: impl Fn(&SegmentState) -> bool) -> Vec<u8> {
        let wanted = || self.segments.iter().filter(|(_, state)| is_wanted(state));
        let mut body = encode_bases(&self.bases);
        body.put_u64(self.number);
        body.put_u64(self.journal_next);
        body.put_u64(wanted().count() as u64);
        body.put_u64(self.runs.count() as u64);
        for (number, state) in wanted() {
            body.put_u64(*number);
            body.put_u64(state.bytes);
            body.put_u64(state.blocks);
            body.put_u64(state.dead_since);
            body.put_u32(state.epoch);
        }
        for (run, place) in self.runs.iter() {
            body.put_u64(run.start);
            body.put_u64(run.end - run.start);
            body.put_u64(place.number);
            body.put_u32(place.at);
            body.put_u32(place.stored);
            body.put_u32(place.crc);
            body.put_u16(place.blocks);
            body.put_u16(place.skip);
            body.put_u16(place.encoding.number().into());
        }
        let packed = zstd::bulk::compress(&body, CHECKPOINT_LEVEL).expect("memory is compressed");
        let has_bases = !self.bases.is_empty();
        let magic = if has_bases { CHECKPOINT_MAGIC_BASES } else { CHECKPOINT_MAGIC };
        let mut bytes = magic.to_vec();
        bytes.put_u64(body.len() as u64);
        bytes.extend_from_slice(&self.volume.0);
        bytes.extend_from_slice(&packed);
        seal(&mut bytes);
        bytes
    }

    /// A map from bytes, or `None` where they are damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(unseal(bytes)?);
        let magic = reader.bytes(8)?;
        let length = usize::try_from(reader.u64()?).ok()?;
        let volume = VolumeUuid(reader.id()?);
        let has_bases = magic == CHECKPOINT_MAGIC_BASES;
        if !(has_bases || magic == CHECKPOINT_MAGIC) || length > CHECKPOINT_BYTES_MAX {
            return None;
        }
        let body = decompress(reader.0, length)?;
        let mut reader = Reader(&body);
        let bases = if has_bases { decode_bases(&mut reader)? } else { Vec::new() };
        Some(CloudMap { volume, bases, ..Self::decode_body(&mut reader)? })
    }

    fn decode_body(reader: &mut Reader<'_>) -> Option<Self> {
        let (number, journal_next) = (reader.u64()?, reader.u64()?);
        let (segment_count, run_count) = (reader.u64()?, reader.u64()?);
        if number >= NUMBER_END || journal_next >= NUMBER_END {
            return None;
        }
        let mut map = CloudMap { number, journal_next, ..CloudMap::default() };
        for _ in 0..segment_count {
            let (number, bytes, blocks) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let (dead_since, epoch) = (reader.u64()?, reader.u32()?);
            let is_sane = bytes <= SEGMENT_BYTES_MAX && blocks <= SEGMENT_BLOCKS_MAX;
            if !is_sane || number > map.number || map.segments.contains_key(&number) {
                return None;
            }
            let state = SegmentState { epoch, bytes, blocks, live: 0, dead_since };
            map.add_segment(number, state);
        }
        for _ in 0..run_count {
            let (start, count) = (reader.u64()?, reader.u64()?);
            let place = decode_place(reader)?;
            let end = start.checked_add(count).filter(|end| *end > start && *end <= BLOCKS_MAX)?;
            let fits = u64::from(place.skip) + count <= u64::from(place.blocks);
            if !fits || !map.segments.contains_key(&place.number) {
                return None;
            }
            map.put(start..end, place);
        }
        let is_whole = map.segments.values().all(|state| state.live <= state.blocks);
        is_whole.then_some(map)
    }
}

fn sort_by_place(runs: &mut [(Range<u64>, ChunkPlace)]) {
    runs.sort_unstable_by_key(|(blocks, place)| (place.at, blocks.start));
}

/// Exactly `length` bytes from packed ones. What is there decides how much memory that takes: the
/// lengths that a stranger wrote do not, and what packs better than any map is none.
fn decompress(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    if length > packed.len().saturating_mul(RATIO_MAX).saturating_add(UNPACKED_MIN) {
        return None;
    }
    let mut decoder = zstd::stream::read::Decoder::new(packed).ok()?;
    decoder.window_log_max(WINDOW_LOG_MAX).ok()?;
    let mut body = Vec::new();
    decoder.take(length as u64 + 1).read_to_end(&mut body).ok()?;
    (body.len() == length).then_some(body)
}

fn encode_bases(bases: &[Base]) -> Vec<u8> {
    let mut body = Vec::new();
    if !bases.is_empty() {
        body.put_u32(u32::try_from(bases.len()).expect("bases are bounded"));
    }
    for base in bases {
        body.put_u64(base.through);
        for text in [&base.url, &base.snapshot] {
            body.put_u32(u32::try_from(text.len()).expect("a URL is bounded"));
            body.extend_from_slice(text.as_bytes());
        }
    }
    body
}

fn decode_bases(reader: &mut Reader<'_>) -> Option<Vec<Base>> {
    let count = reader.u32()? as usize;
    let mut bases: Vec<Base> = Vec::new();
    for _ in 0..count {
        let through = reader.u64()?;
        let mut text = || {
            let length = reader.u32()? as usize;
            String::from_utf8(reader.bytes(length)?.to_vec()).ok()
        };
        let (url, snapshot) = (text()?, text()?);
        if bases.last().is_some_and(|last| last.through > through) || bases.len() >= BASES_MAX {
            return None;
        }
        bases.push(Base { url, snapshot, through });
    }
    (!bases.is_empty()).then_some(bases)
}

fn decode_place(reader: &mut Reader<'_>) -> Option<ChunkPlace> {
    let (number, at, stored) = (reader.u64()?, reader.u32()?, reader.u32()?);
    let (crc, blocks, skip) = (reader.u32()?, reader.u16()?, reader.u16()?);
    let encoding = Encoding::from_number(reader.u16()?)?;
    let fits = chunk_fits(at, stored, SEGMENT_BYTES_MAX);
    let is_sane = usize::from(blocks) * 512 <= CHUNK_BYTES && fits;
    is_sane.then_some(ChunkPlace { number, at, stored, crc, blocks, skip, encoding })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkpoint with this body.
    fn checkpoint(body: &[u8], length: u64) -> Vec<u8> {
        let mut bytes = CHECKPOINT_MAGIC.to_vec();
        bytes.put_u64(length);
        bytes.extend([7; 16]);
        bytes.extend(zstd::bulk::compress(body, 1).expect("memory is compressed"));
        seal(&mut bytes);
        bytes
    }

    /// A body of one segment with one run.
    fn body(fields: [u64; 5]) -> Vec<u8> {
        sized_body(fields, (100, 80, 10))
    }

    /// The same, of an object of so many bytes, with a chunk from there on of so many.
    fn sized_body(
        [number, segment, blocks, start, count]: [u64; 5],
        (bytes, at, stored): (u64, u32, u32),
    ) -> Vec<u8> {
        let mut body = Vec::new();
        [number, 0, 1, 1].iter().for_each(|field| body.put_u64(*field));
        [segment, bytes, blocks, 0].iter().for_each(|field| body.put_u64(*field));
        body.put_u32(1);
        [start, count, segment].iter().for_each(|field| body.put_u64(*field));
        [at, stored, 7].iter().for_each(|field| body.put_u32(*field));
        [4, 1, 0].iter().for_each(|field| body.put_u16(*field));
        body
    }

    /// Goal: a checkpoint of a mebibyte takes no gibibytes of memory, and what a map can be is
    /// unpacked. Method: zeros, which pack to a part in tens of thousands; a map's kind of bytes.
    #[test]
    fn what_packs_too_well_is_not_unpacked() {
        let packed = |body: &[u8]| zstd::bulk::compress(body, 3).expect("it packs");
        let zeros = vec![0; 64 << 20];
        assert_eq!(decompress(&packed(&zeros), zeros.len()), None);
        assert!(decompress(&packed(&zeros[..1 << 20]), 1 << 20).is_some());
        let runs: Vec<u8> = (0..1u64 << 17).flat_map(u64::to_le_bytes).collect();
        assert_eq!(decompress(&packed(&runs), runs.len()), Some(runs));
    }

    /// Goal: numbers that no map has are refused, whatever the checksum says. Method: one odd field
    /// after the other; lengths that are not the body's.
    #[test]
    fn absurd_checkpoints_are_refused() {
        let good = body([9, 8, 4, 30, 3]);
        let length = good.len() as u64;
        let map = CloudMap::decode(&checkpoint(&good, length)).expect("it is sound");
        assert_eq!((map.totals().live, map.number, map.volume), (3, 9, VolumeUuid([7; 16])));
        let absurd = [
            [u64::MAX, 8, 4, 30, 3],
            [9, 10, 4, 30, 3],
            [9, 8, 2, 30, 3],
            [9, 8, 4, 30, 4],
            [9, 8, 4, 30, 0],
            [9, 8, 4, 1, u64::MAX - 1],
            [9, 8, 4, u64::MAX - 3, 3],
            [9, 8, 4, BLOCKS_MAX, 1],
            [9, 8, u64::MAX, 30, 3],
            [9, 8, SEGMENT_BLOCKS_MAX + 1, 30, 3],
        ];
        for fields in absurd {
            let bad = checkpoint(&body(fields), length);
            assert!(CloudMap::decode(&bad).is_none(), "{fields:?}");
        }
        let (most, chunk) = (SEGMENT_BYTES_MAX as u32, CHUNK_BYTES as u32);
        let sized = |bytes: u64, at: u32, stored: u32| {
            let body = sized_body([9, 8, SEGMENT_BLOCKS_MAX, 30, 3], (bytes, at, stored));
            CloudMap::decode(&checkpoint(&body, length)).is_some()
        };
        assert!(sized(SEGMENT_BYTES_MAX, most - chunk, chunk), "the largest");
        assert!(!sized(SEGMENT_BYTES_MAX, 80, chunk + 1), "more than a chunk has");
        assert!(!sized(SEGMENT_BYTES_MAX, 80, u32::MAX));
        assert!(!sized(SEGMENT_BYTES_MAX, u32::MAX, chunk), "behind the object's end");
        assert!(!sized(SEGMENT_BYTES_MAX, most - chunk + 1, chunk), "over the object's end");
        assert!(!sized(SEGMENT_BYTES_MAX + 1, 80, chunk), "more than a segment has");
        assert!(!sized(u64::MAX, 80, chunk));
        for wrong in [0, length - 1, length + 1, 1 << 40, u64::MAX] {
            assert!(CloudMap::decode(&checkpoint(&good, wrong)).is_none(), "length {wrong}");
        }
    }
}
