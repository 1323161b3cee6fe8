//! What hostile clients can make a node hold: memory, places, time.
//!
//! How: a node as users start it, and clients that do what none would do for its own good. Bounds
//! are on counts and bytes; how long others wait beside them is measured by hand, see
//! docs/security.md.

use layby_tests::{Connection, Node, Options, Request};
use tempfile::TempDir;

/// Clients that never receive. The measure by hand takes a thousand.
const DEAF_CLIENTS: u64 = 200;
/// What they may cost above an idle node, in KiB.
const DEAF_KIB_MAX: u64 = 256 << 10;
const MIB: u32 = 1 << 20;

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
