//! The client's half of NBD transmission, for load and tests.
//!
//! How: a request is appended to a buffer and remembered by its cookie, since a simple reply does
//! not say whether data follows; replies are decoded off the front of what was received.
//! Invariant: an answer belongs to a request in flight, lies within its range, and a read that
//! succeeded covered all of it.
//! Cost: one ordered map entry per request in flight, at most [`ClientSession::INFLIGHT_MAX`].
//! Not for: putting fragments together; each piece is handed on with its offset.

use super::client_handshake::{ClientError, ClientExport, broken};
use super::wire::{
    self, CHUNK_HEAD_LENGTH, Reader, RequestHead, SIMPLE_HEAD_LENGTH, chunk, command, command_flag,
    errno, transmission,
};
use layby_types::{Call, CallFlags, Extent, Operation};
use std::collections::BTreeMap;

/// The longest chunk a client accepts: the longest read any server must serve, with its head.
const CHUNK_LENGTH_MAX: u32 = (32 << 20) + (1 << 16);

/// What the front of the received bytes amounts to.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded<'bytes> {
    /// Not yet a whole message; nothing was consumed.
    Incomplete {
        /// Bytes needed in all.
        wanted: usize,
    },
    /// A piece of an answer of which more will come.
    Part {
        /// Bytes to drop from the front.
        consumed: usize,
        /// The request it belongs to.
        cookie: u64,
        /// What it brought.
        content: Content<'bytes>,
    },
    /// The last or only piece of an answer.
    Reply {
        /// Bytes to drop from the front.
        consumed: usize,
        /// The request that is now finished.
        cookie: u64,
        /// What this piece brought, or the server's error value for the whole request.
        result: Result<Content<'bytes>, u32>,
    },
}

/// What a piece of an answer brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'bytes> {
    /// Nothing but its arrival.
    Nothing,
    /// Bytes of the export.
    Data {
        /// Where they begin.
        offset: u64,
        /// The bytes.
        bytes: &'bytes [u8],
    },
    /// A range that reads as zeros.
    Hole {
        /// Where it begins.
        offset: u64,
        /// Bytes of the range.
        length: u32,
    },
    /// Allocation status; read it with [`Content::extents`].
    Status(&'bytes [u8]),
}

impl<'bytes> Content<'bytes> {
    /// The extents of a status; none for any other content.
    pub fn extents(self) -> impl Iterator<Item = Extent> + use<'bytes> {
        let descriptors = if let Content::Status(bytes) = self { bytes } else { &[] };
        descriptors.chunks_exact(8).filter_map(|descriptor| {
            let mut reader = Reader::new(descriptor);
            let (length, state) = (u64::from(reader.u32()?), reader.u32()?);
            let hole = state & wire::STATE_HOLE != 0;
            Some(Extent { length, hole, zero: state & wire::STATE_ZERO != 0 })
        })
    }
}

/// A request that was sent and not yet answered in full.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    operation: Operation,
    offset: u64,
    length: u32,
    /// Bytes of a read that came so far.
    received: u64,
    /// The error of an earlier piece.
    error: Option<u32>,
}

/// The client's side of one connection's transmission phase.
#[derive(Debug)]
pub struct ClientSession {
    export: ClientExport,
    structured: bool,
    allocation_id: Option<u32>,
    inflight: BTreeMap<u64, InFlight>,
}

impl ClientSession {
    /// The most requests in flight at once.
    pub const INFLIGHT_MAX: usize = 4096;

    pub(crate) fn new(export: ClientExport, structured: bool, allocation_id: Option<u32>) -> Self {
        ClientSession { export, structured, allocation_id, inflight: BTreeMap::new() }
    }

