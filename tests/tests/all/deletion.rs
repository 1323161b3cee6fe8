//! Deletions of volumes whose home is an object store: taken back, and to the end; through the
//! binary, on a real store.
//!
//! How: as the tests of such volumes; see `layby_tests::cloud`. What the node does by itself is
//! waited for by asking it again and again, and never by a time.
//! Where the store's program is missing the tests say so and skip.

use layby_tests::cloud::{Client, VOLUME, World};
use layby_tests::link::{Cut, Effect, Fault, Operation, Shape, StoreError};
use layby_tests::{Node, must};
use serde_json::Value;
use std::time::Duration;

const DELETE: [&str; 5] = ["volume", "delete", VOLUME, "--data", "delete"];
const NOW: [&str; 5] = ["volume", "delete", VOLUME, "--data", "now"];
const UNDELETE: [&str; 3] = ["volume", "undelete", VOLUME];
/// Questions to a node at most, until it has done what it does by itself.
const QUESTIONS_MAX: usize = 4000;

/// Deleted volumes as the node lists them.
fn deleted(node: &Node) -> Vec<Value> {
    let shown = node.layby(&["volume", "list", "--deleted", "--json"]);
    serde_json::from_str(&shown).expect("a list in JSON")
}

/// Asks until deleted volumes are as they should be.
fn wait(node: &Node, what: &str, is_so: impl Fn(&[Value]) -> bool) {
    let is_reached = (0..QUESTIONS_MAX).any(|_| is_so(&deleted(node)));
    assert!(is_reached, "{what}: {:?}", deleted(node));
}

fn is_marked(list: &[Value]) -> bool {
    list.iter().all(|gone| gone["is_marked"] == true)
}

/// What the node keeps of volumes in stores.
fn local_files(world: &World, name: &str) -> Vec<String> {
    let folder = std::fs::read_dir(world.dir(name).join("cloud")).expect("the node has it");
    let names = folder.map(|entry| entry.expect("it is read").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Goal: a deleted volume is served, restored and made anew by nobody, loses nothing of what it
/// had, and comes back whole, after a kill, too. Method: writes, a deletion, all that must be
/// refused with its words, `layby restore` and `layby check` that are told, a kill, its return;
/// then again under another name, with a volume of its old name beside it.
#[test]
fn a_deleted_volume_comes_back() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(1500);
    node.layby(&["volume", "snapshot", VOLUME, "monday"]);
    client.write(500);
    let said = node.layby(&DELETE);
    assert!(said.contains("undelete maps") && said.contains("7.0 d"), "{said}");
    assert!(!node.layby(&["volume", "list"]).contains(VOLUME));
    wait(&node, "it is marked", is_marked);
    let refused = |words: &[&str]| world.ask("a", words);
    refused(&["volume", "show", VOLUME]).assert_explains(&["no volume"]);
    world.try_create("a").assert_explains(&["was deleted", "undelete"]);
    refused(&["volume", "undelete", "other"]).assert_explains(&["other", "list --deleted"]);
    let other = world.start("b");
    world.try_create("b").assert_explains(&["deleted the volume there", "bring it back"]);
    drop(other);
    let (is_read, text) = world.restore(None);
    assert!(!is_read && text.contains("was deleted") && text.contains("--deleted"), "{text}");
    node.kill9();
    let image = world.dir("image");
    let to = image.to_string_lossy().into_owned();
    let dir = world.dir("a").to_string_lossy().into_owned();
    let (is_read, text) = world.run(&["check", "--backing", "--dir", &dir]);
    assert!(is_read && text.contains("volume `maps` was deleted"), "{text}");
    let url = World::url();
    let (is_read, text) = world.run(&["restore", "--snapshot", "monday", &url, "--deleted"]);
    assert!(is_read && text.contains("still whole"), "{text}");
    let node = world.start("a");
    assert_eq!(deleted(&node).len(), 1, "the node remembers");
    node.layby(&UNDELETE);
    let mut client = client.reopen(&node);
    client.verify();
    client.write(300);
    client.verify_store(&world, &node);
    node.layby(&DELETE);
    wait(&node, "it is marked", is_marked);
    let (is_read, text) = world.run(&["restore", &url, &to, "--deleted"]);
    assert!(is_read && text.contains("still whole"), "{text}");
    client.verify_image(&image);
    World::create(&node, VOLUME, &format!("{url}-new"));
    refused(&UNDELETE).assert_explains(&["there is a volume `maps`", "--as"]);
    node.layby(&[&UNDELETE[..], &["--as", "old"]].concat());
    let mut client = client.clone_at(&node, "old");
    client.verify();
    assert!(node.layby(&["volume", "snapshots", "old"]).contains("monday"));
    assert!(deleted(&node).is_empty());
}

/// Goal: a deletion while the link is cut works at once, and loses nothing that only the node had.
/// Method: writes that the store lacks, a deletion, a return that must wait for the store, a kill.
#[test]
fn a_deletion_needs_no_link() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(800);
    node.layby(&["volume", "drain", VOLUME]);
    world.link.cut(Cut::Refuse);
    client.write(400);
    node.layby(&DELETE);
    assert!(!node.layby(&["volume", "list"]).contains(VOLUME));
    wait(&node, "it says why", |list| list[0]["problem"].is_string());
    assert_eq!(local_files(&world, "a"), ["1.journal", "1.map"], "they hold what the store lacks");
    world.ask("a", &UNDELETE).assert_explains(&["cannot bring back", "nothing was changed"]);
    node.kill9();
    world.link.restore();
    let node = world.start("a");
    wait(&node, "it is marked", is_marked);
    node.layby(&UNDELETE);
    let mut client = client.reopen(&node);
    client.verify();
    client.verify_store(&world, &node);
    // The store has all, so the node keeps nothing of it.
    node.layby(&DELETE);
    wait(&node, "it is marked", is_marked);
    assert_eq!(local_files(&world, "a"), [""; 0]);
    node.layby(&UNDELETE);
    let mut client = client.reopen(&node);
    client.verify();
    client.write(100);
    client.verify_store(&world, &node);
}

