//! Volumes whose home is an object store, through the binary, on a real store behind a link.
//!
//! How: the node knows the store by a link that the test can cut; see `layby_tests::cloud`.
//! Where the store's program is missing the tests say so and skip.

use layby_tests::cloud::{BLOCK, BLOCKS, Client, VOLUME, World, contents, wait_until_lost};
use layby_tests::link::{Answer, Cut, Effect, Fault, Operation, StoreError};
use layby_tests::{Connection, Node, Options, Request, S3Server, binary};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Goal: what is written reaches the store, and the store alone gives it back, byte for byte; a
/// killed node comes up with its link cut, serves all it had acknowledged and knows how old that
/// is. Method: random writes, a drain, `layby restore`, more writes, a kill, a start without the
/// store.
#[test]
fn the_store_alone_restores_a_volume() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(3000);
    client.verify_store(&world, &node);
    world.link.cut(Cut::Refuse);
    client.write(500);
    let age = |node: &Node| {
        let shown = node.layby(&["volume", "show", VOLUME, "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
        shown["cloud"]["dirty_seconds"].as_f64().expect("a number")
    };
    let is_old = (0..6000).any(|_| age(&node) > 5.0);
    assert!(is_old, "what is not in the store gets no older");
    node.kill9();
    let node = world.start("a");
    assert!(age(&node) > 5.0, "its age begins anew: {} s", age(&node));
    let mut client = client.reopen(&node);
    world.link.restore();
    client.verify();
    client.verify_store(&world, &node);
}

/// Goal: a cut link is not seen by clients: writes within the journal and reads of what is cached
/// go on without an error, and all arrives when the link is back. Method: load before, in and after
/// a cut of each kind; the image is compared at the end.
#[test]
fn a_cut_link_is_not_seen_by_clients() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    for cut in [Cut::Refuse, Cut::Hang] {
        client.write(500);
        client.verify();
        world.link.cut(cut);
        client.write(1500);
        let shown = node.layby(&["volume", "show", VOLUME]);
        assert!(shown.contains("not in the store"), "{shown}");
        let listed = node.layby(&["volume", "list"]);
        assert!(listed.contains("volume in a store"), "{listed}");
        // Nothing is asked of the store until a write is old enough.
        let shows_down = |_| node.layby(&["volume", "show", VOLUME]).contains("link down");
        assert!(cut == Cut::Hang || (0..2000).any(shows_down), "it is not noticed");
        world.link.restore();
    }
    assert!(node.stderr().contains("store does not answer"), "{}", node.stderr());
    client.verify();
    client.verify_store(&world, &node);
}

/// Goal: whatever the store answers, clients see nothing of it, nothing is lost, nothing doubled.
/// Method: writes and a drain, the first three requests under each fault; then the image.
#[test]
fn faults_of_the_store_are_not_seen_by_clients() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    let late = Effect::Late { least: Duration::from_millis(1), most: Duration::from_millis(80) };
    for effect in [
        Effect::Fail(StoreError::INTERNAL),
        Effect::Fail(StoreError::SLOW_DOWN),
        Effect::Fail(StoreError::TOKEN_EXPIRED),
        Effect::Fail(StoreError::ACCESS_DENIED),
        Effect::Fail(StoreError::TIME_SKEWED),
        Effect::Fail(StoreError::STORAGE_FULL),
        Effect::Fail(StoreError::CONFLICT),
        Effect::LoseReply,
        Effect::TearUpload,
        Effect::TearDownload,
        Effect::Repeat(Answer::First),
        Effect::Repeat(Answer::Second),
        late,
    ] {
        let fault = world.link.fault(Fault::new(effect).times(3));
        client.write(400);
        node.layby(&["volume", "drain", VOLUME]);
        assert!(fault.hits() > 0, "{effect:?} was not met");
        fault.lift();
    }
    client.verify();
    client.verify_store(&world, &node);
}

/// Goal: a volume is created at a store that is busy for a moment, as one is at a store that rests.
/// Method: the first requests after the start are answered with SlowDown; data and the image.
#[test]
fn a_creation_outlasts_a_busy_store() {
    let Some(world) = World::new() else { return };
    let node = world.start("a");
    let busy = world.link.fault(Fault::new(Effect::Fail(StoreError::SLOW_DOWN)).times(2));
    World::create(&node, VOLUME, &World::url());
    assert_eq!(busy.hits(), 2, "the creation met it");
    busy.lift();
    let mut client = Client::open(&node);
    client.write(400);
    node.layby(&["volume", "drain", VOLUME]);
    client.verify_store(&world, &node);
}

