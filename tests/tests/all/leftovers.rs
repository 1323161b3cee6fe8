//! What uploads that were cut short leave in a folder that is a volume's store; through the binary.
//!
//! How: a kill in an upload cannot be timed, so that the files that one leaves are made by hand.
//! What the node does by itself is waited for by asking it again and again, and never by a time.

use layby_tests::{Connection, Node, Request, small_levels};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Questions to a node at most, until it has done what it does by itself.
const QUESTIONS_MAX: usize = 4000;
/// Another volume's files, below this one's folder, and files of no volume.
const OTHERS: [&str; 6] = [
    "notes.txt#1",
    "other/segments/0000000000000001-00000000#1",
    "other/superblock",
    "other/superblock#0",
    "segments/notes.txt#1",
    "segments/other/segments/0000000000000001-00000000#1",
];
const LATER: &str = "segments/00000000000000ff-000000ff#1";

fn start(work: &Path) -> Node {
    Node::start(&work.join("node"), &small_levels())
}

fn create(node: &Node, bucket: &Path) {
    let url = format!("file://{}", bucket.display());
    node.layby(&["volume", "create", "v", "--size", "1MiB", "--path", &url]);
}

fn write(node: &Node, value: u8) {
    let mut client = Connection::open(&node.socket(), "v").expect("it is served");
    let write = Request::Write { offset: 0, data: vec![value; 64 << 10], fua: true };
    client.call(&write).expect("it serves").expect("a sound disk");
    node.layby(&["volume", "drain", "v"]);
}

/// Files below a folder by their names in it.
fn files(folder: &Path) -> BTreeSet<String> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        // What the node removes meanwhile is not there.
        for entry in std::fs::read_dir(next).into_iter().flatten() {
            let path: PathBuf = entry.expect("readable").path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).expect("it is below");
                    found.insert(name.to_string_lossy().into_owned());
                }
            }
        }
    }
    found
}

fn plant(bucket: &Path, names: &[String]) {
    for name in names {
        let path = bucket.join(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("the test's own");
        std::fs::write(path, b"a tenant's data").expect("the test's own");
    }
}

/// What uploads and probes of the node left, in each folder of the volume.
fn cut_short(bucket: &Path) -> Vec<String> {
    let superblock = std::fs::read_to_string(bucket.join("superblock")).expect("it is there");
    let line = superblock.lines().next().expect("it has one");
    let block: serde_json::Value = serde_json::from_str(line).expect("it is JSON");
    let (node, epoch) = (&block["node"].as_str().expect("its number"), &block["epoch"]);
    let epoch = epoch.as_u64().expect("a number");
    vec![
        format!("checkpoints/00000000000000ff-{epoch:08x}#1"),
        format!("probes/{node}-0000000000000007#0"),
        format!("probes/{node}-0000000000000007#1"),
        format!("segments/00000000000000ff-{epoch:08x}#1"),
        format!("segments/00000000000000ff-{epoch:08x}#2"),
        format!("snapshots/00000000000000ff-{epoch:08x}-00000001#1"),
        "superblock#1".to_owned(),
    ]
}

fn others() -> BTreeSet<String> {
    OTHERS.iter().map(|name| (*name).to_owned()).collect()
}

/// Goal: a start removes what earlier starts' uploads left when they were cut short, and its probes
/// leave nothing; a removal of the volume takes all that is its own. Nothing of another volume
/// below it goes, nor a stranger's file, nor what a later session than the start's may be writing.
/// Method: kills, with such files by hand between them; `volume delete --data now`.
#[test]
fn what_was_cut_short_is_removed() {
    let work = tempfile::TempDir::new().expect("a temporary folder");
    let bucket = work.path().join("bucket");
    let mut node = start(work.path());
    create(&node, &bucket);
    plant(&bucket, &OTHERS.map(str::to_owned));
    plant(&bucket, &[LATER.to_owned()]);
    for round in 0..3 {
        write(&node, round);
        node.kill9();
        let left = cut_short(&bucket);
        plant(&bucket, &left);
        node = start(work.path());
        let is_swept = (0..QUESTIONS_MAX).any(|_| {
            node.layby(&["volume", "show", "v"]);
            let found = files(&bucket);
            left.iter().all(|name| !found.contains(name))
        });
        assert!(is_swept, "round {round}: {:?}", files(&bucket));
    }
    write(&node, 9);
    let found = files(&bucket);
    let odd: Vec<&String> = found.iter().filter(|name| name.contains('#')).collect();
    let kept = others().into_iter().filter(|name| name.contains('#'));
    let kept: BTreeSet<String> =
        kept.chain([LATER.to_owned(), "superblock#0".to_owned()]).collect();
    assert_eq!(odd, kept.iter().collect::<Vec<_>>());
    plant(&bucket, &cut_short(&bucket));
    plant(&bucket, &["probes/00000000000000000000000000000001-0000000000000007#0".to_owned()]);
    let said = node.layby(&["volume", "delete", "v", "--data", "now"]);
    assert!(said.contains("and its data"), "{said}");
    assert_eq!(files(&bucket), others());
    for gone in ["probes", "checkpoints", "snapshots"] {
        assert!(!bucket.join(gone).exists(), "{gone}");
    }
}

/// Goal: a volume that was removed leaves nothing in the folder where it was, not even the folder,
/// and another one can be made there, also beside what an earlier version left. Method: volumes
/// made and removed at one place, the last beside such a file.
#[test]
fn a_removed_volume_leaves_no_folder() {
    let work = tempfile::TempDir::new().expect("a temporary folder");
    let bucket = work.path().join("stores/bucket");
    let node = start(work.path());
    for round in 0..3 {
        if round == 2 {
            plant(&bucket, &["segments/0000000000000001-00000001#1".to_owned()]);
        }
        create(&node, &bucket);
        write(&node, round);
        node.layby(&["volume", "delete", "v", "--data", "now"]);
        assert!(!bucket.exists(), "round {round}: {:?}", files(&bucket));
        assert!(work.path().join("stores").exists(), "it is not the volume's");
    }
}
