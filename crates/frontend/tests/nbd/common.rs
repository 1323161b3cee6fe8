//! What the transcripts share: exports, options as bytes, and a server that is fed by hand.

use layby_frontend::nbd::{
    ExportError, ExportInfo, Exports, Handshake, HandshakeNext, HandshakeOptions, TlsPolicy,
    Transmission,
};
use layby_types::{BlockSize, Rng, SessionError, VolumeId};

pub(crate) const EXPORT_NAME: u32 = 1;
pub(crate) const ABORT: u32 = 2;
pub(crate) const LIST: u32 = 3;
pub(crate) const STARTTLS: u32 = 5;
pub(crate) const INFO: u32 = 6;
pub(crate) const GO: u32 = 7;
pub(crate) const STRUCTURED: u32 = 8;
pub(crate) const LIST_CONTEXT: u32 = 9;
pub(crate) const SET_CONTEXT: u32 = 10;

pub(crate) const ACK: u32 = 1;
pub(crate) const UNSUPPORTED: u32 = 0x8000_0001;
pub(crate) const POLICY: u32 = 0x8000_0002;
pub(crate) const INVALID: u32 = 0x8000_0003;
pub(crate) const TLS_REQUIRED: u32 = 0x8000_0005;
pub(crate) const UNKNOWN: u32 = 0x8000_0006;
pub(crate) const SHUTDOWN: u32 = 0x8000_0007;
pub(crate) const TOO_BIG: u32 = 0x8000_0009;

/// Runs `test` with seeds 0..`count`, or with the one in `SEED`, and names a seed that fails.
pub(crate) fn for_each_seed(count: u64, test: impl Fn(&mut Rng)) {
    struct Replay(u64);
    impl Drop for Replay {
        #[expect(clippy::print_stderr, reason = "the line to replay belongs beside the panic")]
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with SEED={}", self.0);
            }
        }
    }
    let only = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..count, |seed: u64| seed..seed + 1) {
        let _replay = Replay(seed);
        test(&mut Rng::new(seed));
    }
}

/// `alpha` (the default, 1 MiB), `beta` (read-only), and a name for each way to be refused.
pub(crate) struct Shelf;

pub(crate) const ALPHA_SIZE: u64 = 1 << 20;

impl Exports for Shelf {
    fn list(&self) -> Vec<String> {
        vec!["alpha".to_owned(), "beta".to_owned()]
    }
    fn find(&self, name: &str) -> Result<ExportInfo, ExportError> {
        match name {
            "" | "alpha" => Ok(ExportInfo {
                description: "first".to_owned(),
                ..ExportInfo::new(VolumeId(1), "alpha", ALPHA_SIZE)
            }),
            "beta" => Ok(ExportInfo {
                read_only: true,
                rotational: true,
                block_size: BlockSize::new(8192).expect("8 KiB is a block size"),
                ..ExportInfo::new(VolumeId(2), "beta", 10_000)
            }),
            "denied" => Err(ExportError::Denied),
            "closing" => Err(ExportError::ShuttingDown),
            _ => Err(ExportError::Unknown),
        }
    }
}

/// An option as a client sends it.
pub(crate) fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&code.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A string after its length.
pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// The data of `INFO` and `GO`.
pub(crate) fn info(name: &str, items: &[u16]) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend_from_slice(&(items.len() as u16).to_be_bytes());
    bytes.extend(items.iter().flat_map(|item| item.to_be_bytes()));
    bytes
}

/// The data of the context options.
pub(crate) fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    bytes.extend(queries.iter().flat_map(|query| text(query)));
    bytes
}

/// A reply to an option, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) option: u32,
    pub(crate) kind: u32,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

/// Takes apart what the server sent.
pub(crate) fn replies(mut sent: &[u8]) -> Vec<Reply> {
    let mut replies = Vec::new();
    while !sent.is_empty() {
        assert_eq!(sent[..8], [0, 3, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9]);
        let length = be32(&sent[16..]) as usize;
        let data = sent[20..20 + length].to_vec();
        replies.push(Reply { option: be32(&sent[8..]), kind: be32(&sent[12..]), data });
        sent = &sent[20 + length..];
    }
    replies
}

/// A server that is fed by hand.
pub(crate) struct Hand {
    pub(crate) handshake: Handshake,
}

impl Hand {
    /// A server that waits for the client's flags.
    pub(crate) fn fresh(tls: TlsPolicy) -> Self {
        Hand { handshake: Handshake::new(HandshakeOptions { tls }) }
    }
    /// A server that waits for options of a client that knows both flags.
    pub(crate) fn new(tls: TlsPolicy) -> Self {
        let mut hand = Hand::fresh(tls);
        hand.send(&[0, 0, 0, 3]).1.expect("both flags are known");
        hand
    }
    /// A server whose client has gone into TLS.
    pub(crate) fn encrypted(tls: TlsPolicy) -> Self {
        let mut hand = Hand::new(tls);
        let (_, next) = hand.send(&option(STARTTLS, &[]));
        assert!(matches!(next, Ok(HandshakeNext::StartTls)));
        hand.handshake.tls_established();
        hand
    }
    /// Sends one whole message; what came back, and what is next.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> (Vec<u8>, Result<HandshakeNext, SessionError>) {
        let mut out = Vec::new();
        let step = self.handshake.on_bytes(bytes, &Shelf, &mut out);
        let next = step.map(|step| {
            assert_eq!(step.consumed, bytes.len(), "one message was sent");
            step.next
        });
        (out, next)
    }
    /// Sends an option that negotiation survives; its replies.
    pub(crate) fn ask(&mut self, code: u32, data: &[u8]) -> Vec<Reply> {
        let (out, next) = self.send(&option(code, data));
        assert!(matches!(next, Ok(HandshakeNext::Answered)), "{code}: {next:?}");
        replies(&out)
    }
    /// Sends an option that is answered once; the kind of the answer.
    pub(crate) fn kind(&mut self, code: u32, data: &[u8]) -> u32 {
        let replies = self.ask(code, data);
        assert_eq!(replies.len(), 1, "{replies:?}");
        assert_eq!(replies[0].option, code);
        replies[0].kind
    }
    /// Enters an export with `GO`.
    pub(crate) fn go(&mut self, name: &str) -> Transmission {
        let (_, next) = self.send(&option(GO, &info(name, &[])));
        match next {
            Ok(HandshakeNext::Ready(transmission)) => *transmission,
            other => panic!("GO led to {other:?}"),
        }
    }
}
