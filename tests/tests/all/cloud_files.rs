//! The files that a node keeps of volumes in object stores: their room, and where they are.
//!
//! How: as `cloud`, with journals and maps on small file systems and in other folders.

use layby_tests::cloud::{Client, VOLUME, World};
use layby_tests::{Node, SmallDisk};
use std::path::Path;

/// Goal: a journal's room is taken when its volume is made, so that no write meets a full disk; and
/// a map file without room is said, ends a drain, loses nothing, and goes on with room.
/// Method: a small disk for journals, one for maps, filled and emptied between writes.
#[test]
fn a_full_disk_below_a_volumes_files_is_said() {
    let Some(world) = World::new() else { return };
    let disk = |size| SmallDisk::new(&world.dir(size), size);
    let (Some(narrow), Some(maps)) = (disk("64M"), disk("1M")) else { return };
    let text = |journals: &Path| {
        let (journals, maps) = (journals.display(), maps.path().display());
        world.options(&format!("journal_dir = \"{journals}\"\nmap_dir = \"{maps}\""))
    };
    let node = Node::start(&world.dir("narrow"), &text(narrow.path()));
    world.try_create("narrow").assert_explains(&["No space left on device"]);
    node.stop();

    let node = Node::start(&world.dir("a"), &text(&world.dir("journals")));
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    client.write(100);
    node.layby(&["volume", "drain", VOLUME]);
    let filler = maps.fill();
    let says = |word: &str| node.layby(&["volume", "show", VOLUME]).contains(word);
    let is_said = (0..1000).any(|_| {
        client.write(50);
        says("the map file cannot be written")
    });
    assert!(is_said, "a full disk is not said: {}", node.layby(&["volume", "show", VOLUME]));
    world.ask("a", &["volume", "drain", VOLUME]).assert_explains(&["map file", "No space left"]);
    client.write(500);
    client.verify();
    std::fs::remove_file(filler).expect("it is there");
    let goes_on = (0..6000).any(|_| !says("the map file cannot be written"));
    assert!(goes_on, "the map file is not written again");
    client.write(100);
    client.verify_store(&world, &node);
    let said = node.stderr();
    assert!(said.contains("map file cannot be") && said.contains("is written again"), "{said}");
    node.kill9();
    let node = Node::start(&world.dir("a"), &text(&world.dir("journals")));
    client.reopen(&node).verify();
}

/// Goal: `layby check` finds journals and maps wherever the configuration puts them, and misses one
/// that has gone. Method: journals elsewhere, maps in the node's directory, and vice versa.
#[test]
fn what_lies_elsewhere_is_checked() {
    let Some(world) = World::new() else { return };
    for key in ["journal_dir", "map_dir"] {
        let elsewhere = world.dir(key);
        let options = world.options(&format!("{key} = \"{}\"", elsewhere.display()));
        let node = Node::start(&world.dir(&format!("node-{key}")), &options);
        let url = format!("{}/{key}", World::url());
        World::create(&node, VOLUME, &url);
        node.stop();
        let check = || world.ask(&format!("node-{key}"), &["check"]);
        let sound = check();
        assert!(sound.success && sound.stdout.contains("sound"), "{key}: {sound:?}");
        let ending = key.trim_end_matches("_dir");
        let file = elsewhere.join(format!("1.{ending}"));
        std::fs::remove_file(&file).unwrap_or_else(|cause| panic!("{}: {cause}", file.display()));
        let unsound = check();
        assert!(!unsound.success && unsound.stdout.contains(ending), "{key}: {unsound:?}");
    }
}
