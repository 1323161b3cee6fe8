//! Volumes whose home is an object store: from a catalog's record to a home that a shard opens.
//!
//! How: a volume's path that is a store's URL makes it one of these. Its journal and map lie in
//! the node's directory under the volume's number. The first time the store is asked what the
//! volume is: a new one, this node's, or another's, which is refused unless it is to be taken.
//! Later starts ask nobody, so that a node comes up with its link down.
//! Invariant: a volume's uuid is drawn once and found in its map file and its superblock.
//! Cost: two threads per volume. Not for: what travels; see [`layby_cloud`].

mod ask;
mod clones;
mod endings;
mod files;
mod folders;
pub(crate) mod identities;
mod keys;
mod observe;
mod openings;
mod removal;
mod spellings;
mod takeover;
mod unstored;

use crate::catalog::{DeletedRecord, NodeId, StoreIdentity, VolumePhase, VolumeRecord};
use crate::check::StoreVerified;
use crate::config::{
    CloneSource, CloudConfig, ConditionChoice, Config, KeySource, Name, UplinkConfig,
};
use crate::control::View;
use crate::disk_file::is_absent;
use crate::error::{Report, ReportKind};
use crate::homes::{FoundVolume, RemoteHomes, Taken};
use crate::restore::{Source, restore};
use chrono::Timelike as _;
use files::{damage_text, drop_removed_map, is_key_noted, key_note};
pub(crate) use files::{is_never_put, local_finding};
use identities::Identities;
pub(crate) use identities::{exchanged, exchanged_with};
use layby_cloud::uplink::{DirtyBounds, Lane, TimeOfDay, Uplink, VolumePlan};
use layby_cloud::{
    CloudBacking, Compression, ConditionalPuts, FaultKind, HostError, Key, Order, Paths, Plan,
    Store, Superblock, VolumeUuid, Watch, is_earlier, look_at, prepare, read_map, volume_of,
};
use layby_engine::backing::RemoteBacking;
use layby_engine::control::{CommandError, OpenRemote};
use layby_engine::io::{Buffer, Waker};
use layby_types::{ClassId, ErrorKind, VolumeId, format_bytes};
pub(crate) use openings::{find_older, older_copy};
pub(crate) use spellings::{has_known_scheme, lacks_bucket, no_store};
pub use spellings::{is_misspelled, is_store};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
pub(crate) use takeover::take_back;
pub(crate) use unstored::{Uncounted, unstored};

/// What reading all that a store has of a volume came to.
pub(crate) struct StoreFinding {
    /// What is wrong, if anything.
    pub problem: Option<String>,
    /// What was found whole, where it could be read.
    pub verified: Option<StoreVerified>,
    /// There is nothing of the volume.
    pub is_absent: bool,
    /// It was the snapshot that was asked for; else the volume, which has no such snapshot.
    pub is_snapshot: bool,
}

/// Reads every block of a volume in its store, or of a snapshot of it where it has that one; none
/// for other volumes.
pub(crate) fn store_finding(
    record: &VolumeRecord,
    snapshot: Option<&Name>,
    deleted: bool,
) -> Option<StoreFinding> {
    if !is_store(&record.path) {
        return None;
    }
    let (url, key) = (&url_of(record), record.key.as_ref());
    if matches!(key, Some(KeySource::Command(_))) && !is_configured_key(record) {
        let problem = "its key comes from a command that is in no configuration".to_owned();
        let (problem, is_snapshot) = (Some(problem), snapshot.is_some());
        return Some(StoreFinding { problem, verified: None, is_absent: false, is_snapshot });
    }
    let source = Source { url, key, snapshot: snapshot.map(Name::as_str), deleted };
    let read = restore(source, None, &mut |_| ());
    let is_snapshot = snapshot.is_some();
    let answer = match read {
        Err(report) if is_snapshot && report.kind == ReportKind::NotFound => {
            return store_finding(record, None, deleted);
        }
        Err(report) => {
            let problem = Some(format!("{}: {}", report.error, report.cause));
            let is_absent = report.kind == ReportKind::NotFound;
            return Some(StoreFinding { problem, verified: None, is_absent, is_snapshot });
        }
        Ok(answer) => answer,
    };
    let problem = answer.damaged.first().map(|first| {
        let count = answer.damaged.len();
        format!("{count} ranges are damaged in the store, the first in `{}`", first.object)
    });
    let verified = StoreVerified {
        objects: answer.objects,
        checksums: answer.checksums,
        bytes: answer.bytes,
        bytes_fetched: answer.bytes_fetched,
        requests: answer.requests,
    };
    let verified = Some(verified);
    Some(StoreFinding { problem, verified, is_absent: false, is_snapshot })
}

