//! Bytes of reads that do not end at once, on their way to whoever asked.
//!
//! How: they gather in a pooled buffer behind room for a reply's head, so that the buffer goes to
//! the client as it is. Pieces of a longer read share one, which whoever cut it opens and closes.
//! Invariant: a gathering is closed after the last piece that fills it has ended.
//! Cost: one copy per byte, into its place in the reply; nothing is cleared, since each byte of a
//! read that ends well was delivered. Not for: hits, which never come here.

use super::Core;
use crate::io::{Buffer, Io};
use std::ops::Deref;

/// Room in front of the data, for the head of a reply.
const HEAD_BYTES: usize = 64;

/// The bytes of a read.
#[derive(Debug)]
pub struct ReadAnswer(Buffer);

impl ReadAnswer {
    pub(super) fn new(io: &mut dyn Io, length: usize) -> Self {
        let mut buffer = io.buffer(HEAD_BYTES + length);
        if cfg!(debug_assertions) {
            // What nobody delivers is to be seen.
            buffer.fill(0xdb);
        }
        ReadAnswer(buffer)
    }

    /// Where the bytes begin in the buffer.
    pub(super) const START: usize = HEAD_BYTES;

    /// A buffer that [`ReadAnswer::into_buffer`] gave, and that was filled from
    /// [`ReadAnswer::START`] on.
    pub(super) fn of_buffer(buffer: Buffer) -> Self {
        ReadAnswer(buffer)
    }

    pub(super) fn data(&mut self) -> &mut [u8] {
        &mut self.0[HEAD_BYTES..]
    }

    /// The reply: `head`, which is at most 64 bytes long, before the data; and where it begins in
    /// the buffer, of which it is the rest.
    #[must_use]
    pub fn with_head(mut self, head: &[u8]) -> (Buffer, usize) {
        assert!(head.len() <= HEAD_BYTES, "heads of replies are short");
        let start = HEAD_BYTES - head.len();
        self.0[start..HEAD_BYTES].copy_from_slice(head);
        (self.0, start)
    }

    /// The memory, to be recycled.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.0
    }
}

impl Deref for ReadAnswer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0[HEAD_BYTES..]
    }
}

/// Where the bytes of a piece of a read go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The gathering, from [`Core::open_gathering`].
    pub gathering: u32,
    /// The first byte in it.
    pub at: u32,
}

/// Where a request's bytes go.
#[derive(Debug)]
pub(super) enum Destination {
    /// It brings none.
    Nowhere,
    /// A buffer of its own.
    Own(ReadAnswer),
    /// One that it shares with others.
    Shared(Place),
    /// The request was answered before its work ended: nobody takes them.
    TimedOut,
}

/// The answers of reads that come in pieces.
#[derive(Default)]
pub(super) struct Gatherings {
    places: Vec<Option<ReadAnswer>>,
    free: Vec<u32>,
}

impl Gatherings {
    /// The part of a gathering that begins at a place.
    pub(super) fn from(&mut self, place: Place) -> &mut [u8] {
        let answer = self.places[place.gathering as usize].as_mut();
        &mut answer.expect("a gathering is open while pieces fill it").data()[place.at as usize..]
    }
}

impl Core {
    /// Begins to gather the bytes of a read that will be asked for in pieces.
    pub fn open_gathering(&mut self, io: &mut dyn Io, length: usize) -> u32 {
        let answer = Some(ReadAnswer::new(io, length));
        if let Some(number) = self.gatherings.free.pop() {
            self.gatherings.places[number as usize] = answer;
            return number;
        }
        self.gatherings.places.push(answer);
        (self.gatherings.places.len() - 1) as u32
    }

    /// Takes what was gathered; all its pieces have ended.
    pub fn close_gathering(&mut self, number: u32) -> ReadAnswer {
        let answer = self.gatherings.places[number as usize].take();
        self.gatherings.free.push(number);
        answer.expect("a gathering is closed once")
    }
}
