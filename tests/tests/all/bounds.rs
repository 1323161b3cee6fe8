//! What hostile clients can make a node hold: memory, places, time.
//!
//! How: a node as users start it, and clients that do what none would do for its own good. Bounds
//! are on counts and bytes; how long others wait beside them is measured by hand, see
//! docs/security.md.

use layby_tests::guest::{Data, Guest, huge_memory_file, kind, memory_file};
use layby_tests::{Connection, HttpRequest, Node, Options, Request, binary, layby};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Clients that never receive. The measure by hand takes a thousand.
const DEAF_CLIENTS: u64 = 200;
/// What they may cost above an idle node, in KiB.
const DEAF_KIB_MAX: u64 = 256 << 10;
const MIB: u32 = 1 << 20;
/// Bytes of a huge page.
const HUGE: u64 = 2 << 20;
/// Where a guest has memory that was plugged in.
const PLUGGED: u64 = 1 << 32;
const TMPFS_MAGIC: u64 = 0x0102_1994;

fn node(dir: &TempDir, config: &str) -> Node {
    let levels = layby_tests::small_levels().config.expect("it is a configuration");
    Node::start(&dir.path().join("node"), &Options::config(format!("{config}\n{levels}")))
}

/// A client that sends a hundred reads of `length` bytes and receives none.
fn deaf(node: &Node, volume: &str, length: u32) -> Connection {
    let mut client = Connection::open(&node.socket(), volume).expect("the node serves");
    for index in 0..100 {
        let offset = index % 60 * u64::from(MIB);
        client.send(&Request::Read { offset, length }).expect("a hundred heads fit");
    }
    client
}

/// Reads and writes small blocks, as a client that behaves does.
fn behave(node: &Node, volume: &str, count: u64) {
    let mut client = Connection::open(&node.socket(), volume).expect("the node serves");
    for index in 0..count {
        let offset = index % 64 * 4096;
        let write = Request::Write { offset, data: vec![index as u8; 4096], fua: false };
        for request in [write, Request::Read { offset, length: 4096 }] {
            client.send(&request).expect("the node serves");
            assert!(client.receive().expect("the node serves").1.is_ok());
        }
    }
}

/// Goal: clients that send reads and never receive cost a bounded part of the memory, whatever they
/// ask for, and others are served beside them. Method: hits of 4 KiB, misses of 1 MiB, reads of the
/// longest kind; resident memory while they hang; a client of each class reads and writes.
#[test]
fn clients_that_never_receive_are_bounded() {
    let dir = TempDir::new().expect("a temporary folder");
    let volumes = "[volume.a]\nsize = \"64MiB\"\nclass = \"bulk\"\n\
                   [volume.b]\nsize = \"64MiB\"\nclass = \"critical\"\n";
    let node = node(&dir, volumes);
    behave(&node, "b", 100);
    let idle = node.held().memory_kib;
    let lengths = [4096, MIB, MIB, 4 * MIB];
    let clients = (0..DEAF_CLIENTS).map(|index| deaf(&node, "a", lengths[index as usize % 4]));
    let clients: Vec<Connection> = clients.collect();
    behave(&node, "b", 1000);
    behave(&node, "a", 100);
    let held = node.held().memory_kib;
    assert!(held < idle + DEAF_KIB_MAX, "{idle} KiB idle, {held} KiB beside deaf clients");
    drop(clients);
    behave(&node, "a", 100);
    node.stop();
}

fn tcp_address(node: &Node) -> String {
    let said = node.said();
    let line = said.lines().find_map(|line| line.strip_prefix("serving nbd://"));
    line.and_then(|url| url.strip_suffix("/VOLUME")).expect("it is printed").to_owned()
}

/// A client of a network that has entered a volume; none where the node has closed it.
fn enter(address: &str, volume: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).ok()?;
    let mut bytes = vec![0, 0, 0, 3];
    bytes.extend(b"IHAVEOPT\0\0\0\x07");
    bytes.extend((volume.len() as u32 + 6).to_be_bytes());
    bytes.extend((volume.len() as u32).to_be_bytes());
    bytes.extend(volume.as_bytes());
    bytes.extend([0, 0]);
    // A flush, whose reply comes last: it was served.
    bytes.extend(0x2560_9513_u32.to_be_bytes());
    bytes.extend([0, 0, 0, 3]);
    bytes.extend([0; 20]);
    stream.write_all(&bytes).ok()?;
    let mut tail: Vec<u8> = Vec::new();
    while !tail.windows(4).any(|word: &[u8]| word == 0x6744_6698_u32.to_be_bytes()) {
        let mut piece = [0; 256];
        let count = stream.read(&mut piece).ok().filter(|count| *count > 0)?;
        tail.extend(&piece[..count]);
    }
    Some(stream)
}

