//! How far levels, and journals with their maps, had come at the last start, so that an older copy
//! of one is refused.
//!
//! How: a file beside the catalog has, for each persistent level and shard, the instance and a
//! sequence number that lies durably in the level. A start reads it, has the shards refuse a level
//! that ends before that, and writes down how far levels have come once they have. Of each volume
//! in an object store it has which opening of its journal and map was the last one: each raises a
//! count in the map file, which an older copy lacks. It is replaced within the room that it has, so
//! that a full disk keeps no node from starting.
//! Invariant: what the file says was durable in the level, or in the map, before. A file that is
//! missing or damaged refuses nothing; one that cannot be read now is not replaced.
//! Cost: a small file per start, and per opening of a volume in an object store. Not for: what was
//! copied and put back between two starts.

use crate::checked::{Checked, warn_once};
use crate::config::{Name, read_small};
use crate::error::{Report, ReportKind};
use crate::node::ShardRequest;
use crate::replace::replace_within;
use layby_cloud::Opening;
use layby_engine::control::StartReport;
use layby_engine::store::Reached;
use layby_types::Seq;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The file within the node's directory.
pub const REACHED_FILE_NAME: &str = "reached.json";
/// The same, while it is written.
pub const REACHED_STAGED_NAME: &str = "reached.json.new";
/// Bytes of the file at most: some 60 for each volume, and a few levels of at most 64 shards.
const BYTES_MAX: u64 = 64 << 20;
/// The file of a node without volumes in object stores, which earlier builds read, too.
const FILE: Checked =
    Checked { format: "layby levels reached", version: 1, content: "levels", bytes_max: BYTES_MAX };
/// The file of a node with such volumes. An earlier build refuses nothing by it.
const FILE_VOLUMES: Checked = Checked { version: 2, content: "reached", ..FILE };
/// Held from reading the file until what was changed of it is written: volumes are opened beside
/// each other, and beside the shards' start.
static CHANGE: Mutex<()> = Mutex::new(());

/// The levels' parts, by shard.
type Levels = BTreeMap<Name, BTreeMap<u8, Part>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    instance: u64,
    seq: u64,
}

/// The last opening of volumes' journals and maps, by local number.
type Volumes = BTreeMap<u32, VolumePart>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumePart {
    instance: u64,
    opening: u32,
}

/// All that the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    levels: Levels,
    volumes: Volumes,
}

impl Content {
    /// What the file says; nothing where it cannot be read.
    fn read(dir: &Path) -> Content {
        Content::load(dir).unwrap_or_else(|cause| {
            warn_unread(dir, &cause.to_string());
            Content::default()
        })
    }

    /// What the file says; nothing where it is missing or damaged.
    ///
    /// # Errors
    /// The system's: what the file says is not known then.
    fn load(dir: &Path) -> std::io::Result<Content> {
        let bytes = match read_small(&dir.join(REACHED_FILE_NAME), BYTES_MAX) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Content::default()),
            Err(cause) if is_bad(&cause) => {
                warn_unread(dir, &cause.to_string());
                return Ok(Content::default());
            }
            read => read?,
        };
        Ok(Content::parse(&bytes).unwrap_or_else(|cause| {
            warn_unread(dir, &cause);
            Content::default()
        }))
    }

    /// What a file with these bytes says, or why it cannot be used.
    fn parse(bytes: &[u8]) -> Result<Content, String> {
        let levels_alone = |levels| Content { levels, volumes: Volumes::new() };
        match FILE.content(bytes) {
            Err(cause) if cause.ends_with("version 2") => FILE_VOLUMES.content(bytes),
            content => content.map(levels_alone),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self.volumes.is_empty() {
            true => FILE.bytes(&self.levels),
            false => FILE_VOLUMES.bytes(self),
        }
    }

    /// Has the file say nothing of levels. The caller holds [`CHANGE`].
    fn drop_levels(dir: &Path) -> std::io::Result<()> {
        let content = Content { levels: Levels::new(), ..Content::load(dir)? };
        if !content.volumes.is_empty() {
            return replace_within(dir, (REACHED_STAGED_NAME, REACHED_FILE_NAME), &content.bytes());
        }
        match std::fs::remove_file(dir.join(REACHED_FILE_NAME)) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| File::open(dir)?.sync_all()),
        }
    }

    /// Changes what the file says. May take long.
    fn change(dir: &Path, change: impl FnOnce(&mut Content)) -> Result<(), Unchanged> {
        let _one_at_a_time = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = || dir.join(REACHED_FILE_NAME);
        // What cannot be read now may be read later: it is not replaced by less.
        let before = Content::load(dir).map_err(|cause| Unchanged::Unread(path(), cause))?;
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(());
        }
        replace_within(dir, (REACHED_STAGED_NAME, REACHED_FILE_NAME), &after.bytes())
            .map_err(|cause| Unchanged::Unwritten(path(), cause))
    }
}

