//! One process at a time replaces an object of a folder.
//!
//! How: an exclusive lock on a file beside the object, of a name that listings pass over, from the
//! look at the object until another file has its name. The look and the replacement are a task of
//! their own, so that the lock stays where their caller gives up.
//! Invariant: a process that is paused in between, or whose disk does not answer, for however long,
//! finds the object as it left it: none replaces it meanwhile. The lock ends with its process. A
//! process that locks a file which has lost its name, since its object was removed, tries again.
//! Cost: a few system calls per replacement, and a look every few milliseconds while another
//! process replaces it. Not for: objects that are made anew, which a folder does in one step; file
//! systems without such locks, where it is looked at and replaced all the same.

use object_store::Error;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long another process may take to replace an object.
pub(super) const HOLD_TIME: Duration = Duration::from_secs(10);
const LOOK_TIME: Duration = Duration::from_millis(10);
/// Names with a number behind this sign are a folder's uploads under way, counted from 1.
const LOCK_SUFFIX: &str = "#0";

/// An object's lock.
#[derive(Debug)]
pub(super) struct Held {
    /// None where the file system has no locks, or there is no such folder.
    lock: Option<File>,
    /// Its file, where there is one.
    place: Option<PathBuf>,
}

impl Held {
    /// Whether no other process has it.
    pub(super) fn is_locked(&self) -> bool {
        self.lock.is_some()
    }

    /// Removes the lock's file, behind its object.
    pub(super) fn remove(self) {
        if let Some(place) = self.place {
            // Whatever stays is empty, and goes with the next one.
            let _ = std::fs::remove_file(place);
        }
        drop(self.lock);
    }
}

