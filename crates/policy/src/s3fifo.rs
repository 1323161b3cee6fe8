//! S3-FIFO: a small queue that new blocks must survive, a main queue, and a memory of what left.
//!
//! A block enters the small queue, a tenth of the group's room. At its cold end a block that was
//! used at least twice since moves to the main queue, any other leaves and is remembered; if it is
//! asked for again while remembered, it enters the main queue at once. The main queue is a CLOCK
//! with a counter of two bits. While a fresh group fills up, what overflows the small queue enters
//! the main one (as libCacheSim does it).
//! Invariant: `small` and `main` hold exactly the group's slots; at most nine tenths of the room
//! are remembered. Cost: amortised constant; nine bytes per slot, and some 30 per remembered block.
//! Not for a group of fewer than ten slots: its small queue is one slot.
//! Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.

use crate::chain::{Chain, Chains, NONE};
use crate::eviction::{LOOKS_MAX, OFFERS_MAX, group_mut};
use crate::ghosts::Ghosts;
use crate::{Accept, Eviction, Glance, Group, Moment, Warmth};
use alloc::vec;
use alloc::vec::Vec;
use layby_types::{BlockKey, Slot};

/// The small queue's part of the room, one in so many.
const SMALL_PART: u32 = 10;
/// Uses after which a block in the small queue deserves the main one.
const USES_TO_MAIN: u8 = 2;
/// The counter's ceiling.
const USES_MAX: u8 = 3;

/// Uses counted, in the low bits of a slot's state.
const USES: u8 = 3;
/// The slot is in the main queue.
const MAIN: u8 = 4;
/// Fetched ahead: nobody ever asked for it unless it counts a use.
const AHEAD: u8 = 8;

#[derive(Clone, Copy, Default)]
struct Queues {
    small: Chain,
    main: Chain,
    ghosts: Chain,
    has_evicted: bool,
    /// The block that was announced by the last eviction, and whether it was remembered.
    announced: Option<(BlockKey, bool)>,
}

/// See the file's header.
pub struct S3Fifo {
    slots: u32,
    chains: Chains,
    states: Vec<u8>,
    ghosts: Ghosts,
    groups: Vec<Queues>,
}

impl S3Fifo {
    /// A ranking for `slots` slots.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        let states = vec![0; slots as usize];
        let chains = Chains::new(slots);
        S3Fifo { slots, chains, states, ghosts: Ghosts::new(), groups: Vec::new() }
    }
}

fn small_room(room: u32) -> u32 {
    (room / SMALL_PART).max(1)
}

fn ghost_room(room: u32) -> u32 {
    (u64::from(room) * u64::from(SMALL_PART - 1) / u64::from(SMALL_PART)) as u32
}

impl Queues {
    fn len(&self) -> u32 {
        self.small.len + self.main.len
    }

    fn main_yields(&self) -> bool {
        let room = self.len();
        self.small.len == 0 || self.main.len > room - small_room(room)
    }

    /// Whether `key` was remembered; it is not afterwards.
    fn recall(&mut self, ghosts: &mut Ghosts, group: Group, key: BlockKey) -> bool {
        let found = ghosts.find(group, key);
        if let Some((ghost, _)) = found {
            ghosts.forget(&mut self.ghosts, ghost);
        }
        found.is_some()
    }
}

impl S3Fifo {
    fn evict_small(
        &mut self,
        queues: &mut Queues,
        group: Group,
        offers: &mut u32,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        let mut next = queues.small.cold;
        while next != NONE && *offers < OFFERS_MAX {
            let slot = next;
            next = self.chains.warmer(slot);
            let state = self.states[slot as usize];
            if state & USES >= USES_TO_MAIN {
                self.chains.unlink(&mut queues.small, slot);
                self.chains.push_warm(&mut queues.main, slot);
                self.states[slot as usize] = MAIN;
            } else if let Some(key) = accept(Slot(slot)) {
                self.chains.unlink(&mut queues.small, slot);
                // Nobody will come back for what nobody asked for.
                if state != AHEAD {
                    self.ghosts.remember(&mut queues.ghosts, group, 0, key);
                }
                return Some(Slot(slot));
            } else {
                *offers += 1;
            }
        }
        None
    }