/// Goal: where the node that deleted a volume is lost, another one brings it back when it is told
/// to take it; should the first return, it brings back and removes nothing. Method: a node that is
/// killed after a deletion; a second one without the word and with it; the first one again.
#[test]
fn another_node_brings_a_deleted_volume_back() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(800);
    node.layby(&["volume", "snapshot", VOLUME, "monday"]);
    client.write(300);
    node.layby(&["volume", "drain", VOLUME]);
    node.layby(&DELETE);
    wait(&node, "it is marked", is_marked);
    node.kill9();
    let other = world.start("b");
    world.try_create("b").assert_explains(&["can bring it back", "takeover"]);
    drop(other);
    let taking = world.options(&format!("takeover = [\"{VOLUME}\"]\n"));
    let other = Node::start(&world.dir("b"), &taking);
    World::create(&other, VOLUME, &World::url());
    let mut taken = client.reopen(&other);
    taken.verify();
    taken.write(200);
    assert!(other.layby(&["volume", "snapshots", VOLUME]).contains("monday"));
    let node = world.start("a");
    world.ask("a", &UNDELETE).assert_explains(&["serves it", "nothing was changed"]);
    node.layby(&NOW);
    assert!(deleted(&node).is_empty());
    taken.verify();
    taken.verify_store(&world, &other);
}

/// Goal: a node's directory that was put back from a copy, or a cloned machine, takes nothing of a
/// volume that was brought back after the copy was made, whatever it is told; it says so, forgets
/// the volume when it is told to, and the volume loses nothing. Method: a copy of a stopped node
/// that had deleted a volume; the node brings it back and writes; the copy starts beside it.
#[test]
fn an_older_copy_of_the_node_deletes_nothing() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(600);
    node.layby(&["volume", "drain", VOLUME]);
    node.layby(&DELETE);
    wait(&node, "it is marked", is_marked);
    node.stop();
    let paths = ["a", "b"].map(|name| world.dir(name).display().to_string());
    must("cp", &["-a", &paths[0], &paths[1]]);
    let node = world.start("a");
    node.layby(&UNDELETE);
    let mut client = client.reopen(&node);
    client.write(300);
    node.layby(&["volume", "drain", VOLUME]);
    let copy = world.start("b");
    let is_said = |list: &[Value]| {
        list[0]["problem"].as_str().is_some_and(|said| said.contains("another copy of this node"))
    };
    wait(&copy, "it says why", is_said);
    let why = ["another copy of this node's directory", "in epoch", "nothing was changed"];
    world.ask("b", &UNDELETE).assert_explains(&why);
    let said = copy.layby(&NOW);
    let kept = format!("its objects stay in `{}`", World::url());
    assert!(said.contains("forgot volume maps") && said.contains(&kept), "{said}");
    assert!(deleted(&copy).is_empty());
    assert_eq!(local_files(&world, "b"), [""; 0]);
    assert!(copy.stderr().contains("its objects stay"), "{}", copy.stderr());
    copy.stop();
    client.verify();
    client.write(100);
    client.verify_store(&world, &node);
    node.layby(&NOW);
    assert!(world.server.objects().is_empty(), "{:?}", world.server.objects());
    assert!(node.stderr().contains("objects are removed"), "{}", node.stderr());
}

