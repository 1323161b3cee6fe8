//! What a node is told when it starts: from a TOML file, flags that override it, and defaults.
//!
//! How: [`Config::load`] reads the file into optional values, lays flags over them, fills in
//! defaults and checks the parts against each other (`checks`). Relative paths in the file are
//! taken from the node's directory.
//! Invariant: a [`Config`] that exists has passed every check that needs no look at a device's
//! contents; what it was silent about (`None`) follows the node's catalog, and so does whether
//! default levels have an NVM level.
//! Cost: read once; a running node is changed through the control API.

mod address;
pub(crate) mod checks;
mod clone;
mod cloud;
mod control;
mod dax;
mod devices;
mod discard;
mod encryption;
mod file;
#[cfg(test)]
pub(crate) mod hanging;
mod input;
mod kept;
mod key;
mod levels;
mod limits;
mod nbd;
mod reach;
mod roots;
mod segments;
mod sizing;
mod storage;
#[cfg(test)]
pub(crate) mod tests;
mod trust;
mod uplink;
mod values;
mod wear;

pub use address::Address;
pub(crate) use checks::FileIdentity;
pub use checks::{Place, Problem};
pub use clone::CloneSource;
pub(crate) use cloud::LOCAL_DIR;
pub use cloud::{CloudConfig, CompressionChange, CompressionChoice, ConditionChoice};
pub use control::ControlConfig;
pub use dax::is_dax;
pub use devices::MAIN_DEVICE;
pub use discard::{DiscardChoice, DiscardWait, discard_limits};
pub use encryption::LevelKeys;
pub(crate) use input::read_small;
pub use input::{CONFIG_BYTES_MAX, STDIN};
pub use kept::KeptFiles;
pub use key::KeySource;
pub use levels::{
    DRAM_BYTES_DEFAULT, DefaultNvm, Kind, LevelConfig, NVM_BYTES_DEFAULT, PersistenceChoice,
    Policy, Preallocation, SSD_BYTES_DEFAULT, flash_levels,
};
pub use limits::{
    BANDWIDTH_BURST_MAX, BANDWIDTH_MAX, BANDWIDTH_MIN, BURST_PARTS_DEFAULT, IOPS_BURST_MAX,
    IOPS_MAX, IOPS_MIN, LimitsConfig,
};
pub use nbd::{ClientRules, HALF_OPEN_MAX, NbdConfig, TlsMode};
pub use roots::{PathRefusal, VolumeRoots};
pub use segments::{HintChoice, SegmentConfig};
pub use sizing::{Counts, HOME as SIZING_HOME, Objective, SizingConfig};
pub use trust::check_trusted;
pub(crate) use trust::{check_trusted_dir, foreign_file, foreign_owner};
pub use uplink::{ClassUplink, UplinkConfig, UplinkWindow};
pub use values::{AllowRule, Amount, Bandwidth, Name, Peer, Percent, Size, Time, is_allowed};

use crate::error::Report;
use checks::Source;
use file::{ClassTable, File, VolumeTable};
use layby_cache::{AdmissionKind, ReadAheadLimits, WritebackLimits};
use layby_types::{BlockSize, Nanos};
use levels::{default_levels, level};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file that is read from the node's directory when no other is named.
pub const CONFIG_FILE_NAME: &str = "layby.toml";
/// Shards at least.
pub const SHARDS_MIN: u8 = 1;
/// The threads of the data path come before nearly everything else on the machine.
pub const NICE_MIN: i8 = -20;
/// They come last.
pub const NICE_MAX: i8 = 19;
/// They are as other programs.
pub const NICE_DEFAULT: i8 = 0;
/// Shards at most.
pub const SHARDS_MAX: u8 = 64;
/// Connections a node accepts at once at least.
pub const CONNECTIONS_MIN: u32 = 1;
/// Connections a node accepts at once at most.
pub const CONNECTIONS_MAX: u32 = 65_536;
/// Connections a node accepts at once when nothing is said.
pub const CONNECTIONS_DEFAULT: u32 = 1024;
/// A handshake may last this long at least.
pub const HANDSHAKE_TIMEOUT_MIN: Nanos = Nanos::from_millis(100);
/// A handshake may last this long at most.
pub const HANDSHAKE_TIMEOUT_MAX: Nanos = Nanos::from_secs(600);
/// A handshake may last this long when nothing is said.
pub const HANDSHAKE_TIMEOUT_DEFAULT: Nanos = Nanos::from_secs(10);
/// The directory of the sockets for virtual machines when nothing is said, in the node's own.
pub const VHOST_DIR_DEFAULT: &str = "vhost";
/// Bytes of the volume `vol0` that a new node has when it is told nothing.
pub const VOLUME_BYTES_DEFAULT: u64 = 1 << 30;

