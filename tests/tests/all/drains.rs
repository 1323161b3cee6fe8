//! Drains of volumes in object stores while clients write, and when their own client goes.
//!
//! How: as the tests of such volumes; see `layby_tests::cloud`.
//! Where the store's program is missing the tests say so and skip.

use layby_tests::cloud::{BLOCK, BLOCKS, Client, VOLUME, World, contents};
use layby_tests::link::{Effect, Fault, Operation, StoreError};
use layby_tests::{Connection, Node, Options, Request, binary};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Writes of a steady client at most, so that a test ends that fails.
const WRITES_MAX: u64 = 60_000;

fn write(connection: &mut Connection, number: u64) {
    let block = number % BLOCKS;
    let (offset, data) = (block * BLOCK, contents(block, number));
    let answer = connection.call(&Request::Write { offset, data, fua: false });
    answer.expect("the node is there").expect("no error reaches a client");
}

/// Goal: a drain ends while a client writes on, when the store has what was acknowledged before it,
/// and the store then has that. Method: a link that is late, a client that does not stop before the
/// drain has ended; a restore, which finds what was written before.
#[test]
fn a_drain_ends_under_a_steady_writer() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write_each();
    let late = Effect::Late { least: Duration::from_millis(20), most: Duration::from_millis(50) };
    let fault = world.link.fault(Fault::new(late));
    let (is_over, socket) = (Arc::new(AtomicBool::new(false)), node.socket());
    let writer = std::thread::spawn({
        let is_over = is_over.clone();
        move || {
            let mut connection = Connection::open(&socket, VOLUME).expect("the node is there");
            let half = BLOCKS / 2;
            let more = (1..WRITES_MAX).take_while(|_| !is_over.load(Ordering::Relaxed));
            more.for_each(|number| write(&mut connection, number % half));
            is_over.load(Ordering::Relaxed)
        }
    });
    for words in [&["volume", "drain", VOLUME][..], &["volume", "drain"]] {
        node.layby(words);
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(writer.join().expect("it writes"), "the drains waited for the end of the writes");
    fault.lift();
    let image = world.dir("image");
    let (is_whole, text) = world.restore(Some(&image));
    assert!(is_whole, "{text}");
    let bytes = std::fs::read(&image).expect("it was restored");
    for block in BLOCKS / 2..BLOCKS {
        let found = &bytes[(block * BLOCK) as usize..][..BLOCK as usize];
        assert!(found == contents(block, client.blocks[block as usize]), "block {block}");
    }
}

/// A node that uploads nothing by itself, so that what goes up goes up for a drain.
fn lazy(world: &World) -> Options {
    let mut options = world.options("");
    options.config = options.config.map(|text| text.replace("\"200ms\"", "\"1h\""));
    options
}

fn is_drained(node: &Node) -> bool {
    let shown = node.layby(&["volume", "show", VOLUME, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
    shown["cloud"]["is_drained"].as_bool().expect("it is said")
}

/// Segments that the node has tried to put.
fn segments(world: &World) -> usize {
    let seen = world.link.journal().into_iter();
    let puts = seen.filter(|seen| seen.operation == Operation::Put);
    puts.map(|seen| seen.key).filter(|key| key.contains("segments")).collect::<BTreeSet<_>>().len()
}

/// A drain by a client that half closes, until the node has ended that: it counts as gone two
/// seconds later, as one does that was killed.
fn half_closed_drain(node: &Node) {
    let mut client = UnixStream::connect(node.control()).expect("the node listens");
    let request = format!("POST /v1/volumes/{VOLUME}/drain HTTP/1.1\r\nhost: localhost\r\n\r\n");
    client.write_all(request.as_bytes()).expect("the node is there");
    client.shutdown(Shutdown::Write).expect("it is open");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("the node ends it");
    assert!(!answer.starts_with("HTTP/1.1 2"), "the store refuses: {answer}");
}

/// Goal: a drain whose client has gone is over, and the node goes back to full segments; the end of
/// one drain ends no other. Method: a store that refuses segments, a drain that is killed, and one
/// that half closes, whose end is seen; then writes, of which none is put any more; two drains, of
/// which one is killed; the store is well. A node has four uploads in flight, which the store's
/// refusals keep: fewer are, as long as writes count.
#[test]
fn a_drain_ends_with_its_client() {
    /// Looks in a row that find no new segment: each takes longer than the node takes to try one.
    const LOOKS: u32 = 30;
    /// Writes, of which the last is put no more. With the first one, fewer than uploads in flight.
    const WRITES: u32 = 2;
    let Some(world) = World::new() else { return };
    let node = Node::start(&world.dir("a"), &lazy(&world));
    World::create(&node, VOLUME, &World::url());
    let mut connection = Connection::open(&node.socket(), VOLUME).expect("it is there");
    let dir = world.dir("a").to_string_lossy().into_owned();
    let drain = || {
        let mut command = Command::new(binary());
        command.args(["volume", "drain", VOLUME, "--dir", &dir]).stderr(Stdio::null());
        command.spawn().expect("the program starts")
    };
    let refusing = Fault::new(Effect::Fail(StoreError::INTERNAL));
    let fault = world.link.fault(refusing.on(Operation::Put).key("segments"));
    write(&mut connection, 1);
    let mut killed = drain();
    fault.wait_hits(1);
    killed.kill().expect("it runs");
    killed.wait().expect("it was killed");
    let looks = |count: u32| (0..count).any(|_| is_drained(&node));
    assert!(!looks(LOOKS), "the store refuses");
    let mut goes_up = |number: &mut u64| {
        let before = segments(&world);
        write(&mut connection, *number);
        *number += 1;
        assert!(!looks(LOOKS), "the store refuses");
        segments(&world) > before
    };
    half_closed_drain(&node);
    let mut number = 2;
    let is_over = (0..WRITES).any(|_| !goes_up(&mut number));
    assert!(is_over, "each write goes up, for a drain whose client has gone");
    let (mut one, mut other) = (drain(), drain());
    fault.wait_hits(fault.hits() + 1);
    one.kill().expect("it runs");
    one.wait().expect("it was killed");
    fault.lift();
    assert!(other.wait().expect("it ends").success());
    assert!(is_drained(&node), "the store has all");
}

/// Goal: a drain that a stop or a deletion breaks off does not say that the store has all. Method:
/// a store that refuses segments, a write, a drain that waits; then each of the two.
#[test]
fn a_drain_whose_volume_ends_fails() {
    for is_deleted in [false, true] {
        let Some(world) = World::new() else { return };
        let node = Node::start(&world.dir("a"), &lazy(&world));
        World::create(&node, VOLUME, &World::url());
        let mut connection = Connection::open(&node.socket(), VOLUME).expect("it is there");
        let refusing = Fault::new(Effect::Fail(StoreError::INTERNAL));
        let fault = world.link.fault(refusing.on(Operation::Put).key("segments"));
        write(&mut connection, 1);
        let dir = world.dir("a").to_string_lossy().into_owned();
        let mut command = Command::new(binary());
        command.args(["volume", "drain", VOLUME, "--dir", &dir]);
        let drain = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        fault.wait_hits(1);
        match is_deleted {
            true => drop(node.layby(&["volume", "delete", VOLUME, "--data", "delete"])),
            false => node.stop(),
        }
        let drained = drain.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&drained.stderr);
        assert!(!drained.status.success(), "deleted {is_deleted}");
        assert!(said.contains("cannot drain"), "deleted {is_deleted}: {said}");
    }
}
