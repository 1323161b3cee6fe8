//! Backing files belong to a node: one that lacks what another has not written back serves nothing.
//!
//! How: a node's directory gets another name while it is stopped, as a mount that is missing at a
//! start; the configuration lies beside it, so that another node starts in its place. Files are
//! read behind both nodes' backs.
//! Invariant: no client reads less than was flushed, and no old block goes over a newer one, unless
//! the operator took the file over. Not for: devices, see `swapped_devices.rs`.

use crate::lost::{assert_holds, fill};
use layby_tests::{Node, Options, Refusal, layby, missing, small_levels};
use rustix::fs::{FlockOperation, XattrFlags, flock, getxattr, removexattr, setxattr};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const MARK: &str = "user.layby.node";
const FOREIGN: &str = "belongs to another node";

/// A node's directory and two files beside it, of which its configuration names one.
struct Place {
    _base: TempDir,
    dir: PathBuf,
    away: PathBuf,
    file: PathBuf,
    other: PathBuf,
}

impl Place {
    /// None where files bear no marks.
    fn new() -> Option<Place> {
        let base = TempDir::new().expect("a temporary folder");
        let [dir, away, file, other] =
            ["node", "away", "file", "other"].map(|name| base.path().join(name));
        for path in [&file, &other] {
            fs::write(path, vec![0; 1 << 20]).expect("room");
        }
        if setxattr(&file, "user.test", b"1", XattrFlags::empty()).is_err() {
            missing("the file system has no extended attributes");
            return None;
        }
        Some(Place { _base: base, dir, away, file, other })
    }

    fn start(&self, arguments: &[&str]) -> Node {
        let levels = small_levels().config.expect("it has one");
        Node::start(&self.dir, &self.options(&levels, "", arguments))
    }

    /// Starts it where it is to be refused.
    fn refused(&self, volume: &str, arguments: &[&str]) -> Refusal {
        let levels = small_levels().config.expect("it has one");
        let started = Node::try_start(&self.dir, &self.options(&levels, volume, arguments));
        started.expect_err("the start is refused")
    }

    /// A node with these levels, and these settings of its volume.
    fn options(&self, levels: &str, volume: &str, arguments: &[&str]) -> Options {
        let path = self.file.display();
        let config = format!("{levels}\n[volume.db]\npath = \"{path}\"\n{volume}");
        let root = self.dir.parent().expect("a folder").display().to_string();
        let words = ["--volume-root", &root].into_iter().chain(arguments.iter().copied());
        let arguments = words.map(str::to_owned).collect();
        Options { arguments, ..Options::config(config) }
    }

    /// Starts it without its directory, which is a new one then.
    fn start_without(&self, arguments: &[&str]) -> Node {
        fs::rename(&self.dir, &self.away).expect("the test's own folder");
        self.start(arguments)
    }

    fn is_marked(&self) -> bool {
        getxattr(&self.file, MARK, &mut [0; 256]).is_ok()
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.file).expect("it is there")
    }
}

/// Goal: a node that starts without its directory serves no file that the old one has dirty blocks
/// of (what was flushed there read as it was before, with no error), serves other volumes, and
/// takes no such file live; with its directory back the old one has everything. Method: a file with
/// a version in it and a newer one in a level; the directory away; a new volume, a deletion; the
/// directory back.
#[test]
fn a_file_whose_blocks_are_elsewhere_is_not_served() {
    let Some(place) = Place::new() else { return };
    let node = place.start(&[]);
    let other = place.other.display().to_string();
    node.layby(&["volume", "create", "two", "--path", &other]);
    fill(&node, "db", 1);
    node.layby(&["volume", "drain", "db"]);
    fill(&node, "db", 2);
    node.kill9();
    let before = place.bytes();
    let node = place.start_without(&[]);
    assert!(!node.serves("db"), "{}", node.said());
    let said = node.said();
    assert!(said.contains("volume `db` is not served") && said.contains(FOREIGN), "{said}");
    assert!(said.contains("--accept-file"), "what to do is said: {said}");
    assert!(!node.stderr().contains("volume created"), "{}", node.stderr());
    let dir = place.dir.display().to_string();
    let refused = layby(&["volume", "create", "two", "--path", &other, "--dir", &dir]);
    assert!(!refused.success && refused.stderr.contains(FOREIGN), "{refused:?}");
    assert!(refused.stderr.contains("setfattr -n user.layby.node -v '- 0 "), "{refused:?}");
    node.volume_create("own", "1MiB", "normal");
    fill(&node, "own", 5);
    node.layby(&["volume", "delete", "db", "--data", "delete"]);
    node.stop();
    assert!(place.bytes() == before, "the file was changed");
    fs::remove_dir_all(&place.dir).expect("the test's own folder");
    fs::rename(&place.away, &place.dir).expect("the test's own folder");
    let node = place.start(&[]);
    assert_holds(&node, "db", Some(2));
    node.layby(&["volume", "drain", "db"]);
    node.stop();
    assert!(place.is_marked(), "a stop gives nothing away");
}

