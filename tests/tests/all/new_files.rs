//! Files that commands make: new ones under names of their own, through no link, over nothing.
//!
//! How: a trap in the place of each file: links to a file of value, something that is no file.
//! Not for: what is in the files.

use layby_tests::{Node, Options, Outcome, layby, small_levels};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PRECIOUS: &[u8] = b"precious";

fn precious(work: &TempDir) -> PathBuf {
    let path = work.path().join("precious");
    std::fs::write(&path, PRECIOUS).expect("the test's own folder");
    path
}

#[track_caller]
fn is_untouched(path: &Path) {
    assert_eq!(std::fs::read(path).expect("it is there"), PRECIOUS);
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn generate(out: &Path, more: &[&str]) -> Outcome {
    let out = shown(out);
    let words = ["trace", "generate", &out, "--shape", "zipf", "--requests", "100"];
    layby(&[&words[..], &["--footprint", "1MiB", "--to", "csv"], more].concat())
}

/// Goal: a trace is written through no link, and takes the place of nothing that is no file.
/// Method: links where its unfinished file lay once and where it goes, a pipe, a folder.
#[test]
fn a_trace_is_a_file_of_its_own() {
    let work = TempDir::new().expect("a temporary folder");
    let precious = precious(&work);
    let out = work.path().join("t.csv");
    symlink(&precious, work.path().join("t.csv.partial")).expect("the test's own folder");
    let made = generate(&out, &[]);
    assert!(made.success, "{}", made.stderr);
    is_untouched(&precious);
    let link = work.path().join("link.csv");
    symlink(&precious, &link).expect("the test's own folder");
    let dangling = work.path().join("dangling.csv");
    symlink(work.path().join("nowhere"), &dangling).expect("the test's own folder");
    let pipe = work.path().join("pipe.csv");
    assert!(layby_tests::run("mkfifo", &[&shown(&pipe)]).success);
    let folder = work.path().join("folder.csv");
    std::fs::create_dir(&folder).expect("the test's own folder");
    for place in [&link, &dangling, &pipe, &folder] {
        for more in [&[][..], &["--overwrite"]] {
            generate(place, more).assert_explains(&["no regular file"]);
        }
        assert!(!place.symlink_metadata().expect("it is there").is_file());
    }
    is_untouched(&precious);
    generate(Path::new("-"), &[]).assert_explains(&["standard output"]);
    let left = std::fs::read_dir(work.path())
        .expect("readable")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned());
    let partial: Vec<String> = left.filter(|name| name.ends_with(".partial")).collect();
    assert_eq!(partial, ["t.csv.partial"], "only the trap");
}

/// Goal: a restored image goes through no link and over no file, and where it is damaged its own
/// file is named. Method: a volume in a folder as its store, restored beside traps, then with a
/// damaged object.
#[test]
fn a_restored_image_is_a_file_of_its_own() {
    let work = TempDir::new().expect("a temporary folder");
    let precious = precious(&work);
    let bucket = work.path().join("bucket");
    let url = format!("file://{}", bucket.display());
    let levels = small_levels().config.expect("it has one");
    let config = format!("{levels}[volume.v]\nsize = \"1MiB\"\npath = \"{url}\"\n");
    let node = Node::start(&work.path().join("node"), &Options::config(config));
    let mut connection =
        layby_tests::Connection::open(&node.socket(), "v").expect("the node serves");
    let data = vec![7; 64 << 10];
    let write = layby_tests::Request::Write { offset: 0, data: data.clone(), fua: true };
    connection.call(&write).expect("the node serves").expect("no error");
    drop(connection);
    node.layby(&["volume", "drain", "v"]);
    node.stop();
    let out = work.path().join("image");
    symlink(&precious, work.path().join("image.partial")).expect("the test's own folder");
    let restore = |out: &Path| layby(&["restore", &url, &shown(out)]);
    let restored = restore(&out);
    assert!(restored.success, "{}", restored.stderr);
    is_untouched(&precious);
    assert!(std::fs::read(&out).expect("it was written").starts_with(&data));
    let dangling = work.path().join("dangling");
    symlink(work.path().join("nowhere"), &dangling).expect("the test's own folder");
    for taken in [&out, &dangling] {
        restore(taken).assert_explains(&["there is such a file already"]);
    }
    assert!(!work.path().join("nowhere").exists());
    damage(&bucket);
    let refused = restore(&work.path().join("second"));
    refused.assert_explains(&["is damaged", "second.", ".partial"]);
    assert!(!work.path().join("second").exists());
    is_untouched(&precious);
}

/// Flips bytes near the end of each segment.
fn damage(bucket: &Path) {
    for entry in std::fs::read_dir(bucket.join("segments")).expect("it has segments") {
        let path = entry.expect("readable").path();
        let mut bytes = std::fs::read(&path).expect("readable");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        let own = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, own).expect("the test's own file");
        std::fs::write(&path, bytes).expect("the test's own file");
    }
}

/// Goal: a socket's place is none of the node's own files, and a stop removes sockets alone.
/// Method: a socket called as the catalog; one whose place a file took meanwhile.
#[test]
fn a_stop_removes_sockets_alone() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let levels = small_levels().config.expect("it has one");
    for name in ["catalog.json", "audit.log", "levels"] {
        let config = format!("[nbd]\nsocket = \"{name}\"\n{levels}");
        let Err(refusal) = Node::try_start(&dir, &Options::config(config)) else {
            panic!("{name} is a socket")
        };
        refusal.assert_explains(&["socket", "of the node's own"]);
    }
    let node = Node::start(&dir, &small_levels());
    let moved = work.path().join("moved");
    std::fs::write(&moved, PRECIOUS).expect("the test's own folder");
    std::fs::rename(&moved, node.socket()).expect("the test's own folder");
    let socket = node.socket();
    node.stop();
    is_untouched(&socket);
    assert!(dir.join("catalog.json").exists());
}
