//! Backing stores that do not answer: what is said of them, and what goes on beside them.
//!
//! How: the host says which. Nothing is destaged to such a backing store, and what it was given
//! does not count against the destages that may be in flight, so that other volumes' go on. Its
//! volume fares like one whose destaging fails: stores that wait for its blocks to leave end. That
//! blocks cannot be written back is reported once some are dirty.
//! Invariant: what it was given stays locked or dirty until it answers, so that a late write lands
//! under every newer version, never over one.
//! Cost: a flag per volume; a pass over what is in flight where the host asks which requests wait.

use crate::action::{Action, DestageFault, Event, OpId};
use crate::cache::{BACKING, Cache};
use crate::op::{DiscardPhase, Op, StorePhase, Task};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use layby_policy::Moment;
use layby_types::{BlockIndex, BlockKey, ErrorKind, LevelIndex, Nanos, RequestId, VolumeId};

/// Which places do not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StuckAt {
    /// Levels, a bit each.
    pub levels: u8,
    /// The volume's backing store.
    pub is_backing_stuck: bool,
    /// Nobody is to wait for what is being done to a block.
    pub is_busy_stuck: bool,
}

impl Cache {
    /// Why blocks of a volume could not be written back the last time, if they could not.
    #[must_use]
    pub fn destage_fault(&self, id: VolumeId) -> Option<DestageFault> {
        self.volumes.get(self.volumes.number(id)?).told.map(|(fault, _)| fault)
    }

    /// A volume's backing store does not answer, or does again. Unknown volumes are left out.
    pub fn set_stuck(
        &mut self,
        moment: &mut Moment<'_>,
        id: VolumeId,
        is_stuck: bool,
        actions: &mut Vec<Action>,
    ) {
        let Some(number) = self.volumes.number(id) else { return };
        let volume = self.volumes.get_mut(number);
        if core::mem::replace(&mut volume.is_stuck, is_stuck) == is_stuck {
            return;
        }
        core::mem::swap(&mut self.actions, actions);
        if is_stuck {
            volume.destage_not_before = Nanos::NEVER;
            volume.fault = Some(ErrorKind::Retry);
            let fault = DestageFault { level: None, kind: ErrorKind::Retry };
            volume.is_unreported = volume.told.replace((fault, moment.now)).is_none();
            self.move_places(number);
            self.volumes.has_faults = true;
            if self.levels.iter().any(|level| level.holding(number).dirty > 0) {
                self.report_unreported(number);
            }
            self.fail_waiting(moment, number, ErrorKind::Retry);
            self.fail_drains(number, ErrorKind::Retry);
        } else {
            volume.destage_not_before = moment.now;
            volume.fault = None;
            let is_unreported = core::mem::take(&mut volume.is_unreported);
            let was_told = volume.told.take().is_some() && !is_unreported;
            self.move_places(number);
            if was_told {
                self.actions.push(Action::Report(Event::DestageRecovered { volume: id }));
            }
        }
        let rests = self.volumes.iter().map(|(_, volume)| volume.destage_not_before);
        self.destage_not_before = rests.max().unwrap_or(Nanos::ZERO);
        self.pump(moment);
        core::mem::swap(&mut self.actions, actions);
    }

    /// Reports that a volume's blocks cannot be written back, once there are some.
    pub(crate) fn report_unreported(&mut self, number: u16) {
        let volume = self.volumes.get_mut(number);
        if let Some((fault, _)) = volume.told
            && core::mem::take(&mut volume.is_unreported)
        {
            self.actions.push(Action::Report(Event::DestageFailed { volume: volume.id, fault }));
        }
    }

