//! What of a level is dirty: since when, of which generation, and whether it can be read.
//!
//! How: a dirty slot's flags hold the epoch in which it became dirty, of sixteen, and whether its
//! generation has an odd number (see `drains.rs`); per volume both generations are counted.
//! Invariant: the counters are what the flags say.

use super::{DIRTY, EPOCH_SHIFT, EPOCHS, HELD, HOMED, Holding, Level, MARK, ODD};
use layby_types::{Nanos, Slot};

/// What of a volume's dirty slots belongs to one of its two youngest generations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation {
    pub(crate) dirty: u32,
    pub(crate) sick: u32,
}

impl Holding {
    /// What is dirty of the generations of odd number, or of the others.
    pub(crate) fn generation(&self, is_odd: bool) -> Generation {
        let odd = self.odd;
        let even = Generation { dirty: self.dirty - odd.dirty, sick: self.sick - odd.sick };
        if is_odd { odd } else { even }
    }
}

impl Level {
    /// Whether a dirty slot belongs to a generation of odd number.
    #[inline]
    pub(crate) fn is_odd(&self, slot: Slot) -> bool {
        self.is_dirty(slot) && self.flag(slot, ODD)
    }

    /// Dirty and unreadable: neither destaged nor evicted until it is written again.
    pub(crate) fn is_sick(&self, slot: Slot) -> bool {
        self.flag(slot, DIRTY) && self.flag(slot, MARK)
    }

    pub(crate) fn set_sick(&mut self, volume: u16, slot: Slot) {
        assert!(self.is_dirty(slot) && !self.is_sick(slot), "a dirty block falls sick once");
        let is_odd = u32::from(self.is_odd(slot));
        let holding = self.holding_mut(volume);
        holding.sick += 1;
        holding.odd.sick += is_odd;
        self.flags[slot.0 as usize] |= MARK;
        self.sick += 1;
    }

    /// The slot's version is dirty, of a generation of odd number or of another one.
    pub(crate) fn set_dirty(&mut self, now: Nanos, volume: u16, slot: Slot, is_odd: bool) {
        assert!(self.kind.is_persistent() && !self.is_borrowed(slot), "a clean-only place");
        assert!(!self.is_ahead(slot), "what becomes dirty is ranked first");
        self.set_clean(volume, slot);
        self.dirtied_last = now;
        let epoch = self.current_epoch(now);
        self.epoch_counts[epoch] += 1;
        let odd = if is_odd { ODD } else { 0 };
        self.flags[slot.0 as usize] = HELD | DIRTY | odd | ((epoch as u8) << EPOCH_SHIFT);
        self.dirty += 1;
        let holding = self.holding_mut(volume);
        holding.dirty += 1;
        holding.odd.dirty += u32::from(is_odd);
    }

    /// A dirty slot belongs to a generation of odd number from now on, or to another one.
    pub(crate) fn set_odd(&mut self, volume: u16, slot: Slot, is_odd: bool) {
        assert!(self.is_dirty(slot) && !self.is_sick(slot), "a version that was written back");
        let was_odd = self.is_odd(slot);
        let flags = &mut self.flags[slot.0 as usize];
        *flags = if is_odd { *flags | ODD } else { *flags & !ODD };
        let odd = &mut self.holding_mut(volume).odd;
        odd.dirty = odd.dirty + u32::from(is_odd) - u32::from(was_odd);
    }

    /// So many slots of the volume more are being stored and will be dirty.
    pub(crate) fn begin_storing(&mut self, volume: u16, slots: u32) {
        self.storing += slots;
        self.holding_mut(volume).storing += slots;
    }

    /// So many of them are dirty now, or will not be.
    pub(crate) fn end_storing(&mut self, volume: u16, slots: u32) {
        self.storing -= slots;
        self.holding_mut(volume).storing -= slots;
    }

    /// The backing store has got this version from the level, now or in an earlier life.
    pub(crate) fn set_homed(&mut self, slot: Slot) {
        assert!(self.kind.is_persistent() && !self.is_dirty(slot), "a clean persistent copy");
        self.flags[slot.0 as usize] |= HOMED;
    }

    pub(crate) fn set_clean(&mut self, volume: u16, slot: Slot) {
        if !self.is_dirty(slot) {
            return;
        }
        let epoch = usize::from(self.flags[slot.0 as usize] >> EPOCH_SHIFT);
        self.epoch_counts[epoch] -= 1;
        let (is_sick, is_odd) = (self.is_sick(slot), u32::from(self.is_odd(slot)));
        self.flags[slot.0 as usize] = HELD | HOMED;
        self.dirty -= 1;
        self.sick -= u32::from(is_sick);
        if is_sick {
            self.sick_destaging.remove(&self.keys[slot.0 as usize]);
        }
        let holding = self.holding_mut(volume);
        holding.dirty -= 1;
        holding.sick -= u32::from(is_sick);
        holding.odd.dirty -= is_odd;
        holding.odd.sick -= is_odd * u32::from(is_sick);
    }

    /// Dirty blocks are dated by epochs of at least a second; while all other epochs still have
    /// dirty blocks the current one goes on, so an age is never understated.
    fn current_epoch(&mut self, now: Nanos) -> usize {
        if self.epoch_counts[self.epoch] == 0 {
            self.epoch_starts[self.epoch] = now;
        } else if now.since(self.epoch_starts[self.epoch]) >= Nanos::from_secs(1)
            && let Some(empty) = (0..EPOCHS).find(|e| self.epoch_counts[*e] == 0)
        {
            self.epoch = empty;
            self.epoch_starts[empty] = now;
        }
        self.epoch
    }

    /// An upper bound of the time that any block has been dirty; zero when none is.
    pub(crate) fn dirty_age(&self, now: Nanos) -> Nanos {
        let dated =
            self.epoch_counts.iter().zip(self.epoch_starts).filter(|(count, _)| **count > 0);
        dated.map(|(_, start)| now.since(start)).max().unwrap_or_default()
    }
}
