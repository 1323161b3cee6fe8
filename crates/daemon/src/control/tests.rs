//! A control over mock shards that keep the rules a real shard keeps towards it.

use super::*;
use crate::assembly::{Prepared, prepare};
use crate::catalog::VolumePhase;
use crate::config::{Overrides, Peer, Percent, tests::with_three_levels};
use hdrhistogram::Histogram;
use layby_cache::throttle::{LimitPlan, Waits};
use layby_engine::control::{
    Connection, LevelStats, OperationStats, RecordedBatch, RecordedCount, VolumeStats,
};
use layby_frontend::nbd::{ExportError, Exports as _};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex as StdMutex;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// What a mock shard was told, and how it is to answer.
#[derive(Default)]
pub(crate) struct MockState {
    pub(crate) volumes: BTreeMap<u32, VolumePlan>,
    pub(crate) spec: Option<CacheSpec>,
    pub(crate) log: Vec<String>,
    pub(crate) attached: Vec<VolumeId>,
    /// The next command with an answer fails with this.
    pub(crate) fail_next: Option<CommandError>,
    /// What happens to the node while that command fails.
    pub(crate) meanwhile: Option<Box<dyn FnOnce() + Send>>,
    pub(crate) stopped: bool,
    /// The limits that hold.
    pub(crate) limits: LimitPlan,
    /// What the next questions for a period are answered with.
    pub(crate) observed: std::collections::VecDeque<layby_engine::control::Observed>,
    /// The shares that were sized last.
    pub(crate) sized: Vec<(VolumeId, Option<layby_cache::sizing::Slots>)>,
    /// Changes of volumes are kept, and answered by the test.
    pub(crate) holds_sets: bool,
    pub(crate) held: Vec<(VolumeSpec, Answer<()>)>,
    /// Volumes are quiesced when the test answers.
    pub(crate) holds_quiesces: bool,
    pub(crate) quiescing: Vec<(VolumeId, Answer<()>)>,
}

/// Whether the volume's file is to be made.
fn creates(plan: &VolumePlan) -> bool {
    matches!(plan.backing, layby_engine::control::BackingPlan::File { create: true, .. })
}

/// A shard that answers at once, on the caller's thread.
#[derive(Clone, Default)]
pub(crate) struct MockShard(
    pub(crate) Arc<StdMutex<MockState>>,
    Arc<StdMutex<Option<std::sync::mpsc::Sender<Command>>>>,
);

impl MockShard {
    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, MockState> {
        self.0.lock().expect("no test panics while it holds the mock")
    }
    fn answer<T>(&self, what: String, answer: Answer<T>, value: impl FnOnce(&mut MockState) -> T) {
        let mut state = self.state();
        state.log.push(what);
        let result = match state.fail_next.take() {
            Some(refused) => {
                state.meanwhile.take().into_iter().for_each(|meanwhile| meanwhile());
                Err(refused)
            }
            None => Ok(value(&mut state)),
        };
        drop(state);
        answer(result);
    }
}

/// A mock behind a thread that ends when the shard does, as a real one's.
pub(crate) struct ThreadedMock {
    shard: MockShard,
    commands: std::sync::mpsc::Sender<Command>,
}

impl ShardPort for ThreadedMock {
    fn send(&self, command: Command) -> Result<(), Box<Command>> {
        if self.shard.state().stopped {
            return Err(Box::new(command));
        }
        self.commands.send(command).map_err(|back| Box::new(back.0))
    }
}

impl MockShard {
    /// Moves the mock behind a thread of its own.
    pub(crate) fn threaded(&self) -> (ThreadedMock, std::thread::JoinHandle<()>) {
        let (commands, receiver) = std::sync::mpsc::channel();
        *self.1.lock().expect("not poisoned") = Some(commands.clone());
        let shard = self.clone();
        let thread = std::thread::spawn(move || {
            while let Ok(command) = receiver.recv() {
                drop(ShardPort::send(&shard, command));
                if shard.state().stopped {
                    break;
                }
            }
        });
        (ThreadedMock { shard: self.clone(), commands }, thread)
    }

    /// Ends the thread without having been asked by the node.
    pub(crate) fn die(&self) {
        let commands = self.1.lock().expect("not poisoned").clone().expect("it has a thread");
        commands.send(Command::Stop(Box::new(|_| ()))).expect("it runs");
    }
}

