//! Volumes that come back to a node which had them, after another one served them for a while.
//!
//! How: what the node kept is of a history that ended when the other node took the volume. So where
//! the store says that another node serves it, and this one is told to take it, it begins as if it
//! had never had it: under a new number, since levels may hold blocks under the old one, with no
//! map and an empty journal.
//! Invariant: a node that knows a volume never takes it from another one in passing; it is found
//! out before anything is served, or the volume's writes fail. A journal with writes that no store
//! has is left as it is.
//! Cost: a request per volume that is named in `takeover`, at a start. Not for: volumes that the
//! node never had, see `CloudHomes::open`; nor what is taken while the node runs, see
//! `control::take`.

use super::files::misses;
use super::{CloudHomes, LOOK};
use crate::catalog::{VolumePhase, VolumeRecord};
use crate::config::{KeySource, Name};
use crate::control::View;
use crate::error::{Report, ReportKind};
use crate::homes::{FoundVolume, Homes};
use layby_cloud::{Store, is_settled, is_unmade, read_map};
use layby_types::{VolumeId, format_bytes};
use std::path::Path;

impl CloudHomes {
    /// Whether a volume may be taken from another node as it is opened: it was created to be taken,
    /// and whose it is was never found out here; or it is named, and made for the first time. The
    /// name alone does not excuse missing files: levels may hold older blocks under its number. Nor
    /// does the taking once the volume was opened: its files may be on a disk that is away.
    pub(super) fn takes(&self, name: &Name, record: &VolumeRecord) -> bool {
        let is_new = record.phase == VolumePhase::Creating;
        let is_named = is_new && self.config.takeover.contains(name);
        match read_map(&self.paths(record).map) {
            Ok(map) => record.take && !is_settled(&map),
            Err(cause) => {
                let is_absent = cause.kind() == std::io::ErrorKind::NotFound;
                is_absent && (is_named || record.take && !self.misses(record))
            }
        }
    }

    /// Whether the node had files of a volume whose map is not there, and did not remove them.
    pub(super) fn misses(&self, record: &VolumeRecord) -> bool {
        misses(&self.dir, record, &self.paths(record))
    }

    /// See [`crate::homes::RemoteHomes::found`].
    pub(super) fn found_at(
        &self,
        path: &Path,
        key: Option<&KeySource>,
    ) -> Result<Option<FoundVolume>, Report> {
        let url = path.to_string_lossy();
        let refused = |kind, cause: String| {
            Report::new(kind, format!("cannot look at `{url}`"))
                .cause(cause)
                .state("nothing was changed")
                .hint(LOOK)
        };
        let store = self.keys.read(key).and_then(|key| Ok(Store::open(&url)?.sealed(key)));
        let store = store.map_err(|cause| refused(ReportKind::Invalid, cause))?;
        let found = self.superblock(&store);
        let found = found.map_err(|fault| refused(ReportKind::Unreachable, fault.cause))?;
        let own = self.node().0.to_string();
        Ok(found.map(|block| {
            let is_own = block.node == own;
            FoundVolume { size_bytes: block.size_bytes, node: block.node, is_own }
        }))
    }

    /// See [`crate::homes::RemoteHomes::taken_back`].
    pub(super) fn length_elsewhere(&self, name: &Name, record: &VolumeRecord) -> Option<u64> {
        let has_map = !matches!(self.paths(record).map.try_exists(), Ok(false));
        let was_made = has_map || record.phase != VolumePhase::Creating;
        if !self.config.takeover.contains(name) || !was_made {
            return None;
        }
        let found = self
            .store_of(record)
            .and_then(|store| self.superblock(&store).map_err(|fault| fault.cause));
        let block = match found {
            Ok(found) => found.filter(|block| block.node != self.node().0.to_string())?,
            Err(cause) => {
                tracing::warn!(
                    cause,
                    "it is not known whether another node serves volume `{name}`, so it is not \
                     taken from one; start the node again when its store answers"
                );
                return None;
            }
        };
        let is_unmade = !has_map && is_unmade(&self.paths(record));
        // An earlier start has taken it back, and ended before its new files were made: the opening
        // makes them, unless the length of the volume is another one by now.
        if is_unmade && self.takes(name, record) && block.size_bytes == record.length {
            return None;
        }
        match self.missing_bytes_of(record) {
            Ok(0) => Some(block.size_bytes),
            // The journal's disk is lost, or away: what it held is older than what is taken.
            _ if is_unmade => Some(block.size_bytes),
            missing => {
                let missing = missing.map_or_else(|cause| cause, format_bytes);
                tracing::warn!(
                    node = block.node,
                    missing,
                    "volume `{name}` is not taken back: this node's journal holds writes of its \
                     time here that no store has, or may hold some; save them with `layby \
                     salvage`, delete it here, which gives them up, and create it anew"
                );
                None
            }
        }
    }
}

/// Gives the volumes that are taken back new numbers, and the lengths that they have by now. What
/// the node kept of those that are returned is to go once the view is written down; where a crash
/// comes before that, they are found again.
///
/// # Errors
/// A report when there are no numbers left.
pub(crate) fn take_back(
    view: &mut View,
    homes: &Homes,
    notes: &mut Vec<String>,
) -> Result<Vec<VolumeRecord>, Report> {
    let mut taken = Vec::new();
    for (name, record) in view.catalog.volumes.clone() {
        let Some(length) = homes.taken_back(&name, &record) else { continue };
        let id = view.catalog.volume_ids_take(record.shards()).ok_or_else(|| {
            Report::new(ReportKind::Full, format!("cannot take volume `{name}` back"))
                .cause(format!("this node has had {} volumes", VolumeId::MAX.0))
                .state("nothing was changed")
                .hint("remove it from `takeover` of [cloud], and take it with another node")
        })?;
        // Its old files may come back with their disk: they are never taken for the new ones.
        let is_here = homes.leftover(&record).is_some();
        let local = is_here.then(|| record.local_number());
        // Once its old files went, a start without the configuration's word takes it, too.
        // Its old block device had what another node has changed since: it is not taken over.
        let record = VolumeRecord { id: id.0, local, device: None, length, take: true, ..record };
        notes.push(format!(
            "volume `{name}` was served by another node and is taken back; what this node had of \
             it is dropped"
        ));
        taken.push(record.clone());
        view.catalog.volumes.insert(name, record);
    }
    Ok(taken)
}
