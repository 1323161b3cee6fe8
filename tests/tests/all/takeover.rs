//! Volumes in object stores that go from a node to another while both run, and what becomes of the
//! one that was lost; through the binary, on a real store.
//!
//! How: as the tests of such volumes; see `layby_tests::cloud`.
//! Where the store's program is missing the tests say so and skip.

use layby_tests::cloud::{BLOCK, BLOCKS, Client, VOLUME, World, wait_until_lost};
use layby_tests::guest::{Data, Guest, kind};
use layby_tests::link::{Cut, Effect, Fault, Operation, StoreError};
use layby_tests::{Connection, Node, Options, Request, available, binary, layby, must, run};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// What `layby salvage` says where a part of the journal is damaged.
const DAMAGED: &str = "is damaged";

/// A node's options, with an SSD level that holds all of the volume.
fn options(world: &World) -> Options {
    let level = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n";
    let mut options = world.options("");
    options.config = options.config.map(|text| text + level);
    options
}

/// The same, keeping reads on the SSD level and with the volume in `takeover` where asked.
fn keeping(world: &World, is_taking: bool) -> Options {
    let class = "[class.normal]\nlevels = [\"dram\", \"ssd\"]\nkeep_reads = true\n";
    let taking = match is_taking {
        true => format!("[cloud]\ntakeover = [\"{VOLUME}\"]"),
        false => "[cloud]".to_owned(),
    };
    let mut options = options(world);
    options.config = options.config.map(|text| text.replace("[cloud]", &taking) + class);
    options
}

fn start(world: &World, name: &str) -> Node {
    Node::start(&world.dir(name), &options(world))
}

/// Takes the volume with a node that runs.
fn take(node: &Node) -> String {
    node.layby(&["volume", "create", VOLUME, "--path", &World::url(), "--take"])
}

/// Every call of a connection is an error, and the connection goes on.
#[track_caller]
fn assert_nothing_is_served(connection: &mut Connection) {
    for block in 0..BLOCKS {
        let read = Request::Read { offset: block * BLOCK, length: BLOCK as u32 };
        let answer = connection.call(&read).expect("the connection goes on");
        assert!(answer.is_err(), "block {block} is served");
    }
    for request in [Request::Flush, Request::Trim { offset: 0, length: BLOCK as u32 }] {
        assert!(connection.call(&request).expect("the connection goes on").is_err());
    }
}

/// A client that comes now is refused; this one keeps to itself what it was told.
fn assert_refuses_clients(node: &Node) {
    if !available(&["nbdinfo"]) {
        return;
    }
    let asked = run("nbdinfo", &[&node.uri(VOLUME)]);
    assert!(!asked.success && asked.stderr.contains("endpoint shutdown"), "{asked:?}");
}

/// Goal: a volume goes from a node to another and back while both run, without a restart or a word
/// in their configuration; nothing is lost, wrong words change nothing. Method: two nodes on one
/// store; refusals; a take, twice; a kill; a take back by the node that knows, and by the one that
/// was not told yet; a stop of the one that lost it.
#[test]
fn a_volume_is_taken_while_both_nodes_run() {
    let Some(world) = World::new() else { return };
    let (first, second) = (start(&world, "a"), start(&world, "b"));
    World::create(&first, VOLUME, &World::url());
    let mut client = Client::open(&first);
    client.write(1500);
    first.layby(&["volume", "drain", VOLUME]);
    world.try_create("b").assert_explains(&["serves it", "volume `maps` of 8MiB", "--take"]);
    let url = World::url();
    let words = ["volume", "create", VOLUME, "--path", &url, "--take"];
    let wrong = [&words[..], &["--size", "16MiB"]].concat();
    world.ask("b", &wrong).assert_explains(&["has 8MiB", "says 16MiB", "leave --size out"]);
    let elsewhere = format!("{url}-elsewhere");
    let nothing = ["volume", "create", VOLUME, "--path", &elsewhere, "--take"];
    world.ask("b", &nothing).assert_explains(&["there is no volume at", "elsewhere"]);
    let file = ["volume", "create", VOLUME, "--path", "/a/file", "--take"];
    world.ask("b", &file).assert_explains(&["in an object store"]);
    assert!(take(&second).contains("took volume maps of 8.00 MiB"));
    let mut client = client.reopen(&second);
    client.verify();
    client.write(500);
    assert!(take(&second).contains("took volume maps"), "what is done is done");
    let other = [&words[..], &["--class", "bulk"]].concat();
    world.ask("b", &other).assert_explains(&["with other settings", "volume set"]);
    client.verify();
    second.layby(&["volume", "drain", VOLUME]);
    second.kill9();
    let second = start(&world, "b");
    let mut client = client.reopen(&second);
    client.verify();
    client.write(300);
    second.layby(&["volume", "drain", VOLUME]);
    // The first node has not heard of it: nobody has written there.
    take(&first);
    let mut client = client.reopen(&first);
    client.verify();
    client.write(300);
    first.layby(&["volume", "drain", VOLUME]);
    wait_until_lost(&second);
    // What it lost is no fault of a device.
    second.stop();
    first.kill9();
    let first = start(&world, "a");
    let mut client = client.reopen(&first);
    client.verify();
    client.verify_store(&world, &first);
}

