//! A volume from the store alone: for a machine that has nothing else, and to verify the store.
//!
//! How: superblock, checkpoint, then the indexes of the segments behind it; segments that the
//! superblock does not name yet are read whole and taken, too, up to the first that is damaged or
//! missing. Which of these there are is settled by a byte of a few of them before the first one is
//! read: a node that puts segments faster than they are read here would keep a restore for ever.
//! What the map then
//! names is fetched segment by segment and verified. A node that serves the volume meanwhile may
//! delete what was to be read, once it has replaced the superblock: then what there is by then is
//! found, and what was not read of it yet, or lies elsewhere, is read. Segments never change, so
//! what lies where it lay is what it was.
//! What lies behind the size that the superblock says is left out.
//! Invariant: what is read is a prefix of the volume's history, and not older than the superblock.
//! Cost: the live bytes, once. Not for: what is written all the time; snapshots of it stay.

use crate::action::{Fault, FaultKind};
use crate::clone::split_key;
use crate::codec::BLOCKS_MAX;
use crate::map::{self, ChunkPlace, CloudMap, EARLIER};
use crate::runs::{Place, Runs};
use crate::segment::{HEADER_BYTES, Index, SegmentName, VolumeUuid, WHOLE, decode_chunk};
use crate::snapshot::Snapshot;
use crate::superblock::{Base, Deleted, SUPERBLOCK_KEY, Superblock};
use bytes::Bytes;
use layby_types::planted::{Plant, is_planted};
use std::fmt;
use std::ops::Range;

/// Bytes of a request at most, about.
const REQUEST_BYTES: u64 = 8 << 20;
/// Gaps up to this are fetched along.
const GAP_BYTES: u64 = 64 << 10;
/// Bytes fetched of a segment for its index at first.
const HEAD_BYTES: u64 = 64 << 10;

/// How often a volume is read that changes meanwhile.
pub const READS_MAX: usize = 4;
/// Segments behind the superblock of which about as many are looked at. A journal holds what they
/// hold until the superblock names them, so that no sound node has as many.
const BEYOND_MAX: u64 = 1 << 20;

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
    /// An earlier build wrote this object, in a format that this one does not read.
    Earlier(String),
    /// There is no such snapshot; the names of those that there are.
    NoSnapshot(String, Vec<String>),
    /// The volume was deleted, and nobody said that it is to be read all the same.
    Deleted(Deleted),
    /// It changed while it was read, so that objects went that were to be read, again and again.
    Changing,
    /// What was read could not be written.
    Sink(String),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Absent => f.write_str("there is no volume at this place of the store"),
            RestoreError::Store(fault) => write!(f, "the store failed: {}", fault.cause),
            RestoreError::Damaged(key) => write!(f, "the object `{key}` is damaged or missing"),
            RestoreError::Earlier(key) => write!(f, "the object `{key}` is not read: {EARLIER}"),
            RestoreError::NoSnapshot(name, known) if known.is_empty() => {
                write!(f, "there is no snapshot `{name}`; the volume has none")
            }
            RestoreError::NoSnapshot(name, known) => {
                write!(f, "there is no snapshot `{name}`; the volume has {}", known.join(", "))
            }
            RestoreError::Deleted(deleted) if deleted.has_begun() => {
                f.write_str("the volume was deleted, and its objects go or are gone in part")
            }
            RestoreError::Deleted(_) => f.write_str("the volume was deleted, and is still whole"),
            RestoreError::Changing => write!(
                f,
                "a node writes the volume, and deleted what was to be read, {READS_MAX} times"
            ),
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
    /// The snapshot that it is, unless it is the volume itself.
    pub snapshot: Option<Snapshot>,
    map: CloudMap,
}

/// Where a sink's blocks are from. Segments never change, so blocks of one place are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldPlace {
    epoch: u32,
    place: ChunkPlace,
}

impl Place for HeldPlace {
    fn skip(self, blocks: u64) -> Self {
        HeldPlace { place: self.place.skip(blocks), ..self }
    }
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
    /// Checksums of data that were compared and agreed.
    pub checksums: u64,
    /// Ranges of the volume, in bytes, that are damaged, and the objects that held them.
    pub damaged: Vec<(Range<u64>, String)>,
}

