//! The client's half of the NBD handshake, for load and tests.
//!
//! How: the client asks for what its options want, one option at a time, and enters the export with
//! `GO`; each call reads one message of the server and appends the next question.
//! Invariant: a feature is used only when the server acknowledged it.
//! Cost: a handful of round trips; at most [`REPLY_LENGTH_MAX`] bytes held by the caller.
//! Not for: TLS, and servers without `GO` (before 2016).

use super::client::ClientSession;
use super::wire::{
    self, GREETING_LENGTH, OPTION_REPLY_HEAD_LENGTH, Reader, info, option, put_u16, put_u32,
    put_u64, reply,
};
use layby_types::ErrorKind;
use std::fmt;

/// The longest data of an option reply that a client accepts.
const REPLY_LENGTH_MAX: u32 = 16 << 10;
/// The most replies to all options together; a server that sends more is broken.
const REPLIES_MAX: u32 = 1024;

/// What a client wants of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// The export to enter; empty for the server's default.
    pub export: String,
    /// Ask for structured replies; go on without when they are refused.
    pub structured: bool,
    /// Ask for `base:allocation`; needs structured replies, goes on without when refused.
    pub block_status: bool,
}

/// Why a client gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The server refused the export.
    Refused {
        /// What to do about it.
        kind: ErrorKind,
        /// The server's own words, if any.
        message: String,
    },
    /// The server did not keep to the protocol.
    Broken {
        /// What it did.
        reason: &'static str,
    },
}

impl ClientError {
    /// The error by remedy.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            ClientError::Refused { kind, .. } => *kind,
            ClientError::Broken { .. } => ErrorKind::Corrupt,
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Refused { kind, message } if message.is_empty() => {
                write!(f, "the server refused the export: {kind}")
            }
            ClientError::Refused { message, .. } => {
                write!(f, "the server refused the export: {message}")
            }
            ClientError::Broken { reason } => write!(f, "the server broke the protocol: {reason}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// What the server said of the export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientExport {
    /// Bytes of the export.
    pub size: u64,
    /// The transmission flags as sent.
    pub flags: u16,
    /// The smallest request, in bytes; zero when the server did not say.
    pub block_size_min: u32,
    /// The cheapest request, in bytes; zero when the server did not say.
    pub block_size: u32,
    /// The longest request, in bytes; zero when the server did not say.
    pub request_length_max: u32,
}

/// What one message of the server led to.
#[derive(Debug)]
pub struct ClientStep {
    /// Bytes to drop from the front of what was received.
    pub consumed: usize,
    /// What to do now.
    pub next: ClientNext,
}

/// What the client's caller does after a step; what was appended to `out` is sent first.
#[derive(Debug)]
pub enum ClientNext {
    /// At least `wanted` bytes must be there before another call helps.
    NeedMore {
        /// Bytes needed in all.
        wanted: usize,
    },
    /// A message was read; call again with the rest.
    Continue,
    /// The export is entered.
    Ready(Box<ClientSession>),
}

/// The question that waits for the server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    Structured,
    Context,
    Go,
}

/// The client's side of one connection's negotiation.
#[derive(Debug)]
pub struct ClientHandshake {
    options: ClientOptions,
    phase: Phase,
    replies_seen: u32,
    structured: bool,
    allocation_id: Option<u32>,
    export: Option<ClientExport>,
    block_sizes: [u32; 3],
}

impl ClientHandshake {
    /// A handshake that waits for the server's greeting.
    ///
    /// # Panics
    /// When the export's name is longer than the protocol's 4096 bytes.
    #[must_use]
    pub fn new(options: ClientOptions) -> Self {
        assert!(options.export.len() <= wire::STRING_LENGTH_MAX, "a name fits the protocol");
        ClientHandshake {
            options,
            phase: Phase::Greeting,
            replies_seen: 0,
            structured: false,
            allocation_id: None,
            export: None,
            block_sizes: [0; 3],
        }
    }

