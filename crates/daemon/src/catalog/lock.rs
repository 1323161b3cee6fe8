//! The lock of a node's directory.
//!
//! How: a file in it is locked for as long as the process lives, and as long as the kernel has I/O
//! of it in flight; it names the process, for people. Where the process is gone, or about to be,
//! its I/O is waited for: what it has in flight may reach the disks yet, and must not meet what the
//! next node writes. For a reader of a file system that is read-only, the file is locked as it is:
//! on NFS by a shared lock, since that gives no other one of a file that cannot be written.
//! Invariant: at most one node, or one check, is on a directory, and nothing of an earlier one is
//! in flight; of checks on a read-only NFS there may be several. Cost: two system calls per start.
//! Not for: homes and levels outside the directory; these are locked where they are opened.

use crate::error::{Report, ReportKind};
use crate::held::{self, HeldDirectory};
use layby_engine::io::{is_held_by_the_living, is_held_unseen};
use rustix::event::Timespec;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind as Io, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::Path;
use std::sync::Arc;

/// The file's name.
const LOCK_FILE_NAME: &str = "lock";
/// Rests between two looks whether the I/O of a process that is gone has ended.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How often that is looked at: three minutes. A sync alone may take two.
const LOOKS_MAX: u32 = 3600;
/// How often a wait is told: every ten seconds.
const LOOKS_TOLD: u32 = 200;

/// What should be known where a read-only file system has no lock to be held, or one that not each
/// node sees: one on an NFS server locks the file there alone.
pub const UNLOCKED: &str = "the file system is read-only and has no lock that keeps each node \
                            away; let no node run on it by another mount meanwhile";

type Lock = fn(&File, FlockOperation) -> Result<(), Errno>;

/// The right to be the only node on a directory, held until dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    file: Arc<OwnedFd>,
    is_shared: bool,
    /// None for a process that changes nothing.
    _directory: Option<Arc<HeldDirectory>>,
}

impl DirectoryLock {
    /// Takes the lock of `dir`. May take long, where a process that is gone has I/O in flight.
    ///
    /// # Errors
    /// A report that names the process of the node that holds it.
    pub fn take(dir: &Path) -> Result<DirectoryLock, Report> {
        DirectoryLock::take_by(dir, |file, how| flock(file, how))
    }

    fn take_by(dir: &Path, lock: Lock) -> Result<DirectoryLock, Report> {
        let path = dir.join(LOCK_FILE_NAME);
        let directory = HeldDirectory::hold(dir).map_err(|cause| refused(dir, &cause))?;
        let file = open(dir, &path).map_err(|cause| refused(dir, &cause))?;
        let lock = DirectoryLock::on(dir, &path, (file, false), lock)?;
        // What was opened, and waited for, is in the directory that is held.
        held::check(dir).map_err(|moved| refused(dir, &moved.into()))?;
        Ok(DirectoryLock { _directory: Some(directory), ..lock })
    }

    /// Takes the lock of `dir` for a process that changes nothing there, also on a file system that
    /// is mounted read-only; none where such a one has no lock: each node makes one.
    ///
    /// # Errors
    /// As [`DirectoryLock::take`].
    pub fn take_to_read(dir: &Path) -> Result<Option<DirectoryLock>, Report> {
        let path = dir.join(LOCK_FILE_NAME);
        let (file, may_share) = match open(dir, &path) {
            Err(cause) if cause.kind() == Io::ReadOnlyFilesystem => {
                match File::options().read(true).custom_flags(no_link()).open(&path) {
                    Err(cause) if cause.kind() == Io::NotFound => return Ok(None),
                    opened => (opened, true),
                }
            }
            opened => (opened, false),
        };
        let file = file.map_err(|cause| refused(dir, &cause))?;
        DirectoryLock::on(dir, &path, (file, may_share), |file, how| flock(file, how)).map(Some)
    }

