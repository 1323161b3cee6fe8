//! Volumes that shards let go of for good, and the catalog that says so.
//!
//! How: shards cannot take such a volume up again under its number, so what may fail for want of
//! room comes first: the catalog without the volume is written and synced beside the node's, then
//! shards let go, then the new catalog gets its name. What is to be thrown away is in phase
//! `Deleting` in the node's catalog before shards let go of it.
//! A volume that is kept is quiesced before that: its clients are closed, and what is dirty is
//! written back, while other changes go on; then it is let go at once. Only then it is known
//! whether a store has all of it: until its clients are closed, they may write durably into its
//! journal.
//! Invariant: where the catalog cannot be written, nothing was changed; one that got its name and
//! is not durable is written over at once, and the report says where that fails. A crash before the
//! last step leaves the catalog of before: the next start serves the volume, whose blocks are at
//! home or still in its levels, or goes on with its deletion.
//! Cost: two syncs, as any change. Not for: volumes whose creation failed; nothing of them counts.

use super::deletion::being_deleted;
use super::turn::LongChange;
use super::unsaved::UNCHANGED;
use super::volumes::within;
use super::{Command, Control, View, report};
use crate::catalog::VolumeRecord;
use crate::config::Name;
use crate::error::Report;
use layby_cloud::Order;
use layby_engine::control::CommandError;
use layby_types::VolumeId;
use std::time::Duration;
use tokio::sync::MutexGuard;

/// How long what is in flight of a volume in a store may take to end, and its thread to say how
/// much of it is not in the store.
pub(super) const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// A volume that shards are to let go of.
pub(super) struct Removal<'a> {
    pub(super) name: &'a Name,
    pub(super) record: &'a VolumeRecord,
    /// Its blocks are thrown away, not written back.
    pub(super) discard: bool,
    /// Shards have nothing of it in flight, and let none in; see [`Control::quiesce`].
    pub(super) is_quiesced: bool,
    /// The node in which it is being deleted, where its data is to be thrown away.
    pub(super) deleting: Option<View>,
    /// The node without it.
    pub(super) without: View,
    /// What could not be done, and what became of the volume, should a shard refuse.
    pub(super) refused: (&'a str, &'a str),
}

/// The turn of a deletion whose volume can be let go at once.
pub(super) struct Quiesced<'a> {
    pub(super) turn: MutexGuard<'a, ()>,
    /// Other changes of the volume wait until this goes.
    pub(super) long: LongChange<'a>,
}

impl Control {
    /// The node in which a volume is being deleted, where its data goes, and the one without it.
    pub(super) fn without(&self, name: &Name, discards: bool) -> (Option<View>, View) {
        let mut view = View::clone(&self.view());
        view.unwant(name, &self.facts.config);
        let deleting = discards.then(|| being_deleted(&view, name));
        view.remove_volume(name);
        (deleting, view)
    }

