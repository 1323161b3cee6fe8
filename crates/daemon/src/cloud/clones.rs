//! Clones: volumes that begin as a snapshot of another one and share its segments.
//!
//! How: the base's superblock marks the clone first: through the base's own session where this node
//! serves it and has not lost it, else by a put on the condition that nobody else replaced it. Then
//! the clone's first checkpoint and its superblock are put, and it is a volume like any other.
//! The mark names the snapshot whose map the clone was made from: where another one has its name by
//! then, the clone begins anew with that one.
//! Invariant: no clone is anywhere without its mark; a mark without a clone is taken over by the
//! next clone that is made at the same place. No object of another attempt is deleted, since its
//! superblock may be on its way.
//! Cost: some requests, and the snapshot's map twice over the link.
//! Not for: bases that another node serves where puts know no conditions: in folders, and in stores
//! that ignore them.

use super::CloudHomes;
use super::ask::{STOPPED, wait_on};
use crate::catalog::VolumeRecord;
use crate::config::{CloneSource, ConditionChoice, KeySource, Name};
use crate::error::{Report, ReportKind};
use layby_cloud::{
    CloneMark, CloneObjects, ClonePlan, Condition, ConditionalPuts, End, Fault, FaultKind, Link,
    Order, Request, SUPERBLOCK_KEY, Snapshot, SnapshotChange, SnapshotError, SnapshotId, Store,
    Superblock, Tag, VolumeUuid, Watch,
};
use std::time::Duration;

/// How often a request is repeated before a clone is given up.
const ATTEMPTS_MAX: u32 = 5;
/// How often a clone is begun whose snapshot is another one by the time that it is marked.
const BEGINNINGS_MAX: u32 = 2;
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
            "look at the credentials; a clone has its base's key: give its --key where it has one",
        ),
        FaultKind::NotFound => (ReportKind::NotFound, "look at the URL and its prefix"),
        FaultKind::Condition => (ReportKind::InUse, "choose another prefix"),
        FaultKind::Device => (ReportKind::Corrupt, "`layby restore` says more of what is damaged"),
        FaultKind::Closed => (ReportKind::Unreachable, STOPPED),
        _ => (ReportKind::Unreachable, "repeat it when the store answers"),
    };
    refused(error, kind, fault.cause, hint)
}

