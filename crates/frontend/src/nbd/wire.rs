//! NBD on the wire: magic numbers, codes, and readers and writers of big-endian fields.
//!
//! How: constants carry the protocol's own values; [`Reader`] walks a slice and never past its end.
//! Invariant: a reader that returned `None` has found the message malformed; it never panics.
//! Cost: a field is one load or one append.
//! Not for: meaning; that is with `handshake`, `session` and `client`.

/// Opens the server's greeting ("NBDMAGIC").
pub(crate) const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting, and the opening of each option ("IHAVEOPT").
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Opens each reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Opens each request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Opens a simple reply.
pub(crate) const SIMPLE_MAGIC: u32 = 0x6744_6698;
/// Opens a chunk of a structured reply.
pub(crate) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of the server's greeting.
pub(crate) const GREETING_LENGTH: usize = 18;
/// Bytes of an option before its data.
pub(crate) const OPTION_HEAD_LENGTH: usize = 16;
/// Bytes of an option's reply before its data.
pub(crate) const OPTION_REPLY_HEAD_LENGTH: usize = 20;
/// Bytes of a request before its payload.
pub(crate) const REQUEST_HEAD_LENGTH: usize = 28;
/// Bytes of a simple reply before its data.
pub(crate) const SIMPLE_HEAD_LENGTH: usize = 16;
/// Bytes of a chunk before its payload.
pub(crate) const CHUNK_HEAD_LENGTH: usize = 20;
/// Reserved bytes after the answer to `EXPORT_NAME`, unless the client declined them.
pub(crate) const EXPORT_NAME_PADDING: usize = 124;
/// The longest string the protocol permits.
pub(crate) const STRING_LENGTH_MAX: usize = 4096;

/// Handshake flags, the same bits from server and client.
pub(crate) const HANDSHAKE_FIXED_NEWSTYLE: u16 = 1 << 0;
pub(crate) const HANDSHAKE_NO_ZEROES: u16 = 1 << 1;

/// Options of the handshake.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub(crate) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERROR: u32 = 1 << 31;
    pub(crate) const ERROR_UNSUPPORTED: u32 = ERROR | 1;
    pub(crate) const ERROR_POLICY: u32 = ERROR | 2;
    pub(crate) const ERROR_INVALID: u32 = ERROR | 3;
    pub(crate) const ERROR_TLS_REQUIRED: u32 = ERROR | 5;
    pub(crate) const ERROR_UNKNOWN: u32 = ERROR | 6;
    pub(crate) const ERROR_SHUTDOWN: u32 = ERROR | 7;
    pub(crate) const ERROR_TOO_BIG: u32 = ERROR | 9;
}

/// Items of information about an export.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// What an export offers during transmission.
pub(crate) mod transmission {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const ROTATIONAL: u16 = 1 << 4;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands of the transmission phase.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of a structured reply.
pub(crate) mod chunk {
    pub(crate) const FLAG_DONE: u16 = 1 << 0;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    /// Every chunk type with this bit reports an error.
    pub(crate) const ERROR_BIT: u16 = 1 << 15;
    pub(crate) const ERROR: u16 = ERROR_BIT | 1;
}

/// The only metadata context offered, and the id by which replies name it.
pub(crate) const CONTEXT_ALLOCATION: &str = "base:allocation";
pub(crate) const CONTEXT_ALLOCATION_ID: u32 = 1;
/// The query that lists every context of the `base` namespace.
pub(crate) const CONTEXT_BASE: &str = "base:";
/// Status bits of the allocation context.
pub(crate) const STATE_HOLE: u32 = 1 << 0;
pub(crate) const STATE_ZERO: u32 = 1 << 1;

/// Error values; fixed by the protocol, whatever the host's own numbers are.
pub(crate) mod errno {
    pub(crate) const EPERM: u32 = 1;
    pub(crate) const EIO: u32 = 5;
    pub(crate) const EINVAL: u32 = 22;
    pub(crate) const ENOSPC: u32 = 28;
    pub(crate) const ENOTSUP: u32 = 95;
    pub(crate) const ESHUTDOWN: u32 = 108;
}

/// Reads big-endian fields off the front of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'bytes> {
    rest: &'bytes [u8],
}

impl<'bytes> Reader<'bytes> {
    pub(crate) fn new(bytes: &'bytes [u8]) -> Self {
        Reader { rest: bytes }
    }
    /// What has not been read yet.
    pub(crate) fn rest(&self) -> &'bytes [u8] {
        self.rest
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*array)
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
    pub(crate) fn take(&mut self, length: usize) -> Option<&'bytes [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
    /// A string after its 32-bit length.
    pub(crate) fn text(&mut self) -> Option<&'bytes str> {
        let length = self.u32()? as usize;
        text(self.take(length)?)
    }
    /// Succeeds only when every byte was read.
    pub(crate) fn finish(self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }
}

/// A string as the protocol defines it: UTF-8, bounded, without NUL.
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > STRING_LENGTH_MAX || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// The length of a protocol string as its 32-bit field.
pub(crate) fn text_length(text: &str) -> u32 {
    assert!(text.len() <= STRING_LENGTH_MAX, "the catalog bounds names and descriptions");
    text.len() as u32
}

pub(crate) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// A request before its payload, its magic already checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHead {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl RequestHead {
    /// Reads a head, or `None` when it does not open with the request's magic.
    pub(crate) fn read(head: &[u8; REQUEST_HEAD_LENGTH]) -> Option<Self> {
        let mut reader = Reader::new(head);
        (reader.u32()? == REQUEST_MAGIC).then_some(())?;
        Some(RequestHead {
            flags: reader.u16()?,
            command: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            length: reader.u32()?,
        })
    }
    pub(crate) fn bytes(&self) -> [u8; REQUEST_HEAD_LENGTH] {
        let mut head = [0; REQUEST_HEAD_LENGTH];
        head[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        head[4..6].copy_from_slice(&self.flags.to_be_bytes());
        head[6..8].copy_from_slice(&self.command.to_be_bytes());
        head[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        head[16..24].copy_from_slice(&self.offset.to_be_bytes());
        head[24..].copy_from_slice(&self.length.to_be_bytes());
        head
    }
}

/// The head of a simple reply.
pub(crate) fn simple_head(cookie: u64, error: u32) -> [u8; SIMPLE_HEAD_LENGTH] {
    let mut head = [0; SIMPLE_HEAD_LENGTH];
    head[..4].copy_from_slice(&SIMPLE_MAGIC.to_be_bytes());
    head[4..8].copy_from_slice(&error.to_be_bytes());
    head[8..].copy_from_slice(&cookie.to_be_bytes());
    head
}

/// The head of the last chunk of a structured reply, whose payload has `length` bytes.
pub(crate) fn chunk_head(kind: u16, cookie: u64, length: u32) -> [u8; CHUNK_HEAD_LENGTH] {
    let mut head = [0; CHUNK_HEAD_LENGTH];
    head[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&chunk::FLAG_DONE.to_be_bytes());
    head[6..8].copy_from_slice(&kind.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..].copy_from_slice(&length.to_be_bytes());
    head
}
