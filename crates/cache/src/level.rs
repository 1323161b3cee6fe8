//! One level: which block is in which slot, who holds how much, what is dirty.
//!
//! How: parallel arrays by slot, an index from block to slot, and an eviction ranking with two
//! groups per volume (its own room, and room it borrowed). What was read ahead and not read yet is
//! in no group's ranking.
//! Invariant: `used` = slots held = sum over the volumes; a memory level has no dirty slot.
//! Cost: 20 bytes per slot here (8 of them links of the ranking), 5 bytes and slack in the index.

mod ages;
mod ahead;
mod dirty;
mod sweep;

use crate::action::Few;
use crate::hash::mix;
use crate::spec::{LEVELS_MAX, LevelKind, LevelSpec};
use crate::volumes::{VolumeState, Volumes};
pub(crate) use ahead::AHEAD_PART;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
pub(crate) use dirty::Generation;
use hashbrown::HashTable;
use layby_policy::cleaning::AgeQuantiles;
use layby_policy::registry::Ranking;
use layby_policy::{
    Candidate, Eviction, Gate, GateInput, GateLimits, Glance, Group, Moment, Prefetched, Standing,
    Warmth, Yielders,
};
use layby_types::planted::{Plant, is_planted};
use layby_types::{BlockKey, Nanos, Slot};

/// The slot holds a block (it may not be indexed yet while being stored).
const HELD: u8 = 1;
/// The backing store does not have this version.
const DIRTY: u8 = 2;
/// The room is only lent.
const BORROWED: u8 = 4;
/// Of a dirty slot, which never is in lent room: it belongs to a generation of odd number.
const ODD: u8 = BORROWED;
/// Read ahead and not read yet (see [`Level::is_ahead`]), or (when dirty) unreadable: see
/// [`Level::is_sick`].
const MARK: u8 = 8;
/// Clean, but it was dirty here: the backing store got its version from this slot.
const HOMED: u8 = 16;
/// The upper half of a dirty slot's flags holds the epoch in which it became dirty.
const EPOCH_SHIFT: u8 = 4;
const EPOCHS: usize = 16;
/// Stamps that pass while the level is used once per slot: how finely ages are told apart.
const STAMPS_PER_TURN: u32 = 64;
/// The oldest age, in stamps: a thousand turns, or half of that where the level's size is just
/// below a power of two. What was not used for longer counts as this old. One LRU over all volumes
/// evicts a block after as many turns as there are accesses per miss, so ages differ for as long.
const AGE_MAX: u16 = u16::MAX - 2 * 2 * STAMPS_PER_TURN as u16;
/// Slots looked at behind the eviction that started last.
const LOOKS_BEHIND: usize = 16;
/// A hit on a slot reads the same whatever its group.
const ANY_GROUP: Group = Group(0);
/// A slot's number and the hash table's control byte.
const INDEX_ENTRY_BYTES: usize = size_of::<u32>() + 1;

/// What a volume holds of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Slots of its own, those being stored included.
    pub(crate) used: u32,
    /// Slots it was lent.
    pub(crate) borrowed: u32,
    /// Dirty slots.
    pub(crate) dirty: u32,
    /// Dirty slots that cannot be read.
    pub(crate) sick: u32,
    /// Dirty slots of generations of odd number, and those of them that cannot be read.
    pub(crate) odd: Generation,
    /// Slots that are being stored and will be dirty, and are not yet.
    pub(crate) storing: u32,
}

