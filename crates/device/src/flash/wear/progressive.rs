//! Progressive wear levelling (Chen et al., DATE 2015): idle while young, eager when old.
//!
//! How: when cleaning has erased a block that is worn beyond a threshold, the data of the least
//! worn closed block move onto it, and that block is free in its stead. The threshold rises from
//! its first value to the endurance with the mean of erases.
//! Invariant: the number of free blocks does not change. Cost: nothing until the first block
//! crosses the threshold; then a balanced tree of closed blocks by wear.

use super::super::blocks::State;
use super::super::medium::{Cause, Medium};
use super::Leveler;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

#[derive(Debug)]
pub(super) struct Progressive {
    threshold_first: u64,
    endurance: u64,
    /// Closed blocks by erases; `None` while nobody needs it.
    closed: Option<BTreeSet<(u32, u32)>>,
    /// Under how many erases each block is in `closed`.
    known: Vec<Option<u32>>,
}

impl Progressive {
    pub(super) fn new(threshold_percent: u8, endurance: u32) -> Self {
        let endurance = u64::from(endurance.max(1));
        let threshold_first = endurance * u64::from(threshold_percent) / 100;
        Progressive { threshold_first, endurance, closed: None, known: Vec::new() }
    }
    /// The erases beyond which a block is relieved, when the mean is `mean`.
    pub(super) fn threshold(&self, mean: u64) -> u64 {
        mean * (self.endurance - self.threshold_first) / self.endurance + self.threshold_first
    }
    fn relieved(&mut self, medium: &Medium, block: u32) -> bool {
        // The reserve's blocks wear, too, but the paper's simulator leaves them out of the mean.
        let blocks = u64::from(medium.blocks_counted);
        let threshold = self.threshold(medium.statistics.cleaning_erases / blocks);
        u64::from(medium.blocks[block as usize].erases) > threshold
    }
    /// The least worn closed block that holds anything.
    fn coldest(&mut self, medium: &mut Medium) -> Option<u32> {
        self.refresh(medium);
        let mut closed = self.closed.iter().flatten();
        closed.find(|(_, block)| medium.blocks[*block as usize].valid > 0).map(|&(_, block)| block)
    }
    /// Takes in what changed since the last time, or everything the first time.
    fn refresh(&mut self, medium: &mut Medium) {
        let touched = match &mut medium.touched {
            Some(touched) if self.closed.is_some() => core::mem::take(touched),
            _ => {
                medium.touched = Some(Vec::new());
                self.closed = Some(BTreeSet::new());
                self.known = vec![None; medium.blocks.len()];
                (0..medium.blocks.len() as u32).collect()
            }
        };
        let closed = self.closed.get_or_insert_default();
        for block in touched {
            let record = &medium.blocks[block as usize];
            let now = (record.state == State::Closed).then_some(record.erases);
            let before = core::mem::replace(&mut self.known[block as usize], now);
            before.map(|erases| closed.remove(&(erases, block)));
            now.map(|erases| closed.insert((erases, block)));
        }
    }
}

impl Leveler for Progressive {
    fn on_cleaned(&mut self, medium: &mut Medium, block: u32) {
        if self.closed.is_some() {
            self.refresh(medium);
        }
        if !self.relieved(medium, block) {
            return;
        }
        let Some(cold) = self.coldest(medium) else { return };
        medium.hold_free(block);
        medium.hold(cold);
        medium.transplant(cold, block);
        medium.erase_and_release(cold, Cause::Leveling);
    }
    fn on_resumed(&mut self, medium: &mut Medium) {
        self.closed = None;
        medium.touched = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the threshold grows as in the paper's simulator. Method: its values, by hand.
    #[test]
    fn thresholds_as_worked_out() {
        let (half, three_quarters) = (Progressive::new(50, 500), Progressive::new(75, 500));
        let rows = [
            (0, 250, 375),
            (1, 250, 375),
            (2, 251, 375),
            (100, 300, 400),
            (300, 400, 450),
            (400, 450, 475),
            (450, 475, 487),
            (499, 499, 499),
        ];
        for (mean, at_half, at_three_quarters) in rows {
            assert_eq!(half.threshold(mean), at_half, "{mean}");
            assert_eq!(three_quarters.threshold(mean), at_three_quarters, "{mean}");
        }
    }
}