    /// Has shards close the clients of a volume and write back what is to be kept, which may take
    /// hours, and gives the turn back meanwhile. That there is room for the catalog without the
    /// volume is known before. What waits for a volume's store, and was not acknowledged, ends with
    /// an error; a volume whose journal does not answer is refused.
    ///
    /// # Errors
    /// A report when that fails; the volume is served again.
    pub(super) async fn quiesce<'a>(
        &'a self,
        name: &Name,
        record: &VolumeRecord,
        discard: bool,
        turn: MutexGuard<'a, ()>,
        error: &str,
    ) -> Result<Quiesced<'a>, Report> {
        let staged = self.stage(self.without(name, discard).1).await;
        staged.map_err(|e| within(error, e).state(UNCHANGED))?;
        self.devices.detach(self, name, VolumeId(record.id), error).await?;
        let long = self.change.begin_long(name, "deleted");
        drop(turn);
        let quiescing = self.quiesce_parts(record, discard);
        let quiesced = match self.facts.homes.writes_through(record) {
            true => self.or_break_off(name, quiescing).await,
            false => quiescing.await,
        };
        if let Err(refused) = quiesced {
            self.reopen(name, record, error).await;
            let kept = "the volume is still there; blocks not written back are safe in their level";
            return Err(report(&refused, error).state(kept));
        }
        let turn = self.lock_changes().await;
        Ok(Quiesced { turn, long })
    }

    /// Waits for shards that end what is in flight of a volume in a store, for a time.
    async fn or_break_off(
        &self,
        name: &Name,
        quiescing: impl Future<Output = Result<(), CommandError>>,
    ) -> Result<(), CommandError> {
        match tokio::time::timeout(STORE_PATIENCE, quiescing).await {
            Ok(quiesced) => quiesced,
            Err(_) => {
                self.break_off(name).await;
                let cause = "what is in flight at its journal does not end".to_owned();
                Err(CommandError { kind: layby_types::ErrorKind::Retry, cause })
            }
        }
    }

    /// Has shards close the clients of a volume in a store whose blocks are thrown away, and end
    /// what is in flight, within a time; the caller keeps the node's change.
    ///
    /// # Errors
    /// A report where its journal does not answer; the volume is served again.
    pub(super) async fn quiesce_in_turn(
        &self,
        name: &Name,
        record: &VolumeRecord,
        error: &str,
    ) -> Result<(), Report> {
        self.devices.detach(self, name, VolumeId(record.id), error).await?;
        let quiescing = self.quiesce_parts(record, true);
        let Err(refused) = self.or_break_off(name, quiescing).await else { return Ok(()) };
        self.reopen(name, record, error).await;
        Err(report(&refused, error).state(UNCHANGED))
    }

    /// Refuses to remove a quiesced volume whose store does not have all of it, which is served
    /// again.
    pub(super) async fn check_quiesced(
        &self,
        name: &Name,
        record: &VolumeRecord,
        error: &str,
    ) -> Result<(), Report> {
        let Err(refused) = self.check_drained(record, error).await else { return Ok(()) };
        self.reopen(name, record, error).await;
        Err(refused.state("the volume is served as before; its clients were disconnected"))
    }

    async fn quiesce_parts(
        &self,
        record: &VolumeRecord,
        discard: bool,
    ) -> Result<(), CommandError> {
        let view = self.view();
        if view.is_in_no_shard(record) {
            return Ok(());
        }
        self.unjoin_parts(&view, record).await?;
        for volume in record.parts() {
            let shard = view.layout.shard_of(volume);
            let quiesce = |answer| Command::Quiesce { volume, discard, answer };
            self.ask(shard, quiesce).await?;
        }
        Ok(())
    }

    /// Has shards serve a volume again that is not removed after all, as its block device does; not
    /// once the node has stopped, when a shard takes no command while it waits for its devices.
    pub(super) async fn reopen(&self, name: &Name, record: &VolumeRecord, error: &str) {
        if self.change.check_running("").is_err() {
            return;
        }
        let view = self.view();
        if let Some(watch) = self.facts.homes.watch(record) {
            watch.order(Order::ResumeWaiting);
        }
        for part in record.parts() {
            // A shard that has ended serves nothing.
            let shard = view.layout.shard_of(part);
            drop(self.ask(shard, |answer| Command::Reopen(part, answer)).await);
        }
        if let Err(refused) = self.join_parts(&view, record).await {
            let id = record.id;
            tracing::warn!(volume = id, cause = refused.cause, "cannot join its parts again");
        }
        if let Err(left) = self.devices.attach_asked(self, name, error).await {
            tracing::warn!(volume = %name, cause = left.cause, "{}", left.state);
        }
    }

    /// Has shards end a shrink or a write-back of a volume that is to be deleted with its data.
    pub(super) async fn break_off(&self, name: &Name) {
        let view = self.view();
        let Some(record) = view.catalog.volumes.get(name) else { return };
        for part in record.parts() {
            let shard = view.layout.shard_of(part);
            drop(self.ask(shard, |answer| Command::BreakOff(part, answer)).await);
        }
    }

    /// Has shards let go of a volume. A wide one's clients go first, everywhere, and what is to be
    /// kept is home before the first part goes: then a refusal leaves the volume as it was.
    pub(super) async fn remove_parts(
        &self,
        view: &View,
        record: &VolumeRecord,
        (discard, is_quiesced): (bool, bool),
    ) -> Result<(), CommandError> {
        if view.is_in_no_shard(record) {
            return Ok(());
        }
        if !is_quiesced {
            self.unjoin_parts(view, record).await?;
        }
        let is_dirty = record.wide.is_some() && !discard && !is_quiesced;
        for part in record.parts().filter(|_| is_dirty) {
            let shard = view.layout.shard_of(part);
            if let Err(refused) = self.ask(shard, |answer| Command::Drain(Some(part), answer)).await
            {
                self.join_parts(view, record).await?;
                return Err(refused);
            }
        }
        for volume in record.parts() {
            let shard = view.layout.shard_of(volume);
            let remove = |answer| Command::RemoveVolume { volume, discard, answer };
            self.ask(shard, remove).await?;
        }
        Ok(())
    }

    /// Has shards let go of a volume, and writes that down. The caller holds the node's change.
    pub(super) async fn remove_served(&self, removal: Removal<'_>) -> Result<(), Report> {
        let Removal { name, record, discard, is_quiesced, deleting, without, refused } = removal;
        let (error, kept) = refused;
        let (first, last) = match deleting {
            Some(deleting) => (deleting, Some(without)),
            None => (without, None),
        };
        let staged = self.stage(first).await;
        let first = staged.map_err(|unsaved| within(error, unsaved).state(UNCHANGED))?;
        self.devices.detach(self, name, VolumeId(record.id), error).await?;
        self.count_classes().await;
        let let_go = async || {
            let how = (discard, is_quiesced);
            let removed = self.remove_parts(&self.view(), record, how).await;
            removed.map_err(|refused| report(&refused, error).state(kept))
        };
        let Some(last) = last else {
            let_go().await?;
            let Err(unsaved) = self.publish_staged(first).await else { return Ok(()) };
            let state = "no shard has the volume any more; the next start serves it as before";
            let report = self.undone(within(error, unsaved), state).await;
            return Err(report.hint("correct the cause, and start the node again"));
        };
        if let Err(unsaved) = self.publish_staged(first).await {
            // Else a start may go on with the deletion of what shards serve again.
            return Err(self.undone(within(error, unsaved), UNCHANGED).await);
        }
        let_go().await?;
        let Err(unsaved) = self.publish(last).await else { return Ok(()) };
        // Else a start may find no volume, and what is left of its data would block its name.
        let state = "the volume is no longer served; its data goes at the next start";
        let report = self.undone(within(error, unsaved), state).await;
        Err(report.hint("correct the cause before that"))
    }
}

