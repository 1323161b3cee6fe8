//! A volume whose home is an object store, as a state machine without I/O.
//!
//! How: writes go to the journal and are acknowledged from there, in order. The journal's oldest
//! batches, what was overwritten within them left out, become a segment object; segments count
//! through the volume's life and are applied to the map in order; the superblock then says how far
//! the volume has come. So the store always holds a prefix of the history of writes, and what the
//! journal lets go is committed there. Reads look into the journal first, then into the map.
//! Invariant: the journal keeps what no committed segment holds; only durable batches are uploaded;
//! a segment is deleted only when neither the committed map nor a replay needs it.
//! Source: the log-structured virtual disk (Hajkazemi et al., EuroSys 2022), with sessions that
//! fence each other.
//! Cost: a look-up in two trees per read, a page of journal per batch of writes.
//! Not for: time, chance and I/O; see `host`.

mod again;
mod around;
mod claims;
mod clean;
mod commit;
mod conditions;
mod gone;
mod learn;
mod read;
mod read_cache;
mod recover;
mod session;
mod size;
mod snapshots;
mod turns;
mod unnamed;
mod upload;
mod uploaded;
mod verify;
mod wait;
mod write;

use crate::action::{Action, ActionId, End, Fault, FaultKind, Request};
use crate::journal::Journal;
use crate::map::CloudMap;
use crate::runs::{Place, Runs};
use crate::segment::{Compression, Index, VolumeUuid};
use crate::superblock::{Base, SUPERBLOCK_KEY};
use bytes::Bytes;
use layby_types::{BackingDone, BackingOperation, ErrorKind, Nanos, Rng};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{DerefMut, Range};
use std::sync::Arc;

pub use conditions::ConditionalPuts;
pub use recover::Wanted;
pub(crate) use recover::{Left, LeftOver, left_over};
pub use recover::{
    OpenError, Opened, Opening, create, is_settled, opening_of, sessions_of, volume_of,
};
pub use session::Link;
pub use wait::WaitPlan;

/// A volume and how it is kept.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The volume.
    pub volume: VolumeUuid,
    /// Its name, for people.
    pub name: String,
    /// The node that serves it.
    pub node: VolumeUuid,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// Bytes of a block: a power of two from 4 KiB.
    pub block_bytes: u32,
    /// How chunks are encoded.
    pub compression: Compression,
    /// Take the volume from the node that serves it.
    pub takeover: bool,
    /// The store was seen to have its superblock: where there is none, none is made.
    pub was_found: bool,
    /// How the store takes puts on a condition, where that is known.
    pub puts: ConditionalPuts,
    /// A store that ignores conditions is refused.
    pub needs_conditions: bool,
    /// Bounds.
    pub limits: Limits,
}

/// Bytes of a volume's read cache where nothing else is said: as many as the default levels have.
pub const READ_CACHE_BYTES_DEFAULT: u64 = 640 << 20;

/// Bounds of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a segment before encoding, about.
    pub segment_bytes: u64,
    /// How old a write gets before it is uploaded whatever the segment's size.
    pub dirty_age_max: Nanos,
    /// Segments on their way at most.
    pub uploads_max: u16,
    /// Segments are cleaned when all bytes stored exceed this much of the live ones, in percent.
    pub amplification_percent_max: u32,
    /// Rest between two changes of the superblock, unless the journal runs full.
    pub commit_interval: Nanos,
    /// Segments between two checkpoints.
    pub checkpoint_segments: u32,
    /// Bytes of the read cache.
    pub read_cache_bytes: u64,
}

impl Limits {
    /// Bounds of a volume that says nothing.
    pub const DEFAULT: Limits = Limits {
        segment_bytes: 8 << 20,
        dirty_age_max: Nanos::from_secs(5),
        uploads_max: 4,
        amplification_percent_max: 120,
        commit_interval: Nanos::from_secs(1),
        checkpoint_segments: 64,
        read_cache_bytes: READ_CACHE_BYTES_DEFAULT,
    };
}