/// Why the file says what it said.
#[derive(Debug)]
pub(crate) enum Unchanged {
    /// What it says cannot be read now.
    Unread(PathBuf, std::io::Error),
    /// It cannot be replaced.
    Unwritten(PathBuf, std::io::Error),
}

impl Unchanged {
    /// By remedy.
    pub(crate) fn kind(&self) -> ReportKind {
        let (Unchanged::Unread(_, cause) | Unchanged::Unwritten(_, cause)) = self;
        cause.into()
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> String {
        match self {
            Unchanged::Unread(path, _) => format!(
                "correct what the cause names, and try again; where `{}` stays unreadable, move it \
                 away: the node makes a new one, by which older copies of levels, and of journals \
                 and maps, are not known until the next start",
                path.display()
            ),
            Unchanged::Unwritten(..) => "look at the node's directory and its disk".to_owned(),
        }
    }
}

impl fmt::Display for Unchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unchanged::Unread(path, cause) => {
                write!(f, "cannot read `{}`, which must not be replaced: {cause}", path.display())
            }
            Unchanged::Unwritten(path, cause) => {
                write!(f, "cannot write `{}`: {cause}", path.display())
            }
        }
    }
}

/// What a damaged file costs.
pub(crate) const COST: &str = "older copies of levels and journals would not be noticed";

fn warn_unread(dir: &Path, cause: &str) {
    warn_once(&dir.join(REACHED_FILE_NAME), cause, COST);
}

/// What is wrong with the file of the node in `dir`, if anything.
pub(crate) fn damage(dir: &Path) -> Option<String> {
    let bytes = match read_small(&dir.join(REACHED_FILE_NAME), BYTES_MAX) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return None,
        Err(cause) => return Some(cause.to_string()),
        Ok(bytes) => bytes,
    };
    Content::parse(&bytes).err()
}

/// Whether what is there can never be read as the file: it is none, or too long.
fn is_bad(cause: &std::io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::InvalidData | ErrorKind::InvalidInput)
}

/// Which opening of a volume's journal and map was the last one, as far as the node in `dir` knows.
#[must_use]
pub(crate) fn opening_reached(dir: &Path, local: u32) -> Option<Opening> {
    let known = Content::read(dir).volumes.remove(&local)?;
    Some(Opening { instance: known.instance, count: known.opening })
}

/// A volume's journal and map were opened, which its map says durably; none where they go, or are
/// to be made anew. May take long.
///
/// # Errors
/// [`Unchanged`]: what the file said before stands.
pub(crate) fn set_opening(
    dir: &Path,
    local: u32,
    opening: Option<Opening>,
) -> Result<(), Unchanged> {
    Content::change(dir, |content| {
        match opening {
            Some(Opening { instance, count: opening }) => {
                content.volumes.insert(local, VolumePart { instance, opening })
            }
            None => content.volumes.remove(&local),
        };
    })
}

/// See the file's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelsReached(Levels);

impl LevelsReached {
    /// What the node in `dir` knows of its levels.
    #[must_use]
    pub fn read(dir: &Path) -> LevelsReached {
        LevelsReached(Content::read(dir).levels)
    }

