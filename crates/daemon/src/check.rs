//! `layby check`: is what lies in a node's directory sound?
//!
//! How: under the node's lock, the catalog says which structures to expect where; the engine's
//! checker reads them by its own means; volumes' backings are looked for; the node's small files
//! are read as a start reads them.
//! Invariant: nothing is written but the lock's own file.
//! Cost: headers and recent records; with `full` every live block is read, with `backing` all that
//! object stores hold of the volumes.

use crate::catalog::{
    Catalog, DeletedRecord, DirectoryLock, EncryptionRecord, LevelRecord, UNLOCKED, VolumePhase,
    VolumeRecord, keeps_nodes_away,
};
use crate::cloud::{
    Uncounted, exchanged_with, find_older, is_never_put, is_store, local_finding, store_finding,
    unstored,
};
use crate::config::{KeySource, Kind, Name, Size, check_trusted_dir};
use crate::disk_file;
use crate::error::{Report, ReportKind};
use crate::homes::{Homes, IN_MEMORY};
use crate::levels::written::{self, Place};
use crate::plan::part_bytes;
use crate::reached::LevelsReached;
use crate::recovery::memory_line;
use layby_engine::check::{CheckTarget, StoreKind, StoreReport, check as check_stores};
use layby_engine::io::{SectorCipher, lies_in_memory};
use layby_engine::store::Reached;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
mod crashes;
mod lost_blocks;
mod own_files;

pub use lost_blocks::{LostAnswer, RANGES_MAX, RangeAnswer};
pub use own_files::FileFinding;

/// The findings on one shard's part of a level.
#[derive(Clone, Debug, Serialize)]
pub struct StoreAnswer {
    /// The level.
    pub level: Name,
    /// Whose part.
    pub shard: u8,
    /// File or device.
    pub device: String,
    /// First byte of the part.
    pub base: u64,
    /// Blocks that a start would find.
    pub blocks_live: u64,
    /// Of them, those not written back.
    pub blocks_dirty: u64,
    /// Blocks whose contents were compared with their checksums.
    pub blocks_verified: u64,
    /// Records read.
    pub records: u64,
    /// Writes that a crash cut short; they were never acknowledged as durable.
    pub torn: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Blocks that an earlier start has found lost and that are lost still, by volume.
    pub lost: Vec<LostAnswer>,
    /// What is wrong.
    pub problems: Vec<String>,
    /// Problems beyond those listed.
    pub problems_omitted: u64,
}

/// What a node keeps of a volume in a store: its journal and its map, both whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LocalFinding {
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Of these, bytes that the map does not know in the store.
    pub dirty_bytes: u64,
    /// Segments that the map knows.
    pub map_segments: u64,
    /// Runs of neighbouring blocks in the map.
    pub map_runs: u64,
    /// Bytes of blocks that hold data, by the map.
    pub live_bytes: u64,
}

/// What a store has of a volume and was found whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoreVerified {
    /// Objects that were read.
    pub objects: u64,
    /// Checksums of data that were compared.
    pub checksums: u64,
    /// Bytes of blocks that these vouch for.
    pub bytes: u64,
    /// Bytes fetched.
    pub bytes_fetched: u64,
    /// Requests to the store.
    pub requests: u64,
}

/// The findings on one volume's backing.
#[derive(Clone, Debug, Serialize)]
pub struct BackingFinding {
    /// The volume.
    pub volume: Name,
    /// Its file or device, or its place in a store.
    pub path: String,
    /// Its home is an object store.
    pub is_in_store: bool,
    /// What is wrong, if anything.
    pub problem: Option<String>,
    /// What is not as it should be, and the next start mends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Its journal and its map, where they are there and whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalFinding>,
    /// What was read of it in its store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<StoreVerified>,
    /// The snapshot that was read in the volume's place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Name>,
    /// Its creation was cut short, so that its store may have nothing of it yet; the next start
    /// goes on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unmade: bool,
    /// The volume was deleted, and can come back or is not all gone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

/// The findings on a node.
#[derive(Clone, Debug, Serialize)]
pub struct CheckAnswer {
    /// The node's identity.
    pub node: String,
    /// Nothing is wrong.
    pub is_sound: bool,
    /// Every shard's part of every persistent level.
    pub stores: Vec<StoreAnswer>,
    /// Every volume.
    pub backings: Vec<BackingFinding>,
    /// The node's small files that are damaged.
    pub files: Vec<FileFinding>,
    /// Levels whose file is in a memory file system.
    pub in_memory: Vec<Name>,
    /// The file system is read-only, and no lock was held meanwhile that keeps each node away.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_unlocked: bool,
}

impl CheckAnswer {
    /// What is no problem and should be known, a sentence each.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let files = self.files.iter().filter(|file| file.is_harmless).map(FileFinding::text);
        let backings = self.backings.iter().filter_map(|backing| {
            let note = backing.note.as_ref()?;
            Some(format!("volume `{}`: {note}", backing.volume))
        });
        let unlocked = self.is_unlocked.then(|| UNLOCKED.to_owned());
        files.chain(backings).chain(self.in_memory.iter().map(memory_line)).chain(unlocked)
    }

