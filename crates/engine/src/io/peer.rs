//! Whether a client is still there, for other threads than the shard that serves it, and how much
//! it has not received yet.
//!
//! How: the socket's descriptor, shared with the [`Io`](super::Io) that has the socket, is polled;
//! the kernel says how much of what it was given it still holds.
//! Invariant: once it has left, it has for all who ask. Cost: a system call; the descriptor stays
//! open until all who share it have dropped it. Not for: simulated sockets, which have one thread.

#![expect(unsafe_code, reason = "an ioctl that rustix does not name")]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The other end of a client's socket.
#[derive(Clone, Debug)]
pub struct Peer(Arc<OwnedFd>);

impl Peer {
    /// Of a connected stream socket.
    #[must_use]
    pub fn new(socket: Arc<OwnedFd>) -> Peer {
        Peer(socket)
    }

    /// Whether it has closed its side, or the connection is broken, or closed here.
    #[must_use]
    pub fn has_left(&self) -> bool {
        has_hung_up(&self.0)
    }
}

/// Whether a stream socket's peer has closed its side, or the connection is broken.
pub(super) fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(&mut watched, Some(&now)).is_ok_and(|_| watched[0].revents().intersects(gone))
}

/// `SIOCOUTQ`: bytes that a socket was given and its peer has not acknowledged.
const UNACKNOWLEDGED: Opcode = opcode::none(0x54, 0x11);

/// How much of what was sent the kernel still holds, counted in the kernel's way; nothing where it
/// does not say.
pub(super) fn unacknowledged(socket: &OwnedFd) -> u64 {
    // SAFETY: `SIOCOUTQ` writes a C integer through its argument, and nothing else.
    let held = unsafe { ioctl(socket, Getter::<UNACKNOWLEDGED, std::ffi::c_int>::new()) };
    held.map_or(0, |held| held.max(0) as u64)
}
