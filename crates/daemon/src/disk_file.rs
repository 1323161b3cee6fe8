//! Opens what levels and volumes lie on: regular files and block devices, and nothing else.
//!
//! How: it is looked what the path is before it is opened, and again at what was opened, in a way
//! that waits for no pipe's other end.
//! Invariant: a pipe, a socket and a character device are refused unopened, since one may wait for
//! ever, and another does something when it is opened. Where a character device is of use, as
//! `/dev/null`, pipes alone are refused. No file is made among the device nodes in `/dev`: it would
//! lie in memory, in the place of a device that is missing.
//! Cost: two system calls more per file.
//! Not for: disks that a shard serves from; see [`layby_engine::io::open_disk`].

use rustix::fs::OFlags;
use std::fmt;
use std::fs::{File, FileType, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
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

/// A device that is not there, and no file is to be made in its place.
#[derive(Debug)]
pub(crate) struct NoDevice;

impl fmt::Display for NoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the device is not there, and a file in /dev would be lost with the machine")
    }
}

impl std::error::Error for NoDevice {}

/// What to do where a device is not there.
pub(crate) const HINT_NO_DEVICE: &str =
    "attach the device, or name one that is there: `ls -l /dev/disk/by-id` lists them";

/// Whether a missing device was why something failed.
pub(crate) fn is_no_device(cause: &Error) -> bool {
    cause.get_ref().is_some_and(|cause| cause.downcast_ref::<NoDevice>().is_some())
}

/// Refuses to make a file where only device nodes belong. Looks at paths.
///
/// # Errors
/// That the device is not there, where the path, links followed, leads into `/dev`.
pub(crate) fn check_new(path: &Path) -> Result<()> {
    match leads_into(path, Path::new("/dev")) {
        true => Err(Error::new(ErrorKind::NotFound, NoDevice)),
        false => Ok(()),
    }
}

/// Links that are followed at most, as by the kernel.
const LINKS_MAX: usize = 40;

/// Whether something that is made at `path` would be in `folder`, on its own file system: what is
/// mounted below it, as `/dev/shm` is, is another place.
fn leads_into(path: &Path, folder: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let Ok(folder) = folder.canonicalize() else { return false };
    let mut at = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..LINKS_MAX {
        let mut parents = at.ancestors().skip(1);
        let Some(parent) = parents.find_map(|parent| parent.canonicalize().ok()) else { break };
        if parent.starts_with(&folder) && device(&parent) == device(&folder) {
            return true;
        }
        // A link to nothing: a file would be made where it leads.
        let Ok(target) = std::fs::read_link(&at) else { break };
        at = parent.join(target);
    }
    false
}

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
        check_new(&file).expect("no device belongs there");
        let absent = open(&file, &mut ways[0]).expect_err("it is not there");
        assert_eq!(absent.kind(), ErrorKind::NotFound);
        for way in ways.iter_mut().rev() {
            open(&file, way).expect("the last way makes it");
        }
    }

    /// Goal: no file is made among device nodes, however the path leads there; what is mounted
    /// below them, and what only sounds like it, is free. Method: paths into a folder, by itself,
    /// by links to a file and to a folder and by folders that are not there; `/dev` and `/dev/shm`.
    #[test]
    fn no_file_is_made_among_devices() {
        use std::os::unix::fs::symlink;
        let base = tempfile::TempDir::new().expect("a temporary directory");
        let place = |name: &str| base.path().join(name);
        std::fs::create_dir_all(place("dev/disk")).expect("a writable directory");
        for (to, link) in [
            ("dev/missing", "link"),
            ("link", "chain"),
            ("dev/disk", "folder"),
            ("elsewhere", "dev/out"),
            ("round", "round"),
        ] {
            symlink(place(to), place(link)).expect("a writable directory");
        }
        symlink("../dev/sub/../x", place("dev/relative")).expect("a writable directory");
        let leads = |name: &str| leads_into(&place(name), &place("dev"));
        for device in [
            "dev/x",
            "dev/disk/by-id/x",
            "dev/no/such/folder/x",
            "link",
            "chain",
            "folder/x",
            "dev/relative",
        ] {
            assert!(leads(device), "{device}");
        }
        for file in ["x", "device/x", "no/such/x", "dev/../x", "round"] {
            assert!(!leads(file), "{file}");
        }
        let refused = check_new(Path::new("/dev/layby-no-such-device")).expect_err("no device");
        assert!(is_no_device(&refused), "{refused}");
        assert_eq!(ReportKind::from(&refused), ReportKind::NotFound);
        let shm = [Path::new("/dev"), Path::new("/dev/shm")].map(std::fs::metadata);
        if let [Ok(devices), Ok(shm)] = shm
            && devices.dev() != shm.dev()
        {
            check_new(Path::new("/dev/shm/x")).expect("memory that was chosen");
        }
    }
}
