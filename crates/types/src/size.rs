//! Sizes as people write them: `64GiB`, `512KiB`, `4096`.

use alloc::string::{String, ToString};
use core::fmt;

/// A number of bytes that prints and parses as a person would write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSizeError(String);

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a size; write a whole number of bytes, or a number with KiB, MiB, GiB or \
             TiB, such as `64GiB` or `1.5GiB` (also `64G`; `64GB` is 64 times 10^9 bytes)",
            self.0
        )
    }
}

impl core::error::Error for ParseSizeError {}

/// A text that is no number of bytes in a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseRateError(String);

impl fmt::Display for ParseRateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(f, "`{text}` is no rate; write bytes in a second, such as `10MiB/s`, or `80Mbit/s`")
    }
}

impl core::error::Error for ParseRateError {}

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Letters that stand before the unit; each is the next power of 1000 or 1024.
const PREFIXES: [&str; 5] = ["k", "m", "g", "t", "p"];

/// What a unit of bytes in lower case stands for: `g`, `gi` and `gib` are powers of 1024 (one
/// letter as in coreutils), `gb` is a power of 1000.
fn bytes_in(unit: &str) -> Option<u64> {
    let (prefix, base) = match unit {
        "" | "b" => return Some(1),
        _ if unit.ends_with("ib") => (unit.strip_suffix("ib")?, 1024),
        _ if unit.ends_with('i') => (unit.strip_suffix('i')?, 1024),
        _ if unit.ends_with('b') => (unit.strip_suffix('b')?, 1000),
        _ => (unit, 1024),
    };
    power(prefix, base)
}

/// What stands before the `bit` of a unit in lower case: `m` is a power of 1000, as links are sold.
fn bits_in(prefix: &str) -> Option<u64> {
    match prefix.strip_suffix('i') {
        Some(prefix) => power(prefix, 1024),
        None if prefix.is_empty() => Some(1),
        None => power(prefix, 1000),
    }
}

fn power(prefix: &str, base: u64) -> Option<u64> {
    let at = PREFIXES.iter().position(|known| *known == prefix)?;
    base.checked_pow(u32::try_from(at).ok()? + 1)
}

/// The number that a text begins with, and the rest in lower case.
fn parts(text: &str) -> (&str, String) {
    let trimmed = text.trim();
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let digits = trimmed.find(|c: char| !is_number(c)).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    (number, unit.trim().to_ascii_lowercase())
}

/// Reads a size such as `64GiB`, `64Gi`, `64G`, `1.5GiB`, `64GB`, `4096B` or `4096`, upper or lower
/// case alike.
///
/// # Errors
/// [`ParseSizeError`] when the text is no number with a known unit, or no whole number of bytes, or
/// exceeds 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, ParseSizeError> {
    let (number, unit) = parts(text);
    let bytes = bytes_in(&unit).and_then(|scale| times(number, scale));
    bytes.ok_or_else(|| ParseSizeError(text.to_string()))
}

/// Reads bytes in a second: a size, with or without `/s` (`100MiB/s`), or bits as links are sold
/// (`10Mbit/s`, `10Mbit`, `10Mbps`; powers of 1000).
///
/// # Errors
/// [`ParseRateError`] when the text is neither, or no whole number of bytes, or exceeds 64 bits.
pub fn parse_rate(text: &str) -> Result<u64, ParseRateError> {
    let (number, unit) = parts(text);
    let whole = unit.strip_suffix("/s").unwrap_or(&unit).trim_end();
    let rate = match whole.strip_suffix("bit").or_else(|| unit.strip_suffix("bps")) {
        Some(prefix) => bits_in(prefix)
            .and_then(|scale| times(number, scale))
            .filter(|bits| bits.is_multiple_of(8))
            .map(|bits| bits / 8),
        None => bytes_in(whole).and_then(|scale| times(number, scale)),
    };
    rate.ok_or_else(|| ParseRateError(text.to_string()))
}

/// A number with or without a decimal point, times `scale`, where that is whole.
fn times(number: &str, scale: u64) -> Option<u64> {
    let Some((whole, fraction)) = number.split_once('.') else {
        return number.parse::<u64>().ok()?.checked_mul(scale);
    };
    let places = u32::try_from(fraction.len()).ok()?;
    let (count, scale) = (whole.parse::<u64>().ok()?, u128::from(scale));
    let parts = u128::from(fraction.parse::<u64>().ok()?) * scale;
    let unit = 10u128.checked_pow(places)?;
    let bytes = u128::from(count) * scale + parts / unit;
    if parts.is_multiple_of(unit) { u64::try_from(bytes).ok() } else { None }
}

/// Writes a size exactly, with the largest unit that keeps it whole: `1536MiB`, never `1.5GiB`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) = UNITS
            .into_iter()
            .find(|(_, scale)| self.0 >= *scale && self.0.is_multiple_of(*scale))
            .unwrap_or(("B", 1));
        f.pad(&alloc::format!("{}{unit}", self.0 / scale))
    }
}

impl core::str::FromStr for ByteSize {
    type Err = ParseSizeError;
    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        parse_bytes(text).map(ByteSize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes survive a round trip and nonsense is refused. Method: each unit, and bad texts.
    #[test]
    fn sizes_round_trip() {
        for text in ["64GiB", "1536MiB", "4KiB", "7B", "2TiB"] {
            assert_eq!(parse_bytes(text).map(format_bytes).as_deref(), Ok(text));
        }
        assert_eq!(parse_bytes("4096"), Ok(4096));
        for (text, bytes) in
            [("1G", 1 << 30), ("1g", 1 << 30), ("2 K", 2048), ("1GB", 1_000_000_000)]
                .into_iter()
                .chain([("1.5GiB", 3 << 29), ("0.5 K", 512), ("2.50GB", 2_500_000_000)])
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for (text, bytes) in [
            ("64Mi", 64 << 20),
            ("64mib", 64 << 20),
            ("1P", 1 << 50),
            ("1PB", 1_000_000_000_000_000),
            ("4 kb", 4_000),
            ("7b", 7),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        let bad = ["", "GiB", "1.5", "1.0001KiB", "1.", ".5G", "1.5.0G", "-1", "4 kbit", "4 ki b"];
        for bad in bad.into_iter().chain(["99999999999TiB", "16384PiB", "4 i", "4 Bi", "4/s"]) {
            assert!(parse_bytes(bad).is_err(), "{bad} must be refused");
        }
    }

    /// Goal: rates are read as they are written, bytes and bits, and nonsense is refused. Method:
    /// each form, and bad texts.
    #[test]
    fn rates_are_read() {
        for (text, bytes) in [
            ("100MiB/s", 100 << 20),
            ("100MiB", 100 << 20),
            ("0", 0),
            ("1GB/s", 1_000_000_000),
            ("10Mbit", 1_250_000),
            ("10 Mbit/s", 1_250_000),
            ("2.4Gbps", 300_000_000),
            ("64kbit/s", 8_000),
            ("1Mibit/s", 131_072),
            ("800bit/s", 100),
        ] {
            assert_eq!(parse_rate(text), Ok(bytes), "{text}");
        }
        for bad in ["", "/s", "bit", "MiB/s", "9bit", "10MBbit", "10MiB/h", "1/s/s", "1bps/s"] {
            assert!(parse_rate(bad).is_err(), "{bad} must be refused");
        }
    }
}
