//! Room: who gives up a slot, how a dirty victim leaves, what becomes of copies that are dropped.
//!
//! How: a clean victim is dropped on the spot. When the one who must yield has only dirty blocks at
//! its cold end, a store waits (a promotion gives up) while one of them is moved a persistent level
//! down, or home where there is none.
//! Invariant: a dirty block leaves a level only after a durable copy of it exists below.
//! Source: PADSA section IV.B (eviction).

use crate::action::{Action, Cause, Few, OpId, Source};
use crate::background::Calm;
use crate::cache::{Cache, LastEviction};
use crate::hash::FixedMap;
use crate::level::{Resident, Scope, owner};
use crate::op::{Evict, StorePhase, Task};
use crate::spec::{LevelKind, Share};
use crate::waiting::{Trigger, Turn};
use alloc::vec;
use layby_policy::{Group, Moment, Warmth};
use layby_types::{BlockKey, ErrorKind, LevelIndex, Nanos, Slot};

/// Evictions of dirty blocks in flight at most.
const EVICTIONS_MAX: u32 = 64;
/// How long no dirty block moves to another level after one could not be stored there.
const EVICT_PAUSE: Nanos = Nanos::from_secs(1);
/// How often it is checked, at most, whether the stores that wait for room can still get it.
const HOPELESS_PAUSE: Nanos = Nanos::from_millis(100);
/// Slots that one look for a dirty block that can move to a level below looks at, however warm.
const BELOW_LOOKS: u32 = 16_384;
/// When a volume's look that found none goes on.
const BELOW_PAUSE: Nanos = Nanos::from_millis(10);
/// As many volumes' looks find none in a level per pause; where there are more, they pause longer.
const BELOW_VOLUMES: u64 = 8;
/// Waiting stores that are tried per freed slot before the rest waits on.
const RETRIES_MAX: usize = 64;
/// Of these, stores that find no room, of a volume each; where more volumes wait, a timer has the
/// others tried.
const FAILED_MAX: usize = 8;
/// Stores that are placed per freed slot where somebody better may come: the end of each places
/// the next ones.
const PLACED_STEPWISE: usize = 2;

/// Which dirty blocks may be moved for room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Those at the cold end: where these are on their way to a backing store, they may as well go.
    Cold,
    /// All, however warm.
    Any,
}

impl Cache {
    /// What the volume may hold of a level: nothing where its class has no access.
    pub(crate) fn share(&self, level: usize, volume: u16) -> Share {
        if self.levels_of(volume) & (1 << level) == 0 {
            return Share { guaranteed: 0, cap: 0 };
        }
        self.volumes.get(volume).shares[level]
    }

    /// Among whom room must be found for `volume`, given its cap and its class's.
    pub(crate) fn scope(&self, level: usize, volume: u16) -> Scope {
        let held = &self.levels[level];
        let class = self.volumes.get(volume).class;
        if held.holding(volume).used >= self.share(level, volume).cap {
            Scope::Volume
        } else if held.class_used[class] >= self.volumes.classes[class].shares[level].cap {
            Scope::Class
        } else {
            Scope::Level
        }
    }

    /// Whether waiting for room in the level can end: there is a free slot that the volume may
    /// take, or somebody who has to yield one.
    pub(crate) fn may_have_room(&self, level: usize, volume: u16) -> bool {
        if !self.may_dirty(level, volume) {
            return true;
        }
        self.may_yield_room(level, volume)
    }

    /// Whether there is a free slot that the volume may take, or blocks that would yield one to it
    /// once they are clean and idle.
    pub(crate) fn may_yield_room(&self, level: usize, volume: u16) -> bool {
        let (held, scope) = (&self.levels[level], self.scope(level, volume));
        let has_free = scope == Scope::Level && held.used + held.borrowed < held.limit;
        held.limit > 0 && (has_free || held.may_yield(&self.volumes, level, volume, scope))
    }

    /// A held slot for a new block of `volume`, dropping a clean block where needed; `None` when
    /// only dirty or busy blocks could yield, or nobody may.
    pub(crate) fn allocate(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        volume: u16,
    ) -> Option<Slot> {
        let scope = self.scope(level, volume);
        if let Some(slot) = self.take_unused(level, volume, scope) {
            return Some(slot);
        }
        // A block that is evicted while the level is above its limit frees no slot: `shrink` evicts
        // those, and then tries what waits.
        if self.levels[level].is_over() {
            return None;
        }
        self.drop_coldest(moment, level, Some(volume), scope)?;
        // A cap may be met by two at once (volume and class): check again before taking.
        self.take_unused(level, volume, self.scope(level, volume))
    }

