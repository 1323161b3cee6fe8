//! An older copy of a node's directory, put back while its store is silent.
//!
//! How: a copy of the journal and of the map file is kept while the node serves the volume. Once
//! the store has changed, the copy starts beside the node, on a copy of the store: clients write
//! while nothing of the store answers; then it does.
//! Invariant: the copy is refused and changes nothing in the store, or nothing that it flushed is
//! missing there. The node itself does not notice; its chance is drawn apart.
//! Cost: a life of a few thousand steps. Not for: two copies that run at once; see `crates/cloud`.

use super::{CloudHome, State, open, step, versions};
use crate::plan::{BLOCK, BLOCKS};
use layby_cloud::simulated::{SimDisks, SimFaults, SimWorld};
use layby_cloud::{Link, Restored, Volume};
use layby_engine::io::Buffer;
use layby_types::{BackingOperation, Nanos, Rng};
use std::collections::{BTreeMap, BTreeSet};

/// Steps that the copy takes without a store, and with one, at most.
const STEPS_MAX: u32 = 4000;
/// Writes of the copy at most.
const WRITES_MAX: u64 = 60;
/// Tells this chance from a home's other.
const OLDER: u64 = 0x01de_ca5e;

/// What a node kept of a volume once.
pub(super) struct Older {
    disks: SimDisks,
    node: u8,
    /// What the store was then.
    stored: Vec<(String, u64)>,
}

impl CloudHome {
    /// Keeps a copy now and then; where there is one and the store has gone on, starts it. Whether
    /// it did, and was refused.
    pub(crate) fn older(&self) -> Result<bool, String> {
        let state = &mut *self.state();
        let older = state.older.take().filter(|older| older.node == state.node);
        let Some(older) = older else {
            state.keep();
            return Ok(false);
        };
        if versions(&state.world.store) == older.stored {
            state.older = Some(older);
            return Ok(false);
        }
        let mut rng = Rng::new(state.clock.0 ^ OLDER ^ (state.index as u64) << 60);
        start(state, older, &mut rng)
    }
}

impl State {
    /// Keeps what the node has now, if its store has ever said whose the volume is.
    pub(super) fn keep(&mut self) {
        let is_up = |volume: &Volume<Buffer>| volume.status().link == Link::Up;
        if self.volume.as_ref().is_some_and(is_up) {
            let (disks, stored) = (self.world.disks.clone(), versions(&self.world.store));
            self.older = Some(Older { disks, node: self.node, stored });
        }
    }
}

/// The copy beside its store.
struct Beside {
    world: SimWorld,
    volume: Volume<Buffer>,
    now: Nanos,
    /// Writes that are on their way, and those that were acknowledged: block and first byte.
    asked: BTreeMap<u64, (u64, u8)>,
    kept: BTreeMap<u64, BTreeSet<u8>>,
}

impl Beside {
    fn write(&mut self, token: u64, rng: &mut Rng) {
        let (block, byte) = (rng.below(BLOCKS), 1 + token as u8);
        let mut buffer = Buffer::zeroed(BLOCK as usize);
        buffer.fill(byte);
        let write = BackingOperation::Write { offset: block * BLOCK, buffer, durable: true };
        self.asked.insert(token, (block, byte));
        self.volume.submit(token, write);
    }

    fn step(&mut self) {
        self.now = self.now.saturating_add(Nanos(100_000));
        if !step(&mut self.volume, &mut self.world, self.now, &mut |_| ()) {
            let deadline = self.volume.next_deadline();
            if deadline != Nanos::NEVER {
                self.now = self.now.max(deadline);
            }
        }
        while let Some(done) = self.volume.poll() {
            let (block, byte) = self.asked.remove(&done.token).expect("a write ends once");
            if done.result.is_ok() {
                self.kept.insert(block, BTreeSet::from([byte]));
            } else if let Some(bytes) = self.kept.get_mut(&block) {
                bytes.insert(byte);
            }
        }
    }
}

fn start(state: &State, older: Older, rng: &mut Rng) -> Result<bool, String> {
    let mut world = SimWorld::new(rng.next_u64(), older.disks);
    world.store = state.world.store.clone();
    world.faults = SimFaults { is_cut: true, ..SimFaults::default() };
    let volume = open(state.plan(older.node), &mut world, state.clock)?;
    let (asked, kept) = (BTreeMap::new(), BTreeMap::new());
    let mut beside = Beside { world, volume, now: state.clock, asked, kept };
    let before = versions(&beside.world.store);
    let writes = rng.below(WRITES_MAX);
    for token in 0..writes {
        // One after the other, so that the newest of a block is known.
        beside.write(token, rng);
        let mut tries = STEPS_MAX / 20;
        while !beside.asked.is_empty() && tries > 0 {
            beside.step();
            tries -= 1;
        }
        if !beside.asked.is_empty() {
            // The journal is full.
            break;
        }
    }
    beside.world.faults.is_cut = false;
    beside.volume.set_draining(true);
    for _ in 0..STEPS_MAX * 5 {
        beside.step();
        if beside.volume.is_lost() {
            (0..20).for_each(|_| beside.step());
            let is_same = versions(&beside.world.store) == before;
            let why = "an older copy of a node changes its store";
            return if is_same { Ok(true) } else { Err(why.to_owned()) };
        }
        if beside.asked.is_empty() && beside.volume.is_drained() {
            return look(&beside).map(|()| false);
        }
    }
    Err(format!("an older copy of a node neither serves nor ends: {:?}", beside.volume.status()))
}

/// All that the copy flushed is in the store, if it serves the volume.
fn look(beside: &Beside) -> Result<(), String> {
    let store = &beside.world.store;
    let mut bytes = vec![0; (BLOCKS * BLOCK) as usize];
    let mut fetch = |key: &str, range| store.get(key, range).map(|(bytes, _)| bytes);
    let restored = Restored::open(&mut fetch).map_err(|error| error.to_string())?;
    let mut sink = |offset: u64, run: &[u8]| {
        bytes[offset as usize..][..run.len()].copy_from_slice(run);
        Ok(())
    };
    restored.copy(&mut fetch, &mut sink).map_err(|error| error.to_string())?;
    let is_there = |(block, values): (&u64, &BTreeSet<u8>)| {
        let found = &bytes[(block * BLOCK) as usize..][..BLOCK as usize];
        values.iter().any(|value| found.iter().all(|byte| byte == value))
    };
    match beside.kept.iter().all(is_there) {
        true => Ok(()),
        false => Err("an older copy of a node serves, and has lost what it flushed".to_owned()),
    }
}