impl ShardPort for MockShard {
    fn send(&self, command: Command) -> Result<(), Box<Command>> {
        if self.state().stopped {
            return Err(Box::new(command));
        }
        match command {
            Command::Attach(connection) => self.attach(*connection),
            Command::StartQueue(queue, answer) => {
                self.answer(format!("start a queue of {}", queue.volume.0), answer, |_| 0);
            }
            Command::StopQueue { number, answer, .. } => {
                self.answer(format!("stop queue {number}"), answer, |_| 0);
            }
            Command::AbandonQueues(_) => {}
            Command::AddVolume(plan, answer) => {
                self.answer(format!("add {}", plan.spec.id.0), answer, |state| {
                    state.volumes.insert(plan.spec.id.0, plan);
                });
            }
            Command::SetVolume(spec, answer) if self.state().holds_sets => {
                self.state().held.push((spec, answer));
            }
            Command::SetVolume(spec, answer) => {
                self.answer(format!("set {}", spec.id.0), answer, |state| {
                    let known = state.volumes.get_mut(&spec.id.0);
                    known.expect("a volume that was added").spec = spec;
                });
            }
            Command::RemoveVolume { volume, discard, answer } => {
                self.answer(format!("remove {} {discard}", volume.0), answer, |state| {
                    state.volumes.remove(&volume.0).expect("a volume that was added");
                });
            }
            Command::Quiesce { volume, answer, .. } if self.state().holds_quiesces => {
                self.state().quiescing.push((volume, answer));
            }
            Command::Quiesce { volume, discard, answer } => {
                self.answer(format!("quiesce {} {discard}", volume.0), answer, |_| ());
            }
            Command::Reopen(id, answer) => self.answer(format!("reopen {}", id.0), answer, |_| ()),
            Command::BreakOff(volume, answer) => self.break_off(volume, answer),
            Command::Reconfigure(spec, answer) => {
                self.answer("reconfigure".into(), answer, |state| state.spec = Some(spec));
            }
            Command::Drain(volume, answer) => {
                self.answer(format!("drain {:?}", volume.map(|v| v.0)), answer, |_| ());
            }
            Command::SetLimits(plan, answer) => {
                self.answer("limit".into(), answer, |state| state.limits = plan);
            }
            Command::SetDiscards(_, answer) => self.answer("discards".into(), answer, |_| ()),
            Command::SetSized(sized, answer) => {
                self.answer("size".into(), answer, |state| state.sized = sized);
            }
            Command::Stop(answer) => self.answer("stop".into(), answer, |s| s.stopped = true),
            looks @ (Command::StartRecording(..)
            | Command::TakeRecorded { .. }
            | Command::Snapshot(_)
            | Command::Observe { .. }) => self.on_looks(looks),
            wide => self.on_wide(wide),
        }
        Ok(())
    }
}

impl MockShard {
    /// Commands that change nothing.
    fn on_looks(&self, command: Command) {
        match command {
            Command::StartRecording(all, answer) => {
                self.answer(format!("record {}", all.len()), answer, |_| ());
            }
            Command::TakeRecorded { end, answer } => {
                self.answer(format!("take {end}"), answer, |_| RecordedBatch::default());
            }
            Command::Snapshot(answer) => {
                self.answer("snapshot".into(), answer, |s| snapshot(s).into());
            }
            Command::Observe { volumes, answer, .. } => {
                let ids: Vec<u32> = volumes.iter().map(|volume| volume.0).collect();
                let next = |state: &mut MockState| state.observed.pop_front().unwrap_or_default();
                self.answer(format!("observe {ids:?}"), answer, next);
            }
            _ => unreachable!("it changes something"),
        }
    }

    /// Sends a client what waits for it.
    fn attach(&self, mut connection: Connection<Served>) {
        let mut wire = connection.pending.clone();
        if let Some(cipher) = &mut connection.cipher {
            wire.clear();
            cipher.seal(&connection.pending, &mut wire).expect("a fresh connection");
        }
        let mut socket = std::fs::File::from(connection.socket.take().expect("fresh"));
        socket.write_all(&wire).expect("the client is there");
        self.state().attached.push(connection.volume);
    }

    /// Ends what the test has kept of a volume.
    fn break_off(&self, volume: VolumeId, answer: Answer<()>) {
        let cause = "the volume is being deleted";
        let refused = || Err(CommandError { kind: ErrorKind::Closed, cause: cause.into() });
        let mut state = self.state();
        let held = state.held.extract_if(.., |(spec, _)| spec.id == volume);
        let mut ended: Vec<_> = held.map(|(_, answer)| answer).collect();
        let quiescing = state.quiescing.extract_if(.., |(id, _)| *id == volume);
        ended.extend(quiescing.map(|(_, answer)| answer));
        drop(state);
        ended.into_iter().for_each(|answer| answer(refused()));
        self.answer(format!("break off {}", volume.0), answer, |_| ());
    }

