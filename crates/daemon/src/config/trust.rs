//! Whom the files belong to that a node believes: its configuration, its directory, its secrets.
//!
//! How: owner and mode are compared with the process's user, of the file and of each folder on its
//! path, along links. The sticky bit is no excuse for the node's directory: it keeps others from
//! removing files, not from adding a catalog or a configuration.
//! Invariant: what passes could be written by the node's user and root alone at that moment.
//! Cost: two system calls per folder. Not for: who can read; see the secrets' own checks. Access
//! lists beside the mode are not read; where one lets others write, the mode's group bits show it.

use super::{Config, STDIN};
use crate::error::{Report, ReportKind};
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

/// The mode bits that let the group and others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The mode bit that keeps others from replacing what is not theirs.
const STICKY: u32 = 0o1000;
/// Links that a path has at most, as for the kernel.
const LINKS_MAX: usize = 40;

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

/// Why another user can make a path lead to another file, where that is so. Each folder on the way
/// counts, those of links too: renaming an entry of any of them changes where the path leads. A
/// folder that `system` owns is trusted for folders and links: see [`root_owner`].
fn replaceable(file: &Path, system: Option<u32>) -> Option<String> {
    let mut rest = parts(&std::path::absolute(file).ok()?);
    // Without links, so that `..` is the folder above it.
    let mut place = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            place.pop();
            continue;
        }
        let next = place.join(part);
        // The link of an open file (`/proc/self/fd/3`) may name nothing: that file has no folder.
        let found = std::fs::symlink_metadata(&next).ok()?;
        let why = replaceable_entry(&place, (&next, &found), system);
        if why.is_some() {
            return why;
        }
        if !found.is_symlink() {
            place = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Some(format!("`{}` has more than {LINKS_MAX} links", file.display()));
        }
        let target = std::fs::read_link(&next).ok()?;
        rest.extend(parts(&target));
        if target.is_absolute() {
            place = PathBuf::from("/");
        }
    }
    None
}

/// The names of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let is_name =
        |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    let names = path.components().rev().filter(is_name);
    names.map(|part| part.as_os_str().to_owned()).collect()
}

/// Why another user can put something else in the place of a folder's entry, where that is so.
fn replaceable_entry(
    folder: &Path,
    (path, entry): (&Path, &Metadata),
    system: Option<u32>,
) -> Option<String> {
    let found = std::fs::metadata(folder).ok()?;
    // Where a link leads is judged by itself.
    let is_above = (entry.is_dir() || entry.is_symlink()) && system == Some(found.uid());
    let mode = found.permissions().mode();
    if !is_above && foreign_owner(&found).is_some() {
        foreign(folder, &found)
    } else if mode & STICKY != 0 {
        let owner = foreign_owner(entry)?;
        Some(format!("`{}` is in a folder that others can write, and {owner}", path.display()))
    } else if mode & WRITABLE_BY_OTHERS != 0 {
        foreign(folder, &found)
    } else {
        None
    }
}

/// The owner of `/`, who can replace all below it. In a user namespace root may have the number of
/// an unknown user, and so has all that it owns.
fn root_owner() -> Option<u32> {
    std::fs::metadata("/").ok().map(|found| found.uid())
}

