//! What all implementations of [`Io`](super::Io) ask of an operation before they start it.
//!
//! How: one range check, and the answers built from an operation's parts.
//! Invariant: a write that does not lie wholly on its disk is refused the same way everywhere.
//! Cost: comparisons only.
//! Not for: doing I/O.

use super::{Buffer, DiskId, IoDone, IoError, IoOperation, Token};
use rustix::io::Errno;

/// What an operation does, without its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    /// [`IoOperation::Read`].
    Read,
    /// [`IoOperation::Write`].
    Write,
    /// [`IoOperation::Sync`].
    Sync,
    /// [`IoOperation::Zero`].
    Zero,
    /// [`IoOperation::Discard`].
    Discard,
    /// [`IoOperation::Extents`].
    Extents,
    /// [`IoOperation::Receive`].
    Receive,
    /// [`IoOperation::Send`].
    Send,
    /// [`IoOperation::Await`].
    Await,
}

impl IoOperation {
    /// What it does.
    #[must_use]
    pub fn kind(&self) -> OperationKind {
        match self {
            IoOperation::Read { .. } => OperationKind::Read,
            IoOperation::Write { .. } => OperationKind::Write,
            IoOperation::Sync { .. } => OperationKind::Sync,
            IoOperation::Zero { .. } => OperationKind::Zero,
            IoOperation::Discard { .. } => OperationKind::Discard,
            IoOperation::Extents { .. } => OperationKind::Extents,
            IoOperation::Receive { .. } => OperationKind::Receive,
            IoOperation::Send { .. } => OperationKind::Send,
            IoOperation::Await { .. } => OperationKind::Await,
        }
    }

    /// Whether it is a read or a write, whose work has a bound.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        matches!(self, IoOperation::Read { .. } | IoOperation::Write { .. })
    }

    /// The disk it concerns, if any.
    #[must_use]
    pub fn disk(&self) -> Option<DiskId> {
        match self {
            IoOperation::Read { disk, .. }
            | IoOperation::Write { disk, .. }
            | IoOperation::Sync { disk }
            | IoOperation::Zero { disk, .. }
            | IoOperation::Discard { disk, .. }
            | IoOperation::Extents { disk, .. } => Some(*disk),
            IoOperation::Receive { .. } | IoOperation::Send { .. } | IoOperation::Await { .. } => {
                None
            }
        }
    }

    /// Its buffer, if it has one.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            IoOperation::Read { buffer, .. }
            | IoOperation::Write { buffer, .. }
            | IoOperation::Receive { buffer, .. }
            | IoOperation::Send { buffer, .. } => Some(buffer),
            IoOperation::Sync { .. }
            | IoOperation::Zero { .. }
            | IoOperation::Discard { .. }
            | IoOperation::Extents { .. }
            | IoOperation::Await { .. } => None,
        }
    }

    /// Refuses what could never succeed: changes past the end of the disk, empty socket ranges.
    pub(crate) fn check(&self, disk_length: u64) -> Result<(), IoError> {
        let fits = |offset: u64, length: u64| {
            offset.checked_add(length).is_some_and(|end| end <= disk_length)
        };
        let valid = match self {
            IoOperation::Write { offset, buffer, .. } => fits(*offset, buffer.len() as u64),
            IoOperation::Zero { offset, length, .. }
            | IoOperation::Discard { offset, length, .. }
            | IoOperation::Extents { offset, length, .. } => fits(*offset, *length),
            IoOperation::Read { offset, buffer, .. } => {
                offset.checked_add(buffer.len() as u64).is_some()
            }
            IoOperation::Receive { buffer, filled, end, .. } => {
                filled < end && *end <= buffer.len()
            }
            IoOperation::Send { buffer, start, end, .. } => start < end && *end <= buffer.len(),
            IoOperation::Sync { .. } | IoOperation::Await { .. } => true,
        };
        if valid { Ok(()) } else { Err(Errno::INVAL.into()) }
    }
}

impl IoDone {
    /// An end without extents.
    pub(crate) fn new(
        token: Token,
        result: Result<usize, IoError>,
        buffer: Option<Buffer>,
    ) -> IoDone {
        IoDone { token, result, buffer, extents: Vec::new(), is_sync_failed: false }
    }
}

impl From<Errno> for IoError {
    fn from(errno: Errno) -> Self {
        IoError { errno: errno.raw_os_error() }
    }
}

impl std::fmt::Display for IoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", Errno::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for IoError {}
