//! Drives the cache's state machine, unchanged, over device models in virtual time.
//!
//! How: a request goes into the cache; its actions are performed strictly in order, as the engine
//! does. *Counting* ends every action at once and adds costs up from the counters, as papers do;
//! *destaging* counts, too, but what is written home takes its time, so that dirty blocks pile up;
//! *queueing* gives each access a channel of its device and ends it when that is done, so that
//! background work competes with the foreground.
//! Invariant: the same calls and seed give the same decisions, byte for byte.
//! Cost: a few hundred nanoseconds per block in counting mode.
//! Not for: contents; a block's bytes are never kept.

mod queue;
mod replay;
mod report;

pub use layby_cache::DecisionLog;
pub use replay::{
    BlocksMoved, DestagePace, PADSA_LEVELS, PadsaDevices, PadsaError, PadsaReplay, PadsaSetup,
    SERVICES_MAX, ServiceReport,
};
pub use report::{LevelReport, Report, VolumeReport};

use layby_cache::schedule::{Load, Rank, ScheduleLimits, Verdict};
use layby_cache::{
    Action, Cache, CacheSpec, Checked, ClassSpec, EvictionKind, LevelKind, LevelSpec, Moment,
    OnDirty, OpId, ReadAheadLimits, ReadAtOnce, RemoveError, SpecError, TickTimer, VolumeSpec,
    Watermarks, WritebackLimits,
};
use layby_device::{Direction, Model};
use layby_types::{
    BlockSize, Call, ErrorKind, LevelIndex, Nanos, Operation, RequestId, Rng, VolumeId,
};
use queue::{Access, Device, Held, Pending, Place};
use report::Meter;

/// How time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every action ends at once; costs are added up from the counters.
    Counting,
    /// As [`Mode::Counting`], but a write home takes its time on a channel of the home.
    Destaging,
    /// Every access takes its time on a channel of its device.
    Queueing,
}

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Levels, classes, limits: what a node's configuration becomes.
    pub cache: CacheSpec,
    /// A model per level, fastest first.
    pub devices: Vec<Model>,
    /// The home of every volume.
    pub home: Model,
    /// How time passes.
    pub mode: Mode,
    /// Same seed, same run.
    pub seed: u64,
}

/// See the module's header.
pub struct Machine {
    cache: Cache,
    rng: Rng,
    mode: Mode,
    now: Nanos,
    devices: Vec<Device>,
    home: Device,
    /// What the cache asked for and was not performed yet; empty between calls.
    actions: Vec<Action>,
    pending: Pending,
    meter: Meter,
    request_next: u64,
    timer: TickTimer,
    log: Option<Box<dyn DecisionLog>>,
    /// The best rank among volumes, where devices serve by rank.
    best: Option<Rank>,
    /// The rank of the action that is being performed.
    rank: Rank,
    isolation: Isolation,
}

/// What operations of the best rank met at devices that serve by rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Isolation {
    /// Operations of the best rank.
    pub ios: u64,
    /// The most bytes that lower ranks had outstanding when one began, and in how many operations.
    pub ahead_max: Load,
    /// The longest operation of a lower rank, in bytes.
    pub longest_bytes: u64,
}

impl Machine {
    /// An empty node.
    ///
    /// # Errors
    /// [`SpecError`] when levels and classes contradict each other. Panics when there is not one
    /// model per level.
    pub fn new(setup: Setup) -> Result<Machine, SpecError> {
        assert_eq!(setup.devices.len(), setup.cache.levels.len(), "a model per level");
        let meter = Meter::new(setup.mode, setup.cache.block_size);
        Ok(Machine {
            cache: Cache::new(setup.cache)?,
            rng: Rng::new(setup.seed),
            mode: setup.mode,
            now: Nanos::ZERO,
            devices: setup.devices.into_iter().map(Device::new).collect(),
            home: Device::new(setup.home),
            actions: Vec::new(),
            pending: Pending::default(),
            meter,
            request_next: 0,
            timer: TickTimer::IDLE,
            log: None,
            best: None,
            rank: Rank::FIRST,
            isolation: Isolation::default(),
        })
    }

    /// From now on devices serve by rank, as the engine's do. Call it when the volumes are there.
    ///
    /// Panics in counting mode, where nothing waits.
    pub fn serve_by_rank(&mut self, limits: &ScheduleLimits, volumes: &[VolumeId]) {
        assert_eq!(self.mode, Mode::Queueing, "only queueing has an order");
        let ranks = volumes.iter().map(|volume| self.cache.rank_of_volume(*volume));
        self.best = ranks.min();
        self.devices.iter_mut().for_each(|device| device.hold_to(limits));
        self.home.hold_to(limits);
    }

