//! Volumes: create, change, delete.
//!
//! How: a new volume is in the catalog before its backing file exists, and a volume to be thrown
//! away is marked before its blocks are, so that a crash between the steps leaves either nothing or
//! something the next start completes.
//! Invariant: a backing file that went missing is never silently replaced by an empty one.

use super::blocking::broke_off;
use super::creation::{MadeFile, check_clone_key};
use super::intents::held_keeps;
use super::placement::{KnownPlaces, place};
use super::removal::{Removal, STORE_PATIENCE};
use super::take::Missing;
use super::turn::BREAK_OFF_EVERY;
use super::{
    Absence, Authority, Command, Control, DeleteData, View, VolumeCreate, VolumePatch, report,
};
use crate::catalog::{VolumePhase, VolumeRecord, WideRecord};
use crate::cloud::is_store;
use crate::config::{
    Bandwidth, CloneSource, CompressionChange, Name, Place, Problem, Size, VolumeConfig, checks,
};
use crate::error::{Report, ReportKind};
use crate::homes::{KeptData, Taken};
use crate::shards::{HOME_DENIED, HOME_IN_USE, open_kind};
use crate::ublk;
use layby_cloud::Order;
use layby_engine::control::{CommandError, VolumePlan};
use layby_types::{ErrorKind, Nanos, Stripes, VolumeId, format_bytes};
use tokio::sync::MutexGuard;

/// What became of a volume that was to be deleted.
enum Deleted {
    /// It is forgotten, with its data or without; what still has data that was to go.
    Gone(Option<KeptData>),
    /// It is one of the deleted volumes, by this number; its files have the other one.
    Waits(u32, u32),
    /// Another node has it, and its objects.
    Forgotten(Taken),
}

/// What is left of the data of a volume that was deleted, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftData {
    /// Another node has the volume and its objects; here it was only forgotten.
    Taken(Taken),
    /// It was to go, and is where this node does not erase it.
    Kept(KeptData),
}

/// A volume that a command made or took.
pub(super) struct Created {
    /// It was to be taken, and the node had it already.
    pub(super) is_old: bool,
    /// Why it is served without the block device that it is to have.
    without: Option<Report>,
}

impl Created {
    /// What is missing, once all else is done: the volume is served.
    pub(super) fn end(self) -> Result<(), Report> {
        self.without.map_or(Ok(()), Err)
    }
}

/// A change of a volume, checked, and not made.
struct Change {
    old: VolumeRecord,
    record: VolumeRecord,
    /// The node with it.
    view: View,
}

impl Change {
    /// The volume as its shards know it once a shrink has been told: all but its length is old.
    fn shorter(&self) -> VolumeRecord {
        let length = self.old.length.min(self.record.length);
        VolumeRecord { length, ..self.old.clone() }
    }
}

/// What became of a volume whose shrink ended without a change.
const SHRINK_UNDONE: &str =
    "the volume has its old size, but what lay beyond the smaller one may read as zeros";

/// Where backing files lie that nobody chose a place for, within the node's directory.
pub(crate) const VOLUMES_DIR_NAME: &str = "volumes";

impl Control {
    /// Creates a volume and serves it.
    ///
    /// # Errors
    /// A report when the name is taken, a value is refused, the request names a place that its
    /// author must not reach, or the backing cannot be had.
    pub async fn volume_create(
        &self,
        mut request: VolumeCreate,
        authority: Authority,
    ) -> Result<(), Report> {
        request.key = request.key.map(|key| key.beside(&self.facts.dir));
        let (name, takes) = (request.name.clone(), request.take);
        let error = format!("cannot {} volume `{name}`", if takes { "take" } else { "create" });
        self.check_places(&request, authority, &error).await?;
        let created = self.create(request, Missing::Asked, &error).await?;
        match takes {
            true => self.has_taken(&name, &error).await?,
            false => self.is_in_store(&name, &error).await?,
        }
        created.end()
    }

