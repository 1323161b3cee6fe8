//! A node whose level is gone serves the volumes that owe it nothing, and loses nothing else.
//!
//! How: volumes are written, drained or left alone; the node is killed and a level's file taken
//! away, blanked or put back. Every block that a served volume shows is held against what was
//! written; what waits is refused by name.
//! Invariant: no block is at an older version than was promised, unless the loss was accepted.
//! Not for: damage within a level, see `damage.rs`.

use layby_tests::{Connection, Node, Options, Request, layby, small_levels};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;
const SIZE: &str = "1MiB";

/// A node's folder with four volumes, as a kill left it: `brake` of class critical and `map` have
/// dirty blocks, `idle` was drained, `fresh` was never written.
struct Killed {
    _base: TempDir,
    dir: PathBuf,
}

impl Killed {
    fn new() -> Killed {
        let base = TempDir::new().expect("a temporary folder");
        let dir = base.path().join("node");
        let node = Node::start(&dir, &small_levels());
        for (name, class) in
            [("brake", "critical"), ("map", "normal"), ("idle", "normal"), ("fresh", "normal")]
        {
            node.volume_create(name, SIZE, class);
        }
        for name in ["brake", "map", "idle"] {
            fill(&node, name, 1);
        }
        node.layby(&["volume", "drain", "idle"]);
        node.kill9();
        Killed { _base: base, dir }
    }

    fn level(&self, name: &str) -> PathBuf {
        self.dir.join("levels").join(name)
    }

    /// Takes a level away, and answers where it is.
    fn take(&self, name: &str) -> PathBuf {
        let away = self.dir.join(format!("{name}.away"));
        fs::rename(self.level(name), &away).expect("the test's own folder");
        away
    }

    fn start(&self) -> Node {
        Node::start(&self.dir, &small_levels())
    }
}

fn content(version: u8) -> Vec<u8> {
    (0..BLOCKS).flat_map(|block| vec![version.wrapping_mul(64) ^ block as u8; BLOCK]).collect()
}

pub(crate) fn fill(node: &Node, name: &str, version: u8) {
    let mut connection = Connection::open(&node.socket(), name).expect("it is served");
    let data = content(version);
    for (block, data) in (0..).zip(data.chunks(BLOCK)) {
        let (offset, data) = (block * BLOCK as u64, data.to_vec());
        let write = Request::Write { offset, data, fua: false };
        connection.call(&write).expect("it serves").expect("a sound disk");
    }
    connection.call(&Request::Flush).expect("it serves").expect("a sound disk");
}

fn read(node: &Node, name: &str) -> Vec<u8> {
    let mut connection = Connection::open(&node.socket(), name).expect("it is served");
    let read = Request::Read { offset: 0, length: (BLOCKS as usize * BLOCK) as u32 };
    connection.call(&read).expect("it serves").expect("a sound disk")
}

#[track_caller]
pub(crate) fn assert_holds(node: &Node, name: &str, version: Option<u8>) {
    let expected = version.map_or_else(|| vec![0; BLOCKS as usize * BLOCK], content);
    assert!(read(node, name) == expected, "volume `{name}` is not at version {version:?}");
}

#[track_caller]
fn assert_waits(node: &Node, name: &str, level: &str) {
    assert!(!node.serves(name), "`{name}` is served");
    let said = node.said();
    let line = said.lines().find(|line| line.contains(&format!("volume `{name}` is not served")));
    assert!(line.is_some_and(|line| line.contains(level)), "{said}");
}

fn refused(dir: &Path, words: &[&str]) -> String {
    let dir = dir.to_string_lossy();
    let words: Vec<&str> = words.iter().copied().chain(["--dir", &dir]).collect();
    let outcome = layby(&words);
    assert!(!outcome.success, "{outcome:?}");
    outcome.stderr
}

