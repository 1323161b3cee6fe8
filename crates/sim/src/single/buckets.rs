//! Blocks and a mark of each: a hash table of cache lines, which keeps its entries in place.
//!
//! How: a bucket is one cache line with five keys and their marks. A block lies in its home bucket
//! or, where that was full, in the next with room; each bucket counts how many passed it by, so a
//! look-up ends at the first that nobody passed, and nothing moves to another bucket when a block
//! leaves. Hence a bucket's number finds a block again, by its mark, without its key.
//! Invariant: marks of blocks that are here differ; `passers` counts the entries that lie behind.
//! Cost: mostly one cache line per look-up; 19.2 bytes per block of room.

use super::references::tag;
use layby_types::BlockKey;

/// Keys of a bucket.
const WAYS: usize = 5;
/// Buckets per so many blocks, as a fraction: two in three places are taken.
const BUCKETS_PER_BLOCK: (u64, u64) = (3, 10);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    keys: [BlockKey; WAYS],
    marks: [u32; WAYS],
    /// Keys here, and above them the number of entries that lie behind though they belong here or
    /// before.
    state: u32,
}

/// The bits of a bucket's state that count its keys.
const LEN: u32 = 7;
/// One who passed by.
const PASSER: u32 = LEN + 1;

const EMPTY: Bucket = Bucket { keys: [BlockKey(0); WAYS], marks: [0; WAYS], state: 0 };
const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is a cache line");

impl Bucket {
    #[inline]
    fn len(&self) -> usize {
        (self.state & LEN) as usize
    }

    /// The key's place here, without branches.
    #[inline]
    fn find(&self, key: BlockKey) -> Option<usize> {
        let equal = |mask, way: usize| mask | u32::from(self.keys[way] == key) << way;
        first((0..WAYS).fold(0, equal) & ((1 << self.len()) - 1))
    }

    /// The place of the entry whose mark is `mark` in the bits of `mask`.
    #[inline]
    fn find_mark(&self, mark: u32, mask: u32) -> Option<usize> {
        let equal = |found, way: usize| found | u32::from(self.marks[way] & mask == mark) << way;
        first((0..WAYS).fold(0, equal) & ((1 << self.len()) - 1))
    }
}

#[inline]
fn first(mask: u32) -> Option<usize> {
    (mask != 0).then(|| mask.trailing_zeros() as usize)
}

/// Where an entry is, until something is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) bucket: u32,
    way: u32,
}

/// See the file's header.
pub(crate) struct Buckets {
    buckets: Vec<Bucket>,
}

impl Buckets {
    /// Room for `blocks` blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        let (part, whole) = BUCKETS_PER_BLOCK;
        let count = blocks * part / whole + 2;
        assert!(count < u64::from(u32::MAX), "buckets are numbered in 32 bits");
        Buckets { buckets: vec![EMPTY; count as usize] }
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    /// Reads where the blocks of `tags` are at home, for the effect on the CPU's caches.
    #[inline]
    pub(crate) fn touch(&self, tags: &[u32]) -> u32 {
        tags.iter().fold(0, |seen, tag| seen ^ self.buckets[self.home(*tag)].state)
    }

    /// Reads a bucket, for the same effect; the last for numbers that no bucket has.
    #[inline]
    pub(crate) fn touch_bucket(&self, bucket: u32) -> u32 {
        self.buckets[(bucket as usize).min(self.buckets.len() - 1)].state
    }

    /// Where `key` is.
    #[inline]
    pub(crate) fn find(&self, key: BlockKey, tag: u32) -> Option<Place> {
        let mut at = self.home(tag);
        loop {
            let bucket = &self.buckets[at];
            if let Some(way) = bucket.find(key) {
                return Some(Place { bucket: at as u32, way: way as u32 });
            }
            if bucket.state < PASSER {
                return None;
            }
            at = self.after(at);
        }
    }

    /// Where the block is that lies in `bucket` and whose mark is `mark` in the bits of `mask`.
    #[inline]
    pub(crate) fn find_mark(&self, bucket: u32, mark: u32, mask: u32) -> Option<Place> {
        let way = self.buckets[bucket as usize].find_mark(mark, mask)?;
        Some(Place { bucket, way: way as u32 })
    }

    #[inline]
    pub(crate) fn mark(&self, place: Place) -> u32 {
        self.buckets[place.bucket as usize].marks[place.way as usize]
    }

    #[inline]
    pub(crate) fn set_mark(&mut self, place: Place, mark: u32) {
        self.buckets[place.bucket as usize].marks[place.way as usize] = mark;
    }

    /// Adds `key`, which is not here; answers with its bucket.
    #[inline]
    pub(crate) fn add(&mut self, key: BlockKey, tag: u32, mark: u32) -> u32 {
        let mut at = self.home(tag);
        while self.buckets[at].len() == WAYS {
            self.buckets[at].state += PASSER;
            at = self.after(at);
        }
        let bucket = &mut self.buckets[at];
        let way = bucket.len();
        bucket.keys[way] = key;
        bucket.marks[way] = mark;
        bucket.state += 1;
        at as u32
    }

    /// Removes an entry. The last of its bucket takes its place.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place) {
        let Place { bucket: number, way } = place;
        let bucket = &mut self.buckets[number as usize];
        let (way, last) = (way as usize, bucket.len() - 1);
        let key = bucket.keys[way];
        bucket.keys[way] = bucket.keys[last];
        bucket.marks[way] = bucket.marks[last];
        bucket.state -= 1;
        let mut at = self.home(tag(key));
        while at != number as usize {
            self.buckets[at].state -= PASSER;
            at = self.after(at);
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;
    use std::collections::BTreeMap;

    /// Goal: the table holds what a map holds, by key and by bucket and mark, where many share a
    /// home and around its end. Method: random additions and removals with few tags.
    #[test]
    fn matches_a_map() {
        for seed in 0..50 {
            let (mut rng, mut table) = (Rng::new(seed), Buckets::new(60));
            // Keys with their true tags, at the edges of the range and in between.
            let all = (0..).map(BlockKey);
            let edges = all.filter(|key| tag(*key).wrapping_add(1 << 29) >> 30 == 0);
            let keys: Vec<BlockKey> = edges.take(60).collect();
            let mut model = BTreeMap::new();
            for mark in 0..2000 {
                let key = keys[rng.below(60) as usize];
                if model.remove(&key).is_some() {
                    let place = table.find(key, tag(key)).expect("it was added");
                    table.remove(place);
                } else {
                    model.insert(key, (table.add(key, tag(key), mark), mark));
                }
                for key in &keys {
                    let place = table.find(*key, tag(*key));
                    let found = place.map(|place| (place.bucket, table.mark(place)));
                    assert_eq!(found, model.get(key).copied(), "SEED={seed}");
                    if let Some((bucket, mark)) = found {
                        assert_eq!(table.find_mark(bucket, mark, u32::MAX), place);
                    }
                }
            }
            for key in model.into_keys() {
                let place = table.find(key, tag(key)).expect("it was added");
                table.remove(place);
            }
            assert!(table.buckets.iter().all(|bucket| bucket.state == 0), "SEED={seed}");
        }
    }
}
