//! What is neither a file nor a block device in the place of one: refused at once, with its name.
//!
//! How: a pipe that no process writes to, a socket, a character device where a node is told to keep
//! or to find a level, a volume, a journal, a key or a TLS file; through the binary.
//! Invariant: nothing waits for a pipe's other end, which the harness ends with a failure.
//! Not for: pipes that something is read from as a stream, such as a trace or standard input.

use layby_tests::{Node, Options, layby, must, small_levels};
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A pipe, a socket and a character device, and how each is called; the socket stays as long as its
/// listener.
fn no_disks(folder: &Path) -> (Vec<(PathBuf, &'static str)>, UnixListener) {
    let [pipe, socket] = ["pipe", "socket"].map(|name| folder.join(name));
    must("mkfifo", &[&pipe.to_string_lossy()]);
    let listener = UnixListener::bind(&socket).expect("the test's own folder");
    let all = vec![
        (pipe, "a pipe (FIFO)"),
        (socket, "a socket"),
        ("/dev/zero".into(), "a character device"),
    ];
    (all, listener)
}

fn level(kind: &str, path: &Path) -> Options {
    Options::config(format!(
        "[[level]]\nname = \"own\"\nkind = \"{kind}\"\nsize = \"64MiB\"\npath = {path:?}\n"
    ))
}

/// Goal: a level in no file and on no block device is refused at once, by what it is, and a level
/// that has become one as well, by the check, too. Method: each of them as a new node's level; then
/// in the place of a level that a node has used, whose file comes back.
#[test]
fn a_level_is_a_file_or_a_device() {
    let work = TempDir::new().expect("a temporary folder");
    let (paths, _listener) = no_disks(work.path());
    for (path, what) in &paths {
        for kind in ["nvm", "ssd"] {
            let dir = work.path().join("new");
            let refusal = Node::try_start(&dir, &level(kind, path)).expect_err(what);
            refusal.assert_explains(&["level `own`", &path.to_string_lossy(), what]);
            assert_eq!(refusal.code, Some(2), "{}", refusal.stderr);
        }
    }
    let (dir, place, away) =
        (work.path().join("node"), work.path().join("level"), work.path().join("away"));
    Node::start(&dir, &level("ssd", &place)).stop();
    fs::rename(&place, &away).expect("the test's own folder");
    for (path, what) in &paths {
        std::os::unix::fs::symlink(path, &place).expect("the test's own folder");
        let refusal = Node::try_start(&dir, &level("ssd", &place)).expect_err(what);
        refusal.assert_explains(&["level `own`", what]);
        let checked = layby(&["check", "--dir", &dir.to_string_lossy()]);
        let said = format!("{}{}", checked.stdout, checked.stderr);
        assert!(!checked.success && said.contains("neither a file nor a block device"), "{said}");
        fs::remove_file(&place).expect("the test's own folder");
    }
    fs::rename(&away, &place).expect("the test's own folder");
    Node::start(&dir, &level("ssd", &place)).stop();
}

/// Goal: a pipe with a name in the place of the configuration is refused at once. Method: one that
/// no process writes to, named by `--config`, and in the place of the node's own.
#[test]
fn a_configuration_is_no_pipe() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    fs::create_dir(&dir).expect("the test's own folder");
    let [named, own] = [work.path().join("pipe"), dir.join("layby.toml")];
    for pipe in [&named, &own] {
        must("mkfifo", &[&pipe.to_string_lossy()]);
    }
    let by_name = vec!["--config".to_owned(), named.to_string_lossy().into_owned()];
    for arguments in [by_name, Vec::new()] {
        let options = Options { arguments, ..Options::default() };
        let refusal = Node::try_start(&dir, &options).expect_err("it is a pipe");
        refusal.assert_explains(&["cannot read configuration", "a pipe (FIFO)"]);
        assert_eq!(refusal.code, Some(2), "{}", refusal.stderr);
    }
}

/// Goal: a volume in no file and on no block device is refused at once, by what it is, whether the
/// configuration or a command names it, and where it has become one its node serves the others.
/// Method: each of them as a new volume; then in the place of a volume's file, which comes back.
#[test]
fn a_volume_is_a_file_or_a_device() {
    let work = TempDir::new().expect("a temporary folder");
    let (paths, _listener) = no_disks(work.path());
    let config = |volume: &Path, more: &str| {
        let levels = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n";
        let roots = format!("[node]\nvolume_roots = [{:?}, \"/dev\"]\n", work.path());
        Options::config(format!("{roots}{levels}[volume.own]\n{more}path = {volume:?}\n"))
    };
    for (path, what) in &paths {
        for size in ["", "size = \"4MiB\"\n"] {
            let dir = work.path().join("new");
            let refusal = Node::try_start(&dir, &config(path, size)).expect_err(what);
            refusal.assert_explains(&["own", "neither a file nor a block device"]);
            drop(fs::remove_dir_all(&dir));
        }
    }
    let (dir, place, away) =
        (work.path().join("node"), work.path().join("own"), work.path().join("away"));
    let options = config(&place, "size = \"4MiB\"\n");
    let node = Node::start(&dir, &options);
    node.layby(&["volume", "create", "other", "--size", "4MiB"]);
    for (path, what) in &paths {
        for size in [&[][..], &["--size", "4MiB"]] {
            let path = path.to_string_lossy();
            let words = [&["volume", "create", "new", "--path", &path], size].concat();
            let node = dir.to_string_lossy();
            let refused = layby(&[&words[..], &["--dir", &node]].concat());
            refused.assert_explains(&["neither a file nor a block device"]);
            assert!(refused.stderr.contains(what) || !size.is_empty(), "{}", refused.stderr);
        }
    }
    node.stop();
    fs::rename(&place, &away).expect("the test's own folder");
    for (path, what) in &paths {
        std::os::unix::fs::symlink(path, &place).expect("the test's own folder");
        let node = Node::start(&dir, &options);
        assert!(node.serves("other") && !node.serves("own"), "{what}: {}", node.said());
        node.stop();
        let checked = layby(&["check", "--backing", "--dir", &dir.to_string_lossy()]);
        let said = format!("{}{}", checked.stdout, checked.stderr);
        assert!(!checked.success && said.contains("neither a file nor a block device"), "{said}");
        fs::remove_file(&place).expect("the test's own folder");
    }
    fs::rename(&away, &place).expect("the test's own folder");
    let node = Node::start(&dir, &options);
    assert!(node.serves("own"));
    node.stop();
}

/// Goal: a key file and TLS files that are pipes end the start, or the creation, at once. Method: a
/// pipe as each of them.
#[test]
fn keys_and_tls_files_are_files() {
    let work = TempDir::new().expect("a temporary folder");
    let (paths, _listener) = no_disks(work.path());
    let pipe = paths[0].0.to_string_lossy();
    let tls = format!("[nbd]\ntls = \"allowed\"\ntls_certificate = {pipe:?}\ntls_key = {pipe:?}\n");
    let levels = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n";
    let dir = work.path().join("tls");
    let refusal = Node::try_start(&dir, &Options::config(format!("{tls}{levels}")));
    refusal.expect_err("a pipe").assert_explains(&[&pipe]);
    let dir = work.path().join("node");
    let _node = Node::start(&dir, &small_levels());
    let store = format!("file://{}", work.path().join("store").display());
    let key = format!("file:{pipe}");
    let words = ["volume", "create", "far", "--size", "4MiB", "--path", &store, "--key", &key];
    let refused = layby(&[&words[..], &["--dir", &dir.to_string_lossy()]].concat());
    assert!(!refused.success && refused.stderr.contains("error: "), "{}", refused.stderr);
}
