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
use crate::reached::{Unchanged, Unknown, opening_reached, set_opening};
use layby_cloud::{Opening, is_unmade, open_regular, opening_of};
use std::io::Read as _;
use std::path::Path;

/// The count is in the first frame of a map file.
const START_BYTES: u64 = 4096;

/// What to do where a journal and a map are an older copy.
const NEWEST: &str = "put the newest journal and map back, both of them: the node tries again by \
                      itself; where there are none, move these away, and `layby volume \
                      accept-loss NAME` serves the volume with what the store has. Where no file \
                      was put back, remove `reached.json` and `reached.copy.json`, and start the \
                      node again";

fn opening_in(map: &Path) -> Option<Opening> {
    let mut start = Vec::new();
    open_regular(map).ok()?.take(START_BYTES).read_to_end(&mut start).ok()?;
    opening_of(&start)
}

/// Why a map file is not the newest one of a record's volume, as far as the node in `dir` knows, or
/// why that is not known.
pub(crate) fn older_copy(dir: &Path, record: &VolumeRecord, map: &Path) -> Option<String> {
    find_older(dir, record, map).unwrap_or_else(|unknown| Some(unknown.to_string()))
}

/// The same; an error where that is not known.
///
/// # Errors
/// [`Unknown`].
pub(crate) fn find_older(
    dir: &Path,
    record: &VolumeRecord,
    map: &Path,
) -> Result<Option<String>, Unknown> {
    let known = opening_reached(dir, record.local_number())?;
    Ok(known.zip(opening_in(map)).and_then(|(known, found)| differs(known, found, map)))
}