/// Goal: of a volume that another node has taken nothing is served any more, in no way, whatever
/// levels hold, and over restarts with the store silent: with errors that say so, and no hangs.
/// Method: all blocks in memory, on the SSD level and in the journal; clients that were there and
/// new ones, a guest; a kill and a start with the link cut; the volume deleted there.
#[test]
fn a_lost_volume_is_not_served() {
    let Some(world) = World::new() else { return };
    let (first, second) = (start(&world, "a"), start(&world, "b"));
    World::create(&first, VOLUME, &World::url());
    let mut client = Client::open(&first);
    client.write(2500);
    client.verify();
    client.verify();
    first.layby(&["volume", "drain", VOLUME]);
    let mut guest = Guest::new(1);
    guest.connect(&world.dir("a").join("vhost/maps.sock"));
    assert_eq!(guest.ask(kind::IN, 0, Data::In(BLOCK as u32)).0, 0);
    let mut old = Connection::open(&first.socket(), VOLUME).expect("it is served");
    take(&second);
    let mut client = client.reopen(&second);
    client.write(200);
    wait_until_lost(&first);
    assert_nothing_is_served(&mut old);
    assert_eq!(guest.ask(kind::IN, 0, Data::In(BLOCK as u32)).0, 1, "an I/O error");
    assert_eq!(guest.ask(kind::FLUSH, 0, Data::Out(&[])).0, 1, "an I/O error");
    assert_refuses_clients(&first);
    let shown = first.layby(&["volume", "show", VOLUME]);
    assert!(shown.contains("link lost") && shown.contains("has taken the volume"), "{shown}");
    world.ask("a", &["volume", "drain", VOLUME]).assert_explains(&["has taken the volume"]);
    guest.disconnect();
    first.kill9();
    world.link.cut(Cut::Refuse);
    let first = start(&world, "a");
    assert_refuses_clients(&first);
    let shown = first.layby(&["volume", "show", VOLUME, "--json"]);
    assert!(shown.contains("has taken the volume"), "{shown}");
    // What it has found out it needs no store for.
    let gone = first.layby(&["volume", "delete", VOLUME, "--data", "delete"]);
    assert!(gone.contains("forgot volume maps") && gone.contains("taken"), "{gone}");
    world.link.restore();
    client.verify();
    client.verify_store(&world, &second);
}

