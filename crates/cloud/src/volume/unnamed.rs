//! Segments in the store that no superblock names yet: each is read whole before it counts.
//!
//! How: nothing vouches for such an object but its own checksums, and the journal still has what it
//! holds. A node that has put it fetches it whole at its next start, one after the other. Where one
//! is damaged or missing, the map goes back: it is learned anew, from the superblock's checkpoint
//! and the segments behind it, up to the last one that is whole. What the journal has behind that
//! is read from there again, and becomes segments of the session that begins. A node that knows
//! nothing of the volume takes such segments as far as they are whole.
//! A node that still writes may put them faster than they are read here, so the superblock is read
//! behind each. One that names more may have been on its way when its node died; the second is of a
//! live node. From then on only what is named is learned, and the claim is put: the rest stays in
//! that node's journal, as what it has not put does, and `layby salvage` finds it.
//! Invariant: a superblock names a segment of an earlier session only where all of its checksums
//! have held. Until that is known, no read of the segment ends as damaged; the journal keeps what
//! it holds. The old map is served while the new one is learned.
//! Cost: at a start, the bytes of the segments behind the superblock, one in memory at a time: as
//! many as are put between two superblocks; where a node learns, one request more for each. Not
//! for: segments that a superblock names.

use super::learn::is_same_session;
use super::recover::overlay_of;
use super::session::Step;
use super::uploaded::Uploaded;
use super::{Flight, Volume};
use crate::action::{End, Fault, FaultKind, Request, Tag};
use crate::map::CloudMap;
use crate::runs::Place;
use crate::segment::{Index, SegmentName, WHOLE};
use crate::superblock::Superblock;
use layby_types::planted::{Plant, is_planted};
use std::ops::DerefMut;
use std::sync::Arc;