    /// A held slot that nobody had, if there is one and no cap is met; nothing yields for it.
    pub(crate) fn take_unused(&mut self, level: usize, volume: u16, scope: Scope) -> Option<Slot> {
        if scope != Scope::Level {
            return None;
        }
        let class = self.volumes.get(volume).class;
        self.levels[level].take_free(volume, class, false)
    }

    /// Drops the coldest clean block of whoever has to yield.
    pub(crate) fn drop_coldest(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        asker: Option<u16>,
        scope: Scope,
    ) -> Option<()> {
        let group = self.levels[level].yielder(&self.volumes, level, asker, scope)?;
        let calm = Calm { busy: &self.busy, destaging: &self.destaging, ranges: &self.ranges };
        // Copies in memory and in lent room are never part of an operation in flight.
        let is_copy = self.levels[level].kind == LevelKind::Memory;
        let mut accept = |victim: &Resident| {
            !victim.dirty && (is_copy || victim.borrowed || calm.allows(victim.key))
        };
        let slot = self.levels[level].evict(moment, group, &mut accept);
        let owner = owner(group);
        let class = self.volumes.get(owner).class;
        let slot = match slot {
            Some(slot) => {
                self.forget_older(level, slot);
                slot
            }
            None => {
                let slot = self.sweep_clean(moment.now, level, group)?;
                self.forget_older(level, slot);
                self.levels[level].unlink(owner, slot);
                slot
            }
        };
        let key = self.levels[level].key(slot);
        self.levels[level].release(owner, class, slot);
        self.drop_lent(owner, level, key);
        self.counters[level].evictions += 1;
        self.push_free(level, slot, false);
        Some(())
    }

    /// A clean block of a volume whose dirty blocks cannot be written back, however warm it is: the
    /// dirty ones stay at the cold end, of which a policy offers a few, and hide it for ever.
    fn sweep_clean(&mut self, now: Nanos, level: usize, group: Group) -> Option<Slot> {
        let number = owner(group);
        let is_hidden = self.levels[level].kind.is_persistent()
            && self.volumes.get(number).fault.is_some()
            && now >= self.clean_not_before[level];
        if !is_hidden {
            return None;
        }
        let id = self.volumes.get(number).id;
        let calm = Calm { busy: &self.busy, destaging: &self.destaging, ranges: &self.ranges };
        let found = self.levels[level].sweep_clean(&mut |victim: &Resident| {
            victim.key.volume() == id && !victim.borrowed && calm.allows(victim.key)
        });
        if found.is_none() {
            self.clean_not_before[level] = now.saturating_add(HOPELESS_PAUSE);
        }
        found
    }

    fn push_free(&mut self, level: usize, slot: Slot, superseded: bool) {
        if self.levels[level].kind.is_persistent() {
            let level = LevelIndex(level as u8);
            self.actions.push(Action::Free { level, slot, superseded });
        }
    }

    /// A record outside the log goes without a successor: what the log still holds of the block, an
    /// older version or a tombstone, must not come back over what the record brought home.
    fn forget_older(&mut self, level: usize, slot: Slot) {
        let held = &self.levels[level];
        if let Some(log) = self.log_level()
            && held.kind == LevelKind::Nvm
            && held.is_homed(slot)
        {
            let key = held.key(slot);
            self.actions.push(Action::Forget { level: LevelIndex(log as u8), key });
        }
    }

    /// A copy in lent room goes with the copy in its own level.
    pub(crate) fn drop_lent(&mut self, volume: u16, below: usize, key: BlockKey) {
        for level in 0..below {
            if self.levels[level].holding(volume).borrowed == 0 {
                continue;
            }
            if let Some(slot) = self.levels[level].find(volume, key)
                && self.levels[level].is_borrowed(slot)
            {
                self.drop_copy(volume, level, slot, true);
            }
        }
    }

    /// A copy leaves a level for another reason than room.
    pub(crate) fn drop_copy(&mut self, volume: u16, level: usize, slot: Slot, superseded: bool) {
        let class = self.volumes.get(volume).class;
        if !superseded {
            self.forget_older(level, slot);
        }
        let was_dirty = self.levels[level].is_dirty(slot);
        self.levels[level].remove(volume, class, slot);
        self.push_free(level, slot, superseded);
        if was_dirty && self.volumes.has_faults {
            self.note_less_dirty(volume);
        }
    }

