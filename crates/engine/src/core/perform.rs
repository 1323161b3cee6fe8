//! Performing the cache's actions, one after the other.
//!
//! How: immediate actions copy bytes; the others go to a store or a home under the operation's
//! number, which their end brings back.
//! Invariant: an operation's buffer exists from its first data action until `Release`.

use super::answer::{Destination, Gatherings};
use super::{Answer, Asker, Core, Finished, Level, Notice};
use crate::io::{Buffer, Io};
use crate::store::{AppendEntry, Freed, LogStore, Stream, SyncScope, Ticket};
use layby_cache::{Action, Cause, Checked, CopyVerified, Few, Moment, OpId, Part, Source};
use layby_types::planted::{Plant, is_planted};
use layby_types::{
    BackingOperation, BlockIndex, BlockKey, Call, ErrorKind, LevelIndex, Nanos, RequestId, Slot,
    VolumeId,
};
use std::collections::{HashMap, HashSet};

/// A request that is to be answered.
pub(super) struct Ending {
    pub(super) volume: VolumeId,
    pub(super) call: Call,
    pub(super) asker: Asker,
    pub(super) destination: Destination,
    pub(super) started: Nanos,
    pub(super) shown: u64,
    pub(super) is_part: bool,
}

/// The payload that arrived with the request being submitted.
type Current<'a> = Option<(RequestId, &'a [u8])>;

fn ticket(op: OpId) -> Ticket {
    Ticket(u64::from(op.0))
}

impl Core {
    /// Performs one action; answers with the bytes of the current payload that it used.
    pub(super) fn perform(
        &mut self,
        io: &mut dyn Io,
        action: Action,
        current: Current<'_>,
    ) -> usize {
        match action {
            Action::Copy { request, level, slot, part } => {
                let block = self.levels[usize::from(level.0)].memory(slot);
                deliver((&mut self.requests, &mut self.gatherings), request, part, block);
            }
            Action::CopyVerified(copy) => self.copy_verified(&copy),
            Action::Deliver { op, index, request, part } => {
                let size = self.cache.spec().block_size.len();
                let buffer = self.buffers[op.0 as usize].as_ref().expect("an operation's data");
                let block = &buffer[index as usize * size..(index as usize + 1) * size];
                note_far(&self.far, &mut self.requests, (op, request));
                deliver((&mut self.requests, &mut self.gatherings), request, part, block);
            }
            Action::Complete { request, result } => self.complete(request, result),
            Action::ReadLevel { op, level, slots } => self.read_level(io, op, level, &slots),
            Action::ReadBacking { op, volume, first, count, at_hand } => {
                self.read_backing(io, (op, volume), (first, count), at_hand);
            }
            Action::Blank { op } => self.blank(io, op),
            Action::Merge { op, request, part, zero } => {
                return self.merge(op, request, part, zero, current);
            }
            Action::CopyLevel { from, to } => self.copy_level(from, to),
            write @ Action::WriteLevel { .. } => return self.write_level(io, write, current),
            write @ Action::WriteBacking { .. } => return self.write_backing(io, write, current),
            Action::ZeroBacking { op, volume, first, count, keep_allocated } => {
                self.zero_backing(
                    io,
                    (op, volume),
                    first.0..first.0 + u64::from(count),
                    keep_allocated,
                );
            }
            Action::SyncBacking { op, volume } => {
                self.ask_home(io, volume, u64::from(op.0), BackingOperation::Sync);
            }
            Action::SyncLevel { op, level } => self.sync_level(io, op, level),
            tombstone @ Action::Tombstone { .. } => self.log_tombstone(io, &tombstone),
            Action::Free { level, slot, superseded } => self.free(level, slot, superseded),
            Action::CleaningKept { level, slot } => self.ssd(level).cleaning_kept(slot),
            Action::Forget { level, key } => self.ssd(level).forget(key),
            Action::SetClean { level, slot } => match &mut self.levels[usize::from(level.0)] {
                Level::Memory(_) => {}
                Level::Nvm(store) => store.set_clean(slot),
                Level::Ssd(store) => store.on_dirty_changed(slot),
            },
            Action::SetDirty { level, slot } => {
                // A log's checkpoint asks the cache; an NVM record says it itself.
                match &mut self.levels[usize::from(level.0)] {
                    Level::Memory(_) => {}
                    Level::Nvm(store) => store.set_dirty(slot),
                    Level::Ssd(store) => store.on_dirty_changed(slot),
                }
            }
            Action::Release { op } => self.release(io, op),
            Action::Drained { ticket, result } => self.drained.push((ticket, result)),
            Action::Report(event) => self.notices.push(Notice::Cache(event)),
        }
        0
    }