    /// Makes or takes a volume.
    pub(super) async fn create(
        &self,
        request: VolumeCreate,
        missing: Missing,
        error: &str,
    ) -> Result<Created, Report> {
        let _turn = match request.take {
            true => Some(self.absences.turn.lock().await),
            false => None,
        };
        // Before the turn: a store may be silent for minutes. What is not there any more when the
        // volume is made is as a place that was wrong.
        let (clone_of, mut size) = self.clone_source(&request, error).await?;
        let name = request.name.clone();
        self.look_ahead(&request).await;
        let _change = self.lock_to_create(&name, request.take, error).await?;
        crate::descriptors::check_room(error)?;
        let mut view = View::clone(&self.view());
        let mut had = None;
        if request.take {
            let found = self.found_to_take(&request, error).await?;
            size = Some(Size(found.size_bytes));
            had = view.catalog.volumes.get(&name).cloned().map(|old| (old, found));
            view.remove_volume(&name);
        }
        let config = request.clone().into_config(size);
        // Where the driver is gone, a volume that was made is served without its device.
        if request.ublk && missing == Missing::Asked {
            ublk::check(error).await?;
        }
        view = self.with_volume(view, &name, &config, error).await?;
        let record = view.catalog.volumes.get_mut(&name).expect("it was just added");
        (record.clone_of, record.take) = (clone_of, request.take);
        if let Some((old, _)) = &had {
            record.configured.clone_from(&old.configured);
        }
        let record = record.clone();
        view.checked_spec(error)?;
        self.admit(&view, error)?;
        let asked = record.clone();
        if let Some(found) = self.at_homes(move |homes| homes.not_new(&asked)).await {
            return Err(Report { error: error.to_owned(), ..found });
        }
        let staged = self.stage(view.clone()).await.map_err(|e| within(error, e))?;
        if let Some((old, found)) = &had
            && !self.let_go(&name, (old, &record), (found, missing), error).await?
        {
            return Ok(Created { is_old: true, without: None });
        }
        self.publish_staged(staged).await.map_err(|e| within(error, e))?;
        let was_known = had.is_some();
        if let Some((old, _)) = had {
            self.devices.remove_left(&old).await;
            self.forget_files(&name, old).await;
        }
        // The file is made before shards are asked; a chosen one may have been there.
        let made = match config.path {
            None => MadeFile::Own,
            Some(_) if self.facts.homes.makes_file(&record) => MadeFile::Blank,
            Some(_) => MadeFile::None,
        };
        match self.finish_creation(view, &name, made, error).await {
            Err(refused) if was_known => Err(self.keep_to_take(&name, record, refused).await),
            finished => finished.map(|without| Created { is_old: false, without }),
        }
    }

    /// Prepares a volume's home and has its shards serve it.
    pub(super) async fn serve(
        &self,
        view: &View,
        name: &Name,
        record: &VolumeRecord,
        error: &str,
    ) -> Result<(), Report> {
        let plans = self.plan_volume(view, name, record).await.map_err(|e| within(error, e))?;
        let added = self.add_parts(view, record, plans).await;
        added.map_err(|refused| self.not_opened(record, &refused, error))
    }

    /// A shard's refusal to open a volume's backing store.
    pub(super) fn not_opened(
        &self,
        record: &VolumeRecord,
        refused: &CommandError,
        error: &str,
    ) -> Report {
        let is_file = self.facts.homes.file(record).is_some();
        let report = report(refused, error);
        match refused.kind {
            ErrorKind::Denied => report.hint(HOME_DENIED),
            kind if is_file && open_kind(kind) == ReportKind::InUse => {
                Report { kind: ReportKind::InUse, ..report }.hint(HOME_IN_USE)
            }
            _ => report.hint("correct the cause and repeat the command"),
        }
    }

