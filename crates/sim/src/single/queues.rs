//! S3-FIFO as rings: counts what the node's S3-FIFO counts, with less memory to wait for.
//!
//! How: one table holds the blocks that are here and those that are remembered; a block's mark is
//! its place in one of three rings, and its uses. So a hit touches one cache line, and a miss finds
//! out with the same line whether the block is remembered. What leaves a ring's end is known long
//! before, and looked at ahead of time. A block that is recalled leaves a gap in the ring of the
//! remembered; gaps are squeezed out when that ring is full.
//! Invariant: each block of the table has one place in one ring, and the ring knows its bucket.
//! Cost: amortised constant; 48 bytes per slot, remembered blocks included.
//! Not for: groups, offers that are refused, blocks that come in cold: see the policy room's
//! `s3fifo`, which has the source and the rules, too.

use super::buckets::{Buckets, Place};
use super::level::{AHEAD, Residents};
use layby_types::{BlockKey, Nanos};

/// The small queue's part of the room, one in so many.
const SMALL_PART: u32 = 10;
/// Uses after which a block in the small queue deserves the main one.
const USES_TO_MAIN: u32 = 2;
/// The counter's ceiling.
const USES_MAX: u32 = 3;
/// The bits of a mark that say where; those above count uses.
const WHERE_BITS: u32 = 30;
const WHERE: u32 = (1 << WHERE_BITS) - 1;
/// A block that was recalled.
const GAP: u32 = u32::MAX;
/// Blocks at a ring's end that are looked at before they leave.
const LOOKS: usize = 2 * AHEAD;

/// Buckets of blocks in the order in which they came.
struct Ring {
    /// The number of the first place: places of all rings differ.
    base: u32,
    buckets: Vec<u32>,
    start: usize,
    len: usize,
    /// How many from the start on were looked at ahead of time.
    looked: usize,
}

impl Ring {
    fn new(base: u32, places: usize) -> Self {
        Ring { base, buckets: vec![GAP; places], start: 0, len: 0, looked: 0 }
    }

    /// Places of this ring and of those before it.
    fn end(&self) -> u32 {
        self.base + self.buckets.len() as u32
    }

    #[inline]
    fn at(&self, step: usize) -> usize {
        let at = self.start + step;
        if at >= self.buckets.len() { at - self.buckets.len() } else { at }
    }

    /// The number of the place that the next push takes.
    #[inline]
    fn next(&self) -> u32 {
        self.base + self.at(self.len) as u32
    }

    #[inline]
    fn push(&mut self, bucket: u32) {
        assert!(self.len < self.buckets.len(), "a ring is as large as its queue can be");
        let at = self.at(self.len);
        self.buckets[at] = bucket;
        self.len += 1;
    }

    /// Takes the oldest: its place's number and its bucket.
    #[inline]
    fn pop(&mut self) -> Option<(u32, u32)> {
        let (number, bucket) = (self.base + self.start as u32, self.buckets[self.start]);
        self.len = self.len.checked_sub(1)?;
        self.start = if self.start + 1 == self.buckets.len() { 0 } else { self.start + 1 };
        self.looked = self.looked.saturating_sub(1);
        Some((number, bucket))
    }

    /// Reads the buckets of those that leave next, each once.
    #[inline]
    fn look(&mut self, table: &Buckets) -> u32 {
        let mut seen = 0;
        while self.looked < self.len.min(LOOKS) {
            seen ^= table.touch_bucket(self.buckets[self.at(self.looked)]);
            self.looked += 1;
        }
        seen
    }
}

/// See the file's header.
pub(crate) struct Queues {
    table: Buckets,
    small: Ring,
    main: Ring,
    ghosts: Ring,
    ghost_count: u32,
    slots: u32,
}

impl Queues {
    /// Room for `slots` blocks.
    pub(crate) fn new(slots: u32) -> Self {
        let remembered = ghost_room(slots);
        let small = Ring::new(0, small_room(slots) as usize + 1);
        let main = Ring::new(small.end(), slots as usize + 1);
        let ghosts = Ring::new(main.end(), 2 * remembered as usize + AHEAD);
        assert!(ghosts.end() <= WHERE, "places are numbered in 30 bits");
        let table = Buckets::new(u64::from(slots) + u64::from(remembered));
        Queues { table, small, main, ghosts, ghost_count: 0, slots }
    }

    #[inline]
    fn find(&self, (number, bucket): (u32, u32)) -> Place {
        let found = self.table.find_mark(bucket, number, WHERE);
        found.expect("a block keeps bucket and place while it is in a ring")
    }

    /// Makes room by the rules, and remembers what left if the small queue gave it up.
    #[inline]
    fn evict(&mut self) {
        let main_yields =
            self.small.len == 0 || self.main.len > (self.slots - small_room(self.slots)) as usize;
        if main_yields || !self.evict_small() {
            self.evict_main();
        }
        while self.ghost_count > ghost_room(self.slots) {
            self.forget_oldest();
        }
    }

