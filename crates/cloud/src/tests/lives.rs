//! Whole lives: load, faults, power cuts, lost disks, takeovers; beside a list of all writes.

use super::snapshots::Snapshots;
use crate::restore::Restored;
use crate::segment::{CHUNK_BYTES, Compression, VolumeUuid};
use crate::simulated::{SimDisks as Disks, SimFaults as Faults, SimStore, SimWorld as World};
use crate::volume::{ConditionalPuts, Limits, Link, Plan, Volume, create};
use layby_types::{BackingOperation, ErrorKind, Nanos, Rng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(super) const BLOCK: u64 = 4096;
pub(super) const BLOCKS: u64 = 96;
pub(super) const JOURNAL: u64 = 1 << 20;
pub(super) const NODE: VolumeUuid = VolumeUuid([7; 16]);

pub(super) fn plan(node: VolumeUuid) -> Plan {
    let limits = Limits {
        segment_bytes: 128 << 10,
        dirty_age_max: Nanos::from_millis(20),
        commit_interval: Nanos::from_millis(5),
        checkpoint_segments: 5,
        read_cache_bytes: 24 * BLOCK,
        ..Limits::DEFAULT
    };
    Plan {
        volume: VolumeUuid([1; 16]),
        name: "test".to_owned(),
        node,
        size_bytes: BLOCKS * BLOCK,
        block_bytes: BLOCK as u32,
        compression: Compression::Zstd(1),
        takeover: false,
        was_found: false,
        puts: ConditionalPuts::Unknown,
        needs_conditions: true,
        limits,
    }
}

/// A write or zeroing, as the oracle remembers it.
#[derive(Clone)]
pub(super) struct Written {
    blocks: Range<u64>,
    is_zero: bool,
}

/// What block `block` holds after write `number`.
fn content(number: usize, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    Rng::new(number as u64 * 1000 + block).fill(&mut bytes[..64]);
    bytes
}

pub(super) struct Life {
    pub(super) world: World,
    pub(super) volume: Volume<Vec<u8>>,
    pub(super) now: Nanos,
    pub(super) history: Vec<Written>,
    /// Writes below this number survive a power cut; all are acknowledged in order.
    pub(super) synced: usize,
    acknowledged: BTreeSet<usize>,
    writes: BTreeMap<u64, Range<usize>>,
    syncs: BTreeMap<u64, usize>,
    reads: BTreeMap<u64, (u64, Range<usize>)>,
    /// Reads among these that may find nothing at hand.
    at_hand: BTreeSet<u64>,
    token: u64,
    node: VolumeUuid,
    pub(super) line: String,
    /// What each block holds before the first write; zeros without.
    pub(super) before: Option<Vec<Vec<u8>>>,
    /// Snapshots, where a life has any.
    pub(super) snapshots: Snapshots,
    /// Blocks that the volume has now.
    pub(super) end: u64,
}

impl Life {
    pub(super) fn new(seed: u64) -> Self {
        Life::over(SimStore::default(), seed)
    }

    /// A life over this store.
    pub(super) fn over(store: SimStore, seed: u64) -> Self {
        let plan = plan(NODE);
        let disks = Disks::new(JOURNAL, create(&plan, JOURNAL, seed));
        let mut world = World::new(seed, disks);
        world.store = store;
        let volume = open(&mut world, plan, Nanos::ZERO);
        Life {
            world,
            volume,
            now: Nanos::ZERO,
            history: Vec::new(),
            synced: 0,
            acknowledged: BTreeSet::new(),
            writes: BTreeMap::new(),
            syncs: BTreeMap::new(),
            reads: BTreeMap::new(),
            at_hand: BTreeSet::new(),
            token: 0,
            node: NODE,
            line: format!("replay with seed {seed}"),
            before: None,
            snapshots: Snapshots::default(),
            end: BLOCKS,
        }
    }

    pub(super) fn token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }

    pub(super) fn write(&mut self) {
        let start = self.world.rng.below(self.end);
        let longest = if self.world.rng.chance(1, 10) { 40 } else { 4 };
        let blocks = start..(start + 1 + self.world.rng.below(longest)).min(self.end);
        let is_zero = self.world.rng.chance(1, 8);
        self.submit_change(blocks, is_zero);
    }

    /// The volume itself has zeroed blocks.
    pub(super) fn note_zeroed(&mut self, blocks: Range<u64>) {
        self.acknowledged.insert(self.history.len());
        self.history.push(Written { blocks, is_zero: true });
    }

    /// Zeroes blocks, as a write that the history has.
    pub(super) fn zero(&mut self, blocks: Range<u64>) {
        self.submit_change(blocks, true);
    }

    fn submit_change(&mut self, blocks: Range<u64>, is_zero: bool) {
        let (start, number) = (blocks.start, self.history.len());
        let (offset, length) = (start * BLOCK, (blocks.end - start) * BLOCK);
        // A long write is as many as its parts: a power cut may come between them.
        let part = if is_zero { BLOCKS } else { CHUNK_BYTES as u64 / BLOCK };
        for from in (blocks.start..blocks.end).step_by(part as usize) {
            let blocks = from..blocks.end.min(from + part);
            self.history.push(Written { blocks, is_zero });
        }
        let token = self.token() + (1 << 40);
        self.writes.insert(token, number..self.history.len());
        let operation = if is_zero {
            BackingOperation::Zero { offset, length, keep_allocated: false }
        } else {
            let buffer = blocks
                .flat_map(|block| content(number + ((block - start) / part) as usize, block))
                .collect();
            let durable = self.world.rng.chance(1, 10);
            BackingOperation::Write { offset, buffer, durable }
        };
        self.volume.submit(token, operation);
    }

    /// Writes that have ended, up to the first that has not.
    pub(super) fn ended(&self) -> usize {
        (0..).find(|number| !self.acknowledged.contains(number)).expect("some write is next")
    }

    pub(super) fn sync(&mut self) {
        let token = self.token();
        let ended = self.ended();
        self.syncs.insert(token, ended);
        self.volume.submit(token, BackingOperation::Sync);
    }

    fn read(&mut self) {
        let block = self.world.rng.below(self.end);
        self.read_block(block);
    }

    /// Reads what is offered since it came along with other reads, as a cache with room does.
    fn read_at_hand(&mut self) {
        while let Some(bytes) = self.volume.poll_at_hand() {
            for block in bytes.start / BLOCK..bytes.end / BLOCK {
                let (offset, buffer) = (block * BLOCK, vec![0xee; BLOCK as usize]);
                let token = self.begin_read(block);
                self.at_hand.insert(token);
                self.volume.submit(token, BackingOperation::ReadAtHand { offset, buffer });
            }
        }
    }

    fn begin_read(&mut self, block: u64) -> u64 {
        let token = self.token();
        let from = self.ended();
        self.reads.insert(token, (block, from..from));
        token
    }

    fn read_block(&mut self, block: u64) {
        let token = self.begin_read(block);
        let (offset, buffer) = (block * BLOCK, vec![0xee; BLOCK as usize]);
        self.volume.submit(token, BackingOperation::Read { offset, buffer });
    }

    /// What a block holds after the first `count` writes.
    pub(super) fn state(&self, block: u64, count: usize) -> Vec<u8> {
        let covers = |(_, written): &(usize, &Written)| written.blocks.contains(&block);
        match self.history[..count].iter().enumerate().rfind(covers) {
            Some((number, written)) if !written.is_zero => content(number, block),
            None if self.before.is_some() => {
                self.before.as_ref().expect("it was asked")[block as usize].clone()
            }
            _ => vec![0; BLOCK as usize],
        }
    }

    fn collect(&mut self) {
        self.collect_snapshots();
        while let Some(done) = self.volume.poll() {
            let token = done.token;
            if let Some(ended) = self.syncs.remove(&token) {
                if done.result.is_ok() {
                    self.synced = self.synced.max(ended);
                }
            } else if let Some((block, span)) = self.reads.remove(&token) {
                if self.at_hand.remove(&token) && done.result == Err(ErrorKind::Retry) {
                    continue;
                }
                assert_eq!(done.result, Ok(()), "{}", self.line);
                let bytes = done.buffer.expect("a read's buffer comes back");
                let mut states = (span.start..=self.history.len()).map(|n| self.state(block, n));
                assert!(states.any(|state| state == bytes), "block {block}: {}", self.line);
            } else {
                assert_eq!(done.result, Ok(()), "{}", self.line);
                let numbers = self.writes.remove(&token).expect("a write ends once");
                self.acknowledged.extend(numbers);
            }
        }
    }

    fn step(&mut self) {
        let actions = self.volume.take_actions();
        self.world.take(actions);
        if let Some((id, end)) = self.world.step() {
            self.volume.on_end(id, end);
        } else {
            self.now = self.now.saturating_add(Nanos::from_millis(3));
            self.volume.on_tick(self.now);
        }
        if self.world.rng.chance(1, 5) {
            self.now = self.now.saturating_add(Nanos::from_millis(1));
            self.volume.on_tick(self.now);
        }
        self.collect();
    }

    pub(super) fn load(&mut self, steps: u64) {
        for _ in 0..steps {
            self.load_snapshots();
            match self.world.rng.below(10) {
                0..2 => self.write(),
                2 => self.read(),
                3 if self.world.rng.chance(1, 3) => self.sync(),
                _ => {}
            }
            self.read_at_hand();
            self.step();
        }
    }

    pub(super) fn settle(&mut self) {
        self.world.faults = Faults::default();
        self.volume.set_draining(true);
        for _ in 0..20_000 {
            self.step();
            let is_open = matches!(self.volume.status().link, Link::Up);
            let actions = self.volume.take_actions();
            let is_idle = actions.is_empty() && self.world.is_idle();
            self.world.take(actions);
            if self.volume.is_drained() && is_idle && is_open {
                return;
            }
        }
        panic!("does not drain: {:?}, {}", self.volume.status(), self.line);
    }

    /// A node that has lost its disks, and learns from its store what its volume holds.
    fn learning(seed: u64) -> Life {
        let mut life = Life::new(seed);
        life.load(300);
        life.settle();
        life.synced = life.history.len();
        let plan = plan(NODE);
        life.world.disks = Disks::new(JOURNAL, create(&plan, JOURNAL, seed));
        life.volume = open(&mut life.world, plan, life.now);
        life
    }

    /// The power fails, and the node starts again.
    pub(super) fn crash(&mut self) {
        self.crash_beside(|_| ());
    }

    /// The same, and something happens before the node starts.
    pub(super) fn crash_beside(&mut self, harm: impl FnOnce(&mut World)) {
        let actions = self.volume.take_actions();
        self.world.take(actions);
        self.world.cut_power();
        harm(&mut self.world);
        // What an earlier session stored is read whatever the next one does.
        let all = [Compression::None, Compression::Zstd(1), Compression::Lz4];
        let compression = all[self.world.rng.below(3) as usize];
        let plan = Plan { compression, ..self.plan() };
        self.volume = open(&mut self.world, plan, self.now);
        self.reads.clear();
        self.syncs.clear();
        self.forget_asked();
        let state = self.read_all();
        let count = self.prefix(&state, self.synced);
        self.history.truncate(count);
        self.acknowledged = (0..count).collect();
        self.writes.clear();
    }

    /// The plan of its volume.
    pub(super) fn plan(&self) -> Plan {
        Plan { size_bytes: self.end * BLOCK, ..plan(self.node) }
    }

    /// Waits for the end of a call.
    pub(super) fn wait(&mut self, token: u64) -> (Result<(), ErrorKind>, Option<Vec<u8>>) {
        wait(self, token)
    }

    /// Lives on without new calls.
    pub(super) fn tick(&mut self) {
        self.step();
    }

    /// All that was written is durable.
    pub(super) fn sync_all(&mut self) {
        for _ in 0..20_000 {
            if self.ended() == self.history.len() {
                break;
            }
            self.step();
        }
        self.sync();
        for _ in 0..20_000 {
            if self.synced == self.history.len() {
                return;
            }
            self.step();
        }
        panic!("a sync does not end: {}", self.line);
    }

    /// The node lets go of the volume: what was under way arrives, or never does.
    pub(super) fn stop(&mut self) {
        let actions = self.volume.take_actions();
        self.world.take(actions);
        self.world.cut_power();
        self.world.let_arrive();
        self.reads.clear();
        self.syncs.clear();
        self.writes.clear();
        self.forget_asked();
    }

    /// The node opens the volume from its disks.
    pub(super) fn open_again(&mut self) {
        let plan = self.plan();
        self.volume = open(&mut self.world, plan, self.now);
    }

    /// Another node, with empty disks, begins to take the volume.
    pub(super) fn take_over(&mut self, node: VolumeUuid) {
        let plan = Plan { takeover: true, ..plan(node) };
        self.world.disks = Disks::new(JOURNAL, create(&plan, JOURNAL, self.world.rng.next_u64()));
        self.open_told_to_take(node);
    }

    /// A node opens the volume from the disks that there are, told to take it.
    pub(super) fn open_told_to_take(&mut self, node: VolumeUuid) {
        self.node = node;
        let plan = Plan { takeover: true, ..self.plan() };
        self.volume = open(&mut self.world, plan, self.now);
    }

    /// What all blocks hold after all writes.
    pub(super) fn whole_state(&self) -> Vec<Vec<u8>> {
        (0..BLOCKS).map(|block| self.state(block, self.history.len())).collect()
    }

    /// Whether this is the state after the first `count` writes.
    pub(super) fn is_prefix(&self, state: &[Vec<u8>], count: usize) -> bool {
        (0..self.end).all(|block| self.state(block, count) == state[block as usize])
    }

    /// The one prefix of the history that this state is.
    fn prefix(&self, state: &[Vec<u8>], at_least: usize) -> usize {
        let found = (at_least..=self.history.len()).rev().find(|n| self.is_prefix(state, *n));
        found.unwrap_or_else(|| panic!("no prefix from {at_least} on: {}", self.line))
    }

    pub(super) fn read_all(&mut self) -> Vec<Vec<u8>> {
        let token = self.token();
        let buffer = vec![0xee; (BLOCKS * BLOCK) as usize];
        self.volume.submit(token, BackingOperation::Read { offset: 0, buffer });
        for _ in 0..20_000 {
            if let Some(done) = self.volume.poll() {
                assert_eq!((done.token, done.result), (token, Ok(())), "{}", self.line);
                let bytes = done.buffer.expect("a read's buffer comes back");
                return bytes.chunks(BLOCK as usize).map(<[u8]>::to_vec).collect();
            }
            let actions = self.volume.take_actions();
            self.world.take(actions);
            match self.world.step() {
                Some((id, end)) => self.volume.on_end(id, end),
                None => {
                    self.now = self.now.saturating_add(Nanos::from_millis(3));
                    self.volume.on_tick(self.now);
                }
            }
        }
        panic!("a read does not end: {}", self.line);
    }

    /// What the store alone has, as a prefix; not older than what was committed.
    pub(super) fn restore(&self) -> usize {
        let store = &self.world.store;
        let mut fetch = |key: &str, range| store.get(key, range).map(|(bytes, _)| bytes);
        match Restored::open(&mut fetch) {
            Err(crate::restore::RestoreError::Absent) => 0,
            found => {
                let restored = found.unwrap_or_else(|error| panic!("{error}: {}", self.line));
                self.prefix(&self.state_of(&restored), 0)
            }
        }
    }

    /// All blocks of what a restore found.
    pub(super) fn state_of(&self, restored: &Restored) -> Vec<Vec<u8>> {
        let store = &self.world.store;
        let mut fetch = |key: &str, range| store.get(key, range).map(|(bytes, _)| bytes);
        let mut state = vec![vec![0; BLOCK as usize]; BLOCKS as usize];
        let mut sink = |offset: u64, bytes: &[u8]| {
            for (index, block) in bytes.chunks(BLOCK as usize).enumerate() {
                state[(offset / BLOCK) as usize + index] = block.to_vec();
            }
            Ok(())
        };
        let pass = restored.copy(&mut fetch, &mut sink).expect("the store answers");
        assert_eq!(pass.damaged, Vec::new(), "{}", self.line);
        state
    }

    /// Writes that were ever submitted.
    pub(super) fn submitted(&self) -> usize {
        self.history.len()
    }
}

