//! Clones: volumes that begin as a snapshot of another one and share its segments.
//!
//! How: the base's superblock marks the clone first: through the base's own session where this node
//! serves it and has not lost it, else by a put on the condition that nobody else replaced it. Then
//! the clone's first checkpoint and its superblock are put, and it is a volume like any other.
//! Invariant: no clone is anywhere without its mark; a mark without a clone is taken over by the
//! next clone that is made at the same place.
//! Cost: some requests, and the snapshot's map twice over the link.
//! Not for: bases in folders that another node serves, since puts there know no conditions.

use super::CloudHomes;
use super::ask::on_thread;
use crate::catalog::VolumeRecord;
use crate::config::{CloneSource, KeySource, Name};
use crate::error::{Report, ReportKind};
use layby_cloud::{
    CloneMark, ClonePlan, Condition, End, Fault, FaultKind, Link, Order, Request, SUPERBLOCK_KEY,
    Snapshot, SnapshotChange, SnapshotError, Store, Superblock, Tag, VolumeUuid, Watch,
};
use std::time::Duration;

/// How often a request is repeated before a clone is given up.
const ATTEMPTS_MAX: u32 = 5;
/// How often a replacement that met another one is tried again.
const CONFLICTS_MAX: u32 = 16;
/// How long a base that this node serves may take to say that a clone is marked.
const MARK_TIME: Duration = Duration::from_secs(60);
const UNTOUCHED: &str = "nothing was changed; the volume that was to be cloned is untouched";

fn refused(error: &str, kind: ReportKind, cause: impl Into<String>, hint: &str) -> Report {
    Report::new(kind, error).cause(cause).state(UNTOUCHED).hint(hint)
}

fn failed(error: &str, fault: Fault) -> Report {
    let (kind, hint) = match fault.kind {
        FaultKind::Denied => (
            ReportKind::Denied,
            "look at the credentials; a clone has its base's key: give the same --key, or none",
        ),
        FaultKind::NotFound => (ReportKind::NotFound, "look at the URL and its prefix"),
        FaultKind::Device => (ReportKind::Corrupt, "`layby restore` says more of what is damaged"),
        _ => (ReportKind::Unreachable, "repeat it when the store answers"),
    };
    refused(error, kind, fault.cause, hint)
}

/// A volume's superblock, and the version that the store has.
struct Found {
    block: Superblock,
    tag: Tag,
}

impl CloudHomes {
    pub(super) fn insist(&self, store: &Store, request: Request) -> End {
        self.attempt(store, request, ATTEMPTS_MAX)
    }

    /// Performs a request up to so many times.
    pub(super) fn attempt(&self, store: &Store, request: Request, attempts_max: u32) -> End {
        let (runtime, store) = (self.runtime.clone(), store.clone());
        let asked = on_thread(move || runtime.block_on(store.insist(request, attempts_max)));
        asked.unwrap_or_else(End::Failed)
    }

    fn found(&self, store: &Store) -> Result<Found, Fault> {
        let request = Request::Get { key: SUPERBLOCK_KEY.to_owned(), range: None };
        let damaged = || Fault {
            kind: FaultKind::Device,
            cause: "the superblock there is damaged or of a later version".to_owned(),
        };
        match self.insist(store, request) {
            End::Bytes(bytes, tag) => {
                let block = Superblock::decode(&bytes).ok_or_else(damaged)?;
                Ok(Found { block, tag: tag.ok_or_else(damaged)? })
            }
            End::Failed(fault) if fault.kind == FaultKind::NotFound => {
                Err(Fault { cause: "there is no volume at this place".to_owned(), ..fault })
            }
            End::Failed(fault) => Err(fault),
            end => unreachable!("a get ends with bytes or a fault: {end:?}"),
        }
    }

    /// The base of a clone, and the snapshot in it.
    fn base(
        &self,
        error: &str,
        source: &CloneSource,
        store: &Store,
    ) -> Result<(Superblock, Snapshot), Report> {
        let block = self.found(store).map_err(|fault| failed(error, fault))?.block;
        if block.deleted.is_some() {
            let cause = format!("the volume at `{}` was deleted", source.volume);
            return Err(refused(error, ReportKind::NotFound, cause, "clone another one"));
        }
        let snapshot = block.snapshots.iter().find(|made| made.name == source.snapshot.as_str());
        let Some(snapshot) = snapshot.cloned() else {
            let cause =
                format!("there is no snapshot `{}` at `{}`", source.snapshot, source.volume);
            let hint = "make one with `layby volume snapshot`";
            return Err(refused(error, ReportKind::NotFound, cause, hint));
        };
        Ok((block, snapshot))
    }

