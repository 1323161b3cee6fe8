//! What a volume may hold: every cell's versions, which were acknowledged, which must be durable.
//!
//! How: each cell of 512 bytes has the list of its versions, the oldest that a power cut may leave
//! and the latest acknowledged one. A version's bytes name version, volume and cell, so that
//! misplaced or mixed bytes are noticed. Overlapping changes never race (the world sees to it),
//! since they have no defined order; reads may see what is in flight.
//! Of a volume in the cloud the whole history is kept, since its store may be older than all that
//! its node has: a prefix of the history, so that one moment explains all cells ([`History`]).
//! Invariant: `durable <= latest < versions.len()`.
//! Cost: a few words per cell and version. Not for: what a device may do; that is the plan's.

use layby_types::{Call, Operation};
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of a cell: what a disk tears.
pub(crate) const CELL: u64 = 512;
/// The version of a cell that was never written, trimmed or zeroed.
pub(crate) const ZERO: u32 = 0;

/// What a request may see, or vouches for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// Read and block status: what each cell may hold.
    seen: Vec<BTreeSet<u32>>,
    /// Change or flush: the version of each cell that the end of the request vouches for.
    vouched: Vec<usize>,
    /// Flush: what it has to find ended.
    born: u32,
}

/// How closely bytes are held to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rigour {
    /// One of the allowed versions.
    Exact,
    /// After a power cut on disks that lied: any version that the cell ever had, never a mixture.
    AnyOwn,
}

/// A version and its place in the order in which changes were asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    value: u32,
    born: u32,
}

struct Cell {
    versions: Vec<Version>,
    durable: usize,
    latest: usize,
    /// Changes that failed and could not be seen: a power cut may bring them to light, as with any
    /// disk, until something newer is durable or a flush ends well.
    ghosts: Vec<Version>,
    /// Power was cut since the cell was looked at.
    is_exposed: bool,
    /// When the last zeroing of it was asked for.
    zeroed: u32,
}

struct Volume {
    cells: Vec<Cell>,
    /// An acknowledged change is durable.
    is_durable: bool,
    /// Where the volume is in the cloud.
    history: Option<History>,
}

/// See the file's header.
pub(crate) struct Oracle {
    volumes: Vec<Volume>,
    next: u32,
    has_ghosts: bool,
    /// The last version asked for before the last power cut.
    crashed_at: u32,
}

/// The cells of a call.
pub(crate) fn cells(call: &Call) -> Range<usize> {
    (call.offset / CELL) as usize..((call.offset + call.length) / CELL) as usize
}

/// Whether two calls have a cell in common.
pub(crate) fn overlap(a: &Call, b: &Call) -> bool {
    cells(a).start < cells(b).end && cells(b).start < cells(a).end
}

/// Whether an operation changes bytes.
pub(crate) fn changes(operation: Operation) -> bool {
    matches!(operation, Operation::Write | Operation::Trim | Operation::WriteZeroes)
}

fn word(version: u32, volume: usize, at: usize) -> u64 {
    if version == ZERO { 0 } else { u64::from(version) << 32 | (volume as u64) << 24 | at as u64 }
}

/// The bytes of a version of a range of cells.
pub(crate) fn encode(version: u32, volume: usize, range: Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; range.len() * CELL as usize];
    for (cell, at) in bytes.chunks_exact_mut(CELL as usize).zip(range) {
        let word = word(version, volume, at).to_le_bytes();
        cell.as_chunks_mut().0.fill(word);
    }
    bytes
}

/// The version of a cell's bytes, or a sentence about what else they are.
fn decode(bytes: &[u8], volume: usize, at: usize) -> Result<u32, String> {
    let first = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let version = (first >> 32) as u32;
    if first != word(version, volume, at) {
        return Err(format!("bytes of volume {} cell {}", first >> 24 & 0xff, first & 0xff_ffff));
    }
    match bytes.chunks_exact(8).all(|word| word == &bytes[..8]) {
        true => Ok(version),
        false => Err("a mixture of versions".to_owned()),
    }
}

