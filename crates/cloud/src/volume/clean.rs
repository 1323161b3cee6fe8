//! Cleaning: live chunks of segments that are mostly dead are written anew, so that these can go.
//!
//! How: where blocks stored exceed the live ones by more than the bound, the segments with the
//! least alive are read and what lives of them goes into one segment of moves: a round. Some rounds
//! are under way at once, so that one is read while another goes up. A move takes effect only for
//! blocks that still lie where they were read, so nothing waits for it. Where clients write faster
//! than all rounds clean, their segments take only the space that rounds have freed. A victim whose
//! reads fail again and again is left where it is for a while.
//! Invariant: cleaning never changes what a block reads as; victims go only when the superblock
//! names the moves; clients' segments wait only while rounds are under way, and the store answers
//! their reads.
//! Cost: what is moved crosses the link twice, with some of what lies between on its way down, so
//! that a victim takes few requests; a look at each block of a victim; the live bytes of a segment
//! in memory per round, and some reads.
//! Source: greedy choice by utilisation (Rosenblum and Ousterhout 1991, section 3).

use super::{Flight, Volume};
use crate::action::{End, Request};
use crate::map::ChunkPlace;
use crate::segment::{Builder, EntryKind};
use layby_types::Nanos;
use std::collections::{BTreeMap, BTreeSet};
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
/// Rounds under way at most: one is read, one goes up, one waits for its turn.
const ROUNDS_MAX: usize = 3;
/// Victims of a round at most.
const VICTIMS_MAX: usize = 64;
/// Of the space that rounds free, clients' segments take this much while rounds are behind; the
/// rest is how these catch up.
const GRANTED: (i64, i64) = (3, 4);
/// Dead segments wait for a checkpoint until they are this much of what lives, in percent: between
/// the bound at which cleaning begins and the 1.3 times that are promised.
const DEAD_PERCENT: u64 = 3;
/// Clients' segments begin to wait for rounds when all that is dead exceeds the bound by this much
/// of what lives, in percent: what is not in the store yet is worth more than space.
const BEHIND_PERCENT: u64 = 4;

/// A read of a victim is tried so often, and for so long; then its round goes on without it. A
/// store that is busy, or not there for a moment, refuses at once: that passes.
const ATTEMPTS_MIN: u32 = 3;
const FAULTS_TIME: Nanos = Nanos::from_secs(30);
/// No volume has such a last segment; see [`Cleaning::looked_at`].
const NEVER_LOOKED: (u64, u64, usize, u64) = (u64::MAX, 0, 0, 0);
/// How long such a victim is not chosen again.
const SILENT_TIME: Nanos = Nanos::from_millis(120_000);

/// Blocks, and where they lie.
type Run = (Range<u64>, ChunkPlace);

/// A part of a victim that is fetched by one request.
enum Part {
    Waits(Vec<Run>),
    Asked(Vec<Run>),
    /// The blocks that live, and what they hold.
    Come(Vec<(Range<u64>, Vec<u8>)>),
}

/// Victims whose live blocks become one segment.
struct Round {
    victims: BTreeSet<u64>,
    /// Parts of victims, by segment and first byte.
    parts: BTreeMap<(u64, u64), Part>,
    /// The segment of moves that is on its way, and the bytes by which the victims' blocks are
    /// more.
    moves: Option<(u64, u64)>,
}

/// What is being cleaned.
#[derive(Default)]
pub(super) struct Cleaning {
    rounds: Vec<Round>,
    /// Last segment, last committed one, their count and the snapshots' state when victims were
    /// last looked for.
    looked_at: (u64, u64, usize, u64),
    /// More was to be cleaned then than the rounds do that were under way.
    is_behind: bool,
    /// Bytes of clients' segments that may go up before the next round ends, while it is behind;
    /// below zero where a segment took more.
    allowance: i64,
    /// Dead segments wait for a checkpoint.
    pub(super) wants_checkpoint: bool,
    /// Reads of victims have failed since one was answered.
    is_stuck: bool,
    /// When reads that have had no answer failed first, by segment and first byte.
    failed_since: BTreeMap<(u64, u64), Nanos>,
    /// Victims that could not be read, and until when they are not chosen.
    silent: BTreeMap<u64, Nanos>,
}

