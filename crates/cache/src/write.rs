//! Writes: whole blocks in runs straight from the payload, parts merged into what the block held.
//!
//! How: a write lands in the first persistent level that its class may use, or passes through to
//! the backing store where there is none. Copies elsewhere are dropped when the new one is safe.
//! Invariant: while a block is being stored its old version stays whole, so of a failed write each
//! block is as it was or, where a log holds its record already, as written; a copy in another
//! persistent level is dropped only after the new one is durable.
//! Source: PADSA section IV.B (write).

use crate::action::{Action, Cause, Few, OpId, Redo, Source};
use crate::cache::Cache;
use crate::op::{Origin, Piece, Store, StorePhase, Task, Want};
use crate::read::Pieces;
use crate::spec::LevelKind;
use crate::worn::BYPASS_BLOCKS_MIN;
use alloc::vec::Vec;
use layby_policy::{Moment, Warmth};
use layby_types::planted::{Plant, is_planted};
use layby_types::{BlockIndex, Call, ErrorKind, LevelIndex, RequestId, Slot};

/// Blocks of one store at most.
const STORE_BLOCKS_MAX: u32 = 256;

/// Whole neighbouring blocks of one payload.
struct Whole {
    first: BlockIndex,
    count: u32,
    offset: u32,
}

impl Cache {
    pub(crate) fn write(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        request: RequestId,
        call: &Call,
    ) {
        let durable = call.flags.fua || self.volumes.class(volume).durable_writes;
        self.begin(request, 1);
        let block_bytes = self.spec.block_size.bytes();
        let mut whole: Option<Whole> = None;
        for (block, part) in Pieces::new(self.spec.block_size, call.offset, call.length) {
            // What is full goes first: to make room it may evict the very block that is looked at.
            if whole.as_ref().is_some_and(|whole| whole.count == STORE_BLOCKS_MAX) {
                self.store_whole(moment, volume, request, whole.take().as_ref(), durable);
            }
            let free = self.blocker(volume, self.key(volume, block)).is_none();
            if part.length == block_bytes && free {
                match &mut whole {
                    Some(whole) => whole.count += 1,
                    None => {
                        whole = Some(Whole { first: block, count: 1, offset: part.request_offset });
                    }
                }
                continue;
            }
            self.store_whole(moment, volume, request, whole.take().as_ref(), durable);
            self.add_part(request);
            let piece = Piece { request, block, part, want: Want::Write { durable } };
            self.write_piece(moment, volume, piece);
        }
        self.store_whole(moment, volume, request, whole.as_ref(), durable);
        self.end_part(request, Ok(()));
    }

    fn store_whole(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        request: RequestId,
        whole: Option<&Whole>,
        durable: bool,
    ) {
        let Some(&Whole { first, count, offset }) = whole else { return };
        self.add_part(request);
        let origin = Origin::Payload { offset };
        self.start_store(moment, volume, (first, count), request, origin, durable);
    }

    /// Dispatches one piece of a write or zeroing: it queues, or starts a store of its own. The
    /// piece already counts as a part of its request.
    pub(crate) fn write_piece(&mut self, moment: &mut Moment<'_>, volume: u16, piece: Piece) {
        let key = self.key(volume, piece.block);
        if let Some(op) = self.blocker(volume, key)
            && (!self.cancel_promotion(moment, op) || self.blocker(volume, key).is_some())
        {
            let op = self.blocker(volume, key).expect("it was just found");
            self.ops.get_mut(op.0).queue.push_back(piece);
            return;
        }
        let part = piece.part;
        let is_whole = part.length == self.spec.block_size.bytes();
        let (origin, durable) = match piece.want {
            Want::Write { durable } if is_whole => {
                (Origin::Payload { offset: part.request_offset }, durable)
            }
            Want::Write { durable } => (Origin::Merge { part, zero: false }, durable),
            Want::Zero { durable } => (Origin::Merge { part, zero: true }, durable),
            Want::Read => panic!("a read is no write"),
        };
        self.start_store(moment, volume, (piece.block, 1), piece.request, origin, durable);
    }