    /// Locks a file; by a shared lock where it may be and the file system gives no other.
    fn on(
        dir: &Path,
        path: &Path,
        (mut file, may_share): (File, bool),
        lock: Lock,
    ) -> Result<DirectoryLock, Report> {
        let (mut looks, mut is_shared) = (0, false);
        loop {
            let how = match is_shared {
                true => FlockOperation::NonBlockingLockShared,
                false => FlockOperation::NonBlockingLockExclusive,
            };
            match lock(&file, how) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {}
                // NFS, of a file that is opened to be read alone.
                Err(Errno::BADF) if may_share && !is_shared => {
                    is_shared = true;
                    continue;
                }
                Err(errno) => return Err(refused(dir, &errno.into())),
            }
            if is_held_by_the_living(file.as_fd()) {
                return Err(taken(dir, &holder(path)));
            }
            let is_unseen = is_held_unseen(file.as_fd());
            // Seen twice: one that was given back between both calls is not seen either. Where the
            // lock is not NFS's, it may be of a process of this container that is gone.
            if is_shared && is_unseen && looks > 0 {
                return Err(taken(dir, ELSEWHERE));
            }
            if looks == LOOKS_MAX {
                return Err(endless(dir, is_unseen));
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
        // The number only helps a person; a disk that is full or read-only is no reason to end.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(DirectoryLock { file: Arc::new(file.into()), is_shared, _directory: None })
    }

    /// The locked file: who keeps it open keeps the lock.
    #[must_use]
    pub fn file(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.file)
    }
}

/// Whether what a reader holds keeps each node away, on another machine as well.
#[must_use]
pub fn keeps_nodes_away(lock: Option<&DirectoryLock>) -> bool {
    lock.is_some_and(|lock| !lock.is_shared)
}

fn refused(dir: &Path, cause: &std::io::Error) -> Report {
    Report::from_io(format!("cannot lock the node directory `{}`", dir.display()), cause)
        .state("nothing was changed")
        .hint("use a directory that the node's user may write to")
}

fn no_link() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

/// Opens the lock's file, or makes it. One that root makes, for a check as well, belongs to the
/// owner of the directory, whose node is to open it.
fn open(dir: &Path, path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(no_link());
    match options.open(path) {
        Err(cause) if cause.kind() == Io::NotFound => {}
        opened => return opened,
    }
    match options.clone().create_new(true).open(path) {
        // Another process was quicker.
        Err(cause) if cause.kind() == Io::AlreadyExists => options.open(path),
        Ok(made) => {
            let owner = std::fs::metadata(dir)?;
            if made.metadata()?.uid() != owner.uid() {
                // Only root may, and no other process leaves a file that its user cannot open.
                let _ = fchown(&made, Some(owner.uid()), Some(owner.gid()));
            }
            Ok(made)
        }
        refused => refused,
    }
}

/// What holds a lock that no process of this machine is seen to hold.
const ELSEWHERE: &str = "a node or a check of another machine has it";

fn holder(lock: &Path) -> String {
    let holder = std::fs::read_to_string(lock).unwrap_or_default();
    match holder.trim().parse::<u32>() {
        Ok(pid) => format!("process {pid} runs a node or a check on it"),
        Err(_) => "another process runs a node or a check on it".to_owned(),
    }
}

fn taken(dir: &Path, holder: &str) -> Report {
    Report::new(ReportKind::InUse, format!("cannot use the node directory `{}`", dir.display()))
        .cause(holder)
        .state("nothing was changed; the other process goes on")
        .hint("stop it first, or name another directory with --dir")
}

