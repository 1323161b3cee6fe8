//! The world as the owner that says what becomes of a victim's live blocks.
//!
//! How: half of what is at rest is dropped where it is clean, and waits for a destage where it is
//! dirty, which ends some turns later. Invariant: each answer is of a block that nothing else uses.

use super::{Home, World};
use crate::store::Slot;
use layby_cache::Cleaned;

impl World {
    /// Drops some clean blocks of a victim, and has some dirty ones wait for a destage.
    pub(super) fn on_cleaning(&mut self, slots: &[Slot]) {
        let mut answers = Vec::new();
        for slot in slots {
            let owner = self.log_owners.get(slot.0 as usize).copied().flatten();
            let at_rest = owner.filter(|owner| {
                self.homes[owner.key] == Some(Home::Log(*slot)) && !self.busy[owner.key]
            });
            answers.push(match at_rest.filter(|_| self.rng.chance(1, 2)) {
                None => Cleaned::Copy,
                Some(owner) if owner.dirty => {
                    self.left.push(*slot);
                    Cleaned::Destaging
                }
                Some(owner) => {
                    self.homes[owner.key] = None;
                    self.log_owners[slot.0 as usize] = None;
                    self.log.free(*slot);
                    self.seen[3] += 1;
                    Cleaned::Dropped
                }
            });
        }
        self.log.cleaned(&mut self.io, &answers);
    }

    /// Ends some destages that cleaning waits for: the block leaves the level, or stays.
    pub(super) fn end_left(&mut self) {
        for slot in core::mem::take(&mut self.left) {
            if self.rng.chance(2, 3) {
                self.left.push(slot);
                continue;
            }
            let owner = self.log_owners[slot.0 as usize];
            let key = owner.map(|owner| owner.key).filter(|key| {
                self.homes[*key] == Some(Home::Log(slot))
                    && !self.busy[*key]
                    && self.may_go_below(*key)
                    && self.floor[*key] == self.current[*key]
            });
            let Some(key) = key else {
                self.log.cleaning_kept(slot);
                continue;
            };
            self.backing[key] = self.current[key];
            self.homes[key] = None;
            self.log_owners[slot.0 as usize] = None;
            self.log.free(slot);
            self.seen[4] += 1;
        }
    }
}