/// Whether the configuration said where a volume's key comes from, when it was last applied.
fn is_configured_key(record: &VolumeRecord) -> bool {
    record.configured.as_ref().is_some_and(|configured| configured.key == record.key)
}

/// Says so where what a cloud-backed volume needs lies on one device, so that writes to the journal
/// wait for the levels' and the map's. Looks at paths, so it is asked once, by the start.
pub(crate) fn placement_note(config: &Config) -> Option<String> {
    let levels = config.levels.iter().filter_map(|level| {
        Some((format!("level `{}`", level.name), device_of(level.path.as_ref()?)?))
    });
    let map = device_of(&config.cloud.map_dir).map(|device| ("maps".to_owned(), device));
    let journal = device_of(&config.cloud.journal_dir)?;
    let beside = levels.chain(map).filter(|(_, device)| *device == journal);
    let names: Vec<String> = beside.map(|(name, _)| name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "journals of volumes in object stores share a device with {}; a device of their own \
             (`journal_dir` and `map_dir` of [cloud]) keeps writes from waiting for it",
            names.join(", ")
        )
    })
}

/// The device that a path lies on, or will; none where its file system hangs.
fn device_of(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let looked_at = path.to_owned();
    let look = move || looked_at.ancestors().find_map(|place| std::fs::metadata(place).ok());
    look_at(path, look).ok().flatten().map(|found| found.dev())
}

/// The owner of all homes of a node that are object stores.
pub struct CloudHomes {
    dir: PathBuf,
    config: CloudConfig,
    folders: folders::Folders,
    keys: keys::Keys,
    node: Mutex<Option<(NodeId, u32)>>,
    runtime: tokio::runtime::Handle,
    uplink: Uplink,
    watches: Mutex<BTreeMap<u32, Watched>>,
    endings: endings::Endings,
    identities: Identities,
}

impl fmt::Debug for CloudHomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudHomes").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A volume that is served, or was until its shard ended.
struct Watched {
    url: String,
    watch: Watch,
    /// How it was last told to store chunks.
    compression: Compression,
}

/// A home that is open and waits for its shard.
struct Prepared {
    name: String,
    backing: Mutex<Option<CloudBacking<Buffer>>>,
    waker: Arc<OnceLock<Waker>>,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prepared({})", self.name)
    }
}

impl OpenRemote for Prepared {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self, waker: Waker) -> Result<RemoteBacking, CommandError> {
        let backing = self.backing.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(backing) = backing else {
            let cause = "a shard has opened it already".to_owned();
            return Err(CommandError { kind: ErrorKind::Invalid, cause });
        };
        // What ended before is found by the shard's first look.
        let _ = self.waker.set(waker);
        Ok(Box::new(backing))
    }
}

impl CloudHomes {
    /// The homes of a node that will say who it is.
    #[must_use]
    pub fn new(config: &Config, runtime: tokio::runtime::Handle) -> Self {
        let uplink = Uplink::new(config.uplink.limits(), time_of_day, runtime.clone());
        let (keys, dir, config) =
            (keys::Keys::of(config), config.dir.clone(), config.cloud.clone());
        let (node, watches) = (Mutex::default(), Mutex::default());
        let (identities, folders) = (Identities::new(dir.clone()), folders::Folders::default());
        let endings = endings::Endings::default();
        CloudHomes {
            dir,
            config,
            folders,
            keys,
            node,
            runtime,
            uplink,
            watches,
            endings,
            identities,
        }
    }

    /// Runs the commands of the configuration that print keys, all at once, for the start that
    /// follows. Takes a few seconds at most.
    pub fn fetch_keys(&self) {
        self.keys.fetch();
    }

    /// What was fetched for the start goes.
    pub fn forget_keys(&self) {
        self.keys.forget();
    }