/// Goal: one node serves a volume: another is refused with the reason, may take it when it says so,
/// and then the first writes no more and says why. Method: two nodes on one store.
#[test]
fn a_volume_has_one_node() {
    let Some(world) = World::new() else { return };
    let first = world.start_new("a");
    let mut client = Client::open(&first);
    client.write(800);
    first.layby(&["volume", "drain", VOLUME]);
    let second = world.start("b");
    world.try_create("b").assert_explains(&["serves it", "takeover"]);
    drop(second);
    let taking = world.options(&format!("takeover = [\"{VOLUME}\"]\n"));
    let second = Node::start(&world.dir("b"), &taking);
    World::create(&second, VOLUME, &World::url());
    let mut taken = client.reopen(&second);
    taken.verify();
    taken.write(300);
    second.layby(&["volume", "drain", VOLUME]);
    wait_until_lost(&first);
    let shown = first.layby(&["volume", "show", VOLUME]);
    assert!(shown.contains("link lost") && shown.contains("has taken the volume"), "{shown}");
    let log = first.stderr();
    assert!(log.contains("not this node's any more") && log.contains("has taken"), "{log}");
    let status = first.layby(&["status"]);
    assert!(status.contains("volume in a store") && status.contains("lost"), "{status}");
    taken.verify();
}

/// Goal: a volume that a node had, and takes back from another one, is what it is by then, whatever
/// the first node's levels and files hold of its own time, and of the size that it has by then; a
/// start with the link cut takes nothing and loses nothing. Method: a node with an SSD level that
/// holds all, a second one that writes all anew and longer, the first one again, twice.
#[test]
fn a_volume_comes_back_to_a_node_that_had_it() {
    let Some(world) = World::new() else { return };
    let level = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n";
    let options = |more: &str| {
        let mut options = world.options(more);
        options.config = options.config.map(|text| text + level);
        options
    };
    let taking = format!("takeover = [\"{VOLUME}\"]\n");
    let first = Node::start(&world.dir("a"), &options(""));
    World::create(&first, VOLUME, &World::url());
    let mut client = Client::open(&first);
    client.write(3000);
    client.verify();
    first.layby(&["volume", "drain", VOLUME]);
    first.stop();
    let second = Node::start(&world.dir("b"), &options(&taking));
    World::create(&second, VOLUME, &World::url());
    let mut client = client.reopen(&second);
    client.verify();
    client.write(3000);
    second.layby(&["volume", "resize", VOLUME, "--size", "16MiB"]);
    second.layby(&["volume", "drain", VOLUME]);
    second.stop();
    world.link.cut(Cut::Refuse);
    Node::start(&world.dir("a"), &options(&taking)).stop();
    world.link.restore();
    let first = Node::start(&world.dir("a"), &options(&taking));
    let mut client = client.reopen(&first);
    client.verify();
    assert!(first.layby(&["volume", "list"]).contains("16.0 MiB"));
    client.write(500);
    first.layby(&["volume", "drain", VOLUME]);
    first.kill9();
    // The word is still there, and means nothing to a volume that is the node's own.
    let first = Node::start(&world.dir("a"), &options(&taking));
    let mut client = client.reopen(&first);
    client.verify();
    first.layby(&["volume", "resize", VOLUME, "--size", "8MiB", "--shrink"]);
    client.verify_store(&world, &first);
}

/// Goal: a store that knows no conditions on puts serves a volume, gives it back, and keeps a node
/// that another one followed from writing. Method: clients that are told to use none; writes, a
/// drain, `layby restore`, a kill, a clone; another node that takes it.
#[test]
fn a_store_without_conditions_serves() {
    let Some(world) = World::new() else { return };
    let options = |more: &str| {
        let mut options = world.options(more);
        options.environment.push(("AWS_CONDITIONAL_PUT".to_owned(), "disabled".to_owned()));
        options
    };
    let node = Node::start(&world.dir("a"), &options(""));
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    client.write(1000);
    client.verify_store(&world, &node);
    node.kill9();
    let node = Node::start(&world.dir("a"), &options(""));
    let mut client = client.reopen(&node);
    client.write(300);
    client.verify();
    client.verify_store(&world, &node);
    node.layby(&["volume", "snapshot", VOLUME, "monday"]);
    let clone = format!("s3://{}/clone", S3Server::BUCKET);
    node.layby(&["volume", "create", "clone", "--clone-of", "maps@monday", "--path", &clone]);
    client.clone_at(&node, "clone").verify();
    let taking = options(&format!("takeover = [\"{VOLUME}\"]\n"));
    let second = Node::start(&world.dir("b"), &taking);
    World::create(&second, VOLUME, &World::url());
    let mut taken = client.reopen(&second);
    taken.verify();
    taken.write(100);
    taken.verify_store(&world, &second);
    wait_until_lost(&node);
    taken.verify_store(&world, &second);
}