pub(super) fn open(world: &mut World, plan: Plan, now: Nanos) -> Volume<Vec<u8>> {
    // A store that ignores conditions is served where the plan says so only.
    let plan = Plan { needs_conditions: !world.store.ignores_conditions, ..plan };
    let map_file = world.disks.map_file.clone();
    // No two openings draw the same, as those of nodes do not.
    let seed = world.rng.next_u64();
    let disks = &world.disks;
    let mut read = |at, length| disks.read(at, length);
    let opened = Volume::open(plan, &map_file, now, seed, &mut read).expect("whole disks open");
    world.disks.map_file = opened.map_file;
    opened.volume
}

impl Life {
    /// The node's disks are gone; another node, with empty ones, takes the volume.
    pub(super) fn lose_disks(&mut self, node: VolumeUuid) -> Volume<Vec<u8>> {
        let at_least = self.restore();
        self.node = node;
        let actions = self.volume.take_actions();
        self.world.take(actions);
        self.world.cut_power();
        let plan = Plan { takeover: true, ..self.plan() };
        self.world.disks = Disks::new(JOURNAL, create(&plan, JOURNAL, self.world.rng.next_u64()));
        let volume = open(&mut self.world, plan, self.now);
        let old = std::mem::replace(&mut self.volume, volume);
        self.reads.clear();
        self.syncs.clear();
        self.writes.clear();
        self.forget_asked();
        let state = self.read_all();
        // What the store had is a prefix, so the least that this state can be is enough to ask.
        let count = self.prefix(&state, 0);
        let is_older = (0..self.end).any(|block| {
            count < at_least && self.state(block, at_least) != self.state(block, count)
        });
        assert!(!is_older, "older than the store was: {}", self.line);
        self.history.truncate(count);
        self.synced = 0;
        self.acknowledged = (0..count).collect();
        old
    }
}

