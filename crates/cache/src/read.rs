//! Reads: look down the levels, fetch what is missing in runs, promote a copy to the class's top.
//!
//! How: a block found in memory is copied at once. Neighbouring blocks found in the same slower
//! place, or nowhere, form one fetch. The readers are answered first, then the data is promoted;
//! a promotion never waits for room.
//! Sources: PADSA section IV.B (read, promotion); L3 cache paper section IV (merging, pre-caching).

use crate::action::{Action, Cause, Checked, CopyVerified, Event, Few, OpId, Part, Source};
use crate::admission::BlockSet;
use crate::cache::Cache;
use crate::op::{Fetch, Piece, Promotion, Reader, Readers, Sought, Task, Want};
use crate::spec::LevelKind;
use alloc::vec::Vec;
use layby_policy::wear::WearUse;
use layby_policy::{Moment, Warmth};
use layby_types::{BlockIndex, BlockKey, Call, ErrorKind, LevelIndex, Operation, RequestId, Slot};

/// Blocks of one fetch at most.
pub(crate) const FETCH_BLOCKS_MAX: u32 = 256;
/// Promotions in flight at most, in blocks; beyond, data is served but not kept.
pub(crate) const PROMOTIONS_MAX: u32 = 4096;

/// Neighbouring blocks to fetch from the same place.
pub(crate) struct Run {
    pub(crate) from: Option<LevelIndex>,
    pub(crate) first: BlockIndex,
    pub(crate) slots: Few<Slot>,
    pub(crate) readers: Readers,
    pub(crate) count: u32,
}

impl Cache {
    pub(crate) fn read(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        request: RequestId,
        call: &Call,
    ) {
        let mut parts = 0;
        let mut run = None;
        let pieces = Pieces::new(self.spec.block_size, call.offset, call.length);
        let (first, block_count) = (pieces.first, pieces.blocks());
        for (block, mut part) in pieces {
            if call.operation == Operation::Cache {
                part.length = 0;
            }
            let piece = Piece { request, block, part, want: Want::Read };
            if !self.read_piece(moment, volume, piece, &mut run) {
                parts += 1;
            }
        }
        self.start_fetch(volume, run.take(), Sought::Asked);
        if parts == 0 {
            self.actions.push(Action::Complete { request, result: Ok(()) });
        } else {
            self.begin(request, parts);
        }
        if call.operation == Operation::Read && block_count > 0 {
            self.read_ahead(moment, volume, first, block_count);
        }
    }

    /// Answers one piece now (true), or makes it join or start a fetch (false).
    pub(crate) fn read_piece(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        piece: Piece,
        run: &mut Option<Run>,
    ) -> bool {
        let key = self.key(volume, piece.block);
        if let Some(op) = self.blocker(volume, key) {
            match self.read_behind(op, piece) {
                Behind::Answered => return true,
                Behind::Joined => return false,
                Behind::Free => {}
            }
        }
        self.look_up(moment, volume, key, piece, run)
    }

    fn look_up(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        key: BlockKey,
        piece: Piece,
        run: &mut Option<Run>,
    ) -> bool {
        let hint = piece.part.length == 0;
        if let Some((index, slot)) = self.hit(moment, volume, key, !hint) {
            let level = LevelIndex(index as u8);
            match self.levels[index].kind {
                LevelKind::Ssd => break_into(self, volume, run, Some((level, slot)), piece),
                _ if hint => return true,
                LevelKind::Memory => {
                    let (request, part) = (piece.request, piece.part);
                    self.actions.push(Action::Copy { request, level, slot, part });
                    return true;
                }
                LevelKind::Nvm => {
                    let (request, part) = (piece.request, piece.part);
                    let copy = CopyVerified { request, key, level, slot, part };
                    self.actions.push(Action::CopyVerified(copy));
                }
            }
            return false;
        }
        if !hint {
            self.volumes.get_mut(volume).counters.misses += 1;
        }
        break_into(self, volume, run, None, piece);
        false
    }

