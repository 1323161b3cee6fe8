//! Guests that leave while their requests wait for an object store that does not answer: the next
//! guest is served at once, and nothing reaches the memory of the one that left.
//!
//! How: a node without its cache, a link that swallows requests for objects, masters of our own;
//! see `layby_tests::guest` and `layby_tests::cloud`. Nothing is waited for by a time.
//! Where the store's program is missing the tests say so and skip.

use super::restart::{NARROW, WRITES_BEYOND, fill_journal, store_options};
use layby_tests::cloud::{BLOCK, BLOCKS, Client, VOLUME, World, contents};
use layby_tests::guest::{Data, Guest, REQUESTS_MAX, kind};
use layby_tests::link::{Effect, Fault, Injected, Operation};
use layby_tests::{Connection, Held, Node, Request};
use std::path::PathBuf;
use tempfile::TempDir;

const SECTORS: u64 = BLOCK / 512;
/// Guests that come and leave one after the other.
const GUESTS: usize = 100;
/// What these may add to the node's memory.
const MEMORY_KIB_MAX: u64 = 64 << 10;

/// Looks at a queue until the node has taken what is in it.
const LOOKS_MAX: usize = 100_000;

/// A node that has one block of its volume, while others are only in the store.
struct Away<'a> {
    world: &'a World,
    node: Node,
    client: Client,
    near: u64,
    far: Vec<u64>,
}

/// No object is read from now on.
fn silence(world: &World) -> Injected<'_> {
    world.link.fault(Fault::new(Effect::NeverAnswer).on(Operation::Get))
}

impl Away<'_> {
    fn new(world: &World) -> Away<'_> {
        let node = world.start_new("a");
        let mut client = Client::open(&node);
        client.write(500);
        node.layby(&["volume", "drain", VOLUME]);
        drop(node);
        let node = world.start("a");
        let mut client = client.reopen(&node);
        let mut written = (0..BLOCKS).filter(|block| client.blocks[*block as usize] > 0);
        let near = written.next().expect("blocks were written");
        // What comes with the near block is near, too.
        let far = written.skip(200).collect();
        client.verify_block(near);
        Away { world, node, client, near, far }
    }

    fn socket(&self) -> PathBuf {
        self.world.dir("a").join("vhost").join(format!("{VOLUME}.sock"))
    }

    /// The guest reads the far block of that number, which waits.
    fn ask_far(&mut self, guest: &mut Guest, far: usize) {
        guest.request(0, 0, kind::IN, self.far[far] * SECTORS, Data::In(BLOCK as u32));
        self.kick(guest);
    }

    /// Kicks the guest's queue, and waits until the node has taken what is there: the shard does so
    /// in the turns of these reads.
    fn kick(&mut self, guest: &Guest) {
        guest.kick(0);
        for _ in 0..LOOKS_MAX {
            if guest.is_taken(0) {
                return;
            }
            self.client.verify_block(self.near);
        }
        panic!("the node does not take what it is kicked for");
    }

    /// A new guest is served while the store is silent.
    fn serve_next(&self) -> Guest {
        let mut guest = Guest::new(1);
        guest.connect(&self.socket());
        self.read_near(&mut guest);
        guest
    }

    fn read_near(&self, guest: &mut Guest) {
        let (status, read) = guest.ask(kind::IN, self.near * SECTORS, Data::In(BLOCK as u32));
        assert!(status == 0 && read == self.contents(self.near));
    }

    fn contents(&self, block: u64) -> Vec<u8> {
        contents(block, self.client.blocks[block as usize])
    }
}

/// Goal: a guest that dies while its read waits for a silent store does not keep the next one out,
/// and its memory is not touched once it left. Method: a read of a block that only the store has, a
/// new guest that reads a near block before the store answers; then the far block, and the first
/// guest's memory beside what it was.
#[test]
fn a_guest_that_dies_is_replaced_while_its_store_is_silent() {
    let Some(world) = World::new() else { return };
    let mut away = Away::new(&world);
    let fault = silence(&world);
    let mut first = Guest::new(1);
    first.connect(&away.socket());
    away.ask_far(&mut first, 0);
    fault.wait_hits(1);
    first.disconnect();
    let mut second = away.serve_next();
    let before = first.memory();
    fault.lift();
    let far = away.far[0];
    let (status, read) = second.ask(kind::IN, far * SECTORS, Data::In(BLOCK as u32));
    assert!(status == 0 && read == away.contents(far));
    assert!(first.memory() == before, "the memory of the guest that left has changed");
    second.disconnect();
    away.client.verify();
    away.node.stop();
}

