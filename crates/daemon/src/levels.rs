//! The files and devices of the levels, before any shard opens them.
//!
//! How: a new node's level files are made at their full length, with their room reserved, so that a
//! disk too small is known at start and not under load, and zeros written over it for some seconds,
//! so that later syncs write data alone. An old node's must be there, whole; one
//! that is missing or blank is lost, see [`crate::degraded`]. What an NVM level shares with a copy
//! of its file, or has no room for, gets room of its own at each start: its mapping has no way to
//! refuse a write.
//! Invariant: a level file that went missing or shrank is never silently replaced; dirty blocks may
//! have been in it. A first start formats only what is empty or what its own failed attempt left,
//! unless it is told to.
//! Cost: runs once per start; a first one looks through what is there.

mod contents;
pub(crate) mod unlock;
pub(crate) mod written;

use crate::catalog::{CATALOG_FILE_NAME, NodeId};
use crate::config::{Format, Kind, LevelConfig, Name, Preallocation, Size};
use crate::control::View;
use crate::disk_file;
use crate::error::{Report, ReportKind};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io::{ErrorKind as Io, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use written::Place;

/// Where level files lie that nobody chose a place for, within the node's directory.
pub const LEVELS_DIR_NAME: &str = "levels";
/// How every level's superblock begins, and where it names its node (docs/formats.md).
const LEVEL_MAGIC: &[u8] = b"LAYBY";
const LEVEL_NODE_AT: usize = 16;
const HEAD_BYTES: usize = 64;
/// How long zeros are written over a new level's file: the default levels take less on most disks.
const FILL_TIME: Duration = Duration::from_secs(4);
const FILL_PIECE_BYTES: usize = 8 << 20;

/// A level that cannot be had: its file or device is missing, gone or blank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its name.
    pub name: Name,
    /// Its medium.
    pub kind: Kind,
    /// Why, as a sentence without its beginning.
    pub cause: String,
}

/// The levels of a node that has run which cannot be had.
#[must_use]
pub fn lost(view: &View) -> Vec<Lost> {
    let of = |(index, level): (usize, &LevelConfig)| {
        let path = level.path.as_deref()?;
        let part = view.layout.part_bytes(index);
        let bases = (0..view.layout.shards).map(|shard| part * u64::from(shard));
        let cause = loss_of(path, &bases.collect::<Vec<u64>>()).or_else(|| {
            let is_locked = view.layout.locked.contains(&level.name);
            is_locked.then(|| format!("`{}` came back after its key was asked for", path.display()))
        })?;
        Some(Lost { name: level.name.clone(), kind: level.kind, cause })
    };
    view.layout.levels.iter().enumerate().filter_map(of).collect()
}

/// Why there is no level at `path`; none where there is one, or something that must be looked at.
fn loss_of(path: &Path, bases: &[u64]) -> Option<String> {
    let file = match disk_file::open(path, File::options().read(true).write(true)) {
        Ok(file) => file,
        Err(cause) if cause.kind() == Io::NotFound => {
            return Some(format!("`{}` does not exist", path.display()));
        }
        Err(cause) if is_gone(&cause) => return Some(format!("`{}`: {cause}", path.display())),
        Err(_) => return None,
    };
    let is_blank = |base: &u64| {
        let mut head = [1; HEAD_BYTES];
        file.read_exact_at(&mut head, *base).is_ok() && head == [0; HEAD_BYTES]
    };
    bases.iter().all(is_blank).then(|| format!("`{}` is blank", path.display()))
}

/// A device that was taken out.
fn is_gone(cause: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NXIO, Errno::NODEV, Errno::IO].map(Errno::raw_os_error);
    cause.raw_os_error().is_some_and(|errno| gone.contains(&errno))
}

/// Makes or checks the file or device of every level.
///
/// # Errors
/// A report that names the level and its path.
pub fn prepare(dir: &Path, view: &View, is_new: bool, format: Format) -> Result<(), Report> {
    assert!(view.layout.locked.is_empty(), "levels are opened with their keys or not at all");
    if format == Format::All && !is_new {
        return Err(in_use(dir));
    }
    let mut made = Made::default();
    let prepared = prepare_all(dir, view, is_new, format, &mut made);
    if prepared.is_err() {
        made.give_back();
    }
    prepared
}

/// Level files that this start made, with the length that one had before which was there.
#[derive(Default)]
struct Made(Vec<(PathBuf, Option<u64>)>);

