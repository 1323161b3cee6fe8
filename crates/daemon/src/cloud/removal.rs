//! Volumes that go from their stores: marked as deleted, brought back, removed.
//!
//! How: [`Removal`] holds the conversation with the store; here its requests are performed, and
//! what the node keeps of the volume goes when nothing needs it any more.
//! Invariant: a volume's journal and map stay as long as they hold what its store lacks, and it can
//! come back. What another node, or another copy of this node's directory, has served since is not
//! changed. A journal that is missing may be on a disk that is away: then nothing of the volume
//! goes but by a command that gives its data up.
//! Cost: two requests per word, and few for all objects. Not for: files and devices; see `homes`.

use super::ask::STOPPED;
use super::files::{Present, present, remove_files};
use super::{CloudHomes, exchanged, gone, older_copy, url_of};
use crate::catalog::{DeletedRecord, StoreIdentity, VolumePhase, VolumeRecord};
use crate::config::Name;
use crate::error::{Report, ReportKind};
use crate::homes::Taken;
use layby_cloud::{
    Deleted, Fault, FaultKind, Goal, Link, Paths, Removal, RemovalError, Snapshot, Step, Store,
    Superblock, VolumeUuid, inspect, read_map, sessions_of, volume_of,
};

/// What to do about clones that keep a volume's data.
pub(super) const HAS_CLONES: &str = "delete each at the place that is named, with --data now; or \
                                     keep the data with --data keep. In a copy of a bucket the \
                                     marks are those of the first one's clones, and stay";

