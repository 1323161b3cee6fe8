//! Blocks that nobody has asked for yet: ahead of a reader in order, and what a home has at hand.
//!
//! How: both become fetches like a reader's, without one; a reader who comes meanwhile joins them,
//! a writer waits for them. What a home has at hand (it came along with what was asked) is kept
//! only in memory that nobody uses, so that a cache fills faster and nothing makes way for it;
//! the blocks that readers join for are kept like anything that was asked for.
//! What was read ahead of a reader is kept until it is read, in a bounded part of its level; see
//! `level/ahead.rs`.
//! Invariant: fetches in flight that nobody asked for are bounded per volume; a class with a filter
//! has none, since what the filter refuses would be fetched for nothing.
//! Source: L3 cache paper section IV (pre-caching).
//! Cost: a look-up per block and level.

use crate::action::{Action, Cause, OpId};
use crate::cache::Cache;
use crate::level::{AHEAD_PART, Scope};
use crate::op::{Reader, Sought, Task};
use crate::read::{PROMOTIONS_MAX, Run};
use crate::spec::LevelKind;
use alloc::vec::Vec;
use core::ops::Range;
use layby_policy::wear::WearUse;
use layby_policy::{Moment, Warmth};
use layby_types::{BlockIndex, BlockKey, Nanos, Slot, VolumeId};

/// Blocks of one fetch ahead at most: its end keeps everybody waiting who came meanwhile.
const AHEAD_BLOCKS_MAX: u32 = 64;
/// The same where somebody better may come.
const AHEAD_BLOCKS_STEPWISE: u32 = 16;
/// Blocks of all fetches ahead in flight per volume at most; a shorter one counts like a whole one.
const AHEAD_INFLIGHT_MAX: u32 = 4 * AHEAD_BLOCKS_MAX;
/// Blocks that a home has at hand and that are being read, per volume, at most; of one range, too.
const AT_HAND_BLOCKS_MAX: u32 = 1024;

impl Cache {
    /// Follows a reader, and fetches ahead of one who reads in order.
    pub(crate) fn read_ahead(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        first: BlockIndex,
        count: u64,
    ) {
        let limits = self.spec.read_ahead;
        if limits.window_bytes_max == 0 || !self.admits_all(volume) {
            return;
        }
        let Some(top) = self.top_level(volume) else { return };
        let window_max = u64::from(limits.window_bytes_max / self.spec.block_size.bytes())
            .min(self.window_room(volume, top));
        let state = self.volumes.get_mut(volume);
        let window = state.read_ahead.on_read(first, count, limits.streak_min, window_max);
        let Some(window) = window else { return };
        if !self.may_keep_ahead(moment.now, volume, top, window.count) {
            return;
        }
        self.fetch_absent(volume, window.first.0..window.first.0 + window.count, Sought::Ahead);
    }

    /// Whether so many blocks that are read ahead now would be kept: what is not is read twice.
    fn may_keep_ahead(&mut self, now: Nanos, volume: u16, top: usize, blocks: u64) -> bool {
        let is_written = self.levels[top].kind.is_persistent();
        // What was asked for is stored first, and may begin as much before these blocks come.
        let stored = 2 * (u64::from(self.promotions_inflight) + blocks);
        let is_behind = is_written && stored > u64::from(PROMOTIONS_MAX);
        !is_behind
            && self.may_yield_room(top, volume)
            && (!is_written || self.wear_allows(now, top, volume, WearUse::Copy))
    }

    /// Blocks that a window may have, so that those of all readers in order together fit into the
    /// part of the level that what is read ahead may hold until it is read.
    fn window_room(&self, volume: u16, top: usize) -> u64 {
        let (held, state) = (&self.levels[top], self.volumes.get(volume));
        let class_cap = self.volumes.classes[state.class].shares[top].cap;
        let room = held.limit.min(self.share(top, volume).cap).min(class_cap);
        let windows = u64::from(held.ahead_volumes().max(1)) * state.read_ahead.live().max(1);
        u64::from(room / AHEAD_PART) / windows
    }

    /// A home has blocks at hand: reading them now costs less than it ever will. They are read
    /// where read-ahead is on and the volume's top level is memory that nobody uses.
    pub fn on_at_hand(
        &mut self,
        volume: VolumeId,
        (first, count): (BlockIndex, u64),
        actions: &mut Vec<Action>,
    ) {
        let Some(volume) = self.volumes.number(volume) else { return };
        if self.spec.read_ahead.window_bytes_max == 0 || !self.admits_all(volume) {
            return;
        }
        if self.volumes.get(volume).at_hand_inflight >= self.at_hand_most(volume) {
            return;
        }
        core::mem::swap(&mut self.actions, actions);
        let blocks = first.0..first.0.saturating_add(count.min(AT_HAND_BLOCKS_MAX.into()));
        self.fetch_absent(volume, blocks, Sought::AtHand);
        core::mem::swap(&mut self.actions, actions);
    }

    /// Blocks that may be on their way since they are at hand: as many as have room in memory that
    /// nobody holds.
    fn at_hand_most(&self, volume: u16) -> u32 {
        let Some(top) = self.top_level(volume) else { return 0 };
        let held = &self.levels[top];
        if held.kind != LevelKind::Memory || self.scope(top, volume) != Scope::Level {
            return 0;
        }
        let unused = held.limit.saturating_sub(held.used + held.borrowed);
        unused.min(AT_HAND_BLOCKS_MAX)
    }

