//! One process at a time replaces an object of a folder.
//!
//! How: an exclusive lock on the object's file, held from the look at it until another file has its
//! name. A process that waited looks whether the file that it locked still has the name.
//! Invariant: a process that is paused in between, for however long, finds the object as it left
//! it: nobody replaces it meanwhile. The lock ends with its process.
//! Cost: two system calls per replacement, and a look every few milliseconds while another process
//! replaces it. Not for: objects that are made anew, which a folder does in one step.

use object_store::Error;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long another process may take to replace an object.
pub(super) const HOLD_TIME: Duration = Duration::from_secs(10);
const LOOK_TIME: Duration = Duration::from_millis(10);

/// The object's file, locked; none where there is no such object.
///
/// # Errors
/// Where another process holds it for longer than [`HOLD_TIME`], or it cannot be locked.
pub(super) async fn hold(
    folder: &Arc<LocalFileSystem>,
    path: &Path,
) -> Result<Option<File>, Error> {
    let begun = Instant::now();
    loop {
        let (folder, at) = (Arc::clone(folder), path.clone());
        let tried = tokio::task::spawn_blocking(move || attempt(&folder, &at)).await;
        match tried.map_err(|error| generic(error.into()))? {
            Ok(held) => return Ok(held),
            Err(Refused::Held) if begun.elapsed() < HOLD_TIME => {}
            Err(Refused::Held) => {
                let cause = format!(
                    "another process has been replacing `{path}` for {} s: is another node paused, \
                     or does its folder not answer?",
                    HOLD_TIME.as_secs()
                );
                return Err(generic(cause.into()));
            }
            Err(Refused::Failed(error)) => return Err(generic(error.into())),
        }
        // No file system tells that a lock is free.
        tokio::time::sleep(LOOK_TIME).await;
    }
}

enum Refused {
    Held,
    Failed(std::io::Error),
}

fn attempt(folder: &LocalFileSystem, path: &Path) -> Result<Option<File>, Refused> {
    let failed = |error: std::io::Error| Refused::Failed(error);
    let place = folder.path_to_filesystem(path).map_err(|error| failed(error.into()))?;
    loop {
        // To be written, as NFS wants it for such a lock.
        let file = match OpenOptions::new().read(true).write(true).open(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(Refused::Held),
            locked => locked.map_err(|errno| failed(errno.into()))?,
        }
        let own = file.metadata().map_err(failed)?;
        match std::fs::metadata(&place) {
            Ok(found) if (found.dev(), found.ino()) == (own.dev(), own.ino()) => {
                return Ok(Some(file));
            }
            // It was replaced, or removed, since it was opened.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
    }
}

fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Generic { store: "folder", source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Condition, End, FaultKind, Request, Tag};
    use crate::store::Store;

    const KEY: &str = "superblock";

    fn put(value: u8, condition: Condition) -> Request {
        Request::Put { key: KEY.to_owned(), bytes: vec![value].into(), condition }
    }

    async fn made(folder: &std::path::Path) -> (Store, Tag) {
        let store = Store::create(&format!("file://{}", folder.display())).expect("a folder");
        match store.perform(put(1, Condition::Create)).await {
            End::Stored(tag) => (store, tag),
            end => panic!("it is new: {end:?}"),
        }
    }

    /// Goal: while a process that has looked at an object is paused before it replaces it, none
    /// else replaces it, and says what it waits for; once that one has gone on, its object counts,
    /// and the other's condition does not hold any more. Method: the lock of such a process, held
    /// for longer than any node waits, then let go of once its object is there.
    #[tokio::test(start_paused = true)]
    async fn a_paused_replacement_keeps_its_place() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (store, tag) = made(folder.path()).await;
        let files = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).expect("a folder"));
        let paused =
            hold(&files, &Path::from(KEY)).await.expect("it is free").expect("it is there");
        let begun = Instant::now();
        match store.perform(put(2, Condition::Replace(tag.clone()))).await {
            End::Failed(fault) => {
                assert_eq!(fault.kind, FaultKind::Retry, "{}", fault.cause);
                assert!(fault.cause.contains("is another node paused"), "{}", fault.cause);
            }
            end => panic!("another process is replacing it: {end:?}"),
        }
        assert!(begun.elapsed() >= HOLD_TIME, "it waits for {:?}", begun.elapsed());
        std::fs::write(folder.path().join("next"), [3]).expect("a folder");
        std::fs::rename(folder.path().join("next"), folder.path().join(KEY)).expect("a folder");
        drop(paused);
        match store.perform(put(2, Condition::Replace(tag))).await {
            End::Failed(fault) => assert_eq!(fault.kind, FaultKind::Condition, "{}", fault.cause),
            end => panic!("the paused one has replaced it: {end:?}"),
        }
        let held = std::fs::read(folder.path().join(KEY)).expect("it is there");
        assert_eq!(held, [3]);
    }

    /// Goal: of many that replace one object, each on the condition that it is as they last saw it,
    /// one at a time does. Method: eight tasks on threads of their own, each of which adds one to
    /// the object's value twenty times.
    #[tokio::test(flavor = "multi_thread")]
    async fn replacements_exclude_one_another() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (store, _) = made(folder.path()).await;
        let add = async |store: Store| {
            for _ in 0..20 {
                loop {
                    let get = Request::Get { key: KEY.to_owned(), range: None };
                    let End::Bytes(bytes, Some(tag)) = store.perform(get).await else {
                        panic!("it is there")
                    };
                    let next = put(bytes[0] + 1, Condition::Replace(tag));
                    if let End::Stored(_) = store.perform(next).await {
                        break;
                    }
                }
            }
        };
        let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(add(store.clone()))).collect();
        for task in tasks {
            task.await.expect("it ends");
        }
        assert_eq!(std::fs::read(folder.path().join(KEY)).expect("it is there"), [161]);
    }
}
