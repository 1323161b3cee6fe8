//! A catalog that was put back from an older copy, beside levels that went on.
//!
//! How: the copy is made by hand while the node runs, or is the one that the node keeps for its
//! room, and the node is killed.
//! Invariant: no level that was written is formatted, whatever a catalog says; a first start that
//! was cut short goes on by itself.

use crate::lost::{assert_holds, fill};
use layby_tests::{
    Connection, Node, Options, Outcome, Request, binary, layby, serve_arguments, small_levels,
};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A volume that no command made: the catalog before the last is from before the node came up.
fn declared(more: &str) -> Options {
    let levels = small_levels().config.expect("levels");
    Options::config(format!("{levels}{more}[volume.a]\nsize = \"1MiB\"\n"))
}

fn check(dir: &Path) -> Outcome {
    layby(&["check", "--dir", &*dir.to_string_lossy()])
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).expect("the test's own folder");
}

/// Goal: an older catalog is refused by a start and a check. Where the node is told to take it all
/// the same, dirty blocks of a volume that it has never had are named, by a check, which is not
/// sound then, and by the start that drops them; a later check is sound. Method: a catalog from
/// before a volume was made, put back over a killed node; then without what names the last one.
#[test]
fn an_older_catalog_drops_no_block_in_silence() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(&dir, &small_levels());
    let [catalog, old] = ["catalog.json", "older.json"].map(|name| dir.join(name));
    fs::copy(&catalog, &old).expect("the test's own folder");
    node.volume_create("late", "4MiB", "normal");
    let mut connection = Connection::open(&node.socket(), "late").expect("the node serves");
    let write = Request::Write { offset: 0, data: vec![7; 64 << 10], fua: true };
    connection.call(&write).expect("the connection stays").expect("its level has room");
    node.kill9();
    fs::rename(&old, &catalog).expect("the test's own folder");
    let words = ["check", "--dir", &*dir.to_string_lossy()];
    layby(&words).assert_explains(&["an older copy", "catalog.last"]);
    let refused = Node::try_start(&dir, &small_levels()).expect_err("the catalog is older");
    refused.assert_explains(&["an older copy", "catalog.last"]);
    fs::remove_file(dir.join("catalog.last")).expect("the node wrote it");
    let checked = layby(&words);
    checked.assert_explains(&["is not sound"]);
    let named = ["dirty block(s) of a volume, number 1,", "older than the level"];
    for word in named {
        assert!(checked.stdout.contains(word), "`{word}` is not in: {}", checked.stdout);
    }
    let node = Node::start(&dir, &small_levels());
    for word in named {
        assert!(node.stderr().contains(word), "`{word}` is not in: {}", node.stderr());
    }
    node.stop();
    let checked = layby(&words);
    assert!(checked.success, "{}", checked.stdout);
}

/// Goal: the catalog before the last, which lies beside it, is refused by its name, by a start and
/// a check, after a stop and a kill; with the newest one back, all is there. Method: a node that
/// saw no change but its first start, and one whose volume was made larger.
#[test]
fn the_catalog_before_the_last_is_refused() {
    for (is_killed, is_resized) in [(true, false), (false, false), (true, true)] {
        let work = TempDir::new().expect("a temporary folder");
        let dir = work.path().join("node");
        let node = Node::start(&dir, &declared(""));
        let written = if is_resized { 5 << 20 } else { 0 };
        if is_resized {
            node.layby(&["volume", "resize", "a", "--size", "8MiB"]);
        }
        let mut connection = Connection::open(&node.socket(), "a").expect("it is served");
        let write = Request::Write { offset: written, data: vec![7; 64 << 10], fua: true };
        connection.call(&write).expect("it serves").expect("a sound disk");
        drop(connection);
        match is_killed {
            true => node.kill9(),
            false => node.stop(),
        }
        let [catalog, before, newest] =
            ["catalog.json", "catalog.json.new", "newest.json"].map(|name| dir.join(name));
        copy(&catalog, &newest);
        copy(&before, &catalog);
        let words = ["the catalog before the last", "catalog.json.new", "catalog.last"];
        check(&dir).assert_explains(&words);
        let refused = Node::try_start(&dir, &declared("")).expect_err("the catalog is older");
        refused.assert_explains(&words);
        copy(&newest, &catalog);
        let node = Node::start(&dir, &declared(""));
        let mut connection = Connection::open(&node.socket(), "a").expect("it is served");
        let read = Request::Read { offset: written, length: 64 << 10 };
        let found = connection.call(&read).expect("it serves").expect("a sound disk");
        assert!(found == vec![7; 64 << 10], "killed: {is_killed}, resized: {is_resized}");
    }
}