    /// What was used moves on, the first that was not leaves; false when all moved on.
    #[inline]
    fn evict_small(&mut self) -> bool {
        while let Some(oldest) = self.small.pop() {
            let place = self.find(oldest);
            if self.table.mark(place) >> WHERE_BITS < USES_TO_MAIN {
                self.remember(place);
                return true;
            }
            self.table.set_mark(place, self.main.next());
            self.main.push(oldest.1);
        }
        false
    }

    /// What was used has another round, the first that was not leaves.
    #[inline]
    fn evict_main(&mut self) {
        loop {
            let oldest = self.main.pop().expect("a full level has a block in either queue");
            let place = self.find(oldest);
            let uses = self.table.mark(place) >> WHERE_BITS;
            if uses == 0 {
                self.table.remove(place);
                return;
            }
            self.table.set_mark(place, self.main.next() | (uses - 1) << WHERE_BITS);
            self.main.push(oldest.1);
        }
    }

    #[inline]
    fn remember(&mut self, place: Place) {
        if self.ghosts.len == self.ghosts.buckets.len() {
            self.squeeze();
        }
        self.table.set_mark(place, self.ghosts.next());
        self.ghosts.push(place.bucket);
        self.ghost_count += 1;
    }

    #[inline]
    fn forget_oldest(&mut self) {
        let oldest = self.ghosts.pop().expect("what is remembered is in the ring");
        if oldest.1 != GAP {
            self.table.remove(self.find(oldest));
            self.ghost_count -= 1;
        }
    }

    /// Takes the gaps out of the ring of the remembered.
    #[cold]
    fn squeeze(&mut self) {
        let mut kept = Ring::new(self.ghosts.base, 0);
        std::mem::swap(&mut kept, &mut self.ghosts);
        let len = std::mem::take(&mut kept.len);
        for step in 0..len {
            let at = kept.at(step);
            let bucket = kept.buckets[at];
            if bucket != GAP {
                let place = self.find((kept.base + at as u32, bucket));
                self.table.set_mark(place, kept.next());
                kept.push(bucket);
            }
        }
        kept.looked = 0;
        self.ghosts = kept;
    }

    /// Whether `key` was remembered; it is not afterwards.
    #[inline]
    fn recall(&mut self, key: BlockKey, tag: u32) -> bool {
        let found = self.table.find(key, tag);
        if let Some(place) = found {
            let at = (self.table.mark(place) & WHERE) - self.ghosts.base;
            self.ghosts.buckets[at as usize] = GAP;
            self.ghost_count -= 1;
            self.table.remove(place);
        }
        found.is_some()
    }
}

fn small_room(room: u32) -> u32 {
    (room / SMALL_PART).max(1)
}

fn ghost_room(room: u32) -> u32 {
    (u64::from(room) * u64::from(SMALL_PART - 1) / u64::from(SMALL_PART)) as u32
}

impl Residents for Queues {
    type Guess = ();

    #[inline]
    fn look_ahead(&mut self, _: &[BlockKey], tags: &[u32], _: &mut [(); AHEAD]) {
        let mut seen = self.table.touch(tags);
        if self.blocks() == self.slots {
            for ring in [&mut self.small, &mut self.main, &mut self.ghosts] {
                seen ^= ring.look(&self.table);
            }
        }
        // What was read is wanted for its effect on the CPU's caches alone.
        std::hint::black_box(seen);
    }

    #[inline]
    fn on_reference(&mut self, _: Nanos, (): (), key: BlockKey, tag: u32) -> bool {
        let Some(place) = self.table.find(key, tag) else { return false };
        let mark = self.table.mark(place);
        let is_here = mark & WHERE < self.ghosts.base;
        if is_here && mark >> WHERE_BITS < USES_MAX {
            self.table.set_mark(place, mark + (1 << WHERE_BITS));
        }
        is_here
    }

    #[inline]
    fn bring_in(&mut self, _: Nanos, key: BlockKey, tag: u32) -> bool {
        let is_full = self.blocks() == self.slots;
        let mut enters_main = self.small.len >= small_room(self.slots) as usize;
        if is_full {
            enters_main = self.recall(key, tag);
            self.evict();
        }
        let ring = if enters_main { &mut self.main } else { &mut self.small };
        let bucket = self.table.add(key, tag, ring.next());
        ring.push(bucket);
        is_full
    }

    fn blocks(&self) -> u32 {
        (self.small.len + self.main.len) as u32
    }

    fn memory_bytes(&self) -> usize {
        let rings = [&self.small, &self.main, &self.ghosts];
        let places: usize = rings.iter().map(|ring| ring.buckets.capacity()).sum();
        self.table.memory_bytes() + places * size_of::<u32>()
    }
}
