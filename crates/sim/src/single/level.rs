//! A level of slots under one eviction policy.
//!
//! How: a table finds the slot of a block, the policy ranks the slots; a miss that is admitted
//! takes the next free slot, or the one that the policy gives up. Reads and writes both bring their
//! block in, as in a write-back level. References are looked up a few ahead of time, so that memory
//! is asked for many places at once instead of one after the other; what is found is a guess that
//! the slot's key confirms when its turn comes.
//! Invariant: a block is in at most one slot, and `keys` tells which block a slot holds.
//! Cost: tens of nanoseconds per reference beyond the CPU's caches; 21 bytes per block beside the
//! policy's own. Not for: what comes before its time, such as read-ahead.

use super::references::{Batch, tag};
use super::table::{NONE, STALE_MAX, Table};
use layby_policy::curve::Access;
use layby_policy::registry::EvictionKind;
use layby_policy::{
    Admission, AdmissionKind, AdmitAll, Arc, Clock, Eviction, Fifo, Glance, Group, Lfu, Lru,
    Moment, S3Fifo, SecondMiss, Warmth,
};
use layby_types::{BlockKey, Nanos, Rng, Slot};

/// Slots of a level at most.
pub const SLOTS_MAX: u32 = u32::MAX - 1;
/// References that are looked up ahead of their turn; each evicts one block at most.
const AHEAD: usize = STALE_MAX;
/// The only group: a level of one.
const GROUP: Group = Group(0);

/// What a level was asked for and did. Pairs are reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// References to blocks.
    pub requests: [u64; 2],
    /// Those that found their block.
    pub hits: [u64; 2],
    /// Blocks that left to make room.
    pub evictions: u64,
    /// Blocks that came in.
    pub insertions: u64,
}

impl Counts {
    /// All references.
    #[must_use]
    pub fn requests_all(&self) -> u64 {
        self.requests[0] + self.requests[1]
    }
    /// All hits.
    #[must_use]
    pub fn hits_all(&self) -> u64 {
        self.hits[0] + self.hits[1]
    }
    /// Blocks written into the level: what came in, and writes that hit.
    #[must_use]
    pub fn block_writes(&self) -> u64 {
        self.insertions + self.hits[Access::Write as usize]
    }
    /// The part of the references that missed; `None` where there were none.
    #[must_use]
    pub fn miss_ratio(&self) -> Option<f64> {
        let requests = self.requests_all();
        (requests > 0).then(|| 1.0 - self.hits_all() as f64 / requests as f64)
    }
}

/// Something that a trace runs through.
pub trait Replay: Send {
    /// The next references.
    fn on_batch(&mut self, batch: &Batch);
    /// What happened so far.
    fn counts(&self) -> Counts;
    /// Blocks held now.
    fn blocks(&self) -> u32;
    /// Bytes of memory held.
    fn memory_bytes(&self) -> usize;
}

/// See the file's header.
pub struct Level<P, A> {
    policy: P,
    admission: A,
    table: Table,
    keys: Vec<BlockKey>,
    /// Tags and slots of blocks that left and are in the table still.
    departed: Vec<(u32, u32)>,
    slots: u32,
    rng: Rng,
    counts: Counts,
}

/// A level of `slots` slots under `policy`, with a filter before it.
#[must_use]
pub fn build(
    policy: EvictionKind,
    admission: AdmissionKind,
    slots: u32,
    seed: u64,
) -> Box<dyn Replay> {
    match policy {
        EvictionKind::Lru => filtered(Lru::new(slots), admission, slots, seed),
        EvictionKind::Fifo => filtered(Fifo::new(slots), admission, slots, seed),
        EvictionKind::Clock => filtered(Clock::new(slots), admission, slots, seed),
        EvictionKind::S3Fifo => filtered(S3Fifo::new(slots), admission, slots, seed),
        EvictionKind::Arc => filtered(Arc::new(slots), admission, slots, seed),
        EvictionKind::Lfu => filtered(Lfu::new(slots), admission, slots, seed),
    }
}

