//! Replacing a file of a node's directory as a whole.
//!
//! How: the new file is written beside the old one and synced, renamed over it, and the directory
//! is synced. Invariant: at any instant the file is the old one or the new one, whole.
//! Cost: two syncs. Not for: files that are larger than memory should hold.

use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Bytes of a file that is replaced within the room it has are a multiple of this.
pub(crate) const ROOM: u64 = 16 << 10;

/// Replaces a file of a node's directory as a whole, durably: the new one is written beside it, by
/// the first of the names, and put in its place.
pub(crate) fn replace(
    dir: &Path,
    (staged, name): (&str, &str),
    bytes: &[u8],
) -> std::io::Result<()> {
    stage(dir, staged, bytes)?;
    publish(dir, (staged, name))
}

/// Replaces a file as [`replace`] does, and needs no room for it where the file was replaced so
/// before: the names of old and new are exchanged, and what was written before is overwritten. The
/// bytes are text that blanks may follow.
pub(crate) fn replace_within(
    dir: &Path,
    (staged, name): (&str, &str),
    bytes: &[u8],
) -> std::io::Result<()> {
    let mut file = open_staged(dir, staged)?;
    if file.metadata()?.len() == 0 {
        layby_engine::io::overwrite_in_place(&file);
    }
    let room = (bytes.len() as u64).next_multiple_of(ROOM).max(file.metadata()?.len());
    let mut padded = bytes.to_vec();
    padded.resize(room as usize, b'\n');
    file.write_all(&padded)?;
    file.sync_all()?;
    let folder = File::open(dir)?;
    let exchange = RenameFlags::EXCHANGE;
    match rustix::fs::renameat_with(&folder, staged, &folder, name, exchange) {
        // The first time there is nothing to exchange it for, and some file systems cannot.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => publish(dir, (staged, name)),
        exchanged => {
            exchanged?;
            folder.sync_all()
        }
    }
}

/// Opens the file that is to be written beside the old one. What is no file of the node's own
/// there, such as a link that was in the old one's place, is not written through: its name goes.
fn open_staged(dir: &Path, staged: &str) -> std::io::Result<File> {
    let path = dir.join(staged);
    if std::fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
        std::fs::remove_file(&path)?;
    }
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = File::options();
    options.write(true).create(true).truncate(false).custom_flags(flags).open(path)
}

/// Writes the new file beside the old one and makes it durable.
pub(crate) fn stage(dir: &Path, staged: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = open_staged(dir, staged)?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Puts the staged file in the old one's place and makes that durable.
pub(crate) fn publish(dir: &Path, (staged, name): (&str, &str)) -> std::io::Result<()> {
    std::fs::rename(dir.join(staged), dir.join(name))?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const NAMES: (&str, &str) = ("a.new", "a");
    type Replace = fn(&Path, (&str, &str), &[u8]) -> std::io::Result<()>;

    /// Goal: a link in the place of a file, or of the one that is staged, is replaced; what it
    /// names is not written. Method: both places, both ways, three times over, since names are
    /// exchanged.
    #[test]
    fn links_are_not_written_through() {
        for replace in [replace as Replace, replace_within] {
            for place in [NAMES.0, NAMES.1] {
                let dir = TempDir::new().expect("a temporary directory");
                let elsewhere = dir.path().join("elsewhere");
                std::fs::write(&elsewhere, "precious").expect("a writable directory");
                std::os::unix::fs::symlink(&elsewhere, dir.path().join(place)).expect("a link");
                for round in ["1", "2", "3"] {
                    replace(dir.path(), NAMES, round.as_bytes()).expect("a writable directory");
                    let found = std::fs::read(dir.path().join(NAMES.1)).expect("it is there");
                    assert_eq!(found.trim_ascii_end(), round.as_bytes());
                    assert_eq!(std::fs::read(&elsewhere).expect("it is there"), b"precious");
                }
            }
        }
    }
}
