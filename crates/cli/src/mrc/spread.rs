//! How far samples of several seeds lie apart.
//!
//! How: the sample standard deviation of their miss ratios at one size, n - 1 below: the expected
//! distance of one sample from their mean. It estimates a sample's error where no exact curve is
//! measured; a bias that all samples share is not in it.
//! Invariant: samples that follow no block, or see no request that counts, are left out. Cost: a
//! binary search per sample and size.

use layby_sim::policy::curve::{Counted, Curve};

/// The samples of one volume, or of all volumes together.
pub(super) struct Spread<'a> {
    counted: Counted,
    samples: Vec<&'a Curve>,
}

impl<'a> Spread<'a> {
    /// Of these samples, one per seed.
    pub(super) fn new(counted: Counted, mut samples: Vec<&'a Curve>) -> Self {
        samples.retain(|curve| curve.requests(counted) > 0.0);
        Spread { counted, samples }
    }

    /// Samples that count.
    pub(super) fn seeds(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are samples enough to lie apart.
    pub(super) fn is_known(&self) -> bool {
        self.samples.len() > 1
    }

    /// The size from which every sample is flat.
    pub(super) fn size_max(&self) -> u64 {
        self.samples.iter().map(|curve| curve.size_max()).max().unwrap_or(0)
    }

    /// The standard deviation of the miss ratio of a cache of `size` blocks; zero for one sample.
    pub(super) fn deviation(&self, size: u64) -> f64 {
        let ratios = || self.samples.iter().map(|curve| curve.miss_ratio(self.counted, size));
        let mean = ratios().sum::<f64>() / self.samples.len().max(1) as f64;
        let squares = ratios().map(|ratio| (ratio - mean).powi(2)).sum::<f64>();
        (squares / self.samples.len().saturating_sub(1).max(1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_sim::policy::curve::Point;

    /// Goal: the deviation is the sample standard deviation at each size, and samples of nothing
    /// do not count. Method: miss ratios of 0.2, 0.4 and 0.6 from three blocks on, beside a curve
    /// of no request.
    #[test]
    fn the_deviation_is_by_hand() {
        let curve = |hits| Curve::new(vec![Point { size: 3, hits: [hits, 0.0] }], [10.0, 0.0]);
        let (curves, none) = ([8.0, 6.0, 4.0].map(curve), Curve::new(vec![], [0.0; 2]));
        let samples = curves.iter().chain([&none]).collect();
        let spread = Spread::new(Counted::Reads, samples);
        assert_eq!((spread.seeds(), spread.size_max(), spread.deviation(2)), (3, 3, 0.0));
        assert!((spread.deviation(3) - 0.2).abs() < 1e-12, "{}", spread.deviation(3));
        assert!(!Spread::new(Counted::Writes, curves.iter().collect()).is_known());
    }
}
