//! A volume from the store alone: for a machine that has nothing else, and to verify the store.
//!
//! How: superblock, checkpoint, then the indexes of the segments behind it; whole segments that the
//! superblock does not name yet are taken, too, up to the first that is missing. What the map then
//! names is fetched segment by segment and verified.
//! Invariant: what is read is a prefix of the volume's history, and not older than the superblock.
//! Cost: the live bytes, once. Not for: volumes that a node serves; it may delete meanwhile.

use crate::action::{Fault, FaultKind};
use crate::map::{ChunkPlace, CloudMap};
use crate::segment::{HEADER_BYTES, Index, SegmentName, decode_chunk};
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use bytes::Bytes;
use std::fmt;
use std::ops::Range;

/// Bytes of a request at most, about.
const REQUEST_BYTES: u64 = 8 << 20;
/// Gaps up to this are fetched along.
const GAP_BYTES: u64 = 64 << 10;
/// Bytes fetched of a segment for its index at first.
const HEAD_BYTES: u64 = 64 << 10;

/// Fetches an object below the volume's prefix, or a range of it.
pub type Fetch<'a> = &'a mut dyn FnMut(&str, Option<Range<u64>>) -> Result<Bytes, Fault>;

/// Takes bytes at an offset of the volume.
pub type Sink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), String>;

/// Why a volume cannot be read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// There is no volume at this place.
    Absent,
    /// The store failed, in its words.
    Store(Fault),
    /// This object is damaged or lacks what others rely on.
    Damaged(String),
    /// What was read could not be written.
    Sink(String),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Absent => f.write_str("there is no volume at this place of the store"),
            RestoreError::Store(fault) => write!(f, "the store failed: {}", fault.cause),
            RestoreError::Damaged(key) => write!(f, "the object `{key}` is damaged or missing"),
            RestoreError::Sink(cause) => write!(f, "what was read could not be written: {cause}"),
        }
    }
}

impl std::error::Error for RestoreError {}

/// A volume as the store has it.
pub struct Restored {
    /// The superblock.
    pub superblock: Superblock,
    /// Segments behind those that the superblock names.
    pub segments_beyond: u64,
    map: CloudMap,
}

/// What a pass over a volume came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Bytes of blocks that were read and found whole.
    pub bytes: u64,
    /// Bytes fetched.
    pub fetched: u64,
    /// Requests.
    pub requests: u64,
    /// Ranges of the volume, in bytes, that are damaged, and the objects that held them.
    pub damaged: Vec<(Range<u64>, String)>,
}

fn get(fetch: Fetch<'_>, key: &str, range: Option<Range<u64>>) -> Result<Bytes, RestoreError> {
    fetch(key, range).map_err(|fault| match fault.kind {
        FaultKind::NotFound => RestoreError::Damaged(key.to_owned()),
        _ => RestoreError::Store(fault),
    })
}

impl Restored {
    /// Finds out what the store has.
    ///
    /// # Errors
    /// [`RestoreError`] where there is no volume, or an object that it needs is damaged.
    pub fn open(fetch: Fetch<'_>) -> Result<Self, RestoreError> {
        let bytes = fetch(SUPERBLOCK_KEY, None).map_err(|fault| match fault.kind {
            FaultKind::NotFound => RestoreError::Absent,
            _ => RestoreError::Store(fault),
        })?;
        let damaged = || RestoreError::Damaged(SUPERBLOCK_KEY.to_owned());
        let superblock = Superblock::decode(&bytes).ok_or_else(damaged)?;
        let mut map = CloudMap::default();
        if let Some(checkpoint) = superblock.checkpoint {
            let bytes = get(fetch, &checkpoint.key(), None)?;
            let damaged = || RestoreError::Damaged(checkpoint.key());
            map = CloudMap::decode(&bytes).ok_or_else(damaged)?;
        }
        while let Some(name) = superblock.segment(map.number + 1) {
            match (read_index(fetch, name), name.number <= superblock.committed) {
                (Ok(index), _) => map.apply(&index),
                (Err(error), true) => return Err(error),
                (Err(RestoreError::Damaged(_)), false) => break,
                (Err(error), false) => return Err(error),
            }
        }
        let segments_beyond = map.number.saturating_sub(superblock.committed);
        Ok(Restored { superblock, segments_beyond, map })
    }

