//! A client's connection: received bytes in, calls to the core, replies out.
//!
//! How: one receive in flight; what arrived is parsed as far as a [`Pass`] goes, then the rest is
//! moved to the front of the buffer. Replies gather in an [`Outbox`]. Below the best rank a pass
//! counts every byte that is received, submitted or sent, and long requests are cut. What it holds
//! is charged to the shard's [`Memory`], and a request for which that has no room waits unread.
//! Invariant: a client leaves the table only when nothing of it is in flight.
//! Cost: reads that hit memory are copied once, into the outbox; nothing is allocated for them.

mod ended;
mod sending;
#[cfg(test)]
mod tests;

use super::cut::{Cut, Cuts};
use super::ending::is_ended_by_stop;
use super::gate::{Gate, Hold};
use super::memory::{Ask, Holder, Memory};
use super::outbox::Outbox;
use super::pass::{Pass, bytes_of};
use super::sink::Sink;
use crate::control::{ClientId, ClientLoad};
use crate::core::{Answer, Asker, Core, Finished, ReadAnswer};
use crate::io::{Buffer, Io, IoOperation, SocketId, Token};
use layby_cache::schedule::Rank;
use layby_types::planted::{Plant, is_planted};
use layby_types::{Call, Cipher, ErrorKind, Nanos, Operation, Parsed, Session, VolumeId};

/// Bytes received at once at first, and at most, unless one message is longer.
const RECEIVE_BYTES_FIRST: usize = 16 << 10;
const RECEIVE_BYTES: usize = 256 << 10;
/// What is received ahead of knowing what follows, for a client below the best rank.
const RECEIVE_BYTES_AHEAD: usize = 32 << 10;
/// The same in the middle of a long message. The kernel copies it whenever it is entered, before
/// anybody can look at ranks; it says that there is more, which is then received in turn.
const RECEIVE_BYTES_LOWER: usize = 8 << 10;
/// Requests of one client in flight at most; beyond, its bytes stay in the socket.
const INFLIGHT_MAX: u32 = 1024;
/// Bytes of waiting replies at most (one more request may start).
const OUTBOX_BYTES_MAX: usize = 8 << 20;
/// Of those, bytes of replies for which no room was asked, also while they are being sent or their
/// requests are in flight: they are to fit into what each client has free.
const SHORT_BYTES_MAX: usize = 16 << 10;
/// What a request in flight counts for that: about its reply.
const SHORT_BYTES: usize = SHORT_BYTES_MAX / INFLIGHT_MAX as usize;
/// Bytes of zeroings and discards in flight at most (one more may start): a client that leaves
/// leaves no more behind to be done.
const ERASING_BYTES_MAX: u64 = 1 << 30;
/// The shortest answer of a read that is sent from where it gathered; shorter ones are copied
/// behind each other, so that they share a system call.
const PUT_BYTES_MIN: usize = 32 << 10;
/// Room kept for the head of a read's reply.
const HEAD_BYTES: usize = 64;

/// Token tags of a client's operations; its number follows.
pub(super) const TAG_RECEIVE: u64 = 0x30;
pub(super) const TAG_SEND: u64 = 0x31;