    /// What the server said of the export.
    #[must_use]
    pub fn export(&self) -> ClientExport {
        self.export
    }
    /// Whether replies are structured.
    #[must_use]
    pub fn is_structured(&self) -> bool {
        self.structured
    }
    /// Whether block status may be asked for.
    #[must_use]
    pub fn has_block_status(&self) -> bool {
        self.allocation_id.is_some()
    }
    /// Whether the server refuses writes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.export.flags & transmission::READ_ONLY != 0
    }
    /// Requests sent and not yet answered.
    #[must_use]
    pub fn inflight_count(&self) -> usize {
        self.inflight.len()
    }

    /// Appends the request for `call`; the payload of a write follows it, `call.length` bytes long.
    ///
    /// # Panics
    /// When the cookie is in flight already, [`Self::INFLIGHT_MAX`] requests are, the length does
    /// not fit 32 bits, or `payload` is not what the call announces.
    pub fn encode(&mut self, call: &Call, payload: &[u8], out: &mut Vec<u8>) {
        let length = u32::try_from(call.length).expect("an NBD request has a 32-bit length");
        let payload_length = if call.operation == Operation::Write { length as usize } else { 0 };
        assert_eq!(payload.len(), payload_length, "only a write carries data");
        assert!(self.inflight.len() < Self::INFLIGHT_MAX, "the caller bounds its requests");
        let (operation, offset) = (call.operation, call.offset);
        let inflight = InFlight { operation, offset, length, received: 0, error: None };
        let previous = self.inflight.insert(call.cookie, inflight);
        assert!(previous.is_none(), "a cookie names one request at a time");
        let head = RequestHead {
            flags: flags_of(call.flags),
            command: command_of(operation),
            cookie: call.cookie,
            offset,
            length,
        };
        out.extend_from_slice(&head.bytes());
        out.extend_from_slice(payload);
    }

    /// Appends a read.
    pub fn encode_read(&mut self, cookie: u64, offset: u64, length: u32, out: &mut Vec<u8>) {
        self.encode(&call(cookie, Operation::Read, offset, length.into()), &[], out);
    }
    /// Appends a write of `payload`, durable before its answer when `fua` is set.
    pub fn encode_write(
        &mut self,
        cookie: u64,
        offset: u64,
        payload: &[u8],
        fua: bool,
        out: &mut Vec<u8>,
    ) {
        let mut call = call(cookie, Operation::Write, offset, payload.len() as u64);
        call.flags.fua = fua;
        self.encode(&call, payload, out);
    }
    /// Appends a flush.
    pub fn encode_flush(&mut self, cookie: u64, out: &mut Vec<u8>) {
        self.encode(&call(cookie, Operation::Flush, 0, 0), &[], out);
    }
    /// Appends a trim.
    pub fn encode_trim(&mut self, cookie: u64, offset: u64, length: u32, out: &mut Vec<u8>) {
        self.encode(&call(cookie, Operation::Trim, offset, length.into()), &[], out);
    }
    /// Appends a request for zeros, with the flags that `call.flags` would have.
    pub fn encode_write_zeroes(
        &mut self,
        cookie: u64,
        offset: u64,
        length: u32,
        flags: CallFlags,
        out: &mut Vec<u8>,
    ) {
        let call = Call { flags, ..call(cookie, Operation::WriteZeroes, offset, length.into()) };
        self.encode(&call, &[], out);
    }
    /// Appends a request to bring a range into the fast levels.
    pub fn encode_cache(&mut self, cookie: u64, offset: u64, length: u32, out: &mut Vec<u8>) {
        self.encode(&call(cookie, Operation::Cache, offset, length.into()), &[], out);
    }
    /// Appends a request for the allocation status of a range.
    pub fn encode_block_status(
        &mut self,
        cookie: u64,
        offset: u64,
        length: u32,
        out: &mut Vec<u8>,
    ) {
        self.encode(&call(cookie, Operation::BlockStatus, offset, length.into()), &[], out);
    }
    /// Appends the goodbye, which has no answer; nothing may be sent after it.
    pub fn encode_disconnect(&self, out: &mut Vec<u8>) {
        let command = command::DISC;
        let head = RequestHead { flags: 0, command, cookie: 0, offset: 0, length: 0 };
        out.extend_from_slice(&head.bytes());
    }

    /// Reads one message off the front of `bytes`.
    ///
    /// # Errors
    /// [`ClientError::Broken`] when the stream can no longer be followed; disconnect.
    pub fn decode<'bytes>(&mut self, bytes: &'bytes [u8]) -> Result<Decoded<'bytes>, ClientError> {
        match Reader::new(bytes).u32() {
            None => Ok(Decoded::Incomplete { wanted: SIMPLE_HEAD_LENGTH }),
            Some(wire::SIMPLE_MAGIC) => self.decode_simple(bytes),
            Some(wire::CHUNK_MAGIC) if self.structured => self.decode_chunk(bytes),
            Some(_) => Err(broken("a reply did not open with its magic number")),
        }
    }

    fn decode_simple<'bytes>(
        &mut self,
        bytes: &'bytes [u8],
    ) -> Result<Decoded<'bytes>, ClientError> {
        let Some(head) = bytes.first_chunk::<SIMPLE_HEAD_LENGTH>() else {
            return Ok(Decoded::Incomplete { wanted: SIMPLE_HEAD_LENGTH });
        };
        let mut reader = Reader::new(&head[4..]);
        let (Some(error), Some(cookie)) = (reader.u32(), reader.u64()) else {
            return Err(broken("a reply's head is short"));
        };
        let inflight = self.inflight.get(&cookie).ok_or(UNASKED)?;
        let is_read = inflight.operation == Operation::Read;
        if is_read && self.structured {
            return Err(broken("a read was answered without structure"));
        }
        if inflight.received > 0 || inflight.error.is_some() {
            return Err(broken("a simple reply ended a structured one"));
        }
        let length = if is_read && error == 0 { inflight.length as usize } else { 0 };
        let consumed = SIMPLE_HEAD_LENGTH + length;
        let Some(data) = bytes.get(SIMPLE_HEAD_LENGTH..consumed) else {
            return Ok(Decoded::Incomplete { wanted: consumed });
        };
        let content = match data {
            [] => Content::Nothing,
            bytes => Content::Data { offset: inflight.offset, bytes },
        };
        self.inflight.remove(&cookie);
        let result = if error == 0 { Ok(content) } else { Err(error) };
        Ok(Decoded::Reply { consumed, cookie, result })
    }

    fn decode_chunk<'bytes>(
        &mut self,
        bytes: &'bytes [u8],
    ) -> Result<Decoded<'bytes>, ClientError> {
        let mut reader = Reader::new(bytes.get(4..).unwrap_or(&[]));
        let (Some(flags), Some(kind), Some(cookie), Some(length)) =
            (reader.u16(), reader.u16(), reader.u64(), reader.u32())
        else {
            return Ok(Decoded::Incomplete { wanted: CHUNK_HEAD_LENGTH });
        };
        if length > CHUNK_LENGTH_MAX {
            return Err(broken("a chunk is too long"));
        }
        let consumed = CHUNK_HEAD_LENGTH + length as usize;
        let Some(payload) = reader.take(length as usize) else {
            return Ok(Decoded::Incomplete { wanted: consumed });
        };
        let inflight = self.inflight.get_mut(&cookie).ok_or(UNASKED)?;
        let content = read_chunk(kind, payload, inflight, self.allocation_id)?;
        if flags & chunk::FLAG_DONE == 0 {
            return Ok(Decoded::Part { consumed, cookie, content });
        }
        let finished = *inflight;
        self.inflight.remove(&cookie);
        let result = match finished.error {
            Some(error) => Err(error),
            None if finished.is_short(content) => {
                return Err(broken("an answer ended before all of it came"));
            }
            None => Ok(content),
        };
        Ok(Decoded::Reply { consumed, cookie, result })
    }
}

