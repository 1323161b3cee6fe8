//! Outages of a store that clients do not see, through the binary, on a real store behind a link.
//!
//! How: the node knows the store by a link that the test cuts; see `layby_tests::cloud`. The node
//! counts each request for blocks when a read begins to wait for it, whether the store gets it or
//! not. A read that waits ends no load while the link is cut: the link is whole again once the
//! loads have ended, or one such request was counted, so that a fault is seen soon.

use layby_tests::cloud::{BLOCK, BLOCKS, Client, VOLUME, World};
use layby_tests::link::{Cut, Effect, Fault, Operation, StoreError};
use layby_tests::{Connection, Node, Request};
use layby_types::Rng;

/// What a test does beside a cut link.
type Load<'a> = Box<dyn FnOnce() + Send + 'a>;

/// What the node says of the volume's store.
fn cloud(node: &Node) -> serde_json::Value {
    let shown = node.layby(&["volume", "show", VOLUME, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
    shown["cloud"].clone()
}

/// Requests for blocks that reads have begun to wait for.
fn read_requests(node: &Node) -> u64 {
    cloud(node)["read_requests"].as_u64().expect("a number")
}

/// Runs loads beside a cut link until all have ended, or a read asks the store. Answers how many
/// asked by then.
fn asked_in_outage(world: &World, node: &Node, cut: Cut, loads: Vec<Load<'_>>) -> u64 {
    let before = read_requests(node);
    world.link.cut(cut);
    std::thread::scope(|scope| {
        let loads: Vec<_> = loads.into_iter().map(|load| scope.spawn(load)).collect();
        loop {
            let have_ended = loads.iter().all(std::thread::ScopedJoinHandle::is_finished);
            let asked = read_requests(node) - before;
            if have_ended || asked > 0 {
                world.link.restore();
                break asked;
            }
        }
    })
}

/// Goal: an outage is not seen by readers of what was written here, however long ago: once the
/// journal has wrapped several times, each block is still read without the store, which a working
/// set of 8 MiB above memory of 2 shows. Method: every block written, then half of them over and
/// over, a store that hangs, each block read once more; requests that reads begin are counted.
#[test]
fn an_outage_is_not_seen_once_the_journal_has_wrapped() {
    let Some(world) = World::new() else { return };
    let mut options = world.options("");
    let text = options.config.take().expect("there is one").replace("\"16MiB\"", "\"2MiB\"");
    options.config = Some(text.replace("\"96MiB\"", "\"16MiB\""));
    let node = Node::start(&world.dir("a"), &options);
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    client.write_each();
    for _ in 0..16 {
        client.write_first(BLOCKS / 2);
        node.layby(&["volume", "drain", VOLUME]);
    }
    let asked = asked_in_outage(&world, &node, Cut::Hang, vec![Box::new(|| client.verify())]);
    assert_eq!(asked, 0, "reads asked the store");
    let cached = cloud(&node)["bytes_cached"].as_u64().expect("a number");
    assert!(cached > 0 && cached < 18 * BLOCKS / 2 * BLOCK, "{cached} bytes were cached");
    client.verify_store(&world, &node);
}

/// Goal: outages one after the other are not seen by mixed load at depth: with a working set below
/// the levels' room no read waits for the store. Method: memory of a quarter of the volume; in each
/// outage eight connections read and write, most often few blocks; requests that reads begin are
/// counted, and what was asked ends before the store answers again.
#[test]
fn outages_are_not_seen_by_mixed_load() {
    const READERS: u64 = 7;
    let Some(world) = World::new() else { return };
    let mut options = world.options("");
    options.config = options.config.map(|text| text.replace("\"16MiB\"", "\"2MiB\""));
    let node = Node::start(&world.dir("a"), &options);
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    client.write_each();
    for round in 0..4 {
        node.layby(&["volume", "drain", VOLUME]);
        let cut = if round % 2 == 0 { Cut::Hang } else { Cut::Refuse };
        let mut loads: Vec<Load<'_>> = vec![Box::new(|| {
            client.write(400);
            client.verify();
        })];
        for reader in 0..READERS {
            let mut connection = Connection::open(&node.socket(), VOLUME).expect("it serves");
            let mut rng = Rng::new(round * READERS + reader);
            loads.push(Box::new(move || {
                for _ in 0..400 {
                    let skewed = (BLOCKS as f64).powf(rng.unit()) as u64 % BLOCKS;
                    let read = Request::Read { offset: skewed * BLOCK, length: BLOCK as u32 };
                    connection.call(&read).expect("it serves").expect("no error is seen");
                }
            }));
        }
        let asked = asked_in_outage(&world, &node, cut, loads);
        assert_eq!(asked, 0, "reads asked the store in outage {round}");
    }
    client.verify_store(&world, &node);
}