/// Goal: with its disks gone a volume is a prefix of its history, not older than what the store
/// had, and lives on. Method: random moments, a new node each time, whole lives after it.
#[test]
fn lost_disks_lose_what_the_store_lacks() {
    for seed in 1000..1200 {
        let mut life = Life::new(seed);
        life.world.faults =
            Faults { errors: 10, lost_replies: 10, conflicts: 5, ..Faults::default() };
        let steps = 300 + life.world.rng.below(1500);
        life.load(steps);
        life.lose_disks(VolumeUuid([8; 16]));
        life.load(500);
        life.crash();
        life.load(200);
        life.settle();
        assert_eq!(life.acknowledged.len(), life.history.len(), "seed {seed}");
    }
}

/// Goal: a volume can be taken from a node that goes on meanwhile, deleting what its newer
/// checkpoints need no more (lives of a whole shard found that the volume was given up for damaged,
/// and read as an older checkpoint had it). Method: the old node drains, step by step beside the
/// new one, which reads all.
#[test]
fn a_busy_node_can_be_taken_from() {
    for seed in 2100..2200 {
        let mut life = Life::new(seed);
        life.load(600);
        life.volume.set_draining(true);
        let plan = Plan { takeover: true, ..plan(VolumeUuid([8; 16])) };
        let disks = Disks::new(JOURNAL, create(&plan, JOURNAL, seed));
        let mut world = World::new(seed, disks);
        let mut next = open(&mut world, plan, life.now);
        let buffer = vec![0; (BLOCKS * BLOCK) as usize];
        next.submit(1, BackingOperation::Read { offset: 0, buffer });
        let done = (0..20_000).find_map(|_| {
            std::mem::swap(&mut world.store, &mut life.world.store);
            world.take(next.take_actions());
            let end = world.step();
            std::mem::swap(&mut world.store, &mut life.world.store);
            end.into_iter().for_each(|(id, end)| next.on_end(id, end));
            life.now = life.now.saturating_add(Nanos::from_micros(100));
            next.on_tick(life.now);
            life.go_on();
            next.poll()
        });
        let done = done.expect("a read ends");
        assert_eq!(done.result, Ok(()), "seed {seed}: {:?}", next.status().link);
        let bytes = done.buffer.expect("a read's buffer comes back");
        let state: Vec<_> = bytes.chunks(BLOCK as usize).map(<[u8]>::to_vec).collect();
        life.prefix(&state, 0);
    }
}

