//! Folders of journals and maps outside the node's directory: one node's each.
//!
//! How: a file in each says which node it belongs to, and is locked while that node runs. Journals
//! and maps bear numbers, which two nodes give out alike. The node's own directory has a lock and
//! an identity already.
//! Invariant: no journal or map is read or made in another node's folder.
//! Cost: two small files, opened with the first volume in a store. Not for: what lies in them.

use crate::catalog::NodeId;
use crate::error::ReportKind;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const OWNER_FILE: &str = "layby-node";
/// Bytes of that file that are looked at.
const OWNER_BYTES_MAX: u64 = 64;

/// The locks, once they are held.
#[derive(Debug, Default)]
pub(super) struct Folders(Mutex<Option<Vec<File>>>);

impl Folders {
    /// Makes the folders where they are missing, and claims those outside of `dir` for `node`.
    ///
    /// # Errors
    /// Which folder is another node's, of kind [`ReportKind::InUse`]; or cannot be had, of another.
    pub(super) fn claim(
        &self,
        dir: &Path,
        folders: [&Path; 2],
        node: NodeId,
    ) -> Result<(), (ReportKind, String)> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some() {
            return Ok(());
        }
        let [journals, maps] = folders;
        let all = if journals == maps { vec![journals] } else { vec![journals, maps] };
        let mut locks = Vec::new();
        for folder in all {
            std::fs::create_dir_all(folder).map_err(|cause| failed(folder, &cause))?;
            if !folder.starts_with(dir) {
                locks.push(own(folder, node)?);
            }
        }
        *held = Some(locks);
        Ok(())
    }
}

fn failed(path: &Path, cause: &std::io::Error) -> (ReportKind, String) {
    (ReportKind::from(cause), format!("`{}`: {cause}", path.display()))
}

fn own(folder: &Path, node: NodeId) -> Result<File, (ReportKind, String)> {
    let path = folder.join(OWNER_FILE);
    let failed = |cause: std::io::Error| failed(&path, &cause);
    let foreign = |cause: String| Err((ReportKind::InUse, cause));
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            return foreign(format!(
                "another node keeps journals or maps in `{}`; give each node folders of its own \
                 (`journal_dir` and `map_dir` of [cloud])",
                folder.display()
            ));
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    let mut text = String::new();
    (&file).take(OWNER_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    match text.trim() {
        "" => {
            let written = writeln!(file, "{node}").and_then(|()| file.sync_all());
            written.map(|()| file).map_err(failed)
        }
        owner if owner == node.to_string() => Ok(file),
        owner => foreign(format!(
            "`{}` has the journals or maps of node {owner}; give each node folders of its own \
             (`journal_dir` and `map_dir` of [cloud])",
            folder.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a folder is one node's, while it runs and later; the node itself comes back. Method:
    /// two nodes at a folder, at once and one after the other; a folder in the node's directory.
    #[test]
    fn a_folder_is_one_nodes() {
        let outer = tempfile::TempDir::new().expect("a temporary directory");
        let (dir, shared) = (outer.path().join("node"), outer.path().join("shared"));
        let [one, two] = [NodeId([1; 16]), NodeId([2; 16])];
        let first = Folders::default();
        assert_eq!(first.claim(&dir, [&shared, &shared], one), Ok(()));
        assert_eq!(first.claim(&dir, [&shared, &shared], one), Ok(()), "it has it");
        let claim = |node| Folders::default().claim(&dir, [&shared, &shared], node);
        for node in [one, two] {
            assert!(claim(node).expect_err("it runs").1.contains("another node keeps"));
        }
        drop(first);
        assert!(claim(two).expect_err("it is the first one's").1.contains("of node 0101"));
        assert_eq!(claim(one), Ok(()));
        let own = dir.join("cloud");
        assert_eq!(Folders::default().claim(&dir, [&own, &own], two), Ok(()));
        assert!(!own.join(OWNER_FILE).exists());
    }

    /// Goal: a folder that cannot be had is told from one that is another node's. Method: a file in
    /// the place of a folder's parent.
    #[test]
    fn what_cannot_be_made_is_no_other_nodes() {
        let outer = tempfile::TempDir::new().expect("a temporary directory");
        let file = outer.path().join("file");
        std::fs::write(&file, "").expect("a writable directory");
        let folder = file.join("journals");
        let refused = Folders::default().claim(outer.path(), [&folder, &folder], NodeId([1; 16]));
        let (kind, cause) = refused.expect_err("it cannot be made");
        assert!(kind != ReportKind::InUse && cause.contains("journals"), "{kind:?}: {cause}");
    }
}
