//! What can be wrong with a trace, where, what stood there and what should have.
//!
//! How: a [`Fault`] is about one record and has a [`Reason`], so that a lenient reader can count
//! what it left out; a [`TraceError`] is what stops a reader or a writer.
//! Invariant: `found` never exceeds [`FOUND_CHARS_MAX`] characters, whatever the trace holds.
//! Cost: nothing while all is well; a fault is boxed.

use layby_types::ErrorKind;
use std::fmt;
use std::path::PathBuf;

/// Characters of the offending text that an error shows.
pub const FOUND_CHARS_MAX: usize = 60;

/// Why a record cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Too few or too many columns.
    Columns,
    /// A column holds no whole number of 64 bits, such as a negative offset.
    Number,
    /// The operation is none that the format knows.
    Operation,
    /// The time lies before that of the record before.
    Backwards,
    /// A read, write or trim of nothing.
    ZeroLength,
    /// The range is too long or ends too far out.
    Range,
    /// Text that is not UTF-8.
    Encoding,
    /// A line longer than any format writes.
    LongLine,
    /// The trace ends within a record.
    Truncated,
    /// More volumes than a trace may have.
    Volumes,
}

impl Reason {
    /// All reasons, in the order in which they are declared.
    pub const ALL: [Reason; 10] = [
        Reason::Columns,
        Reason::Number,
        Reason::Operation,
        Reason::Backwards,
        Reason::ZeroLength,
        Reason::Range,
        Reason::Encoding,
        Reason::LongLine,
        Reason::Truncated,
        Reason::Volumes,
    ];

    /// The reason in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Columns => "wrong columns",
            Reason::Number => "not a number",
            Reason::Operation => "unknown operation",
            Reason::Backwards => "time goes backwards",
            Reason::ZeroLength => "zero length",
            Reason::Range => "out of range",
            Reason::Encoding => "not UTF-8",
            Reason::LongLine => "line too long",
            Reason::Truncated => "truncated",
            Reason::Volumes => "too many volumes",
        }
    }
}

/// How many records a lenient reader left out, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped([u64; Reason::ALL.len()]);

impl Skipped {
    /// Counts one more.
    pub(crate) fn add(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }
    /// How many were left out for `reason`.
    #[must_use]
    pub fn count(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }
    /// How many were left out in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
    /// The reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        let all = Reason::ALL.into_iter().map(|reason| (reason, self.count(reason)));
        all.filter(|(_, count)| *count > 0)
    }
}

/// What is wrong with one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Why the record cannot be used.
    pub reason: Reason,
    /// Which part of the record it is about.
    pub column: &'static str,
    /// What stands there, shortened.
    pub found: String,
    /// What should.
    pub expected: &'static str,
}

impl Fault {
    /// A fault about `column`, where `found` stands.
    #[cold]
    pub(crate) fn new(
        reason: Reason,
        column: &'static str,
        found: &[u8],
        expected: &'static str,
    ) -> Box<Fault> {
        let is_text = std::str::from_utf8(found).is_ok();
        let reason = if is_text { reason } else { Reason::Encoding };
        Box::new(Fault { reason, column, found: shown(found), expected })
    }
    /// A fault about a number that was understood.
    #[cold]
    pub(crate) fn value(
        reason: Reason,
        column: &'static str,
        found: impl fmt::Display,
        expected: &'static str,
    ) -> Box<Fault> {
        Fault::new(reason, column, found.to_string().as_bytes(), expected)
    }
}

/// The beginning of `bytes` as text without control characters.
fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(4 * FOUND_CHARS_MAX)];
    let text = String::from_utf8_lossy(cut);
    let mut shown: String = text.chars().take(FOUND_CHARS_MAX - 1).collect();
    if shown.len() < bytes.len() && text.chars().count() >= FOUND_CHARS_MAX {
        shown.push('…');
    }
    shown.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { reason, column, found, expected } = self;
        write!(f, "{}: {column} is `{found}`, expected {expected}", reason.name())
    }
}

