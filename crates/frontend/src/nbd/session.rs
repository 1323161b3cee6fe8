//! The server's half of NBD transmission: requests in, replies out.
//!
//! How: a request's fixed head is read in place and checked against the export; what passes becomes
//! a [`Call`], what does not is answered here with the error that the protocol names.
//! Invariant: every call lies within the export, is at least one byte long unless it is a flush,
//! and carries only flags that were negotiated. A refused write's payload is thrown away as it
//! comes, so the stream stays in step; its error follows the payload.
//! Cost: a head and its reply are a handful of loads and stores; only error texts allocate.
//! Not for: splitting work. Trims, zeroes and block status may be as long as the export.

use super::export::{ExportInfo, REQUEST_LENGTH_MAX};
use super::wire::{
    self, CHUNK_HEAD_LENGTH, REQUEST_HEAD_LENGTH, RequestHead, SIMPLE_HEAD_LENGTH, chunk,
    chunk_head, command, command_flag, errno, put_u16, put_u32, simple_head,
};
use layby_types::{Call, CallFlags, ErrorKind, Extent, Operation, Parsed, Session, SessionError};

/// The longest payload of a refused write that is skipped; a longer one closes the connection.
pub const PAYLOAD_SWALLOW_MAX: u32 = 2 * REQUEST_LENGTH_MAX;
/// The most extents in one block status reply; the client asks again for the rest.
pub const EXTENTS_MAX: usize = 1 << 14;
/// Bytes of an offset that precedes the data of a structured read.
const OFFSET_LENGTH: usize = 8;

/// What the handshake agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionFeatures {
    /// Replies are structured.
    pub structured: bool,
    /// Block status reports `base:allocation`.
    pub allocation_context: bool,
}

/// Why a request is refused, and with which error value.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    errno: u32,
    message: &'static str,
}

/// A refused write whose payload is still arriving.
#[derive(Debug)]
struct Swallow {
    remaining: u32,
    cookie: u64,
    refusal: Refusal,
}

/// Serves the requests of one client on one export.
#[derive(Debug)]
pub struct NbdSession {
    size: u64,
    request_length_max: u32,
    read_only: bool,
    features: SessionFeatures,
    swallow: Option<Swallow>,
}

impl NbdSession {
    /// A session on `export` with what was negotiated.
    ///
    /// # Panics
    /// When the export's request bound exceeds [`REQUEST_LENGTH_MAX`], or the features ask for
    /// block status without structured replies.
    #[must_use]
    pub fn new(export: &ExportInfo, features: SessionFeatures) -> Self {
        assert!(export.request_length_max <= REQUEST_LENGTH_MAX, "an export bounds its requests");
        assert!(features.structured || !features.allocation_context, "status is structured");
        NbdSession {
            size: export.size,
            request_length_max: export.request_length_max,
            read_only: export.read_only,
            features,
            swallow: None,
        }
    }

    /// What the handshake agreed on.
    #[must_use]
    pub fn features(&self) -> SessionFeatures {
        self.features
    }

    /// Turns a request into a call, or says why not.
    fn check(&self, head: &RequestHead) -> Result<Call, Refusal> {
        let (operation, flags_known) = self.operation(head.command)?;
        if head.flags & !(flags_known | command_flag::FUA) != 0 {
            return Err(invalid("the command does not take these flags"));
        }
        let writes =
            matches!(operation, Operation::Write | Operation::Trim | Operation::WriteZeroes);
        if writes && self.read_only {
            return Err(Refusal { errno: errno::EPERM, message: "the export is read-only" });
        }
        self.check_range(operation, head)?;
        let has = |flag| head.flags & flag != 0;
        let flags = CallFlags {
            // Clients set the bit on any command; it has a meaning only where something is written.
            fua: writes && has(command_flag::FUA),
            no_hole: has(command_flag::NO_HOLE),
            fast_zero: has(command_flag::FAST_ZERO),
            dont_fragment: has(command_flag::DF),
            one_extent: has(command_flag::REQ_ONE),
        };
        let (cookie, length) = (head.cookie, u64::from(head.length));
        Ok(Call { cookie, operation, offset: head.offset, length, flags })
    }

    /// The operation behind a command and the flags it takes besides FUA.
    fn operation(&self, command: u16) -> Result<(Operation, u16), Refusal> {
        Ok(match command {
            command::READ if self.features.structured => (Operation::Read, command_flag::DF),
            command::READ => (Operation::Read, 0),
            command::WRITE => (Operation::Write, 0),
            command::FLUSH => (Operation::Flush, 0),
            command::TRIM => (Operation::Trim, 0),
            command::CACHE => (Operation::Cache, 0),
            command::WRITE_ZEROES => {
                (Operation::WriteZeroes, command_flag::NO_HOLE | command_flag::FAST_ZERO)
            }
            command::BLOCK_STATUS if self.features.allocation_context => {
                (Operation::BlockStatus, command_flag::REQ_ONE)
            }
            command::BLOCK_STATUS => return Err(invalid("no metadata context was selected")),
            _ => return Err(invalid("unknown command")),
        })
    }