    /// Looks for a block down the levels; the first that has it counts a hit.
    #[inline]
    pub(crate) fn hit(
        &mut self,
        moment: &mut Moment<'_>,
        volume: u16,
        key: BlockKey,
        is_counted: bool,
    ) -> Option<(usize, Slot)> {
        for index in 0..self.levels.len() {
            let Some(slot) = self.levels[index].find(volume, key) else { continue };
            let is_first_read = self.levels[index].is_ahead(slot);
            self.levels[index].on_hit(moment, volume, slot);
            if is_first_read {
                self.settle_below(moment, volume, index, key);
            }
            if self.levels[index].is_borrowed(slot) {
                self.touch_home(moment, volume, index, key);
            }
            if is_counted {
                self.counters[index].hits += 1;
                self.volumes.get_mut(volume).counters.hits[index] += 1;
            }
            return Some((index, slot));
        }
        None
    }

    /// What a read may do about the operation that holds its block.
    fn read_behind(&mut self, id: OpId, piece: Piece) -> Behind {
        let op = self.ops.get_mut(id.0);
        let index = piece.block.0.saturating_sub(op.first.0) as u32;
        let (request, part) = (piece.request, piece.part);
        match &mut op.task {
            // The block stays readable where it is until the eviction ends.
            Task::Evict(evict) if self.levels[usize::from(evict.from.0.0)].kind.is_immediate() => {
                return Behind::Free;
            }
            // Others wait already: keep the order.
            _ if !op.queue.is_empty() => {}
            Task::Fetch(fetch) if fetch.promotion.is_some() || fetch.waits_for.is_some() => {
                fetch.asked.add(index);
                let (volume, from) = (op.volume, fetch.from);
                if part.length > 0 {
                    self.actions.push(Action::Deliver { op: id, index, request, part });
                    self.count_joined(volume, from);
                }
                return Behind::Answered;
            }
            Task::Fetch(fetch) => {
                fetch.asked.add(index);
                fetch.readers.push(Reader { request, index, part });
                let (volume, from) = (op.volume, fetch.from);
                if part.length > 0 {
                    self.count_joined(volume, from);
                }
                return Behind::Joined;
            }
            _ => {}
        }
        op.queue.push_back(piece);
        Behind::Joined
    }

    /// A read is served by a fetch that another one, or read-ahead, began: it counts where the
    /// fetch reads the block from.
    fn count_joined(&mut self, volume: u16, from: Option<LevelIndex>) {
        let counters = &mut self.volumes.get_mut(volume).counters;
        match from.map(|level| usize::from(level.0)) {
            Some(level) => {
                counters.hits[level] += 1;
                self.counters[level].hits += 1;
            }
            None => counters.misses += 1,
        }
    }

    /// Starts the fetch of a run, if there is one.
    pub(crate) fn start_fetch(&mut self, volume: u16, run: Option<Run>, sought: Sought) {
        let Some(run) = run else { return };
        let Run { from, first, slots, readers, count } = run;
        let (admitted, asked, promotion, waits_for) = (BlockSet::ALL, BlockSet::NONE, None, None);
        let is_held = false;
        let fetch =
            Fetch { from, is_held, slots, readers, sought, admitted, asked, promotion, waits_for };
        let op = self.start(volume, first, count, Task::Fetch(fetch), true);
        self.submit_fetch(op);
    }

    pub(crate) fn submit_fetch(&mut self, op: OpId) {
        let state = self.ops.get(op.0);
        let Task::Fetch(fetch) = &state.task else { panic!("a fetch is submitted as one") };
        let (first, count, ahead) = (state.first, state.count, fetch.sought.is_ahead());
        let action = match fetch.from {
            Some(level) => Action::ReadLevel { op, level, slots: fetch.slots.clone() },
            None => {
                let at_hand = fetch.sought == Sought::AtHand;
                if !at_hand {
                    self.backing.count_read(count, ahead);
                }
                let volume = self.volumes.get(state.volume).id;
                Action::ReadBacking { op, volume, first, count, at_hand }
            }
        };
        self.submit(op, action);
    }