fn get(fetch: Fetch<'_>, key: &str, range: Option<Range<u64>>) -> Result<Bytes, RestoreError> {
    fetch(key, range).map_err(|fault| match fault.kind {
        FaultKind::NotFound | FaultKind::Short => RestoreError::Damaged(key.to_owned()),
        _ => RestoreError::Store(fault),
    })
}

impl Restored {
    /// Finds out what the store has.
    ///
    /// # Errors
    /// [`RestoreError`] where there is no volume, or an object that it needs is damaged.
    pub fn open(fetch: Fetch<'_>) -> Result<Self, RestoreError> {
        Self::find(fetch, None, true)
    }

    /// Finds out what the store has of a volume, or of its snapshot, or that it was deleted, unless
    /// it is to be read all the same.
    ///
    /// # Errors
    /// [`RestoreError`] as in [`Restored::open_snapshot`]; [`RestoreError::Deleted`].
    pub fn find(
        fetch: Fetch<'_>,
        snapshot: Option<&str>,
        is_deleted_wanted: bool,
    ) -> Result<Self, RestoreError> {
        let mut superblock = read_superblock(fetch)?;
        let mut is_second_look = false;
        for _ in 0..READS_MAX {
            let found = Self::find_by(superblock.clone(), fetch, snapshot, is_deleted_wanted);
            if !matches!(found, Err(RestoreError::Damaged(_))) {
                return found;
            }
            // One wrong answer is not yet a damaged object.
            let now = read_superblock(fetch)?;
            let is_same = now == superblock;
            if is_same && is_second_look {
                return found;
            }
            (superblock, is_second_look) = (now, is_same);
        }
        Err(RestoreError::Changing)
    }

    fn find_by(
        superblock: Superblock,
        fetch: Fetch<'_>,
        snapshot: Option<&str>,
        is_deleted_wanted: bool,
    ) -> Result<Self, RestoreError> {
        if let Some(deleted) = superblock.deleted.filter(|_| !is_deleted_wanted) {
            return Err(RestoreError::Deleted(deleted));
        }
        match snapshot {
            Some(name) => Self::snapshot_of(superblock, fetch, name),
            None => Self::volume_of(superblock, fetch),
        }
    }

    /// Finds what the store has, as [`Restored::find`] does, and hands every run of data to `sink`,
    /// as [`Restored::copy`] does. `begin` hears what was found before its first run, and of how
    /// many bytes the sink has what they are; again where the volume changed so that something had
    /// gone. Where the sink has nothing, it is to hold zeros everywhere.
    ///
    /// # Errors
    /// As [`Restored::find`] and [`Restored::copy`]; [`RestoreError::Changing`]; those of `begin`.
    pub fn read<E: From<RestoreError>>(
        fetch: Fetch<'_>,
        (snapshot, is_deleted_wanted): (Option<&str>, bool),
        begin: &mut dyn FnMut(&Restored, u64) -> Result<(), E>,
        sink: Sink<'_>,
    ) -> Result<(Self, Pass), E> {
        let (mut held, mut pass, mut size_bytes) = (Runs::default(), Pass::default(), 0);
        for _ in 0..READS_MAX {
            let restored = Self::find(fetch, snapshot, is_deleted_wanted)?;
            if std::mem::replace(&mut size_bytes, restored.size_bytes()) != size_bytes {
                held = Runs::default();
            }
            let gone = restored.let_go(&mut held);
            pass.bytes = held.iter().map(|(run, _)| restored.bytes_of(&run)).sum();
            begin(&restored, pass.bytes)?;
            if pass.bytes > 0 {
                gone.iter().try_for_each(|run| restored.zero(run, sink))?;
            }
            restored.copy_missing(fetch, sink, &held, &mut pass)?;
            restored.look_again(fetch, sink, &mut pass)?;
            if pass.damaged.is_empty() || read_superblock(fetch)? == restored.superblock {
                return Ok((restored, pass));
            }
            held = restored.held(&std::mem::take(&mut pass.damaged));
        }
        Err(RestoreError::Changing.into())
    }

    fn bytes_of(&self, blocks: &Range<u64>) -> u64 {
        (blocks.end - blocks.start) * u64::from(self.superblock.block_bytes)
    }

    /// What a sink holds after a pass that left these bytes out.
    fn held(&self, damaged: &[(Range<u64>, String)]) -> Runs<HeldPlace> {
        let mut held = Runs::default();
        for (run, place) in self.map.mapped(0..BLOCKS_MAX) {
            held.insert(run, self.held_place(place));
        }
        let block = u64::from(self.superblock.block_bytes);
        for (bytes, _) in damaged {
            held.remove(bytes.start / block..bytes.end / block);
        }
        held
    }

