//! The two files that say how far levels, journals and maps had come: the word and its copy.
//!
//! How: both are replaced one after the other, with the same bytes. While the first is written the
//! copy has no name, so that a copy that is there is never older than the first. Where one cannot
//! be used, or is missing, the other counts, and the next change writes both. Where they differ, as
//! after an earlier build, which knows no copy, or where one was put back, the further one counts.
//! Invariant: one damaged file costs nothing; where neither can be used nothing is made up: that is
//! an error, and no start goes on without it.
//! Cost: four syncs and two small files per change. Not for: a copy of both that is put back.

use super::{COPY_FILE_NAME, Content, REACHED_FILE_NAME};
use crate::checked::warn_once;
use crate::config::read_small;
use crate::error::{Report, ReportKind};
use crate::replace::replace_within;
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Bytes of a file at most: some 60 for each volume, and a few levels of at most 64 shards.
pub(super) const BYTES_MAX: u64 = 64 << 20;
/// The first file while it is written.
pub(super) const STAGED_NAME: &str = "reached.json.new";
/// The copy while the first file, or it, is written.
const COPY_STAGED_NAME: &str = "reached.copy.json.new";
/// Both files, in the order in which they are written.
const NAMES: [&str; 2] = [REACHED_FILE_NAME, COPY_FILE_NAME];

/// What one of the files comes to.
#[derive(Debug)]
enum Word {
    Missing,
    Says(Content),
    /// It can never be read as such a file; why.
    Damaged(String),
    /// The system's error: it may be read later.
    Unread(std::io::Error),
}

impl Word {
    fn read(path: &Path) -> Word {
        match read_small(path, BYTES_MAX) {
            Ok(bytes) => Content::parse(&bytes).map_or_else(Word::Damaged, Word::Says),
            // A link to nowhere is there.
            Err(cause) if cause.kind() == ErrorKind::NotFound => match path.symlink_metadata() {
                Ok(_) => Word::Damaged(cause.to_string()),
                Err(_) => Word::Missing,
            },
            // It is no file, or too long.
            Err(cause)
                if matches!(cause.kind(), ErrorKind::InvalidData | ErrorKind::InvalidInput) =>
            {
                Word::Damaged(cause.to_string())
            }
            Err(cause) => Word::Unread(cause),
        }
    }

    /// Why it cannot be used, if it is there and cannot.
    fn problem(&self) -> Option<String> {
        match self {
            Word::Damaged(cause) => Some(cause.clone()),
            Word::Unread(cause) => Some(cause.to_string()),
            Word::Missing | Word::Says(_) => None,
        }
    }
}

/// What both files say together.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) content: Content,
    /// Both say it, or there is none.
    is_whole: bool,
    /// The first file is damaged or missing.
    is_in_copy_alone: bool,
}

/// Why neither file says anything.
#[derive(Debug)]
pub(crate) enum Unknown {
    /// The system's error, by file: it may pass.
    Unread(PathBuf, std::io::Error),
    /// Damage, in words.
    Damaged(String),
}

impl Unknown {
    /// By remedy.
    pub(crate) fn kind(&self) -> ReportKind {
        match self {
            Unknown::Unread(_, cause) => cause.into(),
            Unknown::Damaged(..) => ReportKind::Corrupt,
        }
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> String {
        match self {
            Unknown::Unread(path, _) => format!(
                "correct what the cause names, and try again; where `{}` stays unreadable, move it \
                 away, and `{COPY_FILE_NAME}` with it: {ACCEPTED}",
                path.display()
            ),
            Unknown::Damaged(..) => format!(
                "put the newest `{REACHED_FILE_NAME}` or `{COPY_FILE_NAME}` back; where there is \
                 none, and no level, journal or map was put back from a copy, move both away: \
                 {ACCEPTED}"
            ),
        }
    }
}

/// What moving both files away means.
const ACCEPTED: &str = "the node makes new ones, by which older copies of levels, and of journals \
                        and maps, are not known until the next start";

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unknown::Unread(path, cause) => {
                write!(f, "cannot read `{}`, which must not be replaced: {cause}", path.display())
            }
            Unknown::Damaged(cause) => write!(
                f,
                "{cause}; so whether levels, journals and maps are older copies is not known"
            ),
        }
    }
}

