//! What counts for each class, as volumes come, move and go.
//!
//! How: each view that becomes the node's says which class a volume is in; see
//! [`totals`](crate::totals). Before a volume leaves its class the shards' counters are taken, so
//! that what it has done until then stays with that class.
//! Invariant: no scrape has less of a class than one before.
//! Cost: a snapshot of all shards for such a change, as for a scrape.

use super::{Control, Pace, View};
use crate::config::Name;
use crate::totals::{ClassTotals, Totals};
use layby_engine::control::Snapshot;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

impl Control {
    /// What counts for each class, by the latest counters of all shards.
    pub(crate) fn class_totals(&self, snapshots: &[Snapshot]) -> BTreeMap<Name, Totals> {
        let mut totals = self.totals();
        totals.see(snapshots);
        totals.by_class()
    }

    /// Takes down what volumes have done in their classes until now.
    pub(super) async fn count_classes(&self) {
        // Where a shard has ended, the last counters are what there is.
        if let Ok(snapshots) = self.snapshots(Pace::AtOnce).await {
            self.totals().see(&snapshots);
        }
    }

    /// What volumes do from now on counts for the classes that they have in `view`.
    pub(super) fn follow_classes(&self, view: &View) {
        let classes = view.classes().map(|(name, _)| name).collect();
        let volumes = view.volumes().map(|(_, record)| (record.id, &record.class)).collect();
        self.totals().follow(&classes, &volumes);
    }

    fn totals(&self) -> MutexGuard<'_, ClassTotals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
