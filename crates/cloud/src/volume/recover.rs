//! Opening a volume from what the node keeps of it, without asking the store.
//!
//! How: the map file gives the map and the journal's tail; the ring is scanned from there, and what
//! no segment has yet goes into the overlay. A volume that the node does not know is served only
//! when the store has said what it is.
//! Invariant: every acknowledged write that a sync covered is found, or opening fails; a payload of
//! it that is damaged is found, too, and its blocks fail when they are read.
//! Cost: one pass over the map file and over the journal's unreleased part.

use super::commit::{Commits, map_file};
use super::session::Session;
use super::upload::Uploads;
use super::uploaded::Uploaded;
use super::write::Writes;
use super::{LocalPlace, Plan, Volume};
use crate::journal::{
    Batch, Journal, JournalEntry, JournalError, PAGE_BYTES, Ring, RingId, ScanStart, Scanned, scan,
    scan_before,
};
use crate::map::{CloudMap, EARLIER};
use crate::meta::{self, Born, Committed, Frame};
use crate::runs::Runs;
use crate::segment::{SegmentName, VolumeUuid};
use layby_types::{Nanos, Rng};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

/// Older a write that the store lacks is not: a clock was wrong, or nobody looked at one.
const AGE_MAX: Nanos = Nanos::from_secs(366 * 86_400);

