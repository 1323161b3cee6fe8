//! Volumes that shards let go of for good, and the catalog that says so.
//!
//! How: shards cannot take such a volume up again under its number, so what may fail for want of
//! room comes first: the catalog without the volume is written and synced beside the node's, then
//! shards let go, then the new catalog gets its name. What is to be thrown away is in phase
//! `Deleting` in the node's catalog before shards let go of it.
//! Invariant: where the catalog cannot be written, nothing was changed. A crash before the last
//! step leaves the catalog of before: the next start serves the volume, whose blocks are at home or
//! still in its levels, or goes on with its deletion.
//! Cost: two syncs, as any change. Not for: volumes whose creation failed; nothing of them counts.

use super::volumes::within;
use super::{Control, View, report};
use crate::catalog::{Catalog, VolumeRecord};
use crate::config::Name;
use crate::error::Report;
use layby_types::VolumeId;

/// A view whose catalog is on the disk, beside that of the node.
pub(super) struct Staged(View);

/// A volume that shards are to let go of.
pub(super) struct Removal<'a> {
    pub(super) name: &'a Name,
    pub(super) record: &'a VolumeRecord,
    /// Its blocks are thrown away, not written back.
    pub(super) discard: bool,
    /// The node in which it is being deleted, where its data is to be thrown away.
    pub(super) deleting: Option<View>,
    /// The node without it.
    pub(super) without: View,
    /// What could not be done, and what became of the volume, should a shard refuse.
    pub(super) refused: (&'a str, &'a str),
}

impl Control {
    /// Writes the catalog of `view` beside the node's. The caller holds the node's change until the
    /// catalog gets its name, or does not.
    pub(super) async fn stage(&self, view: View) -> Result<Staged, Report> {
        self.change.check_running("cannot save the catalog")?;
        let dir = self.facts.dir.clone();
        let staging = tokio::task::spawn_blocking(move || view.catalog.stage(&dir).map(|()| view));
        staging.await.expect("saving a catalog does not panic").map(Staged)
    }

    /// Gives a staged catalog its name, and makes its view the node's; not once the node has
    /// stopped.
    pub(super) async fn publish_staged(&self, Staged(view): Staged) -> Result<(), Report> {
        self.change.check_running("cannot save the catalog")?;
        let dir = self.facts.dir.clone();
        let saving = tokio::task::spawn_blocking(move || Catalog::publish_staged(&dir));
        saving.await.expect("saving a catalog does not panic")?;
        self.take_effect(view).await;
        Ok(())
    }

    /// Has shards let go of a volume, and writes that down. The caller holds the node's change.
    pub(super) async fn remove_served(&self, removal: Removal<'_>) -> Result<(), Report> {
        let Removal { name, record, discard, deleting, without, refused } = removal;
        let (error, kept) = refused;
        let unchanged = |unsaved| within(error, unsaved).state("the volume is as it was before");
        let (first, last) = match deleting {
            Some(deleting) => (deleting, Some(without)),
            None => (without, None),
        };
        let first = self.stage(first).await.map_err(unchanged)?;
        self.devices.detach(self, name, VolumeId(record.id), error).await?;
        let let_go = async || {
            let removed = self.remove_parts(&self.view(), record, discard).await;
            removed.map_err(|refused| report(&refused, error).state(kept))
        };
        let Some(last) = last else {
            let_go().await?;
            return self.publish_staged(first).await.map_err(|unsaved| {
                within(error, unsaved)
                    .state("no shard has the volume any more; the next start serves it as before")
                    .hint("correct the cause, and start the node again")
            });
        };
        self.publish_staged(first).await.map_err(unchanged)?;
        let_go().await?;
        self.publish(last).await.map_err(|unsaved| {
            within(error, unsaved)
                .state("the volume is no longer served; its data goes at the next start")
                .hint("correct the cause before that")
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::catalog::{Catalog, VolumePhase};
    use crate::config::Name;
    use crate::control::tests::{MockNode, create};
    use crate::control::{Authority, DeleteData};
    use crate::homes::tests::{wanted, with_owner};

    fn name(text: &str) -> Name {
        text.parse().expect("a good name")
    }

    /// Whether a shard has the volume of a number.
    fn is_served(node: &MockNode, id: u32) -> bool {
        node.shards.iter().any(|shard| shard.state().volumes.contains_key(&id))
    }

    /// Deletes a volume while the catalog's new file cannot be made, and again when it can.
    async fn delete_twice(node: &MockNode, volume: &str, data: DeleteData) {
        let volume = name(volume);
        let before = node.control.view().catalog.clone();
        let id = before.volumes[&volume].id;
        node.block_catalog();
        let refused = node.control.volume_delete(&volume, data).await.expect_err("not saved");
        assert_eq!(refused.state, "the volume is as it was before", "{refused}");
        assert!(is_served(node, id), "{data:?}: its shard let go of it");
        assert_eq!(node.control.view().catalog, before, "{data:?}");
        node.unblock_catalog();
        node.control.volume_delete(&volume, data).await.expect("there is room again");
        assert!(!is_served(node, id), "{data:?}");
        let saved = Catalog::load(node.dir.path()).expect("whole").expect("it was saved");
        assert!(!saved.volumes.contains_key(&volume), "{data:?}");
    }

    /// Goal: a deletion that cannot be written down leaves the volume served, and can be repeated.
    /// Method: the catalog's new file cannot be made; volumes in files and with an owner, and each
    /// word on their data.
    #[tokio::test]
    async fn a_deletion_that_is_not_saved_changes_nothing() {
        let node = MockNode::new("");
        for (volume, data) in [("kept", DeleteData::Keep), ("gone", DeleteData::Delete)] {
            let created = node.control.volume_create(create(volume), Authority::Owner).await;
            created.expect("a free name");
            delete_twice(&node, volume, data).await;
        }
        for data in [DeleteData::Keep, DeleteData::Delete, DeleteData::Now] {
            let (owner, node) = with_owner("");
            let created = node.control.volume_create(wanted("far"), Authority::Owner).await;
            created.expect("the owner has it");
            owner.take();
            delete_twice(&node, "far", data).await;
            let told = owner.take();
            let expected = match data {
                DeleteData::Keep => &["release 1 Ready"][..],
                DeleteData::Delete => &["close 1"],
                DeleteData::Now => &["close 1", "remove 1"],
            };
            assert_eq!(told, expected, "{data:?}");
        }
    }

    /// Goal: a crash before the catalog without the volume is in its place leaves the volume
    /// served. Method: the shard refuses once the new file is written; the node ends there, and
    /// starts.
    #[tokio::test]
    async fn a_crash_before_the_last_step_keeps_the_volume() {
        let node = MockNode::new("");
        node.control.volume_create(create("a"), Authority::Owner).await.expect("a free name");
        node.shards[1].state().fail_next = Some(layby_engine::control::CommandError {
            kind: layby_types::ErrorKind::Full,
            cause: "the home is full".into(),
        });
        let refused = node.control.volume_delete(&name("a"), DeleteData::Keep).await;
        let refused = refused.expect_err("the shard keeps it");
        assert!(refused.state.starts_with("the volume is still there"), "{refused}");
        assert!(node.dir.path().join("catalog.json.new").exists(), "it was written first");
        let node = node.restart("");
        assert!(is_served(&node, 1));
        let record = &node.control.view().catalog.volumes["a"];
        assert_eq!(record.phase, VolumePhase::Ready);
        node.control.volume_delete(&name("a"), DeleteData::Keep).await.expect("it has room");
    }
}
