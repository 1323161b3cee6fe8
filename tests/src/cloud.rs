//! A volume in an object store: a store, a link to it that tests can cut, and a client that knows
//! what each block holds.
//!
//! How: blocks carry the number of their write, so that what comes back says which write it is.
//! What the store has is read by `layby restore`, on nothing but the store.
//! Cost: a store's process per world. Not for: machines without the store's program, which skip.

use crate::link::{Cut, LinkProxy};
use crate::tool::Outcome;
use crate::{Connection, Node, Options, Request, S3Server, binary};
use layby_types::Rng;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Blocks of the volume.
pub const BLOCKS: u64 = 2048;
/// The volume's name, and its place in the bucket.
pub const VOLUME: &str = "maps";

/// A store, a link to it, and a folder for nodes.
pub struct World {
    /// The store.
    pub server: S3Server,
    /// The way there.
    pub link: LinkProxy,
    folder: TempDir,
}

impl World {
    /// A store with nothing in it, or none where its program is missing.
    #[must_use]
    pub fn new() -> Option<World> {
        let server = S3Server::start()?;
        let link = LinkProxy::start(server.address(), 1);
        Some(World { server, link, folder: TempDir::new().expect("a temporary folder") })
    }

    /// The volume's place.
    #[must_use]
    pub fn url() -> String {
        format!("s3://{}/{VOLUME}", S3Server::BUCKET)
    }

    /// A node that knows the store by the link, with more words in `[cloud]`.
    #[must_use]
    pub fn options(&self, more: &str) -> Options {
        let config = format!(
            "[node]\nshards = 1\nvolume_roots = [\"{}\"]\n\n\
             [cloud]\njournal = \"96MiB\"\ndirty_age = \"200ms\"\n{more}\n\
             [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"16MiB\"\n",
            self.folder.path().display()
        );
        Options::with_store(config, &self.link.endpoint())
    }

    /// A folder for a node, or a file.
    #[must_use]
    pub fn dir(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The configuration of a node that was started.
    #[must_use]
    pub fn config(&self, name: &str) -> String {
        self.dir(name).with_extension("toml").to_string_lossy().into_owned()
    }

    /// Starts a node.
    #[must_use]
    pub fn start(&self, name: &str) -> Node {
        Node::start(&self.dir(name), &self.options(""))
    }

    /// Starts a node that is to refuse that.
    ///
    /// # Panics
    /// When it starts.
    #[must_use]
    pub fn refused(&self, name: &str) -> crate::Refusal {
        let started = Node::try_start(&self.dir(name), &self.options(""));
        started.expect_err("the start is refused")
    }

    /// A node with a new volume.
    #[must_use]
    pub fn start_new(&self, name: &str) -> Node {
        let node = self.start(name);
        Self::create(&node, VOLUME, &Self::url());
        node
    }

    /// Creates a volume of [`BLOCKS`] blocks.
    pub fn create(node: &Node, volume: &str, url: &str) {
        node.layby(&["volume", "create", volume, "--size", &size(), "--path", url]);
    }

    /// Kills a node whose journal holds writes that its volume's store has not, beside some that it
    /// has; the store is in reach again then.
    ///
    /// # Panics
    /// When the node refuses.
    pub fn kill_with_unsaved(&self, node: Node, client: &mut Client) {
        client.write(300);
        node.layby(&["volume", "drain", VOLUME]);
        self.link.cut(Cut::Refuse);
        client.write(100);
        node.kill9();
        self.link.restore();
    }

    /// Asks the node of that name to create the volume, whatever the outcome.
    #[must_use]
    pub fn try_create(&self, node: &str) -> Outcome {
        let words = ["volume", "create", VOLUME, "--size", &size(), "--path", &Self::url()];
        self.ask(node, &words)
    }

    /// Asks the node of that name, whatever the outcome.
    #[must_use]
    pub fn ask(&self, node: &str, words: &[&str]) -> Outcome {
        crate::layby(&[words, &["--dir", &self.dir(node).to_string_lossy()]].concat())
    }

    /// Runs `layby restore` on a machine that has nothing but the store.
    #[must_use]
    pub fn restore(&self, to: Option<&Path>) -> (bool, String) {
        let to = to.map(|path| path.to_string_lossy().into_owned());
        let words: Vec<&str> = to.as_deref().into_iter().collect();
        self.run(&[&["restore", &Self::url()], &words[..]].concat())
    }

    /// Runs the program with nothing but the store's address and credentials.
    ///
    /// # Panics
    /// When the program cannot be run.
    #[must_use]
    pub fn run(&self, words: &[&str]) -> (bool, String) {
        let mut command = Command::new(binary());
        command.args(words).envs(S3Server::environment(&self.server.endpoint()));
        let done = command.output().expect("the program runs");
        let text = [done.stdout, done.stderr].concat();
        (done.status.success(), String::from_utf8_lossy(&text).into_owned())
    }
}

fn size() -> String {
    (BLOCKS * BLOCK).to_string()
}

/// Writes to a node whose volume another one has taken until it refuses: it learns of that when it
/// next says how far it has come.
///
/// # Panics
/// When it never does.
pub fn wait_until_lost(node: &Node) {
    let mut old = match Connection::ask(&node.socket(), VOLUME).expect("the first node runs") {
        Ok(old) => old,
        // It has found out already.
        Err(why) => return assert!(why.contains("another node has taken"), "{why}"),
    };
    let is_refused = (0..6000).any(|_| {
        let write = Request::Write { offset: 0, data: contents(0, 1), fua: true };
        old.call(&write).expect("the node is there").is_err()
    });
    assert!(is_refused, "the first node goes on writing");
}

/// A client that knows what each block holds.
pub struct Client {
    /// Its connection.
    pub connection: Connection,
    /// Its chance.
    pub rng: Rng,
    /// Writes so far.
    pub writes: u64,
    /// By block, the number of its last write; none is 0.
    pub blocks: Vec<u64>,
}

/// What a block holds after a write.
#[must_use]
pub fn contents(block: u64, write: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    if write > 0 {
        Rng::new(block << 32 | write).fill(&mut bytes);
    }
    bytes
}

impl Client {
    /// A client of a volume that holds nothing.
    ///
    /// # Panics
    /// When the node does not serve it.
    #[must_use]
    pub fn open(node: &Node) -> Client {
        Client::open_at(node, VOLUME)
    }

