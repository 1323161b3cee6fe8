//! Client against server in memory, over a line that cuts and delays.

use crate::common::{ALPHA_SIZE, Shelf, for_each_seed};
use layby_frontend::nbd::{
    ClientHandshake, ClientNext, ClientOptions, ClientSession, Content, Decoded, Handshake,
    HandshakeNext, HandshakeOptions, NbdSession, TlsPolicy,
};
use layby_types::{Call, CallFlags, ErrorKind, Extent, Operation, Parsed, Rng, Session};
use std::collections::BTreeMap;

/// Requests that a client of these tests keeps in flight.
const DEPTH: usize = 12;

/// One direction of a connection: bytes that were sent, and those of them that have arrived.
#[derive(Default)]
struct Line {
    sent: Vec<u8>,
    arrived: Vec<u8>,
}

impl Line {
    /// Lets some of what was sent arrive.
    fn carry(&mut self, rng: &mut Rng) {
        let most = if rng.chance(1, 3) { self.sent.len() as u64 } else { 40 };
        let length = rng.below(most + 1).min(self.sent.len() as u64) as usize;
        self.arrived.extend(self.sent.drain(..length));
    }
}

/// Negotiates over two lines that cut at random.
fn connect(options: ClientOptions, rng: &mut Rng) -> (ClientSession, NbdSession) {
    let mut server = Handshake::new(HandshakeOptions { tls: TlsPolicy::Off });
    let mut client = ClientHandshake::new(options);
    let (mut up, mut down) = (Line::default(), Line::default());
    server.greeting(&mut down.sent);
    let (mut entered, mut served) = (None, None);
    for _ in 0..100_000 {
        up.carry(rng);
        down.carry(rng);
        if served.is_none() {
            let step = server.on_bytes(&up.arrived, &Shelf, &mut down.sent).expect("valid");
            up.arrived.drain(..step.consumed);
            if let HandshakeNext::Ready(transmission) = step.next {
                served = Some(transmission.session);
            }
        }
        if entered.is_none() {
            let step = client.on_bytes(&down.arrived, &mut up.sent).expect("valid");
            down.arrived.drain(..step.consumed);
            if let ClientNext::Ready(session) = step.next {
                entered = Some(*session);
            }
        }
        if entered.is_some() && served.is_some() {
            break;
        }
    }
    assert!(up.arrived.is_empty() && down.arrived.is_empty(), "nothing is left over");
    (entered.expect("the client entered"), served.expect("the server entered"))
}

/// What an answer must be.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Done,
    Data(Vec<u8>),
    Status(Vec<Extent>),
    Error(u32),
}

struct Loopback<'rng> {
    rng: &'rng mut Rng,
    client: ClientSession,
    server: NbdSession,
    up: Line,
    down: Line,
    cookie_next: u64,
    sent: BTreeMap<u64, (Call, Vec<u8>)>,
    /// Calls that reached the engine and wait for their answer.
    waiting: Vec<Call>,
    expected: BTreeMap<u64, Expected>,
    answered: usize,
}