/// The clones of a volume, by their names and places.
pub(super) fn clones_of(snapshots: &[Snapshot]) -> Option<String> {
    let clones = snapshots.iter().flat_map(|snapshot| &snapshot.clones);
    let names: Vec<String> =
        clones.map(|clone| format!("`{}` ({})", clone.name, clone.url)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

impl CloudHomes {
    /// What is at a volume's place, once the removal of one that this node deleted there, and that
    /// broke off, is finished for a new one; a deleted one only where this node is to take it.
    pub(super) fn finish_removal(
        &self,
        store: &Store,
        found: Option<Superblock>,
        is_new: bool,
        takes: bool,
    ) -> Result<Option<Superblock>, Fault> {
        let Some(block) = found else { return Ok(None) };
        let Some(deleted) = block.deleted else { return Ok(Some(block)) };
        let is_ours = block.node == self.node().0.to_string();
        if is_new && deleted.has_begun() && is_ours {
            let volume = block.volume.parse().ok();
            let removal = Removal::new(self.node_uuid(), volume, Goal::Remove(deleted));
            let removed = self.converse(store, removal);
            return removed.map(|()| None).map_err(|cause| match cause {
                RemovalError::Store(fault) => fault,
                other => Fault { kind: FaultKind::Denied, cause: other.to_string() },
            });
        }
        if !is_ours && !deleted.has_begun() && takes {
            return Ok(Some(block));
        }
        let how = match deleted.has_begun() {
            true => "not to the end",
            false => "and can bring it back until its grace is over",
        };
        let cause = format!("node {} deleted the volume there, {how}", block.node);
        Err(Fault { kind: FaultKind::Condition, cause })
    }

    /// Talks with a volume's store until it is over.
    fn converse(&self, store: &Store, mut removal: Removal) -> Result<(), RemovalError> {
        loop {
            match removal.step() {
                Step::Ask(request) => removal.on_end(self.insist(store, request)),
                Step::AskOnce(request, pause) => {
                    removal.on_end(self.attempt_after(store, request, pause));
                }
                Step::TellBase(base) => {
                    let is_told = store.beside(&base.url).is_ok_and(|beside| {
                        self.unmark(&base.url, &base.snapshot, store.url(), &beside)
                    });
                    removal.on_base(is_told);
                }
                Step::Over(result) => return result,
            }
        }
    }

    fn converse_about(&self, deleted: &DeletedRecord, goal: Goal) -> Result<(), RemovalError> {
        let denied = |cause| RemovalError::Store(Fault { kind: FaultKind::Denied, cause });
        let store = self.store_of(&deleted.record).map_err(denied)?;
        // The map file may know a session that the record does not: of a volume that was being
        // opened, or deleted by an earlier build.
        let mut deleted = deleted.clone();
        deleted.learn(self.identity_of(&deleted.record));
        let volume = deleted.volume.as_ref().and_then(|volume| volume.parse().ok());
        let removal = Removal::new(self.node_uuid(), volume, goal);
        self.converse(&store, removal.with_sessions(deleted.sessions.clone()))
    }

    fn node_uuid(&self) -> VolumeUuid {
        VolumeUuid(self.node().0.0)
    }

    pub(super) fn store_of(&self, record: &VolumeRecord) -> Result<Store, String> {
        let key = self.keys.read(record.key.as_ref())?;
        Ok(Store::open(&url_of(record))?.sealed(key))
    }

    /// See [`crate::homes::RemoteHomes::identity`].
    pub(super) fn identity_of(&self, record: &VolumeRecord) -> Option<StoreIdentity> {
        let map = read_map(&self.paths(record).map).ok()?;
        let volume = volume_of(&map)?.to_string();
        Some(StoreIdentity { volume, sessions: sessions_of(&map) })
    }

    /// See [`crate::homes::RemoteHomes::mark_deleted`].
    pub(super) fn say_deleted(&self, deleted: &DeletedRecord) -> Result<(), Report> {
        self.endings.check(&deleted.record)?;
        let told = self.converse_about(deleted, Goal::Mark(word(deleted)));
        told.map_err(|cause| {
            let url = url_of(&deleted.record);
            let error = format!("cannot say at `{url}` that volume `{}` is deleted", deleted.name);
            refusal(error, &cause).state("the node serves it no more, and goes on trying")
        })?;
        match self.is_whole_in_store(&deleted.record) {
            true => self.remove_local(&deleted.record),
            false => Ok(()),
        }
    }

    /// Whether the store has all of a volume that is not served, its size included, so that the
    /// node needs nothing of its own to bring it back.
    fn is_whole_in_store(&self, record: &VolumeRecord) -> bool {
        let store = self.store_of(record).ok();
        let found = store.and_then(|store| self.superblock(&store).ok()).flatten();
        let is_long = found.is_some_and(|block| block.size_bytes == record.length);
        is_long && self.missing_bytes_of(record) == Ok(0)
    }

    /// See [`crate::homes::RemoteHomes::undelete`].
    pub(super) fn unmark_deleted(&self, deleted: &DeletedRecord) -> Result<(), Report> {
        let error = || format!("cannot bring back volume `{}`", deleted.name);
        self.endings.check(&deleted.record).map_err(|e| Report { error: error(), ..e })?;
        let paths = self.paths(&deleted.record);
        let missing = match present(&paths) {
            Ok(Present::Removing) => {
                self.remove_local(&deleted.record)?;
                None
            }
            Ok(Present::MapAlone) => Some(journal_gone(&paths)),
            Ok(Present::Neither) if self.identities.is_kept(&deleted.record) => Some(gone(&paths)),
            Ok(_) => None,
            Err(cause) => Some(cause),
        };
        if let Some(cause) = missing {
            return Err(Report::new(ReportKind::Corrupt, error())
                .cause(cause)
                .state("nothing was changed")
                .hint(MISSING));
        }
        let told = self.converse_about(deleted, Goal::Unmark);
        told.map_err(|cause| refusal(error(), &cause).state("nothing was changed"))
    }

    /// See [`crate::homes::RemoteHomes::remove`].
    pub(super) fn remove(&self, deleted: &DeletedRecord) -> Result<Option<Taken>, Report> {
        use RemovalError::{OtherCopy, OtherNode, OtherVolume};
        let (name, url) = (&deleted.name, url_of(&deleted.record));
        self.endings.check(&deleted.record)?;
        let by = match self.converse_about(deleted, Goal::Remove(word(deleted))) {
            Ok(()) => None,
            // What is there is not this volume, or another's to delete.
            Err(other @ (OtherNode(_) | OtherCopy(_) | OtherVolume(_))) => Some(other.to_string()),
            Err(cause) => {
                let error = format!("cannot remove the objects of `{name}` from `{url}`");
                return Err(refusal(error, &cause).state(
                    "the node serves it no more; some of its objects may be left, and the node \
                     goes on trying",
                ));
            }
        };
        let taken = by.map(|by| self.taken_from(&deleted.record, by));
        self.remove_local(&deleted.record)?;
        match &taken {
            None => tracing::info!(%name, url, "a deleted volume's objects are removed"),
            Some(taken) => tracing::warn!(
                %name, url, cause = taken.by,
                "a deleted volume is forgotten here, and its objects stay",
            ),
        }
        Ok(taken)
    }

    /// See [`crate::homes::RemoteHomes::taken`]. A volume that is served knows that it was lost.
    pub(super) fn taken_by(&self, record: &VolumeRecord) -> Option<Taken> {
        let watch = self.watches().get(&record.id).map(|watched| watched.watch.clone());
        if watch.as_ref().is_some_and(|watch| !self.is_lost(watch)) {
            return None;
        }
        let said = watch.and_then(|watch| watch.said());
        let lost = said.as_ref().map(|said| &said.status).filter(|status| status.is_taken);
        let by = match lost.map(|status| &status.link) {
            // What it knows no store needs to say again, least of all one that is silent.
            Some(Link::Lost(why)) => why.clone(),
            _ => {
                let store = self.store_of(record).ok()?;
                let block = self.superblock(&store).ok().flatten()?;
                if block.node == self.node().0.to_string() {
                    return None;
                }
                format!("node {} has the volume", block.node)
            }
        };
        Some(match said {
            Some(said) => Taken { by, bytes_lost: said.status.dirty_bytes, unknown: None },
            None => self.taken_from(record, by),
        })
    }

    /// A volume that is not served and that another has, with the bytes that only the journal has.
    /// One that cannot be read may hold as much as it is long.
    fn taken_from(&self, record: &VolumeRecord, by: String) -> Taken {
        let (bytes_lost, unknown) = match self.missing_bytes_of(record) {
            Ok(bytes) => (bytes, None),
            Err(cause) => {
                let journal = std::fs::metadata(self.paths(record).journal);
                let bytes = journal.map_or(0, |journal| journal.len());
                (bytes, (bytes == 0).then_some(cause))
            }
        };
        Taken { by, bytes_lost, unknown }
    }

    /// See [`crate::homes::RemoteHomes::missing_bytes`].
    pub(super) fn missing_bytes_of(&self, record: &VolumeRecord) -> Result<u64, String> {
        let paths = self.paths(record);
        let older = || older_copy(&self.dir, record, &paths.map);
        if let Some(cause) = exchanged(&self.dir, record, &paths.map).or_else(older) {
            return Err(cause);
        }
        let is_taken = || record.take && !self.misses(record);
        match present(&paths)? {
            // It was made for a map that never came, or whose disk is lost: nothing was written.
            Present::JournalAlone if layby_cloud::is_unmade(&paths) => Ok(0),
            Present::Both | Present::JournalAlone => match inspect(&paths, self.node().1) {
                Ok(found) => Ok(found.status.dirty_bytes),
                Err(cause) => Err(cause.to_string()),
            },
            // Nothing was missing when its removal began.
            Present::Removing => Ok(0),
            Present::Neither if record.phase == VolumePhase::Creating || is_taken() => Ok(0),
            Present::Neither => Err(gone(&paths)),
            Present::MapAlone => Err(journal_gone(&paths)),
        }
    }

    /// See [`crate::homes::RemoteHomes::lost_files`].
    pub(super) fn lost_files(&self, record: &VolumeRecord) -> Option<String> {
        let paths = self.paths(record);
        match present(&paths).ok()? {
            Present::MapAlone => Some(journal_gone(&paths)),
            Present::JournalAlone => Some(gone(&paths)),
            Present::Neither => self.misses(record).then(|| gone(&paths)),
            Present::Both | Present::Removing => None,
        }
    }

    /// Ends a removal of a volume's files that a crash interrupted, where they are to be made anew.
    pub(super) fn finish_local(&self, name: &Name, record: &VolumeRecord) -> Result<(), Report> {
        let is_to_be_made = record.phase == VolumePhase::Creating || self.takes(name, record);
        match is_to_be_made && present(&self.paths(record)) == Ok(Present::Removing) {
            true => self.remove_local(record),
            false => Ok(()),
        }
    }

    /// What the node keeps of a volume goes. Whether anything is missing then, the caller knows.
    pub(super) fn remove_local(&self, record: &VolumeRecord) -> Result<(), Report> {
        let paths = self.paths(record);
        if let Some(cause) = exchanged(&self.dir, record, &paths.map) {
            // They may be all that the other volume has of its writes.
            tracing::error!(cause, "files of another volume stay where they are");
            self.forget_kept(record);
            return Ok(());
        }
        remove_files(&paths, || self.forget_kept(record))
    }

    /// What the node knows of a volume's files goes with them; false where it cannot be written.
    fn forget_kept(&self, record: &VolumeRecord) -> bool {
        let forgotten = self.forget_opening(record);
        if let Err(cause) = &forgotten {
            tracing::warn!(%cause, "cannot write down that a journal and a map are gone");
        }
        self.identities.drop_kept(record) && forgotten.is_ok()
    }
}

/// What to do about a deleted volume whose journal is missing.
const MISSING: &str = "mount its disk, or set `journal_dir` and `map_dir` of [cloud] back and \
                       start the node again; `layby restore --deleted` reads what the store has, \
                       and `layby volume delete --data now` gives all up";

/// What is missing where a node has the map of a volume alone.
fn journal_gone(paths: &Paths) -> String {
    let journal = paths.journal.display();
    format!("the journal `{journal}` is missing, and with it what the store does not have yet")
}

/// What the superblock is to say.
fn word(deleted: &DeletedRecord) -> Deleted {
    let at_unix = deleted.at_unix;
    let until_unix = at_unix.saturating_add(deleted.grace_seconds);
    // A word with two times alike is an earlier program's, whose removal has begun.
    Deleted { at_unix, until_unix: until_unix.max(at_unix + 1), removing: false }
}

fn refusal(error: String, cause: &RemovalError) -> Report {
    let (kind, hint) = match cause {
        RemovalError::Absent => (ReportKind::NotFound, "its objects are gone"),
        RemovalError::OtherNode(_) => (ReportKind::InUse, "it is that node's to delete"),
        RemovalError::OtherCopy(_) => (
            ReportKind::InUse,
            "`layby volume delete --data now` forgets it here, and no object goes; \
             `layby volume create --take` then serves it from here",
        ),
        RemovalError::OtherVolume(_) => (ReportKind::InUse, "the volume itself is gone"),
        RemovalError::HasClones(_) => (ReportKind::InUse, HAS_CLONES),
        RemovalError::Begun => (
            ReportKind::InUse,
            "`layby restore --deleted` reads what is left, and names what is not",
        ),
        RemovalError::Damaged => (ReportKind::Corrupt, "`layby restore` says more of it"),
        RemovalError::Store(fault) if fault.kind == FaultKind::Denied => {
            (ReportKind::Denied, "look at the credentials and the key")
        }
        RemovalError::Store(fault) if fault.kind == FaultKind::Closed => {
            (ReportKind::Unreachable, STOPPED)
        }
        _ => (ReportKind::Unreachable, "look at the link; `layby volume list --deleted` says more"),
    };
    Report::new(kind, error).cause(cause.to_string()).hint(hint)
}

#[cfg(test)]
mod tests {
    use crate::cloud::openings::tests::Far;
    use crate::config::Name;
    use crate::control::{Control, DeleteData, LeftData, VolumeCreate};
    use crate::node::Node;
    use crate::node::tests::{MockStarter, config};
    use layby_cloud::Link;
    use std::sync::Arc;
    use tempfile::TempDir;

    const URL: &str = "the store's folder";

    fn name(text: &str) -> Name {
        text.parse().expect("a good name")
    }

    /// A node that serves `maps`, in a folder that others know, too.
    async fn start(store: &TempDir, dir: &TempDir, more: &str) -> Node {
        let text = format!("[volume.maps]\nsize = \"1MiB\"\npath = \"{URL}\"\n{more}");
        let text = text.replace(URL, &format!("file://{}/maps", store.path().display()));
        let starter = Arc::new(MockStarter::default());
        Node::start(config(dir, &text), starter).await.expect("nothing is missing")
    }

    fn clone_request(store: &TempDir, clone: &str) -> VolumeCreate {
        let path = format!("file://{}/{clone}", store.path().display());
        let text =
            format!("{{\"name\":\"{clone}\",\"path\":\"{path}\",\"clone_of\":\"maps@monday\"}}");
        serde_json::from_str(&text).expect("JSON")
    }

    async fn wait_for_link(control: &Control, is_so: fn(&Link) -> bool) {
        let record = control.view().catalog.volumes["maps"].clone();
        let watch = control.facts().homes.watch(&record).expect("it is served");
        watch.wait(|said| is_so(&said.status.link)).await.expect("it runs");
    }

    /// Goal: a journal and a map that are an older copy, which has nothing that the store lacks,
    /// are not removed as if all were in the store. Method: an opened volume, its older files put
    /// back, then the newest ones.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_older_copy_is_not_whole_in_the_store() {
        let far = Far::made().await;
        far.copy("older");
        far.open().expect("nothing is missing");
        far.copy("newest");
        assert!(far.homes.is_whole_in_store(&far.record));
        far.put_back("older");
        assert!(!far.homes.is_whole_in_store(&far.record), "the newest ones may have more");
        far.put_back("newest");
        assert!(far.homes.is_whole_in_store(&far.record));
    }

    /// Goal: a node that lost a volume to another one lets go of it and of its clones, in truth and
    /// in words, and a drain of the node names it. Method: two nodes on a folder, the second takes
    /// the base of two clones; each goes from the first, then the base.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_lost_volume_and_its_clones_go() {
        let [store, one, two] = [(); 3].map(|()| TempDir::new().expect("a temporary directory"));
        let node = start(&store, &one, "").await;
        let control = node.control();
        control.snapshot_create(&name("maps"), &name("monday")).await.expect("it is served");
        for clone in ["mc", "mc2"] {
            control
                .volume_create(clone_request(&store, clone), crate::control::Authority::Owner)
                .await
                .expect("it is served");
        }
        let refused = control.volume_delete(&name("maps"), DeleteData::Now).await;
        assert!(refused.expect_err("clones rest on it").cause.contains("mc2"));
        let other = start(&store, &two, "[cloud]\ntakeover = [\"maps\"]\n").await;
        wait_for_link(&other.control(), |link| matches!(link, Link::Up)).await;
        let refused = control.volume_delete(&name("maps"), DeleteData::Delete).await;
        let refused = refused.expect_err("it is another node's, and this one has not noticed");
        assert!(refused.cause.contains("has taken the volume"), "{refused}");
        let made = control.snapshot_create(&name("maps"), &name("tuesday")).await;
        assert!(made.expect_err("it is lost").cause.contains("has taken the volume"));
        wait_for_link(&control, |link| matches!(link, Link::Lost(_))).await;
        let refused = control.drain(None).await.expect_err("it is lost");
        assert!(refused.cause.contains("volume `maps`: node "), "{refused}");
        for clone in ["mc", "mc2"] {
            let gone = control.volume_delete(&name(clone), DeleteData::Now).await;
            assert_eq!(gone.expect("its base is told"), None);
        }
        let forgotten = control.volume_delete(&name("maps"), DeleteData::Delete).await;
        let forgotten = forgotten.expect("it is another node's").expect("the answer says so");
        let LeftData::Taken(forgotten) = forgotten else { panic!("{forgotten:?}") };
        assert!(forgotten.by.contains("has taken the volume, in epoch 2"), "{}", forgotten.by);
        assert_eq!(forgotten.bytes_lost, 0);
        assert!(!control.view().catalog.volumes.contains_key("maps"));
        assert!(control.deleted_volumes().await.is_empty(), "there is nothing to bring back");
        assert!(!one.path().join("node/cloud/0.map").exists());
        control.drain(None).await.expect("nothing is lost any more");
        let left = other.control().volume_snapshots(&name("maps")).await.expect("it is served");
        assert!(left.len() == 1, "{left:?}");
        for node in [node, other] {
            node.run(async {}).await.expect("stops");
        }
    }
}
