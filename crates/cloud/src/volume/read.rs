//! Reads: the journal's part first, then the map's, zeros where neither has anything.
//!
//! How: a call is cut by place. Payloads of the journal are read whole and verified; neighbouring
//! chunks of a segment are one request, which brings more where that pays (see `around`). What was
//! moved meanwhile is looked up again. A chunk that arrives truncated or changed is
//! fetched again. So is one whose object is not found or ends before it, after a back-off: that may
//! be transient.
//! Invariant: no byte is handed out that does not match its checksum; a part that never answers
//! holds up its own call alone; a chunk is fetched again a bounded number of times per call.
//! Cost: a request per run of neighbouring chunks that is not at hand.

use super::around::Waiting;
use super::{Flight, LocalPlace, Volume};
use crate::action::{Action, End, Fault, FaultKind, Request};
use crate::codec::crc32c;
use crate::map::ChunkPlace;
use crate::segment::decode_chunk;
use layby_types::{ErrorKind, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{DerefMut, Range};

/// Bytes of a request for neighbouring chunks at most.
const REQUEST_BYTES_MAX: u64 = 1 << 20;

/// How often a chunk is fetched again for one call: what a network changed is whole then, what the
/// store has changed is not.
pub(super) const FETCHES_AGAIN_MAX: u8 = 4;

/// The back-off before a chunk is fetched again whose object was not found; it doubles each time,
/// so that a read of a missing object ends within a second.
pub(super) const PAUSE: Nanos = Nanos::from_millis(50);

/// Objects that are remembered as missing at most.
const MISSING_MAX: usize = 1024;

/// A part of a read that lies in one chunk.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) blocks: Range<u64>,
    pub(super) place: ChunkPlace,
}

impl Part {
    /// Whether it is all of its chunk.
    pub(super) fn is_whole(&self) -> bool {
        self.blocks.end - self.blocks.start == u64::from(self.place.blocks)
    }
}

struct Job<B> {
    token: u64,
    since: Nanos,
    first: u64,
    buffer: B,
    left: u32,
    /// How often chunks were fetched again, by segment and first byte.
    again: BTreeMap<(u64, u32), u8>,
    /// It fails rather than ask the store.
    at_hand: bool,
    failed: Option<ErrorKind>,
}

/// Reads under way.
pub(super) struct Reads<B> {
    jobs: BTreeMap<u64, Job<B>>,
    next: u64,
    /// Blocks that are read again later, each list with its read.
    pausing: Vec<(Nanos, u64, Vec<Range<u64>>)>,
    /// Segments whose object no retry of a read found, or found longer: the next read does not
    /// retry.
    missing: BTreeSet<u64>,
    /// See [`super::Status::read_fault`].
    pub(super) fault: Option<String>,
}

impl<B> Default for Reads<B> {
    fn default() -> Self {
        let (pausing, missing) = (Vec::new(), BTreeSet::new());
        Reads { jobs: BTreeMap::new(), next: 0, pausing, missing, fault: None }
    }
}

