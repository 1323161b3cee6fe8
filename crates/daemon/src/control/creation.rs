//! The end of a creation: the volume is served, or taken back.
//!
//! How: a volume in phase `Creating` is served, and the catalog says so; where its home or a shard
//! refuses, it goes again. In an object store a volume is served as soon as its journal is there,
//! and its session puts the superblock in the background. A creation waits for that. Where the
//! store refuses it, or has not taken it in [`PATIENCE`], the volume is taken back, unless a client
//! has written to it: that is known once its clients are closed. Where only its block device cannot
//! be attached, it is served without.
//! Invariant: a creation in an object store that succeeded is in the store; of two creations at one
//! place the loser says so.
//! Cost: the requests of a session's opening. Not for: volumes that are taken; see `take`.

use super::removal::Removal;
use super::unsaved::GOES_ON;
use super::volumes::set_phase;
use super::{Control, View, VolumeCreate, finish_take};
use crate::catalog::{VolumePhase, VolumeRecord};
use crate::config::Name;
use crate::error::{Report, ReportKind};
use layby_cloud::{Link, Said};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a store has to take a new volume's superblock.
const PATIENCE: Duration = Duration::from_secs(20);

/// The file that a creation makes, and that goes if it fails.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MadeFile {
    /// None, or one that may have been there.
    None,
    /// In a place that the request names: unless it was written to.
    Blank,
    /// In the node's own directory.
    Own,
}

/// Makes volumes whose creation a crash interrupted, once the node has come up, or takes them back:
/// nobody was told that they are there, so whoever asked asks again.
pub(crate) async fn finish_creations(control: Arc<Control>, names: Vec<Name>) {
    let mut takes = JoinSet::new();
    for name in names {
        let _change = control.lock_changes().await;
        let view = View::clone(&control.view());
        let phase = view.catalog.volumes.get(&name).map(|record| record.phase);
        if phase != Some(VolumePhase::Creating) {
            continue;
        }
        let error = format!("cannot make volume `{name}`, whose creation had broken off");
        match control.finish_creation(view, &name, MadeFile::None, &error).await {
            Ok(without) => {
                tracing::info!(%name, "a volume whose creation had broken off is there");
                if let Some(without) = without {
                    tracing::warn!(%name, cause = without.cause, "{}", without.state);
                }
                takes.spawn(finish_take(Arc::clone(&control), name));
            }
            Err(refused) => {
                tracing::warn!(cause = refused.cause, "{error}: it is taken back; create it again");
            }
        }
    }
    while takes.join_next().await.is_some() {}
}

impl Control {
    /// Serves a volume of phase [`VolumePhase::Creating`] from now on, or takes it back. What is
    /// returned of one that is served is why it has no block device.
    pub(super) async fn finish_creation(
        &self,
        mut view: View,
        name: &Name,
        made: MadeFile,
        error: &str,
    ) -> Result<Option<Report>, Report> {
        let record = view.catalog.volumes[name].clone();
        match self.serve(&view, name, &record, error).await {
            Ok(()) => {
                set_phase(&mut view, name, VolumePhase::Ready);
                if let Some(record) = view.catalog.volumes.get_mut(name) {
                    self.facts.homes.keep_device(record);
                }
                self.publish_served(view).await;
                Ok(self.devices.attach_asked(self, name, error).await.err())
            }
            Err(refused) => {
                // Its home goes first: the catalog may need that room.
                if made == MadeFile::Blank {
                    let record = record.clone();
                    self.at_homes(move |homes| homes.remove_made(&record)).await;
                }
                let released = self.release_home(record, made == MadeFile::Own).await;
                view.catalog.volumes.remove(name);
                let refused = match self.publish_done(view).await {
                    Ok(()) => refused,
                    Err(_) => refused.state(GOES_ON),
                };
                Err(match released {
                    Ok(_) => refused,
                    Err(kept) => {
                        let state = format!("{}: {}; {}", kept.error, kept.cause, refused.state);
                        refused.state(state)
                    }
                })
            }
        }
    }

