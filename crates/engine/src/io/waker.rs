//! Interrupts a shard's [`Io::wait`](super::Io::wait) from another thread.
//!
//! How: an eventfd that the wait watches, behind a flag that is set while a call is on its way, so
//! that many calls in a row cost one system call.
//! Invariant: what a thread did before `wake` is visible to the shard once its wait has returned.
//! Cost: one atomic swap, and one write for the first call since the last wait.
//! Not for: carrying data; put that into a channel first.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes one waiting shard; clones wake the same one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Absent where the waiting side only looks at the flag (the simulation).
    event: Option<OwnedFd>,
    called: AtomicBool,
}

impl Waker {
    /// A waker over an eventfd; a ring wants it blocking, an epoll loop non-blocking.
    pub(crate) fn with_event(flags: EventfdFlags) -> Result<Self, Errno> {
        let event = eventfd(0, flags | EventfdFlags::CLOEXEC)?;
        Ok(Waker(Arc::new(Inner { event: Some(event), called: AtomicBool::new(false) })))
    }

    /// A waker without a descriptor, for an `Io` that never sleeps.
    #[must_use]
    pub fn flag_only() -> Self {
        Waker(Arc::new(Inner { event: None, called: AtomicBool::new(false) }))
    }

    /// Makes the present or the next wait return.
    pub fn wake(&self) {
        if self.0.called.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(event) = &self.0.event {
            // The counter is zero or one, so the only failure left is a closed descriptor.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    /// The descriptor that turns readable.
    pub(crate) fn event(&self) -> Option<BorrowedFd<'_>> {
        self.0.event.as_ref().map(AsFd::as_fd)
    }

    /// Clears the flag and says whether it was set. With an eventfd, call it after the read.
    pub(crate) fn take(&self) -> bool {
        self.0.called.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: many calls leave one event, and the next call after a take leaves another. Method:
    /// reads the eventfd's counter directly.
    #[test]
    fn calls_merge_until_taken() {
        let waker = Waker::with_event(EventfdFlags::NONBLOCK).unwrap();
        let read = || {
            let mut count = [0; 8];
            rustix::io::read(waker.event().unwrap(), &mut count).map(|_| u64::from_ne_bytes(count))
        };
        waker.wake();
        waker.clone().wake();
        assert_eq!(read(), Ok(1));
        assert!(waker.take());
        assert_eq!(read(), Err(Errno::AGAIN));
        waker.wake();
        assert_eq!(read(), Ok(1));
    }
}
