//! What runs between two shards that serve parts of one wide volume: calls there, answers back.
//!
//! How: two lists behind locks that are held for a move. The near end adds calls, the far end is a
//! ring of requests as a guest's is and adds answers at the end of its turn; who adds to an empty
//! list wakes the other shard. A write's bytes and a read's buffer travel with the call, and the
//! buffer comes back with the answer, so nothing is copied for the way. A link can have branches,
//! links of their own for the calls of one client each, whose far ends come by it. Once that client
//! has left, its branch says so, and the far end begins nothing more.
//! Invariant: a call is answered once, or its far end is gone and the near one hears of it; an end
//! that is dropped is heard of by the other. Calls in the lists are in flight for clients, whose
//! bounds are theirs: there is no other queue.
//! Cost: two uncontended locks per call and way; a system call per turn and way at most;
//! a look at each link per turn.

use crate::io::{Buffer, Peer, Waker};
use layby_types::{Call, ErrorKind, Extent, GuestRing, SessionError, Taken};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Answers kept for one far end's turn before they are handed over anyway.
const ANSWERS_HELD_MAX: usize = 256;

/// A call on its way. Its range is the part's, its cookie the near end's.
#[derive(Debug)]
pub struct Asked {
    /// The call.
    pub call: Call,
    /// The bytes of a write.
    pub bytes: Vec<u8>,
    /// Where the bytes of a read go, and at which of its bytes they begin.
    pub answer: Option<(Buffer, usize)>,
}

/// What became of a call.
#[derive(Debug)]
pub struct Answered {
    /// The call's cookie.
    pub cookie: u64,
    /// How it ended.
    pub result: Result<(), ErrorKind>,
    /// The buffer of a read, filled if it ended well.
    pub answer: Option<Buffer>,
    /// The runs of a block-status call.
    pub extents: Vec<Extent>,
}

/// One way of a link.
struct Way<T> {
    list: Mutex<List<T>>,
    /// Wakes who takes from it; set when its end has reached its shard.
    waker: OnceLock<Waker>,
}

struct List<T> {
    items: VecDeque<T>,
    /// Nothing more comes: whoever added is gone.
    is_ended: bool,
}

impl<T> Way<T> {
    fn new() -> Self {
        let list = Mutex::new(List { items: VecDeque::new(), is_ended: false });
        Way { list, waker: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, List<T>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.waker.get().into_iter().for_each(Waker::wake);
    }

    fn add(&self, items: impl IntoIterator<Item = T>) {
        let mut list = self.lock();
        let was_empty = list.items.is_empty();
        list.items.extend(items);
        drop(list);
        // Otherwise whoever added the first has woken the other end, which takes all at once.
        if was_empty {
            self.wake();
        }
    }

    fn end(&self) {
        self.lock().is_ended = true;
        self.wake();
    }
}

struct Shared {
    calls: Way<Asked>,
    answers: Way<Answered>,
    /// Clients of the near end's shard use the volume.
    is_used: AtomicBool,
    /// Far ends of new branches; none where the far end is gone.
    branches: Mutex<Option<Vec<FarEnd>>>,
    /// The branch's client has left.
    has_left: AtomicBool,
    /// Where that client is, while it has not.
    peer: Mutex<Option<Peer>>,
}

impl Shared {
    fn branches(&self) -> MutexGuard<'_, Option<Vec<FarEnd>>> {
        self.branches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(&self) -> MutexGuard<'_, Option<Peer>> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
        *self.peer() = None;
    }
}

/// Makes a link.
#[must_use]
pub fn link() -> (NearEnd, FarEnd) {
    let (calls, answers) = (Way::new(), Way::new());
    let (is_used, branches) = (AtomicBool::new(false), Mutex::new(Some(Vec::new())));
    let (has_left, peer) = (AtomicBool::new(false), Mutex::new(None));
    let shared = Arc::new(Shared { calls, answers, is_used, branches, has_left, peer });
    let near = NearEnd(Arc::clone(&shared));
    let far = FarEnd {
        shared,
        taken: VecDeque::new(),
        places: Vec::new(),
        free: Vec::new(),
        answered: Vec::new(),
    };
    (near, far)
}

/// The end that asks.
pub struct NearEnd(Arc<Shared>);

impl NearEnd {
    /// Which shard asks; before the first call.
    pub(crate) fn set_waker(&self, waker: Waker) {
        // An end reaches one shard, once.
        let _ = self.0.answers.waker.set(waker);
    }

    /// A link to the same shard, for one client's calls; none where the far end is gone.
    pub(crate) fn branch(&self) -> Option<NearEnd> {
        let (near, far) = link();
        self.0.answers.waker.get().cloned().into_iter().for_each(|waker| near.set_waker(waker));
        self.0.branches().as_mut()?.push(far);
        self.0.calls.wake();
        Some(near)
    }

