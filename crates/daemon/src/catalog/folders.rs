//! Where a node keeps journals and maps, for those who read them without its configuration.
//!
//! How: the catalog notes the folders of the last start where they are not the usual ones.
//! Invariant: a path in the node's directory is relative, so that the directory can be moved.
//! Cost: none. Not for: what lies in these folders; see `cloud`.

use super::VolumeRecord;
use crate::config::{CloudConfig, LOCAL_DIR};
use layby_cloud::Paths;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Folders of what a node keeps of volumes in object stores; relative ones are below its directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalDirs {
    /// Of journals.
    pub journal: PathBuf,
    /// Of maps.
    pub map: PathBuf,
}

impl LocalDirs {
    /// Those of a configuration; none where both are where they are by default.
    #[must_use]
    pub fn of(dir: &Path, config: &CloudConfig) -> Option<LocalDirs> {
        let below = |path: &Path| path.strip_prefix(dir).unwrap_or(path).to_path_buf();
        let dirs = LocalDirs { journal: below(&config.journal_dir), map: below(&config.map_dir) };
        (dirs != LocalDirs::default()).then_some(dirs)
    }

    /// The journal and the map of a volume.
    #[must_use]
    pub fn paths(&self, dir: &Path, record: &VolumeRecord) -> Paths {
        let number = record.local_number();
        Paths {
            journal: dir.join(&self.journal).join(format!("{number}.journal")),
            map: dir.join(&self.map).join(format!("{number}.map")),
        }
    }
}

impl Default for LocalDirs {
    fn default() -> Self {
        LocalDirs { journal: LOCAL_DIR.into(), map: LOCAL_DIR.into() }
    }
}