    fn evict_main(
        &mut self,
        queues: &mut Queues,
        offers: &mut u32,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        let mut next = queues.main.cold;
        while next != NONE && *offers < OFFERS_MAX {
            let slot = next;
            next = self.chains.warmer(slot);
            if self.states[slot as usize] & USES > 0 {
                self.states[slot as usize] -= 1;
                self.chains.warm_up(&mut queues.main, slot);
                next = if next == NONE { slot } else { next };
            } else if accept(Slot(slot)).is_some() {
                self.chains.unlink(&mut queues.main, slot);
                return Some(Slot(slot));
            } else {
                *offers += 1;
            }
        }
        None
    }

    fn evict_from(
        &mut self,
        queues: &mut Queues,
        group: Group,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        let offers = &mut 0;
        if queues.main_yields() {
            let out = self.evict_main(queues, offers, accept);
            out.or_else(|| self.evict_small(queues, group, offers, accept))
        } else {
            let out = self.evict_small(queues, group, offers, accept);
            out.or_else(|| self.evict_main(queues, offers, accept))
        }
    }

    fn trim(&mut self, group: Group, room: u32) {
        let queues = &mut self.groups[usize::from(group.0)];
        while queues.ghosts.len > ghost_room(room) {
            self.ghosts.forget_oldest(&mut queues.ghosts);
        }
    }
}

impl Eviction for S3Fifo {
    fn on_insert(
        &mut self,
        _: &mut Moment<'_>,
        group: Group,
        slot: Slot,
        key: BlockKey,
        warmth: Warmth,
    ) {
        let queues = group_mut(&mut self.groups, group);
        let known = match queues.announced.take() {
            Some((announced, known)) if announced == key => known,
            _ => queues.recall(&mut self.ghosts, group, key),
        };
        let overflows = !queues.has_evicted && queues.small.len >= small_room(self.slots);
        let state = &mut self.states[slot.0 as usize];
        if warmth == Warmth::Cold {
            *state = AHEAD;
            self.chains.push_cold(&mut queues.small, slot.0);
        } else if known || overflows {
            *state = MAIN;
            self.chains.push_warm(&mut queues.main, slot.0);
        } else {
            *state = 0;
            self.chains.push_warm(&mut queues.small, slot.0);
        }
    }

    #[inline]
    fn on_hit(&mut self, _: &mut Moment<'_>, _: Group, slot: Slot) {
        let state = &mut self.states[slot.0 as usize];
        if *state & USES < USES_MAX {
            *state += 1;
        }
    }

    fn on_remove(&mut self, group: Group, slot: Slot) {
        let queues = group_mut(&mut self.groups, group);
        let room = queues.len();
        let in_main = self.states[slot.0 as usize] & MAIN != 0;
        let chain = if in_main { &mut queues.main } else { &mut queues.small };
        self.chains.unlink(chain, slot.0);
        self.trim(group, room);
    }

    fn coldest(&self, group: Group) -> Option<Slot> {
        let queues = self.groups.get(usize::from(group.0)).filter(|queues| queues.len() > 0)?;
        let (chain, stays) =
            if queues.main_yields() { (&queues.main, 1) } else { (&queues.small, USES_TO_MAIN) };
        let chain = if chain.len == 0 { &queues.small } else { chain };
        let mut looks = self.chains.coldest_first(chain).take(LOOKS_MAX as usize);
        let found = looks.find(|slot| self.states[*slot as usize] & USES < stays);
        Some(Slot(found.unwrap_or(chain.cold)))
    }

    fn evict(
        &mut self,
        _: &mut Moment<'_>,
        group: Group,
        incoming: Option<BlockKey>,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        let mut queues = *self.groups.get(usize::from(group.0))?;
        let room = queues.len();
        if let Some(key) = incoming {
            queues.announced = Some((key, queues.recall(&mut self.ghosts, group, key)));
        }
        let out = self.evict_from(&mut queues, group, accept);
        queues.has_evicted |= out.is_some();
        self.groups[usize::from(group.0)] = queues;
        if out.is_some() {
            self.trim(group, room);
        }
        out
    }

    #[inline]
    fn glance(&self, group: Group, at: Glance) -> u32 {
        match at {
            Glance::Hit(slot) => u32::from(self.states[slot.0 as usize]),
            Glance::Around(_) => 0,
            Glance::Miss(key) => self.ghosts.glance(group, key),
        }
    }

    fn len(&self, group: Group) -> u32 {
        self.groups.get(usize::from(group.0)).map_or(0, Queues::len)
    }

    fn memory_bytes(&self) -> usize {
        let groups = self.groups.capacity() * size_of::<Queues>();
        self.chains.memory_bytes() + self.states.capacity() + self.ghosts.memory_bytes() + groups
    }
}