    pub(crate) fn on_fetched(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        result: Result<(), ErrorKind>,
    ) {
        let op = self.ops.get_mut(id.0);
        let Task::Fetch(fetch) = &mut op.task else { panic!("a fetch ends as a fetch") };
        if let Some(promotion) = fetch.promotion.take() {
            return self.on_promoted(moment, id, promotion, result);
        }
        if let Err(kind) = result {
            return self.on_unfetched(moment, id, kind);
        }
        let readers = core::mem::take(&mut fetch.readers);
        if fetch.sought == Sought::AtHand {
            self.keep_joined(moment, id, &readers);
        }
        let Task::Fetch(fetch) = &self.ops.get(id.0).task else { panic!("it still is one") };
        // A hint asks for the blocks to be kept.
        let is_hinted = readers.iter().any(|reader| reader.part.length == 0);
        let is_missed = fetch.from.is_none() && !fetch.sought.is_ahead() && !is_hinted;
        for reader in readers {
            let Reader { request, index, part } = reader;
            if part.length > 0 {
                self.actions.push(Action::Deliver { op: id, index, request, part });
            }
            self.end_part(request, Ok(()));
        }
        if is_missed {
            self.admit_fetch(id);
        }
        if !self.promote(moment, id) {
            self.end_fetch(moment, id);
        }
    }

    pub(crate) fn end_fetch(&mut self, moment: &mut Moment<'_>, id: OpId) {
        self.count_ahead_out(id);
        self.finish(moment, id);
    }

    /// The host's answer to [`Action::CopyVerified`].
    pub fn on_copied(
        &mut self,
        moment: &mut Moment<'_>,
        copy: &CopyVerified,
        checked: Checked,
        actions: &mut Vec<Action>,
    ) {
        core::mem::swap(&mut self.actions, actions);
        let volume = self.volumes.number(copy.key.volume()).expect("its request is in flight");
        let index = usize::from(copy.level.0);
        // An end that came between may have taken the block out of the slot.
        let is_there = self.levels[index].find(volume, copy.key) == Some(copy.slot);
        if checked == Checked::Sound {
            if is_there {
                self.promote_from_nvm(moment, volume, copy);
            }
            self.end_part(copy.request, Ok(()));
        } else if is_there && self.levels[index].is_dirty(copy.slot) {
            self.note_sick(moment, volume, copy.level, copy.slot);
            self.end_part(copy.request, Err(ErrorKind::Corrupt));
        } else {
            let (key, level) = (copy.key, copy.level);
            if is_there {
                self.drop_copy(volume, index, copy.slot, false);
            }
            self.drop_clean_copies_above(volume, index, key);
            if is_there && checked == Checked::Rotten {
                self.actions.push(Action::Report(Event::CorruptCleanDropped { key, level }));
            }
            // It is looked up again, and counted where it is found.
            let counted = [
                &mut self.counters[index].hits,
                &mut self.volumes.get_mut(volume).counters.hits[index],
            ];
            counted.into_iter().for_each(|hits| *hits = hits.saturating_sub(1));
            let (request, part) = (copy.request, copy.part);
            let piece = Piece { request, block: key.block(), part, want: Want::Read };
            let mut run = None;
            if self.read_piece(moment, volume, piece, &mut run) {
                self.end_part(request, Ok(()));
            }
            self.start_fetch(volume, run, Sought::Asked);
        }
        core::mem::swap(&mut self.actions, actions);
    }

