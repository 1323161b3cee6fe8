//! Bytes on their way to a client: filled by replies, sent in one piece per turn.
//!
//! How: replies are copied behind each other into pooled buffers; at the end of a turn what has
//! gathered goes out, one send in flight, so that replies of many requests share a system call.
//! Bytes for which no room was asked are counted apart, buffer by buffer.
//! Invariant: bytes leave in the order in which they were pushed.
//! Cost: one copy per byte.

use crate::io::{BUFFER_CLASS_MAX, Buffer, Io};
use std::collections::VecDeque;

/// Bytes of one buffer at first, and at most: a client whose replies fill one gets a larger one.
const CHUNK_BYTES_FIRST: usize = 16 << 10;
const CHUNK_BYTES_MAX: usize = 256 << 10;

/// A buffer of bytes to send.
struct Chunk {
    buffer: Buffer,
    /// From where to where it is filled.
    start: usize,
    end: usize,
    /// Bytes of that for which no room was asked.
    short: usize,
}

impl Chunk {
    fn room(&self) -> usize {
        self.buffer.len() - self.end
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.buffer[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }
}

/// What is to be sent next.
pub(super) struct Popped {
    pub(super) buffer: Buffer,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Bytes of it for which no room was asked.
    pub(super) short: usize,
}

/// See the file's header.
pub(super) struct Outbox {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// Of these, bytes for which no room was asked.
    short: usize,
    /// What the buffers could hold.
    held: usize,
    /// Bytes of the next buffer.
    chunk: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        let (chunks, bytes, short, held) = (VecDeque::new(), 0, 0, 0);
        Outbox { chunks, bytes, short, held, chunk: CHUNK_BYTES_FIRST }
    }
}

impl Outbox {
    fn add(&mut self, io: &mut dyn Io, bytes: usize) {
        let buffer = io.buffer(bytes);
        self.held += buffer.capacity();
        self.chunks.push_back(Chunk { buffer, start: 0, end: 0, short: 0 });
    }

    /// Bytes of the next buffer. Behind one that is full comes a larger one.
    fn grow(&mut self) -> usize {
        if !self.chunks.is_empty() {
            self.chunk = (self.chunk * 2).min(CHUNK_BYTES_MAX);
        }
        self.chunk
    }

    /// Bytes of memory that it holds.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn push(&mut self, io: &mut dyn Io, bytes: &[u8]) {
        self.copy(io, bytes, Outbox::grow);
    }

    /// The same of a reply for which no room was asked: it gets no larger buffer. What of it lies
    /// in the buffer before the last one leaves first, and counts until all of it has left.
    pub(super) fn push_short(&mut self, io: &mut dyn Io, bytes: &[u8]) {
        self.copy(io, bytes, |_| CHUNK_BYTES_FIRST);
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.short += bytes.len();
            self.short += bytes.len();
        }
    }

    fn copy(&mut self, io: &mut dyn Io, mut bytes: &[u8], size: impl Fn(&mut Outbox) -> usize) {
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            if self.chunks.back().is_none_or(|chunk| chunk.room() == 0) {
                let size = size(self);
                self.add(io, size);
            }
            let chunk = self.chunks.back_mut().expect("there is one with room");
            let (now, later) = bytes.split_at(bytes.len().min(chunk.room()));
            chunk.fill(now);
            bytes = later;
        }
    }

    /// Bytes that wait and for which no room was asked.
    pub(super) fn short(&self) -> usize {
        self.short
    }

    /// Makes sure that `bytes` can follow in one piece, as far as buffers are pooled.
    pub(super) fn reserve(&mut self, io: &mut dyn Io, bytes: usize) {
        let bytes = bytes.min(BUFFER_CLASS_MAX);
        let room = self.chunks.back().map_or(0, Chunk::room);
        if room < bytes {
            let size = self.grow().max(bytes);
            self.add(io, size);
        }
    }

    /// Gives a larger buffer back that was reserved and is not used yet.
    pub(super) fn trim(&mut self, io: &mut dyn Io) {
        let is_spare =
            |chunk: &Chunk| chunk.end == 0 && chunk.buffer.capacity() > CHUNK_BYTES_FIRST;
        if self.chunks.back().is_some_and(is_spare) {
            self.chunks.pop_back().into_iter().for_each(|Chunk { buffer, .. }| {
                self.held -= buffer.capacity();
                io.recycle(buffer);
            });
        }
    }

    /// Copies what fits behind the last byte; answers with the rest.
    pub(super) fn push_within<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(chunk) = self.chunks.back_mut() else { return bytes };
        let (now, later) = bytes.split_at(bytes.len().min(chunk.room()));
        chunk.fill(now);
        self.bytes += now.len();
        later
    }

    /// Appends what a buffer holds from `start` on.
    pub(super) fn put(&mut self, buffer: Buffer, start: usize) {
        let end = buffer.len();
        self.bytes += end - start;
        self.held += buffer.capacity();
        self.chunks.push_back(Chunk { buffer, start, end, short: 0 });
    }

    /// The next buffer to send.
    pub(super) fn pop(&mut self, io: &mut dyn Io) -> Option<Popped> {
        while self.chunks.front().is_some_and(|chunk| chunk.start == chunk.end) {
            self.chunks.pop_front().into_iter().for_each(|Chunk { buffer, .. }| {
                self.held -= buffer.capacity();
                io.recycle(buffer);
            });
        }
        let Chunk { buffer, start, end, short } = self.chunks.pop_front()?;
        self.bytes -= end - start;
        self.short -= short;
        self.held -= buffer.capacity();
        if end - start < self.chunk / 8 {
            self.chunk = (self.chunk / 2).max(CHUNK_BYTES_FIRST);
        }
        Some(Popped { buffer, start, end, short })
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn clear(&mut self, io: &mut dyn Io) {
        self.chunks.drain(..).for_each(|Chunk { buffer, .. }| io.recycle(buffer));
        (self.bytes, self.short, self.held) = (0, 0, 0);
    }
}
