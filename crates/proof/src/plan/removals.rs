//! Volumes that are removed, with their data kept, while a guest writes.
//!
//! How: somewhere in the second half of a simulation run a guest asks for writes of a volume, a few
//! at a time, and the volume is removed below them. A client over a socket would not do: it is cut
//! off, and what it is not answered it was not promised.
//! Invariant: a random generator of its own, so that runs without a removal stay as they were.
//! Cost: microseconds. Not for: volumes in object stores, whose data their superblock names.

use super::{Act, VOLUMES};
use layby_types::Rng;

/// Guests' requests before a removal, at most: so many times some writes.
const ROUNDS_MAX: u64 = 4;

/// Whether a run has a removal, by its seed: one in eight of those without object stores.
pub(super) fn has_some(seed: u64, remote: [bool; VOLUMES]) -> bool {
    !remote.contains(&true) && Rng::new(seed ^ 0x4e_30fe).chance(1, 8)
}

/// Puts a removal between the acts.
pub(super) fn add(seed: u64, acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x4e_30ff);
    let volume = rng.below(VOLUMES as u64) as usize;
    let half = acts.len() as u64 / 2;
    let place = (half + rng.below(half + 1)) as usize;
    let mut burst = Vec::new();
    for _ in 0..1 + rng.below(ROUNDS_MAX) {
        burst.push(Act::Guest(volume, rng.next_u64()));
        burst.push(Act::Turns(rng.below(12) as u32));
    }
    if rng.chance(1, 3) {
        burst.push(Act::Drain(Some(volume)));
    }
    burst.push(Act::Guest(volume, rng.next_u64()));
    burst.push(Act::Turns(rng.below(3) as u32));
    burst.push(Act::Remove(volume));
    burst.push(Act::Turns(rng.below(200) as u32));
    drop(acts.splice(place..place, burst));
}
