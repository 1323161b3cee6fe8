//! Homes that end calls elsewhere: late, in any order, with errors, never.

use super::*;
use crate::backing::RemoteBacking;
use crate::io::{HostIo, IoChoice, Waker};
use layby_types::{Backing, BackingDone, BackingOperation};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};

/// The volume whose home is remote; the other one's is a file.
const FAR: u32 = 2;
const NEAR: u32 = 1;
const LENGTH: u64 = BLOCKS * BLOCK;

/// A remote home in memory, whose calls end when the test says so.
#[derive(Clone)]
pub(super) struct FarHome {
    state: Arc<Mutex<FarState>>,
    waker: Waker,
    /// Hears of each call, where somebody wants to.
    calls: Option<Sender<()>>,
}

pub(super) struct FarState {
    pub(super) bytes: Vec<u8>,
    /// What has been asked and not been answered, oldest first.
    pub(super) asked: Vec<(u64, BackingOperation<Buffer>)>,
    ended: VecDeque<BackingDone<Buffer>>,
    is_hurried: bool,
}

impl FarHome {
    pub(super) fn new(waker: Waker) -> FarHome {
        let bytes = vec![0; LENGTH as usize];
        let state =
            FarState { bytes, asked: Vec::new(), ended: VecDeque::new(), is_hurried: false };
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
        let mut state = self.state();
        let (token, operation) = state.asked.remove(index);
        let done = state.perform(token, operation, result);
        state.ended.push_back(done);
        drop(state);
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
        result: Result<(), ErrorKind>,
    ) -> BackingDone<Buffer> {
        let (mut extents, is_done) = (Vec::new(), result.is_ok());
        let buffer = match operation {
            BackingOperation::Read { offset, mut buffer } => {
                let length = buffer.len();
                buffer.copy_from_slice(&self.bytes[offset as usize..][..length]);
                Some(buffer)
            }
            BackingOperation::Write { offset, buffer, .. } => {
                if is_done {
                    self.bytes[offset as usize..][..buffer.len()].copy_from_slice(&buffer);
                }
                Some(buffer)
            }
            BackingOperation::Zero { offset, length, .. } => {
                if is_done {
                    self.bytes[offset as usize..][..length as usize].fill(0);
                }
                None
            }
            BackingOperation::Extents { offset, length } => {
                extents.push((offset, length, true));
                None
            }
            BackingOperation::Sync => None,
        };
        BackingDone { token, result, buffer, extents }
    }
}

impl Backing<Buffer> for FarHome {
    fn submit(&mut self, token: u64, operation: BackingOperation<Buffer>) {
        self.state().asked.push((token, operation));
        if let Some(calls) = &self.calls {
            calls.send(()).expect("the home's thread listens");
        }
    }

    fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        self.state().ended.pop_front()
    }

    fn name(&self) -> &str {
        "far"
    }

    fn resize(&mut self, length: u64) -> Result<(), ErrorKind> {
        self.state().bytes.resize(length as usize, 0);
        Ok(())
    }

    fn stop_waiting(&mut self) {
        self.state().is_hurried = true;
        while !self.state().asked.is_empty() {
            self.end(0, Err(ErrorKind::Closed));
        }
    }
}

fn volume_spec(id: u32, class: u8) -> VolumeSpec {
    let shares = [Share::OPEN; LEVELS_MAX];
    let (id, class, write_through) = (VolumeId(id), ClassId(class), id == FAR);
    VolumeSpec { id, class, length: LENGTH, shares, write_through }
}

/// A core with a file home and a remote one.
pub(super) struct FarWorld {
    pub(super) io: SimIo,
    pub(super) core: Core,
    pub(super) home: FarHome,
    next: u64,
    pub(super) finished: HashMap<u64, Result<Answer, ErrorKind>>,
}

impl FarWorld {
    pub(super) fn new(seed: u64, spec: &CacheSpec) -> FarWorld {
        let mut io = SimIo::new(seed);
        let region = |disk, length| Region { disk, base: 0, length, block_size: BlockSize::MIN };
        let nvm = io.add_disk("nvm", 40 * BLOCK);
        let ssd = io.add_disk("ssd", 2 << 20);
        let near = io.add_disk("near", LENGTH);
        let plans = [
            LevelPlan::Memory { slots: spec.levels[0].slots },
            LevelPlan::Nvm { region: region(nvm, 40 * BLOCK), format: true },
            LevelPlan::Ssd {
                region: region(ssd, 2 << 20),
                format: true,
                wear: WearPlan::default(),
            },
        ];
        let home = FarHome::new(io.waker());
        let far = HomePlan { spec: volume_spec(FAR, 1), place: HomePlace::Remote(home.boxed()) };
        let near = HomePlan::on_disk(volume_spec(NEAR, 1), near, "near".into());
        let homes = vec![near, far];
        let (core, _) = Core::start(&mut io, spec.clone(), &plans, IDENTITY, homes, seed)
            .expect("a core of empty disks");
        FarWorld { io, core, home, next: 1, finished: HashMap::new() }
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
            while let Some(finished) = self.core.take_finished() {
                self.finished.insert(finished.asker.0, finished.result);
            }
        }
    }

    /// Turns until a request has ended; the remote home ends nothing by itself.
    pub(super) fn wait(&mut self, number: u64) -> Result<Answer, ErrorKind> {
        for _ in 0..TURNS_MAX {
            if let Some(result) = self.finished.remove(&number) {
                return result;
            }
            self.turns(1);
        }
        panic!("request {number} never ends");
    }

    /// The same with a home that answers at once.
    pub(super) fn run(&mut self, volume: u32, call: Call, value: u8) -> Result<Answer, ErrorKind> {
        let number = self.ask(volume, call, value);
        for _ in 0..TURNS_MAX {
            if let Some(result) = self.finished.remove(&number) {
                return result;
            }
            self.home.end_all();
            self.turns(1);
        }
        panic!("{call:?} never ends");
    }
}

