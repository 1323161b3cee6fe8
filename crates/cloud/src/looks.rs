//! Looks at paths whose file system may never answer: within a time, or not at all.
//!
//! How: a look is made on another thread, and its caller waits for it for a time. A call that
//! hangs in the kernel (a network mount whose server is gone, a dead disk) keeps that thread. While
//! it does, further looks at the same path, or at what lies below it by words, are refused at once,
//! and so are all where [`HUNG_MAX`] hang. Where the system grants no thread, nothing is looked at,
//! and the error says so. A thread whose look has ended makes the next one: a command looks at many
//! paths, and a new thread for each was most of its processor time.
//! Invariant: a path has at most one thread whose caller has given up, and the process
//! [`HUNG_MAX`] of them. No look waits for the end of another one.
//! Cost: a thread per look at the same time, until it was idle for [`IDLE_TIME`]. Not for: requests
//! to a store; see [`crate::Store`].

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder, ThreadId};
use std::time::Duration;

/// How long a look may take: what mounts itself at its first use comes within it.
pub const LOOK_TIME: Duration = Duration::from_secs(5);
/// Looks that hang, from which on no path is looked at.
const HUNG_MAX: usize = 64;
/// How long a thread waits for its next look before it ends.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// The threads of this process that make looks.
static THREADS: Threads = Threads::new(None, IDLE_TIME);

/// Paths at which a look hangs whose caller has given up.
static HUNG: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn hung() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    HUNG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a look has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It, or an earlier one at this path or above it, has not ended in time.
    Hangs(PathBuf),
    /// The system grants no thread to look at this path.
    NoThread(PathBuf),
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoAnswer::Hangs(path) => {
                let path = path.display();
                write!(f, "a look at `{path}` has not ended: does its server, or disk, not answer?")
            }
            NoAnswer::NoThread(path) => {
                write!(f, "the system grants no thread to look at `{}`", path.display())
            }
        }
    }
}

impl std::error::Error for NoAnswer {}

impl From<NoAnswer> for std::io::Error {
    fn from(no_answer: NoAnswer) -> std::io::Error {
        let kind = match no_answer {
            NoAnswer::Hangs(_) => std::io::ErrorKind::TimedOut,
            NoAnswer::NoThread(_) => std::io::ErrorKind::WouldBlock,
        };
        std::io::Error::new(kind, no_answer)
    }
}

/// What a look at `path` finds, within [`LOOK_TIME`].
///
/// # Errors
/// [`NoAnswer`] where it, or an earlier one, has not ended, or there is no thread for it.
pub fn look_at<T: Send + 'static>(
    path: &Path,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    look_within(&THREADS, LOOK_TIME, path, look)
}

fn look_within<T: Send + 'static>(
    threads: &'static Threads,
    time: Duration,
    path: &Path,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let hangs = || NoAnswer::Hangs(path.to_owned());
    let is_refused = |hung: &BTreeSet<PathBuf>| {
        hung.len() >= HUNG_MAX || path.ancestors().any(|folder| hung.contains(folder))
    };
    if is_refused(&hung()) {
        return Err(hangs());
    }
    let (found, answer) = channel();
    let looked_at = path.to_owned();
    let job = move |thread: &LookThread| {
        let seen = look();
        // Before the answer: a caller's next look finds this thread.
        thread.offer();
        // Under the lock: a caller that gives up sees either the answer or the look.
        let mut hung = hung();
        let _ = found.send(seen);
        hung.remove(&looked_at);
    };
    let started = threads.run(Box::new(job));
    started.map_err(|_| NoAnswer::NoThread(path.to_owned()))?;
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

/// A look, and what gives its answer.
type Job = Box<dyn FnOnce(&LookThread) + Send>;

/// Threads that make looks, one at a time each.
struct Threads {
    stack_bytes: Option<usize>,
    /// How long one waits for a look before it ends.
    idle_time: Duration,
    /// Those that wait for a look, and how each is given one.
    idle: Mutex<Vec<(ThreadId, Sender<Job>)>>,
}

impl Threads {
    const fn new(stack_bytes: Option<usize>, idle_time: Duration) -> Threads {
        Threads { stack_bytes, idle_time, idle: Mutex::new(Vec::new()) }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(ThreadId, Sender<Job>)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a look to the thread that has waited least, or to a new one.
    fn run(&'static self, job: Job) -> std::io::Result<()> {
        let Err(job) = self.give(job) else { return Ok(()) };
        let builder = Builder::new().name("look".to_owned());
        let builder = match self.stack_bytes {
            Some(bytes) => builder.stack_size(bytes),
            None => builder,
        };
        builder.spawn(move || LookThread::new(self).work(job)).map(drop)
    }

    /// Gives a look to an idle thread; gives it back where there is none.
    fn give(&self, job: Job) -> Result<(), Job> {
        // Under the lock to the end: a thread that is not in the list any more has its look.
        let mut idle = self.idle();
        let Some((_, thread)) = idle.pop() else { return Err(job) };
        thread.send(job).map_err(|SendError(job)| job)
    }
}

/// A thread that makes looks.
struct LookThread {
    threads: &'static Threads,
    given: Sender<Job>,
    jobs: Receiver<Job>,
}

impl LookThread {
    fn new(threads: &'static Threads) -> LookThread {
        let (given, jobs) = channel();
        LookThread { threads, given, jobs }
    }

