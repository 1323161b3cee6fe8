//! Devices that are not there when a volume or a level is to be made on them.
//!
//! How: paths in `/dev` that nothing has, by the configuration and by a command.
//! Invariant: no file is made there. Not for: the backing of a volume that was served, see
//! `missing.rs`.

use layby_tests::{Node, Options, layby, small_levels};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A device that no machine has, which goes again if a failing test made it.
struct Missing(PathBuf);

impl Missing {
    fn new(name: &str) -> Missing {
        let path = PathBuf::from(format!("/dev/layby-{}-{name}", std::process::id()));
        assert!(path.symlink_metadata().is_err(), "nothing has that name");
        Missing(path)
    }

    #[track_caller]
    fn assert_missing(&self) {
        assert!(self.0.symlink_metadata().is_err(), "`{}` was made", self.0.display());
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

#[track_caller]
fn assert_start_refused(dir: &Path, config: String, missing: &Missing) {
    let named = missing.0.to_string_lossy().into_owned();
    match Node::try_start(dir, &Options::config(config)) {
        Ok(node) => {
            node.stop();
            panic!("`{named}` was made");
        }
        Err(refusal) => {
            refusal.assert_explains(&[&named, "the device is not there", "/dev/disk/by-id"]);
        }
    }
    missing.assert_missing();
}

/// Goal: a volume or a level on a device that is not there is refused, with the cause and a way
/// out, and makes no file in `/dev`, which would be lost with the machine. Method: starts with a
/// volume of the configuration there, with a size, without, and by a link; with a level there; a
/// command.
#[test]
fn a_missing_device_is_no_file() {
    let work = TempDir::new().expect("a temporary folder");
    let levels = small_levels().config.expect("it has one");
    let volume = |path: &Path, size: &str| {
        format!("{levels}\n[volume.v]\npath = \"{}\"\n{size}", path.display())
    };
    for (name, size) in [("sized", "size = \"1MiB\"\n"), ("whole", "")] {
        let missing = Missing::new(name);
        assert_start_refused(&work.path().join(name), volume(&missing.0, size), &missing);
    }
    let missing = Missing::new("linked");
    let link = work.path().join("link");
    std::os::unix::fs::symlink(&missing.0, &link).expect("a writable folder");
    let dir = work.path().join("linked");
    let refusal = Node::try_start(&dir, &Options::config(volume(&link, "size = \"1MiB\"\n")));
    let refusal = refusal.map(Node::stop).expect_err("the link leads there");
    refusal.assert_explains(&["link", "the device is not there"]);
    missing.assert_missing();
    let missing = Missing::new("level");
    let level = format!(
        "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"16MiB\"\npath = \"{}\"\n",
        missing.0.display()
    );
    assert_start_refused(&work.path().join("level"), level, &missing);
    let missing = Missing::new("made");
    let arguments = ["--volume-root", "/dev"].map(str::to_owned).to_vec();
    let node = Node::start(&work.path().join("made"), &Options { arguments, ..small_levels() });
    let named = missing.0.to_string_lossy().into_owned();
    let dir = work.path().join("made").display().to_string();
    let create = ["volume", "create", "x", "--size", "1MiB", "--path", &named, "--dir", &dir];
    let refused = layby(&create);
    refused.assert_explains(&[&named, "the device is not there", "/dev/disk/by-id"]);
    missing.assert_missing();
    node.stop();
}