/// How shards talk to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoChoice {
    /// io_uring where the kernel grants it, otherwise epoll and threads.
    #[default]
    Auto,
    /// io_uring or nothing.
    IoUring,
    /// epoll and a small pool of threads.
    Epoll,
}

/// Whether a first start formats what is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Only what is empty.
    Empty,
    /// All that the configuration names: an operator gave up what is there.
    All,
}

/// Which blocks that no level had are kept once they are read, as it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// All of them.
    #[default]
    All,
    /// Those that are missed again before long.
    SecondMiss,
}

impl From<Admission> for AdmissionKind {
    fn from(admission: Admission) -> Self {
        match admission {
            Admission::All => AdmissionKind::All,
            Admission::SecondMiss => AdmissionKind::SecondMiss,
        }
    }
}

/// A class of service. Shares and caps are of the whole level, over all shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassConfig {
    /// Levels that its volumes may use.
    pub levels: Vec<Name>,
    /// The highest rank yields first.
    pub rank: u8,
    /// A write is acknowledged only when durable.
    pub durable_writes: bool,
    /// Clean copies may use idle room of other levels.
    pub borrow: bool,
    /// What is read from home into memory is kept in the class's lowest persistent level, too.
    #[serde(default)]
    pub keep_reads: bool,
    /// Which blocks that no level had are kept once they are read.
    #[serde(default)]
    pub admission: Admission,
    /// How much a wait of its volumes counts where shares are sized live.
    #[serde(default = "weight_default")]
    pub weight: u16,
    /// The time within which 999 of 1000 of its reads shall be served.
    #[serde(default)]
    pub latency_objective: Option<Time>,
    /// What nobody else can take, by level.
    #[serde(default)]
    pub share: BTreeMap<Name, Amount>,
    /// What it never exceeds, by level.
    #[serde(default)]
    pub cap: BTreeMap<Name, Amount>,
    /// How fast its volumes may go together.
    #[serde(default, skip_serializing_if = "LimitsConfig::is_none")]
    pub limits: LimitsConfig,
    /// Its part of the way up, for volumes whose home is an object store.
    #[serde(default, skip_serializing_if = "ClassUplink::is_none")]
    pub uplink: ClassUplink,
}

/// The latency objective of the built-in class `critical`.
pub const CRITICAL_OBJECTIVE: Time = Time(Nanos::from_millis(2));
/// What a class weighs at least.
pub const WEIGHT_MIN: u16 = 1;
/// What a class weighs at most.
pub const WEIGHT_MAX: u16 = 1000;
/// What a class weighs when nothing is said.
pub const WEIGHT_DEFAULT: u16 = 1;

const fn weight_default() -> u16 {
    WEIGHT_DEFAULT
}

