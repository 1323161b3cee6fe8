//! Where volumes' blocks live for good: the one place that tells files from homes of another kind.
//!
//! How: a volume's record is of a file or device, unless the owner of remote homes says that it is
//! his. He prepares a home before a shard opens it and is told when the shard has let go of it.
//! Invariant: a remote home is written through, for life; nobody else touches its data.
//! Cost: nothing on the data path; what an owner does may take long, so it is called off the
//! runtime's threads. Not for: levels, which are always files and devices; see `levels`.

mod identity;
mod making;
mod marks;
mod removing;

pub use removing::KeptData;

use crate::catalog::{DeletedRecord, StoreIdentity, VolumePhase, VolumeRecord};
use crate::config::{CloneSource, Config, KeySource, Name, UplinkConfig};
use crate::control::View;
use crate::disk_file;
use crate::error::{Report, ReportKind};
use crate::held;
use crate::names::Names;
use identity::FoundHome;
use layby_cloud::Watch;
use layby_cloud::uplink::Uplink;
use layby_engine::backing::{PartPlan, SharedLoss};
use layby_engine::control::{BackingPlan, OpenRemote};
use layby_types::{ErrorKind, Stripes};
use removing::discard_file;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock, Weak};

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

    /// Which files of a volume are missing that the node needs to serve it, in words; none where
    /// all are there. What they held may be in no store.
    fn lost_files(&self, _record: &VolumeRecord) -> Option<String> {
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
    /// What was found at volumes' paths, by their numbers.
    found: Arc<Mutex<BTreeMap<u32, FoundHome>>>,
    /// Volumes whose device may be another one than before.
    accepted: Arc<BTreeSet<Name>>,
    /// Volumes whose file may be another node's.
    accepted_files: Arc<BTreeSet<Name>>,
    /// Whose they are, once that is known.
    node: Arc<RwLock<Option<marks::Owner>>>,
}

/// What a start does about another device than a volume's: it is not opened.
const OTHER: ErrorKind = ErrorKind::Invalid;

/// What is said of a volume whose file lies in a memory file system.
pub(crate) const IN_MEMORY: &str =
    "lies in a memory file system (tmpfs): its blocks are lost when the machine stops";

impl Homes {
    /// Those of the node in `dir`, where some may have an owner.
    #[must_use]
    pub fn new(dir: &Path, remote: Option<Arc<dyn RemoteHomes>>) -> Homes {
        Homes {
            dir: dir.to_owned(),
            remote,
            names: Names::default(),
            lock: Weak::new(),
            found: Arc::default(),
            accepted: Arc::default(),
            accepted_files: Arc::default(),
            node: Arc::default(),
        }
    }

