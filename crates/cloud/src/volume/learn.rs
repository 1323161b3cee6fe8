//! Before a claim: whose the volume is, and what the store knows of it that this node does not.
//!
//! How: the superblock is refused, or the map is brought up to it by the checkpoint that it names
//! and the indexes of the segments behind that. Segments beyond the superblock are read whole, see
//! `unnamed`. Then the volume is claimed; see `session` and `claims`.
//! Invariant: nothing of the store is changed here. A volume that this node knows is never begun
//! anew.
//! Cost: a request for the superblock, one for each segment that the node does not know. Not for:
//! what a session does once it is open.

use super::again::STAYS_DAMAGED;
use super::session::{HEAD_BYTES, Step};
use super::uploaded::Uploaded;
use super::{Flight, Volume};
use crate::action::{Request, Tag};
use crate::map::CloudMap;
use crate::meta::Committed;
use crate::segment::{HEADER_BYTES, Index};
use crate::superblock::{Deleted, Superblock};
use std::ops::DerefMut;
use std::sync::Arc;

/// Why a volume is lost whose checkpoint is not the one that the superblock names.
pub(super) const CHECKPOINT_DAMAGED: &str =
    "the checkpoint in the store is damaged, or another one, or another volume's; ";

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// The store has no superblock: one is made where there never was one.
    pub(super) fn on_absent(&mut self) {
        match self.had_superblock() {
            true => self.lose_vanished(),
            false => self.propose_claim(),
        }
    }

    /// Whether the store is known to have had a superblock. The map file says so from the first put
    /// on that is known to have gone through, though no segment may have followed.
    pub(super) fn had_superblock(&self) -> bool {
        self.map.number > 0 || self.commit.recorded.epoch > 0 || self.plan.was_found
    }

    pub(super) fn on_found(&mut self, bytes: &[u8], tag: Option<Tag>) {
        let Some(block) = Superblock::decode(bytes) else {
            return self.lose_damaged("the volume's superblock");
        };
        if let Some(why) = self.taken_by_other(&block) {
            return self.lose_to_other(why);
        }
        if let Some(why) = self.refusal(&block) {
            return self.lose(why);
        }
        let goes_on = self.goes_on(&block);
        self.note_went_on(&block);
        if !self.is_own(&block) && !goes_on {
            // What this node knew of the volume is another history's.
            self.commit.map_went_back |= self.map.number > 0;
            self.upload.recorded = 0;
            self.map = Arc::new(CloudMap::new(self.plan.volume));
            self.at_hand.clear();
            self.read_cache.clear();
            self.is_known = false;
        }
        if !goes_on {
            // What no superblock named may be another session's by now.
            self.session.confirmed = 0;
            self.session.relearned = None;
        }
        self.commit.checkpoint_stored = block.checkpoint;
        self.session.epoch = block.epoch;
        self.session.confirmed = self.session.confirmed.max(block.committed);
        self.session.current = Some((block, tag.unwrap_or(Tag(String::new()))));
        self.catch_up();
    }

    /// Whether a superblock is a later one of the session that had put the one found before. Then
    /// what was learned by that one is a prefix of what this one says: what the session puts never
    /// changes, and of what it has removed since its checkpoint says all that is needed. So a claim
    /// beside a node that writes without end has to learn what is new only.
    fn goes_on(&self, block: &Superblock) -> bool {
        self.session.current().is_some_and(|found| {
            block.session != 0
                && is_same_session(block, found)
                && block.committed >= found.committed
                && block.revision >= found.revision
        })
    }

    fn refusal(&self, block: &Superblock) -> Option<String> {
        let is_own = self.is_own(block);
        if block.volume != self.plan.volume.to_string() {
            return Some(format!("the prefix holds another volume, {}", block.volume));
        }
        if block.deleted.is_some_and(|deleted| !self.brings_back(is_own, deleted)) {
            return Some("the volume was deleted".to_owned());
        }
        (block.block_bytes != self.plan.block_bytes).then(|| {
            let theirs = block.block_bytes;
            format!("the volume has blocks of {theirs} bytes, the node has others")
        })
    }

    /// Who has the volume, where this node is not to have it.
    fn taken_by_other(&self, block: &Superblock) -> Option<String> {
        if block.volume != self.plan.volume.to_string() {
            return None;
        }
        if self.is_own(block) {
            return self.put_by_copy(block);
        }
        let node = &block.node;
        if block.deleted.is_some_and(|deleted| !self.brings_back(false, deleted)) {
            return Some(format!("the volume was deleted, by node {node}"));
        }
        if self.journal.seq_next > 0 && self.journal.used() > 0 {
            return Some(format!(
                "node {node} took the volume while this node's journal held writes that the store \
                 does not have"
            ));
        }
        if self.plan.takeover && self.take_is_over(block.session) {
            return Some(format!(
                "node {node} has served the volume in a later session than the one that this node \
                 was told to take it from, before that broke off; take it again"
            ));
        }
        (!self.plan.takeover).then(|| format!("node {node} serves the volume"))
    }

    /// Whether a take that broke off finds another session than those that it has met. Its claim
    /// may have been put, so that the other node has taken the volume back since; that node may
    /// have done no more than start again, but a volume is taken only by order.
    fn take_is_over(&self, session: u64) -> bool {
        let Committed { claims, epoch, .. } = self.commit.recorded;
        let own = self.session.number();
        let is_under_way = self.session.current.is_some() || claims.find(own).is_some();
        let is_met = session == 0 || claims.find(session).is_some();
        epoch == 0 && !claims.is_empty() && !is_under_way && !is_met
    }

    /// Whether taking the volume takes back its deletion, too: not on a node that had it before and
    /// was only left with the word to take it, and not once an object may be gone.
    fn brings_back(&self, is_own: bool, deleted: Deleted) -> bool {
        self.plan.takeover && !is_own && !self.is_known && !deleted.has_begun()
    }

    /// Fetches what the store knows and this node does not, one object after the other.
    pub(super) fn catch_up(&mut self) {
        let Some(block) = self.session.current() else { return };
        if self.is_known
            && let Some(why) = self.set_back(block)
        {
            return self.recheck(why);
        }
        let number = self.learned().number;
        let behind = block.checkpoint.filter(|checkpoint| checkpoint.number > number);
        if let Some(checkpoint) = behind {
            let request = Request::Get { key: checkpoint.key(), range: None };
            return self.ask(request, Flight::Superblock(Step::Checkpoint));
        }
        if block.committed > number {
            return self.fetch_head(HEAD_BYTES, false);
        }
        // A node that knows nothing of the volume takes whole segments, too, that the superblock
        // does not name yet: the one who wrote them can name them no more, unless it goes on.
        match block.segment(number + 1).filter(|_| self.is_learning() && !self.is_live()) {
            Some(name) => self.fetch_unnamed(name),
            None => self.claim(),
        }
    }

    /// Why a superblock of this node is older than one that the store is known to have had: each
    /// that the map file speaks of was put. Beside the segments that it names, the session counts:
    /// segments of the later one that no superblock named would count as this one's.
    pub(super) fn set_back(&self, block: &Superblock) -> Option<String> {
        let (number, epoch) = (self.commit.recorded.number, self.commit.recorded.epoch);
        let (found, had) = match (block.committed < number, block.epoch < epoch) {
            (true, _) => (format!("names {} segments", block.committed), format!("named {number}")),
            (false, true) => (format!("is of epoch {}", block.epoch), format!("was of {epoch}")),
            (false, false) => return None,
        };
        Some(format!("the store was set back: its superblock {found}, and {had}"))
    }

    /// Claims the volume, once the segments are verified that this node's map has beyond the
    /// superblock: the store took them, and may have lost or damaged them since.
    pub(super) fn claim(&mut self) {
        if self.verify_next() {
            return;
        }
        self.go_back();
        if !self.session.is_lost() {
            self.journal_catches_up();
        }
        if !self.session.is_lost() {
            self.propose_claim();
        }
    }

    fn fetch_head(&mut self, length: u64, is_whole: bool) {
        let next = self.learned().number + 1;
        let Some(name) = self.named(next) else {
            return self.lose(format!("the superblock does not say who wrote segment {next}"));
        };
        let request = Request::Get { key: name.key(), range: Some(0..length) };
        self.ask(request, Flight::Superblock(Step::Head { is_whole }));
    }

    /// Whether a map is the one that a superblock's checkpoint is of. An older one has fewer
    /// segments, so that the checkpoint would be fetched again and again.
    fn is_named(&self, map: &CloudMap) -> bool {
        let named = self.session.current().and_then(|block| block.checkpoint);
        named.is_some_and(|checkpoint| checkpoint.number == map.number)
    }

    pub(super) fn on_checkpoint(&mut self, map: CloudMap) {
        if !self.is_named(&map) {
            return self.recheck(CHECKPOINT_DAMAGED.to_owned() + STAYS_DAMAGED);
        }
        if self.is_passed_by_copy(map.journal_next) {
            return self.lose_to_copy();
        }
        if let Some(relearned) = &mut self.session.relearned {
            **relearned = map;
            return self.catch_up();
        }
        self.drop_stored(map.journal_next);
        self.uploaded = Uploaded::default();
        self.map = Arc::new(map);
        self.at_hand.clear();
        self.read_cache.clear();
        self.catch_up();
    }

    /// What the journal holds of batches before this one is read from the store from now on: the
    /// ring will be reused there. The map that says so has all of them, in order, so that of each
    /// block it has the version of the overlay's run, or a newer one of a batch before this one;
    /// that would be in the overlay, since the journal lacks no batch between two that it has.
    fn drop_stored(&mut self, journal_next: u64) {
        let stored = self.overlay.iter().filter(|(_, place)| place.seq < journal_next);
        let stored: Vec<_> = stored.map(|(run, _)| run).collect();
        stored.into_iter().for_each(|run| drop(self.overlay.remove(run)));
    }

    pub(super) fn on_head(&mut self, bytes: &[u8], is_whole: bool) {
        let next = self.learned().number + 1;
        let named = self.named(next);
        let length = bytes.get(..HEADER_BYTES).and_then(Index::head_length);
        match (Index::decode(bytes), length) {
            (Some(index), _) if named == Some(index.name) && index.volume == self.plan.volume => {
                if self.learn(&index) {
                    self.catch_up();
                }
            }
            (None, Some(length)) if !is_whole && length > bytes.len() => {
                self.fetch_head(length as u64, true);
            }
            _ => self.recheck(format!("segment {next} in the store is damaged; {STAYS_DAMAGED}")),
        }
    }

    /// What the superblock named is not there. Whoever served the volume until now may have gone on
    /// meanwhile, so that a newer one names others.
    pub(super) fn recheck(&mut self, why: String) {
        self.fetch_superblock(Step::Recheck(why));
    }

    pub(super) fn on_rechecked(&mut self, why: String, bytes: &[u8], tag: Option<Tag>) {
        let before = self.session.current.as_ref().map(|(_, tag)| tag);
        match before == tag.as_ref() {
            true => self.lose(why),
            false => self.on_found(bytes, tag),
        }
    }

    /// What the store has need not be uploaded from the journal again.
    fn journal_catches_up(&mut self) {
        let next = self.map.journal_next;
        let is_short = self.is_known && self.session.is_short;
        if is_short || self.is_passed_by_copy(next) {
            // The journal was written on since, under numbers that the store has other writes of.
            return self.lose_to_copy();
        }
        self.upload.cut_next = self.upload.cut_next.max(next);
        self.upload.recorded = self.map.number;
        self.upload.marks.clear();
        self.upload.marks.push_back((self.map.number, next));
        if next > self.journal.seq_next {
            if self.is_known {
                // What its levels hold of the volume may be older than what the store has.
                return self.lose_to_copy();
            }
            if !self.journal.batches.is_empty() || !self.write.is_idle() {
                return self.lose("the journal lacks writes that the store has".to_owned());
            }
            self.journal.continue_at(next);
            self.awaits_map = true;
            self.write.written_next = next;
            self.write.durable_next = next;
        }
    }
}

/// Whether the same session has put both superblocks, as far as they say which.
pub(super) fn is_same_session(one: &Superblock, other: &Superblock) -> bool {
    let session = |block: &Superblock| (block.epoch, block.session);
    one.volume == other.volume && one.node == other.node && session(one) == session(other)
}
