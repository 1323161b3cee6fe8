//! Which slot holds a block: a table of tags and slots, without the keys.
//!
//! How: open addressing with linear probing, home by the tag, so that an entry can be moved without
//! its key; removal moves the followers back. The caller verifies a candidate by the key that it
//! keeps for the slot. Invariant: no free place lies between an entry's home and the entry; at most
//! five in eight places are taken. Cost: one or two cache lines per look-up; 12.8 bytes per slot.

use std::ops::ControlFlow;

/// No slot: a free place, or nothing found.
pub(crate) const NONE: u32 = u32::MAX;
/// Places looked at by a guess: those that share a cache line at best.
const GUESSES: usize = 8;
/// Entries of slots that were given away, at most; see [`Table::remove`].
pub(crate) const STALE_MAX: usize = 64;

#[derive(Clone, Copy)]
struct Place {
    tag: u32,
    slot: u32,
}

const FREE: Place = Place { tag: 0, slot: NONE };

/// See the file's header.
pub(crate) struct Table {
    places: Vec<Place>,
}

impl Table {
    /// Room for `slots` slots.
    pub(crate) fn new(slots: u32) -> Self {
        let places = u64::from(slots) * 8 / 5 + (GUESSES + STALE_MAX) as u64;
        Table { places: vec![FREE; places as usize] }
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.places.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, place: usize) -> usize {
        if place + 1 == self.places.len() { 0 } else { place + 1 }
    }

    /// Steps from one place forward to another.
    #[inline]
    fn steps(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }

    /// Reads where `tag` is at home, for the effect on the CPU's caches.
    #[inline]
    pub(crate) fn touch(&self, tag: u32) -> u32 {
        self.places[self.home(tag)].slot
    }

    /// The first slot near its home that has `tag`: a guess, to be verified.
    #[inline]
    pub(crate) fn guess(&self, tag: u32) -> u32 {
        let home = self.home(tag);
        let end = (home + GUESSES).min(self.places.len());
        let near = self.places[home..end].iter();
        near.take_while(|place| place.slot != NONE)
            .find(|place| place.tag == tag)
            .map_or(NONE, |place| place.slot)
    }

    /// The slot with `tag` that `is_it`, if there is one.
    #[inline]
    pub(crate) fn find(&self, tag: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(tag);
        loop {
            let place = self.places[at];
            if place.slot == NONE {
                return None;
            }
            if place.tag == tag && is_it(place.slot) {
                return Some(place.slot);
            }
            at = self.after(at);
        }
    }

    /// Adds `slot`, which is not here.
    #[inline]
    pub(crate) fn add(&mut self, tag: u32, slot: u32) {
        let mut at = self.home(tag);
        while self.places[at].slot != NONE {
            at = self.after(at);
        }
        self.places[at] = Place { tag, slot };
    }

    /// Removes `slot` under `tag`, which is here. It may have been given to another block since: up
    /// to [`STALE_MAX`] entries may wait for their removal, as the caller verifies what it finds.
    #[inline]
    pub(crate) fn remove(&mut self, tag: u32, slot: u32) {
        let mut hole = self.home(tag);
        while self.places[hole].slot != slot || self.places[hole].tag != tag {
            assert!(self.places[hole].slot != NONE, "slot {slot} is in the table");
            hole = self.after(hole);
        }
        let mut at = hole;
        while let ControlFlow::Continue(moved) = self.close(hole, self.after(at)) {
            at = self.after(at);
            hole = if moved { at } else { hole };
        }
        self.places[hole] = FREE;
    }

    /// Moves the entry at `at` into `hole` if that lies between its home and it; ends at a free
    /// place.
    #[inline]
    fn close(&mut self, hole: usize, at: usize) -> ControlFlow<(), bool> {
        let place = self.places[at];
        if place.slot == NONE {
            return ControlFlow::Break(());
        }
        let moves = self.steps(self.home(place.tag), at) >= self.steps(hole, at);
        if moves {
            self.places[hole] = place;
        }
        ControlFlow::Continue(moves)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;
    use std::collections::BTreeMap;

    /// Goal: the table holds what a map holds, at full load, around its end, with equal tags.
    /// Method: random additions and removals with few tags, all at the edges of the range.
    #[test]
    fn matches_a_map() {
        for seed in 0..50 {
            let (mut rng, mut table) = (Rng::new(seed), Table::new(40));
            let mut model = BTreeMap::new();
            for _ in 0..2000 {
                let slot = rng.below(40) as u32;
                if let Some(tag) = model.remove(&slot) {
                    table.remove(tag, slot);
                } else {
                    let tag = (rng.below(12) as u32).wrapping_sub(6) << rng.below(31);
                    table.add(tag, slot);
                    model.insert(slot, tag);
                }
                for slot in 0..40 {
                    let tag = model.get(&slot).copied();
                    let found = table.find(tag.unwrap_or(7), |found| found == slot);
                    assert_eq!(found, tag.map(|_| slot), "SEED={seed}");
                }
            }
        }
    }
}
