//! Live sizing through the binary: policies and shares are configured, shown, and explained.
//!
//! How: a node with short periods is read from until the periods show it; every wait is a loop of
//! requests with a bound, never a pause.

use layby_tests::{Connection, Node, Options, Request};
use tempfile::TempDir;

/// Rounds of reads before a test gives up; each takes some milliseconds.
const ROUNDS_MAX: u32 = 2000;

fn config(more: &str) -> Options {
    Options::config(format!(
        "[node]\nshards = 1\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"4MiB\"\npolicy = \"s3-fifo\"\n\
         {more}"
    ))
}

fn refusal(more: &str) -> layby_tests::Refusal {
    let work = TempDir::new().expect("a temporary folder");
    match Node::try_start(&work.path().join("node"), &config(more)) {
        Ok(_) => panic!("the node started on input that it must refuse"),
        Err(refusal) => refusal,
    }
}

/// Goal: a wrong policy and wrong sizing are explained, with line and known words. Method: a few.
#[test]
fn wrong_words_are_explained() {
    refusal("policy = \"best\"\n").assert_explains(&["line"]);
    let level = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"16MiB\"\npolicy = \"best\"\n";
    refusal(level).assert_explains(&["best", "lru", "arc", "line 12"]);
    refusal("[sizing]\nperiod = \"1ms\"\n").assert_explains(&["period", "100ms", "line 9"]);
    refusal("[sizing]\nobjective = \"all\"\n").assert_explains(&["objectives-first"]);
}

/// Goal: `status` shows policies, shares, predictions and outcomes; `--what-if` shows other sizes
/// and policies with units. Method: two volumes, one read again and again within the level, the
/// other one far beyond it, until shares have moved.
#[test]
fn status_shows_shares_and_what_ifs() {
    let work = TempDir::new().expect("a temporary folder");
    let options = config("[sizing]\nenabled = true\nperiod = \"100ms\"\ngain_min = \"1%\"\n");
    let node = Node::start(&work.path().join("node"), &options);
    let mut connections = Vec::new();
    for name in ["hot", "cold"] {
        node.volume_create(name, "64MiB", "normal");
        connections.push(Connection::open(&node.socket(), name).expect("the node serves"));
    }
    let mut read = |volume: usize, block: u64| {
        let read = Request::Read { offset: block * 4096, length: 4096 };
        let data = connections[volume].call(&read).expect("the node serves").expect("no error");
        assert_eq!(data.len(), 4096);
    };
    let (mut shown, mut step) = (String::new(), 0u64);
    for _ in 0..ROUNDS_MAX {
        for _ in 0..200 {
            // An odd stride visits every block, in an order that no read-ahead follows.
            read(0, step * 389 % 700);
            read(1, step * 7919 % 16384);
            step += 1;
        }
        shown = node.layby(&["status"]);
        if shown.contains("| dram ") && !shown.contains(" 0 move(s)") {
            break;
        }
    }
    for part in ["s3fifo", "shares follow", "misses predicted", "mean predicted"] {
        assert!(shown.contains(part), "`{part}` is missing in\n{shown}");
    }
    assert!(!shown.contains(" 0 move(s)"), "shares never moved\n{shown}");
    let text = node.layby(&["status", "--what-if"]);
    for part in ["| hot ", "| cold ", "x0.25", "as now", "x4", "MiB", " % ", "µs"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    let json = node.layby(&["status", "--what-if", "--json"]);
    assert!(json.contains("\"miss_ratio\""), "{json}");
    node.stop();
}
