//! The files that a node keeps of volumes in object stores: their room, and where they are.
//!
//! How: as `cloud`, with journals and maps on small file systems and in other folders.

use layby_tests::cloud::{Client, VOLUME, World};
use layby_tests::link::Cut;
use layby_tests::{Node, SmallDisk};
use std::path::{Path, PathBuf};

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
    let tight = world.options(&format!("journal_dir = \"{}\"", narrow.path().display()));
    let node = Node::start(&world.dir("narrow"), &tight);
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

/// Goal: journals and maps of a folder are one node's, while it runs and later; the other node says
/// so and changes nothing. Method: two nodes, one folder, a volume each.
#[test]
fn a_folder_of_journals_is_one_nodes() {
    let Some(world) = World::new() else { return };
    let shared = world.dir("shared");
    let options = world.options(&format!("journal_dir = \"{}\"", shared.display()));
    let first = Node::start(&world.dir("a"), &options);
    World::create(&first, VOLUME, &World::url());
    let mut client = Client::open(&first);
    client.write(200);
    let second = Node::start(&world.dir("b"), &options);
    let (size, url) = ("8MiB", format!("{}-b", World::url()));
    let words = ["volume", "create", "other", "--size", size, "--path", &url];
    world.ask("b", &words).assert_explains(&["another node keeps journals", "journal_dir"]);
    first.stop();
    world.ask("b", &words).assert_explains(&["of node", "journal_dir"]);
    second.stop();
    let first = Node::start(&world.dir("a"), &options);
    let mut client = client.reopen(&first);
    client.verify();
    client.verify_store(&world, &first);
}

/// Goal: a volume whose journal and map are both missing is not served from the store as if nothing
/// were missing; it is again once they are back, with all that was flushed, or goes on with what
/// the store has where that is said. Method: writes that no store has, files moved away and back.
#[test]
fn missing_journal_and_map_are_missed() {
    let Some(world) = World::new() else { return };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    world.kill_with_unsaved(node, &mut client);
    let [kept, away] = ["a/cloud", "away"].map(|name| world.dir(name));
    std::fs::rename(&kept, &away).expect("the test's own folder");
    let node = world.start("a");
    let listed = || node.layby(&["volume", "list"]);
    assert!(listed().contains(".journal` are missing, and with"), "{}", listed());
    let _ = std::fs::remove_dir_all(&kept);
    std::fs::rename(&away, &kept).expect("the test's own folder");
    assert!((0..5000).any(|_| !listed().contains("is not served")), "{}", listed());
    let mut client = client.reopen(&node);
    client.verify();
    client.verify_store(&world, &node);
    node.kill9();
    std::fs::remove_dir_all(&kept).expect("the test's own folder");
    let node = world.start("a");
    let taken = node.layby(&["volume", "create", VOLUME, "--path", &World::url(), "--take"]);
    assert!(taken.contains("took volume maps"), "{taken}");
    client.reopen(&node).verify();
}

/// A folder that is moved away while no node runs, as a disk that is not mounted.
struct Away {
    folder: PathBuf,
    away: PathBuf,
}

impl Away {
    fn new(folder: &Path) -> Away {
        let away = folder.with_extension("away");
        std::fs::rename(folder, &away).expect("the test's own folder");
        Away { folder: folder.to_owned(), away }
    }

    fn put_back(self) {
        let _ = std::fs::remove_dir_all(&self.folder);
        std::fs::rename(&self.away, &self.folder).expect("the test's own folder");
    }
}

/// Goal: a volume whose journal, map or both are lost for good is served with what the store has,
/// once that is said, with the settings that it had; not where nothing is missing, and not another
/// node's. Method: a volume with settings of its own and writes that no store has; its files
/// removed, one or both; a second node that takes it.
#[test]
fn a_lost_journal_is_accepted_by_command() {
    let accept = ["volume", "accept-loss", VOLUME];
    for lost in [&["journal"][..], &["map"], &["journal", "map"]] {
        let Some(world) = World::new() else { return };
        let node = world.start_new("a");
        node.layby(&["volume", "set", VOLUME, "--class", "bulk", "--iops-max", "5000"]);
        world.ask("a", &accept).assert_explains(&["waits for a lost level, journal or map"]);
        let mut client = Client::open(&node);
        client.write(300);
        node.layby(&["volume", "drain", VOLUME]);
        let in_store = client.blocks.clone();
        write_locally(&world, &mut client);
        node.kill9();
        world.link.restore();
        client.blocks = in_store;
        for file in lost {
            let path = world.dir("a/cloud").join(format!("1.{file}"));
            std::fs::remove_file(path).expect("the node made it");
        }
        let node = world.start("a");
        world.ask("a", &["volume", "delete", VOLUME]).assert_explains(&["accept-loss"]);
        world
            .ask("a", &["volume", "set", VOLUME, "--class", "bulk"])
            .assert_explains(&["is not served", "accept-loss"]);
        let settings = |node: &Node| {
            let shown = node.layby(&["volume", "show", VOLUME, "--json"]);
            let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
            ["class", "limits", "path", "size_bytes"].map(|key| shown[key].clone())
        };
        let before = settings(&node);
        let accepted = node.layby(&accept);
        assert!(accepted.contains("is served without what was lost of it"), "{accepted}");
        assert_eq!(settings(&node), before, "{lost:?}");
        let mut client = client.reopen(&node);
        client.verify();
        client.write(100);
        client.verify_store(&world, &node);
        node.kill9();
        let node = world.start("a");
        let mut client = client.reopen(&node);
        client.verify();
        drop(client);
        node.kill9();
        if lost.len() == 1 {
            continue;
        }
        world.start("b").layby(&["volume", "create", VOLUME, "--path", &World::url(), "--take"]);
        std::fs::remove_dir_all(world.dir("a/cloud")).expect("the node made it");
        let _node = world.start("a");
        world.ask("a", &accept).assert_explains(&["has the volume", "--take"]);
    }
}