/// Goal: a take that broke off is finished after the next start, and nothing is left of it to do.
/// Method: the store swallows the first replacement of the superblock, a kill, the store answers
/// again; the catalog then, which earlier builds are to read.
#[test]
fn a_take_that_broke_off_is_finished() {
    let Some(world) = World::new() else { return };
    let (first, second) = (start(&world, "a"), start(&world, "b"));
    World::create(&first, VOLUME, &World::url());
    let mut client = Client::open(&first);
    client.write(800);
    first.layby(&["volume", "drain", VOLUME]);
    first.stop();
    let fault = world.link.fault(Fault::new(Effect::NeverAnswer).on(Operation::Put));
    let mut taking = Command::new(binary());
    taking.args(["volume", "create", VOLUME, "--path", &World::url(), "--take", "--dir"]);
    taking.arg(world.dir("b")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut taking = taking.spawn().expect("the program runs");
    fault.wait_hits(1);
    second.kill9();
    taking.wait().expect("its node is gone");
    fault.lift();
    let second = start(&world, "b");
    let is_there = || second.layby(&["volume", "list"]).contains(VOLUME);
    assert!((0..5000).any(|_| is_there()), "{}", second.stderr());
    let mut client = client.reopen(&second);
    client.verify();
    client.write(100);
    client.verify_store(&world, &second);
    let catalog = || std::fs::read_to_string(world.dir("b").join("catalog.json"));
    let is_done = || is_there() && !catalog().expect("it is the node's").contains("\"take\"");
    assert!((0..5000).any(|_| is_done()), "it would be taken once more");
}

/// Writes what was saved over an image, as the help of `layby salvage` says.
fn write_over(saved: &Path, image: &Path) {
    let script = "grep -v ,damaged, $0.ranges | tail -n +2 | \
        while IFS=, read -r offset length rest; do \
        dd if=$0 of=$1 bs=1M skip=$offset seek=$offset count=$length \
        iflag=skip_bytes,count_bytes oflag=seek_bytes conv=notrunc status=none || exit 1; done";
    let done = Command::new("sh").args(["-c", script]).arg(saved).arg(image).status();
    assert!(done.expect("there is a shell").success());
}

/// Goal: what only the journal of a lost node has is counted, saved, put over an image of the
/// volume, and not thrown away in passing; a damaged payload is named, and the rest is saved.
/// Method: writes and zeros with the link cut, a kill, a node that takes the volume; the files
/// beside what the client knows; a changed bit, and the files of both times beside each other.
#[test]
fn what_only_the_journal_has_is_saved() {
    let Some(world) = World::new() else { return };
    let first = start(&world, "a");
    World::create(&first, VOLUME, &World::url());
    let mut client = Client::open(&first);
    client.write(1000);
    first.layby(&["volume", "drain", VOLUME]);
    world.link.cut(Cut::Refuse);
    client.write(700);
    client.ask(&Request::Zero { offset: 0, length: 3 * BLOCK as u32 });
    client.ask(&Request::Flush);
    client.blocks[..3].fill(0);
    let saved = world.dir("left");
    let to = saved.to_string_lossy().into_owned();
    world
        .ask("a", &["salvage", VOLUME, &to, "--config", &world.config("a")])
        .assert_explains(&["no other node is known", "layby volume drain"]);
    first.kill9();
    world.link.restore();
    let second = start(&world, "b");
    take(&second);
    let image = world.dir("image");
    let (is_whole, text) = world.restore(Some(&image));
    assert!(is_whole, "{text}");
    let first = start(&world, "a");
    let is_lost = || first.layby(&["volume", "list"]).contains("lost");
    assert!((0..5000).any(|_| is_lost()), "{}", first.stderr());
    let words = ["layby salvage maps FILE"];
    world.ask("a", &["volume", "delete", VOLUME]).assert_explains(&words);
    let again = ["volume", "create", VOLUME, "--path", &World::url(), "--take"];
    world.ask("a", &again).assert_explains(&words);
    let dir = world.dir("a").to_string_lossy().into_owned();
    let config = world.config("a");
    let from = ["--dir", &dir, "--config", &config];
    let (is_done, text) = world.run(&[&["salvage", VOLUME, &to][..], &from].concat());
    assert!(is_done && text.contains("lost to another node") && text.contains("zeros"), "{text}");
    write_over(&saved, &image);
    client.verify_image(&image);
    let (is_done, text) = world.run(&[&["salvage", VOLUME, &to][..], &from].concat());
    assert!(!is_done && text.contains("such a file already"), "{text}");
    let (is_done, text) = world.run(&[&["salvage", VOLUME, "--json"][..], &from].concat());
    let counted: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    assert!(is_done && counted["zero_bytes"] == 3 * BLOCK && counted["bytes"].as_u64() > Some(0));
    first.kill9();
    damage_journal(&world);
    let other = format!("{to}-2");
    let (is_done, text) = world.run(&[&["salvage", VOLUME, &other][..], &from].concat());
    assert!(!is_done && text.contains(DAMAGED) && text.contains("checksums"), "{text}");
    assert_rest_is_saved(&saved, Path::new(&other));
    let first = start(&world, "a");
    let gone = first.layby(&["volume", "delete", VOLUME, "--data", "delete"]);
    assert!(gone.contains("are in no store are gone"), "{gone}");
    take(&first);
}

/// A journal of which one payload rotted has saved all but that, which the list names.
fn assert_rest_is_saved(whole: &Path, rest: &Path) {
    let read = |path: &Path| std::fs::read(path).expect("it was made");
    let (mut whole, rest, list) = (read(whole), read(rest), format!("{}.ranges", rest.display()));
    let list = std::fs::read_to_string(list).expect("it was made");
    let damaged: Vec<&str> = list.lines().filter(|line| line.contains(",damaged,")).collect();
    assert!(!damaged.is_empty(), "{list}");
    for line in damaged {
        let mut numbers = line.split(',').map_while(|number| number.parse::<usize>().ok());
        let (offset, length) = (numbers.next().expect("an offset"), numbers.next().expect("one"));
        assert!(length <= 16 * BLOCK as usize, "{line}");
        whole[offset..offset + length].fill(0);
    }
    assert!(whole == rest, "more is missing than what is damaged");
    assert!(rest.iter().any(|byte| *byte != 0));
}

/// One bit of a batch in the journal's middle is changed.
fn damage_journal(world: &World) {
    use std::os::unix::fs::FileExt as _;
    let folder = std::fs::read_dir(world.dir("a").join("cloud")).expect("the node has it");
    let mut paths = folder.map(|entry| entry.expect("it is read").path());
    let path = paths.find(|path| path.extension().is_some_and(|e| e == "journal"));
    let options = std::fs::File::options().read(true).write(true).to_owned();
    let file = options.open(path.expect("it has one")).expect("the test's own file");
    let mut byte = [0];
    // The first thousand writes are below, and two thousand pages of the others follow.
    let at = 4096 * 2400;
    file.read_exact_at(&mut byte, at).expect("it is long");
    byte[0] ^= 1;
    file.write_all_at(&byte, at).expect("it is the test's own");
}

/// Goal: a node whose clients only read hears that another one has taken its volume, and serves
/// nothing old from then on. Method: reads from memory, and nothing else, until one is refused.
#[test]
fn a_node_that_only_reads_hears_of_it() {
    let Some(world) = World::new() else { return };
    let (first, second) = (start(&world, "a"), start(&world, "b"));
    World::create(&first, VOLUME, &World::url());
    let mut client = Client::open(&first);
    client.write(200);
    client.verify();
    first.layby(&["volume", "drain", VOLUME]);
    take(&second);
    let mut old = Connection::open(&first.socket(), VOLUME).expect("it does not know yet");
    let read = Request::Read { offset: 0, length: BLOCK as u32 };
    // It asks every ten seconds; so many answers take longer by far.
    let is_refused = (0..5_000_000).any(|_| old.call(&read).expect("it goes on").is_err());
    assert!(is_refused, "it goes on serving what is not its own");
    assert_nothing_is_served(&mut old);
    client.reopen(&second).verify();
}

/// Goal: salvage finds acknowledged writes whose segment was put after another node took the
/// volume: no superblock names it. Method: the replacement of the superblock is refused while
/// segments go through; a kill; these segments are gone until a second node has the volume; what is
/// salvaged goes over an image of the store.
#[test]
fn what_was_put_too_late_is_saved() {
    let Some(world) = World::new() else { return };
    let first = start(&world, "a");
    World::create(&first, VOLUME, &World::url());
    let mut client = Client::open(&first);
    client.write(600);
    first.layby(&["volume", "drain", VOLUME]);
    let before = world.server.objects();
    let refused = Fault::new(Effect::Fail(StoreError::UNAVAILABLE));
    let fault = world.link.fault(refused.on(Operation::Put).key("superblock"));
    client.write(500);
    fault.wait_hits(2);
    first.kill9();
    fault.lift();
    let objects = world.server.objects();
    let late = objects.keys().filter(|key| key.contains("segments/") && !before.contains_key(*key));
    let late: Vec<_> = late.map(|key| (key.clone(), world.server.read(key))).collect();
    assert!(!late.is_empty(), "the test is to have such segments");
    late.iter().for_each(|(key, _)| world.server.delete(key));
    let image = world.dir("image");
    let (is_whole, text) = world.restore(Some(&image));
    assert!(is_whole, "{text}");
    let second = start(&world, "b");
    take(&second);
    for (key, bytes) in late {
        std::fs::write(world.server.bucket().join(key), bytes).expect("the test's own folder");
    }
    let first = start(&world, "a");
    let is_lost = || first.layby(&["volume", "list"]).contains("lost");
    assert!((0..5000).any(|_| is_lost()), "{}", first.stderr());
    let (saved, dir) = (world.dir("left"), world.dir("a"));
    let (to, dir) = (saved.to_string_lossy(), dir.to_string_lossy());
    let words = ["salvage", VOLUME, &to, "--dir", &dir, "--config", &world.config("a")];
    let (is_done, text) = world.run(&words);
    assert!(is_done && text.contains("of data"), "{text}");
    write_over(&saved, &image);
    client.verify_image(&image);
}

/// Goal: a volume whose superblock the store has lost is not shown as up, and not said to be
/// written back, though nobody writes; what the node has of it stays. Method: a volume with writes
/// of this moment in its store; its superblock is deleted there; status, drain and the log.
#[test]
fn a_vanished_superblock_stops_a_volume_at_rest() {
    let Some(world) = World::new() else { return };
    let first = start(&world, "a");
    World::create(&first, VOLUME, &World::url());
    let mut client = Client::open(&first);
    client.write(600);
    first.layby(&["volume", "drain", VOLUME]);
    let objects = world.server.objects();
    let key = objects.keys().find(|key| key.ends_with("superblock")).expect("it has one");
    world.server.delete(key);
    let is_lost = || first.layby(&["volume", "list"]).contains("lost");
    assert!((0..20_000).any(|_| is_lost()), "{}", first.stderr());
    let shown = first.layby(&["volume", "show", VOLUME]);
    assert!(shown.contains("link lost") && shown.contains("vanished"), "{shown}");
    world.ask("a", &["volume", "drain", VOLUME]).assert_explains(&["vanished"]);
    let metrics = first.layby(&["status", "--json"]);
    assert!(metrics.contains("vanished"), "{metrics}");
    assert!(first.stderr().contains("vanished"), "{}", first.stderr());
}

/// Goal: a node that was put back from an older copy of its directory takes its volume anew, as the
/// store has it, though the store says that it is this node's. Method: a copy, more writes, then
/// the copy in the directory's place.
#[test]
fn a_node_that_was_put_back_takes_its_volume_anew() {
    let Some(world) = World::new() else { return };
    let node = start(&world, "a");
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    client.write(300);
    node.layby(&["volume", "drain", VOLUME]);
    node.stop();
    let paths = ["a", "old"].map(|name| world.dir(name).display().to_string());
    must("cp", &["-a", &paths[0], &paths[1]]);
    let node = start(&world, "a");
    let mut client = client.reopen(&node);
    client.write(300);
    node.layby(&["volume", "drain", VOLUME]);
    node.stop();
    must("rm", &["-r", &paths[0]]);
    must("mv", &[&paths[1], &paths[0]]);
    let node = start(&world, "a");
    let is_lost = (0..6000).any(|_| node.layby(&["volume", "show", VOLUME]).contains("link lost"));
    assert!(is_lost && node.stderr().contains("older copy"), "{}", node.stderr());
    assert!(take(&node).contains("took volume maps"));
    let mut client = client.reopen(&node);
    client.verify();
    client.write(100);
    client.verify_store(&world, &node);
}

/// Goal: a volume of `takeover` whose journal and map are lost, and that another node wrote since,
/// shows nothing that the SSD level kept of its own time. Method: kept reads of each block on the
/// first node; the second one takes the volume and writes; the first node's files are moved away
/// before its start, and moved back before the next one.
#[test]
fn a_volume_whose_files_are_lost_is_taken_anew() {
    let Some(world) = World::new() else { return };
    let first = Node::start(&world.dir("a"), &keeping(&world, false));
    World::create(&first, VOLUME, &World::url());
    let mut client = Client::open(&first);
    client.write_each();
    first.layby(&["volume", "drain", VOLUME]);
    first.stop();
    // Memory is empty now, so that each read is kept on the SSD level.
    let first = Node::start(&world.dir("a"), &keeping(&world, false));
    let mut client = client.reopen(&first);
    client.verify();
    first.stop();
    let second = start(&world, "b");
    take(&second);
    let mut client = client.reopen(&second);
    client.write(500);
    second.layby(&["volume", "drain", VOLUME]);
    second.stop();
    let [kept, away] = ["a/cloud", "away"].map(|name| world.dir(name));
    std::fs::rename(&kept, &away).expect("the test's own folder");
    let first = Node::start(&world.dir("a"), &keeping(&world, true));
    let mut client = client.reopen(&first);
    client.verify();
    client.write(100);
    client.verify_store(&world, &first);
    first.stop();
    // The disk with the old files is back, above those that were made meanwhile.
    std::fs::remove_dir_all(&kept).expect("the test's own folder");
    std::fs::rename(&away, &kept).expect("the test's own folder");
    world.link.cut(Cut::Refuse);
    let first = Node::start(&world.dir("a"), &keeping(&world, true));
    let listed = first.layby(&["volume", "list"]);
    assert!(
        listed.contains("2.journal` are missing"),
        "older files are not taken for newer: {listed}"
    );
}

/// Goal: an entry of `takeover` excuses no missing file of a volume that is the node's own, and
/// gives up no journal whose map is missing. Method: writes that no store has; both files, or the
/// map, moved away; a start with the entry, where the store names this node and then another one;
/// the files moved back.
#[test]
fn a_takeover_excuses_no_missing_files() {
    let Some(world) = World::new() else { return };
    let node = Node::start(&world.dir("a"), &keeping(&world, true));
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    world.kill_with_unsaved(node, &mut client);
    let [kept, away] = ["a/cloud", "away"].map(|name| world.dir(name));
    std::fs::rename(&kept, &away).expect("the test's own folder");
    let node = Node::start(&world.dir("a"), &keeping(&world, true));
    let listed = node.layby(&["volume", "list"]);
    assert!(listed.contains(".journal` are missing, and with"), "{listed}");
    let _ = std::fs::remove_dir_all(&kept);
    std::fs::rename(&away, &kept).expect("the test's own folder");
    let listed = || node.layby(&["volume", "list"]);
    assert!((0..5000).any(|_| !listed().contains("is not served")), "{}", listed());
    let mut client = client.reopen(&node);
    client.verify();
    node.layby(&["volume", "drain", VOLUME]);
    world.link.cut(Cut::Refuse);
    client.write(100);
    node.kill9();
    world.link.restore();
    let second = start(&world, "b");
    take(&second);
    let [map, aside] = ["a/cloud/1.map", "1.map"].map(|name| world.dir(name));
    std::fs::rename(&map, &aside).expect("the test's own file");
    let node = Node::start(&world.dir("a"), &keeping(&world, true));
    let listed = node.layby(&["volume", "list"]);
    assert!(listed.contains("1.map` is missing"), "{listed}");
    node.stop();
    std::fs::rename(&aside, &map).expect("the test's own file");
    let (dir, config) = (world.dir("a"), world.config("a"));
    let words = ["salvage", VOLUME, "--dir", &dir.to_string_lossy(), "--config", &config];
    let (is_done, text) = world.run(&words);
    assert!(is_done && text.contains("of data"), "{text}");
}

/// Goal: an operator who takes a clone is told where it is read from besides its own place, which a
/// copy of the store does not move, and what to do about the marks of the first one's clones.
/// Method: a volume and its clone in a folder, all of which is copied; another node takes both from
/// the copy.
#[test]
fn a_taken_clone_names_its_base() {
    let base = TempDir::new().expect("a temporary folder");
    let place = |store: &str, volume: &str| {
        format!("file://{}", base.path().join(store).join(volume).display())
    };
    let start = |name: &str| Node::start(&base.path().join(name), &Options::config(""));
    let first = start("a");
    let (one, other) = (place("first", "maps"), place("first", "test"));
    first.layby(&["volume", "create", "maps", "--size", "1MiB", "--path", &one]);
    let mut connection = Connection::open(&first.socket(), "maps").expect("it is there");
    let write = Request::Write { offset: 0, data: vec![7; BLOCK as usize], fua: true };
    connection.call(&write).expect("the node is there").expect("it is written");
    first.layby(&["volume", "snapshot", "maps", "monday"]);
    let words = ["volume", "create", "test", "--path", &other, "--clone-of", "maps@monday"];
    let named = format!("`{one}@monday`");
    assert!(first.layby(&words).contains(&named));
    first.stop();
    let [from, to] = ["first", "second"].map(|store| base.path().join(store));
    must("cp", &["-r", &from.to_string_lossy(), &to.to_string_lossy()]);
    let second = start("b");
    for volume in ["maps", "test"] {
        let path = place("second", volume);
        let taken = second.layby(&["volume", "create", volume, "--path", &path, "--take"]);
        assert_eq!(taken.contains(&named), volume == "test", "{taken}");
    }
    let shown = second.layby(&["volume", "show", "test"]);
    assert!(shown.contains(&named), "{shown}");
    let dir = base.path().join("b").to_string_lossy().into_owned();
    let ask = |words: &[&str]| layby(&[&["volume"], words, &["--dir", &dir]].concat());
    let why = [other.as_str(), "copy of a bucket"];
    ask(&["delete", "maps", "--data", "now"]).assert_explains(&why);
    ask(&["snapshot-delete", "maps", "monday"]).assert_explains(&why);
    second.layby(&["volume", "delete", "maps", "--data", "keep"]);
    second.stop();
}