    /// All problems, a sentence each.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let stores = self.stores.iter().flat_map(|store| store.problems.iter().cloned());
        let backings = self.backings.iter().filter_map(|backing| {
            let problem = backing.problem.as_ref()?;
            Some(format!("volume `{}`: {problem}", backing.volume))
        });
        let files = self.files.iter().filter(|file| !file.is_harmless).map(FileFinding::text);
        stores.chain(backings).chain(files)
    }
}

/// How much is looked at.
#[derive(Clone, Debug, Default)]
pub struct Depth {
    /// The contents of every live block in the levels.
    pub full: bool,
    /// Every block of volumes in object stores, read from there.
    pub backing: bool,
    /// With `backing`, that snapshot of those volumes that have it, in their place.
    pub snapshot: Option<Name>,
}

/// Looks at everything in `dir`, as deep as is asked for.
///
/// # Errors
/// A report when there is no node, it runs, or its catalog cannot be read.
pub fn check(dir: &Path, depth: &Depth) -> Result<CheckAnswer, Report> {
    if disk_file::is_absent(&dir.join(crate::catalog::CATALOG_FILE_NAME)) {
        return Err(no_node(dir));
    }
    let lock = DirectoryLock::take_to_read(dir)?;
    let catalog = Catalog::load(dir)?.ok_or_else(|| no_node(dir))?;
    crate::catalog::last::check(dir)?;
    let runs_command = |record: &VolumeRecord| matches!(record.key, Some(KeySource::Command(_)));
    if depth.backing && catalog.volumes.values().any(runs_command) {
        check_trusted_dir(dir)?;
    }
    // Of levels that are being made nothing is expected.
    let is_made = catalog.is_started && !catalog.is_formatting;
    // Nor of those of a node that has never come up; what is there all the same is looked at.
    let written = if catalog.is_started { BTreeMap::new() } else { written_levels(dir, &catalog)? };
    let is_looked_at = |level: &Name| is_made || written.contains_key(level);
    let targets = targets(dir, &catalog, is_looked_at)?;
    refuse_unreadable(&targets)?;
    let plain: Vec<CheckTarget> = targets.iter().map(|(_, _, target)| target.clone()).collect();
    let report = check_stores(&plain, depth.full);
    let stores = targets.iter().zip(report.stores);
    // Where it cannot be read, the findings on files say so.
    let known = LevelsReached::read(dir).unwrap_or_default();
    let stores = stores.map(|((level, shard, _), report)| {
        store_answer(&catalog, (level.clone(), *shard, known.of(level, *shard)), report)
    });
    let mut stores: Vec<StoreAnswer> = stores.collect();
    if is_made {
        add_cut_levels(dir, &catalog, &mut stores);
    }
    for store in stores.iter_mut().filter(|store| store.shard == 0) {
        store.problems.splice(0..0, written.get(&store.level).cloned());
    }
    let backings = backings(dir, &catalog, depth);
    if let Some(snapshot) = &depth.snapshot
        && backings.iter().all(|backing| backing.snapshot.is_none())
    {
        return Err(no_snapshot(dir, snapshot));
    }
    let files = own_files::findings(dir);
    let firsts =
        targets.iter().filter(|(_, shard, target)| *shard == 0 && lies_in_memory(&target.path));
    let in_memory = firsts.map(|(level, _, _)| level.clone()).collect();
    let is_sound = stores.iter().all(|store| store.problems.is_empty())
        && backings.iter().all(|backing| backing.problem.is_none())
        && files.iter().all(|file| file.is_harmless);
    let (node, is_unlocked) = (catalog.node.to_string(), !keeps_nodes_away(lock.as_ref()));
    Ok(CheckAnswer { node, is_sound, stores, backings, files, in_memory, is_unlocked })
}