    pub(super) fn ssd(&mut self, level: LevelIndex) -> &mut LogStore {
        let Level::Ssd(store) = &mut self.levels[usize::from(level.0)] else {
            panic!("the cache said it was a log")
        };
        store
    }

    pub(super) fn log(&self) -> Option<(usize, &LogStore)> {
        self.levels.iter().enumerate().find_map(|(index, level)| match level {
            Level::Ssd(store) => Some((index, &**store)),
            _ => None,
        })
    }

    pub(super) fn log_mut(&mut self) -> Option<&mut LogStore> {
        self.levels.iter_mut().find_map(|level| match level {
            Level::Ssd(store) => Some(&mut **store),
            _ => None,
        })
    }

    fn copy_verified(&mut self, copy: &CopyVerified) {
        let store = self.levels[usize::from(copy.level.0)].nvm();
        let into = (&mut self.requests, &mut self.gatherings);
        let hand = |block: &[u8]| deliver(into, copy.request, copy.part, block);
        let checked = match store.read_block_with(copy.slot, copy.key, hand) {
            Some(Ok(())) => Checked::Sound,
            Some(Err(info)) => {
                self.notices.push(Notice::Corrupt(info));
                Checked::Rotten
            }
            None => Checked::Absent,
        };
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        let mut actions = std::mem::take(&mut self.scratch);
        self.cache.on_copied(&mut moment, copy, checked, &mut actions);
        self.take(actions);
    }

    fn complete(&mut self, request: RequestId, result: Result<(), ErrorKind>) {
        let entry = self.requests.remove(&request).expect("a request ends once");
        self.finish(entry, result.map(|()| Answer::Nothing));
    }

    pub(super) fn finish(&mut self, entry: super::Request, result: Result<Answer, ErrorKind>) {
        let super::Request { volume, call, asker, destination, started, .. } = entry;
        let super::Request { shown, is_part, mut is_far, .. } = entry;
        if matches!(destination, Destination::TimedOut) {
            return self.end_timed_out(volume, &call);
        }
        if let Some(home) = self.homes.get_mut(&volume) {
            home.inflight -= 1;
            is_far |= result.is_err() && home.backing.is_remote();
        }
        let ended = Ending { volume, call, asker, destination, started, shown, is_part };
        self.answer(ended, is_far, result);
    }

    /// Answers whoever asked.
    pub(super) fn answer(
        &mut self,
        ended: Ending,
        is_far: bool,
        result: Result<Answer, ErrorKind>,
    ) {
        let Ending { volume, mut call, asker, destination, started, shown, is_part } = ended;
        let is_ok = result.is_ok();
        if let Some(number) = asker.whole() {
            return self.end_own(number, destination, result);
        }
        call.offset = shown;
        if !asker.is_piece() {
            self.ended.push(super::Ended { volume, call, started, is_ok, is_far, is_part });
        }
        let result = match (destination, result) {
            (Destination::Own(answer), Ok(_)) => Ok(Answer::Data(answer)),
            (Destination::Own(answer), Err(kind)) => {
                self.unanswered.push(answer.into_buffer());
                Err(kind)
            }
            (_, result) => result,
        };
        self.finished.push_back(Finished { asker, call, result });
    }