/// Why a volume cannot be opened from what the node keeps of it.
#[derive(Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The map file is damaged at this byte.
    MapDamaged(u64),
    /// An earlier build wrote the map file, in a format that this one does not read.
    MapEarlier,
    /// The map file is another volume's, or has other blocks.
    MapForeign,
    /// The journal.
    Journal(JournalError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::MapDamaged(at) => write!(f, "the map file is damaged at byte {at}"),
            OpenError::MapEarlier => write!(f, "the map file is not read: {EARLIER}"),
            OpenError::MapForeign => f.write_str("the map file belongs to another volume"),
            OpenError::Journal(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

/// A volume that was opened, and the bytes that the map file is to have before it is used.
pub struct Opened<B> {
    /// The volume.
    pub volume: Volume<B>,
    /// Replaces the map file, durably, first of all.
    pub map_file: Vec<u8>,
    /// Bytes of the volume whose newest version lies in the journal and is damaged there: a first
    /// byte and a length each, in order. Reads of them fail.
    pub damaged: Vec<(u64, u64)>,
}

/// What a node keeps of a volume that it serves for the first time: the map file and the journal's
/// first page.
#[must_use]
pub fn create(plan: &Plan, journal_bytes: u64, instance: u64) -> (Vec<u8>, Vec<u8>) {
    let capacity = journal_bytes / PAGE_BYTES * PAGE_BYTES - PAGE_BYTES;
    let ring = Ring { id: RingId { instance, life: 0 }, capacity };
    let born = Born { volume: plan.volume, ring: ring.id, capacity, block_bytes: plan.block_bytes };
    (Frame::Born(born).encode(), ring.superblock())
}

/// Whose map file this is, without a look at the rest of it.
#[must_use]
pub fn volume_of(map_file: &[u8]) -> Option<VolumeUuid> {
    match meta::decode(map_file).ok()?.first()? {
        Frame::Born(born) => Some(born.volume),
        _ => None,
    }
}

/// Which making of a volume's files a map file is of, and how often they were opened since: each
/// opening raises that, durably, before the volume is used. None where the file has no sound start,
/// which is enough for it.
#[must_use]
pub fn opening_of(map_file: &[u8]) -> Option<Opening> {
    match meta::decode(map_file).ok()?.first()? {
        Frame::Born(born) => Some(Opening { instance: born.ring.instance, count: born.ring.life }),
        _ => None,
    }
}

/// See [`opening_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Drawn when journal and map were made.
    pub instance: u64,
    /// How often they were opened.
    pub count: u32,
}

/// The sessions of this node's directory that a map file remembers, newest first; none in files of
/// builds that did not write them down.
#[must_use]
pub fn sessions_of(map_file: &[u8]) -> Vec<u64> {
    let frames = meta::decode(map_file).unwrap_or_default();
    let committed = frames.iter().rev().find_map(|frame| match frame {
        Frame::Committed(committed) => Some(committed),
        _ => None,
    });
    committed.map_or_else(Vec::new, |committed| committed.claims.sessions().collect())
}

/// Whether this node has ever found out whose the volume is that a map file is of: its own, or
/// another node's.
#[must_use]
pub fn is_settled(map_file: &[u8]) -> bool {
    let known = read_map_file(map_file);
    known.is_ok_and(|known| known.taken.is_some() || known.committed.is_some_and(|c| c.epoch > 0))
}

struct Known {
    born: Born,
    map: CloudMap,
    /// A segment is missing behind the map: earlier builds went on behind a change of the file that
    /// had failed. The store has it.
    has_gap: bool,
    committed: Option<Committed>,
    taken: Option<String>,
    /// Batches of the journal before this one were durable.
    durable_next: u64,
}

impl Known {
    fn ring(&self) -> Ring {
        Ring { id: self.born.ring, capacity: self.born.capacity }
    }

    /// The first batch that the map file knows to be needed.
    fn start(&self) -> ScanStart {
        let tail = self.committed.unwrap_or_default();
        ScanStart {
            at: tail.journal_at,
            seq: tail.journal_next,
            life: tail.journal_life,
            durable_next: self.durable_next,
        }
    }
}

fn read_map_file(bytes: &[u8]) -> Result<Known, OpenError> {
    let known = meta::decode(bytes).map_err(OpenError::MapDamaged).and_then(known_of);
    known.map_err(|error| earlier_or(error, bytes))
}

/// What is wrong with a map file that is not read.
fn earlier_or(error: OpenError, map_file: &[u8]) -> OpenError {
    if meta::is_earlier(map_file) { OpenError::MapEarlier } else { error }
}

fn known_of(frames: Vec<Frame>) -> Result<Known, OpenError> {
    let mut frames = frames.into_iter();
    let Some(Frame::Born(mut born)) = frames.next() else { return Err(OpenError::MapDamaged(0)) };
    born.ring.life += 1;
    let map = CloudMap::new(born.volume);
    let (committed, taken) = (None, None);
    let mut known = Known { born, map, has_gap: false, committed, taken, durable_next: 0 };
    for frame in frames {
        match frame {
            Frame::Born(_) => return Err(OpenError::MapDamaged(0)),
            Frame::Checkpoint(map) if map.volume == known.born.volume => known.map = *map,
            Frame::Checkpoint(_) => return Err(OpenError::MapForeign),
            Frame::Stored(index) => match index.name.number.cmp(&(known.map.number + 1)) {
                Ordering::Equal => known.map.apply(&index),
                Ordering::Greater => known.has_gap = true,
                Ordering::Less => return Err(OpenError::MapDamaged(0)),
            },
            Frame::Committed(committed) => known.committed = Some(committed),
            Frame::Taken(why) => known.taken = Some(why),
            Frame::Durable(next) => known.durable_next = known.durable_next.max(next),
        }
    }
    Ok(known)
}

/// Since when a batch is there that says when it was made; from now on where a clock was wrong.
fn since(made: Nanos, now: Nanos) -> Nanos {
    let is_plausible = made <= now && now.since(made) <= AGE_MAX;
    if is_plausible { made } else { now }
}

/// The batches of a journal, and what of them is damaged, where nothing is behind a damaged header.
fn scan_whole(
    ring: &Ring,
    start: ScanStart,
    block_bytes: u32,
    read: &mut dyn FnMut(u64, u64) -> Result<Vec<u8>, String>,
) -> Result<(Vec<Batch>, Vec<JournalEntry>), OpenError> {
    let scanned = scan(ring, start, block_bytes.into(), read);
    let Scanned { batches, damaged, ends_at } = scanned.map_err(OpenError::Journal)?;
    match ends_at {
        Some(at) => Err(OpenError::Journal(JournalError::Damaged(at))),
        None => Ok((batches, damaged)),
    }
}

impl<B> Volume<B> {
    /// Opens a volume from its map file and its journal, whose device `read` reads. The caller has
    /// synced that device, so that what is found is durable. `now` is a clock that goes on while
    /// no volume is open, such as the wall's; within a volume's life it only grows.
    ///
    /// # Errors
    /// [`OpenError`] where they are damaged or another volume's; nothing was changed.
    pub fn open(
        plan: Plan,
        map_bytes: &[u8],
        now: Nanos,
        seed: u64,
        read: &mut dyn FnMut(u64, u64) -> Result<Vec<u8>, String>,
    ) -> Result<Opened<B>, OpenError> {
        let known = read_map_file(map_bytes)?;
        if known.born.volume != plan.volume || known.born.block_bytes != plan.block_bytes {
            return Err(OpenError::MapForeign);
        }
        let (ring, start) = (known.ring(), known.start());
        let from = (start.at, start.seq);
        let Known { born, map, has_gap, committed, taken, .. } = known;
        let tail = committed.unwrap_or_default();
        let (mut batches, damaged) = scan_whole(&ring, start, plan.block_bytes, read)?;
        batches.iter_mut().for_each(|batch| batch.since = since(batch.since, now));
        let overlay = overlay_of(&batches, map.journal_next..);
        let damaged = damaged_runs(&overlay, &damaged, u64::from(plan.block_bytes));
        let journal = Journal::new(ring, batches, from);
        let (seq_next, is_short) = (journal.seq_next, map.journal_next > journal.seq_next);
        let uploaded = Uploaded::of(&journal, map.journal_next, &tail.claims);
        let end = plan.size_bytes.div_ceil(plan.block_bytes.into());
        let resizing = super::size::Resizing::opened(journal.batches.iter(), end);
        let mut upload = Uploads::default();
        (upload.cut_next, upload.recorded) = (map.journal_next, map.number);
        // What was learned from the store is recorded after how far it goes: a power cut between
        // both, or a gap, has it learned again. Numbers suffice: see the invariant of `claims`.
        let is_known = tail.epoch > 0 && tail.number <= map.number && !has_gap;
        let mut map_file = map_file(born, &map, tail, seq_next);
        map_file.extend(taken.iter().flat_map(|why| Frame::Taken(why.clone()).encode()));
        let mut volume = Volume {
            now,
            rng: Rng::new(seed),
            action_next: 0,
            actions: Vec::new(),
            flights: BTreeMap::new(),
            requests: BTreeMap::new(),
            resting: Vec::new(),
            done: VecDeque::new(),
            journal,
            overlay,
            uploaded,
            read_cache: super::read_cache::ReadCache::default(),
            map: Arc::new(map),
            write: Writes::new(seq_next),
            reads: super::read::Reads::default(),
            at_hand: super::around::AtHand::default(),
            upload,
            commit: Commits::new(born, tail),
            session: session(taken, seed, is_short),
            clean: super::clean::Cleaning::default(),
            gone: super::gone::Gone::default(),
            snapshots: super::snapshots::Snapshots::default(),
            resizing,
            is_known,
            lost_bytes: 0,
            awaits_map: false,
            held: Vec::new(),
            waiting: super::wait::Waiting::default(),
            turns: super::turns::Turns::default(),
            is_draining: false,
            is_stopping: false,
            last_fault: None,
            counters: super::Counters::default(),
            plan,
        };
        volume.count_lost();
        Ok(Opened { volume, map_file, damaged })
    }
}

impl<B> Volume<B> {
    /// Counts what only the journal has of a volume that uploads no more.
    pub(super) fn count_lost(&mut self) {
        if !self.session.is_lost() {
            return;
        }
        let left = overlay_of(&self.journal.batches, self.commit.recorded.journal_next..);
        let blocks: u64 = left.iter().map(|(blocks, _)| blocks.end - blocks.start).sum();
        self.lost_bytes = blocks * u64::from(self.plan.block_bytes);
    }
}

/// The session of a volume that is opened, with a number of its own from what chance it has.
fn session(taken: Option<String>, seed: u64, is_short: bool) -> Session {
    let number = Rng::new(seed ^ SESSION_SALT).next_u64().max(1);
    let mut session = match taken {
        Some(why) => Session::taken(why, number),
        None => Session::new(number),
    };
    session.is_short = is_short;
    session
}

/// Keeps a session's number apart from what else is drawn from the same seed.
const SESSION_SALT: u64 = u64::from_le_bytes(*b"session:");

/// Where the newest version of blocks is one of these damaged payloads, in bytes of the volume.
fn damaged_runs(
    overlay: &Runs<LocalPlace>,
    damaged: &[JournalEntry],
    block: u64,
) -> Vec<(u64, u64)> {
    let is_damaged = |place: &LocalPlace| damaged.iter().any(|entry| entry.at == place.at);
    let runs = overlay.iter().filter(|(_, place)| place.at.is_some() && is_damaged(place));
    runs.map(|(blocks, _)| (blocks.start * block, (blocks.end - blocks.start) * block)).collect()
}

/// The newest writes of all blocks in these batches.
pub(super) fn overlay_of<'a>(
    batches: impl IntoIterator<Item = &'a Batch>,
    seqs: impl RangeBounds<u64>,
) -> Runs<LocalPlace> {
    let mut overlay = Runs::default();
    for batch in batches.into_iter().filter(|batch| seqs.contains(&batch.seq)) {
        for entry in &batch.entries {
            let blocks = (entry.blocks.end - entry.blocks.start).min(u64::from(u16::MAX)) as u16;
            let (seq, at, crc) = (batch.seq, entry.at, entry.crc);
            overlay.insert(entry.blocks.clone(), LocalPlace { seq, at, crc, blocks, skip: 0 });
        }
    }
    overlay
}

