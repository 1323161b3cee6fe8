//! Requests to a store that a change of the node waits for.
//!
//! How: on a thread of their own, since the caller may be a runtime's. A store that answers that it
//! is busy is asked again for a moment.
//! Invariant: nothing here changes a store. Cost: a thread per request. Not for: what a volume's
//! session asks; see [`layby_cloud`].

use super::CloudHomes;
use layby_cloud::{
    End, Fault, FaultKind, Request, SUPERBLOCK_KEY, Store, Superblock, is_right_below, temporary_of,
};
use std::time::Duration;

/// Runs what waits for a store on a thread of its own, since the caller may be a runtime's.
pub(super) fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let thread = std::thread::Builder::new().name("cloud-ask".to_owned());
    let asking = thread.spawn(work).map_err(|cause| {
        let cause = format!("no thread can be made to ask the store: {cause}");
        Fault { kind: FaultKind::Retry, cause }
    })?;
    asking.join().map_err(|_| {
        let cause = "asking the store broke off, as the log says".to_owned();
        Fault { kind: FaultKind::Denied, cause }
    })
}

impl CloudHomes {
    /// Asks the store and waits, on a thread of its own, since the caller may be a runtime's. A
    /// store that answers that it is busy is asked again for a moment.
    pub(super) fn ask(&self, store: &Store, request: Request) -> End {
        const PATIENCE: Duration = Duration::from_secs(2);
        let (runtime, store) = (self.runtime.clone(), store.clone());
        let asked = on_thread(move || runtime.block_on(store.insist_for(request, PATIENCE)));
        asked.unwrap_or_else(End::Failed)
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
