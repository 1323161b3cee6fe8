//! LRU: a chain per group, through one array that all groups share.
//!
//! A hit moves the slot to the warm end; the cold end leaves first. Invariant: every ranked slot is
//! on exactly one group's chain. Cost: constant time, eight bytes per slot whatever the number of
//! groups. Not for scans: one pass over a large range pushes out everything else.
//! Source: PADSA, section IV.B (replacement is LRU in all three levels).

use crate::chain::{Chain, Chains, NONE};
use crate::eviction::group_mut;
use crate::{Accept, Eviction, Glance, Group, Moment, Warmth};
use alloc::vec::Vec;
use layby_types::{BlockKey, Slot};

/// See the file's header.
pub struct Lru {
    chains: Chains,
    groups: Vec<Chain>,
}

impl Lru {
    /// A ranking for `slots` slots.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        Lru { chains: Chains::new(slots), groups: Vec::new() }
    }
}

impl Eviction for Lru {
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
        match warmth {
            Warmth::Warm => self.chains.push_warm(chain, slot.0),
            Warmth::Cold => self.chains.push_cold(chain, slot.0),
        }
    }

    #[inline]
    fn on_hit(&mut self, _: &mut Moment<'_>, group: Group, slot: Slot) {
        self.chains.warm_up(group_mut(&mut self.groups, group), slot.0);
    }

    fn on_remove(&mut self, group: Group, slot: Slot) {
        self.chains.unlink(group_mut(&mut self.groups, group), slot.0);
    }

    #[inline]
    fn coldest(&self, group: Group) -> Option<Slot> {
        let chain = self.groups.get(usize::from(group.0))?;
        (chain.cold != NONE).then_some(Slot(chain.cold))
    }

    #[inline]
    fn next_coldest(&self, slot: Slot) -> Option<Slot> {
        let next = self.chains.warmer(slot.0);
        (next != NONE).then_some(Slot(next))
    }

    #[inline]
    fn evict(
        &mut self,
        _: &mut Moment<'_>,
        group: Group,
        _: Option<BlockKey>,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        self.chains.take_first(self.groups.get_mut(usize::from(group.0))?, accept)
    }

    #[inline]
    fn glance(&self, _: Group, at: Glance) -> u32 {
        match at {
            Glance::Hit(slot) => self.chains.glance(slot.0),
            Glance::Around(slot) => self.chains.glance_around(slot.0),
            Glance::Miss(_) => 0,
        }
    }

    fn len(&self, group: Group) -> u32 {
        self.groups.get(usize::from(group.0)).map_or(0, |chain| chain.len)
    }

    fn memory_bytes(&self) -> usize {
        self.chains.memory_bytes() + self.groups.capacity() * size_of::<Chain>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::{Nanos, Rng};

    /// Goal: who is said to follow is who leaves next. Method: random uses, then the announced
    /// order beside the evictions.
    #[test]
    fn the_next_coldest_leaves_next() {
        for seed in 0..50 {
            let (mut rng, mut lru, group) = (Rng::new(seed), Lru::new(20), Group(0));
            let (mut chance, now) = (Rng::new(seed), Nanos::ZERO);
            let moment = &mut Moment { now, rng: &mut chance };
            (0..20).for_each(|slot| {
                lru.on_insert(moment, group, Slot(slot), BlockKey(0), Warmth::Warm);
            });
            (0..100).for_each(|_| lru.on_hit(moment, group, Slot(rng.below(20) as u32)));
            let mut expected = lru.coldest(group);
            while let Some(slot) = expected {
                expected = lru.next_coldest(slot);
                let out = lru.evict(moment, group, None, &mut |_| Some(BlockKey(0)));
                assert_eq!(out, Some(slot), "SEED={seed}");
            }
            assert_eq!(lru.len(group), 0, "SEED={seed}");
        }
    }
}
