//! How fast a flash level may be worn: a budget of bytes per day, and how long the flash will last.
//!
//! How: a level's rated endurance over the life that is wished for it is a rate of bytes. A bucket
//! earns at that rate and carries over what was left, up to a bound; every byte that reaches the
//! device is charged, whoever caused it. Clean copies of reads are given up first, the lowest class
//! before the others; then dirty blocks that may go home instead, the lowest class first. What must
//! be written is never asked about, only charged, and may overdraw the bucket. Averages over an
//! hour, a day and a week, of weights that halve with age, say how long the rest will last.
//! Invariant: what was admitted as a copy within any span is at most what the span earns and what
//! the bucket carries, and one write more. The best class's dirty blocks are never refused.
//! Cost: constant time per call; a charge takes some tens of multiplications.
//! Not for: devices without an endurance, as DRAM; wear levelling, which is the device's own.

use layby_types::Nanos;

/// A day.
pub const DAY: Nanos = Nanos::from_secs(86_400);
/// The spans over which the rate of writing is averaged.
pub const WINDOWS: [Nanos; 3] = [Nanos::from_secs(3600), DAY, Nanos(7 * DAY.0)];
/// Squarings by which a power of e is found.
const SQUARINGS: u32 = 10;
/// An average of less than this part of its window says nothing yet.
const SEEN_MIN: f64 = 1.0 / 64.0;

/// How much may be written to a level until it is worn, and how long that shall take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endurance {
    /// Bytes that the level can be written in its whole life.
    pub bytes: u64,
    /// How long it shall last.
    pub life: Nanos,
}

impl Endurance {
    /// The least that is taken for an endurance.
    pub const BYTES_MIN: u64 = 1 << 30;
    /// The most: an exbibyte.
    pub const BYTES_MAX: u64 = 1 << 60;
    /// The shortest life.
    pub const LIFE_MIN: Nanos = DAY;
    /// The longest life: a century.
    pub const LIFE_MAX: Nanos = Nanos(36_500 * DAY.0);
    /// The life when nothing is said: five years, which most makers warrant.
    pub const LIFE_DEFAULT: Nanos = Nanos(1825 * DAY.0);

    /// The part of each of `parts` equal parts of a level, at least a byte.
    #[must_use]
    pub fn part(self, parts: u32) -> Endurance {
        Endurance { bytes: (self.bytes / u64::from(parts.max(1))).max(1), ..self }
    }

    /// Bytes that a day may take.
    #[must_use]
    pub fn daily_bytes(self) -> u64 {
        self.earned_in(DAY)
    }

    fn earned_in(self, span: Nanos) -> u64 {
        let bytes = u128::from(self.bytes) * u128::from(span.0) / u128::from(self.life.0.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// How a budget carries over, and when it gives what up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WearLimits {
    /// Days of budget that are carried over at most.
    pub carry_days: u16,
    /// Days of budget that must-be-written bytes overdraw at most; the rest is forgiven.
    pub debt_days: u16,
    /// The part of a day's budget, in percent, that is kept from copies for dirty blocks.
    pub reserve_percent: u8,
    /// The part of a day's budget, in percent, by which middle classes' dirty blocks overdraw.
    pub grace_percent: u8,
}

impl WearLimits {
    /// The least of each.
    pub const MIN: WearLimits =
        WearLimits { carry_days: 1, debt_days: 1, reserve_percent: 0, grace_percent: 0 };
    /// The most of each.
    pub const MAX: WearLimits =
        WearLimits { carry_days: 365, debt_days: 365, reserve_percent: 100, grace_percent: 100 };
    /// A day is carried over, a month may be owed, a quarter of a day is for dirty blocks.
    pub const DEFAULT: WearLimits =
        WearLimits { carry_days: 1, debt_days: 30, reserve_percent: 25, grace_percent: 25 };
}

/// What somebody would like to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WearUse {
    /// A clean copy of what another place holds, too.
    Copy,
    /// A dirty block that may as well go home.
    Dirty,
}

/// A class among the others, by rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WearRank {
    /// Ranks before this one; 0 is the best.
    pub place: u8,
    /// Ranks in all, at least one.
    pub of: u8,
}

/// What outlives a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WearState {
    /// Bytes ever written.
    pub written: u64,
    /// Bytes that may be written now; what is overdrawn is negative.
    pub balance: i64,
    /// How long has been looked on.
    pub seen: Nanos,
    /// By window: the average so far, in bytes per window.
    pub averages: [f64; WINDOWS.len()],
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Wear {
    endurance: Option<Endurance>,
    limits: WearLimits,
    /// In bytes times nanoseconds of the life, so that nothing is rounded.
    credit: i128,
    written: u64,
    averages: [f64; WINDOWS.len()],
    seen: Nanos,
    at: Nanos,
}

impl Wear {
    /// A level of which nothing is known, with a day's budget; without an endurance it is counted
    /// and nothing is refused.
    #[must_use]
    pub fn new(endurance: Option<Endurance>, limits: WearLimits, now: Nanos) -> Wear {
        let day = endurance.map_or(0, Endurance::daily_bytes);
        let balance = i64::try_from(day).unwrap_or(i64::MAX);
        let state = WearState { balance, ..WearState::default() };
        Wear::resume(endurance, limits, &state, Nanos::ZERO, now)
    }

