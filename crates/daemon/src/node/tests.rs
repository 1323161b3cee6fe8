//! Whole lives of a node over mock shards.

use super::*;
use crate::config::{Overrides, VolumeRoots};
use crate::control::tests::MockShard;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use tempfile::TempDir;

/// Starts mock shards; the one called `fails` refuses.
#[derive(Clone, Default)]
pub(crate) struct MockStarter {
    fails: Option<u8>,
    requests: Arc<Mutex<Vec<ShardRequest>>>,
    pub(crate) shards: Arc<Mutex<Vec<MockShard>>>,
}

/// A level that stays blank is lost at the next start.
fn mark(part: &LevelPart, node: [u8; 16]) {
    let Some(path) = &part.level.path else { return };
    let file = std::fs::OpenOptions::new().write(true).open(path);
    let mut head = [0; 32];
    head[..5].copy_from_slice(b"LAYBY");
    head[16..].copy_from_slice(&node);
    let file = file.expect("levels are made before shards start");
    let written = std::os::unix::fs::FileExt::write_all_at(&file, &head, part.base);
    written.expect("the test's own file");
}

impl ShardStarter for MockStarter {
    fn start(&self, request: ShardRequest) -> Result<StartedShard, Report> {
        if self.fails == Some(request.index) {
            return Err(Report::new(ReportKind::Corrupt, "cannot open the level"));
        }
        let shard = MockShard::default();
        if request.is_new {
            request.parts.iter().for_each(|part| mark(part, request.node));
        }
        for plan in &request.volumes {
            shard.state().volumes.insert(plan.spec.id.0, plan.clone());
        }
        // What was asked is looked at after the node has gone.
        self.requests.lock().expect("not poisoned").push(ShardRequest { lock: None, ..request });
        self.shards.lock().expect("not poisoned").push(shard.clone());
        let (port, thread) = shard.threaded();
        Ok(StartedShard { port: Box::new(port), report: StartReport::default(), thread })
    }
}

pub(crate) fn config(dir: &TempDir, more: &str) -> Config {
    let overrides =
        Overrides { dir: Some(dir.path().join("node")), shards: Some(2), ..Overrides::default() };
    let text = format!("{more}\n[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"32MiB\"\n");
    Config::parse(None, &text, &overrides).expect("a good configuration")
}

async fn start(dir: &TempDir, starter: &MockStarter) -> Result<Node, Report> {
    Node::start(config(dir, ""), Arc::new(starter.clone())).await
}

/// Goal: a node comes up, says so, and goes down cleanly; its files go or stay as they should.
/// Method: a whole life over mock shards.
#[tokio::test]
async fn node_lives_and_stops() {
    let dir = TempDir::new().expect("a temporary directory");
    let starter = MockStarter::default();
    let node = start(&dir, &starter).await.expect("nothing is missing");
    let lines = node.announcement();
    assert!(lines.last().is_some_and(|line| line.starts_with("ready")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("serving nbd+unix:///")), "{lines:?}");
    let requests = starter.requests.lock().expect("not poisoned").clone();
    let mut bases: Vec<u64> = requests.iter().map(|r| r.parts[0].base).collect();
    bases.sort_unstable();
    assert_eq!(bases, [0, 16 << 20]);
    assert!(requests.iter().all(|r| r.is_new));
    let home = dir.path().join("node");
    assert!(home.join("control.url").exists() && home.join("layby.sock").exists());
    let second = start(&dir, &MockStarter::default()).await;
    assert_eq!(second.err().map(|report| report.kind), Some(ReportKind::InUse));
    node.run(async {}).await.expect("the shards stop");
    assert!(starter.shards.lock().expect("not poisoned").iter().all(|s| s.state().stopped));
    assert!(!home.join("control.url").exists() && !home.join("layby.sock").exists());
    let again = MockStarter::default();
    start(&dir, &again).await.expect("the second life").run(async {}).await.expect("stops");
    assert!(again.requests.lock().expect("not poisoned").iter().all(|r| !r.is_new));
}

/// Starts mock shards whose threads go on after they have stopped, until they are let go.
struct LateStarter {
    mocks: MockStarter,
    /// One for each shard; its thread goes on until the sender is gone.
    held: Mutex<Vec<Receiver<()>>>,
    ended: Arc<AtomicUsize>,
}

