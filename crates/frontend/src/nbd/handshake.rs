//! The server's half of the NBD handshake: fixed newstyle, option by option.
//!
//! How: the caller sends the greeting, then hands over received bytes; each call reads at most one
//! message off their front, appends its answer, and says what comes next.
//! Invariant: nothing said before TLS survives into it, and no byte that came in clear is ever read
//! as if it had come encrypted.
//! Cost: an option is copied nowhere; at most [`OPTION_LENGTH_MAX`] bytes need to be held by the
//! caller, longer data is thrown away as it comes. A client gets [`OPTIONS_MAX`] options.
//! Not for: clients of the oldstyle negotiation, which are disconnected.

use super::export::{ExportError, ExportInfo, Exports};
use super::options::{ContextRequest, InfoRequest, OptionReply};
use super::session::{NbdSession, SessionFeatures};
use super::wire::{self, OPTION_HEAD_LENGTH, Reader, option, put_u16, put_u64, reply};
use layby_types::{SessionError, VolumeId};

/// Options that a client may send before it must have entered transmission.
pub const OPTIONS_MAX: u32 = 1024;
/// The longest option data that is read at all: a name and a handful of queries.
pub const OPTION_LENGTH_MAX: u32 = 32 << 10;
/// The longest option data that is skipped and refused; beyond it the connection is closed.
pub const OPTION_SWALLOW_MAX: u32 = 1 << 20;
/// The most names that one `LIST` returns; a node with more answers that the reply is too big.
const LIST_NAMES_MAX: usize = 1 << 16;
/// Bytes of the flags that open the client's side.
const CLIENT_FLAGS_LENGTH: usize = 4;

/// Whether a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// TLS is not offered.
    Off,
    /// The client chooses.
    Allowed,
    /// Nothing but the way into TLS is answered before it.
    Required,
}

/// How to negotiate with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeOptions {
    /// Whether the connection must become encrypted.
    pub tls: TlsPolicy,
}

/// What one message of the client led to.
#[derive(Debug)]
pub struct HandshakeStep {
    /// Bytes to drop from the front of what was received.
    pub consumed: usize,
    /// What to do now.
    pub next: HandshakeNext,
}

/// What the caller does after a step; in every case what was appended to `out` is sent first.
#[derive(Debug)]
pub enum HandshakeNext {
    /// At least `wanted` bytes must be there (after the drop) before another call helps.
    NeedMore {
        /// Bytes needed in all.
        wanted: usize,
    },
    /// A message was answered; call again with the rest.
    Answered,
    /// Wrap the stream in TLS, call [`Handshake::tls_established`], go on with decrypted bytes.
    StartTls,
    /// Negotiation is over; the rest of the bytes belongs to the session.
    Ready(Box<Transmission>),
    /// The client took its leave; close.
    Aborted,
}

/// A connection that has entered the transmission phase.
#[derive(Debug)]
pub struct Transmission {
    /// The export the client entered.
    pub export: ExportInfo,
    /// Serves its requests.
    pub session: NbdSession,
}

/// Where in the handshake a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    ClientFlags,
    Options,
    /// `STARTTLS` was acknowledged; clear bytes are refused until TLS stands.
    AwaitTls,
    Over,
}

/// Option data that is thrown away as it arrives, and the reply that follows it.
#[derive(Debug)]
struct Swallow {
    remaining: u32,
    option: u32,
    reply: u32,
    message: &'static str,
}

/// The server's side of one connection's negotiation.
#[derive(Debug)]
pub struct Handshake {
    tls: TlsPolicy,
    phase: Phase,
    encrypted: bool,
    fixed_newstyle: bool,
    no_zeroes: bool,
    structured: bool,
    /// The volume for which `base:allocation` is selected.
    allocation_of: Option<VolumeId>,
    options_seen: u32,
    /// An option was refused for want of TLS.
    was_refused: bool,
    swallow: Option<Swallow>,
}

impl Handshake {
    /// A handshake that has not said anything yet.
    #[must_use]
    pub fn new(options: HandshakeOptions) -> Self {
        Handshake {
            tls: options.tls,
            phase: Phase::ClientFlags,
            encrypted: false,
            fixed_newstyle: false,
            no_zeroes: false,
            structured: false,
            allocation_of: None,
            options_seen: 0,
            was_refused: false,
            swallow: None,
        }
    }

    /// Whether the client was told that it needs TLS and has not begun it.
    #[must_use]
    pub fn was_refused_without_tls(&self) -> bool {
        self.was_refused && self.lacks_tls()
    }

