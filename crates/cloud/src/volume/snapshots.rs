//! Snapshots of a volume that is served: made behind all that was acknowledged, marked, dropped.
//!
//! How: a snapshot waits until the store has what the journal held when it was asked for, and the
//! cut of segments ends just there. Then the map goes into an object, and the next superblock names
//! it. A drop is a superblock that names it no more.
//! Invariant: the superblock alone says which snapshots there are, so a node that was fenced makes
//! and drops none; from the moment its map is taken a snapshot keeps its segments.
//! Cost: the map is encoded on the volume's thread; a pass over the segments where their sums are
//! asked for while there are snapshots.

use super::{Flight, Volume};
use crate::action::{Condition, Request};
use crate::clone::has_room;
use crate::map::{SegmentState, Totals};
use crate::snapshot::{
    CHANGES_MAX, CloneMark, SNAPSHOTS_MAX, Snapshot, SnapshotChange, SnapshotError, SnapshotId,
    is_pinned, is_snapshot_name,
};
use crate::superblock::Superblock;
use std::collections::VecDeque;
use std::ops::DerefMut;

#[derive(PartialEq)]
enum Stage {
    /// The store lacks batches of the journal before this one.
    Waiting { journal_next: u64 },
    /// Its object is on its way.
    Putting(Snapshot),
    /// It is to be named.
    Stored(Snapshot),
    /// It is to be named no more.
    Dropping,
    /// A clone is to be marked at it.
    Marking(SnapshotId, CloneMark),
    /// The clone at this place is to be marked no more.
    Unmarking(String),
}

struct Change {
    id: u64,
    name: String,
    size_bytes: u64,
    created_unix: u64,
    stage: Stage,
    /// The marks of all callers that wait for its end.
    waiters: Vec<u64>,
}

impl Change {
    fn is_mark(&self) -> bool {
        matches!(self.stage, Stage::Marking(..) | Stage::Unmarking(_))
    }

    /// The clone's place, where its mark is changed.
    fn clone_url(&self) -> Option<&str> {
        match &self.stage {
            Stage::Marking(_, mark) => Some(&mark.url),
            Stage::Unmarking(url) => Some(url),
            _ => None,
        }
    }
}

/// Snapshots that are being made and dropped.
#[derive(Default)]
pub(super) struct Snapshots {
    changes: Vec<Change>,
    ends: VecDeque<(u64, Result<(), SnapshotError>)>,
    /// The serial of the next one.
    serial_next: u32,
    /// Counts what changes which segments are kept.
    pub(super) revision: u64,
}

impl Snapshots {
    /// Adds a change. Equal changes of a mark are one, whose end all callers get; a change of the
    /// same mark that was given up goes, since it would undo this one later.
    fn push(&mut self, change: Change) {
        let is_same = |other: &&mut Change| {
            change.is_mark() && other.name == change.name && other.stage == change.stage
        };
        if let Some(same) = self.changes.iter_mut().find(is_same) {
            return same.waiters.extend(change.waiters);
        }
        let url = change.clone_url();
        let is_undone =
            |other: &Change| url.is_some() && other.clone_url() == url && other.name == change.name;
        self.changes.retain(|other| !other.waiters.is_empty() || !is_undone(other));
        self.changes.push(change);
    }

    /// Whether as many wait as may: changes, or callers for one.
    fn is_full(&self) -> bool {
        let waiting = self.changes.iter().map(|change| change.waiters.len().max(1));
        waiting.sum::<usize>() >= CHANGES_MAX
    }