    /// What parts of wide volumes are told, and what is said of clients.
    fn on_wide(&self, command: Command) {
        match command {
            Command::CountRecorded(answer) => {
                let count = RecordedCount { waiting: 2, dropped: 3 };
                self.answer("count".into(), answer, |_| count);
            }
            Command::StartLink { volume, is_lead, answer, .. } => {
                let what = if is_lead { "lead" } else { "link" };
                self.answer(format!("{what} {}", volume.0), answer, |_| ());
            }
            Command::SetFree(free, answer) => {
                self.answer(format!("free {free:?}"), answer, |_| ());
            }
            Command::SetLed(volumes, answer) => {
                let ids: Vec<u32> = volumes.iter().map(|volume| volume.0).collect();
                self.answer(format!("led {ids:?}"), answer, |_| ());
            }
            Command::Join { volume, links, lead, answer } => {
                let ways = links.iter().chain([&lead]).flatten().count();
                self.answer(format!("join {} by {ways}", volume.0), answer, |_| ());
            }
            Command::Unjoin(volume, answer) => {
                self.answer(format!("unjoin {}", volume.0), answer, |_| ());
            }
            Command::ResizeHome { volume, length, answer, .. } => {
                self.answer(format!("home {} {length}", volume.0), answer, |_| ());
            }
            Command::SetReadOnly(volume, is_read_only, answer) => {
                self.answer(format!("read-only {} {is_read_only}", volume.0), answer, |_| ());
            }
            Command::CutClients(clients, answer) => {
                self.answer(format!("cut {}", clients.len()), answer, |_| ());
            }
            Command::Clients(answer) => self.answer("clients".into(), answer, |_| Vec::new()),
            Command::DropIdle(_, answer) => self.answer("drop idle".into(), answer, |_| false),
            _ => unreachable!("others are known elsewhere"),
        }
    }
}

fn operation(requests: u64) -> OperationStats {
    let mut latency_ns = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("good bounds");
    for request in 0..requests {
        latency_ns.record(20_000 + request).expect("within bounds");
    }
    OperationStats { requests, bytes: requests * 4096, errors: 0, latency_ns }
}

fn snapshot(state: &MockState) -> Snapshot {
    let volume = |id: &u32| VolumeStats {
        volume: VolumeId(*id),
        read: operation(10),
        write: operation(5),
        other: operation(1),
        hits: vec![4, 3, 2],
        misses: 1,
        slots: vec![8, 8, 8],
        slots_dirty: vec![0, 1, 2],
        connections: 1,
        queue_depth: 2,
        waits: Waits { calls: 6, waited_ns: 250_000_000, waiting: 1 },
        discards: Default::default(),
        lost: 0,
        timed_out: 0,
        destage_fault: None,
    };
    let level = LevelStats { slots: 100, slots_used: 50, slots_dirty: 5, ..LevelStats::default() };
    Snapshot {
        classes: Vec::new(),
        ranks: Vec::new(),
        devices: Vec::new(),
        stuck: Vec::new(),
        failed: Vec::new(),
        client_memory: Default::default(),
        volumes: state.volumes.keys().map(volume).collect(),
        levels: vec![level; 3],
        io_inflight: 3,
        backing_blocks_read: 7,
        backing_blocks_read_ahead: 2,
        backing_writes: 4,
        backing_blocks_written: 9,
        cpu_ns: 1_500_000_000,
        queue_depth: 2,
        uptime_seconds: 12.5,
    }
}

/// A node of mock shards in a directory of its own.
pub(crate) struct MockNode {
    pub(crate) dir: TempDir,
    pub(crate) shards: Vec<MockShard>,
    pub(crate) control: Arc<Control>,
}

impl MockNode {
    pub(crate) fn new(text: &str) -> MockNode {
        MockNode::on(TempDir::new().expect("a temporary directory"), text)
    }

    /// A (re)start of the node in `dir`.
    pub(crate) fn on(dir: TempDir, text: &str) -> MockNode {
        MockNode::with_homes(dir, text, None)
    }

