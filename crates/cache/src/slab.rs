//! A table of things in flight with small reusable numbers.
//!
//! How: a vector of places and a list of the free ones. Invariant: a number names one live thing.
//! Cost: constant time; memory of the most that were ever in flight at once.

use alloc::vec::Vec;

/// See the file's header.
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, thing: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.places[index as usize] = Some(thing);
            return index;
        }
        self.places.push(Some(thing));
        (self.places.len() - 1) as u32
    }

    pub(crate) fn remove(&mut self, index: u32) -> T {
        let thing = self.places[index as usize].take().expect("only live things are removed");
        self.free.push(index);
        thing
    }

    pub(crate) fn get(&self, index: u32) -> &T {
        self.places[index as usize].as_ref().expect("only live things are looked up")
    }

    /// The thing under a number that may have gone.
    pub(crate) fn find(&self, index: u32) -> Option<&T> {
        self.places.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut T {
        self.places[index as usize].as_mut().expect("only live things are looked up")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.places
            .iter()
            .enumerate()
            .filter_map(|(i, p)| p.as_ref().map(|thing| (i as u32, thing)))
    }
}