/// Goal: when its grace is over a volume goes, to the last object, through a store that refuses and
/// through kills, and once that has begun it cannot come back; another volume beside it, and one
/// made at its place later, lose nothing. Method: a grace of a second; deletes refused by the
/// store, a kill, the fault lifted; the bucket's objects and the node's files.
#[test]
fn a_volume_goes_when_its_grace_is_over() {
    let Some(world) = World::new() else { return };
    let options = world.options("grace = \"1s\"\n");
    let node = Node::start(&world.dir("a"), &options);
    World::create(&node, VOLUME, &World::url());
    World::create(&node, "beside", &format!("{}-beside", World::url()));
    let mut client = Client::open(&node);
    client.write(1000);
    let mut other = client.clone_at(&node, "beside");
    other.blocks.fill(0);
    other.write(500);
    node.layby(&["volume", "drain"]);
    let denied = Fault::new(Effect::Fail(StoreError::ACCESS_DENIED)).on(Operation::Delete);
    let fault = world.link.fault(denied);
    node.layby(&DELETE);
    fault.wait_hits(2);
    world.ask("a", &UNDELETE).assert_explains(&["removal has begun", "restore --deleted"]);
    let (is_read, text) = world.restore(None);
    assert!(!is_read && text.contains("its objects go"), "{text}");
    node.kill9();
    let node = Node::start(&world.dir("a"), &options);
    wait(&node, "it says why", |list| list[0]["problem"].is_string());
    fault.lift();
    wait(&node, "it is gone", <[Value]>::is_empty);
    let objects = world.server.objects();
    let left: Vec<&String> = objects.keys().filter(|key| key.starts_with("maps/")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(local_files(&world, "a"), ["2.journal", "2.map"]);
    world.ask("a", &UNDELETE).assert_explains(&["gone for good"]);
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    client.verify();
    client.write(100);
    client.verify_store(&world, &node);
    let mut other = other.reopen_at(&node, "beside");
    other.verify();
}

/// Goal: a removal of many objects takes few requests. Method: small objects of which none is dead,
/// so that cleaning deletes nothing; a deletion without a grace, the requests over the link.
#[test]
fn many_objects_go_in_few_requests() {
    let Some(world) = World::new() else { return };
    let node = Node::start(&world.dir("a"), &world.options("object = \"256KiB\"\n"));
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    client.write_each();
    node.layby(&["volume", "drain", VOLUME]);
    let objects = world.server.objects().len() as u64;
    let deletes = || world.link.counts().requests_of(Operation::Delete);
    let before = deletes();
    node.layby(&NOW);
    assert!(world.server.objects().is_empty(), "{:?}", world.server.objects());
    let asked = deletes() - before;
    assert!(objects > 15 && asked <= 5, "{asked} requests to delete {objects} objects");
}

/// Goal: a deletion without a grace takes all at once; where the store fails it says so, leaves no
/// half of a volume to be opened, and the node finishes it by itself. Method: deletes refused by
/// the store, another node, the fault lifted; then one that goes through, and the end of a grace.
#[test]
fn a_deletion_now_is_finished_by_the_node() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(500);
    node.layby(&["volume", "drain", VOLUME]);
    let denied = Fault::new(Effect::Fail(StoreError::ACCESS_DENIED)).on(Operation::Delete);
    let fault = world.link.fault(denied);
    world.ask("a", &NOW).assert_explains(&["may be left", "goes on trying"]);
    let other = world.start("b");
    world.try_create("b").assert_explains(&["deleted the volume there"]);
    drop(other);
    fault.lift();
    wait(&node, "it is gone", <[Value]>::is_empty);
    assert!(world.server.objects().is_empty(), "{:?}", world.server.objects());
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    client.verify();
    client.write(100);
    client.verify_store(&world, &node);
    node.layby(&NOW);
    assert!(world.server.objects().is_empty(), "{:?}", world.server.objects());
    World::create(&node, VOLUME, &World::url());
    node.layby(&["volume", "drain", VOLUME]);
    node.layby(&DELETE);
    assert_eq!(deleted(&node).len(), 1);
    node.layby(&NOW);
    assert!(world.server.objects().is_empty() && deleted(&node).is_empty());
    assert_eq!(local_files(&world, "a"), [""; 0]);
}

/// Goal: a stop while the node tells the store of a deletion ends cleanly, without a panic, and the
/// next start knows the volume and brings it back whole. Method: a late link; deletions, each
/// followed by a stop once the store has been asked a number of times that the seed draws.
#[test]
fn a_stop_within_a_deletion_is_clean() {
    const ROUNDS: u64 = 8;
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(300);
    node.layby(&["volume", "drain", VOLUME]);
    node.stop();
    for seed in 0..ROUNDS {
        let mut rng = layby_types::Rng::new(seed);
        let node = world.start("a");
        client = client.reopen(&node);
        client.write(20);
        world.link.shape(Shape::default().late(Duration::from_millis(1 + rng.below(60))));
        let before = world.link.counts().requests_all();
        node.layby(&DELETE);
        let requests = rng.below(3);
        world.link.wait(|counts| counts.requests_all() >= before + requests);
        node.signal("-TERM");
        let ended = node.ended();
        let words = format!("seed {seed}, {requests} requests: {}", ended.stderr);
        assert_eq!(ended.code, Some(0), "{words}");
        assert!(!ended.stderr.contains("panicked"), "{words}");
        world.link.shape(Shape::default());
        let node = world.start("a");
        wait(&node, "it is marked", is_marked);
        assert_eq!(deleted(&node).len(), 1, "{words}");
        node.layby(&UNDELETE);
        client = client.reopen(&node);
        client.verify();
        node.stop();
    }
}