    fn end(&mut self, change: &Change, result: &Result<(), SnapshotError>) {
        self.ends.extend(change.waiters.iter().map(|id| (*id, result.clone())));
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// Makes or drops a snapshot under the caller's mark; its end comes out of
    /// [`Volume::poll_snapshots`].
    pub fn change_snapshots(&mut self, id: u64, change: SnapshotChange) {
        let (name, created_unix, stage) = match change {
            SnapshotChange::Make { name, now_unix } => {
                let journal_next = self.write.written_next;
                (name, now_unix, Stage::Waiting { journal_next })
            }
            SnapshotChange::Drop { name } => (name, 0, Stage::Dropping),
            SnapshotChange::Mark { snapshot, clone } => {
                (snapshot.name.clone(), 0, Stage::Marking(snapshot, clone))
            }
            SnapshotChange::Unmark { name, url } => (name, 0, Stage::Unmarking(url)),
        };
        let size_bytes = self.plan.size_bytes;
        let change = Change { id, name, size_bytes, created_unix, stage, waiters: vec![id] };
        match self.refuse_change(&change) {
            Some(error) => self.snapshots.end(&change, &Err(error)),
            None => self.snapshots.push(change),
        }
        self.step();
    }

    /// Nobody waits for a change any more: a snapshot of which nothing is on its way yet is not
    /// made. What has begun goes on, since it may be done already.
    pub fn withdraw_snapshot(&mut self, id: u64) {
        let waits = |change: &Change| matches!(change.stage, Stage::Waiting { .. });
        self.snapshots.changes.retain(|change| change.id != id || !waits(change));
        for change in self.snapshots.changes.iter_mut().filter(|change| change.is_mark()) {
            change.waiters.retain(|waiter| *waiter != id);
        }
        self.step();
    }

    /// Takes the end of one change, if there is one.
    pub fn poll_snapshots(&mut self) -> Option<(u64, Result<(), SnapshotError>)> {
        self.snapshots.ends.pop_front()
    }

    /// The volume's snapshots, oldest first; none where the store has not said yet.
    #[must_use]
    pub fn snapshots(&self) -> Option<&[Snapshot]> {
        self.session.current().map(|block| &block.snapshots[..])
    }

    fn refuse_change(&self, change: &Change) -> Option<SnapshotError> {
        if self.is_stopping {
            return Some(SnapshotError::Closed);
        }
        if let Some(why) = self.session.lost() {
            return Some(SnapshotError::Lost(why.to_owned()));
        }
        if self.write.is_lost {
            return Some(SnapshotError::Lost("the volume's journal failed".to_owned()));
        }
        if !is_snapshot_name(&change.name) {
            return Some(SnapshotError::Name);
        }
        if let Stage::Marking(id, _) = &change.stage
            && id.volume != self.plan.volume
        {
            return Some(SnapshotError::Absent);
        }
        if self.snapshots.is_full() {
            return Some(SnapshotError::Pending);
        }
        if !change.is_mark() && self.snapshots.changes.iter().any(|other| other.name == change.name)
        {
            return Some(SnapshotError::Exists);
        }
        self.refuse_early(change)
    }

    /// The same before anything was asked of the store. Clones come and go by other nodes' hands,
    /// so what is known of them counts only when a replacement of the superblock went through.
    fn refuse_early(&self, change: &Change) -> Option<SnapshotError> {
        let is_settled = |error: &SnapshotError| {
            !matches!(error, SnapshotError::HasClones(_) | SnapshotError::ClonesFull)
        };
        self.refuse_by_store(change).filter(is_settled)
    }

    /// What the superblock says against a change, once it is known.
    fn refuse_by_store(&self, change: &Change) -> Option<SnapshotError> {
        let named = self.snapshots()?;
        let found = named.iter().find(|snapshot| snapshot.name == change.name);
        match (&change.stage, found) {
            (Stage::Dropping, Some(snapshot)) => snapshot.refuse_drop(),
            // A snapshot that has the name by now does not keep what the clone rests on.
            (Stage::Marking(id, _), Some(snapshot)) if !id.is(snapshot) => {
                Some(SnapshotError::Absent)
            }
            (Stage::Marking(_, mark), Some(snapshot)) => {
                (!has_room(snapshot, mark)).then_some(SnapshotError::ClonesFull)
            }
            (Stage::Unmarking(_), _) => None,
            (Stage::Dropping | Stage::Marking(..), None) => Some(SnapshotError::Absent),
            (_, Some(_)) => Some(SnapshotError::Exists),
            (_, None) => (named.len() >= SNAPSHOTS_MAX).then_some(SnapshotError::Full),
        }
    }

    /// Ends changes that cannot be made; all of them where nothing can be any more.
    pub(super) fn fail_snapshots(&mut self) {
        self.snapshots.revision += 1;
        for change in std::mem::take(&mut self.snapshots.changes) {
            let lost = self.session.lost().map(|why| SnapshotError::Lost(why.to_owned()));
            let failed = SnapshotError::Lost("the volume's journal failed".to_owned());
            let journal = self.write.is_lost.then_some(failed);
            let error = lost.or(journal).unwrap_or(SnapshotError::Closed);
            self.snapshots.end(&change, &Err(error));
        }
    }

    /// Where the next segment must end, so that a snapshot holds nothing newer.
    pub(super) fn snapshot_boundary(&self) -> Option<u64> {
        let waiting = self.snapshots.changes.iter().filter_map(|change| match change.stage {
            Stage::Waiting { journal_next } => Some(journal_next),
            _ => None,
        });
        waiting.filter(|next| *next > self.upload.cut_next).min()
    }

    /// Whether the map has all that the journal has before a batch.
    fn is_in_map(&self, journal_next: u64) -> bool {
        let lacks = |seq: u64| seq >= self.map.journal_next && seq < journal_next;
        !self.journal.batches.iter().any(|batch| lacks(batch.seq) && !batch.entries.is_empty())
    }

    /// Takes the map for snapshots that waited for this segment; called after each.
    pub(super) fn take_snapshots(&mut self) {
        if !self.session.is_open() || self.is_stopping {
            return;
        }
        for at in 0..self.snapshots.changes.len() {
            let change = &self.snapshots.changes[at];
            if let Stage::Waiting { journal_next } = change.stage
                && self.is_in_map(journal_next)
                && self.refuse_by_store(change).is_none()
            {
                self.take_snapshot(at);
            }
        }
        self.refuse_late();
    }

    fn take_snapshot(&mut self, at: usize) {
        let serial = self.snapshots.serial_next;
        self.snapshots.serial_next += 1;
        self.snapshots.revision += 1;
        let change = &mut self.snapshots.changes[at];
        let snapshot = Snapshot {
            name: change.name.clone(),
            number: self.map.number,
            epoch: self.session.epoch(),
            serial,
            size_bytes: change.size_bytes,
            created_unix: change.created_unix,
            clones: Vec::new(),
        };
        let (id, key, size_bytes) = (change.id, snapshot.key(), snapshot.size_bytes);
        change.stage = Stage::Putting(snapshot);
        let bytes = self.map_of(size_bytes).encode_live().into();
        let request = Request::Put { key, bytes, condition: Condition::Create };
        self.ask(request, Flight::SnapshotPut { id });
    }

    /// Changes that were asked for before the store had said what there is.
    fn refuse_late(&mut self) {
        let is_early = |change: &&Change| match change.stage {
            Stage::Waiting { .. } => true,
            // While a superblock is under way, it may have been done.
            Stage::Dropping | Stage::Marking(..) => !self.session.is_proposing(),
            _ => false,
        };
        let early = self.snapshots.changes.iter().filter(is_early);
        let refused = early.filter_map(|change| Some((change.id, self.refuse_early(change)?)));
        let refused: Vec<(u64, SnapshotError)> = refused.collect();
        for (id, error) in refused {
            let at = self.snapshots.changes.iter().position(|change| change.id == id);
            let change = self.snapshots.changes.remove(at.expect("it was just found"));
            self.snapshots.end(&change, &Err(error));
        }
    }

    pub(super) fn on_snapshot_put(&mut self, id: u64) {
        let change = self.snapshots.changes.iter_mut().find(|change| change.id == id);
        if let Some(Change { stage, .. }) = change
            && let Stage::Putting(snapshot) = stage
        {
            *stage = Stage::Stored(snapshot.clone());
        }
    }

    /// Whether the superblock should change for the snapshots' sake.
    pub(super) fn has_snapshot_news(&self) -> bool {
        self.snapshots.changes.iter().any(|change| match &change.stage {
            Stage::Stored(snapshot) => snapshot.number <= self.upload.recorded,
            Stage::Dropping | Stage::Marking(..) | Stage::Unmarking(_) => true,
            _ => false,
        })
    }

    /// What the next superblock says of snapshots; its `committed` is settled.
    pub(super) fn propose_snapshots(&self, block: &mut Superblock) {
        if !self.session.is_open() {
            return;
        }
        for change in &self.snapshots.changes {
            match &change.stage {
                Stage::Stored(snapshot) if snapshot.number <= block.committed => {
                    let is_named = block.snapshots.iter().any(|other| other.name == snapshot.name);
                    if !is_named && block.snapshots.len() < SNAPSHOTS_MAX {
                        block.snapshots.push(snapshot.clone());
                    }
                }
                Stage::Dropping => block
                    .snapshots
                    .retain(|other| other.name != change.name || other.refuse_drop().is_some()),
                Stage::Marking(id, mark) => {
                    let at = block.snapshots.iter_mut().filter(|snapshot| id.is(snapshot));
                    at.for_each(|snapshot| snapshot.mark(mark));
                }
                Stage::Unmarking(url) => named(block, &change.name).for_each(|s| s.unmark(url)),
                _ => {}
            }
        }
    }

    /// The store has a new superblock of this session: changes that it makes have ended. `before`
    /// are the snapshots of the one before it.
    pub(super) fn settle_snapshots(&mut self, before: &[Snapshot]) {
        self.snapshots.revision += 1;
        let Some(block) = self.session.current().filter(|_| self.session.is_open()) else { return };
        let now = block.snapshots.clone();
        for change in std::mem::take(&mut self.snapshots.changes) {
            match self.end_of(&change, &now) {
                Some(result) => self.snapshots.end(&change, &result),
                None => self.snapshots.changes.push(change),
            }
        }
        let dropped = before.iter().filter(|snapshot| !is_among(snapshot, &now));
        self.remove(dropped.map(Snapshot::key));
    }

    /// How a change has ended where the superblock has these snapshots; none where it goes on.
    fn end_of(&self, change: &Change, now: &[Snapshot]) -> Option<Result<(), SnapshotError>> {
        let found = now.iter().find(|snapshot| snapshot.name == change.name);
        match &change.stage {
            Stage::Waiting { .. } | Stage::Putting(_) => None,
            stage if is_done(stage, found) => Some(Ok(())),
            // It was asked for while this superblock was under way, or it cannot be.
            _ => self.refuse_by_store(change).map(Err),
        }
    }

    /// The numbers of all snapshots, in order, those that are being made included.
    pub(super) fn pins(&self) -> Vec<u64> {
        let named = self.snapshots().unwrap_or_default().iter();
        let making = self.snapshots.changes.iter().filter_map(|change| match &change.stage {
            Stage::Putting(snapshot) | Stage::Stored(snapshot) => Some(snapshot),
            _ => None,
        });
        // What is under way may have been done already.
        let proposed = self.session.proposed().map(|block| &block.snapshots[..]);
        let all = named.chain(making).chain(proposed.unwrap_or_default());
        let mut pins: Vec<u64> = all.map(|snapshot| snapshot.number).collect();
        pins.sort_unstable();
        pins
    }

    /// Sums over the segments that cleaning could free, the live blocks of all: what a snapshot
    /// keeps is left out.
    pub(super) fn totals_to_free(&self, pins: &[u64]) -> Totals {
        let totals = self.map.totals();
        if pins.is_empty() && self.map.bases().is_empty() {
            return totals;
        }
        let is_kept = |number, state| self.is_kept(pins, number, state);
        let kept = self.map.segments().filter(|(number, state)| is_kept(*number, state));
        let kept_dead: u64 = kept.map(|(_, state)| state.blocks - state.live).sum();
        Totals { blocks: totals.blocks - kept_dead, ..totals }
    }

    /// Whether a segment of the map stays: for a snapshot's sake, or since it is a base's.
    pub(super) fn is_kept(&self, pins: &[u64], number: u64, state: &SegmentState) -> bool {
        let dead_since = (state.live == 0).then_some(state.dead_since);
        number <= self.map.base_through() || is_pinned(pins, number, dead_since)
    }
}

fn is_among(snapshot: &Snapshot, others: &[Snapshot]) -> bool {
    others.iter().any(|other| other.key() == snapshot.key())
}

fn named<'a>(block: &'a mut Superblock, name: &'a str) -> impl Iterator<Item = &'a mut Snapshot> {
    block.snapshots.iter_mut().filter(move |snapshot| snapshot.name == name)
}

/// Whether a change is made, where the superblock has this snapshot of its name.
fn is_done(stage: &Stage, now: Option<&Snapshot>) -> bool {
    match (stage, now) {
        (Stage::Stored(made), Some(snapshot)) => made.key() == snapshot.key(),
        (Stage::Marking(id, mark), Some(snapshot)) => {
            id.is(snapshot) && snapshot.clones.contains(mark)
        }
        (Stage::Unmarking(url), Some(snapshot)) => {
            snapshot.clones.iter().all(|clone| clone.url != *url)
        }
        (Stage::Dropping | Stage::Unmarking(_), None) => true,
        _ => false,
    }
}
