//! Relations between configured values: what a single key cannot know about the others.
//!
//! How: every check answers with a [`Problem`], which names the table and the key to blame; where
//! the values came from a file, [`Source`] finds the line. The control API runs the same checks on
//! classes and volumes that are changed live.
//! Invariant: what passes can be planned for any number of shards that the node may have, but for
//! rounding, which `plan` checks.

use super::file::File;
use super::reach::{LINKS_MAX, look_through};
use super::storage::{self, StorageExtent};
use super::{
    AllowRule, Amount, ClassConfig, Config, ControlConfig, Kind, LevelConfig, Name, Size, Time,
    VolumeConfig,
};
use crate::error::{Report, ReportKind};
use layby_cache::{CLASSES_MAX, LEVELS_MAX, LevelKind};
use layby_cloud::NoAnswer;
use layby_types::{BlockIndex, BlockSize, Nanos, format_bytes};
use std::collections::BTreeMap;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// Bytes of a memory level at least.
pub(super) const MEMORY_BYTES_MIN: u64 = 64 << 10;
/// Bytes of an NVM level at least; smaller ones would hold little but their own metadata.
pub(super) const NVM_BYTES_MIN: u64 = 1 << 20;
/// Bytes of an SSD level at least; the log needs segments to clean into.
pub(super) const SSD_BYTES_MIN: u64 = 8 << 20;
/// Bytes of any level at most.
pub(super) const LEVEL_BYTES_MAX: u64 = 16 << 40;
/// Bytes of one destage write at most.
pub(super) const MERGE_BYTES_MAX: u64 = 16 << 20;
/// Bytes read ahead at most.
pub(super) const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// Destage writes in flight at most, per shard.
pub(super) const INFLIGHT_MAX: u16 = 256;
/// Bytes of a unix socket's path at most: the kernel's limit.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Rules of one allow-list at most.
pub(super) const ALLOW_RULES_MAX: usize = 256;
/// The least that clients may be given to hold.
const CLIENT_MEMORY_MIN: u64 = 16 << 20;
/// The most that clients may be given to hold.
const CLIENT_MEMORY_MAX: u64 = 1 << 40;
/// A device may owe an end this long at least before it is stuck.
const IO_TIMEOUT_MIN: Nanos = Nanos::from_secs(1);
/// A device may owe an end this long at most before it is stuck, where there is a limit.
const IO_TIMEOUT_MAX: Nanos = Nanos::from_secs(3600);
/// Of times that something waits for: longer ones are slips of the pen.
const WAIT_MAX: Nanos = Nanos::from_secs(3600);

/// The table that a [`Problem`] is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `[node]`.
    Node,
    /// `[nbd]`.
    Nbd,
    /// `[control]`.
    Control,
    /// `[vhost]`.
    Vhost,
    /// `[writeback]`.
    Writeback,
    /// `[read_ahead]`.
    ReadAhead,
    /// `[cloud]`.
    Cloud,
    /// `[uplink]`.
    Uplink,
    /// `[sizing]`.
    Sizing,
    /// `[[level]]`, counted from zero.
    Level(usize),
    /// `[class.NAME]`.
    Class(Name),
    /// `[volume.NAME]`.
    Volume(Name),
}

/// A value that cannot be used: where it is, why, and what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The table.
    pub place: Place,
    /// The key within the table.
    pub key: &'static str,
    /// What is wrong with it.
    pub cause: String,
    /// What is accepted.
    pub hint: String,
}

impl Problem {
    pub(crate) fn new(
        place: Place,
        key: &'static str,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Problem { place, key, cause: cause.into(), hint: hint.into() }
    }
    /// The problem as an answer to a live change, where there is no file to point into.
    #[must_use]
    pub fn report(&self, error: impl Into<String>) -> Report {
        Report::new(ReportKind::Invalid, error)
            .cause(format!("{}: {}", self.key, self.cause))
            .state("nothing was changed")
            .hint(self.hint.clone())
    }
}

/// The file's text, to show the line that is to blame.
pub(super) struct Source<'text> {
    pub(super) origin: Option<PathBuf>,
    pub(super) text: &'text str,
}

