//! Cleaning: live chunks of segments that are mostly dead are written anew, so that these can go.
//!
//! How: where blocks stored exceed the live ones by more than the bound, the segments with the
//! least alive are read and what lives of them goes into one segment of moves. A move takes effect
//! only for blocks that still lie where they were read, so nothing waits for it.
//! Invariant: cleaning never changes what a block reads as; victims go only when the superblock
//! names the moves.
//! Cost: what is moved crosses the link twice, with some of what lies between on its way down, so
//! that a victim takes few requests; a pass over the map per round of victims. At most one segment
//! of moves is under way, and some reads.
//! Source: greedy choice by utilisation (Rosenblum and Ousterhout 1991, section 3).

use super::{Flight, Volume};
use crate::action::{End, Request};
use crate::map::{ChunkPlace, SegmentState, Totals};
use crate::segment::{Builder, EntryKind};
use std::collections::BTreeMap;
use std::ops::{DerefMut, Range};

/// Gaps up to this are fetched along rather than asked for separately: that is what a link of
/// 50 Mbit/s carries in the time that a request costs beside others.
const GAP_BYTES: u64 = 32 << 10;
/// Gaps up to this are, too, the least first, as long as they add up to so many times what lives:
/// links carry more down than up, and what lives goes up again.
const GAP_BYTES_MAX: u64 = 512 << 10;
const GAPS_PER_LIVE: u64 = 2;
/// Reads under way at most: what has come is held, and clients read over the same link.
const READS_MAX: usize = 8;
/// Victims of a round at most.
const VICTIMS_MAX: usize = 64;

/// Blocks, and where they lie.
type Run = (Range<u64>, ChunkPlace);

/// A part of a victim that is fetched by one request.
enum Part {
    Waits(Vec<Run>),
    Asked(Vec<Run>),
    /// The blocks that live, and what they hold.
    Come(Vec<(Range<u64>, Vec<u8>)>),
}

/// What is being cleaned.
#[derive(Default)]
pub(super) struct Cleaning {
    /// Parts of victims, by segment and first byte.
    parts: BTreeMap<(u64, u64), Part>,
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
            for part in parts_of(runs) {
                let from = u64::from(part[0].1.at);
                self.clean.parts.insert((number, from), Part::Waits(part));
            }
        }
        self.read_parts();
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

    /// Asks for as many parts as may be under way.
    fn read_parts(&mut self) {
        let is_asked = |part: &&Part| matches!(part, Part::Asked(_));
        let room = READS_MAX.saturating_sub(self.clean.parts.values().filter(is_asked).count());
        let waits = self.clean.parts.iter_mut().filter_map(|(place, part)| match part {
            Part::Waits(runs) => {
                let (first, last) = (&runs[0].1, &runs[runs.len() - 1].1);
                let range = u64::from(first.at)..end_of(last);
                *part = Part::Asked(std::mem::take(runs));
                Some((*place, range))
            }
            _ => None,
        });
        let asked: Vec<((u64, u64), Range<u64>)> = waits.take(room).collect();
        for ((number, from), range) in asked {
            let key = self.map.name(number).expect("a victim exists").key();
            self.counters.clean_reads += 1;
            self.counters.clean_bytes_read += range.end - range.start;
            let request = Request::Get { key, range: Some(range) };
            self.ask(request, Flight::CleanGet { from, number });
        }
    }

    pub(super) fn on_clean_get(&mut self, number: u64, from: u64, end: End) {
        let part = self.clean.parts.remove(&(number, from));
        let Some(Part::Asked(runs)) = part else { unreachable!("it was asked for once") };
        // A victim that is gone keeps its references: reads of it say so.
        if let End::Bytes(bytes, _) = end {
            let live = |(blocks, place): Run| {
                let chunk = self.chunk(&place, &bytes, from)?;
                let at = usize::from(place.skip) * self.block() as usize;
                let length = (blocks.end - blocks.start) as usize * self.block() as usize;
                Some((blocks, chunk[at..at + length].to_vec()))
            };
            // What lies between is not held on to.
            let come = runs.into_iter().filter_map(live).collect();
            self.clean.parts.insert((number, from), Part::Come(come));
        }
        self.read_parts();
        self.finish_cleaning();
    }

    /// Uploads the moves when all has come.
    fn finish_cleaning(&mut self) {
        let is_waiting = self.clean.parts.values().any(|part| !matches!(part, Part::Come(_)));
        if is_waiting || !self.clean.is_under_way {
            return;
        }
        self.clean.is_under_way = false;
        let parts = std::mem::take(&mut self.clean.parts);
        let mut builder = Builder::new(self.plan.block_bytes, self.plan.compression);
        let mut moved = 0;
        for ((number, _), part) in parts {
            let Part::Come(runs) = part else { unreachable!("all have come") };
            for (blocks, live) in runs {
                // What was written meanwhile lies elsewhere.
                if self.map.mapped(blocks.clone()).any(|(_, now)| now.number == number) {
                    moved += blocks.end - blocks.start;
                    builder.add(blocks.start, &live, EntryKind::Moved(number));
                }
            }
        }
        self.counters.bytes_moved += moved * self.block();
        if moved > 0 && self.session.is_open() {
            self.clean.moves = Some(self.upload.number_next);
            self.upload_moved(builder);
        }
    }
}

