//! Limits of volumes and classes, as clients meet them.
//!
//! How: requests are sent ahead of their replies, so that the limit alone sets the pace; replies
//! are counted over a time that the test measures. Bounds are on counts: a limit may never give
//! more than burst and rate, and the machine may be slow, so less is a failure only far below.
//! Invariant: no test waits for a clock; where a wait would take hours, only the change under test
//! can end it.

use layby_tests::{Connection, Node, Options, Request, layby};
use std::time::Instant;
use tempfile::TempDir;

/// Bytes of a small request.
const SMALL: u32 = 4096;
/// A limit under which one mebibyte takes minutes, as any more would.
const CRAWL: &str = "4KiB";

fn node(dir: &TempDir, volumes: &str) -> Node {
    let levels = layby_tests::small_levels().config.expect("it is a configuration");
    Node::start(&dir.path().join("node"), &Options::config(format!("{levels}{volumes}")))
}

fn open(node: &Node, volume: &str) -> Connection {
    Connection::open(&node.socket(), volume).expect("the node serves")
}

fn read(offset: u64) -> Request {
    Request::Read { offset, length: SMALL }
}

/// Reads `count` times with up to `depth` in flight; the seconds from first to last reply.
#[expect(clippy::disallowed_methods, reason = "a rate is a count over a time")]
fn read_many(connection: &mut Connection, count: u64, depth: u64) -> f64 {
    let began = Instant::now();
    for request in 0..count + depth {
        if request < count {
            connection.send(&read(request % 64 * u64::from(SMALL))).expect("the node serves");
        }
        if request >= depth {
            let (_, result) = connection.receive().expect("the node serves");
            assert!(result.is_ok(), "{result:?}");
        }
    }
    began.elapsed().as_secs_f64()
}

fn figure(text: &str, key: &str) -> f64 {
    let value: serde_json::Value = serde_json::from_str(text).expect("an answer in JSON");
    value["traffic"][key].as_f64().unwrap_or_else(|| panic!("`{key}` is missing in {text}"))
}

/// Goal: a volume gets its rate and no more, and says how often it was held. Method: reads through
/// one and two connections, at a limit of requests; counts against the time they took.
#[test]
fn volume_keeps_its_rate() {
    let dir = TempDir::new().expect("a temporary directory");
    let limits = "limits = { iops_max = 1000, iops_burst = 20 }";
    let node = node(&dir, &format!("[volume.a]\nsize = \"1MiB\"\n{limits}\n"));
    let mut connection = open(&node, "a");
    let seconds = read_many(&mut connection, 3000, 16);
    // What was sent before the clock began is nothing, and the last 20 are the burst.
    assert!(seconds >= (3000.0 - 20.0) / 1000.0 - 0.06, "3000 reads took {seconds} s");
    assert!(seconds <= 12.0, "3000 reads took {seconds} s");
    let shown = node.layby(&["volume", "show", "a", "--json"]);
    assert!(figure(&shown, "throttled") > 100.0, "{shown}");
    assert!(figure(&shown, "throttled_seconds") > 0.1, "{shown}");
    let people = node.layby(&["volume", "show", "a"]);
    assert!(people.contains("1000 requests/s (20 at once)"), "{people}");
    node.stop();
}

/// Goal: a change counts at once for a request that waits, others are not held meanwhile, and the
/// change is kept. Method: a volume whose second read would wait for hours, until its limit
/// goes; a second volume beside it; a restart.
#[test]
fn change_frees_who_waits() {
    let dir = TempDir::new().expect("a temporary directory");
    let volumes = "[volume.a]\nsize = \"8MiB\"\n[volume.b]\nsize = \"1MiB\"\n";
    let node = node(&dir, volumes);
    node.layby(&["volume", "set", "a", "--bandwidth-max", CRAWL]);
    let mut connection = open(&node, "a");
    // Reads, since the node would not even receive the data of writes behind one that waits.
    for offset in 0..4 {
        let large = Request::Read { offset: offset << 20, length: 1 << 20 };
        connection.send(&large).expect("the node serves");
    }
    assert!(connection.receive().expect("the first passes on the burst").1.is_ok());
    read_many(&mut open(&node, "b"), 1000, 16);
    let mut other = open(&node, "a");
    other.send(&Request::Flush).expect("the node serves");
    assert!(other.receive().expect("a flush is never held").1.is_ok());
    let held = node.layby(&["volume", "show", "a", "--json"]);
    assert!(figure(&held, "throttled_now") >= 1.0, "{held}");
    node.layby(&["volume", "set", "a", "--bandwidth-max", "0"]);
    for _ in 1..4 {
        assert!(connection.receive().expect("nothing holds them any more").1.is_ok());
    }
    node.layby(&["volume", "set", "a", "--iops-max", "777"]);
    drop((connection, other));
    node.stop();
    let node = self::node(&dir, volumes);
    let shown = node.layby(&["volume", "show", "a"]);
    assert!(shown.contains("777 requests/s (77 at once)"), "{shown}");
    node.stop();
}

