//! Volumes in object stores that are taken from the node that serves them, while this node runs.
//!
//! How: a creation that takes asks the store how long the volume is, and is then a creation like
//! any other: the record says that it takes until that is done, so that one which broke off goes
//! on after the next start. What this node had of the volume goes once the record says so, since it
//! is of the past; the volume comes back under a new number, whose blocks no level has.
//! Invariant: what only this node's journal has is never let go of by taking. A command that was
//! carried out is carried out again without a change.
//! Cost: some requests. Not for: volumes that a start takes; see `cloud::takeover`.

use super::removal::Removal;
use super::volumes::within;
use super::{Absence, Control, View, VolumeCreate};
use crate::catalog::{VolumePhase, VolumeRecord};
use crate::cloud::is_store;
use crate::config::{Name, Size};
use crate::error::{Report, ReportKind};
use crate::homes::{FoundVolume, Taken};
use layby_cloud::{Link, Order, Said};
use layby_types::format_bytes;
use std::sync::Arc;
use std::time::Duration;

/// Waits for a volume whose taking broke off before the node came up, and writes down that it is
/// done; until then the catalog says that it takes, which a later start goes on with.
pub(crate) async fn finish_take(control: Arc<Control>, name: Name) {
    if control.view().catalog.volumes.get(&name).is_none_or(|record| !record.take) {
        return;
    }
    let error = format!("cannot take volume `{name}`, as was asked before this start");
    if let Err(refused) = control.has_taken(&name, &error).await {
        tracing::warn!(%name, cause = refused.cause, "{error}");
    }
}

/// How long a volume that this node serves has to find out that another node has taken it.
const FINDING_OUT: Duration = Duration::from_secs(30);

/// What becomes of a volume's missing journal or map where the volume is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// They may be on a disk that is away: nothing is let go of, but where both are missing.
    Asked,
    /// An operator said that what they held is lost.
    Accepted,
}

impl Control {
    /// Serves a volume whose journal or map is lost for good with what its store has, under a new
    /// number and with new files; see [`Control::volume_accept_loss`].
    pub(super) async fn accept_lost_files(
        &self,
        name: &Name,
        record: &VolumeRecord,
        error: &str,
    ) -> Result<(), Report> {
        let anew = VolumeCreate::anew(name, record);
        let created = self.create(anew, Missing::Accepted, error).await?;
        if !created.is_old {
            tracing::warn!(%name, "what a volume's lost journal or map held was given up");
        }
        self.has_taken(name, error).await?;
        created.end()
    }

    /// A volume that the node knew and could not take now stays in its list, with its settings: it
    /// is tried again, soon and by each start. What the caller hears.
    pub(super) async fn keep_to_take(
        &self,
        name: &Name,
        record: VolumeRecord,
        refused: Report,
    ) -> Report {
        let refused = refused.state(
            "what the node had of the volume is given up; the volume is in the list and is not \
             served yet",
        );
        let mut view = View::clone(&self.view());
        let record = VolumeRecord { take: true, phase: VolumePhase::Ready, ..record };
        view.absent.insert(name.clone(), Absence::new(refused.clone(), &record));
        view.catalog.volumes.insert(name.clone(), record);
        match self.publish(view).await {
            Ok(()) => {
                self.absences.added.notify_one();
                refused
            }
            Err(unsaved) => refused.state(format!(
                "the volume is in the list no more: {}; `layby volume create --take` takes it",
                unsaved.cause
            )),
        }
    }

    /// The volume that is to be taken, as its store has it.
    pub(super) async fn found_to_take(
        &self,
        request: &VolumeCreate,
        error: &str,
    ) -> Result<FoundVolume, Report> {
        let refused = |kind, cause: String, hint: &str| {
            Report::new(kind, error).cause(cause).state("nothing was changed").hint(hint)
        };
        let path = request.path.clone().filter(|path| is_store(path));
        let Some(path) = path.filter(|_| request.clone_of.is_none()) else {
            let cause = "only a volume that is in an object store is taken, as it is";
            let hint = "name its store with --path, and no snapshot; or leave --take out";
            return Err(refused(ReportKind::Invalid, cause.to_owned(), hint));
        };
        let (url, key) = (path.display().to_string(), request.key.clone());
        let found = self.at_homes(move |homes| homes.found(&path, key.as_ref())).await;
        let found = found.map_err(|e| within(error, e))?.ok_or_else(|| {
            let cause = format!("there is no volume at `{url}`");
            let hint = "look at the URL; or leave --take out, to make a new one there";
            refused(ReportKind::NotFound, cause, hint)
        })?;
        match request.size {
            Some(Size(size)) if size != found.size_bytes => {
                let (has, says) = (format_bytes(found.size_bytes), format_bytes(size));
                let cause = format!("the volume in the store has {has}, the command says {says}");
                let hint = "leave --size out; `layby volume resize` changes it when it is taken";
                Err(refused(ReportKind::Invalid, cause, hint))
            }
            _ => Ok(found),
        }
    }

