//! How far levels had come at the last start, so that an older copy of one is not taken for it.
//!
//! How: a file beside the catalog has, for each persistent level and shard, the instance and a
//! sequence number that lies durably in the level. A start reads it, has the shards refuse a level
//! that ends before that, and writes down how far levels have come once they have. It is replaced
//! within the room that it has, so that a full disk keeps no node from starting.
//! Invariant: what the file says was durable in the level before. A file that is missing or damaged
//! refuses nothing.
//! Cost: a small file per start. Not for: levels that were copied and put back between two starts.

use crate::checked::Checked;
use crate::config::Name;
use crate::error::Report;
use crate::node::ShardRequest;
use crate::replace::replace_within;
use layby_engine::control::StartReport;
use layby_engine::store::Reached;
use layby_types::Seq;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// The file within the node's directory.
pub const REACHED_FILE_NAME: &str = "reached.json";
/// The same, while it is written.
pub const REACHED_STAGED_NAME: &str = "reached.json.new";
const FILE: Checked = Checked {
    format: "layby levels reached",
    version: 1,
    content: "levels",
    // A few levels of at most 64 shards.
    bytes_max: 1 << 20,
};

/// The levels' parts, by shard.
type Levels = BTreeMap<Name, BTreeMap<u8, Part>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    instance: u64,
    seq: u64,
}

/// See the file's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelsReached(Levels);

impl LevelsReached {
    /// What the node in `dir` knows of its levels.
    #[must_use]
    pub fn read(dir: &Path) -> LevelsReached {
        let path = dir.join(REACHED_FILE_NAME);
        match FILE.read(&path) {
            Ok(levels) => LevelsReached(levels),
            Err(cause) => {
                if path.symlink_metadata().is_ok() {
                    let path = path.display();
                    tracing::warn!(%path, cause, "older copies of levels would not be noticed");
                }
                LevelsReached::default()
            }
        }
    }

    /// The same at a start. One that makes its levels anew knows nothing of them, and says so
    /// before the first is made: it may end before it has learned how far the new ones have come.
    ///
    /// # Errors
    /// A report where the file cannot be removed; nothing was made.
    pub(crate) fn begin(dir: &Path, is_new: bool) -> Result<LevelsReached, Report> {
        if !is_new {
            return Ok(LevelsReached::read(dir));
        }
        let path = dir.join(REACHED_FILE_NAME);
        let removed = match std::fs::remove_file(&path) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| File::open(dir)?.sync_all()),
        };
        removed.map(|()| LevelsReached::default()).map_err(|cause| {
            Report::from_io(format!("cannot remove `{}`", path.display()), &cause)
                .state("no level was formatted")
                .hint("correct what the cause names, then start again")
        })
    }

    /// How far a shard's part of a level had come.
    #[must_use]
    pub fn of(&self, level: &Name, shard: u8) -> Option<Reached> {
        let part = self.0.get(level)?.get(&shard)?;
        Some(Reached { instance: part.instance, seq: Seq(part.seq) })
    }

    /// Tells shards how far their levels had come.
    pub(crate) fn tell(&self, requests: &mut [ShardRequest]) {
        for request in requests {
            for part in &mut request.parts {
                part.known = self.of(&part.level.name, request.index);
            }
        }
    }

    /// Takes over what the shards found, in their order, and writes it down. May take long.
    ///
    /// # Errors
    /// The disk's, as text: what the file said before stands, which refuses less.
    pub(crate) fn learn(
        mut self,
        dir: &Path,
        names: &[Name],
        reports: &[&StartReport],
    ) -> Result<(), String> {
        for (shard, report) in (0..).zip(reports) {
            for (level, reached) in &report.reached {
                let part = Part { instance: reached.instance, seq: reached.seq.0 };
                self.0.entry(names[*level].clone()).or_default().insert(shard, part);
            }
        }
        replace_within(dir, (REACHED_STAGED_NAME, REACHED_FILE_NAME), &FILE.bytes(&self.0))
            .map_err(|cause| cause.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Goal: what a start learned is known at the next one; a level that did not tell keeps what
    /// was known, and a damaged file says nothing. Method: two starts of two shards; each byte
    /// changed.
    #[test]
    fn what_was_learned_is_known() {
        let dir = TempDir::new().expect("a temporary directory");
        let names: Vec<Name> = ["dram", "nvm", "ssd"].map(|n| n.parse().expect("good")).to_vec();
        let of = |seq| Reached { instance: u64::MAX - 1, seq: Seq(seq) };
        let report = |reached| StartReport { reached, ..StartReport::default() };
        let known = |level: usize, shard| LevelsReached::read(dir.path()).of(&names[level], shard);
        assert_eq!(known(1, 0), None);
        let [one, two] = [report(vec![(1, of(5)), (2, of(7))]), report(vec![(2, of(9))])];
        let learn = |reports: &[&StartReport]| {
            LevelsReached::read(dir.path()).learn(dir.path(), &names, reports).expect("writable");
        };
        learn(&[&one, &two]);
        assert_eq!(
            (known(1, 0), known(2, 0), known(2, 1)),
            (Some(of(5)), Some(of(7)), Some(of(9)))
        );
        learn(&[&report(vec![(1, of(8))])]);
        assert_eq!(
            (known(1, 0), known(2, 0), known(2, 1)),
            (Some(of(8)), Some(of(7)), Some(of(9)))
        );
        let path = dir.path().join(REACHED_FILE_NAME);
        let begin = |is_new| LevelsReached::begin(dir.path(), is_new).expect("writable");
        assert_eq!(begin(false), LevelsReached::read(dir.path()));
        let bytes = std::fs::read(&path).expect("it is there");
        for at in (0..bytes.iter().rposition(|byte| *byte == b'}').expect("JSON")).step_by(7) {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(&path, changed).expect("writable");
            assert_eq!(known(2, 1).filter(|known| *known != of(9)), None, "byte {at}");
        }
        for _ in 0..2 {
            assert_eq!(begin(true), LevelsReached::default());
            assert!(!path.exists(), "new levels are known by nothing");
        }
    }
}
