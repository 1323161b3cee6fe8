//! Files and folders of the node's own, known by identity also while they do not answer.
//!
//! How: all are identified when the node starts, and again whenever something is compared to them.
//! One whose file system hangs or fails then is known as it was seen last, so that another name of
//! it, such as the target of its link, is still its own.
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

    /// A file as it is, or as it was last where it does not answer or its mount has failed.
    fn identity(&self, path: &Path) -> Result<FileIdentity, NoAnswer> {
        let found = FileIdentity::in_time(path);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let last = seen.get(path).filter(|last| last.exists());
        match (found, last) {
            (Err(no_answer), last) => last.cloned().ok_or(no_answer),
            (Ok(found), Some(last)) if found.is_unseen() => Ok(last.clone()),
            (Ok(found), _) => {
                seen.insert(path.to_owned(), found.clone());
                Ok(found)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::hanging::hang;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Goal: a file of the node's own is known by the target of its link also where its folder has
    /// failed since; one that was not there when it was last seen is not known by its words alone.
    /// Method: a link in a folder that turns into a loop of links, and answers again without the
    /// link; a file in a folder that hangs later.
    #[test]
    fn a_failed_folder_hides_no_file() {
        let outer = tempfile::TempDir::new().expect("a temporary directory");
        let [far, away, near] = ["far", "away", "near"].map(|name| outer.path().join(name));
        for folder in [&far, &near] {
            fs::create_dir(folder).expect("a writable directory");
        }
        let (link, secret, other) = (far.join("token"), near.join("secret"), near.join("other"));
        for file in [&secret, &other] {
            fs::write(file, "secret").expect("a writable directory");
        }
        symlink(&secret, &link).expect("a writable directory");
        let kept = KeptFiles::at(vec![link.clone()]);
        let named = |path| kept.named_by(path).map(|own| own.map(Path::to_owned));
        assert_eq!(named(&secret), Ok(Some(link.clone())));
        fs::rename(&far, &away).expect("a writable directory");
        symlink(&far, &far).expect("a writable directory");
        fs::metadata(&link).expect_err("a loop");
        assert_eq!(named(&secret), Ok(Some(link.clone())), "it is known as it was");
        assert_eq!(named(&other), Ok(None));
        fs::remove_file(&far).expect("a writable directory");
        assert_eq!(named(&secret), Ok(None), "the link is gone");
        fs::create_dir(&far).expect("a writable directory");
        let _hanging = hang(&far);
        let refused = named(&secret).expect_err("nothing is known of the link");
        assert!(matches!(refused, NoAnswer::Hangs(_)), "{refused}");
    }
}