    /// Reads at most one message off the front of `bytes`; what to send next goes to `out`.
    ///
    /// # Errors
    /// [`ClientError`] when the server refuses the export or breaks the protocol.
    pub fn on_bytes(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<ClientStep, ClientError> {
        if self.phase == Phase::Greeting {
            return self.on_greeting(bytes, out);
        }
        let mut reader = Reader::new(bytes);
        let (Some(magic), Some(option), Some(kind), Some(length)) =
            (reader.u64(), reader.u32(), reader.u32(), reader.u32())
        else {
            return Ok(need_more(OPTION_REPLY_HEAD_LENGTH));
        };
        if magic != wire::OPTION_REPLY_MAGIC || option != self.option() {
            return Err(broken("an option reply answers nothing that was asked"));
        }
        if length > REPLY_LENGTH_MAX || self.replies_seen == REPLIES_MAX {
            return Err(broken("an option reply is too long"));
        }
        let Some(data) = reader.take(length as usize) else {
            return Ok(need_more(OPTION_REPLY_HEAD_LENGTH + length as usize));
        };
        self.replies_seen += 1;
        let consumed = OPTION_REPLY_HEAD_LENGTH + length as usize;
        Ok(ClientStep { consumed, next: self.on_reply(kind, data, out)? })
    }

    fn option(&self) -> u32 {
        match self.phase {
            Phase::Greeting | Phase::Structured => option::STRUCTURED_REPLY,
            Phase::Context => option::SET_META_CONTEXT,
            Phase::Go => option::GO,
        }
    }

    fn on_greeting(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<ClientStep, ClientError> {
        let mut reader = Reader::new(bytes);
        let (Some(first), Some(second), Some(flags)) = (reader.u64(), reader.u64(), reader.u16())
        else {
            return Ok(need_more(GREETING_LENGTH));
        };
        if first != wire::GREETING_MAGIC || second != wire::OPTION_MAGIC {
            return Err(broken("the greeting is not that of an NBD server"));
        }
        if flags & wire::HANDSHAKE_FIXED_NEWSTYLE == 0 {
            return Err(broken("the server does not speak fixed newstyle"));
        }
        let shared = wire::HANDSHAKE_FIXED_NEWSTYLE | (flags & wire::HANDSHAKE_NO_ZEROES);
        put_u32(out, u32::from(shared));
        if self.options.structured {
            self.phase = Phase::Structured;
            put_option(option::STRUCTURED_REPLY, &[], out);
        } else {
            self.ask_go(out);
        }
        Ok(ClientStep { consumed: GREETING_LENGTH, next: ClientNext::Continue })
    }

    fn on_reply(
        &mut self,
        kind: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ClientNext, ClientError> {
        let refused = kind & reply::ERROR != 0;
        match self.phase {
            Phase::Structured if kind == reply::ACK || refused => {
                self.structured = !refused;
                if self.structured && self.options.block_status {
                    self.ask_context(out);
                } else {
                    self.ask_go(out);
                }
            }
            Phase::Context if kind == reply::ACK || refused => {
                if refused {
                    self.allocation_id = None;
                }
                self.ask_go(out);
            }
            Phase::Context if kind == reply::META_CONTEXT => self.on_context(data)?,
            Phase::Go if refused => return Err(refusal(kind, data)),
            Phase::Go if kind == reply::INFO => {
                self.on_info(data).ok_or(broken("an info reply is malformed"))?;
            }
            Phase::Go if kind == reply::ACK => return self.enter(),
            _ => return Err(broken("an option reply is of the wrong kind")),
        }
        Ok(ClientNext::Continue)
    }

    fn on_context(&mut self, data: &[u8]) -> Result<(), ClientError> {
        let mut reader = Reader::new(data);
        let id = reader.u32().ok_or(broken("a context reply is malformed"))?;
        if reader.rest() == wire::CONTEXT_ALLOCATION.as_bytes() {
            self.allocation_id = Some(id);
        }
        Ok(())
    }

    fn on_info(&mut self, data: &[u8]) -> Option<()> {
        let mut reader = Reader::new(data);
        match reader.u16()? {
            info::EXPORT => {
                let (size, flags) = (reader.u64()?, reader.u16()?);
                self.export = Some(ClientExport { size, flags, ..ClientExport::default() });
                reader.finish()
            }
            info::BLOCK_SIZE => {
                self.block_sizes = [reader.u32()?, reader.u32()?, reader.u32()?];
                reader.finish()
            }
            _ => Some(()),
        }
    }

    fn ask_context(&mut self, out: &mut Vec<u8>) {
        self.phase = Phase::Context;
        let mut data = Vec::new();
        put_text(&self.options.export, &mut data);
        put_u32(&mut data, 1);
        put_text(wire::CONTEXT_ALLOCATION, &mut data);
        put_option(option::SET_META_CONTEXT, &data, out);
    }

    fn ask_go(&mut self, out: &mut Vec<u8>) {
        self.phase = Phase::Go;
        let mut data = Vec::new();
        put_text(&self.options.export, &mut data);
        put_u16(&mut data, 1);
        put_u16(&mut data, info::BLOCK_SIZE);
        put_option(option::GO, &data, out);
    }

    fn enter(&mut self) -> Result<ClientNext, ClientError> {
        let mut export = self.export.ok_or(broken("the server did not describe the export"))?;
        [export.block_size_min, export.block_size, export.request_length_max] = self.block_sizes;
        let session = ClientSession::new(export, self.structured, self.allocation_id);
        Ok(ClientNext::Ready(Box::new(session)))
    }
}

pub(crate) fn broken(reason: &'static str) -> ClientError {
    ClientError::Broken { reason }
}

fn need_more(wanted: usize) -> ClientStep {
    ClientStep { consumed: 0, next: ClientNext::NeedMore { wanted } }
}

fn refusal(kind: u32, data: &[u8]) -> ClientError {
    let kind = match kind {
        reply::ERROR_POLICY | reply::ERROR_TLS_REQUIRED => ErrorKind::Denied,
        reply::ERROR_SHUTDOWN => ErrorKind::Closed,
        reply::ERROR_UNSUPPORTED => ErrorKind::Unsupported,
        _ => ErrorKind::Invalid,
    };
    ClientError::Refused { kind, message: String::from_utf8_lossy(data).into_owned() }
}

fn put_option(option: u32, data: &[u8], out: &mut Vec<u8>) {
    put_u64(out, wire::OPTION_MAGIC);
    put_u32(out, option);
    put_u32(out, u32::try_from(data.len()).expect("an option is a name and a few words"));
    out.extend_from_slice(data);
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put_u32(out, wire::text_length(text));
    out.extend_from_slice(text.as_bytes());
}
