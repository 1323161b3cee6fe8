//! Volumes that the node cannot serve now, and why.
//!
//! How: a start that cannot have a volume's home serves the others. Of one in an object store, a
//! task tries again at growing intervals and has the volume served as soon as it can be; so it does
//! with one that could not be taken while the node runs. One whose
//! file or device cannot be opened is with its shard all the same, which keeps what the levels hold
//! of it, and waits for a later start, as do volumes that wait for a lost level.
//! Invariant: what the node keeps of such a volume stays as it is, no client reaches it, and who
//! asks for it hears why. Levels let go of the blocks of one in a store, which were clean copies;
//! since a log may show them once more after a crash, it comes back under a new number, whose
//! blocks are its own.
//! Cost: a try every five minutes at last, and a number per life of the node. A store that is
//! silent holds up these volumes only. Not for: files that are to be made for the configuration's
//! volumes, without which no node starts.

use super::volumes::set_phase;
use super::{Control, DeleteData, View, finish_take, report};
use crate::catalog::{VolumePhase, VolumeRecord};
use crate::config::{Config, Name};
use crate::error::{Report, ReportKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Rest before a volume is tried again, at first; it doubles.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The same, at most.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Why a volume is not served.
#[derive(Clone, Debug)]
pub struct Absence {
    /// What failed last.
    pub why: Report,
    /// It has a number that no earlier life of the node knows.
    is_new: bool,
    waits: WaitsFor,
}

/// What has to come before a volume can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    /// Its store, which is tried again.
    Store,
    /// A lost level, at a later start.
    Level,
    /// Its file or device, at a later start; its shard keeps what the levels hold of it.
    File,
}

impl Absence {
    /// A volume whose home a start could not have.
    #[must_use]
    pub fn new(why: Report, record: &VolumeRecord) -> Absence {
        let is_new = record.phase == VolumePhase::Creating;
        Absence { why, is_new, waits: WaitsFor::Store }
    }

    /// A volume that waits for a lost level.
    #[must_use]
    pub fn held(why: Report) -> Absence {
        Absence { why, is_new: false, waits: WaitsFor::Level }
    }

    /// A volume whose file or device could not be opened.
    #[must_use]
    pub fn of_file(why: Report) -> Absence {
        Absence { why, is_new: false, waits: WaitsFor::File }
    }

    /// Whether it waits for a lost level.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.waits == WaitsFor::Level
    }

    /// Whether the node tries again by itself.
    #[must_use]
    pub fn is_tried(&self) -> bool {
        self.waits == WaitsFor::Store
    }

    /// Whether a shard has the volume all the same.
    #[must_use]
    pub fn is_in_shard(&self) -> bool {
        self.waits == WaitsFor::File
    }

    /// What a command hears that asks for the volume.
    pub(super) fn refusal(&self, error: &str, name: &Name) -> Report {
        let state = match self.is_tried() {
            true => "nothing was changed; the node goes on trying to serve it",
            false => self.why.state.as_str(),
        };
        Report::new(self.why.kind, error)
            .cause(format!("volume `{name}` is not served: {}", self.why.cause))
            .state(state)
            .hint(self.why.hint.clone())
    }
}

impl View {
    /// Why a volume is not served; none where it is, or is not there.
    #[must_use]
    pub fn absence(&self, name: &Name) -> Option<&Absence> {
        self.absent.get(name)
    }

    /// Whether no shard has the volume of a record.
    #[must_use]
    pub(super) fn is_in_no_shard(&self, record: &VolumeRecord) -> bool {
        let is_its =
            |name: &Name| self.catalog.volumes.get(name).is_some_and(|r| r.id == record.id);
        self.absent.iter().any(|(name, absence)| !absence.is_in_shard() && is_its(name))
    }

    /// A volume is none of the node's any more.
    pub(super) fn remove_volume(&mut self, name: &Name) {
        self.catalog.volumes.remove(name);
        self.absent.remove(name);
    }

    /// A volume is deleted. Where the configuration names it, its table does not make it anew.
    pub(super) fn unwant(&mut self, name: &Name, config: &Config) {
        if let Some(table) = config.volumes.get(name) {
            self.catalog.unwanted.insert(name.clone(), table.clone());
        }
    }

