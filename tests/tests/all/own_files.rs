//! No level, volume, folder or socket is put in the place of a file of the node's own.
//!
//! How: starts that must be refused before anything is made, with the node's directory as an
//! absolute path and as a relative one; then commands to a node that runs.
//! Invariant: what is refused leaves the directory as it was.
//! Not for: files of two levels or volumes; see the daemon's own tests.

use layby_tests::{Node, Refusal, binary, layby};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const MEMORY: &str = "[[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n";
const OWN: &str = "of the node's own";

struct Site {
    work: TempDir,
}

impl Site {
    fn new() -> Site {
        let site = Site { work: TempDir::new().expect("a temporary folder") };
        fs::create_dir(site.dir()).expect("the test's own folder");
        site
    }

    fn dir(&self) -> PathBuf {
        self.work.path().join("node")
    }

    /// Starts a node, from the folder that its directory is in.
    fn start(&self, dir: &Path, config: &str) -> Result<Node, Refusal> {
        let file = self.work.path().join("node.toml");
        fs::write(&file, config).expect("the test's own folder");
        let mut command = Command::new(binary());
        command.current_dir(self.work.path()).arg("serve").arg("--dir").arg(dir);
        command.arg("--config").arg(&file);
        Node::spawn(command, &self.dir())
    }

    /// What is in the directory, with links as they are.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut folders = vec![self.dir()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("readable") {
                let path = entry.expect("readable").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push((path.clone(), fs::read(path).unwrap_or_default())),
                }
            }
        }
        found.sort();
        found
    }

    /// Starts with each way to write the directory: all are refused, and nothing is made.
    #[track_caller]
    fn refuses(&self, config: &str) {
        let before = self.files();
        for dir in [Path::new("node").to_owned(), Path::new("./node").to_owned(), self.dir()] {
            match self.start(&dir, config) {
                Ok(_) => panic!("`{}` takes it: {config}", dir.display()),
                Err(refusal) => {
                    assert_eq!(refusal.code, Some(2), "{config}\n{}", refusal.stderr);
                    assert!(refusal.stderr.contains(OWN), "{config}\n{}", refusal.stderr);
                }
            }
            assert_eq!(self.files(), before, "`{}` made something: {config}", dir.display());
        }
    }
}

fn level(path: &str) -> String {
    format!("[[level]]\nname = \"a\"\nkind = \"ssd\"\nsize = \"8MiB\"\npath = \"{path}\"\n")
}

fn volume(path: &str) -> String {
    format!("{MEMORY}[volume.v]\nsize = \"4MiB\"\npath = \"{path}\"\n")
}

/// Each kind of path of a configuration, in the place of `name`.
fn all(name: &str) -> Vec<String> {
    let key = |table: &str, key: &str| format!("[{table}]\n{key} = \"{name}\"\n{MEMORY}");
    vec![
        level(name),
        volume(name),
        key("cloud", "journal_dir"),
        key("cloud", "map_dir"),
        key("vhost", "directory"),
        key("nbd", "socket"),
        key("control", "socket"),
    ]
}

/// Goal: no path of a configuration is the place of a file that the node writes or reads, however
/// its directory is written. Method: each kind of path with names of such files, on a new node;
/// a folder of the node's as a level, a volume and a store.
#[test]
fn a_configuration_names_no_own_file() {
    let site = Site::new();
    for name in ["catalog.json", "control.url", "audit.log", "lock", "./audit-refused.log.1"] {
        all(name).iter().for_each(|config| site.refuses(config));
    }
    for name in ["cloud", "levels", "vhost", "ublk", "vhost/x", "cloud/1.map"] {
        site.refuses(&level(name));
        site.refuses(&volume(name));
    }
    for name in ["cloud", "levels/x", "catalog.json", "vhost"] {
        site.refuses(&volume(&format!("file://{}/{name}", site.dir().display())));
    }
}

/// Goal: the same where the path is another name of such a file: a symbolic link, a hard link, or a
/// folder that is one. Method: a node that was, whose catalog and configuration have such names.
#[test]
fn a_link_to_an_own_file_is_one() {
    let site = Site::new();
    site.start(Path::new("node"), &volume("volumes/w")).expect("it serves").stop();
    let elsewhere = site.work.path();
    let catalog = site.dir().join("catalog.json");
    symlink("node/catalog.json", elsewhere.join("soft")).expect("the test's own folder");
    fs::hard_link(&catalog, elsewhere.join("hard")).expect("the test's own folder");
    fs::hard_link(&catalog, site.dir().join("inside")).expect("the test's own folder");
    symlink("node", elsewhere.join("folder")).expect("the test's own folder");
    symlink("audit.log", site.dir().join("dangling")).expect("the test's own folder");
    fs::remove_file(site.dir().join("audit.log")).ok();
    let shown = |name: &str| elsewhere.join(name).to_string_lossy().into_owned();
    for name in [shown("soft"), shown("hard"), "inside".to_owned(), "dangling".to_owned()] {
        site.refuses(&level(&name));
        site.refuses(&volume(&name));
    }
    for name in [shown("folder/audit.log"), shown("folder/catalog.json")] {
        all(&name).iter().for_each(|config| site.refuses(config));
    }
    site.refuses(&volume(&format!("file://{}/cloud", shown("folder"))));
    let own = format!("{MEMORY}[control]\ntoken_file = \"tokens\"\n");
    fs::write(site.dir().join("tokens"), "a secret\n").expect("the test's own folder");
    for name in ["tokens", "../node.toml"] {
        site.refuses(&format!("[control]\ntoken_file = \"tokens\"\n{}", level(name)));
        site.refuses(&format!("{own}[volume.v]\nsize = \"4MiB\"\npath = \"{name}\"\n"));
    }
}

/// Goal: commands to a node whose directory is relative name none of its files either. Method:
/// volumes and stores in the place of its files, by name and by link.
#[test]
fn a_command_names_no_own_file() {
    let site = Site::new();
    let node = site.start(Path::new("node"), &volume("volumes/w")).expect("it serves");
    fs::hard_link(site.dir().join("catalog.json"), site.dir().join("hard")).expect("a link");
    symlink("catalog.json", site.dir().join("soft")).expect("a link");
    symlink("node", site.work.path().join("other")).expect("a link");
    let dir = site.dir().to_string_lossy().into_owned();
    let store = |name: &str| format!("file://{}/{name}", site.work.path().display());
    let paths = ["catalog.json", "audit.log", "hard", "soft", "levels/x", "cloud/x"];
    let paths = paths.map(|name| site.dir().join(name).to_string_lossy().into_owned());
    let stores = ["node/cloud", "node/levels/x", "node/catalog.json", "other/cloud", "node/vhost"];
    for path in paths.into_iter().chain(stores.map(store)) {
        let create = ["volume", "create", "x", "--size", "4MiB", "--path", &path, "--dir", &dir];
        let refused = layby(&create);
        assert!(!refused.success, "{path}: {}", refused.stdout);
        assert!(refused.stderr.contains("own"), "{path}: {}", refused.stderr);
    }
    node.stop();
}