    /// Has shards serve a new volume; should one refuse, the others let go of their parts.
    pub(super) async fn add_parts(
        &self,
        view: &View,
        record: &VolumeRecord,
        plans: Vec<VolumePlan>,
    ) -> Result<(), CommandError> {
        let (mut added, mut result) = (Vec::new(), Ok(()));
        for plan in plans {
            let volume = plan.spec.id;
            let shard = view.layout.shard_of(volume);
            result = self.ask(shard, |answer| Command::AddVolume(plan, answer)).await;
            if result.is_err() {
                break;
            }
            added.push((shard, volume));
        }
        if result.is_ok() {
            result = self.join_parts(view, record).await;
        }
        if result.is_err() {
            for (shard, volume) in added {
                let remove = |answer| Command::RemoveVolume { volume, discard: true, answer };
                // What the first refusal says is what there is to say.
                drop(self.ask(shard, remove).await);
            }
        }
        result
    }

    /// Prepares a volume's home and says what its shards are told.
    pub(super) async fn plan_volume(
        &self,
        view: &View,
        name: &Name,
        record: &VolumeRecord,
    ) -> Result<Vec<VolumePlan>, Report> {
        let (homes, intents) = (self.facts.homes.clone(), self.facts.intents.clone());
        let (view, name, record) = (view.clone(), name.clone(), record.clone());
        let planning = tokio::task::spawn_blocking(move || {
            let mut plans = view.volume_plans(&homes, &name, &record)?;
            intents.mark(&view, &homes, &record, &mut plans)?;
            Ok(plans)
        });
        planning.await.unwrap_or_else(|ended| Err(broke_off(ended)))
    }

    /// Changes a volume.
    ///
    /// # Errors
    /// A report when there is no such volume or a value is refused.
    pub async fn volume_set(&self, name: &Name, patch: VolumePatch) -> Result<(), Report> {
        let error = format!("cannot change volume `{name}`");
        let turn = self.lock_changes_of(name).await;
        let change = self.check_set(name, patch.clone(), &error)?;
        self.check_resize(&change.old, change.record.length, &error)?;
        self.check_writable(name, &change, &error).await?;
        self.widen_intents(&change.view).await?;
        self.change_device(name, &change.record, &error).await?;
        if change.record.length >= change.old.length {
            return self.make_set(name, change, &error).await;
        }
        let _shrinking = self.change.begin_long(name, "shrunk");
        drop(turn);
        self.shrink(&change, &error).await?;
        let _turn = self.lock_changes().await;
        self.change.check_running(&error).map_err(|stopped| stopped.state(SHRINK_UNDONE))?;
        // The node may be another one by now; the volume is not. Its shards know of the new length
        // alone: what else the change holds, such as a class, may be gone.
        let (shorter, old) = (change.shorter(), change.old);
        let again = async {
            let change = self.check_set(name, patch, &error)?;
            self.widen_intents(&change.view).await.map(|()| change)
        };
        match again.await {
            Ok(change) => self.make_set(name, change, &error).await,
            Err(refused) => Err(self.undo_set(name, (&old, &shorter), refused).await),
        }
    }

    /// Refuses to let clients write to what the kernel keeps from being written, or to what is
    /// another node's.
    async fn check_writable(
        &self,
        name: &Name,
        change: &Change,
        error: &str,
    ) -> Result<(), Report> {
        let is_opened = change.old.read_only && !change.record.read_only;
        if !is_opened || self.facts.homes.file(&change.record).is_none() {
            return Ok(());
        }
        let (name, record) = (name.clone(), change.record.clone());
        let begun = self.at_homes(move |homes| homes.begin_writes(&name, &record)).await;
        begun.map_err(|cause| {
            Report::new(ReportKind::Denied, error).cause(cause).state("nothing was changed").hint(
                "lift its write protection first, as with `blockdev --setrw`; another node's file \
                 can only be read here",
            )
        })
    }

    /// A volume's change as the node is now.
    fn check_set(&self, name: &Name, patch: VolumePatch, error: &str) -> Result<Change, Report> {
        let old = self.existing_volume(error, name)?;
        let (mut record, mut view) = (old.clone(), View::clone(&self.view()));
        apply(&mut record, name, patch).map_err(|problem| problem.report(error))?;
        check_record(&view, name, &record, error)?;
        view.catalog.volumes.insert(name.clone(), record.clone());
        view.checked_spec(error)?;
        self.admit(&view, error)?;
        Ok(Change { old, record, view })
    }

