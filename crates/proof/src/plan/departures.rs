//! Guests that leave with requests in flight, and come again.
//!
//! How: somewhere in a simulation run a guest asks for writes of a volume and leaves some turns
//! later, a few times in a row; each time the next one comes at once.
//! Invariant: a random generator of its own, so that runs without a departure stay as they were.
//! Cost: microseconds. Not for: volumes in object stores, of which there are no guests.

use super::{Act, VOLUMES};
use layby_types::Rng;

/// Guests that leave in a row, at most.
const GUESTS_MAX: u64 = 6;

/// Whether a run has departures, by its seed: one in eight.
pub(super) fn has_some(seed: u64) -> bool {
    Rng::new(seed ^ 0x6e_11ea).chance(1, 8)
}

/// Puts departures between the acts.
pub(super) fn add(seed: u64, acts: &mut Vec<Act>) {
    let mut rng = Rng::new(seed ^ 0x6e_11eb);
    let volume = rng.below(VOLUMES as u64) as usize;
    let place = rng.below(acts.len() as u64 + 1) as usize;
    let mut burst = Vec::new();
    for _ in 0..1 + rng.below(GUESTS_MAX) {
        burst.push(Act::Guest(volume, rng.next_u64()));
        burst.push(Act::Turns(1 + rng.below(12) as u32));
        burst.push(Act::GuestLeaves(volume));
        burst.push(Act::Turns(rng.below(8) as u32));
    }
    drop(acts.splice(place..place, burst));
}
