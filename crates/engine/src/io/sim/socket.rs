//! A simulated stream socket: bytes in both directions, in pieces that chance cuts.
//!
//! How: the test's side puts bytes in and takes bytes out; a receive ends with some of what is
//! there, a send puts all of its bytes behind the others.
//! Invariant: bytes keep their order; after a reset nothing more arrives on either side.
//! Cost: a copy per byte. Not for: loss or reordering, which a stream's kernel hides.

use crate::io::IoError;
use layby_types::Rng;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::Read;

/// Bytes that wait for the test's side before sends stop ending, as with a full window.
const WINDOW_BYTES: usize = 64 << 10;

/// See the file's header.
#[derive(Debug, Default)]
pub(super) struct SimSocket {
    inbound: VecDeque<u8>,
    outbound: VecDeque<u8>,
    /// The test's side will send no more.
    is_ended: bool,
    /// The test's side hears nothing any more.
    is_deaf: bool,
    /// The connection is gone.
    is_reset: bool,
    /// The node has closed its side.
    pub(super) is_closed: bool,
}

impl SimSocket {
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.inbound.extend(bytes);
    }

    pub(super) fn take(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most.min(self.outbound.len())];
        move_front(&mut self.outbound, &mut bytes);
        bytes
    }

    pub(super) fn leave(&mut self) {
        (self.is_ended, self.is_deaf) = (true, true);
        self.outbound.clear();
    }

    pub(super) fn end_sending(&mut self) {
        self.is_ended = true;
    }

    pub(super) fn reset(&mut self) {
        self.is_reset = true;
        self.inbound.clear();
        self.outbound.clear();
    }

    pub(super) fn may_receive(&self) -> bool {
        !self.inbound.is_empty() || self.is_ended || self.is_reset || self.is_closed
    }

    /// Whether the test's side sends no more, or the connection is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.is_ended || self.is_reset
    }

    /// Bytes that the test's side has not taken yet.
    pub(super) fn untaken(&self) -> u64 {
        self.outbound.len() as u64
    }

    pub(super) fn may_send(&self) -> bool {
        let is_over = self.is_deaf || self.is_reset || self.is_closed;
        is_over || self.outbound.len() < WINDOW_BYTES
    }

    /// Fills some of `room`; zero bytes mean the end.
    pub(super) fn receive(&mut self, room: &mut [u8], rng: &mut Rng) -> Result<usize, IoError> {
        if self.is_reset {
            return Err(Errno::CONNRESET.into());
        }
        let most = self.inbound.len().min(room.len());
        if most == 0 || self.is_closed {
            return Ok(0);
        }
        let count = if rng.chance(1, 3) { 1 + rng.below(most as u64) as usize } else { most };
        move_front(&mut self.inbound, &mut room[..count]);
        Ok(count)
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        if self.is_deaf || self.is_reset || self.is_closed {
            return Err(Errno::PIPE.into());
        }
        self.outbound.extend(bytes);
        Ok(bytes.len())
    }
}

/// Takes as many bytes from the front of `queue`, which has them, as `room` holds.
///
/// In pieces: a byte at a time was a fifth of a simulated run's processor time.
fn move_front(queue: &mut VecDeque<u8>, room: &mut [u8]) {
    queue.read_exact(room).expect("a queue that has these bytes");
}
