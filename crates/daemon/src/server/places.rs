//! Who may be connected: clients that have entered a volume, and clients that have not yet.
//!
//! How: a client that has not entered takes a place of a small pool, one for unix sockets and one
//! for networks; where the pool is full, its oldest client goes, and before that the oldest that
//! has not sent a byte. A client that enters takes one of `max` places. Some of these are kept for
//! unix sockets and for each volume, until these have as many.
//! Invariant: at most `max` clients have entered, and what is kept for others is free or theirs.
//! Cost: a lock per connection; a pass over the pool or the volumes that have clients.
//! Not for: who may use a volume; that is asked before.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::task::AbortHandle;

/// Places that are kept for each volume at most; for all of them at most a quarter.
const VOLUME_PLACES: u32 = 4;
/// Places that are kept for unix sockets at most, and a sixteenth.
const UNIX_PLACES: u32 = 16;

/// By which kind of socket a client came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Unix,
    Network,
}

/// See the file's header.
#[derive(Clone)]
pub(super) struct Places(Arc<Shared>);

struct Shared {
    max: u32,
    half_max: usize,
    state: Mutex<State>,
    left: Notify,
}

#[derive(Default)]
struct State {
    /// Oldest first.
    half: VecDeque<Waiting>,
    next: u64,
    /// By the volume's number.
    entered: HashMap<u32, u32>,
    entered_unix: u32,
    entered_all: u32,
}

struct Waiting {
    number: u64,
    kind: Kind,
    own: Arc<Own>,
}

#[derive(Default)]
struct Own {
    task: OnceLock<AbortHandle>,
    has_spoken: AtomicBool,
}

/// The place of a client that has not entered.
pub(super) struct Half {
    number: u64,
    pub(super) kind: Kind,
    own: Arc<Own>,
    shared: Arc<Shared>,
}

/// The place of one that has.
pub(super) struct Entered {
    volume: u32,
    kind: Kind,
    shared: Arc<Shared>,
}

impl Places {
    /// Places for `max` clients that have entered, and for `half_max` of each kind that have not.
    pub(super) fn new(max: u32, half_max: usize) -> Places {
        let (state, left) = (Mutex::default(), Notify::new());
        Places(Arc::new(Shared { max, half_max, state, left }))
    }

    /// A place for a client that has come; tells whether another one had to go.
    pub(super) fn begin(&self, kind: Kind) -> (Half, bool) {
        let mut state = self.0.lock();
        let victim = state.victim(kind, self.0.half_max);
        if let Some(index) = victim
            && let Some(waiting) = state.half.remove(index)
        {
            waiting.own.task.get().map(AbortHandle::abort);
        }
        let (number, own) = (state.next, Arc::<Own>::default());
        state.next += 1;
        state.half.push_back(Waiting { number, kind, own: Arc::clone(&own) });
        (Half { number, kind, own, shared: Arc::clone(&self.0) }, victim.is_some())
    }

    /// A place with a volume, one of `volumes`, if there is one.
    pub(super) fn enter(&self, kind: Kind, volume: u32, volumes: u32) -> Option<Entered> {
        let mut state = self.0.lock();
        if !state.has_place(self.0.max, kind, volume, volumes) {
            return None;
        }
        *state.entered.entry(volume).or_default() += 1;
        state.entered_unix += u32::from(kind == Kind::Unix);
        state.entered_all += 1;
        Some(Entered { volume, kind, shared: Arc::clone(&self.0) })
    }

