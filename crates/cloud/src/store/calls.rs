//! Calls of a folder that may never end: so many at a time that others keep their threads.
//!
//! How: the folder's client makes each call on a thread of the process's pool. A file system that
//! hangs (a network mount whose server is gone, a dead disk) keeps that thread, and no timeout gets
//! it back. So a call is a task of its own, which holds a permit of its folder and one of its file
//! system until its work has really ended, whether its caller still waits or not. Calls wait for
//! permits within their time. Where [`GIVEN_UP_MAX`] calls of a folder hang whose callers have
//! given up, others are refused at once.
//! Invariant: calls have at most [`CALLS_MAX`] threads per opened folder, and
//! [`FILE_SYSTEM_CALLS_MAX`] per file system, however long they hang and however often a volume
//! asks again.
//! Cost: a task per call. Not for: stores on the network, whose requests end with their callers.

use super::hold::generic;
use super::{fault, late};
use crate::action::{Fault, FaultKind};
use object_store::Error;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Calls of a folder at a time.
pub(super) const CALLS_MAX: usize = 32;
/// Calls of all folders of a file system at a time: a quarter of the threads that a runtime has for
/// calls that block.
const FILE_SYSTEM_CALLS_MAX: usize = 128;
/// Calls of a folder that hang after their callers have given up, from which on it is not asked.
pub(super) const GIVEN_UP_MAX: usize = 8;

/// Permits of each file system with an open folder, by its device's number.
static FILE_SYSTEMS: Mutex<BTreeMap<u64, Weak<Semaphore>>> = Mutex::new(BTreeMap::new());

fn permits_of(device: u64) -> Arc<Semaphore> {
    let mut all = FILE_SYSTEMS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|_, permits| permits.strong_count() > 0);
    if let Some(permits) = all.get(&device).and_then(Weak::upgrade) {
        return permits;
    }
    let permits = Arc::new(Semaphore::new(FILE_SYSTEM_CALLS_MAX));
    all.insert(device, Arc::downgrade(&permits));
    permits
}

/// The calls of a folder.
#[derive(Debug)]
pub(super) struct Calls {
    own: Arc<Semaphore>,
    file_system: Arc<Semaphore>,
    /// Calls that hang, and for whose end no caller waits.
    given_up: Arc<AtomicUsize>,
}

impl Calls {
    /// Those of a folder in the file system with this device's number.
    pub(super) fn new(device: u64) -> Arc<Calls> {
        Arc::new(Calls {
            own: Arc::new(Semaphore::new(CALLS_MAX)),
            file_system: permits_of(device),
            given_up: Arc::default(),
        })
    }

