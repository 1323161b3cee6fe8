//! Time in which a thread did not run although it was to: the process was stopped, or got no
//! processor.
//!
//! How: the thread says until when it sleeps at most, and what time it is when it goes on. Where
//! that is later by more than a bound, the whole gap is a pause.
//! Invariant: a gap counts once; waking early is no pause.
//! Cost: a comparison per wait. Not for: what passes of a sleep before its end.

use crate::Nanos;

/// A gap that is no pause: a turn may be that long, and a busy machine run a thread that late.
pub const PAUSE_MIN: Nanos = Nanos::from_secs(1);

/// When a thread is to run again at the latest.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    runs_by: Nanos,
}

impl Default for Pauses {
    fn default() -> Self {
        Pauses::new()
    }
}

impl Pauses {
    /// A thread that has not run yet: its first turn ends no pause.
    #[must_use]
    pub const fn new() -> Self {
        Pauses { runs_by: Nanos::NEVER }
    }

    /// The thread runs: for how long it did not although it was to; zero where that is no pause,
    /// since it is not above `min`.
    pub fn take_pause(&mut self, now: Nanos, min: Nanos) -> Nanos {
        let pause = now.since(core::mem::replace(&mut self.runs_by, now));
        if pause > min { pause } else { Nanos::ZERO }
    }

    /// The thread sleeps, for no longer than until `deadline`.
    pub fn sleep_until(&mut self, deadline: Nanos) {
        self.runs_by = self.runs_by.max(deadline);
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