/// Where the tables that can occur many times begin, in bytes of the text.
#[derive(Default)]
pub(super) struct Lines {
    levels: Vec<usize>,
    classes: BTreeMap<Name, usize>,
    volumes: BTreeMap<Name, usize>,
}

impl Source<'_> {
    fn refused(&self) -> Report {
        let error = match &self.origin {
            Some(path) => format!("cannot use configuration `{}`", path.display()),
            None => "cannot use these settings".to_owned(),
        };
        Report::new(ReportKind::Invalid, error).state("nothing was started or changed")
    }

    /// A text that is no TOML, or has keys or values that do not exist.
    pub(super) fn syntax(&self, refused: &toml::de::Error) -> Report {
        self.refused()
            .cause(redacted(refused.to_string().trim_end()))
            .hint("correct the line shown; every key is described in docs/configuration.md")
    }

    pub(super) fn lines_of(&self, file: &File) -> Lines {
        let levels = file.level.iter().flatten();
        Lines {
            levels: levels.map(|table| table.span().start).collect(),
            classes: file.class.iter().map(|(n, table)| (n.clone(), table.span().start)).collect(),
            volumes: file.volume.iter().map(|(n, table)| (n.clone(), table.span().start)).collect(),
        }
    }

    pub(super) fn report(&self, lines: &Lines, problem: &Problem) -> Report {
        let Problem { place, key, cause, hint } = problem;
        let cause = match self.line_of(lines, place, key) {
            Some((number, line)) => {
                format!("line {number}: `{}`: {cause}", redacted(line.trim()))
            }
            None => format!("{}, key `{key}`: {cause}", title_of(place)),
        };
        self.refused().cause(cause).hint(hint.clone())
    }

    /// The line of `key` within its table, or the table's head when the key was not written.
    fn line_of(&self, lines: &Lines, place: &Place, key: &str) -> Option<(usize, &str)> {
        let from = match place {
            Place::Level(index) => lines.levels.get(*index).copied(),
            Place::Class(name) => lines.classes.get(name).copied(),
            Place::Volume(name) => lines.volumes.get(name).copied(),
            _ => self.text.find(&title_of(place)),
        }?;
        let head = self.text[..from].matches('\n').count();
        let mut table = self.text.lines().enumerate().skip(head);
        let (head, head_line) = table.next()?;
        let body = table.take_while(|(_, line)| !line.trim_start().starts_with('['));
        let is_key = |line: &str| line.trim_start().strip_prefix(key).is_some_and(starts_value);
        let found = body.into_iter().find(|(_, line)| is_key(line));
        let (index, line) = found.unwrap_or((head, head_line));
        Some((index + 1, line))
    }
}

/// A text without what its lines say behind `key =`, which may be a secret, written in the wrong
/// place, and without the words of commands.
fn redacted(text: &str) -> String {
    let hidden = |line: &str| {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let keys = line.match_indices("key").filter_map(|(at, _)| {
            let behind = line[at + 3..].trim_start_matches("_previous");
            let rest = behind.trim_start_matches(['"', '\'']).trim_start();
            let is_key = !line[..at].ends_with(is_word) && rest.starts_with('=');
            is_key.then_some(line.len() - behind.len())
        });
        let ends = keys.chain(line.find("command:"));
        ends.min().map_or(line.to_owned(), |end| format!("{}…", &line[..end]))
    };
    text.lines().map(hidden).collect::<Vec<_>>().join("\n")
}

fn starts_value(rest: &str) -> bool {
    rest.trim_start().starts_with(['=', '.'])
}

fn title_of(place: &Place) -> String {
    match place {
        Place::Node => "[node]".into(),
        Place::Nbd => "[nbd]".into(),
        Place::Control => "[control]".into(),
        Place::Vhost => "[vhost]".into(),
        Place::Writeback => "[writeback]".into(),
        Place::ReadAhead => "[read_ahead]".into(),
        Place::Cloud => "[cloud]".into(),
        Place::Uplink => "[uplink]".into(),
        Place::Sizing => "[sizing]".into(),
        Place::Level(index) => format!("[[level]] number {}", index + 1),
        Place::Class(name) => format!("[class.{name}]"),
        Place::Volume(name) => format!("[volume.{name}]"),
    }
}

