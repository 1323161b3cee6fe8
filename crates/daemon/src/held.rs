//! The directories that nodes of this process hold, whatever is at their paths.
//!
//! How: with its lock a node opens its directory, and keeps both. A path may come to lead elsewhere
//! while it runs: the directory is moved or replaced, or a file system is mounted over it. What the
//! node writes for itself goes to the directory that it holds ([`folder`]); where that is not
//! possible, and before a change that an operator asks for, it is looked whether the path still
//! leads there ([`check`]).
//! Invariant: no file of another node that is at the path by then is changed or removed.
//! Cost: a system call per change, and one in ten seconds. Not for: files that are open, which stay
//! the node's own.

use crate::error::{Report, ReportKind};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf, absolute};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// How often it is looked whether a directory is where it was.
const PERIOD: Duration = Duration::from_secs(10);

/// All that are held: a path says which node's it is, as the lock's file does for other processes.
static HELD: Mutex<Vec<Weak<HeldDirectory>>> = Mutex::new(Vec::new());

/// A node's directory, held until dropped.
#[derive(Debug)]
pub(crate) struct HeldDirectory {
    path: PathBuf,
    folder: File,
    /// That it is elsewhere was said.
    is_told: AtomicBool,
}

/// A directory that is not at its path any more.
#[derive(Debug)]
pub(crate) struct Moved(PathBuf);

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.display();
        write!(
            f,
            "`{path}` is not this node's directory any more: it was moved or replaced, or a file \
             system was mounted over it"
        )
    }
}

impl std::error::Error for Moved {}

impl From<Moved> for Error {
    fn from(moved: Moved) -> Error {
        Error::new(ErrorKind::NotFound, moved)
    }
}

impl Moved {
    /// What a change is refused with.
    pub(crate) fn report(&self, error: impl Into<String>) -> Report {
        Report::new(ReportKind::Failure, error).cause(self.to_string()).state(STATE).hint(HINT)
    }
}

/// What is safe while a directory is elsewhere.
pub(crate) const STATE: &str = "nothing was changed, and nothing at that path is touched; volumes \
                                that are served are served on";
/// What ends it.
pub(crate) const HINT: &str = "put the directory back to where it was, or stop the node and start \
                               it with --dir where the directory is now";

impl HeldDirectory {
    /// Holds the directory at `path` from now on.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn hold(path: &Path) -> Result<Arc<HeldDirectory>> {
        let (path, folder) = (path.to_owned(), File::open(path)?);
        let held = Arc::new(HeldDirectory { path, folder, is_told: AtomicBool::new(false) });
        let mut all = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|held| held.strong_count() > 0);
        all.push(Arc::downgrade(&held));
        Ok(held)
    }

    fn has(&self, path: &Path) -> bool {
        let absolute = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_owned());
        path.starts_with(&self.path) || absolute(path).starts_with(absolute(&self.path))
    }

    /// Whether its path still leads to it. What does not answer may be anything.
    fn is_there(&self) -> bool {
        let place = |found: Metadata| (found.dev(), found.ino());
        let own = self.folder.metadata().map(place).ok();
        let is_there = own.is_some() && std::fs::metadata(&self.path).map(place).ok() == own;
        let was_told = self.is_told.swap(!is_there, Ordering::Relaxed);
        let path = self.path.display();
        match (is_there, was_told) {
            (false, false) => {
                let cause = Moved(self.path.clone()).to_string();
                tracing::error!(%path, cause, "no change of the node is possible; {HINT}");
            }
            (true, true) => tracing::info!(%path, "the node's directory is back"),
            _ => {}
        }
        is_there
    }
}

/// The held directories that a path lies in.
fn around(path: &Path) -> Vec<Arc<HeldDirectory>> {
    let all = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter_map(Weak::upgrade).filter(|held| held.has(path)).collect()
}

/// Refuses to change what is at a path that led into a directory which a node of this process
/// holds, and leads elsewhere by now. Looks at paths.
///
/// # Errors
/// That it does.
pub(crate) fn check(path: &Path) -> std::result::Result<(), Moved> {
    match around(path).into_iter().find(|held| !held.is_there()) {
        Some(held) => Err(Moved(held.path.clone())),
        None => Ok(()),
    }
}

/// A node's directory, to act in: the one that is held, wherever it is by now; where none is, the
/// one at the path.
///
/// # Errors
/// The system's.
pub(crate) fn folder(dir: &Path) -> Result<File> {
    match around(dir).into_iter().find(|held| held.path == dir) {
        Some(held) => held.folder.try_clone(),
        None => File::open(dir),
    }
}

/// Looks for as long as the node in `dir` runs, so that its log says early what the next change
/// would be refused for; never ends.
pub(crate) async fn attend(dir: PathBuf) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // It says so itself.
        look(dir.clone()).await;
    }
}

/// The same as [`check`], on a thread that may wait.
async fn look(dir: PathBuf) -> Option<Moved> {
    // It fails where the node ends.
    tokio::task::spawn_blocking(move || check(&dir).err()).await.ok().flatten()
}

/// That the directory of a node was elsewhere when it was looked last. Looks at nothing.
pub(crate) fn told(dir: &Path) -> Option<Moved> {
    let mut all = around(dir).into_iter();
    let held = all.find(|held| held.is_told.load(Ordering::Relaxed))?;
    Some(Moved(held.path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a path is the node's until its directory is moved or replaced, and again once it is
    /// back; what lies elsewhere is nobody's; the node acts in its own directory all along. Method:
    /// each in turn.
    #[test]
    fn a_directory_is_known_by_what_it_is() {
        let base = tempfile::tempdir().expect("a folder");
        let (dir, away) = (base.path().join("node"), base.path().join("away"));
        std::fs::create_dir(&dir).expect("writable");
        let held = HeldDirectory::hold(&dir).expect("it is there");
        let own = |folder: File| folder.metadata().expect("it is open").ino();
        let number = own(folder(&dir).expect("it is there"));
        let check_all = || [&dir, &dir.join("volumes/v"), &away].map(|path| check(path).is_ok());
        assert_eq!(check_all(), [true; 3]);
        std::fs::rename(&dir, &away).expect("writable");
        assert_eq!(check_all(), [false, false, true], "nothing is there");
        std::fs::create_dir(&dir).expect("writable");
        assert_eq!(check_all(), [false, false, true], "another one is there");
        assert_eq!(own(folder(&dir).expect("it is held")), number);
        std::fs::remove_dir(&dir).expect("it is empty");
        std::fs::rename(&away, &dir).expect("writable");
        assert_eq!(check_all(), [true; 3]);
        std::fs::rename(&dir, &away).expect("writable");
        drop(held);
        assert_eq!(check_all(), [true; 3], "nobody holds it");
    }
}