    /// Volumes that operators may see: those that are served, and those that cannot be now.
    pub fn known_volumes(&self) -> impl Iterator<Item = (&Name, &VolumeRecord)> {
        let volumes = self.catalog.volumes.iter();
        volumes.filter(|(name, record)| {
            record.phase == VolumePhase::Ready || self.absent.contains_key(*name)
        })
    }
}

/// What the attempts to serve volumes share that are not served.
#[derive(Default)]
pub(super) struct Absences {
    /// Held while such a volume is tried, or goes.
    pub(super) turn: Mutex<()>,
    /// A volume was added that is to be tried.
    pub(super) added: Notify,
}

/// Tries to serve the volumes that a start left out, and those that are added later; never ends.
pub(crate) async fn attend_absent(control: Arc<Control>) {
    let added = || control.absences.added.notified();
    let (mut rest, mut takes) = (RETRY_MIN, JoinSet::new());
    loop {
        if !control.view().absent.values().any(Absence::is_tried) {
            added().await;
            rest = RETRY_MIN;
        }
        // Nothing tells that a key, a folder or a store is back but trying.
        let due = Instant::now() + rest;
        rest = tokio::select! {
            () = tokio::time::sleep_until(due) => rest.saturating_mul(2).min(RETRY_MAX),
            () = added() => {
                tokio::time::sleep_until(due.min(Instant::now() + RETRY_MIN)).await;
                RETRY_MIN.saturating_mul(2)
            }
        };
        let view = control.view();
        let tried = view.absent.iter().filter(|(_, absence)| absence.is_tried());
        // At once, since each may wait for its key first. They end with this task.
        let mut trying = JoinSet::new();
        for name in tried.map(|(name, _)| name.clone()) {
            let control = Arc::clone(&control);
            trying.spawn(async move { control.try_absent(&name).await.then_some(name) });
        }
        for name in trying.join_all().await.into_iter().flatten() {
            takes.spawn(finish_take(Arc::clone(&control), name));
        }
        while takes.try_join_next().is_some() {}
    }
}

impl Control {
    /// Tries to serve a volume once, and keeps what failed. Whether it is served now.
    async fn try_absent(&self, name: &Name) -> bool {
        let Some(record) = self.view().catalog.volumes.get(name).cloned() else { return false };
        let waiting = record.clone();
        self.at_homes(move |homes| homes.fetch_key(&waiting)).await;
        let tried = self.serve_absent(name).await;
        self.facts.homes.drop_key(&record);
        match tried {
            Ok(is_served) => {
                if is_served {
                    tracing::info!(%name, "a volume that was not served is served now");
                }
                is_served
            }
            Err(refused) => {
                tracing::warn!(%name, cause = refused.cause, "{}; tried again", refused.error);
                self.say_absent(name, refused).await;
                false
            }
        }
    }

    /// Serves a volume that is not served yet; false where there is none of the name any more.
    async fn serve_absent(&self, name: &Name) -> Result<bool, Report> {
        let error = format!("cannot serve volume `{name}`");
        let _turn = self.absences.turn.lock().await;
        let Some(record) = self.with_new_number(name, &error).await? else { return Ok(false) };
        let plans = self.plan_volume(&self.view(), name, &record).await?;
        let _change = self.lock_changes().await;
        let mut view = View::clone(&self.view());
        if let Err(refused) = self.add_parts(&view, &record, plans).await {
            self.facts.homes.close(&record);
            return Err(report(&refused, error));
        }
        view.absent.remove(name);
        set_phase(&mut view, name, VolumePhase::Ready);
        self.publish_served(view).await;
        // The volume is served all the same, and a taking of it ends.
        if let Err(without) = self.devices.attach_asked(self, name, &error).await {
            tracing::warn!(%name, cause = without.cause, "{}", without.state);
        }
        Ok(true)
    }

    /// The turn of a volume that is not served, where it is one, and that of its deletion.
    pub(super) async fn turns_of_deletion(
        &self,
        name: &Name,
        data: DeleteData,
    ) -> (Option<MutexGuard<'_, ()>>, MutexGuard<'_, ()>) {
        let is_absent = || self.view().absence(name).is_some();
        loop {
            let tried = match is_absent() {
                true => Some(self.absences.turn.lock().await),
                false => None,
            };
            let change = self.deletion_turn(name, data).await;
            // It may have become one meanwhile, which is tried beside this deletion then.
            if tried.is_some() || !is_absent() {
                return (tried, change);
            }
        }
    }

