//! Volumes that lie over several shards, as clients and operators meet them: one volume.
//!
//! How: nodes of two shards and small levels, so that blocks move while clients work. Connections
//! are dealt to the shards in turn, so two of them reach a volume from both sides, and requests are
//! drawn about the edges of stripes. Each test ends with a clean stop and `layby check`.
//! Not for: which byte lies where, see `Stripes`; speed, see `bench`.

use layby_tests::guest::{Data, Guest, kind};
use layby_tests::{
    Connection, Durability, History, Node, Options, Request, available, layby, must, number,
    python, seed,
};
use layby_types::Rng;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::scope;
use tempfile::TempDir;

/// Bytes of a stripe.
const STRIPE: u64 = 1 << 20;
/// An odd length: the last stripe is short.
const LENGTH: u64 = 9 * STRIPE + 5 * 4096;
/// The protocol's error number of a server that is about to end.
const SHUTDOWN: u32 = 108;

fn options(more: &str) -> Options {
    let levels = layby_tests::small_levels().config.expect("it is a configuration");
    Options::config(format!("[node]\nshards = 2\n\n{levels}{more}"))
}

struct Setup {
    work: TempDir,
    node: Node,
}

impl Setup {
    fn new(more: &str) -> Setup {
        let work = TempDir::new().expect("a temporary folder");
        let node = Node::start(&work.path().join("node"), &options(more));
        Setup { work, node }
    }

    fn create(&self, name: &str, bytes: u64, class: &str) {
        let size = bytes.to_string();
        let words = ["volume", "create", name, "--size", &size, "--class", class];
        self.node.layby(&[&words[..], &["--shards", "2"]].concat());
    }

    fn open(&self, name: &str) -> Connection {
        Connection::open(&self.node.socket(), name).expect("the node serves")
    }

    /// One connection to each shard.
    fn pair(&self, name: &str) -> [Connection; 2] {
        [self.open(name), self.open(name)]
    }

    fn dir(&self) -> PathBuf {
        self.work.path().join("node")
    }

    fn show(&self, name: &str) -> Value {
        let text = self.node.layby(&["volume", "show", name, "--json"]);
        serde_json::from_str(&text).expect("an answer in JSON")
    }

    /// Stops the node cleanly and checks its files.
    fn finish(self) -> TempDir {
        let dir = self.dir();
        self.node.stop();
        check(&dir);
        self.work
    }

    fn restart(self, more: &str) -> Setup {
        let work = self.finish();
        let node = Node::start(&work.path().join("node"), &options(more));
        Setup { work, node }
    }

    fn refused(&self, words: &[&str]) -> String {
        let dir = self.dir();
        let outcome = layby(&[words, &["--dir", &dir.to_string_lossy()]].concat());
        outcome.assert_explains(&[]);
        outcome.stderr
    }
}

#[track_caller]
fn check(dir: &Path) {
    let outcome = layby(&["check", "--dir", &dir.to_string_lossy()]);
    assert!(outcome.success, "check: {}\n{}", outcome.stdout, outcome.stderr);
}

/// A range whose ends lie about edges of stripes more often than chance would have it.
fn range(rng: &mut Rng, length: u64) -> (u64, u64) {
    let near = |rng: &mut Rng| {
        let edge = rng.below(length / STRIPE + 1) * STRIPE;
        let offset = match rng.below(3) {
            0 => edge,
            1 => edge.saturating_sub(512 * (1 + rng.below(40))),
            _ => rng.below(length / 512) * 512,
        };
        offset.min(length - 512)
    };
    let begin = near(rng);
    let most = match rng.below(8) {
        0 => 5 * STRIPE,
        1 => 300 << 10,
        _ => 24 << 10,
    };
    let bytes = (1 + rng.below(most / 512)) * 512;
    (begin, bytes.min(length - begin))
}

