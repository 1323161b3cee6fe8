//! How a guest is told of answers: the event descriptor that its monitor gave.
//!
//! How: a shard raises it at the end of a turn, the monitor's thread when it is set, both by
//! [`Signals`], since the monitor could have any write to it wait.
//! Invariant: no signal waits for a monitor, and none holds the lock.
//! Cost: a lock and one system call per signal.

use crate::io::{IoError, Signals, check_event};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The event descriptor by which a guest hears of answers; its monitor may change it at any time.
#[derive(Clone, Debug, Default)]
pub struct CallEvent(Arc<Mutex<Option<Call>>>);

#[derive(Clone, Debug)]
struct Call {
    event: Arc<OwnedFd>,
    signals: &'static Signals,
}

impl CallEvent {
    /// Uses `event` from now on, and signals it, since an answer may have been missed meanwhile;
    /// `None` for a guest that looks by itself.
    ///
    /// # Errors
    /// The system's error where the descriptor is no eventfd, or cannot be raised without waiting.
    pub fn set(&self, event: Option<OwnedFd>) -> Result<(), IoError> {
        let call = event.map(|event| {
            check_event(&event)?;
            Ok::<_, IoError>(Call { event: Arc::new(event), signals: Signals::shared()? })
        });
        *self.lock() = call.transpose()?;
        self.signal();
        Ok(())
    }

    /// Tells the guest that there are answers. It never waits for the guest or its monitor.
    pub fn signal(&self) {
        let call = self.lock().clone();
        if let Some(Call { event, signals }) = call {
            // An eventfd fails only without memory, when the next answer's signal is as good.
            let _ = signals.raise(event.as_fd());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::OFlags;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// Longest that a signal may take on a machine that is busy with other things.
    const SIGNAL_TIME_MAX: Duration = Duration::from_secs(30);

    fn count_of(event: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::read(event, &mut bytes), Ok(8));
        u64::from_ne_bytes(bytes)
    }

    /// Goal: a monitor that fills its counter holds no shard up, whichever mode it sets when.
    /// Method: a descriptor that did not block when it was set, and does when it is full; another
    /// thread signals, and is released before the test judges it.
    #[test]
    fn a_full_counter_holds_no_signal_up() {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let call = CallEvent::default();
        call.set(Some(event.try_clone().unwrap())).unwrap();
        assert_eq!(count_of(&event), 1, "setting it signals");
        rustix::fs::fcntl_setfl(&event, OFlags::empty()).unwrap();
        assert_eq!(rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()), Ok(8));
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                call.signal();
                call.signal();
                tell.send(()).unwrap();
            });
            let ended = told.recv_timeout(SIGNAL_TIME_MAX);
            assert!(count_of(&event) >= u64::MAX - 1, "it stays full");
            ended.expect("a signal ends, though the counter is full");
        });
    }

    /// Goal: no signal is lost, however many there were and whichever threads they are from.
    /// Method: more of them from several threads than the kernel keeps ends for, in both modes.
    #[test]
    fn every_signal_counts() {
        const THREADS: u64 = 4;
        const SIGNALS: u64 = 2000;
        for flags in [EventfdFlags::NONBLOCK, EventfdFlags::empty()] {
            let event = eventfd(0, flags).unwrap();
            let call = CallEvent::default();
            call.set(Some(event.try_clone().unwrap())).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| (0..SIGNALS).for_each(|_| call.signal()));
                }
            });
            assert_eq!(count_of(&event), 1 + THREADS * SIGNALS);
        }
    }
}
