//! Starts that were refused or cut short, and mistakes that were corrected: the next start serves.
//!
//! How: a configuration with a fault, a file as a kill leaves it, a catalog that cannot be written;
//! then the fault is taken away and the node must come up with all it had.
//! Invariant: what a refusal says of the data's state is what the next start finds.
//! Not for: damage of levels, see `damage.rs`; kills under load, see `crash.rs`.

use layby_tests::{Connection, Node, Options, Request, binary, layby, must};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const LEVELS: &str = "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\
                      [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n";
const NVM: &str = "[[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"16MiB\"\n";
/// For a shell; levels are shorter, and 1 GiB is longer.
const FILE_LIMIT: &str = "-f 200000";
const A: &str = "[volume.a]\nsize = \"4MiB\"\n";

fn place() -> (TempDir, PathBuf) {
    let base = TempDir::new().expect("a temporary folder");
    let dir = base.path().join("node");
    (base, dir)
}

fn options(volumes: &str) -> Options {
    Options::config(format!("{LEVELS}{volumes}"))
}

fn started(dir: &Path, volumes: &str) -> Node {
    Node::start(dir, &options(volumes))
}

#[track_caller]
fn refused(dir: &Path, volumes: &str, words: &[&str]) -> String {
    let refusal = Node::try_start(dir, &options(volumes)).expect_err("it has a fault");
    refusal.assert_explains(words);
    refusal.stderr
}

fn write(node: &Node, name: &str) {
    let mut connection = Connection::open(&node.socket(), name).expect("it is served");
    let write = Request::Write { offset: 0, data: vec![7; 4096], fua: true };
    connection.call(&write).expect("it serves").expect("a sound disk");
}

#[track_caller]
fn assert_holds(node: &Node, name: &str) {
    let mut connection = Connection::open(&node.socket(), name).expect("it is served");
    let read = Request::Read { offset: 0, length: 4096 };
    assert_eq!(connection.call(&read).expect("it serves").expect("a sound disk"), [7; 4096]);
}

/// A node under limits that a shell sets; a file that grows past its limit is an error then.
fn limited(dir: &Path, text: &str, limit: &str) -> Result<Node, layby_tests::Refusal> {
    let config = dir.with_extension("toml");
    fs::write(&config, text).expect("the test's own folder");
    let mut command = Command::new("sh");
    let script = format!("trap '' XFSZ; ulimit {limit}; exec \"$@\"");
    command.args(["-c", &script, "sh"]).arg(binary()).arg("serve");
    command.arg("--dir").arg(dir).arg("--config").arg(&config);
    Node::spawn(command, dir)
}

/// Goal: a first start that made a volume and could not make another one is finished by the next,
/// corrected one, and by one that was killed between a file and its length. Method: a path in no
/// folder; the file of the volume that was made is whole, or empty.
#[test]
fn a_first_start_is_finished() {
    for is_cut in [false, true] {
        let (_base, dir) = place();
        let wrong = format!("{A}[volume.b]\nsize = \"1MiB\"\npath = \"no/such/folder\"\n");
        refused(&dir, &wrong, &["volume `b`", "no/such/folder"]);
        if is_cut {
            fs::write(dir.join("volumes/a"), b"").expect("the test's own folder");
        }
        let node = started(&dir, A);
        write(&node, "a");
        node.kill9();
        assert_holds(&started(&dir, A), "a");
    }
}

/// Goal: a new volume of an existing node whose path is wrong costs that start only. Method: the
/// path corrected, and the table taken away; what the node had is there.
#[test]
fn a_wrong_path_can_be_corrected() {
    for is_kept in [true, false] {
        let (_base, dir) = place();
        let node = started(&dir, A);
        write(&node, "a");
        node.stop();
        let b = "[volume.b]\nsize = \"1MiB\"\npath = \"no/such/folder\"\n";
        for _ in 0..2 {
            refused(&dir, &format!("{A}{b}"), &["volume `b`", "never served"]);
        }
        let b = if is_kept { b.replace("no/such/folder", "b.img") } else { String::new() };
        let node = started(&dir, &format!("{A}{b}"));
        assert_holds(&node, "a");
        assert_eq!(node.serves("b"), is_kept);
    }
}

