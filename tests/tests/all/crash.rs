//! A node that is killed again and again keeps what it promised.
//!
//! How: a writer of our own records what was promised (see `History`) while fio adds load with
//! fsync; the node is killed after a number of batches that the seed chooses. `LAYBY_CRASH_RUNS`
//! sets how often (5 without it), `LAYBY_SEED` the seed. Tests whose name holds `power_loss` start
//! the node with `--simulate-power-loss`, so that a kill drops all that was not durable.
//! Invariant: `layby check` is clean after every kill, before the node starts again.

use layby_tests::{
    Attached, BLOCK_BYTES, Connection, Durability, Held, History, Mounted, Node, Options,
    available, fio_available, layby, mount_unavailable, must, number, seed, small_levels,
};
use layby_types::Rng;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::scope;
use tempfile::{NamedTempFile, TempDir};

const RUNS_DEFAULT: u64 = 5;
const BLOCKS: u64 = 2048;
const VOLUMES: [(&str, Durability); 3] = [
    ("critical", Durability::OnReply),
    ("normal", Durability::OnFlush),
    ("bulk", Durability::OnFlush),
];

fn runs() -> u64 {
    number("LAYBY_CRASH_RUNS", RUNS_DEFAULT)
}

fn options(power_loss: bool) -> Options {
    Options { power_loss, ..small_levels() }
}

#[track_caller]
fn check(dir: &Path, run: u64) {
    let outcome = layby(&["check", "--dir", &dir.to_string_lossy()]);
    assert!(
        outcome.success,
        "run {run}: check: {}\n{}\nreplay with LAYBY_SEED={}",
        outcome.stdout,
        outcome.stderr,
        seed()
    );
}

/// Goal: after kill -9 every promised block is there, whole, and `check` is clean. Method: writers
/// on three classes beside fio, killed after a random number of batches, again and again.
#[test]
fn promised_blocks_survive_kill() {
    promised_blocks_survive(&options(false));
}

/// Goal and method: as `promised_blocks_survive_kill`, and what was not durable is dropped.
#[test]
fn promised_blocks_survive_power_loss() {
    promised_blocks_survive(&options(true));
}

/// Goal and method: as `promised_blocks_survive_kill`, on an encrypted SSD level.
#[test]
fn promised_blocks_survive_kill_encrypted() {
    let (_key, options) = encrypted(false);
    promised_blocks_survive(&options);
}

/// Goal and method: as `promised_blocks_survive_power_loss`, on an encrypted SSD level.
#[test]
fn promised_blocks_survive_power_loss_encrypted() {
    let (_key, options) = encrypted(true);
    promised_blocks_survive(&options);
}

/// The same levels, the last of them, which is the SSD's, with a key.
fn encrypted(power_loss: bool) -> (NamedTempFile, Options) {
    let mut key = NamedTempFile::new().expect("a temporary file, which its owner alone can read");
    key.write_all("1f".repeat(32).as_bytes()).expect("a writable file");
    let levels = small_levels().config.expect("it has one");
    assert!(levels.trim_end().ends_with("preallocation = \"falloc\""), "of the SSD level");
    let config = format!("{levels}key = \"file:{}\"\n", key.path().display());
    (key, Options { power_loss, ..Options::config(config) })
}

fn promised_blocks_survive(options: &Options) {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let mut rng = Rng::new(seed());
    let mut histories: Vec<History> = VOLUMES
        .iter()
        .map(|(_, durability)| History::new(BLOCKS, *durability, rng.next_u64()))
        .collect();
    for run in 0..runs() {
        let node = Node::start(&dir, options);
        if run == 0 {
            create_volumes(&node);
        }
        verify(&node, &mut histories);
        let load = start_load(&node);
        write_and_kill(node, &mut histories, 5 + rng.below(60));
        end_load(load);
        check(&dir, run);
    }
    let node = Node::start(&dir, options);
    verify(&node, &mut histories);
    node.stop();
    check(&dir, runs());
}

fn create_volumes(node: &Node) {
    for (name, _) in VOLUMES {
        node.volume_create(name, &(BLOCKS * BLOCK_BYTES).to_string(), name);
    }
    node.volume_create("load", "192MiB", "normal");
}

fn verify(node: &Node, histories: &mut [History]) {
    for ((name, _), history) in VOLUMES.iter().zip(histories) {
        let mut connection = Connection::open(&node.socket(), name).expect("the node serves");
        history.verify(&mut connection);
    }
}