impl Made {
    /// Files go again, and one that was there has its length again: their disk is as full as it
    /// was.
    fn give_back(self) {
        for (path, before) in self.0 {
            let given = match before {
                None => std::fs::remove_file(&path),
                Some(length) => {
                    let file = disk_file::open(&path, File::options().write(true));
                    file.and_then(|file| file.set_len(length))
                }
            };
            if let Err(cause) = given {
                tracing::warn!(path = %path.display(), %cause, "cannot give back a level's room");
            }
        }
    }
}

fn prepare_all(
    dir: &Path,
    view: &View,
    is_new: bool,
    format: Format,
    made: &mut Made,
) -> Result<(), Report> {
    if is_new && format == Format::Empty {
        // Before any is made: a file of the node's own goes for that.
        refuse_what_counts(view)?;
    }
    for level in &view.layout.levels {
        let Some(path) = &level.path else { continue };
        if is_new && path.starts_with(dir.join(LEVELS_DIR_NAME)) && path.is_file() {
            // Empty, or given up: it is made anew at its length.
            std::fs::remove_file(path).map_err(|cause| refused(level, path, &cause))?;
        }
        match existing_length(path) {
            Ok(None) if is_new => make(level, path, None, made)?,
            Ok(None) => return Err(missing(level, path)),
            Ok(Some(length)) if length >= level.size => own_room(level, path)?,
            Ok(Some(length)) if is_new && path.is_file() => {
                make(level, path, Some(length), made)?;
            }
            Ok(Some(length)) => return Err(short(level, path, length, is_new)),
            Err(cause) => return Err(refused(level, path, &cause)),
        }
    }
    Ok(())
}

/// Refuses memory levels that there is no memory for, before anything is made.
///
/// # Errors
/// A report of kind [`ReportKind::Full`] where they are more than a limit allows, and of kind
/// [`ReportKind::Failure`] where the system does not give them now: it may later.
pub fn check_memory(view: &View, is_new: bool) -> Result<(), Report> {
    let (bound, free) = (crate::memory::bound(is_new), crate::memory::address_room());
    check_memory_within(view, is_new, (bound, free), is_given)
}

/// Whether the system gives so much memory at once.
fn is_given(bytes: u64) -> bool {
    let mut trial: Vec<u8> = Vec::new();
    let given = usize::try_from(bytes).is_ok_and(|bytes| trial.try_reserve_exact(bytes).is_ok());
    // It must really be asked for, although nobody uses it.
    drop(std::hint::black_box(trial));
    given
}

/// The same where the system lets the process have so much memory, and so much more of its address
/// space, if it says; `is_given` tries it.
fn check_memory_within(
    view: &View,
    is_new: bool,
    (bound, free): (Option<u64>, Option<u64>),
    is_given: impl Fn(u64) -> bool,
) -> Result<(), Report> {
    let levels = view.layout.levels.iter().filter(|level| level.kind == Kind::Memory);
    let names: Vec<String> = levels.clone().map(|level| format!("`{}`", level.name)).collect();
    let bytes = levels.map(|level| level.size).fold(0, u64::saturating_add);
    let refused = |kind, cause: String, hint: &str| {
        Report::new(kind, format!("cannot have memory level {}", names.join(", ")))
            .cause(cause)
            .state("nothing was started or changed")
            .hint(hint)
    };
    if let Some(bound) = bound.filter(|bound| bytes > *bound) {
        // Memory is promised all the same; the kernel would kill the node when it is touched.
        let (bytes, bound) = (Size(bytes), Size(bound));
        let cause = format!("{bytes} is more than the {bound} that this process may have");
        return Err(refused(
            ReportKind::Full,
            cause,
            match is_new {
                true => {
                    "write a smaller `size` of that `[[level]]`, or raise the limit of the control \
                 group (`MemoryMax=`)"
                }
                false => {
                    "give the machine, or the control group (`MemoryMax=`), as much memory as \
                     before; a node keeps its levels for life"
                }
            },
        ));
    }
    if is_given(bytes) {
        return Ok(());
    }
    let cause = format!("the system does not give {} of memory", Size(bytes));
    if free.is_some_and(|free| bytes > free) {
        let hint = match is_new {
            true => {
                "write a smaller `size` of that `[[level]]`, or raise the limit of the process \
                 (`ulimit -v`)"
            }
            false => {
                "give the machine, or the process (`ulimit -v`), as much memory as before; a node \
                 keeps its levels for life"
            }
        };
        return Err(refused(ReportKind::Full, cause, hint));
    }
    // No limit says so: other programs may have it, and give it back.
    let cause = format!("{cause} now, although no limit forbids it");
    Err(refused(ReportKind::Failure, cause, crate::memory::GIVEN_LATER))
}