impl InFlight {
    /// A success that did not bring what was asked.
    fn is_short(&self, last: Content<'_>) -> bool {
        match self.operation {
            Operation::Read => self.received != u64::from(self.length),
            Operation::BlockStatus => self.received == 0 && !matches!(last, Content::Status(_)),
            _ => false,
        }
    }
    /// Counts a piece of a read, or says that it lies outside the request.
    fn receive(&mut self, offset: u64, length: u64) -> Option<()> {
        let start = offset.checked_sub(self.offset)?;
        let end = start.checked_add(length)?;
        self.received += length;
        let asked = u64::from(self.length);
        (self.operation == Operation::Read && end <= asked && self.received <= asked).then_some(())
    }
}

const UNASKED: ClientError = ClientError::Broken { reason: "a reply answers no request in flight" };

/// Reads a chunk's payload and books it on its request.
fn read_chunk<'bytes>(
    kind: u16,
    payload: &'bytes [u8],
    inflight: &mut InFlight,
    allocation_id: Option<u32>,
) -> Result<Content<'bytes>, ClientError> {
    let mut reader = Reader::new(payload);
    let content = match kind {
        chunk::NONE => reader.finish().map(|()| Content::Nothing),
        chunk::OFFSET_DATA => reader.u64().and_then(|offset| {
            let bytes = reader.rest();
            inflight.receive(offset, bytes.len() as u64)?;
            Some(Content::Data { offset, bytes })
        }),
        chunk::OFFSET_HOLE => reader.u64().zip(reader.u32()).and_then(|(offset, length)| {
            reader.finish()?;
            inflight.receive(offset, length.into())?;
            Some(Content::Hole { offset, length })
        }),
        chunk::BLOCK_STATUS => read_status(reader, inflight, allocation_id),
        kind if kind & chunk::ERROR_BIT != 0 => reader.u32().zip(reader.u16()).and_then(|error| {
            reader.take(error.1.into())?;
            // Zero is no error value; a server that sends it still means a failure.
            let value = if error.0 == 0 { errno::EINVAL } else { error.0 };
            inflight.error.get_or_insert(value);
            Some(Content::Nothing)
        }),
        _ => None,
    };
    content.ok_or(broken("a chunk is malformed"))
}

