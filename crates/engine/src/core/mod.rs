//! A shard without its sockets: cache, stores and homes joined by one queue of actions.
//!
//! How: a request goes into the pure cache; its actions are performed strictly in order over the
//! stores and the [`Io`]; whatever ends is told to the cache, whose new actions join the queue. A
//! read that is answered whole from memory never leaves [`Core::submit`].
//! Invariant: the queue is empty between calls; every submitted request comes out of
//! [`Core::take_finished`] exactly once.
//! Cost: no allocation for a read hit; one table entry for other requests.
//! Not for: several threads; each shard has a core of its own, and they share nothing.

mod absent;
mod answer;
mod cancels;
mod clean;
mod decisions;
mod discards;
mod events;
mod failed;
mod lead;
mod lengths;
mod objectives;
mod observe;
mod offline;
mod opened;
mod overflow;
mod pauses;
mod perform;
mod recorder;
mod recover;
mod remotes;
mod status;
mod stop;
mod stores;
mod stuck;
mod wear;
mod wide;

#[cfg(test)]
pub(crate) mod tests;

pub use answer::{Place, ReadAnswer};
pub use objectives::ClassLatency;
pub use offline::{Damage, NotWritten, WrittenBack};
pub use recover::{CoreError, HomePlace, HomePlan};
pub use stop::{STOP_PATIENCE, UncleanStop};
pub use stores::{Level, LevelPlan};
pub use stuck::IO_TIMEOUT_DEFAULT;
pub use wear::{WearPlan, days_left};

use crate::backing::{HomeBacking, TOKEN_BITS};
use crate::control::FailedLevel;
use crate::io::{Buffer, Io, IoDone};
use crate::store::CorruptInfo;
use answer::{Destination, Gatherings};
use decisions::Decisions;
use events::{PeerSync, Tombstones};
use layby_cache::schedule::{Rank, Verdict};
use layby_cache::{Action, Cache, Event, Moment, OpId, TickTimer};
use layby_types::planted::{Plant, is_planted};
use layby_types::{
    BackingOperation, Call, ErrorKind, Extent, LevelIndex, Nanos, Operation, RequestId, Rng,
    VolumeId,
};
use std::collections::{HashMap, HashSet, VecDeque};

/// Token tag of homes: the home's number follows.
pub(crate) const TAG_HOME: u64 = 0x20;
/// Ticket bit of calls to stores that are the core's own.
const TICKET_OWN: u64 = 1 << 62;
/// The token of a home's call that is the core's own sync, above every operation's.
const HOME_SYNC: u64 = 1 << 33;
/// The mark of a block-status request among a home's calls.
const HOME_EXTENTS: u64 = 1 << 34;
/// The mark of a delayed discard among a home's calls; its number follows.
const HOME_DISCARD: u64 = 1 << 35;
/// Bytes that one block-status answer covers at most; clients ask again for the rest.
pub(crate) const STATUS_BYTES_MAX: u64 = 64 << 20;
/// Homes per shard: their number has to fit into a token.
const HOMES_MAX: u32 = 1 << 20;

/// Who asked, so that the answer finds its way: a connection's number, or an internal caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asker(pub u64);

impl Asker {
    /// Above the numbers of connections, below all others: the requests are pieces of a longer one,
    /// which whoever cut it counts.
    const PIECE: u64 = 1 << 31;

    /// The same asker, for a piece.
    #[must_use]
    pub fn of_piece(self) -> Asker {
        Asker(self.0 | Asker::PIECE)
    }

    /// Whether the request is a piece.
    #[must_use]
    pub fn is_piece(self) -> bool {
        self.0 / Asker::PIECE == 1
    }

    /// Above the numbers of pieces: the shard itself asks.
    pub const OWN: u64 = 1 << 32;
    /// Above the shard's own: the core itself asks its part of a wide volume's request.
    const WHOLE: u64 = 1 << 62;

    /// The asker of the own part's range of a request that was dealt.
    fn of_whole(number: u32) -> Asker {
        Asker(Asker::WHOLE | u64::from(number))
    }

    /// The number of the request that was dealt, where this is part of one.
    fn whole(self) -> Option<u32> {
        (self.0 >> 32 == Asker::WHOLE >> 32).then_some(self.0 as u32)
    }

    /// Whether the shard itself asks, and no client.
    #[must_use]
    pub fn is_own(self) -> bool {
        (Asker::OWN..Asker::WHOLE).contains(&self.0)
    }