/// A node that was killed while a command made volume `b` in `disk/b`, beside `a`, which holds
/// data. What is at the place of `b` is as the creation left it. It may have been served all the
/// same, where the catalog could not say so any more.
struct CutOff {
    base: TempDir,
    options: Options,
}

impl CutOff {
    /// One that nobody was served.
    fn new(shards: u8) -> CutOff {
        CutOff::with(shards, false)
    }

    /// One of which a client was promised a block.
    fn served(shards: u8) -> CutOff {
        CutOff::with(shards, true)
    }

    fn with(shards: u8, is_served: bool) -> CutOff {
        let base = TempDir::new().expect("a temporary folder");
        let disk = base.path().join("disk");
        fs::create_dir(&disk).expect("the test's own folder");
        let node = format!("[node]\nshards = {shards}\nvolume_roots = [{:?}]\n", base.path());
        let ssd = LEVELS.rfind("[[level]]").expect("the last level");
        let (memory, ssd) = LEVELS.split_at(ssd);
        let config = format!("{node}{memory}{NVM}{ssd}{A}");
        let cut = CutOff { base, options: Options::config(config) };
        let node = cut.start();
        write(&node, "a");
        let intents = fs::read(cut.dir().join("intents.json")).expect("`a` is written to");
        let (path, shards) = (disk.join("b"), shards.to_string());
        let words = ["volume", "create", "b", "--size", "1GiB", "--shards", &shards, "--path"];
        node.layby(&[&words[..], &[&path.to_string_lossy()]].concat());
        if is_served {
            write(&node, "b");
        }
        node.kill9();
        if !is_served {
            // A volume over several shards has an intent once its file is made.
            fs::write(cut.dir().join("intents.json"), intents).expect("the test's own folder");
        }
        // The catalog before the last is that of a creation which has not come to its end.
        let [before, last] = ["catalog.json.new", "catalog.last"].map(|name| cut.dir().join(name));
        let text = fs::read_to_string(&before).expect("the catalog before the last");
        assert!(text.contains("\"creating\""), "{text}");
        fs::rename(&before, cut.dir().join("catalog.json")).expect("the test's own folder");
        fs::remove_file(last).expect("it names the last catalog");
        cut
    }

    fn dir(&self) -> PathBuf {
        self.base.path().join("node")
    }

    fn start(&self) -> Node {
        Node::start(&self.dir(), &self.options)
    }

    fn disk(&self) -> PathBuf {
        self.base.path().join("disk")
    }

    /// Takes the disk away; an empty folder may be left, to which it was mounted.
    fn unmount(&self, is_empty: bool) {
        fs::rename(self.disk(), self.base.path().join("away")).expect("the test's own folder");
        if is_empty {
            fs::create_dir(self.disk()).expect("the test's own folder");
        }
    }

    /// Brings it back, where nothing was made in its place.
    #[track_caller]
    fn mount(&self) {
        if self.disk().exists() {
            fs::remove_dir(self.disk()).expect("nothing is made");
        }
        fs::rename(self.base.path().join("away"), self.disk()).expect("the test's own folder");
    }

    /// A start that must be refused, since it is strict.
    #[track_caller]
    fn assert_refused_strictly(&self) {
        let arguments = vec!["--strict".to_owned()];
        let config = self.options.config.clone().expect("it has one");
        let strict = Options { arguments, ..Options::config(config) };
        let refusal = Node::try_start(&self.dir(), &strict).expect_err("it is strict");
        refusal.assert_explains(&["home of volume `b`", "disk/b"]);
    }

