//! The trait behind which every eviction policy stands.
//!
//! How: the caller owns blocks and table, the policy owns only its ranking. A level's slots are
//! ranked in *groups* (a volume's part of the level), so that a cap or a guarantee can be honoured
//! by evicting from one group. Keys are the caller's too: a policy learns a block's key when the
//! block comes and when it leaves, since only blocks that left have to be remembered by key.
//! Invariant: a slot is in at most one group; `len` counts exactly the inserted, not removed ones.

use alloc::boxed::Box;
use alloc::vec::Vec;
use layby_types::{BlockKey, Nanos, Rng, Slot};

/// Slots offered in one call before a policy gives up.
pub(crate) const OFFERS_MAX: u32 = 64;
/// Slots that `coldest` looks at where the coldest may have been used since.
pub(crate) const LOOKS_MAX: u32 = 16;

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

/// Answers an offer: the key of the block in the slot if it may leave, `None` if it has to stay.
pub type Accept<'a> = dyn FnMut(Slot) -> Option<BlockKey> + 'a;

/// What is expected soon. Several are looked at in turn, one kind after the other, so that the
/// processor waits for all of a kind at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glance {
    /// A hit on the slot: its own state.
    Hit(Slot),
    /// The same hit: what the slot's state, at hand by now, points to.
    Around(Slot),
    /// A miss of the block.
    Miss(BlockKey),
}

/// Ranks resident slots. Each method is amortised constant and allocates only while a group or the
/// memory of blocks that left grows to its bound.
pub trait Eviction: Send {
    /// `slot` now holds the block `key`; it must not be ranked already.
    fn on_insert(
        &mut self,
        moment: &mut Moment<'_>,
        group: Group,
        slot: Slot,
        key: BlockKey,
        warmth: Warmth,
    );
    /// A ranked `slot` of `group` was read or written.
    fn on_hit(&mut self, moment: &mut Moment<'_>, group: Group, slot: Slot);
    /// A ranked `slot` of `group` left for another reason than eviction.
    fn on_remove(&mut self, group: Group, slot: Slot);
    /// The slot worth least in `group`, or one of the least, left in place.
    fn coldest(&self, group: Group) -> Option<Slot>;
    /// The slot that follows `slot` in the order in which the slots of its group leave if nothing
    /// is used meanwhile, where the policy knows it at once.
    fn next_coldest(&self, slot: Slot) -> Option<Slot> {
        let _ = slot;
        None
    }
    /// Offers slots of `group` from the one worth least, a bounded number of them, and takes out
    /// the first that `accept` takes; a refused slot keeps its rank.
    ///
    /// The room of a group is what it holds at this moment. `incoming` is the block for which room
    /// is made, where the caller will insert exactly that one next: policies that remember what
    /// left choose by it.
    fn evict(
        &mut self,
        moment: &mut Moment<'_>,
        group: Group,
        incoming: Option<BlockKey>,
        accept: &mut Accept<'_>,
    ) -> Option<Slot>;
    /// Reads what will be read soon, and answers with something made of it: wanted for its effect
    /// on the processor's caches. `group` need not exist yet.
    fn glance(&self, group: Group, at: Glance) -> u32 {
        let _ = (group, at);
        0
    }
    /// Slots ranked in `group`.
    fn len(&self, group: Group) -> u32;
    /// Bytes of memory held.
    fn memory_bytes(&self) -> usize;
}

// A boxed policy serves where a concrete one is expected.
impl Eviction for Box<dyn Eviction> {
    fn on_insert(
        &mut self,
        moment: &mut Moment<'_>,
        group: Group,
        slot: Slot,
        key: BlockKey,
        warmth: Warmth,
    ) {
        (**self).on_insert(moment, group, slot, key, warmth);
    }
    fn on_hit(&mut self, moment: &mut Moment<'_>, group: Group, slot: Slot) {
        (**self).on_hit(moment, group, slot);
    }
    fn on_remove(&mut self, group: Group, slot: Slot) {
        (**self).on_remove(group, slot);
    }
    fn coldest(&self, group: Group) -> Option<Slot> {
        (**self).coldest(group)
    }
    fn next_coldest(&self, slot: Slot) -> Option<Slot> {
        (**self).next_coldest(slot)
    }
    fn evict(
        &mut self,
        moment: &mut Moment<'_>,
        group: Group,
        incoming: Option<BlockKey>,
        accept: &mut Accept<'_>,
    ) -> Option<Slot> {
        (**self).evict(moment, group, incoming, accept)
    }
    fn glance(&self, group: Group, at: Glance) -> u32 {
        (**self).glance(group, at)
    }
    fn len(&self, group: Group) -> u32 {
        (**self).len(group)
    }
    fn memory_bytes(&self) -> usize {
        (**self).memory_bytes()
    }
}

/// The state of a group, made when the group is first met.
#[inline]
pub(crate) fn group_mut<T: Clone + Default>(groups: &mut Vec<T>, group: Group) -> &mut T {
    let index = usize::from(group.0);
    if index >= groups.len() {
        groups.resize(index + 1, T::default());
    }
    &mut groups[index]
}
