//! A node that restarts under its clients: what each kind of client sees.
//!
//! How: the node is stopped and started while a client writes. A *passed* socket stays open in this
//! test, as it does in the service manager, so that a client that comes meanwhile waits in its
//! queue. Invariant: what a client was told is written is there afterwards.
//! Not for: the kernel's client, which needs a module that test machines lack; see
//! docs/operating.md.

use layby_tests::guest::{Data, Guest, REQUESTS_MAX, kind};
use layby_tests::{Connection, Node, Options, Request, available, missing, must, run};
use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::Range;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Writes of the QEMU client, each of 4 KiB; at the volume's limit they take some seconds.
const WRITES: u64 = 4096;
/// What its writes hold, in every byte.
const PATTERN: &str = "90";

fn options() -> Options {
    let levels = layby_tests::small_levels().config.expect("it is a configuration");
    let volume = "[volume.v]\nsize = \"16MiB\"\nclass = \"critical\"\n\
        limits = { iops_max = 1000, iops_burst = 1 }\n";
    Options::config(format!("{levels}{volume}"))
}

/// Requests that the volume has completed.
fn completed(node: &Node, operation: &str) -> u64 {
    let shown = node.layby(&["volume", "show", "v", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("an answer in JSON");
    shown["traffic"][operation]["requests"].as_u64().expect("a volume counts its requests")
}

/// What QEMU is told of the export; it seeks the node for up to a minute after it lost it.
fn image(node: &Node) -> String {
    format!(
        "driver=nbd,server.type=unix,server.path={},export=v,reconnect-delay=60",
        node.socket().display()
    )
}

/// Writes with QEMU's block layer while `restart` replaces the node, then reads all back.
fn qemu_writes_through(node: Node, restart: impl FnOnce(Node) -> Node) {
    let (count, size) = (WRITES.to_string(), "4096");
    let words = ["bench", "-w", "-c", &count, "-d", "8", "-s", size, "--pattern", PATTERN];
    let mut bench = Command::new("timeout");
    bench.args(["--kill-after=10", "300", "qemu-img"]).args(words);
    bench.args(["--image-opts", &image(&node)]).stdin(Stdio::null());
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let bench = bench.expect("qemu-img is installed");
    while completed(&node, "write") < WRITES / 8 {
        std::thread::yield_now();
    }
    let node = restart(node);
    let output = bench.wait_with_output().expect("our own child can be waited for");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{output:?}");
    // The limit leaves no doubt that most of the writes came after the restart.
    let after = completed(&node, "write");
    assert!((WRITES / 8..WRITES).contains(&after), "{after} writes after the restart");
    let read = format!("read -P {PATTERN} 0 {}", WRITES * 4096);
    must("qemu-io", &["-c", &read, "--image-opts", &image(&node)]);
    node.stop();
}

/// Goal: QEMU with `reconnect-delay` sees a restart as a pause. Method: 4096 writes at depth 8, the
/// node stopped and started in the middle; no error, all bytes there.
#[test]
fn qemu_writes_through_a_restart() {
    if !available(&["qemu-img", "qemu-io"]) {
        return;
    }
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let start = || Node::start(&home, &options());
    qemu_writes_through(start(), |node| {
        node.stop();
        start()
    });
}

/// Goal and method: as `qemu_writes_through_a_restart`, on a passed socket, which never closes.
#[test]
fn qemu_writes_through_a_restart_on_a_passed_socket() {
    if !available(&["qemu-img", "qemu-io"]) {
        return;
    }
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let listener = listener(&home);
    let start = || Node::start_on(&home, &options(), &listener);
    qemu_writes_through(start(), |node| {
        node.stop();
        start()
    });
    assert!(home.join("layby.sock").exists(), "a passed socket is not removed");
}

/// Goal: a kill is no worse than a stop for QEMU and a durable class. Method: as above, with
/// kill -9.
#[test]
fn qemu_writes_through_a_kill() {
    if !available(&["qemu-img", "qemu-io"]) {
        return;
    }
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let start = || Node::start(&home, &options());
    qemu_writes_through(start(), |node| {
        node.kill9();
        start()
    });
}

fn listener(home: &Path) -> UnixListener {
    std::fs::create_dir_all(home).expect("a writable directory");
    UnixListener::bind(home.join("layby.sock")).expect("a fresh path")
}

/// Goal: with a passed socket a client that comes while the node is down waits, and is served.
/// Method: connect between the lives of a node.
#[test]
fn clients_wait_on_a_passed_socket() {
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let listener = listener(&home);
    let node = Node::start_on(&home, &options(), &listener);
    let socket = node.socket();
    assert!(node.layby(&["status"]).contains(&socket.display().to_string()));
    node.stop();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Connection::open(&socket, "v").map(|client| client.size()));
        let node = Node::start_on(&home, &options(), &listener);
        let size = client.join().expect("the client does not panic");
        assert_eq!(size.ok(), Some(16 * MIB));
        node.stop();
    });
}

