//! Folders that hang, as network mounts whose server is gone: for tests alone.
//!
//! How: what resolves or identifies a path calls [`pass`] first, which waits while the path is in
//! such a folder. Invariant: nothing waits once the folder's [`Hanging`] has been dropped.
//! Cost: nothing outside of tests. Not for: looks that a test makes itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Folders that hang, and how many looks have got there.
static HANGING: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());
/// A folder hangs no more.
static ENDED: Condvar = Condvar::new();

/// A folder that hangs until this is dropped.
pub(crate) struct Hanging(PathBuf);

impl Hanging {
    /// Whether a look has got there.
    pub(crate) fn is_reached(&self) -> bool {
        self.looks() > 0
    }

    /// How many looks have got there.
    pub(crate) fn looks(&self) -> usize {
        hanging().get(&self.0).copied().unwrap_or_default()
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        hanging().remove(&self.0);
        ENDED.notify_all();
    }
}

fn hanging() -> MutexGuard<'static, BTreeMap<PathBuf, usize>> {
    HANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has looks at a folder, and at all in it, hang.
pub(crate) fn hang(folder: &Path) -> Hanging {
    hanging().insert(folder.to_owned(), 0);
    Hanging(folder.to_owned())
}

/// Folders whose looks are counted, and how many there were.
static WATCHED: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());

/// A folder whose looks are counted until this is dropped.
pub(crate) struct Watched(PathBuf);

impl Watched {
    /// How many looks there were at it, and at what is in it.
    pub(crate) fn looks(&self) -> usize {
        watched().get(&self.0).copied().unwrap_or_default()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        watched().remove(&self.0);
    }
}

fn watched() -> MutexGuard<'static, BTreeMap<PathBuf, usize>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has looks at a folder, and at all in it, be counted.
pub(crate) fn watch(folder: &Path) -> Watched {
    watched().insert(folder.to_owned(), 0);
    Watched(folder.to_owned())
}

/// Waits while a path is in a folder that hangs, or leads there by links.
pub(super) fn pass(path: &Path) {
    let mut watched = watched();
    if let Some((_, looks)) = watched.iter_mut().find(|(folder, _)| path.starts_with(folder)) {
        *looks += 1;
    }
    drop(watched);
    let target = path.canonicalize();
    let leads = |folder: &Path| {
        path.starts_with(folder) || target.as_ref().is_ok_and(|target| target.starts_with(folder))
    };
    let mut hanging = hanging();
    if let Some((_, looks)) = hanging.iter_mut().find(|(folder, _)| leads(folder)) {
        *looks += 1;
    }
    while hanging.keys().any(|folder| leads(folder)) {
        hanging = ENDED.wait(hanging).unwrap_or_else(PoisonError::into_inner);
    }
}
