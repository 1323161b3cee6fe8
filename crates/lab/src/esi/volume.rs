//! A volume in an object store, in virtual time: the node's own code over models.
//!
//! How: `layby_cloud::Volume`, the state machine that serves, asks for writes and syncs of its
//! journal, for reads of it, for its map file and for requests to a store. A disk does the first
//! ones one after the other; the store and its link, as `device` models them, say when a request
//! ends. One client writes in order, so many writes at once, and then asks for all to be uploaded.
//! Invariant: the same plan and seed give the same outcome; what the store has at the end is all
//! that was written.
//! Cost: a copy or three of every byte; memory for the journal and all objects.
//! Not for: what a file system or a cache does above; see `bench esi`. Chance in the node.

use bytes::Bytes;
use layby_cloud::simulated::SimStore;
use layby_cloud::{
    Action, ActionId, Compression, ConditionalPuts, End, Fault, FaultKind, Limits,
    Plan as VolumePlan, Request, Volume, VolumeUuid, create,
};
use layby_sim::device::link::{Link, LinkPoint};
use layby_sim::device::object_store::{Answer, ObjectStore, RequestKind, StoreModel};
use layby_types::{BackingOperation, Nanos};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

pub(super) const BLOCK: u64 = 4096;

/// What holds the journal and the map file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) bytes_per_second: u64,
    /// A sync beside its bytes.
    pub(super) sync: Nanos,
}

/// A volume and its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Files, and bytes of each; a file takes whole blocks.
    pub(super) files: u64,
    pub(super) file_bytes: u64,
    /// The longest write, and how many are under way at once.
    pub(super) write_bytes: u64,
    pub(super) depth: usize,
    pub(super) journal_bytes: u64,
    pub(super) disk: Disk,
    pub(super) link_bytes_per_second: u64,
    pub(super) round_trip: Nanos,
    pub(super) seed: u64,
}

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// When the last write was acknowledged, and when the store had everything.
    pub(super) written: Nanos,
    pub(super) stored: Nanos,
    /// Bytes of files, of the blocks that hold them, and of all puts.
    pub(super) payload: u64,
    pub(super) blocks: u64,
    pub(super) put: u64,
    pub(super) requests: u64,
    /// From submission to acknowledgement of a write, at most.
    pub(super) longest_wait: Nanos,
}

impl Outcome {
    /// Bytes per second from the first write until the store had everything, by what is counted.
    pub(super) fn rate(&self, bytes: u64) -> f64 {
        bytes as f64 / self.stored.as_secs_f64().max(1e-9)
    }
}

struct Host {
    plan: Plan,
    now: Nanos,
    volume: Volume<Vec<u8>>,
    journal: Vec<u8>,
    read_cache: Vec<u8>,
    map_file: Vec<u8>,
    contents: SimStore,
    store: ObjectStore,
    /// The disk has done what was asked of it.
    disk_free: Nanos,
    ends: BinaryHeap<Reverse<(Nanos, u64)>>,
    waiting: BTreeMap<u64, (ActionId, Action, Answer)>,
    order: u64,
    /// The next file and the first byte of it that is not submitted.
    file: u64,
    at: u64,
    /// Writes under way: since when.
    writes: BTreeMap<u64, Nanos>,
    token: u64,
    outcome: Outcome,
}

/// Lives through a plan. Panics when the volume's code breaks a promise.
pub(super) fn run(plan: &Plan) -> Outcome {
    let mut host = Host::new(plan);
    loop {
        host.write();
        host.act();
        host.collect();
        if host.is_written() {
            host.volume.set_draining(true);
            host.act();
            if host.volume.is_drained() {
                break;
            }
        } else if host.file < plan.files && host.writes.len() < plan.depth {
            // A write was acknowledged within the call that submitted it.
            continue;
        }
        host.pass();
    }
    host.finish()
}

