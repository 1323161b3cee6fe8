//! The host over real files and a folder as store.

use crate::clone::ClonePlan;
use crate::host::{CloudBacking, HostError, Paths, prepare};
use crate::journal::JOURNAL_BYTES_MIN;
use crate::restore::Restored;
use crate::segment::{Compression, VolumeUuid};
use crate::snapshot::SnapshotChange;
use crate::store::Store;
use crate::store::tests::gate;
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use crate::uplink::{Lane, TimeOfDay, Uplink, UplinkLimits};
use crate::volume::{ConditionalPuts, Limits, Link, Plan};
use crate::watch::Order;
use crate::{Condition, End, Request};
use layby_types::{Backing as _, BackingDone, BackingOperation, Nanos, VolumeId};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const BLOCK: u64 = 4096;

struct Node {
    folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl Node {
    fn new() -> Self {
        Self::with_threads(8)
    }

    /// One whose runtime has so many threads for calls that block.
    fn with_threads(threads: usize) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).max_blocking_threads(threads).enable_all();
        let runtime = runtime.build().expect("a runtime");
        Node { folder: tempfile::tempdir().expect("a folder"), runtime }
    }

    fn plan() -> Plan {
        Plan {
            volume: VolumeUuid([3; 16]),
            name: "logs".to_owned(),
            node: VolumeUuid([4; 16]),
            size_bytes: 64 << 20,
            block_bytes: BLOCK as u32,
            compression: Compression::None,
            takeover: false,
            was_found: false,
            puts: ConditionalPuts::Unknown,
            needs_conditions: true,
            limits: Limits::DEFAULT,
        }
    }

    fn paths(&self) -> Paths {
        let folder = self.folder.path();
        Paths { journal: folder.join("journal"), map: folder.join("map") }
    }

    fn store(&self) -> Store {
        let bucket = self.folder.path().join("bucket");
        Store::open(&format!("file://{}", bucket.display())).expect("a folder is a store")
    }

    fn open(&self) -> Home {
        self.open_over(Self::plan(), self.store())
    }

    fn open_over(&self, plan: Plan, store: Store) -> Home {
        self.try_open(plan, store).expect("it opens")
    }

    fn try_open(&self, plan: Plan, store: Store) -> Result<Home, HostError> {
        self.open_by(plan, store, Lane::alone(self.runtime.handle().clone()))
    }

    fn open_by(&self, plan: Plan, store: Store, lane: Lane) -> Result<Home, HostError> {
        prepare(&plan, &self.paths(), JOURNAL_BYTES_MIN, 1)?;
        let (woken, wakes) = channel();
        let wake = move || woken.send(()).expect("the test waits");
        let handle = self.runtime.handle().clone();
        let backing = CloudBacking::open(plan, &self.paths(), store, lane, handle, 1, wake);
        Ok(Home { backing: backing?, wakes, token: 0 })
    }
}

struct Home {
    backing: CloudBacking<Vec<u8>>,
    wakes: Receiver<()>,
    token: u64,
}

impl Home {
    fn call(&mut self, operation: BackingOperation<Vec<u8>>) -> BackingDone<Vec<u8>> {
        let token = self.submit(operation);
        let done = self.wait();
        assert_eq!(done.token, token);
        done
    }

    fn submit(&mut self, operation: BackingOperation<Vec<u8>>) -> u64 {
        self.token += 1;
        self.backing.submit(self.token, operation);
        self.token
    }

    /// The next end of a call.
    fn wait(&mut self) -> BackingDone<Vec<u8>> {
        /// Nothing takes as long but what never ends.
        const NEVER: Duration = Duration::from_secs(60);
        loop {
            if let Some(done) = self.backing.poll() {
                return done;
            }
            self.wakes.recv_timeout(NEVER).expect("an end wakes");
        }
    }

    fn write(&mut self, block: u64, byte: u8, blocks: u64) {
        let buffer = vec![byte; (blocks * BLOCK) as usize];
        let offset = block * BLOCK;
        let done = self.call(BackingOperation::Write { offset, buffer, durable: false });
        assert_eq!(done.result, Ok(()));
    }

