//! Writes, zeroings and syncs: into the journal, in the order of their submission.
//!
//! How: calls are cut into parts that fit a batch; one batch is on its way at a time and takes what
//! has gathered. A sync covers what had ended when it was submitted. What a sync covered, the next
//! batch says to a later start; where no durable one says so within [`HORIZON_DELAY`], or only one
//! so far behind that no scan looks there, the map file does, however many syncs follow each other.
//! Invariant: a call is acknowledged after its last part is in the journal, and, where it is to be
//! durable, after a sync that began behind that. Where the journal is full, calls wait.
//! Cost: one copy of the bytes into the batch.

use super::{Flight, LocalPlace, OWN_TOKEN, Volume};
use crate::action::{Action, End};
use crate::codec::crc32c;
use crate::journal::encode_header;
use crate::journal::{
    BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, Batch, JournalEntry, PAGE_BYTES, VOUCH_BYTES,
};
use crate::meta::Frame;
use crate::segment::CHUNK_BYTES;
use layby_types::planted::{Plant, is_planted};
use layby_types::{ErrorKind, Nanos};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{DerefMut, Range};

/// How long after a sync its reach is written down, where no later batch has done so. The map file
/// takes it then, so that no client waits for that.
const HORIZON_DELAY: Nanos = Nanos::from_millis(500);
/// What a header says to be durable counts up to here behind it: half of what a scan looks at,
/// since the header's own batch and a padding lie in between.
const CLAIM_BYTES: u64 = VOUCH_BYTES / 2;
/// Moments at which the map file is to say something.
const HORIZONS_MAX: usize = 3;

struct Call<B> {
    token: u64,
    since: Nanos,
    buffer: Option<B>,
    first: u64,
    parts_left: u32,
    is_durable: bool,
}

struct Part {
    call: u64,
    blocks: Range<u64>,
    is_zero: bool,
}

/// What waits for the journal, and what is on its way there.
pub(super) struct Writes<B> {
    calls: BTreeMap<u64, Call<B>>,
    call_next: u64,
    queue: VecDeque<Part>,
    /// Parts of the batch on its way, the batch, and journal writes of it that have not ended.
    writing: Option<(Vec<Part>, Batch, u32)>,
    /// Batches before this one are in the journal.
    pub(super) written_next: u64,
    /// Batches before this one are durable there.
    pub(super) durable_next: u64,
    is_syncing: bool,
    /// What the header of the batch on its way says to be durable.
    claims: u64,
    /// The same of the last batch that is in the journal.
    claims_written: u64,
    /// A durable batch, or the map file, says that batches before this one are durable.
    claimed_next: u64,
    /// What was made durable beyond that by each sync, and when the map file is to say it, in
    /// order. Mostly at most [`HORIZONS_MAX`]: a header made after a sync says what that covered,
    /// and only one batch is on its way when a sync ends. Where headers do not count, as beside a
    /// word that has no room, later syncs share the last moment.
    horizons: VecDeque<(u64, Nanos)>,
    /// It is being told: where it has no room, for long.
    is_recording_horizon: bool,
    /// Calls that wait for batches before a number to be durable.
    syncs: Vec<(u64, u64, Option<B>)>,
    /// The next batch waits until what it would be written over is in the read cache.
    awaits_copies: bool,
    /// Somebody else needs these batches durable.
    pub(super) wanted_next: u64,
    /// The device failed: nothing is taken any more.
    pub(super) is_lost: bool,
    /// Why.
    pub(super) fault: Option<String>,
}

