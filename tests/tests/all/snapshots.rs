//! Snapshots and clones of volumes whose home is an object store, through the binary, on a real
//! store.
//!
//! How: as the tests of such volumes; see `layby_tests::cloud`.
//! Where the store's program is missing the tests say so and skip.

use layby_tests::cloud::{BLOCK, BLOCKS, Client, VOLUME, World, verify_image};
use layby_tests::link::{Cut, Effect, Fault, Operation};
use layby_tests::{Node, S3Server, binary};
use std::process::{Command, Stdio};

/// Goal: a snapshot holds what was acknowledged before it, whatever is written, cleaned or killed
/// later; the store alone gives it back and `layby check` verifies it; once deleted its room is
/// used again. Method: a snapshot while nothing was uploaded yet, overwrites of many times the
/// volume's size, a kill, images of both snapshots, deletion, the bucket's objects; wrong words.
#[test]
fn snapshots_stay_what_they_were() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(1500);
    let shown = node.layby(&["volume", "snapshot", VOLUME, "monday"]);
    assert!(shown.contains("snapshot monday of volume maps"), "{shown}");
    let monday = client.blocks.clone();
    client.write(1500);
    node.layby(&["volume", "snapshot", VOLUME, "tuesday"]);
    let tuesday = client.blocks.clone();
    for _ in 0..6 {
        client.write(2000);
        node.layby(&["volume", "drain", VOLUME]);
    }
    let dir = world.dir("a").to_string_lossy().into_owned();
    let refused = |words: &[&str]| world.ask("a", words);
    refused(&["volume", "snapshot", VOLUME, "monday"]).assert_explains(&["of that name"]);
    refused(&["volume", "snapshot", "vol0", "x"]).assert_explains(&["not an object store"]);
    refused(&["volume", "snapshot-delete", VOLUME, "x"]).assert_explains(&["no snapshot"]);
    node.kill9();
    let node = world.start("a");
    let mut client = client.reopen(&node);
    client.verify();
    let list = node.layby(&["volume", "snapshots", VOLUME]);
    assert!(list.contains("monday") && list.contains("tuesday"), "{list}");
    let image = world.dir("image");
    let to = image.to_string_lossy().into_owned();
    for (name, blocks) in [("monday", &monday), ("tuesday", &tuesday)] {
        let (is_whole, text) = world.run(&["restore", &World::url(), &to, "--snapshot", name]);
        assert!(is_whole && text.contains(name), "{text}");
        verify_image(&image, blocks);
        std::fs::remove_file(&image).expect("it was just made");
    }
    let (is_found, text) = world.run(&["restore", &World::url(), "--snapshot", "friday"]);
    assert!(!is_found && text.contains("monday, tuesday"), "{text}");
    client.verify_store(&world, &node);
    drop(node);
    let check = ["check", "--dir", &dir, "--backing", "--snapshot"];
    let (is_sound, text) = world.run(&[&check[..], &["monday"]].concat());
    assert!(is_sound && text.contains("snapshot `monday` of volume `maps` is whole"), "{text}");
    let (is_sound, text) = world.run(&[&check[..], &["friday"]].concat());
    assert!(!is_sound && text.contains("no volume that was read has a snapshot"), "{text}");
    let node = world.start("a");
    let mut client = client.reopen(&node);
    client.write(100);
    node.layby(&["volume", "drain", VOLUME]);
    let stored = |world: &World| world.server.objects().values().sum::<u64>();
    let before = stored(&world);
    for name in ["monday", "tuesday"] {
        node.layby(&["volume", "snapshot-delete", VOLUME, name]);
    }
    // What goes, goes behind the next superblocks: more writes bring them.
    let shrinks = (0..200).any(|_| {
        client.write(50);
        node.layby(&["volume", "drain", VOLUME]);
        stored(&world) * 10 < before * 9
    });
    assert!(shrinks, "{} bytes of {before} are left", stored(&world));
    client.verify_store(&world, &node);
}

