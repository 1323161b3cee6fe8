//! Batches of the log: forming them, opening segments for them, and what their end and syncs do.
//!
//! How: `pump` starts at most one batch per stream, as large as queue, batch and segment allow; the
//! first batch of a segment carries the segment's header and is durable, so that no durable batch
//! ever lies behind a header that power loss took. Each descriptor has a copy of the one written
//! before it, in whatever stream: a page lost later costs what lay there.
//! Invariant: records of a stream end in the order in which they were queued; those of a failed
//! batch when its header is overwritten, so that no start takes for written what was refused.
//! Cost: data is copied once into the queue and once into the batch. Not for: reading.

use super::log::{
    Flight, LogStore, Place, Queued, SegmentState, StreamState, SyncFor, SyncWaiter, UNSYNCED_MAX,
};
use super::log_layout::{
    BATCH_ENTRIES_MAX, BatchHeader, BatchName, Record, SegmentHeader, copy_of, put_copy,
};
use super::log_tokens::Purpose;
use super::log_void;
use super::{SlotInfo, StoreEvent, Stream, Ticket};
use crate::io::{Io, IoDone, IoError, IoOperation, OperationKind};
use layby_cache::schedule::Rank;
use layby_types::planted::{Plant, is_planted};
use layby_types::{ErrorKind, Seq, Slot};

/// Blocks of the last segment that are left to forgets which a checkpoint waits for at its end.
const ENDS_KEPT: u32 = 3;

/// What the next batch of a stream will hold.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) forgets: usize,
    pub(super) records: usize,
    pub(super) blocks: usize,
    pub(super) rank: Rank,
}

/// The remedy for a device error.
pub(super) fn kind_of(error: IoError) -> ErrorKind {
    if error.errno == rustix::io::Errno::NOSPC.raw_os_error() {
        ErrorKind::Full
    } else {
        ErrorKind::Retry
    }
}

impl LogStore {
    /// Starts whatever can start: a batch per stream, a sync.
    pub(super) fn pump(&mut self, io: &mut dyn Io) {
        self.owes_pump = false;
        for stream in Stream::ALL {
            self.start_batch(io, stream);
        }
        if let Some(kind) = self.reason_to_refuse() {
            self.refuse_stranded(kind);
        }
        super::log_horizon::pump(self, io);
        let travels = self.streams[Stream::Relocate as usize].flight.is_some();
        self.forgets.is_stuck = self.forgets.flush && !self.forgets.queue.is_empty() && !travels;
        if self.forgets.is_stuck && self.free_segments.is_empty() {
            // They are written at the end of one.
            self.checkpoint.wanted |= !super::log_checkpoint::is_running(self);
        }
        self.start_sync(io);
    }

    /// Why what waits for a segment had better not: it may wait for ever.
    fn reason_to_refuse(&self) -> Option<ErrorKind> {
        if self.sync.lost {
            return Some(ErrorKind::Closed);
        }
        let waits = |stream: &StreamState| !stream.queue.is_empty() && stream.flight.is_none();
        let is_waiting = Stream::CALLERS.iter().any(|it| waits(&self.streams[*it as usize]));
        if is_waiting && super::log_checkpoint::keeps_failing(self) {
            return Some(ErrorKind::Retry);
        }
        let is_full = is_waiting && super::log_clean::is_stranded(self);
        self.failing.or(is_full.then_some(ErrorKind::Full))
    }

    /// The device fails, so that nobody can say when there will be room: what waits for a segment
    /// ends with an error rather than never.
    pub(super) fn refuse_stranded(&mut self, kind: ErrorKind) {
        self.refuse_forgets(kind);
        for stream in Stream::CALLERS {
            let state = &mut self.streams[stream as usize];
            if state.flight.is_some() {
                continue;
            }
            let stranded = core::mem::take(&mut state.queue);
            state.ended_total += stranded.len() as u64;
            state.data.clear();
            for queued in stranded {
                if let Record::Block { slot, .. } = queued.record {
                    self.end_pending(slot, None);
                }
                if let Some(ticket) = queued.ticket {
                    self.end_record(ticket, Err(kind));
                }
            }
        }
    }

