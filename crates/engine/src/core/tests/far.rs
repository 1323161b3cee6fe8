//! A home that ends calls when the test says so, and a core with such a home beside a file.
//!
//! How: the home keeps a journal of what it has accepted, as a cloud's does: a power cut leaves a
//! prefix of it, and at least what a sync or a durable write covered.

use super::*;
use crate::backing::RemoteBacking;
use crate::io::Waker;
use layby_types::{Backing, BackingDone, BackingOperation};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};

/// The volume whose home is remote; the other one's is a file.
pub(super) const FAR: u32 = 2;
pub(super) const NEAR: u32 = 1;
pub(super) const LENGTH: u64 = BLOCKS * BLOCK;

/// See the file's header.
#[derive(Clone)]
pub(super) struct FarHome {
    state: Arc<Mutex<FarState>>,
    waker: Waker,
    /// Hears of each call, where somebody wants to.
    pub(super) calls: Option<Sender<()>>,
}

pub(super) struct FarState {
    pub(super) bytes: Vec<u8>,
    /// What the bytes were when the journal began.
    base: Vec<u8>,
    journal: Vec<(usize, Vec<u8>)>,
    /// How much of the journal a power cut leaves at least.
    durable: usize,
    /// Syncs that were asked for, and what they cover.
    syncs: HashMap<u64, usize>,
    /// What has been asked and not been answered, oldest first.
    pub(super) asked: Vec<(u64, BackingOperation<Buffer>)>,
    ended: VecDeque<BackingDone<Buffer>>,
    pub(super) is_hurried: bool,
    pub(super) is_closed: bool,
    /// Ranges that it has at hand.
    pub(super) at_hand: VecDeque<std::ops::Range<u64>>,
}

impl FarHome {
    pub(super) fn new(waker: Waker) -> FarHome {
        let bytes = vec![0; LENGTH as usize];
        let state = FarState {
            base: bytes.clone(),
            bytes,
            journal: Vec::new(),
            durable: 0,
            syncs: HashMap::new(),
            asked: Vec::new(),
            ended: VecDeque::new(),
            is_hurried: false,
            is_closed: false,
            at_hand: VecDeque::new(),
        };
        FarHome { state: Arc::new(Mutex::new(state)), waker, calls: None }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FarState> {
        self.state.lock().expect("no test panics while it holds the home")
    }

    pub(super) fn boxed(&self) -> RemoteBacking {
        Box::new(self.clone())
    }

    /// Ends the call at a place among those that wait.
    pub(super) fn end(&self, index: usize, result: Result<(), ErrorKind>) {
        self.end_with(index, result.is_ok(), result);
    }

    /// The same; what failed may have been done all the same.
    pub(super) fn end_with(&self, index: usize, is_done: bool, result: Result<(), ErrorKind>) {
        let mut state = self.state();
        let (token, operation) = state.asked.remove(index);
        let done = state.perform(token, operation, is_done, result);
        state.ended.push_back(done);
        drop(state);
        self.waker.wake();
    }

    /// It has bytes at hand, and says so.
    pub(super) fn offer(&self, bytes: std::ops::Range<u64>) {
        self.state().at_hand.push_back(bytes);
        self.waker.wake();
    }

    pub(super) fn end_all(&self) {
        while !self.state().asked.is_empty() {
            self.end(0, Ok(()));
        }
    }
}

impl FarState {
    fn perform(
        &mut self,
        token: u64,
        operation: BackingOperation<Buffer>,
        is_done: bool,
        result: Result<(), ErrorKind>,
    ) -> BackingDone<Buffer> {
        let (mut extents, mut returned) = (Vec::new(), None);
        match operation {
            BackingOperation::Read { offset, mut buffer }
            | BackingOperation::ReadAtHand { offset, mut buffer } => {
                let length = buffer.len();
                buffer.copy_from_slice(&self.bytes[offset as usize..][..length]);
                returned = Some(buffer);
            }
            BackingOperation::Write { offset, buffer, durable } => {
                if is_done {
                    self.accept(offset, buffer.to_vec());
                    self.durable = if durable { self.journal.len() } else { self.durable };
                }
                returned = Some(buffer);
            }
            BackingOperation::Zero { offset, length, .. } if is_done => {
                self.accept(offset, vec![0; length as usize]);
            }
            BackingOperation::Zero { .. } => {}
            BackingOperation::Extents { offset, length } => extents.push((offset, length, true)),
            BackingOperation::Sync => {
                let covered = self.syncs.remove(&token).expect("it was asked for");
                self.durable = if is_done { self.durable.max(covered) } else { self.durable };
            }
        }
        BackingDone { token, result, buffer: returned, extents }
    }

    fn accept(&mut self, offset: u64, bytes: Vec<u8>) {
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        self.journal.push((offset as usize, bytes));
    }

    /// The power is cut: a prefix of the journal stays.
    fn crash(&mut self, rng: &mut Rng) {
        let volatile = (self.journal.len() - self.durable) as u64;
        self.journal.truncate(self.durable + rng.below(volatile + 1) as usize);
        for (offset, bytes) in self.journal.drain(..) {
            self.base[offset..][..bytes.len()].copy_from_slice(&bytes);
        }
        self.bytes.clone_from(&self.base);
        self.durable = 0;
        self.syncs.clear();
        self.asked.clear();
        self.ended.clear();
        self.at_hand.clear();
    }
}

impl Backing<Buffer> for FarHome {
    fn submit(&mut self, token: u64, operation: BackingOperation<Buffer>) {
        let mut state = self.state();
        if matches!(operation, BackingOperation::Sync) {
            let covered = state.journal.len();
            state.syncs.insert(token, covered);
        }
        state.asked.push((token, operation));
        drop(state);
        if let Some(calls) = &self.calls {
            calls.send(()).expect("the home's thread listens");
        }
    }

    fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        self.state().ended.pop_front()
    }

    fn poll_at_hand(&mut self) -> Option<std::ops::Range<u64>> {
        self.state().at_hand.pop_front()
    }

    fn name(&self) -> &str {
        "far"
    }

    fn resize(&mut self, length: u64) -> Result<(), ErrorKind> {
        self.state().bytes.resize(length as usize, 0);
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    fn stop_waiting(&mut self) {
        self.state().is_hurried = true;
        while !self.state().asked.is_empty() {
            self.end(0, Err(ErrorKind::Closed));
        }
    }
}

pub(super) fn volume_spec(id: u32, class: u8) -> VolumeSpec {
    let shares = [Share::OPEN; LEVELS_MAX];
    let (id, class, write_through) = (VolumeId(id), ClassId(class), id == FAR);
    VolumeSpec { id, class, length: LENGTH, shares, write_through }
}

/// A core with a file home and a remote one.
pub(super) struct FarWorld {
    pub(super) io: SimIo,
    pub(super) core: Core,
    pub(super) home: FarHome,
    shape: Shape,
    /// The remote volume's class.
    class: u8,
    next: u64,
    pub(super) finished: HashMap<u64, Result<Answer, ErrorKind>>,
}

fn start_far(
    io: &mut SimIo,
    shape: &Shape,
    (home, class): (&FarHome, u8),
    format: bool,
    seed: u64,
) -> Core {
    let mut disk = |name| io.attach_disk(name).expect("the machine has it");
    let (nvm, ssd, near) = (disk("nvm"), disk("ssd"), disk("near"));
    let region = |disk, length| Region { disk, base: 0, length, block_size: BlockSize::MIN };
    let plans = [
        LevelPlan::Memory { slots: shape.spec.levels[0].slots },
        LevelPlan::Nvm {
            region: region(nvm, shape.nvm_bytes),
            format,
            is_strict: false,
            known: None,
        },
        LevelPlan::Ssd {
            region: region(ssd, shape.ssd_bytes),
            format,
            is_strict: false,
            known: None,
            segments: Default::default(),
            wear: shape.wear,
        },
    ];
    let far = HomePlan {
        spec: volume_spec(FAR, class),
        place: HomePlace::Remote(home.boxed()),
        device: None,
        protected: None,
    };
    let near = HomePlan::on_disk(volume_spec(NEAR, 1), near, "near".into());
    let homes = vec![near, far];
    let started = Core::start(io, shape.spec.clone(), &plans, IDENTITY, homes, seed);
    started.unwrap_or_else(|error| panic!("replay with SEED={seed}: {error:?}")).0
}

impl FarWorld {
    pub(super) fn new(seed: u64, shape: Shape, class: u8) -> FarWorld {
        let mut io = SimIo::new(seed);
        io.add_disk("nvm", shape.nvm_bytes);
        io.add_disk("ssd", shape.ssd_bytes);
        io.add_disk("near", LENGTH);
        let home = FarHome::new(io.waker());
        let core = start_far(&mut io, &shape, (&home, class), true, seed);
        FarWorld { io, core, home, shape, class, next: 1, finished: HashMap::new() }
    }

    /// Roomy, with memory, without read-ahead.
    pub(super) fn roomy(seed: u64) -> FarWorld {
        let mut shape = Shape::roomy();
        shape.spec.classes[1].levels = 0b101;
        shape.spec.read_ahead.window_bytes_max = 0;
        FarWorld::new(seed, shape, 1)
    }

    pub(super) fn crash(&mut self, mode: CrashMode, rng: &mut Rng, seed: u64) {
        self.io.crash(mode);
        self.home.state().crash(rng);
        self.finished.clear();
        self.core = start_far(&mut self.io, &self.shape, (&self.home, self.class), false, seed);
    }

    pub(super) fn ask(&mut self, volume: u32, call: Call, value: u8) -> u64 {
        let number = self.next;
        self.next += 1;
        let is_write = call.operation == Operation::Write;
        let payload = vec![value; if is_write { call.length as usize } else { 0 }];
        self.core.submit(&mut self.io, Asker(number), VolumeId(volume), call, &payload, None);
        number
    }

    pub(super) fn turns(&mut self, count: u32) {
        for _ in 0..count {
            self.core.turn(&mut self.io);
            self.collect();
        }
    }

    pub(super) fn collect(&mut self) {
        while let Some(finished) = self.core.take_finished() {
            self.finished.insert(finished.asker.0, finished.result);
        }
    }

    /// Turns until a request has ended; the remote home ends nothing by itself.
    pub(super) fn wait(&mut self, number: u64) -> Result<Answer, ErrorKind> {
        for _ in 0..TURNS_MAX {
            self.collect();
            if let Some(result) = self.finished.remove(&number) {
                return result;
            }
            self.core.turn(&mut self.io);
        }
        panic!("request {number} never ends");
    }

    /// The same with a home that answers at once.
    pub(super) fn run(&mut self, volume: u32, call: Call, value: u8) -> Result<Answer, ErrorKind> {
        let number = self.ask(volume, call, value);
        for _ in 0..TURNS_MAX {
            self.collect();
            if let Some(result) = self.finished.remove(&number) {
                return result;
            }
            self.home.end_all();
            self.core.turn(&mut self.io);
        }
        panic!("{call:?} never ends");
    }
}
