//! Requests that a stop of the node leaves unanswered, and what becomes of them with the ring.
//!
//! How: a stop ends what waits for a store or an intent, and leaves it to the ring's next server,
//! which gets it again from an in-flight region, from the kernel, or from a monitor that finds the
//! connection broken. One that asks for the ring's base instead, and goes by no region, never has
//! it carried out: where the ring stands counts all that was taken. Such requests end with an error
//! before it is told.
//! Invariant: a base that is told counts no request that was not answered, unless it is marked.
//! Cost: an entry for each such request, at most as many as the ring has.

use super::Guest;
use layby_types::{Call, ErrorKind};

impl Guest {
    /// A stop of the node leaves the call unanswered.
    pub(super) fn leave_unanswered(&mut self, call: &Call) {
        self.unanswered.push(*call);
    }

    /// The ring goes back to a monitor that asked where it stands.
    pub(super) fn give_back(&mut self) {
        for call in std::mem::take(&mut self.unanswered) {
            // A ring that is broken is not touched again, and has no next server.
            if !self.is_repeated && self.ring.finish(&call, Err(ErrorKind::Closed)).is_err() {
                return;
            }
        }
        self.flush();
    }
}