/// One random change or read of `volume`, done to `model`, too. A read is compared.
fn step(connection: &mut Connection, model: &mut [u8], rng: &mut Rng) -> &'static str {
    let (offset, bytes) = range(rng, model.len() as u64);
    let own = &mut model[offset as usize..(offset + bytes) as usize];
    let length = bytes as u32;
    let (request, kind) = match rng.below(10) {
        0 => (Request::Trim { offset, length }, "other"),
        1 => (Request::Zero { offset, length }, "other"),
        2 => (Request::Flush, "other"),
        3..=5 => {
            let mut data = vec![0; own.len()];
            rng.fill(&mut data);
            own.copy_from_slice(&data);
            (Request::Write { offset, data, fua: rng.chance(1, 4) }, "write")
        }
        _ => (Request::Read { offset, length }, "read"),
    };
    if matches!(request, Request::Trim { .. } | Request::Zero { .. }) {
        own.fill(0);
    }
    let answer = connection.call(&request).expect("the node serves");
    let data = answer.unwrap_or_else(|error| panic!("{request:?} failed: {error}"));
    assert!(kind != "read" || data == own, "{request:?} brought other bytes (seed {})", seed());
    kind
}

fn compare(connection: &mut Connection, model: &[u8]) {
    for (index, chunk) in model.chunks(3 << 20).enumerate() {
        let (offset, length) = (index as u64 * (3 << 20), chunk.len() as u32);
        let read = connection.call(&Request::Read { offset, length }).expect("the node serves");
        assert!(read.expect("it reads") == chunk, "{length} bytes from {offset} on are others");
    }
}

/// Goal: requests of any length, from either shard, act on one volume; after stop, check and start
/// it is the same; its counters are those of its requests; deleted, its home has its bytes. Method:
/// random requests about stripes' edges through two connections beside an array, in each class.
#[test]
fn both_sides_see_one_volume() {
    let mut setup = Setup::new("");
    let mut rng = Rng::new(seed());
    for class in ["critical", "normal", "bulk"] {
        setup.create("v", LENGTH, class);
        let mut pair = setup.pair("v");
        assert_eq!(pair[0].size(), LENGTH);
        let mut model = vec![0; LENGTH as usize];
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for _ in 0..number("LAYBY_WIDE_STEPS", 300) {
            let side = rng.below(2) as usize;
            *counts.entry(step(&mut pair[side], &mut model, &mut rng)).or_default() += 1;
        }
        let shown = setup.show("v");
        for (kind, count) in counts {
            assert_eq!(shown["traffic"][kind]["requests"], count, "{kind}: {shown}");
        }
        assert_eq!(shown["shards"], 2);
        assert_eq!(shown["traffic"]["connections"], 2);
        compare(&mut pair[1], &model);
        drop(pair);
        setup = setup.restart("");
        setup.pair("v").iter_mut().for_each(|side| compare(side, &model));
        setup.node.layby(&["volume", "drain", "v"]);
        assert_eq!(dirty(&setup.show("v")), 0);
        let mut side = setup.open("v");
        step(&mut side, &mut model, &mut rng);
        setup.node.layby(&["volume", "delete", "v"]);
        assert!(side.call(&Request::Flush).is_err(), "its client is disconnected");
        let home = setup.dir().join("volumes/v");
        let kept = std::fs::read(&home).expect("it is kept");
        assert!(kept == model, "the home has other bytes");
        std::fs::remove_file(home).expect("it is ours");
    }
    setup.finish();
}

fn dirty(shown: &Value) -> u64 {
    let levels = shown["traffic"]["dirty_bytes"].as_object().expect("by level");
    levels.values().map(|bytes| bytes.as_u64().expect("bytes")).sum()
}

