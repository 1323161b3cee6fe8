//! Recovery of both stores over damaged disks: a shard's level comes up, or says why not.
//!
//! How: a few sound worlds are made once, on simulated disks, with everything a store writes:
//! batches, tombstones, forgets, checkpoints, slots. An input chooses a world and is a list of
//! edits to its disks, each with or without its structure's checksum made true. Both stores are
//! opened; if they open they are read, freed, written, synced and checkpointed, and opened again.
//! Invariant: no bytes make recovery, `check` or the stores panic. What `check` calls sound opens,
//! and what a store calls its own after one recovery is its own after the next.
//! Cost: some milliseconds; two disks of half a MiB.
//! Not for: crashes, which leave nothing with a true checksum that nobody wrote; see the engine.

use crate::Input;
use crate::pages::{seal, seal_slot_header};
use layby_engine::check::{StoreKind, check_store};
use layby_engine::io::{CrashMode, DiskId, Io, IoOperation, SimIo, run_alone};
use layby_engine::store::layout::get_u64;
use layby_engine::store::nvm_layout::HEADER_BYTES;
use layby_engine::store::{
    AppendEntry, Freed, LogConfig, LogStore, Loser, NvmConfig, NvmStore, PeerScope, Recovered,
    Region, SeqSource, SlotInfo, SlotView, StoreError, StoreEvent, StoreIdentity, Stream,
    SyncScope, Ticket, resolve,
};
use layby_types::{BlockIndex, BlockKey, BlockSize, Nanos, Seq, ShardIndex, Slot, VolumeId};
use std::collections::BTreeMap;
use std::sync::OnceLock;

const BLOCK: usize = BlockSize::MIN.len();
const LOG_BLOCKS: u64 = 106;
const NVM_BLOCKS: u64 = 24;
const LOG_TAG: u8 = 1;
const NVM_TAG: u8 = 2;
const INSTANCE: u64 = 77;
const IDENTITY: StoreIdentity =
    StoreIdentity { node: [5; 16], shard: ShardIndex(0), shard_count: 1 };
/// Edits of an input at most.
const EDITS_MAX: usize = 32;
/// Turns until work that was asked for must have come to rest; beyond it the disk was too strange.
const TURNS_MAX: u32 = 2000;

/// The bytes of both disks.
#[derive(Clone)]
struct Disks {
    log: Vec<u8>,
    nvm: Vec<u8>,
}

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (world, choices) = (input.byte(), input.byte());
    let worlds = worlds();
    let mut disks = worlds[usize::from(world) % worlds.len()].clone();
    for _ in 0..EDITS_MAX {
        if input.is_empty() {
            break;
        }
        edit(&mut disks, &mut input);
    }
    let is_sound = |bytes: &[u8], blocks: u64, kind| {
        let length = blocks * BLOCK as u64;
        check_store(bytes, "disk", BLOCK as u64, length, kind, true).is_sound()
    };
    let (log, nvm) = (
        is_sound(&disks.log, LOG_BLOCKS, StoreKind::Log),
        is_sound(&disks.nvm, NVM_BLOCKS, StoreKind::Nvm),
    );
    if let (true, Err(StoreError::Corrupt(info))) =
        (log && nvm, Stores::open(&mut load(&disks), false).map(drop))
    {
        panic!("`check` calls sound what does not open: {info}");
    }
    let _ = survive(&disks, choices & 1 == 1);
}

/// One edit: which disk, which block, where in it, how many bytes, whether to seal; then the bytes.
fn edit(disks: &mut Disks, input: &mut Input<'_>) {
    let (block, at, form) = (input.byte(), input.number(), input.byte());
    let (is_nvm, is_sealed) = (form & 1 == 1, form & 2 == 2);
    let length = 1 + usize::from(form >> 4);
    let bytes = input.take(length);
    let disk = if is_nvm { &mut disks.nvm } else { &mut disks.log };
    let first = usize::from(block) % (disk.len() / BLOCK) * BLOCK;
    let at = usize::from(at) % (BLOCK - bytes.len());
    let block = &mut disk[first..first + BLOCK];
    block[at..at + bytes.len()].copy_from_slice(bytes);
    let headers = 3 * BLOCK;
    if is_sealed && is_nvm && first == headers {
        let index = at / HEADER_BYTES as usize;
        let from = index * HEADER_BYTES as usize;
        let header = &mut block[from..from + HEADER_BYTES as usize];
        seal_slot_header(header, INSTANCE, index as u32);
    } else if is_sealed && block.starts_with(b"LAYBY") {
        seal(block);
    } else if is_sealed && is_nvm && first == 2 * BLOCK {
        let copy = if at < 512 { &mut block[..16] } else { &mut block[512..528] };
        seal_mark(copy);
    }
}