    /// A client of a volume of that name that holds nothing.
    ///
    /// # Panics
    /// When the node does not serve it.
    #[must_use]
    pub fn open_at(node: &Node, name: &str) -> Client {
        let connection = Connection::open(&node.socket(), name).expect("the node serves it");
        Client { connection, rng: Rng::new(7), writes: 0, blocks: vec![0; BLOCKS as usize] }
    }

    /// The same at another node, or at one that was started again.
    ///
    /// # Panics
    /// When the node does not serve it.
    #[must_use]
    pub fn reopen(self, node: &Node) -> Client {
        let connection = Connection::open(&node.socket(), VOLUME).expect("the node serves it");
        Client { connection, ..self }
    }

    /// The same at another volume, or at one of another name.
    ///
    /// # Panics
    /// When the node does not serve it.
    #[must_use]
    pub fn reopen_at(self, node: &Node, name: &str) -> Client {
        let connection = Connection::open(&node.socket(), name).expect("the node serves it");
        Client { connection, ..self }
    }

    /// A client of another volume that holds the same now; its writes are told apart.
    ///
    /// # Panics
    /// When the node does not serve it.
    #[must_use]
    pub fn clone_at(&self, node: &Node, name: &str) -> Client {
        let connection = Connection::open(&node.socket(), name).expect("the node serves it");
        let (writes, blocks) = (self.writes + 1_000_000, self.blocks.clone());
        Client { connection, rng: Rng::new(11), writes, blocks }
    }

    /// Asks, and has no error.
    ///
    /// # Panics
    /// When there is one.
    #[track_caller]
    pub fn ask(&mut self, request: &Request) -> Vec<u8> {
        let answer = self.connection.call(request).expect("the node is there");
        answer.expect("no error reaches a client")
    }

    /// Writes every block once, in order, so that nothing in the store is dead, and flushes.
    ///
    /// # Panics
    /// When the node refuses.
    pub fn write_each(&mut self) {
        self.write_first(BLOCKS);
    }

    /// The same of the first `count` blocks.
    ///
    /// # Panics
    /// When the node refuses.
    pub fn write_first(&mut self, count: u64) {
        for block in 0..count {
            self.writes += 1;
            let data = contents(block, self.writes);
            self.blocks[block as usize] = self.writes;
            self.ask(&Request::Write { offset: block * BLOCK, data, fua: false });
        }
        self.ask(&Request::Flush);
    }

    /// Writes so many blocks by chance, and flushes.
    pub fn write(&mut self, count: u64) {
        for _ in 0..count {
            self.writes += 1;
            let block = self.rng.below(BLOCKS);
            let data = contents(block, self.writes);
            self.blocks[block as usize] = self.writes;
            self.ask(&Request::Write { offset: block * BLOCK, data, fua: false });
        }
        self.ask(&Request::Flush);
    }

    /// Reads a block and compares.
    ///
    /// # Panics
    /// When it holds another write.
    #[track_caller]
    pub fn verify_block(&mut self, block: u64) {
        let bytes = self.ask(&Request::Read { offset: block * BLOCK, length: BLOCK as u32 });
        let write = self.blocks[block as usize];
        assert!(bytes == contents(block, write), "block {block}, write {write}");
    }

    /// The same of all blocks.
    pub fn verify(&mut self) {
        (0..BLOCKS).for_each(|block| self.verify_block(block));
    }

    /// Has the store get all, and compares what it has.
    ///
    /// # Panics
    /// When it has anything else.
    pub fn verify_store(&self, world: &World, node: &Node) {
        node.layby(&["volume", "drain", VOLUME]);
        let image = world.dir("image");
        let (is_whole, text) = world.restore(Some(&image));
        assert!(is_whole, "{text}");
        self.verify_image(&image);
        std::fs::remove_file(image).expect("it was just made");
    }

    /// An image holds what the volume does.
    pub fn verify_image(&self, image: &Path) {
        verify_image(image, &self.blocks);
    }
}

/// An image holds the writes that `blocks` says.
///
/// # Panics
/// When it does not.
pub fn verify_image(image: &Path, blocks: &[u64]) {
    let bytes = std::fs::read(image).expect("the image is there");
    assert_eq!(bytes.len() as u64, BLOCKS * BLOCK);
    for (block, held) in bytes.chunks(BLOCK as usize).enumerate() {
        let write = blocks[block];
        assert!(held == contents(block as u64, write), "block {block}, write {write}");
    }
}