/// Goal: the volumes of a class share its limit. Method: two volumes read at once; together they
/// take the time of the class's rate.
#[test]
#[expect(clippy::disallowed_methods, reason = "a rate is a count over a time")]
fn class_limit_is_shared() {
    let dir = TempDir::new().expect("a temporary directory");
    let volumes = ["a", "b"].map(|name| format!("[volume.{name}]\nsize = \"1MiB\"\n"));
    let node = node(&dir, &volumes.concat());
    node.layby(&["class", "set", "normal", "--iops-max", "1000", "--iops-burst", "10"]);
    let connections = ["a", "b"].map(|name| open(&node, name));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for mut connection in connections {
            scope.spawn(move || read_many(&mut connection, 1000, 8));
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    assert!(seconds >= (2000.0 - 20.0) / 1000.0 - 0.06, "2000 reads took {seconds} s");
    node.stop();
}

/// Goal: a node with a client that waits for hours stops at once. Method: stop it; the write that
/// was never begun is not answered.
#[test]
fn waiting_requests_hold_no_stop() {
    let dir = TempDir::new().expect("a temporary directory");
    let limits = format!("limits = {{ bandwidth_max = \"{CRAWL}\" }}");
    let node = node(&dir, &format!("[volume.a]\nsize = \"8MiB\"\n{limits}\n"));
    let mut connection = open(&node, "a");
    for offset in 0..2 {
        let data = vec![7; 1 << 20];
        connection.send(&Request::Write { offset, data, fua: false }).expect("the node serves");
    }
    assert!(connection.receive().expect("the first passes").1.is_ok());
    node.stop();
    assert!(connection.receive().is_err(), "the second was never begun");
}

/// Goal: a limit that cannot be is refused with what could be. Method: one of each mistake, on the
/// command line and in the file.
#[test]
fn bad_limits_are_explained() {
    let dir = TempDir::new().expect("a temporary directory");
    let node = node(&dir, "[volume.a]\nsize = \"1MiB\"\n");
    let home = dir.path().join("node");
    let home = home.to_string_lossy();
    for (words, cause) in [
        (["--bandwidth-max", "1KiB"], "bandwidth_max of 1KiB is outside 4KiB to 1TiB"),
        (["--iops-burst", "5"], "iops_burst is given without iops_max"),
    ] {
        let words = [&["volume", "set", "a", "--dir", &home], &words[..]].concat();
        let outcome = layby(&words);
        assert!(!outcome.success && outcome.stderr.contains(cause), "{outcome:?}");
    }
    node.stop();
    let text = "[volume.a]\nsize = \"1MiB\"\nlimits = { iops = 5 }\n";
    let refusal = Node::try_start(&dir.path().join("other"), &Options::config(text));
    refusal.expect_err("an unknown key").assert_explains(&["iops_max"]);
}

/// Goal: load that the described devices cannot keep is refused with its figures, and nothing is
/// where none is described. Method: a slow NVM level, and a level that is not described.
#[test]
fn load_is_admitted_by_devices() {
    let dir = TempDir::new().expect("a temporary directory");
    let devices = dir.path().join("devices.toml");
    // 0.7 of one access of 1 ms at a time: 700 in a second.
    let text = "[[device]]\nname = \"nvm\"\nread = \"1ms\"\nwrite = \"1ms\"\n";
    std::fs::write(&devices, text).expect("a writable directory");
    let node = node(
        &dir,
        &format!(
            "[node]\ndevices = [\"{}\"]\n[class.critical]\nlatency_objective = \"50ms\"\n\
             [volume.a]\nsize = \"1MiB\"\nclass = \"critical\"\nlimits = {{ iops_max = 400 }}\n",
            devices.display()
        ),
    );
    let home = dir.path().join("node");
    let home = home.to_string_lossy();
    let create = ["volume", "create", "b", "--size", "1MiB", "--iops-max", "400", "--dir", &home];
    let outcome = layby(&[&create[..], &["--class", "critical"]].concat());
    assert!(!outcome.success, "{outcome:?}");
    for part in ["700 requests/s", "400 are promised to `a`", "300 are left", "lower iops_max"] {
        assert!(outcome.stderr.contains(part), "`{part}` is missing in {}", outcome.stderr);
    }
    node.layby(&["volume", "set", "a", "--iops-max", "300"]);
    node.layby(&[
        "volume",
        "create",
        "b",
        "--size",
        "1MiB",
        "--iops-max",
        "400",
        "--class",
        "critical",
    ]);
    node.layby(&["class", "set", "normal", "--latency-objective", "1ms"]);
    node.layby(&["volume", "create", "c", "--size", "1MiB", "--iops-max", "999999"]);
    node.stop();
}

/// Goal: a request that a limit holds back dies with its connection, so that it cannot overwrite
/// what the same client wrote after it connected again. Method: three writes in one go at a rate
/// that lets the first pass; the connection breaks; another one writes the last block anew and
/// reads it back, in a line behind what was held.
#[test]
fn a_held_write_dies_with_its_connection() {
    let dir = TempDir::new().expect("a temporary directory");
    let limits = "limits = { iops_max = 5, iops_burst = 1 }";
    let node = node(&dir, &format!("[volume.a]\nsize = \"1MiB\"\n{limits}\n"));
    let write = |block: u64, value: u8| Request::Write {
        offset: block * u64::from(SMALL),
        data: vec![value; SMALL as usize],
        fua: false,
    };
    let mut first = open(&node, "a");
    for block in 0..3 {
        first.send(&write(block, 1)).expect("the node serves");
    }
    assert!(first.receive().expect("the first passes on the burst").1.is_ok());
    drop(first);
    let mut second = open(&node, "a");
    second.send(&write(2, 9)).expect("the node serves");
    assert!(second.receive().expect("it waits for its turn").1.is_ok());
    let (_, read) = {
        second.send(&Request::Read { offset: 2 * u64::from(SMALL), length: SMALL }).expect("sent");
        second.receive().expect("it waits for its turn")
    };
    assert_eq!(read.map(|data| data[0]), Ok(9), "an older write came after a newer one");
    drop(second);
    node.stop();
}
