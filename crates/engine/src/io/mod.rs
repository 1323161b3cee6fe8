//! The border to the kernel: every read, write, sync and socket call of a shard passes [`Io`].
//!
//! How: a shard submits an [`IoOperation`] under a [`Token`] and later finds the token in what
//! [`Io::wait`] returns. Buffers move into the operation and come back with its end, so no memory
//! is shared with the kernel behind the type system's back.
//! Invariant: each submitted token comes back exactly once, whether the operation succeeded or not.
//! Cost: no allocation per operation; buffers come from a pool that the ring has registered.
//! Not for: the control plane, which runs on tokio.

mod advice;
mod blocking;
mod buffer;
mod clock;
#[cfg(test)]
mod conformance;
mod encrypted;
mod events;
mod flights;
mod holders;
mod host;
mod life;
mod linger;
mod lost_pages;
mod mapping;
mod open;
mod operation;
mod passed;
mod peer;
mod pool;
mod ring;
mod room;
mod scheduled;
mod signals;
mod sim;
mod suspects;
mod volatile;
mod waker;
mod xts;

pub use advice::{DeviceHints, device_hints, is_write_protected};
pub use buffer::{
    ARENA_BYTES_DEFAULT, ARENA_BYTES_MAX, ARENA_BYTES_MIN, BUFFER_ALIGN, BUFFER_CLASS_MAX,
    BUFFER_CLASS_MIN, Buffer, BufferPool, SPARE_BYTES_MAX,
};
pub(crate) use events::check as check_event;
pub use holders::{is_held_by_the_living, is_held_unseen};
pub use host::{HostIo, IoChoice};
pub use life::{HintState, WriteHints, WriteLife};
pub(crate) use lost_pages::LostPages;
pub use mapping::lies_in_memory;
pub use open::{OpenDisk, OpenError, OpenMode, open_disk};
pub use operation::OperationKind;
pub use passed::{PASSED_MAX, take_passed};
pub use peer::Peer;
pub use pool::PoolIo;
pub use ring::RingIo;
pub use room::{NoRoom, overwrite_in_place, own_room};
pub use scheduled::{DeviceLoad, Scheduled};
pub(crate) use signals::Signals;
pub use sim::{CrashMode, CutAt, Deed, Fuse, Image, PowerCut, SimHost, SimIo, Step, Window};
pub use volatile::{VOLATILE_BYTES_DEFAULT, VOLATILE_BYTES_MAX, VOLATILE_BYTES_MIN, VolatileIo};
pub use waker::Waker;
pub use xts::{CIPHER_BLOCK_BYTES, DATA_KEY_BYTES, SECTOR_CIPHER, SectorCipher};

use layby_cache::schedule::Rank;
use layby_types::Nanos;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A file, block device or simulated disk that was attached to an [`Io`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u32);

/// A connected socket that was attached to an [`Io`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u32);

/// An event descriptor (eventfd) that was attached to an [`Io`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u32);

/// The submitter's mark on an operation; the shard packs what it needs into the 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// One thing for the kernel to do.
#[derive(Debug)]
#[expect(missing_docs, reason = "each variant's sentence says what its fields are")]
pub enum IoOperation {
    /// Fill `buffer` (its whole length) from `offset`; bytes past the end of a file read as zeros,
    /// and are not among those that its end says were moved.
    Read { disk: DiskId, offset: u64, buffer: Buffer },
    /// Write the whole of `buffer` at `offset`; with `durable` it survives power loss once done.
    Write { disk: DiskId, offset: u64, buffer: Buffer, durable: bool },
    /// Make every write, zeroing and mapped store that completed before this durable.
    Sync { disk: DiskId },
    /// Make a range read as zeros, releasing its room unless `keep_allocated`.
    Zero { disk: DiskId, offset: u64, length: u64, keep_allocated: bool },
    /// Tell the device that nobody needs what a range holds: until it is written again, each sector
    /// of it reads as zeros or as before. Advice: a device that knows no such thing says
    /// `EOPNOTSUPP`.
    Discard { disk: DiskId, offset: u64, length: u64 },
    /// Find which parts of a range hold data; the answer is in [`IoDone::extents`].
    Extents { disk: DiskId, offset: u64, length: u64 },
    /// Receive at least one byte into `buffer[filled..end]`.
    Receive { socket: SocketId, buffer: Buffer, filled: usize, end: usize },
    /// Send `buffer[start..end]` whole (short sends are continued inside).
    Send { socket: SocketId, buffer: Buffer, start: usize, end: usize },
    /// Wait until somebody has written to an event descriptor since the last such wait ended.
    Await { event: EventId },
}