impl Host {
    fn new(plan: &Plan) -> Host {
        let file_blocks = plan.file_bytes.div_ceil(BLOCK);
        let volume = VolumePlan {
            volume: VolumeUuid([1; 16]),
            name: "esi".into(),
            node: VolumeUuid([2; 16]),
            size_bytes: plan.files * file_blocks * BLOCK,
            block_bytes: BLOCK as u32,
            compression: Compression::None,
            takeover: false,
            was_found: false,
            puts: ConditionalPuts::Kept,
            needs_conditions: true,
            limits: Limits::DEFAULT,
        };
        let (map_file, first_page) = create(&volume, plan.journal_bytes, 1);
        let mut journal = vec![0; plan.journal_bytes as usize];
        journal[..first_page.len()].copy_from_slice(&first_page);
        let mut read =
            |at: u64, length: u64| Ok(journal[at as usize..(at + length) as usize].to_vec());
        let opened = Volume::open(volume, &map_file, Nanos::ZERO, plan.seed, &mut read);
        let opened = opened.expect("what was just made opens");
        let point = LinkPoint {
            at: Nanos::ZERO,
            bytes_per_second: plan.link_bytes_per_second,
            round_trip: plan.round_trip,
        };
        let link = Link::new(vec![point], Nanos::from_secs(1)).expect("a steady link");
        Host {
            plan: *plan,
            now: Nanos::ZERO,
            volume: opened.volume,
            journal,
            read_cache: Vec::new(),
            map_file: opened.map_file,
            contents: SimStore::default(),
            store: ObjectStore::new(StoreModel::DEFAULT, link.clone(), link, plan.seed),
            disk_free: Nanos::ZERO,
            ends: BinaryHeap::new(),
            waiting: BTreeMap::new(),
            order: 0,
            file: 0,
            at: 0,
            writes: BTreeMap::new(),
            token: 0,
            outcome: Outcome::default(),
        }
    }

    fn is_written(&self) -> bool {
        self.file == self.plan.files && self.writes.is_empty()
    }

    /// Submits writes while fewer are under way than may be.
    fn write(&mut self) {
        let file_bytes = self.plan.file_bytes.div_ceil(BLOCK) * BLOCK;
        while self.writes.len() < self.plan.depth && self.file < self.plan.files {
            let length = (file_bytes - self.at).min(self.plan.write_bytes.div_ceil(BLOCK) * BLOCK);
            let offset = self.file * file_bytes + self.at;
            // No two writes are alike, and none is zeros.
            let buffer = vec![(self.token % 255) as u8 + 1; length as usize];
            self.token += 1;
            self.writes.insert(self.token, self.now);
            self.outcome.blocks += length;
            self.at += length;
            if self.at == file_bytes {
                (self.file, self.at) = (self.file + 1, 0);
                self.outcome.payload += self.plan.file_bytes;
            }
            let operation = BackingOperation::Write { offset, buffer, durable: false };
            self.volume.submit(self.token, operation);
        }
    }

    /// Begins what the volume asks for.
    fn act(&mut self) {
        loop {
            let actions = self.volume.take_actions();
            if actions.is_empty() {
                return;
            }
            for (id, action) in actions {
                let (at, answer) = self.begin(&action);
                self.order += 1;
                self.ends.push(Reverse((at, self.order)));
                self.waiting.insert(self.order, (id, action, answer));
            }
        }
    }

    /// When an action ends, and how.
    fn begin(&mut self, action: &Action) -> (Nanos, Answer) {
        let disk = self.plan.disk;
        let mut use_disk = |bytes: u64, more: Nanos| {
            let moved = u128::from(bytes) * 1_000_000_000 / u128::from(disk.bytes_per_second);
            let from = self.disk_free.max(self.now);
            self.disk_free = Nanos(from.0 + moved as u64 + more.0);
            (self.disk_free, Answer::Done)
        };
        match action {
            Action::JournalWrite { bytes, .. } => use_disk(bytes.len() as u64, Nanos::ZERO),
            Action::JournalSync => use_disk(0, disk.sync),
            Action::CacheWrite { bytes, .. } => use_disk(bytes.len() as u64, Nanos::ZERO),
            Action::JournalRead { length, .. } | Action::CacheRead { length, .. } => {
                use_disk(*length, Nanos::ZERO)
            }
            Action::MapAppend(bytes) | Action::MapReplace(bytes) => {
                use_disk(bytes.len() as u64, disk.sync)
            }
            Action::EncodeMap(_) => (self.now, Answer::Done),
            Action::Object(request) | Action::Fetch(request) | Action::Upload { request, .. } => {
                self.request(request)
            }
        }
    }

