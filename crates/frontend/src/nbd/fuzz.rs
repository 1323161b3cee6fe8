//! A whole server fed with arbitrary bytes, for fuzz targets and tests.
//!
//! How: [`fuzz_server`] runs the bytes through handshake and session over two small exports, once
//! in one piece and once cut at places that follow from the bytes, under every TLS policy.
//! Invariant: no panic; each step makes progress or asks for more; answers stay within bounds; the
//! cut has no influence on what was answered.
//! Cost: linear in the input but for reads, each at most the size of an export.
//! Not for: serving; TLS is played by a cipher that changes nothing.

use super::{
    ExportError, ExportInfo, Exports, Handshake, HandshakeNext, HandshakeOptions, NbdSession,
    SessionFeatures, TlsPolicy,
};
use layby_types::{Call, ErrorKind, Extent, Operation, Parsed, Rng, Session, VolumeId};

/// Bytes of each export.
const EXPORT_SIZE: u64 = 4096;
/// The most bytes that one message may be answered with, data of reads included.
const ANSWER_LENGTH_MAX: usize = 16 << 10;
/// The longest input that is looked at; more teaches nothing.
const INPUT_LENGTH_MAX: usize = 1 << 20;
/// Client flags and `STARTTLS`: the way into TLS.
const INTO_TLS: [u8; 20] = *b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0";

/// How a run of the server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FuzzEnd {
    /// The bytes ran out.
    Starved,
    /// The client left by the protocol's own way.
    Left,
    /// The server refused to go on.
    Refused(&'static str),
}

/// Where the transmission phase began, and on what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuzzEntry {
    /// Bytes of the input that the handshake took.
    pub received: usize,
    /// Bytes that it was answered with.
    pub sent: usize,
    /// What was agreed on.
    pub features: SessionFeatures,
    /// The export that was entered.
    pub export: ExportInfo,
}

/// What a server did with a byte string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuzzRun {
    /// The client entered transmission.
    pub entry: Option<FuzzEntry>,
    /// All that it sent after its greeting.
    pub sent: Vec<u8>,
    /// The calls it let through, in order.
    pub calls: Vec<Call>,
    /// How it ended.
    pub end: FuzzEnd,
}

/// Feeds `bytes` to servers under every TLS policy and checks the invariants of this module.
///
/// # Panics
/// When one of them does not hold.
pub fn fuzz_server(bytes: &[u8]) {
    fuzz_server_with(bytes, |_, _| ());
}

/// Like [`fuzz_server`]; every run is shown to `judge` with the bytes that led to it.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_server_with(bytes: &[u8], judge: impl Fn(&[u8], &FuzzRun)) {
    let bytes = &bytes[..bytes.len().min(INPUT_LENGTH_MAX)];
    let seed = bytes.iter().fold(bytes.len() as u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    for tls in [TlsPolicy::Off, TlsPolicy::Allowed, TlsPolicy::Required] {
        for encrypted in [false, true] {
            if encrypted && tls == TlsPolicy::Off {
                continue;
            }
            let whole = run_server(tls, encrypted, bytes, None);
            let cut = run_server(tls, encrypted, bytes, Some(Rng::new(seed)));
            assert_eq!(whole, cut, "how the bytes were cut changed the outcome");
            judge(bytes, &whole);
        }
    }
}

/// Runs one server over `bytes`, in one piece or in pieces whose lengths `cuts` draws.
///
/// With `encrypted`, the way into TLS is taken first and `bytes` begin inside it.
#[must_use]
pub fn run_server(tls: TlsPolicy, encrypted: bool, bytes: &[u8], mut cuts: Option<Rng>) -> FuzzRun {
    let mut server = Server::new(tls);
    if encrypted {
        server.enter_tls();
    }
    let mut held = Vec::new();
    let mut rest = bytes;
    while server.run.end == FuzzEnd::Starved && !rest.is_empty() {
        let most = cuts.as_mut().map_or(rest.len(), draw_length);
        let (piece, later) = rest.split_at(most.min(rest.len()));
        held.extend_from_slice(piece);
        rest = later;
        server.on_bytes(&mut held);
    }
    server.run
}

/// Short pieces mostly, so that heads are cut; long ones at times, so that runs end.
fn draw_length(rng: &mut Rng) -> usize {
    let most = if rng.chance(1, 4) { 8192 } else { 24 };
    1 + rng.below(most) as usize
}

/// Two exports, and one name for each way to be refused.
#[derive(Debug)]
struct Shelf;

impl Exports for Shelf {
    fn list(&self) -> Vec<String> {
        vec!["a".to_owned(), "b".to_owned()]
    }
    fn find(&self, name: &str) -> Result<ExportInfo, ExportError> {
        match name {
            "" | "a" => Ok(ExportInfo::new(VolumeId(1), "a", EXPORT_SIZE)),
            "b" => Ok(ExportInfo {
                read_only: true,
                rotational: true,
                description: "second".to_owned(),
                request_length_max: 1024,
                ..ExportInfo::new(VolumeId(2), "b", EXPORT_SIZE)
            }),
            "denied" => Err(ExportError::Denied),
            "closing" => Err(ExportError::ShuttingDown),
            _ => Err(ExportError::Unknown),
        }
    }
}