/// Goal: a volume grows and shrinks under its clients to any length, and keeps its bytes. Method:
/// lengths up and down, odd ones too, each compared with an array, also after a restart.
#[test]
fn lengths_change() {
    let setup = Setup::new("");
    let mut rng = Rng::new(seed());
    setup.create("v", 4 * STRIPE, "normal");
    let mut model = vec![0; 4 * STRIPE as usize];
    let lengths = [LENGTH, 7 * STRIPE + 4096, 12 * STRIPE, 2 * STRIPE + 4096, LENGTH];
    for length in lengths {
        let mut pair = setup.pair("v");
        for _ in 0..20 {
            let side = rng.below(2) as usize;
            step(&mut pair[side], &mut model, &mut rng);
        }
        let size = length.to_string();
        setup.node.layby(&["volume", "resize", "v", "--size", &size, "--shrink"]);
        model.resize(length as usize, 0);
        let home = std::fs::metadata(setup.dir().join("volumes/v")).expect("it is there");
        assert_eq!(home.len(), length);
        let mut side = setup.open("v");
        assert_eq!(side.size(), length);
        compare(&mut side, &model);
    }
    let refused = setup.refused(&["volume", "resize", "v", "--size", "1MiB", "--shrink"]);
    assert!(refused.contains("too little for 2 shards"), "{refused}");
    let setup = setup.restart("");
    compare(&mut setup.open("v"), &model);
    setup.finish();
}

/// Goal: after kill -9, and after a power cut, every promised block is there, whole, whichever
/// connection flushed. Method: histories in two classes, whose batches go by two connections in
/// turn, killed after a random number of batches, again and again.
#[test]
fn promises_survive_kills() {
    for power_loss in [false, true] {
        let work = TempDir::new().expect("a temporary folder");
        let (dir, mut rng) = (work.path().join("node"), Rng::new(seed()));
        let mut histories = [("critical", Durability::OnReply), ("normal", Durability::OnFlush)]
            .map(|(name, durability)| (name, History::new(2048, durability, rng.next_u64())));
        for run in 0..number("LAYBY_CRASH_RUNS", 3) {
            let node = Node::start(&dir, &Options { power_loss, ..options("") });
            let setup = Setup { work: TempDir::new().expect("a temporary folder"), node };
            for (name, history) in &mut histories {
                if run == 0 {
                    setup.create(name, 8 * STRIPE, name);
                }
                setup.pair(name).iter_mut().for_each(|side| history.verify(side));
            }
            write_and_kill(setup.node, &mut histories, 5 + rng.below(60));
            check(&dir);
        }
    }
}

fn write_and_kill(node: Node, histories: &mut [(&str, History)], batches: u64) {
    let socket = node.socket();
    let (heard, batch_done) = channel();
    scope(|threads| {
        for (name, history) in histories {
            let (socket, heard) = (&socket, heard.clone());
            threads.spawn(move || {
                let open = || Connection::open(socket, name);
                let (Ok(mut one), Ok(mut other)) = (open(), open()) else { return };
                // Nobody listens any more once the node is to be killed.
                while history.batch(&mut one).is_ok() && history.batch(&mut other).is_ok() {
                    let _ = heard.send(());
                }
                history.lost();
            });
        }
        drop(heard);
        let count = batches as usize;
        assert_eq!(batch_done.iter().take(count).count(), count, "the writers ended by themselves");
        node.kill9();
    });
}

/// Goal: an orderly stop under load ends connections and answers no request with an error that a
/// client would take for its disk's. Method: two clients, on either shard, write ahead of their
/// replies across stripes while the node stops, a few times; what was answered is there.
#[test]
fn stops_are_clean_under_load() {
    let mut setup = Setup::new("");
    setup.create("v", 8 * STRIPE, "normal");
    for round in 1..4_u8 {
        let (began, begin) = channel();
        let pair = setup.pair("v");
        let Setup { work, node } = setup;
        let answered: Vec<Vec<u64>> = scope(|threads| {
            let writers = pair.into_iter().enumerate().map(|(side, connection)| {
                let began = began.clone();
                threads.spawn(move || write_until_stopped(connection, side, round, &began))
            });
            let writers: Vec<_> = writers.collect();
            assert_eq!(begin.iter().take(2).count(), 2, "both write");
            node.stop();
            writers.into_iter().map(|writer| writer.join().expect("it asserts")).collect()
        });
        check(&work.path().join("node"));
        let node = Node::start(&work.path().join("node"), &options(""));
        setup = Setup { work, node };
        let mut side = setup.open("v");
        for offset in answered.into_iter().flatten() {
            let read = side.call(&Request::Read { offset, length: WRITE as u32 });
            let data = read.expect("the node serves").expect("it reads");
            assert!(data.iter().all(|byte| *byte == round), "{offset} in round {round}");
        }
    }
    setup.finish();
}