    /// Those of a node that starts, where some have an owner, and the devices of some volumes may
    /// be others than before.
    #[must_use]
    pub fn of(config: &Config, remote: Arc<dyn RemoteHomes>) -> Homes {
        let accepted = Arc::new(config.accepted_devices.clone());
        let accepted_files = Arc::new(config.accepted_files.clone());
        Homes { accepted, accepted_files, ..Homes::new(&config.dir, Some(remote)) }
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

    /// Refuses to open, make or remove files where the node's directory is elsewhere by now.
    fn check_held(&self, error: impl FnOnce() -> String) -> Result<(), Report> {
        held::check(&self.dir).map_err(|moved| moved.report(error()))
    }

    fn unremoved(&self, record: &VolumeRecord) -> String {
        format!("cannot remove what the node keeps of `{}`", self.name(record))
    }

    /// What a shard is told of a volume's home, once that is ready to be opened; a file that is to
    /// be made is there then. May take long.
    ///
    /// # Errors
    /// A report of the home's owner, or when the file cannot be made.
    pub fn plan(&self, name: &Name, record: &VolumeRecord) -> Result<BackingPlan, Report> {
        self.check_held(|| format!("cannot open the backing store of volume `{name}`"))?;
        match self.owner(record) {
            Some(owner) => owner.prepare(name, record).map(BackingPlan::Remote),
            None => {
                let create = record.phase == VolumePhase::Creating;
                let path = self.path(record);
                Ok(match self.ready(name, record)? {
                    Some(cause) => BackingPlan::Refused { path, kind: OTHER, cause, part: None },
                    None => BackingPlan::File { path, create },
                })
            }
        }
    }

    /// Has a volume's file be there, and be this node's, before a shard opens it; else says why it
    /// is not the volume's.
    fn ready(&self, name: &Name, record: &VolumeRecord) -> Result<Option<String>, Report> {
        let is_foreign = self.other_node(Some(name), record).is_some();
        if record.phase == VolumePhase::Creating && !is_foreign {
            self.make(name, record)?;
        }
        Ok(self.look(name, record).or_else(|| {
            let cause = self.mark(name, record).err()?;
            // Where another node was faster, the mark says more.
            Some(self.look(name, record).unwrap_or(cause))
        }))
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
        self.check_held(|| format!("cannot open the backing store of volume `{name}`"))?;
        let refusal = self.ready(name, record)?;
        let part = |part| match refusal.clone() {
            Some(cause) => {
                let (path, part) = (self.path(record), Some(part));
                BackingPlan::Refused { path, kind: OTHER, cause, part }
            }
            None => BackingPlan::Part { path: self.path(record), part },
        };
        Ok(part_plans(record, stripes).map(part).collect())
    }

    /// See [`RemoteHomes::watch`]; none for files and devices.
    #[must_use]
    pub fn watch(&self, record: &VolumeRecord) -> Option<Watch> {
        self.owner(record)?.watch(record)
    }

    /// A volume is gone, or was never served: its home goes, with its data where that is wanted. A
    /// device is left as it is, and so is what a link names, another node's file or one that does
    /// not say, and data in a store; see [`RemoteHomes::remove`]. Says what still has data that was
    /// not wanted. May take long.
    ///
    /// # Errors
    /// A report when something is left.
    pub fn release(
        &self,
        record: &VolumeRecord,
        discard: bool,
    ) -> Result<Option<KeptData>, Report> {
        self.check_held(|| self.unremoved(record))?;
        match self.owner(record) {
            Some(owner) => owner.release(record).map(|()| None),
            None if self.other_node(None, record).is_some() => Ok(discard.then(|| KeptData {
                path: self.path(record),
                is_device: false,
                link: None,
            })),
            None => {
                self.unmark(record);
                if discard { discard_file(&self.path(record)) } else { Ok(None) }
            }
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

    /// See [`RemoteHomes::lost_files`].
    #[must_use]
    pub fn lost_files(&self, record: &VolumeRecord) -> Option<String> {
        self.owner(record)?.lost_files(record)
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
        self.check_held(|| self.unremoved(&deleted.record))?;
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
        self.check_held(|| self.unremoved(record))?;
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
        let other = self.other_device(record).or_else(|| self.other_node(None, record));
        if let Some(other) = other {
            return Some(other);
        }
        let length =
            disk_file::open_to_read(&path).and_then(|mut file| file.seek(SeekFrom::End(0)));
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

/// The parts of a wide volume, which share the loss of their home.
fn part_plans(record: &VolumeRecord, stripes: Stripes) -> impl Iterator<Item = PartPlan> + use<> {
    let (length, loss) = (record.length, SharedLoss::default());
    let part = move |index| PartPlan { stripes, index, length, loss: loss.clone() };
    (0..stripes.parts()).map(part)
}

fn no_clones(source: &CloneSource) -> Report {
    Report::new(ReportKind::Invalid, format!("cannot clone `{source}`"))
        .cause("this node has no volumes in object stores")
        .state("nothing was changed")
        .hint("clone it on a node that has")
}

#[cfg(test)]
pub(crate) mod tests;