/// Goal: a restore from a silent store says what it waits for, and goes on when the store answers.
/// Method: a link behind which nothing passes until the first such line.
#[test]
fn a_restore_says_that_the_store_is_silent() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(20);
    client.verify_store(&world, &node);
    world.link.cut(Cut::Hang);
    let mut restore = Command::new(binary());
    restore.args(["restore", &World::url()]).envs(S3Server::environment(&world.link.endpoint()));
    restore.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut restore = restore.spawn().expect("the program starts");
    let mut said = BufReader::new(restore.stderr.take().expect("it is piped")).lines();
    let first = said.next().expect("it says something").expect("it is text");
    assert!(first.contains("has not answered for 5 s"), "{first}");
    world.link.restore();
    assert!(restore.wait().expect("it ends").success(), "{:?}", said.collect::<Vec<_>>());
}

/// Goal: damage in the store is found, named and never served, and a check says what it has read
/// of volumes in stores, and where these are. Method: a check of what is whole; a flipped byte of
/// the last block in each segment; `layby restore` and a node without its cache.
#[test]
fn damage_in_the_store_is_named() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(600);
    node.layby(&["volume", "drain", VOLUME]);
    drop(node);
    let dir = world.dir("a").to_string_lossy().into_owned();
    let check = ["check", "--backing", "--dir", &dir];
    let (is_whole, text) = world.run(&[&check[..], &["--json"]].concat());
    // Behind the JSON is what it said to a person, as that it waited for the killed node's I/O.
    let mut said = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
    let said = said.next().expect("an answer").expect("it is JSON");
    let found = said["backings"].as_array().expect("a list").iter().find(|b| b["volume"] == VOLUME);
    let found = found.expect("it is there");
    assert!(is_whole && found["path"] == World::url().as_str(), "{found}");
    let number = |of: &str, what: &str| found[of][what].as_u64().expect("a number");
    let data = client.blocks.iter().filter(|write| **write > 0).count() as u64 * BLOCK;
    assert_eq!((number("verified", "bytes"), number("local", "live_bytes")), (data, data));
    assert!(number("verified", "objects") > 1 && number("verified", "checksums") > 1, "{found}");
    assert_eq!(
        (number("local", "dirty_bytes"), number("local", "journal_bytes")),
        (0, (96 << 20) - 4096)
    );
    let (_, text) = world.run(&check);
    assert!(text.contains("| volume in a store |") && text.contains("| maps "), "{text}");
    // In each: the last block of an older one may be overwritten, and is never read then.
    let objects = world.server.objects();
    for key in objects.keys().filter(|key| key.contains("segments/")) {
        world.server.damage(key, |bytes| {
            let at = bytes.len() - 100;
            bytes[at] ^= 1;
        });
    }
    let (is_whole, text) = world.restore(None);
    assert!(!is_whole && text.contains("damaged") && text.contains("segments/"), "{text}");
    let shallow = world.ask("a", &["check"]);
    assert!(shallow.success && shallow.stdout.contains("was not read; --backing"), "{shallow:?}");
    let (is_whole, text) = world.run(&check);
    assert!(!is_whole && text.contains("segments/"), "{text}");
    let node = world.start("a");
    let mut client = client.reopen(&node);
    let mut errors = 0;
    for block in 0..BLOCKS {
        let read = Request::Read { offset: block * BLOCK, length: BLOCK as u32 };
        match client.connection.call(&read).expect("the node is there") {
            Ok(bytes) => assert!(bytes == contents(block, client.blocks[block as usize])),
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 0, "wrong bytes are an error");
}