fn filtered<P: Eviction + 'static>(
    policy: P,
    admission: AdmissionKind,
    slots: u32,
    seed: u64,
) -> Box<dyn Replay> {
    match admission {
        AdmissionKind::All => Box::new(Level::new(policy, AdmitAll, slots, seed)),
        AdmissionKind::SecondMiss => {
            Box::new(Level::new(policy, SecondMiss::new(slots), slots, seed))
        }
    }
}

impl<P: Eviction, A: Admission> Level<P, A> {
    /// An empty level. `policy` ranks at least `slots` slots.
    #[must_use]
    pub fn new(policy: P, admission: A, slots: u32, seed: u64) -> Self {
        assert!((1..=SLOTS_MAX).contains(&slots), "a level of {slots} slots");
        let (table, keys) = (Table::new(slots), Vec::with_capacity(slots as usize));
        let (rng, counts) = (Rng::new(seed), Counts::default());
        let departed = Vec::with_capacity(AHEAD);
        Level { policy, admission, table, keys, departed, slots, rng, counts }
    }

    /// Guesses the slots of what comes, and removes from the table what has left, such that memory
    /// is asked for all of it before any of it is needed.
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
        for guess in guesses.iter().filter(|guess| **guess != NONE) {
            seen ^= self.keys[*guess as usize].0 as u32;
            seen ^= self.policy.glance(GROUP, Glance::Around(Slot(*guess)));
        }
        // What was read is wanted for its effect on the CPU's caches alone.
        std::hint::black_box(seen);
    }

    /// Whether `slot` is a slot that holds `key`.
    #[inline]
    fn holds(&self, slot: u32, key: BlockKey) -> bool {
        self.keys.get(slot as usize) == Some(&key)
    }

    #[inline]
    fn refer(&mut self, guess: u32, key: BlockKey, tag: u32, access: Access) {
        let found = if self.holds(guess, key) {
            Some(guess)
        } else {
            let keys = &self.keys;
            self.table.find(tag, |slot| keys[slot as usize] == key)
        };
        let now = Nanos(self.counts.requests_all());
        self.counts.requests[access as usize] += 1;
        if let Some(slot) = found {
            self.counts.hits[access as usize] += 1;
            let moment = &mut Moment { now, rng: &mut self.rng };
            self.policy.on_hit(moment, GROUP, Slot(slot));
        } else if self.admission.on_miss(key) {
            self.bring_in(now, key, tag);
        }
    }

    #[inline]
    fn bring_in(&mut self, now: Nanos, key: BlockKey, tag: u32) {
        let slot = if (self.keys.len() as u32) < self.slots {
            self.keys.push(key);
            Slot((self.keys.len() - 1) as u32)
        } else {
            self.make_room(now, key)
        };
        self.table.add(tag, slot.0);
        self.counts.insertions += 1;
        let moment = &mut Moment { now, rng: &mut self.rng };
        self.policy.on_insert(moment, GROUP, slot, key, Warmth::Warm);
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
        self.counts.evictions += 1;
        slot
    }
}

impl<P: Eviction, A: Admission> Replay for Level<P, A> {
    fn on_batch(&mut self, batch: &Batch) {
        let groups = batch.keys().chunks(AHEAD).zip(batch.tags().chunks(AHEAD));
        for ((keys, tags), accesses) in groups.zip(batch.accesses().chunks(AHEAD)) {
            let mut guesses = [NONE; AHEAD];
            self.look_ahead(keys, tags, &mut guesses);
            for (at, guess) in guesses[..keys.len()].iter().enumerate() {
                self.refer(*guess, keys[at], tags[at], accesses[at]);
            }
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn blocks(&self) -> u32 {
        self.keys.len() as u32
    }

    fn memory_bytes(&self) -> usize {
        let keys = self.keys.capacity() * size_of::<BlockKey>();
        let ranking = self.policy.memory_bytes() + self.admission.memory_bytes();
        keys + self.table.memory_bytes() + ranking
    }
}
