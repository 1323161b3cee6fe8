//! Calls at a path with a time limit, of which a folder that hangs costs one.
//!
//! How: before the call, the path's folder is asked for its status, within a time of its own; where
//! the path is a symbolic link, that of its target, too. What lies by words below a folder that has
//! not answered is refused without a call; see [`layby_cloud::look_at`].
//! Invariant: while a folder hangs it costs one thread and one time limit, however many paths lie
//! in it, or are links into it. Cost: two looks more per call, and two per link.
//! Not for: links among a folder's own components; each such name of a folder counts by itself.

use layby_cloud::{NoAnswer, look_at};
use std::path::Path;

/// Symbolic links that are followed, as the kernel does.
pub(super) const LINKS_MAX: usize = 40;

/// What a call at `path` finds, once the folders that it leads to have answered.
///
/// # Errors
/// [`NoAnswer`], with this path, where one of them or the call has not.
pub(super) fn look_through<T: Send + 'static>(
    path: &Path,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let found = reach(path, LINKS_MAX).and_then(|()| look_at(path, call));
    found.map_err(|no_answer| match no_answer {
        NoAnswer::Hangs(_) => NoAnswer::Hangs(path.to_owned()),
        NoAnswer::NoThread(_) => NoAnswer::NoThread(path.to_owned()),
    })
}

/// Whether the folders that a path leads to answer: its own, and those of its links' targets.
fn reach(path: &Path, links_max: usize) -> Result<(), NoAnswer> {
    let Some(folder) = path.parent() else { return Ok(()) };
    let asked = folder.to_owned();
    look_at(folder, move || {
        #[cfg(test)]
        super::hanging::pass(&asked);
        drop(std::fs::metadata(&asked));
    })?;
    // By its own name: the path may be where a file system is mounted that hangs.
    let asked = path.to_owned();
    let target = look_at(path, move || std::fs::read_link(&asked).ok())?;
    match target {
        Some(target) if links_max > 0 => reach(&folder.join(target), links_max - 1),
        _ => Ok(()),
    }
}