fn no_node(dir: &Path) -> Report {
    Report::new(ReportKind::NotFound, format!("cannot check `{}`", dir.display()))
        .cause("there is no node's catalog in that directory")
        .state("nothing was changed")
        .hint("name a node's directory with --dir")
}

/// What may not be read is neither sound nor damaged.
fn refuse_unreadable(targets: &[(Name, u8, CheckTarget)]) -> Result<(), Report> {
    for (level, _, target) in targets {
        let denied = disk_file::open_to_read(&target.path).err();
        let denied = denied.filter(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied);
        if let Some(cause) = denied {
            return Err(Report::from_io(format!("cannot check level `{level}`"), &cause)
                .cause(format!("`{}`: {cause}", target.path.display()))
                .state("nothing was changed, and whether the level is sound is not known")
                .hint("run the check as the node's user"));
        }
    }
    Ok(())
}

fn no_snapshot(dir: &Path, snapshot: &Name) -> Report {
    Report::new(ReportKind::NotFound, format!("cannot check `{}`", dir.display()))
        .cause(format!("no volume that was read has a snapshot `{snapshot}`"))
        .state("nothing was changed")
        .hint("`layby volume snapshots` shows those of a volume; without --snapshot all is read")
}

/// The cipher of an encrypted level, by the key that its node had last.
fn cipher_of(
    dir: &Path,
    level: &Name,
    kept: &EncryptionRecord,
) -> Result<Arc<SectorCipher>, Report> {
    // What the directory says runs as this process's user.
    if matches!(kept.key, KeySource::Command(_)) {
        check_trusted_dir(dir)?;
    }
    crate::levels::unlock::cipher_of(level, kept)
}

/// The same of any level, where it is encrypted and there.
fn cipher_there(dir: &Path, level: &LevelRecord) -> Result<Option<Arc<SectorCipher>>, Report> {
    let cipher = level.encryption.as_ref().map(|kept| cipher_of(dir, &level.name, kept));
    match (cipher.transpose(), &level.path) {
        // It is found to be missing, and the rest is checked.
        (Err(_), Some(path)) if matches!(dir.join(path).try_exists(), Ok(false)) => Ok(None),
        (cipher, _) => cipher,
    }
}

/// The first bytes of a level's parts, and the length of each.
fn parts_of(catalog: &Catalog, level: &LevelRecord) -> (Vec<u64>, u64) {
    let length = part_bytes(level.size.0, catalog.shards, level.segment.map(|size| size.0));
    ((0..catalog.shards).map(|shard| length * u64::from(shard)).collect(), length)
}

fn targets(
    dir: &Path,
    catalog: &Catalog,
    is_looked_at: impl Fn(&Name) -> bool,
) -> Result<Vec<(Name, u8, CheckTarget)>, Report> {
    let mut targets = Vec::new();
    for level in catalog.levels.iter().filter(|level| is_looked_at(&level.name)) {
        let kind = match level.kind {
            Kind::Memory => continue,
            Kind::Nvm => StoreKind::Nvm,
            Kind::Ssd => StoreKind::Log,
        };
        let Some(path) = &level.path else { continue };
        let cipher = cipher_there(dir, level)?;
        let (bases, length) = parts_of(catalog, level);
        for (shard, base) in (0..).zip(bases) {
            let cipher = cipher.clone();
            let target = CheckTarget { path: dir.join(path), base, length, kind, cipher };
            targets.push((level.name.clone(), shard, target));
        }
    }
    Ok(targets)
}

/// Levels of a node that has never come up, by its catalog, which hold something all the same; as a
/// problem each.
fn written_levels(dir: &Path, catalog: &Catalog) -> Result<BTreeMap<Name, String>, Report> {
    let mut found = BTreeMap::new();
    for level in &catalog.levels {
        let Some(path) = level.path.as_ref().map(|path| dir.join(path)) else { continue };
        let (cipher, (bases, _)) = (cipher_there(dir, level)?, parts_of(catalog, level));
        let place = Place { path: &path, cipher: cipher.as_ref(), bases: &bases };
        let held = written::held(place, catalog.node).map_err(|cause| {
            Report::from_io(format!("cannot check level `{}`", level.name), &cause)
                .cause(format!("`{}`: {cause}", path.display()))
                .state("nothing was changed, and whether the level is sound is not known")
                .hint("run the check as the node's user")
        })?;
        let problem = held.map(|held| {
            format!(
                "`{}`: {held}, though by the catalog the node has never come up: it is older than \
                 the level, and a start refuses it; put the newest catalog.json back",
                path.display()
            )
        });
        found.extend(problem.map(|problem| (level.name.clone(), problem)));
    }
    Ok(found)
}