/// Superblocks that name more and show that their node lives: one may have been on its way before.
const WENT_ON_MIN: u8 = 2;

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// What is known by now of what the store has.
    pub(super) fn learned(&self) -> &CloudMap {
        self.session.relearned.as_deref().unwrap_or(&self.map)
    }

    /// Whether the node learns which segments there are beyond the superblock.
    pub(super) fn is_learning(&self) -> bool {
        !self.is_known || self.session.relearned.is_some()
    }

    /// Whether a segment may be damaged, though the journal has what it holds: then the map goes
    /// back soon.
    pub(super) fn is_unverified(&self, number: u64) -> bool {
        let is_asking = !self.session.is_open() && !self.session.is_lost();
        is_asking && number > self.session.confirmed.max(self.commit.recorded.number)
    }

    /// Fetches the next segment of the map that is to be verified; false where there is none.
    pub(super) fn verify_next(&mut self) -> bool {
        while !self.is_learning() && self.session.confirmed < self.map.number {
            let number = self.session.confirmed + 1;
            match self.map.name(number) {
                // Another session's, which came to nothing: it may be whole, and is not this one.
                Some(name) if self.named(number) != Some(name) => self.relearn(number),
                Some(name) => self.fetch_unnamed(name),
                None => {
                    self.session.confirmed = number;
                    continue;
                }
            }
            return true;
        }
        false
    }

    pub(super) fn fetch_unnamed(&mut self, name: SegmentName) {
        let request = Request::Get { key: name.key(), range: Some(WHOLE) };
        self.ask(request, Flight::Superblock(Step::Unnamed { number: name.number }));
    }

    /// The name that a segment of this number has by the superblock.
    pub(super) fn named(&self, number: u64) -> Option<SegmentName> {
        self.session.current().and_then(|block| block.segment(number))
    }

    /// A segment that no superblock names was fetched, or is not there.
    pub(super) fn on_unnamed(&mut self, number: u64, end: &End) {
        let name = self.named(number);
        let is_own = |index: &Index| Some(index.name) == name && index.volume == self.plan.volume;
        let whole = match end {
            End::Bytes(bytes, _) if is_planted(Plant::HeaderForWhole) => Index::decode(bytes),
            End::Bytes(bytes, _) => Index::decode_whole(bytes).filter(is_own),
            _ => None,
        };
        match whole {
            Some(_) if !self.is_learning() => {
                self.session.confirmed = number;
                self.claim();
            }
            Some(index) => {
                if self.learn(&index) {
                    self.fetch_superblock(Step::Beyond);
                }
            }
            None if self.is_learning() => self.claim(),
            None => self.relearn(number),
        }
    }

    /// The superblock while segments beyond it are read: what it names by now is learned first.
    pub(super) fn on_beyond(&mut self, bytes: &[u8], tag: Option<Tag>) {
        let found = Superblock::decode(bytes);
        match found.is_some() && found.as_ref() == self.session.current() {
            true => self.catch_up(),
            false => self.on_found(bytes, tag),
        }
    }

    /// Counts superblocks that name more, by the session whose segments are learned. Other programs
    /// replace one by one that names as much, as when they mark a clone.
    pub(super) fn note_went_on(&mut self, block: &Superblock) {
        let found = self.session.current().filter(|found| is_same_session(block, found));
        let names_more = found.map(|found| block.committed > found.committed);
        self.session.went_on = match names_more {
            Some(names_more) => self.session.went_on.saturating_add(u8::from(names_more)),
            None => 0,
        };
    }

    /// Whether the node by whose session the volume is learned goes on meanwhile.
    pub(super) fn is_live(&self) -> bool {
        self.session.went_on >= WENT_ON_MIN
    }

    /// The store has a segment that this node does not know; false where the volume is lost by it.
    pub(super) fn learn(&mut self, index: &Index) -> bool {
        if self.is_passed_by_copy(index.journal_next) {
            self.lose_to_copy();
            return false;
        }
        match &mut self.session.relearned {
            Some(map) => map.apply(index),
            None => self.apply(index, index.journal_next),
        }
        true
    }

    /// The store does not have a segment of the map as it was put, and no superblock names it.
    fn relearn(&mut self, number: u64) {
        let cause = format!(
            "segment {number} in the store was damaged, or lost, before the superblock named it; \
             it is stored again from the journal"
        );
        self.last_fault = Some((Fault { kind: FaultKind::Retry, cause }, self.now));
        self.session.relearned = Some(Box::new(CloudMap::new(self.plan.volume)));
        self.catch_up();
    }

    /// The map becomes the one that was learned anew, where one was.
    pub(super) fn go_back(&mut self) {
        let Some(map) = self.session.relearned.take() else { return };
        let (next, before) = (map.journal_next, self.map.journal_next);
        if next < self.commit.recorded.journal_next {
            return self.lose(format!(
                "segment {} in the store has less than the superblock vouched for; the journal \
                 does not have it any more",
                map.number
            ));
        }
        if self.session.is_short {
            return self.lose(format!(
                "the store does not have segment {} whole, and the journal ends before what was in \
                 it: its end is damaged, or it is an older copy",
                map.number + 1
            ));
        }
        self.map = Arc::new(*map);
        self.commit.map_went_back = true;
        self.session.confirmed = self.map.number;
        self.upload.cut_next = next;
        self.at_hand.clear();
        self.read_cache.clear();
        self.reads.forget_missing();
        let stored = self.overlay.iter().filter(|(_, place)| place.seq < next);
        let stored: Vec<_> = stored.map(|(run, _)| run).collect();
        stored.into_iter().for_each(|run| drop(self.overlay.remove(run)));
        // What was written since is newer.
        for (run, place) in overlay_of(&self.journal.batches, next..before).iter() {
            for piece in self.overlay.pieces(run.clone()) {
                if piece.place.is_none() {
                    let place = place.skip(piece.blocks.start - run.start);
                    self.overlay.insert(piece.blocks, place);
                }
            }
        }
        self.uploaded = Uploaded::of(&self.journal, next, &self.commit.recorded.claims);
    }
}