    fn check_range(&self, operation: Operation, head: &RequestHead) -> Result<(), Refusal> {
        let length = u64::from(head.length);
        let fits = head.offset.checked_add(length).is_some_and(|end| end <= self.size);
        match operation {
            Operation::Flush if head.offset != 0 || length != 0 => {
                Err(invalid("a flush has neither offset nor length"))
            }
            Operation::BlockStatus if length == 0 => Err(invalid("an empty range has no status")),
            Operation::Write | Operation::WriteZeroes if !fits => {
                Err(Refusal { errno: errno::ENOSPC, message: "beyond the end of the export" })
            }
            _ if !fits => Err(invalid("beyond the end of the export")),
            Operation::Read | Operation::Write | Operation::Cache
                if head.length > self.request_length_max =>
            {
                Err(invalid("longer than the export's largest request"))
            }
            _ => Ok(()),
        }
    }

    /// A write: its payload becomes the call's, or is thrown away.
    fn parse_write<'bytes>(
        &mut self,
        head: &RequestHead,
        bytes: &'bytes [u8],
        out: &mut Vec<u8>,
    ) -> Result<Parsed<'bytes>, SessionError> {
        let refusal = match self.check(head) {
            Ok(call) if call.length == 0 => return Ok(self.answer_empty(&call, out)),
            Ok(call) => {
                let whole = REQUEST_HEAD_LENGTH + head.length as usize;
                return Ok(match bytes.get(REQUEST_HEAD_LENGTH..whole) {
                    Some(payload) => Parsed::Call { consumed: whole, call, payload },
                    None => Parsed::Incomplete { wanted: whole },
                });
            }
            Err(refusal) => refusal,
        };
        if head.length > PAYLOAD_SWALLOW_MAX {
            return Err(SessionError { reason: "a write is longer than the server will skip" });
        }
        self.swallow = Some(Swallow { remaining: head.length, cookie: head.cookie, refusal });
        let consumed = self.swallow(&bytes[REQUEST_HEAD_LENGTH..], out);
        Ok(Parsed::Answered { consumed: REQUEST_HEAD_LENGTH + consumed })
    }

    /// Drops what is there of a refused payload; answers once all of it is gone.
    fn swallow(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let Some(mut swallow) = self.swallow.take() else { return 0 };
        let consumed = bytes.len().min(swallow.remaining as usize);
        swallow.remaining -= consumed as u32;
        if swallow.remaining == 0 {
            self.put_error(swallow.cookie, swallow.refusal.errno, swallow.refusal.message, out);
        } else {
            self.swallow = Some(swallow);
        }
        consumed
    }

    /// Nothing to do succeeds at once, so that the engine never sees an empty range.
    fn answer_empty(&mut self, call: &Call, out: &mut Vec<u8>) -> Parsed<'static> {
        if call.operation == Operation::Read {
            self.reply_read_head(call, out);
        } else {
            self.reply_done(call, out);
        }
        Parsed::Answered { consumed: REQUEST_HEAD_LENGTH }
    }

    fn put_error(&self, cookie: u64, errno: u32, message: &str, out: &mut Vec<u8>) {
        if !self.features.structured {
            return out.extend_from_slice(&simple_head(cookie, errno));
        }
        let message_length = wire::text_length(message);
        out.extend_from_slice(&chunk_head(chunk::ERROR, cookie, 6 + message_length));
        put_u32(out, errno);
        put_u16(out, message_length as u16);
        out.extend_from_slice(message.as_bytes());
    }
}