/// fio with fsync on a volume of its own, so that levels fill, evict and destage meanwhile.
fn start_load(node: &Node) -> Option<Child> {
    if !fio_available() {
        return None;
    }
    let mut fio = Command::new("fio");
    fio.args(["--name=load", "--ioengine=nbd", "--rw=randwrite", "--bs=16k", "--iodepth=8"]);
    // Without a process of its own, which would outlive the kill of the one that is known here.
    fio.args(["--fsync=16", "--size=192M", "--time_based", "--runtime=300", "--thread"]);
    fio.arg(format!("--uri={}", node.uri("load")));
    fio.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Some(fio.spawn().expect("fio was found before"))
}

/// The load ends by itself when its server does; the kill is for a client that would not notice.
fn end_load(load: Option<Child>) {
    if let Some(mut load) = load {
        let _ = load.kill();
        let _ = load.wait();
    }
}

/// Lets every history write until the node, killed after `batches` batches, is gone.
fn write_and_kill(node: Node, histories: &mut [History], batches: u64) {
    let socket = node.socket();
    let (heard, batch_done) = channel();
    scope(|threads| {
        for ((name, _), history) in VOLUMES.iter().zip(histories) {
            let (socket, heard) = (&socket, heard.clone());
            threads.spawn(move || write(socket, name, history, &heard));
        }
        // A writer that fails hangs up; then the count ends early and the scope reports it.
        drop(heard);
        let count = usize::try_from(batches).expect("a small number");
        assert_eq!(batch_done.iter().take(count).count(), count, "the writers ended by themselves");
        node.kill9();
    });
}

fn write(socket: &Path, name: &str, history: &mut History, heard: &Sender<()>) {
    let Ok(mut connection) = Connection::open(socket, name) else { return };
    // Nobody listens any more once the node is to be killed.
    history.write_until_lost(&mut connection, || {
        let _ = heard.send(());
    });
}

/// Bytes that a node with the small levels of these tests may hold, in KiB: levels, buffers, code.
const MEMORY_KIB_MAX: u64 = 512 << 10;
/// Descriptors that a node may hold once its clients are gone, beyond those it began with.
const DESCRIPTORS_MORE_MAX: usize = 8;

/// Goal: over a long time, kills, stops and clients that come and go, nothing promised is lost and
/// a node's memory and descriptors stay within their ceilings. Method: rounds of load for
/// `LAYBY_SOAK_SECONDS` (10 without it), connections that break off meanwhile; then a kill, or a
/// stop, by chance; `check` after each.
#[test]
fn a_soak_stays_within_its_ceilings() {
    let work = TempDir::new().expect("a temporary folder");
    let (dir, options) = (work.path().join("node"), options(false));
    let mut rng = Rng::new(seed());
    let mut histories: Vec<History> = VOLUMES
        .iter()
        .map(|(_, durability)| History::new(BLOCKS, *durability, rng.next_u64()))
        .collect();
    #[expect(clippy::disallowed_methods, reason = "a soak lasts as long as people say")]
    let began = std::time::Instant::now();
    let (mut run, mut memory_kib_max) = (0, 0);
    while run < 2 || began.elapsed().as_secs() < number("LAYBY_SOAK_SECONDS", 10) {
        let node = Node::start(&dir, &options);
        if run == 0 {
            create_volumes(&node);
        }
        let before = node.held();
        verify(&node, &mut histories);
        let load = start_load(&node);
        break_off(&node, 20 + rng.below(100), &mut rng);
        write_batches(&node, &mut histories, 20 + rng.below(400));
        end_load(load);
        // One more question and its answer: whoever broke off has been noticed by then.
        let _ = node.layby(&["status", "--json"]);
        memory_kib_max = memory_kib_max.max(hold_to_ceilings(&node, before, run));
        if rng.chance(1, 3) {
            node.stop();
        } else {
            node.kill9();
        }
        check(&dir, run);
        run += 1;
    }
    let line = format!("soak: {run} rounds, at most {memory_kib_max} KiB resident");
    writeln!(std::io::stderr(), "{line}").expect("standard error is open");
}

/// Connections that end in the middle of a request, or at once.
fn break_off(node: &Node, count: u64, rng: &mut Rng) {
    for _ in 0..count {
        let (name, _) = VOLUMES[rng.below(VOLUMES.len() as u64) as usize];
        let mut connection = Connection::open(&node.socket(), name).expect("the node serves");
        if rng.chance(1, 2) {
            let read = layby_tests::Request::Read { offset: 0, length: BLOCK_BYTES as u32 };
            // Whether it is answered before the end is nobody's concern here.
            let _ = connection.send(&read);
        }
    }
}

