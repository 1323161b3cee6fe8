//! One queue of a device: tags come, calls are made of their descriptors, results go back by tag.
//!
//! How: the thread that first takes from the queue is its server for the kernel, so tags are asked
//! for there and then. Answers gather and go to the kernel once per turn, with the requests that
//! the kernel then has for the same tags.
//! Invariant: as in the module's header. Where the kernel takes tags back, its device is stopping,
//! and they do not return.
//! Cost: two copies of a few bytes per request, and its data once.
//! Not for: knowing when to look; the engine does.

use super::{DISCARD_SECTORS_MAX, HostDisk, SECTOR_BYTES};
use layby_types::{Call, CallFlags, ErrorKind, GuestRing, Operation, SessionError, Taken};

/// Bytes of `struct ublksrv_io_desc`.
pub const DESCRIPTOR_BYTES: usize = 24;

/// How tags, descriptors and bytes come from the kernel, and go back. A tag's buffer and descriptor
/// belong to the queue from the tag's arrival to its answer.
pub trait Wire: Send {
    /// Asks for requests, for every tag; the calling thread is the queue's server from now on.
    ///
    /// # Errors
    /// Why the kernel does not take it.
    fn start(&mut self) -> Result<(), SessionError>;
    /// The next tag that the kernel hands over, with what it says: zero for a request.
    fn next_tag(&mut self) -> Option<(u16, i32)>;
    /// A request as `struct ublksrv_io_desc` lays it out.
    fn descriptor(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES];
    /// A request's bytes: room for the longest read or write of the device.
    fn buffer(&mut self, tag: u16) -> &mut [u8];
    /// Answers a request with its bytes done or a negative error number, and asks for the next.
    fn answer(&mut self, tag: u16, result: i32);
    /// Brings the answers to the kernel; false where it takes them only later.
    fn send(&mut self) -> bool;
    /// Whether a tag has arrived that was not taken.
    fn has_more(&mut self) -> bool;
}

/// What the kernel says of a tag that it takes back.
const NO_DEVICE: i32 = -19;

/// Error numbers as the kernel maps them for its callers.
const IO: i32 = -5;
const NO_SPACE: i32 = -28;
const NO_DATA: i32 = -61;
const NOT_SUPPORTED: i32 = -95;

const OPERATION_MASK: u32 = 0xff;
const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 2;
const DISCARD: u32 = 3;
const WRITE_ZEROES: u32 = 5;
const FLAG_FUA: u32 = 1 << 13;
const FLAG_NO_UNMAP: u32 = 1 << 15;

/// A request of the kernel.
struct Request {
    operation: u32,
    flags: u32,
    sectors: u32,
    sector: u64,
}

impl Request {
    fn parse(bytes: &[u8; DESCRIPTOR_BYTES]) -> Request {
        let word = |at: usize| {
            u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes of a descriptor"))
        };
        let sector = bytes[8..16].try_into().expect("eight bytes of a descriptor");
        let sector = u64::from_ne_bytes(sector);
        let (operation, flags) = (word(0) & OPERATION_MASK, word(0) & !OPERATION_MASK);
        Request { operation, flags, sectors: word(4), sector }
    }

    fn length(&self) -> u64 {
        u64::from(self.sectors) * SECTOR_BYTES
    }

    fn is_within(&self, sectors: u64) -> bool {
        self.sector.checked_add(self.sectors.into()).is_some_and(|end| end <= sectors)
    }

    fn operation(&self) -> Option<Operation> {
        Some(match self.operation {
            READ => Operation::Read,
            WRITE => Operation::Write,
            FLUSH => Operation::Flush,
            DISCARD => Operation::Trim,
            WRITE_ZEROES => Operation::WriteZeroes,
            _ => return None,
        })
    }
}

/// The call that a request is, or the result that it has at once.
fn judge(disk: &HostDisk, tag: u16, room: u64, request: &Request) -> Result<Call, i32> {
    let operation = request.operation().ok_or(NOT_SUPPORTED)?;
    let changes = matches!(operation, Operation::Write | Operation::Trim | Operation::WriteZeroes);
    let longest = match operation {
        Operation::Read | Operation::Write => room,
        _ => u64::from(DISCARD_SECTORS_MAX) * SECTOR_BYTES,
    };
    let (mut offset, mut length) = (request.sector.saturating_mul(SECTOR_BYTES), request.length());
    if operation == Operation::Flush {
        (offset, length) = (0, 0);
    } else if length == 0 {
        return Err(0);
    } else if length > longest || !request.is_within(disk.sectors()) || changes && disk.read_only {
        return Err(IO);
    }
    let flags = CallFlags {
        fua: changes && request.flags & FLAG_FUA != 0,
        no_hole: operation == Operation::WriteZeroes && request.flags & FLAG_NO_UNMAP != 0,
        ..CallFlags::default()
    };
    Ok(Call { cookie: tag.into(), operation, offset, length, flags })
}