    /// Has shards let go of what this node had of a volume that it takes back as `new`; false where
    /// it has the volume, so that there is nothing to take.
    pub(super) async fn let_go(
        &self,
        name: &Name,
        (old, new): (&VolumeRecord, &VolumeRecord),
        (found, missing): (&FoundVolume, Missing),
        error: &str,
    ) -> Result<bool, Report> {
        let refused = |cause: String, hint: &str| {
            let report = Report::new(ReportKind::InUse, error).cause(cause);
            report.state("nothing was changed").hint(hint)
        };
        if old.path != new.path || old.phase == VolumePhase::Deleting {
            let hint = "choose another name; `layby volume list` shows those taken";
            return Err(refused("another volume of that name exists".to_owned(), hint));
        }
        let absence = self.view().absence(name).cloned();
        if absence.is_none() && old.phase == VolumePhase::Creating {
            let cause = "the node is making it already".to_owned();
            return Err(refused(cause, "repeat the command in a moment"));
        }
        let is_accepted = missing == Missing::Accepted;
        if is_accepted && !found.is_own {
            let hint = "`layby volume create --take` takes it from that node";
            return Err(refused(format!("node {} has the volume", found.node), hint));
        }
        if !found.is_own && absence.is_none() {
            self.has_found_out(old).await;
        }
        let asked = old.clone();
        let is_gone = absence.is_some() && found.is_own;
        let taken = self.at_homes(move |homes| {
            // A command that takes it gives up what its files held, where all are missing.
            let is_lost = || is_accepted && homes.lost_files(&asked).is_some();
            let is_gone = is_gone && (homes.leftover(&asked).is_none() || is_lost());
            let by = "its journal and map are not here".to_owned();
            let gone = || Taken { by, bytes_lost: 0, unknown: None };
            let taken = homes.taken(&asked).or_else(|| is_gone.then(gone))?;
            let is_all_gone = taken.unknown.is_some() && homes.leftover(&asked).is_none();
            Some(if is_all_gone { Taken { unknown: None, ..taken } } else { taken })
        });
        let taken = taken.await;
        // Another copy of this node, or a later day of it, may have it under this node's name.
        let Some(taken) = taken else {
            return match absence {
                Some(absence) => Err(absence.refusal(error, name)),
                None if is_alike(old, new) => Ok(false),
                None => {
                    let cause = "this node serves it already, with other settings".to_owned();
                    Err(refused(cause, "`layby volume set` changes them"))
                }
            };
        };
        if let Some(unsaved) = unsaved(&taken) {
            return Err(only_here(name, &taken, &unsaved, error));
        }
        self.quiesce_in_turn(name, old, error).await?;
        let removed = self.remove_parts(&self.view(), old, (true, true)).await;
        removed.map_err(|refused| super::report(&refused, error)).map(|()| true)
    }

    /// What this node had of a volume that it takes back goes, once the catalog says that it takes
    /// it. Files that do not go are in the way of nothing: the volume has others.
    pub(super) async fn forget_files(&self, name: &Name, old: VolumeRecord) {
        if let Err(left) = self.at_homes(move |homes| homes.forget(&old)).await {
            tracing::warn!(%name, cause = left.cause, "{}; it is of no use any more", left.error);
        }
    }

    /// Forgets a volume that another node has: what this node has of it goes, and no object does.
    /// What is in no store is thrown away only where all was to be.
    pub(super) async fn forget_taken(
        &self,
        name: &Name,
        record: VolumeRecord,
        taken: &Taken,
        discard: bool,
        error: &str,
    ) -> Result<(), Report> {
        if let Some(unsaved) = unsaved(taken).filter(|_| !discard) {
            return Err(Report::new(ReportKind::InUse, error)
                .cause(format!("{}, and {unsaved} in no store", taken.by))
                .state("nothing was changed")
                .hint(format!(
                    "`layby salvage {name} FILE` saves these bytes, with the journal's disk \
                     mounted; `--data delete` throws them away and forgets the volume here; its \
                     objects are the other node's and stay"
                )));
        }
        let mut view = View::clone(&self.view());
        view.remove_volume(name);
        view.unwant(name, &self.facts.config);
        let kept = "the volume is still there; its next start serves it";
        let (without, refused) = (view, (error, kept));
        self.quiesce_in_turn(name, &record, error).await?;
        let (discard, is_quiesced, deleting) = (true, true, None);
        let removal =
            Removal { name, record: &record, discard, is_quiesced, deleting, without, refused };
        if let Err(refused) = self.remove_served(removal).await {
            self.reopen(name, &record, error).await;
            return Err(refused);
        }
        self.devices.remove_left(&record).await;
        self.at_homes(move |homes| homes.forget(&record)).await
    }

