//! Older copies of a volume's journal and map: found before they are opened.
//!
//! How: each opening raises a count in the map file, which is durable before the volume is used;
//! the node writes it down beside its levels' (see [`crate::reached`]), and holds the map file
//! against it before the next one. An older journal beside the newest map is known by the map.
//! Invariant: what is older than the last opening is not served, and not removed as if all of it
//! were in the store. Files that are made anew are held against nothing.
//! Cost: the first page of a map file and a small file per opening; nothing for a client's call.
//! Not for: copies that no opening came after.

use super::CloudHomes;
use crate::catalog::VolumeRecord;
use crate::error::{Report, ReportKind};
use crate::reached::{opening_reached, set_opening};
use layby_cloud::{Opening, open_regular, opening_of};
use std::io::Read as _;
use std::path::Path;

/// The count is in the first frame of a map file.
const START_BYTES: u64 = 4096;

/// What to do where a journal and a map are an older copy.
const NEWEST: &str = "put the newest journal and map back, both of them: the node tries again by \
                      itself; where there are none, move these away, and `layby volume \
                      accept-loss NAME` serves the volume with what the store has. Where no file \
                      was put back, remove `reached.json` and start the node again";

fn opening_in(map: &Path) -> Option<Opening> {
    let mut start = Vec::new();
    open_regular(map).ok()?.take(START_BYTES).read_to_end(&mut start).ok()?;
    opening_of(&start)
}

/// Why a map file is not the newest one of a record's volume, as far as the node in `dir` knows.
pub(crate) fn older_copy(dir: &Path, record: &VolumeRecord, map: &Path) -> Option<String> {
    let known = opening_reached(dir, record.local_number())?;
    let found = opening_in(map)?;
    let map = map.display();
    match found.instance == known.instance {
        true if found.count >= known.count => None,
        true => Some(format!(
            "`{map}` is an older copy: it is of opening {} of the volume, and the node knows \
             opening {}; what was flushed since is neither in it nor in its journal",
            found.count, known.count
        )),
        false => Some(format!(
            "`{map}` is an older copy, or another node's: it was made another time than the one \
             that the node knows, instance {:016x}, known {:016x}",
            found.instance, known.instance
        )),
    }
}

impl CloudHomes {
    /// Refuses a journal and a map that are an older copy. Where there is no map, nothing is known
    /// any more: files that are made anew have another instance.
    pub(super) fn check_opening(&self, error: &str, record: &VolumeRecord) -> Result<(), Report> {
        let map = self.paths(record).map;
        if matches!(map.try_exists(), Ok(false)) {
            return self.forget_opening(record).map_err(|cause| {
                Report::new(ReportKind::Failure, error)
                    .cause(format!("cannot write `reached.json`: {cause}"))
                    .state("nothing was changed, neither here nor in the store")
                    .hint("look at the node's directory and its disk")
            });
        }
        older_copy(&self.dir, record, &map).map_or(Ok(()), |cause| {
            Err(Report::new(ReportKind::Corrupt, error)
                .cause(cause)
                .state("nothing was changed, neither here nor in the store")
                .hint(NEWEST))
        })
    }

    /// A record's journal and map were opened: from now on older copies are known by that. Where it
    /// cannot be written down, less is refused.
    pub(super) fn keep_opening(&self, record: &VolumeRecord) {
        let opening = opening_in(&self.paths(record).map);
        let kept = opening.map_or_else(
            || Err("the map file cannot be read".to_owned()),
            |opening| set_opening(&self.dir, record.local_number(), Some(opening)),
        );
        if let Err(cause) = kept {
            let volume = record.path.display();
            tracing::warn!(%volume, cause, "an older journal and map would not be noticed");
        }
    }

    /// A record's journal and map go, or are to be made anew.
    pub(super) fn forget_opening(&self, record: &VolumeRecord) -> Result<(), String> {
        set_opening(&self.dir, record.local_number(), None)
    }
}
