//! CLOCK: one reference bit per slot; what was used since the hand last passed gets another round.
//!
//! The chain of a group is the clock's face, its cold end the hand: a used slot at the hand has its
//! bit cleared and moves to the warm end, the first unused one leaves. Invariant: a refused slot
//! stays before the hand. Cost: amortised constant (each step of the hand is paid for by a hit),
//! nine bytes per slot, one byte written on a hit. Not for scans: see `s3fifo`.
//! Source: F. J. Corbató, "A paging experiment with the Multics system", 1968.

use crate::chain::{Chain, Chains, NONE};
use crate::eviction::{LOOKS_MAX, OFFERS_MAX, group_mut};
use crate::{Accept, Eviction, Glance, Group, Moment, Warmth};
use alloc::vec;
use alloc::vec::Vec;
use layby_types::{BlockKey, Slot};

/// See the file's header.
pub struct Clock {
    chains: Chains,
    used: Vec<bool>,
    groups: Vec<Chain>,
}

impl Clock {
    /// A ranking for `slots` slots.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        let used = vec![false; slots as usize];
        Clock { chains: Chains::new(slots), used, groups: Vec::new() }
    }
}

impl Eviction for Clock {
    #[inline]
    fn on_insert(
        &mut self,
        _: &mut Moment<'_>,
        group: Group,
        slot: Slot,
        _: BlockKey,
        warmth: Warmth,
    ) {
        let chain = group_mut(&mut self.groups, group);
        self.used[slot.0 as usize] = false;
        match warmth {
            Warmth::Warm => self.chains.push_warm(chain, slot.0),
            Warmth::Cold => self.chains.push_cold(chain, slot.0),
        }
    }

    #[inline]
    fn on_hit(&mut self, _: &mut Moment<'_>, _: Group, slot: Slot) {
        self.used[slot.0 as usize] = true;
    }

    fn on_remove(&mut self, group: Group, slot: Slot) {
        self.chains.unlink(group_mut(&mut self.groups, group), slot.0);
    }

    fn coldest(&self, group: Group) -> Option<Slot> {
        let chain = self.groups.get(usize::from(group.0)).filter(|chain| chain.len > 0)?;
        let mut looks = self.chains.coldest_first(chain).take(LOOKS_MAX as usize);
        Some(Slot(looks.find(|slot| !self.used[*slot as usize]).unwrap_or(chain.cold)))
    }

    #[inline]
    fn evict(
        &mut self,
        _: &mut Moment<'_>,
        group: Group,
        _: Option<BlockKey>,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        let chain = self.groups.get_mut(usize::from(group.0))?;
        let (mut next, mut offers) = (chain.cold, 0);
        while next != NONE && offers < OFFERS_MAX {
            let slot = next;
            next = self.chains.warmer(slot);
            if core::mem::take(&mut self.used[slot as usize]) {
                self.chains.warm_up(chain, slot);
                next = if next == NONE { slot } else { next };
            } else if accept(Slot(slot)).is_some() {
                self.chains.unlink(chain, slot);
                return Some(Slot(slot));
            } else {
                offers += 1;
            }
        }
        None
    }

    #[inline]
    fn glance(&self, _: Group, at: Glance) -> u32 {
        match at {
            Glance::Hit(slot) => u32::from(self.used[slot.0 as usize]),
            Glance::Around(_) | Glance::Miss(_) => 0,
        }
    }

    fn len(&self, group: Group) -> u32 {
        self.groups.get(usize::from(group.0)).map_or(0, |chain| chain.len)
    }

    fn memory_bytes(&self) -> usize {
        let groups = self.groups.capacity() * size_of::<Chain>();
        self.chains.memory_bytes() + self.used.capacity() + groups
    }
}
