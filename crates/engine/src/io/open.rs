//! Opens regular files and block devices as disks of a real host.
//!
//! How: a disk may have two descriptors of one file. Aligned operations go through the one opened
//! with `O_DIRECT`, everything else, and everything where that is refused, through the page cache.
//! Invariant: an open disk holds an exclusive lock, so no two nodes write the same bytes; a created
//! file is durable in its directory before this returns, with its room reserved if so asked.
//! Cost: a handful of system calls per disk.
//! Not for: sockets, or disks of a simulation.

use super::holders::is_held_by_the_gone;
use super::life::DiskHints;
use super::{BUFFER_ALIGN, device_hints, is_held_by_the_living};
use layby_types::ErrorKind;
use rustix::event::Timespec;
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How often, and how far apart, a lock is tried: two seconds in all.
const LOCK_TRIES_MAX: u32 = 100;
const LOCK_PAUSE_NANOS: i64 = 20_000_000;
/// How often where no process is seen to have it, since it is gone: half a minute in all. One of
/// another container is not seen either, so that this is shorter than for the node's directory.
const GONE_TRIES_MAX: u32 = 1500;

/// How to open a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Go past the page cache where file and file system allow it.
    pub direct: bool,
    /// Create a regular file of this length if there is none; an existing one keeps its length.
    pub create_length: Option<u64>,
    /// Reserve a created file's room now, so that no later write can find the file system full.
    pub preallocate: bool,
    /// Others of the same node have it open too: it is not locked.
    pub is_shared: bool,
    /// Where no process is seen that has it locked, the lock is waited for, up to half a minute: a
    /// node's start, which holds up no client.
    pub waits_for_gone: bool,
    /// Nothing may be written: the kernel refuses every change.
    pub is_read_only: bool,
    /// A block device may be write-protected: nothing is to be written to it.
    pub may_be_protected: bool,
    /// The device may hear how long what is written is likely to live.
    pub hints: bool,
}

/// An open file or device, ready to be attached.
#[derive(Debug)]
pub struct OpenDisk {
    pub(super) buffered: OwnedFd,
    pub(super) direct: Option<OwnedFd>,
    /// The path, for reports.
    pub(super) name: String,
    /// What it hears of the lives of writes.
    pub(super) hints: DiskHints,
    length: AtomicU64,
    /// Whether this call created the file.
    pub created: bool,
    /// Whether it is a block device.
    pub block_device: bool,
    /// Whether it is a block device that is write-protected.
    pub is_protected: bool,
    /// Whether it lies in a FUSE file system. There the kernel may wait within a submission,
    /// although it was asked not to, where the program has as many requests as it takes; and an
    /// asynchronous direct write that is to be durable ends without asking the program for a sync.
    pub(super) is_fuse: bool,
}

/// Why a disk could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenError {
    /// What to do about it: `Full`, `Denied`, `Retry` (another process holds it), `Invalid`.
    pub kind: ErrorKind,
    /// The disk.
    pub path: PathBuf,
    /// What was attempted.
    pub step: &'static str,
    /// The system's error number.
    pub errno: i32,
    /// It is locked, and no process is seen that holds the lock and goes on: that of a killed one
    /// ends with its I/O.
    pub is_gone: bool,
}

impl OpenError {
    /// Whether there is nothing at the path.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.errno == Errno::NOENT.raw_os_error()
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = Errno::from_raw_os_error(self.errno);
        write!(f, "cannot {} `{}`: {cause}", self.step, self.path.display())
    }
}

impl std::error::Error for OpenError {}

/// What is attempted with a pipe, a socket, a directory or a character device.
const NO_DISK: &str = "use as a disk (it is neither a file nor a block device)";
/// What the kernel calls a FUSE file system.
const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;