/// Goal: a flood of connections that never choose a volume keeps no other client out; those that it
/// lost are counted, and the log has few lines of it. Method: an attacker who opens hundreds of
/// sockets again and again, more than `connections_max`; thirty clients enter meanwhile.
#[test]
fn a_reopening_attacker_keeps_no_client_out() {
    let dir = TempDir::new().expect("a temporary folder");
    let node = node(&dir, "[nbd]\nlisten = [\"127.0.0.1:0\"]\nconnections_max = 100\n");
    let (address, is_over) = (tcp_address(&node), AtomicBool::new(false));
    let opened = std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            let (mut held, mut opened) = (Vec::new(), 0_u64);
            while !is_over.load(Ordering::Relaxed) {
                held.extend(TcpStream::connect(&address));
                opened += 1;
                if held.len() > 400 {
                    held.drain(..200);
                }
            }
            opened
        });
        // The pool is full, and has been for a while.
        while refused(&node) < 1000.0 {
            std::thread::yield_now();
        }
        let entered = (0..30).filter_map(|_| enter(&address, "vol0")).count();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(entered, 30);
        attacker.join().expect("it panics nowhere")
    });
    let lines = node.stderr().lines().filter(|line| line.contains("refused clients")).count();
    assert!(lines < 200, "{lines} lines for {opened} connections");
    behave(&node, "vol0", 10);
    node.stop();
}

/// Clients that the metrics say were refused.
fn refused(node: &Node) -> f64 {
    let metrics = HttpRequest::new("GET", "/metrics").send(&node.http()).body;
    let lines = metrics.lines().filter(|line| line.starts_with("layby_clients_refused_total{"));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum()
}

/// Goal: no volume's clients take the places of others, nor a network's those of unix sockets.
/// Method: a volume's clients fill all that they get; others enter.
#[test]
fn places_are_kept_for_volumes_and_unix_sockets() {
    let dir = TempDir::new().expect("a temporary folder");
    let config = "[nbd]\nlisten = [\"127.0.0.1:0\"]\nconnections_max = 32\n\
                  [volume.a]\nsize = \"1MiB\"\n[volume.b]\nsize = \"1MiB\"\n";
    let node = node(&dir, config);
    let address = tcp_address(&node);
    let held: Vec<TcpStream> = std::iter::from_fn(|| enter(&address, "a")).take(99).collect();
    assert_eq!(held.len(), 32 - 4 - 2, "four for the other volume, two for unix sockets");
    assert!(enter(&address, "b").is_some());
    behave(&node, "a", 10);
    assert!(refused(&node) >= 1.0);
    drop(held);
    node.stop();
}

/// Goal: a guest whose memory's file is cut under the node loses its queue, and neither the node
/// nor another guest anything; what it had not written is not made zeros of. Method: a write whose
/// data lies behind the cut; an NBD client reads the block; the guest comes again, whole.
#[test]
fn a_guest_that_cuts_its_memory_ends_alone() {
    let dir = TempDir::new().expect("a temporary folder");
    let node = node(&dir, "[volume.a]\nsize = \"16MiB\"\n[volume.b]\nsize = \"16MiB\"\n");
    let vhost = dir.path().join("node/vhost");
    let (mut guest, mut other) = (Guest::new(1), Guest::new(1));
    guest.connect(&vhost.join("a.sock"));
    other.connect(&vhost.join("b.sock"));
    assert_eq!(guest.ask(kind::OUT, 0, Data::Out(&[7; 4096])).0, 0);
    guest.request(0, 0, kind::OUT, 0, Data::Out(&[8; 4096]));
    guest.cut_memory(0x8000);
    guest.kick(0);
    for _ in 0..10 {
        assert_eq!(other.ask(kind::OUT, 0, Data::Out(&[9; 4096])).0, 0);
        assert_eq!(other.ask(kind::IN, 0, Data::In(4096)).1, [9; 4096]);
    }
    let mut client = Connection::open(&node.socket(), "a").expect("the node serves");
    let read = client.call(&Request::Read { offset: 0, length: 4096 }).expect("the node serves");
    assert_eq!(read, Ok(vec![7; 4096]));
    guest.disconnect();
    let mut next = Guest::new(1);
    next.connect(&vhost.join("a.sock"));
    assert_eq!(next.ask(kind::IN, 0, Data::In(4096)).1, [7; 4096]);
    drop((next, other, client));
    node.stop();
}

/// A guest of volume `a` that has connected, so that the last one has left.
fn connected(dir: &TempDir) -> Guest {
    let mut guest = Guest::new(1);
    guest.connect(&dir.path().join("node/vhost/a.sock"));
    guest
}