fn seal_mark(copy: &mut [u8]) {
    let seq = Seq(get_u64(copy, 0));
    copy.copy_from_slice(&layby_engine::store::nvm_layout::encode_mark(seq, INSTANCE));
}

/// Opens what is on the disks, uses it, and opens it again; whether all of that could be done.
fn survive(disks: &Disks, accept_loss: bool) -> bool {
    let mut io = load(disks);
    let Ok(mut stores) = Stores::open(&mut io, accept_loss) else { return false };
    stores.begin();
    if !stores.work() {
        return false;
    }
    let before = stores.contents();
    io = stores.io;
    io.crash(CrashMode::KeepAll);
    let mut again = Stores::open(&mut io, accept_loss).unwrap_or_else(|error| {
        panic!("stores that worked do not open again: {error}");
    });
    again.begin();
    let after = again.contents();
    for (key, slot) in &before {
        assert!(after.contains_key(key), "{key:?} of {slot:?} is gone after a clean end");
    }
    true
}

/// A machine with these disks, everything on them durable.
fn load(disks: &Disks) -> SimIo {
    let mut io = SimIo::new(1);
    for (name, bytes) in [("ssd", &disks.log), ("nvm", &disks.nvm)] {
        let disk = io.add_disk(name, bytes.len() as u64);
        let mut buffer = io.buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        let write = IoOperation::Write { disk, offset: 0, buffer, durable: true };
        run_alone(&mut io, write).expect("nothing fails here");
    }
    io
}

fn region(disk: u32, blocks: u64) -> Region {
    let (base, length) = (BLOCK as u64, blocks * BLOCK as u64);
    Region { disk: DiskId(disk), base, length, block_size: BlockSize::MIN }
}

fn log_config(accept_loss: bool) -> LogConfig {
    let mut config = LogConfig::new(region(0, LOG_BLOCKS), IDENTITY, LOG_TAG);
    config.segments.bytes = 8 * BLOCK as u64;
    config.is_strict = !accept_loss;
    config
}

fn nvm_config() -> NvmConfig {
    NvmConfig {
        region: region(1, NVM_BLOCKS),
        identity: IDENTITY,
        is_strict: false,
        token_tag: NVM_TAG,
    }
}

/// What the cache would know of the log's slots.
#[derive(Default)]
struct Owners(BTreeMap<u32, SlotInfo>);

impl SlotView for Owners {
    fn slot(&self, slot: Slot) -> Option<SlotInfo> {
        self.0.get(&slot.0).copied()
    }
}

/// Both stores with as much of a shard around them as they need.
struct Stores {
    io: SimIo,
    log: LogStore,
    nvm: NvmStore,
    log_found: Recovered,
    nvm_found: Recovered,
    owners: Owners,
    in_nvm: BTreeMap<u32, BlockKey>,
    /// Peer syncs of the log, by their ticket.
    peers: BTreeMap<u64, u64>,
    ticket_next: u64,
    /// Tickets that have not come back.
    open: u32,
    checkpointed: bool,
}

impl Stores {
    fn open(io: &mut SimIo, accept_loss: bool) -> Result<Stores, StoreError> {
        let mut io = std::mem::replace(io, SimIo::new(2));
        let seqs = SeqSource::new(Seq(1));
        let (nvm, nvm_found) = NvmStore::open(&mut io, nvm_config(), seqs.clone())?;
        let (log, log_found) = LogStore::open(&mut io, log_config(accept_loss), seqs)?;
        Ok(Stores {
            io,
            log,
            nvm,
            log_found,
            nvm_found,
            owners: Owners::default(),
            in_nvm: BTreeMap::new(),
            peers: BTreeMap::new(),
            ticket_next: 0,
            open: 0,
            checkpointed: false,
        })
    }

    fn ticket(&mut self) -> Ticket {
        (self.ticket_next, self.open) = (self.ticket_next + 1, self.open + 1);
        Ticket(self.ticket_next)
    }

    /// What a shard does before it serves.
    fn begin(&mut self) {
        let resolved = resolve(&mut self.nvm_found, &mut self.log_found);
        for loser in &resolved.losers {
            match *loser {
                Loser::Log(slot) => self.log.free(slot),
                Loser::Nvm(slot) => self.nvm.free(slot, Freed::Superseded),
            }
        }
        for tombstone in &resolved.redo_zeroes {
            let _ = tombstone.end_key();
            self.log.tombstone_done(tombstone.seq);
        }
        let log_slots = self.log.slot_count();
        for entry in &self.log_found.entries {
            if entry.slot.0 >= log_slots {
                self.log.free(entry.slot);
                continue;
            }
            let info = SlotInfo { key: entry.key, dirty: entry.dirty };
            assert!(self.owners.0.insert(entry.slot.0, info).is_none(), "a slot was given twice");
        }
        let nvm_slots = self.nvm.slot_count();
        for entry in &self.nvm_found.entries {
            if entry.slot.0 >= nvm_slots {
                self.log.forget(entry.key);
                let forgets_issued = self.log.forgets_issued();
                self.nvm.free(entry.slot, Freed::Evicted { forgets_issued });
                continue;
            }
            assert!(self.in_nvm.insert(entry.slot.0, entry.key).is_none(), "a slot, given twice");
        }
    }