/// Goal: a clone begins as a snapshot, is written for itself, lives through a kill and on another
/// node, is restored and checked from the store alone, and keeps its base's snapshot; a clone of a
/// clone as well; once deleted it keeps nothing. Method: writes to base and clones by turns, images
/// of all three, deletions in the wrong order first, the bucket at the end.
#[test]
fn clones_share_what_their_base_holds() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut base = Client::open(&node);
    base.write(1500);
    node.layby(&["volume", "snapshot", VOLUME, "s1"]);
    let stored = || world.server.objects().values().sum::<u64>();
    let before = stored();
    clone(&node, "one", "maps@s1");
    assert!(stored() - before < before / 4, "a clone copies what it shares");
    let mut one = base.clone_at(&node, "one");
    one.verify();
    for _ in 0..3 {
        base.write(1500);
        one.write(700);
        node.layby(&["volume", "drain"]);
    }
    node.layby(&["volume", "snapshot", "one", "s2"]);
    clone(&node, "two", "one@s2");
    let mut two = one.clone_at(&node, "two");
    two.write(300);
    one.write(300);
    node.layby(&["volume", "drain"]);
    clones_are_named(&world);
    node.kill9();
    let node = world.start("a");
    let mut base = base.reopen(&node);
    let (mut one, mut two) = (one.clone_at(&node, "one"), two.clone_at(&node, "two"));
    for (name, client) in [(VOLUME, &mut base), ("one", &mut one), ("two", &mut two)] {
        client.verify();
        node.layby(&["volume", "drain", name]);
        let image = world.dir("image");
        let to = image.to_string_lossy().into_owned();
        let (is_whole, text) = world.run(&["restore", &place(name), &to]);
        assert!(is_whole, "{name}: {text}");
        client.verify_image(&image);
        std::fs::remove_file(&image).expect("it was just made");
    }
    node.layby(&["volume", "delete", "two"]);
    another_node_clones_and_takes(&world, &two);
    one.write(100);
    node.layby(&["volume", "drain", "one"]);
    node.layby(&["volume", "snapshot-delete", "one", "s2"]);
    one.verify();
    node.layby(&["volume", "delete", "one", "--data", "now"]);
    node.layby(&["volume", "snapshot-delete", VOLUME, "s1"]);
    let left = world.server.objects();
    let strange: Vec<_> = left.keys().filter(|key| !key.starts_with("maps/")).collect();
    assert!(strange.is_empty(), "{strange:?}");
    base.verify_store(&world, &node);
    drop(node);
    let dir = world.dir("a").to_string_lossy().into_owned();
    let (is_sound, text) = world.run(&["check", "--backing", "--dir", &dir]);
    assert!(is_sound, "{text}");
}

fn place(name: &str) -> String {
    format!("s3://{}/{name}", S3Server::BUCKET)
}

fn clone(node: &Node, name: &str, of: &str) {
    node.layby(&["volume", "create", name, "--path", &place(name), "--clone-of", of]);
}

/// What keeps a snapshot, and what cannot be cloned, is said: `one` is of `maps@s1`, `two` of
/// `one@s2`.
fn clones_are_named(world: &World) {
    let refused = |words: &[&str]| world.ask("a", words);
    refused(&["volume", "snapshot-delete", VOLUME, "s1"]).assert_explains(&["clones of it", "one"]);
    refused(&["volume", "delete", VOLUME, "--data", "delete"]).assert_explains(&["clones of it"]);
    refused(&["volume", "delete", "one", "--data", "delete"]).assert_explains(&["`two`"]);
    let x = place("x");
    let words = ["volume", "create", "x", "--path", &x, "--clone-of"];
    refused(&[&words[..], &["maps@none"]].concat()).assert_explains(&["no snapshot `none`"]);
    refused(&[&words[..], &["maps@s1", "--size", "1MiB"]].concat()).assert_explains(&["8MiB"]);
    refused(&["volume", "create", "x", "--clone-of", "maps@s1"]).assert_explains(&["--path"]);
}

/// Another node clones the first clone's snapshot, takes the second clone, and deletes both.
fn another_node_clones_and_takes(world: &World, two: &Client) {
    let taking = world.options("takeover = [\"two\"]\n");
    let other = Node::start(&world.dir("b"), &taking);
    clone(&other, "three", &format!("{}@s2", place("one")));
    World::create(&other, "two", &place("two"));
    let mut taken = two.clone_at(&other, "two");
    taken.verify();
    taken.write(100);
    other.layby(&["volume", "drain"]);
    other.layby(&["volume", "delete", "two", "--data", "now"]);
    // The other node marked its clone: the base's own learns of it when it says otherwise.
    world.ask("a", &["volume", "snapshot-delete", "one", "s2"]).assert_explains(&["`three`"]);
    other.layby(&["volume", "delete", "three", "--data", "now"]);
}