    /// Makes a call and waits for its end, until so long after the beginning.
    pub(super) async fn within<T: Send + 'static>(
        &self,
        begun: Instant,
        time: Duration,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Fault> {
        if self.given_up.load(Ordering::Relaxed) >= GIVEN_UP_MAX {
            return Err(self.hangs());
        }
        let permits = timeout_at(begun + time, self.permits()).await.map_err(|_| self.hangs())?;
        let mut task = tokio::spawn(async move {
            let ended = call.await;
            drop(permits);
            ended
        });
        match timeout_at(begun + time, &mut task).await {
            Ok(Ok(ended)) => ended.map_err(|error| fault(&error)),
            // The request's own catch says what a panic of the client means.
            Ok(Err(error)) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(fault(&generic(error.into()))),
            },
            Err(_) => {
                let given_up = Arc::clone(&self.given_up);
                given_up.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    // Its answer comes too late for its caller.
                    let _ = task.await;
                    given_up.fetch_sub(1, Ordering::Relaxed);
                });
                Err(late(time))
            }
        }
    }

    async fn permits(&self) -> [OwnedSemaphorePermit; 2] {
        let permit = async |permits: &Arc<Semaphore>| {
            Arc::clone(permits).acquire_owned().await.expect("it is never closed")
        };
        // The folder's own first: what waits for it keeps no other folder's from the file system.
        let own = permit(&self.own).await;
        [own, permit(&self.file_system).await]
    }

    fn hangs(&self) -> Fault {
        let own = CALLS_MAX - self.own.available_permits();
        let all = FILE_SYSTEM_CALLS_MAX - self.file_system.available_permits();
        let cause = format!(
            "{own} calls of the folder, and {all} of its file system, have not ended: does its \
             server, or its disk, not answer?"
        );
        Fault { kind: FaultKind::Retry, cause }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{REQUEST_TIME, Store};
    use super::{CALLS_MAX, GIVEN_UP_MAX};
    use crate::action::{Condition, End, Fault, FaultKind, Request};
    use std::fs::File;
    use std::path::PathBuf;
    use std::time::Duration;
    use tokio::runtime::Runtime;

    /// Threads that the test's runtime has for calls that block.
    const POOL: usize = 96;
    /// A folder with an object whose opening never ends: a FIFO that no process writes to.
    struct Hung {
        folder: tempfile::TempDir,
        fifo: PathBuf,
        /// None once it has ended.
        runtime: Option<Runtime>,
    }

    impl Hung {
        /// One whose runtime's threads have this name.
        fn new(name: &str) -> Hung {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let fifo = folder.path().join("hung");
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0)
                .expect("a FIFO");
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().start_paused(true).max_blocking_threads(POOL).thread_name(name);
            Hung { folder, fifo, runtime: Some(runtime.build().expect("a runtime")) }
        }

        fn store(&self) -> Store {
            Store::open(&format!("file://{}", self.folder.path().display())).expect("a folder")
        }
    }

    impl Drop for Hung {
        fn drop(&mut self) {
            // The other side: all that hangs goes on, so that the runtime can end.
            let other = File::options().read(true).write(true).open(&self.fifo);
            drop(self.runtime.take());
            drop(other);
        }
    }

    /// Threads of the test's runtime that are in calls.
    fn threads(of: &str) -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        tasks.filter_map(name).filter(|name| name.trim_end() == of).count()
    }

    /// So many requests for the object at once, each until its time is over.
    async fn ask(store: &Store, requests: usize) -> Vec<Fault> {
        let asked = (0..requests).map(|_| {
            let store = store.clone();
            let request = Request::Get { key: "hung".to_owned(), range: None };
            tokio::spawn(async move { store.perform(request).await })
        });
        let asked: Vec<_> = asked.collect();
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(REQUEST_TIME + Duration::from_millis(1)).await;
        let mut faults = Vec::new();
        for asked in asked {
            match asked.await.expect("it ends") {
                End::Failed(fault) => faults.push(fault),
                end => panic!("the object has no end: {end:?}"),
            }
        }
        faults
    }

    /// Goal: a folder that hangs occupies a bounded number of threads however often it is asked,
    /// says so at once when many calls have not ended, and stops no other folder. Method: an object
    /// whose opening never ends, asked two hundred times one after another, or at once; threads are
    /// counted; another folder is put to and read from.
    #[test]
    fn a_folder_that_hangs_stops_no_other() {
        for (rounds, at_once) in [(200, 1), (2, 100)] {
            let hung = Hung::new("hangs");
            let runtime = hung.runtime.as_ref().expect("it runs");
            runtime.block_on(async {
                let store = hung.store();
                for round in 0..rounds {
                    for fault in ask(&store, at_once).await {
                        assert_eq!(fault.kind, FaultKind::Retry, "{}", fault.cause);
                        let is_named = round == 0 || fault.cause.contains("have not ended");
                        let is_first = at_once == 1 && round < GIVEN_UP_MAX;
                        assert!(is_named || is_first, "round {round}: {}", fault.cause);
                    }
                    let most = if at_once == 1 { GIVEN_UP_MAX } else { CALLS_MAX };
                    let threads = threads("hangs");
                    assert!(threads <= most, "{threads} threads hang, round {round}");
                }
                let other = tempfile::tempdir().expect("a temporary folder");
                let url = format!("file://{}", other.path().display());
                let (store, key) = (Store::open(&url).expect("a folder"), "whole".to_owned());
                let (bytes, condition) = (vec![7].into(), Condition::Create);
                let put = Request::Put { key: key.clone(), bytes, condition };
                assert!(matches!(store.perform(put).await, End::Stored(_)));
                let got = store.perform(Request::Get { key, range: None }).await;
                assert!(matches!(got, End::Bytes(bytes, _) if bytes[..] == [7]));
            });
        }
    }

    /// Goal: once the calls that hung have ended, the folder is asked again. Method: as above; then
    /// the object gets its other side, and another one is asked for until it is found.
    #[test]
    fn a_folder_that_hung_is_asked_again() {
        let hung = Hung::new("hung");
        std::fs::write(hung.folder.path().join("whole"), [7]).expect("a folder");
        let runtime = hung.runtime.as_ref().expect("it runs");
        runtime.block_on(async {
            let store = hung.store();
            ask(&store, CALLS_MAX + 1).await;
            let get = || Request::Get { key: "whole".to_owned(), range: None };
            assert!(matches!(store.perform(get()).await, End::Failed(_)), "it hangs");
            let other = File::options().read(true).write(true).open(&hung.fifo);
            let mut is_found = false;
            for _ in 0..1_000_000 {
                is_found = matches!(store.perform(get()).await, End::Bytes(..));
                if is_found {
                    break;
                }
                // The threads that hung end when the system lets them.
                std::thread::yield_now();
                tokio::task::yield_now().await;
            }
            assert!(is_found, "no call hangs any more");
            drop(other);
        });
    }
}
