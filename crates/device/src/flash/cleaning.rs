//! Which block is cleaned next.
//!
//! How: greedy takes the first block of the lowest list; LRU the head of the only list;
//! cost-benefit compares the heads of all lists, since within a list the head changed longest ago.
//! Invariant: a block that nothing can be gained from is never chosen, save by LRU, which takes
//! blocks as they come. Cost: constant; for cost-benefit, the number of lists.

use super::configuration::Cleaning;
use super::medium::Medium;

/// The victim, or `None` where no block would yield a page.
pub(super) fn victim(medium: &Medium, cleaning: Cleaning) -> Option<u32> {
    match cleaning {
        Cleaning::Greedy => greedy(medium),
        Cleaning::CostBenefit => cost_benefit(medium),
        Cleaning::Lru => medium.ranking.first(0),
    }
}

fn greedy(medium: &Medium) -> Option<u32> {
    let lowest = medium.ranking.lowest(0)?;
    if lowest as u32 == medium.pages_per_block {
        return None;
    }
    medium.ranking.first(lowest)
}

fn cost_benefit(medium: &Medium) -> Option<u32> {
    let mut best: Option<(f64, u32)> = None;
    for valid in medium.ranking.occupied() {
        let block = medium.ranking.first(valid)?;
        if valid == 0 {
            return Some(block);
        }
        if valid as u32 == medium.pages_per_block {
            break;
        }
        let age = medium.statistics.host_pages - medium.blocks[block as usize].changed;
        let gained = f64::from(medium.pages_per_block) - valid as f64;
        let score = age as f64 * gained / (2.0 * valid as f64);
        if best.is_none_or(|(score_best, _)| score > score_best) {
            best = Some((score, block));
        }
    }
    best.map(|(_, block)| block)
}