/// A server with an engine that answers at once.
#[derive(Debug)]
struct Server {
    handshake: Handshake,
    session: Option<NbdSession>,
    /// Bytes taken so far.
    received: usize,
    run: FuzzRun,
}

impl Server {
    fn new(tls: TlsPolicy) -> Self {
        Server {
            handshake: Handshake::new(HandshakeOptions { tls }),
            session: None,
            received: 0,
            run: FuzzRun {
                entry: None,
                sent: Vec::new(),
                calls: Vec::new(),
                end: FuzzEnd::Starved,
            },
        }
    }

    fn enter_tls(&mut self) {
        let mut held = INTO_TLS.to_vec();
        self.on_bytes(&mut held);
        assert!(held.is_empty() && self.run.end == FuzzEnd::Starved, "the way into TLS is open");
        self.handshake.tls_established();
        self.received = 0;
    }

    /// Reads messages until more bytes are needed or the run is over.
    fn on_bytes(&mut self, held: &mut Vec<u8>) {
        let mut at = 0;
        while self.run.end == FuzzEnd::Starved {
            let sent_before = self.run.sent.len();
            let consumed = match &mut self.session {
                None => self.on_handshake(&held[at..]),
                Some(_) => self.on_message(&held[at..]),
            };
            let answered = self.run.sent.len() - sent_before;
            assert!(answered <= ANSWER_LENGTH_MAX, "an answer of {answered} bytes");
            match consumed {
                Some(consumed) => (at, self.received) = (at + consumed, self.received + consumed),
                None => break,
            }
        }
        held.drain(..at);
    }

    /// Bytes consumed, or nothing when more are needed.
    fn on_handshake(&mut self, bytes: &[u8]) -> Option<usize> {
        let step = match self.handshake.on_bytes(bytes, &Shelf, &mut self.run.sent) {
            Ok(step) => step,
            Err(error) => {
                self.run.end = FuzzEnd::Refused(error.reason);
                return None;
            }
        };
        assert!(step.consumed <= bytes.len(), "a step consumed bytes that are not there");
        match step.next {
            HandshakeNext::NeedMore { wanted } => {
                assert!(wanted > bytes.len() - step.consumed, "it asked for bytes it has");
                return (step.consumed > 0).then_some(step.consumed);
            }
            HandshakeNext::Ready(transmission) => {
                let received = self.received + step.consumed;
                let (sent, features) = (self.run.sent.len(), transmission.session.features());
                self.run.entry =
                    Some(FuzzEntry { received, sent, features, export: transmission.export });
                self.session = Some(transmission.session);
            }
            HandshakeNext::Aborted => self.run.end = FuzzEnd::Left,
            HandshakeNext::Answered | HandshakeNext::StartTls => {}
        }
        assert!(step.consumed > 0, "a step neither consumed nor asked for more");
        Some(step.consumed)
    }

    fn on_message(&mut self, bytes: &[u8]) -> Option<usize> {
        let session = self.session.as_mut()?;
        let (consumed, call) = match session.parse(bytes, &mut self.run.sent) {
            Ok(Parsed::Call { consumed, call, payload }) => {
                let wanted = if call.operation == Operation::Write { call.length } else { 0 };
                assert_eq!(payload.len() as u64, wanted, "a payload is as long as announced");
                (consumed, Some(call))
            }
            Ok(Parsed::Answered { consumed }) => (consumed, None),
            Ok(Parsed::Incomplete { wanted }) => {
                assert!(wanted > bytes.len(), "it asked for bytes it has");
                return None;
            }
            Ok(Parsed::Goodbye) => {
                self.run.end = FuzzEnd::Left;
                return None;
            }
            Err(error) => {
                self.run.end = FuzzEnd::Refused(error.reason);
                return None;
            }
        };
        assert!(consumed > 0 && consumed <= bytes.len(), "a message is at least one byte");
        if let Some(call) = call {
            answer(session, &call, &mut self.run.sent);
            self.run.calls.push(call);
        }
        Some(consumed)
    }
}

/// Answers a call as an engine might: by its cookie, with data or with an error.
fn answer(session: &mut NbdSession, call: &Call, out: &mut Vec<u8>) {
    let inside = call.offset.checked_add(call.length).is_some_and(|end| end <= EXPORT_SIZE);
    assert!(inside, "a call left the export");
    assert!(call.length > 0 || call.operation == Operation::Flush, "a call is about nothing");
    if call.cookie & 1 == 1 {
        let kind = if call.flags.fast_zero { ErrorKind::Unsupported } else { ErrorKind::Corrupt };
        return session.reply_error(call, kind, out);
    }
    match call.operation {
        Operation::Read => {
            session.reply_read_head(call, out);
            out.resize(out.len() + call.length as usize, call.cookie as u8);
        }
        Operation::BlockStatus => {
            let data = Extent { length: 512, hole: false, zero: false };
            let hole = Extent { length: u64::MAX, hole: true, zero: true };
            session.reply_extents(call, &[data, hole], out);
        }
        _ => session.reply_done(call, out),
    }
}