    /// Ends when a client leaves that has entered and is there at the call.
    pub(super) fn left(&self) -> Notified<'_> {
        self.0.left.notified()
    }

    /// Waits until no client has entered.
    pub(super) async fn all_left(&self) {
        loop {
            let left = self.0.left.notified();
            if self.0.lock().entered_all == 0 {
                return;
            }
            left.await;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Who goes for another one of its kind.
    fn victim(&self, kind: Kind, half_max: usize) -> Option<usize> {
        let own = || self.half.iter().enumerate().filter(|(_, waiting)| waiting.kind == kind);
        if own().count() < half_max {
            return None;
        }
        let with_task = own().filter(|(_, waiting)| waiting.own.task.get().is_some());
        let by_age = |(index, waiting): (usize, &Waiting)| {
            (waiting.own.has_spoken.load(Ordering::Relaxed), index)
        };
        with_task.map(by_age).min().map(|(_, index)| index)
    }

    fn has_place(&self, max: u32, kind: Kind, volume: u32, volumes: u32) -> bool {
        let kept = VOLUME_PLACES.min(max / 4 / volumes.max(1));
        let own = self.entered.get(&volume).copied().unwrap_or(0);
        let used = self.entered.iter().filter(|(id, _)| **id != volume);
        let used: u32 = used.map(|(_, count)| kept.min(*count)).sum();
        let others = (kept * volumes.saturating_sub(1)).saturating_sub(used);
        let kept_unix = UNIX_PLACES.min(max / 16).saturating_sub(self.entered_unix);
        let is_kept = own < kept || kind == Kind::Unix && kept_unix > 0;
        let others = if kind == Kind::Unix || own < kept { others } else { others + kept_unix };
        let free = max - self.entered_all;
        if is_kept { free > 0 } else { free > others }
    }
}

impl Half {
    /// Gives the place to a task, which is ended when the client must go.
    pub(super) fn spawn<F>(self, serve: impl FnOnce(Half) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let own = Arc::clone(&self.own);
        let task = tokio::spawn(serve(self));
        // It is told once.
        let _ = own.task.set(task.abort_handle());
    }

    /// The client has sent something.
    pub(super) fn note(&self) {
        self.own.has_spoken.store(true, Ordering::Relaxed);
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.shared.lock().half.retain(|waiting| waiting.number != self.number);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let own = state.entered.get_mut(&self.volume).expect("it has entered");
        *own -= 1;
        if *own == 0 {
            state.entered.remove(&self.volume);
        }
        state.entered_unix -= u32::from(self.kind == Kind::Unix);
        state.entered_all -= 1;
        drop(state);
        self.shared.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HALF_OPEN_MAX;

    /// Goal: no volume's clients, and no network's, take what is kept for others. Method: one
    /// volume takes all it gets, then the others come.
    #[test]
    fn places_are_kept_for_others() {
        let places = Places::new(64, HALF_OPEN_MAX);
        let mut all = Vec::new();
        all.extend(std::iter::from_fn(|| places.enter(Kind::Network, 0, 3)));
        assert_eq!(all.len(), 64 - 2 * 4 - 4, "but for two volumes and unix sockets");
        for volume in [1, 2] {
            let own: Vec<_> =
                std::iter::from_fn(|| places.enter(Kind::Network, volume, 3)).collect();
            assert_eq!(own.len(), 4);
            all.extend(own);
        }
        let unix: Vec<_> = std::iter::from_fn(|| places.enter(Kind::Unix, 0, 3)).collect();
        assert_eq!((unix.len(), all.len()), (4, 60));
        drop(all.pop());
        assert!(places.enter(Kind::Network, 0, 3).is_none(), "it was volume 2's");
        assert!(places.enter(Kind::Network, 2, 3).is_some());
    }

    /// Goal: there are never more than `max` clients, and one place is enough for one. Method: few
    /// places, many volumes.
    #[test]
    fn few_places_serve_many_volumes() {
        for max in 1..20 {
            let places = Places::new(max, HALF_OPEN_MAX);
            let volumes = 0..100;
            let entered = volumes.map(|volume| places.enter(Kind::Unix, volume, 100));
            assert_eq!(entered.flatten().collect::<Vec<_>>().len(), max as usize);
        }
    }

    /// Goal: a flood drops its oldest, silent ones first, and none of the other kind. Method: one
    /// that has spoken, then a flood, whose tasks hold their places.
    #[tokio::test]
    async fn the_oldest_silent_client_goes() {
        let places = Places::new(1, HALF_OPEN_MAX);
        let come = |kind| {
            let (half, has_dropped) = places.begin(kind);
            half.spawn(|half| async move {
                half.note();
                std::future::pending::<()>().await;
            });
            has_dropped
        };
        assert!(!come(Kind::Unix) && !come(Kind::Network));
        tokio::task::yield_now().await;
        let silent = |has_dropped: &mut u32| {
            let (half, dropped) = places.begin(Kind::Network);
            *has_dropped += u32::from(dropped);
            half.spawn(|half| async move {
                let _half = half;
                std::future::pending::<()>().await;
            });
        };
        let mut dropped = 0;
        (0..HALF_OPEN_MAX + 9).for_each(|_| silent(&mut dropped));
        assert_eq!(dropped, 10);
        let state = places.0.lock();
        let spoken = state.half.iter().filter(|half| half.own.has_spoken.load(Ordering::Relaxed));
        assert_eq!(spoken.count(), 2, "those who have spoken stay");
    }
}