    /// A command that must be refused.
    #[track_caller]
    fn assert_refused(&self, command: &[&str], words: &[&str]) {
        let dir = self.dir().to_string_lossy().into_owned();
        layby(&[command, &["--dir", &dir]].concat()).assert_explains(words);
    }

    #[track_caller]
    fn assert_waits(&self, node: &Node) {
        assert_holds(node, "a");
        assert!(!node.serves("b"), "`b` is served");
        let said = node.said();
        assert!(said.contains("volume `b` is not served") && said.contains("disk/b"), "{said}");
        assert!(node.layby(&["volume", "list"]).contains("volume b is not served"));
        assert!(node.layby(&["status"]).contains("volume `b` is not served"));
        assert!(node.stderr().contains("disk/b"), "{}", node.stderr());
    }
}

/// What takes the place of a file that a creation made, and what is there again later.
type Change = (fn(&Path), fn(&Path));

/// The folder is gone; a device is gone; what is there is no file. All before there was any data.
const GONE: [Change; 3] = [
    (|disk| fs::remove_dir_all(disk).expect("ours"), |disk| fs::create_dir(disk).expect("ours")),
    (
        |disk| {
            fs::remove_file(disk.join("b")).expect("it was made");
            symlink("/dev/layby-test-no-device", disk.join("b")).expect("ours");
        },
        |disk| fs::remove_file(disk.join("b")).expect("a link"),
    ),
    (
        |disk| {
            fs::remove_file(disk.join("b")).expect("it was made");
            must("mkfifo", &[&disk.join("b").to_string_lossy()]);
        },
        |disk| fs::remove_file(disk.join("b")).expect("a pipe"),
    ),
];

/// Goal: a volume whose creation was cut off, and whose place is gone, holds up no start: it waits,
/// is named, nothing is made, and it is made once its place is there. Method: a kill between the
/// two catalogs of a creation; its folder gone, a link to a device that is gone, a pipe; a start
/// that is strict, two that are not, with a stop and a kill between; the place back. On one shard
/// and on two.
#[test]
fn a_creation_that_was_cut_off_waits_for_its_place() {
    for ((go, come), shards) in GONE.into_iter().flat_map(|change| [(change, 1), (change, 2)]) {
        let cut = CutOff::new(shards);
        go(&cut.disk());
        cut.assert_refused_strictly();
        let node = cut.start();
        cut.assert_waits(&node);
        let set = ["volume", "set", "b", "--class", "bulk"];
        cut.assert_refused(
            &set,
            &["volume `b` is not served", "disk/b", "hint: attach its device"],
        );
        node.stop();
        let node = cut.start();
        cut.assert_waits(&node);
        node.kill9();
        assert!(!cut.disk().join("b").is_file(), "nothing is made");
        come(&cut.disk());
        let node = cut.start();
        assert!(!node.said().contains("not served"), "{}", node.said());
        write(&node, "b");
        node.kill9();
        let node = cut.start();
        assert_holds(&node, "a");
        assert_holds(&node, "b");
    }
}

/// Goal: what a client was promised of a volume whose creation the catalog knows as cut off is kept
/// while its disk is away: nothing is made in its place, and neither a deletion nor a drain passes
/// over it. Method: a block, a kill; its folder gone, and an empty one in its place, as where a
/// disk is not mounted; a strict start, two others with a kill between; the disk back. On one shard
/// and on two.
#[test]
fn a_served_volume_is_never_made_anew() {
    for (is_empty, shards) in [(false, 1), (false, 2), (true, 1), (true, 2)] {
        let cut = CutOff::served(shards);
        cut.unmount(is_empty);
        cut.assert_refused_strictly();
        for _ in 0..2 {
            let node = cut.start();
            cut.assert_waits(&node);
            cut.assert_refused(&["volume", "delete", "b"], &["newest blocks of it", "disk/b"]);
            cut.assert_refused(&["volume", "drain"], &["volume `b` is not served", "disk/b"]);
            node.kill9();
        }
        cut.mount();
        let node = cut.start();
        assert_holds(&node, "b");
        node.layby(&["volume", "drain"]);
        node.stop();
        assert_holds(&cut.start(), "b");
    }
}

