//! Objects of a store that became shorter: damage of their own blocks, and of no others.
//!
//! How: a volume in a folder as its store, filled and stopped; then objects are truncated, emptied
//! and exchanged with shorter ones. A node without a cache reads all of it, and `layby restore`
//! and `layby check` read the folder. The same of a store that answers 416, as S3 does.
//! Not for: the words of other clouds, which `layby_cloud` knows.

use layby_tests::{Connection, HttpRequest, LaxStore, Node, Options, Request, layby};
use layby_types::Rng;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PIECE: usize = 64 << 10;
const PIECES: usize = 512;

struct Site {
    work: TempDir,
    /// What the volume holds.
    pieces: Vec<Vec<u8>>,
}

impl Site {
    /// A stopped node whose volume is in the store, all of it.
    fn new() -> Site {
        let mut rng = Rng::new(5);
        let random = |_| {
            let mut piece = vec![0; PIECE];
            rng.fill(&mut piece);
            piece
        };
        let pieces = (0..PIECES).map(random).collect();
        let site = Site { work: TempDir::new().expect("a temporary folder"), pieces };
        let node = site.start();
        let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
        for (index, piece) in site.pieces.iter().enumerate() {
            write(&mut connection, index, piece);
        }
        drop(connection);
        node.layby(&["volume", "drain", "v"]);
        node.stop();
        site
    }

