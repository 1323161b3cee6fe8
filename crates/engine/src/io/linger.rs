//! How long a thread looks for work before it sleeps.
//!
//! How: waking a sleeping processor costs more than most requests. Where the last wait was short,
//! the next one likely is, so the thread looks on for a bounded moment, as KVM's halt polling does.
//! A wait counts as short up to twice that moment, since one that was slept through is longer by
//! the waking itself; who looked in vain several times in a row rests from looking for a while.
//! Invariant: a thread without work sleeps; under a steady load that comes just too late, looking
//! takes less than a tenth of the time.
//! Not for: machines with one processor, where looking would keep the client from running.

use layby_types::Nanos;

/// The longest look; a client's turn-around over a local socket takes less.
pub(super) const LINGER_MAX: Nanos = Nanos::from_micros(80);
/// The longest wait after which the next one is looked through.
const SHORT_MAX: Nanos = Nanos::from_micros(160);
/// Looks in vain, one after the other, before a rest.
const VAIN_MAX: u8 = 8;
/// Waits of a rest.
const REST: u8 = 64;

/// See the file's header.
#[derive(Debug)]
pub(super) struct Linger {
    allowed: bool,
    was_short: bool,
    vain: u8,
    rest: u8,
}

impl Linger {
    /// For a thread on a machine with so many processors.
    pub(super) fn new(processors: usize) -> Self {
        Linger { allowed: processors > 1, was_short: false, vain: 0, rest: 0 }
    }

    /// How long to look before sleeping.
    pub(super) fn span(&self) -> Nanos {
        if self.allowed && self.was_short && self.rest == 0 { LINGER_MAX } else { Nanos::ZERO }
    }

    /// A wait took so long, looking and sleeping together.
    pub(super) fn on_waited(&mut self, span: Nanos) {
        let has_looked = self.span() > Nanos::ZERO;
        self.was_short = span <= SHORT_MAX;
        self.rest = self.rest.saturating_sub(1);
        self.vain = if has_looked && span > LINGER_MAX { self.vain + 1 } else { 0 };
        if self.vain == VAIN_MAX {
            (self.vain, self.rest) = (0, REST);
        }
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

    /// Goal: waits that were slept through lead back to looking; a load that always comes just too
    /// late costs little. Method: one wait of each kind; the time looked through of ten thousand.
    #[test]
    fn looking_comes_back_and_is_bounded() {
        let mut linger = Linger::new(2);
        linger.on_waited(Nanos::from_micros(120));
        assert_eq!(linger.span(), LINGER_MAX);
        let (late, mut looked) = (Nanos::from_micros(150), Nanos::ZERO);
        for _ in 0..10_000 {
            looked = looked + linger.span();
            linger.on_waited(late);
        }
        let part = looked.0 as f64 / (late.0 * 10_000) as f64;
        assert!(part < 0.1, "{part} of the time was looked through");
    }
}