    /// Has a volume's shards zero what lies behind its new end, and end it there. All else of it
    /// stays as it is, since other changes go on meanwhile.
    async fn shrink(&self, change: &Change, error: &str) -> Result<(), Report> {
        let (homes, old) = (&self.facts.homes, &change.old);
        let before = self.view();
        let specs = [&change.shorter(), old].map(|record| before.volume_specs(homes, record));
        let [new, old] = specs;
        let told = self.set_parts(&before, new, &old).await;
        told.map_err(|refused| report(&refused, error).state(SHRINK_UNDONE))
    }

    /// Makes a change that was checked, and writes it down. The caller holds the node's change.
    async fn make_set(&self, name: &Name, change: Change, error: &str) -> Result<(), Report> {
        // One that shrinks has its new length already.
        let told = change.shorter();
        let Change { old, record, view } = change;
        if record.class != old.class {
            self.count_classes().await;
        }
        let refused = |refused: CommandError| report(&refused, error);
        let is_shorter = record.length < old.length;
        let staged = self.stage_set((name, &view), is_shorter, error).await?;
        if record.length > old.length && record.wide.is_some() {
            self.resize_home(&view, &record, old.length).await.map_err(refused)?;
        }
        let homes = &self.facts.homes;
        let new = view.volume_specs(homes, &record);
        let specs = self.view().volume_specs(homes, &told);
        if (!is_shorter || new != specs)
            && let Err(cause) = self.set_parts(&view, new, &specs).await
        {
            return Err(match is_shorter {
                true => self.undo_set(name, (&old, &told), refused(cause)).await,
                false => refused(cause),
            });
        }
        let saved = match (homes.keep_length(&old, &record).await, staged) {
            (Err(unkept), _) => Err(unkept),
            (Ok(()), Some(staged)) => self.publish_staged(staged).await,
            (Ok(()), None) => self.publish(view.clone()).await,
        };
        if let Err(unsaved) = saved {
            return Err(self.undo_set(name, (&old, &record), within(error, unsaved)).await);
        }
        // A home is cut only when the catalog knows: a start refuses one that is too short.
        if is_shorter {
            self.resize_home(&view, &record, old.length).await.map_err(|cause| {
                refused(cause).state("the volume is shorter; its home keeps the rest, as zeros")
            })?;
        }
        self.devices.attach_asked(self, name, error).await
    }

    /// Makes sure that a device that is wanted can be had, and takes away one that is not any more.
    async fn change_device(
        &self,
        name: &Name,
        record: &VolumeRecord,
        error: &str,
    ) -> Result<(), Report> {
        let volume = VolumeId(record.id);
        match (record.ublk, self.block_device(volume)) {
            (true, None) => ublk::check(error).await,
            (false, Some(_)) => self.devices.detach(self, name, volume, error).await,
            _ => Ok(()),
        }
    }

    /// Deletes a volume; its clients are disconnected. What it has in an object store goes after
    /// its grace, or now; [`DeleteData::Now`] also ends the grace of one that was deleted before.
    /// One that another has is only forgotten. What is left of data that was to go is said.
    ///
    /// # Errors
    /// A report when there is no such volume, its dirty blocks cannot be written back, or, where it
    /// goes now, its store does not let go of all; the node then goes on trying.
    pub async fn volume_delete(
        &self,
        name: &Name,
        data: DeleteData,
    ) -> Result<Option<LeftData>, Report> {
        let error = format!("cannot delete volume `{name}`");
        let is_now = data == DeleteData::Now;
        let is_there = self.view().known_volumes().any(|(known, _)| known == name);
        if is_now && !is_there && self.view().catalog.deleted.iter().any(|d| d.name == *name) {
            return Ok(self.purge(name, None, &error).await?.map(LeftData::Taken));
        }
        match self.delete(name, data, &error).await? {
            Deleted::Waits(number, local)
                if is_now || self.facts.config.cloud.grace == Nanos::ZERO =>
            {
                Ok(self.remove_deleted(number, local, &error).await?.map(LeftData::Taken))
            }
            Deleted::Forgotten(taken) => Ok(Some(LeftData::Taken(taken))),
            Deleted::Gone(kept) => Ok(kept.map(LeftData::Kept)),
            Deleted::Waits(..) => Ok(None),
        }
    }

