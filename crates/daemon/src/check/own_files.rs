//! The small files beside the catalog that guard a node's data.
//!
//! How: each is read by the reader that a start uses. A file that is missing is no damage: earlier
//! builds had none, and an operator may have removed it.
//! Invariant: what a start warns of, or refuses, is named here before. Cost: a few small files.
//! Not for: the catalog, which a check cannot do without.

use crate::{catalog, cloud, intents, reached};
use serde::Serialize;
use std::path::Path;

/// A small file of the node that is damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileFinding {
    /// The file.
    pub path: String,
    /// What is wrong with it.
    pub cause: String,
    /// What a start lacks by that.
    pub cost: &'static str,
    /// What to do.
    pub hint: &'static str,
}

impl FileFinding {
    /// The finding as a sentence.
    pub(super) fn problem(&self) -> String {
        format!("`{}` is damaged: {}; {}", self.path, self.cause, self.cost)
    }
}

/// A kind of file, and how it is looked at.
struct Guard {
    name: &'static str,
    damage: fn(&Path) -> Option<String>,
    cost: &'static str,
    hint: &'static str,
}

const GUARDS: [Guard; 4] = [
    Guard {
        name: catalog::last::LAST_FILE_NAME,
        damage: catalog::last::damage,
        cost: catalog::last::COST,
        hint: "where `catalog.json` is the newest one, start the node: the file is written anew \
               with the next change of the catalog; else put the newest `catalog.json` back first",
    },
    Guard {
        name: cloud::identities::FILE_NAME,
        damage: cloud::identities::damage,
        cost: cloud::identities::COST,
        hint: "where no journal and no map was moved or put back, start the node: the file is \
               written anew as volumes are opened; else put each back in its place first",
    },
    Guard {
        name: intents::INTENTS_FILE_NAME,
        damage: intents::damage,
        cost: intents::COST,
        hint: "start the node while all its levels are there: the file is written anew; drain the \
               volumes (`layby volume drain`) before a level is taken away",
    },
    Guard {
        name: reached::REACHED_FILE_NAME,
        damage: reached::damage,
        cost: reached::COST,
        hint: "where no level, journal or map was put back from a copy, start the node: the file \
               is written anew; else put the newest ones back first",
    },
];

/// The files of the node in `dir` that are damaged.
pub(super) fn findings(dir: &Path) -> Vec<FileFinding> {
    let finding = |guard: &Guard| {
        let cause = (guard.damage)(dir)?;
        let path = dir.join(guard.name).display().to_string();
        Some(FileFinding { path, cause, cost: guard.cost, hint: guard.hint })
    };
    GUARDS.iter().filter_map(finding).collect()
}
