//! The times of a volume's thread: how long it sleeps, and what calls' waits leave out.
//!
//! How: a turn begins, may block in the journal's device, and says when it is next to run. A sleep
//! that ends late is a pause: the process was stopped, and all of the lateness is left out. Within
//! a turn a stop and a slow device look alike: of what exceeds the least pause, the excess is left
//! out, and the least pause counts.
//! Invariant: a turn counts as no longer than the least pause, and a wait ends after as many turns
//! as its limit has of these, however slow the device is.
//! Cost: a comparison per turn and sleep. Not for: what the waits are; see `volume::wait`.

use layby_types::Nanos;
use layby_types::pauses::Pauses;
use std::time::Duration;

/// How long a thread sleeps at most: so often what time alone changes is published.
pub(crate) const SLEEP_MAX: Nanos = Nanos::from_millis(250);

/// See the file's header.
pub(crate) struct TurnTimes {
    pauses: Pauses,
    began: Nanos,
    /// What is to be left out of the turn that has just ended.
    excess: Nanos,
}

impl TurnTimes {
    /// Those of a thread that has not run yet.
    pub(crate) fn new() -> TurnTimes {
        TurnTimes { pauses: Pauses::new(), began: Nanos::NEVER, excess: Nanos::ZERO }
    }

    /// The thread goes on after a sleep, or begins a turn, and it is `now`: how much of the time
    /// before is left out of waits.
    pub(crate) fn go_on(&mut self, now: Nanos, pause_min: Nanos) -> Nanos {
        self.began = now;
        let pause = self.pauses.take_pause(now, pause_min);
        pause.saturating_add(std::mem::take(&mut self.excess))
    }

    /// The turn that began last has ended, and it is `now`: how long the thread sleeps at most,
    /// where the next turn is due at `deadline`.
    pub(crate) fn wait_max(&mut self, now: Nanos, deadline: Nanos, pause_min: Nanos) -> Duration {
        self.excess = now.since(self.began).since(pause_min);
        let until = deadline.min(now.saturating_add(SLEEP_MAX)).max(now);
        self.pauses.sleep_until(until);
        Duration::from_nanos(until.since(now).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    const MIN: Nanos = Nanos::from_secs(1);

    /// A thread with a clock.
    struct Thread {
        times: TurnTimes,
        now: Nanos,
        left_out: Nanos,
    }

    impl Thread {
        fn new() -> Thread {
            let mut thread = Thread {
                times: TurnTimes::new(),
                now: Nanos::from_secs(50),
                left_out: Nanos::ZERO,
            };
            thread.go_on();
            assert_eq!(thread.left_out, Nanos::ZERO, "it has not run yet");
            thread
        }

        fn go_on(&mut self) {
            let left_out = self.times.go_on(self.now, MIN);
            self.left_out = self.left_out.saturating_add(left_out);
        }

        /// A turn of so long, then a sleep that ends so much later than it was to.
        fn turn(&mut self, blocks: Nanos, late: Nanos) {
            self.now = self.now.saturating_add(blocks);
            let sleep = self.times.wait_max(self.now, Nanos::NEVER, MIN);
            assert_eq!(sleep, Duration::from_millis(250));
            self.now = self.now.saturating_add(SLEEP_MAX).saturating_add(late);
            self.go_on();
            // The events that came begin the next turn.
            self.go_on();
        }
    }

    /// Goal: a stop is left out wherever it meets the thread: all of it in a sleep, all but the
    /// least pause in a turn, once; short turns and punctual sleeps leave nothing out. Method: a
    /// stop in each, among turns of random lengths below the least pause.
    #[test]
    fn a_stop_is_left_out_wherever_it_comes() {
        let stop = Nanos::from_secs(36);
        for (in_turn, in_sleep, expected) in [
            (Nanos::ZERO, stop, stop),
            (stop, Nanos::ZERO, stop.since(MIN)),
            (stop, stop, stop.saturating_add(stop).since(MIN)),
            (MIN, MIN, Nanos::ZERO),
        ] {
            for seed in 0..20 {
                let mut rng = Rng::new(seed);
                let mut short = || Nanos(rng.below(MIN.0));
                let mut thread = Thread::new();
                thread.turn(short(), short());
                assert_eq!(thread.left_out, Nanos::ZERO, "seed {seed}");
                thread.turn(in_turn, in_sleep);
                assert_eq!(thread.left_out, expected, "seed {seed}");
                thread.turn(short(), short());
                assert_eq!(thread.left_out, expected, "seed {seed}: it counts once");
            }
        }
    }

    /// Goal: a device that is slow in every turn makes no wait endless. Method: turns of an hour;
    /// what counts of each.
    #[test]
    fn a_slow_device_makes_no_wait_endless() {
        let mut thread = Thread::new();
        let start = thread.now;
        for turn in 1..=30 {
            thread.turn(Nanos::from_secs(3600), Nanos::ZERO);
            let counted = thread.now.since(start).since(thread.left_out);
            assert!(counted >= Nanos(MIN.0 * turn), "{counted:?} after {turn} turns");
        }
    }

    /// Goal: a thread sleeps until its next turn is due, at most for a time, and not where it is
    /// late. Method: deadlines by hand.
    #[test]
    fn a_sleep_ends_at_its_deadline() {
        let (now, mut times) = (Nanos::from_secs(9), TurnTimes::new());
        times.go_on(now, MIN);
        for (deadline, expected) in
            [(8_000, 0), (9_000, 0), (9_100, 100), (9_250, 250), (10_000, 250)]
        {
            let sleep = times.wait_max(now, Nanos::from_millis(deadline), MIN);
            assert_eq!(sleep, Duration::from_millis(expected), "{deadline} ms");
        }
    }
}
