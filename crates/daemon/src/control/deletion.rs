//! Volumes in object stores that were deleted, until they come back or are gone.
//!
//! How: a deleted volume moves in the catalog from the volumes to the deleted ones, with all that
//! it was. A task says in its store that it is deleted, counts how long ago that was, and has its
//! objects removed when its grace is over; what fails is tried again. Who takes the deletion back
//! moves it again, under a new number, since numbers of volumes never come back.
//! Invariant: whoever talks with a deleted volume's store has its turn, and takes it before the
//! node's change. A grace is counted in the node's own time, so a clock that is wrong, or is set,
//! ends none early; time in which the node does not run does not count.
//! Cost: a write of the catalog every ten minutes, and at a clean stop, while there are some.
//! Not for: files and devices, which keep their data or lose it at once.

mod in_store;

use super::unsaved::GOES_ON;
use super::volumes::{check_record, set_phase, within};
use super::{Control, LeftData, View};
use crate::catalog::{DeletedRecord, VolumePhase, VolumeRecord};
use crate::config::Name;
use crate::error::{Report, ReportKind};
use crate::homes::{Homes, Taken};
use crate::ublk;
use layby_types::VolumeId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How often the time that has passed is written down; a crash forgets as much at most.
const KEEP_EVERY: Duration = Duration::from_secs(600);
/// Rest before what failed is tried again, at first; it doubles.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The same, at most.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// A deletion that is to be taken back.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UndeleteRequest {
    /// Which one, where several of its name were deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// The name that it gets, instead of its old one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_name: Option<Name>,
}

/// A deleted volume as operators see it.
#[derive(Clone, Debug)]
pub struct DeletedVolume {
    /// What the catalog says.
    pub record: DeletedRecord,
    /// How long it can come back.
    pub left: Duration,
    /// Its store says that it is deleted, as far as is known in this life of the node.
    pub is_marked: bool,
    /// What failed last, unless something succeeded since.
    pub problem: Option<String>,
}

/// What is known of deleted volumes beside the catalog, by their numbers.
#[derive(Default)]
pub(super) struct Deletions {
    changed: Notify,
    states: StdMutex<BTreeMap<u32, Arc<State>>>,
}

struct State {
    /// Held by who talks with its store.
    turn: Mutex<()>,
    seen: StdMutex<Seen>,
}

struct Seen {
    /// What the catalog says has passed is of this instant.
    since: Instant,
    is_marked: bool,
    problem: Option<String>,
    failures: u32,
    again_at: Instant,
    removed: Option<Removed>,
}

/// A volume's objects are removed, or left where another has them; only the catalog does not say
/// so yet.
#[derive(Clone)]
struct Removed(Option<Taken>);

impl Deletions {
    /// What is known of one; its time begins to count with the first question.
    fn state(&self, number: u32) -> Arc<State> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let seen = || {
            StdMutex::new(Seen {
                since: now,
                is_marked: false,
                problem: None,
                failures: 0,
                again_at: now,
                removed: None,
            })
        };
        let state = || Arc::new(State { turn: Mutex::default(), seen: seen() });
        Arc::clone(states.entry(number).or_insert_with(state))
    }

    fn forget(&self, number: u32) {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

impl State {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self, deleted: &DeletedRecord) -> Duration {
        let waited = Duration::from_secs(deleted.waited_seconds) + self.seen().since.elapsed();
        Duration::from_secs(deleted.grace_seconds).saturating_sub(waited)
    }

    /// How long until what failed is tried again.
    fn rest(&self) -> Duration {
        self.seen().again_at.saturating_duration_since(Instant::now())
    }

    fn on_done<T>(&self, done: &Result<T, Report>) {
        let mut seen = self.seen();
        match done {
            Ok(_) => (seen.problem, seen.failures) = (None, 0),
            Err(refused) => {
                let rest = RETRY_MIN.saturating_mul(1 << seen.failures.min(16)).min(RETRY_MAX);
                seen.again_at = Instant::now() + rest;
                seen.failures += 1;
                if seen.problem.as_ref() != Some(&refused.cause) {
                    tracing::warn!(cause = refused.cause, "{}", refused.error);
                    seen.problem = Some(refused.cause.clone());
                }
            }
        }
    }
}

