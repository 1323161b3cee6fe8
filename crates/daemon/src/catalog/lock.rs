//! The lock of a node's directory.
//!
//! How: a file in it is locked for as long as the process lives, and as long as the kernel has I/O
//! of it in flight; it names the process, for people. Where the process is gone, or about to be,
//! its I/O is waited for: what it has in flight may reach the disks yet, and must not meet what the
//! next node writes.
//! Invariant: at most one node, or one check, is on a directory, and nothing of an earlier one is
//! in flight. Cost: two system calls per start. Not for: homes and levels outside the directory;
//! these are locked where they are opened.

use crate::error::{Report, ReportKind};
use rustix::event::Timespec;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

/// Rests between two looks whether the I/O of a process that is gone has ended.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How often that is looked at: three minutes. A sync alone may take two.
const LOOKS_MAX: u32 = 3600;
/// How often a wait is told: every ten seconds.
const LOOKS_TOLD: u32 = 200;
/// The kernel's mark of a process that is about to go (`PF_EXITING`).
const IS_EXITING: u64 = 4;

/// The right to be the only node on a directory, held until dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    file: Arc<OwnedFd>,
}

impl DirectoryLock {
    /// Takes the lock of `dir`. May take long, where a process that is gone has I/O in flight.
    ///
    /// # Errors
    /// A report that names the process of the node that holds it.
    pub fn take(dir: &Path) -> Result<DirectoryLock, Report> {
        let path = dir.join("lock");
        let refused = |cause: std::io::Error| {
            Report::from_io(format!("cannot lock the node directory `{}`", dir.display()), &cause)
                .state("nothing was changed")
                .hint("use a directory that the node's user may write to")
        };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(refused)?;
        let mut looks = 0;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(refused(errno.into())),
            }
            if is_held_by_the_living(&file) {
                return Err(taken(dir, &path));
            }
            if looks == LOOKS_MAX {
                return Err(endless(dir));
            }
            if looks % LOOKS_TOLD == LOOKS_TOLD / 10 {
                let dir = dir.display();
                tracing::warn!(%dir, "waiting for I/O of an earlier process, which the kernel has \
                    not ended yet");
            }
            looks += 1;
            // Nothing is polled: the call only passes the time.
            let _ = rustix::event::poll(&mut [], Some(&REST));
        }
        // The number only helps a person; a full disk is no reason not to start.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(DirectoryLock { file: Arc::new(file.into()) })
    }

    /// The locked file: who keeps it open keeps the lock.
    #[must_use]
    pub fn file(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.file)
    }
}

/// Whether a process that goes on holds a lock of the file. Where the kernel does not tell, it is
/// taken for so. A process of another container is not seen.
fn is_held_by_the_living(file: &File) -> bool {
    let (Ok(locks), Ok(about)) = (std::fs::read_to_string("/proc/locks"), file.metadata()) else {
        return true;
    };
    holders(&locks, (device_of(file).as_deref(), about.ino())).any(is_living)
}

/// The device of the file's mount, as `/proc/locks` writes it. What `stat` says is another number
/// in file systems with several volumes.
fn device_of(file: &File) -> Option<String> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let mount = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut mounts = mounts.lines().map(|line| line.split_whitespace());
    let device =
        mounts.find_map(|mut words| (words.next() == Some(mount)).then(|| words.nth(1))?);
    let (major, minor) = device?.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    Some(format!("{major:02x}:{minor:02x}"))
}

/// The processes that hold a lock of the file of this device and number, as `/proc/locks` has them.
/// Where the device is not known, any may be it.
fn holders<'a>(
    locks: &'a str,
    (device, inode): (Option<&'a str>, u64),
) -> impl Iterator<Item = u32> + 'a {
    locks.lines().filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, place, ..] = words[..] else { return None };
        let (on, number) = place.rsplit_once(':')?;
        let is_same = device.is_none_or(|device| device == on) && number.parse() == Ok(inode);
        is_same.then(|| process.parse().ok())?
    })
}

/// Whether a process is there and is not about to exit. One that may not be read is there.
fn is_living(process: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => goes_on(&stat),
        Err(cause) => !matches!(Errno::from_io_error(&cause), Some(Errno::NOENT | Errno::SRCH)),
    }
}