    /// Deletes a volume, and says what became of it.
    async fn delete(&self, name: &Name, data: DeleteData, error: &str) -> Result<Deleted, Report> {
        let (_turn, change) = self.turns_of_deletion(name, data).await;
        let is_absent = self.view().absence(name).is_some();
        let record = match is_absent {
            true => self.view().catalog.volumes[name].clone(),
            false => self.existing_volume(error, name)?,
        };
        let discard = data != DeleteData::Keep;
        let asked = record.clone();
        if let Some(taken) = self.at_homes(move |homes| homes.taken(&asked)).await {
            self.forget_taken(name, record, &taken, discard, error).await?;
            return Ok(Deleted::Forgotten(taken));
        }
        match (discard, is_absent) {
            (false, true) if self.view().absence(name).is_some_and(Absence::is_in_shard) => {
                self.check_clean(&record, error)?;
            }
            (false, true) if self.view().absence(name).is_some_and(Absence::is_held) => {
                return Err(held_keeps(&record, error));
            }
            _ if record.phase == VolumePhase::Creating => {}
            (false, false) => self.check_drained(&record, error).await?,
            (false, true) => self.check_whole(&record, error).await?,
            (true, _) => self.check_discard(&record).await.map_err(|e| within(error, e))?,
        }
        let was_made = record.phase != VolumePhase::Creating;
        if discard && was_made && self.facts.homes.writes_through(&record) {
            let now = data == DeleteData::Now;
            let local = record.local_number();
            let about = (record, is_absent);
            let number = self.delete_in_store(name, about, now, (change, error)).await?;
            return Ok(Deleted::Waits(number, local));
        }
        let (_change, quiesced) = match was_made && !is_absent {
            true => {
                let quiesced = self.quiesce(name, &record, discard, change, error).await?;
                (quiesced.turn, Some(quiesced.long))
            }
            false => (change, None),
        };
        let is_quiesced = quiesced.is_some();
        if is_quiesced && !discard {
            self.check_quiesced(name, &record, error).await?;
        }
        let (deleting, without) = self.without(name, discard && was_made);
        let kept = match discard {
            true => "the volume is no longer served; its data goes at the next start",
            false => "the volume is still there; blocks not written back are safe in their level",
        };
        let refused = (error, kept);
        let about = &record;
        let removal =
            Removal { name, record: about, discard, is_quiesced, deleting, without, refused };
        let removed = self.remove_served(removal).await;
        if removed.is_err() && is_quiesced {
            self.reopen(name, &record, error).await;
        }
        removed?;
        self.devices.remove_left(&record).await;
        self.facts.intents.forget(record.id);
        self.release_home(record, discard).await.map(Deleted::Gone)
    }

    /// The turn of a deletion. One that throws the data away waits neither for a shrink nor for a
    /// write-back of the volume, but breaks it off.
    pub(super) async fn deletion_turn(&self, name: &Name, data: DeleteData) -> MutexGuard<'_, ()> {
        if data == DeleteData::Keep {
            return self.lock_changes_of(name).await;
        }
        loop {
            let ended = match self.lock_unless_long(name).await {
                Ok(turn) => return turn,
                Err(ended) => ended,
            };
            self.break_off(name).await;
            // Where it goes on for as long, this is tried again.
            let _ = tokio::time::timeout(BREAK_OFF_EVERY, ended).await;
        }
    }
}