/// Names levels that are shorter than they are to be, which a start refuses: what was in the part
/// that is missing may be nothing that a check would read.
fn add_cut_levels(dir: &Path, catalog: &Catalog, stores: &mut [StoreAnswer]) {
    for level in &catalog.levels {
        let Some(path) = level.path.as_ref().map(|path| dir.join(path)) else { continue };
        let length =
            disk_file::open_to_read(&path).and_then(|mut file| file.seek(SeekFrom::End(0)));
        let Some(length) = length.ok().filter(|length| *length < level.size.0) else { continue };
        if let Some(store) = stores.iter_mut().rfind(|store| store.level == level.name) {
            store.problems.push(format!(
                "`{}` was cut: it has {}, not {}, and a start refuses it; put the whole file back",
                path.display(),
                Size(length),
                level.size
            ));
        }
    }
}

fn store_answer(
    catalog: &Catalog,
    (level, shard, known): (Name, u8, Option<Reached>),
    report: StoreReport,
) -> StoreAnswer {
    // Where a structure is damaged, its end may be hidden.
    let known = known.filter(|_| report.problems.is_empty());
    let other = known.filter(|known| known.instance != report.instance);
    let older = known.filter(|known| {
        known.instance == report.instance && report.seq.saturating_add(1) < known.seq.0
    });
    let mut problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    let place = format!("`{}` at byte {}", report.device, report.base);
    match report.node {
        Some(node) if node != catalog.node.0 => {
            problems.push(format!("{place}: the level belongs to another node"));
        }
        Some(_) if report.shard != u16::from(shard) => {
            problems.push(format!("{place}: the part belongs to shard {}", report.shard));
        }
        _ => {}
    }
    problems.extend(older.map(|known| {
        format!(
            "{place}: an older copy of the level: it ends before sequence number {}, and the node \
             knows that it had reached {}",
            report.seq + 1,
            known.seq.0
        )
    }));
    problems.extend(other.map(|known| {
        format!(
            "{place}: made another time than the level that the node knows: instance {:016x}, \
             known {:016x}",
            report.instance, known.instance
        )
    }));
    problems.extend(report.dirty.iter().filter(|(id, _)| catalog.never_had(**id)).map(
        |(volume, blocks)| {
            format!(
                "{place}: {blocks} dirty block(s) of a volume, number {volume}, that the catalog \
                 has never had: it is older than the level, and a start drops them; put the newer \
                 catalog.json back first"
            )
        },
    ));
    let lost = lost_blocks::by_volume(catalog, &report.lost, report.block_bytes);
    problems.extend(lost.iter().map(|lost| format!("{place}: {}", lost.text())));
    let counts = report.counts;
    StoreAnswer {
        level,
        shard,
        device: report.device,
        base: report.base,
        blocks_live: counts.blocks_live,
        blocks_dirty: counts.blocks_dirty,
        blocks_verified: counts.blocks_verified,
        records: counts.records,
        torn: counts.torn,
        bytes_read: counts.bytes_read,
        lost,
        problems,
        problems_omitted: report.problems_omitted,
    }
}

/// What the node keeps of a volume in a store, which may be deleted, or why that is no use.
fn kept_of(
    dir: &Path,
    catalog: &Catalog,
    paths: &layby_cloud::Paths,
    about: (&VolumeRecord, bool),
) -> Result<Option<LocalFinding>, String> {
    // Where that is not known, the findings on files say so, and what to do.
    let older = || find_older(dir, about.0, &paths.map).ok().flatten();
    match exchanged_with(dir, catalog, about.0, &paths.map).or_else(older) {
        Some(problem) => Err(problem),
        None => local_finding(dir, paths, about, catalog.block_bytes),
    }
}

