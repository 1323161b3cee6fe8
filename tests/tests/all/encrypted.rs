//! Encrypted levels through the binary: what lies on the device, who opens it, and how a level
//! becomes encrypted.
//!
//! How: a volume on an SSD level gets blocks of a pattern that nothing else writes; the level's
//! file is searched for it by the bytes. The backing store, which the level's key does not concern,
//! is not.
//! Not for: kills and power cuts of encrypted levels; see `crash`.

use layby_tests::{Connection, Node, Options, Outcome, Request, layby};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use tempfile::TempDir;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;
/// What each block holds again and again; a cipher's block is as long.
const PATTERN: &[u8; 16] = b"clear text here!";

struct Site {
    work: TempDir,
}

impl Site {
    fn new() -> Site {
        let site = Site { work: TempDir::new().expect("a temporary folder") };
        site.put_key("one", "1f");
        site.put_key("other", "2f");
        site
    }

    fn dir(&self) -> PathBuf {
        self.work.path().join("node")
    }

    fn put_key(&self, name: &str, pair: &str) {
        let path = self.work.path().join(name);
        std::fs::write(&path, pair.repeat(32)).expect("the test's own folder");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("the test's own file");
    }

    fn rename_key(&self, from: &str, to: &str) {
        let path = |name| self.work.path().join(name);
        std::fs::rename(path(from), path(to)).expect("the test's own file");
    }

    /// Moves the level's file to `level` in the test's folder, and answers where it was.
    fn take_level(&self) -> PathBuf {
        let level = self.dir().join("levels/ssd");
        std::fs::rename(&level, self.work.path().join("level")).expect("the node's own file");
        level
    }

