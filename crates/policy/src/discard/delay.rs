//! How long freed ranges wait: a fixed time, or one that follows reuse and free space.
//!
//! How: reuse is the part of the bytes that writes cancelled, smoothed over rounds; the adaptive
//! delay lies between its bounds in proportion to reuse, and in proportion to how far free space is
//! between [`DelayLimits::FREE_LOW`] and [`DelayLimits::FREE_HIGH`].
//! Invariant: the delay is within its bounds, and the shortest where free space is low.
//! Cost: constant. Integers only, so that every machine computes the same.

use layby_types::Nanos;

/// How long ranges wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardDelay {
    /// This long.
    Fixed(Nanos),
    /// Long while much is written again and free space is plentiful, short where it is not.
    Adaptive {
        /// The shortest.
        min: Nanos,
        /// The longest.
        max: Nanos,
    },
}

impl DiscardDelay {
    /// The paper's: ext4 commits every five seconds.
    pub const DEFAULT: DiscardDelay = DiscardDelay::Fixed(DelayLimits::DELAY_DEFAULT);
    /// From a second to half a minute.
    pub const ADAPTIVE: DiscardDelay =
        DiscardDelay::Adaptive { min: Nanos::from_secs(1), max: Nanos::from_secs(30) };

    pub(super) fn check(self) {
        let (min, max) = match self {
            DiscardDelay::Fixed(delay) => (delay, delay),
            DiscardDelay::Adaptive { min, max } => (min, max),
        };
        assert!(min <= max, "the shortest delay exceeds the longest: {self:?}");
        assert!(min >= DelayLimits::DELAY_MIN && max <= DelayLimits::DELAY_MAX, "{self:?}");
    }
}

/// The bounds and steps of delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayLimits;

impl DelayLimits {
    /// The shortest delay: shorter ones are the mode immediate.
    pub const DELAY_MIN: Nanos = Nanos::from_millis(1);
    /// The longest.
    pub const DELAY_MAX: Nanos = Nanos::from_secs(3600);
    /// The paper's.
    pub const DELAY_DEFAULT: Nanos = Nanos::from_secs(5);
    /// Free space, in thousandths, at which an adaptive delay is the shortest: the device cleans.
    pub const FREE_LOW: u16 = 100;
    /// Free space, in thousandths, from which only reuse counts.
    pub const FREE_HIGH: u16 = 300;
    /// Reuse, in thousandths, before the first round.
    pub const REUSE_FIRST: u16 = 500;
    /// The weight of the latest round in reuse: one of this many.
    pub const REUSE_WEIGHT: u32 = 4;
}

/// The delay in force.
#[derive(Clone, Debug)]
pub(super) struct Delay {
    kind: DiscardDelay,
    /// Thousandths.
    free: u16,
    /// Thousandths.
    reuse: u16,
    cancelled_bytes: u64,
    sent_bytes: u64,
}

impl Delay {
    pub(super) fn new(kind: DiscardDelay) -> Self {
        let (free, reuse) = (1000, DelayLimits::REUSE_FIRST);
        Delay { kind, free, reuse, cancelled_bytes: 0, sent_bytes: 0 }
    }

    pub(super) fn set(&mut self, kind: DiscardDelay) {
        self.kind = kind;
    }

    pub(super) fn set_free(&mut self, permille: u16) {
        self.free = permille.min(1000);
    }

    pub(super) fn on_cancelled(&mut self, bytes: u64) {
        self.cancelled_bytes += bytes;
    }

    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
    }

    /// A round has ended: its reuse is reckoned in.
    pub(super) fn on_round(&mut self) {
        let (cancelled, sent) = (self.cancelled_bytes, self.sent_bytes);
        (self.cancelled_bytes, self.sent_bytes) = (0, 0);
        let Some(all) = cancelled.checked_add(sent).filter(|all| *all > 0) else { return };
        let latest = (u128::from(cancelled) * 1000 / u128::from(all)) as u32;
        let weight = DelayLimits::REUSE_WEIGHT;
        self.reuse = ((u32::from(self.reuse) * (weight - 1) + latest) / weight) as u16;
    }

    pub(super) fn now(&self) -> Nanos {
        let (min, max) = match self.kind {
            DiscardDelay::Fixed(delay) => return delay,
            DiscardDelay::Adaptive { min, max } => (min, max),
        };
        let (low, high) = (DelayLimits::FREE_LOW, DelayLimits::FREE_HIGH);
        let plenty = u64::from(self.free.clamp(low, high) - low) * 1000 / u64::from(high - low);
        let share = plenty * u64::from(self.reuse) / 1000;
        Nanos(min.0 + (u128::from(max.0 - min.0) * u128::from(share) / 1000) as u64)
    }
}
