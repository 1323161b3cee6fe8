//! What a trace is made of: records, and the reader that hands them out batch by batch.
//!
//! How: the caller owns the batch and passes it to [`Reader::fill`] again and again, so that a
//! virtual call is paid once per batch and nothing is allocated per record.
//! Invariant: records of a reader never go back in time; a record's range never wraps; only a
//! flush has no length.
//! Cost: a record is 32 bytes; a batch of [`BATCH_RECORDS_MAX`] stays within a core's second cache.
//! Not for: random access. A trace is read from its beginning.

use crate::{Skipped, TraceError};
use layby_types::{Nanos, Operation, VolumeId};

/// Records that [`Reader::fill`] adds at most, but for the blocks of the last line of an ARC list.
pub const BATCH_RECORDS_MAX: usize = 8192;
/// No range of a block device ends behind this byte: 64 PiB, what a block key can name.
pub const RANGE_END_MAX: u64 = 1 << 56;
/// Bytes of one read or write at most. A trim may be longer.
pub const LENGTH_MAX: u64 = 1 << 30;
/// Volumes of one trace at most.
pub const VOLUMES_MAX: usize = 65_536;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// When it was made. Counts from the trace's own beginning, or from its first record where the
    /// trace tells the time of day.
    pub at: Nanos,
    /// Which volume; volumes are numbered in the order in which the trace names them.
    pub volume: VolumeId,
    /// `Read`, `Write`, `Trim` or `Flush`.
    pub operation: Operation,
    /// The first byte, or the object's identifier: see [`Unit`].
    pub offset: u64,
    /// Bytes of the range or size of the object; zero for a flush and never else.
    pub length: u64,
}

/// What offsets of a trace are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// Bytes of a block device.
    Bytes,
    /// Identifiers of objects; the length is the object's size.
    Objects,
}

/// A stream of records in the order of their time.
pub trait Reader {
    /// Replaces the contents of `batch` with the next records and says how many there are; zero at
    /// the end, and ever after.
    ///
    /// # Errors
    /// [`TraceError`] with the place of what is wrong. `batch` then holds the records before it,
    /// and the reader is at its end.
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<usize, TraceError>;
    /// What offsets are.
    fn unit(&self) -> Unit;
    /// What was left out so far, by reason; always empty unless the reader is lenient.
    fn skipped(&self) -> Skipped;
    /// Names of the volumes seen so far, by number. Empty where the format names none: then all
    /// records are of volume 0, or bear their numbers as they are.
    fn volumes(&self) -> &[String];
    /// Whether the last line was read and has no end: a number there may be cut short.
    fn has_open_end(&self) -> bool {
        false
    }
}

/// A request from a trace may be read under these conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Leave out what is wrong and count it, rather than stop.
    pub lenient: bool,
    /// Which events of blkparse text are requests.
    pub event: BlockEvent,
}

/// Which lines of blkparse text become records; one request has a line for each event of its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockEvent {
    /// `Q`: as the request entered the block layer, before merging.
    #[default]
    Queue,
    /// `C`: as the device completed it, after merging.
    Complete,
}