/// Waits for an object's lock.
///
/// # Errors
/// Where another process holds it for longer than [`HOLD_TIME`], or its file cannot be made.
pub(super) async fn hold(folder: &Arc<LocalFileSystem>, path: &Path) -> Result<Held, Error> {
    let begun = Instant::now();
    loop {
        let (folder, at) = (Arc::clone(folder), path.clone());
        let tried = tokio::task::spawn_blocking(move || attempt(&folder, &at)).await;
        match tried.map_err(|error| generic(error.into()))? {
            Ok(held) => return Ok(held),
            Err(Refused::Held) if begun.elapsed() < HOLD_TIME => {}
            Err(Refused::Held) => {
                let cause = format!(
                    "`{path}` has been under replacement for {} s: is another node paused, or does \
                     the folder's disk not answer?",
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

fn attempt(folder: &LocalFileSystem, path: &Path) -> Result<Held, Refused> {
    let object = folder.path_to_filesystem(path);
    let mut place = object.map_err(|error| Refused::Failed(error.into()))?.into_os_string();
    place.push(LOCK_SUFFIX);
    let place = PathBuf::from(place);
    loop {
        // To be written, as NFS wants it for such a lock.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = match options.open(&place) {
            // There is no such folder, and so no object.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Held { lock: None, place: None });
            }
            opened => opened.map_err(Refused::Failed)?,
        };
        if let Some(held) = lock(file, &place)? {
            return Ok(held);
        }
    }
}

/// Locks a file that was opened at this place; none where it was removed since, with the object.
fn lock(file: File, place: &std::path::Path) -> Result<Option<Held>, Refused> {
    let held = |lock| Ok(Some(Held { lock, place: Some(place.to_owned()) }));
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(Refused::Held),
        Err(Errno::NOSYS | Errno::NOLCK | Errno::OPNOTSUPP | Errno::INVAL) => return held(None),
        Err(errno) => return Err(Refused::Failed(errno.into())),
    }
    let own = file.metadata().map_err(Refused::Failed)?;
    match std::fs::metadata(place) {
        Ok(found) if (found.dev(), found.ino()) == (own.dev(), own.ino()) && own.nlink() > 0 => {
            held(Some(file))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Refused::Failed(error)),
    }
}

pub(super) fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
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
        let paused = hold(&files, &Path::from(KEY)).await.expect("it is free");
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

    /// Goal: a replacement whose caller has given up keeps its lock until it is over. Method: a put
    /// of many bytes, given up once it has the lock; the next one that gets the lock finds the
    /// object replaced.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_replacement_that_is_given_up_keeps_its_lock() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (store, tag) = made(folder.path()).await;
        let files = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).expect("a folder"));
        let (key, condition) = (KEY.to_owned(), Condition::Replace(tag));
        let bytes = vec![7; 96 << 20].into();
        let put = Request::Put { key, bytes, condition };
        let putting = tokio::spawn(async move { store.perform(put).await });
        while attempt(&files, &Path::from(KEY)).is_ok() && !putting.is_finished() {
            tokio::task::yield_now().await;
        }
        putting.abort();
        let held = hold(&files, &Path::from(KEY)).await.expect("it ends");
        let found = std::fs::metadata(folder.path().join(KEY)).expect("it is there");
        assert_eq!(found.len(), 96 << 20, "the lock is free before the object is replaced");
        drop(held);
    }

    /// Goal: a lock's file goes with its object, and the volume's folder with both. Method: a
    /// replacement; keys that are listed; the deletion.
    #[tokio::test]
    async fn a_lock_goes_with_its_object() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (store, tag) = made(folder.path()).await;
        let end = store.perform(put(2, Condition::Replace(tag))).await;
        assert!(matches!(end, End::Stored(_)), "{end:?}");
        let listed = store.perform(Request::List { prefix: String::new() }).await;
        let is_both = matches!(&listed, End::Keys(keys) if *keys == [KEY, "superblock#0"]);
        assert!(is_both, "{listed:?}");
        let end = store.perform(Request::Delete { key: KEY.to_owned() }).await;
        assert!(matches!(end, End::Done), "{end:?}");
        assert!(!folder.path().exists());
    }

    /// Goal: a process that waited for a lock whose file was removed meanwhile does not have it,
    /// whether there is a new file by then or none. Method: files opened by such processes, locked
    /// after others have removed the lock, and taken a new one.
    #[tokio::test]
    async fn a_lock_without_its_name_is_none() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).expect("a folder"));
        let (path, place) = (Path::from(KEY), folder.path().join("superblock#0"));
        let holder = hold(&files, &path).await.expect("it is free");
        let waiting = [(); 2].map(|()| File::options().write(true).open(&place).expect("there"));
        let [first, second] = waiting;
        assert!(matches!(lock(first, &place), Err(Refused::Held)));
        let first = File::options().write(true).open(&place).expect("it is there");
        holder.remove();
        assert!(matches!(lock_soon(first, &place), Ok(None)), "its file is gone");
        let holder = hold(&files, &path).await.expect("it is free");
        assert!(matches!(lock_soon(second, &place), Ok(None)), "another file has its name");
        assert!(holder.is_locked());
    }

    /// Locks a file that its holder has let go of. A process that another test begins has its lock,
    /// too, until it runs its own program.
    fn lock_soon(file: File, place: &std::path::Path) -> Result<Option<Held>, Refused> {
        for _ in 0..1_000_000 {
            match lock(file.try_clone().expect("a descriptor"), place) {
                Err(Refused::Held) => std::thread::yield_now(),
                ended => return ended,
            }
        }
        lock(file, place)
    }

    /// Goal: of many that replace one object, each on the condition that it is as they last saw it,
    /// one at a time does. Method: eight tasks on threads of their own, each of which adds one to
    /// the object's value twenty times.
    #[tokio::test(flavor = "multi_thread")]
    async fn replacements_exclude_one_another() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (store, _) = made(folder.path()).await;
        let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(add(store.clone(), 20))).collect();
        for task in tasks {
            task.await.expect("it ends");
        }
        assert_eq!(std::fs::read(folder.path().join(KEY)).expect("it is there"), [161]);
    }

    /// Adds one to the object's value, so many times.
    async fn add(store: Store, times: u8) {
        for _ in 0..times {
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
    }

    /// The folder for a process of the test below that replaces.
    const FOLDER: &str = "LAYBY_TEST_HOLD_FOLDER";

    /// Goal: while a lock's file is removed under its lock again and again, still one process at a
    /// time replaces the object. Method: this test's program twice more, each as a process that
    /// adds one to the object's value a hundred times, and removals of the file until both have
    /// ended.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_lock_whose_file_is_removed_excludes_processes() {
        if let Ok(url) = std::env::var(FOLDER) {
            return add(Store::open(&url).expect("a folder"), 100).await;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (store, _) = made(folder.path()).await;
        let name = "store::hold::tests::a_lock_whose_file_is_removed_excludes_processes";
        let start = || {
            let mut command = std::process::Command::new(std::env::current_exe().expect("a path"));
            let command = command.args(["--exact", name]).env(FOLDER, store.url());
            command.stdout(std::process::Stdio::null()).spawn().expect("it starts")
        };
        let mut processes = [start(), start()];
        let files = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).expect("a folder"));
        let mut removals = 0;
        while processes.iter_mut().any(|one| one.try_wait().expect("it is ours").is_none()) {
            hold(&files, &Path::from(KEY)).await.expect("it is free now and then").remove();
            removals += 1;
        }
        for mut process in processes {
            assert!(process.wait().expect("it is ours").success());
        }
        assert_eq!(std::fs::read(folder.path().join(KEY)).expect("it is there"), [201]);
        assert!(removals > 10, "{removals} removals");
    }
}