/// The mark of the volume's own calls: zeroings where its size changes.
const OWN_TOKEN: u64 = u64::MAX;

/// Where the journal holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalPlace {
    /// The batch.
    seq: u64,
    /// First byte of the payload that holds them; none where they are zeros.
    at: Option<u64>,
    crc: u32,
    /// Blocks of the whole payload.
    blocks: u16,
    /// Blocks of it before this part.
    skip: u16,
}

impl Place for LocalPlace {
    fn skip(self, blocks: u64) -> Self {
        match self.at {
            Some(_) => LocalPlace { skip: self.skip + blocks as u16, ..self },
            None => self,
        }
    }
}

/// What an action in flight was for.
enum Flight {
    JournalWrite,
    CopyRead,
    CacheWrite,
    CacheRead {
        job: u64,
        blocks: Range<u64>,
        crcs: Vec<u32>,
    },
    JournalSync {
        covers: u64,
        claims: u64,
    },
    HorizonRecorded {
        next: u64,
    },
    ReadJournal {
        job: u64,
        blocks: Range<u64>,
        place: LocalPlace,
    },
    ReadChunks {
        job: u64,
        parts: Vec<read::Part>,
        /// Its number among fetches, and the first byte of the object that it asks for.
        fetch: (u64, u64),
    },
    CutRead {
        number: u64,
        part: usize,
    },
    SegmentPut {
        number: u64,
    },
    IndexRecorded {
        number: u64,
    },
    CommitRecorded {
        number: u64,
        journal_next: u64,
    },
    MapReplaced,
    TakenRecorded,
    ClaimRecorded,
    Superblock(session::Step),
    CheckpointEncoded,
    CheckpointPut,
    SnapshotPut {
        id: u64,
    },
    /// Whether an object that is said to exist is the one that was put.
    Verify {
        put: Box<Flight>,
        key: String,
        bytes: Bytes,
        /// The first byte of it that is looked at.
        from: u64,
        /// How often in a row what was found there was something else.
        differed: u8,
    },
    CleanGet {
        from: u64,
        number: u64,
    },
    Delete {
        number: u64,
    },
    Remove,
    Sweep,
}

struct Retry {
    flight: Flight,
    request: Request,
    attempt: u32,
}

/// See the file's header.
pub struct Volume<B> {
    plan: Plan,
    now: Nanos,
    rng: Rng,
    action_next: u64,
    actions: Vec<(ActionId, Action)>,
    flights: BTreeMap<ActionId, Flight>,
    /// Object requests in flight, to be repeated.
    requests: BTreeMap<ActionId, (Request, u32)>,
    /// Object requests that rest after a fault.
    resting: Vec<(Nanos, Retry)>,
    done: VecDeque<BackingDone<B>>,
    journal: Journal,
    overlay: Runs<LocalPlace>,
    uploaded: uploaded::Uploaded,
    read_cache: read_cache::ReadCache,
    map: Arc<CloudMap>,
    write: write::Writes<B>,
    reads: read::Reads<B>,
    at_hand: around::AtHand,
    upload: upload::Uploads,
    commit: commit::Commits,
    session: session::Session,
    clean: clean::Cleaning,
    gone: gone::Gone,
    snapshots: snapshots::Snapshots,
    resizing: size::Resizing,
    /// Whether the store has ever said what this volume is, so that it can be served without it.
    is_known: bool,
    /// The map file does not say yet where the journal goes on: what would be written there now, a
    /// start would not find, or find when it had been told of other bytes.
    awaits_map: bool,
    /// Calls that wait until it has, and since when.
    held: Vec<(Nanos, u64, BackingOperation<B>)>,
    waiting: wait::Waiting,
    turns: turns::Turns,
    /// Of a volume that is lost, see [`Status::dirty_bytes`].
    lost_bytes: u64,
    is_draining: bool,
    is_stopping: bool,
    /// The last fault, and when it was.
    last_fault: Option<(Fault, Nanos)>,
    counters: Counters,
}

