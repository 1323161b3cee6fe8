//! A home in the cloud: the production state machine over a simulated journal, map file and store.
//!
//! How: whenever the shard asks for ends, one action of the home is performed, any one that may be
//! next; its clock is its own, and runs on to the next deadline when there is nothing else to do.
//! Each action burns the machine's fuse when it begins and when it has taken effect, so that the
//! power may fail in between. The store outlives the node's disks; a node that was replaced may go
//! on for a while without knowing.
//! Invariant: the same seed and the same questions give the same ends and the same store.
//! Cost: what the state machine does, and a step per question.
//! Not for: threads, files and real stores; the room's own tests and those through the binary are.

mod older;

use crate::plan::{BLOCK, BLOCKS, Disk};
use layby_cloud::simulated::{SimDeed, SimDisks, SimFaults, SimStore, SimWorld};
use layby_cloud::{
    Action, Compression, ConditionalPuts, Limits, Link, Plan, Restored, SUPERBLOCK_KEY, Volume,
    VolumeUuid, create,
};
use layby_engine::backing::RemoteBacking;
use layby_engine::control::{CommandError, OpenRemote};
use layby_engine::io::{Buffer, Deed, Fuse, OperationKind, Step, Waker};
use layby_types::{Backing, BackingDone, BackingOperation, Nanos, Rng};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the journal: so few that it runs full.
const JOURNAL_BYTES: u64 = 64 * 4096;
/// How far the clock goes on from one question to the next at most.
const TICK_NANOS_MAX: u64 = 200_000;
/// Steps that a second node may take until it has to know that the volume is not its own.
const RIVAL_STEPS_MAX: u32 = 4000;
/// Steps that a node which was replaced takes at most.
const GHOST_STEPS_MAX: u32 = 3000;

/// See the file's header; clones are one home.
#[derive(Clone)]
pub(crate) struct CloudHome(Arc<Mutex<State>>);

/// A node that was replaced and does not know.
struct Ghost {
    volume: Volume<Buffer>,
    world: SimWorld,
    steps_left: u32,
}

struct State {
    rng: Rng,
    index: usize,
    limits: Limits,
    /// Which node serves it: each replaces the one before.
    node: u8,
    clock: Nanos,
    world: SimWorld,
    volume: Option<Volume<Buffer>>,
    /// Calls that have not ended.
    calls: usize,
    is_draining: bool,
    waker: Option<Waker>,
    fuse: Arc<Fuse>,
    ghost: Option<Ghost>,
    /// A copy of what the node had once.
    older: Option<older::Older>,
    /// What the next power cut is to spoil in the store, by a draw, and what the last one did.
    spoils: Option<u64>,
    spoiled: Option<&'static str>,
    /// When the volume was opened last: what it held then has no older age.
    opened: Nanos,
    /// At these times of the clock, all changes up to these of the oracle's had been acknowledged.
    marks: VecDeque<(Nanos, u32)>,
    /// All changes up to this one of the oracle's are in the store, as the volume says.
    stored: u32,
}

