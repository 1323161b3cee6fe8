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

/// Digits behind the point of a time: a nanosecond of a day has fewer.
const FRACTION_DIGITS_MAX: usize = 18;

/// Reads a span such as `5s`, `1.5s`, `250ms`, `40us`, `2m` (or `2min`), `1h` or `30d`.
///
/// # Errors
/// A sentence that names the text and the accepted units.
pub fn parse_duration(text: &str) -> Result<Nanos, String> {
    let trimmed = text.trim();
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = trimmed.find(|c| !is_of_number(c)).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = if unit.trim() == "min" { "m" } else { unit.trim() };
    let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
    let whole_digits = number.find('.').unwrap_or(number.len());
    let (whole, fraction) = number.split_at(whole_digits);
    let nanos = scale.zip(fraction_nanos(fraction, scale.unwrap_or(0)));
    match (whole.parse::<u64>(), nanos) {
        (Ok(count), Some((scale, rest))) => {
            let nanos = count.checked_mul(scale).and_then(|nanos| nanos.checked_add(rest));
            nanos.map(Nanos).ok_or_else(|| {
                let mut message = text.to_string();
                message.push_str(" is too long a time");
                message
            })
        }
        _ => {
            let mut message = String::from("`");
            message.push_str(text);
            message.push_str(
                "` is not a time; write a number and d, h, m, s, ms, us or ns, such as `5s` or \
                 `1.5s`, to whole nanoseconds",
            );
            Err(message)
        }
    }
}

/// What `.25` is of a unit of `scale` nanoseconds; nothing for no fraction, and `None` where it is
/// no fraction or no whole number of nanoseconds.
fn fraction_nanos(fraction: &str, scale: u64) -> Option<u64> {
    let Some(digits) = fraction.strip_prefix('.') else {
        return fraction.is_empty().then_some(0);
    };
    if digits.is_empty() || digits.len() > FRACTION_DIGITS_MAX {
        return None;
    }
    let ten_to_digits = 10u128.pow(digits.len() as u32);
    let scaled = u128::from(digits.parse::<u64>().ok()?) * u128::from(scale);
    let is_whole = scaled.is_multiple_of(ten_to_digits);
    is_whole.then(|| u64::try_from(scaled / ten_to_digits).ok()).flatten()
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

    /// Goal: fractions and `min` are read to the nanosecond, and what is none of a whole number of
    /// nanoseconds is refused. Method: texts beside their nanoseconds; bad ones, too many digits
    /// among them.
    #[test]
    fn fractions_are_exact() {
        let cases = [
            ("1.5s", 1_500_000_000),
            ("0.5s", 500_000_000),
            ("1.5us", 1_500),
            ("2.000000001 s", 2_000_000_001),
            ("0.25d", 21_600_000_000_000),
            ("1.50ns00", 0),
            ("1min", 60_000_000_000),
            ("1.5min", 90_000_000_000),
            ("1.0ns", 1),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse_duration(text).ok(), (nanos > 0).then_some(Nanos(nanos)), "{text}");
        }
        let long = "0.00000000000000000000000000000000000000000000001s";
        for bad in ["1.5ns", ".5s", "1.s", "1..5s", "1.2.3s", "1,5s", "1e3s", "999999.5d", long] {
            assert!(parse_duration(bad).is_err(), "{bad} must be refused");
        }
        assert!(parse_duration("213503.9d").is_ok());
    }
}
