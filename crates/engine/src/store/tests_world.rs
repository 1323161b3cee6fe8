//! A small cache over both stores and a plain model, for random histories with crashes.
//!
//! Each key has numbered versions; the model knows the latest one that was answered, and the
//! floor: the oldest one that a crash may leave. The backing store
//! is an array of versions, always durable.

use super::{
    AppendEntry, Freed, LogConfig, LogStore, Loser, NvmConfig, NvmStore, Recovered, Region,
    SeqSource, SlotInfo, SlotView, StoreEvent, StoreIdentity, Stream, SyncScope, Ticket, resolve,
};
use crate::check::{StoreKind, check_store};
use crate::io::{CrashMode, DiskId, Io, SimIo};
use layby_cache::discards::{DiscardDelay, DiscardMode};
use layby_types::{BlockIndex, BlockKey, BlockSize, Nanos, Rng, Seq, ShardIndex, Slot, VolumeId};
use std::collections::BTreeMap;

mod cleaning;
mod dropped;
mod trims;

const BLOCK: usize = 4096;
const LOG_TAG: u8 = 1;
const NVM_TAG: u8 = 2;

/// What is under the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upper {
    None,
    PageCache,
    Persistent,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) keys: usize,
    pub(super) log_blocks: u64,
    pub(super) nvm_blocks: u64,
    pub(super) upper: Upper,
    pub(super) discard: DiscardMode,
    /// Whether the log has all streams, or those of few segments.
    pub(super) all_streams: bool,
    /// Whether cleaning drops and destages.
    pub(super) owns_cleaning: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Log(Slot),
    Nvm(Slot),
}

#[derive(Debug)]
enum Pending {
    Put { key: usize, version: u64, dirty: bool, durable: bool, to: Home },
    Trim { first: usize, count: usize, version: u64 },
    Flush { snapshot: Vec<u64>, left: u8 },
    Peer(u64),
    Read { keys: Vec<usize> },
}

#[derive(Debug)]
struct Undone {
    seq: Seq,
    first: usize,
    count: usize,
    zeroed: bool,
    done_at: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    key: usize,
    dirty: bool,
}

struct View<'a>(&'a [Option<Owner>]);

impl SlotView for View<'_> {
    fn slot(&self, slot: Slot) -> Option<SlotInfo> {
        let owner = (*self.0.get(slot.0 as usize)?)?;
        Some(SlotInfo { key: key_of(owner.key), dirty: owner.dirty })
    }
}

pub(super) struct World {
    pub(super) io: SimIo,
    pub(super) rng: Rng,
    pub(super) size: Size,
    pub(super) log_disk: DiskId,
    pub(super) nvm_disk: Option<DiskId>,
    pub(super) log: LogStore,
    pub(super) nvm: Option<NvmStore>,
    log_owners: Vec<Option<Owner>>,
    nvm_owners: Vec<Option<Owner>>,
    homes: Vec<Option<Home>>,
    busy: Vec<bool>,
    backing: Vec<u64>,
    current: Vec<u64>,
    floor: Vec<u64>,
    versions: u64,
    undone: Vec<Undone>,
    /// Keys to be written below, each once so many forgets are durable.
    throughs: Vec<(usize, u64)>,
    trims: BTreeMap<u64, u64>,
    tickets: BTreeMap<u64, Pending>,
    ticket_next: u64,
    clean_shutdown: bool,
    /// What checkpoints ask for is answered late, as by a slow backing store.
    pub(super) is_slow_below: bool,
    peers_waiting: Vec<Ticket>,
    /// The next crash costs every structure of the log one sector, and every NVM slot header itself
    /// or its copy.
    pub(super) loses_sectors: bool,
    pub(super) loses_page: bool,
    /// Slots whose destage cleaning waits for.
    left: Vec<Slot>,
    /// Torn records, segments cleaned, checkpoints, blocks that cleaning dropped, those that it had
    /// destaged so far, and pages lost.
    pub(super) seen: [u64; 6],
}

pub(super) fn key_of(key: usize) -> BlockKey {
    BlockKey::new(VolumeId(1 + key as u32 % 2), BlockIndex(key as u64 / 2))
}

