//! A volume as its users see it: submit, then poll.

use crate::{Call, ErrorKind, RequestId};
use alloc::vec::Vec;

/// A finished request.
#[derive(Debug, PartialEq, Eq)]
pub struct VolumeDone {
    /// Which request.
    pub request: RequestId,
    /// The data of a read (empty otherwise), or why it failed.
    pub result: Result<Vec<u8>, ErrorKind>,
}

/// Something that answers calls on one address space: the node's shard, or a model in a test.
///
/// Every submitted request comes out of [`Volume::poll`] exactly once.
pub trait Volume {
    /// Starts `call`; `payload` holds `call.length` bytes for a write and nothing otherwise.
    fn submit(&mut self, call: Call, payload: &[u8]) -> RequestId;
    /// Takes one finished request, if there is one now.
    fn poll(&mut self) -> Option<VolumeDone>;
}
