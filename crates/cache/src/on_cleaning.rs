//! A log's cleaner and the cache: which live blocks of a victim are copied, dropped or destaged.
//!
//! How: the host shows the live blocks of a victim. Of the coldest part of a level that is full,
//! clean blocks are dropped at once, and dirty ones are queued for a destage; when the backing
//! store has one durably it is dropped, if it is still cold. All others are copied.
//! Invariants: only a clean, settled block is dropped, and no volume or class falls to what is
//! reserved for it or sized. Each block that was answered [`Cleaned::Destaging`] ends once, with
//! [`Action::Free`] or [`Action::CleaningKept`]; the host may copy it earlier all the same.
//! Cost: an index look-up per block; at most [`DROPS_PENDING_MAX`] entries per level. Not for:
//! making room for a store; that is `room`.
//! Source: zDrop of Z-CacheLib, with a rank and a bound, and for dirty blocks.

use crate::action::Action;
use crate::background::Calm;
use crate::cache::Cache;
use crate::hash::FixedMap;
use crate::waiting::Trigger;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use layby_policy::cleaning::{Block, LevelState, Limits, Segments, Verdict, verdict};
use layby_policy::{Moment, Standing, mix};
use layby_types::planted::{Plant, is_planted};
use layby_types::{BlockKey, LevelIndex, Slot, VolumeId};

/// Blocks of one call at most.
pub const CLEANING_SLOTS_MAX: usize = 128;
/// Blocks of a level at most that cleaning has asked to be destaged, and that have not ended.
const DROPS_PENDING_MAX: u32 = 1024;

/// A part of a victim's live blocks.
#[derive(Clone, Copy, Debug)]
pub struct CleaningStep<'a> {
    /// The level that is cleaned.
    pub level: LevelIndex,
    /// The slots whose newest record lies in the victim, [`CLEANING_SLOTS_MAX`] at most.
    pub slots: &'a [Slot],
    /// The log's free segments.
    pub segments: Segments,
}

/// What became of a live block of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// The host copies it.
    Copy,
    /// It has left the level; [`Action::Free`] is among the actions.
    Dropped,
    /// It is being destaged, and may be dropped then: the host may leave its record in place until
    /// [`Action::Free`] or [`Action::CleaningKept`] of its slot.
    Destaging,
}

/// A dirty block that is to be dropped once it is destaged.
#[derive(Clone, Copy, Debug)]
struct PendingDrop {
    level: usize,
    slot: Slot,
    /// Its age when that was decided; a hit since makes it younger.
    age: u16,
}

/// The blocks that are dropped once they are destaged, and the limits of cleaning.
#[derive(Debug)]
pub(crate) struct PendingDrops {
    limits: Limits,
    blocks: FixedMap<BlockKey, PendingDrop>,
    /// By level, those whose destage has not been started by cleaning.
    queues: Vec<VecDeque<BlockKey>>,
}

impl PendingDrops {
    pub(crate) fn new(levels: usize) -> PendingDrops {
        let queues = (0..levels).map(|_| VecDeque::new()).collect();
        PendingDrops { limits: Limits::DEFAULT, blocks: FixedMap::default(), queues }
    }

    /// Whether no drop is pending: always so where no log is cleaned this way.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

impl Cache {
    /// How much of a level cleaning may drop from now on.
    pub fn set_cleaning(&mut self, limits: Limits) {
        assert!(limits.is_valid(), "{limits:?} are out of bounds");
        self.drops.limits = limits;
    }

    /// A log's cleaner has read live blocks of its victim: adds an answer to `answers` for each,
    /// in order. An answer is of the version that the slot holds now.
    pub fn on_cleaning(
        &mut self,
        moment: &mut Moment<'_>,
        step: &CleaningStep<'_>,
        answers: &mut Vec<Cleaned>,
        actions: &mut Vec<Action>,
    ) {
        let level = usize::from(step.level.0);
        assert!(step.slots.len() <= CLEANING_SLOTS_MAX, "a step is bounded");
        assert!(self.levels[level].kind.is_persistent(), "memory is not cleaned");
        core::mem::swap(&mut self.actions, actions);
        self.levels[level].refresh_ages();
        let dropped_before = self.counters[level].cleaning_dropped;
        for slot in step.slots {
            let answer = self.clean_slot(level, *slot, step.segments);
            answers.push(answer);
        }
        self.start_pending_drops(moment, level);
        if self.counters[level].cleaning_dropped > dropped_before {
            self.serve_waiting(moment, level, Trigger::Change);
        }
        core::mem::swap(&mut self.actions, actions);
    }

