//! What of a level's wear the cache decides: copies and dirty blocks that could do without.
//!
//! How: the host charges every byte that its store writes; before a clean copy of a read is stored,
//! and before a dirty block that may go home is, the level's budget is asked by the class's rank.
//! Invariant: a level without a budget refuses nothing, and nothing is decided otherwise than
//! before there were budgets. A block whose home fails is never sent there to spare flash.
//! Cost: one look where there is no budget. Not for: what is lost when it is not written.

use crate::cache::Cache;
use layby_policy::wear::{Wear, WearRank, WearUse};
use layby_types::{LevelIndex, Nanos};

/// Blocks of a client's write at least that are worth passing by: the log must be told in a record
/// of its own that older ones are dead.
pub const BYPASS_BLOCKS_MIN: u32 = 16;

/// What a level's budget refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WearRefused {
    /// Blocks read that were not kept in the level.
    pub copies: u64,
    /// Dirty blocks that went home instead.
    pub dirty: u64,
}

/// A level's budget.
pub(crate) struct LevelWear {
    wear: Wear,
    refused: WearRefused,
}

impl Cache {
    /// From now on the level's wear is counted and, with an endurance, bounded.
    pub fn set_wear(&mut self, level: LevelIndex, wear: Wear) {
        let refused = WearRefused::default();
        self.wear[usize::from(level.0)] = Some(LevelWear { wear, refused });
    }

    /// The level's wear, where it is counted.
    #[must_use]
    pub fn wear(&self, level: LevelIndex) -> Option<(&Wear, WearRefused)> {
        let level = self.wear[usize::from(level.0)].as_ref()?;
        Some((&level.wear, level.refused))
    }

    /// The level's store wrote so many bytes to its device.
    pub fn charge_wear(&mut self, level: LevelIndex, bytes: u64, now: Nanos) {
        if let Some(level) = &mut self.wear[usize::from(level.0)] {
            level.wear.charge(bytes, now);
        }
    }

    /// Whether `blocks` of `volume`, which could do without, may be written to the level.
    pub(crate) fn wear_admits(
        &mut self,
        now: Nanos,
        level: usize,
        volume: u16,
        what: WearUse,
        blocks: u32,
    ) -> bool {
        let is_admitted = self.wear_allows(now, level, volume, what);
        let Some(level) = &mut self.wear[level] else { return true };
        let refused = match what {
            WearUse::Copy => &mut level.refused.copies,
            WearUse::Dirty => &mut level.refused.dirty,
        };
        *refused += if is_admitted { 0 } else { u64::from(blocks) };
        is_admitted
    }

    /// The same of blocks that are not there yet: nothing counts as refused.
    pub(crate) fn wear_allows(
        &mut self,
        now: Nanos,
        level: usize,
        volume: u16,
        what: WearUse,
    ) -> bool {
        if self.wear[level].as_ref().is_none_or(|level| level.wear.endurance().is_none()) {
            return true;
        }
        let rank = self.wear_rank(volume);
        self.wear[level].as_mut().is_none_or(|level| level.wear.admits(what, rank, now))
    }

    /// Whether dirty blocks may go home instead of into the level, and had better.
    pub(crate) fn passes_by(&mut self, now: Nanos, level: usize, volume: u16, blocks: u32) -> bool {
        self.volumes.get(volume).fault.is_none()
            && !self.wear_admits(now, level, volume, WearUse::Dirty, blocks)
    }

    /// A dirty block went home instead of into the level; true.
    pub(crate) fn note_passed_by(&mut self, level: usize) -> bool {
        if let Some(level) = &mut self.wear[level] {
            level.refused.dirty += 1;
        }
        true
    }

    /// The volume's class among the ranks that there are.
    fn wear_rank(&self, volume: u16) -> WearRank {
        let mine = self.volumes.class(volume).rank;
        let mut ranks = [false; 256];
        let classes = self.spec.classes.iter().filter(|class| class.levels != 0);
        classes.for_each(|class| ranks[usize::from(class.rank)] = true);
        ranks[usize::from(mine)] = true;
        let count = |ranks: &[bool]| ranks.iter().filter(|used| **used).count().min(255) as u8;
        WearRank { place: count(&ranks[..usize::from(mine)]), of: count(&ranks) }
    }
}
