//! When reads may ask a store that fails: a few at a time, with rests between.
//!
//! How: a fault of a read's request begins a rest in which no read asks, an answer ends it. While
//! the store fails, a few requests are sent per rest, so that a read which comes soon finds out
//! that the store is back. What has to wait stands among the requests that rest after faults of
//! their own, whose rests grow.
//! Invariant: what waits is asked in the end, whatever else hangs; a store that answers is asked
//! without a bound.
//! Cost: none beside the rests. Not for: how long a client waits, see `wait`; nor other requests,
//! which are few.

use layby_types::{Nanos, Rng};

/// A rest, on average.
const REST: Nanos = Nanos::from_millis(50);
/// Requests of reads that are sent per rest while the store fails.
const SENT_MAX: u32 = 2;

/// See the file's header.
#[derive(Default)]
pub(super) struct Turns {
    /// The last request failed.
    fails: bool,
    /// No read asks before, while it does.
    until: Nanos,
    /// Requests sent since the last rest.
    sent: u32,
}

impl Turns {
    /// When a read's request may be sent that is to be sent at `now`; none if at once.
    pub(super) fn wait(&self, now: Nanos) -> Option<Nanos> {
        (self.fails && now < self.until).then_some(self.until)
    }

    /// A request is sent.
    pub(super) fn begin(&mut self, now: Nanos) {
        self.sent += 1;
        if self.sent >= SENT_MAX {
            (self.sent, self.until) = (0, now.saturating_add(REST));
        }
    }

    pub(super) fn on_answer(&mut self) {
        self.fails = false;
    }

    /// Faults of requests that were sent together are one.
    pub(super) fn on_fault(&mut self, now: Nanos, rng: &mut Rng) {
        if !self.fails || now >= self.until {
            let rest = Nanos(REST.0 / 2 + rng.below(REST.0));
            (self.fails, self.sent, self.until) = (true, 0, now.saturating_add(rest));
        }
    }
}