/// What a journal holds: what no superblock is known to vouch for, or all.
pub(crate) struct LeftOver {
    pub(crate) volume: VolumeUuid,
    pub(crate) block_bytes: u32,
    /// The last segment that a superblock of this node named.
    pub(crate) number: u64,
    /// Who has the volume, where that is known.
    pub(crate) taken: Option<String>,
    /// Segments behind that one that the store took, in order, and the journal's batch behind them.
    pub(crate) put: Vec<SegmentName>,
    pub(crate) put_next: u64,
    /// The batch behind the last one that the journal has.
    pub(crate) end_next: u64,
    /// Byte of the device where acknowledged data is damaged: what lay behind it is not here.
    pub(crate) damaged_at: Option<u64>,
    /// Of each block the newest write, in the order of the blocks, where that is whole.
    pub(crate) left: Vec<Left>,
    /// The same of blocks whose newest write is damaged: no older one counts in its stead.
    pub(crate) damaged: Vec<Left>,
    /// The journal's batches of which a payload is damaged, whether or not it was overwritten
    /// since: a segment may end before the newer write.
    pub(crate) damaged_batches: Vec<u64>,
}

/// A run of blocks of one write.
pub(crate) struct Left {
    pub(crate) blocks: Range<u64>,
    pub(crate) seq: u64,
    /// When the write was made; zero where that was not written down.
    pub(crate) since: Nanos,
    /// First byte of the device and blocks of the payload, blocks of it before these, and its
    /// checksum; none where the blocks are zeros.
    pub(crate) payload: Option<(u64, u64, u64, u32)>,
}