/// Attends to deleted volumes for as long as the node runs; never ends.
pub(crate) async fn attend_deleted(control: Arc<Control>) {
    let (mut due, mut attended) = (Due::default(), JoinSet::new());
    loop {
        let now = Instant::now();
        for number in due.begin(&control.view().catalog.deleted, now) {
            let (control, change) = (Arc::clone(&control), due.change);
            attended.spawn(async move { (number, change, control.attend(number).await) });
        }
        let rest = due.rest(now);
        // A store that is silent holds up its own volumes only.
        tokio::select! {
            Some(ended) = attended.join_next() => {
                let (number, change, left) = ended.expect("what fails is a report, not a panic");
                due.end((number, change), Instant::now() + left.min(KEEP_EVERY));
            }
            () = control.deletions.changed.notified() => due.on_change(),
            // Nobody else wakes it while there is nothing to count.
            () = tokio::time::sleep(rest.unwrap_or_default()), if rest.is_some() => {}
        }
    }
}

/// When deleted volumes are to be attended to, by their numbers.
#[derive(Default)]
struct Due {
    /// Those that are attended to now.
    busy: BTreeSet<u32>,
    /// The others. One that is not here is due.
    at: BTreeMap<u32, Instant>,
    /// How many changes came that make all due.
    change: u64,
}

impl Due {
    /// The volumes that are to be attended to from `now` on.
    fn begin(&mut self, deleted: &[DeletedRecord], now: Instant) -> Vec<u32> {
        let is_there = |number: &u32| deleted.iter().any(|deleted| deleted.record.id == *number);
        self.at.retain(|number, at| *at > now && is_there(number));
        let numbers = deleted.iter().map(|deleted| deleted.record.id);
        let is_due = |number: &u32| !self.busy.contains(number) && !self.at.contains_key(number);
        let begun: Vec<u32> = numbers.filter(is_due).collect();
        self.busy.extend(&begun);
        begun
    }

    /// How long until the next one is due; none where only a change or an end makes one so.
    fn rest(&self, now: Instant) -> Option<Duration> {
        self.at.values().min().map(|at| at.saturating_duration_since(now))
    }

    /// A volume was attended to, as it was after so many changes. What came meanwhile makes it due.
    fn end(&mut self, (number, change): (u32, u64), at: Instant) {
        self.busy.remove(&number);
        if change == self.change {
            self.at.insert(number, at);
        }
    }

    fn on_change(&mut self) {
        self.change += 1;
        self.at.clear();
    }
}

impl Control {
    /// Deleted volumes that can come back or are not all gone, oldest first.
    pub async fn deleted_volumes(&self) -> Vec<DeletedVolume> {
        let view = self.view();
        let about = |record: &DeletedRecord| {
            let state = self.deletions.state(record.record.id);
            let left = state.left(record);
            let seen = state.seen();
            let (is_marked, problem) = (seen.is_marked, seen.problem.clone());
            DeletedVolume { record: record.clone(), left, is_marked, problem }
        };
        view.catalog.deleted.iter().map(about).collect()
    }

