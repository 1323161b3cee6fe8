//! Write intents of a running node: recorded as shards ask for them, removed of volumes that are
//! clean again, and given up with what a lost level held.
//!
//! How: a task records what shards want, whatever else changes meanwhile, and tells them. Another
//! one looks once a minute for volumes of which no level holds a dirty block and that were not
//! changed lately, has their shards make sure, and removes their intents.
//! Invariant: see [`crate::intents`]. A disk that refuses makes the first changes of volumes that
//! were clean fail, and nothing else; it is tried again.
//! Cost: a snapshot of the shards a minute. Not for: volumes over several shards, whose intents
//! stay.

use super::volumes::{set_phase, within};
use super::{Command, Control, Pace, View};
use crate::catalog::{VolumePhase, VolumeRecord};
use crate::config::Name;
use crate::degraded;
use crate::error::{Report, ReportKind};
use crate::intents::{levels_of, may_be_dirty};
use layby_engine::core::Damage;
use layby_types::{ErrorKind, VolumeId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::MissedTickBehavior;

/// Rest before an intent that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How often it is tried until changes that wait for it end with an error.
const TRIES: u32 = 3;
/// How often it is tried until the log says again that it fails.
const TRIES_UNSAID: u32 = 60;
/// How often volumes that may be clean are looked for.
const PERIOD: Duration = Duration::from_secs(60);
/// Periods without a change after which a volume with clients counts as left alone. One without
/// needs one.
const QUIET_PERIODS: u32 = 10;

/// Records intents as shards want them; ends when no shard is left.
pub(crate) async fn attend_intents(control: Arc<Control>, mut wanted: UnboundedReceiver<VolumeId>) {
    while let Some(volume) = wanted.recv().await {
        let control = Arc::clone(&control);
        tokio::spawn(async move { control.record_intent(volume).await });
    }
}

/// Removes the intents of volumes that are clean again; never ends.
pub(crate) async fn attend_clean(control: Arc<Control>) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut quiet = Quiet::default();
    loop {
        ticks.tick().await;
        let Ok(snapshots) = control.snapshots(Pace::AtOnce).await else { continue };
        let mut volumes = Vec::new();
        for stats in snapshots.iter().flat_map(|snapshot| &snapshot.volumes) {
            let changes = stats.write.requests + stats.other.requests;
            let is_dirty = stats.slots_dirty.iter().any(|dirty| *dirty > 0);
            if quiet.passes(stats.volume, changes, stats.connections > 0) && !is_dirty {
                volumes.push(stats.volume);
            }
        }
        for volume in volumes {
            control.clean(volume).await;
        }
    }
}

/// For how many periods volumes were not changed.
#[derive(Default)]
struct Quiet(HashMap<VolumeId, (u64, u32)>);

impl Quiet {
    /// Whether a volume that has had so many changes was left alone for long enough.
    fn passes(&mut self, volume: VolumeId, changes: u64, has_clients: bool) -> bool {
        let (seen, periods) = self.0.entry(volume).or_insert((changes, 0));
        *periods = if *seen == changes { periods.saturating_add(1) } else { 0 };
        *seen = changes;
        *periods > if has_clients { QUIET_PERIODS } else { 1 }
    }
}