    fn read(&mut self, block: u64) -> u8 {
        let buffer = vec![0xee; BLOCK as usize];
        let done = self.call(BackingOperation::Read { offset: block * BLOCK, buffer });
        assert_eq!(done.result, Ok(()));
        let bytes = done.buffer.expect("a read's buffer comes back");
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a block is of one write");
        bytes[0]
    }

    fn drain(&mut self) {
        let watch = self.backing.watch();
        let number = watch.order(Order::Drain(true));
        // Each call is a turn of the volume's thread; what it says of itself follows.
        while watch.said().is_none_or(|said| said.heard < number || !said.is_drained) {
            self.read(0);
        }
        self.backing.watch().order(Order::Drain(false));
    }
}

/// Goal: what was written is read, after a restart as well, and the folder alone restores it.
/// Method: a few writes over each other, a restart with and without what the node keeps.
#[test]
fn a_volume_lives_in_a_folder() {
    let node = Node::new();
    let mut home = node.open();
    for block in 0..64 {
        home.write(block, block as u8, 1);
    }
    home.write(10, 99, 20);
    let zero = BackingOperation::Zero { offset: 12 * BLOCK, length: BLOCK, keep_allocated: false };
    assert_eq!(home.call(zero).result, Ok(()));
    assert_eq!(home.call(BackingOperation::Sync).result, Ok(()));
    drop(home);
    let mut home = node.open();
    assert_eq!([home.read(5), home.read(11), home.read(12), home.read(900)], [5, 99, 0, 0]);
    home.drain();
    drop(home);
    std::fs::remove_file(node.paths().journal).expect("the node's disk goes");
    std::fs::remove_file(node.paths().map).expect("the node's disk goes");
    let store = node.store();
    let mut fetch = |key: &str, range| {
        let request = Request::Get { key: key.to_owned(), range };
        match node.runtime.block_on(store.perform(request)) {
            End::Bytes(bytes, _) => Ok(bytes),
            End::Failed(fault) => Err(fault),
            end => panic!("a get ends otherwise: {end:?}"),
        }
    };
    let restored = Restored::open(&mut fetch).expect("the folder has a volume");
    let pass = restored.copy(&mut fetch, &mut |_, _| Ok(())).expect("it can be read");
    assert_eq!((pass.bytes, pass.damaged.len()), (63 * BLOCK, 0));
    let mut home = node.open();
    assert_eq!([home.read(5), home.read(11), home.read(12), home.read(900)], [5, 99, 0, 0]);
}

/// Goal: another volume's files, and too small a journal, are refused. Method: both.
#[test]
fn wrong_files_are_refused() {
    let node = Node::new();
    let error = prepare(&Node::plan(), &node.paths(), 1 << 20, 1).expect_err("it is too small");
    assert!(error.to_string().contains("too small"), "{error}");
    drop(node.open());
    let other = Plan { volume: VolumeUuid([9; 16]), ..Node::plan() };
    let handle = node.runtime.handle().clone();
    let opened = CloudBacking::<Vec<u8>>::open(
        other,
        &node.paths(),
        node.store(),
        Lane::alone(handle.clone()),
        handle,
        1,
        || {},
    );
    let error = opened.err().expect("the files are another volume's");
    assert!(error.to_string().contains("another volume"), "{error}");
}

/// Goal: what lay beyond a smaller size is zeros when the volume grew again, in the store, too.
/// Method: a write, a shrink, a growth, a read, a drain.
#[test]
fn what_lay_beyond_a_smaller_size_is_gone() {
    let node = Node::new();
    let mut home = node.open();
    home.write(100, 7, 8);
    assert_eq!(home.backing.resize(103 * BLOCK), Ok(()));
    assert_eq!(home.backing.resize(64 << 20), Ok(()));
    assert_eq!([home.read(102), home.read(103), home.read(107)], [7, 0, 0]);
    home.drain();
    assert_eq!([home.read(102), home.read(103), home.read(107)], [7, 0, 0]);
}