/// Goal: nor is it made anew where a level is lost, too, whose other levels hold that block: it
/// waits. Method: the same with an empty folder, without the NVM level; then both are back.
#[test]
fn a_served_volume_is_not_made_anew_without_a_level() {
    for shards in [1, 2] {
        let cut = CutOff::served(shards);
        let [nvm, away] = ["levels/nvm", "nvm.away"].map(|name| cut.dir().join(name));
        fs::rename(&nvm, &away).expect("the test's own folder");
        cut.unmount(true);
        let node = cut.start();
        assert_holds(&node, "a");
        assert!(!node.serves("b"), "`b` is served");
        let said = node.said();
        assert!(said.contains("blocks could not be written back"), "{said}");
        cut.assert_refused(&["volume", "delete", "b"], &["accept-loss"]);
        cut.assert_refused(&["volume", "accept-loss", "b"], &["disk/b"]);
        node.kill9();
        cut.mount();
        fs::rename(&away, &nvm).expect("the test's own folder");
        let node = cut.start();
        assert_holds(&node, "a");
        assert_holds(&node, "b");
    }
}

/// Goal: what keeps such a volume from being made is said with its own remedy. Method: a limit on
/// the length of files; a file with data that is too short; then neither.
#[test]
fn a_creation_that_was_cut_off_says_what_it_lacks() {
    for shards in [1, 2] {
        let cut = CutOff::new(shards);
        let (b, set) = (cut.disk().join("b"), ["volume", "set", "b", "--class", "bulk"]);
        fs::remove_file(&b).expect("it was made");
        let config = cut.options.config.clone().expect("it has one");
        let node = limited(&cut.dir(), &config, FILE_LIMIT).expect("it holds up no start");
        cut.assert_waits(&node);
        cut.assert_refused(&set, &["disk/b", "hint: make room"]);
        node.stop();
        fs::write(&b, [7; 4096]).expect("the test's own folder");
        let node = cut.start();
        cut.assert_waits(&node);
        cut.assert_refused(&set, &["disk/b", "hint: put the whole file back"]);
        node.stop();
        fs::remove_file(&b).expect("it is there");
        write(&cut.start(), "b");
    }
}

/// Goal: such a volume can be deleted, and its name is free. Method: the same, a deletion, and the
/// name again, in another place, over a kill.
#[test]
fn a_creation_that_was_cut_off_can_be_deleted() {
    for ((go, _), shards) in GONE.into_iter().flat_map(|change| [(change, 1), (change, 2)]) {
        let cut = CutOff::new(shards);
        go(&cut.disk());
        let node = cut.start();
        node.layby(&["volume", "delete", "b"]);
        assert!(!node.layby(&["volume", "list"]).contains("not served"));
        node.volume_create("b", "1MiB", "normal");
        write(&node, "b");
        node.kill9();
        let node = cut.start();
        assert!(!node.said().contains("not served"), "{}", node.said());
        assert_holds(&node, "a");
        assert_holds(&node, "b");
    }
}

/// Goal: a size that a volume's home cannot take is not the volume's. Method: a limit on the length
/// of files; then the old size again.
#[test]
fn a_wrong_size_can_be_set_back() {
    let (_base, dir) = place();
    let node = started(&dir, A);
    write(&node, "a");
    node.stop();
    let long = A.replace("4MiB", "1GiB");
    let refusal = limited(&dir, &format!("{LEVELS}{long}"), FILE_LIMIT);
    let refusal = refusal.expect_err("a file cannot be so long");
    refusal.assert_explains(&["volume `a`", "has its 4MiB"]);
    assert_holds(&started(&dir, A), "a");
}

