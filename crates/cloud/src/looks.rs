//! Looks at paths whose file system may never answer: within a time, or not at all.
//!
//! How: a look is made on a thread of its own, and its caller waits for it for a time. A call that
//! hangs in the kernel (a network mount whose server is gone, a dead disk) keeps that thread. While
//! it does, further looks at the same path are refused at once, and so are all where [`HUNG_MAX`]
//! hang. Where the system grants no thread, the caller looks itself.
//! Invariant: a path has at most one thread whose caller has given up, and the process
//! [`HUNG_MAX`] of them.
//! Cost: a thread per look. Not for: requests to a store; see [`crate::Store`].

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a look may take: what mounts itself at its first use comes within it.
pub const LOOK_TIME: Duration = Duration::from_secs(5);
/// Looks that hang, from which on no path is looked at.
const HUNG_MAX: usize = 64;

/// Paths at which a look hangs whose caller has given up.
static HUNG: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn hung() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    HUNG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A look that has not ended in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hangs(PathBuf);

impl fmt::Display for Hangs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.display();
        write!(f, "a look at `{path}` has not ended: does its server, or its disk, not answer?")
    }
}

impl std::error::Error for Hangs {}

impl From<Hangs> for std::io::Error {
    fn from(hangs: Hangs) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::TimedOut, hangs)
    }
}

/// What a look at `path` finds, within [`LOOK_TIME`].
///
/// # Errors
/// [`Hangs`] where it, or an earlier one, has not ended.
pub fn look_at<T: Send + 'static>(
    path: &Path,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Hangs> {
    look_within(LOOK_TIME, path, look)
}

fn look_within<T: Send + 'static>(
    time: Duration,
    path: &Path,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Hangs> {
    let hangs = || Hangs(path.to_owned());
    let is_refused = |hung: &BTreeSet<PathBuf>| hung.len() >= HUNG_MAX || hung.contains(path);
    if is_refused(&hung()) {
        return Err(hangs());
    }
    let (found, answer) = channel();
    let (looked_at, look) = (path.to_owned(), Arc::new(Mutex::new(Some(look))));
    let given = Arc::clone(&look);
    let take = |look: &Mutex<Option<_>>| {
        look.lock().unwrap_or_else(PoisonError::into_inner).take().expect("it is looked once")
    };
    let body = move || {
        let seen = take(&given)();
        // Under the lock: a caller that gives up sees either the answer or the look.
        let mut hung = hung();
        let _ = found.send(seen);
        hung.remove(&looked_at);
    };
    let thread = std::thread::Builder::new().name("look".to_owned());
    if thread.spawn(body).is_err() {
        // A process without threads says so where it needs one.
        return Ok(take(&look)());
    }
    match answer.recv_timeout(time) {
        Ok(seen) => Ok(seen),
        Err(RecvTimeoutError::Disconnected) => panic!("a look at `{}` panicked", path.display()),
        Err(RecvTimeoutError::Timeout) => {
            let mut hung = hung();
            if let Ok(seen) = answer.try_recv() {
                return Ok(seen);
            }
            hung.insert(path.to_owned());
            Err(hangs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const SOON: Duration = Duration::from_millis(1);
    const LATE: Duration = Duration::from_secs(60);

    /// Goal: a path that hangs costs one thread however often it is looked at, and no other path
    /// its answer; once it answers, it is looked at again. Method: a look that waits until the test
    /// lets it end; looks at its path and at another one meanwhile, and after.
    #[test]
    fn a_path_that_hangs_costs_one_thread() {
        let (far, near) = (Path::new("/far/hung"), Path::new("/near"));
        let (end, looks) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
        let look = |time| {
            let (end, looks) = (Arc::clone(&end), Arc::clone(&looks));
            look_within(time, far, move || {
                looks.fetch_add(1, Ordering::SeqCst);
                end.wait();
            })
        };
        for _ in 0..100 {
            let hangs = look(SOON).expect_err("it waits for the test");
            assert!(hangs.to_string().contains("`/far/hung`"), "{hangs}");
            assert_eq!(look_within(LATE, near, || 7), Ok(7));
        }
        assert!(looks.load(Ordering::SeqCst) <= 1, "each look had a thread");
        end.wait();
        while hung().contains(far) {
            std::thread::yield_now();
        }
        assert_eq!(look_within(LATE, far, || 8), Ok(8));
    }
}