/// See the file's header.
pub(super) struct Client<S> {
    pub(super) number: u32,
    id: ClientId,
    pub(super) volume: VolumeId,
    pub(super) peer: String,
    socket: SocketId,
    session: S,
    cipher: Option<Box<dyn Cipher>>,
    /// What arrived, from the front; absent while a receive is in flight.
    received: Option<Buffer>,
    filled: usize,
    /// Bytes that its buffer shall have; of the one that is received into, the capacity and the
    /// part that may be filled.
    receive_bytes: usize,
    receive_held: usize,
    room: usize,
    /// Decrypted bytes that are not parsed yet (TLS only).
    clear: Vec<u8>,
    scratch: Vec<u8>,
    outbox: Outbox,
    memory: Holder,
    /// A write waits until another one of its own has ended, since there is no room for it.
    is_behind_own: bool,
    inflight: u32,
    inflight_bytes: u64,
    /// Bytes of zeroings and discards in flight.
    erasing_bytes: u64,
    /// Whether the first call in the buffer waits for its volume's limits.
    hold: Hold,
    /// Of these, bytes in the core's hands.
    submitted_bytes: u64,
    cuts: Cuts,
    pub(super) rank: Rank,
    is_sending: bool,
    /// How far the buffer that is being sent is filled, up to where it was sent, and its capacity.
    send_end: usize,
    send_held: usize,
    sent: usize,
    /// What its peer had not taken of it at the last look.
    untaken: u64,
    /// A buffer of which a part was sent: from where on it was not, and its end.
    unsent: Option<(Buffer, usize, usize)>,
    /// Of the buffer that is being sent, or was in part, bytes for which no room was asked.
    short_sending: usize,
    /// The peer's sealed bytes have ended; those that came before are not all used yet.
    has_closed: bool,
    /// No more calls are taken; the connection closes when all are answered.
    is_leaving: bool,
    /// That is so since the node stops.
    is_stopping: bool,
    /// Other connections' requests may have begun in front of those that it has received.
    is_followed: bool,
    /// A send failed: nothing more arrives at the peer.
    is_broken: bool,
    /// The socket is closed; what is in flight ends into nothing.
    is_dead: bool,
    /// Something happened to it since the last turn's end.
    pub(super) is_touched: bool,
    /// The bytes in the core's hands that its rank was last counted, and which rank that was.
    pub(super) counted: (Rank, u64),
}

