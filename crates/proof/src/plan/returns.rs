//! Bursts after which something old may come back: what a device did and refused, and what a level
//! still holds of a block whose newest version has gone to its backing store.
//!
//! How: bursts are put between a life's other acts. In one the SSD level's device does a write and
//! answers with an error; a client reads and flushes, and the power fails. In the other a block's
//! older version lies in the SSD level and its newest in the NVM level, from where it has gone
//! home; after a power cut the SSD level takes no checkpoint, other blocks want the NVM level's
//! slots, and the power fails again.
//! Invariant: by a generator of its own, so that lives without such bursts stay what they are.
//! Cost: microseconds. Not for: volumes that write through.

use super::requests::{ask, draw_part, others};
use super::{Act, BLOCKS, Character, Disk, Fault, VOLUMES, draw_mode};
use layby_types::{Operation, Rng};
use std::ops::Range;

/// Bursts of a life at most.
const BURSTS_MAX: u64 = 4;
/// Writes after the first one that the device refuses at most.
const REFUSALS_MAX: u64 = 7;
/// The volume whose class writes to the NVM level.
const CRITICAL: usize = 0;

/// Whether a life has such bursts, by its seed: half of those whose disks fail.
pub(super) fn has_some(seed: u64, character: Character) -> bool {
    character == Character::Failing && Rng::new(seed ^ 0x4e7_0b5).chance(1, 2)
}

/// Puts bursts between the acts.
pub(super) fn add(seed: u64, through: [bool; VOLUMES], acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x4e7_b457);
    let cached: Vec<usize> = (0..VOLUMES).filter(|volume| !through[*volume]).collect();
    if cached.is_empty() {
        return;
    }
    for _ in 0..1 + rng.below(BURSTS_MAX) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let volume = cached[rng.below(cached.len() as u64) as usize];
        let burst = match volume {
            CRITICAL => draw_homed(&mut rng),
            _ => draw_refused(&mut rng, volume),
        };
        drop(acts.splice(at..at, burst));
    }
}

/// A write, a zeroing or a discard that the device does and refuses.
fn draw_refused(rng: &mut Rng, volume: usize) -> Vec<Act> {
    let blocks = draw_part(rng, 0..BLOCKS);
    let mut acts = vec![Act::Heal, Act::Connect(volume, rng.chance(1, 2))];
    acts.extend([Act::Resize(volume, None), Act::Turns(20)]);
    acts.extend([ask(volume, Operation::Write, blocks.clone()), Act::Turns(12)]);
    acts.extend([ask(volume, Operation::Flush, 0..0), Act::Turns(12)]);
    acts.push(Act::Fault(Fault::DoneNext(Disk::Ssd, rng.below(REFUSALS_MAX + 1) as u8)));
    let changes = [Operation::Write, Operation::Trim, Operation::WriteZeroes];
    let changed = draw_part(rng, blocks.clone());
    acts.extend([ask(volume, changes[rng.below(3) as usize], changed), Act::Turns(16)]);
    acts.extend([ask(volume, Operation::Read, blocks), Act::Turns(8)]);
    for _ in 0..=rng.below(3) {
        acts.extend([ask(volume, Operation::Flush, 0..0), Act::Turns(8)]);
    }
    acts.extend([Act::Cut(draw_mode(rng)), Act::Settle]);
    acts
}

/// A block of which the SSD level holds an older version than its backing store.
fn draw_homed(rng: &mut Rng) -> Vec<Act> {
    let blocks = draw_part(rng, 0..BLOCKS);
    let mut acts = vec![Act::Heal, Act::Connect(CRITICAL, rng.chance(1, 2))];
    acts.push(Act::Resize(CRITICAL, None));
    let write = |blocks: Range<u64>| [ask(CRITICAL, Operation::Write, blocks), Act::Turns(16)];
    acts.extend(write(blocks.clone()));
    acts.extend(others(&blocks).flat_map(write));
    acts.extend(write(blocks.clone()));
    acts.extend([Act::Drain(Some(CRITICAL)), Act::Turns(20 + rng.below(100) as u32)]);
    if rng.chance(3, 4) {
        acts.push(Act::Fault(Fault::FullAtStart(Disk::Ssd)));
    }
    acts.extend([Act::Cut(draw_mode(rng)), Act::Connect(CRITICAL, rng.chance(1, 2))]);
    acts.extend(others(&blocks).flat_map(write));
    acts.extend([Act::Cut(draw_mode(rng)), Act::Heal, Act::Settle]);
    acts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{BLOCK, Life, through_of};

    /// Goal: half of the runs whose disks fail have bursts, of both kinds, and their requests lie
    /// in their volume. Method: the first seeds, counted; every request of theirs.
    #[test]
    fn half_of_the_failing_runs_have_bursts() {
        let lives: Vec<Life> = (0..400).map(Life::draw).collect();
        let failing = lives.iter().filter(|life| life.character == Character::Failing);
        let (with, without): (Vec<&Life>, Vec<&Life>) =
            failing.partition(|life| has_some(life.seed, life.character));
        let (with_total, total) = (with.len(), with.len() + without.len());
        assert!(
            total > 30 && (total / 3..=total * 2 / 3).contains(&with_total),
            "{with_total} of {total}"
        );
        let is_done = |act: &Act| matches!(act, Act::Fault(Fault::DoneNext(..)));
        assert!(!without.iter().any(|life| life.acts.iter().any(is_done)));
        let mut kinds = [0, 0];
        for life in with {
            let mut acts = Vec::new();
            add(life.seed, through_of(life.seed).0, &mut acts);
            kinds[usize::from(acts.iter().any(is_done))] += 1;
            for act in acts {
                if let Act::Ask(_, call) = act {
                    assert!(call.offset + call.length <= BLOCKS * BLOCK, "{call:?}");
                }
            }
        }
        assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
    }
}