    fn held_place(&self, place: ChunkPlace) -> HeldPlace {
        let name = self.map.name(place.number).expect("a run's segment is known");
        HeldPlace { epoch: name.epoch, place }
    }

    /// Takes out of what a sink holds what is not so any more, and names it.
    fn let_go(&self, held: &mut Runs<HeldPlace>) -> Vec<Range<u64>> {
        let mut gone = Vec::new();
        for (run, was) in held.iter() {
            for piece in self.map.pieces(run.clone()) {
                let is = piece.place.map(|place| self.held_place(place));
                if is != Some(was.skip(piece.blocks.start - run.start)) {
                    gone.push(piece.blocks);
                }
            }
        }
        gone.iter().for_each(|run| drop(held.remove(run.clone())));
        gone
    }

    /// Writes zeros over what a sink held.
    fn zero(&self, blocks: &Range<u64>, sink: Sink<'_>) -> Result<(), RestoreError> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let (mut at, end) = (self.bytes_of(&(0..blocks.start)), self.bytes_of(&(0..blocks.end)));
        while at < end {
            let length = (end - at).min(ZEROS.len() as u64);
            self.put(at, &ZEROS[..length as usize], sink)?;
            at += length;
        }
        Ok(())
    }

    fn volume_of(superblock: Superblock, fetch: Fetch<'_>) -> Result<Self, RestoreError> {
        let volume = identity(&superblock)?;
        let mut map = CloudMap::new(volume);
        if let Some(checkpoint) = superblock.checkpoint {
            map = read_map(fetch, volume, (&checkpoint.key(), checkpoint.number))?;
        }
        let last = superblock.committed.max(map.number);
        let end = last_there(fetch, &superblock, last)?;
        while let Some(name) = superblock.segment(map.number + 1).filter(|name| name.number <= end)
        {
            if is_planted(Plant::NewestSegmentsIgnored) && superblock.checkpoint.is_some() {
                break;
            }
            let index = match name.number <= superblock.committed {
                true => read_index(fetch, volume, name),
                false => read_whole(fetch, volume, name),
            };
            match index {
                Ok(index) => map.apply(&index),
                Err(RestoreError::Damaged(_)) if name.number > superblock.committed => break,
                Err(error) => return Err(error),
            }
        }
        // Without a word on who wrote a segment that it has, the superblock is not whole.
        let is_whole = map.number >= superblock.committed
            || (is_planted(Plant::NewestSegmentsIgnored) && superblock.checkpoint.is_some());
        if !is_whole {
            return Err(RestoreError::Damaged(SUPERBLOCK_KEY.to_owned()));
        }
        let segments_beyond = map.number.saturating_sub(superblock.committed);
        map.end_at(superblock.size_bytes.div_ceil(superblock.block_bytes.into()));
        Ok(Restored { superblock, segments_beyond, snapshot: None, map })
    }

    /// Finds out what a snapshot is.
    ///
    /// # Errors
    /// [`RestoreError`] where there is no such volume or snapshot, or an object that it needs is
    /// damaged.
    pub fn open_snapshot(fetch: Fetch<'_>, name: &str) -> Result<Self, RestoreError> {
        Self::find(fetch, Some(name), true)
    }

    fn snapshot_of(
        superblock: Superblock,
        fetch: Fetch<'_>,
        name: &str,
    ) -> Result<Self, RestoreError> {
        let snapshot = superblock.snapshots.iter().find(|snapshot| snapshot.name == name).cloned();
        let Some(snapshot) = snapshot else {
            let known = superblock.snapshots.into_iter().map(|snapshot| snapshot.name).collect();
            return Err(RestoreError::NoSnapshot(name.to_owned(), known));
        };
        let (key, number) = (snapshot.key(), snapshot.number);
        let mut map = read_map(fetch, identity(&superblock)?, (&key, number))?;
        map.end_at(snapshot.size_bytes.div_ceil(superblock.block_bytes.into()));
        Ok(Restored { superblock, segments_beyond: 0, snapshot: Some(snapshot), map })
    }