/// A volume that exists from the node's start on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeConfig {
    /// Its length; `None` takes that of an existing backing file or device.
    #[serde(default)]
    pub size: Option<Size>,
    /// Its class.
    pub class: Name,
    /// Backing file or device; `None` is a file in the node's directory.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// Clients cannot write.
    #[serde(default)]
    pub read_only: bool,
    /// Who may use it; empty is everybody.
    #[serde(default)]
    pub allow: Vec<AllowRule>,
    /// What no other volume can take, by level.
    #[serde(default)]
    pub share: BTreeMap<Name, Amount>,
    /// What it never exceeds, by level.
    #[serde(default)]
    pub cap: BTreeMap<Name, Amount>,
    /// How fast it may go.
    #[serde(default, skip_serializing_if = "LimitsConfig::is_none")]
    pub limits: LimitsConfig,
    /// Whether and when its discards reach its home.
    #[serde(default, skip_serializing_if = "DiscardChoice::is_default")]
    pub discard: DiscardChoice,
    /// How long delayed discards wait.
    #[serde(default, skip_serializing_if = "DiscardWait::is_default")]
    pub discard_delay: DiscardWait,
    /// Bytes per second that its home is asked to discard at most; none for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard_bandwidth: Option<Bandwidth>,
    /// It is a block device of this host's kernel, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ublk: bool,
    /// Where the key comes from with which its objects are encrypted; none leaves them plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeySource>,
    /// How its chunks travel, where it says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionChoice>,
    /// How many shards serve it, for good; one, unless its load is more than a core can serve.
    #[serde(
        default = "VolumeConfig::shards_default",
        skip_serializing_if = "VolumeConfig::is_one"
    )]
    pub shards: u8,
}

impl VolumeConfig {
    /// The shards of a volume of which nothing is said.
    #[must_use]
    pub const fn shards_default() -> u8 {
        1
    }

    /// Whether so many are what holds where nothing is said.
    #[must_use]
    pub const fn is_one(shards: &u8) -> bool {
        *shards == 1
    }
}

/// All a node is told when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file it came from.
    pub origin: Option<PathBuf>,
    /// The node's directory.
    pub dir: PathBuf,
    /// The cache unit; `None` is the catalog's, or the default on a new node.
    pub block_size: Option<BlockSize>,
    /// Threads of the data path; `None` is the catalog's, or by cores on a new node.
    pub shards: Option<u8>,
    /// How nice they are to other programs on the machine, as in `nice(1)`.
    pub nice: i8,
    /// How they talk to the kernel.
    pub io: IoChoice,
    /// What the devices under levels and homes can do, where they were described.
    pub devices: Vec<layby_device::Model>,
    /// NBD.
    pub nbd: NbdConfig,
    /// Where each volume has its socket for virtual machines; `None` is off.
    pub vhost: Option<PathBuf>,
    /// Control API.
    pub control: ControlConfig,
    /// Folders beside the node's own in which a command may place a volume.
    pub volume_roots: Vec<PathBuf>,
    /// What is accepted and should be known, a sentence each.
    pub notes: Vec<String>,
    /// Volumes whose device may be another one than before.
    pub accepted_devices: BTreeSet<Name>,
    /// Volumes whose file may be another node's.
    pub accepted_files: BTreeSet<Name>,
    /// Fastest first.
    pub levels: Vec<LevelConfig>,
    /// Why they have an NVM level or none, where no level is written.
    pub default_nvm: Option<DefaultNvm>,
    /// Destaging.
    pub writeback: WritebackLimits,
    /// Read-ahead.
    pub read_ahead: ReadAheadLimits,
    /// Live sizing of shares.
    pub sizing: SizingConfig,
    /// Volumes whose home is an object store.
    pub cloud: CloudConfig,
    /// The way up to object stores.
    pub uplink: UplinkConfig,
    /// Built-in classes first, then the file's in the order of their names.
    pub classes: Vec<(Name, ClassConfig)>,
    /// Volumes that must exist.
    pub volumes: BTreeMap<Name, VolumeConfig>,
    /// What a first start formats.
    pub format: Format,
    /// A start is refused where it is not known which version of some blocks is the newest.
    pub is_strict: bool,
    /// How long a device or backing store may owe an end; `NEVER` for as long as it likes.
    pub io_timeout: Nanos,
    /// How much clients may hold together; a share of the machine's memory where nothing is said.
    pub client_memory: Option<Size>,
    /// Power loss is simulated (tests only).
    pub simulate_power_loss: bool,
    /// How much longer volumes' homes take than they really do; for demonstrations.
    pub home_delay: Nanos,
}