    // ---- waiting for room ----

    /// A store waits for room: behind those of its rank, or where it has waited before.
    pub(crate) fn wait_for_room(&mut self, moment: &mut Moment<'_>, level: usize, id: OpId) {
        let volume = self.ops.get(id.0).volume;
        let rank = self.volumes.class(volume).rank;
        let known = self.store_mut(id).arrival;
        let arrival = known.unwrap_or_else(|| self.waiting[level].next_arrival());
        self.store_mut(id).arrival = Some(arrival);
        self.waiting[level].add_store(Turn { rank, arrival, volume }, id);
        self.relieve(moment, level, id);
    }

    /// Starts what will free a slot for a waiting store.
    fn relieve(&mut self, moment: &mut Moment<'_>, level: usize, id: OpId) {
        let volume = self.ops.get(id.0).volume;
        let scope = self.yielding_scope(level, id);
        self.push_down_any(moment, level, volume, scope);
    }

    /// Starts moving the coldest dirty block of whoever has to yield.
    pub(crate) fn push_down_coldest(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        asker: Option<u16>,
        scope: Scope,
    ) -> bool {
        self.push_down(moment, level, (asker, scope), Reach::Cold)
    }

    /// [`Cache::push_down_coldest`]; where what is coldest is on its way to a backing store, a
    /// warmer one, for what cannot do without the room.
    pub(crate) fn push_down_any(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        asker: u16,
        scope: Scope,
    ) -> bool {
        self.push_down(moment, level, (Some(asker), scope), Reach::Any)
    }

    fn push_down(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        (asker, scope): (Option<u16>, Scope),
        reach: Reach,
    ) -> bool {
        if self.evictions_inflight >= EVICTIONS_MAX {
            return false;
        }
        let Some(group) = self.levels[level].yielder(&self.volumes, level, asker, scope) else {
            return false;
        };
        let mut slot = None;
        if self.going_home[level] != Some(group) {
            slot = self.coldest_dirty(moment, level, group);
            slot = slot.or_else(|| self.next_dirty_at_bound(level, asker?, group));
        }
        if reach == Reach::Any {
            slot = slot.or_else(|| self.next_dirty_for_below(moment.now, level, group));
        }
        let Some(slot) = slot else { return false };
        if let Some(below) = self.level_below(level, owner(group))
            && self.passes_by(moment.now, below, owner(group), 0)
        {
            return self.start_destage(moment, level, slot) && self.note_passed_by(below);
        }
        if let Some(op) = self.start_evict(moment, level, owner(group), slot) {
            self.eviction_last = Some(LastEviction { op, place: (level, group), slot });
            return true;
        }
        self.start_destage(moment, level, slot)
    }

    /// The coldest dirty block that may leave. What is colder than the eviction that started last
    /// is leaving, too, so it is not looked at again.
    fn coldest_dirty(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        group: Group,
    ) -> Option<Slot> {
        let calm = Calm { busy: &self.busy, destaging: &self.destaging, ranges: &self.ranges };
        let (mut going, mut others) = (0, 0);
        let mut accept = |victim: &Resident| {
            let is_going = self.destaging.contains_key(&victim.key);
            going += u32::from(is_going);
            others += u32::from(!is_going);
            !is_going && victim.dirty && !victim.sick && calm.allows(victim.key)
        };
        let last = self.eviction_last.filter(|last| last.place == (level, group));
        let behind = last.and_then(|last| self.levels[level].peek_behind(last.slot, &mut accept));
        let victim = behind.or_else(|| self.levels[level].peek_cold(moment, group, &mut accept));
        self.going_home[level] = (going > 0 && others == 0).then_some(group);
        victim
    }

    /// A dirty block of a volume that may make no more blocks dirty: only so many are looked at
    /// from the cold end, and what is coldest may be clean.
    fn next_dirty_at_bound(&mut self, level: usize, asker: u16, group: Group) -> Option<Slot> {
        let is_its_own = owner(group) == asker && self.in_vain[level] != Some(group);
        if !is_its_own || self.may_dirty(level, asker) {
            return None;
        }
        let id = self.volumes.get(asker).id;
        let calm = Calm { busy: &self.busy, destaging: &self.destaging, ranges: &self.ranges };
        let found = self.levels[level].sweep(u32::MAX, &mut |dirty: &Resident| {
            dirty.key.volume() == id && !dirty.sick && calm.allows(dirty.key)
        });
        self.in_vain[level] = found.is_none().then_some(group);
        found
    }

