//! What becomes of a file or device when its volume goes with its data.
//!
//! How: the name at the volume's path is removed. That is all of a plain file; a symbolic link goes
//! and leaves the file that it named, and a device is left as it is, with a link to it.
//! Invariant: the deletion's answer names what keeps the volume's bytes.
//! Cost: a few looks at the file system. Not for: homes with an owner.

use crate::error::Report;
use std::fs::{canonicalize, metadata, remove_file, symlink_metadata};
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};

/// What still has the bytes of a volume that was deleted with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptData {
    /// A device, a file that a symbolic link named, or another node's file.
    pub path: PathBuf,
    /// It is a device.
    pub is_device: bool,
    /// The symbolic link at the volume's path, if that was one: still there where it names a
    /// device, removed where it named a file.
    pub link: Option<PathBuf>,
}

/// Removes a deleted volume's backing file, and says what still has its bytes. May take long.
///
/// # Errors
/// A report when the file is left.
pub(super) fn discard_file(path: &Path) -> Result<Option<KeptData>, Report> {
    let kept = kept_by(path);
    if kept.as_ref().is_some_and(|kept| kept.is_device) {
        return Ok(kept);
    }
    match remove_file(path) {
        Err(cause) if cause.kind() != Io::NotFound => {
            let error = format!("cannot remove the backing file `{}`", path.display());
            Err(Report::from_io(error, &cause)
                .state("the volume is deleted; only its file is left")
                .hint("remove the file by hand"))
        }
        _ => Ok(kept),
    }
}

/// What has a volume's bytes once the name at its path is gone; none where nothing has.
fn kept_by(path: &Path) -> Option<KeptData> {
    let is_device = !metadata(path).ok()?.is_file();
    let is_link = symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    let link = is_link.then(|| path.to_owned());
    let path = if is_link { canonicalize(path).ok()? } else { path.to_owned() };
    (is_device || is_link).then_some(KeptData { path, is_device, link })
}