    /// Segments that hold something of the volume.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.map.segments().filter(|(_, state)| state.live > 0).count() as u64
    }

    /// Bytes of blocks that hold data.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.map.totals().live * u64::from(self.superblock.block_bytes)
    }

    /// Hands every run of data to `sink`, by offset in the volume; damaged ones are left out and
    /// named in the answer.
    ///
    /// # Errors
    /// [`RestoreError`] where the store or the sink fails.
    pub fn copy(&self, fetch: Fetch<'_>, sink: Sink<'_>) -> Result<Pass, RestoreError> {
        let mut pass = Pass::default();
        for (number, runs) in self.map.runs_by_segment(|_| true) {
            let name = self.map.name(number).expect("the map knows its segments");
            self.copy_segment(fetch, (name, &runs), sink, &mut pass)?;
        }
        pass.damaged.sort_unstable_by_key(|(range, _)| range.start);
        Ok(pass)
    }

    fn copy_segment(
        &self,
        fetch: Fetch<'_>,
        (name, runs): (SegmentName, &[(Range<u64>, ChunkPlace)]),
        sink: Sink<'_>,
        pass: &mut Pass,
    ) -> Result<(), RestoreError> {
        for group in groups(runs) {
            let (first, last) = (&group[0].1, &group[group.len() - 1].1);
            let range = u64::from(first.at)..u64::from(last.at) + u64::from(last.stored);
            let (from, length) = (range.start, range.end - range.start);
            pass.requests += 1;
            let bytes = match get(fetch, &name.key(), Some(range)) {
                Ok(bytes) => bytes,
                Err(RestoreError::Damaged(_)) => Bytes::new(),
                Err(error) => return Err(error),
            };
            pass.fetched += length.min(bytes.len() as u64);
            for (blocks, place) in group {
                self.copy_run(blocks, place, (&bytes, from), &name, (sink, pass))?;
            }
        }
        Ok(())
    }

    fn copy_run(
        &self,
        blocks: &Range<u64>,
        place: &ChunkPlace,
        (bytes, from): (&[u8], u64),
        name: &SegmentName,
        (sink, pass): (Sink<'_>, &mut Pass),
    ) -> Result<(), RestoreError> {
        let block = u64::from(self.superblock.block_bytes);
        let (offset, length) = (blocks.start * block, (blocks.end - blocks.start) * block);
        let at = (u64::from(place.at) - from) as usize;
        let whole = usize::from(place.blocks) * block as usize;
        let stored = bytes.get(at..at + place.stored as usize);
        let chunk = stored.and_then(|s| decode_chunk(s, place.encoding, place.crc, whole));
        let Some(chunk) = chunk else {
            pass.damaged.push((offset..offset + length, name.key()));
            return Ok(());
        };
        let skip = usize::from(place.skip) * block as usize;
        pass.bytes += length;
        sink(offset, &chunk[skip..skip + length as usize]).map_err(RestoreError::Sink)
    }
}

fn read_index(fetch: Fetch<'_>, name: SegmentName) -> Result<Index, RestoreError> {
    let key = name.key();
    let mut bytes = get(fetch, &key, Some(0..HEAD_BYTES))?;
    let length = bytes.get(..HEADER_BYTES).and_then(Index::head_length);
    if let Some(length) = length.filter(|length| *length > bytes.len()) {
        bytes = get(fetch, &key, Some(0..length as u64))?;
    }
    let index = Index::decode(&bytes).filter(|index| index.name == name);
    index.ok_or(RestoreError::Damaged(key))
}

/// Runs that are fetched together: neighbours with small gaps.
fn groups(runs: &[(Range<u64>, ChunkPlace)]) -> impl Iterator<Item = &[(Range<u64>, ChunkPlace)]> {
    let mut from = runs.first().map_or(0, |(_, place)| u64::from(place.at));
    runs.chunk_by(move |(_, last), (_, next)| {
        let (at, end) = (u64::from(next.at), u64::from(last.at) + u64::from(last.stored));
        let joins = at <= end + GAP_BYTES && at - from < REQUEST_BYTES;
        if !joins {
            from = at;
        }
        joins
    })
}
