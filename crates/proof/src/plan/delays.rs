//! Bursts of changes that meet while a backing store does not answer.
//!
//! How: bursts are put between the other events of a simulation run whose requests are timed out.
//! One changes what an earlier one that timed out may still change, and then the backing store
//! completes both.
//! Invariant: a random generator of its own, so that runs without such bursts stay as they were.
//! Cost: microseconds. Not for: volumes in object stores.

use super::requests::{ask, draw_part};
use super::{Act, BLOCKS, Disk, Fault, VOLUMES};
use layby_cache::LEVELS_MAX;
use layby_types::{Operation, Rng};
use std::ops::Range;

/// Bursts of a run at most.
const BURSTS_MAX: u64 = 4;
/// Slots that are left to the volume in each level at most.
const SLOTS_MAX: u64 = 2;

/// Whether a run has such bursts, by its seed: half of those that time out requests.
pub(super) fn has_some(seed: u64, times_out: bool) -> bool {
    times_out && Rng::new(seed ^ 0xde_1a57).chance(1, 2)
}

/// Puts bursts between the acts.
pub(super) fn add(seed: u64, remote: [bool; VOLUMES], acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0xde_1a58);
    let local: Vec<usize> = (0..VOLUMES).filter(|volume| !remote[*volume]).collect();
    if local.is_empty() {
        return;
    }
    for _ in 0..1 + rng.below(BURSTS_MAX) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let volume = local[rng.below(local.len() as u64) as usize];
        let burst = draw_late(&mut rng, volume);
        drop(acts.splice(at..at, burst));
    }
}

/// Changes of the same blocks, of which the first ones time out, then one while all may be made.
fn draw_late(rng: &mut Rng, volume: usize) -> Vec<Act> {
    let blocks = draw_part(rng, 0..BLOCKS);
    let mut acts = vec![Act::Heal, Act::Connect(volume, rng.chance(1, 2)), Act::Turns(40)];
    if rng.chance(1, 2) {
        acts.push(draw_room(rng, volume));
    }
    acts.push(Act::Fault(Fault::Stuck(Disk::Home(volume))));
    for _ in 0..2 + rng.below(2) {
        let part = draw_part(rng, blocks.clone());
        acts.extend([draw_change(rng, volume, part), Act::Turns(150)]);
    }
    acts.push(Act::Connect(volume, rng.chance(1, 2)));
    let newer = draw_change(rng, volume, blocks.start.saturating_sub(1)..blocks.end);
    match rng.below(3) {
        0 => acts.extend([newer, draw_turns(rng, 20), Act::Heal]),
        1 => acts.extend([Act::Heal, newer]),
        _ => acts.extend([Act::Heal, draw_turns(rng, 6), newer]),
    }
    acts.extend([Act::Turns(20), Act::Resize(volume, None), Act::Settle]);
    acts
}

fn draw_change(rng: &mut Rng, volume: usize, blocks: Range<u64>) -> Act {
    let changes = [Operation::Write, Operation::Trim, Operation::WriteZeroes];
    ask(volume, changes[rng.below(3) as usize], blocks)
}

/// Few slots or none: what finds no slot goes to the backing store at once, or waits.
fn draw_room(rng: &mut Rng, volume: usize) -> Act {
    let mut slots = [0; LEVELS_MAX];
    slots[..3].fill_with(|| rng.below(SLOTS_MAX + 1) as u32);
    Act::Resize(volume, Some(slots))
}

fn draw_turns(rng: &mut Rng, most: u64) -> Act {
    Act::Turns(1 + rng.below(most) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Life;

    /// Goal: half of the runs that time out requests have such bursts, and no others. Method: the
    /// first seeds, counted.
    #[test]
    fn half_of_the_runs_that_time_out_have_some() {
        let timed_out: Vec<u64> =
            (0..2000).map(Life::draw).filter(Life::times_out).map(|life| life.seed).collect();
        let with = timed_out.iter().filter(|seed| has_some(**seed, true)).count();
        let all = timed_out.len();
        assert!(all > 60 && (all / 3..all * 2 / 3).contains(&with), "{with} of {all}");
        assert!(!(0..2000).any(|seed| has_some(seed, false)));
    }
}