pub(super) fn block_size(size: Size) -> Result<BlockSize, Problem> {
    u32::try_from(size.0).ok().and_then(BlockSize::new).ok_or_else(|| {
        let cause = format!("a block of {size} is not offered");
        Problem::new(Place::Node, "block_size", cause, "write 4KiB, 8KiB, 16KiB, 32KiB or 64KiB")
    })
}

pub(crate) fn merge_bytes(size: Size) -> Result<u32, Problem> {
    let fits = (u64::from(BlockSize::MAX.bytes())..=MERGE_BYTES_MAX).contains(&size.0);
    let refused = || {
        let cause = format!("{size} is outside 64KiB to {}", format_bytes(MERGE_BYTES_MAX));
        Problem::new(Place::Writeback, "merge_size", cause, "write a size such as 1MiB")
    };
    u32::try_from(size.0).ok().filter(|_| fits).ok_or_else(refused)
}

pub(crate) fn window_bytes(size: Size) -> Result<u32, Problem> {
    let refused = || {
        let cause = format!("{size} is more than {}", format_bytes(WINDOW_BYTES_MAX));
        let hint = "write a size such as 1MiB, or 0 to switch read-ahead off";
        Problem::new(Place::ReadAhead, "window_max", cause, hint)
    };
    u32::try_from(size.0).ok().filter(|_| size.0 <= WINDOW_BYTES_MAX).ok_or_else(refused)
}

/// How long a level is left alone before it is destaged to nothing.
pub(crate) fn idle_timeout(time: Time) -> Result<Nanos, Problem> {
    let refused = || {
        let cause = format!("{time} is more than 1h");
        Problem::new(Place::Writeback, "idle_timeout", cause, "write a time such as `100ms`")
    };
    Some(time.0).filter(|time| *time <= WAIT_MAX).ok_or_else(refused)
}

pub(super) fn check(config: &Config) -> Result<(), Problem> {
    check_node(config)?;
    config.nbd.check()?;
    check_control(&config.control)?;
    check_addresses(config)?;
    super::roots::check_sockets(config)?;
    super::roots::check_files(config)?;
    check_levels(&config.levels)?;
    inflight(config.writeback.inflight_max)?;
    if config.classes.len() > CLASSES_MAX {
        let (name, _) = &config.classes[CLASSES_MAX];
        let cause = format!("{} classes are more than {CLASSES_MAX}", config.classes.len());
        return Err(Problem::new(Place::Class(name.clone()), "", cause, "remove classes"));
    }
    super::levels::check_default_nvm(config)?;
    for (name, settings) in &config.classes {
        class(&config.levels, name, settings)?;
    }
    guarantees(&config.levels, &config.classes)?;
    for (name, settings) in &config.volumes {
        volume(&config.levels, name, settings)?;
        class_exists(&config.classes, name, &settings.class)?;
    }
    check_paths(config)
}

fn check_node(config: &Config) -> Result<(), Problem> {
    if !(super::NICE_MIN..=super::NICE_MAX).contains(&config.nice) {
        let hint = format!("write {} to {}", super::NICE_MIN, super::NICE_MAX);
        let cause = format!("threads cannot be {} nice", config.nice);
        return Err(Problem::new(Place::Node, "nice", cause, hint));
    }
    let limits = IO_TIMEOUT_MIN..=IO_TIMEOUT_MAX;
    if config.io_timeout != Nanos::NEVER && !limits.contains(&config.io_timeout) {
        let cause = format!("{} is outside 1s to 1h", config.io_timeout);
        return Err(Problem::new(Place::Node, "io_timeout", cause, "write `30s`, or `off`"));
    }
    let limits = CLIENT_MEMORY_MIN..=CLIENT_MEMORY_MAX;
    if let Some(size) = config.client_memory.filter(|size| !limits.contains(&size.0)) {
        let (cause, hint) =
            (format!("{size} is outside 16MiB to 1TiB"), "write a size as `256MiB`");
        return Err(Problem::new(Place::Node, "client_memory", cause, hint));
    }
    match config.shards {
        Some(shards) if !(super::SHARDS_MIN..=super::SHARDS_MAX).contains(&shards) => {
            let hint = format!("write {} to {}", super::SHARDS_MIN, super::SHARDS_MAX);
            let cause = format!("a node cannot have {shards} shards");
            Err(Problem::new(Place::Node, "shards", cause, hint))
        }
        _ => Ok(()),
    }
}