    /// The same, where some homes have an owner.
    pub(crate) fn with_homes(
        dir: TempDir,
        text: &str,
        remote: Option<Arc<dyn crate::homes::RemoteHomes>>,
    ) -> MockNode {
        let overrides =
            Overrides { dir: Some(dir.path().into()), shards: Some(2), ..Overrides::default() };
        let config = Config::parse(None, &with_three_levels(text), &overrides).expect("it is good");
        std::fs::create_dir_all(dir.path().join("volumes")).expect("a writable directory");
        let found = Catalog::load(dir.path()).expect("a good catalog");
        let homes = Homes::new(dir.path(), remote);
        let Prepared { mut view, .. } = prepare(&config, found, &homes).expect("a good node");
        let shards = vec![MockShard::default(), MockShard::default()];
        for (name, record) in &view.catalog.volumes {
            let plans = view.volume_plans(&homes, name, record).expect("files need nothing");
            for plan in plans {
                let shard = &shards[view.layout.shard_of(plan.spec.id)];
                assert!(shard.state().volumes.insert(plan.spec.id.0, plan).is_none(), "{name}");
            }
        }
        view.catalog.volumes.values_mut().for_each(|record| record.phase = VolumePhase::Ready);
        view.catalog.is_started = true;
        view.catalog.save(dir.path()).expect("a writable directory");
        let ports = shards.iter().map(|shard| Box::new(shard.clone()) as Box<dyn ShardPort>);
        let found = crate::intents::Found::Known(BTreeMap::new());
        let intents = crate::intents::Intents::begin(dir.path(), BTreeMap::new(), &found);
        let intents = intents.expect("a writable directory");
        let facts = NodeFacts {
            dir: dir.path().into(),
            paths: Arc::new(PathFacts::of(&config)),
            config,
            reports: vec![StartReport::default(); 2],
            uris: vec!["nbd+unix:///?socket=layby.sock".into()],
            homes,
            intents,
            lost: Vec::new(),
            refusals: Arc::default(),
        };
        let control = Arc::new(Control::new(facts, ports.collect(), view));
        MockNode { dir, shards, control }
    }

    /// Has the catalog's new file be one that cannot be made, until it can be again.
    pub(crate) fn block_catalog(&self) {
        block_catalog(self.dir.path());
    }

    pub(crate) fn unblock_catalog(&self) {
        let obstacle = self.dir.path().join("catalog.json.new");
        std::fs::remove_dir_all(obstacle).expect("the test's own folder");
    }

    /// The next command to a shard fails, and from then on the catalog cannot be written.
    pub(crate) fn fail_and_block(&self, shard: usize) {
        let mut state = self.shards[shard].state();
        state.fail_next = Some(refusal());
        let dir = self.dir.path().to_owned();
        state.meanwhile = Some(Box::new(move || block_catalog(&dir)));
    }

    /// Ends the node without a word, as a crash does, and starts it again.
    pub(crate) fn restart(self, text: &str) -> MockNode {
        MockNode::on(self.dir, text)
    }
}

fn block_catalog(dir: &Path) {
    let obstacle = dir.join("catalog.json.new");
    // The file may lie there that was staged last.
    drop(std::fs::remove_file(&obstacle));
    std::fs::create_dir_all(obstacle.join("x")).expect("a writable directory");
}

fn name(text: &str) -> Name {
    text.parse().expect("tests write good names")
}

pub(crate) fn create(volume: &str) -> VolumeCreate {
    serde_json::from_str(&format!("{{\"name\":\"{volume}\",\"size\":\"1MiB\"}}")).expect("JSON")
}

fn refusal() -> CommandError {
    CommandError { kind: ErrorKind::Full, cause: "the disk is full".into() }
}

/// Goal: a new node without configuration serves `vol0`, and it is there after a restart.
/// Method: start, look, restart, look.
#[tokio::test]
async fn new_node_has_a_volume() {
    let node = MockNode::new("");
    assert_eq!(node.control.exports_for(Peer::Unix).list(), ["vol0"]);
    assert!(creates(&node.shards[0].state().volumes[&0]));
    let node = node.restart("");
    let export = node.control.exports_for(Peer::Unix).find("").expect("the only volume");
    assert_eq!((export.volume, export.size), (VolumeId(0), 1 << 30));
    assert!(!creates(&node.shards[0].state().volumes[&0]), "a lost file must be noticed");
}