impl Oracle {
    /// Volumes of so many bytes; each says whether its acknowledged changes are durable, and
    /// whether it is in the cloud.
    pub(crate) fn new(volumes: impl Iterator<Item = (u64, bool, bool)>) -> Oracle {
        let never = Version { value: ZERO, born: 0 };
        let cell = || Cell {
            versions: vec![never],
            durable: 0,
            latest: 0,
            ghosts: Vec::new(),
            is_exposed: false,
            zeroed: 0,
        };
        let volume = |(bytes, is_durable, is_far): (u64, _, bool)| Volume {
            cells: (0..bytes / CELL).map(|_| cell()).collect(),
            is_durable,
            history: is_far.then(|| History::new((bytes / CELL) as usize)),
        };
        Oracle {
            volumes: volumes.map(volume).collect(),
            next: ZERO,
            has_ghosts: false,
            crashed_at: 0,
        }
    }

    /// A version for the next write.
    pub(crate) fn version(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// The last number given: what was acknowledged up to now is older than what comes.
    pub(crate) fn stamp(&self) -> u32 {
        self.next
    }

    /// A failed change may come to light after a power cut: see [`Cell::ghosts`].
    pub(crate) fn expect_ghosts(&mut self) {
        self.has_ghosts = true;
    }

    /// Takes note of a request's start; `version` is what a change leaves behind.
    pub(crate) fn begin(&mut self, volume: usize, call: &Call, version: u32) -> Expected {
        let born = self.version();
        let Volume { cells: cells_of, history, .. } = &mut self.volumes[volume];
        if let Some(history) = history.as_mut().filter(|_| changes(call.operation)) {
            history.begin(cells(call), Version { value: version, born });
        }
        if call.operation == Operation::Flush {
            let vouched = cells_of.iter().map(|cell| cell.latest).collect();
            return Expected { vouched, born, ..Expected::default() };
        }
        let cells_of = &mut cells_of[cells(call)];
        if !changes(call.operation) {
            let visible = |cell: &Cell| cell.visible().collect();
            let seen = cells_of.iter().map(visible).collect();
            return Expected { seen, ..Expected::default() };
        }
        let vouch = |cell: &mut Cell| {
            cell.versions.push(Version { value: version, born });
            if version == ZERO {
                cell.zeroed = born;
            }
            cell.versions.len() - 1
        };
        Expected { vouched: cells_of.iter_mut().map(vouch).collect(), ..Expected::default() }
    }

    /// A read in flight may see a change that started meanwhile.
    pub(crate) fn show(reader: &mut Expected, read: &Call, change: &Call, version: u32) {
        let mine = cells(read);
        for at in cells(change).filter(|at| mine.contains(at)) {
            if let Some(seen) = reader.seen.get_mut(at - mine.start) {
                seen.insert(version);
            }
        }
    }

    /// Takes note of a success.
    pub(crate) fn acknowledge(&mut self, volume: usize, call: &Call, expected: &Expected) {
        // A number of its own: what was looked at before had not been acknowledged.
        let now = self.version();
        let Volume { cells: all, is_durable, history } = &mut self.volumes[volume];
        if call.operation == Operation::Flush {
            for (cell, version) in all.iter_mut().zip(&expected.vouched) {
                cell.durable = cell.durable.max(*version);
                // What was seen since they failed is durable now, but for a power cut since.
                let is_exposed = cell.is_exposed;
                cell.ghosts.retain(|ghost| is_exposed || ghost.born > expected.born);
            }
        } else if changes(call.operation) {
            for (at, version) in cells(call).zip(&expected.vouched) {
                let cell = &mut all[at];
                // The zeroing of a shrink may be known to have ended before a change that it
                // waited for.
                cell.latest = cell.latest.max(*version);
                if let Some(history) = history {
                    history.acknowledge(at, cell.versions[*version].born, now);
                }
                if call.flags.fua || *is_durable {
                    cell.durable = cell.durable.max(*version);
                }
            }
        }
    }

    /// Holds the bytes of a read against what it may see.
    pub(crate) fn check_read(
        volume: usize,
        call: &Call,
        expected: &Expected,
        data: &[u8],
        rigour: Rigour,
    ) -> Result<(), String> {
        for ((at, allowed), bytes) in
            cells(call).zip(&expected.seen).zip(data.chunks_exact(CELL as usize))
        {
            let found = decode(bytes, volume, at).map_err(|what| place(volume, at, &what))?;
            if rigour == Rigour::Exact && !allowed.contains(&found) {
                return Err(place(volume, at, &format!("{found}, expected one of {allowed:?}")));
            }
        }
        Ok(())
    }

    /// A hole never covers a cell that cannot be zero.
    pub(crate) fn check_hole(
        volume: usize,
        call: &Call,
        expected: &Expected,
        hole: Range<u64>,
    ) -> Result<(), String> {
        let first = cells(call).start;
        for at in hole.start / CELL..hole.end.div_ceil(CELL) {
            let allowed = &expected.seen[at as usize];
            if !allowed.contains(&ZERO) {
                let what = format!("a hole, but holds one of {allowed:?}");
                return Err(place(volume, first + at as usize, &what));
            }
        }
        Ok(())
    }

    /// A whole volume was read (`None` for cells that could not be) while nothing was in flight:
    /// what was seen is what it holds from now on. `crashed` says that power was lost before.
    pub(crate) fn settle(
        &mut self,
        volume: usize,
        data: &[Option<&[u8]>],
        rigour: Rigour,
    ) -> Result<(), String> {
        // A number of its own: what was stored before is not what was only seen now.
        let now = self.version();
        let (has_ghosts, crashed_at) = (self.has_ghosts, self.crashed_at);
        let Volume { cells, history, .. } = &mut self.volumes[volume];
        if history.as_ref().is_some_and(|history| history.restored_from.is_some()) {
            return self.settle_restored(volume, data, rigour);
        }
        for (at, (cell, bytes)) in cells.iter_mut().zip(data).enumerate() {
            let Some(bytes) = bytes else { continue };
            let found = decode(bytes, volume, at).map_err(|what| place(volume, at, &what))?;
            if cell.settle_at(found, crashed_at, has_ghosts) {
                if let Some(history) = history.as_mut().filter(|_| !has_ghosts) {
                    history.settle_at(at, cell.versions[cell.latest].born, now);
                }
                continue;
            }
            if rigour == Rigour::Exact {
                let allowed: Vec<u32> = cell.allowed().map(|v| v.value).collect();
                return Err(place(volume, at, &format!("{found}, allowed {allowed:?}")));
            }
            cell.rest_at(Version { value: found, born: cell.versions[0].born });
        }
        Ok(())
    }

    /// The newest version of each cell of a volume that was acknowledged.
    pub(crate) fn acknowledged(&self, volume: usize) -> Vec<Version> {
        let cells = self.volumes[volume].cells.iter();
        cells.map(|cell| cell.versions[cell.latest]).collect()
    }

    /// Holds the bytes of a backing store against what was acknowledged when a drain began, which
    /// has ended well: each cell has that or something newer, and versions have their numbers in
    /// the order in which they were asked for. Discards may wait: cells that were zero then, or
    /// were to be zeroed since, are left out.
    pub(crate) fn check_drained(
        &self,
        volume: usize,
        acknowledged: &[Version],
        data: &[Option<&[u8]>],
    ) -> Result<(), String> {
        let cells = self.volumes[volume].cells.iter().zip(acknowledged).zip(data);
        for (at, ((cell, version), bytes)) in cells.enumerate() {
            let is_zeroed = version.value == ZERO || cell.zeroed > version.born;
            let Some(bytes) = bytes.filter(|_| !is_zeroed) else { continue };
            let found = decode(bytes, volume, at).map_err(|what| place(volume, at, &what))?;
            if found < version.value {
                let what = format!("{found}, older than {}", version.value);
                return Err(place(volume, at, &what));
            }
        }
        Ok(())
    }

    /// Holds the bytes of a whole volume at rest against what it may hold, without settling on it.
    pub(crate) fn check_at_rest(
        &self,
        volume: usize,
        data: &[Option<&[u8]>],
    ) -> Result<(), String> {
        for (at, (cell, bytes)) in self.volumes[volume].cells.iter().zip(data).enumerate() {
            let Some(bytes) = bytes else { continue };
            let found = decode(bytes, volume, at).map_err(|what| place(volume, at, &what))?;
            let allowed: Vec<u32> = cell.allowed().map(|version| version.value).collect();
            if !allowed.contains(&found) {
                return Err(place(volume, at, &format!("{found}, allowed {allowed:?}")));
            }
        }
        Ok(())
    }

    /// What can no longer be seen is forgotten: a crash ends whatever was in flight.
    pub(crate) fn crash(&mut self) {
        self.crashed_at = self.next;
        for Volume { cells, history, .. } in &mut self.volumes {
            for (at, cell) in cells.iter_mut().enumerate() {
                cell.latest = cell.durable;
                cell.is_exposed = true;
                // What is in the store does not change with the node's power.
                if let Some(history) = history.as_mut().filter(|it| it.restored_from.is_none()) {
                    history.crash_at(at, cell.versions[cell.durable].born);
                }
            }
        }
    }

    /// The node's disks are gone: a volume is what the store has of it, at least all that was
    /// acknowledged up to `stored`, and zeros where it was in no store.
    pub(crate) fn destroy(&mut self, volume: usize, stored: u32) {
        let Volume { cells, history, .. } = &mut self.volumes[volume];
        match history {
            Some(history) => history.restored_from = Some(stored),
            None => {
                let never = Version { value: ZERO, born: 0 };
                cells.iter_mut().for_each(|cell| cell.rest_at(never));
                cells.iter_mut().for_each(|cell| cell.is_exposed = false);
            }
        }
    }

    /// What a store alone has is what the volume was at one moment, with all that was acknowledged
    /// up to `stored`.
    pub(crate) fn check_restored(
        &self,
        volume: usize,
        data: &[Option<&[u8]>],
        stored: u32,
    ) -> Result<(), String> {
        let history = self.volumes[volume].history.as_ref().expect("it is in the cloud");
        // A second look at what was restored begins where the first one did.
        let stored = history.restored_from.unwrap_or(stored);
        history.explain(volume, data, stored)
    }

    /// What was restored is what the volume is from now on.
    fn settle_restored(
        &mut self,
        volume: usize,
        data: &[Option<&[u8]>],
        rigour: Rigour,
    ) -> Result<(), String> {
        let Volume { cells, history, .. } = &mut self.volumes[volume];
        let history = history.as_mut().expect("it is in the cloud");
        if rigour == Rigour::Exact {
            history.explain(volume, data, history.restored_from.unwrap_or(0))?;
        }
        let mut is_whole = true;
        for (at, (cell, bytes)) in cells.iter_mut().zip(data).enumerate() {
            let Some(bytes) = bytes else {
                is_whole = false;
                continue;
            };
            let value = decode(bytes, volume, at).map_err(|what| place(volume, at, &what))?;
            cell.rest_at(Version { value, born: 0 });
            cell.is_exposed = false;
            history.cells[at] = vec![Change { value, born: 0, done: 0 }];
        }
        // Cells that could not be read are looked at again.
        history.restored_from = history.restored_from.filter(|_| !is_whole);
        Ok(())
    }

    /// Everything acknowledged is durable: the node stopped in order.
    pub(crate) fn stopped(&mut self) {
        for cell in self.volumes.iter_mut().flat_map(|volume| &mut volume.cells) {
            cell.durable = cell.latest;
        }
    }
}

impl Cell {
    /// What a read may see.
    fn visible(&self) -> impl Iterator<Item = u32> {
        let ghosts = self.ghosts.iter().filter(|_| self.is_exposed);
        ghosts.chain(&self.versions[self.latest..]).map(|version| version.value)
    }

