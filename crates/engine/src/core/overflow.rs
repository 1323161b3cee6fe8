//! Blocks that a start finds beyond the NVM level's slots: which of them find one after all.
//!
//! How: the store gives slots by its headers alone; once the levels' findings are compared, losers
//! leave theirs, which dirty blocks beyond the slots take, those of absent and write-protected
//! volumes first. Where that is not enough, blocks of other volumes give up their slots to what is
//! left of these, clean blocks first: they can go to their backing store.
//! Invariant: a slot and its bytes stay together; only the slots' numbers are exchanged.
//! Cost: a pass over the NVM level's blocks, where any lies beyond its slots; nothing otherwise.
//! Not for: the log, which finds slots for its dirty blocks by dropping clean ones.

use super::Core;
use super::stores::Level;
use crate::store::{Loser, RecoveredEntry};
use layby_types::{Slot, VolumeId};
use std::collections::BTreeSet;

impl Core {
    /// Has dirty blocks beyond the NVM level's slots take those of losers, and of blocks that can
    /// go to their backing store where theirs is not there, or is write-protected.
    pub(super) fn reseat(
        &mut self,
        entries: &mut [RecoveredEntry],
        losers: &mut [Loser],
        protected: &BTreeSet<VolumeId>,
    ) {
        let nvm = self.levels.iter().find_map(|level| match level {
            Level::Nvm(store) => Some(store.slot_count()),
            _ => None,
        });
        let Some(slots) = nvm else { return };
        let exchanged = self.exchange_slots(entries, losers, slots, protected);
        for level in &mut self.levels {
            if let Level::Nvm(store) = level {
                exchanged.iter().for_each(|(one, other)| store.exchange(*one, *other));
            }
        }
    }

    /// The same for so many slots, before the store hears of it; answers which are exchanged.
    pub(super) fn exchange_slots(
        &self,
        entries: &mut [RecoveredEntry],
        losers: &mut [Loser],
        slots: u32,
        protected: &BTreeSet<VolumeId>,
    ) -> Vec<(Slot, Slot)> {
        let is_held = |volume| self.is_absent(volume) || protected.contains(&volume);
        exchange(entries, losers, slots, is_held)
    }
}

/// Exchanges slots in what was found; answers which. Dirty blocks of held volumes can go nowhere.
fn exchange(
    entries: &mut [RecoveredEntry],
    losers: &mut [Loser],
    slots: u32,
    is_held: impl Fn(VolumeId) -> bool,
) -> Vec<(Slot, Slot)> {
    let is_stuck = |entry: &RecoveredEntry| entry.dirty && is_held(entry.key.volume());
    let is_beyond = |entry: &RecoveredEntry| entry.dirty && entry.slot.0 >= slots;
    let mut beyond: Vec<usize> = (0..entries.len()).filter(|at| is_beyond(&entries[*at])).collect();
    if beyond.is_empty() {
        return Vec::new();
    }
    beyond.sort_by_key(|at| !is_stuck(&entries[*at]));
    let mut left = losers.iter_mut().filter_map(|loser| match loser {
        Loser::Nvm(slot) if slot.0 < slots => Some(slot),
        _ => None,
    });
    let may_yield = |entry: &RecoveredEntry| entry.slot.0 < slots && !is_stuck(entry);
    let mut yielding: Vec<usize> =
        (0..entries.len()).filter(|at| may_yield(&entries[*at])).collect();
    yielding.sort_by_key(|at| entries[*at].dirty);
    let mut yielding = yielding.into_iter();
    let mut exchanged = Vec::new();
    for at in beyond {
        let old = entries[at].slot;
        let new = if let Some(slot) = left.next() {
            std::mem::replace(slot, old)
        } else if let Some(other) = yielding.next().filter(|_| is_stuck(&entries[at])) {
            std::mem::replace(&mut entries[other].slot, old)
        } else {
            break;
        };
        entries[at].slot = new;
        exchanged.push((old, new));
    }
    exchanged
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::{BlockIndex, BlockKey, Rng, Seq};
    use std::collections::BTreeSet;

    const SLOTS: u32 = 20;
    const ABSENT: VolumeId = VolumeId(2);

    fn found(rng: &mut Rng, slot: u32) -> RecoveredEntry {
        let key = BlockKey::new(VolumeId(1 + rng.below(3) as u32), BlockIndex(slot.into()));
        RecoveredEntry { slot: Slot(slot), key, seq: Seq(1), dirty: rng.chance(2, 3) }
    }

    /// Goal: slots are exchanged, none is lost or used twice; no dirty block of an absent volume is
    /// left without one where a loser or another volume's block has one, and no other block loses
    /// its slot where that is not needed, a dirty one none where a clean one could. Method: random
    /// findings, of which some lose; each answer is replayed on the slots.
    #[test]
    fn slots_go_to_what_cannot_leave() {
        for seed in 0..2_000 {
            let mut rng = Rng::new(seed);
            let count = SLOTS - 4 + rng.below(12) as u32;
            let (mut entries, mut losers) = (Vec::new(), Vec::new());
            for slot in 0..count {
                if rng.chance(1, 8) {
                    losers.push(Loser::Nvm(Slot(slot)));
                } else {
                    entries.push(found(&mut rng, slot));
                }
            }
            let before = entries.clone();
            let is_absent = |volume| volume == ABSENT;
            let exchanged = exchange(&mut entries, &mut losers, SLOTS, is_absent);
            let mut contents: Vec<u32> = (0..count).collect();
            for (one, other) in &exchanged {
                contents.swap(one.0 as usize, other.0 as usize);
            }
            let is_at = |entry: &RecoveredEntry, old: &RecoveredEntry| {
                contents[entry.slot.0 as usize] == old.slot.0 && entry.key == old.key
            };
            assert!(entries.iter().zip(&before).all(|(new, old)| is_at(new, old)), "{seed}");
            let lost = losers.iter().map(|loser| match loser {
                Loser::Nvm(slot) | Loser::Log(slot) => slot.0,
            });
            let used: BTreeSet<u32> = entries.iter().map(|it| it.slot.0).chain(lost).collect();
            assert_eq!(used.len() as u32, count, "{seed}: a slot is used twice");
            let has_slot = |entry: &RecoveredEntry| entry.slot.0 < SLOTS;
            let is_stuck = |entry: &RecoveredEntry| entry.dirty && entry.key.volume() == ABSENT;
            let is_short = entries.iter().any(|it| is_stuck(it) && !has_slot(it));
            let others = entries.iter().any(|it| !is_stuck(it) && has_slot(it));
            assert!(!is_short || !others, "{seed}: a slot would have served");
            let pairs = || entries.iter().zip(&before);
            let gave = |dirty| {
                pairs().any(|(it, old)| it.dirty == dirty && has_slot(old) && !has_slot(it))
            };
            let clean_left = entries.iter().any(|it| !it.dirty && has_slot(it));
            assert!(!gave(true) || !clean_left, "{seed}: a clean block could have yielded");
            let gained = pairs().filter(|(it, old)| has_slot(it) && !has_slot(old));
            let is_free = |loser: &Loser| matches!(loser, Loser::Nvm(slot) if slot.0 < SLOTS);
            let needless = (gave(true) || gave(false)) && losers.iter().any(is_free);
            assert!(!needless, "{seed}: a loser has left a slot");
            assert!(gained.clone().all(|(it, _)| it.dirty), "{seed}: only dirty blocks gain");
            assert_eq!(gained.count(), exchanged.len(), "{seed}");
        }
    }
}