    /// Waits until the store has a new volume's superblock; takes the volume back where it has not.
    pub(super) async fn is_in_store(&self, name: &Name, error: &str) -> Result<(), Report> {
        let Ok(record) = self.existing_volume(error, name) else { return Ok(()) };
        let Some(watch) = self.facts.homes.watch(&record) else { return Ok(()) };
        let is_settled = |said: &Said| matches!(said.status.link, Link::Up | Link::Lost(_));
        let settled = tokio::time::timeout(PATIENCE, watch.wait(is_settled)).await;
        let refused = match settled.map(|said| said.map(|said| said.status.link)) {
            Ok(Some(Link::Lost(why))) => Report::new(ReportKind::InUse, error)
                .cause(why)
                .hint("choose another prefix, or correct the cause, and repeat the command"),
            Ok(_) => return Ok(()),
            Err(_) => {
                let fault = watch.said().and_then(|said| said.status.last_fault);
                let cause = fault.map_or("it does not answer".to_owned(), |(cause, _)| cause);
                Report::new(ReportKind::Failure, error)
                    .cause(format!("the store has not taken its superblock in 20 s: {cause}"))
                    .hint("the node's credentials must let it put, get, list and delete there")
            }
        };
        Err(match self.take_back(name, &record, error).await {
            Ok(None) => refused.state("nothing was changed here; the volume is not in the list"),
            Ok(Some(left)) => {
                let left = format!("{}: {}; {}", left.error, left.cause, left.state);
                refused.state(format!("the volume is not in the list; {left}"))
            }
            Err(kept) => refused.state(format!("the volume is in the list: {}", kept.cause)).hint(
                "`layby volume show` says how safe it is; `layby volume delete` with \
                     `--data now` gives up what was written to it",
            ),
        })
    }

    /// A new volume that its store does not have goes, unless a client has written to it; what is
    /// left of one that went.
    async fn take_back(
        &self,
        name: &Name,
        record: &VolumeRecord,
        error: &str,
    ) -> Result<Option<Report>, Report> {
        let change = self.lock_changes_of(name).await;
        if self.view().catalog.volumes.get(name).is_none_or(|now| now.id != record.id) {
            return Ok(None);
        }
        self.check_drained(record, error).await?;
        let _quiesced = self.quiesce(name, record, false, change, error).await?;
        self.check_quiesced(name, record, error).await?;
        let mut without = View::clone(&self.view());
        without.remove_volume(name);
        let refused = (error, "nothing was changed; what was acknowledged is safe");
        let (discard, is_quiesced, deleting) = (false, true, None);
        let removal = Removal { name, record, discard, is_quiesced, deleting, without, refused };
        if let Err(kept) = self.remove_served(removal).await {
            self.reopen(name, record, error).await;
            return Err(kept);
        }
        Ok(self.release_home(record.clone(), false).await.err())
    }
}