impl ShardStarter for LateStarter {
    fn start(&self, request: ShardRequest) -> Result<StartedShard, Report> {
        let started = self.mocks.start(request)?;
        let held = self.held.lock().expect("not poisoned").pop().expect("one for each");
        let ended = Arc::clone(&self.ended);
        let thread = std::thread::spawn(move || {
            started.thread.join().expect("a mock does not panic");
            // It ends with the sender.
            let _ = held.recv();
            ended.fetch_add(1, Ordering::SeqCst);
        });
        Ok(StartedShard { thread, ..started })
    }
}

/// Goal: a node has ended only when its shards' threads have, which end what they had begun after
/// they have answered the stop. Method: shards whose threads are held then; the node is given time
/// by threads of the runtime that begin and end, and then they are let go.
#[tokio::test]
async fn a_node_ends_after_its_shards() {
    let dir = TempDir::new().expect("a temporary directory");
    let (mocks, ended) = (MockStarter::default(), Arc::new(AtomicUsize::new(0)));
    let (holds, held): (Vec<_>, Vec<_>) = (0..2).map(|_| channel::<()>()).unzip();
    let (held, counted) = (Mutex::new(held), Arc::clone(&ended));
    let starter = LateStarter { mocks: mocks.clone(), held, ended: counted };
    let node = Node::start(config(&dir, ""), Arc::new(starter)).await.expect("nothing is missing");
    let mut running = Box::pin(node.run(async {}));
    let time = async {
        let all_stopped = || {
            let shards = mocks.shards.lock().expect("not poisoned");
            shards.iter().all(|shard| shard.state().stopped)
        };
        while !all_stopped() {
            tokio::task::yield_now().await;
        }
        for _ in 0..500 {
            tokio::task::spawn_blocking(|| ()).await.expect("it does nothing");
        }
    };
    tokio::select! {
        _ = &mut running => panic!("it ends before the threads of its shards"),
        () = time => drop(holds),
    }
    running.await.expect("they stop");
    assert_eq!(ended.load(Ordering::SeqCst), 2);
}

/// Goal: a node that changed nothing writes nothing, so that it starts on a full disk too.
/// Method: a second life; the catalog's file is the same one.
#[tokio::test]
async fn unchanged_catalog_is_not_written() {
    let dir = TempDir::new().expect("a temporary directory");
    let inode = || {
        let path = dir.path().join("node").join(crate::catalog::CATALOG_FILE_NAME);
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).expect("it is there"))
    };
    let starter = MockStarter::default();
    let node = start(&dir, &starter).await.expect("nothing is missing");
    let before = inode();
    node.run(async {}).await.expect("stops");
    let node = start(&dir, &starter).await.expect("nothing is missing");
    assert_eq!(inode(), before);
    node.run(async {}).await.expect("stops");
}

/// Goal: a shard that cannot start ends all others and frees the directory. Method: one of two
/// refuses; then a start that succeeds.
#[tokio::test]
async fn failed_start_leaves_nothing_running() {
    let dir = TempDir::new().expect("a temporary directory");
    let starter = MockStarter { fails: Some(1), ..MockStarter::default() };
    let report = start(&dir, &starter).await.err().expect("a shard refuses");
    assert_eq!(report.kind, ReportKind::Corrupt);
    assert!(starter.shards.lock().expect("not poisoned").iter().all(|s| s.state().stopped));
    let starter = MockStarter::default();
    let node = start(&dir, &starter).await.expect("nothing is held");
    assert!(starter.requests.lock().expect("not poisoned").iter().all(|r| r.is_new));
    node.run(async {}).await.expect("stops");
}

/// Goal: a shard that dies takes the node with it, and says so. Method: stop one behind the
/// node's back; the node is never asked to end.
#[tokio::test]
async fn dead_shard_ends_the_node() {
    let dir = TempDir::new().expect("a temporary directory");
    let starter = MockStarter::default();
    let node = start(&dir, &starter).await.expect("nothing is missing");
    starter.shards.lock().expect("not poisoned")[0].die();
    let report = node.run(std::future::pending()).await.expect_err("it cannot go on");
    assert!(report.cause.contains("ended without being asked"), "{report}");
}