impl CloudHome {
    /// A home of zeros for volume `index`, whose chance follows from `seed`.
    pub(crate) fn new(index: usize, seed: u64, fuse: Arc<Fuse>) -> CloudHome {
        let mut rng = Rng::new(seed ^ 0xfa7 ^ (index as u64) << 60);
        let limits = Limits {
            segment_bytes: [16 << 10, 40 << 10, 256 << 10][rng.below(3) as usize],
            dirty_age_max: Nanos::from_millis([1, 5, 50][rng.below(3) as usize]),
            uploads_max: 1 + rng.below(4) as u16,
            commit_interval: Nanos::from_micros([1, 1000, 10_000][rng.below(3) as usize]),
            checkpoint_segments: 1 + rng.below(6) as u32,
            // Drawn apart, so that what older seeds live through stays as it was.
            read_cache_bytes: BLOCK * [0, 5, 64][Rng::new(seed).below(3) as usize],
            ..Limits::DEFAULT
        };
        let mut world = SimWorld::new(rng.next_u64(), SimDisks::default());
        world.patience = [0, 6, 40][rng.below(3) as usize];
        world.duplicates = rng.below(2) * 10;
        world.cache_faults = world.duplicates / 2;
        let mut state = State {
            rng,
            index,
            limits,
            node: 1,
            clock: Nanos::ZERO,
            world,
            volume: None,
            calls: 0,
            is_draining: false,
            waker: None,
            fuse,
            ghost: None,
            older: None,
            spoils: None,
            spoiled: None,
            opened: Nanos::ZERO,
            marks: VecDeque::new(),
            stored: 0,
        };
        state.new_disks();
        CloudHome(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A power cut unwinds through it and leaves what devices and store have.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The power is cut.
    pub(crate) fn crash(&self) {
        let state = &mut *self.state();
        state.forget();
        state.world.cut_power();
        // A node that was replaced and does not know names segments without a start.
        if let (Some(draw), None) = (state.spoils.take(), &state.ghost) {
            state.spoiled = state.world.spoil_unnamed(&mut Rng::new(draw));
        }
    }

    /// Whether the store has a segment that no superblock names.
    pub(crate) fn has_unnamed(&self) -> bool {
        !self.state().world.store.unnamed().is_empty()
    }

    /// The next power cut meets a store that has spoiled a segment which no superblock names.
    pub(crate) fn spoil_at_crash(&self, draw: u64) {
        self.state().spoils = Some(draw);
    }

    /// What that power cut met so.
    pub(crate) fn spoiled(&self) -> Option<&'static str> {
        self.state().spoiled.take()
    }

    /// The node's disks are gone, and another node is to take the volume. With `is_ghost` the old
    /// one goes on, and does not know.
    pub(crate) fn destroy(&self, is_ghost: bool) {
        let state = &mut *self.state();
        let volume = state.forget();
        let mut world = SimWorld::new(state.rng.next_u64(), SimDisks::default());
        (world.patience, world.duplicates) = (state.world.patience, state.world.duplicates);
        world.cache_faults = state.world.cache_faults;
        world.faults = state.world.faults;
        let mut old = std::mem::replace(&mut state.world, world);
        // One that was still asking for the volume would take it from the next.
        let is_serving = |volume: &Volume<Buffer>| volume.status().link == Link::Up;
        if is_ghost && let Some(volume) = volume.filter(is_serving) {
            std::mem::swap(&mut old.store, &mut state.world.store);
            state.ghost = Some(Ghost { volume, world: old, steps_left: GHOST_STEPS_MAX });
        } else {
            // Its requests to the store may still arrive.
            old.cut_power();
            state.world.inherit(old);
        }
        state.node += 1;
        state.new_disks();
    }

    /// How often the store fails from now on.
    pub(crate) fn set_faults(&self, faults: SimFaults) {
        self.state().world.faults = faults;
    }

    /// The link is there again.
    pub(crate) fn mend_link(&self) {
        self.state().world.faults.is_cut = false;
    }

    /// The journal's next write or sync fails, or the map file's next change.
    pub(crate) fn fail_file(&self, deed: SimDeed) {
        self.state().world.file_fault = Some(deed);
    }

    /// All is to go up, or full segments only.
    pub(crate) fn set_draining(&self, is_draining: bool) {
        let state = &mut *self.state();
        state.volume.iter_mut().for_each(|volume| volume.set_draining(is_draining));
        state.is_draining = is_draining;
        state.wake();
    }

    /// Whether the store has all that was written.
    pub(crate) fn is_drained(&self) -> bool {
        self.state().volume.as_ref().is_some_and(Volume::is_drained)
    }

    /// What the volume says of itself.
    pub(crate) fn describe(&self) -> String {
        let state = &*self.state();
        let status = state.volume.as_ref().map(Volume::status);
        format!("{} calls wait, {status:?}", state.calls)
    }

    /// All changes that the oracle knows up to `stamp` as acknowledged are in the journal now;
    /// `stamp` counts on.
    pub(crate) fn mark(&self, stamp: u32) {
        self.state().mark(stamp);
    }

    /// All changes of the oracle's up to this one are in the store, as the volume says.
    pub(crate) fn stored(&self) -> u32 {
        self.state().stored
    }

    /// The volume's bytes from the store alone, zeros where there is none.
    pub(crate) fn restore(&self) -> Result<Vec<u8>, String> {
        let state = &*self.state();
        let store = &state.world.store;
        let mut bytes = vec![0; (BLOCKS * BLOCK) as usize];
        if !store.objects.contains_key(SUPERBLOCK_KEY) {
            return Ok(bytes);
        }
        let mut fetch = |key: &str, range| store.get(key, range).map(|(bytes, _)| bytes);
        let restored = Restored::open(&mut fetch).map_err(|error| error.to_string())?;
        let mut sink = |offset: u64, run: &[u8]| {
            bytes[offset as usize..][..run.len()].copy_from_slice(run);
            Ok(())
        };
        let pass = restored.copy(&mut fetch, &mut sink).map_err(|error| error.to_string())?;
        match pass.damaged.first() {
            None => Ok(bytes),
            Some((range, key)) => Err(format!("bytes {range:?} are damaged in `{key}`")),
        }
    }

    /// A second node finds the volume, was not told to take it, and must leave it alone.
    pub(crate) fn rival(&self) -> Result<(), String> {
        let state = &mut *self.state();
        if !state.world.store.objects.contains_key(SUPERBLOCK_KEY) || state.world.faults.is_cut {
            return Ok(());
        }
        let plan = Plan { takeover: false, ..state.plan(0) };
        let disks = SimDisks::new(JOURNAL_BYTES, create(&plan, JOURNAL_BYTES, 1));
        let mut world = SimWorld::new(state.rng.next_u64(), disks);
        let mut rival = open(plan, &mut world, Nanos::ZERO)?;
        std::mem::swap(&mut world.store, &mut state.world.store);
        let before = versions(&world.store);
        let mut left = RIVAL_STEPS_MAX;
        while left > 0 {
            step(&mut rival, &mut world, Nanos::ZERO, &mut |_| ());
            // One that has heard no goes on for a little, to see what it does.
            left = if rival.is_lost() { left.min(20) } else { left } - 1;
        }
        std::mem::swap(&mut world.store, &mut state.world.store);
        match rival.is_lost() && versions(&state.world.store) == before {
            true => Ok(()),
            false => Err("a second node takes a volume that is not its own".to_owned()),
        }
    }
}

/// The volume's objects with their versions; what a probe puts is no part of it.
fn versions(store: &SimStore) -> Vec<(String, u64)> {
    let objects = store.objects.iter().filter(|(key, _)| !key.starts_with("probes/"));
    objects.map(|(key, (_, version))| (key.clone(), *version)).collect()
}

/// Opens a volume from what its node has left.
fn open(plan: Plan, world: &mut SimWorld, now: Nanos) -> Result<Volume<Buffer>, String> {
    let map_file = world.disks.map_file.clone();
    // No two openings draw the same, as those of nodes do not.
    let seed = world.rng.next_u64();
    let disks = &world.disks;
    let mut read = |at, length| disks.read(at, length);
    let opened = Volume::open(plan, &map_file, now, seed, &mut read);
    let opened = opened.map_err(|error| error.to_string())?;
    world.disks.map_file = opened.map_file;
    Ok(opened.volume)
}

/// Performs one action and answers whether there was any; `note` hears of deeds, and may not come
/// back.
fn step(
    volume: &mut Volume<Buffer>,
    world: &mut SimWorld,
    now: Nanos,
    note: &mut dyn FnMut((SimDeed, bool)),
) -> bool {
    volume.on_tick(now);
    let actions = volume.take_actions();
    let begun: Vec<SimDeed> = actions.iter().map(|(_, action)| deed_of(action)).collect();
    world.take(actions);
    begun.iter().for_each(|deed| note((*deed, false)));
    let end = world.step();
    if let Some(deed) = world.deed {
        note((deed, true));
    }
    let is_some = end.is_some();
    if let Some((id, end)) = end {
        volume.on_end(id, end);
    }
    is_some
}

fn deed_of(action: &Action) -> SimDeed {
    match action {
        Action::JournalWrite { .. } => SimDeed::JournalWritten,
        Action::JournalSync => SimDeed::JournalSynced,
        Action::MapAppend(_) | Action::MapReplace(_) => SimDeed::MapWritten,
        Action::Upload { .. } => SimDeed::Put,
        Action::Object(layby_cloud::Request::Put { .. }) => SimDeed::Put,
        _ => SimDeed::Asked,
    }
}

/// A deed as the machine's fuse counts it.
fn fuse_step(index: usize, (deed, is_done): (SimDeed, bool)) -> Step {
    let (disk, kind) = match deed {
        SimDeed::JournalWritten => (Disk::Journal(index), OperationKind::Write),
        SimDeed::JournalSynced => (Disk::Journal(index), OperationKind::Sync),
        SimDeed::MapWritten => (Disk::Map(index), OperationKind::Write),
        SimDeed::Put => (Disk::Store(index), OperationKind::Write),
        SimDeed::Asked => (Disk::Store(index), OperationKind::Read),
    };
    let deed = if is_done { Deed::Ended(kind) } else { Deed::Begun(kind) };
    Step { disk: Some(disk.number()), deed }
}

impl State {
    fn plan(&self, node: u8) -> Plan {
        let all = [Compression::None, Compression::Zstd(1), Compression::Lz4];
        Plan {
            volume: VolumeUuid([1 + self.index as u8; 16]),
            name: "far".to_owned(),
            node: VolumeUuid([node; 16]),
            size_bytes: BLOCKS * BLOCK,
            block_bytes: BLOCK as u32,
            compression: all[self.clock.0 as usize % 3],
            takeover: true,
            was_found: false,
            puts: ConditionalPuts::Unknown,
            needs_conditions: true,
            limits: self.limits,
        }
    }

