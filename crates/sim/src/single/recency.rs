//! LRU as a log of uses: counts what the node's LRU counts, with less memory to wait for.
//!
//! How: every use of a block is written at the log's end, and the table keeps where a block was
//! used last. A use stands while it is its block's last; a bit for each says so. The first that
//! stands is that of the coldest block. So a hit touches a cache line and a bit out of order, where
//! a chain touches key, links and two neighbours; and who leaves next is known long before. When
//! the log is full, the uses that do not stand are squeezed out.
//! Invariant: every block that is here has one use that stands, and the uses lie in the order of
//! time. Cost: amortised constant; 16.5 bytes per slot beside the table's 19.2.
//! Not for: groups, offers that are refused, blocks that come in cold: see the policy room's `lru`.

use super::buckets::Buckets;
use super::level::{AHEAD, Residents};
use layby_types::{BlockKey, Nanos};

/// Uses in the log per slot.
const USES_PER_SLOT: usize = 4;
/// Uses from the oldest that are looked at ahead of time.
const LOOKS: usize = 16 * AHEAD;
/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// See the file's header.
pub(crate) struct Recency {
    table: Buckets,
    /// Buckets of the blocks that were used; a ring. A block's mark is the place of its last use.
    uses: Vec<u32>,
    /// A bit for each use that stands.
    standing: Vec<u64>,
    /// The oldest use that may stand.
    start: usize,
    /// Uses from there on.
    len: usize,
    /// How many of these were looked at ahead of time.
    looked: usize,
    blocks: u32,
    slots: u32,
}

impl Recency {
    /// Room for `slots` blocks.
    pub(crate) fn new(slots: u32) -> Self {
        let words = (slots as usize * USES_PER_SLOT + LOOKS).div_ceil(WORD);
        let (uses, standing) = (vec![0; words * WORD], vec![0; words]);
        let table = Buckets::new(slots.into());
        Recency { table, uses, standing, start: 0, len: 0, looked: 0, blocks: 0, slots }
    }

    /// The place in the ring that lies `steps` after the oldest use.
    #[inline]
    fn at(&self, steps: usize) -> usize {
        let at = self.start + steps;
        if at >= self.uses.len() { at - self.uses.len() } else { at }
    }

    /// Steps to the first use that stands, from `steps` on.
    #[inline]
    fn stands_from(&self, mut steps: usize) -> Option<usize> {
        while steps < self.len {
            let at = self.at(steps);
            let word = self.standing[at / WORD] >> (at % WORD);
            if word != 0 {
                return Some(steps + word.trailing_zeros() as usize);
            }
            steps += WORD - at % WORD;
        }
        None
    }

    #[inline]
    fn strike(&mut self, at: usize) {
        self.standing[at / WORD] &= !(1 << (at % WORD));
    }

    /// Where the next use will be written; there is room for it.
    #[inline]
    fn next(&mut self) -> u32 {
        if self.len == self.uses.len() {
            self.squeeze();
        }
        self.at(self.len) as u32
    }

    /// Writes that a block of `bucket` was used.
    #[inline]
    fn write(&mut self, bucket: u32) {
        self.stand(self.at(self.len), bucket);
        self.len += 1;
    }

    #[inline]
    fn stand(&mut self, at: usize, bucket: u32) {
        self.uses[at] = bucket;
        self.standing[at / WORD] |= 1 << (at % WORD);
    }

    /// The coldest block leaves.
    #[inline]
    fn evict(&mut self) {
        let steps = self.stands_from(0).expect("every block that is here has a use that stands");
        let at = self.at(steps);
        let place = self.table.find_mark(self.uses[at], at as u32, u32::MAX);
        self.table.remove(place.expect("a block stays in its bucket"));
        self.strike(at);
        self.start = self.at(steps + 1);
        self.len -= steps + 1;
        self.looked = self.looked.saturating_sub(steps + 1);
        self.blocks -= 1;
    }

    /// Takes the uses that do not stand out of the log.
    #[cold]
    fn squeeze(&mut self) {
        let (mut kept, mut next) = (0, 0);
        while kept < self.blocks as usize {
            let (mut group, mut count) = ([0; AHEAD], 0);
            while count < AHEAD
                && let Some(steps) = self.stands_from(next)
            {
                (group[count], count, next) = (self.at(steps), count + 1, steps + 1);
            }
            let touch = |seen, at: &usize| seen ^ self.table.touch_bucket(self.uses[*at]);
            std::hint::black_box(group[..count].iter().fold(0, touch));
            for at in &group[..count] {
                let (bucket, to) = (self.uses[*at], self.at(kept));
                let place = self.table.find_mark(bucket, *at as u32, u32::MAX);
                self.table.set_mark(place.expect("a block stays in its bucket"), to as u32);
                self.strike(*at);
                self.stand(to, bucket);
                kept += 1;
            }
        }
        (self.len, self.looked) = (kept, 0);
    }
}

impl Residents for Recency {
    type Guess = ();

    #[inline]
    fn look_ahead(&mut self, _: &[BlockKey], tags: &[u32], _: &mut [(); AHEAD]) {
        let mut seen = self.table.touch(tags);
        while self.looked < LOOKS && self.blocks == self.slots {
            let Some(steps) = self.stands_from(self.looked) else { break };
            seen ^= self.table.touch_bucket(self.uses[self.at(steps)]);
            self.looked = steps + 1;
        }
        // What was read is wanted for its effect on the CPU's caches alone.
        std::hint::black_box(seen);
    }

    #[inline]
    fn on_reference(&mut self, _: Nanos, (): (), key: BlockKey, tag: u32) -> bool {
        let use_now = self.next();
        let Some(place) = self.table.find(key, tag) else { return false };
        self.strike(self.table.mark(place) as usize);
        self.table.set_mark(place, use_now);
        self.write(place.bucket);
        true
    }

    #[inline]
    fn bring_in(&mut self, _: Nanos, key: BlockKey, tag: u32) -> bool {
        let is_full = self.blocks == self.slots;
        if is_full {
            self.evict();
        }
        let mark = self.next();
        let bucket = self.table.add(key, tag, mark);
        self.write(bucket);
        self.blocks += 1;
        is_full
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn memory_bytes(&self) -> usize {
        let log = self.uses.capacity() * size_of::<u32>();
        self.table.memory_bytes() + log + self.standing.capacity() * size_of::<u64>()
    }
}