    /// A slot in memory for a block of a fetch; what was at hand makes nothing yield.
    pub(crate) fn room_for(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        level: usize,
    ) -> Option<Slot> {
        let volume = self.ops.get(id.0).volume;
        match self.sought(id) {
            Sought::AtHand => self.take_unused(level, volume, self.scope(level, volume)),
            _ => self.allocate(moment, level, volume),
        }
    }

    /// A fetched block enters a level: as read now where it was asked for, else as read ahead.
    pub(crate) fn insert_fetched(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        (level, slot): (usize, Slot),
        index: u32,
    ) {
        let (volume, first, _) = self.extent(id);
        let key = self.key(volume, BlockIndex(first.0 + u64::from(index)));
        let Task::Fetch(fetch) = &self.ops.get(id.0).task else { panic!("only a fetch is kept") };
        let is_asked = fetch.asked.contains(index) || self.is_read_above(volume, level, key);
        match fetch.sought {
            Sought::Ahead if !is_asked => {
                self.levels[level].insert_ahead(moment, volume, slot, key);
            }
            Sought::AtHand => self.levels[level].insert(moment, volume, slot, key, Warmth::Cold),
            _ => self.levels[level].insert(moment, volume, slot, key, Warmth::Warm),
        }
    }

    /// Whether a faster level has the block, and it was read there.
    fn is_read_above(&self, volume: u16, level: usize, key: BlockKey) -> bool {
        let mut above = self.levels[..level].iter();
        above.any(|above| above.find(volume, key).is_some_and(|slot| !above.is_ahead(slot)))
    }

    /// A block that was read ahead is read in a level: copies below count as read, too.
    pub(crate) fn settle_below(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        level: usize,
        key: BlockKey,
    ) {
        for below in &mut self.levels[level + 1..] {
            if let Some(slot) = below.find(volume, key) {
                below.settle_ahead(moment, volume, slot);
            }
        }
    }

    /// Fetches what no level has of a range and nothing holds, in runs, as far as it may.
    fn fetch_absent(&mut self, volume: u16, blocks: Range<u64>, sought: Sought) {
        let end = blocks.end.min(self.volumes.get(volume).blocks);
        let mut run: Option<Run> = None;
        for block in blocks.start..end {
            let key = self.key(volume, BlockIndex(block));
            let absent = self.levels.iter().all(|level| level.find(volume, key).is_none());
            if absent && self.blocker(volume, key).is_none() && !self.lost.overlaps(key, 1) {
                let run = run.get_or_insert_with(|| Run::empty(None, BlockIndex(block)));
                run.count += 1;
                if run.count < self.ahead_blocks_max() {
                    continue;
                }
            }
            self.start_ahead(volume, run.take(), sought);
        }
        self.start_ahead(volume, run, sought);
    }

    fn ahead_blocks_max(&self) -> u32 {
        if self.is_stepwise { AHEAD_BLOCKS_STEPWISE } else { AHEAD_BLOCKS_MAX }
    }

    fn start_ahead(&mut self, volume: u16, run: Option<Run>, sought: Sought) {
        let Some(mut run) = run else { return };
        let cost = if sought == Sought::AtHand {
            let left = self.at_hand_most(volume);
            run.count = run.count.min(left.saturating_sub(*self.ahead_inflight(volume, sought)));
            run.count
        } else {
            let most = AHEAD_INFLIGHT_MAX / self.ahead_blocks_max();
            u32::from(*self.ahead_inflight(volume, sought) < most)
        };
        if cost > 0 {
            *self.ahead_inflight(volume, sought) += cost;
            self.start_fetch(volume, Some(run), sought);
        }
    }

    fn ahead_inflight(&mut self, volume: u16, sought: Sought) -> &mut u32 {
        let state = self.volumes.get_mut(volume);
        match sought {
            Sought::AtHand => &mut state.at_hand_inflight,
            _ => &mut state.ahead_inflight,
        }
    }

    /// Why a fetch is made.
    pub(crate) fn sought(&self, id: OpId) -> Sought {
        let Task::Fetch(fetch) = &self.ops.get(id.0).task else { panic!("only a fetch is sought") };
        fetch.sought
    }

    /// What was at hand has come: what readers joined it for is kept as if it had been asked for.
    pub(crate) fn keep_joined(&mut self, moment: &mut Moment<'_>, id: OpId, readers: &[Reader]) {
        let (volume, first, count) = self.extent(id);
        self.backing.count_read(count, true);
        let Some(top) = self.top_level(volume).filter(|_| !readers.is_empty()) else { return };
        if self.levels[top].kind != LevelKind::Memory {
            return;
        }
        for index in readers.iter().map(|reader| reader.index) {
            let key = self.key(volume, BlockIndex(first.0 + u64::from(index)));
            if self.levels[top].find(volume, key).is_none()
                && let Some(slot) = self.allocate(moment, top, volume)
            {
                self.levels[top].insert(moment, volume, slot, key, Warmth::Warm);
                self.write_copy(id, top, index, slot, key, Cause::Promote);
            }
        }
    }

    /// A fetch has ended.
    pub(crate) fn count_ahead_out(&mut self, id: OpId) {
        let op = self.ops.get(id.0);
        let Task::Fetch(fetch) = &op.task else { return };
        let (volume, sought, blocks) = (op.volume, fetch.sought, op.count);
        if sought.is_ahead() {
            let cost = if sought == Sought::AtHand { blocks } else { 1 };
            *self.ahead_inflight(volume, sought) -= cost;
        }
    }
}
