//! Slots under a policy that the node runs, through the node's trait.
//!
//! How: a table finds the slot of a block, the policy ranks the slots; a block that comes in takes
//! the next free slot, or the one that the policy gives up.
//! Invariant: a block is in at most one slot, and `keys` tells which block a slot holds.
//! Cost: 21 bytes per block beside the policy's own. Not for: LRU and S3-FIFO beyond tests, which
//! have faster forms that count the same: see `recency` and `queues`.

use super::level::{AHEAD, Residents};
use super::references::tag;
use super::table::{NONE, STALE_MAX, Table};
use layby_policy::{Eviction, Glance, Group, Moment, Warmth};
use layby_types::{BlockKey, Nanos, Rng, Slot};

/// The only group: a level of one.
const GROUP: Group = Group(0);
const _: () = assert!(AHEAD <= STALE_MAX, "a group of references evicts one block each at most");

/// See the file's header.
pub(crate) struct Slots<P> {
    policy: P,
    table: Table,
    keys: Vec<BlockKey>,
    /// Tags and slots of blocks that left and are in the table still.
    departed: Vec<(u32, u32)>,
    slots: u32,
    rng: Rng,
}

impl<P: Eviction> Slots<P> {
    /// `slots` slots. `policy` ranks at least as many.
    pub(crate) fn new(policy: P, slots: u32, seed: u64) -> Self {
        let (table, keys) = (Table::new(slots), Vec::with_capacity(slots as usize));
        let departed = Vec::with_capacity(AHEAD);
        Slots { policy, table, keys, departed, slots, rng: Rng::new(seed) }
    }

    /// Whether `slot` is a slot that holds `key`.
    #[inline]
    fn holds(&self, slot: u32, key: BlockKey) -> bool {
        self.keys.get(slot as usize) == Some(&key)
    }

    /// Takes a slot from a block that is worth less than `key`, and gives it to `key`.
    #[inline]
    fn make_room(&mut self, now: Nanos, key: BlockKey) -> Slot {
        let (keys, moment) = (&self.keys, &mut Moment { now, rng: &mut self.rng });
        let accept = &mut |slot: Slot| Some(keys[slot.0 as usize]);
        let out = self.policy.evict(moment, GROUP, Some(key), accept);
        let slot = out.expect("a full level has a slot that may leave");
        let old = std::mem::replace(&mut self.keys[slot.0 as usize], key);
        self.departed.push((self::tag(old), slot.0));
        slot
    }
}

impl<P: Eviction> Residents for Slots<P> {
    /// A slot, or [`NONE`].
    type Guess = u32;

    /// Guesses the slots of what comes, and removes from the table what has left.
    #[inline]
    fn look_ahead(&mut self, keys: &[BlockKey], tags: &[u32], guesses: &mut [u32; AHEAD]) {
        let departed = self.departed.iter().map(|(tag, _)| tag);
        let seen = tags.iter().chain(departed).fold(0, |seen, tag| seen ^ self.table.touch(*tag));
        std::hint::black_box(seen);
        for (tag, slot) in self.departed.drain(..) {
            self.table.remove(tag, slot);
        }
        let mut seen = 0;
        for ((guess, tag), key) in guesses.iter_mut().zip(tags).zip(keys) {
            *guess = self.table.guess(*tag);
            let at = match *guess {
                NONE => Glance::Miss(*key),
                slot => Glance::Hit(Slot(slot)),
            };
            seen ^= self.policy.glance(GROUP, at);
        }
        for guess in guesses[..keys.len()].iter().filter(|guess| **guess != NONE) {
            seen ^= self.keys[*guess as usize].0 as u32;
            seen ^= self.policy.glance(GROUP, Glance::Around(Slot(*guess)));
        }
        // What was read is wanted for its effect on the CPU's caches alone.
        std::hint::black_box(seen);
    }

    #[inline]
    fn on_reference(&mut self, now: Nanos, guess: u32, key: BlockKey, tag: u32) -> bool {
        let found = if self.holds(guess, key) {
            Some(guess)
        } else {
            let keys = &self.keys;
            self.table.find(tag, |slot| keys[slot as usize] == key)
        };
        if let Some(slot) = found {
            let moment = &mut Moment { now, rng: &mut self.rng };
            self.policy.on_hit(moment, GROUP, Slot(slot));
        }
        found.is_some()
    }

    #[inline]
    fn bring_in(&mut self, now: Nanos, key: BlockKey, tag: u32) -> bool {
        let is_full = self.keys.len() as u32 == self.slots;
        let slot = if is_full {
            self.make_room(now, key)
        } else {
            self.keys.push(key);
            Slot((self.keys.len() - 1) as u32)
        };
        self.table.add(tag, slot.0);
        let moment = &mut Moment { now, rng: &mut self.rng };
        self.policy.on_insert(moment, GROUP, slot, key, Warmth::Warm);
        is_full
    }

    fn blocks(&self) -> u32 {
        self.keys.len() as u32
    }

    fn memory_bytes(&self) -> usize {
        let keys = self.keys.capacity() * size_of::<BlockKey>();
        keys + self.table.memory_bytes() + self.policy.memory_bytes()
    }
}
