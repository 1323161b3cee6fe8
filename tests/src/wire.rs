//! An NBD client that says anything at all and takes every answer apart.
//!
//! How: [`Wire`] sends options and requests as they are given, sound or not, and reads replies by
//! the protocol's text; a reply that the text does not allow is a panic.
//! Invariant: written from the protocol's text and from nothing of ours.
//! Not for: load, or requests in flight beside one another; see [`crate::Connection`].

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;
const CHUNK_DONE: u16 = 1;
/// Longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of an answer's part at most; more is a number out of step.
const PART_BYTES_MAX: usize = 64 << 20;

/// A reply to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionReply {
    /// Its type.
    pub kind: u32,
    /// Its data.
    pub data: Vec<u8>,
}

/// A request before its payload; the fields are sent as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's own words")]
pub struct Head {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

/// A part of the answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A simple reply: the error, and the data of a read that succeeded.
    Simple(u32, Vec<u8>),
    /// Data of a read, from an offset on.
    Data(u64, Vec<u8>),
    /// A run of zeros of a read, from an offset on.
    Hole(u64, u32),
    /// Extents of a metadata context: lengths and flags.
    Status(u32, Vec<(u32, u32)>),
    /// An error with its text, and its offset where it has one.
    Error(u32, String, Option<u64>),
    /// Success, and nothing else.
    Done,
}

/// A connection, in negotiation or in transmission.
#[derive(Debug)]
pub struct Wire {
    stream: UnixStream,
    /// What the server says it can do during negotiation.
    pub handshake_flags: u16,
}