    /// A dirty block at rest that can move to a level below, however warm: what is coldest may be
    /// on its way to a backing store that does not answer, and be more than a policy offers.
    fn next_dirty_for_below(&mut self, now: Nanos, level: usize, group: Group) -> Option<Slot> {
        let number = owner(group);
        let mut search = self.volumes.get(number).below_searches[level];
        if now < search.not_before || !self.may_go_down(now, level, number) {
            return None;
        }
        let id = self.volumes.get(number).id;
        let calm = Calm { busy: &self.busy, destaging: &self.destaging, ranges: &self.ranges };
        #[cfg(test)]
        (self.effort.below_looks += 1);
        let mut accept =
            |dirty: &Resident| dirty.key.volume() == id && !dirty.sick && calm.allows(dirty.key);
        let found = self.levels[level].sweep_from(&mut search.hand, BELOW_LOOKS, &mut accept);
        if found.is_none() {
            search.not_before = now.saturating_add(self.below_pause(now, level));
        }
        self.volumes.get_mut(number).below_searches[level] = search;
        found
    }

    /// How long a volume's look pauses: together they cost so much per time at most.
    fn below_pause(&self, now: Nanos, level: usize) -> Nanos {
        let volumes = self.volumes.iter().map(|(_, volume)| volume.below_searches[level]);
        let paused = volumes.filter(|search| now < search.not_before).count();
        Nanos(BELOW_PAUSE.0 * (1 + paused as u64 / BELOW_VOLUMES))
    }

    /// The persistent level below `level` that the volume may use.
    pub(crate) fn level_below(&self, level: usize, volume: u16) -> Option<usize> {
        let allowed = self.levels_of(volume);
        let persistent = |l: &usize| self.levels[*l].kind.is_persistent();
        (level + 1..self.levels.len()).filter(|l| allowed & (1 << l) != 0).find(persistent)
    }

    /// Starts moving a dirty block one persistent level down; `None` where that cannot start now.
    fn start_evict(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        volume: u16,
        slot: Slot,
    ) -> Option<OpId> {
        if moment.now < self.evict_not_before {
            return None;
        }
        let below = self.level_below(level, volume)?;
        if !self.may_dirty(below, volume) {
            return None;
        }
        let to = self.allocate(moment, below, volume)?;
        self.levels[below].begin_storing(volume, 1);
        let key = self.levels[level].key(slot);
        let from = (LevelIndex(level as u8), slot);
        let to = (LevelIndex(below as u8), to);
        let task = Task::Evict(Evict { from, to, storing: false });
        let op = self.start(volume, key.block(), 1, task, true);
        self.evictions_inflight += 1;
        let slots = Few::from_slice(&[slot]);
        self.submit(op, Action::ReadLevel { op, level: from.0, slots });
        Some(op)
    }

    pub(crate) fn on_evicted(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        result: Result<(), ErrorKind>,
    ) {
        let (volume, block, _) = self.extent(id);
        let key = self.key(volume, block);
        let Task::Evict(evict) = &mut self.ops.get_mut(id.0).task else {
            panic!("an eviction ends as an eviction")
        };
        let (from, to) = (evict.from, evict.to);
        if result.is_ok() && !core::mem::replace(&mut evict.storing, true) {
            return self.submit(
                id,
                Action::WriteLevel {
                    op: id,
                    level: to.0,
                    entries: Few::from_slice(&[(to.1, key)]),
                    source: Source::Buffer { index: 0 },
                    dirty: true,
                    durable: true,
                    cause: Cause::Evict,
                },
            );
        }
        let evict_was_storing = evict.storing;
        let (above, below) = (usize::from(from.0.0), usize::from(to.0.0));
        self.levels[below].end_storing(volume, 1);
        if result.is_ok() {
            self.counters[above].evictions += 1;
            self.counters[below].writes += 1;
            self.levels[below].insert(moment, volume, to.1, key, Warmth::Warm);
            self.set_dirty(moment.now, volume, (below, to.1), key);
            self.drop_copy(volume, above, from.1, true);
            self.retry_caps();
        } else {
            let class = self.volumes.get(volume).class;
            self.levels[below].release(volume, class, to.1);
            self.push_free(below, to.1, false);
            if result == Err(ErrorKind::Corrupt) {
                self.note_sick(moment, volume, from.0, from.1);
            }
            if evict_was_storing {
                // The level below fails: victims go home instead, for a while.
                self.evict_not_before = moment.now.saturating_add(EVICT_PAUSE);
            }
        }
        self.evictions_inflight -= 1;
        self.eviction_last = self.eviction_last.filter(|last| last.op != id);
        self.finish(moment, id);
    }

