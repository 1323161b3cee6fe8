//! Whom the files belong to that a node believes: its configuration, its directory, its secrets.
//!
//! How: owner and mode are compared with the process's user. The sticky bit is no excuse: it keeps
//! others from removing files, not from adding a catalog or a configuration.
//! Invariant: what passes could be written by the node's user and root alone at that moment.
//! Cost: a look at each. Not for: who can read; see the secrets' own checks. Access lists beside
//! the mode are not read; where one lets others write, the mode's group bits show it.

use super::{Config, STDIN};
use crate::error::{Report, ReportKind};
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// The mode bits that let the group and others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The mode bit that keeps others from replacing what is not theirs.
const STICKY: u32 = 0o1000;

/// Why somebody beside the node's user and root owns a file, where that is so.
pub(crate) fn foreign_owner(found: &Metadata) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    let is_foreign = found.uid() != own && found.uid() != 0;
    is_foreign.then(|| format!("user {} owns it, not the node's user {own} or root", found.uid()))
}

/// Why somebody beside the node's user and root can change a file or folder, where that is so.
fn foreign(path: &Path, found: &Metadata) -> Option<String> {
    let mode = found.permissions().mode() & 0o7777;
    let said = |why: String| Some(format!("`{}` has mode {mode:04o}, and {why}", path.display()));
    match foreign_owner(found) {
        Some(owner) => said(owner),
        None if mode & WRITABLE_BY_OTHERS != 0 => {
            said(format!("others than its owner, user {}, can write it", found.uid()))
        }
        None => None,
    }
}

/// Why somebody else can put another file in this one's place, where that is so.
fn replaceable(file: &Path) -> Option<String> {
    let file = std::path::absolute(file).ok()?;
    let folder = file.parent()?;
    let found = std::fs::metadata(folder).ok()?;
    let is_kept = found.permissions().mode() & STICKY != 0 && foreign_owner(&found).is_none();
    if is_kept { None } else { foreign(folder, &found) }
}

/// Why another user can decide what a file says, where that is so: that user owns it or can write
/// it, or its folder. A file that is missing has no owner.
pub(crate) fn foreign_file(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    foreign(path, &found).or_else(|| replaceable(path))
}

/// Refuses a configuration file or a node's directory that another user could have written: what
/// they say runs commands and opens files as the node's user. What is not there yet is nobody's.
///
/// # Errors
/// A report that names owner and mode.
pub fn check_trusted(config: &Config) -> Result<(), Report> {
    let file = config.origin.as_deref().filter(|path| *path != Path::new(STDIN));
    check_files(file, &config.dir)
}

/// The same of the node's directory alone.
///
/// # Errors
/// As [`check_trusted`].
pub(crate) fn check_trusted_dir(dir: &Path) -> Result<(), Report> {
    check_files(None, dir)
}

fn check_files(file: Option<&Path>, dir: &Path) -> Result<(), Report> {
    for path in file.into_iter().chain([dir]) {
        let Ok(found) = std::fs::metadata(path) else { continue };
        let why = foreign(path, &found);
        let why = why.or_else(|| replaceable(path).filter(|_| file == Some(path)));
        let Some(cause) = why else { continue };
        let what = if found.is_dir() { "the node's directory" } else { "the configuration" };
        let error = format!("cannot trust {what} `{}`", path.display());
        return Err(Report::new(ReportKind::Denied, error)
            .cause(cause)
            .state("nothing was started or changed")
            .hint(
                "`chown` it to the node's user or root, and `chmod go-w` it and the \
                 configuration's folder, once you know what is in it",
            ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use std::fs::Permissions;

    /// The user and group of nobody.
    const NOBODY: u32 = 65_534;

    /// Goal: a configuration or a directory of another user's, or one that others can write, is
    /// refused with owner and mode; the node's own are not. Method: modes of each kind, the sticky
    /// bit among them, and, as root, another owner.
    #[test]
    fn what_others_can_write_is_not_trusted() {
        let outer = tempfile::TempDir::new().expect("a temporary directory");
        let (dir, file) = (outer.path().join("node"), outer.path().join("layby.toml"));
        std::fs::create_dir(&dir).expect("a writable directory");
        std::fs::write(&file, "").expect("a writable directory");
        let over = Overrides { dir: Some(dir.clone()), ..Overrides::default() };
        let config = Config::parse(Some(file.clone()), "", &over).expect("good");
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("the test's own");
        };
        for (path, mode, is_good) in [
            (&dir, 0o755, true),
            (&dir, 0o775, false),
            (&dir, 0o1777, false),
            (&dir, 0o700, true),
            (&file, 0o664, false),
            (&file, 0o646, false),
            (&file, 0o644, true),
        ] {
            set(path, mode);
            let found = check_trusted(&config);
            assert_eq!(found.is_ok(), is_good, "{} {mode:o}: {found:?}", path.display());
            if let Err(refused) = found {
                assert!(refused.cause.contains(&format!("{mode:04o}")), "{refused}");
                assert_eq!(refused.kind, ReportKind::Denied);
                set(path, 0o700);
            }
        }
        set(outer.path(), 0o777);
        assert!(check_trusted(&config).is_err(), "the file can be replaced");
        set(outer.path(), 0o700);
        if rustix::process::geteuid().is_root() {
            for path in [&dir, &file] {
                std::os::unix::fs::chown(path, Some(NOBODY), None).expect("as root");
                let refused = check_trusted(&config).expect_err("it is another's");
                assert!(refused.cause.contains("user 65534 owns it"), "{refused}");
                std::os::unix::fs::chown(path, Some(0), None).expect("as root");
            }
        }
        assert_eq!(check_trusted(&config), Ok(()));
    }
}
