//! ARC: what was used once against what was used again, in a proportion that learns.
//!
//! `once` and `again` are LRU chains of the blocks here; `left_once` and `left_again` remember as
//! many that left. A block that comes back soon after it left `once` shows that `once` is too
//! short, and raises `once_target`; one that left `again` lowers it. Eviction takes from whichever
//! chain is over its target, which is a real number as in the paper. Invariant, with the group's
//! room c: `once` and `left_once` together never exceed c, all four chains never exceed 2c.
//! Cost: amortised constant; nine bytes per slot and some 30 per remembered block. Where the caller
//! does not announce the block it makes room for, the target is learnt at its insertion instead,
//! one eviction late.
//! Source: N. Megiddo, D. Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003.

use crate::chain::{Chain, Chains, NONE};
use crate::eviction::{OFFERS_MAX, group_mut};
use crate::ghosts::Ghosts;
use crate::{Accept, Eviction, Glance, Group, Moment, Warmth};
use alloc::vec;
use alloc::vec::Vec;
use layby_types::{BlockKey, Slot};

/// The slot is on `again`.
const AGAIN: u8 = 1;
/// Fetched ahead and not asked for yet.
const AHEAD: u8 = 2;

/// Which memory a block was found in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recall {
    Unknown,
    Once,
    Again,
}

const LEFT_ONCE: u8 = 0;
const LEFT_AGAIN: u8 = 1;

#[derive(Clone, Copy, Default)]
struct Lists {
    once: Chain,
    again: Chain,
    left_once: Chain,
    left_again: Chain,
    once_target: f64,
    /// The block that was announced by the last eviction, and where it was remembered.
    announced: Option<(BlockKey, Recall)>,
}

/// See the file's header.
pub struct Arc {
    chains: Chains,
    states: Vec<u8>,
    ghosts: Ghosts,
    groups: Vec<Lists>,
}

impl Arc {
    /// A ranking for `slots` slots.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        let states = vec![0; slots as usize];
        Arc { chains: Chains::new(slots), states, ghosts: Ghosts::new(), groups: Vec::new() }
    }
}

impl Lists {
    fn len(&self) -> u32 {
        self.once.len + self.again.len
    }

    /// Where `key` was remembered, and what follows for the target; it is forgotten.
    fn recall(&mut self, ghosts: &mut Ghosts, group: Group, key: BlockKey, room: u32) -> Recall {
        let Some((ghost, queue)) = ghosts.find(group, key) else { return Recall::Unknown };
        let (once, again) = (self.left_once.len, self.left_again.len);
        if queue == LEFT_ONCE {
            self.once_target = (self.once_target + (f64::from(again) / f64::from(once)).max(1.0))
                .min(f64::from(room));
            ghosts.forget(&mut self.left_once, ghost);
            Recall::Once
        } else {
            self.once_target =
                (self.once_target - (f64::from(once) / f64::from(again)).max(1.0)).max(0.0);
            ghosts.forget(&mut self.left_again, ghost);
            Recall::Again
        }
    }

    fn once_yields(&self, incoming: Recall) -> bool {
        let len = f64::from(self.once.len);
        let at_target = len == self.once_target && incoming == Recall::Again;
        len > 0.0 && (len > self.once_target || at_target)
    }

    /// Forgets down to the invariant; a newcomer will be added to `once`.
    fn trim(&mut self, ghosts: &mut Ghosts, room: u32, newcomer: bool) {
        let newcomer = u32::from(newcomer);
        while self.once.len + self.left_once.len + newcomer > room {
            if !ghosts.forget_oldest(&mut self.left_once) {
                break;
            }
        }
        while self.len() + self.left_once.len + self.left_again.len + newcomer > 2 * room {
            if !ghosts.forget_oldest(&mut self.left_again) {
                break;
            }
        }
    }
}

impl Arc {
    fn take(
        &mut self,
        lists: &mut Lists,
        group: Group,
        from_once: bool,
        offers: &mut u32,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        let (chain, left, queue) = if from_once {
            (&mut lists.once, &mut lists.left_once, LEFT_ONCE)
        } else {
            (&mut lists.again, &mut lists.left_again, LEFT_AGAIN)
        };
        let mut slot = chain.cold;
        while slot != NONE && *offers < OFFERS_MAX {
            if let Some(key) = accept(Slot(slot)) {
                self.chains.unlink(chain, slot);
                // Nobody will come back for what nobody asked for.
                if self.states[slot as usize] & AHEAD == 0 {
                    self.ghosts.remember(left, group, queue, key);
                }
                return Some(Slot(slot));
            }
            *offers += 1;
            slot = self.chains.warmer(slot);
        }
        None
    }
}