#[cfg(test)]
mod tests {
    use super::{STORE_PATIENCE, View};
    use crate::catalog::{Catalog, VolumePhase};
    use crate::config::Name;
    use crate::control::drain::tests::said_of;
    use crate::control::tests::{MockNode, create};
    use crate::control::{Authority, DeleteData, VolumePatch};
    use crate::error::Report;
    use crate::homes::tests::{wanted, with_owner};
    use crate::node::tests::LogLines;
    use crate::replace::tests::{fail_next_syncs, fail_syncs_behind};
    use layby_cloud::{Link, Said};
    use std::sync::Arc;
    use tokio::task::{JoinHandle, yield_now};

    /// What a volume says whose store has all of it, or not.
    fn said(is_drained: bool) -> Said {
        said_of(Link::Up, is_drained)
    }

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

    /// Goal: a deletion whose catalog got its name, and whose directory could not be synced then,
    /// is undone in the catalog at once, so that no start goes on with it; where that fails, too,
    /// the answer says what a crash may leave. Method: one sync fails, and two; volumes in a file
    /// and with an owner; the catalog that is left, a crash, a start.
    #[tokio::test]
    async fn a_deletion_that_is_not_durable_is_undone_at_once() {
        for (syncs, is_far) in [(1, false), (2, false), (1, true), (2, true)] {
            let (_owner, node) = with_owner("");
            let (wanted, data) = match is_far {
                true => (wanted("a"), DeleteData::Now),
                false => (create("a"), DeleteData::Delete),
            };
            node.control.volume_create(wanted, Authority::Owner).await.expect("a free name");
            let before = node.control.view().catalog.clone();
            let id = before.volumes["a"].id;
            fail_next_syncs(&node.dir.path().join("catalog.json"), syncs);
            let refused = node.control.volume_delete(&name("a"), data).await;
            let refused = refused.expect_err("it is not durable");
            let is_known = refused.state == "the volume is as it was before";
            assert_eq!(is_known, syncs == 1, "{refused}");
            assert_eq!(refused.state.contains("a crash"), syncs == 2, "{refused}");
            assert!(is_served(&node, id), "{refused}");
            assert_eq!(node.control.view().catalog, before);
            let saved = Catalog::load(node.dir.path()).expect("whole").expect("it was saved");
            assert_eq!(saved, before, "syncs: {syncs}, far: {is_far}");
            if !is_far {
                let node = node.restart("");
                assert!(is_served(&node, id), "the start went on with the deletion");
            }
        }
    }

