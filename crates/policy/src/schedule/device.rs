//! What waits in front of one device, by rank.
//!
//! How: an operation of the best rank starts at once; others start while the budget admits them,
//! the better rank first, in order within a rank. Who submits may rely on no order of operations
//! that are in flight together, as with any device.
//! Invariant: whatever waits has something outstanding before it, so it starts some day; beside
//! the best rank at most the budget is outstanding, or one operation.
//! Cost: constant per operation. Not for: syncs, which would wait for nothing by waiting.

use super::{Budget, Rank};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// What is outstanding, or waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Operations.
    pub ios: u32,
    /// Bytes.
    pub bytes: u64,
}

impl Load {
    fn add(&mut self, bytes: u64) {
        self.ios += 1;
        self.bytes += bytes;
    }

    fn sub(&mut self, bytes: u64) {
        self.ios = self.ios.checked_sub(1).expect("what ends was outstanding");
        self.bytes = self.bytes.checked_sub(bytes).expect("what ends was outstanding");
    }
}

struct Band<T> {
    rank: Rank,
    items: VecDeque<(u64, T)>,
}

/// See the file's header. `T` is the host's operation.
pub struct DeviceQueue<T> {
    budget: Budget,
    bands: Vec<Band<T>>,
    waiting: Load,
    /// Below the best rank.
    outstanding: Load,
}

impl<T> DeviceQueue<T> {
    /// An idle device.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        let (waiting, outstanding) = (Load::default(), Load::default());
        DeviceQueue { budget, bands: Vec::new(), waiting, outstanding }
    }

    /// The budget, to be told of windows.
    pub fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// What lower ranks may have outstanding.
    #[must_use]
    pub fn allowed(&self) -> Load {
        Load { ios: self.budget.ios(), bytes: self.budget.bytes() }
    }

    /// What lower ranks have outstanding.
    #[must_use]
    pub fn outstanding(&self) -> Load {
        self.outstanding
    }

    /// What waits.
    #[must_use]
    pub fn waiting(&self) -> Load {
        self.waiting
    }

    /// What waits, by rank, best first.
    pub fn waiting_by_rank(&self) -> impl Iterator<Item = (Rank, Load)> + '_ {
        let load = |band: &Band<T>| Load {
            ios: band.items.len() as u32,
            bytes: band.items.iter().map(|(bytes, _)| bytes).sum(),
        };
        self.bands.iter().map(move |band| (band.rank, load(band)))
    }

    /// An operation below the best rank: it is given back when it may start now; else it waits.
    pub fn submit(&mut self, rank: Rank, bytes: u64, item: T) -> Option<T> {
        if self.waiting.ios == 0 && self.budget.admits(self.outstanding, bytes) {
            self.outstanding.add(bytes);
            return Some(item);
        }
        let index = match self.bands.binary_search_by_key(&rank, |band| band.rank) {
            Ok(index) => index,
            Err(index) => {
                self.bands.insert(index, Band { rank, items: VecDeque::new() });
                index
            }
        };
        self.bands[index].items.push_back((bytes, item));
        self.waiting.add(bytes);
        // A better rank does not wait for a worse one's room that is too small for it.
        self.start_next()
    }

    /// An operation below the best rank ended.
    pub fn on_end(&mut self, bytes: u64) {
        self.outstanding.sub(bytes);
    }

    /// Takes what may start now.
    pub fn start_next(&mut self) -> Option<T> {
        let band = self.bands.iter_mut().find(|band| !band.items.is_empty())?;
        let (bytes, _) = band.items.front().expect("it is not empty");
        if !self.budget.admits(self.outstanding, *bytes) {
            return None;
        }
        let (bytes, item) = band.items.pop_front().expect("it is not empty");
        self.waiting.sub(bytes);
        self.outstanding.add(bytes);
        Some(item)
    }

    /// Takes all that waits, best first, whatever the budget says: the device leaves. What is taken
    /// counts as outstanding.
    pub fn start_all(&mut self) -> Vec<T> {
        let mut all = Vec::new();
        for band in &mut self.bands {
            for (bytes, item) in band.items.drain(..) {
                self.waiting.sub(bytes);
                self.outstanding.add(bytes);
                all.push(item);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::BudgetLimits;
    use layby_types::Rng;

    /// Goal: everything starts once, better ranks first and in order within a rank, and no more is
    /// outstanding than the budget says. Method: random operations, ends and windows beside counts.
    #[test]
    fn starts_by_rank_within_the_budget() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let limits = BudgetLimits { bytes_min: 8, bytes_max: 64, ios_min: 1, ios_max: 6 };
            let mut queue: DeviceQueue<(u16, u64, u64)> = DeviceQueue::new(Budget::new(limits));
            let (mut running, mut next, mut started) = (Vec::new(), 0u64, Vec::new());
            for _ in 0..400 {
                let mut now = Vec::new();
                match rng.below(5) {
                    0 | 1 => {
                        let (rank, bytes) = (1 + rng.below(3) as u16, 1 + rng.below(20));
                        now.extend(queue.submit(Rank(rank), bytes, (rank, bytes, next)));
                        next += 1;
                    }
                    2 | 3 if !running.is_empty() => {
                        let at = rng.below(running.len() as u64) as usize;
                        let (_, bytes, _) = running.swap_remove(at);
                        queue.on_end(bytes);
                    }
                    4 if rng.chance(1, 2) => queue.budget().on_missed(),
                    _ => queue.budget().on_met(),
                }
                while let Some(item) = queue.start_next() {
                    now.push(item);
                }
                for item in now {
                    let best = queue.waiting_by_rank().find(|(_, load)| load.ios > 0);
                    assert!(best.is_none_or(|(rank, _)| rank.0 >= item.0) || item.2 + 1 == next);
                    running.push(item);
                    started.push(item);
                }
                let bytes: u64 = running.iter().map(|(_, bytes, _)| bytes).sum();
                assert_eq!(queue.outstanding(), Load { ios: running.len() as u32, bytes });
                assert!(bytes <= limits.bytes_max || running.len() == 1, "seed {seed}");
                assert!(queue.waiting().ios == 0 || !running.is_empty(), "seed {seed}: stuck");
            }
            running.iter().for_each(|(_, bytes, _)| queue.on_end(*bytes));
            started.extend(queue.start_all());
            started.sort_unstable_by_key(|(.., number)| *number);
            assert!(started.iter().map(|(.., number)| *number).eq(0..next), "each starts once");
        }
    }
}
