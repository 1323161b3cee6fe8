//! Whether a backing store that was given up has ended.
//!
//! How: a flag that the backing store sets as the last of its parts goes. Its threads may hang in a
//! device, so it may be dropped where nothing waits for them.
//! Invariant: once it has ended, nothing of this process reads or writes its journal and its map.
//! Cost: nothing while it runs. Not for: what it says of itself; see [`crate::Watch`].

use crate::local::Claim;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The end of one backing store, and the way to wait for it.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<(Mutex<bool>, Condvar)>);

impl Ending {
    /// Whether it has ended, or does within this time.
    #[must_use]
    pub fn has_come(&self, time: Duration) -> bool {
        let (ended, changed) = &*self.0;
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(ended, time, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Gives the journal back when it goes, then marks the end.
pub(crate) struct EndMark {
    claim: Option<Claim>,
    ending: Ending,
}

impl EndMark {
    /// Of a backing store whose journal was claimed.
    pub(crate) fn new(claim: Claim) -> EndMark {
        EndMark { claim: Some(claim), ending: Ending::default() }
    }

    /// The way to wait for it.
    pub(crate) fn ending(&self) -> Ending {
        self.ending.clone()
    }
}

impl Drop for EndMark {
    fn drop(&mut self) {
        drop(self.claim.take());
        let (ended, changed) = &*self.ending.0;
        *ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }
}
