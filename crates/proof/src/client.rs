//! A simulated client: the frontend's own client half, at the other end of a simulated socket.
//!
//! How: both halves of the handshake are played out in memory; then requests gather in `outgoing`,
//! which the world delivers in pieces, and replies are put together from theirs.
//! Invariant: every reply belongs to a request that waits for it (the session sees to that), and
//! each request is answered once. Not for: judging bytes; the oracle does.

use crate::oracle::Expected;
use layby_engine::io::SocketId;
use layby_frontend::nbd::{
    ClientHandshake, ClientNext, ClientOptions, ClientSession, Content, Decoded, ExportError,
    ExportInfo, Exports, Handshake, HandshakeNext, HandshakeOptions, NbdSession, TlsPolicy,
};
use layby_types::{Call, Extent, Operation, VolumeId};
use std::collections::BTreeMap;

/// A request that waits for its answer.
pub(crate) struct Asked {
    pub(crate) call: Call,
    /// What a change leaves behind.
    pub(crate) version: u32,
    pub(crate) expected: Expected,
    /// A read's bytes so far.
    pub(crate) data: Vec<u8>,
    /// A status's runs.
    pub(crate) extents: Vec<Extent>,
    /// A change that reaches behind an end that its volume was to have meanwhile: it may fail.
    pub(crate) is_cut: bool,
}

/// An answer that is complete; an error has the protocol's number.
pub(crate) struct Answered {
    pub(crate) asked: Asked,
    pub(crate) result: Result<(), u32>,
}

/// See the file's header.
pub(crate) struct Client {
    pub(crate) socket: SocketId,
    /// Of its volume, as it was told.
    pub(crate) bytes: u64,
    session: ClientSession,
    pub(crate) outgoing: Vec<u8>,
    received: Vec<u8>,
    pub(crate) asked: BTreeMap<u64, Asked>,
    next: u64,
    /// Nothing more is asked.
    pub(crate) is_leaving: bool,
    /// The node has closed it since its volume was to be removed; its end is seen later.
    pub(crate) is_turned_away: bool,
}

struct Only(ExportInfo);

impl Exports for Only {
    fn list(&self) -> Vec<String> {
        vec![self.0.name.clone()]
    }
    fn find(&self, _: &str) -> Result<ExportInfo, ExportError> {
        Ok(self.0.clone())
    }
}

/// Plays a handshake; answers with both ends of the transmission phase.
fn shake_hands(volume: VolumeId, bytes: u64, structured: bool) -> (ClientSession, NbdSession) {
    let exports = Only(ExportInfo::new(volume, "volume", bytes));
    let mut server = Handshake::new(HandshakeOptions { tls: TlsPolicy::Off });
    let mut client = ClientHandshake::new(ClientOptions {
        export: "volume".to_owned(),
        structured,
        block_status: structured,
    });
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    server.greeting(&mut to_client);
    let (mut served, mut session) = (None, None);
    while session.is_none() {
        let step = client.on_bytes(&to_client, &mut to_server).expect("the server offers it");
        to_client.drain(..step.consumed);
        if let ClientNext::Ready(ready) = step.next {
            session = Some(*ready);
        }
        while served.is_none() {
            let step = server.on_bytes(&to_server, &exports, &mut to_client).expect("a client");
            to_server.drain(..step.consumed);
            match step.next {
                HandshakeNext::Ready(transmission) => served = Some(transmission.session),
                HandshakeNext::NeedMore { .. } => break,
                _ => {}
            }
        }
    }
    (session.expect("the loop ends with one"), served.expect("the client was let in"))
}

impl Client {
    /// A client at `socket`, and the session that serves it.
    pub(crate) fn new(
        socket: SocketId,
        volume: VolumeId,
        bytes: u64,
        structured: bool,
    ) -> (Client, NbdSession) {
        let (session, served) = shake_hands(volume, bytes, structured);
        let (outgoing, received, asked) = (Vec::new(), Vec::new(), BTreeMap::new());
        let client = Client {
            socket,
            bytes,
            session,
            outgoing,
            received,
            asked,
            next: 0,
            is_leaving: false,
            is_turned_away: false,
        };
        (client, served)
    }

    pub(crate) fn has_status(&self) -> bool {
        self.session.has_block_status()
    }

    /// Queues a request.
    pub(crate) fn ask(&mut self, mut call: Call, payload: &[u8], version: u32, expected: Expected) {
        self.next += 1;
        call.cookie = self.next;
        self.session.encode(&call, payload, &mut self.outgoing);
        let length = if call.operation == Operation::Read { call.length as usize } else { 0 };
        let (data, extents) = (vec![0; length], Vec::new());
        let is_cut = false;
        self.asked.insert(call.cookie, Asked { call, version, expected, data, extents, is_cut });
    }

    /// Queues the goodbye.
    pub(crate) fn say_goodbye(&mut self) {
        self.session.encode_disconnect(&mut self.outgoing);
        self.is_leaving = true;
    }

    /// Takes what the node sent; answers with what is complete.
    pub(crate) fn on_bytes(&mut self, bytes: &[u8]) -> Result<Vec<Answered>, String> {
        self.received.extend_from_slice(bytes);
        let (mut answered, mut taken) = (Vec::new(), 0);
        loop {
            let decoded = self.session.decode(&self.received[taken..]);
            match decoded.map_err(|error| error.to_string())? {
                Decoded::Incomplete { .. } => break,
                Decoded::Part { consumed, cookie, content } => {
                    self.asked.get_mut(&cookie).ok_or("a part of nothing")?.take(content);
                    taken += consumed;
                }
                Decoded::Reply { consumed, cookie, result } => {
                    let mut asked = self.asked.remove(&cookie).ok_or("an answer to nothing")?;
                    let result = result.map(|content| asked.take(content));
                    answered.push(Answered { asked, result });
                    taken += consumed;
                }
            }
        }
        self.received.drain(..taken);
        Ok(answered)
    }
}

impl Asked {
    fn take(&mut self, content: Content<'_>) {
        match content {
            Content::Data { offset, bytes } => {
                let at = (offset - self.call.offset) as usize;
                self.data[at..at + bytes.len()].copy_from_slice(bytes);
            }
            Content::Status(_) => self.extents.extend(content.extents()),
            // Bytes are zero until they come.
            Content::Hole { .. } | Content::Nothing => {}
        }
    }
}