/// Goal: while the disk of a volume's journal is away, no command but one that gives the data up
/// removes the volume's map; with the disk back, all that was flushed is there. Method: writes that
/// no store has; the journal's folder moved away, alone and with the map's; a deletion that keeps
/// the data, an undeletion, a start with the volume in `takeover` after another node took it, a
/// taking, and a deletion with the data.
#[test]
fn a_journal_that_is_away_is_not_given_up() {
    let Some(world) = World::new() else { return };
    let journals = world.dir("journals");
    let start = || with_journals(&world, "");
    let node = start();
    World::create(&node, VOLUME, &World::url());
    let mut client = Client::open(&node);
    world.kill_with_unsaved(node, &mut client);
    let keep = KEEP;
    let all = Away::new(&world.dir("a/cloud"));
    let away = Away::new(&journals);
    let node = start();
    world.ask("a", &keep).assert_explains(&[".journal` are missing, and with"]);
    node.kill9();
    all.put_back();
    let node = start();
    world.ask("a", &keep).assert_explains(&["1.journal` is missing"]);
    away.put_back();
    let listed = || node.layby(&["volume", "list"]);
    assert!((0..5000).any(|_| !listed().contains("is not served")), "{}", listed());
    let mut client = client.reopen(&node);
    client.verify();

    write_locally(&world, &mut client);
    node.layby(&["volume", "delete", VOLUME, "--data", "delete"]);
    node.kill9();
    let undelete = ["volume", "undelete", VOLUME];
    let away = Away::new(&journals);
    world.link.restore();
    let node = start();
    world.ask("a", &undelete).assert_explains(&["1.journal` is missing", "restore --deleted"]);
    node.kill9();
    let all = Away::new(&world.dir("a/cloud"));
    let node = start();
    world.ask("a", &undelete).assert_explains(&[".journal` are missing, and with"]);
    node.kill9();
    all.put_back();
    away.put_back();
    let node = start();
    node.layby(&undelete);
    let mut client = client.reopen(&node);
    client.verify();
    node.layby(&["volume", "drain", VOLUME]);
    taken_while_its_journal_is_away(&world, node, client);
}

const KEEP: [&str; 5] = ["volume", "delete", VOLUME, "--data", "keep"];

/// A node whose journals lie in a folder of their own.
fn with_journals(world: &World, more: &str) -> Node {
    let journals = world.dir("journals");
    let more = format!("journal_dir = \"{}\"\n{more}", journals.display());
    Node::start(&world.dir("a"), &world.options(&more))
}

/// Writes that no store has.
fn write_locally(world: &World, client: &mut Client) {
    world.link.cut(Cut::Refuse);
    client.write(100);
}

fn taken_while_its_journal_is_away(world: &World, node: Node, mut client: Client) {
    let journals = world.dir("journals");
    write_locally(world, &mut client);
    node.kill9();
    world.link.restore();
    let second = world.start("b");
    let take = ["volume", "create", VOLUME, "--path", &World::url(), "--take"];
    second.layby(&take);
    let away = Away::new(&journals);
    let node = with_journals(world, &format!("takeover = [\"{VOLUME}\"]\n"));
    assert!(node.layby(&["volume", "list"]).contains("is not served"));
    world.ask("a", &take).assert_explains(&["1.journal` is missing"]);
    world.ask("a", &KEEP).assert_explains(&["1.journal` is missing", "layby salvage"]);
    node.stop();
    away.put_back();
    let (dir, config) = (world.dir("a"), world.config("a"));
    let words = ["salvage", VOLUME, "--dir", &dir.to_string_lossy(), "--config", &config];
    let (is_done, text) = world.run(&words);
    assert!(is_done && text.contains("of data"), "{text}");
    let _away = Away::new(&journals);
    let node = with_journals(world, "");
    let gone = node.layby(&["volume", "delete", VOLUME, "--data", "delete"]);
    assert!(gone.contains("forgot volume maps"), "{gone}");
}

