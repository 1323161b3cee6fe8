//! What a node will be, from what it is told and what it remembers.
//!
//! How: [`prepare`] lays the catalog's live changes over the configuration, creates and updates the
//! volumes that the configuration declares, completes what a crash interrupted, and checks the
//! whole. It starts nothing.
//! Invariant: a node keeps its block size, its shards and its levels; a configuration that says
//! otherwise is refused, since blocks would be looked for where they are not.
//! Cost: runs once per start.

mod declared;

use crate::catalog::{
    Catalog, DeletedRecord, LevelRecord, Live, NodeId, VolumePhase, VolumeRecord,
};
use crate::config::{ClassConfig, Config, Kind, LevelConfig, Name, Size, checks};
use crate::control::View;
use crate::error::{Report, ReportKind};
use crate::homes::Homes;
use crate::plan::{Layout, PART_ALIGNMENT};
use declared::declare_volumes;
use layby_engine::io::device_hints;
use layby_engine::store::SegmentPlan;
use layby_types::{BlockSize, format_bytes};
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

pub use declared::VOLUME_NAME_DEFAULT;

/// Segments of a shard's part at least where the device says how long they are: of fewer, too many
/// would be spare.
const SEGMENTS_BY_DEVICE_MIN: u64 = 128;
/// Cores per shard when nothing is said: the kernel's part of the work needs the other one.
pub const CORES_PER_SHARD: usize = 2;

/// A node ready to start.
#[derive(Debug)]
pub struct Prepared {
    /// What it holds; volumes in phase `Creating` need their backing created.
    pub view: View,
    /// What was done besides, for the operator to read.
    pub notes: Vec<String>,
    /// The levels have never been used and are to be formatted.
    pub is_new: bool,
    /// Volumes that an earlier start began to make and that are none, or are made anew: once the
    /// catalog says so, what it made of their files goes.
    pub begun: BTreeMap<Name, VolumeRecord>,
}

/// Combines what a node is told with what it remembers.
///
/// # Errors
/// A report when the two cannot be combined.
pub fn prepare(config: &Config, found: Option<Catalog>, homes: &Homes) -> Result<Prepared, Report> {
    let is_new = found.as_ref().is_none_or(|catalog| !catalog.is_started);
    let catalog = match found {
        Some(catalog) if catalog.is_started => same_node(config, catalog)?,
        Some(catalog) => begun_node(config, catalog)?,
        None => new_node(config, NodeId::draw()?)?,
    };
    let mut notes = Vec::new();
    let mut view = combine(config, catalog, &mut notes)?;
    finish_deletions(homes, &mut view, &mut notes)?;
    let begun = declare_volumes(config, &mut view, homes, is_new, &mut notes)?;
    check_whole(&view)?;
    crate::levels::check_memory(&view, is_new)?;
    // Before levels are made and touched: the kernel may end the process without a word.
    if let Some(line) = crate::memory::shortage(config, view.layout.shards) {
        tracing::warn!("{line}");
    }
    notes.extend(crate::admission::notes(&config.devices, &view));
    if view.catalog.volumes.values().any(|record| crate::cloud::is_store(&record.path)) {
        notes.extend(crate::cloud::placement_note(config));
    }
    Ok(Prepared { view, notes, is_new, begun })
}

fn refused(cause: impl Into<String>, hint: impl Into<String>) -> Report {
    Report::new(ReportKind::Invalid, "cannot start the node")
        .cause(cause)
        .state("nothing was started or changed")
        .hint(hint)
}

fn new_node(config: &Config, node: NodeId) -> Result<Catalog, Report> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let by_cores = (cores / CORES_PER_SHARD).clamp(1, usize::from(crate::config::SHARDS_MAX));
    let by_cores = u8::try_from(by_cores).expect("clamped to a byte");
    let block_size = config.block_size.unwrap_or(BlockSize::DEFAULT);
    let shards = config.shards.unwrap_or(by_cores);
    Ok(Catalog::new(node, block_size.bytes(), shards, new_levels(config, shards)))
}

/// A node whose first start did not come to its end: nothing was ever stored in it, so that it may
/// be given another shape. Its volumes are known, since their files may be there.
fn begun_node(config: &Config, found: Catalog) -> Result<Catalog, Report> {
    let mut catalog = new_node(config, found.node)?;
    (catalog.volume_id_next, catalog.volumes) = (found.volume_id_next, found.volumes);
    Ok(catalog)
}

