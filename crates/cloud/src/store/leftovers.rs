//! Files of a folder that are no objects: what uploads that were cut short left, and locks.
//!
//! How: the folder's client writes an object as `KEY#1`, or the next number that is free, and gives
//! it its name once it is whole; a process that ends in between leaves that file. `KEY#0` is a
//! lock; see `hold`. The client's listings pass over such names and its deletions refuse them: here
//! they are listed, right below the volume's own prefixes, and removed.
//! Invariant: a lock's file goes under the lock, and with its object alone: a process that waited
//! for it finds no such file, or a new one, and tries again. A temporary file of an object that is
//! replaced goes under the lock, too, so that none is of an upload under way. All others are the
//! caller's to judge: the volume knows by the epoch in a key that nothing is to be put there any
//! more.
//! Cost: a listing reads five folders; a removal is a few system calls. Not for: file systems
//! without locks, where a superblock's temporary files stay until it goes.

use super::hold::{self, Held};
use crate::removal::{PREFIXES, PROBES_PREFIX, is_right_below, temporary_of};
use crate::superblock::SUPERBLOCK_KEY;
use object_store::Error;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use std::fs;
use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};

/// An object's file, and the folder of its volume.
#[derive(Clone, Debug)]
pub(super) struct Place {
    object: PathBuf,
    volume: PathBuf,
    /// As the volume's URL names that folder, which may be a link to it.
    named: PathBuf,
}

/// Whether an object is replaced, so that it has a lock; all others are put once.
pub(super) fn is_replaced(key: &str) -> bool {
    key == SUPERBLOCK_KEY || is_right_below(key, PROBES_PREFIX)
}

/// Names the files beside objects of the volume whose superblock lies there.
pub(super) async fn keys(
    folder: &LocalFileSystem,
    superblock: &Location,
) -> std::result::Result<Vec<String>, Error> {
    let volume = folder_of(&folder.path_to_filesystem(superblock)?).to_owned();
    blocking(move || {
        let mut keys = names(&volume)?;
        keys.retain(|key| temporary_of(key).is_some_and(|(of, _)| of == SUPERBLOCK_KEY));
        for prefix in PREFIXES {
            let found = names(&volume.join(prefix))?.into_iter();
            keys.extend(found.map(|name| format!("{prefix}{name}")));
        }
        Ok(keys)
    })
    .await
}

impl Place {
    pub(super) fn new(
        (folder, url): (&LocalFileSystem, &str),
        superblock: &Location,
        object: &Location,
    ) -> std::result::Result<Place, Error> {
        let volume = folder_of(&folder.path_to_filesystem(superblock)?).to_owned();
        // Without slashes and dots at its end.
        let named = Path::new(url.trim_start_matches("file://")).components().collect();
        Ok(Place { object: folder.path_to_filesystem(object)?, volume, named })
    }

    /// Removes an object that is replaced, or the file with that number beside an object.
    pub(super) async fn remove(
        self,
        number: Option<u64>,
        held: Option<Held>,
    ) -> std::result::Result<(), Error> {
        blocking(move || match (number, held) {
            (Some(number), held) => self.remove_beside(number, held),
            (None, Some(held)) => self.remove_object(held),
            (None, None) => unreachable!("the folder's client removes what is put once"),
        })
        .await
    }

    /// Ends a lock; its file goes where it has no object.
    pub(super) async fn end(self, held: Held) -> std::result::Result<(), Error> {
        blocking(move || {
            self.end_lock(held);
            Ok(())
        })
        .await
    }

    fn remove_object(&self, held: Held) -> Result<()> {
        gone(fs::remove_file(&self.object))?;
        // The volume has no owner that replaces it, and a process that makes it anew tries again.
        for name in names(folder_of(&self.object))? {
            let Some((of, number)) = temporary_of(&name) else { continue };
            if number > 0 && self.object.file_name().is_some_and(|own| own == of) {
                gone(fs::remove_file(self.beside(number)))?;
            }
        }
        held.remove();
        self.remove_folders();
        Ok(())
    }

    fn remove_beside(&self, number: u64, held: Option<Held>) -> Result<()> {
        let may_be_written = held.as_ref().is_some_and(|held| !held.is_locked());
        if number > 0 && (!may_be_written || self.is_gone()) {
            gone(fs::remove_file(self.beside(number)))?;
        }
        match held {
            Some(held) => self.end_lock(held),
            None => self.remove_folders(),
        }
        Ok(())
    }

    fn end_lock(&self, held: Held) {
        if self.is_gone() {
            held.remove();
            self.remove_folders();
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self.object.try_exists(), Ok(false))
    }

    fn beside(&self, number: u64) -> PathBuf {
        let mut path = self.object.clone().into_os_string();
        path.push(format!("#{number}"));
        path.into()
    }