impl Known {
    /// Reads both files.
    ///
    /// # Errors
    /// [`Unknown`] where one is there that cannot be used, and the other does not speak for it.
    pub(super) fn read(dir: &Path) -> Result<Known, Unknown> {
        let [path, copy_path] = NAMES.map(|name| dir.join(name));
        let [first, copy] = [&path, &copy_path].map(|path| Word::read(path));
        if let (Word::Says(content), Word::Says(copy)) = (&first, &copy) {
            // It may itself be put back from a copy.
            let (content, is_whole) = (content.raised_by(copy), content == copy);
            return Ok(Known { content, is_whole, is_in_copy_alone: false });
        }
        let other = "the other one of the two counts, and the next change writes both";
        for (path, word) in [(&path, &first), (&copy_path, &copy)] {
            if let Some(cause) = word.problem() {
                warn_once(path, &cause, other);
            }
        }
        match (first, copy) {
            (Word::Says(content), _) => {
                Ok(Known { content, is_whole: false, is_in_copy_alone: false })
            }
            (_, Word::Says(content)) => {
                Ok(Known { content, is_whole: false, is_in_copy_alone: true })
            }
            (Word::Missing, Word::Missing) => {
                let content = Content::default();
                Ok(Known { content, is_whole: true, is_in_copy_alone: false })
            }
            (Word::Unread(cause), _) => Err(Unknown::Unread(path, cause)),
            (_, Word::Unread(cause)) => Err(Unknown::Unread(copy_path, cause)),
            (first, copy) => {
                let of = |path: &Path, word: &Word| match word.problem() {
                    Some(cause) => format!("`{}` is damaged: {cause}", path.display()),
                    None => format!("`{}` is missing", path.display()),
                };
                let cause = format!("{}; {}", of(&path, &first), of(&copy_path, &copy));
                Err(Unknown::Damaged(cause))
            }
        }
    }

    /// Makes both files say `content`, where they do not yet.
    ///
    /// # Errors
    /// The system's, with the file: what the first one said before may stand.
    pub(super) fn replace(
        &self,
        dir: &Path,
        content: &Content,
    ) -> Result<(), (PathBuf, std::io::Error)> {
        if self.is_whole && *content == self.content {
            return Ok(());
        }
        let [path, copy_path] = NAMES.map(|name| dir.join(name));
        let first = (STAGED_NAME, REACHED_FILE_NAME);
        if self.is_in_copy_alone {
            // The copy keeps its name until the first file says the same.
            let bytes = self.content.bytes();
            replace_within(dir, first, &bytes).map_err(|cause| (path.clone(), cause))?;
        }
        // Journalling file systems keep the order of names within a folder. What is written next
        // overwrites it, so that a full disk has room for it.
        match std::fs::rename(&copy_path, dir.join(COPY_STAGED_NAME)) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => {}
            renamed => renamed.map_err(|cause| (copy_path.clone(), cause))?,
        }
        let bytes = content.bytes();
        replace_within(dir, first, &bytes).map_err(|cause| (path, cause))?;
        let staged = (COPY_STAGED_NAME, COPY_FILE_NAME);
        replace_within(dir, staged, &bytes).map_err(|cause| (copy_path, cause))
    }
}

/// Removes both files, durably.
///
/// # Errors
/// The system's, with the file.
pub(super) fn remove(dir: &Path) -> Result<(), (PathBuf, std::io::Error)> {
    // In this order: what is left by a crash is what counts.
    for name in NAMES.into_iter().rev() {
        match std::fs::remove_file(dir.join(name)) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => {}
            removed => removed.map_err(|cause| (dir.join(name), cause))?,
        }
    }
    let synced = File::open(dir).and_then(|folder| folder.sync_all());
    synced.map_err(|cause| (dir.to_owned(), cause))
}

/// Refuses a start where neither file says how far levels, journals and maps had come, though one
/// is there: any of them may be an older copy.
///
/// # Errors
/// A report; nothing was changed.
pub(crate) fn check(dir: &Path) -> Result<(), Report> {
    let Err(unknown) = Known::read(dir) else { return Ok(()) };
    let error = format!("cannot start the node in `{}`", dir.display());
    Err(Report::new(unknown.kind(), error)
        .cause(unknown.to_string())
        .state("nothing was changed; levels and volumes' files are as they were")
        .hint(unknown.hint()))
}

/// The files that are there and cannot be used, and why.
pub(crate) fn damages(dir: &Path) -> Vec<(&'static str, String)> {
    let problem = |name| Some((name, Word::read(&dir.join(name)).problem()?));
    NAMES.into_iter().filter_map(problem).collect()
}

/// Why neither file can be used, though one is there; none where one can, or none is there.
pub(crate) fn unknown(dir: &Path) -> Option<Unknown> {
    Known::read(dir).err()
}
