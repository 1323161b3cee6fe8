//! Stores that damage or lose a segment before a superblock names it.
//!
//! How: bursts are put between the other acts of a simulation run: blocks of a volume in the cloud
//! are written and uploaded, then the power fails, mostly while its store has a segment that no
//! superblock names, and such a one is lost, truncated or changed before the next start. Some
//! starts are cut off, too; then the volume is uploaded, and the power fails again, so that the
//! journal has nothing of it any more.
//! Invariant: a random generator of its own, so that runs without such stores stay as they were.
//! Cost: microseconds. Not for: segments that a superblock names: nothing else has what they hold.

use super::requests::{ask, draw_part};
use super::{Act, BLOCKS, CloudAct, VOLUMES, draw_cloud_window, draw_mode};
use layby_types::{Operation, Rng};

/// Bursts of a run at most.
const BURSTS_MAX: u64 = 4;

/// Whether the stores of a run spoil segments, by its seed: one in three of those that have some.
pub(super) fn has_some(seed: u64, remote: [bool; VOLUMES]) -> bool {
    remote.contains(&true) && Rng::new(seed ^ 0x5b01_1ed0).chance(1, 3)
}

/// Puts bursts between the acts.
pub(super) fn add(seed: u64, remote: [bool; VOLUMES], acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x5b01_1ed1);
    let volumes: Vec<usize> = (0..VOLUMES).filter(|volume| remote[*volume]).collect();
    for _ in 0..1 + rng.below(BURSTS_MAX) {
        let volume = volumes[rng.below(volumes.len() as u64) as usize];
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let burst = draw_burst(&mut rng, volume);
        drop(acts.splice(at..at, burst));
    }
}

fn draw_burst(rng: &mut Rng, volume: usize) -> Vec<Act> {
    let mut acts = vec![Act::Connect(volume, rng.chance(1, 2))];
    for _ in 0..1 + rng.below(4) {
        acts.push(ask(volume, Operation::Write, draw_part(rng, 0..BLOCKS)));
        acts.push(Act::Turns(4 + rng.below(30) as u32));
    }
    if rng.chance(1, 2) {
        acts.extend([ask(volume, Operation::Flush, 0..0), Act::Turns(8)]);
    }
    acts.push(Act::Turns(rng.below(60) as u32));
    acts.push(Act::Cloud(CloudAct::Spoil(volume, rng.next_u64())));
    if rng.chance(1, 3) {
        // Once more, in the middle of what the start does about it.
        let cut = draw_cloud_window(rng, volume);
        acts.extend([Act::Arm(cut), Act::Turns(60 + rng.below(200) as u32)]);
    }
    if rng.chance(1, 2) {
        let after = match rng.below(3) {
            0 => Act::Settle,
            1 => Act::Cloud(CloudAct::Look(volume)),
            _ => ask(volume, Operation::Read, draw_part(rng, 0..BLOCKS)),
        };
        acts.extend([Act::Connect(volume, true), after, Act::Turns(30)]);
    }
    if rng.chance(1, 2) {
        acts.push(Act::Cloud(CloudAct::Upload(volume)));
        acts.extend([Act::Cut(draw_mode(rng)), Act::Settle]);
    }
    acts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{BLOCK, Life};

    /// Goal: such stores are in a third of the runs with volumes in the cloud and in no others, and
    /// requests lie in their volume. Method: the first seeds, counted; every request of a burst.
    #[test]
    fn a_third_of_the_clouds_spoils() {
        let lives: Vec<Life> = (0..800).map(Life::draw).collect();
        let is_far = |life: &&Life| life.shape.remote.contains(&true);
        let spoils = |life: &&Life| {
            let is_it = |act: &Act| matches!(act, Act::Cloud(CloudAct::Spoil(..)));
            life.acts.iter().any(is_it)
        };
        let far = lives.iter().filter(is_far).count();
        let with: Vec<&Life> = lives.iter().filter(spoils).collect();
        assert!((far / 4..far / 2).contains(&with.len()), "{} of {far}", with.len());
        for life in with {
            assert!(has_some(life.seed, life.shape.remote));
            let mut acts = Vec::new();
            add(life.seed, life.shape.remote, &mut acts);
            for act in acts {
                if let Act::Ask(_, call) = act {
                    assert!(call.offset + call.length <= BLOCKS * BLOCK, "{call:?}");
                }
            }
        }
    }
}