/// Opens a disk.
///
/// # Errors
/// The step that failed, sorted by remedy. A file this call created is removed again.
pub fn open_disk(path: &Path, mode: OpenMode) -> Result<OpenDisk, OpenError> {
    let failed = |step, errno| error_at(path, step, errno);
    let found = match rustix::fs::stat(path) {
        Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
        Err(Errno::NOENT) if mode.create_length.is_some() => None,
        Err(errno) => return Err(failed("find", errno)),
    };
    let block_device = found == Some(FileType::BlockDevice);
    if !matches!(found, None | Some(FileType::RegularFile | FileType::BlockDevice)) {
        return Err(failed(NO_DISK, Errno::INVAL));
    }
    let wanted = mode;
    let (buffered, mode) = open_locked(path, found.is_none(), block_device, wanted)?;
    // The kernel lets most such devices be opened for writing, and refuses each write.
    let is_said = block_device && super::advice::is_protected(&buffered);
    let is_protected = is_protected(is_said, wanted, mode);
    if refuses_protected(mode, is_protected) {
        return Err(failed("write to the write-protected device", Errno::ROFS));
    }
    if let (None, Some(length)) = (found, mode.create_length)
        && let Err(error) = reserve(path, &buffered, length, mode.preallocate)
    {
        let _ = rustix::fs::unlink(path);
        return Err(error);
    }
    let length = rustix::fs::seek(&buffered, SeekFrom::End(0)).map_err(|e| failed("measure", e))?;
    let direct = if mode.direct { open_direct(path, &buffered, mode) } else { None };
    let name = path.display().to_string();
    let length = AtomicU64::new(length);
    let hints = match mode.hints {
        true => DiskHints::find(&buffered, streams_of(path, &direct, block_device), mode.is_shared),
        false => DiskHints::default(),
    };
    let created = found.is_none();
    // Of a device that would be the file system of its node.
    let on_fuse = || rustix::fs::fstatfs(&buffered).is_ok_and(|fs| fs.f_type == FUSE_MAGIC);
    let is_fuse = !block_device && on_fuse();
    Ok(OpenDisk {
        buffered,
        direct,
        name,
        hints,
        length,
        created,
        block_device,
        is_protected,
        is_fuse,
    })
}

/// Write streams are for direct writes to a block device.
fn streams_of(path: &Path, direct: &Option<OwnedFd>, block_device: bool) -> u32 {
    let may_have = block_device && direct.is_some();
    may_have.then(|| device_hints(path)).flatten().map_or(0, |hints| hints.write_streams)
}

impl Drop for OpenDisk {
    fn drop(&mut self) {
        self.hints.take_back(&self.buffered);
    }
}

impl OpenDisk {
    /// Bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// Whether aligned operations go past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The number of the device that it lies on, or is.
    #[must_use]
    pub fn device(&self) -> u64 {
        let stat = rustix::fs::fstat(&self.buffered);
        stat.map_or(0, |stat| if self.block_device { stat.st_rdev } else { stat.st_dev })
    }

    /// Whether a regular file has less room than length, so that some of it lies nowhere.
    #[must_use]
    pub fn has_holes(&self) -> bool {
        let room = rustix::fs::fstat(&self.buffered).map(|stat| stat.st_blocks as u64 * 512);
        !self.block_device && room.is_ok_and(|room| room < self.length())
    }

    /// Gives a regular file another length.
    pub(super) fn resize(&self, length: u64) -> Result<(), Errno> {
        if !self.block_device {
            rustix::fs::ftruncate(&self.buffered, length)?;
            self.length.store(length, Ordering::Release);
        } else if length > self.length() {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    /// Whether an operation on these bytes may use the direct descriptor.
    pub(super) fn takes_direct(&self, offset: u64, length: usize) -> bool {
        let align = BUFFER_ALIGN as u64;
        self.direct.is_some()
            && offset.is_multiple_of(align)
            && (length as u64).is_multiple_of(align)
            && offset + length as u64 <= self.length()
    }

    /// The descriptor for an operation on these bytes.
    pub(super) fn file(&self, offset: u64, length: usize) -> BorrowedFd<'_> {
        match &self.direct {
            Some(direct) if self.takes_direct(offset, length) => direct.as_fd(),
            _ => self.buffered.as_fd(),
        }
    }
}

fn error_at(path: &Path, step: &'static str, errno: Errno) -> OpenError {
    let kind = match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::Full,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::Denied,
        Errno::AGAIN | Errno::BUSY | Errno::INTR => ErrorKind::Retry,
        Errno::IO => ErrorKind::Corrupt,
        _ => ErrorKind::Invalid,
    };
    OpenError { kind, path: path.to_owned(), step, errno: errno.raw_os_error(), is_gone: false }
}

/// Whether a device is write-protected: as it says, or as its driver did when it was opened.
fn is_protected(is_said: bool, wanted: OpenMode, opened: OpenMode) -> bool {
    is_said || opened.is_read_only && !wanted.is_read_only
}

