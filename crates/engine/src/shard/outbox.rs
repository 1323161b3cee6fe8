//! Bytes on their way to a client: filled by replies, sent in one piece per turn.
//!
//! How: replies are copied behind each other into pooled buffers; at the end of a turn what has
//! gathered goes out, one send in flight, so that replies of many requests share a system call.
//! Invariant: bytes leave in the order in which they were pushed.
//! Cost: one copy per byte.

use crate::io::{BUFFER_CLASS_MAX, Buffer, Io};
use std::collections::VecDeque;

/// Bytes of one buffer at first, and at most: a client whose replies fill one gets a larger one.
const CHUNK_BYTES_FIRST: usize = 16 << 10;
const CHUNK_BYTES_MAX: usize = 256 << 10;

/// See the file's header.
pub(super) struct Outbox {
    /// Buffers, and from where to where they are filled.
    chunks: VecDeque<(Buffer, usize, usize)>,
    bytes: usize,
    /// What the buffers could hold.
    held: usize,
    /// Bytes of the next buffer.
    chunk: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Outbox { chunks: VecDeque::new(), bytes: 0, held: 0, chunk: CHUNK_BYTES_FIRST }
    }
}

impl Outbox {
    /// Adds a buffer of `bytes` at least. Behind one that is full comes a larger one.
    fn add(&mut self, io: &mut dyn Io, bytes: usize) {
        if !self.chunks.is_empty() {
            self.chunk = (self.chunk * 2).min(CHUNK_BYTES_MAX);
        }
        let buffer = io.buffer(bytes.max(self.chunk));
        self.held += buffer.capacity();
        self.chunks.push_back((buffer, 0, 0));
    }

    /// Bytes of memory that it holds.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn push(&mut self, io: &mut dyn Io, mut bytes: &[u8]) {
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            if self.chunks.back().is_none_or(|(buffer, _, end)| *end == buffer.len()) {
                self.add(io, 0);
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
            self.add(io, bytes);
        }
    }

    /// Gives a larger buffer back that was reserved and is not used yet.
    pub(super) fn trim(&mut self, io: &mut dyn Io) {
        let is_spare = |(buffer, _, end): &(Buffer, usize, usize)| {
            *end == 0 && buffer.capacity() > CHUNK_BYTES_FIRST
        };
        if self.chunks.back().is_some_and(is_spare) {
            self.chunks.pop_back().into_iter().for_each(|(buffer, ..)| {
                self.held -= buffer.capacity();
                io.recycle(buffer);
            });
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
        self.held += buffer.capacity();
        self.chunks.push_back((buffer, start, end));
    }

    /// The next buffer to send, and from where to where it is filled.
    pub(super) fn pop(&mut self, io: &mut dyn Io) -> Option<(Buffer, usize, usize)> {
        while self.chunks.front().is_some_and(|(_, start, end)| start == end) {
            self.chunks.pop_front().into_iter().for_each(|(buffer, ..)| {
                self.held -= buffer.capacity();
                io.recycle(buffer);
            });
        }
        let (buffer, start, end) = self.chunks.pop_front()?;
        self.bytes -= end - start;
        self.held -= buffer.capacity();
        if end - start < self.chunk / 8 {
            self.chunk = (self.chunk / 2).max(CHUNK_BYTES_FIRST);
        }
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
        (self.bytes, self.held) = (0, 0);
    }
}
