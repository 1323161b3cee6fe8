//! The threads of a node: whether the system grants them, and the ends of its shards' threads.
//!
//! How: before anything is made, as many threads as a start needs are started at once and ended
//! again. The threads that wait for the ends of shards are there before the shards are.
//! Invariant: where the system grants too few threads, the start is refused and nothing runs.
//! Cost: some ten microseconds per thread and start.
//! Not for: threads that other programs take between the trial and the start. Where one is asked
//! for by the node itself, that refuses the start, too; the runtime's own requests panic.

use crate::control::View;
use crate::error::Report;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tokio::sync::mpsc;

/// What to do where the system grants no thread.
pub(crate) const MORE_THREADS: &str = "raise the limit on processes of the node's user \
    (`ulimit -u`, `LimitNPROC=`) or of its control group (`TasksMax=`, `pids.max`), or end other \
    programs";

/// Threads of a shard at its start: one that starts it, its own, one for its disks, and one that
/// waits for its end.
const SHARD_THREADS: usize = 4;
/// Threads of a volume in an object store.
const STORE_THREADS: usize = 2;
/// Threads of a start beside those: one that may wait, and one that asks a store.
const START_THREADS: usize = 2;
/// How often it is looked whether the threads of a trial have gone.
const LOOKS_MAX: usize = 10_000;

/// A refused start.
pub(crate) fn refused(cause: &io::Error) -> Report {
    Report::from_io("cannot start the program's own threads", cause).hint(MORE_THREADS)
}

/// Whether the system grants so many threads beside those that there are.
///
/// # Errors
/// A report where it does not; nothing was started.
pub fn check(count: usize) -> Result<(), Report> {
    let before = own_threads();
    let tried = trial(count, |body| Builder::new().name("layby-trial".to_owned()).spawn(body));
    // A thread that was waited for may still count against the limit.
    for _ in 0..LOOKS_MAX {
        if own_threads() <= before {
            break;
        }
        std::thread::yield_now();
    }
    tried.map_err(|(granted, cause)| {
        let granted = format!("the system grants {granted} of {count} threads: {cause}");
        refused(&cause).cause(granted).state("nothing was started or changed")
    })
}

/// Whether the threads that shards and volumes in object stores need are granted.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_start(view: &View) -> Result<(), Report> {
    let volumes = view.catalog.volumes.values();
    let in_stores = volumes.filter(|record| crate::cloud::is_store(&record.path)).count();
    let shards = usize::from(view.layout.shards);
    check(SHARD_THREADS * shards + STORE_THREADS * in_stores + START_THREADS)
}

/// Starts threads that all wait for the last one; where one is refused, how many were granted.
fn trial(
    count: usize,
    mut spawn: impl FnMut(Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
) -> Result<(), (usize, io::Error)> {
    let gate = Arc::new(Mutex::new(()));
    let shut = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut threads, mut refusal) = (Vec::new(), None);
    for granted in 0..count {
        let gate = Arc::clone(&gate);
        let body = move || drop(gate.lock().unwrap_or_else(PoisonError::into_inner));
        match spawn(Box::new(body)) {
            Ok(thread) => threads.push(thread),
            Err(cause) => {
                refusal = Some((granted, cause));
                break;
            }
        }
    }
    drop(shut);
    // They only wait for the lock.
    threads.into_iter().for_each(|thread| drop(thread.join()));
    refusal.map_or(Ok(()), Err)
}

fn own_threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// How long a stop waits for the threads of shards that have answered it: one that hangs must not
/// keep the process.
const ENDS_PATIENCE: Duration = Duration::from_secs(30);

/// Waits until the threads of all shards have ended, whose stores and disks end with them: a shard
/// answers a stop before that.
pub(crate) async fn all_ended(mut ended: mpsc::UnboundedReceiver<usize>) {
    let all = async { while ended.recv().await.is_some() {} };
    if tokio::time::timeout(ENDS_PATIENCE, all).await.is_err() {
        tracing::warn!("shards have stopped, and their threads have not ended yet");
    }
}

