//! Volumes that grow and shrink while clients work.
//!
//! How: changes of lengths, in sectors, are inserted between the other events of a simulation run.
//! Most come with an event that tests the new end: a request there, a drain, a power cut.
//! Invariant: a random generator of its own, so that runs without such changes stay as they were.
//! Cost: microseconds. Not for: volumes in object stores, whose length is in their superblock.

use super::{Act, BLOCK, BLOCKS, CLIENTS, Leave, VOLUMES, draw_mode};
use layby_types::{Call, CallFlags, Operation, Rng};
use std::ops::Range;

/// Changes per simulation run at most.
const CHANGES_MAX: u64 = 8;
/// Sectors of a volume at least.
const LEAST: u64 = 1;
const SECTOR: u64 = 512;

/// Whether a run has such changes, by its seed: one in six.
pub(super) fn has_some(seed: u64) -> bool {
    Rng::new(seed ^ 0x1e_5066).chance(1, 6)
}

/// Puts changes between the acts.
pub(super) fn add(seed: u64, acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x1e_4646);
    let mut late = Rng::new(seed ^ 0x1e_4a7e);
    let mut sectors = [BLOCKS * BLOCK / SECTOR; VOLUMES];
    let mut places: Vec<usize> = (0..1 + rng.below(CHANGES_MAX))
        .map(|_| rng.below(acts.len() as u64 + 1) as usize)
        .collect();
    places.sort_unstable();
    for (index, place) in places.into_iter().enumerate().rev() {
        let volume = (index + seed as usize) % VOLUMES;
        let from = sectors[volume];
        sectors[volume] = draw(&mut rng, from);
        let burst = draw_burst(&mut rng, volume, sectors[volume]);
        let in_flight = match late.chance(1, 2) {
            true => draw_behind(&mut late, volume, sectors[volume]..from),
            false => Vec::new(),
        };
        drop(acts.splice(place..place, in_flight.into_iter().chain(burst)));
    }
}

/// Changes that are in flight behind a new end when the volume gets it: of some blocks each sector
/// alone, so that one waits for the other.
fn draw_behind(rng: &mut Rng, volume: usize, cut: Range<u64>) -> Vec<Act> {
    if cut.is_empty() {
        return Vec::new();
    }
    let mut acts = vec![Act::Connect(volume, true)];
    let operations = [Operation::Write, Operation::Write, Operation::Write, Operation::WriteZeroes];
    for _ in 0..1 + rng.below(3) {
        let first = cut.start + rng.below(cut.end - cut.start);
        for sector in first..(first + 1 + rng.below(4)).min(cut.end) {
            let other = volume + VOLUMES;
            let client = if other < CLIENTS && rng.chance(1, 3) { other } else { volume };
            let (offset, length) = (sector * SECTOR, SECTOR);
            let operation = operations[rng.below(4) as usize];
            let flags = CallFlags { fua: rng.chance(1, 3), ..CallFlags::default() };
            acts.push(Act::Ask(client, Call { cookie: 0, operation, offset, length, flags }));
        }
    }
    acts.push(Act::Turns(rng.below(4) as u32));
    acts
}

/// Another length: near the old one, whole, or any.
fn draw(rng: &mut Rng, from: u64) -> u64 {
    let most = BLOCKS * BLOCK / SECTOR;
    let near = 1 + rng.below(BLOCK / SECTOR);
    match rng.below(6) {
        0 => (from + near).min(most),
        1 => from.saturating_sub(near).max(LEAST),
        2 => most,
        _ => LEAST + rng.below(most),
    }
}

fn draw_burst(rng: &mut Rng, volume: usize, sectors: u64) -> Vec<Act> {
    let mut acts = vec![Act::Length(volume, sectors), Act::Turns(rng.below(60) as u32)];
    let operations = [Operation::Write, Operation::Write, Operation::Trim, Operation::WriteZeroes];
    for _ in 0..rng.below(3) {
        let other = volume + VOLUMES;
        let client = if other < CLIENTS && rng.chance(1, 2) { other } else { volume };
        // A client that came before a growth knows the old length.
        if rng.chance(1, 2) {
            acts.push(Act::Leave(client, Leave::Close(0)));
        }
        acts.push(Act::Connect(client, true));
        let count = 1 + rng.below(sectors.min(2 * BLOCK / SECTOR));
        let (offset, length) = ((sectors - count) * SECTOR, count * SECTOR);
        let operation = operations[rng.below(4) as usize];
        let flags = CallFlags { fua: rng.chance(1, 3), ..CallFlags::default() };
        acts.push(Act::Ask(client, Call { cookie: 0, operation, offset, length, flags }));
        acts.push(Act::Turns(1 + rng.below(20) as u32));
    }
    match rng.below(6) {
        0 => acts.push(Act::Drain(Some(volume))),
        1 => acts.push(Act::Cut(draw_mode(rng))),
        2 => acts.push(Act::Settle),
        _ => {}
    }
    acts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Life;

    /// Goal: changes of lengths are drawn, up and down and within a block, and lives without them
    /// stay what they were. Method: the lives of some seeds.
    #[test]
    fn lengths_change_both_ways() {
        let (mut within, mut changes) = (0, 0);
        for seed in 0..600 {
            let mut acts = Life::draw_plain(seed).acts;
            if has_some(seed) {
                add(seed, &mut acts);
            }
            let mut sectors = [BLOCKS * BLOCK / SECTOR; VOLUMES];
            let lengths = acts.iter().filter_map(|act| match act {
                Act::Length(volume, sectors) => Some((*volume, *sectors)),
                _ => None,
            });
            let lengths: Vec<(usize, u64)> = lengths.collect();
            assert_eq!(lengths.is_empty(), !has_some(seed), "SEED={seed}");
            for (volume, length) in lengths {
                assert!((LEAST..=BLOCKS * BLOCK / SECTOR).contains(&length));
                let before = std::mem::replace(&mut sectors[volume], length);
                let blocks = |sectors: u64| (sectors * SECTOR).div_ceil(BLOCK);
                changes += 1;
                within += u32::from(length > before && blocks(length) == blocks(before));
            }
        }
        assert!(changes > 200 && within > 5, "{within} of {changes} within a block");
    }
}