impl<S: Session> Client<S> {
    pub(super) fn new(
        io: &mut dyn Io,
        (number, rank): (u32, Rank),
        socket: SocketId,
        memory: &Memory,
        connection: crate::control::Connection<S>,
    ) -> Self {
        let id = connection.client;
        let crate::control::Connection { cipher, session, volume, received, pending, peer, .. } =
            connection;
        let memory = memory.holder(number, volume, io.now());
        let mut buffer = io.buffer(RECEIVE_BYTES_FIRST.max(received.len() + 1));
        buffer.set_length(buffer.capacity());
        buffer[..received.len()].copy_from_slice(&received);
        let mut client = Client {
            number,
            id,
            volume,
            peer,
            socket,
            session,
            cipher,
            received: Some(buffer),
            filled: received.len(),
            receive_bytes: RECEIVE_BYTES_FIRST,
            receive_held: 0,
            room: 0,
            clear: Vec::new(),
            scratch: Vec::new(),
            outbox: Outbox::default(),
            memory,
            is_behind_own: false,
            inflight: 0,
            inflight_bytes: 0,
            erasing_bytes: 0,
            hold: Hold::Open,
            submitted_bytes: 0,
            cuts: Cuts::default(),
            rank,
            is_sending: false,
            send_end: 0,
            send_held: 0,
            sent: 0,
            untaken: 0,
            unsent: None,
            short_sending: 0,
            has_closed: false,
            is_leaving: false,
            is_stopping: false,
            is_followed: false,
            is_broken: false,
            is_dead: false,
            is_touched: false,
            counted: (rank, 0),
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
        self.inflight == 0 && !self.is_sending && !self.has_to_send()
    }

    /// The number by which the control plane knows it.
    pub(super) fn id(&self) -> ClientId {
        self.id
    }

    /// What it asks for now.
    pub(super) fn load(&self) -> ClientLoad {
        let (inflight, inflight_bytes) = (self.inflight, self.inflight_bytes);
        ClientLoad { client: self.id, inflight, inflight_bytes }
    }

    /// Bytes of its requests that the core holds.
    pub(super) fn submitted_bytes(&self) -> u64 {
        self.submitted_bytes
    }

    /// Whether pieces of a request wait for their turn.
    pub(super) fn is_cutting(&self) -> bool {
        self.cuts.is_cutting()
    }

    /// Whether it is served no more.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Whether its peer is known to have left, or said so and has.
    pub(super) fn has_left(&self, io: &dyn Io) -> bool {
        self.is_leaving && (self.is_dead || io.has_peer_left(self.socket))
    }

    fn is_full(&self) -> bool {
        let short = self.outbox.short() + self.short_sending;
        self.inflight >= INFLIGHT_MAX
            || short + self.inflight as usize * SHORT_BYTES >= SHORT_BYTES_MAX
            || self.inflight_bytes >= self.memory.inflight_bytes_max
            || self.outbox.len() >= OUTBOX_BYTES_MAX
    }

    /// Bytes of memory that it holds, beside a usual buffer to receive into. That has `gathering`
    /// bytes, and more than usual in the middle of a long message.
    fn held(&self, gathering: usize) -> u64 {
        let sending = self.unsent.as_ref().map_or(0, |(buffer, ..)| buffer.capacity());
        let usual = 2 * (RECEIVE_BYTES_FIRST + self.memory.spare as usize);
        let gathering = gathering.saturating_sub(usual);
        let held = gathering + self.clear.capacity() + self.outbox.held() + sending;
        let held = held + self.send_held;
        held as u64 + self.inflight_bytes
    }

    /// Tells the shard what it holds.
    pub(super) fn settle(&mut self, memory: &mut Memory) {
        let capacity = self.received.as_ref().map_or(self.receive_held, Buffer::capacity);
        let held = if self.is_dead { self.inflight_bytes } else { self.held(capacity) };
        let waits = self.memory.is_waiting || self.hold == Hold::Held;
        let is_parked = waits && self.is_quiet();
        memory.settle(&mut self.memory, held, is_parked);
    }

    /// Its place is free: nothing of it waits.
    pub(super) fn forget(&mut self, memory: &mut Memory) {
        memory.cancel(&mut self.memory);
    }

    /// There is room for the request that waited. As for limits, it starts only while its peer is
    /// there.
    pub(super) fn on_granted(&mut self, io: &dyn Io) {
        self.memory.is_waiting = false;
        self.is_leaving |= !self.is_dead && io.has_peer_left(self.socket);
    }

    /// From now on the peer is awaited, however long it was the node's turn.
    fn begin_peers_turn(&mut self, now: Nanos) {
        self.memory.moved_at = now;
    }

    /// Whether it keeps memory that others wait for, and its peer has moved nothing since `then`.
    pub(super) fn is_stalled(&self, then: Nanos) -> bool {
        let has_part = self.filled > 0 || !self.clear.is_empty();
        // Whatever keeps the node from going on, it receives nothing meanwhile.
        let is_receiving = self.received.is_none();
        let is_stalled = self.is_sending || self.inflight == 0 && has_part && is_receiving;
        is_stalled && self.memory.is_charged() && self.memory.moved_at <= then
    }

    /// Since when its peer has asked for nothing, where all is answered.
    pub(super) fn idle_since(&self) -> Option<Nanos> {
        let is_idle = self.is_quiet() && self.filled == 0 && self.clear.is_empty();
        (is_idle && !self.is_dead).then_some(self.memory.moved_at)
    }

    /// Whether the shard has room for a call. A write, which was received already, starts in any
    /// case where it is its client's only one.
    fn has_room(&mut self, memory: &mut Memory, call: &Call, pass: &Pass, capacity: usize) -> bool {
        let held = self.held(capacity);
        let ask = Ask { held, bytes: bytes_of(call), is_best: !pass.is_bounded() };
        match call.operation {
            _ if self.cuts.is_cutting() => true,
            Operation::WriteZeroes | Operation::Trim => {
                let bytes = self.erasing_bytes;
                self.is_behind_own = bytes > 0 && bytes + call.length > ERASING_BYTES_MAX;
                !self.is_behind_own
            }
            _ if ask.bytes == 0 => true,
            Operation::Write => {
                let has_room = self.inflight == 0 || memory.has_room(&mut self.memory, ask);
                self.is_behind_own = !has_room;
                has_room
            }
            _ => memory.may_hold(&mut self.memory, ask),
        }
    }

    /// The call that waited for the volume's limits may start, unless its peer has left meanwhile:
    /// the same client may have connected again and written since, and an older write must not
    /// come after a newer one.
    pub(super) fn on_released(&mut self, io: &dyn Io) {
        assert_eq!(self.hold, Hold::Held, "only a held call is released");
        self.hold = Hold::Released;
        self.is_leaving |= !self.is_dead && io.has_peer_left(self.socket);
    }

    /// Why the first call is refused, if it has not begun.
    fn refusal(&self, gate: &Gate, call: &Call) -> Option<ErrorKind> {
        gate.refusal(self.volume, call).filter(|_| !self.cuts.is_cutting())
    }

    /// Whether the first call may start now, or is on its way already. It is paid for once, and
    /// asks for the volume's write intent until it has begun: that may go again while it waits.
    fn may_start(&mut self, gate: &mut Gate, call: &Call) -> bool {
        let is_begun = self.cuts.is_cutting();
        let is_paid = self.hold == Hold::Released || is_begun;
        let may_change = is_begun || gate.may_change(self.volume, self.number, call);
        let may = may_change && (is_paid || gate.may_start(self.volume, self.number, call));
        self.hold = if may { Hold::Released } else { Hold::Held };
        may
    }

    /// Takes the end of a receive.
    pub(super) fn on_received(&mut self, buffer: Buffer, count: Result<usize, ()>, now: Nanos) {
        self.received = Some(buffer);
        match count {
            Ok(count) if count > 0 => {
                self.filled += count;
                self.memory.moved_at = now;
                self.receive_bytes = match count {
                    _ if count == self.room => (self.receive_bytes * 4).min(RECEIVE_BYTES),
                    _ if count < self.receive_bytes / 8 => self.receive_bytes / 2,
                    _ => self.receive_bytes,
                };
                self.receive_bytes = self.receive_bytes.max(RECEIVE_BYTES_FIRST);
            }
            _ => self.is_leaving = true,
        }
    }

    /// Parses what has arrived as far as `pass` goes, asks the core, and receives more.
    pub(super) fn advance(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        (gate, memory): (&mut Gate, &mut Memory),
        pass: &mut Pass,
    ) -> Result<(), &'static str> {
        if pass.is_bounded() {
            self.send(io, pass)?;
        }
        self.end_followed(io, core);
        let Some(mut buffer) = self.received.take() else { return Ok(()) };
        // As for limits: what waited starts only while its peer is there.
        if std::mem::take(&mut self.is_behind_own) {
            self.is_leaving |= !self.is_dead && io.has_peer_left(self.socket);
        }
        let result = if self.cipher.is_some() {
            self.advance_sealed(io, core, (gate, memory), &mut buffer, pass)
        } else {
            self.advance_plain(io, core, (gate, memory), &mut buffer, pass)
        };
        self.received = Some(buffer);
        let wanted = result?;
        // What it was granted it has used, or does not need any more.
        memory.give_back(&self.memory);
        let may_receive = !self.is_leaving && !self.has_closed && !self.is_dead && !self.is_full();
        let waits = self.hold == Hold::Held || self.memory.is_waiting || self.is_behind_own;
        if may_receive && !pass.has_more && !waits {
            self.fit_buffer(io, memory, wanted, pass);
            self.receive(io, wanted, pass);
        }
        // Of a wide volume, others may be at other shards.
        self.is_followed |= self.received.is_some() && core.is_part(self.volume);
        Ok(())
    }

