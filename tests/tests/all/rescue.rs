//! What is there and cannot be read or reached, through the binary.
//!
//! How: links in the place of files.

use layby_tests::{Node, Options, layby};
use std::fs;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

/// The exit code of what may succeed later: the unit starts the node again.
const LATER: Option<i32> = Some(1);

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