    fn clean_slot(&mut self, level: usize, slot: Slot, segments: Segments) -> Cleaned {
        let held = &self.levels[level];
        // What is being stored is not indexed yet, and what was freed since is no more.
        if slot.0 >= held.slots || !held.is_indexed(slot) {
            return Cleaned::Copy;
        }
        let (key, age) = (held.key(slot), held.age_of(slot));
        let queued = self.drops.queues[level].len();
        let is_over =
            held.drops_pending >= DROPS_PENDING_MAX || queued >= DROPS_PENDING_MAX as usize;
        if self.drops.blocks.get(&key).is_some_and(|it| it.slot == slot && it.level == level) {
            return Cleaned::Destaging;
        }
        match self.cleaning_verdict(level, slot, segments) {
            Verdict::Drop => {
                self.drop_cold(level, slot);
                Cleaned::Dropped
            }
            Verdict::Destage if !is_over && !self.drops.blocks.contains_key(&key) => {
                self.drops.blocks.insert(key, PendingDrop { level, slot, age });
                self.drops.queues[level].push_back(key);
                self.levels[level].drops_pending += 1;
                Cleaned::Destaging
            }
            Verdict::Destage | Verdict::Copy => Cleaned::Copy,
        }
    }

    fn cleaning_verdict(&self, level: usize, slot: Slot, segments: Segments) -> Verdict {
        let held = &self.levels[level];
        let key = held.key(slot);
        let volume = self.volumes.number(key.volume()).expect("a resident block has a volume");
        let standing = match held.standing_without(&self.volumes, level, (volume, slot)) {
            _ if is_planted(Plant::CleanDropsReserved) => Standing::AboveGuarantee,
            standing => standing,
        };
        let block = Block {
            is_settled: self.is_settled(volume, key) && !held.is_sick(slot),
            is_dirty: held.is_dirty(slot) && !is_planted(Plant::CleanDropsDirty),
            colder_percent: held.colder_percent(slot, mix(key.0) as u8),
            standing,
        };
        // What is lent goes before what is owned: to its owners lent room is free.
        let lent = if held.is_borrowed(slot) { held.borrowed } else { 0 };
        let slots_free = held.limit.saturating_sub(held.used + lent) + held.drops_pending;
        let state = LevelState { slots: held.limit, slots_free, segments };
        verdict(self.drops.limits, state, block)
    }

    /// Whether nothing is being done to the block, and its backing store has what is clean. Where
    /// the volume is written back, a clean record is durable below: a copy was kept, or a destage
    /// ended, no sooner, and a write past the levels finds no record of its block in one.
    fn is_settled(&self, volume: u16, key: BlockKey) -> bool {
        let state = self.volumes.get(volume);
        let calm = Calm { busy: &self.busy, destaging: &self.destaging, ranges: &self.ranges };
        let is_sound = state.fault.is_none() && state.told.is_none() && !state.is_stuck;
        let is_below = !self.writes_through(volume) || self.is_home_durable(volume, key.block());
        is_sound && calm.allows(key) && is_below
    }

    /// A cold block leaves as one that is evicted does: copies in lent room above go, too.
    fn drop_cold(&mut self, level: usize, slot: Slot) {
        let key = self.levels[level].key(slot);
        let volume = self.volumes.number(key.volume()).expect("a resident block has a volume");
        let is_reserved = self.is_reserved(volume, level, slot);
        self.counters[level].cleaning_reserved += u64::from(is_reserved);
        self.drop_copy(volume, level, slot, false);
        self.drop_lent(volume, level, key);
        self.counters[level].cleaning_dropped += 1;
    }

    /// Whether the volume or its class has no more than what is reserved for it.
    fn is_reserved(&self, volume: u16, level: usize, slot: Slot) -> bool {
        let (held, state) = (&self.levels[level], self.volumes.get(volume));
        let class_share = self.volumes.classes[state.class].shares[level].guaranteed;
        let share = state.shares[level].guaranteed;
        let is_within = |used: u32, share: u32| share > 0 && used <= share;
        !held.is_borrowed(slot)
            && (is_within(held.holding(volume).used, share)
                || is_within(held.class_used[state.class], class_share))
    }

