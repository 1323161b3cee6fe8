//! `-` for standard input, where a trace or another file is read.
//!
//! How: it is opened by its name in `/dev`. What is read twice and can be read once only, such as a
//! pipe, is kept in a file without a name first, in the folder for temporary files.
//! Invariant: nothing else is read from standard input; a kept file goes with the process.
//! Cost: keeping takes as much room as the input. Not for: what is written.

use layby_daemon::config::STDIN;
use layby_daemon::error::Report;
use std::fs::File;
use std::io::IsTerminal as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// Where what is written as `path` can be opened.
pub(crate) fn place(path: &Path) -> PathBuf {
    if path.as_os_str() == STDIN { "/dev/stdin".into() } else { path.to_owned() }
}

/// What can be opened again, where `path` can be read once only.
///
/// # Errors
/// A report when it cannot be kept.
pub(crate) fn keep(path: &Path) -> Result<Option<File>, Report> {
    let place = place(path);
    if !is_read_once(&place) {
        return Ok(None);
    }
    let kept = || -> std::io::Result<File> {
        let mut input = File::open(&place)?;
        let mut kept = tempfile::tempfile()?;
        std::io::copy(&mut input, &mut kept)?;
        Ok(kept)
    };
    let kept = kept().map_err(|cause| {
        Report::from_io(format!("cannot read `{}` twice", path.display()), &cause)
            .state("nothing was changed")
            .hint("what can be read once is kept in TMPDIR meanwhile; name a file to read it there")
    })?;
    Ok(Some(kept))
}

/// Whether what is read there is gone then: a pipe, a socket, what a person types.
fn is_read_once(place: &Path) -> bool {
    let Ok(kind) = std::fs::metadata(place).map(|found| found.file_type()) else { return false };
    let is_typed = || File::open(place).is_ok_and(|file| file.is_terminal());
    kind.is_fifo() || kind.is_socket() || (kind.is_char_device() && is_typed())
}

/// Where a kept file can be opened, from its beginning.
pub(crate) fn place_of(kept: &File) -> PathBuf {
    format!("/proc/self/fd/{}", kept.as_raw_fd()).into()
}
