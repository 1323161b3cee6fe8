//! The step in which a volume in an object store becomes a deleted one.
//!
//! How: its shards end what is in flight of it, within a time, since its journal's device may hang;
//! then they remove it, and the catalog has it among the deleted ones.
//! Invariant: where its journal or its map does not answer, nothing was changed, and other changes
//! of the node go on. Cost: as any removal. Not for: what its store is told; see `deletion`.

use super::being_deleted;
use super::off_runtime;
use crate::catalog::{DeletedRecord, StoreIdentity, VolumeRecord};
use crate::config::Name;
use crate::control::removal::Removal;
use crate::control::{Control, View};
use crate::error::{Report, ReportKind};
use layby_types::Nanos;
use std::time::Duration;
use tokio::sync::MutexGuard;

/// How long a volume's map may take to be read.
const MAP_PATIENCE: Duration = Duration::from_secs(5);

impl Control {
    /// Deletes a volume in an object store, with its data: after its grace, or now. Its shards end
    /// what is in flight before, where they have it; the node's change, which the caller held, is
    /// given back meanwhile.
    pub(in crate::control) async fn delete_in_store<'a>(
        &'a self,
        name: &Name,
        (record, is_absent): (VolumeRecord, bool),
        now: bool,
        (change, error): (MutexGuard<'a, ()>, &str),
    ) -> Result<u32, Report> {
        let grace_seconds = match now {
            true => 0,
            false => self.facts.config.cloud.grace.0.div_ceil(Nanos::from_secs(1).0),
        };
        let identity = self.known_identity(&record, error).await?;
        let discard = grace_seconds == 0;
        let (_change, _long) = match is_absent {
            true => (change, None),
            false => {
                let quiesced = self.quiesce(name, &record, discard, change, error).await?;
                (quiesced.turn, Some(quiesced.long))
            }
        };
        let mut view = View::clone(&self.view());
        view.unwant(name, &self.facts.config);
        let deleting = discard.then(|| being_deleted(&view, name));
        view.remove_volume(name);
        let deleted = DeletedRecord::new(name.clone(), identity, grace_seconds, record.clone());
        view.catalog.deleted.push(deleted);
        let kept = match discard {
            true => "the volume is no longer served; its data goes after the next start",
            false => "the volume is still there, and so is its data",
        };
        let (without, refused, is_quiesced) = (view, (error, kept), !is_absent);
        let removal =
            Removal { name, record: &record, discard, is_quiesced, deleting, without, refused };
        let removed = self.remove_served(removal).await;
        if removed.is_err() && is_quiesced {
            self.reopen(name, &record, error).await;
        }
        removed?;
        self.devices.remove_left(&record).await;
        self.learn_sessions(&record).await;
        // Its grace begins.
        let _ = self.deletions.state(record.id);
        self.facts.homes.close(&record);
        self.deletions.changed.notify_one();
        Ok(record.id)
    }

    /// What a volume is, by its map, whose device may not answer.
    pub(super) async fn known_identity(
        &self,
        record: &VolumeRecord,
        error: &str,
    ) -> Result<Option<StoreIdentity>, Report> {
        let (homes, about) = (self.facts.homes.clone(), record.clone());
        let asking = off_runtime(move || homes.identity(&about));
        tokio::time::timeout(MAP_PATIENCE, asking).await.map_err(|_| {
            Report::new(ReportKind::Failure, error)
                .cause("its map's device does not answer")
                .state("nothing was changed")
                .hint("look at that device, and repeat the command")
        })
    }

    /// Adds what the map file of a deleted volume says by now: it may have been claimed while its
    /// shards let go of it.
    async fn learn_sessions(&self, record: &VolumeRecord) {
        // What is not learnt now is learnt before its store is told.
        let Ok(identity) = self.known_identity(record, "").await else { return };
        let mut view = View::clone(&self.view());
        let mut found = view.catalog.deleted.iter_mut();
        let Some(deleted) = found.find(|deleted| deleted.record.id == record.id) else { return };
        let before = deleted.sessions.len();
        deleted.learn(identity);
        if deleted.sessions.len() > before {
            // Where that cannot be written down, the map file says it, as long as it is there.
            drop(self.publish(view).await);
        }
    }
}