    /// Removes folders that are empty now; the volume's own goes with its superblock alone, and
    /// stays where a link to it would name nothing then.
    fn remove_folders(&self) {
        let is_link = || fs::symlink_metadata(&self.named).is_ok_and(|found| found.is_symlink());
        let is_last = folder_of(&self.object) == self.volume && !is_link();
        let below = self.object.ancestors().skip(1).take_while(|folder| *folder != self.volume);
        let own = is_last.then_some(self.volume.as_path());
        // One that is not empty, or is another's to remove, stays, and those above it.
        let _ = below.chain(own).try_for_each(fs::remove_dir);
    }
}

fn folder_of(file: &Path) -> &Path {
    file.parent().expect("a file lies in a folder")
}

/// Names of files beside objects in a folder; of none where there is no such folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if temporary_of(&name).is_some() && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            names.push(name);
        }
    }
    Ok(names)
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// What is not there is removed.
fn gone(removed: Result<()>) -> Result<()> {
    match removed {
        Err(error) if is_absent(&error) => Ok(()),
        removed => removed,
    }
}

/// Does so beside the node's other tasks, and to the end where its caller gives up.
async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T> + Send + 'static,
) -> std::result::Result<T, Error> {
    let ended = tokio::task::spawn_blocking(act).await;
    ended.map_err(|error| hold::generic(error.into()))?.map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            Error::PermissionDenied { path: String::new(), source: error.into() }
        }
        _ => hold::generic(error.into()),
    })
}

#[cfg(test)]
mod tests {
    use crate::action::{Condition, End, FaultKind, Request, Tag};
    use crate::store::Store;
    use crate::superblock::SUPERBLOCK_KEY;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn put(key: &str, value: u8, condition: Condition) -> Request {
        Request::Put { key: key.to_owned(), bytes: vec![value].into(), condition }
    }

    fn store(folder: &Path) -> Store {
        Store::create(&format!("file://{}", folder.display())).expect("a folder")
    }

    async fn stored(store: &Store, request: Request) -> Tag {
        match store.perform(request).await {
            End::Stored(tag) => tag,
            end => panic!("its condition holds: {end:?}"),
        }
    }

    async fn done(store: &Store, request: Request) {
        let end = store.perform(request).await;
        assert!(matches!(end, End::Done), "{end:?}");
    }