    /// The record of a volume that is not served, under a number that no level has blocks of.
    async fn with_new_number(
        &self,
        name: &Name,
        error: &str,
    ) -> Result<Option<VolumeRecord>, Report> {
        let _change = self.lock_changes().await;
        let mut view = View::clone(&self.view());
        let Some(absence) = view.absent.get_mut(name) else { return Ok(None) };
        let record = view.catalog.volumes[name].clone();
        if std::mem::replace(&mut absence.is_new, true) {
            return Ok(Some(record));
        }
        let id = view.catalog.volume_id_take().ok_or_else(|| {
            Report::new(ReportKind::Full, error).cause("this node has no number left for it")
        })?;
        let (local, device) = (Some(record.local_number()), Some(record.device_number()));
        let device = device.filter(|_| record.ublk);
        let record = VolumeRecord { id: id.0, local, device, ..record };
        view.catalog.volumes.insert(name.clone(), record.clone());
        self.publish(view).await.map(|()| Some(record))
    }

    /// What failed last is what commands hear.
    async fn say_absent(&self, name: &Name, why: Report) {
        let _change = self.lock_changes().await;
        let mut view = View::clone(&self.view());
        if let Some(absence) = view.absent.get_mut(name)
            && absence.why.cause != why.cause
        {
            absence.why = why;
            self.show(view);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::{MockNode, create};
    use crate::control::{Authority, VolumePatch};
    use crate::node::Node;
    use crate::node::tests::{MockStarter, config};
    use tempfile::TempDir;

    fn name(text: &str) -> Name {
        text.parse().expect("a good name")
    }

    async fn start(dir: &TempDir, text: &str) -> Node {
        for _ in 0..STARTS_MAX {
            let starter = Arc::new(MockStarter::default());
            match Node::start(config(dir, text), starter).await {
                Err(report) if report.cause.contains("runs a node") => {}
                started => return started.expect("a volume holds up no start"),
            }
        }
        panic!("the directory stays locked")
    }

    fn folder(dir: &TempDir, place: &str) -> String {
        let path = dir.path().join(place);
        format!("file://{}", path.display())
    }

    fn table(volume: &str, path: &str, more: &str) -> String {
        format!("[volume.{volume}]\nsize = \"1MiB\"\npath = \"{path}\"\n{more}\n")
    }

    /// Goal: a volume that is no more served by the time that its deletion may change the node is
    /// not deleted while it is tried. Method: the deletion waits behind a change in which that
    /// happens, and which goes on to try the volume; a change behind the deletion.
    #[tokio::test]
    async fn a_deletion_waits_for_a_volume_that_is_tried_by_then() {
        let node = MockNode::new("");
        node.control.volume_create(create("a"), Authority::Owner).await.expect("a free name");
        let change = node.control.lock_changes().await;
        let control = Arc::clone(&node.control);
        let keep = DeleteData::Keep;
        let deleting = tokio::spawn(async move { control.volume_delete(&name("a"), keep).await });
        tokio::task::yield_now().await;
        let trying = node.control.absences.turn.lock().await;
        let mut view = View::clone(&node.control.view());
        let why = Report::new(ReportKind::Unreachable, "cannot serve it");
        let absence = Absence::new(why, &view.catalog.volumes["a"]);
        view.absent.insert(name("a"), absence);
        node.control.show(view);
        drop(change);
        // It comes behind the deletion's.
        drop(node.control.lock_changes().await);
        assert!(node.control.view().catalog.volumes.contains_key("a"), "it is being tried");
        drop(trying);
        deleting.await.expect("no panic").expect("it goes");
        assert!(!node.control.view().catalog.volumes.contains_key("a"));
    }

    /// A child of another test may hold the last life's lock between its fork and its exec.
    const STARTS_MAX: u32 = 10_000;
    const FILE: &str = "[volume.file]\nsize = \"1MiB\"\n";

    /// Goal: a volume of the configuration that cannot be made holds up no start, says why, and is
    /// forgotten when its table is corrected or taken away; a running node deletes it. Method: a
    /// store's folder with a file in its way; the path corrected, the table gone, a command.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_never_made_follows_the_file() {
        let dir = TempDir::new().expect("a temporary directory");
        std::fs::write(dir.path().join("blocked"), b"a file").expect("a writable directory");
        let bad = format!("{FILE}{}", table("x", &folder(&dir, "blocked/x"), ""));
        for life in 0..2 {
            let node = start(&dir, &bad).await;
            let (control, view) = (node.control(), node.control().view());
            let served: Vec<&Name> = view.volumes().map(|(name, _)| name).collect();
            assert_eq!(served, [&name("file")], "life {life}");
            assert!(node.announcement().iter().any(|line| line.contains("`x` is not served")));
            let refused = control.volume_set(&name("x"), VolumePatch::default()).await;
            let refused = refused.expect_err("it is not served");
            assert!(refused.cause.starts_with("volume `x` is not served: "), "{refused}");
            assert!(control.serve_absent(&name("x")).await.is_err(), "the file is still there");
            node.run(async {}).await.expect("stops");
        }
        let good = format!("{FILE}{}", table("x", &folder(&dir, "free/x"), ""));
        let node = start(&dir, &good).await;
        let control = node.control();
        assert_eq!(control.view().volumes().count(), 2);
        control.volume_delete(&name("x"), DeleteData::Delete).await.expect("it is served");
        node.run(async {}).await.expect("stops");
        start(&dir, &format!("{bad}{}", table("y", &folder(&dir, "blocked/y"), ""))).await;
        let node = start(&dir, FILE).await;
        assert!(!node.control().view().catalog.volumes.contains_key("y"), "its table is gone");
        node.run(async {}).await.expect("stops");
        let node =
            start(&dir, &format!("{FILE}{}", table("z", &folder(&dir, "blocked/z"), ""))).await;
        let control = node.control();
        control.volume_delete(&name("z"), DeleteData::Keep).await.expect("nothing is there");
        assert!(control.view().absent.is_empty());
        node.run(async {}).await.expect("stops");
    }

    /// Goal: a block device that is in use waits for its volume while that cannot be served, and is
    /// the volume's still when it comes back under a new number, or has one without a level.
    /// Method: a volume in a store whose key is gone, which is then said to have a device; the
    /// marks that a start leaves alone, before and after each new number.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_absent_volume_keeps_its_block_device() {
        let dir = TempDir::new().expect("a temporary directory");
        let key = dir.path().join("key");
        std::fs::write(&key, "0f".repeat(32)).expect("a writable directory");
        let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, only_owner).expect("the test's own file");
        let text = format!("key = \"file:{}\"", key.display());
        let text = format!("{FILE}{}", table("x", &folder(&dir, "store"), &text));
        let node = start(&dir, &text).await;
        node.run(async {}).await.expect("stops");
        std::fs::remove_file(&key).expect("it was there");
        let node = start(&dir, &text).await;
        let (control, node_id) = (node.control(), node.control().view().catalog.node);
        let mut view = View::clone(&control.view());
        assert!(view.absence(&name("x")).is_some());
        let before = view.catalog.volumes["x"].id;
        view.catalog.volumes.get_mut("x").expect("it is known").ublk = true;
        let marks = crate::ublk::wanted(node_id, &view);
        assert!(marks.len() == 1 && marks[0] as u32 == before, "{marks:x?}");
        control.show(view);
        let record = control.with_new_number(&name("x"), "").await.expect("there are numbers");
        assert!(record.is_some_and(|record| record.id > before && record.device == Some(before)));
        assert_eq!(crate::ublk::wanted(node_id, &control.view()), marks);
        let mut view = View::clone(&control.view());
        let homes = &control.facts().homes;
        crate::degraded::renumber(&mut view, homes, &name("x"), "").expect("there are numbers");
        assert_eq!(crate::ublk::wanted(node_id, &view), marks);
        view.catalog.volumes.get_mut("x").expect("it is known").ublk = false;
        assert!(crate::ublk::wanted(node_id, &view).is_empty(), "it does not ask for one");
        node.run(async {}).await.expect("stops");
    }

    /// Goal: a volume that is served late, without the block device that it is to have, counts as
    /// served, without which a taking of it never ends. Method: a volume in a store whose key is
    /// gone at the start and comes back, said to be taken and to have a device, which no machine
    /// has for mock shards.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_volume_without_its_device_is_served() {
        let dir = TempDir::new().expect("a temporary directory");
        let key = dir.path().join("key");
        let write_key = || {
            std::fs::write(&key, "0f".repeat(32)).expect("a writable directory");
            let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&key, only_owner).expect("the test's own file");
        };
        let text = format!("key = \"file:{}\"", key.display());
        let text = format!("{FILE}{}", table("x", &folder(&dir, "store"), &text));
        write_key();
        let node = start(&dir, &text).await;
        node.run(async {}).await.expect("stops");
        std::fs::remove_file(&key).expect("it was there");
        let node = start(&dir, &text).await;
        let control = node.control();
        let mut view = View::clone(&control.view());
        let record = view.catalog.volumes.get_mut("x").expect("it is known");
        (record.take, record.ublk) = (true, true);
        control.show(view);
        write_key();
        assert!(control.try_absent(&name("x")).await, "it is served");
        assert!(control.view().volumes().any(|(known, _)| *known == name("x")));
        node.run(async {}).await.expect("stops");
    }

    /// Goal: a volume that cannot be served costs no other its service, keeps what the node has of
    /// it, and comes back when its cause is gone, under a number that no level knows. Method: a key
    /// that goes and returns, lives of the node around it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_missing_key_costs_its_own_volume_only() {
        let dir = TempDir::new().expect("a temporary directory");
        let key = dir.path().join("key");
        let write_key = || {
            std::fs::write(&key, "0f".repeat(32)).expect("a writable directory");
            let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&key, only_owner).expect("the test's own file");
        };
        let text = format!("key = \"file:{}\"", key.display());
        let text = format!("{FILE}{}", table("x", &folder(&dir, "store"), &text));
        write_key();
        let node = start(&dir, &text).await;
        let before = node.control().view().catalog.volumes["x"].clone();
        let known = |node: &Node, record| {
            let identity = node.control().facts().homes.identity(record);
            identity.map(|identity| identity.volume)
        };
        let volume = known(&node, &before);
        node.run(async {}).await.expect("stops");
        std::fs::remove_file(&key).expect("it was there");
        let node = start(&dir, &text).await;
        let control = node.control();
        assert_eq!(control.view().volumes().count(), 1);
        let why = control.serve_absent(&name("x")).await.expect_err("the key is missing");
        assert!(why.cause.contains("key"), "{why}");
        let refused = control.volume_set(&name("x"), VolumePatch::default()).await;
        assert!(refused.expect_err("it is not served").cause.contains("key"));
        assert!(volume.is_some() && known(&node, &before) == volume, "its map stays");
        write_key();
        assert!(control.serve_absent(&name("x")).await.expect("the key is there"));
        assert!(!control.serve_absent(&name("x")).await.expect("nothing is left to do"));
        let record = control.view().catalog.volumes["x"].clone();
        assert!(record.id > before.id && record.local == Some(before.id), "{record:?}");
        assert_eq!(known(&node, &record), volume);
        assert_eq!(record.phase, VolumePhase::Ready);
        assert_eq!(control.view().volumes().count(), 2);
        node.run(async {}).await.expect("stops");
        let node = start(&dir, &text).await;
        assert_eq!(node.control().view().catalog.volumes["x"].id, record.id);
        node.run(async {}).await.expect("stops");
    }

    /// Exchanges journals and maps of two volumes, and the notes beside them.
    fn exchange(dir: &TempDir, [one, other]: [u32; 2]) {
        let path = |number: u32, kind: &str| {
            dir.path().join("node").join("cloud").join(format!("{number}.{kind}"))
        };
        for kind in ["journal", "map", "key"] {
            let (from, to) = (path(one, kind), path(other, kind));
            if from.exists() {
                let between = dir.path().join("between");
                std::fs::rename(&from, &between).expect("the test's own file");
                std::fs::rename(&to, &from).expect("the test's own file");
                std::fs::rename(&between, &to).expect("the test's own file");
            }
        }
    }

    /// Goal: two volumes whose journals and maps were exchanged are not served, though their stores
    /// cannot be asked; the error and `layby check` name both identities; nothing is removed; put
    /// back, both are served. A directory of an earlier build learns them. Method: the files
    /// exchanged between lives of a node, with the folders of its stores moved away.
    #[tokio::test(flavor = "multi_thread")]
    async fn exchanged_files_are_not_served() {
        let dir = TempDir::new().expect("a temporary directory");
        let tables =
            ["x", "y"].map(|volume| table(volume, &folder(&dir, &format!("stores/{volume}")), ""));
        let text = format!("{FILE}{}", tables.concat());
        let node_dir = dir.path().join("node");
        let node = start(&dir, &text).await;
        let records = ["x", "y"].map(|name| node.control().view().catalog.volumes[name].clone());
        let identities = records.each_ref().map(|record| {
            let identity = node.control().facts().homes.identity(record);
            identity.expect("it has a map").volume
        });
        let numbers = records.each_ref().map(VolumeRecord::local_number);
        node.run(async {}).await.expect("stops");
        // An earlier build kept no identities.
        std::fs::remove_file(node_dir.join("identities.json")).expect("it was written");
        let node = start(&dir, &text).await;
        assert_eq!(node.control().view().volumes().count(), 3);
        node.run(async {}).await.expect("stops");
        exchange(&dir, numbers);
        let (stores, away) = (dir.path().join("stores"), dir.path().join("away"));
        std::fs::rename(&stores, &away).expect("the test's own folder");
        let depth = crate::check::Depth { full: false, backing: false, snapshot: None };
        let problems = |expected: usize| {
            let answer = crate::check::check(&node_dir, &depth).expect("a node's directory");
            let found = answer.backings.into_iter().filter_map(|found| found.problem);
            let found: Vec<String> =
                found.filter(|problem| problem.contains("another volume")).collect();
            assert_eq!(found.len(), expected, "{found:?}");
            found
        };
        for problem in problems(2) {
            assert!(identities.iter().all(|identity| problem.contains(identity)), "{problem}");
        }
        let node = start(&dir, &text).await;
        let control = node.control();
        assert_eq!(control.view().volumes().count(), 1, "the file's volume alone");
        for volume in ["x", "y"] {
            let refused = control.serve_absent(&name(volume)).await.expect_err("they are wrong");
            let is_named = identities.iter().all(|identity| refused.cause.contains(identity));
            assert!(is_named, "{refused}");
        }
        node.run(async {}).await.expect("stops");
        exchange(&dir, numbers);
        // A call of a node that has ended may end later, and makes the folders that it lacks.
        let is_back = |_| {
            let _ = std::fs::remove_dir_all(&stores);
            std::fs::rename(&away, &stores).is_ok()
        };
        assert!((0..STARTS_MAX).any(is_back), "the test's own folder");
        problems(0);
        let node = start(&dir, &text).await;
        assert_eq!(node.control().view().volumes().count(), 3);
        node.run(async {}).await.expect("stops");
    }

    /// Goal: nothing is salvaged from a journal and a map that were exchanged with another
    /// volume's; both volumes are named. Method: two volumes of a stopped node with their files
    /// exchanged, and put back; the other way round; a volume that was not touched.
    #[tokio::test(flavor = "multi_thread")]
    async fn exchanged_files_are_not_salvaged() {
        let dir = TempDir::new().expect("a temporary directory");
        let tables = ["x", "y", "z"]
            .map(|volume| table(volume, &folder(&dir, &format!("stores/{volume}")), ""));
        let text = tables.concat();
        let node = start(&dir, &text).await;
        let view = node.control().view();
        let numbers = ["x", "y"].map(|name| view.catalog.volumes[name].local_number());
        node.run(async {}).await.expect("stops");
        let file = dir.path().join("image");
        let salvage = |volume: &str| {
            crate::salvage::salvage(&config(&dir, &text), &name(volume), Some(&file), true)
        };
        exchange(&dir, numbers);
        for volume in ["x", "y"] {
            let refused = salvage(volume).expect_err("the files are another volume's");
            assert_eq!(refused.kind, ReportKind::Corrupt, "{refused}");
            for word in ["`x`", "`y`", "were files exchanged?"] {
                assert!(refused.cause.contains(word), "`{word}`: {refused}");
            }
            assert!(!file.exists(), "no image was made");
        }
        salvage("z").expect("its files are its own");
        exchange(&dir, numbers);
        for volume in ["x", "y"] {
            salvage(volume).expect("its files are its own again");
        }
    }
}