/// Goal: words that cannot be right are refused and explained. Method: no such store, no size, a
/// place that is taken, a delete that would lose what the store does not have.
#[test]
fn bad_places_are_explained() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let create = |words: &[&str]| world.ask("a", &[&["volume", "create", "other"], words].concat());
    create(&["--path", "s3://layby/x"]).assert_explains(&["size"]);
    for (place, words) in [
        ("s3://", "no bucket"),
        ("s3:///x", "names no store"),
        ("s3://u@layby/maps", "name the bucket alone"),
        ("s3://layby:80/maps", "name the bucket alone"),
        ("s3:/layby/x", "names no store"),
        ("http://layby/x", "names no store"),
        ("file://x", "file:///FOLDER"),
        ("s3://layby/maps/checkpoints", "choose another prefix"),
    ] {
        create(&["--size", "1GiB", "--path", place]).assert_explains(&[words]);
    }
    let nowhere = world.dir("nowhere");
    let (is_whole, text) = world.run(&["restore", &format!("file://{}", nowhere.display())]);
    assert!(!is_whole && text.contains("no volume") && !nowhere.exists(), "{text}");
    let (is_whole, text) = world.run(&["restore", "s3://elsewhere/x"]);
    assert!(!is_whole && text.contains("no such bucket"), "{text}");
    let mut bent = Command::new(binary());
    let bent = bent.args(["restore", &World::url()]).env("AWS_ENDPOINT_URL", "localhost:41065");
    let text = bent.output().expect("the program runs").stderr;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("hint: ") && text.contains("AWS_ENDPOINT_URL"), "{text}");
    create(&["--size", "1GiB", "--path", &World::url()]).assert_explains(&["is used by volume"]);
    create(&["--size", "1GiB", "--path", "s3://elsewhere/x"]).assert_explains(&["elsewhere"]);
    let mut client = Client::open(&node);
    world.link.cut(Cut::Refuse);
    client.write(100);
    world.ask("a", &["volume", "delete", VOLUME]).assert_explains(&["not in the store", "drain"]);
    world.link.restore();
    node.layby(&["volume", "drain", VOLUME]);
    node.layby(&["volume", "delete", VOLUME]);
    let (is_whole, text) = world.restore(None);
    assert!(is_whole, "what was kept is there: {text}");
}

