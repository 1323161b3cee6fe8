//! A volume's image as a raw sparse file, which has its name only when it is whole.
//!
//! How: it is written beside, under a new name that ends in `.partial`, synced, and renamed.
//! Invariant: a file that exists is never written over, also one that comes meanwhile, and no
//! symbolic link is followed. What is not finished leaves nothing behind.
//! Cost: a sync. Not for: what goes into it; see `restore` and `salvage`.

use crate::error::{Report, ReportKind};
use std::fs::Permissions;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// What refusals say of who writes an image.
#[derive(Debug)]
pub(crate) struct ImageWords {
    /// What cannot be done, before the file's name.
    pub(crate) error: &'static str,
    /// What has become of the data.
    pub(crate) state: &'static str,
}

/// See the file's header.
#[derive(Debug)]
pub(crate) struct Image {
    file: NamedTempFile,
    path: PathBuf,
    words: &'static ImageWords,
}

impl Image {
    /// Begins a file of a size that holds nothing.
    pub(crate) fn begin(
        path: &Path,
        size_bytes: u64,
        words: &'static ImageWords,
    ) -> Result<Self, Report> {
        refuse_existing(path, words)?;
        let sized = partial(path).and_then(|file| {
            file.as_file().set_len(size_bytes)?;
            Ok(file)
        });
        let file = sized.map_err(|cause| unwritable(path, words, &cause))?;
        Ok(Image { file, path: path.to_owned(), words })
    }

    /// The file holds nothing again.
    pub(crate) fn begin_anew(&self, size_bytes: u64) -> Result<(), Report> {
        let file = self.file.as_file();
        let sized = file.set_len(0).and_then(|()| file.set_len(size_bytes));
        sized.map_err(|cause| unwritable(&self.path, self.words, &cause))
    }

    /// Writes bytes at an offset.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.file.as_file().write_all_at(bytes, offset)
    }

    /// Gives the file its name. Where something is missing in it, it keeps the one that it has,
    /// which is returned.
    pub(crate) fn finish(self, is_whole: bool) -> Result<Option<PathBuf>, Report> {
        let Image { file, path, words } = self;
        let finished = file.as_file().sync_all().and_then(|()| match is_whole {
            true => file.persist_noclobber(&path).map(|_| None).map_err(|refused| refused.error),
            false => file.keep().map(|(_, kept)| Some(kept)).map_err(|refused| refused.error),
        });
        finished.map_err(|cause| unwritable(&path, words, &cause))
    }
}

/// A new file beside `path` that its owner alone can read, whatever the umask.
fn partial(path: &Path) -> std::io::Result<NamedTempFile> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    tempfile::Builder::new()
        .prefix(&name)
        .suffix(".partial")
        .permissions(Permissions::from_mode(FILE_MODE))
        .tempfile_in(parent.unwrap_or(Path::new(".")))
}

/// Rights of a file with a volume's data.
pub(crate) const FILE_MODE: u32 = 0o600;

/// A file's name with more behind it.
pub(crate) fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    PathBuf::from(name)
}

pub(crate) fn refuse_existing(path: &Path, words: &ImageWords) -> Result<(), Report> {
    match path.symlink_metadata().is_ok() {
        true => {
            Err(Report::new(ReportKind::InUse, format!("{} `{}`", words.error, path.display()))
                .cause("there is such a file already")
                .state("nothing was changed")
                .hint("choose another name, or move the file away"))
        }
        false => Ok(()),
    }
}

/// What keeps a file from being written is on this machine, and where it comes from has all.
pub(crate) fn unwritable(path: &Path, words: &ImageWords, cause: &std::io::Error) -> Report {
    Report::from_io(format!("{} `{}`", words.error, path.display()), cause)
        .state(words.state)
        .hint("name a file in a folder that is there, that this user may write, and that has room")
}