    /// Whether a message of `wanted` bytes may be gathered; it waits where there is no room for it.
    fn may_gather(
        &mut self,
        memory: &mut Memory,
        wanted: usize,
        capacity: usize,
        pass: &Pass,
    ) -> bool {
        let lacking = if wanted > capacity { wanted as u64 } else { 0 };
        let ask = Ask { held: self.held(capacity), bytes: lacking, is_best: !pass.is_bounded() };
        wanted <= RECEIVE_BYTES_FIRST || lacking == 0 || memory.may_hold(&mut self.memory, ask)
    }

    /// Receives into a buffer of the size that the client uses, where there is plenty of memory,
    /// and gives a long message's back.
    fn fit_buffer(&mut self, io: &mut dyn Io, memory: &mut Memory, wanted: usize, pass: &Pass) {
        let Some(buffer) = &mut self.received else { return };
        let most = if pass.is_bounded() { RECEIVE_BYTES_AHEAD } else { RECEIVE_BYTES };
        self.receive_bytes = self.receive_bytes.min(most);
        let spare = (self.receive_bytes - RECEIVE_BYTES_FIRST) as u64;
        if !memory.may_enlarge(&mut self.memory, spare) {
            self.receive_bytes = RECEIVE_BYTES_FIRST;
        }
        let target = self.receive_bytes.max(wanted).max(self.filled + 1);
        if buffer.capacity() < target || buffer.capacity() > 2 * target {
            resize(io, buffer, self.filled, target);
        }
    }