/// What can be said of a volume's safety.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Bytes of the journal that the cloud does not have; of a volume that is lost, bytes of its
    /// blocks, as salvage finds them.
    pub dirty_bytes: u64,
    /// Bytes that these are expected to be on their way to the store, by the last segments.
    pub upload_bytes: u64,
    /// Age of the oldest write that the cloud does not have.
    pub dirty_age: Nanos,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Whether the store answers, and whether the volume is ours.
    pub link: Link,
    /// It is lost since another node has it.
    pub is_taken: bool,
    /// The last segment that the superblock names.
    pub committed: u64,
    /// Segments that exist, and their bytes.
    pub segments: u64,
    /// Bytes of all segments.
    pub stored_bytes: u64,
    /// Bytes of blocks that are live, before encoding.
    pub live_bytes: u64,
    /// Bytes of blocks in all segments, before encoding.
    pub segment_blocks_bytes: u64,
    /// Of these, what the volume needs no more and its snapshots keep.
    pub kept_bytes: u64,
    /// The last fault, in the store's words, and how long ago it was.
    pub last_fault: Option<(String, Nanos)>,
    /// Why a read ended with an error last, if one did since what the store has is missing or
    /// damaged.
    pub read_fault: Option<String>,
    /// Why a call was refused last, if one was.
    pub last_refusal: Option<String>,
    /// Why the journal failed, if it did: it takes no writes until the volume is opened again.
    pub journal_fault: Option<String>,
    /// Why changes of the map file wait, if they do; without them the journal's room is not freed.
    pub map_fault: Option<String>,
    /// Runs of the map.
    pub runs: u64,
    /// Bytes of blocks that the read cache holds.
    pub cached_bytes: u64,
    /// Why the read cache takes nothing now, if it does not.
    pub read_cache_fault: Option<String>,
    /// What this life has done.
    pub counters: Counters,
}