    fn paths(&self, record: &VolumeRecord) -> Paths {
        let id = record.local_number();
        Paths {
            journal: self.config.journal_dir.join(format!("{id}.journal")),
            map: self.config.map_dir.join(format!("{id}.map")),
        }
    }

    fn watches(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Watched>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volume that this node serves at a place.
    fn watch_at(&self, url: &str) -> Option<Watch> {
        let watches = self.watches();
        let found = watches.values().find(|watched| watched.url == url);
        found.map(|watched| watched.watch.clone())
    }

    /// Who the node is, which its catalog says, and the bytes of its blocks.
    pub fn introduce(&self, node: NodeId, block_bytes: u32) {
        *self.node.lock().unwrap_or_else(PoisonError::into_inner) = Some((node, block_bytes));
    }

    fn node(&self) -> (NodeId, u32) {
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        node.expect("a node knows itself before it looks for homes")
    }

    /// Which volume this is: what the node knows, else what the store says, else a new one. And
    /// whether its store was seen to have it: then none is made there.
    fn identify(
        &self,
        error: &str,
        name: &Name,
        record: &VolumeRecord,
        store: &Store,
    ) -> Result<(VolumeUuid, bool), Report> {
        let paths = self.paths(record);
        let refused = |kind, cause: String, hint: &str| {
            Report::new(kind, error).cause(cause).state("the store was not changed").hint(hint)
        };
        let is_new = record.phase == VolumePhase::Creating;
        let takes = self.takes(name, record);
        match read_map(&paths.map) {
            Ok(map) => {
                let volume = volume_of(&map).ok_or_else(|| {
                    let (cause, hint) = unreadable_map(&map, &paths.map);
                    refused(ReportKind::Corrupt, cause, hint)
                })?;
                return Ok((volume, record.take || record.clone_of.is_some()));
            }
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                let cause = format!("`{}`: {cause}", paths.map.display());
                return Err(refused(ReportKind::Failure, cause, FILES));
            }
            Err(_) if !is_new && !takes => {
                return Err(refused(ReportKind::Corrupt, gone(&paths), GONE));
            }
            Err(_) => {}
        }
        let found = self.superblock(store);
        let found = found.and_then(|found| self.finish_removal(store, found, is_new, takes));
        let found = found.map_err(|fault| {
            let (kind, hint) = match fault.kind {
                FaultKind::Condition => (ReportKind::InUse, TAKE),
                FaultKind::Denied => (ReportKind::Denied, LOOK),
                FaultKind::Device => (ReportKind::Corrupt, RESTORE),
                FaultKind::Closed => (ReportKind::Unreachable, ask::STOPPED),
                _ => (ReportKind::Unreachable, LOOK),
            };
            refused(kind, fault.cause, hint)
        })?;
        let Some(found) = found else {
            if !is_new || record.take {
                let cause = "neither this node nor the store knows the volume any more".to_owned();
                return Err(refused(ReportKind::Corrupt, cause, "name the store that has it"));
            }
            self.check_empty(store).map_err(|cause| {
                refused(ReportKind::Unreachable, cause, "look at the bucket and the prefix")
            })?;
            return Ok(match &record.clone_of {
                Some(source) => (self.make_clone(name, record, source, store)?, true),
                None => (VolumeUuid(NodeId::draw()?.0), false),
            });
        };
        let (node, block_bytes) = self.node();
        let is_ours = found.node == node.to_string();
        if !is_ours && !takes {
            return Err(refused(ReportKind::InUse, served_elsewhere(&found), TAKE));
        }
        if found.size_bytes != record.length || found.block_bytes != block_bytes {
            let (bytes, block) = (found.size_bytes, found.block_bytes);
            let cause = format!("the store has a volume of {bytes} bytes in blocks of {block}");
            let hint = "create it with this size, on a node with blocks of this size";
            return Err(refused(ReportKind::Invalid, cause, hint));
        }
        let volume = found.volume.parse().map(|volume| (volume, true));
        let cause = "its superblock names no volume";
        volume.map_err(|()| refused(ReportKind::Corrupt, cause.to_owned(), RESTORE))
    }

