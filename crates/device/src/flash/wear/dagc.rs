//! Dynamic adjustment of garbage collection (Chen and Zhao, GLSVLSI 2020): victims by wear, too.
//!
//! How: two forms, since the HotStorage paper gives no formula. The random one, of the authors'
//! public simulator, takes any occupied list one time in three, and in a list the least worn block;
//! it reproduces the published overheads. The score one weighs emptiness against wear.
//! Invariant: a fully valid block is chosen by neither. Cost: a look at every block of a list, or
//! of all lists: not for large devices in a hurry.

use super::super::medium::Medium;
use super::Leveler;
use layby_types::Rng;

/// How much wear counts against emptiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DagcWeight {
    /// So many percent; less is greedier.
    Percent(u8),
    /// The share of free blocks.
    FreeShare,
}

/// The random form.
#[derive(Debug)]
pub(super) struct Random;

impl Leveler for Random {
    fn victim(&mut self, medium: &Medium, rng: &mut Rng) -> Option<u32> {
        let lowest = medium.ranking.lowest(0)?;
        if lowest as u32 == medium.pages_per_block {
            return None;
        }
        let list = if rng.chance(1, 3) { any_list(medium, rng) } else { lowest };
        let members = medium.ranking.members(&medium.blocks, list);
        members.min_by_key(|&block| medium.blocks[block as usize].erases)
    }
}

/// An occupied list, all as likely; a list of blocks with something to gain exists.
fn any_list(medium: &Medium, rng: &mut Rng) -> usize {
    loop {
        let list = rng.below(medium.pages_per_block.into()) as usize;
        if medium.ranking.first(list).is_some() {
            return list;
        }
    }
}

/// The score form.
#[derive(Debug)]
pub(super) struct Score(pub(super) DagcWeight);

impl Score {
    fn weight(&self, medium: &Medium) -> f64 {
        match self.0 {
            DagcWeight::Percent(percent) => f64::from(percent) / 100.0,
            DagcWeight::FreeShare => medium.free.len() as f64 / medium.blocks.len() as f64,
        }
    }
}

impl Leveler for Score {
    fn victim(&mut self, medium: &Medium, _rng: &mut Rng) -> Option<u32> {
        let weight = self.weight(medium);
        let most_worn = medium.blocks.iter().map(|block| block.erases).max()?.max(1);
        let pages = f64::from(medium.pages_per_block);
        let mut best: Option<(f64, u32)> = None;
        let lists = medium.ranking.occupied().filter(|&list| list < pages as usize);
        for block in lists.flat_map(|list| medium.ranking.members(&medium.blocks, list)) {
            let record = &medium.blocks[block as usize];
            let emptiness = 1.0 - f64::from(record.valid) / pages;
            let freshness = 1.0 - f64::from(record.erases) / f64::from(most_worn);
            let score = (1.0 - weight) * emptiness + weight * freshness;
            if best.is_none_or(|(score_best, _)| score > score_best) {
                best = Some((score, block));
            }
        }
        best.map(|(_, block)| block)
    }
}
