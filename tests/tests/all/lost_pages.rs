//! Pages of an NVM level that its device cannot return, chosen by what they hold.
//!
//! How: a node is filled and killed; pages of its level's file fail with EIO from then on, until
//! they are written whole (see `layby_tests::Unreadable`). Which slot holds what is read from the
//! level's bytes before. Cost: a second.
//! Not for: pages by the hundred, which are in `damage`.

use layby_tests::{
    Connection, Node, Options, Request, Unreadable, available, layby, mount_unavailable,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;
/// Blocks of a write; each waits for the disk.
const PIECE: u64 = 64;
const TOOLS: [&str; 4] = ["nbdkit", "nbdfuse", "mkfifo", "umount"];
/// One whose blocks are dirty in the level, and one whose blocks are clean there.
const VOLUMES: [&str; 2] = ["dirty", "clean"];

struct Fixture {
    _work: TempDir,
    dir: PathBuf,
    level: PathBuf,
    options: Options,
    strict: Options,
}

fn options(folder: &Path, arguments: &[&str]) -> Options {
    let text = format!(
        "[node]\nshards = 1\n\n[writeback]\nidle_timeout = \"600s\"\n\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\n\
         [[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"16MiB\"\npath = \"{0}/nvm.level\"\n\n\
         [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"32MiB\"\npath = \"{0}/ssd.level\"\n",
        folder.display()
    );
    let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
    Options { arguments, ..Options::config(text) }
}

impl Fixture {
    /// A node that was killed after all blocks were written twice.
    fn new() -> Fixture {
        let work = TempDir::new().expect("a temporary folder");
        let (dir, level) = (work.path().join("node"), work.path().join("nvm.level"));
        let [options, strict] =
            [&[][..], &["--strict"]].map(|arguments| options(work.path(), arguments));
        let node = Node::start(&dir, &options);
        for (volume, name) in VOLUMES.into_iter().enumerate() {
            node.volume_create(name, "1MiB", "critical");
            for version in [1, 2] {
                for first in (0..BLOCKS).step_by(PIECE as usize) {
                    write(&node, volume, first..first + PIECE, version);
                }
            }
        }
        node.layby(&["volume", "drain", VOLUMES[1]]);
        node.kill9();
        Fixture { _work: work, dir, level, options, strict }
    }

    fn start(&self) -> Node {
        Node::try_start(&self.dir, &self.options).unwrap_or_else(|it| panic!("{}", it.stderr))
    }

    /// The pages that `layby check` names, and whether it is content.
    fn checked(&self, words: &[&str]) -> (BTreeSet<usize>, bool) {
        let dir = self.dir.to_string_lossy();
        let outcome = layby(&[&["check", "--dir", &dir], words].concat());
        let all = format!("{}{}", outcome.stdout, outcome.stderr);
        let lines = all.lines().filter(|line| line.contains("nvm.level"));
        let bytes = lines.filter_map(|line| {
            let (_, rest) = line.split_once("at byte ")?;
            rest.split(':').next()?.parse::<usize>().ok()
        });
        (bytes.map(|byte| byte / BLOCK).collect(), outcome.success)
    }
}

fn content(volume: usize, block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![version as u8; BLOCK];
    bytes[..8].copy_from_slice(&(1 + block * 2 + volume as u64).to_le_bytes());
    bytes
}

fn write(node: &Node, volume: usize, blocks: Range<u64>, version: u64) {
    let mut connection = Connection::open(&node.socket(), VOLUMES[volume]).expect("it serves");
    let offset = blocks.start * BLOCK as u64;
    let data = blocks.flat_map(|block| content(volume, block, version)).collect();
    let write = Request::Write { offset, data, fua: true };
    connection.call(&write).expect("the node serves").expect("a sound disk");
}

/// Reads all blocks; those that are errors. All others are at their version, 2 where none is given.
fn errors(node: &Node, versions: &BTreeMap<(usize, u64), u64>) -> BTreeSet<(usize, u64)> {
    let mut errors = BTreeSet::new();
    for (volume, name) in VOLUMES.into_iter().enumerate() {
        let mut connection = Connection::open(&node.socket(), name).expect("it serves");
        for block in 0..BLOCKS {
            let read = Request::Read { offset: block * BLOCK as u64, length: BLOCK as u32 };
            let version = versions.get(&(volume, block)).copied().unwrap_or(2);
            match connection.call(&read).expect("the node serves") {
                Ok(bytes) => assert!(bytes == content(volume, block, version), "{name} {block}"),
                Err(_) => drop(errors.insert((volume, block))),
            }
        }
    }
    errors
}

/// Where the level has what, in pages.
struct Places {
    mark: usize,
    /// Of the headers and their copies.
    headers: usize,
    copies: usize,
    /// Of the newest version of each block.
    data: BTreeMap<(usize, u64), usize>,
}

impl Places {
    fn new(level: &Path) -> Places {
        let bytes = fs::read(level).expect("can read");
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let [physical, headers, data_first] = [68, 72, 76].map(|at| u32_at(at) as usize);
        let copies = headers + (physical * 32).div_ceil(BLOCK);
        let mut data = BTreeMap::new();
        for volume in 0..VOLUMES.len() {
            for block in 0..BLOCKS {
                let wanted = content(volume, block, 2);
                let blocks = bytes.chunks(BLOCK).enumerate().skip(data_first);
                let page = blocks.filter(|(_, it)| *it == wanted).map(|(page, _)| page).next_back();
                data.extend(page.map(|page| ((volume, block), page)));
            }
        }
        Places { mark: 1, headers, copies, data }
    }
}

/// Goal: lost pages of headers, copies, mark and data cost the dirty blocks in the latter and
/// nothing else, are named by start and check, and are gone once they were written; a strict start
/// is refused. Method: see the header; starts before and after the lost block is written whole.
#[test]
fn each_structure_costs_what_it_holds() {
    if mount_unavailable() || !available(&TOOLS) {
        return;
    }
    let fixture = Fixture::new();
    let places = Places::new(&fixture.level);
    let [lost, clean] = [(0, 17), (1, 18)];
    let structures = [places.mark, places.headers, places.copies + 1];
    let data = [lost, clean].map(|block| places.data[&block]);
    let pages: BTreeSet<usize> = structures.into_iter().chain(data).collect();
    let _unreadable = Unreadable::new(&fixture.level, &pages);
    let (named, is_sound) = fixture.checked(&["--full"]);
    assert!(named.is_superset(&pages) && !is_sound, "{named:?}, lost are {pages:?}");
    let refusal = Node::try_start(&fixture.dir, &fixture.strict).expect_err("it is refused");
    assert!(refusal.stderr.contains("cannot be read"), "{}", refusal.stderr);
    let node = fixture.start();
    let said = node.said() + &node.stderr();
    for page in structures {
        assert!(said.contains(&format!("at byte {} cannot be read", page * BLOCK)), "{said}");
    }
    assert_eq!(errors(&node, &BTreeMap::new()), BTreeSet::from([lost]));
    node.kill9();
    let (named, _) = fixture.checked(&[]);
    assert_eq!(named, BTreeSet::new(), "headers and mark were written anew");
    let node = fixture.start();
    assert_eq!(errors(&node, &BTreeMap::new()), BTreeSet::from([lost]), "a second start");
    write(&node, lost.0, lost.1..lost.1 + 1, 3);
    let versions = BTreeMap::from([(lost, 3)]);
    assert_eq!(errors(&node, &versions), BTreeSet::new());
    node.stop();
    let node = Node::start(&fixture.dir, &fixture.strict);
    assert_eq!(errors(&node, &versions), BTreeSet::new(), "a strict start");
    node.stop();
}

/// Goal: a lost superblock refuses the start with a sentence, and nothing is written. Method: its
/// page; then the file as it was.
#[test]
fn a_lost_superblock_refuses_the_start() {
    if mount_unavailable() || !available(&TOOLS) {
        return;
    }
    let fixture = Fixture::new();
    let before = fs::read(&fixture.level).expect("can read");
    let unreadable = Unreadable::new(&fixture.level, &BTreeSet::from([0]));
    let refusal = Node::try_start(&fixture.dir, &fixture.options).expect_err("it is refused");
    assert!(refusal.stderr.contains("nvm.level"), "{}", refusal.stderr);
    assert_ne!(refusal.code, Some(9), "{}", refusal.stderr);
    drop(unreadable);
    assert!(fs::read(&fixture.level).expect("can read") == before);
    let node = fixture.start();
    assert_eq!(errors(&node, &BTreeMap::new()), BTreeSet::new());
    node.stop();
}