    fn new_disks(&mut self) {
        let files = create(&self.plan(self.node), JOURNAL_BYTES, self.rng.next_u64());
        self.world.disks = SimDisks::new(JOURNAL_BYTES, files);
    }

    /// What a node forgets when it goes.
    fn forget(&mut self) -> Option<Volume<Buffer>> {
        (self.waker, self.calls, self.is_draining) = (None, 0, false);
        let mut volume = self.volume.take();
        if let Some(volume) = &mut volume {
            self.world.take(volume.take_actions());
        }
        volume
    }

    /// Whoever waits is to be asked again.
    fn wake(&self) {
        let is_busy = self.calls > 0 || self.is_draining;
        if let Some(waker) = self.waker.as_ref().filter(|_| is_busy) {
            waker.wake();
        }
    }

    /// Performs one action, of a node that was replaced as well.
    fn go_on(&mut self) {
        self.haunt();
        let Some(volume) = &mut self.volume else { return };
        self.clock = self.clock.saturating_add(Nanos(1 + self.rng.below(TICK_NANOS_MAX)));
        let (index, fuse) = (self.index, self.fuse.clone());
        let mut note = |deed| fuse.burn(fuse_step(index, deed));
        let is_some = step(volume, &mut self.world, self.clock, &mut note);
        let deadline = volume.next_deadline();
        // Its thread would ask again and again without a rest.
        let is_asleep = is_some || deadline > self.clock;
        assert!(is_asleep, "a volume with nothing to do asks for a turn: {:?}", volume.status());
        if !is_some && deadline != Nanos::NEVER && self.rng.chance(1, 4) {
            self.clock = self.clock.max(deadline);
        }
    }

