//! The table of a curve: block to the moment of its last use.
//!
//! How: open addressing with linear probing in one array, and removal by moving the followers back,
//! so that the table never degrades and never grows by removals. Invariant: no free place lies
//! between an entry's home and the entry. Cost: one or two cache lines per look-up, 16 bytes per
//! place.

use crate::hash::mix;
use alloc::vec;
use alloc::vec::Vec;
use layby_types::BlockKey;

const FREE: u32 = u32::MAX;

/// A block that was used.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) key: BlockKey,
    /// The moment of its last use.
    pub(crate) moment: u32,
    /// The longest distance in the chain of uses that is still going on.
    pub(crate) chain: u32,
}

const NOTHING: Entry = Entry { key: BlockKey(0), moment: FREE, chain: 0 };

/// See the file's header.
pub(crate) struct Table {
    places: Vec<Entry>,
    len: u32,
}

impl Table {
    /// At least `places` places, rounded up to a power of two.
    pub(crate) fn new(places: u32) -> Self {
        Table { places: vec![NOTHING; places.next_power_of_two().max(16) as usize], len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    fn home(&self, key: BlockKey) -> usize {
        // The upper bits: the lower ones of neighbouring blocks are alike.
        (mix(key.0) >> (64 - self.places.len().trailing_zeros())) as usize
    }

    /// The place of `key`, or the free place where it belongs.
    #[inline]
    fn place(&self, key: BlockKey) -> usize {
        let last = self.places.len() - 1;
        let mut at = self.home(key);
        while self.places[at].moment != FREE && self.places[at].key != key {
            at = (at + 1) & last;
        }
        at
    }

    /// The entry of `key`, and whether it is new: then its moment is for the caller to set.
    #[inline]
    pub(crate) fn find(&mut self, key: BlockKey) -> Option<&mut Entry> {
        let place = self.place(key);
        let entry = &mut self.places[place];
        (entry.moment != FREE).then_some(entry)
    }

    /// Adds `key`, which is absent; grows while more than five in eight places are taken and
    /// `places_max` allows.
    pub(crate) fn add(&mut self, key: BlockKey, moment: u32, places_max: u32) {
        let places = self.places.len() as u32;
        if self.len >= places / 8 * 5 && places < places_max {
            self.double();
        }
        assert!((self.len as usize) < self.places.len() - 1, "a look-up ends at a free place");
        let place = self.place(key);
        assert!(self.places[place].moment == FREE, "{key:?} is here already");
        self.places[place] = Entry { key, moment, chain: 0 };
        self.len += 1;
    }

    fn double(&mut self) {
        let old = core::mem::take(&mut self.places);
        self.places = vec![NOTHING; old.len() * 2];
        for entry in old.into_iter().filter(|entry| entry.moment != FREE) {
            let place = self.place(entry.key);
            self.places[place] = entry;
        }
    }

    /// Removes `key`; its last moment, if it was here.
    pub(crate) fn remove(&mut self, key: BlockKey) -> Option<u32> {
        let place = self.place(key);
        let moment = self.places[place].moment;
        if moment == FREE {
            return None;
        }
        self.vacate(place);
        Some(moment)
    }

    fn vacate(&mut self, place: usize) {
        let last = self.places.len() - 1;
        let (mut hole, mut at) = (place, place);
        loop {
            at = (at + 1) & last;
            if self.places[at].moment == FREE {
                break;
            }
            // An entry may move back into the hole unless its home lies behind the hole.
            let from_home = at.wrapping_sub(self.home(self.places[at].key)) & last;
            if from_home >= at.wrapping_sub(hole) & last {
                self.places[hole] = self.places[at];
                hole = at;
            }
        }
        self.places[hole] = NOTHING;
        self.len -= 1;
    }

    /// Removes every entry that `goes`, and says so to `gone`.
    pub(crate) fn remove_where(
        &mut self,
        goes: impl Fn(&Entry) -> bool,
        mut gone: impl FnMut(&Entry),
    ) {
        let mut place = 0;
        while place < self.places.len() {
            let entry = self.places[place];
            if entry.moment != FREE && goes(&entry) {
                gone(&entry);
                // What moved here from further on is looked at next.
                self.vacate(place);
            } else {
                place += 1;
            }
        }
    }

    /// Every entry, to be renumbered.
    pub(crate) fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.places.iter_mut().filter(|entry| entry.moment != FREE)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Entry>()
    }
}
