//! The trait behind which every eviction policy stands.
//!
//! How: the caller owns blocks and table, the policy owns only its ranking. A level's slots are
//! ranked in *groups* (a volume's part of the level), so that a cap or a guarantee can be honoured
//! by evicting from one group.
//! Invariant: a slot is in at most one group; `len` counts exactly the inserted, not removed ones.

use layby_types::{Nanos, Rng, Slot};

/// All that a policy may know of the world at a call: the caller's time, the caller's generator.
pub struct Moment<'a> {
    /// The caller's time.
    pub now: Nanos,
    /// The caller's chance.
    pub rng: &'a mut Rng,
}

/// Slots ranked together: a volume's part of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u16);

/// How a block enters the ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    /// Somebody asked for it.
    Warm,
    /// It was fetched ahead: first to go while nobody asks.
    Cold,
}

/// Ranks resident slots. Each method is amortised constant and allocates only when a group is new.
pub trait Eviction: Send {
    /// `slot` now holds a block; it must not be ranked already.
    fn on_insert(&mut self, moment: &mut Moment<'_>, group: Group, slot: Slot, warmth: Warmth);
    /// A ranked `slot` of `group` was read or written.
    fn on_hit(&mut self, moment: &mut Moment<'_>, group: Group, slot: Slot);
    /// A ranked `slot` of `group` left for another reason than eviction.
    fn on_remove(&mut self, group: Group, slot: Slot);
    /// The slot worth least in `group`, left in place.
    fn coldest(&self, group: Group) -> Option<Slot>;
    /// Offers slots of `group` from the one worth least, a bounded number of them, and takes out
    /// the first that `accept` takes.
    fn evict(
        &mut self,
        moment: &mut Moment<'_>,
        group: Group,
        accept: &mut dyn FnMut(Slot) -> bool,
    ) -> Option<Slot>;
    /// Slots ranked in `group`.
    fn len(&self, group: Group) -> u32;
    /// Bytes of memory held.
    fn memory_bytes(&self) -> usize;
}
