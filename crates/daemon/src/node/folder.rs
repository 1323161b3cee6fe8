//! The folders of a node, before anything is read or written there.
//!
//! How: what is missing is made; the lock is taken; what an earlier build left open to every user
//! is closed.
//! Invariant: nothing but folders is made before the lock is held.
//! Cost: a few system calls per start. Not for: what commands may name; see `config`.

use super::CONTROL_URL_FILE_NAME;
use crate::catalog::{CATALOG_FILE_NAME, Catalog, DirectoryLock};
use crate::config::{Config, Format, LOCAL_DIR};
use crate::control::volumes::VOLUMES_DIR_NAME;
use crate::disk_file::is_absent;
use crate::error::{Report, ReportKind};
use crate::intents::INTENTS_FILE_NAME;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Creates the node's directories and takes the lock. The node's own may be entered, since its
/// sockets are there; what holds data is its user's.
pub(super) fn open_directory(dir: &Path) -> Result<DirectoryLock, Report> {
    make_folder(dir, OPEN_FOLDER_MODE)?;
    let lock = DirectoryLock::take(dir)?;
    // One that was killed leaves it, and this one may have no such address.
    drop(std::fs::remove_file(dir.join(CONTROL_URL_FILE_NAME)));
    for name in [VOLUMES_DIR_NAME, "levels", LOCAL_DIR] {
        let folder = dir.join(name);
        if name == VOLUMES_DIR_NAME {
            make_folder(&folder, DATA_FOLDER_MODE)?;
        }
        close_to_others(&folder);
    }
    Ok(lock)
}

/// The node's directory: others may pass through to a socket that lets them in.
const OPEN_FOLDER_MODE: u32 = 0o755;
/// Where volumes' bytes lie.
const DATA_FOLDER_MODE: u32 = 0o700;
/// What a mode gives to users beside the owner and his group.
const OTHERS: u32 = 0o007;

fn make_folder(folder: &Path, mode: u32) -> Result<(), Report> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().map_or(Ok(()), std::fs::create_dir_all);
    let made = parent.and_then(|()| std::fs::create_dir(folder));
    let made = made.and_then(|()| std::fs::set_permissions(folder, Permissions::from_mode(mode)));
    made.map_err(|cause| {
        let error = format!("cannot make the directory `{}`", folder.display());
        let refused = Report::from_io(error, &cause).state("nothing was started or changed");
        match cause.kind() {
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                Report { kind: ReportKind::Invalid, ..refused }
                    .hint("choose another directory with --dir: a file is in its place")
            }
            ErrorKind::NotFound => refused
                .hint("choose another directory with --dir: none can be made in this file system"),
            _ => refused.hint("choose another directory with --dir, or correct the permissions"),
        }
    })
}

/// A folder of an earlier build that every user could read is closed to them; links are followed,
/// since it is the data that counts.
fn close_to_others(folder: &Path) {
    let Ok(found) = std::fs::metadata(folder) else { return };
    let mode = found.permissions().mode();
    if mode & OTHERS != 0
        && let Err(cause) = std::fs::set_permissions(folder, Permissions::from_mode(mode & !OTHERS))
    {
        tracing::warn!(folder = %folder.display(), %cause, "other users can read this folder");
    }
}

/// The catalog of a node that has run, if any. A directory in which one has, and whose catalog is
/// gone, is no new one: what its files hold would be taken for another node's, or for left-overs.
///
/// # Errors
/// A report where that is so, the catalog cannot be read, or it is not known how old the files of
/// the node may be.
pub(super) fn load_catalog(config: &Config) -> Result<Option<Catalog>, Report> {
    let found = Catalog::load(&config.dir)?;
    crate::catalog::last::check(&config.dir)?;
    crate::reached::check(&config.dir)?;
    let has_run = !is_absent(&config.dir.join(INTENTS_FILE_NAME));
    if found.is_some() || config.format == Format::All || !has_run {
        return Ok(found);
    }
    let dir = config.dir.display();
    Err(Report::new(ReportKind::Corrupt, format!("cannot start the node in `{dir}`"))
        .cause(format!("`{CATALOG_FILE_NAME}` is missing, though a node has run here"))
        .state("nothing was changed; levels and volumes' files are as they were")
        .hint(format!(
            "put the node's own `{CATALOG_FILE_NAME}` back, the newest, with which all its data is \
             there (`{CATALOG_FILE_NAME}.new` is the one before it); or start a new node in \
             another directory"
        )))
}
