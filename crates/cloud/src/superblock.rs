//! The superblock: the one object of a volume that changes, and only on a condition.
//!
//! How: a line of JSON that people can read and a line with its CRC-32C. Whoever serves a volume
//! raises its epoch first; every later change names the version it replaces, so that a node that
//! lost the volume finds out before it changes anything.
//! Invariant: what it names is complete in the store before it names it.
//! Cost: a put of some hundred bytes per advance, and of as many more per snapshot.
//! Not for: stores without conditions, where the version is only compared before the put; see
//! `store`.

use crate::codec::{BLOCKS_MAX, NUMBER_END, crc32c, is_block_bytes};
use crate::segment::SegmentName;
use crate::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

/// Key of the superblock below the volume's prefix.
pub const SUPERBLOCK_KEY: &str = "superblock";
/// Version of the layout of a volume without snapshots.
pub(crate) const FORMAT: u32 = 1;
/// Version of the layout of a volume with snapshots, of a clone or of a deleted one: programs that
/// would delete what these keep must not serve it.
pub(crate) const FORMAT_SNAPSHOTS: u32 = 2;

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
    /// A number that this session drew: two copies of a node that claim the volume at once put
    /// superblocks that are alike but for this. None in those of earlier versions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub session: u64,
    /// Changes of this object, so that no two of a session are alike.
    pub revision: u64,
    /// All segments up to this one are the volume.
    pub committed: u64,
    /// The newest checkpoint; segments behind it are to be replayed.
    pub checkpoint: Option<Checkpointed>,
    /// Who wrote the segments behind the checkpoint.
    pub epochs: Vec<EpochStart>,
    /// Snapshots, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<Snapshot>,
    /// What the volume was cloned from, the first one's first; its checkpoint says so, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<Base>,
    /// Where the volume was deleted: nobody serves it, and its objects go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<Deleted>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// That a volume was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// When, in seconds since 1970.
    pub at_unix: u64,
    /// From when on its objects may go, by the clock of the node that deleted it; for people.
    pub until_unix: u64,
    /// Its objects go from now on: nobody takes the word back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removing: bool,
}

impl Deleted {
    /// Whether objects of the volume may be gone. Before there was a grace, both times were the
    /// same, and its objects went with the word.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.removing || self.until_unix <= self.at_unix
    }
}

/// A volume whose segments another one shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Its place in its store.
    pub url: String,
    /// The snapshot that keeps these segments.
    pub snapshot: String,
    /// The last segment that is its own; the first is behind the base before it.
    pub through: u64,
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

    /// The checkpoint that a key names.
    pub(crate) fn parse(key: &str) -> Option<Checkpointed> {
        let (number, epoch) = key.strip_prefix("checkpoints/")?.split_once('-')?;
        let number = u64::from_str_radix(number, 16).ok()?;
        let named = Checkpointed { number, epoch: u32::from_str_radix(epoch, 16).ok()? };
        (named.key() == key).then_some(named)
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
        let known = FORMAT..=FORMAT_SNAPSHOTS;
        let is_known = |block: &Superblock| known.contains(&block.format) && block.is_sane();
        serde_json::from_str(checked(bytes)?).ok().filter(is_known)
    }

    /// Whether these bytes are as they were put, of whatever layout.
    pub(crate) fn is_whole(bytes: &[u8]) -> bool {
        checked(bytes).is_some()
    }

    /// Whether these are numbers that a volume can have, and go on from.
    fn is_sane(&self) -> bool {
        let checkpoint = self.checkpoint.map_or(0, |checkpoint| checkpoint.number);
        let numbers = [self.committed, self.revision, checkpoint];
        let blocks = self.size_bytes.checked_div(self.block_bytes.into());
        is_block_bytes(self.block_bytes.into())
            && blocks.is_some_and(|blocks| blocks <= BLOCKS_MAX)
            && numbers.iter().all(|number| *number < NUMBER_END)
            && self.epoch < u32::MAX
    }

    /// The same of a volume that was deleted.
    #[must_use]
    pub fn marked_deleted(&self, deleted: Deleted) -> Superblock {
        let mut block = Superblock { deleted: Some(deleted), ..self.clone() };
        block.revision += 1;
        block.format = block.format_needed();
        block
    }

    /// The same of a volume that is not deleted any more.
    #[must_use]
    pub fn undeleted(&self) -> Superblock {
        let mut block = Superblock { deleted: None, ..self.clone() };
        block.revision += 1;
        block.format = block.format_needed();
        block
    }

    /// The version of the layout that what it names needs.
    pub(crate) fn format_needed(&self) -> u32 {
        let is_plain = self.snapshots.is_empty() && self.bases.is_empty() && self.deleted.is_none();
        if is_plain { FORMAT } else { FORMAT_SNAPSHOTS }
    }

    /// The segment of a number behind the checkpoint.
    #[must_use]
    pub fn segment(&self, number: u64) -> Option<SegmentName> {
        let start = self.epochs.iter().rev().find(|start| start.first <= number)?;
        Some(SegmentName { number, epoch: start.epoch })
    }
}