fn check_control(control: &ControlConfig) -> Result<(), Problem> {
    check_socket_path(Place::Control, &control.socket)
}

/// Each address of the node is listened on once.
fn check_addresses(config: &Config) -> Result<(), Problem> {
    let ControlConfig { http, metrics, .. } = &config.control;
    let nbd = config.nbd.listen.iter().map(|address| (Place::Nbd, "listen", address));
    let http = http.as_ref().map(|address| (Place::Control, "http", address));
    let metrics = metrics.as_ref().map(|address| (Place::Control, "metrics", address));
    let mut known = Vec::new();
    for (place, key, address) in nbd.chain(http).chain(metrics) {
        if address.has_any_port() {
            continue;
        }
        if known.contains(&address) {
            let cause = format!("the node listens on {address} already");
            return Err(Problem::new(
                place,
                key,
                cause,
                "give each an address or a port of its own",
            ));
        }
        known.push(address);
    }
    Ok(())
}

pub(super) fn check_socket_path(place: Place, path: &Path) -> Result<(), Problem> {
    let length = path.as_os_str().len();
    if length <= SOCKET_PATH_BYTES_MAX {
        return Ok(());
    }
    let cause = format!(
        "`{}` has {length} bytes; the system takes {SOCKET_PATH_BYTES_MAX} at most",
        path.display()
    );
    Err(Problem::new(place, "socket", cause, "choose a shorter path, or a shorter node directory"))
}

pub(crate) fn inflight(inflight: u16) -> Result<(), Problem> {
    if (1..=INFLIGHT_MAX).contains(&inflight) {
        return Ok(());
    }
    let cause = format!("{inflight} is outside 1 to {INFLIGHT_MAX}");
    Err(Problem::new(Place::Writeback, "inflight_max", cause, "write a number such as 4"))
}

fn check_levels(levels: &[LevelConfig]) -> Result<(), Problem> {
    if levels.len() > LEVELS_MAX {
        let cause = format!("{} levels are more than {LEVELS_MAX}", levels.len());
        return Err(Problem::new(Place::Level(LEVELS_MAX), "name", cause, "remove levels"));
    }
    for (index, level) in levels.iter().enumerate() {
        check_level(levels, index, level)?;
        watermarks(Place::Level(index), level.watermarks)?;
    }
    Ok(())
}

fn check_level(levels: &[LevelConfig], index: usize, level: &LevelConfig) -> Result<(), Problem> {
    let problem =
        |key, cause: String, hint: String| Err(Problem::new(Place::Level(index), key, cause, hint));
    let before = &levels[..index];
    if before.iter().any(|other| other.name == level.name) {
        let cause = format!("two levels are called `{}`", level.name);
        return problem("name", cause, "give each level a name of its own".into());
    }
    if before.iter().any(|other| LevelKind::from(other.kind) as u8 > level.kind as u8) {
        let cause = format!("level `{}` is faster than the one before it", level.name);
        return problem("kind", cause, "list levels fastest first: memory, nvm, ssd".into());
    }
    if level.kind != Kind::Memory
        && let Some(other) = before.iter().find(|other| other.kind == level.kind)
    {
        let kind = if level.kind == Kind::Nvm { "nvm" } else { "ssd" };
        let cause = format!("levels `{}` and `{}` are both of kind {kind}", other.name, level.name);
        let hint = "a node has at most one nvm and one ssd level; make the first one larger";
        return problem("kind", cause, hint.into());
    }
    let minimum = level_bytes_min(level.kind);
    if !(minimum..=LEVEL_BYTES_MAX).contains(&level.size) {
        let cause = format!("level `{}` has {}", level.name, format_bytes(level.size));
        let range = (format_bytes(minimum), format_bytes(LEVEL_BYTES_MAX));
        return problem("size", cause, format!("write {} to {}", range.0, range.1));
    }
    if level.kind == Kind::Memory && level.path.is_some() {
        let cause = format!("level `{}` is memory and lives in no file", level.name);
        return problem("path", cause, "leave the key out".into());
    }
    Ok(())
}