/// The byte behind a chunk in its object.
fn end_of(place: &ChunkPlace) -> u64 {
    u64::from(place.at) + u64::from(place.stored)
}

/// Runs of a victim, in the order of their places, as they are fetched: over small gaps, and over
/// larger ones, the least first, as long as these are no more than twice what lives. A request
/// saved is worth the same wherever it is, so no other choice saves more of them for these bytes.
fn parts_of(runs: Vec<Run>) -> Vec<Vec<Run>> {
    let mut gaps: Vec<(u64, usize)> = Vec::new();
    let (mut live, mut end) = (0, None);
    for (index, (_, place)) in runs.iter().enumerate() {
        let at = u64::from(place.at);
        // Several runs may be of one chunk.
        let is_new = end.is_none_or(|end| at >= end);
        live += if is_new { u64::from(place.stored) } else { 0 };
        if let Some(gap) = end.and_then(|end| at.checked_sub(end)).filter(|gap| *gap > GAP_BYTES) {
            gaps.push((gap, index));
        }
        end = end.max(Some(end_of(place)));
    }
    gaps.sort_unstable();
    let mut spare = live * GAPS_PER_LIVE;
    let mut is_fetched = |(gap, _): &(u64, usize)| {
        let is_paid = *gap <= spare.min(GAP_BYTES_MAX);
        spare = spare.saturating_sub(*gap);
        is_paid
    };
    let fetched = gaps.iter().take_while(|gap| is_fetched(gap)).count();
    let mut cuts: Vec<usize> = gaps[fetched..].iter().map(|(_, index)| *index).collect();
    cuts.sort_unstable_by(|a, b| b.cmp(a));
    let mut rest = runs;
    let mut parts: Vec<Vec<Run>> = cuts.into_iter().map(|cut| rest.split_off(cut)).collect();
    parts.push(rest);
    parts.retain(|part| !part.is_empty());
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Encoding;
    use layby_types::Rng;

    const BLOCK: u64 = 4096;
    const SEGMENT: u64 = 8 << 20;
    const PLACE: ChunkPlace = ChunkPlace {
        number: 1,
        at: 0,
        stored: BLOCK as u32,
        crc: 0,
        blocks: 1,
        skip: 0,
        encoding: Encoding::Raw,
    };

    /// A victim in which each block lives by this chance.
    fn victim(rng: &mut Rng, percent: u64) -> Vec<Run> {
        let blocks = (0..SEGMENT / BLOCK).filter(|_| rng.chance(percent, 100));
        let run =
            |block: u64| (block..block + 1, ChunkPlace { at: (block * BLOCK) as u32, ..PLACE });
        blocks.collect::<Vec<u64>>().into_iter().map(run).collect()
    }

    fn fetched(parts: &[Vec<Run>]) -> u64 {
        parts.iter().map(|part| end_of(&part[part.len() - 1].1) - u64::from(part[0].1.at)).sum()
    }

    /// Goal: what lives of a victim comes in few requests, each run in one of them, and without
    /// much more than lives. Method: victims of every share of live blocks; the requests that gaps
    /// of 32 KiB would take beside, in sum over seeds.
    #[test]
    fn victims_are_read_in_few_requests() {
        for percent in [1, 2, 5, 10, 20, 30, 50, 80] {
            let (mut before, mut now) = (0, 0);
            for seed in 0..20 {
                let runs = victim(&mut Rng::new(seed), percent);
                let live = runs.len() as u64 * BLOCK;
                let far = |pair: &&[Run]| u64::from(pair[1].1.at) > end_of(&pair[0].1) + GAP_BYTES;
                let small: u64 = runs
                    .windows(2)
                    .filter(|pair| !far(pair))
                    .map(|pair| u64::from(pair[1].1.at) - end_of(&pair[0].1))
                    .sum();
                before += 1 + runs.windows(2).filter(far).count();
                let parts = parts_of(runs.clone());
                now += parts.len();
                assert!(fetched(&parts) <= 3 * live + small, "{percent} % seed {seed}");
                assert_eq!(parts.concat(), runs, "{percent} % seed {seed}");
            }
            assert!(now <= before);
            if percent >= 20 {
                assert!(now <= 2 * 20, "{percent} %: {now} requests for 20 victims");
            }
        }
        assert_eq!(parts_of(Vec::new()), Vec::<Vec<Run>>::new());
    }

    /// Goal: a gap that is worth a request is left out, and runs of one chunk stay together.
    /// Method: places by hand.
    #[test]
    fn large_gaps_are_left_out() {
        let run = |block: u64, at: u32, stored: u32| {
            (block..block + 1, ChunkPlace { at, stored, blocks: 4, ..PLACE })
        };
        let far = 4 << 20;
        let runs =
            vec![run(0, 0, 8192), run(2, 0, 8192), run(9, far, 4096), run(12, far + 8192, 64)];
        let parts = parts_of(runs.clone());
        assert_eq!(parts, [runs[..2].to_vec(), runs[2..].to_vec()]);
    }
}
