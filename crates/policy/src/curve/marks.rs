//! One bit per moment, and how many are set after a given one.
//!
//! How: a bit map in lines of 512 bits, and a Fenwick tree over the lines' counts. The tree is a
//! 128th of a tree over bits, so both stay in the nearest CPU caches up to millions of moments.
//! Invariant: the tree's sums equal the bits. Cost: logarithmic in the lines; an eighth of a byte
//! per moment and a little.

use alloc::vec;
use alloc::vec::Vec;

const LINE_WORDS: usize = 8;
const LINE_BITS: u32 = 512;

/// See the file's header.
pub(crate) struct Marks {
    words: Vec<u64>,
    /// Entry i sums the lines `i - lowest_bit(i) .. i`, counted from one.
    tree: Vec<u32>,
    total: u32,
}

impl Marks {
    /// Room for at least `moments` moments, none set.
    pub(crate) fn new(moments: u32) -> Self {
        let lines = moments.div_ceil(LINE_BITS).max(1) as usize;
        Marks { words: vec![0; lines * LINE_WORDS], tree: vec![0; lines + 1], total: 0 }
    }

    /// Moments there is room for.
    pub(crate) fn moments(&self) -> u32 {
        (self.words.len() * 64) as u32
    }

    #[inline]
    fn add(&mut self, line: usize, change: i32) {
        let mut at = line + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add_signed(change);
            at += at & at.wrapping_neg();
        }
    }

    /// Sets the bit of `moment`, which is clear.
    #[inline]
    pub(crate) fn set(&mut self, moment: u32) {
        self.words[(moment / 64) as usize] |= 1 << (moment % 64);
        self.add((moment / LINE_BITS) as usize, 1);
        self.total += 1;
    }

    /// Clears the bit of `moment`, which is set.
    #[inline]
    pub(crate) fn clear(&mut self, moment: u32) {
        self.words[(moment / 64) as usize] &= !(1 << (moment % 64));
        self.add((moment / LINE_BITS) as usize, -1);
        self.total -= 1;
    }

    /// Moves a set bit from `moment` to the later, clear `to`.
    #[inline]
    pub(crate) fn advance(&mut self, moment: u32, to: u32) {
        self.words[(moment / 64) as usize] &= !(1 << (moment % 64));
        self.words[(to / 64) as usize] |= 1 << (to % 64);
        let (from_line, to_line) = ((moment / LINE_BITS) as usize, (to / LINE_BITS) as usize);
        if from_line != to_line {
            self.add(from_line, -1);
            self.add(to_line, 1);
        }
    }

    /// Bits set before `moment`.
    #[inline]
    pub(crate) fn count_before(&self, moment: u32) -> u32 {
        let line = (moment / LINE_BITS) as usize;
        let mut at = line;
        let mut count = 0u32;
        while at > 0 {
            count = count.wrapping_add(self.tree[at]);
            at &= at - 1;
        }
        let word = (moment / 64) as usize;
        for whole in &self.words[line * LINE_WORDS..word] {
            count += whole.count_ones();
        }
        count + (self.words[word] & ((1 << (moment % 64)) - 1)).count_ones()
    }

    /// Bits set after `moment`, which is set itself.
    #[inline]
    pub(crate) fn count_after(&self, moment: u32) -> u32 {
        self.total - self.count_before(moment) - 1
    }

    /// Starts again with the first `count` bits set, and room for at least `moments`.
    pub(crate) fn restart(&mut self, count: u32, moments: u32) {
        if self.moments() < moments {
            *self = Marks::new(moments);
        }
        for (index, word) in self.words.iter_mut().enumerate() {
            let set = count.saturating_sub(index as u32 * 64).min(64);
            *word = if set == 64 { u64::MAX } else { (1 << set) - 1 };
        }
        self.total = count;
        let lines = self.tree.len() - 1;
        let filled = |lines: usize| count.min(lines as u32 * LINE_BITS);
        for at in 1..=lines {
            self.tree[at] = filled(at) - filled(at & (at - 1));
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.capacity() * 8 + self.tree.capacity() * 4
    }
}
