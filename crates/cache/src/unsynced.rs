//! What the backing stores may still lose at a power cut, by parts of a volume.
//!
//! How: what goes to a backing store without being durable there gets the store's count of writes
//! at that moment; a sync covers all counts up to its own. Levels keep no clean copy of what is not
//! covered, or a copy could be newer than what a power cut leaves below it.
//! Invariant: what counts as durable was covered by a sync, or was never written by this process
//! since the backing store was opened and synced.
//! Cost: 64 KiB of counts per volume at most; a look-up per block that a level is to keep.
//! Not for: destaged blocks, which are durable before their level lets them go.

use crate::cache::{BACKING, Cache};
use crate::hash::FixedMap;
use core::ops::Range;
use layby_types::{BlockIndex, VolumeId};

/// Blocks per count of unsynced writes, as a power of two.
const UNSYNCED_SHIFT: u32 = 6;
/// Counts at most; beyond, nothing counts as durable until the next flush.
const UNSYNCED_MAX: usize = 4096;

/// Which blocks the backing store may still lose.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    /// By part of the volume, the count of stores there when it was last written.
    last: FixedMap<u64, u64>,
    /// The count of stores up to which any block may have been written.
    anywhere: u64,
}

impl Unsynced {
    fn add(&mut self, blocks: &Range<u64>, stored: u64) {
        let parts = blocks.start >> UNSYNCED_SHIFT..=(blocks.end - 1) >> UNSYNCED_SHIFT;
        for part in parts {
            if self.last.len() >= UNSYNCED_MAX {
                self.last.clear();
                self.anywhere = stored;
                return;
            }
            self.last.insert(part, stored);
        }
    }

    fn is_durable(&self, block: u64, synced: u64) -> bool {
        let last = self.last.get(&(block >> UNSYNCED_SHIFT)).copied().unwrap_or_default();
        last.max(self.anywhere) <= synced
    }

    fn forget(&mut self, synced: u64) {
        self.last.retain(|_, stored| *stored > synced);
    }
}

impl Cache {
    /// The home has taken these blocks, or may have, and a power cut may take them away again.
    pub(crate) fn note_home(&mut self, volume: u16, blocks: &Range<u64>) {
        self.note_stored(volume, BACKING);
        let stored = self.stored[&u32::from(volume)][BACKING].0;
        self.volumes.get_mut(volume).unsynced.add(blocks, stored);
    }

    /// A sync of the home has covered all stores up to this count.
    pub(crate) fn note_home_synced(&mut self, volume: u16, stored: u64) {
        self.volumes.get_mut(volume).unsynced.forget(stored);
    }

    /// A backing store was opened that an earlier process may have written to without a sync: none
    /// of it counts as durable before one. Answers the count that a sync which begins from now on
    /// covers, for [`Cache::note_backing_synced`]; `None` for an unknown volume.
    pub fn expect_unsynced(&mut self, id: VolumeId) -> Option<u64> {
        let volume = self.volumes.number(id)?;
        self.note_stored(volume, BACKING);
        let stored = self.stored[&u32::from(volume)][BACKING].0;
        self.volumes.get_mut(volume).unsynced.anywhere = stored;
        Some(stored)
    }

    /// A sync of the host's own has covered a backing store up to this count.
    pub fn note_backing_synced(&mut self, id: VolumeId, stored: u64) {
        if let Some(volume) = self.volumes.number(id) {
            self.note_synced(volume, BACKING, stored);
        }
    }

    /// Whether what the backing store shows of a block survives a power cut.
    pub(crate) fn is_home_durable(&self, volume: u16, block: BlockIndex) -> bool {
        let epochs = self.stored.get(&u32::from(volume)).copied().unwrap_or_default();
        self.volumes.get(volume).unsynced.is_durable(block.0, epochs[BACKING].1)
    }
}
