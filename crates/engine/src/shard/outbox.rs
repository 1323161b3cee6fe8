//! Bytes on their way to a client: filled by replies, sent in one piece per turn.
//!
//! How: replies are copied behind each other into pooled buffers; at the end of a turn what has
//! gathered goes out, one send in flight, so that replies of many requests share a system call.
//! Invariant: bytes leave in the order in which they were pushed.
//! Cost: one copy per byte.

use crate::io::{BUFFER_CLASS_MAX, Buffer, Io};
use std::collections::VecDeque;

/// Bytes of one buffer.
const CHUNK_BYTES: usize = 256 << 10;

/// See the file's header.
#[derive(Default)]
pub(super) struct Outbox {
    /// Buffers, and from where to where they are filled.
    chunks: VecDeque<(Buffer, usize, usize)>,
    bytes: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, io: &mut dyn Io, mut bytes: &[u8]) {
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            if self.chunks.back().is_none_or(|(buffer, _, end)| *end == buffer.len()) {
                self.chunks.push_back((io.buffer(CHUNK_BYTES), 0, 0));
            }
            let (buffer, _, end) = self.chunks.back_mut().expect("there is one with room");
            let count = bytes.len().min(buffer.len() - *end);
            buffer[*end..*end + count].copy_from_slice(&bytes[..count]);
            *end += count;
            bytes = &bytes[count..];
        }
    }

    /// Makes sure that `bytes` can follow in one piece, as far as buffers are pooled.
    pub(super) fn reserve(&mut self, io: &mut dyn Io, bytes: usize) {
        let bytes = bytes.min(BUFFER_CLASS_MAX);
        let room = self.chunks.back().map_or(0, |(buffer, _, end)| buffer.len() - end);
        if room < bytes {
            self.chunks.push_back((io.buffer(bytes.max(CHUNK_BYTES)), 0, 0));
        }
    }

    /// Copies what fits behind the last byte; answers with the rest.
    pub(super) fn push_within<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some((buffer, _, end)) = self.chunks.back_mut() else { return bytes };
        let count = bytes.len().min(buffer.len() - *end);
        buffer[*end..*end + count].copy_from_slice(&bytes[..count]);
        *end += count;
        self.bytes += count;
        &bytes[count..]
    }

    /// Appends what a buffer holds from `start` on.
    pub(super) fn put(&mut self, buffer: Buffer, start: usize) {
        let end = buffer.len();
        self.bytes += end - start;
        self.chunks.push_back((buffer, start, end));
    }

    /// The next buffer to send, and from where to where it is filled.
    pub(super) fn pop(&mut self, io: &mut dyn Io) -> Option<(Buffer, usize, usize)> {
        while self.chunks.front().is_some_and(|(_, start, end)| start == end) {
            self.chunks.pop_front().into_iter().for_each(|(buffer, ..)| io.recycle(buffer));
        }
        let (buffer, start, end) = self.chunks.pop_front()?;
        self.bytes -= end - start;
        Some((buffer, start, end))
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn clear(&mut self, io: &mut dyn Io) {
        self.chunks.drain(..).for_each(|(buffer, ..)| io.recycle(buffer));
        self.bytes = 0;
    }
}
