//! What this node's own level holds, where the catalog says that the node has never come up.
//!
//! How: each superblock of the node's in the level's file names its region and how many there are,
//! so that a level of another shape is found, too; the engine's checker reads each of them. A first
//! start that was cut short leaves levels without a block or a record: clients write only once the
//! catalog says that the node came up.
//! Invariant: what holds a block, a record, or what cannot be told is never taken for such a level.
//! Nothing is written.
//! Cost: as `layby check` of the level; runs for a first start that goes on alone.
//! Not for: what is another node's, or none at all; see `levels`.

use super::{LEVEL_MAGIC, LEVEL_NODE_AT};
use crate::catalog::NodeId;
use crate::disk_file;
use layby_engine::check::{CheckTarget, StoreKind, StoreReport, check};
use layby_engine::io::SectorCipher;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

const SUPERBLOCK_BYTES: usize = 4096;
const NVM_MAGIC: &[u8] = b"LAYBYNVM";
/// Where a superblock says of how many shards its node is, and of its region the first byte and how
/// many there are; and where its checksum lies (docs/formats.md).
const SHARDS_AT: usize = 34;
const REGION_AT: usize = 48;
const LENGTH_AT: usize = 56;
const CHECKSUM_AT: usize = 3580;

/// A level in its place.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    /// What it is encrypted by, where it is.
    pub(crate) cipher: Option<&'a Arc<SectorCipher>>,
    /// Where parts are expected to begin.
    pub(crate) bases: &'a [u64],
}

/// The head of a level's part as it is in clear; and the cipher, where that was needed for it. One
/// that is not encrypted yet may have been left by an attempt that was to be clear.
pub(super) fn clear<'a>(
    (head, base): (&mut [u8], u64),
    cipher: Option<&'a Arc<SectorCipher>>,
) -> Option<&'a Arc<SectorCipher>> {
    let cipher = cipher.filter(|_| !head.starts_with(LEVEL_MAGIC))?;
    cipher.decrypt(base, head);
    Some(cipher)
}

/// Whether the head of a part, in clear, is of a level of `node`.
pub(super) fn is_of(head: &[u8], node: NodeId) -> bool {
    head.starts_with(LEVEL_MAGIC) && head[LEVEL_NODE_AT..LEVEL_NODE_AT + 16] == node.0
}

/// What of `node`'s the level holds, as a sentence without its beginning; none where it is not
/// there, is not the node's, or was formatted and no more.
///
/// # Errors
/// The system's, where it cannot be read.
pub(crate) fn held(place: Place<'_>, node: NodeId) -> Result<Option<String>> {
    let file = match disk_file::open_to_read(place.path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(cause),
    };
    let targets: Vec<CheckTarget> = parts(&file, place, node)
        .into_iter()
        .map(|(base, Part { kind, length, cipher })| {
            let (path, cipher) = (place.path.to_owned(), cipher.cloned());
            CheckTarget { path, base, length, kind, cipher }
        })
        .collect();
    Ok(check(&targets, false).stores.iter().find_map(held_by))
}

/// A part of the node's.
struct Part<'a> {
    /// By its superblock: a first start may have been given another shape since.
    kind: StoreKind,
    length: u64,
    cipher: Option<&'a Arc<SectorCipher>>,
}

/// The node's parts, by their first byte: where they are expected, and where the superblocks of
/// these say that others are.
fn parts<'a>(file: &File, place: Place<'a>, node: NodeId) -> BTreeMap<u64, Part<'a>> {
    let mut found = BTreeMap::new();
    let mut expected: BTreeSet<u64> = place.bases.iter().copied().collect();
    let mut seen = BTreeSet::new();
    while let Some(base) = expected.pop_first() {
        let mut page = [0; SUPERBLOCK_BYTES];
        if !seen.insert(base) || file.read_exact_at(&mut page, base).is_err() {
            continue;
        }
        let cipher = clear((&mut page, base), place.cipher);
        // One whose checksum is missing was cut short itself, and it is written last.
        if !is_of(&page, node) || page[CHECKSUM_AT..].iter().all(|byte| *byte == 0) {
            continue;
        }
        let number = |at: usize| {
            let bytes = page[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let (region, length) = (number(REGION_AT), number(LENGTH_AT));
        let shards = u16::from_le_bytes([page[SHARDS_AT], page[SHARDS_AT + 1]]);
        if region == base {
            expected.extend((0..u64::from(shards)).filter_map(|shard| length.checked_mul(shard)));
        }
        let kind = if page.starts_with(NVM_MAGIC) { StoreKind::Nvm } else { StoreKind::Log };
        found.insert(base, Part { kind, length, cipher });
    }
    found
}

/// What a part holds.
fn held_by(report: &StoreReport) -> Option<String> {
    let counts = report.counts;
    let (live, dirty) = (counts.blocks_live, counts.blocks_dirty);
    if live > 0 || counts.records > 0 || !report.lost.is_empty() {
        let records = counts.records;
        return Some(format!(
            "it holds {live} block(s), {dirty} of them dirty, {records} record(s)"
        ));
    }
    let problem = report.problems.first()?;
    Some(format!("what it holds cannot be told: {problem}"))
}