impl Eviction for Arc {
    fn on_insert(
        &mut self,
        _: &mut Moment<'_>,
        group: Group,
        slot: Slot,
        key: BlockKey,
        warmth: Warmth,
    ) {
        let lists = group_mut(&mut self.groups, group);
        let recall = match lists.announced.take() {
            Some((announced, recall)) if announced == key => recall,
            _ => lists.recall(&mut self.ghosts, group, key, lists.len() + 1),
        };
        let state = &mut self.states[slot.0 as usize];
        if warmth == Warmth::Cold {
            *state = AHEAD;
            self.chains.push_cold(&mut lists.once, slot.0);
        } else if recall == Recall::Unknown {
            *state = 0;
            self.chains.push_warm(&mut lists.once, slot.0);
        } else {
            *state = AGAIN;
            self.chains.push_warm(&mut lists.again, slot.0);
        }
    }

    #[inline]
    fn on_hit(&mut self, _: &mut Moment<'_>, group: Group, slot: Slot) {
        let lists = group_mut(&mut self.groups, group);
        let state = &mut self.states[slot.0 as usize];
        match *state {
            AGAIN => self.chains.warm_up(&mut lists.again, slot.0),
            AHEAD => {
                *state = 0;
                self.chains.warm_up(&mut lists.once, slot.0);
            }
            _ => {
                *state = AGAIN;
                self.chains.unlink(&mut lists.once, slot.0);
                self.chains.push_warm(&mut lists.again, slot.0);
            }
        }
    }

    fn on_remove(&mut self, group: Group, slot: Slot) {
        let lists = group_mut(&mut self.groups, group);
        let room = lists.len();
        let is_again = self.states[slot.0 as usize] == AGAIN;
        let chain = if is_again { &mut lists.again } else { &mut lists.once };
        self.chains.unlink(chain, slot.0);
        lists.trim(&mut self.ghosts, room, false);
    }

    fn coldest(&self, group: Group) -> Option<Slot> {
        let lists = self.groups.get(usize::from(group.0)).filter(|lists| lists.len() > 0)?;
        let from_once = lists.once_yields(Recall::Unknown) || lists.again.len == 0;
        Some(Slot(if from_once { lists.once.cold } else { lists.again.cold }))
    }

    fn evict(
        &mut self,
        _: &mut Moment<'_>,
        group: Group,
        incoming: Option<BlockKey>,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        let mut lists = *self.groups.get(usize::from(group.0))?;
        let (room, mut recall) = (lists.len(), Recall::Unknown);
        lists.once_target = lists.once_target.min(f64::from(room));
        if let Some(key) = incoming {
            recall = lists.recall(&mut self.ghosts, group, key, room);
            lists.announced = Some((key, recall));
        }
        let (from_once, offers) = (lists.once_yields(recall), &mut 0);
        let out = self.take(&mut lists, group, from_once, offers, accept);
        let out = out.or_else(|| self.take(&mut lists, group, !from_once, offers, accept));
        if out.is_some() {
            lists.trim(&mut self.ghosts, room, recall == Recall::Unknown);
        }
        self.groups[usize::from(group.0)] = lists;
        out
    }

    #[inline]
    fn glance(&self, group: Group, at: Glance) -> u32 {
        match at {
            Glance::Hit(slot) => {
                self.chains.glance(slot.0) ^ u32::from(self.states[slot.0 as usize])
            }
            Glance::Around(slot) => self.chains.glance_around(slot.0),
            Glance::Miss(key) => self.ghosts.glance(group, key),
        }
    }

    fn len(&self, group: Group) -> u32 {
        self.groups.get(usize::from(group.0)).map_or(0, Lists::len)
    }

    fn memory_bytes(&self) -> usize {
        let groups = self.groups.capacity() * size_of::<Lists>();
        self.chains.memory_bytes() + self.states.capacity() + self.ghosts.memory_bytes() + groups
    }
}