/// Goal: without its NVM level a node serves the volumes that had nothing dirty there, with what
/// the SSD level holds of them; the critical one waits and comes back whole with the level, and
/// what was written meanwhile is newer than what both levels held. Method: the level's file is
/// taken away and put back.
#[test]
fn a_lost_nvm_level_costs_its_own_volumes() {
    let killed = Killed::new();
    let away = killed.take("nvm");
    assert!(refused(&killed.dir, &["check"]).contains("accept-loss"), "`check` names the way out");
    let node = killed.start();
    assert!(node.said().contains("level `nvm` is lost"), "{}", node.said());
    assert_waits(&node, "brake", "`nvm`");
    assert_holds(&node, "map", Some(1));
    assert_holds(&node, "idle", Some(1));
    assert_holds(&node, "fresh", None);
    assert!(node.layby(&["status"]).contains("level `nvm` is lost"));
    let keeps = refused(&killed.dir, &["volume", "delete", "brake"]);
    assert!(keeps.contains("accept-loss"), "{keeps}");
    fill(&node, "map", 2);
    fill(&node, "fresh", 3);
    node.kill9();
    let node = killed.start();
    assert_holds(&node, "map", Some(2));
    assert_waits(&node, "brake", "`nvm`");
    node.stop();
    fs::rename(&away, killed.level("nvm")).expect("the test's own folder");
    let node = killed.start();
    for (name, version) in [("brake", 1), ("map", 2), ("idle", 1), ("fresh", 3)] {
        assert_holds(&node, name, Some(version));
    }
    assert!(!node.layby(&["status"]).contains("is lost"));
    fill(&node, "brake", 4);
    node.kill9();
    assert_holds(&killed.start(), "brake", Some(4));
}

/// Goal: a loss that the catalog cannot record is not accepted, so that a level that is put back
/// shows nothing older than what was written meanwhile. Method: a folder in the place of the
/// catalog's new file; then none, writes, a kill, and the level again.
#[test]
fn a_loss_that_is_not_saved_is_not_accepted() {
    let killed = Killed::new();
    let away = killed.take("nvm");
    let node = killed.start();
    let obstacle = killed.dir.join("catalog.json.new");
    fs::remove_file(&obstacle).expect("the catalog before the last");
    fs::create_dir_all(obstacle.join("x")).expect("the test's own folder");
    let said = refused(&killed.dir, &["volume", "accept-loss", "brake"]);
    assert!(said.contains("cannot write the node's catalog"), "{said}");
    assert_waits(&node, "brake", "`nvm`");
    fs::remove_dir_all(&obstacle).expect("the test's own folder");
    node.layby(&["volume", "accept-loss", "brake"]);
    fill(&node, "brake", 2);
    node.kill9();
    fs::rename(&away, killed.level("nvm")).expect("the test's own folder");
    assert_holds(&killed.start(), "brake", Some(2));
}

/// Goal: without its SSD level a node serves the volumes that are clean; the others wait until they
/// are given up, one by one, and what the NVM level holds of them is kept. Then levels are made
/// anew, and not before. Method: the level's file is taken away for good.
#[test]
fn a_lost_ssd_level_is_accepted_volume_by_volume() {
    let killed = Killed::new();
    drop(killed.take("ssd"));
    let format = Options { arguments: vec!["--format".into()], ..small_levels() };
    let refusal = Node::try_start(&killed.dir, &format).expect_err("two volumes are dirty");
    refusal.assert_explains(&["`brake`, `map`", "accept-loss"]);
    let node = killed.start();
    for name in ["brake", "map"] {
        assert_waits(&node, name, "`ssd`");
    }
    assert_holds(&node, "idle", Some(1));
    let accepted = node.layby(&["volume", "accept-loss", "brake"]);
    assert!(accepted.contains("64 block(s) of the other levels"), "{accepted}");
    assert_holds(&node, "brake", Some(1));
    let again = refused(&killed.dir, &["volume", "accept-loss", "brake"]);
    assert!(again.contains("no volume `brake` waits"), "{again}");
    node.kill9();
    let node = killed.start();
    assert_holds(&node, "brake", Some(1));
    assert_waits(&node, "map", "`ssd`");
    node.layby(&["volume", "accept-loss", "map"]);
    assert_holds(&node, "map", None);
    fill(&node, "map", 2);
    node.stop();
    let node = Node::start(&killed.dir, &format);
    assert_holds(&node, "map", Some(2));
    assert_holds(&node, "brake", Some(1));
    fill(&node, "brake", 3);
    node.kill9();
    let node = killed.start();
    assert!(!node.said().contains("is lost"), "{}", node.said());
    assert_holds(&node, "brake", Some(3));
}

