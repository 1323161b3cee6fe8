//! Segments that a node uploaded and that its store damaged or lost before a superblock named them.
//!
//! How: a volume in a folder as its store, whose superblock the test locks, so that segments are
//! put and none is named; the node is killed, and a segment damaged. `layby check --backing` looks,
//! and the next start stores it again from the journal.
//! Not for: what a superblock names; `cut_objects` and `cloud` damage that.

use layby_tests::{Connection, Node, Options, Request, layby};
use layby_types::Rng;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PIECE: usize = 64 << 10;
const PIECES: usize = 48;
/// Pieces that are written while no superblock is replaced.
const LATE: std::ops::Range<usize> = 8..20;
/// Looks at files before a node counts as hung; a question to the node lies between two.
const LOOKS_MAX: u32 = 5000;

struct Site {
    work: TempDir,
    pieces: Vec<Vec<u8>>,
}

impl Site {
    /// A killed node whose store has segments that no superblock names; these.
    fn new(seed: u64) -> (Site, Vec<PathBuf>) {
        let mut rng = Rng::new(seed);
        let mut random = || {
            let mut piece = vec![0; PIECE];
            rng.fill(&mut piece);
            piece
        };
        let pieces = (0..PIECES).map(|_| random()).collect();
        let mut site = Site { work: TempDir::new().expect("a temporary folder"), pieces };
        let node = site.start();
        let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
        (0..PIECES).for_each(|index| site.write(&mut connection, index));
        node.layby(&["volume", "drain", "v"]);
        let before = site.segments();
        let map = site.local("map");
        let lock = site.lock();
        let known = indexes(&map);
        for index in LATE {
            site.pieces[index] = random();
            site.write(&mut connection, index);
        }
        let mut looks = 0;
        while indexes(&map) == known {
            node.layby(&["volume", "show", "v"]);
            looks += 1;
            assert!(looks < LOOKS_MAX, "no segment is put: {}", node.stderr());
        }
        node.kill9();
        drop(lock);
        let unnamed = &site.segments() - &before;
        assert!(!unnamed.is_empty(), "the map file says that one was put");
        (site, unnamed.into_iter().collect())
    }

    fn start(&self) -> Node {
        let config = format!(
            "[node]\nshards = 1\n\n[cloud]\njournal = \"96MiB\"\nobject = \"256KiB\"\n\
             dirty_age = \"200ms\"\n\n\
             [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"1MiB\"\n\n\
             [volume.v]\nsize = \"{}\"\npath = \"{}\"\n",
            PIECE * PIECES,
            self.url()
        );
        Node::start(&self.dir(), &Options::config(config))
    }

    fn dir(&self) -> PathBuf {
        self.work.path().join("node")
    }

    /// The volume's journal or map.
    fn local(&self, kind: &str) -> PathBuf {
        let folder = fs::read_dir(self.dir().join("cloud")).expect("the node made it");
        let mut names = folder.map(|entry| entry.expect("readable").path());
        let is_it = |path: &PathBuf| path.extension().is_some_and(|found| found == kind);
        names.find(is_it).expect("the volume has one")
    }

    fn store(&self) -> PathBuf {
        self.work.path().join("store")
    }

    fn url(&self) -> String {
        format!("file://{}", self.store().display())
    }

    /// Keeps all others from replacing the superblock.
    fn lock(&self) -> File {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(self.store().join("superblock#0"));
        let file = file.expect("the node made it");
        file.lock().expect("the file system has locks");
        file
    }

    fn segments(&self) -> BTreeSet<PathBuf> {
        let folder = fs::read_dir(self.store().join("segments")).expect("it has segments");
        folder.map(|entry| entry.expect("readable").path()).filter(|path| is_object(path)).collect()
    }

    fn write(&self, connection: &mut Connection, index: usize) {
        let (offset, data) = ((index * PIECE) as u64, self.pieces[index].clone());
        let write = Request::Write { offset, data, fua: true };
        connection.call(&write).expect("the node serves").expect("no error");
    }

