//! Which catalog a node wrote last, so that an older copy is not taken for it.
//!
//! How: before a catalog takes the place of another, a file beside it names both by length and
//! checksum; once it has that place durably, the file names it alone. A start and a check hold the
//! catalog against it; a start that came up names the one that it took alone, too, since a kill may
//! have left two. The file is replaced within the room that it has.
//! Invariant: a catalog that the node wrote last is named, whenever the power fails; the one before
//! it, which lies beside it, is not, once a change has ended. A file that is missing or damaged
//! refuses nothing, nor does it a catalog of an earlier build, which names none: those of this one
//! end with a mark.
//! Cost: a small file twice per change of the catalog. Not for: a directory that is put back as a
//! whole.

use crate::checked::Checked;
use crate::config::read_small;
use crate::error::{Report, ReportKind};
use crate::held;
use crate::replace::replace_within;
use serde::{Deserialize, Serialize};
use std::path::Path;

use super::{CATALOG_BYTES_MAX, CATALOG_FILE_NAME, NAMES};

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
    // What was read is this node's.
    held::check(dir)?;
    let both: Vec<Written> = old.iter().map(Vec::as_slice).chain([next]).map(Written::of).collect();
    replace_within(dir, (STAGED_NAME, LAST_FILE_NAME), &FILE.bytes(&both))
}

/// Says durably that the catalog of `dir` is the last one, and no other: one that was written
/// before, and lies beside it, is older from now on.
///
/// # Errors
/// The disk's; the catalogs that were named are named still.
pub(super) fn settle(dir: &Path) -> std::io::Result<()> {
    let there = [Written::of(&read_small(&dir.join(CATALOG_FILE_NAME), CATALOG_BYTES_MAX)?)];
    let named = FILE.read::<Vec<Written>>(&dir.join(LAST_FILE_NAME));
    held::check(dir)?;
    if named.is_ok_and(|named| named == there) {
        return Ok(());
    }
    // A kill, or a sync that failed, may have left its name volatile: the other one would be back
    // after a power failure, and be refused.
    held::folder(dir)?.sync_all()?;
    replace_within(dir, (STAGED_NAME, LAST_FILE_NAME), &FILE.bytes(&there))
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
    let beside = read_small(&dir.join(NAMES.0), CATALOG_BYTES_MAX);
    let cause = match beside.is_ok_and(|beside| beside == bytes) {
        true => format!(
            "`{CATALOG_FILE_NAME}` is an older copy: the same as `{}`, the catalog before the last",
            NAMES.0
        ),
        false => format!(
            "`{CATALOG_FILE_NAME}` is an older copy, or was changed by another program: it is not \
             the one that the node wrote last"
        ),
    };
    let dir = dir.display();
    Err(Report::new(ReportKind::Corrupt, format!("cannot use the catalog of the node in `{dir}`"))
        .cause(cause)
        .state("nothing was changed; levels and volumes' files are as they were")
        .hint(format!(
            "put the newest `{CATALOG_FILE_NAME}` back, which `{}` never is; where there is none, \
             remove `{LAST_FILE_NAME}`, see with `layby check` what the levels hold of volumes \
             that this catalog does not know, and start: that, and what lies behind the ends that \
             it knows, is dropped then",
            NAMES.0
        )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::catalog::tests::example;

    /// Goal: of all catalogs that a node wrote, the last one alone passes; older and changed ones
    /// do not, the one before the last neither. Method: three versions, put back in turn.
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
        assert_eq!(std::fs::read(dir.path().join(NAMES.0)).expect("it is there"), versions[1]);
        for (version, beside) in [(0, false), (1, true)] {
            std::fs::write(&path, &versions[version]).expect("the test's own file");
            let refused = check(dir.path()).expect_err("it is older");
            assert_eq!(refused.cause.contains("the catalog before the last"), beside, "{refused}");
            assert!(refused.hint.contains(NAMES.0), "{refused}");
        }
        std::fs::write(&path, &versions[2]).expect("the test's own file");
        check(dir.path()).expect("it is the last one");
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

    /// Goal: wherever a change is cut short, the catalog that is there passes, whole; once a start
    /// has come up with it, the other one does not. Method: the steps of a change one by one, each
    /// followed by a look, and by what a start does, in a folder of its own.
    #[test]
    fn a_cut_at_any_step_leaves_a_catalog_that_passes() {
        type Step = fn(&Path) -> std::io::Result<()>;
        let new = || Catalog { volume_id_next: 200, ..example() };
        let steps: [Step; 6] = [
            |_| Ok(()),
            // Announced, and written in part.
            |dir| announce(dir, b"another"),
            |dir| std::fs::write(dir.join(NAMES.0), b"{\"format\":"),
            |dir| {
                let new = Catalog { volume_id_next: 200, ..example() };
                new.stage(dir).map_err(|report| std::io::Error::other(report.to_string()))
            },
            |dir| crate::replace::exchange(dir, NAMES),
            // What names it alone is written, and has not its name yet.
            |dir| std::fs::write(dir.join(STAGED_NAME), FILE.bytes(&Vec::<Written>::new())),
        ];
        for cut in 1..=steps.len() {
            let dir = tempfile::tempdir().expect("a folder");
            let (dir, path) = (dir.path(), dir.path().join(CATALOG_FILE_NAME));
            for number in 0..2 {
                let old = Catalog { volume_id_next: 100 + number, ..example() };
                old.save(dir).expect("there is room");
            }
            let old = std::fs::read(&path).expect("it is there");
            steps[..cut].iter().for_each(|step| step(dir).expect("there is room"));
            check(dir).unwrap_or_else(|refused| panic!("cut at {cut}: {refused}"));
            let found = Catalog::load(dir).expect("it is whole").expect("it is there");
            assert_eq!(found == new(), cut >= 5, "cut at {cut}");
            settle(dir).expect("there is room");
            check(dir).unwrap_or_else(|refused| panic!("cut at {cut}: {refused}"));
            let there = std::fs::read(&path).expect("it is there");
            for other in [old, std::fs::read(dir.join(NAMES.0)).expect("it is there")] {
                std::fs::write(&path, &other).expect("the test's own file");
                // What is no whole catalog is refused where it is read.
                let is_marked = other.ends_with(MARK);
                let passes = !is_marked || other == there;
                assert_eq!(check(dir).is_ok(), passes, "cut at {cut}");
            }
        }
    }
}
