//! Stores whose answers would take more memory than a node has, through the binary.
//!
//! How: a store of a few lines (`lax.rs`) that answers as a broken proxy or gateway does.
//! Invariant: such an answer is a fault of its request; what needs no such answer goes on.
//! Not for: damaged objects of a sane length, see `damage.rs`.

use layby_tests::{Connection, LaxStore, Node, Options, Request, S3Server, layby};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

const BLOCK: usize = 4096;
const URL: &str = "s3://layby/maps";
const CREATE: [&str; 7] = ["volume", "create", "maps", "--size", "8MiB", "--path", URL];
const WORDS: &str = "are the most";
/// Answers of a portal until its fault is told at most.
const ANSWERS_MAX: u64 = 60;

/// A store and a node with volume `maps` in it, and `near` in a file.
struct Setup {
    store: LaxStore,
    folder: TempDir,
}

impl Setup {
    fn new() -> Setup {
        Setup { store: LaxStore::start(), folder: TempDir::new().expect("a temporary folder") }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("node")
    }

    fn start(&self) -> Node {
        let config = "[node]\nshards = 1\n\n[cloud]\njournal = \"96MiB\"\ndirty_age = \"200ms\"\n\
             conditional_puts = \"optional\"\n\n\
             [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"16MiB\"\n\n\
             [volume.near]\nsize = \"8MiB\"\n";
        let options = Options::with_store(config, &self.store.endpoint());
        Node::start(&self.dir(), &options)
    }

    /// Starts the node, whose volume `maps` is made, and has a block in the store.
    fn start_with_maps(&self) -> Node {
        let node = self.start();
        let made = self.ask(&CREATE);
        assert!(made.success, "{}", made.stderr);
        write(&node, "maps", 7);
        node.layby(&["volume", "drain", "maps"]);
        node
    }

    fn ask(&self, words: &[&str]) -> layby_tests::Outcome {
        layby(&[words, &["--dir", &self.dir().to_string_lossy()]].concat())
    }

    /// Runs the program with nothing but the store's address; its exit code, none after a signal,
    /// and what it says.
    fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(layby_tests::binary());
        command.args(words).envs(S3Server::environment(&self.store.endpoint()));
        let done = command.output().expect("the program runs");
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    }
}

fn write(node: &Node, volume: &str, value: u8) {
    let mut client = Connection::open(&node.socket(), volume).expect("the node serves it");
    let write = Request::Write { offset: 0, data: vec![value; BLOCK], fua: true };
    client.call(&write).expect("the node serves it").expect("a write");
}

fn read(node: &Node, volume: &str) -> Vec<u8> {
    let mut client = Connection::open(&node.socket(), volume).expect("the node serves it");
    let read = Request::Read { offset: 0, length: BLOCK as u32 };
    client.call(&read).expect("the node serves it").expect("a read")
}

/// Goal: an answer that says it is longer than all memory, or an error's that never ends, ends no
/// process: the node starts, serves its other volumes, and this one again with a sane store;
/// `restore` says what is wrong. Method: a superblock of a petabyte, and an error without an end
/// in its place; a node that is started meanwhile, which asks for it; restores.
#[test]
fn an_endless_answer_is_a_fault_of_its_request() {
    let setup = Setup::new();
    let node = setup.start_with_maps();
    node.stop();
    for length in [Some(1_000_000_000_000_000), None] {
        setup.store.boast("superblock", length);
        let image = setup.folder.path().join("image");
        let image = image.to_string_lossy();
        let (code, said) = setup.run(&["restore", URL, &image]);
        assert!(code.is_some_and(|code| code != 0), "{code:?}: {said}");
        assert!(said.contains(WORDS), "{said}");
        let asked = setup.store.boasted();
        let node = setup.start();
        setup.store.wait_boasted(asked + 2);
        write(&node, "near", 8);
        assert_eq!(read(&node, "near"), vec![8; BLOCK]);
        setup.store.be_sane();
        node.layby(&["volume", "drain", "maps"]);
        assert_eq!(read(&node, "maps"), vec![7; BLOCK]);
        node.stop();
    }
}

/// Goal: a store that names one page of its objects over and over is an error that is named, asked
/// few times, and no end of the deletion. Method: such a store while a volume is deleted at once;
/// pages are counted.
#[test]
fn a_store_that_repeats_its_pages_is_an_error() {
    let setup = Setup::new();
    let node = setup.start_with_maps();
    setup.store.repeat_pages(true);
    let before = setup.store.lists();
    let deleted = setup.ask(&["volume", "delete", "maps", "--data", "now"]);
    let lists = setup.store.lists() - before;
    assert!(lists < 200, "{lists} pages were asked for");
    assert!(deleted.stderr.contains("names the same page"), "{deleted:?}");
    node.stop();
}

/// Goal: an emulator of Google's store needs no credentials, and no service is asked for any.
/// Method: a store that knows none, as `STORAGE_EMULATOR_HOST` names it: a volume that is created,
/// written, drained and restored. Asking the machine's metadata service would take the command's
/// time, or fail.
#[test]
fn an_emulator_needs_no_credentials() {
    const URL: &str = "gs://layby/maps";
    let setup = Setup::new();
    let environment = vec![("STORAGE_EMULATOR_HOST".to_owned(), setup.store.endpoint())];
    let config = "[cloud]\nconditional_puts = \"optional\"\n";
    let options = Options { environment: environment.clone(), ..Options::config(config) };
    let node = Node::start(&setup.dir(), &options);
    node.layby(&["volume", "create", "maps", "--size", "8MiB", "--path", URL]);
    write(&node, "maps", 7);
    node.layby(&["volume", "drain", "maps"]);
    let image = setup.folder.path().join("image");
    let mut restore = Command::new(layby_tests::binary());
    restore.args(["restore", URL, &image.to_string_lossy()]).envs(environment);
    let done = restore.output().expect("the program runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(std::fs::read(&image).expect("it was made")[..BLOCK], vec![7; BLOCK]);
    node.stop();
}

/// Goal: a network that answers in the store's place, with a page or with a redirect to one, is a
/// fault that `volume show` names: nothing that it took counts as stored, no redirect is followed,
/// and the volume goes on once the store answers again. Method: such answers while a block is
/// uploaded, its drain, then a restore of what the store has.
#[test]
fn a_portal_is_no_store() {
    let setup = Setup::new();
    let node = setup.start_with_maps();
    for (value, status, words) in [(8, 200, "page in HTML"), (9, 303, "redirect")] {
        let answered = setup.store.boasted();
        setup.store.be_portal(status);
        write(&node, "maps", value);
        // One request may be tried several times before its fault is told.
        let is_shown = (1..=ANSWERS_MAX).any(|count| {
            setup.store.wait_boasted(answered + count);
            setup.ask(&["volume", "show", "maps"]).stdout.contains(words)
        });
        setup.store.be_portal(0);
        assert!(is_shown, "no `{words}` in {:?}", setup.ask(&["volume", "show", "maps"]));
        node.layby(&["volume", "drain", "maps"]);
        let image = setup.folder.path().join(format!("{status}"));
        let (code, said) = setup.run(&["restore", URL, &image.to_string_lossy()]);
        assert_eq!(code, Some(0), "{said}");
        let restored = std::fs::read(&image).expect("it was made");
        assert_eq!(restored[..BLOCK], vec![value; BLOCK]);
        assert_eq!(read(&node, "maps"), vec![value; BLOCK]);
    }
    assert_eq!(setup.store.followed(), 0);
    node.stop();
}
