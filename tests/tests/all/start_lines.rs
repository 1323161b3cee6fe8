//! What a node prints of itself at its start.
//!
//! How: nodes through the binary, whose lines are looked at until they are ready.
//! Invariant: a line that names a level has what the configuration says of it. Not for: the levels
//! that a node chooses by itself, see `defaults.rs`; the log, see `log.rs`.

use layby_tests::{Node, Options};
use tempfile::TempDir;

/// Goal: a level's line has the level's whole size, however many shards share it. Method: a level
/// of each kind, on one shard, on two, and on three, whose parts are less than the level.
#[test]
fn levels_have_their_whole_size() {
    let work = TempDir::new().expect("a temporary folder");
    for shards in 1..=3 {
        let config = format!(
            "[node]\nshards = {shards}\n\
             [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = \"8MiB\"\n\
             [[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = \"16MiB\"\n\
             [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"100MiB\"\n"
        );
        let node = Node::start(&work.path().join(shards.to_string()), &Options::config(config));
        let said = node.said();
        for level in ["dram: memory, 8MiB,", "nvm: nvm slots, 16MiB,", "ssd: ssd log, 100MiB,"] {
            let line = format!("level {level}");
            assert!(said.lines().any(|said| said.starts_with(&line)), "`{line}`:\n{said}");
        }
        node.stop();
    }
}