/// Goal: guests that come and leave in a row while the store is silent do not add to the node's
/// memory without bound, and each is served. Method: 100 of them, each with a read that waits; the
/// node's memory before and after; then every block.
#[test]
fn guests_that_come_again_and_again_are_served() {
    let Some(world) = World::new() else { return };
    let mut away = Away::new(&world);
    let fault = silence(&world);
    let before = away.node.held();
    for round in 0..GUESTS {
        let mut guest = away.serve_next();
        away.ask_far(&mut guest, round % away.far.len());
        guest.disconnect();
    }
    away.serve_next().disconnect();
    let after = away.node.held();
    let grown = after.memory_kib.saturating_sub(before.memory_kib);
    assert!(grown <= MEMORY_KIB_MAX, "{grown} KiB more");
    // Reads that wait have connections to the store, more of them where they are tried again.
    let own = |held: &Held| held.descriptors - held.connections;
    assert!(own(&after) <= own(&before) + 16, "descriptors stay open: {before:?}, {after:?}");
    fault.lift();
    away.client.verify();
    away.node.stop();
}

/// Goal: a queue that is stopped in order is given back while its read waits for a silent store;
/// what the in-flight region marks is carried out again by the next start of the queue, and
/// answered once. Method: a stop of a queue with a read that waits, its memory beside what it was
/// once the store has answered; then the same queue starts again.
#[test]
fn a_stopped_queue_is_given_back_and_goes_on() {
    let Some(world) = World::new() else { return };
    let mut away = Away::new(&world);
    let fault = silence(&world);
    let mut guest = Guest::new(1);
    guest.connect(&away.socket());
    away.ask_far(&mut guest, 0);
    fault.wait_hits(1);
    assert_eq!(guest.stop_queue(0), 1, "it tells where it would go on");
    let before = guest.memory();
    fault.lift();
    let far = away.far[0];
    away.client.verify_block(far);
    assert!(guest.memory() == before, "a queue that was given back is answered");
    guest.restart();
    assert_eq!(guest.answers(0), [(0, 0)]);
    assert!(guest.data(0, 0, BLOCK as u32) == away.contents(far));
    away.read_near(&mut guest);
    assert!(guest.answers_now(0).is_empty(), "it is answered twice");
    guest.disconnect();
    away.client.verify();
    away.node.stop();
}

/// A queue is stopped, after what else its monitor says `before`, while a read of it waits for a
/// silent store that comes back; the monitor did not say that it goes on with marked requests.
fn answered_before_its_stop(before: impl Fn(&mut Guest)) {
    let Some(world) = World::new() else { return };
    let mut away = Away::new(&world);
    let fault = silence(&world);
    let mut guest = Guest::draining(1);
    guest.connect(&away.socket());
    away.ask_far(&mut guest, 0);
    fault.wait_hits(1);
    before(&mut guest);
    guest.ask_stop(0);
    fault.lift();
    assert_eq!(guest.stopped(), 1, "it tells where it would go on");
    assert_eq!(guest.answers_now(0), [(0, 0)]);
    assert!(guest.data(0, 0, BLOCK as u32) == away.contents(away.far[0]));
    guest.disconnect();
    away.client.verify();
    away.node.stop();
}

/// Goal: a monitor that did not say that it goes on with marked requests has them all answered when
/// its queue is stopped, also with an in-flight region. Method: a stop of a queue with a read that
/// waits for a silent store, which comes back.
#[test]
fn a_stop_waits_where_marks_will_not_do() {
    answered_before_its_stop(|_| {});
}

/// Goal: the same of a queue that is disabled before it is stopped. Method: the same, with a
/// message for that in between.
#[test]
fn a_disabled_queue_is_answered_before_its_stop() {
    answered_before_its_stop(|guest| guest.ask_disable(0));
}