/// Dead blocks, what snapshots keep left out.
struct Spare {
    all: u64,
    /// Of segments in which others live, victims of rounds under way left out.
    sparse: u64,
    /// Of segments that are dead and wait for a checkpoint.
    dead: u64,
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    fn exceeds_amplification(&self, live: u64, spare: u64) -> bool {
        let bound = u64::from(self.plan.limits.amplification_percent_max);
        let is_worth_it = spare * self.block() > self.plan.limits.segment_bytes;
        (live + spare) * 100 > live * bound && is_worth_it
    }

    pub(super) fn clean_next(&mut self) {
        self.end_rounds();
        if !self.wants_cleaning() {
            self.clean.is_behind = false;
            return;
        }
        self.end_silences();
        let totals = self.map.totals();
        // The choice is the same until a segment came, was committed or went, a snapshot did, or a
        // victim that could not be read may be chosen again.
        let (number, committed) = (self.map.number, self.session.committed());
        let state = (number, committed, self.map.segment_count(), self.snapshots.revision);
        if std::mem::replace(&mut self.clean.looked_at, state) == state {
            return;
        }
        let pins = self.pins();
        let spare = loop {
            let spare = self.spare(&pins);
            let wants_more = self.exceeds_amplification(totals.live, spare.sparse);
            let has_room = self.clean.rounds.len() < ROUNDS_MAX;
            if !wants_more || !has_room || !self.start_round(&pins) {
                let limit = u64::from(self.plan.limits.amplification_percent_max) + BEHIND_PERCENT;
                let is_far = (totals.live + spare.all) * 100 > totals.live * limit;
                self.clean.is_behind = wants_more && is_far;
                break spare;
            }
        };
        self.clean.wants_checkpoint |= spare.dead * 100 > totals.live * DEAD_PERCENT;
    }

    fn wants_cleaning(&self) -> bool {
        let totals = self.map.totals();
        let spare = totals.blocks - totals.live;
        self.session.is_open() && self.exceeds_amplification(totals.live, spare)
    }

    /// Victims whose time is over may be chosen again, although nothing else has changed.
    fn end_silences(&mut self) {
        let now = self.now;
        if self.clean.silent.extract_if(.., |_, until| *until <= now).count() > 0 {
            self.clean.looked_at = NEVER_LOOKED;
        }
    }

    /// When a victim that could not be read may be chosen again, where more is to be cleaned.
    pub(super) fn clean_deadline(&self) -> Nanos {
        let first = self.clean.silent.values().min().filter(|_| self.wants_cleaning());
        first.copied().unwrap_or(Nanos::NEVER)
    }

    /// Victims that were given up, and are not chosen for a while.
    #[cfg(test)]
    pub(crate) fn silent_victims(&self) -> usize {
        self.clean.silent.len()
    }

    /// What no snapshot keeps.
    fn spare(&self, pins: &[u64]) -> Spare {
        let last = self.commit.checkpoint_stored.map_or(0, |checkpoint| checkpoint.number);
        let mut spare = Spare { all: 0, sparse: 0, dead: 0 };
        for (number, state) in self.map.segments() {
            if self.is_kept(pins, number, state) {
                continue;
            }
            spare.all += state.blocks - state.live;
            match state.live {
                0 if number > last => spare.dead += state.blocks,
                0 => {}
                _ if self.is_victim(number) => {}
                live => spare.sparse += state.blocks - live,
            }
        }
        spare
    }

    fn is_victim(&self, number: u64) -> bool {
        self.clean.rounds.iter().any(|round| round.victims.contains(&number))
    }

