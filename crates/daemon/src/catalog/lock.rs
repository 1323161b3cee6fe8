//! The lock of a node's directory.
//!
//! How: a file in it is locked for as long as the process lives; it names the process, for people.
//! Invariant: at most one node, or one check, is on a directory. Cost: two system calls per start.
//! Not for: homes and levels outside the directory; these are locked where they are opened.

use crate::error::{Report, ReportKind};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The right to be the only node on a directory, held until dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Takes the lock of `dir`.
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
            .open(&path)
            .map_err(refused)?;
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        match rustix::fs::flock(&file, operation) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(taken(dir, &path)),
            Err(errno) => return Err(refused(errno.into())),
        }
        // The number only helps a person; a full disk is no reason not to start.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(DirectoryLock { _file: file })
    }
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
}