impl Session for NbdSession {
    fn parse<'bytes>(
        &mut self,
        bytes: &'bytes [u8],
        out: &mut Vec<u8>,
    ) -> Result<Parsed<'bytes>, SessionError> {
        if self.swallow.is_some() {
            return Ok(match self.swallow(bytes, out) {
                0 => Parsed::Incomplete { wanted: 1 },
                consumed => Parsed::Answered { consumed },
            });
        }
        let Some(head) = bytes.first_chunk::<REQUEST_HEAD_LENGTH>() else {
            return Ok(Parsed::Incomplete { wanted: REQUEST_HEAD_LENGTH });
        };
        let head = RequestHead::read(head)
            .ok_or(SessionError { reason: "a request did not open with its magic number" })?;
        match head.command {
            command::WRITE => return self.parse_write(&head, bytes, out),
            command::DISC => return Ok(Parsed::Goodbye),
            _ => {}
        }
        let consumed = REQUEST_HEAD_LENGTH;
        Ok(match self.check(&head) {
            Ok(call) if call.length == 0 && call.operation != Operation::Flush => {
                self.answer_empty(&call, out)
            }
            Ok(call) => Parsed::Call { consumed, call, payload: &[] },
            Err(refusal) => {
                self.put_error(head.cookie, refusal.errno, refusal.message, out);
                Parsed::Answered { consumed }
            }
        })
    }

    fn says_goodbye(&self, bytes: &[u8]) -> bool {
        let swallowed = self.swallow.as_ref().map_or(0, |swallow| swallow.remaining as usize);
        let mut rest = bytes.get(swallowed..).unwrap_or_default();
        while let Some((head, behind)) = rest.split_first_chunk::<REQUEST_HEAD_LENGTH>() {
            let Some(head) = RequestHead::read(head) else { return false };
            let payload = if head.command == command::WRITE { head.length as usize } else { 0 };
            match head.command {
                command::DISC => return true,
                _ => rest = behind.get(payload..).unwrap_or_default(),
            }
        }
        false
    }

    fn reply_read_head(&mut self, call: &Call, out: &mut Vec<u8>) {
        assert!(call.length <= u64::from(REQUEST_LENGTH_MAX), "parse bounds a read");
        if !self.features.structured {
            return out.extend_from_slice(&simple_head(call.cookie, 0));
        }
        if call.length == 0 {
            // A data chunk must hold at least one byte.
            return out.extend_from_slice(&chunk_head(chunk::NONE, call.cookie, 0));
        }
        let length = OFFSET_LENGTH as u32 + call.length as u32;
        let mut head = [0; CHUNK_HEAD_LENGTH + OFFSET_LENGTH];
        head[..CHUNK_HEAD_LENGTH].copy_from_slice(&chunk_head(
            chunk::OFFSET_DATA,
            call.cookie,
            length,
        ));
        head[CHUNK_HEAD_LENGTH..].copy_from_slice(&call.offset.to_be_bytes());
        out.extend_from_slice(&head);
    }

    /// Simple even in a structured session: the protocol allows it where no data follows.
    fn reply_done(&mut self, call: &Call, out: &mut Vec<u8>) {
        let head: [u8; SIMPLE_HEAD_LENGTH] = simple_head(call.cookie, 0);
        out.extend_from_slice(&head);
    }

    fn reply_extents(&mut self, call: &Call, extents: &[Extent], out: &mut Vec<u8>) {
        assert!(self.features.allocation_context, "status was answered without a context");
        let head_at = out.len();
        out.extend_from_slice(&[0; CHUNK_HEAD_LENGTH]);
        put_u32(out, wire::CONTEXT_ALLOCATION_ID);
        let extents_at = out.len();
        put_extents(call, extents, out);
        assert!(out.len() > extents_at, "a status reply describes at least one byte");
        let length = (out.len() - head_at - CHUNK_HEAD_LENGTH) as u32;
        out[head_at..head_at + CHUNK_HEAD_LENGTH].copy_from_slice(&chunk_head(
            chunk::BLOCK_STATUS,
            call.cookie,
            length,
        ));
    }

    fn reply_error(&mut self, call: &Call, kind: ErrorKind, out: &mut Vec<u8>) {
        let message = match kind {
            ErrorKind::Closed => "the node stops, or another node has taken the volume".to_owned(),
            kind => kind.to_string(),
        };
        self.put_error(call.cookie, errno_of(call, kind), &message, out);
    }
}

/// Appends descriptors for the requested range: like neighbours merged, cut at the range's end.
fn put_extents(call: &Call, extents: &[Extent], out: &mut Vec<u8>) {
    let extents_max = if call.flags.one_extent { 1 } else { EXTENTS_MAX };
    let (mut remaining, mut count) = (call.length, 0);
    let mut open: Option<(u64, u32)> = None;
    for extent in extents {
        let length = extent.length.min(remaining);
        if length == 0 {
            continue;
        }
        let state = state_of(extent);
        match &mut open {
            Some((open_length, open_state)) if *open_state == state => *open_length += length,
            _ if count == extents_max => break,
            _ => {
                if let Some(done) = open.replace((length, state)) {
                    put_extent(done, out);
                }
                count += 1;
            }
        }
        remaining -= length;
    }
    if let Some(done) = open {
        put_extent(done, out);
    }
}

fn put_extent((length, state): (u64, u32), out: &mut Vec<u8>) {
    // The sum over a reply is at most the request's length, which came in 32 bits.
    put_u32(out, u32::try_from(length).expect("extents were cut to the request"));
    put_u32(out, state);
}

fn state_of(extent: &Extent) -> u32 {
    let hole = if extent.hole { wire::STATE_HOLE } else { 0 };
    let zero = if extent.zero { wire::STATE_ZERO } else { 0 };
    hole | zero
}

fn invalid(message: &'static str) -> Refusal {
    Refusal { errno: errno::EINVAL, message }
}

/// The protocol's error value for a kind.
fn errno_of(call: &Call, kind: ErrorKind) -> u32 {
    match kind {
        ErrorKind::Retry | ErrorKind::Corrupt | ErrorKind::Unwritable => errno::EIO,
        ErrorKind::Invalid => errno::EINVAL,
        ErrorKind::Full => errno::ENOSPC,
        ErrorKind::Closed => errno::ESHUTDOWN,
        ErrorKind::Denied => errno::EPERM,
        // The protocol reserves ENOTSUP for fast zeroes.
        ErrorKind::Unsupported if call.flags.fast_zero => errno::ENOTSUP,
        ErrorKind::Unsupported => errno::EINVAL,
    }
}
