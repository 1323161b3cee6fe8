//! The border between the engine and a ring of requests in memory that a guest shares.
//!
//! How: a [`GuestRing`] turns what a virtual machine put into its memory into [`Call`]s, and
//! results into its memory again; the engine knows when to look, and whom to wake.
//! Invariant: each call that [`GuestRing::take`] yields is ended once by [`GuestRing::finish`], but
//! for what a stop of the node ends and what was abandoned: that is in flight when the ring goes.
//! Not for: descriptors, sockets or threads; those belong to the engine and the daemon.

use crate::{Call, ErrorKind, Extent, SessionError};
use alloc::vec::Vec;

/// What a ring had to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing: everything that the guest made available was taken.
    Nothing,
    /// A request that the ring answered itself.
    Answered,
    /// A call for the volume; its range and flags are already checked against the volume.
    Call(Call),
}

/// One queue of a virtual machine's disk. Its memory is shared with a stranger, who may change any
/// byte at any time.
pub trait GuestRing: Send {
    /// Takes the next request; the bytes of a write go into `payload`, which comes empty.
    ///
    /// # Errors
    /// [`SessionError`] when the guest broke the ring, which is not to be touched again.
    fn take(&mut self, payload: &mut Vec<u8>) -> Result<Taken, SessionError>;
    /// Puts bytes of a read's answer into the guest's memory, from its byte `at` on.
    fn put(&mut self, call: &Call, at: u64, bytes: &[u8]);
    /// Takes the runs of a block-status call, before its end. Guests have no such request.
    fn put_extents(&mut self, call: &Call, extents: Vec<Extent>) {
        let _ = (call, extents);
    }
    /// Answers a call, after its bytes were put.
    ///
    /// # Errors
    /// [`SessionError`] when the ring's memory is gone.
    fn finish(&mut self, call: &Call, result: Result<(), ErrorKind>) -> Result<(), SessionError>;
    /// Asks the guest for a kick when it has more; true when it has more already.
    ///
    /// # Errors
    /// [`SessionError`] when the ring's memory is gone.
    fn listen(&mut self) -> Result<bool, SessionError>;
    /// Whether the guest wants to hear of what was finished since the last call of this.
    fn take_signal(&mut self) -> bool;
    /// Where in the ring the next request will be taken.
    fn base(&self) -> u16;
    /// Whether what is in flight when the ring goes is marked where its next server finds it and
    /// carries it out again.
    fn is_tracked(&self) -> bool {
        false
    }
}