    fn start_store(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        (first, count): (BlockIndex, u32),
        request: RequestId,
        origin: Origin,
        durable: bool,
    ) {
        let level = self.landing(moment, volume, count).map(|l| LevelIndex(l as u8));
        let phase = StorePhase::Waiting;
        let slots = Few::new();
        let (arrival, counted) = (None, 0);
        let store = Store { request, durable, origin, phase, level, arrival, slots, counted };
        let id = self.start(volume, first, count, Task::Store(store), true);
        for block in first.0..first.0 + u64::from(count) {
            let key = self.key(volume, BlockIndex(block));
            if let Some(mark) = self.destaging.get_mut(&key) {
                mark.superseded = true;
            }
        }
        match origin {
            Origin::Payload { .. } => self.place(moment, id),
            Origin::Merge { part, zero } if self.covers(volume, first, part) => {
                self.actions.push(Action::Blank { op: id });
                self.actions.push(Action::Merge { op: id, request, part, zero });
                self.place(moment, id);
            }
            Origin::Merge { .. } => self.read_for_merge(id),
        }
    }

    /// Whether a part is all that the volume has of a block, though it is less than a block: what
    /// was there need not be read, and may be unreadable.
    fn covers(&self, volume: u16, block: BlockIndex, part: crate::Part) -> bool {
        let start = self.spec.block_size.offset_of(block);
        let end = start + u64::from(part.length);
        part.block_offset == 0 && end == self.volumes.get(volume).length
    }

    /// Where a write of so many blocks lands: below a level whose flash has been worn too fast,
    /// where it is long enough.
    fn landing(&mut self, moment: &Moment<'_>, volume: u16, count: u32) -> Option<usize> {
        if self.writes_through(volume) {
            return None;
        }
        let level = self.spec.write_level(self.class_id(volume))?;
        if count >= BYPASS_BLOCKS_MIN && self.passes_by(moment.now, level, volume, count) {
            return self.level_below(level, volume);
        }
        Some(level)
    }

    fn class_id(&self, volume: u16) -> layby_types::ClassId {
        layby_types::ClassId(self.volumes.get(volume).class as u8)
    }

    pub(crate) fn store_mut(&mut self, id: OpId) -> &mut Store {
        match &mut self.ops.get_mut(id.0).task {
            Task::Store(store) => store,
            other => panic!("{id:?} is no store but {other:?}"),
        }
    }

    fn read_for_merge(&mut self, op: OpId) {
        let (volume, first, _) = self.extent(op);
        let key = self.key(volume, first);
        // Memory levels are skipped: the copy below them is the same and can be read by anyone.
        // So are copies in lent room, which the host need not have stored.
        let mut persistent = self.levels.iter().enumerate().filter(|(_, l)| l.kind.is_persistent());
        let found = persistent.find_map(|(i, level)| {
            let slot = level.find(volume, key).filter(|slot| !level.is_borrowed(*slot))?;
            Some((i, slot))
        });
        let Some((level, slot)) = found else { return self.read_below_for_merge(op) };
        let level = LevelIndex(level as u8);
        self.store_mut(op).phase = StorePhase::Reading { from: Some(level) };
        self.submit(op, Action::ReadLevel { op, level, slots: Few::from_slice(&[slot]) });
    }

    fn read_below_for_merge(&mut self, op: OpId) {
        let (volume, first, count) = self.extent(op);
        self.store_mut(op).phase = StorePhase::Reading { from: None };
        self.backing.count_read(1, false);
        let volume = self.volumes.get(volume).id;
        self.submit(op, Action::ReadBacking { op, volume, first, count, at_hand: false });
    }