    /// Bytes of the volume, or of the volume that the snapshot is.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.snapshot.as_ref().map_or(self.superblock.size_bytes, |snapshot| snapshot.size_bytes)
    }

    /// The last segment of the history that it is.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.map.number
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

    /// Whose segments it shares, where it is a clone: objects whose keys [`crate::split_key`] tells
    /// apart are theirs.
    #[must_use]
    pub fn bases(&self) -> &[Base] {
        self.map.bases()
    }

    /// An object as people find it.
    fn place_of(&self, key: &str) -> String {
        match split_key(key) {
            (Some(base), rest) if base < self.bases().len() => {
                format!("{}/{rest}", self.bases()[base].url)
            }
            _ => key.to_owned(),
        }
    }

    /// Hands every run of data to `sink`, by offset in the volume; damaged ones are left out and
    /// named in the answer.
    ///
    /// # Errors
    /// [`RestoreError`] where the store or the sink fails.
    pub fn copy(&self, fetch: Fetch<'_>, sink: Sink<'_>) -> Result<Pass, RestoreError> {
        let mut pass = Pass::default();
        self.copy_missing(fetch, sink, &Runs::default(), &mut pass)?;
        self.look_again(fetch, sink, &mut pass)?;
        Ok(pass)
    }

    /// Fetches once more what seemed damaged: an answer may have been cut or changed on its way.
    fn look_again(
        &self,
        fetch: Fetch<'_>,
        sink: Sink<'_>,
        pass: &mut Pass,
    ) -> Result<(), RestoreError> {
        let damaged = std::mem::take(&mut pass.damaged);
        if damaged.is_empty() {
            return Ok(());
        }
        self.copy_missing(fetch, sink, &self.held(&damaged), pass)
    }

    /// The same of what the sink does not hold.
    fn copy_missing(
        &self,
        fetch: Fetch<'_>,
        sink: Sink<'_>,
        held: &Runs<HeldPlace>,
        pass: &mut Pass,
    ) -> Result<(), RestoreError> {
        for (number, runs) in self.map.runs_by_segment() {
            let key = self.map.key(number).expect("the map knows its segments");
            let missing = runs.into_iter().flat_map(|(run, place)| {
                let pieces = held.pieces(run.clone()).into_iter();
                let missing = pieces.filter(|piece| piece.place.is_none());
                missing.map(move |piece| {
                    let skip = piece.blocks.start - run.start;
                    (piece.blocks, place.skip(skip))
                })
            });
            let missing: Vec<(Range<u64>, ChunkPlace)> = missing.collect();
            if !missing.is_empty() {
                self.copy_segment(fetch, (&key, &missing), sink, pass)?;
            }
        }
        pass.damaged.sort_unstable_by_key(|(range, _)| range.start);
        Ok(())
    }

    fn copy_segment(
        &self,
        fetch: Fetch<'_>,
        (key, runs): (&str, &[(Range<u64>, ChunkPlace)]),
        sink: Sink<'_>,
        pass: &mut Pass,
    ) -> Result<(), RestoreError> {
        for group in groups(runs) {
            let (first, last) = (&group[0].1, &group[group.len() - 1].1);
            let range = u64::from(first.at)..u64::from(last.at) + u64::from(last.stored);
            let (from, length) = (range.start, range.end - range.start);
            pass.requests += 1;
            let bytes = match get(fetch, key, Some(range)) {
                Ok(bytes) => bytes,
                Err(RestoreError::Damaged(_)) => Bytes::new(),
                Err(error) => return Err(error),
            };
            pass.fetched += length.min(bytes.len() as u64);
            for (blocks, place) in group {
                self.copy_run(blocks, place, (&bytes, from), key, (sink, pass))?;
            }
        }
        Ok(())
    }

    fn copy_run(
        &self,
        blocks: &Range<u64>,
        place: &ChunkPlace,
        (bytes, from): (&[u8], u64),
        key: &str,
        (sink, pass): (Sink<'_>, &mut Pass),
    ) -> Result<(), RestoreError> {
        let block = u64::from(self.superblock.block_bytes);
        let (offset, length) = (blocks.start * block, (blocks.end - blocks.start) * block);
        let at = (u64::from(place.at) - from) as usize;
        let whole = usize::from(place.blocks) * block as usize;
        let stored = bytes.get(at..at + place.stored as usize);
        let chunk = stored.and_then(|s| decode_chunk(s, place.encoding, place.crc, whole));
        let Some(chunk) = chunk else {
            pass.damaged.push((offset..offset + length, self.place_of(key)));
            return Ok(());
        };
        let skip = usize::from(place.skip) * block as usize;
        pass.bytes += length;
        pass.checksums += 1;
        self.put(offset, &chunk[skip..skip + length as usize], sink)
    }

    /// Hands out the bytes that lie before the volume's end.
    fn put(&self, offset: u64, bytes: &[u8], sink: Sink<'_>) -> Result<(), RestoreError> {
        let left = self.size_bytes().saturating_sub(offset).min(bytes.len() as u64);
        match left {
            0 => Ok(()),
            left => sink(offset, &bytes[..left as usize]).map_err(RestoreError::Sink),
        }
    }
}

