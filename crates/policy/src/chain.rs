//! Doubly linked chains of slots, from a cold to a warm end, through one array.
//!
//! Invariant: a slot is on at most one chain; which one is its owner's knowledge. Cost: constant
//! time and eight bytes per slot, however many chains there are.

use crate::Accept;
use crate::eviction::OFFERS_MAX;
use alloc::vec;
use alloc::vec::Vec;
use layby_types::Slot;

/// No slot: the end of a chain.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Links {
    colder: u32,
    warmer: u32,
}

/// The ends of one chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    pub(crate) cold: u32,
    pub(crate) warm: u32,
    pub(crate) len: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Chain { cold: NONE, warm: NONE, len: 0 }
    }
}

/// The links of all slots.
pub(crate) struct Chains {
    links: Vec<Links>,
}

impl Chains {
    pub(crate) fn new(slots: u32) -> Self {
        assert!(slots < NONE, "a slot number marks the end of a chain");
        Chains { links: vec![Links { colder: NONE, warmer: NONE }; slots as usize] }
    }

    /// Adds a slot, on no chain.
    pub(crate) fn grow(&mut self) -> u32 {
        let slot = self.links.len() as u32;
        assert!(slot < NONE, "a slot number marks the end of a chain");
        if self.links.len() == self.links.capacity() {
            self.links.reserve_exact(self.links.len() / 8 + 16);
        }
        self.links.push(Links { colder: NONE, warmer: NONE });
        slot
    }

    #[inline]
    pub(crate) fn push_warm(&mut self, chain: &mut Chain, slot: u32) {
        let warm = core::mem::replace(&mut chain.warm, slot);
        self.links[slot as usize] = Links { colder: warm, warmer: NONE };
        match warm {
            NONE => chain.cold = slot,
            _ => self.links[warm as usize].warmer = slot,
        }
        chain.len += 1;
    }

    #[inline]
    pub(crate) fn push_cold(&mut self, chain: &mut Chain, slot: u32) {
        let cold = core::mem::replace(&mut chain.cold, slot);
        self.links[slot as usize] = Links { colder: NONE, warmer: cold };
        match cold {
            NONE => chain.warm = slot,
            _ => self.links[cold as usize].colder = slot,
        }
        chain.len += 1;
    }

    #[inline]
    pub(crate) fn unlink(&mut self, chain: &mut Chain, slot: u32) {
        let Links { colder, warmer } = self.links[slot as usize];
        match colder {
            NONE => chain.cold = warmer,
            _ => self.links[colder as usize].warmer = warmer,
        }
        match warmer {
            NONE => chain.warm = colder,
            _ => self.links[warmer as usize].colder = colder,
        }
        assert!(chain.len > 0, "a slot was taken off an empty chain");
        chain.len -= 1;
    }

    /// Moves a slot of `chain` to its warm end.
    #[inline]
    pub(crate) fn warm_up(&mut self, chain: &mut Chain, slot: u32) {
        if chain.warm != slot {
            self.unlink(chain, slot);
            self.push_warm(chain, slot);
        }
    }

    /// The next slot towards the warm end.
    #[inline]
    pub(crate) fn warmer(&self, slot: u32) -> u32 {
        self.links[slot as usize].warmer
    }

    /// Reads the links of `slot`.
    #[inline]
    pub(crate) fn glance(&self, slot: u32) -> u32 {
        let Links { colder, warmer } = self.links[slot as usize];
        colder ^ warmer
    }

    /// Reads the links of the neighbours of `slot`, which moving it writes.
    #[inline]
    pub(crate) fn glance_around(&self, slot: u32) -> u32 {
        let Links { colder, warmer } = self.links[slot as usize];
        let next = |slot: u32| self.links.get(slot as usize).map_or(NONE, |links| links.warmer);
        next(colder) ^ next(warmer)
    }

    /// The slots of `chain` from the cold end.
    pub(crate) fn coldest_first(&self, chain: &Chain) -> impl Iterator<Item = u32> {
        let valid = |slot: u32| (slot != NONE).then_some(slot);
        core::iter::successors(valid(chain.cold), move |slot| valid(self.warmer(*slot)))
    }

    /// Takes off the first slot from the cold end that `accept` takes, offering a bounded number.
    #[inline]
    pub(crate) fn take_first(
        &mut self,
        chain: &mut Chain,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        let mut next = chain.cold;
        for _ in 0..OFFERS_MAX {
            if next == NONE {
                return None;
            }
            if accept(Slot(next)).is_some() {
                self.unlink(chain, next);
                return Some(Slot(next));
            }
            next = self.warmer(next);
        }
        None
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.links.capacity() * size_of::<Links>()
    }
}
