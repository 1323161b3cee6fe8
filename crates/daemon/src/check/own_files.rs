//! The small files beside the catalog that guard a node's data.
//!
//! How: each is read by the reader that a start uses. A file that is missing is no damage: earlier
//! builds had none, and an operator may have removed it.
//! Invariant: what a start warns of, or refuses, is named here before. Damage that changes nothing
//! for a start, since the file is there twice, is named and makes no node unsound.
//! Cost: a few small files. Not for: the catalog, which a check cannot do without.

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
    pub hint: String,
    /// A start does what it would do with the file whole.
    pub is_harmless: bool,
    /// No start goes on until it is put right.
    #[serde(skip)]
    pub is_needed: bool,
}

impl FileFinding {
    /// The finding as a sentence.
    pub(super) fn text(&self) -> String {
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

const GUARDS: [Guard; 3] = [
    Guard {
        name: catalog::last::LAST_FILE_NAME,
        damage: catalog::last::damage,
        cost: catalog::last::COST,
        hint: "where `catalog.json` is the newest one, start the node: the file is written anew; \
               else put the newest `catalog.json` back first",
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
];

/// The files of the node in `dir` that are damaged.
pub(super) fn findings(dir: &Path) -> Vec<FileFinding> {
    let path = |name: &str| dir.join(name).display().to_string();
    let finding = |guard: &Guard| {
        let (path, cause, hint) = (path(guard.name), (guard.damage)(dir)?, guard.hint.to_owned());
        Some(FileFinding {
            path,
            cause,
            cost: guard.cost,
            hint,
            is_harmless: false,
            is_needed: false,
        })
    };
    let unknown = reached::unknown(dir);
    let is_harmless = unknown.is_none();
    let cost = if is_harmless { reached::COST_ONE } else { reached::COST_BOTH };
    let hint = unknown.map_or_else(|| REACHED_HINT.to_owned(), |unknown| unknown.hint());
    let reached = reached::damages(dir).into_iter().map(|(name, cause)| {
        let (path, hint) = (path(name), hint.clone());
        FileFinding { path, cause, cost, hint, is_harmless, is_needed: !is_harmless }
    });
    GUARDS.iter().filter_map(finding).chain(reached).collect()
}

/// What to do about one of two files, the other one of which is sound.
const REACHED_HINT: &str = "look at the node's disk, and start the node: both are written anew";
