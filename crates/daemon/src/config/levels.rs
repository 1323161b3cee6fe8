//! The cache levels of a node: what is written of each, and those of a node of which none is.
//!
//! How: a `[[level]]` table becomes a [`LevelConfig`], its path taken from the node's directory.
//! Invariant: levels are listed fastest first, which `checks` sees to.
//! Cost: once per start. Not for: the files and devices below; see [`crate::levels`].

use super::checks::{Place, Problem};
use super::file::LevelTable;
use super::{Name, Percent, SegmentConfig, Size, built_in, segments, wear};
use layby_cache::wear::Endurance;
use layby_cache::{EvictionKind, LevelKind, Watermarks};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Bytes of the DRAM level of a node that is told nothing.
pub const DRAM_BYTES_DEFAULT: u64 = 64 << 20;
/// Bytes of the NVM level of a node that is told nothing.
pub const NVM_BYTES_DEFAULT: u64 = 64 << 20;
/// Bytes of the SSD level of a node that is told nothing.
pub const SSD_BYTES_DEFAULT: u64 = 512 << 20;

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
    /// When it is destaged and freed.
    pub watermarks: Watermarks,
}

pub(super) fn level(dir: &Path, index: usize, table: LevelTable) -> Result<LevelConfig, Problem> {
    let default = Watermarks::DEFAULT;
    let percent = |written: Option<Percent>, default| written.map_or(default, |p| p.0);
    let path = match (table.kind, table.path) {
        (_, Some(path)) => Some(dir.join(path)),
        (Kind::Memory, None) => None,
        (_, None) => Some(dir.join("levels").join(table.name.as_str())),
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

pub(super) fn default_levels(dir: &Path) -> Result<Vec<LevelConfig>, Problem> {
    let defaults = [
        ("dram", Kind::Memory, DRAM_BYTES_DEFAULT),
        ("nvm", Kind::Nvm, NVM_BYTES_DEFAULT),
        ("ssd", Kind::Ssd, SSD_BYTES_DEFAULT),
    ];
    let table = |(name, kind, size)| LevelTable::new(built_in(name), kind, Size(size));
    let numbered = defaults.into_iter().enumerate();
    numbered.map(|(index, default)| level(dir, index, table(default))).collect()
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