    /// A volume whose return failed is one of the deleted ones again, by the view `back`; what
    /// became of it.
    async fn delete_again(
        &self,
        mut back: View,
        number: u32,
        record: VolumeRecord,
    ) -> &'static str {
        self.facts.homes.close(&record);
        // It may have claimed the volume in a session of its own.
        let identity = self.known_identity(&record, "").await.unwrap_or_default();
        let mut found = back.catalog.deleted.iter_mut();
        if let Some(deleted) = found.find(|deleted| deleted.record.id == number) {
            deleted.learn(identity);
        }
        let saved = self.publish_done(back).await;
        self.deletions.changed.notify_one();
        if saved.is_ok() { STILL_DELETED } else { GOES_ON }
    }

    /// The deleted volume of a name, and of a number where several had that name.
    fn deleted(
        &self,
        name: &Name,
        number: Option<u32>,
        error: &str,
    ) -> Result<DeletedRecord, Report> {
        let view = self.view();
        let is_meant = |deleted: &&DeletedRecord| {
            deleted.name == *name && number.is_none_or(|number| number == deleted.record.id)
        };
        let found: Vec<&DeletedRecord> = view.catalog.deleted.iter().filter(is_meant).collect();
        let hint = "`layby volume list --deleted` shows the volumes that can come back";
        match found[..] {
            [one] => Ok(one.clone()),
            [] => Err(Report::new(ReportKind::NotFound, error)
                .cause(format!("no deleted volume is called `{name}`, or it is gone for good"))
                .state("nothing was changed")
                .hint(hint)),
            _ => {
                let numbers = found.iter().map(|deleted| deleted.record.id.to_string());
                let numbers: Vec<String> = numbers.collect();
                let cause = format!(
                    "several volumes of that name were deleted, with the numbers {}",
                    numbers.join(", ")
                );
                Err(Report::new(ReportKind::Invalid, error)
                    .cause(cause)
                    .state("nothing was changed")
                    .hint(
                        "add --number to say which one; `layby volume list --deleted` shows them",
                    ))
            }
        }
    }

    fn deleted_by_number(&self, number: u32) -> Option<DeletedRecord> {
        let view = self.view();
        view.catalog.deleted.iter().find(|deleted| deleted.record.id == number).cloned()
    }

    /// Ends the grace of one deleted volume, by its number: several may have had its name, and a
    /// volume that is served may have it. What is left of its data is said.
    ///
    /// # Errors
    /// A report when there is no such deleted volume, or its store does not let go of all; the node
    /// then goes on trying.
    pub async fn deleted_volume_remove(
        &self,
        name: &Name,
        number: u32,
    ) -> Result<Option<LeftData>, Report> {
        let error = format!("cannot delete volume `{name}`");
        Ok(self.purge(name, Some(number), &error).await?.map(LeftData::Taken))
    }

    /// Removes all that a deleted volume has in its store, without waiting for its grace; says who
    /// has it where it is another's by now, and nothing is removed.
    ///
    /// # Errors
    /// A report when there is no such volume, or something is left; the node then goes on trying.
    pub(super) async fn purge(
        &self,
        name: &Name,
        number: Option<u32>,
        error: &str,
    ) -> Result<Option<Taken>, Report> {
        let deleted = self.deleted(name, number, error)?;
        let number = deleted.record.id;
        // A removal that has begun needs no other word in the catalog.
        if !self.deletions.state(number).left(&deleted).is_zero() {
            let _change = self.lock_changes().await;
            let mut view = View::clone(&self.view());
            let found = view.catalog.deleted.iter_mut().find(|other| other.record.id == number);
            if let Some(deleted) = found {
                deleted.grace_seconds = 0;
            }
            self.publish(view).await.map_err(|e| within(error, e))?;
        }
        self.remove_deleted(number, deleted.record.local_number(), error).await
    }

    /// Removes a deleted volume whose grace is over; as [`Control::purge`]. Its files have the
    /// number `local`, which stays when it is brought back.
    pub(super) async fn remove_deleted(
        &self,
        number: u32,
        local: u32,
        error: &str,
    ) -> Result<Option<Taken>, Report> {
        let state = self.deletions.state(number);
        let _turn = state.turn.lock().await;
        let Some(deleted) = self.deleted_by_number(number) else {
            let view = self.view();
            let mut volumes = view.catalog.volumes.iter();
            return match volumes.find(|(_, record)| record.local_number() == local) {
                Some((name, _)) => Err(brought_back_before(name, error)),
                // The task was faster.
                None => Ok(None),
            };
        };
        self.end_grace(&state, deleted).await.map_err(|e| {
            self.deletions.changed.notify_one();
            within(error, e)
        })
    }

    /// Removes a volume's objects, and the volume from the deleted ones; what fails is due again
    /// after a rest. The caller has the volume's turn.
    async fn end_grace(
        &self,
        state: &State,
        deleted: DeletedRecord,
    ) -> Result<Option<Taken>, Report> {
        let number = deleted.record.id;
        let ended = self.remove_and_save(state, deleted).await;
        state.on_done(&ended);
        if ended.is_ok() {
            self.deletions.forget(number);
        }
        ended
    }

    /// Removes a volume's objects, unless that was done, and saves that it is gone.
    async fn remove_and_save(
        &self,
        state: &State,
        deleted: DeletedRecord,
    ) -> Result<Option<Taken>, Report> {
        let (name, number) = (deleted.name.clone(), deleted.record.id);
        let removed = state.seen().removed.clone();
        let taken = match removed {
            Some(Removed(taken)) => taken,
            None => self.at_home(deleted, Homes::remove).await?,
        };
        state.seen().removed = Some(Removed(taken.clone()));
        let _change = self.lock_changes().await;
        let mut view = View::clone(&self.view());
        view.catalog.deleted.retain(|other| other.record.id != number);
        let saved = self.publish(view).await;
        saved.map_err(|unsaved| unrecorded(&name, taken.as_ref(), unsaved))?;
        Ok(taken)
    }

    async fn at_home<T: Send + 'static>(
        &self,
        deleted: DeletedRecord,
        say: fn(&Homes, &DeletedRecord) -> Result<T, Report>,
    ) -> Result<T, Report> {
        let homes = self.facts.homes.clone();
        off_runtime(move || say(&homes, &deleted)).await
    }

    /// Does what is due for a deleted volume; how long until there is more.
    async fn attend(&self, number: u32) -> Duration {
        let state = self.deletions.state(number);
        let _turn = state.turn.lock().await;
        // It may have come back before the turn came.
        let Some(deleted) = self.deleted_by_number(number) else { return KEEP_EVERY };
        self.keep_waited(&state, number).await;
        let left = state.left(&deleted);
        let rest = state.rest();
        let is_marked = state.seen().is_marked;
        if !rest.is_zero() {
            return rest;
        }
        if left.is_zero() {
            return match self.end_grace(&state, deleted).await {
                Ok(_) => KEEP_EVERY,
                Err(_) => state.rest(),
            };
        }
        if !is_marked {
            let told = self.at_home(deleted, Homes::mark_deleted).await;
            state.on_done(&told);
            state.seen().is_marked = told.is_ok();
            if told.is_err() {
                return state.rest();
            }
        }
        left
    }

    /// Writes down how much of a grace has passed, where that is worth it.
    async fn keep_waited(&self, state: &State, number: u32) {
        if state.seen().since.elapsed() < KEEP_EVERY {
            return;
        }
        let _change = self.lock_changes().await;
        let mut view = View::clone(&self.view());
        let found = view.catalog.deleted.iter_mut().find(|other| other.record.id == number);
        let Some(deleted) = found else { return };
        let elapsed = state.seen().since.elapsed().as_secs();
        deleted.waited_seconds = deleted.waited_seconds.saturating_add(elapsed);
        match self.publish(view).await {
            Ok(()) => state.seen().since += Duration::from_secs(elapsed),
            // It is counted on, and written down the next time.
            Err(unsaved) => tracing::warn!(cause = unsaved.cause, "{}", unsaved.error),
        }
    }

    /// The node with how much of all graces has passed: when it stops, time counts on when it comes
    /// back.
    pub(super) fn with_waited(&self) -> View {
        let mut view = View::clone(&self.view());
        for deleted in &mut view.catalog.deleted {
            let elapsed = self.deletions.state(deleted.record.id).seen().since.elapsed();
            deleted.waited_seconds = deleted.waited_seconds.saturating_add(elapsed.as_secs());
        }
        view
    }

    /// Takes a deletion back, and serves the volume.
    ///
    /// # Errors
    /// A report when there is no such volume, its removal has begun, its store does not answer, or
    /// its new name is taken.
    pub async fn volume_undelete(
        &self,
        name: &Name,
        request: UndeleteRequest,
    ) -> Result<Name, Report> {
        let error = format!("cannot bring back volume `{name}`");
        let number = self.deleted(name, request.number, &error)?.record.id;
        let state = self.deletions.state(number);
        let _turn = state.turn.lock().await;
        let _change = self.lock_changes().await;
        let deleted = self.deleted(name, Some(number), &error)?;
        let new_name = request.new_name.unwrap_or_else(|| name.clone());
        let before = View::clone(&self.view());
        let view = brought_back(&before, &deleted, &new_name, &error)?;
        self.admit(&view, &error)?;
        let record = view.catalog.volumes[&new_name].clone();
        if record.ublk {
            ublk::check(&error).await?;
        }
        // From here on the task has to do it again, should this not come to its end.
        state.seen().is_marked = false;
        state.seen().removed = None;
        let told = self.at_home(deleted, Homes::undelete).await;
        if let Err(refused) = told {
            self.deletions.changed.notify_one();
            return Err(within(&error, refused));
        }
        if let Err(unsaved) = self.publish(view.clone()).await {
            self.deletions.changed.notify_one();
            return Err(within(&error, unsaved).state(STILL_DELETED));
        }
        if let Err(refused) = self.serve(&view, &new_name, &record, &error).await {
            let mut back = before;
            back.catalog.volume_id_next = view.catalog.volume_id_next;
            return Err(refused.state(self.delete_again(back, number, record).await));
        }
        self.deletions.forget(number);
        let mut done = View::clone(&self.view());
        if let Some(record) = done.catalog.volumes.get_mut(&new_name) {
            record.take = false;
        }
        // Where that cannot be written down, the next start does it.
        drop(self.publish(done).await);
        self.devices.attach_asked(self, &new_name, &error).await.map(|()| new_name)
    }
}

