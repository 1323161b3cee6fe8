//! How long a thread looks for work before it sleeps.
//!
//! How: waking a sleeping processor costs more than most requests. Where the last wait was short,
//! the next one likely is, so the thread looks on for a bounded moment; a wait that outlasts the
//! moment ends that until a short one is seen again (as KVM's halt polling grows and shrinks).
//! Invariant: a thread without work sleeps; it looks for at most one [`LINGER_MAX`] in vain.
//! Not for: machines with one processor, where looking would keep the client from running.

use layby_types::Nanos;

/// The longest look; a client's turn-around over a local socket takes less.
pub(super) const LINGER_MAX: Nanos = Nanos::from_micros(50);

/// See the file's header.
#[derive(Debug)]
pub(super) struct Linger {
    allowed: bool,
    was_short: bool,
}

impl Linger {
    /// For a thread on a machine with so many processors.
    pub(super) fn new(processors: usize) -> Self {
        Linger { allowed: processors > 1, was_short: false }
    }

    /// How long to look before sleeping.
    pub(super) fn span(&self) -> Nanos {
        if self.allowed && self.was_short { LINGER_MAX } else { Nanos::ZERO }
    }

    /// A wait took so long, looking and sleeping together.
    pub(super) fn on_waited(&mut self, span: Nanos) {
        self.was_short = span <= LINGER_MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an idle thread looks in vain at most once, and one processor never looks. Method: a
    /// burst, a pause, a burst.
    #[test]
    fn only_short_waits_are_looked_through() {
        let mut linger = Linger::new(2);
        assert_eq!(linger.span(), Nanos::ZERO);
        linger.on_waited(Nanos::from_micros(20));
        assert_eq!(linger.span(), LINGER_MAX);
        linger.on_waited(Nanos::from_millis(3));
        assert_eq!(linger.span(), Nanos::ZERO, "a pause ends it");
        let mut single = Linger::new(1);
        single.on_waited(Nanos::from_micros(20));
        assert_eq!(single.span(), Nanos::ZERO);
    }
}
