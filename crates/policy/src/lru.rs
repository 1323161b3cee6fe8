//! LRU: a doubly linked list per group through two arrays that all groups share.
//!
//! A hit moves the slot to the warm end; the cold end leaves first. Invariant: every ranked slot is
//! on exactly one group's list. Cost: constant time, eight bytes per slot whatever the number of
//! groups. Not for scans: one pass over a large range pushes out everything else.
//! Source: PADSA, section IV.B (replacement is LRU in all three levels).

use crate::{Eviction, Group, Moment, Warmth};
use alloc::vec;
use alloc::vec::Vec;
use layby_types::Slot;

/// Slots offered to `accept` before [`Lru::evict`] gives up.
const OFFERS_MAX: usize = 64;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Links {
    colder: u32,
    warmer: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    cold: u32,
    warm: u32,
    len: u32,
}

/// See the file's header.
pub struct Lru {
    links: Vec<Links>,
    groups: Vec<Ends>,
}

impl Lru {
    /// A ranking for `slots` slots.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        assert!(slots < NONE, "a slot number marks the end of a list");
        Lru {
            links: vec![Links { colder: NONE, warmer: NONE }; slots as usize],
            groups: Vec::new(),
        }
    }

    fn ends(&mut self, group: Group) -> &mut Ends {
        let index = usize::from(group.0);
        if index >= self.groups.len() {
            self.groups.resize(index + 1, Ends { cold: NONE, warm: NONE, len: 0 });
        }
        &mut self.groups[index]
    }

    fn unlink(&mut self, group: Group, slot: u32) {
        let Links { colder, warmer } = self.links[slot as usize];
        match colder {
            NONE => self.ends(group).cold = warmer,
            _ => self.links[colder as usize].warmer = warmer,
        }
        match warmer {
            NONE => self.ends(group).warm = colder,
            _ => self.links[warmer as usize].colder = colder,
        }
    }

    fn link_warm(&mut self, group: Group, slot: u32) {
        let warm = core::mem::replace(&mut self.ends(group).warm, slot);
        self.links[slot as usize] = Links { colder: warm, warmer: NONE };
        match warm {
            NONE => self.ends(group).cold = slot,
            _ => self.links[warm as usize].warmer = slot,
        }
    }

    fn link_cold(&mut self, group: Group, slot: u32) {
        let cold = core::mem::replace(&mut self.ends(group).cold, slot);
        self.links[slot as usize] = Links { colder: NONE, warmer: cold };
        match cold {
            NONE => self.ends(group).warm = slot,
            _ => self.links[cold as usize].colder = slot,
        }
    }
}

impl Eviction for Lru {
    fn on_insert(&mut self, _: &mut Moment<'_>, group: Group, slot: Slot, warmth: Warmth) {
        match warmth {
            Warmth::Warm => self.link_warm(group, slot.0),
            Warmth::Cold => self.link_cold(group, slot.0),
        }
        self.ends(group).len += 1;
    }

    fn on_hit(&mut self, _: &mut Moment<'_>, group: Group, slot: Slot) {
        if self.ends(group).warm != slot.0 {
            self.unlink(group, slot.0);
            self.link_warm(group, slot.0);
        }
    }

    fn on_remove(&mut self, group: Group, slot: Slot) {
        self.unlink(group, slot.0);
        let ends = self.ends(group);
        assert!(ends.len > 0, "a slot was removed from an empty group");
        ends.len -= 1;
    }

    fn coldest(&self, group: Group) -> Option<Slot> {
        let ends = self.groups.get(usize::from(group.0))?;
        (ends.cold != NONE).then_some(Slot(ends.cold))
    }

    fn evict(
        &mut self,
        _: &mut Moment<'_>,
        group: Group,
        accept: &mut dyn FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        let mut next = self.groups.get(usize::from(group.0))?.cold;
        for _ in 0..OFFERS_MAX {
            if next == NONE {
                return None;
            }
            if accept(Slot(next)) {
                self.on_remove(group, Slot(next));
                return Some(Slot(next));
            }
            next = self.links[next as usize].warmer;
        }
        None
    }

    fn len(&self, group: Group) -> u32 {
        self.groups.get(usize::from(group.0)).map_or(0, |ends| ends.len)
    }

    fn memory_bytes(&self) -> usize {
        self.links.capacity() * size_of::<Links>() + self.groups.capacity() * size_of::<Ends>()
    }
}