    /// The connection's number.
    #[must_use]
    pub fn number(self) -> u32 {
        (self.0 & !Asker::PIECE) as u32
    }
}

/// What a finished request brings back.
#[derive(Debug)]
pub enum Answer {
    /// Nothing but success.
    Nothing,
    /// The bytes of a read.
    Data(ReadAnswer),
    /// The runs of a block-status request.
    Extents(Vec<Extent>),
}

/// A request that ended.
#[derive(Debug)]
pub struct Finished {
    /// Who asked.
    pub asker: Asker,
    /// What was asked.
    pub call: Call,
    /// How it ended.
    pub result: Result<Answer, ErrorKind>,
}

/// Something the log should hear of.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The cache's own events.
    Cache(Event),
    /// Bytes that failed their checksum.
    Corrupt(CorruptInfo),
    /// A checkpoint could not be written; it will be tried again.
    CheckpointFailed,
    /// An operation of a level's device failed; no later one of its kind is told until it is over.
    LevelFailed(FailedLevel),
    /// Such operations end well again.
    LevelWorks(FailedLevel),
    /// A segment of the SSD level failed for good; the level has become smaller.
    SegmentRetired {
        /// The disk's name.
        disk: String,
        /// The segment's first byte.
        offset: u64,
        /// Slots left; 0 when the level takes nothing new any more.
        slots: u32,
    },
    /// A device has refused write streams; it is written without from now on.
    StreamsRefused {
        /// The disk's name.
        disk: String,
        /// The system's error number.
        errno: i32,
    },
    /// A client broke the protocol or its volume went away; it was disconnected.
    ClientBroken {
        /// Who it was.
        peer: String,
        /// The volume it talked to.
        volume: VolumeId,
        /// What happened.
        reason: &'static str,
    },
    /// A device or backing store owes an end for longer than it may.
    Stuck {
        /// Its name.
        place: String,
        /// The volume whose backing store it is.
        volume: Option<VolumeId>,
        /// How long it may.
        limit: Nanos,
    },
    /// It has answered.
    Answers {
        /// Its name.
        place: String,
        /// The volume whose backing store it is.
        volume: Option<VolumeId>,
        /// How long its oldest operation took.
        span: Nanos,
    },
    /// A clean volume is to be changed: its write intent is to be recorded, durably, and the shard
    /// told so by [`Command::RecordIntent`](crate::control::Command::RecordIntent).
    IntentWanted {
        /// Which volume.
        volume: VolumeId,
    },
    /// A client's socket could not be taken over.
    SocketRefused {
        /// The system's error number.
        errno: i32,
    },
}

struct Request {
    volume: VolumeId,
    call: Call,
    asker: Asker,
    destination: Destination,
    payload: Option<Box<[u8]>>,
    started: Nanos,
    /// The same for the limit of what it waits for: without what the shard did not run.
    waits_since: Nanos,
    /// Its first byte as the client knows it.
    shown: u64,
    /// See [`Ask::is_part`].
    is_part: bool,
    /// It waited for a remote home.
    is_far: bool,
    looked: Looked,
}

/// What block status has seen as it asked the home.
#[derive(Default)]
struct Looked {
    /// Reads and writes that had ended there.
    ended: u64,
    /// Blocks that were dirty then, where it asks again since others have ended meanwhile: what the
    /// home called a hole may have been written back after it had looked.
    dirty: Option<Vec<std::ops::Range<u64>>>,
}

/// Who asks, and of which volume.
#[derive(Clone, Copy)]
struct Ask {
    asker: Asker,
    volume: VolumeId,
    /// The request's first byte as the client knows it; the same but for parts of wide volumes.
    shown: u64,
    /// It is a part's range of another shard's request, which counts it: here its class's latency
    /// counts.
    is_part: bool,
}

/// A volume's home and counters.
struct Home {
    backing: HomeBacking,
    stats: status::VolumeMeter,
    /// The backing store has zeroings or writes that no sync has covered.
    unsynced: bool,
    /// A sync of the core's own is in flight.
    syncing: bool,
    /// What no sync has covered since it was opened, by the cache's count.
    opened: Option<u64>,
    /// Levels hold clean copies of it only, and the log no tombstones.
    write_through: bool,
    inflight: u64,
    /// Reads and writes that have ended, well or not.
    ended: u64,
    discards: discards::HomeDiscards,
    /// Where the volume will end: clients change nothing behind it any more.
    ending: Option<u64>,
    /// Nothing was asked for since a sync for the volume's removal began.
    is_settled: bool,
}