    /// The blocks of both levels; none in two places.
    fn contents(&self) -> BTreeMap<BlockKey, Slot> {
        let log = self.owners.0.iter().map(|(slot, info)| (info.key, Slot(*slot)));
        let nvm = self.in_nvm.iter().map(|(slot, key)| (*key, Slot(*slot)));
        let mut contents = BTreeMap::new();
        for (key, slot) in log.chain(nvm) {
            assert!(contents.insert(key, slot).is_none(), "{key:?} is in two places");
        }
        contents
    }

    /// Reads, writes, frees and makes a checkpoint; whether all of it ended.
    fn work(&mut self) -> bool {
        self.in_nvm.keys().for_each(|slot| drop(self.nvm.read(Slot(*slot)).map(<[u8]>::len)));
        let slots: Vec<Slot> = self.owners.0.keys().map(|slot| Slot(*slot)).collect();
        if !slots.is_empty() {
            let ticket = self.ticket();
            self.log.read(&mut self.io, ticket, &slots);
        }
        self.put_into_log(BlockKey::new(VolumeId(9), BlockIndex(1)));
        self.put_into_nvm(BlockKey::new(VolumeId(9), BlockIndex(2)));
        if let Some((slot, _)) = self.owners.0.pop_first() {
            self.log.free(Slot(slot));
        }
        let ticket = self.ticket();
        self.log.sync(&mut self.io, ticket);
        self.log.checkpoint_now(true);
        for _ in 0..TURNS_MAX {
            if self.open == 0 && self.checkpointed {
                return true;
            }
            self.turn();
        }
        false
    }

    fn put_into_log(&mut self, key: BlockKey) {
        let taken = &self.owners.0;
        let free = (0..self.log.slot_count()).find(|slot| !taken.contains_key(slot));
        let Some(slot) = free.filter(|_| taken.values().all(|info| info.key != key)) else {
            return;
        };
        let ticket = self.ticket();
        let entry = AppendEntry { slot: Slot(slot), key, dirty: true };
        self.log.append(&mut self.io, ticket, Stream::Write, &[entry], &[7; BLOCK], true);
        self.owners.0.insert(slot, SlotInfo { key, dirty: true });
    }

    fn put_into_nvm(&mut self, key: BlockKey) {
        let taken = &self.in_nvm;
        let free = (0..self.nvm.slot_count()).find(|slot| !taken.contains_key(slot));
        let Some(slot) = free.filter(|_| taken.values().all(|known| *known != key)) else { return };
        let ticket = self.ticket();
        self.nvm.store(&mut self.io, ticket, &[(Slot(slot), key, true)], &[8; BLOCK], true);
        self.in_nvm.insert(slot, key);
    }

    /// Lets operations end, time pass, and events be answered.
    fn turn(&mut self) {
        let mut done = Vec::new();
        let patience = Nanos(self.io.now().0 + 1_000_000);
        self.io.wait(patience, &mut done);
        for done in done {
            match (done.token.0 >> 56) as u8 {
                LOG_TAG => self.log.on_io(&mut self.io, done),
                _ => self.nvm.on_io(&mut self.io, done),
            }
            self.drain();
        }
        let now = self.io.now();
        if self.log.next_deadline() <= now {
            self.log.on_tick(&mut self.io, now, &self.owners);
        }
        self.nvm.on_tick(&mut self.io, now, self.log.forgets_durable());
        self.drain();
    }

    fn drain(&mut self) {
        let mut events = Vec::new();
        self.log.take_events(&mut events);
        self.nvm.take_events(&mut events);
        events.into_iter().for_each(|event| self.on_event(event));
    }

    fn on_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::NeedPeerSync { id, scope } => {
                let scope = match scope {
                    PeerScope::Stores => SyncScope::Stores,
                    PeerScope::Frees => SyncScope::Frees,
                };
                let ticket = self.ticket();
                self.peers.insert(ticket.0, id);
                self.nvm.sync(&mut self.io, ticket, scope);
            }
            StoreEvent::NeedForgets => self.log.flush_forgets(&mut self.io),
            StoreEvent::ForgetsFailed { kind } => self.nvm.refuse_delayed(kind),
            StoreEvent::CheckpointDone { .. } => self.checkpointed = true,
            StoreEvent::Synced { ticket, .. } => {
                self.open -= 1;
                if let Some(id) = self.peers.remove(&ticket.0) {
                    self.log.peer_synced(id);
                }
            }
            StoreEvent::Stored { .. } => self.open -= 1,
            StoreEvent::Read { result, .. } => {
                self.open -= 1;
                result.into_iter().for_each(|buffer| self.io.recycle(buffer));
            }
            // Nothing asks to be asked here.
            StoreEvent::Cleaning { .. }
            | StoreEvent::Written { .. }
            | StoreEvent::Corrupt(_)
            | StoreEvent::CheckpointFailed
            | StoreEvent::DeviceFailed(_)
            | StoreEvent::DeviceWorks(_)
            | StoreEvent::RoomChanged
            | StoreEvent::SegmentRetired { .. } => {}
        }
    }
}