    /// Appends what the server says first, before any byte of the client.
    pub fn greeting(&self, out: &mut Vec<u8>) {
        put_u64(out, wire::GREETING_MAGIC);
        put_u64(out, wire::OPTION_MAGIC);
        put_u16(out, wire::HANDSHAKE_FIXED_NEWSTYLE | wire::HANDSHAKE_NO_ZEROES);
    }

    /// Reads at most one message off the front of `bytes` and appends the answer to `out`.
    ///
    /// # Errors
    /// [`SessionError`] when the client broke the protocol beyond a reply: send `out`, then close.
    ///
    /// # Panics
    /// When called after [`HandshakeNext::Ready`] or [`HandshakeNext::Aborted`].
    pub fn on_bytes(
        &mut self,
        bytes: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, SessionError> {
        match self.phase {
            Phase::ClientFlags => self.on_client_flags(bytes),
            Phase::Options if self.swallow.is_some() => Ok(self.on_swallow(bytes, out)),
            Phase::Options => self.on_option(bytes, exports, out),
            Phase::AwaitTls if bytes.is_empty() => Ok(need_more(1)),
            Phase::AwaitTls => Err(CLEAR_AFTER_STARTTLS),
            Phase::Over => panic!("the handshake is over; its bytes belong to the session"),
        }
    }

    /// TLS stands: negotiation begins anew inside it.
    ///
    /// # Panics
    /// When no [`HandshakeNext::StartTls`] came before.
    pub fn tls_established(&mut self) {
        assert!(self.phase == Phase::AwaitTls, "TLS was established without being asked for");
        self.phase = Phase::Options;
        self.encrypted = true;
        self.structured = false;
        self.allocation_of = None;
    }

    /// Whether the connection runs inside TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    fn on_client_flags(&mut self, bytes: &[u8]) -> Result<HandshakeStep, SessionError> {
        let Some(flags) = Reader::new(bytes).u32() else {
            return Ok(need_more(CLIENT_FLAGS_LENGTH));
        };
        let fixed = u32::from(wire::HANDSHAKE_FIXED_NEWSTYLE);
        let no_zeroes = u32::from(wire::HANDSHAKE_NO_ZEROES);
        if flags & !(fixed | no_zeroes) != 0 {
            return Err(SessionError { reason: "the client set handshake flags nobody offered" });
        }
        self.fixed_newstyle = flags & fixed != 0;
        self.no_zeroes = flags & no_zeroes != 0;
        self.phase = Phase::Options;
        Ok(HandshakeStep { consumed: CLIENT_FLAGS_LENGTH, next: HandshakeNext::Answered })
    }