    /// A copy of a clean block rose from a slot that is not sound any more: what rose may not be
    /// copied yet, and never be. An earlier reader in the same queue may have caused it.
    fn drop_clean_copies_above(&mut self, volume: u16, level: usize, key: BlockKey) {
        for above in 0..level {
            let slot = self.levels[above].find(volume, key);
            let clean = slot.filter(|slot| !self.levels[above].is_dirty(*slot));
            if let Some(slot) = clean.filter(|_| self.levels[above].kind == LevelKind::Memory) {
                self.drop_copy(volume, above, slot, false);
            }
        }
    }

    /// The host's answer to an [`Action::CopyLevel`] that it did not carry out, since the block to
    /// copy is not sound any more: the target holds nothing, and the source is looked at again when
    /// it is read.
    pub fn on_uncopied(&mut self, to: (LevelIndex, Slot), actions: &mut Vec<Action>) {
        core::mem::swap(&mut self.actions, actions);
        let index = usize::from(to.0.0);
        let is_copy = self.levels[index].is_indexed(to.1) && !self.levels[index].is_dirty(to.1);
        let key = is_copy.then(|| self.levels[index].key(to.1));
        if let Some(volume) = key.and_then(|key| self.volumes.number(key.volume())) {
            self.drop_copy(volume, index, to.1, false);
        }
        core::mem::swap(&mut self.actions, actions);
    }

    fn promote_from_nvm(&mut self, moment: &mut Moment<'_>, volume: u16, copy: &CopyVerified) {
        let Some(top) = self.top_level(volume) else { return };
        if top >= usize::from(copy.level.0) || self.levels[top].kind != LevelKind::Memory {
            return;
        }
        // Two copies of one request may have asked before the first was promoted.
        if self.levels[top].find(volume, copy.key).is_some() {
            return;
        }
        if let Some(slot) = self.allocate(moment, top, volume) {
            self.levels[top].insert(moment, volume, slot, copy.key, Warmth::Warm);
            self.counters[top].writes += 1;
            let to = (LevelIndex(top as u8), slot);
            self.actions.push(Action::CopyLevel { from: (copy.level, copy.slot), to });
        }
    }

    // ---- promotion ----

    /// The fastest level the volume's class may use.
    pub(crate) fn top_level(&self, volume: u16) -> Option<usize> {
        let allowed = self.levels_of(volume);
        (0..self.levels.len()).find(|level| allowed & (1 << level) != 0)
    }

    /// Brings a fetched run into the class's top level (true when that goes on), or lends it room.
    fn promote(&mut self, moment: &mut Moment<'_>, id: OpId) -> bool {
        let op = self.ops.get(id.0);
        let Task::Fetch(fetch) = &op.task else { panic!("only a fetch is promoted") };
        let (volume, from, count) = (op.volume, fetch.from, op.count);
        let is_held = fetch.is_held;
        if fetch.admitted.stretch(count).is_empty() {
            return false;
        }
        let top = self.top_level(volume);
        let rises = top.filter(|top| from.is_none_or(|from| *top < usize::from(from.0)));
        let goes_on = match rises {
            Some(top) if self.levels[top].kind == LevelKind::Memory => {
                self.promote_to_memory(moment, id, top);
                from.is_none() && !is_held && self.keep(moment, id)
            }
            Some(top) if !is_held && self.promotions_inflight + count <= PROMOTIONS_MAX => {
                self.promote_to_persistent(moment, id, top) || self.wait_to_promote(moment, id, top)
            }
            _ => false,
        };
        // Only what its own level holds is worth lending room to: see `touch_home`.
        if self.volumes.class(volume).borrow && from.is_some() {
            self.lend(moment, id, top.unwrap_or(self.levels.len()));
        }
        goes_on
    }