/// Goal: an operator can give a file to another node, and the old one's dirty blocks do not go over
/// what is written there then (they did), whatever the old one is told: it does not lengthen the
/// file, refuses to take it back under its levels' older blocks (it did not, and its hint said so),
/// and leaves it when the volume is given up there; the volume that goes and leaves its file
/// leaves it to nobody. Method: the directory away, the file accepted and written, the directory
/// back, a check; the file's bytes before and after each; a deletion that keeps the data.
#[test]
fn a_file_that_was_taken_over_is_kept_from_its_old_node() {
    let Some(place) = Place::new() else { return };
    let node = place.start(&[]);
    fill(&node, "db", 1);
    node.kill9();
    let node = place.start_without(&["--accept-file", "db", "--accept-file", "none"]);
    assert!(node.said().contains("--accept-file names what is no volume: `none`"));
    fill(&node, "db", 2);
    node.layby(&["volume", "drain", "db"]);
    node.stop();
    let new = place.dir.with_file_name("new");
    fs::rename(&place.dir, &new).expect("the test's own folder");
    fs::rename(&place.away, &place.dir).expect("the test's own folder");
    let before = place.bytes();
    let dir = place.dir.display().to_string();
    let check = layby(&["check", "--dir", &dir]);
    assert!(!check.success && format!("{check:?}").contains(FOREIGN), "{check:?}");
    let way = "layby volume delete";
    place.refused("size = \"2MiB\"\n", &[]).assert_explains(&[FOREIGN, way]);
    assert!(place.bytes() == before, "another node's file was made longer");
    place.refused("", &["--accept-file", "db"]).assert_explains(&[FOREIGN, "older blocks", way]);
    let node = place.start(&[]);
    assert!(!node.serves("db") && node.said().contains(FOREIGN), "{}", node.said());
    assert!(node.said().contains(way), "{}", node.said());
    node.layby(&["volume", "delete", "db", "--data", "delete"]);
    node.stop();
    assert!(place.bytes() == before, "old blocks went over newer ones");
    fs::rename(&place.dir, &place.away).expect("the test's own folder");
    fs::rename(&new, &place.dir).expect("the test's own folder");
    let node = place.start(&[]);
    assert_holds(&node, "db", Some(2));
    node.layby(&["volume", "delete", "db", "--data", "keep"]);
    assert!(place.bytes() == before);
}

/// Goal: a file that was taken over and given away again is not taken for its own by the first node
/// (it was, and older dirty blocks went over newer writes), nor on that node's order; a third node
/// serves it. Method: a file with dirty blocks of one node, accepted, written and given away by a
/// second one; the first one back; its volume given up; a new node.
#[test]
fn a_file_that_was_given_away_is_kept_from_its_first_node() {
    let Some(place) = Place::new() else { return };
    let node = place.start(&[]);
    fill(&node, "db", 1);
    node.kill9();
    let node = place.start_without(&["--accept-file", "db"]);
    fill(&node, "db", 2);
    node.layby(&["volume", "drain", "db"]);
    node.layby(&["volume", "delete", "db", "--data", "keep"]);
    node.stop();
    assert!(place.is_marked(), "the first node may have older blocks");
    let before = place.bytes();
    fs::remove_dir_all(&place.dir).expect("the test's own folder");
    fs::rename(&place.away, &place.dir).expect("the test's own folder");
    let older = "may be older";
    place.refused("", &["--accept-file", "db"]).assert_explains(&[older, "older blocks"]);
    let node = place.start(&[]);
    assert!(!node.serves("db") && node.said().contains(older), "{}", node.said());
    node.layby(&["volume", "delete", "db", "--data", "delete"]);
    node.stop();
    assert!(place.bytes() == before, "old blocks went over newer ones");
    let node = place.start_without(&[]);
    assert_holds(&node, "db", Some(2));
    node.stop();
    assert!(place.is_marked());
}

/// Goal: the file of a volume that an earlier version made is marked by the next start. Method: the
/// mark removed while the node is stopped.
#[test]
fn a_start_marks_what_bears_no_mark() {
    let Some(place) = Place::new() else { return };
    place.start(&[]).stop();
    assert!(place.is_marked());
    removexattr(&place.file, MARK).expect("it was there");
    place.start(&[]).stop();
    assert!(place.is_marked());
}

/// Goal: a node that has levels in memory alone leaves no mark, so that the next one serves the
/// files of one that was thrown away, as a container is. Method: two directories, one file.
#[test]
fn a_node_of_memory_alone_marks_nothing() {
    let Some(place) = Place::new() else { return };
    let memory = "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n";
    let options = place.options(memory, "", &[]);
    let node = Node::start(&place.dir, &options);
    fill(&node, "db", 1);
    node.kill9();
    assert!(!place.is_marked(), "it keeps nothing from the file");
    fs::remove_dir_all(&place.dir).expect("the test's own folder");
    let node = Node::start(&place.dir, &options);
    assert_holds(&node, "db", Some(1));
}

/// Goal: no mark is left on a file that another program has locked. Method: a start that is refused
/// for that, and one after it.
#[test]
fn a_file_that_is_in_use_is_not_marked() {
    let Some(place) = Place::new() else { return };
    let file = fs::File::open(&place.file).expect("it is there");
    flock(&file, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it");
    place.refused("", &[]).assert_explains(&["stop the other program"]);
    assert!(!place.is_marked(), "it is another program's");
    drop(file);
    place.start(&[]).stop();
    assert!(place.is_marked());
}
