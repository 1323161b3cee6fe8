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

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Units that are read and never written: one letter is a power of 1024, as in coreutils, and two
/// are a power of 1000.
const UNITS_READ: [(&str, u64); 12] = [
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
    ("t", 1 << 40),
    ("g", 1 << 30),
    ("m", 1 << 20),
    ("k", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
];

/// Reads a size such as `64GiB`, `512KiB`, `1.5GiB`, `64G`, `4096B` or `4096`.
///
/// # Errors
/// [`ParseSizeError`] when the text is no number with a known unit, or no whole number of bytes, or
/// exceeds 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, ParseSizeError> {
    let trimmed = text.trim();
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let digits = trimmed.find(|c: char| !is_number(c)).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim();
    let scale = if unit.is_empty() {
        Some(1)
    } else {
        let mut units = UNITS.iter().chain(&UNITS_READ);
        units.find(|(name, _)| *name == unit).map(|(_, scale)| *scale)
    };
    scale.and_then(|scale| times(number, scale)).ok_or_else(|| ParseSizeError(text.to_string()))
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
        for bad in
            ["", "GiB", "1.5", "1.0001KiB", "1.", ".5G", "1.5.0G", "-1", "4 kb", "99999999999TiB"]
        {
            assert!(parse_bytes(bad).is_err(), "{bad} must be refused");
        }
    }
}