/// Threads that wait for the ends of shards.
pub(crate) struct Watchers {
    inlets: Vec<Sender<JoinHandle<()>>>,
    ended: mpsc::UnboundedReceiver<usize>,
}

impl Watchers {
    /// As many as there will be shards; dropped, they end.
    ///
    /// # Errors
    /// A report where the system does not grant them.
    pub(crate) fn begin(shards: usize) -> Result<Watchers, Report> {
        let (sender, ended) = mpsc::unbounded_channel();
        let begin = |shard: usize| {
            let (inlet, handed) = channel::<JoinHandle<()>>();
            let sender = sender.clone();
            let body = move || {
                let Ok(thread) = handed.recv() else { return };
                // A panic has been printed by its thread; what matters here is that it ended.
                drop(thread.join());
                let _ = sender.send(shard);
            };
            Builder::new().name("layby-watch".to_owned()).spawn(body).map(|_| inlet)
        };
        let inlets: io::Result<Vec<_>> = (0..shards).map(begin).collect();
        Ok(Watchers { inlets: inlets.map_err(|cause| refused(&cause))?, ended })
    }

    /// Waits for these threads; each end is told with its number.
    pub(crate) fn watch(
        self,
        threads: impl Iterator<Item = JoinHandle<()>>,
    ) -> mpsc::UnboundedReceiver<usize> {
        for (inlet, thread) in self.inlets.iter().zip(threads) {
            inlet.send(thread).expect("a watcher waits for its shard's thread");
        }
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ReportKind;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Goal: a trial holds all its threads at once, ends them, and says how many were granted.
    /// Method: systems that grant each number of threads, which are counted.
    #[test]
    fn a_trial_says_how_many_threads_are_granted() {
        for granted in 0..6 {
            let (count, running) = (4, Arc::new(AtomicUsize::new(0)));
            let spawn = |body: Box<dyn FnOnce() + Send>| {
                let running = Arc::clone(&running);
                if running.load(Ordering::Relaxed) == granted {
                    return Err(io::Error::from_raw_os_error(11));
                }
                running.fetch_add(1, Ordering::Relaxed);
                Builder::new().spawn(move || {
                    body();
                    running.fetch_sub(1, Ordering::Relaxed);
                })
            };
            let tried = trial(count, spawn).map_err(|(granted, _)| granted);
            assert_eq!(tried, if granted < count { Err(granted) } else { Ok(()) });
            assert_eq!(running.load(Ordering::Relaxed), 0, "all have ended");
        }
        check(3).expect("a test may have threads");
    }

    /// Goal: a refusal is whole and has the exit code of one. Method: the error that the system
    /// gives.
    #[test]
    fn a_refusal_is_whole() {
        let report = refused(&io::Error::from_raw_os_error(11));
        assert_eq!(report.kind, ReportKind::Failure);
        assert!(!report.cause.is_empty() && report.hint.contains("TasksMax"), "{report}");
    }

    /// Goal: each end of a shard's thread is told with its number, and watchers that get none end.
    /// Method: two threads of which the second ends first.
    #[tokio::test]
    async fn ends_of_shards_are_told() {
        let watchers = Watchers::begin(2).expect("a test may have threads");
        let (hold, held) = channel::<()>();
        let first = Builder::new().spawn(move || {
            // It ends with the sender.
            let _ = held.recv();
        });
        let first = first.expect("a thread");
        let second = Builder::new().spawn(|| ()).expect("a thread");
        let mut ended = watchers.watch([first, second].into_iter());
        assert_eq!(ended.recv().await, Some(1));
        drop(hold);
        assert_eq!(ended.recv().await, Some(0));
        drop(Watchers::begin(2));
        assert_eq!(ended.recv().await, None, "no watcher is left");
    }
}
