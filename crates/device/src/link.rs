//! A link whose bandwidth changes: how long bytes take over it, from a trace of what it carries.
//!
//! How: points in time, each with the bytes per second and the round trip from then on; the trace
//! repeats. A running sum of what was carried before each point makes the time of any number of
//! bytes a search and a division. Bytes go in the order in which they were given.
//! Invariant: exact in whole numbers: what arrives in a span is the integral of the bandwidth over
//! it, rounded down to bytes, and an arrival is the first nanosecond at which all bytes are there.
//! Cost: logarithmic in the points. Not for: loss, reordering, or how a transport finds the rate;
//! many senders at once share it as if one came after the other, which changes no sum.

use alloc::vec::Vec;
use core::fmt;
use layby_types::Nanos;

/// What a link does from an instant on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPoint {
    /// From then on, counted from the trace's beginning.
    pub at: Nanos,
    /// It carries so much; nothing in an outage.
    pub bytes_per_second: u64,
    /// There and back.
    pub round_trip: Nanos,
}

/// Points of a link at most: a month of seconds.
pub const POINTS_MAX: usize = 31 * 86_400;
/// Bytes per second at most: a terabyte.
pub const BYTES_PER_SECOND_MAX: u64 = 1_000_000_000_000;

/// Why points make no link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// None, or more than [`POINTS_MAX`].
    Count(usize),
    /// The first point is not at the beginning.
    LateStart(Nanos),
    /// This point is not after the one before it, or not before the trace's end.
    Order(usize),
    /// This point is faster than [`BYTES_PER_SECOND_MAX`].
    TooFast(usize),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Count(found) => write!(f, "{found} points, expected 1 to {POINTS_MAX}"),
            LinkError::LateStart(at) => write!(f, "the first point is at {at}, expected 0s"),
            LinkError::Order(place) => {
                write!(f, "point {place} is not after the one before it and before the end")
            }
            LinkError::TooFast(place) => {
                write!(f, "point {place} carries more than {BYTES_PER_SECOND_MAX} bytes per second")
            }
        }
    }
}

impl core::error::Error for LinkError {}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Link {
    points: Vec<LinkPoint>,
    /// Before each point, and in the whole trace: bytes times nanoseconds per second.
    carried: Vec<u128>,
    length: Nanos,
    /// All that was given before has arrived by then.
    free_at: Nanos,
}

const SECOND: u128 = 1_000_000_000;

impl Link {
    /// A link that does what `points` say and begins anew after `length`.
    ///
    /// # Errors
    /// [`LinkError`] with the point that is wrong.
    pub fn new(points: Vec<LinkPoint>, length: Nanos) -> Result<Link, LinkError> {
        if points.is_empty() || points.len() > POINTS_MAX {
            return Err(LinkError::Count(points.len()));
        }
        if points[0].at != Nanos::ZERO {
            return Err(LinkError::LateStart(points[0].at));
        }
        let mut carried = Vec::with_capacity(points.len() + 1);
        let mut sum = 0;
        for (place, point) in points.iter().enumerate() {
            let until = points.get(place + 1).map_or(length, |next| next.at);
            if until <= point.at {
                return Err(LinkError::Order((place + 1).min(points.len() - 1)));
            }
            if point.bytes_per_second > BYTES_PER_SECOND_MAX {
                return Err(LinkError::TooFast(place));
            }
            carried.push(sum);
            sum += u128::from(point.bytes_per_second) * u128::from(until.since(point.at).0);
        }
        carried.push(sum);
        Ok(Link { points, carried, length, free_at: Nanos::ZERO })
    }

    /// A link that never changes.
    ///
    /// # Panics
    /// It is faster than [`BYTES_PER_SECOND_MAX`].
    #[must_use]
    pub fn steady(bytes_per_second: u64, round_trip: Nanos) -> Link {
        let point = LinkPoint { at: Nanos::ZERO, bytes_per_second, round_trip };
        Link::new(alloc::vec![point], Nanos::from_secs(1)).expect("one point in order")
    }

    /// What it does at `when`.
    #[must_use]
    pub fn at(&self, when: Nanos) -> LinkPoint {
        self.points[self.place(when.0 % self.length.0)]
    }

    /// Whole bytes that it can carry between two instants.
    #[must_use]
    pub fn bytes_between(&self, from: Nanos, until: Nanos) -> u64 {
        let carried = self.until(until).saturating_sub(self.until(from)) / SECOND;
        u64::try_from(carried).unwrap_or(u64::MAX)
    }

    /// When the last of `bytes` arrives that are sent from `from` on by nobody else;
    /// [`Nanos::NEVER`] where the link is dead.
    #[must_use]
    pub fn arrival(&self, bytes: u64, from: Nanos) -> Nanos {
        let total = self.carried[self.points.len()];
        if bytes == 0 {
            return from;
        }
        if total == 0 {
            return Nanos::NEVER;
        }
        let target = self.until(from) + u128::from(bytes) * SECOND;
        // Of a whole number of rounds the last one counts, which may end in an outage.
        let rounds = (target - 1) / total;
        let rest = target - rounds * total;
        let place = self.carried.partition_point(|before| *before < rest) - 1;
        let point = &self.points[place];
        let further = (rest - self.carried[place]).div_ceil(u128::from(point.bytes_per_second));
        let arrival = rounds * u128::from(self.length.0) + u128::from(point.at.0) + further;
        Nanos(u64::try_from(arrival).unwrap_or(u64::MAX))
    }

    /// When the last of `bytes` would arrive that are given now, behind all that was given before.
    #[must_use]
    pub fn would_arrive(&self, bytes: u64, now: Nanos) -> Nanos {
        self.arrival(bytes, now.max(self.free_at))
    }

