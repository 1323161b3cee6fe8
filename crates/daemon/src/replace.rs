//! Replacing a file of a node's directory as a whole.
//!
//! How: the new file is written beside the old one and synced, renamed over it, and the directory
//! is synced. Invariant: at any instant the file is the old one or the new one, whole.
//! Cost: two syncs. Not for: files that are larger than memory should hold.

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::Write as _;
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
    let mut file =
        File::options().write(true).create(true).truncate(false).open(dir.join(staged))?;
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

/// Writes the new file beside the old one and makes it durable.
pub(crate) fn stage(dir: &Path, staged: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(dir.join(staged))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Puts the staged file in the old one's place and makes that durable.
pub(crate) fn publish(dir: &Path, (staged, name): (&str, &str)) -> std::io::Result<()> {
    std::fs::rename(dir.join(staged), dir.join(name))?;
    File::open(dir)?.sync_all()
}