    /// Where the branch's client is; before the first call.
    pub(crate) fn set_peer(&self, peer: Peer) {
        *self.0.peer() = Some(peer);
    }

    /// The branch's client has left: what the far end has not begun never begins.
    pub(crate) fn leave(&self) {
        self.0.leave();
        self.0.calls.wake();
    }

    /// Sends a call.
    pub(crate) fn send(&self, asked: Asked) {
        self.0.calls.add([asked]);
    }

    /// Says whether clients use the volume there.
    pub(crate) fn set_used(&self, is_used: bool) {
        if self.0.is_used.swap(is_used, Ordering::AcqRel) != is_used {
            self.0.calls.wake();
        }
    }

    /// Takes all answers that there are; true when the far end is gone, so that no more will come.
    pub(crate) fn take(&self, answers: &mut VecDeque<Answered>) -> bool {
        let mut list = self.0.answers.lock();
        answers.append(&mut list.items);
        list.is_ended
    }
}

impl Drop for NearEnd {
    fn drop(&mut self) {
        self.0.calls.end();
    }
}

/// A call that the far shard serves.
struct Place {
    cookie: u64,
    answer: Option<(Buffer, usize)>,
    extents: Vec<Extent>,
}

/// The end that answers.
pub struct FarEnd {
    shared: Arc<Shared>,
    taken: VecDeque<Asked>,
    places: Vec<Option<Place>>,
    free: Vec<usize>,
    answered: Vec<Answered>,
}

/// What the far shard looks at between its turns.
#[derive(Clone)]
pub(crate) struct FarLook(Arc<Shared>);

impl FarLook {
    /// Whether there are calls to take.
    pub(crate) fn has_calls(&self) -> bool {
        !self.0.calls.lock().items.is_empty()
    }

    /// Whether clients of the near end's shard use the volume.
    pub(crate) fn is_used(&self) -> bool {
        self.0.is_used.load(Ordering::Acquire)
    }

    /// The far ends of branches that are new.
    pub(crate) fn take_branches(&self) -> Vec<FarEnd> {
        self.0.branches().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether nobody asks any more, nor waits for an answer.
    pub(crate) fn is_ended(&self) -> bool {
        self.0.calls.lock().is_ended
    }

    /// Whether nothing more is to begin: the branch's client is known to have left, or nothing
    /// waits for an answer.
    pub(crate) fn has_left(&self) -> bool {
        self.0.has_left.load(Ordering::Acquire) || self.is_ended()
    }

    /// The same, with a look at the client's socket, of whose end the near end may hear later.
    pub(crate) fn finds_left(&self) -> bool {
        let has_left = self.has_left() || self.0.peer().as_ref().is_some_and(Peer::has_left);
        if has_left {
            self.0.leave();
        }
        has_left
    }
}

impl FarEnd {
    /// Which shard answers; before it first looks for calls.
    pub(crate) fn set_waker(&self, waker: Waker) {
        let _ = self.shared.calls.waker.set(waker);
    }

    pub(crate) fn look(&self) -> FarLook {
        FarLook(Arc::clone(&self.shared))
    }

    fn place(&mut self, call: &Call) -> &mut Place {
        let place = self.places[call.cookie as usize].as_mut();
        place.expect("a call is served until it is finished")
    }

    fn hand_over(&mut self) {
        if !self.answered.is_empty() {
            self.shared.answers.add(self.answered.drain(..));
        }
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        // Branches that were not taken end as well.
        drop(self.shared.branches().take());
        self.hand_over();
        self.shared.answers.end();
    }
}

impl GuestRing for FarEnd {
    fn take(&mut self, payload: &mut Vec<u8>) -> Result<Taken, SessionError> {
        if self.taken.is_empty() {
            std::mem::swap(&mut self.taken, &mut self.shared.calls.lock().items);
        }
        let Some(asked) = self.taken.pop_front() else { return Ok(Taken::Nothing) };
        let Asked { mut call, bytes, answer } = asked;
        *payload = bytes;
        let place = Place { cookie: call.cookie, answer, extents: Vec::new() };
        let index = self.free.pop().unwrap_or(self.places.len());
        if index == self.places.len() {
            self.places.push(None);
        }
        self.places[index] = Some(place);
        call.cookie = index as u64;
        Ok(Taken::Call(call))
    }

    fn put(&mut self, call: &Call, at: u64, bytes: &[u8]) {
        let place = self.place(call);
        let (buffer, start) = place.answer.as_mut().expect("a read has room for its bytes");
        let from = *start + at as usize;
        buffer[from..from + bytes.len()].copy_from_slice(bytes);
    }

    fn put_extents(&mut self, call: &Call, extents: Vec<Extent>) {
        self.place(call).extents = extents;
    }