impl Control {
    /// The place of what a new volume is to be cloned from, and how long the volume is to be.
    async fn clone_source(
        &self,
        request: &VolumeCreate,
        error: &str,
    ) -> Result<(Option<CloneSource>, Option<Size>), Report> {
        let Some(source) = request.clone_of.clone() else { return Ok((None, request.size)) };
        let refused = |cause: &str, hint: &str| {
            Report::new(ReportKind::Invalid, error)
                .cause(cause)
                .state("nothing was changed")
                .hint(hint)
        };
        if !request.path.as_deref().is_some_and(is_store) {
            let cause = "a clone's home is an object store, and its path is none";
            return Err(refused(
                cause,
                "give the clone a place with --path, such as s3://bucket/new",
            ));
        }
        let source = match source.is_url() {
            true => source,
            false => {
                let base = source.volume.parse::<Name>().map_err(|cause| refused(&cause, ""))?;
                let record = self.existing_volume(error, &base)?;
                check_clone_key((&base, &record), request, error)?;
                if !is_store(&record.path) {
                    let cause = format!("volume `{base}` is in a file or a device");
                    return Err(refused(&cause, "only volumes in object stores have snapshots"));
                }
                CloneSource { volume: record.path.to_string_lossy().into_owned(), ..source }
            }
        };
        let (homes, key, asked) = (self.facts.homes.clone(), request.key.clone(), source.clone());
        let asking =
            tokio::task::spawn_blocking(move || homes.snapshot_bytes(&asked, key.as_ref()));
        let bytes = asking.await.expect("an owner of homes reports, it does not panic");
        let bytes = bytes.map_err(|e| within(error, e))?;
        match request.size {
            Some(Size(size)) if size < bytes => {
                let cause = format!("the snapshot has {}", format_bytes(bytes));
                Err(refused(&cause, "leave --size out, and shrink the clone when it is there"))
            }
            size => Ok((Some(source), Some(size.unwrap_or(Size(bytes))))),
        }
    }

    async fn check_discard(&self, record: &VolumeRecord) -> Result<(), Report> {
        let record = record.clone();
        self.at_homes(move |homes| homes.check_discard(&record)).await
    }

    /// A volume's journal goes with it, so the store must have all that is to be kept.
    pub(super) async fn check_drained(
        &self,
        record: &VolumeRecord,
        error: &str,
    ) -> Result<(), Report> {
        let Some(watch) = self.facts.homes.watch(record) else { return Ok(()) };
        let number = watch.order(Order::Say);
        let saying = watch.wait(|said| said.heard >= number);
        // Its thread does its own reads and writes: it may hang in a device.
        let Ok(said) = tokio::time::timeout(STORE_PATIENCE, saying).await else {
            return Err(Report::new(ReportKind::Failure, error)
                .cause("its journal's device does not answer: how much is in no store is not known")
                .state("nothing was changed")
                .hint("look at that device, and repeat the command; or use --data delete"));
        };
        let Some(said) = said.filter(|said| !said.is_drained) else { return Ok(()) };
        Err(Report::new(ReportKind::InUse, error)
            .cause(format!("{} of it are not in the store", format_bytes(said.status.dirty_bytes)))
            .state("nothing was changed")
            .hint("end its writers and wait with `layby volume drain`, or use --data delete"))
    }

    /// The same for a volume whose file or device is not there.
    fn check_clean(&self, record: &VolumeRecord, error: &str) -> Result<(), Report> {
        if self.facts.intents.is_clean(record.id) {
            return Ok(());
        }
        let home = self.facts.homes.name(record);
        Err(Report::new(ReportKind::InUse, error)
            .cause(format!("levels may hold newest blocks of it, and `{home}` cannot be opened"))
            .state("nothing was changed")
            .hint("put it back and start the node again, or give all up with --data delete"))
    }

