//! Where data is: volumes, blocks, levels and slots, a newtype each.
//!
//! How: `BlockKey` packs a volume and a block into 64 bits, so that a table entry stays small.
//! Invariant: a key's parts always fit their bits; constructors assert it.
//! Cost: all conversions are a shift or an add.

use core::fmt;

/// A volume, unique within a node for the node's whole life; never reused after a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u32);

impl VolumeId {
    /// Bits that a volume takes of a [`BlockKey`].
    pub const BITS: u32 = 20;
    /// The highest volume that a key can name.
    pub const MAX: VolumeId = VolumeId((1 << Self::BITS) - 1);
}

/// A block of a volume, counted from zero in units of the node's block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIndex(pub u64);

impl BlockIndex {
    /// Bits that a block takes of a [`BlockKey`]: 64 PiB of 4 KiB blocks.
    pub const BITS: u32 = 44;
    /// The highest block that a key can name.
    pub const MAX: BlockIndex = BlockIndex((1 << Self::BITS) - 1);
}

/// One block of one volume, in 64 bits: the volume above, the block below.
///
/// Keys of one volume sort by block, so neighbours in a volume are neighbours in key order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub u64);

impl BlockKey {
    /// Packs `volume` and `block`. Panics when either exceeds its `MAX`: the catalog bounds both.
    #[must_use]
    pub const fn new(volume: VolumeId, block: BlockIndex) -> Self {
        assert!(volume.0 <= VolumeId::MAX.0 && block.0 <= BlockIndex::MAX.0);
        BlockKey(((volume.0 as u64) << BlockIndex::BITS) | block.0)
    }
    /// The volume of this key.
    #[must_use]
    pub const fn volume(self) -> VolumeId {
        VolumeId((self.0 >> BlockIndex::BITS) as u32)
    }
    /// The block of this key.
    #[must_use]
    pub const fn block(self) -> BlockIndex {
        BlockIndex(self.0 & BlockIndex::MAX.0)
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}:b{}", self.volume().0, self.block().0)
    }
}

/// The cache unit in bytes: a power of two from 4 KiB to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSize(u32);

impl BlockSize {
    /// The smallest block, 4 KiB.
    pub const MIN: BlockSize = BlockSize(4 << 10);
    /// The largest block, 64 KiB.
    pub const MAX: BlockSize = BlockSize(64 << 10);
    /// The block size of a node that says nothing, 4 KiB.
    pub const DEFAULT: BlockSize = BlockSize(4 << 10);

    /// A block size of `bytes`, or `None` when it is no power of two within `MIN..=MAX`.
    #[must_use]
    pub const fn new(bytes: u32) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= Self::MIN.0 && bytes <= Self::MAX.0 {
            Some(BlockSize(bytes))
        } else {
            None
        }
    }
    /// Bytes of a block.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.0
    }
    /// Bytes of a block as a length in memory.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block size is a length, not a container")]
    pub const fn len(self) -> usize {
        self.0 as usize
    }
    /// The block that holds byte `offset`.
    #[must_use]
    pub const fn block_of(self, offset: u64) -> BlockIndex {
        BlockIndex(offset >> self.0.trailing_zeros())
    }
    /// The first byte of `block`.
    #[must_use]
    pub const fn offset_of(self, block: BlockIndex) -> u64 {
        block.0 << self.0.trailing_zeros()
    }
    /// Blocks needed to hold `bytes`, rounded up.
    #[must_use]
    pub const fn blocks_in(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.0 as u64)
    }
}

/// A cache level's place in the configured order; 0 is the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LevelIndex(pub u8);

/// A place for one block in one level, as the cache counts it; the level's store maps it to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// A class of service, as an index into the node's list of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u8);

/// A shard: one pinned thread with its part of every level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardIndex(pub u8);

/// The age of a record within its shard; of two records for a block, the higher is the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a key gives back what went in, at the edges too. Method: corners of both ranges.
    #[test]
    fn key_round_trips() {
        for volume in [VolumeId(0), VolumeId(7), VolumeId::MAX] {
            for block in [BlockIndex(0), BlockIndex(9), BlockIndex::MAX] {
                let key = BlockKey::new(volume, block);
                assert_eq!((key.volume(), key.block()), (volume, block));
            }
        }
    }

    /// Goal: only the documented block sizes exist. Method: the neighbours of every limit.
    #[test]
    fn block_size_is_a_power_of_two_in_range() {
        assert!(BlockSize::new(2048).is_none() && BlockSize::new(128 << 10).is_none());
        assert!(BlockSize::new(5000).is_none());
        let size = BlockSize::new(8192).expect("8 KiB is in range");
        assert_eq!(size.block_of(8191), BlockIndex(0));
        assert_eq!(size.offset_of(BlockIndex(3)), 24_576);
        assert_eq!(size.blocks_in(8193), 2);
    }
}