    /// A window of the best rank's objective has ended: devices' budgets shrink or grow.
    pub fn on_window(&mut self, verdict: Verdict) {
        let devices = self.devices.iter_mut().chain([&mut self.home]);
        for queue in devices.filter_map(Device::queue) {
            match verdict {
                Verdict::Missed => queue.budget().on_missed(),
                Verdict::Met | Verdict::Idle => queue.budget().on_met(),
            }
        }
    }

    /// What operations of the best rank met so far.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Sends every decision from now on to `log`.
    pub fn log_decisions(&mut self, log: Box<dyn DecisionLog>) {
        self.log = Some(log);
    }

    /// The cache, for questions and for changes of its specification.
    pub fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Adds a volume.
    ///
    /// # Errors
    /// As [`Cache::add_volume`].
    pub fn add_volume(&mut self, spec: &VolumeSpec) -> Result<(), ErrorKind> {
        self.cache.add_volume(spec)?;
        self.meter.add_volume(spec.id);
        Ok(())
    }

    /// Destages what a volume has dirty, and forgets it.
    ///
    /// # Errors
    /// As [`Cache::remove_volume`].
    pub fn remove_volume(&mut self, id: VolumeId) -> Result<(), RemoveError> {
        self.drain(Some(id));
        self.meter.retire(&self.cache, id);
        let mut actions = Vec::new();
        self.cache.remove_volume(id, OnDirty::Refuse, &mut actions)?;
        self.run(actions);
        Ok(())
    }

    /// A call that arrives at `at`; time never goes back. In counting mode it has ended, with all
    /// that it set off, when this returns, unless a limit holds it back; in destaging mode it has
    /// ended in any case, and time has gone on where it had to wait.
    pub fn submit(&mut self, at: Nanos, volume: VolumeId, call: &Call) -> RequestId {
        self.advance_to(at);
        let request = RequestId(self.request_next);
        self.request_next += 1;
        let is_timed = self.mode == Mode::Queueing;
        if !is_timed && self.log.is_none() && self.read_at_once(volume, call) {
            return request;
        }
        self.meter.start(request, volume, call, self.now);
        let mut actions = std::mem::take(&mut self.actions);
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        self.cache.on_request(&mut moment, request, volume, call, &mut actions);
        self.run(actions);
        match self.mode {
            Mode::Counting => self.settle(),
            Mode::Destaging => self.end_request(request),
            Mode::Queueing => {}
        }
        request
    }

    /// Ends what is in flight and takes no time, and lets time pass until the request has ended.
    fn end_request(&mut self, request: RequestId) {
        self.end_now();
        while self.meter.is_in_flight(request) {
            self.timer.note(&self.cache, self.now);
            let next = self.pending.next_end().min(self.timer.at());
            if next == Nanos::NEVER {
                return;
            }
            self.advance_to(next);
        }
    }

    fn end_now(&mut self) {
        while self.end_next(self.now) {}
    }

    /// Counts a read of one block where that needs no action to be performed.
    fn read_at_once(&mut self, volume: VolumeId, call: &Call) -> bool {
        let size = self.cache.spec().block_size;
        let block = size.block_of(call.offset);
        let is_one = call.length > 0 && size.block_of(call.offset + (call.length - 1)) == block;
        if call.operation != Operation::Read || !is_one {
            return false;
        }
        let mut actions = std::mem::take(&mut self.actions);
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        let read = self.cache.read_at_once(&mut moment, volume, block, &mut actions);
        if let Some(ReadAtOnce { from, to }) = read {
            let bytes = u64::from(size.bytes());
            let access = |direction| Access { direction, parts: 1, bytes };
            let source = from.map_or(&mut self.home, |from| &mut self.devices[usize::from(from.0)]);
            source.note(access(Direction::Read));
            if let Some(to) = to {
                self.devices[usize::from(to.0)].note(access(Direction::Write));
            }
        }
        self.run(actions);
        self.end_now();
        read.is_some()
    }

