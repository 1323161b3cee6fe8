//! Segments that a stopped node counts on and that its store does not have whole, in words.
//!
//! How: see [`layby_cloud::Unstored`]. What the journal has is stored again by the next start, and
//! no damage; what it has not either is.
//! Cost: these segments, once. Not for: segments that the superblock names; `check` reads those as
//! the volume.

use crate::catalog::VolumeRecord;
use crate::restore::{Source, read_store};
use layby_cloud::{Paths, RestoreError, Unstored};

/// Segments that are named at most.
const SHOWN_MAX: usize = 8;

/// What a store does not have whole of what a node counts on.
pub(crate) enum Uncounted {
    /// The journal has it.
    Kept(String),
    /// Nothing has it, or nothing is known of it.
    Lost(String),
}

/// Looks for segments of a volume that no superblock names, as the node's next start will; none
/// where they are whole, or there are none.
pub(crate) fn unstored(record: &VolumeRecord, paths: &Paths) -> Option<Uncounted> {
    let found = match Unstored::open(paths) {
        Ok(found) => found,
        Err(error) => return Some(Uncounted::Lost(error.to_string())),
    };
    let (url, key) = (&super::url_of(record), record.key.as_ref());
    let source = Source { url, key, snapshot: None, deleted: false };
    let missing = read_store(source, &mut |fetch| match found.missing(fetch) {
        Err(RestoreError::Absent) => Ok(Vec::new()),
        missing => missing,
    });
    let missing = match missing {
        Ok(missing) => missing,
        Err(cause) => return Some(Uncounted::Lost(cause)),
    };
    if missing.is_empty() {
        return None;
    }
    let keys = missing.iter().take(SHOWN_MAX).map(|name| format!("`{}`", name.key()));
    let keys: Vec<String> = keys.collect();
    let more = if missing.len() > SHOWN_MAX { ", …" } else { "" };
    let what = format!(
        "{} segment(s) that the node uploaded and no superblock names yet are damaged or missing \
         in the store: {}{more}",
        missing.len(),
        keys.join(", ")
    );
    Some(match found.is_in_journal() {
        true => Uncounted::Kept(format!(
            "{what}; the journal still has what they hold, and the next start stores it again"
        )),
        false => Uncounted::Lost(format!(
            "{what}; the journal is damaged where it has what they hold, so that the next start \
             may store only a part of it"
        )),
    })
}
