//! The one form in which Layby tells a person what went wrong.
//!
//! How: a [`Report`] answers four questions, a line each: what happened, why, what state the data
//! is in, and what to do. Its [`ReportKind`] decides the exit code of the program and the status of
//! an HTTP answer, so the same fault looks the same wherever it is met.
//! Invariant: `error` is never empty; lines hold no line breaks but in `cause`, where an offending
//! line of a file may be shown.
//! Not for: errors that code reacts to; those are enums of their rooms.

use layby_types::ErrorKind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What sort of failure a [`Report`] is, by what the reader can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportKind {
    /// Something failed that no other kind describes.
    Failure,
    /// The words, the configuration or the request are wrong.
    Invalid,
    /// Stored data is unsound.
    Corrupt,
    /// Somebody else holds what is needed: a directory, a port, a name.
    InUse,
    /// No node answers.
    Unreachable,
    /// The thing named does not exist.
    NotFound,
    /// The caller, or the node's user, may not do this.
    Denied,
    /// There is no room.
    Full,
}

impl ReportKind {
    /// The program's exit code; `layby --help` lists the same numbers.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            ReportKind::Failure => 1,
            ReportKind::Invalid => 2,
            ReportKind::Corrupt => 3,
            ReportKind::InUse => 4,
            ReportKind::Unreachable => 5,
            ReportKind::NotFound => 6,
            ReportKind::Denied => 7,
            ReportKind::Full => 8,
        }
    }
    /// The status of an HTTP answer that carries the report.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        match self {
            ReportKind::Failure | ReportKind::Corrupt => 500,
            ReportKind::Invalid => 400,
            ReportKind::InUse => 409,
            ReportKind::Unreachable => 503,
            ReportKind::NotFound => 404,
            ReportKind::Denied => 403,
            ReportKind::Full => 507,
        }
    }
}

impl From<ErrorKind> for ReportKind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Retry | ErrorKind::Unwritable => ReportKind::Failure,
            ErrorKind::Invalid | ErrorKind::Unsupported => ReportKind::Invalid,
            ErrorKind::Full => ReportKind::Full,
            ErrorKind::Corrupt => ReportKind::Corrupt,
            ErrorKind::Closed => ReportKind::Unreachable,
            ErrorKind::Denied => ReportKind::Denied,
        }
    }
}

impl From<&std::io::Error> for ReportKind {
    fn from(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        match error.kind() {
            _ if crate::disk_file::is_no_disk(error) => ReportKind::Invalid,
            _ if crate::disk_file::is_no_device(error) => ReportKind::NotFound,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => ReportKind::Denied,
            Io::AddrInUse => ReportKind::InUse,
            Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => ReportKind::Full,
            Io::ConnectionRefused | Io::ConnectionReset => ReportKind::Unreachable,
            _ => ReportKind::Failure,
        }
    }
}

/// What happened, why, what state the data is in, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Report {
    /// Sorted by remedy.
    pub kind: ReportKind,
    /// What happened, as seen by the person who asked.
    pub error: String,
    /// Why.
    pub cause: String,
    /// What state the data is in.
    pub state: String,
    /// What to do.
    pub hint: String,
}

impl Report {
    /// A report with its first line; the others follow by [`Report::cause`] and its neighbours.
    #[must_use]
    pub fn new(kind: ReportKind, error: impl Into<String>) -> Self {
        let empty = String::new;
        Report { kind, error: error.into(), cause: empty(), state: empty(), hint: empty() }
    }
    /// A system call on `what` failed.
    #[must_use]
    pub fn from_io(error: impl Into<String>, cause: &std::io::Error) -> Self {
        Report::new(ReportKind::from(cause), error).cause(cause.to_string())
    }
    /// Says why.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = cause.into();
        self
    }
    /// Says what state the data is in.
    #[must_use]
    pub fn state(mut self, state: impl Into<String>) -> Self {
        self.state = state.into();
        self
    }
    /// Says what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
    /// Says what state the data is in, unless that has been said already.
    #[must_use]
    pub fn state_or(mut self, state: &str) -> Self {
        if self.state.is_empty() {
            self.state = state.to_owned();
        }
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.error)?;
        for (word, text) in [("cause", &self.cause), ("state", &self.state), ("hint", &self.hint)] {
            if !text.is_empty() {
                write!(f, "\n{word}: {text}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [ReportKind; 8] = [
        ReportKind::Failure,
        ReportKind::Invalid,
        ReportKind::Corrupt,
        ReportKind::InUse,
        ReportKind::Unreachable,
        ReportKind::NotFound,
        ReportKind::Denied,
        ReportKind::Full,
    ];

    /// Goal: a report reads as the style asks, without empty lines. Method: one full, one bare.
    #[test]
    fn report_prints_four_lines() {
        let full = Report::new(ReportKind::Failure, "cannot x").cause("c").state("s").hint("h");
        assert_eq!(full.to_string(), "error: cannot x\ncause: c\nstate: s\nhint: h");
        assert_eq!(Report::new(ReportKind::Full, "bare").to_string(), "error: bare");
    }

    /// Goal: exit codes are a promise to scripts. Method: the whole table, frozen.
    #[test]
    fn exit_codes_are_fixed() {
        assert_eq!(KINDS.map(ReportKind::exit_code), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    /// Goal: a service manager repeats a start only where that alone may help. Method: the line of
    /// the unit in `contrib/` beside the kinds that want an operator first.
    #[test]
    fn the_unit_repeats_what_may_pass_by_itself() {
        let unit = include_str!("../../../contrib/systemd/layby.service");
        let setting = "RestartPreventExitStatus=";
        let codes = unit.lines().find_map(|line| line.strip_prefix(setting));
        let codes: Vec<u8> = codes
            .expect("the unit has the setting")
            .split(' ')
            .map(|code| code.parse().expect("a number"))
            .collect();
        let passes_by_itself = [ReportKind::Failure, ReportKind::Unreachable, ReportKind::NotFound];
        let wants_an_operator = KINDS.iter().filter(|kind| !passes_by_itself.contains(kind));
        assert_eq!(codes, wants_an_operator.map(|kind| kind.exit_code()).collect::<Vec<u8>>());
    }

    /// Goal: a client rebuilds the report that the node sent. Method: a trip through JSON.
    #[test]
    fn report_survives_json() {
        for kind in KINDS {
            let report = Report::new(kind, "e").cause("c");
            let json = serde_json::to_string(&report).expect("plain strings always serialise");
            assert_eq!(serde_json::from_str::<Report>(&json).ok(), Some(report));
        }
    }
}
