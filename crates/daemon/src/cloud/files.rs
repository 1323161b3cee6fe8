//! What a node keeps of a volume in an object store: its journal and its map.
//!
//! How: the catalog says which of them have to be there. A volume that is to be taken may have
//! neither journal nor map yet, and of a deleted one the journal goes first, then the map.
//! Invariant: what a start would make or leave alone is no problem; what it would miss is one.
//! Cost: a check reads all of the map and the journal's headers. Not for: what the store has.

use crate::catalog::VolumeRecord;
use crate::check::LocalFinding;
use layby_cloud::{Inspected, Paths, inspect, is_unmade};
use layby_types::format_bytes;

/// What reading a volume's journal and map came to, or what is wrong with them; none where neither
/// has to be there.
pub(crate) fn local_finding(
    paths: &Paths,
    (record, is_deleted): (&VolumeRecord, bool),
    block_bytes: u32,
) -> Result<Option<LocalFinding>, String> {
    // An undeletion makes them anew, as a taking does.
    let is_to_be_made = (record.take || is_deleted) && is_unmade(paths);
    let is_leftover = is_deleted && paths.journal.try_exists().is_ok_and(|is_there| !is_there);
    if is_to_be_made || is_leftover {
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
