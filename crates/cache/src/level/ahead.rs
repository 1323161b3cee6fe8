//! Slots of a level whose blocks were read ahead and not read yet.
//!
//! How: they are not in the ranking. A block that is read enters it as one that was fetched at
//! that moment; the oldest beyond a bounded part of the level, and those that were not read for a
//! turn of the level, enter it at the cold end.
//! Invariant: a clean slot is marked exactly while it is among them, and none of them is dirty.
//! Cost: see [`layby_policy::Prefetched`]; a hit on another slot pays for one comparison.

use super::{AGE_MAX, DIRTY, Level, MARK, Resident, STAMPS_PER_TURN, own};
use layby_policy::{Eviction, Group, Moment, Warmth};
use layby_types::{BlockKey, Slot};

/// Of a level, and of what a volume may hold of it, one part in so many may be read ahead.
pub(crate) const AHEAD_PART: u32 = 16;
/// Slots that one search for a victim looks at.
const LOOKS_MAX: usize = 64;

impl Level {
    /// Whether the slot's block was read ahead and not read yet.
    #[inline]
    pub(crate) fn is_ahead(&self, slot: Slot) -> bool {
        self.flags[slot.0 as usize] & (MARK | DIRTY) == MARK
    }

    /// Volumes that have such blocks here.
    pub(crate) fn ahead_volumes(&self) -> u32 {
        self.ahead.groups()
    }

    fn ahead_max(&self) -> u32 {
        (self.limit / AHEAD_PART).max(1)
    }

    /// The held slot now answers for `key`, which was read ahead.
    pub(crate) fn insert_ahead(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        slot: Slot,
        key: BlockKey,
    ) {
        assert!(!self.is_borrowed(slot), "what is read ahead is not lent room");
        self.index_key(volume, slot, key);
        self.flags[slot.0 as usize] |= MARK;
        // Its first read advances the level's clock: one that nothing reads ages nothing.
        self.touched[slot.0 as usize] = self.stamp();
        self.ahead.insert(own(volume), slot);
        while self.ahead.len() > self.ahead_max()
            && let Some((group, oldest)) = self.ahead.oldest()
        {
            self.rank_ahead(moment, group, oldest, Warmth::Cold);
        }
    }

    /// Where the slot's block was read ahead it counts as read now, whatever has become of it.
    pub(crate) fn settle_ahead(&mut self, moment: &mut Moment<'_>, volume: u16, slot: Slot) {
        if self.is_ahead(slot) {
            self.rank_ahead(moment, own(volume), slot, Warmth::Warm);
        }
    }

    /// Moves a slot into the ranking.
    pub(super) fn rank_ahead(
        &mut self,
        moment: &mut Moment<'_>,
        group: Group,
        slot: Slot,
        warmth: Warmth,
    ) {
        self.forget_ahead(slot);
        if warmth == Warmth::Cold {
            self.cool(slot);
        }
        let key = self.key(slot);
        self.ranking.on_insert(moment, group, slot, key, warmth);
    }

    /// What goes to the cold end is as old as can be: its group is judged by its coldest block, and
    /// a young one there would hide the old ones behind it from all other groups.
    pub(super) fn cool(&mut self, slot: Slot) {
        self.touched[slot.0 as usize] = self.stamp().wrapping_sub(AGE_MAX);
    }

    pub(super) fn forget_ahead(&mut self, slot: Slot) {
        self.ahead.remove(slot);
        self.flags[slot.0 as usize] &= !MARK;
    }

    /// The group's oldest such block has not been read for a turn of the level: it leaves next.
    pub(super) fn expire_ahead(&mut self, moment: &mut Moment<'_>, group: Group) {
        let oldest = self.ahead.oldest_first(group).next();
        let is_old = |slot: &Slot| u32::from(self.age_of(*slot)) >= STAMPS_PER_TURN;
        if let Some(oldest) = oldest.filter(is_old) {
            self.rank_ahead(moment, group, oldest, Warmth::Cold);
        }
    }

    /// Takes the group's oldest such slot that `accept` takes: nothing else of it may leave.
    pub(super) fn evict_ahead(
        &mut self,
        group: Group,
        accept: &mut dyn FnMut(&Resident) -> bool,
    ) -> Option<Slot> {
        let resident = |slot: &Slot| Resident::new(self.key(*slot), self.flags[slot.0 as usize]);
        let found =
            self.ahead.oldest_first(group).take(LOOKS_MAX).find(|slot| accept(&resident(slot)));
        let slot = found?;
        self.forget_ahead(slot);
        Some(slot)
    }
}
