//! Start: opens stores and homes, puts recovered blocks back, redoes what was cut short.
//!
//! How: the stores report what they found, [`resolve`] decides between levels, the cache takes the
//! winners in order of age. Zeroings that may not have reached a home are repeated, blocks beyond a
//! level's slots are sent home, and a checkpoint ends it all, so that what lost stays dead.
//! Invariant: when this returns, every acknowledged durable write is readable.
//! Cost: what the stores read since their last checkpoint, and one checkpoint.

use super::decisions::Decisions;
use super::events::Tombstones;
use super::stores::{Level, LevelPlan, Slab};
use super::{Core, HOMES_MAX, Home, TAG_HOME, status};
use crate::backing::{
    AbsentHome, FileBacking, HomeBacking, PartHome, PartPlan, RemoteBacking, RemoteHome,
};
use crate::control::StartReport;
use crate::io::{Buffer, DiskId, Io};
use crate::store::{
    CorruptInfo, Freed, Held, LogConfig, LogStore, Loser, NvmConfig, NvmStore, Reached, Recovered,
    RecoveredEntry, Resolved, SeqSource, StoreError, StoreIdentity, resolve, runs_max, undecide,
};
use layby_cache::{Cache, CacheSpec, Moment, TickTimer, VolumeSpec};
use layby_types::{
    BackingOperation, BlockKey, ErrorKind, LevelIndex, Nanos, Rng, Seq, Slot, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

/// A volume with its opened home.
pub struct HomePlan {
    /// What the cache must know.
    pub spec: VolumeSpec,
    /// Its home.
    pub place: HomePlace,
    /// The device on which it lies; `None` for one of its own.
    pub device: Option<u64>,
    /// What stands in its place where zeroes wait to be written to it; of a write-protected device.
    pub protected: Option<AbsentHome>,
}

/// An opened home.
pub enum HomePlace {
    /// A file or block device.
    Disk {
        /// The attached disk.
        disk: DiskId,
        /// Its path.
        name: String,
    },
    /// A part's stripes of one.
    Part {
        /// The attached disk.
        disk: DiskId,
        /// Its path.
        name: String,
        /// Which part.
        plan: PartPlan,
    },
    /// Something that brings its own threads.
    Remote(RemoteBacking),
    /// A home that could not be opened: what the levels hold of the volume is kept.
    Absent {
        /// What stands in its place.
        stand_in: AbsentHome,
        /// Which part, where the volume is wide.
        plan: Option<PartPlan>,
    },
}

impl HomePlan {
    /// A volume whose home is an attached disk, on a device that others may share.
    #[must_use]
    pub fn on_disk(spec: VolumeSpec, disk: DiskId, name: String) -> HomePlan {
        let place = HomePlace::Disk { disk, name };
        HomePlan { spec, place, device: Some(0), protected: None }
    }
}

/// Why a core cannot start. Stored data is untouched.
#[derive(Debug)]
pub enum CoreError {
    /// A level's store cannot be opened.
    Store {
        /// Which level.
        level: usize,
        /// Why.
        error: StoreError,
    },
    /// There is not so much memory as a memory level is to have.
    Memory {
        /// Which level.
        level: usize,
        /// Blocks that it is to hold.
        slots: u32,
    },
    /// The specification contradicts itself or what the core can do.
    Spec(String),
    /// A volume cannot be added.
    Volume {
        /// Which volume.
        volume: VolumeId,
        /// Why.
        kind: ErrorKind,
    },
    /// A home failed while recovery was sending blocks or zeros to it.
    Home {
        /// Its name.
        name: String,
        /// Why.
        kind: ErrorKind,
    },
}

/// A core whose levels are open, and what was found in the NVM level and in the log.
pub(super) type Opened = (Core, Option<Recovered>, Option<Recovered>);

type Found = (Vec<Level>, Option<Recovered>, Option<Recovered>);

impl Core {
    /// Opens (or formats) the levels and recovers. No other operation may be in flight on `io`.
    ///
    /// # Errors
    /// [`CoreError`]; the levels are as they were, but for formatting that was asked for.
    pub fn start(
        io: &mut dyn Io,
        spec: CacheSpec,
        plans: &[LevelPlan],
        identity: StoreIdentity,
        mut homes: Vec<HomePlan>,
        seed: u64,
    ) -> Result<(Core, StartReport), CoreError> {
        let started = io.now();
        let stand_in = |home: &mut HomePlan| Some((home.spec.id, home.protected.take()?));
        let protected: BTreeMap<_, _> = homes.iter_mut().filter_map(stand_in).collect();
        let is_writable = |volume: &VolumeId| !protected.contains_key(volume);
        let opened = homes.iter().map(|home| home.spec.id);
        let writable: Vec<VolumeId> = opened.filter(is_writable).collect();
        let (mut core, nvm, log) = Core::open(io, spec, plans, identity, homes, seed)?;
        for plan in plans {
            if let (LevelPlan::Ssd { wear, .. }, Some(found)) = (plan, &log) {
                core.start_wear(*wear, found);
            }
        }
        let reached = core.reach(io)?;
        let mut report = core.recover(io, nvm, log, protected)?;
        report.reached = reached;
        if let Some((level, log)) = core.log().filter(|_| report.is_checkpointed) {
            report.reached.push((level, log.reached()));
        }
        core.is_recovering = false;
        writable.into_iter().for_each(|volume| core.sync_opened(io, volume));
        report.recovery_ms = io.now().since(started).0 / 1_000_000;
        Ok((core, report))
    }

    /// Opens (or formats) the levels; what they hold is to be recovered.
    pub(super) fn open(
        io: &mut dyn Io,
        spec: CacheSpec,
        plans: &[LevelPlan],
        identity: StoreIdentity,
        homes: Vec<HomePlan>,
        seed: u64,
    ) -> Result<Opened, CoreError> {
        // Two generators: the cache's draws must not depend on which stores were made anew.
        let (rng, mut instances) = (Rng::new(seed), Rng::new(!seed));
        let (levels, nvm, log) = open_levels(io, &spec, plans, identity, &mut instances)?;
        let refused = |error| CoreError::Spec(format!("{error:?}"));
        let cache = Cache::new(with_slots(spec, &levels)).map_err(refused)?;
        let stuck = super::stuck::Stuck::new(levels.len());
        let mut core = Core {
            cache,
            rng,
            levels,
            homes: HashMap::new(),
            remotes: Vec::new(),
            has_more_ends: false,
            far: HashSet::new(),
            buffers: Vec::new(),
            requests: HashMap::new(),
            request_next: 0,
            queue: VecDeque::new(),
            scratch: Vec::new(),
            finished: VecDeque::new(),
            gatherings: Default::default(),
            unanswered: Vec::new(),
            notices: Vec::new(),
            drained: Vec::new(),
            checkpoints: Default::default(),
            peer_sync: None,
            stop_sync: None,
            tombstones: Tombstones::default(),
            cancels: super::cancels::Cancels::default(),
            delays: super::discards::Delays::default(),
            forgets_told: 0,
            ended: Vec::new(),
            home_delay: Nanos::ZERO,
            delayed: VecDeque::new(),
            fetches: super::observe::FetchMeter::default(),
            objectives: super::objectives::Objectives::default(),
            wear: super::wear::WearMeter::default(),
            now: io.now(),
            timer: TickTimer::IDLE,
            decisions: Decisions::default(),
            recorder: None,
            wides: super::wide::Wides::default(),
            stuck,
            failed: Vec::new(),
            is_recovering: true,
        };
        for home in homes {
            core.add_volume(home)?;
        }
        Ok((core, nvm, log))
    }

    /// Each NVM level says durably that a start follows.
    fn reach(&mut self, io: &mut dyn Io) -> Result<Vec<(usize, Reached)>, CoreError> {
        let mut reached = Vec::new();
        for (level, store) in self.levels.iter_mut().enumerate() {
            if let Level::Nvm(store) = store {
                let failed = |error| CoreError::Store { level, error };
                reached.push((level, store.reach(io).map_err(failed)?));
            }
        }
        Ok(reached)
    }

    /// Adds a volume with its home.
    ///
    /// # Errors
    /// [`CoreError::Volume`].
    pub fn add_volume(&mut self, home: HomePlan) -> Result<(), CoreError> {
        let volume = home.spec.id;
        assert!(volume.0 < HOMES_MAX, "a volume's number fits a token");
        let refused = |kind| CoreError::Volume { volume, kind };
        self.cache.add_volume(&home.spec).map_err(refused)?;
        self.cache.set_device(volume, home.device);
        let write_through = home.spec.write_through;
        let tag = (TAG_HOME << 20) | u64::from(volume.0);
        let backing = match home.place {
            HomePlace::Disk { disk, name } => {
                HomeBacking::File(FileBacking::new(disk, name, tag, home.spec.length))
            }
            HomePlace::Part { disk, name, plan } => {
                self.wides.add(volume, &plan);
                let file = FileBacking::new(disk, name, tag, plan.length);
                HomeBacking::Part(Box::new(PartHome::new(file, plan)))
            }
            HomePlace::Remote(remote) => {
                self.remotes.push(volume);
                HomeBacking::Remote(RemoteHome::new(remote))
            }
            HomePlace::Absent { stand_in, plan } => {
                plan.iter().for_each(|plan| self.wides.add(volume, plan));
                self.remotes.push(volume);
                HomeBacking::Remote(RemoteHome::absent(Box::new(stand_in)))
            }
        };
        let is_absent = backing.is_absent();
        let stats = status::VolumeMeter::new();
        let discards = super::discards::HomeDiscards::new(self.delays.limits(volume));
        let (unsynced, syncing, inflight) = (false, false, 0);
        let home = Home {
            backing,
            stats,
            unsynced,
            syncing,
            opened: None,
            write_through,
            inflight,
            ended: 0,
            discards,
            ending: None,
            is_settled: false,
        };
        self.homes.insert(volume, home);
        if is_absent {
            self.hold_back(volume);
        }
        Ok(())
    }

    fn recover(
        &mut self,
        io: &mut dyn Io,
        nvm: Option<Recovered>,
        log: Option<Recovered>,
        protected: BTreeMap<VolumeId, AbsentHome>,
    ) -> Result<StartReport, CoreError> {
        let (mut nvm, mut log) = (nvm.unwrap_or_default(), log.unwrap_or_default());
        let mut resolved = resolve(&mut nvm, &mut log);
        let held: BTreeSet<VolumeId> = protected.keys().copied().collect();
        let is_new_loss = self.note_lost((&mut nvm, &mut log), &mut resolved)?;
        // What is undecided is not zeroed again.
        let absent = self.miss_protected(&resolved, protected);
        let mut report = StartReport {
            torn_batches: nvm.torn + log.torn,
            bytes_scanned: nvm.bytes_scanned + log.bytes_scanned,
            blocks_lost: (nvm.lost.len() + log.lost.len()) as u64,
            absent,
            ..StartReport::default()
        };
        for info in nvm.lost.iter().chain(&log.lost).chain(&nvm.damaged).chain(&log.damaged) {
            self.notices.push(super::Notice::Corrupt(info.clone()));
        }
        report.undecided = self.lost_ranges();
        self.reseat(&mut nvm.entries, &mut resolved.losers, &held);
        self.free_losers(&resolved);
        self.note_dirty(&nvm.entries);
        let overflow = self.restore(&nvm.entries, &log.entries, &mut report);
        self.redo_zeroes(io, &resolved)?;
        let unread = self.send_home(io, overflow)?;
        self.cache.end_restore();
        self.fit_ssd_level();
        let is_kept = self.end_with_checkpoint(io);
        if !is_kept {
            // What was dropped above is not dead before a checkpoint says so.
            self.expect_old_records(&nvm, &log);
        }
        self.free_unread(unread, is_kept)?;
        self.own_cleaning();
        report.is_checkpointed = is_kept;
        if let Some(info) = is_new_loss {
            let is_gone = is_kept && self.drop_undecided(io);
            let level = self.log().map_or(0, |(level, _)| level);
            let error = StoreError::Corrupt(info);
            return if is_gone { Ok(report) } else { Err(CoreError::Store { level, error }) };
        }
        Ok(report)
    }

    /// A later start may find what this one has found, and decided in vain: records, also such as
    /// found no slot or lie behind a volume's end, and zeroings. All other blocks, and volumes, do
    /// not depend on the log.
    fn expect_old_records(&mut self, nvm: &Recovered, log: &Recovered) {
        let entries = nvm.entries.iter().chain(&log.entries).map(|entry| entry.key);
        for key in entries.chain(log.forgets.iter().map(|(key, _)| *key)) {
            let block = key.block().0;
            self.cache.expect_records_of(key.volume(), &(block..block + 1));
        }
        for tombstone in &log.tombstones {
            let first = tombstone.first.0;
            self.cache.expect_records_of(tombstone.volume, &(first..first + tombstone.count));
        }
    }

    /// Finds the blocks whose newest version is not known. Where there are more of them than at the
    /// start before, that is to be durable before anything is served; answers why.
    fn note_lost(
        &mut self,
        (nvm, log): (&mut Recovered, &mut Recovered),
        resolved: &mut Resolved,
    ) -> Result<Option<CorruptInfo>, CoreError> {
        if log.clean_shutdown && nvm.undecided.is_some() {
            // Then each block has one record at most, so that those found are the newest.
            nvm.undecided = Some(Seq(0));
        }
        let writes_back = self.homes.iter().filter(|(_, home)| !home.write_through);
        let held = writes_back.map(|(volume, _)| {
            let (volume, blocks) = (*volume, self.cache.blocks_of(*volume));
            Held { volume, blocks }
        });
        let mut held: Vec<Held> = held.collect();
        held.sort_unstable_by_key(|held| held.volume);
        let undecided = nvm.undecided.is_some() || log.undecided.is_some();
        let damage = nvm.damaged.iter().chain(&log.damaged).next_back();
        let damage = damage.filter(|_| undecided).cloned();
        let lost = undecide(nvm, log, &held, resolved);
        let Some((level, log)) = self.log() else { return Ok(None) };
        let runs_max = runs_max(log.lost_entries_max(), &held);
        if let Some(info) = damage.clone().filter(|_| lost.len() > runs_max) {
            return Err(CoreError::Store { level, error: StoreError::Corrupt(info) });
        }
        self.cache.set_lost(lost, runs_max);
        Ok(damage)
    }

    /// What is lost is kept: the NVM slots that were proof of it go. False where they cannot. So do
    /// segments of the log, which the next start would else find to be proof of another loss.
    fn drop_undecided(&mut self, io: &mut dyn Io) -> bool {
        for level in &mut self.levels {
            if let Level::Nvm(store) = level {
                store.drop_undecided();
            }
        }
        let is_kept = self.end_with_checkpoint(io);
        while self.log().is_some_and(|(_, log)| log.is_clearing()) {
            self.turn(io);
        }
        is_kept
    }

    fn free_losers(&mut self, resolved: &Resolved) {
        for loser in &resolved.losers {
            for level in &mut self.levels {
                match (level, loser) {
                    (Level::Nvm(store), Loser::Nvm(slot)) => store.free(*slot, Freed::Superseded),
                    (Level::Ssd(store), Loser::Log(slot)) => store.free(*slot),
                    _ => {}
                }
            }
        }
    }

    /// Blocks over a range that may read as zeros below are dirty, and their records must say so
    /// before the tombstone that tells it goes with the checkpoint to come.
    fn note_dirty(&mut self, entries: &[RecoveredEntry]) {
        for level in &mut self.levels {
            if let Level::Nvm(store) = level {
                entries.iter().filter(|e| e.dirty).for_each(|entry| store.set_dirty(entry.slot));
            }
        }
    }

    /// The level that is NVM.
    pub(super) fn nvm_level(&self) -> Option<usize> {
        self.levels.iter().position(|level| matches!(level, Level::Nvm(_)))
    }

    /// Puts the winners back, oldest first; what finds no slot is answered.
    fn restore(
        &mut self,
        nvm: &[RecoveredEntry],
        log: &[RecoveredEntry],
        report: &mut StartReport,
    ) -> Vec<(usize, RecoveredEntry)> {
        let (nvm_level, log_level) = (self.nvm_level(), self.log().map(|(level, _)| level));
        let mut all: Vec<(usize, RecoveredEntry)> = Vec::new();
        all.extend(nvm_level.iter().flat_map(|level| nvm.iter().map(|entry| (*level, *entry))));
        all.extend(log_level.iter().flat_map(|level| log.iter().map(|entry| (*level, *entry))));
        all.sort_unstable_by_key(|(_, entry)| entry.seq);
        let (mut left, mut unknown) = (Vec::new(), BTreeMap::<VolumeId, u64>::new());
        let mut rng = Rng::new(0);
        let now = self.now;
        for (level, entry) in all {
            let moment = &mut Moment { now, rng: &mut rng };
            let (at, RecoveredEntry { slot, key, dirty, .. }) = (LevelIndex(level as u8), entry);
            // Only a log can tell that a clean record is not older than what the home holds.
            let dirty = dirty || log_level.is_none();
            if self.is_behind(key) {
                self.drop_behind(level, slot);
                report.blocks_behind_end += 1;
                continue;
            }
            if !self.cache.restore(moment, at, slot, key, dirty) {
                if entry.dirty && !self.homes.contains_key(&key.volume()) {
                    *unknown.entry(key.volume()).or_default() += 1;
                }
                left.push((level, entry));
            } else if dirty {
                report.blocks_dirty += 1;
            } else {
                report.blocks_clean += 1;
            }
        }
        report.unknown = unknown.into_iter().collect();
        left
    }

    /// Whether a block lies behind its volume's end, where earlier builds could leave dirty ones.
    pub(super) fn is_behind(&self, key: BlockKey) -> bool {
        let volume = key.volume();
        self.homes.contains_key(&volume) && key.block().0 >= self.cache.blocks_of(volume)
    }

    /// Drops a block that is no part of its volume: no backing store takes it. The checkpoint to
    /// come makes that durable, so that no growth shows it.
    fn drop_behind(&mut self, level: usize, slot: Slot) {
        match &mut self.levels[level] {
            Level::Nvm(store) => store.free(slot, Freed::Superseded),
            Level::Ssd(store) => store.free(slot),
            Level::Memory(_) => unreachable!("memory recovers nothing"),
        }
    }

    fn redo_zeroes(&mut self, io: &mut dyn Io, resolved: &Resolved) -> Result<(), CoreError> {
        let volumes: BTreeSet<VolumeId> = resolved.redo_zeroes.iter().map(|t| t.volume).collect();
        for volume in volumes {
            if !self.homes.contains_key(&volume) {
                continue;
            }
            if self.is_absent(volume) {
                self.owe_zeroes(volume, resolved)?;
                continue;
            }
            self.zero_again(io, volume, resolved)?;
            self.home_alone(io, volume, BackingOperation::Sync)?;
        }
        let redone = resolved.redo_zeroes.iter().filter(|t| !self.is_absent(t.volume));
        let redone: Vec<Seq> = redone.map(|tombstone| tombstone.seq).collect();
        if let Some(log) = self.log_mut() {
            redone.into_iter().for_each(|seq| log.tombstone_done(seq));
        }
        Ok(())
    }

    /// Zeroes in a volume's backing store what a crash may have kept from it.
    pub(super) fn zero_again(
        &mut self,
        io: &mut dyn Io,
        volume: VolumeId,
        resolved: &Resolved,
    ) -> Result<(), CoreError> {
        let size = self.cache.spec().block_size;
        for tombstone in resolved.redo_zeroes.iter().filter(|t| t.volume == volume) {
            let home = &self.homes[&volume].backing;
            let offset = size.offset_of(tombstone.first);
            let length = tombstone.count * u64::from(size.bytes());
            let end = home.length(io).unwrap_or(u64::MAX);
            let length = length.min(end.saturating_sub(offset));
            if length > 0 {
                let zero =
                    |keep_allocated| BackingOperation::Zero { offset, length, keep_allocated };
                let zeroed = self.home_alone(io, volume, zero(tombstone.no_hole));
                // Room cannot be kept where there is none: what counts is that it reads zero.
                zeroed.or_else(|_| self.home_alone(io, volume, zero(false)))?;
            }
        }
        Ok(())
    }

    /// One call of a home, run to its end. Nothing else may be in flight.
    pub(super) fn home_alone(
        &mut self,
        io: &mut dyn Io,
        volume: VolumeId,
        operation: BackingOperation<Buffer>,
    ) -> Result<(), CoreError> {
        let home = &mut self.homes.get_mut(&volume).expect("the caller looked").backing;
        home.submit(io, 0, operation);
        let done = loop {
            if let Some(done) = home.poll() {
                break done;
            }
            let mut ended = Vec::new();
            io.wait(Nanos::NEVER, &mut ended);
            ended.into_iter().for_each(|done| home.on_io(io, done));
        };
        let name = home.name().to_owned();
        done.result.map_err(|kind| CoreError::Home { name, kind })
    }

    /// Blocks beyond a level's slots go to their homes; those of volumes that are gone go nowhere.
    /// Answers those that cannot be read, which are lost: their records stay as proof until the
    /// checkpoint says so.
    fn send_home(
        &mut self,
        io: &mut dyn Io,
        overflow: Vec<(usize, RecoveredEntry)>,
    ) -> Result<Vec<(usize, RecoveredEntry)>, CoreError> {
        let size = self.cache.spec().block_size;
        let mut unread = Vec::new();
        for (level, entry) in overflow {
            let volume = entry.key.volume();
            if entry.dirty && self.homes.contains_key(&volume) {
                let Some(data) = self.read_alone(io, level, entry) else {
                    // Without a log nothing would say that it is lost.
                    if self.log().is_none() || !self.cache.lose(entry.key) {
                        return Err(unreadable(level, entry));
                    }
                    unread.push((level, entry));
                    continue;
                };
                let offset = size.offset_of(entry.key.block());
                let mut buffer = io.buffer(data.len());
                buffer.copy_from_slice(&data);
                let write = BackingOperation::Write { offset, buffer, durable: true };
                self.home_alone(io, volume, write)?;
            }
            let is_nvm = matches!(self.levels[level], Level::Nvm(_));
            if let Some(log) = self.log_mut().filter(|_| is_nvm) {
                log.forget(entry.key);
            }
            let forgets_issued = self.log().map_or(0, |(_, log)| log.forgets_issued());
            match &mut self.levels[level] {
                Level::Nvm(store) => store.free(entry.slot, Freed::Evicted { forgets_issued }),
                Level::Ssd(store) => store.free(entry.slot),
                Level::Memory(_) => {}
            }
        }
        Ok(unread)
    }

    /// Frees blocks that are lost, once that is kept: their records would come back over what is
    /// written into their place.
    fn free_unread(
        &mut self,
        unread: Vec<(usize, RecoveredEntry)>,
        is_kept: bool,
    ) -> Result<(), CoreError> {
        for (level, entry) in unread {
            if !is_kept {
                return Err(unreadable(level, entry));
            }
            match &mut self.levels[level] {
                Level::Nvm(store) => store.free(entry.slot, Freed::Superseded),
                Level::Ssd(store) => store.free(entry.slot),
                Level::Memory(_) => {}
            }
        }
        Ok(())
    }

    /// A recovered block's bytes, before anything else runs.
    pub(super) fn read_alone(
        &mut self,
        io: &mut dyn Io,
        level: usize,
        entry: RecoveredEntry,
    ) -> Option<Vec<u8>> {
        let ticket = crate::store::Ticket(super::TICKET_OWN);
        match &mut self.levels[level] {
            Level::Memory(_) => None,
            Level::Nvm(store) => {
                let mut data = Vec::new();
                let read = store.read_with(entry.slot, |bytes| data = bytes.to_vec());
                read.is_ok().then_some(data)
            }
            Level::Ssd(store) => {
                store.read(io, ticket, &[entry.slot]);
                loop {
                    let mut events = Vec::new();
                    store.take_events(&mut events);
                    for event in events {
                        if let crate::store::StoreEvent::Read { result, .. } = event {
                            return result.ok().map(|buffer| buffer.to_vec());
                        }
                    }
                    let mut done = Vec::new();
                    io.wait(Nanos::NEVER, &mut done);
                    done.into_iter().for_each(|done| store.on_io(io, done));
                }
            }
        }
    }

    /// Writes a checkpoint; false where that failed.
    pub(super) fn end_with_checkpoint(&mut self, io: &mut dyn Io) -> bool {
        let Some(log) = self.log_mut() else { return true };
        log.checkpoint_now(false);
        let before = self.checkpoints.ended;
        let failed =
            |core: &Core| core.notices.iter().any(|n| matches!(n, super::Notice::CheckpointFailed));
        while self.checkpoints.ended == before && !failed(self) {
            self.turn(io);
        }
        self.checkpoints.ended > before
    }

    /// One wait and what follows from it, while no client is served.
    pub fn turn(&mut self, io: &mut dyn Io) {
        self.turn_by(io, Nanos::NEVER);
    }

    /// The same; the wait ends at `latest`, should nothing else end it.
    pub(super) fn turn_by(&mut self, io: &mut dyn Io, latest: Nanos) {
        self.resume(io);
        let is_answered = self.delayed.front().is_some_and(|(at, _)| *at <= self.now);
        self.on_tick(io);
        // A late home's answer may be all that was waited for.
        let deadline = if is_answered { self.now } else { self.next_deadline() };
        let mut done = Vec::new();
        self.sleep_until(deadline.min(latest));
        io.wait(deadline.min(latest), &mut done);
        self.resume(io);
        done.into_iter().for_each(|done| self.on_io(io, done));
        self.poll_homes(io);
        self.count_ended(io.now());
    }
}

fn open_levels(
    io: &mut dyn Io,
    spec: &CacheSpec,
    plans: &[LevelPlan],
    identity: StoreIdentity,
    rng: &mut Rng,
) -> Result<Found, CoreError> {
    assert_eq!(plans.len(), spec.levels.len(), "a plan per level");
    let seqs = SeqSource::new(Seq(1));
    let (mut levels, mut nvm, mut log) = (Vec::new(), None, None);
    let has_log = plans.iter().any(|plan| matches!(plan, LevelPlan::Ssd { .. }));
    for (index, plan) in plans.iter().enumerate() {
        let tag = index as u8 + 1;
        let failed = |error| CoreError::Store { level: index, error };
        levels.push(match plan {
            LevelPlan::Memory { slots } => {
                let slab = Slab::new(*slots, spec.block_size);
                Level::Memory(slab.ok_or(CoreError::Memory { level: index, slots: *slots })?)
            }
            LevelPlan::Nvm { .. } if nvm.is_some() => return Err(only_one("nvm")),
            LevelPlan::Ssd { .. } if log.is_some() => return Err(only_one("ssd")),
            LevelPlan::Nvm { region, format, is_strict, known } => {
                // What is lost is kept by a log.
                let is_strict = *is_strict || !has_log;
                let config = NvmConfig { region: *region, identity, is_strict, token_tag: tag };
                if *format {
                    NvmStore::format(io, &config, rng.next_u64()).map_err(failed)?;
                }
                let (store, found) = NvmStore::open(io, config, seqs.clone()).map_err(failed)?;
                if let Some(known) = known.filter(|_| !*format) {
                    store.check_age(known).map_err(failed)?;
                }
                nvm = Some(found);
                Level::Nvm(Box::new(store))
            }
            LevelPlan::Ssd { region, format, segments, is_strict, known, .. } => {
                let config = LogConfig::new(*region, identity, tag);
                let (segments, is_strict) = (*segments, *is_strict);
                let config = LogConfig { segments, is_strict, ..config };
                if *format {
                    LogStore::format(io, &config, rng.next_u64()).map_err(failed)?;
                }
                let (store, found) = LogStore::open(io, config, seqs.clone()).map_err(failed)?;
                if let Some(known) = known.filter(|_| !*format) {
                    store.check_age(known, &found).map_err(failed)?;
                }
                log = Some(found);
                Level::Ssd(Box::new(store))
            }
        });
    }
    Ok((levels, nvm, log))
}

/// A start cannot go on without a block that no slot of its level was left for.
fn unreadable(level: usize, entry: RecoveredEntry) -> CoreError {
    let (slot, key) = (Some(entry.slot), Some(entry.key));
    let (offset, length, stored, computed) = (0, 0, 0, 0);
    let (disk, what) = ("the level".to_owned(), "data block without a slot");
    let info = CorruptInfo { disk, offset, length, what, slot, key, stored, computed };
    CoreError::Store { level, error: StoreError::Corrupt(info) }
}

fn only_one(kind: &str) -> CoreError {
    CoreError::Spec(format!("a node has at most one level of kind `{kind}`"))
}

/// The stores know best how many slots they have; guarantees shrink with them.
fn with_slots(mut spec: CacheSpec, levels: &[Level]) -> CacheSpec {
    for (index, level) in levels.iter().enumerate() {
        let slots = match level {
            Level::Memory(_) => continue,
            Level::Nvm(store) => store.slot_count(),
            Level::Ssd(store) => store.slot_count(),
        };
        let before = std::mem::replace(&mut spec.levels[index].slots, slots);
        if slots < before {
            for class in &mut spec.classes {
                let share = &mut class.shares[index];
                let kept = u64::from(share.guaranteed) * u64::from(slots) / u64::from(before);
                share.guaranteed = kept as u32;
            }
        }
    }
    spec
}