    /// Refuses a journal and a map that are known to be another volume's.
    fn check_files(&self, error: &str, record: &VolumeRecord) -> Result<(), Report> {
        let cause = exchanged(&self.dir, record, &self.paths(record).map);
        cause.map_or(Ok(()), |cause| {
            Err(Report::new(ReportKind::Corrupt, error)
                .cause(cause)
                .state("nothing was changed, neither here nor in the store")
                .hint(format!(
                    "{GIVE_BACK}; the node tries again by itself. Where no file was moved, remove \
                     `identities.json` and start the node again"
                )))
        })
    }

    /// Refuses a volume that is this node's under another record.
    fn claim(&self, error: &str, record: &VolumeRecord, volume: VolumeUuid) -> Result<(), Report> {
        self.identities.claim(record, volume).map_err(|other| {
            Report::new(ReportKind::InUse, error)
                .cause(format!("the place has a volume that is this node's already, `{other}`"))
                .state("the store was not changed")
                .hint(
                    "give each volume a prefix of its own; `layby volume create --clone-of` makes \
                     a copy that is a volume of its own",
                )
        })
    }

    /// Whether journals and maps of this node may lie where they do.
    fn claim_folders(&self) -> Result<(), (ReportKind, String)> {
        let folders = [self.config.journal_dir.as_path(), self.config.map_dir.as_path()];
        self.folders.claim(&self.dir, folders, self.node().0)
    }

    fn open(&self, error: &str, name: &Name, record: &VolumeRecord) -> Result<Prepared, Report> {
        let url = url_of(record);
        let bad = |cause: String| {
            Report::new(ReportKind::Invalid, error)
                .cause(cause)
                .state("nothing was changed")
                .hint("correct the volume's path or key, or the environment that the node runs in")
        };
        let key = self.keys.read(record.key.as_ref()).map_err(bad)?;
        self.claim_folders().map_err(|(_, cause)| bad(cause))?;
        self.endings.check_place(&url).map_err(|e| Report { error: error.to_owned(), ..e })?;
        self.finish_local(name, record)?;
        let paths = self.paths(record);
        let check = key.as_ref().map(Key::check);
        let is_noted = is_key_noted(&paths, check.as_deref()).map_err(bad)?;
        let store = match record.phase {
            VolumePhase::Creating => Store::create(&url),
            _ => Store::open(&url),
        };
        let store = store.map_err(bad)?.sealed(key);
        self.check_files(error, record)?;
        self.check_opening(error, record)?;
        let (volume, was_found) = self.identify(error, name, record, &store)?;
        self.claim(error, record, volume)?;
        let (node, block_bytes) = self.node();
        let compression = self.config.compression(record.compression);
        let puts = store.conditional_puts();
        let plan = Plan {
            volume,
            name: name.to_string(),
            node: VolumeUuid(node.0),
            size_bytes: record.length,
            block_bytes,
            compression,
            takeover: self.takes(name, record),
            was_found,
            puts,
            needs_conditions: puts == ConditionalPuts::Unknown
                && self.config.conditional_puts == ConditionChoice::Required,
            limits: self.config.limits,
        };
        let broken = |cause| broken(error, &cause);
        let (instance, seed) = draw()?;
        self.make_files(error, record, || {
            prepare(&plan, &paths, self.config.journal_bytes, instance).map_err(broken)
        })?;
        let waker = Arc::new(OnceLock::<Waker>::new());
        let called = waker.clone();
        let wake = move || {
            if let Some(waker) = called.get() {
                waker.wake();
            }
        };
        let lane = Lane::new(&self.uplink, VolumeId(record.id), store.place());
        let runtime = self.runtime.clone();
        let backing =
            CloudBacking::open(plan, &paths, store, lane, runtime, seed, wake).map_err(broken)?;
        if !backing.damaged().is_empty() {
            tracing::error!("volume `{name}`: {}", damage_text(backing.damaged()));
        }
        self.endings.begin(record, &url, backing.ending());
        self.identities.keep(record, volume);
        self.keep_opening(record);
        drop_removed_map(&paths);
        let check = check.filter(|_| !is_noted).map(|check| (key_note(&paths), check));
        self.runtime.spawn(observe::observe(name.to_string(), backing.watch(), check));
        let watched = Watched { url: url.clone(), watch: backing.watch(), compression };
        self.watches().insert(record.id, watched);
        Ok(Prepared { name: url, backing: Mutex::new(Some(backing)), waker })
    }
}

