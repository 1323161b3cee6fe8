//! Pages of the NVM level that its device cannot return any more.
//!
//! How: bursts are put between the other acts of a simulation run: blocks of the class that uses
//! the NVM level are written, pages are lost, and in half of them the power fails at once, so that
//! the next start meets the pages. Some are written anew afterwards.
//! Invariant: a random generator of its own, so that runs without lost pages stay as they were.
//! Cost: microseconds. Not for: pages of the superblock, without which there is no level.

use super::requests::{ask, draw_part};
use super::{Act, BLOCKS, Fault, VOLUMES, draw_mode};
use layby_types::{Operation, Rng};

/// Bursts of a run at most.
const BURSTS_MAX: u64 = 3;
/// Pages that a burst costs at most.
const PAGES_MAX: u64 = 3;
/// The volume whose class writes to the NVM level.
const CRITICAL: usize = 0;

/// Whether a run loses pages, by its seed: one in eight.
pub(super) fn has_some(seed: u64) -> bool {
    Rng::new(seed ^ 0x9a6e_0105).chance(1, 8)
}

/// Puts bursts between the acts.
pub(super) fn add(seed: u64, acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x9a6e_0106);
    for _ in 0..1 + rng.below(BURSTS_MAX) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let burst = draw_burst(&mut rng);
        drop(acts.splice(at..at, burst));
    }
}

fn draw_burst(rng: &mut Rng) -> Vec<Act> {
    let blocks = draw_part(rng, 0..BLOCKS);
    let mut acts = vec![Act::Connect(CRITICAL, rng.chance(1, 2))];
    acts.extend([ask(CRITICAL, Operation::Write, blocks.clone()), Act::Turns(16)]);
    if rng.chance(1, 3) {
        acts.extend([ask(CRITICAL, Operation::Flush, 0..0), Act::Turns(16)]);
    }
    let pages = 1 + rng.below(PAGES_MAX);
    acts.extend((0..pages).map(|_| Act::Fault(Fault::LostPage(rng.next_u64() >> 32))));
    if rng.chance(1, 2) {
        acts.push(Act::Cut(draw_mode(rng)));
        let volume = rng.below(VOLUMES as u64) as usize;
        let after = match rng.below(4) {
            0 => Act::Settle,
            1 => Act::Drain(None),
            2 => ask(volume, Operation::Read, draw_part(rng, 0..BLOCKS)),
            _ => Act::Turns(8),
        };
        acts.extend([Act::Connect(volume, true), after, Act::Turns(16)]);
    }
    if rng.chance(1, 2) {
        let renewed = [Operation::Write, Operation::Write, Operation::Trim];
        acts.push(Act::Connect(CRITICAL, true));
        acts.extend([ask(CRITICAL, renewed[rng.below(3) as usize], blocks), Act::Turns(16)]);
    }
    acts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{BLOCK, Life};

    /// Goal: one run in eight loses pages, the others lose none, and requests lie in their volume.
    /// Method: the first seeds, counted; every request of their bursts.
    #[test]
    fn one_run_in_eight_loses_pages() {
        let lives: Vec<Life> = (0..800).map(Life::draw).collect();
        let loses = |life: &&Life| {
            life.acts.iter().any(|act| matches!(act, Act::Fault(Fault::LostPage(_))))
        };
        let with: Vec<&Life> = lives.iter().filter(loses).collect();
        assert!((50..=150).contains(&with.len()), "{}", with.len());
        assert!(with.iter().all(|life| has_some(life.seed)));
        for life in with {
            let mut acts = Vec::new();
            add(life.seed, &mut acts);
            for act in acts {
                if let Act::Ask(_, call) = act {
                    assert!(call.offset + call.length <= BLOCKS * BLOCK, "{call:?}");
                }
            }
        }
    }
}
