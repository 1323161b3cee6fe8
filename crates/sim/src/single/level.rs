//! A level of slots under one eviction policy.
//!
//! How: [`Residents`] knows which blocks are here and which of them leaves. A write brings its
//! block in, as in a write-back level; a read that misses does where the filter admits it, as on a
//! node.
//! References are looked up a few ahead of time, so that memory is asked for many places at once
//! instead of one after the other; what is found is a guess that is confirmed when its turn comes.
//! Cost: tens of nanoseconds per reference beyond the CPU's caches. Not for: what comes before its
//! time, such as read-ahead.

use super::queues::Queues;
use super::recency::Recency;
use super::references::Batch;
use super::slots::Slots;
use layby_policy::curve::Access;
use layby_policy::registry::EvictionKind;
use layby_policy::{
    Admission, AdmissionKind, AdmitAll, Arc, Clock, Fifo, Lfu, Lru, S3Fifo, SecondMiss,
};
use layby_types::{BlockKey, Nanos};

/// Slots of a level at most.
pub const SLOTS_MAX: u32 = u32::MAX - 1;
/// Slots that `recency` and `queues` can number at most.
const SLOTS_MARKED_MAX: u32 = 1 << 28;
/// References that are looked up ahead of their turn.
pub(crate) const AHEAD: usize = 64;

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

/// The blocks that a level holds, and the order in which they leave.
pub(crate) trait Residents: Send {
    /// What looking ahead found out about a reference.
    type Guess: Copy + Default;

    /// Asks memory for all that the references to `keys` will need, before any of it is needed.
    fn look_ahead(&mut self, keys: &[BlockKey], tags: &[u32], guesses: &mut [Self::Guess; AHEAD]);
    /// Notes a use of `key` if it is here; whether it is.
    fn on_reference(&mut self, now: Nanos, guess: Self::Guess, key: BlockKey, tag: u32) -> bool;
    /// Brings in `key`, which is not here; whether another block left for it.
    fn bring_in(&mut self, now: Nanos, key: BlockKey, tag: u32) -> bool;
    /// Blocks held now.
    fn blocks(&self) -> u32;
    /// Bytes of memory held.
    fn memory_bytes(&self) -> usize;
}

/// A level of `slots` slots under `policy`, with a filter before it.
#[must_use]
pub fn build(
    policy: EvictionKind,
    admission: AdmissionKind,
    slots: u32,
    seed: u64,
) -> Box<dyn Replay> {
    assert!((1..=SLOTS_MAX).contains(&slots), "a level of {slots} slots");
    match policy {
        EvictionKind::Lru if slots <= SLOTS_MARKED_MAX => {
            filtered(Recency::new(slots), admission, slots)
        }
        EvictionKind::S3Fifo if slots <= SLOTS_MARKED_MAX => {
            filtered(Queues::new(slots), admission, slots)
        }
        _ => build_plain(policy, admission, slots, seed),
    }
}

/// The same under the policy that the node runs, through its own trait.
pub(crate) fn build_plain(
    policy: EvictionKind,
    admission: AdmissionKind,
    slots: u32,
    seed: u64,
) -> Box<dyn Replay> {
    match policy {
        EvictionKind::Lru => filtered(Slots::new(Lru::new(slots), slots, seed), admission, slots),
        EvictionKind::Fifo => filtered(Slots::new(Fifo::new(slots), slots, seed), admission, slots),
        EvictionKind::Clock => {
            filtered(Slots::new(Clock::new(slots), slots, seed), admission, slots)
        }
        EvictionKind::S3Fifo => {
            filtered(Slots::new(S3Fifo::new(slots), slots, seed), admission, slots)
        }
        EvictionKind::Arc => filtered(Slots::new(Arc::new(slots), slots, seed), admission, slots),
        EvictionKind::Lfu => filtered(Slots::new(Lfu::new(slots), slots, seed), admission, slots),
    }
}

fn filtered<R: Residents + 'static>(
    residents: R,
    admission: AdmissionKind,
    slots: u32,
) -> Box<dyn Replay> {
    match admission {
        AdmissionKind::All => Box::new(Level::new(residents, AdmitAll)),
        AdmissionKind::SecondMiss => Box::new(Level::new(residents, SecondMiss::new(slots))),
    }
}

/// See the file's header.
struct Level<R, A> {
    residents: R,
    admission: A,
    counts: Counts,
}

impl<R: Residents, A: Admission> Level<R, A> {
    fn new(residents: R, admission: A) -> Self {
        Level { residents, admission, counts: Counts::default() }
    }

    #[inline]
    fn refer(&mut self, guess: R::Guess, key: BlockKey, tag: u32, access: Access) {
        let now = Nanos(self.counts.requests_all());
        self.counts.requests[access as usize] += 1;
        if self.residents.on_reference(now, guess, key, tag) {
            self.counts.hits[access as usize] += 1;
        } else if self.admission.keeps(key, access) {
            self.counts.evictions += u64::from(self.residents.bring_in(now, key, tag));
            self.counts.insertions += 1;
        }
    }
}

impl<R: Residents, A: Admission> Replay for Level<R, A> {
    fn on_batch(&mut self, batch: &Batch) {
        let groups = batch.keys().chunks(AHEAD).zip(batch.tags().chunks(AHEAD));
        for ((keys, tags), accesses) in groups.zip(batch.accesses().chunks(AHEAD)) {
            let mut guesses = [R::Guess::default(); AHEAD];
            self.residents.look_ahead(keys, tags, &mut guesses);
            for (at, guess) in guesses[..keys.len()].iter().enumerate() {
                self.refer(*guess, keys[at], tags[at], accesses[at]);
            }
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn blocks(&self) -> u32 {
        self.residents.blocks()
    }

    fn memory_bytes(&self) -> usize {
        self.residents.memory_bytes() + self.admission.memory_bytes()
    }
}
