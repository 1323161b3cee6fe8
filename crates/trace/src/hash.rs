//! One fixed hash of blocks, for sampling by place and for tables of blocks.
//!
//! How: the finisher of SplitMix64, a permutation of 64 bits; the same on every machine and in
//! every version, so that samples can be compared. Cost: two multiplications.
//! Not for: keys that somebody may choose in order to collide them and to whom that would matter.

use std::hash::{BuildHasherDefault, Hasher};

/// Mixes all bits of `value` into all bits of the result.
#[must_use]
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Hashes tables of blocks by [`mix`].
pub(crate) type BlockHasher = BuildHasherDefault<Mixer>;

/// See [`BlockHasher`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }
}
