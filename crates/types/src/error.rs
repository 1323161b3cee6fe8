//! What went wrong, sorted by remedy rather than by cause.

use core::fmt;

/// The kind of an operating error, chosen by what the receiver should do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// A passing fault: the same call may succeed later.
    Retry,
    /// The call itself is wrong (range, flag, alignment); repeating it will not help.
    Invalid,
    /// There is no room for it; nothing was changed.
    Full,
    /// Stored bytes do not match their checksum, or the device cannot return them.
    Corrupt,
    /// The device or file below did not take what was to be written, and names no reason that has a
    /// kind of its own; nothing that is stored is damaged by that.
    Unwritable,
    /// The volume, node or peer is shutting down or gone.
    Closed,
    /// Understood, but not offered here.
    Unsupported,
    /// The caller may not do this (read-only volume, not on the allow-list).
    Denied,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Retry => "temporarily unavailable",
            ErrorKind::Invalid => "invalid request",
            ErrorKind::Full => "no space left",
            ErrorKind::Corrupt => "stored data is unreadable or corrupt",
            ErrorKind::Unwritable => "the device or file does not take writes",
            ErrorKind::Closed => "closed",
            ErrorKind::Unsupported => "not supported",
            ErrorKind::Denied => "not permitted",
        })
    }
}

impl core::error::Error for ErrorKind {}
