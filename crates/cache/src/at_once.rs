//! Reads of one block for a host where every action ends at once: a simulator that counts.
//!
//! How: what `on_request` and the ends of its actions come to when nothing else is in flight, in
//! one step and without naming the actions. It moves the same ranking and counters.
//! Invariant: afterwards the cache is as it would be had the actions been performed and ended.
//! Cost: a look-up, and for a missing block an eviction and an insertion.
//! Not for: hosts that move bytes or take time; and where more could happen than a look-up and a
//! promotion (read-ahead, lent room, kept reads, a watch, a full NVM level) it leaves the read to
//! `on_request`.

use crate::action::Action;
use crate::cache::Cache;
use crate::spec::LevelKind;
use alloc::vec::Vec;
use layby_policy::{Moment, Warmth};
use layby_types::{BlockIndex, BlockKey, LevelIndex, VolumeId};

/// What a read came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAtOnce {
    /// The level that had the block; `None`: the backing store.
    pub from: Option<LevelIndex>,
    /// The level that took a copy.
    pub to: Option<LevelIndex>,
}

impl Cache {
    /// Reads one block to its end; `None`, with nothing changed, where that takes `on_request`.
    ///
    /// `actions` receives what is freed, and background work that becomes due.
    pub fn read_at_once(
        &mut self,
        moment: &mut Moment<'_>,
        volume: VolumeId,
        block: BlockIndex,
        actions: &mut Vec<Action>,
    ) -> Option<ReadAtOnce> {
        let number = self.volumes.number(volume)?;
        let top = self.top_level(number);
        let state = self.volumes.get(number);
        let class = &self.volumes.classes[state.class];
        let is_simple = block.0 < state.blocks
            && self.spec.read_ahead.window_bytes_max == 0
            && !class.borrow
            && !class.keep_reads
            && state.watch.is_none()
            && state.through.is_none()
            && top.is_none_or(|top| self.levels[top].kind != LevelKind::Nvm);
        if !is_simple || !self.ops.is_empty() {
            return None;
        }
        core::mem::swap(&mut self.actions, actions);
        let key = BlockKey::new(volume, block);
        let read = match self.hit(moment, number, key, true) {
            Some((level, _)) => self.rise(moment, number, key, level, top),
            None => self.bring_in(moment, number, key, top),
        };
        core::mem::swap(&mut self.actions, actions);
        Some(read)
    }

    /// A level had the block: a copy goes into the class's memory, if it has some.
    fn rise(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        key: BlockKey,
        level: usize,
        top: Option<usize>,
    ) -> ReadAtOnce {
        let to = top.filter(|top| *top < level && self.copy_into(moment, volume, key, *top));
        if self.levels[level].kind == LevelKind::Ssd {
            self.pump(moment);
        }
        let index = |level| LevelIndex(level as u8);
        ReadAtOnce { from: Some(index(level)), to: to.map(index) }
    }

    /// No level had the block: it comes into the class's top level, if it may and there is room.
    fn bring_in(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        key: BlockKey,
        top: Option<usize>,
    ) -> ReadAtOnce {
        self.volumes.get_mut(volume).counters.misses += 1;
        self.backing.count_read(1, false);
        let to = top.filter(|_| self.admit(volume, key));
        let to = to.filter(|top| self.copy_into(moment, volume, key, *top));
        self.pump(moment);
        ReadAtOnce { from: None, to: to.map(|level| LevelIndex(level as u8)) }
    }

    /// A clean copy enters `level`; false where there is no room for it.
    fn copy_into(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        key: BlockKey,
        level: usize,
    ) -> bool {
        let Some(slot) = self.allocate(moment, level, volume) else { return false };
        if self.levels[level].kind.is_persistent() {
            // Between a store's beginning and its end.
            self.pump(moment);
        }
        self.levels[level].insert(moment, volume, slot, key, Warmth::Warm);
        self.counters[level].writes += 1;
        true
    }
}