    // ---- destages of cleaning ----

    /// Starts the destages that cleaning waits for, as many as may be in flight.
    pub(crate) fn start_pending_drops(&mut self, moment: &mut Moment<'_>, level: usize) {
        let queued = self.drops.queues[level].len();
        for _ in 0..queued {
            let Some(key) = self.drops.queues[level].pop_front() else { return };
            let Some(pending) = self.drops.blocks.get(&key).copied() else { continue };
            let is_cold = self.is_unused(key, pending) && self.levels[level].is_dirty(pending.slot);
            let is_going = is_cold && self.destaging.contains_key(&key);
            let may_start = is_cold && !is_going && self.may_destage(key);
            let volume = self.volumes.number(key.volume());
            if may_start && volume.is_some_and(|volume| !self.volumes.has_place(volume)) {
                // Others may lie on another device.
                self.drops.queues[level].push_back(key);
            } else if may_start && self.start_destage(moment, level, pending.slot) {
                self.drop_unsettled(level, pending.slot, key);
            } else if !is_going {
                self.end_pending_drop(key, None);
            }
        }
    }

    fn may_destage(&self, key: BlockKey) -> bool {
        let volume = self.volumes.number(key.volume());
        volume.is_some_and(|volume| self.is_settled(volume, key))
    }

    /// The fault of a cleaner that takes a destage for done when it is issued.
    fn drop_unsettled(&mut self, level: usize, slot: Slot, key: BlockKey) {
        if is_planted(Plant::CleanDropsBeforeSettled) {
            self.take_pending_drop(key);
            self.destaging.get_mut(&key).expect("it has just been issued").superseded = true;
            self.drop_cold(level, slot);
        }
    }

    /// A destage of the block from this place has ended well, or none has or will. A block that is
    /// in the backing store and still cold is dropped; otherwise the cleaner is told that it stays.
    pub(crate) fn end_pending_drop(&mut self, key: BlockKey, destaged: Option<(usize, Slot)>) {
        let Some(pending) = self.take_pending_drop(key) else { return };
        let PendingDrop { level, slot, .. } = pending;
        let is_destaged = destaged == Some((level, slot));
        self.counters[level].cleaning_destaged += u64::from(is_destaged);
        let held = &mut self.levels[level];
        let is_here = held.is_indexed(slot) && held.key(slot) == key;
        held.refresh_ages();
        // Its end needs no free segments.
        let segments = Segments { free: 0, kept: 0 };
        let may_leave = is_destaged && self.is_unused(key, pending);
        let is_void = is_here && is_planted(Plant::CleanVerdictStale);
        if is_void || may_leave && self.cleaning_verdict(level, slot, segments) == Verdict::Drop {
            self.drop_cold(level, slot);
        } else if is_here {
            self.actions.push(Action::CleaningKept { level: LevelIndex(level as u8), slot });
        }
    }

    /// Drops that have not ended.
    #[cfg(test)]
    pub(crate) fn pending_drops_count(&self) -> usize {
        let counted: u32 = self.levels.iter().map(|level| level.drops_pending).sum();
        assert_eq!(counted as usize, self.drops.blocks.len(), "levels count pending drops");
        self.drops.blocks.len()
    }

    /// Whether the block is where it was, and not used since its drop became pending.
    fn is_unused(&self, key: BlockKey, pending: PendingDrop) -> bool {
        let (held, slot) = (&self.levels[pending.level], pending.slot);
        held.is_indexed(slot) && held.key(slot) == key && held.age_of(slot) >= pending.age
    }

    fn take_pending_drop(&mut self, key: BlockKey) -> Option<PendingDrop> {
        let pending = self.drops.blocks.remove(&key)?;
        self.levels[pending.level].drops_pending -= 1;
        Some(pending)
    }

    /// The volume is removed, and its blocks are freed.
    pub(crate) fn forget_pending_drops(&mut self, volume: VolumeId) {
        let levels = &mut self.levels;
        self.drops.blocks.retain(|key, pending| {
            let is_kept = key.volume() != volume;
            levels[pending.level].drops_pending -= u32::from(!is_kept);
            is_kept
        });
    }
}