/// See the module's header.
pub struct Core {
    cache: Cache,
    rng: Rng,
    levels: Vec<Level>,
    homes: HashMap<VolumeId, Home>,
    /// Those of them that are remote.
    remotes: Vec<VolumeId>,
    /// A remote home may have more ends than were asked for.
    has_more_ends: bool,
    /// Operations whose buffer a remote home has filled, or is asked to.
    far: HashSet<OpId>,
    buffers: Vec<Option<Buffer>>,
    requests: HashMap<RequestId, Request>,
    request_next: u64,
    queue: VecDeque<Action>,
    scratch: Vec<Action>,
    finished: VecDeque<Finished>,
    gatherings: Gatherings,
    /// Buffers of reads that failed.
    unanswered: Vec<Buffer>,
    notices: Vec<Notice>,
    drained: Vec<(u64, Result<(), ErrorKind>)>,
    checkpoints: stop::Checkpoints,
    /// How the sync that a stop waits for ended.
    stop_sync: Option<Result<(), ErrorKind>>,
    peer_sync: Option<PeerSync>,
    tombstones: Tombstones,
    /// Writes to homes that cancel what waits there.
    cancels: cancels::Cancels,
    delays: discards::Delays,
    /// Durable forgets that the NVM level knows of.
    forgets_told: u64,
    /// Requests that ended in this turn and are not counted yet.
    ended: Vec<Ended>,
    /// How much longer homes take than they really do.
    home_delay: Nanos,
    /// What homes have answered before the delay was over, oldest first.
    delayed: VecDeque<(Nanos, IoDone)>,
    fetches: observe::FetchMeter,
    objectives: objectives::Objectives,
    wear: wear::WearMeter,
    now: Nanos,
    /// When the cache's next tick is due.
    timer: TickTimer,
    decisions: Decisions,
    recorder: Option<recorder::Recorder>,
    wides: wide::Wides,
    stuck: stuck::Stuck,
    failed: Vec<failed::Failed>,
    /// Nobody is served yet, so that no block gets a newer version.
    is_recovering: bool,
}

/// What the counters want to know of a request that ended.
struct Ended {
    volume: VolumeId,
    call: Call,
    started: Nanos,
    is_ok: bool,
    /// It waited for a remote home, which no device of this node can make faster.
    is_far: bool,
    /// See [`Ask::is_part`].
    is_part: bool,
}

impl Core {
    /// Asks for something; the answer comes out of [`Core::take_finished`]. A read that memory
    /// answers whole puts `head` and its bytes straight into `out` and comes out of nowhere else:
    /// then the return value is true.
    pub fn submit(
        &mut self,
        io: &mut dyn Io,
        asker: Asker,
        volume: VolumeId,
        call: Call,
        payload: &[u8],
        out: Option<&mut dyn ReadSink>,
    ) -> bool {
        let out = out.map_or(Out::Nowhere, Out::Sink);
        self.deal(io, (asker, volume), call, payload, out)
    }

    /// The same for a piece of a longer request: the bytes of a read go to `place`, and its end
    /// brings nothing but success.
    pub fn submit_piece(
        &mut self,
        io: &mut dyn Io,
        asker: Asker,
        volume: VolumeId,
        call: Call,
        payload: &[u8],
        place: Option<Place>,
    ) -> bool {
        let out = place.map_or(Out::Nowhere, Out::Shared);
        self.deal(io, (asker.of_piece(), volume), call, payload, out)
    }

    fn deal(
        &mut self,
        io: &mut dyn Io,
        (asker, volume): (Asker, VolumeId),
        call: Call,
        payload: &[u8],
        out: Out<'_>,
    ) -> bool {
        if self.wides.has(volume) {
            return self.submit_wide(io, (asker, volume), call, payload, out);
        }
        let ask = Ask { asker, volume, shown: call.offset, is_part: false };
        self.submit_to(io, ask, call, payload, out)
    }