/// Goal: a guest without an in-flight region does not keep the next one out either: one that dies
/// while it waits for the stop of its queue, and one that resets its device. Method: each with a
/// read that waits for a silent store.
#[test]
fn guests_without_a_region_leave_as_well() {
    let Some(world) = World::new() else { return };
    let mut away = Away::new(&world);
    let fault = silence(&world);
    let mut dying = Guest::untracked(1);
    dying.connect(&away.socket());
    away.ask_far(&mut dying, 0);
    dying.die_in_stop(0);
    let mut resetting = Guest::untracked(1);
    resetting.connect(&away.socket());
    away.ask_far(&mut resetting, 40);
    resetting.reset();
    resetting.disconnect();
    let memories = [dying.memory(), resetting.memory()];
    away.serve_next().disconnect();
    fault.lift();
    away.client.verify();
    assert!([dying.memory(), resetting.memory()] == memories, "memory that was given back changes");
    away.node.stop();
}

/// Goal: what a guest that left has in flight holds up no drain, stop or deletion, though the store
/// stays silent. Method: a guest that leaves with a read, then a drain and a stop; another one at
/// the next incarnation, then a deletion.
#[test]
fn what_was_abandoned_holds_nothing_up() {
    let Some(world) = World::new() else { return };
    let mut away = Away::new(&world);
    let fault = silence(&world);
    let mut guest = away.serve_next();
    away.ask_far(&mut guest, 0);
    guest.disconnect();
    away.serve_next().disconnect();
    away.node.layby(&["volume", "drain", VOLUME]);
    away.node.stop();
    fault.lift();
    let node = world.start("a");
    let mut client = away.client.reopen(&node);
    client.verify_block(away.near);
    let mut away = Away { node, client, ..away };
    let fault = silence(&world);
    let mut guest = away.serve_next();
    away.ask_far(&mut guest, 0);
    guest.disconnect();
    away.serve_next().disconnect();
    away.node.layby(&["volume", "delete", VOLUME]);
    assert!(!away.socket().exists(), "the socket goes with its volume");
    fault.lift();
    away.node.stop();
}

/// Goal: writes of a guest that leaves while they wait for a full journal end whole and before what
/// the next guest writes there. Method: a queue full of writes behind more of a client's than there
/// is room for; the guest leaves, the next one reads, writes a part of the same blocks and leaves,
/// too; once the uplink carries all, each block is read.
#[test]
fn writes_of_a_guest_that_left_end_whole_and_in_order() {
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let node = Node::start(&home, &store_options(&home, NARROW));
    let mut client = Connection::open(&node.socket(), "v").expect("the node serves");
    let first = fill_journal(&node, &mut client, 1000);
    for block in first..first + WRITES_BEYOND {
        let write = Request::Write { offset: block * BLOCK, data: vec![2; 4096], fua: false };
        client.send(&write).expect("the node serves");
    }
    let (_, answer) = client.receive().expect("the node serves");
    answer.expect("there was room for one");
    let mut other = Connection::open(&node.socket(), "v").expect("the node serves");
    let mut write_all = |guest: &mut Guest, slots: u16, byte| {
        for slot in 0..slots {
            let at = u64::from(slot) * SECTORS;
            guest.request(0, slot, kind::OUT, at, Data::Out(&[byte; BLOCK as usize]));
        }
        guest.kick(0);
        while !guest.is_taken(0) {
            let read = Request::Read { offset: 1000 * BLOCK, length: BLOCK as u32 };
            other.call(&read).expect("the node serves").expect("it reads");
        }
    };
    let socket = home.join("vhost/v.sock");
    let (mut old, mut new) = (Guest::new(1), Guest::new(1));
    old.connect(&socket);
    write_all(&mut old, REQUESTS_MAX, 7);
    old.disconnect();
    // What was in the old one's memory is not what is written.
    let overwritten = old.memory().len();
    old.fill_memory(0xEE);
    new.connect(&socket);
    write_all(&mut new, REQUESTS_MAX / 2, 8);
    node.layby(&["uplink", "--cap", "0", "--no-windows"]);
    let mut answers = Vec::new();
    while answers.len() < usize::from(REQUESTS_MAX / 2) {
        answers.extend(new.answers(0));
    }
    assert!(answers.iter().all(|(_, status)| *status == 0), "{answers:?}");
    for slot in 0..u64::from(REQUESTS_MAX) {
        let (status, read) = new.ask(kind::IN, slot * SECTORS, Data::In(BLOCK as u32));
        let byte = if slot < u64::from(REQUESTS_MAX / 2) { 8 } else { 7 };
        assert!(status == 0 && read == [byte; BLOCK as usize], "block {slot}: {}", read[0]);
    }
    assert!(old.memory() == vec![0xEE; overwritten], "memory that was given back changes");
    node.stop();
}
