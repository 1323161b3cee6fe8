//! Whether a client is still there, for other threads than the shard that serves it.
//!
//! How: the socket's descriptor, shared with the [`Io`](super::Io) that has the socket, is polled.
//! Invariant: once it has left, it has for all who ask. Cost: a system call; the descriptor stays
//! open until all who share it have dropped it. Not for: simulated sockets, which have one thread.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