/// Goal: a creation whose store takes nothing is taken back, though a client has sent writes to the
/// new volume meanwhile: none of them was acknowledged, and the name is free. Method: a store that
/// refuses puts, and a client that writes durably as soon as the volume is served.
#[test]
fn a_creation_that_is_taken_back_has_acknowledged_nothing() {
    let Some(world) = World::new() else { return };
    let node = world.start("a");
    let refusing = Fault::new(Effect::Fail(StoreError::UNAVAILABLE)).on(Operation::Put);
    let fault = world.link.fault(refusing);
    let created = std::thread::scope(|scope| {
        let creating = scope.spawn(|| world.try_create("a"));
        let mut client = loop {
            match Connection::ask(&node.socket(), VOLUME).expect("the node runs") {
                Ok(client) => break client,
                Err(_) => assert!(!creating.is_finished(), "it is served before that"),
            }
        };
        let write = Request::Write { offset: 0, data: vec![7; BLOCK as usize], fua: true };
        let answer = client.call(&write);
        assert!(!matches!(answer, Ok(Ok(_))), "it was acknowledged: {answer:?}");
        creating.join().expect("no panic")
    });
    created.assert_explains(&["has not taken its superblock", "is not in the list"]);
    fault.lift();
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    client.write(50);
    client.verify_store(&world, &node);
}

/// Goal: a node that is killed inside of a creation, its store without the volume yet, is sound: a
/// check says so plainly, and the next start goes on. Where the store had the volume and has it no
/// more, that is damage. Method: a store that refuses puts, a kill, checks; a start with a store
/// that takes them; then all objects are deleted.
#[test]
fn a_creation_that_was_cut_short_is_no_damage() {
    let Some(world) = World::new() else { return };
    let node = world.start("a");
    let refusing = Fault::new(Effect::Fail(StoreError::UNAVAILABLE)).on(Operation::Put);
    let fault = world.link.fault(refusing);
    std::thread::scope(|scope| {
        let creating = scope.spawn(|| world.try_create("a"));
        while Connection::ask(&node.socket(), VOLUME).expect("the node runs").is_err() {
            assert!(!creating.is_finished(), "it is served before that");
        }
        node.kill9();
        assert!(!creating.join().expect("no panic").success);
    });
    let dir = world.dir("a").to_string_lossy().into_owned();
    let words = ["check", "--backing", "--dir", &*dir];
    let (is_sound, text) = world.run(&words);
    assert!(is_sound && text.contains("was being created"), "{text}");
    assert!(text.contains(" 1 volume(s) are there"), "the one in a file: {text}");
    fault.lift();
    let node = world.start("a");
    let mut client = Client::open(&node);
    client.write(50);
    client.verify_store(&world, &node);
    node.stop();
    let (is_sound, text) = world.run(&words);
    assert!(is_sound && !text.contains("was being created"), "{text}");
    assert!(text.contains(" 2 volume(s) are there"), "{text}");
    world.server.objects().into_keys().for_each(|key| world.server.delete(&key));
    let (is_sound, text) = world.run(&words);
    assert!(!is_sound && text.contains("there is no volume at this place"), "{text}");
}