    /// Room may have become free: tries what waits for it, a volume's stores until one finds none.
    pub(crate) fn retry_waiting(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        trigger: Trigger,
    ) {
        let placed_max = if self.is_stepwise { PLACED_STEPWISE } else { RETRIES_MAX };
        let tried_last = self.waiting[level].begin_try(trigger);
        let (mut placed, mut failed, mut last) = (0, 0, None);
        for _ in 0..RETRIES_MAX {
            let Some((turn, id)) = self.waiting[level].take_after(last) else {
                self.waiting[level].end_round(moment.now);
                return self.retry_promotions(moment, level, placed_max - placed);
            };
            let phase = self.store_mut(id).phase;
            assert!(phase == StorePhase::Waiting, "a store waits in its phase");
            #[cfg(test)]
            (self.effort.room_tries += 1);
            self.place(moment, id);
            last = Some(turn);
            if self.waiting[level].has(turn) {
                failed += 1;
                if failed == FAILED_MAX {
                    self.waiting[level].tried_last = last;
                    return;
                }
                if failed == 1 {
                    // The best one has been tried; the others go on where the last try ended.
                    last = last.max(tried_last);
                }
                continue;
            }
            self.waiting[level].has_changed = true;
            // What ended at once brings no end that would try the next one.
            placed += usize::from(self.ops.find(id.0).is_some());
            if placed == placed_max {
                return;
            }
        }
    }

    /// When stores that the last try did not come to are to be tried: at `soon` or later.
    pub(crate) fn untried_deadline(&self, soon: Nanos) -> Nanos {
        let timers = self.waiting.iter().map(|waiting| waiting.timer(FAILED_MAX, soon));
        timers.min().unwrap_or(Nanos::NEVER)
    }

    /// Tries promotions that wait, so many at most, until one has to wait on.
    fn retry_promotions(&mut self, moment: &mut Moment<'_>, level: usize, count: usize) {
        for _ in 0..count {
            let Some(id) = self.waiting[level].promotions.pop_front() else { return };
            let others = self.waiting[level].promotions.len();
            self.retry_promotion(moment, id, level);
            if self.waiting[level].promotions.len() > others {
                return;
            }
        }
    }

    /// Fails stores that wait for room which only the eviction of unreadable blocks could make, or
    /// of dirty ones whose backing store fails: these can neither be moved nor dropped. Checked
    /// once per [`HOPELESS_PAUSE`] at most: it walks over the level for each volume that waits.
    pub(crate) fn refuse_hopeless(&mut self, moment: &mut Moment<'_>, level: usize) {
        if !self.may_be_hopeless(level) || moment.now < self.hopeless_not_before[level] {
            return;
        }
        self.hopeless_not_before[level] = moment.now.saturating_add(HOPELESS_PAUSE);
        let waiting: FixedMap<OpId, u16> =
            self.waiting[level].iter().map(|id| (id, self.ops.get(id.0).volume)).collect();
        let mut hopeless = vec![None; self.volumes.end()];
        for volume in waiting.values() {
            let known = &mut hopeless[usize::from(*volume)];
            if known.is_none() {
                #[cfg(test)]
                (self.effort.hopeless_walks += 1);
                *known = Some(self.is_hopeless(moment.now, level, *volume, &waiting));
            }
        }
        self.fail_waiting_of(moment, level, ErrorKind::Full, |volume| {
            hopeless[usize::from(volume)] == Some(true)
        });
    }

    /// Whether there are blocks that can be neither moved nor dropped.
    pub(crate) fn may_be_hopeless(&self, level: usize) -> bool {
        self.levels[level].sick > 0 || self.volumes.has_faults
    }

