//! What is there and cannot be read or reached: a configuration, folders, names, a disk that is
//! mounted read-only; through the binary.
//!
//! How: links in the place of files, folders that are not mounted yet, and a small file system that
//! is mounted anew read-only. Where that needs rights, the test says so and skips.

use layby_tests::{Connection, Node, Options, Request, SmallDisk, layby, must, small_levels};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

/// The exit code of what may succeed later: the unit starts the node again.
const LATER: Option<i32> = Some(1);

/// A node with a small volume `maps` in a store, which is a folder of `work`.
fn options(work: &Path, more: &str) -> Options {
    let levels = small_levels().config.expect("it has one");
    let store = work.join("store");
    fs::create_dir_all(&store).expect("the test's own folder");
    Options::config(format!(
        "{more}[cloud]\njournal = \"64MiB\"\n{levels}\n[volume.maps]\nsize = \"1MiB\"\n\
         path = \"file://{}\"\n",
        store.display()
    ))
}

fn write(node: &Node) {
    let mut connection = Connection::open(&node.socket(), "maps").expect("the node serves");
    let write = Request::Write { offset: 0, data: vec![7; 4096], fua: true };
    connection.call(&write).expect("the connection stays").expect("there is room");
}

/// Goal: a configuration in the node's directory that cannot be looked at ends each command that
/// reads it: without what it says of TLS and who is let in no node starts. Method: a loop of links
/// and a link that leads nowhere in its place; then no file.
#[test]
fn a_configuration_that_cannot_be_read_is_not_missing() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    fs::create_dir(&dir).expect("the test's own folder");
    let file = dir.join("layby.toml");
    let place = dir.to_string_lossy();
    for (target, cause) in [(file.clone(), "symbolic"), (work.path().join("gone"), "missing")] {
        symlink(target, &file).expect("a link");
        let words = ["layby.toml", cause, "nothing was started or changed"];
        let refused = Node::try_start(&dir, &Options::default()).expect_err("it is not known");
        refused.assert_explains(&words);
        assert_eq!(refused.code, LATER, "a target may be mounted yet");
        layby(&["salvage", "maps", "--dir", &place]).assert_explains(&words);
        assert_eq!(fs::read_dir(&dir).expect("it is there").count(), 1, "the link alone");
        fs::remove_file(&file).expect("the test's own link");
    }
    layby(&["salvage", "maps", "--dir", &place]).assert_explains(&["no node's catalog"]);
}

/// Goal: a folder of `volume_roots` that is missing costs what is to be placed in it, and no start;
/// once it is there, what is placed in it is as in any other. Method: a folder that is made later,
/// beside one that is there.
#[test]
fn a_missing_root_refuses_what_lies_there_alone() {
    let work = TempDir::new().expect("a temporary folder");
    let [dir, late, near] = ["node", "late", "near"].map(|name| work.path().join(name));
    fs::create_dir(&near).expect("the test's own folder");
    let roots = format!("[node]\nvolume_roots = [{late:?}, {near:?}]\n");
    let options = options(work.path(), &roots);
    let node = Node::start(&dir, &options);
    let named = format!("`{}` of `volume_roots`", late.display());
    let note = node.said().lines().any(|l| l.starts_with("note: ") && l.contains(&named));
    assert!(note && node.stderr().contains(&named), "{}\n{}", node.said(), node.stderr());
    let (far, place) = (late.join("v").display().to_string(), dir.to_string_lossy());
    let create = ["volume", "create", "v", "--size", "1MiB", "--dir", &place, "--path", &far];
    layby(&create).assert_explains(&[&named, "No such file", "mount"]);
    assert!(!late.exists(), "nothing was made there");
    let other = near.join("w").display().to_string();
    node.layby(&["volume", "create", "w", "--size", "1MiB", "--path", &other]);
    fs::create_dir(&late).expect("the test's own folder");
    node.layby(&create[..5].iter().copied().chain(["--path", &far]).collect::<Vec<_>>());
    node.stop();
    fs::remove_dir_all(&late).expect("the test's own folder");
    let config = dir.with_extension("toml").to_string_lossy().into_owned();
    let salvage = layby(&["salvage", "maps", "--dir", &place, "--config", &config]);
    assert!(salvage.success, "{salvage:?}");
}

/// Goal: a name that has no address is no mistake of the configuration: the start ends as for an
/// address that is not there yet, and what only reads asks no resolver. Method: a name that never
/// has one, for each kind of address, in the file and as a flag; a word that is no address.
#[test]
fn a_name_without_an_address_may_have_one_later() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let name = "nowhere.invalid:1";
    for text in [
        format!("[nbd]\nlisten = [\"{name}\"]\n"),
        format!("[control]\nhttp = \"{name}\"\n"),
        format!("[control]\nmetrics = \"{name}\"\n"),
    ] {
        let refused = Node::try_start(&dir, &options(work.path(), &text));
        let refused = refused.expect_err("it has no address");
        refused.assert_explains(&[&format!("cannot listen on `{name}`"), "resolver"]);
        assert_eq!(refused.code, LATER, "{text}");
        let config = dir.with_extension("toml").to_string_lossy().into_owned();
        let place = dir.to_string_lossy();
        let salvage = layby(&["salvage", "maps", "--dir", &place, "--config", &config]);
        salvage.assert_explains(&["no node's catalog"]);
    }
    let told = Options {
        arguments: ["--listen", name].map(str::to_owned).into(),
        ..options(work.path(), "")
    };
    let refused = Node::try_start(&dir, &told).expect_err("it has no address");
    assert_eq!(refused.code, LATER, "{}", refused.stderr);
    let wrong = options(work.path(), "[nbd]\nlisten = [\"no name:1\"]\n");
    let refused = Node::try_start(&dir, &wrong).expect_err("it is no address");
    refused.assert_explains(&["line 2", "no name"]);
    assert_eq!(refused.code, Some(2));
}

/// Goal: what a lost node left on a file system that is mounted read-only is checked and salvaged,
/// with its lock held where there is one, and a note where there is none. Method: a node on a small
/// file system; the file system read-only, with the lock's file and without it.
#[test]
fn a_read_only_disk_is_checked_and_salvaged() {
    let work = TempDir::new().expect("a temporary folder");
    let Some(disk) = SmallDisk::new(&work.path().join("disk"), "512M") else { return };
    let dir = disk.path().join("node");
    let node = Node::start(&dir, &options(work.path(), ""));
    write(&node);
    node.stop();
    let config = dir.with_extension("toml").to_string_lossy().into_owned();
    let (place, point) = (dir.to_string_lossy(), disk.path().to_string_lossy());
    let note = "read-only and has no lock";
    for has_lock in [true, false] {
        if !has_lock {
            must("mount", &["-o", "remount,rw", &point]);
            fs::remove_file(dir.join("lock")).expect("the test's own disk");
        }
        must("mount", &["-o", "remount,ro", &point]);
        let check = layby(&["check", "--dir", &place]);
        assert!(check.success, "{check:?}");
        assert_eq!(check.stdout.contains(note), !has_lock, "{check:?}");
        let salvage = layby(&["salvage", "maps", "--all", "--dir", &place, "--config", &config]);
        assert!(salvage.success && salvage.stdout.contains("maps"), "{salvage:?}");
        assert_eq!(salvage.stdout.contains(note), !has_lock, "{salvage:?}");
    }
    must("mount", &["-o", "remount,rw", &point]);
}