/// Bytes of a level of `kind` at least.
pub(super) const fn level_bytes_min(kind: Kind) -> u64 {
    match kind {
        Kind::Memory => MEMORY_BYTES_MIN,
        Kind::Nvm => NVM_BYTES_MIN,
        Kind::Ssd => SSD_BYTES_MIN,
    }
}

pub(crate) fn watermarks(place: Place, marks: layby_cache::Watermarks) -> Result<(), Problem> {
    let pairs = [
        ("dirty_red", marks.dirty_red, marks.dirty_green),
        ("used_red", marks.used_red, marks.used_green),
    ];
    for (key, red, green) in pairs {
        if red > 100 || green > red {
            let cause = format!("green {green}% and red {red}% are not in order");
            let hint = "write 0% to 100%, and green at most as high as red";
            return Err(Problem::new(place, key, cause, hint));
        }
    }
    Ok(())
}

pub(crate) fn class(
    levels: &[LevelConfig],
    name: &Name,
    class: &ClassConfig,
) -> Result<(), Problem> {
    let place = || Place::Class(name.clone());
    for level in &class.levels {
        if !levels.iter().any(|known| known.name == *level) {
            return Err(unknown_level(place(), "levels", levels, level));
        }
    }
    let mut named = class.levels.iter().enumerate();
    if let Some((_, twice)) = named.find(|(at, level)| class.levels[..*at].contains(level)) {
        let cause = format!("level `{twice}` is named twice");
        return Err(Problem::new(place(), "levels", cause, "name each level once"));
    }
    if !(super::WEIGHT_MIN..=super::WEIGHT_MAX).contains(&class.weight) {
        let cause = format!("{} is outside {} to {}", class.weight, 1, super::WEIGHT_MAX);
        return Err(Problem::new(place(), "weight", cause, "write a number such as 1"));
    }
    if let Some(objective) = class.latency_objective.filter(|time| time.0 > WAIT_MAX) {
        let cause = format!("{objective} is more than 1h");
        let hint = "write a time such as `2ms`, or 0 for none";
        return Err(Problem::new(place(), "latency_objective", cause, hint));
    }
    class.limits.check(&place())?;
    class.uplink.check(&place())?;
    check_amounts(levels, place(), &class.share, &class.cap)?;
    match class.share.keys().find(|level| !class.levels.contains(level)) {
        None => Ok(()),
        Some(level) => {
            let cause = format!("class `{name}` has a share of `{level}` but may not use it");
            let hint = format!("add `{level}` to its levels, or remove the share");
            Err(Problem::new(place(), "share", cause, hint))
        }
    }
}

/// Refuses a cap of a level that the class may not use: it would do nothing. A start takes it all
/// the same, since earlier builds let it in.
pub(crate) fn usable_caps(
    place: Place,
    (name, class): (&Name, &ClassConfig),
    cap: &BTreeMap<Name, Amount>,
) -> Result<(), Problem> {
    let Some(level) = cap.keys().find(|level| !class.levels.contains(level)) else {
        return Ok(());
    };
    let cause = format!("there is a cap of level `{level}`, which class `{name}` may not use");
    let hint = format!("choose a class that uses `{level}`, or leave the cap out");
    Err(Problem::new(place, "cap", cause, hint))
}

pub(super) fn unknown_level(
    place: Place,
    key: &'static str,
    levels: &[LevelConfig],
    name: &Name,
) -> Problem {
    let known: Vec<&str> = levels.iter().map(|level| level.name.as_str()).collect();
    let cause = format!("there is no level `{name}`");
    Problem::new(place, key, cause, format!("levels are: {}", known.join(", ")))
}