fn in_use(dir: &Path) -> Report {
    Report::new(ReportKind::InUse, "cannot format the levels")
        .cause(format!(
            "the node in `{}` has run, and its levels may hold dirty blocks",
            dir.display()
        ))
        .state("nothing was changed")
        .hint("leave --format out; it is for a node's first start")
}

/// A new node formats its levels, so whatever lies in their place must be nobody's: zeros, or what
/// this very node left when its first start failed.
fn refuse_what_counts(view: &View) -> Result<(), Report> {
    let node = view.catalog.node;
    for (index, level) in view.layout.levels.iter().enumerate() {
        let Some(path) = &level.path else { continue };
        let part = view.layout.part_bytes(index);
        let bases = (0..view.layout.shards).map(|shard| part * u64::from(shard));
        let (bases, cipher) = (bases.collect::<Vec<u64>>(), view.layout.cipher(index));
        let place = Place { path, cipher, bases: &bases };
        refuse_foreign(level, place, node)?;
        // Levels of a node that has run are given up by an operator's word alone, and then only
        // where no write intent says that a backing store lacks something.
        if !view.catalog.is_formatting {
            refuse_written(level, place, node)?;
        }
    }
    Ok(())
}

/// Refuses a level of the node's own that was written since it was made: whatever the catalog says,
/// the node has come up with it.
fn refuse_written(level: &LevelConfig, place: Place<'_>, node: NodeId) -> Result<(), Report> {
    let path = place.path;
    let held = written::held(place, node).map_err(|cause| refused(level, path, &cause))?;
    let Some(held) = held else { return Ok(()) };
    Err(Report::new(ReportKind::Corrupt, format!("cannot make level `{}`", level.name))
        .cause(format!(
            "`{}` is this node's own level, and {held}; by `{CATALOG_FILE_NAME}` the node has \
             never come up: that is older than the level",
            path.display()
        ))
        .state("nothing was formatted; the levels are as they were")
        .hint(format!(
            "put the newest `{CATALOG_FILE_NAME}` back, with which all that the level holds is \
             there (`{CATALOG_FILE_NAME}.new` is never the newest); or give up what all levels \
             hold by --format"
        )))
}

fn refuse_foreign(level: &LevelConfig, place: Place<'_>, node: NodeId) -> Result<(), Report> {
    let Place { path, bases, .. } = place;
    let unread = |cause: std::io::Error| refused(level, path, &cause);
    let mut file = match disk_file::open_to_read(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == Io::NotFound => return Ok(()),
        Err(cause) => return Err(unread(cause)),
    };
    let is_file = file.metadata().map_err(unread)?.is_file();
    let length = file.seek(SeekFrom::End(0)).map_err(unread)?;
    let mut is_level = false;
    for base in bases {
        let mut head = [0; HEAD_BYTES];
        if file.read_exact_at(&mut head, *base).is_err() {
            continue;
        }
        written::clear((&mut head, *base), place.cipher);
        if written::is_of(&head, node) {
            return Ok(());
        }
        is_level |= head.starts_with(LEVEL_MAGIC);
    }
    let found = contents::first_data(&file, length, is_file, bases).map_err(unread)?;
    let Some(at) = found else { return Ok(()) };
    let whose = if is_level { "a level of another node" } else { "data" };
    Err(Report::new(ReportKind::InUse, format!("cannot make level `{}`", level.name))
        .cause(format!("`{}` holds {whose}, first seen at byte {at}", path.display()))
        .state("nothing was written; that data is as it was")
        .hint(
            "choose another file or device, put back the catalog.json of the node that wrote it, \
             or give up what it holds by --format",
        ))
}

