//! Counts of distances, reads and writes apart, with weights.
//!
//! How: either a bin per distance, or 32 bins per power of two, so that 16 KiB cover 2^36 blocks
//! to within 3 %. Invariant: the bins' sum never exceeds `measured`. Cost: constant per count.

use super::Access;
use super::shape::{Curve, Point};
use alloc::vec;
use alloc::vec::Vec;

/// Bins per power of two, and bins of one distance each below.
const STEPS: u64 = 32;
const STEPS_SHIFT: u32 = STEPS.ilog2();
/// Bins of a coarse histogram.
const BINS_COARSE: usize = 1024;

/// See the file's header.
pub(crate) struct Histogram {
    bins: Vec<[f64; 2]>,
    /// The weight of everything measured, first uses too.
    measured: [f64; 2],
    is_coarse: bool,
}

fn coarse_bin(distance: u64) -> usize {
    if distance < STEPS {
        return distance as usize;
    }
    let shift = distance.ilog2() - STEPS_SHIFT;
    (u64::from(shift) * STEPS + (distance >> shift)) as usize
}

/// The highest distance in a coarse bin.
fn coarse_end(bin: usize) -> u64 {
    let bin = bin as u64;
    if bin < STEPS {
        return bin;
    }
    let shift = bin / STEPS - 1;
    ((STEPS + bin % STEPS + 1) << shift) - 1
}

impl Histogram {
    /// A bin per distance, as many as needed.
    pub(crate) fn fine() -> Self {
        Histogram { bins: Vec::new(), measured: [0.0; 2], is_coarse: false }
    }

    /// A fixed number of bins.
    pub(crate) fn coarse() -> Self {
        Histogram { bins: vec![[0.0; 2]; BINS_COARSE], measured: [0.0; 2], is_coarse: true }
    }

    /// Counts a use at `distance`, or a first use.
    #[inline]
    pub(crate) fn count(&mut self, access: Access, distance: Option<u64>, weight: f64) {
        self.measured[access as usize] += weight;
        let Some(distance) = distance else { return };
        let bin = if self.is_coarse { coarse_bin(distance) } else { distance as usize };
        if bin >= self.bins.len() {
            if self.is_coarse {
                // Further than any cache reaches: a miss at every size.
                return;
            }
            self.bins.resize((bin + 1).max(self.bins.len() * 2), [0.0; 2]);
        }
        self.bins[bin][access as usize] += weight;
    }

    /// Lets the past count `keep` times as much as it did.
    pub(crate) fn decay(&mut self, keep: f64) {
        for pair in self.bins.iter_mut().chain([&mut self.measured]) {
            *pair = pair.map(|weight| weight * keep);
        }
    }

    /// The curve of `requests` requests, where a distance counts `scale` times.
    ///
    /// What the sample missed or has too much of the requests goes to the shortest distance: the
    /// blocks that are used most make the difference (SHARDS-adj).
    pub(crate) fn curve(&self, requests: [f64; 2], scale: f64) -> Curve {
        let missing = [0, 1].map(|side| requests[side] - self.measured[side]);
        let mut hits = missing;
        let mut points = Vec::new();
        for (bin, counts) in self.bins.iter().enumerate() {
            if counts == &[0.0; 2] && !(bin == 0 && missing != [0.0; 2]) {
                continue;
            }
            hits = [0, 1].map(|side| hits[side] + counts[side]);
            let end = if self.is_coarse { coarse_end(bin) } else { bin as u64 };
            let bounded = [0, 1].map(|side: usize| hits[side].clamp(0.0, requests[side]));
            points.push(Point { size: (end as f64 * scale + 0.5) as u64 + 1, hits: bounded });
        }
        Curve::new(points, requests)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.bins.capacity() * size_of::<[f64; 2]>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: coarse bins cover every distance once, in order, to within one in 32. Method: the ends
    /// of the bins against the bins of their neighbours.
    #[test]
    fn coarse_bins_tile() {
        for bin in 0..BINS_COARSE {
            let end = coarse_end(bin);
            assert_eq!((coarse_bin(end), coarse_bin(end + 1)), (bin, bin + 1));
        }
        assert!(coarse_end(BINS_COARSE - 1) >= (1 << 36) - 1);
        for distance in [100u64, 5_000, 1 << 30] {
            let end = coarse_end(coarse_bin(distance));
            assert!(end >= distance && (end - distance) as f64 <= distance as f64 / 32.0);
        }
    }
}