/// What to do where journals and maps of volumes were exchanged.
pub(crate) const GIVE_BACK: &str = "give each volume its own journal and map back: the number in \
                                    their names is the volume's";
const LOOK: &str = "look at the URL, the credentials and the link";
const TAKE: &str = "choose another prefix; or take it, with `layby volume create --take`, \
                    `\"take\": true` in the API, or its name in `takeover` of [cloud]: then that \
                    node serves it no more, its clients get errors, and what it has not uploaded \
                    stays in its journal only";
/// What is wrong with a map file that names no volume, and what to do.
fn unreadable_map(map: &[u8], path: &Path) -> (String, &'static str) {
    let path = path.display();
    match is_earlier(map) {
        true => (
            format!(
                "an earlier build of Layby wrote `{path}`, in a format that this one does not read"
            ),
            "start the node with that build: it serves the volume; `layby volume drain` there has \
             the store get all of it",
        ),
        false => (format!("`{path}` is damaged"), RESTORE),
    }
}

const RESTORE: &str = "`layby restore URL FILE` reads from the store what it has of the volume";

const GONE: &str = "mount their disk, or set `journal_dir` and `map_dir` of [cloud] back: the node \
                    tries again by itself; where they are lost for good, `layby volume \
                    accept-loss NAME` serves the volume with what the store has";
const FILES: &str = "look at that file and its disk; the journal takes `journal` bytes below \
                     `journal_dir`, the map a few below `map_dir`, all of [cloud]";

const OPEN: &str = "the volume is served: see `layby volume list`; else stop the node, which lets \
                    go of the file, and start it again";

const FOLDERS: &str = "give each node folders of its own; put the catalog back that knows the \
                       volume; or move its journal and its map away";

/// What is missing where a node has no map of a volume that it served.
fn gone(paths: &Paths) -> String {
    let (journal, map) = (paths.journal.display(), paths.map.display());
    match paths.journal.exists() {
        true => format!(
            "`{map}` is missing: without it the node cannot read `{journal}`, which may hold what \
             the store does not have yet"
        ),
        false => format!(
            "`{map}` and `{journal}` are missing, and with them what the store does not have yet"
        ),
    }
}

/// Why what the node keeps of a volume cannot be made or opened.
fn broken(error: &str, cause: &HostError) -> Report {
    let (kind, hint) = match cause {
        HostError::Open(_) | HostError::MapMissing(_) => (ReportKind::Corrupt, RESTORE),
        HostError::File(_, cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            (ReportKind::Corrupt, GONE)
        }
        HostError::File(_, cause) => (ReportKind::from(cause), FILES),
        HostError::InUse(_) => (ReportKind::InUse, OPEN),
        HostError::JournalTooSmall(_) => (ReportKind::Invalid, FILES),
    };
    Report::new(kind, error)
        .cause(cause.to_string())
        .state("nothing was changed, neither here nor in the store")
        .hint(hint)
}

/// Who serves a volume, and what of it can be had.
fn served_elsewhere(found: &Superblock) -> String {
    let (node, name, size) = (&found.node, &found.name, format_bytes(found.size_bytes));
    let segment = found.committed;
    format!(
        "node {node} serves it, or did: volume `{name}` of {size}, here up to segment {segment}"
    )
}

/// What was written is not all in the store, so what the node has of it stays.
fn kept(paths: &Paths, bytes: u64) -> Report {
    Report::new(ReportKind::Failure, "the volume's journal was not removed")
        .cause(format!("{bytes} bytes of it are not in the store"))
        .state(format!(
            "they are in `{}`, which only this node with `{}` can read",
            paths.journal.display(),
            paths.map.display()
        ))
        .hint("next time wait with `layby volume drain` until the store has all")
}

/// An instance for a journal and a seed for the rests between attempts.
fn draw() -> Result<(u64, u64), Report> {
    let bytes = NodeId::draw()?.0;
    let (instance, seed) = bytes.split_at(8);
    let number = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half of sixteen"));
    Ok((number(instance), number(seed)))
}

/// The machine's local time.
fn time_of_day() -> TimeOfDay {
    TimeOfDay::from_secs(u64::from(chrono::Local::now().time().num_seconds_from_midnight()))
}

fn url_of(record: &VolumeRecord) -> String {
    record.path.to_string_lossy().into_owned()
}

