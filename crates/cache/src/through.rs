//! Volumes that write through: their home has every write before anybody is told that it is done.
//!
//! How: a write lets the persistent levels' copies go, makes durable that the log's records of its
//! blocks are dead where there may be any, and goes home; memory then holds what was written. A
//! coarse map says which blocks the log may know; what the home may still lose, see `unsynced`.
//! Invariant: such a volume is dirty nowhere; a record of it in a log is no newer than what its
//! home holds durably, and none is alive when its home is asked to hold something newer. So a
//! power cut leaves what the home kept, and no copy disagrees with it.
//! Cost: a sync of the log before a write near blocks that were kept there; 128 KiB of map per
//! volume at most.
//! Not for: homes that are slower than a level and need no order; those are written back.

use crate::action::Few;
use crate::cache::Cache;
use crate::spec::LevelKind;
use alloc::vec::Vec;
use core::ops::Range;
use layby_types::{BlockIndex, BlockKey, VolumeId};

/// Bits of the map of blocks that a log may know, for the length that the volume has at first.
const KEPT_BITS_MAX: u64 = 1 << 20;
/// The finest part that one bit stands for, as a power of two of blocks.
const KEPT_SHIFT_MIN: u32 = 4;

/// What is known of a volume that writes through.
#[derive(Debug)]
pub(crate) struct Through {
    kept: Kept,
}

/// Which blocks a log may have records of.
#[derive(Debug)]
struct Kept {
    shift: u32,
    words: Vec<u64>,
    /// Any block, whatever the map says.
    is_all: bool,
}

impl Through {
    pub(crate) fn new(blocks: u64) -> Through {
        let parts = |shift: &u32| blocks >> shift <= KEPT_BITS_MAX;
        let shift = (KEPT_SHIFT_MIN..u64::BITS).find(parts).unwrap_or(u64::BITS - 1);
        let kept = Kept { shift, words: Vec::new(), is_all: false };
        Through { kept }
    }
}

impl Kept {
    fn add(&mut self, blocks: &Range<u64>) {
        for bit in blocks.start >> self.shift..=(blocks.end - 1) >> self.shift {
            let word = usize::try_from(bit / 64).expect("a map is smaller than memory");
            if word >= self.words.len() {
                self.words.resize(word + 1, 0);
            }
            self.words[word] |= 1 << (bit % 64);
        }
    }

    fn touches(&self, blocks: &Range<u64>) -> bool {
        let bits = blocks.start >> self.shift..=(blocks.end - 1) >> self.shift;
        let is_set = |bit: u64| self.words.get((bit / 64) as usize).map(|w| w >> (bit % 64) & 1);
        let mut known = bits.take_while(|bit| bit / 64 < self.words.len() as u64);
        self.is_all || known.any(|bit| is_set(bit) == Some(1))
    }
}

impl Cache {
    pub(crate) fn writes_through(&self, volume: u16) -> bool {
        self.volumes.get(volume).through.is_some()
    }

    /// The levels that a volume may use, a bit each. One that writes through uses no NVM, whose
    /// records say nothing of what their home holds.
    pub(crate) fn levels_of(&self, volume: u16) -> u8 {
        let hidden = if self.writes_through(volume) { self.nvm_levels } else { 0 };
        self.volumes.class(volume).levels & !hidden
    }

    /// A persistent level is about to store a copy of a block.
    pub(crate) fn note_kept(&mut self, volume: u16, block: BlockIndex) {
        if let Some(through) = &mut self.volumes.get_mut(volume).through {
            through.kept.add(&(block.0..block.0 + 1));
        }
    }

    /// Before a volume that has this class now uses its levels: where one is persistent, records
    /// of an earlier life may lie there, and copies may go there by reads alone.
    pub(crate) fn expect_records(&mut self, volume: u16) {
        let Some(state) = self.volumes.find_mut(volume) else { return };
        let class = layby_types::ClassId(state.class as u8);
        state.logged |= self.spec.write_level(class).is_some();
    }

    /// Before anything is served, where a start could not make durable what it decided: a later one
    /// may find records of these blocks, of which [`Cache::restore`] was never given the newest, or
    /// repeat a tombstone. Writes of them that pass the levels have them buried first.
    pub fn expect_records_of(&mut self, id: VolumeId, blocks: &Range<u64>) {
        let state = self.volumes.number(id).and_then(|number| self.volumes.find_mut(number));
        let Some(state) = state.filter(|_| !blocks.is_empty()) else { return };
        state.logged = true;
        if let Some(through) = &mut state.through {
            // The map is as long as the volume, which may grow again.
            through.kept.is_all |= blocks.end > state.blocks;
            if !through.kept.is_all {
                through.kept.add(blocks);
            }
        }
    }

    /// Whether a log may have records of these blocks.
    pub(crate) fn may_be_logged(&self, volume: u16, blocks: &Range<u64>) -> bool {
        let state = self.volumes.get(volume);
        state.through.as_ref().map_or(state.logged, |through| through.kept.touches(blocks))
    }

    /// Lets go of the clean copies that persistent levels hold of these blocks, which are locked.
    pub(crate) fn drop_kept(&mut self, volume: u16, blocks: Range<u64>) {
        let levels: Few<usize> = self.persistent_levels().collect();
        for level in levels {
            let holding = self.levels[level].holding(volume);
            if holding.used + holding.borrowed == 0 {
                continue;
            }
            for block in blocks.clone() {
                let key = self.key(volume, BlockIndex(block));
                if let Some(slot) = self.levels[level].find(volume, key) {
                    assert!(!self.levels[level].is_dirty(slot), "{key:?} is dirty in a level");
                    self.drop_copy(volume, level, slot, false);
                }
            }
        }
    }

    /// What a failed write has left at home is the truth: copies above it may disagree.
    pub(crate) fn drop_volatile(&mut self, volume: u16, key: BlockKey) {
        for level in 0..self.levels.len() {
            let Some(copy) = self.levels[level].find(volume, key) else { continue };
            let held = &self.levels[level];
            if held.kind == LevelKind::Memory || held.is_borrowed(copy) {
                self.drop_copy(volume, level, copy, true);
            }
        }
    }
}
