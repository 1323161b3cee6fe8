//! Deletions with data that leave the data where it is, and say so.
//!
//! How: backing stores that a deletion does not reach: what a symbolic link names, and a device.
//! Cost: a second each. Where loop devices need rights, a test says so and skips.

use layby_tests::{
    Connection, HttpRequest, LoopDevice, Node, Options, Request, available, layby,
    mount_unavailable, small_levels,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const LENGTH: usize = 4 << 20;

/// Writes over the whole of a volume, and has it written back.
fn fill(node: &Node, name: &str) {
    let mut connection = Connection::open(&node.socket(), name).expect("the node serves");
    let write = Request::Write { offset: 0, data: vec![7; LENGTH], fua: true };
    connection.call(&write).expect("the connection stays").expect("its home has room");
    node.layby(&["volume", "drain", name]);
}

fn is_whole(path: &Path) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes.starts_with(&[7; LENGTH]))
}

fn deleted(node: &Node, name: &str) -> String {
    node.layby(&["volume", "delete", name, "--data", "delete"])
}

/// Goal: of a volume that lies behind a symbolic link the answer says that the link went and what
/// still has the data, to people and to programs; a file of the node's own is thrown away.
/// Method: homes that were moved away, with links in their places, and one that was not.
#[test]
fn what_a_link_names_is_kept_and_said() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(&dir, &small_levels());
    for name in ["a", "b", "own"] {
        node.volume_create(name, "4MiB", "normal");
        fill(&node, name);
    }
    node.stop();
    let places = |name: &str| -> (PathBuf, PathBuf) {
        (dir.join("volumes").join(name), work.path().join(format!("{name}.image")))
    };
    for name in ["a", "b"] {
        let (link, image) = places(name);
        fs::rename(&link, &image).and_then(|()| symlink(&image, &link)).expect("our own folder");
    }
    let node = Node::start(&dir, &small_levels());
    let said = deleted(&node, "a");
    let (link, image) = places("a");
    for word in ["deleted volume a", "symbolic link", "still in", &image.display().to_string()] {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
    assert!(!said.contains("and its data"), "{said}");
    assert!(link.symlink_metadata().is_err() && is_whole(&image));

    let (link, image) = places("b");
    let answer = HttpRequest::new("DELETE", "/v1/volumes/b?data=delete").send_unix(&node.control());
    assert_eq!(answer.status, 200, "{answer:?}");
    let told: Value = serde_json::from_str(&answer.body).expect("an answer in JSON");
    assert_eq!(told, json!({"kept": image, "is_device": false, "link": link}));
    assert!(link.symlink_metadata().is_err() && is_whole(&image));

    assert_eq!(deleted(&node, "own").trim(), "deleted volume own and its data");
    assert!(!places("own").0.exists());
}

/// Goal: of a volume on a device the answer names the device and says that it keeps its bytes, also
/// behind a link, which stays. Method: two loop devices, one of them by a link.
#[test]
fn a_device_keeps_its_bytes_and_that_is_said() {
    if mount_unavailable() || !available(&["losetup"]) {
        return;
    }
    let work = TempDir::new().expect("a temporary folder");
    let files = ["first", "second"].map(|name| work.path().join(name));
    for file in &files {
        fs::write(file, vec![1; LENGTH]).expect("the test's own folder");
    }
    let devices = files.each_ref().map(|file| LoopDevice::new(file));
    let link = work.path().join("link");
    symlink(devices[1].path(), &link).expect("the test's own folder");
    let tables = format!(
        "{}\n[volume.first]\npath = \"{}\"\n\n[volume.second]\npath = \"{}\"\n",
        small_levels().config.expect("it has one"),
        devices[0].path(),
        link.display()
    );
    let node = Node::start(&work.path().join("node"), &Options::config(tables));
    for (name, device) in ["first", "second"].into_iter().zip(&devices) {
        fill(&node, name);
        let said = deleted(&node, name);
        for word in [&*format!("deleted volume {name}"), "still on the device", device.path()] {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
        assert!(!said.contains("and its data"), "{said}");
        let says_link = said.contains(&link.display().to_string());
        assert_eq!(says_link, name == "second", "{said}");
        assert!(is_whole(Path::new(device.path())));
    }
    assert!(link.symlink_metadata().is_ok(), "the link stays");
}

/// The words of the command that a refusal's hint begins with `begins`, as a person copies them.
fn advised(refused: &str, begins: &str) -> Vec<String> {
    let quoted = refused.split('`').find(|part| part.starts_with(begins));
    let command = quoted.unwrap_or_else(|| panic!("no `{begins}` in {refused}"));
    command.split(' ').skip(1).map(str::to_owned).collect()
}

/// Goal: what a refusal advises about the data of a deleted volume works word for word, and touches
/// no other volume that has its name by now. Method: the refusals of a prefix and of a file in the
/// way, with the name in use again; their commands as they stand there.
#[test]
fn advice_on_deleted_volumes_is_safe_to_follow() {
    let work = TempDir::new().expect("a temporary folder");
    let node = Node::start(&work.path().join("node"), &small_levels());
    let dir = work.path().join("node").display().to_string();
    let try_words = |words: &[&str]| layby(&[words, &["--dir", &dir]].concat());
    let place = |name: &str| format!("file://{}/{name}", work.path().display());
    let create = ["volume", "create", "maps", "--size", "4MiB", "--path"];
    for follow in ["layby volume delete", "layby volume undelete"] {
        let [old, new] = ["old", "new"].map(|part| place(&format!("{part}{}", follow.len())));
        node.layby(&[&create[..], &[&old]].concat());
        node.layby(&["volume", "delete", "maps", "--data", "delete"]);
        node.layby(&[&create[..], &[&new]].concat());
        let words = ["volume", "create", "other", "--size", "4MiB", "--path", &old];
        let refused = try_words(&words);
        let advised = advised(&refused.stderr, follow);
        let advised: Vec<&str> = advised.iter().map(String::as_str).collect();
        node.layby(&advised);
        let shown = node.layby(&["volume", "show", "maps", "--json"]);
        assert!(shown.contains(&new), "{follow}: the volume of now is {shown}");
        if follow.contains("undelete") {
            assert!(node.layby(&["volume", "show", "NEW_NAME"]).contains(&old));
        }
        node.layby(&["volume", "delete", "maps", "--data", "now"]);
    }
    node.layby(&["volume", "create", "a", "--size", "4MiB"]);
    node.layby(&["volume", "delete", "a"]);
    let refused = try_words(&["volume", "create", "a", "--size", "4MiB"]);
    let advised = advised(&refused.stderr, "--path ");
    node.layby(&["volume", "create", "a", "--path", &advised[0]]);
}
