//! A change of a volume that the catalog could not take.
//!
//! How: its shards are told again what the volume was, and the report says whether they took that.
//! What cannot be undone holds in the node's view, and the next change or the stop saves it. Where
//! the new catalog may have got its name, that of the view is written again at once.
//! Invariant: what a report says of the volume is so. Cost: a command per shard of the volume.
//! Not for: what shards refuse; see `wide`.

use super::saving::Staged;
use super::volumes::within;
use super::{Control, View};
use crate::catalog::VolumeRecord;
use crate::config::Name;
use crate::error::Report;

/// What becomes of a volume that was taken back where the catalog has it still.
pub(super) const GOES_ON: &str = "the volume is not served; unless the node can save its catalog \
                                  before it stops, its next start goes on with this command";

/// What became of a volume whose change was undone.
pub(super) const UNCHANGED: &str = "the volume is as it was before";
/// What remains to be said where the catalog could not be undone.
const MAY_DIFFER: &str = "a crash before the node's next change or a clean stop may leave a \
                          catalog that says otherwise";

impl Control {
    /// Publishes what shards do already. Where the catalog cannot be saved, the view is the node's
    /// all the same; a crash before the next change or the stop leaves the catalog of before.
    ///
    /// # Errors
    /// A report when the catalog could not be saved; the log has it.
    pub(super) async fn publish_done(&self, view: View) -> Result<(), Report> {
        let Err(unsaved) = self.publish(view.clone()).await else { return Ok(()) };
        tracing::warn!(cause = unsaved.cause, "{}", unsaved.error);
        self.change.set_unsaved(true);
        self.tell_limits(&view, Some(&self.view())).await;
        self.show(view);
        self.saving.took_effect().await;
        Err(unsaved)
    }

    /// Publishes a volume that is served already. Should the catalog not be saved, a start after a
    /// crash finds the volume as one that is being created. Its intent, which is not removed until
    /// the catalog is saved, then says that it was made. Without one no level has anything of it.
    pub(super) async fn publish_served(&self, view: View) {
        drop(self.publish_done(view).await);
    }

    /// Saves what the catalog lacks as the node stops. The caller holds the node's change.
    pub(super) async fn save_last(&self) {
        self.end_saving().await;
        let view = self.with_waited();
        if view.catalog == self.view().catalog && !self.change.is_unsaved() {
            return;
        }
        if let Err(unsaved) = self.publish(view).await {
            tracing::warn!(cause = unsaved.cause, "{}", unsaved.error);
        }
    }

    /// Writes the catalog of a changed volume before its shards hear of that, unless it becomes
    /// shorter: what there is no room for is refused then. To undo a growth is to zero what a
    /// longer file holds there.
    pub(super) async fn stage_set(
        &self,
        (name, view): (&Name, &View),
        is_shorter: bool,
        error: &str,
    ) -> Result<Option<Staged>, Report> {
        if is_shorter {
            return Ok(None);
        }
        match self.stage(view.clone()).await {
            Ok(staged) => Ok(Some(staged)),
            Err(unsaved) => {
                self.give_device_back(name, error).await;
                Err(within(error, unsaved).state(UNCHANGED))
            }
        }
    }

    /// A block device that a change would have taken away comes back.
    async fn give_device_back(&self, name: &Name, error: &str) {
        if let Err(lost) = self.devices.attach_asked(self, name, error).await {
            tracing::error!(volume = %name, cause = lost.cause, "a block device is gone");
        }
    }

    /// Writes the catalog of the node's view again where a write that failed may have replaced it,
    /// and says so of the volume, or what a crash may leave. The caller holds the node's change.
    pub(super) async fn undone(&self, unsaved: Report, state: &str) -> Report {
        let is_known = match self.change.is_unsaved() {
            true => self.publish(View::clone(&self.view())).await,
            false => Ok(()),
        };
        let Err(still) = is_known else { return unsaved.state(state) };
        tracing::warn!(cause = still.cause, "{}", still.error);
        unsaved.state(format!("{state}; {MAY_DIFFER}"))
    }

