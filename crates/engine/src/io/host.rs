//! The `Io` of a real host: io_uring where it is granted, epoll and threads where it is not.
//!
//! How: an enum that passes each call on; the choice is made once, at start.
//! Invariant: both behave alike; the conformance suite runs against both.
//! Cost: one predictable branch per call.
//! Not for: simulations.

use super::pool::PoolIo;
use super::ring::RingIo;
use super::{
    Buffer, DiskId, EventId, HintState, Host, Io, IoDone, IoError, IoOperation, Mapping, OpenDisk,
    OpenError, OpenMode, Opened, Peer, SocketId, Token, VolatileIo, Waker, WriteLife, open_disk,
};
use layby_types::Nanos;
use rustix::net::{AddressFamily, sockopt};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

/// What is asked of the kernel for a local socket's sends; it grants twice that, its own share of
/// each packet included.
const SEND_BYTES: usize = 320 << 10;

/// Which way to the kernel to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// The ring if the kernel grants it.
    #[default]
    Auto,
    /// io_uring or failure.
    Ring,
    /// epoll and threads.
    Pool,
}

/// A real host's disks and sockets, for one shard.
pub enum HostIo {
    /// Over io_uring.
    Ring(Box<RingIo>),
    /// Over epoll and threads.
    Pool(Box<PoolIo>),
    /// Either of them, with a killed process standing for a power cut.
    Volatile(Box<VolatileIo<HostIo>>),
}

macro_rules! either {
    ($host:expr, $io:ident => $call:expr) => {
        match $host {
            HostIo::Ring($io) => $call,
            HostIo::Pool($io) => $call,
            HostIo::Volatile($io) => $call,
        }
    };
}

impl HostIo {
    /// Starts one shard's I/O; any thread may do so, but the first to wait keeps it. Answers with
    /// the waker and a description for the log.
    ///
    /// # Errors
    /// The system's error where the choice cannot be had.
    pub fn start(choice: IoChoice, arena_bytes: usize) -> Result<(Self, Waker, String), IoError> {
        if choice != IoChoice::Pool {
            match RingIo::new(arena_bytes) {
                Ok(ring) => {
                    let (waker, description) = (ring.waker(), ring.description());
                    return Ok((HostIo::Ring(Box::new(ring)), waker, description));
                }
                Err(error) if choice == IoChoice::Ring => return Err(error),
                Err(error) => return Self::start_pool(arena_bytes, Some(error)),
            }
        }
        Self::start_pool(arena_bytes, None)
    }

    fn start_pool(
        arena_bytes: usize,
        refusal: Option<IoError>,
    ) -> Result<(Self, Waker, String), IoError> {
        let pool = PoolIo::new(arena_bytes)?;
        let (waker, mut description) = (pool.waker(), pool.description());
        if let Some(error) = refusal {
            description.push_str(&format!(" (io_uring was refused: {error})"));
        }
        Ok((HostIo::Pool(Box::new(pool)), waker, description))
    }

    /// Keeps what is not durable in this process, up to `limit_bytes` per disk; see [`VolatileIo`].
    #[must_use]
    pub fn into_volatile(self, limit_bytes: u64) -> Self {
        HostIo::Volatile(Box::new(VolatileIo::new(self, limit_bytes)))
    }

    /// Keeps a file open, and so its lock held, until the kernel has ended the last operation; that
    /// of a killed process may last. Threads need no such help: no process ends before its threads.
    pub fn keep(&mut self, file: BorrowedFd<'_>) {
        match self {
            HostIo::Ring(io) => io.keep(file),
            HostIo::Pool(_) => {}
            HostIo::Volatile(io) => io.inner_mut().keep(file),
        }
    }

    /// Takes a disk over.
    pub fn attach_disk(&mut self, disk: OpenDisk) -> DiskId {
        match self {
            HostIo::Ring(io) => io.attach_disk(disk),
            HostIo::Pool(io) => io.attach_disk(disk),
            HostIo::Volatile(io) => io.inner_mut().attach_disk(disk),
        }
    }
}

impl Host for HostIo {
    fn waker(&self) -> Waker {
        match self {
            HostIo::Ring(io) => io.waker(),
            HostIo::Pool(io) => io.waker(),
            HostIo::Volatile(io) => io.inner().waker(),
        }
    }