fn check_amounts(
    levels: &[LevelConfig],
    place: Place,
    share: &BTreeMap<Name, Amount>,
    cap: &BTreeMap<Name, Amount>,
) -> Result<(), Problem> {
    for (key, amounts) in [("share", share), ("cap", cap)] {
        for (name, amount) in amounts {
            let Some(level) = levels.iter().find(|level| level.name == *name) else {
                return Err(unknown_level(place, key, levels, name));
            };
            let limit = cap.get(name).filter(|_| key == "share");
            let limit = limit.map_or(level.size, |cap| cap.bytes_of(level.size));
            if key == "share" && amount.bytes_of(level.size) > limit {
                let cause = format!("a share of {amount} of `{name}` exceeds its cap or the level");
                let hint = format!("`{name}` has {}", format_bytes(level.size));
                return Err(Problem::new(place, key, cause, hint));
            }
        }
    }
    Ok(())
}

pub(crate) fn guarantees(
    levels: &[LevelConfig],
    classes: &[(Name, ClassConfig)],
) -> Result<(), Problem> {
    for level in levels {
        let mut sum = 0u64;
        for (name, class) in classes {
            let Some(share) = class.share.get(&level.name) else { continue };
            sum = sum.saturating_add(share.bytes_of(level.size));
            if sum > level.size {
                let cause = format!(
                    "the classes up to `{name}` are guaranteed {} of level `{}`, which has {}",
                    format_bytes(sum),
                    level.name,
                    format_bytes(level.size)
                );
                let hint = "lower shares until their sum is at most the level's size";
                return Err(Problem::new(Place::Class(name.clone()), "share", cause, hint));
            }
        }
    }
    Ok(())
}

pub(crate) fn volume(
    levels: &[LevelConfig],
    name: &Name,
    volume: &VolumeConfig,
) -> Result<(), Problem> {
    let place = || Place::Volume(name.clone());
    if let Some(size) = volume.size {
        volume_size(place(), size)?;
    }
    allow(place(), &volume.allow)?;
    volume.limits.check(&place())?;
    volume.discard_delay.check(&place())?;
    super::discard::check_bandwidth(volume.discard_bandwidth, &place())?;
    let store = volume.path.as_deref().filter(|path| crate::cloud::is_store(path));
    let is_relative = |path: &Path| {
        path.to_str()
            .and_then(|text| text.strip_prefix("file://"))
            .is_some_and(|folder| !folder.starts_with('/'))
    };
    let is_no_store = |path: &&Path| {
        let is_known = crate::cloud::has_known_scheme(path) && !crate::cloud::lacks_bucket(path);
        !is_known || is_relative(path)
    };
    let misspelled = volume.path.as_deref().filter(|path| crate::cloud::is_misspelled(path));
    if let Some(path) = store.filter(is_no_store).or(misspelled) {
        let (cause, hint) = crate::cloud::no_store(path);
        return Err(Problem::new(place(), "path", cause, hint));
    }
    let is_in_store = store.is_some();
    if volume.key.is_some() && !is_in_store {
        let cause = "only volumes in an object store are encrypted".to_owned();
        let hint = "leave the key out, or name a store as the volume's path";
        return Err(Problem::new(place(), "key", cause, hint));
    }
    if volume.compression.is_some() && !is_in_store {
        let cause = "only volumes in object stores are compressed, and its path is none".to_owned();
        let hint = "leave the compression out, or name a store as the volume's path";
        return Err(Problem::new(place(), "compression", cause, hint));
    }
    check_amounts(levels, place(), &volume.share, &volume.cap)
}

/// Bytes of a volume at least.
pub(crate) const VOLUME_BYTES_MIN: u64 = 4 << 10;
/// Bytes of a volume at most: what block addresses reach at the smallest block size.
pub(crate) const VOLUME_BYTES_MAX: u64 = (BlockIndex::MAX.0 + 1) * BlockSize::MIN.bytes() as u64;

