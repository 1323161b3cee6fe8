//! Files and folders of the node's own, known by identity also while they do not answer.
//!
//! How: all are identified when the node starts, and again whenever something is compared to them.
//! One whose file system hangs then is known as it was seen last, so that another name of it, such
//! as the target of its link, is still its own.
//! Invariant: what was seen once is never compared by its words alone.
//! Cost: an identity per path; the start waits for each folder that hangs, within the time of a
//! look. Not for: volumes' files, which their shards hold locked.

use super::checks::FileIdentity;
use layby_cloud::NoAnswer;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// See the file's header.
#[derive(Debug)]
pub struct KeptFiles {
    paths: Vec<PathBuf>,
    seen: Mutex<BTreeMap<PathBuf, FileIdentity>>,
}

impl KeptFiles {
    /// Those at these paths, identified as far as they answer.
    pub(super) fn at(paths: Vec<PathBuf>) -> KeptFiles {
        let kept = KeptFiles { paths, seen: Mutex::default() };
        // What does not answer is identified later, or is compared by its words until then.
        kept.paths.iter().for_each(|path| drop(kept.identity(path)));
        kept
    }

    /// The one that a path names, or names something in.
    ///
    /// # Errors
    /// [`NoAnswer`] where the path itself is not seen in time; or is a file or a device, which one
    /// that was never seen may be by another name.
    pub(super) fn named_by(&self, path: &Path) -> Result<Option<&Path>, NoAnswer> {
        let found = FileIdentity::in_time(path)?;
        let mut unseen = None;
        for path in &self.paths {
            let own = self.identity(path).or_else(|no_answer| match no_answer {
                NoAnswer::NoThread(_) => Err(no_answer),
                NoAnswer::Hangs(_) => {
                    unseen.get_or_insert(no_answer);
                    Ok(FileIdentity::by_name(path))
                }
            })?;
            if own.is_same(&found) || found.is_within(&own) {
                return Ok(Some(path));
            }
        }
        match unseen {
            Some(no_answer) if found.has_bytes() => Err(no_answer),
            _ => Ok(None),
        }
    }

    /// A file as it is, or where it does not answer as it was last.
    fn identity(&self, path: &Path) -> Result<FileIdentity, NoAnswer> {
        let found = FileIdentity::in_time(path);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match found {
            Ok(found) => {
                seen.insert(path.to_owned(), found.clone());
                Ok(found)
            }
            Err(no_answer) => seen.get(path).cloned().ok_or(no_answer),
        }
    }
}