    /// Files below a folder by their names in it.
    fn files(folder: &Path) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).expect("readable") {
                let path = entry.expect("readable").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => {
                        let name = path.strip_prefix(folder).expect("it is below");
                        found.insert(name.to_str().expect("plain").to_owned());
                    }
                }
            }
        }
        found
    }

    fn plant(folder: &Path, name: &str) {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
        std::fs::write(path, b"cut short").expect("a folder");
    }

    /// Goal: a probe's object leaves nothing when it is removed, no lock and no folder, and the
    /// volume's folder stays while it has a superblock. Method: the puts of a probe, its end, many
    /// times; the lock that an earlier version left of one.
    #[tokio::test]
    async fn a_probe_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = store(folder.path());
        for round in 0..3 {
            let key = format!("probes/node-{round}");
            let tag = stored(&store, put(&key, 1, Condition::Create)).await;
            stored(&store, put(&key, 2, Condition::Replace(tag.clone()))).await;
            let refused = store.perform(put(&key, 3, Condition::Replace(tag))).await;
            assert!(matches!(refused, End::Failed(_)), "{refused:?}");
            done(&store, Request::Delete { key: key.clone() }).await;
            assert_eq!(std::fs::read_dir(folder.path()).expect("it stays").count(), 0);
        }
        stored(&store, put(SUPERBLOCK_KEY, 1, Condition::Create)).await;
        plant(folder.path(), "probes/node-9#0");
        done(&store, Request::DeleteMany { keys: vec!["probes/node-9#0".to_owned()] }).await;
        let left = std::fs::read_dir(folder.path()).expect("it stays");
        let left: Vec<_> = left.map(|entry| entry.expect("readable").file_name()).collect();
        assert_eq!(left, [SUPERBLOCK_KEY]);
    }

    /// Goal: a listing names what uploads left right below the volume's own prefixes, and what is
    /// listed can be removed; a lock goes only without its object; nothing else goes. Method: such
    /// files in a folder, beside a nested volume's, a folder of such a name, and strangers.
    #[tokio::test]
    async fn what_is_listed_can_be_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for prefix in ["", "deep/v"] {
            let root = folder.path().join("root");
            std::fs::create_dir(&root).expect("a folder");
            let made = store(&root.join(prefix));
            let store = match prefix {
                "" => made,
                // A client that was made before the volume's folder.
                _ => {
                    std::fs::remove_dir_all(root.join("deep")).expect("a folder");
                    Store::open(&format!("file://{}/{prefix}", root.display())).expect("a folder")
                }
            };
            let volume = root.join(prefix);
            let tag = stored(&store, put(SUPERBLOCK_KEY, 1, Condition::Create)).await;
            stored(&store, put(SUPERBLOCK_KEY, 2, Condition::Replace(tag))).await;
            let own =
                ["checkpoints/1#1", "probes/1#0", "probes/1#1", "segments/1#1", "superblock#1"];
            let others =
                ["other/segments/1#1", "other/superblock#1", "segments/other/segments/1#1"];
            for name in own.iter().chain(&others) {
                plant(&volume, name);
            }
            plant(&volume, "segments/2#1/file");
            let listed = store.perform(Request::List { prefix: String::new() }).await;
            let End::Keys(keys) = listed else { panic!("it is there: {listed:?}") };
            let found: BTreeSet<&str> = keys.iter().map(String::as_str).collect();
            let beside = [SUPERBLOCK_KEY, "superblock#0"];
            assert_eq!(found, own.iter().copied().chain(beside).collect(), "{prefix}");
            assert_eq!(found.len(), keys.len(), "each once: {keys:?}");
            let listed = store.perform(Request::List { prefix: "segments/".to_owned() }).await;
            let is_right = matches!(&listed, End::Keys(keys) if *keys == ["segments/1#1"]);
            assert!(is_right, "{listed:?}");
            let keys = own.iter().chain(&["superblock#0"]).map(|key| (*key).to_owned()).collect();
            done(&store, Request::DeleteMany { keys }).await;
            let kept = others.iter().chain(&beside).chain(&["segments/2#1/file"]);
            let kept = kept.map(|name| (*name).to_owned()).collect();
            assert_eq!(files(&volume), kept, "{prefix}");
            assert!(!volume.join("probes").exists() && !volume.join("checkpoints").exists());
            for name in ["other", "segments"] {
                std::fs::remove_dir_all(volume.join(name)).expect("the test's own");
            }
            plant(&volume, "superblock#3");
            done(&store, Request::Delete { key: SUPERBLOCK_KEY.to_owned() }).await;
            assert!(!volume.exists(), "{prefix}: {:?}", files(&volume));
            let _ = std::fs::remove_dir_all(&root);
        }
    }

    /// Goal: the folder of a removed volume that was reached by a link stays, so that the link goes
    /// on to name one. Method: a volume behind a link, made and removed twice.
    #[tokio::test]
    async fn a_link_goes_on_to_name_a_folder() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("real")).expect("a folder");
        std::os::unix::fs::symlink("real", folder.path().join("alias")).expect("a folder");
        for name in ["alias", "alias/"] {
            let store = store(&folder.path().join(name));
            stored(&store, put(SUPERBLOCK_KEY, 1, Condition::Create)).await;
            done(&store, Request::Delete { key: SUPERBLOCK_KEY.to_owned() }).await;
            let left = std::fs::read_dir(folder.path().join("real")).expect("it stays");
            assert_eq!(left.count(), 0);
        }
    }

    /// Goal: an upload under way of the superblock keeps its temporary file, and a removal of it is
    /// asked again. Method: the lock of a process that replaces it, held; then let go of.
    #[tokio::test(start_paused = true)]
    async fn an_upload_under_way_keeps_its_file() {
        use object_store::local::LocalFileSystem;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = store(folder.path());
        stored(&store, put(SUPERBLOCK_KEY, 1, Condition::Create)).await;
        let files = LocalFileSystem::new_with_prefix(folder.path()).expect("a folder");
        let at = object_store::path::Path::from(SUPERBLOCK_KEY);
        let replaces = super::super::hold::hold(&files.into(), &at).await.expect("it is free");
        plant(folder.path(), "superblock#1");
        let sweep = Request::DeleteMany { keys: vec!["superblock#1".to_owned()] };
        match store.perform(sweep.clone()).await {
            End::Failed(fault) => assert_eq!(fault.kind, FaultKind::Retry, "{}", fault.cause),
            end => panic!("another process is replacing it: {end:?}"),
        }
        assert!(folder.path().join("superblock#1").exists());
        drop(replaces);
        done(&store, sweep).await;
        assert!(!folder.path().join("superblock#1").exists());
        assert!(folder.path().join(SUPERBLOCK_KEY).exists());
    }

    /// Goal: a superblock that is removed while others replace it stays removed, and nothing stays
    /// beside it. Method: tasks on threads of their own, each with files of its own as processes
    /// have them, that replace it until it is gone; a removal in between, many times.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_removal_ends_among_replacements() {
        for round in 0..30 {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let volume = folder.path().join("v");
            let made = store(&volume);
            stored(&made, put(SUPERBLOCK_KEY, 0, Condition::Create)).await;
            let replace = async |store: Store| {
                let get = Request::Get { key: SUPERBLOCK_KEY.to_owned(), range: None };
                while let End::Bytes(bytes, Some(tag)) = store.perform(get.clone()).await {
                    let value = bytes[0].wrapping_add(1);
                    store.perform(put(SUPERBLOCK_KEY, value, Condition::Replace(tag))).await;
                }
            };
            let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(replace(store(&volume)))).collect();
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            done(&made, Request::Delete { key: SUPERBLOCK_KEY.to_owned() }).await;
            for task in tasks {
                task.await.expect("it ends");
            }
            assert!(!volume.exists(), "round {round}: {:?}", files(&volume));
        }
    }
}