fn data(answer: Result<Answer, ErrorKind>) -> Vec<u8> {
    match answer {
        Ok(Answer::Data(data)) => data,
        other => panic!("a read gives data, not {other:?}"),
    }
}

/// Goal: a remote read that never ends delays nobody but those who want its blocks. Method: one
/// hangs; the other volume writes, reads, flushes, drains; blocks of the same volume are read; a
/// snapshot and a checkpoint come through; then the read ends.
#[test]
fn a_hanging_read_delays_its_own_blocks_only() {
    let mut spec = spec();
    spec.read_ahead.window_bytes_max = 0;
    let mut world = FarWorld::new(1, &spec);
    world.home.state().bytes.fill(9);
    let hangs = world.ask(FAR, call(Operation::Read, 0, BLOCK), 0);
    let behind = world.ask(FAR, call(Operation::Read, 512, 512), 0);
    for (operation, length) in
        [(Operation::Write, BLOCK), (Operation::Flush, 0), (Operation::Trim, BLOCK)]
    {
        let asked = world.ask(NEAR, call(operation, 0, length), 5);
        world.wait(asked).expect("the file's volume is served");
    }
    world.core.drain(&mut world.io, 1, Some(VolumeId(NEAR)));
    world.turns(200);
    assert_eq!(world.core.take_drained(), [(1, Ok(()))]);
    let other = world.ask(FAR, call(Operation::Read, 4 * BLOCK, BLOCK), 0);
    world.turns(20);
    assert_eq!(world.home.state().asked.len(), 2, "both reads are with the home");
    world.home.end(1, Ok(()));
    assert_eq!(data(world.wait(other)), [9; BLOCK as usize]);
    assert_eq!(world.core.snapshot().volumes[1].queue_depth, 2);
    world.core.end_with_checkpoint(&mut world.io);
    assert!(!world.finished.contains_key(&hangs));
    world.home.end(0, Ok(()));
    assert_eq!(data(world.wait(hangs)), [9; BLOCK as usize]);
    assert_eq!(data(world.wait(behind)), [9; 512]);
}

/// Goal: a remote home that fails fails those who asked, and nothing else; a failed sync is not
/// trusted again. Method: errors for a read, a sync, and a sync after it.
#[test]
fn errors_reach_those_who_asked() {
    let mut world = FarWorld::new(2, &spec());
    let read = world.ask(FAR, call(Operation::Read, 0, BLOCK), 0);
    world.home.end(0, Err(ErrorKind::Retry));
    assert_eq!(world.wait(read).err(), Some(ErrorKind::Retry));
    world.run(FAR, call(Operation::Read, 0, BLOCK), 0).expect("it was a passing error");
    world.run(NEAR, call(Operation::Write, 0, BLOCK), 1).expect("a write elsewhere");
}

/// Goal: calls that wait for what is far away end when the node asks for it. Method: reads that
/// hang, then the word.
#[test]
fn waiting_ends_on_request() {
    let mut world = FarWorld::new(3, &spec());
    let asked = [0, 3, 6].map(|at| world.ask(FAR, call(Operation::Read, at * BLOCK, BLOCK), 0));
    world.turns(5);
    world.core.stop_waiting(Some(VolumeId(NEAR)));
    assert!(!world.home.state().is_hurried);
    world.core.stop_waiting(None);
    assert!(world.home.state().is_hurried);
    for number in asked {
        assert_eq!(world.wait(number).err(), Some(ErrorKind::Closed));
    }
    assert_eq!(world.core.remove_volume(&mut world.io, VolumeId(FAR)), Ok(()));
}

/// Goal: an end on another thread wakes a shard that sleeps in the kernel, with either way of I/O.
/// Method: a thread ends each call as it hears of it; nothing else would end the wait.
#[test]
fn ends_elsewhere_wake_the_shard() {
    for choice in [IoChoice::Auto, IoChoice::Pool] {
        let (mut io, waker, _) = HostIo::start(choice, 8 << 20).expect("some way of I/O");
        let mut home = FarHome::new(waker);
        let (calls, heard) = std::sync::mpsc::channel();
        home.calls = Some(calls);
        home.state().bytes.fill(3);
        let mut spec = spec();
        spec.levels.truncate(1);
        spec.classes.truncate(1);
        spec.classes[0].levels = 1;
        let plans = [LevelPlan::Memory { slots: 8 }];
        let place = HomePlace::Remote(home.boxed());
        let far = vec![HomePlan { spec: volume_spec(FAR, 0), place }];
        let started = Core::start(&mut io, spec, &plans, IDENTITY, far, 1);
        let (mut core, _) = started.expect("a core of memory");
        let thread = std::thread::spawn({
            let home = FarHome { calls: None, ..home.clone() };
            move || heard.iter().for_each(|()| home.end(0, Ok(())))
        });
        home.calls = None;
        for block in 0..200 {
            let read = call(Operation::Read, block % BLOCKS * BLOCK, BLOCK);
            core.submit(&mut io, Asker(block), VolumeId(FAR), read, &[], None);
            while core.take_finished().is_none() {
                core.turn(&mut io);
            }
        }
        drop(core);
        thread.join().expect("the home's thread ends with the home");
    }
}
