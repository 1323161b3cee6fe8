//! Blocks that nobody has asked for yet: ahead of a reader in order, and what a home has at hand.
//!
//! How: both become fetches like a reader's, without one; a reader who comes meanwhile joins them,
//! a writer waits for them. What a home has at hand (it came along with what was asked) is kept
//! only in room that nobody uses, so that a cache fills faster and nothing makes way for it.
//! Invariant: fetches in flight that nobody asked for are bounded per volume; a class with a filter
//! has none, since what the filter refuses would be fetched for nothing.
//! Source: L3 cache paper section IV (pre-caching).
//! Cost: a look-up per block and level.

use crate::action::{Action, OpId};
use crate::cache::Cache;
use crate::level::Scope;
use crate::op::{Sought, Task};
use crate::read::Run;
use alloc::vec::Vec;
use core::ops::Range;
use layby_policy::Moment;
use layby_types::{BlockIndex, Slot, VolumeId};

/// Blocks of one fetch ahead at most: its end keeps everybody waiting who came meanwhile.
const AHEAD_BLOCKS_MAX: u32 = 64;
/// The same where somebody better may come.
const AHEAD_BLOCKS_STEPWISE: u32 = 16;
/// Blocks of all fetches ahead in flight per volume at most; a shorter one counts like a whole one.
const AHEAD_INFLIGHT_MAX: u32 = 4 * AHEAD_BLOCKS_MAX;
/// Fetches of what a home has at hand in flight per volume at most: they wait for no device, and
/// most are of one block.
const AT_HAND_INFLIGHT_MAX: u32 = 256;

impl Cache {
    /// Follows a reader, and fetches ahead of one who reads in order.
    pub(crate) fn read_ahead(&mut self, volume: u16, first: BlockIndex, count: u64) {
        let limits = self.spec.read_ahead;
        if limits.window_bytes_max == 0 || !self.admits_all(volume) {
            return;
        }
        let Some(top) = self.top_level(volume) else { return };
        let of_level = u64::from(self.levels[top].slots / 16);
        let window_max =
            u64::from(limits.window_bytes_max / self.spec.block_size.bytes()).min(of_level);
        let state = self.volumes.get_mut(volume);
        let window = state.read_ahead.on_read(first, count, limits.streak_min, window_max);
        let Some(window) = window else { return };
        self.fetch_absent(volume, window.first.0..window.first.0 + window.count, Sought::Ahead);
    }

    /// A home has blocks at hand: reading them now costs less than it ever will. They are read
    /// where read-ahead is on and the volume's top level has room that nobody uses.
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
        let room = self.top_level(volume).map_or(0, |top| self.room_unused(top, volume));
        let count = count.min(u64::from(room));
        core::mem::swap(&mut self.actions, actions);
        self.fetch_absent(volume, first.0..first.0.saturating_add(count), Sought::AtHand);
        core::mem::swap(&mut self.actions, actions);
    }

    /// Slots of a level that nobody holds and the volume may take.
    fn room_unused(&self, level: usize, volume: u16) -> u32 {
        let held = &self.levels[level];
        // What is on its way there has its place already.
        let coming = self.volumes.get(volume).at_hand_inflight;
        let unused = held.limit.saturating_sub(held.used + held.borrowed).saturating_sub(coming);
        if self.scope(level, volume) == Scope::Level { unused } else { 0 }
    }

    /// A slot for a block of a fetch; what was at hand makes nothing yield.
    pub(crate) fn room_for(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        level: usize,
    ) -> Option<Slot> {
        let op = self.ops.get(id.0);
        let Task::Fetch(fetch) = &op.task else { panic!("only a fetch is promoted") };
        let (volume, sought) = (op.volume, fetch.sought);
        if sought != Sought::AtHand {
            return self.allocate(moment, level, volume);
        }
        let class = self.volumes.get(volume).class;
        let is_open = self.scope(level, volume) == Scope::Level;
        is_open.then(|| self.levels[level].take_free(volume, class, false)).flatten()
    }

    /// Fetches what no level has of a range and nothing holds, in runs.
    fn fetch_absent(&mut self, volume: u16, blocks: Range<u64>, sought: Sought) {
        let end = blocks.end.min(self.volumes.get(volume).blocks);
        let mut run: Option<Run> = None;
        for block in blocks.start..end {
            let key = self.key(volume, BlockIndex(block));
            let absent = self.levels.iter().all(|level| level.find(volume, key).is_none());
            if absent && self.blocker(volume, key).is_none() {
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
        let most = match sought {
            Sought::AtHand => AT_HAND_INFLIGHT_MAX,
            _ => AHEAD_INFLIGHT_MAX / self.ahead_blocks_max(),
        };
        if run.is_none() {
            return;
        }
        let inflight = self.ahead_inflight(volume, sought);
        if *inflight < most {
            *inflight += 1;
            self.start_fetch(volume, run, sought);
        }
    }

    fn ahead_inflight(&mut self, volume: u16, sought: Sought) -> &mut u32 {
        let state = self.volumes.get_mut(volume);
        match sought {
            Sought::AtHand => &mut state.at_hand_inflight,
            _ => &mut state.ahead_inflight,
        }
    }

    /// A fetch has ended.
    pub(crate) fn count_ahead_out(&mut self, id: OpId) {
        let op = self.ops.get(id.0);
        let Task::Fetch(fetch) = &op.task else { return };
        if fetch.sought.is_ahead() {
            let (volume, sought) = (op.volume, fetch.sought);
            *self.ahead_inflight(volume, sought) -= 1;
        }
    }
}