/// Goal: a disk that was replaced by a blank one is a lost level, and a strict node refuses; where
/// nothing is known of intents every volume waits. Method: the file of the SSD level is zeroed,
/// then that of the intents damaged.
#[test]
fn a_blank_level_is_lost() {
    let killed = Killed::new();
    let level = killed.level("ssd");
    let length = fs::metadata(&level).expect("it is there").len();
    let file = File::create(&level).expect("the test's own folder");
    file.set_len(length).expect("a sparse file");
    let strict = Options { arguments: vec!["--strict".into()], ..small_levels() };
    Node::try_start(&killed.dir, &strict).expect_err("strict").assert_explains(&["ssd"]);
    let node = killed.start();
    assert!(node.said().contains("is blank"), "{}", node.said());
    assert_holds(&node, "idle", Some(1));
    node.stop();
    fs::write(killed.dir.join("intents.json"), "{").expect("the test's own folder");
    let node = killed.start();
    assert_waits(&node, "brake", "`ssd`");
    assert!(!node.serves("fresh"), "nothing is known of it");
}

/// Goal: a volume that was changed again after it was clean waits for its level. Method: drained,
/// then one block written by a client that had read before.
#[test]
fn a_change_after_a_drain_is_an_intent() {
    let killed = Killed::new();
    let node = killed.start();
    assert_holds(&node, "idle", Some(1));
    let mut connection = Connection::open(&node.socket(), "idle").expect("it is served");
    let write = Request::Write { offset: 0, data: vec![9; BLOCK], fua: true };
    connection.call(&write).expect("it serves").expect("a sound disk");
    node.kill9();
    drop(killed.take("ssd"));
    let node = killed.start();
    assert_waits(&node, "idle", "`ssd`");
    assert_holds(&node, "fresh", None);
}

/// Goal: a dirty volume whose class gained a level by an edited configuration waits for that level.
/// Method: a class in a file, written to, stopped; the file edited, written to, killed; the level
/// taken away and put back.
#[test]
fn a_level_gained_by_the_file_is_an_intent() {
    let base = TempDir::new().expect("a temporary folder");
    let dir = base.path().join("node");
    let levels = small_levels().config.expect("it has one");
    let options = |used: &str| {
        let tables = format!("[class.x]\nlevels = [{used}]\ndurable_writes = true\n");
        let volume = "[volume.a]\nsize = \"1MiB\"\nclass = \"x\"\n";
        Options::config(format!("{levels}\n{tables}\n{volume}"))
    };
    let node = Node::start(&dir, &options("\"ssd\""));
    fill(&node, "a", 1);
    node.stop();
    let options = options("\"nvm\", \"ssd\"");
    let node = Node::start(&dir, &options);
    fill(&node, "a", 2);
    node.kill9();
    let level = dir.join("levels").join("nvm");
    let away = dir.join("nvm.away");
    fs::rename(&level, &away).expect("the test's own folder");
    let node = Node::start(&dir, &options);
    assert_waits(&node, "a", "`nvm`");
    node.kill9();
    let _ = fs::remove_file(&level);
    fs::rename(&away, &level).expect("the test's own folder");
    assert_holds(&Node::start(&dir, &options), "a", Some(2));
}

/// Goal: an older copy of a level is never taken for the level: what was written since would be
/// gone in silence, in the backing store as well. Method: copies of the levels from before a start,
/// after a stop in order and after a kill, put back each alone and together; `check` names them, a
/// start is refused, and with the right files everything is there.
#[test]
fn an_older_copy_of_a_level_is_refused() {
    for (levels, is_killed) in [(&["nvm"][..], false), (&["ssd"], true), (&["nvm", "ssd"], false)] {
        let base = TempDir::new().expect("a temporary folder");
        let dir = base.path().join("node");
        let place = |name: &str| dir.join("levels").join(name);
        let end = |node: Node| if is_killed { node.kill9() } else { node.stop() };
        let node = Node::start(&dir, &small_levels());
        for (name, class) in [("brake", "critical"), ("map", "normal")] {
            node.volume_create(name, SIZE, class);
            fill(&node, name, 1);
        }
        end(node);
        let copy = |name: &str, from: &str, to: &str| {
            let with = |end: &str| PathBuf::from(format!("{}{end}", place(name).display()));
            fs::copy(with(from), with(to)).expect("the test's own folder");
        };
        levels.iter().for_each(|name| copy(name, "", ".old"));
        let node = Node::start(&dir, &small_levels());
        for name in ["brake", "map"] {
            fill(&node, name, 2);
            node.layby(&["volume", "drain", name]);
        }
        end(node);
        for name in levels {
            copy(name, "", ".new");
            copy(name, ".old", "");
        }
        let said = check(&dir);
        for name in levels {
            assert!(said.contains(&format!("levels/{name}` at byte 0: an older copy")), "{said}");
        }
        let refusal = Node::try_start(&dir, &small_levels()).expect_err("a level is older");
        refusal.assert_explains(&["is older than the node knows it", "put the newest file"]);
        for name in levels {
            copy(name, ".new", "");
        }
        let node = Node::start(&dir, &small_levels());
        for name in ["brake", "map"] {
            assert_holds(&node, name, Some(2));
        }
        node.stop();
    }
}

