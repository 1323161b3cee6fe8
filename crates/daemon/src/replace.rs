//! Replacing a file of a node's directory as a whole.
//!
//! How: the new file is written beside the old one and synced, renamed over it, and the directory
//! is synced. Invariant: at any instant the file is the old one or the new one, whole.
//! Cost: two syncs. Not for: files that are larger than memory should hold.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

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
