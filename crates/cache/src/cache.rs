//! The state machine's body: what it holds, how requests and operations begin and end.
//!
//! How: `on_request` cuts a call into pieces by block; pieces are answered at once, or join or
//! start an operation. `on_done` moves an operation on. Reading, writing, discarding,
//! making room and background work have a file each.
//! Invariant: a request's `parts` is the number of pieces and operations that still owe it an end.

use crate::action::{Action, Few, OpId};
use crate::admission::Filters;
use crate::backing::BackingCounters;
use crate::drains::Drain;
use crate::hash::FixedMap;
use crate::level::{Level, owner};
use crate::lost::LostBlocks;
use crate::on_cleaning::PendingDrops;
use crate::op::{DestageMark, Flush, Op, Piece, Sought, Task, Want};
use crate::slab::Slab;
use crate::spec::{CacheSpec, LEVELS_MAX, SpecError, VolumeSpec};
use crate::volumes::{VolumeCounters, Volumes};
use crate::waiting::{Trigger, Waiting};
use crate::worn::LevelWear;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use hashbrown::hash_map::Entry;
use layby_policy::{Group, Moment};
use layby_types::planted::{Plant, is_planted};
use layby_types::{
    BlockIndex, BlockKey, Call, ClassId, ErrorKind, LevelIndex, Nanos, Operation, RequestId, Slot,
    VolumeId,
};

/// The backing store's place behind the levels, where durability is counted.
pub(crate) const BACKING: usize = LEVELS_MAX;

/// A request that did not end at once.
#[derive(Debug)]
pub(crate) struct RequestState {
    pub(crate) parts: u32,
    pub(crate) error: Option<ErrorKind>,
}

/// A discard's hold on its range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangeLock {
    pub(crate) volume: u16,
    pub(crate) id: VolumeId,
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) op: OpId,
    /// Nothing else is in flight on the range, and nothing else may start.
    pub(crate) executing: bool,
}

/// What a removal does about blocks of a volume that its backing store does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDirty {
    /// It is refused.
    Refuse,
    /// They are thrown away.
    Discard,
}

/// Why a volume is not removed; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveError {
    /// There is no such volume.
    Unknown,
    /// Operations of it are in flight: it can be removed once they have ended.
    Busy,
    /// Blocks of it are dirty or lost: it can be removed once it was drained.
    Dirty,
    /// The host's: a sync of its backing store failed, so that nothing vouches for what it has.
    Unsynced,
    /// The host's: its backing store goes on refusing zeros where blocks were trimmed.
    Unzeroed,
}

/// A level's counters, in blocks unless a name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelCounters {
    /// Blocks read from here for clients.
    pub hits: u64,
    /// Blocks stored into slots: client writes, evictions from above, promotions.
    pub writes: u64,
    /// Blocks that left to make room, clean or moved down.
    pub evictions: u64,
    /// Blocks copied to the backing stores.
    pub destaged: u64,
    /// Blocks dropped instead of copied by the log's cleaner.
    pub cleaning_dropped: u64,
    /// Blocks destaged for the log's cleaner.
    pub cleaning_destaged: u64,
    /// Of those dropped, blocks out of what is reserved for their volume or class: none, ever.
    pub cleaning_reserved: u64,
}

/// A level's state at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelView {
    /// Slots of the level.
    pub slots: u32,
    /// Slots held by those entitled to them.
    pub used: u32,
    /// Slots lent.
    pub borrowed: u32,
    /// Dirty slots.
    pub dirty: u32,
    /// Upper bound of the time any block has been dirty.
    pub dirty_age: Nanos,
    /// Operations waiting for room.
    pub waiting: u32,
    /// Bytes of memory held for metadata.
    pub memory_bytes: usize,
    /// Of those, bytes of the index that no block uses.
    pub slack_bytes: usize,
    /// Counters since the start.
    pub counters: LevelCounters,
}

/// The eviction that started last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastEviction {
    pub(crate) op: OpId,
    /// Whence.
    pub(crate) place: (usize, Group),
    pub(crate) slot: Slot,
}