/// What `layby check` says of a node that is not sound.
fn check(dir: &Path) -> String {
    let outcome = layby(&["check", "--dir", &dir.to_string_lossy()]);
    assert!(!outcome.success, "{outcome:?}");
    format!("{}{}", outcome.stdout, outcome.stderr)
}

/// A node of two shards whose levels were lost, with nothing dirty in them; `--format` was cut
/// short once shard 0 had its parts.
struct HalfMade {
    _base: TempDir,
    dir: PathBuf,
}

const VOLUMES: [&str; 3] = ["brake", "map", "wide"];
const LEVELS: [(&str, u64); 2] = [("nvm", 16 << 20), ("ssd", 128 << 20)];

fn two_shards(words: &[&str]) -> Options {
    let levels = small_levels().config.expect("levels");
    let arguments = words.iter().map(|word| (*word).to_owned()).collect();
    Options { arguments, ..Options::config(format!("[node]\nshards = 2\n\n{levels}")) }
}

impl HalfMade {
    fn new() -> HalfMade {
        let base = TempDir::new().expect("a temporary folder");
        let dir = base.path().join("node");
        let node = Node::start(&dir, &two_shards(&[]));
        node.volume_create("brake", SIZE, "critical");
        node.volume_create("map", SIZE, "normal");
        node.layby(&["volume", "create", "wide", "--size", "8MiB", "--shards", "2"]);
        for name in VOLUMES {
            fill(&node, name, 1);
            node.layby(&["volume", "drain", name]);
        }
        node.stop();
        let made = HalfMade { _base: base, dir };
        LEVELS.iter().for_each(|(name, _)| drop(made.level(name, "away")));
        // Without levels all is served, and what they held is older than the backing stores.
        let node = Node::start(&made.dir, &two_shards(&[]));
        // It always has an intent.
        node.layby(&["volume", "accept-loss", "wide"]);
        VOLUMES.iter().for_each(|name| fill(&node, name, 2));
        node.stop();
        made.cut_short();
        made
    }

    /// Moves a level's file away, and answers where it is.
    fn level(&self, name: &str, end: &str) -> PathBuf {
        let (level, away) = (self.place(name), self.dir.join(format!("{name}.{end}")));
        fs::rename(level, &away).expect("the test's own folder");
        away
    }

    fn place(&self, name: &str) -> PathBuf {
        self.dir.join("levels").join(name)
    }

    /// The start ends right before it formats. Shard 0's parts are then as if it had: sound, and
    /// this node's.
    fn cut_short(&self) {
        let reached = self.dir.join("reached.json");
        fs::remove_file(&reached).expect("levels have come somewhere");
        fs::create_dir(&reached).expect("the test's own folder");
        let refusal =
            Node::try_start(&self.dir, &two_shards(&["--format"])).expect_err("in the way");
        refusal.assert_explains(&["no level was formatted"]);
        fs::remove_dir(&reached).expect("it is empty");
        for (name, bytes) in LEVELS {
            let whole = fs::read(self.dir.join(format!("{name}.away"))).expect("it was moved");
            let file = File::options().write(true).open(self.place(name)).expect("it was made");
            file.write_all_at(&whole[..bytes as usize / 2], 0).expect("there is room");
        }
    }

    /// The levels are whole, and hold nothing that they held before they were lost.
    fn assert_made(&self, node: Node) {
        let all = node.said();
        assert!(!all.contains("is lost"), "{all}");
        VOLUMES.iter().for_each(|name| assert_holds(&node, name, Some(2)));
        VOLUMES.iter().for_each(|name| fill(&node, name, 3));
        node.kill9();
        let node = Node::start(&self.dir, &two_shards(&[]));
        VOLUMES.iter().for_each(|name| assert_holds(&node, name, Some(3)));
        node.kill9();
        let refusal = Node::try_start(&self.dir, &two_shards(&["--format"])).expect_err("it ran");
        refusal.assert_explains(&["has run"]);
    }
}