/// Lets every history write so many batches, side by side.
fn write_batches(node: &Node, histories: &mut [History], batches: u64) {
    let socket = node.socket();
    scope(|threads| {
        for ((name, _), history) in VOLUMES.iter().zip(histories) {
            let socket = &socket;
            threads.spawn(move || {
                let mut connection = Connection::open(socket, name).expect("the node serves");
                for _ in 0..batches {
                    history.batch(&mut connection).expect("nobody kills the node now");
                }
            });
        }
    });
}

/// Answers the resident memory in KiB.
fn hold_to_ceilings(node: &Node, before: Held, run: u64) -> u64 {
    let held = node.held();
    assert!(held.memory_kib <= MEMORY_KIB_MAX, "round {run}: {held:?}");
    let most = before.descriptors + DESCRIPTORS_MORE_MAX;
    assert!(held.descriptors <= most, "round {run}: {held:?}, at its start {before:?}");
    held.memory_kib
}

/// Goal: a file system on a killed node mounts, holds every file that was synced, and is sound.
/// Method: files with fsync on ext4 over loop over nbdfuse; kill; mount; compare; `fsck.ext4 -fn`.
#[test]
fn ext4_survives_kill() {
    ext4_survives(false);
}

/// Goal and method: as `ext4_survives_kill`, and what was not durable is dropped.
#[test]
fn ext4_survives_power_loss() {
    ext4_survives(true);
}

fn ext4_survives(power_loss: bool) {
    let tools = ["nbdfuse", "losetup", "mkfs.ext4", "fsck.ext4", "mount", "umount", "mkfifo"];
    if mount_unavailable() || !available(&tools) {
        return;
    }
    let work = TempDir::new().expect("a temporary folder");
    let (dir, options) = (work.path().join("node"), options(power_loss));
    let (mut rng, mut synced) = (Rng::new(seed()), BTreeMap::new());
    for run in 0..=runs() {
        let node = Node::start(&dir, &options);
        if run == 0 {
            node.volume_create("disk", "192MiB", "normal");
        }
        let attached = Attached::new(work.path(), &node.uri("disk"));
        if run == 0 {
            must("mkfs.ext4", &["-q", "-F", attached.device()]);
        }
        let mounted = Mounted::new(work.path(), attached);
        compare_files(mounted.path(), &synced);
        let attached = mounted.unmount();
        must("fsck.ext4", &["-f", "-n", attached.device()]);
        if run == runs() {
            drop(attached);
            node.stop();
        } else {
            let mounted = Mounted::new(work.path(), attached);
            write_files_and_kill(node, &mounted, run, &mut rng, &mut synced);
        }
        check(&dir, run);
    }
}

fn compare_files(folder: &Path, synced: &BTreeMap<String, Vec<u8>>) {
    for (name, contents) in synced {
        let found = std::fs::read(folder.join(name));
        let found = found.unwrap_or_else(|cause| panic!("{name} was synced, and is lost: {cause}"));
        assert!(found == *contents, "{name} was synced, and changed; LAYBY_SEED={}", seed());
    }
}

/// Writes and syncs files; the node dies while later ones are on their way.
fn write_files_and_kill(
    node: Node,
    mounted: &Mounted,
    run: u64,
    rng: &mut Rng,
    synced: &mut BTreeMap<String, Vec<u8>>,
) {
    const FILE_BYTES_MAX: u64 = 200_000;
    const FILES_MAX: u64 = 100;
    let files_before_kill = 3 + rng.below(15);
    let (heard, file_done) = channel();
    let mut file_rng = Rng::new(rng.next_u64());
    scope(|threads| {
        threads.spawn(move || {
            for number in 0..FILES_MAX {
                let mut contents = vec![0; (1 + file_rng.below(FILE_BYTES_MAX)) as usize];
                file_rng.fill(&mut contents);
                let name = format!("run-{run}-{number}");
                let written = File::create(mounted.path().join(&name))
                    .and_then(|mut file| file.write_all(&contents).and_then(|()| file.sync_all()));
                if written.is_err() {
                    break;
                }
                synced.insert(name, contents);
                // Nobody listens any more once the node is to be killed.
                let _ = heard.send(());
            }
        });
        let count = usize::try_from(files_before_kill).expect("a small number");
        assert_eq!(file_done.iter().take(count).count(), count, "files could not be written");
        node.kill9();
    });
}
