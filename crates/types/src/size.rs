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
            "`{}` is not a size; write a whole number of bytes or one with KiB, MiB, GiB or TiB, \
             such as `64GiB` (also `64G`; `64GB` is 64 times 10^9 bytes)",
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

/// Reads a size such as `64GiB`, `512KiB`, `64G`, `4096B` or `4096`.
///
/// # Errors
/// [`ParseSizeError`] when the text is no whole number with a known unit, or exceeds 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, ParseSizeError> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim();
    let scale = if unit.is_empty() {
        Some(1)
    } else {
        let mut units = UNITS.iter().chain(&UNITS_READ);
        units.find(|(name, _)| *name == unit).map(|(_, scale)| *scale)
    };
    number
        .parse::<u64>()
        .ok()
        .zip(scale)
        .and_then(|(count, scale)| count.checked_mul(scale))
        .ok_or_else(|| ParseSizeError(text.to_string()))
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
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GiB", "1.5GiB", "-1", "4 kb", "99999999999TiB"] {
            assert!(parse_bytes(bad).is_err(), "{bad} must be refused");
        }
    }
}