/// See the file's header.
pub(crate) struct Level {
    pub(crate) kind: LevelKind,
    pub(crate) slots: u32,
    /// Of these, as many as may be held; fewer where what lies under the level has failed.
    pub(crate) limit: u32,
    pub(crate) used: u32,
    pub(crate) borrowed: u32,
    pub(crate) dirty: u32,
    /// Dirty slots that cannot be read.
    pub(crate) sick: u32,
    /// Of these, the blocks that `destaging` counts, too.
    pub(crate) sick_destaging: BTreeSet<BlockKey>,
    /// Slots that will be dirty, of all volumes.
    pub(crate) storing: u32,
    /// Dirty slots on their way home.
    pub(crate) destaging: u32,
    /// Slots that cleaning frees once their destages end.
    pub(crate) drops_pending: u32,
    pub(crate) dirtied_last: Nanos,
    pub(crate) gate: Gate,
    pub(crate) holdings: Vec<Holding>,
    pub(crate) class_used: Vec<u32>,
    index: HashTable<u32>,
    keys: Vec<BlockKey>,
    flags: Vec<u8>,
    /// When the slot was last used: a stamp, which wraps; see [`Level::touch`].
    touched: Vec<u16>,
    /// Where the ageing of `touched` goes on.
    ageing: u32,
    ages: AgeQuantiles,
    ranking: Ranking,
    ahead: Prefetched,
    free: Vec<u32>,
    fresh_next: u32,
    accesses: u64,
    accesses_shift: u32,
    epoch: usize,
    epoch_counts: [u32; EPOCHS],
    epoch_starts: [Nanos; EPOCHS],
    hand: u32,
}

fn own(volume: u16) -> Group {
    Group(volume * 2)
}

fn lent(volume: u16) -> Group {
    Group(volume * 2 + 1)
}

/// The volume that a group belongs to.
pub(crate) fn owner(group: Group) -> u16 {
    group.0 / 2
}

impl Level {
    pub(crate) fn new(spec: &LevelSpec, classes: usize) -> Self {
        let slots = spec.slots as usize;
        Level {
            kind: spec.kind,
            slots: spec.slots,
            limit: spec.slots,
            used: 0,
            borrowed: 0,
            dirty: 0,
            sick: 0,
            sick_destaging: BTreeSet::new(),
            storing: 0,
            destaging: 0,
            drops_pending: 0,
            dirtied_last: Nanos::ZERO,
            gate: Gate::default(),
            holdings: Vec::new(),
            class_used: vec![0; classes],
            index: HashTable::with_capacity(slots),
            keys: vec![BlockKey(0); slots],
            flags: vec![0; slots],
            touched: vec![0; slots],
            ageing: 0,
            ages: AgeQuantiles::default(),
            ranking: Ranking::new(spec.eviction, spec.slots),
            ahead: Prefetched::default(),
            free: Vec::new(),
            fresh_next: 0,
            accesses: 0,
            accesses_shift: (spec.slots / STAMPS_PER_TURN).max(1).ilog2(),
            epoch: 0,
            epoch_counts: [0; EPOCHS],
            epoch_starts: [Nanos::ZERO; EPOCHS],
            hand: 0,
        }
    }