/// Why another node's volume is not told of a clone: puts do not keep conditions there, or may not,
/// so that its node could put its superblock over the mark, and would drop the snapshot.
fn refuse_mark(
    url: &str,
    puts: ConditionalPuts,
    choice: ConditionChoice,
) -> Option<(&'static str, &'static str)> {
    const CLONE_THERE: &str = "clone it on the node that serves it";
    if url.starts_with("file:") {
        let cause = "this node does not serve the volume, and puts in a folder know no \
                     conditions, so its clone could be forgotten";
        return Some((cause, CLONE_THERE));
    }
    match (puts, choice) {
        (ConditionalPuts::Ignored, _) => Some((
            "this node does not serve the volume, and its store keeps no conditions on puts, so \
             its clone could be forgotten",
            CLONE_THERE,
        )),
        (ConditionalPuts::Unknown, ConditionChoice::Optional) => Some((
            "this node does not serve the volume, and its store may keep no conditions on puts, \
             as `conditional_puts` says, so its clone could be forgotten",
            "clone it on the node that serves it; or set `conditional_puts = \"required\"` of \
             [cloud] where the store keeps conditions",
        )),
        _ => None,
    }
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
        let store = store.clone();
        let asked = async move { store.insist(request, attempts_max).await };
        wait_on(&self.runtime, asked).unwrap_or_else(End::Failed)
    }

    /// Performs a request once, after a pause.
    pub(super) fn attempt_after(&self, store: &Store, request: Request, pause: Duration) -> End {
        let store = store.clone();
        let asked = async move { store.perform_after(request, pause).await };
        wait_on(&self.runtime, asked).unwrap_or_else(End::Failed)
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
        let base = store.beside(&source.volume).map_err(bad)?;
        for _ in 0..BEGINNINGS_MAX {
            let volume = VolumeUuid(crate::catalog::NodeId::draw()?.0);
            let (node, _) = self.node();
            let plan = ClonePlan {
                volume,
                name: name.to_string(),
                url: store.url().to_owned(),
                node: VolumeUuid(node.0),
                size_bytes: record.length,
                base_url: source.volume.clone(),
            };
            let Some(objects) = self.begin_clone(&error, source, &base, &plan)? else { continue };
            let puts = [
                (objects.checkpoint_key, objects.checkpoint),
                (SUPERBLOCK_KEY.to_owned(), objects.superblock),
            ];
            for (key, bytes) in puts {
                // The mark stays: another node may be making a clone at this place, too.
                self.put_new(store, &key, bytes).map_err(|fault| failed(&error, fault))?;
            }
            return Ok(volume);
        }
        let name = &source.snapshot;
        let cause =
            format!("snapshot `{name}` was dropped and made anew while it was to be cloned");
        Err(refused(&error, ReportKind::InUse, cause, "repeat it when the snapshot stays"))
    }

    /// The first objects of a clone that its base has marked; none where the snapshot that they are
    /// made from is gone by then.
    fn begin_clone(
        &self,
        error: &str,
        source: &CloneSource,
        base_store: &Store,
        plan: &ClonePlan,
    ) -> Result<Option<CloneObjects>, Report> {
        let (base, snapshot) = self.base(error, source, base_store)?;
        let (_, block_bytes) = self.node();
        if base.block_bytes != block_bytes {
            let cause = format!("it has blocks of {} bytes, this node others", base.block_bytes);
            let hint = "clone it on a node with these blocks";
            return Err(refused(error, ReportKind::Invalid, cause, hint));
        }
        let map = match self.insist(base_store, get(&snapshot.key())) {
            End::Bytes(map, _) => map,
            // It was dropped since, or the store has lost it.
            End::Failed(fault) if fault.kind == FaultKind::NotFound => {
                let now = self.base(error, source, base_store)?;
                match now.0.volume == base.volume && now.1.key() == snapshot.key() {
                    true => return Err(failed(error, fault)),
                    false => return Ok(None),
                }
            }
            End::Failed(fault) => return Err(failed(error, fault)),
            end => unreachable!("a get ends with bytes or a fault: {end:?}"),
        };
        let objects = plan.objects(&base, &snapshot, &map).map_err(|cause| {
            let hint = "create it with --size as large as the snapshot, or clone another one";
            refused(error, ReportKind::Invalid, cause.to_string(), hint)
        })?;
        let volume = base.volume.parse().expect("its objects name it");
        let is_marked = self.mark(error, base_store, &snapshot.id_in(volume), &plan.mark())?;
        Ok(is_marked.then_some(objects))
    }

    /// Puts an object of a volume that nobody serves yet, and no other attempt's object goes.
    fn put_new(&self, store: &Store, key: &str, bytes: Vec<u8>) -> Result<(), Fault> {
        let bytes = bytes::Bytes::from(bytes);
        let (condition, copy) = (Condition::Create, bytes.clone());
        let put = Request::Put { key: key.to_owned(), bytes: copy, condition };
        match self.insist(store, put) {
            End::Failed(fault) if fault.kind == FaultKind::Condition => {
                match self.insist(store, get(key)) {
                    // Its own, with the answer lost.
                    End::Bytes(held, _) if held == bytes => Ok(()),
                    _ => Err(Fault {
                        cause: format!("another volume was made there meanwhile: `{key}` is there"),
                        ..fault
                    }),
                }
            }
            End::Failed(fault) => Err(fault),
            _ => Ok(()),
        }
    }

    /// Marks a clone at its base's snapshot, and answers whether it is there still.
    fn mark(
        &self,
        error: &str,
        base: &Store,
        snapshot: &SnapshotId,
        mark: &CloneMark,
    ) -> Result<bool, Report> {
        if let Some(watch) = self.watch_at(base.url()).filter(|watch| !self.is_lost(watch)) {
            let change = SnapshotChange::Mark { snapshot: snapshot.clone(), clone: mark.clone() };
            return match self.change(&watch, change) {
                Err(SnapshotError::Closed) => {
                    let cause = "the volume that is to be cloned did not mark its clone in time";
                    let hint = "`layby volume show` says how its link is; then repeat it";
                    Err(refused(error, ReportKind::Unreachable, cause, hint))
                }
                end => is_marked(error, end),
            };
        }
        let choice = self.config.conditional_puts;
        if let Some((cause, hint)) = refuse_mark(base.url(), base.conditional_puts(), choice) {
            return Err(refused(error, ReportKind::Invalid, cause, hint));
        }
        let change = |block: &Superblock| match block.deleted.is_some() {
            true => Err(SnapshotError::Absent),
            false => block.marked(snapshot, mark),
        };
        let is_done = |block: &Superblock| {
            block.snapshot(snapshot).is_some_and(|now| now.clones.contains(mark))
        };
        let end = self.replace(base, change, is_done).map_err(|fault| failed(error, fault))?;
        is_marked(error, end)
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
            Ok(end) => end.is_ok(),
        }
    }

    /// Whether a volume of this node knows that it is not this node's any more, so that its word
    /// changes nothing. One that says nothing in time, since its journal's device hangs, does not:
    /// a change of the node may wait for this.
    pub(super) fn is_lost(&self, watch: &Watch) -> bool {
        const SAY_TIME: Duration = Duration::from_secs(5);
        let watch = watch.clone();
        let asked = wait_on(&self.runtime, async move {
            let number = watch.order(Order::Say);
            let newest = watch.wait(|said| said.heard >= number);
            tokio::time::timeout(SAY_TIME, newest).await
        });
        matches!(asked, Ok(Ok(Some(said))) if matches!(said.status.link, Link::Lost(_)))
    }

    /// Has a volume of this node change its snapshots.
    fn change(&self, watch: &Watch, change: SnapshotChange) -> Result<(), SnapshotError> {
        let watch = watch.clone();
        let asked = wait_on(&self.runtime, async move {
            tokio::time::timeout(MARK_TIME, watch.change_snapshots(change)).await
        });
        match asked {
            Ok(Ok(changed)) => changed,
            Ok(Err(_)) | Err(_) => Err(SnapshotError::Closed),
        }
    }

    /// Replaces the superblock of a volume that this node does not serve, on the condition that
    /// nobody else does meanwhile, until it `is_done`, or `change` refuses.
    pub(super) fn replace(
        &self,
        store: &Store,
        change: impl Fn(&Superblock) -> Result<Superblock, SnapshotError>,
        is_done: impl Fn(&Superblock) -> bool,
    ) -> Result<Result<(), SnapshotError>, Fault> {
        for _ in 0..CONFLICTS_MAX {
            let Found { block, tag } = self.found(store)?;
            if is_done(&block) {
                return Ok(Ok(()));
            }
            let block = match change(&block) {
                Ok(block) => block,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let (key, bytes) = (SUPERBLOCK_KEY.to_owned(), block.encode().into());
            let put = Request::Put { key, bytes, condition: Condition::Replace(tag) };
            match self.insist(store, put) {
                // Others were faster, or this one was with the answer lost: it is looked up.
                End::Failed(fault) if fault.kind == FaultKind::Condition => {}
                End::Failed(fault) => return Err(fault),
                _ => return Ok(Ok(())),
            }
        }
        let cause = "others replace its superblock again and again".to_owned();
        Err(Fault { kind: FaultKind::Retry, cause })
    }
}