/// Whether a device is refused, since what is acknowledged could never be written to it.
fn refuses_protected(mode: OpenMode, is_protected: bool) -> bool {
    is_protected && !mode.is_read_only && !mode.may_be_protected
}

fn access(mode: OpenMode) -> OFlags {
    if mode.is_read_only { OFlags::RDONLY } else { OFlags::RDWR }
}

/// Opens through the page cache and locks; answers with the mode in which it is open. A mounted
/// block device is refused by `O_EXCL`.
fn open_locked(
    path: &Path,
    create: bool,
    block_device: bool,
    mode: OpenMode,
) -> Result<(OwnedFd, OpenMode), OpenError> {
    let mut flags = OFlags::CLOEXEC;
    if create {
        flags |= OFlags::CREATE | OFlags::EXCL;
    } else if block_device && !mode.is_shared {
        flags |= OFlags::EXCL;
    }
    let step = if create { "create" } else { "open" };
    let open = |access| {
        let open = || rustix::fs::open(path, flags | access, Mode::RUSR | Mode::WUSR);
        unclaimed(path, mode, open, pause)
    };
    let opened = open_as(mode, block_device, open);
    let (file, mode) = opened.map_err(|errno| {
        let is_gone = errno == Errno::BUSY && is_claimed_by_the_gone(path);
        OpenError { is_gone, ..error_at(path, step, errno) }
    })?;
    if !mode.is_shared {
        let lock = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        let is_gone = || mode.waits_for_gone && !is_held_by_the_living(file.as_fd());
        patiently(Errno::AGAIN, lock, is_gone, pause).map_err(|errno| {
            let is_gone = errno == Errno::AGAIN && !is_held_by_the_living(file.as_fd());
            OpenError { is_gone, ..error_at(path, "lock", errno) }
        })?;
    }
    Ok((file, mode))
}

/// Opens a device that may be claimed: waited for like a lock, since the kernel keeps the claim of
/// a killed process as long as its locks.
fn unclaimed<T>(
    path: &Path,
    mode: OpenMode,
    attempt: impl FnMut() -> Result<T, Errno>,
    pause: impl Fn(),
) -> Result<T, Errno> {
    let is_gone = || mode.waits_for_gone && is_claimed_by_the_gone(path);
    patiently(Errno::BUSY, attempt, is_gone, pause)
}

/// Whether a process that is gone has the device. A claim names no process, but a node's locks the
/// device as well; a mounted one has no lock, and stays claimed.
fn is_claimed_by_the_gone(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let seen = rustix::fs::open(path, flags, Mode::empty());
    seen.is_ok_and(|seen| is_held_by_the_gone(seen.as_fd()))
}

/// Opens as the mode says. Some drivers refuse to open a write-protected device for writing: where
/// nothing is to be written to it, it is opened for reading.
fn open_as<T>(
    mode: OpenMode,
    block_device: bool,
    open: impl Fn(OFlags) -> Result<T, Errno>,
) -> Result<(T, OpenMode), Errno> {
    match open(access(mode)) {
        Err(Errno::ROFS) if block_device && mode.may_be_protected && !mode.is_read_only => {
            let mode = OpenMode { is_read_only: true, ..mode };
            open(access(mode)).map(|opened| (opened, mode))
        }
        opened => opened.map(|opened| (opened, mode)),
    }
}

/// Tries, and waits a little where another process is said to have it, and longer where that
/// process is gone: the kernel gives up its files only when its last ring operation has ended.
fn patiently<T>(
    taken: Errno,
    mut attempt: impl FnMut() -> Result<T, Errno>,
    is_gone: impl Fn() -> bool,
    pause: impl Fn(),
) -> Result<T, Errno> {
    for tries in 0..GONE_TRIES_MAX {
        let ended = attempt();
        let is_taken = ended.as_ref().is_err_and(|errno| *errno == taken);
        if !is_taken || tries >= LOCK_TRIES_MAX && !is_gone() {
            return ended;
        }
        pause();
    }
    attempt()
}

fn pause() {
    // Nothing is polled: the call only passes the time.
    let time = Timespec { tv_sec: 0, tv_nsec: LOCK_PAUSE_NANOS };
    let _ = rustix::event::poll(&mut [], Some(&time));
}