    fn haunt(&mut self) {
        let Some(ghost) = self.ghost.as_mut().filter(|_| self.rng.chance(1, 2)) else { return };
        std::mem::swap(&mut ghost.world.store, &mut self.world.store);
        step(&mut ghost.volume, &mut ghost.world, self.clock, &mut |_| ());
        std::mem::swap(&mut ghost.world.store, &mut self.world.store);
        ghost.steps_left -= 1;
        if ghost.steps_left == 0 {
            self.ghost = None;
        }
    }

    /// See [`CloudHome::mark`].
    fn mark(&mut self, stamp: u32) {
        let Some(volume) = self.volume.as_mut() else { return };
        // Ages are told as of the last time that it heard.
        volume.on_tick(self.clock);
        if volume.is_drained() {
            self.stored = stamp;
            self.marks.clear();
            return;
        }
        let status = volume.status();
        let since = Nanos(self.clock.0.saturating_sub(status.dirty_age.0));
        if self.marks.back().is_none_or(|(at, _)| *at < self.clock) {
            self.marks.push_back((self.clock, stamp));
        }
        // What was dirty when the volume was opened counts from then, and is older.
        if status.dirty_bytes > 0 && since > self.opened {
            while let Some((_, stamp)) = self.marks.pop_front_if(|(at, _)| *at < since) {
                self.stored = self.stored.max(stamp);
            }
        }
    }
}

impl fmt::Debug for CloudHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a home in the cloud")
    }
}

impl OpenRemote for CloudHome {
    fn name(&self) -> String {
        "far".to_owned()
    }

    fn open(&self, waker: Waker) -> Result<RemoteBacking, CommandError> {
        let state = &mut *self.state();
        let plan = state.plan(state.node);
        let opened = open(plan, &mut state.world, state.clock);
        // Whatever fails leaves files that open: there is no rot below them.
        let volume = opened.unwrap_or_else(|cause| panic!("the volume does not open: {cause}"));
        state.volume = Some(volume);
        state.waker = Some(waker);
        state.opened = state.clock;
        state.clock = state.clock.saturating_add(Nanos(1));
        state.marks.clear();
        Ok(Box::new(self.clone()))
    }
}

impl Backing<Buffer> for CloudHome {
    fn submit(&mut self, token: u64, operation: BackingOperation<Buffer>) {
        let state = &mut *self.state();
        let volume = state.volume.as_mut().expect("who submits has opened it");
        state.calls += 1;
        volume.submit(token, operation);
        state.wake();
    }

    fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        let state = &mut *self.state();
        let mut done = state.volume.as_mut()?.poll();
        if done.is_none() {
            state.go_on();
            done = state.volume.as_mut()?.poll();
        }
        state.calls -= usize::from(done.is_some());
        state.wake();
        done
    }

    fn poll_at_hand(&mut self) -> Option<Range<u64>> {
        self.state().volume.as_mut()?.poll_at_hand()
    }

    fn name(&self) -> &str {
        "far"
    }

    fn stop_waiting(&mut self) {
        let state = &mut *self.state();
        state.volume.iter_mut().for_each(Volume::stop_waiting);
        state.wake();
    }

    fn give_up_reads(&mut self, from: u64) {
        let state = &mut *self.state();
        state.volume.iter_mut().for_each(|volume| volume.give_up_reads_behind(from));
        state.wake();
    }
}
