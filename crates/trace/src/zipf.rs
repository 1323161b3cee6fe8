//! Zipf's law: rank k is drawn with a probability proportional to 1 / k^exponent.
//!
//! How: rejection-inversion (Hörmann and Derflinger 1996), exact for any exponent above zero.
//! [`Scatter`] then lays the ranks over a footprint by a stride near the golden section, so that
//! hot blocks are far from each other and read-ahead gains nothing by accident.
//! Invariant: a rank is below `elements`; `Scatter` is a permutation of `0..elements`.
//! Cost: constant time per draw, a few logarithms; no table. The last bit of a draw's inner
//! arithmetic follows the platform's `ln` and `exp`, so golden files belong to one platform.

use layby_types::Rng;

/// Tries per draw. Each is accepted more than seven times in ten, so the bound is never met.
const TRIES_MAX: u32 = 64;
/// Below this the quotients of [`expm1_ratio`] and [`ln_1p_ratio`] are taken from their series.
const SERIES_BELOW: f64 = 1e-8;

/// Draws ranks `0..elements`, rank 0 the most frequent.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    elements: u64,
    exponent: f64,
    area_first: f64,
    area_last: f64,
    accept_below: f64,
}

impl Zipf {
    /// A sampler of `elements` ranks. Panics without elements, or unless `exponent` is a positive
    /// finite number.
    #[must_use]
    pub fn new(elements: u64, exponent: f64) -> Self {
        assert!(elements > 0, "a draw needs at least one rank");
        assert!(exponent.is_finite() && exponent > 0.0, "the exponent must be above zero");
        let mut zipf =
            Zipf { elements, exponent, area_first: 0.0, area_last: 0.0, accept_below: 0.0 };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_last = zipf.area(elements as f64 + 0.5);
        zipf.accept_below = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.weight(2.0));
        zipf
    }

    /// How many ranks there are.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// The next rank.
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        let mut rank = 1;
        for _ in 0..TRIES_MAX {
            let area = self.area_last + rng.unit() * (self.area_first - self.area_last);
            let x = self.area_inverse(area);
            rank = ((x + 0.5) as u64).clamp(1, self.elements);
            let k = rank as f64;
            if k - x <= self.accept_below || area >= self.area(k + 0.5) - self.weight(k) {
                break;
            }
        }
        rank - 1
    }

    /// The density at `x`, not normalised.
    fn weight(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }
    /// The density's integral; written so that it stays exact as the exponent passes 1.
    fn area(&self, x: f64) -> f64 {
        let log = x.ln();
        expm1_ratio((1.0 - self.exponent) * log) * log
    }
    /// The `x` at which the integral reaches `area`.
    fn area_inverse(&self, area: f64) -> f64 {
        // Rounding may carry the product just past the logarithm's pole.
        let scaled = (area * (1.0 - self.exponent)).max(-1.0);
        (ln_1p_ratio(scaled) * area).exp()
    }
}