fn existing_length(path: &Path) -> std::io::Result<Option<u64>> {
    match disk_file::open(path, File::options().read(true).write(true)) {
        Ok(mut file) => file.seek(SeekFrom::End(0)).map(Some),
        Err(cause) if cause.kind() == Io::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

/// Gives a level's file its length; `before` it had none, or that one.
fn make(
    level: &LevelConfig,
    path: &Path,
    before: Option<u64>,
    made: &mut Made,
) -> Result<(), Report> {
    let reserved = reserve(path, level.size).and_then(|room| match (room, level.preallocation) {
        // What was there goes once all of the start's levels have their room, not before.
        (Room::Reserved, Preallocation::Full) => {
            fill(path, before.unwrap_or(0)..level.size, FILL_TIME)
        }
        (Room::Reserved, Preallocation::Falloc) | (Room::Sparse, _) => Ok(()),
    });
    // What could be reserved before that failed is given back, too.
    if reserved.is_ok() || path.exists() {
        made.0.push((path.to_owned(), before));
    }
    reserved.map_err(|cause| refused(level, path, &cause))
}

/// What a level's file has below its length.
enum Room {
    /// Its own.
    Reserved,
    /// None yet: the file system cannot reserve any.
    Sparse,
}

fn reserve(path: &Path, length: u64) -> std::io::Result<Room> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    if !path.exists() {
        disk_file::check_new(path)?;
    }
    std::fs::create_dir_all(parent)?;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let file = disk_file::open(path, &mut options)?;
    if file.metadata()?.len() == 0 {
        layby_engine::io::overwrite_in_place(&file);
    }
    let room = match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length) {
        Ok(()) => Room::Reserved,
        // File systems that cannot reserve room get a sparse file.
        Err(rustix::io::Errno::OPNOTSUPP) => {
            file.set_len(length)?;
            Room::Sparse
        }
        Err(errno) => return Err(errno.into()),
    };
    file.sync_all()?;
    File::open(parent)?.sync_all()?;
    Ok(room)
}

/// Writes zeros over a range of a file, which are zeros: room that was only reserved is marked as
/// written once, here, and not by the file system's journal within the first sync of each place.
/// After `time` the rest is left to those.
#[expect(clippy::disallowed_methods, reason = "a start is to last no longer, in real time")]
fn fill(path: &Path, range: Range<u64>, time: Duration) -> std::io::Result<()> {
    let (file, began) = (disk_file::open(path, File::options().write(true))?, Instant::now());
    let zeros = vec![0; FILL_PIECE_BYTES];
    let mut at = range.start;
    while at < range.end && began.elapsed() < time {
        let count = (range.end - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..count as usize], at)?;
        file.sync_data()?;
        let piece = NonZeroU64::new(count);
        // Nothing of it is read soon; where the system keeps it all the same, no harm is done.
        let _ = rustix::fs::fadvise(&file, at, piece, rustix::fs::Advice::DontNeed);
        at += count;
    }
    Ok(())
}

/// Gives an NVM level's file room of its own. An SSD level can answer that it has none.
fn own_room(level: &LevelConfig, path: &Path) -> Result<(), Report> {
    if level.kind != Kind::Nvm || !path.is_file() {
        return Ok(());
    }
    let file = disk_file::open(path, File::options().read(true).write(true));
    let file = file.map_err(|cause| refused(level, path, &cause))?;
    layby_engine::io::own_room(&file, level.size).map_err(|cause| {
        let error = format!("cannot give `{}` of level `{}` its room", path.display(), level.name);
        Report::new(ReportKind::Full, error)
            .cause(cause.to_string())
            .state("nothing was changed; the level is as it was, and volumes are untouched")
            .hint("make room on that disk, or remove the copy or snapshot of the file")
    })
}

fn refused(level: &LevelConfig, path: &Path, cause: &std::io::Error) -> Report {
    let error = format!(
        "cannot use `{}` for level `{}` of {}",
        path.display(),
        level.name,
        Size(level.size)
    );
    let hint = match ReportKind::from(cause) {
        _ if cause.kind() == std::io::ErrorKind::FileTooLarge => {
            "raise the limit on the length of files (`ulimit -f`, `LimitFSIZE=`), or configure a \
             smaller level"
        }
        ReportKind::Full => "make room on that disk, or configure a smaller level",
        ReportKind::Denied => "let the node's user read and write the file and its directory",
        ReportKind::NotFound => disk_file::HINT_NO_DEVICE,
        _ => "configure another path for the level",
    };
    Report::from_io(error, cause).state("nothing was started; volumes are untouched").hint(hint)
}