/// What the kernel says of a process: neither dead nor exiting. Unknown words are taken for life.
fn goes_on(stat: &str) -> bool {
    // The name, in parentheses, may hold anything; behind it are the state and, seventh, the flags.
    let Some((_, words)) = stat.rsplit_once(')') else { return true };
    let mut words = words.split_whitespace();
    let is_dead = words.next().is_some_and(|state| matches!(state, "Z" | "X" | "x"));
    let flags = words.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    !is_dead && flags & IS_EXITING == 0
}

fn taken(dir: &Path, lock: &Path) -> Report {
    let holder = std::fs::read_to_string(lock).unwrap_or_default();
    let holder = match holder.trim().parse::<u32>() {
        Ok(pid) => format!("process {pid} runs a node or a check on it"),
        Err(_) => "another process runs a node or a check on it".to_owned(),
    };
    Report::new(ReportKind::InUse, format!("cannot use the node directory `{}`", dir.display()))
        .cause(holder)
        .state("nothing was changed; the other process goes on")
        .hint("stop it first, or name another directory with --dir")
}

fn endless(dir: &Path) -> Report {
    Report::new(ReportKind::InUse, format!("cannot use the node directory `{}`", dir.display()))
        .cause(
            "a process that was on it is gone, and the kernel has not ended its I/O in three \
             minutes: a device or a backing store does not answer",
        )
        .state("nothing was changed; what was acknowledged as durable is safe")
        .hint(
            "see in the kernel's log which device does not answer, and make it go on; a restart of \
             the machine ends the I/O",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a second node on a directory is refused by the first one's process. Method: take the
    /// lock twice, drop it, take it again.
    #[test]
    fn second_lock_is_refused() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let first = DirectoryLock::take(dir.path()).expect("nobody else holds it");
        let report = DirectoryLock::take(dir.path()).expect_err("the first one holds it");
        assert_eq!(report.kind, ReportKind::InUse);
        assert!(report.cause.contains(&std::process::id().to_string()), "{report}");
        drop(first);
        DirectoryLock::take(dir.path()).expect("nobody holds it any more");
    }

    /// Goal: holders and their state are read as the kernel writes them. Method: lines of its own,
    /// and this process.
    #[test]
    fn the_living_are_told_from_the_gone() {
        let locks = "1: FLOCK  ADVISORY  WRITE 12672 fe:00:101 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 5 fe:00:101 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 7 fe:00:101 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  9 00:2f:101 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 11 fe:00:1010 0 EOF\n";
        let all = |device| holders(locks, (device, 101)).collect::<Vec<_>>();
        assert_eq!((all(Some("fe:00")), all(None)), (vec![12672], vec![12672, 9]));
        assert!(is_living(std::process::id()));
        let stat = |state: &str, flags: u32| format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 0 0");
        assert!(goes_on(&stat("S", 0x40_0100)) && goes_on(&stat("D", 0)) && goes_on(""));
        assert!(!goes_on(&stat("Z", 0)) && !goes_on(&stat("D", 0x40_0104)));
    }

    /// Goal: the device of a file is the one that the kernel names with its locks. Method: a lock
    /// of this process, and the line of it.
    #[test]
    fn a_lock_is_found_by_its_device() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let file = File::create(dir.path().join("x")).expect("a writable directory");
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it");
        let locks = std::fs::read_to_string("/proc/locks").expect("Linux has it");
        let inode = file.metadata().expect("it is there").ino();
        let device = device_of(&file).expect("Linux tells");
        let found: Vec<u32> = holders(&locks, (Some(&device), inode)).collect();
        assert_eq!(found, [std::process::id()], "{device}: {locks}");
    }

    /// Goal: the lock's file is the directory's own; what a link in its place names is not written.
    /// Method: a link to a file elsewhere.
    #[test]
    fn a_link_is_no_lock() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, "precious").expect("a writable directory");
        std::os::unix::fs::symlink(&elsewhere, dir.path().join("lock")).expect("a link");
        DirectoryLock::take(dir.path()).expect_err("it is a link");
        assert_eq!(std::fs::read(&elsewhere).expect("it is there"), b"precious");
    }
}