/// Goal: a journal whose map is gone is never begun anew, since it may hold what the store lacks.
/// Method: remove the map of a volume that was written, and of one that was not.
#[test]
fn a_journal_without_its_map_is_kept() {
    let node = Node::new();
    drop(node.open());
    std::fs::remove_file(node.paths().map).expect("it was made");
    let mut home = node.open();
    home.write(1, 1, 1);
    drop(home);
    std::fs::remove_file(node.paths().map).expect("it was made");
    let before = std::fs::read(node.paths().journal).expect("it is there");
    let refused = prepare(&Node::plan(), &node.paths(), JOURNAL_BYTES_MIN, 2);
    let error = refused.expect_err("it holds a write").to_string();
    assert!(error.contains("may lack"), "{error}");
    assert!(before == std::fs::read(node.paths().journal).expect("it is there"), "untouched");
}

/// Goal: a map that cannot be looked at is not taken for one that is missing: with a new journal, a
/// new map would take its place. Method: a loop of links in the place of the map, and no journal.
#[test]
fn a_map_that_cannot_be_looked_at_stays() {
    let node = Node::new();
    let paths = node.paths();
    std::os::unix::fs::symlink(&paths.map, &paths.map).expect("a link");
    let refused = prepare(&Node::plan(), &paths, JOURNAL_BYTES_MIN, 2);
    let refused = refused.expect_err("it cannot be looked at");
    assert!(matches!(&refused, HostError::File(path, _) if *path == paths.map), "{refused}");
    let is_link = std::fs::symlink_metadata(&paths.map).expect("it is there").is_symlink();
    assert!(is_link && !paths.journal.exists(), "nothing was made");
}

/// Goal: a journal that is open is not opened once more, whatever its path, since two would write
/// over each other's batches; it is once the first is dropped. Method: a second opening, by the
/// same name and by a link, which changes neither file; writes of the first around both.
#[test]
fn a_journal_is_open_once() {
    let node = Node::new();
    let mut home = node.open();
    home.write(1, 1, 1);
    let paths = node.paths();
    for is_linked in [false, true] {
        if is_linked {
            let elsewhere = node.folder.path().join("elsewhere");
            std::fs::rename(&paths.journal, &elsewhere).expect("the test's own file");
            std::os::unix::fs::symlink(elsewhere, &paths.journal).expect("a link");
        }
        let map = std::fs::read(&paths.map).expect("it is there");
        let refused = node.try_open(Node::plan(), node.store()).map(drop);
        assert!(matches!(refused, Err(HostError::InUse(_))), "{refused:?}");
        assert!(map == std::fs::read(&paths.map).expect("it is there"), "it was changed");
        home.write(2, 2, 1);
        assert_eq!(home.read(1), 1);
    }
    drop(home);
    let mut home = node.open();
    assert_eq!((home.read(1), home.read(2)), (1, 2));
}

/// Goal: it is known of a backing store whose own thread hangs that it has not ended, so that its
/// files are let be, and its journal is open until it has; the thread that drops it alone waits.
/// Method: a waker that does not return, as a call to a device that hangs, until the test says so.
#[test]
fn a_home_that_hangs_has_not_ended() {
    const LATE: Duration = Duration::from_secs(60);
    let node = Node::new();
    prepare(&Node::plan(), &node.paths(), JOURNAL_BYTES_MIN, 1).expect("a writable folder");
    let (hanging, hangs) = channel();
    let (go_on, gone_on) = channel::<()>();
    let wake = move || {
        hanging.send(()).expect("the test waits");
        let _ = gone_on.recv();
    };
    let handle = node.runtime.handle().clone();
    let lane = Lane::alone(handle.clone());
    let (paths, store) = (node.paths(), node.store());
    let opened = CloudBacking::open(Node::plan(), &paths, store, lane, handle, 1, wake);
    let mut backing: CloudBacking<Vec<u8>> = opened.expect("it opens");
    backing.submit(1, BackingOperation::Sync);
    hangs.recv().expect("the sync ends");
    let ending = backing.ending();
    let dropping = std::thread::spawn(move || drop(backing));
    assert!(!ending.has_come(Duration::ZERO));
    let refused = node.try_open(Node::plan(), node.store()).err();
    assert!(matches!(refused, Some(HostError::InUse(_))), "{refused:?}");
    drop(go_on);
    assert!(ending.has_come(LATE));
    dropping.join().expect("no panic");
    node.open();
}

