//! The cache levels of a node: what is written of each, and those of a node of which none is.
//!
//! How: a `[[level]]` table becomes a [`LevelConfig`], its path taken from the node's directory.
//! Where no level is written, memory and flash are had, and NVM where it is persistent memory.
//! Invariant: levels are listed fastest first, which `checks` sees to. A node of which no level is
//! written keeps the NVM level that it was made with, and gets none later.
//! Cost: once per start. Not for: the files and devices below; see [`crate::levels`].

use super::checks::{Place, Problem, unknown_level};
use super::dax::is_dax;
use super::file::LevelTable;
use super::{
    Amount, Config, LevelKeys, Name, Percent, SegmentConfig, Size, built_in, segments, wear,
};
use crate::catalog::Catalog;
use crate::levels::LEVELS_DIR_NAME;
use layby_cache::wear::Endurance;
use layby_cache::{EvictionKind, LevelKind, Watermarks};
use layby_types::format_bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes of the DRAM level of a node that is told nothing.
pub const DRAM_BYTES_DEFAULT: u64 = 64 << 20;
/// Bytes of the NVM level of a node that is told nothing.
pub const NVM_BYTES_DEFAULT: u64 = 64 << 20;
/// Bytes of the SSD level of a node that is told nothing.
pub const SSD_BYTES_DEFAULT: u64 = 512 << 20;
/// What the NVM level of a node that is told nothing is called.
const NVM: &str = "nvm";

/// What a level is made of, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// DRAM.
    Memory,
    /// Persistent memory: a file on a DAX file system, a DAX device, or any file to try it out.
    Nvm,
    /// A file or device on flash.
    Ssd,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Memory => "memory",
            Kind::Nvm => "nvm",
            Kind::Ssd => "ssd",
        })
    }
}

impl From<Kind> for LevelKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Memory => LevelKind::Memory,
            Kind::Nvm => LevelKind::Nvm,
            Kind::Ssd => LevelKind::Ssd,
        }
    }
}

/// Which block leaves a level first, as it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The least recently used.
    #[default]
    Lru,
    /// The first that came.
    Fifo,
    /// The first without a reference bit that a hand meets.
    Clock,
    /// Those used once from a small queue, before the main one's.
    #[serde(alias = "s3-fifo")]
    S3Fifo,
    /// By recency and frequency, balanced by what left too early.
    Arc,
    /// The least frequently used, with ageing.
    Lfu,
}

impl From<Policy> for EvictionKind {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Lru => EvictionKind::Lru,
            Policy::Fifo => EvictionKind::Fifo,
            Policy::Clock => EvictionKind::Clock,
            Policy::S3Fifo => EvictionKind::S3Fifo,
            Policy::Arc => EvictionKind::Arc,
            Policy::Lfu => EvictionKind::Lfu,
        }
    }
}

impl From<EvictionKind> for Policy {
    fn from(kind: EvictionKind) -> Self {
        match kind {
            EvictionKind::Lru => Policy::Lru,
            EvictionKind::Fifo => Policy::Fifo,
            EvictionKind::Clock => Policy::Clock,
            EvictionKind::S3Fifo => Policy::S3Fifo,
            EvictionKind::Arc => Policy::Arc,
            EvictionKind::Lfu => Policy::Lfu,
        }
    }
}

/// How stores into an NVM level become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PersistenceChoice {
    /// Cache flushes where the mapping is DAX or in a memory file system, otherwise a sync;
    /// printed at start.
    #[default]
    Auto,
}

/// What a new level's file gets when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preallocation {
    /// Its room, and zeros written over it for a bounded time.
    #[default]
    Full,
    /// Its room.
    Falloc,
}

/// One cache level of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelConfig {
    /// Its name in metrics, classes and commands.
    pub name: Name,
    /// What it is made of.
    pub kind: Kind,
    /// Bytes of the whole level, metadata included.
    pub size: u64,
    /// File or device; `None` for memory.
    pub path: Option<PathBuf>,
    /// What its file gets when it is made.
    pub preallocation: Preallocation,
    /// How an NVM level becomes durable.
    pub persistence: PersistenceChoice,
    /// Which block leaves first; a restart changes it.
    pub policy: Policy,
    /// How long its flash shall last, where it is flash and that is known; a restart changes it.
    pub endurance: Option<Endurance>,
    /// How its log uses its flash, where it is flash.
    pub segments: SegmentConfig,
    /// Where its keys come from, where it is encrypted.
    pub keys: Option<LevelKeys>,
    /// When it is destaged and freed.
    pub watermarks: Watermarks,
}