    fn submit_to(
        &mut self,
        io: &mut dyn Io,
        ask: Ask,
        mut call: Call,
        payload: &[u8],
        out: Out<'_>,
    ) -> bool {
        let volume = ask.volume;
        call.flags.fua &= !is_planted(Plant::FuaIgnored);
        let request = RequestId(self.request_next);
        self.request_next += 1;
        self.unanswered.drain(..).for_each(|buffer| io.recycle(buffer));
        let is_status = call.operation == Operation::BlockStatus;
        let ended = if self.is_behind_end(ask.asker, volume, &call) {
            Some(Err(ErrorKind::Invalid))
        } else {
            self.ends_at_once((ask.asker, volume), &mut call).or_else(|| {
                let is_stuck = !is_status && self.is_refused_as_stuck(volume, &call);
                is_stuck.then_some(Err(ErrorKind::Retry))
            })
        };
        if let Some(end) = ended {
            self.insert(request, ask, call, out.destination().unwrap_or(Destination::Nowhere));
            let entry = self.requests.remove(&request).expect("it was just inserted");
            self.finish(entry, end);
            return false;
        }
        if is_status {
            self.insert(request, ask, call, Destination::Nowhere);
            self.ask_extents(io, request);
            return false;
        }
        let mut actions = std::mem::take(&mut self.scratch);
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        self.cache.on_request(&mut moment, request, volume, &call, &mut actions);
        let destination = out.destination();
        if is_hit(request, &call, &actions) && self.answer_hit(ask, &call, &actions, out) {
            self.decisions.note(self.now, self.cache.spec(), &actions);
            actions.clear();
            self.scratch = actions;
            return true;
        }
        let destination = destination.unwrap_or_else(|| match call.operation {
            Operation::Read => Destination::Own(ReadAnswer::new(io, call.length as usize)),
            _ => Destination::Nowhere,
        });
        self.insert(request, ask, call, destination);
        self.take(actions);
        let unused = self.run(io, Some((request, payload)));
        if unused && let Some(entry) = self.requests.get_mut(&request) {
            entry.payload = Some(payload.into());
        }
        false
    }

    fn insert(
        &mut self,
        request: RequestId,
        Ask { asker, volume, shown, is_part }: Ask,
        call: Call,
        destination: Destination,
    ) {
        let entry = Request {
            volume,
            call,
            asker,
            destination,
            payload: None,
            started: self.now,
            waits_since: self.now,
            shown,
            is_part,
            is_far: false,
            looked: Looked::default(),
        };
        self.requests.insert(request, entry);
        if let Some(home) = self.homes.get_mut(&volume) {
            home.inflight += 1;
            home.is_settled = false;
        }
    }

    /// The path of a hit: copies only, then the end; no table is touched. False where nobody takes
    /// the bytes at once.
    fn answer_hit(&mut self, ask: Ask, call: &Call, actions: &[Action], out: Out<'_>) -> bool {
        let (levels, copies) = (&self.levels, &actions[..actions.len() - 1]);
        let blocks = copies.iter().map(|action| {
            let Action::Copy { level, slot, part, .. } = action else {
                unreachable!("it is a hit")
            };
            let block = levels[usize::from(level.0)].memory(*slot);
            let from = part.block_offset as usize;
            &block[from..from + part.length as usize]
        });
        match out {
            Out::Nowhere => return false,
            Out::Sink(sink) => {
                sink.head(&Call { offset: ask.shown, ..*call });
                blocks.for_each(|bytes| sink.bytes(bytes));
            }
            Out::Shared(place) => {
                let mut rest = self.gatherings.from(place);
                for bytes in blocks {
                    let (room, behind) = rest.split_at_mut(bytes.len());
                    room.copy_from_slice(bytes);
                    rest = behind;
                }
            }
        }
        if !ask.asker.is_piece() {
            let Ask { volume, is_part, .. } = ask;
            let (call, started, is_ok, is_far) = (*call, self.now, true, false);
            self.ended.push(Ended { volume, call, started, is_ok, is_far, is_part });
        }
        true
    }

    /// Performs what is queued; true when bytes of the current payload are still wanted later.
    fn run(&mut self, io: &mut dyn Io, payload: Option<(RequestId, &[u8])>) -> bool {
        let mut used = 0;
        loop {
            while let Some(action) = self.queue.pop_front() {
                io.set_rank(self.cache.rank_of_action(&action).unwrap_or(Rank::FIRST));
                used += self.perform(io, action, payload);
                io.set_rank(Rank::FIRST);
                self.take_store_events(io);
            }
            // What a store says while it is answered counts too.
            while self.take_store_events(io) || self.tell_forgets(io) {}
            self.end_owed();
            self.release_held();
            self.send_discards(io);
            if self.queue.is_empty() && !self.tell_next() && !self.end_deadlock(io) {
                break;
            }
        }
        self.put_nothing_off(io);
        self.charge_wear();
        payload.is_some_and(|(_, bytes)| used < bytes.len())
    }

