//! A client's connection: received bytes in, calls to the core, replies out.
//!
//! How: one receive in flight; what arrived is parsed as far as it goes, then the rest is moved to
//! the front of the buffer. Replies gather in an [`Outbox`].
//! Invariant: a client leaves the table only when nothing of it is in flight.
//! Cost: reads that hit memory are copied once, into the outbox; nothing is allocated for them.

use super::gate::Gate;
use super::outbox::Outbox;
use crate::core::{Answer, Asker, Core, Finished, ReadSink};
use crate::io::{Buffer, Io, IoOperation, SocketId, Token};
use layby_types::planted::{Plant, is_planted};
use layby_types::{Call, Cipher, Operation, Parsed, Session, VolumeId};

/// Bytes received at once at most, unless one message is longer.
const RECEIVE_BYTES: usize = 256 << 10;
/// Requests of one client in flight at most; beyond, its bytes stay in the socket.
const INFLIGHT_MAX: u32 = 1024;
/// Bytes of requests in flight, and of waiting replies, at most (one more request may start).
const INFLIGHT_BYTES_MAX: u64 = 64 << 20;
const OUTBOX_BYTES_MAX: usize = 8 << 20;
/// Room kept for the head of a read's reply.
const HEAD_BYTES: usize = 64;

/// Token tags of a client's operations; its number follows.
pub(super) const TAG_RECEIVE: u64 = 0x30;
pub(super) const TAG_SEND: u64 = 0x31;

/// How the first call in a client's buffer stands towards the volume's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// It has not been asked for.
    Open,
    /// It waits, and so does all behind it.
    Held,
    /// It has waited and may start.
    Released,
}

/// See the file's header.
pub(super) struct Client<S> {
    pub(super) number: u32,
    pub(super) volume: VolumeId,
    pub(super) peer: String,
    socket: SocketId,
    session: S,
    cipher: Option<Box<dyn Cipher>>,
    /// What arrived, from the front; absent while a receive is in flight.
    received: Option<Buffer>,
    filled: usize,
    /// Decrypted bytes that are not parsed yet (TLS only).
    clear: Vec<u8>,
    scratch: Vec<u8>,
    outbox: Outbox,
    inflight: u32,
    inflight_bytes: u64,
    /// Whether the first call in the buffer waits for its volume's limits.
    hold: Hold,
    is_sending: bool,
    /// No more calls are taken; the connection closes when all are answered.
    is_leaving: bool,
    /// A send failed: nothing more arrives at the peer.
    is_broken: bool,
    /// The socket is closed; what is in flight ends into nothing.
    is_dead: bool,
}

impl<S: Session> Client<S> {
    pub(super) fn new(
        io: &mut dyn Io,
        number: u32,
        socket: SocketId,
        connection: crate::control::Connection<S>,
    ) -> Self {
        let crate::control::Connection { cipher, session, volume, received, pending, peer, .. } =
            connection;
        let mut buffer = io.buffer(RECEIVE_BYTES.max(received.len().next_power_of_two()));
        buffer[..received.len()].copy_from_slice(&received);
        let mut client = Client {
            number,
            volume,
            peer,
            socket,
            session,
            cipher,
            received: Some(buffer),
            filled: received.len(),
            clear: Vec::new(),
            scratch: Vec::new(),
            outbox: Outbox::default(),
            inflight: 0,
            inflight_bytes: 0,
            hold: Hold::Open,
            is_sending: false,
            is_leaving: false,
            is_broken: false,
            is_dead: false,
        };
        client.outbox.push(io, &pending);
        client
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_dead && self.inflight == 0 && !self.is_sending && self.received.is_some()
    }

    /// Whether nothing of it is being done; answers may still be on their way.
    pub(super) fn is_answered(&self) -> bool {
        self.inflight == 0
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.inflight == 0 && !self.is_sending && self.outbox.is_empty()
    }

    fn is_full(&self) -> bool {
        self.inflight >= INFLIGHT_MAX
            || self.inflight_bytes >= INFLIGHT_BYTES_MAX
            || self.outbox.len() >= OUTBOX_BYTES_MAX
    }

    /// The call that waited for the volume's limits may start.
    pub(super) fn on_released(&mut self) {
        assert_eq!(self.hold, Hold::Held, "only who waits is released");
        self.hold = Hold::Released;
    }