    /// Bytes of the snapshot that a clone is to begin as.
    pub(super) fn snapshot_bytes(
        &self,
        source: &CloneSource,
        key: Option<&KeySource>,
    ) -> Result<u64, Report> {
        let error = format!("cannot clone `{source}`");
        let bad = |cause: String| {
            refused(&error, ReportKind::Invalid, cause, "correct the URL or the key")
        };
        let key = self.keys.read(key).map_err(bad)?;
        let store = Store::open(&source.volume).map_err(bad)?.sealed(key);
        Ok(self.base(&error, source, &store)?.1.size_bytes)
    }

    /// Makes the clone that a record asks for in its empty place.
    pub(super) fn make_clone(
        &self,
        name: &Name,
        record: &VolumeRecord,
        source: &CloneSource,
        store: &Store,
    ) -> Result<VolumeUuid, Report> {
        let error = format!("cannot clone `{source}`");
        let bad = |cause| refused(&error, ReportKind::Invalid, cause, "correct the URL");
        let base_store = store.beside(&source.volume).map_err(bad)?;
        let (base, snapshot) = self.base(&error, source, &base_store)?;
        let (node, block_bytes) = self.node();
        if base.block_bytes != block_bytes {
            let cause = format!("it has blocks of {} bytes, this node others", base.block_bytes);
            let hint = "clone it on a node with these blocks";
            return Err(refused(&error, ReportKind::Invalid, cause, hint));
        }
        let volume = VolumeUuid(crate::catalog::NodeId::draw()?.0);
        let plan = ClonePlan {
            volume,
            name: name.to_string(),
            url: store.url().to_owned(),
            node: VolumeUuid(node.0),
            size_bytes: record.length,
            base_url: source.volume.clone(),
        };
        let map = match self.insist(&base_store, get(&snapshot.key())) {
            End::Bytes(map, _) => map,
            End::Failed(fault) => return Err(failed(&error, fault)),
            end => unreachable!("a get ends with bytes or a fault: {end:?}"),
        };
        let objects = plan.objects(&base, &snapshot, &map).map_err(|cause| {
            let hint = "create it with --size as large as the snapshot, or clone another one";
            refused(&error, ReportKind::Invalid, cause.to_string(), hint)
        })?;
        self.mark(&error, source, &base_store, &plan.mark())?;
        let puts = [
            (objects.checkpoint_key, objects.checkpoint),
            (SUPERBLOCK_KEY.to_owned(), objects.superblock),
        ];
        for (key, bytes) in puts {
            // The mark stays: another node may be making a clone at this place, too.
            self.put_new(store, &key, bytes).map_err(|fault| failed(&error, fault))?;
        }
        Ok(volume)
    }

    /// Puts an object of a volume that nobody serves yet, in the place of what an attempt left.
    fn put_new(&self, store: &Store, key: &str, bytes: Vec<u8>) -> Result<(), Fault> {
        let bytes = bytes::Bytes::from(bytes);
        for _ in 0..2 {
            let (condition, bytes) = (Condition::Create, bytes.clone());
            let put = Request::Put { key: key.to_owned(), bytes: bytes.clone(), condition };
            match self.insist(store, put) {
                End::Failed(fault) if fault.kind == FaultKind::Condition => {
                    match self.insist(store, get(key)) {
                        // Its own, with the answer lost.
                        End::Bytes(held, _) if held == bytes => return Ok(()),
                        _ if key == SUPERBLOCK_KEY => return Err(fault),
                        _ => drop(self.insist(store, Request::Delete { key: key.to_owned() })),
                    }
                }
                End::Failed(fault) => return Err(fault),
                _ => return Ok(()),
            }
        }
        let cause = format!("`{key}` is there already, and comes back");
        Err(Fault { kind: FaultKind::Retry, cause })
    }

