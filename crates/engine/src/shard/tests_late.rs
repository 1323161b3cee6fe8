//! When a whole shard sleeps: a simulated machine, a shard that is driven turn by turn.

use super::*;
use crate::backing::RemoteBacking;
use crate::control::{BackingPlan, OpenRemote, VolumePlan};
use crate::io::{ARENA_BYTES_DEFAULT, Buffer, HostIo, IoChoice, SimHost, SimIo, Waker};
use layby_cache::schedule::ScheduleLimits;
use layby_cache::{LEVELS_MAX, Share, VolumeSpec};
use layby_types::{
    Backing, BackingDone, BackingOperation, Call, ClassId, Extent, Parsed, SessionError,
};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

const VOLUME: VolumeId = VolumeId(1);
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 8;

/// The session of a client that there is none of.
enum NoSession {}

impl Session for NoSession {
    fn parse<'bytes>(
        &mut self,
        _: &'bytes [u8],
        _: &mut Vec<u8>,
    ) -> Result<Parsed<'bytes>, SessionError> {
        match *self {}
    }

    fn reply_read_head(&mut self, _: &Call, _: &mut Vec<u8>) {
        match *self {}
    }

    fn reply_done(&mut self, _: &Call, _: &mut Vec<u8>) {
        match *self {}
    }

    fn reply_extents(&mut self, _: &Call, _: &[Extent], _: &mut Vec<u8>) {
        match *self {}
    }

    fn reply_error(&mut self, _: &Call, _: ErrorKind, _: &mut Vec<u8>) {
        match *self {}
    }
}

/// A backing store that ends no call, and that another node can take.
#[derive(Clone, Debug, Default)]
struct Store {
    is_taken: Arc<AtomicBool>,
    at_end: Option<Arc<AtEnd>>,
}

/// A locked file, and whether it was locked when a backing store had ended.
#[derive(Debug)]
struct AtEnd {
    path: PathBuf,
    was_locked: AtomicBool,
}

impl AtEnd {
    fn is_locked(&self) -> bool {
        let file = std::fs::File::open(&self.path).expect("the test's own file");
        flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
    }
}

/// The store as a shard has opened it.
struct Opened(Store);

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(at_end) = &self.0.at_end {
            at_end.was_locked.store(at_end.is_locked(), Ordering::Relaxed);
        }
    }
}

impl OpenRemote for Store {
    fn name(&self) -> String {
        "store".into()
    }

    fn open(&self, _: Waker) -> Result<RemoteBacking, CommandError> {
        Ok(Box::new(Opened(self.clone())))
    }
}

impl Backing<Buffer> for Opened {
    fn submit(&mut self, _: u64, _: BackingOperation<Buffer>) {}

    fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        None
    }

    fn poll_at_hand(&mut self) -> Option<Range<u64>> {
        None
    }

    fn name(&self) -> &str {
        "store"
    }

    fn resize(&mut self, _: u64) -> Result<(), ErrorKind> {
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.0.is_taken.load(Ordering::Relaxed)
    }

    fn stop_waiting(&mut self) {}
}

fn volume(blocks: u64) -> VolumeSpec {
    let (class, shares) = (ClassId(0), [Share::OPEN; LEVELS_MAX]);
    VolumeSpec { id: VOLUME, class, length: blocks * BLOCK, shares, write_through: true }
}

/// One volume without a write intent.
fn plan(store: &Store) -> ShardPlan {
    let volume = VolumePlan {
        spec: volume(BLOCKS),
        backing: BackingPlan::Remote(Arc::new(store.clone())),
        is_clean: true,
        is_read_only: false,
    };
    super::tests::plan(vec![volume], ScheduleLimits::DEFAULT)
}

/// Goal: a shard does not sleep on an answer that comes to be behind the taking of answers, since
/// nothing else would wake it. Method: a shrink waits for its volume's write intent; another node
/// takes the volume, so that the zeroing which the intent releases ends at once, in the same turn.
#[test]
fn an_answer_that_comes_late_in_a_turn_is_not_slept_on() {
    let store = Store::default();
    let host = SimHost::new(SimIo::new(1));
    let (commands, receiver): (Sender<Command<NoSession>>, _) = channel();
    let started = Shard::start(host.clone(), &plan(&store), 1, receiver, Box::new(|_| ()));
    let (mut shard, _) = started.expect("it starts");
    let (answer, shrunk) = channel();
    let answer = Box::new(move |result: Result<(), CommandError>| {
        answer.send(result.map_err(|error| error.kind)).expect("the test listens");
    });
    commands.send(Command::SetVolume(volume(BLOCKS - 1), answer)).expect("the shard listens");
    for _ in 0..10 {
        assert!(shard.turn());
    }
    assert!(shrunk.try_recv().is_err(), "it waits for the write intent");
    store.is_taken.store(true, Ordering::Relaxed);
    let waits = host.machine().waits_in_vain();
    let now = host.now();
    commands.send(Command::RecordIntent(VOLUME, Box::new(drop))).expect("the shard listens");
    assert!(shard.turn());
    let vain = host.machine().waits_in_vain() - waits;
    let slept = host.now().since(now);
    assert!(vain == 0 && slept < Nanos::from_millis(1), "it sleeps: {vain}, {slept:?}");
    assert!(shard.turn());
    assert_eq!(shrunk.try_recv(), Ok(Err(ErrorKind::Closed)));
}

/// Goal: what a remote backing store has begun ends before a shard's ring lets the lock of the
/// node's directory go. Method: a file whose lock the ring alone keeps, where the kernel has one; a
/// store that sees at its end whether the file is locked.
#[test]
fn a_backing_store_ends_before_the_lock_goes() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("lock");
    let file = std::fs::File::create(&path).expect("a writable directory");
    flock(&file, FlockOperation::NonBlockingLockExclusive).expect("no other process has it");
    let (mut io, ..) = HostIo::start(IoChoice::Auto, ARENA_BYTES_DEFAULT).expect("some I/O");
    io.keep(file.as_fd());
    drop(file);
    let at_end = Arc::new(AtEnd { path, was_locked: AtomicBool::new(false) });
    let is_kept = at_end.is_locked();
    let store = Store { at_end: Some(Arc::clone(&at_end)), ..Store::default() };
    let (_commands, receiver) = channel::<Command<NoSession>>();
    let started = Shard::start(io, &plan(&store), 1, receiver, Box::new(|_| ()));
    drop(started.expect("it starts"));
    assert_eq!(at_end.was_locked.load(Ordering::Relaxed), is_kept, "it was locked: {is_kept}");
}