/// Why a map file of this opening is not the known one.
fn differs(known: Opening, found: Opening, map: &Path) -> Option<String> {
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
    /// Refuses a journal and a map that are an older copy. A map that is missing may be on a disk
    /// that is away, so that what is known of it stays known.
    pub(super) fn check_opening(&self, error: &str, record: &VolumeRecord) -> Result<(), Report> {
        let (kind, cause, hint) = match find_older(&self.dir, record, &self.paths(record).map) {
            Ok(None) => return Ok(()),
            Ok(Some(cause)) => (ReportKind::Corrupt, cause, NEWEST.to_owned()),
            Err(unknown) => (unknown.kind(), unknown.to_string(), unknown.hint()),
        };
        Err(Report::new(kind, error)
            .cause(cause)
            .state("nothing was changed, neither here nor in the store")
            .hint(hint))
    }

    /// Makes a record's journal and map, where they are not there and are to be. Of what was there
    /// before nothing is known then: files that are made anew have another instance.
    pub(super) fn make_files(
        &self,
        error: &str,
        record: &VolumeRecord,
        make: impl FnOnce() -> Result<(), Report>,
    ) -> Result<(), Report> {
        if is_unmade(&self.paths(record)) {
            self.forget_opening(record).map_err(|cause| {
                Report::new(cause.kind(), error)
                    .cause(cause.to_string())
                    .state("nothing was changed, neither here nor in the store")
                    .hint(cause.hint())
            })?;
        }
        make()
    }

    /// A record's journal and map were opened: from now on older copies are known by that. Where it
    /// cannot be written down, less is refused.
    pub(super) fn keep_opening(&self, record: &VolumeRecord) {
        let opening = opening_in(&self.paths(record).map);
        let kept = opening.map_or_else(
            || Err("the map file cannot be read".to_owned()),
            |opening| {
                let kept = set_opening(&self.dir, record.local_number(), Some(opening));
                kept.map_err(|cause| cause.to_string())
            },
        );
        if let Err(cause) = kept {
            let volume = record.path.display();
            tracing::warn!(%volume, cause, "an older journal and map would not be noticed");
        }
    }

    /// A record's journal and map go, or are to be made anew.
    pub(super) fn forget_opening(&self, record: &VolumeRecord) -> Result<(), Unchanged> {
        set_opening(&self.dir, record.local_number(), None)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::catalog::{NodeId, VolumePhase};
    use crate::homes::RemoteHomes as _;
    use layby_cloud::Link;
    use tempfile::TempDir;

    /// A volume in a store's folder, and the node that opens it.
    pub(in super::super) struct Far {
        dir: TempDir,
        pub(in super::super) homes: CloudHomes,
        pub(in super::super) record: VolumeRecord,
    }

    impl Far {
        /// One that was made and is in its store, and is closed.
        pub(in super::super) async fn made() -> Far {
            let far = Far::new();
            let making = VolumeRecord { phase: VolumePhase::Creating, ..far.record.clone() };
            let name = "far".parse().expect("a good name");
            let made = far.homes.prepare(&name, &making).expect("nothing is missing");
            let watch = far.homes.watch(&making).expect("it is open");
            watch.wait(|said| said.status.link == Link::Up).await.expect("its store is there");
            drop(made);
            far
        }

        fn new() -> Far {
            let dir = TempDir::new().expect("a temporary directory");
            // Journals of 1 GiB would be copied to the last byte.
            let config = crate::node::tests::config(&dir, "[cloud]\njournal = \"16MiB\"\n");
            let homes = CloudHomes::new(&config, tokio::runtime::Handle::current());
            homes.introduce(NodeId([7; 16]), 4096);
            let example = crate::catalog::tests::example().volumes.into_values().next();
            let record = VolumeRecord {
                length: 1 << 20,
                path: format!("file://{}/store", dir.path().display()).into(),
                ..example.expect("it has one")
            };
            std::fs::create_dir_all(&homes.dir).expect("writable");
            Far { dir, homes, record }
        }

        /// Opens it as a start does, and closes it.
        pub(in super::super) fn open(&self) -> Result<(), Report> {
            let name = "far".parse().expect("a good name");
            self.homes.prepare(&name, &self.record).map(drop)
        }

        /// Copies its files, to be put back later.
        pub(in super::super) fn copy(&self, to: &str) {
            std::fs::create_dir(self.dir.path().join(to)).expect("writable");
            for (file, copy) in self.files(to) {
                std::fs::copy(file, copy).expect("the test's own file");
            }
        }

        pub(in super::super) fn put_back(&self, from: &str) {
            for (file, copy) in self.files(from) {
                std::fs::copy(copy, file).expect("the test's own file");
            }
        }

        fn files(&self, copy: &str) -> [(std::path::PathBuf, std::path::PathBuf); 2] {
            let (paths, copy) = (self.homes.paths(&self.record), self.dir.path().join(copy));
            [(paths.journal, copy.join("journal")), (paths.map, copy.join("map"))]
        }
    }

    /// Goal: an older copy of a journal and a map is refused though a start came between that had
    /// no map, its disk being away; the newest one is served. Method: two openings with copies, a
    /// start without the map, each copy put back.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_missing_map_forgets_no_opening() {
        let far = Far::made().await;
        far.copy("older");
        far.open().expect("nothing is missing");
        far.copy("newest");
        let map = far.homes.paths(&far.record).map;
        std::fs::remove_file(&map).expect("it was made");
        let refused = far.open().expect_err("its map is away");
        assert!(refused.cause.contains("is missing"), "{refused}");
        far.put_back("older");
        let refused = far.open().expect_err("it lacks an opening");
        assert!(refused.cause.contains("is an older copy"), "{refused}");
        far.put_back("newest");
        far.open().expect("it is the newest one");
    }

    /// Goal: files that are made anew are held against nothing that was known of others. Method: a
    /// volume whose number has an opening before it is made; it is opened twice.
    #[tokio::test(flavor = "multi_thread")]
    async fn new_files_are_no_older_copy() {
        let far = Far::new();
        let old = Opening { instance: 1, count: 9 };
        set_opening(&far.homes.dir, far.record.local_number(), Some(old)).expect("writable");
        let record = VolumeRecord { phase: VolumePhase::Creating, ..far.record.clone() };
        let far = Far { record, ..far };
        far.open().expect("they are made");
        let known = opening_reached(&far.homes.dir, far.record.local_number());
        let known = known.expect("the file is sound");
        assert!(known.is_some_and(|known| known.instance != old.instance), "{known:?}");
        far.open().expect("they are its own");
    }
    /// Goal: where `reached.json` cannot be read, a new volume is refused with what is wrong and
    /// what to do, changes nothing, and is made once that was done. Method: a link that names
    /// itself in the file's place, then what the hint says.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_unreadable_file_is_said_to_be_so() {
        let far = Far::new();
        let path = far.homes.dir.join(crate::reached::REACHED_FILE_NAME);
        std::os::unix::fs::symlink(&path, &path).expect("a link");
        let record = VolumeRecord { phase: VolumePhase::Creating, ..far.record.clone() };
        let far = Far { record, ..far };
        let refused = far.open().expect_err("what is known of others cannot be read");
        let (cause, hint) = (&refused.cause, &refused.hint);
        assert!(cause.contains("cannot read `") && !cause.contains("cannot write"), "{refused}");
        assert!(cause.contains("symbolic links"), "the system's own words: {refused}");
        assert!(refused.state.contains("nothing was changed"), "{refused}");
        assert!(hint.contains(&path.display().to_string()) && hint.contains("move"), "{refused}");
        assert!(is_unmade(&far.homes.paths(&far.record)), "nothing was made");
        std::fs::remove_file(&path).expect("the test's own link");
        far.open().expect("it is made");
    }
}
