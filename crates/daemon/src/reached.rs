//! How far levels, and journals with their maps, had come at the last start, so that an older copy
//! of one is refused.
//!
//! How: a file beside the catalog has, for each persistent level and shard, the instance and a
//! sequence number that lies durably in the level. A start reads it, has the shards refuse a level
//! that ends before that, and writes down how far levels have come once they have. Of each volume
//! in an object store it has which opening of its journal and map was the last one: each raises a
//! count in the map file, which an older copy lacks. It is there twice (`pair`), so that damage of
//! one costs nothing, and replaced within the room that it has, so that a full disk keeps no node
//! from starting.
//! Invariant: what the files say was durable in the level, or in the map, before. Where both are
//! missing they refuse nothing; where one is there and neither can be used, no start goes on.
//! Cost: two small files per start, and per opening of a volume in an object store. Not for: what
//! was copied and put back between two starts.

use crate::checked::Checked;
use crate::config::Name;
use crate::error::{Report, ReportKind};
use crate::node::ShardRequest;
use layby_cloud::Opening;
use layby_engine::control::StartReport;
use layby_engine::store::Reached;
use layby_types::Seq;
use pair::{BYTES_MAX, Known};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

mod pair;

pub(crate) use pair::{Unknown, check, damages, unknown};

/// The file within the node's directory.
pub const REACHED_FILE_NAME: &str = "reached.json";
/// The same once more.
pub const COPY_FILE_NAME: &str = "reached.copy.json";
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

    /// The same, with what `other` knows to be further: it may be that this is an older copy. What
    /// was made another time, or is not known here, may be older there.
    fn raised_by(&self, other: &Content) -> Content {
        let mut raised = self.clone();
        for (level, parts) in &mut raised.levels {
            for (shard, part) in parts {
                let other = other.levels.get(level).and_then(|parts| parts.get(shard));
                let other = other.filter(|other| other.instance == part.instance);
                part.seq = other.map_or(part.seq, |other| other.seq.max(part.seq));
            }
        }
        for (volume, part) in &mut raised.volumes {
            let other = other.volumes.get(volume);
            let other = other.filter(|other| other.instance == part.instance);
            part.opening = other.map_or(part.opening, |other| other.opening.max(part.opening));
        }
        raised
    }

    /// Has the files say nothing of levels. The caller holds [`CHANGE`].
    fn drop_levels(dir: &Path) -> Result<(), Unchanged> {
        let known = Known::read(dir).map_err(Unchanged::Unknown)?;
        let content = Content { levels: Levels::new(), ..known.content.clone() };
        let dropped = match content.volumes.is_empty() {
            true => pair::remove(dir),
            false => known.replace(dir, &content),
        };
        dropped.map_err(|(path, cause)| Unchanged::Unwritten(path, cause))
    }

    /// Changes what the files say. May take long.
    fn change(dir: &Path, change: impl FnOnce(&mut Content)) -> Result<(), Unchanged> {
        let _one_at_a_time = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        // What cannot be read now may be read later: it is not replaced by less.
        let known = Known::read(dir).map_err(Unchanged::Unknown)?;
        let mut after = known.content.clone();
        change(&mut after);
        let replaced = known.replace(dir, &after);
        replaced.map_err(|(path, cause)| Unchanged::Unwritten(path, cause))
    }
}

/// Why the files say what they said.
#[derive(Debug)]
pub(crate) enum Unchanged {
    /// What they say is not known.
    Unknown(Unknown),
    /// One cannot be replaced or removed.
    Unwritten(PathBuf, std::io::Error),
}

impl Unchanged {
    /// By remedy.
    pub(crate) fn kind(&self) -> ReportKind {
        match self {
            Unchanged::Unknown(unknown) => unknown.kind(),
            Unchanged::Unwritten(_, cause) => cause.into(),
        }
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> String {
        match self {
            Unchanged::Unknown(unknown) => unknown.hint(),
            Unchanged::Unwritten(..) => "look at the node's directory and its disk".to_owned(),
        }
    }
}

impl fmt::Display for Unchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unchanged::Unknown(unknown) => unknown.fmt(f),
            Unchanged::Unwritten(path, cause) => {
                write!(f, "cannot write `{}`: {cause}", path.display())
            }
        }
    }
}