/// Levels as a new node makes them: where nothing was written of segments, the device says.
fn new_levels(config: &Config, shards: u8) -> Vec<LevelRecord> {
    let mut records = level_records(config);
    for record in records.iter_mut().filter(|record| record.kind == Kind::Ssd) {
        let path = record.path.as_deref().map(|path| config.dir.join(path));
        // What a file system does with its disk is its own affair.
        let path = path.filter(|path| is_device(path));
        let unit = path.and_then(|path| device_hints(&path)?.unit_bytes);
        let part = record.size.0 / u64::from(shards);
        let fits = |unit: &u64| is_segment(*unit) && part / unit >= SEGMENTS_BY_DEVICE_MIN;
        record.segment = record.segment.or(unit.filter(fits).map(Size));
    }
    records
}

/// Whether a path is a block device.
pub(crate) fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

fn is_segment(bytes: u64) -> bool {
    (SegmentPlan::BYTES_DEFAULT + 1..=SegmentPlan::BYTES_MAX).contains(&bytes)
        && bytes.is_multiple_of(PART_ALIGNMENT)
}

fn level_records(config: &Config) -> Vec<LevelRecord> {
    let inside = |path: &Path| path.strip_prefix(&config.dir).unwrap_or(path).to_owned();
    let record = |level: &LevelConfig| LevelRecord {
        name: level.name.clone(),
        kind: level.kind,
        size: Size(level.size),
        path: level.path.as_deref().map(inside),
        segment: level.segments.bytes.map(Size),
        encryption: None,
    };
    config.levels.iter().map(record).collect()
}

/// Checks that the configuration describes the node that the catalog is of.
fn same_node(config: &Config, catalog: Catalog) -> Result<Catalog, Report> {
    let was = |what: &str, was: String, now: String| {
        let cause = format!("{what} of this node is {was}; the configuration says {now}");
        refused(cause, "set it back; a node keeps its block size, shards and levels for life")
    };
    if let Some(block_size) = config.block_size.filter(|size| size.bytes() != catalog.block_bytes) {
        let (old, new) = (u64::from(catalog.block_bytes), u64::from(block_size.bytes()));
        return Err(was("the block size", format_bytes(old), format_bytes(new)));
    }
    if let Some(shards) = config.shards.filter(|shards| *shards != catalog.shards) {
        let what = "the number of shards";
        return Err(was(what, catalog.shards.to_string(), shards.to_string()));
    }
    let mut now = level_records(config);
    for (old, new) in catalog.levels.iter().zip(&mut now) {
        // Where nothing is written, segments stay as they are.
        new.segment = new.segment.or(old.segment);
        // Keys were compared when levels were unlocked.
        new.encryption.clone_from(&old.encryption);
    }
    let pairs = catalog.levels.iter().zip(&now);
    if let Some((old, new)) = pairs.into_iter().find(|(old, new)| old != new) {
        return Err(was("a level", old.to_string(), new.to_string()));
    }
    if catalog.levels.len() != now.len() {
        let what = "the number of levels";
        return Err(was(what, catalog.levels.len().to_string(), now.len().to_string()));
    }
    Ok(catalog)
}