fn backings(dir: &Path, catalog: &Catalog, depth: &Depth) -> Vec<BackingFinding> {
    let homes = Homes::new(dir, None);
    homes.introduce(catalog);
    let is_being_made = |record: &VolumeRecord| record.phase == VolumePhase::Creating;
    let is_shown = |record: &VolumeRecord| match record.phase {
        VolumePhase::Ready => true,
        // Of one that is being made in a store something may be there, or nothing.
        VolumePhase::Creating => is_store(&record.path),
        // The next start ends its removal, of which anything may be done.
        VolumePhase::Deleting => false,
    };
    let ready = catalog.volumes.iter().filter(|(_, record)| is_shown(record));
    let ready = ready.map(|(name, record)| (name, record, None));
    let deleted = catalog.deleted.iter().map(|gone| (&gone.name, &gone.record, Some(gone)));
    let dirs = catalog.local_dirs.clone().unwrap_or_default();
    let finding = |(name, record, gone): (&Name, &VolumeRecord, Option<&DeletedRecord>)| {
        let (path, is_in_store) = (homes.name(record), is_store(&record.path));
        let paths = dirs.paths(dir, record);
        let (mut problem, local) = match is_in_store {
            true if is_being_made(record) => (None, None),
            true => match kept_of(dir, catalog, &paths, (record, gone.is_some())) {
                Ok(found) => (None, found),
                Err(problem) => (Some(problem), None),
            },
            false => (homes.problem(record), None),
        };
        let (mut verified, mut snapshot, mut unmade) = (None, None, is_being_made(record));
        // Of one whose grace is over anything may be gone.
        let is_whole = gone.is_none_or(|gone| gone.waited_seconds < gone.grace_seconds);
        if depth.backing
            && is_whole
            && !unmade
            && problem.is_none()
            && let Some(found) = store_finding(record, depth.snapshot.as_ref(), gone.is_some())
        {
            unmade = found.is_absent && gone.is_none() && is_never_put(&paths, record);
            (problem, verified) = (found.problem.filter(|_| !unmade), found.verified);
            snapshot = depth.snapshot.clone().filter(|_| found.is_snapshot);
        }
        let is_counted = verified.is_some() && local.is_some() && gone.is_none();
        let (note, lost) = match is_counted.then(|| unstored(record, &paths)).flatten() {
            Some(Uncounted::Kept(what)) => (Some(what), None),
            Some(Uncounted::Lost(what)) => (None, Some(what)),
            None => (None, None),
        };
        let path_of = || homes.file(record).filter(|_| !is_in_store && gone.is_none());
        let is_in_memory = problem.is_none() && path_of().is_some_and(|p| lies_in_memory(&p));
        let note = note.or_else(|| is_in_memory.then(|| format!("it {IN_MEMORY}")));
        let problem = problem.or(lost);
        let (volume, deleted) = (name.clone(), gone.is_some());
        BackingFinding {
            volume,
            path,
            is_in_store,
            problem,
            note,
            unmade,
            local,
            verified,
            snapshot,
            deleted,
        }
    };
    ready.chain(deleted).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::MockNode;

    /// Goal: a level that was cut is a problem also where nothing was in what is missing, since a
    /// start refuses it. Method: each level's file without its last byte, one after the other.
    #[tokio::test]
    async fn cut_levels_are_found() {
        let node = MockNode::new("");
        let dir = node.dir.path();
        let catalog = Catalog::load(dir).expect("it can be read").expect("the node wrote it");
        let levels: Vec<_> = catalog.levels.iter().filter(|level| level.path.is_some()).collect();
        assert!(!levels.is_empty());
        for level in levels {
            let path = dir.join(level.path.as_ref().expect("it was just looked at"));
            let found = |length: u64| {
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("the node's own");
                let file = std::fs::File::create(&path).and_then(|file| file.set_len(length));
                file.expect("the node's own folder");
                let answer = check(dir, &Depth::default()).expect("there is a catalog");
                answer.problems().filter(|problem| problem.contains("was cut")).count()
            };
            assert_eq!(found(level.size.0 - 1), 1, "{}", level.name);
            assert_eq!(found(level.size.0), 0, "{}", level.name);
        }
    }

    /// Goal: what is missing is found and nothing is touched. Method: a node of mock shards, whose
    /// levels and backings never came to be; a directory without a node.
    #[tokio::test]
    async fn missing_parts_are_found() {
        let node = MockNode::new("");
        std::fs::remove_file(node.dir.path().join("volumes/vol0")).expect("the node made it");
        let answer = check(node.dir.path(), &Depth::default()).expect("there is a catalog");
        assert!(!answer.is_sound);
        assert_eq!((answer.stores.len(), answer.backings.len()), (4, 1));
        assert_eq!(answer.problems().count(), 5);
        let empty = tempfile::TempDir::new().expect("a temporary directory");
        let report = check(empty.path(), &Depth::default()).expect_err("no node");
        assert_eq!(report.kind, ReportKind::NotFound);
        assert!(!empty.path().join("lock").exists());
    }
}