    pub(super) fn done(&mut self, op: OpId, result: Result<(), ErrorKind>) {
        if !self.decisions.keeps(op, result) {
            self.tell(op, result);
        }
    }

    /// Tells the cache of an end.
    pub(super) fn tell(&mut self, op: OpId, result: Result<(), ErrorKind>) {
        self.fetches.end(op, self.now);
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        let mut actions = std::mem::take(&mut self.scratch);
        self.cache.on_done(&mut moment, op, result, &mut actions);
        self.take(actions);
    }

    pub(super) fn set_buffer(&mut self, op: OpId, buffer: Buffer) {
        let index = op.0 as usize;
        if index >= self.buffers.len() {
            self.buffers.resize_with(index + 1, || None);
        }
        let old = self.buffers[index].replace(buffer);
        debug_assert!(old.is_none(), "an operation has one buffer");
    }

    fn release(&mut self, io: &mut dyn Io, op: OpId) {
        if !self.far.is_empty() {
            self.far.remove(&op);
        }
        if let Some(buffer) = self.buffers.get_mut(op.0 as usize).and_then(Option::take) {
            io.recycle(buffer);
        }
    }

    fn read_level(&mut self, io: &mut dyn Io, op: OpId, level: LevelIndex, slots: &[Slot]) {
        self.release(io, op);
        match &mut self.levels[usize::from(level.0)] {
            Level::Memory(_) => panic!("memory is never read by an operation"),
            Level::Ssd(store) => {
                self.fetches.begin(op, usize::from(level.0), self.now);
                store.read(io, ticket(op), slots);
            }
            Level::Nvm(store) => {
                let size = self.cache.spec().block_size.len();
                let mut buffer = io.buffer(slots.len() * size);
                let mut result = Ok(());
                for (slot, out) in slots.iter().zip(buffer.chunks_exact_mut(size)) {
                    if let Err(info) = store.read_with(*slot, |it| out.copy_from_slice(it)) {
                        self.notices.push(Notice::Corrupt(info));
                        result = Err(ErrorKind::Corrupt);
                    }
                }
                self.set_buffer(op, buffer);
                self.done(op, result);
            }
        }
    }

    fn read_backing(
        &mut self,
        io: &mut dyn Io,
        (op, volume): (OpId, VolumeId),
        (first, count): (BlockIndex, u32),
        at_hand: bool,
    ) {
        self.release(io, op);
        let size = self.cache.spec().block_size;
        let mut buffer = io.buffer(count as usize * size.len());
        if self.is_discarded(op, volume, first.0..first.0 + u64::from(count)) {
            buffer.fill(0);
            self.set_buffer(op, buffer);
            return self.done(op, Ok(()));
        }
        let offset = size.offset_of(first);
        if at_hand {
            // It says nothing of what a read of the home costs.
            let read = BackingOperation::ReadAtHand { offset, buffer };
            return self.ask_home(io, volume, u64::from(op.0), read);
        }
        self.fetches.begin(op, super::observe::HOME, self.now);
        if self.homes.get(&volume).is_some_and(|home| home.backing.is_remote()) {
            self.far.insert(op);
        }
        let read = BackingOperation::Read { offset, buffer };
        self.ask_home(io, volume, u64::from(op.0), read);
    }

    fn blank(&mut self, io: &mut dyn Io, op: OpId) {
        self.release(io, op);
        let mut buffer = io.buffer(self.cache.spec().block_size.len());
        buffer.fill(0);
        self.set_buffer(op, buffer);
    }

    fn merge(
        &mut self,
        op: OpId,
        request: RequestId,
        part: Part,
        zero: bool,
        current: Current<'_>,
    ) -> usize {
        let buffer = self.buffers[op.0 as usize].as_mut().expect("a merge has a block");
        let (at, length) = (part.block_offset as usize, part.length as usize);
        note_far(&self.far, &mut self.requests, (op, request));
        if is_planted(Plant::MergeOmitted) {
            buffer.fill(0);
        }
        if zero {
            buffer[at..at + length].fill(0);
            return 0;
        }
        let (bytes, is_current) = payload(&self.requests, request, current);
        let from = part.request_offset as usize;
        buffer[at..at + length].copy_from_slice(&bytes[from..from + length]);
        if is_current { length } else { 0 }
    }

