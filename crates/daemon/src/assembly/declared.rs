//! The volumes that the configuration declares.
//!
//! How: a table without a volume makes one, an edited table changes its volume. A volume that was
//! never made follows its table, or goes with it; one that was deleted while its table was there
//! stays deleted until that is edited. So does a class, until a volume's table uses it.
//! Invariant: what was served is never made anew, and its size never shrinks here; no start fails
//! for a volume that was deleted.
//! Cost: runs once per start. Not for: files, which are made when the catalog is saved; see
//! `homes`.

use super::refused;
use crate::catalog::{VolumePhase, VolumeRecord};
use crate::config::{
    Config, DiscardChoice, DiscardWait, LimitsConfig, Name, Size, VOLUME_BYTES_DEFAULT,
    VolumeConfig, built_in,
};
use crate::control::View;
use crate::control::placement::KnownPlaces;
use crate::control::volumes::{VOLUMES_DIR_NAME, add_to_view};
use crate::disk_file::is_absent;
use crate::error::Report;
use crate::homes::Homes;
use layby_types::format_bytes;
use std::collections::BTreeMap;
use std::path::Path;

/// The volume of a new node that is told nothing.
pub const VOLUME_NAME_DEFAULT: &str = "vol0";

/// Creates and updates the volumes of the configuration; those that were begun and never made, as
/// they were.
pub(super) fn declare_volumes(
    config: &Config,
    view: &mut View,
    homes: &Homes,
    is_new: bool,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<Name, VolumeRecord>, Report> {
    let begun = take_unmade(config, view, homes, is_new, notes);
    let mut places = KnownPlaces::new(&config.dir);
    if is_new && config.volumes.is_empty() && view.catalog.volumes.is_empty() {
        let (name, error) = (built_in(VOLUME_NAME_DEFAULT), "cannot create the first volume");
        let is_begun = has_file(&begun, &name);
        add_to_view(view, &mut places, &name, (&first_volume(), is_begun), error)?;
    }
    view.catalog.unwanted.retain(|name, table| config.volumes.get(name) == Some(table));
    for (name, declared) in &config.volumes {
        if let Some(note) = kept_away(config, view, (name, declared), is_new, &begun) {
            notes.push(note);
        } else if let Some(known) = view.catalog.volumes.get(name) {
            if homes.is_half_made(known) {
                continue;
            }
            update_volume(config, view, name, declared)?;
            let class = view.catalog.volumes[name].class.clone();
            restore_class(config, view, &class, notes);
            configure(view, name, declared);
        } else {
            let error = format!("cannot create volume `{name}` of the configuration");
            let is_begun = has_file(&begun, name);
            restore_class(config, view, &declared.class, notes);
            add_to_view(view, &mut places, name, (declared, is_begun), &error)?;
            configure(view, name, declared);
        }
    }
    Ok(begun)
}

/// A class that a command deleted comes back where a volume of the configuration uses it again: its
/// table is there, and counts.
fn restore_class(config: &Config, view: &mut View, class: &Name, notes: &mut Vec<String>) {
    if view.class(class.as_str()).is_some() {
        return;
    }
    let Some(table) = config.classes.iter().find(|(known, _)| known == class) else { return };
    view.classes.push(Some(table.clone()));
    view.catalog.classes.remove(class);
    notes.push(format!(
        "class `{class}` was deleted, and is there again: a volume of the edited file uses it"
    ));
}

/// Whether an earlier start began to make the file of a volume's name.
fn has_file(begun: &BTreeMap<Name, VolumeRecord>, name: &Name) -> bool {
    begun.get(name).is_some_and(|record| record.path.starts_with(VOLUMES_DIR_NAME))
}

fn configure(view: &mut View, name: &Name, declared: &VolumeConfig) {
    let record = view.catalog.volumes.get_mut(name).expect("it was there or was added");
    record.configured = Some(declared.clone());
}

/// Why a volume of the configuration is neither made nor changed; none where it is.
fn kept_away(
    config: &Config,
    view: &View,
    (name, declared): (&Name, &VolumeConfig),
    is_new: bool,
    begun: &BTreeMap<Name, VolumeRecord>,
) -> Option<String> {
    let is_there = view.catalog.volumes.contains_key(name);
    if view.catalog.unwanted.contains_key(name) {
        // One that was created since by a command is no concern of the table.
        return Some(match is_there {
            true => format!("`[volume.{name}]` is of a volume that was deleted, and not heeded"),
            false => format!(
                "volume `{name}` was deleted, and `[volume.{name}]` still names it: it is not made \
                 anew until that is edited"
            ),
        });
    }
    if is_there {
        return None;
    }
    if is_deleted(view, name, declared) {
        return Some(format!(
            "volume `{name}` of the configuration was deleted, and its objects are still in its \
             store: it is not made anew"
        ));
    }
    let file = config.dir.join(VOLUMES_DIR_NAME).join(name.as_str());
    let is_left = declared.path.is_none() && !is_new && !has_file(begun, name);
    (is_left && !is_absent(&file)).then(|| {
        // As the configuration says it, whose paths begin at the node's directory.
        let path = Path::new(VOLUMES_DIR_NAME).join(name.as_str());
        let (file, path) = (file.display(), path.display());
        format!(
            "volume `{name}` of the configuration is not made: `{file}` is there, of a volume that \
             was deleted; move it away, or adopt it by `path = \"{path}\"`"
        )
    })
}

/// What a node that is told nothing serves.
fn first_volume() -> VolumeConfig {
    VolumeConfig {
        size: Some(Size(VOLUME_BYTES_DEFAULT)),
        class: built_in("normal"),
        path: None,
        read_only: false,
        allow: Vec::new(),
        share: BTreeMap::new(),
        cap: BTreeMap::new(),
        limits: LimitsConfig::default(),
        discard: DiscardChoice::default(),
        discard_delay: DiscardWait::default(),
        discard_bandwidth: None,
        ublk: false,
        key: None,
        compression: None,
        shards: VolumeConfig::shards_default(),
    }
}

/// Takes volumes out of the catalog that were never made: those of an earlier text of the
/// configuration, and all files' of a first start that did not come to its end. Nothing of them was
/// ever served.
fn take_unmade(
    config: &Config,
    view: &mut View,
    homes: &Homes,
    is_new: bool,
    notes: &mut Vec<String>,
) -> BTreeMap<Name, VolumeRecord> {
    let is_unmade = |(name, record): &(&Name, &VolumeRecord)| {
        let is_edited =
            record.configured.is_some() && record.configured.as_ref() != config.volumes.get(*name);
        let is_of_file = !homes.writes_through(record);
        record.phase == VolumePhase::Creating && (is_edited || (is_new && is_of_file))
    };
    let unmade = view.catalog.volumes.iter().filter(is_unmade).map(|(name, _)| name.clone());
    let mut begun = BTreeMap::new();
    for name in unmade.collect::<Vec<_>>() {
        let record = view.catalog.volumes.remove(&name).expect("it was just found");
        let is_edited = record.configured.as_ref() != config.volumes.get(&name);
        match homes.release(&record, false) {
            Ok(_) if is_edited && record.configured.is_some() => {
                notes.push(format!(
                    "volume `{name}`, which was never made, is forgotten: the file was edited"
                ));
                begun.insert(name, record);
            }
            Ok(_) => drop(begun.insert(name, record)),
            Err(_) => drop(view.catalog.volumes.insert(name, record)),
        }
    }
    begun
}

/// Whether a volume that is not there was deleted and still has its place in its store.
fn is_deleted(view: &View, name: &Name, declared: &VolumeConfig) -> bool {
    view.catalog.deleted.iter().any(|deleted| {
        deleted.name == *name && declared.path.as_ref() == Some(&deleted.record.path)
    })
}

/// Brings a volume to those keys of its table that were edited since they were last applied; what a
/// command set under another key stays.
fn update_volume(
    config: &Config,
    view: &mut View,
    name: &Name,
    declared: &VolumeConfig,
) -> Result<(), Report> {
    let record = view.catalog.volumes.get_mut(name).expect("the caller looked");
    let applied = record.configured.clone();
    if applied.as_ref() == Some(declared) {
        return Ok(());
    }
    let is_other = |path: &&Path| config.dir.join(path) != config.dir.join(&record.path);
    if let Some(path) = declared.path.as_deref().filter(is_other) {
        return Err(refused(
            format!(
                "volume `{name}` lies in `{}`; the configuration says `{}`",
                record.path.display(),
                path.display()
            ),
            "set the path back; to move a volume, copy it into a new one",
        ));
    }
    if declared.shards != record.shards() {
        let (is, says) = (record.shards(), declared.shards);
        return Err(refused(
            format!("volume `{name}` lies over {is} shard(s); the configuration says {says}"),
            "set `shards` back; to spread a volume, copy it into a new one",
        ));
    }
    let is_resized = applied.as_ref().is_none_or(|applied| applied.size != declared.size);
    if let Some(Size(length)) = declared.size.filter(|_| is_resized) {
        if length < record.length {
            let (old, new) = (format_bytes(record.length), format_bytes(length));
            return Err(refused(
                format!("volume `{name}` has {old}; the configuration says {new}"),
                format!(
                    "write `size = \"{old}\"`; less gives up data: `layby volume resize --shrink`, \
                     once the node runs"
                ),
            ));
        }
        record.length = length;
    }
    let applied = applied.as_ref();
    follow(&mut record.class, applied.map(|old| &old.class), &declared.class);
    follow(&mut record.read_only, applied.map(|old| &old.read_only), &declared.read_only);
    follow(&mut record.allow, applied.map(|old| &old.allow), &declared.allow);
    follow(&mut record.share, applied.map(|old| &old.share), &declared.share);
    follow(&mut record.cap, applied.map(|old| &old.cap), &declared.cap);
    follow(&mut record.limits, applied.map(|old| &old.limits), &declared.limits);
    follow(&mut record.discard, applied.map(|old| &old.discard), &declared.discard);
    let old = applied.map(|old| &old.discard_delay);
    follow(&mut record.discard_delay, old, &declared.discard_delay);
    let old = applied.map(|old| &old.discard_bandwidth);
    follow(&mut record.discard_bandwidth, old, &declared.discard_bandwidth);
    follow(&mut record.ublk, applied.map(|old| &old.ublk), &declared.ublk);
    follow(&mut record.key, applied.map(|old| &old.key), &declared.key);
    follow(&mut record.compression, applied.map(|old| &old.compression), &declared.compression);
    Ok(())
}

/// Takes what the file says for one key, unless it said the same when it was last applied.
fn follow<T: PartialEq + Clone>(value: &mut T, applied: Option<&T>, declared: &T) {
    if applied != Some(declared) {
        value.clone_from(declared);
    }
}

#[cfg(test)]
mod tests {
    use crate::assembly::{Prepared, prepare};
    use crate::catalog::{Catalog, VolumePhase};
    use crate::config::{Config, Name, Overrides};
    use crate::control::tests::MockNode;
    use crate::control::{DeleteData, UndeleteRequest, VolumePatch};
    use crate::error::Report;
    use crate::homes::Homes;
    use tempfile::TempDir;

    const SMALL: &str = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"64MiB\"\n";
    const A: &str = "[volume.a]\nsize = \"1MiB\"\n";
    const B: &str = "[volume.b]\nsize = \"1MiB\"\npath = \"no/such/folder\"\n";

    fn prepared(dir: &TempDir, text: &str, found: Option<Catalog>) -> Result<Prepared, Report> {
        let overrides = Overrides { dir: Some(dir.path().into()), ..Overrides::default() };
        let config = Config::parse(None, &format!("{SMALL}{text}"), &overrides);
        prepare(&config.expect("a good configuration"), found, &Homes::new(dir.path(), None))
    }

    /// A node's folder in which a start has made the files of its volumes, and ended.
    fn begun(text: &str) -> (TempDir, Catalog) {
        let dir = TempDir::new().expect("a temporary directory");
        let first = prepared(&dir, text, None).expect("a good node");
        std::fs::create_dir(dir.path().join("volumes")).expect("a writable directory");
        for (name, record) in &first.view.catalog.volumes {
            // What cannot be made is what ended it.
            let _ = Homes::new(dir.path(), None).plan(name, record);
        }
        (dir, first.view.catalog)
    }

    fn name(text: &str) -> Name {
        text.parse().expect("a good name")
    }

    /// Goal: the start after a first one that was interrupted makes the same volumes, or those of a
    /// corrected text, whatever their files are like by then. Method: files that are whole, empty,
    /// and gone; the same text, another one, and none.
    #[test]
    fn a_first_start_is_finished() {
        for (first, next) in [("", ""), (A, A), ("", A), (A, "")] {
            for state in ["whole", "empty", "gone"] {
                let (dir, catalog) = begun(first);
                for file in std::fs::read_dir(dir.path().join("volumes")).expect("it is there") {
                    let path = file.expect("it is there").path();
                    match state {
                        "whole" => {}
                        "empty" => std::fs::write(&path, b"").expect("the test's own file"),
                        _ => std::fs::remove_file(&path).expect("the test's own file"),
                    }
                }
                let again = prepared(&dir, next, Some(catalog.clone()));
                let again = again.unwrap_or_else(|report| panic!("{state}: {report}"));
                assert!(again.is_new && again.view.catalog.node == catalog.node);
                let wanted = if next.is_empty() { "vol0" } else { "a" };
                let names: Vec<_> = again.view.catalog.volumes.keys().map(Name::as_str).collect();
                assert_eq!(names, [wanted], "{state}");
                let homes = Homes::new(dir.path(), None);
                again.begun.values().for_each(|record| homes.remove_blank(record));
                let record = &again.view.catalog.volumes[wanted];
                homes.plan(&name(wanted), record).expect("it can be made");
                let made = std::fs::metadata(dir.path().join(&record.path)).expect("it is made");
                assert_eq!(made.len(), record.length, "{state}");
                let files = std::fs::read_dir(dir.path().join("volumes")).expect("it is there");
                assert_eq!(files.count(), 1, "what the first start made of others is gone");
            }
        }
    }

    /// Goal: what a start looks at grows with the volumes that it makes, not with their square.
    /// Method: looks in the node's folder are counted for 8 volumes and for 32.
    #[test]
    fn many_volumes_are_looked_at_once() {
        let looks = |count: usize| {
            let dir = TempDir::new().expect("a temporary directory");
            let tables = (0..count).map(|n| format!("[volume.v{n}]\nsize = \"1MiB\"\n"));
            let watched = crate::config::hanging::watch(dir.path());
            let made = prepared(&dir, &tables.collect::<String>(), None).expect("a good node");
            assert_eq!(made.view.catalog.volumes.len(), count);
            watched.looks()
        };
        let (few, many) = (looks(8), looks(32));
        let per_volume = (many - few) / 24;
        assert!((1..=2).contains(&per_volume), "{few} looks for 8 volumes, {many} for 32");
    }

    /// Goal: a volume of an existing node that was never made follows its table, whatever its home.
    /// Method: a path in no folder, corrected, changed to the node's own place, and taken away.
    #[test]
    fn what_was_never_made_follows_its_table() {
        let (dir, mut catalog) = begun(A);
        catalog.is_started = true;
        let record = catalog.volumes.get_mut("a").expect("it was declared");
        record.phase = VolumePhase::Ready;
        let both = format!("{A}{B}");
        let saved = prepared(&dir, &both, Some(catalog)).expect("nothing is opened yet");
        let saved = saved.view.catalog;
        assert_eq!(saved.volumes["b"].phase, VolumePhase::Creating);
        let report = Homes::new(dir.path(), None).plan(&name("b"), &saved.volumes["b"]);
        let report = report.expect_err("there is no such folder");
        assert!(report.error.contains("volume `b`") && !report.hint.is_empty(), "{report}");
        for text in [format!("{A}{}", B.replace("no/such/folder", "b")), both.replace("path", "#")]
        {
            let next = prepared(&dir, &text, Some(saved.clone()));
            let next = next.unwrap_or_else(|report| panic!("{report}")).view.catalog;
            assert_ne!(next.volumes["b"].path, saved.volumes["b"].path);
        }
        let next = prepared(&dir, A, Some(saved)).expect("a good edit").view.catalog;
        assert!(!next.volumes.contains_key("b"));
    }

    /// Goal: a volume that was deleted while its table was there stays deleted until that is
    /// edited, with its data or without, and holds up no start. Method: both, over restarts.
    #[tokio::test]
    async fn a_deleted_volume_stays_deleted() {
        for data in [DeleteData::Keep, DeleteData::Delete] {
            let text = format!("{A}[volume.b]\nsize = \"1MiB\"\n");
            let node = MockNode::new(&text);
            node.control.volume_delete(&name("a"), data).await.expect("it is there");
            let mut node = node;
            for _ in 0..2 {
                node = node.restart(&text);
                let view = node.control.view();
                let names: Vec<_> = view.volumes().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names, ["b"], "{data:?}");
                assert!(view.catalog.unwanted.contains_key("a"));
            }
            let edited = text.replacen("1MiB", "2MiB", 1);
            let node = node.restart(&edited);
            let is_there = node.control.view().catalog.volumes.contains_key("a");
            assert_eq!(is_there, data == DeleteData::Delete, "what was kept is not taken unasked");
            assert!(node.control.view().catalog.unwanted.is_empty());
            let again = node.control.volume_undelete(&name("a"), UndeleteRequest::default()).await;
            assert!(again.is_err(), "files do not come back");
        }
    }

    /// Goal: a class that was deleted by a command comes back once an edit of the file has a volume
    /// use it, and holds up no start; until then it stays deleted. Method: a class of the file and
    /// its volume, which a command moves to another class; the class is deleted; starts with the
    /// same text, with a new volume of the class, and with the class of a volume edited.
    #[tokio::test]
    async fn a_class_that_is_used_again_comes_back() {
        const CLASS: &str = "[class.video]\nrank = 5\n";
        let first = format!("{A}{B}{CLASS}").replace("no/such/folder\"", "b\"\nclass = \"video\"");
        let whole = format!("{SMALL}{first}");
        let node = MockNode::new(&whole);
        let class = Some(name("normal"));
        let patch = VolumePatch { class, ..VolumePatch::default() };
        node.control.volume_set(&name("b"), patch).await.expect("it is there");
        node.control.class_delete(&name("video")).await.expect("no volume uses it");
        let node = node.restart(&whole);
        assert!(node.control.view().class("video").is_none(), "nothing was edited");
        let catalog = node.control.view().catalog.clone();
        let added = format!("{first}[volume.c]\nsize = \"1MiB\"\nclass = \"video\"\n");
        let edited = first.replace("[volume.a]\n", "[volume.a]\nclass = \"video\"\n");
        for (text, volume) in [(added, "c"), (edited, "a")] {
            let started = prepared(&node.dir, &text, Some(catalog.clone()));
            let started = started.unwrap_or_else(|report| panic!("{volume}: {report}"));
            let view = started.view;
            assert_eq!(view.catalog.volumes[volume].class, name("video"));
            assert_eq!(view.class("video").map(|(_, class)| class.rank), Some(5));
            assert!(!view.catalog.classes.contains_key("video"), "the file counts");
            let notes = started.notes;
            assert!(notes.iter().any(|note| note.contains("class `video`")), "{notes:?}");
        }
    }
}