    /// Marks a clone at its base's snapshot.
    fn mark(
        &self,
        error: &str,
        source: &CloneSource,
        base: &Store,
        mark: &CloneMark,
    ) -> Result<(), Report> {
        let name = source.snapshot.to_string();
        if let Some(watch) = self.watch_at(&source.volume).filter(|watch| !self.is_lost(watch)) {
            let change = SnapshotChange::Mark { name, clone: mark.clone() };
            return match self.change(&watch, change) {
                Ok(()) => Ok(()),
                Err(SnapshotError::Closed) => {
                    let cause = "the volume that is to be cloned did not mark its clone in time";
                    let hint = "`layby volume show` says how its link is; then repeat it";
                    Err(refused(error, ReportKind::Unreachable, cause, hint))
                }
                Err(cause) => Err(refused(
                    error,
                    ReportKind::InUse,
                    cause.to_string(),
                    "`layby volume snapshots` shows what there is",
                )),
            };
        }
        if source.volume.starts_with("file:") {
            let cause = "this node does not serve the volume, and puts in a folder know no \
                         conditions, so its clone could be forgotten";
            let hint = "clone it on the node that serves it";
            return Err(refused(error, ReportKind::Invalid, cause, hint));
        }
        let change = |block: &Superblock| match block.deleted.is_some() {
            true => Err(SnapshotError::Absent),
            false => block.marked(&name, mark),
        };
        let is_done = |block: &Superblock| {
            let mut at = block.snapshots.iter().filter(|snapshot| snapshot.name == name);
            at.any(|snapshot| snapshot.clones.contains(mark))
        };
        self.replace(base, change, is_done).map_err(|fault| failed(error, fault))
    }

    /// Takes a clone's mark away; what cannot be reached keeps it.
    pub(super) fn unmark(&self, base_url: &str, snapshot: &str, url: &str, base: &Store) -> bool {
        if let Some(watch) = self.watch_at(base_url).filter(|watch| !self.is_lost(watch)) {
            let (name, url) = (snapshot.to_owned(), url.to_owned());
            return self.change(&watch, SnapshotChange::Unmark { name, url }).is_ok();
        }
        let is_marked = |block: &Superblock| {
            let mut clones = block.snapshots.iter().flat_map(|snapshot| &snapshot.clones);
            clones.any(|clone| clone.url == url)
        };
        let unmarked = self.replace(base, |block| Ok(block.unmarked(url)), |b| !is_marked(b));
        match unmarked {
            // A base that is gone has no marks.
            Err(fault) => fault.kind == FaultKind::NotFound,
            Ok(()) => true,
        }
    }

    /// Whether a volume of this node knows that it is not this node's any more, so that its word
    /// changes nothing.
    pub(super) fn is_lost(&self, watch: &Watch) -> bool {
        let (runtime, watch) = (self.runtime.clone(), watch.clone());
        let asked = on_thread(move || {
            let number = watch.order(Order::Say);
            let newest = watch.wait(|said| said.heard >= number);
            runtime.block_on(async { tokio::time::timeout(MARK_TIME, newest).await })
        });
        matches!(asked, Ok(Ok(Some(said))) if matches!(said.status.link, Link::Lost(_)))
    }

    /// Has a volume of this node change its snapshots.
    fn change(&self, watch: &Watch, change: SnapshotChange) -> Result<(), SnapshotError> {
        let (runtime, watch) = (self.runtime.clone(), watch.clone());
        let asked = on_thread(move || {
            let changing =
                async { tokio::time::timeout(MARK_TIME, watch.change_snapshots(change)).await };
            runtime.block_on(changing).unwrap_or(Err(SnapshotError::Closed))
        });
        asked.unwrap_or(Err(SnapshotError::Closed))
    }

    /// Replaces the superblock of a volume that this node does not serve, on the condition that
    /// nobody else does meanwhile, until it `is_done`.
    pub(super) fn replace(
        &self,
        store: &Store,
        change: impl Fn(&Superblock) -> Result<Superblock, SnapshotError>,
        is_done: impl Fn(&Superblock) -> bool,
    ) -> Result<(), Fault> {
        for _ in 0..CONFLICTS_MAX {
            let Found { block, tag } = self.found(store)?;
            if is_done(&block) {
                return Ok(());
            }
            let block = change(&block).map_err(|refusal| Fault {
                kind: FaultKind::NotFound,
                cause: refusal.to_string(),
            })?;
            let (key, bytes) = (SUPERBLOCK_KEY.to_owned(), block.encode().into());
            let put = Request::Put { key, bytes, condition: Condition::Replace(tag) };
            match self.insist(store, put) {
                // Others were faster, or this one was with the answer lost: it is looked up.
                End::Failed(fault) if fault.kind == FaultKind::Condition => {}
                End::Failed(fault) => return Err(fault),
                _ => return Ok(()),
            }
        }
        let cause = "others replace its superblock again and again".to_owned();
        Err(Fault { kind: FaultKind::Retry, cause })
    }
}

fn get(key: &str) -> Request {
    Request::Get { key: key.to_owned(), range: None }
}
