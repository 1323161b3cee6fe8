//! Segments in the store that no superblock names yet: each is read whole before it counts.
//!
//! How: nothing vouches for such an object but its own checksums, and the journal still has what it
//! holds. A node that has put it fetches it whole at its next start, one after the other. Where one
//! is damaged or missing, the map goes back: it is learned anew, from the superblock's checkpoint
//! and the segments behind it, up to the last one that is whole. What the journal has behind that
//! is read from there again, and becomes segments of the session that begins. A node that knows
//! nothing of the volume takes such segments as far as they are whole.
//! Invariant: a superblock names a segment of an earlier session only where all of its checksums
//! have held. Until that is known, no read of the segment ends as damaged; the journal keeps what
//! it holds. The old map is served while the new one is learned.
//! Cost: at a start, the bytes of the segments behind the superblock, one in memory at a time: as
//! many as are put between two superblocks. Not for: segments that a superblock names.

use super::recover::overlay_of;
use super::session::Step;
use super::uploaded::Uploaded;
use super::{Flight, Volume};
use crate::action::{End, Fault, FaultKind, Request};
use crate::map::CloudMap;
use crate::runs::Place;
use crate::segment::{Index, SegmentName, WHOLE};
use layby_types::planted::{Plant, is_planted};
use std::ops::DerefMut;
use std::sync::Arc;

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
            Some(index) => self.learn(&index),
            None if self.is_learning() => self.claim(),
            None => self.relearn(number),
        }
    }

    /// The store has a segment that this node does not know.
    pub(super) fn learn(&mut self, index: &Index) {
        if self.is_passed_by_copy(index.journal_next) {
            return self.lose_to_copy();
        }
        match &mut self.session.relearned {
            Some(map) => map.apply(index),
            None => self.apply(index, index.journal_next),
        }
        self.catch_up();
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
        self.uploaded = Uploaded::of(&self.journal.batches, next);
    }
}