/// Refuses a clone of an encrypted volume without a key: it shares objects that none can read then.
pub(super) fn check_clone_key(
    (base, record): (&Name, &VolumeRecord),
    request: &VolumeCreate,
    error: &str,
) -> Result<(), Report> {
    if record.key.is_none() || request.key.is_some() {
        return Ok(());
    }
    Err(Report::new(ReportKind::Invalid, error)
        .cause(format!("volume `{base}` is encrypted, and no key was given"))
        .state("nothing was changed")
        .hint(format!("a clone has its base's key: add the `--key` of `{base}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::control::Authority;
    use crate::control::drain::tests::said_of;
    use crate::control::tests::{MockNode, create};
    use crate::homes::tests::{wanted, with_owner};

    /// Goal: a creation that ends in a panic is refused with a cause, and gives its name back.
    /// Method: an owner of homes that panics once; the same command again, and the catalog between.
    #[tokio::test]
    async fn a_creation_that_panics_keeps_no_name() {
        let (owner, node) = with_owner("");
        *owner.panics.lock().expect("one test") = true;
        let creating = || node.control.volume_create(wanted("far"), Authority::Owner);
        let refused = creating().await.expect_err("it panics");
        assert!(refused.cause.contains("no thread can be made"), "{refused}");
        assert!(!refused.hint.is_empty(), "{refused}");
        assert!(!node.control.view().catalog.volumes.contains_key("far"), "it keeps its name");
        let saved = Catalog::load(node.dir.path()).expect("whole").expect("it was saved");
        assert!(!saved.volumes.contains_key("far"), "it is not taken up again at a start");
        creating().await.expect("the name is free");
    }

    /// Goal: a creation whose store takes no superblock takes the volume back, unless a client has
    /// written to it, which may be until its clients are closed; then it stays, is served, and the
    /// command says so. Method: paused time; a volume without batches, with some, and one that has
    /// them when the shard answers that its clients are closed.
    #[tokio::test(start_paused = true)]
    async fn a_volume_that_was_written_to_is_not_taken_back() {
        let drained = |is_drained| Some(said_of(Link::Opening, is_drained));
        for (at_first, at_last) in [(true, true), (false, false), (true, false)] {
            let (owner, node) = with_owner("");
            let says = owner.is_watched();
            says.send_replace(drained(at_first));
            node.shards.iter().for_each(|shard| shard.state().holds_quiesces = true);
            let control = Arc::clone(&node.control);
            let creating =
                async move { control.volume_create(wanted("far"), Authority::Owner).await };
            let creating = tokio::spawn(creating);
            let holding = || node.shards.iter().find(|s| !s.state().quiescing.is_empty());
            while holding().is_none() && !creating.is_finished() {
                // Of paused time, which passes once nothing else is to be done.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(holding().is_some(), at_first, "its clients are closed first");
            says.send_replace(drained(at_last));
            if let Some(shard) = holding() {
                let (_, answer) = shard.state().quiescing.remove(0);
                answer(Ok(()));
            }
            let refused = creating.await.expect("no panic").expect_err("it is in no store");
            let is_listed = node.control.view().catalog.volumes.contains_key("far");
            assert_eq!(is_listed, !at_last, "{refused}");
            assert_eq!(refused.state.contains("is in the list"), !at_last, "{refused}");
            assert_eq!(owner.was_told("release 1 Ready"), at_last);
        }
    }

    /// Goal: a creation that broke off ends where the volume is served without the block device
    /// that it is to have: a taking of it ends, too. Method: a volume that is said to be in
    /// creation, to be taken and to have a device, which no machine has for mock shards.
    #[tokio::test]
    async fn a_creation_ends_without_its_device() {
        let (owner, node) = with_owner("");
        let says = owner.is_watched();
        says.send_replace(Some(said_of(Link::Up, true)));
        let creating = node.control.volume_create(wanted("far"), Authority::Owner);
        creating.await.expect("its store is there");
        let mut view = View::clone(&node.control.view());
        let record = view.catalog.volumes.get_mut("far").expect("it was made");
        (record.phase, record.take, record.ublk) = (VolumePhase::Creating, true, true);
        node.control.show(view);
        let name: Name = "far".parse().expect("a good name");
        finish_creations(Arc::clone(&node.control), vec![name]).await;
        let record = node.control.view().catalog.volumes["far"].clone();
        assert_eq!((record.phase, record.take), (VolumePhase::Ready, false), "{record:?}");
    }

    /// Goal: a clone of an encrypted volume of this node without a key is refused with what is
    /// needed; with a key, the store decides. Method: a base whose record has a key; both requests.
    #[tokio::test]
    async fn a_clone_of_an_encrypted_volume_wants_a_key() {
        let (owner, node) = with_owner("");
        let says = owner.is_watched();
        says.send_replace(Some(said_of(Link::Up, true)));
        let creating = node.control.volume_create(wanted("maps"), Authority::Owner);
        creating.await.expect("its store is there");
        let mut view = View::clone(&node.control.view());
        let record = view.catalog.volumes.get_mut("maps").expect("it was made");
        record.path = "file:///roadside/maps".into();
        record.key = Some("env:KEY".parse().expect("a good source"));
        node.control.show(view);
        for key in [None, Some("env:KEY")] {
            let request = serde_json::json!({"name": "test", "path": "file:///roadside/test",
                "class": "bulk", "clone_of": "maps@monday", "key": key});
            let request = serde_json::from_value(request).expect("JSON");
            let refused = node.control.volume_create(request, Authority::Owner).await;
            let refused = refused.expect_err("the mock owner has no snapshots");
            let is_of_key = refused.cause == "volume `maps` is encrypted, and no key was given";
            assert_eq!(is_of_key, key.is_none(), "{refused}");
            assert_eq!(refused.hint.contains("--key"), key.is_none(), "{refused}");
        }
    }

    /// Goal: a creation that fails, and whose end the catalog does not take, says what a crash
    /// leaves, keeps no name, and is over once there is room. Method: a shard refuses, and from
    /// then on the catalog's new file cannot be made; what the catalog says after the same command
    /// again, and after a stop.
    #[tokio::test]
    async fn a_failed_creation_that_is_not_saved_keeps_no_name() {
        let saved = |node: &MockNode| {
            let catalog = Catalog::load(node.dir.path()).expect("whole").expect("it was saved");
            catalog.volumes.get("a").map(|record| (record.id, record.phase))
        };
        for is_repeated in [true, false] {
            let node = MockNode::new("");
            node.fail_and_block(1);
            let refused = node.control.volume_create(create("a"), Authority::Owner).await;
            let refused = refused.expect_err("the shard refuses");
            assert_eq!(refused.cause, "the disk is full", "{refused}");
            assert!(refused.state.contains("its next start goes on"), "{refused}");
            assert_eq!(saved(&node), Some((1, VolumePhase::Creating)), "as after a crash");
            assert!(!node.control.view().catalog.volumes.contains_key("a"), "it keeps its name");
            node.unblock_catalog();
            if is_repeated {
                let made = node.control.volume_create(create("a"), Authority::Owner).await;
                made.expect("the name is free");
            }
            node.control.stop().await.expect("the shards stop");
            assert_eq!(saved(&node), is_repeated.then_some((2, VolumePhase::Ready)));
        }
    }
}