/// Goal: the lines of a start name the control socket that the node serves, not the configured one
/// in whose place another was passed. Method: a start on a passed socket with a path and on one
/// without; then a start that binds its own.
#[tokio::test]
async fn a_start_names_the_control_socket_that_it_has() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let dir = TempDir::new().expect("a temporary directory");
    let (own, path) = (dir.path().join("node/control.sock"), dir.path().join("passed.sock"));
    let unnamed = format!("layby-{}", dir.path().display());
    let abstract_name = SocketAddr::from_abstract_name(&unnamed).expect("short");
    let passed = |listener: UnixListener| Passed { control: Some(listener), ..Passed::default() };
    for (passed, expected) in [
        (passed(UnixListener::bind(&path).expect("free")), path.display().to_string()),
        (passed(UnixListener::bind_addr(&abstract_name).expect("free")), format!("@{unnamed}")),
        (Passed::default(), own.display().to_string()),
    ] {
        let starter = Arc::new(MockStarter::default());
        let node = Node::start_on(config(&dir, ""), starter, passed).await.expect("a good start");
        let lines = node.announcement();
        let control: Vec<&String> =
            lines.iter().filter(|line| line.starts_with("control `")).collect();
        assert_eq!(control, [&format!("control `{expected}`")], "{lines:?}");
        node.run(async {}).await.expect("stops");
    }
}

/// Goal: an address of the metrics for all of IPv6 stands beside one for clients of IPv4 with the
/// same port. Method: a start at a port that was free a moment ago; a client of each kind.
#[tokio::test]
async fn metrics_listen_beside_clients() {
    let dir = TempDir::new().expect("a temporary directory");
    let free = std::net::TcpListener::bind("[::]:0").expect("IPv6 is there");
    let port = free.local_addr().expect("it is bound").port();
    drop(free);
    let text =
        format!("[nbd]\nlisten = [\"0.0.0.0:{port}\"]\n[control]\nmetrics = \"[::]:{port}\"\n");
    let node = Node::start(config(&dir, &text), Arc::new(MockStarter::default())).await;
    let node = node.expect("both are free");
    for address in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        assert!(tokio::net::TcpStream::connect(&address).await.is_ok(), "{address}");
    }
    node.run(async {}).await.expect("stops");
}

/// A log's lines, as the subscriber of one test writes them.
#[derive(Clone, Default)]
pub(crate) struct LogLines(Arc<Mutex<Vec<u8>>>);

impl LogLines {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("text")
    }
}

impl std::io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Goal: that levels in memory may want more than there is, is said once at a start, before the
/// kernel may end the node for it. Method: a level of all that the process may have, whose shards
/// touch none of it; the log and the announcement.
#[tokio::test]
async fn a_shortage_of_memory_is_said_once() {
    let log = LogLines::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let dir = TempDir::new().expect("a temporary directory");
    let size = crate::memory::granted().expect("Linux says") & !((1 << 20) - 1);
    let level = format!("[[level]]\nname = \"memory\"\nkind = \"memory\"\nsize = {size}\n");
    let config = config(&dir, &level);
    let node = Node::start(config, Arc::new(MockStarter::default())).await.expect("it is granted");
    let log = log.text();
    let said = log.lines().map(str::to_owned).chain(node.announcement());
    let said: Vec<String> = said.filter(|line| line.contains("levels in memory of")).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(log.contains(&said[0]), "it is said before the levels are made");
    node.run(async {}).await.expect("stops");
}

/// Goal: a folder that hangs at the start holds up no other work of the node, and is seen once it
/// answers. Method: on a runtime of one thread, a configuration file that is a link in such a
/// folder; a task ends the hang once the start looks there. Then the folder fails, and the link is
/// known.
#[tokio::test]
async fn a_start_looks_beside_other_work() {
    let dir = TempDir::new().expect("a temporary directory");
    let [far, file] = ["far", "file"].map(|name| dir.path().join(name));
    let link = far.join("link");
    std::fs::create_dir(&far).expect("a writable directory");
    std::fs::write(&file, "").expect("a writable directory");
    std::os::unix::fs::symlink(&file, &link).expect("a writable directory");
    let config = Config { origin: Some(link.clone()), ..config(&dir, "") };
    let hanging = crate::config::hanging::hang(&far);
    let ending = tokio::spawn(async move {
        while !hanging.is_reached() {
            tokio::task::yield_now().await;
        }
    });
    let node = Node::start(config, Arc::new(MockStarter::default())).await;
    let node = node.expect("the folder answers in time");
    ending.await.expect("it does not panic");
    std::fs::rename(&far, dir.path().join("away")).expect("a writable directory");
    std::os::unix::fs::symlink(&far, &far).expect("a writable directory");
    let control = node.control();
    let roots = VolumeRoots::of(&control.facts().config, &control.facts().paths.kept);
    let own = roots.own(&file).expect("nothing hangs");
    assert_eq!(own, Some(link.as_path()), "it was seen at the start");
    node.run(async {}).await.expect("the shards stop");
}