/// Goal: a node that learns a volume from its store and loses its power meanwhile knows afterwards
/// what it does not know yet (lives of a whole shard found zeros, where the map file said how far
/// the volume was and not yet what it was). Method: a power cut after each step of learning.
#[test]
fn learning_can_be_interrupted() {
    for steps in 0..60 {
        let mut life = Life::learning(2400 + steps);
        for _ in 0..steps {
            life.step();
        }
        life.crash();
    }
}

/// Goal: what a node acknowledged on a volume that it has just learned outlives a power cut, and
/// what it did not does not come back later (a life of a whole shard found a write that was gone
/// after one power cut and there after the next: the map file did not say where the journal went
/// on). Method: empty disks, load for any number of steps, a power cut, a little load, another.
#[test]
fn writes_behind_a_learned_volume_are_found() {
    for steps in 0..150 {
        let mut life = Life::learning(2600 + steps);
        life.load(steps);
        life.crash();
        life.load(3);
        life.crash();
    }
}

/// Goal: nothing is read of a volume that this node could not learn. Method: the first segment is
/// gone from the store, and a node that knows nothing reads.
#[test]
fn what_could_not_be_learned_is_not_read() {
    let mut life = Life::new(2300);
    life.load(300);
    life.settle();
    let objects = &mut life.world.store.objects;
    objects.retain(|key, _| !key.starts_with("segments/") && !key.starts_with("checkpoints/"));
    let plan = plan(NODE);
    life.world.disks = Disks::new(JOURNAL, create(&plan, JOURNAL, 1));
    life.volume = open(&mut life.world, plan, life.now);
    for token in [1, 2] {
        let buffer = vec![0; BLOCK as usize];
        life.volume.submit(token, BackingOperation::Read { offset: 0, buffer });
        assert!(wait(&mut life, token).0.is_err(), "read {token}");
    }
    assert!(life.volume.is_lost());
}