/// Goal: a cap holds segments back as long as it is there, and goes live. Method: the lowest cap,
/// more than its burst, the node's own words; then no cap, and a drain that ends.
#[test]
fn a_cap_is_changed_live() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(200);
    node.layby(&["volume", "drain", VOLUME]);
    let shown = node.layby(&["uplink", "--cap", "1KiB", "--window", "03:00-02:59=1KiB"]);
    assert!(shown.contains("at other times: at most 1.00 KiB/s"), "{shown}");
    // The first one may still go: it is more than a second's worth, and goes when none is owed.
    let waits = (0..1000).any(|_| {
        client.write(1);
        let shown = node.layby(&["uplink", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("it answers in JSON");
        shown["segments_waiting"].as_u64() > Some(0)
    });
    assert!(waits, "nothing was held back");
    node.layby(&["uplink", "--cap", "0", "--no-windows"]);
    client.verify_store(&world, &node);
}

/// Goal: how a volume's chunks are stored changes while it is served, holds after a kill, and what
/// was stored before is read as ever. Method: blocks that shrink, in each way in turn; bytes sent.
#[test]
fn compression_changes_live() {
    const SHRINK: u64 = 200;
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(300);
    let sent = |node: &Node| {
        node.layby(&["volume", "drain", VOLUME]);
        let shown = node.layby(&["volume", "show", VOLUME, "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
        shown["cloud"]["bytes_put"].as_u64().expect("a number")
    };
    let cost = |node: &Node, client: &mut Client, fill: u8| {
        let before = sent(node);
        for block in 0..SHRINK {
            let data = vec![fill; BLOCK as usize];
            client.ask(&Request::Write { offset: block * BLOCK, data, fua: false });
        }
        sent(node) - before
    };
    for (fill, how) in [(1, "none"), (2, "zstd"), (3, "lz4")] {
        let shown = node.layby(&["volume", "set", VOLUME, "--compression", how]);
        let said = if how == "none" { "not compressed" } else { &format!("compressed by {how}") };
        assert!(shown.contains(&format!("{said}, the volume's own choice")), "{shown}");
        let cost = cost(&node, &mut client, fill);
        assert_eq!(cost >= SHRINK * BLOCK, how == "none", "{how}: {cost} bytes");
    }
    let dir = world.dir("a").to_string_lossy().into_owned();
    let file = ["volume", "set", "vol0", "--compression", "lz4", "--dir", &dir];
    layby_tests::layby(&file).assert_explains(&["only volumes in object stores"]);
    node.kill9();
    let node = world.start("a");
    let mut client = client.reopen(&node);
    assert!(cost(&node, &mut client, 8) < SHRINK * BLOCK, "it is forgotten");
    // The configuration says nothing, which is none.
    node.layby(&["volume", "set", VOLUME, "--compression", "node"]);
    assert!(cost(&node, &mut client, 9) >= SHRINK * BLOCK, "it is still its own");
    for block in 0..BLOCKS {
        let bytes = client.ask(&Request::Read { offset: block * BLOCK, length: BLOCK as u32 });
        let held = contents(block, client.blocks[block as usize]);
        let filled = vec![9; BLOCK as usize];
        assert!(bytes == if block < SHRINK { filled } else { held }, "block {block}");
    }
}

/// Goal: an object that never answers delays the reads of its own blocks and nobody else. Method:
/// one block in a segment of its own, a node without its cache, that segment's reads swallowed;
/// a read of the block, all others beside it; then the fault is lifted.
#[test]
fn an_object_that_never_answers_delays_its_own() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(2000);
    node.layby(&["volume", "drain", VOLUME]);
    let before = world.server.objects();
    (client.writes, client.blocks[5]) = (client.writes + 1, client.writes + 1);
    let data = contents(5, client.writes);
    client.ask(&Request::Write { offset: 5 * BLOCK, data, fua: true });
    node.layby(&["volume", "drain", VOLUME]);
    drop(node);
    let objects = world.server.objects();
    let new = |key: &&String| key.contains("segments/") && !before.contains_key(*key);
    let key = objects.keys().find(new).expect("it has a segment of its own").clone();
    let node = world.start("a");
    let silent = Fault::new(Effect::NeverAnswer).on(Operation::Get).key(&key);
    let fault = world.link.fault(silent);
    let mut stuck = Connection::open(&node.socket(), VOLUME).expect("the node serves it");
    stuck.send(&Request::Read { offset: 5 * BLOCK, length: BLOCK as u32 }).expect("it is taken");
    fault.wait_hits(1);
    let mut client = client.reopen(&node);
    for block in (0..BLOCKS).filter(|block| *block != 5) {
        client.verify_block(block);
    }
    client.write(100);
    fault.lift();
    let (_, answer) = stuck.receive().expect("the node is there");
    assert!(answer.expect("no error reaches a client").len() as u64 == BLOCK);
    client.verify();
}

/// Goal: how old writes get before they go up is a class's, and changes live. Method: a node whose
/// writes rest for an hour; a class that is told otherwise.
#[test]
fn a_class_says_how_old_writes_get() {
    let Some(world) = World::new() else { return };
    let mut options = world.options("");
    options.config = options.config.map(|text| text.replace("\"200ms\"", "\"1h\""));
    let node = Node::start(&world.dir("a"), &options);
    let (url, size) = (World::url(), format!("{}", BLOCKS * BLOCK));
    node.layby(&["volume", "create", VOLUME, "--size", &size, "--path", &url]);
    let mut client = Client::open(&node);
    client.write(10);
    let has_segment = || world.server.objects().keys().any(|key| key.contains("segments/"));
    assert!(!has_segment(), "they rest for an hour");
    node.layby(&["class", "set", "normal", "--dirty-age", "200ms"]);
    world.link.wait(|_| has_segment());
    client.verify_store(&world, &node);
}

/// Goal: a class that does not wait for ever hears of a silent store by an error, in time and with
/// the reason, while what the node has is served; and is served when the store answers again.
/// Method: a node without its cache, a link that refuses or swallows, one cached block.
#[test]
fn a_class_does_not_wait_for_ever() {
    for cut in [Cut::Refuse, Cut::Hang] {
        let Some(world) = World::new() else { return };
        let node = world.start_new("a");
        let mut client = Client::open(&node);
        client.write(500);
        node.layby(&["volume", "drain", VOLUME]);
        drop(node);
        let node = world.start("a");
        let mut client = client.reopen(&node);
        let known = (0..BLOCKS).filter(|block| client.blocks[*block as usize] > 0);
        let known: Vec<u64> = known.collect();
        client.verify_block(known[0]);
        // Not before: this machine may be slower than any bound.
        node.layby(&["class", "set", "normal", "--answer-within", "300ms"]);
        world.link.cut(cut);
        let read = Request::Read { offset: known[100] * BLOCK, length: BLOCK as u32 };
        let answer = client.connection.call(&read).expect("the node is there");
        assert!(answer.is_err(), "{cut:?}: the store is not there");
        client.verify_block(known[0]);
        client.write(20);
        let shown = node.layby(&["volume", "show", VOLUME]);
        assert!(shown.contains("calls refused, last "), "{cut:?}: {shown}");
        world.link.restore();
        while client.connection.call(&read).expect("the node is there").is_err() {}
        // After a drain the volume has heard of it.
        node.layby(&["class", "set", "normal", "--answer-within", "0s"]);
        client.verify_store(&world, &node);
        client.verify();
    }
}

/// Goal: a class that hedges is not held up by requests that get lost. Method: five reads whose
/// first request never answers, after some that say what is late; second requests are counted.
#[test]
fn late_reads_are_asked_for_twice() {
    const LOST: usize = 5;
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    node.layby(&["class", "set", "normal", "--hedge", "true"]);
    let mut client = Client::open(&node);
    // Each block in a segment of its own, so that none comes along with another one.
    for block in 0..40 + LOST as u64 {
        client.writes += 1;
        let data = contents(block, client.writes);
        client.blocks[block as usize] = client.writes;
        client.ask(&Request::Write { offset: block * BLOCK, data, fua: true });
        node.layby(&["volume", "drain", VOLUME]);
    }
    drop(node);
    let node = world.start("a");
    let mut client = client.reopen(&node);
    // From the end, so that nothing is read ahead.
    let written = (0..BLOCKS).rev().filter(|block| client.blocks[*block as usize] > 0);
    let mut written = written.collect::<Vec<u64>>().into_iter();
    written.by_ref().take(40).for_each(|block| client.verify_block(block));
    for block in written.by_ref().take(LOST) {
        let silent = Fault::new(Effect::NeverAnswer).on(Operation::Get).key("segments/").times(1);
        let fault = world.link.fault(silent);
        client.verify_block(block);
        assert_eq!(fault.hits(), 1, "the first request was lost");
    }
    // What a volume says after a drain is newer than what was read.
    node.layby(&["volume", "drain", VOLUME]);
    let shown = node.layby(&["volume", "show", VOLUME, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
    let hedged = shown["cloud"]["requests_hedged"].as_u64().expect("a number");
    assert!(hedged >= LOST as u64, "{shown}");
    client.verify();
}

/// Goal: an object that somebody deleted is named, costs its own blocks and nothing else. Method:
/// one segment gone; `layby restore` and a node without its cache.
#[test]
fn a_deleted_object_is_named() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(600);
    node.layby(&["volume", "drain", VOLUME]);
    client.write(600);
    node.layby(&["volume", "drain", VOLUME]);
    drop(node);
    let objects = world.server.objects();
    let key = objects.keys().find(|key| key.contains("segments/")).expect("one was uploaded");
    world.server.delete(key);
    let (is_whole, text) = world.restore(None);
    assert!(!is_whole && text.contains("segments/"), "{text}");
    let node = world.start("a");
    let mut client = client.reopen(&node);
    let (mut errors, mut whole) = (0, 0);
    for block in 0..BLOCKS {
        let read = Request::Read { offset: block * BLOCK, length: BLOCK as u32 };
        match client.connection.call(&read).expect("the node is there") {
            Ok(bytes) => {
                assert!(bytes == contents(block, client.blocks[block as usize]));
                whole += u64::from(client.blocks[block as usize] > 0);
            }
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 0 && whole > 0, "{errors} errors, {whole} written blocks read");
    // What a volume says after a drain is newer than what was read.
    node.layby(&["volume", "drain", VOLUME]);
    let shown = node.layby(&["volume", "show", VOLUME]);
    let name = key.split_once("segments/").expect("it is a segment's").1;
    assert!(shown.contains("read(s) failed") && shown.contains(name), "{shown}");
    assert!(node.stderr().contains("reads have failed"), "{}", node.stderr());
}

/// The node and the client after a drain, a kill and a start: it serves what it did.
fn killed(world: &World, node: Node, client: Client) -> (Node, Client) {
    node.layby(&["volume", "drain", VOLUME]);
    node.kill9();
    let node = world.start("a");
    let mut client = client.reopen(&node);
    client.verify();
    (node, client)
}

/// Goal: an encrypted volume shows nothing of what it holds, is read with its key alone, and says
/// so where the key is missing or another. Method: blocks with a word in them, the bucket's bytes,
/// `layby restore` with the key, without, with another; a node that starts again, also without the
/// key, and serves the volume when that is back.
#[test]
fn an_encrypted_volume_needs_its_key() {
    let Some(world) = World::new() else { return };
    let key = world.dir("key");
    std::fs::write(&key, "0f".repeat(32)).expect("the test's own file");
    let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, only_owner).expect("the test's own file");
    let source = format!("file:{}", key.display());
    let node = world.start("a");
    let (url, size) = (World::url(), format!("{}", BLOCKS * BLOCK));
    let words = ["volume", "create", VOLUME, "--size", &size, "--path", &url, "--key", &source];
    let made = node.layby(&words);
    assert!(made.contains("note: journals of volumes in object stores share a device"), "{made}");
    let shown = node.layby(&["volume", "show", VOLUME]);
    let said = format!("encrypted by XChaCha20-Poly1305, key from `{source}`; not compressed");
    assert!(shown.contains(&said) && !shown.contains("0f0f"), "{shown}");
    let mut client = Client::open(&node);
    client.write(500);
    let word = b"a word that must not be seen";
    let data = word.iter().copied().cycle().take(BLOCK as usize).collect();
    client.ask(&Request::Write { offset: BLOCKS / 2 * BLOCK, data, fua: true });
    node.layby(&["volume", "drain", VOLUME]);
    for key in world.server.objects().keys() {
        let bytes = world.server.read(key);
        assert!(!bytes.windows(word.len()).any(|part| part == word), "`{key}` shows it");
    }
    let mut restore = Command::new(binary());
    restore.args(["restore", &url, "--key", &source]);
    let restored = restore.envs(S3Server::environment(&world.server.endpoint())).output();
    assert!(restored.expect("the program runs").status.success());
    let (is_whole, text) = world.restore(None);
    assert!(!is_whole && text.contains("encrypted"), "{text}");
    let data = contents(BLOCKS / 2, 0);
    client.blocks[(BLOCKS / 2) as usize] = 0;
    client.ask(&Request::Write { offset: BLOCKS / 2 * BLOCK, data, fua: true });
    let (node, client) = killed(&world, node, client);
    drop(node);
    let away = world.dir("key-away");
    std::fs::rename(&key, &away).expect("the test's own file");
    let node = world.start("a");
    node.layby(&["volume", "create", "other", "--size", "1MiB"]);
    let listed = || node.layby(&["volume", "list"]);
    assert!(listed().contains("volume maps is not served: "), "{}", listed());
    world.ask("a", &["volume", "drain", VOLUME]).assert_explains(&["is not served", "key"]);
    std::fs::rename(&away, &key).expect("the test's own file");
    assert!((0..5000).any(|_| !listed().contains("is not served")), "{}", listed());
    let mut client = client.reopen(&node);
    client.verify();
    client.write(200);
    let (node, client) = killed(&world, node, client);
    drop(node);
    std::fs::write(&key, "f0".repeat(32)).expect("the test's own file");
    let mut restore = Command::new(binary());
    restore.args(["restore", &url, "--key", &source]);
    let refused = restore.envs(S3Server::environment(&world.server.endpoint())).output();
    let refused = refused.expect("the program runs");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("not encrypted with this key"), "{text}");
    another_key_serves_nothing(&world, &key, client);
}

/// With another key a volume is not served, and takes nothing that it could not upload; with the
/// right one it is served again by itself.
fn another_key_serves_nothing(world: &World, key: &Path, client: Client) {
    let node = world.start("a");
    let listed = || node.layby(&["volume", "list"]);
    assert!(listed().contains("its key is not the one that its objects"), "{}", listed());
    std::fs::write(key, "0f".repeat(32)).expect("the test's own file");
    assert!((0..5000).any(|_| !listed().contains("is not served")), "{}", listed());
    client.reopen(&node).verify();
}

/// Goal: bytes that a network changed are fetched again, and no client sees an error. Method: a
/// node without its cache, one bit of an answer flipped now and then.
#[test]
fn bytes_that_arrive_changed_are_fetched_again() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(1500);
    node.layby(&["volume", "drain", VOLUME]);
    drop(node);
    let node = world.start("a");
    let mut client = client.reopen(&node);
    for _ in 0..8 {
        let bent = Fault::new(Effect::Damage).on(Operation::Get).key("segments/").times(1);
        let fault = world.link.fault(bent);
        while fault.hits() == 0 {
            let block = client.rng.below(BLOCKS);
            client.verify_block(block);
        }
        fault.lift();
    }
    client.verify();
}

/// Goal: a node that starts without its cache reads what lies together together: a client that
/// reads every block once, by chance, has it ask the store for far fewer. Method: a volume written
/// by chance, a restart of a node whose cache is memory alone, every written block read and
/// compared; requests counted where they pass.
#[test]
fn an_empty_cache_fills_in_few_requests() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(4000);
    node.layby(&["volume", "drain", VOLUME]);
    drop(node);
    let node = world.start("a");
    let mut client = client.reopen(&node);
    let mut left: Vec<u64> = (0..BLOCKS).filter(|at| client.blocks[*at as usize] > 0).collect();
    let written = left.len() as u64;
    let before = world.link.counts().requests_of(Operation::Get);
    while !left.is_empty() {
        let block = left.swap_remove(client.rng.below(left.len() as u64) as usize);
        client.verify_block(block);
    }
    let asked = world.link.counts().requests_of(Operation::Get) - before;
    assert!(asked < written / 4, "{asked} requests for {written} blocks");
}

