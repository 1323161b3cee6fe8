//! Who is served next, and how much the others may ask of a device meanwhile.
//!
//! How: [`ReadyQueue`] orders what is ready to be served by rank, [`DeviceQueue`] orders what waits
//! for a device and holds all but the best rank to a [`Budget`], and an [`Objective`] says by which
//! the budget grows and shrinks whether the best rank has its latency.
//! Invariant: what one rank may put in front of a better one is a number of bytes that
//! [`ScheduleLimits`] names. Time is an argument; nothing here knows a clock or a device.
//! Cost: constant in flows and operations, linear in the ranks that are busy, a handful.
//! Source: deficit round robin (Shreedhar and Varghese, 1995); Linux's kyber (depth by measured
//! percentiles), io.latency (who misses a target throttles those below) and iocost (shares of what
//! a device can do). The budget's steps are AIMD as in TCP (Chiu and Jain, 1989).

mod budget;
mod device;
mod objective;
mod ready;

pub use budget::{Budget, BudgetLimits, unqueued};
pub use device::{DeviceQueue, Load};
pub use objective::{Objective, Verdict, WINDOW_MAX, WINDOW_MIN, WINDOW_REQUESTS, Windowed};
pub use ready::{Flow, Grant, ReadyQueue};

/// The rank of a class: 0 is served first. As the order of yielding, from the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u16);

impl Rank {
    /// Served before everything else, and never held back.
    pub const FIRST: Rank = Rank(0);
    /// Destaging, read-ahead, cleaning, promotion: below every class.
    pub const BACKGROUND: Rank = Rank(u16::MAX);
}

/// The bounds of serving by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleLimits {
    /// Bytes that lower ranks write before the better ones are looked at again, or four times as
    /// many that they read; requests of lower ranks are cut into pieces of at most this.
    pub quantum_bytes: u32,
    /// Bytes of requests in flight of one rank below the best, at most (and one more piece).
    pub inflight_bytes_max: u64,
    /// What devices hold of lower ranks.
    pub budget: BudgetLimits,
}

impl ScheduleLimits {
    /// The smallest quantum: a block.
    pub const QUANTUM_BYTES_MIN: u32 = 4 << 10;
    /// The largest quantum.
    pub const QUANTUM_BYTES_MAX: u32 = 4 << 20;
    /// A piece of this size, or a read of four times as much, takes some thirty microseconds.
    pub const QUANTUM_BYTES_DEFAULT: u32 = 16 << 10;
    /// The least that a rank may have in flight.
    pub const INFLIGHT_BYTES_MIN: u64 = 64 << 10;
    /// The most that a rank may have in flight.
    pub const INFLIGHT_BYTES_MAX: u64 = 1 << 30;
    /// Enough to keep several devices busy.
    pub const INFLIGHT_BYTES_DEFAULT: u64 = 16 << 20;
    /// The defaults.
    pub const DEFAULT: ScheduleLimits = ScheduleLimits {
        quantum_bytes: Self::QUANTUM_BYTES_DEFAULT,
        inflight_bytes_max: Self::INFLIGHT_BYTES_DEFAULT,
        budget: BudgetLimits::DEFAULT,
    };

    /// The same with a quantum of whole blocks: a piece of a block would have to be merged.
    #[must_use]
    pub const fn in_blocks(mut self, block_bytes: u32) -> Self {
        self.quantum_bytes = self.quantum_bytes.next_multiple_of(block_bytes);
        self
    }
}