/// Where in a trace something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A line of a text, counted from 1.
    Line(u64),
    /// A byte of a binary trace as it is after decompression, counted from 0.
    Byte(u64),
    /// A row of a Parquet file, counted from 0.
    Row(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, "line {line}"),
            Place::Byte(byte) => write!(f, "byte {byte}"),
            Place::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// Why a trace cannot be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be opened or made.
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// Reading failed, or what is compressed is damaged.
    Read {
        /// How far the trace could be read: bytes after decompression.
        offset: u64,
        /// Why.
        cause: std::io::Error,
    },
    /// Writing failed.
    Write {
        /// Why.
        cause: std::io::Error,
    },
    /// A new trace is whole, and a file that came meanwhile has its name.
    Taken {
        /// The name.
        path: PathBuf,
        /// Where the new trace is.
        kept: PathBuf,
    },
    /// A record is wrong.
    Bad {
        /// Where it is.
        place: Place,
        /// What is wrong.
        fault: Box<Fault>,
    },
    /// Which format a file has cannot be told.
    Unsure {
        /// Which file.
        path: PathBuf,
        /// How it begins.
        found: String,
        /// The first byte that no text has.
        binary_at: Option<usize>,
    },
    /// The file is no sound Parquet, or not one of ours.
    Parquet {
        /// What is wrong.
        cause: String,
    },
    /// What is to be generated has a number out of its range.
    Generator {
        /// Which number, and its range.
        what: String,
    },
    /// Understood, but not offered.
    Unsupported {
        /// What is not offered, and what is.
        what: String,
    },
}

impl TraceError {
    /// What sort of failure this is, by remedy.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        use std::io::ErrorKind as Io;
        match self {
            TraceError::Open { cause, .. }
            | TraceError::Read { cause, .. }
            | TraceError::Write { cause } => match cause.kind() {
                Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
                Io::StorageFull | Io::QuotaExceeded => ErrorKind::Full,
                Io::InvalidData | Io::InvalidInput | Io::UnexpectedEof => ErrorKind::Corrupt,
                _ => ErrorKind::Retry,
            },
            TraceError::Bad { .. } | TraceError::Parquet { .. } => ErrorKind::Corrupt,
            TraceError::Unsure { .. } | TraceError::Generator { .. } | TraceError::Taken { .. } => {
                ErrorKind::Invalid
            }
            TraceError::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }
    /// A record at `place` is wrong.
    pub(crate) fn bad(place: Place, fault: Box<Fault>) -> TraceError {
        TraceError::Bad { place, fault }
    }
    /// The beginning of a file whose format cannot be told.
    pub(crate) fn unsure(path: PathBuf, head: &[u8]) -> TraceError {
        let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
        TraceError::Unsure { path, found: shown(line), binary_at: binary_at(head) }
    }
}

/// The first byte that no text has: a zero, or one that is not UTF-8. A character that the end of
/// what was read cuts is none.
fn binary_at(head: &[u8]) -> Option<usize> {
    let zero = head.iter().position(|byte| *byte == 0);
    let wrong = std::str::from_utf8(head).err();
    let wrong = wrong.filter(|wrong| wrong.error_len().is_some());
    zero.into_iter().chain(wrong.map(|wrong| wrong.valid_up_to())).min()
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::Open { path, cause } => write!(f, "`{}`: {cause}", path.display()),
            TraceError::Read { offset, cause } => write!(f, "after {offset} bytes: {cause}"),
            TraceError::Write { cause } => write!(f, "cannot write: {cause}"),
            TraceError::Taken { path, kept } => write!(
                f,
                "`{}` came while the trace was written, which is whole in `{}`",
                path.display(),
                kept.display()
            ),
            TraceError::Bad { place, fault } => write!(f, "{place}: {fault}"),
            TraceError::Unsure { path, binary_at: Some(at), .. } => write!(
                f,
                "`{}` is binary, as its byte {at} shows, and fits no format that is known by \
                 its contents",
                path.display()
            ),
            TraceError::Unsure { path, found, .. } if found.is_empty() => {
                write!(f, "`{}` is empty, or begins with an empty line", path.display())
            }
            TraceError::Unsure { path, found, .. } => {
                write!(f, "`{}` begins with `{found}`, which fits no format", path.display())
            }
            TraceError::Parquet { cause } => write!(f, "not a sound Parquet trace: {cause}"),
            TraceError::Generator { what } | TraceError::Unsupported { what } => f.write_str(what),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TraceError::Open { cause, .. }
            | TraceError::Read { cause, .. }
            | TraceError::Write { cause } => Some(cause),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a text is not called binary for a control character, or for its cut end. Method: texts
    /// with an escape and a vertical tab, a cut character, a zero, and bytes that are not UTF-8.
    #[test]
    fn a_text_with_controls_is_no_binary() {
        for text in [&b"\x1b[1mtime\x0b\n"[..], b"", "a\u{e9}".as_bytes(), b"a\xe2\x82"] {
            assert_eq!(binary_at(text), None, "{text:?}");
        }
        let binary = [&b"a\0\xff"[..], b"\n\xff\0", b"\xff"];
        assert_eq!(binary.map(binary_at), [Some(1), Some(1), Some(0)]);
        let error = TraceError::unsure("x".into(), b"\x1b[1mtime\n").to_string();
        assert!(error.contains("[1mtime") && !error.contains("binary"), "{error}");
    }
}