/// Goal: a map is encoded, and its checkpoint stored, while calls hang on all threads that the
/// runtime has for such. Method: a runtime with one, which waits for the test; a volume over a
/// store in memory that puts a checkpoint behind its first segment.
#[test]
fn a_map_is_encoded_beside_calls_that_hang() {
    let node = Node::with_threads(1);
    let (release, held) = channel::<()>();
    let hanging = node.runtime.spawn_blocking(move || held.recv());
    let store = Store::in_memory();
    let limits = Limits { checkpoint_segments: 1, ..Limits::DEFAULT };
    let mut home = node.open_over(Plan { limits, ..Node::plan() }, store.clone());
    home.write(0, 7, 1);
    home.drain();
    let checkpoints = || Request::List { prefix: "checkpoints/".to_owned() };
    let is_stored = (0..100_000).any(|_| {
        assert_eq!(home.read(0), 7);
        let listed = node.runtime.block_on(store.perform(checkpoints()));
        matches!(listed, End::Keys(keys) if !keys.is_empty())
    });
    assert!(is_stored, "the map waits for a thread");
    assert!(!hanging.is_finished());
    drop(release);
}

/// Goal: what a flush covered is vouched for once the volume is closed, however soon: rot of it is
/// known to the next opening. Method: a sync, and the close at once; a payload's bytes change.
#[test]
fn a_close_vouches_for_what_was_flushed() {
    let node = Node::new();
    let mut home = node.open();
    for byte in [0xa5, 0x5a] {
        home.write(3, byte, 1);
        let synced = home.call(BackingOperation::Sync);
        assert_eq!(synced.result, Ok(()));
    }
    drop(home);
    let journal = node.paths().journal;
    let mut bytes = std::fs::read(&journal).expect("it is there");
    let payload = vec![0x5a; BLOCK as usize];
    // By blocks: the header before it may end with a byte of the same value, and has parity.
    let at = bytes.chunks(payload.len()).position(|block| block == payload);
    bytes[at.expect("the journal has it") * payload.len()] ^= 1;
    std::fs::write(&journal, bytes).expect("it can be written");
    assert_eq!(node.open().backing.damaged(), [(3 * BLOCK, BLOCK)]);
}

/// Goal: a session that was fenced puts no segment that waited for its turn at the uplink. Method:
/// an upload of another volume that has the only place, a segment that waits, a superblock of
/// another node; once the volume has seen that, the place is free.
#[test]
fn a_fenced_volume_puts_nothing_that_waited() {
    let node = Node::new();
    let handle = node.runtime.handle().clone();
    let limits = UplinkLimits { in_flight_max: 1, ..UplinkLimits::DEFAULT };
    let uplink = Uplink::new(limits, || TimeOfDay::MIDNIGHT, handle);
    let [lane, other] = [0, 1].map(|volume| Lane::new(&uplink, VolumeId(volume), ""));
    let store = Store::in_memory();
    let opened = node.open_by(Node::plan(), store.clone(), lane);
    let mut home = opened.expect("it opens");
    home.write(0, 1, 1);
    home.drain();
    let permit = node.runtime.block_on(other.ask(1 << 20, Nanos::ZERO).come());
    home.write(1, 2, 1);
    let watch = home.backing.watch();
    watch.order(Order::Drain(true));
    while uplink.seen().waiting.0 == 0 {
        home.read(0);
    }
    let perform = |request| node.runtime.block_on(store.perform(request));
    let get = Request::Get { key: SUPERBLOCK_KEY.to_owned(), range: None };
    let End::Bytes(bytes, Some(tag)) = perform(get) else { panic!("it is there") };
    let block = Superblock::decode(&bytes).expect("it is whole");
    let (other, session) = (VolumeUuid([9; 16]).to_string(), block.session + 1);
    let block = Superblock { node: other, epoch: block.epoch + 1, session, ..block };
    let (key, bytes) = (SUPERBLOCK_KEY.to_owned(), block.encode().into());
    let put = Request::Put { key, bytes, condition: Condition::Replace(tag) };
    assert!(matches!(perform(put), End::Stored(_)));
    let keys = || match perform(Request::List { prefix: "segments/".to_owned() }) {
        End::Keys(keys) => keys,
        end => panic!("a list ends otherwise: {end:?}"),
    };
    let before = keys();
    watch.order(Order::Look);
    let lost = watch.wait(|said| matches!(said.status.link, Link::Lost(_)));
    node.runtime.block_on(lost).expect("it goes on");
    drop(permit);
    // A turn that came is over when nothing waits and nothing is under way.
    let is_over = |_| {
        std::thread::yield_now();
        let seen = uplink.seen();
        (seen.waiting.0, seen.in_flight.0) == (0, 0)
    };
    assert!((0..10_000_000).any(is_over), "{:?}", uplink.seen());
    assert_eq!(keys(), before, "what waited was put");
}