    /// Finds room for a store and hands it over; what finds none waits, without holding any. A part
    /// of a request that has failed ends with it: the answer is known, and each part may wait long.
    pub(crate) fn place(&mut self, moment: &mut Moment<'_>, id: OpId) {
        let (volume, first, count) = self.extent(id);
        let request = self.store_mut(id).request;
        if let Some(kind) = self.requests.get(&request).and_then(|state| state.error) {
            return self.end_store(moment, id, Err(kind));
        }
        let Some(level) = self.store_mut(id).level else { return self.pass_through(moment, id) };
        let index = usize::from(level.0);
        let mut slots: Few<(Slot, bool)> = Few::new();
        let mut entries = Few::new();
        let storing = self.levels[index].holding(volume).storing;
        for block in first.0..first.0 + u64::from(count) {
            let key = self.key(volume, BlockIndex(block));
            let Some(slot) = self.slot_for(moment, index, volume, key) else { break };
            entries.push((slot.0, key));
            slots.push(slot);
        }
        if slots.is_empty() {
            if let Some(kind) = self.volumes.get(volume).fault
                && !self.may_go_down(moment.now, index, volume)
            {
                return self.end_store(moment, id, Err(kind));
            }
            if !self.may_have_room(index, volume) {
                let below = self.level_below(index, volume).map(|level| LevelIndex(level as u8));
                let store = self.store_mut(id);
                (store.level, store.arrival) = (below, None);
                return self.place(moment, id);
            }
            // A later block of the run may have its slot already, and others may wait for that.
            let rest = (count > 1).then(|| self.split(id, 1));
            self.store_mut(id).phase = StorePhase::Waiting;
            self.wait_for_room(moment, index, id);
            return rest.into_iter().for_each(|rest| self.place(moment, rest));
        }
        let rest = (slots.len() < count as usize).then(|| self.split(id, slots.len() as u32));
        let moves = self.has_copy_outside(volume, index, first, slots.len() as u64);
        let counted = self.levels[index].holding(volume).storing - storing;
        let store = self.store_mut(id);
        store.counted = counted;
        store.durable |= moves;
        store.phase = StorePhase::Storing;
        store.slots = slots;
        let source = source(store);
        let (durable, cause) = (store.durable, Cause::Write);
        let action =
            Action::WriteLevel { op: id, level, entries, source, dirty: true, durable, cause };
        self.submit(id, action);
        if let Some(rest) = rest {
            self.place(moment, rest);
        }
    }

    /// The slot that will hold the block (and whether it is new to it). One that is not dirty yet
    /// counts as being stored.
    fn slot_for(
        &mut self,
        moment: &mut Moment<'_>,
        level: usize,
        volume: u16,
        key: layby_types::BlockKey,
    ) -> Option<(Slot, bool)> {
        let found = self.levels[level].find(volume, key);
        if let Some(slot) = found.filter(|slot| self.levels[level].is_dirty(*slot)) {
            return Some((slot, false));
        }
        let may_dirty = self.may_dirty(level, volume);
        let own = found.filter(|slot| may_dirty && !self.levels[level].is_borrowed(*slot));
        let slot = match (own, found) {
            (Some(slot), _) => (slot, false),
            (None, copy) => {
                // What waits holds no slot: others would wait for that.
                if let Some(slot) = copy {
                    self.drop_copy(volume, level, slot, false);
                }
                let slot = if may_dirty { self.allocate(moment, level, volume) } else { None };
                (slot?, true)
            }
        };
        self.levels[level].begin_storing(volume, 1);
        Some(slot)
    }

    /// Cuts a store after `kept` blocks; the rest becomes a store of its own.
    fn split(&mut self, id: OpId, kept: u32) -> OpId {
        let block_bytes = self.spec.block_size.bytes();
        let op = self.ops.get_mut(id.0);
        let (volume, count) = (op.volume, op.count - kept);
        let first = BlockIndex(op.first.0 + u64::from(kept));
        op.count = kept;
        let moved = op.queue.iter().filter(|piece| piece.block >= first).copied().collect();
        op.queue.retain(|piece| piece.block < first);
        let store = self.store_mut(id);
        let Origin::Payload { offset } = store.origin else { panic!("a merge has one block") };
        let origin = Origin::Payload { offset: offset + kept * block_bytes };
        let (request, durable, level) = (store.request, store.durable, store.level);
        let phase = StorePhase::Waiting;
        let slots = Few::new();
        let (arrival, counted) = (None, 0);
        let store = Store { request, durable, origin, phase, level, arrival, slots, counted };
        let rest = self.start(volume, first, count, Task::Store(store), false);
        self.ops.get_mut(rest.0).queue = moved;
        for block in first.0..first.0 + u64::from(count) {
            let key = self.key(volume, BlockIndex(block));
            self.busy.insert(key, rest);
        }
        self.add_part(request);
        rest
    }

    /// Whether another persistent level holds a copy of one of the blocks.
    fn has_copy_outside(&self, volume: u16, level: usize, first: BlockIndex, count: u64) -> bool {
        let others =
            self.levels.iter().enumerate().filter(|(i, l)| {
                *i != level && l.kind.is_persistent() && l.holding(volume).used > 0
            });
        let mut others = others;
        others.any(|(_, held)| {
            let mut blocks = first.0..first.0 + count;
            blocks.any(|b| held.find(volume, self.key(volume, BlockIndex(b))).is_some())
        })
    }