    /// Whether a read of some bytes would wait for a place that is stuck.
    #[must_use]
    pub fn is_read_stuck(&self, id: VolumeId, (offset, length): (u64, u64), at: StuckAt) -> bool {
        let Some(number) = self.volumes.number(id) else { return false };
        let size = self.spec.block_size;
        let end = offset.saturating_add(length).div_ceil(u64::from(size.bytes()));
        (size.block_of(offset).0..end).any(|block| {
            let key = BlockKey::new(id, BlockIndex(block));
            if let Some(op) = self.busy.get(&key)
                && let Some(is_stuck) = self.is_joining_stuck(*op, at)
            {
                return is_stuck;
            }
            let level = self.levels.iter().position(|level| level.find(number, key).is_some());
            is_place_stuck(at, level)
        })
    }

    /// Requests that have work in flight, none of which these levels (a bit each) hold up: it is in
    /// other levels, or in the backing store. One that may wait for a level is not among them, nor
    /// is one of which nothing is in flight here.
    #[must_use]
    pub fn requests_beside(&self, levels: u8) -> BTreeSet<RequestId> {
        let (mut beside, mut waiting) = (BTreeSet::new(), BTreeSet::new());
        for (_, op) in self.ops.iter() {
            let requests = match may_wait(op, levels) {
                true => &mut waiting,
                false => &mut beside,
            };
            match &op.task {
                Task::Fetch(fetch) => requests.extend(fetch.readers.iter().map(|own| own.request)),
                Task::Store(store) => requests.extend([store.request]),
                Task::Discard(discard) => requests.extend([discard.request]),
                Task::Flush(flush) => requests.extend([flush.request]),
                Task::Evict(_) | Task::Destage(_) => {}
            }
            // They wait for what holds the block now.
            requests.extend(op.queue.iter().map(|piece| piece.request));
        }
        beside.retain(|request| !waiting.contains(request));
        beside
    }

    /// Whether a read would wait for a stuck place behind the operation that holds its block;
    /// `None` where it reads beside it.
    fn is_joining_stuck(&self, op: OpId, at: StuckAt) -> Option<bool> {
        let op = self.ops.get(op.0);
        let is_stuck = match &op.task {
            Task::Evict(evict) if self.levels[usize::from(evict.from.0.0)].kind.is_immediate() => {
                return None;
            }
            // What is being stored is found once it is.
            _ if at.is_busy_stuck => true,
            Task::Store(_) => false,
            // What waits already may wait for anything.
            _ if !op.queue.is_empty() => true,
            // Its bytes are here.
            Task::Fetch(fetch) if fetch.promotion.is_some() || fetch.waits_for.is_some() => false,
            Task::Fetch(fetch) => is_place_stuck(at, fetch.from.map(|level| usize::from(level.0))),
            _ => true,
        };
        Some(is_stuck)
    }
}

/// Whether what an operation does now may take one of these levels. What waits for room, or for a
/// record in the log, may wait for any.
fn may_wait(op: &Op, levels: u8) -> bool {
    let is_one = |level: LevelIndex| levels & (1 << level.0) != 0;
    match &op.task {
        Task::Fetch(fetch) => {
            let place = fetch.promotion.as_ref().map(|promotion| promotion.level);
            fetch.waits_for.is_some() || place.or(fetch.from).is_some_and(is_one)
        }
        Task::Store(store) => match store.phase {
            StorePhase::Reading { from } => from.is_some_and(is_one),
            StorePhase::Storing => store.level.is_some_and(is_one),
            StorePhase::Waiting | StorePhase::Burying | StorePhase::Finding => true,
        },
        Task::Evict(evict) => is_one(evict.from.0) || is_one(evict.to.0),
        Task::Destage(destage) => is_one(destage.level),
        Task::Discard(discard) => {
            !matches!(discard.phase, DiscardPhase::Zeroing | DiscardPhase::SyncingBacking)
        }
        Task::Flush(flush) => {
            let mut places = flush.stored.iter().map(|(place, _)| *place);
            places.any(|place| place != BACKING && is_one(LevelIndex(place as u8)))
        }
    }
}

/// Whether a level, or the backing store, is stuck.
fn is_place_stuck(at: StuckAt, level: Option<usize>) -> bool {
    level.map_or(at.is_backing_stuck, |level| at.levels & (1 << level) != 0)
}