/// What a damaged file costs where the other one of the two is sound.
pub(crate) const COST_ONE: &str =
    "nothing is lost, since the other one of the two is sound; the next start writes both";
/// What it costs where neither can be used.
pub(crate) const COST_BOTH: &str =
    "older copies of levels and journals would not be noticed, so that no start goes on";

/// Which opening of a volume's journal and map was the last one, as far as the node in `dir` knows.
///
/// # Errors
/// [`Unknown`].
pub(crate) fn opening_reached(dir: &Path, local: u32) -> Result<Option<Opening>, Unknown> {
    // A file that is replaced meanwhile may be read in part.
    let _one_at_a_time = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = Known::read(dir)?.content.volumes.remove(&local);
    Ok(known.map(|known| Opening { instance: known.instance, count: known.opening }))
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
    ///
    /// # Errors
    /// A report where that cannot be read.
    pub fn read(dir: &Path) -> Result<LevelsReached, Report> {
        let _one_at_a_time = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        Known::read(dir).map(|known| LevelsReached(known.content.levels)).map_err(|unknown| {
            Report::new(unknown.kind(), "cannot tell how far levels have come")
                .cause(unknown.to_string())
                .state("nothing was changed")
                .hint(unknown.hint())
        })
    }

    /// The same at a start. One that makes its levels anew knows nothing of them, and says so
    /// before the first is made: it may end before it has learned how far the new ones have come.
    ///
    /// # Errors
    /// A report where the files cannot be read or changed; nothing was made.
    pub(crate) fn begin(dir: &Path, is_new: bool) -> Result<LevelsReached, Report> {
        if !is_new {
            return LevelsReached::read(dir);
        }
        let _one_at_a_time = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        Content::drop_levels(dir).map(|()| LevelsReached::default()).map_err(|cause| {
            Report::new(cause.kind(), "cannot forget how far the old levels had come")
                .cause(cause.to_string())
                .state("no level was formatted")
                .hint(cause.hint())
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

    /// How far levels have come, as a start learns it.
    fn report(reached: &[(usize, Reached)]) -> StartReport {
        StartReport { reached: reached.to_vec(), ..StartReport::default() }
    }

    fn begin(dir: &Path, is_new: bool) -> LevelsReached {
        LevelsReached::begin(dir, is_new).expect("sound files that can be written")
    }

    fn opening_of(dir: &Path, local: u32) -> Option<Opening> {
        opening_reached(dir, local).expect("a sound file")
    }

    /// Changes single bytes of the files in `dir`, of each alone and of both; `check` is told
    /// whether one is left whole.
    fn with_each_damage(dir: &Path, step: usize, mut check: impl FnMut(bool, usize)) {
        let names = [REACHED_FILE_NAME, COPY_FILE_NAME];
        let bytes = std::fs::read(dir.join(names[0])).expect("it is there");
        let end = bytes.iter().rposition(|byte| *byte == b'}').expect("JSON");
        for (chosen, is_one_whole) in [(&names[..1], true), (&names[1..], true), (&names, false)] {
            for at in (0..end).step_by(step) {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                for name in chosen {
                    std::fs::write(dir.join(name), &changed).expect("writable");
                }
                check(is_one_whole, at);
                for name in chosen {
                    std::fs::write(dir.join(name), &bytes).expect("writable");
                }
            }
        }
    }

    /// Goal: what a start learned is known at the next one; a level that did not tell keeps what
    /// was known. One damaged file changes nothing, and two are an error, not silence. Method: two
    /// starts of two shards; bytes of each file and of both changed.
    #[test]
    fn what_was_learned_is_known() {
        let dir = TempDir::new().expect("a temporary directory");
        let dir = dir.path();
        let names: Vec<Name> = ["dram", "nvm", "ssd"].map(|n| n.parse().expect("good")).to_vec();
        let of = |seq| Reached { instance: u64::MAX - 1, seq: Seq(seq) };
        let known = || {
            let known = LevelsReached::read(dir).map_err(|refused| refused.kind)?;
            Ok([(1, 0), (2, 0), (2, 1)].map(|(level, shard)| known.of(&names[level], shard)))
        };
        assert_eq!(known(), Ok([None; 3]));
        let [one, two] = [report(&[(1, of(5)), (2, of(7))]), report(&[(2, of(9))])];
        let learn = |reports: &[&StartReport]| {
            begin(dir, false).learn(dir, &names, reports).expect("writable");
        };
        learn(&[&one, &two]);
        assert_eq!(known(), Ok([Some(of(5)), Some(of(7)), Some(of(9))]));
        learn(&[&report(&[(1, of(8))])]);
        let all = Ok([Some(of(8)), Some(of(7)), Some(of(9))]);
        assert_eq!(known(), all);
        with_each_damage(dir, 7, |is_one_whole, at| {
            let found = known();
            let is_error = !is_one_whole && found == Err(ReportKind::Corrupt);
            assert!(found == all || is_error, "byte {at}: {found:?}");
        });
        for _ in 0..2 {
            assert_eq!(begin(dir, true), LevelsReached::default());
            for name in [REACHED_FILE_NAME, COPY_FILE_NAME] {
                assert!(!dir.join(name).exists(), "new levels are known by nothing");
            }
        }
    }

    /// Goal: what is known of volumes' journals and of levels is changed apart, stays where levels
    /// are made anew, and no damage makes it older; a node without such volumes writes what earlier
    /// builds read, and reads what they wrote. Method: both in turn; the files' bytes.
    #[test]
    fn openings_and_levels_are_kept_apart() {
        let dir = TempDir::new().expect("a temporary directory");
        let dir = dir.path();
        let names: Vec<Name> = vec!["ssd".parse().expect("good")];
        let ssd = Reached { instance: 3, seq: Seq(9) };
        let report = report(&[(0, ssd)]);
        let learn = || begin(dir, false).learn(dir, &names, &[&report]).expect("writable");
        let says_version = |version: u32| {
            for name in [REACHED_FILE_NAME, COPY_FILE_NAME] {
                let text = std::fs::read_to_string(dir.join(name)).expect("text");
                assert!(text.contains(&format!("\"version\":{version}")), "{name}: {text}");
            }
        };
        let level = || LevelsReached::read(dir).expect("a sound file").of(&names[0], 0);
        let known = || (level(), opening_of(dir, 7));
        learn();
        says_version(1);
        assert_eq!(known(), (Some(ssd), None));
        let opening = Opening { instance: u64::MAX, count: 2 };
        set_opening(dir, 7, Some(opening)).expect("writable");
        says_version(2);
        assert_eq!(known(), (Some(ssd), Some(opening)));
        assert_eq!((begin(dir, true), known()), (LevelsReached::default(), (None, Some(opening))));
        let begun = begin(dir, false);
        let opening = Opening { count: 3, ..opening };
        set_opening(dir, 7, Some(opening)).expect("writable");
        begun.learn(dir, &names, &[&report]).expect("writable");
        assert_eq!(known(), (Some(ssd), Some(opening)), "the start overtook an opening");
        with_each_damage(dir, 5, |is_one_whole, at| match opening_reached(dir, 7) {
            Ok(found) => assert_eq!(found, Some(opening), "byte {at}"),
            Err(unknown) => assert!(!is_one_whole, "byte {at}: {unknown}"),
        });
        std::fs::remove_file(dir.join(COPY_FILE_NAME)).expect("an earlier build makes none");
        assert_eq!(known(), (Some(ssd), Some(opening)));
        set_opening(dir, 7, None).expect("writable");
        says_version(1);
        assert_eq!(known(), (Some(ssd), None));
    }

    /// Goal: a file that cannot be read now is not replaced by one that says less, nor is a damaged
    /// one, and no new levels are made over it. Method: a link that names itself in its place, as a
    /// passing error, without a copy; a change and starts then, and once the file is back; a text.
    #[test]
    fn what_cannot_be_read_now_is_kept() {
        let dir = TempDir::new().expect("a temporary directory");
        let dir = dir.path();
        let [path, away] = [REACHED_FILE_NAME, "away"].map(|name| dir.join(name));
        let opening = |count| Some(Opening { instance: 3, count });
        let refuses = |count| {
            set_opening(dir, 2, opening(count)).expect_err("what is known of others is unknown");
            LevelsReached::begin(dir, true).expect_err("nor is it for new levels");
            LevelsReached::begin(dir, false).expect_err("nor for old ones");
            check(dir).expect_err("no start goes on")
        };
        set_opening(dir, 1, opening(5)).expect("writable");
        std::fs::rename(&path, &away).expect("the test's own file");
        let copy = dir.join(COPY_FILE_NAME);
        std::fs::remove_file(&copy).expect("the test's own file");
        std::os::unix::fs::symlink(REACHED_FILE_NAME, &path).expect("a link");
        assert_ne!(refuses(6).kind, ReportKind::Corrupt, "it may pass");
        std::fs::rename(&away, &path).expect("the test's own file");
        let known = || [1, 2].map(|local| opening_of(dir, local));
        assert_eq!(known(), [opening(5), None]);
        set_opening(dir, 2, opening(7)).expect("it is back");
        assert_eq!(known(), [opening(5), opening(7)]);
        for path in [&path, &copy] {
            std::fs::write(path, "damaged").expect("the test's own file");
        }
        assert_eq!(refuses(8).kind, ReportKind::Corrupt);
        for path in [&path, &copy] {
            std::fs::remove_file(path).expect("the operator's word");
        }
        check(dir).expect("nothing is known");
        set_opening(dir, 2, opening(9)).expect("writable");
        assert_eq!(known(), [None, opening(9)]);
    }

    /// Goal: a copy is never older than the file that it stands for, and a file that is put back
    /// alone from an older copy is not believed. Method: a change whose first sync fails, then
    /// damage of the first file; each of both files put back from before a change.
    #[test]
    fn an_older_word_is_not_believed() {
        let dir = TempDir::new().expect("a temporary directory");
        let dir = dir.path();
        let opening = |count| Some(Opening { instance: 3, count });
        let path = dir.join(REACHED_FILE_NAME);
        set_opening(dir, 1, opening(1)).expect("writable");
        crate::replace::tests::fail_next_sync(&path);
        set_opening(dir, 1, opening(2)).expect_err("a failing disk");
        let written = std::fs::read(&path).expect("it is there");
        std::fs::write(&path, "damaged").expect("writable");
        opening_reached(dir, 1).expect_err("there is no copy that is as new");
        std::fs::write(&path, written).expect("writable");
        set_opening(dir, 1, opening(3)).expect("writable");
        for name in [REACHED_FILE_NAME, COPY_FILE_NAME] {
            let before = std::fs::read(dir.join(name)).expect("it is there");
            let count = opening_of(dir, 1).expect("it is known").count + 1;
            set_opening(dir, 1, opening(count)).expect("writable");
            std::fs::write(dir.join(name), before).expect("writable");
            assert_eq!(opening_of(dir, 1), opening(count), "{name} was put back");
        }
    }

    /// Goal: while the first file is damaged the copy keeps its name, until both say the same.
    /// Method: a folder in the way of what is written first.
    #[test]
    fn the_only_good_copy_keeps_its_name() {
        let dir = TempDir::new().expect("a temporary directory");
        let dir = dir.path();
        let opening = |count| Some(Opening { instance: 3, count });
        set_opening(dir, 1, opening(1)).expect("writable");
        std::fs::write(dir.join(REACHED_FILE_NAME), "damaged").expect("writable");
        let staged = dir.join(pair::STAGED_NAME);
        std::fs::create_dir(&staged).expect("writable");
        set_opening(dir, 1, opening(2)).expect_err("a folder is in the way");
        assert_eq!(opening_of(dir, 1), opening(1));
        std::fs::remove_dir(&staged).expect("it is empty");
        set_opening(dir, 1, opening(2)).expect("writable");
        assert_eq!(opening_of(dir, 1), opening(2));
        assert!(damages(dir).is_empty());
    }

    /// Goal: the openings of many volumes are known. Method: a file of 20000, above a mebibyte.
    #[test]
    fn many_openings_are_known() {
        let dir = TempDir::new().expect("a temporary directory");
        let part = |local| (local, VolumePart { instance: u64::MAX - 1, opening: local });
        let content = Content { volumes: (0..20_000).map(part).collect(), ..Content::default() };
        assert!(content.bytes().len() > 1 << 20);
        std::fs::write(dir.path().join(REACHED_FILE_NAME), content.bytes()).expect("writable");
        let known = opening_of(dir.path(), 19_999);
        assert_eq!(known, Some(Opening { instance: u64::MAX - 1, count: 19_999 }));
    }
}