/// Gives a new file its length and makes its name durable.
fn reserve(path: &Path, file: &OwnedFd, length: u64, allocate: bool) -> Result<(), OpenError> {
    if allocate {
        super::overwrite_in_place(file);
    }
    rustix::fs::ftruncate(file, length).map_err(|errno| error_at(path, "size", errno))?;
    if allocate && length > 0 {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length) {
            // Without fallocate the room cannot be promised; the node says so when it is short.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(error_at(path, "reserve room for", errno)),
        }
    }
    rustix::fs::fsync(file).map_err(|errno| error_at(path, "sync", errno))?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(|errno| error_at(path, "sync the directory of", errno))
}

/// A second descriptor of the same file with `O_DIRECT`, or none where that is refused.
fn open_direct(path: &Path, buffered: &OwnedFd, mode: OpenMode) -> Option<OwnedFd> {
    let flags = access(mode) | OFlags::CLOEXEC | OFlags::DIRECT;
    let direct = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let identity = |file: &OwnedFd| {
        let stat = rustix::fs::statat(file, "", AtFlags::EMPTY_PATH).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    let same = identity(&direct).is_some_and(|id| Some(id) == identity(buffered));
    same.then_some(direct)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a lock of a process that is gone is waited for longer than one of another that goes
    /// on, and not for ever; an error of another kind ends the wait. Method: attempts that end well
    /// after so many; tries are counted, and no time passes.
    #[test]
    fn a_lock_of_a_process_that_is_gone_is_waited_for() {
        const LATE: u32 = LOCK_TRIES_MAX + 50;
        for (free_after, is_gone, tries, is_had) in [
            (10, false, 11, true),
            (LATE, false, LOCK_TRIES_MAX + 1, false),
            (LATE, true, LATE + 1, true),
            (u32::MAX, true, GONE_TRIES_MAX + 1, false),
        ] {
            let mut tried = 0;
            let attempt = || {
                tried += 1;
                if tried > free_after { Ok(()) } else { Err(Errno::AGAIN) }
            };
            let ended = patiently(Errno::AGAIN, attempt, || is_gone, || {});
            assert_eq!((tried, ended.is_ok()), (tries, is_had), "{free_after}, gone: {is_gone}");
        }
        let denied = || Err::<(), _>(Errno::ACCESS);
        assert_eq!(patiently(Errno::AGAIN, denied, || true, || {}), Err(Errno::ACCESS));
    }

    /// Goal: a device that a process which is gone has claimed is waited for as long as its lock,
    /// at a start alone; one that is claimed by a living process, or without a lock as by a mount,
    /// no longer than before. Method: attempts that end well after so many beside a file whose lock
    /// a program has left, one that this process has locked, and one without a lock; tries are
    /// counted, and no time passes.
    #[test]
    fn a_claim_of_a_process_that_is_gone_is_waited_for() {
        const LATE: u32 = LOCK_TRIES_MAX + 50;
        let directory = tempfile::tempdir().unwrap();
        let [gone, living, free] = ["gone", "living", "free"].map(|name| {
            let path = directory.path().join(name);
            (std::fs::File::create(&path).unwrap(), path)
        });
        let mut lock = std::process::Command::new("flock");
        let locked = lock.args(["--nonblock", "0"]).stdin(gone.0.try_clone().unwrap()).status();
        assert!(locked.unwrap().success());
        drop(lock);
        rustix::fs::flock(&living.0, FlockOperation::NonBlockingLockExclusive).unwrap();
        let waits = OpenMode { waits_for_gone: true, ..OpenMode::default() };
        for (path, mode, tries) in [
            (&gone.1, waits, LATE + 1),
            (&gone.1, OpenMode::default(), LOCK_TRIES_MAX + 1),
            (&living.1, waits, LOCK_TRIES_MAX + 1),
            (&free.1, waits, LOCK_TRIES_MAX + 1),
        ] {
            let mut tried = 0;
            let attempt = || {
                tried += 1;
                if tried > LATE { Ok(()) } else { Err(Errno::BUSY) }
            };
            let ended = unclaimed(path, mode, attempt, || {});
            assert_eq!((tried, ended.is_ok()), (tries, tries > LATE), "{path:?}, {mode:?}");
        }
        assert!(is_claimed_by_the_gone(&gone.1) && !is_claimed_by_the_gone(&living.1));
    }

    /// Goal: creation reserves room, keeps an existing file, and locks out a second opener.
    /// Method: opens one path three times, then a directory and a missing file.
    #[test]
    fn opening_creates_once_and_locks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let mode = OpenMode {
            direct: true,
            create_length: Some(1 << 20),
            preallocate: true,
            ..OpenMode::default()
        };
        let disk = open_disk(&path, mode).unwrap();
        assert!(disk.created && disk.length() == 1 << 20 && !disk.block_device);
        assert!(rustix::fs::stat(&path).unwrap().st_blocks >= (1 << 20) / 512);
        let locked = open_disk(&path, mode).unwrap_err();
        assert_eq!((locked.kind, locked.is_gone), (ErrorKind::Retry, false));
        drop(disk);
        let again = open_disk(&path, OpenMode { create_length: Some(5), ..mode }).unwrap();
        assert!(!again.created && again.length() == 1 << 20);
        let refused = open_disk(directory.path(), OpenMode::default()).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid);
        let missing = open_disk(&directory.path().join("none"), OpenMode::default());
        assert_eq!(missing.unwrap_err().kind, ErrorKind::Invalid);
    }

    /// Goal: a lock that no living process holds is told from another's. Method: a program that
    /// locks an open file of this process, and has ended.
    #[test]
    fn a_lock_of_the_gone_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let kept = std::fs::File::create(&path).unwrap();
        let mut lock = std::process::Command::new("flock");
        let locked = lock.args(["--nonblock", "0"]).stdin(kept.try_clone().unwrap()).status();
        assert!(locked.unwrap().success());
        drop(lock);
        let locked = open_disk(&path, OpenMode::default()).unwrap_err();
        assert_eq!((locked.kind, locked.is_gone), (ErrorKind::Retry, true));
        drop(kept);
    }

    /// Goal: a write-protected device is refused where it is to be written to, and nowhere
    /// else; no file counts as one. Method: every mode, with such a device and without; a file.
    #[test]
    fn a_protected_device_is_not_written_to() {
        for (is_read_only, may_be_protected) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let mode = OpenMode { is_read_only, may_be_protected, ..OpenMode::default() };
            assert!(!refuses_protected(mode, false), "{mode:?}");
            let is_refused = !is_read_only && !may_be_protected;
            assert_eq!(refuses_protected(mode, true), is_refused, "{mode:?}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let mode = OpenMode { create_length: Some(1 << 20), ..OpenMode::default() };
        open_disk(&path, mode).unwrap();
        let mut permissions = std::fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&path, permissions).unwrap();
        assert!(!super::super::is_write_protected(&path), "a file's mode is another matter");
    }

    /// Goal: a device that its driver does not open for writing is opened for reading where nothing
    /// is to be written to it, and refused elsewhere; a file is never. Method: a driver that
    /// refuses, in every mode, and one that does not.
    #[test]
    fn what_cannot_be_opened_for_writing_is_opened_for_reading() {
        for (is_read_only, may_be_protected) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let mode = OpenMode { is_read_only, may_be_protected, ..OpenMode::default() };
            let refusing = |access| match access {
                OFlags::RDWR => Err(Errno::ROFS),
                access => Ok(access),
            };
            for block_device in [false, true] {
                let opened = open_as(mode, block_device, refusing);
                let is_opened = is_read_only || (block_device && may_be_protected);
                assert_eq!(opened.is_ok(), is_opened, "{mode:?}, device {block_device}");
                if let Ok((access, opened)) = opened {
                    assert!(access == OFlags::RDONLY && opened.is_read_only, "{mode:?}");
                    let is_protected = is_protected(false, mode, opened);
                    assert_eq!(is_protected, !is_read_only, "the driver has said so: {mode:?}");
                }
            }
            let opened = open_as(mode, true, Ok);
            assert_eq!(opened, Ok((access(mode), mode)), "nothing is given up without need");
        }
    }

    /// Goal: a file too large for the file system is refused as `Full` and leaves nothing behind.
    /// Method: asks for more than any file system in use can hold.
    #[test]
    fn no_room_is_said_clearly() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let mode = OpenMode {
            direct: false,
            create_length: Some(1 << 60),
            preallocate: true,
            ..OpenMode::default()
        };
        let error = open_disk(&path, mode).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Full, "{error}");
        assert!(!path.exists());
    }
}