/// Goal: volumes are created on their shards, changed and deleted, and numbers never come back.
/// Method: a volume per shard, a resize, two deletes, a new one.
#[tokio::test]
async fn volumes_come_and_go() {
    let node = MockNode::new("");
    for volume in ["a", "b"] {
        node.control
            .volume_create(create(volume), crate::control::Authority::Owner)
            .await
            .expect("names are free");
    }
    assert!(node.shards[1].state().volumes.contains_key(&1));
    assert!(node.shards[0].state().volumes.contains_key(&2));
    let again = node
        .control
        .volume_create(create("a"), crate::control::Authority::Owner)
        .await
        .expect_err("the name is taken");
    assert_eq!(again.kind, ReportKind::InUse);
    let size = |size: &str, shrink| VolumePatch {
        size: Some(size.parse().expect("a size")),
        shrink,
        ..VolumePatch::default()
    };
    node.control.volume_set(&name("a"), size("2MiB", false)).await.expect("growing is safe");
    assert_eq!(node.shards[1].state().volumes[&1].spec.length, 2 << 20);
    let shrink = node.control.volume_set(&name("a"), size("1MiB", false)).await;
    assert!(shrink.expect_err("data would be lost").hint.contains("--shrink"));
    node.control.volume_set(&name("a"), size("1MiB", true)).await.expect("shrinking was allowed");
    let file = node.dir.path().join("volumes/b");
    std::fs::write(&file, b"data").expect("a writable directory");
    node.control.volume_delete(&name("a"), DeleteData::Keep).await.expect("it exists");
    node.control.volume_delete(&name("b"), DeleteData::Delete).await.expect("it exists");
    assert!(!file.exists());
    assert!(node.shards[1].state().log.contains(&"remove 1 false".to_owned()));
    assert!(node.shards[0].state().log.contains(&"remove 2 true".to_owned()));
    node.control
        .volume_create(create("b"), crate::control::Authority::Owner)
        .await
        .expect("the name is free again");
    assert!(node.shards[1].state().volumes.contains_key(&3));
}

/// Goal: a backing that cannot be one is refused at once and explained; the fuzzer of
/// configurations found a report without a hint. Method: a pipe that nobody writes, a folder, a
/// name too long.
#[tokio::test]
async fn unusable_backings_are_explained() {
    let node = MockNode::new("");
    let pipe = node.dir.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a writable directory");
    for path in [pipe, node.dir.path().into(), node.dir.path().join("x".repeat(300))] {
        let wanted = VolumeCreate { path: Some(path), ..create("a") };
        let report = node
            .control
            .volume_create(wanted, crate::control::Authority::Owner)
            .await
            .expect_err("it is no backing");
        let lines = [&report.error, &report.cause, &report.state, &report.hint];
        assert!(lines.iter().all(|line| !line.is_empty()), "{report}");
    }
}

/// Goal: a creation that fails takes away the file that it made in a chosen place, and no other.
/// Method: a shard that refuses; a place without a file, one with a file that is there already.
#[tokio::test]
async fn a_failed_creation_takes_its_file_away() {
    let root = TempDir::new().expect("a temporary directory");
    let text = format!("[node]\nvolume_roots = [\"{}\"]\n", root.path().display());
    let node = MockNode::new(&text);
    for is_there in [false, true] {
        let path = root.path().join(format!("{is_there}.img"));
        if is_there {
            let file = std::fs::File::create(&path).expect("a writable directory");
            file.set_len(1 << 20).expect("there is room");
        }
        for shard in &node.shards {
            let refusal = CommandError { kind: ErrorKind::Full, cause: "no room".into() };
            shard.state().fail_next = Some(refusal);
        }
        let wanted = VolumeCreate { path: Some(path.clone()), ..create("a") };
        let made = node.control.volume_create(wanted, crate::control::Authority::Owner).await;
        assert!(made.expect_err("a shard refuses").cause.contains("no room"));
        assert_eq!(path.exists(), is_there, "what it did not make stays");
    }
}

/// Goal: what failed is as if never asked. Method: shards that refuse, then a look at the view, the
/// catalog and the other shard.
#[tokio::test]
async fn failed_changes_leave_nothing() {
    let node = MockNode::new("");
    node.shards[1].state().fail_next = Some(refusal());
    let report = node
        .control
        .volume_create(create("a"), crate::control::Authority::Owner)
        .await
        .expect_err("the shard refuses");
    assert_eq!(report.kind, ReportKind::Full);
    assert_eq!(node.control.exports_for(Peer::Unix).list(), ["vol0"]);
    let kept = Catalog::load(node.dir.path()).expect("sound").expect("there");
    assert!(!kept.volumes.contains_key("a"));
    node.shards[1].state().fail_next = Some(refusal());
    let patch = ClassPatch { rank: Some(9), ..ClassPatch::default() };
    node.control.class_set(&name("bulk"), patch).await.expect_err("the second shard refuses");
    let spec = node.shards[0].state().spec.clone().expect("it was told twice");
    assert_eq!(spec.classes[2].rank, 2, "the first shard was told to go back");
    assert_eq!(node.control.view().class("bulk").map(|(_, class)| class.rank), Some(2));
}