/// What the command line says; it overrides the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The node's directory.
    pub dir: Option<PathBuf>,
    /// Another file than the directory's `layby.toml`.
    pub config: Option<PathBuf>,
    /// TCP addresses for NBD; replace the file's when any is given.
    pub listen: Vec<Address>,
    /// Unix socket for NBD.
    pub socket: Option<PathBuf>,
    /// HTTP address of the control API, or `off`.
    pub http: Option<String>,
    /// Address of the metrics.
    pub metrics: Option<Address>,
    /// Further folders in which a command may place a volume.
    pub volume_roots: Vec<PathBuf>,
    /// Volumes whose device may be another one than before.
    pub accepted_devices: Vec<Name>,
    /// Volumes whose file may be another node's.
    pub accepted_files: Vec<Name>,
    /// Threads of the data path.
    pub shards: Option<u8>,
    /// How they talk to the kernel.
    pub io: Option<IoChoice>,
    /// A first start gives up what its levels' files and devices hold.
    pub format: bool,
    /// A start is refused where it is not known which version of some blocks is the newest.
    pub strict: bool,
    /// Power loss is simulated (tests only).
    pub simulate_power_loss: bool,
    /// How much longer volumes' homes take than they really do; for demonstrations.
    pub home_delay: Duration,
    /// No node is started by it: what only one that serves needs is not looked at.
    pub reads_only: bool,
}

/// The node's directory when nothing is said.
pub const DIR_DEFAULT: &str = "layby-node";

impl Config {
    /// Reads the file (if there is one), lays `overrides` over it and checks the whole.
    ///
    /// # Errors
    /// A report that names the file, the line where one is to blame, and what is accepted.
    pub fn load(overrides: &Overrides) -> Result<Config, Report> {
        let dir = overrides.dir.clone();
        let beside = dir.clone().unwrap_or_else(|| DIR_DEFAULT.into()).join(CONFIG_FILE_NAME);
        let (path, text) = match &overrides.config {
            Some(path) => (Some(path.clone()), input::read(path)?),
            None => input::read_beside(&beside)?
                .map_or_else(Default::default, |text| (Some(beside), text)),
        };
        // A file that was found through the directory names no other one.
        let found = overrides.config.is_none().then(|| DIR_DEFAULT.into());
        let overrides = Overrides { dir: dir.or(found), ..overrides.clone() };
        Config::parse(path, &text, &overrides)
    }

    /// Like [`Config::load`], from text that was read already.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(
        origin: Option<PathBuf>,
        text: &str,
        overrides: &Overrides,
    ) -> Result<Config, Report> {
        let source = Source { origin, text };
        let file: File = toml::from_str(text).map_err(|refused| source.syntax(&refused))?;
        let lines = source.lines_of(&file);
        let config = assemble(source.origin.clone(), file, overrides);
        config
            .and_then(|config| checks::check(&config).map(|()| config))
            .map_err(|problem| source.report(&lines, &problem))
    }

    /// The configuration of a level, and its index.
    #[must_use]
    pub fn level(&self, name: &str) -> Option<(usize, &LevelConfig)> {
        self.levels.iter().enumerate().find(|(_, level)| level.name.as_str() == name)
    }
}