    /// Lets time pass up to `at`: what ends until then ends, and background work that is due runs.
    pub fn advance_to(&mut self, at: Nanos) {
        loop {
            if self.now < at && self.now < self.pending.next_end() {
                self.timer.note(&self.cache, self.now);
            }
            let next = self.pending.next_end().min(self.timer.at());
            if next > at || next == Nanos::NEVER {
                break;
            }
            self.now = self.now.max(next);
            if !self.end_next(self.now) && self.timer.take_due(self.now) {
                self.tick();
            }
        }
        self.now = self.now.max(at);
    }

    /// Lets everything in flight end.
    pub fn settle(&mut self) {
        while self.end_next(Nanos::NEVER) {}
    }

    /// Destages everything dirty of a volume, or of all.
    pub fn drain(&mut self, volume: Option<VolumeId>) {
        let mut actions = Vec::new();
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        self.cache.drain(&mut moment, 0, volume, &mut actions);
        self.run(actions);
        self.settle();
    }

    /// What came of it so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.meter.report(&self.cache, &self.devices, &self.home, (self.mode, self.now))
    }

    /// What a volume's reads and writes of blocks have cost so far, when counting.
    #[must_use]
    pub fn cost(&self, volume: VolumeId) -> Nanos {
        self.meter.cost(&self.cache, volume, &self.devices, &self.home)
    }

    fn tick(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        self.cache.on_tick(&mut Moment { now: self.now, rng: &mut self.rng }, &mut actions);
        self.run(actions);
    }

    /// Ends what is in flight longest, if it ends by `until`.
    fn end_next(&mut self, until: Nanos) -> bool {
        let Some((at, op, held)) = self.pending.pop_until(until) else { return false };
        self.now = self.now.max(at);
        if let Some(held) = held {
            self.end_held(held);
        }
        let mut actions = std::mem::take(&mut self.actions);
        let mut moment = Moment { now: self.now, rng: &mut self.rng };
        self.cache.on_done(&mut moment, op, Ok(()), &mut actions);
        self.run(actions);
        true
    }

    /// Performs all actions in order; what performing one adds comes last.
    fn run(&mut self, mut actions: Vec<Action>) {
        let mut next = 0;
        while let Some(action) = actions.get(next) {
            if let Some(log) = &mut self.log {
                log.on_action(self.now, action);
            }
            if let Action::CopyVerified(copy) = *action {
                self.copy(copy.request, copy.level);
                let mut moment = Moment { now: self.now, rng: &mut self.rng };
                self.cache.on_copied(&mut moment, &copy, Checked::Sound, &mut actions);
            } else {
                let rank = self.best.and_then(|_| self.cache.rank_of_action(action));
                self.rank = rank.unwrap_or(Rank::FIRST);
                self.perform(action);
            }
            next += 1;
        }
        actions.clear();
        self.actions = actions;
    }

    fn perform(&mut self, action: &Action) {
        let block = u64::from(self.cache.spec().block_size.bytes());
        let bytes = |count: u32| u64::from(count) * block;
        match *action {
            Action::Copy { request, level, .. } => self.copy(request, level),
            Action::Complete { request, result } => {
                self.meter.end(request, result.is_ok(), self.now);
            }
            Action::ReadLevel { op, level, ref slots } => {
                let place = Place::Level(usize::from(level.0));
                let parts = slots.len() as u32;
                self.access(op, place, Access { direction: Direction::Read, parts, bytes: block });
            }
            Action::ReadBacking { op, count, .. } => {
                let (direction, parts) = (Direction::Read, 1);
                self.access(op, Place::Home, Access { direction, parts, bytes: bytes(count) });
            }
            Action::WriteLevel { op, level, ref entries, cause, .. } => {
                let level = usize::from(level.0);
                let is_told = self.cache.spec().levels[level].kind.is_persistent()
                    && cause != layby_cache::Cause::Borrow;
                let bytes = bytes(entries.len() as u32);
                let access = Access { direction: Direction::Write, parts: 1, bytes };
                if is_told {
                    self.access(op, Place::Level(level), access);
                } else {
                    self.devices[level].note(access);
                }
            }
            Action::CopyLevel { to, .. } => {
                let access = Access { direction: Direction::Write, parts: 1, bytes: block };
                self.devices[usize::from(to.0.0)].note(access);
            }
            Action::WriteBacking { op, count, .. } => {
                let (direction, parts) = (Direction::Write, 1);
                self.access(op, Place::Home, Access { direction, parts, bytes: bytes(count) });
            }
            // A descriptor's block, and a range that is only marked.
            Action::Tombstone { op, level, .. } => {
                let place = Place::Level(usize::from(level.0));
                self.access(
                    op,
                    place,
                    Access { direction: Direction::Write, parts: 1, bytes: block },
                );
            }
            Action::ZeroBacking { op, .. } => {
                let access = Access { direction: Direction::Write, parts: 1, bytes: 0 };
                self.access(op, Place::Home, access);
            }
            // The models' writes are durable when they end.
            Action::SyncBacking { op, .. } | Action::SyncLevel { op, .. } => {
                self.pending.push(self.now, op, None);
            }
            // `run` performs verified copies itself, since they lead to more actions.
            Action::CopyVerified(_)
            | Action::Deliver { .. }
            | Action::Blank { .. }
            | Action::Merge { .. }
            | Action::Free { .. }
            | Action::CleaningKept { .. }
            | Action::Forget { .. }
            | Action::SetClean { .. }
            | Action::SetDirty { .. }
            | Action::Release { .. }
            | Action::Drained { .. }
            | Action::Report(_) => {}
        }
    }

    fn copy(&mut self, request: RequestId, level: LevelIndex) {
        let access = Access {
            direction: Direction::Read,
            parts: 1,
            bytes: u64::from(self.cache.spec().block_size.bytes()),
        };
        let cost = self.devices[usize::from(level.0)].note(access);
        self.meter.add_copy(request, cost);
    }

    fn device(&mut self, place: Place) -> &mut Device {
        match place {
            Place::Level(level) => &mut self.devices[level],
            Place::Home => &mut self.home,
        }
    }

    fn access(&mut self, op: OpId, place: Place, access: Access) {
        let rank = self.rank;
        let takes_time = match self.mode {
            Mode::Counting => false,
            Mode::Destaging => place == Place::Home && access.direction == Direction::Write,
            Mode::Queueing => true,
        };
        if !takes_time {
            self.device(place).note(access);
            return self.pending.push(self.now, op, None);
        }
        let Some(best) = self.best.filter(|best| rank > *best) else {
            self.note_best(place);
            let now = self.now;
            let end = self.device(place).start(now, access);
            return self.pending.push(end, op, None);
        };
        assert!(best < rank, "only lower ranks wait");
        self.isolation.longest_bytes = self.isolation.longest_bytes.max(access.total());
        if let Some(started) = self.device(place).submit(rank, op, access) {
            self.start_held(place, started);
        }
    }

    /// An operation of the best rank begins: what is before it?
    fn note_best(&mut self, place: Place) {
        let ahead = self.device(place).outstanding();
        let most = &mut self.isolation.ahead_max;
        most.bytes = most.bytes.max(ahead.bytes);
        most.ios = most.ios.max(ahead.ios);
        self.isolation.ios += 1;
    }

    fn start_held(&mut self, place: Place, (op, access): (OpId, Access)) {
        let now = self.now;
        let end = self.device(place).start(now, access);
        self.pending.push(end, op, Some(Held { place, bytes: access.total() }));
    }

    fn end_held(&mut self, held: Held) {
        if let Some(queue) = self.device(held.place).queue() {
            queue.on_end(held.bytes);
        }
        while let Some(started) =
            self.device(held.place).queue().and_then(layby_cache::schedule::DeviceQueue::start_next)
        {
            self.start_held(held.place, started);
        }
    }
}