impl<B> Reads<B> {
    /// Segments may be there again by now that were missing.
    pub(super) fn forget_missing(&mut self) {
        self.missing.clear();
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    pub(super) fn start_read(&mut self, token: u64, offset: u64, buffer: B) {
        if self.is_stopping || self.session.is_taken() {
            return self.finish(token, Err(ErrorKind::Closed), Some(buffer));
        }
        self.begin_read(token, offset, buffer, false);
    }

    fn begin_read(&mut self, token: u64, offset: u64, buffer: B, at_hand: bool) {
        let blocks = self.blocks_of(offset, buffer.len() as u64);
        let job = self.reads.next;
        self.reads.next += 1;
        let (since, first, again) = (self.now, blocks.start, BTreeMap::new());
        let state = Job { token, since, first, buffer, left: 1, again, at_hand, failed: None };
        self.reads.jobs.insert(job, state);
        self.read_blocks(job, blocks);
        self.end_part_of_read(job);
    }

    /// Reads what came along with other reads, where it is still held; nothing is asked for it.
    pub(super) fn start_read_at_hand(&mut self, token: u64, offset: u64, buffer: B) {
        let blocks = self.blocks_of(offset, buffer.len() as u64);
        let is_served = self.is_known && !self.is_stopping && !self.session.is_taken();
        match is_served && self.is_at_hand(blocks) {
            true => self.begin_read(token, offset, buffer, true),
            false => self.finish(token, Err(ErrorKind::Retry), Some(buffer)),
        }
    }

    pub(super) fn read_blocks(&mut self, job: u64, blocks: Range<u64>) {
        for piece in self.overlay.pieces(blocks) {
            match piece.place {
                Some(place) if place.at.is_some() => self.read_journal(job, piece.blocks, place),
                Some(_) => self.zero(job, &piece.blocks),
                None => self.read_below_overlay(job, piece.blocks),
            }
        }
    }

    pub(super) fn read_journal(&mut self, job: u64, blocks: Range<u64>, place: LocalPlace) {
        let at = self.journal.ring.device(place.at.expect("the caller looked"));
        let length = u64::from(place.blocks) * self.block();
        self.job(job).left += 1;
        let flight = Flight::ReadJournal { job, blocks, place };
        self.act(Action::JournalRead { at, length }, flight);
    }

    pub(super) fn read_cloud(&mut self, job: u64, blocks: Range<u64>) {
        let mut run: Vec<Part> = Vec::new();
        for piece in self.map.pieces(blocks) {
            let Some(place) = piece.place else {
                self.zero(job, &piece.blocks);
                continue;
            };
            let part = Part { blocks: piece.blocks, place };
            if !run.last().is_none_or(|last| follows(&run[0].place, &last.place, &place)) {
                self.get_chunks(job, std::mem::take(&mut run));
            }
            run.push(part);
        }
        self.get_chunks(job, run);
    }

    fn get_chunks(&mut self, job: u64, parts: Vec<Part>) {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return };
        let stretch = self.stretch_of(&first.place, &last.place);
        if let Some(bytes) = self.at_hand.take(&parts, &stretch) {
            self.job(job).left += 1;
            return self.hand_chunks(job, parts, stretch.bytes.start, &End::Bytes(bytes, None));
        }
        if self.job(job).at_hand || self.refuses_read() {
            return self.fail_read(job, ErrorKind::Retry);
        }
        self.job(job).left += 1;
        if self.at_hand.join(job, &parts, &stretch) {
            return;
        }
        let (fetch, stretch) = self.widen(&parts, &stretch);
        let fetch = (fetch, stretch.bytes.start);
        let key = self.map.key(stretch.name.number).expect("the map knows its segments");
        let request = Request::Get { key, range: Some(stretch.bytes.clone()) };
        self.counters.reads += 1;
        self.ask(request, Flight::ReadChunks { job, parts, fetch });
    }

    /// One more part of a read begins.
    pub(super) fn add_part_of_read(&mut self, job: u64) {
        self.job(job).left += 1;
    }

    fn job(&mut self, job: u64) -> &mut Job<B> {
        self.reads.jobs.get_mut(&job).expect("a read lasts until its parts have ended")
    }

    fn zero(&mut self, job: u64, blocks: &Range<u64>) {
        let block = self.block();
        let state = self.job(job);
        let at = ((blocks.start - state.first) * block) as usize;
        let length = ((blocks.end - blocks.start) * block) as usize;
        state.buffer[at..at + length].fill(0);
    }

    pub(super) fn copy(&mut self, job: u64, blocks: &Range<u64>, bytes: &[u8], skip: u16) {
        let block = self.block();
        let state = self.job(job);
        let at = ((blocks.start - state.first) * block) as usize;
        let length = ((blocks.end - blocks.start) * block) as usize;
        let from = usize::from(skip) * block as usize;
        state.buffer[at..at + length].copy_from_slice(&bytes[from..from + length]);
    }

    pub(super) fn end_part_of_read(&mut self, job: u64) {
        let state = self.job(job);
        state.left -= 1;
        if state.left == 0 {
            let job = self.reads.jobs.remove(&job).expect("it was just there");
            self.finish(job.token, job.failed.map_or(Ok(()), Err), Some(job.buffer));
        }
    }

    /// All reads that are under way fail; what comes for them later is not wanted any more.
    pub(super) fn fail_reads(&mut self) {
        for (_, job) in std::mem::take(&mut self.reads.jobs) {
            self.finish(job.token, Err(ErrorKind::Closed), Some(job.buffer));
        }
    }

    /// Reads that reach behind byte `from` fail.
    pub(super) fn fail_reads_behind(&mut self, from: u64) {
        let block = self.block();
        let is_behind =
            |_: &u64, job: &mut Job<B>| job.first * block + job.buffer.len() as u64 > from;
        let behind: Vec<_> = self.reads.jobs.extract_if(.., is_behind).collect();
        for (_, job) in behind {
            self.finish(job.token, Err(ErrorKind::Retry), Some(job.buffer));
        }
    }

