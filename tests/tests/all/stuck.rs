//! Backing stores that stop to answer, and answer again; through the binary.
//!
//! How: a volume's backing store is a file that nbdfuse shows of an nbdkit; a stopped nbdkit (the
//! signal) is a device whose operations never end, until it is told to go on. What the node does by
//! itself is waited for by asking it again and again, and never by a time.

use layby_tests::{
    Connection, HttpRequest, Node, Options, Refusal, Request, available, binary, mount_unavailable,
    must, run,
};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Questions to a node at most, until it has done what it does by itself.
const QUESTIONS_MAX: usize = 4000;
/// Bytes of a block.
const BLOCK: u64 = 4096;
/// More reads than any node has threads or workers.
const DEPTH: u64 = 96;
/// The protocol's error number of a failed read or write.
const EIO: u32 = 5;

/// A file that answers, or does not.
struct Device {
    kit: Child,
    fuse: Child,
    folder: PathBuf,
}

impl Device {
    fn new(work: &Path) -> Device {
        let (socket, pipe) = (work.join("kit.sock"), work.join("fuse.ready"));
        let folder = work.join("fuse");
        std::fs::create_dir_all(&folder).expect("the test's own folder can be written");
        let started = work.join("kit.pid");
        let kit = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--pidfile"])
            .args([&started, Path::new("--unix"), &socket])
            .args(["memory", "64M"])
            .stdin(Stdio::null())
            .spawn()
            .expect("nbdkit was found before");
        must("mkfifo", &[pipe.to_string_lossy()]);
        while !started.exists() {
            std::thread::yield_now();
        }
        let fuse = Command::new("nbdfuse")
            .arg("--pidfile")
            .args([&pipe, &folder.join("nbd")])
            .arg(format!("nbd+unix:///?socket={}", socket.display()))
            .stdin(Stdio::null())
            .spawn()
            .expect("nbdfuse was found before");
        // The pipe opens once nbdfuse writes its number, which it does when the file is there.
        must("cat", &[pipe.to_string_lossy()]);
        Device { kit, fuse, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("nbd")
    }

    fn answer(&self, answers: bool) {
        let signal = if answers { "-CONT" } else { "-STOP" };
        must("kill", &[signal, &self.kit.id().to_string()]);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Nothing may hang on the mount when it goes.
        self.answer(true);
        let folder = self.folder.to_string_lossy();
        run("umount", &["--lazy", &folder]);
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
        let _ = self.kit.kill();
        let _ = self.kit.wait();
    }
}

fn config(device: &Device, io: &str) -> String {
    config_of(device, io, 1)
}

fn config_of(device: &Device, io: &str, shards: u8) -> String {
    format!(
        "[node]\nio = \"{io}\"\nshards = {shards}\nio_timeout = \"2s\"\n\
         [volume.far]\nsize = \"64MiB\"\npath = \"{}\"\n\
         [volume.near]\nsize = \"64MiB\"\n",
        device.path().display()
    )
}

fn read(block: u64) -> Request {
    Request::Read { offset: block * BLOCK, length: BLOCK as u32 }
}

fn write(block: u64, value: u8) -> Request {
    Request::Write { offset: block * BLOCK, data: vec![value; BLOCK as usize], fua: false }
}

fn ask(connection: &mut Connection, request: &Request) -> Result<Vec<u8>, u32> {
    connection.send(request).expect("the node serves");
    connection.receive().expect("the node serves").1
}

fn status(node: &Node) -> serde_json::Value {
    serde_json::from_str(&node.layby(&["status", "--json"])).expect("a status in JSON")
}

/// Goal: while one backing store is silent, and long before that is noticed, writes of a volume on
/// another device go on, though the level is full of dirty blocks of both. Method: a level of
/// 8 MiB, a device that is stopped under writes, a trim and a zeroing, four times the level's size
/// written to the other volume; the limit of an operation is an hour.
#[test]
fn a_silent_device_keeps_no_others_destages() {
    if mount_unavailable() || !available(&["nbdkit", "nbdfuse"]) {
        return;
    }
    let dir = TempDir::new().expect("a temporary directory");
    let device = Device::new(dir.path());
    let config = format!(
        "[node]\nshards = 1\nio_timeout = \"1h\"\n\
         [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"8MiB\"\n\
         [volume.far]\nsize = \"64MiB\"\nclass = \"bulk\"\npath = \"{}\"\n\
         [volume.near]\nsize = \"64MiB\"\nclass = \"critical\"\nshare = {{ ssd = \"30%\" }}\n",
        device.path().display()
    );
    let node = Node::start(&dir.path().join("node"), &Options::config(config));
    let open = |volume| Connection::open(&node.socket(), volume).expect("the node serves");
    let (mut far, mut near) = (open("far"), open("near"));
    (0..1200).for_each(|block| drop(ask(&mut near, &write(block * 3, 7)).expect("a write")));
    device.answer(false);
    for block in 0..DEPTH * 8 {
        far.send(&write(block * 5, 9)).expect("the node serves");
    }
    let (offset, length) = (8000 * BLOCK, 64 << 10);
    far.send(&Request::Trim { offset, length }).expect("the node serves");
    far.send(&Request::Zero { offset: 2 * offset, length }).expect("the node serves");
    let (slots, step) = (2048, 7);
    for index in 0..slots * 4 {
        let block = index * step % 16_000;
        ask(&mut near, &write(block, index as u8)).expect("its own device answers");
    }
    ask(&mut near, &Request::Flush).expect("its level answers");
    device.answer(true);
    drop(far);
    node.layby(&["volume", "drain", "near"]);
}

/// Goal: a backing store that stops to answer costs the requests that need it an error, in time,
/// and nobody else anything; it is named by status, metrics and log; once it answers, everything is
/// there. Method: more reads than there are threads hang on a stopped device; reads and writes
/// beside them; the device goes on; both ways to the kernel.
#[test]
fn a_device_that_stops_to_answer_is_noticed() {
    if mount_unavailable() || !available(&["nbdkit", "nbdfuse"]) {
        return;
    }
    for io in ["io_uring", "epoll"] {
        let dir = TempDir::new().expect("a temporary directory");
        let device = Device::new(dir.path());
        let node = Node::start(&dir.path().join("node"), &Options::config(config(&device, io)));
        let open = |volume| Connection::open(&node.socket(), volume).expect("the node serves");
        let (mut far, mut near) = (open("far"), open("near"));
        ask(&mut far, &write(1, 40)).expect("a write");
        node.layby(&["volume", "drain", "far"]);

        device.answer(false);
        for block in 0..DEPTH {
            far.send(&read(1000 + 40 * block)).expect("the node serves");
        }
        ask(&mut near, &write(5, 60)).expect("another volume goes on");
        ask(&mut near, &Request::Flush).expect("another volume goes on");
        ask(&mut near, &read(4000)).expect("another backing store answers");
        for _ in 0..DEPTH {
            let (_, result) = far.receive().expect("the node serves");
            assert_eq!(result.map(drop), Err(EIO), "{io}");
        }
        assert_eq!(ask(&mut far, &read(9)).map(drop), Err(EIO), "it is known to be stuck");
        assert_eq!(ask(&mut far, &read(1)), Ok(vec![40; BLOCK as usize]), "the cache has it");
        ask(&mut far, &write(2, 41)).expect("the cache takes it");
        let seen = status(&node);
        assert_eq!(seen["stuck"][0]["volume"], "far", "{seen}");
        assert!(node.layby(&["status"]).contains("backing store of volume `far`"), "{io}");
        let far_stats = &seen["volumes"][0]["traffic"];
        assert!(far_stats["timed_out"].as_u64() >= Some(DEPTH), "{far_stats}");
        let metrics = HttpRequest::new("GET", "/metrics").send_unix(&node.control()).body;
        let is_named = |line: &str| {
            line.starts_with("layby_stuck_seconds{") && line.contains("volume=\"far\"")
        };
        assert!(metrics.lines().any(is_named), "{metrics}");
        assert!(node.stderr().contains("does not answer"), "{}", node.stderr());

        device.answer(true);
        let is_back = |_| status(&node)["stuck"].as_array().is_some_and(Vec::is_empty);
        assert!((0..QUESTIONS_MAX).any(is_back), "{io}: {}", status(&node));
        assert!(node.stderr().contains("answers again"), "{}", node.stderr());
        assert_eq!(ask(&mut far, &read(9)), Ok(vec![0; BLOCK as usize]), "{io}");
        node.layby(&["volume", "drain", "far"]);
        drop((far, near));
        node.stop();
        let stored = std::fs::read(device.path()).expect("the device answers");
        let at = |block: usize| &stored[block * BLOCK as usize..][..BLOCK as usize];
        assert!(at(1).iter().all(|byte| *byte == 40) && at(2).iter().all(|byte| *byte == 41));
    }
}

/// Goal: a node does not begin beside what a killed one has still in flight, which may reach a disk
/// after what the new one writes there; it waits, says so, and begins. Method: a write-back hangs
/// on a stopped device, the node is killed, the next one is started, the device goes on; one shard
/// and two, whose level files have no lock of their own; both ways to the kernel.
#[test]
fn a_start_waits_for_what_a_killed_node_has_in_flight() {
    if mount_unavailable() || !available(&["nbdkit", "nbdfuse"]) {
        return;
    }
    for (io, shards) in [("io_uring", 1), ("io_uring", 2), ("epoll", 1)] {
        let dir = TempDir::new().expect("a temporary directory");
        let device = Device::new(dir.path());
        let (place, log) = (dir.path().join("node"), dir.path().join("node.log"));
        let options = Options::config(config_of(&device, io, shards));
        let first = Node::start(&place, &options);
        let mut far = Connection::open(&first.socket(), "far").expect("the node serves");
        ask(&mut far, &write(1, 40)).expect("a write");
        ask(&mut far, &Request::Flush).expect("a flush");
        device.answer(false);
        let is_stuck = |_| status(&first)["stuck"].as_array().is_some_and(|all| !all.is_empty());
        assert!((0..QUESTIONS_MAX).any(is_stuck), "{io}: {}", status(&first));

        first.signal("-KILL");
        let second = std::thread::spawn({
            let (place, options) = (place.clone(), options.clone());
            move || Node::try_start(&place, &options)
        });
        let waits = |_| {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            std::thread::yield_now();
            said.contains("waiting for I/O of an earlier process") || second.is_finished()
        };
        while !waits(()) {}
        let has_ended = second.is_finished();
        device.answer(true);
        let second = second.join().expect("a start does not panic");
        let second = second.unwrap_or_else(|Refusal { stderr, .. }| panic!("{io}: {stderr}"));
        assert!(!has_ended, "{io}, {shards} shard(s): it began beside a killed node's I/O");
        assert!(second.serves("far"), "{io}: {}", second.stderr());
        let mut far = Connection::open(&second.socket(), "far").expect("the node serves");
        assert_eq!(ask(&mut far, &read(1)), Ok(vec![40; BLOCK as usize]), "{io}");
        drop((far, first));
        second.stop();
    }
}

/// A command for a node that is under way.
fn begin(node: &Path, words: &[&str]) -> Child {
    let mut command = Command::new("timeout");
    command.arg("300").arg(binary()).args(words).arg("--dir").arg(node);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program is built")
}

/// What a command says that is to end soon, and whether it succeeds.
fn ends_soon(node: &Path, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new("timeout");
    let ended = command.arg("30").arg(binary()).args(words).arg("--dir").arg(node).output();
    said_by(ended.expect("the program is built"))
}

fn said_by(ended: std::process::Output) -> Result<String, String> {
    let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
    if ended.status.success() { Ok(said) } else { Err(format!("{}: {said}", ended.status)) }
}

/// A volume with writes that its silent device lacks and whose deletion waits for it, and the
/// deletion.
fn deleting(device: &Device, dir: &Path, shards: u8) -> (Node, Child) {
    deleting_within(device, dir, shards, "1h")
}

/// The same with a limit of its operations.
fn deleting_within(device: &Device, dir: &Path, shards: u8, limit: &str) -> (Node, Child) {
    let config = format!(
        "[node]\nshards = {shards}\nio_timeout = \"{limit}\"\n\
         [volume.far]\nsize = \"64MiB\"\npath = \"{}\"\nshards = {shards}\n\
         [volume.near]\nsize = \"64MiB\"\n",
        device.path().display()
    );
    let node = Node::start(dir, &Options::config(config));
    let mut far = Connection::open(&node.socket(), "far").expect("the node serves");
    device.answer(false);
    (0..DEPTH).for_each(|block| drop(ask(&mut far, &write(block * 3, 9)).expect("a write")));
    ask(&mut far, &Request::Flush).expect("its level answers");
    let deletion = begin(dir, &["volume", "delete", "far"]);
    // It has begun when it has closed the client.
    while far.call(&Request::Flush).is_ok() {}
    (node, deletion)
}

fn is_written(device: &Device) -> bool {
    let stored = std::fs::read(device.path()).expect("the device answers");
    let at = |block: u64| &stored[(block * BLOCK) as usize..][..BLOCK as usize];
    (0..DEPTH).all(|block| at(block * 3).iter().all(|byte| *byte == 9))
}

/// Goal: a deletion that waits for a silent backing store holds up changes of its own volume alone,
/// and keeps all that was acknowledged (a hunt found that it held up every change, for 97 s and as
/// long as the device was silent). Method: a stopped device that lacks writes, a deletion, changes
/// of another volume and creations, the device that goes on, its bytes; one shard and two.
#[test]
fn a_deletion_holds_up_its_own_volume_alone() {
    if mount_unavailable() || !available(&["nbdkit", "nbdfuse"]) {
        return;
    }
    for shards in [1, 2] {
        let dir = TempDir::new().expect("a temporary directory");
        let device = Device::new(dir.path());
        let place = dir.path().join("node");
        let (node, mut deletion) = deleting(&device, &place, shards);
        let others = [
            &["volume", "set", "near", "--iops-max", "90000"][..],
            &["volume", "create", "new", "--size", "8MiB"],
            &["volume", "resize", "near", "--size", "32MiB", "--shrink"],
            &["class", "set", "bulk", "--rank", "6"],
            &["volume", "delete", "new"],
        ];
        let answers = others.map(|words| ends_soon(&place, words));
        let refused = ends_soon(&place, &["volume", "create", "far", "--size", "8MiB"]);
        let is_waiting = deletion.try_wait().expect("a child").is_none();
        let second = begin(&place, &["volume", "delete", "far"]);
        device.answer(true);
        let deleted = said_by(deletion.wait_with_output().expect("a child"));
        let second = said_by(second.wait_with_output().expect("a child"));
        assert!(answers.iter().all(Result::is_ok), "{shards} shard(s): {answers:?}");
        assert!(refused.as_ref().is_err_and(|said| said.contains("exists")), "{refused:?}");
        assert!(is_waiting, "{deleted:?}");
        deleted.expect("its device answers again");
        assert!(second.as_ref().is_err_and(|said| said.contains("no volume")), "{second:?}");
        node.stop();
        assert!(is_written(&device), "{shards} shard(s)");
    }
}

/// Goal: a deletion that waits for a silent backing store and is broken off by a stop or a kill
/// leaves the volume there, with all that was acknowledged. Method: both, the device that goes on,
/// a start, the volume's blocks, and the deletion again.
#[test]
fn a_deletion_that_breaks_off_keeps_its_volume() {
    if mount_unavailable() || !available(&["nbdkit", "nbdfuse"]) {
        return;
    }
    for stops in [false, true] {
        let dir = TempDir::new().expect("a temporary directory");
        let device = Device::new(dir.path());
        let place = dir.path().join("node");
        let (node, deletion) = deleting(&device, &place, 1);
        let said = match stops {
            true => {
                must("kill", &["-TERM", &node.pid().to_string()]);
                let said = said_by(deletion.wait_with_output().expect("a child"));
                device.answer(true);
                said
            }
            false => {
                node.signal("-KILL");
                device.answer(true);
                said_by(deletion.wait_with_output().expect("a child"))
            }
        };
        drop(node);
        let said = said.expect_err("it was broken off");
        assert!(!stops || said.contains("the node stops"), "{said}");
        let config = "[node]\nshards = 1\n".to_owned();
        let node = Node::start(&place, &Options::config(config));
        let mut far = Connection::open(&node.socket(), "far").expect("the volume is there");
        for block in 0..DEPTH {
            assert_eq!(ask(&mut far, &read(block * 3)), Ok(vec![9; BLOCK as usize]), "{stops}");
        }
        drop(far);
        node.layby(&["volume", "delete", "far"]);
        node.stop();
        assert!(is_written(&device), "stops: {stops}");
    }
}

/// Goal: a deletion whose backing store takes nothing leaves the volume served, to those who come
/// after it, too. Method: a stopped device, a limit of two seconds, a deletion that fails, a new
/// client, the device that goes on, the deletion again; one shard and two.
#[test]
fn a_deletion_that_fails_serves_its_volume() {
    if mount_unavailable() || !available(&["nbdkit", "nbdfuse"]) {
        return;
    }
    for shards in [1, 2] {
        let dir = TempDir::new().expect("a temporary directory");
        let device = Device::new(dir.path());
        let place = dir.path().join("node");
        let (node, deletion) = deleting_within(&device, &place, shards, "2s");
        let said = said_by(deletion.wait_with_output().expect("a child"));
        let said = said.expect_err("its device takes nothing");
        assert!(said.contains("its dirty blocks stay") && said.contains("still there"), "{said}");
        let mut far = Connection::open(&node.socket(), "far").expect("it is served again");
        device.answer(true);
        for block in 0..DEPTH {
            let read = ask(&mut far, &read(block * 3));
            assert_eq!(read, Ok(vec![9; BLOCK as usize]), "{shards} shard(s)");
        }
        drop(far);
        let is_back = |_| status(&node)["stuck"].as_array().is_some_and(Vec::is_empty);
        assert!((0..QUESTIONS_MAX).any(is_back), "{shards} shard(s): {}", status(&node));
        node.layby(&["volume", "delete", "far"]);
        node.stop();
        assert!(is_written(&device), "{shards} shard(s)");
    }
}

/// Goal: a deletion with the data ends one that keeps it and waits for a silent backing store, and
/// holds up no other change either. Method: a stopped device, both deletions, a change of another
/// volume, the device that goes on.
#[test]
fn a_deletion_with_the_data_ends_one_that_keeps_it() {
    if mount_unavailable() || !available(&["nbdkit", "nbdfuse"]) {
        return;
    }
    for shards in [1, 2] {
        let dir = TempDir::new().expect("a temporary directory");
        let device = Device::new(dir.path());
        let place = dir.path().join("node");
        let (node, deletion) = deleting(&device, &place, shards);
        let second = begin(&place, &["volume", "delete", "far", "--data", "delete"]);
        let first = said_by(deletion.wait_with_output().expect("a child"));
        let other = ends_soon(&place, &["volume", "set", "near", "--iops-max", "90000"]);
        device.answer(true);
        let second = said_by(second.wait_with_output().expect("a child"));
        let first = first.expect_err("the other one came");
        assert!(first.contains("is being deleted"), "{shards} shard(s): {first}");
        other.expect("another volume");
        // The file system of this test removes no file.
        let is_gone = |said: &String| said.contains("the volume is deleted; only its file is left");
        assert!(second.as_ref().is_ok() || second.as_ref().is_err_and(is_gone), "{second:?}");
        assert!(!node.layby(&["volume", "list"]).contains("far"));
        node.stop();
    }
}
