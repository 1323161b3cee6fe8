//! The whole life of a volume in an object store, and races for one, on whatever store there is.
//!
//! How: `LAYBY_STORE_URL` names a place whose credentials are in the environment, as a node finds
//! them; without it the tests' own store serves. `LAYBY_STORE_ROUNDS` says how often each race is
//! run, `LAYBY_STORE_CONDITIONS` what is asked of conditional puts. `cargo xtask stores` runs these
//! tests on the stores that others wrote.
//! Invariant: in each race one node has the volume in the end, and what it acknowledged is there.

use layby_tests::cloud::{BLOCK, BLOCKS, Client, VOLUME, verify_image};
use layby_tests::{Node, Options, Outcome, Request, S3Server, binary, layby};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// Rounds of each race unless more are asked for.
const ROUNDS: u32 = 2;
/// Questions to nodes at most, until they have found out what there is to find out.
const QUESTIONS_MAX: usize = 4000;

/// A place in a store, and a folder for nodes.
struct Site {
    folder: TempDir,
    url: String,
    environment: Vec<(String, String)>,
    _own: Option<S3Server>,
}

impl Site {
    /// None where there is neither a store that is named nor the tests' own.
    fn new() -> Option<Site> {
        let folder = TempDir::new().expect("a temporary folder");
        let part = folder.path().file_name().expect("it has a name").to_string_lossy();
        let part = part.trim_start_matches('.').to_lowercase();
        if let Ok(place) = std::env::var("LAYBY_STORE_URL") {
            let url = format!("{}/{part}", place.trim_end_matches('/'));
            return Some(Site { folder, url, environment: Vec::new(), _own: None });
        }
        let own = S3Server::start()?;
        let environment = Options::with_store("", &own.endpoint()).environment;
        let url = format!("s3://{}/{part}", S3Server::BUCKET);
        Some(Site { folder, url, environment, _own: Some(own) })
    }

    fn place(&self, volume: &str) -> String {
        format!("{}/{volume}", self.url)
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self, name: &str) -> Node {
        let conditions = std::env::var("LAYBY_STORE_CONDITIONS");
        let conditions =
            conditions.map_or(String::new(), |choice| format!("conditional_puts = \"{choice}\"\n"));
        let config = format!(
            "[node]\nshards = 1\n[cloud]\njournal = \"96MiB\"\ndirty_age = \"200ms\"\n{conditions}\
             [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"16MiB\"\n"
        );
        let environment = self.environment.clone();
        Node::start(&self.dir(name), &Options { environment, ..Options::config(config) })
    }

    /// Asks a node, whatever comes of it.
    fn ask(&self, node: &str, words: &[&str]) -> Outcome {
        layby(&[words, &["--dir", &self.dir(node).to_string_lossy()]].concat())
    }

    fn create(&self, node: &str, volume: &str) -> Outcome {
        let (size, place) = ((BLOCKS * BLOCK).to_string(), self.place(volume));
        self.ask(node, &["volume", "create", volume, "--size", &size, "--path", &place])
    }

    fn take(&self, node: &str, volume: &str) -> Outcome {
        self.ask(node, &["volume", "create", volume, "--path", &self.place(volume), "--take"])
    }