impl RemoteHomes for CloudHomes {
    fn has(&self, record: &VolumeRecord) -> bool {
        is_store(&record.path)
    }

    fn name(&self, record: &VolumeRecord) -> String {
        url_of(record)
    }

    fn prepare(&self, name: &Name, record: &VolumeRecord) -> Result<Arc<dyn OpenRemote>, Report> {
        let error = format!("cannot serve volume `{name}` from `{}`", url_of(record));
        self.identities.note(name, record, &self.paths(record).map);
        let opened = self.open(&error, name, record);
        if opened.is_err() && record.phase == VolumePhase::Creating {
            self.identities.forget(record);
        }
        Ok(Arc::new(opened?))
    }

    fn release(&self, record: &VolumeRecord) -> Result<(), Report> {
        self.identities.forget(record);
        let watch = self.watches().remove(&record.id);
        if let Some(said) = watch.and_then(|watched| watched.watch.said())
            && !said.is_drained
        {
            return Err(kept(&self.paths(record), said.status.dirty_bytes));
        }
        self.endings.check(record)?;
        match self.missing_bytes_of(record) {
            Ok(0) => self.remove_local(record),
            Ok(bytes) => Err(kept(&self.paths(record), bytes)),
            Err(cause) => Err(Report::new(ReportKind::Corrupt, "the journal was not removed")
                .cause(cause)
                .state("what the node has of the volume is where it was")
                .hint("`layby salvage` reads what can be read of it")),
        }
    }

    fn identity(&self, record: &VolumeRecord) -> Option<StoreIdentity> {
        self.identity_of(record)
    }

    fn leftover(&self, record: &VolumeRecord) -> Option<Report> {
        let refused = |kind, cause: String| {
            Some(Report::new(kind, "").cause(cause).state("nothing was changed").hint(match kind {
                ReportKind::InUse => FOLDERS,
                ReportKind::Full => "make room where the node keeps journals and maps",
                _ => FILES,
            }))
        };
        if let Err((kind, cause)) = self.claim_folders() {
            return refused(kind, cause);
        }
        let paths = self.paths(record);
        let found = [paths.map, paths.journal].into_iter().find(|path| !is_absent(path))?;
        let cause =
            format!("`{}` is there, of a volume that this node does not know", found.display());
        refused(ReportKind::InUse, cause)
    }

    fn lost_files(&self, record: &VolumeRecord) -> Option<String> {
        CloudHomes::lost_files(self, record)
    }

    fn taken_back(&self, name: &Name, record: &VolumeRecord) -> Option<u64> {
        self.length_elsewhere(name, record)
    }

    fn close(&self, record: &VolumeRecord) {
        self.identities.forget(record);
        self.watches().remove(&record.id);
    }

    fn mark_deleted(&self, deleted: &DeletedRecord) -> Result<(), Report> {
        self.say_deleted(deleted)
    }

    fn undelete(&self, deleted: &DeletedRecord) -> Result<(), Report> {
        self.unmark_deleted(deleted)
    }

    fn remove(&self, deleted: &DeletedRecord) -> Result<Option<Taken>, Report> {
        CloudHomes::remove(self, deleted)
    }

    fn watch(&self, record: &VolumeRecord) -> Option<Watch> {
        self.watches().get(&record.id).map(|watched| watched.watch.clone())
    }

    fn check_discard(&self, record: &VolumeRecord) -> Result<(), Report> {
        // Other nodes make and delete clones, too: the store knows best.
        let store = self.store_of(record);
        let found = store.ok().and_then(|store| self.superblock(&store).ok()).flatten();
        let other = found.as_ref().map(|block| block.node.clone());
        let other = other.filter(|node| *node != self.node().0.to_string());
        let known = || self.watch(record)?.said()?.snapshots;
        let snapshots = found.map(|block| block.snapshots).or_else(known);
        if let Some(other) = other {
            return Err(Report::new(ReportKind::InUse, "the volume's data is not this node's")
                .cause(format!("node {other} has taken the volume"))
                .state("nothing was changed")
                .hint(
                    "`--data keep` forgets it here and leaves its objects to that node; what only \
                     this node has of it, `layby salvage` saves",
                ));
        }
        let clones = snapshots.and_then(|snapshots| removal::clones_of(&snapshots));
        clones.map_or(Ok(()), |clones| {
            Err(Report::new(ReportKind::InUse, "the volume's data is in use")
                .cause(format!("volumes are clones of it: {clones}"))
                .state("nothing was changed")
                .hint(removal::HAS_CLONES))
        })
    }