    /// Goal: a deletion that goes on at the next start, since the catalog without the volume is not
    /// durable, does so: its file blocks no new volume of its name; where the catalog cannot be
    /// written over, the answer says what a crash may leave. Method: the second catalog's sync
    /// fails, and that of what is written over it, too; the catalog that is left, a crash, a start.
    #[tokio::test]
    async fn a_deletion_whose_end_is_not_durable_goes_on_at_the_start() {
        for syncs in [1, 2] {
            let node = MockNode::new("");
            node.control.volume_create(create("a"), Authority::Owner).await.expect("a free name");
            let file = node.dir.path().join("volumes/a");
            std::fs::write(&file, b"x").expect("a writable directory");
            fail_syncs_behind(&node.dir.path().join("catalog.json"), 1, syncs);
            let refused = node.control.volume_delete(&name("a"), DeleteData::Delete).await;
            let refused = refused.expect_err("it is not durable");
            assert!(refused.state.contains("its data goes at the next start"), "{refused}");
            assert_eq!(refused.state.contains("a crash"), syncs == 2, "{refused}");
            let saved = Catalog::load(node.dir.path()).expect("whole").expect("it was saved");
            let phase = saved.volumes.get("a").map(|record| record.phase);
            assert_eq!(phase, Some(VolumePhase::Deleting), "no start removes its file");
            let node = node.restart("");
            assert!(!node.control.view().catalog.volumes.contains_key("a"), "syncs: {syncs}");
            node.control.volume_create(create("a"), Authority::Owner).await.expect("a free name");
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

    /// A node with volumes a and b on one shard, which holds the answers of long changes.
    async fn holding() -> MockNode {
        let node = MockNode::new("");
        for volume in ["a", "beside", "b"] {
            let created = node.control.volume_create(create(volume), Authority::Owner).await;
            created.expect("a free name");
        }
        let mut shard = node.shards[1].state();
        (shard.holds_sets, shard.holds_quiesces) = (true, true);
        drop(shard);
        node
    }

    fn delete(node: &MockNode, data: DeleteData) -> JoinHandle<Result<(), Report>> {
        let control = Arc::clone(&node.control);
        tokio::spawn(async move { control.volume_delete(&name("a"), data).await.map(drop) })
    }

    async fn quiescing(node: &MockNode) {
        while node.shards[1].state().quiescing.is_empty() {
            yield_now().await;
        }
    }

    /// Goal: a deletion whose dirty blocks take long to write back holds up changes of its own
    /// volume alone, whose record and place are as they were until the end. Method: the shard keeps
    /// the answer; another volume is changed, one is made, the volume itself is changed, and the
    /// shard answers.
    #[tokio::test]
    async fn a_write_back_holds_up_its_own_volume_alone() {
        let node = holding().await;
        let deleting = delete(&node, DeleteData::Keep);
        quiescing(&node).await;
        let patch = || VolumePatch { read_only: Some(true), ..VolumePatch::default() };
        node.shards[1].state().holds_sets = false;
        node.control.volume_set(&name("b"), patch()).await.expect("it does not wait");
        node.control.volume_create(create("c"), Authority::Owner).await.expect("nor does this");
        let control = Arc::clone(&node.control);
        let own = tokio::spawn(async move { control.volume_set(&name("a"), patch()).await });
        yield_now().await;
        assert!(!own.is_finished() && !deleting.is_finished());
        let saved = Catalog::load(node.dir.path()).expect("whole").expect("it was saved");
        assert_eq!(saved.volumes["a"].phase, VolumePhase::Ready);
        let (id, answer) = node.shards[1].state().quiescing.remove(0);
        assert_eq!(id.0, 1);
        answer(Ok(()));
        deleting.await.expect("no panic").expect("it goes");
        own.await.expect("no panic").expect_err("it is gone");
        assert!(!is_served(&node, 1));
        let view = node.control.view();
        assert!(view.catalog.volumes["b"].read_only && view.catalog.volumes.contains_key("c"));
        let saved = Catalog::load(node.dir.path()).expect("whole").expect("it was saved");
        assert_eq!(saved, view.catalog);
    }

    /// Goal: a volume in a store, to which a client writes durably between the first look at its
    /// journal and the end of its clients, is not removed, and is served on; once its store has
    /// all, it goes. Method: the shard keeps the answer, and the volume has batches by then.
    #[tokio::test]
    async fn what_is_written_until_clients_are_closed_is_kept() {
        let (owner, node) = with_owner("");
        let says = owner.is_watched();
        says.send_replace(Some(said(true)));
        node.control.volume_create(wanted("far"), Authority::Owner).await.expect("it is served");
        owner.take();
        node.shards.iter().for_each(|shard| shard.state().holds_quiesces = true);
        let control = Arc::clone(&node.control);
        let keeping = async move { control.volume_delete(&name("far"), DeleteData::Keep).await };
        let deleting = tokio::spawn(keeping);
        let is_quiescing = || node.shards.iter().any(|s| !s.state().quiescing.is_empty());
        while !is_quiescing() && !deleting.is_finished() {
            yield_now().await;
        }
        assert!(is_quiescing(), "its clients go before its journal is looked at");
        says.send_replace(Some(said(false)));
        let mut shards = node.shards.iter();
        let shard = shards.find(|shard| !shard.state().quiescing.is_empty()).expect("one has it");
        let (_, answer) = shard.state().quiescing.remove(0);
        answer(Ok(()));
        let refused = deleting.await.expect("no panic").expect_err("the store lacks a batch");
        assert!(refused.cause.contains("are not in the store"), "{refused}");
        assert!(refused.state.contains("served as before"), "{refused}");
        assert!(is_served(&node, 1) && node.control.view().catalog.volumes.contains_key("far"));
        assert_eq!(shard.state().log.last().expect("it was told"), "reopen 1");
        assert!(owner.take().is_empty(), "nothing of it is removed");
        node.shards.iter().for_each(|shard| shard.state().holds_quiesces = false);
        says.send_replace(Some(said(true)));
        node.control.volume_delete(&name("far"), DeleteData::Keep).await.expect("it goes");
        assert_eq!(owner.take(), ["release 1 Ready"]);
    }

    /// Goal: a volume in a store whose journal does not answer does not hold its deletion up for
    /// ever, with its data or without, nor the change of the node behind it, and is served on.
    /// Method: the shard does not answer, in paused time; another volume is made meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_journal_that_does_not_answer_ends_a_deletion() {
        for data in [DeleteData::Keep, DeleteData::Delete, DeleteData::Now] {
            let (owner, node) = with_owner("");
            owner.is_watched().send_replace(Some(said(true)));
            let created = node.control.volume_create(wanted("far"), Authority::Owner).await;
            created.expect("it is served");
            node.shards.iter().for_each(|shard| shard.state().holds_quiesces = true);
            let control = Arc::clone(&node.control);
            let deleting =
                tokio::spawn(async move { control.volume_delete(&name("far"), data).await });
            let is_quiescing = || node.shards.iter().any(|s| !s.state().quiescing.is_empty());
            while !is_quiescing() && !deleting.is_finished() {
                yield_now().await;
            }
            assert!(is_quiescing(), "{data:?}: it ends what is in flight, within a time");
            let beside = node.control.volume_create(create("beside"), Authority::Owner).await;
            beside.expect("changes go on");
            assert!(!deleting.is_finished(), "{data:?}");
            let refused = deleting.await.expect("no panic").expect_err("it waits");
            assert!(refused.cause.contains("does not end"), "{data:?}: {refused}");
            let view = node.control.view();
            assert!(is_served(&node, 1) && view.catalog.volumes.contains_key("far"), "{data:?}");
            assert!(view.catalog.deleted.is_empty(), "{data:?}");
        }
    }

    /// Goal: a volume whose own thread hangs, so that it says nothing, holds up neither its
    /// deletion nor the end of its creation for ever, nor other changes behind them; both say why,
    /// and it is served on. Method: paused time, and a watch that hears no order; another volume is
    /// made.
    #[tokio::test(start_paused = true)]
    async fn a_volume_that_says_nothing_ends_a_deletion() {
        for is_new in [false, true] {
            let (owner, node) = with_owner("");
            let link = if is_new { Link::Opening } else { Link::Up };
            let silent = Said { heard: 0, ..said_of(link, true) };
            let says = owner.is_watched();
            says.send_replace(Some(silent));
            let creating = node.control.volume_create(wanted("far"), Authority::Owner);
            let created = tokio::time::timeout(20 * STORE_PATIENCE, creating).await;
            let created = created.expect("it ends");
            let refused = match is_new {
                true => created.expect_err("it is in no store").state,
                false => {
                    created.expect("it is served");
                    let far = name("far");
                    let deleting = node.control.volume_delete(&far, DeleteData::Keep);
                    let deleted = tokio::time::timeout(20 * STORE_PATIENCE, deleting).await;
                    let refused = deleted.expect("it ends").expect_err("nothing is known");
                    assert!(!refused.hint.is_empty(), "{refused}");
                    refused.cause
                }
            };
            assert!(refused.contains("does not answer"), "{refused}");
            assert!(is_served(&node, 1) && node.control.view().catalog.volumes.contains_key("far"));
            let beside = node.control.volume_create(create("beside"), Authority::Owner).await;
            beside.expect("changes go on");
        }
    }

    /// Goal: a volume that was written back and whose deletion the catalog has no room for by then
    /// is served again. Method: the catalog's new file cannot be made when the shard answers; a
    /// write-back that fails.
    #[tokio::test]
    async fn a_volume_that_stays_is_opened_again() {
        for is_refused in [false, true] {
            let node = holding().await;
            let deleting = delete(&node, DeleteData::Keep);
            quiescing(&node).await;
            let (_, answer) = node.shards[1].state().quiescing.remove(0);
            let cause = "its home is full".to_owned();
            let kind = layby_types::ErrorKind::Full;
            match is_refused {
                true => answer(Err(layby_engine::control::CommandError { kind, cause })),
                false => {
                    node.block_catalog();
                    answer(Ok(()));
                }
            }
            let refused = deleting.await.expect("no panic").expect_err("it stays");
            let state = if is_refused { "still there" } else { "as it was before" };
            assert!(refused.state.contains(state), "{refused}");
            assert!(is_served(&node, 1));
            assert_eq!(node.shards[1].state().log.last().expect("it was told"), "reopen 1");
        }
    }

    /// Goal: a volume of a block device that stays is served with the device again, or the log says
    /// that it cannot be had. Method: the catalog's new file cannot be made when the shard answers;
    /// the driver is not there, or makes none of a mock's volume.
    #[tokio::test]
    async fn a_volume_that_stays_asks_for_its_device_again() {
        let log = LogLines::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let node = holding().await;
        let mut view = View::clone(&node.control.view());
        view.catalog.volumes.get_mut("a").expect("it was made").ublk = true;
        node.control.publish(view).await.expect("a writable directory");
        let deleting = delete(&node, DeleteData::Keep);
        quiescing(&node).await;
        let (_, answer) = node.shards[1].state().quiescing.remove(0);
        node.block_catalog();
        answer(Ok(()));
        deleting.await.expect("no panic").expect_err("it stays");
        assert!(is_served(&node, 1));
        let log = log.text();
        assert!(log.contains("has no block device") && log.contains("volume=a"), "{log}");
    }

    /// Goal: a deletion with the data waits neither for a shrink of the volume nor for a write-back
    /// of it, which end with an error. Method: the shard keeps the answers of both.
    #[tokio::test]
    async fn a_deletion_with_the_data_breaks_long_changes_off() {
        for shrinks in [false, true] {
            let node = holding().await;
            let control = Arc::clone(&node.control);
            let size = Some("512KiB".parse().expect("a size"));
            let patch = VolumePatch { size, shrink: true, ..VolumePatch::default() };
            let long = match shrinks {
                true => tokio::spawn(async move { control.volume_set(&name("a"), patch).await }),
                false => delete(&node, DeleteData::Keep),
            };
            let is_held = || {
                let shard = node.shards[1].state();
                !shard.held.is_empty() || !shard.quiescing.is_empty()
            };
            while !is_held() {
                yield_now().await;
            }
            node.shards[1].state().holds_quiesces = false;
            let deleted = node.control.volume_delete(&name("a"), DeleteData::Delete).await;
            deleted.expect("it does not wait");
            let refused = long.await.expect("no panic").expect_err("it was broken off");
            assert!(refused.cause.contains("is being deleted"), "{refused}");
            assert!(!is_served(&node, 1));
        }
    }
}
