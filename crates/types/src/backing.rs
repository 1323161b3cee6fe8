//! A volume's home below every cache level: a file, a block device, later an object store.

use crate::ErrorKind;
use alloc::vec::Vec;

/// What is asked of a backing store. Offsets and lengths are multiples of the node's block size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackingOperation {
    /// Return `length` bytes from `offset`; unwritten ranges are zeros.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes wanted.
        length: u64,
    },
    /// Replace the bytes at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// New contents.
        data: Vec<u8>,
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
    /// Make every completed write and zeroing durable.
    Sync,
}

/// One call with the caller's mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingCall {
    /// Returned with the answer.
    pub token: u64,
    /// What is asked.
    pub operation: BackingOperation,
}

/// A finished call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingDone {
    /// The caller's mark.
    pub token: u64,
    /// The data of a read (empty otherwise), or why it failed.
    pub result: Result<Vec<u8>, ErrorKind>,
}

/// Submit and poll; calls may finish in any order, so a caller orders what it needs ordered.
pub trait Backing {
    /// Starts a call.
    fn submit(&mut self, call: BackingCall);
    /// Takes one finished call, if there is one now.
    fn poll(&mut self) -> Option<BackingDone>;
}
