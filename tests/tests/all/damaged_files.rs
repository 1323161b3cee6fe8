//! Damage of the small files that a node keeps beside its catalog.
//!
//! How: a byte of one is changed by hand; a check and the next start follow.
//! Invariant: a check names each damaged file before a start meets it; no volume is served older
//! than was promised. Not for: the catalog itself, see `older.rs`; a level's bytes, see `damage.rs`.

use layby_tests::{Node, layby, small_levels};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Changes one digit of the checksum that a file carries.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).expect("the node wrote it");
    let key = b"\"crc32c\":\"";
    let at = bytes.windows(key.len()).position(|found| found == key).expect("it has a checksum");
    let digit = &mut bytes[at + key.len()];
    *digit = if *digit == b'0' { b'1' } else { b'0' };
    fs::write(path, bytes).expect("the test's own folder");
}

/// Goal: a check names each damaged file of a node that a start would do without, with what is lost
/// by that and what to do, and is not sound; the start says so once, however many volumes it opens,
/// and leaves a sound file where it writes one. Method: a node with two volumes in object stores; a
/// digit of each file's checksum; a check, a start, a check.
#[test]
fn a_check_names_damaged_files() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(&dir, &small_levels());
    for name in ["one", "two"] {
        let url = format!("file://{}/{name}", work.path().display());
        node.layby(&["volume", "create", name, "--size", "1MiB", "--path", &url]);
    }
    node.stop();
    let words = ["check", "--dir", &*dir.to_string_lossy()];
    for (name, cost, hint) in [
        ("catalog.last", "an older copy of the catalog", "`catalog.json`"),
        ("identities.json", "exchanged", "put each back in its place"),
        ("intents.json", "every volume counts as dirty", "volume drain"),
    ] {
        let sound = layby(&words);
        assert!(sound.success, "before {name}: {sound:?}");
        let (path, before) = (dir.join(name), fs::read(dir.join(name)).expect("it is there"));
        damage(&path);
        let checked = layby(&words);
        checked.assert_explains(&["is not sound", hint]);
        for word in [name, "checksum mismatch", cost] {
            assert!(checked.stdout.contains(word), "`{word}` is not in {checked:?}");
        }
        let answer = layby(&["check", "--json", "--dir", words[2]]);
        let answer: Value = serde_json::from_str(&answer.stdout).expect("JSON");
        assert_eq!(answer["files"].as_array().map(Vec::len), Some(1), "{answer}");
        let node = Node::start(&dir, &small_levels());
        let said = node.stderr();
        let lines = said.lines().filter(|line| line.contains("checksum mismatch"));
        assert_eq!(lines.count(), 1, "{name}: {said}");
        node.stop();
        if name == "catalog.last" {
            // It is written anew with the next change of the catalog.
            fs::write(&path, before).expect("the test's own folder");
        }
    }
}