/// Goal: memory behind the end of its file is refused, as is an in-flight region that can be cut.
/// Method: a guest that offers both.
#[test]
fn memory_that_is_not_there_is_refused() {
    let dir = TempDir::new().expect("a temporary folder");
    let node = node(&dir, "[volume.a]\nsize = \"16MiB\"\n");
    assert!(connected(&dir).try_add_memory(PLUGGED, 1 << 20, &memory_file(0)).is_err());
    assert!(connected(&dir).try_inflight(&memory_file(1 << 20)).is_err());
    drop(connected(&dir));
    let said = node.stderr();
    assert!(said.contains("end of its file") && said.contains("not sealed"), "{said}");
    behave(&node, "a", 10);
    node.stop();
}

/// Goal: a file on a disk is refused as memory, and the log says what is served: each of its pages
/// could have the shard wait. Method: a guest that offers one, in a folder that is on a disk.
#[test]
fn memory_on_a_disk_is_refused() {
    let dir = TempDir::new().expect("a temporary folder");
    let node = node(&dir, "[volume.a]\nsize = \"16MiB\"\n");
    let file = File::create_new(dir.path().join("memory")).expect("a writable folder");
    file.set_len(1 << 20).expect("room");
    if rustix::fs::fstatfs(&file).is_ok_and(|status| status.f_type as u64 == TMPFS_MAGIC) {
        return layby_tests::skip("temporary folders are in memory here");
    }
    connected(&dir).try_add_memory(PLUGGED, 1 << 20, &file).expect_err("it is on a disk");
    drop(connected(&dir));
    let said = node.stderr();
    assert!(said.contains("on a disk") && said.contains("memfd_create"), "{said}");
    behave(&node, "a", 10);
    node.stop();
}

/// Goal: an in-flight region of huge pages, which may run out while it is used, is refused and ends
/// no node, though it is sealed. Method: a guest that offers one; where the host has no huge pages,
/// the first access would be a fault.
#[test]
fn an_in_flight_region_of_huge_pages_is_refused() {
    let Some(memory) = huge_memory_file(HUGE) else {
        return layby_tests::skip("the kernel has no huge pages of 2 MiB");
    };
    let dir = TempDir::new().expect("a temporary folder");
    let node = node(&dir, "[volume.a]\nsize = \"16MiB\"\n");
    assert!(connected(&dir).try_inflight(&memory).is_err());
    behave(&node, "a", 10);
    drop(connected(&dir));
    assert!(node.stderr().contains("in-flight region is no memory"), "{}", node.stderr());
    node.stop();
}

/// Goal: memory of huge pages ends no node, whether or not the host has any. Method: a part of one,
/// which is refused; a whole one, from which a write is asked: where the host has none for it, that
/// guest's queue ends alone.
#[test]
fn memory_of_huge_pages_ends_no_node() {
    let Some(memory) = huge_memory_file(HUGE) else {
        return layby_tests::skip("the kernel has no huge pages of 2 MiB");
    };
    let dir = TempDir::new().expect("a temporary folder");
    let node = node(&dir, "[volume.a]\nsize = \"16MiB\"\n");
    let write_from_it = |guest: &mut Guest| {
        guest.request(0, 0, kind::OUT, 0, Data::Out(&[1; 4096]));
        guest.descriptor(0, 1, PLUGGED, 4096, 1, 2);
        guest.kick(0);
    };
    let mut guest = connected(&dir);
    let added = guest.try_add_memory(PLUGGED, HUGE - 4096, &memory);
    if added.is_ok() {
        write_from_it(&mut guest);
        guest.stop_queue(0);
    }
    behave(&node, "a", 10);
    added.expect_err("it is no whole page");
    let mut guest = connected(&dir);
    assert!(node.stderr().contains("no whole huge pages"), "{}", node.stderr());
    guest.try_add_memory(PLUGGED, HUGE, &memory).expect("a whole page is served");
    write_from_it(&mut guest);
    guest.stop_queue(0);
    behave(&node, "a", 10);
    node.stop();
}