    /// The same for a volume that is not served.
    async fn check_whole(&self, record: &VolumeRecord, error: &str) -> Result<(), Report> {
        let record = record.clone();
        let cause = match self.at_homes(move |homes| homes.missing_bytes(&record)).await {
            Ok(0) => return Ok(()),
            Ok(bytes) => format!("{} of it are not in the store", format_bytes(bytes)),
            Err(cause) => format!("how much of it is not in the store is not known: {cause}"),
        };
        Err(Report::new(ReportKind::InUse, error).cause(cause).state("nothing was changed").hint(
            "correct what keeps it from being served; where its journal or map is lost for \
                 good, `layby volume accept-loss` serves it with what the store has. --data delete \
                 throws all away",
        ))
    }
}

/// The outer error with the inner report's cause: what the operator asked for, and why it failed.
pub(super) fn within(error: &str, inner: Report) -> Report {
    let cause = format!("{}: {}", inner.error, inner.cause);
    Report { error: error.to_owned(), cause, ..inner }
}

pub(super) fn set_phase(view: &mut View, name: &Name, phase: VolumePhase) {
    if let Some(record) = view.catalog.volumes.get_mut(name) {
        record.phase = phase;
    }
}

/// Puts a new volume into `view`, in phase [`VolumePhase::Creating`]. With `is_begun` an earlier
/// start has begun to make it.
pub(crate) fn add_to_view(
    view: &mut View,
    places: &mut KnownPlaces<'_>,
    name: &Name,
    (config, is_begun): (&VolumeConfig, bool),
    error: &str,
) -> Result<(), Report> {
    let problem = |problem: &Problem| problem.report(error);
    if let Some(known) = view.catalog.volumes.get(name) {
        let cause = match known.phase {
            VolumePhase::Deleting => "a volume of that name is being deleted",
            _ => "a volume of that name exists",
        };
        return Err(Report::new(ReportKind::InUse, error)
            .cause(cause)
            .state("nothing was changed")
            .hint("choose another name; `layby volume list` shows those taken"));
    }
    let (path, length) = place(view, places, name, (config, is_begun), error)?;
    checks::volume_size(Place::Volume(name.clone()), Size(length)).map_err(|p| problem(&p))?;
    let wide = wide_record(view, name, config, length).map_err(|p| problem(&p))?;
    let id = view.catalog.volume_ids_take(config.shards).ok_or_else(|| {
        Report::new(ReportKind::Full, error)
            .cause(format!(
                "this node has had {} volumes, and numbers are not reused",
                VolumeId::MAX.0
            ))
            .state("nothing was changed")
            .hint("move volumes to a new node")
    })?;
    let record = VolumeRecord {
        id: id.0,
        phase: VolumePhase::Creating,
        length,
        class: config.class.clone(),
        path,
        read_only: config.read_only,
        allow: config.allow.clone(),
        share: config.share.clone(),
        cap: config.cap.clone(),
        limits: config.limits,
        discard: config.discard,
        discard_delay: config.discard_delay,
        discard_bandwidth: config.discard_bandwidth,
        ublk: config.ublk,
        key: config.key.clone(),
        wide,
        clone_of: None,
        take: false,
        compression: config.compression,
        local: None,
        device: None,
        home_device: None,
        configured: None,
    };
    check_record(view, name, &record, error)?;
    view.catalog.volumes.insert(name.clone(), record);
    Ok(())
}

pub(super) fn check_record(
    view: &View,
    name: &Name,
    record: &VolumeRecord,
    error: &str,
) -> Result<(), Report> {
    let config = VolumeConfig {
        size: Some(Size(record.length)),
        class: record.class.clone(),
        path: Some(record.path.clone()),
        read_only: record.read_only,
        allow: record.allow.clone(),
        share: record.share.clone(),
        cap: record.cap.clone(),
        limits: record.limits,
        discard: record.discard,
        discard_delay: record.discard_delay,
        discard_bandwidth: record.discard_bandwidth,
        ublk: record.ublk,
        key: record.key.clone(),
        compression: record.compression,
        shards: record.shards(),
    };
    if let Some(wide) = record.wide {
        check_wide(view, name, wide, record.length).map_err(|problem| problem.report(error))?;
    }
    let known: Vec<_> = view.classes().cloned().collect();
    checks::volume(&view.layout.levels, name, &config)
        .and_then(|()| checks::class_exists(&known, name, &record.class))
        .map_err(|problem| problem.report(error))?;
    let (_, class) = view.class(record.class.as_str()).expect("it exists");
    checks::usable_caps(Place::Volume(name.clone()), (&record.class, class), &record.cap)
        .map_err(|problem| problem.report(error))
}