    /// Slots of the NVM level that wait for forgets become reusable when those are durable; true
    /// when the level was told so.
    fn tell_forgets(&mut self, io: &mut dyn Io) -> bool {
        let durable = self.log().map_or(u64::MAX, |(_, log)| log.forgets_durable());
        if std::mem::replace(&mut self.forgets_told, durable) == durable {
            return false;
        }
        for level in &mut self.levels {
            if let Level::Nvm(store) = level {
                store.on_tick(io, self.now, durable);
            }
        }
        true
    }

    /// Takes the end of an operation whose token is a store's or a home's.
    pub fn on_io(&mut self, io: &mut dyn Io, done: IoDone) {
        let tag = done.token.0 >> 56;
        if tag > TAG_HOME {
            // A client's, cut off by a stop: nobody waits for it any more.
            done.buffer.into_iter().for_each(|buffer| io.recycle(buffer));
        } else if tag == TAG_HOME && self.home_delay > Nanos::ZERO {
            self.delayed.push_back((self.now + self.home_delay, done));
        } else if tag == TAG_HOME {
            self.on_home(io, done);
        } else {
            let level = usize::try_from(tag).expect("a byte") - 1;
            self.levels[level].on_io(io, done);
        }
        self.run(io, None);
    }

    /// Does one step of what ends left for later, which they do where [`Io::is_stepwise`]; false
    /// when there was nothing.
    pub fn go_on(&mut self, io: &mut dyn Io) -> bool {
        let has_gone_on = self.levels.iter_mut().any(|level| level.go_on(io));
        if has_gone_on {
            self.run(io, None);
        }
        has_gone_on
    }