fn assemble(origin: Option<PathBuf>, file: File, overrides: &Overrides) -> Result<Config, Problem> {
    let dir = overrides.dir.clone().or(file.node.dir.clone());
    let dir = dir.unwrap_or_else(|| DIR_DEFAULT.into());
    let block_size = file.node.block_size.map(checks::block_size).transpose()?;
    let (levels, default_nvm) = match file.level {
        Some(tables) => {
            let tables = tables.into_iter().enumerate();
            let read = tables.map(|(index, table)| level(&dir, index, table.into_inner()));
            (read.collect::<Result<Vec<_>, _>>()?, None)
        }
        None => default_levels(&dir).map(|(levels, nvm)| (levels, Some(nvm)))?,
    };
    // They say how a node serves, and a rescue machine may not have them.
    let devices = if overrides.reads_only { &[][..] } else { &file.node.devices };
    let roots = control::volume_roots(&dir, file.node.volume_roots, overrides)?;
    let (volume_roots, mut notes) = roots;
    notes.extend(nbd::unencrypted(&file.nbd));
    let volumes = file.volume.into_iter();
    let volumes = volumes.map(|(name, t)| (name, volume(&dir, t.into_inner()))).collect();
    Ok(Config {
        block_size,
        shards: overrides.shards.or(file.node.shards),
        nice: file.node.nice.unwrap_or(NICE_DEFAULT),
        io: overrides.io.or(file.node.io).unwrap_or_default(),
        devices: devices::read(&dir, devices)?,
        nbd: NbdConfig::of(&dir, file.nbd, overrides),
        vhost: vhost(&dir, file.vhost),
        control: file.control.config(&dir, overrides)?,
        volume_roots,
        notes,
        accepted_devices: overrides.accepted_devices.iter().cloned().collect(),
        accepted_files: overrides.accepted_files.iter().cloned().collect(),
        writeback: writeback(&file.writeback)?,
        read_ahead: read_ahead(&file.read_ahead)?,
        sizing: file.sizing.config(&levels)?,
        cloud: file.cloud.config(&dir)?,
        uplink: file.uplink.check().map(|_| file.uplink)?,
        classes: classes(&levels, file.class.into_iter().map(|(n, t)| (n, t.into_inner())))?,
        format: if overrides.format { Format::All } else { Format::Empty },
        is_strict: overrides.strict || file.node.strict,
        io_timeout: file.node.io_timeout.unwrap_or_default().0,
        client_memory: file.node.client_memory,
        simulate_power_loss: overrides.simulate_power_loss,
        home_delay: Nanos::from_micros(overrides.home_delay.as_micros() as u64),
        origin,
        dir,
        levels,
        default_nvm,
        volumes,
    })
}

fn vhost(dir: &Path, table: file::VhostTable) -> Option<PathBuf> {
    let directory = table.directory.unwrap_or_else(|| VHOST_DIR_DEFAULT.into());
    (directory != Path::new("off")).then(|| dir.join(directory))
}

/// The volume's file wherever the program is started from.
fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn volume(dir: &Path, table: VolumeTable) -> VolumeConfig {
    VolumeConfig {
        size: table.size,
        class: table.class.unwrap_or_else(|| built_in("normal")),
        path: table.path.map(|path| {
            // What is almost a store's URL is refused by its words.
            match crate::cloud::is_store(&path) || crate::cloud::is_misspelled(&path) {
                true => path,
                false => whole(&dir.join(path)),
            }
        }),
        read_only: table.read_only,
        allow: table.allow,
        share: table.share,
        cap: table.cap,
        limits: table.limits,
        discard: table.discard,
        discard_delay: table.discard_delay,
        discard_bandwidth: table.discard_bandwidth,
        ublk: table.ublk,
        key: table.key.map(|key| key.beside(dir)),
        compression: table.compression,
        shards: table.shards.unwrap_or(VolumeConfig::shards_default()),
    }
}

fn writeback(table: &file::WritebackTable) -> Result<WritebackLimits, Problem> {
    let default = WritebackLimits::DEFAULT;
    Ok(WritebackLimits {
        merge_bytes: table.merge_size.map_or(Ok(default.merge_bytes), checks::merge_bytes)?,
        idle_timeout: table.idle_timeout.map_or(Ok(default.idle_timeout), checks::idle_timeout)?,
        inflight_max: table.inflight_max.unwrap_or(default.inflight_max),
    })
}

