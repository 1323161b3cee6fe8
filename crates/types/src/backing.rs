//! A volume's home below every cache level: a file, a block device, later an object store.

use crate::ErrorKind;
use alloc::vec::Vec;
use core::ops::Range;

/// What is asked of a backing store. Offsets and lengths are multiples of the node's block size.
#[derive(Debug, PartialEq, Eq)]
pub enum BackingOperation<B> {
    /// Fill the buffer from `offset`; unwritten ranges are zeros.
    Read {
        /// First byte.
        offset: u64,
        /// To be filled whole.
        buffer: B,
    },
    /// The same, where the store has the bytes at hand without asking anybody far away; else the
    /// call ends with `Retry` at once. See [`Backing::poll_at_hand`].
    ReadAtHand {
        /// First byte.
        offset: u64,
        /// To be filled whole.
        buffer: B,
    },
    /// Replace the bytes at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// New contents.
        buffer: B,
        /// The bytes survive power loss once the call is done.
        durable: bool,
    },
    /// Make the range read as zeros; with `keep_allocated` its room stays reserved.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Keep the room reserved.
        keep_allocated: bool,
    },
    /// Say which runs of the range hold data.
    Extents {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Make every completed write and zeroing durable.
    Sync,
}

/// A finished call.
#[derive(Debug, PartialEq, Eq)]
pub struct BackingDone<B> {
    /// The caller's mark.
    pub token: u64,
    /// Whether it was done.
    pub result: Result<(), ErrorKind>,
    /// The call's buffer, if it had one.
    pub buffer: Option<B>,
    /// The answer to `Extents`: offset, length, and whether the run holds data.
    pub extents: Vec<(u64, u64, bool)>,
}

/// Submit and poll; calls may finish in any order, so a caller orders what it needs ordered.
///
/// `B` is the caller's kind of buffer, moved in and handed back with the end of a read or a write,
/// failed or not; after a write it still holds what was written. No method waits for a device or a
/// network.
pub trait Backing<B> {
    /// Starts a call under the caller's mark.
    fn submit(&mut self, token: u64, operation: BackingOperation<B>);
    /// Takes one finished call, if there is one now.
    fn poll(&mut self) -> Option<BackingDone<B>>;
    /// Takes a range of bytes that the store has at hand for a moment, since it came along with
    /// what was asked, if there is one: [`BackingOperation::ReadAtHand`] gets it. Nothing is owed
    /// to who does not.
    fn poll_at_hand(&mut self) -> Option<Range<u64>> {
        None
    }
    /// A name for reports.
    fn name(&self) -> &str;
    /// Gives the store another length, in bytes; what is added reads as zeros.
    ///
    /// # Errors
    /// `Unsupported` where the length is fixed, else why it stays as it was.
    fn resize(&mut self, length: u64) -> Result<(), ErrorKind> {
        let _ = length;
        Err(ErrorKind::Unsupported)
    }
    /// Somebody else writes the store by now: whatever was read of it before is of the past and is
    /// served no more, and all calls fail.
    fn is_closed(&self) -> bool {
        false
    }
    /// The caller stops, or gives the store up: calls that wait for something far away end soon,
    /// with an error. What was accepted stays accepted, and a later `Sync` makes it durable.
    fn stop_waiting(&mut self) {}
    /// Reads in flight that reach behind byte `from` and wait for something far away end soon, with
    /// an error; what comes for them later is of no use. Other calls, and later ones, go on.
    fn give_up_reads(&mut self, from: u64) {
        let _ = from;
    }
}
