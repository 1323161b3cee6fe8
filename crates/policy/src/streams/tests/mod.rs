//! The specification's worked examples, its properties, and one suite that every policy passes.

mod by_hand;
mod conformance;
mod online;
mod properties;

use super::*;
use layby_types::{Nanos, Rng};

/// A write, in seconds and sectors.
fn write(seconds: u64, first: u64, sectors: u32) -> Write {
    Write { at: Nanos::from_secs(seconds), first: Sector(first), sectors }
}

/// Writes of one to three chunks' length within a volume, a fifth of them sequential and half of
/// them in a tenth of the volume.
fn random_trace(rng: &mut Rng, count: u64, volume_sectors: u64) -> Vec<Write> {
    let (mut at, mut end) = (Nanos::from_secs(1), 0);
    let mut writes = Vec::new();
    for _ in 0..count {
        at = at + Nanos::from_millis(1 + rng.below(400));
        let sectors = 1 + rng.below(130) as u32;
        let span = if rng.chance(1, 2) { volume_sectors / 10 } else { volume_sectors };
        let drawn = rng.below(span - u64::from(sectors));
        let first = if rng.chance(1, 5) { end } else { drawn };
        let first = first.min(volume_sectors - u64::from(sectors));
        writes.push(Write { at, first: Sector(first), sectors });
        end = first + u64::from(sectors);
    }
    writes
}

/// The stream of a single sector.
fn stream_of(policy: &mut dyn StreamPolicy, at: Nanos, sector: u64) -> u16 {
    let mut parts = Vec::new();
    policy.tag(&Write { at, first: Sector(sector), sectors: 1 }, &mut parts);
    parts[0].stream.0
}

/// The dictionary's streams, chunk by chunk.
fn streams_of(dictionary: &Dictionary) -> Vec<u16> {
    (0..dictionary.chunks()).map(|chunk| dictionary.lookup(chunk).0).collect()
}