impl Wire {
    /// Connects and answers the greeting with `flags`.
    ///
    /// # Panics
    /// When the server does not greet as fixed newstyle.
    #[track_caller]
    #[must_use]
    pub fn open(socket: &Path, flags: u32) -> Wire {
        let stream = UnixStream::connect(socket).expect("the node listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
        let mut wire = Wire { stream, handshake_flags: 0 };
        assert_eq!(wire.bytes(16), GREETING);
        wire.handshake_flags = wire.u16();
        wire.send(&flags.to_be_bytes());
        wire
    }

    /// Sends bytes as they are; a server that has hung up is noticed when reading.
    pub fn send(&mut self, bytes: &[u8]) {
        // The server may close while a bad client still writes; what counts is what comes back.
        let _ = self.stream.write_all(bytes);
    }

    /// Sends no more.
    pub fn end(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Whether the server closes the connection without another byte.
    #[must_use]
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(cause) => cause.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    /// Sends an option without waiting for its replies.
    pub fn send_option(&mut self, option: u32, data: &[u8]) {
        let length = u32::try_from(data.len()).expect("options are short");
        let head = [&b"IHAVEOPT"[..], &option.to_be_bytes(), &length.to_be_bytes()].concat();
        self.send(&head);
        self.send(data);
    }

    /// The next reply, which must be to `option`.
    ///
    /// # Panics
    /// When it is not one.
    #[track_caller]
    pub fn option_reply(&mut self, option: u32) -> OptionReply {
        assert_eq!(self.u64(), OPTION_REPLY_MAGIC, "the head of an option reply");
        assert_eq!(self.u32(), option, "the option that is answered");
        let (kind, length) = (self.u32(), self.u32());
        OptionReply { kind, data: self.bytes(length as usize) }
    }

    /// Sends an option; its replies up to the last, which is an acknowledgement or an error.
    ///
    /// # Panics
    /// When the server answers with anything else.
    #[track_caller]
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<OptionReply> {
        self.send_option(option, data);
        let mut replies = vec![self.option_reply(option)];
        while replies.last().is_some_and(|reply| reply.kind != 1 && reply.kind >> 31 == 0) {
            replies.push(self.option_reply(option));
        }
        replies
    }

    /// Sends an option; the kind of its last reply.
    ///
    /// # Panics
    /// When the server answers with anything else.
    #[track_caller]
    pub fn option_kind(&mut self, option: u32, data: &[u8]) -> u32 {
        self.option(option, data).last().expect("there is a last reply").kind
    }

    /// Sends a request's head and nothing of its payload.
    pub fn send_head(&mut self, head: &Head) {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(head.flags.to_be_bytes());
        bytes.extend(head.command.to_be_bytes());
        bytes.extend(head.cookie.to_be_bytes());
        bytes.extend(head.offset.to_be_bytes());
        bytes.extend(head.length.to_be_bytes());
        self.send(&bytes);
    }

    /// Sends a request and reads its answer to the end.
    ///
    /// # Panics
    /// When the answer is none of this request, or is not as the protocol defines it.
    #[track_caller]
    pub fn call(&mut self, head: Head, payload: &[u8]) -> Vec<Part> {
        self.send_head(&head);
        self.send(payload);
        self.answer(&head)
    }

    /// Sends a request without payload; the error of its answer, 0 for success.
    ///
    /// # Panics
    /// As [`Wire::call`].
    #[track_caller]
    pub fn error(&mut self, head: Head, payload: &[u8]) -> u32 {
        let parts = self.call(head, payload);
        let error_of = |part: &Part| match part {
            Part::Simple(error, _) | Part::Error(error, ..) => *error,
            _ => 0,
        };
        parts.iter().map(error_of).find(|error| *error != 0).unwrap_or(0)
    }

    /// Reads the answer to `head`.
    ///
    /// # Panics
    /// As [`Wire::call`].
    #[track_caller]
    pub fn answer(&mut self, head: &Head) -> Vec<Part> {
        let mut parts = Vec::new();
        loop {
            let magic = self.u32();
            if magic == SIMPLE_MAGIC {
                assert!(parts.is_empty(), "a simple reply behind chunks");
                let error = self.u32();
                assert_eq!(self.u64(), head.cookie, "the request that is answered");
                let is_data = head.command == 0 && error == 0;
                let data = self.bytes(if is_data { head.length as usize } else { 0 });
                return vec![Part::Simple(error, data)];
            }
            assert_eq!(magic, CHUNK_MAGIC, "the head of an answer");
            let (flags, kind) = (self.u16(), self.u16());
            assert_eq!(self.u64(), head.cookie, "the request that is answered");
            assert_eq!(flags & !CHUNK_DONE, 0, "flags that nobody defined");
            let length = self.u32() as usize;
            parts.push(self.part(kind, length));
            if flags & CHUNK_DONE != 0 {
                return parts;
            }
        }
    }

    /// The payload of a chunk, which must have exactly the length of its contents.
    #[track_caller]
    fn part(&mut self, kind: u16, length: usize) -> Part {
        let payload = self.bytes(length);
        let number = |at: usize, count: usize| {
            payload[at..at + count].iter().fold(0_u64, |n, byte| n << 8 | u64::from(*byte))
        };
        match kind {
            0 => {
                assert_eq!(length, 0, "a chunk of nothing holds something");
                Part::Done
            }
            1 => {
                assert!(length > 8, "a data chunk without data");
                Part::Data(number(0, 8), payload[8..].to_vec())
            }
            2 => {
                assert_eq!(length, 12, "a hole chunk");
                Part::Hole(number(0, 8), number(8, 4) as u32)
            }
            5 => {
                assert!(length >= 12 && length % 8 == 4, "a status chunk of {length} bytes");
                let pairs = (4..length).step_by(8);
                let pair = |at| (number(at, 4) as u32, number(at + 4, 4) as u32);
                Part::Status(number(0, 4) as u32, pairs.map(pair).collect())
            }
            0x8001 | 0x8002 => {
                let text_end = 6 + number(4, 2) as usize;
                let text = String::from_utf8(payload[6..text_end].to_vec()).expect("UTF-8");
                let has_offset = kind == 0x8002;
                assert_eq!(length, text_end + if has_offset { 8 } else { 0 }, "an error chunk");
                assert_ne!(number(0, 4), 0, "an error chunk without an error");
                Part::Error(number(0, 4) as u32, text, has_offset.then(|| number(text_end, 8)))
            }
            _ => panic!("a chunk of type {kind:#x}"),
        }
    }

    /// The next `length` bytes.
    ///
    /// # Panics
    /// When the server ends before them.
    #[track_caller]
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        assert!(length <= PART_BYTES_MAX, "{length} bytes in one part");
        let mut bytes = vec![0; length];
        let read = self.stream.read_exact(&mut bytes);
        read.unwrap_or_else(|cause| panic!("{length} bytes did not come: {cause}"));
        bytes
    }

    #[track_caller]
    fn number(&mut self, length: usize) -> u64 {
        self.bytes(length).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
    #[track_caller]
    fn u16(&mut self) -> u16 {
        self.number(2) as u16
    }
    #[track_caller]
    fn u32(&mut self) -> u32 {
        self.number(4) as u32
    }
    #[track_caller]
    fn u64(&mut self) -> u64 {
        self.number(8)
    }
}
