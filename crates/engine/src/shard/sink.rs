//! Where a read hit's bytes go on their way to the client: behind the replies that wait already.
//!
//! How: the session writes the head, the core the bytes; what the outbox has no room for is staged.
//! Invariant: bytes leave in the order in which they came. Cost: one copy.

use super::outbox::Outbox;
use crate::core::ReadSink;
use layby_types::{Call, Session};

/// Puts a read hit behind the replies that wait already.
pub(super) struct Sink<'a, S> {
    pub(super) session: &'a mut S,
    pub(super) outbox: &'a mut Outbox,
    pub(super) scratch: &'a mut Vec<u8>,
    /// Bytes for which the outbox had no room and which it takes afterwards.
    pub(super) staged: Vec<u8>,
}

impl<S: Session> ReadSink for Sink<'_, S> {
    fn head(&mut self, call: &Call) {
        self.session.reply_read_head(call, self.scratch);
        let head = std::mem::take(self.scratch);
        self.bytes(&head);
        *self.scratch = head;
        self.scratch.clear();
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if self.staged.is_empty() {
            let rest = self.outbox.push_within(bytes);
            self.staged.extend_from_slice(rest);
        } else {
            self.staged.extend_from_slice(bytes);
        }
    }
}