fn read_ahead(table: &file::ReadAheadTable) -> Result<ReadAheadLimits, Problem> {
    let default = ReadAheadLimits::DEFAULT;
    let window = table.window_max.map_or(Ok(default.window_bytes_max), checks::window_bytes)?;
    let streak_min = table.streak_min.unwrap_or(default.streak_min);
    Ok(ReadAheadLimits { window_bytes_max: window, streak_min })
}

/// The names of the classes that every node has, in the order of their ranks.
pub const BUILT_IN_CLASSES: [&str; 3] = ["critical", "normal", "bulk"];
/// What class `bulk` has of the SSD level at most.
pub const BULK_CAP: Amount = Amount::Percent(Percent(50));

/// The built-in classes for `levels`.
#[must_use]
pub fn built_in_classes(levels: &[LevelConfig]) -> Vec<(Name, ClassConfig)> {
    let all: Vec<Name> = levels.iter().map(|level| level.name.clone()).collect();
    let flash = flash_levels(levels);
    let cap = flash.iter().map(|name| (name.clone(), BULK_CAP)).collect();
    let class = |levels: &Vec<Name>, rank, critical, borrow, cap| ClassConfig {
        levels: levels.clone(),
        rank,
        durable_writes: critical,
        borrow,
        keep_reads: false,
        admission: Admission::All,
        weight: WEIGHT_DEFAULT,
        latency_objective: critical.then_some(CRITICAL_OBJECTIVE),
        share: BTreeMap::new(),
        cap,
        limits: LimitsConfig::default(),
        uplink: ClassUplink {
            first: critical.then_some(true),
            hedge: critical.then_some(true),
            ..ClassUplink::default()
        },
    };
    vec![
        (built_in("critical"), class(&all, 0, true, false, BTreeMap::new())),
        (built_in("normal"), class(&flash, 1, false, true, BTreeMap::new())),
        (built_in("bulk"), class(&flash, 2, false, false, cap)),
    ]
}

/// What a class is that says nothing of itself.
#[must_use]
pub(crate) fn class_template(levels: &[LevelConfig]) -> ClassConfig {
    ClassConfig {
        levels: flash_levels(levels),
        rank: 1,
        durable_writes: false,
        borrow: false,
        keep_reads: false,
        admission: Admission::All,
        weight: WEIGHT_DEFAULT,
        latency_objective: None,
        share: BTreeMap::new(),
        cap: BTreeMap::new(),
        limits: LimitsConfig::default(),
        uplink: ClassUplink::default(),
    }
}

fn classes(
    levels: &[LevelConfig],
    tables: impl Iterator<Item = (Name, ClassTable)>,
) -> Result<Vec<(Name, ClassConfig)>, Problem> {
    let mut classes = built_in_classes(levels);
    let template = class_template(levels);
    for (name, table) in tables {
        match classes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, class)) => lay_over(class, table),
            None => {
                let mut class = template.clone();
                lay_over(&mut class, table);
                classes.push((name, class));
            }
        }
    }
    Ok(classes)
}

fn lay_over(class: &mut ClassConfig, table: ClassTable) {
    fn set<T>(target: &mut T, written: Option<T>) {
        if let Some(value) = written {
            *target = value;
        }
    }
    set(&mut class.levels, table.levels);
    set(&mut class.rank, table.rank);
    set(&mut class.durable_writes, table.durable_writes);
    set(&mut class.borrow, table.borrow);
    set(&mut class.keep_reads, table.keep_reads);
    set(&mut class.admission, table.admission);
    set(&mut class.weight, table.weight);
    if let Some(objective) = table.latency_objective {
        // None at all, as in a live change.
        class.latency_objective = Some(objective).filter(|time| time.0.0 > 0);
    }
    set(&mut class.share, table.share);
    set(&mut class.cap, table.cap);
    class.limits = class.limits.written(table.limits);
    class.uplink = class.uplink.changed(table.uplink);
}

/// A name that is written in this program.
pub(crate) fn built_in(name: &str) -> Name {
    name.parse().expect("built-in names follow the rule for names")
}