    /// Bytes of memory held for the level's metadata.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.index.allocation_size()
            + self.keys.capacity() * size_of::<BlockKey>()
            + self.flags.capacity()
            + self.touched.capacity() * size_of::<u16>()
            + self.free.capacity() * 4
            + self.ranking.memory_bytes()
            + self.ahead.memory_bytes()
    }

    /// Of those, bytes of the index that no block uses: a hash table is never full.
    pub(crate) fn slack_bytes(&self) -> usize {
        self.index.allocation_size() - self.index.len() * INDEX_ENTRY_BYTES
    }

    #[inline]
    pub(crate) fn holding(&self, volume: u16) -> Holding {
        self.holdings.get(usize::from(volume)).copied().unwrap_or_default()
    }

    fn holding_mut(&mut self, volume: u16) -> &mut Holding {
        let index = usize::from(volume);
        if index >= self.holdings.len() {
            self.holdings.resize(index + 1, Holding::default());
        }
        &mut self.holdings[index]
    }

    /// The slot that holds `key`, if `volume` holds anything here.
    #[inline]
    pub(crate) fn find(&self, volume: u16, key: BlockKey) -> Option<Slot> {
        let holding = self.holding(volume);
        if holding.used + holding.borrowed == 0 {
            return None;
        }
        self.index.find(mix(key.0), |slot| self.keys[*slot as usize] == key).map(|s| Slot(*s))
    }

    /// Whether a look-up of a block of `volume` would go to the index.
    #[inline]
    pub(crate) fn is_looked_up(&self, volume: u16) -> bool {
        let holding = self.holding(volume);
        holding.used + holding.borrowed > 0
    }

    /// Reads where the index would have a block with this hash.
    #[inline]
    pub(crate) fn touch_index(&self, hash: u64) -> u64 {
        u64::from(self.index.find(hash, |_| false).is_some())
    }

    /// The slot that may hold the block with this hash, by a part of it.
    #[inline]
    pub(crate) fn guess(&self, hash: u64) -> Option<u32> {
        self.index.find(hash, |_| true).copied()
    }

    /// Reads what a hit on `slot` reads and answers with something made of it.
    #[inline]
    pub(crate) fn glance(&self, slot: u32) -> u64 {
        let at = slot as usize;
        let bytes = u64::from(self.flags[at]) ^ u64::from(self.touched[at]);
        let rank = self.ranking.glance(ANY_GROUP, Glance::Hit(Slot(slot)));
        self.keys[at].0 ^ bytes ^ u64::from(rank)
    }

    /// The same of what a hit on `slot` reads around it.
    #[inline]
    pub(crate) fn glance_around(&self, slot: u32) -> u64 {
        u64::from(self.ranking.glance(ANY_GROUP, Glance::Around(Slot(slot))))
    }

    /// Whether the slot answers for its block (a slot being stored does not yet).
    pub(crate) fn is_indexed(&self, slot: Slot) -> bool {
        self.is_held(slot)
            && self.index.find(mix(self.key(slot).0), |other| *other == slot.0).is_some()
    }

    #[inline]
    pub(crate) fn key(&self, slot: Slot) -> BlockKey {
        self.keys[slot.0 as usize]
    }

    #[inline]
    fn flag(&self, slot: Slot, flag: u8) -> bool {
        self.flags[slot.0 as usize] & flag != 0
    }

    #[inline]
    pub(crate) fn is_held(&self, slot: Slot) -> bool {
        self.flag(slot, HELD)
    }

    #[inline]
    pub(crate) fn is_dirty(&self, slot: Slot) -> bool {
        self.flag(slot, DIRTY)
    }

    #[inline]
    pub(crate) fn is_borrowed(&self, slot: Slot) -> bool {
        self.flags[slot.0 as usize] & (BORROWED | DIRTY) == BORROWED
    }

    pub(crate) fn is_homed(&self, slot: Slot) -> bool {
        !self.is_dirty(slot) && self.flag(slot, HOMED)
    }

    #[inline]
    fn group_of(&self, slot: Slot, volume: u16) -> Group {
        if self.is_borrowed(slot) { lent(volume) } else { own(volume) }
    }

    /// More is held than may be.
    pub(crate) fn is_over(&self) -> bool {
        self.used + self.borrowed > self.limit
    }

    /// A slot that nobody holds, if there is one.
    pub(crate) fn take_free(&mut self, volume: u16, class: usize, borrow: bool) -> Option<Slot> {
        if self.used + self.borrowed >= self.limit {
            return None;
        }
        let slot = self.free.pop().or_else(|| {
            let fresh = (self.fresh_next < self.slots).then_some(self.fresh_next)?;
            self.fresh_next += 1;
            Some(fresh)
        })?;
        self.hold(Slot(slot), volume, class, borrow);
        Some(Slot(slot))
    }

    fn hold(&mut self, slot: Slot, volume: u16, class: usize, borrow: bool) {
        assert!(!self.is_held(slot), "a free slot holds nothing");
        self.flags[slot.0 as usize] = if borrow { HELD | BORROWED } else { HELD };
        if borrow {
            self.borrowed += 1;
            self.holding_mut(volume).borrowed += 1;
        } else {
            self.used += 1;
            self.holding_mut(volume).used += 1;
            self.class_used[class] += 1;
        }
        assert!(self.used + self.borrowed <= self.slots, "more slots held than the level has");
    }

    /// Takes a particular free slot during recovery; false when it is taken already.
    pub(crate) fn take_exact(&mut self, slot: Slot, volume: u16, class: usize) -> bool {
        if self.is_held(slot) {
            return false;
        }
        while self.fresh_next <= slot.0 {
            self.free.push(self.fresh_next);
            self.fresh_next += 1;
        }
        // Recovery ends with `rebuild_free`, which drops the slots taken meanwhile.
        self.hold(slot, volume, class, false);
        true
    }

    /// Ends recovery: the free list holds exactly what nobody holds.
    pub(crate) fn rebuild_free(&mut self) {
        let flags = &self.flags;
        self.free.retain(|slot| flags[*slot as usize] & HELD == 0);
        self.free.shrink_to_fit();
    }

    /// The held slot now answers for `key`.
    pub(crate) fn insert(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        slot: Slot,
        key: BlockKey,
        warmth: Warmth,
    ) {
        self.index_key(volume, slot, key);
        self.touch(slot);
        if warmth == Warmth::Cold {
            self.cool(slot);
        }
        let group = self.group_of(slot, volume);
        self.ranking.on_insert(moment, group, slot, key, warmth);
    }

    fn index_key(&mut self, volume: u16, slot: Slot, key: BlockKey) {
        assert!(self.is_held(slot) && self.find(volume, key).is_none(), "{key:?} is here already");
        self.keys[slot.0 as usize] = key;
        let keys = &self.keys;
        self.index.insert_unique(mix(key.0), slot.0, |s| mix(keys[*s as usize].0));
    }

    #[inline]
    pub(crate) fn on_hit(&mut self, moment: &mut Moment<'_>, volume: u16, slot: Slot) {
        self.touch(slot);
        if self.is_ahead(slot) {
            return self.settle_ahead(moment, volume, slot);
        }
        let group = self.group_of(slot, volume);
        self.ranking.on_hit(moment, group, slot);
    }

    #[inline]
    fn touch(&mut self, slot: Slot) {
        // Borrowers do not advance the clock: with borrowing on or off, owners rank the same.
        if !self.is_borrowed(slot) {
            self.accesses += 1;
        }
        self.touched[slot.0 as usize] = self.stamp();
        self.age();
    }

    /// Keeps the oldest stamps from wrapping into young ones. With one slot per access each is aged
    /// once per turn, and a turn has fewer stamps than lie between [`AGE_MAX`] and `u16::MAX`.
    #[inline]
    fn age(&mut self) {
        let stamp = self.stamp();
        let touched = &mut self.touched[self.ageing as usize];
        if stamp.wrapping_sub(*touched) > AGE_MAX {
            *touched = stamp.wrapping_sub(AGE_MAX);
        }
        self.ageing = if self.ageing + 1 == self.slots { 0 } else { self.ageing + 1 };
    }

    #[inline]
    fn stamp(&self) -> u16 {
        (self.accesses >> self.accesses_shift) as u16
    }

    /// Takes the block out; the slot is free afterwards.
    pub(crate) fn remove(&mut self, volume: u16, class: usize, slot: Slot) {
        self.unlink(volume, slot);
        self.set_clean(volume, slot);
        self.release(volume, class, slot);
    }

    /// Takes a slot out of index and ranking.
    pub(crate) fn unlink(&mut self, volume: u16, slot: Slot) {
        let (key, group) = (self.key(slot), self.group_of(slot, volume));
        if self.is_ahead(slot) {
            self.forget_ahead(slot);
        } else {
            self.ranking.on_remove(group, slot);
        }
        self.unindex(key, slot);
    }

    fn unindex(&mut self, key: BlockKey, slot: Slot) {
        match self.index.find_entry(mix(key.0), |s| *s == slot.0) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => panic!("{key:?} was inserted but is not indexed"),
        }
    }

    /// Frees a held slot that was never inserted or is out of index and ranking.
    pub(crate) fn release(&mut self, volume: u16, class: usize, slot: Slot) {
        assert!(self.is_held(slot) && !self.is_dirty(slot), "only clean held slots are released");
        if self.is_borrowed(slot) {
            self.borrowed -= 1;
            self.holding_mut(volume).borrowed -= 1;
        } else {
            self.used -= 1;
            self.holding_mut(volume).used -= u32::from(!is_planted(Plant::ShareMiscount));
            self.class_used[class] -= 1;
        }
        self.flags[slot.0 as usize] = 0;
        self.free.push(slot.0);
    }

    /// Whether anybody who holds room now would have to yield some to `asker`, sooner or later.
    pub(crate) fn may_yield(
        &self,
        volumes: &Volumes,
        level: usize,
        asker: u16,
        scope: Scope,
    ) -> bool {
        let mut may_yield = false;
        self.each_standing(volumes, (level, Some(asker), scope), |_, standing, _| {
            may_yield |= standing != Standing::Protected;
        });
        may_yield
    }

    /// The group that has to yield a slot to `asker` (a volume), or to nobody in particular.
    pub(crate) fn yielder(
        &self,
        volumes: &Volumes,
        level: usize,
        asker: Option<u16>,
        scope: Scope,
    ) -> Option<Group> {
        let stamp = self.stamp();
        let is_spared = |spared: Spared, group: Group, coldest: Slot| {
            let holding = self.holding(owner(group));
            let has_fault = || {
                let volume = owner(group);
                volumes.get(volume).fault.is_some() || volumes.waits_elsewhere(volume, asker)
            };
            match spared {
                Spared::ColdEndStuck => {
                    self.is_sick(coldest) || (self.is_dirty(coldest) && has_fault())
                }
                Spared::AllStuck if self.is_borrowed(coldest) => false,
                Spared::AllStuck if has_fault() => holding.used == holding.dirty,
                Spared::AllStuck => holding.used == holding.sick,
                Spared::Nobody => false,
            }
        };
        let choose = |spared: Spared| {
            let mut yielders = Yielders::default();
            self.each_standing(volumes, (level, asker, scope), |group, standing, rank| {
                let coldest = self.ranking.coldest(group);
                if let Some(coldest) = coldest.or_else(|| self.ahead.oldest_first(group).next())
                    && !is_spared(spared, group, coldest)
                {
                    let coldest_age = stamp.wrapping_sub(self.touched[coldest.0 as usize]);
                    yielders.consider(Candidate { group, standing, rank, coldest_age });
                }
            });
            yielders.first()
        };
        // A block that is sick, or cannot go home, cannot leave: a volume with others at the cold
        // end yields first, and one with none at all last. The same where a block would wait for a
        // device that is not the asker's: it leaves as fast as that one takes it, asked or not.
        if self.sick == 0 && !volumes.has_faults && !volumes.places.may_differ() {
            return choose(Spared::Nobody);
        }
        let order = [Spared::ColdEndStuck, Spared::AllStuck, Spared::Nobody];
        order.into_iter().find_map(choose)
    }

    /// The volumes whose blocks have to yield to `asker`, sooner or later.
    pub(crate) fn yielding(
        &self,
        volumes: &Volumes,
        (level, asker, scope): (usize, u16, Scope),
    ) -> Few<u16> {
        let mut yielding = Few::new();
        self.each_standing(volumes, (level, Some(asker), scope), |group, standing, _| {
            if standing != Standing::Protected && !yielding.contains(&owner(group)) {
                yielding.push(owner(group));
            }
        });
        yielding
    }

    /// Who holds room within the scope, how each stands towards the asker, and its class's rank.
    #[inline]
    fn each_standing(
        &self,
        volumes: &Volumes,
        (level, asker, scope): (usize, Option<u16>, Scope),
        mut take: impl FnMut(Group, Standing, u8),
    ) {
        let asker_class = asker.map(|asker| volumes.get(asker).class);
        for (v, volume) in volumes.iter() {
            let holding = self.holding(v);
            let is_asked = match scope {
                Scope::Level | Scope::Owners => true,
                Scope::Class => asker_class == Some(volume.class),
                Scope::Volume => asker == Some(v),
            };
            if !is_asked || holding.used + holding.borrowed == 0 {
                continue;
            }
            let rank = volumes.classes[volume.class].rank;
            if holding.borrowed > 0 && scope == Scope::Level {
                take(lent(v), Standing::Borrower, rank);
            }
            if holding.used > 0 {
                let standing = match self.claim(
                    volumes,
                    (level, scope),
                    (holding.used, volume),
                    asker_class,
                ) {
                    Claim::None => Standing::AboveGuarantee,
                    _ if asker == Some(v) => Standing::Self_,
                    Claim::Share => Standing::WithinShare,
                    Claim::Guarantee => Standing::Protected,
                };
                take(own(v), standing, rank);
            }
        }
    }

    /// What a volume that uses so much may say against a demand for its room.
    #[inline]
    fn claim(
        &self,
        volumes: &Volumes,
        (level, scope): (usize, Scope),
        (used, state): (u32, &VolumeState),
        asker_class: Option<usize>,
    ) -> Claim {
        let class_guaranteed = volumes.classes[state.class].shares[level].guaranteed;
        // Sized volumes of a class share its guarantee among each other.
        let is_sibling = || state.sized.is_some() && asker_class == Some(state.class);
        let above = used > state.shares[level].guaranteed
            && (self.class_used[state.class] > class_guaranteed || is_sibling());
        if !above && !matches!(scope, Scope::Class | Scope::Volume) {
            Claim::Guarantee
        } else if state.sized.is_some_and(|sized| used <= sized[level]) {
            Claim::Share
        } else {
            Claim::None
        }
    }

    /// Takes the coldest slot of `group` that `accept` takes out of index and ranking; it stays
    /// held by its volume until `release`. What was read ahead lately leaves last.
    pub(crate) fn evict(
        &mut self,
        moment: &mut Moment<'_>,
        group: Group,
        accept: &mut dyn FnMut(&Resident) -> bool,
    ) -> Option<Slot> {
        self.expire_ahead(moment, group);
        let (keys, flags) = (&self.keys, &self.flags);
        let slot = self.ranking.evict(moment, group, None, &mut |slot| {
            let resident = Resident::new(keys[slot.0 as usize], flags[slot.0 as usize]);
            accept(&resident).then_some(resident.key)
        });
        let slot = slot.or_else(|| self.evict_ahead(group, accept))?;
        self.unindex(self.key(slot), slot);
        self.glance_leaving(group);
        Some(slot)
    }

    /// Reads what the next evictions from `group` will read, in three steps, each of which has at
    /// hand what the one before read at the eviction before: state, index, the index's entry.
    #[inline]
    fn glance_leaving(&self, group: Group) {
        let Some(first) = self.ranking.coldest(group) else { return };
        let hash = |slot: Slot| mix(self.key(slot).0);
        let mut seen = u64::from(self.index.find(hash(first), |slot| *slot == first.0).is_some());
        if let Some(second) = self.ranking.next_coldest(first) {
            seen ^= self.touch_index(hash(second));
            let third = self.ranking.next_coldest(second);
            seen ^= third.map_or(0, |third| self.glance(third.0));
        }
        // Wanted for its effect on the processor's caches.
        core::hint::black_box(seen);
    }

    /// The first slot from the cold end that `accept` takes, left in place.
    pub(crate) fn peek_cold(
        &mut self,
        moment: &mut Moment<'_>,
        group: Group,
        accept: &mut dyn FnMut(&Resident) -> bool,
    ) -> Option<Slot> {
        let (keys, flags) = (&self.keys, &self.flags);
        let mut found = None;
        self.ranking.evict(moment, group, None, &mut |slot| {
            let resident = Resident::new(keys[slot.0 as usize], flags[slot.0 as usize]);
            if found.is_none() && accept(&resident) {
                found = Some(slot);
            }
            None
        });
        found
    }

    /// The first slot warmer than `slot` that `accept` takes, among a few.
    pub(crate) fn peek_behind(
        &self,
        slot: Slot,
        accept: &mut dyn FnMut(&Resident) -> bool,
    ) -> Option<Slot> {
        let behind = core::iter::successors(Some(slot), |slot| self.ranking.next_coldest(*slot));
        let resident = |slot: &Slot| Resident::new(self.key(*slot), self.flags[slot.0 as usize]);
        behind.skip(1).take(LOOKS_BEHIND).find(|slot| accept(&resident(slot)))
    }

    /// Every held, indexed slot, in no order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.index.iter().map(|slot| Slot(*slot))
    }

    /// Every held, indexed slot of `volume`, for removal of a volume and for checks.
    pub(crate) fn slots_of(&self, keys: impl Fn(BlockKey) -> bool) -> Vec<Slot> {
        let mut slots: Vec<Slot> =
            self.index.iter().filter(|s| keys(self.keys[**s as usize])).map(|s| Slot(*s)).collect();
        slots.sort_unstable();
        slots
    }

    pub(crate) fn gate_limits(&self, spec: &LevelSpec, idle_timeout: Nanos) -> GateLimits {
        let percent = |mark: u8| (u64::from(self.limit) * u64::from(mark)).div_ceil(100) as u32;
        let marks = spec.watermarks;
        let red = if marks.dirty_red == 100 { u32::MAX } else { percent(marks.dirty_red) };
        GateLimits { red, green: percent(marks.dirty_green), idle_timeout }
    }

    /// Whether another destage should start now.
    pub(crate) fn wants_destage(
        &mut self,
        spec: &LevelSpec,
        idle_timeout: Nanos,
        now: Nanos,
    ) -> bool {
        let input = self.gate_input(now);
        if input.dirty == 0 {
            // What an open gate comes to; most levels of most moments end here.
            self.gate = Gate::default();
            return false;
        }
        let limits = self.gate_limits(spec, idle_timeout);
        self.gate.is_open(&limits, &input)
    }

    /// What the gate is shown: what cannot be read is not destaged, so it opens no gate.
    pub(crate) fn gate_input(&self, now: Nanos) -> GateInput {
        let sick = self.sick - self.sick_destaging.len() as u32;
        let dirty = self.dirty.saturating_sub(self.destaging + sick);
        GateInput { dirty, dirtied_last: self.dirtied_last, now }
    }
}