/// Goal: what is stored stays within the bound of amplification, by cleaning and deleting, and the
/// tests above have seen it. Method: overwrites of a few blocks for long.
#[test]
fn cleaning_bounds_what_is_stored() {
    let mut life = Life::new(3000);
    for _ in 0..40 {
        life.load(500);
        life.settle();
    }
    let status = life.volume.status();
    assert!(status.counters.segments_deleted > 100, "{status:?}");
    assert!(status.counters.bytes_moved > 0, "{status:?}");
    let spare = status.segment_blocks_bytes - status.live_bytes;
    let bound = status.live_bytes / 4 + 4 * (128 << 10);
    assert!(spare <= bound, "{status:?}");
    let stored = life.world.store.objects.len() as u64;
    assert!(stored <= status.segments + 4, "{stored} objects for {} segments", status.segments);
}

/// Goal: what is cleaned of a segment is what the map says that lives there. Method: lives with
/// overwrites, cleaning and restarts; each segment's runs beside those of a pass over the map.
#[test]
fn segments_know_what_lives_in_them() {
    for seed in 3500..3510 {
        let mut life = Life::new(seed);
        for _ in 0..8 {
            life.load(200);
            let pass = life.volume.map().runs_by_segment();
            let numbers: Vec<u64> =
                life.volume.map().segments().map(|(number, _)| number).collect();
            for number in numbers {
                let expected = pass.get(&number).cloned().unwrap_or_default();
                assert_eq!(life.volume.map().runs_of(number), expected, "{}", life.line);
            }
            life.crash();
            life.settle();
        }
    }
}