/// See the crate's header.
pub struct Cache {
    pub(crate) spec: CacheSpec,
    pub(crate) levels: Vec<Level>,
    pub(crate) counters: Vec<LevelCounters>,
    pub(crate) volumes: Volumes,
    pub(crate) filters: Filters,
    pub(crate) wear: Vec<Option<LevelWear>>,
    /// The NVM levels, a bit each.
    pub(crate) nvm_levels: u8,
    pub(crate) ops: Slab<Op>,
    pub(crate) requests: FixedMap<RequestId, RequestState>,
    /// Blocks locked by an operation.
    pub(crate) busy: FixedMap<BlockKey, OpId>,
    /// Ranges locked by discards, oldest first.
    pub(crate) ranges: Vec<RangeLock>,
    /// Blocks on their way home.
    pub(crate) destaging: FixedMap<BlockKey, DestageMark>,
    /// Blocks that cleaning has destaged in order to drop them.
    pub(crate) drops: PendingDrops,
    /// What waits for room, per level.
    pub(crate) waiting: Vec<Waiting>,
    /// Per level when stores that wait may be looked at again for whether they can be placed.
    pub(crate) hopeless_not_before: Vec<Nanos>,
    /// Per level when a clean block is sought next beyond the cold end; see `room`.
    pub(crate) clean_not_before: Vec<Nanos>,
    #[cfg(test)]
    pub(crate) effort: crate::tests::Effort,
    /// Stores that pass through and wait for a destage of their block.
    pub(crate) parked: Vec<OpId>,
    pub(crate) drains: Vec<Drain>,
    /// Blocks whose newest version is not known, and how many ranges of them there may be.
    pub(crate) lost: LostBlocks,
    pub(crate) lost_runs_max: usize,
    pub(crate) evictions_inflight: u32,
    /// Per level the group whose coldest blocks were all on their way home when one was wanted to
    /// leave: nothing changes until a destage ends.
    pub(crate) going_home: Vec<Option<Group>>,
    /// Per level the group of which no dirty block could be found that may leave, in the whole
    /// level: nothing changes until an operation of its volume ends.
    pub(crate) in_vain: Vec<Option<Group>>,
    /// While it is in flight: the search for what may leave goes on behind it.
    pub(crate) eviction_last: Option<LastEviction>,
    pub(crate) promotions_inflight: u32,
    /// Caps or classes changed, so that more may be held than is allowed: when that is looked at.
    pub(crate) caps_due: Nanos,
    /// When the last volume whose destaging rests after a failure may go on.
    pub(crate) destage_not_before: Nanos,
    /// No dirty block moves to another level before this, after one could not be stored there.
    pub(crate) evict_not_before: Nanos,
    /// Non-durable stores per volume and level, and how many of them a sync has covered.
    pub(crate) stored: FixedMap<u32, [(u64, u64); BACKING + 1]>,
    pub(crate) backing: BackingCounters,
    /// Somebody better may come while an operation ends.
    pub(crate) is_stepwise: bool,
    pub(crate) actions: Vec<Action>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`SpecError`] when the specification contradicts itself.
    pub fn new(spec: CacheSpec) -> Result<Cache, SpecError> {
        spec.validate()?;
        let classes = spec.classes.len();
        let build = |level| Level::new(level, classes);
        let mut filters = Filters::default();
        filters.adjust(&spec);
        Ok(Cache {
            levels: spec.levels.iter().map(build).collect(),
            counters: spec.levels.iter().map(|_| LevelCounters::default()).collect(),
            waiting: spec.levels.iter().map(|_| Waiting::default()).collect(),
            hopeless_not_before: vec![Nanos::ZERO; spec.levels.len()],
            clean_not_before: vec![Nanos::ZERO; spec.levels.len()],
            #[cfg(test)]
            effort: crate::tests::Effort::default(),
            volumes: Volumes::new(spec.classes.clone(), spec.writeback.inflight_max),
            filters,
            wear: spec.levels.iter().map(|_| None).collect(),
            nvm_levels: nvm_levels(&spec),
            ops: Slab::new(),
            requests: FixedMap::default(),
            busy: FixedMap::default(),
            ranges: Vec::new(),
            destaging: FixedMap::default(),
            drops: PendingDrops::new(spec.levels.len()),
            parked: Vec::new(),
            drains: Vec::new(),
            lost: LostBlocks::default(),
            lost_runs_max: usize::MAX,
            evictions_inflight: 0,
            going_home: spec.levels.iter().map(|_| None).collect(),
            in_vain: spec.levels.iter().map(|_| None).collect(),
            eviction_last: None,
            promotions_inflight: 0,
            caps_due: Nanos::NEVER,
            destage_not_before: Nanos::ZERO,
            evict_not_before: Nanos::ZERO,
            stored: FixedMap::default(),
            backing: BackingCounters::default(),
            is_stepwise: false,
            actions: Vec::new(),
            spec,
        })
    }

    /// A client's call. Reads, writes, flushes, trims, zeroings and cache hints; `BlockStatus` is
    /// the host's to answer (see [`Cache::is_dirty`]). The request's id must be new.
    pub fn on_request(
        &mut self,
        moment: &mut Moment<'_>,
        request: RequestId,
        volume: VolumeId,
        call: &Call,
        actions: &mut Vec<Action>,
    ) {
        let Some(volume) = self.volumes.number(volume) else {
            actions.push(Action::Complete { request, result: Err(ErrorKind::Closed) });
            return;
        };
        let length = self.volumes.get(volume).blocks * u64::from(self.spec.block_size.bytes());
        if call.offset.checked_add(call.length).is_none_or(|end| end > length) {
            actions.push(Action::Complete { request, result: Err(ErrorKind::Invalid) });
            return;
        }
        if let Some(kind) = self.lost_refusal(volume, call) {
            actions.push(Action::Complete { request, result: Err(kind) });
            return;
        }
        self.watch(moment, volume, call);
        core::mem::swap(&mut self.actions, actions);
        match call.operation {
            Operation::Read | Operation::Cache => self.read(moment, volume, request, call),
            Operation::Write => self.write(moment, volume, request, call),
            Operation::Flush => self.flush(volume, request),
            Operation::Trim | Operation::WriteZeroes => self.zero(moment, volume, request, call),
            Operation::BlockStatus => panic!("block status never reaches the cache"),
        }
        core::mem::swap(&mut self.actions, actions);
    }

    /// An action that named `op` ended.
    pub fn on_done(
        &mut self,
        moment: &mut Moment<'_>,
        op: OpId,
        result: Result<(), ErrorKind>,
        actions: &mut Vec<Action>,
    ) {
        core::mem::swap(&mut self.actions, actions);
        let state = self.ops.get_mut(op.0);
        assert!(state.outstanding > 0, "an action of {op:?} ended twice");
        state.outstanding -= 1;
        if let Err(kind) = result {
            // A block is unreadable for what its read says: the first error of all counts but where
            // that is one of a read, and something else has failed, too.
            let error = state.error.get_or_insert(kind);
            if *error == ErrorKind::Corrupt {
                *error = kind;
            }
        }
        if state.outstanding == 0 {
            let result = state.error.take().map_or(Ok(()), Err);
            self.advance(moment, op, result);
            self.pump(moment);
        }
        core::mem::swap(&mut self.actions, actions);
    }

    fn advance(&mut self, moment: &mut Moment<'_>, op: OpId, result: Result<(), ErrorKind>) {
        match self.ops.get(op.0).task {
            Task::Fetch(_) => self.on_fetched(moment, op, result),
            Task::Store(_) => self.on_stored(moment, op, result),
            Task::Evict(_) => self.on_evicted(moment, op, result),
            Task::Destage(_) => self.on_destaged(moment, op, result),
            Task::Discard(_) => self.on_discarded(moment, op, result),
            Task::Flush(_) => self.on_flushed(op, result),
        }
    }

    /// Time passed: background work may be due.
    pub fn on_tick(&mut self, moment: &mut Moment<'_>, actions: &mut Vec<Action>) {
        core::mem::swap(&mut self.actions, actions);
        self.pump_for(moment, Trigger::Timer);
        core::mem::swap(&mut self.actions, actions);
    }

    /// Adds a volume.
    ///
    /// # Errors
    /// `Invalid` when it exists, its class does not, or it has more blocks than a key can name;
    /// `Full` past [`crate::VOLUMES_MAX`].
    pub fn add_volume(&mut self, spec: &VolumeSpec) -> Result<(), ErrorKind> {
        if usize::from(spec.class.0) >= self.volumes.classes.len() {
            return Err(ErrorKind::Invalid);
        }
        let blocks = self.spec.block_size.blocks_in(spec.length);
        let number = self.volumes.add(spec, blocks)?;
        self.expect_records(number);
        Ok(())
    }

    /// Changes a volume's class, shares and length. Before a volume shrinks, the host zeroes what
    /// it loses.
    ///
    /// # Errors
    /// `Closed` for an unknown volume, `Invalid` for an unknown class, for more blocks than a key
    /// can name, or where it would begin or cease to write through.
    pub fn set_volume(&mut self, spec: &VolumeSpec) -> Result<(), ErrorKind> {
        let volume = self.volumes.number(spec.id).ok_or(ErrorKind::Closed)?;
        let class = usize::from(spec.class.0);
        let is_known = class < self.volumes.classes.len();
        let blocks = self.spec.block_size.blocks_in(spec.length);
        let is_too_long = blocks > crate::volumes::BLOCKS_MAX;
        if !is_known || is_too_long || spec.write_through != self.writes_through(volume) {
            return Err(ErrorKind::Invalid);
        }
        let state = self.volumes.get_mut(volume);
        let class_old = core::mem::replace(&mut state.class, class);
        (state.length, state.blocks) = (spec.length, blocks);
        state.shares = spec.shares;
        self.cut_lost(spec.id, blocks);
        for level in &mut self.levels {
            let used = level.holding(volume).used;
            level.class_used[class_old] -= used;
            level.class_used[class] += used;
        }
        self.expect_records(volume);
        self.caps_due = Nanos::ZERO;
        Ok(())
    }

    /// Blocks of a volume, zero for an unknown one.
    #[must_use]
    pub fn blocks_of(&self, volume: VolumeId) -> u64 {
        self.volumes.number(volume).map_or(0, |number| self.volumes.get(number).blocks)
    }

    /// Bytes of a volume, zero for an unknown one; its last block may be partial.
    #[must_use]
    pub fn length_of(&self, volume: VolumeId) -> u64 {
        self.volumes.number(volume).map_or(0, |number| self.volumes.get(number).length)
    }

    /// The class of a volume, `None` for an unknown one.
    #[must_use]
    pub fn class_of(&self, volume: VolumeId) -> Option<ClassId> {
        let number = self.volumes.number(volume)?;
        Some(ClassId(self.volumes.get(number).class as u8))
    }

    /// Whether no request, operation or dirty block of the volume is left.
    #[must_use]
    pub fn is_idle(&self, volume: VolumeId) -> bool {
        let Some(number) = self.volumes.number(volume) else { return true };
        !self.ops.iter().any(|(_, op)| op.volume == number)
    }

    /// Whether the backing store has all of the volume: no block of it is dirty or lost, and no
    /// operation in flight, or waiting behind one, changes it.
    #[must_use]
    pub fn is_clean(&self, volume: VolumeId) -> bool {
        let Some(number) = self.volumes.number(volume) else { return true };
        let is_dirty = self.levels.iter().any(|level| level.holding(number).dirty > 0);
        let mut ops = self.ops.iter().filter(|(_, op)| op.volume == number);
        let is_lost = self.lost.of_volume(volume).next().is_some();
        !is_dirty && !is_lost && !ops.any(|(_, op)| op.changes())
    }

    /// Whether a volume could be forgotten now.
    ///
    /// # Errors
    /// As [`Cache::remove_volume`].
    pub fn check_removable(&self, id: VolumeId, on_dirty: OnDirty) -> Result<(), RemoveError> {
        self.volumes.number(id).ok_or(RemoveError::Unknown)?;
        if !self.is_idle(id) {
            return Err(RemoveError::Busy);
        }
        let keeps = on_dirty == OnDirty::Refuse && !is_planted(Plant::RemovalEarly);
        if keeps && !self.is_clean(id) {
            return Err(RemoveError::Dirty);
        }
        Ok(())
    }

    /// Forgets an idle volume with all its blocks. A drain that has ended says nothing of what was
    /// stored behind it: only here is it known that no block is dirty and none can become so.
    ///
    /// # Errors
    /// [`RemoveError`]; the volume is as it was.
    pub fn remove_volume(
        &mut self,
        id: VolumeId,
        on_dirty: OnDirty,
        actions: &mut Vec<Action>,
    ) -> Result<(), RemoveError> {
        self.check_removable(id, on_dirty)?;
        let volume = self.volumes.number(id).ok_or(RemoveError::Unknown)?;
        core::mem::swap(&mut self.actions, actions);
        // Its destages do not work again: it goes.
        self.volumes.get_mut(volume).told = None;
        self.volumes.get_mut(volume).is_unreported = false;
        // Where the data is kept, the volume is served again if a power cut breaks its removal off:
        // an older record of the log must not come back over what went home.
        for level in 0..self.levels.len() {
            for slot in self.levels[level].slots_of(|key| key.volume() == id) {
                self.drop_copy(volume, level, slot, on_dirty == OnDirty::Discard);
            }
        }
        core::mem::swap(&mut self.actions, actions);
        self.cut_lost(id, 0);
        self.forget_pending_drops(id);
        self.forget_drains(volume);
        self.stored.remove(&u32::from(volume));
        self.volumes.remove(volume);
        Ok(())
    }

    /// Changes classes, shares, watermarks and limits; levels keep kind and size, classes in use
    /// keep their place.
    ///
    /// # Errors
    /// [`SpecError`] when the new specification contradicts itself; nothing is changed then.
    pub fn reconfigure(&mut self, spec: CacheSpec) -> Result<(), SpecError> {
        spec.validate()?;
        let missing = self.volumes.iter().map(|(_, v)| v.class).find(|c| *c >= spec.classes.len());
        if let Some(class) = missing {
            return Err(SpecError::UnknownClass { class: ClassId(class as u8) });
        }
        for level in &mut self.levels {
            level.class_used.resize(spec.classes.len(), 0);
        }
        self.volumes.classes.clone_from(&spec.classes);
        let levels = core::mem::take(&mut self.spec.levels);
        let watermarks = spec.levels.iter().map(|level| level.watermarks).collect::<Vec<_>>();
        self.volumes.places.set_limit(spec.writeback.inflight_max);
        self.spec = CacheSpec { levels, ..spec };
        for (level, watermarks) in self.spec.levels.iter_mut().zip(watermarks) {
            level.watermarks = watermarks;
        }
        (0..self.volumes.end()).for_each(|number| self.expect_records(number as u16));
        self.filters.adjust(&self.spec);
        self.caps_due = Nanos::ZERO;
        Ok(())
    }

    /// From now on a level holds at most `slots` blocks, since what lies under it has shrunk; what
    /// it holds beyond goes bit by bit. With none it takes nothing new.
    pub fn limit_level(&mut self, level: LevelIndex, slots: u32) {
        let held = &mut self.levels[usize::from(level.0)];
        held.limit = slots.min(held.slots);
    }

    /// Takes in a recovered block where its store put it; later calls are taken for warmer. False
    /// when the slot or the block is taken, the volume is unknown, the block is behind its end, or
    /// it is dirty and the volume has no dirty blocks since it writes through: then it is the
    /// host's to send home.
    pub fn restore(
        &mut self,
        moment: &mut Moment<'_>,
        level: LevelIndex,
        slot: Slot,
        key: BlockKey,
        dirty: bool,
    ) -> bool {
        let Some(volume) = self.volumes.number(key.volume()) else { return false };
        self.volumes.get_mut(volume).logged = true;
        if key.block().0 >= self.volumes.get(volume).blocks {
            return false;
        }
        self.note_kept(volume, key.block());
        if dirty && self.writes_through(volume) {
            return false;
        }
        let class = self.volumes.get(volume).class;
        let known = self.levels.iter().any(|level| level.find(volume, key).is_some());
        let held = &mut self.levels[usize::from(level.0)];
        if known || slot.0 >= held.slots || !held.take_exact(slot, volume, class) {
            return false;
        }
        held.insert(moment, volume, slot, key, layby_policy::Warmth::Warm);
        if dirty {
            held.set_dirty(moment.now, volume, slot, false);
        } else {
            // It went home in an earlier life; what is older must not come back over it.
            if !is_planted(Plant::ForgetOmitted) {
                held.set_homed(slot);
            }
        }
        true
    }

    /// Ends recovery: call once after the last [`Cache::restore`].
    pub fn end_restore(&mut self) {
        self.levels.iter_mut().for_each(Level::rebuild_free);
        self.caps_due = Nanos::ZERO;
    }

    /// What a slot holds, for a store that cleans or checkpoints: the block, and if it is dirty.
    #[must_use]
    pub fn slot(&self, level: LevelIndex, slot: Slot) -> Option<(BlockKey, bool)> {
        let held = &self.levels[usize::from(level.0)];
        held.is_indexed(slot).then(|| (held.key(slot), held.is_dirty(slot)))
    }

    /// Whether a block has data that its backing store does not have yet.
    #[must_use]
    pub fn is_dirty(&self, volume: VolumeId, block: BlockIndex) -> bool {
        let Some(number) = self.volumes.number(volume) else { return false };
        let key = BlockKey::new(volume, block);
        self.levels.iter().any(|l| l.find(number, key).is_some_and(|slot| l.is_dirty(slot)))
    }

    /// Whether a persistent level answers for a block with a copy of its own, not only a lent one.
    #[must_use]
    pub fn is_stored(&self, volume: VolumeId, block: BlockIndex) -> bool {
        let Some(number) = self.volumes.number(volume) else { return false };
        let key = BlockKey::new(volume, block);
        let mut persistent = self.levels.iter().filter(|level| level.kind.is_persistent());
        persistent.any(|l| l.find(number, key).is_some_and(|slot| !l.is_borrowed(slot)))
    }

    /// The fastest level that holds a block.
    #[must_use]
    pub fn level_of(&self, volume: VolumeId, block: BlockIndex) -> Option<LevelIndex> {
        let number = self.volumes.number(volume)?;
        let key = BlockKey::new(volume, block);
        let level = self.levels.iter().position(|level| level.find(number, key).is_some())?;
        Some(LevelIndex(level as u8))
    }

    /// Slots that a volume holds in a level: its own, lent to it, dirty.
    #[must_use]
    pub fn held_by(&self, volume: VolumeId, level: LevelIndex) -> (u32, u32, u32) {
        let holding =
            self.volumes.number(volume).map(|n| self.levels[usize::from(level.0)].holding(n));
        holding.map_or((0, 0, 0), |h| (h.used, h.borrowed, h.dirty))
    }

    /// A volume's counters.
    #[must_use]
    pub fn volume_counters(&self, volume: VolumeId) -> Option<&VolumeCounters> {
        self.volumes.number(volume).map(|number| &self.volumes.get(number).counters)
    }

    /// A level's state and counters.
    #[must_use]
    pub fn level_view(&self, level: LevelIndex, now: Nanos) -> LevelView {
        let index = usize::from(level.0);
        let held = &self.levels[index];
        LevelView {
            slots: held.limit,
            used: held.used,
            borrowed: held.borrowed,
            dirty: held.dirty,
            dirty_age: held.dirty_age(now),
            waiting: self.waiting[index].len() as u32,
            memory_bytes: held.memory_bytes() + self.filters.memory_bytes(index),
            slack_bytes: held.slack_bytes(),
            counters: self.counters[index],
        }
    }

    /// Has what nobody waits for go in small pieces, so that no end takes long: somebody better may
    /// come meanwhile.
    pub fn set_stepwise(&mut self, is_stepwise: bool) {
        self.is_stepwise = is_stepwise;
    }

    /// The specification in force.
    #[must_use]
    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    // ---- requests and operations ----

    pub(crate) fn key(&self, volume: u16, block: BlockIndex) -> BlockKey {
        BlockKey::new(self.volumes.get(volume).id, block)
    }

    pub(crate) fn begin(&mut self, request: RequestId, parts: u32) {
        let fresh = self.requests.insert(request, RequestState { parts, error: None });
        assert!(fresh.is_none(), "{request:?} is in flight already");
    }

    pub(crate) fn add_part(&mut self, request: RequestId) {
        self.requests.get_mut(&request).expect("parts are added while a request lives").parts += 1;
    }

    pub(crate) fn end_part(&mut self, request: RequestId, result: Result<(), ErrorKind>) {
        let Entry::Occupied(mut entry) = self.requests.entry(request) else {
            panic!("parts end while a request lives")
        };
        let state = entry.get_mut();
        if let Err(kind) = result {
            state.error.get_or_insert(kind);
        }
        state.parts -= 1;
        if state.parts == 0 {
            let result = entry.remove().error.map_or(Ok(()), Err);
            self.actions.push(Action::Complete { request, result });
        }
    }

    /// Starts an operation; `lock` takes its blocks, which must be free.
    pub(crate) fn start(
        &mut self,
        volume: u16,
        first: BlockIndex,
        count: u32,
        task: Task,
        lock: bool,
    ) -> OpId {
        let queue = VecDeque::new();
        let op = Op { volume, first, count, task, outstanding: 0, error: None, queue };
        let id = OpId(self.ops.insert(op));
        if lock {
            let volume = self.volumes.get(volume).id;
            for block in first.0..first.0 + u64::from(count) {
                let key = BlockKey::new(volume, BlockIndex(block));
                assert!(self.busy.insert(key, id).is_none(), "{key:?} is locked already");
            }
        }
        id
    }

    /// Queues an action that ends with `on_done` of `op`.
    pub(crate) fn submit(&mut self, op: OpId, action: Action) {
        self.ops.get_mut(op.0).outstanding += 1;
        self.actions.push(action);
    }

    /// Ends an operation: unlocks its blocks and dispatches what queued behind it.
    pub(crate) fn finish(&mut self, moment: &mut Moment<'_>, id: OpId) {
        let (volume, first, count) = self.extent(id);
        self.release_blocks(moment, id);
        if !self.ranges.is_empty() {
            self.retry_discards(volume, first.0..first.0 + u64::from(count));
        }
    }

    /// Ends an operation whose blocks others take over: discards that wait for them wait on.
    pub(crate) fn release_blocks(&mut self, moment: &mut Moment<'_>, id: OpId) {
        let op = self.ops.remove(id.0);
        assert!(op.outstanding == 0, "an operation ends after its actions");
        self.actions.push(Action::Release { op: id });
        if !self.busy.is_empty() {
            let volume = self.volumes.get(op.volume).id;
            for block in op.first.0..op.first.0 + u64::from(op.count) {
                let entry = self.busy.entry(BlockKey::new(volume, BlockIndex(block)));
                if let Entry::Occupied(lock) = entry
                    && *lock.get() == id
                {
                    lock.remove();
                }
            }
        }
        for group in self.in_vain.iter_mut().filter(|group| group.is_some()) {
            group.take_if(|group| owner(*group) == op.volume);
        }
        if !self.drains.is_empty() && !op.queue.is_empty() {
            self.destage_between(moment, op.volume, &op.queue);
        }
        for piece in op.queue {
            self.redispatch(moment, op.volume, piece);
        }
    }

    fn redispatch(&mut self, moment: &mut Moment<'_>, volume: u16, piece: Piece) {
        match piece.want {
            Want::Read => {
                let mut run = None;
                if self.read_piece(moment, volume, piece, &mut run) {
                    self.end_part(piece.request, Ok(()));
                }
                self.start_fetch(volume, run, Sought::Asked);
            }
            Want::Write { .. } | Want::Zero { .. } => self.write_piece(moment, volume, piece),
        }
    }

    /// The operation that keeps others from `key`, if any.
    pub(crate) fn blocker(&self, volume: u16, key: BlockKey) -> Option<OpId> {
        if !self.ranges.is_empty() {
            let block = key.block().0;
            let held = |r: &&RangeLock| r.volume == volume && (r.first..r.end).contains(&block);
            if let Some(range) = self.ranges.iter().find(held) {
                return Some(range.op);
            }
        }
        if self.busy.is_empty() { None } else { self.busy.get(&key).copied() }
    }

    /// Whether background work may touch `key`.
    pub(crate) fn is_calm(&self, key: BlockKey) -> bool {
        !self.busy.contains_key(&key) && !self.destaging.contains_key(&key)
    }

    // ---- flush ----

    fn flush(&mut self, volume: u16, request: RequestId) {
        self.begin(request, 1);
        let epochs = self.stored.get(&u32::from(volume)).copied().unwrap_or_default();
        let stored: Few<(usize, u64)> = (0..=BACKING)
            .filter(|place| epochs[*place].0 > epochs[*place].1)
            .map(|place| (place, epochs[place].0))
            .collect();
        if stored.is_empty() || is_planted(Plant::FlushEarly) {
            self.end_part(request, Ok(()));
            return;
        }
        let places = stored.clone();
        let task = Task::Flush(Flush { request, stored });
        let op = self.start(volume, BlockIndex(0), 0, task, false);
        for (place, _) in places {
            if place == BACKING {
                let volume = self.volumes.get(volume).id;
                self.submit(op, Action::SyncBacking { op, volume });
            } else {
                self.submit(op, Action::SyncLevel { op, level: LevelIndex(place as u8) });
            }
        }
    }

    fn on_flushed(&mut self, id: OpId, result: Result<(), ErrorKind>) {
        let op = self.ops.remove(id.0);
        let Task::Flush(flush) = op.task else { panic!("a flush ends as a flush") };
        if result.is_ok() {
            for (place, stored) in flush.stored {
                self.note_synced(op.volume, place, stored);
            }
        }
        self.actions.push(Action::Release { op: id });
        self.end_part(flush.request, result);
    }

    /// Something that is not durable yet ended in a level or (at [`BACKING`]) in the backing
    /// store: the next flush has to cover it.
    pub(crate) fn note_stored(&mut self, volume: u16, place: usize) {
        self.stored.entry(u32::from(volume)).or_default()[place].0 += 1;
    }

    /// What had been stored up to `stored` is durable.
    pub(crate) fn note_synced(&mut self, volume: u16, place: usize, stored: u64) {
        if stored > 0 {
            let epochs = self.stored.entry(u32::from(volume)).or_default();
            epochs[place].1 = epochs[place].1.max(stored);
        }
        if place == BACKING {
            self.note_home_synced(volume, stored);
        }
    }
}

fn nvm_levels(spec: &CacheSpec) -> u8 {
    let kinds = spec.levels.iter().enumerate();
    let is_nvm = |(index, level): (usize, &crate::LevelSpec)| {
        u8::from(level.kind == crate::LevelKind::Nvm) << index
    };
    kinds.map(is_nvm).sum()
}