    /// What the cell may hold at rest, newest last.
    fn allowed(&self) -> impl DoubleEndedIterator<Item = Version> {
        let oldest = if self.is_exposed { self.durable } else { self.latest };
        let durable = self.versions[self.durable].born;
        let is_possible = move |ghost: &&Version| self.is_exposed && ghost.born > durable;
        let ghosts = self.ghosts.iter().filter(is_possible);
        ghosts.chain(&self.versions[oldest..]).copied()
    }

    /// This is the only version.
    fn rest_at(&mut self, version: Version) {
        self.versions = vec![version];
        self.ghosts.clear();
        (self.durable, self.latest) = (0, 0);
    }

    /// A version was seen at rest, so older and newer ones are gone; false where it is not allowed.
    /// `crashed_at` is the last version before the last power cut.
    fn settle_at(&mut self, found: u32, crashed_at: u32, has_ghosts: bool) -> bool {
        let crashed_at = self.is_exposed.then_some(crashed_at);
        let mut allowed = self.allowed();
        let Some(version) = allowed.rfind(|version| version.value == found) else {
            return false;
        };
        drop(allowed);
        self.is_exposed = false;
        if crashed_at.is_some_and(|at| version.born <= at) {
            // What a restart has found stays, until what failed since comes to light.
            let since = crashed_at.unwrap_or_default();
            let failed = self.versions.iter().filter(|other| has_ghosts && other.born > since);
            let failed: Vec<Version> = failed.copied().collect();
            self.rest_at(version);
            self.ghosts = failed;
            return true;
        }
        let index = self.versions.iter().rposition(|other| other.born == version.born);
        let mut index = index.expect("ghosts are older than the power cut");
        if has_ghosts {
            // Zeros look alike: those seen may be of before a write and a trim that both failed,
            // either of which may still come to light.
            let is_since = |other: &Version| crashed_at.is_none_or(|at| other.born > at);
            let mut alike = (self.latest..index).filter(|at| self.versions[*at].value == found);
            index = alike.find(|at| is_since(&self.versions[*at])).unwrap_or(index);
        }
        let unseen = self.versions.split_off(index + 1);
        if has_ghosts {
            self.ghosts.extend(unseen);
        }
        self.versions.drain(..self.durable);
        (self.durable, self.latest) = (0, index - self.durable);
        true
    }
}

/// A change of a cell, and when it was.
#[derive(Clone, Copy, Debug)]
struct Change {
    value: u32,
    /// When it was asked for.
    born: u32,
    /// When it was acknowledged; never, where it may be left out.
    done: u32,
}

const NEVER: u32 = u32::MAX;

/// All changes of a volume, by cell and in order: what its store holds is all of them up to some
/// moment, those under way then perhaps.
struct History {
    cells: Vec<Vec<Change>>,
    /// Its disks were destroyed, and it has not been looked at since: it is no older than this.
    restored_from: Option<u32>,
}

impl History {
    fn new(cells: usize) -> History {
        let never = Change { value: ZERO, born: 0, done: 0 };
        History { cells: vec![vec![never]; cells], restored_from: None }
    }