    /// Whether a read has not ended.
    pub(super) fn is_reading(&self, job: u64) -> bool {
        self.reads.jobs.contains_key(&job)
    }

    /// Since when the oldest read waits; they are numbered as they came.
    pub(super) fn oldest_read(&self) -> Option<Nanos> {
        self.reads.jobs.first_key_value().map(|(_, job)| job.since)
    }

    /// Since when each read waits.
    pub(super) fn reads_since(&mut self) -> impl Iterator<Item = &mut Nanos> {
        self.reads.jobs.values_mut().map(|job| &mut job.since)
    }

    /// Reads that began at `over` or before fail.
    pub(super) fn give_up_reads(&mut self, over: Nanos) {
        while let Some(oldest) = self.reads.jobs.first_entry()
            && oldest.get().since <= over
        {
            let job = oldest.remove();
            self.finish(job.token, Err(ErrorKind::Retry), Some(job.buffer));
        }
    }

    /// What the store has of a read is not what was written: the object is named.
    fn fail_damaged(&mut self, job: u64, place: &ChunkPlace, how: &str) {
        let key = self.map.key(place.number).unwrap_or_default();
        let cause =
            format!("object `{key}` of the volume {how}; `layby check --backing` says more");
        if self.job(job).failed.is_none() {
            self.reads.fault = Some(cause.clone());
            self.counters.damaged += 1;
        }
        self.last_fault = Some((Fault { kind: FaultKind::Device, cause }, self.now));
        self.fail_read(job, ErrorKind::Corrupt);
    }

    fn fail_read(&mut self, job: u64, kind: ErrorKind) {
        self.job(job).failed = Some(kind);
    }

    pub(super) fn on_journal_read(
        &mut self,
        job: u64,
        blocks: Range<u64>,
        place: LocalPlace,
        end: End,
    ) {
        if !self.is_reading(job) {
            return;
        }
        match end {
            End::Bytes(bytes, _) if self.is_in_ring(&place) && crc32c(&bytes) == place.crc => {
                self.copy(job, &blocks, &bytes, place.skip);
            }
            // The ring reused its bytes meanwhile, or they are damaged, and the store has them.
            _ if self.forget_uploaded(blocks.clone(), &place) => self.read_blocks(job, blocks),
            _ => self.fail_read(job, ErrorKind::Corrupt),
        }
        self.end_part_of_read(job);
    }

    pub(super) fn on_chunks(
        &mut self,
        job: u64,
        parts: Vec<Part>,
        (fetch, from): (u64, u64),
        end: &End,
    ) {
        let bytes = match end {
            End::Bytes(bytes, _) => Some(bytes),
            _ => None,
        };
        let waiting = self.arrive(fetch, &parts, bytes);
        if self.is_reading(job) {
            self.hand_chunks(job, parts, from, end);
        }
        self.read_waiting(waiting);
    }

    /// A request for chunks is not repeated any more, since nobody waits for what it was for; who
    /// waited for what it would have brought beside asks for himself.
    pub(super) fn drop_chunks(&mut self, fetch: u64, parts: &[Part]) {
        let waiting = self.arrive(fetch, parts, None);
        self.read_waiting(waiting);
    }

    /// A request for chunks will be repeated later, for who asked for them; so long nobody else
    /// waits for it.
    pub(super) fn delay_chunks(&mut self, fetch: u64) {
        let waiting = self.at_hand.delay(fetch);
        self.read_waiting(waiting);
    }

    fn read_waiting(&mut self, waiting: Waiting) {
        for (job, parts) in waiting {
            if self.is_reading(job) {
                parts.into_iter().for_each(|part| self.read_blocks(job, part.blocks));
                self.end_part_of_read(job);
            }
        }
    }

