//! Which sessions are this directory's, so that an older copy of it is not taken for the newest.
//!
//! How: before a session claims the volume, the map file says its number, and which life of the
//! ring it is. A superblock of this node whose session the map file does not know was put by
//! another copy of the directory. One that it knows vouches for the journal of that life and of
//! those before it: where the store has batches by numbers that a later life gave to others, the
//! copy was made while the session ran.
//! Invariant: no claim is put before the map file knows it, so that a node knows its own whatever
//! was cut off; and a map file that knows a claim has no segment but those that the claim began
//! with and what followed. So a segment of its map and the superblock's of that number are the
//! same, and numbers alone say how far both are. Nothing of another copy's history is applied.
//! Cost: an append of the map file per opening; where the map went back, the file as a whole.
//! Not for: map files and superblocks of builds that knew no sessions, where what is found first is
//! taken for this directory's; nor a directory that had the volume and is told to take it back from
//! another node, whose numbers mean others' segments by then: its host begins it anew, without a
//! map (`is_settled`).

use super::{Flight, Volume};
use crate::action::{Action, End};
use crate::meta::Frame;
use crate::superblock::Superblock;
use std::ops::DerefMut;

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// Claims the volume as soon as the map file says with which session.
    pub(super) fn propose_claim(&mut self) {
        let (own, life) = (self.session.number(), self.journal.ring.id.life);
        let found = self.session.current().map_or(0, |block| block.session);
        let recorded = &mut self.commit.recorded;
        let is_met = found == 0 || recorded.claims.find(found).is_some();
        let went_back = std::mem::take(&mut self.commit.map_went_back);
        if is_met && recorded.claims.find(own).is_some() && !went_back {
            return self.propose();
        }
        // What is there now stays known, however many claims come to nothing.
        if found != 0 {
            recorded.claims = recorded.claims.with(found, life);
        }
        recorded.claims = recorded.claims.with(own, life);
        if went_back {
            return self.replace_map_with(Flight::ClaimRecorded);
        }
        let frame = Frame::Committed(*recorded).encode();
        self.upload.map_file_bytes += frame.len() as u64;
        self.act(Action::MapAppend(frame), Flight::ClaimRecorded);
    }

    pub(super) fn on_claim_recorded(&mut self, end: &End) {
        if let End::Failed(fault) = end {
            let why = format!("the map file cannot say who claims the volume: {}", fault.cause);
            self.lose_journal(end);
            return self.lose(why);
        }
        if !self.session.is_lost() {
            self.propose();
        }
    }

    /// Why a superblock of this node's is another copy's.
    pub(super) fn put_by_copy(&self, block: &Superblock) -> Option<String> {
        let claims = &self.commit.recorded.claims;
        // Builds that knew no sessions, and others that drop what they do not know, say none.
        let says_none = block.session == 0;
        let is_known = claims.is_empty() || says_none || claims.find(block.session).is_some();
        let is_other = self.is_known && !is_known && block.deleted.is_none();
        // A store that was set back may be put forward again: that is told where its superblock is
        // compared, and costs the node nothing.
        let may_differ = self.is_known && block.deleted.is_none();
        let is_forked = may_differ && self.set_back(block).is_none() && self.differs(block);
        (is_other || is_forked).then(|| {
            format!(
                "this node's directory is an older copy of itself: another copy has served the \
                 volume since, in epoch {}",
                block.epoch
            )
        })
    }

    /// Whether a superblock names a segment by another session than the map has it from. No start
    /// of a build that records a claim with its map finds one, unless it is of another copy, or the
    /// store was set back meanwhile.
    fn differs(&self, block: &Superblock) -> bool {
        let mut named = self.map.segments().filter(|(number, _)| *number <= block.committed);
        named.any(|(number, _)| {
            let named = block.segment(number);
            named.is_some() && self.map.name(number) != named
        })
    }

    /// Whether what the store has up to the batch `journal_next` is not what this journal has.
    pub(super) fn is_passed_by_copy(&self, journal_next: u64) -> bool {
        let session = self.session.current().map_or(0, |block| block.session);
        let claim = self.commit.recorded.claims.find(session);
        let life = claim.map_or(u32::MAX, |claim| claim.life);
        let batches = &self.journal.batches;
        let later = batches.get(batches.partition_point(|batch| batch.life <= life));
        let own_next = later.map_or(self.journal.seq_next, |batch| batch.seq);
        self.is_known && journal_next > own_next
    }

    /// The store has an older superblock of this session than `revision`, which was put there.
    pub(super) fn lose_set_back(&mut self, block: &Superblock, revision: u64) {
        let known = self.session.current().map_or(0, |block| block.committed);
        self.lose(format!(
            "the store has an older superblock than this node put there (epoch {}, revision {}, up \
             to segment {}; this node's: epoch {}, revision {revision}, up to segment {known}): \
             the bucket went back in time, or an old object was put there",
            block.epoch,
            block.revision,
            block.committed,
            self.session.epoch()
        ));
    }

    pub(super) fn lose_to_copy(&mut self) {
        self.lose_to_other(
            "this node's directory is an older copy of itself: the store has writes that its \
             journal never had"
                .to_owned(),
        );
    }
}
