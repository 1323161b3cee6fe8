//! A client's replies on their way into its socket.
//!
//! How: what the outbox has gathered goes out buffer by buffer, one send in flight, sealed first
//! where the connection is. Invariant: bytes leave in their order. Cost: a send for each buffer.

use super::{Client, TAG_SEND};
use crate::io::{Buffer, Io, IoOperation, Token};
use crate::shard::pass::Pass;
use layby_types::Session;

/// Bytes of one send at most. A slow link takes minutes for them: whether it moves any is looked at
/// within a send, see [`Client::look_at_send`].
const SEND_BYTES_MAX: usize = 1 << 20;

impl<S: Session> Client<S> {
    pub(super) fn has_to_send(&self) -> bool {
        self.unsent.is_some() || !self.outbox.is_empty()
    }

    /// Whether something could be sent now.
    pub(in crate::shard) fn may_send(&self) -> bool {
        self.has_to_send() && !self.is_sending && !self.is_dead && !self.is_broken
    }

    /// Sends what has gathered, as far as `pass` goes, unless a send is in flight.
    pub(in crate::shard) fn send(
        &mut self,
        io: &mut dyn Io,
        pass: &mut Pass,
    ) -> Result<(), &'static str> {
        if !self.may_send() {
            return Ok(());
        }
        if self.unsent.is_none() {
            let popped = self.outbox.pop(io);
            self.short_sending = popped.as_ref().map_or(0, |popped| popped.short);
            self.unsent = popped.map(|popped| (popped.buffer, popped.start, popped.end));
            if self.cipher.is_some() {
                self.seal_unsent(io)?;
            }
        }
        let Some((buffer, start, end)) = self.unsent.take() else { return Ok(()) };
        let count = pass.take_copied((end - start).min(SEND_BYTES_MAX) as u64) as usize;
        if count == 0 {
            self.unsent = Some((buffer, start, end));
            return Ok(());
        }
        (self.is_sending, self.sent, self.send_end) = (true, start + count, end);
        self.send_held = buffer.capacity();
        self.begin_peers_turn(io.now());
        let token = Token(TAG_SEND << 56 | u64::from(self.number));
        let end = start + count;
        io.submit(token, IoOperation::Send { socket: self.socket, buffer, start, end });
        Ok(())
    }

    /// Replaces clear bytes that are to be sent next by sealed ones.
    fn seal_unsent(&mut self, io: &mut dyn Io) -> Result<(), &'static str> {
        let cipher = self.cipher.as_mut().expect("only sealed connections come here");
        let Some((clear, start, end)) = self.unsent.take() else { return Ok(()) };
        let mut wire = Vec::new();
        let sealed = cipher.seal(&clear[start..end], &mut wire);
        io.recycle(clear);
        sealed.map_err(|error| error.reason)?;
        let mut buffer = io.buffer(wire.len());
        buffer.copy_from_slice(&wire);
        self.unsent = Some((buffer, 0, wire.len()));
        Ok(())
    }

    /// Whether the peer has taken some of a send since the last look counts as its moving bytes.
    pub(in crate::shard) fn look_at_send(&mut self, io: &dyn Io) {
        if !self.is_sending || self.is_dead {
            return;
        }
        let untaken = io.untaken(self.socket);
        if std::mem::replace(&mut self.untaken, untaken) != untaken {
            self.begin_peers_turn(io.now());
        }
    }

    /// Takes the end of a send.
    pub(in crate::shard) fn on_sent(
        &mut self,
        io: &mut dyn Io,
        buffer: Option<Buffer>,
        is_ok: bool,
    ) {
        self.is_sending = false;
        self.send_held = 0;
        self.memory.moved_at = io.now();
        match buffer {
            Some(buffer) if is_ok && self.sent < self.send_end && !self.is_dead => {
                self.unsent = Some((buffer, self.sent, self.send_end));
            }
            buffer => {
                self.short_sending = 0;
                buffer.into_iter().for_each(|buffer| io.recycle(buffer));
            }
        }
        if !is_ok {
            self.is_leaving = true;
            self.is_broken = true;
        }
    }
}
