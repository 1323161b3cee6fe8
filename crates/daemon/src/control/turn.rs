//! The order of changes: one at a time, but for the zeroing of a volume that shrinks.
//!
//! How: a lock that each change holds. A shrink names its volume and gives the lock back while its
//! shards write zeroes, which may take hours; changes of that volume wait for its end.
//! Invariant: a volume that shrinks is the same when the shrink has the lock again. After a stop
//! the lock is free, and no change is written down.
//! Cost: a look at the few volumes that shrink, per change of a volume.
//! Not for: volumes that are not served; see `absent`.

use crate::config::Name;
use crate::error::{Report, ReportKind};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex as StdMutex, MutexGuard as StdMutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, Notify};

/// How long a stop waits for the change under way. A store that is silent may hold one up for
/// minutes, and a service manager does not wait as long.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// See the module's header.
#[derive(Default)]
pub(super) struct Changes {
    turn: Mutex<()>,
    shrinking: StdMutex<BTreeSet<Name>>,
    /// A shrink has ended.
    ended: Notify,
    /// The node has stopped; no change is written down any more.
    stopped: AtomicBool,
    /// The catalog lacks what the node's view has.
    unsaved: AtomicBool,
}

/// A volume that shrinks, until this is dropped.
pub(super) struct Shrinking<'a> {
    changes: &'a Changes,
    name: Name,
}

impl Drop for Shrinking<'_> {
    fn drop(&mut self) {
        self.changes.names().remove(&self.name);
        self.changes.ended.notify_waiters();
    }
}

impl Changes {
    fn names(&self) -> StdMutexGuard<'_, BTreeSet<Name>> {
        self.shrinking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn of a change that changes no served volume's own record; the end of a take does,
    /// in what no shrink reads.
    pub(super) async fn lock(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// The turn of a change of a volume; it comes when the volume does not shrink.
    pub(super) async fn lock_for(&self, name: &Name) -> MutexGuard<'_, ()> {
        loop {
            // It hears of every end from now on.
            let ended = self.ended.notified();
            let turn = self.turn.lock().await;
            if !self.names().contains(name) {
                return turn;
            }
            drop(turn);
            ended.await;
        }
    }

    /// The turn of a creation. It does not wait for the end of a shrink: a take also has the turn
    /// of the volumes that are not served, and any other creation is refused for the name.
    ///
    /// # Errors
    /// A report when the volume that is to be taken shrinks.
    pub(super) async fn lock_to_create(
        &self,
        name: &Name,
        takes: bool,
        error: &str,
    ) -> Result<MutexGuard<'_, ()>, Report> {
        let turn = self.turn.lock().await;
        if takes && self.names().contains(name) {
            return Err(Report::new(ReportKind::InUse, error)
                .cause(format!("volume `{name}` of this node is being shrunk"))
                .state("nothing was changed")
                .hint("choose another name, or repeat the command when the shrink has ended"));
        }
        Ok(turn)
    }

    /// The turn of a stop; none where a change goes on for too long.
    pub(super) async fn lock_to_stop(&self) -> Option<MutexGuard<'_, ()>> {
        let locked = tokio::time::timeout(STOP_PATIENCE, self.turn.lock()).await.ok();
        if locked.is_none() {
            tracing::warn!("a change of the node goes on for too long; the node stops without it");
        }
        locked
    }

    /// From now on no change is written down: the node stops.
    pub(super) fn set_stopped(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Whether the catalog lacks what the node's view has, from now on.
    pub(super) fn set_unsaved(&self, is_unsaved: bool) {
        self.unsaved.store(is_unsaved, Ordering::SeqCst);
    }

    /// Whether the catalog lacks what the node's view has.
    pub(super) fn is_unsaved(&self) -> bool {
        self.unsaved.load(Ordering::SeqCst)
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

    /// Has other changes of the volume wait. The caller has the turn.
    pub(super) fn begin_shrink(&self, name: &Name) -> Shrinking<'_> {
        let is_new = self.names().insert(name.clone());
        assert!(is_new, "a volume shrinks once at a time");
        Shrinking { changes: self, name: name.clone() }
    }
}
