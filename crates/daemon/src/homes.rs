//! Where volumes' blocks live for good: the one place that tells files from homes of another kind.
//!
//! How: a volume's record is of a file or device, unless the owner of remote homes says that it is
//! his. He prepares a home before a shard opens it and is told when the shard has let go of it.
//! Invariant: a remote home is written through, for life; nobody else touches its data.
//! Cost: nothing on the data path; what an owner does may take long, so it is called off the
//! runtime's threads. Not for: levels, which are always files and devices; see `levels`.

mod making;
mod removing;

pub use removing::KeptData;

use crate::catalog::{DeletedRecord, StoreIdentity, VolumePhase, VolumeRecord};
use crate::config::{CloneSource, KeySource, Name, UplinkConfig};
use crate::control::View;
use crate::error::{Report, ReportKind};
use crate::names::Names;
use layby_cloud::Watch;
use layby_cloud::uplink::Uplink;
use layby_engine::backing::{PartPlan, SharedLoss};
use layby_engine::control::{BackingPlan, OpenRemote};
use layby_types::Stripes;
use removing::discard_file;
use std::fmt;
use std::io::{Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// A volume that another node, or another copy of this one, has by now, so that its objects are not
/// this one's to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Who has it, in a few words.
    pub by: String,
    /// Bytes that were written here and that no store has.
    pub bytes_lost: u64,
    /// Why more bytes may have been written here that no store has.
    pub unknown: Option<String>,
}

/// A volume as its place has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundVolume {
    /// Its length.
    pub size_bytes: u64,
    /// The node that serves it, or did last, in hexadecimal.
    pub node: String,
    /// That is this one.
    pub is_own: bool,
}

/// Owns the homes that are not files. Only `has` and `name` are called where nothing may take long.
pub trait RemoteHomes: fmt::Debug + Send + Sync {
    /// Whether a volume's home is one of these; it is so for the volume's life.
    fn has(&self, record: &VolumeRecord) -> bool;

    /// A name for reports, such as a bucket with a prefix.
    fn name(&self, record: &VolumeRecord) -> String;

    /// Makes the home in phase `Creating`, finds it otherwise, and does all that takes long before
    /// a shard can open it.
    ///
    /// # Errors
    /// A report when it cannot be had, or belongs to somebody else.
    fn prepare(&self, name: &Name, record: &VolumeRecord) -> Result<Arc<dyn OpenRemote>, Report>;

    /// No shard holds the home any more, or none ever did: the volume was deleted and its data
    /// stays where it is, or it could not be served. Repeated after a crash in between.
    ///
    /// # Errors
    /// A report when something is left.
    fn release(&self, record: &VolumeRecord) -> Result<(), Report>;

    /// What a volume is, whatever its name and its node; none where the node does not know.
    fn identity(&self, _record: &VolumeRecord) -> Option<StoreIdentity> {
        None
    }

    /// Files that would be taken for a new volume's, though they are another one's.
    fn leftover(&self, _record: &VolumeRecord) -> Option<Report> {
        None
    }

    /// The length of a volume that this node had, that another one serves by now, and that is to be
    /// taken back: what the node has of it is of an older history. May take long.
    fn taken_back(&self, _name: &Name, _record: &VolumeRecord) -> Option<u64> {
        None
    }

    /// No shard holds the home any more, and what the node has of it stays.
    fn close(&self, _record: &VolumeRecord) {}

    /// Says where a deleted volume lives that it is deleted, so that nobody serves it, and lets go
    /// of what is not needed to bring it back. May take long; repeated.
    ///
    /// # Errors
    /// A report when that could not be said.
    fn mark_deleted(&self, _deleted: &DeletedRecord) -> Result<(), Report> {
        Ok(())
    }

    /// Takes that word back: the volume is whole and can be served. May take long.
    ///
    /// # Errors
    /// A report when its data may be gone, or its place does not answer.
    fn undelete(&self, _deleted: &DeletedRecord) -> Result<(), Report> {
        Ok(())
    }

