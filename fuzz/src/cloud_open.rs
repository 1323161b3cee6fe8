//! A cloud-backed volume that lives a little, is damaged anywhere, and is opened again.
//!
//! How: an input is a script: writes, zeroings, syncs, steps of the simulated world, power cuts;
//! then bits that change in the journal, the map file and the objects, objects and ends of the map
//! file that go. The volume is then opened from what the node has left and read as a whole, and
//! restored from what the store has left.
//! Invariant: nothing panics; each block that is read is one that was written there, whole, or is
//! reported; nothing is restored beyond the volume's end.
//! Not for: whether what must survive does; that is `cloud::tests::lives` and the proof.

use crate::Input;
use layby_cloud::simulated::{SimDisks, SimFaults, SimWorld};
use layby_cloud::{
    Compression, ConditionalPuts, Limits, Plan, Restored, Volume, VolumeUuid, create,
};
use layby_types::{BackingOperation, Nanos};

/// The ring's instance.
pub(crate) const INSTANCE: u64 = 7;
/// Bytes of the journal: as few as batches of this volume need.
pub(crate) const JOURNAL_BYTES: u64 = 48 << 12;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u64 = 4096;
const BLOCKS: u64 = 8;
/// Steps of the world that anything may take.
const STEPS_MAX: usize = 400;

fn plan() -> Plan {
    let limits = Limits {
        segment_bytes: 32 << 10,
        dirty_age_max: Nanos::from_millis(4),
        commit_interval: Nanos::from_millis(2),
        checkpoint_segments: 2,
        ..Limits::DEFAULT
    };
    Plan {
        volume: VolumeUuid([1; 16]),
        name: "v".to_owned(),
        node: VolumeUuid([2; 16]),
        size_bytes: BLOCKS * BLOCK_BYTES,
        block_bytes: BLOCK_BYTES as u32,
        compression: Compression::Zstd(1),
        takeover: false,
        was_found: false,
        puts: ConditionalPuts::Unknown,
        needs_conditions: true,
        limits,
    }
}

struct Life {
    world: SimWorld,
    volume: Option<Volume<Vec<u8>>>,
    now: Nanos,
    token: u64,
    /// What each block may hold: bytes that fill it.
    written: [Vec<u8>; BLOCKS as usize],
    /// Reads under way, by their marks.
    reads: Vec<u64>,
}

impl Life {
    fn new() -> Life {
        let disks = SimDisks::new(JOURNAL_BYTES, create(&plan(), JOURNAL_BYTES, INSTANCE));
        let mut life = Life {
            world: SimWorld::new(1, disks),
            volume: None,
            now: Nanos::ZERO,
            token: 0,
            written: std::array::from_fn(|_| vec![0]),
            reads: Vec::new(),
        };
        life.open();
        assert!(life.volume.is_some(), "whole disks open");
        life
    }

    fn open(&mut self) {
        self.reads.clear();
        let (map_file, disks) = (self.world.disks.map_file.clone(), &self.world.disks);
        let mut read = |at, length| disks.read(at, length);
        let opened = Volume::open(plan(), &map_file, self.now, 1, &mut read);
        self.volume = opened.ok().map(|opened| {
            self.world.disks.map_file = opened.map_file;
            opened.volume
        });
    }

    fn submit(&mut self, operation: BackingOperation<Vec<u8>>) {
        let Some(volume) = &mut self.volume else { return };
        self.token += 1;
        if matches!(operation, BackingOperation::Read { .. }) {
            self.reads.push(self.token);
        }
        volume.submit(self.token, operation);
    }

    fn write(&mut self, input: &mut Input<'_>) {
        let (block, fill) = (u64::from(input.byte()) % BLOCKS, input.byte());
        self.written[block as usize].push(fill);
        let buffer = vec![fill; BLOCK_BYTES as usize];
        let (offset, durable) = (block * BLOCK_BYTES, fill & 1 == 1);
        self.submit(BackingOperation::Write { offset, buffer, durable });
    }

