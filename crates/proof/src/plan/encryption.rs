//! Which simulation runs have an encrypted SSD level.
//!
//! How: by the seed, beside all else that is drawn from it, so that every kind of run is met with
//! and without a cipher. The disk then holds cipher text, which its faults and power cuts meet.
//! Invariant: what happens in a run does not depend on it. Cost: a pass of AES over what the level
//! reads and writes. Not for: keys, which nobody loses here.

use super::{Disk, Life};
use layby_engine::io::{DATA_KEY_BYTES, SectorCipher};
use layby_types::Rng;
use std::sync::Arc;

/// One run in so many.
const ONE_IN: u64 = 4;

impl Life {
    /// What a disk is encrypted by, where it is.
    #[must_use]
    pub fn cipher(&self, disk: Disk) -> Option<Arc<SectorCipher>> {
        let mut rng = Rng::new(self.seed ^ 0xae5_0256);
        let is_encrypted = disk == Disk::Ssd && rng.chance(1, ONE_IN);
        is_encrypted.then(|| {
            let mut key = [0; DATA_KEY_BYTES];
            rng.fill(&mut key);
            Arc::new(SectorCipher::new(&key))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a quarter of the runs have an encrypted level, of each kind of run, and no run has two
    /// keys. Method: many seeds, twice.
    #[test]
    fn a_quarter_is_encrypted() {
        let mut counts = [[0; 2]; 4];
        for seed in 0..2000 {
            let life = Life::draw(seed);
            let [one, other] = [(); 2].map(|()| life.cipher(Disk::Ssd));
            assert!(life.cipher(Disk::Nvm).is_none() && life.cipher(Disk::Home(0)).is_none());
            counts[life.character as usize][usize::from(one.is_some())] += 1;
            let sealed = |cipher: Arc<SectorCipher>| {
                let mut bytes = [0; 16];
                cipher.encrypt(0, &[1; 16], &mut bytes);
                bytes
            };
            assert_eq!(one.map(sealed), other.map(sealed), "SEED={seed}");
        }
        for [plain, encrypted] in counts {
            assert!((plain / 5..plain / 2).contains(&encrypted), "{counts:?}");
        }
    }
}