    fn finish(&mut self, call: &Call, result: Result<(), ErrorKind>) -> Result<(), SessionError> {
        let index = call.cookie as usize;
        let place = self.places[index].take().expect("a call is finished once");
        self.free.push(index);
        let Place { cookie, answer, extents } = place;
        let answer = answer.map(|(buffer, _)| buffer);
        self.answered.push(Answered { cookie, result, answer, extents });
        if self.answered.len() >= ANSWERS_HELD_MAX {
            self.hand_over();
        }
        Ok(())
    }

    fn listen(&mut self) -> Result<bool, SessionError> {
        Ok(!self.taken.is_empty() || !self.shared.calls.lock().items.is_empty())
    }

    /// Hands the turn's answers over; the near end is woken by that.
    fn take_signal(&mut self) -> bool {
        self.hand_over();
        false
    }

    fn base(&self) -> u16 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::{CallFlags, Operation};

    fn asked(cookie: u64, operation: Operation, length: u64) -> Asked {
        let flags = CallFlags::default();
        let call = Call { cookie, operation, offset: 0, length, flags };
        let is_read = operation == Operation::Read;
        let answer = is_read.then(|| (Buffer::zeroed(length as usize + 8), 8));
        let bytes = if operation == Operation::Write { vec![7; length as usize] } else { vec![] };
        Asked { call, bytes, answer }
    }

    /// Goal: calls and answers keep their bytes and their cookies, in any order of ends, and wakers
    /// are called once for what was empty. Method: three calls, ended backwards.
    #[test]
    fn answers_find_their_calls() {
        let (near, mut far) = link();
        let (here, there) = (Waker::flag_only(), Waker::flag_only());
        near.set_waker(here.clone());
        far.set_waker(there.clone());
        let look = far.look();
        assert!(!look.has_calls());
        for (cookie, operation) in [(70, Operation::Read), (71, Operation::Write)] {
            near.send(asked(cookie, operation, 4));
        }
        near.send(asked(72, Operation::Flush, 0));
        assert!(there.take() && look.has_calls());
        let mut payload = Vec::new();
        let mut calls = Vec::new();
        while let Taken::Call(call) = far.take(&mut payload).expect("never broken") {
            assert_eq!(payload.len(), if call.operation == Operation::Write { 4 } else { 0 });
            calls.push(call);
        }
        far.put(&calls[0], 1, &[5, 6]);
        for call in calls.iter().rev() {
            far.finish(call, Ok(())).expect("never broken");
        }
        assert!(!here.take(), "answers go at the turn's end");
        assert!(!far.take_signal() && here.take());
        let mut answers = VecDeque::new();
        assert!(!near.take(&mut answers));
        let cookies: Vec<u64> = answers.iter().map(|answer| answer.cookie).collect();
        assert_eq!(cookies, [72, 71, 70]);
        let buffer = answers[2].answer.as_ref().expect("it comes back");
        assert_eq!(buffer[8..12], [0, 5, 6, 0]);
    }

    /// Goal: each end hears of the other's end, after what was handed over before. Method: drop
    /// either.
    #[test]
    fn ends_hear_of_ends() {
        let (near, mut far) = link();
        near.send(asked(1, Operation::Flush, 0));
        let Ok(Taken::Call(call)) = far.take(&mut Vec::new()) else { panic!("it was sent") };
        far.finish(&call, Err(ErrorKind::Full)).expect("never broken");
        drop(far);
        let mut answers = VecDeque::new();
        assert!(near.take(&mut answers));
        assert_eq!(answers[0].result, Err(ErrorKind::Full));
        let (near, far) = link();
        let look = far.look();
        assert!(!look.is_ended());
        drop(near);
        assert!(look.is_ended());
    }

    /// Goal: a branch is a link of its own: calls find it, and it ends with its far end, or with
    /// the link that was to bring it. Method: branches that are taken, dropped, and never taken.
    #[test]
    fn branches_end_with_their_far_ends() {
        let (near, far) = link();
        let (here, there) = (Waker::flag_only(), Waker::flag_only());
        near.set_waker(here.clone());
        far.set_waker(there.clone());
        let first = near.branch().expect("the far end is there");
        assert!(there.take(), "the far end is woken");
        first.send(asked(1, Operation::Flush, 0));
        let mut taken = far.look().take_branches();
        let mut own = taken.pop().expect("it came");
        assert!(taken.is_empty() && far.look().take_branches().is_empty());
        let call = own.take(&mut Vec::new()).expect("never broken");
        let Taken::Call(call) = call else { panic!("it has a call") };
        own.finish(&call, Ok(())).expect("never broken");
        own.take_signal();
        let mut answers = VecDeque::new();
        assert!(here.take() && !first.take(&mut answers));
        assert_eq!(answers.pop_front().map(|answered| answered.cookie), Some(1));
        drop(own);
        assert!(first.take(&mut answers));
        let second = near.branch().expect("the far end is there");
        assert!(!second.take(&mut answers));
        drop(far);
        assert!(second.take(&mut answers) && near.branch().is_none());
    }
}