pub(crate) fn volume_size(place: Place, size: Size) -> Result<(), Problem> {
    if (VOLUME_BYTES_MIN..=VOLUME_BYTES_MAX).contains(&size.0) && size.0.is_multiple_of(512) {
        return Ok(());
    }
    let most = format_bytes(VOLUME_BYTES_MAX);
    let hint = format!("write a multiple of 512 bytes from 4KiB to {most}, such as 64GiB");
    Err(Problem::new(place, "size", format!("a volume cannot have {size}"), hint))
}

pub(crate) fn allow(place: Place, rules: &[AllowRule]) -> Result<(), Problem> {
    if rules.len() <= ALLOW_RULES_MAX {
        return Ok(());
    }
    let cause = format!("{} rules are more than {ALLOW_RULES_MAX}", rules.len());
    Err(Problem::new(place, "allow", cause, "use wider networks"))
}

pub(crate) fn class_exists(
    classes: &[(Name, ClassConfig)],
    volume: &Name,
    class: &Name,
) -> Result<(), Problem> {
    if classes.iter().any(|(known, _)| known == class) {
        return Ok(());
    }
    let known: Vec<&str> = classes.iter().map(|(name, _)| name.as_str()).collect();
    let cause = format!("there is no class `{class}`");
    let hint = format!("classes are: {}", known.join(", "));
    Err(Problem::new(Place::Volume(volume.clone()), "class", cause, hint))
}

/// No two levels or volumes may share a file or a device.
fn check_paths(config: &Config) -> Result<(), Problem> {
    let mut seen: Vec<(String, FileIdentity)> = Vec::new();
    let levels = config.levels.iter().enumerate().filter_map(|(index, level)| {
        let path = level.path.as_deref()?;
        Some((Place::Level(index), format!("level `{}`", level.name), path))
    });
    let volumes = config.volumes.iter().filter_map(|(name, volume)| {
        let path = volume.path.as_deref()?;
        Some((Place::Volume(name.clone()), format!("volume `{name}`"), path))
    });
    for (place, who, path) in levels.chain(volumes) {
        let identity = FileIdentity::of(path);
        if let Some((other, known)) = seen.iter().find(|(_, known)| known.is_same(&identity)) {
            let mut cause = format!("{who} and {other} share `{}`", path.display());
            if known.is_below(&identity) {
                cause.push_str(&format!(", which has the bytes of `{}`", known.path.display()));
            }
            let hint = "give each level and each volume a file or device of its own";
            return Err(Problem::new(place, "path", cause, hint));
        }
        seen.push((who, identity));
    }
    Ok(())
}

/// A whole path without links, `.` and `..`, as far as it exists; the rest by its words. A link to
/// what does not exist yet is that, since whoever makes the one makes the other.
fn resolved(path: &Path, links_max: usize) -> PathBuf {
    let mut place = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(place.pop()),
            part => place.push(part),
        }
        place = match (place.canonicalize(), place.read_link()) {
            (Ok(found), _) => found,
            (Err(_), Ok(target)) if links_max > 0 => {
                let from = place.parent().unwrap_or(Path::new("/"));
                resolved(&from.join(target), links_max - 1)
            }
            _ => place,
        };
    }
    place
}

/// A path, without what makes it a store's URL, and the same from the root on.
fn whole(path: &Path) -> (&Path, PathBuf) {
    let folder = path.to_str().and_then(|text| text.strip_prefix("file://"));
    let path = folder.map_or(path, Path::new);
    (path, std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}

/// What makes two paths the same storage: the text, the inode, the device number, or the bytes that
/// a loop device or a partition has of something else. A store in a folder (`file://`) is known by
/// that folder.
#[derive(Clone, Debug)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    inode: Option<(u64, u64)>,
    is_folder: bool,
    /// It failed to be looked at, so that it may be there or not.
    is_unseen: bool,
    device: Option<u64>,
    extents: Vec<StorageExtent>,
}