    /// The same at a start. One that makes its levels anew knows nothing of them, and says so
    /// before the first is made: it may end before it has learned how far the new ones have come.
    ///
    /// # Errors
    /// A report where the file cannot be removed; nothing was made.
    pub(crate) fn begin(dir: &Path, is_new: bool) -> Result<LevelsReached, Report> {
        if !is_new {
            return Ok(LevelsReached::read(dir));
        }
        let _one_at_a_time = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = dir.join(REACHED_FILE_NAME);
        Content::drop_levels(dir).map(|()| LevelsReached::default()).map_err(|cause| {
            Report::from_io(format!("cannot remove `{}`", path.display()), &cause)
                .state("no level was formatted")
                .hint("correct what the cause names, then start again")
        })
    }

    /// How far a shard's part of a level had come.
    #[must_use]
    pub fn of(&self, level: &Name, shard: u8) -> Option<Reached> {
        let part = self.0.get(level)?.get(&shard)?;
        Some(Reached { instance: part.instance, seq: Seq(part.seq) })
    }

    /// Tells shards how far their levels had come.
    pub(crate) fn tell(&self, requests: &mut [ShardRequest]) {
        for request in requests {
            for part in &mut request.parts {
                part.known = self.of(&part.level.name, request.index);
            }
        }
    }