/// Bytes of a write that crosses an edge.
const WRITE: u64 = 64 << 10;

/// Writes across edges of stripes until the node is gone; answers with what was acknowledged.
fn write_until_stopped(
    mut connection: Connection,
    side: usize,
    round: u8,
    began: &std::sync::mpsc::Sender<()>,
) -> Vec<u64> {
    let mut answered = Vec::new();
    let mut sent = BTreeMap::new();
    for turn in 0.. {
        // Each side has edges of its own, so that no other write follows one that was answered.
        let edge = 1 + (2 * turn + side as u64) % 6;
        let offset = edge * STRIPE - WRITE / 2;
        let data = vec![round; WRITE as usize];
        match connection.send(&Request::Write { offset, data, fua: false }) {
            Ok(cookie) => sent.insert(cookie, offset),
            Err(_) => break,
        };
        if turn < 16 {
            continue;
        }
        let Ok((cookie, result)) = connection.receive() else { break };
        assert_ne!(result, Err(SHUTDOWN), "an orderly stop gives no errors");
        assert!(result.is_ok(), "{result:?}");
        answered.extend(sent.remove(&cookie));
        if turn == 64 {
            // The test may have failed meanwhile.
            let _ = began.send(());
        }
    }
    answered
}

/// Goal: limits hold for the volume as a whole, however many connections it has on however many
/// shards, also when they come later, and a class's too. Method: connections on both shards before
/// a limit is set; counts of reads against their time; the limit taken away.
#[test]
#[expect(clippy::disallowed_methods, reason = "a rate is a count over a time")]
fn limits_hold_together() {
    let setup = Setup::new("");
    setup.create("v", 8 * STRIPE, "normal");
    let mut sides: Vec<Connection> = setup.pair("v").into();
    let volume = ["volume", "set", "v", "--iops-max"];
    let class = ["class", "set", "normal", "--iops-max"];
    for words in [volume, class] {
        setup.node.layby(&[&words[..], &["1000", "--iops-burst", "20"]].concat());
        sides.push(setup.open("v"));
        let began = std::time::Instant::now();
        scope(|threads| {
            for side in &mut sides {
                threads.spawn(move || read_many(side, 3000 / 3, 8));
            }
        });
        let seconds = began.elapsed().as_secs_f64();
        // The last 20 of each connection may be sent before the clock of another has begun.
        let count = (3000 / 3 * sides.len()) as f64;
        assert!(seconds >= (count - 20.0) / 1000.0 * 0.97, "{count} reads took {seconds} s");
        assert!(seconds <= 4.0 * count / 1000.0, "{count} reads took {seconds} s");
        let shown = setup.show("v");
        let held = shown["traffic"]["throttled"].as_u64().expect("a count");
        assert!(held > 100, "{shown}");
        sides.truncate(2);
        setup.node.layby(&[&words[..], &["0"]].concat());
    }
    let mut crossing = sides.remove(1);
    let across = Request::Read { offset: STRIPE - 4096, length: 8192 };
    crossing.call(&across).expect("the node serves").expect("nothing holds it");
    setup.finish();
}

fn read_many(connection: &mut Connection, count: u64, depth: u64) {
    for request in 0..count + depth {
        if request < count {
            let offset = request % 64 * (STRIPE / 8);
            connection.send(&Request::Read { offset, length: 4096 }).expect("the node serves");
        }
        if request >= depth {
            let (_, result) = connection.receive().expect("the node serves");
            assert!(result.is_ok(), "{result:?}");
        }
    }
}