/// Goal: a clone of an encrypted volume is made and read with its base's key alone, and is as
/// unreadable as that. Method: a clone without the key, with another, with it; `layby restore`.
#[test]
fn a_clone_has_the_key_of_its_base() {
    let Some(world) = World::new() else { return };
    let key = |name: &str, digits: &str| {
        let path = world.dir(name);
        std::fs::write(&path, digits.repeat(32)).expect("the test's own file");
        let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, only_owner).expect("the test's own file");
        format!("file:{}", path.display())
    };
    let (right, wrong) = (key("right", "0f"), key("wrong", "f0"));
    let node = world.start("a");
    let (url, size) = (World::url(), format!("{}", BLOCKS * BLOCK));
    node.layby(&["volume", "create", VOLUME, "--size", &size, "--path", &url, "--key", &right]);
    let mut base = Client::open(&node);
    base.write(300);
    node.layby(&["volume", "snapshot", VOLUME, "s1"]);
    let one = place("one");
    let words = ["volume", "create", "one", "--path", &one, "--clone-of", "maps@s1"];
    let refused = |more: &[&str]| world.ask("a", &[&words, more].concat());
    refused(&[]).assert_explains(&["encrypted", "base's key"]);
    refused(&["--key", &wrong]).assert_explains(&["not encrypted with this key", "base's key"]);
    node.layby(&[&words[..], &["--key", &right]].concat());
    let mut clone = base.clone_at(&node, "one");
    clone.verify();
    clone.write(100);
    node.layby(&["volume", "drain", "one"]);
    let (is_whole, text) = world.run(&["restore", &one, "--key", &right]);
    assert!(is_whole, "{text}");
    let (is_whole, text) = world.run(&["restore", &one]);
    assert!(!is_whole && text.contains("encrypted"), "{text}");
}

/// Goal: a clone whose making a crash interrupted holds up no start, whether the store answers then
/// or not: it is made when the node has come up, or taken back and made by the next command.
/// Method: a clone whose first object is never taken, a kill; a start with the link down, one with
/// it up.
#[test]
fn a_clone_that_broke_off_holds_up_no_start() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut base = Client::open(&node);
    base.write(500);
    node.layby(&["volume", "snapshot", VOLUME, "s1"]);
    let then = base.blocks.clone();
    break_off(&world, node);
    world.link.cut(Cut::Refuse);
    let node = world.start("a");
    let mut base = base.reopen(&node);
    base.write(50);
    let is_taken_back = |_| {
        // The question takes a while, too.
        node.layby(&["status"]);
        node.stderr().contains("it is taken back")
    };
    assert!((0..5000).any(is_taken_back), "it is never taken back");
    world.link.restore();
    base.verify();
    clone(&node, "one", "maps@s1");
    Client { blocks: then.clone(), ..base.clone_at(&node, "one") }.verify();
    node.layby(&["volume", "delete", "one", "--data", "now"]);
    break_off(&world, node);
    let node = world.start("a");
    assert!((0..5000).any(|_| node.layby(&["volume", "list"]).contains("one")), "it is not made");
    Client { blocks: then, ..base.clone_at(&node, "one") }.verify();
    base.reopen(&node).verify();
}

/// A node ends while it makes a clone, whose first object the store never takes.
fn break_off(world: &World, node: Node) {
    let silent = Fault::new(Effect::NeverAnswer).on(Operation::Put).key("one/");
    let fault = world.link.fault(silent);
    let (dir, one) = (world.dir("a").to_string_lossy().into_owned(), place("one"));
    let mut making = Command::new(binary());
    making.args(["volume", "create", "one", "--path", &one, "--clone-of", "maps@s1"]);
    let making = making.args(["--dir", &dir]).stderr(Stdio::piped()).spawn();
    let making = making.expect("the program runs");
    fault.wait_hits(1);
    node.kill9();
    let end = making.wait_with_output().expect("it ends with its node");
    assert!(!end.status.success(), "nobody is told that it is there");
    fault.lift();
}