/// Goal: a node says when it is ready, and when it stops. Method: a datagram socket in the place
/// of the service manager's.
#[test]
fn service_manager_is_told() {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("notify");
    let notified = std::os::unix::net::UnixDatagram::bind(&path).expect("a fresh path");
    let home = dir.path().join("node");
    let mut command = Command::new(layby_tests::binary());
    command.args(["serve", "--dir"]).arg(&home).env("NOTIFY_SOCKET", &path);
    let node = Node::spawn(command, &home).expect("it starts");
    let told = || {
        let mut state = [0; 64];
        let length = notified.recv(&mut state).expect("the node tells");
        String::from_utf8_lossy(&state[..length]).into_owned()
    };
    assert_eq!(told(), "READY=1");
    node.stop();
    assert_eq!(told(), "STOPPING=1");
}

/// A libnbd client over both lives of a node.
const LIBNBD: &str = "
import nbd, sys
uri = sys.argv[1]
h = nbd.NBD()
h.connect_uri(uri)
h.pwrite(b'before' * 512, 0)
print('ready', flush=True)
sys.stdin.readline()
try:
    h.pwrite(b'after.' * 512, 4096)
    sys.exit('a connection outlived its server')
except nbd.Error as error:
    print('lost', error, file=sys.stderr)
h = nbd.NBD()
h.connect_uri(uri)
assert h.pread(3072, 0) == b'before' * 512
h.pwrite(b'after.' * 512, 4096)
h.shutdown()
";