    /// Stores what came from home and is in memory now into a persistent level, too, where the
    /// class wants that and there is room; true when that goes on.
    fn keep(&mut self, moment: &mut Moment<'_>, id: OpId) -> bool {
        let (volume, _, count) = self.extent(id);
        let class = self.volumes.class(volume);
        if self.sought(id) == Sought::AtHand {
            // Nobody asked for it, and flash wears.
            return false;
        }
        if !class.keep_reads || self.promotions_inflight + count > PROMOTIONS_MAX {
            return false;
        }
        let allowed = self.levels_of(volume);
        let lowest = self.persistent_levels().filter(|level| allowed & (1 << level) != 0).last();
        lowest.is_some_and(|level| self.promote_to_persistent(moment, id, level))
    }

    fn promote_to_memory(&mut self, moment: &mut Moment<'_>, id: OpId, top: usize) {
        let (volume, first, count) = self.extent(id);
        let admitted = self.admitted(id);
        for index in (0..count).filter(|index| admitted.contains(*index)) {
            let key = self.key(volume, BlockIndex(first.0 + u64::from(index)));
            if self.levels[top].find(volume, key).is_some() {
                continue;
            }
            let Some(slot) = self.room_for(moment, id, top) else { return };
            self.insert_fetched(moment, id, (top, slot), index);
            self.write_copy(id, top, index, slot, key, Cause::Promote);
        }
    }

    /// Immediate: a clean copy of block `index` of the operation's buffer.
    pub(crate) fn write_copy(
        &mut self,
        op: OpId,
        level: usize,
        index: u32,
        slot: Slot,
        key: BlockKey,
        cause: Cause,
    ) {
        self.counters[level].writes += 1;
        self.actions.push(Action::WriteLevel {
            op,
            level: LevelIndex(level as u8),
            entries: Few::from_slice(&[(slot, key)]),
            source: Source::Buffer { index },
            dirty: false,
            durable: false,
            cause,
        });
    }

    /// Stores the run into a persistent top level: clean from the backing store, or moved up with
    /// its dirtiness from a persistent level below, so that a block has one persistent home.
    fn promote_to_persistent(&mut self, moment: &mut Moment<'_>, id: OpId, top: usize) -> bool {
        let (volume, first, count) = self.extent(id);
        let Task::Fetch(fetch) = &self.ops.get(id.0).task else {
            panic!("only a fetch is promoted")
        };
        let (from, sources) = (fetch.from, fetch.slots.clone());
        // A copy that is not stored costs a later read; one that is wears the level.
        if from.is_none() && !self.wear_admits(moment.now, top, volume, WearUse::Copy, count) {
            return false;
        }
        let dirty_in = |cache: &Cache, index: u32| {
            from.is_some_and(|l| cache.levels[usize::from(l.0)].is_dirty(sources[index as usize]))
        };
        let dirty = dirty_in(self, 0);
        let stretch = self.admitted(id).stretch(count);
        let start = stretch.start;
        let mut slots = Few::new();
        let mut entries = Few::new();
        for index in stretch {
            let key = self.key(volume, BlockIndex(first.0 + u64::from(index)));
            let moves_dirty = dirty_in(self, index);
            if moves_dirty != dirty || self.destaging.contains_key(&key) {
                break;
            }
            if from.is_none() && !self.is_home_durable(volume, key.block()) {
                break;
            }
            let Some(slot) = self.allocate(moment, top, volume) else { break };
            self.note_kept(volume, key.block());
            slots.push((index, slot));
            entries.push((slot, key));
        }
        if slots.is_empty() {
            return false;
        }
        self.promotions_inflight += slots.len() as u32;
        self.counters[top].writes += slots.len() as u64;
        let level = LevelIndex(top as u8);
        let Task::Fetch(fetch) = &mut self.ops.get_mut(id.0).task else { panic!("checked above") };
        fetch.promotion = Some(Promotion { level, slots, dirty });
        self.submit(
            id,
            Action::WriteLevel {
                op: id,
                level,
                entries,
                source: Source::Buffer { index: start },
                dirty,
                durable: dirty,
                cause: Cause::Promote,
            },
        );
        true
    }

