//! Outages of a store that clients do not see, through the binary, on a real store behind a link.
//!
//! How: the node knows the store by a link that the test cuts; see `layby_tests::cloud`. A read
//! that waited for the store would never end, since the store comes back after it.

use layby_tests::cloud::{BLOCK, BLOCKS, Client, VOLUME, World};
use layby_tests::link::{Cut, Effect, Fault, Operation, StoreError};
use layby_tests::{Connection, Node, Request};
use layby_types::Rng;

/// Goal: an outage is not seen by readers of what was written here, however long ago: once the
/// journal has wrapped several times, each block is still read without the store, which a working
/// set of 8 MiB above memory of 2 shows. Method: every block written, then half of them over and
/// over, a store that hangs, each block read once more; requests for objects are counted.
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
    let reads = world.link.counts().requests_of(Operation::Get);
    world.link.cut(Cut::Hang);
    client.verify();
    assert_eq!(world.link.counts().requests_of(Operation::Get), reads, "no read asked the store");
    world.link.restore();
    let shown = node.layby(&["volume", "show", VOLUME, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
    let cached = shown["cloud"]["bytes_cached"].as_u64().expect("a number");
    assert!(cached > 0 && cached < 18 * BLOCKS / 2 * BLOCK, "{cached} bytes were cached");
    client.verify_store(&world, &node);
}

/// Goal: outages one after the other are not seen by mixed load at depth: with a working set below
/// the levels' room no read waits for the store. Method: in each outage eight connections read and
/// write, most often few blocks; what they ask ends before the store answers again, and no object
/// is asked for.
#[test]
fn outages_are_not_seen_by_mixed_load() {
    const READERS: u64 = 7;
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write_each();
    for round in 0..4 {
        node.layby(&["volume", "drain", VOLUME]);
        let gets = world.link.counts().requests_of(Operation::Get);
        world.link.cut(if round % 2 == 0 { Cut::Hang } else { Cut::Refuse });
        std::thread::scope(|scope| {
            for reader in 0..READERS {
                let mut connection = Connection::open(&node.socket(), VOLUME).expect("it serves");
                let mut rng = Rng::new(round * READERS + reader);
                scope.spawn(move || {
                    for _ in 0..400 {
                        let skewed = (BLOCKS as f64).powf(rng.unit()) as u64 % BLOCKS;
                        let read = Request::Read { offset: skewed * BLOCK, length: BLOCK as u32 };
                        connection.call(&read).expect("it serves").expect("no error is seen");
                    }
                });
            }
            client.write(400);
            client.verify();
        });
        let asked = world.link.counts().requests_of(Operation::Get) - gets;
        assert_eq!(asked, 0, "reads asked the store in outage {round}");
        world.link.restore();
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