/// Goal: a crash between the steps of create and delete is completed or undone by the next start.
/// Method: catalogs as those steps leave them.
#[tokio::test]
async fn crashed_changes_are_completed() {
    let node = MockNode::new("");
    let mut catalog = node.control.view().catalog.clone();
    let mut record = catalog.volumes["vol0"].clone();
    record.id = catalog.volume_id_take().expect("numbers are left").0;
    record.path = "volumes/gone".into();
    record.phase = VolumePhase::Deleting;
    let file = node.dir.path().join("volumes/gone");
    std::fs::write(&file, b"data").expect("a writable directory");
    catalog.volumes.insert(name("gone"), record.clone());
    record.id = catalog.volume_id_take().expect("numbers are left").0;
    record.phase = VolumePhase::Creating;
    record.path = "volumes/born".into();
    catalog.volumes.insert(name("born"), record);
    catalog.save(node.dir.path()).expect("a writable directory");
    let node = node.restart("");
    assert_eq!(node.control.exports_for(Peer::Unix).list(), ["born", "vol0"]);
    assert!(!file.exists());
    assert!(creates(&node.shards[0].state().volumes[&2]));
}

/// Goal: live changes of classes and marks survive a restart until the file says otherwise.
/// Method: change, restart with the same text, restart with another.
#[tokio::test]
async fn live_changes_survive_until_edited() {
    let text = "[class.video]\nrank = 3\n";
    let node = MockNode::new(text);
    let patch = ClassPatch { rank: Some(5), ..ClassPatch::default() };
    node.control.class_set(&name("video"), patch).await.expect("a good change");
    let marks = WatermarksPatch { dirty_red: Some(Percent(90)), ..WatermarksPatch::default() };
    node.control.level_set(&name("ssd"), marks).await.expect("a good change");
    let settings = ClassPatch::default();
    let maps = ClassCreate { name: name("maps"), settings };
    node.control.class_create(maps).await.expect("the name is free");
    node.control.class_delete(&name("bulk")).await.expect_err("it is built in");
    let used = VolumePatch { class: Some(name("maps")), ..VolumePatch::default() };
    node.control.volume_set(&name("vol0"), used).await.expect("the class exists");
    node.control.class_delete(&name("maps")).await.expect_err("a volume uses it");
    let node = node.restart(text);
    let view = node.control.view();
    assert_eq!(view.class("video").map(|(_, class)| class.rank), Some(5));
    assert_eq!(view.layout.levels[2].watermarks.dirty_red, 90);
    assert!(view.class("maps").is_some() && view.catalog.volumes["vol0"].class == name("maps"));
    let node = node.restart("[class.video]\nrank = 4\n");
    assert_eq!(node.control.view().class("video").map(|(_, class)| class.rank), Some(4));
}

/// Goal: a class keeps its number when another goes. Method: delete the one before it.
#[tokio::test]
async fn classes_keep_their_numbers() {
    let node = MockNode::new("[class.a]\nrank = 3\n[class.b]\nrank = 4\n");
    let before = node.control.view().class("b").map(|(id, _)| id);
    node.control.class_delete(&name("a")).await.expect("nobody uses it");
    assert_eq!(node.control.view().class("b").map(|(id, _)| id), before);
    let node = node.restart("[class.a]\nrank = 3\n[class.b]\nrank = 4\n");
    assert!(node.control.view().class("a").is_none(), "the deletion is remembered");
}

/// Goal: clients see what they may. Method: an allow-list, and peers on both sides of it.
#[tokio::test]
async fn exports_follow_the_allow_list() {
    let node = MockNode::new("[volume.v]\nsize = \"1MiB\"\nallow = [\"10.0.0.0/8\"]\n");
    let inside = Peer::Network("10.1.2.3".parse().expect("an address"));
    assert_eq!(node.control.exports_for(inside).list(), ["v"]);
    assert!(node.control.exports_for(inside).find("v").is_ok());
    let outside = node.control.exports_for(Peer::Unix);
    assert!(outside.list().is_empty());
    assert_eq!(outside.find("v"), Err(ExportError::Denied));
    assert_eq!(outside.find("w"), Err(ExportError::Unknown));
}

/// Goal: a node that has ended says so. Method: stop, then ask.
#[tokio::test]
async fn stopped_shards_are_reported() {
    let node = MockNode::new("");
    node.control.drain(None).await.expect("the shards run");
    node.control.stop().await.expect("the shards stop");
    let report = node.control.snapshots(Pace::AtOnce).await.expect_err("no shard answers");
    assert_eq!(report.kind, ReportKind::Unreachable);
}

