//! How far the volume has come: superblocks, checkpoints, and what the journal lets go.
//!
//! How: when segments are recorded, the superblock names them; when it does and the map file says
//! so, the journal's part of them is released and what they made useless is deleted. Now and then
//! the whole map goes into the store, so that a restore replays little, and into the map file.
//! Invariant: the journal lets go only of what the superblock vouches for, and the map file knows.
//! Cost: a superblock per interval while there is something new; checkpoints are at most an eighth
//! of what goes up, or what dead segments are worth.

use super::{Flight, Volume};
use crate::action::{Action, Condition, End, Request};
use crate::clone::CLONE_EPOCHS;
use crate::map::MapImage;
use crate::meta::{Born, Committed, Frame};
use crate::removal::{is_right_below, session_of, temporary_of};
use crate::segment::SegmentName;
use crate::snapshot::{SNAPSHOTS_PREFIX, epoch_of_key};
use crate::superblock::{Checkpointed, SUPERBLOCK_KEY, Superblock};
use layby_types::Nanos;
use layby_types::planted::{Plant, is_planted};
use std::ops::DerefMut;
use std::sync::Arc;

/// Bytes by which the map file may grow beyond its checkpoint.
const MAP_FILE_GROWTH: u64 = 4 << 20;
/// Bytes that go up between two checkpoints that nothing else asks for, per byte of the last.
const PUT_PER_CHECKPOINT: u64 = 8;
/// Deletions of segments under way at most.
const DELETES_MAX: usize = 8;

/// What the superblock is to say next, and what rests on it.
pub(super) struct Commits {
    last: Nanos,
    /// The last that the map file knows.
    pub(super) recorded: Committed,
    /// The last checkpoint that the store has.
    pub(super) checkpoint_stored: Option<Checkpointed>,
    checkpoint_under_way: Option<Checkpointed>,
    /// The map is being encoded for it.
    is_encoding: bool,
    /// Segments that the store deleted meanwhile.
    gone: Vec<u64>,
    /// Bytes of the last checkpoint of this life, and all that had been put with it.
    checkpoint_bytes: (u64, u64),
    born: Born,
    is_replacing: bool,
    /// The map file has segments that the map has not: the next claim replaces it.
    pub(super) map_went_back: bool,
    deleting: Vec<u64>,
    /// Checkpoints that newer ones replace.
    orphans: Vec<String>,
}

