//! Requests to a store that a change of the node waits for.
//!
//! How: each is a task of the runtime; a thread of its own waits for it, since the caller may be
//! one of the runtime's. A store that answers that it is busy is asked again for a moment.
//! Invariant: nothing here changes a store. A runtime that ends drops the task, which is
//! [`FaultKind::Closed`]: no panic, and no word of the store. Cost: a task and a thread per
//! request. Not for: what a volume's session asks; see [`layby_cloud`].

use super::CloudHomes;
use layby_cloud::{
    End, Fault, FaultKind, Request, SUPERBLOCK_KEY, Store, Superblock, is_right_below, temporary_of,
};
use std::time::Duration;
use tokio::runtime::Handle;

/// What to do where the node stopped before the store answered.
pub(super) const STOPPED: &str = "repeat it once the node has started again";

/// Has the runtime work, and waits until it is done.
///
/// # Errors
/// [`FaultKind::Closed`] where the runtime ends before; [`FaultKind::Retry`] where no thread can be
/// made, or the work panicked.
pub(super) fn wait_on<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Fault> {
    let retry = |cause| Fault { kind: FaultKind::Retry, cause };
    let broke_off = || retry("asking the store broke off, as the log says".to_owned());
    let runtime = runtime.clone();
    // The work is a task: one that a runtime drops as it ends does not panic, as its timers would
    // in the hands of another thread.
    let body = move || runtime.block_on(runtime.spawn(work));
    let thread = std::thread::Builder::new().name("cloud-ask".to_owned()).spawn(body);
    let thread = thread
        .map_err(|cause| retry(format!("no thread can be made to ask the store: {cause}")))?;
    match thread.join() {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(ended)) if ended.is_cancelled() => {
            let cause = "the node stops, and waits for no answer of the store".to_owned();
            Err(Fault { kind: FaultKind::Closed, cause })
        }
        Ok(Err(_)) | Err(_) => Err(broke_off()),
    }
}

impl CloudHomes {
    /// Asks the store and waits. A store that answers that it is busy is asked again for a moment.
    pub(super) fn ask(&self, store: &Store, request: Request) -> End {
        const PATIENCE: Duration = Duration::from_secs(2);
        let store = store.clone();
        let asked = async move { store.insist_for(request, PATIENCE).await };
        wait_on(&self.runtime, asked).unwrap_or_else(End::Failed)
    }

    /// What the store has at a volume's place.
    pub(super) fn superblock(&self, store: &Store) -> Result<Option<Superblock>, Fault> {
        let request = Request::Get { key: SUPERBLOCK_KEY.to_owned(), range: None };
        match self.ask(store, request) {
            End::Bytes(bytes, _) => Superblock::decode(&bytes).map(Some).ok_or_else(|| Fault {
                kind: FaultKind::Device,
                cause: "the superblock there is damaged or of a later version".to_owned(),
            }),
            End::Failed(fault) if fault.kind == FaultKind::NotFound => Ok(None),
            End::Failed(fault) => Err(fault),
            end => unreachable!("a get ends with bytes or a fault: {end:?}"),
        }
    }

    /// A new volume's place must exist and hold no other volume's segments.
    pub(super) fn check_empty(&self, store: &Store) -> Result<(), String> {
        const PREFIX: &str = "segments/";
        match self.ask(store, Request::List { prefix: PREFIX.to_owned() }) {
            End::Keys(keys) => {
                // Another volume's place may be further below, and what uploads that were cut short
                // left in a folder is no segment.
                let is_segment =
                    |key: &&String| is_right_below(key, PREFIX) && temporary_of(key).is_none();
                match keys.iter().filter(is_segment).count() {
                    0 => Ok(()),
                    n => {
                        Err(format!("there are {n} segments of a volume whose superblock is gone"))
                    }
                }
            }
            End::Failed(fault) => Err(fault.cause),
            end => unreachable!("a list ends with keys or a fault: {end:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::config;
    use layby_types::Rng;
    use std::sync::Arc;
    use tempfile::TempDir;
    use tokio::runtime::Runtime;

    /// A runtime, a node's homes on it, and a store in a folder that has nothing.
    fn node(dir: &TempDir, threads: usize) -> (Runtime, Arc<CloudHomes>, Store) {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(threads).enable_all().build().expect("threads");
        let homes = Arc::new(CloudHomes::new(&config(dir, ""), runtime.handle().clone()));
        let url = format!("file://{}/maps", dir.path().display());
        (runtime, homes, Store::create(&url).expect("a folder"))
    }

    fn get() -> Request {
        Request::Get { key: SUPERBLOCK_KEY.to_owned(), range: None }
    }

    /// Goal: who asks on a runtime that has ended hears that the node stops; that is no word of the
    /// store, and no panic. Method: each way to ask, on such a runtime.
    #[test]
    fn an_ended_runtime_is_no_refusal() {
        let dir = TempDir::new().expect("a temporary directory");
        let (runtime, homes, store) = node(&dir, 2);
        drop(runtime);
        let ends = [
            homes.ask(&store, get()),
            homes.insist(&store, get()),
            homes.attempt_after(&store, get(), Duration::ZERO),
            homes.attempt_after(&store, get(), Duration::from_secs(1)),
        ];
        for end in ends {
            let End::Failed(fault) = end else { panic!("it is no answer: {end:?}") };
            assert_eq!(fault.kind, FaultKind::Closed, "{}", fault.cause);
            assert!(fault.cause.contains("the node stops"), "{}", fault.cause);
        }
    }

    /// Goal: while a runtime ends, who asks hears the store's answer, or a fault that is none of
    /// the store's; no thread panics. Method: threads that ask in a row, some after a pause of the
    /// runtime's clock, while the runtime is ended after a number of answers that the seed draws.
    #[test]
    fn a_runtime_that_ends_answers_soundly() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let dir = TempDir::new().expect("a temporary directory");
            let (runtime, homes, store) = node(&dir, 1 + rng.below(3) as usize);
            let (answered, answers) = std::sync::mpsc::channel();
            let asking: Vec<_> = (0..3)
                .map(|at: u64| {
                    let (homes, store, answered) = (homes.clone(), store.clone(), answered.clone());
                    std::thread::spawn(move || {
                        loop {
                            let end = match at {
                                0 => homes.attempt_after(&store, get(), Duration::from_millis(1)),
                                1 => homes.insist(&store, get()),
                                _ => homes.ask(&store, get()),
                            };
                            let End::Failed(fault) = end else { panic!("no answer: {end:?}") };
                            match fault.kind {
                                FaultKind::NotFound => drop(answered.send(())),
                                // A call of the folder's went with the runtime.
                                FaultKind::Retry if !fault.cause.contains("broke off") => {}
                                FaultKind::Closed => return,
                                _ => panic!("seed {seed}: {fault:?}"),
                            }
                        }
                    })
                })
                .collect();
            for _ in 0..rng.below(20) {
                answers.recv().expect("the store answers");
            }
            runtime.shutdown_background();
            for asking in asking {
                asking.join().expect("each end is sound");
            }
        }
    }
}