    /// Goes on from `state`, which was taken `away` ago.
    #[must_use]
    pub fn resume(
        endurance: Option<Endurance>,
        limits: WearLimits,
        state: &WearState,
        away: Nanos,
        now: Nanos,
    ) -> Wear {
        assert!(endurance.is_none_or(|known| known.life.0 > 0), "a life lasts");
        let unit = endurance.map_or(1, |known| i128::from(known.life.0));
        let mut wear = Wear {
            endurance,
            limits,
            credit: i128::from(state.balance).saturating_mul(unit),
            written: state.written,
            averages: state.averages.map(|sum| if sum.is_finite() { sum.max(0.0) } else { 0.0 }),
            seen: state.seen,
            at: Nanos::ZERO,
        };
        wear.pass(away);
        wear.at = now;
        wear
    }

    /// What a later life goes on from.
    #[must_use]
    pub fn state(&self, now: Nanos) -> WearState {
        let mut later = self.clone();
        later.advance(now);
        let (averages, seen) = (later.averages, later.seen);
        WearState { written: later.written, balance: later.balance_bytes(), seen, averages }
    }

    /// `bytes` were written to the device, for whatever reason.
    pub fn charge(&mut self, bytes: u64, now: Nanos) {
        self.advance(now);
        self.written = self.written.saturating_add(bytes);
        for average in &mut self.averages {
            *average += bytes as f64;
        }
        if let Some(endurance) = self.endurance {
            let cost = i128::from(bytes).saturating_mul(i128::from(endurance.life.0));
            self.credit = (self.credit.saturating_sub(cost)).max(-self.days(self.limits.debt_days));
        }
    }

    /// Whether a write that could be done without may be done now.
    pub fn admits(&mut self, what: WearUse, rank: WearRank, now: Nanos) -> bool {
        assert!(rank.place < rank.of, "{rank:?} is no rank");
        if self.endurance.is_none() || (what == WearUse::Dirty && rank.place == 0) {
            return true;
        }
        self.advance(now);
        let day = self.days(1);
        let (place, of) = (i128::from(rank.place), i128::from(rank.of));
        let floor = match what {
            WearUse::Copy => day * i128::from(self.limits.reserve_percent) * (place + 1) / of / 100,
            WearUse::Dirty => {
                let better = of - 1 - place;
                -(day * i128::from(self.limits.grace_percent) * better / (of - 1) / 100)
            }
        };
        self.credit > floor
    }

    /// The endurance, where there is one.
    #[must_use]
    pub fn endurance(&self) -> Option<Endurance> {
        self.endurance
    }

    /// Bytes ever written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that may be written now, negative when overdrawn; `None` without an endurance.
    #[must_use]
    pub fn balance(&self, now: Nanos) -> Option<i64> {
        self.endurance.map(|_| self.state(now).balance)
    }

    /// Bytes per day, averaged over each of [`WINDOWS`]; `None` where too little has been seen.
    #[must_use]
    pub fn daily_rates(&self, now: Nanos) -> [Option<f64>; WINDOWS.len()] {
        let state = self.state(now);
        core::array::from_fn(|index| {
            let window = WINDOWS[index].0 as f64;
            let seen = 1.0 - decayed(state.seen.0 as f64 / window);
            let per_day = DAY.0 as f64 / window;
            (seen >= SEEN_MIN).then(|| state.averages[index] * per_day / seen)
        })
    }

    /// Bytes that can still be written until the level is worn; `None` without an endurance.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        self.endurance.map(|known| known.bytes.saturating_sub(self.written))
    }

    /// Lets time pass; one that goes back does nothing.
    fn advance(&mut self, now: Nanos) {
        let passed = now.since(self.at);
        self.at = self.at.max(now);
        self.pass(passed);
    }

    fn pass(&mut self, passed: Nanos) {
        if passed == Nanos::ZERO {
            return;
        }
        self.seen = self.seen.saturating_add(passed);
        for (average, window) in self.averages.iter_mut().zip(WINDOWS) {
            *average *= decayed(passed.0 as f64 / window.0 as f64);
        }
        if let Some(endurance) = self.endurance {
            let earned = i128::from(endurance.bytes).saturating_mul(i128::from(passed.0));
            let full = self.days(self.limits.carry_days);
            self.credit = self.credit.saturating_add(earned).min(full);
        }
    }

    /// The budget of so many days, in units of credit.
    fn days(&self, days: u16) -> i128 {
        let bytes = self.endurance.map_or(0, |known| known.bytes);
        i128::from(bytes).saturating_mul(i128::from(DAY.0)).saturating_mul(i128::from(days))
    }

    fn balance_bytes(&self) -> i64 {
        let unit = self.endurance.map_or(1, |known| i128::from(known.life.0));
        let bytes = self.credit.div_euclid(unit);
        i64::try_from(bytes).unwrap_or(if bytes < 0 { i64::MIN } else { i64::MAX })
    }
}

/// e to the power of minus `turns`, to a part in two thousand for what matters here; the same on
/// every machine, since it only divides and multiplies.
fn decayed(turns: f64) -> f64 {
    let mut power = 1.0 / (1.0 + turns / f64::from(1u32 << SQUARINGS));
    for _ in 0..SQUARINGS {
        power *= power;
    }
    power
}

#[cfg(test)]
mod tests;
