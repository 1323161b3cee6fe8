//! Levels and volumes whose file lies in a memory file system.
//!
//! How: a node's directory in `/dev/shm`, and one on a disk.
//! Not for: what the engine makes of such a file, see its own tests.

use layby_tests::{Node, layby, small_levels};
use tempfile::TempDir;

/// Goal: a level in a memory file system is not said to be durable, nor a volume whose file is in
/// one: the start's lines, the log, the status, a check and the answer to a creation say what
/// becomes of it, and a check stays sound; of those on a disk nothing is said. Method: a node in
/// `/dev/shm` and one beside the test's program.
#[test]
fn a_level_in_memory_is_named() {
    let beside = std::env::current_exe().expect("a program");
    let disk = TempDir::new_in(beside.parent().expect("a folder")).expect("a temporary folder");
    let memory = TempDir::new_in("/dev/shm").expect("Linux has it");
    for (base, is_in_memory) in [(disk, false), (memory, true)] {
        let dir = base.path().join("node");
        let node = Node::start(&dir, &small_levels());
        let (said, log) = (node.said(), node.stderr());
        assert_eq!(said.contains("durable by device flush"), !is_in_memory, "{said}");
        let status = node.layby(&["status"]);
        let json: serde_json::Value =
            serde_json::from_str(&node.layby(&["status", "--json"])).expect("JSON");
        let made = node.layby(&["volume", "create", "made", "--size", "1MiB"]);
        let note = "note: it lies in a memory file system";
        assert_eq!(made.contains(note), is_in_memory, "{made}");
        node.stop();
        let checked = layby(&["check", "--dir", &dir.to_string_lossy()]);
        assert!(checked.success, "{checked:?}");
        for text in [&said, &log, &status, &checked.stdout] {
            for name in ["nvm", "ssd"] {
                let line = format!("level `{name}` lies in a memory file system");
                assert_eq!(text.contains(&line), is_in_memory, "{text}");
            }
        }
        for text in [&said, &log, &status] {
            let line = "volume `vol0` lies in a memory file system";
            assert_eq!(text.contains(line), is_in_memory, "{text}");
        }
        let line = "volume `vol0`: it lies in a memory file system";
        assert_eq!(checked.stdout.contains(line), is_in_memory, "{}", checked.stdout);
        let volume = &json["volumes"][0]["is_in_memory"];
        assert_eq!(volume.as_bool().unwrap_or_default(), is_in_memory, "{json}");
        for level in json["levels"].as_array().expect("a list") {
            let expected = is_in_memory && level["name"] != "dram";
            assert_eq!(level["is_in_memory"], expected, "{level}");
        }
    }
}