/// What a volume has asked of the store in this life of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests, repetitions included.
    pub requests: u64,
    /// Of these, repetitions after a fault.
    pub repeated: u64,
    /// Requests for blocks that reads wait for, counted when they begin, repetitions left out.
    pub reads: u64,
    /// Bytes of puts, repetitions included.
    pub bytes_put: u64,
    /// Segments that the store took.
    pub segments_put: u64,
    /// Segments deleted.
    pub segments_deleted: u64,
    /// Bytes of blocks that cleaning moved.
    pub bytes_moved: u64,
    /// Requests by which cleaning read, repetitions left out.
    pub clean_reads: u64,
    /// Bytes that these asked for.
    pub clean_bytes_read: u64,
    /// Reads answered with an error since what the store has of them is missing or damaged.
    pub damaged: u64,
    /// Calls answered with an error since the store could not serve them in time.
    pub refused: u64,
    /// Second requests for what was late, counted among all.
    pub hedged: u64,
    /// Bytes of blocks that reads brought along beside what they asked for.
    pub bytes_along: u64,
    /// Bytes of blocks that the read cache took.
    pub bytes_cached: u64,
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// Starts a call under the caller's mark; its end comes out of [`Volume::poll`].
    pub fn submit(&mut self, token: u64, operation: BackingOperation<B>) {
        match operation {
            BackingOperation::ReadAtHand { offset, buffer } => {
                self.start_read_at_hand(token, offset, buffer);
            }
            _ if (self.is_known && !self.awaits_map) || self.is_stopping => {
                self.start(token, operation);
            }
            _ => self.held.push((self.now, token, operation)),
        }
        if self.session.is_lost() {
            self.fail_held();
        }
        self.step();
    }

    fn start(&mut self, token: u64, operation: BackingOperation<B>) {
        match operation {
            // Of a volume that the store has not described nothing can be said.
            BackingOperation::Extents { .. } if self.session.is_taken() || !self.is_known => {
                self.finish(token, Err(ErrorKind::Closed), None);
            }
            BackingOperation::Read { offset, buffer } => self.start_read(token, offset, buffer),
            BackingOperation::ReadAtHand { .. } => unreachable!("it never waits to be started"),
            BackingOperation::Write { offset, buffer, durable } => {
                self.start_write(token, offset, buffer, durable);
            }
            BackingOperation::Zero { offset, length, .. } => self.start_zero(token, offset, length),
            BackingOperation::Extents { offset, length } => {
                let extents = self.extents(offset, length);
                self.done.push_back(BackingDone { token, result: Ok(()), buffer: None, extents });
            }
            BackingOperation::Sync => self.start_sync(token),
        }
    }

    fn fail_held(&mut self) {
        for (_, token, operation) in std::mem::take(&mut self.held) {
            match operation {
                BackingOperation::Read { buffer, .. } | BackingOperation::Write { buffer, .. } => {
                    self.finish(token, Err(ErrorKind::Closed), Some(buffer));
                }
                // Nothing was accepted, so there is nothing to make durable.
                BackingOperation::Sync if !self.session.is_lost() => {
                    self.finish(token, Ok(()), None);
                }
                _ => self.finish(token, Err(ErrorKind::Closed), None),
            }
        }
    }

    /// The store has said what the volume is, or that it cannot be had.
    fn release_held(&mut self) {
        for (_, token, operation) in std::mem::take(&mut self.held) {
            self.start(token, operation);
        }
    }

    /// An action has ended.
    pub fn on_end(&mut self, id: ActionId, end: End) {
        let flight = self.flights.remove(&id).expect("an action ends once");
        let end = verify::unless_cut(&flight, end);
        if let Some((request, attempt)) = self.requests.remove(&id) {
            if let End::Failed(fault) = &end
                && !is_answer(&request, fault.kind)
            {
                self.rest(Retry { flight, request, attempt }, fault.clone());
                return;
            }
            self.session.on_answer(&request, &flight);
            self.count_conflict(&request, &end);
            if let Flight::Superblock(step) = &flight
                && self.is_missed(step, &request, &end)
            {
                return self.ask_missed_again(request, flight);
            }
            if matches!(flight, Flight::ReadChunks { .. }) {
                self.turns.on_answer();
            }
            if let (Request::Put { key, bytes, .. }, End::Failed(_)) = (request, &end)
                && matches!(
                    flight,
                    Flight::SegmentPut { .. } | Flight::CheckpointPut | Flight::SnapshotPut { .. }
                )
            {
                self.verify_put(flight, key, bytes);
                return;
            }
        }
        self.on_flight(flight, end);
        self.step();
    }

    fn on_flight(&mut self, flight: Flight, end: End) {
        match flight {
            Flight::JournalWrite => self.on_journal_written(&end),
            Flight::CopyRead => self.on_copy_read(&end),
            Flight::CacheWrite => self.on_cache_written(&end),
            Flight::CacheRead { job, blocks, crcs } => {
                self.on_cache_read(job, blocks, &crcs, &end);
            }
            Flight::JournalSync { covers, claims } => self.on_journal_synced(covers, claims, &end),
            Flight::HorizonRecorded { next } => self.on_horizon_recorded(next, &end),
            Flight::ReadJournal { job, blocks, place } => {
                self.on_journal_read(job, blocks, place, end);
            }
            Flight::ReadChunks { job, parts, fetch } => self.on_chunks(job, parts, fetch, &end),
            Flight::CutRead { number, part } => self.on_cut_read(number, part, end),
            Flight::SegmentPut { number } => self.on_segment_put(number),
            Flight::IndexRecorded { number } => self.on_index_recorded(number, &end),
            Flight::CommitRecorded { number, journal_next } => {
                self.on_commit_recorded(number, journal_next, &end);
            }
            Flight::MapReplaced => {
                self.on_map_replaced(&end);
                self.record_taken();
            }
            // Where that failed, a later life finds it out from the store.
            Flight::TakenRecorded => {}
            Flight::ClaimRecorded => self.on_claim_recorded(&end),
            Flight::Superblock(step) => self.on_superblock(step, end),
            Flight::CheckpointEncoded => self.on_checkpoint_encoded(end),
            Flight::CheckpointPut => self.on_checkpoint_put(),
            Flight::SnapshotPut { id } => self.on_snapshot_put(id),
            Flight::Verify { put, key, bytes, from, differed } => {
                self.on_verified((put, key, differed), (bytes, from), &end);
            }
            Flight::CleanGet { from, number } => self.on_clean_get(number, from, end),
            Flight::Delete { number } => self.on_deleted(number),
            Flight::Remove => self.on_removed(),
            Flight::Sweep => self.on_swept(end),
        }
    }

    /// It is so late, as who submits calls and ends of actions may say before it does.
    pub fn set_now(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Nanos) {
        self.set_now(now);
        self.at_hand.let_go_older(self.now);
        let due = |rest: &mut (Nanos, Retry)| rest.0 <= now;
        let due: Vec<(Nanos, Retry)> = self.resting.extract_if(.., due).collect();
        // A volume that is another node's is changed no more.
        let is_lost = self.session.is_lost();
        let is_wanted = |retry: &Retry| !is_lost || matches!(retry.request, Request::Get { .. });
        for (_, retry) in due.into_iter().filter(|(_, retry)| is_wanted(retry)) {
            match &retry.flight {
                // Nobody waits for it any more.
                Flight::ReadChunks { job, parts, fetch } if !self.is_reading(*job) => {
                    self.drop_chunks(fetch.0, parts);
                }
                _ => self.ask_again(retry),
            }
        }
        self.end_pauses();
        self.confirm_claim();
        self.record_horizon();
        self.give_up();
        self.step();
    }

    /// When [`Volume::on_tick`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        let resting = self.resting.iter().map(|(at, _)| *at).min().unwrap_or(Nanos::NEVER);
        let own = self.upload_deadline().min(self.commit_deadline()).min(self.horizon_deadline());
        let own = own.min(self.pause_deadline()).min(self.clean_deadline());
        resting.min(own).min(self.wait_deadline()).min(self.session.claim_deadline())
    }

    /// Hands out what is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<(ActionId, Action)> {
        std::mem::take(&mut self.actions)
    }

    /// Takes one finished call, if there is one.
    pub fn poll(&mut self) -> Option<BackingDone<B>> {
        self.done.pop_front()
    }

    /// Uploads all there is without waiting for full segments, until told otherwise.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
        self.step();
    }

    /// Ends all calls that wait for the store, and those that come to, with an error. Writes that
    /// are in the journal stay there.
    pub fn stop_waiting(&mut self) {
        self.is_stopping = true;
        self.fail_held();
        self.fail_reads();
        self.fail_waiting_writes();
        self.fail_snapshots();
    }

    /// Calls wait for the store again from now on: what [`Volume::stop_waiting`] was for does not
    /// come.
    pub fn resume_waiting(&mut self) {
        self.is_stopping = false;
        self.step();
    }

    /// The volume is closed once the actions are done that this leaves: what is durable in the
    /// journal is vouched for, and rot of it is known by the next opening, however soon it comes.
    pub fn close(&mut self) {
        self.vouch_at_once();
    }

    /// Whether the cloud has all that was written.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let is_stored = match self.session.is_taken() {
            true => self.lost_bytes == 0,
            false => !self.journal.batches.iter().any(|batch| !batch.entries.is_empty()),
        };
        self.write.is_idle() && is_stored
    }

    /// Whether the volume is not this node's any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.session.is_lost()
    }

    /// Whether another node has the volume, so that nothing of it may be read here.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.session.is_taken()
    }

    /// How chunks of segments that are cut from now on are stored; the others stay as they are.
    pub fn set_compression(&mut self, compression: Compression) {
        self.plan.compression = compression;
    }

    /// How old a write gets from now on before it is uploaded whatever the segment's size.
    pub fn set_dirty_age_max(&mut self, age: Nanos) {
        self.plan.limits.dirty_age_max = age;
    }

    /// Whose segments it shares: objects whose keys [`crate::split_key`] tells apart are theirs.
    #[must_use]
    pub fn bases(&self) -> &[Base] {
        self.map.bases()
    }

    /// See [`Status`].
    #[must_use]
    pub fn status(&self) -> Status {
        let block = u64::from(self.plan.block_bytes);
        let totals = self.map.totals();
        let oldest = self.journal.batches.iter().find(|batch| !batch.entries.is_empty());
        let dirty_bytes = match self.session.is_lost() {
            true => self.lost_bytes,
            false => oldest.map_or(0, |batch| self.journal.head - batch.at),
        };
        Status {
            dirty_bytes,
            upload_bytes: self.upload.expected_bytes(dirty_bytes),
            dirty_age: oldest
                .map_or(Nanos::ZERO, |batch| Nanos(self.now.0.saturating_sub(batch.since.0))),
            journal_bytes: self.journal.ring.capacity,
            link: self.session.link(self.now),
            is_taken: self.session.is_taken(),
            committed: self.session.committed(),
            segments: self.map.segment_count() as u64,
            stored_bytes: totals.bytes,
            live_bytes: totals.live * block,
            segment_blocks_bytes: totals.blocks * block,
            kept_bytes: (totals.blocks - self.totals_to_free(&self.pins()).blocks) * block,
            last_fault: self
                .last_fault
                .as_ref()
                .map(|(fault, at)| (fault.cause.clone(), self.now.since(*at))),
            read_fault: self.reads.fault.clone(),
            last_refusal: self.waiting.refusal.clone(),
            journal_fault: self.write.fault.clone(),
            map_fault: None,
            runs: self.map.run_count() as u64,
            cached_bytes: self.read_cache.blocks() * block,
            read_cache_fault: self.read_cache.fault().map(str::to_owned),
            counters: self.counters,
        }
    }

    #[cfg(test)]
    pub(crate) fn map(&self) -> &CloudMap {
        &self.map
    }

    fn step(&mut self) {
        self.copy_next();
        self.write_next();
        self.sync_next();
        self.open_session();
        self.take_snapshots();
        self.cut_next();
        self.commit_next();
        self.checkpoint_next();
        self.clean_next();
    }

    fn act(&mut self, action: Action, flight: Flight) {
        let id = ActionId(self.action_next);
        self.action_next += 1;
        self.flights.insert(id, flight);
        self.actions.push((id, action));
    }

    fn ask(&mut self, request: Request, flight: Flight) {
        self.ask_again(Retry { flight, request, attempt: 0 });
    }

    fn ask_again(&mut self, retry: Retry) {
        if matches!(retry.flight, Flight::ReadChunks { .. }) {
            if let Some(at) = self.turns.wait(self.now) {
                return self.resting.push((at, retry));
            }
            self.turns.begin(self.now);
        }
        let id = ActionId(self.action_next);
        self.counters.requests += 1;
        self.counters.repeated += u64::from(retry.attempt > 0);
        if let Request::Put { bytes, .. } = &retry.request {
            self.counters.bytes_put += bytes.len() as u64;
        }
        self.requests.insert(id, (retry.request.clone(), retry.attempt));
        let Retry { flight, request, .. } = retry;
        let action = match flight {
            Flight::SegmentPut { number } => {
                Action::Upload { request, since: self.dirty_since(number) }
            }
            Flight::ReadChunks { .. } => Action::Fetch(request),
            _ => Action::Object(request),
        };
        self.act(action, flight);
    }

    /// Repeats a request later: without end, at growing intervals with jitter.
    fn rest(&mut self, mut retry: Retry, fault: Fault) {
        const REST_MIN: u64 = 50_000_000;
        const DOUBLINGS_MAX: u32 = 8;
        self.session.on_fault(&retry.request, self.now);
        self.waiting.on_fault(&retry.request, self.now);
        self.last_fault = Some((fault, self.now));
        if let Flight::ReadChunks { job, parts, fetch: (fetch, _) } = &retry.flight {
            self.turns.on_fault(self.now, &mut self.rng);
            self.delay_chunks(*fetch);
            if !self.is_reading(*job) {
                // Nobody waits for it any more.
                return self.drop_chunks(*fetch, parts);
            }
        }
        let is_left = match &retry.flight {
            Flight::CleanGet { number, from } => self.on_clean_fault(*number, *from, retry.attempt),
            flight => Self::is_given_up(flight, retry.attempt),
        };
        if is_left {
            return self.on_flight(retry.flight, End::Done);
        }
        if let (Flight::Superblock(session::Step::Propose), true) = (&retry.flight, self.looks()) {
            // It may have gone through, and what came since must not be replaced unseen.
            let request = Request::Get { key: SUPERBLOCK_KEY.to_owned(), range: None };
            let flight = Flight::Superblock(session::Step::Before);
            retry = Retry { flight, request, attempt: retry.attempt };
        }
        retry.request = self.note_failed_removal(&retry.flight, retry.request);
        let rest = REST_MIN << retry.attempt.min(DOUBLINGS_MAX);
        let rest = rest / 2 + self.rng.below(rest);
        retry.attempt += 1;
        self.resting.push((self.now.saturating_add(Nanos(rest)), retry));
    }

    fn finish(&mut self, token: u64, result: Result<(), ErrorKind>, buffer: Option<B>) {
        if token == OWN_TOKEN {
            return self.resizing.end(result, self.write.written_next);
        }
        self.done.push_back(BackingDone { token, result, buffer, extents: Vec::new() });
    }

    fn block(&self) -> u64 {
        u64::from(self.plan.block_bytes)
    }

    fn blocks_of(&self, offset: u64, length: u64) -> Range<u64> {
        let block = self.block();
        assert!(offset.is_multiple_of(block) && length.is_multiple_of(block), "whole blocks");
        offset / block..(offset + length) / block
    }

    /// Which of the blocks that a range touches hold data, as runs of bytes.
    fn extents(&self, offset: u64, length: u64) -> Vec<(u64, u64, bool)> {
        let block = self.block();
        let mut runs: Vec<(u64, u64, bool)> = Vec::new();
        let mut push = |blocks: &Range<u64>, data: bool| {
            let (from, bytes) = (blocks.start * block, (blocks.end - blocks.start) * block);
            match runs.last_mut() {
                Some((_, last, is)) if *is == data => *last += bytes,
                _ => runs.push((from, bytes, data)),
            }
        };
        // Who asks may ask for parts of blocks; whole ones answer that, too.
        let blocks = offset / block..(offset + length).div_ceil(block);
        for piece in self.overlay.pieces(blocks) {
            match piece.place {
                Some(place) => push(&piece.blocks, place.at.is_some()),
                None => {
                    let below = self.map.pieces(piece.blocks);
                    below.iter().for_each(|piece| push(&piece.blocks, piece.place.is_some()));
                }
            }
        }
        runs
    }

    /// Applies a segment to the map; what the journal holds of it leaves the overlay.
    fn apply(&mut self, index: &Index, journal_next: u64) {
        Arc::make_mut(&mut self.map).apply(index);
        for entry in &index.entries {
            if matches!(entry.kind, crate::segment::EntryKind::Moved(_)) {
                continue;
            }
            self.read_cache.remove(entry.blocks.clone());
            let held: Vec<_> = self.overlay.mapped(entry.blocks.clone()).collect();
            for (run, place) in held {
                if place.seq < journal_next {
                    self.note_uploaded(run);
                }
            }
        }
        self.drop_reused();
    }
}

/// Whether a fault tells what was asked, so that asking again would not help.
fn is_answer(request: &Request, fault: FaultKind) -> bool {
    match request {
        Request::Get { .. } => matches!(fault, FaultKind::NotFound | FaultKind::Short),
        Request::Delete { .. } => fault == FaultKind::NotFound,
        Request::Put { .. } => fault == FaultKind::Condition,
        Request::DeleteMany { .. } | Request::List { .. } => false,
    }
}