    /// A store whose class has no persistent level: into a level that still holds the block, else
    /// straight to the backing store, after the logs have been told to forget the block.
    fn pass_through(&mut self, moment: &mut Moment<'_>, id: OpId) {
        let (volume, first, count) = self.extent(id);
        let blocks = first.0..first.0 + u64::from(count);
        if self.writes_through(volume) {
            self.drop_kept(volume, blocks.clone());
        } else if self.has_copy_outside(volume, usize::MAX, first, u64::from(count)) {
            if count > 1 {
                let rest = self.split(id, 1);
                self.place(moment, id);
                return self.place(moment, rest);
            }
            let key = self.key(volume, first);
            let holds = |level: &usize| self.levels[*level].find(volume, key).is_some();
            let level = self.persistent_levels().find(holds).expect("a level has a copy");
            self.store_mut(id).level = Some(LevelIndex(level as u8));
            return self.place(moment, id);
        }
        if blocks.clone().any(|b| self.destaging.contains_key(&self.key(volume, BlockIndex(b)))) {
            // An older version is on its way home; ours must not be overtaken by it.
            self.store_mut(id).phase = StorePhase::Waiting;
            self.parked.push(id);
            return;
        }
        if self.may_be_logged(volume, &blocks) && self.persistent_levels().next().is_some() {
            self.bury(id);
        } else {
            self.write_through(id);
        }
    }