    /// Answers with how many bytes the next message needs in all.
    fn advance_plain(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        (gate, memory): (&mut Gate, &mut Memory),
        buffer: &mut Buffer,
        pass: &mut Pass,
    ) -> Result<usize, &'static str> {
        loop {
            let (filled, capacity) = (self.filled, buffer.capacity());
            let bytes = (&buffer[..filled], capacity);
            let (consumed, wanted) = self.parse(io, core, (gate, memory), bytes, pass)?;
            if consumed > 0 {
                buffer.copy_within(consumed..filled, 0);
            }
            self.filled = filled - consumed;
            if !self.may_gather(memory, wanted, capacity, pass) {
                return Ok(wanted);
            }
            grow(io, buffer, self.filled, wanted);
            // The rest of a long message is there already, most likely: it is taken in turn.
            let missing = wanted.saturating_sub(self.filled);
            if !pass.is_bounded() || pass.has_more || missing <= RECEIVE_BYTES_AHEAD {
                return Ok(wanted);
            }
            let count = pass.take_copied(missing as u64) as usize;
            if count == 0 {
                return Ok(wanted);
            }
            let room = &mut buffer[self.filled..self.filled + count];
            let received = io.receive_now(self.socket, room).unwrap_or(0);
            pass.give_back(count as u64, received as u64);
            self.filled += received;
            if received == 0 {
                return Ok(wanted);
            }
        }
    }

    fn receive(&mut self, io: &mut dyn Io, wanted: usize, pass: &Pass) {
        let Some(buffer) = self.received.take() else { return };
        let filled = self.filled;
        assert!(filled < buffer.len(), "there is room behind an incomplete message");
        let missing = wanted.saturating_sub(filled);
        // Of a long message no more is received than it lacks: what follows it would be moved.
        let room = match (pass.is_bounded(), missing > RECEIVE_BYTES_AHEAD) {
            (false, true) => missing,
            (false, false) => buffer.len(),
            (true, true) => missing.min(RECEIVE_BYTES_LOWER),
            (true, false) => RECEIVE_BYTES_AHEAD,
        };
        let end = filled.saturating_add(room).min(buffer.len());
        (self.room, self.receive_held) = (end - filled, buffer.capacity());
        self.begin_peers_turn(io.now());
        self.is_followed = false;
        let token = Token(TAG_RECEIVE << 56 | u64::from(self.number));
        io.submit(token, IoOperation::Receive { socket: self.socket, buffer, filled, end });
    }

    fn advance_sealed(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        (gate, memory): (&mut Gate, &mut Memory),
        buffer: &mut Buffer,
        pass: &mut Pass,
    ) -> Result<usize, &'static str> {
        let mut clear = std::mem::take(&mut self.clear);
        let cipher = self.cipher.as_mut().expect("only sealed connections come here");
        let opened = cipher.open(&buffer[..self.filled], &mut clear).map_err(|e| e.reason)?;
        self.filled = 0;
        self.has_closed |= !opened;
        let capacity = buffer.capacity() + clear.capacity();
        let bytes = (clear.as_slice(), capacity);
        let (consumed, wanted) = self.parse(io, core, (gate, memory), bytes, pass)?;
        clear.drain(..consumed);
        // What came whole before the peer's last byte has begun, unless it waits.
        self.is_leaving |= self.has_closed && (wanted > 0 || clear.is_empty());
        // What a long message took is given back when it has gone.
        if clear.is_empty() && clear.capacity() > RECEIVE_BYTES_FIRST {
            clear = Vec::new();
        }
        if self.may_gather(memory, wanted, clear.capacity(), pass) {
            clear.reserve_exact(wanted.saturating_sub(clear.len()));
        }
        self.clear = clear;
        Ok(0)
    }

    /// Takes messages off the front of `bytes`; answers with how many bytes they were, and how
    /// many the next one needs in all.
    fn parse(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        (gate, memory): (&mut Gate, &mut Memory),
        (bytes, capacity): (&[u8], usize),
        pass: &mut Pass,
    ) -> Result<(usize, usize), &'static str> {
        let mut consumed_all = 0;
        let mut wanted_next = 0;
        // What was begun was received whole, and is ended whatever comes.
        while self.cuts.is_cutting() || !(self.is_leaving || self.is_full()) {
            let waits = self.hold == Hold::Held || self.memory.is_waiting;
            if self.is_dead || waits || pass.is_over(consumed_all < bytes.len()) {
                break;
            }
            let parsed = self.session.parse(&bytes[consumed_all..], &mut self.scratch);
            if !self.scratch.is_empty() {
                self.outbox.push_short(io, &self.scratch);
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
                    if let Some(kind) = self.refusal(gate, &call) {
                        self.reply_short(io, &call, &Err(kind));
                        self.hold = Hold::Open;
                        consumed_all += consumed;
                        continue;
                    }
                    if !self.may_start(gate, &call)
                        || !self.has_room(memory, &call, pass, capacity)
                        || !self.take_call(io, core, (call, payload), pass)
                    {
                        break;
                    }
                    self.hold = Hold::Open;
                    consumed_all += consumed;
                }
            }
        }
        Ok((consumed_all, wanted_next))
    }

    /// Asks for what `pass` lasts for; false when something of the call is left for the next one.
    fn take_call(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        (call, payload): (Call, &[u8]),
        pass: &mut Pass,
    ) -> bool {
        if self.cuts.is_cutting() || pass.cuts(&call) {
            return self.ask_pieces(io, core, call, payload, pass);
        }
        let is_taken = pass.take(&call);
        if is_taken {
            pass.requests += 1;
            self.ask(io, core, call, payload);
        }
        is_taken
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
            self.outbox.trim(io);
            self.began(&call);
        }
    }

    /// Submits pieces of a long request while `pass` lasts; true when all were.
    fn ask_pieces(
        &mut self,
        io: &mut dyn Io,
        core: &mut Core,
        call: Call,
        payload: &[u8],
        pass: &mut Pass,
    ) -> bool {
        let (number, is_new) = self.cuts.begin(io, core, call);
        if is_new {
            core.note_request(self.volume, &call);
            self.inflight += 1;
            self.inflight_bytes += bytes_of(&call);
            pass.requests += 1;
        }
        let of = (Asker(u64::from(self.number)), self.volume);
        let submitted = self.cuts.submit(io, core, of, (number, payload), pass);
        self.submitted_bytes += submitted.bytes_held;
        if submitted.is_last {
            self.end_cut(io, core, number);
        }
        submitted.is_last
    }

    /// Answers a request that was cut, when its last piece has ended.
    fn end_cut(&mut self, io: &mut dyn Io, core: &mut Core, number: u32) {
        let Some((cut, result)) = self.cuts.take_ended(number) else { return };
        let Cut { call, gathering, started, .. } = cut;
        self.begin_peers_turn(io.now());
        self.inflight -= 1;
        self.inflight_bytes -= bytes_of(&call);
        core.note_ended(self.volume, &call, started, result.is_ok());
        let answer = gathering.map(|number| core.close_gathering(number));
        match (result, answer) {
            (Ok(()), Some(answer)) => self.reply_data(io, &call, answer),
            (result, answer) => {
                answer.into_iter().for_each(|answer| io.recycle(answer.into_buffer()));
                self.reply_short(io, &call, &result.map(|()| Answer::Nothing));
            }
        }
    }

    /// Puts the reply to a read into the outbox.
    fn reply_data(&mut self, io: &mut dyn Io, call: &Call, answer: ReadAnswer) {
        if self.is_dead {
            return io.recycle(answer.into_buffer());
        }
        self.session.reply_read_head(call, &mut self.scratch);
        if answer.len() >= PUT_BYTES_MIN {
            let (buffer, start) = answer.with_head(&self.scratch);
            self.outbox.put(buffer, start);
        } else {
            self.outbox.push(io, &self.scratch);
            self.outbox.push(io, &answer);
            io.recycle(answer.into_buffer());
        }
        self.scratch.clear();
    }

    /// Puts a reply without data into the outbox.
    fn reply_short(&mut self, io: &mut dyn Io, call: &Call, result: &Result<Answer, ErrorKind>) {
        let is_unanswered = self.is_stopping && is_ended_by_stop(call, result.as_ref().err());
        if self.is_dead || is_unanswered {
            return;
        }
        let out = &mut self.scratch;
        match result {
            Ok(Answer::Nothing) => self.session.reply_done(call, out),
            Ok(Answer::Extents(extents)) => self.session.reply_extents(call, extents, out),
            Ok(Answer::Data(_)) => unreachable!("data goes another way"),
            Err(kind) => self.session.reply_error(call, *kind, out),
        }
        // Room was asked for the answer of block status, and of it alone.
        match result {
            Ok(Answer::Extents(_)) => self.outbox.push(io, &self.scratch),
            _ => self.outbox.push_short(io, &self.scratch),
        }
        if is_planted(Plant::DoubleCompletion) {
            self.outbox.push(io, &self.scratch);
        }
        self.scratch.clear();
    }

    fn began(&mut self, call: &Call) {
        self.inflight += 1;
        self.erasing_bytes += erased_by(call);
        self.inflight_bytes += bytes_of(call);
        self.submitted_bytes += bytes_of(call);
    }

    /// Puts the reply to a finished request into the outbox.
    pub(super) fn reply(&mut self, io: &mut dyn Io, core: &mut Core, finished: Finished) {
        self.submitted_bytes -= bytes_of(&finished.call);
        if finished.asker.is_piece() {
            self.cuts.on_piece(&finished);
            return self.end_cut(io, core, finished.call.cookie as u32);
        }
        let Finished { call, result, .. } = finished;
        self.begin_peers_turn(io.now());
        self.inflight -= 1;
        self.erasing_bytes -= erased_by(&call);
        self.inflight_bytes -= bytes_of(&call);
        match result {
            Ok(Answer::Data(answer)) => self.reply_data(io, &call, answer),
            other => self.reply_short(io, &call, &other),
        }
    }

    /// No more calls, since the node stops; answers still go out.
    pub(super) fn leave(&mut self) {
        (self.is_leaving, self.is_stopping) = (true, true);
    }

    /// Closes the socket when the client has left and has its answers, or is broken.
    pub(super) fn close_if_done(&mut self, io: &mut dyn Io, core: &mut Core, is_broken: bool) {
        let is_done = self.is_leaving && self.is_quiet();
        if is_broken || is_done || self.is_broken {
            self.cut(io, core);
        }
    }

    /// Closes the socket now.
    pub(super) fn cut(&mut self, io: &mut dyn Io, core: &mut Core) {
        if !std::mem::replace(&mut self.is_dead, true) {
            io.close_socket(self.socket);
        }
        self.is_leaving = true;
        core.leave_client(self.volume, self.number);
        self.outbox.clear(io);
        self.unsent.take().into_iter().for_each(|(buffer, ..)| io.recycle(buffer));
        if let Some(number) = self.cuts.give_up()
            && let Some((cut, _)) = self.cuts.take_ended(number)
        {
            self.inflight -= 1;
            self.inflight_bytes -= bytes_of(&cut.call);
            let answer = cut.gathering.map(|number| core.close_gathering(number));
            answer.into_iter().for_each(|answer| io.recycle(answer.into_buffer()));
        }
    }
}

fn erased_by(call: &Call) -> u64 {
    match call.operation {
        Operation::WriteZeroes | Operation::Trim => call.length,
        _ => 0,
    }
}

fn grow(io: &mut dyn Io, buffer: &mut Buffer, filled: usize, wanted: usize) {
    if wanted > buffer.len() || filled == buffer.len() {
        resize(io, buffer, filled, wanted.max(filled + 1));
    }
}

fn resize(io: &mut dyn Io, buffer: &mut Buffer, filled: usize, bytes: usize) {
    let mut other = io.buffer(bytes);
    other.set_length(other.capacity());
    other[..filled].copy_from_slice(&buffer[..filled]);
    io.recycle(std::mem::replace(buffer, other));
}
