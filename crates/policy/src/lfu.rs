//! LFU with ageing: what is used least often leaves first, and fame fades.
//!
//! A slot's priority is its count of uses plus the group's `age` at its last use; the lowest leaves
//! first, and among equals the one used longest ago. The age follows the lowest priority, so a
//! newcomer competes with the blocks that leave now and not with the fame of long ago.
//! How: counts end at 63, so every priority lies within 64 of the age; a group has 64 chains, named
//! by priority modulo 64, and a bit map of those in use. Invariant: `age` is at most the lowest
//! priority here. Cost: constant time; ten bytes per slot, 800 per group. A slot that is
//! refused for ever holds the age back. Not for workloads that change quickly: see `arc`.
//! Source: Arlitt et al., "Evaluating content management techniques for Web proxy caches" (LFU with
//! dynamic aging), 2000; the ceiling of the count is this project's.

use crate::chain::{Chain, Chains, NONE};
use crate::eviction::{OFFERS_MAX, group_mut};
use crate::{Accept, Eviction, Group, Moment, Warmth};
use alloc::vec;
use alloc::vec::Vec;
use layby_types::{BlockKey, Slot};

/// Priorities that are told apart.
const RUNGS: usize = 64;
/// The ceiling of the count.
const USES_MAX: u8 = (RUNGS - 1) as u8;

#[derive(Clone, Copy, Default)]
struct Rank {
    uses: u8,
    rung: u8,
}

#[derive(Clone)]
struct Ladder {
    age: u64,
    /// One bit per rung that holds a slot.
    occupied: u64,
    len: u32,
    rungs: [Chain; RUNGS],
}

impl Default for Ladder {
    fn default() -> Self {
        Ladder { age: 0, occupied: 0, len: 0, rungs: [Chain::default(); RUNGS] }
    }
}

/// See the file's header.
pub struct Lfu {
    chains: Chains,
    ranks: Vec<Rank>,
    groups: Vec<Ladder>,
}

impl Lfu {
    /// A ranking for `slots` slots.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        let ranks = vec![Rank::default(); slots as usize];
        Lfu { chains: Chains::new(slots), ranks, groups: Vec::new() }
    }
}

impl Ladder {
    /// The rung of a block used `uses` times, and now.
    fn rung_of(&self, uses: u8) -> usize {
        ((self.age + u64::from(uses)) % RUNGS as u64) as usize
    }

    /// Occupied rungs as bits, the one at the age lowest.
    fn rungs_by_age(&self) -> u64 {
        self.occupied.rotate_right(self.rung_of(0) as u32)
    }

    fn add(&mut self, chains: &mut Chains, slot: u32, uses: u8, warmth: Warmth) -> Rank {
        let rung = self.rung_of(uses);
        match warmth {
            Warmth::Warm => chains.push_warm(&mut self.rungs[rung], slot),
            Warmth::Cold => chains.push_cold(&mut self.rungs[rung], slot),
        }
        self.occupied |= 1 << rung;
        self.len += 1;
        Rank { uses, rung: rung as u8 }
    }

    fn remove(&mut self, chains: &mut Chains, slot: u32, rung: u8) {
        let chain = &mut self.rungs[usize::from(rung)];
        chains.unlink(chain, slot);
        if chain.len == 0 {
            self.occupied &= !(1 << rung);
        }
        self.len -= 1;
    }
}

impl Eviction for Lfu {
    fn on_insert(
        &mut self,
        _: &mut Moment<'_>,
        group: Group,
        slot: Slot,
        _: BlockKey,
        warmth: Warmth,
    ) {
        let ladder = group_mut(&mut self.groups, group);
        let uses = u8::from(warmth == Warmth::Warm);
        self.ranks[slot.0 as usize] = ladder.add(&mut self.chains, slot.0, uses, warmth);
    }

    fn on_hit(&mut self, _: &mut Moment<'_>, group: Group, slot: Slot) {
        let ladder = group_mut(&mut self.groups, group);
        let rank = &mut self.ranks[slot.0 as usize];
        ladder.remove(&mut self.chains, slot.0, rank.rung);
        let uses = (rank.uses + 1).min(USES_MAX);
        *rank = ladder.add(&mut self.chains, slot.0, uses, Warmth::Warm);
    }

    fn on_remove(&mut self, group: Group, slot: Slot) {
        let ladder = group_mut(&mut self.groups, group);
        ladder.remove(&mut self.chains, slot.0, self.ranks[slot.0 as usize].rung);
    }

    fn coldest(&self, group: Group) -> Option<Slot> {
        let ladder = self.groups.get(usize::from(group.0)).filter(|ladder| ladder.len > 0)?;
        let steps = ladder.rungs_by_age().trailing_zeros() as u8;
        Some(Slot(ladder.rungs[ladder.rung_of(steps)].cold))
    }

    fn evict(
        &mut self,
        _: &mut Moment<'_>,
        group: Group,
        _: Option<BlockKey>,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        let ladder = self.groups.get_mut(usize::from(group.0))?;
        let (mut left, mut offers) = (ladder.rungs_by_age(), 0);
        let lowest = left.trailing_zeros();
        while left != 0 {
            let rung = ladder.rung_of(left.trailing_zeros() as u8);
            let mut slot = ladder.rungs[rung].cold;
            while slot != NONE && offers < OFFERS_MAX {
                if accept(Slot(slot)).is_some() {
                    ladder.remove(&mut self.chains, slot, rung as u8);
                    ladder.age += u64::from(lowest);
                    return Some(Slot(slot));
                }
                offers += 1;
                slot = self.chains.warmer(slot);
            }
            left &= left - 1;
        }
        None
    }

    fn len(&self, group: Group) -> u32 {
        self.groups.get(usize::from(group.0)).map_or(0, |ladder| ladder.len)
    }

    fn memory_bytes(&self) -> usize {
        let groups = self.groups.capacity() * size_of::<Ladder>();
        let ranks = self.ranks.capacity() * size_of::<Rank>();
        self.chains.memory_bytes() + ranks + groups
    }
}