    fn is_hopeless(
        &self,
        now: Nanos,
        level: usize,
        volume: u16,
        waiting: &FixedMap<OpId, u16>,
    ) -> bool {
        let is_full = !self.may_dirty(level, volume);
        let scope = if is_full { Scope::Volume } else { self.scope(level, volume) };
        let held = &self.levels[level];
        let has_free = scope == Scope::Level && held.used + held.borrowed < held.limit;
        if has_free || is_full && held.holding(volume).storing > 0 {
            return false;
        }
        // Of those who have to yield: whether dirty blocks can only go to a home that failed.
        let mut cut_off = vec![None; self.volumes.end()];
        let mut slots = 0;
        for number in held.yielding(&self.volumes, (level, volume, scope)).iter().copied() {
            let holding = held.holding(number);
            slots += holding.used + holding.borrowed;
            let is_faulty = self.volumes.get(number).fault.is_some();
            let is_cut_off = is_faulty && !self.has_way_down(now, level, number, waiting);
            cut_off[usize::from(number)] = Some(is_cut_off);
        }
        let mut found = 0;
        for slot in held.slots() {
            let key = held.key(slot);
            let number = self.volumes.number(key.volume());
            let Some(is_cut_off) = number.and_then(|number| cut_off[usize::from(number)]) else {
                continue;
            };
            found += 1;
            let (is_dirty, busy) = (held.is_dirty(slot), self.busy.get(&key));
            // Where too much is dirty, no clean block helps. Blocks that wait for the same room
            // cannot yield theirs; what other operations hold may leave afterwards.
            let is_lost = is_full && !is_dirty
                || held.is_sick(slot)
                || busy.is_some_and(|op| waiting.contains_key(op))
                || is_cut_off && is_dirty && busy.is_none() && !self.destaging.contains_key(&key);
            if !is_lost {
                return false;
            }
        }
        // What is being stored now may leave afterwards.
        found > 0 && found == slots
    }

    /// Whether the volume's dirty blocks may leave the level for a persistent one below, which has
    /// room for one now.
    pub(crate) fn may_go_down(&self, now: Nanos, level: usize, volume: u16) -> bool {
        let Some(below) = self.level_below(level, volume) else { return false };
        let (held, scope) = (&self.levels[below], self.scope(below, volume));
        let has_free = scope == Scope::Level && held.used + held.borrowed < held.limit;
        let has_clean = || {
            let yielding = held.yielding(&self.volumes, (below, volume, scope));
            let mut yielding = yielding.iter().map(|number| held.holding(*number));
            yielding.any(|h| h.used + h.borrowed > h.dirty + h.storing)
        };
        now >= self.evict_not_before
            && !held.is_over()
            && self.may_dirty(below, volume)
            && (has_free || has_clean())
    }

    /// [`Cache::may_go_down`], and the victims' volume below has a clean block that can be evicted:
    /// one that a waiting store writes stays until that store has room.
    fn has_way_down(
        &self,
        now: Nanos,
        level: usize,
        volume: u16,
        waiting: &FixedMap<OpId, u16>,
    ) -> bool {
        let below =
            self.level_below(level, volume).filter(|_| self.may_go_down(now, level, volume));
        let Some(below) = below else { return false };
        let (held, scope) = (&self.levels[below], self.scope(below, volume));
        if scope == Scope::Level && held.used + held.borrowed < held.limit {
            return true;
        }
        let Some(group) = held.yielder(&self.volumes, below, Some(volume), scope) else {
            return false;
        };
        let yields = self.volumes.get(owner(group)).id;
        held.slots().any(|slot| {
            let key = held.key(slot);
            key.volume() == yields
                && !held.is_dirty(slot)
                && self.busy.get(&key).is_none_or(|op| !waiting.contains_key(op))
        })
    }

    /// Fails the volume's stores that wait for room which the backing store cannot make, nor a
    /// level below.
    pub(crate) fn fail_waiting(&mut self, moment: &mut Moment<'_>, volume: u16, kind: ErrorKind) {
        for level in 0..self.levels.len() {
            if self.may_go_down(moment.now, level, volume) {
                continue;
            }
            self.fail_waiting_of(moment, level, kind, |number| number == volume);
        }
    }

    fn fail_waiting_of(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        kind: ErrorKind,
        is_meant: impl Fn(u16) -> bool,
    ) {
        for id in self.waiting[level].take_stores(is_meant) {
            self.end_store(moment, id, Err(kind));
        }
    }
}