    /// Waits until a volume that another node has taken knows that, or time is over.
    async fn has_found_out(&self, record: &VolumeRecord) {
        let Some(watch) = self.facts.homes.watch(record) else { return };
        watch.order(Order::Look);
        let is_lost = |said: &Said| matches!(said.status.link, Link::Lost(_));
        // Where its store is silent, it does not know; then it is not let go of.
        let _ = tokio::time::timeout(FINDING_OUT, watch.wait(is_lost)).await;
    }

    /// Waits until a volume that was created to be taken is this node's. Nothing of the node waits
    /// for that, since the store may be silent by now.
    pub(super) async fn has_taken(&self, name: &Name, error: &str) -> Result<(), Report> {
        let record = self.existing_volume(error, name)?;
        let Some(watch) = self.facts.homes.watch(&record) else { return Ok(()) };
        let is_settled = |said: &Said| matches!(said.status.link, Link::Up | Link::Lost(_));
        match watch.wait(is_settled).await.map(|said| said.status.link) {
            Some(Link::Lost(why)) => Err(Report::new(ReportKind::InUse, error)
                .cause(why)
                .state("the volume is in this node's list, and nothing of it is served")
                .hint("repeat the command, or forget it here with `layby volume delete`")),
            _ => {
                self.end_take(name, record.id).await;
                Ok(())
            }
        }
    }

    /// Refuses another size for a volume that another node has taken: what this node changed would
    /// be in no store. What its thread knows is enough, since a store may be silent.
    pub(super) fn check_resize(
        &self,
        old: &VolumeRecord,
        length: u64,
        error: &str,
    ) -> Result<(), Report> {
        let said = self.facts.homes.watch(old).and_then(|watch| watch.said());
        let taken = said.filter(|said| said.status.is_taken && length != old.length);
        let Some(said) = taken else { return Ok(()) };
        let cause = match said.status.link {
            Link::Lost(why) => why,
            _ => "another node has taken the volume".to_owned(),
        };
        Err(Report::new(ReportKind::InUse, error)
            .cause(cause)
            .state("nothing was changed")
            .hint("resize it on the node that serves it; or `layby volume delete` forgets it here"))
    }

    /// Nothing is to be taken any more; where that cannot be written down, the map says so.
    async fn end_take(&self, name: &Name, id: u32) {
        let _change = self.lock_changes().await;
        let mut view = View::clone(&self.view());
        let found = view.catalog.volumes.get_mut(name).filter(|record| record.id == id);
        if found.is_some_and(|record| std::mem::replace(&mut record.take, false)) {
            drop(self.publish(view).await);
        }
    }
}

/// Whether a volume is as a creation would make it.
fn is_alike(old: &VolumeRecord, new: &VolumeRecord) -> bool {
    let VolumeRecord { id, phase, length, local, take, device, .. } = *old;
    let clone_of = old.clone_of.clone();
    let configured = old.configured.clone();
    let known = VolumeRecord { id, phase, length, local, take, device, ..new.clone() };
    VolumeRecord { clone_of, configured, ..known } == *old
}

/// What was written here, and is in no store or may not be; none where nothing is lost.
fn unsaved(taken: &Taken) -> Option<String> {
    match &taken.unknown {
        _ if taken.bytes_lost > 0 => {
            Some(format!("{} that were written here are", format_bytes(taken.bytes_lost)))
        }
        Some(why) => Some(format!("what was written here may be ({why})")),
        None => None,
    }
}