    fn open_disk(&mut self, path: &Path, mode: OpenMode) -> Result<Opened, OpenError> {
        let opened = open_disk(path, mode)?;
        let (is_direct, device) = (opened.is_direct(), opened.device());
        let is_protected = opened.is_protected;
        Ok(Opened { disk: self.attach_disk(opened), is_direct, device, is_protected })
    }

    fn attach_socket(&mut self, socket: OwnedFd) -> Result<SocketId, IoError> {
        widen(&socket);
        match self {
            HostIo::Ring(io) => io.attach_socket(socket),
            HostIo::Pool(io) => io.attach_socket(socket),
            HostIo::Volatile(io) => io.inner_mut().attach_socket(socket),
        }
    }

    fn attach_event(&mut self, event: OwnedFd) -> Result<EventId, IoError> {
        match self {
            HostIo::Ring(io) => io.attach_event(event),
            HostIo::Pool(io) => io.attach_event(event),
            HostIo::Volatile(io) => io.inner_mut().attach_event(event),
        }
    }
}

impl Io for HostIo {
    fn now(&self) -> Nanos {
        either!(self, io => io.now())
    }

    fn buffer(&mut self, length: usize) -> Buffer {
        either!(self, io => io.buffer(length))
    }

    fn recycle(&mut self, buffer: Buffer) {
        either!(self, io => io.recycle(buffer));
    }

    fn submit(&mut self, token: Token, operation: IoOperation) {
        either!(self, io => io.submit(token, operation));
    }

    fn would_wait(&self, disk: DiskId) -> bool {
        either!(self, io => io.would_wait(disk))
    }

    fn take_begun(&mut self, begun: &mut Vec<Token>) {
        either!(self, io => io.take_begun(begun));
    }

    fn set_life(&mut self, life: Option<WriteLife>) {
        either!(self, io => io.set_life(life));
    }

    fn hint_state(&self, disk: DiskId) -> HintState {
        either!(self, io => io.hint_state(disk))
    }

    fn take_refusal(&mut self) -> Option<(DiskId, IoError)> {
        either!(self, io => io.take_refusal())
    }

    fn has_arrived(&mut self) -> bool {
        either!(self, io => io.has_arrived())
    }

    fn set_piece(&mut self, bytes: usize) {
        either!(self, io => io.set_piece(bytes));
    }

    fn receive_now(&mut self, socket: SocketId, room: &mut [u8]) -> Option<usize> {
        either!(self, io => io.receive_now(socket, room))
    }

    fn has_peer_left(&self, socket: SocketId) -> bool {
        either!(self, io => io.has_peer_left(socket))
    }

    fn untaken(&self, socket: SocketId) -> u64 {
        either!(self, io => io.untaken(socket))
    }

    fn peer(&self, socket: SocketId) -> Option<Peer> {
        either!(self, io => io.peer(socket))
    }

    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        either!(self, io => io.wait(deadline, done));
    }

    fn resize_disk(&mut self, disk: DiskId, length: u64) -> Result<(), IoError> {
        either!(self, io => io.resize_disk(disk, length))
    }

    fn disk_length(&self, disk: DiskId) -> u64 {
        either!(self, io => io.disk_length(disk))
    }

    fn disk_name(&self, disk: DiskId) -> &str {
        either!(self, io => io.disk_name(disk))
    }

    fn map(&mut self, disk: DiskId) -> Result<Box<dyn Mapping>, IoError> {
        either!(self, io => io.map(disk))
    }

    fn detach_disk(&mut self, disk: DiskId) {
        either!(self, io => io.detach_disk(disk));
    }

    fn close_socket(&mut self, socket: SocketId) {
        either!(self, io => io.close_socket(socket));
    }

    fn close_event(&mut self, event: EventId) {
        either!(self, io => io.close_event(event));
    }
}

/// Lets a local socket take a whole reply of usual length at once, where by default it takes a
/// part, so that the rest costs a wait and the peer another wake-up. Others size themselves.
fn widen(socket: &OwnedFd) {
    if sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX) {
        // Refusal only costs speed.
        let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BYTES);
    }
}