fn content(key: usize, version: u64) -> Vec<u8> {
    let mut bytes = vec![version as u8; BLOCK];
    bytes[..8].copy_from_slice(&(key as u64).to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn version_in(bytes: &[u8], key: usize) -> u64 {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!(word(0), key as u64, "another block's bytes");
    assert_eq!(bytes, content(key, word(8)), "mixed bytes");
    word(8)
}

fn region(disk: DiskId, blocks: u64) -> Region {
    let block_size = BlockSize::MIN;
    Region { disk, base: BLOCK as u64, length: blocks * BLOCK as u64, block_size }
}

const IDENTITY: StoreIdentity =
    StoreIdentity { node: [5; 16], shard: ShardIndex(3), shard_count: 4 };

fn log_config(disk: DiskId, size: Size) -> LogConfig {
    let mut config = LogConfig::new(region(disk, size.log_blocks), IDENTITY, LOG_TAG);
    config.segments.bytes = 16 * BLOCK as u64;
    config.segments.has_all_streams = Some(size.all_streams);
    config.segments.discard.mode = size.discard;
    config.segments.discard.delay = DiscardDelay::Fixed(Nanos::from_millis(1));
    config.checkpoint_bytes = size.log_blocks * BLOCK as u64 / 2;
    config
}

fn nvm_config(disk: DiskId, size: Size) -> NvmConfig {
    let region = region(disk, size.nvm_blocks);
    NvmConfig { region, identity: IDENTITY, is_strict: false, token_tag: NVM_TAG }
}

impl World {
    pub(super) fn new(seed: u64, size: Size) -> Self {
        let mut io = SimIo::new(seed);
        io.set_stepwise(seed % 4 == 3);
        let log_disk = io.add_disk("ssd", (size.log_blocks + 2) * BLOCK as u64);
        let nvm_length = (size.nvm_blocks + 2) * BLOCK as u64;
        let nvm_disk = match size.upper {
            Upper::None => None,
            Upper::PageCache => Some(io.add_disk("nvm", nvm_length)),
            Upper::Persistent => Some(io.add_persistent_memory("nvm", nvm_length)),
        };
        LogStore::format(&mut io, &log_config(log_disk, size), seed | 1).expect("log formats");
        if let Some(disk) = nvm_disk {
            NvmStore::format(&mut io, &nvm_config(disk, size), seed | 1).expect("nvm formats");
        }
        let (log, nvm, ..) = open(&mut io, log_disk, nvm_disk, size);
        World {
            log_owners: vec![None; log.slot_count() as usize],
            nvm_owners: vec![None; nvm.as_ref().map_or(0, NvmStore::slot_count) as usize],
            io,
            rng: Rng::new(seed ^ 0x5eed),
            size,
            log_disk,
            nvm_disk,
            log,
            nvm,
            homes: vec![None; size.keys],
            busy: vec![false; size.keys],
            backing: vec![0; size.keys],
            current: vec![0; size.keys],
            floor: vec![0; size.keys],
            versions: 0,
            undone: Vec::new(),
            throughs: Vec::new(),
            trims: BTreeMap::new(),
            tickets: BTreeMap::new(),
            ticket_next: 0,
            clean_shutdown: false,
            is_slow_below: false,
            peers_waiting: Vec::new(),
            loses_sectors: false,
            loses_page: false,
            left: Vec::new(),
            seen: [0; 6],
        }
    }

    fn ticket(&mut self, pending: Pending) -> Ticket {
        self.ticket_next += 1;
        self.tickets.insert(self.ticket_next, pending);
        Ticket(self.ticket_next)
    }

    fn version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    fn draw_key(&mut self) -> Option<usize> {
        let key = self.rng.below(self.size.keys as u64) as usize;
        (!self.busy[key]).then_some(key)
    }

    /// One random step: an operation, or the passing of time.
    pub(super) fn step(&mut self) {
        match self.rng.below(100) {
            0..20 => self.write_log(),
            20..38 => self.write_nvm(),
            38..44 => self.move_to_log(),
            44..48 => self.promote_to_nvm(),
            48..56 => self.destage(),
            56..62 => self.evict(),
            62..64 => self.write_through(),
            64..67 => self.trim(),
            67..70 => self.finish_trims(),
            70..73 => self.flush(),
            73..78 => self.read(),
            78..79 => self.log.checkpoint_now(false),
            _ => self.turn(),
        }
        self.drain();
    }

    fn free_slot(&mut self, nvm: bool) -> Option<Slot> {
        let owners = if nvm { &self.nvm_owners } else { &self.log_owners };
        let free: Vec<usize> = (0..owners.len()).filter(|slot| owners[*slot].is_none()).collect();
        let pick = self.rng.below(free.len().max(1) as u64) as usize;
        free.get(pick).map(|slot| Slot(*slot as u32))
    }

    /// Puts a version of a key into a level; into its own slot if it is there already.
    fn put(&mut self, key: usize, version: u64, dirty: bool, nvm: bool) {
        let own = match self.homes[key] {
            Some(Home::Log(slot)) if !nvm => Some(slot),
            Some(Home::Nvm(slot)) if nvm => Some(slot),
            _ => self.free_slot(nvm),
        };
        let Some(slot) = own else { return };
        let from_nvm = matches!(self.homes[key], Some(Home::Nvm(_)));
        let durable = self.rng.chance(1, 4) || (from_nvm && !nvm);
        let to = if nvm { Home::Nvm(slot) } else { Home::Log(slot) };
        let owners = if nvm { &mut self.nvm_owners } else { &mut self.log_owners };
        let before = owners[slot.0 as usize];
        let dirty_now = dirty || before.is_some_and(|owner| owner.dirty);
        owners[slot.0 as usize] = Some(Owner { key, dirty: dirty_now });
        self.busy[key] = true;
        let ticket = self.ticket(Pending::Put { key, version, dirty, durable, to });
        let data = content(key, version);
        if nvm {
            let store = self.nvm.as_mut().expect("only with an upper level");
            store.store(&mut self.io, ticket, &[(slot, key_of(key), dirty)], &data, durable);
        } else {
            let stream = if dirty { Stream::Write } else { Stream::Promote };
            let entry = AppendEntry { slot, key: key_of(key), dirty };
            self.log.append(&mut self.io, ticket, stream, &[entry], &data, durable);
        }
    }

    pub(super) fn write_log(&mut self) {
        let Some(key) = self.draw_key() else { return };
        let version = self.version();
        self.put(key, version, true, false);
    }

    fn write_nvm(&mut self) {
        let Some(key) = self.draw_key().filter(|_| self.nvm.is_some()) else { return };
        let version = self.version();
        self.put(key, version, true, true);
    }

    fn move_to_log(&mut self) {
        let Some(key) = self.draw_key() else { return };
        match self.homes[key] {
            Some(Home::Nvm(slot)) => {
                let dirty = self.nvm_owners[slot.0 as usize].is_some_and(|owner| owner.dirty);
                self.put(key, self.current[key], dirty, false);
            }
            None => self.put(key, self.current[key], false, false),
            Some(Home::Log(_)) => {}
        }
    }

    fn promote_to_nvm(&mut self) {
        let Some(key) = self.draw_key().filter(|_| self.nvm.is_some()) else { return };
        if let Some(Home::Log(slot)) = self.homes[key] {
            let dirty = self.log_owners[slot.0 as usize].is_some_and(|owner| owner.dirty);
            self.put(key, self.current[key], dirty, true);
        }
    }

    /// Newer bytes may not go below a tombstone that recovery might still redo.
    fn may_go_below(&self, key: usize) -> bool {
        let durable = self.log.forgets_durable();
        !self.undone.iter().any(|undone| {
            let inside = key >= undone.first && key < undone.first + undone.count;
            inside && undone.done_at.is_none_or(|at| durable < at)
        })
    }

    fn destage(&mut self) {
        let Some(key) = self.draw_key().filter(|key| self.may_go_below(*key)) else { return };
        if self.floor[key] != self.current[key] {
            return;
        }
        let owner = match self.homes[key] {
            Some(Home::Log(slot)) => {
                self.log.on_dirty_changed(slot);
                &mut self.log_owners[slot.0 as usize]
            }
            Some(Home::Nvm(slot)) => {
                self.nvm.as_mut().expect("it has a slot there").set_clean(slot);
                &mut self.nvm_owners[slot.0 as usize]
            }
            None => return,
        };
        owner.as_mut().expect("a home has an owner").dirty = false;
        self.backing[key] = self.current[key];
    }

    fn evict(&mut self) {
        let Some(key) = self.draw_key() else { return };
        match self.homes[key] {
            Some(Home::Log(slot)) if self.log_owners[slot.0 as usize].is_some_and(is_clean) => {
                self.homes[key] = None;
                self.log_owners[slot.0 as usize] = None;
                self.log.free(slot);
            }
            Some(Home::Nvm(slot)) if self.nvm_owners[slot.0 as usize].is_some_and(is_clean) => {
                self.homes[key] = None;
                self.nvm_owners[slot.0 as usize] = None;
                self.evict_from_nvm(key, slot);
            }
            _ => {}
        }
    }

    fn evict_from_nvm(&mut self, key: usize, slot: Slot) {
        self.log.forget(key_of(key));
        let how = Freed::Evicted { forgets_issued: self.log.forgets_issued() };
        self.nvm.as_mut().expect("it has a slot there").free(slot, how);
    }

    fn write_through(&mut self) {
        let Some(key) = self.draw_key().filter(|key| self.may_go_below(*key)) else { return };
        if self.homes[key].is_none() {
            self.busy[key] = true;
            self.log.forget(key_of(key));
            self.throughs.push((key, self.log.forgets_issued()));
        }
    }

    /// Writes below, past both levels, where the forget of older records is durable.
    fn finish_write_throughs(&mut self) {
        let durable = self.log.forgets_durable();
        let (ready, rest): (Vec<_>, _) =
            self.throughs.drain(..).partition(|(_, forget)| *forget <= durable);
        self.throughs = rest;
        for (key, _) in ready {
            let version = self.version();
            self.backing[key] = version;
            self.settle_key(key, version, true);
        }
    }

    fn flush(&mut self) {
        let left = 1 + u8::from(self.nvm.is_some());
        let ticket = self.ticket(Pending::Flush { snapshot: self.current.clone(), left });
        self.log.sync(&mut self.io, ticket);
        if let Some(nvm) = &mut self.nvm {
            nvm.sync(&mut self.io, ticket, SyncScope::Stores);
        }
    }

    fn read(&mut self) {
        let mut keys = Vec::new();
        for key in 0..self.size.keys {
            if let Some(Home::Log(_)) = self.homes[key].filter(|_| self.rng.chance(1, 8)) {
                keys.push(key);
            }
            if let (Some(Home::Nvm(slot)), false) = (self.homes[key], self.busy[key]) {
                let bytes = self.nvm.as_ref().expect("it has a slot there").read(slot);
                assert_eq!(version_in(bytes.expect("sound"), key), self.current[key]);
            }
        }
        let slots = keys.iter().filter_map(|key| match self.homes[*key] {
            Some(Home::Log(slot)) => Some(slot),
            _ => None,
        });
        let slots: Vec<Slot> = slots.collect();
        if slots.is_empty() {
            return;
        }
        let ticket = self.ticket(Pending::Read { keys });
        self.log.read(&mut self.io, ticket, &slots);
    }

    /// Lets time pass and operations end.
    pub(super) fn turn(&mut self) {
        let mut done = Vec::new();
        let patience = Nanos(self.io.now().0 + self.rng.below(2_000_000));
        self.io.wait(patience, &mut done);
        for done in done {
            match (done.token.0 >> 56) as u8 {
                LOG_TAG => self.log.on_io(&mut self.io, done),
                _ => self.nvm.as_mut().expect("its token").on_io(&mut self.io, done),
            }
            self.drain();
        }
        self.finish_write_throughs();
        self.end_left();
        if !self.peers_waiting.is_empty() && self.rng.chance(1, 50) {
            core::mem::take(&mut self.peers_waiting).into_iter().for_each(|t| self.on_synced(t));
        }
        let now = self.io.now();
        if self.log.next_deadline() <= now {
            self.log.on_tick(&mut self.io, now, &View(&self.log_owners));
        }
        if let Some(nvm) = &mut self.nvm {
            nvm.on_tick(&mut self.io, now, self.log.forgets_durable());
        }
    }

    pub(super) fn drain(&mut self) {
        loop {
            let mut events = Vec::new();
            self.log.take_events(&mut events);
            if let Some(nvm) = &mut self.nvm {
                nvm.take_events(&mut events);
            }
            if events.is_empty() {
                return;
            }
            for event in events {
                self.on_event(event);
            }
        }
    }

    fn on_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Stored { ticket, result } => {
                result.expect("no device fails here");
                self.on_stored(ticket);
            }
            StoreEvent::Synced { ticket, result } => {
                result.expect("no device fails here");
                self.on_synced(ticket);
            }
            StoreEvent::Read { ticket, result } => {
                let Some(Pending::Read { keys }) = self.tickets.remove(&ticket.0) else {
                    panic!("a read's ticket")
                };
                let buffer = result.expect("sound blocks");
                for (key, bytes) in keys.iter().zip(buffer.chunks_exact(BLOCK)) {
                    assert!(version_in(bytes, *key) <= self.versions);
                }
                self.io.recycle(buffer);
            }
            StoreEvent::NeedPeerSync { id, scope } => {
                let scope = match scope {
                    super::PeerScope::Stores => SyncScope::Stores,
                    super::PeerScope::Frees => SyncScope::Frees,
                };
                let ticket = self.ticket(Pending::Peer(id));
                match &mut self.nvm {
                    Some(nvm) => nvm.sync(&mut self.io, ticket, scope),
                    None if self.is_slow_below => self.peers_waiting.push(ticket),
                    None => self.on_synced(ticket),
                }
            }
            StoreEvent::Cleaning { slots } => self.on_cleaning(&slots),
            StoreEvent::NeedForgets => self.log.flush_forgets(&mut self.io),
            StoreEvent::CheckpointDone { clean, .. } => self.clean_shutdown = clean,
            StoreEvent::Corrupt(info) => panic!("{info}"),
            StoreEvent::ForgetsFailed { .. }
            | StoreEvent::RoomChanged
            | StoreEvent::SegmentRetired { .. }
            | StoreEvent::Written { .. }
            | StoreEvent::DeviceFailed(_)
            | StoreEvent::DeviceWorks(_)
            | StoreEvent::CheckpointFailed => {
                panic!("no device fails here")
            }
        }
    }

    fn on_synced(&mut self, ticket: Ticket) {
        match self.tickets.remove(&ticket.0).expect("a sync's ticket") {
            Pending::Peer(id) => self.log.peer_synced(id),
            Pending::Flush { snapshot, left: 1 } => {
                for (floor, version) in self.floor.iter_mut().zip(snapshot) {
                    *floor = version.max(*floor);
                }
            }
            Pending::Flush { snapshot, left } => {
                let pending = Pending::Flush { snapshot, left: left - 1 };
                self.tickets.insert(ticket.0, pending);
            }
            other => panic!("{other:?} is no sync"),
        }
    }

    fn on_stored(&mut self, ticket: Ticket) {
        match self.tickets.remove(&ticket.0).expect("a store's ticket") {
            Pending::Put { key, version, dirty, durable, to } => {
                self.leave(key, Some(to));
                self.homes[key] = Some(to);
                self.settle_key(key, version, durable);
                let owner = Some(Owner { key, dirty });
                match to {
                    Home::Log(slot) => self.log_owners[slot.0 as usize] = owner,
                    Home::Nvm(slot) => self.nvm_owners[slot.0 as usize] = owner,
                }
            }
            Pending::Trim { first, count, version } => {
                for key in (first..(first + count).min(self.size.keys)).step_by(2) {
                    self.leave(key, None);
                    self.homes[key] = None;
                    self.backing[key] = version;
                    self.settle_key(key, version, true);
                }
                let done = |undone: &&mut Undone| self.trims[&undone.seq.0] == version;
                self.undone.iter_mut().find(done).expect("a trim is undone first").zeroed = true;
            }
            other => panic!("{other:?} is no store"),
        }
    }

    fn settle_key(&mut self, key: usize, version: u64, durable: bool) {
        self.busy[key] = false;
        self.current[key] = version;
        if durable {
            self.floor[key] = version;
        }
    }

    /// Frees the slot that a key leaves for `to`.
    fn leave(&mut self, key: usize, to: Option<Home>) {
        if self.homes[key] == to {
            return;
        }
        match self.homes[key] {
            Some(Home::Log(slot)) => {
                self.log_owners[slot.0 as usize] = None;
                self.log.free(slot);
            }
            Some(Home::Nvm(slot)) => {
                self.nvm_owners[slot.0 as usize] = None;
                self.nvm.as_mut().expect("it has a slot there").free(slot, Freed::Superseded);
            }
            None => {}
        }
    }

    /// Calls that have not ended.
    pub(super) fn under_way(&self) -> usize {
        self.tickets.len()
    }

    /// Runs until nothing is under way, then makes a clean checkpoint.
    pub(super) fn shut_down(&mut self) {
        while !(self.tickets.is_empty() && self.throughs.is_empty()) {
            self.turn();
            self.drain();
        }
        self.flush();
        self.log.checkpoint_now(true);
        while !(self.tickets.is_empty() && self.clean_shutdown) {
            self.turn();
            self.drain();
        }
    }

    /// Cuts the power, opens both stores again and compares with the model.
    pub(super) fn crash(&mut self, mode: CrashMode) {
        let counters = self.log.counters();
        self.seen[1] += counters.segments_cleaned;
        self.seen[2] += counters.checkpoints;
        self.io.crash(mode);
        self.tickets.clear();
        self.throughs.clear();
        self.peers_waiting.clear();
        self.check_soundness();
        if self.loses_sectors {
            self.lose_sectors();
            self.lose_headers();
        }
        if self.loses_page {
            self.lose_page();
        }
        let (log, nvm, mut log_found, mut nvm_found) =
            open(&mut self.io, self.log_disk, self.nvm_disk, self.size);
        (self.log, self.nvm) = (log, nvm);
        assert!(log_found.lost.is_empty(), "{:?}", log_found.lost);
        assert!(self.loses_sectors || nvm_found.damaged.is_empty(), "{:?}", nvm_found.damaged);
        assert!(!self.clean_shutdown || log_found.clean_shutdown, "a clean shutdown is seen");
        self.clean_shutdown = false;
        self.seen[0] += log_found.torn + nvm_found.torn;
        let resolved = resolve(&mut nvm_found, &mut log_found);
        for loser in &resolved.losers {
            match *loser {
                Loser::Log(slot) => self.log.free(slot),
                Loser::Nvm(slot) => {
                    self.nvm.as_mut().expect("found there").free(slot, Freed::Superseded);
                }
            }
        }
        for zero in &resolved.redo_zeroes {
            let version = self.trims[&zero.seq.0];
            for block in zero.first.0..zero.first.0 + zero.count {
                let key = block as usize * 2 + zero.volume.0 as usize - 1;
                let below = self.backing[key];
                // Zeros over the zeros of a newer trim change nothing.
                if below < version || !self.trims.values().any(|trim| *trim == below) {
                    self.backing[key] = version;
                }
            }
            self.log.tombstone_done(zero.seq);
        }
        self.rebuild(&log_found, &nvm_found);
    }

    /// `layby check` finds nothing wrong with what a crash left.
    fn check_soundness(&self) {
        let stores = [
            (Some(self.log_disk), self.size.log_blocks, StoreKind::Log),
            (self.nvm_disk, self.size.nvm_blocks, StoreKind::Nvm),
        ];
        for (disk, blocks, kind) in stores {
            let Some(disk) = disk else { continue };
            let bytes = self.io.peek(disk);
            let (base, length) = (BLOCK as u64, blocks * BLOCK as u64);
            let report = check_store(&bytes[..], self.io.disk_name(disk), base, length, kind, true);
            assert!(report.is_sound(), "{:?}", report.problems);
        }
    }

    fn rebuild(&mut self, log: &Recovered, nvm: &Recovered) {
        self.left.clear();
        self.undone.clear();
        let at = self.log.forgets_issued();
        for tombstone in log.tombstones.iter().filter(|tombstone| !tombstone.done) {
            let volume = tombstone.volume.0 as usize - 1;
            let (seq, first) = (tombstone.seq, tombstone.first.0 as usize * 2 + volume);
            let count = 2 * tombstone.count as usize - 1;
            self.undone.push(Undone { seq, first, count, zeroed: true, done_at: Some(at) });
        }
        self.homes.fill(None);
        self.busy.fill(false);
        self.log_owners.fill(None);
        self.nvm_owners.fill(None);
        let mut found: Vec<Option<u64>> = vec![None; self.size.keys];
        let mut overflow = Vec::new();
        for (entry, is_nvm) in
            log.entries.iter().map(|e| (e, false)).chain(nvm.entries.iter().map(|e| (e, true)))
        {
            let key = (entry.key.block().0 * 2 + u64::from(entry.key.volume().0) - 1) as usize;
            let version = self.read_now(entry.slot, key, is_nvm);
            assert!(found[key].replace(version).is_none(), "key {key} was found twice");
            let owners = if is_nvm { &mut self.nvm_owners } else { &mut self.log_owners };
            let home = if is_nvm { Home::Nvm(entry.slot) } else { Home::Log(entry.slot) };
            if let Some(owner) = owners.get_mut(entry.slot.0 as usize) {
                assert!(owner.replace(Owner { key, dirty: entry.dirty }).is_none());
                self.homes[key] = Some(home);
            } else {
                overflow.push((key, version, home));
            }
            if !entry.dirty {
                assert_eq!(self.backing[key], version, "key {key} is clean but differs below");
            }
        }
        for (key, found) in found.iter().enumerate() {
            let version = found.unwrap_or(self.backing[key]);
            assert!(
                version >= self.floor[key],
                "key {key}: version {version} found in {:?} (below: {}), promised {}",
                self.homes[key],
                self.backing[key],
                self.floor[key],
            );
            (self.current[key], self.floor[key]) = (version, version);
        }
        for (key, version, home) in overflow {
            self.backing[key] = version;
            match home {
                Home::Log(slot) => self.log.free(slot),
                Home::Nvm(slot) => self.evict_from_nvm(key, slot),
            }
        }
    }

    /// Opens both stores, and reads what they say they have.
    pub(super) fn open_whatever_is_left(mut self) {
        let seqs = SeqSource::new(Seq(1));
        if let Some(disk) = self.nvm_disk {
            let opened = NvmStore::open(&mut self.io, nvm_config(disk, self.size), seqs.clone());
            if let Ok((nvm, found)) = opened {
                found.entries.iter().for_each(|entry| drop(nvm.read(entry.slot).map(<[u8]>::len)));
            }
        }
        let config = log_config(self.log_disk, self.size);
        let Ok((mut log, found)) = LogStore::open(&mut self.io, config, seqs) else { return };
        let slots: Vec<Slot> = found.entries.iter().map(|entry| entry.slot).collect();
        if !slots.is_empty() {
            log.read(&mut self.io, Ticket(1), &slots);
        }
        while !log.is_idle() {
            let mut done = Vec::new();
            self.io.wait(Nanos::NEVER, &mut done);
            done.into_iter().for_each(|done| log.on_io(&mut self.io, done));
        }
    }

    fn read_now(&mut self, slot: Slot, key: usize, is_nvm: bool) -> u64 {
        if is_nvm {
            let bytes = self.nvm.as_ref().expect("found there").read(slot).expect("sound");
            return version_in(bytes, key);
        }
        self.log.read(&mut self.io, Ticket(u64::MAX), &[slot]);
        let mut events = Vec::new();
        while events.is_empty() {
            let mut done = Vec::new();
            self.io.wait(Nanos::NEVER, &mut done);
            for done in done {
                self.log.on_io(&mut self.io, done);
            }
            self.log.take_events(&mut events);
        }
        let Some(StoreEvent::Read { result: Ok(buffer), .. }) = events.pop() else {
            panic!("key {key} in {slot:?} cannot be read")
        };
        version_in(&buffer, key)
    }
}

fn is_clean(owner: Owner) -> bool {
    !owner.dirty
}

struct BlockKeyParts {
    volume: VolumeId,
    block: BlockIndex,
}

fn parts(key: usize) -> BlockKeyParts {
    BlockKeyParts { volume: key_of(key).volume(), block: key_of(key).block() }
}

fn open(
    io: &mut SimIo,
    log_disk: DiskId,
    nvm_disk: Option<DiskId>,
    size: Size,
) -> (LogStore, Option<NvmStore>, Recovered, Recovered) {
    let seqs = SeqSource::new(Seq(1));
    let mut nvm_found = Recovered::default();
    let nvm = nvm_disk.map(|disk| {
        let opened = NvmStore::open(io, nvm_config(disk, size), seqs.clone());
        let (store, found) = opened.expect("a sound store opens");
        nvm_found = found;
        store
    });
    let opened = LogStore::open(io, log_config(log_disk, size), seqs);
    let (mut log, log_found) = opened.expect("a sound log opens");
    log.ask_owner(size.owns_cleaning);
    (log, nvm, log_found, nvm_found)
}
