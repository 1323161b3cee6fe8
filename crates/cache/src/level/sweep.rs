//! A walk over a level's slots by number: what is found does not depend on how cold it is.
//!
//! How: a hand goes round and stays where the last walk ended, so that walks share the level. One
//! that pauses when it finds nothing has its own hand: what others pass by would be lost to it.
//! Invariant: what is found is in use, indexed and of the kind that was sought.
//! Cost: a byte per slot that is looked at; for a clean block also its key, and an index look-up
//! per candidate. One walk may look at all slots. Not for: choosing victims; that is the policy's.

use super::{DIRTY, HELD, Level, Resident};
use crate::hash::mix;
use layby_types::Slot;

impl Level {
    /// Moves the hand to the next dirty slot that `accept` takes, looking at the flags of `looks`.
    pub(crate) fn sweep(
        &mut self,
        looks: u32,
        accept: &mut dyn FnMut(&Resident) -> bool,
    ) -> Option<Slot> {
        let mut hand = self.hand;
        let found = self.sweep_from(&mut hand, looks, accept);
        self.hand = hand;
        found
    }

    /// [`Level::sweep`] with a hand of the caller's own.
    pub(crate) fn sweep_from(
        &self,
        hand: &mut u32,
        looks: u32,
        accept: &mut dyn FnMut(&Resident) -> bool,
    ) -> Option<Slot> {
        let mut left = looks.min(self.slots);
        while left > 0 {
            let from = *hand as usize;
            let row = &self.flags[from..self.slots.min(*hand + left) as usize];
            let at = row.iter().position(|flags| flags & DIRTY != 0).unwrap_or(row.len() - 1);
            let resident = Resident::new(self.keys[from + at], row[at]);
            (left, *hand) = (left - (at as u32 + 1), (*hand + at as u32 + 1) % self.slots);
            if resident.dirty && accept(&resident) {
                return Some(Slot((from + at) as u32));
            }
        }
        None
    }

    /// Moves the hand to the next clean block that `accept` takes, looking at all slots.
    pub(crate) fn sweep_clean(
        &mut self,
        accept: &mut dyn FnMut(&Resident) -> bool,
    ) -> Option<Slot> {
        for _ in 0..self.slots {
            let at = self.hand;
            self.hand = (at + 1) % self.slots;
            let (flags, key) = (self.flags[at as usize], self.keys[at as usize]);
            // What is being stored is held, and not indexed yet.
            let is_clean = flags & (HELD | DIRTY) == HELD;
            if is_clean
                && accept(&Resident::new(key, flags))
                && self.index.find(mix(key.0), |slot| *slot == at).is_some()
            {
                return Some(Slot(at));
            }
        }
        None
    }
}
