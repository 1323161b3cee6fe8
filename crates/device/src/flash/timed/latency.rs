//! How long requests took: counts by size of latency, exact to one part in 32.
//!
//! How: 32 buckets per power of two. Invariant: `count` is the sum of the buckets.
//! Cost: a shift and an addition per request; 16 KiB.

use layby_types::Nanos;

/// Buckets per power of two.
const PARTS: u64 = 32;
const BUCKETS: usize = 60 * PARTS as usize;

/// Latencies of many requests.
#[derive(Clone, Debug)]
pub struct Latencies {
    buckets: [u64; BUCKETS],
    count: u64,
    sum: u128,
    max: u64,
}

impl Latencies {
    pub(super) const fn new() -> Self {
        Latencies { buckets: [0; BUCKETS], count: 0, sum: 0, max: 0 }
    }
    pub(super) fn record(&mut self, latency: Nanos) {
        self.buckets[bucket(latency.0)] += 1;
        self.count += 1;
        self.sum += u128::from(latency.0);
        self.max = self.max.max(latency.0);
    }
    /// Requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
    /// The mean; zero where there was none.
    #[must_use]
    pub fn mean(&self) -> Nanos {
        Nanos((self.sum / u128::from(self.count.max(1))) as u64)
    }
    /// The longest.
    #[must_use]
    pub fn max(&self) -> Nanos {
        Nanos(self.max)
    }
    /// What at least `part` of the requests did not exceed, or up to one part in 32 more.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Nanos {
        // A rank that is whole may come out a little above as a double, and is no more for that.
        let rank = self.count as f64 * part.clamp(0.0, 1.0) * (1.0 - 1e-12);
        let below = rank as u64;
        let wanted = below + u64::from((below as f64) < rank);
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted.max(1) {
                return Nanos(upper(at).min(self.max));
            }
        }
        Nanos(self.max)
    }
}

/// Small values have a bucket each; of larger ones the leading six bits tell the bucket.
fn bucket(value: u64) -> usize {
    if value < PARTS {
        return value as usize;
    }
    let shift = value.ilog2() - PARTS.ilog2();
    (u64::from(shift) * PARTS + (value >> shift)) as usize
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * PARTS {
        return bucket;
    }
    let shift = bucket / PARTS - 1;
    let leading = u128::from(bucket % PARTS + PARTS + 1);
    ((leading << shift) - 1).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    /// Goal: buckets hold what they say. Method: random values, and the edges.
    #[test]
    fn buckets_bound_their_values() {
        let mut rng = Rng::new(1);
        let drawn = (0..10_000).map(|_| rng.next_u64() >> rng.below(64));
        for value in drawn.chain([0, 31, 32, 63, 64, u64::MAX]) {
            let bound = upper(bucket(value));
            assert!(bound >= value && bound - value <= value / 32, "{value} in {bound}");
            assert!(bucket(value) == 0 || upper(bucket(value) - 1) < value);
        }
    }

    /// Goal: quantiles of a known sample. Method: 1 to 1000.
    #[test]
    fn quantiles_of_a_ramp() {
        let mut latencies = Latencies::new();
        (1..=1000).for_each(|value| latencies.record(Nanos(value)));
        assert_eq!((latencies.mean(), latencies.max()), (Nanos(500), Nanos(1000)));
        assert_eq!(latencies.quantile(1.0), Nanos(1000));
        let median = latencies.quantile(0.5).0;
        assert!((500..=516).contains(&median), "{median}");
    }

    /// Goal: a quantile's rank is rounded up: what at least that part of the requests did not
    /// exceed. Method: few values with a bucket each, by hand.
    #[test]
    fn quantiles_of_few() {
        let of = |count: u64, part: f64| {
            let mut latencies = Latencies::new();
            (1..=count).for_each(|value| latencies.record(Nanos(value)));
            latencies.quantile(part).0
        };
        assert_eq!((of(10, 0.99), of(10, 0.5), of(10, 0.91), of(10, 0.9)), (10, 5, 10, 9));
        assert_eq!((of(3, 0.5), of(1, 0.5), of(10, 0.0), of(10, 1.0)), (2, 1, 1, 10));
        // As doubles, 0.07 times 100 is a little above 7, and 0.29 times 100 a little below 29.
        let mut hundred = Latencies::new();
        let spread = |part: u64| if part < 50 { part } else { 60 };
        (1..=100).for_each(|value| hundred.record(Nanos(spread(value))));
        assert_eq!((hundred.quantile(0.07).0, hundred.quantile(0.29).0), (7, 29));
        assert_eq!(Latencies::new().quantile(0.99), Nanos::ZERO);
    }
}