/// Why an operation failed: the system's error number, kept so that reports can name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError {
    /// The `errno` value.
    pub errno: i32,
}

/// A run of a disk that holds data (`data`) or is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskExtent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// False for a hole, which reads as zeros.
    pub data: bool,
}

/// The end of an operation.
#[derive(Debug)]
pub struct IoDone {
    /// The submitter's mark.
    pub token: Token,
    /// Bytes moved (Receive: 0 means the peer closed), or why it failed.
    pub result: Result<usize, IoError>,
    /// The operation's buffer, if it had one, failed or not.
    pub buffer: Option<Buffer>,
    /// The answer of [`IoOperation::Extents`], empty otherwise.
    pub extents: Vec<DiskExtent>,
    /// A durable write failed, and its sync seems to be what failed: the same write without one
    /// ended well. The kernel tells of what it could not write once: no later sync says that other
    /// writes before this end are lost.
    pub is_sync_failed: bool,
}

/// The operations that a disk, or something remote, has begun and not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// When the oldest read or write began.
    pub quick: Option<Nanos>,
    /// The same of all others, whose work has no bound: a sync writes what gathered, a zeroing may
    /// be a long write.
    pub slow: Option<Nanos>,
    /// When it last ended any.
    pub ended: Nanos,
}

impl Owed {
    /// It has begun an operation, as an old one or the oldest.
    pub(crate) fn add(&mut self, is_quick: bool, begun: Nanos) {
        let oldest = if is_quick { &mut self.quick } else { &mut self.slow };
        *oldest = Some(oldest.map_or(begun, |oldest| oldest.min(begun)));
    }
}

/// How stores through a [`Mapping`] become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// The mapping is DAX: flushing CPU cache lines is enough ([`Mapping::persist`]).
    CacheFlush,
    /// The mapping is of a file in a memory file system, where a Sync does nothing: it is flushed
    /// like DAX, and outlives the process, not the machine.
    Memory,
    /// The mapping is of a page-cached file: [`IoOperation::Sync`] on its disk is needed.
    Sync,
}

/// A disk's bytes mapped into memory. Reads are plain; writes go through [`Mapping::write`], so
/// that a simulated disk knows what is volatile. While a mapping lives, change its disk through
/// the mapping only: Write and Zero operations beside it are a bug, which [`SimIo`] catches.
pub trait Mapping: Send {
    /// The bytes `offset..offset + length`. Panics past the end of the mapping.
    fn bytes(&self, offset: u64, length: usize) -> &[u8];
    /// Replaces bytes; durable only after `persist` or a Sync, as [`Mapping::persistence`] says.
    fn write(&mut self, offset: u64, bytes: &[u8]);
    /// Flushes the CPU caches for a range and fences; does nothing under [`Persistence::Sync`].
    fn persist(&mut self, offset: u64, length: usize);
    /// What makes a write durable.
    fn persistence(&self) -> Persistence;
    /// Where the pages begin that touch a range and that the device was found unable to return:
    /// each byte of them was [`LOST_BYTE`] then. What is written into one stays in memory until it
    /// is restored. Cheap where none was lost.
    fn lost_pages(&self, offset: u64, length: usize) -> Vec<u64>;
    /// Writes a lost page, as it is in memory, to the device, durably, and maps it again.
    ///
    /// # Errors
    /// The device's; the page stays lost.
    fn restore(&mut self, page: u64) -> Result<(), IoError>;
    /// From now on the process ends where a page below this byte is lost.
    fn end_below(&mut self, offset: u64);
}

