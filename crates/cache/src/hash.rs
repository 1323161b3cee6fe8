//! The fixed hasher of every table here: same keys, same order, on every run.
//!
//! How: `mix` of the policy room. Not for keys that an adversary chooses to slow the node down:
//! volumes are bounded and blocks are few per bucket.

use core::hash::{BuildHasherDefault, Hasher};
pub(crate) use layby_policy::mix;

/// A map with the fixed hasher.
pub(crate) type FixedMap<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<FixedHasher>>;

/// See the file's header.
#[derive(Default)]
pub(crate) struct FixedHasher(u64);

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0 ^ u64::from(*byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.0 = mix(self.0 ^ u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }
}
