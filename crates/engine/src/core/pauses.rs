//! Time in which the shard did not run counts for no limit of a device.
//!
//! How: a turn says until when it sleeps at most, and what time it is when it goes on. Where that
//! is later by more than [`PAUSE_MIN`], the process was stopped, or got no processor: what devices
//! owe, and the requests in flight, count as begun later by the whole gap. So their ages are those
//! they had before, and the ends that came meanwhile are taken before anything is judged.
//! Invariant: a device that stays silent is noticed after its limit of running time.
//! Cost: a comparison each time; a pass over what is in flight after a pause.
//! Not for: latencies and clients' limits, which tell the time that passed.

use super::Core;
use crate::io::Io;
use layby_types::Nanos;
use layby_types::pauses::PAUSE_MIN;

impl Core {
    /// Takes the time from `io` as a turn begins or goes on after its wait. What the shard did not
    /// run, although it was to, is left out of what devices owe.
    pub fn resume(&mut self, io: &mut dyn Io) {
        let now = io.now();
        let min = PAUSE_MIN.min(Nanos(self.stuck.limit().0 / 4));
        let pause = self.stuck.pauses.take_pause(now, min);
        self.set_now(now);
        if pause == Nanos::ZERO {
            return;
        }
        io.leave_out(pause);
        for request in self.requests.values_mut() {
            request.waits_since = request.waits_since.saturating_add(pause).min(now);
        }
    }

    /// Whether something has come to be that a turn answers or reports: no end of an operation will
    /// wake the shard for it.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        !(self.finished.is_empty() && self.drained.is_empty() && self.notices.is_empty())
    }

    /// The turn sleeps, for no longer than until `deadline`.
    pub fn sleep_until(&mut self, deadline: Nanos) {
        self.stuck.pauses.sleep_until(deadline);
    }
}