pub(super) fn level(dir: &Path, index: usize, table: LevelTable) -> Result<LevelConfig, Problem> {
    let default = Watermarks::DEFAULT;
    let percent = |written: Option<Percent>, default| written.map_or(default, |p| p.0);
    let path = match (table.kind, table.path) {
        (_, Some(path)) => Some(dir.join(path)),
        (Kind::Memory, None) => None,
        (_, None) => Some(path_of(dir, table.name.as_str())),
    };
    let keys = wear::WearKeys {
        endurance: table.endurance,
        drive_writes_per_day: table.drive_writes_per_day,
        life: table.life,
    };
    let segments = segments::SegmentKeys {
        segment: table.segment,
        discard: table.discard,
        discard_delay: table.discard_delay,
        discard_bandwidth: table.discard_bandwidth,
        hints: table.hints,
        cold_percent: table.cold_percent,
        free_percent: table.free_percent,
    };
    Ok(LevelConfig {
        segments: segments.read(index, table.kind)?,
        keys: LevelKeys::read(dir, (index, table.kind), table.key, table.key_previous)?,
        endurance: keys.read(index, table.kind, table.size.0)?,
        name: table.name,
        kind: table.kind,
        size: table.size.0,
        path,
        preallocation: preallocation(index, table.kind, table.preallocation)?,
        persistence: table.persistence.unwrap_or_default(),
        policy: table.policy.unwrap_or_default(),
        watermarks: Watermarks {
            dirty_red: percent(table.dirty_red, default.dirty_red),
            dirty_green: percent(table.dirty_green, default.dirty_green),
            used_red: percent(table.used_red, default.used_red),
            used_green: percent(table.used_green, default.used_green),
        },
    })
}

/// Where a level's file lies of which nothing is written.
fn path_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(LEVELS_DIR_NAME).join(name)
}

fn preallocation(
    index: usize,
    kind: Kind,
    written: Option<Preallocation>,
) -> Result<Preallocation, Problem> {
    if kind == Kind::Memory && written.is_some() {
        let cause = "a level of kind Memory has no file";
        let hint = "leave it out, or give it to a level of kind nvm or ssd";
        return Err(Problem::new(Place::Level(index), "preallocation", cause, hint));
    }
    Ok(written.unwrap_or_default())
}

/// Why a node of which no level is written has an NVM level, or none: in a plain file each of its
/// durable writes waits for a sync of the file system, several times as long as for the log of the
/// SSD level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultNvm {
    /// It has one: its directory is on a DAX file system.
    Dax,
    /// It has one, since it was made with one.
    Made,
    /// It has none: its directory is not on a DAX file system.
    NoDax,
    /// It has none, since it was made without one.
    MadeWithout,
}

impl DefaultNvm {
    /// What holds for the node in `dir`.
    fn of(dir: &Path) -> DefaultNvm {
        match Catalog::load(dir) {
            Ok(Some(found)) if found.levels.iter().any(|level| level.kind == Kind::Nvm) => {
                DefaultNvm::Made
            }
            Ok(Some(found)) if found.is_started => DefaultNvm::MadeWithout,
            // The start is refused for the catalog's sake, and for nothing that names the level.
            Err(_) => DefaultNvm::Made,
            Ok(_) if is_dax(&path_of(dir, NVM)) => DefaultNvm::Dax,
            Ok(_) => DefaultNvm::NoDax,
        }
    }

    /// Whether there is one.
    #[must_use]
    pub fn is_there(self) -> bool {
        matches!(self, DefaultNvm::Dax | DefaultNvm::Made)
    }

    /// The whole of it in words.
    fn words(self, dir: &Path) -> String {
        let dir = dir.display();
        match self {
            DefaultNvm::Dax => format!("NVM level: `{dir}` is on a DAX file system"),
            DefaultNvm::Made => format!("NVM level: the node in `{dir}` was made with one"),
            DefaultNvm::NoDax => format!("no NVM level: `{dir}` is not on a DAX file system"),
            DefaultNvm::MadeWithout => {
                format!("no NVM level: the node in `{dir}` was made without one")
            }
        }
    }

    /// What to do where a configuration names the level, though there is none.
    fn hint(self) -> &'static str {
        match self {
            DefaultNvm::MadeWithout => {
                "this node was made without an nvm level, and keeps its levels for life"
            }
            _ => "default levels have no nvm level on this machine: write [[level]] for it",
        }
    }
}

/// The levels of a node of which none is written, and why they are these.
pub(super) fn default_levels(dir: &Path) -> Result<(Vec<LevelConfig>, DefaultNvm), Problem> {
    let nvm = DefaultNvm::of(dir);
    Ok((levels_with(dir, nvm)?, nvm))
}