fn read_status<'bytes>(
    mut reader: Reader<'bytes>,
    inflight: &mut InFlight,
    allocation_id: Option<u32>,
) -> Option<Content<'bytes>> {
    let id = reader.u32()?;
    let rest = reader.rest();
    let whole = !rest.is_empty() && rest.len().is_multiple_of(8);
    let expected = inflight.operation == Operation::BlockStatus && Some(id) == allocation_id;
    inflight.received += rest.len() as u64;
    (whole && expected).then_some(Content::Status(rest))
}

fn call(cookie: u64, operation: Operation, offset: u64, length: u64) -> Call {
    Call { cookie, operation, offset, length, flags: CallFlags::default() }
}

fn command_of(operation: Operation) -> u16 {
    match operation {
        Operation::Read => command::READ,
        Operation::Write => command::WRITE,
        Operation::Flush => command::FLUSH,
        Operation::Trim => command::TRIM,
        Operation::WriteZeroes => command::WRITE_ZEROES,
        Operation::Cache => command::CACHE,
        Operation::BlockStatus => command::BLOCK_STATUS,
    }
}

fn flags_of(flags: CallFlags) -> u16 {
    let bit = |set: bool, flag: u16| if set { flag } else { 0 };
    bit(flags.fua, command_flag::FUA)
        | bit(flags.no_hole, command_flag::NO_HOLE)
        | bit(flags.dont_fragment, command_flag::DF)
        | bit(flags.one_extent, command_flag::REQ_ONE)
        | bit(flags.fast_zero, command_flag::FAST_ZERO)
}
