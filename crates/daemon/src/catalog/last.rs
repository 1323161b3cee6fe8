//! Which catalog a node wrote last, so that an older copy is not taken for it.
//!
//! How: before a catalog takes the place of another, a file beside it names both by length and
//! checksum; a start and a check hold the catalog against it. The file is replaced within the room
//! that it has.
//! Invariant: a catalog that the node wrote last is named, whenever the power fails. A file that is
//! missing or damaged refuses nothing, nor does it a catalog of an earlier build, which names none:
//! those of this one end with a mark.
//! Cost: a small file per change of the catalog. Not for: a directory that is put back as a whole.

use crate::checked::Checked;
use crate::config::read_small;
use crate::error::{Report, ReportKind};
use crate::replace::replace_within;
use serde::{Deserialize, Serialize};
use std::path::Path;

use super::{CATALOG_BYTES_MAX, CATALOG_FILE_NAME};

/// The file within the node's directory.
pub(crate) const LAST_FILE_NAME: &str = "catalog.last";
/// The same, while it is written.
const STAGED_NAME: &str = "catalog.last.new";
const FILE: Checked =
    Checked { format: "layby last catalog", version: 1, content: "catalogs", bytes_max: 64 << 10 };

/// What a damaged file costs.
pub(crate) const COST: &str = "an older copy of the catalog would not be noticed";

/// How a catalog ends that was named before it was written; one of an earlier build ends with one
/// end of line.
pub(super) const MARK: &[u8] = b"\n\n";

/// A catalog's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    length: usize,
    /// In hexadecimal, of the file's bytes.
    crc32c: String,
}

impl Written {
    fn of(bytes: &[u8]) -> Written {
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
        Written { length: bytes.len(), crc32c: format!("{crc:08x}") }
    }
}

/// Says durably that the catalog of `dir` is the one that is there or has these bytes.
///
/// # Errors
/// The disk's; which catalog is the last one is as it was then.
pub(super) fn announce(dir: &Path, next: &[u8]) -> std::io::Result<()> {
    let old = match read_small(&dir.join(CATALOG_FILE_NAME), CATALOG_BYTES_MAX) {
        Ok(old) => Some(old),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => None,
        Err(cause) => return Err(cause),
    };
    let both: Vec<Written> = old.iter().map(Vec::as_slice).chain([next]).map(Written::of).collect();
    replace_within(dir, (STAGED_NAME, LAST_FILE_NAME), &FILE.bytes(&both))
}

/// What is wrong with the file in `dir`, if anything.
pub(crate) fn damage(dir: &Path) -> Option<String> {
    FILE.damage::<Vec<Written>>(&dir.join(LAST_FILE_NAME))
}

/// Refuses a catalog that the node in `dir` did not write last.
///
/// # Errors
/// A report where it is another one.
pub(crate) fn check(dir: &Path) -> Result<(), Report> {
    let Ok(bytes) = read_small(&dir.join(CATALOG_FILE_NAME), CATALOG_BYTES_MAX) else {
        return Ok(());
    };
    let path = dir.join(LAST_FILE_NAME);
    let Some(last) = FILE.read_or_warn::<Vec<Written>>(&path, COST) else { return Ok(()) };
    if last.contains(&Written::of(&bytes)) {
        return Ok(());
    }
    if !bytes.ends_with(MARK) {
        tracing::warn!("the catalog is an earlier build's: it is not known whether it is the last");
        return Ok(());
    }
    let dir = dir.display();
    Err(Report::new(ReportKind::Corrupt, format!("cannot use the catalog of the node in `{dir}`"))
        .cause(format!(
            "`{CATALOG_FILE_NAME}` is an older copy, or was changed by another program: it is not \
             the one that the node wrote last"
        ))
        .state("nothing was changed; levels and volumes' files are as they were")
        .hint(format!(
            "put the newest `{CATALOG_FILE_NAME}` back; where there is none, remove \
             `{LAST_FILE_NAME}`, see with `layby check` what the levels hold of volumes that this \
             catalog does not know, and start: that, and what lies behind the ends that it knows, \
             is dropped then"
        )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::catalog::tests::example;

    /// Goal: of all catalogs that a node wrote, the last one passes, and what a cut between the
    /// two files leaves; older and changed ones do not. Method: three versions, put back in turn.
    #[test]
    fn only_the_last_catalog_passes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(CATALOG_FILE_NAME);
        check(dir.path()).expect("there is none");
        let versions: Vec<Vec<u8>> = (0..3)
            .map(|number| {
                let catalog = Catalog { volume_id_next: 100 + number, ..example() };
                catalog.save(dir.path()).expect("there is room");
                check(dir.path()).expect("it was just written");
                std::fs::read(&path).expect("it is there")
            })
            .collect();
        // Power may have failed before the last one was there.
        for (version, passes) in [(0, false), (1, true), (2, true)] {
            std::fs::write(&path, &versions[version]).expect("the test's own file");
            assert_eq!(check(dir.path()).is_ok(), passes, "version {version}");
        }
        Catalog { volume_id_next: 200, ..example() }.stage(dir.path()).expect("there is room");
        check(dir.path()).expect("it is still the last one");
        std::fs::write(&path, &versions[1]).expect("the test's own file");
        let refused = check(dir.path()).expect_err("it is older");
        assert!(refused.to_string().contains("an older copy"), "{refused}");
        let earlier = [versions[1].trim_ascii_end(), b"\n"].concat();
        std::fs::write(&path, earlier).expect("the test's own file");
        check(dir.path()).expect("an earlier build may have written it after all of these");
        std::fs::write(&path, &versions[1]).expect("the test's own file");
        std::fs::write(dir.path().join(LAST_FILE_NAME), b"damaged").expect("the test's own file");
        check(dir.path()).expect("nothing is known");
    }
}
