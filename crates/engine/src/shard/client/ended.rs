//! What a connection whose peer has left still begins, and when it gives that up.
//!
//! How: what came whole before a regular end is done, in front of the next connection's requests,
//! see [`crate::shard::reconnect`]. Where another connection may have asked for something since,
//! nothing more begins of one that has ended otherwise.
//! Invariant: a call that was given up never begins; what has begun is answered.
//! Cost: a system call for a turn of a connection that other ones may have followed.

use super::{Client, Hold};
use crate::core::Core;
use crate::io::Io;
use layby_types::Session;

impl<S: Session> Client<S> {
    /// Whether its peer has left, or said so.
    pub(in crate::shard) fn has_ended(&self, io: &dyn Io) -> bool {
        self.is_dead || self.is_leaving || self.has_closed || io.has_peer_left(self.socket)
    }

    /// Whether requests of it may begin, or pieces of one.
    pub(in crate::shard) fn may_begin(&self) -> bool {
        !self.is_dead && (self.cuts.is_cutting() || !self.is_leaving)
    }

    /// Whether its next request waits for more than its turn.
    pub(in crate::shard) fn is_kept_waiting(&self) -> bool {
        self.hold == Hold::Held || self.memory.is_waiting || self.is_behind_own
    }

    /// Another connection's requests may begin in front of what it has received.
    pub(in crate::shard) fn note_follower(&mut self) {
        self.is_followed |= self.received.is_some();
    }

    /// Gives up what has not begun where its peer has left meanwhile, unless its bytes say that
    /// they are all: the same client may have connected again and written since.
    pub(super) fn end_followed(&mut self, io: &mut dyn Io, core: &mut Core) {
        if !self.is_followed || self.is_dead || !io.has_peer_left(self.socket) {
            return;
        }
        let Some(buffer) = &self.received else { return };
        let bytes = if self.cipher.is_some() { &self.clear } else { &buffer[..self.filled] };
        if !self.has_closed && !self.session.says_goodbye(bytes) {
            self.give_up(io, core);
        }
    }

    /// Begins nothing more.
    pub(in crate::shard) fn give_up(&mut self, io: &mut dyn Io, core: &mut Core) {
        self.is_leaving = true;
        if let Some(number) = self.cuts.give_up() {
            self.end_cut(io, core, number);
        }
    }
}
