//! What a node keeps of a volume in an object store: its journal, its map, and a note of its key.
//!
//! How: the catalog says which of them have to be there. A volume that is to be taken may have
//! neither journal nor map, unless it was opened since. A removal renames the map, removes the
//! journal, then that file.
//! Invariant: what a start would make or leave alone is no problem; what it would miss is one. A
//! map under its own name whose journal is missing is never taken for a removal's: the journal's
//! disk may be away, with writes that no store has.
//! Cost: a check reads all of the map and the journal's headers. Not for: what the store has.

use super::identities::is_kept;
use crate::catalog::VolumeRecord;
use crate::check::LocalFinding;
use crate::config::KeySource;
use crate::error::Report;
use layby_cloud::{Inspected, Key, Paths, inspect, is_settled, is_unmade, read_map, volume_of};
use layby_types::format_bytes;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Bytes of a note of a key at most; a sound one has fewer.
const NOTE_BYTES_MAX: u64 = 4096;

/// Which of a volume's journal and map are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Present {
    Both,
    MapAlone,
    JournalAlone,
    Neither,
    /// Their removal has begun, and did not end.
    Removing,
}

/// The map of a volume whose files are being removed.
fn removed_map(paths: &Paths) -> PathBuf {
    paths.map.with_extension("map.gone")
}

/// Which of a volume's files are there.
///
/// # Errors
/// Which one it cannot be known of, and why.
pub(super) fn present(paths: &Paths) -> Result<Present, String> {
    let is_there = |path: &Path| {
        path.try_exists().map_err(|cause| format!("`{}` cannot be read: {cause}", path.display()))
    };
    Ok(match (is_there(&paths.map)?, is_there(&paths.journal)?) {
        (true, true) => Present::Both,
        (true, false) => Present::MapAlone,
        (false, _) if is_there(&removed_map(paths))? => Present::Removing,
        (false, true) => Present::JournalAlone,
        (false, false) => Present::Neither,
    })
}

/// Whether the node in `dir` opened a volume whose map is not there, and did not begin to remove
/// what it kept of it.
pub(super) fn misses(dir: &Path, record: &VolumeRecord, paths: &Paths) -> bool {
    let has_map = !matches!(paths.map.try_exists(), Ok(false));
    !has_map && is_kept(dir, record) && present(paths) != Ok(Present::Removing)
}

/// Removes a volume's journal, its map, and the note of its key. `forget` comes before the last
/// step, and says whether it succeeded; where it did not, the step is left to another removal.
///
/// # Errors
/// A report when a file cannot be removed; the next removal goes on.
pub(super) fn remove_files(paths: &Paths, forget: impl FnOnce() -> bool) -> Result<(), Report> {
    let removed = removed_map(paths);
    // The removal before may have ended ahead of a sync.
    let has_begun = removed.exists();
    // In this order durably: they may lie on two file systems.
    if has_gone(&paths.map, std::fs::rename(&paths.map, &removed))? || has_begun {
        sync_folder(&paths.map)?;
    }
    if remove_file(&paths.journal)? || has_begun {
        sync_folder(&paths.journal)?;
    }
    remove_file(&key_note(paths))?;
    match forget() {
        true => remove_file(&removed).map(drop),
        false => Ok(()),
    }
}

/// Removes the map that a removal which was not written down left under its other name. Beside it,
/// files that were made anew would be taken for removed where their map is lost.
pub(super) fn drop_removed_map(paths: &Paths) {
    if let Err(left) = remove_file(&removed_map(paths)) {
        tracing::warn!(cause = left.cause, "{}; it is of no use any more", left.error);
    }
}

/// Removes a file; false where there was none.
fn remove_file(path: &Path) -> Result<bool, Report> {
    has_gone(path, std::fs::remove_file(path))
}

fn has_gone(path: &Path, done: std::io::Result<()>) -> Result<bool, Report> {
    match done {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(unremoved(path, &cause)),
    }
}

fn sync_folder(file: &Path) -> Result<(), Report> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    let is_absent = |cause: &std::io::Error| cause.kind() == ErrorKind::NotFound;
    // Where the folder is not there, the file is not, either.
    let synced = synced.or_else(|cause| if is_absent(&cause) { Ok(()) } else { Err(cause) });
    synced.map_err(|cause| unremoved(file, &cause))
}

fn unremoved(path: &Path, cause: &std::io::Error) -> Report {
    Report::from_io(format!("cannot remove `{}`", path.display()), cause)
}

