//! Time as a number: nanoseconds since the owner's start, an argument wherever it is needed.

use alloc::string::{String, ToString};
use core::fmt;
use core::ops::{Add, Sub};

/// An instant or a span in nanoseconds. Instants count from an origin that their owner chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time at all; also the origin.
    pub const ZERO: Nanos = Nanos(0);
    /// The end of time: a deadline that never comes.
    pub const NEVER: Nanos = Nanos(u64::MAX);

    /// A span of whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Nanos(seconds * 1_000_000_000)
    }
    /// A span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Nanos(millis * 1_000_000)
    }
    /// A span of whole microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Nanos(micros * 1_000)
    }
    /// Whole seconds in this span, rounded down.
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }
    /// Seconds with their fraction, for display and metrics.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// The span from `earlier` to `self`, zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
    /// The sum, or [`Nanos::NEVER`] past the end of time.
    #[must_use]
    pub const fn saturating_add(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(span.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, span: Nanos) -> Nanos {
        Nanos(self.0 + span.0)
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, earlier: Nanos) -> Nanos {
        Nanos(self.0 - earlier.0)
    }
}

impl fmt::Display for Nanos {
    /// Writes the largest unit that keeps the number whole: `5s`, `250ms`, `40us`, `7ns`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, nanos) in UNITS {
            if self.0 >= nanos && self.0.is_multiple_of(nanos) {
                return write!(f, "{}{unit}", self.0 / nanos);
            }
        }
        write!(f, "{}ns", self.0)
    }
}

const UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Reads a span such as `5s`, `250ms`, `40us`, `2m`, `1h` or `30d`.
///
/// # Errors
/// A sentence that names the text and the accepted units.
pub fn parse_duration(text: &str) -> Result<Nanos, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let scale = UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, scale)| *scale);
    match (number.parse::<u64>(), scale) {
        (Ok(count), Some(scale)) => count.checked_mul(scale).map(Nanos).ok_or_else(|| {
            let mut message = text.to_string();
            message.push_str(" is too long a time");
            message
        }),
        _ => {
            let mut message = String::from("`");
            message.push_str(text);
            message.push_str(
                "` is not a time; write a whole number and d, h, m, s, ms, us or ns, such as `5s`",
            );
            Err(message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is printed can be read back. Method: one value per unit, and refused texts.
    #[test]
    fn durations_round_trip() {
        for text in ["5s", "250ms", "40us", "7ns", "2m", "1h", "1825d"] {
            assert_eq!(parse_duration(text).map(|t| t.to_string()).as_deref(), Ok(text));
        }
        for bad in ["", "5", "s", "5 parsecs", "99999999999999999999s", "-5s"] {
            assert!(parse_duration(bad).is_err(), "{bad} must be refused");
        }
    }
}
