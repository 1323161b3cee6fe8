//! The stores of a clone's bases, each opened when something of it is first needed.
//!
//! How: a folder's opening looks at the folder, which may hang as a network mount does. So it is
//! done by a thread for calls that block, on behalf of all requests that wait for it, each within
//! its time. What was opened stays so.
//! Invariant: neither the volume's thread nor a task of the runtime waits in a file system; one
//! thread per base at most, however long its opening hangs and however often it is asked for.
//! Cost: a task's turn per request. Not for: requests themselves, see `store`.

use crate::action::{Fault, FaultKind};
use crate::store::{REQUEST_TIME, Store};
use crate::superblock::Base;
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Stores of bases, by their numbers.
#[derive(Default)]
pub(crate) struct Bases(Vec<Arc<BaseStore>>);

/// The store of a base, or what it takes to open it.
pub(crate) struct BaseStore {
    url: String,
    /// The clone's, with the key for both.
    clone: Store,
    opened: OnceLock<Store>,
    /// One permit: to open it.
    opening: Arc<Semaphore>,
}

impl Bases {
    /// The store of the base with a number, which is opened by nothing yet.
    pub(crate) fn of(&mut self, number: usize, bases: &[Base], clone: &Store) -> Arc<BaseStore> {
        for base in &bases[self.0.len().min(bases.len())..] {
            self.0.push(BaseStore::new(&base.url, clone));
        }
        // The volume may turn out to be another history's, with other bases.
        if self.0[number].url != bases[number].url {
            self.0[number] = BaseStore::new(&bases[number].url, clone);
        }
        self.0[number].clone()
    }
}

impl BaseStore {
    fn new(url: &str, clone: &Store) -> Arc<BaseStore> {
        Arc::new(BaseStore {
            url: url.to_owned(),
            clone: clone.clone(),
            opened: OnceLock::new(),
            opening: Arc::new(Semaphore::new(1)),
        })
    }

    /// The store, once it is open.
    ///
    /// # Errors
    /// A fault where it cannot be opened, or not within a request's time.
    pub(crate) async fn open(self: Arc<Self>) -> Result<Store, Fault> {
        let opened = timeout(REQUEST_TIME, self.clone().open_once()).await;
        opened.unwrap_or_else(|_| {
            let seconds = REQUEST_TIME.as_secs();
            let cause = format!(
                "the base `{}` was not opened within {seconds} s: does its server, or its disk, \
                 not answer?",
                self.url
            );
            Err(Fault { kind: FaultKind::Retry, cause })
        })
    }

    async fn open_once(self: Arc<Self>) -> Result<Store, Fault> {
        if let Some(store) = self.opened.get() {
            return Ok(store.clone());
        }
        let permit = self.opening.clone().acquire_owned().await.expect("it is never closed");
        let opening = tokio::task::spawn_blocking(move || {
            // Another request may have had it opened since.
            let opened = match self.opened.get() {
                Some(store) => Ok(store.clone()),
                None => self.clone.beside(&self.url),
            };
            if let Ok(store) = &opened {
                let _ = self.opened.set(store.clone());
            }
            drop(permit);
            opened
        });
        let fault = |kind, cause| Fault { kind, cause };
        match opening.await {
            Ok(opened) => opened.map_err(|cause| fault(FaultKind::Denied, cause)),
            Err(error) => Err(fault(FaultKind::Retry, error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::gate;

    /// Goal: requests for a base whose opening hangs end within their time, and one thread hangs
    /// for all; once it has ended, all are served, without another opening. Method: many requests,
    /// one after another, on a clock that stands still while anything can go on.
    #[test]
    fn an_opening_that_hangs_has_one_thread() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // A second opening would not even begin.
        let runtime = runtime.enable_all().start_paused(true).max_blocking_threads(1).build();
        let (runtime, url) = (runtime.expect("a runtime"), "gated://bases".to_owned());
        let (clone, open) = (Store::in_memory(), gate(&url, Store::in_memory()));
        let bases = [Base { url, snapshot: "s".to_owned(), through: 1 }];
        let base = Bases::default().of(0, &bases, &clone);
        runtime.block_on(async {
            for round in 0..100 {
                let waiting = tokio::spawn(base.clone().open());
                tokio::task::yield_now().await;
                tokio::time::advance(REQUEST_TIME * 2).await;
                let fault = waiting.await.expect("it ends").err();
                let fault = fault.unwrap_or_else(|| panic!("it hangs: round {round}"));
                assert_eq!(fault.kind, FaultKind::Retry, "{}", fault.cause);
                assert!(fault.cause.contains("gated://bases"), "{}", fault.cause);
            }
            open.send(()).expect("it is being opened");
            for _ in 0..3 {
                let opened = base.clone().open().await;
                assert!(opened.is_ok_and(|store| store.url() == "memory://maps"));
            }
        });
    }

    /// Goal: a base that cannot be opened is a fault that says why, and is opened anew by the next
    /// request. Method: a URL that names no store.
    #[tokio::test]
    async fn a_base_that_is_none_is_a_fault() {
        let bases = [Base { url: "nowhere".to_owned(), snapshot: "s".to_owned(), through: 1 }];
        let base = Bases::default().of(0, &bases, &Store::in_memory());
        for _ in 0..2 {
            let fault = base.clone().open().await.expect_err("there is no such store");
            assert_eq!(fault.kind, FaultKind::Denied);
            assert!(fault.cause.contains("names no store"), "{}", fault.cause);
        }
    }
}