    /// A deleted volume's data goes for good; where another has it by now, only what the node keeps
    /// of it, and this says who. May take long; repeated until it succeeds.
    ///
    /// # Errors
    /// A report when something is left.
    fn remove(&self, _deleted: &DeletedRecord) -> Result<Option<Taken>, Report> {
        Ok(None)
    }

    /// Whether a volume's data may go. May take long.
    ///
    /// # Errors
    /// A report when other volumes rest on it.
    fn check_discard(&self, _record: &VolumeRecord) -> Result<(), Report> {
        Ok(())
    }

    /// Who has a volume that is this node's no more, as far as its place says so. A node that
    /// serves it is asked first. May take long.
    fn taken(&self, _record: &VolumeRecord) -> Option<Taken> {
        None
    }

    /// The volume at a place; none where there is none. May take long.
    ///
    /// # Errors
    /// A report when its place does not answer.
    fn found(&self, _: &Path, _: Option<&KeySource>) -> Result<Option<FoundVolume>, Report> {
        Ok(None)
    }

    /// Has a volume's key ready for the next `prepare`, where that takes long; whether it came is
    /// found then.
    fn fetch_key(&self, _record: &VolumeRecord) {}

    /// What `fetch_key` has kept goes.
    fn drop_key(&self, _record: &VolumeRecord) {}

    /// Bytes of a volume that is not served and that its place does not have. May take long.
    ///
    /// # Errors
    /// Why that cannot be known.
    fn missing_bytes(&self, _record: &VolumeRecord) -> Result<u64, String> {
        Ok(0)
    }

    /// What the node has of a volume goes, whatever it is; no shard holds the home any more.
    ///
    /// # Errors
    /// A report when something is left.
    fn forget(&self, _record: &VolumeRecord) -> Result<(), Report> {
        Ok(())
    }

    /// Bytes of the snapshot that a volume is to be cloned from, by its place. May take long.
    ///
    /// # Errors
    /// A report when there is none, or its store does not answer.
    fn snapshot_bytes(&self, source: &CloneSource, _: Option<&KeySource>) -> Result<u64, Report> {
        Err(no_clones(source))
    }

    /// The way to see how safe a volume is and to hurry it; none where the home has none, or has
    /// not started.
    fn watch(&self, record: &VolumeRecord) -> Option<Watch>;

    /// What holds from now on: classes, volumes and the way up.
    fn follow(&self, view: &View, uplink: &UplinkConfig);

    /// What is known of the way up.
    fn uplink(&self) -> Option<Uplink>;

    /// What `layby check` finds wrong with the home, without a node that runs.
    fn problem(&self, record: &VolumeRecord) -> Option<String>;
}

/// All homes of a node.
#[derive(Clone, Debug)]
pub struct Homes {
    dir: PathBuf,
    remote: Option<Arc<dyn RemoteHomes>>,
    names: Names,
    lock: Weak<OwnedFd>,
}

impl Homes {
    /// Those of the node in `dir`, where some may have an owner.
    #[must_use]
    pub fn new(dir: &Path, remote: Option<Arc<dyn RemoteHomes>>) -> Homes {
        Homes { dir: dir.to_owned(), remote, names: Names::default(), lock: Weak::new() }
    }

    /// The same, written to under the lock of the node's directory for as long as that is held.
    #[must_use]
    pub fn under(self, lock: &Arc<OwnedFd>) -> Homes {
        Homes { lock: Arc::downgrade(lock), ..self }
    }

    /// That lock, for what has I/O in flight to homes or levels.
    #[must_use]
    pub fn lock(&self) -> Option<Arc<OwnedFd>> {
        self.lock.upgrade()
    }

    /// Names of the volumes, as the last view that was followed has them.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The owner of a volume's home, unless that is a file or device.
    fn owner(&self, record: &VolumeRecord) -> Option<&dyn RemoteHomes> {
        self.remote.as_deref().filter(|remote| remote.has(record))
    }