    /// Undoes in the shards, and in the catalog, a change that is not durable; `unsaved` says why.
    /// The caller holds the node's change.
    pub(super) async fn undo_set(
        &self,
        name: &Name,
        (old, new): (&VolumeRecord, &VolumeRecord),
        unsaved: Report,
    ) -> Report {
        let before = self.view();
        let mut after = View::clone(&before);
        after.catalog.volumes.insert(name.clone(), new.clone());
        let homes = &self.facts.homes;
        let specs = (before.volume_specs(homes, old), after.volume_specs(homes, new));
        if let Err(stuck) = self.set_parts(&before, specs.0, &specs.1).await {
            tracing::error!(volume = %name, cause = stuck.cause, "cannot undo a change");
            let state = "a part of the change may hold until the node stops";
            return self.undone(unsaved, state).await;
        }
        self.give_device_back(name, &unsaved.error).await;
        let state = match new.length < old.length {
            true => {
                "the volume is as it was before, but what lay beyond the smaller size may read as \
                 zeros"
            }
            false => UNCHANGED,
        };
        self.undone(unsaved, state).await
    }
}

#[cfg(test)]
mod tests {
    use crate::catalog::Catalog;
    use crate::config::Name;
    use crate::control::tests::{MockNode, create};
    use crate::control::{Authority, VolumePatch};
    use crate::replace::tests::fail_next_syncs;

    /// Goal: a growth that the catalog has no room for reaches no shard, whose way back would zero
    /// what a longer file holds there, and can be repeated. Method: the catalog's new file cannot
    /// be made; the shard's volume and what it was told.
    #[tokio::test]
    async fn a_growth_that_is_not_saved_reaches_no_shard() {
        let node = MockNode::new("");
        node.control.volume_create(create("a"), Authority::Owner).await.expect("a free name");
        let name: Name = "a".parse().expect("a good name");
        let size = Some("2MiB".parse().expect("a size"));
        let patch = VolumePatch { size, ..VolumePatch::default() };
        let told = node.shards[1].state().log.clone();
        node.block_catalog();
        let refused = node.control.volume_set(&name, patch.clone()).await.expect_err("not saved");
        assert_eq!(refused.state, "the volume is as it was before", "{refused}");
        assert_eq!(node.shards[1].state().log, told, "the shard has heard of it");
        node.unblock_catalog();
        node.control.volume_set(&name, patch).await.expect("there is room again");
        assert_eq!(node.shards[1].state().volumes[&1].spec.length, 2 << 20);
    }

    /// Goal: a change whose catalog got its name, and whose directory could not be synced then, is
    /// undone in the catalog at once; where that fails, too, the answer says what a crash may
    /// leave. Method: one sync fails, and two; a growth and a shrink; the catalog that is left.
    #[tokio::test]
    async fn a_change_that_is_not_durable_is_undone_at_once() {
        for (syncs, size) in [(1, "2MiB"), (2, "2MiB"), (1, "512KiB"), (2, "512KiB")] {
            let node = MockNode::new("");
            node.control.volume_create(create("a"), Authority::Owner).await.expect("a free name");
            let before = node.control.view().catalog.clone();
            let name: Name = "a".parse().expect("a good name");
            let size = Some(size.parse().expect("a size"));
            let patch = VolumePatch { size, shrink: true, ..VolumePatch::default() };
            fail_next_syncs(&node.dir.path().join("catalog.json"), syncs);
            let refused = node.control.volume_set(&name, patch).await.expect_err("not durable");
            assert!(refused.state.starts_with("the volume is as it was before"), "{refused}");
            assert_eq!(refused.state.contains("a crash"), syncs == 2, "{refused}");
            assert_eq!(node.control.view().catalog, before);
            let saved = Catalog::load(node.dir.path()).expect("whole").expect("it was saved");
            assert_eq!(saved, before, "{refused}");
            assert_eq!(node.shards[1].state().volumes[&1].spec.length, 1 << 20);
        }
    }
}
