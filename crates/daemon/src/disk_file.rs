//! Opens what levels and volumes lie on: regular files and block devices, and nothing else.
//!
//! How: it is looked what the path is before it is opened, and again at what was opened, in a way
//! that waits for no pipe's other end.
//! Invariant: a pipe, a socket and a character device are refused unopened, since one may wait for
//! ever, and another does something when it is opened. Cost: two system calls more per file.
//! Where a character device is of use, as `/dev/null`, pipes alone are refused.
//! Not for: disks that a shard serves from; see [`layby_engine::io::open_disk`].

use rustix::fs::OFlags;
use std::fmt;
use std::fs::{File, FileType, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// What is at a path that is neither a file nor a block device.
#[derive(Debug)]
pub(crate) struct NoDisk(&'static str);

impl fmt::Display for NoDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is {}, and neither a file nor a block device", self.0)
    }
}

impl std::error::Error for NoDisk {}

/// Whether that was why something failed.
pub(crate) fn is_no_disk(cause: &Error) -> bool {
    let found = cause.get_ref().and_then(|cause| cause.downcast_ref::<NoDisk>());
    found.is_some()
}

/// Opens a file or block device to be read.
///
/// # Errors
/// The system's, or that it is something else.
pub(crate) fn open_to_read(path: &Path) -> Result<File> {
    open(path, File::options().read(true))
}

/// Opens a file or block device as `options` say, which may make a file.
///
/// # Errors
/// The system's, or that it is something else.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> Result<File> {
    // What is not there is the options' matter.
    if let Ok(found) = std::fs::metadata(path) {
        check(found.file_type())?;
    }
    let file = options.custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    check(file.metadata()?.file_type())?;
    Ok(file)
}

/// Whether nothing is at a path, not even a link that leads nowhere. What cannot be looked at is
/// taken to be there.
pub(crate) fn is_absent(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    // A file above it is no folder that has an entry of the name.
    let is_none = |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory);
    found.is_err_and(|cause| is_none(cause.kind()))
}

/// Refuses a pipe at a path, unopened: its other end may never come.
///
/// # Errors
/// That it is one.
pub(crate) fn refuse_pipe(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_fifo() => {
            Err(Error::new(ErrorKind::InvalidInput, "it is a pipe (FIFO), and no file"))
        }
        _ => Ok(()),
    }
}

fn check(found: FileType) -> Result<()> {
    let what = match found {
        found if found.is_file() || found.is_block_device() => return Ok(()),
        found if found.is_fifo() => "a pipe (FIFO)",
        found if found.is_socket() => "a socket",
        found if found.is_char_device() => "a character device",
        found if found.is_dir() => "a directory",
        _ => "something else",
    };
    Err(Error::new(ErrorKind::InvalidInput, NoDisk(what)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::error::ReportKind;
    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    /// A pipe, a socket, a character device and a directory, and how each is called; the socket
    /// stays as long as its listener.
    pub(crate) fn no_disks(folder: &Path) -> (Vec<(PathBuf, &'static str)>, UnixListener) {
        let [pipe, socket] = ["pipe", "socket"].map(|name| folder.join(name));
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &pipe, Kind::Fifo, mode, 0).expect("a pipe may be made");
        let listener = UnixListener::bind(&socket).expect("a socket may be made");
        let all = vec![
            (pipe, "a pipe"),
            (socket, "a socket"),
            ("/dev/null".into(), "a character device"),
            (folder.into(), "a directory"),
        ];
        (all, listener)
    }

    /// Goal: what is neither a file nor a block device is refused at once, by its name, however it
    /// is to be opened; a file is opened and made. Method: one of each, read, written, made.
    #[test]
    fn what_is_no_disk_is_refused() {
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let (paths, _listener) = no_disks(folder.path());
        let mut ways: [OpenOptions; 4] = std::array::from_fn(|_| File::options());
        ways[0].read(true);
        ways[1].write(true);
        ways[2].read(true).write(true);
        ways[3].read(true).write(true).create(true).truncate(false);
        for (path, what) in &paths {
            for way in &mut ways {
                let refused = open(path, way).expect_err(what);
                assert!(refused.to_string().contains(what), "{refused}");
                assert_eq!(ReportKind::from(&refused), ReportKind::Invalid, "{refused}");
            }
        }
        let file = folder.path().join("file");
        let absent = open(&file, &mut ways[0]).expect_err("it is not there");
        assert_eq!(absent.kind(), ErrorKind::NotFound);
        for way in ways.iter_mut().rev() {
            open(&file, way).expect("the last way makes it");
        }
    }
}