/// Why another user can decide what a file says, where that is so: that user owns it or can write
/// it, or a folder on its path. A file that is missing has no owner.
pub(crate) fn foreign_file(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    foreign(path, &found).or_else(|| replaceable(path, root_owner()))
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

/// The same of the node's directory alone, for `layby check`: root may look at the node of another
/// user, whose directory stays that user's.
///
/// # Errors
/// As [`check_trusted`].
pub(crate) fn check_trusted_dir(dir: &Path) -> Result<(), Report> {
    let found = std::fs::metadata(dir);
    let owner = found.ok().filter(|found| foreign_owner(found).is_some()).map(|found| found.uid());
    check_files(None, dir).map_err(|refused| match owner {
        None => refused,
        Some(owner) => refused.hint(format!(
            "run it as the node's user, since a key comes from a command: `sudo -u '#{owner}' \
             layby check …`, or leave --backing out"
        )),
    })
}

fn check_files(file: Option<&Path>, dir: &Path) -> Result<(), Report> {
    for path in file.into_iter().chain([dir]) {
        let Ok(found) = std::fs::metadata(path) else { continue };
        let why = foreign(path, &found);
        let why = why.or_else(|| replaceable(path, root_owner()).filter(|_| file == Some(path)));
        let Some(cause) = why else { continue };
        let what = if found.is_dir() { "the node's directory" } else { "the configuration" };
        let error = format!("cannot trust {what} `{}`", path.display());
        return Err(Report::new(ReportKind::Denied, error)
            .cause(cause)
            .state("nothing was started or changed")
            .hint(
                "`chown` what the cause names to the node's user or root, and `chmod go-w` it, \
                 once you know what is in it; each folder on the configuration's path counts",
            ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use std::fs::{File, Permissions};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{lchown, symlink};

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
                let alone = check_trusted_dir(&dir);
                assert_eq!(alone.is_err(), path == &dir);
                if let Err(refused) = alone {
                    assert!(refused.hint.contains("sudo -u '#65534' layby check"), "{refused}");
                    assert!(!refused.hint.contains("chown"), "{refused}");
                }
                std::os::unix::fs::chown(path, Some(0), None).expect("as root");
            }
        }
        assert_eq!(check_trusted(&config), Ok(()));
    }

    /// Folders and links below one of the test's own, which is not writable by others.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Tree {
            Tree(tempfile::TempDir::new().expect("a temporary directory"))
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.0.path().join(name)
        }

        fn folder(&self, name: &str, mode: u32) {
            std::fs::create_dir_all(self.path(name)).expect("a writable directory");
            self.set(name, mode);
        }

        fn set(&self, name: &str, mode: u32) {
            let mode = Permissions::from_mode(mode);
            std::fs::set_permissions(self.path(name), mode).expect("the test's own");
        }

        fn file(&self, name: &str) {
            std::fs::write(self.path(name), "").expect("a writable directory");
            self.set(name, 0o600);
        }

        fn link(&self, target: &str, name: &str) {
            symlink(target, self.path(name)).expect("a writable directory");
        }

        fn own(&self, name: &str, user: u32) {
            lchown(self.path(name), Some(user), None).expect("as root");
        }

        /// Why the file is not trusted; empty where it is.
        fn doubt(&self, name: &str) -> String {
            foreign_file(&self.path(name)).unwrap_or_default()
        }
    }

    /// Goal: a file is not trusted where others can replace any folder or link on its path; links
    /// between trusted folders are. Method: links of each form into a folder that others can write,
    /// the same folder as a link's own and above the file's, then the same tree with safe modes.
    #[test]
    fn each_folder_of_a_path_counts() {
        let tree = Tree::new();
        tree.folder("open", 0o755);
        tree.folder("open/inner", 0o755);
        tree.file("open/file");
        tree.file("open/inner/file");
        tree.folder("own/deep", 0o755);
        tree.file("own/file");
        tree.link("open/file", "relative");
        tree.link(tree.path("open/file").to_str().expect("text"), "absolute");
        tree.link("../../open/inner/../file", "own/deep/upward");
        tree.link("relative", "twice");
        tree.link("open/inner", "folder");
        tree.link("../own/file", "open/back");
        tree.link("open/back", "there_and_back");
        tree.link("own/deep/../file", "good");
        let bad = [
            "open/inner/file",
            "relative",
            "absolute",
            "own/deep/upward",
            "twice",
            "folder/file",
            "open/back",
            "there_and_back",
        ];
        for (mode, is_good) in [(0o755, true), (0o777, false), (0o775, false), (0o700, true)] {
            tree.set("open", mode);
            for name in bad {
                let doubt = tree.doubt(name);
                assert_eq!(doubt.is_empty(), is_good, "{name} {mode:o}: {doubt}");
                assert!(
                    is_good || doubt.contains(&format!("/open` has mode {mode:04o}")),
                    "{doubt}"
                );
            }
            assert_eq!(tree.doubt("good"), "", "{mode:o}");
            let trusts = |name: &str| check_files(Some(&tree.path(name)), tree.0.path()).is_ok();
            assert!(trusts("good") && trusts("twice") == is_good, "{mode:o}");
        }
    }

    /// Goal: in a folder with the sticky bit what belongs to the node's user is trusted, and a link
    /// of another user is not; nor is a path through a folder of that user. Method: as root, owners
    /// of links and folders; without that right nothing is shown of owners.
    #[test]
    fn links_and_folders_of_other_users_are_not_trusted() {
        let tree = Tree::new();
        tree.folder("sticky", 0o1777);
        tree.folder("theirs/inner", 0o755);
        tree.file("file");
        tree.file("theirs/file");
        tree.file("theirs/inner/file");
        tree.link("../file", "sticky/link");
        tree.link("theirs/file", "link");
        tree.link("inner", "theirs/alias");
        for name in ["sticky/link", "link", "theirs/inner/file", "theirs/alias/file"] {
            assert_eq!(tree.doubt(name), "", "{name}");
        }
        if !rustix::process::geteuid().is_root() {
            return;
        }
        tree.own("sticky/link", NOBODY);
        // Not by `doubt`: where `protected_symlinks` is set the kernel follows no such link.
        let doubt = replaceable(&tree.path("sticky/link"), root_owner()).unwrap_or_default();
        assert!(doubt.contains("link` is in a folder that others can write"), "{doubt}");
        tree.own("theirs", NOBODY);
        for name in ["link", "theirs/inner/file", "theirs/alias/file"] {
            let doubt = tree.doubt(name);
            assert!(doubt.contains("/theirs` has mode 0755, and user 65534 owns it"), "{doubt}");
        }
        assert_eq!(tree.doubt("file"), "");
        // In a user namespace the owner of `/` can have that number.
        let is_safe = |name: &str| replaceable(&tree.path(name), Some(NOBODY)).is_none();
        assert!(is_safe("theirs/inner/file") && !is_safe("theirs/file") && !is_safe("link"));
        assert!(is_safe("theirs/alias/file"), "a link of the system's");
        tree.own("theirs/alias", NOBODY + 1);
        assert!(is_safe("theirs/alias/file"), "its folder lets no other user replace it");
        for (mode, words) in [(0o1777, "and user 65535 owns it"), (0o777, "has mode 0777")] {
            tree.set("theirs", mode);
            let doubt = replaceable(&tree.path("theirs/alias/file"), Some(NOBODY));
            assert!(doubt.is_some_and(|why| why.contains(words)), "{mode:o}");
        }
    }

    /// Goal: what the node was started with as an open file is judged by itself. Method: a pipe and
    /// a file under their names in `/proc`.
    #[test]
    fn open_files_have_no_folder() {
        let tree = Tree::new();
        tree.file("file");
        let (pipe, _end) = std::io::pipe().expect("a pipe");
        let file = File::open(tree.path("file")).expect("the test's own");
        for number in [pipe.as_raw_fd(), file.as_raw_fd()] {
            for folder in ["/proc/self/fd", "/dev/fd"] {
                let path = Path::new(folder).join(number.to_string());
                assert_eq!(foreign_file(&path), None, "{}", path.display());
            }
        }
    }
}