/// Goal: a home is not cut before the catalog knows. Method: a catalog that cannot be written, a
/// kill; then a shrink that works, and one whose home stays longer.
#[test]
fn a_shrink_that_breaks_off_keeps_its_home() {
    let (_base, dir) = place();
    let node = started(&dir, A);
    write(&node, "a");
    let staged = dir.join("catalog.json.new");
    fs::remove_file(&staged).expect("the catalog before the last");
    fs::create_dir(&staged).expect("the test's own folder");
    let place = dir.to_string_lossy().into_owned();
    let shrink = ["volume", "resize", "a", "--size", "1MiB", "--shrink", "--dir", &place];
    assert!(!layby(&shrink).success, "the catalog cannot be written");
    node.kill9();
    fs::remove_dir(&staged).expect("it is empty");
    let node = started(&dir, A);
    assert_holds(&node, "a");
    let outcome = layby(&shrink);
    assert!(outcome.success, "{outcome:?}");
    let home = dir.join("volumes/a");
    let length = || fs::metadata(&home).expect("it is there").len();
    assert_eq!(length(), 1 << 20);
    node.stop();
    let file = fs::OpenOptions::new().write(true).open(&home).expect("the test's own file");
    file.set_len(4 << 20).expect("there is room");
    assert_holds(&started(&dir, A), "a");
}

/// Goal: a deleted volume whose table is still there costs no start and does not come back, and the
/// command says so. Method: deleted with its data, and without; the table edited afterwards.
#[test]
fn a_deleted_volume_of_the_configuration_stays_deleted() {
    for data in ["keep", "delete"] {
        let (_base, dir) = place();
        let both = format!("{A}[volume.b]\nsize = \"1MiB\"\n");
        let node = started(&dir, &both);
        let said = node.layby(&["volume", "delete", "a", "--data", data]);
        assert!(said.contains("`[volume.a]`"), "{said}");
        node.stop();
        let node = started(&dir, &both);
        assert!(node.said().contains("volume `a` was deleted"), "{}", node.said());
        assert!(!node.serves("a"));
        node.stop();
        let node = started(&dir, &both.replace("4MiB", "2MiB"));
        assert_eq!(node.serves("a"), data == "delete");
    }
}

/// Goal: a memory level that there is no memory for is an error with its remedy, before anything is
/// made, and again when a node's memory has become less. Method: a level of 4 TiB, which is then
/// corrected; a limit on the process.
#[test]
fn too_little_memory_is_explained() {
    let (_base, dir) = place();
    let config = |size: &str| Options::config(LEVELS.replace("8MiB", size));
    let refusal = Node::try_start(&dir, &config("4TiB")).expect_err("nobody has so much");
    refusal.assert_explains(&["memory level `dram`"]);
    assert_eq!(refusal.code, Some(8), "{}", refusal.stderr);
    assert!(!dir.join("catalog.json").exists() && !dir.join("levels").exists());
    Node::start(&dir, &config("8MiB")).stop();
    let (_base, dir) = place();
    Node::start(&dir, &config("2GiB")).stop();
    let levels = LEVELS.replace("8MiB", "2GiB");
    let limited = {
        let file = dir.with_extension("toml");
        fs::write(&file, levels).expect("the test's own folder");
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 2000000; exec \"$@\"", "sh"]).arg(binary());
        command.arg("serve").arg("--dir").arg(&dir).arg("--config").arg(&file);
        Node::spawn(command, &dir)
    };
    let refusal = limited.expect_err("the process may not have so much");
    refusal.assert_explains(&["memory level `dram`", "for life"]);
    assert_eq!(refusal.code, Some(8), "{}", refusal.stderr);
}

/// Goal: a TLS file that is missing is heard of before a node is made. Method: a wrong name.
#[test]
fn tls_files_come_first() {
    let (_base, dir) = place();
    let tls = "[nbd]\ntls = \"allowed\"\ntls_certificate = \"none.pem\"\ntls_key = \"none.key\"\n";
    refused(&dir, tls, &["none.pem", "nothing was started"]);
    assert!(!dir.join("catalog.json").exists());
}