/// What became of a volume that could not come back.
const STILL_DELETED: &str = "it is deleted as before, and can still come back";

/// A volume that was to be removed was brought back before its turn came.
fn brought_back_before(name: &Name, error: &str) -> Report {
    Report::new(ReportKind::InUse, error)
        .cause(format!("it was brought back meanwhile, as `{name}`"))
        .state("it is served, and nothing of it was removed")
        .hint("delete it again")
}

/// The objects of a deleted volume are removed, and the catalog does not say so.
fn unrecorded(name: &Name, taken: Option<&Taken>, unsaved: Report) -> Report {
    let error = format!("cannot record that deleted volume `{name}` is gone");
    let state = match taken {
        None => "its objects are removed, and the node goes on trying to record that",
        Some(_) => "what this node had of it is removed, and it goes on trying to record that",
    };
    within(&error, unsaved).state(state).hint("make room or correct the permissions")
}

/// The view in which a deleted volume is one of the volumes again.
fn brought_back(
    before: &View,
    deleted: &DeletedRecord,
    new_name: &Name,
    error: &str,
) -> Result<View, Report> {
    let refused = |kind, cause: String, hint: &str| {
        Report::new(kind, error).cause(cause).state("nothing was changed").hint(hint)
    };
    let mut view = before.clone();
    if view.catalog.volumes.contains_key(new_name) {
        let cause = format!("there is a volume `{new_name}` by now");
        return Err(refused(ReportKind::InUse, cause, "give it another name with --as"));
    }
    let mut record = deleted.record.clone();
    if view.class(record.class.as_str()).is_none() {
        let cause = format!("its class `{}` is gone", record.class);
        return Err(refused(ReportKind::Invalid, cause, "make the class again first"));
    }
    let id = view.catalog.volume_ids_take(record.shards()).ok_or_else(|| {
        let cause = format!("this node has had {} volumes", VolumeId::MAX.0);
        refused(ReportKind::Full, cause, "`layby restore --deleted` reads it on another machine")
    })?;
    (record.local, record.phase) = (Some(record.local_number()), VolumePhase::Ready);
    record.id = id.0;
    // Its journal and map went with the deletion: the store has all that there is.
    record.take = true;
    check_record(&view, new_name, &record, error)?;
    view.catalog.deleted.retain(|other| other.record.id != deleted.record.id);
    view.catalog.volumes.insert(new_name.clone(), record);
    view.catalog.unwanted.remove(new_name);
    view.checked_spec(error)?;
    Ok(view)
}

