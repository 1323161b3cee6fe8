//! What waits in front of one device, by rank.
//!
//! How: an operation of the best rank starts at once; others start while the budget admits them,
//! the better rank first, in order within a rank. A rank ages: while it waits, what better ranks
//! start below the best one is counted, and once that is [`STARVING_BYTES`] and [`STARVING_TIMES`]
//! the bytes of its first operation, this one is next. Where the budget has no room for it, which
//! one longer than the budget never has beside others, nothing else starts until it has. Who
//! submits may rely on no order of operations that are in flight together, as with any device.
//! Invariant: whatever waits has something outstanding before it, and starts after a number of
//! bytes that its own length and its rank bound; beside the best rank at most the budget is
//! outstanding, or one operation.
//! Cost: constant per operation, a scan over the ranks in use. Not for: syncs, which would wait for
//! nothing by waiting.

use super::ready::{REQUEST_BYTES, STARVING_BYTES};
use super::{Budget, Rank};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Bytes of better ranks for each byte of a starving one: it gets a fifth of what they share.
const STARVING_TIMES: u64 = 4;

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
    /// Bytes of better bands that were started while this one waited, less what it was given for
    /// them.
    starved: u64,
}

impl<T> Band<T> {
    fn is_starving(&self) -> bool {
        self.items.front().is_some_and(|(bytes, _)| {
            self.starved >= STARVING_BYTES.max(cost_of(*bytes).saturating_mul(STARVING_TIMES))
        })
    }
}

/// Small operations are no free ride.
fn cost_of(bytes: u64) -> u64 {
    bytes.saturating_add(REQUEST_BYTES)
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
                self.bands.insert(index, Band { rank, items: VecDeque::new(), starved: 0 });
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
        let index = self.choose()?;
        let band = &mut self.bands[index];
        let (bytes, item) = band.items.pop_front_if(|(bytes, _)| {
            // What does not fit keeps the place: else others would take the room each time.
            self.budget.admits(self.outstanding, *bytes)
        })?;
        let cost = cost_of(bytes);
        let is_empty = band.items.is_empty();
        let owed = band.starved.saturating_sub(cost.saturating_mul(STARVING_TIMES));
        band.starved = if is_empty { 0 } else { owed };
        for worse in self.bands[index + 1..].iter_mut().filter(|band| !band.items.is_empty()) {
            worse.starved = worse.starved.saturating_add(cost);
        }
        self.waiting.sub(bytes);
        self.outstanding.add(bytes);
        Some(item)
    }

    /// The band whose operation is next: the worst one that starves, else the best.
    fn choose(&self) -> Option<usize> {
        let starving = self.bands.iter().rposition(Band::is_starving);
        starving.or_else(|| self.bands.iter().position(|band| !band.items.is_empty()))
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
            band.starved = 0;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::BudgetLimits;
    use alloc::vec;
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

    /// Goal: an operation of a worse rank starts after a bounded number of a better one's bytes,
    /// however long it is, and takes no more than its part; else cleaning, for which writes of the
    /// best rank wait, could wait for ever. Method: a budget at its least, a better rank that has
    /// two operations outstanding and two waiting all the time, background operations of one length
    /// after the other; bytes counted from start to start.
    #[test]
    fn a_worse_rank_starts_after_a_bounded_number_of_bytes() {
        const BETTER: u64 = 64 << 10;
        for length in [512u64, 4 << 10, 128 << 10, 1 << 20, 64 << 20] {
            let budget = Budget::with_start(BudgetLimits::DEFAULT, Load::default());
            let mut queue = DeviceQueue::new(budget);
            let (mut running, mut bytes, mut starts) = (VecDeque::new(), [0u64; 2], 0);
            let mut asked = vec![(Rank(1), BETTER); 4];
            asked.push((Rank::BACKGROUND, length));
            // Two of the better rank are outstanding before the first one waits.
            let (bound, mut since) = ((1 << 20).max(4 * (length + 512)) + 2 * BETTER, 0);
            while starts < 8 {
                let mut now: Vec<(Rank, u64)> = Vec::new();
                for (rank, bytes) in asked.drain(..) {
                    now.extend(queue.submit(rank, bytes, (rank, bytes)));
                }
                now.extend(core::iter::from_fn(|| queue.start_next()));
                for (rank, length) in now {
                    let is_better = rank == Rank(1);
                    since = if is_better { since + length } else { 0 };
                    starts += u32::from(!is_better);
                    bytes[usize::from(!is_better)] += length;
                    running.push_back((rank, length));
                    assert!(since <= bound, "{length}: it waited for {since} bytes");
                }
                let (rank, length) = running.pop_front().expect("an idle device starts any");
                queue.on_end(length);
                asked.push((rank, length));
            }
            assert!(4 * bytes[1] <= bytes[0] * 65 / 64 + 4 * length, "{length}: {bytes:?}");
        }
    }

    /// Goal: however many ranks there are, each goes on, and the best of them has most. Method:
    /// ranks that always have an operation waiting, of random lengths; bytes of a long time.
    #[test]
    fn each_of_many_ranks_goes_on() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut queue = DeviceQueue::new(Budget::new(BudgetLimits::DEFAULT));
            let ranks = 2 + rng.below(5) as usize;
            let (mut running, mut bytes) = (VecDeque::new(), vec![0u64; ranks]);
            let mut asked: Vec<usize> = (0..ranks * 70).map(|index| index % ranks).collect();
            for _ in 0..20_000 {
                let mut now: Vec<(usize, u64)> = Vec::new();
                for rank in asked.drain(..) {
                    let length = 4096 << rng.below(9);
                    now.extend(queue.submit(Rank(1 + rank as u16), length, (rank, length)));
                }
                now.extend(core::iter::from_fn(|| queue.start_next()));
                now.iter().for_each(|(rank, length)| bytes[*rank] += length);
                running.extend(now);
                let at = rng.below(running.len() as u64) as usize;
                let (rank, length) = running.swap_remove_back(at).expect("it is one of them");
                queue.on_end(length);
                asked.push(rank);
            }
            let all: u64 = bytes.iter().sum();
            assert!(bytes.iter().all(|some| *some > all / 16), "seed {seed}: {bytes:?}");
            assert!(bytes.iter().all(|some| *some <= bytes[0]), "seed {seed}: {bytes:?}");
        }
    }
}