pub(crate) fn read_superblock(fetch: Fetch<'_>) -> Result<Superblock, RestoreError> {
    let mut look = || {
        let bytes = fetch(SUPERBLOCK_KEY, None).map_err(|fault| match fault.kind {
            FaultKind::NotFound => RestoreError::Absent,
            _ => RestoreError::Store(fault),
        })?;
        let damaged = || RestoreError::Damaged(SUPERBLOCK_KEY.to_owned());
        Superblock::decode(&bytes).ok_or_else(damaged)
    };
    match look() {
        Err(RestoreError::Damaged(_)) => look(),
        found => found,
    }
}

/// Whose objects are to be there: those of another volume are damage.
fn identity(superblock: &Superblock) -> Result<VolumeUuid, RestoreError> {
    superblock.volume.parse().map_err(|()| RestoreError::Damaged(SUPERBLOCK_KEY.to_owned()))
}

/// The map under a key, of the segments up to this number: an older one is damage.
fn read_map(
    fetch: Fetch<'_>,
    volume: VolumeUuid,
    (key, number): (&str, u64),
) -> Result<CloudMap, RestoreError> {
    let bytes = get(fetch, key, None)?;
    let map = CloudMap::decode_of(volume, &bytes).filter(|map| map.number == number);
    map.ok_or_else(|| match map::is_earlier(&bytes) {
        true => RestoreError::Earlier(key.to_owned()),
        false => RestoreError::Damaged(key.to_owned()),
    })
}

/// The last segment behind this one that is in the store, of some that are looked at: all that
/// follow each other now end there, or before. Steps double, so that no node puts segments as fast.
fn last_there(
    fetch: Fetch<'_>,
    superblock: &Superblock,
    mut last: u64,
) -> Result<u64, RestoreError> {
    let mut is_there = |number| {
        let Some(name) = superblock.segment(number) else { return Ok(false) };
        match get(fetch, &name.key(), Some(0..1)) {
            Ok(_) => Ok(true),
            Err(RestoreError::Damaged(_)) => Ok(false),
            Err(error) => Err(error),
        }
    };
    let mut step = 1;
    while step <= BEYOND_MAX && is_there(last + step)? {
        (last, step) = (last + step, step * 2);
    }
    // What was looked for last is not there: where it begins not to be lies within the step.
    while step > 1 {
        step /= 2;
        if is_there(last + step)? {
            last += step;
        }
    }
    Ok(last)
}

fn read_index(
    fetch: Fetch<'_>,
    volume: VolumeUuid,
    name: SegmentName,
) -> Result<Index, RestoreError> {
    let key = name.key();
    let mut bytes = get(fetch, &key, Some(0..HEAD_BYTES))?;
    let length = bytes.get(..HEADER_BYTES).and_then(Index::head_length);
    if let Some(length) = length.filter(|length| *length > bytes.len()) {
        bytes = get(fetch, &key, Some(0..length as u64))?;
    }
    let is_own = |index: &Index| index.name == name && index.volume == volume;
    let index = Index::decode(&bytes).filter(is_own);
    index.ok_or(RestoreError::Damaged(key))
}

/// The index of a segment that no superblock names: nothing vouches for it but its own checksums.
pub(crate) fn read_whole(
    fetch: Fetch<'_>,
    volume: VolumeUuid,
    name: SegmentName,
) -> Result<Index, RestoreError> {
    let key = name.key();
    let is_own = |index: &Index| index.name == name && index.volume == volume;
    let bytes = get(fetch, &key, Some(WHOLE))?;
    if let Some(index) = Index::decode_whole(&bytes).filter(is_own) {
        return Ok(index);
    }
    // One wrong answer is not yet a damaged object.
    let bytes = get(fetch, &key, Some(WHOLE))?;
    Index::decode_whole(&bytes).filter(is_own).ok_or(RestoreError::Damaged(key))
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