impl Control {
    /// Records the intent of a volume that is to be changed and has its shard go on.
    async fn record_intent(&self, volume: VolumeId) {
        for attempt in 1_u32.. {
            let view = self.view();
            let mut records = view.catalog.volumes.values();
            // A volume that is gone has no clients whose changes could wait.
            let Some(record) = records.find(|record| record.has_part(volume)) else { return };
            let (levels, id) = (levels_of(&view, record), record.id);
            let recorded = self.at_intents(move |intents| intents.record(id, &levels)).await;
            match recorded {
                Ok(()) => break,
                Err(refused) => {
                    if attempt % TRIES_UNSAID == 1 {
                        let (cause, error) = (&refused.cause, &refused.error);
                        tracing::error!(volume = volume.0, cause, "{error}; writes to it fail");
                    }
                    if attempt == TRIES {
                        let kind = match refused.kind {
                            ReportKind::Full => ErrorKind::Full,
                            _ => ErrorKind::Retry,
                        };
                        let shard = self.view().layout.shard_of(volume);
                        let refuse = |answer| Command::RefuseIntent(volume, kind, answer);
                        let _ = self.ask(shard, refuse).await;
                    }
                    // Nothing tells that there is room again but trying.
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        let shard = self.view().layout.shard_of(volume);
        // A shard that does not take it has ended.
        let _ = self.ask(shard, |answer| Command::RecordIntent(volume, answer)).await;
    }

    /// Removes the intent of a volume whose backing store has all of it; false where it has not,
    /// or a change came meanwhile.
    pub(crate) async fn clean(&self, volume: VolumeId) -> bool {
        let view = self.view();
        let Some(record) = view.catalog.volumes.values().find(|record| record.id == volume.0)
        else {
            return false;
        };
        let Some(stamp) = self.facts.intents.stamp(record.id) else { return true };
        if record.wide.is_some() || !may_be_dirty(&view, &self.facts.homes, record) {
            return false;
        }
        // The saved catalog may say that the volume is being made: its intent says that it was.
        if self.change.is_unsaved() {
            return false;
        }
        let shard = view.layout.shard_of(volume);
        let is_clean = self.ask(shard, |answer| Command::Clean(volume, answer)).await;
        if is_clean != Ok(true) {
            return false;
        }
        let id = record.id;
        match self.at_intents(move |intents| intents.remove(id, stamp)).await {
            Ok(is_gone) => is_gone,
            Err(refused) => {
                tracing::warn!(volume = id, cause = refused.cause, "{}", refused.error);
                false
            }
        }
    }

    /// Records the intents that a change of volumes or classes makes necessary: what may be dirty
    /// may be so in further levels. To be called before shards are told.
    ///
    /// # Errors
    /// A report when the disk refuses.
    pub(super) async fn widen_intents(&self, after: &View) -> Result<(), Report> {
        let before = self.view();
        if after.layout.is_memory_only {
            return Ok(());
        }
        let mut wider = Vec::new();
        for (name, record) in &after.catalog.volumes {
            let Some(old) = before.catalog.volumes.get(name) else { continue };
            let (was, is) = (levels_of(&before, old), levels_of(after, record));
            if is.is_subset(&was) {
                self.facts.intents.expect_no_more(record.id);
            } else if !self.facts.homes.writes_through(record) {
                wider.push((record.id, is, was.is_empty()));
            }
        }
        self.at_intents(move |intents| {
            // A volume that used none had no gate that a first change waits at.
            wider.into_iter().try_for_each(|(id, levels, was_without)| match was_without {
                true => intents.record(id, &levels),
                false => intents.widen(id, &levels),
            })
        })
        .await
    }

    /// Serves a volume that waits for a lost level, without what that level held of it. What the
    /// other levels hold is written back first; blocks whose newest version was in the lost level
    /// are at an older one. Answers how many blocks were written back. The catalog knows before a
    /// client writes: a start that went by the old one would show what the lost level held, once it
    /// is back, over what was written since.
    ///
    /// # Errors
    /// A report where no volume of the name waits, or it cannot be served.
    pub async fn volume_accept_loss(&self, name: &Name) -> Result<u64, Report> {
        let error = format!("cannot serve volume `{name}` without what is lost of it");
        if let Some(record) = self.waits_for_files(name).await {
            return self.accept_lost_files(name, &record, &error).await.map(|()| 0);
        }
        let _turn = self.absences.turn.lock().await;
        let _change = self.lock_changes().await;
        let mut view = View::clone(&self.view());
        if !view.absence(name).is_some_and(super::Absence::is_held) {
            let cause = format!("no volume `{name}` waits for a lost level, journal or map");
            return Err(Report::new(ReportKind::Invalid, error)
                .cause(cause)
                .state("nothing was changed")
                .hint("`layby volume list` shows which volumes are not served, and why"));
        }
        let blocks = self.give_up_lost(&view, name).await?;
        let old = view.catalog.volumes[name].clone();
        let mut record = degraded::renumber(&mut view, &self.facts.homes, name, &error)?;
        // What is mounted on its old block device knows what was lost: it gets a new one.
        record.device = None;
        // Its backing store was there to be written to.
        record.phase = VolumePhase::Ready;
        view.catalog.volumes.insert(name.clone(), record.clone());
        let plans = self.plan_volume(&view, name, &record).await?;
        set_phase(&mut view, name, VolumePhase::Ready);
        let saved = self.publish(view.clone()).await;
        saved.map_err(|unsaved| within(&error, unsaved).state("the volume waits as before"))?;
        let added = self.add_parts(&view, &record, plans).await;
        added.map_err(|refused| {
            self.not_opened(&record, &refused, &error)
                .state("the volume is not served; the next start serves it without the lost level")
                .hint("correct the cause and start the node again")
        })?;
        view.absent.remove(name);
        self.take_effect(view).await;
        self.facts.intents.forget(old.id);
        self.devices.remove_left(&old).await;
        tracing::warn!(%name, blocks, "what a lost level held of the volume was given up");
        self.devices.attach_asked(self, name, &error).await.map(|()| blocks)
    }

    /// The record of a volume that is not served since its journal or map is missing.
    async fn waits_for_files(&self, name: &Name) -> Option<VolumeRecord> {
        let view = self.view();
        view.absence(name).filter(|absence| !absence.is_held())?;
        let record = view.catalog.volumes.get(name)?.clone();
        let asked = record.clone();
        let lost = self.at_homes(move |homes| homes.lost_files(&asked)).await;
        lost.map(|_| record)
    }

    /// Writes back what the levels that are there hold of a volume, whatever is damaged.
    async fn give_up_lost(&self, view: &View, name: &Name) -> Result<u64, Report> {
        let (config, homes) = (self.facts.config.clone(), self.facts.homes.clone());
        let (lost, view, name) = (self.facts.lost.clone(), view.clone(), name.clone());
        let writing = tokio::task::spawn_blocking(move || {
            let how = (lost.as_slice(), Damage::Accepted);
            degraded::write_back_volume(&config, &view, &homes, how, &name)
        });
        writing.await.expect("a write-back reports, it does not panic")
    }
}

/// Whether a volume that waits for a lost level may go with its data kept: it may not.
pub(super) fn held_keeps(record: &VolumeRecord, error: &str) -> Report {
    Report::new(ReportKind::InUse, error)
        .cause(format!(
            "a lost level may hold newest blocks of the volume in `{}`",
            record.path.display()
        ))
        .state("nothing was changed")
        .hint("give them up with `layby volume accept-loss`, or throw all away with --data delete")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::{MockNode, create};
    use crate::control::{Absence, Authority, DeleteData};
    use std::collections::BTreeSet;

    /// Goal: a volume whose creation was cut off and that waits for a lost level is not deleted
    /// unasked: it was served, since levels hold blocks of it. Method: one that is said to wait;
    /// deletions that keep and that delete its data.
    #[tokio::test]
    async fn a_half_made_volume_that_waits_for_a_level_is_not_deleted_unasked() {
        let node = MockNode::new("");
        node.control.volume_create(create("a"), Authority::Owner).await.expect("a free name");
        let name: Name = "a".parse().expect("a good name");
        let mut view = View::clone(&node.control.view());
        set_phase(&mut view, &name, VolumePhase::Creating);
        let why = Report::new(ReportKind::Corrupt, "cannot serve the volume");
        view.absent.insert(name.clone(), Absence::held(why));
        node.control.show(view);
        let kept = node.control.volume_delete(&name, DeleteData::Keep).await;
        let kept = kept.expect_err("a level may hold its newest blocks");
        assert!(kept.hint.contains("accept-loss"), "{kept}");
        assert!(node.control.view().catalog.volumes.contains_key(&name), "it is there");
        node.control.volume_delete(&name, DeleteData::Delete).await.expect("it is asked for");
        assert!(!node.control.view().catalog.volumes.contains_key(&name), "it is gone");
    }

    /// Goal: an intent stays while the saved catalog may not know that its volume was made. Method:
    /// a change that was not saved; the shard is not even asked, which the mock would not answer.
    #[tokio::test]
    async fn an_intent_outlives_a_catalog_that_is_not_saved() {
        let node = MockNode::new("");
        node.control.volume_create(create("a"), Authority::Owner).await.expect("a free name");
        let volume = VolumeId(node.control.view().catalog.volumes["a"].id);
        let levels = BTreeSet::from(["ssd".parse().expect("a name")]);
        node.control.facts.intents.record(volume.0, &levels).expect("writable");
        node.control.change.set_unsaved(true);
        assert!(!node.control.clean(volume).await);
        assert!(!node.control.facts.intents.is_clean(volume.0));
    }

    /// Goal: a volume is left alone for as long as it must be, and a change begins anew. Method:
    /// periods by hand, with clients and without.
    #[test]
    fn quiet_volumes_pass() {
        let (mut quiet, volume) = (Quiet::default(), VolumeId(1));
        assert!(!quiet.passes(volume, 5, false), "it was not seen before");
        assert!(quiet.passes(volume, 5, false));
        assert!(!quiet.passes(volume, 6, false), "it was changed");
        let passed = (0..=QUIET_PERIODS).map(|_| quiet.passes(volume, 6, true));
        assert_eq!(passed.filter(|passes| *passes).count(), 1);
    }
}
