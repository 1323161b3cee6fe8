//! Background work: destaging by watermark and calm, freeing ahead of need, caps after a change.
//!
//! How: a hand sweeps a level's slots for dirty blocks; around each it gathers dirty neighbours of
//! the volume into one write of at most the merge size. Destaging copies without locking, so a
//! client's write never waits for it.
//! Invariant: a block becomes clean only when the version that reached the backing store durably is
//! the one that the level still holds.
//! Source: L3 cache paper section IV (sync, flush, merging).

use crate::action::{Action, DestageFault, Event, Few, OpId, Source};
use crate::cache::{Cache, RangeLock};
use crate::hash::FixedMap;
use crate::level::{Level, Scope};
use crate::op::{Destage, DestageMark, DestagePhase, Task};
use crate::spec::LevelKind;
use crate::waiting::{Trigger, Waiting};
use layby_policy::{Gate, Moment};
use layby_types::{BlockIndex, BlockKey, ErrorKind, LevelIndex, Nanos, Slot};

/// Slots that one call looks at for dirty blocks.
pub(crate) const SWEEP_LOOKS: u32 = 4096;
/// Victims that one call frees ahead of need or for a lowered cap.
const FREES_PER_CALL: u32 = 32;
/// How long destaging pauses after a failure.
const DESTAGE_PAUSE: Nanos = Nanos::from_secs(1);
/// How long after a failure destages have to end well until that is reported.
const DESTAGE_WELL_AFTER: Nanos = Nanos::from_secs(5);
/// When a level that holds more than its limit is looked at again.
const SHRINK_PAUSE: Nanos = Nanos::from_millis(10);
/// How long what a change of caps no longer allows is left alone after none of it could be freed.
pub(crate) const CAPS_PAUSE: Nanos = Nanos::from_millis(10);
/// When a sweep that found nothing in its bounded looks goes on.
const SWEEP_PAUSE: Nanos = Nanos::from_millis(1);

/// What keeps background work off a block.
pub(crate) struct Calm<'a> {
    pub(crate) busy: &'a FixedMap<BlockKey, OpId>,
    pub(crate) destaging: &'a FixedMap<BlockKey, DestageMark>,
    pub(crate) ranges: &'a [RangeLock],
}

impl Calm<'_> {
    /// Whether no operation and no executing discard has to do with the block.
    pub(crate) fn allows(&self, key: BlockKey) -> bool {
        let discarded = |range: &RangeLock| {
            range.executing
                && range.id == key.volume()
                && (range.first..range.end).contains(&key.block().0)
        };
        !self.busy.contains_key(&key)
            && !self.destaging.contains_key(&key)
            && !self.ranges.iter().any(discarded)
    }
}

impl Cache {
    /// Something has changed: starts whatever background work is due.
    pub(crate) fn pump(&mut self, moment: &mut Moment<'_>) {
        self.pump_for(moment, Trigger::Change);
    }

    /// Starts whatever background work is due.
    pub(crate) fn pump_for(&mut self, moment: &mut Moment<'_>, trigger: Trigger) {
        self.end_drains();
        for level in 0..self.levels.len() {
            self.serve_waiting(moment, level, trigger);
            if self.levels[level].kind.is_persistent() {
                if !self.drops.is_empty() {
                    self.start_pending_drops(moment, level);
                }
                self.destage_level(moment, level);
                self.free_ahead(moment, level);
                if self.shrink(moment, level) {
                    // Nothing else would wake what waits once the level fits its limit.
                    self.serve_waiting(moment, level, Trigger::Change);
                }
            }
        }
        if moment.now >= self.caps_due {
            self.enforce_caps(moment);
            if self.caps_due == Nanos::NEVER {
                (0..self.levels.len())
                    .for_each(|level| self.serve_waiting(moment, level, Trigger::Change));
            }
        }
        self.end_drains();
    }

    /// Tries what waits for room in the level, and starts what will make room for the rest.
    pub(crate) fn serve_waiting(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        trigger: Trigger,
    ) {
        if !self.waiting[level].is_empty() {
            self.retry_waiting(moment, level, trigger);
            self.relieve_waiting(moment, level);
            self.refuse_hopeless(moment, level);
        }
    }