    /// Who waits for forgets that cannot be written now is told so; the forgets wait on.
    fn refuse_forgets(&mut self, kind: ErrorKind) {
        let is_free = self.streams[Stream::Relocate as usize].flight.is_none();
        if !is_free || !core::mem::take(&mut self.forgets.flush) {
            return;
        }
        self.forgets.deadline = None;
        self.events.push(StoreEvent::ForgetsFailed { kind });
        let durable = self.forgets_durable();
        let waiting = core::mem::take(&mut self.sync.waiting);
        let (refused, rest): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|waiter| waiter.forgets > durable);
        self.sync.waiting = rest;
        let refused: Vec<_> = refused.iter().map(|waiter| waiter.whom).collect();
        self.end_syncs(&refused, Err(kind));
    }

    /// Ends the wait of forgets for a segment, if there is none to be had: what is left of the last
    /// one takes them where it has room for the ends of checkpoints, too; else they are refused.
    /// True when they waited.
    pub(crate) fn end_stuck_forgets(&mut self, io: &mut dyn Io) -> bool {
        let is_stuck = self.forgets.is_stuck && self.free_segments.is_empty();
        if is_stuck {
            let fill = self.streams[Stream::Relocate as usize].open.map(|(_, fill)| fill);
            let has_room =
                fill.is_some_and(|it| it + 1 + ENDS_KEPT <= self.geometry.segment_blocks);
            self.forgets.is_urgent = has_room;
            if !self.forgets.is_urgent {
                self.refuse_forgets(ErrorKind::Retry);
            }
            self.pump(io);
            self.forgets.is_urgent = false;
        }
        is_stuck
    }

    fn start_batch(&mut self, io: &mut dyn Io, stream: Stream) {
        if self.streams[stream as usize].flight.is_some() {
            return;
        }
        if let Some(plan) = self.plan(io, stream) {
            self.launch(io, stream, plan);
        }
    }

    /// Writes a batch into the stream's open segment, which has room for it. One without records
    /// vouches for earlier ones, and is durable.
    pub(super) fn launch(&mut self, io: &mut dyn Io, stream: Stream, plan: Plan) {
        let (segment, fill) = self.streams[stream as usize].open.expect("plan found a segment");
        let records = self.take_records(stream, plan);
        let fresh = fill == 0;
        let header_blocks = u32::from(fresh);
        let total = header_blocks + 1 + plan.blocks as u32;
        let mut buffer = io.buffer((total * self.geometry.block_bytes) as usize);
        let name = BatchName { segment, seq: self.seqs.take().0 };
        let vouches = plan.forgets + plan.records == 0;
        let is_asked = records.iter().any(|queued| queued.durable);
        let durable = fresh || plan.forgets > 0 || vouches || is_asked;
        let first = self.geometry.segment_first(segment) + fill;
        self.fill_batch(&mut buffer, stream, &records, name, first, plan.blocks);
        let state = &mut self.streams[stream as usize];
        state.open = Some((segment, fill + total));
        state.flight = Some(Flight {
            records,
            forgets: plan.forgets,
            name,
            durable,
            data_first: first + header_blocks + 1,
            blocks: total,
            failed: None,
            is_doubtful: false,
        });
        self.counters.batches += 1;
        self.counters.bytes_written += buffer.len() as u64;
        let data = plan.blocks as u64 * u64::from(self.geometry.block_bytes);
        self.counters.bytes_by_stream[stream as usize] += data;
        self.checkpoint.appended += buffer.len() as u64;
        let (disk, offset) = (self.config.region.disk, self.offset_of(first));
        let token = self.token(Purpose::Batch, stream as u64);
        let rank = io.rank();
        io.set_rank(plan.rank);
        io.set_life(Some(stream.life(self.has_all_streams())));
        io.submit(token, IoOperation::Write { disk, offset, buffer, durable });
        io.set_life(None);
        io.set_rank(rank);
    }

    /// Forgets are what reusable room waits for; copies of the cleaner and of readers wait.
    fn rank_of_batch(&self, stream: Stream, forgets: usize) -> Rank {
        match stream {
            Stream::WriteShort | Stream::Write => self.streams[stream as usize].rank,
            _ if forgets > 0 => Rank::FIRST,
            _ => Rank::BACKGROUND,
        }
    }

    /// Decides the next batch and makes sure that its segment is open; `None` when nothing is to
    /// be written or no segment can be had.
    fn plan(&mut self, io: &dyn Io, stream: Stream) -> Option<Plan> {
        let waiting = stream == Stream::Relocate && self.may_write_forgets();
        let forgets = if waiting { self.forgets.queue.len().min(BATCH_ENTRIES_MAX) } else { 0 };
        let queue = &self.streams[stream as usize].queue;
        if forgets == 0 && queue.is_empty() {
            return None;
        }
        let with_block = queue.front().is_some_and(|first| is_block(&first.record));
        let room = self.room(stream, with_block && forgets < BATCH_ENTRIES_MAX, forgets > 0)?;
        let queue = &self.streams[stream as usize].queue;
        let rank = self.rank_of_batch(stream, forgets);
        let block = self.geometry.block_bytes as usize;
        let least = if stream.is_copies() { self.geometry.copies_min() } else { 1 };
        let allowed = io.batch_bytes(rank).map_or(usize::MAX, |bytes| (bytes / block).max(least));
        let blocks_max = self.batch_blocks_max().min(room).min(allowed);
        let (mut records, mut blocks) = (0, 0);
        for queued in queue.iter().take(BATCH_ENTRIES_MAX - forgets) {
            let block = usize::from(is_block(&queued.record));
            if blocks + block > blocks_max {
                break;
            }
            blocks += block;
            records += 1;
        }
        (forgets + records > 0).then_some(Plan { forgets, records, blocks, rank })
    }

    /// Whether forgets that are waited for may be written now. What is left of the last segment is
    /// for those that a checkpoint waits for at its end: that frees segments, and each of its tries
    /// costs a block there.
    fn may_write_forgets(&self) -> bool {
        let is_free = !self.free_segments.is_empty();
        let is_awaited = self.forgets.is_urgent || super::log_checkpoint::awaits_peers(self);
        self.forgets.flush && (is_free || is_awaited)
    }

    /// Data blocks that fit behind a descriptor in the stream's open segment, after opening one
    /// where needed. A segment that has room for a descriptor only still takes forgets.
    pub(super) fn room(
        &mut self,
        stream: Stream,
        with_block: bool,
        forgets: bool,
    ) -> Option<usize> {
        let size = self.geometry.segment_blocks;
        if stream.is_copies() && with_block && self.free_segments.is_empty() {
            return self.room(stream, false, forgets).filter(|_| forgets).map(|_| 0);
        }
        if let Some((_, fill)) = self.streams[stream as usize].open {
            if fill + 1 + u32::from(with_block) <= size {
                return Some((size - fill - 1) as usize);
            }
            let kept = if stream.is_copies() { 1 } else { self.free_kept() };
            if forgets && fill < size && self.free_segments.len() <= kept {
                return Some(0);
            }
            self.close_segment(stream);
        }
        let kept = match stream {
            Stream::Relocate if forgets => 0,
            Stream::Relocate | Stream::RelocateOld => 1,
            _ => self.free_kept(),
        };
        let scarce = self.free_segments.len() <= 1;
        if self.free_segments.len() <= kept {
            return None;
        }
        let index = self.take_free()?;
        let segment = &mut self.segments[index as usize];
        assert!(segment.live == 0 && segment.pins == 0, "a free segment holds nothing");
        segment.state = SegmentState::Open;
        (segment.generation, segment.failures) = (self.seqs.take(), 0);
        segment.stream = stream;
        segment.is_marked = false;
        self.streams[stream as usize].open = Some((index, 0));
        Some(if scarce && forgets { 0 } else { size as usize - 2 })
    }

    pub(super) fn close_segment(&mut self, stream: Stream) {
        let state = &mut self.streams[stream as usize];
        assert!(state.flight.is_none(), "a segment closes between batches");
        if let Some((index, _)) = state.open.take() {
            self.segments[index as usize].state = SegmentState::Closed;
            self.retire_if_empty(index);
        }
    }

    fn take_records(&mut self, stream: Stream, plan: Plan) -> Vec<Queued> {
        let side = self.forgets.queue.drain(..plan.forgets).map(|record| Queued {
            record,
            ticket: None,
            durable: true,
            origin: None,
        });
        let mut records: Vec<Queued> = side.collect();
        self.forgets.in_flight += plan.forgets as u64;
        if plan.forgets > 0 {
            self.forgets.deadline = None;
            self.forgets.flush &= !self.forgets.queue.is_empty();
        }
        let state = &mut self.streams[stream as usize];
        records.extend(state.queue.drain(..plan.records));
        if state.queue.is_empty() {
            state.rank = Rank::BACKGROUND;
        }
        records
    }

    fn fill_batch(
        &mut self,
        buffer: &mut [u8],
        stream: Stream,
        records: &[Queued],
        name: BatchName,
        first: u32,
        blocks: usize,
    ) {
        let fresh = first == self.geometry.segment_first(name.segment);
        let block = self.geometry.block_bytes as usize;
        let generation = self.segments[name.segment as usize].generation;
        let mut rest = buffer;
        if fresh {
            let (page, behind) = rest.split_at_mut(block);
            page.fill(0);
            let (instance, index, stream) = (self.instance, name.segment, stream as u32);
            SegmentHeader { instance, index, stream, generation, is_anew: false }.encode(page);
            rest = behind;
        }
        let (page, data) = rest.split_at_mut(block);
        page.fill(0);
        for (index, queued) in records.iter().enumerate() {
            queued.record.encode(page, index);
        }
        let header = BatchHeader {
            instance: self.instance,
            generation: generation.0,
            seq: name.seq,
            epoch: self.epoch.0,
            durable_upto: self.durable_upto(name.seq),
            checkpoint: self.checkpoint.complete.0,
            previous: self.streams[stream as usize].previous,
            tails: self.streams.each_ref().map(|stream| stream.tail),
            entries: records.len() as u16,
            blocks: blocks as u16,
            location: first + u32::from(fresh),
            stream: stream as u32,
        };
        put_copy(page, records.len(), &self.copy_of_last);
        header.encode(page);
        self.copy_of_last.clear();
        self.copy_of_last.extend_from_slice(copy_of(page));
        let state = &mut self.streams[stream as usize];
        let (front, back) = state.data.as_slices();
        let split = front.len().min(data.len());
        let rest = data.len() - split;
        data[..split].copy_from_slice(&front[..split]);
        data[split..].copy_from_slice(&back[..rest]);
        state.data.drain(..data.len());
    }

    /// The seq up to which every batch of this epoch is durable, given that `own` is not.
    fn durable_upto(&self, own: u64) -> u64 {
        let flights = self.streams.iter().filter_map(|stream| stream.flight.as_ref());
        let unsynced = self.sync.written.iter().chain(&self.sync.syncing);
        let names = flights.map(|flight| flight.name.seq).chain(unsynced.map(|(_, name)| name.seq));
        let names = names.chain(self.sync.failed.into_iter().flatten());
        names.min().unwrap_or(own).min(own) - 1
    }

    pub(super) fn on_batch(&mut self, io: &mut dyn Io, index: usize, done: IoDone) {
        if let Some(buffer) = done.buffer {
            io.recycle(buffer);
        }
        let stream = Stream::ALL[index];
        let state = &mut self.streams[index];
        let mut flight = state.flight.take().expect("an end belongs to a batch in flight");
        self.note_end(OperationKind::Write, self.range_of(&flight), done.result);
        let tried = if is_planted(Plant::VoidOmitted) { log_void::TRIES_MAX } else { 0 };
        flight.failed = match (flight.failed, done.result) {
            // Its own sync came after one that failed: the device may have dropped what it wrote.
            (None, Ok(_)) if flight.is_doubtful => Some((ErrorKind::Retry, tried)),
            (None, Ok(_)) => None,
            (None, Err(error)) => Some((kind_of(error), tried)),
            (Some((kind, _)), Ok(_)) if !flight.is_doubtful => Some((kind, log_void::TRIES_MAX)),
            (Some((kind, tries)), _) => Some((kind, tries + 1)),
        };
        if flight.failed.is_some_and(|(_, tries)| tries < log_void::TRIES_MAX) {
            return log_void::overwrite(self, io, stream, flight);
        }
        log_void::settle(self, &flight, done.result.is_ok() && !flight.is_doubtful);
        let state = &mut self.streams[index];
        let ended = flight.records.len() - flight.forgets;
        state.ended_total += ended as u64;
        self.forgets.in_flight -= flight.forgets as u64;
        match flight.failed {
            None => self.batch_written(stream, &flight),
            Some((kind, _)) => self.batch_failed(stream, flight, kind),
        }
        let is_waiting = |waiter: &SyncWaiter| matches!(waiter.whom, SyncFor::Bound);
        if self.sync.written.len() >= UNSYNCED_MAX && !self.sync.waiting.iter().any(is_waiting) {
            self.sync_for(SyncFor::Bound);
        }
    }

    /// Where the batch lies, and its blocks.
    fn range_of(&self, flight: &Flight) -> (u32, u32) {
        let header = flight.data_first - 1;
        // The first batch of a segment has the segment's header before its own.
        let is_first = header == self.geometry.segment_first(flight.name.segment) + 1;
        (header - u32::from(is_first), flight.blocks)
    }

    fn batch_written(&mut self, stream: Stream, flight: &Flight) {
        self.failing = None;
        self.retiring.batches_well += 1;
        let state = &mut self.streams[stream as usize];
        state.previous = flight.name;
        if flight.durable {
            state.tail = flight.name;
            if !flight.records.is_empty() {
                self.horizon.on_durable();
            }
        } else {
            self.sync.note_written(stream, flight.name);
        }
        let mut location = flight.data_first;
        for queued in &flight.records {
            if let Record::Block { slot, crc, seq, .. } = queued.record {
                self.block_written(queued, slot, seq, Place { location, crc });
                location += 1;
            }
        }
        self.note_unsettled(flight);
        for ticket in flight.records.iter().filter_map(|queued| queued.ticket) {
            self.end_record(ticket, Ok(()));
        }
    }

    /// Notes what was written of calls of which more is to come or a part has failed: the last
    /// call of a batch may go on behind it, and the first may have begun in one that failed.
    fn note_unsettled(&mut self, flight: &Flight) {
        let of = |queued: Option<&Queued>| queued.and_then(|queued| queued.ticket);
        let open = [of(flight.records.first()), of(flight.records.last())].map(|ticket| {
            ticket.filter(|ticket| {
                let count = flight.records.iter().filter(|queued| queued.ticket == Some(*ticket));
                let state = &self.tickets[ticket];
                state.failed.is_some() || state.left > count.count()
            })
        });
        if open == [None; 2] {
            return;
        }
        let mut location = flight.data_first;
        for queued in &flight.records {
            let Record::Block { key, slot, dirty, .. } = queued.record else { continue };
            let is_there = self.slots[slot.0 as usize].location == location;
            if let Some(ticket) = queued.ticket.filter(|ticket| open.contains(&Some(*ticket)))
                && is_there
            {
                self.unsettled.insert(slot.0, (ticket, SlotInfo { key, dirty }));
            }
            location += 1;
        }
    }

    /// Ends one record of a call.
    pub(super) fn end_record(&mut self, ticket: Ticket, result: Result<(), ErrorKind>) {
        let state = self.tickets.get_mut(&ticket).expect("a record's ticket is open");
        state.left -= 1;
        state.failed = state.failed.or(result.err());
        if state.left == 0 {
            let failed = self.tickets.remove(&ticket).and_then(|state| state.failed);
            let mut slots = Vec::new();
            let changes = &mut self.changes;
            self.unsettled.retain(|slot, (open, _)| {
                let is_settled = *open == ticket;
                if is_settled {
                    changes.note(Slot(*slot));
                }
                if is_settled && failed.is_some() {
                    slots.push(Slot(*slot));
                }
                !is_settled
            });
            if !slots.is_empty() {
                slots.sort_unstable();
                self.events.push(StoreEvent::Written { ticket, slots });
            }
            let result = failed.map_or(Ok(()), Err);
            self.events.push(StoreEvent::Stored { ticket, result });
        }
    }

    fn block_written(&mut self, queued: &Queued, slot: Slot, seq: Seq, place: Place) {
        if let Some(origin) = queued.origin {
            super::log_clean::relocated(self, slot, origin, Some(place));
        } else if self.end_pending(slot, Some(seq)) {
            self.place(slot, place);
        }
    }

    /// One append for a slot has ended, with `written` well; true when it is the slot's newest.
    fn end_pending(&mut self, slot: Slot, written: Option<Seq>) -> bool {
        let pending = self.pending_slots.get_mut(&slot.0).expect("an append is pending till now");
        pending.count -= 1;
        let newest =
            written.is_some_and(|seq| seq.0 >= pending.freed_below && seq.0 > pending.applied);
        if let (true, Some(seq)) = (newest, written) {
            pending.applied = seq.0;
        }
        if pending.count == 0 {
            self.pending_slots.remove(&slot.0);
        }
        // What failed may count as dirty from now on, though it lies where it was.
        self.changes.note(slot);
        newest
    }

    /// The stream leaves the segment, whose chain of batches is broken; every slot keeps what it
    /// held. Forgets go back to the queue's front.
    fn batch_failed(&mut self, stream: Stream, mut flight: Flight, kind: ErrorKind) {
        self.counters.write_errors += 1;
        if kind != ErrorKind::Full {
            self.mark_failing(flight.data_first - 1);
        }
        let oldest = &mut self.sync.failed[1];
        *oldest = Some(oldest.map_or(flight.name.seq, |seq| seq.min(flight.name.seq)));
        self.leave_failed_segment(stream, flight.blocks);
        let records = flight.records.split_off(flight.forgets);
        for queued in flight.records.into_iter().rev() {
            self.forgets.queue.push_front(queued.record);
        }
        self.failing = Some(kind);
        if !self.forgets.queue.is_empty() {
            self.forgets.flush = true;
            self.refuse_forgets(kind);
        }
        for queued in records {
            if let Record::Block { slot, .. } = queued.record {
                if let Some(origin) = queued.origin {
                    super::log_clean::relocated(self, slot, origin, None);
                } else {
                    self.end_pending(slot, None);
                }
            }
            if let Some(ticket) = queued.ticket {
                self.end_record(ticket, Err(kind));
            }
        }
    }

    /// A segment that holds nothing but the failed batch is free at once: none of its records was
    /// ever promised, and a device that fails for a while must not use all segments up. For the
    /// same reason a segment behind which no other is free is not left: the next batch goes where
    /// the failed one was to lie. Without it no forgets could be written, without these no
    /// checkpoint be made, and without that no segment become free.
    fn leave_failed_segment(&mut self, stream: Stream, failed_blocks: u32) {
        let is_last = stream == Stream::Relocate && self.free_segments.is_empty();
        let state = &mut self.streams[stream as usize];
        if let Some((_, fill)) = state.open.as_mut().filter(|_| is_last) {
            *fill -= failed_blocks;
            return;
        }
        let Some((index, _)) = state.open.take_if(|(_, fill)| *fill == failed_blocks) else {
            return self.close_segment(stream);
        };
        let segment = &mut self.segments[index as usize];
        assert!(segment.live == 0 && segment.pins == 0, "nothing of it was ever written");
        segment.state = SegmentState::Free;
        self.free_segments.push_back(index);
    }

    /// Registers someone who waits for durability: a caller for all that was queued so far, the
    /// log itself for the batches that have ended.
    pub(super) fn sync_for(&mut self, whom: SyncFor) {
        let (until, forgets) = match whom {
            SyncFor::Caller(_) => (self.callers(|it| it.queued_total), self.forgets.issued),
            _ => ([0; Stream::CALLERS.len()], 0),
        };
        self.sync.waiting.push(SyncWaiter { whom, until, forgets });
    }

    fn callers<T>(&self, of: impl Fn(&StreamState) -> T) -> [T; Stream::CALLERS.len()] {
        Stream::CALLERS.map(|stream| of(&self.streams[stream as usize]))
    }

    fn start_sync(&mut self, io: &mut dyn Io) {
        if self.sync.flight.is_some() || self.sync.waiting.is_empty() {
            return;
        }
        let ended = self.callers(|it| it.ended_total);
        let durable = self.forgets_durable();
        let waiting = core::mem::take(&mut self.sync.waiting);
        let (ready, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|waiter| {
            let has_ended = waiter.until.iter().zip(&ended).all(|(until, ended)| until <= ended);
            has_ended && waiter.forgets <= durable
        });
        self.sync.waiting = rest;
        let ready = self.hold_syncs(io, ready);
        if ready.is_empty() {
            return;
        }
        let waiters: Vec<_> = ready.iter().map(|waiter| waiter.whom).collect();
        let nothing = self.sync.written.is_empty() && !self.sync.chunks_written
            || is_planted(Plant::MissingSync);
        if nothing || self.sync.lost {
            let result = if self.sync.lost { Err(ErrorKind::Closed) } else { Ok(()) };
            self.end_syncs(&waiters, result);
            return;
        }
        self.sync.syncing = core::mem::take(&mut self.sync.written);
        self.sync.chunks_written = false;
        self.sync.flight = Some(waiters);
        self.counters.syncs += 1;
        let token = self.token(Purpose::Sync, 0);
        io.submit(token, IoOperation::Sync { disk: self.config.region.disk });
    }

    /// Keeps callers' syncs back while a failed batch may still be found; the others go on.
    fn hold_syncs(&mut self, io: &mut dyn Io, ready: Vec<SyncWaiter>) -> Vec<SyncWaiter> {
        if !self.voids.holds_syncs() {
            return ready;
        }
        let is_caller = |waiter: &SyncWaiter| matches!(waiter.whom, SyncFor::Caller(_));
        let (held, ready): (Vec<_>, Vec<_>) = ready.into_iter().partition(is_caller);
        if !held.is_empty() && log_void::retry(self, io) {
            self.sync.waiting.extend(held);
        } else {
            let refused: Vec<_> = held.iter().map(|waiter| waiter.whom).collect();
            self.end_syncs(&refused, Err(ErrorKind::Retry));
        }
        ready
    }

    /// A failed batch may still be found: callers' syncs that wait end with an error.
    pub(super) fn refuse_syncs(&mut self, kind: ErrorKind) {
        let waiting = core::mem::take(&mut self.sync.waiting);
        let is_caller = |waiter: &SyncWaiter| matches!(waiter.whom, SyncFor::Caller(_));
        let (refused, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_caller);
        self.sync.waiting = rest;
        let refused: Vec<_> = refused.iter().map(|waiter| waiter.whom).collect();
        self.end_syncs(&refused, Err(kind));
    }

    pub(super) fn on_sync(&mut self, result: Result<usize, IoError>) {
        let waiters = self.sync.flight.take().expect("an end belongs to a sync in flight");
        let covered = core::mem::take(&mut self.sync.syncing);
        self.note_end(OperationKind::Sync, (0, 0), result);
        match result {
            Ok(_) => {
                if !covered.is_empty() {
                    self.horizon.on_durable();
                }
                for (stream, name) in covered {
                    let tail = &mut self.streams[stream as usize].tail;
                    if name.seq > tail.seq {
                        *tail = name;
                    }
                }
                self.end_syncs(&waiters, Ok(()));
            }
            Err(error) => {
                self.sync.written.splice(0..0, covered);
                self.note_sync_failed();
                super::log_checkpoint::on_sync_failed(self);
                self.end_syncs(&waiters, Err(kind_of(error)));
            }
        }
    }

    /// A sync has failed, one of a durable write's own included. What was written before may have
    /// been dropped, and what was on its way meanwhile as well, and no later sync would tell.
    pub(super) fn note_sync_failed(&mut self) {
        let is_volatile =
            |stream: &StreamState| stream.flight.as_ref().is_some_and(|flight| !flight.durable);
        self.sync.lost |= !self.sync.syncing.is_empty()
            || !self.sync.written.is_empty()
            || self.streams.iter().any(is_volatile);
        for flight in self.streams.iter_mut().filter_map(|stream| stream.flight.as_mut()) {
            flight.is_doubtful |= flight.durable || flight.failed.is_some();
        }
        self.voids.on_sync_failed();
        self.retiring.on_sync_failed();
        self.checkpoint.headers.on_sync_failed();
    }

    fn end_syncs(&mut self, waiters: &[SyncFor], result: Result<(), ErrorKind>) {
        for whom in waiters {
            match *whom {
                SyncFor::Caller(ticket) => self.events.push(StoreEvent::Synced { ticket, result }),
                SyncFor::Checkpoint(seq) => super::log_checkpoint::on_synced(self, seq, result),
                SyncFor::Bound => {}
            }
        }
    }
}

fn is_block(record: &Record) -> bool {
    matches!(record, Record::Block { .. })
}