    /// The committed segments with the least alive, as many as make one segment of moves. What a
    /// snapshot keeps would not go if it was moved.
    fn victims(&self, pins: &[u64]) -> BTreeSet<u64> {
        let committed = self.session.committed();
        let candidates = self.map.segments().filter(|(number, state)| {
            let is_sparse = state.live > 0 && state.live * 8 < state.blocks * 7;
            let is_free = !self.is_kept(pins, *number, state) && !self.is_victim(*number);
            let is_silent = self.clean.silent.get(number).is_some_and(|until| *until > self.now);
            *number <= committed && is_sparse && is_free && !is_silent
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

    /// Begins to clean what has the least alive; false where nothing can be cleaned.
    fn start_round(&mut self, pins: &[u64]) -> bool {
        let victims = self.victims(pins);
        if victims.is_empty() {
            return false;
        }
        let mut parts = BTreeMap::new();
        for number in &victims {
            for part in parts_of(self.map.runs_of(*number)) {
                parts.insert((*number, u64::from(part[0].1.at)), Part::Waits(part));
            }
        }
        self.clean.rounds.push(Round { victims, parts, moves: None });
        self.read_parts();
        self.upload_rounds();
        true
    }

    /// Asks for as many parts as may be under way. What was overwritten while it waited is left
    /// out; its segment may be gone by now.
    fn read_parts(&mut self) {
        let is_asked = |part: &&Part| matches!(part, Part::Asked(_));
        let parts = self.clean.rounds.iter().flat_map(|round| round.parts.values());
        let mut room = READS_MAX.saturating_sub(parts.filter(is_asked).count());
        for index in 0..self.clean.rounds.len() {
            let parts = &self.clean.rounds[index].parts;
            let waits = parts.iter().filter(|(_, part)| matches!(part, Part::Waits(_)));
            let waits: Vec<(u64, u64)> = waits.map(|(place, _)| *place).collect();
            for place in waits {
                if room == 0 {
                    return;
                }
                let part = self.clean.rounds[index].parts.remove(&place);
                let Some(Part::Waits(runs)) = part else { unreachable!("it was just listed") };
                let runs = runs.into_iter().filter(|(blocks, at)| self.lives(blocks, at.number));
                let runs: Vec<Run> = runs.collect();
                if !runs.is_empty() {
                    room -= 1;
                    self.read_part(index, place.0, runs);
                }
            }
        }
    }

    /// Whether any of these still lies there.
    fn lives(&self, blocks: &Range<u64>, number: u64) -> bool {
        self.map.mapped(blocks.clone()).any(|(_, now)| now.number == number)
    }

    fn read_part(&mut self, round: usize, number: u64, runs: Vec<Run>) {
        let (from, to) = (u64::from(runs[0].1.at), end_of(&runs[runs.len() - 1].1));
        let range = from..to;
        let key = self.map.name(number).expect("a victim in which something lives exists").key();
        self.counters.clean_reads += 1;
        self.counters.clean_bytes_read += range.end - range.start;
        let request = Request::Get { key, range: Some(range) };
        self.clean.rounds[round].parts.insert((number, from), Part::Asked(runs));
        self.ask(request, Flight::CleanGet { from, number });
    }

    pub(super) fn on_clean_get(&mut self, number: u64, from: u64, end: End) {
        let mut rounds = self.clean.rounds.iter_mut();
        let part = rounds.find_map(|round| round.parts.remove(&(number, from)));
        let Some(Part::Asked(runs)) = part else { unreachable!("it was asked for once") };
        self.clean.failed_since.remove(&(number, from));
        // A victim that is gone keeps its references: reads of it say so.
        if let End::Bytes(bytes, _) = end {
            self.clean.is_stuck = false;
            let live = |(blocks, place): Run| {
                let chunk = self.chunk(&place, &bytes, from)?;
                let at = usize::from(place.skip) * self.block() as usize;
                let length = (blocks.end - blocks.start) as usize * self.block() as usize;
                Some((blocks, chunk[at..at + length].to_vec()))
            };
            // What lies between is not held on to.
            let come = runs.into_iter().filter_map(live).collect();
            let mut rounds = self.clean.rounds.iter_mut();
            let round = rounds.find(|round| round.victims.contains(&number));
            let round = round.expect("a part's round waits for it");
            round.parts.insert((number, from), Part::Come(come));
        }
        self.read_parts();
        self.upload_rounds();
    }

    /// A read of a victim failed. True where it is given up, and all that was to be read of the
    /// victim in its round: what lives there stays where it is.
    pub(super) fn on_clean_fault(&mut self, number: u64, from: u64, attempt: u32) -> bool {
        self.clean.is_stuck = true;
        let now = self.now;
        let since = *self.clean.failed_since.entry((number, from)).or_insert(now);
        if attempt + 1 < ATTEMPTS_MIN || now.since(since) < FAULTS_TIME {
            return false;
        }
        self.clean.silent.insert(number, now.saturating_add(SILENT_TIME));
        for round in &mut self.clean.rounds {
            let is_left = |place: &(u64, u64), part: &Part| {
                place.0 == number && matches!(part, Part::Waits(_))
            };
            round.parts.retain(|place, part| !is_left(place, part));
        }
        true
    }

    /// Uploads the moves of rounds of which all has come.
    fn upload_rounds(&mut self) {
        let has_come = |round: &Round| {
            let mut parts = round.parts.values();
            round.moves.is_none() && parts.all(|part| matches!(part, Part::Come(_)))
        };
        while let Some(index) = self.clean.rounds.iter().position(has_come) {
            let parts = std::mem::take(&mut self.clean.rounds[index].parts);
            let (builder, moved) = self.moves_of(parts);
            self.counters.bytes_moved += moved;
            if moved > 0 && self.session.is_open() {
                let freed = self.blocks_of_victims(index) * self.block() - moved;
                self.clean.rounds[index].moves = Some((self.upload.number_next, freed));
                self.upload_moved(builder);
            } else {
                self.clean.rounds.remove(index);
            }
        }
    }

    fn blocks_of_victims(&self, round: usize) -> u64 {
        let victims = self.clean.rounds[round].victims.iter();
        victims.filter_map(|number| self.map.state(*number)).map(|state| state.blocks).sum()
    }

    /// What still lives of these, and its bytes.
    fn moves_of(&self, parts: BTreeMap<(u64, u64), Part>) -> (Builder, u64) {
        let mut builder = Builder::new(self.plan.block_bytes, self.plan.compression);
        let mut moved = 0;
        for ((number, _), part) in parts {
            let Part::Come(runs) = part else { unreachable!("all have come") };
            for (blocks, live) in runs {
                // What was written meanwhile lies elsewhere.
                if self.lives(&blocks, number) {
                    moved += live.len() as u64;
                    builder.add(blocks.start, &live, EntryKind::Moved(number));
                }
            }
        }
        (builder, moved)
    }

    /// Lets go of rounds whose moves are in the map.
    fn end_rounds(&mut self) {
        let applied = self.map.number;
        let is_over = |round: &mut Round| round.moves.is_some_and(|(number, _)| number <= applied);
        let over = self.clean.rounds.extract_if(.., is_over);
        let freed: u64 = over.filter_map(|round| round.moves).map(|(_, bytes)| bytes).sum();
        let bound = 2 * self.plan.limits.segment_bytes as i64;
        let granted = freed as i64 * GRANTED.0 / GRANTED.1;
        self.clean.allowance = (self.clean.allowance + granted).clamp(-bound, bound);
    }

    /// Whether a client's segment waits until a round has ended.
    pub(super) fn yields_to_cleaning(&self) -> bool {
        let is_behind = self.clean.is_behind && !self.clean.rounds.is_empty();
        let is_held = is_behind && self.clean.allowance <= 0 && !self.clean.is_stuck;
        is_held && !self.is_draining
    }

    /// A client's segment of so many bytes goes up.
    pub(super) fn on_segment_cut(&mut self, bytes: u64) {
        if self.clean.is_behind {
            self.clean.allowance -= bytes as i64;
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