    /// Makes this look, and others, until there was none for a time.
    fn work(self, first: Job) {
        let mut next = Some(first);
        while let Some(job) = next {
            job(&self);
            next = self.next();
        }
    }

    /// Takes another look from now on.
    fn offer(&self) {
        self.threads.idle().push((thread::current().id(), self.given.clone()));
    }

    fn next(&self) -> Option<Job> {
        if let Ok(job) = self.jobs.recv_timeout(self.threads.idle_time) {
            return Some(job);
        }
        let mut idle = self.threads.idle();
        idle.retain(|(id, _)| *id != thread::current().id());
        // One that was given before the lock was had.
        self.jobs.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Barrier};

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
            look_within(&THREADS, time, far, move || {
                looks.fetch_add(1, Ordering::SeqCst);
                end.wait();
            })
        };
        for _ in 0..100 {
            let hangs = look(SOON).expect_err("it waits for the test");
            assert!(hangs.to_string().contains("`/far/hung`"), "{hangs}");
            assert_eq!(look_within(&THREADS, LATE, near, || 7), Ok(7));
        }
        assert!(looks.load(Ordering::SeqCst) <= 1, "each look had a thread");
        end.wait();
        while hung().contains(far) {
            std::thread::yield_now();
        }
        assert_eq!(look_within(&THREADS, LATE, far, || 8), Ok(8));
    }

    /// Goal: what lies below a path that hangs costs no thread and no time. Method: a look that
    /// waits for the test; looks below it, which would end, and beside it.
    #[test]
    fn what_lies_below_a_path_that_hangs_is_refused() {
        let far = Path::new("/far/folder");
        let (answer, silence) = channel::<()>();
        let look = move || silence.recv().is_err();
        let hangs = look_within(&THREADS, SOON, far, look).expect_err("it waits");
        assert_eq!(hangs, NoAnswer::Hangs(far.to_owned()));
        for number in 0..100 {
            let below = far.join(format!("a/{number}"));
            let refused = look_within(&THREADS, LATE, &below, || 7);
            assert_eq!(refused, Err(NoAnswer::Hangs(below)));
        }
        assert_eq!(look_within(&THREADS, LATE, Path::new("/far/folders"), || 7), Ok(7));
        drop(answer);
        while hung().contains(far) {
            std::thread::yield_now();
        }
        assert_eq!(look_within(&THREADS, LATE, &far.join("a"), || 7), Ok(7));
    }

    /// Goal: looks that follow one another share a thread, and one that hangs keeps no other from
    /// its own. Method: threads of the test's own; the numbers of the threads of many looks, beside
    /// one that waits for the test; then of looks after its end.
    #[test]
    fn looks_one_after_another_share_a_thread() {
        static OWN: Threads = Threads::new(None, LATE);
        let number = |_| {
            let near = Path::new("/near/shared");
            look_within(&OWN, LATE, near, || thread::current().id()).expect("it ends at once")
        };
        let first = number(0);
        assert!((0..1000).map(number).all(|id| id == first), "a thread was made for a look");
        let (answer, silence) = channel::<()>();
        let far = Path::new("/far/shared");
        let hangs = look_within(&OWN, SOON, far, move || silence.recv().is_err());
        assert_eq!(hangs, Err(NoAnswer::Hangs(far.to_owned())));
        let second = number(0);
        assert!(second != first, "the first one hangs");
        assert!((0..1000).map(number).all(|id| id == second), "a thread was made for a look");
        drop(answer);
        while hung().contains(far) {
            std::thread::yield_now();
        }
        // The thread that waited least is given the next look.
        assert!((0..1000).map(number).all(|id| id == first), "it makes looks again");
    }

    /// Goal: where the system grants no thread, nothing is looked at, since the caller would wait
    /// for as long as the path hangs, and the error is another one than that of a path that hangs.
    /// Method: a thread with a stack that no address space holds.
    #[test]
    fn without_a_thread_nothing_is_looked_at() {
        let path = Path::new("/near/without-thread");
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        static NONE: Threads = Threads::new(Some(1 << 47), LATE);
        let found = look_within(&NONE, LATE, path, move || counted.fetch_add(1, Ordering::SeqCst));
        assert_eq!(looks.load(Ordering::SeqCst), 0, "the caller has looked itself");
        let refused = found.expect_err("no thread can have that");
        assert!(!refused.to_string().contains("has not ended"), "{refused}");
        assert_eq!(look_within(&THREADS, LATE, path, || 7), Ok(7), "it does not hang");
    }
}
