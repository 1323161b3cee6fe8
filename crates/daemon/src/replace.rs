//! Replacing a file of a node's directory as a whole.
//!
//! How: the new file is written beside the old one and synced, both names are exchanged, and the
//! directory is synced. All of that is done in the directory that the node holds, wherever it was
//! moved to; see [`crate::held`].
//! Invariant: at any instant the file is the old one or the new one, whole. Cost: two syncs. Not
//! for: files that are larger than memory should hold.

use crate::held;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::Path;

/// Bytes of a file that is replaced within the room it has are a multiple of this.
pub(crate) const ROOM: u64 = 16 << 10;
/// What the process's mask leaves of this is a new file's mode.
const FILE_MODE: u32 = 0o666;

/// Replaces a file of a node's directory as a whole, durably: the new one is written beside it, by
/// the first of the names, and put in its place. It needs no room where the file was replaced so
/// before: the names of old and new are exchanged, and what was written before is overwritten. The
/// bytes are text that blanks may follow.
pub(crate) fn replace_within(
    dir: &Path,
    (staged, name): (&str, &str),
    bytes: &[u8],
) -> std::io::Result<()> {
    let there = open_staged(dir, staged)?.metadata()?.len();
    let room = (bytes.len() as u64).next_multiple_of(ROOM).max(there);
    let mut padded = bytes.to_vec();
    padded.resize(room as usize, b'\n');
    stage_within(dir, staged, &padded)?;
    exchange(dir, (staged, name))
}

/// Writes the new file over what is staged, durably; what is longer is cut behind it, so that the
/// file is these bytes, whatever was there.
pub(crate) fn stage_within(dir: &Path, staged: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = open_staged(dir, staged)?;
    let there = file.metadata()?.len();
    if there == 0 {
        layby_engine::io::overwrite_in_place(&file);
    }
    file.write_all(bytes)?;
    if there > bytes.len() as u64 {
        file.set_len(bytes.len() as u64)?;
    }
    file.sync_all()
}

/// Has what is staged take so many bytes at least, which no file needs that is staged later.
pub(crate) fn pad(dir: &Path, staged: &str, length: u64) -> std::io::Result<()> {
    let mut file = open_staged(dir, staged)?;
    let there = file.seek(std::io::SeekFrom::End(0))?;
    if there == 0 {
        layby_engine::io::overwrite_in_place(&file);
    }
    if there < length {
        file.write_all(&vec![b'\n'; (length - there) as usize])?;
        file.sync_all()?;
    }
    Ok(())
}

/// Exchanges the names of the staged file and the old one, durably: the old one's room is the next
/// one's. Where it fails, the new file may have the name all the same.
pub(crate) fn exchange(dir: &Path, (staged, name): (&str, &str)) -> std::io::Result<()> {
    let folder = held::folder(dir)?;
    let flags = RenameFlags::EXCHANGE;
    match rustix::fs::renameat_with(&folder, staged, &folder, name, flags) {
        // The first time there is nothing to exchange it for, and some file systems cannot.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::renameat(&folder, staged, &folder, name)?;
        }
        exchanged => exchanged?,
    }
    sync(&folder, dir, name)
}

/// Makes names of the directory durable. Where it fails they are exchanged all the same: which file
/// a power failure leaves is not known.
fn sync(folder: &File, dir: &Path, name: &str) -> std::io::Result<()> {
    #[cfg(test)]
    tests::refuse_sync(&dir.join(name))?;
    let _ = (dir, name);
    folder.sync_all()
}

/// Opens the file that is to be written beside the old one. What is no file of the node's own
/// there, such as a link that was in the old one's place, is not written through: its name goes.
pub(crate) fn open_staged(dir: &Path, staged: &str) -> std::io::Result<File> {
    let folder = held::folder(dir)?;
    if let Ok(found) = rustix::fs::statat(&folder, staged, AtFlags::SYMLINK_NOFOLLOW)
        && FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
    {
        rustix::fs::unlinkat(&folder, staged, AtFlags::empty())?;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&folder, staged, flags, Mode::from_raw_mode(FILE_MODE))?.into())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use tempfile::TempDir;

    /// Replacements of a file that are made durable, and those behind them that are not.
    struct Syncs {
        passed: u32,
        refused: u32,
    }

    /// Files whose next replacements are not all made durable.
    static REFUSED: Mutex<BTreeMap<PathBuf, Syncs>> = Mutex::new(BTreeMap::new());

    fn refused() -> MutexGuard<'static, BTreeMap<PathBuf, Syncs>> {
        REFUSED.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the sync behind the next replacement of a file fail.
    pub(crate) fn fail_next_sync(file: &Path) {
        fail_next_syncs(file, 1);
    }

    /// Has the syncs behind so many replacements of a file fail.
    pub(crate) fn fail_next_syncs(file: &Path, count: u32) {
        fail_syncs_behind(file, 0, count);
    }

    /// The same, once so many replacements of it have been made durable.
    pub(crate) fn fail_syncs_behind(file: &Path, passed: u32, refused: u32) {
        self::refused().insert(file.to_owned(), Syncs { passed, refused });
    }

    pub(super) fn refuse_sync(file: &Path) -> std::io::Result<()> {
        match refused().get_mut(file) {
            Some(syncs) if syncs.passed > 0 => syncs.passed -= 1,
            Some(syncs) if syncs.refused > 0 => {
                syncs.refused -= 1;
                return Err(std::io::Error::from_raw_os_error(Errno::IO.raw_os_error()));
            }
            _ => {}
        }
        Ok(())
    }

    const NAMES: (&str, &str) = ("a.new", "a");

    /// Goal: a link in the place of a file, or of the one that is staged, is replaced; what it
    /// names is not written. Method: both places, three times over, since names are exchanged.
    #[test]
    fn links_are_not_written_through() {
        for place in [NAMES.0, NAMES.1] {
            let dir = TempDir::new().expect("a temporary directory");
            let elsewhere = dir.path().join("elsewhere");
            std::fs::write(&elsewhere, "precious").expect("a writable directory");
            std::os::unix::fs::symlink(&elsewhere, dir.path().join(place)).expect("a link");
            for round in ["1", "2", "3"] {
                replace_within(dir.path(), NAMES, round.as_bytes()).expect("a writable directory");
                let found = std::fs::read(dir.path().join(NAMES.1)).expect("it is there");
                assert_eq!(found.trim_ascii_end(), round.as_bytes());
                assert_eq!(std::fs::read(&elsewhere).expect("it is there"), b"precious");
            }
        }
    }
}