    fn verify(&self, node: &Node) {
        let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
        for (index, piece) in self.pieces.iter().enumerate() {
            let read = Request::Read { offset: (index * PIECE) as u64, length: PIECE as u32 };
            let found = connection.call(&read).expect("the read ends");
            assert!(found.as_ref() == Ok(piece), "piece {index}: {:?}", found.err());
        }
    }

    /// Whether the node is sound, and what a check says of it.
    fn check(&self) -> (bool, String) {
        let dir = self.dir().to_string_lossy().into_owned();
        let check = layby(&["check", "--full", "--backing", "--dir", &dir]);
        (check.success, check.stdout + &check.stderr)
    }

    /// Flips a bit of the journal where it has this piece's beginning.
    fn rot_journal(&self, index: usize) {
        let path = self.local("journal");
        let mut bytes = fs::read(&path).expect("the node made it");
        let first = &self.pieces[index][..4096];
        let at = bytes.chunks(4096).position(|page| page == first).expect("it is there") * 4096;
        bytes[at] ^= 1;
        fs::write(path, bytes).expect("the test's own folder");
    }
}

/// Indexes of segments that a map file has beside its map.
fn indexes(map: &Path) -> usize {
    let bytes = fs::read(map).expect("the node made it");
    bytes.windows(8).filter(|window| window == b"LAYBYCSG").count()
}

/// A file without a mark of one that is still written, or of a lock.
fn is_object(path: &Path) -> bool {
    path.file_name().is_some_and(|name| !name.to_string_lossy().contains('#'))
}

fn name(path: &Path) -> String {
    path.file_name().expect("one").to_string_lossy().into_owned()
}

/// Damages an object: it is gone, cut off, or has a bit changed behind its header.
fn spoil(path: &Path, how: u64) {
    let mut bytes = fs::read(path).expect("readable");
    match how {
        0 => return fs::remove_file(path).expect("the test's own folder"),
        1 => bytes.truncate(bytes.len() / 2),
        _ => *bytes.last_mut().expect("it has bytes") ^= 1,
    }
    fs::write(path, bytes).expect("the test's own folder");
}

/// Goal: a check names a segment that the node counts on, that no superblock names and that the
/// store does not have whole, and says that the next start stores it again; that start does, and
/// nothing is lost. Method: such a segment lost, truncated or changed; a check, a start that reads
/// and drains all, a check, and a second start, whose journal has nothing of it any more.
#[test]
fn a_damaged_put_is_named_and_stored_again() {
    for how in 0..3 {
        let (site, unnamed) = Site::new(70 + how);
        let (is_sound, said) = site.check();
        assert!(is_sound && !said.contains("note:"), "{said}");
        spoil(&unnamed[0], how);
        let (is_sound, said) = site.check();
        assert!(is_sound, "nothing is lost: {said}");
        assert!(said.contains("note: volume `v`: 1 segment(s)"), "{said}");
        assert!(said.contains(&name(&unnamed[0])), "{said}");
        assert!(said.contains("the next start stores it again"), "{said}");
        let node = site.start();
        site.verify(&node);
        node.layby(&["volume", "drain", "v"]);
        node.stop();
        let (is_sound, said) = site.check();
        assert!(is_sound && !said.contains("note:"), "{said}");
        let node = site.start();
        site.verify(&node);
        node.stop();
        let to = site.work.path().join("restored");
        let restored = layby(&["restore", &site.url(), &to.to_string_lossy()]);
        assert!(restored.success, "{}", restored.stderr);
        assert!(fs::read(to).expect("it was written") == site.pieces.concat(), "case {how}");
    }
}

/// Goal: where the journal is damaged, too, a check calls it damage and names the segment. Method:
/// a segment of which a bit is changed, and a bit of the journal where it has a piece of it.
#[test]
fn a_damaged_put_without_its_journal_is_damage() {
    let (site, unnamed) = Site::new(77);
    spoil(&unnamed[0], 2);
    site.rot_journal(LATE.start);
    let (is_sound, said) = site.check();
    assert!(!is_sound, "{said}");
    assert!(said.contains(&name(&unnamed[0])), "{said}");
    assert!(said.contains("journal is damaged"), "{said}");
}
