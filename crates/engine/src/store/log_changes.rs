//! Which slots have changed since a checkpoint looked at them last: a bit each.
//!
//! How: whatever changes where a slot's block lies, or whether it is dirty, sets the slot's bit. A
//! checkpoint clears it in the moment in which it looks at the slot, and not before: what changes
//! while it waits for the peer level is part of it. Words without bits are passed over, so that 64
//! unchanged slots cost one comparison. What was cleared is kept until the checkpoint ends, and
//! comes back if it fails.
//! Invariant: a slot without a bit is as the newest complete checkpoint and its predecessors in the
//! area say, or as the checkpoint under way has seen it.
//! Cost: two bits of memory per slot.

use layby_types::Slot;

const WORD: u32 = u64::BITS;
/// Words looked at in a step: 32 KiB of memory, one behind the other.
const WORDS_PER_STEP: usize = 4096;

#[derive(Debug)]
pub(super) struct Changes {
    slots: u32,
    changed: Vec<u64>,
    /// What the checkpoint under way has cleared, in the words that it has passed.
    taken: Vec<u64>,
    /// Words that it has passed.
    passed: usize,
    count: u32,
}

impl Changes {
    pub(super) fn new(slots: u32) -> Changes {
        let words = slots.div_ceil(WORD) as usize;
        Changes { slots, changed: vec![0; words], taken: vec![0; words], passed: 0, count: 0 }
    }

    /// Slots that have changed.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn memory_bytes(&self) -> usize {
        (self.changed.capacity() + self.taken.capacity()) * size_of::<u64>()
    }

    /// The slot's place, or what the cache says of it, is another.
    #[inline]
    pub(super) fn note(&mut self, slot: Slot) {
        let (word, bit) = (&mut self.changed[(slot.0 / WORD) as usize], 1 << (slot.0 % WORD));
        self.count += u32::from(*word & bit == 0);
        *word |= bit;
    }

    /// A checkpoint begins to look at slots.
    pub(super) fn begin(&mut self) {
        self.passed = 0;
    }

    /// A checkpoint looks at the slot now; they come in ascending order.
    pub(super) fn take(&mut self, slot: Slot) {
        let (word, bit) = ((slot.0 / WORD) as usize, 1 << (slot.0 % WORD));
        self.pass(word + 1);
        self.count -= u32::from(self.changed[word] & bit != 0);
        self.taken[word] |= self.changed[word] & bit;
        self.changed[word] &= !bit;
    }

    /// What was taken of words up to `end` is of this checkpoint, and not of one before.
    fn pass(&mut self, end: usize) {
        if end > self.passed {
            self.taken[self.passed..end].fill(0);
            self.passed = end;
        }
    }

    /// The first changed slot from `from` on, or the first slot that was not looked for.
    pub(super) fn find(&mut self, from: u32) -> Result<Slot, u32> {
        let first = (from / WORD) as usize;
        for word in first..self.changed.len().min(first + WORDS_PER_STEP) {
            let at = word as u32 * WORD;
            let behind = if at < from { !0 << (from - at) } else { !0 };
            let bits = self.changed[word] & behind;
            if bits != 0 {
                return Ok(Slot(at + bits.trailing_zeros()));
            }
        }
        let end = self.changed.len().min(first + WORDS_PER_STEP);
        self.pass(end);
        Err((end as u64 * u64::from(WORD)).min(self.slots.into()) as u32)
    }

    /// The checkpoint has failed, or begins anew: what it took has changed still.
    pub(super) fn give_back(&mut self) {
        for (changed, taken) in self.changed.iter_mut().zip(&self.taken).take(self.passed) {
            self.count += (taken & !*changed).count_ones();
            *changed |= taken;
        }
        self.passed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;
    use std::collections::BTreeSet;

    /// Goal: every changed slot is found once, in order, and a failed run gives back what it took.
    /// Method: random notes and runs, some of which fail, beside plain sets.
    #[test]
    fn changes_match_a_set() {
        let mut rng = Rng::new(1);
        for slots in [1, 63, 64, 65, 700, 600_000] {
            let mut changes = Changes::new(slots);
            let mut model = BTreeSet::new();
            for _ in 0..40 {
                for _ in 0..rng.below(30) {
                    let slot = Slot(rng.below(slots.into()) as u32);
                    changes.note(slot);
                    model.insert(slot);
                }
                assert_eq!(changes.count() as usize, model.len());
                let (mut at, mut taken) = (0, BTreeSet::new());
                changes.begin();
                while at < slots && !rng.chance(1, 40) {
                    match changes.find(at) {
                        Ok(slot) => {
                            changes.take(slot);
                            assert_eq!(model.range(Slot(at)..).next(), Some(&slot));
                            taken.insert(slot);
                            model.remove(&slot);
                            at = slot.0 + 1;
                        }
                        Err(end) => at = end,
                    }
                    let slot = Slot(rng.below(slots.into()) as u32);
                    changes.note(slot);
                    model.insert(slot);
                }
                if rng.chance(1, 2) {
                    changes.give_back();
                    model.extend(taken);
                }
            }
        }
    }
}
