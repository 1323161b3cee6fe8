//! Hash tables with a fixed hasher, so that the same calls give the same run.
//!
//! How: a word is multiplied by an odd constant and folded, twice. Keys come from this node's own
//! counters and from block numbers, so that chosen collisions only slow the chooser's own volume.
//! Invariant: no seed, no state beyond the word. Cost: two multiplications.
//! Not for: keys that strangers choose freely.

use core::hash::{BuildHasherDefault, Hasher};

/// A map with the fixed hasher.
pub(super) type Map<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<Fold>>;
/// A set with the fixed hasher.
pub(super) type Set<K> = hashbrown::HashSet<K, BuildHasherDefault<Fold>>;

/// Multiplies and folds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        let wide = u128::from(self.0 ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        wide as u64 ^ (wide >> 64) as u64
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }
    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0.rotate_left(5) ^ value) * 0xa076_1d64_78bd_642f;
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }
}