/// Runs what may take long on a thread that may wait.
async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let working = tokio::task::spawn_blocking(work);
    working.await.expect("an owner of homes reports, it does not panic")
}

/// The node in which a volume is being deleted.
pub(super) fn being_deleted(view: &View, name: &Name) -> View {
    let mut deleting = view.clone();
    set_phase(&mut deleting, name, VolumePhase::Deleting);
    deleting
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::MockNode;
    use crate::control::{Authority, DeleteData};
    use crate::homes::tests::{Owner, wanted, with_owner};

    const GRACE: Duration = Duration::from_secs(10);

    fn far() -> Name {
        "far".parse().expect("a good name")
    }

    /// A node that has deleted volume 1, with [`GRACE`], and whose task has heard of it.
    async fn deleted() -> (Arc<Owner>, MockNode) {
        let (owner, node) = with_owner("[cloud]\ngrace = \"10s\"\n");
        let created = node.control.volume_create(wanted("far"), Authority::Owner).await;
        created.expect("the owner has it");
        let gone = node.control.volume_delete(&far(), DeleteData::Delete).await;
        gone.expect("its shard lets go");
        owner.take();
        assert!(is_woken(&node).await);
        (owner, node)
    }

    /// Whether the task that attends to deleted volumes would look at them at once.
    async fn is_woken(node: &MockNode) -> bool {
        let changed = node.control.deletions.changed.notified();
        tokio::time::timeout(Duration::ZERO, changed).await.is_ok()
    }

    /// Goal: the end of a removal that the catalog does not take is tried again after a rest, as
    /// what else fails, says why, and removes nothing twice. Method: the catalog's new file cannot
    /// be made when the grace is over; paused time, what the task does next, and then.
    #[tokio::test(start_paused = true)]
    async fn a_removal_that_is_not_saved_rests() {
        let (owner, node) = deleted().await;
        let attend = || node.control.attend(1);
        tokio::time::advance(GRACE).await;
        node.block_catalog();
        assert_eq!(attend().await, RETRY_MIN);
        assert_eq!(attend().await, RETRY_MIN, "it rests");
        tokio::time::advance(RETRY_MIN).await;
        assert_eq!(attend().await, 2 * RETRY_MIN);
        let left = node.control.deleted_volumes().await;
        let why = left[0].problem.clone().expect("it failed");
        assert!(why.contains("cannot write the node's catalog"), "{why}");
        node.unblock_catalog();
        tokio::time::advance(2 * RETRY_MIN).await;
        assert_eq!(attend().await, KEEP_EVERY);
        assert_eq!(owner.take(), ["remove 1"]);
        assert!(node.control.view().catalog.deleted.is_empty());
    }

    /// Goal: who has a deleted volume removed hears that its objects are gone where the catalog
    /// does not take that, each time, and the node goes on. Method: the catalog's new file cannot
    /// be made when the grace is over; the same command again, and when there is room.
    #[tokio::test(start_paused = true)]
    async fn a_removal_that_is_not_saved_says_so() {
        let (owner, node) = deleted().await;
        tokio::time::advance(GRACE).await;
        node.block_catalog();
        for _ in 0..2 {
            let refused = node.control.volume_delete(&far(), DeleteData::Now).await;
            let refused = refused.expect_err("it is not saved");
            assert!(refused.cause.contains("cannot write the node's catalog"), "{refused}");
            assert!(refused.state.starts_with("its objects are removed"), "{refused}");
            assert!(is_woken(&node).await, "nothing is tried again");
        }
        node.unblock_catalog();
        node.control.volume_delete(&far(), DeleteData::Now).await.expect("there is room again");
        assert_eq!(owner.take(), ["remove 1"]);
        assert!(node.control.view().catalog.deleted.is_empty());
    }

    /// Goal: who has a deleted volume removed does not hear that it is gone where it was brought
    /// back before. Method: an undeletion and a removal wait for the volume's turn, in this order.
    #[tokio::test]
    async fn a_removal_behind_a_return_says_so() {
        let (owner, node) = deleted().await;
        let state = node.control.deletions.state(1);
        let turn = state.turn.lock().await;
        let control = Arc::clone(&node.control);
        let request = UndeleteRequest::default();
        let returning = tokio::spawn(async move { control.volume_undelete(&far(), request).await });
        tokio::task::yield_now().await;
        let control = Arc::clone(&node.control);
        let now = DeleteData::Now;
        let removing = tokio::spawn(async move { control.volume_delete(&far(), now).await });
        while node.control.view().catalog.deleted[0].grace_seconds > 0 {
            tokio::task::yield_now().await;
        }
        drop(turn);
        returning.await.expect("no panic").expect("it comes first");
        let refused = removing.await.expect("no panic").expect_err("it is there");
        assert!(refused.cause.contains("brought back"), "{refused}");
        assert!(node.control.view().catalog.volumes.contains_key("far"));
        assert!(!owner.was_told("remove 1"));
    }

    /// Goal: a store that is silent holds up its own volumes only. Method: the first volume's store
    /// does not answer while it is told; a second one is deleted, and its store hears of that.
    #[tokio::test]
    async fn a_silent_store_holds_up_no_other() {
        const SOON: Duration = Duration::from_secs(10);
        let (owner, node) = deleted().await;
        let (answer, silence) = std::sync::mpsc::channel();
        *owner.silence.lock().expect("one test") = Some(silence);
        let attending = tokio::spawn(attend_deleted(Arc::clone(&node.control)));
        let told = async |line: &str| {
            let hearing = async {
                while !owner.was_told(line) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(SOON, hearing).await.is_ok()
        };
        assert!(told("mark 1").await);
        let created = node.control.volume_create(wanted("near"), Authority::Owner).await;
        created.expect("the owner has it");
        let near = "near".parse().expect("a good name");
        let gone = node.control.volume_delete(&near, DeleteData::Delete).await;
        gone.expect("its shard lets go");
        let is_told = told("mark 2").await;
        drop(answer);
        attending.abort();
        assert!(is_told, "its store is not told");
    }

    /// Goal: a return that the catalog does not take leaves the volume deleted, in its store, too.
    /// Method: the catalog's new file cannot be made; what the task does next.
    #[tokio::test(start_paused = true)]
    async fn a_return_that_is_not_saved_is_marked_again() {
        let (owner, node) = deleted().await;
        node.control.attend(1).await;
        node.block_catalog();
        let refused = node.control.volume_undelete(&far(), UndeleteRequest::default()).await;
        let refused = refused.expect_err("it is not saved");
        assert!(refused.state.starts_with("it is deleted as before"), "{refused}");
        assert!(is_woken(&node).await, "its store says that it is not deleted");
        node.control.attend(1).await;
        assert_eq!(owner.take(), ["mark 1", "undelete 1", "mark 1"]);
    }

    /// Goal: a return that fails, and whose end the catalog does not take, shows no volume that no
    /// shard has, and can be repeated. Method: the shard refuses, and from then on the catalog's
    /// new file cannot be made.
    #[tokio::test(start_paused = true)]
    async fn a_failed_return_that_is_not_saved_is_undone() {
        let (_owner, node) = deleted().await;
        node.fail_and_block(0);
        let refused = node.control.volume_undelete(&far(), UndeleteRequest::default()).await;
        let refused = refused.expect_err("the shard refuses");
        assert_eq!(refused.cause, "the disk is full", "{refused}");
        assert!(refused.state.contains("its next start goes on"), "{refused}");
        assert!(is_woken(&node).await, "its store says that it is not deleted");
        let view = node.control.view();
        assert!(!view.catalog.volumes.contains_key("far"), "no shard has it");
        assert_eq!(view.catalog.deleted.len(), 1);
        node.unblock_catalog();
        let back = node.control.volume_undelete(&far(), UndeleteRequest::default()).await;
        back.expect("there is room again");
        assert_eq!(node.control.view().catalog.volumes["far"].id, 3);
    }
}