/// Which writes of a journal are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those that no superblock of this node named.
    Unnamed,
    /// Those that one named, too, as far as the ring still holds them: a store may lose them.
    All,
}

/// Finds what only a node has of a volume, without opening it. What was put and is named by no
/// superblock counts as not stored: whoever takes the volume does not see it, and the next session
/// removes it. Nothing of the map itself is needed, so that it may be damaged, or lack a segment.
pub(crate) fn left_over(
    map_bytes: &[u8],
    wanted: Wanted,
    read: &mut dyn FnMut(u64, u64) -> Result<Vec<u8>, String>,
) -> Result<LeftOver, OpenError> {
    let known = meta::decode_around(map_bytes).map_err(OpenError::MapDamaged).and_then(known_of);
    let known = known.map_err(|error| earlier_or(error, map_bytes))?;
    let block_bytes = known.born.block_bytes;
    let ring = known.ring();
    let (start, block) = (known.start(), u64::from(block_bytes));
    let scanned = scan(&ring, start, block, read);
    let Scanned { mut batches, damaged, ends_at } = scanned.map_err(OpenError::Journal)?;
    let committed = known.committed.unwrap_or_default();
    let mut from = committed.journal_next;
    if wanted == Wanted::All {
        let head = batches.last().map_or(start.at, |batch| batch.at + batch.bytes);
        let before = scan_before(&ring, (start.at, start.seq), head, block, read);
        batches.splice(..0, before.map_err(OpenError::Journal)?);
        from = 0;
    }
    let overlay = overlay_of(&batches, from..);
    let times: BTreeMap<u64, Nanos> = batches.iter().map(|b| (b.seq, b.since)).collect();
    let damaged: BTreeSet<u64> = damaged.iter().filter_map(|entry| entry.at).collect();
    let is_damaged = |entry: &JournalEntry| entry.at.is_some_and(|at| damaged.contains(&at));
    let damaged_batches = batches.iter().filter(|batch| batch.entries.iter().any(is_damaged));
    let damaged_batches = damaged_batches.map(|batch| batch.seq).collect();
    let is_whole = |place: &LocalPlace| place.at.is_none_or(|at| !damaged.contains(&at));
    let left_of = |(blocks, place): (Range<u64>, LocalPlace)| {
        let payload = place
            .at
            .map(|at| (ring.device(at), u64::from(place.blocks), u64::from(place.skip), place.crc));
        Left { blocks, seq: place.seq, since: times[&place.seq], payload }
    };
    let (left, damaged): (Vec<_>, Vec<_>) = overlay.iter().partition(|(_, place)| is_whole(place));
    let unnamed = committed.number + 1..=known.map.number;
    Ok(LeftOver {
        volume: known.born.volume,
        block_bytes,
        number: committed.number,
        put: unnamed.filter_map(|number| known.map.name(number)).collect(),
        put_next: known.map.journal_next,
        end_next: batches.last().map_or(start.seq, |batch| batch.seq + 1),
        left: left.into_iter().map(left_of).collect(),
        damaged: damaged.into_iter().map(left_of).collect(),
        damaged_batches,
        taken: known.taken,
        damaged_at: ends_at,
    })
}
