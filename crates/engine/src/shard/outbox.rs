//! Bytes on their way to a client: filled by replies, sent in one piece per turn.
//!
//! How: replies are copied behind each other into pooled buffers; at the end of a turn what has
//! gathered goes out, one send in flight, so that replies of many requests share a system call.
//! Invariant: bytes leave in the order in which they were pushed.
//! Cost: one copy per byte.

use crate::io::{Buffer, Io};
use std::collections::VecDeque;

/// Bytes of one buffer.
const CHUNK_BYTES: usize = 256 << 10;

/// See the file's header.
#[derive(Default)]
pub(super) struct Outbox {
    chunks: VecDeque<(Buffer, usize)>,
    bytes: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, io: &mut dyn Io, mut bytes: &[u8]) {
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            if self.chunks.back().is_none_or(|(buffer, filled)| *filled == buffer.len()) {
                self.chunks.push_back((io.buffer(CHUNK_BYTES), 0));
            }
            let (buffer, filled) = self.chunks.back_mut().expect("there is one with room");
            let count = bytes.len().min(buffer.len() - *filled);
            buffer[*filled..*filled + count].copy_from_slice(&bytes[..count]);
            *filled += count;
            bytes = &bytes[count..];
        }
    }

    /// Makes sure that `bytes` (up to a chunk) can follow in one piece.
    pub(super) fn reserve(&mut self, io: &mut dyn Io, bytes: usize) {
        let room = self.chunks.back().map_or(0, |(buffer, filled)| buffer.len() - filled);
        if room < bytes.min(CHUNK_BYTES) {
            self.chunks.push_back((io.buffer(CHUNK_BYTES), 0));
        }
    }

    /// Copies what fits behind the last byte; answers with the rest.
    pub(super) fn push_within<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some((buffer, filled)) = self.chunks.back_mut() else { return bytes };
        let count = bytes.len().min(buffer.len() - *filled);
        buffer[*filled..*filled + count].copy_from_slice(&bytes[..count]);
        *filled += count;
        self.bytes += count;
        &bytes[count..]
    }

    /// Appends a buffer that is filled already.
    pub(super) fn put(&mut self, buffer: Buffer, filled: usize) {
        self.bytes += filled;
        self.chunks.push_back((buffer, filled));
    }

    /// The next buffer to send and how far it is filled.
    pub(super) fn pop(&mut self, io: &mut dyn Io) -> Option<(Buffer, usize)> {
        while self.chunks.front().is_some_and(|(_, filled)| *filled == 0) {
            self.chunks.pop_front().into_iter().for_each(|(buffer, _)| io.recycle(buffer));
        }
        let (buffer, filled) = self.chunks.pop_front()?;
        self.bytes -= filled;
        Some((buffer, filled))
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn clear(&mut self, io: &mut dyn Io) {
        self.chunks.drain(..).for_each(|(buffer, _)| io.recycle(buffer));
        self.bytes = 0;
    }
}
