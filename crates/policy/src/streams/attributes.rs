//! What a workload is like: five figures over its writes, and which of them are high.
//!
//! How: one pass over the writes, and a sort of their ranges for the distinct sectors.
//! Invariant: figures depend on writes alone, and not on when the trace began.
//! Cost: `n log n` in the number of writes. Not for: reads.

use super::Write;
use alloc::vec;
use alloc::vec::Vec;

/// The five attributes of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attributes {
    /// Lag-1 autocorrelation of the number of writes per bin of one to ten seconds; -1 to 1.
    pub autocorrelation: f64,
    /// Share of writes that do not begin where the one before ended (%).
    pub random_percent: f64,
    /// Sectors written, over distinct sectors written; at least 1.
    pub reuse: f64,
    /// Mean length of a write (sectors).
    pub size_sectors: f64,
    /// Bytes written (GB of 10^9 bytes per day).
    pub gigabytes_per_day: f64,
}

/// From which value on each attribute is high.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// See [`Attributes::autocorrelation`].
    pub autocorrelation: f64,
    /// See [`Attributes::random_percent`].
    pub random_percent: f64,
    /// See [`Attributes::reuse`].
    pub reuse: f64,
    /// See [`Attributes::size_sectors`].
    pub size_sectors: f64,
    /// See [`Attributes::gigabytes_per_day`]; after scaling by `rate_scale`.
    pub gigabytes_per_day: f64,
    /// The paper's rates are twenty times those of the public traces, so a measured rate is
    /// multiplied before it is compared; 1 for a rate in the paper's own scale.
    pub rate_scale: f64,
}

impl Default for Thresholds {
    /// Values between the ones that the paper calls high and low.
    fn default() -> Self {
        Thresholds {
            autocorrelation: 0.5,
            random_percent: 50.0,
            reuse: 20.0,
            size_sectors: 64.0,
            gigabytes_per_day: 100.0,
            rate_scale: 20.0,
        }
    }
}

/// Which attributes are high, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Judgement(pub u8);

impl Judgement {
    /// Autocorrelation is high: writes come in bursts.
    pub const BURSTY: u8 = 1;
    /// Many writes are random.
    pub const RANDOM: u8 = 2;
    /// Reuse is high.
    pub const REUSING: u8 = 4;
    /// Writes are large.
    pub const LARGE: u8 = 8;
    /// Much is written per day.
    pub const BUSY: u8 = 16;
}

const NANOS_PER_SECOND: f64 = 1e9;
const SECONDS_PER_DAY: f64 = 86_400.0;
/// Bins of the autocorrelation at most: a trace of long pauses has no more.
const BINS_MAX: u64 = 1 << 20;

impl Attributes {
    /// The attributes of `writes`, which are in the order of time; zeros where there are none.
    #[must_use]
    pub fn of(writes: &[Write]) -> Self {
        let (Some(first), Some(last)) = (writes.first(), writes.last()) else {
            return Attributes::default();
        };
        let sectors: u64 = writes.iter().map(|write| u64::from(write.sectors)).sum();
        let follows = |pair: &&[Write]| pair[1].first == pair[0].end();
        let sequential = writes.windows(2).filter(follows).count();
        let (count, random) = (writes.len() as f64, (writes.len() - sequential) as f64);
        let seconds = (last.at.since(first.at).0 as f64 / NANOS_PER_SECOND).max(1e-9);
        let gigabytes = sectors as f64 * super::SECTOR_BYTES as f64 / 1e9;
        Attributes {
            autocorrelation: autocorrelation(&per_bin(writes)),
            random_percent: 100.0 * random / count,
            reuse: sectors as f64 / distinct_sectors(writes) as f64,
            size_sectors: sectors as f64 / count,
            gigabytes_per_day: gigabytes * SECONDS_PER_DAY / seconds,
        }
    }
    /// Which of them are high.
    #[must_use]
    pub fn judge(&self, thresholds: &Thresholds) -> Judgement {
        let rate = self.gigabytes_per_day * thresholds.rate_scale;
        let rows = [
            (Judgement::BURSTY, self.autocorrelation >= thresholds.autocorrelation),
            (Judgement::RANDOM, self.random_percent >= thresholds.random_percent),
            (Judgement::REUSING, self.reuse >= thresholds.reuse),
            (Judgement::LARGE, self.size_sectors >= thresholds.size_sectors),
            (Judgement::BUSY, rate >= thresholds.gigabytes_per_day),
        ];
        Judgement(rows.iter().filter(|(_, high)| *high).fold(0, |bits, (bit, _)| bits | bit))
    }
}

fn distinct_sectors(writes: &[Write]) -> u64 {
    let mut ranges: Vec<(u64, u64)> = writes.iter().map(|w| (w.first.0, w.end().0)).collect();
    ranges.sort_unstable();
    let (mut covered_to, mut distinct) = (0, 0);
    for (begin, end) in ranges {
        distinct += end.saturating_sub(begin.max(covered_to));
        covered_to = covered_to.max(end);
    }
    distinct
}

/// Writes per bin, from the first to the last; a bin is a hundredth of the whole, but at least a
/// second and at most ten.
fn per_bin(writes: &[Write]) -> Vec<f64> {
    let (first, last) = (writes[0].at, writes[writes.len() - 1].at);
    let span = last.since(first).0;
    let bin = (span / 100).clamp(1_000_000_000, 10_000_000_000).max(span / BINS_MAX);
    let mut bins = vec![0.0; (span / bin) as usize + 1];
    for write in writes {
        bins[(write.at.since(first).0 / bin) as usize] += 1.0;
    }
    bins
}

/// Lag-1 autocorrelation; zero where all values are alike.
pub(super) fn autocorrelation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let products = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean));
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    if squares == 0.0 { 0.0 } else { products.sum::<f64>() / squares }
}