/// Goal: a catalog by which the node has never come up makes no start format levels that were
/// written, and no check calls them sound; both say what to do. With the newest catalog back, all
/// is there; `--format` gives it up. Method: that catalog, and nothing that names the last one;
/// clear levels and an encrypted one.
#[test]
fn levels_that_were_written_are_not_formatted() {
    for is_encrypted in [false, true] {
        let work = TempDir::new().expect("a temporary folder");
        let dir = work.path().join("node");
        let key = work.path().join("key");
        fs::write(&key, "1f".repeat(32)).expect("the test's own folder");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the test's own file");
        // It belongs to the SSD level, which is the last one.
        let line = format!("key = \"file:{}\"\n", key.display());
        let options = declared(if is_encrypted { &line } else { "" });
        let node = Node::start(&dir, &options);
        fill(&node, "a", 1);
        node.kill9();
        let [catalog, older, newest] =
            ["catalog.json", "older.json", "newest.json"].map(|name| dir.join(name));
        copy(&dir.join("catalog.json.new"), &older);
        copy(&catalog, &newest);
        let put_older = || {
            copy(&older, &catalog);
            fs::remove_file(dir.join("catalog.last")).expect("the node wrote it");
        };
        put_older();
        let checked = check(&dir);
        checked.assert_explains(&["is not sound"]);
        let says = ["never come up", "put the newest catalog.json back"];
        assert!(says.iter().all(|word| checked.stdout.contains(word)), "{checked:?}");
        // A first start may be given another shape.
        let text = options.config.clone().expect("levels");
        for shape in [text.clone(), format!("[node]\nshards = 2\n{text}")] {
            let options = Options::config(shape);
            let refused = Node::try_start(&dir, &options).expect_err("the catalog is older");
            refused.assert_explains(&["this node's own level", "never come up", "--format"]);
        }
        copy(&newest, &catalog);
        let node = Node::start(&dir, &options);
        assert_holds(&node, "a", Some(1));
        node.kill9();
        put_older();
        let given_up = Options { arguments: vec!["--format".to_owned()], ..options };
        Node::start(&dir, &given_up).stop();
        let checked = check(&dir);
        assert!(checked.success, "{checked:?}");
    }
}

/// Goal: levels that a first start made, and that no client wrote, are no reason to refuse: the
/// next start goes on, as after a cut between its levels and its catalog. Method: a kill and a stop
/// as soon as the node is ready; the catalog from before, and nothing that names the last one.
#[test]
fn levels_that_were_made_alone_are_made_anew() {
    for is_killed in [true, false] {
        let work = TempDir::new().expect("a temporary folder");
        let dir = work.path().join("node");
        let node = Node::start(&dir, &declared(""));
        match is_killed {
            true => node.kill9(),
            false => node.stop(),
        }
        copy(&dir.join("catalog.json.new"), &dir.join("catalog.json"));
        fs::remove_file(dir.join("catalog.last")).expect("the node wrote it");
        let checked = check(&dir);
        assert!(checked.success, "{checked:?}");
        let node = Node::start(&dir, &declared(""));
        fill(&node, "a", 1);
        node.kill9();
        assert_holds(&Node::start(&dir, &declared("")), "a", Some(1));
    }
}

/// Goal: a first start that was killed at any point is finished by the next one, which keeps what
/// is written then. Method: a kill as soon as each thing is there that a first start makes, in its
/// order; of the levels also as soon as they are formatted.
#[test]
fn a_first_start_that_was_killed_goes_on() {
    type Step = fn(&Path) -> bool;
    fn is_formatted(level: &Path) -> bool {
        let mut head = [0; 5];
        let file = fs::File::open(level);
        file.and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head)).is_ok()
            && &head == b"LAYBY"
    }
    let steps: [(&str, Step); 10] = [
        ("a process", |_| true),
        ("its lock", |dir| dir.join("lock").exists()),
        ("the first level", |dir| dir.join("levels/nvm").exists()),
        ("the last level", |dir| dir.join("levels/ssd").exists()),
        ("a catalog", |dir| dir.join("catalog.json").exists()),
        ("write intents", |dir| dir.join("intents.json").exists()),
        ("a formatted level", |dir| is_formatted(&dir.join("levels/nvm"))),
        ("all formatted levels", |dir| is_formatted(&dir.join("levels/ssd"))),
        ("levels that are known", |dir| dir.join("reached.json").exists()),
        ("a node that came up", |dir| {
            let text = fs::read_to_string(dir.join("catalog.json"));
            text.is_ok_and(|text| text.contains("\"is_started\": true"))
        }),
    ];
    for (name, has_come) in steps {
        let work = TempDir::new().expect("a temporary folder");
        let dir = work.path().join("node");
        let mut command = Command::new(binary());
        command.args(serve_arguments(&dir, &declared(""))).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut first = command.spawn().expect("the program is there");
        while !has_come(&dir) && matches!(first.try_wait(), Ok(None)) {
            std::thread::yield_now();
        }
        assert!(matches!(first.try_wait(), Ok(None)), "{name}: it ended by itself");
        first.kill().expect("it runs");
        first.wait().expect("it is the test's own");
        let node = Node::start(&dir, &declared(""));
        fill(&node, "a", 1);
        node.kill9();
        let node = Node::start(&dir, &declared(""));
        assert_holds(&node, "a", Some(1));
        node.stop();
        let checked = check(&dir);
        assert!(checked.success, "{name}: {checked:?}");
    }
}