impl FileIdentity {
    /// Looks at `path`; what does not exist yet is known by the nearest folder that does. Where its
    /// file system hangs, it is known by its words alone: what is compared to it goes on. For a
    /// start, which may wait: where the system grants no thread, the caller looks itself.
    pub(crate) fn of(path: &Path) -> Self {
        let found = FileIdentity::or_named(path);
        found.unwrap_or_else(|_| {
            let (path, whole) = whole(path);
            FileIdentity::found(path, &whole)
        })
    }

    /// The same, for a change of the node, which may not wait.
    ///
    /// # Errors
    /// [`NoAnswer::NoThread`] where the system grants no thread.
    pub(crate) fn or_named(path: &Path) -> Result<Self, NoAnswer> {
        match FileIdentity::in_time(path) {
            Err(NoAnswer::Hangs(_)) => Ok(FileIdentity::by_name(path)),
            found => found,
        }
    }

    /// What is known of a path by its words alone.
    pub(crate) fn by_name(path: &Path) -> Self {
        let (path, extents) = (whole(path).1, Vec::new());
        let (inode, device, is_folder, is_unseen) = (None, None, false, true);
        FileIdentity { path, inode, is_folder, is_unseen, device, extents }
    }

    /// The same, where it must be seen.
    ///
    /// # Errors
    /// [`NoAnswer`] where it is not.
    pub(crate) fn in_time(path: &Path) -> Result<Self, NoAnswer> {
        let (path, whole) = whole(path);
        let (named, looked_at) = (path.to_owned(), whole.clone());
        look_through(&whole, move || FileIdentity::found(&named, &looked_at))
    }

    fn found(path: &Path, whole: &Path) -> Self {
        #[cfg(test)]
        super::hanging::pass(whole);
        let (metadata, is_unseen) = match std::fs::metadata(path) {
            Ok(metadata) => (Some(metadata), false),
            Err(error) => (None, !matches!(error.kind(), NotFound | NotADirectory)),
        };
        let path = resolved(whole, LINKS_MAX);
        let is_device = |m: &&std::fs::Metadata| {
            m.file_type().is_block_device() || m.file_type().is_char_device()
        };
        FileIdentity {
            path,
            inode: metadata.as_ref().map(|m| (m.dev(), m.ino())),
            is_folder: metadata.as_ref().is_some_and(std::fs::Metadata::is_dir),
            is_unseen,
            device: metadata.as_ref().filter(is_device).map(MetadataExt::rdev),
            extents: metadata.as_ref().map_or_else(Vec::new, storage::extents_of),
        }
    }

    /// Whether it is there.
    pub(crate) fn exists(&self) -> bool {
        self.inode.is_some()
    }

    /// Whether it failed to be looked at, as where its mount has failed.
    pub(crate) fn is_unseen(&self) -> bool {
        self.is_unseen
    }

    /// Whether it is there, and no folder.
    pub(crate) fn has_bytes(&self) -> bool {
        self.inode.is_some() && !self.is_folder
    }

    /// Whether it lies in that folder, or would if that was one.
    pub(crate) fn is_within(&self, folder: &FileIdentity) -> bool {
        self.path.starts_with(&folder.path)
    }

    /// Its name, where it lies in that folder itself.
    pub(crate) fn name_in(&self, folder: &FileIdentity) -> Option<&str> {
        let is_there = self.path.parent() == Some(&folder.path);
        self.path.file_name().filter(|_| is_there)?.to_str()
    }

    /// Whether both name the same storage.
    pub(crate) fn is_same(&self, other: &FileIdentity) -> bool {
        let same = |a: Option<u64>, b: Option<u64>| a.is_some() && a == b;
        self.path == other.path
            || (self.inode.is_some() && self.inode == other.inode)
            || same(self.device, other.device)
            || self.is_below(other)
    }

    /// Whether they are different files or devices over the same bytes.
    pub(crate) fn is_below(&self, other: &FileIdentity) -> bool {
        let overlaps = |extent| other.extents.iter().any(|other| other.overlaps(extent));
        let is_one = match (self.extents.first(), other.extents.first()) {
            (Some(own), Some(its)) => own.storage == its.storage,
            _ => return false,
        };
        !is_one && self.extents.iter().any(overlaps)
    }
}