/// Goal: libnbd does not reconnect by itself; who connects again finds all. Method: a handle that
/// is used before and after a restart, then a new one.
#[test]
fn libnbd_connects_again_by_hand() {
    const PYTHON: &str = "/usr/bin/python3";
    if !Path::new(PYTHON).exists() || !run(PYTHON, &["-c", "import nbd"]).success {
        return missing("python3-libnbd missing (`cargo xtask setup-tests` installs it)");
    }
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let node = Node::start(&home, &options());
    let mut client = Command::new(PYTHON);
    client.args(["-c", LIBNBD, &node.uri("v")]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = client.spawn().expect("python is installed");
    let mut said = String::new();
    let stdout = client.stdout.take().expect("the pipe was asked for above");
    BufReader::new(stdout).read_line(&mut said).expect("a pipe can be read");
    assert_eq!(said, "ready\n");
    node.stop();
    let node = Node::start(&home, &options());
    let mut stdin = client.stdin.take().expect("the pipe was asked for above");
    stdin.write_all(b"go\n").expect("the client waits for it");
    assert!(client.wait().expect("our own child can be waited for").success());
    node.stop();
}

/// Goal: a stop answers what it has begun and begins nothing more. Method: writes sent far ahead
/// of a limit, a stop, and what the next life reads: answered blocks are new, the others old.
#[test]
fn stop_answers_what_it_began() {
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let node = Node::start(&home, &options());
    // On a loaded machine the stop comes late: there is to be something left then. More requests
    // than these the node does not take from a client that receives no reply.
    node.layby(&["volume", "set", "v", "--iops-max", "100"]);
    let client = Connection::open(&node.socket(), "v").expect("the node serves");
    assert_the_answered_is_there((node, client), 0..1000, (&home, &options()));
}

/// Writes blocks far ahead of what the node may carry out, stops it after the first answer, and
/// starts it again: every answer is good, answered blocks are new, the others old.
fn assert_the_answered_is_there(
    (node, mut client): (Node, Connection),
    blocks: Range<u64>,
    (home, next): (&Path, &Options),
) {
    let mut cookies = Vec::new();
    for block in blocks.clone() {
        let write = Request::Write { offset: block * 4096, data: vec![0xa5; 4096], fua: false };
        cookies.push(client.send(&write).expect("the node serves"));
    }
    let (first, _) = client.receive().expect("the node serves");
    let mut answered = vec![first];
    std::thread::scope(|scope| {
        scope.spawn(|| node.stop());
        while let Ok((cookie, result)) = client.receive() {
            assert!(result.is_ok(), "error {result:?} after {} answers", answered.len());
            answered.push(cookie);
        }
    });
    assert!(answered.len() < cookies.len(), "nothing kept any of them");
    let node = Node::start(home, next);
    node.layby(&["volume", "set", "v", "--iops-max", "0"]);
    let mut client = Connection::open(&node.socket(), "v").expect("the node serves");
    for (block, cookie) in blocks.zip(cookies) {
        let read = Request::Read { offset: block * 4096, length: 4096 };
        let data = client.call(&read).expect("the node serves").expect("it reads");
        let expected = if answered.contains(&cookie) { 0xa5 } else { 0 };
        assert!(data.iter().all(|byte| *byte == expected), "block {block} of {}", answered.len());
    }
    node.stop();
}

/// Goal: a client that takes no answers does not hold a stop. Method: so many writes that their
/// answers fill the socket, none of which is read; the stop's own patience ends it.
#[test]
fn deaf_clients_hold_no_stop() {
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let node = Node::start(&home, &options());
    node.layby(&["volume", "set", "v", "--iops-max", "0"]);
    let mut client = Connection::open(&node.socket(), "v").expect("the node serves");
    for request in 0..400 {
        client.send(&Request::Read { offset: request << 12, length: 4096 }).expect("it serves");
    }
    while completed(&node, "read") < 400 {
        std::thread::yield_now();
    }
    node.stop();
}

/// Goal: a hang-up ends nothing, and signals that come together are one request to end, as
/// `timeout` sends them to a process and to its group. Method: a hang-up and a command after it,
/// then two signals at once; the node stops in order.
#[test]
fn a_burst_of_signals_is_one_request() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let node = layby_tests::Node::start(&dir.path().join("node"), &layby_tests::small_levels());
    node.signal("-HUP");
    node.layby(&["status"]);
    node.signal("-TERM");
    node.stop();
}