    /// Options of a node with an SSD level that has these lines, in which `@NAME` is a key's file.
    fn options(&self, keys: &str) -> Options {
        let keys = keys.replace('@', &format!("file:{}/", self.work.path().display()));
        Options::config(format!(
            "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
             [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n\
             preallocation = \"falloc\"\n{keys}\n"
        ))
    }

    fn start(&self, keys: &str) -> Node {
        Node::start(&self.dir(), &self.options(keys))
    }

    /// What a start that is refused says, and its exit code; it must leave all that is in the
    /// folder as it was.
    #[track_caller]
    fn assert_refused(&self, code: i32, keys: &str, words: &[&str]) {
        let before = self.contents();
        let refusal = Node::try_start(&self.dir(), &self.options(keys)).expect_err("it starts");
        refusal.assert_explains(words);
        assert_eq!(refusal.code, Some(code), "{}", refusal.stderr);
        for pair in ["1f", "2f"] {
            assert!(!refusal.stderr.contains(&pair.repeat(8)), "a key: {}", refusal.stderr);
        }
        assert!(before == self.contents(), "a refused start writes nothing");
    }

    /// Level and catalog, by the byte.
    fn contents(&self) -> [Vec<u8>; 2] {
        let read = |name| std::fs::read(self.dir().join(name)).expect("the node wrote it");
        [read("levels/ssd"), read("catalog.json")]
    }

    fn check(&self, words: &[&str]) -> Outcome {
        layby(&[&["check", "--dir", &self.dir().to_string_lossy()], words].concat())
    }

    /// Whether the level's file holds these bytes anywhere.
    fn level_holds(&self, bytes: &[u8]) -> bool {
        let [level, _] = self.contents();
        level.windows(bytes.len()).any(|window| window == bytes)
    }
}

fn block(number: u64) -> Vec<u8> {
    let mut bytes = PATTERN.repeat(BLOCK / PATTERN.len());
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

#[track_caller]
fn ask(connection: &mut Connection, request: &Request) -> Vec<u8> {
    connection.call(request).expect("the node serves").expect("no error")
}

/// Writes the pattern to a new volume and flushes, so that the level has it.
fn write_all(node: &Node) {
    create(node, "maps");
    write(node, "maps");
}

fn create(node: &Node, name: &str) {
    node.volume_create(name, &(BLOCKS * BLOCK as u64).to_string(), "normal");
}

fn write(node: &Node, name: &str) {
    let mut connection = Connection::open(&node.socket(), name).expect("the node serves");
    for number in 0..BLOCKS {
        let (offset, data) = (number * BLOCK as u64, block(number));
        ask(&mut connection, &Request::Write { offset, data, fua: false });
    }
    ask(&mut connection, &Request::Flush);
}

#[track_caller]
fn assert_all(node: &Node) {
    assert_holds(node, "maps", block);
}

#[track_caller]
fn assert_holds(node: &Node, name: &str, block: impl Fn(u64) -> Vec<u8>) {
    let mut connection = Connection::open(&node.socket(), name).expect("the node serves");
    for number in 0..BLOCKS {
        let read = Request::Read { offset: number * BLOCK as u64, length: BLOCK as u32 };
        assert!(ask(&mut connection, &read) == block(number), "block {number} of {name}");
    }
}

/// Goal: an encrypted level's file holds no clear text, of blocks or of the level's structures, and
/// serves after a kill what it held; a plain one holds both, so that the test can fail. Method:
/// blocks of a pattern, a kill, the file's bytes, `check --full`, a start that reads them.
#[test]
fn an_encrypted_level_holds_no_clear_text() {
    for (keys, is_clear) in [("", true), ("key = \"@one\"", false)] {
        let site = Site::new();
        let node = site.start(keys);
        let listed = node.layby(&["level", "list"]);
        for said in [node.said(), listed] {
            assert_eq!(said.contains("XTS-AES-256"), !is_clear, "{said}");
        }
        write_all(&node);
        node.kill9();
        for bytes in [&PATTERN[..], b"LAYBYLOG"] {
            assert_eq!(site.level_holds(bytes), is_clear, "{keys}");
        }
        let checked = site.check(&["--full"]);
        assert!(checked.success, "{}{}", checked.stdout, checked.stderr);
        let node = site.start(keys);
        assert_all(&node);
        node.stop();
        assert_eq!(site.level_holds(PATTERN), is_clear, "{keys}");
    }
}

/// Goal: without its key an encrypted level is neither served nor checked, and stays as it is; a
/// plain level is no encrypted one; the operator's key can be changed while the level stays, and
/// the old one opens nothing then. Method: starts and checks with each key; the level's bytes.
#[test]
fn a_level_opens_by_its_key_alone() {
    let site = Site::new();
    let node = site.start("key = \"@one\"");
    write_all(&node);
    node.kill9();
    site.assert_refused(2, "key = \"@other\"", &["level `ssd`", "another key", "key_previous"]);
    site.assert_refused(6, "key = \"@none\"", &["level `ssd`", "none"]);
    site.assert_refused(2, "", &["names no `key`", "--format"]);
    site.assert_refused(1, "key = \"command:exit 3\"", &["level `ssd`", "command"]);
    let node = site.start("key = \"@other\"\nkey_previous = \"@one\"");
    assert!(node.said().contains("key_previous"), "{}", node.said());
    assert_all(&node);
    node.kill9();
    site.assert_refused(2, "key = \"@one\"", &["another key"]);
    assert!(site.check(&[]).success);
    let other = site.work.path().join("other");
    std::fs::rename(&other, site.work.path().join("away")).expect("the test's own file");
    site.check(&[]).assert_explains(&["level `ssd`", "encrypted", "not known"]);
    let node = site.start("key = \"@away\"");
    assert_all(&node);
    node.stop();
    let plain = Site::new();
    plain.start("").stop();
    plain.assert_refused(2, "key = \"@one\"", &["made without encryption", "--format"]);
}

/// Goal: the way that a refusal names makes a plain level an encrypted one, and back, and no block
/// is lost. Method: a drain, a stop, the level's file removed, a start with `--format`.
#[test]
fn a_level_becomes_encrypted() {
    let site = Site::new();
    let node = site.start("");
    write_all(&node);
    node.kill9();
    for keys in ["key = \"@one\"", ""] {
        let node = if keys.is_empty() { site.start("key = \"@one\"") } else { site.start("") };
        node.layby(&["volume", "drain", "maps"]);
        node.stop();
        std::fs::remove_file(site.dir().join("levels/ssd")).expect("the node's own file");
        let format = vec!["--format".to_owned()];
        let options = Options { arguments: format, ..site.options(keys) };
        let node = Node::start(&site.dir(), &options);
        assert_all(&node);
        let mut connection = Connection::open(&node.socket(), "maps").expect("the node serves");
        let write = Request::Write { offset: 0, data: block(0), fua: false };
        ask(&mut connection, &write);
        ask(&mut connection, &Request::Flush);
        node.kill9();
        assert_eq!(site.level_holds(PATTERN), keys.is_empty());
        let checked = site.check(&["--full"]);
        assert!(checked.success, "{}{}", checked.stdout, checked.stderr);
    }
}

/// A killed node with an encrypted level, whose operator has lost the key: `maps` is dirty, `idle`
/// was drained, `fresh` was never written.
fn without_key() -> Site {
    let site = Site::new();
    let node = site.start("key = \"@one\"");
    create(&node, "idle");
    write(&node, "idle");
    node.layby(&["volume", "drain", "idle"]);
    create(&node, "fresh");
    write_all(&node);
    node.kill9();
    site.rename_key("one", "away");
    site.assert_refused(6, "key = \"@one\"", &["level `ssd`", "one", "move its file away"]);
    site
}

/// `maps` waits for the level, and nothing else does.
#[track_caller]
fn assert_waits(node: &Node) {
    let said = node.said();
    assert!(said.contains("cannot be unlocked") && said.contains("level `ssd` is lost"), "{said}");
    let line = said.lines().find(|line| line.contains("volume `maps` is not served"));
    assert!(line.is_some_and(|line| line.contains("`ssd`")), "{said}");
    assert!(!node.serves("maps") && node.serves("idle") && node.serves("fresh"));
}

/// Goal: where the operator's key is lost for good and the level's file removed or blank, the node
/// serves the volumes that had nothing dirty there and refuses the other by name, until its loss is
/// accepted; then the level is made anew with a new key. Nothing is written to the level meanwhile,
/// and a level that is there is refused without its key. Method: starts without the key, or with
/// another one; the level's file moved away, or zeroed; a check of all blocks.
#[test]
fn a_lost_key_costs_its_level_alone() {
    for (keys, is_blank) in [("key = \"@one\"", false), ("key = \"@other\"", true)] {
        let site = without_key();
        let level = site.take_level();
        if is_blank {
            let file = std::fs::File::create(&level).expect("the test's own folder");
            file.set_len(64 << 20).expect("a sparse file");
        }
        let format = |keys: &str| {
            let arguments = vec!["--format".to_owned()];
            Options { arguments, ..site.options(keys) }
        };
        let refusal = Node::try_start(&site.dir(), &format("key = \"@other\""));
        refusal.expect_err("a volume is dirty").assert_explains(&["`maps`", "accept-loss"]);
        let node = site.start(keys);
        assert_waits(&node);
        assert_holds(&node, "idle", block);
        assert_holds(&node, "fresh", |_| vec![0; BLOCK]);
        write(&node, "fresh");
        node.layby(&["volume", "accept-loss", "maps"]);
        assert_holds(&node, "maps", |_| vec![0; BLOCK]);
        write(&node, "maps");
        node.kill9();
        let left = std::fs::read(&level).unwrap_or_default();
        assert_eq!(level.exists(), is_blank);
        let check = layby(&["check", "--dir", &site.dir().to_string_lossy()]);
        let is_refused = check.stderr.contains("cannot check level");
        assert_eq!(is_refused, is_blank, "a lost level hides no other: {}", check.stderr);
        assert!(left.iter().all(|byte| *byte == 0), "a lost level is not written");
        let node = Node::start(&site.dir(), &format("key = \"@other\""));
        assert!(node.said().contains("XTS-AES-256"), "{}", node.said());
        let names = ["maps", "idle", "fresh"];
        names.iter().for_each(|name| assert_holds(&node, name, block));
        names.iter().for_each(|name| write(&node, name));
        node.kill9();
        assert!(!site.level_holds(PATTERN), "it is encrypted");
        let node = site.start("key = \"@other\"");
        names.iter().for_each(|name| assert_holds(&node, name, block));
        node.kill9();
        site.rename_key("away", "one");
        site.assert_refused(2, "key = \"@one\"", &["another key"]);
    }
}

/// Goal: an encrypted level that comes back while a node runs without it, or before its next start,
/// is neither read nor written without its key, and is whole once the key is found. Method: the
/// level's file moved away and back; its bytes; starts without the key and with it.
#[test]
fn a_level_that_comes_back_waits_for_its_key() {
    let site = without_key();
    let away = site.work.path().join("level");
    let level = site.take_level();
    let before = std::fs::read(&away).expect("it was moved there");
    let node = site.start("key = \"@one\"");
    assert_waits(&node);
    std::fs::rename(&away, &level).expect("the test's own folder");
    write(&node, "fresh");
    assert_holds(&node, "idle", block);
    node.stop();
    assert!(std::fs::read(&level).expect("it is back") == before, "it was written");
    for (code, keys) in [(6, "key = \"@one\""), (2, "key = \"@other\""), (2, "")] {
        site.assert_refused(code, keys, &["level `ssd`"]);
    }
    site.rename_key("away", "one");
    let node = site.start("key = \"@one\"");
    ["maps", "idle", "fresh"].iter().for_each(|name| assert_holds(&node, name, block));
}