/// Goal: a volume that is made where an older catalog was put back does not begin with what the
/// journal of a volume holds that this catalog does not know; the catalog itself is refused while
/// the node knows a newer one. Method: a catalog of before.
#[test]
fn a_journal_of_an_unknown_volume_is_left_alone() {
    let Some(world) = World::new() else { return };
    let node = world.start("a");
    node.stop();
    let [catalog, old] = ["a/catalog.json", "old.json"].map(|name| world.dir(name));
    std::fs::copy(&catalog, &old).expect("the test's own file");
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(100);
    node.kill9();
    let new = std::fs::read(&catalog).expect("it is there");
    std::fs::copy(&old, &catalog).expect("the test's own file");
    let refused = world.refused("a");
    refused.assert_explains(&["an older copy", "catalog.last"]);
    std::fs::remove_file(world.dir("a/catalog.last")).expect("the node wrote it");
    let node = world.start("a");
    let (size, url) = ("8MiB", format!("{}-b", World::url()));
    let words = ["volume", "create", "other", "--size", size, "--path", &url];
    world.ask("a", &words).assert_explains(&["1.map", "of a volume that this node does not know"]);
    node.kill9();
    std::fs::write(&catalog, new).expect("the test's own file");
    let _ = std::fs::remove_file(world.dir("a/catalog.last"));
    let node = world.start("a");
    client.reopen(&node).verify();
}

/// A volume whose journal and map are those of a stop, or a kill, before the last start, which has
/// written and flushed without a store. The newest ones lie in `newest`.
fn put_back_older(world: &World, is_kill: bool) -> Client {
    let end = |node: Node| if is_kill { node.kill9() } else { node.stop() };
    let node = world.start_new("a");
    let mut client = Client::open(&node);
    client.write(300);
    node.layby(&["volume", "drain", VOLUME]);
    world.link.cut(Cut::Refuse);
    client.write(100);
    end(node);
    let [kept, older, newest] = ["a/cloud", "older", "newest"].map(|name| world.dir(name));
    copy_folder(&kept, &older);
    let node = world.start("a");
    let mut client = client.reopen(&node);
    client.write_each();
    end(node);
    std::fs::rename(&kept, &newest).expect("the test's own folder");
    copy_folder(&older, &kept);
    client
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the test's own folder");
    for entry in std::fs::read_dir(from).expect("the node made it") {
        let entry = entry.expect("it can be listed");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("the test's own folder");
    }
}

/// Goal: a journal and a map that are put back together from an older copy are not served, with
/// the store silent since the copy and with it back, and no command removes them as if they were
/// the newest; `layby check` names them; the newest ones are served whole, and without any the
/// volume goes on with what the store has. Method: copies of before the last start, after a stop
/// and after a kill; the newest back, or both files away and the loss accepted.
#[test]
fn an_older_journal_and_map_are_refused() {
    for is_kill in [false, true] {
        let Some(world) = World::new() else { return };
        let client = put_back_older(&world, is_kill);
        world.ask("a", &["check"]).assert_explains(&["1.map", "older copy"]);
        let node = world.start("a");
        let listed = || node.layby(&["volume", "list"]);
        assert!(!node.serves(VOLUME), "{}", listed());
        world.link.restore();
        let refused = world.ask("a", &["volume", "set", VOLUME, "--class", "bulk"]);
        refused.assert_explains(&["1.map", "older copy", "opening 2", "accept-loss"]);
        world.ask("a", &KEEP).assert_explains(&["older copy"]);
        let accept = ["volume", "accept-loss", VOLUME];
        world.ask("a", &accept).assert_explains(&["waits for a lost level, journal or map"]);
        assert!(!node.serves(VOLUME), "{}", listed());
        let [kept, newest] = ["a/cloud", "newest"].map(|name| world.dir(name));
        let put_aside = world.dir("aside");
        if is_kill {
            std::fs::rename(&kept, &put_aside).expect("the test's own folder");
            node.kill9();
            let node = world.start("a");
            node.layby(&accept);
            let mut client = Client::open(&node);
            client.write_each();
            node.kill9();
            let node = world.start("a");
            client.reopen(&node).verify();
            continue;
        }
        std::fs::rename(&kept, &put_aside).expect("the test's own folder");
        std::fs::rename(&newest, &kept).expect("the test's own folder");
        assert!((0..5000).any(|_| node.serves(VOLUME)), "{}", listed());
        let mut client = client.reopen(&node);
        client.verify();
        client.verify_store(&world, &node);
    }
}