/// Goal: a stop during a start is a clean end, which says so and loses nothing. Method: a node that
/// was killed starts again with a level's key from a command that signals it and does not end; exit
/// code 0, one line and no error, for each signal; then what was written.
#[test]
fn a_stop_before_ready_is_a_clean_end() {
    let work = TempDir::new().expect("a temporary directory");
    let home = work.path().join("node");
    let [key, pipe] = ["key", "pipe"].map(|name| work.path().join(name).display().to_string());
    std::fs::write(&key, "1f".repeat(32)).expect("the test's own folder");
    must("chmod", &["600", &key]);
    must("mkfifo", &[&pipe]);
    // The command reads from it until the test ends.
    let held = std::fs::File::options().read(true).write(true).open(&pipe);
    let held = held.expect("the test's own pipe");
    let options = |source: &str| {
        Options::config(format!(
            "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
             [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n\
             preallocation = \"falloc\"\nkey = \"{source}\"\n"
        ))
    };
    let sound = options(&format!("file:{key}"));
    let node = Node::start(&home, &sound);
    let mut client = Connection::open(&node.socket(), "vol0").expect("the node serves");
    let write = Request::Write { offset: 8192, data: vec![0xa5; 4096], fua: true };
    client.call(&write).expect("the node serves").expect("it writes");
    node.kill9();
    for signal in ["TERM", "INT"] {
        let endless = format!("command:exec 3<{pipe}; kill -{signal} $PPID; exec cat <&3");
        let words = layby_tests::serve_arguments(&home, &options(&endless));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ended = layby_tests::layby(&words);
        assert!(ended.success, "{ended:?}");
        let line = format!("stopped by SIG{signal} before it was ready: nothing is lost; ");
        assert!(ended.stdout.lines().any(|said| said.starts_with(&line)), "{ended:?}");
        assert!(!ended.stdout.lines().any(|said| said.starts_with("ready")), "{ended:?}");
        assert!(!ended.stderr.contains("error:"), "{ended:?}");
    }
    drop(held);
    let node = Node::start(&home, &sound);
    let mut client = Connection::open(&node.socket(), "vol0").expect("the node serves");
    let read = Request::Read { offset: 8192, length: 4096 };
    let data = client.call(&read).expect("the node serves").expect("it reads");
    assert!(data == vec![0xa5; 4096], "what was durable is there");
    node.stop();
}

/// Goal: the program without words answers with its help and succeeds. Method: no words at all.
#[test]
fn no_words_at_all_are_answered_with_help() {
    let outcome = layby_tests::layby(&[]);
    assert!(outcome.stdout.contains("layby serve"), "{outcome:?}");
    assert!(outcome.success, "{outcome:?}");
}

/// Journal of a volume in a store, the least that there is.
const JOURNAL: u64 = 16 * MIB;
/// So much of it is left when it counts as nearly full.
const JOURNAL_LEFT: u64 = MIB;
/// Writes of a block that are more than that room takes.
pub(super) const WRITES_BEYOND: u64 = 400;

/// A node with a volume in a store, whose uplink carries so much in a second, or all.
pub(super) fn store_options(home: &Path, cap: &str) -> Options {
    let store = home.with_file_name("bucket");
    Options::config(format!(
        "[cloud]\njournal = \"16MiB\"\ndirty_age = \"1h\"\n[uplink]\ncap = {cap}\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\
         [volume.v]\nsize = \"256MiB\"\npath = \"file://{}\"\n",
        store.display()
    ))
}

/// An uplink that carries next to nothing.
pub(super) const NARROW: &str = "\"64KiB\"";

/// What the node says of the volume's store.
fn store(node: &Node, key: &str) -> u64 {
    let shown = node.layby(&["volume", "show", "v", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("an answer in JSON");
    shown["cloud"][key].as_u64().expect("it is in a store")
}

/// Fills the journal, but for a rest, with writes from block `first` on; answers with the block
/// behind them.
pub(super) fn fill_journal(node: &Node, client: &mut Connection, first: u64) -> u64 {
    let mut write_until = |from: u64, end: u64| {
        for block in from..end {
            let write = Request::Write { offset: block * 4096, data: vec![1; 4096], fua: false };
            client.call(&write).expect("the node serves").expect("it writes");
        }
        end
    };
    // Each is a batch of its own there, a block and the page that heads it. The first object goes
    // up at once whatever the cap, the next one takes minutes.
    let count = 1200;
    let middle = write_until(first, first + count);
    // What is said may be older than the last writes: what it calls dirty is to have them all.
    let dirty = loop {
        let [dirty, live] = ["dirty_bytes", "live_bytes"].map(|key| store(node, key));
        let is_all = dirty + live * 2 >= count * 8192;
        if store(node, "segments") > 0 && dirty <= JOURNAL / 4 && is_all {
            break dirty;
        }
        std::thread::yield_now();
    };
    write_until(middle, middle + (JOURNAL - JOURNAL_LEFT - dirty) / 8192)
}

/// Goal: QEMU with `reconnect-delay` sees a stop as a pause also while its writes wait for a full
/// journal. Method: 8192 writes over an uplink that is narrow; once none has ended for a while the
/// node is stopped, and started with a wide one; no error, all bytes there.
#[test]
fn qemu_waits_for_a_journal_through_a_restart() {
    if !available(&["qemu-img", "qemu-io"]) {
        return;
    }
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let node = Node::start(&home, &store_options(&home, NARROW));
    let words = ["bench", "-w", "-c", "8192", "-d", "16", "-s", "4096", "-S", "12288"];
    let mut bench = Command::new("timeout");
    bench.args(["--kill-after=10", "300", "qemu-img"]).args(words).args(["--pattern", PATTERN]);
    bench.args(["--image-opts", &image(&node)]).stdin(Stdio::null());
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let bench = bench.expect("qemu-img is installed");
    let (mut last, mut looks) = (0, 0);
    while looks < 20 {
        let is_full = store(&node, "dirty_bytes") > JOURNAL - JOURNAL_LEFT;
        let ended = completed(&node, "write");
        looks = if is_full && ended == last { looks + 1 } else { 0 };
        last = ended;
    }
    node.stop();
    let node = Node::start(&home, &store_options(&home, "0"));
    let output = bench.wait_with_output().expect("our own child can be waited for");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{output:?}");
    for block in [0, last, 8191] {
        let read = format!("read -P {PATTERN} {} 4096", block * 12288);
        must("qemu-io", &["-c", &read, "--image-opts", &image(&node)]);
    }
    node.stop();
}

/// Goal: a write that waits for a full journal when the node stops is not answered, and was not
/// begun. Method: more writes than there is room for, a stop; every answer is good, and the next
/// incarnation has what was answered and nothing else.
#[test]
fn a_stop_leaves_writes_without_room_unanswered() {
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let node = Node::start(&home, &store_options(&home, NARROW));
    let mut client = Connection::open(&node.socket(), "v").expect("the node serves");
    let first = fill_journal(&node, &mut client, 0);
    let blocks = first..first + WRITES_BEYOND;
    assert_the_answered_is_there((node, client), blocks, (&home, &store_options(&home, "0")));
}

/// Goal: a virtual machine's writes that wait for a full journal outlive a stop: the next
/// incarnation carries them out. Method: a guest's queue full of writes behind more of a client's
/// than there is room for, a stop, a start; each of its writes is answered well, once.
#[test]
fn a_guest_waits_for_a_journal_through_a_restart() {
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let node = Node::start(&home, &store_options(&home, NARROW));
    let mut client = Connection::open(&node.socket(), "v").expect("the node serves");
    let first = fill_journal(&node, &mut client, 1000);
    for block in first..first + WRITES_BEYOND {
        let write = Request::Write { offset: block * 4096, data: vec![2; 4096], fua: false };
        client.send(&write).expect("the node serves");
    }
    let (_, answer) = client.receive().expect("the node serves");
    answer.expect("there was room for one");
    let socket = home.join("vhost/v.sock");
    let mut guest = Guest::new(1);
    guest.connect(&socket);
    for slot in 0..REQUESTS_MAX {
        let sector = u64::from(slot) * 8;
        guest.request(0, slot, kind::OUT, sector, Data::Out(&[7; 4096]));
    }
    guest.kick(0);
    // The shard takes the guest's requests in the turns of these reads.
    let mut other = Connection::open(&node.socket(), "v").expect("the node serves");
    for _ in 0..8 {
        let read = Request::Read { offset: 1000 * 4096, length: 4096 };
        other.call(&read).expect("the node serves").expect("it reads");
    }
    node.stop();
    assert!(guest.answers_now(0).is_empty(), "what was not begun was answered");
    let node = Node::start(&home, &store_options(&home, "0"));
    guest.disconnect();
    guest.connect(&socket);
    let mut answers = Vec::new();
    while answers.len() < usize::from(REQUESTS_MAX) {
        answers.extend(guest.answers(0));
    }
    assert!(answers.iter().all(|(_, status)| *status == 0), "{answers:?}");
    for slot in 0..u64::from(REQUESTS_MAX) {
        let (status, read) = guest.ask(kind::IN, slot * 8, Data::In(4096));
        assert!(status == 0 && read == [7; 4096], "block {slot}");
    }
    node.stop();
}
