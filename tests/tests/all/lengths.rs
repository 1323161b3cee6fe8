//! Volumes of any length that the documents name, and what becomes of them over a stop.
//!
//! How: volumes in a folder as an object store, which has room for any length, since only what was
//! written is stored.
//! Invariant: a length that the node has accepted is served by its next start.
//! Not for: changes of lengths under load, see `clients.rs`; shrinks that a kill ends, see
//! `unfinished.rs`.

use layby_tests::cloud::{self, Client, VOLUME, World};
use layby_tests::link::{Effect, Fault, Injected, Operation};
use layby_tests::{
    Connection, Node, Options, Request, available, binary, layby, mount_unavailable, must,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const LEVELS: &str = "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\
                      [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n";
/// The documented upper end, 65536TiB.
const LONGEST_BYTES: u64 = 1 << 56;
const BLOCK: u32 = 4096;

fn started(base: &Path) -> Node {
    Node::start(&base.join("node"), &Options::config(LEVELS))
}

fn create(node: &Node, base: &Path, name: &str, size: &str) {
    let path = format!("file://{}", base.join("stores").join(name).display());
    node.layby(&["volume", "create", name, "--size", size, "--path", &path]);
}

fn opened(node: &Node, name: &str) -> Connection {
    Connection::open(&node.socket(), name).expect("it is served")
}

fn write_at(offset: u64) -> Request {
    Request::Write { offset, data: vec![7; BLOCK as usize], fua: true }
}

/// Goal: the whole documented range of lengths is served, over a restart too, and what lies beyond
/// it is refused. Method: a volume made so long, and one that becomes so long; their last blocks.
#[test]
fn the_longest_volume_is_served_again() {
    let base = TempDir::new().expect("a temporary folder");
    let base = base.path();
    let node = started(base);
    create(&node, base, "made", "65536TiB");
    create(&node, base, "grown", "8MiB");
    node.layby(&["volume", "resize", "grown", "--size", "65536TiB"]);
    let place = base.join("node").display().to_string();
    let beyond = ["volume", "resize", "grown", "--size", "65537TiB", "--dir", &place];
    layby(&beyond).assert_explains(&["65537TiB", "65536TiB"]);
    let last = LONGEST_BYTES - u64::from(BLOCK);
    for name in ["made", "grown"] {
        let written = opened(&node, name).call(&write_at(last)).expect("it serves");
        written.expect("the last block is the volume's");
    }
    node.stop();
    let node = started(base);
    for name in ["made", "grown"] {
        let mut connection = opened(&node, name);
        assert_eq!(connection.size(), LONGEST_BYTES);
        let read = Request::Read { offset: last, length: BLOCK };
        assert_eq!(connection.call(&read).expect("it serves").expect("it is there"), [7; 4096]);
    }
    node.stop();
}

/// Goal: a file that is longer than its volume keeps the rest, whatever length the volume gets, and
/// what a shrink zeroed is zeros when the volume grows again. Method: a volume in the front of a
/// file grows, shrinks and grows; on one shard and on two.
#[test]
fn a_longer_file_keeps_its_rest() {
    const MIB: u32 = 1 << 20;
    for shards in ["1", "2"] {
        let base = TempDir::new().expect("a temporary folder");
        let base = base.path();
        let file = base.join("image");
        std::fs::write(&file, vec![b'B'; 8 * MIB as usize]).expect("the test's own folder");
        let roots = format!("[node]\nshards = 2\nvolume_roots = [\"{}\"]\n", base.display());
        let node = Node::start(&base.join("node"), &Options::config(format!("{roots}{LEVELS}")));
        let path = file.display().to_string();
        let create = ["volume", "create", "v", "--size", "2MiB", "--path", &path];
        node.layby(&[&create[..], &["--shards", shards]].concat());
        let rest_is_there = |when: &str| {
            let bytes = std::fs::read(&file).expect("it is there");
            assert_eq!(bytes.len(), 8 * MIB as usize, "{when}, {shards} shard(s)");
            let rest = &bytes[4 * MIB as usize..];
            assert!(rest.iter().all(|byte| *byte == b'B'), "{when}, {shards} shard(s)");
        };
        node.layby(&["volume", "resize", "v", "--size", "4MiB"]);
        rest_is_there("a growth");
        node.layby(&["volume", "resize", "v", "--size", "2MiB", "--shrink"]);
        rest_is_there("a shrink");
        node.layby(&["volume", "resize", "v", "--size", "4MiB"]);
        node.layby(&["volume", "drain", "v"]);
        rest_is_there("a growth after it");
        let read = Request::Read { offset: 0, length: 4 * MIB };
        let bytes = opened(&node, "v").call(&read).expect("it serves").expect("it is there");
        let (kept, zeroed) = bytes.split_at(2 * MIB as usize);
        assert!(kept.iter().all(|byte| *byte == b'B') && zeroed.iter().all(|byte| *byte == 0));
        node.stop();
    }
}

/// Goal: what a shrink cut off is zeros when the volume grows again, also where discards are
/// delayed and one that ends at the new end still waits. Method: a volume in the front of a longer
/// file, a trim before the new end, a stop between shrink and growth or none.
#[test]
fn a_delayed_discard_hides_no_zeroing() {
    const MIB: u32 = 1 << 20;
    for stops in [false, true] {
        let base = TempDir::new().expect("a temporary folder");
        let base = base.path();
        let file = base.join("image");
        std::fs::write(&file, vec![b'B'; 8 * MIB as usize]).expect("the test's own folder");
        let roots = format!("[node]\nvolume_roots = [\"{}\"]\n", base.display());
        let config = format!("{roots}{LEVELS}");
        let mut node = Node::start(&base.join("node"), &Options::config(&config));
        let path = file.display().to_string();
        let create = ["volume", "create", "v", "--size", "4MiB", "--path", &path];
        node.layby(&[&create[..], &["--discard", "delayed"]].concat());
        let trim = Request::Trim { offset: u64::from(MIB), length: MIB };
        opened(&node, "v").call(&trim).expect("it serves").expect("it is the volume's");
        node.layby(&["volume", "resize", "v", "--size", "2MiB", "--shrink"]);
        if stops {
            node.stop();
            node = Node::start(&base.join("node"), &Options::config(&config));
        }
        node.layby(&["volume", "resize", "v", "--size", "4MiB"]);
        let read = Request::Read { offset: 0, length: 4 * MIB };
        let bytes = opened(&node, "v").call(&read).expect("it serves").expect("it is there");
        let (kept, zeroed) = bytes.split_at(MIB as usize);
        assert!(kept.iter().all(|byte| *byte == b'B'), "stops: {stops}");
        assert!(zeroed.iter().all(|byte| *byte == 0), "stops: {stops}");
        node.stop();
    }
}

/// Goal: a shrink that takes hours ends no shard, holds up no other volume's change and no stop;
/// the stop breaks it off, and says so. Method: 65536TiB to 1MiB, more blocks than a request
/// counts; it has begun when what is written behind the new end is refused.
#[test]
fn a_stop_breaks_a_shrink_off() {
    let base = TempDir::new().expect("a temporary folder");
    let base = base.path();
    let node = started(base);
    create(&node, base, "long", "65536TiB");
    create(&node, base, "other", "8MiB");
    let mut command = Command::new(binary());
    command.args(["volume", "resize", "long", "--size", "1MiB", "--shrink", "--dir"]);
    command.arg(base.join("node")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut shrinking = command.spawn().expect("the program is built");
    let mut connection = opened(&node, "long");
    while connection.call(&write_at(LONGEST_BYTES / 2)).expect("it serves").is_ok() {
        assert!(shrinking.try_wait().expect("a child").is_none(), "it goes on for hours");
    }
    node.layby(&["volume", "set", "other", "--read-only", "true"]);
    let read = Request::Read { offset: LONGEST_BYTES / 2, length: BLOCK };
    assert!(connection.call(&read).expect("it serves").is_ok(), "it has its size until then");
    drop(connection);
    node.stop();
    let ended = shrinking.wait_with_output().expect("a child");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("old size"), "{said}");
    let node = started(base);
    assert_eq!(opened(&node, "long").size(), LONGEST_BYTES);
    node.stop();
}

/// Goal: a write that is in flight as a shrink begins does not outlive it behind the new end: what
/// is dirty can be written back, and a growth finds zeros there (a hunt found that neither was so,
/// in one round of eight). Method: a client with writes in flight behind the new end, a shrink, a
/// drain, a growth; again and again.
#[test]
fn no_write_in_flight_outlives_a_shrink() {
    const ROUNDS: u64 = 40;
    const BLOCKS_AT_ONCE: u64 = 8;
    let base = TempDir::new().expect("a temporary folder");
    let node = started(base.path());
    node.layby(&["volume", "create", "v", "--size", "8MiB", "--class", "bulk"]);
    let (half, whole) = (1024, 2048);
    for round in 1..=ROUNDS {
        let mut connection = opened(&node, "v");
        let writing = std::thread::spawn(move || {
            let mut rng = layby_types::Rng::new(round);
            loop {
                let block = half + rng.below(whole - half - BLOCKS_AT_ONCE);
                let (offset, length) = (block * u64::from(BLOCK), BLOCKS_AT_ONCE as usize * 4096);
                let data = vec![round as u8; length];
                let answer = connection.call(&Request::Write { offset, data, fua: false });
                if answer.expect("it serves").is_err() {
                    return;
                }
            }
        });
        // The levels are to be full of dirty blocks at times.
        for _ in 0..round % 4 {
            node.layby(&["volume", "show", "v"]);
        }
        node.layby(&["volume", "resize", "v", "--size", "4MiB", "--shrink"]);
        writing.join().expect("the first write behind the end is an error");
        node.layby(&["volume", "drain", "v"]);
        node.layby(&["volume", "resize", "v", "--size", "8MiB"]);
        let mut connection = opened(&node, "v");
        let length = (whole - half) as u32 * BLOCK;
        let read = Request::Read { offset: half * u64::from(BLOCK), length };
        let bytes = connection.call(&read).expect("it serves").expect("it is there");
        assert!(bytes.iter().all(|byte| *byte == 0), "round {round}: a write is behind the end");
    }
    node.stop();
}

/// A command that is to end soon; what it says, and whether it succeeds.
fn ends_soon(world: &World, words: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.arg("60").arg(binary()).args(words).arg("--dir").arg(world.dir("a"));
    let ended = command.output().expect("the program is built");
    let said = [ended.stdout, ended.stderr].concat();
    (ended.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// A node of whose volume only the silent store has the second half, and to which a client that
/// has gone left this request there.
fn left_behind<'a>(world: &'a World, request: &Request) -> (Node, Client, Injected<'a>) {
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write_each();
    node.layby(&["volume", "drain", VOLUME]);
    drop(node);
    let node = world.start("a");
    let silent = Fault::new(Effect::NeverAnswer).on(Operation::Get).key("segments/");
    let fault = world.link.fault(silent);
    let mut gone = Connection::open(&node.socket(), VOLUME).expect("it serves");
    gone.send(request).expect("it serves");
    fault.wait_hits(1);
    let client = client.reopen(&node);
    (node, client, fault)
}

/// Goal: what a client that has gone left behind the new end, and what waits for a silent store,
/// holds up no shrink and no other change of the volume; no byte of it is there when the volume
/// grows again and the store answers (a hunt found that the shrink, and then every change of the
/// volume, waited for as long as the store was silent). Method: a read and a write of a part of a
/// block left behind, a shrink, a change, a growth; what is read behind the end, and before it.
#[test]
fn what_was_left_behind_holds_up_no_shrink() {
    const LEFT: u64 = cloud::BLOCKS / 4 * 3;
    let Some(_) = World::new() else { return };
    let offset = LEFT * cloud::BLOCK;
    let part = Request::Write { offset: offset + 512, data: vec![7; 512], fua: false };
    for request in [Request::Read { offset, length: BLOCK }, part] {
        let world = World::new().expect("there was one before");
        let (node, mut client, fault) = left_behind(&world, &request);
        let half = (cloud::BLOCKS * cloud::BLOCK / 2).to_string();
        let whole = (cloud::BLOCKS * cloud::BLOCK).to_string();
        let shrink = ["volume", "resize", VOLUME, "--size", &half, "--shrink"];
        let (is_shrunk, said) = ends_soon(&world, &shrink);
        assert!(is_shrunk, "{request:?}: {said}");
        let set = ["volume", "set", VOLUME, "--iops-max", "90000"];
        let (is_set, said) = ends_soon(&world, &set);
        assert!(is_set, "{request:?}: {said}");
        node.layby(&["volume", "resize", VOLUME, "--size", &whole]);
        fault.lift();
        client = client.reopen(&node);
        client.blocks[cloud::BLOCKS as usize / 2..].fill(0);
        client.verify();
        client.verify_store(&world, &node);
    }
}

/// Goal: a deletion with the data ends at once though the volume shrinks and its store is silent.
/// Method: a read left behind the new end, a shrink that has begun when what is written there is
/// refused, a deletion; what the shrink says.
#[test]
fn a_deletion_ends_a_shrink() {
    const LEFT: u64 = cloud::BLOCKS / 4 * 3;
    let Some(world) = World::new() else { return };
    let request = Request::Read { offset: LEFT * cloud::BLOCK, length: BLOCK };
    let (node, mut client, fault) = left_behind(&world, &request);
    let half = (cloud::BLOCKS * cloud::BLOCK / 2).to_string();
    let mut command = Command::new(binary());
    command.args(["volume", "resize", VOLUME, "--size", &half, "--shrink", "--dir"]);
    command.arg(world.dir("a")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shrinking = command.spawn().expect("the program is built");
    let last = write_at((cloud::BLOCKS - 1) * cloud::BLOCK);
    while client.connection.call(&last).expect("it serves").is_ok() {}
    let delete = ["volume", "delete", VOLUME, "--data", "delete"];
    let (is_deleted, said) = ends_soon(&world, &delete);
    drop(fault);
    assert!(is_deleted, "{said}");
    let ended = shrinking.wait_with_output().expect("a child");
    let said = String::from_utf8_lossy(&ended.stderr);
    // On a slow machine it gave up the read before the deletion came.
    assert!(ended.status.success() || said.contains("is being deleted"), "{said}");
    assert!(!node.layby(&["volume", "list"]).contains(VOLUME));
}

/// An ext4 in a file, mounted until this goes; its journal is not written by time.
struct Disk(PathBuf);

impl Disk {
    fn mount(image: &Path, point: &Path) -> Disk {
        std::fs::create_dir_all(point).expect("the test's own folder can be written");
        let places = [image, point].map(|path| path.to_string_lossy().into_owned());
        must("mount", &["-t", "ext4", "-o", "loop,commit=300", &places[0], &places[1]]);
        Disk(point.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Another thread's child that is no program yet may hold a file of it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Goal: a volume that was made larger is served after a power cut right behind the answer, at its
/// new size. Method: its file on an ext4 of its own; what that has on its device when the answer
/// comes is mounted in its place.
#[test]
fn a_larger_size_outlasts_a_power_cut() {
    if !available(&["mkfs.ext4", "mount", "umount", "sync"]) || mount_unavailable() {
        return;
    }
    let base = TempDir::new().expect("a temporary folder");
    let [image, cut, point] = ["image", "cut", "disk"].map(|name| base.path().join(name));
    let made = std::fs::File::create(&image).and_then(|file| file.set_len(64 << 20));
    made.expect("the test's own folder can be written");
    must("mkfs.ext4", &["-q", "-F", &image.to_string_lossy()]);
    let disk = Disk::mount(&image, &point);
    let roots = format!("[node]\nvolume_roots = [\"{}\"]\n{LEVELS}", point.display());
    let start = || Node::start(&base.path().join("node"), &Options::config(roots.as_str()));
    let node = start();
    let path = point.join("v").to_string_lossy().into_owned();
    node.layby(&["volume", "create", "v", "--size", "4MiB", "--path", &path]);
    must("sync", &["--file-system", &point.to_string_lossy()]);
    node.layby(&["volume", "resize", "v", "--size", "8MiB"]);
    std::fs::copy(&image, &cut).expect("there is room");
    node.kill9();
    drop(disk);
    let _disk = Disk::mount(&cut, &point);
    let node = start();
    let last = opened(&node, "v").call(&write_at((8 << 20) - u64::from(BLOCK)));
    last.expect("it is served").expect("the last block is the volume's");
    node.stop();
}