/// Bytes of a page, of which the device returns all or nothing.
pub const PAGE_BYTES: u64 = 4096;
/// Each byte of a page that the device cannot return; of no structure: a word of it is not zero,
/// and no checksum.
pub const LOST_BYTE: u8 = 0xb7;

/// The kernel, or a model of it, as one shard sees it.
pub trait Io {
    /// Now, from an origin of this object's choice.
    fn now(&self) -> Nanos;
    /// A buffer of exactly `length` bytes with unspecified contents, 4 KiB aligned.
    fn buffer(&mut self, length: usize) -> Buffer;
    /// Gives a buffer back to the pool (dropping it is allowed, but costs the pool its memory).
    fn recycle(&mut self, buffer: Buffer);
    /// Queues an operation; it starts at the latest with the next [`Io::wait`].
    fn submit(&mut self, token: Token, operation: IoOperation);
    /// Whether what is submitted to a disk now begins only when others of it have ended.
    fn would_wait(&self, disk: DiskId) -> bool {
        let _ = disk;
        false
    }
    /// Takes the tokens of operations that waited so and have begun since the last wait began.
    fn take_begun(&mut self, begun: &mut Vec<Token>) {
        let _ = begun;
    }
    /// What is submitted from now on is of this rank; it counts where devices are shared by rank.
    fn set_rank(&mut self, rank: Rank) {
        let _ = rank;
    }
    /// The rank of what is submitted now.
    fn rank(&self) -> Rank {
        Rank::FIRST
    }
    /// What is written from now on is likely to live so long; `None` where nobody knows. It counts
    /// for disks that were opened with hints, as far as the kernel and the device take any.
    fn set_life(&mut self, life: Option<WriteLife>) {
        let _ = life;
    }
    /// What a disk has heard of the lives of what is written to it.
    fn hint_state(&self, disk: DiskId) -> HintState {
        let _ = disk;
        HintState::default()
    }
    /// A device that has refused write streams since the last call, and why. They were written
    /// without, and are from then on.
    fn take_refusal(&mut self) -> Option<(DiskId, IoError)> {
        None
    }
    /// Whether a `wait` would bring what has come since the last one; yes where nobody can tell. A
    /// hint, and cheap: whoever has more to do at low rank looks between two pieces of it.
    fn has_arrived(&mut self) -> bool {
        true
    }
    /// What is submitted from now on moves at most so many bytes at once, so that others get their
    /// turn between; a multiple of a page. A hint: whoever cannot cut does not.
    fn set_piece(&mut self, bytes: usize) {
        let _ = bytes;
    }
    /// Bytes of one batch of what is submitted under a rank, at most; `None` for the best.
    fn batch_bytes(&self, rank: Rank) -> Option<usize> {
        let _ = rank;
        None
    }