    /// An NVM top level is full of dirty blocks: one moves down, and the data waits for its room.
    fn wait_to_promote(&mut self, moment: &mut Moment<'_>, id: OpId, top: usize) -> bool {
        let (volume, ..) = self.extent(id);
        let scope = self.scope(top, volume);
        let nvm = self.levels[top].kind == LevelKind::Nvm;
        if !nvm || !self.push_down_coldest(moment, top, Some(volume), scope) {
            return false;
        }
        let Task::Fetch(fetch) = &mut self.ops.get_mut(id.0).task else { panic!("a fetch waits") };
        fetch.waits_for = Some(top);
        self.waiting[top].promotions.push_back(id);
        true
    }

    /// Room may have come for a waiting promotion; without it the data is let go.
    pub(crate) fn retry_promotion(&mut self, moment: &mut Moment<'_>, id: OpId, top: usize) {
        let Task::Fetch(fetch) = &mut self.ops.get_mut(id.0).task else { panic!("a fetch waits") };
        fetch.waits_for = None;
        if self.promote_to_persistent(moment, id, top) {
            return;
        }
        if self.evictions_inflight == 0 {
            return self.end_fetch(moment, id);
        }
        let Task::Fetch(fetch) = &mut self.ops.get_mut(id.0).task else { panic!("a fetch waits") };
        fetch.waits_for = Some(top);
        self.waiting[top].promotions.push_front(id);
    }

    /// Somebody wants to write the block of a waiting promotion: true when it made way.
    pub(crate) fn cancel_promotion(&mut self, moment: &mut Moment<'_>, id: OpId) -> bool {
        let Task::Fetch(fetch) = &mut self.ops.get_mut(id.0).task else { return false };
        let Some(level) = fetch.waits_for.take() else { return false };
        self.waiting[level].promotions.retain(|other| *other != id);
        self.end_fetch(moment, id);
        true
    }

    fn on_promoted(
        &mut self,
        moment: &mut Moment<'_>,
        id: OpId,
        promotion: Promotion,
        result: Result<(), ErrorKind>,
    ) {
        let (volume, first, _) = self.extent(id);
        let class = self.volumes.get(volume).class;
        let Task::Fetch(fetch) = &self.ops.get(id.0).task else { panic!("a fetch ends as one") };
        let (from, sources) = (fetch.from, fetch.slots.clone());
        let top = usize::from(promotion.level.0);
        self.promotions_inflight -= promotion.slots.len() as u32;
        for (index, slot) in promotion.slots {
            let key = self.key(volume, BlockIndex(first.0 + u64::from(index)));
            if result.is_err() {
                self.levels[top].release(volume, class, slot);
                let superseded = false;
                self.actions.push(Action::Free { level: promotion.level, slot, superseded });
                continue;
            }
            self.insert_fetched(moment, id, (top, slot), index);
            if promotion.dirty {
                self.set_dirty(moment.now, volume, (top, slot), key);
            }
            if let Some(from) = from {
                let below = usize::from(from.0);
                self.drop_copy(volume, below, sources[index as usize], promotion.dirty);
            }
        }
        self.end_fetch(moment, id);
    }

    /// Clean copies into idle room of levels that the class may not otherwise use.
    fn lend(&mut self, moment: &mut Moment<'_>, id: OpId, top: usize) {
        let (volume, first, count) = self.extent(id);
        let class = self.volumes.get(volume).class;
        let allowed = self.volumes.class(volume).levels;
        for index in 0..count {
            let key = self.key(volume, BlockIndex(first.0 + u64::from(index)));
            for level in (0..top).filter(|level| allowed & (1 << level) == 0) {
                let held = &mut self.levels[level];
                if !held.kind.is_immediate() || held.find(volume, key).is_some() {
                    continue;
                }
                if let Some(slot) = held.take_free(volume, class, true) {
                    held.insert(moment, volume, slot, key, Warmth::Warm);
                    self.write_copy(id, level, index, slot, key, Cause::Borrow);
                    break;
                }
            }
        }
    }

