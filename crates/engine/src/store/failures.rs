//! What a level's device has failed to do.
//!
//! How: a store tells each operation that failed, with its place and the system's error; from then
//! on each of that kind that ends well, too, until its owner says that it has been told enough.
//! Tests of suspect segments and discards are left out: these say nothing of what is stored.
//! Invariant: a kind whose last end was bad is open.
//! Cost: a flag per end, while all ends well. Not for: bytes that are not what was written.

use super::StoreEvent;
use super::log::LogStore;
use crate::io::{IoError, OperationKind};

/// An operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFailure {
    /// A read, a write or a sync.
    pub operation: OperationKind,
    /// Its first byte on the disk; none of a sync.
    pub offset: u64,
    /// Its bytes; none of a sync.
    pub length: u64,
    /// The system's error.
    pub error: IoError,
}

/// The kinds of operations that failed and were not forgiven.
#[derive(Debug, Default)]
pub(super) struct Failures {
    open: Vec<OperationKind>,
}

impl Failures {
    /// An operation has ended.
    pub(super) fn note_end(
        &mut self,
        operation: OperationKind,
        (offset, length): (u64, u64),
        error: Option<IoError>,
        events: &mut Vec<StoreEvent>,
    ) {
        let is_open = self.open.contains(&operation);
        if let Some(error) = error {
            if !is_open {
                self.open.push(operation);
            }
            let failure = DeviceFailure { operation, offset, length, error };
            events.push(StoreEvent::DeviceFailed(failure));
        } else if is_open {
            events.push(StoreEvent::DeviceWorks(operation));
        }
    }

    /// That operations of the kind end well is not told any more.
    pub(super) fn forgive(&mut self, operation: OperationKind) {
        self.open.retain(|open| *open != operation);
    }
}

impl LogStore {
    /// Notes the end of an operation on `blocks` blocks from `location` on.
    pub(super) fn note_end(
        &mut self,
        operation: OperationKind,
        (location, blocks): (u32, u32),
        result: Result<usize, IoError>,
    ) {
        let length = u64::from(blocks) * u64::from(self.geometry.block_bytes);
        let offset = if blocks == 0 { 0 } else { self.offset_of(location) };
        self.failures.note_end(operation, (offset, length), result.err(), &mut self.events);
    }

    /// That operations of the kind end well is not told any more, until one fails again.
    pub fn forgive(&mut self, operation: OperationKind) {
        self.failures.forgive(operation);
    }
}