impl Loopback<'_> {
    fn random_call(&mut self) -> Call {
        let operation = [
            Operation::Read,
            Operation::Write,
            Operation::Flush,
            Operation::Trim,
            Operation::WriteZeroes,
            Operation::Cache,
            Operation::BlockStatus,
        ][self.rng.below(7) as usize];
        let rng = &mut *self.rng;
        let writes =
            matches!(operation, Operation::Write | Operation::Trim | Operation::WriteZeroes);
        let zeroes = operation == Operation::WriteZeroes;
        let flags = CallFlags {
            fua: writes && rng.chance(1, 2),
            no_hole: zeroes && rng.chance(1, 2),
            fast_zero: zeroes && rng.chance(1, 2),
            dont_fragment: operation == Operation::Read
                && self.client.is_structured()
                && rng.chance(1, 2),
            one_extent: operation == Operation::BlockStatus && rng.chance(1, 2),
        };
        let flush = operation == Operation::Flush;
        let offset = if flush { 0 } else { rng.below(ALPHA_SIZE + 2000) };
        let length = if flush { 0 } else { rng.below(3000) };
        self.cookie_next += 1;
        Call { cookie: self.cookie_next, operation, offset, length, flags }
    }

    fn send(&mut self) {
        let call = self.random_call();
        let mut payload = Vec::new();
        if call.operation == Operation::Write {
            payload.resize(call.length as usize, 0);
            self.rng.fill(&mut payload);
        }
        self.client.encode(&call, &payload, &mut self.up.sent);
        if let Some(expected) = self.answered_by_the_session(&call) {
            self.expected.insert(call.cookie, expected);
        }
        self.sent.insert(call.cookie, (call, payload));
    }

    /// What the session answers by itself, if it does.
    fn answered_by_the_session(&self, call: &Call) -> Option<Expected> {
        let status = call.operation == Operation::BlockStatus;
        if call.offset + call.length > ALPHA_SIZE {
            let full = matches!(call.operation, Operation::Write | Operation::WriteZeroes);
            return Some(Expected::Error(if full { 28 } else { 22 }));
        }
        if status && (call.length == 0 || !self.client.has_block_status()) {
            return Some(Expected::Error(22));
        }
        (call.length == 0 && call.operation != Operation::Flush).then_some(Expected::Done)
    }

    fn serve(&mut self) {
        loop {
            match self.server.parse(&self.up.arrived, &mut self.down.sent).expect("valid") {
                Parsed::Call { consumed, call, payload } => {
                    let (sent, sent_payload) = &self.sent[&call.cookie];
                    assert_eq!((sent, sent_payload.as_slice()), (&call, payload));
                    assert!(!self.expected.contains_key(&call.cookie), "{call:?} came through");
                    self.waiting.push(call);
                    self.up.arrived.drain(..consumed);
                }
                Parsed::Answered { consumed } => drop(self.up.arrived.drain(..consumed)),
                Parsed::Incomplete { wanted } => {
                    assert!(wanted > self.up.arrived.len());
                    return;
                }
                Parsed::Goodbye => panic!("nobody said goodbye"),
            }
        }
    }

    /// Answers one waiting call, not the oldest as a rule.
    fn complete(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let index = self.rng.below(self.waiting.len() as u64) as usize;
        let call = self.waiting.swap_remove(index);
        let out = &mut self.down.sent;
        let expected = if self.rng.chance(1, 5) {
            self.server.reply_error(&call, ErrorKind::Full, out);
            Expected::Error(28)
        } else if call.operation == Operation::Read {
            let mut data = vec![0; call.length as usize];
            self.rng.fill(&mut data);
            self.server.reply_read_head(&call, out);
            out.extend_from_slice(&data);
            Expected::Data(data)
        } else if call.operation == Operation::BlockStatus {
            let extent =
                Extent { length: call.length, hole: call.offset.is_multiple_of(2), zero: true };
            self.server.reply_extents(&call, &[extent], out);
            Expected::Status(vec![extent])
        } else {
            self.server.reply_done(&call, out);
            Expected::Done
        };
        self.expected.insert(call.cookie, expected);
    }

    fn receive(&mut self) {
        loop {
            let decoded = self.client.decode(&self.down.arrived).expect("valid");
            let (consumed, cookie, result) = match decoded {
                Decoded::Incomplete { .. } => return,
                Decoded::Part { .. } => panic!("this server answers in one piece"),
                Decoded::Reply { consumed, cookie, result } => (consumed, cookie, result),
            };
            let (call, _) = self.sent.remove(&cookie).expect("one answer for each request");
            let got = match result {
                Err(error) => Expected::Error(error),
                Ok(Content::Nothing) => Expected::Done,
                Ok(Content::Data { offset, bytes }) => {
                    assert_eq!(offset, call.offset);
                    Expected::Data(bytes.to_vec())
                }
                Ok(content) => Expected::Status(content.extents().collect()),
            };
            assert_eq!(Some(got), self.expected.remove(&cookie), "{call:?}");
            self.answered += 1;
            self.down.arrived.drain(..consumed);
        }
    }

    fn run(&mut self, requests: usize) {
        for _ in 0..1_000_000 {
            let unsent = requests - self.cookie_next as usize;
            if unsent > 0 && self.client.inflight_count() < DEPTH && self.rng.chance(1, 2) {
                self.send();
            }
            self.up.carry(self.rng);
            self.serve();
            if self.rng.chance(1, 2) {
                self.complete();
            }
            self.down.carry(self.rng);
            self.receive();
            if self.answered == requests {
                return;
            }
        }
        panic!("{} of {requests} requests were answered", self.answered);
    }
}

/// Goal: what a client asks reaches the engine unchanged, and what the engine answers reaches the
/// client. Method: random requests of every kind, good and bad, answered out of order, over lines
/// that cut anywhere; simple and structured.
#[test]
fn requests_and_answers_cross() {
    for_each_seed(60, |rng| {
        let structured = rng.chance(2, 3);
        let block_status = rng.chance(2, 3);
        let options = ClientOptions { export: "alpha".to_owned(), structured, block_status };
        let (client, server) = connect(options, rng);
        assert_eq!(client.is_structured(), structured);
        assert_eq!(client.has_block_status(), structured && block_status);
        assert_eq!(server.features().allocation_context, client.has_block_status());
        assert_eq!(client.export().size, ALPHA_SIZE);
        let mut loopback = Loopback {
            rng,
            client,
            server,
            up: Line::default(),
            down: Line::default(),
            cookie_next: 0,
            sent: BTreeMap::new(),
            waiting: Vec::new(),
            expected: BTreeMap::new(),
            answered: 0,
        };
        loopback.run(200);
        assert!(loopback.sent.is_empty() && loopback.expected.is_empty());
    });
}

/// Goal: the client's goodbye ends the session. Method: one, after a read-only export was entered.
#[test]
fn goodbye_crosses() {
    let options = ClientOptions { export: "beta".to_owned(), structured: true, block_status: true };
    let (client, mut server) = connect(options, &mut Rng::new(1));
    assert!(client.is_read_only());
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    client.encode_disconnect(&mut bytes);
    assert_eq!(server.parse(&bytes, &mut out), Ok(Parsed::Goodbye));
    assert!(out.is_empty());
}