/// A store with the first objects of a clone of a volume, whose base lies at this URL.
fn cloned((node, home): (&Node, &Home), base: &Store, plan: &Plan, base_url: &str) -> Store {
    let name = plan.volume.to_string();
    let make = SnapshotChange::Make { name: name.clone(), now_unix: 7 };
    let made = node.runtime.block_on(home.backing.watch().change_snapshots(make));
    assert_eq!(made, Ok(()));
    let get = |key: &str| {
        let request = Request::Get { key: key.to_owned(), range: None };
        match node.runtime.block_on(base.perform(request)) {
            End::Bytes(bytes, _) => bytes,
            end => panic!("it is there: {end:?}"),
        }
    };
    let block = Superblock::decode(&get(SUPERBLOCK_KEY)).expect("it is whole");
    let snapshot = block.snapshots.iter().find(|made| made.name == name).expect("it was made");
    let plan = ClonePlan {
        volume: plan.volume,
        name: "clone".to_owned(),
        url: "memory://clone".to_owned(),
        node: plan.node,
        size_bytes: block.size_bytes,
        base_url: base_url.to_owned(),
    };
    let objects = plan.objects(&block, snapshot, &get(&snapshot.key())).expect("it is whole");
    let store = Store::in_memory();
    let superblock = (SUPERBLOCK_KEY.to_owned(), objects.superblock);
    for (key, bytes) in [(objects.checkpoint_key, objects.checkpoint), superblock] {
        let put = Request::Put { key, bytes: bytes.into(), condition: Condition::Create };
        assert!(matches!(node.runtime.block_on(store.perform(put)), End::Stored(_)));
    }
    store
}

/// Goal: a base whose folder does not answer holds up reads of what lies there, and neither writes,
/// flushes and other reads of the clone nor its end. Method: clones whose base's opening hangs, a
/// read of a block of the base, then other calls; one of them is dropped, for the other the opening
/// ends, and the read with it.
#[test]
fn a_base_that_hangs_stops_no_clone() {
    let node = Node::new();
    let base = Store::in_memory();
    let mut home = node.open_over(Node::plan(), base.clone());
    home.write(0, 7, 8);
    home.drain();
    for (number, is_dropped) in [(21, false), (22, true)] {
        let (clone, url) = (Node::new(), format!("gated://{number}"));
        let plan = Plan { volume: VolumeUuid([number; 16]), ..Node::plan() };
        let store = cloned((&node, &home), &base, &plan, &url);
        let mut copy = clone.open_over(plan, store);
        copy.write(20, 1, 1);
        let open = gate(&url, base.clone());
        let buffer = vec![0xee; BLOCK as usize];
        let hanging = copy.submit(BackingOperation::Read { offset: 0, buffer });
        copy.write(21, 2, 1);
        assert_eq!(copy.call(BackingOperation::Sync).result, Ok(()));
        assert_eq!([copy.read(20), copy.read(21)], [1, 2]);
        if is_dropped {
            drop(copy);
            continue;
        }
        open.send(()).expect("it is being opened");
        let done = copy.wait();
        assert_eq!((done.token, done.result), (hanging, Ok(())));
        assert!(done.buffer.expect("it comes back").iter().all(|byte| *byte == 7));
    }
}