/// Goal: an object that never answers holds up only reads of its own blocks. Method: one stuck
/// segment, then reads of all blocks.
#[test]
fn a_stuck_object_delays_its_own_blocks() {
    let mut life = Life::new(4000);
    life.load(1500);
    life.settle();
    life.volume.set_draining(false);
    let is_segment = |key: &&String| key.starts_with("segments/");
    let stuck = life.world.store.objects.keys().find(is_segment).cloned();
    life.world.store.stuck = stuck;
    for _ in 0..400 {
        life.read();
        life.write();
        for _ in 0..20 {
            life.step();
        }
    }
    let waiting = life.reads.len();
    assert!(waiting < 200, "{waiting} of 400 reads wait");
    life.world.store.stuck = None;
    life.settle();
    assert!(life.reads.is_empty(), "all end once it answers");
}

/// Goal: what lies where can be asked of parts of blocks (a client's block status is not aligned).
/// Method: one block of data behind zeros, and ranges that cut it.
#[test]
fn extents_of_any_range_are_told() {
    let mut life = Life::new(4500);
    life.settle();
    let buffer = vec![1; BLOCK as usize];
    life.volume.submit(1 << 50, BackingOperation::Write { offset: BLOCK, buffer, durable: false });
    assert_eq!(wait(&mut life, 1 << 50).0, Ok(()));
    for (offset, length) in [(BLOCK + 512, 512), (512, BLOCK), (2 * BLOCK - 512, 1024)] {
        life.volume.submit(1, BackingOperation::Extents { offset, length });
        let done = life.volume.poll().expect("it is told at once");
        let is_data = |byte: u64| {
            let at = |run: &&(u64, u64, bool)| (run.0..run.0 + run.1).contains(&byte);
            done.extents.iter().find(at).expect("all of the range is told").2
        };
        for byte in [offset, offset + length - 1] {
            assert_eq!(is_data(byte), byte / BLOCK == 1, "byte {byte} of {offset}+{length}");
        }
    }
}

