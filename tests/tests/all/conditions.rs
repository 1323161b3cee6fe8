//! Stores that ignore the conditions of puts, and stores that take none, through the binary.
//!
//! How: a store of a few lines (`lax.rs`) that answers as those do.

use layby_tests::{Connection, LaxStore, Node, Options, Request, layby};
use serde_json::Value;
use tempfile::TempDir;

const BLOCK: usize = 4096;
const URL: &str = "s3://layby/maps";

/// A folder for nodes that know the store, with more words in `[cloud]`.
struct Setup {
    store: LaxStore,
    folder: TempDir,
}

impl Setup {
    fn new() -> Setup {
        Setup { store: LaxStore::start(), folder: TempDir::new().expect("a temporary folder") }
    }

    fn start(&self, name: &str, more: &str) -> Node {
        let config = format!(
            "[node]\nshards = 1\n\n[cloud]\njournal = \"96MiB\"\ndirty_age = \"200ms\"\n{more}\n\
             [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"16MiB\"\n"
        );
        let options = Options::with_store(config, &self.store.endpoint());
        Node::start(&self.folder.path().join(name), &options)
    }

    fn ask(&self, name: &str, words: &[&str]) -> layby_tests::Outcome {
        let dir = self.folder.path().join(name);
        layby(&[words, &["--dir", &dir.to_string_lossy()]].concat())
    }
}

fn open(node: &Node) -> Connection {
    Connection::open(&node.socket(), "maps").expect("the node serves it")
}

const CREATE: [&str; 7] = ["volume", "create", "maps", "--size", "8MiB", "--path", URL];
const WEAK: &str = "conditional_puts = \"optional\"\n";

/// Goal: a store that ignores conditions is refused at creation, with the way out, and nothing of
/// the volume is left, here or there; where it is accepted, the volume is served and two nodes
/// never both have it. Method: one node without and two with the weaker mode; a take; what each
/// says.
#[test]
fn a_store_that_ignores_conditions_has_one_owner() {
    let setup = Setup::new();
    let strict = setup.start("strict", "");
    let refused = setup.ask("strict", &CREATE);
    refused.assert_explains(&["ignores the conditions of puts", "conditional_puts"]);
    assert_eq!(setup.store.keys(), Vec::<String>::new(), "the probe is gone");
    let list = setup.ask("strict", &["volume", "list", "--json"]).stdout;
    assert!(!list.contains("maps"), "{list}");
    strict.stop();
    let (one, two) = (setup.start("one", WEAK), setup.start("two", WEAK));
    let made = setup.ask("one", &CREATE);
    assert!(made.success, "{}", made.stderr);
    let mut client = open(&one);
    let data = vec![7; BLOCK];
    client.call(&Request::Write { offset: 0, data, fua: true }).unwrap().expect("a write");
    one.layby(&["volume", "drain", "maps"]);
    setup.ask("two", &CREATE).assert_explains(&["serves it", "--take"]);
    let taken = setup.ask("two", &["volume", "create", "maps", "--path", URL, "--take"]);
    assert!(taken.success, "{}", taken.stderr);
    let mut newer = open(&two);
    let read = Request::Read { offset: 0, length: BLOCK as u32 };
    assert_eq!(newer.call(&read).unwrap().expect("a read"), vec![7; BLOCK]);
    let data = vec![8; BLOCK];
    newer.call(&Request::Write { offset: 0, data, fua: true }).unwrap().expect("a write");
    two.layby(&["volume", "drain", "maps"]);
    // The old owner finds out by its next look or change, and reads nothing more.
    let dir = setup.folder.path().join("one");
    let lost = (0..3000).any(|_| {
        let shown = layby(&["volume", "show", "maps", "--json", "--dir", &dir.to_string_lossy()]);
        let shown: Value = serde_json::from_str(&shown.stdout).expect("it answers in JSON");
        shown["cloud"]["link"] == "lost"
    });
    assert!(lost, "two nodes have the volume");
    assert!(client.call(&read).unwrap().is_err(), "the old owner reads on");
    assert_eq!(newer.call(&read).unwrap().expect("a read"), vec![8; BLOCK]);
    one.kill9();
    two.stop();
}

/// Goal: a creation is done only when the store has the volume, and a drain only when it has all;
/// each says what the store said. Method: a store that refuses puts, before and after a creation.
#[test]
fn a_store_that_takes_no_put_is_no_success() {
    let setup = Setup::new();
    let node = setup.start("node", WEAK);
    setup.store.refuse_puts(403);
    let refused = setup.ask("node", &CREATE);
    refused.assert_explains(&["has not taken its superblock", "nothing was changed here"]);
    let list = setup.ask("node", &["volume", "list", "--json"]).stdout;
    assert!(!list.contains("maps"), "{list}");
    setup.store.refuse_puts(0);
    let made = setup.ask("node", &CREATE);
    assert!(made.success, "{}", made.stderr);
    assert!(setup.store.keys().contains(&"maps/superblock".to_owned()), "{:?}", setup.store.keys());
    setup.store.refuse_puts(501);
    let mut client = open(&node);
    let data = vec![7; BLOCK];
    client.call(&Request::Write { offset: 0, data, fua: true }).unwrap().expect("a write");
    let refused = setup.ask("node", &["volume", "drain", "maps"]);
    refused.assert_explains(&["has taken nothing for 30 s", "501", "in the journal only"]);
    setup.store.refuse_puts(0);
    node.layby(&["volume", "drain", "maps"]);
    node.stop();
}
