//! Where volumes' blocks live for good: the one place that tells files from homes of another kind.
//!
//! How: a volume's record is of a file or device, unless the owner of remote homes says that it is
//! his. He prepares a home before a shard opens it and is told when the shard has let go of it.
//! Invariant: a remote home is written through, for life; nobody else touches its data.
//! Cost: nothing on the data path; what an owner does may take long, so it is called off the
//! runtime's threads. Not for: levels, which are always files and devices; see `levels`.

use crate::catalog::{VolumePhase, VolumeRecord};
use crate::config::{CloneSource, KeySource, Name, UplinkConfig};
use crate::control::View;
use crate::control::volumes::discard_file;
use crate::error::{Report, ReportKind};
use layby_cloud::Watch;
use layby_cloud::uplink::Uplink;
use layby_engine::backing::{PartPlan, SharedLoss};
use layby_engine::control::{BackingPlan, OpenRemote};
use layby_engine::io::{OpenError, OpenMode, open_disk};
use layby_types::Stripes;
use std::fmt;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

    /// No shard holds the home any more, or none ever did: the volume was deleted, or could not be
    /// served. With `discard` its data goes, too. Repeated after a crash in between.
    ///
    /// # Errors
    /// A report when something is left.
    fn release(&self, record: &VolumeRecord, discard: bool) -> Result<(), Report>;

    /// Whether a volume's data may go. May take long.
    ///
    /// # Errors
    /// A report when other volumes rest on it.
    fn check_discard(&self, _record: &VolumeRecord) -> Result<(), Report> {
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
}

impl Homes {
    /// Those of the node in `dir`, where some may have an owner.
    #[must_use]
    pub fn new(dir: &Path, remote: Option<Arc<dyn RemoteHomes>>) -> Homes {
        Homes { dir: dir.to_owned(), remote }
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
            None => self.path(record).display().to_string(),
        }
    }

    fn path(&self, record: &VolumeRecord) -> PathBuf {
        self.dir.join(&record.path)
    }

    /// What a shard is told of a volume's home, once that is ready to be opened. May take long.
    ///
    /// # Errors
    /// A report of the home's owner.
    pub fn plan(&self, name: &Name, record: &VolumeRecord) -> Result<BackingPlan, Report> {
        match self.owner(record) {
            Some(owner) => owner.prepare(name, record).map(BackingPlan::Remote),
            None => {
                let create = record.phase == VolumePhase::Creating;
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
            make_file(&path, length).map_err(|refused| {
                Report::new(refused.kind.into(), format!("cannot make the home of `{name}`"))
                    .cause(refused.to_string())
                    .state("nothing else was changed")
                    .hint("make room or correct the permissions, then repeat the command")
            })?;
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
    /// device is left as it is. May take long.
    ///
    /// # Errors
    /// A report when something is left.
    pub fn release(&self, record: &VolumeRecord, discard: bool) -> Result<(), Report> {
        match self.owner(record) {
            Some(owner) => owner.release(record, discard),
            None if discard => discard_file(&self.path(record)),
            None => Ok(()),
        }
    }

    /// See [`RemoteHomes::check_discard`].
    ///
    /// # Errors
    /// A report of the home's owner.
    pub fn check_discard(&self, record: &VolumeRecord) -> Result<(), Report> {
        self.owner(record).map_or(Ok(()), |owner| owner.check_discard(record))
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
        if let Some(remote) = &self.remote {
            remote.follow(view, uplink);
        }
    }

    /// See [`RemoteHomes::uplink`].
    #[must_use]
    pub fn uplink(&self) -> Option<Uplink> {
        self.remote.as_ref()?.uplink()
    }

    /// What is wrong with the home of a volume that is not served. May take long.
    #[must_use]
    pub fn problem(&self, record: &VolumeRecord, block_bytes: u32) -> Option<String> {
        if let Some(owner) = self.owner(record) {
            return owner.problem(record);
        }
        if crate::cloud::is_store(&record.path) {
            return crate::cloud::local_problem(&self.dir, record, block_bytes);
        }
        let path = self.path(record);
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

/// Makes a file of a length, unless there is one.
fn make_file(path: &Path, length: u64) -> Result<(), OpenError> {
    let mode = OpenMode { create_length: Some(length), ..OpenMode::default() };
    open_disk(path, mode).map(drop)
}

fn no_clones(source: &CloneSource) -> Report {
    Report::new(ReportKind::Invalid, format!("cannot clone `{source}`"))
        .cause("this node has no volumes in object stores")
        .state("nothing was changed")
        .hint("clone it on a node that has")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::MockNode;
    use crate::control::{DeleteData, VolumeCreate, VolumePatch};
    use crate::error::ReportKind;
    use layby_engine::backing::RemoteBacking;
    use layby_engine::control::CommandError;
    use layby_engine::io::Waker;
    use std::sync::Mutex;

    /// Owns the homes of volumes of class `bulk`, and notes what it is told.
    #[derive(Debug, Default)]
    struct Owner {
        log: Mutex<Vec<String>>,
        refuses: Mutex<bool>,
    }

    #[derive(Debug)]
    struct Opener;

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
            match *self.refuses.lock().expect("one test") {
                true => Err(Report::new(ReportKind::InUse, "cannot open the home").cause("owned")),
                false => Ok(Arc::new(Opener)),
            }
        }
        fn release(&self, record: &VolumeRecord, discard: bool) -> Result<(), Report> {
            self.note(format!("release {} {:?} {discard}", record.id, record.phase));
            Ok(())
        }
        fn watch(&self, _: &VolumeRecord) -> Option<layby_cloud::Watch> {
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

    /// Goal: a volume of an owner's is prepared before its shard hears of it, writes through for
    /// life, and is released after its shard has let go; files are files as ever. Method: creates,
    /// a change, a refusal, a deletion and a restart over mock shards.
    #[tokio::test]
    async fn owners_are_asked_in_order() {
        let owner = Arc::new(Owner::default());
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let node = MockNode::with_homes(dir, "", Some(owner.clone()));
        let name = |text: &str| -> Name { text.parse().expect("a good name") };
        let wanted = |volume: &str| -> VolumeCreate {
            let text = format!("{{\"name\":\"{volume}\",\"size\":\"1MiB\",\"class\":\"bulk\"}}");
            serde_json::from_str(&text).expect("JSON")
        };
        node.control.volume_create(wanted("far")).await.expect("the owner has it");
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
        *owner.refuses.lock().expect("one test") = true;
        let report = node.control.volume_create(wanted("other")).await.expect_err("refused");
        assert_eq!(report.kind, ReportKind::InUse, "{report}");
        *owner.refuses.lock().expect("one test") = false;
        let deleted = node.control.volume_delete(&name("far"), DeleteData::Delete).await;
        deleted.expect("its shard lets go");
        let log = owner.log.lock().expect("one test").clone();
        let expected = [
            "prepare far Creating",
            "prepare other Creating",
            "release 2 Creating false",
            "release 1 Ready true",
        ];
        assert_eq!(log, expected);
    }
}
