//! When destaging runs: red and green watermarks, and a calm period.
//!
//! How: destaging starts at red and ends at green; a level that saw no new dirty block for the
//! timeout is destaged to nothing. Invariant: between red and green the state keeps (hysteresis).
//! Cost: a few comparisons. Source: L3 cache paper, section IV (S_R, S_G, phi).

use layby_types::Nanos;

/// The limits of one gate, in slots and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLimits {
    /// Dirty slots at which destaging starts.
    pub red: u32,
    /// Dirty slots at which it ends; at most `red`.
    pub green: u32,
    /// Calm after which everything is destaged.
    pub idle_timeout: Nanos,
}

/// What the gate is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateInput {
    /// Dirty slots now, without those already on their way home.
    pub dirty: u32,
    /// When a block last became dirty.
    pub dirtied_last: Nanos,
    /// The time.
    pub now: Nanos,
}

/// Open while destaging should run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    pressed: bool,
}

impl Gate {
    /// Whether another destage should start now.
    pub fn is_open(&mut self, limits: &GateLimits, input: &GateInput) -> bool {
        if input.dirty >= limits.red.max(1) {
            self.pressed = true;
        } else if input.dirty <= limits.green {
            self.pressed = false;
        }
        input.dirty > 0 && (self.pressed || self.is_calm(limits, input))
    }

    fn is_calm(self, limits: &GateLimits, input: &GateInput) -> bool {
        input.now.since(input.dirtied_last) >= limits.idle_timeout
    }

    /// When the calm period will end if nothing more becomes dirty.
    #[must_use]
    pub fn deadline(limits: &GateLimits, input: &GateInput) -> Nanos {
        if input.dirty == 0 {
            return Nanos::NEVER;
        }
        input.dirtied_last.saturating_add(limits.idle_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: GateLimits = GateLimits { red: 70, green: 30, idle_timeout: Nanos::from_secs(5) };

    /// Goal: red 70, green 30: opens at 70, stays open to 30. Method: a rise and a fall.
    #[test]
    fn hysteresis_between_red_and_green() {
        let mut gate = Gate::default();
        let mut open = |dirty| {
            gate.is_open(&LIMITS, &GateInput { dirty, dirtied_last: Nanos(0), now: Nanos(1) })
        };
        assert!(!open(69));
        assert!(open(70) && open(31));
        assert!(!open(30) && !open(69));
        assert!(open(70));
    }

    /// Goal: destaging happens a timeout after the last dirty write even below red.
    /// Method: one dirty block, time just before and at the deadline.
    #[test]
    fn calm_opens_the_gate() {
        let mut gate = Gate::default();
        let at = |now| GateInput { dirty: 1, dirtied_last: Nanos::from_secs(1), now };
        assert!(!gate.is_open(&LIMITS, &at(Nanos::from_millis(5_999))));
        assert!(gate.is_open(&LIMITS, &at(Nanos::from_secs(6))));
        assert_eq!(Gate::deadline(&LIMITS, &at(Nanos::ZERO)), Nanos::from_secs(6));
    }
}
