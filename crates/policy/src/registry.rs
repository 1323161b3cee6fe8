//! Every eviction policy by name, in one place.

use crate::{Accept, Arc, Clock, Eviction, Fifo, Glance, Group, Lfu, Lru, Moment, S3Fifo, Warmth};
use alloc::boxed::Box;
use layby_types::{BlockKey, Slot};

/// A policy that a level may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionKind {
    /// Least recently used.
    #[default]
    Lru,
    /// First in, first out.
    Fifo,
    /// One reference bit and a hand.
    Clock,
    /// A small queue before the main one, and a memory of what left it.
    S3Fifo,
    /// Recency against frequency, balanced by what left too early.
    Arc,
    /// Least frequently used, with ageing.
    Lfu,
}

impl EvictionKind {
    /// All policies, for help texts and conformance tests.
    pub const ALL: [EvictionKind; 6] = [
        EvictionKind::Lru,
        EvictionKind::Fifo,
        EvictionKind::Clock,
        EvictionKind::S3Fifo,
        EvictionKind::Arc,
        EvictionKind::Lfu,
    ];

    /// The name in configuration, flags and charts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EvictionKind::Lru => "lru",
            EvictionKind::Fifo => "fifo",
            EvictionKind::Clock => "clock",
            EvictionKind::S3Fifo => "s3fifo",
            EvictionKind::Arc => "arc",
            EvictionKind::Lfu => "lfu",
        }
    }

    /// The policy of that name, in any case; `S3-FIFO`, as its authors write it, is `s3fifo`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = if name.eq_ignore_ascii_case("s3-fifo") { "s3fifo" } else { name };
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// A fresh ranking for `slots` slots.
    #[must_use]
    pub fn build(self, slots: u32) -> Box<dyn Eviction> {
        match self {
            EvictionKind::Lru => Box::new(Lru::new(slots)),
            EvictionKind::Fifo => Box::new(Fifo::new(slots)),
            EvictionKind::Clock => Box::new(Clock::new(slots)),
            EvictionKind::S3Fifo => Box::new(S3Fifo::new(slots)),
            EvictionKind::Arc => Box::new(Arc::new(slots)),
            EvictionKind::Lfu => Box::new(Lfu::new(slots)),
        }
    }
}

/// A policy chosen at run time. LRU, which most levels have, is called without a table of
/// functions, so that a compiler sees through it.
pub enum Ranking {
    /// The default.
    Lru(Lru),
    /// Any other.
    Other(Box<dyn Eviction>),
}

impl Ranking {
    /// A fresh ranking for `slots` slots.
    #[must_use]
    pub fn new(kind: EvictionKind, slots: u32) -> Self {
        match kind {
            EvictionKind::Lru => Ranking::Lru(Lru::new(slots)),
            other => Ranking::Other(other.build(slots)),
        }
    }
}

impl Eviction for Ranking {
    #[inline]
    fn on_insert(
        &mut self,
        moment: &mut Moment<'_>,
        group: Group,
        slot: Slot,
        key: BlockKey,
        warmth: Warmth,
    ) {
        match self {
            Ranking::Lru(lru) => lru.on_insert(moment, group, slot, key, warmth),
            Ranking::Other(other) => other.on_insert(moment, group, slot, key, warmth),
        }
    }
    #[inline]
    fn on_hit(&mut self, moment: &mut Moment<'_>, group: Group, slot: Slot) {
        match self {
            Ranking::Lru(lru) => lru.on_hit(moment, group, slot),
            Ranking::Other(other) => other.on_hit(moment, group, slot),
        }
    }
    fn on_remove(&mut self, group: Group, slot: Slot) {
        match self {
            Ranking::Lru(lru) => lru.on_remove(group, slot),
            Ranking::Other(other) => other.on_remove(group, slot),
        }
    }
    #[inline]
    fn coldest(&self, group: Group) -> Option<Slot> {
        match self {
            Ranking::Lru(lru) => lru.coldest(group),
            Ranking::Other(other) => other.coldest(group),
        }
    }
    #[inline]
    fn next_coldest(&self, slot: Slot) -> Option<Slot> {
        match self {
            Ranking::Lru(lru) => lru.next_coldest(slot),
            Ranking::Other(other) => other.next_coldest(slot),
        }
    }
    #[inline]
    fn evict(
        &mut self,
        moment: &mut Moment<'_>,
        group: Group,
        incoming: Option<BlockKey>,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        match self {
            Ranking::Lru(lru) => lru.evict(moment, group, incoming, accept),
            Ranking::Other(other) => other.evict(moment, group, incoming, accept),
        }
    }
    #[inline]
    fn glance(&self, group: Group, at: Glance) -> u32 {
        match self {
            Ranking::Lru(lru) => lru.glance(group, at),
            Ranking::Other(other) => other.glance(group, at),
        }
    }
    fn len(&self, group: Group) -> u32 {
        match self {
            Ranking::Lru(lru) => lru.len(group),
            Ranking::Other(other) => other.len(group),
        }
    }
    fn memory_bytes(&self) -> usize {
        match self {
            Ranking::Lru(lru) => lru.memory_bytes(),
            Ranking::Other(other) => other.memory_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::AdmissionKind;

    /// Goal: names are read in any case and with their authors' hyphen, and no other word is.
    /// Method: every name, as written by its authors and in this project, and words beside them.
    #[test]
    fn names_are_read_as_they_are_written() {
        let written =
            [("LRU", "lru"), ("Fifo", "fifo"), ("S3FIFO", "s3fifo"), ("S3-FIFO", "s3fifo")];
        for (text, name) in written.into_iter().chain([("s3-fifo", "s3fifo"), ("ARC", "arc")]) {
            assert_eq!(EvictionKind::from_name(text).map(EvictionKind::name), Some(name), "{text}");
        }
        for kind in EvictionKind::ALL {
            assert_eq!(EvictionKind::from_name(&kind.name().to_uppercase()), Some(kind));
        }
        for bad in ["", "l-ru", "LRU ", "s3--fifo", "mru"] {
            assert_eq!(EvictionKind::from_name(bad), None, "{bad}");
        }
        assert_eq!(AdmissionKind::from_name("Second-Miss"), Some(AdmissionKind::SecondMiss));
    }
}