    pub(crate) fn persistent_levels(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.levels.len()).filter(|level| self.levels[*level].kind.is_persistent())
    }

    /// Records that were dropped may still lie in the levels; that they are dead must be durable
    /// before the backing store holds something newer.
    fn bury(&mut self, op: OpId) {
        let (number, first, count) = self.extent(op);
        let (volume, through) = (self.volumes.get(number).id, self.writes_through(number));
        let store = self.store_mut(op);
        // Where the volume writes through, what is buried is durable at home.
        (store.phase, store.durable) = (StorePhase::Burying, store.durable || !through);
        if let Some(log) = self.log_level() {
            let (level, redo, durable) = (LevelIndex(log as u8), Redo::Nothing, true);
            let action = Action::Tombstone { op, level, volume, first, count, redo, durable };
            return self.submit(op, action);
        }
        let levels: Few<usize> = self.persistent_levels().collect();
        for level in levels {
            self.submit(op, Action::SyncLevel { op, level: LevelIndex(level as u8) });
        }
    }

    fn write_through(&mut self, id: OpId) {
        let (volume, first, count) = self.extent(id);
        let store = self.store_mut(id);
        store.phase = StorePhase::Storing;
        let (source, durable) = (source(store), store.durable);
        let volume = self.volumes.get(volume).id;
        self.submit(id, Action::WriteBacking { op: id, volume, first, count, source, durable });
    }

    /// A destage ended: stores that waited for it go on.
    pub(crate) fn retry_parked(&mut self, moment: &mut Moment<'_>) {
        for id in core::mem::take(&mut self.parked) {
            self.place(moment, id);
        }
    }

    pub(crate) fn on_stored(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        result: Result<(), ErrorKind>,
    ) {
        let store = self.store_mut(id);
        match store.phase {
            StorePhase::Reading { .. } if result.is_ok() => {
                let Origin::Merge { part, zero } = store.origin else { panic!("a merge reads") };
                let request = store.request;
                self.actions.push(Action::Merge { op: id, request, part, zero });
                self.place(moment, id);
            }
            StorePhase::Reading { from } => self.retry_merge(moment, id, from, result),
            StorePhase::Storing if result.is_ok() => self.on_written_down(moment, id),
            StorePhase::Finding if result.is_ok() => self.settle(moment, id),
            StorePhase::Burying if result.is_ok() => self.write_through(id),
            StorePhase::Storing | StorePhase::Burying | StorePhase::Finding => {
                self.end_store(moment, id, result);
            }
            StorePhase::Waiting => panic!("nothing is in flight for a waiting store"),
        }
    }

    /// The new version lies where it is to lie. That lost blocks are whole again, a level's record
    /// says by itself.
    fn on_written_down(&mut self, moment: &mut Moment<'_>, id: OpId) {
        if self.store_mut(id).level.is_none() {
            let (_, _, count) = self.extent(id);
            self.backing.count_write(count);
            if self.is_found(id) {
                return self.record_found(id);
            }
        }
        self.settle(moment, id);
    }

    /// What a merge goes into could not be read in a level: where it is clean, the backing store is
    /// asked. A bad copy is dropped, or marked where it is dirty; a level that failed for another
    /// reason says nothing of its blocks.
    fn retry_merge(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        from: Option<LevelIndex>,
        result: Result<(), ErrorKind>,
    ) {
        let Some(level) = from else { return self.end_store(moment, id, result) };
        let (volume, first, _) = self.extent(id);
        let key = self.key(volume, first);
        let (index, is_bad) = (usize::from(level.0), result == Err(ErrorKind::Corrupt));
        let held = &self.levels[index];
        // A copy in lent room was not what was read.
        let found = held.find(volume, key).filter(|slot| !held.is_borrowed(*slot));
        match found {
            Some(slot) if held.is_dirty(slot) => {
                if is_bad {
                    self.note_sick(moment, volume, level, slot);
                }
                self.end_store(moment, id, result);
            }
            Some(slot) if is_bad => {
                self.drop_copy(volume, index, slot, false);
                self.drop_lent(volume, index, key);
                let event = crate::Event::CorruptCleanDropped { key, level };
                self.actions.push(Action::Report(event));
                self.read_for_merge(id);
            }
            Some(_) => self.read_below_for_merge(id),
            None => self.read_for_merge(id),
        }
    }

    /// The new version is in place: it becomes the truth, other copies go.
    fn settle(&mut self, moment: &mut Moment<'_>, id: OpId) {
        let (volume, first, count) = self.extent(id);
        let store = self.store_mut(id);
        let (level, durable) = (store.level, store.durable);
        let slots = core::mem::take(&mut store.slots);
        let renewed = self.renewed_level(volume);
        for offset in 0..u64::from(count) {
            let key = self.key(volume, BlockIndex(first.0 + offset));
            if let Some(level) = level {
                let (slot, fresh) = slots[offset as usize];
                self.settle_block(moment, volume, usize::from(level.0), (slot, fresh), key);
            }
            let kept = [level.map(|level| usize::from(level.0)), renewed];
            self.supersede(volume, key, kept, durable);
        }
        match level {
            _ if durable => {}
            Some(level) => self.note_stored(volume, usize::from(level.0)),
            None => self.note_home(volume, &(first.0..first.0 + u64::from(count))),
        }
        if let Some(memory) = renewed {
            self.renew(moment, id, memory);
        }
        self.end_store(moment, id, Ok(()));
    }

    /// A store is about to end with an error, though these of its slots hold the new version and
    /// would be found by a start: they become the truth as if the store had ended well. To free
    /// them would show the old version until a power cut, and the new one after it.
    pub fn on_written(
        &mut self,
        moment: &mut Moment<'_>,
        op: OpId,
        written: &[Slot],
        actions: &mut Vec<Action>,
    ) {
        core::mem::swap(&mut self.actions, actions);
        if matches!(self.ops.get(op.0).task, Task::Store(_)) {
            let (volume, first, _) = self.extent(op);
            let store = self.store_mut(op);
            let (level, durable) = (store.level.expect("slots are of a level"), store.durable);
            let slots = core::mem::take(&mut store.slots);
            let mut left = Few::new();
            for (offset, slot) in slots.into_iter().enumerate() {
                if !written.contains(&slot.0) {
                    left.push(slot);
                    continue;
                }
                let key = self.key(volume, BlockIndex(first.0 + offset as u64));
                let level = usize::from(level.0);
                self.settle_block(moment, volume, level, slot, key);
                self.supersede(volume, key, [Some(level), None], durable);
            }
            self.store_mut(op).slots = left;
        }
        core::mem::swap(&mut self.actions, actions);
    }

    /// Drops copies of a block outside of the levels that hold its new version.
    fn supersede(
        &mut self,
        volume: u16,
        key: layby_types::BlockKey,
        kept: [Option<usize>; 2],
        durable: bool,
    ) {
        for other in (0..self.levels.len()).filter(|other| !kept.contains(&Some(*other))) {
            let found = self.levels[other].find(volume, key);
            if let Some(slot) = found.filter(|_| !is_planted(Plant::LostInvalidation)) {
                self.drop_copy(volume, other, slot, durable);
            }
        }
    }

    /// The level whose copies a write that went through renews.
    fn renewed_level(&self, volume: u16) -> Option<usize> {
        let top = self.top_level(volume).filter(|_| self.writes_through(volume))?;
        (self.levels[top].kind == LevelKind::Memory).then_some(top)
    }

    /// What went home, and is in the operation's buffer since, becomes the copy in memory.
    fn renew(&mut self, moment: &mut Moment<'_>, id: OpId, memory: usize) {
        let (volume, first, count) = self.extent(id);
        for index in 0..count {
            let key = self.key(volume, BlockIndex(first.0 + u64::from(index)));
            let held = self.levels[memory].find(volume, key);
            let slot = match held {
                Some(slot) => Some(slot),
                None if self.admits_all(volume) => self.allocate(moment, memory, volume),
                None => None,
            };
            let Some(slot) = slot else { continue };
            match held {
                Some(_) => self.levels[memory].on_hit(moment, volume, slot),
                None => self.levels[memory].insert(moment, volume, slot, key, Warmth::Warm),
            }
            self.write_copy(id, memory, index, slot, key, Cause::Write);
        }
    }

    fn settle_block(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        level: usize,
        (slot, fresh): (Slot, bool),
        key: layby_types::BlockKey,
    ) {
        if fresh {
            self.levels[level].insert(moment, volume, slot, key, Warmth::Warm);
        } else {
            self.levels[level].on_hit(moment, volume, slot);
        }
        if !self.lost.is_empty() {
            self.lost.remove(key, 1);
        }
        self.set_dirty(moment.now, volume, (level, slot), key);
        self.counters[level].writes += 1;
        self.volumes.get_mut(volume).counters.writes[level] += 1;
    }

    /// A store into a slot has failed, so that the slot holds the old version or the new one: from
    /// now on what it holds is the truth, and goes home as such.
    fn distrust_copies(&mut self, moment: &mut Moment<'_>, volume: u16, level: usize, slot: Slot) {
        let key = self.levels[level].key(slot);
        if !self.levels[level].is_dirty(slot) && !self.levels[level].is_borrowed(slot) {
            self.levels[level].settle_ahead(moment, volume, slot);
            self.set_dirty(moment.now, volume, (level, slot), key);
        }
        for other in (0..self.levels.len()).filter(|other| *other != level) {
            let Some(copy) = self.levels[other].find(volume, key) else { continue };
            let held = &self.levels[other];
            if held.kind == LevelKind::Memory || held.is_borrowed(copy) {
                self.drop_copy(volume, other, copy, true);
            }
        }
    }

    /// A write that went through has failed: the home holds the old version or the new one.
    fn distrust_written(&mut self, id: OpId) {
        let (volume, first, count) = self.extent(id);
        let blocks = first.0..first.0 + u64::from(count);
        self.note_home(volume, &blocks);
        for block in blocks {
            let key = self.key(volume, BlockIndex(block));
            self.drop_volatile(volume, key);
        }
    }

    pub(crate) fn end_store(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        result: Result<(), ErrorKind>,
    ) {
        let volume = self.ops.get(id.0).volume;
        let class = self.volumes.get(volume).class;
        let store = self.store_mut(id);
        let (request, level) = (store.request, store.level);
        let counted = core::mem::take(&mut store.counted);
        // Slots are left only after a failure: new ones go back, old ones hold either version.
        let slots = core::mem::take(&mut store.slots);
        for (slot, fresh) in slots {
            let level = level.expect("slots are of a level");
            if !fresh {
                self.distrust_copies(moment, volume, usize::from(level.0), slot);
                continue;
            }
            self.levels[usize::from(level.0)].release(volume, class, slot);
            self.actions.push(Action::Free { level, slot, superseded: false });
        }
        if let Some(level) = level {
            self.levels[usize::from(level.0)].end_storing(volume, counted);
        }
        match level {
            _ if result.is_ok() => {}
            // Some of it may be seen all the same: no flush may pass over that.
            Some(level) => self.note_stored(volume, usize::from(level.0)),
            None => self.distrust_written(id),
        }
        self.finish(moment, id);
        self.end_part(request, result);
    }
}

fn source(store: &Store) -> Source {
    match store.origin {
        Origin::Payload { offset } => Source::Payload { request: store.request, offset },
        Origin::Merge { .. } => Source::Buffer { index: 0 },
    }
}