/// How a new volume lies over shards; none for one shard.
fn wide_record(
    view: &View,
    name: &Name,
    config: &VolumeConfig,
    length: u64,
) -> Result<Option<WideRecord>, Problem> {
    if config.shards == VolumeConfig::shards_default() {
        return Ok(None);
    }
    if config.path.as_deref().is_some_and(is_store) {
        let cause = "a volume in an object store is served by one shard: its journal has one order";
        let hint = "leave `shards` out, or give the volume a file or a device as its home";
        return Err(Problem::new(Place::Volume(name.clone()), "shards", cause, hint));
    }
    let wide = WideRecord { shards: config.shards, stripe_bytes: Stripes::BYTES_DEFAULT };
    check_wide(view, name, wide, length).map(|()| Some(wide))
}

/// Whether a volume can lie over so many shards.
fn check_wide(view: &View, name: &Name, wide: WideRecord, length: u64) -> Result<(), Problem> {
    let refused = |cause: String, hint: String| {
        Err(Problem::new(Place::Volume(name.clone()), "shards", cause, hint))
    };
    let (shards, most) = (wide.shards, view.layout.shards);
    if shards == 0 || shards > most {
        let cause = format!("a volume cannot lie over {shards} shards: the node has {most}");
        let hint = match most {
            1 => "leave `shards` out".to_owned(),
            _ => format!("write 1 to {most}"),
        };
        let hint = format!("{hint}; a node keeps its number of shards for life");
        return refused(cause, hint);
    }
    let least = u64::from(shards) * wide.stripe_bytes;
    if length < least {
        let (have, least) = (format_bytes(length), format_bytes(least));
        let cause = format!("{have} are too little for {shards} shards, which need {least}");
        return refused(cause, format!("write at least {least}, or one shard"));
    }
    Ok(())
}

fn apply(record: &mut VolumeRecord, name: &Name, patch: VolumePatch) -> Result<(), Problem> {
    if let Some(Size(length)) = patch.size {
        if length < record.length && !patch.shrink {
            let cause = format!(
                "{} is less than the volume's {}, and what lies behind it would be lost",
                format_bytes(length),
                format_bytes(record.length)
            );
            let hint = "add --shrink (in the API `\"shrink\": true`) once that data is not needed";
            return Err(Problem::new(Place::Volume(name.clone()), "size", cause, hint));
        }
        record.length = length;
    }
    if patch.compression.is_some() && !is_store(&record.path) {
        let cause = "only volumes in object stores are compressed, and its home is none";
        let hint = "leave --compression out";
        return Err(Problem::new(Place::Volume(name.clone()), "compression", cause, hint));
    }
    record.compression = patch.compression.map_or(record.compression, CompressionChange::own);
    record.class = patch.class.unwrap_or_else(|| record.class.clone());
    record.read_only = patch.read_only.unwrap_or(record.read_only);
    if let Some(allow) = patch.allow {
        record.allow = allow;
    }
    if let Some(share) = patch.share {
        record.share = share;
    }
    if let Some(cap) = patch.cap {
        record.cap = cap;
    }
    record.limits = record.limits.changed(patch.limits);
    record.discard = patch.discard.unwrap_or(record.discard);
    record.discard_delay = patch.discard_delay.unwrap_or(record.discard_delay);
    let bandwidth = patch.discard_bandwidth.or(record.discard_bandwidth);
    record.discard_bandwidth = bandwidth.filter(|Bandwidth(rate)| *rate > 0);
    record.ublk = patch.ublk.unwrap_or(record.ublk);
    Ok(())
}