    /// A hit on a lent copy is a hit on the copy in its own level, so that with borrowing on or off
    /// all levels rank, keep and evict the same blocks.
    fn touch_home(&mut self, moment: &mut Moment<'_>, volume: u16, index: usize, key: BlockKey) {
        for level in &mut self.levels[index + 1..] {
            match level.find(volume, key) {
                Some(slot) if !level.is_borrowed(slot) => {
                    return level.on_hit(moment, volume, slot);
                }
                _ => {}
            }
        }
    }

    /// Which blocks of a fetch may be kept.
    fn admitted(&self, id: OpId) -> BlockSet {
        let Task::Fetch(fetch) = &self.ops.get(id.0).task else {
            panic!("only a fetch is promoted")
        };
        fetch.admitted
    }

    pub(crate) fn extent(&self, id: OpId) -> (u16, BlockIndex, u32) {
        let op = self.ops.get(id.0);
        (op.volume, op.first, op.count)
    }
}

enum Behind {
    Answered,
    Joined,
    Free,
}

impl Run {
    pub(crate) fn empty(from: Option<LevelIndex>, first: BlockIndex) -> Self {
        Run { from, first, slots: Few::new(), readers: Readers::new(), count: 0 }
    }
}

/// Extends the run by the piece's block, or starts it as a run of its own and a new one after it.
fn break_into(
    cache: &mut Cache,
    volume: u16,
    run: &mut Option<Run>,
    found: Option<(LevelIndex, Slot)>,
    piece: Piece,
) {
    let from = found.map(|(level, _)| level);
    let fits = |run: &Run| {
        let next = run.first.0 + u64::from(run.count);
        run.from == from && next == piece.block.0 && run.count < FETCH_BLOCKS_MAX
    };
    if !run.as_ref().is_some_and(fits) {
        let full = run.replace(Run::empty(from, piece.block));
        cache.start_fetch(volume, full, Sought::Asked);
    }
    let run = run.as_mut().expect("it was just made");
    let (request, part) = (piece.request, piece.part);
    run.readers.push(Reader { request, index: run.count, part });
    run.slots.extend(found.map(|(_, slot)| slot));
    run.count += 1;
}

/// The blocks of a byte range, with the part of each.
pub(crate) struct Pieces {
    size: layby_types::BlockSize,
    pub(crate) first: BlockIndex,
    offset: u64,
    start: u64,
    end: u64,
}

impl Pieces {
    pub(crate) fn new(size: layby_types::BlockSize, offset: u64, length: u64) -> Self {
        Pieces { size, first: size.block_of(offset), offset, start: offset, end: offset + length }
    }

    pub(crate) fn blocks(&self) -> u64 {
        if self.end == self.start {
            return 0;
        }
        self.size.block_of(self.end - 1).0 - self.first.0 + 1
    }
}

impl Pieces {
    /// The first and the last piece (once, when they are the same).
    pub(crate) fn ends(&self) -> [Option<(BlockIndex, Part)>; 2] {
        if self.blocks() == 0 {
            return [None, None];
        }
        let last = self.size.offset_of(self.size.block_of(self.end - 1)).max(self.start);
        [Some(self.piece(self.start)), (last > self.start).then(|| self.piece(last))]
    }

    fn piece(&self, offset: u64) -> (BlockIndex, Part) {
        let block = self.size.block_of(offset);
        let block_start = self.size.offset_of(block);
        let stop = self.end.min(block_start + u64::from(self.size.bytes()));
        let part = Part {
            block_offset: (offset - block_start) as u32,
            request_offset: (offset - self.start) as u32,
            length: (stop - offset) as u32,
        };
        (block, part)
    }
}

impl Iterator for Pieces {
    type Item = (BlockIndex, Part);

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.end {
            return None;
        }
        let (block, part) = self.piece(self.offset);
        self.offset += u64::from(part.length);
        Some((block, part))
    }
}