/// Whether a mark has come to its snapshot, which may be gone.
fn is_marked(error: &str, end: Result<(), SnapshotError>) -> Result<bool, Report> {
    const SHOW: &str = "`layby volume snapshots` shows what there is";
    match end {
        Ok(()) => Ok(true),
        Err(SnapshotError::Absent) => Ok(false),
        Err(cause) => Err(refused(error, ReportKind::InUse, cause.to_string(), SHOW)),
    }
}

fn get(key: &str) -> Request {
    Request::Get { key: key.to_owned(), range: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::Watched;
    use crate::config::ConditionChoice::{Optional, Required};
    use crate::node::Node;
    use crate::node::tests::{MockStarter, config};
    use ConditionalPuts::{Ignored, Unknown};
    use layby_cloud::Compression;
    use std::sync::{Arc, Mutex};
    use tempfile::TempDir;

    /// Goal: a base that another node serves is told of a clone only where its store keeps the
    /// conditions of puts. Method: each kind of place, of store and of configuration.
    #[test]
    fn a_mark_needs_conditions() {
        assert_eq!(refuse_mark("s3://b/x", Unknown, Required), None);
        for choice in [Required, Optional] {
            let (cause, _) = refuse_mark("file:///x", Unknown, choice).expect("it is a folder");
            assert!(cause.contains("folder"), "{cause}");
            let (cause, _) = refuse_mark("s3://b/x", Ignored, choice).expect("none is kept");
            assert!(cause.contains("keeps no conditions"), "{cause}");
        }
        for url in ["s3://b/x", "az://b/x", "gs://b/x"] {
            let (cause, hint) = refuse_mark(url, Unknown, Optional).expect("none may be kept");
            assert!(cause.contains("may keep no conditions"), "{cause}");
            assert!(hint.contains("required"), "{hint}");
        }
    }

    fn folder(dir: &TempDir, name: &str) -> String {
        format!("file://{}/{name}", dir.path().display())
    }

    /// A superblock of a volume in a folder with the snapshots `monday` and `tuesday`.
    async fn base(dir: &TempDir, homes: &CloudHomes, store: &Store) -> (VolumeRecord, Superblock) {
        let url = folder(dir, "maps");
        let text = format!("[volume.maps]\nsize = \"1MiB\"\npath = \"{url}\"\n");
        let node = Node::start(config(dir, &text), Arc::new(MockStarter::default())).await;
        let node = node.expect("nothing is missing");
        let name = |text: &str| -> Name { text.parse().expect("a good name") };
        for snapshot in ["monday", "tuesday"] {
            let (volume, snapshot) = (name("maps"), name(snapshot));
            let made = node.control().snapshot_create(&volume, &snapshot).await;
            made.expect("it is served");
        }
        let record = node.control().view().catalog.volumes["maps"].clone();
        node.run(async {}).await.expect("stops");
        (record, homes.found(store).expect("it is there").block)
    }

    fn put(homes: &CloudHomes, store: &Store, block: &Superblock) {
        let replaced = homes.replace(store, |_| Ok(block.clone()), |now| now == block);
        replaced.expect("it is a folder").expect("it refuses nothing");
    }

    /// Goal: a clone rests on the snapshot that it is marked at, where the one of that name is
    /// dropped and made anew while the clone is made; where that goes on, it is refused. Method: a
    /// base whose session refuses the first marks and has another snapshot of the name then.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_clone_begins_anew_with_a_new_snapshot() {
        let dir = TempDir::new().expect("a temporary directory");
        let homes = CloudHomes::new(&config(&dir, ""), tokio::runtime::Handle::current());
        let homes = Arc::new(homes);
        let store = Store::create(&folder(&dir, "maps")).expect("a folder");
        let (record, block) = base(&dir, &homes, &store).await;
        homes.introduce(crate::catalog::NodeId([5; 16]), block.block_bytes);
        let volume = block.volume.parse().expect("its own words");
        let named = |at: usize| {
            let made = Snapshot { name: "monday".to_owned(), ..block.snapshots[at].clone() };
            (made.id_in(volume), Superblock { snapshots: vec![made], ..block.clone() })
        };
        let states = [named(0), named(1)];
        for refusals in 0..=BEGINNINGS_MAX as usize {
            put(&homes, &store, &states[0].1);
            let asked = Arc::new(Mutex::new(Vec::new()));
            let (heard, base, from) = (asked.clone(), store.clone(), homes.clone());
            let blocks = states.clone().map(|(_, block)| block);
            let (_, watch) = Watch::new(move |order, _| {
                let Order::Snapshots(SnapshotChange::Mark { snapshot, .. }, answer) = order else {
                    return;
                };
                let mut heard = heard.lock().expect("no thread panics");
                heard.push(snapshot);
                let is_gone = heard.len() <= refusals;
                if is_gone {
                    put(&from, &base, &blocks[heard.len() % 2]);
                }
                let end = if is_gone { Err(SnapshotError::Absent) } else { Ok(()) };
                answer.send(end).expect("it waits");
            });
            let url = store.url().to_owned();
            let watched = Watched { url, watch, compression: Compression::None };
            homes.watches().insert(0, watched);
            let clone = folder(&dir, &format!("clone{refusals}"));
            let clone = Store::create(&clone).expect("a folder");
            let source = CloneSource {
                volume: store.url().to_owned(),
                snapshot: "monday".parse().expect("a good name"),
            };
            let name = "clone".parse().expect("a good name");
            let made = homes.make_clone(&name, &record, &source, &clone);
            let asked = asked.lock().expect("no thread panics").clone();
            let expected = [0, 1].map(|at| states[at].0.clone());
            if refusals < BEGINNINGS_MAX as usize {
                let found = homes.found(&clone).expect("it is there").block;
                assert_eq!(found.volume, made.expect("it is marked").to_string());
                let base = found.bases.last().expect("it is a clone");
                assert_eq!(base.through, block.snapshots[refusals].number);
                assert_eq!(asked, expected[..=refusals]);
            } else {
                let refused = made.expect_err("it was not marked");
                assert!(refused.cause.contains("made anew"), "{refused}");
                assert_eq!(asked, expected);
                assert!(homes.found(&clone).is_err(), "nothing was put");
            }
        }
    }
}