    fn begin(&mut self, cells: Range<usize>, version: Version) {
        let Version { value, born } = version;
        for cell in &mut self.cells[cells] {
            cell.push(Change { value, born, done: NEVER });
        }
    }

    fn acknowledge(&mut self, at: usize, born: u32, now: u32) {
        let change = self.cells[at].iter_mut().rev().find(|change| change.born == born);
        change.into_iter().for_each(|change| change.done = change.done.min(now));
    }

    /// A power cut may have taken what is newer than the durable change.
    fn crash_at(&mut self, at: usize, durable: u32) {
        let lost = self.cells[at].iter_mut().filter(|change| change.born > durable);
        lost.for_each(|change| change.done = NEVER);
    }

    /// This change was seen at rest: newer ones never happened, and it stays.
    fn settle_at(&mut self, at: usize, born: u32, now: u32) {
        self.cells[at].retain(|change| change.born <= born);
        self.acknowledge(at, born, now);
    }

    /// When a cell may have been seen like this, as runs of moments: from a change's beginning to
    /// the end of the next one that has one.
    fn moments(&self, at: usize, value: u32) -> Vec<(u32, u32)> {
        let (mut runs, mut end) = (Vec::<(u32, u32)>::new(), NEVER);
        for change in self.cells[at].iter().rev() {
            if change.value == value && change.born < end {
                match runs.last_mut() {
                    Some((from, _)) if *from <= end => *from = change.born,
                    _ => runs.push((change.born, end)),
                }
            }
            end = end.min(change.done);
        }
        runs
    }

    /// One moment, not before `from`, explains all cells.
    fn explain(&self, volume: usize, data: &[Option<&[u8]>], from: u32) -> Result<(), String> {
        let mut moments = vec![(from, NEVER)];
        for (at, bytes) in data.iter().enumerate() {
            let Some(bytes) = bytes else { continue };
            let found = decode(bytes, volume, at).map_err(|what| place(volume, at, &what))?;
            let own = self.moments(at, found);
            let both = |(from, to): &(u32, u32)| {
                let (from, to) = (*from, *to);
                let cut = own.iter().map(move |own| (own.0.max(from), own.1.min(to)));
                cut.filter(|(from, to)| from < to).collect::<Vec<_>>()
            };
            let left: Vec<(u32, u32)> = moments.iter().flat_map(both).collect();
            if left.is_empty() {
                let what = format!(
                    "{found} from the store, which it was in {own:?}; the cells before it were so \
                     in {moments:?}, and what is stored reaches to {from}"
                );
                return Err(place(volume, at, &what));
            }
            moments = left;
        }
        Ok(())
    }
}

fn place(volume: usize, at: usize, what: &str) -> String {
    let block = at as u64 * CELL / 4096;
    format!("volume {volume} cell {at} (block {block}) reads {what}")
}
