//! Dual-Pool (Chang, SAC 2007): blocks for hot data and blocks for cold, which swap what they hold.
//!
//! How: membership belongs to blocks, not to data. When the most worn closed hot block is ahead of
//! the least worn closed cold one, their data swap and so do their pools; two further rules move
//! blocks between pools without moving data. As in the HotStorage authors' simulator, the three
//! rules are tried after each page of the host, once each.
//! Invariant: the trees hold exactly the blocks that are not bad, by the pool and the counts they
//! have now. Cost: some tree operations per block opened, closed or erased, and none per page.

use super::super::blocks::State;
use super::super::medium::{Cause, Medium};
use super::Leveler;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use layby_types::Rng;

/// When two erase counts are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DualPoolCompare {
    /// When the hot block is ahead, as in the public simulator.
    #[default]
    Signed,
    /// Whoever is ahead.
    Absolute,
}

type Tree = BTreeSet<(u32, u32)>;

/// What the trees hold of a block.
#[derive(Clone, Copy, Debug)]
struct Known {
    hot: bool,
    erases: u32,
    effective: u32,
    closed: bool,
}

/// One pool's blocks, each under a count.
#[derive(Debug, Default)]
struct Pool {
    closed_by_erases: Tree,
    by_erases: Tree,
    by_effective: Tree,
}

#[derive(Debug)]
pub(super) struct DualPool {
    threshold: u32,
    compare: DualPoolCompare,
    hot: Vec<bool>,
    /// Erases at which the effective count of a block began anew.
    base: Vec<u32>,
    known: Vec<Option<Known>>,
    /// The cold pool and the hot one.
    pools: [Pool; 2],
    /// Something was done last time, so that something more may be to do.
    acted: bool,
}

impl DualPool {
    pub(super) fn new(
        medium: &Medium,
        threshold: u32,
        compare: DualPoolCompare,
        rng: &mut Rng,
    ) -> Self {
        let blocks = medium.blocks.len();
        DualPool {
            threshold,
            compare,
            hot: (0..blocks).map(|_| rng.chance(1, 2)).collect(),
            base: vec![0; blocks],
            known: vec![None; blocks],
            pools: Default::default(),
            acted: true,
        }
    }
    fn refresh(&mut self, medium: &mut Medium) {
        let touched = medium.touched.as_mut().map(core::mem::take).unwrap_or_default();
        for block in touched {
            self.renew(medium, block);
        }
    }
    /// Puts a block into the trees where it belongs now.
    fn renew(&mut self, medium: &Medium, block: u32) {
        let record = &medium.blocks[block as usize];
        let now = (record.state != State::Bad).then(|| Known {
            hot: self.hot[block as usize],
            erases: record.erases,
            effective: record.erases - self.base[block as usize],
            closed: record.state == State::Closed,
        });
        if let Some(before) = core::mem::replace(&mut self.known[block as usize], now) {
            let pool = &mut self.pools[usize::from(before.hot)];
            pool.by_erases.remove(&(before.erases, block));
            pool.by_effective.remove(&(before.effective, block));
            pool.closed_by_erases.remove(&(before.erases, block));
        }
        if let Some(now) = now {
            let pool = &mut self.pools[usize::from(now.hot)];
            pool.by_erases.insert((now.erases, block));
            pool.by_effective.insert((now.effective, block));
            if now.closed {
                pool.closed_by_erases.insert((now.erases, block));
            }
        }
    }
    fn apart(&self, hot: u32, cold: u32) -> bool {
        let ahead = match self.compare {
            DualPoolCompare::Signed => hot.saturating_sub(cold),
            DualPoolCompare::Absolute => hot.abs_diff(cold),
        };
        ahead > self.threshold
    }
    fn move_to(&mut self, medium: &Medium, block: u32, hot: bool) {
        self.hot[block as usize] = hot;
        self.renew(medium, block);
    }
    /// Swaps the data of the most worn hot and the least worn cold block, where they are apart.
    fn swap_data(&mut self, medium: &mut Medium) -> bool {
        let [cold, hot] = &self.pools;
        let pair = hot.closed_by_erases.last().zip(cold.closed_by_erases.first());
        let Some((&(erases_hot, hot), &(erases_cold, cold))) = pair else { return false };
        // One free block stays for cleaning.
        if !self.apart(erases_hot, erases_cold) || medium.free.len() < 2 {
            return false;
        }
        let spare = *medium.free.front().expect("two are free");
        medium.hold_free(spare);
        medium.hold(hot);
        medium.transplant(hot, spare);
        if medium.erase(hot, Cause::Leveling) {
            medium.hold(cold);
            medium.transplant(cold, hot);
            medium.erase_and_release(cold, Cause::Leveling);
        } else {
            medium.retire(hot);
        }
        for (block, becomes_hot) in [(hot, false), (cold, true)] {
            self.base[block as usize] = medium.blocks[block as usize].erases;
            self.move_to(medium, block, becomes_hot);
        }
        self.refresh(medium);
        true
    }
    fn resize_cold(&mut self, medium: &Medium) -> bool {
        let [cold, hot] = &self.pools;
        let pair = cold.by_effective.last().zip(hot.by_effective.first());
        let Some((&(most, block), &(least, _))) = pair else { return false };
        let moves = most.saturating_sub(least) > self.threshold;
        if moves {
            self.move_to(medium, block, true);
        }
        moves
    }
    fn resize_hot(&mut self, medium: &Medium) -> bool {
        let hot = &self.pools[1].by_erases;
        let Some((&(most, _), &(least, block))) = hot.last().zip(hot.first()) else { return false };
        let moves = most - least > 2 * self.threshold;
        if moves {
            self.move_to(medium, block, false);
        }
        moves
    }
}