    /// What the store alone gives back holds these writes.
    fn verify_store(&self, volume: &str, snapshot: &[&str], blocks: &[u64]) {
        let image = self.dir("image");
        let mut command = Command::new(binary());
        command.args(["restore", &self.place(volume)]).arg(&image).args(snapshot);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let done = command.output().expect("the program runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        verify_image(&image, blocks);
        std::fs::remove_file(image).expect("it was just made");
    }

    /// Whether a node has found out that a volume is not its own.
    fn is_lost(&self, node: &str, volume: &str) -> bool {
        self.ask(node, &["volume", "show", volume]).stdout.contains("link lost")
    }

    /// Whether a node serves a volume whose store answers.
    fn is_up(&self, node: &str, volume: &str) -> bool {
        self.ask(node, &["volume", "show", volume]).stdout.contains("link up")
    }

    /// Nothing of a volume stays, here or in the store.
    fn remove(&self, node: &str, volume: &str) {
        let gone = self.ask(node, &["volume", "delete", volume, "--data", "now"]);
        assert!(gone.success, "{gone:?}");
    }
}

fn rounds() -> u32 {
    let asked = std::env::var("LAYBY_STORE_ROUNDS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(ROUNDS)
}

/// Does the same with two nodes at once.
fn at_once(nodes: [&str; 2], act: impl Fn(&str) -> Outcome + Sync) -> [Outcome; 2] {
    std::thread::scope(|scope| {
        let acts = nodes.map(|node| scope.spawn(|| act(node)));
        acts.map(|act| act.join().expect("it panics nowhere"))
    })
}

/// Goal: a volume is made, written, killed, restored, kept by snapshots, cloned, deleted, brought
/// back, taken and given up on any store, with every block what it was written as. Method: the
/// commands of the manual, one after the other.
#[test]
fn a_volume_lives_on_the_store() {
    let Some(site) = Site::new() else { return };
    let node = site.start("a");
    let made = site.create("a", VOLUME);
    assert!(made.success, "{made:?}");
    let mut client = Client::open(&node);
    client.write(1500);
    client.verify();
    node.kill9();
    let node = site.start("a");
    let mut client = client.reopen(&node);
    client.verify();
    node.layby(&["volume", "drain", VOLUME]);
    site.verify_store(VOLUME, &[], &client.blocks);

    node.layby(&["volume", "snapshot", VOLUME, "monday"]);
    let monday = client.blocks.clone();
    let (of, place) = (format!("{VOLUME}@monday"), site.place("copy"));
    node.layby(&["volume", "create", "copy", "--path", &place, "--clone-of", &of]);
    let mut copy = client.clone_at(&node, "copy");
    copy.verify();
    client.write(1000);
    copy.write(200);
    client.verify();
    copy.verify();
    for volume in [VOLUME, "copy"] {
        node.layby(&["volume", "drain", volume]);
    }
    site.verify_store(VOLUME, &["--snapshot", "monday"], &monday);
    site.verify_store("copy", &[], &copy.blocks);

    node.layby(&["volume", "delete", "copy", "--data", "delete"]);
    node.layby(&["volume", "undelete", "copy"]);
    let mut copy = copy.reopen_at(&node, "copy");
    copy.verify();
    site.remove("a", "copy");

    node.layby(&["volume", "drain", VOLUME]);
    let second = site.start("b");
    let taken = site.take("b", VOLUME);
    assert!(taken.success, "{taken:?}");
    let mut client = client.reopen(&second);
    client.verify();
    client.write(200);
    let is_lost = (0..QUESTIONS_MAX).any(|_| site.is_lost("a", VOLUME));
    assert!(is_lost, "{}", node.stderr());
    let salvage = site.ask("a", &["salvage", VOLUME]);
    assert!(salvage.stdout.contains("nothing to save"), "{salvage:?}");
    second.layby(&["volume", "drain", VOLUME]);
    site.verify_store(VOLUME, &[], &client.blocks);
    site.remove("b", VOLUME);
}

/// Goal: of two creations of a volume at one place one succeeds, and the other one says why it does
/// not (R1). Method: two nodes at once, rounds; the winner's writes come back from the store.
#[test]
fn of_two_creations_one_has_the_volume() {
    let Some(site) = Site::new() else { return };
    let nodes = [site.start("a"), site.start("b")];
    for round in 0..rounds() {
        let volume = format!("r{round}");
        let made = at_once(["a", "b"], |node| site.create(node, &volume));
        let winners: Vec<usize> = (0..2).filter(|node| made[*node].success).collect();
        for refused in made.iter().filter(|made| !made.success) {
            refused.assert_explains(&[]);
        }
        assert!(winners.len() <= 1, "round {round}: {made:?}");
        let Some(&winner) = winners.first() else { continue };
        let name = ["a", "b"][winner];
        let mut client = Client::open_at(&nodes[winner], &volume);
        client.write(100);
        nodes[winner].layby(&["volume", "drain", &volume]);
        site.verify_store(&volume, &[], &client.blocks);
        site.remove(name, &volume);
    }
}

/// Goal: a node that was paused while another one took its volume changes nothing when it goes on,
/// and learns that it has it no more (R2). Method: SIGSTOP, a take, writes there, SIGCONT, writes
/// here until they are refused; rounds.
#[test]
fn a_paused_owner_changes_nothing() {
    let Some(site) = Site::new() else { return };
    let (first, second) = (site.start("a"), site.start("b"));
    for round in 0..rounds() {
        let volume = format!("r{round}");
        let made = site.create("a", &volume);
        assert!(made.success, "round {round}: {made:?}");
        let mut client = Client::open_at(&first, &volume);
        client.write(100);
        first.layby(&["volume", "drain", &volume]);
        let mut old = client.clone_at(&first, &volume);
        first.signal("-STOP");
        let taken = site.take("b", &volume);
        assert!(taken.success, "round {round}: {taken:?}");
        let mut client = client.reopen_at(&second, &volume);
        client.verify();
        client.write(100);
        first.signal("-CONT");
        let data = vec![0xee; BLOCK as usize];
        let is_refused = (0..QUESTIONS_MAX).any(|_| {
            let write = Request::Write { offset: 0, data: data.clone(), fua: true };
            old.connection.call(&write).is_ok_and(|answer| answer.is_err())
        });
        assert!(is_refused && site.is_lost("a", &volume), "round {round}: {}", first.stderr());
        client.verify();
        second.layby(&["volume", "drain", &volume]);
        site.verify_store(&volume, &[], &client.blocks);
        let forgotten = site.ask("a", &["volume", "delete", &volume, "--data", "delete"]);
        assert!(forgotten.success, "round {round}: {forgotten:?}");
        site.remove("b", &volume);
    }
}

/// Goal: of two nodes that take a volume at once one has it in the end, with all that was in the
/// store (R3). Method: its node is killed, two take it, rounds; the one that has it is written.
#[test]
fn of_two_takes_one_has_the_volume() {
    let Some(site) = Site::new() else { return };
    let nodes = [site.start("b"), site.start("c")];
    for round in 0..rounds() {
        let volume = format!("r{round}");
        let first = site.start("a");
        let made = site.create("a", &volume);
        assert!(made.success, "round {round}: {made:?}");
        let mut client = Client::open_at(&first, &volume);
        client.write(100);
        first.layby(&["volume", "drain", &volume]);
        first.kill9();
        let taken = at_once(["b", "c"], |node| site.take(node, &volume));
        let up =
            || ["b", "c"].map(|node| site.is_up(node, &volume) && !site.is_lost(node, &volume));
        let is_one = (0..QUESTIONS_MAX).any(|_| up().iter().filter(|up| **up).count() == 1);
        assert!(is_one, "round {round}: {taken:?} {:?}", up());
        let owner = up().iter().position(|up| *up).expect("it was just so");
        let mut client = client.reopen_at(&nodes[owner], &volume);
        client.verify();
        client.write(50);
        nodes[owner].layby(&["volume", "drain", &volume]);
        site.verify_store(&volume, &[], &client.blocks);
        site.remove(["b", "c"][owner], &volume);
        for (node, name) in [("b", 0), ("c", 1)] {
            if name != owner {
                // Where it has never been in this node's list, there is nothing to forget.
                site.ask(node, &["volume", "delete", &volume, "--data", "delete"]);
            }
        }
        let _ = std::fs::remove_dir_all(site.dir("a"));
    }
}