    /// Takes over what the shards found, in their order, and writes it down. May take long.
    ///
    /// # Errors
    /// [`Unchanged`]: what the file said before stands, which refuses less.
    pub(crate) fn learn(
        mut self,
        dir: &Path,
        names: &[Name],
        reports: &[&StartReport],
    ) -> Result<(), Unchanged> {
        for (shard, report) in (0..).zip(reports) {
            for (level, reached) in &report.reached {
                let part = Part { instance: reached.instance, seq: reached.seq.0 };
                self.0.entry(names[*level].clone()).or_default().insert(shard, part);
            }
        }
        Content::change(dir, |content| content.levels = self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Goal: what a start learned is known at the next one; a level that did not tell keeps what
    /// was known, and a damaged file says nothing. Method: two starts of two shards; each byte
    /// changed.
    #[test]
    fn what_was_learned_is_known() {
        let dir = TempDir::new().expect("a temporary directory");
        let names: Vec<Name> = ["dram", "nvm", "ssd"].map(|n| n.parse().expect("good")).to_vec();
        let of = |seq| Reached { instance: u64::MAX - 1, seq: Seq(seq) };
        let report = |reached| StartReport { reached, ..StartReport::default() };
        let known = |level: usize, shard| LevelsReached::read(dir.path()).of(&names[level], shard);
        assert_eq!(known(1, 0), None);
        let [one, two] = [report(vec![(1, of(5)), (2, of(7))]), report(vec![(2, of(9))])];
        let learn = |reports: &[&StartReport]| {
            LevelsReached::read(dir.path()).learn(dir.path(), &names, reports).expect("writable");
        };
        learn(&[&one, &two]);
        assert_eq!(
            (known(1, 0), known(2, 0), known(2, 1)),
            (Some(of(5)), Some(of(7)), Some(of(9)))
        );
        learn(&[&report(vec![(1, of(8))])]);
        assert_eq!(
            (known(1, 0), known(2, 0), known(2, 1)),
            (Some(of(8)), Some(of(7)), Some(of(9)))
        );
        let path = dir.path().join(REACHED_FILE_NAME);
        let begin = |is_new| LevelsReached::begin(dir.path(), is_new).expect("writable");
        assert_eq!(begin(false), LevelsReached::read(dir.path()));
        let bytes = std::fs::read(&path).expect("it is there");
        for at in (0..bytes.iter().rposition(|byte| *byte == b'}').expect("JSON")).step_by(7) {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(&path, changed).expect("writable");
            assert_eq!(known(2, 1).filter(|known| *known != of(9)), None, "byte {at}");
        }
        for _ in 0..2 {
            assert_eq!(begin(true), LevelsReached::default());
            assert!(!path.exists(), "new levels are known by nothing");
        }
    }

    /// Goal: what is known of volumes' journals and of levels is changed apart, stays where levels
    /// are made anew, and a damaged file says nothing; a node without such volumes writes what
    /// earlier builds read, and reads what they wrote. Method: both in turn; the file's bytes.
    #[test]
    fn openings_and_levels_are_kept_apart() {
        let dir = TempDir::new().expect("a temporary directory");
        let dir = dir.path();
        let names: Vec<Name> = vec!["ssd".parse().expect("good")];
        let ssd = Reached { instance: 3, seq: Seq(9) };
        let report = StartReport { reached: vec![(0, ssd)], ..StartReport::default() };
        let learn = || {
            let begun = LevelsReached::begin(dir, false).expect("writable");
            begun.learn(dir, &names, &[&report]).expect("writable");
        };
        let says_version = |version: u32| {
            let text = std::fs::read_to_string(dir.join(REACHED_FILE_NAME)).expect("text");
            assert!(text.contains(&format!("\"version\":{version}")), "{text}");
        };
        let known = || (LevelsReached::read(dir).of(&names[0], 0), opening_reached(dir, 7));
        learn();
        says_version(1);
        assert_eq!(known(), (Some(ssd), None));
        let opening = Opening { instance: u64::MAX, count: 2 };
        set_opening(dir, 7, Some(opening)).expect("writable");
        says_version(2);
        assert_eq!(known(), (Some(ssd), Some(opening)));
        let begun = LevelsReached::begin(dir, true).expect("writable");
        assert_eq!((begun, known()), (LevelsReached::default(), (None, Some(opening))));
        let begun = LevelsReached::begin(dir, false).expect("writable");
        let opening = Opening { count: 3, ..opening };
        set_opening(dir, 7, Some(opening)).expect("writable");
        begun.learn(dir, &names, &[&report]).expect("writable");
        assert_eq!(known(), (Some(ssd), Some(opening)), "the start overtook an opening");
        let path = dir.join(REACHED_FILE_NAME);
        let bytes = std::fs::read(&path).expect("it is there");
        for at in (0..bytes.iter().rposition(|byte| *byte == b'}').expect("JSON")).step_by(5) {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(&path, changed).expect("writable");
            let (_, found) = known();
            assert_eq!(found.filter(|found| *found != opening), None, "byte {at}");
        }
        std::fs::write(&path, bytes).expect("writable");
        set_opening(dir, 7, None).expect("writable");
        says_version(1);
        assert_eq!(known(), (Some(ssd), None));
    }

    /// Goal: a file that cannot be read now is not replaced by one that says less, and what is no
    /// such file is. Method: a link that names itself in its place, as a passing error; a change
    /// and a start with new levels then, and once the file is back; a text.
    #[test]
    fn what_cannot_be_read_now_is_kept() {
        let dir = TempDir::new().expect("a temporary directory");
        let dir = dir.path();
        let [path, away] = [REACHED_FILE_NAME, "away"].map(|name| dir.join(name));
        let opening = |count| Some(Opening { instance: 3, count });
        set_opening(dir, 1, opening(5)).expect("writable");
        std::fs::rename(&path, &away).expect("the test's own file");
        std::os::unix::fs::symlink(REACHED_FILE_NAME, &path).expect("a link");
        set_opening(dir, 2, opening(6)).expect_err("what is known of others cannot be read");
        LevelsReached::begin(dir, true).expect_err("nor now");
        std::fs::rename(&away, &path).expect("the test's own file");
        let known = || [1, 2].map(|local| opening_reached(dir, local));
        assert_eq!(known(), [opening(5), None]);
        set_opening(dir, 2, opening(7)).expect("it is back");
        assert_eq!(known(), [opening(5), opening(7)]);
        std::fs::write(&path, "damaged").expect("the test's own file");
        set_opening(dir, 2, opening(8)).expect("nothing is lost by that");
        assert_eq!(known(), [None, opening(8)]);
    }

    /// Goal: the openings of many volumes are known. Method: a file of 20000, above a mebibyte.
    #[test]
    fn many_openings_are_known() {
        let dir = TempDir::new().expect("a temporary directory");
        let part = |local| (local, VolumePart { instance: u64::MAX - 1, opening: local });
        let content = Content { volumes: (0..20_000).map(part).collect(), ..Content::default() };
        assert!(content.bytes().len() > 1 << 20);
        std::fs::write(dir.path().join(REACHED_FILE_NAME), content.bytes()).expect("writable");
        let known = opening_reached(dir.path(), 19_999);
        assert_eq!(known, Some(Opening { instance: u64::MAX - 1, count: 19_999 }));
    }
}