    /// Whether a volume writes through to its home.
    #[must_use]
    pub fn writes_through(&self, record: &VolumeRecord) -> bool {
        self.owner(record).is_some()
    }

    /// A home's name for reports: a path, or what its owner says.
    #[must_use]
    pub fn name(&self, record: &VolumeRecord) -> String {
        match self.owner(record) {
            Some(owner) => owner.name(record),
            // A check has no owners, and a URL is no path in the node's directory.
            None if crate::cloud::is_store(&record.path) => record.path.display().to_string(),
            None => self.path(record).display().to_string(),
        }
    }

    /// The file or device that is a volume's home, unless that has an owner.
    #[must_use]
    pub fn file(&self, record: &VolumeRecord) -> Option<PathBuf> {
        self.owner(record).is_none().then(|| self.path(record))
    }

    fn path(&self, record: &VolumeRecord) -> PathBuf {
        self.dir.join(&record.path)
    }

    /// What a shard is told of a volume's home, once that is ready to be opened; a file that is to
    /// be made is there then. May take long.
    ///
    /// # Errors
    /// A report of the home's owner, or when the file cannot be made.
    pub fn plan(&self, name: &Name, record: &VolumeRecord) -> Result<BackingPlan, Report> {
        match self.owner(record) {
            Some(owner) => owner.prepare(name, record).map(BackingPlan::Remote),
            None => {
                let create = record.phase == VolumePhase::Creating;
                if create {
                    self.make(name, record)?;
                }
                Ok(BackingPlan::File { path: self.path(record), create })
            }
        }
    }

    /// What the shards of a wide volume are told of its home, part by part. A file that is to be
    /// made is there then.
    ///
    /// # Errors
    /// A report when the file cannot be made.
    pub fn plan_parts(
        &self,
        name: &Name,
        record: &VolumeRecord,
        stripes: Stripes,
    ) -> Result<Vec<BackingPlan>, Report> {
        let (path, length) = (self.path(record), record.length);
        if record.phase == VolumePhase::Creating {
            self.make(name, record)?;
        }
        let loss = SharedLoss::default();
        let part = |index| BackingPlan::Part {
            path: path.clone(),
            part: PartPlan { stripes, index, length, loss: loss.clone() },
        };
        Ok((0..stripes.parts()).map(part).collect())
    }

    /// See [`RemoteHomes::watch`]; none for files and devices.
    #[must_use]
    pub fn watch(&self, record: &VolumeRecord) -> Option<Watch> {
        self.owner(record)?.watch(record)
    }

    /// A volume is gone, or was never served: its home goes, with its data where that is wanted. A
    /// device is left as it is, and so is what a link names, and data in a store; see
    /// [`RemoteHomes::remove`]. Says what still has data that was not wanted. May take long.
    ///
    /// # Errors
    /// A report when something is left.
    pub fn release(
        &self,
        record: &VolumeRecord,
        discard: bool,
    ) -> Result<Option<KeptData>, Report> {
        match self.owner(record) {
            Some(owner) => owner.release(record).map(|()| None),
            None if discard => discard_file(&self.path(record)),
            None => Ok(None),
        }
    }

    /// See [`RemoteHomes::identity`].
    #[must_use]
    pub fn identity(&self, record: &VolumeRecord) -> Option<StoreIdentity> {
        self.owner(record)?.identity(record)
    }

    /// See [`RemoteHomes::leftover`].
    #[must_use]
    pub fn leftover(&self, record: &VolumeRecord) -> Option<Report> {
        self.owner(record)?.leftover(record)
    }

    /// See [`RemoteHomes::taken_back`].
    #[must_use]
    pub fn taken_back(&self, name: &Name, record: &VolumeRecord) -> Option<u64> {
        self.owner(record)?.taken_back(name, record)
    }