/// Goal: a change that cannot be written down does not hold, in the shard neither, and the error
/// says so. Method: the catalog's new file cannot be made; a class, a size and rights.
#[tokio::test]
async fn a_change_that_is_not_saved_is_undone() {
    let node = MockNode::new("");
    let owner = crate::control::Authority::Owner;
    node.control.volume_create(create("a"), owner).await.expect("a free name");
    let before = node.shards[1].state().volumes[&1].spec.clone();
    node.block_catalog();
    let patch = VolumePatch {
        class: Some(name("critical")),
        size: Some("2MiB".parse().expect("a size")),
        read_only: Some(true),
        allow: Some(Vec::new()),
        ..VolumePatch::default()
    };
    let refused = node.control.volume_set(&name("a"), patch).await.expect_err("it is not saved");
    assert_eq!(refused.state, "the volume is as it was before", "{refused}");
    assert_eq!(node.shards[1].state().volumes[&1].spec, before);
    let view = node.control.view();
    assert!(!view.catalog.volumes[&name("a")].read_only);
    let patch = VolumePatch { read_only: Some(true), ..VolumePatch::default() };
    node.unblock_catalog();
    node.control.volume_set(&name("a"), patch).await.expect("there is room again");
    assert!(node.control.view().catalog.volumes[&name("a")].read_only);
}

/// A volume of 2 MiB on the second shard, which keeps its shrink to 1 MiB for itself; and another
/// one on the first. With `class` the same change gives it this class, which is new.
async fn shrinking(class: Option<Name>) -> (MockNode, JoinHandle<Result<(), Report>>) {
    let node = MockNode::new("");
    if let Some(name) = class.clone() {
        let request = ClassCreate { name, settings: ClassPatch::default() };
        node.control.class_create(request).await.expect("a free name");
    }
    let owner = crate::control::Authority::Owner;
    for volume in ["a", "b"] {
        let size = Some("2MiB".parse().expect("a size"));
        let request = VolumeCreate { size, ..create(volume) };
        node.control.volume_create(request, owner).await.expect("a free name");
    }
    node.shards[1].state().holds_sets = true;
    let control = Arc::clone(&node.control);
    let size = Some("1MiB".parse().expect("a size"));
    let patch = VolumePatch { size, shrink: true, class, ..VolumePatch::default() };
    let shrinking = tokio::spawn(async move { control.volume_set(&name("a"), patch).await });
    while node.shards[1].state().held.is_empty() {
        tokio::task::yield_now().await;
    }
    node.shards[1].state().holds_sets = false;
    (node, shrinking)
}

/// What must not wait for a shrink ends within this.
const SOON: std::time::Duration = std::time::Duration::from_secs(10);

/// Goal: a shrink, whose zeroing may take minutes, holds up changes of its own volume alone, and
/// what was changed meanwhile stays. Method: a shard that keeps the shrink; another volume and a
/// class change, the volume itself is deleted; then the shard answers.
#[tokio::test]
async fn a_shrink_holds_up_its_own_volume_alone() {
    let (node, shrinking) = shrinking(None).await;
    let read_only = VolumePatch { read_only: Some(true), ..VolumePatch::default() };
    let b = name("b");
    let other = tokio::time::timeout(SOON, node.control.volume_set(&b, read_only));
    other.await.expect("it does not wait").expect("a good change");
    let rank = ClassPatch { rank: Some(6), ..ClassPatch::default() };
    node.control.class_set(&name("bulk"), rank).await.expect("a good change");
    let control = Arc::clone(&node.control);
    let delete = async move { control.volume_delete(&name("a"), DeleteData::Keep).await };
    let deleting = tokio::spawn(delete);
    tokio::task::yield_now().await;
    let (spec, answer) = node.shards[1].state().held.remove(0);
    assert_eq!((spec.id, spec.length), (VolumeId(1), 1 << 20));
    assert!(!deleting.is_finished() && !shrinking.is_finished());
    assert!(!node.shards[1].state().log.iter().any(|line| line.starts_with("remove")));
    answer(Ok(()));
    shrinking.await.expect("no panic").expect("it shrinks");
    let told = node.shards[1].state().log.clone();
    assert!(told.contains(&"home 1 1048576".to_owned()), "{told:?}");
    let view = node.control.view();
    assert!(view.catalog.volumes[&name("b")].read_only, "the other change stays");
    assert_eq!(view.class("bulk").expect("it is there").1.rank, 6);
    deleting.await.expect("no panic").expect("it goes");
    assert!(!node.control.view().catalog.volumes.contains_key("a"));
}

