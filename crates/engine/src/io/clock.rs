//! The engine's clock: nanoseconds since an `Io` was made.
//!
//! How: the kernel's monotonic clock, read without entering the kernel.
//! Invariant: never runs backwards; every `Io` of a process counts from its own start.
//! Cost: about 20 ns.
//! Not for: dates, or the simulation.

use layby_types::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// A running clock.
#[derive(Debug)]
pub(super) struct Clock {
    origin: u64,
}

fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Clock {
    pub(super) fn start() -> Self {
        Clock { origin: monotonic() }
    }

    pub(super) fn now(&self) -> Nanos {
        Nanos(monotonic() - self.origin)
    }
}
