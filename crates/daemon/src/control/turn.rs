//! The order of changes: one at a time, but for the zeroing of a volume that shrinks and the
//! write-back of one that is deleted.
//!
//! How: a lock that each change holds. A shrink names its volume and gives the lock back while its
//! shards write zeroes, a deletion while they destage; both may take hours. Changes of that volume
//! wait for the end, but for a deletion with the data, which breaks it off. What an aborted task
//! saved last takes effect before the next change begins.
//! Invariant: such a volume is the same when the change has the lock again. After a stop the lock
//! is free, and no change is written down.
//! Cost: a look at the few volumes of long changes, per change of a volume.
//! Not for: volumes that are not served; see `absent`.

use super::Control;
use crate::config::Name;
use crate::error::{Report, ReportKind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard as StdMutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::futures::Notified;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::Instant;

/// How long a stop waits for the change under way and its own write of the catalog, together. A
/// store that is silent may hold a change up for minutes, and a service manager does not wait as
/// long.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// How often a long change is told that it is to end: it may be between two commands to its shards.
pub(super) const BREAK_OFF_EVERY: Duration = Duration::from_secs(1);

/// See the module's header.
#[derive(Default)]
pub(super) struct Changes {
    turn: Mutex<()>,
    /// Volumes whose change gave the lock back, and what becomes of them.
    long: StdMutex<BTreeMap<Name, &'static str>>,
    /// A long change has ended.
    ended: Notify,
    /// The node has stopped; no change is written down any more.
    stopped: AtomicBool,
    /// The catalog lacks what the node's view has, or has what that lacks.
    unsaved: Unsaved,
}

/// Whether the catalog has to be written at the stop, whatever the node's view says.
#[derive(Clone, Default)]
pub(super) struct Unsaved(Arc<AtomicBool>);

impl Unsaved {
    /// A write that failed late may have taken effect.
    pub(super) fn of<T>(&self, written: Result<T, Report>) -> Result<T, Report> {
        if written.is_err() {
            self.0.store(true, Ordering::SeqCst);
        }
        written
    }
}

/// A change of a volume that does not hold the lock, until this is dropped.
pub(super) struct LongChange<'a> {
    changes: &'a Changes,
    name: Name,
}

impl Drop for LongChange<'_> {
    fn drop(&mut self) {
        self.changes.long().remove(&self.name);
        self.changes.ended.notify_waiters();
    }
}

impl Changes {
    fn long(&self) -> StdMutexGuard<'_, BTreeMap<Name, &'static str>> {
        self.long.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on no change is written down: the node stops.
    pub(super) fn set_stopped(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Whether the catalog lacks what the node's view has, from now on.
    pub(super) fn set_unsaved(&self, is_unsaved: bool) {
        self.unsaved.0.store(is_unsaved, Ordering::SeqCst);
    }

    /// What notes that the catalog may not be what the node's view says.
    pub(super) fn unknown(&self) -> Unsaved {
        self.unsaved.clone()
    }

    /// Whether the catalog lacks what the node's view has.
    pub(super) fn is_unsaved(&self) -> bool {
        self.unsaved.0.load(Ordering::SeqCst)
    }

    /// Refuses what comes after the node's stop.
    ///
    /// # Errors
    /// A report once the node has stopped.
    pub(super) fn check_running(&self, error: &str) -> Result<(), Report> {
        if !self.stopped.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(Report::new(ReportKind::Unreachable, error)
            .cause("the node has stopped")
            .state("the catalog is as it was before")
            .hint("start the node, and repeat the command"))
    }

    /// Has other changes of the volume wait, which is being `what`. The caller has the turn, and
    /// gives it back.
    pub(super) fn begin_long(&self, name: &Name, what: &'static str) -> LongChange<'_> {
        let is_new = self.long().insert(name.clone(), what).is_none();
        assert!(is_new, "a volume has one long change at a time");
        LongChange { changes: self, name: name.clone() }
    }
}

impl Control {
    /// The turn of a change that changes no served volume's own record; the end of a take does,
    /// in what no long change reads.
    pub(super) async fn lock_changes(&self) -> MutexGuard<'_, ()> {
        let turn = self.change.turn.lock().await;
        // Else this change would save a catalog without what an aborted task has saved.
        if self.change.check_running("").is_ok() {
            self.end_saving().await;
        }
        turn
    }

    /// The turn of a change of a volume; it comes when no long change of it goes on.
    pub(super) async fn lock_changes_of(&self, name: &Name) -> MutexGuard<'_, ()> {
        loop {
            match self.lock_unless_long(name).await {
                Ok(turn) => return turn,
                Err(ended) => ended.await,
            }
        }
    }

    /// The same at once, unless a long change of the volume goes on; then what hears of an end.
    pub(super) async fn lock_unless_long(
        &self,
        name: &Name,
    ) -> Result<MutexGuard<'_, ()>, Notified<'_>> {
        // It hears of every end from now on.
        let ended = self.change.ended.notified();
        let turn = self.lock_changes().await;
        if self.change.long().contains_key(name) { Err(ended) } else { Ok(turn) }
    }

    /// The turn of a creation. It does not wait for the end of a long change: a take also has the
    /// turn of the volumes that are not served, and any other creation is refused for the name.
    ///
    /// # Errors
    /// A report when a long change of the volume that is to be taken goes on.
    pub(super) async fn lock_to_create(
        &self,
        name: &Name,
        takes: bool,
        error: &str,
    ) -> Result<MutexGuard<'_, ()>, Report> {
        let turn = self.lock_changes().await;
        let what = self.change.long().get(name).copied().filter(|_| takes);
        if let Some(what) = what {
            return Err(Report::new(ReportKind::InUse, error)
                .cause(format!("volume `{name}` of this node is being {what}"))
                .state("nothing was changed")
                .hint("choose another name, or repeat the command when that has ended"));
        }
        Ok(turn)
    }

    /// Saves what the catalog lacks as the node stops, unless a change, or a write of the catalog,
    /// goes on for too long. What is returned keeps other changes from beginning.
    pub(super) async fn save_to_stop(&self) -> Option<MutexGuard<'_, ()>> {
        // For both together: the shards' stop comes behind them.
        let until = Instant::now() + STOP_PATIENCE;
        let locked = tokio::time::timeout_at(until, self.change.turn.lock()).await.ok();
        if locked.is_none() {
            tracing::warn!("a change of the node goes on for too long; the node stops without it");
        } else if tokio::time::timeout_at(until, self.save_last()).await.is_err() {
            tracing::warn!("the catalog cannot be written in time; the node stops without it");
        }
        locked
    }
}
