//! A volume's image as a raw sparse file, which has its name only when it is whole.
//!
//! How: it is written beside, under a name that ends in `.partial`, synced, and renamed.
//! Invariant: a file that exists is never written over.
//! Cost: a sync. Not for: what goes into it; see `restore` and `salvage`.

use crate::error::{Report, ReportKind};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

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
    file: File,
    partial: PathBuf,
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
        let partial = beside(path, ".partial");
        let opened = OpenOptions::new().write(true).create(true).truncate(true).open(&partial);
        let sized = opened.and_then(|file| {
            file.set_len(size_bytes)?;
            Ok(file)
        });
        let file = sized.map_err(|cause| unwritable(path, words, &cause))?;
        Ok(Image { file, partial, path: path.to_owned(), words })
    }

    /// The file holds nothing again.
    pub(crate) fn begin_anew(&self, size_bytes: u64) -> Result<(), Report> {
        let emptied = self.file.set_len(0);
        let sized = emptied.and_then(|()| self.file.set_len(size_bytes));
        sized.map_err(|cause| unwritable(&self.path, self.words, &cause))
    }

    /// Writes bytes at an offset.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Gives the file its name, unless something is missing in it.
    pub(crate) fn finish(self, is_whole: bool) -> Result<(), Report> {
        let synced = self.file.sync_all();
        let named = synced.and_then(|()| match is_whole {
            true => std::fs::rename(&self.partial, &self.path),
            false => Ok(()),
        });
        named.map_err(|cause| unwritable(&self.path, self.words, &cause))
    }
}

/// A file's name with more behind it.
pub(crate) fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    PathBuf::from(name)
}

pub(crate) fn refuse_existing(path: &Path, words: &ImageWords) -> Result<(), Report> {
    match path.exists() {
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