    pub(super) fn copy_level(&mut self, from: (LevelIndex, Slot), to: (LevelIndex, Slot)) {
        let [source, target] = self
            .levels
            .get_disjoint_mut([usize::from(from.0.0), usize::from(to.0.0)])
            .expect("two different levels");
        let Level::Memory(slab) = target else { panic!("copies rise into memory") };
        // The block was verified for the client a moment ago; verifying again keeps a copy that
        // has rotted since from being served for as long as it stays warm.
        match source.nvm().read_with(from.1, |block| slab.write(to.1, block)) {
            Ok(()) => return,
            Err(info) => self.notices.push(Notice::Corrupt(info)),
        }
        let mut actions = std::mem::take(&mut self.scratch);
        self.cache.on_uncopied(to, &mut actions);
        self.take(actions);
    }

    fn write_level(&mut self, io: &mut dyn Io, action: Action, current: Current<'_>) -> usize {
        let Action::WriteLevel { op, level, entries, source, dirty, durable, cause } = action
        else {
            panic!("a write is performed as one")
        };
        let length = entries.len() * self.cache.spec().block_size.len();
        let (requests, buffers) = (&self.requests, &self.buffers);
        let size = self.cache.spec().block_size.len();
        let (data, used) = data_of(requests, buffers, (op, source), size, length, current);
        let store = &mut self.levels[usize::from(level.0)];
        match store {
            Level::Memory(slab) => {
                for ((slot, _), block) in entries.iter().zip(data.chunks_exact(size)) {
                    slab.write(*slot, block);
                }
            }
            Level::Nvm(store) if cause == Cause::Borrow => {
                let may_wait = self.decisions.takes_no_time();
                if store.has_room(entries.len()) || may_wait {
                    let own = Ticket(super::TICKET_OWN | super::events::OWN_BORROWED);
                    store.store_borrowed(io, own, &entries, data, may_wait);
                }
            }
            Level::Nvm(store) => {
                let entries: Few<(Slot, BlockKey, bool)> =
                    entries.iter().map(|(slot, key)| (*slot, *key, dirty)).collect();
                store.store(io, ticket(op), &entries, data, durable);
            }
            Level::Ssd(store) => {
                let entries: Few<AppendEntry> = entries
                    .iter()
                    .map(|(slot, key)| AppendEntry { slot: *slot, key: *key, dirty })
                    .collect();
                let stream = match cause {
                    Cause::Write | Cause::Evict => Stream::Write,
                    Cause::Promote | Cause::Borrow => Stream::Promote,
                };
                store.append(io, ticket(op), stream, &entries, data, durable);
            }
        }
        used
    }

    fn write_backing(&mut self, io: &mut dyn Io, action: Action, current: Current<'_>) -> usize {
        let Action::WriteBacking { op, volume, first, count, source, durable } = action else {
            panic!("a write is performed as one")
        };
        let blocks = first.0..first.0 + u64::from(count);
        if self.is_barred(volume, &blocks) && !self.begin_cancel(op, volume, &blocks) {
            self.tombstones.hold(action);
            self.hasten_discards(volume, blocks);
            return 0;
        }
        let size = self.cache.spec().block_size;
        let length = count as usize * size.len();
        let index = op.0 as usize;
        let offset = size.offset_of(first);
        let (buffer, used) = match source {
            // The operation's own buffer goes along and comes back with the end.
            Source::Buffer { index: 0 }
                if self.buffers[index].as_ref().is_some_and(|b| b.len() == length) =>
            {
                (self.buffers[index].take().expect("it was just seen"), 0)
            }
            source => {
                let mut buffer = io.buffer(length);
                let (requests, buffers) = (&self.requests, &self.buffers);
                let (data, used) =
                    data_of(requests, buffers, (op, source), size.len(), length, current);
                buffer.copy_from_slice(data);
                (buffer, used)
            }
        };
        let durable = durable && !is_planted(Plant::HomeNotDurable);
        let write = BackingOperation::Write { offset, buffer, durable };
        self.ask_home(io, volume, u64::from(op.0), write);
        used
    }