/// (e^x - 1) / x, and its limit at zero.
fn expm1_ratio(x: f64) -> f64 {
    if x.abs() > SERIES_BELOW { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

/// ln(1 + x) / x, and its limit at zero.
fn ln_1p_ratio(x: f64) -> f64 {
    if x.abs() > SERIES_BELOW { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

/// A fixed permutation of `0..elements` that sends neighbouring ranks far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scatter {
    elements: u64,
    stride: u64,
}

impl Scatter {
    /// The permutation of `elements` places. Panics without elements.
    #[must_use]
    pub fn new(elements: u64) -> Self {
        assert!(elements > 0, "a permutation needs at least one place");
        // elements / golden ratio, in 32-bit fixed point, then up to the next coprime.
        let golden = ((u128::from(elements) * 2_654_435_769) >> 32) as u64;
        let stride = (golden.max(1)..=elements).find(|&stride| coprime(stride, elements));
        Scatter { elements, stride: stride.unwrap_or(1) }
    }
    /// The place of `rank`, which must be below `elements`.
    #[must_use]
    pub fn place(&self, rank: u64) -> u64 {
        assert!(rank < self.elements, "a rank has a place only below the number of elements");
        (u128::from(rank) * u128::from(self.stride) % u128::from(self.elements)) as u64
    }
}

/// Whether `a` and `b` share no divisor but 1 (Euclid).
fn coprime(a: u64, b: u64) -> bool {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    fn exact(elements: u64, exponent: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=elements).map(|k| (k as f64).powf(-exponent)).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    /// Sum of squared deviations over bins of at least 10 expected draws, and the number of bins.
    fn chi_square(counts: &[u64], probabilities: &[f64]) -> (f64, f64) {
        let (mut sum, mut bins, mut seen, mut expected) = (0.0, 0.0, 0.0, 0.0);
        for (index, (count, probability)) in counts.iter().zip(probabilities).enumerate() {
            seen += *count as f64;
            expected += probability * DRAWS as f64;
            if expected >= 10.0 || index + 1 == counts.len() {
                sum += (seen - expected).powi(2) / expected.max(1.0);
                bins += 1.0;
                (seen, expected) = (0.0, 0.0);
            }
        }
        (sum, bins)
    }

    /// Goal: the sampler follows Zipf's law, below, at and above exponent 1. Method: chi-square of
    /// 200 000 draws against exact probabilities, fixed seed, five standard deviations of slack.
    #[test]
    fn draws_follow_the_exact_law() {
        for (elements, exponent) in
            [(1000, 0.3), (1000, 1.0), (1000, 1.2), (50, 2.5), (2, 1.0), (7, 1.000_000_000_1)]
        {
            let (zipf, mut rng) = (Zipf::new(elements, exponent), Rng::new(17));
            let mut counts = vec![0; elements as usize];
            for _ in 0..DRAWS {
                counts[zipf.sample(&mut rng) as usize] += 1;
            }
            let (sum, bins) = chi_square(&counts, &exact(elements, exponent));
            let bound = bins + 5.0 * (2.0 * bins).sqrt();
            assert!(sum < bound, "{elements} ranks, exponent {exponent}: {sum:.1} >= {bound:.1}");
        }
    }

    /// Goal: a sampler that is wrong would be caught. Method: the same test with draws of exponent
    /// 1.2 held against the law of 1.15 must exceed its bound.
    #[test]
    fn a_wrong_law_is_noticed() {
        let (zipf, mut rng) = (Zipf::new(1000, 1.2), Rng::new(17));
        let mut counts = vec![0; 1000];
        for _ in 0..DRAWS {
            counts[zipf.sample(&mut rng) as usize] += 1;
        }
        let (sum, bins) = chi_square(&counts, &exact(1000, 1.15));
        assert!(sum > bins + 5.0 * (2.0 * bins).sqrt());
    }

    /// Goal: ranks stay in range at the edges. Method: one rank, and a footprint of 2^50 ranks.
    #[test]
    fn ranks_stay_in_range() {
        let mut rng = Rng::new(5);
        let (one, vast) = (Zipf::new(1, 1.2), Zipf::new(1 << 50, 0.5));
        for _ in 0..10_000 {
            assert_eq!(one.sample(&mut rng), 0);
            assert!(vast.sample(&mut rng) < 1 << 50);
        }
    }

    /// Goal: scattering loses and doubles no place. Method: every rank of many sizes is marked.
    #[test]
    fn scatter_is_a_permutation() {
        for elements in (1..200).chain([4096, 16_384, 10_007, 9240]) {
            let scatter = Scatter::new(elements);
            let mut seen = vec![false; elements as usize];
            for rank in 0..elements {
                let place = scatter.place(rank) as usize;
                assert!(!std::mem::replace(&mut seen[place], true), "{elements}: {place} twice");
            }
        }
    }

    /// Goal: hot blocks are no neighbours. Method: the least gap between the places of the 64
    /// hottest ranks stays near the even spacing, for sizes that demos and tests use.
    #[test]
    fn hot_ranks_lie_apart() {
        for elements in [4096, 16_384, 65_536, 100_000, 1_000_003] {
            let scatter = Scatter::new(elements);
            let mut places: Vec<u64> = (0..64).map(|rank| scatter.place(rank)).collect();
            places.sort_unstable();
            let gap = places.windows(2).map(|pair| pair[1] - pair[0]).min();
            assert!(gap.is_some_and(|gap| gap * 64 * 4 > elements), "{elements}: {gap:?}");
        }
    }
}
