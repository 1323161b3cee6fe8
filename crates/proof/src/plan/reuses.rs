//! Bursts after which the read cache of a volume in an object store may hold an older version.
//!
//! How: bursts are put between the other events of a simulation run. Each writes the whole volume
//! more often than the journal's ring has room for, so that blocks are copied into the read cache;
//! then it changes some of them, and writes the others until the ring is reused once more.
//! Invariant: a random generator of its own, so that runs without such bursts stay as they were.
//! Cost: microseconds. Not for: volumes in files, which have no such cache.

use super::requests::{ask, draw_part, others};
use super::{Act, BLOCKS, CloudAct, VOLUMES};
use layby_types::{Operation, Rng};
use std::ops::Range;

/// Bursts of a run at most.
const BURSTS_MAX: u64 = 3;

/// The volume whose ring is reused, by the run's seed: in half of the runs with a volume in an
/// object store.
pub(super) fn reused_of(seed: u64, remote: [bool; VOLUMES]) -> Option<usize> {
    let mut rng = Rng::new(seed ^ 0x4e_05ed);
    let all: Vec<usize> = (0..VOLUMES).filter(|volume| remote[*volume]).collect();
    let is_one = !all.is_empty() && rng.chance(1, 2);
    is_one.then(|| all[rng.below(all.len() as u64) as usize])
}

/// Puts bursts between the acts.
pub(super) fn add(seed: u64, volume: usize, acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x4e_0b57);
    for _ in 0..1 + rng.below(BURSTS_MAX) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        drop(acts.splice(at..at, draw_burst(&mut rng, volume)));
    }
}

fn draw_burst(rng: &mut Rng, volume: usize) -> Vec<Act> {
    let changed = draw_part(rng, 0..BLOCKS);
    let changes = [Operation::Write, Operation::Trim, Operation::WriteZeroes];
    let mut acts = vec![Act::Heal, Act::Connect(volume, rng.chance(1, 2))];
    write_rounds(rng, volume, &(0..0), &mut acts);
    acts.push(ask(volume, changes[rng.below(3) as usize], changed.clone()));
    acts.extend([Act::Turns(12), Act::Cloud(CloudAct::Upload(volume))]);
    write_rounds(rng, volume, &changed, &mut acts);
    acts.push(Act::Settle);
    acts
}

/// Writes all blocks but `spared`, two or three times, each of which goes up.
fn write_rounds(rng: &mut Rng, volume: usize, spared: &Range<u64>, acts: &mut Vec<Act>) {
    for _ in 0..2 + rng.below(2) {
        for blocks in others(spared) {
            acts.extend([ask(volume, Operation::Write, blocks), Act::Turns(12)]);
        }
        acts.push(Act::Cloud(CloudAct::Upload(volume)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Life, through_of};

    /// Goal: half of the runs with a volume in an object store have such bursts, and what lies in
    /// another volume is left alone. Method: the first seeds, counted; every request of theirs.
    #[test]
    fn half_of_the_remote_runs_reuse_the_ring() {
        let remote = |seed: &u64| through_of(*seed).1.contains(&true);
        let reused = |seed: &u64| reused_of(*seed, through_of(*seed).1);
        let (all, some) = (0..4000)
            .filter(remote)
            .fold((0, 0), |(all, some), seed| (all + 1, some + u64::from(reused(&seed).is_some())));
        assert!((all * 2 / 5..all * 3 / 5).contains(&some), "{some} of {all}");
        for seed in (0..200).filter(|seed| reused(seed).is_some()) {
            let volume = reused(&seed).expect("it was filtered");
            let mut acts = Vec::new();
            add(seed, volume, &mut acts);
            assert!(acts.iter().all(|act| !matches!(act, Act::Ask(other, _) if *other != volume)));
            assert!(Life::draw(seed).acts.len() > acts.len(), "SEED={seed}");
        }
    }
}
