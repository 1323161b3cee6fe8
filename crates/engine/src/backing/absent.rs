//! In place of a home that could not be opened: every call fails.
//!
//! How: a call ends at once with `Closed`, by the rules of a remote home.
//! Invariant: nothing is read from it, written to it or vouched for, so that what levels hold of
//! the volume stays dirty there until a later start opens the home itself.
//! Cost: nothing while nothing is asked.

use crate::io::{Buffer, Waker};
use layby_types::{Backing, BackingDone, BackingOperation, ErrorKind};
use std::collections::VecDeque;

/// See the file's header.
pub struct AbsentHome {
    name: String,
    waker: Waker,
    ended: VecDeque<BackingDone<Buffer>>,
}

impl AbsentHome {
    /// For the home `name` of a shard with this waker.
    #[must_use]
    pub fn new(name: String, waker: Waker) -> Self {
        AbsentHome { name, waker, ended: VecDeque::new() }
    }
}

impl Backing<Buffer> for AbsentHome {
    fn submit(&mut self, token: u64, operation: BackingOperation<Buffer>) {
        let buffer = match operation {
            BackingOperation::Read { buffer, .. }
            | BackingOperation::ReadAtHand { buffer, .. }
            | BackingOperation::Write { buffer, .. } => Some(buffer),
            BackingOperation::Zero { .. }
            | BackingOperation::Extents { .. }
            | BackingOperation::Sync => None,
        };
        let (result, extents) = (Err(ErrorKind::Closed), Vec::new());
        self.ended.push_back(BackingDone { token, result, buffer, extents });
        self.waker.wake();
    }

    fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        self.ended.pop_front()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_closed(&self) -> bool {
        true
    }
}