    fn taken(&self, record: &VolumeRecord) -> Option<Taken> {
        self.taken_by(record)
    }

    fn found(&self, path: &Path, key: Option<&KeySource>) -> Result<Option<FoundVolume>, Report> {
        self.found_at(path, key)
    }

    fn fetch_key(&self, record: &VolumeRecord) {
        self.keys.fetch_one(record.key.as_ref());
    }

    fn drop_key(&self, record: &VolumeRecord) {
        self.keys.drop_one(record.key.as_ref());
    }

    fn missing_bytes(&self, record: &VolumeRecord) -> Result<u64, String> {
        self.missing_bytes_of(record)
    }

    fn forget(&self, record: &VolumeRecord) -> Result<(), Report> {
        self.identities.forget(record);
        self.watches().remove(&record.id);
        self.endings.check(record)?;
        self.remove_local(record)
    }

    fn snapshot_bytes(&self, source: &CloneSource, key: Option<&KeySource>) -> Result<u64, Report> {
        CloudHomes::snapshot_bytes(self, source, key)
    }

    fn follow(&self, view: &View, uplink: &UplinkConfig) {
        for record in view.catalog.volumes.values() {
            let wanted = self.config.compression(record.compression);
            if let Some(watched) = self.watches().get_mut(&record.id)
                && std::mem::replace(&mut watched.compression, wanted) != wanted
            {
                watched.watch.order(Order::Compress(wanted));
            }
        }
        // It was checked before it was shown.
        self.uplink.set_timetable(uplink.check().unwrap_or_default());
        for (index, slot) in view.classes.iter().enumerate() {
            let Some((name, class)) = slot else { continue };
            let id = ClassId(u8::try_from(index).expect("a node has few classes"));
            self.uplink.set_class(id, class.uplink.plan());
            self.uplink.set_waits(id, class.uplink.waits());
            let its = view.catalog.volumes.values().filter(|record| record.class == *name);
            for record in its.filter(|record| self.watches().contains_key(&record.id)) {
                let age = class.uplink.dirty_age.map(|age| age.0).filter(|age| age.0 > 0);
                let age = age.unwrap_or(self.config.limits.dirty_age_max);
                let bounds = DirtyBounds { age, ..DirtyBounds::DEFAULT };
                let plan = VolumePlan { class: id, bounds };
                self.uplink.set_volume(VolumeId(record.id), plan);
            }
        }
    }

    fn uplink(&self) -> Option<Uplink> {
        Some(self.uplink.clone())
    }

    fn problem(&self, record: &VolumeRecord) -> Option<String> {
        let paths = self.paths(record);
        let older = || older_copy(&self.dir, record, &paths.map);
        if let Some(cause) = exchanged(&self.dir, record, &paths.map).or_else(older) {
            return Some(cause);
        }
        match read_map(&paths.map) {
            Ok(map) if volume_of(&map).is_none() => Some(unreadable_map(&map, &paths.map).0),
            Ok(_) if !paths.journal.exists() => {
                Some(format!("`{}` is missing", paths.journal.display()))
            }
            Ok(_) => None,
            Err(cause) => Some(format!("`{}` cannot be read: {cause}", paths.map.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a new volume's place may have others below it, and no segments of its own. Method: a
    /// folder with a volume at a place below, then with a segment without a superblock.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_lies_below_is_anothers() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let folder = dir.path().join("bucket");
        let config = crate::node::tests::config(&dir, "");
        let homes = CloudHomes::new(&config, tokio::runtime::Handle::current());
        let store = Store::create(&format!("file://{}", folder.display())).expect("a folder");
        let put = |key: &str| {
            let path = folder.join(key);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
            std::fs::write(path, b"x").expect("the test's own folder");
        };
        put("segments/maps/segments/0000000000000001-00000000");
        assert_eq!(homes.check_empty(&store), Ok(()));
        put("segments/0000000000000001-00000000");
        let refused = homes.check_empty(&store).expect_err("it is in the way");
        assert!(refused.starts_with("there are 1 segments"), "{refused}");
    }
}