impl<B> Writes<B> {
    pub(super) fn new(seq_next: u64) -> Self {
        Writes {
            calls: BTreeMap::new(),
            call_next: 0,
            queue: VecDeque::new(),
            writing: None,
            written_next: seq_next,
            durable_next: seq_next,
            is_syncing: false,
            claims: 0,
            claims_written: 0,
            claimed_next: seq_next,
            horizons: VecDeque::new(),
            is_recording_horizon: false,
            syncs: Vec::new(),
            awaits_copies: false,
            wanted_next: 0,
            is_lost: false,
            fault: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.writing.is_none()
    }

    /// Bytes that are to go into the journal, in blocks of so many bytes.
    pub(super) fn queued_bytes(&self, block: u64) -> u64 {
        let parts = self.queue.iter().filter(|part| !part.is_zero);
        parts.map(|part| (part.blocks.end - part.blocks.start) * block).sum()
    }

    /// Whether a call waits for the journal's room.
    pub(super) fn is_waiting(&self) -> bool {
        !self.queue.is_empty() && self.writing.is_none() && !self.awaits_copies
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    pub(super) fn start_write(&mut self, token: u64, offset: u64, buffer: B, is_durable: bool) {
        let blocks = self.blocks_of(offset, buffer.len() as u64);
        self.start_call(token, blocks, Some(buffer), is_durable);
    }

    pub(super) fn start_zero(&mut self, token: u64, offset: u64, length: u64) {
        let blocks = self.blocks_of(offset, length);
        self.start_call(token, blocks, None, false);
    }

    fn start_call(&mut self, token: u64, blocks: Range<u64>, buffer: Option<B>, is_durable: bool) {
        let is_unready = !self.is_known || self.awaits_map || self.write.is_waiting();
        let is_stopping = self.is_stopping && is_unready;
        if self.write.is_lost || self.session.is_lost() || is_stopping {
            return self.finish(token, Err(ErrorKind::Closed), buffer);
        }
        if blocks.is_empty() {
            return self.finish(token, Ok(()), buffer);
        }
        let is_zero = buffer.is_none();
        if !is_zero && self.refuses_write((blocks.end - blocks.start) * self.block()) {
            return self.finish(token, Err(ErrorKind::Retry), buffer);
        }
        let step =
            if is_zero { blocks.end - blocks.start } else { CHUNK_BYTES as u64 / self.block() };
        let (call, first) = (self.write.call_next, blocks.start);
        self.write.call_next += 1;
        let mut parts_left = 0;
        let mut at = blocks.start;
        while at < blocks.end {
            let end = blocks.end.min(at + step.max(1));
            self.write.queue.push_back(Part { call, blocks: at..end, is_zero });
            parts_left += 1;
            at = end;
        }
        let call_state = Call { token, since: self.now, buffer, first, parts_left, is_durable };
        self.write.calls.insert(call, call_state);
    }

    pub(super) fn start_sync(&mut self, token: u64) {
        if self.write.is_lost || self.session.is_lost() {
            return self.finish(token, Err(ErrorKind::Closed), None);
        }
        let is_omitted = is_planted(Plant::JournalSyncOmitted);
        let needs = if is_omitted { 0 } else { self.write.written_next };
        self.write.syncs.push((token, needs, None));
        self.end_syncs();
    }

    /// Sends the next batch, as long as there is room for it.
    pub(super) fn write_next(&mut self) {
        if self.write.writing.is_some() || self.write.queue.is_empty() || self.write.is_lost {
            return;
        }
        let (count, bytes) = self.parts_that_fit();
        self.write.awaits_copies = false;
        if count == 0 {
            // What a stop found behind a batch on its way ends now that there is no room for it.
            if self.is_stopping {
                self.fail_waiting_writes();
            }
            return;
        }
        let padding = self.journal.room(bytes).expect("it was asked for");
        self.write.awaits_copies = self.yields_to_copies(self.journal.head + padding + bytes);
        if self.write.awaits_copies {
            return;
        }
        let parts: Vec<Part> = self.write.queue.drain(..count).collect();
        let mut payload = Vec::new();
        let mut spans = Vec::new();
        for part in &parts {
            let from = payload.len();
            self.copy_part(part, &mut payload);
            assert!(payload.len() - from <= CHUNK_BYTES, "no start reads a longer payload back");
            spans.push(from..payload.len());
        }
        let mut writes = 1;
        if padding > 0 {
            let pad = self.journal.append(padding, Vec::new(), self.now);
            let header = encode_header(&self.journal.ring, &pad, self.write.durable_next);
            self.write_journal(&pad, header);
            writes += 1;
        }
        let base = self.journal.head + PAGE_BYTES;
        let entry = |(part, span): (&Part, &Range<usize>)| JournalEntry {
            blocks: part.blocks.clone(),
            at: (!part.is_zero).then_some(base + span.start as u64),
            crc: crc32c(&payload[span.clone()]),
        };
        let entries = parts.iter().zip(&spans).map(entry).collect();
        let batch = self.journal.append(bytes, entries, self.now);
        let mut image = encode_header(&self.journal.ring, &batch, self.write.durable_next);
        self.write.claims = self.write.durable_next;
        image.append(&mut payload);
        self.write_journal(&batch, image);
        self.write.writing = Some((parts, batch, writes));
    }

    fn write_journal(&mut self, batch: &Batch, bytes: Vec<u8>) {
        let at = self.journal.ring.device(batch.at);
        self.act(Action::JournalWrite { at, bytes }, Flight::JournalWrite);
    }

    /// Parts of the queue that the next batch takes, and its bytes.
    fn parts_that_fit(&self) -> (usize, u64) {
        let block = self.block();
        let mut payload = 0;
        let mut count = 0;
        for part in self.write.queue.iter().take(BATCH_ENTRIES_MAX) {
            let length =
                if part.is_zero { 0 } else { (part.blocks.end - part.blocks.start) * block };
            let is_long = count > 0 && payload + length > BATCH_BYTES_MAX;
            if is_long || self.journal.room(PAGE_BYTES + payload + length).is_none() {
                break;
            }
            payload += length;
            count += 1;
        }
        (count, PAGE_BYTES + payload)
    }

    fn copy_part(&self, part: &Part, payload: &mut Vec<u8>) {
        let call = &self.write.calls[&part.call];
        let Some(buffer) = &call.buffer else { return };
        let block = self.block();
        let from = ((part.blocks.start - call.first) * block) as usize;
        let to = ((part.blocks.end - call.first) * block) as usize;
        payload.extend_from_slice(&buffer[from..to]);
    }

    pub(super) fn on_journal_written(&mut self, end: &End) {
        if matches!(end, End::Failed(_)) {
            return self.lose_journal(end);
        }
        let Some((_, _, left)) = &mut self.write.writing else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        let (parts, batch, _) = self.write.writing.take().expect("it was just there");
        self.write.written_next = batch.seq + 1;
        self.write.claims_written = self.write.claims;
        for entry in &batch.entries {
            let blocks = (entry.blocks.end - entry.blocks.start).min(u64::from(u16::MAX)) as u16;
            let (seq, at, crc) = (batch.seq, entry.at, entry.crc);
            let place = LocalPlace { seq, at, crc, blocks, skip: 0 };
            self.overlay.insert(entry.blocks.clone(), place);
        }
        for part in parts {
            self.end_part(part.call, batch.seq + 1);
        }
    }

    fn end_part(&mut self, call: u64, needs: u64) {
        let state = self.write.calls.get_mut(&call).expect("a part's call is known");
        state.parts_left -= 1;
        if state.parts_left > 0 {
            return;
        }
        let call = self.write.calls.remove(&call).expect("it was just there");
        match call.is_durable {
            true => self.write.syncs.push((call.token, needs, call.buffer)),
            false => self.finish(call.token, Ok(()), call.buffer),
        }
    }

    pub(super) fn sync_next(&mut self) {
        let wanted = self.write.syncs.iter().map(|(_, needs, _)| *needs).max().unwrap_or(0);
        let wanted = wanted.max(self.write.wanted_next);
        let is_needed = wanted > self.write.durable_next && !self.write.is_lost;
        if is_needed && !self.write.is_syncing {
            self.write.is_syncing = true;
            // A batch that is on its way may not be covered; what it says counts after the next.
            let (covers, claims) = (self.write.written_next, self.write.claims_written);
            self.act(Action::JournalSync, Flight::JournalSync { covers, claims });
        }
    }

    pub(super) fn on_journal_synced(&mut self, covers: u64, claims: u64, end: &End) {
        self.write.is_syncing = false;
        if matches!(end, End::Failed(_)) {
            return self.lose_journal(end);
        }
        self.write.durable_next = self.write.durable_next.max(covers);
        if self.is_out_of_sight(claims) {
            if !self.write.is_recording_horizon {
                self.record_horizon_now();
            }
        } else {
            self.note_claimed(claims);
        }
        self.note_horizon();
        self.end_syncs();
    }

    /// Whether a scan that meets a damaged batch among those that a header says to be durable may
    /// end before it comes to that header.
    fn is_out_of_sight(&self, claims: u64) -> bool {
        let claimed = self.write.claimed_next;
        let open = self.journal.batches.iter().find(|batch| batch.seq >= claimed);
        let from = open.map_or(self.journal.head, |batch| batch.at);
        claims > claimed && self.journal.head - from > CLAIM_BYTES
    }

    /// The map file is to say what is durable now, unless something else does by then.
    fn note_horizon(&mut self) {
        let (next, at) = (self.write.durable_next, self.now.saturating_add(HORIZON_DELAY));
        if self.write.claimed_next >= next {
            return;
        }
        // Each at its own time: a later sync says nothing of what an earlier one covered.
        let is_full = self.write.horizons.len() == HORIZONS_MAX;
        match self.write.horizons.back_mut().filter(|_| is_full) {
            Some((last, _)) => *last = next,
            None => self.write.horizons.push_back((next, at)),
        }
    }

    /// Batches before this one are durable, and something that is durable says so.
    fn note_claimed(&mut self, next: u64) {
        let claimed = self.write.claimed_next.max(next);
        self.write.claimed_next = claimed;
        while self.write.horizons.pop_front_if(|(next, _)| *next <= claimed).is_some() {}
    }

    /// When the map file is to say how far the journal is durable; of a lost one, never. One word
    /// at a time: a later one replaces those that would wait with it.
    pub(super) fn horizon_deadline(&self) -> Nanos {
        match self.write.is_lost || self.write.is_recording_horizon {
            true => Nanos::NEVER,
            false => self.write.horizons.front().map_or(Nanos::NEVER, |(_, at)| *at),
        }
    }

    /// Writes down how far the journal is durable, where nothing says so yet.
    pub(super) fn record_horizon(&mut self) {
        if self.now >= self.horizon_deadline() {
            self.record_horizon_now();
        }
    }

    fn record_horizon_now(&mut self) {
        self.write.horizons.clear();
        let (claimed, next) = (self.write.claimed_next, self.write.durable_next);
        let is_open = |batch: &Batch| batch.seq >= claimed && !batch.entries.is_empty();
        // What the store has needs no word.
        if self.journal.batches.iter().any(is_open) {
            let frame = Frame::Durable(next).encode();
            self.upload.map_file_bytes += frame.len() as u64;
            self.write.is_recording_horizon = true;
            self.act(Action::MapAppend(frame), Flight::HorizonRecorded { next });
        }
    }

    /// The same without a delay, also beside a record that is under way.
    pub(super) fn vouch_at_once(&mut self) {
        if !self.write.is_lost && self.write.claimed_next < self.write.durable_next {
            self.record_horizon_now();
        }
    }

    pub(super) fn on_horizon_recorded(&mut self, next: u64, end: &End) {
        self.write.is_recording_horizon = false;
        if matches!(end, End::Failed(_)) {
            return self.lose_journal(end);
        }
        self.note_claimed(next);
    }

    fn end_syncs(&mut self) {
        let durable = self.write.durable_next;
        let ended: Vec<_> =
            self.write.syncs.extract_if(.., |(_, needs, _)| *needs <= durable).collect();
        for (token, _, buffer) in ended {
            self.finish(token, Ok(()), buffer);
        }
    }

    /// The journal's device failed a write or a sync: it is not trusted any more until the volume
    /// is opened again, and all that waits for it fails.
    pub(super) fn lose_journal(&mut self, end: &End) {
        if let End::Failed(fault) = end {
            self.last_fault = Some((fault.clone(), self.now));
            self.write.fault.get_or_insert_with(|| fault.cause.clone());
        }
        self.write.is_lost = true;
        self.fail_writes();
        self.fail_snapshots();
    }

    /// Calls that wait for the journal's room fail.
    pub(super) fn fail_waiting_writes(&mut self) {
        if !self.write.is_waiting() {
            return;
        }
        for part in std::mem::take(&mut self.write.queue) {
            if let Some(call) = self.write.calls.remove(&part.call) {
                self.finish(call.token, Err(ErrorKind::Closed), call.buffer);
            }
        }
    }

    /// The first part of a client's call that waits for the journal's room. The volume's own
    /// zeroings wait for as long as it takes: a later size rests on them.
    fn first_waiting_write(&self) -> Option<(usize, &Call<B>)> {
        let queue = self.write.queue.iter().filter(|_| self.write.is_waiting());
        let mut calls = queue.map(|part| &self.write.calls[&part.call]).enumerate();
        calls.find(|(_, call)| call.token != OWN_TOKEN)
    }

    /// Since when the oldest call waits for the journal's room.
    pub(super) fn oldest_waiting_write(&self) -> Option<Nanos> {
        self.first_waiting_write().map(|(_, call)| call.since)
    }

    /// Since when each call waits.
    pub(super) fn writes_since(&mut self) -> impl Iterator<Item = &mut Nanos> {
        self.write.calls.values_mut().map(|call| &mut call.since)
    }

    /// Calls that began at `over` or before and wait for the journal's room fail.
    pub(super) fn give_up_writes(&mut self, over: Nanos) {
        while let Some((at, call)) = self.first_waiting_write()
            && call.since <= over
        {
            let part = self.write.queue.remove(at).expect("it was just there");
            self.write.queue.retain(|other| other.call != part.call);
            let call = self.write.calls.remove(&part.call).expect("its parts are not all written");
            self.finish(call.token, Err(ErrorKind::Retry), call.buffer);
        }
    }

    /// All calls that are not acknowledged yet fail.
    pub(super) fn fail_writes(&mut self) {
        self.write.queue.clear();
        self.write.writing = None;
        for (_, call) in std::mem::take(&mut self.write.calls) {
            self.finish(call.token, Err(ErrorKind::Closed), call.buffer);
        }
        for (token, _, buffer) in std::mem::take(&mut self.write.syncs) {
            self.finish(token, Err(ErrorKind::Closed), buffer);
        }
    }
}