/// A cache as papers have it: LRU, dirty blocks leave their level by eviction alone, and nothing is
/// read ahead. `levels` are kinds and slots, fastest first.
#[must_use]
pub fn paper_cache(levels: &[(LevelKind, u32)], classes: Vec<ClassSpec>) -> CacheSpec {
    let watermarks =
        Watermarks { dirty_red: 100, dirty_green: 100, used_red: 100, used_green: 100 };
    let eviction = EvictionKind::Lru;
    let level = |(kind, slots): &(LevelKind, u32)| LevelSpec {
        kind: *kind,
        slots: *slots,
        eviction,
        watermarks,
    };
    CacheSpec {
        block_size: BlockSize::MIN,
        levels: levels.iter().map(level).collect(),
        classes,
        writeback: WritebackLimits { idle_timeout: Nanos::NEVER, ..WritebackLimits::DEFAULT },
        read_ahead: ReadAheadLimits { window_bytes_max: 0, ..ReadAheadLimits::DEFAULT },
    }
}

/// A read or a write of whole blocks, as a call.
#[must_use]
pub fn call(operation: Operation, offset: u64, length: u64) -> Call {
    Call { cookie: 0, operation, offset, length, flags: layby_types::CallFlags::default() }
}

#[cfg(test)]
mod tests;