    fn request(&mut self, request: &Request) -> (Nanos, Answer) {
        let (kind, bytes) = match request {
            Request::Put { bytes, .. } => (RequestKind::Put, bytes.len() as u64),
            Request::Get { key, range } => {
                let found = self.contents.get(key, range.clone());
                (RequestKind::Get, found.map_or(0, |(bytes, _)| bytes.len() as u64))
            }
            Request::Delete { .. } | Request::DeleteMany { .. } => (RequestKind::Delete, 0),
            Request::List { .. } => (RequestKind::List, 0),
        };
        let outcome = self.store.request(kind, bytes, self.now);
        (outcome.at, outcome.answer)
    }

    /// Time goes on until the next end or the volume's next deadline.
    fn pass(&mut self) {
        let end = self.ends.peek().map_or(Nanos::NEVER, |Reverse((at, _))| *at);
        let deadline = self.volume.next_deadline().max(self.now);
        assert!(end.min(deadline) < Nanos::NEVER, "the volume waits for nothing");
        if deadline < end {
            self.now = deadline;
            return self.volume.on_tick(self.now);
        }
        self.now = end;
        self.volume.set_now(end);
        let Reverse((_, order)) = self.ends.pop().expect("it was seen");
        let (id, action, answer) = self.waiting.remove(&order).expect("an action ends once");
        let end = self.end(action, answer);
        self.volume.on_end(id, end);
    }

    /// Carries an action out, at its end.
    fn end(&mut self, action: Action, answer: Answer) -> End {
        match action {
            Action::JournalWrite { at, bytes } => {
                self.journal[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                End::Done
            }
            Action::JournalRead { at, length } => {
                let read = &self.journal[at as usize..(at + length) as usize];
                End::Bytes(Bytes::copy_from_slice(read), None)
            }
            Action::JournalSync => End::Done,
            Action::CacheWrite { at, bytes } => {
                let end = at as usize + bytes.len();
                self.read_cache.resize(self.read_cache.len().max(end), 0);
                self.read_cache[at as usize..end].copy_from_slice(&bytes);
                End::Done
            }
            Action::CacheRead { at, length } => {
                let read = &self.read_cache[at as usize..(at + length) as usize];
                End::Bytes(Bytes::copy_from_slice(read), None)
            }
            Action::MapAppend(bytes) => {
                self.map_file.extend(bytes);
                End::Done
            }
            Action::MapReplace(bytes) => {
                self.map_file = bytes;
                End::Done
            }
            Action::EncodeMap(image) => End::Bytes(image.encode().into(), None),
            Action::Object(request) | Action::Fetch(request) | Action::Upload { request, .. } => {
                match answer {
                    Answer::Done => self.contents.perform(&request),
                    Answer::Error | Answer::Throttled | Answer::TimedOut => {
                        let cause = "the store's model refused it".to_owned();
                        End::Failed(Fault { kind: FaultKind::Retry, cause })
                    }
                }
            }
        }
    }

    fn collect(&mut self) {
        while let Some(done) = self.volume.poll() {
            assert_eq!(done.result, Ok(()), "a write without a time to be answered in ends well");
            let since = self.writes.remove(&done.token).expect("a write ends once");
            self.outcome.longest_wait = self.outcome.longest_wait.max(self.now.since(since));
            self.outcome.written = self.now;
        }
    }

    fn finish(mut self) -> Outcome {
        assert!(self.volume.status().live_bytes >= self.outcome.blocks, "the store has it all");
        let counters = self.store.counters();
        self.outcome.stored = self.now;
        self.outcome.requests = counters.requests.iter().sum();
        self.outcome.put = counters.bytes_up;
        self.outcome
    }
}