/// Goal: two volumes never share a place in a store, however the place is spelt: the second one is
/// refused, and the first one keeps its data. Method: a folder, and the same by a link, by `.` and
/// `..`, of a volume that was written; a copy of its folder, also while the volume is not served
/// for want of its journal; then two tables of a new configuration
/// whose folders are not there yet.
#[test]
fn a_place_by_another_name_has_its_volume() {
    let work = tempfile::TempDir::new().expect("a temporary directory");
    let root = work.path().display().to_string();
    std::fs::create_dir(work.path().join("real")).expect("the test's own folder");
    std::os::unix::fs::symlink("real", work.path().join("alias")).expect("a link");
    let roots = format!("[node]\nvolume_roots = [\"{root}\"]\n");
    let node = Node::start(&work.path().join("node"), &Options::config(roots.clone()));
    let url = |place: &str| format!("file://{root}/{place}");
    node.layby(&["volume", "create", "one", "--size", "1MiB", "--path", &url("real")]);
    let mut client = Connection::open(&node.socket(), "one").expect("it is served");
    let write = Request::Write { offset: 0, data: vec![7; 4096], fua: true };
    client.call(&write).expect("it serves").expect("a sound disk");
    let dir = work.path().join("node").display().to_string();
    for place in ["alias", "real/.", "alias/../real", "real/", "./real"] {
        let place = url(place);
        let words = ["volume", "create", "two", "--size", "1MiB", "--path", &place];
        let outcome = layby_tests::layby(&[&words[..], &["--dir", &dir]].concat());
        outcome.assert_explains(&["is used by volume `one`"]);
    }
    node.layby(&["volume", "drain", "one"]);
    let mut copies = Command::new("cp");
    let copies = copies.args(["-r", &format!("{root}/real"), &format!("{root}/copy")]);
    assert!(copies.status().expect("there is cp").success());
    let words = ["volume", "create", "two", "--size", "1MiB", "--path", &url("copy")];
    let outcome = layby_tests::layby(&[&words[..], &["--dir", &dir]].concat());
    outcome.assert_explains(&["a volume that is this node's already, `one`"]);
    client.call(&write).expect("it serves").expect("the first volume goes on");
    node.layby(&["volume", "drain", "one"]);
    node.stop();
    // The same while the first one is not served.
    let (cloud, away) = (work.path().join("node/cloud"), work.path().join("away"));
    let journals: Vec<_> = std::fs::read_dir(&cloud).expect("it is there").flatten().collect();
    let paths = journals.iter().map(std::fs::DirEntry::path);
    let mut journal = paths.filter(|path| path.extension().is_some_and(|end| end == "journal"));
    let journal = journal.next_back().expect("the volume has one");
    std::fs::rename(&journal, &away).expect("the test's own folder");
    let node = Node::start(&work.path().join("node"), &Options::config(roots.clone()));
    assert!(!node.serves("one"), "it has no journal");
    let outcome = layby_tests::layby(&[&words[..], &["--dir", &dir]].concat());
    outcome.assert_explains(&["a volume that is this node's already, `one`"]);
    node.stop();
    std::fs::rename(&away, &journal).expect("the test's own folder");
    let node = Node::start(&work.path().join("node"), &Options::config(roots.clone()));
    let mut client = Connection::open(&node.socket(), "one").expect("it is served");
    let read = client.call(&Request::Read { offset: 0, length: 4096 });
    assert_eq!(read.expect("it serves").expect("a sound disk"), vec![7; 4096]);
    node.stop();
    let table = |name: &str, place: &str| {
        format!("[volume.{name}]\nsize = \"1MiB\"\npath = \"{}\"\n", url(place))
    };
    let tables = [table("three", "real/x/y"), table("four", "alias/x/y")].concat();
    let options = Options::config(format!("{roots}\n{tables}"));
    let refusal = Node::try_start(&work.path().join("other"), &options).expect_err("one place");
    assert!(refusal.stderr.contains("share"), "{}", refusal.stderr);
}
