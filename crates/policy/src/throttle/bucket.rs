//! A token bucket in whole numbers: what may pass now, and when the next may.
//!
//! How: a token is worth as many units as the rate's period has nanoseconds, and each nanosecond
//! earns as many units as the rate has tokens, so that nothing is ever rounded but the instant at
//! which a wait ends, which is rounded up and whose remainder stays in the bucket.
//! Invariant: what passes within any window is at most the burst (or the largest cost, where that
//! is more) and what the window and a nanosecond earn.
//! Cost: a multiplication per call, a division where there is something to wait for.

use layby_types::Nanos;

/// So many tokens in each period, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens earned in a period, at least one.
    pub tokens: u64,
    /// The period, at least a nanosecond.
    pub period: Nanos,
    /// Tokens that an idle bucket gathers, at least one.
    pub burst: u64,
}

impl Rate {
    /// `tokens` in a second.
    #[must_use]
    pub const fn per_second(tokens: u64, burst: u64) -> Rate {
        Rate { tokens, period: Nanos::from_secs(1), burst }
    }

    /// The part of the rate that `part` of `whole` is due, exactly; the burst is rounded down to no
    /// less than one token.
    #[must_use]
    pub fn part(self, part: u32, whole: u32) -> Rate {
        assert!(0 < part && part <= whole, "a part is within its whole");
        let share = u128::from(self.burst) * u128::from(part) / u128::from(whole);
        Rate {
            tokens: self.tokens.saturating_mul(u64::from(part)),
            period: Nanos(self.period.0.saturating_mul(u64::from(whole))),
            burst: u64::try_from(share).expect("a part is no more than the whole").max(1),
        }
    }
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: Rate,
    /// In units; negative after something larger than the burst has passed.
    credit: i128,
    /// When `credit` was true.
    at: Nanos,
}

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn new(rate: Rate, now: Nanos) -> Bucket {
        assert!(rate.tokens > 0 && rate.period.0 > 0 && rate.burst > 0, "a rate lets things pass");
        Bucket { credit: full(rate), rate, at: now }
    }

    /// The rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// From when on `cost` tokens may pass: where they are there, or, for a cost above the burst,
    /// where the bucket is full.
    #[must_use]
    pub fn ready_at(&self, cost: u64) -> Nanos {
        let missing = self.units(cost.min(self.rate.burst)).saturating_sub(self.credit);
        if missing <= 0 || cost == 0 {
            return if cost == 0 { Nanos::ZERO } else { self.at };
        }
        let tokens = i128::from(self.rate.tokens);
        let wait = missing.saturating_add(tokens - 1) / tokens;
        self.at.saturating_add(Nanos(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    /// Lets `cost` tokens pass at `when`, no earlier than [`Bucket::ready_at`] said.
    pub fn take(&mut self, cost: u64, when: Nanos) {
        assert!(when >= self.ready_at(cost), "nothing passes before it may");
        if cost == 0 {
            return;
        }
        self.overdraw(cost, when);
    }

    /// Lets `cost` tokens pass at `when` whatever the bucket holds: what is missing is a debt.
    pub fn overdraw(&mut self, cost: u64, when: Nanos) {
        self.earn(when);
        self.credit = self.credit.saturating_sub(self.units(cost));
    }

    /// The same, where others pay for it, too: the debt is the burst, or the cost, at most.
    pub fn overdraw_for_others(&mut self, cost: u64, when: Nanos) {
        self.earn(when);
        let floor = self.units(cost.max(self.rate.burst)).saturating_neg();
        let left = self.credit.saturating_sub(self.units(cost));
        self.credit = left.max(floor.min(self.credit));
    }

    /// Changes the rate. What was gathered stays up to the new burst; what was overdrawn is
    /// forgiven, since at a slower rate it might last for ever.
    pub fn set(&mut self, rate: Rate, now: Nanos) {
        if rate == self.rate {
            return;
        }
        self.earn(now);
        let tokens = self.credit.max(0) / i128::from(self.rate.period.0);
        *self = Bucket::new(rate, now.max(self.at));
        self.credit = self.credit.min(tokens.saturating_mul(i128::from(rate.period.0)));
    }

    fn units(&self, tokens: u64) -> i128 {
        i128::from(tokens).saturating_mul(i128::from(self.rate.period.0))
    }

    /// Adds what has been earned until `now`; time that goes back earns nothing.
    fn earn(&mut self, now: Nanos) {
        let tokens = i128::from(self.rate.tokens);
        let earned = i128::from(now.since(self.at).0).saturating_mul(tokens);
        // A wait ends up to a nanosecond late; what that one earns is not lost to the brim.
        let brim = full(self.rate).saturating_add(tokens - 1);
        self.credit = self.credit.saturating_add(earned).min(brim);
        self.at = self.at.max(now);
    }
}

fn full(rate: Rate) -> i128 {
    i128::from(rate.burst).saturating_mul(i128::from(rate.period.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;
    use std::vec::Vec;

    /// Asserts that no window holds more than the burst and what it earns; exact.
    fn assert_within(rate: Rate, passed: &[(Nanos, u64)], context: u64) {
        let largest = passed.iter().map(|(_, cost)| *cost).max().unwrap_or(0).max(rate.burst);
        for first in 0..passed.len() {
            let mut sum = 0u128;
            for (at, cost) in &passed[first..] {
                sum += u128::from(*cost) * u128::from(rate.period.0);
                let window = at.since(passed[first].0).0 + 1;
                let earned = u128::from(window) * u128::from(rate.tokens);
                let most = u128::from(largest) * u128::from(rate.period.0) + earned;
                assert!(sum <= most, "seed {context}: {sum} > {most} from {first} to {at:?}");
            }
        }
    }

    fn random_rate(rng: &mut Rng) -> Rate {
        let tokens = 1 + rng.below(10) * 10u64.pow(rng.below(6) as u32);
        let period = Nanos(1 + rng.below(3_000_000_000));
        let scale = rng.below(20);
        Rate { tokens, period, burst: 1 + rng.below(1 << scale) }
    }

    /// Goal: no arrival pattern gets more out of any window than burst and rate. Method: random
    /// rates, costs (some above the burst) and gaps; every window of the passes, exactly.
    #[test]
    fn any_window_holds_burst_and_rate() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let rate = random_rate(&mut rng);
            let mut bucket = Bucket::new(rate, Nanos::ZERO);
            let (mut now, mut passed) = (Nanos::ZERO, Vec::new());
            for _ in 0..120 {
                if rng.chance(1, 4) {
                    let refill = rate.burst.saturating_mul(rate.period.0) / rate.tokens;
                    now = now + Nanos(rng.below(2 + refill));
                }
                let cost = rng.below(2 * rate.burst + 2);
                now = now.max(bucket.ready_at(cost));
                bucket.take(cost, now);
                passed.push((now, cost));
            }
            assert_within(rate, &passed, seed);
        }
    }

    /// Goal: the rate has no drift. Method: who always wants one more, at rates that divide no
    /// second, for an hour; the count is exact.
    #[test]
    fn saturated_rate_is_exact() {
        for (tokens, period) in [(7, 1_000_000_000), (3, 7), (999, 1_000_003), (1, 333_333_333)] {
            let rate = Rate { tokens, period: Nanos(period), burst: 1 };
            let mut bucket = Bucket::new(rate, Nanos::ZERO);
            let end = Nanos(period * 10_000);
            let mut count = 0;
            while bucket.ready_at(1) <= end {
                bucket.take(1, bucket.ready_at(1));
                count += 1;
            }
            assert_eq!(count, tokens * 10_000 + 1, "{tokens} in {period} ns");
        }
    }

    /// Goal: a change keeps gathered credit within the new burst and no debt. Method: an overdrawn
    /// and a full bucket, each made slower.
    #[test]
    fn change_keeps_no_debt() {
        let mut bucket = Bucket::new(Rate::per_second(1 << 20, 1 << 20), Nanos::ZERO);
        bucket.take(1 << 30, Nanos::ZERO);
        assert!(bucket.ready_at(1) > Nanos::from_secs(1000));
        let now = Nanos::from_secs(1);
        bucket.set(Rate::per_second(10, 5), now);
        assert_eq!(bucket.ready_at(1), now + Nanos::from_millis(100));
        assert_eq!(bucket.ready_at(99), now + Nanos::from_millis(500));
        let mut bucket = Bucket::new(Rate::per_second(1000, 1000), Nanos::ZERO);
        bucket.set(Rate::per_second(10, 5), now);
        assert_eq!(bucket.ready_at(5), now);
        bucket.take(5, now);
        assert_eq!(bucket.ready_at(1), now + Nanos::from_millis(100));
        bucket.set(Rate::per_second(10, 5), now + Nanos::from_millis(99));
        assert_eq!(bucket.ready_at(1), now + Nanos::from_millis(100), "the same is no change");
    }

    /// Goal: parts make up their whole. Method: a rate that three cannot share, saturated.
    #[test]
    fn parts_make_up_the_whole() {
        let whole = Rate::per_second(100, 10);
        let end = Nanos::from_secs(30);
        let counts = [1u32, 2].map(|part| {
            let mut bucket = Bucket::new(whole.part(part, 3), Nanos::ZERO);
            let mut count = 0;
            while bucket.ready_at(1) < end {
                bucket.take(1, bucket.ready_at(1));
                count += 1;
            }
            count
        });
        // Each has the part of the burst, and what it earns before the end.
        assert_eq!(counts, [1000 + 2, 2000 + 5]);
    }

    /// Goal: the largest numbers neither overflow nor panic. Method: extremes of all fields.
    #[test]
    fn extremes_are_safe() {
        let rate = Rate { tokens: 1, period: Nanos(u64::MAX), burst: u64::MAX };
        let mut bucket = Bucket::new(rate, Nanos::ZERO);
        bucket.take(u64::MAX, Nanos::ZERO);
        assert_eq!(bucket.ready_at(u64::MAX), Nanos::NEVER);
        let rate = Rate { tokens: u64::MAX, period: Nanos(1), burst: 1 };
        bucket.set(rate, Nanos(u64::MAX - 1));
        bucket.take(1, bucket.ready_at(1));
        assert!(bucket.ready_at(1) >= Nanos(u64::MAX - 1));
        let _ = rate.part(3, 7);
    }
}