/// Goal: what a client asked for and was not begun dies with it, zeroings of the longest kind, too.
/// Method: many zeroings of a volume of 4 GiB; the client leaves; another one's write comes after
/// at most two of them.
#[test]
fn zeroings_end_with_their_client() {
    let dir = TempDir::new().expect("a temporary folder");
    let node = node(&dir, "[volume.a]\nsize = \"4GiB\"\n");
    let mut client = Connection::open(&node.socket(), "a").expect("the node serves");
    for _ in 0..200 {
        client.send(&Request::Zero { offset: 0, length: u32::MAX - 4095 }).expect("heads fit");
    }
    drop(client);
    behave(&node, "a", 1);
    let shown = node.layby(&["volume", "show", "a", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&shown).expect("an answer in JSON");
    let others = value["traffic"]["other"]["requests"].as_u64();
    assert!(others.is_some_and(|others| others < 10), "{others:?} in {shown}");
    node.stop();
}

/// Goal: a file that never ends is refused where a small one is expected. Method: `/dev/zero` as
/// certificate, key, authority, description of devices, and level.
#[test]
fn files_that_never_end_are_refused() {
    let dir = TempDir::new().expect("a temporary folder");
    let tls = "[nbd]\ntls = \"required\"\ntls_certificate = \"/dev/zero\"\n\
               tls_key = \"/dev/zero\"\n";
    let devices = "[node]\ndevices = [\"/dev/zero\"]\n";
    let level = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n\
                 path = \"/dev/zero\"\n";
    for text in [tls, devices, level] {
        let refused = Node::try_start(&dir.path().join("node"), &Options::config(text));
        refused.expect_err(text).assert_explains(&["/dev/zero"]);
    }
    let zero = layby(&["trace", "info", "/dev/zero", "--format", "csv"]);
    assert!(!zero.success, "{zero:?}");
}

/// Goal: clients that take every place that they get leave files open for the node itself, however
/// few the process may have, and the start says so. Method: a limit of 512; idle clients until none
/// is let in; a command, and a client of another volume.
#[test]
fn a_low_limit_of_files_keeps_room_for_operators() {
    let work = TempDir::new().expect("a temporary folder");
    let (dir, file) = (work.path().join("node"), work.path().join("layby.toml"));
    let levels = layby_tests::small_levels().config.expect("it is a configuration");
    let config = "[nbd]\nlisten = [\"127.0.0.1:0\"]\n\
                  [volume.a]\nsize = \"1MiB\"\n[volume.b]\nsize = \"1MiB\"\n";
    std::fs::write(&file, format!("{config}\n{levels}")).expect("a writable folder");
    let mut command = Command::new("prlimit");
    command.arg("--nofile=512:512").arg(binary()).arg("serve").arg("--dir").arg(&dir);
    command.arg("--config").arg(&file);
    let node = Node::spawn(command, &dir);
    let node = node.unwrap_or_else(|refused| panic!("{refused:?}"));
    assert!(node.said().contains("since the process may have 512 files open"), "{}", node.said());
    let address = tcp_address(&node);
    let held: Vec<TcpStream> = std::iter::from_fn(|| enter(&address, "a")).take(600).collect();
    assert!((16..512).contains(&held.len()), "{} clients", held.len());
    assert!(node.layby(&["status"]).contains("serving"));
    behave(&node, "b", 10);
    assert!(!node.stderr().contains("Too many open files"), "{}", node.stderr());
    node.stop();
}

/// A node that may have so many files open.
fn with_files(dir: &TempDir, files: u32) -> Result<Node, layby_tests::Refusal> {
    let place = dir.path().join("node");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"]).arg(binary());
    command.arg("serve").arg("--dir").arg(&place).arg("--config").arg(dir.path().join("node.toml"));
    Node::spawn(command, &place)
}

/// Goal: volumes take no open files from operators and clients: with too few, a start says how many
/// volumes fit; with just enough, sockets of virtual machines are left out, a further volume is
/// refused, and operators and clients are served. Method: limits on open files around what sixty
/// volumes need.
#[test]
fn volumes_leave_open_files_for_operators() {
    let dir = TempDir::new().expect("a temporary folder");
    let volume = |number: u32| format!("[volume.v{number}]\nsize = \"64KiB\"\n");
    let volumes: String = (0..60).map(volume).collect();
    node(&dir, &format!("[node]\nshards = 1\n{volumes}")).stop();
    let refusal = with_files(&dir, 150).expect_err("they would take all");
    refusal.assert_explains(&["60 volumes", "150 files", "`LimitNOFILE=`"]);
    let node = with_files(&dir, 200).expect("it has just enough");
    let place = dir.path().join("node").display().to_string();
    for volume in ["v0", "v59"] {
        let mut client = Connection::open(&node.socket(), volume).expect("a client is served");
        let read = Request::Read { offset: 0, length: 4096 };
        assert!(client.call(&read).expect("it serves").is_ok());
    }
    let said = node.stderr();
    assert!(said.contains("virtual machines") && said.contains("open files"), "{said}");
    assert!(!said.contains("another program answers"), "{said}");
    let create =
        |name: &str| layby(&["volume", "create", name, "--size", "64KiB", "--dir", &place]);
    let refused = (0..60).map(|number| create(&format!("w{number}"))).find(|made| !made.success);
    let refused = refused.expect("there is an end of open files");
    refused.assert_explains(&["200 files", "`LimitNOFILE=`"]);
    assert!(layby(&["volume", "list", "--dir", &place]).success, "an operator is served");
    node.stop();
}