/// The JSON of a superblock whose checksum holds.
fn checked(bytes: &[u8]) -> Option<&str> {
    let (json, rest) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
    (rest == format!("crc32c {:08x}\n", crc32c(json.as_bytes()))).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Superblock {
        Superblock {
            format: FORMAT,
            volume: "00".into(),
            name: "logs".into(),
            size_bytes: 1 << 30,
            block_bytes: 4096,
            node: "11".into(),
            epoch: 3,
            session: 0,
            revision: 4,
            committed: 17,
            checkpoint: Some(Checkpointed { number: 10, epoch: 2 }),
            epochs: vec![EpochStart { epoch: 2, first: 1 }, EpochStart { epoch: 3, first: 15 }],
            snapshots: Vec::new(),
            bases: Vec::new(),
            deleted: None,
        }
    }

    /// Goal: a superblock is read as written, and damage is seen. Method: round trip, each byte.
    #[test]
    fn superblocks_round_trip() {
        let block = Superblock { session: 7, ..example() };
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

    /// Goal: numbers that no volume has are refused, whatever the checksum says. Method: one odd
    /// field after the other.
    #[test]
    fn absurd_superblocks_are_refused() {
        let absurd: [&dyn Fn(&mut Superblock); 7] = [
            &|block| block.block_bytes = 0,
            &|block| block.block_bytes = 1 << 31,
            &|block| block.size_bytes = u64::MAX,
            &|block| block.committed = u64::MAX,
            &|block| block.revision = u64::MAX,
            &|block| block.epoch = u32::MAX,
            &|block| block.checkpoint = Some(Checkpointed { number: u64::MAX, epoch: 1 }),
        ];
        for (number, make) in absurd.iter().enumerate() {
            let mut block = example();
            make(&mut block);
            assert_eq!(Superblock::decode(&block.encode()), None, "the one of number {number}");
        }
    }

    /// Goal: the bytes of a volume without snapshots are those of before there were any, and a
    /// volume with some is refused by programs that know none. Method: golden text; formats.
    #[test]
    fn snapshots_are_a_format_of_their_own() {
        let mut block = example();
        let golden = "{\"format\":1,\"volume\":\"00\",\"name\":\"logs\",\"size_bytes\":1073741824,\
            \"block_bytes\":4096,\"node\":\"11\",\"epoch\":3,\"revision\":4,\"committed\":17,\
            \"checkpoint\":{\"number\":10,\"epoch\":2},\"epochs\":[{\"epoch\":2,\"first\":1},\
            {\"epoch\":3,\"first\":15}]}\n";
        assert!(block.encode().starts_with(golden.as_bytes()), "{:?}", block.encode());
        assert_eq!(block.format_needed(), FORMAT);
        block.snapshots.push(Snapshot {
            name: "monday".into(),
            number: 16,
            epoch: 3,
            serial: 0,
            size_bytes: 1 << 30,
            created_unix: 1_800_000_000,
            clones: Vec::new(),
        });
        block.format = block.format_needed();
        assert_eq!(block.format, FORMAT_SNAPSHOTS);
        assert_eq!(Superblock::decode(&block.encode()), Some(block.clone()));
        block.format = FORMAT_SNAPSHOTS + 1;
        assert_eq!(Superblock::decode(&block.encode()), None, "a later layout");
    }

    /// Goal: the word of a deletion is written as ever where the removal has not begun, what
    /// earlier programs wrote is read, as of a removal that has begun, and the word taken back
    /// leaves what was. Method: golden text; both ways.
    #[test]
    fn a_deletion_is_a_word_with_two_times() {
        let block = example();
        let waits = Deleted { at_unix: 5, until_unix: 9, removing: false };
        let marked = block.marked_deleted(waits);
        let text = String::from_utf8(marked.encode()).expect("JSON");
        assert!(text.contains("\"deleted\":{\"at_unix\":5,\"until_unix\":9}}"), "{text}");
        assert_eq!(Superblock::decode(text.as_bytes()), Some(marked.clone()));
        assert!(!waits.has_begun() && Deleted { removing: true, ..waits }.has_begun());
        assert!(Deleted { until_unix: 5, ..waits }.has_begun(), "an earlier program's");
        let gone = block.marked_deleted(Deleted { removing: true, ..waits });
        let text = String::from_utf8(gone.encode()).expect("JSON");
        assert!(text.contains("\"until_unix\":9,\"removing\":true}}"), "{text}");
        let back = marked.undeleted();
        assert_eq!(back, Superblock { revision: block.revision + 2, ..block });
    }
}
