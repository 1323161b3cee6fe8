//! What a log's cleaner does with each live block of its victim, and which segment it empties.
//!
//! How: a victim is chosen by what emptying it gains, what that costs and how old it is. A live
//! block is copied, but for the coldest part of the level while hardly a slot is free: what the
//! eviction order would take soon is dropped where it is clean, and destaged where it is dirty, so
//! that it can be dropped instead of copied. Copies and overwrites are kept apart by age.
//! Invariants: only a settled, clean block is dropped; nothing leaves what is reserved or sized;
//! the answer for a block never waits for a backing store. Same inputs, same answers.
//! Cost: constant time per call; a sample of ages takes [`SAMPLES`] looks, 64 times per turn of the
//! level at most, and no hit pays for it. Not for: making room; that is the eviction's.
//! Sources: LFS (cost-benefit), SepBIT (lifespans), zDrop of Z-CacheLib (dropping when cleaning).

use crate::{Standing, mix};

/// Slots whose age is sampled at once.
pub const SAMPLES: u32 = 256;
/// Ages below this are told apart one by one, those above to an eighth of their octave.
const AGES_EXACT: usize = 256;
/// Parts of an octave, in binary digits.
const PART_SHIFT: u32 = 3;
/// Ages that are told apart.
const AGES: usize = AGES_EXACT + ((u16::BITS - AGES_EXACT.ilog2()) << PART_SHIFT) as usize;
/// Short-lived segments whose lives are remembered.
const LIVES: usize = 16;
/// Binary digits behind the point of a score: segments of a few records differ by less than one.
const SCORE_SHIFT: u32 = 16;

// ---- which segment ----

/// A closed segment as the choice of a victim sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Blocks that it holds when it is full of live ones and written in long batches.
    pub blocks_dense: u32,
    /// Live blocks.
    pub blocks_live: u32,
    /// Sequence numbers since it was opened.
    pub age: u64,
}

/// What emptying a segment is worth; the highest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score(u128);

/// The score of a segment: (dense - live) * age / (dense + live); `None` where nothing is gained.
#[must_use]
pub fn score(segment: SegmentView) -> Option<Score> {
    let (dense, live) = (u128::from(segment.blocks_dense), u128::from(segment.blocks_live));
    let gain = dense.checked_sub(live).filter(|gain| *gain > 0)?;
    Some(Score(((gain * u128::from(segment.age)) << SCORE_SHIFT) / (dense + live)))
}

// ---- what becomes of a block ----

/// How much of a level cleaning may let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The coldest part of the level, in percent, that is dropped or destaged; zero for nothing.
    pub cold_percent: u8,
    /// Free slots, in percent of the level, above which nothing is.
    pub free_percent: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

impl Limits {
    /// The least of each: with it all is copied.
    pub const MIN: Limits = Limits { cold_percent: 0, free_percent: 0 };
    /// The most of each.
    pub const MAX: Limits = Limits { cold_percent: 50, free_percent: 20 };
    /// Log writes fall by a quarter to a half where a level is full, for 0.3 points of hits.
    pub const DEFAULT: Limits = Limits { cold_percent: 15, free_percent: 3 };

    /// Whether both are within their bounds.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.cold_percent <= Self::MAX.cold_percent && self.free_percent <= Self::MAX.free_percent
    }
}

/// How many segments a log has free, and how many it must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Free now.
    pub free: u32,
    /// With so many or fewer clients' writes wait, so that no victim may wait for a backing store.
    /// To be well below the number at which cleaning starts: between the two, victims wait.
    pub kept: u32,
}

/// The level that is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelState {
    /// Slots that may be held.
    pub slots: u32,
    /// Of these, free ones, and those that cleaning will have freed once its destages end.
    pub slots_free: u32,
    /// Its log's segments.
    pub segments: Segments,
}

/// A live block of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Nothing is being done to it, and its backing store can be relied on.
    pub is_settled: bool,
    /// The backing store does not have this version.
    pub is_dirty: bool,
    /// How much of the level is colder, in percent; see [`AgeQuantiles::colder_percent`].
    pub colder_percent: u8,
    /// How its volume and class stand towards their shares once it has left.
    pub standing: Standing,
}

/// What is done with a live block of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is written to another segment.
    Copy,
    /// It leaves the level now.
    Drop,
    /// It is written back, and leaves the level then.
    Destage,
}