    /// See [`RemoteHomes::close`].
    pub fn close(&self, record: &VolumeRecord) {
        if let Some(owner) = self.owner(record) {
            owner.close(record);
        }
    }

    /// See [`RemoteHomes::mark_deleted`].
    ///
    /// # Errors
    /// A report of the home's owner.
    pub fn mark_deleted(&self, deleted: &DeletedRecord) -> Result<(), Report> {
        self.owner(&deleted.record).map_or(Ok(()), |owner| owner.mark_deleted(deleted))
    }

    /// See [`RemoteHomes::undelete`].
    ///
    /// # Errors
    /// A report of the home's owner.
    pub fn undelete(&self, deleted: &DeletedRecord) -> Result<(), Report> {
        self.owner(&deleted.record).map_or(Ok(()), |owner| owner.undelete(deleted))
    }

    /// See [`RemoteHomes::remove`].
    ///
    /// # Errors
    /// A report of the home's owner.
    pub fn remove(&self, deleted: &DeletedRecord) -> Result<Option<Taken>, Report> {
        self.owner(&deleted.record).map_or(Ok(None), |owner| owner.remove(deleted))
    }

    /// See [`RemoteHomes::check_discard`].
    ///
    /// # Errors
    /// A report of the home's owner.
    pub fn check_discard(&self, record: &VolumeRecord) -> Result<(), Report> {
        self.owner(record).map_or(Ok(()), |owner| owner.check_discard(record))
    }

    /// See [`RemoteHomes::taken`].
    #[must_use]
    pub fn taken(&self, record: &VolumeRecord) -> Option<Taken> {
        self.owner(record)?.taken(record)
    }

    /// See [`RemoteHomes::found`].
    ///
    /// # Errors
    /// A report of the homes' owner.
    pub fn found(
        &self,
        path: &Path,
        key: Option<&KeySource>,
    ) -> Result<Option<FoundVolume>, Report> {
        self.remote.as_ref().map_or(Ok(None), |remote| remote.found(path, key))
    }

    /// See [`RemoteHomes::fetch_key`].
    pub fn fetch_key(&self, record: &VolumeRecord) {
        if let Some(owner) = self.owner(record) {
            owner.fetch_key(record);
        }
    }

    /// See [`RemoteHomes::drop_key`].
    pub fn drop_key(&self, record: &VolumeRecord) {
        if let Some(owner) = self.owner(record) {
            owner.drop_key(record);
        }
    }

    /// See [`RemoteHomes::missing_bytes`].
    ///
    /// # Errors
    /// Why that cannot be known.
    pub fn missing_bytes(&self, record: &VolumeRecord) -> Result<u64, String> {
        self.owner(record).map_or(Ok(0), |owner| owner.missing_bytes(record))
    }

    /// See [`RemoteHomes::forget`].
    ///
    /// # Errors
    /// A report of the home's owner.
    pub fn forget(&self, record: &VolumeRecord) -> Result<(), Report> {
        self.owner(record).map_or(Ok(()), |owner| owner.forget(record))
    }

    /// See [`RemoteHomes::snapshot_bytes`].
    ///
    /// # Errors
    /// A report of the homes' owner.
    pub fn snapshot_bytes(
        &self,
        source: &CloneSource,
        key: Option<&KeySource>,
    ) -> Result<u64, Report> {
        match &self.remote {
            Some(remote) => remote.snapshot_bytes(source, key),
            None => Err(no_clones(source)),
        }
    }

    /// See [`RemoteHomes::follow`].
    pub fn follow(&self, view: &View, uplink: &UplinkConfig) {
        self.names.follow(view);
        if let Some(remote) = &self.remote {
            remote.follow(view, uplink);
        }
    }

    /// See [`RemoteHomes::uplink`].
    #[must_use]
    pub fn uplink(&self) -> Option<Uplink> {
        self.remote.as_ref()?.uplink()
    }

