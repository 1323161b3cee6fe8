//! What a log has written and found since it was opened.
//!
//! How: the log counts, metrics and `status` copy. Invariant: none; nothing is decided by them.

use super::STREAMS;

/// Running totals, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Bytes of batches written, descriptors included.
    pub bytes_written: u64,
    /// Bytes of data that callers appended.
    pub bytes_appended: u64,
    /// Bytes of data that cleaning copied.
    pub bytes_relocated: u64,
    /// Bytes of data written, by [`Stream`].
    pub bytes_by_stream: [u64; STREAMS],
    /// Bytes of checkpoints written.
    pub bytes_checkpoint: u64,
    /// Batches written.
    pub batches: u64,
    /// Disk syncs.
    pub syncs: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Of these, increments.
    pub checkpoint_increments: u64,
    /// Segments emptied by cleaning.
    pub segments_cleaned: u64,
    /// Blocks found corrupt.
    pub corrupt_blocks: u64,
    /// Write errors.
    pub write_errors: u64,
}

impl LogCounters {
    /// All bytes written to the device.
    #[must_use]
    pub fn bytes_device(&self) -> u64 {
        self.bytes_written + self.bytes_checkpoint
    }

    /// Of these, bytes of headers, descriptors and forgets.
    #[must_use]
    pub fn bytes_descriptors(&self) -> u64 {
        self.bytes_written - self.bytes_by_stream.iter().sum::<u64>()
    }
}
