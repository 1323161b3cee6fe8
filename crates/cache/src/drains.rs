//! Drains: what was written before one began is in the backing store when it ends.
//!
//! How: what becomes dirty belongs to its volume's current generation. A drain has the next one
//! begun as soon as no other than the current one is dirty, and ends when all older ones went home,
//! so that at most two are dirty at a time and a bit per slot tells them apart; what cannot be read
//! counts for neither. A newer version of a block takes the generation of the one that it replaces,
//! the older one where that was unreadable, until a destage that began in the current generation
//! has written the block.
//! Invariant: of a block that was dirty when a drain began the backing store has that version or a
//! newer one when the drain ends well. Writers that never stop keep no drain from its end.
//! Cost: nothing but a bit per slot where no drain is under way; else a look at the other levels
//! for each block that becomes dirty.

use crate::action::Action;
use crate::background::{Calm, SWEEP_LOOKS};
use crate::cache::Cache;
use crate::level::{Generation, Resident};
use crate::op::Piece;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use layby_policy::Moment;
use layby_types::planted::{Plant, is_planted};
use layby_types::{BlockKey, ErrorKind, Nanos, Slot, VolumeId};

/// A drain under way.
#[derive(Debug)]
pub(crate) struct Drain {
    ticket: u64,
    /// What it drains; everything without.
    volume: Option<u16>,
    /// Volumes that it still waits for, each with its generation when the drain began.
    left: Vec<(u16, u32)>,
    /// Of one that it waits for no more not all could be read then. A newer version that is not
    /// home may have replaced that since.
    has_unreadable: bool,
}

impl Drain {
    fn waits_for(&self, volume: u16) -> bool {
        // The volumes are in the order of their numbers.
        self.left.binary_search_by_key(&volume, |(number, _)| *number).is_ok()
    }
}

impl Cache {
    /// Destages what is dirty of a volume, or of all, now; ends with [`Action::Drained`]. What
    /// becomes dirty meanwhile may stay so.
    pub fn drain(
        &mut self,
        moment: &mut Moment<'_>,
        ticket: u64,
        volume: Option<VolumeId>,
        actions: &mut Vec<Action>,
    ) {
        let number = volume.map(|id| self.volumes.number(id));
        if number == Some(None) {
            actions.push(Action::Drained { ticket, result: Err(ErrorKind::Closed) });
            return;
        }
        let volume = number.flatten();
        let its = self.volumes.iter().filter(|(number, _)| volume.is_none_or(|v| v == *number));
        let left = its.map(|(number, state)| (number, state.generation)).collect();
        core::mem::swap(&mut self.actions, actions);
        self.drains.push(Drain { ticket, volume, left, has_unreadable: false });
        self.volumes.places.sweep_again();
        self.pump(moment);
        core::mem::swap(&mut self.actions, actions);
    }

    /// Ends drains that have nothing left to wait for, or nothing that can go home.
    pub(crate) fn end_drains(&mut self) {
        if self.drains.is_empty() {
            return;
        }
        for mut drain in core::mem::take(&mut self.drains) {
            drain.left.retain(|(number, began)| {
                let is_home = self.went_home(*number, *began);
                drain.has_unreadable |= is_home && self.has_unreadable(Some(*number));
                !is_home
            });
            let result = if drain.left.is_empty() {
                let has_unreadable = drain.has_unreadable || self.has_unreadable(drain.volume);
                if has_unreadable { Err(ErrorKind::Corrupt) } else { Ok(()) }
            } else if drain.left.iter().all(|(number, _)| self.volumes.get(*number).is_stuck) {
                Err(ErrorKind::Retry)
            } else {
                self.drains.push(drain);
                continue;
            };
            self.actions.push(Action::Drained { ticket: drain.ticket, result });
        }
    }

    /// Whether all that can be read of a volume's generations up to one has gone home.
    fn went_home(&mut self, number: u16, began: u32) -> bool {
        let current = self.volumes.get(number).generation;
        if self.readable(number, current) + self.readable(number, current.wrapping_sub(1)) == 0 {
            return true;
        }
        if self.readable(number, current.wrapping_sub(1)) > 0 {
            return false;
        }
        if current == began {
            self.volumes.get_mut(number).generation = current.wrapping_add(1);
        }
        current != began
    }

    /// Dirty blocks of a volume and a generation that can be read.
    fn readable(&self, number: u16, generation: u32) -> u32 {
        let held = self.levels.iter().map(|level| level.holding(number));
        let held = held.map(|holding| holding.generation(is_odd(generation)));
        held.map(|Generation { dirty, sick }| dirty - sick).sum()
    }