    fn start(&self) -> Node {
        let config = format!(
            "[node]\nshards = 1\n\n[cloud]\njournal = \"96MiB\"\nobject = \"256KiB\"\n\n\
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

    fn store(&self) -> PathBuf {
        self.work.path().join("store")
    }

    fn url(&self) -> String {
        format!("file://{}", self.store().display())
    }

    /// Objects of segments, by number.
    fn segments(&self) -> Vec<PathBuf> {
        let folder = fs::read_dir(self.store().join("segments")).expect("it has segments");
        let mut found: Vec<_> = folder.map(|entry| entry.expect("readable").path()).collect();
        found.sort();
        found
    }

    /// Damages three segments that a checkpoint covers, and names them.
    fn cut(&self) -> Vec<String> {
        let checkpoints = fs::read_dir(self.store().join("checkpoints"));
        assert!(checkpoints.is_ok_and(|found| found.count() > 0), "no checkpoint yet");
        let segments = self.segments();
        let other = fs::read(&segments[9]).expect("readable");
        let whole = fs::read(&segments[3]).expect("readable");
        let cut = [(3, &whole[..200]), (5, &other[..300]), (7, &[][..])];
        let name = |path: &Path| path.file_name().expect("one").to_string_lossy().into_owned();
        cut.map(|(index, bytes)| {
            fs::remove_file(&segments[index]).expect("the test's own folder");
            fs::write(&segments[index], bytes).expect("the test's own folder");
            name(&segments[index])
        })
        .to_vec()
    }

    /// Restores the volume in part: the pieces that are not as they were, and what was said.
    fn restored(&self, out: &str) -> (BTreeSet<usize>, String) {
        let to = self.work.path().join(out).to_string_lossy().into_owned();
        let answer = layby(&["restore", &self.url(), &to]);
        assert!(!answer.success, "{}", answer.stdout);
        let said = answer.stdout + &answer.stderr;
        let folder = fs::read_dir(self.work.path()).expect("readable");
        let names = folder.map(|entry| entry.expect("readable").path());
        let is_it = |path: &PathBuf| {
            let name = path.file_name().expect("one").to_string_lossy();
            name.starts_with(&format!("{out}.")) && name.ends_with(".partial")
        };
        let partial = names.into_iter().find(is_it).unwrap_or_else(|| panic!("no file: {said}"));
        let bytes = fs::read(partial).expect("readable");
        let found = bytes.chunks(PIECE).zip(&self.pieces).enumerate();
        let other = found.filter(|(_, (is, was))| is != was).map(|(index, _)| index);
        (other.collect(), said)
    }
}

fn write(connection: &mut Connection, index: usize, piece: &[u8]) {
    let (offset, data) = ((index * PIECE) as u64, piece.to_vec());
    let write = Request::Write { offset, data, fua: false };
    connection.call(&write).expect("the node serves").expect("no error");
}

fn read(connection: &mut Connection, index: usize) -> Result<Vec<u8>, u32> {
    let read = Request::Read { offset: (index * PIECE) as u64, length: PIECE as u32 };
    connection.call(&read).expect("the read ends")
}

/// Goal: an object that became shorter is damage of its own blocks alone: their reads end with an
/// error, the object is named and counted, a write of the block cures it, and `layby restore` and
/// `layby check` name the object and go on with all else. Method: a segment cut to its first bytes,
/// one exchanged with the beginning of another one, one emptied; every piece read.
#[test]
fn a_shorter_object_costs_its_own_blocks() {
    let site = Site::new();
    let cut = site.cut();
    let node = site.start();
    let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
    let mut errors = BTreeSet::new();
    for (index, piece) in site.pieces.iter().enumerate() {
        match read(&mut connection, index) {
            Ok(bytes) => assert!(bytes == *piece, "piece {index} is another"),
            Err(errno) => {
                assert_eq!(errno, 5, "piece {index}");
                errors.insert(index);
            }
        }
    }
    assert!((3..40).contains(&errors.len()), "{errors:?}");
    let (restored, said) = site.restored("first");
    assert_eq!(restored, errors, "{said}");
    assert!(cut.iter().all(|name| said.contains(name)), "{said}");
    let metrics = HttpRequest::new("GET", "/metrics").send(&node.http()).body;
    let counted = metrics.lines().filter(|line| line.starts_with("layby_cloud_damaged_total{"));
    let counted: Vec<f64> = counted.filter_map(|l| l.rsplit(' ').next()?.parse().ok()).collect();
    assert!(counted.iter().sum::<f64>() >= 3.0, "{counted:?}");
    let shown = node.layby(&["volume", "show", "v"]);
    assert!(shown.contains("read(s) failed"), "{shown}");
    assert!(cut.iter().any(|name| shown.contains(name)), "{shown}");
    for index in &errors {
        write(&mut connection, *index, &site.pieces[*index]);
        assert!(read(&mut connection, *index).is_ok_and(|b| b == site.pieces[*index]), "{index}");
    }
    drop(connection);
    node.layby(&["volume", "drain", "v"]);
    node.stop();
    let to = site.work.path().join("cured");
    let cured = layby(&["restore", &site.url(), &to.to_string_lossy()]);
    assert!(cured.success, "{}", cured.stderr);
    assert!(fs::read(to).expect("it was written") == site.pieces.concat());
}

/// Goal: `layby check --backing` names objects that became shorter, and ends. Method: a stopped
/// node, three such objects.
#[test]
fn a_check_names_shorter_objects() {
    let site = Site::new();
    let cut = site.cut();
    let dir = site.dir().to_string_lossy().into_owned();
    let check = layby(&["check", "--backing", "--dir", &dir]);
    assert!(!check.success, "{}", check.stdout);
    let said = check.stdout + &check.stderr;
    assert!(cut.iter().any(|name| said.contains(name)), "{said}");
}

/// Goal: the same where the store says so by HTTP: status 416 is an answer, and no silence. Method:
/// a store of a few lines, a segment cut off; reads of all pieces, a write over each that failed.
#[test]
fn a_range_that_cannot_be_satisfied_is_an_answer() {
    let (store, work) = (LaxStore::start(), TempDir::new().expect("a temporary folder"));
    let config = format!(
        "[node]\nshards = 1\n\n[cloud]\njournal = \"96MiB\"\nobject = \"256KiB\"\n\
         conditional_puts = \"optional\"\n\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"1MiB\"\n\n\
         [volume.v]\nsize = \"{}\"\npath = \"s3://layby/maps\"\n",
        PIECE * 32
    );
    let start = || {
        let options = Options::with_store(config.clone(), &store.endpoint());
        Node::start(&work.path().join("node"), &options)
    };
    let piece = |index: usize| vec![index as u8 + 1; PIECE];
    let node = start();
    let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
    (0..32).for_each(|index| write(&mut connection, index, &piece(index)));
    drop(connection);
    node.layby(&["volume", "drain", "v"]);
    node.stop();
    let mut segments = store.keys();
    segments.retain(|key| key.contains("segments/"));
    segments.sort();
    store.cut(&segments[1], 200);
    let node = start();
    let mut connection = Connection::open(&node.socket(), "v").expect("the node serves");
    let mut failed = |index: &usize| match read(&mut connection, *index) {
        Ok(bytes) => {
            assert!(bytes == piece(*index), "piece {index} is another");
            false
        }
        Err(errno) => errno == 5,
    };
    let errors: Vec<usize> = (0..32).filter(&mut failed).collect();
    assert!((1..12).contains(&errors.len()), "{errors:?}");
    let shown = node.layby(&["volume", "show", "v"]);
    let name = segments[1].rsplit('/').next().expect("one");
    assert!(shown.contains("read(s) failed") && shown.contains(name), "{shown}");
    assert!(!shown.contains("link down"), "{shown}");
    for index in errors {
        write(&mut connection, index, &piece(index));
        assert!(read(&mut connection, index).is_ok_and(|bytes| bytes == piece(index)), "{index}");
    }
    node.stop();
}
