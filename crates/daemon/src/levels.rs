//! The files and devices of the levels, before any shard opens them.
//!
//! How: a new node's level files are made at their full length, with their room reserved, so that a
//! disk too small is known at start and not under load. An old node's must be there, whole.
//! Invariant: a level file that went missing or shrank is never silently replaced; dirty blocks may
//! have been in it. A file that this node did not make itself is never made anew.
//! Cost: runs once per start.

use crate::config::{LevelConfig, Size};
use crate::error::{Report, ReportKind};
use std::fs::File;
use std::io::{ErrorKind as Io, Seek, SeekFrom};
use std::path::Path;

/// Where level files lie that nobody chose a place for, within the node's directory.
pub const LEVELS_DIR_NAME: &str = "levels";

/// Makes or checks the file or device of every level.
///
/// # Errors
/// A report that names the level and its path.
pub fn prepare(dir: &Path, levels: &[LevelConfig], is_new: bool) -> Result<(), Report> {
    for level in levels {
        let Some(path) = &level.path else { continue };
        let is_own = path.starts_with(dir.join(LEVELS_DIR_NAME));
        if is_new && is_own && path.is_file() {
            // The first start failed before anything could be stored.
            std::fs::remove_file(path).map_err(|cause| refused(level, path, &cause))?;
        }
        match existing_length(path) {
            Ok(None) if is_new => make(level, path)?,
            Ok(None) => return Err(missing(level, path)),
            Ok(Some(length)) if length >= level.size => {}
            Ok(Some(_)) if is_new && path.is_file() => make(level, path)?,
            Ok(Some(length)) => return Err(short(level, path, length, is_new)),
            Err(cause) => return Err(refused(level, path, &cause)),
        }
    }
    Ok(())
}

fn existing_length(path: &Path) -> std::io::Result<Option<u64>> {
    match File::options().read(true).write(true).open(path) {
        Ok(mut file) => file.seek(SeekFrom::End(0)).map(Some),
        Err(cause) if cause.kind() == Io::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

fn make(level: &LevelConfig, path: &Path) -> Result<(), Report> {
    let existed = path.exists();
    let made = reserve(path, level.size);
    made.map_err(|cause| {
        if !existed {
            // Whatever could be reserved is given back; the report says why there was not enough.
            drop(std::fs::remove_file(path));
        }
        refused(level, path, &cause)
    })
}

fn reserve(path: &Path, length: u64) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    let options = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = options?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length) {
        Ok(()) => {}
        // File systems that cannot reserve room get a sparse file.
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(length)?,
        Err(errno) => return Err(errno.into()),
    }
    file.sync_all()?;
    File::open(parent)?.sync_all()
}

fn refused(level: &LevelConfig, path: &Path, cause: &std::io::Error) -> Report {
    let error = format!(
        "cannot use `{}` for level `{}` of {}",
        path.display(),
        level.name,
        Size(level.size)
    );
    let hint = match ReportKind::from(cause) {
        ReportKind::Full => "make room on that disk, or configure a smaller level",
        ReportKind::Denied => "let the node's user read and write the file and its directory",
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
    use crate::config::{Config, Overrides};
    use tempfile::TempDir;

    fn levels(dir: &Path) -> Vec<LevelConfig> {
        let text = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"8MiB\"\n";
        let overrides = Overrides { dir: Some(dir.into()), ..Overrides::default() };
        Config::parse(None, text, &overrides).expect("a good configuration").levels
    }

    /// Goal: files are made once and then kept. Method: a new node, its second start, a lost and a
    /// cut file.
    #[test]
    fn level_files_are_made_once() {
        let dir = TempDir::new().expect("a temporary directory");
        let levels = levels(dir.path());
        let path = levels[0].path.clone().expect("an SSD level has a file");
        prepare(dir.path(), &levels, true).expect("there is room");
        assert_eq!(existing_length(&path).expect("readable"), Some(8 << 20));
        std::fs::write(&path, b"dirty blocks").expect("writable");
        let report = prepare(dir.path(), &levels, false).expect_err("it was cut");
        assert_eq!(report.kind, ReportKind::Corrupt);
        assert!(report.cause.contains("12B, not 8MiB"), "{report}");
        std::fs::remove_file(&path).expect("removable");
        let report = prepare(dir.path(), &levels, false).expect_err("it is gone");
        assert!(report.hint.contains("put the file back") && !path.exists(), "{report}");
    }

    /// Goal: no room is an error that leaves nothing. Method: a level larger than any file may be.
    #[test]
    fn no_room_leaves_nothing() {
        let dir = TempDir::new().expect("a temporary directory");
        let mut levels = levels(dir.path());
        levels[0].size = 1 << 62;
        let report = prepare(dir.path(), &levels, true).expect_err("no disk has that much");
        assert!(report.error.contains("levels/ssd"), "{report}");
        assert!(!levels[0].path.clone().expect("a file").exists());
    }
}