    /// What is lost, or dirty and unreadable, is not in the backing store either.
    fn has_unreadable(&self, volume: Option<u16>) -> bool {
        let is_sick = |number| self.levels.iter().any(|level| level.holding(number).sick > 0);
        let is_lost = |number| self.lost.of_volume(self.volumes.get(number).id).next().is_some();
        match volume {
            Some(number) => is_sick(number) || is_lost(number),
            None => !self.lost.is_empty() || self.volumes.iter().any(|(n, _)| is_sick(n)),
        }
    }

    /// Drains that want the volume's blocks home end.
    pub(crate) fn fail_drains(&mut self, number: u16, kind: ErrorKind) {
        for drain in core::mem::take(&mut self.drains) {
            if drain.volume.is_none_or(|v| v == number) {
                let result = Err(kind);
                self.actions.push(Action::Drained { ticket: drain.ticket, result });
            } else {
                self.drains.push(drain);
            }
        }
    }

    /// The volume is removed: no drain waits for it.
    pub(crate) fn forget_drains(&mut self, number: u16) {
        self.drains.retain(|drain| drain.volume != Some(number));
        for drain in &mut self.drains {
            drain.left.retain(|(left, _)| *left != number);
        }
    }

    /// The next dirty block that the gate, or else a drain, wants home.
    pub(crate) fn next_dirty(&mut self, now: Nanos, index: usize, open: bool) -> Option<Slot> {
        if !open && self.drains.is_empty() {
            return None;
        }
        #[cfg(test)]
        (self.effort.sweeps += 1);
        let (volumes, drains) = (&self.volumes, &self.drains);
        let number = |dirty: &Resident| {
            volumes.number(dirty.key.volume()).expect("a dirty block has a volume")
        };
        let is_drained = |dirty: &Resident| {
            let number = number(dirty);
            dirty.odd != is_odd(volumes.get(number).generation)
                && drains.iter().any(|drain| drain.waits_for(number))
        };
        let calm = Calm { busy: &self.busy, destaging: &self.destaging, ranges: &self.ranges };
        let looks = if open { SWEEP_LOOKS } else { SWEEP_LOOKS * 4 };
        let is_any_paused = now < self.destage_not_before;
        self.levels[index].sweep(looks, &mut |dirty: &Resident| {
            let rests = is_any_paused && volumes.rests(dirty.key.volume(), now);
            !rests
                && !dirty.sick
                && (open || is_drained(dirty))
                && volumes.has_place(number(dirty))
                && calm.allows(dirty.key)
        })
    }

    /// An operation on blocks has ended for which others wait already: what a drain wants of them
    /// begins to go home before these lock them again, since a sweep finds blocks at rest only.
    pub(crate) fn destage_between(
        &mut self,
        moment: &mut Moment<'_>,
        number: u16,
        waiting: &VecDeque<Piece>,
    ) {
        if !self.drains.iter().any(|drain| drain.waits_for(number)) {
            return;
        }
        let current = is_odd(self.volumes.get(number).generation);
        for piece in waiting {
            let key = self.key(number, piece.block);
            for index in 0..self.levels.len() {
                let held = &self.levels[index];
                let calm =
                    Calm { busy: &self.busy, destaging: &self.destaging, ranges: &self.ranges };
                let found = held.find(number, key).filter(|slot| {
                    held.is_dirty(*slot) && !held.is_sick(*slot) && held.is_odd(*slot) != current
                });
                if let Some(slot) = found.filter(|_| calm.allows(key)) {
                    self.start_destage(moment, index, slot);
                }
            }
        }
    }

    /// A block's version in a level is dirty.
    pub(crate) fn set_dirty(
        &mut self,
        now: Nanos,
        volume: u16,
        (level, slot): (usize, Slot),
        key: BlockKey,
    ) {
        let current = is_odd(self.volumes.get(volume).generation);
        let is_older = |held: &crate::level::Level| {
            // One that cannot be read may be older than both generations that count.
            let is_it = |slot| held.is_sick(slot) || held.is_odd(slot) != current;
            held.find(volume, key).is_some_and(|slot| held.is_dirty(slot) && is_it(slot))
        };
        let takes_over = !self.drains.is_empty()
            && !is_planted(Plant::DrainOvertaken)
            && self.levels.iter().any(is_older);
        self.levels[level].set_dirty(now, volume, slot, current != takes_over);
        self.report_unreported(volume);
    }

    /// A version that a newer one has replaced is home since: what is dirty there is as new as the
    /// generation in which that destage began.
    pub(crate) fn renew_generation(
        &mut self,
        volume: u16,
        (level, slot): (usize, Slot),
        key: BlockKey,
        began: u32,
    ) {
        let current = self.volumes.get(volume).generation;
        let held = &mut self.levels[level];
        let is_its = held.is_dirty(slot) && !held.is_sick(slot) && held.key(slot) == key;
        if is_its && began == current {
            held.set_odd(volume, slot, is_odd(current));
        }
    }
}

fn is_odd(generation: u32) -> bool {
    !generation.is_multiple_of(2)
}