fn levels_with(dir: &Path, nvm: DefaultNvm) -> Result<Vec<LevelConfig>, Problem> {
    let defaults = [
        ("dram", Kind::Memory, DRAM_BYTES_DEFAULT),
        (NVM, Kind::Nvm, NVM_BYTES_DEFAULT),
        ("ssd", Kind::Ssd, SSD_BYTES_DEFAULT),
    ];
    let table = |(name, kind, size)| LevelTable::new(built_in(name), kind, Size(size));
    let had = defaults.into_iter().filter(|(_, kind, _)| *kind != Kind::Nvm || nvm.is_there());
    had.enumerate().map(|(index, default)| level(dir, index, table(default))).collect()
}

impl Config {
    /// Which levels the node has, and why, in a line; none where they are written.
    #[must_use]
    pub fn default_levels_line(&self) -> Option<String> {
        let nvm = self.default_nvm?;
        let size = |level: &LevelConfig| format!("{} {}", level.name, format_bytes(level.size));
        let levels: Vec<String> = self.levels.iter().map(size).collect();
        Some(format!("levels by default: {}; {}", levels.join(", "), nvm.words(&self.dir)))
    }
}

/// Refuses what names the default NVM level where there is none, and says how to have it.
pub(super) fn check_default_nvm(config: &Config) -> Result<(), Problem> {
    let Some(nvm) = config.default_nvm.filter(|nvm| !nvm.is_there()) else { return Ok(()) };
    let names = |amounts: &BTreeMap<Name, Amount>| amounts.keys().any(|name| name.as_str() == NVM);
    let classes = config.classes.iter().map(|(name, class)| {
        let has_level = class.levels.iter().any(|level| level.as_str() == NVM);
        let keys =
            [("levels", has_level), ("share", names(&class.share)), ("cap", names(&class.cap))];
        (Place::Class(name.clone()), keys)
    });
    let volumes = config.volumes.iter().map(|(name, volume)| {
        let keys = [("", false), ("share", names(&volume.share)), ("cap", names(&volume.cap))];
        (Place::Volume(name.clone()), keys)
    });
    for (place, keys) in classes.chain(volumes) {
        if let Some((key, _)) = keys.into_iter().find(|(_, is_named)| *is_named) {
            let mut problem = unknown_level(place, key, &config.levels, &built_in(NVM));
            problem.hint = format!("{}; {}", problem.hint, nvm.hint());
            return Err(problem);
        }
    }
    Ok(())
}

