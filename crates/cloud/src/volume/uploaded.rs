//! What the journal's ring still holds of what the store has: read from there, not from the store.
//!
//! How: when a segment is applied to the map, its blocks' places in the journal move here from the
//! overlay, and stay until the ring's head passes over them. So what was written lately is read
//! from the local device, also while the store cannot be reached.
//! Invariant: a place here holds the newest content of its blocks unless the overlay has one. A
//! place whose bytes the ring has reused, or that fails its checksum, is dropped, and the store is
//! read.
//! Cost: as the overlay, some 100 bytes per write that the ring holds. What the ring
//! reuses may go into the read cache.
//! Not for: what a superblock named before the node started.

use super::recover::overlay_of;
use super::{LocalPlace, Volume};
use crate::journal::Journal;
use crate::meta::Claims;
use crate::runs::Runs;
use std::collections::{BTreeSet, VecDeque};
use std::ops::{DerefMut, Range};

/// See the file's header.
#[derive(Default)]
pub(super) struct Uploaded {
    runs: Runs<LocalPlace>,
    /// First bytes of payloads and the blocks that they were for, in the order of the ring.
    order: VecDeque<(u64, Range<u64>)>,
    /// Payloads that were read since they were written.
    read: BTreeSet<u64>,
    /// Places before this one have been looked at for the read cache.
    passed: u64,
}

impl Uploaded {
    /// What a journal's batches before this one still hold of what the map has. Where the journal
    /// ended before, what it lacks may be newer than what it has: then it holds nothing, also once
    /// it has been written on, in a life that no session of `claims` uploaded from.
    pub(super) fn of(journal: &Journal, journal_next: u64, claims: &Claims) -> Self {
        let mut uploaded = Uploaded::default();
        let life = claims.newest_life().unwrap_or(u32::MAX);
        let mut before = journal.batches.iter().take_while(|batch| batch.seq < journal_next);
        if journal_next > journal.seq_next || before.any(|batch| batch.life > life) {
            return uploaded;
        }
        let places = overlay_of(&journal.batches, ..journal_next);
        let mut places: Vec<_> = places.iter().collect();
        places.sort_unstable_by_key(|(_, place)| place.at);
        places.into_iter().for_each(|(blocks, place)| uploaded.insert(blocks, place));
        uploaded
    }

    /// The store has these blocks now, and the journal had them at `place`.
    fn insert(&mut self, blocks: Range<u64>, place: LocalPlace) {
        let Some(at) = place.at else {
            self.runs.remove(blocks);
            return;
        };
        self.runs.insert(blocks.clone(), place);
        self.passed = self.passed.min(at);
        // Nearly always behind the last one: segments are applied in the order of the journal.
        let behind = self.order.iter().rposition(|(other, _)| *other <= at);
        self.order.insert(behind.map_or(0, |last| last + 1), (at, blocks));
    }

    /// The ring reuses what lies before `first`.
    fn drop_before(&mut self, first: u64) {
        while let Some((_, blocks)) = self.order.pop_front_if(|(at, _)| *at < first) {
            let held: Vec<_> = self.runs.mapped(blocks).collect();
            for (run, place) in held {
                if place.at.is_some_and(|at| at < first) {
                    self.runs.remove(run);
                }
            }
        }
        self.read = self.read.split_off(&first);
    }

    /// Blocks that are read from the payload at `at`; a newer write may have cut them apart.
    pub(super) fn live_at(&self, at: u64) -> Vec<(Range<u64>, LocalPlace)> {
        let first = self.order.partition_point(|(other, _)| *other < at);
        let own = self.order.range(first..).take_while(|(other, _)| *other == at);
        let mapped = own.flat_map(|(_, blocks)| self.runs.mapped(blocks.clone()));
        mapped.filter(|(_, place)| place.at == Some(at)).collect()
    }

    /// Whether a block is read from the payload at `at`.
    pub(super) fn is_at(&self, at: u64, block: u64) -> bool {
        self.runs.mapped(block..block + 1).any(|(_, place)| place.at == Some(at))
    }

    /// Whether a payload was read since it was written.
    pub(super) fn was_read(&self, at: u64) -> bool {
        self.read.contains(&at)
    }

    /// The next payload before `near` to be looked at.
    pub(super) fn next_before(&self, near: u64) -> Option<u64> {
        let next = self.order.partition_point(|(at, _)| *at < self.passed);
        self.order.get(next).map(|(at, _)| *at).filter(|at| *at < near)
    }

    /// A payload has been looked at.
    pub(super) fn pass(&mut self, at: u64) {
        self.passed = at + 1;
    }

    /// Whether a part of these blocks can be read from the journal.
    pub(super) fn holds(&self, blocks: Range<u64>) -> bool {
        self.runs.mapped(blocks).next().is_some()
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// A segment has these blocks: their places leave the overlay.
    pub(super) fn note_uploaded(&mut self, blocks: Range<u64>) {
        for (run, place) in self.overlay.remove(blocks) {
            self.uploaded.insert(run, place);
        }
    }

    /// As after a restart: what was uploaded is read from the store.
    #[cfg(test)]
    pub(crate) fn forget_all_uploaded(&mut self) {
        self.uploaded = Uploaded::default();
    }

    /// Forgets places that the ring has reused.
    pub(super) fn drop_reused(&mut self) {
        let first = self.journal.head.saturating_sub(self.journal.ring.capacity);
        self.uploaded.drop_before(first);
    }

    /// Reads blocks that the overlay does not have: from the journal, else from below.
    pub(super) fn read_below_overlay(&mut self, job: u64, blocks: Range<u64>) {
        self.drop_reused();
        for piece in self.uploaded.runs.pieces(blocks) {
            match piece.place {
                Some(place) => {
                    self.uploaded.read.extend(place.at);
                    self.read_journal(job, piece.blocks, place);
                }
                None => self.read_below_ring(job, piece.blocks),
            }
        }
    }

    /// What the journal held of these blocks cannot be used, and is forgotten. False where the
    /// store does not have them either.
    pub(super) fn forget_uploaded(&mut self, blocks: Range<u64>, place: &LocalPlace) -> bool {
        let is_same = |(_, other): &(Range<u64>, LocalPlace)| other.at == place.at;
        if self.overlay.mapped(blocks.clone()).any(|held| is_same(&held)) {
            return false;
        }
        let held: Vec<_> = self.uploaded.runs.mapped(blocks).filter(is_same).collect();
        held.into_iter().for_each(|(run, _)| drop(self.uploaded.runs.remove(run)));
        true
    }

    /// Whether the ring still held a place's bytes until now.
    pub(super) fn is_in_ring(&self, place: &LocalPlace) -> bool {
        place.at.is_some_and(|at| at + self.journal.ring.capacity >= self.journal.head)
    }
}