    fn on_option(
        &mut self,
        bytes: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, SessionError> {
        let mut reader = Reader::new(bytes);
        let (Some(magic), Some(option), Some(length)) = (reader.u64(), reader.u32(), reader.u32())
        else {
            return Ok(need_more(OPTION_HEAD_LENGTH));
        };
        if magic != wire::OPTION_MAGIC {
            return Err(SessionError { reason: "an option did not open with its magic number" });
        }
        if length > OPTION_LENGTH_MAX {
            return self.on_long_option(option, length);
        }
        let whole = OPTION_HEAD_LENGTH + length as usize;
        let Some(data) = bytes.get(OPTION_HEAD_LENGTH..whole) else {
            return Ok(need_more(whole));
        };
        self.count_option(option)?;
        let next = self.answer(option, data, exports, out)?;
        if matches!(next, HandshakeNext::StartTls) && bytes.len() > whole {
            return Err(CLEAR_AFTER_STARTTLS);
        }
        Ok(HandshakeStep { consumed: whole, next })
    }

    /// Starts to throw away the data of an option that is longer than any that makes sense.
    fn on_long_option(&mut self, option: u32, length: u32) -> Result<HandshakeStep, SessionError> {
        self.count_option(option)?;
        if option == option::EXPORT_NAME || length > OPTION_SWALLOW_MAX {
            return Err(SessionError { reason: "an option's data is too long" });
        }
        let (reply, message) = if self.lacks_tls() && option != option::STARTTLS {
            TLS_REQUIRED
        } else if is_known(option) {
            (reply::ERROR_TOO_BIG, "the option's data is too long")
        } else {
            UNSUPPORTED
        };
        self.swallow = Some(Swallow { remaining: length, option, reply, message });
        Ok(HandshakeStep { consumed: OPTION_HEAD_LENGTH, next: HandshakeNext::Answered })
    }

    fn on_swallow(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        let Some(mut swallow) = self.swallow.take() else { return need_more(1) };
        let consumed = bytes.len().min(swallow.remaining as usize);
        swallow.remaining -= consumed as u32;
        if swallow.remaining > 0 {
            self.swallow = Some(swallow);
            return HandshakeStep { consumed, next: HandshakeNext::NeedMore { wanted: 1 } };
        }
        let mut answer = OptionReply { option: swallow.option, out };
        if swallow.option == option::ABORT {
            self.phase = Phase::Over;
            answer.ack();
            return HandshakeStep { consumed, next: HandshakeNext::Aborted };
        }
        answer.error(swallow.reply, swallow.message);
        HandshakeStep { consumed, next: HandshakeNext::Answered }
    }

    /// Counts an option against the bound and refuses what an unfixed newstyle cannot answer.
    fn count_option(&mut self, option: u32) -> Result<(), SessionError> {
        if self.options_seen == OPTIONS_MAX {
            return Err(SessionError { reason: "the client haggled for too long" });
        }
        self.options_seen += 1;
        if !self.fixed_newstyle && option != option::EXPORT_NAME {
            return Err(SessionError { reason: "the client cannot read option replies" });
        }
        Ok(())
    }

    fn lacks_tls(&self) -> bool {
        self.tls == TlsPolicy::Required && !self.encrypted
    }

    fn answer(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeNext, SessionError> {
        if option == option::EXPORT_NAME {
            return self.on_export_name(data, exports, out);
        }
        let mut answer = OptionReply { option, out };
        match option {
            option::ABORT => {
                self.phase = Phase::Over;
                answer.ack();
                return Ok(HandshakeNext::Aborted);
            }
            option::STARTTLS => return Ok(self.on_starttls(data, &mut answer)),
            _ if self.lacks_tls() => {
                self.was_refused = true;
                answer.error(TLS_REQUIRED.0, TLS_REQUIRED.1);
            }
            option::LIST => on_list(data, exports, &mut answer),
            option::INFO | option::GO => return Ok(self.on_info(data, exports, &mut answer)),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                answer.ack();
            }
            option::STRUCTURED_REPLY => answer.error(UNEXPECTED_DATA.0, UNEXPECTED_DATA.1),
            option::LIST_META_CONTEXT => self.on_list_context(data, exports, &mut answer),
            option::SET_META_CONTEXT => self.on_set_context(data, exports, &mut answer),
            _ => answer.error(UNSUPPORTED.0, UNSUPPORTED.1),
        }
        Ok(HandshakeNext::Answered)
    }

    /// `EXPORT_NAME` has no error reply: whatever is wrong with it closes the connection.
    fn on_export_name(
        &mut self,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeNext, SessionError> {
        if self.lacks_tls() {
            self.was_refused = true;
            return Err(SessionError { reason: "the client asked for an export without TLS" });
        }
        let name = wire::text(data)
            .ok_or(SessionError { reason: "an export name is no bounded UTF-8 string" })?;
        let export = exports
            .find(name)
            .map_err(|error| SessionError { reason: export_error_reply(error).1 })?;
        put_u64(out, export.size);
        put_u16(out, export.transmission_flags(self.structured));
        if !self.no_zeroes {
            out.extend_from_slice(&[0; wire::EXPORT_NAME_PADDING]);
        }
        Ok(self.enter(export))
    }

    fn on_starttls(&mut self, data: &[u8], answer: &mut OptionReply<'_>) -> HandshakeNext {
        if self.tls == TlsPolicy::Off {
            answer.error(reply::ERROR_POLICY, "TLS is not offered here");
        } else if self.encrypted {
            answer.error(reply::ERROR_INVALID, "the connection is already encrypted");
        } else if !data.is_empty() {
            answer.error(UNEXPECTED_DATA.0, UNEXPECTED_DATA.1);
        } else {
            answer.ack();
            self.phase = Phase::AwaitTls;
            return HandshakeNext::StartTls;
        }
        HandshakeNext::Answered
    }

    fn on_info(
        &mut self,
        data: &[u8],
        exports: &dyn Exports,
        answer: &mut OptionReply<'_>,
    ) -> HandshakeNext {
        let Some(request) = InfoRequest::parse(data) else {
            answer.error(MALFORMED.0, MALFORMED.1);
            return HandshakeNext::Answered;
        };
        let export = match exports.find(request.name) {
            Ok(export) => export,
            Err(error) => {
                let (reply, message) = export_error_reply(error);
                answer.error(reply, message);
                return HandshakeNext::Answered;
            }
        };
        answer.export(&export, export.transmission_flags(self.structured), &request);
        answer.ack();
        if answer.option == option::GO { self.enter(export) } else { HandshakeNext::Answered }
    }

    fn on_list_context(
        &mut self,
        data: &[u8],
        exports: &dyn Exports,
        answer: &mut OptionReply<'_>,
    ) {
        let Some((request, _)) = self.context_request(data, exports, answer) else { return };
        if request.queries == 0 || request.names_base || request.names_allocation {
            // The id of a listed context has no meaning; only a selected one has.
            answer.context(0, wire::CONTEXT_ALLOCATION);
        }
        answer.ack();
    }

    fn on_set_context(&mut self, data: &[u8], exports: &dyn Exports, answer: &mut OptionReply<'_>) {
        // The selection is replaced even by a request that fails.
        self.allocation_of = None;
        let Some((request, volume)) = self.context_request(data, exports, answer) else { return };
        if request.names_allocation {
            self.allocation_of = Some(volume);
            answer.context(wire::CONTEXT_ALLOCATION_ID, wire::CONTEXT_ALLOCATION);
        }
        answer.ack();
    }

    /// The request of a context option and the volume it names; answers with the error otherwise.
    fn context_request<'bytes>(
        &self,
        data: &'bytes [u8],
        exports: &dyn Exports,
        answer: &mut OptionReply<'_>,
    ) -> Option<(ContextRequest<'bytes>, VolumeId)> {
        if !self.structured {
            answer.error(reply::ERROR_INVALID, "contexts need structured replies first");
            return None;
        }
        let Some(request) = ContextRequest::parse(data) else {
            answer.error(MALFORMED.0, MALFORMED.1);
            return None;
        };
        match exports.find(request.name) {
            Ok(export) => Some((request, export.volume)),
            Err(error) => {
                let (reply, message) = export_error_reply(error);
                answer.error(reply, message);
                None
            }
        }
    }

    fn enter(&mut self, export: ExportInfo) -> HandshakeNext {
        self.phase = Phase::Over;
        let features = SessionFeatures {
            structured: self.structured,
            // A context selected for another export is void.
            allocation_context: self.allocation_of == Some(export.volume),
        };
        let session = NbdSession::new(&export, features);
        HandshakeNext::Ready(Box::new(Transmission { export, session }))
    }
}

const CLEAR_AFTER_STARTTLS: SessionError =
    SessionError { reason: "clear bytes followed the request to start TLS" };
const TLS_REQUIRED: (u32, &str) = (reply::ERROR_TLS_REQUIRED, "this server requires TLS");
const UNEXPECTED_DATA: (u32, &str) = (reply::ERROR_INVALID, "the option takes no data");
const MALFORMED: (u32, &str) = (reply::ERROR_INVALID, "the option's data is malformed");
const UNSUPPORTED: (u32, &str) = (reply::ERROR_UNSUPPORTED, "the option is not offered here");

fn need_more(wanted: usize) -> HandshakeStep {
    HandshakeStep { consumed: 0, next: HandshakeNext::NeedMore { wanted } }
}

fn is_known(option: u32) -> bool {
    use option::{ABORT, GO, INFO, LIST, LIST_META_CONTEXT, SET_META_CONTEXT};
    use option::{STARTTLS, STRUCTURED_REPLY};
    matches!(option, ABORT | LIST | STARTTLS | INFO | GO | STRUCTURED_REPLY)
        || matches!(option, LIST_META_CONTEXT | SET_META_CONTEXT)
}

fn on_list(data: &[u8], exports: &dyn Exports, answer: &mut OptionReply<'_>) {
    if !data.is_empty() {
        return answer.error(UNEXPECTED_DATA.0, UNEXPECTED_DATA.1);
    }
    let names = exports.list();
    if names.len() > LIST_NAMES_MAX {
        return answer.error(reply::ERROR_TOO_BIG, "there are more exports than one list holds");
    }
    for name in &names {
        answer.server(name);
    }
    answer.ack();
}

fn export_error_reply(error: ExportError) -> (u32, &'static str) {
    match error {
        ExportError::Unknown => (reply::ERROR_UNKNOWN, "there is no such export here"),
        ExportError::Denied => (reply::ERROR_POLICY, "this client may not use the export"),
        ExportError::ShuttingDown => (reply::ERROR_SHUTDOWN, "the node is shutting down"),
        ExportError::Taken => (reply::ERROR_SHUTDOWN, "another node has taken the volume"),
    }
}