impl Commits {
    pub(super) fn new(born: Born, recorded: Committed) -> Self {
        Commits {
            last: Nanos::ZERO,
            recorded,
            checkpoint_stored: None,
            checkpoint_under_way: None,
            is_encoding: false,
            gone: Vec::new(),
            checkpoint_bytes: (0, 0),
            born,
            is_replacing: false,
            map_went_back: false,
            deleting: Vec::new(),
            orphans: Vec::new(),
        }
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    fn has_news(&self) -> bool {
        let checkpoint = self.session.current().and_then(|block| block.checkpoint);
        let stored = self.commit.checkpoint_stored;
        let has_checkpoint = stored.is_some_and(|new| {
            checkpoint.is_none_or(|old| old.number < new.number)
                && new.number <= self.upload.recorded
        });
        self.upload.recorded > self.session.committed()
            || has_checkpoint
            || self.has_snapshot_news()
            || self.has_size_news()
            || self.session.wants_commit
    }

    pub(super) fn commit_deadline(&self) -> Nanos {
        let is_waiting = self.session.is_open() && !self.session.is_proposing() && self.has_news();
        if is_waiting {
            self.commit.last.saturating_add(self.plan.limits.commit_interval)
        } else {
            Nanos::NEVER
        }
    }

    pub(super) fn commit_next(&mut self) {
        if !self.session.is_open() || self.session.is_proposing() || !self.has_news() {
            return;
        }
        let is_due = self.now >= self.commit_deadline();
        let is_idle = self.upload.count() == 0;
        let is_awaited = (self.is_draining && is_idle) || self.has_snapshot_news();
        if is_due || self.is_pressed() || is_awaited {
            self.commit.last = self.now;
            self.propose();
        }
    }

    /// The session behind this one has segments of this one that no superblock of it named: what
    /// they hold is not missing in the store. Their numbers end where that session's begin; what
    /// later sessions say is not looked at, since they do not say that.
    pub(super) fn note_adopted(&mut self, block: &Superblock) {
        let behind = block.epochs.iter().find(|start| start.epoch == self.session.epoch() + 1);
        let Some(adopted) = behind.map(|start| start.first.saturating_sub(1)) else { return };
        let marks = self.upload.marks.iter().copied();
        let under_way = self.upload.numbers_under_way();
        let adopted_next = marks.chain(under_way).filter(|(number, _)| *number <= adopted);
        let journal_next = adopted_next.map(|(_, next)| next).max().unwrap_or(0);
        if journal_next > self.commit.recorded.journal_next {
            let committed = self.committed(adopted.min(self.map.number), journal_next);
            self.commit.recorded = committed;
            self.act(
                Action::MapAppend(Frame::Committed(committed).encode()),
                Flight::TakenRecorded,
            );
            self.journal.release(journal_next);
        }
    }

    /// What the map file is to say where the store has segments up to `number`, and with them the
    /// journal before the batch `journal_next`.
    fn committed(&self, number: u64, journal_next: u64) -> Committed {
        let first = self.journal.batches.iter().find(|batch| batch.seq >= journal_next);
        let journal_at = first.map_or(self.journal.head, |batch| batch.at);
        let epoch = self.session.epoch();
        let journal_life = first.map_or(self.journal.ring.id.life, |batch| batch.life);
        let claims = self.commit.recorded.claims;
        Committed { epoch, number, journal_at, journal_next, journal_life, claims }
    }

    /// The superblock names all segments up to `number`.
    pub(super) fn on_committed(&mut self, number: u64) {
        let mut journal_next = self.commit.recorded.journal_next;
        while let Some((_, next)) = self.upload.marks.pop_front_if(|mark| mark.0 <= number) {
            journal_next = journal_next.max(next);
        }
        let committed = self.committed(number, journal_next);
        if committed == self.commit.recorded {
            return self.delete_dead(number);
        }
        self.commit.recorded = committed;
        let frame = Frame::Committed(committed).encode();
        self.upload.map_file_bytes += frame.len() as u64;
        let flight = Flight::CommitRecorded { number, journal_next };
        self.act(Action::MapAppend(frame), flight);
    }

    pub(super) fn on_commit_recorded(&mut self, number: u64, journal_next: u64, end: &End) {
        if matches!(end, End::Failed(_)) {
            return self.lose_journal(end);
        }
        self.journal.release(journal_next);
        self.delete_dead(number);
        self.replace_map_file();
    }

    /// Puts the whole map into the store where enough segments came since the last time.
    pub(super) fn checkpoint_next(&mut self) {
        let last = self.commit.checkpoint_stored.map_or(0, |checkpoint| checkpoint.number);
        let (bytes, put) = self.commit.checkpoint_bytes;
        let is_old = self.map.number >= last + u64::from(self.plan.limits.checkpoint_segments)
            && self.counters.bytes_put - put >= bytes * PUT_PER_CHECKPOINT;
        let is_for_cleaning = self.clean.wants_checkpoint && !self.is_removal_stuck();
        let is_wanted = is_old || (self.map.number > last && is_for_cleaning);
        if !is_wanted || !self.session.is_open() || self.commit.checkpoint_under_way.is_some() {
            return;
        }
        self.clean.wants_checkpoint = false;
        let checkpoint = Checkpointed { number: self.map.number, epoch: self.session.epoch() };
        self.commit.checkpoint_under_way = Some(checkpoint);
        self.commit.is_encoding = true;
        self.act(Action::EncodeMap(MapImage(self.map.clone())), Flight::CheckpointEncoded);
    }

    /// Whether a checkpoint would free nothing, and be one object more that stays: no further
    /// segment is removed before one of those is whose removals fail. The checkpoint stays pending.
    fn is_removal_stuck(&self) -> bool {
        self.gone.is_failing() && self.commit.deleting.len() >= DELETES_MAX
    }

    /// Whether the map must stay as it is.
    pub(super) fn is_encoding(&self) -> bool {
        self.commit.is_encoding
    }

    pub(super) fn on_checkpoint_encoded(&mut self, end: End) {
        self.commit.is_encoding = false;
        let End::Bytes(bytes, _) = end else { unreachable!("memory is encoded") };
        if let Some(checkpoint) = self.commit.checkpoint_under_way
            && self.session.is_open()
        {
            let (key, length) = (checkpoint.key(), bytes.len() as u64);
            let request = Request::Put { key, bytes, condition: Condition::Create };
            self.ask(request, Flight::CheckpointPut);
            self.commit.checkpoint_bytes = (length, self.counters.bytes_put);
        }
        for number in std::mem::take(&mut self.commit.gone) {
            self.on_deleted(number);
        }
        self.apply_stored();
    }

    pub(super) fn on_checkpoint_put(&mut self) {
        let stored = self.commit.checkpoint_under_way.take();
        let old = std::mem::replace(&mut self.commit.checkpoint_stored, stored);
        if let Some(old) = old {
            self.commit.orphans.push(old.key());
        }
    }

    /// Deletes segments that nothing needs: neither the committed map, nor a replay from the
    /// checkpoint that the superblock names, nor a snapshot.
    fn delete_dead(&mut self, committed: u64) {
        let checkpoint = self.session.current().and_then(|block| block.checkpoint);
        let Some(checkpoint) = checkpoint.filter(|_| self.session.is_open()) else { return };
        let pins = self.pins();
        let dead = self.map.segments().filter(|(number, state)| {
            let is_replayed = *number > checkpoint.number && !is_planted(Plant::DeletedEarly);
            let is_dead = state.live == 0 && state.dead_since <= committed;
            is_dead && !is_replayed && !self.is_kept(&pins, *number, state)
        });
        let dead: Vec<u64> =
            dead.map(|(number, _)| number).filter(|n| !self.commit.deleting.contains(n)).collect();
        let room = DELETES_MAX.saturating_sub(self.commit.deleting.len());
        for number in dead.into_iter().take(room) {
            let key = self.map.name(number).expect("it was just listed").key();
            self.commit.deleting.push(number);
            self.ask(Request::Delete { key }, Flight::Delete { number });
        }
        let current = checkpoint.key();
        let old = self.commit.orphans.extract_if(.., |key| *key < current);
        let old: Vec<String> = old.collect();
        self.remove(old);
    }

    pub(super) fn on_deleted(&mut self, number: u64) {
        self.gone.on_segment_removed();
        if self.is_encoding() {
            return self.commit.gone.push(number);
        }
        self.commit.deleting.retain(|other| *other != number);
        self.counters.segments_deleted += 1;
        Arc::make_mut(&mut self.map).remove_segment(number);
        self.delete_dead(self.commit.recorded.number);
    }

    /// Looks for objects that earlier sessions left behind.
    pub(super) fn sweep(&mut self) {
        let request = Request::List { prefix: String::new() };
        self.ask(request, Flight::Sweep);
    }

    pub(super) fn on_swept(&mut self, end: End) {
        let (End::Keys(keys), true) = (end, self.session.is_open()) else { return };
        let orphans: Vec<String> = keys.into_iter().filter(|key| self.is_orphan(key)).collect();
        self.remove(orphans);
    }

    /// Whether an object is an earlier session's that nothing names. Other volumes may lie below
    /// the same prefix, so that only keys that begin as this one's do are; and a later session's
    /// may be there already, if this one has been replaced and does not know.
    fn is_orphan(&self, key: &str) -> bool {
        let epoch = self.session.epoch();
        if let Some((of, number)) = temporary_of(key) {
            return self.is_cut_short(of, number);
        }
        match SegmentName::parse(key).filter(|name| name.key() == key) {
            Some(name) if name.epoch >= epoch => return false,
            Some(name) => return self.map.name(name.number) != Some(name),
            None => {}
        }
        if self.is_own_probe(key) {
            return true;
        }
        if is_right_below(key, SNAPSHOTS_PREFIX) {
            let is_old = epoch_of_key(key).is_some_and(|made| made < epoch);
            let mut named = self.snapshots().unwrap_or_default().iter();
            return is_old && named.all(|snapshot| snapshot.key() != key);
        }
        let named = self.session.current().and_then(|block| block.checkpoint);
        self.is_old_checkpoint(key) && named.is_none_or(|named| key != named.key())
    }

    /// Whether a key is of a checkpoint that no superblock will name from now on: an earlier
    /// session's, or that of a clone that was to begin here, since there is a superblock. The one
    /// that is named may be such.
    fn is_old_checkpoint(&self, key: &str) -> bool {
        let epoch = Checkpointed::parse(key).map(|found| found.epoch);
        epoch.is_some_and(|epoch| epoch < self.session.epoch() || epoch >= CLONE_EPOCHS)
    }

    /// Whether a file beside an object is of an upload that an earlier session began. No clock says
    /// so, and none need: what an earlier session puts from now on nothing names, so that its
    /// upload may fail, should it still be under way; what is named is whole. The store removes the
    /// superblock's files while nothing replaces it, and its lock stays.
    fn is_cut_short(&self, of: &str, number: u64) -> bool {
        let is_earlier = session_of(of).is_some_and(|put| put < self.session.epoch());
        let is_superblock = of == SUPERBLOCK_KEY && number > 0;
        is_earlier || is_superblock || self.is_own_probe(of) || self.is_old_checkpoint(of)
    }

    /// Replaces the map file by one checkpoint where it has grown.
    fn replace_map_file(&mut self) {
        let is_settled = self.upload.recorded == self.map.number;
        let size = self.map.run_count() as u64 * 32;
        let has_grown = self.upload.map_file_bytes > MAP_FILE_GROWTH.max(size);
        if !self.commit.is_replacing && is_settled && has_grown {
            self.rewrite_map_file();
        }
    }

    /// Replaces the map file by a checkpoint; all indexes are recorded, or will be behind it.
    pub(super) fn rewrite_map_file(&mut self) {
        self.commit.is_replacing = true;
        self.replace_map_with(Flight::MapReplaced);
    }

    /// The same, where `flight` waits for it.
    pub(super) fn replace_map_with(&mut self, flight: Flight) {
        assert_eq!(self.upload.recorded, self.map.number, "no index is on its way");
        self.upload.map_file_bytes = 0;
        let durable = self.write.durable_next;
        let bytes = map_file(self.commit.born, &self.map, self.commit.recorded, durable);
        self.act(Action::MapReplace(bytes), flight);
    }

    pub(super) fn on_map_replaced(&mut self, end: &End) {
        self.commit.is_replacing = false;
        if matches!(end, End::Failed(_)) {
            self.lose_journal(end);
        }
        if std::mem::take(&mut self.awaits_map) {
            self.release_held();
        }
    }
}

/// A map file with nothing but a checkpoint; batches before `durable_next` are durable.
pub(super) fn map_file(
    born: Born,
    map: &crate::map::CloudMap,
    committed: Committed,
    durable_next: u64,
) -> Vec<u8> {
    let mut bytes = Frame::Born(born).encode();
    bytes.extend(Frame::Checkpoint(Box::new(map.clone())).encode());
    bytes.extend(Frame::Committed(committed).encode());
    bytes.extend(Frame::Durable(durable_next).encode());
    bytes
}
