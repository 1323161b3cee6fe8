//! What a level tells its log's cleaner of a slot: how cold it is, and for whom it is reserved.
//!
//! How: ages are the stamps that eviction compares; quantiles come from a sample of them.
//! Invariant: an age grows while the slot is not used, up to [`super::AGE_MAX`].
//! Cost: see [`layby_policy::cleaning::AgeQuantiles`]; hits pay nothing.

use super::{AGE_MAX, HELD, Level};
use crate::volumes::Volumes;
use layby_policy::Standing;
use layby_types::Slot;

impl Level {
    /// Stamps since the slot was used.
    pub(crate) fn age_of(&self, slot: Slot) -> u16 {
        self.stamp().wrapping_sub(self.touched[slot.0 as usize]).min(AGE_MAX)
    }

    /// Samples ages, where the last sample is of another stamp.
    pub(crate) fn refresh_ages(&mut self) {
        let stamp = self.stamp();
        let (flags, touched) = (&self.flags, &self.touched);
        self.ages.refresh(stamp, self.slots, |slot| {
            let at = slot as usize;
            (flags[at] & HELD != 0).then(|| stamp.wrapping_sub(touched[at]).min(AGE_MAX))
        });
    }

    /// How much of the level is colder than the slot, in percent; see `tie` there.
    pub(crate) fn colder_percent(&self, slot: Slot, tie: u8) -> u8 {
        self.ages.colder_percent(self.age_of(slot), tie)
    }

    /// How a volume stands towards its shares and its class's once this slot and all that are to
    /// leave by cleaning are gone, as if they were all its own.
    pub(crate) fn standing_without(
        &self,
        volumes: &Volumes,
        level: usize,
        (volume, slot): (u16, Slot),
    ) -> Standing {
        if self.is_borrowed(slot) {
            return Standing::Borrower;
        }
        let state = volumes.get(volume);
        let falls_to = |used: u32, share: u32| {
            share > 0 && used.saturating_sub(self.drops_pending).saturating_sub(1) <= share
        };
        let used = self.holding(volume).used;
        let class_share = volumes.classes[state.class].shares[level].guaranteed;
        if falls_to(used, state.shares[level].guaranteed)
            || falls_to(self.class_used[state.class], class_share)
        {
            Standing::Protected
        } else if state.sized.is_some_and(|sized| falls_to(used, sized[level])) {
            Standing::WithinShare
        } else {
            Standing::AboveGuarantee
        }
    }
}