    /// Whether the first call may start now.
    fn may_start(&mut self, gate: &mut Gate, call: &Call) -> bool {
        let was_released = self.hold == Hold::Released;
        let may = was_released || gate.may_start(self.volume, self.number, call);
        self.hold = if may { Hold::Open } else { Hold::Held };
        may
    }

    /// Takes the end of a receive.
    pub(super) fn on_received(&mut self, buffer: Buffer, count: Result<usize, ()>) {
        self.received = Some(buffer);
        match count {
            Ok(count) if count > 0 => self.filled += count,
            _ => self.is_leaving = true,
        }
    }

    /// Parses what has arrived, asks the core, and receives more.
    pub(super) fn advance(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        gate: &mut Gate,
    ) -> Result<(), &'static str> {
        let Some(mut buffer) = self.received.take() else { return Ok(()) };
        let result = if self.cipher.is_some() {
            self.advance_sealed(io, core, gate, &mut buffer)
        } else {
            let filled = self.filled;
            let parsed = self.parse(io, core, gate, &buffer[..filled]);
            parsed.map(|(consumed, wanted)| {
                buffer.copy_within(consumed..filled, 0);
                self.filled = filled - consumed;
                grow(io, &mut buffer, self.filled, wanted);
            })
        };
        self.received = Some(buffer);
        result?;
        if !self.is_leaving && !self.is_dead && !self.is_full() && self.hold == Hold::Open {
            self.receive(io);
        }
        Ok(())
    }

    fn receive(&mut self, io: &mut dyn Io) {
        let Some(buffer) = self.received.take() else { return };
        let filled = self.filled;
        assert!(filled < buffer.len(), "there is room behind an incomplete message");
        let token = Token(TAG_RECEIVE << 56 | u64::from(self.number));
        io.submit(token, IoOperation::Receive { socket: self.socket, buffer, filled });
    }

    fn advance_sealed(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        gate: &mut Gate,
        buffer: &mut Buffer,
    ) -> Result<(), &'static str> {
        let mut clear = std::mem::take(&mut self.clear);
        let cipher = self.cipher.as_mut().expect("only sealed connections come here");
        let opened = cipher.open(&buffer[..self.filled], &mut clear).map_err(|e| e.reason)?;
        self.filled = 0;
        self.is_leaving |= !opened;
        let (consumed, _) = self.parse(io, core, gate, &clear)?;
        clear.drain(..consumed);
        self.clear = clear;
        Ok(())
    }

    /// Takes messages off the front of `bytes`; answers with how many bytes they were, and how
    /// many the next one needs in all.
    fn parse(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        gate: &mut Gate,
        bytes: &[u8],
    ) -> Result<(usize, usize), &'static str> {
        let mut consumed_all = 0;
        let mut wanted_next = 0;
        while !self.is_leaving && !self.is_dead && !self.is_full() && self.hold != Hold::Held {
            let parsed = self.session.parse(&bytes[consumed_all..], &mut self.scratch);
            if !self.scratch.is_empty() {
                self.outbox.push(io, &self.scratch);
                self.scratch.clear();
            }
            match parsed.map_err(|error| error.reason)? {
                Parsed::Incomplete { wanted } => {
                    wanted_next = wanted;
                    break;
                }
                Parsed::Answered { consumed } => consumed_all += consumed,
                Parsed::Goodbye => self.is_leaving = true,
                Parsed::Call { consumed, call, payload } => {
                    if !self.may_start(gate, &call) {
                        break;
                    }
                    consumed_all += consumed;
                    self.ask(io, core, call, payload);
                }
            }
        }
        Ok((consumed_all, wanted_next))
    }

    fn ask(&mut self, io: &mut dyn Io, core: &mut Core, call: Call, payload: &[u8]) {
        let asker = Asker(u64::from(self.number));
        let volume = self.volume;
        core.note_request(volume, &call);
        if call.operation != Operation::Read {
            core.submit(io, asker, volume, call, payload, None);
            self.began(&call);
            return;
        }
        self.outbox.reserve(io, call.length as usize + HEAD_BYTES);
        let (session, outbox, scratch) = (&mut self.session, &mut self.outbox, &mut self.scratch);
        let mut sink = Sink { session, outbox, scratch, staged: Vec::new() };
        let answered = core.submit(io, asker, volume, call, payload, Some(&mut sink));
        let staged = std::mem::take(&mut sink.staged);
        if answered {
            self.outbox.push(io, &staged);
        } else {
            self.began(&call);
        }
    }

    fn began(&mut self, call: &Call) {
        self.inflight += 1;
        self.inflight_bytes += bytes_of(call);
    }

    /// Puts the reply to a finished request into the outbox.
    pub(super) fn reply(&mut self, io: &mut dyn Io, finished: Finished) {
        let Finished { call, result, .. } = finished;
        self.inflight -= 1;
        self.inflight_bytes -= bytes_of(&call);
        if self.is_dead {
            return;
        }
        let out = &mut self.scratch;
        match &result {
            Ok(Answer::Nothing) => self.session.reply_done(&call, out),
            Ok(Answer::Extents(extents)) => self.session.reply_extents(&call, extents, out),
            Ok(Answer::Data(_)) => self.session.reply_read_head(&call, out),
            Err(kind) => self.session.reply_error(&call, *kind, out),
        }
        self.outbox.push(io, &self.scratch);
        if is_planted(Plant::DoubleCompletion) && !matches!(result, Ok(Answer::Data(_))) {
            self.outbox.push(io, &self.scratch);
        }
        self.scratch.clear();
        if let Ok(Answer::Data(data)) = &result {
            self.outbox.push(io, data);
        }
    }

    /// Sends what has gathered, unless a send is in flight.
    pub(super) fn flush(&mut self, io: &mut dyn Io) -> Result<(), &'static str> {
        let is_mute = self.is_dead || self.is_broken;
        if self.is_sending || is_mute || self.outbox.is_empty() {
            return Ok(());
        }
        if self.cipher.is_some() {
            self.seal_outbox(io)?;
        }
        let Some((buffer, end)) = self.outbox.pop(io) else { return Ok(()) };
        self.is_sending = true;
        let token = Token(TAG_SEND << 56 | u64::from(self.number));
        io.submit(token, IoOperation::Send { socket: self.socket, buffer, start: 0, end });
        Ok(())
    }

    /// Replaces the clear bytes of the outbox by sealed ones; it is sent empty before the next.
    fn seal_outbox(&mut self, io: &mut dyn Io) -> Result<(), &'static str> {
        let cipher = self.cipher.as_mut().expect("only sealed connections come here");
        let mut wire = Vec::new();
        while let Some((buffer, end)) = self.outbox.pop(io) {
            let sealed = cipher.seal(&buffer[..end], &mut wire);
            io.recycle(buffer);
            sealed.map_err(|error| error.reason)?;
        }
        let mut buffer = io.buffer(wire.len());
        buffer.copy_from_slice(&wire);
        self.outbox.put(buffer, wire.len());
        Ok(())
    }

    /// Takes the end of a send.
    pub(super) fn on_sent(&mut self, is_ok: bool) {
        self.is_sending = false;
        if !is_ok {
            self.is_leaving = true;
            self.is_broken = true;
        }
    }

    /// No more calls; answers still go out.
    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Closes the socket when the client has left and has its answers, or is broken.
    pub(super) fn close_if_done(&mut self, io: &mut dyn Io, is_broken: bool) {
        let is_done = self.is_leaving && self.is_quiet();
        if is_broken || is_done || self.is_broken {
            self.cut(io);
        }
    }

    /// Closes the socket now.
    pub(super) fn cut(&mut self, io: &mut dyn Io) {
        if !std::mem::replace(&mut self.is_dead, true) {
            io.close_socket(self.socket);
        }
        self.is_leaving = true;
        self.outbox.clear(io);
    }
}

fn bytes_of(call: &Call) -> u64 {
    match call.operation {
        Operation::Read | Operation::Write => call.length,
        _ => 0,
    }
}

fn grow(io: &mut dyn Io, buffer: &mut Buffer, filled: usize, wanted: usize) {
    if wanted > buffer.len() || filled == buffer.len() {
        let mut larger = io.buffer(wanted.max(filled + 1).next_power_of_two());
        larger[..filled].copy_from_slice(&buffer[..filled]);
        io.recycle(std::mem::replace(buffer, larger));
    }
}

/// Puts a read hit behind the replies that wait already.
struct Sink<'a, S> {
    session: &'a mut S,
    outbox: &'a mut Outbox,
    scratch: &'a mut Vec<u8>,
    /// Bytes for which the outbox had no room and which it takes afterwards.
    staged: Vec<u8>,
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