/// The disks that edits begin with: fresh, in use, after a cut of power, and shut down.
fn worlds() -> &'static [Disks] {
    static WORLDS: OnceLock<Vec<Disks>> = OnceLock::new();
    WORLDS.get_or_init(|| {
        let mut stores = fresh();
        let mut worlds = vec![image(&stores.io)];
        for round in 0..3 {
            fill(&mut stores, round);
            worlds.push(image(&stores.io));
        }
        stores.io.crash(CrashMode::KeepSome);
        worlds.push(image(&stores.io));
        worlds
    })
}

fn image(io: &SimIo) -> Disks {
    Disks { log: io.peek(DiskId(0)), nvm: io.peek(DiskId(1)) }
}

fn fresh() -> Stores {
    let mut io = SimIo::new(3);
    io.add_disk("ssd", (LOG_BLOCKS + 2) * BLOCK as u64);
    io.add_disk("nvm", (NVM_BLOCKS + 2) * BLOCK as u64);
    LogStore::format(&mut io, &log_config(false), INSTANCE).expect("the region is large enough");
    NvmStore::format(&mut io, &nvm_config(), INSTANCE).expect("the region is large enough");
    Stores::open(&mut io, false).expect("they were just formatted")
}

/// A round of everything that leaves a trace on a disk; every second one ends with a checkpoint.
fn fill(stores: &mut Stores, round: u64) {
    for block in 0..6 {
        stores.put_into_log(BlockKey::new(VolumeId(1), BlockIndex(10 * round + block)));
        stores.put_into_nvm(BlockKey::new(VolumeId(2), BlockIndex(10 * round + block / 2)));
        stores.turn();
    }
    let ticket = stores.ticket();
    let (volume, first) = (VolumeId(3), BlockIndex(round));
    let seq = stores.log.tombstone(&mut stores.io, ticket, volume, first, 4, false, true);
    stores.log.forget(BlockKey::new(VolumeId(1), BlockIndex(99)));
    match round {
        1 => stores.log.tombstone_done(seq),
        _ => stores.log.owe_zeros(volume, first, 4, seq),
    }
    let ticket = stores.ticket();
    stores.log.sync(&mut stores.io, ticket);
    stores.checkpointed = round != 1;
    if !stores.checkpointed {
        stores.log.checkpoint_now(false);
    }
    while stores.open > 0 || !stores.checkpointed {
        stores.turn();
    }
}

/// Every world untouched, and one sealed edit of each field that steers recovery.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (index, disks) in worlds().iter().enumerate() {
        for accept_loss in 0..2 {
            seeds.push((format!("world_{index}_{accept_loss}"), vec![index as u8, accept_loss]));
        }
        for (name, is_nvm, disk) in [("log", false, &disks.log), ("nvm", true, &disks.nvm)] {
            let edits = disk.chunks_exact(BLOCK).enumerate().filter_map(|(block, bytes)| {
                let is_structure =
                    bytes.starts_with(b"LAYBY") || (is_nvm && (2..4).contains(&block));
                is_structure.then(|| edit_of(index, block, is_nvm, bytes))
            });
            let joined = edits.collect::<Vec<_>>();
            let picked = joined.iter().step_by(1 + joined.len() / 6).enumerate();
            seeds.extend(picked.map(|(n, edit)| (format!("{name}_{index}_{n}"), edit.clone())));
        }
    }
    seeds
}

/// An edit that puts a structure's own bytes back, sealed: something to begin with.
fn edit_of(world: usize, block: usize, is_nvm: bool, bytes: &[u8]) -> Vec<u8> {
    let mut seed = vec![world as u8, 0];
    for at in [16_usize, 32, 56, 128] {
        let form = 0xf0 | 2 | u8::from(is_nvm);
        seed.push(block as u8);
        seed.extend((at as u16).to_le_bytes());
        seed.push(form);
        seed.extend_from_slice(&bytes[at..at + 16]);
    }
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what edits begin with is sound, and all of a run is reached. Method: every world.
    #[test]
    fn worlds_survive_untouched() {
        for (index, disks) in worlds().iter().enumerate() {
            assert!(survive(disks, false), "world {index}");
        }
    }
}