/// Goal: a virtual machine's queues are served by both shards, whoever has what they ask for, and
/// its volume can go under it. Method: writes across edges by either queue, read back by a queue
/// and by clients; the volume deleted while the guest is connected.
#[test]
fn a_guest_has_queues_on_both_shards() {
    let setup = Setup::new("");
    setup.create("v", 4 * STRIPE, "normal");
    let mut guest = Guest::new(2);
    guest.connect(&setup.dir().join("vhost/v.sock"));
    let sector = |queue: usize, edge: u64| (edge * STRIPE - 4096 + 8192 * queue as u64) / 512;
    for queue in [0, 1] {
        for edge in 1..4 {
            let bytes = vec![(10 * queue as u64 + edge) as u8; 8192];
            let slot = edge as u16;
            guest.request(queue, slot, kind::OUT, sector(queue, edge), Data::Out(&bytes));
            guest.kick(queue);
            assert_eq!(guest.answers(queue), [(slot, 0)]);
        }
    }
    guest.request(1, 0, kind::FLUSH, 0, Data::Out(&[]));
    guest.kick(1);
    assert_eq!(guest.answers(1), [(0, 0)]);
    for edge in 1..4_u64 {
        let expected = [vec![edge as u8; 8192], vec![edge as u8 + 10; 8192]].concat();
        let read = guest.ask(kind::IN, sector(0, edge), Data::In(16384));
        assert!(read == (0, expected.clone()), "edge {edge}");
        for mut side in setup.pair("v") {
            let (offset, length) = (sector(0, edge) * 512, 16384);
            let read = side.call(&Request::Read { offset, length }).expect("the node serves");
            assert!(read.expect("it reads") == expected, "edge {edge}");
        }
    }
    assert_eq!(setup.show("v")["guest_connected"], true);
    setup.node.layby(&["volume", "delete", "v"]);
    setup.finish();
}