    /// Gives it `bytes`, behind all that was given before; when the last of them arrives.
    pub fn send(&mut self, bytes: u64, now: Nanos) -> Nanos {
        self.free_at = self.would_arrive(bytes, now);
        self.free_at
    }

    /// It is busy until `when` with bytes that are then given up.
    pub fn occupy(&mut self, when: Nanos) {
        self.free_at = self.free_at.max(when);
    }

    /// All that was given has arrived by then.
    #[must_use]
    pub fn free_at(&self) -> Nanos {
        self.free_at
    }

    /// The point that holds at an offset within the trace.
    fn place(&self, offset: u64) -> usize {
        self.points.partition_point(|point| point.at.0 <= offset) - 1
    }

    /// What it carries from the beginning until `when`, in bytes times nanoseconds per second.
    fn until(&self, when: Nanos) -> u128 {
        let (rounds, offset) = (when.0 / self.length.0, when.0 % self.length.0);
        let place = self.place(offset);
        let point = &self.points[place];
        let within = u128::from(point.bytes_per_second) * u128::from(offset - point.at.0);
        u128::from(rounds) * self.carried[self.points.len()] + self.carried[place] + within
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    fn point(seconds: u64, bytes_per_second: u64) -> LinkPoint {
        let round_trip = Nanos::from_millis(40);
        LinkPoint { at: Nanos::from_secs(seconds), bytes_per_second, round_trip }
    }

    /// Ten seconds at 100, ten of outage, five at 50.
    fn link() -> Link {
        let points = alloc::vec![point(0, 100), point(10, 0), point(20, 50)];
        Link::new(points, Nanos::from_secs(25)).expect("it is in order")
    }

    /// Goal: bytes take the integral's time, across outages and rounds. Method: by hand.
    #[test]
    fn bytes_take_the_integral() {
        let (link, second) = (link(), Nanos::from_secs(1));
        for (bytes, from, arrives) in [
            (1000, 0, 10),
            (1001, 0, 20),
            (1250, 0, 25),
            (1251, 0, 25),
            (100, 12, 22),
            (2500, 0, 50),
            (250, 20, 25),
            (0, 13, 13),
        ] {
            let found = link.arrival(bytes, Nanos::from_secs(from));
            assert_eq!(found.as_secs(), arrives, "{bytes} from {from}: {found}");
        }
        assert_eq!(link.arrival(1001, Nanos::ZERO), Nanos::from_millis(20_020));
        assert_eq!(link.bytes_between(Nanos::from_secs(9), Nanos::from_secs(21)), 150);
        assert_eq!(link.bytes_between(Nanos::ZERO, Nanos::from_secs(2500)), 125_000);
        assert_eq!(link.at(Nanos::from_secs(36)).bytes_per_second, 0);
        assert_eq!(Link::steady(0, second).arrival(1, second), Nanos::NEVER);
    }

    /// Goal: an arrival is the first nanosecond at which all bytes are there. Method: random links
    /// and bytes; one nanosecond before, one is missing.
    #[test]
    fn arrivals_are_the_earliest() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut at = 0;
            let mut draw = |_| {
                let found = LinkPoint {
                    at: Nanos(at),
                    bytes_per_second: if rng.chance(1, 4) { 0 } else { rng.below(1 << 39) },
                    round_trip: Nanos::ZERO,
                };
                at += 1 + rng.below(5_000_000_000);
                found
            };
            let points: Vec<LinkPoint> = (0..8).map(&mut draw).collect();
            let link = Link::new(points, Nanos(at)).expect("they are in order");
            for _ in 0..50 {
                let (from, bytes) = (Nanos(rng.below(100_000_000_000)), 1 + rng.below(1 << 42));
                let arrival = link.arrival(bytes, from);
                if arrival == Nanos::NEVER {
                    continue;
                }
                assert!(link.until(arrival) - link.until(from) >= u128::from(bytes) * SECOND);
                let before = link.until(Nanos(arrival.0 - 1)) - link.until(from);
                assert!(before < u128::from(bytes) * SECOND, "SEED={seed}: too late");
            }
        }
    }

    /// Goal: what is given while the link is busy comes after, and nothing is lost by cutting bytes
    /// into pieces. Method: pieces beside the whole.
    #[test]
    fn pieces_take_as_long_as_the_whole() {
        let (mut pieces, mut whole) = (link(), link());
        let sizes = [100, 900, 1, 249, 700];
        let last = sizes.into_iter().map(|bytes| pieces.send(bytes, Nanos::from_secs(3))).last();
        assert_eq!(last, Some(whole.send(sizes.iter().sum(), Nanos::from_secs(3))));
        assert_eq!(pieces.would_arrive(0, Nanos::ZERO), pieces.free_at());
        pieces.occupy(Nanos::from_secs(1000));
        assert_eq!(pieces.send(100, Nanos::ZERO), Nanos::from_secs(1001));
    }

    /// Goal: what is no link is refused with its place. Method: one of each.
    #[test]
    fn bad_points_are_refused() {
        let refused = |points: &[LinkPoint]| {
            Link::new(points.to_vec(), Nanos::from_secs(25)).expect_err("it is bad")
        };
        assert_eq!(refused(&[]), LinkError::Count(0));
        assert_eq!(refused(&[point(1, 1)]), LinkError::LateStart(Nanos::from_secs(1)));
        assert_eq!(refused(&[point(0, 1), point(0, 1)]), LinkError::Order(1));
        assert_eq!(refused(&[point(0, 1), point(30, 1)]), LinkError::Order(1));
        assert_eq!(refused(&[point(0, u64::MAX)]), LinkError::TooFast(0));
    }
}