    /// Whether long work goes in steps, since somebody better may ask between them.
    fn is_stepwise(&self) -> bool {
        false
    }
    /// Whether disks owe ends; no where nobody counts them.
    fn has_flights(&self) -> bool {
        false
    }
    /// What a disk owes.
    fn owed(&self, disk: DiskId) -> Owed {
        let _ = disk;
        Owed::default()
    }
    /// The process did not run for `span`, which has just ended: what is owed counts as begun, and
    /// what has ended as ended, later by as much.
    fn leave_out(&mut self, span: Nanos) {
        let _ = span;
    }
    /// Receives what is there already, without waiting; `None` where nothing is, or where only a
    /// submitted receive can tell.
    fn receive_now(&mut self, socket: SocketId, room: &mut [u8]) -> Option<usize> {
        let _ = (socket, room);
        None
    }
    /// Whether the peer has closed its side of a socket or the connection is broken, also where
    /// bytes that came before are unread; no where only a receive can tell.
    fn has_peer_left(&self, socket: SocketId) -> bool {
        let _ = socket;
        false
    }
    /// Bytes of the sends in flight on a socket that its peer has not taken: what the kernel was
    /// not given, and what it still holds. They get fewer as long as the peer takes any.
    fn untaken(&self, socket: SocketId) -> u64 {
        let _ = socket;
        0
    }
    /// The client's side of a socket, for other threads to ask whether it is there; none where only
    /// this one can tell.
    fn peer(&self, socket: SocketId) -> Option<Peer> {
        let _ = socket;
        None
    }
    /// Starts what is queued, then appends what has ended to `done`. Waits for at least one end,
    /// a [`Waker`] call or `deadline` if there is none yet; `Nanos::ZERO` never waits.
    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>);
    /// Gives a regular file another length.
    ///
    /// # Errors
    /// The system's error; `EOPNOTSUPP` where a disk's length is fixed.
    fn resize_disk(&mut self, disk: DiskId, length: u64) -> Result<(), IoError> {
        let _ = (disk, length);
        Err(rustix::io::Errno::OPNOTSUPP.into())
    }
    /// Bytes of a disk.
    fn disk_length(&self, disk: DiskId) -> u64;
    /// A name for reports: the path.
    fn disk_name(&self, disk: DiskId) -> &str;
    /// Maps a whole disk into memory.
    ///
    /// # Errors
    /// The system's error where the disk cannot be mapped.
    fn map(&mut self, disk: DiskId) -> Result<Box<dyn Mapping>, IoError>;
    /// Detaches a disk; operations in flight on it still end.
    fn detach_disk(&mut self, disk: DiskId);
    /// Shuts a socket down and forgets it; operations in flight on it still end.
    fn close_socket(&mut self, socket: SocketId);
    /// Forgets an event descriptor; a wait in flight on it still ends.
    fn close_event(&mut self, event: EventId) {
        unreachable!("event {} was attached to an `Io` that has none", event.0);
    }
}

/// A machine as a shard finds it: an [`Io`] whose disks have paths.
pub trait Host: Io {
    /// Wakes this machine's waits, from any thread.
    fn waker(&self) -> Waker;
    /// Opens a file or device and attaches it.
    ///
    /// # Errors
    /// The step that failed; nothing is attached then.
    fn open_disk(&mut self, path: &Path, mode: OpenMode) -> Result<Opened, OpenError>;
    /// Takes a connected stream socket over.
    ///
    /// # Errors
    /// The system's error where the socket cannot be watched.
    fn attach_socket(&mut self, socket: OwnedFd) -> Result<SocketId, IoError>;
    /// Takes an event descriptor over, of which a stranger holds the other end.
    ///
    /// # Errors
    /// The system's error where it is no eventfd or cannot be watched.
    fn attach_event(&mut self, event: OwnedFd) -> Result<EventId, IoError> {
        drop(event);
        Err(rustix::io::Errno::OPNOTSUPP.into())
    }
}

/// A disk that [`Host::open_disk`] attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its number.
    pub disk: DiskId,
    /// Aligned operations go past the page cache.
    pub is_direct: bool,
    /// The number of the device that it lies on, or is.
    pub device: u64,
    /// It is a write-protected device, which the mode allowed.
    pub is_protected: bool,
}

/// Runs one operation to its end while a node starts or stops. No other operation may be in flight.
///
/// # Errors
/// The operation's own failure.
pub fn run_alone(io: &mut dyn Io, operation: IoOperation) -> Result<IoDone, IoError> {
    let token = Token(u64::MAX);
    io.submit(token, operation);
    let mut done = Vec::new();
    while done.is_empty() {
        io.wait(Nanos::NEVER, &mut done);
    }
    let done = done.pop().expect("the loop above ends only with an end");
    assert_eq!(done.token, token, "an operation was in flight beside one that runs alone");
    done.result.map(|_| done)
}