    fn sync_level(&mut self, io: &mut dyn Io, op: OpId, level: LevelIndex) {
        // Without a log nothing else says that a freed record is dead.
        let scope = if self.log().is_some() { SyncScope::Stores } else { SyncScope::Frees };
        match &mut self.levels[usize::from(level.0)] {
            Level::Memory(_) => panic!("memory is never synced"),
            Level::Nvm(store) => store.sync(io, ticket(op), scope),
            Level::Ssd(store) => store.sync(io, ticket(op)),
        }
    }

    fn free(&mut self, level: LevelIndex, slot: Slot, superseded: bool) {
        let forgets_issued = self.log().map_or(0, |(_, log)| log.forgets_issued());
        match &mut self.levels[usize::from(level.0)] {
            Level::Memory(_) => {}
            // A store that failed, or lent room that was not to be had, left nothing there.
            Level::Nvm(store) if !store.holds(slot) => store.give_up(slot),
            Level::Nvm(store) if superseded => store.free(slot, Freed::Superseded),
            Level::Nvm(store) => store.free(slot, Freed::Evicted { forgets_issued }),
            Level::Ssd(store) => store.free(slot),
        }
    }
}

/// The request got its bytes, or those it changes, from a remote home.
fn note_far(
    far: &HashSet<OpId>,
    requests: &mut HashMap<RequestId, super::Request>,
    (op, request): (OpId, RequestId),
) {
    if !far.is_empty() && far.contains(&op) {
        requests.get_mut(&request).expect("a request in flight").is_far = true;
    }
}

fn deliver(
    (requests, gatherings): (&mut HashMap<RequestId, super::Request>, &mut Gatherings),
    request: RequestId,
    part: Part,
    block: &[u8],
) {
    let entry = requests.get_mut(&request).expect("a delivery is for a request in flight");
    let (from, to) = (part.block_offset as usize, part.request_offset as usize);
    let length = part.length as usize;
    let answer = match &mut entry.destination {
        Destination::Own(answer) => answer.data(),
        Destination::Shared(place) => gatherings.from(*place),
        Destination::TimedOut => return,
        Destination::Nowhere => unreachable!("only reads are delivered to"),
    };
    answer[to..to + length].copy_from_slice(&block[from..from + length]);
}

/// A request's payload, and whether it is the current one's.
fn payload<'a>(
    requests: &'a HashMap<RequestId, super::Request>,
    request: RequestId,
    current: Current<'a>,
) -> (&'a [u8], bool) {
    match current {
        Some((id, bytes)) if id == request => (bytes, true),
        _ => {
            let entry = requests.get(&request).expect("a payload belongs to a request in flight");
            (entry.payload.as_deref().expect("its payload was kept"), false)
        }
    }
}

/// The bytes that a write names, and how many of them are of the current payload.
fn data_of<'a>(
    requests: &'a HashMap<RequestId, super::Request>,
    buffers: &'a [Option<Buffer>],
    (op, source): (OpId, Source),
    size: usize,
    length: usize,
    current: Current<'a>,
) -> (&'a [u8], usize) {
    match source {
        Source::Payload { request, offset } => {
            let (bytes, is_current) = payload(requests, request, current);
            let offset = offset as usize;
            (&bytes[offset..offset + length], if is_current { length } else { 0 })
        }
        Source::Buffer { index } => {
            let buffer = buffers[op.0 as usize].as_ref().expect("an operation's data");
            let offset = index as usize * size;
            (&buffer[offset..offset + length], 0)
        }
    }
}