/// Not in use: a service manager is to start the node again.
fn endless(dir: &Path, is_unseen: bool) -> Report {
    let cause = match is_unseen {
        true => {
            "its lock was not given back in three minutes, and no process is seen that has it: one \
             of another machine or container does, or one that is gone, whose I/O has not ended"
        }
        false => {
            "a process that was on it is gone, and the kernel has not ended its I/O in three \
             minutes: a device or a backing store does not answer"
        }
    };
    Report::new(ReportKind::Failure, format!("cannot use the node directory `{}`", dir.display()))
        .cause(cause)
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

    /// Goal: a read-only NFS, which gives no exclusive lock of a file that cannot be written, is
    /// locked by a shared one for a reader, and refused where a node has it, or where no process of
    /// this machine is seen that has it. Method: a lock that answers as NFS does; a node's lock in
    /// its place; a lock that nothing is listed for.
    #[test]
    fn a_read_only_nfs_gives_a_shared_lock() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let path = dir.path().join(LOCK_FILE_NAME);
        let node = DirectoryLock::take(dir.path()).expect("nobody else holds it");
        let check = || {
            let file = File::open(&path).expect("a node made it");
            DirectoryLock::on(dir.path(), &path, (file, true), |file, how| match how {
                FlockOperation::NonBlockingLockExclusive => Err(Errno::BADF),
                how => flock(file, how),
            })
        };
        assert_eq!(check().expect_err("a node holds it").kind, ReportKind::InUse);
        drop(node);
        let held = check().expect("nobody holds it any more");
        assert!(!keeps_nodes_away(Some(&held)), "a node on the server does not see it");
        assert_eq!(DirectoryLock::take(dir.path()).expect_err("a check").kind, ReportKind::InUse);
        drop(held);
        let file = File::open(&path).expect("a node made it");
        let elsewhere = DirectoryLock::on(dir.path(), &path, (file, true), |_, how| match how {
            FlockOperation::NonBlockingLockExclusive => Err(Errno::BADF),
            _ => Err(Errno::WOULDBLOCK),
        });
        let elsewhere = elsewhere.expect_err("another machine has it");
        assert_eq!(elsewhere.kind, ReportKind::InUse);
        assert!(elsewhere.cause.contains("another machine"), "{elsewhere}");
    }

    /// Goal: a node has its directory for itself or not at all. Method: a lock that is refused as
    /// that of a file which cannot be written, and would be given to share.
    #[test]
    fn a_node_shares_no_lock() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let taken = DirectoryLock::take_by(dir.path(), |_, how| match how {
            FlockOperation::NonBlockingLockExclusive => Err(Errno::BADF),
            _ => Ok(()),
        });
        taken.expect_err("no lock but a shared one is given");
        let own = DirectoryLock::take(dir.path()).expect("it is free");
        assert!(keeps_nodes_away(Some(&own)) && !keeps_nodes_away(None));
    }

    /// Goal: a lock that a process leaves which is gone is tried again by a service manager, which
    /// does not start a node anew after exit code 4. Method: the refusal.
    #[test]
    fn a_lock_of_the_gone_is_not_in_use() {
        for is_unseen in [false, true] {
            assert_eq!(endless(Path::new("node"), is_unseen).kind, ReportKind::Failure);
        }
    }

    /// Goal: a check that root runs on another user's directory leaves it a lock that its user can
    /// open. Method: a directory of another user without a lock, as far as this process may make
    /// one; a lock that is there keeps its owner.
    #[test]
    fn a_new_lock_has_the_owner_of_its_directory() {
        use std::os::unix::fs::chown;
        const OTHER: u32 = 12_345;
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let own = std::fs::metadata(dir.path()).expect("it is there").uid();
        let is_root = chown(dir.path(), Some(OTHER), Some(OTHER)).is_ok();
        let path = dir.path().join("lock");
        let owner = || {
            drop(DirectoryLock::take(dir.path()).expect("no other process has it"));
            let about = std::fs::metadata(&path).expect("it was made");
            (about.uid(), about.gid())
        };
        let expected = if is_root { OTHER } else { own };
        assert_eq!(owner().0, expected);
        if is_root {
            assert_eq!(owner(), (OTHER, OTHER));
            chown(&path, Some(own), None).expect("this process may");
            assert_eq!(owner().0, own, "it was there");
        }
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