impl Leveler for DualPool {
    fn on_written(&mut self, medium: &mut Medium) {
        if !self.acted && medium.touched.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        self.refresh(medium);
        let swapped = self.swap_data(medium);
        let grown = self.resize_cold(medium);
        let shrunk = self.resize_hot(medium);
        self.acted = swapped || grown || shrunk;
    }
    fn on_resumed(&mut self, medium: &mut Medium) {
        medium.touched = Some((0..medium.blocks.len() as u32).collect());
        self.acted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Configuration, Flash, Geometry, LogicalPage, Opening, Stream};
    use super::*;

    const BLOCKS: u32 = 8;

    /// Blocks 0 to 3 are A, B, C and D of the specification's example, closed, with 4 pages each.
    fn example(effective_d: u32) -> (Flash, DualPool) {
        let geometry = Geometry {
            page_bytes: 4096,
            pages_per_block: 4,
            logical_pages: 16,
            blocks: BLOCKS,
            reserve_blocks: 0,
        };
        let plain = Configuration::plain(geometry);
        let configuration = Configuration { free_blocks_min: 1, opening: Opening::AtOnce, ..plain };
        let mut flash = Flash::new(&configuration).expect("a device");
        for page in (0..16).chain([0, 1]) {
            flash.write(LogicalPage(page), Stream(0)).expect("room");
        }
        let mut pools = DualPool::new(&flash.medium, 5, DualPoolCompare::Signed, &mut Rng::new(1));
        let rows = [(20, 9, true), (12, 1, true), (13, 2, false), (16, effective_d, false)];
        for (block, (erases, effective, hot)) in rows.into_iter().enumerate() {
            flash.medium.blocks[block].erases = erases;
            (pools.base[block], pools.hot[block]) = (erases - effective, hot);
        }
        // The others are in the pool where they change nothing.
        for block in 4..BLOCKS as usize {
            flash.medium.blocks[block].erases = 14;
            (pools.base[block], pools.hot[block]) = (13, false);
        }
        pools.on_resumed(&mut flash.medium);
        pools.refresh(&mut flash.medium);
        (flash, pools)
    }

    /// Goal: data swap and pools follow as in the paper. Method: the specification's example.
    #[test]
    fn swap_as_worked_out() {
        let (mut flash, mut pools) = example(3);
        assert_eq!([0, 2].map(|block| flash.medium.blocks[block].valid), [2, 4]);
        assert!(pools.swap_data(&mut flash.medium));
        assert_eq!(flash.statistics().leveling_pages, 6);
        assert_eq!([0, 2].map(|block| flash.medium.blocks[block].erases), [21, 14]);
        assert_eq!((pools.hot[0], pools.hot[2]), (false, true));
        assert_eq!((pools.base[0], pools.base[2]), (21, 14));
        assert_eq!(flash.medium.blocks[0].valid, 4);
        assert_eq!(flash.medium.blocks[2].state, State::Free);
        assert!(!pools.resize_cold(&flash.medium), "3 - 0 is not beyond 5");
        assert!(!pools.resize_hot(&flash.medium), "14 - 12 is not beyond 10");
        assert!(!pools.swap_data(&mut flash.medium), "12 - 14 is not apart");
    }

    /// Goal: pools are resized as in the paper. Method: the example's two variants.
    #[test]
    fn resizing_as_worked_out() {
        let (mut flash, mut pools) = example(7);
        assert!(pools.swap_data(&mut flash.medium));
        assert!(pools.resize_cold(&flash.medium) && pools.hot[3], "7 - 0 is beyond 5");
        let (mut flash, mut pools) = example(3);
        flash.medium.blocks[0].erases = 23;
        pools.on_resumed(&mut flash.medium);
        pools.refresh(&mut flash.medium);
        assert!(pools.resize_hot(&flash.medium) && !pools.hot[1], "23 - 12 is beyond 10");
    }
}