/// The SSD levels, or the last level of a node that has none.
#[must_use]
pub fn flash_levels(levels: &[LevelConfig]) -> Vec<Name> {
    let flash = levels.iter().filter(|level| level.kind == Kind::Ssd);
    let names: Vec<Name> = flash.map(|level| level.name.clone()).collect();
    if names.is_empty() {
        levels.last().map(|level| level.name.clone()).into_iter().collect()
    } else {
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{LevelRecord, NodeId};
    use crate::config::Overrides;
    use tempfile::TempDir;

    fn names(levels: &[LevelConfig]) -> Vec<&str> {
        levels.iter().map(|level| level.name.as_str()).collect()
    }

    fn parse(dir: &Path, text: &str) -> Result<Config, crate::error::Report> {
        let overrides = Overrides { dir: Some(dir.to_owned()), ..Overrides::default() };
        Config::parse(Some("layby.toml".into()), text, &overrides)
    }

    /// A catalog of a node in `dir` with levels as `config` has them.
    fn remember(dir: &Path, levels: &[LevelConfig], is_started: bool) {
        let record = |level: &LevelConfig| LevelRecord {
            name: level.name.clone(),
            kind: level.kind,
            size: Size(level.size),
            path: level.path.as_deref().map(|path| path.strip_prefix(dir).expect("ours").into()),
            segment: None,
            encryption: None,
        };
        let records = levels.iter().map(record).collect();
        let mut catalog = Catalog::new(NodeId([7; 16]), 4096, 1, records);
        catalog.is_started = is_started;
        catalog.save(dir).expect("the test's own folder");
    }

    /// Goal: default levels have NVM on a DAX file system and no other, at the sizes that are
    /// documented, and the built-in classes name no level that is not there. Method: both cases.
    #[test]
    fn default_levels_have_nvm_on_dax_alone() {
        for (nvm, expected) in [
            (DefaultNvm::Dax, &["dram", "nvm", "ssd"][..]),
            (DefaultNvm::NoDax, &["dram", "ssd"][..]),
        ] {
            let levels = levels_with(Path::new("/node"), nvm).expect("sound defaults");
            assert_eq!(names(&levels), expected);
            let sum: u64 = levels.iter().map(|level| level.size >> 20).sum();
            assert_eq!(sum, if nvm.is_there() { 640 } else { 576 });
            for (class, settings) in crate::config::built_in_classes(&levels) {
                let known = |name: &Name| levels.iter().any(|level| level.name == *name);
                assert!(settings.levels.iter().all(known), "{class}");
                assert_eq!(settings.levels.len() > 1, class.as_str() == "critical", "{class}");
            }
        }
    }

    /// Goal: a new node on a plain file system has no NVM level; one that was made with it keeps
    /// it, and one that was made without gets none; one whose first start failed is new, unless its
    /// catalog has one. A catalog that cannot be read costs no sound setting. Method: a folder with
    /// each catalog in turn.
    #[test]
    fn a_node_keeps_the_nvm_level_it_was_made_with() {
        let folder = TempDir::new().expect("a temporary folder");
        let dir = folder.path();
        let chosen = || parse(dir, "").expect("defaults are sound").default_nvm;
        assert_eq!(chosen(), Some(DefaultNvm::NoDax));
        let [with, without] = [DefaultNvm::Dax, DefaultNvm::NoDax]
            .map(|nvm| levels_with(dir, nvm).expect("sound defaults"));
        for (levels, is_started, expected) in [
            (&with, true, DefaultNvm::Made),
            (&with, false, DefaultNvm::Made),
            (&without, true, DefaultNvm::MadeWithout),
            (&without, false, DefaultNvm::NoDax),
        ] {
            remember(dir, levels, is_started);
            assert_eq!(chosen(), Some(expected), "started: {is_started}");
            let config = parse(dir, "").expect("defaults are sound");
            assert_eq!(&config.levels, levels);
        }
        std::fs::write(dir.join("catalog.json"), "{").expect("the test's own folder");
        assert!(parse(dir, "[class.normal]\nlevels = [\"nvm\"]\n").is_ok());
    }

    /// Goal: what names the NVM level where default levels have none is refused with its line, the
    /// levels that there are, and how to have it; where levels are written, nothing is said of
    /// defaults. Method: each key that can name it, on a new node and on one that has run.
    #[test]
    fn a_name_of_no_default_level_is_explained() {
        let folder = TempDir::new().expect("a temporary folder");
        let dir = folder.path();
        let texts = [
            "[class.normal]\nlevels = [\"nvm\"]\n",
            "[class.critical]\nshare = { nvm = \"25%\" }\n",
            "[class.critical]\ncap = { nvm = \"25%\" }\n",
            "[volume.v]\nshare = { nvm = \"25%\" }\n",
            "[volume.v]\ncap = { nvm = \"25%\" }\n",
        ];
        let assert_refused = |text: &str, hint: &str| {
            let report = parse(dir, text).expect_err(text);
            assert!(report.cause.starts_with("line 2: "), "{report}");
            assert!(report.cause.contains("there is no level `nvm`"), "{report}");
            assert_eq!(report.hint, format!("levels are: {hint}"), "{text}");
        };
        let new = "dram, ssd; default levels have no nvm level on this machine: write [[level]] \
                   for it";
        texts.iter().for_each(|text| assert_refused(text, new));
        let level = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n";
        texts.iter().for_each(|text| assert_refused(&format!("{text}{level}"), "ssd"));
        let without = levels_with(dir, DefaultNvm::NoDax).expect("sound defaults");
        remember(dir, &without, true);
        let old = "dram, ssd; this node was made without an nvm level, and keeps its levels for \
                   life";
        texts.iter().for_each(|text| assert_refused(text, old));
    }

    /// Goal: a node says which levels it has by default, and why; nothing where they are written.
    /// Method: the line for each reason.
    #[test]
    fn default_levels_are_said_with_their_reason() {
        let folder = TempDir::new().expect("a temporary folder");
        let mut config = parse(folder.path(), "").expect("defaults are sound");
        config.dir = "d".into();
        let mut line = |nvm| {
            config.default_nvm = nvm;
            config.levels = levels_with(&config.dir, nvm.unwrap_or(DefaultNvm::Dax)).expect("ok");
            config.default_levels_line()
        };
        for (nvm, expected) in [
            (DefaultNvm::Dax, "nvm 64MiB, ssd 512MiB; NVM level: `d` is on a DAX file system"),
            (
                DefaultNvm::Made,
                "nvm 64MiB, ssd 512MiB; NVM level: the node in `d` was made with one",
            ),
            (DefaultNvm::NoDax, "ssd 512MiB; no NVM level: `d` is not on a DAX file system"),
            (
                DefaultNvm::MadeWithout,
                "ssd 512MiB; no NVM level: the node in `d` was made without one",
            ),
        ] {
            let expected = format!("levels by default: dram 64MiB, {expected}");
            assert_eq!(line(Some(nvm)), Some(expected));
        }
        assert_eq!(line(None), None);
    }
}
