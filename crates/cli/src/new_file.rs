//! A file on its way into place.
//!
//! How: it grows beside its place under a hidden name, and is renamed when it is whole.
//! Invariant: what was there before is replaced only where that was asked for, and by a whole file
//! or not at all. Cost: a rename.
//! Not for: traces, which grow for long; they have their own.

use layby_daemon::error::{Report, ReportKind};
use std::io::Write;
use std::path::{Path, PathBuf};

/// See the file's header.
pub(crate) struct NewFile {
    path: PathBuf,
    /// What it is, for reports: `the report`.
    what: &'static str,
    file: tempfile::NamedTempFile,
    overwrite: bool,
}

impl NewFile {
    /// Begins the file at `path`; whether it can be written is found out now.
    ///
    /// # Errors
    /// A report when nothing can be created there, or a file is there and `overwrite` is not set.
    pub(crate) fn begin(
        path: &Path,
        what: &'static str,
        overwrite: bool,
    ) -> Result<NewFile, Report> {
        check_place(path, what, "choose another place with --out")?;
        check_absent(path, what, overwrite)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let file = tempfile::Builder::new()
            .prefix(".layby-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(parent.unwrap_or(Path::new(".")))
            .map_err(|cause| unwritten(path, what, &cause))?;
        Ok(NewFile { path: path.to_path_buf(), what, file, overwrite })
    }

    /// Writes all of it and puts it into place.
    ///
    /// # Errors
    /// A report when it cannot be written; what was there is unchanged.
    pub(crate) fn finish(mut self, text: &str) -> Result<PathBuf, Report> {
        let written = self.file.write_all(text.as_bytes());
        let placed = written.and_then(|()| {
            let placed = match self.overwrite {
                true => self.file.persist(&self.path),
                // Somebody else may have come first.
                false => self.file.persist_noclobber(&self.path),
            };
            placed.map_err(|failure| failure.error)?;
            Ok(())
        });
        placed.map_err(|cause| unwritten(&self.path, self.what, &cause))?;
        Ok(self.path)
    }
}

/// Refuses to put a file into the place of a device, a pipe, a folder or a link: `what` would take
/// its place and not go through it. Nor is `-` a file, which people write for standard output.
///
/// # Errors
/// A report when there is something else than a regular file.
pub(crate) fn check_place(path: &Path, what: &str, hint: &str) -> Result<(), Report> {
    let cause = match path.symlink_metadata() {
        _ if path.as_os_str() == "-" => "standard output takes none: it goes into a file alone",
        Ok(found) if !found.is_file() => "there is something that is no regular file",
        _ => return Ok(()),
    };
    let error = format!("cannot write {what} `{}`", path.display());
    Err(Report::new(ReportKind::Invalid, error)
        .cause(cause)
        .state("nothing was changed")
        .hint(hint))
}

/// Refuses to replace a file unless that was asked for.
///
/// # Errors
/// A report when it is there already.
pub(crate) fn check_absent(path: &Path, what: &str, overwrite: bool) -> Result<(), Report> {
    if overwrite || path.symlink_metadata().is_err() {
        return Ok(());
    }
    Err(Report::new(ReportKind::InUse, format!("`{}` is there already", path.display()))
        .cause(format!("{what} replaces no file unless that is asked for"))
        .state("nothing was read or written")
        .hint("choose another name, or add --overwrite"))
}

fn unwritten(path: &Path, what: &str, cause: &std::io::Error) -> Report {
    Report::from_io(format!("cannot write {what} `{}`", path.display()), cause)
        .state("a file that was there before is unchanged")
        .hint("choose another place with --out, or leave it out to see it on the terminal only")
}