/// Goal: foreign clients with several connections find one volume. Method: nbdcopy there and back
/// with four connections, qemu-img's comparison, and the map of data and holes.
#[test]
fn foreign_clients_copy() {
    if !available(&["nbdcopy", "qemu-img", "nbdinfo"]) {
        return;
    }
    let setup = Setup::new("");
    let (image, back) = (setup.work.path().join("image"), setup.work.path().join("back"));
    let bytes = 40 * STRIPE + 3 * 4096;
    let mut data = vec![0; bytes as usize];
    let mut rng = Rng::new(seed());
    for run in data.chunks_mut(300_000).step_by(2) {
        rng.fill(run);
    }
    std::fs::write(&image, &data).expect("a folder of ours");
    setup.create("disk", bytes, "normal");
    let uri = setup.node.uri("disk");
    let (image, back) = (image.to_string_lossy(), back.to_string_lossy());
    must("nbdcopy", &["--connections=4", "--requests=16", "--flush", &image, &uri]);
    must("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &uri]);
    let setup = setup.restart("");
    let uri = setup.node.uri("disk");
    must("nbdcopy", &["--connections=4", "--requests=16", &uri, &back]);
    assert!(std::fs::read(&*back).expect("it was written") == data, "other bytes came back");
    let map = must("nbdinfo", &["--map", "--json", &uri]);
    let map: Value = serde_json::from_str(&map).expect("nbdinfo prints JSON");
    let mut at = 0;
    for run in map.as_array().expect("a list") {
        let figure = |key: &str| run[key].as_u64().expect("a number");
        assert_eq!(figure("offset"), at, "{map}");
        let (begin, end) = (at as usize, (at + figure("length")) as usize);
        let is_zero = data[begin..end].iter().all(|byte| *byte == 0);
        assert!(figure("type") == 0 || is_zero, "{run} is no hole");
        at = end as u64;
    }
    assert_eq!(at, bytes);
    setup.finish();
}

/// Goal: libnbd sees every request of a longer script answered right over both shards. Method: its
/// own asynchronous requests on two connections, of all kinds, across edges.
#[test]
fn libnbd_mixes_requests() {
    const SCRIPT: &str = r#"
import nbd, os, sys
sides = [nbd.NBD() for _ in range(2)]
for side in sides:
    side.connect_uri(sys.argv[1])
mib = 1 << 20
model = bytearray(sides[0].get_size())
for round in range(6):
    cookies = []
    for edge in range(1, 8):
        at = edge * mib - 3 * 512
        data = os.urandom(7 * 512)
        model[at:at + len(data)] = data
        buffer = nbd.Buffer.from_bytearray(bytearray(data))
        side = sides[(edge + round) % 2]
        cookies.append((side, side.aio_pwrite(buffer, at)))
    for side, cookie in cookies:
        while not side.aio_command_completed(cookie):
            side.poll(-1)
    sides[round % 2].flush()
    assert sides[round % 2].pread(len(model), 0) == model
    sides[1].zero(3 * mib, mib // 2 + 512)
    model[mib // 2 + 512:mib // 2 + 512 + 3 * mib] = bytes(3 * mib)
    sides[0].cache(2 * mib, mib)
    assert sides[(round + 1) % 2].pread(len(model), 0) == model
"#;
    let setup = Setup::new("");
    setup.create("v", 8 * STRIPE, "critical");
    let _ = python(SCRIPT, &[&setup.node.uri("v")]);
    setup.finish();
}

/// Goal: what cannot be is refused with what could be, and changes nothing. Method: each mistake.
#[test]
fn mistakes_are_explained() {
    let declared = "[volume.d]\nsize = \"8MiB\"\nshards = 2\n";
    let setup = Setup::new(declared);
    let create = ["volume", "create", "v", "--size", "8MiB", "--shards"];
    let store = ["--path", "s3://bucket/v"];
    for (words, cause) in [
        ([&create[..], &["3"]].concat(), "the node has 2"),
        ([&create[..], &["0"]].concat(), "over 0 shards"),
        ([&create[..], &["2"], &store[..]].concat(), "served by one shard"),
        (vec!["volume", "create", "v", "--size", "1MiB", "--shards", "2"], "need 2MiB"),
    ] {
        let refused = setup.refused(&words);
        assert!(refused.contains(cause), "{refused}");
    }
    assert!(!setup.node.layby(&["volume", "list"]).contains(" v "));
    assert_eq!(setup.show("d")["shards"], 2);
    let setup = setup.restart(declared);
    setup.create("v", 8 * STRIPE, "normal");
    let work = setup.finish();
    let dir = work.path().join("node");
    for (text, cause) in [
        (declared.replace("shards = 2", "shards = 1"), "lies over 2 shard(s)"),
        (declared.replace("shards = 2\n", ""), "lies over 2 shard(s)"),
    ] {
        let refusal = Node::try_start(&dir, &options(&text)).expect_err("another shape");
        refusal.assert_explains(&[cause, "set `shards` back"]);
    }
    let other = Options { arguments: vec!["--shards".into(), "1".into()], ..options(declared) };
    let refusal = Node::try_start(&dir, &other).expect_err("another number of shards");
    refusal.assert_explains(&["the number of shards of this node is 2"]);
    Node::start(&dir, &options(declared)).stop();
}

/// Goal: a volume whose length is no multiple of a block comes home whole, on one shard and on two.
/// Method: its last bytes written and drained; the home's own bytes; a restart.
#[test]
fn a_volume_may_end_in_the_middle_of_a_block() {
    const TAIL: u64 = 5 * 512;
    const ODD: u64 = 9 * STRIPE + TAIL;
    for shards in ["1", "2"] {
        let setup = Setup::new("");
        let size = ODD.to_string();
        setup.node.layby(&["volume", "create", "odd", "--size", &size, "--shards", shards]);
        let data = vec![7; 2 * TAIL as usize];
        let write = Request::Write { offset: ODD - 2 * TAIL, data: data.clone(), fua: true };
        let answer = setup.open("odd").call(&write).expect("the node is there");
        answer.expect("it is written");
        setup.node.layby(&["volume", "drain", "odd"]);
        let path = setup.show("odd")["path"].as_str().expect("it has a home").to_owned();
        let home = std::fs::read(setup.dir().join(path)).expect("a file");
        assert_eq!(home.len() as u64, ODD);
        assert!(home.ends_with(&data), "{shards} shards: the tail came home");
        let setup = setup.restart("");
        let read = Request::Read { offset: ODD - 2 * TAIL, length: 2 * TAIL as u32 };
        let answer = setup.open("odd").call(&read).expect("the node is there");
        assert!(answer.expect("it is read") == data);
        setup.finish();
    }
}

/// Goal: connections of all shards have their parts of a limit that is set while they are open, and
/// each waits with one request at a time. Method: four connections, two to a shard, eight deep,
/// until they have been answered a number of requests together; how many each was.
#[test]
fn a_limit_is_shared_by_connections_of_all_shards() {
    const ALL: u64 = 2000;
    let setup = Setup::new("");
    setup.create("w", LENGTH, "normal");
    let connections: Vec<Connection> = (0..4).map(|_| setup.open("w")).collect();
    setup.node.layby(&["volume", "set", "w", "--iops-max", "1000"]);
    let total = AtomicU64::new(0);
    let counts: Vec<u64> = scope(|scope| {
        let each = connections.into_iter().map(|mut connection| {
            let total = &total;
            scope.spawn(move || {
                let mut count = 0;
                let read = |at: u64| Request::Read { offset: at % 9 * STRIPE, length: 4096 };
                for at in 0..8 {
                    connection.send(&read(at)).expect("the node serves");
                }
                while total.fetch_add(1, Ordering::SeqCst) < ALL {
                    assert!(connection.receive().expect("the node serves").1.is_ok());
                    count += 1;
                    connection.send(&read(count)).expect("the node serves");
                }
                for _ in 0..8 {
                    assert!(connection.receive().expect("the node serves").1.is_ok());
                }
                count
            })
        });
        let each: Vec<_> = each.collect();
        while total.load(Ordering::SeqCst) < ALL {
            let now = setup.show("w")["traffic"]["throttled_now"].as_u64().expect("a count");
            assert!(now <= 4, "{now} requests of four connections wait");
        }
        each.into_iter().map(|one| one.join().expect("it does not panic")).collect()
    });
    assert!(counts.iter().all(|count| *count >= ALL / 8), "{counts:?}");
    setup.finish();
}

/// A write of one block, filled with `value`.
fn filled(offset: u64, value: u8) -> Request {
    Request::Write { offset, data: vec![value; 4096], fua: false }
}

/// Reads a block so often that requests which wait for a limit beside it have had their turn.
#[track_caller]
fn assert_stays(connection: &mut Connection, offset: u64, value: u8) {
    for _ in 0..6 {
        let read = connection.call(&Request::Read { offset, length: 4096 });
        let data = read.expect("the node serves").expect("it reads");
        assert!(data == [value; 4096], "an older write came after a newer one: {}", data[0]);
    }
}

/// Goal: a request that a limit holds back dies with its connection, whichever shard has that, with
/// and without a goodbye. Method: a connection beside the first part, older than the limit; three
/// writes in one go at a rate that lets the first pass; it breaks; another one writes the last
/// block anew and reads it back, in a line behind what was held.
#[test]
fn a_held_write_dies_with_its_connection() {
    const LAST: u64 = 3 * STRIPE;
    let setup = Setup::new("");
    for name in ["break", "goodbye"] {
        setup.create(name, 4 * STRIPE, "normal");
        let [_, mut first] = setup.pair(name);
        let limit = ["--iops-max", "5", "--iops-burst", "1"];
        setup.node.layby(&[&["volume", "set", name][..], &limit].concat());
        for at in [0, STRIPE, LAST] {
            first.send(&filled(at, 1)).expect("the node serves");
        }
        assert!(first.receive().expect("the first passes on the burst").1.is_ok());
        if name == "goodbye" {
            first.say_goodbye().expect("the node serves");
        }
        drop(first);
        let mut second = setup.open(name);
        let answer = second.call(&filled(LAST, 9)).expect("it waits for its turn");
        answer.expect("it is written");
        assert_stays(&mut second, LAST, 9);
    }
    setup.finish();
}

/// Goal: what a limit holds back of a client that the operator disconnects never begins. Method: as
/// above, at a request a second; once the command has answered, another client writes the last
/// block anew, and the limit goes.
#[test]
fn a_held_write_dies_with_a_disconnected_client() {
    let setup = Setup::new("");
    setup.create("v", 4 * STRIPE, "normal");
    let [_, mut first] = setup.pair("v");
    setup.node.layby(&["volume", "set", "v", "--iops-max", "1", "--iops-burst", "1"]);
    let last = |count: u64| 2 * STRIPE + count * 4096;
    for count in 0..20 {
        first.send(&filled(last(count), 1)).expect("the node serves");
    }
    assert!(first.receive().expect("the first passes on the burst").1.is_ok());
    setup.node.layby(&["client", "disconnect", "--volume", "v"]);
    let mut second = setup.open("v");
    let answer = second.call(&filled(last(19), 9)).expect("it waits for its turn");
    answer.expect("it is written");
    setup.node.layby(&["volume", "set", "v", "--iops-max", "0"]);
    assert_stays(&mut second, last(19), 9);
    drop(first);
    setup.finish();
}

/// Goal: a write that a limit holds back is refused once its volume is read-only, whichever shard
/// has its client. Method: a request a second and twenty writes at once; those that were not begun
/// before the command's answer, which ends the limit, too, are errors and not in the volume.
#[test]
fn a_held_write_of_a_read_only_volume_is_refused() {
    const EPERM: u32 = 1;
    let setup = Setup::new("");
    setup.create("v", 4 * STRIPE, "normal");
    let [_, mut first] = setup.pair("v");
    setup.node.layby(&["volume", "set", "v", "--iops-max", "1", "--iops-burst", "1"]);
    for value in 1..=20 {
        first.send(&filled(0, value)).expect("the node serves");
    }
    assert!(first.receive().expect("the first passes on the burst").1.is_ok());
    setup.node.layby(&["volume", "set", "v", "--read-only", "true", "--iops-max", "0"]);
    let answers: Vec<_> = (0..19).map(|_| first.receive().expect("it is connected").1).collect();
    let done = 1 + answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(done < 20, "{answers:?}");
    assert!(answers[done - 1..].iter().all(|answer| *answer == Err(EPERM)), "{answers:?}");
    assert_stays(&mut first, 0, done as u8);
    setup.finish();
}

/// Goal: what a limit holds back of a guest that is gone never begins, whichever shard has its
/// queue. Method: three writes by the second shard's queue at a rate that lets the first pass; the
/// monitor leaves; the next one writes the last block anew by the first shard's queue.
#[test]
fn a_held_write_dies_with_its_guest() {
    const LAST: u64 = 3 * STRIPE;
    let setup = Setup::new("");
    setup.create("v", 4 * STRIPE, "normal");
    setup.node.layby(&["volume", "set", "v", "--iops-max", "5", "--iops-burst", "1"]);
    let socket = setup.dir().join("vhost/v.sock");
    let mut first = Guest::new(2);
    first.connect(&socket);
    for (slot, at) in [0, STRIPE, LAST].into_iter().enumerate() {
        first.request(1, slot as u16, kind::OUT, at / 512, Data::Out(&[1; 4096]));
    }
    first.kick(1);
    assert_eq!(first.answers(1), [(0, 0)], "the first passes on the burst");
    first.disconnect();
    let mut second = Guest::new(2);
    second.connect(&socket);
    assert_eq!(second.ask(kind::OUT, LAST / 512, Data::Out(&[9; 4096])).0, 0);
    assert_stays(&mut setup.open("v"), LAST, 9);
    setup.finish();
}
