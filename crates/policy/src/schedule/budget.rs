//! How much of lower ranks a device may hold at once.
//!
//! How: bytes and operations outstanding, together a factor between its bounds: halved when the
//! best rank missed its objective in a window, grown by a sixteenth of the range when it was met.
//! Invariant: always between the bounds. Cost: a comparison per operation.
//! Not for: the best rank, which nothing holds back.

use super::Load;
use layby_types::Nanos;

/// The bounds of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Outstanding bytes at least.
    pub bytes_min: u64,
    /// Outstanding bytes at most.
    pub bytes_max: u64,
    /// Outstanding operations at least.
    pub ios_min: u32,
    /// Outstanding operations at most.
    pub ios_max: u32,
}

impl BudgetLimits {
    /// From two pieces of the default quantum to what keeps a fast SSD busy.
    pub const DEFAULT: BudgetLimits =
        BudgetLimits { bytes_min: 128 << 10, bytes_max: 8 << 20, ios_min: 2, ios_max: 64 };
}

/// What a device holds without making anybody wait, by Little's law: an operation per channel, and
/// the bytes that its channels move while one operation takes its `latency`. A bandwidth of 0 is
/// no limit.
#[must_use]
pub fn unqueued(channels: u16, latency: Nanos, channel_bytes_per_second: u64) -> Load {
    let bytes_per_second = u128::from(channel_bytes_per_second) * u128::from(channels);
    let bytes = bytes_per_second * u128::from(latency.0) / 1_000_000_000;
    let bytes = match channel_bytes_per_second {
        0 => u64::MAX,
        _ => u64::try_from(bytes).unwrap_or(u64::MAX),
    };
    Load { ios: u32::from(channels), bytes }
}

/// Steps from the lower bound to the upper.
const STEPS: u64 = 16;

/// See the file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    limits: BudgetLimits,
    bytes: u64,
    ios: u32,
}

impl Budget {
    /// Starts at the upper bound: where nobody states an objective, nobody is held to less.
    #[must_use]
    pub fn new(limits: BudgetLimits) -> Self {
        assert!(limits.bytes_min <= limits.bytes_max && limits.ios_min <= limits.ios_max);
        assert!(limits.ios_min > 0, "a budget of no operation would stop the device");
        Budget { limits, bytes: limits.bytes_max, ios: limits.ios_max }
    }

    /// Starts at what a probe found that the device takes without queueing, within the bounds.
    #[must_use]
    pub fn with_start(limits: BudgetLimits, start: Load) -> Self {
        let mut budget = Budget::new(limits);
        budget.bytes = start.bytes.clamp(limits.bytes_min, limits.bytes_max);
        budget.ios = start.ios.clamp(limits.ios_min, limits.ios_max);
        budget
    }

    /// Outstanding bytes that are allowed now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Outstanding operations that are allowed now.
    #[must_use]
    pub fn ios(&self) -> u32 {
        self.ios
    }

    /// Whether an operation of `bytes` may join what is outstanding. One always may where nothing
    /// is, however long it is.
    #[must_use]
    pub fn admits(&self, outstanding: Load, bytes: u64) -> bool {
        outstanding.ios == 0
            || (outstanding.ios < self.ios && outstanding.bytes + bytes <= self.bytes)
    }

    /// A window ended in which the objective was missed: less by half.
    pub fn on_missed(&mut self) {
        self.bytes = (self.bytes / 2).max(self.limits.bytes_min);
        self.ios = (self.ios / 2).max(self.limits.ios_min);
    }

    /// A window ended in which it was met, or in which nobody asked for anything: a step more.
    pub fn on_met(&mut self) {
        let BudgetLimits { bytes_min, bytes_max, ios_min, ios_max } = self.limits;
        let step = ((bytes_max - bytes_min) / STEPS).max(1);
        self.bytes = (self.bytes + step).min(bytes_max);
        let step = ((ios_max - ios_min) / STEPS as u32).max(1);
        self.ios = (self.ios + step).min(ios_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: misses halve down to the lower bound, met windows grow back up to the upper one, and
    /// an empty device takes anything. Method: by hand.
    #[test]
    fn shrinks_by_half_and_grows_by_steps() {
        let limits = BudgetLimits::DEFAULT;
        let mut budget = Budget::new(limits);
        budget.on_missed();
        assert_eq!((budget.bytes(), budget.ios()), (limits.bytes_max / 2, limits.ios_max / 2));
        for _ in 0..20 {
            budget.on_missed();
        }
        assert_eq!((budget.bytes(), budget.ios()), (limits.bytes_min, limits.ios_min));
        assert!(budget.admits(Load { ios: 0, bytes: 0 }, u64::MAX));
        assert!(!budget.admits(Load { ios: 1, bytes: 1 }, limits.bytes_min));
        for _ in 0..STEPS + 6 {
            budget.on_met();
        }
        assert_eq!((budget.bytes(), budget.ios()), (limits.bytes_max, limits.ios_max));
    }

    /// Goal: a budget begins with what its device holds without a queue, within its bounds.
    /// Method: by hand, for an SSD, a disk with one arm, and a device of unlimited bandwidth.
    #[test]
    fn begins_with_what_the_device_holds() {
        let limits = BudgetLimits::DEFAULT;
        let ssd = unqueued(32, Nanos::from_micros(80), 100 << 20);
        assert_eq!(ssd, Load { ios: 32, bytes: 268_435 });
        let budget = Budget::with_start(limits, ssd);
        assert_eq!((budget.ios(), budget.bytes()), (32, 268_435));
        let disk = unqueued(1, Nanos::from_millis(8), 1 << 20);
        let budget = Budget::with_start(limits, disk);
        assert_eq!((budget.ios(), budget.bytes()), (limits.ios_min, limits.bytes_min));
        let fast = unqueued(1_000, Nanos(100), 0);
        let budget = Budget::with_start(limits, fast);
        assert_eq!((budget.ios(), budget.bytes()), (limits.ios_max, limits.bytes_max));
    }
}
