//! When a whole shard sleeps: a simulated machine, a shard that is driven turn by turn.

use super::*;
use crate::backing::RemoteBacking;
use crate::control::{BackingPlan, OpenRemote, VolumePlan};
use crate::io::{Buffer, SimHost, SimIo, Waker};
use layby_cache::schedule::ScheduleLimits;
use layby_cache::{LEVELS_MAX, Share, VolumeSpec};
use layby_types::{
    Backing, BackingDone, BackingOperation, Call, ClassId, Extent, Parsed, SessionError,
};
use std::ops::Range;
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
}

impl OpenRemote for Store {
    fn name(&self) -> String {
        "store".into()
    }

    fn open(&self, _: Waker) -> Result<RemoteBacking, CommandError> {
        Ok(Box::new(self.clone()))
    }
}

impl Backing<Buffer> for Store {
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
        self.is_taken.load(Ordering::Relaxed)
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