/// Goal: a stop breaks a shrink off: the volume keeps its size, and the answer says what became of
/// it. Method: the stop comes while the shard has the shrink, which the shard then gives up.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_shrink() {
    let (node, shrinking) = shrinking(None).await;
    let stopped = tokio::time::timeout(SOON, node.control.stop()).await;
    stopped.expect("it does not wait").expect("the shards stop");
    let (_, answer) = node.shards[1].state().held.remove(0);
    answer(Err(CommandError { kind: ErrorKind::Closed, cause: "the node stops".into() }));
    let refused = shrinking.await.expect("no panic").expect_err("it was given up");
    assert!(refused.state.contains("old size") && refused.state.contains("zeros"), "{refused}");
    assert_eq!(node.control.view().catalog.volumes[&name("a")].length, 2 << 20);
}

/// Goal: a shrink that can no longer be made is undone in its shards, whatever else its change
/// held. Method: the change also gives a class, which is deleted while the shard zeroes.
#[tokio::test]
async fn a_shrink_into_a_deleted_class_is_undone() {
    let (node, shrinking) = shrinking(Some(name("c2"))).await;
    node.control.class_delete(&name("c2")).await.expect("no volume is of it yet");
    let (spec, answer) = node.shards[1].state().held.remove(0);
    let spec_of_a = || node.shards[1].state().volumes[&1].spec.clone();
    let before = spec_of_a();
    assert_eq!((spec.length, before.length), (1 << 20, 2 << 20));
    node.shards[1].state().volumes.get_mut(&1).expect("it was added").spec = spec;
    answer(Ok(()));
    let refused = shrinking.await.expect("no panic").expect_err("its class is gone");
    assert!(refused.cause.contains("c2") && refused.state.contains("zeros"), "{refused}");
    assert_eq!(spec_of_a(), before);
    assert_eq!(node.control.view().catalog.volumes[&name("a")].length, 2 << 20);
}

/// Goal: a creation in the name of a volume that shrinks is refused at once, and a take holds up
/// no volume that is not served. Method: both while the shard keeps the shrink.
#[tokio::test]
async fn a_shrink_holds_up_no_creation_of_its_name() {
    let (node, shrinking) = shrinking(None).await;
    let path = Some("file:///far".into());
    let take = VolumeCreate { take: true, size: None, path, ..create("a") };
    let cases = [(create("a"), "a volume of that name exists"), (take, "is being shrunk")];
    let mut causes = Vec::new();
    for (request, expected) in cases {
        let creating = node.control.volume_create(request, Authority::Owner);
        let refused = tokio::time::timeout(SOON, creating).await.map(|made| {
            let refused = made.expect_err("the name is taken");
            (refused.kind == ReportKind::InUse && refused.cause.contains(expected), refused.cause)
        });
        causes.push(refused);
    }
    assert!(causes.iter().all(|case| matches!(case, Ok((true, _)))), "{causes:?}");
    assert!(node.control.absences.turn.try_lock().is_ok(), "other volumes may be tried");
    let (_, answer) = node.shards[1].state().held.remove(0);
    answer(Ok(()));
    shrinking.await.expect("no panic").expect("it shrinks");
}

/// Goal: a node that has stopped writes no change down. Method: the shard ends its zeroing, and
/// its answer comes after the stop; a change that asks no shard; the catalog on the disk.
#[tokio::test]
async fn a_change_after_a_stop_is_not_written_down() {
    let (node, shrinking) = shrinking(None).await;
    node.control.stop().await.expect("the shards stop");
    let (_, answer) = node.shards[1].state().held.remove(0);
    answer(Ok(()));
    let refused = shrinking.await.expect("no panic").expect_err("the node has stopped");
    let saved = Catalog::load(node.dir.path()).expect("whole").expect("it was saved");
    assert_eq!(saved.volumes[&name("a")].length, 2 << 20, "{refused}");
    assert!(refused.state.contains("old size") && refused.state.contains("zeros"), "{refused}");
    let change = serde_json::from_str("{\"cap\":\"1MiB/s\"}").expect("JSON");
    let refused = node.control.uplink_set(change).await.expect_err("the node has stopped");
    assert!(refused.cause.contains("has stopped"), "{refused}");
}

/// Goal: a change that a silent store holds up holds up no stop for ever. Method: a change that
/// never ends, and a clock that is moved on.
#[tokio::test]
async fn a_stop_waits_for_a_change_for_a_time() {
    let node = MockNode::new("");
    let _change = node.control.lock_changes().await;
    tokio::time::pause();
    let hour = std::time::Duration::from_secs(3600);
    let stopped = tokio::time::timeout(hour, node.control.stop()).await;
    stopped.expect("its patience ends").expect("the shards stop");
    assert!(node.shards.iter().all(|shard| shard.state().stopped));
}