    /// When [`Cache::on_tick`] has something to do if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self, now: Nanos) -> Nanos {
        let timeout = self.spec.writeback.idle_timeout;
        let mut deadline = Nanos::NEVER;
        for (level, spec) in self.levels.iter().zip(&self.spec.levels) {
            let input = level.gate_input(now);
            if !level.kind.is_persistent() || input.dirty == 0 {
                continue;
            }
            let limits = level.gate_limits(spec, timeout);
            let mut gate = level.gate;
            let due = if !self.drains.is_empty() || gate.is_open(&limits, &input) {
                now.saturating_add(SWEEP_PAUSE)
            } else {
                Gate::deadline(&limits, &input)
            };
            deadline = deadline.min(due);
        }
        if self.caps_due != Nanos::NEVER {
            deadline = deadline.min(self.caps_due.max(now.saturating_add(SWEEP_PAUSE)));
        }
        if self.levels.iter().any(Level::is_over) {
            deadline = deadline.min(now.saturating_add(SHRINK_PAUSE));
        }
        if deadline != Nanos::NEVER && now < self.destage_not_before && self.only_paused_left(now) {
            // A backing store that does not answer rests for good; other work is looked for.
            let rest = self.destage_not_before.min(now.saturating_add(DESTAGE_PAUSE));
            deadline = deadline.max(rest);
        }
        deadline.min(self.waiting_deadline(now))
    }

    /// When something is due for what waits for room: it may go on while all destaging rests.
    fn waiting_deadline(&self, now: Nanos) -> Nanos {
        if self.waiting.iter().all(Waiting::is_empty) {
            return Nanos::NEVER;
        }
        // Stores wait for room that a pause keeps from being made.
        let pauses = self.volumes.iter().map(|(_, volume)| volume.destage_not_before);
        let of_levels = ..self.levels.len();
        let searches = self.volumes.iter().flat_map(|(_, v)| &v.below_searches[of_levels]);
        let searches = searches.map(|search| search.not_before);
        let ends = pauses.chain(searches).chain([self.evict_not_before]);
        let end = ends.filter(|end| *end > now).min().unwrap_or(Nanos::NEVER);
        // They are looked at again for whether anything can make room for them: at the next tick
        // where the last look was long ago, since unreadable blocks alone set no other timer.
        let soon = now.saturating_add(SWEEP_PAUSE);
        let looks = (0..self.levels.len())
            .filter(|level| !self.waiting[*level].is_empty() && self.may_be_hopeless(*level))
            .map(|level| self.hopeless_not_before[level].max(soon));
        let look = looks.min().unwrap_or(Nanos::NEVER);
        end.min(look).min(self.untried_deadline(soon))
    }

    /// Whether all that is dirty is of volumes whose destaging rests.
    fn only_paused_left(&self, now: Nanos) -> bool {
        let is_dirty = |volume| self.levels.iter().any(|level| level.holding(volume).dirty > 0);
        self.volumes.iter().all(|(n, volume)| now < volume.destage_not_before || !is_dirty(n))
    }

    // ---- destaging ----

    fn destage_level(&mut self, moment: &mut Moment<'_>, index: usize) {
        if self.volumes.places.rests(index, moment.now) {
            return;
        }
        self.start_destages(moment, index);
        let until = moment.now.saturating_add(SWEEP_PAUSE);
        self.volumes.places.note_swept(index, until);
    }

    fn start_destages(&mut self, moment: &mut Moment<'_>, index: usize) {
        let writeback = self.spec.writeback;
        while self.has_any_place(index) {
            let level = &mut self.levels[index];
            let open =
                level.wants_destage(&self.spec.levels[index], writeback.idle_timeout, moment.now);
            let Some(slot) = self.next_dirty(moment.now, index, open) else { return };
            if !self.start_destage(moment, index, slot) {
                return;
            }
        }
    }

    /// Copies the dirty run around `seed` home.
    pub(crate) fn start_destage(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        seed: Slot,
    ) -> bool {
        let key = self.levels[level].key(seed);
        let volume = self.volumes.number(key.volume()).expect("a resident block has a volume");
        if !self.volumes.has_place(volume) || self.volumes.rests(key.volume(), moment.now) {
            return false;
        }
        let (first, slots) = self.dirty_run(level, volume, key, seed);
        for index in 0..slots.len() as u64 {
            let key = BlockKey::new(key.volume(), BlockIndex(first.0 + index));
            let mark = DestageMark { level: LevelIndex(level as u8), superseded: false };
            self.destaging.insert(key, mark);
        }
        let count = slots.len() as u32;
        self.levels[level].destaging += count;
        self.count_destage(volume);
        let level = LevelIndex(level as u8);
        let epochs = self.stored.get(&u32::from(volume)).copied().unwrap_or_default();
        let (stored, synced) = epochs[usize::from(level.0)];
        let phase = DestagePhase::Reading;
        let generation = self.volumes.get(volume).generation;
        let destage = Destage { level, slots: slots.clone(), phase, stored, generation };
        let task = Task::Destage(destage);
        let op = self.start(volume, first, count, task, false);
        // The backing store never gets ahead of what a power cut would leave in the level.
        if stored > synced {
            self.submit(op, Action::SyncLevel { op, level });
        }
        self.submit(op, Action::ReadLevel { op, level, slots });
        true
    }

    fn dirty_run(
        &self,
        level: usize,
        volume: u16,
        seed: BlockKey,
        slot: Slot,
    ) -> (BlockIndex, Few<Slot>) {
        let held = &self.levels[level];
        let calm = Calm { busy: &self.busy, destaging: &self.destaging, ranges: &self.ranges };
        let bytes = self.volumes.places.run_bytes(self.spec.writeback.merge_bytes);
        let max = (bytes / self.spec.block_size.bytes()).max(1) as usize;
        let dirty_at = |block: u64| {
            let key = BlockKey::new(seed.volume(), BlockIndex(block));
            let slot = held.find(volume, key)?;
            let wanted = held.is_dirty(slot) && !held.is_sick(slot) && calm.allows(key);
            wanted.then_some(slot)
        };
        let mut before = alloc::vec::Vec::new();
        let mut block = seed.block().0;
        while before.len() + 1 < max && block > 0 {
            let Some(slot) = dirty_at(block - 1) else { break };
            before.push(slot);
            block -= 1;
        }
        let mut slots: Few<Slot> = before.into_iter().rev().collect();
        slots.push(slot);
        let mut next = seed.block().0 + 1;
        while slots.len() < max && next < self.volumes.get(volume).blocks {
            let Some(slot) = dirty_at(next) else { break };
            slots.push(slot);
            next += 1;
        }
        (BlockIndex(block), slots)
    }

    pub(crate) fn on_destaged(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        result: Result<(), ErrorKind>,
    ) {
        let (number, first, count) = self.extent(id);
        let Task::Destage(destage) = &mut self.ops.get_mut(id.0).task else {
            panic!("a destage ends as a destage")
        };
        let was_reading = destage.phase == DestagePhase::Reading;
        if result.is_ok() && was_reading {
            destage.phase = DestagePhase::Writing;
            let (level, stored) = (usize::from(destage.level.0), destage.stored);
            self.note_synced(number, level, stored);
            let volume = self.volumes.get(number).id;
            let source = Source::Buffer { index: 0 };
            let durable = true;
            return self.submit(
                id,
                Action::WriteBacking { op: id, volume, first, count, source, durable },
            );
        }
        let (level, generation) = (destage.level, destage.generation);
        let slots = core::mem::take(&mut destage.slots);
        if result.is_ok() {
            self.backing.count_write(count);
            self.retry_caps();
        }
        let mut is_superseded = false;
        for (index, slot) in slots.iter().enumerate() {
            let key = self.key(number, BlockIndex(first.0 + index as u64));
            let home = result.is_ok().then_some(generation);
            is_superseded |= self.settle_destaged(number, level, (*slot, key), home);
        }
        self.levels[usize::from(level.0)].destaging -= count;
        self.going_home.fill(None);
        self.uncount_destage(number);
        // Of a single block that was superseded the read says nothing: the next destage will.
        if !was_reading || result != Err(ErrorKind::Corrupt) || count > 1 || !is_superseded {
            self.note_destage_result(moment, number, (level, &slots, was_reading), result);
        }
        self.finish(moment, id);
        self.retry_parked(moment);
        self.retry_waiting(moment, usize::from(level.0), Trigger::Change);
    }

    /// Answers whether a newer version of the block arrived meanwhile.
    fn settle_destaged(
        &mut self,
        volume: u16,
        level: LevelIndex,
        (slot, key): (Slot, BlockKey),
        home: Option<u32>,
    ) -> bool {
        let mark = self.destaging.remove(&key).expect("a destaged block is marked");
        self.levels[usize::from(level.0)].sick_destaging.remove(&key);
        let is_destaged = home.is_some() && !mark.superseded;
        if is_destaged {
            let held = &mut self.levels[usize::from(level.0)];
            assert!(held.is_dirty(slot) && held.key(slot) == key, "{key:?} moved while destaging");
            held.set_clean(volume, slot);
            self.counters[usize::from(level.0)].destaged += 1;
            self.actions.push(Action::SetClean { level, slot });
        } else if let Some(generation) = home {
            self.renew_generation(volume, (usize::from(level.0), slot), key, generation);
        }
        if !self.drops.is_empty() {
            let place = is_destaged.then_some((usize::from(level.0), slot));
            self.end_pending_drop(key, place);
        }
        mark.superseded
    }

    fn note_destage_result(
        &mut self,
        moment: &mut Moment<'_>,
        number: u16,
        (level, slots, was_reading): (LevelIndex, &[Slot], bool),
        result: Result<(), ErrorKind>,
    ) {
        let volume = self.volumes.get(number).id;
        let is_stuck = self.volumes.get(number).is_stuck;
        let Err(kind) = result else {
            // One end does not say that what else was given to it ends.
            if !is_stuck {
                self.note_destages_well(moment.now, number);
            }
            return;
        };
        // A level that failed otherwise says nothing of the blocks, as a sync of it.
        if was_reading && kind == ErrorKind::Corrupt && slots.len() == 1 {
            // The level cannot return the block: it stays dirty and out of the way.
            return self.note_sick_if_held(moment, number, level, slots[0]);
        }
        if was_reading && kind == ErrorKind::Corrupt {
            return self.probe_singly(moment, level, slots);
        }
        let until = moment.now.saturating_add(DESTAGE_PAUSE);
        if !is_stuck {
            self.volumes.get_mut(number).destage_not_before = until;
        }
        self.destage_not_before = self.destage_not_before.max(until);
        self.volumes.has_faults = true;
        self.hopeless_not_before.fill(Nanos::ZERO);
        let state = self.volumes.get_mut(number);
        state.fault = Some(kind);
        let fault = DestageFault { level: was_reading.then_some(level), kind };
        let is_new = state.told.replace((fault, moment.now)).is_none();
        if is_new || core::mem::take(&mut state.is_unreported) {
            self.actions.push(Action::Report(Event::DestageFailed { volume, fault }));
        }
        self.fail_waiting(moment, number, kind);
        self.fail_drains(number, kind);
    }

    /// A destage of the volume ended well. That they all do is reported when none failed for a
    /// while, or nothing is left to destage.
    fn note_destages_well(&mut self, now: Nanos, number: u16) {
        let is_dirty = self.levels.iter().any(|level| level.holding(number).dirty > 0);
        let volume = self.volumes.get_mut(number);
        volume.fault = None;
        let is_over = |(_, failed): &mut (DestageFault, Nanos)| {
            !is_dirty || now.since(*failed) >= DESTAGE_WELL_AFTER
        };
        if volume.told.take_if(is_over).is_some() {
            let event = Event::DestageRecovered { volume: volume.id };
            self.actions.push(Action::Report(event));
        }
    }

    /// A dirty block was dropped. Where it was the volume's last one, nothing is left that failed
    /// to be destaged, and no destage will come that could end well.
    pub(crate) fn note_less_dirty(&mut self, number: u16) {
        let is_dirty = self.levels.iter().any(|level| level.holding(number).dirty > 0);
        let volume = self.volumes.get_mut(number);
        if is_dirty || volume.is_stuck {
            return;
        }
        volume.fault = None;
        if volume.told.take().is_some() {
            let event = Event::DestageRecovered { volume: volume.id };
            self.actions.push(Action::Report(event));
        }
    }

    fn note_sick_if_held(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        level: LevelIndex,
        slot: Slot,
    ) {
        if self.levels[usize::from(level.0)].is_dirty(slot) {
            self.note_sick(moment, volume, level, slot);
        }
    }

    /// One block of a run is unreadable: destage the run block by block to find which.
    fn probe_singly(&mut self, moment: &mut Moment<'_>, level: LevelIndex, slots: &[Slot]) {
        let index = usize::from(level.0);
        let merge = core::mem::replace(&mut self.spec.writeback.merge_bytes, 1);
        self.volumes.places.set_limit(u16::MAX);
        for slot in slots {
            let held = &self.levels[index];
            if held.is_dirty(*slot) && !held.is_sick(*slot) && self.is_calm(held.key(*slot)) {
                self.start_destage(moment, index, *slot);
            }
        }
        self.spec.writeback.merge_bytes = merge;
        self.volumes.places.set_limit(self.spec.writeback.inflight_max);
    }

    // ---- room ahead of need ----

    /// Moves cold blocks out of an NVM level before a store has to wait for it.
    fn free_ahead(&mut self, moment: &mut Moment<'_>, index: usize) {
        let level = &self.levels[index];
        if level.kind != LevelKind::Nvm || level.used == 0 {
            return;
        }
        let marks = self.spec.levels[index].watermarks;
        let percent = |mark: u8| (u64::from(level.limit) * u64::from(mark)).div_ceil(100) as u32;
        let (red, green) = (percent(marks.used_red), percent(marks.used_green));
        if level.used <= red {
            return;
        }
        for _ in 0..FREES_PER_CALL {
            if self.levels[index].used <= green {
                return;
            }
            let freed = self.drop_coldest(moment, index, None, Scope::Owners).is_some();
            if !freed && !self.push_down_coldest(moment, index, None, Scope::Owners) {
                return;
            }
        }
    }

    /// Lets go what a level holds beyond its limit: by the order of yielding, and where guarantees
    /// stand against that, from everybody.
    /// True when anything has left, or begun to.
    fn shrink(&mut self, moment: &mut Moment<'_>, index: usize) -> bool {
        for freed in 0..FREES_PER_CALL {
            if !self.levels[index].is_over() || !self.let_go(moment, index) {
                return freed > 0;
            }
        }
        true
    }

    fn let_go(&mut self, moment: &mut Moment<'_>, index: usize) -> bool {
        if self.drop_coldest(moment, index, None, Scope::Level).is_some() {
            return true;
        }
        let numbers: alloc::vec::Vec<u16> = self.volumes.iter().map(|(number, _)| number).collect();
        let mut asked = numbers.iter().map(|number| (Some(*number), Scope::Volume));
        asked.any(|(asker, scope)| self.drop_coldest(moment, index, asker, scope).is_some())
            || self.push_down_coldest(moment, index, None, Scope::Owners)
            || numbers
                .iter()
                .any(|volume| self.push_down_coldest(moment, index, Some(*volume), Scope::Volume))
    }

    fn relieve_waiting(&mut self, moment: &mut Moment<'_>, level: usize) {
        let Some(first) = self.waiting[level].first() else { return };
        let op = self.ops.get(first.0);
        let is_store = matches!(op.task, Task::Store(_));
        let volume = op.volume;
        if !is_store || self.evictions_inflight as usize >= self.waiting[level].len() {
            return;
        }
        let scope = self.yielding_scope(level, first);
        self.push_down_any(moment, level, volume, scope);
    }

    /// Takes from volumes and classes what a change of caps no longer allows them.
    fn enforce_caps(&mut self, moment: &mut Moment<'_>) {
        #[cfg(test)]
        (self.effort.caps_walks += 1);
        let (mut is_done, mut has_freed) = (true, false);
        let mut budget = FREES_PER_CALL;
        let numbers: alloc::vec::Vec<u16> = self.volumes.iter().map(|(number, _)| number).collect();
        for level in 0..self.levels.len() {
            for volume in &numbers {
                while let Some(scope) = self.excess(level, *volume) {
                    is_done = false;
                    let freed = budget > 0
                        && (self.drop_coldest(moment, level, Some(*volume), scope).is_some()
                            || self.push_down_any(moment, level, *volume, scope));
                    if !freed {
                        break;
                    }
                    has_freed = true;
                    budget -= 1;
                }
            }
        }
        self.caps_due = match (is_done, has_freed) {
            (true, _) => Nanos::NEVER,
            (false, true) => moment.now,
            (false, false) => moment.now.saturating_add(CAPS_PAUSE),
        };
    }

    /// A dirty block has left its level, or is clean now: what caps no longer allow may be freed.
    pub(crate) fn retry_caps(&mut self) {
        if self.caps_due != Nanos::NEVER {
            self.caps_due = Nanos::ZERO;
        }
    }

    /// In which scope the volume holds more than it may.
    fn excess(&self, level: usize, volume: u16) -> Option<Scope> {
        let held = &self.levels[level];
        let class = self.volumes.get(volume).class;
        if held.holding(volume).used > self.share(level, volume).cap {
            Some(Scope::Volume)
        } else if held.class_used[class] > self.volumes.classes[class].shares[level].cap {
            Some(Scope::Class)
        } else {
            None
        }
    }
}