    /// Whether ends left something for later.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.log().is_some_and(|(_, log)| log.owes_pump())
    }

    fn on_home(&mut self, io: &mut dyn Io, done: IoDone) {
        let number = (done.token.0 >> TOKEN_BITS) as u32 & (HOMES_MAX - 1);
        let id = VolumeId(number);
        let Some(home) = self.homes.get_mut(&id) else {
            done.buffer.into_iter().for_each(|buffer| io.recycle(buffer));
            return;
        };
        home.backing.on_io(io, done);
        self.take_ends(io, id);
    }

    /// Background work whose time has come.
    pub fn on_tick(&mut self, io: &mut dyn Io) {
        if self.timer.take_due(self.now) {
            let mut moment = Moment { now: self.now, rng: &mut self.rng };
            let mut actions = std::mem::take(&mut self.scratch);
            self.cache.on_tick(&mut moment, &mut actions);
            self.take(actions);
        }
        while let Some((_, done)) = self.delayed.pop_front_if(|(at, _)| *at <= self.now) {
            self.on_home(io, done);
        }
        self.run(io, None);
        self.note_wear();
        let forgets = self.log().map_or(u64::MAX, |(_, log)| log.forgets_durable());
        for (index, level) in self.levels.iter_mut().enumerate() {
            level.on_tick(io, self.now, &self.cache, LevelIndex(index as u8), forgets);
        }
        self.run(io, None);
    }

    /// A request ended that began at `started`; it is counted with the turn.
    pub fn note_ended(&mut self, volume: VolumeId, call: &Call, started: Nanos, is_ok: bool) {
        self.note_answered(volume, call, started, (is_ok, false));
    }

    /// The same, where the request may be another shard's, of a part that is here.
    pub(crate) fn note_answered(
        &mut self,
        volume: VolumeId,
        call: &Call,
        started: Nanos,
        (is_ok, is_part): (bool, bool),
    ) {
        let (call, is_far) = (*call, false);
        self.ended.push(Ended { volume, call, started, is_ok, is_far, is_part });
    }

    /// The time of this turn.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Has what ends for lower ranks go in steps, since somebody better may come meanwhile.
    pub(crate) fn set_stepwise(&mut self, is_stepwise: bool) {
        self.cache.set_stepwise(is_stepwise);
    }

    /// The rank of a volume's requests.
    #[must_use]
    pub fn rank_of(&self, volume: VolumeId) -> Rank {
        self.cache.rank_of_volume(volume)
    }

    /// Counts the requests that ended since the last call: what arrived together and left together
    /// took until `now`, when its answers are on their way. Says how a window of the best class's
    /// objective went, if one is over.
    pub fn count_ended(&mut self, now: Nanos) -> Option<Verdict> {
        let mut ended = std::mem::take(&mut self.ended);
        for Ended { volume, call, started, is_ok, is_far, is_part } in ended.drain(..) {
            if let Some(home) = self.homes.get_mut(&volume).filter(|_| !is_part) {
                home.stats.count(&call, now.since(started), is_ok);
            }
            if !is_far {
                self.note_latency(volume, now.since(started), now);
            }
        }
        self.ended = ended;
        self.end_windows(now)
    }

    /// True when [`Core::count_ended`] has something to count.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// When the cache is to be ticked if nothing else happens.
    #[must_use]
    pub fn next_tick(&self) -> Nanos {
        let mut timer = self.timer;
        timer.note(&self.cache, self.now);
        timer.at()
    }

    /// When [`Core::on_tick`] is wanted if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        let levels = self.levels.iter().map(Level::next_deadline).min().unwrap_or(Nanos::NEVER);
        let delayed = self.delayed.front().map_or(Nanos::NEVER, |(at, _)| *at);
        if self.has_more_ends {
            return self.now;
        }
        self.next_tick().min(levels).min(delayed).min(self.delays.at())
    }

    /// Lets homes seem slower by `delay`, to show or test what a slower main storage would do;
    /// remote ones are as slow as they are.
    pub fn delay_homes(&mut self, delay: Nanos) {
        self.home_delay = delay;
    }

    /// The time from now on.
    pub fn set_now(&mut self, now: Nanos) {
        if now > self.now {
            self.timer.note(&self.cache, self.now);
            self.now = now;
        }
    }

    /// Takes one finished request.
    pub fn take_finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// Takes what the log should hear of.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Takes the drains that ended, by their numbers.
    pub fn take_drained(&mut self) -> Vec<(u64, Result<(), ErrorKind>)> {
        std::mem::take(&mut self.drained)
    }

    /// Starts destaging everything dirty of a volume, or of all.
    pub fn drain(&mut self, io: &mut dyn Io, ticket: u64, volume: Option<VolumeId>) {
        let mut actions = Vec::new();
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        self.cache.drain(&mut moment, ticket, volume, &mut actions);
        self.take(actions);
        self.run(io, None);
    }

    /// The cache, for questions and for changes of its specification.
    pub fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }

    /// Requests of a volume that have not ended.
    #[must_use]
    pub fn inflight(&self, volume: VolumeId) -> u64 {
        self.homes.get(&volume).map_or(0, |home| home.inflight)
    }

    /// A specification with the slots that the levels really have.
    #[must_use]
    pub fn fit_spec(&self, mut spec: layby_cache::CacheSpec) -> layby_cache::CacheSpec {
        for (level, kept) in spec.levels.iter_mut().zip(&self.cache.spec().levels) {
            level.slots = kept.slots;
        }
        spec
    }

    fn ask_home(
        &mut self,
        io: &mut dyn Io,
        id: VolumeId,
        token: u64,
        operation: BackingOperation<Buffer>,
    ) {
        let home = self.homes.get_mut(&id).expect("a volume in the cache has a home");
        home.backing.submit(io, token, operation);
    }
}

/// Where the bytes of a hit go.
enum Out<'a> {
    Nowhere,
    Sink(&'a mut dyn ReadSink),
    Shared(Place),
}

impl Out<'_> {
    /// Where the bytes go that come later, where that is settled.
    fn destination(&self) -> Option<Destination> {
        match self {
            Out::Shared(place) => Some(Destination::Shared(*place)),
            _ => None,
        }
    }
}

/// Whether the cache answered a read with copies of memory alone.
fn is_hit(request: RequestId, call: &Call, actions: &[Action]) -> bool {
    let [copies @ .., Action::Complete { request: ended, result: Ok(()) }] = actions else {
        return false;
    };
    let is_copy = |action: &Action| matches!(action, Action::Copy { .. });
    call.operation == Operation::Read && *ended == request && copies.iter().all(is_copy)
}

/// Where the answer of a read hit goes.
pub trait ReadSink {
    /// The head of the reply; exactly `call.length` bytes follow.
    fn head(&mut self, call: &Call);
    /// The next bytes.
    fn bytes(&mut self, bytes: &[u8]);
}
