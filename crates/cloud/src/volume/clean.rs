//! Cleaning: live chunks of segments that are mostly dead are written anew, so that these can go.
//!
//! How: where blocks stored exceed the live ones by more than the bound, the segments with the
//! least alive are read and what lives of them goes into one segment of moves. A move takes effect
//! only for blocks that still lie where they were read, so nothing waits for it.
//! Invariant: cleaning never changes what a block reads as; victims go only when the superblock
//! names the moves.
//! Cost: what is moved crosses the link twice, and a pass over the map per round of victims. At
//! most one segment of moves is under way.
//! Source: greedy choice by utilisation (Rosenblum and Ousterhout 1991, section 3).

use super::{Flight, Volume};
use crate::action::{End, Request};
use crate::map::{ChunkPlace, SegmentState, Totals};
use crate::segment::{Builder, EntryKind};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::{DerefMut, Range};

/// Gaps up to this are fetched along rather than asked for separately.
const GAP_BYTES: u64 = 32 << 10;
/// Victims of a round at most.
const VICTIMS_MAX: usize = 64;

/// Blocks, and where they lie.
type Run = (Range<u64>, ChunkPlace);

/// What is being cleaned.
#[derive(Default)]
pub(super) struct Cleaning {
    /// Parts of victims, and their bytes where they have come.
    parts: BTreeMap<(u64, u64), (Vec<Run>, Option<Bytes>)>,
    is_under_way: bool,
    /// Last segment, last committed one, their count and the snapshots' state when victims were
    /// last looked for.
    looked_at: (u64, u64, usize, u64),
    /// The segment of moves that is on its way.
    moves: Option<u64>,
    /// Dead segments wait for a checkpoint.
    pub(super) wants_checkpoint: bool,
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    fn exceeds_amplification(&self, totals: Totals) -> bool {
        let bound = u64::from(self.plan.limits.amplification_percent_max);
        let spare = (totals.blocks - totals.live) * self.block();
        totals.blocks * 100 > totals.live * bound && spare > self.plan.limits.segment_bytes
    }

    pub(super) fn clean_next(&mut self) {
        if let Some(number) = self.clean.moves
            && self.session.committed() >= number
        {
            self.clean.moves = None;
            self.clean.wants_checkpoint = true;
        }
        let is_busy = self.clean.is_under_way || self.clean.moves.is_some();
        let totals = self.map.totals();
        if is_busy || !self.session.is_open() || !self.exceeds_amplification(totals) {
            return;
        }
        // The choice is the same until a segment came, was committed or went, or a snapshot did.
        let (number, committed) = (self.map.number, self.session.committed());
        let state = (number, committed, self.map.segment_count(), self.snapshots.revision);
        if std::mem::replace(&mut self.clean.looked_at, state) == state {
            return;
        }
        let pins = self.pins();
        if !self.exceeds_amplification(self.totals_to_free(&pins)) {
            return;
        }
        let victims = self.choose_victims(&pins);
        if victims.is_empty() {
            // What exceeds is dead and waits to be deleted.
            let last = self.commit.checkpoint_stored.map_or(0, |checkpoint| checkpoint.number);
            let is_free = |number, state: &SegmentState| {
                state.live == 0 && !self.is_kept(&pins, number, state)
            };
            let mut dead = self.map.segments().filter(|(number, state)| is_free(*number, state));
            self.clean.wants_checkpoint |= dead.any(|(number, _)| number > last);
            return;
        }
        self.clean.is_under_way = true;
        for (number, runs) in self.map.runs_by_segment(|number| victims.contains(&number)) {
            self.read_victim(number, runs);
        }
        self.finish_cleaning();
    }

    /// The committed segments with the least alive, as many as make one segment of moves. What a
    /// snapshot keeps would not go if it was moved.
    fn choose_victims(&self, pins: &[u64]) -> Vec<u64> {
        let committed = self.session.committed();
        let candidates = self.map.segments().filter(|(number, state)| {
            let is_sparse = state.live > 0 && state.live * 8 < state.blocks * 7;
            *number <= committed && is_sparse && !self.is_kept(pins, *number, state)
        });
        let mut candidates: Vec<(u64, u64, u64)> = candidates
            .map(|(number, state)| (state.live * 1000 / state.blocks, state.live, number))
            .collect();
        candidates.sort_unstable();
        let limit = self.plan.limits.segment_bytes / self.block();
        let mut taken = 0;
        let fits = |(_, live, _): &&(u64, u64, u64)| {
            taken += live;
            taken <= limit.max(*live)
        };
        candidates.iter().take(VICTIMS_MAX).take_while(fits).map(|(_, _, number)| *number).collect()
    }

    fn read_victim(&mut self, number: u64, runs: Vec<Run>) {
        let key = self.map.name(number).expect("a victim exists").key();
        let mut part: Vec<Run> = Vec::new();
        let mut parts = Vec::new();
        for run in runs {
            let end = part.last().map(|(_, place)| u64::from(place.at) + u64::from(place.stored));
            if end.is_some_and(|end| u64::from(run.1.at) > end + GAP_BYTES) {
                parts.push(std::mem::take(&mut part));
            }
            part.push(run);
        }
        parts.push(part);
        for part in parts {
            let (Some((_, first)), Some((_, last))) = (part.first(), part.last()) else { continue };
            let (from, to) = (u64::from(first.at), u64::from(last.at) + u64::from(last.stored));
            self.clean.parts.insert((number, from), (part, None));
            let request = Request::Get { key: key.clone(), range: Some(from..to) };
            self.ask(request, Flight::CleanGet { from, number });
        }
    }

    pub(super) fn on_clean_get(&mut self, number: u64, from: u64, end: End) {
        match end {
            End::Bytes(bytes, _) => {
                let part = self.clean.parts.get_mut(&(number, from));
                part.expect("it was asked for").1 = Some(bytes);
            }
            // A victim that is gone keeps its references: reads of it say so.
            _ => drop(self.clean.parts.remove(&(number, from))),
        }
        self.finish_cleaning();
    }

    /// Uploads the moves when all has come.
    fn finish_cleaning(&mut self) {
        let is_waiting = self.clean.parts.values().any(|(_, bytes)| bytes.is_none());
        if is_waiting || !self.clean.is_under_way {
            return;
        }
        self.clean.is_under_way = false;
        let parts = std::mem::take(&mut self.clean.parts);
        let mut builder = Builder::new(self.plan.block_bytes, self.plan.compression);
        let mut moved = 0;
        for ((number, from), (runs, bytes)) in parts {
            let Some(bytes) = bytes else { continue };
            for (blocks, place) in runs {
                moved += self.add_move(&mut builder, &blocks, &place, (&bytes, from), number);
            }
        }
        self.counters.bytes_moved += moved * self.block();
        if moved > 0 && self.session.is_open() {
            self.clean.moves = Some(self.upload.number_next);
            self.upload_moved(builder);
        }
    }

    /// Adds a run of a victim where it still lies there and is whole; how many blocks.
    fn add_move(
        &self,
        builder: &mut Builder,
        blocks: &Range<u64>,
        place: &ChunkPlace,
        (bytes, from): (&Bytes, u64),
        number: u64,
    ) -> u64 {
        let is_there = self.map.mapped(blocks.clone()).any(|(_, now)| now.number == number);
        let Some(chunk) = self.chunk(place, bytes, from).filter(|_| is_there) else { return 0 };
        let block = self.block() as usize;
        let at = usize::from(place.skip) * block;
        let count = blocks.end - blocks.start;
        let live = &chunk[at..at + count as usize * block];
        builder.add(blocks.start, live, EntryKind::Moved(number));
        count
    }
}
