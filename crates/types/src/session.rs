//! The border between the engine, which moves bytes, and a protocol, which gives them meaning.
//!
//! How: the engine owns sockets and buffers; a [`Session`] turns received bytes into [`Call`]s and
//! results into reply bytes. Neither knows the other's room.
//! Invariant: each call the session yields is answered once by one of the `reply_…` methods.

use crate::{Call, ErrorKind, Extent};
use alloc::vec::Vec;

/// What the front of the received bytes amounts to.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'bytes> {
    /// Not yet a whole message; nothing was consumed. At least `wanted` bytes are needed in all.
    Incomplete {
        /// Total bytes needed before another try can make progress.
        wanted: usize,
    },
    /// A call for the volume; `payload` is empty unless it is a write.
    Call {
        /// Bytes to drop from the front, payload included.
        consumed: usize,
        /// What is asked. Range and flags are already checked against the export.
        call: Call,
        /// The data of a write.
        payload: &'bytes [u8],
    },
    /// A message that the session answered itself (an error reply was put into `out`).
    Answered {
        /// Bytes to drop from the front.
        consumed: usize,
    },
    /// The client said goodbye: finish what is in flight, then close.
    Goodbye,
}

/// The peer broke the protocol beyond an error reply; the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionError {
    /// What the peer did, as a sentence for the log.
    pub reason: &'static str,
}

/// A protocol's transmission phase, free of sockets and of time.
pub trait Session {
    /// Reads one message off the front of `bytes`; error replies go to `out`.
    ///
    /// # Errors
    /// [`SessionError`] when the stream can no longer be followed.
    fn parse<'bytes>(
        &mut self,
        bytes: &'bytes [u8],
        out: &mut Vec<u8>,
    ) -> Result<Parsed<'bytes>, SessionError>;
    /// Whether a goodbye is among the messages in `bytes`, the next of which `parse` would read.
    fn says_goodbye(&self, bytes: &[u8]) -> bool {
        let _ = bytes;
        false
    }
    /// Puts the head of a successful read reply into `out`; exactly `call.length` bytes follow.
    fn reply_read_head(&mut self, call: &Call, out: &mut Vec<u8>);
    /// Answers a call that returns no data.
    fn reply_done(&mut self, call: &Call, out: &mut Vec<u8>);
    /// Answers a block-status call; `extents` begin at `call.offset` and are not empty.
    fn reply_extents(&mut self, call: &Call, extents: &[Extent], out: &mut Vec<u8>);
    /// Answers any call with an error.
    fn reply_error(&mut self, call: &Call, kind: ErrorKind, out: &mut Vec<u8>);
}

/// Encryption of a connection's bytes, free of sockets.
pub trait Cipher: Send {
    /// Decrypts what arrived, appending clear bytes to `clear`; returns false when the peer closed.
    ///
    /// # Errors
    /// [`SessionError`] when the bytes fail authentication or are no records at all.
    fn open(&mut self, wire: &[u8], clear: &mut Vec<u8>) -> Result<bool, SessionError>;
    /// Encrypts `clear`, appending records to `wire`.
    ///
    /// # Errors
    /// [`SessionError`] when the connection can no longer encrypt.
    fn seal(&mut self, clear: &[u8], wire: &mut Vec<u8>) -> Result<(), SessionError>;
}
