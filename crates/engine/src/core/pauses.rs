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

/// A gap that is no pause: a turn may be that long, and a busy machine run a thread that late.
pub(super) const PAUSE_MIN: Nanos = Nanos::from_secs(1);

/// When the shard is to run again at the latest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    runs_by: Nanos,
}

impl Pauses {
    pub(super) fn new() -> Self {
        Pauses { runs_by: Nanos::NEVER }
    }

    /// It runs: for how long it did not although it was to; zero where that is no pause.
    fn take_pause(&mut self, now: Nanos, min: Nanos) -> Nanos {
        let pause = now.since(std::mem::replace(&mut self.runs_by, now));
        if pause > min { pause } else { Nanos::ZERO }
    }

    fn sleep_until(&mut self, deadline: Nanos) {
        self.runs_by = self.runs_by.max(deadline);
    }
}

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

    /// The turn sleeps, for no longer than until `deadline`.
    pub fn sleep_until(&mut self, deadline: Nanos) {
        self.stuck.pauses.sleep_until(deadline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only what goes past the end of a sleep is a pause, and each counts once. Method: times
    /// by hand.
    #[test]
    fn a_pause_begins_where_a_sleep_was_to_end() {
        let (seconds, min) = (Nanos::from_secs, PAUSE_MIN);
        let mut pauses = Pauses::new();
        assert_eq!(pauses.take_pause(seconds(50), min), Nanos::ZERO, "the first turn");
        pauses.sleep_until(seconds(60));
        assert_eq!(pauses.take_pause(seconds(55), min), Nanos::ZERO, "woken");
        pauses.sleep_until(seconds(60));
        assert_eq!(pauses.take_pause(seconds(61), min), Nanos::ZERO, "a little late");
        pauses.sleep_until(seconds(62));
        assert_eq!(pauses.take_pause(seconds(98), min), seconds(36));
        assert_eq!(pauses.take_pause(seconds(98), min), Nanos::ZERO, "it counted");
        assert_eq!(pauses.take_pause(seconds(100), min), seconds(2), "while it ran");
        pauses.sleep_until(Nanos::ZERO);
        assert_eq!(pauses.take_pause(seconds(103), min), seconds(3), "it did not sleep");
        pauses.sleep_until(Nanos::NEVER);
        assert_eq!(pauses.take_pause(seconds(999), min), Nanos::ZERO, "nothing was due");
    }
}
