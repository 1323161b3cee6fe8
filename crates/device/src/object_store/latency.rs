//! A latency by chance: a few points of its distribution, and straight lines between them.
//!
//! How: an even draw is a share of the requests; the answer lies on the line between the two points
//! around it. Invariant: points do not fall. Cost: a draw, a multiplication and a division.
//! Not for: requests that make each other slow.

use layby_types::{Nanos, Rng};

/// Shares of requests at the points, of a thousand.
const SHARES: [u64; 6] = [0, 500, 900, 990, 999, 1000];
/// Steps of a draw within one of a thousand.
const STEPS: u64 = 1 << 20;

/// The least, the median, the 90th, 99th and 99.9th percentile, and the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency([Nanos; SHARES.len()]);

impl Latency {
    /// Putting an object: 30 ms in the middle, one of a hundred 150 ms.
    pub const PUT_DEFAULT: Latency = Latency::of_millis([12, 30, 60, 150, 400, 1500]);
    /// The first byte of getting one: 20 ms in the middle, one of a hundred 100 ms.
    pub const GET_DEFAULT: Latency = Latency::of_millis([8, 20, 40, 100, 300, 1000]);

    const fn of_millis(millis: [u64; SHARES.len()]) -> Latency {
        let mut points = [Nanos::ZERO; SHARES.len()];
        let mut place = 0;
        while place < points.len() {
            points[place] = Nanos::from_millis(millis[place]);
            place += 1;
        }
        Latency(points)
    }

    /// A latency by its points: the least, the median, the 90th, 99th and 99.9th percentile, and
    /// the most; none where they fall.
    #[must_use]
    pub fn new(points: [Nanos; SHARES.len()]) -> Option<Latency> {
        points.is_sorted().then_some(Latency(points))
    }

    /// The same for every request.
    #[must_use]
    pub const fn fixed(latency: Nanos) -> Latency {
        Latency([latency; SHARES.len()])
    }

    /// One request's.
    pub fn draw(&self, rng: &mut Rng) -> Nanos {
        let drawn = rng.below(1000 * STEPS);
        let next = SHARES.iter().position(|share| drawn < share * STEPS);
        let next = next.expect("a draw is below the last share");
        let (from, until) = (SHARES[next - 1] * STEPS, SHARES[next] * STEPS);
        let (low, high) = (self.0[next - 1].0, self.0[next].0);
        let part = u128::from(high - low) * u128::from(drawn - from) / u128::from(until - from);
        Nanos(low + part as u64)
    }
}