/// What is in no store is not given up in passing.
fn only_here(name: &Name, taken: &Taken, unsaved: &str, error: &str) -> Report {
    Report::new(ReportKind::InUse, error)
        .cause(format!("{}, and {unsaved} in this node's journal only", taken.by))
        .state("nothing was changed")
        .hint(format!(
            "`layby salvage {name} FILE` saves them; then `layby volume delete {name} --data \
             delete` gives them up here, and this command takes the volume"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::config::{KeySource, UplinkConfig};
    use crate::control::drain::tests::said_of;
    use crate::control::tests::MockNode;
    use crate::control::{Authority, VolumePatch, attend_absent};
    use crate::homes::RemoteHomes;
    use crate::homes::tests::{Opener, wanted, with_owner};
    use layby_cloud::{Watch, uplink::Uplink};
    use layby_engine::control::OpenRemote;
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tempfile::TempDir;

    /// A store whose volume another node has, and what the catalog said when files went.
    #[derive(Debug)]
    struct Owner {
        dir: PathBuf,
        log: Mutex<Vec<String>>,
        /// Nothing can be made for a volume.
        refuses: AtomicBool,
        /// This node has the volume.
        is_own: AtomicBool,
    }

    fn owner(dir: &TempDir) -> Arc<Owner> {
        let (log, refuses, is_own) = (Mutex::default(), AtomicBool::default(), false.into());
        Arc::new(Owner { dir: dir.path().into(), log, refuses, is_own })
    }

    async fn take(node: &MockNode) -> Result<(), Report> {
        let request = "{\"name\":\"far\",\"path\":\"file:///far\",\"take\":true}";
        let request = serde_json::from_str(request).expect("JSON");
        node.control.volume_create(request, Authority::Owner).await
    }

    impl RemoteHomes for Owner {
        fn has(&self, record: &VolumeRecord) -> bool {
            is_store(&record.path)
        }
        fn name(&self, record: &VolumeRecord) -> String {
            record.path.display().to_string()
        }
        fn prepare(&self, _: &Name, _: &VolumeRecord) -> Result<Arc<dyn OpenRemote>, Report> {
            match self.refuses.load(Ordering::Relaxed) {
                true => Err(Report::new(ReportKind::Full, "cannot").cause("no room")),
                false => Ok(Arc::new(Opener)),
            }
        }
        fn release(&self, _: &VolumeRecord) -> Result<(), Report> {
            Ok(())
        }
        fn found(&self, _: &Path, _: Option<&KeySource>) -> Result<Option<FoundVolume>, Report> {
            let is_own = self.is_own.load(Ordering::Relaxed);
            Ok(Some(FoundVolume { size_bytes: 1 << 20, node: "07".repeat(16), is_own }))
        }
        fn taken(&self, _: &VolumeRecord) -> Option<Taken> {
            Some(Taken { by: "node 7 has the volume".into(), bytes_lost: 0, unknown: None })
        }
        fn forget(&self, record: &VolumeRecord) -> Result<(), Report> {
            let catalog = Catalog::load(&self.dir).expect("whole").expect("it was saved");
            let known = &catalog.volumes["far"];
            let line = format!("{} goes, {} takes: {}", record.id, known.id, known.take);
            self.log.lock().expect("one test").push(line);
            Ok(())
        }
        fn watch(&self, _: &VolumeRecord) -> Option<Watch> {
            None
        }
        fn follow(&self, _: &View, _: &UplinkConfig) {}
        fn uplink(&self) -> Option<Uplink> {
            None
        }
        fn problem(&self, _: &VolumeRecord) -> Option<String> {
            None
        }
    }

    /// Goal: what a node had of a volume that it takes back goes once the catalog says that it
    /// takes it, so that a start after a kill goes on. Method: the volume is taken twice; the
    /// catalog as the disk has it at the moment that the old files go.
    #[tokio::test]
    async fn old_files_go_once_the_catalog_takes() {
        let dir = TempDir::new().expect("a temporary directory");
        let owner = owner(&dir);
        let node = MockNode::with_homes(dir, "", Some(owner.clone()));
        for _ in 0..2 {
            take(&node).await.expect("the other node has it");
        }
        assert_eq!(*owner.log.lock().expect("one test"), ["1 goes, 2 takes: true"]);
    }

    /// Goal: a volume that the node knows stays in its list where it cannot be taken, is not served
    /// and says why; a start takes it. Method: taken, then taken again while nothing can be made
    /// for it; the node's view and the catalog; taken once more.
    #[tokio::test]
    async fn a_volume_that_cannot_be_taken_stays_listed() {
        let dir = TempDir::new().expect("a temporary directory");
        let (owner, place) = (owner(&dir), dir.path().to_owned());
        let node = MockNode::with_homes(dir, "", Some(owner.clone()));
        take(&node).await.expect("the other node has it");
        owner.refuses.store(true, Ordering::Relaxed);
        let refused = take(&node).await.expect_err("nothing can be made");
        assert!(refused.cause.contains("no room"), "{refused}");
        assert!(refused.state.contains("in the list"), "{refused}");
        let name: Name = "far".parse().expect("a good name");
        assert!(node.control.view().absence(&name).is_some_and(Absence::is_tried));
        let saved = Catalog::load(&place).expect("whole").expect("it was saved");
        let record = &saved.volumes["far"];
        assert!(record.take && record.phase == VolumePhase::Ready, "{record:?}");
        owner.refuses.store(false, Ordering::Relaxed);
        take(&node).await.expect("there is room again");
        assert!(node.control.view().absence(&name).is_none());
    }

    /// Goal: a volume that is served anew, and whose block device cannot be attached, is served: it
    /// is not tried again, which would open its journal beside the shard that has it. Method: a
    /// volume whose files are given up, and which is to have a device, which no machine has for
    /// mock shards; the answer, the node's view, and what the shards have.
    #[tokio::test]
    async fn a_volume_without_its_device_is_not_tried_again() {
        let dir = TempDir::new().expect("a temporary directory");
        let owner = owner(&dir);
        let node = MockNode::with_homes(dir, "", Some(owner.clone()));
        take(&node).await.expect("the other node has it");
        owner.is_own.store(true, Ordering::Relaxed);
        let name: Name = "far".parse().expect("a good name");
        let known = || node.control.view().catalog.volumes["far"].clone();
        let record = VolumeRecord { ublk: true, ..known() };
        let refused = node.control.accept_lost_files(&name, &record, "cannot serve `far`").await;
        let refused = refused.expect_err("it has no device");
        assert!(refused.state.contains("is served without it"), "{refused}");
        assert!(node.control.view().absence(&name).is_none(), "it would be opened again");
        assert_eq!((known().id, known().phase), (2, VolumePhase::Ready));
        let served = |id| node.shards.iter().any(|s| s.state().volumes.contains_key(&id));
        assert!(served(2) && !served(1));
    }

    /// Goal: a volume that another node has taken keeps its size here, larger or smaller, and the
    /// refusal says why; before it was taken, the size changes. Method: a volume whose watch says
    /// that it is served, then that it was taken; the record after each command.
    #[tokio::test]
    async fn a_taken_volume_keeps_its_size() {
        let (owner, node) = with_owner("");
        let says = owner.is_watched();
        says.send_replace(Some(said_of(Link::Up, true)));
        let creating = node.control.volume_create(wanted("far"), Authority::Owner);
        creating.await.expect("its store is there");
        let name: Name = "far".parse().expect("a good name");
        let resize = async |mib: u64| {
            let size = Some(Size(mib << 20));
            let patch = VolumePatch { size, shrink: true, ..VolumePatch::default() };
            node.control.volume_set(&name, patch).await
        };
        let length = || node.control.view().catalog.volumes["far"].length;
        resize(4).await.expect("it is this node's");
        let mut taken = said_of(Link::Lost("node 7 has the volume".into()), true);
        taken.status.is_taken = true;
        says.send_replace(Some(taken));
        for mib in [8, 2] {
            let refused = resize(mib).await.expect_err("it is another node's");
            assert_eq!(refused.kind, ReportKind::InUse, "{refused}");
            assert!(refused.cause.contains("node 7 has the volume"), "{refused}");
            assert_eq!(length(), 4 << 20);
        }
    }

    /// Goal: a volume that could not be taken is tried again though the start served all, soon and
    /// each time. Method: paused time; twice, a volume that is taken again while nothing can be
    /// made for it, beside the task of volumes that are not served; then there is room.
    #[tokio::test(start_paused = true)]
    async fn a_volume_that_cannot_be_taken_is_tried_again() {
        const SOON: Duration = Duration::from_secs(10);
        let dir = TempDir::new().expect("a temporary directory");
        let owner = owner(&dir);
        let node = MockNode::with_homes(dir, "", Some(owner.clone()));
        let attending = tokio::spawn(attend_absent(Arc::clone(&node.control)));
        tokio::task::yield_now().await;
        take(&node).await.expect("the other node has it");
        let name: Name = "far".parse().expect("a good name");
        let is_absent = || node.control.view().absence(&name).is_some();
        for _ in 0..2 {
            owner.refuses.store(true, Ordering::Relaxed);
            take(&node).await.expect_err("nothing can be made");
            assert!(is_absent());
            owner.refuses.store(false, Ordering::Relaxed);
            let serving = async {
                while is_absent() {
                    // Of paused time, which passes once nothing else is to be done.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            };
            let served = tokio::time::timeout(SOON, serving).await;
            served.expect("nothing tries it again");
            assert_eq!(node.control.view().catalog.volumes["far"].phase, VolumePhase::Ready);
        }
        attending.abort();
    }
}