impl std::fmt::Display for LevelRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` ({}, {}", self.name, self.kind, self.size)?;
        if let Some(path) = &self.path {
            write!(f, ", `{}`", path.display())?;
        }
        match self.segment {
            Some(segment) => write!(f, ", segments of {segment})"),
            None => f.write_str(")"),
        }
    }
}

fn combine(config: &Config, mut catalog: Catalog, notes: &mut Vec<String>) -> Result<View, Report> {
    let mut levels = config.levels.clone();
    for (level, record) in levels.iter_mut().zip(&catalog.levels) {
        level.segments.bytes = record.segment.map(|size| size.0);
    }
    let mut note = |place: &str| notes.push(format!("{place} the edited file"));
    for level in &mut levels {
        let mut record = catalog.watermarks.remove(&level.name);
        let (marks, is_edited) = Live::resolve(&mut record, Some(level.watermarks.into()));
        level.watermarks = marks.map_or(level.watermarks, Into::into);
        if is_edited {
            note(&format!("watermarks of level `{}` follow", level.name));
        }
        catalog.watermarks.extend(record.map(|record| (level.name.clone(), record)));
    }
    let configured = (config.writeback, config.read_ahead);
    let (live, is_edited) = Live::resolve(&mut catalog.writeback, Some(configured.into()));
    let limits = live.map_or(configured, Into::into);
    if is_edited {
        note("write-back and read-ahead follow");
    }
    if Live::resolve(&mut catalog.uplink, Some(config.uplink.clone())).1 {
        note("the uplink follows");
    }
    let classes = combine_classes(config, &mut catalog, notes);
    let block_size = BlockSize::new(catalog.block_bytes).ok_or_else(|| {
        refused(format!("a block of {} bytes is not offered", catalog.block_bytes), "")
    })?;
    let layout = Layout::new(levels, block_size, catalog.shards, limits)
        .map_err(|problem| problem.report("cannot start the node"))?;
    let classes = classes.into_iter().map(Some).collect();
    Ok(View { catalog, layout, classes, absent: BTreeMap::new() })
}

fn combine_classes(
    config: &Config,
    catalog: &mut Catalog,
    notes: &mut Vec<String>,
) -> Vec<(Name, ClassConfig)> {
    let mut classes = config.classes.clone();
    for (name, pair) in std::mem::take(&mut catalog.classes) {
        let index = classes.iter().position(|(known, _)| *known == name);
        let configured = index.map(|index| classes[index].1.clone());
        let mut record = Some(pair);
        let (live, is_edited) = Live::resolve(&mut record, configured);
        match (index, live) {
            (Some(index), Some(class)) => classes[index].1 = class,
            (Some(index), None) => drop(classes.remove(index)),
            (None, Some(class)) => classes.push((name.clone(), class)),
            (None, None) => {}
        }
        if is_edited {
            notes.push(format!("class `{name}` follows the edited file"));
        }
        catalog.classes.extend(record.map(|record| (name, record)));
    }
    classes
}

/// Throws away what a crash left of volumes that were being deleted. Stores are told later, since
/// one that does not answer is no reason to serve nobody.
fn finish_deletions(homes: &Homes, view: &mut View, notes: &mut Vec<String>) -> Result<(), Report> {
    let volumes = &mut view.catalog.volumes;
    let deleting = volumes.extract_if(.., |_, record| record.phase == VolumePhase::Deleting);
    for (name, record) in deleting.collect::<Vec<_>>() {
        if homes.writes_through(&record) {
            notes.push(format!("volume `{name}` was deleted; its objects in its store go now"));
            let identity = homes.identity(&record);
            view.catalog.deleted.push(DeletedRecord::new(name, identity, 0, record));
            continue;
        }
        let kept = homes.release(&record, true)?;
        let kept = kept.map(|kept| format!("; its bytes are still in `{}`", kept.path.display()));
        let kept = kept.unwrap_or_default();
        notes.push(format!("the deletion of volume `{name}` was completed{kept}"));
    }
    Ok(())
}

fn check_whole(view: &View) -> Result<(), Report> {
    let error = "cannot start the node";
    let known: Vec<_> = view.classes().cloned().collect();
    for (name, class) in &known {
        checks::class(&view.layout.levels, name, class).map_err(|p| p.report(error))?;
    }
    checks::guarantees(&view.layout.levels, &known).map_err(|p| p.report(error))?;
    for (name, record) in &view.catalog.volumes {
        let place = checks::Place::Volume(name.clone());
        checks::volume_size(place, Size(record.length)).map_err(|p| p.report(error))?;
        if view.class(record.class.as_str()).is_none() {
            return Err(refused(
                format!("volume `{name}` is of class `{}`, which no longer exists", record.class),
                format!("add `[class.{}]` to the configuration again", record.class),
            ));
        }
    }
    view.checked_spec(error).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{WatermarksRecord, WritebackRecord};
    use crate::config::{Overrides, built_in};
    use tempfile::TempDir;

    fn config(dir: &TempDir, text: &str) -> Config {
        let overrides = Overrides { dir: Some(dir.path().into()), ..Overrides::default() };
        Config::parse(None, text, &overrides).expect("a good configuration")
    }

    fn homes(dir: &TempDir) -> Homes {
        Homes::new(dir.path(), None)
    }

    fn started(dir: &TempDir, text: &str) -> Catalog {
        let prepared = prepare(&config(dir, text), None, &homes(dir)).expect("a good node");
        assert!(prepared.is_new);
        let mut catalog = prepared.view.catalog;
        catalog.is_started = true;
        for record in catalog.volumes.values_mut() {
            record.phase = VolumePhase::Ready;
        }
        catalog
    }

    const SMALL: &str = "[node]\nshards = 2\nblock_size = \"8KiB\"\n[[level]]\nname = \"ssd\"\n\
                         kind = \"ssd\"\nsize = \"64MiB\"\n";

    /// Goal: a node keeps what its blocks depend on. Method: configurations that differ in one such
    /// value, and one that is silent.
    #[test]
    fn nodes_keep_their_shape() {
        let dir = TempDir::new().expect("a temporary directory");
        let catalog = started(&dir, SMALL);
        let cases = [
            ("shards = 2", "shards = 3", "the number of shards of this node is 2"),
            ("8KiB", "4KiB", "the block size of this node is 8KiB"),
            ("64MiB", "128MiB", "a level of this node is `ssd`"),
            ("\"ssd\"\nk", "\"flash\"\nk", "a level of this node is `ssd`"),
        ];
        for (from, to, cause) in cases {
            let changed = config(&dir, &SMALL.replacen(from, to, 1));
            let report = prepare(&changed, Some(catalog.clone()), &homes(&dir)).expect_err(to);
            assert!(report.cause.contains(cause), "{report}");
        }
        let silent = SMALL.replace("shards = 2\nblock_size = \"8KiB\"\n", "");
        let prepared =
            prepare(&config(&dir, &silent), Some(catalog), &homes(&dir)).expect("the same node");
        assert_eq!(prepared.view.layout.shards, 2);
        assert!(!prepared.is_new);
    }

    /// Goal: a level keeps the length of its segments, and its parts begin at multiples of it.
    /// Method: a node made with one; configurations that are silent, and that say another; a node
    /// made without one, that is told one.
    #[test]
    fn segments_keep_their_length() {
        let dir = TempDir::new().expect("a temporary directory");
        let chosen = format!("{SMALL}segment = \"1536KiB\"\n");
        let catalog = started(&dir, &chosen);
        for text in [SMALL, chosen.as_str()] {
            let same = prepare(&config(&dir, text), Some(catalog.clone()), &homes(&dir));
            let layout = same.expect("the same node").view.layout;
            assert_eq!(layout.levels[0].segments.bytes, Some(1536 << 10));
            assert_eq!(layout.part_bytes(0), 21 * (1536 << 10));
        }
        for (was, now) in
            [(&chosen, chosen.replace("1536KiB", "2MiB")), (&SMALL.into(), chosen.clone())]
        {
            let report = prepare(&config(&dir, &now), Some(started(&dir, was)), &homes(&dir));
            let report = report.expect_err("another length");
            assert!(report.cause.contains("segments of"), "{report}");
        }
        let long = config(&dir, &format!("{SMALL}segment = \"8MiB\"\n"));
        let report = prepare(&long, None, &homes(&dir)).expect_err("too few segments");
        assert!(report.cause.contains("in segments of 8MiB"), "{report}");
    }

    /// Goal: a node that never came up may still be given another shape. Method: the catalog of a
    /// first start that failed.
    #[test]
    fn failed_first_start_binds_nothing() {
        let dir = TempDir::new().expect("a temporary directory");
        let mut catalog = started(&dir, SMALL);
        catalog.is_started = false;
        let node = catalog.node;
        let changed = config(&dir, &SMALL.replace("64MiB", "128MiB"));
        let prepared =
            prepare(&changed, Some(catalog), &homes(&dir)).expect("nothing was stored yet");
        assert!(prepared.is_new);
        assert_eq!(prepared.view.catalog.node, node);
    }

    /// Goal: declared volumes follow an edited file, and only forward. Method: class and size up,
    /// size down, another path, and no edit after a live change.
    #[test]
    fn declared_volumes_follow_the_file() {
        let dir = TempDir::new().expect("a temporary directory");
        let text = |size: &str, class: &str| {
            format!("{SMALL}[volume.v]\nsize = \"{size}\"\nclass = \"{class}\"\n")
        };
        let mut catalog = started(&dir, &text("1MiB", "normal"));
        assert_eq!(catalog.volumes.len(), 1, "no default volume beside declared ones");
        catalog.volumes.get_mut("v").expect("declared").class = built_in("critical");
        let view_of = |text: &str, catalog: &Catalog| {
            prepare(&config(&dir, text), Some(catalog.clone()), &homes(&dir))
                .map(|prepared| prepared.view)
        };
        let same = view_of(&text("1MiB", "normal"), &catalog).expect("no edit");
        assert_eq!(same.catalog.volumes["v"].class, built_in("critical"));
        let edited = view_of(&text("2MiB", "bulk"), &catalog).expect("a good edit");
        assert_eq!(edited.catalog.volumes["v"].class, built_in("bulk"));
        assert_eq!(edited.catalog.volumes["v"].length, 2 << 20);
        let report = view_of(&text("64KiB", "bulk"), &catalog).expect_err("data would be lost");
        assert!(report.hint.contains("--shrink"), "{report}");
        let moved = text("1MiB", "bulk") + "path = \"elsewhere\"\n";
        let report = view_of(&moved, &catalog).expect_err("data would be missed");
        assert!(report.cause.contains("elsewhere"), "{report}");
        let gone = view_of(SMALL, &catalog).expect("never deleted");
        assert!(gone.catalog.volumes.contains_key("v"));
    }

    /// Goal: an edited key takes back no command's change under another key, least of all who may
    /// use a volume or how long it is; a key that is edited counts. Method: size, class and `allow`
    /// changed by commands; then the file's limits, read-only and each of the three edited.
    #[test]
    fn an_edited_key_leaves_the_others() {
        let dir = TempDir::new().expect("a temporary directory");
        let text = format!("{SMALL}[volume.v]\nsize = \"1MiB\"\n");
        let mut catalog = started(&dir, &text);
        let live = catalog.volumes.get_mut("v").expect("declared");
        (live.length, live.class) = (2 << 20, built_in("critical"));
        live.allow = vec!["unix".parse().expect("a rule")];
        let live = live.clone();
        let after = |keys: &str| {
            let edited = config(&dir, &text.replace("size = \"1MiB\"\n", keys));
            let prepared = prepare(&edited, Some(catalog.clone()), &homes(&dir));
            prepared.map(|prepared| prepared.view.catalog.volumes["v"].clone())
        };
        let kept = |keys: &str| after(keys).expect("a good edit");
        let limited = kept("size = \"1MiB\"\nlimits = { iops_max = 1500 }\nread_only = true\n");
        assert!(limited.read_only && limited.limits != live.limits);
        assert_eq!((limited.length, &limited.class), (live.length, &live.class));
        assert_eq!(limited.allow, live.allow, "a closed volume stays closed");
        let bulk = kept("size = \"1MiB\"\nclass = \"bulk\"\n");
        assert_eq!((bulk.length, bulk.class), (live.length, built_in("bulk")));
        assert_eq!(kept("size = \"3MiB\"\n").length, 3 << 20);
        let local = kept("size = \"1MiB\"\nallow = [\"127.0.0.1\"]\n");
        assert_ne!(local.allow, live.allow);
        let report = after("size = \"1536KiB\"\n").expect_err("data would be lost");
        assert!(report.hint.contains("write `size = \"2MiB\"`"), "{report}");
    }

    /// Goal: a live change holds until the file is edited at its place; then the file counts for
    /// good, and the start says so once. Method: the uplink, write-back, a level's watermarks and a
    /// class, each changed as by a command; starts with the file as it was, edited, its table taken
    /// out, and written again as it was at first.
    #[test]
    fn an_edited_place_ends_its_live_change() {
        let dir = TempDir::new().expect("a temporary directory");
        let overrides = Overrides { dir: Some(dir.path().into()), ..Overrides::default() };
        let live = |text: &str| Config::parse(None, text, &overrides).expect("a good change");
        for (place, note, first, changed, edited) in LIVE_PLACES {
            let table = |keys: &str| match place {
                "" => format!("{SMALL}{keys}\n"),
                _ => format!("{SMALL}[{place}]\n{keys}\n"),
            };
            for edit in [table(edited), SMALL.to_owned()] {
                let mut catalog = started(&dir, &table(first));
                let (was, live) = (live(&table(first)), live(&table(changed)));
                record_live(&mut catalog, place, &was, &live);
                let mut restart = |text: &str| {
                    let prepared =
                        prepare(&config(&dir, text), Some(catalog.clone()), &homes(&dir));
                    let prepared = prepared.expect("a good edit");
                    catalog = prepared.view.catalog.clone();
                    let notes = prepared.notes.into_iter().filter(|note| note.contains("edited"));
                    (in_force(&prepared.view, &config(&dir, text)), notes.collect::<Vec<_>>())
                };
                let of = |config: &Config| in_force(&view_of(config), config);
                assert_eq!(restart(&table(first)), (of(&live), Vec::new()), "{place}");
                let (now, notes) = restart(&edit);
                assert_eq!(now, of(&config(&dir, &edit)), "{place}: the edited file counts");
                assert_eq!(notes, [format!("{note} the edited file")]);
                let again = (of(&was), Vec::new());
                assert_eq!(restart(&table(first)), again, "{place}: for good");
            }
        }
    }

    /// Places of the file, what a start says of them, and three texts.
    const LIVE_PLACES: [(&str, &str, &str, &str, &str); 4] = [
        (
            "uplink",
            "the uplink follows",
            "cap = \"5MiB\"",
            "cap = \"1MiB\"",
            "windows = [{ from = \"07:00\", until = \"09:00\", cap = \"1MiB\" }]",
        ),
        (
            "writeback",
            "write-back and read-ahead follow",
            "merge_size = \"2MiB\"",
            "merge_size = \"4MiB\"",
            "merge_size = \"3MiB\"",
        ),
        (
            "",
            "watermarks of level `ssd` follow",
            "dirty_red = \"60%\"",
            "dirty_red = \"61%\"",
            "dirty_red = \"62%\"",
        ),
        ("class.bulk", "class `bulk` follows", "weight = 2", "weight = 3", "weight = 4"),
    ];

    fn view_of(config: &Config) -> View {
        let dir = TempDir::new().expect("a temporary directory");
        prepare(config, None, &homes(&dir)).expect("a good node").view
    }

    /// What counts of all that a command may change and [`LIVE_PLACES`] names.
    fn in_force(view: &View, config: &Config) -> String {
        let uplink = view.catalog.uplink.as_ref().and_then(|pair| pair.live.clone());
        let uplink = uplink.unwrap_or_else(|| config.uplink.clone());
        let (layout, classes) = (&view.layout, view.classes().collect::<Vec<_>>());
        let marks = layout.levels[0].watermarks;
        format!("{uplink:?} {:?} {:?} {marks:?} {classes:?}", layout.writeback, layout.read_ahead)
    }

    /// Records a live change, as the control API does.
    fn record_live(catalog: &mut Catalog, place: &str, was: &Config, live: &Config) {
        let limits = |config: &Config| WritebackRecord::from((config.writeback, config.read_ahead));
        let marks = |config: &Config| WatermarksRecord::from(config.levels[0].watermarks);
        let bulk = |config: &Config| {
            let found = config.classes.iter().find(|(name, _)| name.as_str() == "bulk");
            found.map(|(_, class)| class.clone())
        };
        match place {
            "uplink" => {
                let (configured, live) = (Some(was.uplink.clone()), Some(live.uplink.clone()));
                catalog.uplink = Some(Live { configured, live });
            }
            "writeback" => {
                let (configured, live) = (Some(limits(was)), Some(limits(live)));
                catalog.writeback = Some(Live { configured, live });
            }
            "" => {
                let pair = Live { configured: Some(marks(was)), live: Some(marks(live)) };
                catalog.watermarks.insert(built_in("ssd"), pair);
            }
            _ => {
                let pair = Live { configured: bulk(was), live: bulk(live) };
                catalog.classes.insert(built_in("bulk"), pair);
            }
        }
    }

    /// Goal: how a declared volume is compressed follows the file when that was edited, a live
    /// change stays until then, and a volume in a file has none. Method: a volume in a store
    /// through both, and back; the same key beside another path.
    #[test]
    fn compression_follows_the_file() {
        use crate::config::CompressionChoice as Choice;
        let dir = TempDir::new().expect("a temporary directory");
        let volume = format!("{SMALL}[volume.v]\nsize = \"1MiB\"\n");
        let text = |how: &str| format!("{volume}path = \"file:///maps\"\n{how}");
        let zstd = text("compression = \"zstd\"\n");
        let mut catalog = started(&dir, &zstd);
        assert_eq!(catalog.volumes["v"].compression, Some(Choice::Zstd));
        catalog.volumes.get_mut("v").expect("declared").compression = Some(Choice::Lz4);
        let after = |text: &str| {
            let prepared = prepare(&config(&dir, text), Some(catalog.clone()), &homes(&dir));
            prepared.expect("a good edit").view.catalog.volumes["v"].compression
        };
        assert_eq!(after(&zstd), Some(Choice::Lz4), "nothing was edited");
        assert_eq!(after(&text("compression = \"none\"\n")), Some(Choice::None));
        assert_eq!(after(&text("")), None, "the node's counts again");
        let overrides = Overrides { dir: Some(dir.path().into()), ..Overrides::default() };
        let refused = Config::parse(None, &format!("{volume}compression = \"lz4\"\n"), &overrides);
        let refused = refused.expect_err("its home is a file");
        assert!(refused.cause.contains("only volumes in object stores"), "{refused}");
    }
}