    /// Hands out what came for parts of a read, from byte `from` of its segment on.
    fn hand_chunks(&mut self, job: u64, parts: Vec<Part>, from: u64, end: &End) {
        let kind = if let End::Failed(fault) = end { Some(fault.kind) } else { None };
        let is_short = kind == Some(FaultKind::Short);
        let is_missing = is_short || kind == Some(FaultKind::NotFound);
        let (mut again, mut pause): (Vec<Range<u64>>, _) = (Vec::new(), Nanos::ZERO);
        // Parts of one chunk share its answer, and its retries.
        let mut told: BTreeMap<u32, Option<Nanos>> = BTreeMap::new();
        for part in parts {
            let chunk = match end {
                End::Bytes(bytes, _) => {
                    self.reads.missing.remove(&part.place.number);
                    self.chunk(&part.place, bytes, from)
                }
                _ => None,
            };
            match chunk {
                Some(chunk) => self.copy(job, &part.blocks, &chunk, part.place.skip),
                None if is_missing && self.is_moved(&part) => self.read_blocks(job, part.blocks),
                None => match *told
                    .entry(part.place.at)
                    .or_insert_with(|| self.fetch_again(job, &part.place, is_missing))
                {
                    Some(own) => {
                        pause = pause.max(own);
                        add_blocks(&mut again, part.blocks);
                    }
                    None if is_short => self.fail_damaged(job, &part.place, "has lost its end"),
                    None if matches!(end, End::Bytes(..)) => {
                        self.fail_damaged(job, &part.place, "is damaged");
                    }
                    None => self.fail_damaged(job, &part.place, "is missing, or cannot be had"),
                },
            }
        }
        self.read_again(job, again, pause);
        self.end_part_of_read(job);
    }

    /// Whether a part does not lie any more where it was looked for.
    fn is_moved(&self, part: &Part) -> bool {
        let held = self.map.mapped(part.blocks.clone()).next();
        held.is_none_or(|(_, place)| place != part.place)
    }

    /// The back-off before a chunk that arrived unsound, or whose object was not found or ends
    /// before it, is fetched again; none once its retries are used up.
    fn fetch_again(&mut self, job: u64, place: &ChunkPlace, is_missing: bool) -> Option<Nanos> {
        let is_known = is_missing && self.reads.missing.contains(&place.number);
        let count = self.job(job).again.entry((place.number, place.at)).or_default();
        if !is_known && *count < FETCHES_AGAIN_MAX {
            *count += 1;
            let doublings = *count - 1;
            self.at_hand.forget(place.number);
            return Some(if is_missing { Nanos(PAUSE.0 << doublings) } else { Nanos::ZERO });
        }
        if self.is_unverified(place.number) {
            return Some(Nanos(PAUSE.0 << FETCHES_AGAIN_MAX));
        }
        if is_missing {
            if self.reads.missing.len() >= MISSING_MAX {
                self.reads.missing.clear();
            }
            self.reads.missing.insert(place.number);
        }
        None
    }

    /// Reads blocks once more, at once or after a pause.
    fn read_again(&mut self, job: u64, blocks: Vec<Range<u64>>, pause: Nanos) {
        if pause == Nanos::ZERO {
            return blocks.into_iter().for_each(|blocks| self.read_blocks(job, blocks));
        }
        self.job(job).left += 1;
        self.reads.pausing.push((self.now.saturating_add(pause), job, blocks));
    }

    /// Goes on with reads whose pause is over.
    pub(super) fn end_pauses(&mut self) {
        let now = self.now;
        let due: Vec<_> = self.reads.pausing.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, job, blocks) in due {
            if self.is_reading(job) {
                self.read_again(job, blocks, Nanos::ZERO);
                self.end_part_of_read(job);
            }
        }
    }

    /// When the first pause is over.
    pub(super) fn pause_deadline(&self) -> Nanos {
        self.reads.pausing.iter().map(|(at, ..)| *at).min().unwrap_or(Nanos::NEVER)
    }

    /// A chunk's blocks from a range of its object that begins at `from`.
    pub(super) fn chunk(&self, place: &ChunkPlace, bytes: &[u8], from: u64) -> Option<Vec<u8>> {
        let at = usize::try_from(u64::from(place.at).checked_sub(from)?).ok()?;
        let stored = bytes.get(at..at + place.stored as usize)?;
        let length = usize::from(place.blocks) * self.plan.block_bytes as usize;
        decode_chunk(stored, place.encoding, place.crc, length)
    }
}

/// Adds blocks behind others, as one range where they are neighbours.
fn add_blocks(ranges: &mut Vec<Range<u64>>, blocks: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == blocks.start => last.end = blocks.end,
        _ => ranges.push(blocks),
    }
}

/// Whether a chunk may be fetched with those before it.
fn follows(first: &ChunkPlace, last: &ChunkPlace, next: &ChunkPlace) -> bool {
    let end = u64::from(next.at) + u64::from(next.stored);
    let is_next = next.at == last.at + last.stored || next.at == last.at;
    last.number == next.number && is_next && end - u64::from(first.at) <= REQUEST_BYTES_MAX
}