fn missing(level: &LevelConfig, path: &Path) -> Report {
    let error = format!("cannot open level `{}`", level.name);
    Report::new(ReportKind::Corrupt, error)
        .cause(format!("`{}` does not exist", path.display()))
        .state("nothing was changed; blocks not yet written back were only in that file")
        .hint("mount the disk it is on, or put the file back")
}

fn short(level: &LevelConfig, path: &Path, length: u64, is_new: bool) -> Report {
    let kind = if is_new { ReportKind::Invalid } else { ReportKind::Corrupt };
    Report::new(kind, format!("cannot open level `{}`", level.name))
        .cause(format!("`{}` has {}, not {}", path.display(), Size(length), Size(level.size)))
        .state("nothing was changed")
        .hint(if is_new {
            "configure a size that the device has"
        } else {
            "put the whole file back; blocks not yet written back may be in its missing part"
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembly::prepare as assemble;
    use crate::config::{Config, Overrides};
    use layby_engine::io::SectorCipher;
    use tempfile::TempDir;

    fn view(dir: &Path, more: &str) -> (View, PathBuf) {
        let text = format!(
            "[node]\nshards = 2\n\
             [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"16MiB\"\n{more}"
        );
        let overrides = Overrides { dir: Some(dir.into()), ..Overrides::default() };
        let config = Config::parse(None, &text, &overrides).expect("a good configuration");
        let path = config.levels[0].path.clone().expect("an SSD level has a file");
        let homes = crate::homes::Homes::new(dir, None);
        (assemble(&config, None, &homes).expect("a good node").view, path)
    }

    /// Goal: files are made once and then kept. Method: a new node, its second start, a lost and a
    /// cut file.
    #[test]
    fn level_files_are_made_once() {
        let dir = TempDir::new().expect("a temporary directory");
        let (view, path) = view(dir.path(), "");
        prepare(dir.path(), &view, true, Format::Empty).expect("there is room");
        assert_eq!(existing_length(&path).expect("readable"), Some(16 << 20));
        std::fs::write(&path, b"dirty blocks").expect("writable");
        let report = prepare(dir.path(), &view, false, Format::Empty).expect_err("it was cut");
        assert_eq!(report.kind, ReportKind::Corrupt);
        assert!(report.cause.contains("12B, not 16MiB"), "{report}");
        std::fs::remove_file(&path).expect("removable");
        let report = prepare(dir.path(), &view, false, Format::Empty).expect_err("it is gone");
        assert!(report.hint.contains("put the file back") && !path.exists(), "{report}");
    }

    /// Goal: what a failed first start left of an encrypted level is the node's own by its key, and
    /// data without. Method: an encrypted head of the node's, met with its key, another and none.
    #[test]
    fn an_encrypted_leftover_is_known_by_its_key() {
        let dir = TempDir::new().expect("a temporary directory");
        let (mut view, path) = view(dir.path(), "");
        let cipher = |first: u8| {
            let key = std::array::from_fn(|at| at as u8 + first);
            Some(std::sync::Arc::new(SectorCipher::new(&key)))
        };
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(b"LAYBYLOG");
        head[LEVEL_NODE_AT..LEVEL_NODE_AT + 16].copy_from_slice(&view.catalog.node.0);
        let mut sealed = head;
        cipher(0).expect("one").encrypt(0, &head, &mut sealed);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        for (cipher, is_own) in [(None, false), (cipher(1), false), (cipher(0), true)] {
            std::fs::write(&path, sealed).expect("writable");
            view.layout.ciphers[0] = cipher;
            let prepared = prepare(dir.path(), &view, true, Format::Empty);
            assert_eq!(prepared.is_ok(), is_own, "{prepared:?}");
            assert!(is_own || std::fs::read(&path).expect("readable") == sealed);
        }
    }

    /// Goal: a new level's file has no place that a file system's journal must first mark as
    /// written. Method: a seek for a hole, which a place that is only reserved counts as; without
    /// time, and with `preallocation = "falloc"`, the file is only reserved.
    #[test]
    fn a_new_level_is_written_once() {
        let beside = std::env::current_exe().expect("a running test has a path");
        let dir = TempDir::new_in(beside.parent().expect("a folder")).expect("writable");
        let (view, path) = view(dir.path(), "");
        prepare(dir.path(), &view, true, Format::Empty).expect("there is room");
        let hole = |path: &Path| {
            let file = File::open(path).expect("readable");
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).expect("a file ends in a hole")
        };
        assert_eq!(hole(&path), 16 << 20, "all of it is written");
        let other = dir.path().join("reserved");
        assert!(matches!(reserve(&other, 16 << 20), Ok(Room::Reserved)), "ext4 and xfs can");
        fill(&other, 0..16 << 20, Duration::ZERO).expect("nothing to do");
        assert_eq!(hole(&other), 0, "so the test can fail");
        std::fs::remove_file(&path).expect("removable");
        let mut reserved = view;
        for level in &mut reserved.layout.levels {
            level.preallocation = Preallocation::Falloc;
        }
        prepare(dir.path(), &reserved, true, Format::Empty).expect("there is room");
        assert_eq!((hole(&path), existing_length(&path).expect("readable")), (0, Some(16 << 20)));
    }

    /// Goal: memory levels larger than what the process may have are refused, with a hint that
    /// fits. Method: bounds around their size, at a first and a later start; no bound.
    #[test]
    fn memory_levels_fit_their_bound() {
        let dir = TempDir::new().expect("a temporary directory");
        let (mut view, _) = view(dir.path(), "");
        let mut memory = view.layout.levels[0].clone();
        (memory.kind, memory.path, memory.size) = (Kind::Memory, None, 64 << 20);
        view.layout.levels.insert(0, memory);
        for (is_new, hint) in [(true, "smaller `size`"), (false, "for life")] {
            for bound in [None, Some(64 << 20)] {
                check_memory_within(&view, is_new, (bound, bound), is_given).expect("it fits");
            }
            let bounds = (Some((64 << 20) - 1), None);
            let short = check_memory_within(&view, is_new, bounds, |_| true);
            let report = short.expect_err("a byte short");
            assert_eq!(report.kind, ReportKind::Full);
            assert!(report.cause.contains("64MiB is more than"), "{report}");
            assert!(report.hint.contains(hint), "{report}");
        }
    }

    /// Goal: memory that the system does not give now, within all limits, is no lack of room for
    /// good: the unit starts the node again. Method: a trial that fails, at a first and a later
    /// start, without limits, at them, and a byte beyond that of the process.
    #[test]
    fn memory_that_is_not_given_now_may_be_later() {
        let dir = TempDir::new().expect("a temporary directory");
        let (mut view, _) = view(dir.path(), "");
        let mut memory = view.layout.levels[0].clone();
        (memory.kind, memory.path, memory.size) = (Kind::Memory, None, 64 << 20);
        view.layout.levels.insert(0, memory);
        let refused = |is_new, bounds| {
            let asked = check_memory_within(&view, is_new, bounds, |_| false);
            asked.expect_err("it is not given")
        };
        for is_new in [true, false] {
            for bounds in [(None, None), (Some(64 << 20), Some(64 << 20))] {
                let report = refused(is_new, bounds);
                assert_eq!((report.kind, report.kind.exit_code()), (ReportKind::Failure, 1));
                assert!(report.cause.contains("does not give 64MiB"), "{report}");
                assert!(report.hint.contains("start it again"), "{report}");
            }
            let report = refused(is_new, (None, Some((64 << 20) - 1)));
            assert_eq!(report.kind, ReportKind::Full, "{report}");
            assert!(report.hint.contains("ulimit -v"), "{report}");
        }
    }

    /// Goal: an NVM level has its room from each start on. Method: a chosen file without room, then
    /// a hole in it, as a copy may have; an SSD level keeps what it gave back.
    #[test]
    fn an_nvm_level_has_its_room() {
        use std::os::unix::fs::MetadataExt as _;
        let beside = std::env::current_exe().expect("a running test has a path");
        let dir = TempDir::new_in(beside.parent().expect("a folder")).expect("writable");
        for (kind, is_given) in [(Kind::Nvm, true), (Kind::Ssd, false)] {
            let (mut view, path) = view(dir.path(), "path = \"chosen\"\n");
            view.layout.levels[0].kind = kind;
            let file = File::create(&path).expect("writable");
            file.set_len(16 << 20).expect("writable");
            let room = || file.metadata().expect("it is open").blocks() * 512;
            for is_new in [true, false] {
                prepare(dir.path(), &view, is_new, Format::Empty).expect("there is room");
                assert_eq!(room() >= 16 << 20, is_given, "{}", room());
                let punch =
                    rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, punch, 4 << 20, 4 << 20).expect("ext4 can");
            }
        }
    }

    /// Goal: without enough room nothing is left behind, of no level, and what was there before is
    /// as it was. Method: a level that fits and one that is larger than any disk, in the node's own
    /// folder, and in a short file that an operator made.
    #[test]
    fn no_room_leaves_nothing() {
        for is_chosen in [false, true] {
            let dir = TempDir::new().expect("a temporary directory");
            let (mut view, path) = view(dir.path(), "");
            let mut first = view.layout.levels[0].clone();
            let first_path = dir.path().join(if is_chosen { "chosen" } else { "levels/nvm" });
            (first.kind, first.path) = (Kind::Nvm, Some(first_path.clone()));
            if is_chosen {
                std::fs::write(&first_path, [0; 512]).expect("writable");
            }
            view.layout.levels.insert(0, first);
            view.layout.levels[1].size = 1 << 62;
            let report =
                prepare(dir.path(), &view, true, Format::Empty).expect_err("no disk has that much");
            assert!(report.error.contains("levels/ssd"), "{report}");
            assert!(!path.exists());
            let left = existing_length(&first_path).expect("readable");
            assert_eq!(left, is_chosen.then_some(512), "the first level is given back");
        }
    }

    /// Goal: a start that was told to format a file, and has no room for another level, leaves the
    /// file as it was. Method: a chosen file with text, shorter than its level by a part of a page
    /// and by more, and a second level that is larger than any disk.
    #[test]
    fn a_failed_format_keeps_what_was_there() {
        for length in [700, 1 << 20, (16 << 20) - 300] {
            let dir = TempDir::new().expect("a temporary directory");
            let (mut view, path) = view(dir.path(), "path = \"chosen\"\n");
            let mut second = view.layout.levels[0].clone();
            (second.path, second.size) = (Some(dir.path().join("second")), 1 << 62);
            view.layout.levels.push(second);
            let text = b"an operator's file ".repeat(1 + length / 19);
            std::fs::write(&path, &text[..length]).expect("writable");
            prepare(dir.path(), &view, true, Format::All).expect_err("no disk has that much");
            assert!(std::fs::read(&path).expect("it is there") == text[..length], "{length}");
        }
    }

    /// Goal: a new node formats nothing that is somebody's, unless it is told to. Method: a chosen
    /// file and the node's own with zeros, with text in the middle, with a few bytes in all, with
    /// another node's level in the second part, with its own.
    #[test]
    fn foreign_data_is_not_formatted() {
        let dir = TempDir::new().expect("a temporary directory");
        for place in ["path = \"chosen\"\n", ""] {
            let (view, path) = view(dir.path(), place);
            std::fs::create_dir_all(dir.path().join("levels")).expect("writable");
            let write = |at: u64, bytes: &[u8], length: u64| {
                let file = File::create(&path).expect("writable");
                file.set_len(length).expect("writable");
                file.write_all_at(bytes, at).expect("writable");
            };
            let start = |format| prepare(dir.path(), &view, true, format);
            let mut level = [0; 64];
            level[..8].copy_from_slice(b"LAYBYLOG");
            for (at, bytes, length) in [
                (0, &b"a file system"[..], 16 << 20),
                (5 << 20, b"text", 16 << 20),
                (0, b"note", 4),
                (8 << 20, &level, 16 << 20),
            ] {
                write(at, bytes, length);
                let report = start(Format::Empty).expect_err("somebody's");
                assert_eq!(report.kind, ReportKind::InUse);
                assert!(report.cause.contains(&format!("at byte {at}")), "{report}");
                assert!(report.hint.contains("--format"), "{report}");
                let found = std::fs::read(&path).expect("it is there");
                assert!(found[at as usize..].starts_with(bytes), "it was changed");
                start(Format::All).expect("it was given up");
            }
            level[LEVEL_NODE_AT..LEVEL_NODE_AT + 16].copy_from_slice(&view.catalog.node.0);
            write(8 << 20, &level, 16 << 20);
            start(Format::Empty).expect("left by its own first start");
            write(0, &[0], 16 << 20);
            start(Format::Empty).expect("nobody's");
            let report = prepare(dir.path(), &view, false, Format::All).expect_err("it has run");
            assert!(report.hint.contains("first start"), "{report}");
        }
    }
}
