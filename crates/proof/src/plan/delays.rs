//! Bursts of changes that meet while a backing store takes its time.
//!
//! How: bursts are put between the other events of a simulation run. In one a backing store is
//! truncated and extended again while a change behind its new end is in flight. In the others,
//! where requests are timed out, one changes what an earlier one that timed out may still change,
//! and then the backing store completes both; or the backing store is truncated before a write that
//! timed out, and extended again after it.
//! Invariant: random generators of their own, so that runs without such bursts stay as they were.
//! Cost: microseconds. Not for: volumes in object stores.

use super::requests::{ask, draw_part};
use super::{Act, BLOCK, BLOCKS, Character, Disk, Fault, VOLUMES};
use layby_cache::LEVELS_MAX;
use layby_types::{Nanos, Operation, Rng};
use std::ops::Range;

/// Bursts of a run at most.
const BURSTS_MAX: u64 = 4;
/// How long a backing store completes nothing at most, in microseconds.
const DELAY_MICROS_MAX: u64 = 20_000;
/// Slots that are left to the volume in each level at most.
const SLOTS_MAX: u64 = 2;
const SECTOR: u64 = 512;

/// Whether a run has such bursts, by its seed: half of those that time out requests, and one in
/// eight of the others.
pub(super) fn has_some(seed: u64, times_out: bool) -> bool {
    let mut rng = Rng::new(seed ^ 0xde_1a57);
    if times_out { rng.chance(1, 2) } else { rng.chance(1, 8) }
}

/// Puts bursts between the acts.
pub(super) fn add(
    (seed, character): (u64, Character),
    times_out: bool,
    remote: [bool; VOLUMES],
    acts: &mut Vec<Act>,
) {
    let mut rng = Rng::new(seed ^ 0xde_1a58);
    let local: Vec<usize> = (0..VOLUMES).filter(|volume| !remote[*volume]).collect();
    if local.is_empty() || (character == Character::Stuck && !times_out) {
        return;
    }
    for _ in 0..1 + rng.below(BURSTS_MAX) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let volume = local[rng.below(local.len() as u64) as usize];
        let burst = match times_out {
            true => draw_late(&mut rng, volume),
            false => draw_truncation(&mut rng, volume),
        };
        drop(acts.splice(at..at, burst));
    }
    let mut rng = Rng::new(seed ^ 0xde_1a5b);
    if times_out && rng.chance(1, 2) {
        let at = rng.below(acts.len() as u64 + 1) as usize;
        let volume = local[rng.below(local.len() as u64) as usize];
        let burst = draw_late_truncation(&mut rng, volume);
        drop(acts.splice(at..at, burst));
    }
}

/// A truncation while what lies at the new end is read, or what lies behind it is written.
fn draw_truncation(rng: &mut Rng, volume: usize) -> Vec<Act> {
    let blocks = draw_part(rng, 0..BLOCKS);
    let end = blocks.end * BLOCK / SECTOR - rng.below(BLOCK / SECTOR);
    let mut acts = vec![Act::Connect(volume, rng.chance(1, 2)), Act::Settle];
    acts.extend([Act::Length(volume, BLOCKS * BLOCK / SECTOR), Act::Turns(40)]);
    acts.extend([draw_room(rng, volume), Act::Turns(20)]);
    let time = Nanos::from_micros(rng.below(DELAY_MICROS_MAX));
    acts.push(Act::Fault(Fault::Slow(Disk::Home(volume), time)));
    for _ in 0..=rng.below(3) {
        let operation = if rng.chance(1, 3) { Operation::Write } else { Operation::Read };
        acts.extend([ask(volume, operation, blocks.clone()), draw_turns(rng, 8)]);
    }
    if rng.chance(1, 3) {
        acts.push(Act::Drain(Some(volume)));
    }
    acts.extend([draw_turns(rng, 12), Act::Length(volume, end), draw_turns(rng, 120)]);
    acts.extend([Act::Settle, Act::Length(volume, BLOCKS * BLOCK / SECTOR), Act::Turns(40)]);
    acts.extend([Act::Resize(volume, None), Act::Settle]);
    acts
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

/// A truncation to before a write that timed out and may still be made, and an extension.
fn draw_late_truncation(rng: &mut Rng, volume: usize) -> Vec<Act> {
    let blocks = draw_part(rng, 1..BLOCKS);
    let (whole, end) = (BLOCKS * BLOCK / SECTOR, blocks.start * BLOCK / SECTOR);
    let mut acts = vec![Act::Heal, Act::Connect(volume, rng.chance(1, 2))];
    acts.extend([Act::Length(volume, whole), Act::Turns(40)]);
    acts.extend([Act::Resize(volume, Some([0; LEVELS_MAX])), Act::Turns(20)]);
    acts.push(Act::Fault(Fault::Stuck(Disk::Home(volume))));
    acts.extend([ask(volume, Operation::Write, blocks), Act::Turns(150)]);
    acts.extend([Act::Resize(volume, None), Act::Turns(20), Act::Length(volume, end)]);
    acts.extend([draw_turns(rng, 200), Act::Heal, draw_turns(rng, 60)]);
    acts.extend([Act::Length(volume, whole), Act::Turns(40), Act::Settle]);
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

    /// Goal: half of the runs that time out requests have bursts of their own kind, and some of
    /// the others truncations. Method: the first seeds, counted.
    #[test]
    fn both_kinds_are_drawn() {
        let mut counts = [[0_u32; 2]; 2];
        for life in (0..2000).map(Life::draw) {
            let times_out = life.times_out();
            counts[usize::from(times_out)][usize::from(has_some(life.seed, times_out))] += 1;
            let mut acts = Vec::new();
            add((life.seed, life.character), times_out, life.shape.remote, &mut acts);
            let is_stuck = |act: &Act| matches!(act, Act::Fault(Fault::Stuck(_)));
            assert!(times_out || !acts.iter().any(is_stuck), "SEED={}", life.seed);
        }
        let [[without, with], [late_without, late_with]] = counts;
        assert!(with * 5 < without && with * 12 > without, "{counts:?}");
        assert!(late_with.abs_diff(late_without) < 40 && late_with > 20, "{counts:?}");
    }
}
