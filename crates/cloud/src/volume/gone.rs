//! Objects that are of no use any more: they go by one request at a time.
//!
//! How: replaced checkpoints, dropped snapshots and what a sweep has found wait in one list. One
//! request is in flight, for up to [`KEYS_MAX`] of them. After a fault it rests as others do; then
//! it is for what the list has by that time, the keys that failed behind the others.
//! Invariant: however long the store denies removals, one request is repeated, so that their number
//! does not grow. What the list has no room for is left to the next session's sweep.
//! Cost: memory for the keys.
//! Not for: segments, which the map has until the store has removed them; see `commit`.

use super::{Flight, Volume};
use crate::action::Request;
use crate::removal::KEYS_MAX;
use std::collections::VecDeque;
use std::ops::DerefMut;

/// Keys that wait at most: a day of checkpoints, or what some thousand sessions left behind.
const WAITING_MAX: usize = 1 << 18;

/// See the file's header.
#[derive(Default)]
pub(super) struct Gone {
    waiting: VecDeque<String>,
    is_under_way: bool,
    /// The last removal of a kind failed: of objects in the list, of segments.
    fails: [bool; 2],
}

/// What a removal is of.
#[derive(Clone, Copy)]
pub(super) enum Removed {
    Listed = 0,
    Segment = 1,
}

impl Gone {
    fn push(&mut self, keys: impl IntoIterator<Item = String>) {
        let room = WAITING_MAX.saturating_sub(self.waiting.len());
        self.waiting.extend(keys.into_iter().take(room));
    }

    /// A request for the first keys of the list, which leave it.
    fn take(&mut self) -> Option<Request> {
        match self.waiting.len() {
            0 => None,
            // Not all stores know removals of many objects.
            1 => self.waiting.pop_front().map(|key| Request::Delete { key }),
            waiting => {
                let keys = self.waiting.drain(..waiting.min(KEYS_MAX)).collect();
                Some(Request::DeleteMany { keys })
            }
        }
    }

    /// The request that follows one that has failed. Its keys have their room in the list.
    fn again(&mut self, failed: Request) -> Request {
        match failed {
            Request::Delete { key } => self.waiting.push_back(key),
            Request::DeleteMany { keys } => self.waiting.extend(keys),
            other => return other,
        }
        self.take().expect("it has the keys that failed")
    }

    /// A removal has ended.
    pub(super) fn on_end(&mut self, of: Removed, is_done: bool) {
        self.fails[of as usize] = !is_done;
    }

    /// Whether the store removes nothing: it denies it, or does not answer.
    pub(super) fn is_failing(&self) -> bool {
        self.fails.contains(&true)
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// These objects are to go.
    pub(super) fn remove(&mut self, keys: impl IntoIterator<Item = String>) {
        self.gone.push(keys);
        self.remove_next();
    }

    fn remove_next(&mut self) {
        if self.gone.is_under_way || !self.session.is_open() {
            return;
        }
        if let Some(request) = self.gone.take() {
            self.gone.is_under_way = true;
            self.ask(request, Flight::Remove);
        }
    }

    pub(super) fn on_removed(&mut self) {
        self.gone.is_under_way = false;
        self.gone.on_end(Removed::Listed, true);
        self.remove_next();
    }

    /// A request has failed and is to be repeated; what it is then. Of a removal it is noted.
    pub(super) fn note_failed_removal(&mut self, flight: &Flight, request: Request) -> Request {
        match flight {
            Flight::Remove => {
                self.gone.on_end(Removed::Listed, false);
                self.gone.again(request)
            }
            Flight::Delete { .. } => {
                self.gone.on_end(Removed::Segment, false);
                request
            }
            _ => request,
        }
    }
}