    fn zero(&mut self, input: &mut Input<'_>) {
        let first = u64::from(input.byte()) % BLOCKS;
        let count = 1 + u64::from(input.byte()) % (BLOCKS - first);
        let (offset, length) = (first * BLOCK_BYTES, count * BLOCK_BYTES);
        self.submit(BackingOperation::Zero { offset, length, keep_allocated: false });
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            let Some(volume) = &mut self.volume else { return };
            self.world.take(volume.take_actions());
            match self.world.step() {
                Some((id, end)) => volume.on_end(id, end),
                None => {
                    self.now = self.now.saturating_add(Nanos::from_millis(1));
                    volume.on_tick(self.now);
                }
            }
            while let Some(done) = self.volume.as_mut().and_then(Volume::poll) {
                if self.reads.contains(&done.token) && done.result.is_ok() {
                    self.judge(0, &done.buffer.expect("a read's buffer comes back"));
                }
            }
        }
    }

    /// Each block is one that was written there, whole.
    fn judge(&self, offset: u64, bytes: &[u8]) {
        assert!(offset.is_multiple_of(BLOCK_BYTES), "whole blocks");
        for (block, bytes) in (offset / BLOCK_BYTES..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
            assert!(block < BLOCKS, "block {block} is beyond the end");
            let is_whole = bytes.iter().all(|byte| *byte == bytes[0]);
            let is_own = self.written[block as usize].contains(&bytes[0]);
            assert!(is_whole && is_own, "block {block} reads {:?}", &bytes[..4]);
        }
    }

    fn cut(&mut self) {
        if let Some(volume) = &mut self.volume {
            self.world.take(volume.take_actions());
        }
        self.volume = None;
        self.world.cut_power();
    }

    fn perform(&mut self, deed: u8, input: &mut Input<'_>) {
        match deed {
            0..=2 => self.write(input),
            3 => self.zero(input),
            4 => self.submit(BackingOperation::Sync),
            5..=7 => self.steps(1 + usize::from(input.byte() % 32)),
            8 => {
                self.cut();
                self.open();
            }
            9 => {
                let (errors, lost_replies) = (input.byte() % 40, input.byte() % 40);
                let (errors, lost_replies) = (errors.into(), lost_replies.into());
                self.world.faults = SimFaults { errors, lost_replies, ..SimFaults::default() };
            }
            _ => {
                let is_draining = input.byte() & 1 == 1;
                self.volume.iter_mut().for_each(|volume| volume.set_draining(is_draining));
            }
        }
    }

    /// Something that lies still changes.
    fn damage(&mut self, input: &mut Input<'_>) {
        let (what, which, at) = (input.byte(), input.byte(), usize::from(input.number()));
        let objects = &mut self.world.store.objects;
        let key = objects.keys().nth(usize::from(which) % objects.len().max(1)).cloned();
        match (what % 6, key) {
            (0, _) => self.world.disks.rot(at as u64 * 5 % JOURNAL_BYTES),
            (1, _) => {
                let file = &mut self.world.disks.map_file;
                let length = file.len().max(1);
                file.iter_mut().skip(at % length).take(1).for_each(|byte| *byte ^= which | 1);
            }
            (2, _) => {
                let length = at % (self.world.disks.map_file.len() + 1);
                self.world.disks.map_file.truncate(length);
            }
            (3, Some(key)) => drop(objects.remove(&key)),
            (4, Some(key)) => {
                let (bytes, _) = objects.get_mut(&key).expect("it was just listed");
                let length = at % (bytes.len() + 1);
                bytes.truncate(length);
            }
            (_, Some(key)) => {
                let (bytes, _) = objects.get_mut(&key).expect("it was just listed");
                let mut changed = bytes.to_vec();
                let length = changed.len().max(1);
                changed.iter_mut().skip(at % length).take(1).for_each(|byte| *byte ^= which | 1);
                *bytes = changed.into();
            }
            (_, None) => {}
        }
    }

    /// What the store alone has.
    fn restore(&self) {
        let mut fetch = |key: &str, range| self.world.store.get(key, range).map(|(bytes, _)| bytes);
        let Ok(restored) = Restored::open(&mut fetch) else { return };
        let mut sink = |offset: u64, bytes: &[u8]| {
            self.judge(offset, bytes);
            Ok(())
        };
        let pass = restored.copy(&mut fetch, &mut sink).expect("nothing refuses here");
        assert!(pass.bytes <= BLOCKS * BLOCK_BYTES, "{pass:?}");
    }
}

/// Lives a script and opens what is left.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut life = Life::new();
    while !input.is_empty() {
        match input.byte() % 16 {
            11.. => break,
            deed => life.perform(deed, &mut input),
        }
    }
    life.cut();
    while !input.is_empty() {
        life.damage(&mut input);
    }
    life.restore();
    life.world.faults = SimFaults::default();
    life.open();
    let buffer = vec![0xee; (BLOCKS * BLOCK_BYTES) as usize];
    life.submit(BackingOperation::Read { offset: 0, buffer });
    life.submit(BackingOperation::Sync);
    life.steps(STEPS_MAX);
}

/// A life of some writes that is all in the store and partly in the journal.
const SCRIPT: [u8; 26] =
    [0, 1, 10, 1, 2, 11, 4, 5, 31, 3, 1, 1, 10, 1, 6, 31, 0, 5, 13, 4, 5, 31, 6, 31, 0, 9];

/// The world of a life without damage, for who wants its objects.
pub(crate) fn lived() -> SimWorld {
    let mut life = Life::new();
    let mut input = Input::new(&SCRIPT);
    while !input.is_empty() {
        let deed = input.byte() % 11;
        life.perform(deed, &mut input);
    }
    life.steps(100);
    life.world
}

/// Scripts, with damage of each kind and without.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let with = |rest: &[u8]| [&SCRIPT[..], &[15], rest].concat();
    let mut seeds = vec![("sound".to_owned(), SCRIPT.to_vec())];
    let kinds = ["journal", "map", "map_cut", "object_gone", "object_cut", "object_changed"];
    for (kind, name) in (0..).zip(kinds) {
        seeds.push((name.to_owned(), with(&[kind, 3, 50, 3])));
    }
    seeds.push(("cut_and_on".to_owned(), [&SCRIPT[..], &[8, 0, 1, 2, 4, 5, 31], &SCRIPT].concat()));
    seeds.push(("bad_store".to_owned(), [&[9, 30, 30], &SCRIPT[..]].concat()));
    seeds
}