/// What becomes of a live block of a victim.
#[must_use]
pub fn verdict(limits: Limits, level: LevelState, block: Block) -> Verdict {
    let is_cold = block.colder_percent < limits.cold_percent;
    let is_full = u64::from(level.slots_free) * 100
        <= u64::from(level.slots) * u64::from(limits.free_percent);
    let may_leave = matches!(block.standing, Standing::Borrower | Standing::AboveGuarantee);
    if !(is_cold && is_full && may_leave && block.is_settled) {
        return Verdict::Copy;
    }
    match block.is_dirty {
        false => Verdict::Drop,
        true if level.segments.free > level.segments.kept => Verdict::Destage,
        true => Verdict::Copy,
    }
}

/// How old a level's blocks are, from a sample.
#[derive(Clone, Debug)]
pub struct AgeQuantiles {
    /// By age, samples that were older.
    older: [u16; AGES],
    samples: u16,
    /// Slots drawn so far: the draws of the next sample follow from it.
    draws: u64,
    /// The stamp at which the last sample was taken.
    stamp: Option<u16>,
}

impl Default for AgeQuantiles {
    fn default() -> Self {
        AgeQuantiles { older: [0; AGES], samples: 0, draws: 0, stamp: None }
    }
}

impl AgeQuantiles {
    /// Takes a new sample if the level's stamp is not that of the last one. `age_of` says the age
    /// of the block in a slot, `None` for a slot without one.
    pub fn refresh(&mut self, stamp: u16, slots: u32, age_of: impl Fn(u32) -> Option<u16>) {
        if self.stamp.replace(stamp) == Some(stamp) {
            return;
        }
        let mut found = [0_u16; AGES];
        self.samples = 0;
        for index in 0..slots.min(SAMPLES) {
            // Neighbours are of an age, and a stride meets every second or fourth of a pattern.
            let slot = if slots <= SAMPLES { index } else { self.draw(slots) };
            if let Some(age) = age_of(slot) {
                found[place_of(age)] += 1;
                self.samples += 1;
            }
        }
        let mut older = 0;
        for (here, found) in self.older.iter_mut().zip(found).rev() {
            *here = older;
            older += found;
        }
    }

    fn draw(&mut self, slots: u32) -> u32 {
        self.draws += 1;
        ((u128::from(mix(self.draws)) * u128::from(slots)) >> 64) as u32
    }

    /// How much of the level is colder than a block of this age, in percent, rounded down. Blocks
    /// whose ages are not told apart are ordered by `tie`, which depends on the block alone. What
    /// was used within the last stamp is warm, whatever the others are.
    #[must_use]
    pub fn colder_percent(&self, age: u16, tie: u8) -> u8 {
        if age == 0 || self.samples == 0 {
            return 100;
        }
        let age = place_of(age);
        let (older, older_or_same) = (self.older[age], self.older[age - 1]);
        let same = u32::from(older_or_same - older);
        let colder = (u32::from(older) << 8) + same * u32::from(tie);
        (colder * 100 / (u32::from(self.samples) << 8)) as u8
    }
}

/// Where an age is counted; older ones at the same place or behind it.
fn place_of(age: u16) -> usize {
    if usize::from(age) < AGES_EXACT {
        return usize::from(age);
    }
    let octave = age.ilog2();
    let part = usize::from(age >> (octave - PART_SHIFT)) & ((1 << PART_SHIFT) - 1);
    AGES_EXACT + ((octave - AGES_EXACT.ilog2()) << PART_SHIFT) as usize + part
}

// ---- which stream ----

/// Which of two streams a copy goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStream {
    /// Written not long ago.
    Young,
    /// As old as the level, or older.
    Old,
}

/// The stream of a copy whose record was written `age` sequence numbers ago, in a level with so
/// many live blocks. Copies keep the number of their record.
#[must_use]
pub fn stream_of_copy(age: u64, blocks_live: u32) -> CopyStream {
    if age > u64::from(blocks_live) { CopyStream::Old } else { CopyStream::Young }
}

/// How long segments of short-lived blocks lived, in sequence numbers: what is overwritten within
/// the mean of the last sixteen is short-lived, too.
#[derive(Clone, Debug, Default)]
pub struct Lifespans {
    last: [u64; LIVES],
    count: u64,
}

impl Lifespans {
    /// A segment of short-lived blocks was emptied, this long after it was opened.
    pub fn note(&mut self, life: u64) {
        self.last[(self.count % LIVES as u64) as usize] = life;
        self.count += 1;
    }

    /// Whether a block is short-lived that dies in a segment opened so long ago. As long as nothing
    /// is known all are: otherwise no such segment was ever written, and nothing learned.
    #[must_use]
    pub fn is_short(&self, age: u64) -> bool {
        let known = (self.count as usize).min(LIVES);
        let sum: u128 = self.last[..known].iter().map(|life| u128::from(*life)).sum();
        known == 0 || u128::from(age) * known as u128 <= sum
    }
}

#[cfg(test)]
mod tests;
