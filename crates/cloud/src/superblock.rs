//! The superblock: the one object of a volume that changes, and only on a condition.
//!
//! How: a line of JSON that people can read and a line with its CRC-32C. Whoever serves a volume
//! raises its epoch first; every later change names the version it replaces, so that a node that
//! lost the volume finds out before it changes anything.
//! Invariant: what it names is complete in the store before it names it.
//! Cost: a small put per advance. Not for: stores without conditions, where the version is only
//! compared before the put; see `store`.

use crate::codec::crc32c;
use crate::segment::SegmentName;
use serde::{Deserialize, Serialize};

/// Key of the superblock below the volume's prefix.
pub const SUPERBLOCK_KEY: &str = "superblock";
/// Version of the whole layout in the store.
pub(crate) const FORMAT: u32 = 1;

/// Which epoch wrote the segments from a number on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochStart {
    /// The session.
    pub epoch: u32,
    /// Its first segment.
    pub first: u64,
}

/// What a volume in the cloud is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superblock {
    /// Version of the layout.
    pub format: u32,
    /// The volume, in hexadecimal.
    pub volume: String,
    /// Its name at its node, for people.
    pub name: String,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Who serves it, in hexadecimal.
    pub node: String,
    /// The session that serves it.
    pub epoch: u32,
    /// Changes of this object, so that no two are alike.
    pub revision: u64,
    /// All segments up to this one are the volume.
    pub committed: u64,
    /// The newest checkpoint; segments behind it are to be replayed.
    pub checkpoint: Option<Checkpointed>,
    /// Who wrote the segments behind the checkpoint.
    pub epochs: Vec<EpochStart>,
}

/// A checkpoint that is complete in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpointed {
    /// The segment after which it was taken.
    pub number: u64,
    /// The session that wrote it.
    pub epoch: u32,
}

impl Checkpointed {
    /// Its key below the volume's prefix.
    #[must_use]
    pub fn key(&self) -> String {
        format!("checkpoints/{:016x}-{:08x}", self.number, self.epoch)
    }
}

impl Superblock {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_string(self).expect("its fields are plain");
        let crc = crc32c(text.as_bytes());
        text.push_str(&format!("\ncrc32c {crc:08x}\n"));
        text.into_bytes()
    }

    /// From bytes, or `None` where they are damaged or of a later layout.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (json, rest) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        if rest != format!("crc32c {:08x}\n", crc32c(json.as_bytes())) {
            return None;
        }
        serde_json::from_str(json).ok().filter(|block: &Superblock| block.format == FORMAT)
    }

    /// The segment of a number behind the checkpoint.
    #[must_use]
    pub fn segment(&self, number: u64) -> Option<SegmentName> {
        let start = self.epochs.iter().rev().find(|start| start.first <= number)?;
        Some(SegmentName { number, epoch: start.epoch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a superblock is read as written, and damage is seen. Method: round trip, each byte.
    #[test]
    fn superblocks_round_trip() {
        let block = Superblock {
            format: FORMAT,
            volume: "00".into(),
            name: "logs".into(),
            size_bytes: 1 << 30,
            block_bytes: 4096,
            node: "11".into(),
            epoch: 3,
            revision: 4,
            committed: 17,
            checkpoint: Some(Checkpointed { number: 10, epoch: 2 }),
            epochs: vec![EpochStart { epoch: 2, first: 1 }, EpochStart { epoch: 3, first: 15 }],
        };
        let bytes = block.encode();
        assert_eq!(Superblock::decode(&bytes).as_ref(), Some(&block));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(Superblock::decode(&bad), None, "byte {at}");
        }
        assert_eq!(block.segment(14), Some(SegmentName { number: 14, epoch: 2 }));
        assert_eq!(block.segment(15), Some(SegmentName { number: 15, epoch: 3 }));
    }
}