    /// What is wrong with the home of a volume that is not served. May take long. Not for a volume
    /// in a store whose owner is not there.
    #[must_use]
    pub fn problem(&self, record: &VolumeRecord) -> Option<String> {
        if let Some(owner) = self.owner(record) {
            return owner.problem(record);
        }
        let path = self.path(record);
        if std::fs::metadata(&path).is_ok_and(|found| found.is_dir()) {
            return Some(format!("`{}` is a directory", path.display()));
        }
        let length = std::fs::File::open(&path).and_then(|mut file| file.seek(SeekFrom::End(0)));
        match length {
            Ok(length) if length < record.length => Some(format!(
                "`{}` has {length} bytes, the volume {}",
                path.display(),
                record.length
            )),
            Ok(_) => None,
            Err(cause) => Some(format!("`{}` cannot be opened: {cause}", path.display())),
        }
    }
}

fn no_clones(source: &CloneSource) -> Report {
    Report::new(ReportKind::Invalid, format!("cannot clone `{source}`"))
        .cause("this node has no volumes in object stores")
        .state("nothing was changed")
        .hint("clone it on a node that has")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::control::tests::MockNode;
    use crate::control::{DeleteData, LeftData, UndeleteRequest, VolumeCreate, VolumePatch};
    use crate::error::ReportKind;
    use layby_engine::backing::RemoteBacking;
    use layby_engine::control::CommandError;
    use layby_engine::io::Waker;
    use std::sync::Mutex;

    /// Owns the homes of volumes of class `bulk`, and notes what it is told.
    #[derive(Debug, Default)]
    pub(crate) struct Owner {
        log: Mutex<Vec<String>>,
        refuses: Mutex<bool>,
        /// The next preparation ends in a panic.
        pub(crate) panics: Mutex<bool>,
        taken: Mutex<Option<Taken>>,
        watch: Mutex<Option<Watch>>,
        /// The next mark is answered when the other end is gone.
        pub(crate) silence: Mutex<Option<std::sync::mpsc::Receiver<()>>>,
    }

    /// Names a store that no mock opens.
    #[derive(Debug)]
    pub(crate) struct Opener;

    impl OpenRemote for Opener {
        fn name(&self) -> String {
            "far".into()
        }
        fn open(&self, _: Waker) -> Result<RemoteBacking, CommandError> {
            panic!("a mock shard opens nothing")
        }
    }

    impl Owner {
        fn note(&self, line: String) {
            self.log.lock().expect("one test").push(line);
        }
        pub(crate) fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.log.lock().expect("one test"))
        }
        /// Volumes say from now on what is sent there.
        pub(crate) fn is_watched(&self) -> tokio::sync::watch::Sender<Option<layby_cloud::Said>> {
            let (says, watch) = Watch::new(|_, _| {});
            *self.watch.lock().expect("one test") = Some(watch);
            says
        }
        pub(crate) fn was_told(&self, line: &str) -> bool {
            self.log.lock().expect("one test").iter().any(|told| told == line)
        }
        fn refuse(&self, whether: bool) {
            *self.refuses.lock().expect("one test") = whether;
        }
        fn refused(&self, cause: &str) -> Result<(), Report> {
            match *self.refuses.lock().expect("one test") {
                true => Err(Report::new(ReportKind::Unreachable, "cannot").cause(cause)),
                false => Ok(()),
            }
        }
    }

    impl RemoteHomes for Owner {
        fn has(&self, record: &VolumeRecord) -> bool {
            record.class.as_str() == "bulk"
        }
        fn name(&self, record: &VolumeRecord) -> String {
            format!("bucket/{}", record.id)
        }
        fn prepare(
            &self,
            name: &Name,
            record: &VolumeRecord,
        ) -> Result<Arc<dyn OpenRemote>, Report> {
            self.note(format!("prepare {name} {:?}", record.phase));
            let panics = std::mem::take(&mut *self.panics.lock().expect("one test"));
            assert!(!panics, "no thread can be made");
            match *self.refuses.lock().expect("one test") {
                true => Err(Report::new(ReportKind::InUse, "cannot open the home").cause("owned")),
                false => Ok(Arc::new(Opener)),
            }
        }
        fn release(&self, record: &VolumeRecord) -> Result<(), Report> {
            self.note(format!("release {} {:?}", record.id, record.phase));
            Ok(())
        }
        fn close(&self, record: &VolumeRecord) {
            self.note(format!("close {}", record.id));
        }
        fn mark_deleted(&self, deleted: &DeletedRecord) -> Result<(), Report> {
            self.note(format!("mark {}", deleted.record.id));
            let silence = self.silence.lock().expect("one test").take();
            let _ = silence.map(|silence| silence.recv());
            Ok(())
        }
        fn undelete(&self, deleted: &DeletedRecord) -> Result<(), Report> {
            self.note(format!("undelete {}", deleted.record.id));
            self.refused("its removal has begun")
        }
        fn remove(&self, deleted: &DeletedRecord) -> Result<Option<Taken>, Report> {
            self.note(format!("remove {}", deleted.record.id));
            self.refused("no answer").map(|()| None)
        }
        fn taken(&self, _: &VolumeRecord) -> Option<Taken> {
            self.taken.lock().expect("one test").clone()
        }
        fn forget(&self, record: &VolumeRecord) -> Result<(), Report> {
            self.note(format!("forget {}", record.id));
            Ok(())
        }
        fn watch(&self, _: &VolumeRecord) -> Option<Watch> {
            self.watch.lock().expect("one test").clone()
        }
        fn follow(&self, _: &View, _: &UplinkConfig) {}
        fn uplink(&self) -> Option<Uplink> {
            None
        }
        fn problem(&self, _: &VolumeRecord) -> Option<String> {
            None
        }
    }

    fn name(text: &str) -> Name {
        text.parse().expect("a good name")
    }

    pub(crate) fn wanted(volume: &str) -> VolumeCreate {
        let text = format!("{{\"name\":\"{volume}\",\"size\":\"1MiB\",\"class\":\"bulk\"}}");
        serde_json::from_str(&text).expect("JSON")
    }

    pub(crate) fn with_owner(text: &str) -> (Arc<Owner>, MockNode) {
        let owner = Arc::new(Owner::default());
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        (owner.clone(), MockNode::with_homes(dir, text, Some(owner)))
    }

    /// Goal: a volume of an owner's is prepared before its shard hears of it, writes through for
    /// life, and is released after its shard has let go; files are files as ever. Method: creates,
    /// a change, a refusal, a deletion and a restart over mock shards.
    #[tokio::test]
    async fn owners_are_asked_in_order() {
        let (owner, node) = with_owner("");
        node.control
            .volume_create(wanted("far"), crate::control::Authority::Owner)
            .await
            .expect("the owner has it");
        let plan = |node: &MockNode, id: u32| {
            node.shards.iter().find_map(|shard| {
                let state = shard.state();
                let plan = state.volumes.get(&id)?;
                let is_remote = matches!(plan.backing, BackingPlan::Remote(_));
                Some((is_remote, plan.spec.write_through))
            })
        };
        assert_eq!(plan(&node, 0), Some((false, false)), "the default volume is a file");
        assert_eq!(plan(&node, 1), Some((true, true)));
        let patch = VolumePatch { read_only: Some(true), ..VolumePatch::default() };
        node.control.volume_set(&name("far"), patch).await.expect("a change");
        owner.refuse(true);
        let report = node
            .control
            .volume_create(wanted("other"), crate::control::Authority::Owner)
            .await
            .expect_err("refused");
        assert_eq!(report.kind, ReportKind::InUse, "{report}");
        owner.refuse(false);
        let deleted = node.control.volume_delete(&name("far"), DeleteData::Keep).await;
        deleted.expect("its shard lets go");
        let expected = [
            "prepare far Creating",
            "prepare other Creating",
            "release 2 Creating",
            "release 1 Ready",
        ];
        assert_eq!(owner.take(), expected);
    }

    /// Goal: a deleted volume is nobody's to see, comes back under its name and a new number, or
    /// under another name, and goes for good when it is told to; what fails changes nothing, and a
    /// restart forgets nothing. Method: both ways over mock shards, with an owner that refuses.
    #[tokio::test]
    async fn deleted_volumes_wait_and_come_back() {
        let (owner, node) = with_owner("");
        let control = &node.control;
        control
            .volume_create(wanted("far"), crate::control::Authority::Owner)
            .await
            .expect("the owner has it");
        let deleted = control.volume_delete(&name("far"), DeleteData::Delete).await;
        deleted.expect("its shard lets go");
        assert_eq!(owner.take(), ["prepare far Creating", "close 1"], "nothing is removed");
        assert!(node.shards.iter().any(|s| s.state().log.contains(&"remove 1 false".to_owned())));
        control
            .volume_create(wanted("far"), crate::control::Authority::Owner)
            .await
            .expect("the name is free");
        let back = |new_name| UndeleteRequest { number: None, new_name };
        let taken = control.volume_undelete(&name("far"), back(None)).await.expect_err("taken");
        assert!(taken.hint.contains("--as"), "{taken}");
        owner.refuse(true);
        let refused = control.volume_undelete(&name("far"), back(Some(name("old")))).await;
        assert!(refused.expect_err("it is refused").cause.contains("has begun"));
        assert_eq!(control.deleted_volumes().await.len(), 1, "it is where it was");
        owner.refuse(false);
        let view = control.volume_undelete(&name("far"), back(Some(name("old")))).await;
        view.expect("it comes back");
        let record = control.view().catalog.volumes["old"].clone();
        assert_eq!((record.id, record.local, record.phase), (3, Some(1), VolumePhase::Ready));
        assert!(control.deleted_volumes().await.is_empty());
        assert!(owner.take().ends_with(&["undelete 1".into(), "prepare old Ready".into()]));
        owner.refuse(true);
        let now =
            control.volume_delete(&name("old"), DeleteData::Now).await.expect_err("no answer");
        assert_eq!(now.kind, ReportKind::Unreachable);
        assert!(!control.view().catalog.volumes.contains_key("old"), "it is served no more");
        let left = control.deleted_volumes().await;
        assert!(left[0].problem.as_ref().is_some_and(|why| why.contains("no answer")), "{left:?}");
        owner.refuse(false);
        let again = control.volume_delete(&name("old"), DeleteData::Keep).await;
        assert_eq!(again.expect_err("it is deleted").kind, ReportKind::NotFound);
        control.volume_delete(&name("old"), DeleteData::Now).await.expect("it is removed");
        assert!(control.deleted_volumes().await.is_empty());
        let kept = crate::catalog::Catalog::load(node.dir.path()).expect("sound").expect("there");
        assert!(kept.deleted.is_empty() && !kept.volumes.contains_key("old"));
        let gone = control.volume_undelete(&name("old"), back(None)).await.expect_err("gone");
        assert_eq!(gone.kind, ReportKind::NotFound);
    }

    /// Goal: what another node has is only forgotten, and bytes that are in no store go only when
    /// that is asked for. Method: both words over mock shards.
    #[tokio::test]
    async fn what_is_lost_is_thrown_away_by_a_clear_word() {
        let (owner, node) = with_owner("");
        node.control
            .volume_create(wanted("far"), crate::control::Authority::Owner)
            .await
            .expect("the owner has it");
        let taken =
            Taken { by: "node 7 has the volume".into(), bytes_lost: 1088 << 10, unknown: None };
        *owner.taken.lock().expect("one test") = Some(taken.clone());
        let refused = node.control.volume_delete(&name("far"), DeleteData::Keep).await;
        let refused = refused.expect_err("bytes would be lost");
        assert!(refused.cause.contains("1088KiB that were written here"), "{refused}");
        assert!(refused.hint.contains("--data delete"), "{refused}");
        let gone = node.control.volume_delete(&name("far"), DeleteData::Delete).await;
        assert_eq!(gone.expect("that is a clear word"), Some(LeftData::Taken(taken)));
        assert_eq!(owner.take(), ["prepare far Creating", "forget 1"]);
        assert!(node.control.view().catalog.deleted.is_empty());
    }

    /// Goal: a node that is stopped and started often counts a grace to its end all the same.
    /// Method: virtual time, lives shorter than what lies between two notes, clean stops.
    #[tokio::test(start_paused = true)]
    async fn a_clean_stop_forgets_no_time() {
        const GRACE: &str = "[cloud]\ngrace = \"3h\"\n";
        let (owner, mut node) = with_owner(GRACE);
        node.control
            .volume_create(wanted("far"), crate::control::Authority::Owner)
            .await
            .expect("the owner has it");
        let deleted = node.control.volume_delete(&name("far"), DeleteData::Delete).await;
        deleted.expect("its shard lets go");
        for life in 1..=3 {
            let running = crate::control::attend_deleted(Arc::clone(&node.control));
            let _ = tokio::time::timeout(std::time::Duration::from_secs(300), running).await;
            node.control.stop().await.expect("the shards stop");
            let kept = crate::catalog::Catalog::load(node.dir.path()).expect("sound");
            let waited = kept.expect("there").deleted[0].waited_seconds;
            assert!((300 * life - life..=300 * life).contains(&waited), "{waited} in life {life}");
            node = MockNode::with_homes(node.dir, GRACE, Some(owner.clone()));
        }
    }

    /// Goal: a deleted volume's objects go when the node has lived through its grace, whatever any
    /// clock says, and not before; what fails is tried again. Method: virtual time, a clock that
    /// was wrong by years at the deletion, a restart in between, an owner that refuses.
    #[tokio::test(start_paused = true)]
    async fn only_the_nodes_own_time_ends_a_grace() {
        const GRACE: &str = "[cloud]\ngrace = \"3h\"\n";
        let (owner, node) = with_owner(GRACE);
        node.control
            .volume_create(wanted("far"), crate::control::Authority::Owner)
            .await
            .expect("the owner has it");
        let deleted = node.control.volume_delete(&name("far"), DeleteData::Delete).await;
        deleted.expect("its shard lets go");
        let minute = std::time::Duration::from_secs(60);
        let attend = async |node: &MockNode, time: std::time::Duration| {
            let running = crate::control::attend_deleted(Arc::clone(&node.control));
            let _ = tokio::time::timeout(time, running).await;
        };
        attend(&node, 120 * minute).await;
        assert!(owner.take().ends_with(&["mark 1".to_owned()]), "it is marked once");
        let mut catalog = node.control.view().catalog.clone();
        let waited = catalog.deleted[0].waited_seconds;
        assert!((6600..=7200).contains(&waited), "{waited}");
        catalog.deleted[0].at_unix = 5;
        catalog.save(node.dir.path()).expect("a writable directory");
        let node = MockNode::with_homes(node.dir, GRACE, Some(owner.clone()));
        attend(&node, 30 * minute).await;
        assert_eq!(owner.take(), ["mark 1"], "a new life says it again");
        owner.refuse(true);
        attend(&node, 90 * minute).await;
        let tries = owner.take();
        assert!(tries.len() > 1 && tries.iter().all(|line| line == "remove 1"), "{tries:?}");
        assert!(tries.len() < 50, "at growing intervals");
        owner.refuse(false);
        attend(&node, 30 * minute).await;
        assert_eq!(owner.take(), ["remove 1"]);
        assert!(node.control.view().catalog.deleted.is_empty());
    }
}