/// What reading a volume's journal and map came to, or what is wrong with them; none where neither
/// has to be there.
pub(crate) fn local_finding(
    dir: &Path,
    paths: &Paths,
    (record, is_deleted): (&VolumeRecord, bool),
    block_bytes: u32,
) -> Result<Option<LocalFinding>, String> {
    if let Some(problem) = note_problem(paths, record) {
        return Err(problem);
    }
    // An undeletion makes them anew, as a taking does, once a removal that has begun is over.
    let is_unmade = is_unmade(paths) || present(paths)? == Present::Removing;
    let is_taken = record.take && !misses(dir, record, paths);
    if (is_taken || is_deleted) && is_unmade {
        return Ok(None);
    }
    let Inspected { status, damaged } =
        inspect(paths, block_bytes).map_err(|error| error.to_string())?;
    if !damaged.is_empty() {
        return Err(damage_text(&damaged));
    }
    Ok(Some(LocalFinding {
        journal_bytes: status.journal_bytes,
        dirty_bytes: status.dirty_bytes,
        map_segments: status.segments,
        map_runs: status.runs,
        live_bytes: status.live_bytes,
    }))
}

/// Whether a volume's store was never found to have it, by what the node keeps: a creation was cut
/// short before its superblock was put, and the next start goes on. One that was to be taken from
/// another node has to be there.
pub(crate) fn is_never_put(paths: &Paths, record: &VolumeRecord) -> bool {
    let map = read_map(&paths.map);
    !record.take && map.is_ok_and(|map| volume_of(&map).is_some() && !is_settled(&map))
}

/// Damaged ranges of a volume's journal, a first byte and a length each, in words.
pub(super) fn damage_text(damaged: &[(u64, u64)]) -> String {
    const SHOWN_MAX: usize = 16;
    let shown = damaged.iter().take(SHOWN_MAX);
    let shown: Vec<String> = shown.map(|(at, length)| format!("{at}+{length}")).collect();
    let bytes: u64 = damaged.iter().map(|(_, length)| length).sum();
    let more = if damaged.len() > SHOWN_MAX { ", …" } else { "" };
    format!(
        "its journal is damaged where acknowledged data was: {} of it, at bytes {}{more} of the \
         volume; reads of them fail",
        format_bytes(bytes),
        shown.join(", ")
    )
}

/// Where a node notes which key a volume's objects were found to be sealed with.
pub(super) fn key_note(paths: &Paths) -> PathBuf {
    paths.map.with_extension("key")
}

/// What was noted of a volume's key; none where nothing was, or a power loss left an empty note.
fn noted(note: &Path) -> Result<Option<String>, String> {
    let named = |cause: &dyn std::fmt::Display| format!("`{}`: {cause}", note.display());
    let bytes = match crate::config::read_small(note, NOTE_BYTES_MAX) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|cause| named(&cause))?,
    };
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    match text.is_empty() {
        true => Ok(None),
        false if Key::is_check(&text) => Ok(Some(text)),
        false => {
            Err(named(&"this note of the volume's key is damaged; delete it if the key is right"))
        }
    }
}

/// Whether a key is the one that the store was opened with before, as far as that was noted: with
/// another one, what is written could never be uploaded, and reads would look like damage. True
/// where it was noted.
pub(super) fn is_key_noted(paths: &Paths, check: Option<&str>) -> Result<bool, String> {
    let note = key_note(paths);
    let Some(noted) = noted(&note)? else { return Ok(false) };
    let note = note.display();
    match check {
        Some(check) if check == noted => Ok(true),
        Some(_) => {
            Err(format!("its key is not the one that its objects are encrypted with, by `{note}`"))
        }
        None => Err(format!("its objects are encrypted, by `{note}`, and it has no key")),
    }
}

/// Why the note of a volume's key keeps it from being served, as far as that is known without the
/// node: it may have another environment, and commands are not run.
fn note_problem(paths: &Paths, record: &VolumeRecord) -> Option<String> {
    let check = match &record.key {
        None => None,
        Some(source @ KeySource::File(_)) if let Ok(key) = source.read() => Some(key.check()),
        Some(_) => return noted(&key_note(paths)).err(),
    };
    is_key_noted(paths, check.as_deref()).err()
}

/// Notes a volume's key, which nothing was noted of.
///
/// # Errors
/// The system's; then the next start asks nothing of the key.
pub(super) fn note_key(note: &Path, check: &str) -> std::io::Result<()> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(flags);
    let mut file = options.open(note)?;
    file.write_all(check.as_bytes())?;
    file.sync_all()
}