/// Goal: rot in the journal is never served, nor uploaded. Method: a flipped bit in every page.
#[test]
fn rot_in_the_journal_is_found() {
    for seed in 5000..5020 {
        let mut life = Life::new(seed);
        life.settle();
        life.volume.set_draining(false);
        life.world.faults.is_cut = true;
        life.load(400);
        for page in 1..JOURNAL / BLOCK {
            life.world.disks.rot(page * BLOCK + 100);
        }
        for block in 0..BLOCKS {
            let buffer = vec![0; BLOCK as usize];
            let token = life.token();
            let before = life.ended();
            let offset = block * BLOCK;
            life.volume.submit(token, BackingOperation::Read { offset, buffer });
            life.reads.remove(&token);
            let done = wait(&mut life, token);
            let bytes = done.1.expect("a read's buffer comes back");
            let is_right = (before..=life.history.len()).any(|n| life.state(block, n) == bytes);
            assert!(done.0.is_err() || is_right, "seed {seed} block {block}");
        }
    }
}

fn wait(life: &mut Life, token: u64) -> (Result<(), layby_types::ErrorKind>, Option<Vec<u8>>) {
    for _ in 0..10_000 {
        let actions = life.volume.take_actions();
        life.world.take(actions);
        if let Some((id, end)) = life.world.step() {
            life.volume.on_end(id, end);
        } else {
            life.now = life.now.saturating_add(Nanos::from_millis(3));
            life.volume.on_tick(life.now);
        }
        while let Some(done) = life.volume.poll() {
            if done.token == token {
                return (done.result, done.buffer);
            }
        }
    }
    panic!("a read does not end: {}", life.line);
}

/// Goal: nothing acknowledged and synced is lost in power cuts, reads are never stale, and what
/// the store has is a prefix at every moment. Method: random lives with faults of the store.
#[test]
fn lives_keep_their_promises() {
    for seed in 0..60 {
        let mut life = Life::new(seed);
        for _ in 0..4 {
            let errors = life.world.rng.below(30);
            let lost_replies = life.world.rng.below(20);
            let is_cut = life.volume.status().committed > 0 && life.world.rng.chance(1, 6);
            let conflicts = life.world.rng.below(10);
            life.world.faults =
                Faults { errors, lost_replies, conflicts, is_cut, ..<_>::default() };
            life.world.cache_faults = errors;
            let steps = 100 + life.world.rng.below(1500);
            life.load(steps);
            life.restore();
            life.world.faults.is_cut = false;
            match life.world.rng.below(3) {
                0 => life.settle(),
                _ => life.crash(),
            }
        }
        life.settle();
        assert_eq!(life.acknowledged.len(), life.history.len(), "seed {seed}");
        let restored = life.restore();
        let whole = life.history.len();
        let same = (0..BLOCKS).all(|block| life.state(block, restored) == life.state(block, whole));
        assert!(same, "a drained volume is whole in the store: seed {seed}");
    }
}

/// Goal: the age of the oldest write that the store lacks counts on while the node is off, and
/// begins anew where a clock was wrong. Method: writes with the link cut, and starts at other
/// times.
#[test]
fn ages_outlive_the_node() {
    let mut life = Life::new(880);
    life.load(200);
    life.settle();
    life.world.faults.is_cut = true;
    while life.volume.status().dirty_bytes == 0 {
        life.load(20);
    }
    life.sync_all();
    let (end, age) = (life.now, life.volume.status().dirty_age);
    assert!(age > Nanos::ZERO);
    let hour = Nanos::from_secs(3600);
    let years = Nanos::from_secs(3 * 365 * 86_400);
    let starts = [
        (end.saturating_add(hour), age.saturating_add(hour)),
        (Nanos(end.0 - age.0 - 1), Nanos::ZERO),
        (end.saturating_add(years), Nanos::ZERO),
    ];
    for (now, age) in starts {
        life.stop();
        life.now = now;
        life.open_again();
        assert_eq!(life.volume.status().dirty_age, age, "at {now:?}");
    }
}