/// Goal: levels whose making anew was cut short are finished by the next start, and never made anew
/// once they may hold dirty blocks. Method: one shard's parts are made and the other's are not; a
/// check, then a start with `--format`, without, and one that is strict; writes, a kill.
#[test]
fn a_format_that_was_cut_short_is_finished() {
    for words in [&["--format"][..], &[], &["--strict"]] {
        let made = HalfMade::new();
        let outcome = layby(&["check", "--dir", &made.dir.to_string_lossy()]);
        assert!(outcome.success, "{outcome:?}");
        let node = Node::start(&made.dir, &two_shards(words));
        assert!(node.said().contains("made anew"), "{}", node.said());
        made.assert_made(node);
    }
}

/// Goal: where such a start cannot finish the levels, or they may hold dirty blocks, the volumes
/// are served as without levels, and no level is touched. Method: a level's place is taken by
/// foreign data; then the intents are damaged: all volumes wait, and are given up.
#[test]
fn a_format_that_cannot_be_finished_costs_no_volume() {
    let made = HalfMade::new();
    let half = made.level("ssd", "half");
    fs::write(made.place("ssd"), "a file system").expect("the test's own folder");
    let node = Node::start(&made.dir, &two_shards(&[]));
    assert!(node.said().contains("holds data"), "{}", node.said());
    VOLUMES.iter().for_each(|name| assert_holds(&node, name, Some(2)));
    node.kill9();
    let refusal = Node::try_start(&made.dir, &two_shards(&["--strict"])).expect_err("strict");
    refusal.assert_explains(&["holds data"]);
    fs::rename(&half, made.place("ssd")).expect("the test's own folder");
    fs::write(made.dir.join("intents.json"), "{").expect("the test's own folder");
    let refusal = Node::try_start(&made.dir, &two_shards(&["--format"])).expect_err("who knows");
    refusal.assert_explains(&["may hold dirty blocks"]);
    let node = Node::start(&made.dir, &two_shards(&[]));
    // The volume that a node begins with waits, too.
    for name in VOLUMES.iter().chain(&["vol0"]) {
        assert_waits(&node, name, "`ssd`");
        node.layby(&["volume", "accept-loss", name]);
    }
    VOLUMES.iter().for_each(|name| assert_holds(&node, name, Some(2)));
    node.stop();
    made.assert_made(Node::start(&made.dir, &two_shards(&[])));
}

/// Goal: a level that was made another time than the node knows is refused, and the refusal says
/// what it may be and how to accept it. Method: all levels made anew behind the node's back, as an
/// earlier build does, by what it knows from before; a check, a start, and one that accepts them.
#[test]
fn a_level_made_another_time_is_named() {
    let base = TempDir::new().expect("a temporary folder");
    let dir = base.path().join("node");
    let node = Node::start(&dir, &small_levels());
    node.volume_create("map", SIZE, "normal");
    fill(&node, "map", 1);
    node.layby(&["volume", "drain", "map"]);
    node.stop();
    let (reached, before) = (dir.join("reached.json"), dir.join("reached.before"));
    fs::copy(&reached, &before).expect("the test's own folder");
    for name in ["nvm", "ssd"] {
        fs::remove_file(dir.join("levels").join(name)).expect("the test's own folder");
    }
    let format = Options { arguments: vec!["--format".into()], ..small_levels() };
    let node = Node::start(&dir, &format);
    fill(&node, "map", 2);
    node.stop();
    let copy = dir.join("reached.copy.json");
    fs::copy(&before, &copy).expect("the test's own folder");
    fs::rename(&before, &reached).expect("the test's own folder");
    let said = check(&dir);
    assert!(said.contains("levels/ssd` at byte 0: made another time"), "{said}");
    let refusal = Node::try_start(&dir, &small_levels()).expect_err("it is not the level");
    refusal.assert_explains(&["made another time", "earlier build", "remove `reached.json` and"]);
    assert!(!refusal.stderr.contains("is older"), "{}", refusal.stderr);
    [reached, copy].iter().for_each(|path| fs::remove_file(path).expect("it is there"));
    assert_holds(&Node::start(&dir, &small_levels()), "map", Some(2));
}