/// A held slot as an acceptance test sees it.
pub(crate) struct Resident {
    pub(crate) key: BlockKey,
    pub(crate) dirty: bool,
    pub(crate) sick: bool,
    pub(crate) borrowed: bool,
    /// Dirty, and of a generation of odd number.
    pub(crate) odd: bool,
}

impl Resident {
    fn new(key: BlockKey, flags: u8) -> Self {
        let dirty = flags & DIRTY != 0;
        let borrowed = flags & (BORROWED | DIRTY) == BORROWED;
        let odd = dirty && flags & ODD != 0;
        Resident { borrowed, odd, key, dirty, sick: dirty && flags & MARK != 0 }
    }
}

/// Why a volume may keep its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// It holds more than it is entitled to.
    None,
    /// It holds no more than the share that it was sized.
    Share,
    /// It or its class holds no more than its guarantee.
    Guarantee,
}

/// Who is not asked to yield while others may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spared {
    /// Whose coldest block cannot leave.
    ColdEndStuck,
    /// Of whom no block can leave.
    AllStuck,
    /// Nobody.
    Nobody,
}

/// Among whom a yielder is sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All volumes, those that borrow first.
    Level,
    /// All volumes, without what is only lent.
    Owners,
    /// The asker's class: it is at its cap.
    Class,
    /// The asker alone: it is at its cap.
    Volume,
}

const _: () = assert!(LEVELS_MAX <= 8, "a class names its levels in eight bits");

#[cfg(test)]
mod tests;
