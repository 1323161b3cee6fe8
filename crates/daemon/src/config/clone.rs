//! What a volume is to be cloned from, as it is written: `VOLUME@SNAPSHOT` or `URL@SNAPSHOT`.
//!
//! How: split at the last `@`, since a snapshot's name has none. Invariant: what is read is written
//! the same. Cost: none. Not for: whether there is such a snapshot, which the store says.

use super::Name;
use super::values::written_as_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;
use std::str::FromStr;

/// A snapshot of a volume, wherever that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneSource {
    /// A volume of this node, or the place of one in a store.
    pub volume: String,
    /// The snapshot.
    pub snapshot: Name,
}

impl CloneSource {
    /// Whether the volume is named by its place rather than by its name here.
    #[must_use]
    pub fn is_url(&self) -> bool {
        self.volume.contains("://")
    }
}

impl FromStr for CloneSource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` names no snapshot; write VOLUME@SNAPSHOT or URL@SNAPSHOT");
        let (volume, snapshot) = text.rsplit_once('@').ok_or_else(wrong)?;
        let source = CloneSource { volume: volume.to_owned(), snapshot: snapshot.parse()? };
        match source.is_url() || source.volume.parse::<Name>().is_ok() {
            true => Ok(source),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for CloneSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.volume, self.snapshot)
    }
}

written_as_text!(CloneSource, "maps@monday");

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sources are read as written, and others are refused. Method: good and bad ones.
    #[test]
    fn sources_round_trip() {
        for good in ["maps@monday", "s3://bucket/a@b/maps@2026-11-22", "file:///srv/x@a"] {
            let source: CloneSource = good.parse().expect(good);
            assert_eq!(source.to_string(), good);
        }
        for bad in ["maps", "@monday", "maps@", "a/b@c", "s3://bucket/maps@mon day"] {
            assert!(bad.parse::<CloneSource>().is_err(), "{bad}");
        }
    }
}
