//! Damage of the small files that a node keeps beside its catalog.
//!
//! How: a byte of one is changed by hand; a check and the next start follow.
//! Invariant: a check names each damaged file before a start meets it; no volume is served older
//! than was promised.
//! Not for: the catalog itself, see `older.rs`; a level's bytes, see `damage.rs`.

use crate::lost::{assert_holds, fill};
use layby_tests::{Node, layby, small_levels};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
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

/// The folder of a stopped node that has two volumes in object stores.
fn with_two_volumes(work: &TempDir) -> PathBuf {
    let dir = work.path().join("node");
    let node = Node::start(&dir, &small_levels());
    for name in ["one", "two"] {
        let url = format!("file://{}/{name}", work.path().display());
        node.layby(&["volume", "create", name, "--size", "1MiB", "--path", &url]);
    }
    node.stop();
    dir
}

/// Goal: a check names each damaged file of a node that a start would do without, with what is lost
/// by that and what to do, and is not sound; the start says so once, however many volumes it opens,
/// and leaves a sound file where it writes one. Method: a node with two volumes in object stores; a
/// digit of each file's checksum; a check, a start, a check.
#[test]
fn a_check_names_damaged_files() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = with_two_volumes(&work);
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

/// Goal: where neither of the two files that a start cannot do without can be used, a check says
/// what to do about these, and blames no volume for them; whatever else is wrong, since no start
/// goes on. Method: a node with two volumes in object stores; both files damaged, then a level
/// taken away, too.
#[test]
fn a_check_says_what_a_start_needs() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = with_two_volumes(&work);
    let both = ["reached.json", "reached.copy.json"];
    both.iter().for_each(|name| damage(&dir.join(name)));
    let needed = ["is not sound", "put the newest `reached.json`", "move both away"];
    for words in [&["check"][..], &["check", "--backing"]] {
        let checked = layby(&[words, &["--dir", &*dir.to_string_lossy()]].concat());
        checked.assert_explains(&[&needed[..], &["2 problem(s)"]].concat());
        assert!(!checked.stdout.contains("volume `one`"), "{checked:?}");
    }
    fs::rename(dir.join("levels/ssd"), dir.join("away")).expect("the test's own folder");
    layby(&["check", "--dir", &*dir.to_string_lossy()]).assert_explains(&needed);
    let refused = Node::try_start(&dir, &small_levels()).expect_err("it knows no level");
    refused.assert_explains(&["move both away"]);
    both.iter().for_each(|name| fs::remove_file(dir.join(name)).expect("it is there"));
    fs::rename(dir.join("away"), dir.join("levels/ssd")).expect("the test's own folder");
    let checked = layby(&["check", "--backing", "--dir", &*dir.to_string_lossy()]);
    assert!(checked.success && checked.stdout.contains(" 3 volume(s) are there"), "{checked:?}");
}

/// Goal: damage of `reached.json`, which says how far levels had come, lets no older copy of a
/// level in. It is there twice: one damaged file changes nothing for a start, and a check that
/// names it stays sound; with both damaged no start goes on until an operator moves them away.
/// Method: the SSD level from before a start, and the newest one, beside one byte changed in the
/// first file, in its copy and in both.
#[test]
fn a_damaged_word_lets_no_older_level_in() {
    let work = TempDir::new().expect("a temporary folder");
    let dir = work.path().join("node");
    let node = Node::start(&dir, &small_levels());
    node.volume_create("map", "1MiB", "normal");
    fill(&node, "map", 1);
    node.stop();
    let [level, old, new] = ["levels/ssd", "ssd.old", "ssd.new"].map(|name| dir.join(name));
    let copy = |from: &Path, to: &Path| {
        fs::copy(from, to).expect("the test's own folder");
    };
    copy(&level, &old);
    let node = Node::start(&dir, &small_levels());
    fill(&node, "map", 2);
    node.stop();
    copy(&level, &new);
    let both = ["reached.json", "reached.copy.json"].map(|name| dir.join(name));
    let words = ["check", "--dir", &*dir.to_string_lossy()];
    for chosen in [&both[..1], &both[1..], &both[..]] {
        let is_known = chosen.len() == 1;
        chosen.iter().for_each(|path| damage(path));
        copy(&old, &level);
        let refused = Node::try_start(&dir, &small_levels()).expect_err("the level is older");
        let cause = if is_known { "is older than the node knows it" } else { "is damaged" };
        refused.assert_explains(&[cause, "newest"]);
        assert!(!layby(&words).success, "a check lets it pass");
        copy(&new, &level);
        let checked = layby(&words);
        for path in chosen {
            let line = format!("`{}` is damaged: checksum mismatch", path.display());
            assert!(checked.stdout.contains(&line), "{checked:?}");
        }
        assert_eq!(checked.success, is_known, "{checked:?}");
        if !is_known {
            let refused = Node::try_start(&dir, &small_levels()).expect_err("who knows");
            refused.assert_explains(&["is damaged", "not known", "move both away"]);
            both.iter().for_each(|path| fs::remove_file(path).expect("it is there"));
        }
        let node = Node::start(&dir, &small_levels());
        assert_holds(&node, "map", Some(2));
        node.stop();
        let checked = layby(&words);
        assert!(checked.success && !checked.stdout.contains("damaged"), "{checked:?}");
        copy(&level, &new);
    }
}