/// The kernel's number for an outcome: bytes done, or an error.
fn result_of(call: &Call, result: Result<(), ErrorKind>) -> i32 {
    match (result, call.operation) {
        (Ok(()), Operation::Read | Operation::Write) => call.length as i32,
        (Ok(()), _) => 0,
        (Err(ErrorKind::Full), _) => NO_SPACE,
        (Err(ErrorKind::Corrupt), _) => NO_DATA,
        (Err(ErrorKind::Unsupported), _) => NOT_SUPPORTED,
        (Err(_), _) => IO,
    }
}

/// See the file's header.
pub struct DiskQueue<W> {
    wire: W,
    disk: HostDisk,
    is_started: bool,
    /// Answers wait for the turn's end.
    has_answered: bool,
    /// Tags in the node's hands.
    held: Vec<bool>,
}

impl<W: Wire> DiskQueue<W> {
    /// A queue of `depth` tags that nobody serves yet.
    pub fn new(wire: W, disk: HostDisk, depth: u16) -> DiskQueue<W> {
        let held = vec![false; depth.into()];
        DiskQueue { wire, disk, is_started: false, has_answered: false, held }
    }

    fn answer(&mut self, tag: u16, result: i32) {
        let held = &mut self.held[usize::from(tag)];
        assert!(std::mem::take(held), "a request is answered once");
        self.wire.answer(tag, result);
        self.has_answered = true;
    }

    fn take_request(&mut self, tag: u16, payload: &mut Vec<u8>) -> Result<Taken, SessionError> {
        let Some(held) = self.held.get_mut(usize::from(tag)) else {
            return Err(SessionError {
                reason: "the kernel hands over a tag that was not asked for",
            });
        };
        if std::mem::replace(held, true) {
            return Err(SessionError {
                reason: "the kernel hands over a tag that it has not back",
            });
        }
        let request = Request::parse(&self.wire.descriptor(tag));
        let room = self.wire.buffer(tag).len() as u64;
        match judge(&self.disk, tag, room, &request) {
            Ok(call) => {
                if call.operation == Operation::Write {
                    payload.clear();
                    payload.extend_from_slice(&self.wire.buffer(tag)[..call.length as usize]);
                }
                Ok(Taken::Call(call))
            }
            Err(result) => {
                self.answer(tag, result);
                Ok(Taken::Answered)
            }
        }
    }
}

impl<W: Wire> GuestRing for DiskQueue<W> {
    fn take(&mut self, payload: &mut Vec<u8>) -> Result<Taken, SessionError> {
        if !std::mem::replace(&mut self.is_started, true) {
            self.wire.start()?;
        }
        // Tags that the kernel takes back are as many as it has at most.
        while let Some((tag, said)) = self.wire.next_tag() {
            match said {
                0 => return self.take_request(tag, payload),
                NO_DEVICE => {}
                _ => return Err(SessionError { reason: "the kernel refuses a queue's tag" }),
            }
        }
        Ok(Taken::Nothing)
    }

    fn put(&mut self, call: &Call, at: u64, bytes: &[u8]) {
        let at = at as usize;
        let buffer = self.wire.buffer(call.cookie as u16);
        buffer[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn finish(&mut self, call: &Call, result: Result<(), ErrorKind>) -> Result<(), SessionError> {
        self.answer(call.cookie as u16, result_of(call, result));
        Ok(())
    }

    /// The kernel tells of every request by itself.
    fn listen(&mut self) -> Result<bool, SessionError> {
        Ok(self.wire.has_more())
    }

    /// Brings the turn's answers to the kernel, which needs no other signal. True where it did not
    /// take them all: then the caller's signal is the queue's own kick, and it is tried again.
    fn take_signal(&mut self) -> bool {
        if std::mem::take(&mut self.has_answered) && !self.wire.send() {
            self.has_answered = true;
        }
        self.has_answered
    }

    /// The kernel keeps what was not taken.
    fn base(&self) -> u16 {
        0
    }
}
