//! Clients that write again what they have just discarded, as file systems do with freed blocks.
//!
//! How: bursts are put between a life's other acts. Each discards a range, writes over parts of it
//! soon, since virtual time may leap over any delay, and has all sent home. Then the volume's room
//! may have shrunk and its home may misbehave, other blocks want its slots, and often the power
//! fails while the home still owes zeros.
//! Invariant: by a generator of its own, so that lives without such clients stay what they are.
//! Cost: microseconds. Not for: volumes that write through, whose discards wait for nothing.

use super::requests::{ask, draw_part};
use super::{Act, BLOCKS, Character, Disk, Fault, VOLUMES, discards_of};
use layby_cache::LEVELS_MAX;
use layby_cache::discards::{DiscardLimits, DiscardMode};
use layby_engine::io::{CutAt, Deed, OperationKind, Step};
use layby_types::{Nanos, Operation, Rng, VolumeId};

/// Bursts of a life at most.
const BURSTS_MAX: u64 = 12;
/// Requests of a burst at most that want the volume's slots.
const WANTS_MAX: u64 = 7;
/// Slots that are left to the volume in each level at most, where its room shrinks.
const SLOTS_MAX: u64 = 3;

/// Whose clients do so, by the life's seed: in half of the lives where discards of some volume may
/// wait, in a table with room for more than one.
pub(super) fn rewritten_of(seed: u64, through: [bool; VOLUMES]) -> Option<usize> {
    let mut rng = Rng::new(seed ^ 0x4e_3417);
    let waits = |(_, limits): &(VolumeId, DiscardLimits)| {
        limits.mode == DiscardMode::Delayed && limits.ranges_max > 1
    };
    let waiting = discards_of(seed).into_iter().filter(waits).map(|(id, _)| id.0 as usize);
    let all: Vec<usize> = waiting.filter(|volume| !through[*volume]).collect();
    let is_one = !all.is_empty() && rng.chance(1, 2);
    is_one.then(|| all[rng.below(all.len() as u64) as usize])
}

/// Puts bursts between the acts.
pub(super) fn add(seed: u64, character: Character, volume: usize, acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x4e_b457);
    for _ in 0..1 + rng.below(BURSTS_MAX) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let burst = draw_burst(&mut rng, character, volume);
        drop(acts.splice(at..at, burst));
    }
}

fn draw_burst(rng: &mut Rng, character: Character, volume: usize) -> Vec<Act> {
    let mut burst = draw_rewrite(rng, volume);
    if rng.chance(1, 2) {
        burst.push(draw_shrinking(rng, volume));
    }
    burst.push(Act::Drain(Some(volume)));
    let is_cut = rng.chance(1, 2);
    if is_cut {
        burst.push(Act::Arm(draw_cut(rng, volume)));
    }
    burst.push(draw_turns(rng, 12));
    if rng.chance(2, 3) {
        burst.push(Act::Fault(draw_fault(rng, character, volume)));
    }
    for _ in 0..=rng.below(WANTS_MAX) {
        burst.extend([draw_want(rng, volume), draw_turns(rng, 6)]);
    }
    if is_cut {
        burst.push(Act::Turns(60));
    }
    burst
}

/// A discard, and writes over parts of it.
fn draw_rewrite(rng: &mut Rng, volume: usize) -> Vec<Act> {
    let discarded = draw_part(rng, 0..BLOCKS);
    let mut acts = vec![Act::Connect(volume, rng.chance(1, 2)), Act::Resize(volume, None)];
    acts.extend([ask(volume, Operation::Trim, discarded.clone()), draw_turns(rng, 16)]);
    for _ in 0..=rng.below(3) {
        let part = draw_part(rng, discarded.clone());
        acts.extend([ask(volume, Operation::Write, part), draw_turns(rng, 6)]);
    }
    if rng.chance(1, 3) {
        acts.push(ask(volume, Operation::Flush, 0..0));
    }
    acts
}

fn draw_shrinking(rng: &mut Rng, volume: usize) -> Act {
    let mut slots = [0; LEVELS_MAX];
    slots[..3].fill_with(|| rng.below(SLOTS_MAX + 1) as u32);
    Act::Resize(volume, Some(slots))
}

/// Soon, or while the home hears of what it was owed.
fn draw_cut(rng: &mut Rng, volume: usize) -> CutAt {
    if rng.chance(1, 2) {
        return CutAt::Any(1 + rng.below(150) as u32);
    }
    let kind = if rng.chance(1, 3) { OperationKind::Zero } else { OperationKind::Sync };
    let deed = if rng.chance(1, 2) { Deed::Begun(kind) } else { Deed::Ended(kind) };
    let step = Step { disk: Some(Disk::Home(volume).number()), deed };
    CutAt::Only(step, 1 + rng.below(3) as u32)
}

/// What keeps a home from being done with what it was owed.
fn draw_fault(rng: &mut Rng, character: Character, volume: usize) -> Fault {
    let home = Disk::Home(volume);
    match character {
        Character::Failing if rng.chance(1, 3) => Fault::FailNext(home, OperationKind::Zero),
        Character::Failing if rng.chance(1, 2) => Fault::FailNext(home, OperationKind::Sync),
        Character::Stuck => Fault::Stuck(home),
        _ => Fault::Slow(home, Nanos::from_micros(rng.below(20_000))),
    }
}

/// A request for blocks anywhere, which takes slots.
fn draw_want(rng: &mut Rng, volume: usize) -> Act {
    let operation = if rng.chance(1, 3) { Operation::Read } else { Operation::Write };
    ask(volume, operation, draw_part(rng, 0..BLOCKS))
}

fn draw_turns(rng: &mut Rng, most: u64) -> Act {
    Act::Turns(1 + rng.below(most) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{BLOCK, Life, through_of};

    /// Goal: such clients are in a quarter of the lives, and ask for what lies in their volume.
    /// Method: the first seeds, counted; every request of theirs.
    #[test]
    fn a_quarter_of_the_lives_rewrites() {
        let has_some = |seed: &u64| rewritten_of(*seed, through_of(*seed).0).is_some();
        let lives = (0..4000).filter(has_some).count();
        assert!((900..1300).contains(&lives), "{lives} of 4000");
        for act in (0..40).filter(has_some).flat_map(|seed| Life::draw(seed).acts) {
            if let Act::Ask(_, call) = act {
                assert!(call.offset + call.length <= BLOCKS * BLOCK, "{call:?}");
            }
        }
    }
}
